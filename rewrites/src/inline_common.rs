//! What compute_inline and reverse_compute_inline share: conditions on the block, and the removal of a buffer.
use crate::access_regions;
use crate::pointers;
use crate::schedule::{Result, Schedule};
use crate::tree;
use crate::ScheduleError;
use satune_ir::{Block, BlockId, BufferId};

/// Refuses a block with an init: it is a reduction, whose result no single expression gives.
pub fn require_no_init(block: &Block) -> Result<()> {
    if block.init.is_none() {
        return Ok(());
    }
    Err(ScheduleError::refused("The block has init statement", format!("The block has init statement: {}", block.name))
        .at_block(block.id)
        .remedy("a reduction cannot be inlined; compute_at or reverse_compute_at brings it close to the other block"))
}

/// Refuses a block whose body has not the form that can be inlined; `why` says what is missing.
pub fn wrong_body(block: &Block, why: impl std::fmt::Display, remedy: &str) -> ScheduleError {
    ScheduleError::refused(
        "The block cannot be inlined because its body pattern does not meet the condition for inlining",
        format!("The block {} cannot be inlined: {why}", block.name),
    )
    .at_block(block.id)
    .remedy(remedy)
}

/// Refuses a buffer of which a block in the scope has a view or a pointer: its accesses cannot all be replaced.
pub fn require_no_views(s: &Schedule, scope: BlockId, buffer: BufferId) -> Result<()> {
    let root = s.block(scope)?;
    let inner = tree::all_realizes(&root.body).into_iter().map(|r| &r.block);
    let views =
        |b: &&Block| b.match_buffers.iter().any(|(_, region)| region.buffer == buffer) || pointers::takes(b, buffer);
    match [root].into_iter().chain(inner).find(views) {
        None => Ok(()),
        Some(block) => Err(ScheduleError::refused(
            "The buffer to be inlined has opaque access (e.g. `B.data`), or its subregion is matched into other blocks",
            format!(
                "The buffer {} has opaque access (e.g. `B.data`), or its subregion is matched into other blocks: {}",
                s.program().buffer(buffer).name,
                block.name
            ),
        )
        .at_block(block.id)
        .remedy("inline before blockize and tensorize; what an intrinsic reaches through a pointer stays a buffer")),
    }
}

/// After the last access of `buffer` is gone: the blocks that declared one get their regions anew, and the scope does not
/// allocate it any more.
pub fn drop_buffer(s: &mut Schedule, scope: BlockId, buffer: BufferId) -> Result<()> {
    let buffers = s.program().buffers.clone();
    s.update_block(scope, |b| {
        access_regions::refresh(&mut b.body, &buffers, buffer);
        b.alloc_buffers.retain(|id| *id != buffer);
    })
}
