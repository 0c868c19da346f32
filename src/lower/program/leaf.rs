//! One store: a copy, or a value.
use super::copy::Move;
use super::emit::{guarded, Emitter, Mode};
use super::error::LowerError;
use super::guards::{missing, Guarding};
use super::linear::{Atom, Linear, Ranges};
use super::nest::{Leaf, Loop, Node};
use super::pred::{join, Pred};
use crate::kernel::{ArrayId, Cond, Index, Stmt, Unroll, Value};
use crate::lower::index::c;
use satune_ir::{Attr, BufferId, Expr, VarId};
use satune_rewrites::keys;

/// What has zeros around it, and where it is none of these; none where something else is chosen.
pub fn unpadded<'e>(value: &'e Expr, ranges: &Ranges) -> Option<(&'e Expr, Vec<Pred>)> {
    let (mut load, mut clauses) = (value, Vec::new());
    // One padding may stand around another.
    while let Expr::Select { cond, then, otherwise, .. } = load {
        match (Pred::clauses(cond, ranges), otherwise.as_ref()) {
            (Some(list), Expr::Float(0, _) | Expr::Int(0, _)) => join(&mut clauses, list),
            _ => return None,
        }
        load = then.as_ref();
    }
    Some((load, clauses))
}

impl Emitter<'_> {
    /// A leaf; `lanes`: all iterations of a vectorized loop around it. What data decide of all of them is read once, before them.
    pub(super) fn leaf(&mut self, leaf: &Leaf, lanes: Option<&Loop>) -> Result<Vec<Stmt>, LowerError> {
        let data = leaf.data();
        // What has been loaded is stored where that has no say.
        let stored = self.mode == Mode::Store && self.copies_only(leaf);
        if data.is_empty() || stored || !leaf.is_steady(lanes, self.program) {
            return self.leaf_with(leaf, lanes);
        }
        let when = self.guarding.get(&leaf.id).map(|g| g.when.clone()).unwrap_or_default();
        let all = when.into_iter().filter(|p| !p.uses(&|v| lanes.is_some_and(|l| v == l.var)));
        let all: Vec<Pred> = all.collect();
        let cond = self.condition(&all);
        let mut code = self.fetched(&data, &all)?;
        let inside = self.assuming(&all, |this| this.leaf_with(leaf, lanes));
        self.fetched.clear();
        code.extend(inside?);
        Ok(guarded(cond, code))
    }

    fn leaf_with(&mut self, leaf: &Leaf, lanes: Option<&Loop>) -> Result<Vec<Stmt>, LowerError> {
        let Guarding { when, zero: zero_clauses } = self.guarding.get(&leaf.id).cloned().unwrap_or_default();
        let mut known = when.clone();
        join(&mut known, zero_clauses.clone());
        join(&mut known, self.assumed.clone());
        if let Some(l) = lanes.filter(|_| self.waiting(leaf).is_some()) {
            if let Some(code) = self.vector_leaf(leaf, l)? {
                return Ok(code);
            }
        }
        let (dst, dst_form) = match self.mode {
            Mode::Load => self.staged(leaf),
            _ => self.element(leaf.target, &leaf.at)?,
        };
        let data = leaf.data();
        let copy = match self.mode {
            // What data decide is read first: for one element, where another's place is another's to say.
            _ if !leaf.is_steady(lanes, self.program) => None,
            Mode::Store => {
                let (src, form) = self.staged(leaf);
                Some((src, form, Vec::new()))
            }
            _ => self.as_copy(leaf, &known)?,
        };
        let lane = lanes.map(|l| (l.var, l.extent));
        if let Some((src, src_form, mut more)) = copy {
            let mut zero = if self.mode == Mode::Store { Vec::new() } else { zero_clauses };
            join(&mut zero, std::mem::take(&mut more));
            let asynchronous = (self.mode == Mode::Async).then(|| match leaf.annotations.get(keys::PREFETCH) {
                Some(Attr::Int(bytes @ (64 | 128 | 256))) => *bytes as u32,
                _ => 0,
            });
            return Ok(self.moved(&Move { dst, dst_form, src, src_form, when, zero, lane, asynchronous }));
        }
        if let Some(l) = lanes {
            if let Some(code) = self.vector_leaf(leaf, l)? {
                return Ok(code);
            }
        }
        let (index_var, loop_of) = match lanes {
            Some(l) => {
                let var = self.fresh();
                (Some((l.var, var)), Some((var, l)))
            }
            None => (None, None),
        };
        let (by_data, when): (Vec<_>, Vec<_>) = when.into_iter().partition(Pred::is_data);
        let emit = |this: &mut Self| -> Result<Vec<Stmt>, LowerError> {
            let mut code = this.fetched(&data, &when)?;
            let mut value = this.leaf_value(leaf, &known)?;
            match this.condition(&zero_clauses) {
                Cond::True => {}
                cond => {
                    let zero = Value::zero(this.array(dst).dtype);
                    value = Value::Select(cond, Box::new(value), Box::new(zero));
                }
            }
            let index = this.index(dst, &dst_form, "to");
            let cond = this.condition(&by_data);
            code.extend(guarded(cond, vec![Stmt::Store { array: dst, index, value }]));
            this.fetched.clear();
            let cond = this.condition(&when);
            Ok(guarded(cond, code))
        };
        let body = match index_var {
            Some((v, var)) => self.with(v, Index::Var(var), emit)?,
            None => emit(self)?,
        };
        Ok(match loop_of {
            Some((var, l)) => vec![Stmt::For {
                var,
                name: l.name.clone(),
                start: c(0),
                extent: c(l.extent),
                unroll: Unroll::Full,
                body,
            }],
            None => body,
        })
    }

    /// Reads the elements that decide indices and conditions into variables. One beyond its buffer is 0, and what it indexes
    /// is not used: a selection that keeps it out comes later. What is the same for all that a thread does is read at the head of the
    /// kernel.
    pub(super) fn fetched(&mut self, data: &[Atom], known: &[Pred]) -> Result<Vec<Stmt>, LowerError> {
        let mut code = Vec::new();
        for atom in data {
            let Atom::Load(buffer, dtype, at) = atom else { continue };
            if self.fetched.contains_key(atom) {
                continue;
            }
            let here = self.at_this_lap(&Linear { terms: vec![(atom.clone(), 1)], constant: 0 });
            let here = here.terms.first().map_or(atom, |(here, _)| here).clone();
            if let Some(var) = self.told.get(&here) {
                self.fetched.extend([(atom.clone(), *var), (here, *var)]);
                continue;
            }
            let once = self.is_told_once(&here);
            let need = match self.is_global(*buffer) {
                true => missing(self.program, *buffer, at, if once { &[] } else { known }, &self.nest.ranges),
                false => Vec::new(),
            };
            let (array, form) = self.element(*buffer, at)?;
            let load = Value::Load(array, self.index(array, &form, "at"));
            // Nothing of what holds here holds at the head yet.
            let assumed = if once { std::mem::take(&mut self.assumed) } else { Vec::new() };
            let cond = self.condition(&need);
            self.assumed.extend(assumed);
            let value = match cond {
                Cond::True => load,
                cond => Value::Select(cond, Box::new(load), Box::new(Value::zero(*dtype))),
            };
            let (var, name) = (self.fresh(), format!("{}_value", self.array(array).name));
            let fetch = Stmt::Fetch { var, name, value };
            match once {
                true => self.lets.push(fetch),
                false => code.push(fetch),
            }
            if once {
                self.told.insert(here.clone(), var);
            }
            self.fetched.extend([(atom.clone(), var), (here, var)]);
        }
        Ok(code)
    }

    /// Whether a thread reads one element for all of its work: no loop is in its index, and the kernel writes none of such.
    fn is_told_once(&self, atom: &Atom) -> bool {
        let mut loads = Vec::new();
        atom.loads(&mut loads);
        let read = |buffer: BufferId| {
            let mut written = false;
            self.nest.leaves(&mut |leaf, _| written |= leaf.target == buffer);
            self.is_global(buffer) && !written
        };
        !atom.uses(&|v| self.nest.thread(v).is_none())
            && loads.iter().all(|load| matches!(load, Atom::Load(buffer, ..) if read(*buffer)))
    }

    /// (array, position, condition beyond which zeros are copied) of what a leaf copies.
    fn as_copy(&self, leaf: &Leaf, known: &[Pred]) -> Result<Option<(ArrayId, Linear, Vec<Pred>)>, LowerError> {
        let ranges = &self.ranges;
        let Some((load, clauses)) = unpadded(&leaf.value, ranges) else { return Ok(None) };
        let Expr::Load(b, _) = load else { return Ok(None) };
        let Some((_, at)) = leaf.copied() else { return Ok(None) };
        if self.program.buffer(*b).dtype != self.program.buffer(leaf.target).dtype {
            return Ok(None);
        }
        let mut zero = clauses;
        if self.is_global(*b) {
            let mut known = known.to_vec();
            join(&mut known, zero.clone());
            join(&mut zero, missing(self.program, *b, at, &known, ranges));
        }
        let (array, form) = self.element(*b, at)?;
        Ok(Some((array, form, zero)))
    }

    /// Registers that hold what a leaf has loaded but not stored yet.
    pub(super) fn staged(&mut self, leaf: &Leaf) -> (ArrayId, Linear) {
        let len: i64 = self.path.iter().map(|(_, e)| e).product();
        let array = match self.staging.get(&leaf.id) {
            Some(array) => *array,
            None => {
                let buffer = self.program.buffer(leaf.target);
                let (name, dtype) = (format!("{}_next", buffer.name), buffer.dtype);
                let array = self.registers(&name, dtype, len);
                self.staging.insert(leaf.id, array);
                array
            }
        };
        (array, self.lap(|_| true))
    }

    /// The number of this lap among all of those loops around within a pipeline's copy that are so.
    pub(super) fn lap(&self, is: impl Fn(VarId) -> bool) -> Linear {
        let loops = self.path.iter().filter(|(v, _)| is(*v));
        loops.fold(Linear::of(0), |sum, (v, e)| sum.scaled(*e).plus(&Linear::var(*v), 1))
    }

    /// Emits a pipeline's copies as `mode` says.
    pub fn copies(&mut self, nodes: &[Node], mode: Mode) -> Result<Vec<Stmt>, LowerError> {
        let old = std::mem::replace(&mut self.mode, mode);
        let path = std::mem::take(&mut self.path);
        let out = self.nodes(nodes);
        self.path = path;
        self.mode = old;
        out
    }
}
