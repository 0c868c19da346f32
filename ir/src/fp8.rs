//! Floats of 8 bits, as "FP8 Formats for Deep Learning" (Micikevicius et al., 2022) and the OCP specification define them.
//!
//! Numbers are brought into them to nearest, ties to even, and beyond the largest finite one to that (as CUDA's
//! `cvt.rn.satfinite` does): infinities, too. The infinities that e5m2 has are bits like others, which stay as they are until a
//! conversion or an operation makes a number anew.
use crate::DType;

/// A format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Format {
    /// Bits of the fraction.
    fraction: u32,
    /// The exponent of 1.
    bias: i32,
    /// Largest finite number.
    pub largest: f64,
    /// Bits of [`Format::largest`].
    largest_bits: u8,
}

/// 4 bits of exponent, 3 of fraction: no infinities, one NaN of either sign, up to 448.
pub const E4M3: Format = Format { fraction: 3, bias: 7, largest: 448.0, largest_bits: 0x7e };
/// 5 bits of exponent, 2 of fraction: the upper half of an `f16`, up to 57344.
pub const E5M2: Format = Format { fraction: 2, bias: 15, largest: 57344.0, largest_bits: 0x7b };
/// The bits of the NaN that operations give.
const NAN: u8 = 0x7f;
/// The bits of e5m2's infinity.
const INFINITY: u8 = 0x7c;

impl Format {
    /// The format of a type.
    pub fn of(dtype: DType) -> Option<Format> {
        match dtype {
            DType::F8E4M3 => Some(E4M3),
            DType::F8E5M2 => Some(E5M2),
            _ => None,
        }
    }

    /// The number that bits stand for.
    pub fn value(self, bits: u8) -> f64 {
        let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
        let magnitude = bits & 0x7f;
        if magnitude > self.largest_bits {
            // Beyond the largest stands infinity, where there is one, then NaN.
            let infinite = self == E5M2 && magnitude == INFINITY;
            return if infinite { sign * f64::INFINITY } else { f64::NAN };
        }
        let exponent = i32::from(magnitude >> self.fraction);
        let fraction = f64::from(magnitude & ((1 << self.fraction) - 1)) / f64::from(1_u32 << self.fraction);
        match exponent {
            0 => sign * fraction * 2_f64.powi(1 - self.bias),
            e => sign * (1.0 + fraction) * 2_f64.powi(e - self.bias),
        }
    }

    /// The bits of a value of the format, an infinity of it among them; of any other the nearest number's.
    pub fn bits(self, value: f64) -> u8 {
        if value.is_nan() {
            return NAN;
        }
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let magnitude = value.abs();
        if magnitude == f64::INFINITY && self == E5M2 {
            return sign | INFINITY;
        }
        if magnitude >= self.largest {
            return sign | self.largest_bits;
        }
        // The exponent of the unit in the last place; a power of two is exact, and so are the quotient and its rounding.
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - self.bias);
        let units = (magnitude / 2_f64.powi(exponent - self.fraction as i32)).round_ties_even() as i32;
        // A unit more than the fraction holds carries into the exponent.
        let whole = (exponent + self.bias - 1) << self.fraction;
        sign | u8::try_from(whole + units).unwrap_or(self.largest_bits).min(self.largest_bits)
    }

    /// The nearest number, which is finite.
    pub fn round(self, value: f64) -> f64 {
        self.value(self.bits(value.clamp(-self.largest, self.largest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number of a format in order, without -0.
    fn numbers(format: Format) -> Vec<f64> {
        let mut list: Vec<f64> = (0..=255_u8).map(|b| format.value(b)).filter(|v| v.is_finite()).collect();
        list.sort_by(f64::total_cmp);
        list.dedup_by(|a, b| a == b);
        list
    }

    #[test]
    fn every_value_comes_back_as_its_bits() {
        for format in [E4M3, E5M2] {
            for bits in 0..=255_u8 {
                let value = format.value(bits);
                if value.is_nan() {
                    assert_eq!(format.bits(value), NAN);
                } else {
                    assert_eq!(format.bits(value), bits, "{value}");
                    assert_eq!(format.round(value), value.clamp(-format.largest, format.largest));
                }
            }
        }
        assert_eq!(numbers(E4M3).len(), 253);
        assert_eq!(numbers(E5M2).len(), 247);
    }

    #[test]
    fn e5m2_is_the_upper_half_of_f16() {
        for bits in 0..=255_u8 {
            let half = half::f16::from_bits(u16::from(bits) << 8).to_f64();
            let own = E5M2.value(bits);
            assert!(own == half || own.is_nan() && half.is_nan(), "{bits:#x}: {own} is not {half}");
        }
    }

    #[test]
    fn the_values_are_those_of_the_specification() {
        let e4m3 =
            [(0x00, 0.0), (0x01, 1.0 / 512.0), (0x07, 7.0 / 512.0), (0x08, 1.0 / 64.0), (0x38, 1.0), (0x7e, 448.0)];
        for (bits, value) in e4m3 {
            assert_eq!((E4M3.value(bits), E4M3.value(bits | 0x80)), (value, -value));
        }
        assert!(E4M3.value(0x7f).is_nan() && E4M3.value(0xff).is_nan());
        assert_eq!((E5M2.value(0x01), E5M2.value(0x3c), E5M2.value(0x7b)), (1.0 / 65536.0, 1.0, 57344.0));
        assert_eq!((E5M2.value(0x7c), E5M2.value(0xfc)), (f64::INFINITY, f64::NEG_INFINITY));
    }

    #[test]
    fn numbers_between_round_to_the_nearest_and_ties_to_even() {
        for format in [E4M3, E5M2] {
            for pair in numbers(format).windows(2) {
                let (low, high) = (pair[0], pair[1]);
                let middle = (low + high) / 2.0;
                let near = |value: f64| format.round(value);
                assert_eq!((near(low + (high - low) * 0.49), near(low + (high - low) * 0.51)), (low, high));
                let even = if format.bits(low) % 2 == 0 { low } else { high };
                assert_eq!(near(middle), even, "between {low} and {high}");
            }
            for beyond in [format.largest * 1.01, format.largest * 4.0, f64::MAX, f64::INFINITY] {
                assert_eq!((format.round(beyond), format.round(-beyond)), (format.largest, -format.largest));
            }
            assert_eq!(format.bits(-0.0), 0x80);
            assert_eq!(format.round(f64::MIN_POSITIVE), 0.0);
        }
    }
}
