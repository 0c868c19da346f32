//! Vectorized loops that compute: neighbouring elements are loaded and stored by one access of up to 16 bytes.
//!
//! ```text
//!   for v in vectorized(4):             A_vector = A[4 j : 4 j + 4]            one load
//!     B[4 j + v] = exp(A[4 j + v])  ->  for v unrolled: B_vector[v] = exp(A_vector[v])
//!                                       B[4 j : 4 j + 4] = B_vector            one store
//! ```
//! Loads that stand under a selection stay where they are: they may be out of bounds elsewhere. An element that all of a
//! vector are computed from (a word of packed weights, a scale) is loaded once before them. A short loop that
//! adds up a thread's partial result of a reduction over threads takes vectors too.
use super::copy::uniform;
use super::emit::{guarded, Emitter, Mode};
use super::error::LowerError;
use super::guards::{missing, Guarding};
use super::leaf::unpadded;
use super::linear::Linear;
use super::nest::{Leaf, Loop, LoopKind};
use super::pred::{join, Pred};
use super::shared::is_shared;
use crate::kernel::{ArrayId, Cond, Index, Stmt, Unroll, Value};
use crate::lower::index::{add, c, mul};
use satune_ir::{BufferId, Expr, VarId};

/// An element by its buffer and index.
pub(super) type Element = (BufferId, Vec<Linear>);

/// A load of neighbouring elements, or of one for all.
pub(super) struct Load {
    pub element: Element,
    pub array: ArrayId,
    form: Linear,
    /// It does not move with the loop.
    one: bool,
    /// Conditions beyond what is known, without which zeros stand for the elements.
    need: Vec<Pred>,
}

/// What of a leaf takes vectors.
pub(super) struct Vectors {
    pub width: i64,
    pub loads: Vec<Load>,
    pub store: bool,
}

impl Load {
    /// How many elements it loads for a vector of so many.
    pub fn elements(&self, width: i64) -> i64 {
        if self.one {
            1
        } else {
            width
        }
    }
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
        let ahead = self.waiting(leaf);
        if scalar || (self.mode == Mode::Store && ahead.is_none()) {
            return Ok(None);
        }
        // Of what waits in registers one half of a copy loads, the other computes.
        let (loads, computes) = match &ahead {
            Some(_) => (self.mode == Mode::Load, self.mode == Mode::Store),
            None => (true, true),
        };
        let Guarding { when, zero: mut zero_clauses } = self.guarding.get(&leaf.id).cloned().unwrap_or_default();
        let (inside, padded) = self.padded(leaf);
        join(&mut zero_clauses, padded);
        let mut known = when.clone();
        join(&mut known, zero_clauses.clone());
        let (dst, dst_form) = match self.mode {
            Mode::Load if ahead.is_none() => self.staged(leaf),
            _ => self.element(leaf.target, &leaf.at)?,
        };
        let plan = match &ahead {
            None => self.plan(leaf, l, (dst, &dst_form), &known)?,
            Some(ahead) => {
                let loads = self.loads(leaf, l, &known)?.into_iter().filter(|load| ahead.has(load)).collect();
                Some(Vectors { width: ahead.width, loads, store: true })
            }
        };
        let Some(plan) = plan else { return Ok(None) };
        let (x, width) = (l.var, plan.width);
        let (chunk, lane) = (self.fresh(), self.fresh());
        let chunks = l.extent / width;
        let number = if chunks == 1 { c(0) } else { Index::Var(chunk) };
        let first = mul(number.clone(), width);
        let mut taken = Vec::new();
        let mut body = Vec::new();
        for load in &plan.loads {
            let elements = load.elements(width);
            let place = ahead.as_ref().and_then(|ahead| self.place_ahead(ahead, load, l, &number));
            let (registers, at) = place.unwrap_or_else(|| {
                (self.vector_registers(load.array, self.array(load.array).dtype, elements, &taken), c(0))
            });
            taken.push(registers);
            if loads {
                // Where a zero is stored, what would be computed may be of elements that are not there.
                let mut need = zero_clauses.clone();
                join(&mut need, load.need.clone());
                let (src_index, zero_unless) = self
                    .with(x, first.clone(), |this| (this.index(load.array, &load.form, "from"), this.condition(&need)));
                let (dst, dst_index, width) = (registers, at.clone(), elements as u32);
                body.push(Stmt::Copy { dst, dst_index, src: load.array, src_index, width, zero_unless });
            }
            let at = if load.one { at } else { add(at, Index::Var(lane)) };
            self.vectors.insert(load.element.clone(), (registers, at));
        }
        let each = add(first.clone(), Index::Var(lane));
        let value = computes.then(|| {
            self.with(x, each.clone(), |this| match std::ptr::eq(inside, &leaf.value) {
                true => this.leaf_value(leaf, &known),
                false => this.value(inside, leaf, &known),
            })
        });
        plan.loads.iter().for_each(|load| {
            self.vectors.remove(&load.element);
        });
        if let Some(value) = value {
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
        }
        let cond = self.with(x, first, |this| this.condition(&when));
        let body = guarded(cond, body);
        if chunks == 1 {
            return Ok(Some(body));
        }
        let (var, name, start, extent) = (chunk, format!("{}_vector", l.name), c(0), c(chunks));
        Ok(Some(vec![Stmt::For { var, name, start, extent, unroll: Unroll::Full, body }]))
    }

    /// The vectors of a leaf under the guards that it has.
    pub(super) fn vectors_of(&self, leaf: &Leaf, l: &Loop) -> Result<Option<Vectors>, LowerError> {
        let Guarding { when: mut known, zero } = self.guarding.get(&leaf.id).cloned().unwrap_or_default();
        join(&mut known, zero);
        join(&mut known, self.padded(leaf).1);
        let (dst, dst_form) = self.element(leaf.target, &leaf.at)?;
        self.plan(leaf, l, (dst, &dst_form), &known)
    }

    /// What a leaf computes, and where it stores zeros instead: around what becomes a tile in shared memory.
    fn padded<'e>(&self, leaf: &'e Leaf) -> (&'e Expr, Vec<Pred>) {
        let tile = is_shared(&self.program.buffer(leaf.target).scope);
        let inside = tile.then(|| unpadded(&leaf.value, &self.ranges)).flatten();
        inside.unwrap_or((&leaf.value, Vec::new()))
    }

    /// What a leaf loads whatever its conditions say.
    fn loads(&self, leaf: &Leaf, l: &Loop, known: &[Pred]) -> Result<Vec<Load>, LowerError> {
        let mut found = Vec::new();
        unconditional(self.padded(leaf).0, &mut found);
        let mut loads: Vec<Load> = Vec::new();
        for (buffer, at) in found {
            let forms: Option<Vec<Linear>> = at.iter().map(|e| Linear::of_expr(e, &self.nest.ranges)).collect();
            let Some(at) = forms else { continue };
            let (array, form) = self.element(buffer, &at)?;
            let global = self.is_global(buffer);
            let need = if global { missing(self.program, buffer, &at, known, &self.ranges) } else { Vec::new() };
            let element = (buffer, at);
            if !self.array(array).space.is_private() && loads.iter().all(|x| x.element != element) {
                let one = !element.1.iter().any(|index| index.uses(&|v| v == l.var));
                loads.push(Load { element, array, form, one, need });
            }
        }
        Ok(loads)
    }

    fn plan(
        &self,
        leaf: &Leaf,
        l: &Loop,
        (dst, dst_form): (ArrayId, &Linear),
        known: &[Pred],
    ) -> Result<Option<Vectors>, LowerError> {
        let mut loads = self.loads(leaf, l, known)?;
        let same = |list: &[Pred], w: i64| list.iter().all(|p| uniform(p, l.var, w));
        let fits = |array: ArrayId, form: &Linear, w: i64| {
            !self.array(array).space.is_private()
                && w * i64::from(self.array(array).dtype.bytes()) <= 16
                && takes(form, l.var, w)
        };
        for width in [16, 8, 4, 2].into_iter().filter(|w| l.extent % w == 0 && same(known, *w)) {
            let store = fits(dst, dst_form, width);
            let vector = |x: &Load| (x.one || fits(x.array, &x.form, width)) && same(&x.need, width);
            // An access that would be a vector if only it were shorter decides.
            let shorter = |array: ArrayId, form: &Linear| {
                !self.array(array).space.is_private() && takes(form, l.var, 2) && !fits(array, form, width)
            };
            if shorter(dst, dst_form) || loads.iter().any(|x| shorter(x.array, &x.form)) {
                continue;
            }
            let staged = self.mode == Mode::Load;
            if store || loads.iter().any(|x| vector(x) && (staged || !x.one)) {
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
