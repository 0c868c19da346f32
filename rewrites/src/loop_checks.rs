//! What `split`, `fuse` and `reorder` ask of a single loop.
use crate::arith::constant;
use crate::schedule::Result;
use crate::ScheduleError;
use satune_ir::{For, ForKind};

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
    .at_loop(l.var.id))
}

/// The constant extent of a loop.
pub fn constant_extent(l: &For) -> Result<i64> {
    constant(&l.extent).ok_or_else(|| {
        ScheduleError::value(format!("The extent of loop {} is not a constant", l.var.name)).at_loop(l.var.id)
    })
}
