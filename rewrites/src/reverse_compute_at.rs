//! `reverse_compute_at`: move a consumer under a loop of its producers.
//!
//! before                                after, reverse_compute_at(C, i)
//!   for i, j in T.grid(16, 30):           for i in range(16):
//!       B[i, j] = A[i, j]                     for j in range(30):
//!   for i, j in T.grid(16, 30):                   B[i, j] = A[i, j]
//!       C[i, j] = B[i, j]                     for ax0 in range(30):
//!                                                 C[i, ax0] = B[i, ax0]
//!
//! Legal when: 1 the scope is a stage pipeline; 2 the block is complete or a reduction; 3 the loop is in the same scope and
//! not above the block; 4 it is not alone in its scope; 5 under the loop, its producers stand before its consumers, and
//! all its producers are there; 6 a reduction runs every instance once: no reduction loop of a producer is at or above the
//! target, and the loops there either split its instances or leave it whole (TVM does not ask, and adds up partial sums).
use crate::arith;
use crate::compute_at_common::{self as common, Placement};
use crate::compute_domain::depends_on;
use crate::compute_domain::Direction;
use crate::regions;
use crate::schedule::{Result, Schedule};
use crate::tree::{LoopId, Node};
use crate::ScheduleError;
use satune_ir::{visit, BlockId, ForKind, IterKind};

/// Conditions 1 to 6.
pub fn legal(s: &Schedule, block: BlockId, target: LoopId, index: i64) -> Result<Placement> {
    let placement = common::legal(s, block, target, index, Direction::ToProducers)?;
    let reduces = s.block(block)?.iter_vars.iter().any(|iv| iv.kind != IterKind::Spatial);
    if reduces {
        require_finished(s, block, target)?;
        require_once(s, block, target, &placement)?;
    }
    Ok(placement)
}

/// The loops at and above `target` that run more than once.
fn repeating_loops(s: &Schedule, target: LoopId) -> Result<Vec<LoopId>> {
    let mut loops = s.loops_above(Node::Loop(target))?;
    loops.push(target);
    loops.into_iter().filter_map(|id| common::repeats(s, id).map(|r| r.then_some(id)).transpose()).collect()
}

/// Refuses a reduction under a reduction loop of its producer: it would add up what is not finished.
fn require_finished(s: &Schedule, block: BlockId, target: LoopId) -> Result<()> {
    let graph = s.scope(s.scope_of(Node::Block(block))?)?;
    for producer in graph.producers(block) {
        let realize = s.realize(producer)?;
        for id in repeating_loops(s, target)? {
            let reduces = |(iv, e): (&satune_ir::IterVar, &satune_ir::Expr)| {
                iv.kind != IterKind::Spatial && visit::uses_var(e, &|v| v == id)
            };
            if realize.block.iter_vars.iter().zip(&realize.iter_values).any(reduces) {
                let (loop_name, name) = (&s.get_loop(id)?.var.name, &s.block(block)?.name);
                return Err(ScheduleError::refused(
                    "The block would read partial results of its producer",
                    format!(
                        "The block {name} is a reduction, and loop {loop_name} reduces for its producer {}: under that loop it \
                         would accumulate results that are not finished",
                        realize.block.name
                    ),
                )
                .at_block(block)
                .at_block(producer)
                .at_loop(id)
                .remedy(format!("move {name} under a loop outside of {loop_name}")));
            }
        }
    }
    Ok(())
}

/// Refuses a reduction of which some instance would run twice without its init.
fn require_once(s: &Schedule, block: BlockId, target: LoopId, placement: &Placement) -> Result<()> {
    let outer = repeating_loops(s, target)?;
    let mut trial = s.clone();
    let nest = common::new_nest(&mut trial, block, target, placement, true)?;
    let Some((inner, realize)) = common::taken_apart(&nest) else {
        return Err(ScheduleError::internal("a nest without a block"));
    };
    let reduction: Vec<_> = realize
        .block
        .iter_vars
        .iter()
        .zip(&realize.iter_values)
        .filter(|(iv, _)| iv.kind != IterKind::Spatial)
        .collect();
    // Every reduction iterator runs in full inside: its init starts it anew each time.
    let domains = &placement.domains;
    let whole = |(iv, d): (&satune_ir::IterVar, &crate::compute_domain::Domain)| {
        iv.kind == IterKind::Spatial
            || (d.min.as_constant() == arith::constant(&iv.min)
                && Some(d.extent) == arith::constant(&iv.extent)
                && d.guard.is_none())
    };
    if realize.block.iter_vars.iter().zip(domains).all(whole) {
        return Ok(());
    }
    let refused = |why: String| {
        Err(ScheduleError::refused("The block would accumulate some values twice or out of order", why)
            .at_block(block)
            .at_loop(target)
            .remedy("choose a loop that no reduction loop of the block is left outside of"))
    };
    let name = &realize.block.name;
    for &id in &outer {
        let l = s.get_loop(id)?;
        if !realize.iter_values.iter().any(|e| depends_on(e, &[id])) {
            return refused(format!("The reduction {name} would be repeated by loop {}", l.var.name));
        }
        // Threads of a block add up what each of them has.
        let together = matches!(&l.kind, ForKind::ThreadBinding(tag) if tag.starts_with("threadIdx"));
        if l.kind != ForKind::Serial && !together && reduction.iter().any(|(_, e)| depends_on(e, &[id])) {
            return refused(format!("The reduction {name} would be split by loop {}, which is not serial", l.var.name));
        }
    }
    let mut all = regions::domains_to(s, Node::Loop(target))?;
    all.extend(inner);
    let loops = s.loops_above(Node::Loop(target))?;
    let known = loops.iter().chain([&target]);
    let here: Vec<LoopId> = known.copied().collect();
    let scope_domains = all.into_iter().filter(|(v, _)| here.contains(v) || !outer.contains(v)).collect();
    if crate::iter_map::detect(&realize.iter_values, &scope_domains, &realize.predicate, true).is_none() {
        return refused(format!("The instances of the reduction {name} would overlap between iterations"));
    }
    Ok(())
}

/// The primitive. `index` is the entry of the loop's body before which the block goes; -1 the last possible one, -2 the
/// first.
pub fn reverse_compute_at(
    s: &mut Schedule,
    block: BlockId,
    target: LoopId,
    preserve_unit_loops: bool,
    index: i64,
) -> Result<()> {
    let placement = legal(s, block, target, index).map_err(|e| e.within("reverse_compute_at"))?;
    common::apply(s, block, target, &placement, preserve_unit_loops).map_err(|e| e.within("reverse_compute_at"))
}
