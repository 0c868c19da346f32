//! Compilation of expressions.
use super::code::{Affine, Float, Int};
use super::compile::Compiler;
use super::fault::Access;
use super::math::Function;
use super::value::{round, wrap};
use super::Fault;
use crate::{BinOp, DType, Expr};

/// A compiled expression and its type.
pub(super) enum Typed {
    /// The flag: it depends on elements of buffers, so that its arithmetic wraps in its type.
    Int(Int, DType, bool),
    Float(Float, DType),
}

impl Typed {
    fn dtype(&self) -> DType {
        match self {
            Typed::Int(_, t, _) | Typed::Float(_, t) => *t,
        }
    }

    /// Whether it depends on elements of buffers.
    pub fn is_data(&self) -> bool {
        matches!(self, Typed::Int(_, _, true) | Typed::Float(..))
    }
}

/// What a variable is at run time.
#[derive(Clone, Copy)]
pub(super) enum Slot {
    /// The flag as in [`Typed::Int`].
    Int(usize, DType, bool),
    Float(usize, DType),
}

/// The type of an operation on two types: the float one, the wider one, the unsigned one.
fn promote(a: DType, b: DType) -> DType {
    let rank = |t: DType| match t {
        DType::Bool => 0,
        DType::Handle => 9,
        t if t.is_float() => 100 + t.bytes() * 2 + u32::from(t == DType::F32),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => t.bytes() * 2 + 1,
        t => t.bytes() * 2,
    };
    match (a, b) {
        (DType::F16, DType::BF16) | (DType::BF16, DType::F16) => DType::F32,
        (DType::F8E4M3, DType::F8E5M2) | (DType::F8E5M2, DType::F8E4M3) => DType::F16,
        _ if rank(b) > rank(a) => b,
        _ => a,
    }
}

fn is_comparison(op: BinOp) -> bool {
    matches!(op, BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Le | BinOp::Gt | BinOp::Ge)
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
            Typed::Int(e, from, _) => Float::FromInt(from, to, Box::new(e)),
        }
    }

    /// Brings a float or integer into an integer type.
    pub fn to_int(&self, e: Typed, to: DType) -> Int {
        match e {
            Typed::Float(e, _) => Int::FromFloat(to, Box::new(e)),
            Typed::Int(e, from, _) if from == to => e,
            // All values of a narrower signed type, or of the type's unsigned half, are values of the wider one.
            Typed::Int(e, _, _) if to == DType::I64 => e,
            Typed::Int(Int::Const(v), ..) => Int::Const(wrap(v, to)),
            Typed::Int(e, ..) => Int::Wrap(to, Box::new(e)),
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
            Expr::Int(v, t) => Typed::Int(Int::Const(wrap(*v, *t)), *t, false),
            Expr::Float(bits, t) => {
                let value = Typed::Float(Float::Const(f64::from_bits(*bits)), DType::F64);
                self.cast(value, *t)
            }
            Expr::Str(text) => return Err(self.invalid(format!("the string \"{text}\" is used as a value"))),
            Expr::Var(v) => match self.slot(v)? {
                Slot::Int(slot, dtype, data) => Typed::Int(Int::Slot(slot), dtype, data),
                Slot::Float(slot, dtype) => Typed::Float(Float::Slot(slot), dtype),
            },
            Expr::Binary(BinOp::And, a, b) => {
                Typed::Int(Int::And(Box::new([self.condition(a)?, self.condition(b)?])), DType::Bool, false)
            }
            Expr::Binary(BinOp::Or, a, b) => {
                Typed::Int(Int::Or(Box::new([self.condition(a)?, self.condition(b)?])), DType::Bool, false)
            }
            Expr::Binary(op, a, b) => {
                let (a, b) = (self.typed(a)?, self.typed(b)?);
                self.binary(*op, a, b)
            }
            Expr::Not(a) => Typed::Int(Int::Not(Box::new(self.condition(a)?)), DType::Bool, false),
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
                    Typed::Int(Int::Load(element), dtype, true)
                }
            }
            Expr::Call(name, args, dtype) => self.call(name, args, *dtype)?,
        })
    }

    fn cast(&self, e: Typed, to: DType) -> Typed {
        if to.is_float() {
            return Typed::Float(self.to_float(e, to), to);
        }
        let data = e.is_data();
        Typed::Int(self.to_int(e, to), to, data)
    }

    fn select(&mut self, cond: &Expr, then: &Expr, otherwise: &Expr) -> Result<Typed, Fault> {
        let cond = self.condition(cond)?;
        let (a, b) = (self.typed(then)?, self.typed(otherwise)?);
        let dtype = promote(a.dtype(), b.dtype());
        if dtype.is_float() {
            let sides = (cond, self.to_float(a, dtype), self.to_float(b, dtype));
            return Ok(Typed::Float(Float::Select(Box::new(sides)), dtype));
        }
        let data = a.is_data() || b.is_data();
        Ok(Typed::Int(Int::Select(Box::new([cond, self.to_int(a, dtype), self.to_int(b, dtype)])), dtype, data))
    }

    fn binary(&self, op: BinOp, a: Typed, b: Typed) -> Typed {
        let dtype = promote(a.dtype(), b.dtype());
        if dtype.is_float() {
            let sides = Box::new([self.to_float(a, dtype), self.to_float(b, dtype)]);
            return if is_comparison(op) {
                Typed::Int(Int::CompareFloats(op, sides), DType::Bool, true)
            } else {
                Typed::Float(Float::Binary(op, dtype, sides), dtype)
            };
        }
        let data = a.is_data() || b.is_data();
        // Values of signed operands stay as they are: an exact index may be larger than its type.
        let convert = |e: Typed| match (&e, dtype) {
            (_, DType::U8 | DType::U16 | DType::U32) => self.to_int(e, dtype),
            _ => match e {
                Typed::Int(e, ..) => e,
                e => self.to_int(e, dtype),
            },
        };
        let (a, b) = (convert(a), convert(b));
        // C divides integers towards zero.
        let op = if op == BinOp::Div { BinOp::TruncDiv } else { op };
        if is_comparison(op) {
            Typed::Int(Int::Compare(op, dtype == DType::U64, Box::new([a, b])), DType::Bool, data)
        } else if data || !matches!(dtype, DType::I32 | DType::I64) {
            Typed::Int(Int::Wrapped(op, dtype, Box::new([a, b])), dtype, data)
        } else {
            Typed::Int(exact(op, a, b), dtype, false)
        }
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
            ("tvm_storage_sync", _, _) => return Ok(Typed::Int(Int::Const(0), dtype, false)),
            ("if_then_else", _, [cond, then, otherwise]) => return self.select(cond, then, otherwise),
            (_, Some(op), [a, b]) => {
                let (a, b) = (self.typed(a)?, self.typed(b)?);
                return Ok(self.binary(op, a, b));
            }
            ("isnan", _, [a]) => {
                let a = self.typed(a)?;
                let a = self.to_float(a, DType::F64);
                return Ok(Typed::Int(Int::CompareFloats(BinOp::Ne, Box::new([a.clone(), a])), DType::Bool, true));
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
                (Function::Abs, Typed::Int(e, t, data)) if !dtype.is_float() => {
                    return Ok(Typed::Int(Int::Abs(t, Box::new(e)), t, data));
                }
                (_, arg) => *slot = self.to_float(arg, DType::F64),
            }
        }
        let within = if dtype.is_float() { dtype } else { DType::F64 };
        let value = Typed::Float(Float::Call(function, within, Box::new(values)), within);
        Ok(self.cast(value, dtype))
    }
}

/// Exact arithmetic; sums of multiples of slots are merged into one node.
pub(super) fn exact(op: BinOp, a: Int, b: Int) -> Int {
    let merged = match op {
        BinOp::Add => sum(&a, &b, 1),
        BinOp::Sub => sum(&a, &b, -1),
        BinOp::Mul => match (&a, &b) {
            (_, Int::Const(factor)) => sum(&Int::Const(0), &a, *factor),
            (Int::Const(factor), _) => sum(&Int::Const(0), &b, *factor),
            _ => None,
        },
        _ => None,
    };
    merged.unwrap_or_else(|| Int::Exact(op, Box::new([a, b])))
}

fn affine(e: &Int) -> Option<Affine> {
    Some(match e {
        Int::Const(constant) => Affine { constant: *constant, terms: Vec::new() },
        Int::Slot(slot) => Affine { constant: 0, terms: vec![(*slot, 1)] },
        Int::Affine(a) => a.as_ref().clone(),
        _ => return None,
    })
}

/// `a + factor * b`; none where that is not affine, or overflows already here.
fn sum(a: &Int, b: &Int, factor: i64) -> Option<Int> {
    let (mut a, b) = (affine(a)?, affine(b)?);
    a.constant = a.constant.checked_add(b.constant.checked_mul(factor)?)?;
    for (slot, c) in b.terms {
        let c = c.checked_mul(factor)?;
        match a.terms.iter_mut().find(|(s, _)| *s == slot) {
            Some((_, d)) => *d = d.checked_add(c)?,
            None => a.terms.push((slot, c)),
        }
    }
    a.terms.retain(|(_, c)| *c != 0);
    Some(match (a.constant, a.terms.as_slice()) {
        (c, []) => Int::Const(c),
        (0, [(slot, 1)]) => Int::Slot(*slot),
        _ => Int::Affine(Box::new(a)),
    })
}
