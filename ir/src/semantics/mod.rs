//! What scalar operations do, in every type: the one place that says so (`docs/SEMANTICS.md` in words).
//!
//! The interpreter and the simulator of kernels call these functions; the CUDA printer prints what equals them. Every
//! operation is total: what C leaves undefined has a value here.
//!
//! An integer or boolean travels as an `i64` (`u64` as its bits), a float as an `f64`, of which every float type is a
//! subset. A value is brought back into its type after each operation. For `+ - * /` and square root of `f32`, rounding
//! the `f64` result once more gives what the operation in the type itself gives, since `f64` is more than twice as precise;
//! the same holds for 16 bits and `f32`.
mod casts;
mod functions;

pub use casts::{float_to_int, int_to_float, moved, round, wrap};
pub use functions::{max, min, Function};

use crate::{BinOp, DType};

/// Width of an integer type, bits; a boolean is a byte.
pub fn bits(dtype: DType) -> u32 {
    8 * dtype.bytes()
}

/// Whether a type is an integer one without negative values.
pub fn is_unsigned(dtype: DType) -> bool {
    matches!(dtype, DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64)
}

/// The type of an operation on two types: the float one, the wider one, the unsigned one.
pub fn promote(a: DType, b: DType) -> DType {
    let rank = |t: DType| match t {
        DType::Bool => 0,
        DType::Handle => 9,
        t if t.is_float() => 100 + t.bytes() * 2 + u32::from(t == DType::F32),
        t => t.bytes() * 2 + u32::from(is_unsigned(t)),
    };
    match (a, b) {
        (DType::F16, DType::BF16) | (DType::BF16, DType::F16) => DType::F32,
        (DType::F8E4M3, DType::F8E5M2) | (DType::F8E5M2, DType::F8E4M3) => DType::F16,
        _ if rank(b) > rank(a) => b,
        _ => a,
    }
}

/// Whether an operator compares.
pub fn is_comparison(op: BinOp) -> bool {
    matches!(op, BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Le | BinOp::Gt | BinOp::Ge)
}

/// `a op b` of two values of an integer type, which is a value of that type, or 0 and 1 of comparisons and connectives.
///
/// Results wrap. Division by 0 and its remainder are 0; the smallest number over -1 wraps to itself. A shift by at least
/// the width, or by a negative number, leaves nothing but copies of the sign.
pub fn integers(op: BinOp, dtype: DType, a: i64, b: i64) -> i64 {
    let unsigned = dtype == DType::U64;
    let value = match op {
        BinOp::Add => a.wrapping_add(b),
        BinOp::Sub => a.wrapping_sub(b),
        BinOp::Mul => a.wrapping_mul(b),
        BinOp::Div | BinOp::TruncDiv | BinOp::FloorDiv | BinOp::TruncMod | BinOp::FloorMod if b == 0 => 0,
        BinOp::Div | BinOp::TruncDiv | BinOp::FloorDiv if unsigned => (a as u64 / b as u64) as i64,
        BinOp::TruncMod | BinOp::FloorMod if unsigned => (a as u64 % b as u64) as i64,
        BinOp::Div | BinOp::TruncDiv => a.wrapping_div(b),
        BinOp::TruncMod => a.wrapping_rem(b),
        BinOp::FloorDiv => {
            let (quotient, rest) = (a.wrapping_div(b), a.wrapping_rem(b));
            quotient - i64::from(rest != 0 && (rest < 0) != (b < 0))
        }
        BinOp::FloorMod => {
            let rest = a.wrapping_rem(b);
            rest + if rest != 0 && (rest < 0) != (b < 0) { b } else { 0 }
        }
        BinOp::Min if unsigned => (a as u64).min(b as u64) as i64,
        BinOp::Max if unsigned => (a as u64).max(b as u64) as i64,
        BinOp::Min => a.min(b),
        BinOp::Max => a.max(b),
        BinOp::BitAnd => a & b,
        BinOp::BitOr => a | b,
        BinOp::BitXor => a ^ b,
        BinOp::Shl | BinOp::Shr => {
            let within = (0..i64::from(bits(dtype))).contains(&b);
            match op {
                BinOp::Shl if within => a << b,
                BinOp::Shl => 0,
                _ if unsigned => {
                    if within {
                        (a as u64 >> b) as i64
                    } else {
                        0
                    }
                }
                _ => a >> if within { b } else { 63 },
            }
        }
        BinOp::And => i64::from(a != 0 && b != 0),
        BinOp::Or => i64::from(a != 0 || b != 0),
        BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Le | BinOp::Gt | BinOp::Ge => {
            return i64::from(if unsigned { compare(op, a as u64, b as u64) } else { compare(op, a, b) })
        }
    };
    wrap(value, dtype)
}

/// `a op b` of two values of a float type. None for operators that floats do not have.
pub fn floats(op: BinOp, dtype: DType, a: f64, b: f64) -> Option<f64> {
    Some(match op {
        BinOp::Add => round(a + b, dtype),
        BinOp::Sub => round(a - b, dtype),
        BinOp::Mul => round(a * b, dtype),
        BinOp::Div => round(a / b, dtype),
        BinOp::Min => round(min(a, b), dtype),
        BinOp::Max => round(max(a, b), dtype),
        _ if is_comparison(op) => f64::from(u8::from(compare(op, a, b))),
        _ => return None,
    })
}

/// Whether a comparison holds: none but `!=` does of a NaN.
pub fn compare<T: PartialOrd>(op: BinOp, a: T, b: T) -> bool {
    match op {
        BinOp::Eq => a == b,
        BinOp::Ne => a != b,
        BinOp::Lt => a < b,
        BinOp::Le => a <= b,
        BinOp::Gt => a > b,
        _ => a >= b,
    }
}

/// The magnitude of an integer; of the smallest number, which has none, that itself.
pub fn magnitude(value: i64, dtype: DType) -> i64 {
    if is_unsigned(dtype) {
        value
    } else {
        wrap(value.wrapping_abs(), dtype)
    }
}

/// The number of ones among an integer's bits.
pub fn ones(value: i64, dtype: DType) -> i64 {
    pattern(value, dtype).count_ones().into()
}

/// The number of zeros above an integer's highest one; all bits of 0.
pub fn leading_zeros(value: i64, dtype: DType) -> i64 {
    i64::from(pattern(value, dtype).leading_zeros()) - i64::from(64 - bits(dtype))
}

/// The bits of an integer, zeros above.
fn pattern(value: i64, dtype: DType) -> u64 {
    value as u64 & (u64::MAX >> (64 - bits(dtype)))
}

/// A number of a type, in the 64 bits of an `f64`: the number itself, but of integers of 64 bits their bits, since not all
/// of them are numbers of `f64`. So the simulator holds values.
pub fn held(value: i64, dtype: DType) -> f64 {
    match dtype {
        DType::I64 | DType::U64 => f64::from_bits(value as u64),
        _ => value as f64,
    }
}

/// The integer that [`held`] holds.
pub fn unheld(value: f64, dtype: DType) -> i64 {
    match dtype {
        DType::I64 | DType::U64 => value.to_bits() as i64,
        _ => value as i64,
    }
}

/// The bits of a value of one type as a value of another type of the same width. Both are as an `i64` (`u64` as its bits) or
/// the bits of an `f64`. A NaN becomes one with all bits of the fraction 1, as operations of the GPU give.
pub fn reinterpret(cell: u64, from: DType, to: DType) -> u64 {
    from_pattern(to_pattern(cell, from), to)
}

/// The bits of a value in memory.
pub(crate) fn to_pattern(cell: u64, dtype: DType) -> u64 {
    let value = f64::from_bits(cell);
    match dtype {
        DType::F64 if value.is_nan() => 0x7fff_ffff_ffff_ffff,
        DType::F64 => cell,
        DType::F32 | DType::TF32 if value.is_nan() => 0x7fff_ffff,
        DType::F32 | DType::TF32 => (value as f32).to_bits().into(),
        DType::F16 | DType::BF16 if value.is_nan() => 0x7fff,
        DType::F16 => half::f16::from_f64(value).to_bits().into(),
        DType::BF16 => half::bf16::from_f64(value).to_bits().into(),
        dtype => match crate::fp8::Format::of(dtype) {
            Some(format) => format.bits(value).into(),
            None => pattern(cell as i64, dtype),
        },
    }
}

/// The value of bits in memory.
pub(crate) fn from_pattern(pattern: u64, dtype: DType) -> u64 {
    let value = match dtype {
        DType::F64 => f64::from_bits(pattern),
        DType::F32 => f32::from_bits(pattern as u32).into(),
        DType::TF32 => round(f32::from_bits(pattern as u32).into(), dtype),
        DType::F16 => half::f16::from_bits(pattern as u16).to_f64(),
        DType::BF16 => half::bf16::from_bits(pattern as u16).to_f64(),
        dtype => match crate::fp8::Format::of(dtype) {
            Some(format) => format.value(pattern as u8),
            None => return wrap(pattern as i64, dtype) as u64,
        },
    };
    value.to_bits()
}

#[cfg(test)]
mod tests;
