//! Scalar values.
use super::combine::shuffled;
use super::emit::Emitter;
use super::error::{At, LowerError};
use super::guards::{missing, product};
use super::linear::Linear;
use super::nest::Leaf;
use super::pred::{join, Pred};
use super::vector::InRegisters;
use crate::kernel::{Arith, BitFunction, Comparison, Value};
use satune_ir::semantics::Function;
use satune_ir::{fold, tvmscript, BinOp, DType, Expr};

impl Emitter<'_> {
    /// The value that a leaf stores, where `known` holds.
    pub(super) fn leaf_value(&mut self, leaf: &Leaf, known: &[Pred]) -> Result<Value, LowerError> {
        if let Some((sum, a, b)) = product(leaf, &leaf.value) {
            let dtype = self.type_of(&leaf.value);
            let [a, b, sum] = [a, b, sum].map(|e| self.value(e, leaf, known));
            return Ok(Value::Fma(dtype, Box::new(a?), Box::new(b?), Box::new(sum?)));
        }
        self.value(&leaf.value, leaf, known)
    }

    fn refuse(&self, what: String, leaf: &Leaf) -> LowerError {
        let remedy =
            "compute it with operators, min, max, select, fma, abs, exp, log, sqrt, sin, tanh, erf and their like";
        LowerError::Unsupported { what, place: At::block(&leaf.block), remedy: remedy.into() }
    }

    pub(super) fn value(&mut self, e: &Expr, leaf: &Leaf, known: &[Pred]) -> Result<Value, LowerError> {
        Ok(match e {
            Expr::Int(v, dtype) if dtype.is_float() => Value::Float(*v as f64, *dtype),
            Expr::Int(v, dtype) => Value::Int(*v, *dtype),
            Expr::Float(bits, dtype) => Value::Float(f64::from_bits(*bits), *dtype),
            Expr::Load(buffer, indices) => {
                let form = |i: &Expr| Linear::of_index(i, &self.nest.ranges, self.program);
                let forms: Option<Vec<Linear>> = indices.iter().map(form).collect();
                let strange = || {
                    format!(
                        "an element whose index is no integer arithmetic, {},",
                        tvmscript::expression(self.program, e)
                    )
                };
                let at = forms.ok_or_else(|| self.refuse(strange(), leaf))?;
                let element = (*buffer, at);
                if let Some(InRegisters { registers, at, .. }) = self.vectors.get(&element) {
                    return Ok(Value::Load(*registers, at.clone()));
                }
                let at = element.1;
                let need = if self.is_global(*buffer) {
                    missing(self.program, *buffer, &at, known, &self.ranges)
                } else {
                    Vec::new()
                };
                let (array, form) = self.element(*buffer, &at)?;
                let index = self.index(array, &form, "at");
                let load = Value::Load(array, index);
                match self.condition(&need) {
                    crate::kernel::Cond::True => load,
                    cond => Value::Select(cond, Box::new(load), Box::new(Value::zero(self.array(array).dtype))),
                }
            }
            Expr::Cast(dtype, a) => match Linear::of_expr(a, &self.nest.ranges) {
                Some(form) if !matches!(a.as_ref(), Expr::Int(..)) => self.index_value(*dtype, &form),
                _ => {
                    let from = self.type_of(a);
                    self.value(a, leaf, known)?.converted(from, *dtype)
                }
            },
            Expr::Select { cond, then, otherwise, .. } => {
                let Some(clauses) = Pred::clauses(cond, &self.ranges) else {
                    let [cond, a, b] = [cond, then, otherwise].map(|e| self.value(e, leaf, known).map(Box::new));
                    return Ok(Value::Choose(cond?, a?, b?));
                };
                if matches!(**otherwise, Expr::Float(0, _) | Expr::Int(0, _)) && self.zero_without(then, &clauses) {
                    return self.value(then, leaf, known);
                }
                let mut inside = known.to_vec();
                join(&mut inside, clauses.clone());
                let (a, b) = (self.value(then, leaf, &inside)?, self.value(otherwise, leaf, known)?);
                match self.condition(&clauses) {
                    crate::kernel::Cond::True => a,
                    cond => Value::Select(cond, Box::new(a), Box::new(b)),
                }
            }
            Expr::Call(name, args, dtype) => {
                if let Some((value, lane_mask, lanes)) = shuffled(name, args) {
                    return Ok(Value::Shuffle { value: Box::new(self.value(value, leaf, known)?), lane_mask, lanes });
                }
                let short = name.rsplit('.').next().unwrap_or(name);
                match args.as_slice() {
                    [a] if Function::named(short).is_some_and(|(_, count)| count == 1) => {
                        Value::Unary(short.into(), *dtype, Box::new(self.value(a, leaf, known)?))
                    }
                    [a, b] if Arith::named(short).is_some_and(|_| dtype.is_float()) => {
                        let (a, b) = (self.value(a, leaf, known)?, self.value(b, leaf, known)?);
                        Value::Binary(Arith::named(short).unwrap_or(Arith::Pow), *dtype, Box::new(a), Box::new(b))
                    }
                    [a] if matches!(short, "isnan" | "isinf" | "isfinite") => self.class(short, a, leaf, known)?,
                    [a] if matches!(short, "popcount" | "clz") => {
                        let function = if short == "clz" { BitFunction::LeadingZeros } else { BitFunction::Ones };
                        let count = Value::Bits(function, Box::new(self.value(a, leaf, known)?));
                        count.converted(DType::I32, *dtype)
                    }
                    [a] if short == "reinterpret" => Value::Reinterpret(*dtype, Box::new(self.value(a, leaf, known)?)),
                    [a] if short == "likely" => self.value(a, leaf, known)?,
                    [a, b, c] if short == "fma" => {
                        let [a, b, c] = [a, b, c].map(|e| self.value(e, leaf, known).map(Box::new));
                        Value::Fma(*dtype, a?, b?, c?)
                    }
                    _ => return Err(self.refuse(format!("function {name}"), leaf)),
                }
            }
            Expr::Binary(op, a, b) => {
                let dtype = self.type_of(e);
                if !dtype.is_float() {
                    if let Some(form) = Linear::of_expr(e, &self.nest.ranges) {
                        return Ok(self.index_value(dtype, &form));
                    }
                }
                if let Some(value) = self.boolean(e, leaf, known)? {
                    return Ok(value);
                }
                let (a, b) = (self.value(a, leaf, known)?, self.value(b, leaf, known)?);
                Value::of_operator(*op, dtype, a, b)
            }
            Expr::Var(v) => self.index_value(v.dtype, &Linear::var(v.id)),
            Expr::Not(a) => {
                let (a, zero) = (self.value(a, leaf, known)?, Value::Int(0, DType::Bool));
                Value::Compare(Comparison::Eq, DType::Bool, Box::new(a), Box::new(zero))
            }
            Expr::Str(_) => return Err(self.refuse("a value that is no number".into(), leaf)),
        })
    }

    /// Whether an expression is an element that has been loaded, or 0 where one of these conditions does not hold.
    fn zero_without(&self, e: &Expr, clauses: &[Pred]) -> bool {
        match e {
            Expr::Load(buffer, indices) => {
                let forms: Option<Vec<Linear>> =
                    indices.iter().map(|i| Linear::of_index(i, &self.nest.ranges, self.program)).collect();
                let loaded = forms.and_then(|at| self.vectors.get(&(*buffer, at)));
                loaded.is_some_and(|own| clauses.iter().all(|clause| own.unless_zero.contains(clause)))
            }
            Expr::Cast(to, a) => to.is_float() && self.type_of(a).is_float() && self.zero_without(a, clauses),
            _ => false,
        }
    }

    /// A comparison or connective as a value; None for other operators.
    fn boolean(&mut self, e: &Expr, leaf: &Leaf, known: &[Pred]) -> Result<Option<Value>, LowerError> {
        use BinOp::{And, Eq, Ge, Gt, Le, Lt, Ne, Or};
        let Expr::Binary(op @ (Lt | Le | Gt | Ge | Eq | Ne | And | Or), a, b) = e else { return Ok(None) };
        if let Some(clauses) = Pred::clauses(e, &self.nest.ranges) {
            let cond = self.condition(&clauses);
            let [yes, no] = [1, 0].map(|v| Box::new(Value::Int(v, DType::Bool)));
            return Ok(Some(Value::Select(cond, yes, no)));
        }
        let dtype = match op {
            And | Or => DType::Bool,
            _ => satune_ir::semantics::promote(self.type_of(a), self.type_of(b)),
        };
        let (a, b) = (self.value(a, leaf, known)?, self.value(b, leaf, known)?);
        Ok(Some(Value::of_operator(*op, dtype, a, b)))
    }

    fn index_value(&mut self, dtype: DType, form: &Linear) -> Value {
        Value::FromIndex(dtype, self.plain_index(form))
    }

    /// Type of an expression.
    pub(super) fn type_of(&self, e: &Expr) -> DType {
        fold::dtype(e, &self.program.buffers)
    }

    /// Whether a float is of a class: no number, infinite, or finite.
    fn class(&mut self, name: &str, a: &Expr, leaf: &Leaf, known: &[Pred]) -> Result<Value, LowerError> {
        let dtype = self.type_of(a);
        let a = self.value(a, leaf, known)?;
        if let (Value::Load(..), "isnan") = (&a, name) {
            return Ok(Value::Compare(Comparison::Ne, dtype, Box::new(a.clone()), Box::new(a)));
        }
        let op = match name {
            "isinf" => Comparison::Eq,
            "isfinite" => Comparison::Lt,
            _ => Comparison::Le,
        };
        // In f32, which holds all that narrower types do: an operation of 8 bits leaves no infinity.
        let dtype = if dtype == DType::F64 { dtype } else { DType::F32 };
        let size = Value::Unary("abs".into(), dtype, Box::new(a));
        let class = Value::Compare(op, dtype, Box::new(size), Box::new(Value::Float(f64::INFINITY, dtype)));
        // What is neither finite nor infinite.
        let not = |v| Value::Compare(Comparison::Eq, DType::Bool, Box::new(v), Box::new(Value::Int(0, DType::Bool)));
        Ok(if name == "isnan" { not(class) } else { class })
    }
}
