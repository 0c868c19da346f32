//! Vectorized loops that compute: neighbouring elements are loaded and stored by one access of up to 16 bytes.
//!
//! ```text
//!   for v in vectorized(4):             A_vector = A[4 j : 4 j + 4]            one load
//!     B[4 j + v] = exp(A[4 j + v])  ->  for v unrolled: B_vector[v] = exp(A_vector[v])
//!                                       B[4 j : 4 j + 4] = B_vector            one store
//! ```
//! Loads that stand under a selection stay where they are: they may be out of bounds elsewhere. A short loop that
//! adds up a thread's partial result of a reduction over threads takes vectors too.
use super::copy::uniform;
use super::emit::{guarded, Emitter, Mode};
use super::error::LowerError;
use super::guards::{missing, Guarding};
use super::linear::Linear;
use super::nest::{Leaf, Loop, LoopKind};
use super::pred::{join, Pred};
use crate::kernel::{ArrayId, Cond, Index, Stmt, Unroll, Value};
use crate::lower::index::{add, c, mul};
use satune_ir::{BufferId, Expr, VarId};

/// An element by its buffer and index.
type Element = (BufferId, Vec<Linear>);

/// A load of neighbouring elements.
struct Load {
    element: Element,
    array: ArrayId,
    form: Linear,
    /// Conditions beyond what is known, without which zeros stand for the elements.
    need: Vec<Pred>,
}

/// What of a leaf takes vectors.
struct Vectors {
    width: i64,
    loads: Vec<Load>,
    store: bool,
}

/// Loads of an expression that are evaluated whatever its conditions say.
fn unconditional(e: &Expr, out: &mut Vec<(BufferId, Vec<Expr>)>) {
    match e {
        Expr::Load(b, at) => out.push((*b, at.clone())),
        Expr::Binary(_, a, b) => {
            unconditional(a, out);
            unconditional(b, out);
        }
        Expr::Cast(_, a) | Expr::Not(a) => unconditional(a, out),
        Expr::Call(_, args, _) => args.iter().for_each(|a| unconditional(a, out)),
        Expr::Select { .. } | Expr::Int(..) | Expr::Float(..) | Expr::Str(_) | Expr::Var(_) => {}
    }
}

impl Emitter<'_> {
    /// The leaf of a vectorized (or unrolled) loop with vector accesses. None where none of its accesses is a vector.
    pub(super) fn vector_leaf(&mut self, leaf: &Leaf, l: &Loop) -> Result<Option<Vec<Stmt>>, LowerError> {
        // Partial results of threads take vectors of what they add up; the order stays.
        let sums = self.partials.contains(&leaf.target) && leaf.accumulates() && l.extent <= 16;
        let scalar = !(l.kind == LoopKind::Vectorized || sums) || !leaf.data().is_empty();
        if scalar || matches!(self.mode, Mode::Load | Mode::Store) {
            return Ok(None);
        }
        let Guarding { when, zero: zero_clauses } = self.guarding.get(&leaf.id).cloned().unwrap_or_default();
        let mut known = when.clone();
        join(&mut known, zero_clauses.clone());
        let (dst, dst_form) = self.element(leaf.target, &leaf.at)?;
        let Some(plan) = self.plan(leaf, l, (dst, &dst_form), &known)? else { return Ok(None) };
        let (x, width) = (l.var, plan.width);
        let (chunk, lane) = (self.fresh(), self.fresh());
        let chunks = l.extent / width;
        let number = if chunks == 1 { c(0) } else { Index::Var(chunk) };
        let first = mul(number, width);
        let mut taken = Vec::new();
        let mut body = Vec::new();
        for load in &plan.loads {
            let registers = self.vector_registers(load.array, self.array(load.array).dtype, width, &taken);
            taken.push(registers);
            // Where a zero is stored, what would be computed may be of elements that are not there.
            let mut need = zero_clauses.clone();
            join(&mut need, load.need.clone());
            let (src_index, zero_unless) =
                self.with(x, first.clone(), |this| (this.index(load.array, &load.form, "from"), this.condition(&need)));
            let (dst, dst_index, width) = (registers, c(0), width as u32);
            body.push(Stmt::Copy { dst, dst_index, src: load.array, src_index, width, zero_unless });
            self.vectors.insert(load.element.clone(), (registers, lane));
        }
        let each = add(first.clone(), Index::Var(lane));
        let value = self.with(x, each.clone(), |this| this.leaf_value(leaf, &known));
        plan.loads.iter().for_each(|load| {
            self.vectors.remove(&load.element);
        });
        let mut value = value?;
        let dtype = self.array(dst).dtype;
        match self.with(x, first.clone(), |this| this.condition(&zero_clauses)) {
            Cond::True => {}
            cond => value = Value::Select(cond, Box::new(value), Box::new(Value::zero(dtype))),
        }
        let (array, index) = if plan.store {
            (self.vector_registers(dst, dtype, width, &taken), Index::Var(lane))
        } else {
            (dst, self.with(x, each, |this| this.index(dst, &dst_form, "to")))
        };
        let store = Stmt::Store { array, index, value };
        let (start, name) = (c(0), l.name.clone());
        body.push(Stmt::For { var: lane, name, start, extent: c(width), unroll: Unroll::Full, body: vec![store] });
        if plan.store {
            let dst_index = self.with(x, first.clone(), |this| this.index(dst, &dst_form, "to"));
            let (src, src_index, width) = (array, c(0), width as u32);
            body.push(Stmt::Copy { dst, dst_index, src, src_index, width, zero_unless: Cond::True });
        }
        let cond = self.with(x, first, |this| this.condition(&when));
        let body = guarded(cond, body);
        if chunks == 1 {
            return Ok(Some(body));
        }
        let (var, name, start, extent) = (chunk, format!("{}_vector", l.name), c(0), c(chunks));
        Ok(Some(vec![Stmt::For { var, name, start, extent, unroll: Unroll::Full, body }]))
    }

    fn plan(
        &self,
        leaf: &Leaf,
        l: &Loop,
        (dst, dst_form): (ArrayId, &Linear),
        known: &[Pred],
    ) -> Result<Option<Vectors>, LowerError> {
        let mut found = Vec::new();
        unconditional(&leaf.value, &mut found);
        let mut loads: Vec<Load> = Vec::new();
        for (buffer, at) in found {
            let forms: Option<Vec<Linear>> = at.iter().map(|e| Linear::of_expr(e, &self.nest.ranges)).collect();
            let Some(at) = forms else { continue };
            let (array, form) = self.element(buffer, &at)?;
            let global = self.is_global(buffer);
            let need = if global { missing(self.program, buffer, &at, known, &self.ranges) } else { Vec::new() };
            let element = (buffer, at);
            if !self.array(array).space.is_private() && loads.iter().all(|x| x.element != element) {
                loads.push(Load { element, array, form, need });
            }
        }
        let same = |list: &[Pred], w: i64| list.iter().all(|p| uniform(p, l.var, w));
        let fits = |array: ArrayId, form: &Linear, w: i64| {
            !self.array(array).space.is_private()
                && w * i64::from(self.array(array).dtype.bytes()) <= 16
                && takes(form, l.var, w)
        };
        for width in [16, 8, 4, 2].into_iter().filter(|w| l.extent % w == 0 && same(known, *w)) {
            let store = fits(dst, dst_form, width);
            let vector = |x: &Load| fits(x.array, &x.form, width) && same(&x.need, width);
            // An access that would be a vector if only it were shorter decides.
            let shorter = |array: ArrayId, form: &Linear| {
                !self.array(array).space.is_private() && takes(form, l.var, 2) && !fits(array, form, width)
            };
            if shorter(dst, dst_form) || loads.iter().any(|x| shorter(x.array, &x.form)) {
                continue;
            }
            if store || loads.iter().any(vector) {
                loads.retain(vector);
                return Ok(Some(Vectors { width, loads, store }));
            }
        }
        Ok(None)
    }
}

/// Whether `w` values of a variable, the first a multiple of `w`, are neighbours, the first at a multiple of `w`.
fn takes(form: &Linear, x: VarId, w: i64) -> bool {
    form.split_var(x).is_some_and(|(k, rest)| k == 1 && rest.multiple_of(w))
}
