//! Constructors of expressions that match types and fold constants, as TVM's operators do: what a program's text means
//! does not depend on whether `i * 1` was written.
use crate::semantics::{is_unsigned, promote};
use crate::{BinOp, Buffer, DType, Expr};
use std::sync::Arc;

/// The type of an expression's value.
pub fn dtype(expr: &Expr, buffers: &[Buffer]) -> DType {
    match expr {
        Expr::Int(_, t) | Expr::Float(_, t) | Expr::Cast(t, _) | Expr::Call(_, _, t) => *t,
        Expr::Str(_) => DType::Handle,
        Expr::Var(v) => v.dtype,
        Expr::Not(_) => DType::Bool,
        Expr::Binary(op, ..) if is_condition(*op) => DType::Bool,
        Expr::Binary(_, a, b) | Expr::Select { then: a, otherwise: b, .. } => {
            promote(dtype(a, buffers), dtype(b, buffers))
        }
        Expr::Load(b, _) => buffers.get(b.0 as usize).map_or(DType::Handle, |b| b.dtype),
    }
}

/// Whether an operator's value is a truth value.
pub fn is_condition(op: BinOp) -> bool {
    matches!(op, BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Le | BinOp::Gt | BinOp::Ge | BinOp::And | BinOp::Or)
}

/// A 32-bit integer.
pub fn int32(value: i64) -> Expr {
    Expr::Int(value, DType::I32)
}

/// A truth value.
pub fn boolean(value: bool) -> Expr {
    Expr::Int(i64::from(value), DType::Bool)
}

/// A floating constant.
pub fn float(value: f64, dtype: DType) -> Expr {
    Expr::Float(value.to_bits(), dtype)
}

/// Whether an expression is a number, converted or not.
pub fn is_constant(expr: &Expr) -> bool {
    match expr {
        Expr::Int(..) | Expr::Float(..) => true,
        Expr::Cast(_, inner) => is_constant(inner),
        _ => false,
    }
}

/// Whether an expression is zero, converted or not.
pub fn is_zero(expr: &Expr) -> bool {
    match expr {
        Expr::Int(value, _) => *value == 0,
        Expr::Float(bits, _) => f64::from_bits(*bits) == 0.0,
        Expr::Cast(_, inner) => is_zero(inner),
        _ => false,
    }
}

/// `expr` as a value of type `to`, a constant where it is one. `None` where an integer constant does not fit.
pub fn cast(expr: Expr, to: DType, buffers: &[Buffer]) -> Option<Expr> {
    if dtype(&expr, buffers) == to {
        return Some(expr);
    }
    Some(match (&expr, to.is_float()) {
        (Expr::Int(v, _), true) => float(*v as f64, to),
        (Expr::Int(v, _), false) => {
            let (lo, hi) = to.int_range()?;
            if *v < lo || *v > hi {
                return None;
            }
            Expr::Int(*v, to)
        }
        // A number in a text has no type of its own: 0.1 as `float64` is not that of `float32`.
        (Expr::Float(bits, _), true) => Expr::Float(*bits, to),
        _ => Expr::Cast(to, Arc::new(expr)),
    })
}

/// The type in which two operands meet; `None` where they have none (a handle).
pub fn common_type(a: DType, b: DType) -> Option<DType> {
    use DType::{Handle, BF16, F16, F32, F8E4M3, F8E5M2, I16, I32, I64, I8};
    if a == b {
        return Some(a);
    }
    if a == Handle || b == Handle {
        return None;
    }
    match (a.is_float(), b.is_float()) {
        (true, true) => match (a, b) {
            (F16, BF16) | (BF16, F16) => Some(F32),
            (F8E4M3, F8E5M2) | (F8E5M2, F8E4M3) => Some(F16),
            _ => Some(if a.bytes() >= b.bytes() { a } else { b }),
        },
        (true, false) => Some(a),
        (false, true) => Some(b),
        // A signed and an unsigned type meet in the signed one of the wider width, as TVM has it.
        (false, false) => {
            let wider = if a.bytes() >= b.bytes() { a } else { b };
            Some(match (is_unsigned(a) == is_unsigned(b), wider) {
                (true, _) if a == DType::Bool => b,
                (true, wider) => wider,
                (false, DType::U8 | DType::Bool) => I8,
                (false, DType::U16) => I16,
                (false, DType::U32) => I32,
                (false, DType::U64) => I64,
                (false, wider) => wider,
            })
        }
    }
}

/// `a op b`, with constants folded where that leaves the value as it is: in `float8_e5m2` even `x * 1` brings an infinity back
/// to the largest number. The operands must have one type. `None` where folding overflows or divides by zero.
pub fn binary(op: BinOp, a: Expr, b: Expr) -> Option<Expr> {
    if let (Expr::Int(x, t), Expr::Int(y, _)) = (&a, &b) {
        return integers(op, *x, *y, *t);
    }
    let is = |e: &Expr, value: i64| match e {
        Expr::Int(_, DType::F8E5M2) | Expr::Float(_, DType::F8E5M2) => false,
        Expr::Int(v, _) => *v == value,
        Expr::Float(bits, _) => f64::from_bits(*bits) == value as f64,
        _ => false,
    };
    let folded = match op {
        BinOp::Add if is(&a, 0) => Some(b.clone()),
        BinOp::Add | BinOp::Sub if is(&b, 0) => Some(a.clone()),
        BinOp::Mul if is(&a, 1) => Some(b.clone()),
        BinOp::Mul | BinOp::Div if is(&b, 1) => Some(a.clone()),
        BinOp::FloorDiv | BinOp::TruncDiv if is_int(&b, 1) => Some(a.clone()),
        BinOp::Mul if is_int(&a, 0) => Some(a.clone()),
        BinOp::Mul if is_int(&b, 0) => Some(b.clone()),
        BinOp::FloorDiv | BinOp::TruncDiv | BinOp::FloorMod | BinOp::TruncMod if is_int(&b, 0) => return None,
        BinOp::FloorDiv | BinOp::TruncDiv | BinOp::FloorMod | BinOp::TruncMod if is_int(&a, 0) => Some(a.clone()),
        BinOp::FloorMod | BinOp::TruncMod => match &b {
            Expr::Int(1, t) => Some(Expr::Int(0, *t)),
            _ => None,
        },
        BinOp::Min | BinOp::Max if a == b && int_type(&a).is_some_and(|t| !t.is_float()) => Some(a.clone()),
        BinOp::And if is_bool(&a, true) => Some(b.clone()),
        BinOp::And if is_bool(&b, true) => Some(a.clone()),
        BinOp::Or if is_bool(&a, false) => Some(b.clone()),
        BinOp::Or if is_bool(&b, false) => Some(a.clone()),
        BinOp::And if is_bool(&a, false) => Some(a.clone()),
        BinOp::And if is_bool(&b, false) => Some(b.clone()),
        BinOp::Or if is_bool(&a, true) => Some(a.clone()),
        BinOp::Or if is_bool(&b, true) => Some(b.clone()),
        _ => None,
    };
    Some(folded.unwrap_or_else(|| Expr::Binary(op, Arc::new(a), Arc::new(b))))
}

/// `not a`.
pub fn not(a: Expr) -> Expr {
    match a {
        Expr::Int(v, DType::Bool) => boolean(v == 0),
        other => Expr::Not(Arc::new(other)),
    }
}

fn is_int(e: &Expr, value: i64) -> bool {
    matches!(e, Expr::Int(v, _) if *v == value)
}

fn is_bool(e: &Expr, value: bool) -> bool {
    matches!(e, Expr::Int(v, DType::Bool) if (*v != 0) == value)
}

fn integers(op: BinOp, x: i64, y: i64, t: DType) -> Option<Expr> {
    let number = match op {
        BinOp::Add => x.checked_add(y)?,
        BinOp::Sub => x.checked_sub(y)?,
        BinOp::Mul => x.checked_mul(y)?,
        BinOp::FloorDiv => floor_div(x, y)?,
        BinOp::FloorMod => x.checked_sub(floor_div(x, y)?.checked_mul(y)?)?,
        BinOp::TruncDiv => x.checked_div(y)?,
        BinOp::TruncMod => x.checked_rem(y)?,
        BinOp::Min => x.min(y),
        BinOp::Max => x.max(y),
        BinOp::BitAnd => x & y,
        BinOp::BitOr => x | y,
        BinOp::BitXor => x ^ y,
        BinOp::Shl => x.checked_mul(1i64.checked_shl(u32::try_from(y).ok()?)?)?,
        BinOp::Shr => x.checked_shr(u32::try_from(y).ok()?)?,
        BinOp::Div => return None,
        BinOp::Eq => return Some(boolean(x == y)),
        BinOp::Ne => return Some(boolean(x != y)),
        BinOp::Lt => return Some(boolean(x < y)),
        BinOp::Le => return Some(boolean(x <= y)),
        BinOp::Gt => return Some(boolean(x > y)),
        BinOp::Ge => return Some(boolean(x >= y)),
        BinOp::And => return Some(boolean(x != 0 && y != 0)),
        BinOp::Or => return Some(boolean(x != 0 || y != 0)),
    };
    let (lo, hi) = t.int_range()?;
    (lo <= number && number <= hi).then_some(Expr::Int(number, t))
}

/// `x // y` rounded towards minus infinity; `None` for a zero divisor or an overflow.
pub fn floor_div(x: i64, y: i64) -> Option<i64> {
    let quotient = x.checked_div(y)?;
    Some(if x % y != 0 && (x < 0) != (y < 0) { quotient - 1 } else { quotient })
}

fn int_type(e: &Expr) -> Option<DType> {
    match e {
        Expr::Int(_, t) | Expr::Cast(t, _) => Some(*t),
        Expr::Var(v) => Some(v.dtype),
        Expr::Binary(_, a, _) => int_type(a),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Var, VarId};

    fn var(id: u32) -> Expr {
        Expr::Var(Var { id: VarId(id), name: "i".into(), dtype: DType::I32 })
    }

    #[test]
    fn identities_and_constants_fold() {
        assert_eq!(binary(BinOp::Mul, var(0), int32(1)), Some(var(0)));
        assert_eq!(binary(BinOp::FloorMod, int32(-7), int32(4)), Some(int32(1)));
        assert_eq!(binary(BinOp::TruncMod, int32(-7), int32(4)), Some(int32(-3)));
        assert_eq!(binary(BinOp::Add, int32(i64::from(i32::MAX)), int32(1)), None);
        assert_eq!(binary(BinOp::FloorDiv, var(0), int32(0)), None);
    }

    #[test]
    fn types_meet() {
        for (a, b, met) in [
            (DType::I8, DType::U8, DType::I8),
            (DType::I16, DType::U8, DType::I16),
            (DType::I8, DType::U32, DType::I32),
            (DType::U8, DType::U32, DType::U32),
            (DType::Bool, DType::I32, DType::I32),
            (DType::Bool, DType::U8, DType::U8),
            (DType::I64, DType::U64, DType::I64),
            (DType::I32, DType::F16, DType::F16),
        ] {
            assert_eq!((common_type(a, b), common_type(b, a)), (Some(met), Some(met)));
        }
        assert_eq!(common_type(DType::Handle, DType::I32), None);
    }
}
