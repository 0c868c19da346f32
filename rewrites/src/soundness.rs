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
//! 8. an update `B[i] = B[i] + ...` is repeated by a loop that it does not depend on and that does not set `B` anew;
//! 9. a loop over which an update sums sets `B` anew in each of its rounds.
//!
//! For 4, 5 and 7 an instance is shown: one at the ends of its loops that certainly runs. What it reads is compared with boxes
//! that hold all that was written before. So the check refuses nothing that is right, and may miss what is wrong.
use crate::schedule::Result;
use crate::ScheduleError;
use satune_ir::{BlockId, BlockRealize, BufferId, Expr, For, IterKind, Program, Var, VarId};
use span::{certainly, span, Env};
use std::collections::HashSet;
use walk::{Access, Frame, Walk};

mod span;
mod walk;

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
    if domains(&before).is_ok() {
        domains(&after)?;
    }
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

/// Whether a reduction iterator of a block is bound to the loop.
fn sums_over(frame: &Frame, l: &For) -> bool {
    let Frame::Block(r) = frame else { return false };
    let reduces = r.block.iter_vars.iter().zip(&r.iter_values).filter(|(iv, _)| iv.kind == IterKind::Reduce);
    reduces.into_iter().any(|(_, e)| satune_ir::visit::uses_var(e, &|v| v == l.var.id))
}

/// Whether a store below the loop, of a block of its own, is the same in all rounds.
fn same_for_all(store: &Access, at: usize, l: &For) -> bool {
    let matters = |e: &Expr| satune_ir::visit::uses_var(e, &|v| v == l.var.id);
    let free = store.frames[at + 1..].iter().all(|f| match f {
        Frame::Loop(inner) => !matters(&inner.min) && !matters(&inner.extent),
        Frame::Block(r) => !r.iter_values.iter().chain([&r.predicate]).any(matters),
        Frame::Let(_, e) | Frame::If(e, _) => !matters(e),
        Frame::Init(_) => false,
    });
    free && !store.indices.iter().chain(store.value).any(matters)
}

/// Rules 8 and 9.
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
                Frame::Init(_) => false,
            });
            let once = crate::arith::constant(&l.extent).is_none_or(|e| e <= 1);
            let here = |a: &Access| a.frames.get(at).is_some_and(|f| f.same(&Frame::Loop(l)));
            let mut resets =
                walk.accesses.iter().filter(|a| a.write && a.buffer == update.buffer && here(a) && !updates(a));
            if !once && below.iter().any(|f| sums_over(f, l)) && resets.clone().any(|a| same_for_all(a, at, l)) {
                let name = &program.buffer(update.buffer).name;
                let why = format!("the loop {} sets {name} anew, though it sums over its rounds", l.var.name);
                return Err(unsound(why, update.block()));
            }
            if once || used || update.indices.iter().chain(update.value).any(matters) {
                continue;
            }
            if resets.next().is_none() {
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
            Frame::Init(r) => {
                if starts(r, &env) != Some(true) {
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

/// What an iterator's value can be where the block runs: `value < end` in its predicate bounds it.
fn guarded(r: &BlockRealize, value: &Expr, env: &Env) -> Option<(i64, i64)> {
    let (lo, mut hi) = span(value, env)?;
    for clause in crate::linear::conjuncts(&r.predicate) {
        if let Expr::Binary(satune_ir::BinOp::Lt, a, b) = &clause {
            if **a == *value {
                hi = hi.min(span(b, env).map_or(hi, |(_, end)| end.saturating_sub(1)));
            }
        }
    }
    (lo <= hi).then_some((lo, hi))
}

/// Whether all reductions of a block are at their start, where it can be told.
fn starts(r: &BlockRealize, env: &Env) -> Option<bool> {
    let mut all = Some(true);
    for iv in r.block.iter_vars.iter().filter(|iv| iv.kind == IterKind::Reduce) {
        match env.get(&iv.var.id).copied().zip(span(&iv.min, env)) {
            Some((at, start)) if at.1 < start.0 || start.1 < at.0 => return Some(false),
            Some((at, start)) if at == start && at.0 == at.1 => {}
            _ => all = None,
        }
    }
    all
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
            Frame::Init(r) => {
                if starts(r, &env) == Some(false) {
                    return None;
                }
            }
            Frame::Block(r) => {
                if certainly(&r.predicate, &env) == Some(false) {
                    return None;
                }
                let values: Vec<(VarId, Option<(i64, i64)>)> = r
                    .block
                    .iter_vars
                    .iter()
                    .zip(&r.iter_values)
                    .map(|(iv, e)| (iv.var.id, guarded(r, e, &env)))
                    .collect();
                env.extend(values.into_iter().filter_map(|(v, s)| Some((v, s?))));
            }
        }
    }
    Some(env)
}

#[cfg(test)]
mod tests;
