//! The time of a block whose warps use `mma.sync` or `wmma`.
use super::{with_blocks, Facts, Inner, Share};
use crate::prediction::Infeasible;
use crate::residency::{rounded, MOST_REGISTERS};
use crate::tensor::kernel::{of_product, tiles};
use crate::tensor::work::{places, Block};
use crate::time::{largest, norm};
use crate::Descriptor;
use satune_ir::term::tensor::{mma_conditions, Gemm, Mma, TensorPlan};

/// Instructions of a warp per tile along k beyond what is counted, in kernels on `mma.sync`: 63 of 4 k steps of a loop of
/// 251 instructions are 48 counted ones and 15 others (from machine code).
const MMA_OVERHEAD: f64 = 16.0;
/// Clocks that an instruction takes longer when it shares no operand with the one before: another read of the register
/// file (estimate).
const OPERAND_CHANGE: f64 = 0.02;
/// Instructions of a warp per tile of a loop that is not unrolled by the ring's length: the stage's place (estimate).
const ROLLED_RING: f64 = 12.0;

/// Machine instructions of a `wmma`: four HMMA on sm_75, four times four steps of one on sm_70 (machine code).
fn wmma_parts(gpu: &Descriptor) -> f64 {
    if gpu.arch_number() < 75 {
        16.0
    } else {
        4.0
    }
}

/// What the loop over k adds to a tile's instructions.
pub(in crate::tensor) fn loop_issue(plan: &TensorPlan, matrix: f64) -> f64 {
    // A rolled loop computes stages and addresses anew.
    let rolled = if plan.rolled { ROLLED_RING * (plan.threads() / 32) as f64 } else { 0.0 };
    rolled + changes(plan) * matrix * OPERAND_CHANGE
}

/// A plan's block; `tensor`: clocks of the tensor cores per tile along k.
pub(super) fn inner(
    plan: &TensorPlan,
    gemm: &Gemm,
    gpu: &Descriptor,
    (counts, tensor): (&Block, f64),
    share: &Share,
) -> Result<Inner, Infeasible> {
    let in_loop = loop_issue(plan, counts.tile.matrix);
    with_share(plan, gemm, gpu, (counts, tensor), share, in_loop)
}

/// What both operands' ways add to a tile along k.
pub(super) fn share(plan: &TensorPlan, gemm: &Gemm) -> Share {
    let [a, b] = places(plan);
    Share::of(&a, gemm, &plan.operands[0]).plus(&Share::of(&b, gemm, &plan.operands[1]))
}

/// A plan whose operands' ways are given by what they add, and its loop by its instructions; of `counts`
/// what is stored at the end, the multiplications and barriers are read.
pub(in crate::tensor) fn with_share(
    plan: &TensorPlan,
    gemm: &Gemm,
    gpu: &Descriptor,
    (counts, tensor): (&Block, f64),
    share: &Share,
    in_loop: f64,
) -> Result<Inner, Infeasible> {
    let op = plan.instruction;
    if !gpu.cp_async && op.is_async() {
        return Err(Infeasible::CpAsync { arch: gpu.arch.clone() });
    }
    let threads = plan.threads();
    let warps = (threads / 32) as f64;
    let sets = mma_conditions::sets(&plan.operands);
    let waiting = share.waiting * i64::from(plan.stages.saturating_sub(2));
    let mut registers = mma_conditions::registers(op, plan.warp, share.registers + waiting);
    registers = rounded(registers);
    let left = i64::from(gpu.registers_per_sm) / (threads * i64::from(plan.min_blocks.unwrap_or(1).max(1))) / 8 * 8;
    let most = left.min(MOST_REGISTERS);
    if registers > most {
        return Err(Infeasible::Registers { registers, most, threads: threads as u32 });
    }
    let parts_of_one = op.sync().map_or_else(|_| wmma_parts(gpu), |sync| f64::from(sync.parts()));
    let issued =
        counts.tile.matrix * parts_of_one + counts.tile.barriers + warps * MMA_OVERHEAD + share.issued + in_loop;
    let issue = issued / 4.0 / gpu.issue_efficiency;
    let parts = [tensor, issue, share.shared, share.moved * 32.0 / f64::from(gpu.load_store_lanes)];
    let step = largest(&parts);
    // A warp alone has a quarter of the multiprocessor's tensor cores; at the barrier it waits for its first fragments,
    // and at every step for those that have one set.
    let steps = (plan.tile[2] / i64::from(op.k())) as f64;
    let single = if sets == [2, 2] { 0.0 } else { steps };
    // Blocks that read one panel ask for it at about the same time: most wait as long as the first.
    let own = tensor * 4.0 / warps + (2.0 + single) * gpu.latency_shared;
    // What passes through registers is waited for before anything is multiplied, by all warps: a barrier keeps them together.
    let chain = match share.stands > 0.0 {
        true => share.stands * gpu.latency_dram + share.issued / 4.0 / gpu.issue_efficiency + tensor.max(own),
        false => own,
    };
    let ahead = f64::from(plan.stages - 1) - f64::from(plan.slack) - share.late;
    let waits = gpu.latency_dram / ahead.max(0.5);
    let blocks = gemm.batch * plan.split_k * tiles(gemm.m, plan.tile[0]) * tiles(gemm.n, plan.tile[1]);
    let facts = Facts {
        tile: of_product(plan.tile, plan.swapped),
        split_k: plan.split_k,
        threads,
        registers,
        shared_bytes: plan.shared_with(gemm, share.padding),
        parts,
        arrives: norm(&[chain.max(step), waits], gpu.overlap_exponent),
        comes: waits,
        end: &counts.end,
        more_end: warps * 32.0 / 4.0,
        at_once: with_blocks(blocks, gpu),
        k_tiles: counts.k_tiles,
        l2_bytes: counts.end.l2_sectors * 32.0 + counts.k_tiles as f64 * share.l2_bytes,
        most_resident: i64::MAX,
    };
    let inner = Inner::of_block(&facts, gemm, gpu)?;
    // What the first tiles are made of is waited for before any later tile's is asked for.
    let asked_twice = if share.waiting > 0 { gpu.latency_dram } else { 0.0 };
    Ok(Inner { ends: inner.ends + asked_twice, ..inner })
}

/// Clocks of the tensor cores per tile along k, where they have the instruction.
pub(in crate::tensor) fn tensor_clocks(plan: &TensorPlan, gpu: &Descriptor) -> Option<f64> {
    let [m, n, k] = plan.tile;
    Some((2 * m * n * k) as f64 / rate(plan.instruction, gpu)?)
}

/// FLOP per clock and multiprocessor of an instruction, where the GPU has it.
fn rate(op: Mma, gpu: &Descriptor) -> Option<f64> {
    let rates = gpu.tensor?;
    let rate = rates.of([op.operand(), op.accumulator()]) * rates.share(op);
    (rate > 0.0 && op.is_native(gpu.arch_number())).then_some(rate)
}

/// What a warp's multiplication takes: clocks of a multiprocessor's tensor cores, and machine instructions. None where the GPU does not
/// have it.
pub fn matrix_clocks(op: Mma, gpu: &Descriptor) -> Option<[f64; 2]> {
    let [m, n] = op.block();
    let flop = 2 * m * n * i64::from(op.k());
    let instructions = op.sync().map_or_else(|_| wmma_parts(gpu), |sync| f64::from(sync.parts()));
    Some([flop as f64 / rate(op, gpu)?, instructions])
}

/// Of a warp's instructions, the share that has neither operand from the one before: one at each turn of the inner loop,
/// none where it goes back and forth.
fn changes(plan: &TensorPlan) -> f64 {
    if plan.order.serpentine {
        return 0.0;
    }
    if plan.order.pairs {
        // Two share one; then both change.
        return 0.5;
    }
    let [m, n] = plan.instruction.block();
    let inner = if plan.order.columns { plan.warp[0] / m } else { plan.warp[1] / n };
    1.0 / inner.max(1) as f64
}
