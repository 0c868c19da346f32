//! Expressions.
use super::super::error::{Fail, Res};
use super::reader::{Name, Reader};
use super::syntax::{call, elements, Args};
use crate::fold::{self, boolean, float, int32};
use crate::semantics::{self, Function};
use crate::{fp8, BinOp, BufferId, DType, Expr};
use ruff_python_ast as ast;
use std::sync::Arc;

/// Deepest expression: later passes recurse over it.
const DEEPEST: usize = 400;

impl Reader {
    pub(super) fn expr(&mut self, e: &ast::Expr) -> Res<Expr> {
        let value = self.read(e)?;
        if depth_exceeds(&value, DEEPEST) {
            return Err(Fail::on(e, format!("the expression is more than {DEEPEST} levels deep"))
                .help("split it into several statements"));
        }
        Ok(value)
    }

    fn read(&mut self, e: &ast::Expr) -> Res<Expr> {
        match e {
            ast::Expr::NumberLiteral(n) => match &n.value {
                ast::Number::Int(i) => {
                    let value = i.as_u64().and_then(|v| i64::try_from(v).ok());
                    let value = value.ok_or_else(|| Fail::on(e, "the integer does not fit into 64 bits"))?;
                    let dtype = if i32::try_from(value).is_ok() { DType::I32 } else { DType::I64 };
                    Ok(Expr::Int(value, dtype))
                }
                ast::Number::Float(v) => Ok(float(*v, DType::F32)),
                ast::Number::Complex { .. } => Err(Fail::on(e, "complex numbers are not part of a program")),
            },
            ast::Expr::BooleanLiteral(b) => Ok(boolean(b.value)),
            ast::Expr::StringLiteral(s) => Ok(Expr::Str(s.value.to_str().into())),
            ast::Expr::Name(n) => match self.lookup(n.id.as_str()) {
                Some(Name::Var(v)) => Ok(Expr::Var(v.clone())),
                Some(Name::Value(v)) => Ok(v.clone()),
                Some(Name::Thread(_) | Name::Memory(_)) => Err(Fail::on(e, format!("{} is no value", n.id))
                    .help("T.launch_thread opens a thread axis, T.decl_buffer gives a buffer")),
                Some(Name::Buffer(b)) if self.buffers[b.0 as usize].shape.is_empty() => Ok(Expr::Load(*b, Vec::new())),
                Some(Name::Buffer(_)) => {
                    Err(Fail::on(e, format!("{} is a buffer, not a value", n.id)).help("index it: A[i, j]"))
                }
                None => Err(self.unknown(e, n.id.as_str())),
            },
            ast::Expr::Subscript(s) if self.field_of(&s.value, "strides").is_some() => self.stride(e, s),
            ast::Expr::Subscript(s) => {
                let buffer = self.buffer_named(&s.value)?;
                let indices = elements(&s.slice).into_iter().map(|i| self.index(i)).collect::<Res<Vec<_>>>()?;
                self.check_rank(e, buffer, indices.len())?;
                Ok(Expr::Load(buffer, indices))
            }
            ast::Expr::BinOp(b) => {
                let (x, y) = (self.read(&b.left)?, self.read(&b.right)?);
                self.operator(e, b.op, x, y)
            }
            // Its size alone does not fit.
            ast::Expr::UnaryOp(u) if u.op == ast::UnaryOp::USub && is_integer(&u.operand, 1 << 63) => {
                Ok(Expr::Int(i64::MIN, DType::I64))
            }
            ast::Expr::UnaryOp(u) => {
                let x = self.read(&u.operand)?;
                self.unary(e, u.op, x)
            }
            ast::Expr::BoolOp(b) => {
                let op = if b.op == ast::BoolOp::And { BinOp::And } else { BinOp::Or };
                let mut out: Option<Expr> = None;
                for v in &b.values {
                    let v = self.condition(v)?;
                    out = Some(match out {
                        None => v,
                        Some(x) => self.binary(e, op, x, v)?,
                    });
                }
                out.ok_or_else(|| Fail::on(e, "an operand is missing"))
            }
            ast::Expr::Compare(c) => self.compare(e, c),
            ast::Expr::If(i) => {
                let cond = self.condition(&i.test)?;
                let (then, otherwise) = (self.read(&i.body)?, self.read(&i.orelse)?);
                self.select(e, true, cond, then, otherwise)
            }
            ast::Expr::Call(_) => self.call(e),
            ast::Expr::Attribute(_) if self.field_of(e, "data").is_some() => self.field(e, "data"),
            ast::Expr::Attribute(_) if self.field_of(e, "elem_offset").is_some() => self.field(e, "elem_offset"),
            ast::Expr::Attribute(_) => match super::syntax::path(e).as_deref() {
                Some("handle") | None => Err(Fail::on(e, "this is not a value")),
                Some(name) => Err(Fail::on(e, format!("T.{name} is not a value"))),
            },
            other => Err(Fail::on(other, "this expression is not part of a program")),
        }
    }

    fn unknown(&self, e: &ast::Expr, name: &str) -> Box<Fail> {
        let fail = Fail::on(e, format!("{name} is not known here"));
        let mut known: Vec<&str> = self.names.iter().flat_map(|s| s.keys().map(String::as_str)).collect();
        known.sort_unstable();
        known.dedup();
        if known.is_empty() || known.len() > 24 {
            fail.help("names come from parameters, loops, iterators and allocations around")
        } else {
            fail.help(format!("known here: {}", known.join(", ")))
        }
    }

    pub(super) fn buffer_named(&self, e: &ast::Expr) -> Res<BufferId> {
        let ast::Expr::Name(n) = e else { return Err(Fail::on(e, "a buffer's name is expected here")) };
        match self.lookup(n.id.as_str()) {
            Some(Name::Buffer(b)) => Ok(*b),
            Some(_) => Err(Fail::on(e, format!("{} is no buffer", n.id))),
            None => Err(self.unknown(e, n.id.as_str())),
        }
    }

    pub(super) fn operator(&self, at: &impl ruff_text_size::Ranged, op: ast::Operator, x: Expr, y: Expr) -> Res<Expr> {
        let floats = self.dtype_of(&x).is_float() || self.dtype_of(&y).is_float();
        let op = match op {
            ast::Operator::Add => BinOp::Add,
            ast::Operator::Sub => BinOp::Sub,
            ast::Operator::Mult => BinOp::Mul,
            ast::Operator::Div if floats => BinOp::Div,
            ast::Operator::Div => {
                return Err(Fail::on(at, "/ of integers is not defined").help("use // (or T.truncdiv)"))
            }
            ast::Operator::FloorDiv => BinOp::FloorDiv,
            ast::Operator::Mod => BinOp::FloorMod,
            ast::Operator::LShift => BinOp::Shl,
            ast::Operator::RShift => BinOp::Shr,
            ast::Operator::BitOr => BinOp::BitOr,
            ast::Operator::BitXor => BinOp::BitXor,
            ast::Operator::BitAnd => BinOp::BitAnd,
            ast::Operator::Pow => return self.intrinsic(at, "pow", vec![x, y]),
            ast::Operator::MatMult => {
                return Err(Fail::on(at, "@ is not part of a program").help("write the loops and a block"))
            }
        };
        self.binary(at, op, x, y)
    }

    /// `x op y` in their common type.
    fn binary(&self, at: &impl ruff_text_size::Ranged, op: BinOp, x: Expr, y: Expr) -> Res<Expr> {
        let (t, u) = (self.dtype_of(&x), self.dtype_of(&y));
        if matches!(op, BinOp::BitAnd | BinOp::BitOr | BinOp::BitXor | BinOp::Shl | BinOp::Shr)
            && (t.is_float() || u.is_float())
        {
            return Err(Fail::on(at, "bits of floating values cannot be combined"));
        }
        let divides = matches!(op, BinOp::FloorDiv | BinOp::FloorMod | BinOp::TruncDiv | BinOp::TruncMod);
        if divides && (t.is_float() || u.is_float()) {
            return Err(Fail::on(at, "whole quotients and remainders are those of integers")
                .help("of floating values: T.floor(a / b), T.trunc(a / b), T.fmod(a, b)"));
        }
        let keeps = matches!(op, BinOp::Min | BinOp::Max | BinOp::BitAnd | BinOp::BitOr | BinOp::BitXor);
        if t == DType::Bool && u == DType::Bool && !keeps && !fold::is_condition(op) {
            return Err(Fail::on(at, "arithmetic on truth values").help("T.Cast(\"int32\", x)"));
        }
        // A constant takes the type of what it stands beside: `A[i] * 2`, `vi * 4` with a 64-bit vi.
        let common = match (&x, &y) {
            (Expr::Int(..), Expr::Int(..)) => fold::common_type(t, u),
            (_, Expr::Int(v, _)) if fits(*v, t) && u != DType::Bool => Some(t),
            (Expr::Int(v, _), _) if fits(*v, u) && t != DType::Bool => Some(u),
            (_, Expr::Float(..)) if t.is_float() => Some(t),
            (Expr::Float(..), _) if u.is_float() => Some(u),
            _ => fold::common_type(t, u),
        };
        let common = common.ok_or_else(|| {
            Fail::on(at, format!("{} and {} have no common type", t.name(), u.name())).help("T.cast(x, \"float32\")")
        })?;
        let (x, y) = (self.cast(at, x, common)?, self.cast(at, y, common)?);
        fold::binary(op, x, y).ok_or_else(|| Fail::on(at, "the constant overflows, or is divided by zero"))
    }

    fn unary(&self, at: &ast::Expr, op: ast::UnaryOp, x: Expr) -> Res<Expr> {
        let t = self.dtype_of(&x);
        match (op, &x) {
            (ast::UnaryOp::UAdd, _) => Ok(x),
            (ast::UnaryOp::USub, Expr::Int(v, t)) => {
                let v = v.checked_neg().ok_or_else(|| Fail::on(at, "the constant overflows"))?;
                Ok(Expr::Int(v, *t))
            }
            (ast::UnaryOp::USub, Expr::Float(bits, t)) => Ok(float(-f64::from_bits(*bits), *t)),
            (ast::UnaryOp::USub, _) if semantics::is_unsigned(t) => {
                let zero = self.cast(at, int32(0), t)?;
                self.binary(at, BinOp::Sub, zero, x)
            }
            (ast::UnaryOp::USub, _) => {
                let minus = self.cast(at, int32(-1), t)?;
                self.binary(at, BinOp::Mul, x, minus)
            }
            (ast::UnaryOp::Not, _) if t == DType::Bool => Ok(fold::not(x)),
            (ast::UnaryOp::Not, _) => Err(Fail::on(at, "not of a number").help("compare: x == 0")),
            (ast::UnaryOp::Invert, _) => self.inverted(at, x),
        }
    }

    /// `~x`: all bits the other way round, of a truth value the other one.
    fn inverted(&self, at: &impl ruff_text_size::Ranged, x: Expr) -> Res<Expr> {
        match self.dtype_of(&x) {
            t if t.is_float() || t == DType::Handle => Err(Fail::on(at, format!("~ of a value of type {}", t.name()))),
            DType::Bool => Ok(fold::not(x)),
            t if semantics::is_unsigned(t) => self.binary(at, BinOp::BitXor, x, limit(t, true)),
            t => self.binary(at, BinOp::BitXor, x, Expr::Int(-1, t)),
        }
    }

    fn compare(&mut self, at: &ast::Expr, c: &ast::ExprCompare) -> Res<Expr> {
        let mut left = self.read(&c.left)?;
        let mut out: Option<Expr> = None;
        for (op, right) in c.ops.iter().zip(&c.comparators) {
            let right = self.read(right)?;
            let op = match op {
                ast::CmpOp::Eq => BinOp::Eq,
                ast::CmpOp::NotEq => BinOp::Ne,
                ast::CmpOp::Lt => BinOp::Lt,
                ast::CmpOp::LtE => BinOp::Le,
                ast::CmpOp::Gt => BinOp::Gt,
                ast::CmpOp::GtE => BinOp::Ge,
                _ => return Err(Fail::on(at, "is and in are not part of a program")),
            };
            let one = self.binary(at, op, left, right.clone())?;
            out = Some(match out {
                None => one,
                Some(x) => self.binary(at, BinOp::And, x, one)?,
            });
            left = right;
        }
        out.ok_or_else(|| Fail::on(at, "an operand is missing"))
    }

    fn select(&self, at: &ast::Expr, lazy: bool, cond: Expr, x: Expr, y: Expr) -> Res<Expr> {
        let (t, u) = (self.dtype_of(&x), self.dtype_of(&y));
        let common = fold::common_type(t, u)
            .ok_or_else(|| Fail::on(at, format!("{} and {} have no common type", t.name(), u.name())))?;
        let (x, y) = (self.cast(at, x, common)?, self.cast(at, y, common)?);
        Ok(Expr::Select { lazy, cond: Arc::new(cond), then: Arc::new(x), otherwise: Arc::new(y) })
    }

    fn call(&mut self, e: &ast::Expr) -> Res<Expr> {
        if let Some(pointer) = self.access_ptr(e)? {
            return Ok(pointer);
        }
        let Some((name, c)) = call(e) else {
            return self.python_call(e);
        };
        if let Some(t) = DType::of_name(&name) {
            return self.constant_of_type(e, c, t);
        }
        let two = |name: &str| {
            Some(match name {
                "min" => BinOp::Min,
                "max" => BinOp::Max,
                "floordiv" | "FloorDiv" => BinOp::FloorDiv,
                "floormod" | "FloorMod" => BinOp::FloorMod,
                "truncdiv" | "Div" => BinOp::TruncDiv,
                "truncmod" | "Mod" => BinOp::TruncMod,
                "bitwise_and" => BinOp::BitAnd,
                "bitwise_or" => BinOp::BitOr,
                "bitwise_xor" => BinOp::BitXor,
                "shift_left" => BinOp::Shl,
                "shift_right" => BinOp::Shr,
                "Add" => BinOp::Add,
                "Sub" => BinOp::Sub,
                "Mul" => BinOp::Mul,
                "And" => BinOp::And,
                "Or" => BinOp::Or,
                "EQ" => BinOp::Eq,
                "NE" => BinOp::Ne,
                "LT" => BinOp::Lt,
                "LE" => BinOp::Le,
                "GT" => BinOp::Gt,
                "GE" => BinOp::Ge,
                _ => return None,
            })
        };
        if let Some(mut op) = two(&name) {
            // TensorIR ignores a type that is named here.
            let args = Args::new(c, &["a", "b", "span", "dtype"])?;
            let (x, y) = (self.read(args.need("a")?)?, self.read(args.need("b")?)?);
            if name == "Div" && (self.dtype_of(&x).is_float() || self.dtype_of(&y).is_float()) {
                op = BinOp::Div;
            }
            // Names of nodes stand for the node, whatever its operands; operators and functions fold.
            let node = matches!(name.as_str(), "Add" | "Sub" | "Mul" | "FloorDiv" | "FloorMod");
            let t = self.dtype_of(&x);
            let whole = matches!(op, BinOp::FloorDiv | BinOp::FloorMod);
            if node && t == self.dtype_of(&y) && t != DType::Bool && !(whole && t.is_float()) {
                return Ok(Expr::Binary(op, Arc::new(x), Arc::new(y)));
            }
            return self.binary(e, op, x, y);
        }
        match name.as_str() {
            "comm_reducer" | "tvm_thread_allreduce" | "Reduce" => Err(super::threads::written_reduction(e)),
            "if_then_else" | "Select" => {
                let args = Args::new(c, &["cond", "t", "f", "dtype", "span"])?;
                let cond = self.condition(args.need("cond")?)?;
                let (x, y) = (self.read(args.need("t")?)?, self.read(args.need("f")?)?);
                self.select(e, name == "if_then_else", cond, x, y)
            }
            "Not" => {
                let x = self.condition(Args::new(c, &["a"])?.need("a")?)?;
                Ok(fold::not(x))
            }
            "bitwise_not" => {
                let x = self.read(Args::new(c, &["x", "span"])?.need("x")?)?;
                self.inverted(e, x)
            }
            "ceildiv" => {
                let args = Args::new(c, &["lhs", "rhs", "span"])?;
                let (x, y) = (self.read(args.need("lhs")?)?, self.read(args.need("rhs")?)?);
                let sum = self.binary(e, BinOp::Add, x, y.clone())?;
                let one = self.cast(e, int32(1), self.dtype_of(&sum))?;
                let sum = self.binary(e, BinOp::Sub, sum, one)?;
                self.binary(e, BinOp::FloorDiv, sum, y)
            }
            "q_multiply_shift" => {
                let args = Args::new(c, &["x", "y", "q", "s", "span", "dtype"])?;
                let (s, zero) = (self.whole(args.need("s")?)?, Expr::Int(0, DType::I64));
                let negative = self.binary(e, BinOp::Sub, zero.clone(), s.clone())?;
                let left = self.binary(e, BinOp::Max, s, zero.clone())?;
                let right = self.binary(e, BinOp::Max, negative, zero)?;
                self.fixed_point(e, &args, [left, right])
            }
            "q_multiply_shift_per_axis" => {
                const NAMES: [&str; 9] =
                    ["x", "y", "ls", "rs", "q", "is_lshift_required", "is_rshift_required", "span", "dtype"];
                let args = Args::new(c, &NAMES)?;
                let (left, right) = (self.whole(args.need("ls")?)?, self.whole(args.need("rs")?)?);
                let wanted = self.condition(args.need("is_lshift_required")?)?;
                let left = self.select(e, false, wanted, left, Expr::Int(0, DType::I64))?;
                self.fixed_point(e, &args, [left, right])
            }
            "reinterpret" => {
                let args = Args::new(c, &["dtype", "value", "span"])?;
                let (t, x) = (self.dtype(args.need("dtype")?)?, self.read(args.need("value")?)?);
                let from = self.dtype_of(&x);
                let whole = |t: DType| !matches!(t, DType::Bool | DType::Handle);
                if from.bytes() != t.bytes() || !whole(from) || !whole(t) {
                    let what = format!("the bits of {} are not those of {}", from.name(), t.name());
                    return Err(Fail::on(e, what).help("T.reinterpret needs two types of one width"));
                }
                Ok(if from == t { x } else { Expr::Call("reinterpret".into(), vec![x], t) })
            }
            "cast" => {
                let args = Args::new(c, &["value", "dtype", "span"])?;
                let (x, t) = (self.read(args.need("value")?)?, self.dtype(args.need("dtype")?)?);
                self.cast(e, x, t)
            }
            "Cast" => {
                let args = Args::new(c, &["dtype", "value", "span"])?;
                let (t, x) = (self.dtype(args.need("dtype")?)?, self.read(args.need("value")?)?);
                // Written out, a conversion stands even of a constant.
                if matches!(x, Expr::Int(..) | Expr::Float(..)) && self.dtype_of(&x) != t {
                    return Ok(Expr::Cast(t, Arc::new(x)));
                }
                self.cast(e, x, t)
            }
            "min_value" | "max_value" => {
                let t = self.dtype(Args::new(c, &["dtype"])?.need("dtype")?)?;
                Ok(limit(t, name == "max_value"))
            }
            "infinity" | "inf" => {
                let args = Args::new(c, &["dtype"])?;
                let t = args.get("dtype").map_or(Ok(DType::F32), |d| self.dtype(d))?;
                Ok(float(f64::INFINITY, t))
            }
            "call_pure_extern" | "call_extern" => {
                // The first argument is the type of the result.
                let Some((first, rest)) = c.arguments.args.split_first() else {
                    return Err(Fail::on(e, format!("T.{name} has no arguments")));
                };
                let dtype = self.dtype(first)?;
                let args = rest.iter().map(|a| self.read(a)).collect::<Res<Vec<_>>>()?;
                Ok(Expr::Call(name.as_str().into(), args, dtype))
            }
            _ => {
                let is_ignored =
                    |k: &ast::Keyword| k.arg.as_ref().is_some_and(|n| matches!(n.as_str(), "dtype" | "span"));
                if let Some(k) = c.arguments.keywords.iter().find(|k| !is_ignored(k)) {
                    return Err(Fail::on(k, format!("T.{name} takes no named arguments here")));
                }
                let args = c.arguments.args.iter().map(|a| self.read(a)).collect::<Res<Vec<_>>>()?;
                self.intrinsic(e, &name, args)
            }
        }
    }

    /// An integer in 64 bits.
    fn whole(&mut self, e: &ast::Expr) -> Res<Expr> {
        let x = self.read(e)?;
        let dtype = self.dtype_of(&x);
        if dtype.int_range().is_none() {
            return Err(Fail::on(e, format!("an integer is expected here, not {}", dtype.name())));
        }
        self.cast(e, x, DType::I64)
    }

    /// `(x << left) * y`, of which `y` has `q` bits behind its point, rounded to the nearest and shifted right by `right` more: in 64
    /// bits, as TensorIR defines `q_multiply_shift`.
    fn fixed_point(&mut self, e: &ast::Expr, args: &Args, [left, right]: [Expr; 2]) -> Res<Expr> {
        let [x, y, q] = [self.whole(args.need("x")?)?, self.whole(args.need("y")?)?, self.whole(args.need("q")?)?];
        let one = || Expr::Int(1, DType::I64);
        let shifted = self.binary(e, BinOp::Shl, x, left)?;
        let product = self.binary(e, BinOp::Mul, shifted, y)?;
        let total = self.binary(e, BinOp::Add, right, q)?;
        let below = self.binary(e, BinOp::Sub, total.clone(), one())?;
        let half = self.binary(e, BinOp::Shl, one(), below)?;
        let rounded = self.binary(e, BinOp::Add, product, half)?;
        let out = self.binary(e, BinOp::Shr, rounded, total)?;
        self.cast(e, out, DType::I32)
    }

    /// `min(a, b)`, `max(a, b)`, `float("inf")` of Python.
    fn python_call(&mut self, e: &ast::Expr) -> Res<Expr> {
        let ast::Expr::Call(c) = e else { return Err(Fail::on(e, "this is not a value")) };
        let ast::Expr::Name(n) = c.func.as_ref() else { return Err(Fail::on(e, "only functions of T are called")) };
        match (n.id.as_str(), &c.arguments.args[..]) {
            ("min" | "max", [a, b]) => {
                let (x, y) = (self.read(a)?, self.read(b)?);
                self.binary(e, if n.id.as_str() == "min" { BinOp::Min } else { BinOp::Max }, x, y)
            }
            ("float", [ast::Expr::StringLiteral(s)]) => self.float_text(e, s.value.to_str(), DType::F32),
            ("float", [x]) => {
                let x = self.read(x)?;
                self.cast(e, x, DType::F32)
            }
            ("int" | "bool", [x]) => {
                let x = self.read(x)?;
                self.cast(e, x, if n.id.as_str() == "int" { DType::I32 } else { DType::Bool })
            }
            (name, _) => {
                Err(Fail::on(e, format!("{name} is not known here"))
                    .help("functions are those of T: T.exp, T.max, ..."))
            }
        }
    }

    fn intrinsic(&self, at: &impl ruff_text_size::Ranged, name: &str, mut args: Vec<Expr>) -> Res<Expr> {
        let dtype = args.iter().map(|a| self.dtype_of(a)).find(|t| *t != DType::Handle).unwrap_or(DType::Handle);
        let count = match name {
            "tvm_access_ptr" => return Ok(Expr::Call(name.into(), args, DType::Handle)),
            "isnan" | "isinf" | "isfinite" | "popcount" | "clz" => {
                let [a] = &args[..] else {
                    return Err(Fail::on(at, format!("T.{name} takes 1 argument, not {}", args.len())));
                };
                let of_bits = matches!(name, "popcount" | "clz");
                return Ok(match (of_bits, dtype.is_float(), name) {
                    (true, true, _) => {
                        let what = format!("T.{name} needs an integer, not {}", dtype.name());
                        return Err(Fail::on(at, what).help("T.reinterpret(\"uint32\", x) for its bits"));
                    }
                    (true, false, "clz") => Expr::Call(name.into(), vec![a.clone()], DType::I32),
                    (true, false, _) => Expr::Call(name.into(), vec![a.clone()], dtype),
                    (false, true, _) => Expr::Call(name.into(), vec![a.clone()], DType::Bool),
                    (false, false, _) => boolean(name == "isfinite"),
                });
            }
            _ => match Function::named(name) {
                Some((_, count)) => count,
                // Anything else stands for itself: schedules move it, and whoever runs the program says if it is unknown.
                None => return Ok(Expr::Call(name.into(), args, dtype)),
            },
        };
        if args.len() != count {
            return Err(Fail::on(at, format!("T.{name} takes {count} arguments, not {}", args.len())));
        }
        if count == 1 && !matches!(name, "abs" | "fabs") && !dtype.is_float() {
            return Err(Fail::on(at, format!("T.{name} needs a floating value, not {}", dtype.name()))
                .help("T.cast(x, \"float32\")"));
        }
        for a in &mut args {
            *a = self.cast(at, a.clone(), dtype)?;
        }
        Ok(Expr::Call(name.into(), args, dtype))
    }

    /// `T.float32(0)`, `T.float32("inf")`, `T.int64(i)`.
    fn constant_of_type(&mut self, e: &ast::Expr, c: &ast::ExprCall, t: DType) -> Res<Expr> {
        let arg = Args::new(c, &["expr", "is_size_var"])?.need("expr")?;
        if let ast::Expr::StringLiteral(s) = arg {
            return self.float_text(e, s.value.to_str(), t);
        }
        // Beyond what an `i64` holds: its bits.
        if let (DType::U64, ast::Expr::NumberLiteral(n)) = (t, arg) {
            if let ast::Number::Int(i) = &n.value {
                if let Some(value) = i.as_u64().filter(|v| i64::try_from(*v).is_err()) {
                    return Ok(unsigned64(value));
                }
            }
        }
        let x = self.read(arg)?;
        self.cast(e, x, t)
    }

    fn float_text(&self, e: &ast::Expr, text: &str, t: DType) -> Res<Expr> {
        if !t.is_float() {
            return Err(Fail::on(e, format!("a {} is no text", t.name())));
        }
        let value = match text.trim() {
            "inf" | "+inf" | "infinity" => f64::INFINITY,
            "-inf" | "-infinity" => f64::NEG_INFINITY,
            "nan" => f64::NAN,
            other => other.parse().map_err(|_| Fail::on(e, format!("{other:?} is no number")))?,
        };
        Ok(float(value, t))
    }
}

/// Whether a text is this integer, written out.
fn is_integer(e: &ast::Expr, value: u64) -> bool {
    matches!(e, ast::Expr::NumberLiteral(n) if matches!(&n.value, ast::Number::Int(i) if i.as_u64() == Some(value)))
}

/// Whether an integer constant is exactly a value of a type.
fn fits(v: i64, t: DType) -> bool {
    match t.int_range() {
        Some((lo, hi)) => lo <= v && v <= hi && t != DType::Bool,
        None => t.is_float(),
    }
}

/// A constant of 64 unsigned bits, of which the upper half are no `i64`.
fn unsigned64(value: u64) -> Expr {
    let bits = Expr::Int(value as i64, DType::I64);
    Expr::Cast(DType::U64, Arc::new(bits))
}

/// Smallest or largest finite value of a type.
fn limit(t: DType, largest: bool) -> Expr {
    if t == DType::U64 && largest {
        return unsigned64(u64::MAX);
    }
    if let Some((lo, hi)) = t.int_range() {
        return Expr::Int(if largest { hi } else { lo }, t);
    }
    let value = match t {
        DType::F16 => 65504.0,
        DType::BF16 => f64::from(half::bf16::MAX.to_f32()),
        DType::F64 => f64::MAX,
        DType::F8E4M3 => fp8::E4M3.largest,
        DType::F8E5M2 => fp8::E5M2.largest,
        _ => f64::from(f32::MAX),
    };
    float(if largest { value } else { -value }, t)
}

fn depth_exceeds(e: &Expr, limit: usize) -> bool {
    if limit == 0 {
        return true;
    }
    match e {
        Expr::Int(..) | Expr::Float(..) | Expr::Str(_) | Expr::Var(_) => false,
        Expr::Binary(_, a, b) => depth_exceeds(a, limit - 1) || depth_exceeds(b, limit - 1),
        Expr::Not(a) | Expr::Cast(_, a) => depth_exceeds(a, limit - 1),
        Expr::Select { cond, then, otherwise, .. } => {
            [cond, then, otherwise].into_iter().any(|x| depth_exceeds(x, limit - 1))
        }
        Expr::Load(_, args) | Expr::Call(_, args, _) => args.iter().any(|a| depth_exceeds(a, limit - 1)),
    }
}
