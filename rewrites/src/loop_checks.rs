//! What primitives ask of a single loop.
use crate::arith::constant;
use crate::schedule::{Result, Schedule};
use crate::tree::{LoopId, Node};
use crate::ScheduleError;
use satune_ir::{BlockId, For, ForKind};

/// Refuses a loop that has annotations or a thread binding: both would be lost.
pub fn require_plain(l: &For) -> Result<()> {
    if l.annotations.is_empty() && !matches!(l.kind, ForKind::ThreadBinding(_)) {
        return Ok(());
    }
    Err(ScheduleError::refused(
        "The primitive can't be applied because the loop has annotation or thread binding",
        format!("The primitive can't be applied because the loop {} has annotation or thread binding", l.var.name),
    )
    .at_loop(l.var.id)
    .remedy("split and fuse before bind and annotate"))
}

/// Refuses a loop that does not start with 0.
pub fn require_zero_start(l: &For) -> Result<()> {
    if constant(&l.min) == Some(0) {
        return Ok(());
    }
    Err(ScheduleError::refused(
        "The primitive only supports loop starting with 0",
        format!("The loop {} does not start with 0, which is not supported", l.var.name),
    )
    .at_loop(l.var.id)
    .remedy("shift the loop to begin at 0"))
}

/// The constant extent of a loop.
pub fn constant_extent(l: &For) -> Result<i64> {
    constant(&l.extent).ok_or_else(|| {
        ScheduleError::value(format!("The extent of loop {} is not a constant", l.var.name))
            .at_loop(l.var.id)
            .remedy("give the loop a constant extent")
    })
}

/// The block under a loop. Refused where there are several.
pub fn only_child(s: &Schedule, id: LoopId) -> Result<BlockId> {
    match s.child_blocks(Node::Loop(id))?.as_slice() {
        [one] => Ok(*one),
        many => {
            let mut error = ScheduleError::refused(
                "The loop is required to have only one child block",
                format!(
                    "The loop {} is required to have only one child block, but it has {}",
                    s.get_loop(id)?.var.name,
                    many.len()
                ),
            )
            .at_loop(id)
            .remedy("choose a loop further in, above one of the blocks only, or make the call before others are moved there");
            error.blocks = many.to_vec();
            Err(error)
        }
    }
}

/// Refuses a loop whose body is more, or other, than the loop `inner`.
pub fn require_only_child(s: &Schedule, outer: LoopId, inner: LoopId) -> Result<()> {
    let outer_loop = s.get_loop(outer)?;
    if Node::of(&outer_loop.body) == Some(Node::Loop(inner)) {
        return Ok(());
    }
    Err(ScheduleError::refused(
        "The inner loop is not the only child of outer loop",
        format!(
            "The inner loop {} is not the only child of the outer loop {}",
            s.get_loop(inner)?.var.name,
            outer_loop.var.name
        ),
    )
    .at_loop(outer)
    .at_loop(inner)
    .remedy("take what else stands in the outer loop out of it (compute_at moves blocks), or leave that loop out"))
}
