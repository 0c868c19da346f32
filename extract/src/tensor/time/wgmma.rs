//! The time of a block on `wgmma` or `tcgen05`.
use super::{with_blocks, Facts, Inner, Share, Walk, DRAIN};
use crate::prediction::Infeasible;
use crate::residency::{rounded, MOST_REGISTERS};
use crate::tensor::kernel::of_product;
use crate::tensor::work::Block;
use crate::time::{largest, norm, Demand, Moved};
use crate::Descriptor;
use satune_ir::term::tensor::wgmma_conditions::{aligned, columns, AlignedRows, COLUMNS};
use satune_ir::term::tensor::{by_threads_conditions, Gemm, GroupMma, WgmmaPlan, MOST_KEPT};
use satune_ir::term::Side;
use satune_ir::DType;

/// Instructions of a consumer's warp per tile along k beyond what is counted: waits, a consumer's arrival and the loop; more with
/// stream-K, whose loop is not unrolled (from machine code: 37 of which 12 multiply for three tiles, 37 or 39 in pairs, 49 to 54
/// of which 4 multiply for one).
const LOOP: f64 = 8.4;
const STREAM_LOOP: f64 = 46.0;
/// Instructions that make the descriptors of one that multiplies, where they are not kept in registers (from machine code:
/// 62 in place of 37, and 80 of which 16 multiply for four tiles).
const DESCRIPTORS: f64 = 2.0;
/// Clocks until a block of a cluster knows that the others have read a stage: an arrival at a barrier of another
/// multiprocessor, which is half of a barrier of the cluster.
const CLUSTER_SIGNAL: f64 = CLUSTER_MEETING / 4.0;
/// Clocks for the blocks of a cluster to meet, at the start and at the end: two barriers (measured on an H100: 752 for two blocks,
/// 773 for four, 814 for eight).
const CLUSTER_MEETING: f64 = 1500.0;

/// What a tile along k takes longer where consumers free the places of the ring late, with two tiles' products of each under way
/// (measured on an H100, five products of two consumers: 0.8 to 2.6%).
const LATE: f64 = 1.015;

/// Instructions of a warp for an element that goes to another row: a load, a store, the row by a product and a shift, and the place; where
/// it is turned, through shared memory (from the text; measured on an H100, a product with two such copies of rows takes 0.9 to 1.0 of what
/// is predicted).
const PER_COPIED: f64 = 12.0;
const PER_TURNED: f64 = 16.0;

/// What a warp has of a multiplication by `wgmma` of 64 rows and so many columns and values of k, of operands and sums of these types: clocks of a
/// multiprocessor's tensor cores, and machine instructions. None where the GPU does not have it.
pub fn group_clocks(types: [DType; 2], [n, k]: [u32; 2], gpu: &Descriptor) -> Option<[f64; 2]> {
    let rates = gpu.tensor?;
    let rate = rates.of(types) * rates.wgmma_share;
    let rows = GroupMma::Wgmma.rows_of_warp() as f64;
    let has = GroupMma::of(gpu.arch_number()) == Some(GroupMma::Wgmma) && gpu.tma;
    (rate > 0.0 && has).then(|| [2.0 * rows * f64::from(n) * f64::from(k) / rate, 1.0])
}

/// Time of a kernel that copies an operand's rows.
fn align_ms(copy: &AlignedRows, gemm: &Gemm, gpu: &Descriptor) -> f64 {
    let bytes = copy.rows as f64 * copy.row as f64 * f64::from(gemm.operand.bytes());
    let each = if copy.turned { PER_TURNED } else { PER_COPIED };
    let issue = copy.rows as f64 * copy.row as f64 / 32.0 * each;
    Demand {
        sm_clocks: issue / 4.0 / gpu.issue_efficiency / f64::from(gpu.sms),
        wait_clocks: 2.0 * gpu.latency_dram,
        l2_bytes: 2.0 * bytes,
        dram: Moved { read: bytes, written: bytes },
        ..Demand::default()
    }
    .time(gpu)
    .ms
}

/// Registers of a thread that loads sums from tensor memory, of which it has some at a time (from ptxas: 74 to 86).
const BESIDE_TENSOR_MEMORY: i64 = 80;

/// See [`LOOP`] and [`DESCRIPTORS`]: of a consumer.
fn overhead(plan: &WgmmaPlan, gemm: &Gemm) -> f64 {
    if plan.op == GroupMma::Tcgen05 {
        // One warp of each consumer has instructions: it waits, and makes each product's descriptors.
        return LOOP + DESCRIPTORS * plan.instructions(gemm.operand) as f64 / f64::from(plan.stages.max(1));
    }
    let per_loop = if plan.stream_k { STREAM_LOOP } else { LOOP };
    let instructions = plan.instructions(gemm.operand);
    let per_tile = instructions / if plan.stream_k { 1 } else { i64::from(plan.stages.max(1)) };
    4.0 * (per_loop + if instructions > MOST_KEPT as i64 { DESCRIPTORS * per_tile as f64 } else { 0.0 })
}

/// What does not depend on who brings a block's tiles; times of a tile are left open.
fn facts<'a>(
    plan: &WgmmaPlan,
    gemm: &Gemm,
    gpu: &Descriptor,
    counts: &'a Block,
    registers: i64,
) -> Result<Facts<'a>, Infeasible> {
    if registers > MOST_REGISTERS {
        return Err(Infeasible::Registers { registers, most: MOST_REGISTERS, threads: plan.threads() });
    }
    Ok(Facts {
        tile: of_product(plan.tile, plan.swapped),
        split_k: plan.split_k,
        threads: plan.threads().into(),
        registers,
        shared_bytes: plan.shared_bytes(gemm),
        parts: [0.0; 4],
        arrives: 0.0,
        comes: 0.0,
        end: &counts.end,
        more_end: 0.0,
        at_once: with_blocks(plan.grid(gemm), gpu),
        k_tiles: counts.k_tiles,
        l2_bytes: counts.total().l2_sectors * 32.0,
        most_resident: i64::MAX,
    })
}

/// A plan's block; `tensor`: clocks of the tensor cores per tile along k.
pub(super) fn inner(
    plan: &WgmmaPlan,
    gemm: &Gemm,
    gpu: &Descriptor,
    (counts, tensor): (&Block, f64),
    share: &Share,
) -> Result<Inner, Infeasible> {
    if plan.by_threads {
        return by_threads(plan, gemm, gpu, (counts, tensor), share);
    }
    let threads = i64::from(plan.threads());
    // Of one consumer the compiler is told to fit one block; of more, registers are dealt out for one.
    let registers = match plan.consumers {
        1 if plan.op == GroupMma::Tcgen05 => BESIDE_TENSOR_MEMORY,
        1 => (gemm.sum_registers(plan.sums()) + 56 + 7) / 8 * 8,
        _ => 65536 / threads / 8 * 8,
    };
    let same = facts(plan, gemm, gpu, counts, registers)?;
    let consumers = f64::from(plan.consumers);
    // Of those that arrive the first is among what is beyond the count.
    let at_tile = if plan.ping_pong { 1 } else { plan.consumers };
    let arrivals = f64::from(at_tile * (plan.arrivals() - 1));
    let issue = (counts.tile.matrix + consumers * overhead(plan, gemm) + arrivals) / 4.0 / gpu.issue_efficiency;
    let shared = counts.tile.shared_load_wavefronts + counts.tile.shared_store_wavefronts;
    // Consumers at work at once hide each other's waits; one that frees its tile at once stands still until then.
    let at_once = if plan.ping_pong { 1.0 } else { f64::from(plan.consumers) };
    let holds = plan.op == GroupMma::Wgmma;
    let late = if holds && at_once > 1.0 && !plan.eager_release { LATE } else { 1.0 };
    // The copy engine moves its tiles past the load/store units.
    let parts = [late * tensor, issue, shared, 0.0];
    let step = crate::time::largest(&parts);
    let stalls = if plan.eager_release { DRAIN } else { 0.0 };
    // Nobody waits between the products of `tcgen05`, which follow each other.
    let chain = if holds { step / at_once + stalls } else { step };
    let busy = step.max(chain);
    // A place in the ring is taken until its tile has come and is multiplied. Freed at once, it takes the next tile's way and
    // its multiplication every time round. Freed later, it is so when the next tile is asked for, which is after that has come: where
    // tiles come in time that is the same, and else a place less (Little's law). The producer does nothing else, so a longer ring
    // is no better where tiles come in time.
    let stages = f64::from(plan.stages);
    let signal = if plan.cluster_size() > 1 { CLUSTER_SIGNAL } else { 0.0 };
    let transfer = counts.tile.l2_sectors * 32.0 * same.at_once / gpu.l2_bytes_per_clock;
    let way = gpu.latency_dram + signal + transfer;
    let waits = if plan.eager_release || !holds { (way + busy) / stages } else { way / (stages - 1.0).max(1.0) };
    let most_resident = if holds { i64::MAX } else { COLUMNS / columns(plan.tile, plan.team()) };
    let facts = Facts { parts, arrives: busy.max(waits), comes: waits, most_resident, ..same };
    let block = Inner::of_block(&facts, gemm, gpu)?;
    let stream = plan.dealt(gemm);
    let walk = match plan.blocks {
        _ if stream.is_some() => stream.map_or(Walk::One, |s| {
            let (each, more) = s.each();
            Walk::Stream { grid: s.blocks, steps: (each + more.min(1)) as f64, pieces: s.pieces().1 as f64 }
        }),
        Some(_) => Walk::Persistent { grid: plan.grid(gemm), in_turn: plan.ping_pong },
        None => Walk::One,
    };
    Ok(Inner {
        sums: stream.map_or(plan.split_k as f64, |s| s.pieces().0 as f64 / s.tiles as f64),
        walk,
        sms: gpu.usable(plan.cluster_size()).into(),
        // Before the first tile comes the tensor map.
        once: gpu.latency_dram,
        aligned_ms: [Side::A, Side::B]
            .into_iter()
            .filter_map(|side| aligned(gemm, side))
            .map(|copy| align_ms(&copy, gemm, gpu))
            .sum(),
        ends: block.ends + transfer + if plan.cluster_size() > 1 { CLUSTER_MEETING } else { 0.0 },
        ..block
    })
}

/// A plan's block whose threads copy the tiles themselves.
fn by_threads(
    plan: &WgmmaPlan,
    gemm: &Gemm,
    gpu: &Descriptor,
    (counts, tensor): (&Block, f64),
    share: &Share,
) -> Result<Inner, Infeasible> {
    let same = facts(plan, gemm, gpu, counts, rounded(by_threads_conditions::registers(plan, gemm)))?;
    let issued =
        counts.tile.matrix + counts.tile.barriers + f64::from(plan.consumers) * overhead(plan, gemm) + share.issued;
    let issue = issued / 4.0 / gpu.issue_efficiency;
    let shared = counts.tile.shared_load_wavefronts + counts.tile.shared_store_wavefronts;
    let parts = [tensor, issue, shared, share.moved * 32.0 / f64::from(gpu.load_store_lanes)];
    let step = largest(&parts);
    // Threads copy while tensor cores multiply. Then they wait, for all of the multiplication or for that of the tile before, and meet.
    let meets = 2.0 * gpu.latency_shared + share.stands * gpu.latency_dram;
    let chain = if plan.eager_release { tensor.max(issue) + DRAIN + meets } else { tensor.max(issue + meets) };
    let ahead = f64::from(plan.stages) - if plan.eager_release { 1.0 } else { 2.0 };
    let waits = gpu.latency_dram / ahead.max(1.0);
    let arrives = norm(&[chain.max(step), waits], gpu.overlap_exponent);
    let facts = Facts { parts, arrives, comes: waits, ..same };
    let block = Inner::of_block(&facts, gemm, gpu)?;
    // What the first tiles are made of is waited for before any later tile's is asked for.
    let asked_twice = if share.waiting > 0 { gpu.latency_dram } else { 0.0 };
    Ok(Inner { ends: block.ends + asked_twice, ..block })
}
