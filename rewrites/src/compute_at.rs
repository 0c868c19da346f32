//! `compute_at`: move a producer under a loop of its consumers.
//!
//! before                                after, compute_at(B, i)
//!   for i, j in T.grid(16, 30):           for i in range(16):
//!       B[i, j] = A[i, j]                     for ax0 in range(30):
//!   for i, j in T.grid(16, 30):                   B[i, ax0] = A[i, ax0]
//!       C[i, j] = B[i, j]                     for j in range(30):
//!                                                 C[i, j] = B[i, j]
//!
//! Legal when: 1 the scope is a stage pipeline; 2 the block is complete or a reduction; 3 the loop is in the same scope and
//! not above the block; 4 the block writes nothing that is used outside its scope; 5 it is not alone in its scope; 6 under
//! the loop, its producers stand before its consumers, and all its consumers are there.
//! The block then runs, per iteration of the loop, over just what its consumers read there, in a new nest of serial loops.
use crate::compute_at_common::{self as common, Placement};
use crate::compute_domain::Direction;
use crate::schedule::{Result, Schedule};
use crate::tree::LoopId;
use satune_ir::BlockId;

/// Conditions 1 to 6.
pub fn legal(s: &Schedule, block: BlockId, target: LoopId, index: i64) -> Result<Placement> {
    common::legal(s, block, target, index, Direction::ToConsumers)
}

/// The primitive. `index` is the entry of the loop's body before which the block goes; -1 the last possible one, -2 the
/// first.
pub fn compute_at(
    s: &mut Schedule,
    block: BlockId,
    target: LoopId,
    preserve_unit_loops: bool,
    index: i64,
) -> Result<()> {
    let placement = legal(s, block, target, index).map_err(|e| e.within("compute_at"))?;
    common::apply(s, block, target, &placement, preserve_unit_loops).map_err(|e| e.within("compute_at"))
}
