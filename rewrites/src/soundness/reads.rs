//! Rules about what was written before it is read, and about what is written in the end.
use super::order::At;
use super::samples::{Instance, Samples};
use super::search::{Found, Search};
use super::span::span;
use super::view::{unsound, View};
use super::walk::{Access, Frame, Walk};
use crate::arith::constant;
use crate::schedule::Result;
use satune_ir::{visit, BufferId, Program};

/// Rule 5, of buffers that are neither opaque nor parameters that hold something at the start. Whether a condition holds that
/// data decides is not known, so it keeps a load from nothing.
pub(super) fn written<'a>(at: &View<'a, '_>, samples: &mut Samples<'a>) -> Result<()> {
    let walk = at.walk;
    for (number, read) in walk.accesses.iter().enumerate() {
        if read.write || walk.opaque.contains(&read.buffer) || holds_something(at, read.buffer) {
            continue;
        }
        for here in samples.despite_data(read).iter() {
            let now = At { access: number, loops: here.loops.clone() };
            let told = here.values(read.indices).is_some();
            for place in places(at.program, read, here) {
                if !written_before(walk, &now, &place, told) {
                    let name = &at.program.buffer(read.buffer).name;
                    let why = format!("{name}{place:?} is read, and nothing before has written it");
                    return Err(unsound(why, read.block()));
                }
            }
        }
    }
    Ok(())
}

/// An input that is only read, or read before it is written, holds what the caller put there.
fn holds_something(at: &View, buffer: BufferId) -> bool {
    let written = || at.walk.stores(buffer).next().is_some();
    at.program.params.contains(&buffer)
        && (at.read_first.contains(&buffer) || !written() || at.walk.written_first(buffer) == Some(false))
}

/// The element that an instance accesses. Where its index depends on data, the first and the last that it may be.
fn places(program: &Program, access: &Access, here: &Instance) -> Vec<Vec<i64>> {
    let shape = &program.buffer(access.buffer).shape;
    let ends = |last: bool| -> Option<Vec<i64>> {
        let index = |(e, dim): (&satune_ir::Expr, &satune_ir::Expr)| {
            let (lo, hi) = span(e, &here.env).unwrap_or((0, i64::MAX));
            let dim = constant(dim)?;
            Some(if last { hi.min(dim - 1) } else { lo.max(0) })
        };
        access.indices.iter().zip(shape).map(index).collect()
    };
    let mut out: Vec<Vec<i64>> = [ends(false), ends(true)].into_iter().flatten().collect();
    out.dedup();
    out
}

/// Whether something before a moment writes a place. A writer whose place depends on data writes what is read by data, and
/// nothing that can be `told`; one that only runs where data says so does, where others write the place elsewhere.
fn written_before(walk: &Walk, now: &At, place: &[i64], told: bool) -> bool {
    let buffer = walk.accesses[now.access].buffer;
    walk.stores(buffer).any(|(w, store)| {
        let parts = walk.before(w, now);
        match walk.find(w, place, &parts, &|s| s) {
            Found::Instance(_) | Found::Unknown => true,
            Found::Data if !told => true,
            Found::Data => decided(walk, store).is_some_and(|frames| {
                let found = |part: &Vec<(i64, i64)>| Search::new(frames).equal(store.indices, place).run(part);
                parts.iter().map(found).any(|found| matches!(found, Found::Instance(_) | Found::Unknown))
            }),
            Found::Nothing => false,
        }
    })
}

fn by_data(frame: &Frame) -> bool {
    matches!(frame, Frame::If(cond, _) if !visit::loads(cond).is_empty())
}

/// What stands around the conditions by data of a store, where its element is written whatever these decide.
fn decided<'s, 'a>(walk: &'s Walk<'a>, store: &'s Access<'a>) -> Option<&'s [Frame<'a>]> {
    let (around, within) = store.frames.split_at(store.frames.iter().position(by_data)?);
    if within.iter().any(|f| matches!(f, Frame::Loop(_))) {
        return None;
    }
    let alike: Vec<&Access> =
        walk.stores(store.buffer).map(|(_, s)| s).filter(|s| s.indices == store.indices).collect();
    always(&alike, around).then_some(around)
}

/// Whether one of the stores runs wherever what stands around them does.
fn always<'a>(stores: &[&Access<'a>], around: &[Frame<'a>]) -> bool {
    let within =
        |s: &&&Access<'a>| s.frames.len() >= around.len() && s.frames.iter().zip(around).all(|(a, b)| a.same(b));
    let stores: Vec<&Access> = stores.iter().filter(within).copied().collect();
    stores.iter().any(|s| match s.frames.get(around.len()) {
        None => true,
        Some(frame @ Frame::If(cond, _)) if by_data(frame) => {
            [true, false].iter().all(|holds| always(&stores, &[around, &[Frame::If(cond, *holds)]].concat()))
        }
        Some(_) => false,
    })
}

/// Rule 3: what the source writes of a parameter is written, and nothing else of it.
pub(super) fn results(source: &View, scheduled: &View) -> Result<()> {
    for (before, after) in source.program.params.iter().zip(&scheduled.program.params) {
        let name = &source.program.buffer(*before).name;
        let writes = |v: &View, b: BufferId| v.walk.stores(b).next().is_some();
        let opaque = source.walk.opaque.contains(before) || scheduled.walk.opaque.contains(after);
        if !opaque && writes(source, *before) && !writes(scheduled, *after) {
            return Err(unsound(format!("{name} is no longer written"), None));
        }
        if opaque || source.program.buffer(*before).shape != scheduled.program.buffer(*after).shape {
            continue;
        }
        let pairs = [(source, *before, scheduled, *after, true), (scheduled, *after, source, *before, false)];
        for (from, buffer, to, other, missing) in pairs {
            for (_, store) in from.walk.stores(buffer) {
                for here in super::samples::of(&store.frames, false) {
                    let Some(place) = here.values(store.indices) else { continue };
                    let all = vec![Vec::new()];
                    let hit = |(w, _)| to.walk.find(w, &place, &all, &|s| s) != Found::Nothing;
                    if to.walk.stores(other).any(hit) {
                        continue;
                    }
                    let what = if missing { "no longer written" } else { "written, which the source does not do" };
                    let block = if missing { None } else { store.block() };
                    return Err(unsound(format!("{name}{place:?} is {what}"), block));
                }
            }
        }
    }
    Ok(())
}
