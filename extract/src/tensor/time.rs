//! The time of a tensor-core schedule from its counts.
//!
//! Per multiprocessor and tile along k the resources are the tensor cores, issue slots and shared memory's wavefronts,
//! joined by the descriptor's p-norm; what a block waits for (copies on their way, its own chain of instructions) bounds
//! a tile from below. Where the warps that multiply also start the copies, latencies that vary hold both up: there the copies'
//! is joined by the norm too, and a longer ring is a little better even where a shorter one hides the usual latency.
//! Chip-wide the time is joined with L2 and DRAM. Every rate is the
//! descriptor's; the constants here are properties of the generator's code, or estimates of latencies that no descriptor
//! has, and say so.
mod mma;
mod share;
mod wgmma;

pub(super) use mma::{loop_issue, places, tensor_clocks, with_share};
pub(super) use share::{Share, WMMA_LOADS};

use super::work::{self, Block};
use super::{tiles, Kernel};
use crate::cost::{panels, Cost, Infeasible};
use crate::time::{add_parts_ms, beside, norm};
use crate::work::Work;
use crate::Descriptor;
use satune_ir::term::tensor::Gemm;
use satune_ir::term::{Axis, BlockLoop, Contraction};
use satune_ir::DType;
use std::collections::BTreeMap;

/// Clocks from the issue of a consumer's last `wgmma` to its results (estimate).
const DRAIN: f64 = 64.0;

/// What a block does, whatever the order of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inner {
    /// Tile of C, in terms of the product.
    pub tile: [i64; 3],
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
    pub k_part: i64,
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

/// What of a plan's time depends on all its blocks together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outer {
    pub tiles: i64,
    pub dram_bytes: f64,
    pub sum_ms: f64,
}

impl Outer {
    /// Of blocks that move so many bytes of the operands from DRAM; see [`moved`].
    pub fn moving(moved: f64, tiles: i64, inner: &Inner, contraction: &Contraction, gpu: &Descriptor) -> Outer {
        let extent = |axis: Axis| contraction.extent(axis) as f64;
        let each = products(contraction) * extent(Axis::M) * extent(Axis::N);
        let of = |dtype: DType| each * f64::from(dtype.bytes());
        let sums = if inner.is_partial() { 2.0 * inner.sums * of(contraction.accumulate) } else { 0.0 };
        let stored = sums + of(contraction.c.dtype) + beside(contraction);
        Outer { tiles, dram_bytes: moved + stored, sum_ms: inner.sum_ms(contraction, gpu) }
    }
}

/// Bytes of both operands.
pub(super) fn least_moved(contraction: &Contraction) -> f64 {
    let extent = |axis: Axis| contraction.extent(axis) as f64;
    let of_product = (extent(Axis::M) + extent(Axis::N)) * extent(Axis::K) * f64::from(contraction.a.dtype.bytes());
    products(contraction) * of_product
}

/// Products of a batch.
fn products(contraction: &Contraction) -> f64 {
    contraction.batch().map(|(_, info)| info.extent as f64).product()
}

/// Bytes of the operands from DRAM, for tiles of m x n over a part of k in the order of `loops`, so many of them
/// `resident` on each multiprocessor: every wave reads the panels that its tiles need, once; what fits in L2 is read once
/// in all.
pub(super) fn moved(
    loops: &[BlockLoop],
    ([m, n, _], k_part): ([i64; 3], i64),
    resident: i64,
    contraction: &Contraction,
    gpu: &Descriptor,
) -> f64 {
    let least = least_moved(contraction);
    if least <= 0.8 * gpu.l2_bytes as f64 {
        return least;
    }
    let count: i64 = loops.iter().map(|l| l.extent).product();
    let slots = (resident * i64::from(gpu.sms)).min(count);
    let (a, b) = panels(loops, slots);
    let bytes = f64::from(contraction.a.dtype.bytes());
    let per = |panels: usize, tile: i64| panels as f64 * tile as f64 * k_part as f64 * bytes;
    let waves = count as f64 / slots as f64;
    (waves * (per(a, m) + per(b, n))).max(least)
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

/// What is counted of a plan's block: it does not depend on a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub block: Block,
    /// Of the operands, on `mma.sync`.
    share: Share,
}

impl Counted {
    /// Counts.
    pub fn of(kernel: &Kernel<'_>, gemm: &Gemm) -> Counted {
        let gemm = &*gemm.oriented(kernel.swapped());
        let share = match kernel {
            Kernel::Mma(plan) => mma::share(plan, gemm),
            Kernel::Wgmma(_) => Share::default(),
        };
        Counted { block: work::block(kernel, gemm), share }
    }
}

/// What kernels of each kind say of their blocks; [`Inner::of_block`] makes the rest.
struct Facts<'a> {
    tile: [i64; 3],
    split_k: i64,
    threads: i64,
    registers: i64,
    shared_bytes: i64,
    /// Clocks per tile along k: tensor cores, issue slots, shared memory; and their norm.
    parts: [f64; 3],
    step: f64,
    /// Clocks of a tile along k at least, however few blocks there are: for a warp or consumer alone, and for copies to arrive.
    arrives: f64,
    /// What is stored at the end, and clocks of that beyond what is counted.
    end: &'a Work,
    more_end: f64,
    k_tiles: i64,
    l2_bytes: f64,
}

impl Inner {
    /// A block of each tile, all multiprocessors at work.
    fn of_block(facts: &Facts<'_>, gemm: &Gemm, gpu: &Descriptor) -> Result<Inner, Infeasible> {
        let (resident, limit) = residency(gpu, facts.threads, facts.registers, facts.shared_bytes)?;
        Ok(Inner {
            tile: facts.tile,
            registers: facts.registers,
            resident,
            limit,
            k_tiles: facts.k_tiles as f64,
            parts: facts.parts,
            step: facts.step,
            arrives: facts.arrives,
            end: end_clocks(facts.end, gpu) + facts.more_end,
            l2_bytes: facts.l2_bytes,
            split_k: facts.split_k,
            sums: facts.split_k as f64,
            walk: Walk::One,
            k_part: tiles(gemm.k, facts.split_k),
            sms: gpu.sms.into(),
            meeting: 0.0,
        })
    }

    /// Counts a plan's block and what it takes.
    pub fn of(kernel: &Kernel<'_>, gemm: &Gemm, gpu: &Descriptor) -> Result<Inner, Infeasible> {
        Inner::of_counts(kernel, gemm, &Counted::of(kernel, gemm), gpu)
    }

    /// What a plan's block takes, which is counted.
    pub fn of_counts(
        kernel: &Kernel<'_>,
        gemm: &Gemm,
        counted: &Counted,
        gpu: &Descriptor,
    ) -> Result<Inner, Infeasible> {
        let Some(rates) = gpu.tensor else {
            return Err(Infeasible::TensorCores { instruction: "wmma", needs: "sm_70", arch: gpu.arch.clone() });
        };
        let gemm = &*gemm.oriented(kernel.swapped());
        let [m, n, k] = kernel.tile();
        let flop = (2 * m * n * k) as f64;
        let rate = rates.of(gemm.operand);
        match kernel {
            Kernel::Mma(plan) => {
                let Some(tensor) = tensor_clocks(plan, gemm, gpu) else {
                    let (instruction, needs) = match plan.instruction.wmma().map(|op| op.needs()) {
                        Some(70) => ("wmma", "sm_70"),
                        Some(72) => ("wmma of i8", "sm_72"),
                        Some(_) => ("wmma of bf16", "sm_80"),
                        None => ("mma.sync", "sm_80"),
                    };
                    return Err(Infeasible::TensorCores { instruction, needs, arch: gpu.arch.clone() });
                };
                mma::inner(plan, gemm, gpu, counted, tensor)
            }
            Kernel::Wgmma(plan) => {
                if rates.wgmma_share <= 0.0 || !gpu.tma {
                    let arch = gpu.arch.clone();
                    return Err(Infeasible::TensorCores { instruction: "wgmma", needs: "sm_90a", arch });
                }
                wgmma::inner(plan, gemm, gpu, &counted.block, flop / (rate * rates.wgmma_share))
            }
        }
    }

    /// The same with so many registers of a thread, of blocks that take so many threads and bytes of shared memory.
    pub fn compiled(self, registers: i64, (threads, bytes): (i64, i64), gpu: &Descriptor) -> Result<Inner, Infeasible> {
        // They are given in eights.
        let registers = (registers + 7) / 8 * 8;
        let (resident, limit) = residency(gpu, threads, registers, bytes)?;
        Ok(Inner { registers, resident, limit, ..self })
    }

    /// Whether a second kernel adds what this one writes.
    fn is_partial(&self) -> bool {
        self.split_k > 1 || matches!(self.walk, Walk::Stream { .. })
    }

    fn sum_ms(&self, contraction: &Contraction, gpu: &Descriptor) -> f64 {
        match self.is_partial() {
            false => 0.0,
            // Also where each result has but one.
            true => add_parts_ms(contraction, gpu, ((self.sums.ceil() as i64).max(2), contraction.accumulate)),
        }
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

/// What `waves` tiles take at least one after the other: their instructions alone, at a share of the tensor cores' rate,
/// and the operands' bytes from DRAM, ms.
pub(super) fn least_ms(
    [m, n, k]: [i64; 3],
    waves: f64,
    (gemm, share): (&Gemm, f64),
    contraction: &Contraction,
    gpu: &Descriptor,
) -> f64 {
    let rate = gpu.tensor.map_or(1.0, |t| t.of(gemm.operand)) * share;
    let flop = 2.0 * m as f64 * n as f64 * k as f64;
    let sm_ms = waves * flop / rate / (gpu.clock_mhz * 1e6) * 1e3;
    let dram_ms = least_moved(contraction) / (gpu.dram_gbs * 1e9) * 1e3;
    norm(&[sm_ms, dram_ms], gpu.overlap_exponent) + gpu.launch_us * 1e-3
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
