//! Affine arithmetic on index expressions: folding constructors, linear forms, intervals, proofs of `<=` over the values
//! that variables take. Checked `i64` everywhere: what overflows is not simplified.
use crate::{BinOp, Buffer, DType, Expr, Range, VarId};
use std::collections::HashMap;
use std::sync::Arc;

pub mod interval;
pub mod linear;
pub mod simplify;

/// Values that variables take.
pub type Domains = HashMap<VarId, Range>;

/// The integer that an expression is, if it is a constant.
pub fn constant(e: &Expr) -> Option<i64> {
    match e {
        Expr::Int(v, _) => Some(*v),
        _ => None,
    }
}

impl Buffer {
    /// The shape in numbers; none where an extent is no constant.
    pub fn extents(&self) -> Option<Vec<i64>> {
        self.shape.iter().map(constant).collect()
    }
}

/// The type of an index: 64 bits where a variable of it has them, else 32.
pub fn index_type(e: &Expr) -> DType {
    match e {
        Expr::Int(_, t) | Expr::Cast(t, _) => *t,
        Expr::Var(v) => v.dtype,
        // Literals have the type of what stands first.
        Expr::Binary(_, a, _) => index_type(a),
        _ => DType::I32,
    }
}

/// An integer constant.
pub fn int(value: i64, dtype: DType) -> Expr {
    Expr::Int(value, dtype)
}

fn binary(op: BinOp, a: Expr, b: Expr) -> Expr {
    Expr::Binary(op, Arc::new(a), Arc::new(b))
}

/// `a + b`.
pub fn add(a: Expr, b: Expr) -> Expr {
    match (&a, &b) {
        (Expr::Int(0, _), _) => b,
        (_, Expr::Int(0, _)) => a,
        (Expr::Int(x, t), Expr::Int(y, _)) if x.checked_add(*y).is_some() => Expr::Int(x + y, *t),
        _ => binary(BinOp::Add, a, b),
    }
}

/// `a * b`.
pub fn mul(a: Expr, b: Expr) -> Expr {
    match (&a, &b) {
        (Expr::Int(0, _), _) | (_, Expr::Int(1, _)) => a,
        (_, Expr::Int(0, _)) | (Expr::Int(1, _), _) => b,
        (Expr::Int(x, t), Expr::Int(y, _)) if x.checked_mul(*y).is_some() => Expr::Int(x * y, *t),
        _ => binary(BinOp::Mul, a, b),
    }
}

/// `a // b`, for a positive `b`.
pub fn floor_div(a: Expr, b: i64, dtype: DType) -> Expr {
    match &a {
        _ if b == 1 => a,
        Expr::Int(x, t) => Expr::Int(x.div_euclid(b), *t),
        _ => binary(BinOp::FloorDiv, a, int(b, dtype)),
    }
}

/// `a % b`, for a positive `b`.
pub fn floor_mod(a: Expr, b: i64, dtype: DType) -> Expr {
    match &a {
        Expr::Int(x, t) => Expr::Int(x.rem_euclid(b), *t),
        _ if b == 1 => int(0, dtype),
        _ => binary(BinOp::FloorMod, a, int(b, dtype)),
    }
}

/// `a < b`.
pub fn lt(a: Expr, b: Expr) -> Expr {
    binary(BinOp::Lt, a, b)
}

/// `a and b`; a constant true is dropped.
pub fn and(a: Expr, b: Expr) -> Expr {
    match (&a, &b) {
        (Expr::Int(1, DType::Bool), _) => b,
        (_, Expr::Int(1, DType::Bool)) => a,
        _ => binary(BinOp::And, a, b),
    }
}

/// First and last value of a constant range.
pub fn ends(r: &Range) -> Option<(i64, i64)> {
    let (min, extent) = (constant(&r.min)?, constant(&r.extent)?);
    Some((min, min.checked_add(extent)?.checked_sub(1)?))
}
