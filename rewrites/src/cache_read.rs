//! `cache_read`: copy what blocks read to another memory first.
//!
//! before                                after, cache_read(C, 0, "shared")
//!   for i, j in T.grid(16, 16):           A_shared = T.sblock_alloc_buffer((16, 16), scope="shared")
//!       with T.sblock("C"):               for ax0, ax1 in T.grid(16, 16):
//!           vi, vj = ...                      with T.sblock("A_shared"):
//!           C[vi, vj] = A[vi, vj]                 v0, v1 = T.axis.remap("SS", [ax0, ax1])
//!                                                 A_shared[v0, v1] = A[v0, v1]
//!                                         for i, j in T.grid(16, 16):
//!                                             with T.sblock("C"):
//!                                                 vi, vj = ...
//!                                                 C[vi, vj] = A_shared[vi, vj]
//!
//! Legal when: 1 the memory scope exists; 2 the index names a buffer that the block reads; 3 all that is read of the
//! buffer in this scope is written before; 4 one block of the scope writes it, or none; 5 no consumer that is
//! given takes part in writing it (TVM crashes). The copy stands before the first
//! reader after the writer, or at the front of the scope where nothing in it writes the buffer.
use crate::cache_common::{self, Copy, Location, Redirect};
use crate::dependencies::DepKind;
use crate::linear::Interval;
use crate::regions;
use crate::schedule::{Result, Schedule};
use crate::tree::Node;
use crate::ScheduleError;
use satune_ir::{BlockId, Region};

/// What is cached, and where the copy stands.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The block whose children read the cache.
    pub scope: BlockId,
    /// What the block reads.
    pub region: Region,
    /// The only block of the scope that writes it.
    pub writer: Option<BlockId>,
    /// The blocks that will read the cache.
    pub consumers: Vec<BlockId>,
    /// Where the copy stands.
    pub at: Location,
    /// What is copied.
    pub copied: Vec<Interval>,
}

/// Conditions 1 to 5. Without `consumers`, all readers in the scope are redirected.
pub fn legal(s: &Schedule, block: BlockId, index: i64, memory: &str, consumers: &[BlockId]) -> Result<Plan> {
    regions::require_storage_scope(memory)?;
    let region = regions::access(s, block, index, false)?;
    let scope = s.scope_of(Node::Block(block))?;
    let graph = s.scope(scope)?;
    let name = s.program().buffer(region.buffer).name.clone();
    require_region_cover(s, &graph, &region)?;
    let writer = regions::only_writer(&graph, region.buffer, &name)?;
    for c in consumers {
        require_reader(s, *c, writer, &name)?;
    }
    let all: Vec<BlockId> = graph.children.iter().copied().filter(|c| Some(*c) != writer).collect();
    let (at, copied) = match writer {
        Some(writer) => {
            let readers: Vec<BlockId> = if consumers.is_empty() {
                let raw = graph.deps.iter().filter(|d| d.from == writer && d.kind == DepKind::Raw);
                raw.map(|d| d.to).collect()
            } else {
                consumers.to_vec()
            };
            let at = cache_common::after_writer(s, scope, writer, &readers)?;
            let written = s.block(writer)?.writes.iter().find(|w| w.buffer == region.buffer).cloned();
            let copied = match written {
                Some(written) => cache_common::written_box(s, writer, &written, at.node)?,
                // A block around the parts of a loop does not say what these write.
                None => regions::whole(s, region.buffer)?,
            };
            (at, copied)
        }
        None => {
            let declared = s.block(scope)?.reads.iter().find(|r| r.buffer == region.buffer).cloned();
            let copied = match declared {
                Some(r) => {
                    r.ranges.iter().map(|r| Interval::of_range(r, &Default::default(), &Default::default())).collect()
                }
                None => None,
            };
            let copied = copied.map_or_else(|| regions::whole(s, region.buffer), Ok)?;
            (Location { node: Node::Block(scope), index: 0 }, copied)
        }
    };
    let consumers = if consumers.is_empty() { all } else { consumers.to_vec() };
    let compact = matches!(at.node, Node::Block(_)).then_some(&copied[..]);
    cache_common::require_replaceable(s, &consumers, region.buffer, memory, compact)?;
    Ok(Plan { scope, region, writer, consumers, at, copied })
}

/// Refuses a consumer that is the writer, or part of it: it would read a copy of what it has not written yet. TVM crashes.
fn require_reader(s: &Schedule, consumer: BlockId, writer: Option<BlockId>, buffer: &str) -> Result<()> {
    let path = s.path(Node::Block(consumer))?;
    let Some(writer) = writer.filter(|w| path.contains(&Node::Block(*w))) else { return Ok(()) };
    let name = &s.block(consumer)?.name;
    Err(ScheduleError::refused(
        "The consumer block is part of the block that writes the buffer",
        format!("The block {name} is given as a consumer of the cache of {buffer}, but takes part in writing {buffer}"),
    )
    .at_block(consumer)
    .at_block(writer)
    .remedy(format!("leave {name} out of the consumers")))
}

/// Refuses a buffer of which a child block of the scope reads more than is written before.
pub(crate) fn require_region_cover(s: &Schedule, graph: &crate::Scope, region: &Region) -> Result<()> {
    match graph.readers_of(region.buffer).iter().find(|b| !s.flags(**b).region_cover) {
        None => Ok(()),
        Some(&b) => Err(ScheduleError::refused(
            "The scope root's region cover is not complete.",
            format!(
                "The region of buffer {} that block {} reads is not covered by what is written before it.",
                s.program().buffer(region.buffer).name,
                s.block(b)?.name
            ),
        )
        .at_block(b)
        .remedy("read a buffer that is written whole before, or a parameter")),
    }
}

/// The primitive. Returns the block that copies.
pub fn cache_read(
    s: &mut Schedule,
    block: BlockId,
    index: i64,
    memory: &str,
    consumers: &[BlockId],
) -> Result<BlockId> {
    let plan = legal(s, block, index, memory, consumers).map_err(|e| e.within("cache_read"))?;
    apply(s, &plan, memory).map_err(|e| e.within("cache_read"))
}

fn apply(s: &mut Schedule, plan: &Plan, memory: &str) -> Result<BlockId> {
    let from = plan.region.buffer;
    let compact = matches!(plan.at.node, Node::Block(_));
    let around = regions::domains_to(s, plan.at.node)?;
    let cache = cache_common::cache_buffer(s, from, memory, compact.then_some(&plan.copied));
    let copy = Copy { from, to: cache, cache, region: plan.copied.clone(), compact };
    let (id, nest) = cache_common::copy_nest(s, &copy, &around);
    let redirect = Redirect { from, to: cache, origin: compact.then_some(&plan.copied) };
    s.update_realizes(&plan.consumers, &mut |r| redirect.reads(r))?;
    cache_common::place(s, plan.scope, cache, plan.at, id, nest)?;
    Ok(id)
}
