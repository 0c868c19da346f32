//! The simplifier of index expressions: what the bounds of iterators decide, and sums in one form. How much of an expression is
//! written anew differs, since programs are compared as they are written: [`simplified`] all of it, [`decided`] only quotients
//! and remainders that bounds do away with, [`sorted`] what varies, in TVM's order.
use crate::affine::linear::Linear;
use crate::affine::{add, index_type, int, mul, Domains};
use crate::{fold, visit, BinOp, BlockRealize, DType, Expr};

/// An expression with all its index arithmetic in normal form. Values that are no index are left as they are, with the indices
/// in them simplified.
pub fn simplified(e: &Expr, domains: &Domains) -> Expr {
    use BinOp::{Add, FloorDiv, FloorMod, Max, Min, Mul, Sub};
    if is_index(e, &[Add, Sub, Mul, FloorDiv, FloorMod, Min, Max]) {
        return Linear::of(e, domains).map_or_else(|| e.clone(), |l| l.expr());
    }
    visit::map_children(e, &mut |e| simplified(e, domains))
}

/// Every expression of a block simplified, those of blocks inside it too.
pub fn simplified_realize(r: &BlockRealize, domains: &Domains) -> BlockRealize {
    visit::map_realize_exprs(r, &mut |e| simplified(e, domains))
}

/// An index in normal form, its terms in TVM's order; a constant stays an expression of iterators.
pub fn sorted(e: &Expr, domains: &Domains) -> Expr {
    match Linear::of(e, domains) {
        Some(l) if l.as_constant().is_none() => l.sorted().expr(),
        _ => e.clone(),
    }
}

/// An expression without the quotients and remainders that the bounds of iterators decide: `v // 64` is 0 where `v < 64`.
/// Iterators of one value stay in sums: they say which axis an index belongs to.
pub fn decided(e: &Expr, domains: &Domains) -> Expr {
    use BinOp::{Add, BitXor, FloorDiv, FloorMod, Mul, Sub};
    let of_integers = |e: &Expr| is_index(e, &[Add, Sub, Mul, FloorDiv, FloorMod, BitXor]);
    visit::map_expr(e, &mut |e| match &e {
        // Of a sum they may be the digits: `v // 8 * 8 + v % 8` is v.
        Expr::Binary(FloorDiv | FloorMod | Add, ..) if of_integers(&e) && divides(&e) => {
            let short = Linear::of(&e, domains).map(|l| l.expr());
            match (short.filter(|s| !divides(s)), &e) {
                (Some(short), _) => short,
                (None, Expr::Binary(Add, a, b)) => add(a.as_ref().clone(), b.as_ref().clone()),
                (None, _) => e,
            }
        }
        Expr::Binary(Add, a, b) if of_integers(&e) => add(a.as_ref().clone(), b.as_ref().clone()),
        Expr::Binary(Mul, a, b) if of_integers(&e) => mul(a.as_ref().clone(), b.as_ref().clone()),
        _ => e,
    })
}

/// `a - b`, a constant where like terms cancel. `None` where coefficients overflow.
pub fn difference(a: &Expr, b: &Expr) -> Option<Expr> {
    let none = Domains::new();
    match Linear::of(a, &none)?.plus(&Linear::of(b, &none)?, -1)?.as_constant() {
        Some(value) => Some(int(value, index_type(a))),
        None => fold::binary(BinOp::Sub, a.clone(), b.clone()),
    }
}

/// Whether an expression is arithmetic by some operators on integer variables and numbers.
fn is_index(e: &Expr, by: &[BinOp]) -> bool {
    match e {
        Expr::Int(_, t) => *t != DType::Bool,
        Expr::Var(v) => v.dtype != DType::Bool && v.dtype.int_range().is_some(),
        Expr::Binary(op, a, b) => by.contains(op) && is_index(a, by) && is_index(b, by),
        _ => false,
    }
}

fn divides(e: &Expr) -> bool {
    let mut found = false;
    visit::walk_expr(e, &mut |e| found |= matches!(e, Expr::Binary(BinOp::FloorDiv | BinOp::FloorMod, ..)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Range, Var, VarId};
    use std::sync::Arc;

    fn var(id: u32) -> Expr {
        Expr::Var(Var { id: VarId(id), name: "i".into(), dtype: DType::I32 })
    }

    fn of(op: BinOp, a: Expr, b: Expr) -> Expr {
        Expr::Binary(op, Arc::new(a), Arc::new(b))
    }

    fn number(value: i64) -> Expr {
        int(value, DType::I32)
    }

    #[test]
    fn differences_cancel() {
        let four = |e| mul(e, number(4));
        let upper = add(four(var(0)), number(4));
        assert_eq!(difference(&upper, &four(var(0))), Some(number(4)));
        assert!(matches!(difference(&upper, &var(1)), Some(Expr::Binary(BinOp::Sub, ..))));
        // What may wrap is no sum of its parts.
        let large = mul(var(0), number(i64::MAX));
        assert_eq!(difference(&mul(large.clone(), number(4)), &large), None);
    }

    /// All of an expression is written anew, what bounds decide, or what varies.
    #[test]
    fn bounds_decide() {
        let domains = Domains::from([(VarId(0), Range { min: number(0), extent: number(64) })]);
        let quotient = of(BinOp::FloorDiv, var(0), number(64));
        let sum = of(BinOp::Add, mul(quotient.clone(), number(3)), of(BinOp::Sub, var(1), number(0)));
        assert_eq!(simplified(&sum, &domains), var(1));
        assert_eq!(decided(&sum, &domains), of(BinOp::Sub, var(1), number(0)));
        // Nothing is left of what becomes 0, beside chunks that are swizzled, too.
        let chunk = of(BinOp::BitXor, var(0), var(1));
        assert_eq!(decided(&of(BinOp::Add, mul(quotient.clone(), number(64)), chunk.clone()), &domains), chunk);
        assert_eq!(sorted(&quotient, &domains), quotient);
        assert_eq!(sorted(&add(var(1), mul(var(0), number(2))), &domains), add(mul(var(0), number(2)), var(1)));
    }
}
