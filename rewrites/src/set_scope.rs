//! `set_scope`: put a buffer into another memory.
//!
//! before                                       after, set_scope(B, 0, "shared")
//!   B = T.sblock_alloc_buffer((16,))             B = T.sblock_alloc_buffer((16,), scope="shared")
//!
//! Legal when: 1 the index names a buffer that the block writes; 2 the memory scope exists; 3 a block allocates the buffer.
use crate::regions;
use crate::schedule::{Result, Schedule};
use crate::tree::{self, Node};
use crate::ScheduleError;
use satune_ir::{BlockId, BufferId};

/// Conditions 1 to 3. Returns the buffer.
pub fn legal(s: &Schedule, block: BlockId, index: i64, memory: &str) -> Result<BufferId> {
    let buffer = regions::access(s, block, index, true)?.buffer;
    if s.program().buffer(buffer).scope != memory {
        regions::require_storage_scope(memory)?;
        allocation(s, block, buffer)?;
    }
    Ok(buffer)
}

/// The block at or above `block` that allocates a buffer. Refused for parameters and views.
pub fn allocation(s: &Schedule, block: BlockId, buffer: BufferId) -> Result<BlockId> {
    let path = s.path(Node::Block(block))?;
    for node in path.iter().rev() {
        if let Node::Block(id) = node {
            if s.block(*id)?.alloc_buffers.contains(&buffer) {
                return Ok(*id);
            }
        }
    }
    Err(ScheduleError::refused(
        "The input buffer is not allocated by a block. This means the buffer is  either a function parameter or defined in \
         `match_buffer` of a block.",
        format!(
            "The input buffer {} is not allocated by a block. This means the buffer is either a function parameter or \
             defined in `match_buffer` of a block.",
            s.program().buffer(buffer).name
        ),
    )
    .at_block(block)
    .remedy("cache_read or cache_write the buffer: the cache is allocated by a block"))
}

/// The primitive.
pub fn set_scope(s: &mut Schedule, block: BlockId, index: i64, memory: &str) -> Result<()> {
    let buffer = legal(s, block, index, memory).map_err(|e| e.within("set_scope"))?;
    if s.program().buffer(buffer).scope != memory {
        for id in with_views(s, buffer) {
            let buffer = s.program_mut().buffer_mut(id);
            // Blocks that are made from it later are named after it.
            buffer.name = format!("{}_{memory}", buffer.name);
            buffer.scope = memory.to_string();
        }
    }
    Ok(())
}

/// A buffer, the views of its parts, and the views of these: they lie in one memory.
fn with_views(s: &Schedule, buffer: BufferId) -> Vec<BufferId> {
    let mut out = vec![buffer];
    // Outer blocks come first, so that a view is known before the views of it.
    for r in tree::all_realizes(&s.program().body.block.body) {
        for (view, region) in &r.block.match_buffers {
            if out.contains(&region.buffer) {
                out.push(*view);
            }
        }
    }
    out
}
