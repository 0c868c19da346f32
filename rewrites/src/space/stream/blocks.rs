//! What is asked of a program's blocks before works are made of them: whether they may move, and which kernels take them.
use super::read::{self, StreamError};
use crate::scope;
use crate::Schedule;
use satune_ir::term::stream::{BlockKind, Stream};
use satune_ir::Program;

/// Most blocks: their numbers are bytes.
pub(super) const MOST_BLOCKS: usize = 255;

/// The blocks of a program that may move, each a map or a reduction of rows.
///
/// # Errors
/// The first that is none, or that blocks must stay where they are.
pub(in crate::space) fn strictly(program: &Program) -> Result<Stream, StreamError> {
    let schedule = Schedule::new(program.clone()).map_err(|e| StreamError::Program { reason: e.detail.clone() })?;
    let mut plain = Vec::new();
    let mut told = |block: &str, reason: String| plain.push(StreamError::Block { block: block.into(), reason });
    let stream = read::stream(program, moves(&schedule), &mut told)?;
    match plain.into_iter().next() {
        Some(first) => Err(first),
        None if stream.pipeline => Ok(stream),
        None => Err(StreamError::Program { reason: "a block writes what an earlier one reads".into() }),
    }
}

/// Whether blocks may move.
pub(super) fn moves(schedule: &Schedule) -> bool {
    scope::require_stage_pipeline(schedule, schedule.root()).is_ok()
}

/// Leaves a block to plain kernels.
pub(super) fn only_plainly(stream: &mut Stream, block: &str) {
    let blocks = stream.blocks.iter_mut().filter(|b| b.name == block && b.kind != BlockKind::Bound);
    blocks.for_each(|b| b.kind = BlockKind::Other);
}

/// How many blocks are left to plain kernels.
pub(super) fn others(stream: &Stream) -> usize {
    stream.blocks.iter().filter(|b| b.kind == BlockKind::Other).count()
}

/// Whether all blocks of a work can be one kernel without tiles.
pub(super) fn is_kernel(stream: &Stream) -> bool {
    let count = stream.blocks.len();
    (count == 1 && stream.transposed(0).is_some())
        || stream.fits_plain(0, count)
        || stream.fits_flat(0, count)
        || stream.fits_row(0, count)
}

/// Whether some kernel begins with a block.
pub(super) fn begins_kernel(stream: &Stream, from: usize) -> bool {
    let alone =
        stream.fits_flat(from, from + 1) || stream.transposed(from).is_some() || stream.fits_plain(from, from + 1);
    alone || (from + 1..=stream.blocks.len()).any(|to| stream.fits_row(from, to))
}
