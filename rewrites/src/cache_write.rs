//! `cache_write`: write to another memory first, and copy back afterwards.
//!
//! before                                after, cache_write(C, 0, "local")
//!   for i, j in T.grid(16, 16):           C_local = T.sblock_alloc_buffer((16, 16), scope="local")
//!       with T.sblock("C"):               for i, j in T.grid(16, 16):
//!           vi, vj = ...                      with T.sblock("C"):
//!           C[vi, vj] = A[vi, vj]                 vi, vj = ...
//!                                                 C_local[vi, vj] = A[vi, vj]
//!                                         for ax0, ax1 in T.grid(16, 16):
//!                                             with T.sblock("C_local"):
//!                                                 v0, v1 = T.axis.remap("SS", [ax0, ax1])
//!                                                 C[v0, v1] = C_local[v0, v1]
//!
//! Legal when: 1 the memory scope exists; 2 the index names a buffer that the block writes; 3 the block is the only one of
//! its scope that writes it; 4 it writes all of the box that is copied back, and reads nothing of it (TVM does not ask). The copy stands before the first reader of the buffer, or at the end of the scope.
use crate::arith;
use crate::cache_common::{self, Copy, Location, Redirect};
use crate::dependencies::DepKind;
use crate::linear::{all, conjuncts, Interval};
use crate::regions;
use crate::schedule::{Result, Schedule};
use crate::tree::Node;
use crate::ScheduleError;
use satune_ir::{BlockId, BufferId, Expr, Region};

/// What is cached, and where the copy stands.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The block in which the writer stands.
    pub scope: BlockId,
    /// What the block writes.
    pub region: Region,
    /// Where the copy stands.
    pub at: Location,
    /// What is copied.
    pub copied: Vec<Interval>,
    /// Conditions of the writer on the loops around the copy: where they fail nothing was written, and nothing is copied.
    pub guards: Vec<Expr>,
}

/// Conditions 1 to 4. `consumers` are blocks that will read the cache instead of the buffer.
pub fn legal(s: &Schedule, block: BlockId, index: i64, memory: &str, consumers: &[BlockId]) -> Result<Plan> {
    regions::require_storage_scope(memory)?;
    let region = regions::access(s, block, index, true)?;
    let scope = s.scope_of(Node::Block(block))?;
    let graph = s.scope(scope)?;
    regions::only_writer(&graph, region.buffer, &s.program().buffer(region.buffer).name)?;
    for c in consumers {
        s.block(*c)?;
    }
    let readers: Vec<BlockId> = graph
        .deps
        .iter()
        .filter(|d| d.from == block && d.kind == DepKind::Raw && !consumers.contains(&d.to))
        .map(|d| d.to)
        .collect();
    let at = cache_common::after_writer(s, scope, block, &readers)?;
    let guards = require_whole_writes(s, block, &region, at.node)?;
    let copied = cache_common::written_box(s, block, &region, at.node)?;
    let compact = matches!(at.node, Node::Block(_)).then_some(&copied[..]);
    let accessing: Vec<BlockId> = [&[block], consumers].concat();
    cache_common::require_replaceable(s, &accessing, region.buffer, memory, compact)?;
    Ok(Plan { scope, region, at, copied, guards })
}

/// Refuses a block that leaves elements of the cached box unwritten, or that reads what was there before: the copy back
/// would write what nobody computed. TVM does not ask.
fn require_whole_writes(s: &Schedule, block: BlockId, region: &Region, at: Node) -> Result<Vec<Expr>> {
    let realize = s.realize(block)?;
    let name = &s.program().buffer(region.buffer).name;
    let refused = |what: String| {
        Err(ScheduleError::refused("The block does not compute all that would be copied back", what)
            .at_block(block)
            .remedy("make the copy before loops are split, and of a buffer that the block sets as a whole"))
    };
    let updates = realize.block.init.is_none() && realize.block.reads.iter().any(|r| r.buffer == region.buffer);
    if updates && !reads_own_results(s, block, region.buffer)? {
        return refused(format!(
            "The block {} updates {name} in place: its cache would start empty",
            realize.block.name
        ));
    }
    let loops = regions::relaxed_loops(s, block, at, region.buffer, false)?;
    let ranges = regions::bound(realize, region).ranges;
    let (inner, outer): (Vec<Expr>, Vec<Expr>) = conjuncts(&realize.predicate)
        .into_iter()
        .partition(|e| satune_ir::visit::uses_var(e, &|v| loops.contains_key(&v)));
    if !arith::fills_boxes(&ranges, &loops, &all(inner)) {
        return refused(format!("The block {} may leave elements of {name} in between unwritten", realize.block.name));
    }
    Ok(outer)
}

/// Whether the blocks inside a block write all that they read of a buffer, before they read it.
fn reads_own_results(s: &Schedule, block: BlockId, buffer: BufferId) -> Result<bool> {
    let inner = s.scope(block)?;
    let (Some(first), readers) = (inner.writers_of(buffer).first(), inner.readers_of(buffer)) else { return Ok(false) };
    let place = |b: &BlockId| inner.children.iter().position(|c| c == b);
    Ok(readers.iter().all(|r| place(r) > place(first) && s.flags(*r).region_cover))
}

/// The primitive. Returns the block that copies back.
pub fn cache_write(
    s: &mut Schedule,
    block: BlockId,
    index: i64,
    memory: &str,
    consumers: &[BlockId],
) -> Result<BlockId> {
    let plan = legal(s, block, index, memory, consumers).map_err(|e| e.within("cache_write"))?;
    apply(s, block, &plan, memory, consumers).map_err(|e| e.within("cache_write"))
}

fn apply(s: &mut Schedule, block: BlockId, plan: &Plan, memory: &str, consumers: &[BlockId]) -> Result<BlockId> {
    let to = plan.region.buffer;
    let compact = matches!(plan.at.node, Node::Block(_));
    let around = regions::domains_to(s, plan.at.node)?;
    let cache = cache_common::cache_buffer(s, to, memory, compact.then_some(&plan.copied));
    let copy = Copy { from: cache, to, cache, region: plan.copied.clone(), compact };
    let (id, nest) = cache_common::copy_nest(s, &copy, &around);
    let redirect = Redirect { from: to, to: cache, origin: compact.then_some(&plan.copied) };
    s.update_realize(block, |r| redirect.reads_and_writes(r))?;
    let readers: Vec<BlockId> = consumers.iter().copied().filter(|c| *c != block).collect();
    s.update_realizes(&readers, &mut |r| redirect.reads(r))?;
    cache_common::place(s, plan.scope, cache, plan.at, id, nest)?;
    if !plan.guards.is_empty() {
        s.update_realize(id, |r| {
            r.predicate = all(plan.guards.iter().cloned().chain(conjuncts(&r.predicate)));
        })?;
        s.update_affine_binding(id);
    }
    Ok(id)
}
