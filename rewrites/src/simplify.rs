//! Simplification of the index expressions inside statements, under known domains. Values that are no index are left as
//! they are, with the indices in them simplified.
use crate::arith::Domains;
use crate::linear::Linear;
use satune_ir::{visit, BinOp, BlockRealize, DType, Expr};

/// An expression with all its index arithmetic simplified.
pub fn simplified(e: &Expr, domains: &Domains) -> Expr {
    if is_index(e) {
        return Linear::of(e, domains).map_or_else(|| e.clone(), |l| l.expr());
    }
    visit::map_children(e, &mut |e| simplified(e, domains))
}

/// Every expression of a block simplified, those of blocks inside it too.
pub fn simplified_realize(r: &BlockRealize, domains: &Domains) -> BlockRealize {
    visit::map_realize_exprs(r, &mut |e| simplified(e, domains))
}

/// Whether an expression is integer arithmetic over variables.
fn is_index(e: &Expr) -> bool {
    use BinOp::{Add, FloorDiv, FloorMod, Max, Min, Mul, Sub};
    match e {
        Expr::Int(_, t) => *t != DType::Bool,
        Expr::Var(v) => !v.dtype.is_float() && v.dtype != DType::Bool && v.dtype != DType::Handle,
        Expr::Binary(Add | Sub | Mul | FloorDiv | FloorMod | Min | Max, a, b) => is_index(a) && is_index(b),
        _ => false,
    }
}
