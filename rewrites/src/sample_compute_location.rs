//! `sample_compute_location`: where a producer is to be computed: inlined, where it stands, or under one of the loops of its
//! consumers. The program stays as it is; `compute_at` with the result does it.
//!
//!   l = sample_compute_location(B)       -2: inlined; -1: where it stands; 0, 1, ...: under a loop of its first consumer
//!   compute_at(B, l)
//!
//! Candidates are the places that `compute_inline` and `compute_at` accept, as far down as all consumers share loops; loops
//! of extent 1, spatial loops below a reduction, and reductions below which no spatial loop stands are left out. Each is
//! equally probable. A decision that is no candidate (any more) gives the next one before it.
use crate::sample::Random;
use crate::schedule::{Result, Schedule};
use crate::tree::{self, LoopId, Node};
use crate::{arith, compute_at, compute_inline, queries};
use satune_ir::{visit, BlockId, IterKind, Stmt};

/// Where a block is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// In its consumers, without a block of its own.
    Inline,
    /// Where it stands.
    Root,
    /// Under a loop.
    Loop(LoopId),
}

/// The candidates with their numbers, which grow.
pub fn candidates(s: &Schedule, block: BlockId) -> Result<Vec<(i64, Location)>> {
    let mut out = Vec::new();
    s.block(block)?;
    if compute_inline::legal(s, block).is_ok() {
        out.push((-2, Location::Inline));
    }
    out.push((-1, Location::Root));
    let consumers = queries::get_consumers(s, block)?;
    let Some((first, rest)) = consumers.split_first() else { return Ok(out) };
    let mut lowest = s.parent(Node::Block(*first))?.unwrap_or(Node::Block(s.root()));
    for c in rest {
        lowest = s.lowest_common_ancestor(lowest, Node::Block(*c))?;
    }
    let loops = s.loops_of(*first)?;
    let Some(deepest) = loops.iter().position(|l| Node::Loop(*l) == lowest) else { return Ok(out) };
    let spatial = loops[..=deepest].iter().map(|l| is_spatial(s, *l)).collect::<Result<Vec<bool>>>()?;
    let last = spatial.iter().rposition(|spatial| *spatial);
    let mut reduced = false;
    for (i, (&id, &spatial)) in loops.iter().zip(&spatial).enumerate() {
        if arith::constant(&s.get_loop(id)?.extent) == Some(1) {
            continue;
        }
        if spatial && reduced || !spatial && last.is_none_or(|last| i > last) {
            break;
        }
        reduced |= !spatial;
        if compute_at::legal(s, block, id, -1).is_ok() {
            out.push((i as i64, Location::Loop(id)));
        }
    }
    Ok(out)
}

/// Whether a loop feeds spatial iterators only.
fn is_spatial(s: &Schedule, id: LoopId) -> Result<bool> {
    let body: &Stmt = s.body_of(Node::Loop(id))?;
    Ok(tree::child_realizes(body).into_iter().all(|r| {
        let fed = |(_, e): &(_, &_)| visit::uses_var(e, &|v| v == id);
        r.block.iter_vars.iter().zip(&r.iter_values).filter(fed).all(|(iv, _)| iv.kind == IterKind::Spatial)
    }))
}

/// The primitive. Returns what was decided, and where that is.
///
/// # Errors
/// Where there is no such block, or it is the root.
pub fn sample_compute_location(
    s: &Schedule,
    block: BlockId,
    decision: Option<i64>,
    random: &mut Random,
) -> Result<(i64, Location)> {
    let all = candidates(s, block).map_err(|e| e.within("sample_compute_location"))?;
    Ok(match decision {
        Some(number) => all.iter().rev().find(|(n, _)| *n <= number).copied().unwrap_or((-1, Location::Root)),
        None => all[random.below(all.len())],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{block, chain, loops};

    #[test]
    fn candidates_are_legal_places() {
        let s = chain();
        let (b, c) = (block(&s, "B"), block(&s, "C"));
        let l = loops(&s, "C");
        let all = [(-2, Location::Inline), (-1, Location::Root), (0, Location::Loop(l[0])), (1, Location::Loop(l[1]))];
        assert_eq!(candidates(&s, b).unwrap(), all);
        assert_eq!(candidates(&s, c).unwrap(), [(-1, Location::Root)]);
        let mut random = Random::new(1);
        let mut ask = |at, decision| sample_compute_location(&s, at, decision, &mut random).unwrap();
        assert_eq!(ask(b, Some(7)), all[3]);
        assert_eq!(ask(b, Some(0)), all[2]);
        assert_eq!(ask(c, Some(-2)), (-1, Location::Root));
        assert!((0..50).map(|_| ask(b, None)).collect::<std::collections::HashSet<_>>().len() == 4);
    }
}
