//! Regions of buffers that blocks touch, taken together over the loops below a node.
use crate::arith::{self, constant, Domains};
use crate::flags::threads_share;
use crate::linear::Interval;
use crate::schedule::{Result, Schedule};
use crate::tree::Node;
use crate::ScheduleError;
use satune_ir::{visit, BlockId, BlockRealize, BufferId, Expr, ForKind, Range, Region, VarId};
use std::collections::HashMap;

/// What a block's iterators are bound to.
pub fn bindings(realize: &BlockRealize) -> HashMap<VarId, Expr> {
    realize.block.iter_vars.iter().zip(&realize.iter_values).map(|(iv, e)| (iv.var.id, e.clone())).collect()
}

/// A region in terms of the loops around its block.
pub fn bound(realize: &BlockRealize, region: &Region) -> Region {
    let map = bindings(realize);
    visit::map_region(region, &mut |e| visit::substitute(e, &map))
}

/// The domains of all loops at and above a node, across blocks.
pub fn domains_to(s: &Schedule, node: Node) -> Result<Domains> {
    let mut out = Domains::new();
    for n in s.path(node)? {
        if let Node::Loop(id) = n {
            out.extend(arith::domains(&[s.get_loop(id)?]));
        }
    }
    Ok(out)
}

/// The domains of a block's own iterators.
pub fn iter_domains(block: &satune_ir::Block) -> Domains {
    domains_of(&block.iter_vars)
}

/// The domains of iterators.
pub fn domains_of(iters: &[satune_ir::IterVar]) -> Domains {
    let range = |iv: &satune_ir::IterVar| Range { min: iv.min.clone(), extent: iv.extent.clone() };
    iters.iter().map(|iv| (iv.var.id, range(iv))).collect()
}

/// The loops below `above` over which a region of `buffer` in `block` is taken together. With `threads`, also the thread
/// loops at and above it whose threads share the buffer's memory.
pub fn relaxed_loops(s: &Schedule, block: BlockId, above: Node, buffer: BufferId, threads: bool) -> Result<Domains> {
    let path = s.path(Node::Block(block))?;
    let below = path.iter().position(|n| *n == above).map_or(0, |i| i + 1);
    let scope = &s.program().buffer(buffer).scope;
    let mut out = Domains::new();
    for (i, node) in path.iter().enumerate() {
        if let Node::Loop(id) = node {
            let l = s.get_loop(*id)?;
            let shared = threads && matches!(&l.kind, ForKind::ThreadBinding(tag) if threads_share(scope, tag));
            if i >= below || shared {
                out.extend(arith::domains(&[l]));
            }
        }
    }
    Ok(out)
}

/// The elements `[0, dim)` of every dimension of a buffer.
pub fn whole(s: &Schedule, buffer: BufferId) -> Result<Vec<Interval>> {
    s.program()
        .buffer(buffer)
        .shape
        .iter()
        .map(|d| match constant(d) {
            Some(d) => Ok(Interval::constant(0, d.saturating_sub(1))),
            None => Err(ScheduleError::value(format!(
                "The shape of buffer {} is not constant",
                s.program().buffer(buffer).name
            ))
            .remedy("give the buffer a constant shape")),
        })
        .collect()
}

/// A box that holds what a region of `block` covers while the loops of `loops` run. Dimensions about which nothing can be
/// said are taken whole.
pub fn relaxed(
    s: &Schedule,
    realize: &BlockRealize,
    region: &Region,
    loops: &Domains,
    outer: &Domains,
) -> Result<Vec<Interval>> {
    let dims = whole(s, region.buffer)?;
    let ranges = bound(realize, region).ranges;
    let of = |(r, dim): (&Range, Interval)| Interval::of_range(r, loops, outer).unwrap_or(dim);
    Ok(ranges.iter().zip(dims).map(of).collect())
}

/// The nth buffer region that a block reads or writes.
pub fn access(s: &Schedule, block: BlockId, index: i64, write: bool) -> Result<Region> {
    let b = s.block(block)?;
    let all = if write { &b.writes } else { &b.reads };
    usize::try_from(index)
        .ok()
        .and_then(|i| all.get(i))
        .cloned()
        .ok_or_else(|| ScheduleError::buffer_index(b, index, write))
}

/// The block of the scope that writes a buffer; none where there is none. Refused where there are several.
pub fn only_writer(graph: &crate::Scope, buffer: BufferId, name: &str) -> Result<Option<BlockId>> {
    match graph.writers_of(buffer) {
        [] => Ok(None),
        [one] => Ok(Some(*one)),
        many => {
            let mut error = ScheduleError::refused(
                "The buffer is allowed to be written by single block.",
                format!(
                    "The buffer {name} is expected to be written by single block, but got {} blocks who write it.",
                    many.len()
                ),
            )
            .remedy("let one block write the buffer, or decompose and cache it afterwards");
            error.blocks = many.to_vec();
            Err(error)
        }
    }
}

/// Refuses a name that is no memory scope.
pub fn require_storage_scope(scope: &str) -> Result<()> {
    const KNOWN: [&str; 11] = [
        "global",
        "shared",
        "warp",
        "local",
        "wmma.matrix_a",
        "wmma.matrix_b",
        "wmma.accumulator",
        "m16n8k8.matrixA",
        "m16n8k8.matrixB",
        "m16n8k8.matrixC",
        "texture",
    ];
    let tagged = |known: &str| scope.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    if KNOWN.iter().any(|known| tagged(known)) {
        return Ok(());
    }
    Err(ScheduleError::refused(
        "The input storage scope is invalid",
        format!("The input storage scope \"{scope}\" is invalid."),
    )
    .remedy("use global, shared, shared.dyn, warp, local or one of the wmma scopes"))
}
