//! Rules about sums and other reductions: each value is added once, and who reads the result reads all of it.
use super::order::At;
use super::samples::{Instance, Samples};
use super::search::{Found, Search};
use super::view::{unsound, View};
use super::walk::{Access, Walk};
use crate::schedule::Result;
use satune_ir::{BinOp, BufferId, Expr, Program};

/// Buffers through which a value is followed to see whether it matters.
const FAR: usize = 4;

/// Instances of an access that are looked at: each of them takes several searches.
const FEW: usize = 16;

/// From all kinds of instances (ends of the loops, random ones, those near the start of a loop): the first half as they
/// come, the others spread.
fn few(all: &[Instance]) -> impl Iterator<Item = &Instance> {
    let (first, rest) = all.split_at(all.len().min(FEW / 2));
    first.iter().chain(rest.iter().step_by(rest.len().div_ceil(FEW / 2).max(1)))
}

/// The accesses of a buffer that is updated somewhere, by their numbers.
struct Updated {
    buffer: BufferId,
    /// Stores of what the element held and more.
    updates: Vec<usize>,
    /// Other stores.
    sets: Vec<usize>,
    /// Loads, but those of the updates.
    reads: Vec<usize>,
}

impl Updated {
    fn all(walk: &Walk) -> Vec<Updated> {
        let mut out: Vec<Updated> = Vec::new();
        let of = |a: &Access| a.write && a.updates() && !walk.opaque.contains(&a.buffer);
        for a in walk.accesses.iter().filter(|a| of(a)) {
            if out.iter().all(|u| u.buffer != a.buffer) {
                out.push(Updated { buffer: a.buffer, updates: Vec::new(), sets: Vec::new(), reads: Vec::new() });
            }
        }
        for u in &mut out {
            for (at, a) in walk.accesses.iter().enumerate().filter(|(_, a)| a.buffer == u.buffer) {
                match (a.write, a.write && a.updates()) {
                    (_, true) => u.updates.push(at),
                    (true, _) => u.sets.push(at),
                    _ if !own(walk, at) => u.reads.push(at),
                    _ => {}
                }
            }
        }
        out
    }

    /// Whether the place is set between two moments; with none for the second, at the end.
    fn set_between(&self, walk: &Walk, place: &[i64], first: &At, last: Option<&At>) -> Found {
        let mut result = Found::Nothing;
        for &w in &self.sets {
            match walk.find(w, place, &walk.between(w, first, last), &|s| s) {
                Found::Nothing => {}
                Found::Instance(loops) => return Found::Instance(loops),
                other => result = other,
            }
        }
        result
    }
}

/// Whether a load is the one with which an update begins; of a tuple (an index and its maximum), the update of any part of
/// it, by the same block, before the part that is loaded is stored.
fn own(walk: &Walk, at: usize) -> bool {
    let load = &walk.accesses[at];
    let loaded = |store: &Access| store.buffer == load.buffer && store.indices == load.indices && store.updates();
    let Some(first) = target(walk, at) else { return false };
    let store = &walk.accesses[first];
    let later = || walk.accesses[first..].iter().filter(|a| a.write && a.block() == load.block());
    loaded(store) || (store.updates() && store.buffer != load.buffer && later().any(loaded))
}

/// The store whose value a load is part of, where there is one.
fn target(walk: &Walk, at: usize) -> Option<usize> {
    let load = &walk.accesses[at];
    let part = |store: &Access| {
        store.block() == load.block()
            && store.operands().iter().any(|(b, i)| *b == load.buffer && std::ptr::eq(*i, load.indices))
    };
    walk.accesses.iter().enumerate().skip(at).find(|(_, a)| a.write && part(a)).map(|(store, _)| store)
}

/// Whether what is stored at a moment is never seen: nothing reads it until it is overwritten, or at all where it is no
/// parameter; or it is only read for what is never seen either, over at most `far` buffers.
fn unseen(program: &Program, walk: &Walk, at: &At, far: usize) -> bool {
    let store = &walk.accesses[at.access];
    if walk.opaque.contains(&store.buffer) {
        return false;
    }
    let Some(place) = Instance::of(&store.frames, at.loops.clone()).values(store.indices) else { return false };
    let same = |write: bool| {
        let of = move |(_, a): &(usize, &Access)| a.buffer == store.buffer && a.write == write;
        walk.accesses.iter().enumerate().filter(of).map(|(i, _)| i)
    };
    let (mut end, mut sure) = (None, true);
    for w in same(true).filter(|w| !walk.accesses[*w].updates()) {
        match walk.find(w, &place, &walk.after(w, at), &|s| s.earliest()) {
            Found::Instance(loops) => {
                end = Some(At { access: w, loops });
                break;
            }
            Found::Nothing => {}
            Found::Unknown | Found::Data => sure = false,
        }
    }
    if end.is_none() && (!sure || program.params.contains(&store.buffer)) {
        return false;
    }
    same(false).filter(|r| !own(walk, *r)).all(|r| {
        // Of several readers the first and the last are looked at.
        [false, true].iter().all(|last| {
            let one = |s| if *last { Search::latest(s) } else { Search::earliest(s) };
            match walk.find(r, &place, &walk.between(r, at, end.as_ref()), &one) {
                Found::Nothing => true,
                Found::Unknown | Found::Data => false,
                Found::Instance(loops) => {
                    far > 0 && result(walk, r, loops).is_some_and(|s| unseen(program, walk, &s, far - 1))
                }
            }
        })
    })
}

/// The store that an instance of a load is part of.
fn result(walk: &Walk, load: usize, loops: Vec<i64>) -> Option<At> {
    let access = target(walk, load)?;
    (walk.accesses[access].loops() == loops.len()).then_some(At { access, loops })
}

/// What tells one update of a place from another: what it adds, by the elements that it reads.
fn operands<'a>(update: &Access<'a>) -> Vec<(BufferId, &'a [Expr])> {
    let own = |(b, i): &(BufferId, &[Expr])| *b == update.buffer && *i == update.indices;
    update.operands().into_iter().filter(|o| !own(o)).collect()
}

/// The last update before a moment (or at all) of a place by the same elements.
fn last_before(walk: &Walk, u: &Updated, like: &At, place: &[i64], end: Option<&At>) -> Last {
    let model = &walk.accesses[like.access];
    let here = Instance::of(&model.frames, like.loops.clone());
    let added = operands(model);
    let Some(elements) = added.iter().map(|(_, i)| here.values(i)).collect::<Option<Vec<_>>>() else {
        return Last::Unknown;
    };
    // What adds the same whatever it is has no name to be found by.
    if added.is_empty() {
        return Last::Unknown;
    }
    let mut unknown = false;
    for &other in u.updates.iter().rev() {
        let theirs = operands(&walk.accesses[other]);
        if theirs.len() != added.len() || theirs.iter().zip(&added).any(|(a, b)| a.0 != b.0) {
            continue;
        }
        let parts = end.map_or_else(|| vec![Vec::new()], |e| walk.before(other, e));
        let found = walk.find(other, place, &parts, &|mut s| {
            for ((_, indices), values) in theirs.iter().zip(&elements) {
                s = s.equal(indices, values);
            }
            s.latest()
        });
        match found {
            Found::Instance(loops) => return Last::At(At { access: other, loops }),
            Found::Unknown | Found::Data => unknown = true,
            Found::Nothing => {}
        }
    }
    if unknown {
        Last::Unknown
    } else {
        Last::Never
    }
}

enum Last {
    At(At),
    Never,
    Unknown,
}

/// Updates that are looked at: some of all, and the last before some of the reads, which is one that matters.
fn looked_at<'a>(walk: &Walk<'a>, u: &Updated, samples: &mut Samples<'a>) -> Vec<At> {
    let mut out: Vec<At> = Vec::new();
    for &access in &u.updates {
        out.extend(few(&samples.of(&walk.accesses[access])).map(|here| At { access, loops: here.loops.clone() }));
    }
    for &access in &u.reads {
        let read = &walk.accesses[access];
        for here in few(&samples.of(read)) {
            let Some(place) = here.values(read.indices) else { continue };
            let now = At { access, loops: here.loops.clone() };
            for &access in &u.updates {
                if let Found::Instance(loops) = walk.find(access, &place, &walk.before(access, &now), &Search::latest) {
                    let last = At { access, loops };
                    if !out.contains(&last) {
                        out.push(last);
                    }
                }
            }
        }
    }
    out
}

/// An update is not made again before the place is set anew.
pub(super) fn once<'a>(at: &View<'a, '_>, samples: &mut Samples<'a>) -> Result<()> {
    let (program, walk) = (at.program, at.walk);
    for u in Updated::all(walk) {
        for now in looked_at(walk, &u, samples) {
            let update = &walk.accesses[now.access];
            // The largest or smallest of values stays what it is when they come again.
            if matches!(update.value, Some(Expr::Binary(BinOp::Max | BinOp::Min, ..))) {
                continue;
            }
            let here = Instance::of(&update.frames, now.loops.clone());
            let Some(place) = here.values(update.indices) else { continue };
            let Last::At(before) = last_before(walk, &u, &now, &place, Some(&now)) else { continue };
            let set = u.set_between(walk, &place, &before, Some(&now));
            if set == Found::Nothing && !unseen(program, walk, &now, FAR) {
                let name = &program.buffer(u.buffer).name;
                let why = format!("{name}{place:?} is updated twice with the same values");
                return Err(unsound(why, update.block()));
            }
        }
    }
    Ok(())
}

/// Whoever reads a place reads it after all of its updates, and no value is put there between these.
pub(super) fn whole<'a>(at: &View<'a, '_>, samples: &mut Samples<'a>) -> Result<()> {
    let (program, walk) = (at.program, at.walk);
    for u in Updated::all(walk) {
        let name = &program.buffer(u.buffer).name;
        for &at in &u.reads {
            let read = &walk.accesses[at];
            for here in few(&samples.of(read)) {
                let Some(place) = here.values(read.indices) else { continue };
                let now = At { access: at, loops: here.loops.clone() };
                if !all_before(walk, &u, &place, Some(&now)) {
                    if result(walk, at, here.loops.clone()).is_some_and(|s| unseen(program, walk, &s, FAR)) {
                        continue;
                    }
                    return Err(unsound(format!("{name}{place:?} is read before it is complete"), read.block()));
                }
            }
        }
        if !program.params.contains(&u.buffer) {
            continue;
        }
        for &at in &u.updates {
            let update = &walk.accesses[at];
            for here in few(&samples.of(update)) {
                let Some(place) = here.values(update.indices) else { continue };
                if !all_before(walk, &u, &place, None) {
                    let why = format!("values that were added to {name}{place:?} are lost");
                    return Err(unsound(why, update.block()));
                }
            }
        }
    }
    Ok(())
}

/// Whether all updates of a place that there are have been made at a moment (or at the end), and none is lost.
fn all_before(walk: &Walk, u: &Updated, place: &[i64], end: Option<&At>) -> bool {
    let everything = vec![Vec::new()];
    for &update in &u.updates {
        for last in [false, true] {
            let one = |s| if last { Search::latest(s) } else { Search::earliest(s) };
            let Found::Instance(loops) = walk.find(update, place, &everything, &one) else { continue };
            let like = At { access: update, loops };
            match last_before(walk, u, &like, place, end) {
                Last::Unknown => {}
                Last::Never => return false,
                Last::At(made) => {
                    if matches!(u.set_between(walk, place, &made, end), Found::Instance(_)) {
                        return false;
                    }
                }
            }
        }
    }
    true
}
