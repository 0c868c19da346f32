//! Guards: comparisons of linear forms with constants, as TVM writes them.
use crate::arith::{constant, int, Domains};
use crate::linear::{gcd, Digit, Linear};
use satune_ir::affine::index_type;
use satune_ir::{BinOp, Expr};
use std::sync::Arc;

fn compare(op: BinOp, a: Expr, b: Expr) -> Expr {
    Expr::Binary(op, Arc::new(a), Arc::new(b))
}

/// `value < bound`, the bound in the type of the value.
fn less(value: Expr, bound: i64) -> Expr {
    let bound = int(bound, index_type(&value));
    compare(BinOp::Lt, value, bound)
}

/// `value >= bound`, the constants on the left.
pub fn at_least(value: &Linear, bound: i64) -> Expr {
    let offset = value.offset();
    let terms = value.shifted(offset.saturating_neg()).unwrap_or_else(|| value.clone()).sorted();
    let terms = terms.expr();
    compare(BinOp::Le, int(bound.saturating_sub(offset), index_type(&terms)), terms)
}

/// `value < bound` in TVM's normal form: the constants on the right, common factors divided out. What cannot carry over to
/// the next multiple of the factor is left out, and of a remainder the digits below it are: `i * 8 + j < 24` is `i < 3` for
/// `j < 8`, and `i * 16 + x % 16 < 24` is `i * 2 + x % 16 // 8 < 3`.
pub fn below(value: &Linear, bound: i64, domains: &Domains) -> Expr {
    let Some((mut terms, mut bound)) = moved(value, bound) else {
        return less(value.expr(), bound);
    };
    while let Some((simpler, smaller)) = divided(&terms, bound, domains)
        .or_else(|| undivided(&terms, bound, domains))
        .and_then(|(terms, bound)| moved(&terms, bound))
    {
        (terms, bound) = (simpler, smaller);
    }
    less(terms.expr(), bound)
}

/// `value < bound` with the constants on the right, and of a quotient what is divided: `x // c < b` is `x < b * c`.
pub fn opened(value: &Linear, bound: i64, domains: &Domains) -> Expr {
    let Some((terms, bound)) = moved(value, bound) else {
        return less(value.expr(), bound);
    };
    let (terms, bound) = of_quotient(&terms, bound, domains).and_then(|(x, b)| moved(&x, b)).unwrap_or((terms, bound));
    less(terms.expr(), bound)
}

/// The normal form of a comparison that is opened ([`below`]).
pub fn divided_out(clause: &Expr, domains: &Domains) -> Expr {
    let Expr::Binary(BinOp::Lt, x, bound) = clause else { return clause.clone() };
    match (Linear::of(x, domains), constant(bound)) {
        (Some(value), Some(bound)) => below(&value, bound, domains),
        _ => clause.clone(),
    }
}

/// `x // c < b` as `x < b * c`.
fn of_quotient(terms: &Linear, bound: i64, domains: &Domains) -> Option<(Linear, i64)> {
    let [(Expr::Binary(BinOp::FloorDiv, x, c), 1)] = terms.terms() else { return None };
    let c = constant(c).filter(|c| *c > 0)?;
    Some((Linear::of(x, domains)?, bound.checked_mul(c)?))
}

/// `value < bound` with the constants on the right. None where they overflow.
fn moved(value: &Linear, bound: i64) -> Option<(Linear, i64)> {
    let offset = value.offset();
    Some((value.shifted(offset.checked_neg()?)?.sorted(), bound.checked_sub(offset)?))
}

/// `terms < bound` divided by the greatest common divisor `d` of the bound and the coefficients that are not 1 or -1. The
/// other terms have to lie in `[0, d)`, or be one remainder whose modulus `d` divides: both sides of the comparison then
/// differ by a multiple of `d` and less than `d`.
fn divided(terms: &Linear, bound: i64, domains: &Domains) -> Option<(Linear, i64)> {
    let large = |c: i64| c.checked_abs().is_none_or(|c| c > 1);
    let factors = terms.terms().iter().map(|(_, c)| *c).filter(|c| large(*c));
    let d = factors.clone().chain([bound]).fold(0, gcd);
    if factors.count() == 0 || d <= 1 {
        return None;
    }
    let (mut whole, mut rest) = (Linear::constant(0), Linear::constant(0));
    for (atom, c) in terms.terms() {
        let atom = Linear::atom(atom.clone());
        if large(*c) {
            whole = whole.plus(&atom, c / d)?;
        } else {
            rest = rest.plus(&atom, *c)?;
        }
    }
    let carries_nothing = matches!(rest.ends(domains), (Some(lo), Some(hi)) if lo >= 0 && hi < d);
    if !carries_nothing {
        whole = whole.plus(&high_digits(&rest, d, domains)?, 1)?;
    }
    Some((whole, bound / d))
}

/// `(x % m // l) // d` as a remainder, where `d * l` divides `m`.
fn high_digits(rest: &Linear, d: i64, domains: &Domains) -> Option<Linear> {
    let ([(atom, 1)], 0) = (rest.terms(), rest.offset()) else { return None };
    let digit = Digit::of(atom);
    let (modulus, step) = (digit.modulus?, digit.divisor.checked_mul(d)?);
    if modulus % step != 0 {
        return None;
    }
    Linear::of(&digit.index, domains)?.div(step, domains)?.rem(modulus / step, domains)
}

/// The quotient or the multiple that alone is bounded: `x // c < b` is `x < b * c`, and `x * c < b` is `x < ceil(b / c)`.
/// So is a sum whose coefficients have one absolute value.
fn undivided(terms: &Linear, bound: i64, domains: &Domains) -> Option<(Linear, i64)> {
    if let Some(opened) = of_quotient(terms, bound, domains) {
        return Some(opened);
    }
    let common = terms.terms().first()?.1.checked_abs().filter(|c| *c > 1)?;
    if terms.terms().iter().any(|(_, c)| c.checked_abs() != Some(common)) {
        return None;
    }
    let mut out = Linear::constant(0);
    for (atom, c) in terms.terms() {
        out = out.plus(&Linear::atom(atom.clone()), c.signum())?;
    }
    Some((out, bound.checked_sub(1)?.div_euclid(common).checked_add(1)?))
}

/// Conditions that hold together, in order. As in TVM, the second one narrows the first where it bounds a remainder of the
/// same index: `x < 20` before `x % 4 < 3` is `x < 19`.
pub fn together(mut clauses: Vec<Expr>) -> Vec<Expr> {
    if let [first, second, ..] = clauses.as_mut_slice() {
        if let Some(narrower) = narrowed(first, second) {
            *first = narrower;
        }
    }
    clauses
}

/// `x < bound` where `x % modulus < limit`: the last round of the remainder ends at its limit.
fn narrowed(upper: &Expr, digit: &Expr) -> Option<Expr> {
    let upper_bound = |e: &Expr| match e {
        Expr::Binary(BinOp::Lt, x, c) => Some((x.as_ref().clone(), constant(c).filter(|c| *c >= 0)?)),
        _ => None,
    };
    let ((x, bound), (remainder, limit)) = (upper_bound(upper)?, upper_bound(digit)?);
    let modulus = match &remainder {
        Expr::Binary(BinOp::FloorMod, y, c) if **y == x => constant(c).filter(|c| *c > 0 && limit <= *c)?,
        _ => return None,
    };
    let end = match bound % modulus {
        0 => bound - modulus + limit,
        last if last > limit => bound - last + limit,
        _ => return None,
    };
    Some(less(x, end))
}

/// A comparison with a constant, its linear side in normal form.
pub fn simplified(clause: &Expr) -> Expr {
    let none = Domains::new();
    let linear = |e: &Expr| Linear::of(e, &none);
    match clause {
        Expr::Binary(BinOp::Le, a, b) => match (constant(a), linear(b)) {
            (Some(lo), Some(value)) => at_least(&value, lo),
            _ => clause.clone(),
        },
        Expr::Binary(BinOp::Lt, a, b) => match (linear(a), constant(b)) {
            (Some(value), Some(end)) => below(&value, end, &none),
            _ => clause.clone(),
        },
        other => other.clone(),
    }
}

/// Whether `x < a` follows from `x < b`, or the two are the same.
pub fn implies(strong: &Expr, weak: &Expr) -> bool {
    match (strong, weak) {
        (Expr::Binary(BinOp::Lt, x, a), Expr::Binary(BinOp::Lt, y, b)) if x == y => {
            constant(a).zip(constant(b)).is_some_and(|(a, b)| a <= b)
        }
        _ => strong == weak,
    }
}

/// Whether a comparison provably holds.
pub fn always(clause: &Expr, domains: &Domains) -> bool {
    let linear = |e: &Expr| Linear::of(e, domains);
    match clause {
        Expr::Int(v, _) => *v != 0,
        Expr::Binary(BinOp::Lt, a, b) => match (linear(a).and_then(|l| l.shifted(1)), linear(b)) {
            (Some(a), Some(b)) => a.at_most(&b, domains),
            _ => false,
        },
        Expr::Binary(BinOp::Le, a, b) => match (linear(a), linear(b)) {
            (Some(a), Some(b)) => a.at_most(&b, domains),
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arith::{floor_div, floor_mod, mul};
    use proptest::prelude::*;
    use satune_ir::{DType, Range, Var, VarId};

    const NAMES: [(&str, i64); 6] = [("i", 8), ("j", 8), ("k", 8), ("x", 64), ("y", 2), ("z", 3)];

    fn var(at: usize) -> Expr {
        Expr::Var(Var { id: VarId(at as u32), name: NAMES[at].0.into(), dtype: DType::I32 })
    }

    fn domains() -> Domains {
        let range = |extent| Range { min: int(0, DType::I32), extent: int(extent, DType::I32) };
        NAMES.iter().enumerate().map(|(at, (_, extent))| (VarId(at as u32), range(*extent))).collect()
    }

    /// An expression as the parser of index maps reads it.
    fn linear(text: &str) -> Linear {
        let names = NAMES.map(|(name, _)| name).join(", ");
        let map = crate::index_map::IndexMap::parse(&format!("lambda {names}: {text}")).unwrap();
        Linear::of(&map.outputs[0], &domains()).unwrap()
    }

    /// A comparison as text.
    fn normal(text: &str) -> String {
        let (left, bound) = text.split_once('<').unwrap();
        crate::text::expr(&below(&linear(left), bound.trim().parse().unwrap(), &domains()))
    }

    /// What TVM 0.27's analyzer makes of each.
    #[test]
    fn digits_of_fused_loops_are_written_as_tvm_writes_them() {
        for (given, tvm) in [
            ("(j*8 + k)//16", "j // 2"),
            ("(j*8 + k)%16", "j % 2 * 8 + k"),
            ("(i*32 + j*8 + k)//16", "i * 2 + j // 2"),
            ("(i*32 + j*8 + k)%16", "j % 2 * 8 + k"),
            ("(j*8 + k)%32//4", "j % 4 * 2 + k // 4"),
            // What may carry over stays.
            ("(x*4 + k)//16", "(x * 4 + k) // 16"),
            ("(i*16 + y*8 + k)%32", "(i * 16 + y * 8 + k) % 32"),
        ] {
            assert_eq!(crate::text::expr(&linear(given).expr()), tvm, "{given}");
        }
    }

    /// What TVM 0.27's analyzer makes of both conditions.
    #[test]
    fn quotients_are_narrowed_before_common_factors_are_divided_out() {
        for (limit, tvm) in [(5, "i * 8 + j < 17"), (12, "i < 3")] {
            let first = opened(&linear("(i*8 + j)//12"), 2, &domains());
            let second = opened(&linear("(i*8 + j)%12"), limit, &domains());
            let both = together(vec![first, second.clone()]);
            assert_eq!(crate::text::expr(&divided_out(&both[0], &domains())), tvm);
            assert_eq!(both[1], second);
        }
    }

    /// What TVM 0.27's analyzer makes of each.
    #[test]
    fn upper_bounds_are_written_as_tvm_writes_them() {
        for (given, tvm) in [
            ("i*16 + j*2 + y < 30", "i * 8 + j < 15"),
            ("i*16 + j*2 + x%2 < 30", "i * 8 + j < 15"),
            ("i*16 + j*2 + y - 1 < 29", "i * 8 + j < 15"),
            ("i*16 + x//2*2 + y < 30", "i * 8 + x // 2 < 15"),
            ("i*16 + x%32//2*2 + y < 30", "i * 8 + x % 32 // 2 < 15"),
            ("i*4 + j*4 + y + z < 12", "i + j < 3"),
            ("i*4 + j*4 + y < 9", "i * 4 + j * 4 + y < 9"),
            ("i*6 + j*3 + z < 12", "i * 2 + j < 4"),
            ("i*6 + j*3 + z < 13", "i * 6 + j * 3 + z < 13"),
            ("j + i*8 < 24", "i < 3"),
            ("j + i*8 + y < 24", "i * 8 + j + y < 24"),
            ("i*8 + j*4 + 4 < 24", "i * 2 + j < 5"),
            ("y + i*2 + x*4 < 12", "x * 2 + i < 6"),
            // Remainders.
            ("i*16 + x%8 < 24", "i < 2"),
            ("i*16 + x%16 < 24", "i * 2 + x % 16 // 8 < 3"),
            ("x%16 + y*16 < 24", "y * 2 + x % 16 // 8 < 3"),
            ("i*16 + x%16 + y < 24", "i * 16 + y + x % 16 < 24"),
            ("i*16 + (j*4 + k)%16 < 24", "i * 2 + (j * 4 + k) % 16 // 8 < 3"),
            ("i*16 + (j*8 + k)%16 < 24", "i * 2 + j % 2 < 3"),
            ("i*16 + (j*8 + k)%16//2 < 12", "i * 4 + j % 2 < 3"),
            ("i*8 + x%8//2*2 + y < 12", "i * 2 + x % 8 // 4 < 3"),
            ("i*8 + x%8//2*2 + y < 14", "i * 4 + x % 8 // 2 < 7"),
            ("x%32 + i*32 < 60", "i * 8 + x % 32 // 4 < 15"),
            // Quotients.
            ("x//2*2 + y < 20", "x < 20"),
            ("x%64//4*2 + y < 30", "x < 60"),
            ("x%32//4 < 7", "x % 32 < 28"),
            ("(j*8 + k)//4 < 12", "j < 6"),
            ("i*16 + (j*8 + k)//4 < 12", "i * 8 + j < 6"),
            ("(i*2 + j)//3*2 + y < 10", "i * 2 + j < 15"),
            ("(x*3)//4 < 5", "x < 7"),
            ("x//4 + y < 5", "x // 4 + y < 5"),
            // One factor.
            ("i*3 < 10", "i < 4"),
            ("i*2 + j*2 + k*2 < 7", "i + j + k < 4"),
            ("i*2 + j*2 - 3 < 7", "i + j < 5"),
            ("i*4 + j*2 < 7", "i * 4 + j * 2 < 7"),
            ("i*2 - x*2 < 5", "i - x < 3"),
            // Nothing is divided where something may be negative.
            ("i*8 - y < 24", "i * 8 - y < 24"),
            ("i*4 - k*2 + y < 6", "i * 2 - k < 3"),
            ("i*4 - k*2 - y < 8", "i * 4 - y - k * 2 < 8"),
        ] {
            assert_eq!(normal(given), tvm, "{given}");
        }
    }

    #[test]
    fn remainders_narrow_the_bound_before_them() {
        let lt = |e: Expr, c: i64| compare(BinOp::Lt, e, int(c, DType::I32));
        let digit = |m| floor_mod(var(3), m, DType::I32);
        // What TVM 0.27's analyzer makes of `x < bound and x % 4 < limit`.
        let tvm = [
            (20, 3, 19),
            (21, 3, 21),
            (22, 3, 22),
            (23, 3, 23),
            (24, 3, 23),
            (23, 2, 22),
            (23, 1, 21),
            (22, 1, 21),
            (21, 1, 21),
        ];
        for (bound, limit, end) in tvm {
            let got = together(vec![lt(var(3), bound), lt(digit(4), limit)]);
            assert_eq!(got, [lt(var(3), end), lt(digit(4), limit)], "{bound} {limit}");
        }
        let other = vec![lt(digit(4), 3), lt(var(3), 20)];
        assert_eq!(together(other.clone()), other, "only the one before");
        for (bound, modulus, limit) in (0..30).flat_map(|b| (1..9).flat_map(move |m| (0..12).map(move |l| (b, m, l)))) {
            let clauses = vec![lt(var(3), bound), lt(digit(modulus), limit)];
            let got = together(clauses.clone());
            for x in 0..64 {
                let holds = |list: &[Expr]| list.iter().all(|e| eval(e, &[0, 0, 0, x, 0, 0]) == 1);
                assert_eq!(holds(&got), holds(&clauses), "{bound} {modulus} {limit}: {x}");
            }
        }
    }

    fn term() -> impl Strategy<Value = Expr> {
        let leaf = (0usize..6).prop_map(var);
        let sum = ((0usize..6), 1i64..9, 0usize..6, -9i64..9).prop_map(|(a, c, b, k)| {
            crate::arith::add(crate::arith::add(mul(var(a), int(c, DType::I32)), var(b)), int(k, DType::I32))
        });
        let atom = prop_oneof![leaf, sum];
        let divided = (atom.clone(), 1i64..17).prop_map(|(a, c)| floor_div(a, c, DType::I32));
        let digit = (atom.clone(), 1i64..17, 1i64..5)
            .prop_map(|(a, m, d)| floor_div(floor_mod(a, m, DType::I32), d, DType::I32));
        prop_oneof![atom, divided, digit]
    }

    fn eval(e: &Expr, at: &[i64; 6]) -> i64 {
        match e {
            Expr::Int(v, _) => *v,
            Expr::Var(v) => at[v.id.0 as usize],
            Expr::Binary(op, a, b) => match (op, eval(a, at), eval(b, at)) {
                (BinOp::Add, a, b) => a + b,
                (BinOp::Sub, a, b) => a - b,
                (BinOp::Mul, a, b) => a * b,
                (BinOp::FloorDiv, a, b) => a.div_euclid(b),
                (BinOp::FloorMod, a, b) => a.rem_euclid(b),
                (BinOp::Lt, a, b) => i64::from(a < b),
                (BinOp::Le, a, b) => i64::from(a <= b),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Over all of the ranges, the normal form holds where the comparison does.
        #[test]
        fn normal_forms_hold_where_the_comparison_does(
            terms in proptest::collection::vec((term(), prop_oneof![Just(1i64), -4i64..17]), 1..4),
            bound in -20i64..90,
        ) {
            let domains = domains();
            let sum = terms.iter().fold(int(0, DType::I32), |sum, (e, c)| {
                crate::arith::add(sum, mul(e.clone(), int(*c, DType::I32)))
            });
            let value = Linear::of(&sum, &domains).unwrap();
            let (upper, lower) = (below(&value, bound, &domains), at_least(&value, bound));
            let mut at = [0; 6];
            loop {
                let exact = eval(&sum, &at);
                prop_assert_eq!(eval(&upper, &at) == 1, exact < bound, "{:?}", crate::text::expr(&upper));
                prop_assert_eq!(eval(&lower, &at) == 1, exact >= bound, "{:?}", crate::text::expr(&lower));
                // Every ninth or so of 49152 points, and all values of each variable.
                let mut carry = 7;
                for (v, (_, extent)) in at.iter_mut().zip(NAMES) {
                    *v += carry;
                    carry = *v / extent;
                    *v %= extent;
                }
                if carry > 0 {
                    break;
                }
            }
        }
    }
}
