//! Software pipelines: copies of later tiles overlap with the arithmetic on the present one.
//!
//! ```text
//! ring of S buffers (asynchronous copies)        two buffers, through registers
//!   copy 0 .. S-2, a group each                    load 0; store 0 to slot 0; barrier
//!   for k:                                         for k:
//!     wait until group k is complete; barrier        load k+1 to registers
//!     copy k+S-1 to slot (k+S-1) % S                 compute on slot k % 2
//!     compute on slot k % S                          store the registers to the other slot; barrier
//! ```
//! One barrier in either: the slot that is written in iteration k was read in iteration k-1, before the barrier.
use super::emit::{guarded, Emitter, Mode};
use super::error::LowerError;
use super::group::is_group;
use super::nest::{flag, int_list, is_staged, leaves, Loop, Nest, Node};
use super::nested;
use super::shared::is_shared;
use super::steps::{sets, Steps};
use crate::kernel::{Cond, Index, Stmt, Unroll};
use crate::lower::index::{add, c, mul, rem};
use satune_ir::{Attr, BufferId, Program, VarId};
use satune_rewrites::keys;
use std::collections::{HashMap, HashSet};

/// Stages that no shared memory has room for, of one element each.
const MOST_STAGES: i64 = 1 << 16;

/// How tiles overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A ring of so many buffers; whether the copies are asynchronous.
    Ring(i64, bool),
    /// Two buffers, the next tile waits in registers.
    Registers,
    /// Two sets of what a warp multiplies; the next step's are loaded while this one's are multiplied.
    Sets,
}

/// A pipelined loop.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// How.
    pub form: Form,
    /// Leading nodes of the loop's body that copy.
    pub copies: usize,
    /// The shared buffers that they fill.
    pub buffers: HashSet<BufferId>,
    /// Numbers the copies of the buffers.
    pub slot: VarId,
}

impl Pipeline {
    /// Whether `wgmma` multiplies what a ring of its loop holds, and nothing else is done with it.
    pub fn is_for_groups(&self, l: &Loop) -> bool {
        let compute = l.body.get(self.copies..).unwrap_or_default();
        matches!(self.form, Form::Ring(_, true)) && !compute.is_empty() && compute.iter().all(is_group)
    }

    /// How often a buffer is held.
    pub fn slots(&self) -> i64 {
        match self.form {
            Form::Ring(n, _) => n,
            Form::Registers | Form::Sets => 2,
        }
    }
}

/// The pipelined loops of a nest. What an annotation asks for and cannot have becomes a note.
pub fn find(nest: &mut Nest, program: &Program, cp_async: bool) -> HashMap<VarId, Pipeline> {
    let mut found: Vec<(VarId, Pipeline)> = Vec::new();
    let mut notes = Vec::new();
    // Loops over steps of tiles in a ring.
    let mut steps = HashSet::new();
    for_each_loop(&nest.body, &mut |l| match plan(l, nest, program, cp_async) {
        Ok(Some(p)) if p.form == Form::Sets && !steps.contains(&l.var) => {
            notes.push(format!("loop {} is not pipelined: it is no loop over steps of a ring's tiles", l.name));
        }
        Ok(Some(p)) => {
            let of = Steps::of(&l.body[p.copies..], &p.buffers, program).and_then(|s| s.of);
            steps.extend(of.filter(|_| p.form != Form::Sets).map(|l| l.var));
            found.push((l.var, p));
        }
        Ok(None) => {}
        Err(why) => notes.push(format!("loop {} is not pipelined: {why}", l.name)),
    });
    nest.notes.extend(notes);
    found
        .into_iter()
        .map(|(v, mut p)| {
            p.slot = nest.fresh(p.slots());
            (v, p)
        })
        .collect()
}

fn for_each_loop<'n>(nodes: &'n [Node], f: &mut dyn FnMut(&'n Loop)) {
    for node in nodes {
        if let Node::Loop(l) = node {
            f(l);
            for_each_loop(&l.body, f);
        }
    }
}

fn plan(l: &Loop, nest: &Nest, program: &Program, cp_async: bool) -> Result<Option<Pipeline>, &'static str> {
    let Some(stages) = int_list(l.annotations.get(keys::PIPELINE_STAGE)) else { return Ok(None) };
    let around_another = stages.len() != l.child_sizes.len();
    let stages = match around_another {
        true => nested::stages(l, &stages)
            .ok_or("software_pipeline_stage has not one entry per statement of its body, nor is it of a pipeline around another")?,
        false => stages,
    };
    let last = stages.iter().copied().max().unwrap_or(0);
    if last == 0 {
        return Ok(None);
    }
    if last >= MOST_STAGES {
        return Err("it has more stages than any GPU has room for");
    }
    if let Some(buffers) = sets(l, &stages, program).filter(|_| last == 1) {
        return Ok(Some(Pipeline { form: Form::Sets, copies: 0, buffers, slot: l.var }));
    }
    let first = stages.iter().take_while(|s| **s == 0).count();
    if first == 0 || stages[first..].iter().any(|s| *s != last) {
        return Err("the stages are not 0 for the copies that come first and one number for all that follows");
    }
    let copies: usize = l.child_sizes[..first].iter().sum();
    let in_order = |order: Vec<i64>| around_another || order.windows(2).all(|w| w[0] < w[1]);
    if int_list(l.annotations.get(keys::PIPELINE_ORDER)).is_some_and(|o| !in_order(o)) {
        return Err("software_pipeline_order changes the order of its statements");
    }
    let (mut buffers, mut staged) = (HashSet::new(), false);
    let (mut inside, mut reads, mut written) = (HashSet::new(), HashSet::new(), HashSet::new());
    leaves(&l.body[..copies], &mut |leaf| {
        buffers.insert(leaf.target);
        staged |= is_staged(leaf);
        reads.extend(leaf.reads.iter().map(|(b, _)| *b));
        inside.insert(leaf.id);
    });
    leaves(&l.body[copies..], &mut |leaf| {
        written.insert(leaf.target);
        inside.insert(leaf.id);
    });
    if !buffers.iter().all(|b| is_shared(&program.buffer(*b).scope)) {
        return Err("its first stage does not only fill shared buffers");
    }
    if reads.iter().any(|b| written.contains(b) || buffers.contains(b)) || written.iter().any(|b| buffers.contains(b)) {
        return Err("its copies depend on what its arithmetic writes");
    }
    if written.iter().any(|b| is_shared(&program.buffer(*b).scope)) {
        return Err("its arithmetic writes shared memory");
    }
    let mut outside = false;
    nest.leaves(&mut |leaf, _| {
        let uses = buffers.contains(&leaf.target) || leaf.reads.iter().any(|(b, _)| buffers.contains(b));
        outside |= uses && !inside.contains(&leaf.id);
    });
    if outside {
        return Err("its shared buffers are used outside of it");
    }
    let asked = matches!(l.annotations.get(keys::PIPELINE_ASYNC), Some(Attr::List(s)) if s.contains(&Attr::Int(0)));
    let form = match (asked && cp_async, last) {
        (true, _) => Form::Ring(last + 1, true),
        (false, 1) if staged || asked => Form::Registers,
        _ => Form::Ring(last + 1, false),
    };
    Ok(Some(Pipeline { form, copies, buffers, slot: l.var }))
}

impl Emitter<'_> {
    /// A pipelined loop.
    pub(super) fn pipelined(&mut self, l: &Loop) -> Result<Vec<Stmt>, LowerError> {
        let Some(p) = self.pipelines.get(&l.var).cloned() else { return Ok(Vec::new()) };
        let (copies, compute) = l.body.split_at(p.copies.min(l.body.len()));
        if p.is_for_groups(l) && self.sums.is_none() {
            return self.tiles_of_groups(l, &p, copies, compute);
        }
        if let Some(steps) = Steps::of(compute, &p.buffers, self.program).filter(|_| p.form != Form::Sets) {
            return self.tiles(l, &p, copies, steps);
        }
        match p.form {
            Form::Ring(stages, asynchronous) => self.ring(l, &p, copies, compute, stages, asynchronous),
            Form::Registers => self.through_registers(l, &p, copies, compute),
            // A loop of tiles has them.
            Form::Sets => Ok(Vec::new()),
        }
    }

    /// The copies for an iteration, into a slot.
    fn fill(
        &mut self,
        l: &Loop,
        p: &Pipeline,
        copies: &[Node],
        at: (Index, Index),
        mode: Mode,
    ) -> Result<Vec<Stmt>, LowerError> {
        let (iteration, slot) = at;
        self.with(l.var, iteration, |this| this.with(p.slot, slot, |this| this.copies(copies, mode)))
    }

    fn ring(
        &mut self,
        l: &Loop,
        p: &Pipeline,
        copies: &[Node],
        compute: &[Node],
        stages: i64,
        asynchronous: bool,
    ) -> Result<Vec<Stmt>, LowerError> {
        let mode = if asynchronous { Mode::Async } else { Mode::Whole };
        let ahead = stages - 1;
        let mut out = Vec::new();
        let commit = |list: &mut Vec<Stmt>| {
            if asynchronous {
                list.push(Stmt::AsyncCommit);
            }
        };
        for s in 0..ahead {
            if s < l.extent {
                out.extend(self.fill(l, p, copies, (c(s), c(s)), mode)?);
            }
            commit(&mut out);
        }
        let lap = |this: &mut Self, k: Index, known: Option<[Index; 2]>| -> Result<Vec<Stmt>, LowerError> {
            let mut body = Vec::new();
            if asynchronous {
                body.push(Stmt::AsyncWait((stages - 2) as u32));
            }
            body.extend(this.barrier());
            match &known {
                Some([_, fill]) => {
                    body.extend(this.fill(l, p, copies, (add(k.clone(), c(ahead)), fill.clone()), mode)?)
                }
                None if l.extent > ahead => {
                    let (next, slot) = (this.fresh(), this.fresh());
                    let mut then = vec![
                        Stmt::Let { var: next, name: format!("{}_next", l.name), value: add(k.clone(), c(ahead)) },
                        Stmt::Let { var: slot, name: "fill".into(), value: rem(Index::Var(next), stages) },
                    ];
                    then.extend(this.fill(l, p, copies, (Index::Var(next), Index::Var(slot)), mode)?);
                    body.extend(guarded(Cond::Lt(k.clone(), c(l.extent - ahead)), then));
                }
                None => {}
            }
            commit(&mut body);
            let slot = match known {
                Some([slot, _]) => slot,
                None => {
                    let slot = this.fresh();
                    body.push(Stmt::Let { var: slot, name: "slot".into(), value: rem(k.clone(), stages) });
                    Index::Var(slot)
                }
            };
            body.extend(this.with(l.var, k, |this| this.with(p.slot, slot, |this| this.nodes(compute)))?);
            Ok(body)
        };
        out.extend(self.in_rounds(l, stages, ahead, compute, &lap)?);
        Ok(out)
    }

    /// The laps of a pipelined loop. Of instructions on matrices so many are written out as bring the ring back to where it was, while
    /// all of them have a next tile: then the slots, of which `lap` is told that which is read and that which is filled, are constants.
    #[allow(clippy::type_complexity)]
    fn in_rounds(
        &mut self,
        l: &Loop,
        slots: i64,
        ahead: i64,
        compute: &[Node],
        lap: &dyn Fn(&mut Self, Index, Option<[Index; 2]>) -> Result<Vec<Stmt>, LowerError>,
    ) -> Result<Vec<Stmt>, LowerError> {
        let mut matrices = false;
        leaves(compute, &mut |leaf| matrices |= leaf.instruction.is_some());
        let rounds =
            if matrices && !flag(&l.annotations, keys::ROLLED) { (l.extent - ahead).max(0) / slots } else { 0 };
        let mut out = Vec::new();
        if rounds > 1 {
            let (round, tile) = (self.fresh(), self.fresh());
            let k = add(mul(Index::Var(round), slots), Index::Var(tile));
            let fill = rem(add(Index::Var(tile), c(ahead)), slots);
            let body = lap(self, k, Some([Index::Var(tile), fill]))?;
            let start = c(0);
            let inner =
                Stmt::For { var: tile, name: l.name.clone(), start, extent: c(slots), unroll: Unroll::Full, body };
            let (start, name, body) = (c(0), format!("{}_round", l.name), vec![inner]);
            out.push(Stmt::For { var: round, name, start, extent: c(rounds), unroll: Unroll::No, body });
        }
        let first = if rounds > 1 { rounds * slots } else { 0 };
        let k = self.fresh();
        let body = lap(self, Index::Var(k), None)?;
        let (start, extent) = (c(first), c(l.extent - first));
        out.push(Stmt::For { var: k, name: l.name.clone(), start, extent, unroll: Unroll::No, body });
        Ok(out)
    }

    fn through_registers(
        &mut self,
        l: &Loop,
        p: &Pipeline,
        copies: &[Node],
        compute: &[Node],
    ) -> Result<Vec<Stmt>, LowerError> {
        let mut out = self.fill(l, p, copies, (c(0), c(0)), Mode::Load)?;
        out.extend(self.fill(l, p, copies, (c(0), c(0)), Mode::Store)?);
        out.extend(self.barrier());
        let lap = |this: &mut Self, k: Index, known: Option<[Index; 2]>| -> Result<Vec<Stmt>, LowerError> {
            let more = if known.is_some() { Cond::True } else { Cond::Lt(k.clone(), c(l.extent - 1)) };
            let (mut body, mut store) = (Vec::new(), Vec::new());
            let [slot, next, other] = match known {
                Some([slot, other]) => [slot, add(k.clone(), c(1)), other],
                None => {
                    let [slot, next, other] = [0; 3].map(|_| this.fresh());
                    body.push(Stmt::Let { var: slot, name: "slot".into(), value: rem(k.clone(), 2) });
                    body.push(Stmt::Let { var: next, name: format!("{}_next", l.name), value: add(k.clone(), c(1)) });
                    store.push(Stmt::Let { var: other, name: "fill".into(), value: rem(Index::Var(next), 2) });
                    [slot, next, other].map(Index::Var)
                }
            };
            let at = || (next.clone(), other.clone());
            let load = this.fill(l, p, copies, at(), Mode::Load)?;
            body.extend(guarded(more.clone(), load));
            body.extend(this.with(l.var, k, |this| this.with(p.slot, slot, |this| this.nodes(compute)))?);
            store.extend(this.fill(l, p, copies, at(), Mode::Store)?);
            body.extend(guarded(more, store));
            body.extend(this.barrier());
            Ok(body)
        };
        out.extend(self.in_rounds(l, 2, 1, compute, &lap)?);
        Ok(out)
    }
}
