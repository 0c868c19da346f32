//! The time of a tensor-core schedule from its counts.
//!
//! Per multiprocessor and tile along k the resources are the tensor cores, issue slots and shared memory's wavefronts,
//! joined by the descriptor's p-norm; what a block waits for (copies on their way, its own chain of instructions) bounds
//! a tile from below. Latencies vary, so the copies' is joined by the norm too: a longer ring is a little better even
//! where a shorter one hides the usual latency. Chip-wide the time is joined with L2 and DRAM. Every rate is the descriptor's; the constants here
//! are properties of the generator's code, or estimates of latencies that no descriptor has, and say so.
use super::work::{self, Block, Operand};
use super::{tiles, Kernel};
use crate::cost::{panels, Cost, Infeasible};
use crate::time::{add_parts_ms, norm};
use crate::work::Work;
use crate::Descriptor;
use satune_ir::term::tensor::{mma_conditions, Gemm, Mma, OperandPlan, StreamK, TensorPlan, WgmmaPlan};
use satune_ir::term::{Axis, BlockLoop, Contraction, Side};
use std::collections::BTreeMap;

/// Instructions of a warp per tile along k beyond what is counted, in kernels on `mma.sync`: 63 of 4 k steps of a loop of
/// 251 instructions are 48 counted ones and 15 others (from machine code).
const MMA_OVERHEAD: f64 = 16.0;
/// The same of a consumer's warp on `wgmma`: waits, descriptors in uniform registers, arrivals (from machine code).
const WGMMA_OVERHEAD: f64 = 24.0;
/// Clocks from the issue of a consumer's last `wgmma` to its results (estimate).
const DRAIN: f64 = 64.0;
/// Clocks until a block of a cluster knows that the others have read a stage: an arrival at a barrier of another
/// multiprocessor (estimate).
const CLUSTER_SIGNAL: f64 = 200.0;
/// Clocks for the blocks of a cluster to meet, at the start and at the end (estimate).
const CLUSTER_MEETING: f64 = 400.0;
/// Multiprocessors of a graphics processing cluster, which holds whole clusters only; at least so many of them.
const SMS_OF_GPC: i64 = 16;
/// Clocks that an instruction takes longer when it shares no operand with the one before: another read of the register
/// file (estimate).
const OPERAND_CHANGE: f64 = 0.02;
/// Instructions per copy of a loop beyond the copy: its address in either memory, its condition (estimate).
const ROLLED_COPY: f64 = 8.0;
/// Instructions of a warp per tile of a loop that is not unrolled by the ring's length: the stage's place (estimate).
const ROLLED_RING: f64 = 12.0;

/// What a block does, whatever the order of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inner {
    /// Tile of C, in terms of the product.
    tile: [i64; 3],
    pub registers: i64,
    /// Resident blocks per multiprocessor, and what limits them.
    pub resident: i64,
    limit: &'static str,
    k_tiles: f64,
    /// Clocks per tile along k: tensor cores, issue slots, shared memory; and all together.
    parts: [f64; 3],
    step: f64,
    /// What a tile along k takes at least, however few blocks there are.
    arrives: f64,
    /// Clocks to store a tile of C.
    end: f64,
    /// Bytes from and to L2, of a tile of C.
    l2_bytes: f64,
    split_k: i64,
    /// Partial sums of a result, on average.
    sums: f64,
    walk: Walk,
    k_part: i64,
    /// Multiprocessors that have blocks, and clocks to begin and end.
    sms: i64,
    meeting: f64,
}

/// How tiles come to blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Walk {
    /// A block per tile.
    One,
    /// So many blocks walk over the tiles; their consumers take turns or not.
    Persistent { grid: i64, in_turn: bool },
    /// So many blocks share the tiles' steps along k: the most steps of one, and the most parts of tiles.
    Stream { grid: i64, steps: f64, pieces: f64 },
}

/// What of a plan's time depends on the order of its blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outer {
    pub tiles: i64,
    pub dram_bytes: f64,
    pub sum_ms: f64,
}

impl Outer {
    /// The traffic of blocks in the order of `loops`: every wave reads the panels that its tiles need, once; what fits
    /// in L2 is read once in all.
    pub fn of(loops: &[BlockLoop], inner: &Inner, contraction: &Contraction, gpu: &Descriptor) -> Outer {
        let count: i64 = loops.iter().map(|l| l.extent).product();
        let extent = |axis: Axis| contraction.extent(axis) as f64;
        let bytes = f64::from(contraction.a.dtype.bytes());
        let (m, n, k) = (extent(Axis::M), extent(Axis::N), extent(Axis::K));
        let batch: f64 = contraction.batch().map(|(_, info)| info.extent as f64).product();
        let out = batch * m * n * f64::from(contraction.c.dtype.bytes());
        let least = batch * (m + n) * k * bytes;
        let stored = if inner.is_partial() { (2.0 * inner.sums + 1.0) * out } else { out };
        let sum_ms = inner.sum_ms(contraction, gpu);
        let dram_bytes = if least <= 0.8 * gpu.l2_bytes as f64 {
            least + stored
        } else {
            let slots = (inner.resident * i64::from(gpu.sms)).min(count);
            let (a, b) = panels(loops, slots);
            let per = |panels: usize, tile: i64| panels as f64 * tile as f64 * inner.k_part as f64 * bytes;
            let waves = count as f64 / slots as f64;
            (waves * (per(a, inner.tile[0]) + per(b, inner.tile[1]))).max(least) + stored
        };
        Outer { tiles: count, dram_bytes, sum_ms }
    }

    /// The same without traffic: no order of blocks makes a plan faster.
    pub fn without_traffic(loops: &[BlockLoop], inner: &Inner, contraction: &Contraction, gpu: &Descriptor) -> Outer {
        let tiles = loops.iter().map(|l| l.extent).product();
        Outer { tiles, dram_bytes: 0.0, sum_ms: inner.sum_ms(contraction, gpu) }
    }
}

/// A time with what its parts are made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub ms: f64,
    sm_ms: f64,
    l2_ms: f64,
    dram_ms: f64,
    /// Tiles that one multiprocessor computes.
    per_sm: f64,
}

impl Inner {
    /// Counts a plan's block and what it takes.
    pub fn of(kernel: &Kernel<'_>, gemm: &Gemm, gpu: &Descriptor) -> Result<Inner, Infeasible> {
        let Some(rates) = gpu.tensor else {
            return Err(Infeasible::TensorCores { instruction: "mma.sync", needs: "sm_80", arch: gpu.arch.clone() });
        };
        let gemm = &*gemm.oriented(kernel.swapped());
        let counts = work::block(kernel, gemm);
        let [m, n, k] = kernel.tile();
        let flop = (2 * m * n * k) as f64;
        let rate = rates.of(gemm.operand);
        match kernel {
            Kernel::Mma(plan) => mma(plan, gemm, gpu, &counts, flop / (rate * rates.mma_share)),
            Kernel::Wgmma(plan) => {
                if rates.wgmma_share <= 0.0 || !gpu.tma {
                    let arch = gpu.arch.clone();
                    return Err(Infeasible::TensorCores { instruction: "wgmma", needs: "sm_90a", arch });
                }
                wgmma(plan, gemm, gpu, &counts, flop / (rate * rates.wgmma_share))
            }
        }
    }

    /// Whether a second kernel adds what this one writes.
    fn is_partial(&self) -> bool {
        self.split_k > 1 || matches!(self.walk, Walk::Stream { .. })
    }

    fn sum_ms(&self, contraction: &Contraction, gpu: &Descriptor) -> f64 {
        match self.is_partial() {
            false => 0.0,
            // Also where each result has but one.
            true => add_parts_ms(contraction, gpu, (self.sums.ceil() as i64).max(2)),
        }
    }

    /// The least that any plan with this tile and split takes on a tile's instruction alone, ms.
    pub fn least_ms(gemm: &Gemm, gpu: &Descriptor, share: f64) -> f64 {
        let rate = gpu.tensor.map_or(1.0, |t| t.of(gemm.operand)) * share;
        let flop = 2.0 * gemm.m as f64 * gemm.n as f64 * gemm.k as f64;
        flop / rate / f64::from(gpu.sms) / (gpu.clock_mhz * 1e6) * 1e3 + gpu.launch_us * 1e-3
    }

    /// Clocks of one multiprocessor for so many tiles of C, the blocks of one launch.
    fn clocks(&self, outer: &Outer, gpu: &Descriptor) -> (f64, f64) {
        let sms = self.sms;
        match self.walk {
            Walk::One => {
                let slots = self.resident * sms;
                let full = outer.tiles / slots;
                let last = tiles(outer.tiles % slots, sms);
                let group = |blocks: i64| {
                    if blocks == 0 {
                        return 0.0;
                    }
                    let b = blocks as f64;
                    self.k_tiles * (b * self.step).max(self.arrives)
                        + b * self.end
                        + 2.0 * gpu.latency_dram
                        + self.meeting
                };
                (full as f64 * group(self.resident) + group(last), (full * self.resident + last) as f64)
            }
            Walk::Stream { grid, steps, pieces } => {
                // The producer is ahead of the stores here too.
                let blocks_per_sm = tiles(grid, sms) as f64;
                let each = steps * self.step.max(self.arrives) + pieces * (DRAIN + self.end);
                (blocks_per_sm * each + 2.0 * gpu.latency_dram, blocks_per_sm * steps / self.k_tiles.max(1.0))
            }
            Walk::Persistent { grid, in_turn } => {
                // Each block has its multiprocessor; the producer is ahead of the stores, so only the first tile waits.
                let per_block = tiles(outer.tiles, grid.max(1)) as f64;
                let main = self.k_tiles * self.step.max(self.arrives) + DRAIN;
                let each = if in_turn { main.max((main + self.end) / 2.0) } else { main + self.end };
                let last = if in_turn { self.end } else { 0.0 };
                let blocks_per_sm = tiles(grid, sms) as f64;
                let ends = 2.0 * gpu.latency_dram + self.meeting;
                (blocks_per_sm * (per_block * each + last) + ends, blocks_per_sm * per_block)
            }
        }
    }
}

/// Time of a plan.
pub(super) fn time(outer: &Outer, inner: &Inner, gpu: &Descriptor) -> Times {
    let hz = gpu.clock_mhz * 1e6;
    let (clocks, per_sm) = inner.clocks(outer, gpu);
    let sm_ms = clocks / hz * 1e3;
    let l2_ms = outer.tiles as f64 * inner.l2_bytes / gpu.l2_bytes_per_clock / hz * 1e3;
    let dram_ms = outer.dram_bytes / (gpu.dram_gbs * 1e9) * 1e3;
    let ms = norm(&[sm_ms, l2_ms, dram_ms], gpu.overlap_exponent) + gpu.launch_us * 1e-3 + outer.sum_ms;
    Times { ms, sm_ms, l2_ms, dram_ms, per_sm }
}

/// What an operand's way adds to a tile along k, and takes of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Share {
    /// Instructions of warps.
    pub issued: f64,
    /// Wavefronts of shared memory.
    pub shared: f64,
    /// Bytes from L2.
    pub l2_bytes: f64,
    /// Tiles by which copies are started later than at the first step.
    pub late: f64,
    /// Registers of its copies.
    pub registers: i64,
}

impl Share {
    /// Of an operand's plan.
    pub fn of(place: &Operand, gemm: &Gemm, plan: &OperandPlan) -> Share {
        Share::counted(place, gemm, plan, &place.copies(gemm, plan), &place.loads(gemm, plan))
    }

    /// The same from its counts.
    pub fn counted(place: &Operand, gemm: &Gemm, plan: &OperandPlan, copies: &Work, loads: &Work) -> Share {
        // Bytes and words that `ldmatrix` does not bring in order cost a permutation each.
        let bytes_across = place.op == Mma::S8 && mma_conditions::rows_along_k(gemm, place.side);
        let permuted = if bytes_across { 4.0 * loads.matrix_moves } else { 0.0 };
        let started = copies.async_copies + copies.global_loads + copies.shared_stores;
        // A loop computes each address, and itself.
        let loops = if plan.rolled { ROLLED_COPY * (copies.async_copies + copies.global_loads) } else { 0.0 };
        let steps = (place.k / i64::from(place.op.k())).max(1) as f64;
        // Shared memory has nothing to do meanwhile where one set of fragments is waited for.
        Share {
            issued: loads.matrix_moves + permuted + loads.shared_loads + started + loops,
            shared: loads.shared_load_wavefronts + copies.shared_store_wavefronts,
            l2_bytes: copies.l2_sectors * 32.0,
            late: f64::from(plan.step) / steps / 2.0,
            registers: mma_conditions::copy_registers(gemm, place.side, [place.extent, place.k], place.threads, plan),
        }
    }

    /// Both operands'.
    pub fn plus(&self, other: &Share) -> Share {
        Share {
            issued: self.issued + other.issued,
            shared: self.shared + other.shared,
            l2_bytes: self.l2_bytes + other.l2_bytes,
            late: self.late + other.late,
            registers: self.registers + other.registers,
        }
    }
}

/// The operands of a plan.
pub(super) fn places(plan: &TensorPlan) -> [Operand; 2] {
    let ([m, n, k], op, threads) = (plan.tile, plan.instruction, plan.threads());
    [(Side::A, m, plan.warp[0]), (Side::B, n, plan.warp[1])].map(|(side, extent, own)| Operand {
        side,
        op,
        extent,
        own,
        k,
        threads,
    })
}

/// What the loop over k adds to a tile's instructions.
pub(super) fn loop_issue(plan: &TensorPlan, matrix: f64) -> f64 {
    // A rolled loop computes stages and addresses anew.
    let rolled = if plan.rolled { ROLLED_RING * (plan.threads() / 32) as f64 } else { 0.0 };
    rolled + changes(plan) * matrix * OPERAND_CHANGE
}

fn mma(plan: &TensorPlan, gemm: &Gemm, gpu: &Descriptor, counts: &Block, tensor: f64) -> Result<Inner, Infeasible> {
    let [a, b] = places(plan);
    let share = Share::of(&a, gemm, &plan.operands[0]).plus(&Share::of(&b, gemm, &plan.operands[1]));
    with_share(plan, gemm, gpu, (counts, tensor), &share, loop_issue(plan, counts.tile.matrix))
}

/// A plan on `mma.sync`, whose operands' ways are given by what they add, and its loop by its instructions; of `counts`
/// what is stored at the end, the multiplications and barriers are read.
pub(super) fn with_share(
    plan: &TensorPlan,
    gemm: &Gemm,
    gpu: &Descriptor,
    (counts, tensor): (&Block, f64),
    share: &Share,
    in_loop: f64,
) -> Result<Inner, Infeasible> {
    if !gpu.cp_async {
        return Err(Infeasible::CpAsync { arch: gpu.arch.clone() });
    }
    let threads = plan.threads();
    let warps = (threads / 32) as f64;
    let sets = mma_conditions::sets(&plan.operands);
    let mut registers = mma_conditions::registers(plan.warp, share.registers);
    registers = (registers + 7) / 8 * 8;
    let left = i64::from(gpu.registers_per_sm) / (threads * i64::from(plan.min_blocks.unwrap_or(1).max(1))) / 8 * 8;
    let most = left.min(255);
    if registers > most {
        return Err(Infeasible::Registers { registers, most, threads: threads as u32 });
    }
    let (resident, limit) = residency(gpu, threads, registers, plan.shared_bytes(gemm))?;
    let issued = counts.tile.matrix + counts.tile.barriers + warps * MMA_OVERHEAD + share.issued + in_loop;
    let issue = issued / 4.0 / gpu.issue_efficiency;
    let parts = [tensor, issue, share.shared];
    let step = norm(&parts, gpu.overlap_exponent);
    // A warp alone has a quarter of the multiprocessor's tensor cores; at the barrier it waits for its first fragments,
    // and at every step for those that have one set.
    let steps = (plan.tile[2] / i64::from(plan.instruction.k())) as f64;
    let single = if sets == [2, 2] { 0.0 } else { steps };
    let chain = tensor * 4.0 / warps + (2.0 + single) * gpu.latency_shared;
    let ahead = f64::from(plan.stages - 1) - f64::from(plan.slack) - share.late;
    let waits = gpu.latency_dram / ahead.max(0.5);
    let arrives = norm(&[chain.max(step), waits], gpu.overlap_exponent);
    let end = end_clocks(&counts.end, gpu) + warps * 32.0 / 4.0;
    Ok(Inner {
        tile: super::of_product(plan.tile, plan.swapped),
        registers,
        resident,
        limit,
        k_tiles: counts.k_tiles as f64,
        parts,
        step,
        arrives,
        end,
        l2_bytes: counts.end.l2_sectors * 32.0 + counts.k_tiles as f64 * share.l2_bytes,
        split_k: plan.split_k,
        sums: plan.split_k as f64,
        walk: Walk::One,
        k_part: tiles(gemm.k, plan.split_k),
        sms: gpu.sms.into(),
        meeting: 0.0,
    })
}

/// Clocks of the tensor cores per tile along k.
pub(super) fn tensor_clocks(plan: &TensorPlan, gemm: &Gemm, gpu: &Descriptor) -> Option<f64> {
    let rates = gpu.tensor?;
    let [m, n, k] = plan.tile;
    Some((2 * m * n * k) as f64 / (rates.of(gemm.operand) * rates.mma_share))
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
    let inner = if plan.order.columns { plan.warp[0] / 16 } else { plan.warp[1] / 8 };
    1.0 / inner.max(1) as f64
}

fn wgmma(plan: &WgmmaPlan, gemm: &Gemm, gpu: &Descriptor, counts: &Block, tensor: f64) -> Result<Inner, Infeasible> {
    let threads = i64::from(plan.threads());
    // Of one consumer the compiler is told to fit one block; of more, registers are dealt out for one.
    let registers = match plan.consumers {
        1 => (plan.row_blocks() * plan.tile[1] / 2 + 56 + 7) / 8 * 8,
        _ => 65536 / threads / 8 * 8,
    };
    if registers > 255 {
        return Err(Infeasible::Registers { registers, most: 255, threads: threads as u32 });
    }
    let (resident, limit) = residency(gpu, threads, registers, plan.shared_bytes(gemm))?;
    let warps = f64::from(plan.consumers) * 4.0;
    let issue = (counts.tile.matrix + warps * WGMMA_OVERHEAD) / 4.0 / gpu.issue_efficiency;
    let shared = counts.tile.shared_load_wavefronts + counts.tile.shared_store_wavefronts;
    let parts = [tensor, issue, shared];
    let step = norm(&parts, gpu.overlap_exponent);
    // Consumers at work at once hide each other's waits; one that frees its tile at once stands still until then.
    let at_once = if plan.ping_pong { 1.0 } else { f64::from(plan.consumers) };
    let stalls = if plan.eager_release { DRAIN } else { 0.0 };
    let chain = step / at_once + stalls;
    // A tile's place in the ring is freed with the tile, or one later.
    let ahead = f64::from(plan.stages) - if plan.eager_release { 1.0 } else { 2.0 };
    let signal = if plan.cluster_size() > 1 { CLUSTER_SIGNAL } else { 0.0 };
    let arrives = norm(&[chain.max(step), (gpu.latency_dram + signal) / ahead.max(0.5)], gpu.overlap_exponent);
    let stream = StreamK::of(plan, gemm);
    let walk = match plan.blocks {
        _ if stream.is_some() => stream.map_or(Walk::One, |s| {
            let (each, more) = s.each();
            Walk::Stream { grid: s.blocks, steps: (each + more.min(1)) as f64, pieces: s.pieces().1 as f64 }
        }),
        Some(_) => Walk::Persistent { grid: plan.grid(gemm), in_turn: plan.ping_pong },
        None => Walk::One,
    };
    let end = end_clocks(&counts.end, gpu);
    Ok(Inner {
        tile: super::of_product(plan.tile, plan.swapped),
        registers,
        resident,
        limit,
        k_tiles: counts.k_tiles as f64,
        parts,
        step,
        arrives,
        end,
        l2_bytes: counts.total().l2_sectors * 32.0,
        split_k: plan.split_k,
        sums: stream.map_or(plan.split_k as f64, |s| s.pieces().0 as f64 / s.tiles as f64),
        walk,
        k_part: tiles(gemm.k, plan.split_k),
        sms: usable(gpu, plan.cluster_size().into()),
        meeting: if plan.cluster_size() > 1 { CLUSTER_MEETING } else { 0.0 },
    })
}

/// Multiprocessors that clusters of so many blocks can fill: pairs are neighbours everywhere; of larger ones the last
/// multiprocessors of a graphics processing cluster may hold none.
fn usable(gpu: &Descriptor, cluster: i64) -> i64 {
    let sms = i64::from(gpu.sms);
    match cluster {
        ..=2 => sms,
        _ => (sms / (SMS_OF_GPC + 2) * SMS_OF_GPC).max(cluster.min(sms)),
    }
}

/// Clocks to store a tile of C: issue slots (a store, its address, its conversion), what passes L1, shared memory.
fn end_clocks(end: &Work, gpu: &Descriptor) -> f64 {
    let issued = 3.0 * (end.global_stores + end.shared_stores + end.matrix_moves) + end.shared_loads + end.barriers;
    let issue = issued / 4.0 / gpu.issue_efficiency;
    let shared = end.shared_load_wavefronts + end.shared_store_wavefronts;
    let l1 = end.global_store_sectors * 32.0 / gpu.l1_bytes_per_clock;
    norm(&[issue, shared, l1], gpu.overlap_exponent)
}

/// Resident blocks per multiprocessor, and what limits them.
fn residency(
    gpu: &Descriptor,
    threads: i64,
    registers: i64,
    shared_bytes: i64,
) -> Result<(i64, &'static str), Infeasible> {
    let most = i64::from(gpu.shared_per_block);
    if shared_bytes > most {
        return Err(Infeasible::Shared { bytes: shared_bytes, most });
    }
    if threads > 1024 {
        return Err(Infeasible::Threads { threads: u32::try_from(threads).unwrap_or(u32::MAX) });
    }
    let limits = [
        (i64::from(gpu.registers_per_sm) / (registers * threads).max(1), "registers"),
        (i64::from(gpu.shared_per_sm) / (shared_bytes + i64::from(gpu.shared_reserved)), "shared memory"),
        (i64::from(gpu.threads_per_sm) / threads.max(1), "threads"),
        (i64::from(gpu.blocks_per_sm), "blocks"),
    ];
    let (resident, limit) = limits.into_iter().min_by_key(|l| l.0).unwrap_or((1, "blocks"));
    if resident < 1 {
        let most = i64::from(gpu.registers_per_sm) / threads.max(1) / 8 * 8;
        return Err(Infeasible::Registers { registers, most, threads: threads as u32 });
    }
    Ok((resident, limit))
}

impl Times {
    /// The cost with its parts named; each is what the kernel would take if only that resource bound it.
    pub fn explain(&self, outer: &Outer, inner: &Inner, gpu: &Descriptor, block: Block) -> Cost {
        let hz = gpu.clock_mhz * 1e6;
        let of = |clocks: f64| self.per_sm * inner.k_tiles * clocks / hz * 1e3;
        let mut parts: BTreeMap<String, f64> = BTreeMap::new();
        parts.insert("tensor_cores".into(), of(inner.parts[0]));
        parts.insert("issue".into(), of(inner.parts[1]));
        parts.insert("shared_memory".into(), of(inner.parts[2]));
        parts.insert("l2".into(), self.l2_ms);
        parts.insert("dram".into(), self.dram_ms);
        let bottleneck =
            parts.iter().max_by(|a, b| a.1.total_cmp(b.1)).map_or_else(String::new, |(name, _)| name.clone());
        let epilogue = self.per_sm * inner.end / hz * 1e3;
        parts.insert("latency".into(), (self.sm_ms - of(inner.step) - epilogue).max(0.0));
        parts.insert("epilogue".into(), epilogue);
        parts.insert("launch".into(), gpu.launch_us * 1e-3);
        if outer.sum_ms > 0.0 {
            parts.insert("add_parts".into(), outer.sum_ms);
        }
        let mut work = Work::default();
        work.add(&block.total(), outer.tiles as f64);
        let slots = match inner.walk {
            Walk::One => inner.resident * inner.sms,
            Walk::Persistent { grid, .. } | Walk::Stream { grid, .. } => grid,
        };
        Cost {
            ms: self.ms,
            parts,
            bottleneck,
            resident_blocks: inner.resident,
            occupancy_limit: inner.limit.into(),
            registers: inner.registers,
            waves: outer.tiles as f64 / slots.max(1) as f64,
            dram_bytes: outer.dram_bytes,
            l2_bytes: outer.tiles as f64 * inner.l2_bytes,
            work,
        }
    }
}
