//! Evaluation of expressions.
use super::code::{Float, Int};
use super::math;
use super::run::{Machine, Stop};
use super::value::{float_to_int, int_to_float, round, wrap};
use super::Fault;
use crate::{BinOp, DType};

impl Machine<'_> {
    /// The value of an integer expression. Leaves, which are most of them, cost no call.
    #[inline(always)]
    pub fn int(&mut self, e: &Int) -> Result<i64, Stop> {
        match e {
            Int::Const(v) => Ok(*v),
            Int::Slot(slot) => Ok(self.ints[*slot]),
            _ => self.int_node(e),
        }
    }

    fn int_node(&mut self, e: &Int) -> Result<i64, Stop> {
        match e {
            Int::Const(v) => Ok(*v),
            Int::Slot(slot) => Ok(self.ints[*slot]),
            Int::Affine(a) => {
                let mut sum = Some(a.constant);
                for (slot, factor) in &a.terms {
                    sum = sum.and_then(|s| s.checked_add(self.ints[*slot].checked_mul(*factor)?));
                }
                match sum {
                    Some(sum) => Ok(sum),
                    None => self.overflow("a sum of multiples of indices".into()),
                }
            }
            Int::Exact(op, sides) => {
                let a = self.int(&sides[0])?;
                let b = self.int(&sides[1])?;
                match op {
                    BinOp::FloorDiv | BinOp::FloorMod | BinOp::TruncDiv | BinOp::TruncMod if b == 0 => {
                        self.division_by_zero(a)
                    }
                    BinOp::Shl | BinOp::Shr if !(0..64).contains(&b) => self.bad_shift(b, 64),
                    _ => match exact(*op, a, b) {
                        Some(value) => Ok(value),
                        None => self.overflow(format!("{a} {op:?} {b}")),
                    },
                }
            }
            Int::Wrapped(op, dtype, sides) => {
                let a = self.int(&sides[0])?;
                let b = self.int(&sides[1])?;
                self.wrapped(*op, *dtype, a, b)
            }
            Int::Compare(op, unsigned, sides) => {
                let a = self.int(&sides[0])?;
                let b = self.int(&sides[1])?;
                Ok(if *unsigned { Self::compare(*op, a as u64, b as u64) } else { Self::compare(*op, a, b) })
            }
            Int::CompareFloats(op, sides) => {
                let a = self.float(&sides[0])?;
                let b = self.float(&sides[1])?;
                Ok(Self::compare(*op, a, b))
            }
            Int::And(sides) => Ok(i64::from(self.int(&sides[0])? != 0 && self.int(&sides[1])? != 0)),
            Int::Or(sides) => Ok(i64::from(self.int(&sides[0])? != 0 || self.int(&sides[1])? != 0)),
            Int::Not(a) => Ok(i64::from(self.int(a)? == 0)),
            Int::Abs(dtype, a) => Ok(wrap(self.int(a)?.wrapping_abs(), *dtype)),
            Int::Select(parts) => {
                let taken = if self.int(&parts[0])? != 0 { 1 } else { 2 };
                self.int(&parts[taken])
            }
            Int::Load(element) => self.load(element).map(|cell| cell as i64),
            Int::Wrap(dtype, a) => Ok(wrap(self.int(a)?, *dtype)),
            Int::FromFloat(dtype, a) => Ok(float_to_int(self.float(a)?, *dtype)),
        }
    }

    /// The value of a float expression.
    pub fn float(&mut self, e: &Float) -> Result<f64, Stop> {
        match e {
            Float::Const(v) => Ok(*v),
            Float::Slot(slot) => Ok(self.floats[*slot]),
            Float::Binary(op, dtype, sides) => {
                let a = self.float(&sides[0])?;
                let b = self.float(&sides[1])?;
                let value = match op {
                    BinOp::Add => a + b,
                    BinOp::Sub => a - b,
                    BinOp::Mul => a * b,
                    BinOp::Div => a / b,
                    BinOp::Min => return Ok(math::min(a, b)),
                    BinOp::Max => return Ok(math::max(a, b)),
                    BinOp::FloorDiv => (a / b).floor(),
                    BinOp::FloorMod => a - b * (a / b).floor(),
                    BinOp::TruncDiv => (a / b).trunc(),
                    BinOp::TruncMod => a % b,
                    _ => return self.no_bits(*op),
                };
                Ok(round(value, *dtype))
            }
            Float::Call(function, dtype, args) => {
                let args = [self.float(&args[0])?, self.float(&args[1])?, self.float(&args[2])?];
                Ok(function.apply(args, *dtype))
            }
            Float::Select(parts) => {
                if self.int(&parts.0)? != 0 {
                    self.float(&parts.1)
                } else {
                    self.float(&parts.2)
                }
            }
            Float::Load(element) => self.load(element).map(f64::from_bits),
            Float::Round(dtype, a) => Ok(round(self.float(a)?, *dtype)),
            Float::FromInt(from, to, a) => Ok(int_to_float(self.int(a)?, *from, *to)),
        }
    }

    fn wrapped(&mut self, op: BinOp, dtype: DType, a: i64, b: i64) -> Result<i64, Stop> {
        let bits = 8 * dtype.bytes();
        let unsigned = dtype == DType::U64;
        let divides = matches!(op, BinOp::FloorDiv | BinOp::FloorMod | BinOp::TruncDiv | BinOp::TruncMod);
        let value = match op {
            _ if divides && b == 0 => return self.division_by_zero(a),
            BinOp::Shl | BinOp::Shr if !(0..i64::from(bits)).contains(&b) => return self.bad_shift(b, bits),
            BinOp::Add => a.wrapping_add(b),
            BinOp::Sub => a.wrapping_sub(b),
            BinOp::Mul => a.wrapping_mul(b),
            BinOp::Div | BinOp::TruncDiv | BinOp::FloorDiv if unsigned => (a as u64 / b as u64) as i64,
            BinOp::TruncMod | BinOp::FloorMod if unsigned => (a as u64 % b as u64) as i64,
            BinOp::Min if unsigned => (a as u64).min(b as u64) as i64,
            BinOp::Max if unsigned => (a as u64).max(b as u64) as i64,
            BinOp::Shr if unsigned => (a as u64 >> b) as i64,
            BinOp::Shl => a << b,
            // Only i64::MIN / -1 is not exact; it wraps to i64::MIN, and its remainder is 0.
            op => exact(op, a, b).unwrap_or(if matches!(op, BinOp::FloorMod | BinOp::TruncMod) { 0 } else { a }),
        };
        Ok(wrap(value, dtype))
    }

    #[cold]
    fn division_by_zero<T>(&mut self, dividend: i64) -> Result<T, Stop> {
        let place = self.place();
        self.stop(Fault::DivisionByZero { dividend, place })
    }

    #[cold]
    fn bad_shift<T>(&mut self, amount: i64, bits: u32) -> Result<T, Stop> {
        let place = self.place();
        self.stop(Fault::Shift { amount, bits, place })
    }

    #[cold]
    fn no_bits<T>(&mut self, op: BinOp) -> Result<T, Stop> {
        let block = self.place().block;
        self.stop(Fault::Invalid { reason: format!("{op:?} of floats has no meaning"), block })
    }
}

/// Arithmetic in 64 bits; none where they do not hold the result. The divisor is not 0, a shift within 0..64.
fn exact(op: BinOp, a: i64, b: i64) -> Option<i64> {
    match op {
        BinOp::Add => a.checked_add(b),
        BinOp::Sub => a.checked_sub(b),
        BinOp::Mul => a.checked_mul(b),
        BinOp::Div | BinOp::TruncDiv => a.checked_div(b),
        BinOp::TruncMod => a.checked_rem(b),
        BinOp::FloorDiv => {
            let quotient = a.checked_div(b)?;
            Some(quotient - i64::from(a % b != 0 && (a < 0) != (b < 0)))
        }
        BinOp::FloorMod => {
            let rest = a.checked_rem(b)?;
            Some(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
        }
        BinOp::Min => Some(a.min(b)),
        BinOp::Max => Some(a.max(b)),
        BinOp::BitAnd => Some(a & b),
        BinOp::BitOr => Some(a | b),
        BinOp::BitXor => Some(a ^ b),
        BinOp::Shl => i64::try_from(i128::from(a) << b).ok(),
        BinOp::Shr => Some(a >> b),
        // Comparisons and connectives are nodes of their own.
        BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Le | BinOp::Gt | BinOp::Ge | BinOp::And | BinOp::Or => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_rounds_as_named() {
        for (a, b, floor, rest) in [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (6, 3, 2, 0)] {
            assert_eq!((exact(BinOp::FloorDiv, a, b), exact(BinOp::FloorMod, a, b)), (Some(floor), Some(rest)));
            assert_eq!((exact(BinOp::TruncDiv, a, b), exact(BinOp::TruncMod, a, b)), (Some(a / b), Some(a % b)));
        }
        assert_eq!(exact(BinOp::FloorDiv, i64::MIN, -1), None);
        assert_eq!(exact(BinOp::Shl, 1, 63), None);
        assert_eq!(exact(BinOp::Shl, -1, 63), Some(i64::MIN));
    }
}
