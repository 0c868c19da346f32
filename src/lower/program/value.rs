//! Scalar values.
use super::combine::shuffled;
use super::emit::Emitter;
use super::error::{LowerError, Place};
use super::guards::{missing, product};
use super::linear::Linear;
use super::nest::Leaf;
use super::pred::{join, Pred};
use crate::kernel::{Arith, Comparison, Value, FUNCTIONS};
use satune_ir::{BinOp, DType, Expr};

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
            "compute it with +, -, *, /, min, max, comparisons, select, pow, fma, abs, exp, log, sqrt, sin, tanh, erf and \
             their like";
        LowerError::Unsupported { what, place: Place::block(&leaf.block), remedy: remedy.into() }
    }

    fn value(&mut self, e: &Expr, leaf: &Leaf, known: &[Pred]) -> Result<Value, LowerError> {
        Ok(match e {
            Expr::Int(v, dtype) if dtype.is_float() => Value::Float(*v as f64, *dtype),
            Expr::Int(v, dtype) => Value::Int(*v, *dtype),
            Expr::Float(bits, dtype) => Value::Float(f64::from_bits(*bits), *dtype),
            Expr::Load(buffer, indices) => {
                let forms: Option<Vec<Linear>> =
                    indices.iter().map(|i| Linear::of_expr(i, &self.nest.ranges)).collect();
                let at = forms.ok_or_else(|| self.refuse("an index that is no integer arithmetic".into(), leaf))?;
                let element = (*buffer, at);
                if let Some((registers, lane)) = self.vectors.get(&element) {
                    return Ok(Value::Load(*registers, crate::kernel::Index::Var(*lane)));
                }
                let at = element.1;
                let need = if self.is_global(*buffer) {
                    missing(self.program, *buffer, &at, known, &self.nest.ranges)
                } else {
                    Vec::new()
                };
                let (array, form) = self.element(*buffer, &at)?;
                let index = self.index(array, &form, "at");
                let load = Value::Load(array, index);
                match self.condition(&need) {
                    crate::kernel::Cond::True => load,
                    cond => Value::Select(cond, Box::new(load), Box::new(zero(self.array(array).dtype))),
                }
            }
            Expr::Cast(dtype, a) => match Linear::of_expr(a, &self.nest.ranges) {
                Some(form) if !matches!(a.as_ref(), Expr::Int(..)) => self.index_value(*dtype, &form),
                _ => {
                    let from = self.type_of(a);
                    let a = self.value(a, leaf, known)?;
                    if from == *dtype {
                        a
                    } else {
                        Value::Cast(*dtype, Box::new(a))
                    }
                }
            },
            Expr::Select { cond, then, otherwise, .. } => {
                let Some(clauses) = Pred::clauses(cond, &self.nest.ranges) else {
                    let [cond, a, b] = [cond, then, otherwise].map(|e| self.value(e, leaf, known).map(Box::new));
                    return Ok(Value::Choose(cond?, a?, b?));
                };
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
                    [a] if FUNCTIONS.contains(&short) => {
                        Value::Unary(short.into(), *dtype, Box::new(self.value(a, leaf, known)?))
                    }
                    [a, b] if matches!(short, "pow" | "power") => {
                        let (a, b) = (self.value(a, leaf, known)?, self.value(b, leaf, known)?);
                        Value::Binary(Arith::Pow, *dtype, Box::new(a), Box::new(b))
                    }
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
                let op = match op {
                    BinOp::Add => Arith::Add,
                    BinOp::Sub => Arith::Sub,
                    BinOp::Mul => Arith::Mul,
                    BinOp::Div => Arith::Div,
                    BinOp::Min => Arith::Min,
                    BinOp::Max => Arith::Max,
                    other => return Err(self.refuse(format!("operator {other:?} on elements"), leaf)),
                };
                let (a, b) = (self.value(a, leaf, known)?, self.value(b, leaf, known)?);
                Value::Binary(op, dtype, Box::new(a), Box::new(b))
            }
            Expr::Var(v) => self.index_value(v.dtype, &Linear::var(v.id)),
            Expr::Not(a) => {
                let (a, zero) = (self.value(a, leaf, known)?, Value::Int(0, DType::Bool));
                Value::Compare(Comparison::Eq, DType::Bool, Box::new(a), Box::new(zero))
            }
            Expr::Str(_) => return Err(self.refuse("a value that is no number".into(), leaf)),
        })
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
        let dtype = self.type_of(a);
        let (mut a, mut b) = (self.value(a, leaf, known)?, self.value(b, leaf, known)?);
        if matches!(op, Gt | Ge) {
            std::mem::swap(&mut a, &mut b);
        }
        let (a, b) = (Box::new(a), Box::new(b));
        Ok(Some(match op {
            And => Value::Binary(Arith::And, DType::Bool, a, b),
            Or => Value::Binary(Arith::Or, DType::Bool, a, b),
            Lt | Gt => Value::Compare(Comparison::Lt, dtype, a, b),
            Le | Ge => Value::Compare(Comparison::Le, dtype, a, b),
            Eq => Value::Compare(Comparison::Eq, dtype, a, b),
            _ => Value::Compare(Comparison::Ne, dtype, a, b),
        }))
    }

    fn index_value(&mut self, dtype: DType, form: &Linear) -> Value {
        Value::FromIndex(dtype, self.plain_index(form))
    }

    /// Type of an expression.
    pub(super) fn type_of(&self, e: &Expr) -> DType {
        match e {
            Expr::Int(_, t) | Expr::Float(_, t) | Expr::Cast(t, _) | Expr::Call(_, _, t) => *t,
            Expr::Str(_) => DType::Handle,
            Expr::Var(v) => v.dtype,
            Expr::Not(_) => DType::Bool,
            Expr::Binary(op, a, _) => match op {
                BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Le | BinOp::Gt | BinOp::Ge | BinOp::And | BinOp::Or => {
                    DType::Bool
                }
                _ => self.type_of(a),
            },
            Expr::Select { then, .. } => self.type_of(then),
            Expr::Load(b, _) => self.program.buffer(*b).dtype,
        }
    }
}

/// Zero of a type.
pub fn zero(dtype: DType) -> Value {
    if dtype.is_float() {
        Value::Float(0.0, dtype)
    } else {
        Value::Int(0, dtype)
    }
}
