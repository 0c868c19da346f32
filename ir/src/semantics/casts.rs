//! Conversions between types, and what brings a result back into its type.
use crate::{fp8, DType};

/// What a conversion to a float type and every operation in it make of a number: the nearest one, ties to even; of `tf32` away
/// from zero, as `cvt.rna` does. Beyond the largest number lies infinity; of 8 bits the largest number itself, for infinities
/// too. What is only moved is not rounded (see [`moved`]).
pub fn round(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f64::from(value as f32),
        DType::F16 => nearest(value, 11, -14, 65504.0),
        DType::BF16 => nearest(value, 8, -126, f64::from(half::bf16::MAX)),
        DType::TF32 => round_tf32(value),
        other => fp8::Format::of(other).map_or(value, |format| format.round(value)),
    }
}

/// A number as it is in memory of a float type: values of the type, of which `float8_e5m2` has infinities, as they are.
pub fn moved(value: f64, dtype: DType) -> f64 {
    if dtype == DType::F8E5M2 && value.is_infinite() {
        value
    } else {
        round(value, dtype)
    }
}

/// The nearest number of so many digits whose exponent is at least `least`, ties to even.
fn nearest(value: f64, digits: i32, least: i32, largest: f64) -> f64 {
    if !value.is_finite() || value == 0.0 {
        return value;
    }
    let exponent = ((value.abs().to_bits() >> 52) as i32 - 1023).max(least);
    // Powers of two of this size are exact, and so are products with them.
    let unit = 2f64.powi(exponent - (digits - 1));
    let near = (value / unit).round_ties_even() * unit;
    if near.abs() > largest {
        f64::INFINITY.copysign(value)
    } else {
        near
    }
}

/// Keeps 10 bits of an `f32` mantissa.
fn round_tf32(value: f64) -> f64 {
    let single = value as f32;
    if !single.is_finite() {
        return f64::from(single);
    }
    // Adding half a unit to the magnitude carries into the exponent where it should.
    f64::from(f32::from_bits(single.to_bits().wrapping_add(0x1000) & !0x1fff))
}

/// The value modulo 2^bits of an integer type; a boolean is whether it is not 0.
#[inline]
pub fn wrap(value: i64, dtype: DType) -> i64 {
    match dtype {
        DType::Bool => i64::from(value != 0),
        DType::I8 => i64::from(value as i8),
        DType::I16 => i64::from(value as i16),
        DType::I32 => i64::from(value as i32),
        DType::U8 => i64::from(value as u8),
        DType::U16 => i64::from(value as u16),
        DType::U32 => i64::from(value as u32),
        _ => value,
    }
}

/// An integer of type `from` as the nearest float of type `to`; of a type of less than 32 bits by way of `f32`.
pub fn int_to_float(value: i64, from: DType, to: DType) -> f64 {
    match (from == DType::U64, to == DType::F64) {
        (false, true) => value as f64,
        (true, true) => value as u64 as f64,
        // Straight to f32: by way of f64 large integers would be rounded twice.
        (false, false) => round(f64::from(value as f32), to),
        (true, false) => round(f64::from(value as u64 as f32), to),
    }
}

/// A float as an integer of type `to`: towards zero, the nearest end of the range beyond it, 0 for NaN. A boolean is
/// whether it is not 0.
pub fn float_to_int(value: f64, to: DType) -> i64 {
    match to {
        DType::Bool => i64::from(value != 0.0),
        DType::I8 => i64::from(value as i8),
        DType::I16 => i64::from(value as i16),
        DType::I32 => i64::from(value as i32),
        DType::U8 => i64::from(value as u8),
        DType::U16 => i64::from(value as u16),
        DType::U32 => i64::from(value as u32),
        DType::U64 => value as u64 as i64,
        _ => value as i64,
    }
}
