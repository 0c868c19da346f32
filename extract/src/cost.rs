//! The analytical cost: exact counts, and the time that a GPU needs for them, in parts.
//!
//! Per multiprocessor and k tile the resources are: issue slots, the multiply-add units, shared memory's wavefronts,
//! L1's bytes, and the latency that is left uncovered. Resources that overlap are joined by a p-norm (the descriptor's
//! `overlap_exponent`), which is near the largest of them. Chip-wide, the time of the multiprocessors is joined the same
//! way with L2 and DRAM traffic. Every constant is one of the descriptor; none belongs to a kernel.
use crate::work::{self, Work};
use crate::Descriptor;
use satune_ir::term::{Axis, Contraction, Pipe, Plan, Side};
use satune_ir::DType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Instructions of a warp that a k tile costs beyond what is counted: loop, addresses, ring arithmetic (estimate from
/// machine code: 30 to 40).
const TILE_OVERHEAD: f64 = 36.0;
/// Instructions of a warp that an inner step costs where its loop is not expanded.
const STEP_OVERHEAD: f64 = 6.0;
/// Registers beyond accumulators, fragments and tiles held for the next iteration: addresses, counters.
const BASE_REGISTERS: i64 = 32;
/// Most registers of a thread.
const MOST_REGISTERS: i64 = 255;

/// Why a plan cannot run on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Infeasible {
    /// Too many threads per block.
    #[error("{threads} threads per block; a GPU runs at most 1024")]
    Threads {
        /// Asked for.
        threads: u32,
    },
    /// Too much shared memory.
    #[error("{bytes} bytes of shared memory per block; this GPU has {most}")]
    Shared {
        /// Asked for.
        bytes: i64,
        /// Limit.
        most: i64,
    },
    /// Too many registers.
    #[error("about {registers} registers per thread; {most} can be had with {threads} threads per block")]
    Registers {
        /// Estimate.
        registers: i64,
        /// Limit.
        most: i64,
        /// Threads per block.
        threads: u32,
    },
    /// No asynchronous copies.
    #[error("cp.async needs sm_80 or later; this GPU is {arch}")]
    CpAsync {
        /// Architecture.
        arch: String,
    },
}

/// Predicted time and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Predicted time, ms.
    pub ms: f64,
    /// Parts, ms each: what the kernel would take if only that resource bound it.
    pub parts: BTreeMap<String, f64>,
    /// The largest part.
    pub bottleneck: String,
    /// Resident blocks per multiprocessor.
    pub resident_blocks: i64,
    /// What limits them.
    pub occupancy_limit: String,
    /// Registers per thread (estimate).
    pub registers: i64,
    /// Blocks over the slots of the whole GPU.
    pub waves: f64,
    /// Bytes from and to DRAM.
    pub dram_bytes: f64,
    /// Bytes from and to L2.
    pub l2_bytes: f64,
    /// Work of the whole main kernel.
    pub work: Work,
}

/// What of a plan's inner structure its time depends on. The time is monotone in every component.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inner {
    /// Per k tile and block.
    pub tile: Work,
    /// Per block, once.
    pub end: Work,
    /// Registers that fragments take.
    pub fragment_registers: i64,
    /// Registers that hold tiles on their way.
    pub staged_registers: i64,
    /// Shared memory per block, bytes.
    pub shared_bytes: i64,
    /// Inner steps per k tile whose loop is not expanded.
    pub rolled_steps: f64,
    /// Whether the clearing of the sums is inside the loop.
    pub init_inside: bool,
}

/// What of a plan is fixed when its block begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outer<'a> {
    pub contraction: &'a Contraction,
    pub gpu: &'a Descriptor,
    pub threads: u32,
    pub blocks: i64,
    pub split_k: i64,
    pub k_tiles: f64,
    /// Accumulators of a thread, in 32-bit registers.
    pub sums: i64,
    pub pipe: Pipe,
    /// DRAM bytes of the main kernel.
    pub dram_bytes: f64,
}

/// A plan with all counted that its time depends on. The counts read a descriptor's limits, not its rates, so the time
/// under other rates needs no new ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepared<'a> {
    outer: Outer<'a>,
    inner: Inner,
}

impl Prepared<'_> {
    /// The time under the rates of `gpu`, which has the limits that the plan was prepared with; ms.
    pub fn ms(&self, gpu: &Descriptor) -> Result<f64, Infeasible> {
        time(&Outer { gpu, ..self.outer }, &self.inner).map(|t| t.ms)
    }
}

/// Counts what a plan's time depends on.
pub(crate) fn prepare<'a>(plan: &Plan, contraction: &'a Contraction, gpu: &'a Descriptor) -> Prepared<'a> {
    let (tile, end) = work::of_block(plan, contraction);
    let inner = Inner {
        tile,
        end,
        fragment_registers: fragment_registers(plan, contraction),
        staged_registers: staged_registers(plan, contraction),
        shared_bytes: plan.shared_bytes(contraction),
        rolled_steps: if plan.unroll_k { 0.0 } else { (plan.k_tile / plan.k_step) as f64 },
        init_inside: !plan.init_hoisted,
    };
    let sums = if plan.accumulators { plan.results_per_thread() * words(contraction.accumulate) } else { 0 };
    let outer = Outer {
        contraction,
        gpu,
        threads: plan.threads,
        blocks: plan.block_count(),
        split_k: plan.split_k,
        k_tiles: work::k_tiles(plan) as f64 * outer_iterations(contraction),
        sums,
        pipe: plan.pipe,
        dram_bytes: dram_bytes(plan, contraction, gpu, sums),
    };
    Prepared { outer, inner }
}

/// Predicts a plan's time.
///
/// # Errors
/// When the GPU cannot run it.
pub fn cost(plan: &Plan, contraction: &Contraction, gpu: &Descriptor) -> Result<Cost, Infeasible> {
    let Prepared { outer, inner } = prepare(plan, contraction, gpu);
    Ok(time(&outer, &inner)?.explain(&outer, work::total(plan, contraction)))
}

/// 32-bit registers of a value.
pub(crate) fn words(dtype: DType) -> i64 {
    i64::from(dtype.bytes().max(4) / 4)
}

/// Iterations of the loops over further reduction axes.
pub(crate) fn outer_iterations(contraction: &Contraction) -> f64 {
    contraction.outer_reduce().map(|(_, info)| info.extent as f64).product()
}

fn fragment_registers(plan: &Plan, contraction: &Contraction) -> i64 {
    [Side::A, Side::B]
        .into_iter()
        .map(|side| {
            let (pieces, registers) = match side {
                Side::A => (plan.vthread_outer.m * plan.vthread_inner.m, plan.registers.m),
                Side::B => (plan.vthread_outer.n * plan.vthread_inner.n, plan.registers.n),
            };
            if plan.staging(side).local.is_some() {
                pieces * registers * plan.k_step * words(contraction.operand(side).dtype)
            } else {
                2
            }
        })
        .sum()
}

/// Registers that hold a tile between its load and its store.
pub(crate) fn staged_of(elements: i64, threads: u32, vector: u32, dtype: DType, held: bool) -> i64 {
    let step = i64::from(threads) * i64::from(vector);
    let each = if held { (elements + step - 1) / step * i64::from(vector) } else { i64::from(vector) };
    (each * i64::from(dtype.bytes()) + 3) / 4
}

fn staged_registers(plan: &Plan, contraction: &Contraction) -> i64 {
    if matches!(plan.pipe, Pipe::Async(_)) {
        return 0;
    }
    [Side::A, Side::B]
        .into_iter()
        .filter_map(|side| {
            let (_, fill) = plan.staging(side).shared?;
            let spatial = if side == Side::A { plan.tile.m } else { plan.tile.n };
            let dtype = contraction.operand(side).dtype;
            let held = fill.unroll || plan.pipe == Pipe::Registers;
            Some(staged_of(spatial * plan.k_tile, plan.threads, fill.vector, dtype, held))
        })
        .sum()
}

/// Blocks that are resident if only threads and accumulators bound them: what the traffic of a wave is estimated with.
pub(crate) fn wave_slots(gpu: &Descriptor, threads: u32, sums: i64) -> i64 {
    let by_threads = i64::from(gpu.threads_per_sm / threads.max(1));
    let by_registers = i64::from(gpu.registers_per_sm) / ((sums + BASE_REGISTERS) * i64::from(threads)).max(1);
    by_threads.min(by_registers).clamp(1, i64::from(gpu.blocks_per_sm)) * i64::from(gpu.sms)
}

/// Bytes from and to DRAM: every wave of blocks reads the panels of A and B that its rectangle of tiles needs, once, as
/// the blocks of a wave run side by side; what fits in L2 as a whole is read once in all. Source: the wave rectangle of
/// the usual tile-order analysis, here counted on the real order of the first wave.
pub(crate) fn dram_bytes(plan: &Plan, contraction: &Contraction, gpu: &Descriptor, sums: i64) -> f64 {
    let elements = |dims: &[Axis]| dims.iter().map(|a| contraction.extent(*a) as f64).product::<f64>();
    let size = |side: Side| {
        let operand = contraction.operand(side);
        elements(&operand.dims) * f64::from(operand.dtype.bytes())
    };
    let out = elements(&contraction.c.dims) * f64::from(contraction.c.dtype.bytes());
    let least = size(Side::A) + size(Side::B);
    let stored = if plan.split_k > 1 { (2 * plan.split_k + 1) as f64 * out } else { out };
    if least <= 0.8 * gpu.l2_bytes as f64 {
        return least + stored;
    }
    let slots = wave_slots(gpu, plan.threads, sums).min(plan.block_count());
    let (panels_a, panels_b) = panels(plan, slots);
    let k = plan.k_part as f64 * outer_iterations(contraction);
    let bytes_a = plan.tile.m as f64 * k * f64::from(contraction.a.dtype.bytes());
    let bytes_b = plan.tile.n as f64 * k * f64::from(contraction.b.dtype.bytes());
    let waves = plan.block_count() as f64 / slots as f64;
    let read = waves * (panels_a as f64 * bytes_a + panels_b as f64 * bytes_b);
    read.max(least) + stored
}

/// Different panels of A and of B that the first `slots` blocks touch.
fn panels(plan: &Plan, slots: i64) -> (usize, usize) {
    let mut a = std::collections::HashSet::new();
    let mut b = std::collections::HashSet::new();
    for block in 0..slots {
        let mut below = plan.block_count();
        let (mut m, mut n, mut other) = (0, 0, 0);
        for l in &plan.blocks {
            below /= l.extent;
            let value = (block / below) % l.extent;
            match l.axis {
                Axis::M => m = m * l.extent + value,
                Axis::N => n = n * l.extent + value,
                _ => other = other * l.extent + value,
            }
        }
        a.insert((other, m));
        b.insert((other, n));
    }
    (a.len(), b.len())
}

/// Joins resources that overlap.
fn norm(parts: &[f64], p: f64) -> f64 {
    if p == 4.0 {
        // The usual exponent, without a power function: this is the innermost code of extraction.
        let sum: f64 = parts.iter().map(|x| x * x * x * x).sum();
        return sum.sqrt().sqrt();
    }
    let largest = parts.iter().copied().fold(0.0, f64::max);
    if largest <= 0.0 {
        return 0.0;
    }
    largest * parts.iter().map(|x| (x / largest).powf(p)).sum::<f64>().powf(1.0 / p)
}

/// Registers per thread, estimated.
pub(crate) fn registers(outer: &Outer<'_>, inner: &Inner) -> i64 {
    let sum = outer.sums + inner.fragment_registers + inner.staged_registers + BASE_REGISTERS;
    (sum + 7) / 8 * 8
}

/// Clocks of each resource of a multiprocessor for `work`: (issue, multiply-add, shared memory, L1).
fn clocks(outer: &Outer<'_>, work: &Work, overhead: f64) -> [f64; 4] {
    let gpu = outer.gpu;
    let counted = work.fma
        + work.shared_loads
        + work.shared_stores
        + work.global_loads
        + work.global_stores
        + work.async_copies
        + work.barriers;
    let lanes = match outer.contraction.accumulate {
        DType::F64 => gpu.fp64_lanes,
        _ => gpu.fp32_lanes,
    };
    let issue = (counted + overhead) / 4.0 / gpu.issue_efficiency;
    let math = work.fma * 32.0 / f64::from(lanes) / gpu.issue_efficiency;
    let shared = work.shared_load_wavefronts + work.shared_store_wavefronts;
    let l1 = work.l1_bytes / gpu.l1_bytes_per_clock;
    [issue, math, shared, l1]
}

/// A time with what its parts are made from.
pub(crate) struct Times {
    pub ms: f64,
    resident: i64,
    limit: &'static str,
    registers: i64,
    /// Per k tile: clocks of each resource, and all together.
    parts: [f64; 4],
    tile_clocks: f64,
    end_clocks: f64,
    /// Blocks that one multiprocessor runs, one after the other or side by side.
    per_sm: f64,
    slots: i64,
    sm_ms: f64,
    l2_bytes: f64,
    l2_ms: f64,
    dram_ms: f64,
    sum_ms: f64,
}

/// Time of a plan from its summary.
pub(crate) fn time(outer: &Outer<'_>, inner: &Inner) -> Result<Times, Infeasible> {
    let gpu = outer.gpu;
    let threads = outer.threads;
    let (registers, resident, limit) = residency(outer, inner)?;
    let p = gpu.overlap_exponent;
    let warps = f64::from(threads / 32);
    let init = if inner.init_inside { inner.tile.fma + inner.tile.fma / 4.0 } else { 0.0 };
    let overhead = warps * (TILE_OVERHEAD + inner.rolled_steps * STEP_OVERHEAD) + init;
    let mut parts = clocks(outer, &inner.tile, overhead);
    if inner.rolled_steps == 0.0 {
        // An expanded k tile longer than the instruction cache likes is fetched again and again.
        let bytes = 16.0 * (parts[0] * 4.0 * gpu.issue_efficiency) / warps;
        parts[0] *= 1.0 + (bytes / gpu.instruction_cache_bytes as f64 - 0.5).max(0.0);
    }
    // The stores of a fill come in a burst at a barrier, where no arithmetic covers them: they add.
    let tile_clocks = norm(&parts, p) + inner.tile.shared_store_wavefronts;
    // What one block needs for a tile when it is alone: its chain of steps, and the latency that nothing covers.
    let per_warp = parts[0] / warps * 4.0;
    let chain = per_warp + inner.rolled_steps * (gpu.latency_shared + 4.0);
    let arrives = match outer.pipe {
        Pipe::Plain => gpu.latency_dram + 2.0 * gpu.latency_shared + chain.max(tile_clocks),
        Pipe::Registers => chain.max(tile_clocks).max(gpu.latency_dram),
        Pipe::Async(stages) => chain.max(tile_clocks).max(gpu.latency_dram / f64::from(stages.max(2) - 1)),
    };
    let end_clocks = norm(&clocks(outer, &inner.end, warps * 32.0), p);
    let slots = resident * i64::from(gpu.sms);
    let full = outer.blocks / slots;
    let last = (outer.blocks % slots + i64::from(gpu.sms) - 1) / i64::from(gpu.sms);
    let tiles = outer.k_tiles;
    let group = |blocks: i64| {
        if blocks == 0 {
            return 0.0;
        }
        let b = blocks as f64;
        tiles * (b * tile_clocks).max(arrives) + b * end_clocks + gpu.latency_dram * 2.0
    };
    let hz = gpu.clock_mhz * 1e6;
    let sm_ms = (full as f64 * group(resident) + group(last)) / hz * 1e3;
    let l2_bytes = outer.blocks as f64 * (tiles * inner.tile.l2_sectors + inner.end.l2_sectors) * 32.0;
    let l2_ms = l2_bytes / gpu.l2_bytes_per_clock / hz * 1e3;
    let dram_ms = outer.dram_bytes / (gpu.dram_gbs * 1e9) * 1e3;
    let sum_ms = if outer.split_k > 1 {
        let out: f64 = outer.contraction.c.dims.iter().map(|a| outer.contraction.extent(*a) as f64).product();
        let bytes = out * (outer.split_k + 1) as f64 * f64::from(outer.contraction.c.dtype.bytes());
        bytes / (gpu.dram_gbs * 1e9) * 1e3 + gpu.launch_us * 1e-3
    } else {
        0.0
    };
    let ms = norm(&[sm_ms, l2_ms, dram_ms], p) + gpu.launch_us * 1e-3 + sum_ms;
    Ok(Times {
        ms,
        resident,
        limit,
        registers,
        parts,
        tile_clocks,
        end_clocks,
        per_sm: (full * resident + last) as f64,
        slots,
        sm_ms,
        l2_bytes,
        l2_ms,
        dram_ms,
        sum_ms,
    })
}

/// (registers per thread, resident blocks per multiprocessor, what limits them).
fn residency(outer: &Outer<'_>, inner: &Inner) -> Result<(i64, i64, &'static str), Infeasible> {
    let gpu = outer.gpu;
    let threads = outer.threads;
    if threads > 1024 {
        return Err(Infeasible::Threads { threads });
    }
    let most = i64::from(gpu.shared_per_block);
    if inner.shared_bytes > most {
        return Err(Infeasible::Shared { bytes: inner.shared_bytes, most });
    }
    if matches!(outer.pipe, Pipe::Async(_)) && !gpu.cp_async {
        return Err(Infeasible::CpAsync { arch: gpu.arch.clone() });
    }
    let registers = registers(outer, inner);
    let most = MOST_REGISTERS.min(i64::from(gpu.registers_per_sm / threads) / 8 * 8);
    if registers > most {
        return Err(Infeasible::Registers { registers, most, threads });
    }
    let by_shared = if inner.shared_bytes == 0 {
        i64::MAX
    } else {
        i64::from(gpu.shared_per_sm) / (inner.shared_bytes + i64::from(gpu.shared_reserved))
    };
    let limits = [
        (i64::from(gpu.registers_per_sm) / (registers * i64::from(threads)), "registers"),
        (by_shared, "shared memory"),
        (i64::from(gpu.threads_per_sm / threads), "threads"),
        (i64::from(gpu.blocks_per_sm), "blocks"),
    ];
    let (resident, limit) = limits.iter().min_by_key(|l| l.0).map_or((1, "blocks"), |l| (l.0.max(1), l.1));
    Ok((registers, resident, limit))
}

impl Times {
    /// The cost with its parts named. Each is what the kernel would take if only that resource bound it.
    fn explain(&self, outer: &Outer<'_>, work: Work) -> Cost {
        let hz = outer.gpu.clock_mhz * 1e6;
        let of = |clocks: f64| self.per_sm * outer.k_tiles * clocks / hz * 1e3;
        let mut parts: BTreeMap<String, f64> = BTreeMap::new();
        parts.insert("issue".into(), of(self.parts[0]));
        parts.insert("multiply_add".into(), of(self.parts[1]));
        parts.insert("shared_memory".into(), of(self.parts[2]));
        parts.insert("l1".into(), of(self.parts[3]));
        parts.insert("l2".into(), self.l2_ms);
        parts.insert("dram".into(), self.dram_ms);
        let bottleneck =
            parts.iter().max_by(|a, b| a.1.total_cmp(b.1)).map_or_else(String::new, |(name, _)| name.clone());
        let ends = self.per_sm * (self.end_clocks + 2.0 * outer.gpu.latency_dram) / hz * 1e3;
        parts.insert("latency".into(), (self.sm_ms - of(self.tile_clocks) - ends).max(0.0));
        parts.insert("epilogue".into(), self.per_sm * self.end_clocks / hz * 1e3);
        parts.insert("launch".into(), outer.gpu.launch_us * 1e-3);
        if self.sum_ms > 0.0 {
            parts.insert("add_parts".into(), self.sum_ms);
        }
        Cost {
            ms: self.ms,
            parts,
            bottleneck,
            resident_blocks: self.resident,
            occupancy_limit: self.limit.into(),
            registers: self.registers,
            waves: outer.blocks as f64 / self.slots as f64,
            dram_bytes: outer.dram_bytes,
            l2_bytes: self.l2_bytes,
            work,
        }
    }
}
