//! Expressions as text, for messages: TVMScript without the `T.`, names as they are.
use satune_ir::{BinOp, Expr};

/// An expression as text.
pub fn expr(e: &Expr) -> String {
    print(e, 0)
}

fn symbol(op: BinOp) -> (&'static str, u8) {
    match op {
        BinOp::Or => ("or", 1),
        BinOp::And => ("and", 2),
        BinOp::Eq => ("==", 3),
        BinOp::Ne => ("!=", 3),
        BinOp::Lt => ("<", 3),
        BinOp::Le => ("<=", 3),
        BinOp::Gt => (">", 3),
        BinOp::Ge => (">=", 3),
        BinOp::BitOr => ("|", 4),
        BinOp::BitXor => ("^", 5),
        BinOp::BitAnd => ("&", 6),
        BinOp::Shl => ("<<", 7),
        BinOp::Shr => (">>", 7),
        BinOp::Add => ("+", 8),
        BinOp::Sub => ("-", 8),
        BinOp::Mul => ("*", 9),
        BinOp::Div | BinOp::TruncDiv => ("/", 9),
        BinOp::FloorDiv => ("//", 9),
        BinOp::FloorMod | BinOp::TruncMod => ("%", 9),
        BinOp::Min => ("min", 0),
        BinOp::Max => ("max", 0),
    }
}

fn print(e: &Expr, around: u8) -> String {
    match e {
        Expr::Int(v, satune_ir::DType::Bool) => if *v == 0 { "False" } else { "True" }.into(),
        Expr::Int(v, _) => v.to_string(),
        Expr::Float(bits, _) => f64::from_bits(*bits).to_string(),
        Expr::Str(text) => format!("{text:?}"),
        Expr::Var(v) => v.name.to_string(),
        Expr::Binary(op @ (BinOp::Min | BinOp::Max), a, b) => format!("{}({}, {})", symbol(*op).0, expr(a), expr(b)),
        Expr::Binary(op, a, b) => {
            let (text, level) = symbol(*op);
            let out = format!("{} {text} {}", print(a, level), print(b, level + 1));
            if level < around {
                format!("({out})")
            } else {
                out
            }
        }
        Expr::Not(a) => format!("not {}", print(a, 10)),
        Expr::Cast(dtype, a) => format!("Cast({:?}, {})", dtype.name(), expr(a)),
        Expr::Select { cond, then, otherwise, .. } => {
            format!("if_then_else({}, {}, {})", expr(cond), expr(then), expr(otherwise))
        }
        Expr::Load(_, list) => format!("buffer[{}]", list.iter().map(expr).collect::<Vec<_>>().join(", ")),
        Expr::Call(name, list, _) => format!("{name}({})", list.iter().map(expr).collect::<Vec<_>>().join(", ")),
    }
}
