//! Vectorized loops that compute: neighbouring elements are loaded and stored by one access of up to 16 bytes.
//!
//! ```text
//!   for v in vectorized(4):             A_vector = A[4 j : 4 j + 4]            one load
//!     B[4 j + v] = exp(A[4 j + v])  ->  for v unrolled: B_vector[v] = exp(A_vector[v])
//!                                       B[4 j : 4 j + 4] = B_vector            one store
//! ```
//! What stands under a selection is loaded under its condition, where one decides for all of a vector; else it stays where it is, since
//! it may be out of bounds elsewhere. An element that all of a vector are computed from (a word of packed weights, a scale) is loaded
//! once before them. A short loop that adds up a thread's partial result of a reduction over threads takes vectors too.
use super::copy::uniform;
use super::emit::{guarded, Emitter, Mode};
use super::error::LowerError;
use super::guards::{missing, Guarding};
use super::leaf::unpadded;
use super::linear::{Linear, Ranges};
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

/// Where an element of a vector is that has been loaded.
pub(super) struct InRegisters {
    pub registers: ArrayId,
    pub at: Index,
    /// Conditions without which it is 0.
    pub unless_zero: Vec<Pred>,
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

/// An element that is loaded, and the conditions under which it is; none where these depend on data.
type Occurrence = (BufferId, Vec<Expr>, Option<Vec<Pred>>);

/// The loads of an expression that is evaluated under conditions.
fn occurrences(e: &Expr, under: &Option<Vec<Pred>>, ranges: &Ranges, out: &mut Vec<Occurrence>) {
    let mut of = |e: &Expr, under: &Option<Vec<Pred>>| occurrences(e, under, ranges, out);
    match e {
        Expr::Load(b, at) => out.push((*b, at.clone(), under.clone())),
        Expr::Binary(_, a, b) => {
            of(a, under);
            of(b, under);
        }
        Expr::Cast(_, a) | Expr::Not(a) => of(a, under),
        Expr::Call(_, args, _) => args.iter().for_each(|a| of(a, under)),
        Expr::Select { then, otherwise, lazy: false, .. } => {
            of(then, under);
            of(otherwise, under);
        }
        Expr::Select { cond, then, otherwise, lazy: true } => {
            let clauses = Pred::clauses(cond, ranges);
            let with = |more: Option<Vec<Pred>>| {
                let mut all = under.clone()?;
                join(&mut all, more?);
                Some(all)
            };
            of(then, &with(clauses.clone()));
            of(otherwise, &with(clauses.map(Pred::negated)));
        }
        Expr::Int(..) | Expr::Float(..) | Expr::Str(_) | Expr::Var(_) => {}
    }
}

/// The conditions under which an element is loaded here or there: the weaker ones, or those that both branches of a selection have.
fn either(a: Option<Vec<Pred>>, b: Option<Vec<Pred>>) -> Option<Vec<Pred>> {
    let always = |under: &Option<Vec<Pred>>| under.as_ref().is_some_and(Vec::is_empty);
    if always(&a) || always(&b) {
        return Some(Vec::new());
    }
    let (a, b) = (a?, b?);
    let but = |these: &[Pred], those: &[Pred]| -> Vec<Pred> {
        these.iter().filter(|p| !those.contains(p)).cloned().collect()
    };
    let (only_a, only_b) = (but(&a, &b), but(&b, &a));
    if only_a.is_empty() {
        return Some(a);
    }
    if only_b.is_empty() {
        return Some(b);
    }
    (Pred::negated(only_a.clone()) == only_b || Pred::negated(only_b) == only_a).then(|| but(&a, &only_a))
}

impl Emitter<'_> {
    /// The leaf of a vectorized (or unrolled) loop with vector accesses. None where none of its accesses is a vector.
    pub(super) fn vector_leaf(&mut self, leaf: &Leaf, l: &Loop) -> Result<Option<Vec<Stmt>>, LowerError> {
        // Partial results of threads take vectors of what they add up; the order stays.
        let sums = self.partials.contains(&leaf.target) && leaf.accumulates() && l.extent <= 16;
        let scalar = !(l.kind == LoopKind::Vectorized || sums) || !leaf.is_steady(Some(l), self.program);
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
            let unless_zero = [zero_clauses.clone(), load.need.clone()].concat();
            self.vectors.insert(load.element.clone(), InRegisters { registers, at, unless_zero });
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

    /// What a leaf loads, each element once.
    fn loads(&self, leaf: &Leaf, l: &Loop, known: &[Pred]) -> Result<Vec<Load>, LowerError> {
        let mut found = Vec::new();
        occurrences(self.padded(leaf).0, &Some(Vec::new()), &self.ranges, &mut found);
        let mut elements: Vec<(Element, Option<Vec<Pred>>)> = Vec::new();
        for (buffer, at, under) in found {
            let forms: Option<Vec<Linear>> =
                at.iter().map(|e| Linear::of_index(e, &self.nest.ranges, self.program)).collect();
            let Some(at) = forms else { continue };
            let element = (buffer, at);
            match elements.iter_mut().find(|(known, _)| *known == element) {
                Some((_, before)) => *before = either(before.take(), under),
                None => elements.push((element, under)),
            }
        }
        let mut loads: Vec<Load> = Vec::new();
        for (element, under) in elements {
            let Some(mut need) = under else { continue };
            let (buffer, at) = &element;
            let (array, form) = self.element(*buffer, at)?;
            if self.is_global(*buffer) {
                let mut here = known.to_vec();
                join(&mut here, need.clone());
                join(&mut need, missing(self.program, *buffer, at, &here, &self.ranges));
            } else if !need.is_empty() {
                continue;
            }
            if !self.array(array).space.is_private() {
                let one = !at.iter().any(|index| index.uses(&|v| v == l.var));
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
