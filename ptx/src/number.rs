//! Floating-point numbers, rounded as asked: every operation is exact up to one rounding.
//!
//! Sums, products, quotients and roots of narrow numbers are made in doubles, rounded to odd (the last bit says whether anything was
//! cut off), and rounded once more to where they go: since a double has more than two bits beyond, that is the right
//! rounding (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
use std::cmp::Ordering;

/// A rounding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest, ties to even.
    Nearest,
    /// To the nearest, ties away from zero.
    NearestAway,
    /// Towards zero.
    Zero,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
}

impl Rounding {
    /// From modifiers: `rn`, `rz`, `rm`, `rp`, `rna` (and with `i` behind for integers); to the nearest without.
    pub fn of(modifiers: &[String]) -> Rounding {
        let named = modifiers.iter().find_map(|m| {
            Some(match m.as_str() {
                "rn" | "rni" => Rounding::Nearest,
                "rna" => Rounding::NearestAway,
                "rz" | "rzi" => Rounding::Zero,
                "rm" | "rmi" => Rounding::Down,
                "rp" | "rpi" => Rounding::Up,
                _ => return None,
            })
        });
        named.unwrap_or(Rounding::Nearest)
    }
}

/// A binary format: bits of exponent and of the fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bits of the exponent.
    pub exponent: u32,
    /// Bits of the fraction.
    pub fraction: u32,
}

/// IEEE half.
pub const F16: Format = Format { exponent: 5, fraction: 10 };
/// bfloat16.
pub const BF16: Format = Format { exponent: 8, fraction: 7 };
/// IEEE single.
pub const F32: Format = Format { exponent: 8, fraction: 23 };
/// IEEE double.
pub const F64: Format = Format { exponent: 11, fraction: 52 };

impl Format {
    /// Its width.
    pub fn bits(self) -> u32 {
        1 + self.exponent + self.fraction
    }

    /// The one NaN that operations return.
    pub fn nan(self) -> u64 {
        (1 << (self.exponent + self.fraction)) - 1
    }

    /// Its infinity.
    pub fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    /// The sign's bit.
    pub fn sign(self) -> u64 {
        1 << (self.exponent + self.fraction)
    }

    /// The number of some bits; exact.
    pub fn value(self, bits: u64) -> f64 {
        match self {
            F64 => f64::from_bits(bits),
            F32 => f64::from(f32::from_bits(bits as u32)),
            BF16 => f64::from(f32::from_bits((bits as u32) << 16)),
            _ => half::f16::from_bits(bits as u16).to_f64(),
        }
    }

    /// Whether bits are a NaN.
    pub fn is_nan(self, bits: u64) -> bool {
        bits & (self.sign() - 1) > self.infinity()
    }

    /// Subnormal numbers become zeros of their sign.
    pub fn flushed(self, bits: u64) -> u64 {
        if bits & self.infinity() == 0 {
            bits & self.sign()
        } else {
            bits
        }
    }

    /// Bits of a double, rounded. (A NaN becomes the one NaN.)
    pub fn round(self, x: f64, mode: Rounding) -> u64 {
        if x.is_nan() {
            return self.nan();
        }
        if self == F64 {
            return x.to_bits();
        }
        if self == F32 && mode == Rounding::Nearest {
            return u64::from((x as f32).to_bits());
        }
        let sign = u64::from(x.is_sign_negative()) << (self.exponent + self.fraction);
        if x.is_infinite() {
            return sign | self.infinity();
        }
        let magnitude = x.abs();
        if magnitude == 0.0 {
            return sign;
        }
        let bias = (1i32 << (self.exponent - 1)) - 1;
        // The exponent of the last bit that is kept.
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - bias);
        let unit = exponent - self.fraction as i32;
        // Exact: a scaling by a power of two within the range of doubles (in two steps where it is far).
        let scaled = scale(magnitude, -unit);
        let floor = scaled.floor();
        let rest = scaled - floor;
        let up = match mode {
            Rounding::Nearest => rest > 0.5 || (rest == 0.5 && floor % 2.0 == 1.0),
            Rounding::NearestAway => rest >= 0.5,
            Rounding::Zero => false,
            Rounding::Down => sign != 0 && rest > 0.0,
            Rounding::Up => sign == 0 && rest > 0.0,
        };
        let whole = floor as u64 + u64::from(up);
        // A carry out of the fraction raises the exponent by itself.
        let base = ((exponent + bias) as u64).wrapping_sub(1) << self.fraction;
        let bits = base.wrapping_add(whole);
        if bits >= self.infinity() {
            let to_infinity = match mode {
                Rounding::Nearest | Rounding::NearestAway => true,
                Rounding::Zero => false,
                Rounding::Down => sign != 0,
                Rounding::Up => sign == 0,
            };
            return sign | (self.infinity() - u64::from(!to_infinity));
        }
        sign | bits
    }
}

fn scale(x: f64, by: i32) -> f64 {
    let half = by / 2;
    x * 2f64.powi(half) * 2f64.powi(by - half)
}

/// The neighbour of a finite number, away from zero or towards it.
fn neighbour(x: f64, away: bool) -> f64 {
    if x == 0.0 {
        return x;
    }
    let bits = x.to_bits();
    f64::from_bits(if away { bits + 1 } else { bits - 1 })
}

/// A nearest result and the sign of what is missing, put as asked.
fn directed(near: f64, missing: f64, mode: Option<Rounding>) -> f64 {
    if !near.is_finite() || missing == 0.0 || missing.is_nan() {
        return near;
    }
    let larger = (missing > 0.0) == (near > 0.0);
    match mode {
        // To odd.
        None => {
            let cut = if larger { near } else { neighbour(near, false) };
            f64::from_bits(cut.to_bits() | 1)
        }
        Some(Rounding::Nearest | Rounding::NearestAway) => near,
        Some(Rounding::Zero) if larger => near,
        Some(Rounding::Zero) => neighbour(near, false),
        Some(Rounding::Down) if missing > 0.0 => near,
        Some(Rounding::Down) => neighbour(near, near < 0.0),
        Some(Rounding::Up) if missing < 0.0 => near,
        Some(Rounding::Up) => neighbour(near, near > 0.0),
    }
}

fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let b_part = s - a;
    (s, (a - (s - b_part)) + (b - b_part))
}

/// Where a sum is exactly zero, its sign depends on the mode.
fn zero(x: f64, both_negative: bool, mode: Rounding) -> f64 {
    if x == 0.0 && !both_negative && mode == Rounding::Down {
        -0.0
    } else {
        x
    }
}

/// Operations of a format, rounded once.
impl Format {
    fn close(self, near: f64, missing: f64, mode: Rounding) -> u64 {
        if self == F64 {
            let out = directed(near, missing, Some(mode));
            return if out.is_nan() { 0x7fff_ffff_ffff_ffff } else { out.to_bits() };
        }
        self.round(directed(near, missing, None), mode)
    }

    /// a + b
    pub fn add(self, a: u64, b: u64, mode: Rounding) -> u64 {
        let (a, b) = (self.value(a), self.value(b));
        let (sum, missing) = two_sum(a, b);
        let sum = if a == -b && a != 0.0 { zero(sum, false, mode) } else { sum };
        self.close(sum, missing, mode)
    }

    /// a b
    pub fn mul(self, a: u64, b: u64, mode: Rounding) -> u64 {
        let (a, b) = (self.value(a), self.value(b));
        let product = a * b;
        let missing = if self == F64 { a.mul_add(b, -product) } else { 0.0 };
        self.close(product, missing, mode)
    }

    /// a b + c
    pub fn fma(self, a: u64, b: u64, c: u64, mode: Rounding) -> u64 {
        if mode == Rounding::Nearest {
            if self == F32 {
                let [a, b, c] = [a, b, c].map(|x| f32::from_bits(x as u32));
                let out = a.mul_add(b, c);
                return if out.is_nan() { self.nan() } else { u64::from(out.to_bits()) };
            }
            if self == F64 {
                let [a, b, c] = [a, b, c].map(f64::from_bits);
                return a.mul_add(b, c).to_bits();
            }
        }
        let (a, b, c) = (self.value(a), self.value(b), self.value(c));
        if self != F64 {
            let product = a * b;
            let (sum, missing) = two_sum(product, c);
            let sum = if product == -c && c != 0.0 { zero(sum, false, mode) } else { sum };
            return self.close(sum, missing, mode);
        }
        // The error of a fused product (Boldo and Muller, "Exact and approximated error of the FMA", 2011).
        let near = a.mul_add(b, c);
        let product = a * b;
        let low = a.mul_add(b, -product);
        let (alpha, z) = two_sum(c, low);
        let (beta, beta_low) = two_sum(product, alpha);
        let gamma = (beta - near) + beta_low;
        let missing = if gamma == 0.0 { z } else { gamma };
        self.close(near, missing, mode)
    }

    /// a / b
    pub fn div(self, a: u64, b: u64, mode: Rounding) -> u64 {
        let (a, b) = (self.value(a), self.value(b));
        let near = a / b;
        let rest = (-near).mul_add(b, a);
        let missing = if b < 0.0 { -rest } else { rest };
        self.close(near, if near.is_finite() && b.is_finite() { missing } else { 0.0 }, mode)
    }

    /// The square root.
    pub fn sqrt(self, a: u64, mode: Rounding) -> u64 {
        let a = self.value(a);
        let near = a.sqrt();
        let missing = if near.is_finite() { (-near).mul_add(near, a) } else { 0.0 };
        self.close(near, missing, mode)
    }

    /// An integer.
    pub fn integer(self, n: i128, mode: Rounding) -> u64 {
        let near = n as f64;
        let missing = match n.cmp(&(near as i128)) {
            Ordering::Less => -1.0,
            Ordering::Equal => 0.0,
            Ordering::Greater => 1.0,
        };
        self.close(near, missing, mode)
    }
}

/// A number rounded to an integer, as a number.
pub fn integral(x: f64, mode: Rounding) -> f64 {
    match mode {
        Rounding::Nearest => x.round_ties_even(),
        Rounding::NearestAway => x.round(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn halves_and_bfloats_round_as_the_crate_half_does(bits in any::<u32>()) {
            let x = f32::from_bits(bits);
            prop_assume!(!x.is_nan());
            let rounded = F16.round(f64::from(x), Rounding::Nearest) as u16;
            prop_assert_eq!(rounded, half::f16::from_f32(x).to_bits());
            let rounded = BF16.round(f64::from(x), Rounding::Nearest) as u16;
            prop_assert_eq!(rounded, half::bf16::from_f32(x).to_bits());
        }

        #[test]
        fn singles_round_as_hardware_does(a in any::<u32>(), b in any::<u32>(), c in any::<u32>()) {
            let [x, y, z] = [a, b, c].map(f32::from_bits);
            let same = |bits: u64, value: f32| {
                bits == u64::from(value.to_bits()) || (value.is_nan() && bits == F32.nan())
            };
            let (a, b, c) = (u64::from(a), u64::from(b), u64::from(c));
            prop_assert!(same(F32.add(a, b, Rounding::Nearest), x + y));
            prop_assert!(same(F32.mul(a, b, Rounding::Nearest), x * y));
            prop_assert!(same(F32.div(a, b, Rounding::Nearest), x / y));
            prop_assert!(same(F32.sqrt(a, Rounding::Nearest), x.sqrt()));
            prop_assert!(same(F32.fma(a, b, c, Rounding::Nearest), x.mul_add(y, z)));
            // What is rounded down and up encloses the exact sum, and they are neighbours.
            let exact = f64::from(x) * f64::from(y);
            if exact.is_finite() {
                let down = F32.value(F32.mul(a, b, Rounding::Down));
                let up = F32.value(F32.mul(a, b, Rounding::Up));
                prop_assert!(down <= exact && exact <= up);
            }
        }

        #[test]
        fn doubles_are_rounded_as_asked(a in any::<f64>(), b in any::<f64>()) {
            prop_assume!(a.is_normal() && b.is_normal() && (a + b).is_normal());
            let (x, y) = (a.to_bits(), b.to_bits());
            let down = f64::from_bits(F64.add(x, y, Rounding::Down));
            let up = f64::from_bits(F64.add(x, y, Rounding::Up));
            prop_assert!(down <= a + b && a + b <= up);
            let (_, missing) = two_sum(a, b);
            prop_assert_eq!(down == up, missing == 0.0);
        }
    }

    #[test]
    fn ties_and_limits() {
        let half = |x: f64, mode| F16.round(x, mode) as u16;
        assert_eq!(half(65520.0, Rounding::Nearest), 0x7c00);
        assert_eq!(half(65520.0, Rounding::Zero), 0x7bff);
        assert_eq!(half(-65520.0, Rounding::Down), 0xfc00);
        assert_eq!(half(2f64.powi(-25), Rounding::Nearest), 0);
        assert_eq!(half(2f64.powi(-25), Rounding::Up), 1);
        assert_eq!(F32.integer(16_777_217, Rounding::Nearest), u64::from(16_777_216f32.to_bits()));
        assert_eq!(F32.integer(16_777_217, Rounding::Up), u64::from(16_777_218f32.to_bits()));
    }
}
