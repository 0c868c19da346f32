//! What a scheduled program must not do, whatever calls made it: a check that looks at the program alone.
//!
//! The verdicts of the primitives are TVM's, and TVM accepts some calls that leave a program which means something else.
//! [`check`] finds those that show in the program:
//!
//! 1. a buffer is accessed that is no parameter, allocated by no block around the access, and no view made by one;
//! 2. a buffer is read before anything was written to it, though the source wrote it first (or did not have it); or a
//!    parameter is written before it is read, though the source read it first;
//! 3. a parameter that the source writes is not written;
//! 4. an instance of a block has an iterator outside of its domain;
//! 5. an instance of a block reads an element that no instance before it can have written;
//! 6. a variable is used where nothing binds it;
//! 7. an instance of a block accesses an element outside of a buffer;
//! 8. an update `B[i] = B[i] + ...` is repeated by a loop that it does not depend on and that does not set `B` anew.
//!
//! For 4, 5 and 7 an instance is shown: one at the ends of its loops that certainly runs. What it reads is compared with boxes
//! that hold all that was written before. So the check refuses nothing that is right, and may miss what is wrong.
use crate::schedule::Result;
use crate::ScheduleError;
use satune_ir::{BlockId, BlockRealize, BufferId, Expr, For, Program, Region, Stmt, Var, VarId};
use span::{certainly, span, Env};
use std::collections::{HashMap, HashSet};

mod span;

/// What stands around an access, outermost first.
#[derive(Clone, Copy, Debug)]
enum Frame<'a> {
    Loop(&'a For),
    Block(&'a BlockRealize),
    Let(&'a Var, &'a Expr),
    If(&'a Expr, bool),
}

impl Frame<'_> {
    fn same(&self, other: &Frame) -> bool {
        match (self, other) {
            (Frame::Loop(a), Frame::Loop(b)) => std::ptr::eq(*a, *b),
            (Frame::Block(a), Frame::Block(b)) => std::ptr::eq(*a, *b),
            (Frame::Let(a, _), Frame::Let(b, _)) => a == b,
            (Frame::If(a, x), Frame::If(b, y)) => std::ptr::eq(*a, *b) && x == y,
            _ => false,
        }
    }
}

/// A load or store.
#[derive(Clone, Debug)]
struct Access<'a> {
    buffer: BufferId,
    write: bool,
    indices: &'a [Expr],
    frames: Vec<Frame<'a>>,
    /// Whether it happens in every instance that runs.
    always: bool,
    /// Of a store: its value.
    value: Option<&'a Expr>,
}

impl Access<'_> {
    fn block(&self) -> Option<BlockId> {
        innermost(&self.frames)
    }
}

fn innermost(frames: &[Frame]) -> Option<BlockId> {
    frames.iter().rev().find_map(|f| match f {
        Frame::Block(r) => Some(r.block.id),
        _ => None,
    })
}

/// All accesses of a program in its order, and what the walk met on its way.
#[derive(Debug, Default)]
struct Walk<'a> {
    accesses: Vec<Access<'a>>,
    /// Where the blocks stand.
    instances: Vec<Vec<Frame<'a>>>,
    frames: Vec<Frame<'a>>,
    visible: HashSet<BufferId>,
    /// Number of loops around the allocation.
    depth: HashMap<BufferId, usize>,
    /// Buffers about whose elements nothing is told: views, what they name, and what intrinsics get.
    opaque: HashSet<BufferId>,
    unknown: Option<(BufferId, Option<BlockId>)>,
    bound: HashSet<VarId>,
    unbound: Option<(&'a Var, Option<BlockId>)>,
    in_init: bool,
}

impl<'a> Walk<'a> {
    fn of(program: &'a Program) -> Walk<'a> {
        let mut walk = Walk { visible: program.params.iter().copied().collect(), ..Walk::default() };
        walk.realize(&program.body);
        walk
    }

    fn block(&self) -> Option<BlockId> {
        innermost(&self.frames)
    }

    fn see(&mut self, buffer: BufferId) {
        if self.unknown.is_none() && !self.visible.contains(&buffer) {
            self.unknown = Some((buffer, self.block()));
        }
    }

    fn expr(&mut self, e: &'a Expr, always: bool) {
        match e {
            Expr::Int(..) | Expr::Float(..) | Expr::Str(_) => {}
            Expr::Var(v) => {
                if self.unbound.is_none() && !self.bound.contains(&v.id) {
                    self.unbound = Some((v, self.block()));
                }
            }
            Expr::Binary(op, a, b) => {
                self.expr(a, always);
                let stops = matches!(op, satune_ir::BinOp::And | satune_ir::BinOp::Or);
                self.expr(b, always && !stops);
            }
            Expr::Not(a) | Expr::Cast(_, a) => self.expr(a, always),
            Expr::Select { cond, then, otherwise, .. } => {
                self.expr(cond, always);
                self.expr(then, false);
                self.expr(otherwise, false);
            }
            Expr::Load(buffer, indices) => {
                indices.iter().for_each(|i| self.expr(i, always));
                self.access(*buffer, indices, false, always);
            }
            Expr::Call(_, args, _) => args.iter().for_each(|a| self.expr(a, always)),
        }
    }

    fn access(&mut self, buffer: BufferId, indices: &'a [Expr], write: bool, always: bool) {
        self.see(buffer);
        let always = always && !self.in_init;
        self.accesses.push(Access { buffer, write, indices, frames: self.frames.clone(), always, value: None });
    }

    fn region(&mut self, region: &'a Region) {
        self.see(region.buffer);
    }

    fn realize(&mut self, r: &'a BlockRealize) {
        r.iter_values.iter().chain([&r.predicate]).for_each(|e| self.expr(e, true));
        let loops = self.frames.iter().filter(|f| matches!(f, Frame::Loop(_))).count();
        self.frames.push(Frame::Block(r));
        self.instances.push(self.frames.clone());
        let mut made = Vec::new();
        for buffer in &r.block.alloc_buffers {
            self.depth.insert(*buffer, loops);
            made.push(*buffer);
        }
        for (view, region) in &r.block.match_buffers {
            self.region(region);
            self.opaque.extend([*view, region.buffer]);
            made.push(*view);
        }
        made.retain(|b| self.visible.insert(*b));
        self.bound.extend(r.block.iter_vars.iter().map(|iv| iv.var.id));
        r.block.reads.iter().chain(&r.block.writes).for_each(|x| self.region(x));
        if let Some(init) = &r.block.init {
            let outer = std::mem::replace(&mut self.in_init, true);
            self.stmt(init);
            self.in_init = outer;
        }
        self.stmt(&r.block.body);
        for b in made {
            self.visible.remove(&b);
        }
        for iv in &r.block.iter_vars {
            self.bound.remove(&iv.var.id);
        }
        self.frames.pop();
    }

    fn within(&mut self, frame: Frame<'a>, body: &'a Stmt) {
        let var = match frame {
            Frame::Loop(l) => Some(l.var.id),
            Frame::Let(var, _) => Some(var.id),
            Frame::Block(_) | Frame::If(..) => None,
        };
        self.bound.extend(var);
        self.frames.push(frame);
        self.stmt(body);
        self.frames.pop();
        if let Some(var) = var {
            self.bound.remove(&var);
        }
    }

    fn stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            Stmt::For(l) => {
                self.expr(&l.min, true);
                self.expr(&l.extent, true);
                self.within(Frame::Loop(l), &l.body);
            }
            Stmt::Realize(r) => self.realize(r),
            Stmt::Seq(parts) => parts.iter().for_each(|s| self.stmt(s)),
            Stmt::Store { buffer, indices, value } => {
                indices.iter().chain([value]).for_each(|e| self.expr(e, true));
                self.access(*buffer, indices, true, true);
                if let Some(store) = self.accesses.last_mut() {
                    store.value = Some(value);
                }
            }
            Stmt::If { cond, then, otherwise } => {
                self.expr(cond, true);
                self.within(Frame::If(cond, true), then);
                if let Some(s) = otherwise {
                    self.within(Frame::If(cond, false), s);
                }
            }
            Stmt::Let { var, value, body } => {
                self.expr(value, true);
                self.within(Frame::Let(var, value), body);
            }
            Stmt::Evaluate(e) => {
                let touched = satune_ir::visit::loads(e);
                for (buffer, _) in touched {
                    self.see(buffer);
                    self.opaque.insert(buffer);
                }
            }
        }
    }

    /// Whether the first access of a buffer is a write; none where there is none.
    fn written_first(&self, buffer: BufferId) -> Option<bool> {
        self.accesses.iter().find(|a| a.buffer == buffer).map(|a| a.write)
    }
}

/// Refuses a program that is certainly not what `source` is.
///
/// # Errors
/// The first thing found, of those that the module lists.
pub fn check(source: &Program, scheduled: &Program) -> Result<()> {
    let (before, after) = (Walk::of(source), Walk::of(scheduled));
    if let Some((buffer, block)) = after.unknown {
        let name = &scheduled.buffer(buffer).name;
        let why = format!("{name} is accessed, but it is no parameter and no block around the access allocates it");
        return Err(unsound(why, block));
    }
    if let (None, Some((var, block))) = (before.unbound, after.unbound) {
        return Err(unsound(format!("{} is used where nothing binds it", var.name), block));
    }
    order(source, scheduled, &before, &after)?;
    // A source that breaks a rule itself may go on doing so.
    domains(&before).or_else(|_| Ok(())).and_then(|()| domains(&after))?;
    if reads(source, &before, &HashSet::new()).is_ok() {
        let read_first: HashSet<BufferId> =
            source.params.iter().copied().filter(|b| before.written_first(*b) == Some(false)).collect();
        reads(scheduled, &after, &read_first)?;
    }
    if inside(source, &before).is_ok() {
        inside(scheduled, &after)?;
    }
    if repeated(source, &before).is_ok() {
        repeated(scheduled, &after)?;
    }
    Ok(())
}

/// Rule 7.
fn inside(program: &Program, walk: &Walk) -> Result<()> {
    for access in walk.accesses.iter().filter(|a| a.always) {
        let buffer = program.buffer(access.buffer);
        for here in instances(&access.frames, &mut |_, _, _| {}) {
            for (index, dim) in access.indices.iter().zip(&buffer.shape) {
                if let (Some((lo, hi)), Some(dim)) = (span(index, &here.env), crate::arith::constant(dim)) {
                    if lo >= dim || hi < 0 {
                        let why = format!("an element of {} outside of its shape is accessed", buffer.name);
                        return Err(unsound(why, access.block()));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Rule 8.
fn repeated(program: &Program, walk: &Walk) -> Result<()> {
    let updates = |a: &Access| {
        let reads = |v: &Expr| satune_ir::visit::loads(v).iter().any(|(b, i)| *b == a.buffer && i == a.indices);
        // The largest or smallest of values stays what it is when they come again.
        let again = |v: &Expr| matches!(v, Expr::Binary(satune_ir::BinOp::Max | satune_ir::BinOp::Min, ..));
        a.value.is_some_and(|v| reads(v) && !again(v))
    };
    for update in walk.accesses.iter().filter(|a| a.write && updates(a)) {
        let depth = walk.depth.get(&update.buffer).copied().unwrap_or(0);
        let loops = update.frames.iter().enumerate().filter_map(|(at, f)| match f {
            Frame::Loop(l) => Some((at, *l)),
            _ => None,
        });
        for (at, l) in loops.skip(depth) {
            let below = &update.frames[at + 1..];
            let matters = |e: &Expr| satune_ir::visit::uses_var(e, &|v| v == l.var.id);
            let used = below.iter().any(|f| match f {
                Frame::Loop(inner) => matters(&inner.min) || matters(&inner.extent),
                Frame::Block(r) => r.iter_values.iter().chain([&r.predicate]).any(matters),
                Frame::Let(_, e) | Frame::If(e, _) => matters(e),
            });
            let once = crate::arith::constant(&l.extent).is_none_or(|e| e <= 1);
            if once || used || update.indices.iter().chain(update.value).any(matters) {
                continue;
            }
            let here = |a: &Access| a.frames.get(at).is_some_and(|f| f.same(&Frame::Loop(l)));
            if !walk.accesses.iter().any(|a| a.write && a.buffer == update.buffer && here(a) && !updates(a)) {
                let name = &program.buffer(update.buffer).name;
                let why = format!("the loop {} repeats an update of {name} that does not depend on it", l.var.name);
                return Err(unsound(why, update.block()));
            }
        }
    }
    Ok(())
}

fn unsound(why: String, block: Option<BlockId>) -> ScheduleError {
    let mut error = ScheduleError::refused("The program would mean something else", why);
    error.blocks.extend(block);
    error
}

/// Rules 2 and 3.
fn order(source: &Program, scheduled: &Program, before: &Walk, after: &Walk) -> Result<()> {
    let mut seen = HashSet::new();
    for access in &after.accesses {
        if !seen.insert(access.buffer) || after.opaque.contains(&access.buffer) {
            continue;
        }
        let name = &scheduled.buffer(access.buffer).name;
        let parameter = scheduled.params.contains(&access.buffer);
        let known = (access.buffer.0 as usize) < source.buffers.len();
        let first = known.then(|| before.written_first(access.buffer)).flatten();
        if !access.write && first != Some(false) && (first == Some(true) || !parameter) {
            return Err(unsound(format!("{name} is read before anything is written to it"), access.block()));
        }
        if access.write && first == Some(false) && parameter {
            return Err(unsound(format!("{name} is overwritten before it is read"), access.block()));
        }
    }
    for (index, buffer) in source.params.iter().enumerate() {
        let writes =
            |w: &Walk, b: BufferId| w.opaque.contains(&b) || w.accesses.iter().any(|a| a.write && a.buffer == b);
        let now = scheduled.params.get(index).copied().unwrap_or(*buffer);
        if writes(before, *buffer) && !writes(after, now) {
            return Err(unsound(format!("{} is no longer written", source.buffer(*buffer).name), None));
        }
    }
    Ok(())
}

/// An instance: the values of its loops, outermost first, and of all variables.
struct Instance {
    loops: Vec<i64>,
    env: Env,
}

/// A few instances, at the ends of the loops, that certainly run. `fault` is told of iterators outside of their domains.
fn instances(frames: &[Frame], fault: &mut dyn FnMut(&BlockRealize, &Var, i64)) -> Vec<Instance> {
    let n = frames.iter().filter(|f| matches!(f, Frame::Loop(_))).count();
    let mut corners: Vec<Vec<bool>> = Vec::new();
    if n <= 5 {
        corners.extend((0..1usize << n).map(|bits| (0..n).map(|i| bits >> i & 1 == 1).collect()));
    } else {
        for last in [false, true] {
            corners.push(vec![last; n]);
            corners.extend((0..n).map(|i| (0..n).map(|j| (i == j) != last).collect()));
        }
    }
    corners.iter().filter_map(|corner| instance(frames, corner, fault)).collect()
}

fn instance(frames: &[Frame], last: &[bool], fault: &mut dyn FnMut(&BlockRealize, &Var, i64)) -> Option<Instance> {
    let (mut env, mut loops) = (Env::new(), Vec::new());
    let point = |e: &Expr, env: &Env| span(e, env).filter(|(lo, hi)| lo == hi).map(|(v, _)| v);
    for frame in frames {
        match frame {
            Frame::Loop(l) => {
                let (min, extent) = (point(&l.min, &env)?, point(&l.extent, &env)?);
                let end = last.get(loops.len()).copied().unwrap_or(false);
                let value = if end { min.checked_add(extent)?.checked_sub(1)? } else { min };
                if extent < 1 {
                    return None;
                }
                env.insert(l.var.id, (value, value));
                loops.push(value);
            }
            Frame::Let(var, value) => {
                if let Some(s) = span(value, &env) {
                    env.insert(var.id, s);
                }
            }
            Frame::If(cond, holds) => {
                if certainly(cond, &env) != Some(*holds) {
                    return None;
                }
            }
            Frame::Block(r) => {
                if certainly(&r.predicate, &env) != Some(true) {
                    return None;
                }
                let values: Vec<_> = r.iter_values.iter().map(|e| span(e, &env)).collect();
                for (iv, value) in r.block.iter_vars.iter().zip(values) {
                    let domain = point(&iv.min, &env).zip(point(&iv.extent, &env));
                    if let (Some((lo, hi)), Some((min, extent))) = (value, domain) {
                        if lo == hi && (lo < min || lo - min >= extent) {
                            fault(r, &iv.var, lo);
                            return None;
                        }
                    }
                    if let Some(value) = value {
                        env.insert(iv.var.id, value);
                    }
                }
            }
        }
    }
    Some(Instance { loops, env })
}

/// Rule 4.
fn domains(walk: &Walk) -> Result<()> {
    for frames in &walk.instances {
        let mut found = None;
        instances(frames, &mut |r, var, value| {
            found.get_or_insert_with(|| {
                let why = format!("{} of {} is {value}, outside of its domain", var.name, r.block.name);
                unsound(why, Some(r.block.id))
            });
        });
        if let Some(error) = found {
            return Err(error);
        }
    }
    Ok(())
}

/// Rule 5, of buffers that are neither opaque nor parameters that hold something at the start.
fn reads(program: &Program, walk: &Walk, inputs: &HashSet<BufferId>) -> Result<()> {
    let written = |b: BufferId| walk.accesses.iter().any(|a| a.write && a.buffer == b);
    for (at, read) in walk.accesses.iter().enumerate() {
        let parameter = program.params.contains(&read.buffer);
        // An input that is only read, or read before it is written, holds what the caller put there.
        let given = parameter
            && (inputs.contains(&read.buffer)
                || !written(read.buffer)
                || walk.written_first(read.buffer) == Some(false));
        if read.write || !read.always || given || walk.opaque.contains(&read.buffer) {
            continue;
        }
        let depth = walk.depth.get(&read.buffer).copied().unwrap_or(0);
        for here in instances(&read.frames, &mut |_, _, _| {}) {
            let place: Option<Vec<i64>> =
                read.indices.iter().map(|e| span(e, &here.env).filter(|(a, b)| a == b).map(|(v, _)| v)).collect();
            let Some(place) = place else { continue };
            let mut earlier = walk.accesses.iter().enumerate().filter(|(_, w)| w.write && w.buffer == read.buffer);
            if !earlier.any(|(i, w)| may_have_written(w, i < at, read, &here, depth, &place)) {
                let name = &program.buffer(read.buffer).name;
                let why = format!("{name}{place:?} is read, and nothing before can have written it");
                return Err(unsound(why, read.block()));
            }
        }
    }
    Ok(())
}

/// Whether an instance of `writer` before the reading instance may write `place`. The loops that both share run up to the
/// reader's: in every round before of one of them all of what is below, and in the same round of all what stands before.
fn may_have_written(
    writer: &Access,
    stands_before: bool,
    read: &Access,
    here: &Instance,
    depth: usize,
    place: &[i64],
) -> bool {
    let shared = writer.frames.iter().zip(&read.frames).take_while(|(a, b)| a.same(b)).map(|(f, _)| f);
    let shared = shared.filter(|f| matches!(f, Frame::Loop(_))).count();
    let hits = |earlier: Option<usize>| {
        let Some(env) = rounds(&writer.frames, here, shared, earlier) else { return false };
        writer.indices.iter().zip(place).all(|(e, v)| span(e, &env).is_none_or(|(lo, hi)| lo <= *v && *v <= hi))
    };
    (stands_before && hits(None)) || (depth..shared).any(|j| hits(Some(j)))
}

/// What the variables around an access can be where the first `shared` loops are in the same round as `here`, or, with
/// `earlier`, where that loop is in an earlier one and those inside it are anywhere. None where there is no such round.
fn rounds(frames: &[Frame], here: &Instance, shared: usize, earlier: Option<usize>) -> Option<Env> {
    let (mut env, mut index) = (Env::new(), 0);
    for frame in frames {
        match frame {
            Frame::Loop(l) => {
                let all = span(&l.min, &env).zip(span(&l.extent, &env));
                let all = all.and_then(|(m, e)| Some((m.0, m.1.checked_add(e.1)?.checked_sub(1)?)));
                let value = match here.loops.get(index) {
                    Some(v) if earlier.map_or(index < shared, |j| index < j) => Some((*v, *v)),
                    Some(v) if earlier == Some(index) => {
                        let (lo, hi) = all.map_or((i64::MIN, *v - 1), |(lo, hi)| (lo, hi.min(*v - 1)));
                        if lo > hi {
                            return None;
                        }
                        Some((lo, hi))
                    }
                    _ => all,
                };
                if let Some(value) = value {
                    env.insert(l.var.id, value);
                }
                index += 1;
            }
            Frame::Let(var, value) => {
                if let Some(s) = span(value, &env) {
                    env.insert(var.id, s);
                }
            }
            Frame::If(cond, holds) => {
                if certainly(cond, &env) == Some(!*holds) {
                    return None;
                }
            }
            Frame::Block(r) => {
                if certainly(&r.predicate, &env) == Some(false) {
                    return None;
                }
                let values: Vec<(VarId, Option<(i64, i64)>)> =
                    r.block.iter_vars.iter().zip(&r.iter_values).map(|(iv, e)| (iv.var.id, span(e, &env))).collect();
                env.extend(values.into_iter().filter_map(|(v, s)| Some((v, s?))));
            }
        }
    }
    Some(env)
}

#[cfg(test)]
mod tests;
