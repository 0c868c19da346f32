//! `blockize` of several blocks that follow each other.
use super::{derive, divide, nest, relaxed_all, Plan};
use crate::arith::Domains;
use crate::linear::Interval;
use crate::schedule::{BlockFlags, Result, Schedule};
use crate::tree::{self, LoopId, Node};
use crate::ScheduleError;
use satune_ir::{Block, BlockId, BlockRealize, BufferId, Expr, For, IterKind, IterVar, Range, Region, Stmt};

/// The primitive for several blocks that follow each other below one loop or block. Returns the new block.
pub fn blockize_blocks(s: &mut Schedule, blocks: &[BlockId], preserve_unit_iters: bool) -> Result<BlockId> {
    group(s, blocks, preserve_unit_iters).map_err(|e| e.within("blockize"))
}

fn group(s: &mut Schedule, blocks: &[BlockId], preserve_unit_iters: bool) -> Result<BlockId> {
    let mut at = match blocks {
        [] => {
            return Err(
                ScheduleError::value("blockize needs at least one block").remedy("give a loop, or at least one block")
            )
        }
        [first, ..] => Node::Block(*first),
    };
    for b in blocks {
        at = s.lowest_common_ancestor(at, Node::Block(*b))?;
    }
    let refused = |s: &Schedule, what: &str| {
        let names: Vec<String> = blocks.iter().filter_map(|b| s.block(*b).ok().map(|b| b.name.clone())).collect();
        blocks.iter().fold(ScheduleError::internal(format!("{what}: {}", names.join(", "))), |e, b| e.at_block(*b))
    };
    if matches!(at, Node::Block(b) if blocks.contains(&b)) {
        return Err(refused(s, "Target blocks must not be nested with each other!"));
    }
    let entries = tree::entries(s.body_of(at)?);
    let holds = |e: &Stmt| blocks.iter().any(|b| tree::contains(e, Node::Block(*b)));
    let found: Vec<usize> = (0..entries.len()).filter(|i| holds(&entries[*i])).collect();
    let (Some(&first), Some(&last)) = (found.first(), found.last()) else {
        return Err(refused(s, "Target blocks not found"));
    };
    if last - first + 1 != found.len() {
        return Err(refused(s, "Target blocks must be consecutive!"));
    }
    if found.len() != blocks.len() || found.iter().any(|i| tree::child_realizes(&entries[*i]).len() != 1) {
        return Err(refused(s, "Each target block must stand alone in its branch"));
    }
    // One plan per block, in program order; all must agree on what lies outside.
    let mut plans: Vec<Plan> = Vec::new();
    for i in &found {
        let block = tree::child_realizes(&entries[*i])[0].block.id;
        let own: Vec<LoopId> = {
            let all = s.loops_of(block)?;
            let below = all.iter().position(|l| Node::Loop(*l) == at).map_or(0, |i| i + 1);
            all[below..].to_vec()
        };
        let plan = divide(s, block, &own, preserve_unit_iters)?;
        if let Some(old) = plans.first() {
            let same = old.division.sides.len() == plan.division.sides.len()
                && old.division.outer_predicate == plan.division.outer_predicate
                && old
                    .division
                    .sides
                    .iter()
                    .zip(&plan.division.sides)
                    .all(|((a, _), (b, _))| a.extent == b.extent && a.value == b.value);
            if !same {
                return Err(refused(s, "The outer iterators of the target blocks differ"));
            }
        }
        let realize = s.realize(block)?;
        if realize.block.init.is_some() && realize.block.iter_vars.iter().any(|iv| iv.kind == IterKind::Reduce) {
            return Err(refused(s, "No reduction iter vars allowed for the outer loops when blockize multiple blocks"));
        }
        if realize.block.init.is_some() {
            return Err(refused(s, "The init of a target block would be lost"));
        }
        plans.push(plan);
    }
    let scope = s.scope_of(Node::Block(blocks[0]))?;
    let mut body = Vec::new();
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    let mut name = "outer_".to_string();
    let mut outer: Option<(Vec<IterVar>, Vec<Expr>)> = None;
    for plan in &plans {
        let loops: Vec<For> = plan.loops.iter().map(|l| s.get_loop(*l).cloned()).collect::<Result<_>>()?;
        let reused = outer.as_ref().map(|(vars, _)| vars.as_slice());
        let parts = derive(s, plan, reused, preserve_unit_iters)?;
        reads.extend(relaxed_all(s, &parts.inner.block.reads, &parts.domains)?);
        writes.extend(relaxed_all(s, &parts.inner.block.writes, &parts.domains)?);
        name.push_str(&parts.inner.block.name);
        name.push('_');
        outer.get_or_insert((parts.outer_vars, parts.outer_values));
        body.push(nest(Stmt::Realize(Box::new(parts.inner)), &loops));
    }
    let Some((iter_vars, iter_values)) = outer else { return Err(refused(s, "Target blocks not found")) };
    let id = s.program_mut().fresh_block();
    let realize = BlockRealize {
        iter_values,
        predicate: plans[0].division.outer_predicate.clone(),
        block: Block {
            iter_vars,
            reads: united(reads)?,
            writes: united(writes)?,
            ..Block::plain(id, name, Stmt::seq(body))
        },
    };
    s.update_body(at, |old| {
        let mut parts = match std::mem::replace(old, Stmt::Seq(Vec::new())) {
            Stmt::Seq(parts) => parts,
            other => vec![other],
        };
        parts.splice(first..=last, [Stmt::Realize(Box::new(realize))]);
        *old = Stmt::seq(parts);
    })?;
    s.set_flags(id, BlockFlags::default());
    s.recompute_flags(scope);
    Ok(id)
}

/// The smallest boxes that hold all regions of a buffer each.
fn united(all: Vec<Region>) -> Result<Vec<Region>> {
    let none = Domains::new();
    let mut out: Vec<(BufferId, Vec<Interval>)> = Vec::new();
    let overflow = || ScheduleError::value("an index is too large");
    for r in all {
        let of = |x: &Range| Interval::of_range(x, &none, &none).ok_or_else(overflow);
        let boxes: Vec<Interval> = r.ranges.iter().map(of).collect::<Result<_>>()?;
        match out.iter_mut().find(|(b, _)| *b == r.buffer) {
            Some((_, old)) => old.iter_mut().zip(&boxes).for_each(|(o, n)| *o = o.union(n, &none)),
            None => out.push((r.buffer, boxes)),
        }
    }
    let range = |i: &Interval| Some(Range { min: i.lo.expr(), extent: i.extent(&none)?.expr() });
    out.into_iter()
        .map(|(buffer, boxes)| {
            let ranges = boxes.iter().map(range).collect::<Option<Vec<_>>>().ok_or_else(overflow)?;
            Ok(Region { buffer, ranges })
        })
        .collect()
}
