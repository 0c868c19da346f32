//! Values: arithmetic on elements.
use super::expression::precedence::*;
use super::expression::Text;
use super::prelude::Helper;
use super::{c_type, Printer};
use crate::kernel::{Arith, Comparison, Index, Value};
use satune_ir::{fp8, semantics, DType};

/// Whether elements of the type are held as their bits; arithmetic on them is done in f32.
fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16) || is_fp8(dtype)
}

fn is_fp8(dtype: DType) -> bool {
    fp8::Format::of(dtype).is_some()
}

pub(super) fn is_float(dtype: DType) -> bool {
    is_half(dtype) || matches!(dtype, DType::F32 | DType::TF32 | DType::F64)
}

/// The type in which the machine computes one operation of a type, which is then rounded.
fn computed_in(dtype: DType) -> DType {
    if is_half(dtype) || dtype == DType::TF32 {
        DType::F32
    } else {
        dtype
    }
}

impl Printer<'_> {
    /// The value as an element of the type.
    pub(super) fn value_as(&mut self, value: &Value, dtype: DType) -> Text {
        let text = match value {
            // A constant is written in the type at once.
            Value::Float(v, from) if is_float(dtype) && (*from == dtype || *from == DType::F64) => {
                return float_constant(*v, dtype)
            }
            Value::Int(v, from) if is_float(dtype) => {
                return float_constant(semantics::int_to_float(*v, *from, dtype), dtype);
            }
            Value::Int(v, _) => return integer_constant(semantics::wrap(*v, dtype), dtype),
            value => self.value(value),
        };
        self.convert(text, self.kernel.type_of(value), dtype)
    }

    pub(super) fn value(&mut self, value: &Value) -> Text {
        match value {
            Value::Float(v, dtype) if is_float(*dtype) => float_constant(*v, *dtype),
            Value::Float(v, dtype) => integer_constant(*v as i64, *dtype),
            Value::Int(v, dtype) if is_float(*dtype) => float_constant(*v as f64, *dtype),
            Value::Int(v, dtype) => integer_constant(*v, *dtype),
            Value::Load(array, index) if self.is_fragment(*array) => self.packed(*array, index),
            Value::Load(array, index) => Text::atom(self.element(*array, index)),
            Value::Binary(op, dtype, a, b) if is_float(*dtype) => self.binary(*op, *dtype, a, b),
            Value::Binary(op, dtype, a, b) => self.integer_binary(*op, *dtype, a, b),
            Value::Fma(dtype, a, b, c) if !is_float(*dtype) => {
                let product = Value::Binary(Arith::Mul, *dtype, a.clone(), b.clone());
                self.integer_binary(Arith::Add, *dtype, &product, c)
            }
            Value::Fma(dtype, a, b, c) => {
                let [a, b, c] = [a, b, c].map(|v| self.value_as(v, *dtype));
                let call = |name: &str| Text::atom(format!("{name}({}, {}, {})", a.text, b.text, c.text));
                match dtype {
                    DType::F32 => call("fmaf"),
                    DType::TF32 => {
                        let sum = call("fmaf");
                        self.convert(sum, DType::F32, DType::TF32)
                    }
                    DType::F16 => call(&self.helper(Helper::HalfFma)),
                    DType::BF16 => call(&self.helper(Helper::Bf16Fma)),
                    DType::F8E4M3 | DType::F8E5M2 => {
                        // f32 holds the product of two of them exactly, so that only the sum is rounded before the result is.
                        let [a, b, c] = [a, b, c].map(|v| self.convert(v, *dtype, DType::F32).text);
                        let sum = Text::atom(format!("fmaf({a}, {b}, {c})"));
                        self.convert(sum, DType::F32, *dtype)
                    }
                    _ => call("fma"),
                }
            }
            Value::Unary(_, dtype, a) if !is_float(*dtype) => self.magnitude(a, *dtype),
            Value::Unary(name, dtype, a) => {
                let within = computed_in(*dtype);
                let a = self.value_as(a, within);
                let text = unary(name, within, &a);
                self.convert(text, within, *dtype)
            }
            Value::Bits(function, a) => self.count_bits(*function, a),
            Value::Cast(dtype, a) => self.value_as(a, *dtype),
            Value::Reinterpret(dtype, a) => self.reinterpreted(*dtype, a),
            Value::Select(cond, a, b) => {
                let dtype = self.kernel.type_of(a);
                let cond = self.condition(cond).within(TERNARY + 1);
                let (a, b) = (self.value_as(a, dtype), self.value_as(b, dtype));
                Text::new(format!("{cond} ? {} : {}", a.within(TERNARY + 1), b.within(TERNARY)), TERNARY)
            }
            Value::Compare(op, dtype, a, b) => {
                let within = computed_in(*dtype);
                let (a, b) = (self.value_as(a, within).within(SHIFT), self.value_as(b, within).within(SHIFT));
                match op {
                    Comparison::Lt => Text::new(format!("{a} < {b}"), COMPARE),
                    Comparison::Le => Text::new(format!("{a} <= {b}"), COMPARE),
                    Comparison::Eq => Text::new(format!("{a} == {b}"), EQUAL),
                    Comparison::Ne => Text::new(format!("{a} != {b}"), EQUAL),
                }
            }
            Value::Choose(cond, a, b) => {
                let dtype = self.kernel.type_of(a);
                let cond = self.value(cond).within(TERNARY + 1);
                let (a, b) = (self.value_as(a, dtype), self.value_as(b, dtype));
                Text::new(format!("{cond} ? {} : {}", a.within(TERNARY + 1), b.within(TERNARY)), TERNARY)
            }
            Value::FromIndex(dtype, index) => self.index_as(*dtype, index),
            Value::Shuffle { value, lane_mask, lanes } => self.shuffle(value, *lane_mask, *lanes),
        }
    }

    fn binary(&mut self, op: Arith, dtype: DType, a: &Value, b: &Value) -> Text {
        if dtype == DType::F16 && matches!(op, Arith::Add | Arith::Sub | Arith::Mul) {
            let name = self.helper(match op {
                Arith::Add => Helper::HalfAdd,
                Arith::Sub => Helper::HalfSub,
                _ => Helper::HalfMul,
            });
            let (a, b) = (self.value_as(a, dtype), self.value_as(b, dtype));
            return Text::atom(format!("{name}({}, {})", a.text, b.text));
        }
        // One operation on halves in f32, then rounded: the same as rounding once, f32 being more than twice as precise.
        let within = computed_in(dtype);
        let (a, b) = (self.value_as(a, within), self.value_as(b, within));
        let infix = |operator: &str, p: u8| Text::new(format!("{} {operator} {}", a.within(p), b.within(p + 1)), p);
        let call = |name: &str| {
            let suffix = if within == DType::F64 { "" } else { "f" };
            Text::atom(format!("{name}{suffix}({}, {})", a.text, b.text))
        };
        let text = match op {
            Arith::Add => infix("+", ADD),
            Arith::Sub => infix("-", ADD),
            Arith::Mul => infix("*", MUL),
            Arith::Min => call("fmin"),
            Arith::Max => call("fmax"),
            Arith::Pow => call("pow"),
            Arith::Atan2 => call("atan2"),
            Arith::Fmod => call("fmod"),
            Arith::Copysign => call("copysign"),
            Arith::Hypot => call("hypot"),
            // The others are those of integers.
            _ => infix("/", MUL),
        };
        self.convert(text, within, dtype)
    }

    fn shuffle(&mut self, value: &Value, lane_mask: u32, lanes: u32) -> Text {
        let dtype = self.kernel.type_of(value);
        let text = self.value(value).text;
        let members = match lanes {
            32 => "0xffffffffu".to_string(),
            // The lanes of this thread's group.
            lanes => {
                let thread = self.thread_number();
                let first = bits_below(&thread, 32 - lanes);
                format!("{:#x}u << {}", (1_u64 << lanes) - 1, first)
            }
        };
        let call = Text::atom(format!("__shfl_xor_sync({members}, {text}, {lane_mask})"));
        // Narrow types go as int, and come back as they were.
        match c_type(dtype) {
            narrow @ ("unsigned char" | "signed char" | "short" | "unsigned short") => call.cast(narrow),
            _ => call,
        }
    }

    fn index_as(&mut self, dtype: DType, index: &Index) -> Text {
        let integer = self.integer(index);
        let from = if integer.wide { DType::I64 } else { DType::I32 };
        self.convert(integer.text, from, dtype)
    }

    pub(super) fn convert(&mut self, text: Text, from: DType, to: DType) -> Text {
        let float = matches!(from, DType::F32 | DType::TF32);
        let helper = match (from, to) {
            (from, to) if from == to => return text,
            (DType::F32, DType::TF32) => Helper::FloatToTf32,
            (DType::F16, _) => Helper::HalfToFloat,
            (DType::BF16, _) => Helper::Bf16ToFloat,
            (DType::F8E4M3, _) => Helper::Fp8ToFloat(true),
            (DType::F8E5M2, _) => Helper::Fp8ToFloat(false),
            (DType::F64, DType::F8E4M3) => Helper::DoubleToFp8(true),
            (DType::F64, DType::F8E5M2) => Helper::DoubleToFp8(false),
            (_, DType::F8E4M3) if float => Helper::FloatToFp8(true),
            (_, DType::F8E5M2) if float => Helper::FloatToFp8(false),
            (DType::F64, DType::F16) => Helper::DoubleToHalf,
            (DType::F64, DType::BF16) => Helper::DoubleToBf16,
            (_, DType::F16) if float => Helper::FloatToHalf,
            (_, DType::BF16) if float => Helper::FloatToBf16,
            (_, DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 | DType::TF32) => {
                let text = self.convert(text, from, DType::F32);
                return self.convert(text, DType::F32, to);
            }
            (_, DType::Bool) => return Text::new(format!("{} != 0", text.within(COMPARE)), EQUAL),
            // What C leaves undefined is the nearest end of the range: here one instruction has it.
            (_, DType::I32) if float => return Text::atom(format!("__float2int_rz({})", text.text)),
            (_, DType::U32) if float => return Text::atom(format!("__float2uint_rz({})", text.text)),
            (DType::F64, to) if !is_float(to) => Helper::FloatToInt(true, to),
            (_, to) if float && !is_float(to) => Helper::FloatToInt(false, to),
            (from, to) if c_type(from) == c_type(to) => return text,
            (_, to) => return text.cast(c_type(to)),
        };
        let text = Text::atom(format!("{}({})", self.helper(helper), text.text));
        if is_half(from) {
            self.convert(text, DType::F32, to)
        } else {
            text
        }
    }
}

/// A function of one argument in f32 or f64.
fn unary(name: &str, dtype: DType, a: &Text) -> Text {
    let suffix = if dtype == DType::F64 { "" } else { "f" };
    match name {
        "abs" | "fabs" => Text::atom(format!("fabs{suffix}({})", a.text)),
        "sigmoid" => {
            let one = float_constant(1.0, dtype).text;
            Text::new(format!("{one} / ({one} + exp{suffix}(-{}))", a.within(UNARY + 1)), MUL)
        }
        other => Text::atom(format!("{other}{suffix}({})", a.text)),
    }
}

/// The bits of a number that a mask names.
fn bits_below(number: &Text, mask: u32) -> String {
    format!("({} & {mask})", number.within(UNARY))
}

/// A constant of a floating type; a half type's are written as their bits.
pub(super) fn float_constant(value: f64, dtype: DType) -> Text {
    let signed = |text: String| if text.starts_with('-') { Text::new(text, UNARY) } else { Text::atom(text) };
    let value = semantics::round(value, dtype);
    match dtype {
        DType::F16 => Text::atom(bits(half::f16::from_f64(value).to_bits())),
        DType::BF16 => Text::atom(bits(half::bf16::from_f64(value).to_bits())),
        DType::F8E4M3 => Text::atom(bits(fp8::E4M3.bits(value).into())),
        DType::F8E5M2 => Text::atom(bits(fp8::E5M2.bits(value).into())),
        DType::F64 if value.is_finite() => signed(format!("{value:?}")),
        DType::F64 => Text::atom(format!("__longlong_as_double({:#018x}LL)", value.to_bits())),
        _ => {
            let value = value as f32;
            if value.is_finite() {
                signed(format!("{value:?}f"))
            } else {
                Text::atom(format!("__uint_as_float({:#010x}u)", value.to_bits()))
            }
        }
    }
}

fn bits(bits: u16) -> String {
    if bits == 0 {
        "0".into()
    } else {
        format!("{bits:#06x}")
    }
}

pub(super) fn integer_constant(value: i64, dtype: DType) -> Text {
    let suffix = match dtype {
        DType::U32 => "u",
        DType::U64 | DType::Handle => return Text::atom(format!("{}ull", value as u64)),
        DType::I64 => "ll",
        _ if i32::try_from(value).is_err() => "ll",
        _ => "",
    };
    // The literals themselves would not fit before their sign is applied.
    match (value, suffix) {
        (i64::MIN, _) => Text::new("-9223372036854775807ll - 1", ADD),
        (v, "") if v == i64::from(i32::MIN) => Text::new("-2147483647 - 1", ADD),
        (v, _) if dtype == DType::Bool => Text::atom(if v == 0 { "0" } else { "1" }),
        (v, _) if v < 0 => Text::new(format!("{v}{suffix}"), UNARY),
        (v, _) => Text::atom(format!("{v}{suffix}")),
    }
}
