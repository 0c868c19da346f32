//! Evaluation of expressions.
use super::code::{Float, Int};
use super::run::{Machine, Stop};
use super::Fault;
use crate::semantics::{compare, float_to_int, floats, int_to_float, integers, reinterpret, round, wrap};
use crate::BinOp;

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
                let sum = a
                    .terms
                    .iter()
                    .fold(a.constant, |sum, (slot, factor)| sum.wrapping_add(self.ints[*slot].wrapping_mul(*factor)));
                Ok(wrap(sum, a.dtype))
            }
            Int::Binary(op, dtype, sides) => {
                let a = self.int(&sides[0])?;
                let b = self.int(&sides[1])?;
                Ok(integers(*op, *dtype, a, b))
            }
            Int::CompareFloats(op, sides) => {
                let a = self.float(&sides[0])?;
                let b = self.float(&sides[1])?;
                Ok(i64::from(compare(*op, a, b)))
            }
            Int::And(sides) => Ok(i64::from(self.int(&sides[0])? != 0 && self.int(&sides[1])? != 0)),
            Int::Or(sides) => Ok(i64::from(self.int(&sides[0])? != 0 || self.int(&sides[1])? != 0)),
            Int::Not(a) => Ok(i64::from(self.int(a)? == 0)),
            Int::Unary(f, dtype, a) => Ok(f(self.int(a)?, *dtype)),
            Int::BitsOf(from, to, a) => Ok(reinterpret(self.float(a)?.to_bits(), *from, *to) as i64),
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
                match floats(*op, *dtype, a, b) {
                    Some(value) => Ok(value),
                    None => self.no_bits(*op),
                }
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
            Float::FromBits(from, to, a) => Ok(f64::from_bits(reinterpret(self.int(a)? as u64, *from, *to))),
            Float::Recast(from, to, a) => Ok(f64::from_bits(reinterpret(self.float(a)?.to_bits(), *from, *to))),
        }
    }

    #[cold]
    fn no_bits<T>(&mut self, op: BinOp) -> Result<T, Stop> {
        let block = self.place().block;
        self.stop(Fault::Invalid {
            reason: format!("{op:?} of floats has no meaning; T.floor(a / b) and T.fmod(a, b) have"),
            block,
        })
    }
}
