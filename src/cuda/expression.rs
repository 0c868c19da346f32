//! Expressions with as few parentheses as C needs.
use super::{c_type, prelude, Printer};
use crate::kernel::{Arith, ArrayId, Cond, Dim, Index, Value};
use satune_ir::DType;

/// Precedences of C, as far as used; higher binds tighter.
const MUL: u8 = 13;
const ADD: u8 = 12;
const SHIFT: u8 = 11;
const AND: u8 = 8;
const XOR: u8 = 7;
const ATOM: u8 = 20;

impl Printer<'_> {
    /// An index; `wide` computes in 64 bits.
    pub(super) fn index(&self, index: &Index, wide: bool) -> String {
        self.with_precedence(index, wide).0
    }

    fn operand(&self, index: &Index, wide: bool, least: u8) -> String {
        let (text, precedence) = self.with_precedence(index, wide);
        if precedence < least {
            format!("({text})")
        } else {
            text
        }
    }

    fn with_precedence(&self, index: &Index, wide: bool) -> (String, u8) {
        let binary = |a: &Index, op: &str, b: &Index, p: u8| {
            (format!("{} {op} {}", self.operand(a, wide, p), self.operand(b, wide, p + 1)), p)
        };
        let power = |b: &Index| match b {
            Index::Const(k) if *k > 0 && k.count_ones() == 1 => Some(k.trailing_zeros()),
            _ => None,
        };
        let leaf = |text: String| if wide { (format!("(long long){text}"), MUL + 1) } else { (text, ATOM) };
        match index {
            Index::Const(v) if *v < 0 => (format!("({v})"), ATOM),
            Index::Const(v) if i32::try_from(*v).is_err() => (format!("{v}LL"), ATOM),
            Index::Const(v) => (v.to_string(), ATOM),
            Index::Var(v) => leaf(self.names.get(v).cloned().unwrap_or_else(|| format!("v{}", v.0))),
            Index::BlockIdx(d) => leaf(format!("(int)blockIdx.{}", dim(*d))),
            Index::ThreadIdx(d) => leaf(format!("(int)threadIdx.{}", dim(*d))),
            Index::Add(a, b) => binary(a, "+", b, ADD),
            Index::Sub(a, b) => binary(a, "-", b, ADD),
            Index::Mul(a, b) => binary(a, "*", b, MUL),
            // Operands are not negative, so a shift and a mask do.
            Index::Div(a, b) => match power(b) {
                Some(bits) => (format!("{} >> {bits}", self.operand(a, wide, ADD)), SHIFT),
                None => binary(a, "/", b, MUL),
            },
            Index::Mod(a, b) => match power(b) {
                Some(bits) => (format!("{} & {}", self.operand(a, wide, ADD), (1_i64 << bits) - 1), AND),
                None => binary(a, "%", b, MUL),
            },
            Index::Min(a, b) => (format!("min({}, {})", self.index(a, wide), self.index(b, wide)), ATOM),
            Index::Max(a, b) => (format!("max({}, {})", self.index(a, wide), self.index(b, wide)), ATOM),
            Index::Xor(a, b) => (format!("{} ^ {}", self.operand(a, wide, ADD), self.operand(b, wide, ADD)), XOR),
            Index::And(a, b) => (format!("{} & {}", self.operand(a, wide, ADD), self.operand(b, wide, ADD)), AND),
            Index::Shl(a, b) => binary(a, "<<", b, SHIFT),
            Index::Shr(a, b) => binary(a, ">>", b, SHIFT),
        }
    }

    /// `array[index]`.
    pub(super) fn element(&self, array: ArrayId, index: &Index) -> String {
        let a = self.kernel.array(array);
        let wide = a.len > i32::MAX as u64;
        format!("{}[{}]", a.name, self.index(index, wide))
    }

    /// `array + index`, as a pointer.
    pub(super) fn pointer(&self, array: ArrayId, index: &Index) -> String {
        let a = self.kernel.array(array);
        let wide = a.len > i32::MAX as u64;
        match index {
            Index::Const(0) => a.name.clone(),
            index => format!("{} + {}", a.name, self.operand(index, wide, ADD)),
        }
    }

    pub(super) fn condition(&self, cond: &Cond) -> String {
        let compare = |a: &Index, op: &str, b: &Index| {
            format!("{} {op} {}", self.operand(a, false, SHIFT), self.operand(b, false, SHIFT))
        };
        match cond {
            Cond::True => "true".into(),
            Cond::Lt(a, b) => compare(a, "<", b),
            Cond::Le(a, b) => compare(a, "<=", b),
            Cond::Eq(a, b) => compare(a, "==", b),
            Cond::Ne(a, b) => compare(a, "!=", b),
            Cond::And(list) => list.iter().map(|c| self.inner(c)).collect::<Vec<_>>().join(" && "),
            Cond::Or(list) => list.iter().map(|c| self.inner(c)).collect::<Vec<_>>().join(" || "),
            Cond::Not(c) => format!("!({})", self.condition(c)),
        }
    }

    fn inner(&self, cond: &Cond) -> String {
        let text = self.condition(cond);
        match cond {
            Cond::And(_) | Cond::Or(_) => format!("({text})"),
            _ => text,
        }
    }

    pub(super) fn value(&mut self, value: &Value) -> String {
        match value {
            Value::Float(v, dtype) => self.constant(*v, *dtype),
            Value::Int(v, dtype) => format!("({}){v}", c_type(*dtype)),
            Value::Load(array, index) => self.element(*array, index),
            Value::Binary(op, dtype, a, b) => {
                let (a, b) = (self.value(a), self.value(b));
                let half = matches!(dtype, DType::F16 | DType::BF16);
                let (a, b) = if half { (self.widened(&a, *dtype), self.widened(&b, *dtype)) } else { (a, b) };
                let text = match op {
                    Arith::Add => format!("({a} + {b})"),
                    Arith::Sub => format!("({a} - {b})"),
                    Arith::Mul => format!("({a} * {b})"),
                    Arith::Div => format!("({a} / {b})"),
                    Arith::Min => format!("min({a}, {b})"),
                    Arith::Max => format!("max({a}, {b})"),
                };
                self.narrowed(text, *dtype)
            }
            Value::Fma(dtype, a, b, c) => {
                let parts = [self.value(a), self.value(b), self.value(c)];
                match dtype {
                    DType::F32 | DType::TF32 => format!("fmaf({})", parts.join(", ")),
                    DType::F64 => format!("fma({})", parts.join(", ")),
                    DType::F16 | DType::BF16 => {
                        let wide: Vec<String> = parts.iter().map(|p| self.widened(p, *dtype)).collect();
                        self.narrowed(format!("fmaf({})", wide.join(", ")), *dtype)
                    }
                    _ => format!("{} * {} + {}", parts[0], parts[1], parts[2]),
                }
            }
            Value::Unary(name, dtype, a) => {
                let a = self.value(a);
                let suffix = if *dtype == DType::F64 { "" } else { "f" };
                match name.as_str() {
                    "sigmoid" => format!("(1 / (1 + exp{suffix}(-({a}))))"),
                    "abs" => format!("fabs{suffix}({a})"),
                    other => format!("{other}{suffix}({a})"),
                }
            }
            Value::Cast(dtype, a) => {
                let from = self.type_of(a);
                let a = self.value(a);
                let wide = self.widened(&a, from);
                match dtype {
                    DType::F16 | DType::BF16 => self.narrowed(wide, *dtype),
                    _ if *dtype == from => wide,
                    _ if matches!(from, DType::F16 | DType::BF16) && *dtype == DType::F32 => wide,
                    _ => format!("({})({wide})", c_type(*dtype)),
                }
            }
            Value::Select(cond, a, b) => {
                let (a, b) = (self.value(a), self.value(b));
                format!("({} ? {a} : {b})", self.condition(cond))
            }
            Value::FromIndex(dtype, index) => format!("({})({})", c_type(*dtype), self.index(index, false)),
        }
    }

    fn type_of(&self, value: &Value) -> DType {
        match value {
            Value::Load(array, _) => self.kernel.array(*array).dtype,
            Value::Float(_, d) | Value::Int(_, d) | Value::Binary(_, d, ..) | Value::Fma(d, ..) => *d,
            Value::Unary(_, d, _) | Value::Cast(d, _) | Value::FromIndex(d, _) => *d,
            Value::Select(_, a, _) => self.type_of(a),
        }
    }

    fn widened(&mut self, text: &str, from: DType) -> String {
        match from {
            DType::F16 => {
                self.helpers.insert(prelude::Helper::HalfToFloat);
                format!("half_to_float({text})")
            }
            DType::BF16 => {
                self.helpers.insert(prelude::Helper::Bf16ToFloat);
                format!("bf16_to_float({text})")
            }
            _ => text.to_string(),
        }
    }

    fn narrowed(&mut self, text: String, to: DType) -> String {
        match to {
            DType::F16 => {
                self.helpers.insert(prelude::Helper::FloatToHalf);
                format!("float_to_half({text})")
            }
            DType::BF16 => {
                self.helpers.insert(prelude::Helper::FloatToBf16);
                format!("float_to_bf16({text})")
            }
            _ => text,
        }
    }

    fn constant(&mut self, value: f64, dtype: DType) -> String {
        match dtype {
            DType::F16 | DType::BF16 => {
                let text = format!("{value:?}f");
                self.narrowed(text, dtype)
            }
            DType::F64 => format!("{value:?}"),
            _ => format!("{value:?}f"),
        }
    }
}

fn dim(d: Dim) -> char {
    match d {
        Dim::X => 'x',
        Dim::Y => 'y',
        Dim::Z => 'z',
    }
}
