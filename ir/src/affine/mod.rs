//! Affine arithmetic on index expressions: folding constructors, linear forms, intervals, proofs of `<=` over the values
//! that variables take. Checked `i64` everywhere: what overflows is not simplified.
use crate::{BinOp, Buffer, DType, Expr, Range, VarId};
use std::collections::HashMap;

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

/// The value of an integer expression where variables have these values. None where it overflows or cannot be computed.
pub fn value_of(e: &Expr, at: &dyn Fn(VarId) -> Option<i64>) -> Option<i64> {
    match e {
        Expr::Int(v, _) => Some(*v),
        Expr::Var(v) => at(v.id),
        Expr::Binary(op, a, b) => {
            let (a, b) = (value_of(a, at)?, value_of(b, at)?);
            match op {
                BinOp::Add => a.checked_add(b),
                BinOp::Sub => a.checked_sub(b),
                BinOp::Mul => a.checked_mul(b),
                // Python's division rounds to minus infinity, which for a positive divisor is Euclid's.
                BinOp::FloorDiv if b > 0 => Some(a.div_euclid(b)),
                BinOp::FloorMod if b > 0 => Some(a.rem_euclid(b)),
                BinOp::Div | BinOp::TruncDiv => a.checked_div(b),
                BinOp::TruncMod => a.checked_rem(b),
                BinOp::Min => Some(a.min(b)),
                BinOp::Max => Some(a.max(b)),
                BinOp::BitAnd => Some(a & b),
                BinOp::BitOr => Some(a | b),
                BinOp::BitXor => Some(a ^ b),
                BinOp::Shl if (0..32).contains(&b) => a.checked_mul(1 << b),
                BinOp::Shr if (0..32).contains(&b) => Some(a >> b),
                BinOp::Eq => Some(i64::from(a == b)),
                BinOp::Ne => Some(i64::from(a != b)),
                BinOp::Lt => Some(i64::from(a < b)),
                BinOp::Le => Some(i64::from(a <= b)),
                BinOp::Gt => Some(i64::from(a > b)),
                BinOp::Ge => Some(i64::from(a >= b)),
                BinOp::And => Some(i64::from(a != 0 && b != 0)),
                BinOp::Or => Some(i64::from(a != 0 || b != 0)),
                _ => None,
            }
        }
        Expr::Select { cond, then, otherwise, .. } => {
            let taken = if value_of(cond, at)? != 0 { then } else { otherwise };
            value_of(taken, at)
        }
        Expr::Not(a) => Some(i64::from(value_of(a, at)? == 0)),
        Expr::Cast(DType::I64, a) => value_of(a, at),
        Expr::Cast(DType::I32, a) => value_of(a, at).filter(|v| i32::try_from(*v).is_ok()),
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

/// `a + b`.
pub fn add(a: Expr, b: Expr) -> Expr {
    match (&a, &b) {
        (Expr::Int(0, _), _) => b,
        (_, Expr::Int(0, _)) => a,
        (Expr::Int(x, t), Expr::Int(y, _)) if x.checked_add(*y).is_some() => Expr::Int(x + y, *t),
        _ => Expr::binary(BinOp::Add, a, b),
    }
}

/// `a * b`.
pub fn mul(a: Expr, b: Expr) -> Expr {
    match (&a, &b) {
        (Expr::Int(0, _), _) | (_, Expr::Int(1, _)) => a,
        (_, Expr::Int(0, _)) | (Expr::Int(1, _), _) => b,
        (Expr::Int(x, t), Expr::Int(y, _)) if x.checked_mul(*y).is_some() => Expr::Int(x * y, *t),
        _ => Expr::binary(BinOp::Mul, a, b),
    }
}

/// `a // b`, for a positive `b`.
pub fn floor_div(a: Expr, b: i64, dtype: DType) -> Expr {
    match &a {
        _ if b == 1 => a,
        Expr::Int(x, t) => Expr::Int(x.div_euclid(b), *t),
        _ => Expr::binary(BinOp::FloorDiv, a, int(b, dtype)),
    }
}

/// `a % b`, for a positive `b`.
pub fn floor_mod(a: Expr, b: i64, dtype: DType) -> Expr {
    match &a {
        Expr::Int(x, t) => Expr::Int(x.rem_euclid(b), *t),
        _ if b == 1 => int(0, dtype),
        _ => Expr::binary(BinOp::FloorMod, a, int(b, dtype)),
    }
}

/// `a < b`.
pub fn lt(a: Expr, b: Expr) -> Expr {
    Expr::binary(BinOp::Lt, a, b)
}

/// `a and b`; a constant true is dropped.
pub fn and(a: Expr, b: Expr) -> Expr {
    match (&a, &b) {
        (Expr::Int(1, DType::Bool), _) => b,
        (_, Expr::Int(1, DType::Bool)) => a,
        _ => Expr::binary(BinOp::And, a, b),
    }
}

/// First and last value of a constant range.
pub fn ends(r: &Range) -> Option<(i64, i64)> {
    let (min, extent) = (constant(&r.min)?, constant(&r.extent)?);
    Some((min, min.checked_add(extent)?.checked_sub(1)?))
}
