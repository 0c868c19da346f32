//! Expressions, with the fewest parentheses that Python needs.
use super::{quoted, Printer};
use crate::fields::{self, Field};
use crate::{BinOp, DType, Expr, Range, Region};

/// Binding strengths in Python, weakest first.
const OR: u8 = 1;
const AND: u8 = 2;
const NOT: u8 = 3;
const COMPARE: u8 = 4;
const BIT_OR: u8 = 5;
const BIT_XOR: u8 = 6;
const BIT_AND: u8 = 7;
const SHIFT: u8 = 8;
const SUM: u8 = 9;
const PRODUCT: u8 = 10;
const ATOM: u8 = 12;

impl Printer<'_> {
    pub(super) fn expr(&self, e: &Expr) -> String {
        self.at(e, 0)
    }

    /// An expression where a strength of at least `least` is needed.
    fn at(&self, e: &Expr, least: u8) -> String {
        let (text, strength) = self.text(e);
        if strength < least {
            format!("({text})")
        } else {
            text
        }
    }

    fn text(&self, e: &Expr) -> (String, u8) {
        let text = match e {
            Expr::Int(v, DType::Bool) => format!("T.bool({})", if *v != 0 { "True" } else { "False" }),
            // A negative number is a sum of its own to Python: `a - -1` reads badly, `-1 ** 2` wrongly.
            Expr::Int(v, DType::I32) => return (v.to_string(), if *v < 0 { SUM } else { ATOM }),
            Expr::Int(v, t) => format!("T.{}({v})", t.name()),
            Expr::Float(bits, t) => self.float(f64::from_bits(*bits), *t),
            Expr::Str(s) => quoted(s),
            Expr::Var(v) => self.names.of(v),
            Expr::Binary(op, a, b) => return self.binary(*op, a, b),
            Expr::Not(a) => return (format!("not {}", self.at(a, NOT)), NOT),
            Expr::Cast(t, a) => format!("T.Cast(\"{}\", {})", t.name(), self.expr(a)),
            Expr::Select { lazy, cond, then, otherwise } => format!(
                "T.{}({}, {}, {})",
                if *lazy { "if_then_else" } else { "Select" },
                self.expr(cond),
                self.expr(then),
                self.expr(otherwise)
            ),
            Expr::Load(b, indices) => {
                let name = self.names.of_buffer(*b, &self.program.buffer(*b).name);
                format!("{name}[{}]", self.indices(indices))
            }
            Expr::Call(name, args, dtype) => {
                if let Some((buffer, field)) = fields::of(e) {
                    let name = self.names.of_buffer(buffer, &self.program.buffer(buffer).name);
                    let text = match field {
                        Field::Data => format!("{name}.data"),
                        Field::Offset => format!("{name}.elem_offset"),
                        Field::Stride(axis) => format!("{name}.strides[{axis}]"),
                    };
                    return (text, ATOM);
                }
                // The type of what only a name tells is the first argument in the text.
                let external = matches!(name.as_ref(), "call_pure_extern" | "call_extern" | "reinterpret");
                let first = external.then(|| quoted(dtype.name()));
                let args: Vec<String> = first.into_iter().chain(args.iter().map(|a| self.expr(a))).collect();
                format!("T.{name}({})", args.join(", "))
            }
        };
        (text, ATOM)
    }

    pub(super) fn indices(&self, indices: &[Expr]) -> String {
        if indices.is_empty() {
            return "()".into();
        }
        indices.iter().map(|i| self.expr(i)).collect::<Vec<_>>().join(", ")
    }

    fn float(&self, v: f64, t: DType) -> String {
        let text = match format!("{v:?}").as_str() {
            "inf" => "\"inf\"".to_string(),
            "-inf" => "\"-inf\"".to_string(),
            "NaN" => "\"nan\"".to_string(),
            other => other.to_string(),
        };
        format!("T.{}({text})", t.name())
    }

    fn binary(&self, op: BinOp, a: &Expr, b: &Expr) -> (String, u8) {
        let float = crate::fold::dtype(a, &self.program.buffers).is_float();
        let (symbol, strength) = match op {
            BinOp::Add => ("+", SUM),
            BinOp::Sub => ("-", SUM),
            BinOp::Mul => ("*", PRODUCT),
            BinOp::Div if float => ("/", PRODUCT),
            BinOp::FloorDiv => ("//", PRODUCT),
            BinOp::FloorMod => ("%", PRODUCT),
            BinOp::Eq => ("==", COMPARE),
            BinOp::Ne => ("!=", COMPARE),
            BinOp::Lt => ("<", COMPARE),
            BinOp::Le => ("<=", COMPARE),
            BinOp::Gt => (">", COMPARE),
            BinOp::Ge => (">=", COMPARE),
            BinOp::And => ("and", AND),
            BinOp::Or => ("or", OR),
            BinOp::BitAnd => ("&", BIT_AND),
            BinOp::BitOr => ("|", BIT_OR),
            BinOp::BitXor => ("^", BIT_XOR),
            BinOp::Shl => ("<<", SHIFT),
            BinOp::Shr => (">>", SHIFT),
            BinOp::Min | BinOp::Max | BinOp::Div | BinOp::TruncDiv | BinOp::TruncMod => {
                let name = match op {
                    BinOp::Min => "min",
                    BinOp::Max => "max",
                    BinOp::TruncMod => "truncmod",
                    _ => "Div",
                };
                return (format!("T.{name}({}, {})", self.expr(a), self.expr(b)), ATOM);
            }
        };
        // What its reader would fold (`0 * 2`) is written as the node that it is.
        let node = match op {
            BinOp::Add => Some("Add"),
            BinOp::Sub => Some("Sub"),
            BinOp::Mul => Some("Mul"),
            BinOp::FloorDiv => Some("FloorDiv"),
            BinOp::FloorMod => Some("FloorMod"),
            _ => None,
        };
        let kept = |e: Expr| matches!(&e, Expr::Binary(o, x, y) if *o == op && **x == *a && **y == *b);
        if let Some(name) = node.filter(|_| !crate::fold::binary(op, a.clone(), b.clone()).is_some_and(kept)) {
            return (format!("T.{name}({}, {})", self.expr(a), self.expr(b)), ATOM);
        }
        // Comparisons chain in Python, so neither side may be one; other operators group to the left.
        let left = if strength == COMPARE { strength + 1 } else { strength };
        (format!("{} {symbol} {}", self.at(a, left), self.at(b, strength + 1)), strength)
    }

    /// `A[i, 0:4]`.
    pub(super) fn region(&self, r: &Region) -> String {
        let name = self.names.of_buffer(r.buffer, &self.program.buffer(r.buffer).name);
        if r.ranges.is_empty() {
            return format!("{name}[()]");
        }
        let ranges: Vec<String> = r.ranges.iter().map(|r| self.range(r)).collect();
        format!("{name}[{}]", ranges.join(", "))
    }

    fn range(&self, r: &Range) -> String {
        if matches!(r.extent, Expr::Int(1, _)) {
            return self.expr(&r.min);
        }
        let end = match (&r.min, &r.extent) {
            (Expr::Int(a, t), Expr::Int(b, _)) => a.checked_add(*b).map(|v| Expr::Int(v, *t)),
            (Expr::Int(0, _), extent) => Some(extent.clone()),
            // `i * 4 + 1` and 4 make `i * 4 + 5`, as TVM writes it.
            (Expr::Binary(BinOp::Add, x, c), Expr::Int(b, _)) => match c.as_ref() {
                Expr::Int(c, t) => c.checked_add(*b).map(|v| sum(x.as_ref().clone(), Expr::Int(v, *t))),
                _ => None,
            },
            _ => None,
        };
        let end = end.unwrap_or_else(|| sum(r.min.clone(), r.extent.clone()));
        format!("{}:{}", self.expr(&r.min), self.expr(&end))
    }
}

fn sum(a: Expr, b: Expr) -> Expr {
    crate::affine::add(a, b)
}
