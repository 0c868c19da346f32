//! Number formats that memory and registers hold and that no Rust type stands for: floats of 8 bits, tf32, packed integers.
//!
//! Small floats are described by their bits ([`Small`]); rounding is to nearest, ties to even, on the exact value.

use half::{bf16, f16};

/// A float of at most 16 bits with `mantissa` stored bits below an implied one and the given least normal exponent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Small {
    /// Stored bits of the mantissa.
    pub mantissa: u32,
    /// Exponent of the least normal number.
    pub least: i32,
    /// Bits of the largest finite number.
    pub largest: u16,
    /// Bits of the NaN that conversions give.
    pub nan: u16,
    /// The sign's bit.
    pub sign: u16,
}

/// `e4m3`: no infinities, one NaN per sign, largest number 448.
pub const E4M3: Small = Small { mantissa: 3, least: -6, largest: 0x7e, nan: 0x7f, sign: 0x80 };
/// `e5m2`: infinities and NaNs as in IEEE formats, largest number 57344.
pub const E5M2: Small = Small { mantissa: 2, least: -14, largest: 0x7b, nan: 0x7f, sign: 0x80 };

impl Small {
    /// Rounds to nearest, ties to even; beyond the largest number, and from infinities, to that (`cvt.rn.satfinite`).
    pub fn saturated(self, value: f32) -> u16 {
        if value.is_nan() {
            return self.nan;
        }
        let sign = if value.is_sign_negative() { self.sign } else { 0 };
        let size = f64::from(value.abs());
        if size == 0.0 {
            return sign;
        }
        // Of an infinity any large exponent will do.
        let exponent = if size.is_finite() { size.log2().floor() as i32 } else { 1000 };
        // The logarithm may be rounded up to the next power.
        let exponent = if size.is_finite() && f64::powi(2.0, exponent) > size { exponent - 1 } else { exponent };
        let exponent = exponent.clamp(self.least, 200);
        let units = (size / f64::powi(2.0, exponent - self.mantissa as i32)).round_ties_even();
        let units = units.min(f64::from(1_u32 << (self.mantissa + 1))) as i64;
        let one = 1_i64 << self.mantissa;
        let bits = i64::from(exponent - self.least + 1) * one + units - one;
        sign | bits.clamp(0, i64::from(self.largest)) as u16
    }

    /// The value of its bits; exact.
    pub fn value(self, bits: u16) -> f32 {
        let size = bits & (self.sign - 1);
        let value = if size > self.largest {
            if self == E5M2 && size == 0x7c {
                f32::INFINITY
            } else {
                f32::NAN
            }
        } else {
            let one = 1_u16 << self.mantissa;
            let (exponent, rest) = (i32::from(size >> self.mantissa), size & (one - 1));
            let (units, power) =
                if exponent == 0 { (rest, self.least) } else { (rest + one, self.least + exponent - 1) };
            f32::from(units) * f32::powi(2.0, power - self.mantissa as i32)
        };
        if bits & self.sign != 0 {
            -value
        } else {
            value
        }
    }
}

/// What a tensor core reads of an f32 as tf32: the last 13 bits are cut off.
pub fn tf32(bits: u32) -> f32 {
    f32::from_bits(bits & !0x1fff)
}

/// `cvt.rna.tf32.f32`: to nearest, ties away from zero; the result's last 13 bits are zeros. Beyond the largest number an
/// infinity, or with `saturate` that number.
pub fn round_tf32(value: f32, to_even: bool, saturate: bool) -> u32 {
    let bits = value.to_bits();
    if value.is_nan() {
        return 0x7fff_ffff;
    }
    if value.is_infinite() {
        return if saturate { bits & 0x8000_0000 | 0x7f7f_e000 } else { bits };
    }
    let half = if to_even { 0xfff + (bits >> 13 & 1) } else { 0x1000 };
    let rounded = bits.wrapping_add(half) & !0x1fff;
    if saturate && rounded & 0x7fff_ffff == 0x7f80_0000 {
        return bits & 0x8000_0000 | 0x7f7f_e000;
    }
    rounded
}

/// What an element of a matrix or of a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// 16-bit IEEE float.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// An f32 of which the upper 19 bits count.
    Tf32,
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// 8-bit float of 4 exponent bits.
    E4m3,
    /// 8-bit float of 5 exponent bits.
    E5m2,
    /// Signed byte.
    S8,
    /// Byte.
    U8,
    /// Signed half byte.
    S4,
    /// Half byte.
    U4,
    /// One bit.
    B1,
    /// 32-bit sum.
    S32,
}

impl Element {
    /// The type that a modifier of an instruction names.
    pub fn named(name: &str) -> Option<Element> {
        Some(match name {
            "f16" => Element::F16,
            "bf16" => Element::Bf16,
            "tf32" => Element::Tf32,
            "f32" => Element::F32,
            "f64" => Element::F64,
            "e4m3" => Element::E4m3,
            "e5m2" => Element::E5m2,
            "s8" => Element::S8,
            "u8" => Element::U8,
            "s4" => Element::S4,
            "u4" => Element::U4,
            "b1" => Element::B1,
            "s32" => Element::S32,
            _ => return None,
        })
    }

    /// Bits of an element.
    pub fn bits(self) -> u32 {
        match self {
            Element::F64 => 64,
            Element::Tf32 | Element::F32 | Element::S32 => 32,
            Element::F16 | Element::Bf16 => 16,
            Element::E4m3 | Element::E5m2 | Element::S8 | Element::U8 => 8,
            Element::S4 | Element::U4 => 4,
            Element::B1 => 1,
        }
    }

    /// Whether products are summed as whole numbers.
    pub fn is_integer(self) -> bool {
        matches!(self, Element::S8 | Element::U8 | Element::S4 | Element::U4 | Element::B1 | Element::S32)
    }

    /// The value of an element's bits. Exact for all types.
    pub fn value(self, bits: u64) -> f64 {
        match self {
            Element::F16 => f16::from_bits(bits as u16).to_f64(),
            Element::Bf16 => bf16::from_bits(bits as u16).to_f64(),
            Element::Tf32 => f64::from(tf32(bits as u32)),
            Element::F32 => f64::from(f32::from_bits(bits as u32)),
            Element::F64 => f64::from_bits(bits),
            Element::E4m3 => f64::from(E4M3.value(bits as u16 & 0xff)),
            Element::E5m2 => f64::from(E5M2.value(bits as u16 & 0xff)),
            Element::S8 => f64::from(bits as u8 as i8),
            Element::U8 => f64::from(bits as u8),
            Element::S4 => f64::from(((bits as u8) << 4) as i8 >> 4),
            Element::U4 => f64::from(bits as u8 & 15),
            Element::B1 => f64::from(bits as u8 & 1),
            Element::S32 => f64::from(bits as u32 as i32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_convert_back_to_themselves() {
        for small in [E4M3, E5M2] {
            for bits in 0..=255_u16 {
                let value = small.value(bits);
                let back = small.saturated(value);
                if value.is_nan() {
                    assert_eq!(back, 0x7f);
                } else if value.is_infinite() {
                    assert_eq!(back & 0x7f, small.largest);
                } else {
                    assert_eq!(back, bits, "{value}");
                }
            }
        }
        assert_eq!(E4M3.value(0x7e), 448.0);
        assert_eq!(E4M3.value(1), 1.0 / 512.0);
        assert_eq!(E5M2.value(0x7b), 57344.0);
        assert_eq!(E5M2.value(1), 1.0 / 65536.0);
        assert_eq!(E5M2.value(0xfc), f32::NEG_INFINITY);
    }

    #[test]
    fn numbers_between_two_bytes_go_to_the_nearer_and_ties_to_even() {
        for small in [E4M3, E5M2] {
            for bits in 0..small.largest {
                let (low, high) = (small.value(bits), small.value(bits + 1));
                let middle = (low + high) / 2.0;
                let even = if bits % 2 == 0 { bits } else { bits + 1 };
                assert_eq!(small.saturated(middle), even);
                assert_eq!(small.saturated(f32::from_bits(middle.to_bits() - 1)), bits);
                assert_eq!(small.saturated(f32::from_bits(middle.to_bits() + 1)), bits + 1);
                assert_eq!(small.saturated(-middle), even | 0x80);
            }
            assert_eq!(small.saturated(f32::MAX), small.largest);
            assert_eq!(small.saturated(f32::NEG_INFINITY), small.largest | 0x80);
            assert_eq!(small.saturated(f32::from_bits(1)), 0);
        }
    }

    #[test]
    fn tf32_rounds_and_is_cut() {
        assert_eq!(round_tf32(f32::from_bits(0x3f80_1000), false, false), 0x3f80_2000);
        assert_eq!(round_tf32(f32::from_bits(0x3f80_1000), true, false), 0x3f80_0000);
        assert_eq!(round_tf32(f32::from_bits(0x3f80_0fff), false, false), 0x3f80_0000);
        assert_eq!(round_tf32(f32::MAX, false, false), 0x7f80_0000);
        assert_eq!(round_tf32(f32::MAX, false, true), 0x7f7f_e000);
        assert_eq!(tf32(0x3f80_1fff), 1.0);
        assert_eq!((Element::S4.value(0xf), Element::U4.value(0xf), Element::S8.value(0x80)), (-1.0, 15.0, -128.0));
    }
}
