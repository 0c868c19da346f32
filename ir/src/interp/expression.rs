//! Compilation of expressions.
use super::code::{Affine, Float, Int};
use super::compiler::{Compiler, Slot};
use super::fault::{Access, Fault};
use crate::semantics::{self, is_comparison, promote, round, wrap, Function};
use crate::{BinOp, DType, Expr};

/// A compiled expression and its type.
pub(super) enum Typed {
    Int(Int, DType),
    Float(Float, DType),
}

impl Typed {
    fn dtype(&self) -> DType {
        match self {
            Typed::Int(_, t) | Typed::Float(_, t) => *t,
        }
    }
}

impl Compiler<'_> {
    /// An integer expression, of whatever type it has; a float is brought to `i64`.
    pub fn int(&mut self, e: &Expr) -> Result<Int, Fault> {
        Ok(match self.typed(e)? {
            Typed::Int(e, ..) => e,
            Typed::Float(e, _) => Int::FromFloat(DType::I64, Box::new(e)),
        })
    }

    /// A condition.
    pub fn condition(&mut self, e: &Expr) -> Result<Int, Fault> {
        Ok(match self.typed(e)? {
            Typed::Int(e, ..) => e,
            Typed::Float(e, _) => Int::CompareFloats(BinOp::Ne, Box::new([e, Float::Const(0.0)])),
        })
    }

    /// Brings a float or integer into a float type.
    pub fn to_float(&self, e: Typed, to: DType) -> Float {
        match e {
            Typed::Float(Float::Const(v), _) => Float::Const(round(v, to)),
            Typed::Float(e, from) if from == to || to == DType::F64 => e,
            Typed::Float(e, _) => Float::Round(to, Box::new(e)),
            Typed::Int(e, from) => Float::FromInt(from, to, Box::new(e)),
        }
    }

    /// Brings a float or integer into an integer type.
    pub fn to_int(&self, e: Typed, to: DType) -> Int {
        match e {
            Typed::Float(e, _) => Int::FromFloat(to, Box::new(e)),
            Typed::Int(e, from) if from == to => e,
            // As 64 bits all values stand.
            Typed::Int(e, _) if matches!(to, DType::I64 | DType::U64) => e,
            Typed::Int(Int::Const(v), _) => Int::Const(wrap(v, to)),
            Typed::Int(e, _) => Int::Wrap(to, Box::new(e)),
        }
    }

    /// Any expression.
    pub fn typed(&mut self, e: &Expr) -> Result<Typed, Fault> {
        self.enter()?;
        let result = self.typed_inner(e);
        self.leave();
        result
    }

    fn typed_inner(&mut self, e: &Expr) -> Result<Typed, Fault> {
        Ok(match e {
            Expr::Int(v, t) if t.is_float() => Typed::Float(Float::Const(round(*v as f64, *t)), *t),
            Expr::Int(v, t) => Typed::Int(Int::Const(wrap(*v, *t)), *t),
            Expr::Float(bits, t) => {
                let value = Typed::Float(Float::Const(f64::from_bits(*bits)), DType::F64);
                self.cast(value, *t)
            }
            Expr::Str(text) => return Err(self.invalid(format!("the string \"{text}\" is used as a value"))),
            Expr::Var(v) => match self.slot(v)? {
                Slot::Int(slot, dtype) => Typed::Int(Int::Slot(slot), dtype),
                Slot::Float(slot, dtype) => Typed::Float(Float::Slot(slot), dtype),
            },
            Expr::Binary(BinOp::And, a, b) => {
                Typed::Int(Int::And(Box::new([self.condition(a)?, self.condition(b)?])), DType::Bool)
            }
            Expr::Binary(BinOp::Or, a, b) => {
                Typed::Int(Int::Or(Box::new([self.condition(a)?, self.condition(b)?])), DType::Bool)
            }
            Expr::Binary(op, a, b) => {
                let (a, b) = (self.typed(a)?, self.typed(b)?);
                self.binary(*op, a, b)
            }
            Expr::Not(a) => Typed::Int(Int::Not(Box::new(self.condition(a)?)), DType::Bool),
            Expr::Cast(t, a) => {
                let a = self.typed(a)?;
                self.cast(a, *t)
            }
            Expr::Select { cond, then, otherwise, .. } => self.select(cond, then, otherwise)?,
            Expr::Load(buffer, indices) => {
                let dtype = self.program.buffer(*buffer).dtype;
                let element = Box::new(self.element(*buffer, indices, Access::Read)?);
                if dtype.is_float() {
                    Typed::Float(Float::Load(element), dtype)
                } else {
                    Typed::Int(Int::Load(element), dtype)
                }
            }
            Expr::Call(name, args, dtype) => self.call(name, args, *dtype)?,
        })
    }

    fn cast(&self, e: Typed, to: DType) -> Typed {
        if to.is_float() {
            return Typed::Float(self.to_float(e, to), to);
        }
        Typed::Int(self.to_int(e, to), to)
    }

    fn select(&mut self, cond: &Expr, then: &Expr, otherwise: &Expr) -> Result<Typed, Fault> {
        let cond = self.condition(cond)?;
        let (a, b) = (self.typed(then)?, self.typed(otherwise)?);
        let dtype = promote(a.dtype(), b.dtype());
        if dtype.is_float() {
            let sides = (cond, self.to_float(a, dtype), self.to_float(b, dtype));
            return Ok(Typed::Float(Float::Select(Box::new(sides)), dtype));
        }
        Ok(Typed::Int(Int::Select(Box::new([cond, self.to_int(a, dtype), self.to_int(b, dtype)])), dtype))
    }

    fn binary(&self, op: BinOp, a: Typed, b: Typed) -> Typed {
        let dtype = promote(a.dtype(), b.dtype());
        if dtype.is_float() {
            let sides = Box::new([self.to_float(a, dtype), self.to_float(b, dtype)]);
            return if is_comparison(op) {
                Typed::Int(Int::CompareFloats(op, sides), DType::Bool)
            } else {
                Typed::Float(Float::Binary(op, dtype, sides), dtype)
            };
        }
        let value = binary(op, dtype, self.to_int(a, dtype), self.to_int(b, dtype));
        Typed::Int(value, if is_comparison(op) { DType::Bool } else { dtype })
    }

    fn call(&mut self, name: &str, args: &[Expr], dtype: DType) -> Result<Typed, Fault> {
        let short = name.rsplit('.').next().unwrap_or(name);
        let operator = match short {
            "bitwise_and" => Some(BinOp::BitAnd),
            "bitwise_or" => Some(BinOp::BitOr),
            "bitwise_xor" => Some(BinOp::BitXor),
            "shift_left" => Some(BinOp::Shl),
            "shift_right" => Some(BinOp::Shr),
            "floordiv" => Some(BinOp::FloorDiv),
            "floormod" => Some(BinOp::FloorMod),
            "truncdiv" => Some(BinOp::TruncDiv),
            "truncmod" => Some(BinOp::TruncMod),
            "min" => Some(BinOp::Min),
            "max" => Some(BinOp::Max),
            _ => None,
        };
        match (short, operator, args) {
            // Hints, and barriers between threads, of which there are none here.
            ("likely", _, [a]) => return self.typed(a),
            ("tvm_storage_sync", _, _) => return Ok(Typed::Int(Int::Const(0), dtype)),
            ("if_then_else", _, [cond, then, otherwise]) => return self.select(cond, then, otherwise),
            (_, Some(op), [a, b]) => {
                let (a, b) = (self.typed(a)?, self.typed(b)?);
                return Ok(self.binary(op, a, b));
            }
            ("isnan", _, [a]) => {
                let a = self.typed(a)?;
                let a = self.to_float(a, DType::F64);
                return Ok(Typed::Int(Int::CompareFloats(BinOp::Ne, Box::new([a.clone(), a])), DType::Bool));
            }
            ("isinf" | "isfinite", _, [a]) => {
                let a = self.typed(a)?;
                let zero = Float::Const(0.0);
                let size = Float::Call(
                    Function::Abs,
                    DType::F64,
                    Box::new([self.to_float(a, DType::F64), zero.clone(), zero]),
                );
                let op = if short == "isinf" { BinOp::Eq } else { BinOp::Lt };
                let sides = Box::new([size, Float::Const(f64::INFINITY)]);
                return Ok(Typed::Int(Int::CompareFloats(op, sides), DType::Bool));
            }
            ("popcount" | "clz", _, [a]) => {
                let a = self.typed(a)?;
                let from = a.dtype();
                if from.is_float() {
                    return Err(self.invalid(format!("{short} of a value of type {}", from.name())));
                }
                let f = if short == "clz" { semantics::leading_zeros } else { semantics::ones };
                let value = Typed::Int(Int::Unary(f, from, Box::new(self.to_int(a, from))), DType::I64);
                return Ok(self.cast(value, dtype));
            }
            ("reinterpret", _, [a]) => {
                let a = self.typed(a)?;
                return self.reinterpreted(a, dtype);
            }
            _ => {}
        }
        let Some((function, arity)) = Function::named(short).filter(|(_, arity)| *arity == args.len()) else {
            return Err(self.unknown(name, args.len()));
        };
        let mut values = [Float::Const(0.0), Float::Const(0.0), Float::Const(0.0)];
        for (slot, arg) in values.iter_mut().zip(args).take(arity) {
            let arg = self.typed(arg)?;
            match (function, arg) {
                (Function::Abs, Typed::Int(e, t)) if !dtype.is_float() => {
                    return Ok(Typed::Int(Int::Unary(semantics::magnitude, t, Box::new(e)), t));
                }
                (_, arg) => *slot = self.to_float(arg, DType::F64),
            }
        }
        let within = if dtype.is_float() { dtype } else { DType::F64 };
        let value = Typed::Float(Float::Call(function, within, Box::new(values)), within);
        Ok(self.cast(value, dtype))
    }

    fn reinterpreted(&self, a: Typed, to: DType) -> Result<Typed, Fault> {
        let from = a.dtype();
        if from.bytes() != to.bytes() || from == DType::Bool || to == DType::Bool {
            let reason = format!("the bits of {} are not those of {}", from.name(), to.name());
            return Err(self.invalid(reason));
        }
        Ok(match (a, to.is_float()) {
            (Typed::Int(a, _), true) => Typed::Float(Float::FromBits(from, to, Box::new(a)), to),
            (Typed::Int(a, _), false) => self.cast(Typed::Int(a, from), to),
            (Typed::Float(a, _), true) => Typed::Float(Float::Recast(from, to, Box::new(a)), to),
            (Typed::Float(a, _), false) => Typed::Int(Int::BitsOf(from, to, Box::new(a)), to),
        })
    }
}

/// An operation in a type; sums of multiples of slots are merged into one node.
pub(super) fn binary(op: BinOp, dtype: DType, a: Int, b: Int) -> Int {
    let merged = match op {
        BinOp::Add => sum(dtype, &a, &b, 1),
        BinOp::Sub => sum(dtype, &a, &b, -1),
        BinOp::Mul => match (&a, &b) {
            (_, Int::Const(factor)) => sum(dtype, &Int::Const(0), &a, *factor),
            (Int::Const(factor), _) => sum(dtype, &Int::Const(0), &b, *factor),
            _ => None,
        },
        _ => None,
    };
    merged.unwrap_or_else(|| Int::Binary(op, dtype, Box::new([a, b])))
}

/// An expression as a sum in a type, if it is one.
fn affine(e: &Int, dtype: DType) -> Option<Affine> {
    Some(match e {
        Int::Const(constant) => Affine { dtype, constant: *constant, terms: Vec::new() },
        Int::Slot(slot) => Affine { dtype, constant: 0, terms: vec![(*slot, 1)] },
        Int::Affine(a) if a.dtype == dtype => a.as_ref().clone(),
        _ => return None,
    })
}

/// `a + factor * b`; none where that is not affine.
fn sum(dtype: DType, a: &Int, b: &Int, factor: i64) -> Option<Int> {
    let (mut a, b) = (affine(a, dtype)?, affine(b, dtype)?);
    a.constant = a.constant.wrapping_add(b.constant.wrapping_mul(factor));
    for (slot, c) in b.terms {
        let c = c.wrapping_mul(factor);
        match a.terms.iter_mut().find(|(s, _)| *s == slot) {
            Some((_, d)) => *d = d.wrapping_add(c),
            None => a.terms.push((slot, c)),
        }
    }
    a.terms.retain(|(_, c)| *c != 0);
    Some(match (a.constant, a.terms.as_slice()) {
        (c, []) => Int::Const(wrap(c, dtype)),
        (0, [(slot, 1)]) => Int::Slot(*slot),
        _ => Int::Affine(Box::new(a)),
    })
}
