//! Updates in place that work on a copy (`cache_inplace`): what is summed up so far goes to the copy and back, and the sum goes
//! on there. To the rules about sums the copy back looks like a result that is read too soon. Where a buffer and its copy
//! are one memory in two places (each is accessed only where it holds what was written last to either) the program means what
//! it means without the copy, and the rules look at that.
use super::order::At;
use super::samples::Samples;
use super::search::{Found, Search};
use super::walk::{Access, Walk};
use crate::cache_common::Redirect;
use crate::tree::children_and_init_mut;
use satune_ir::{BufferId, Expr, Program, Stmt};

/// The program without copies in place, and whether it has any that are one memory with what they copy.
pub(super) fn without(program: &Program) -> Option<Program> {
    let mut found = None;
    let mut program = program.clone();
    // Copies of copies are dropped one by one.
    while let Some(next) = without_one(&program) {
        program = next;
        found = Some(());
    }
    found.map(|()| program)
}

fn without_one(program: &Program) -> Option<Program> {
    let walk = Walk::of(program);
    let (copy, of) = pairs(program, &walk).into_iter().find(|(copy, of)| one_memory(&walk, [*copy, *of]))?;
    let mut program = program.clone();
    Redirect { from: copy, to: of, origin: None }.reads_and_writes(&mut program.body);
    drop_own_copies(&mut program.body.block.body);
    Some(program)
}

/// The buffer of which a store copies the same element, where it does nothing else.
fn source(store: &Access) -> Option<BufferId> {
    match store.value {
        Some(Expr::Load(buffer, indices)) if store.write && indices == store.indices => Some(*buffer),
        _ => None,
    }
}

/// Buffers that are made in the program, with those of the same shape that they are copied from and back to.
fn pairs(program: &Program, walk: &Walk) -> Vec<(BufferId, BufferId)> {
    let copies: Vec<(BufferId, BufferId)> =
        walk.accesses.iter().filter_map(|a| Some((a.buffer, source(a)?))).filter(|(to, from)| to != from).collect();
    let made = |b: &BufferId| !program.params.contains(b);
    let mut out: Vec<(BufferId, BufferId)> = copies
        .iter()
        .copied()
        .filter(|(to, from)| made(to) && copies.contains(&(*from, *to)))
        .filter(|(to, from)| program.buffer(*to).shape == program.buffer(*from).shape)
        .filter(|(to, from)| ![to, from].into_iter().any(|b| walk.opaque.contains(b)))
        .collect();
    out.dedup();
    out
}

/// Whether each of two buffers is accessed only where it holds what was last written to one of them, as far as some instances
/// of each access tell.
fn one_memory(walk: &Walk, pair: [BufferId; 2]) -> bool {
    let mut samples = Samples::default();
    let writes = |to: BufferId, but_from: BufferId| -> Vec<usize> {
        let of = |a: &Access| a.write && a.buffer == to && source(a) != Some(but_from);
        (0..walk.accesses.len()).filter(|i| of(&walk.accesses[*i])).collect()
    };
    [(pair[0], pair[1]), (pair[1], pair[0])].into_iter().all(|(here, there)| {
        let (all, news) = (writes(here, here), writes(there, here));
        let read_well =
            walk.accesses.iter().enumerate().filter(|(_, a)| !a.write && a.buffer == here).all(|(r, read)| {
                samples.of(read).iter().all(|instance| {
                    let Some(place) = instance.values(read.indices) else { return false };
                    let now = At { access: r, loops: instance.loops.clone() };
                    news.iter().all(|w| arrives(walk, *w, &place, &all, &now))
                })
            });
        // What is seen in the end is the buffer that outlives the other.
        let outlives = |a: BufferId, b: BufferId| {
            walk.depth.get(&a).copied().unwrap_or(0) <= walk.depth.get(&b).copied().unwrap_or(0)
        };
        let is_last = here == pair[1] && outlives(here, there);
        let kept = !is_last
            || news.iter().all(|w| {
                let write = &walk.accesses[*w];
                samples.of(write).iter().all(|instance| {
                    let Some(place) = instance.values(write.indices) else { return false };
                    let made = At { access: *w, loops: instance.loops.clone() };
                    all.iter().any(|back| {
                        matches!(walk.find(*back, &place, &walk.after(*back, &made), &|s| s), Found::Instance(_))
                    })
                })
            });
        read_well && kept && (here != pair[1] || is_last)
    })
}

/// Whether what `write` last put at a place before a moment was copied from there since by one of `copies`.
fn arrives(walk: &Walk, write: usize, place: &[i64], copies: &[usize], now: &At) -> bool {
    if walk.find(write, place, &walk.before(write, now), &|s| s) == Found::Nothing {
        return true;
    }
    copies.iter().any(|copy| match walk.find(*copy, place, &walk.before(*copy, now), &Search::latest) {
        Found::Instance(loops) => {
            let copied = At { access: *copy, loops };
            walk.find(write, place, &walk.between(write, &copied, Some(now)), &|s| s) == Found::Nothing
        }
        _ => false,
    })
}

/// Stores of what stands there are left out.
fn drop_own_copies(stmt: &mut Stmt) {
    let own = |s: &Stmt| match s {
        Stmt::Store { buffer, indices, value: Expr::Load(from, at) } => from == buffer && at == indices,
        _ => false,
    };
    if own(stmt) {
        *stmt = Stmt::Seq(Vec::new());
    }
    children_and_init_mut(stmt).into_iter().for_each(drop_own_copies);
}
