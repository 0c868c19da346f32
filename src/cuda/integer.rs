//! Arithmetic on integer elements: what [`satune_ir::semantics`] has, in C, which computes narrow types in `int` and leaves
//! the overflow of signed ones, division by 0 and long shifts undefined.
//!
//! Where the ranges of the operands exclude all of that, the plain operator stands. Else sums and products are computed
//! unsigned, narrow types are cast back, and quotients and shifts by what is no constant call a helper.
use super::bounds::Range;
use super::c_type;
use super::expression::precedence::*;
use super::expression::Text;
use super::prelude::{Helper, Whole};
use super::value::{integer_constant, is_float};
use super::Printer;
use crate::kernel::{Arith, BitFunction, Value};
use satune_ir::semantics::{bits, is_unsigned};
use satune_ir::DType;

/// The type in which C computes.
fn computed_in(dtype: DType) -> DType {
    match dtype {
        DType::I64 | DType::U64 | DType::U32 => dtype,
        _ => DType::I32,
    }
}

/// The unsigned type of a width.
fn unsigned(dtype: DType) -> DType {
    match bits(dtype) {
        8 => DType::U8,
        16 => DType::U16,
        32 => DType::U32,
        _ => DType::U64,
    }
}

/// All values of an integer type.
fn all(dtype: DType) -> Range {
    match dtype {
        DType::U64 => Range::of(0, u64::MAX.into()),
        other => other
            .int_range()
            .map_or(Range::of(i64::MIN.into(), u64::MAX.into()), |(lo, hi)| Range::of(lo.into(), hi.into())),
    }
}

fn holds(dtype: DType, range: Range) -> bool {
    let all = all(dtype);
    all.lo <= range.lo && range.hi <= all.hi
}

fn infix(operator: &str, p: u8, a: &Text, b: &Text) -> Text {
    Text::new(format!("{} {operator} {}", a.within(p), b.within(p + 1)), p)
}

/// A sum, difference or product.
fn ring(op: Arith, a: &Text, b: &Text) -> Text {
    match op {
        Arith::Add => infix("+", ADD, a, b),
        Arith::Sub => infix("-", ADD, a, b),
        _ => infix("*", MUL, a, b),
    }
}

impl Printer<'_> {
    /// `a op b` in an integer type.
    pub(super) fn integer_binary(&mut self, op: Arith, dtype: DType, a: &Value, b: &Value) -> Text {
        let (x, y) = (self.values(a, dtype), self.values(b, dtype));
        let (left, right) = (self.value_as(a, dtype), self.value_as(b, dtype));
        let call = |name: &str| Text::atom(format!("{name}({}, {})", left.text, right.text));
        let bitwise =
            |operator: &str, p: u8| Text::new(format!("{} {operator} {}", left.within(UNARY), right.within(UNARY)), p);
        match op {
            Arith::Add | Arith::Sub | Arith::Mul => {
                let within = computed_in(dtype);
                if holds(within, sum(op, x, y)) || is_unsigned(within) {
                    return self.narrowed(ring(op, &left, &right), dtype, holds(dtype, sum(op, x, y)));
                }
                let text = ring(op, &self.in_unsigned(a, dtype), &right);
                match dtype {
                    DType::Bool => self.narrowed(text, dtype, false),
                    dtype => text.cast(c_type(dtype)),
                }
            }
            Arith::Min => call("min"),
            Arith::Max => call("max"),
            Arith::BitAnd => bitwise("&", BIT_AND),
            Arith::BitOr => bitwise("|", BIT_OR),
            Arith::BitXor => bitwise("^", BIT_XOR),
            Arith::And => infix("&&", AND, &left, &right),
            Arith::Or => infix("||", OR, &left, &right),
            Arith::Shl | Arith::Shr => self.shifted(op == Arith::Shl, dtype, &left, &right, y),
            Arith::FloorDiv | Arith::FloorMod | Arith::TruncDiv | Arith::TruncMod | Arith::Div => {
                let remainder = matches!(op, Arith::FloorMod | Arith::TruncMod);
                let floor = matches!(op, Arith::FloorDiv | Arith::FloorMod);
                if x.lo >= 0 && y.lo > 0 {
                    return infix(if remainder { "%" } else { "/" }, MUL, &left, &right);
                }
                // Of numbers that are never negative both roundings are one.
                let (held, floor) = (computed_in(dtype), floor || is_unsigned(computed_in(dtype)));
                let name = self.helper(Helper::Whole(Whole::Division { floor, remainder }, held));
                self.narrowed(call(&name), dtype, remainder)
            }
            // Of floats only.
            Arith::Pow | Arith::Atan2 | Arith::Fmod | Arith::Copysign | Arith::Hypot => call("pow"),
        }
    }

    /// What C computed in a wider type, brought back unless it fits anyway.
    fn narrowed(&mut self, text: Text, dtype: DType, fits: bool) -> Text {
        match dtype {
            DType::Bool if !fits => Text::new(format!("{} != 0", text.within(COMPARE)), EQUAL),
            dtype if fits || computed_in(dtype) == dtype => text,
            dtype => text.cast(c_type(dtype)),
        }
    }

    /// The left operand of a sum or product that may overflow, as an unsigned number: those wrap, and a signed operand beside
    /// one becomes unsigned.
    fn in_unsigned(&mut self, value: &Value, dtype: DType) -> Text {
        if let Value::Binary(op @ (Arith::Add | Arith::Sub | Arith::Mul), d, a, b) = value {
            if *d == dtype && computed_in(dtype) == dtype && !holds(dtype, self.exact(*op, a, b, dtype)) {
                let right = self.value_as(b, dtype);
                return ring(*op, &self.in_unsigned(a, dtype), &right);
            }
        }
        self.value_as(value, dtype).cast(c_type(unsigned(computed_in(dtype))))
    }

    fn exact(&mut self, op: Arith, a: &Value, b: &Value, dtype: DType) -> Range {
        let (x, y) = (self.values(a, dtype), self.values(b, dtype));
        sum(op, x, y)
    }

    fn shifted(&mut self, left: bool, dtype: DType, a: &Text, b: &Text, by: Range) -> Text {
        let width = i128::from(bits(dtype));
        let within = computed_in(dtype);
        if by.lo == by.hi {
            let inside = (0..width).contains(&by.lo);
            return match (left, inside) {
                (true, false) => integer_constant(0, dtype),
                (false, false) if is_unsigned(dtype) => integer_constant(0, dtype),
                (false, false) => Text::new(format!("{} >> {}", a.within(UNARY), width - 1), SHIFT),
                (false, true) => Text::new(format!("{} >> {}", a.within(UNARY), by.lo), SHIFT),
                (true, true) if is_unsigned(within) => Text::new(format!("{} << {}", a.within(UNARY), by.lo), SHIFT),
                (true, true) => {
                    let bits = a.cast(c_type(unsigned(within)));
                    let text = Text::new(format!("{} << {}", bits.within(UNARY), by.lo), SHIFT);
                    match dtype {
                        DType::Bool => self.narrowed(text, dtype, false),
                        dtype => text.cast(c_type(dtype)),
                    }
                }
            };
        }
        let name = self.helper(Helper::Whole(Whole::Shift { left }, within));
        let text = Text::atom(format!("{name}({}, {})", a.text, b.text));
        self.narrowed(text, dtype, !left)
    }

    /// The magnitude of an integer.
    pub(super) fn magnitude(&mut self, value: &Value, dtype: DType) -> Text {
        let (range, text) = (self.values(value, dtype), self.value_as(value, dtype));
        if range.lo >= 0 {
            return text;
        }
        let name = self.helper(Helper::Whole(Whole::Magnitude, computed_in(dtype)));
        self.narrowed(Text::atom(format!("{name}({})", text.text)), dtype, range.lo > all(dtype).lo)
    }

    /// A count of bits.
    pub(super) fn count_bits(&mut self, function: BitFunction, value: &Value) -> Text {
        let from = self.kernel.type_of(value);
        let text = self.value_as(value, from);
        // The bits of the type, zeros above.
        let text = if is_unsigned(from) { text } else { text.cast(c_type(unsigned(from))) };
        let long = bits(from) == 64;
        match function {
            BitFunction::Ones => Text::atom(format!("{}({})", if long { "__popcll" } else { "__popc" }, text.text)),
            BitFunction::LeadingZeros => {
                let call = format!("{}({})", if long { "__clzll" } else { "__clz" }, text.text);
                match 32_u32.saturating_sub(bits(from)) {
                    0 => Text::atom(call),
                    above => Text::new(format!("{call} - {above}"), ADD),
                }
            }
        }
    }

    /// The bits of a value as those of another type of its width.
    pub(super) fn reinterpreted(&mut self, to: DType, value: &Value) -> Text {
        let from = self.kernel.type_of(value);
        let text = self.value_as(value, from);
        let call = |name: &str| Text::atom(format!("{name}({})", text.text));
        let as_bits = match from {
            DType::F32 | DType::TF32 => call("__float_as_uint"),
            DType::F64 => call("__double_as_longlong"),
            _ => text,
        };
        let of_bits = |name: &str| Text::atom(format!("{name}({})", as_bits.text));
        match to {
            DType::F32 => of_bits("__uint_as_float"),
            DType::TF32 => {
                let text = of_bits("__uint_as_float");
                self.convert(text, DType::F32, DType::TF32)
            }
            DType::F64 => of_bits("__longlong_as_double"),
            to => as_bits.cast(c_type(to)),
        }
    }

    /// The values that an expression may have, as one of an integer type.
    fn values(&mut self, value: &Value, dtype: DType) -> Range {
        let own = match value {
            Value::Int(v, DType::U64) => Range::of((*v as u64).into(), (*v as u64).into()),
            Value::Int(v, _) => Range::of((*v).into(), (*v).into()),
            Value::FromIndex(d, index) => {
                let range = self.integer(index).range;
                if holds(*d, range) {
                    range
                } else {
                    all(*d)
                }
            }
            Value::Cast(d, a) if !is_float(*d) && !is_float(self.kernel.type_of(a)) => self.values(a, *d),
            Value::Binary(op, d, a, b) if !is_float(*d) => {
                let (a, b) = (self.values(a, *d), self.values(b, *d));
                match op {
                    Arith::Add | Arith::Sub | Arith::Mul if holds(*d, sum(*op, a, b)) => sum(*op, a, b),
                    Arith::Min => Range::of(a.lo.min(b.lo), a.hi.min(b.hi)),
                    Arith::Max => Range::of(a.lo.max(b.lo), a.hi.max(b.hi)),
                    Arith::BitAnd if b.lo >= 0 => Range::of(0, b.hi),
                    Arith::FloorMod if b.lo > 0 => Range::of(0, b.hi - 1),
                    Arith::And | Arith::Or => Range::of(0, 1),
                    _ => all(*d),
                }
            }
            Value::Bits(..) => Range::of(0, 64),
            value => match self.kernel.type_of(value) {
                from if is_float(from) => all(dtype),
                from => all(from),
            },
        };
        if holds(dtype, own) {
            own
        } else {
            all(dtype)
        }
    }
}

/// The exact range of a sum, difference or product.
fn sum(op: Arith, a: Range, b: Range) -> Range {
    match op {
        Arith::Add => a.plus(b),
        Arith::Sub => Range::of(a.lo - b.hi, a.hi - b.lo),
        _ => {
            let corners = [a.lo, a.hi].map(|x| [b.lo, b.hi].map(|y| x.saturating_mul(y))).concat();
            let ends = corners.iter().fold((i128::MAX, i128::MIN), |(lo, hi), v| (lo.min(*v), hi.max(*v)));
            Range::of(ends.0, ends.1)
        }
    }
}
