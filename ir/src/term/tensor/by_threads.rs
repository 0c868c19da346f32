//! Tiles for `wgmma` that the threads copy which multiply them.
//!
//! The TMA brings boxes of what memory holds. What is computed on its way (packed weights), lies where data say, or has rows that are no
//! multiples of 16 bytes, threads bring: by `cp.async`, or computed of words that wait in registers. They go on while `wgmma`
//! multiplies, so that a copy of a later tile takes issue slots, and no time of the tensor cores. There is no producer, and so nothing that only
//! it does: fixed grids, clusters, stream-K, turns.
use super::wgmma::{aligned, rows, stored_across, BESIDE_SUMS};
use super::{mma, operand, Gemm, GroupMma, OperandPlan, TensorError, TileLayout, WgmmaPlan};
use crate::term::Side;

/// Tiles of a ring at least: one is multiplied, one may still be, and one is copied.
pub const LEAST_STAGES: u32 = 3;

/// How operands are copied: neighbouring threads along a row, as wide as can be, to where the instruction finds them.
pub const WAY: OperandPlan = OperandPlan { layout: TileLayout::Xor(8), ..OperandPlan::USUAL };

/// Threads have something to bring: the TMA does not take an operand as it is in memory. Else they copy no better than it does.
pub fn has_use(gemm: &Gemm) -> Result<(), TensorError> {
    let copied_first = [Side::A, Side::B].into_iter().any(|side| aligned(gemm, side).is_some());
    if copied_first || rows(gemm).is_err() {
        return Ok(());
    }
    Err(TensorError::ByThreads("the TMA brings both operands as they are in memory"))
}

/// The instruction takes operands as threads leave them, whose tiles have the order of memory.
pub fn operands(gemm: &Gemm, op: GroupMma) -> Result<(), TensorError> {
    if op != GroupMma::Wgmma {
        return Err(TensorError::ByThreads("the instructions of tcgen05 are one thread's"));
    }
    for (name, side) in [("A", Side::A), ("B", Side::B)] {
        if stored_across(gemm, side) && gemm.operand.bytes() != 2 {
            return Err(TensorError::Order { instruction: op.name(), operand: gemm.operand, side: name });
        }
    }
    Ok(())
}

/// Nothing is asked for that a producer does.
pub fn alone(plan: &WgmmaPlan) -> Result<(), TensorError> {
    let refuse = |why| Err(TensorError::ByThreads(why));
    if plan.ping_pong {
        return refuse("consumers in turn have a producer");
    }
    if plan.blocks.is_some() || plan.stream_k {
        return refuse("a fixed grid has a producer, which is ahead of the stores");
    }
    if plan.cluster != [1, 1] {
        return refuse("the TMA brings what a cluster shares");
    }
    if plan.arrive_per_warp {
        return refuse("the block meets, and nobody else says that a tile was read");
    }
    Ok(())
}

/// The ring is long enough.
pub fn stages(stages: u32) -> Result<(), TensorError> {
    if stages < LEAST_STAGES {
        return Err(TensorError::ByThreads(
            "a ring has three tiles at least: one that is copied while two are multiplied",
        ));
    }
    super::wgmma::stages(stages)
}

/// Registers of a vector that is computed: of some plans for 4-bit weights NVRTC 13 spills 32 bytes where these are not left.
const VECTOR: i64 = 8;

/// 32-bit registers of a thread: its sums, addresses, and what copies take. What tiles are computed of waits there for as many as are copied
/// ahead. Copies to shared memory are those of the warp's instruction whose operands have as many bytes along k.
pub fn registers(plan: &WgmmaPlan, gemm: &Gemm) -> i64 {
    let ([m, n, k], threads) = (plan.tile, i64::from(plan.threads()));
    let copies = |side, extent| {
        let Some(op) = GroupMma::of_warp(gemm.operand) else { return 0 };
        let waiting = operand::waiting_registers(gemm, side, [extent, k], threads, WAY.bytes);
        let more = i64::from(plan.stages.saturating_sub(LEAST_STAGES));
        let vector = if gemm.computed(side).is_some() { VECTOR } else { 0 };
        operand::copy_registers(gemm, side, op, [extent, k], threads, &WAY) + more * waiting + vector
    };
    gemm.sum_registers(plan.sums()) + BESIDE_SUMS + copies(Side::A, m) + copies(Side::B, n)
}

/// All of that fits what the block leaves to a thread.
pub fn registers_fit(plan: &WgmmaPlan, gemm: &Gemm) -> Result<(), TensorError> {
    mma::registers_fit(registers(plan, gemm), plan.threads().into(), None, i64::MAX)
}

/// Whether the plan fits the problem, beside what every plan on `wgmma` has to.
pub(super) fn check(plan: &WgmmaPlan, gemm: &Gemm) -> Result<(), TensorError> {
    operands(gemm, plan.op)?;
    alone(plan)?;
    stages(plan.stages)?;
    mma::split(gemm, plan.tile[2], plan.split_k)?;
    registers_fit(plan, gemm)
}
