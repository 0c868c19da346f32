//! Guards: comparisons of linear forms with constants, as TVM writes them.
use crate::arith::{constant, int, Domains};
use crate::linear::Linear;
use satune_ir::{BinOp, DType, Expr};
use std::sync::Arc;

fn compare(op: BinOp, a: Expr, b: Expr) -> Expr {
    Expr::Binary(op, Arc::new(a), Arc::new(b))
}

/// `value >= bound`, the constants on the left.
pub fn at_least(value: &Linear, bound: i64) -> Expr {
    let offset = value.offset();
    let terms = value.shifted(offset.saturating_neg()).unwrap_or_else(|| value.clone()).sorted();
    compare(BinOp::Le, int(bound.saturating_sub(offset), DType::I32), terms.expr())
}

/// `value < bound`, the constants on the right. What cannot carry over to a multiple of a divisor of the bound is left out:
/// `i * 8 + j < 24` is `i < 3`, for `j < 8`.
pub fn below(value: &Linear, bound: i64, domains: &Domains) -> Expr {
    let offset = value.offset();
    let mut bound = bound.saturating_sub(offset);
    let mut terms = value.shifted(offset.saturating_neg()).unwrap_or_else(|| value.clone()).sorted();
    for divisor in terms.terms().iter().map(|(_, c)| *c).filter(|c| *c > 1 && bound % c == 0).collect::<Vec<_>>() {
        let rest = terms.rem(divisor, domains).map(|r| r.ends(domains));
        let whole = terms.div(divisor, domains);
        let plain = |l: &Linear| l.terms().iter().all(|(a, _)| matches!(a, Expr::Var(_)));
        if let (Some((Some(lo), Some(hi))), Some(whole)) = (rest, whole.filter(plain)) {
            if lo >= 0 && hi < divisor {
                terms = whole.sorted();
                bound /= divisor;
                break;
            }
        }
    }
    compare(BinOp::Lt, terms.expr(), int(bound, DType::I32))
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
