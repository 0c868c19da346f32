//! The time of a block's work on a GPU, and what no work of at least that much can beat: the innermost code of
//! extraction.
use crate::cost::Infeasible;
use crate::work::Work;
use crate::Descriptor;
use satune_ir::term::{Contraction, OperandInfo, Pipe, Way};
use satune_ir::DType;

/// Instructions of a warp that a k tile costs beyond what is counted: loop, addresses, ring arithmetic (estimate from
/// machine code: 30 to 40).
const TILE_OVERHEAD: f64 = 36.0;
/// Instructions of a warp that an inner step costs where its loop is not expanded.
const STEP_OVERHEAD: f64 = 6.0;
/// Registers beyond accumulators, fragments and tiles held for the next iteration: addresses, counters.
pub(crate) const BASE_REGISTERS: i64 = 32;
/// Most registers of a thread.
const MOST_REGISTERS: i64 = 255;

/// What of a plan's inner structure its time depends on. With the same resident blocks, and the same answer to whether
/// the inner loop is expanded, the time is monotone in every component.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inner {
    /// Per block, once, before its k loop.
    pub begin: Work,
    /// Per k tile and block.
    pub tile: Work,
    /// Per block, once.
    pub end: Work,
    /// What a k tile waits for.
    pub waits: Waits,
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
    /// Registers of a thread where a compiler has said how many there are.
    pub compiled: Option<i64>,
}

/// What a k tile waits for; it follows from where the operands are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waits {
    /// It copies an operand to shared memory.
    fills: bool,
    /// It reads an operand from global memory.
    direct: bool,
    /// The block has copied strips before.
    strips: bool,
}

impl Waits {
    /// Of a loop that finds its operands there.
    pub fn of(ways: [Way; 2]) -> Waits {
        let any = |way: Way| ways.contains(&way);
        Waits { fills: any(Way::Tile), direct: any(Way::Direct), strips: any(Way::Strip) }
    }
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

/// Joins resources that overlap.
pub(crate) fn norm(parts: &[f64], p: f64) -> f64 {
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

/// Registers per thread, estimated, for so many sums, fragments and staged elements.
fn rounded(counted: i64) -> i64 {
    (counted + BASE_REGISTERS + 7) / 8 * 8
}

/// Clocks of each resource of a multiprocessor for `work`: (issue, multiply-add, shared memory, L1).
fn clocks(outer: &Outer<'_>, work: &Work, overhead: f64) -> [f64; 4] {
    let gpu = outer.gpu;
    let counted = work.fma
        + work.addresses
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
    pub resident: i64,
    pub limit: &'static str,
    pub registers: i64,
    pub clocks: Clocks,
    /// Blocks that one multiprocessor runs, one after the other or side by side.
    pub per_sm: f64,
    pub slots: i64,
    pub sm_ms: f64,
    pub l2_bytes: f64,
    pub l2_ms: f64,
    pub dram_ms: f64,
    pub sum_ms: f64,
}

/// What a block costs, however many are resident.
pub(crate) struct Clocks {
    /// Per k tile: clocks of each resource, and all together.
    pub parts: [f64; 4],
    pub tile: f64,
    /// What a group of resident blocks needs for a k tile at least.
    arrives: f64,
    /// Once per block: the strips, and the stores.
    pub begin: f64,
    pub end: f64,
    /// Latency of the strips, once for all blocks that are resident together.
    strips: f64,
}

impl Clocks {
    fn of(outer: &Outer<'_>, inner: &Inner) -> Clocks {
        let gpu = outer.gpu;
        let p = gpu.overlap_exponent;
        let warps = f64::from(outer.threads / 32);
        let init = if inner.init_inside { inner.tile.fma + inner.tile.fma / 4.0 } else { 0.0 };
        let overhead = warps * (TILE_OVERHEAD + inner.rolled_steps * STEP_OVERHEAD) + init;
        let mut parts = clocks(outer, &inner.tile, overhead);
        if inner.rolled_steps == 0.0 {
            // An expanded k tile longer than the instruction cache likes is fetched again and again.
            let bytes = 16.0 * (parts[0] * 4.0 * gpu.issue_efficiency) / warps;
            parts[0] *= 1.0 + (bytes / gpu.instruction_cache_bytes as f64 - 0.5).max(0.0);
        }
        // The stores of a fill come in a burst at a barrier, where no arithmetic covers them: they add.
        let tile = norm(&parts, p) + inner.tile.shared_store_wavefronts;
        // What one block needs for a tile when it is alone: its chain of steps, and the latency that nothing covers.
        let per_warp = parts[0] / warps * 4.0;
        let chain = per_warp + inner.rolled_steps * (gpu.latency_shared + 4.0);
        let busy = chain.max(tile);
        let waits = inner.waits;
        let arrives = match outer.pipe {
            // All that it needs is on the chip.
            Pipe::Plain if !waits.fills && !waits.direct => busy,
            Pipe::Plain => gpu.latency_dram + 2.0 * gpu.latency_shared + busy,
            // What the overlap does not copy is waited for.
            _ if waits.direct => gpu.latency_dram + busy,
            Pipe::Registers => busy.max(gpu.latency_dram),
            Pipe::Async(stages) => busy.max(gpu.latency_dram / f64::from(stages.max(2) - 1)),
        };
        // A strip is filled like a tile that nothing overlaps.
        let (begin, strips) = if waits.strips {
            let filling = norm(&clocks(outer, &inner.begin, warps * TILE_OVERHEAD), p);
            (filling + inner.begin.shared_store_wavefronts, gpu.latency_dram + 2.0 * gpu.latency_shared)
        } else {
            (0.0, 0.0)
        };
        let end = norm(&clocks(outer, &inner.end, warps * 32.0), p);
        Clocks { parts, tile, arrives, begin, end, strips }
    }

    /// With so many resident blocks: time of the multiprocessors, ms, and blocks that one of them runs.
    fn on_sms(&self, outer: &Outer<'_>, resident: i64) -> (f64, i64) {
        let gpu = outer.gpu;
        let sms = i64::from(gpu.sms);
        let slots = resident * sms;
        let full = outer.blocks / slots;
        let last = (outer.blocks % slots + sms - 1) / sms;
        let group = |blocks: i64| {
            if blocks == 0 {
                return 0.0;
            }
            let b = blocks as f64;
            let ends = b * (self.begin + self.end) + self.strips + gpu.latency_dram * 2.0;
            outer.k_tiles * (b * self.tile).max(self.arrives) + ends
        };
        let clocks = full as f64 * group(resident) + group(last);
        (clocks / (gpu.clock_mhz * 1e6) * 1e3, full * resident + last)
    }
}

/// Bytes from and to L2, and the time that they take.
fn l2(outer: &Outer<'_>, inner: &Inner) -> (f64, f64) {
    let gpu = outer.gpu;
    let once = inner.begin.l2_sectors + inner.end.l2_sectors;
    let bytes = outer.blocks as f64 * (outer.k_tiles * inner.tile.l2_sectors + once) * 32.0;
    (bytes, bytes / gpu.l2_bytes_per_clock / (gpu.clock_mhz * 1e6) * 1e3)
}

fn dram_ms(outer: &Outer<'_>) -> f64 {
    outer.dram_bytes / (outer.gpu.dram_gbs * 1e9) * 1e3
}

/// Time of the kernel that adds partial sums.
fn sum_ms(outer: &Outer<'_>) -> f64 {
    let sums = outer.contraction.c.dtype;
    add_parts_ms(outer.contraction, outer.gpu, (outer.split_k, sums))
}

/// Time of a kernel that adds so many partial sums of each result, of a type, and applies the epilogue.
pub(crate) fn add_parts_ms(contraction: &Contraction, gpu: &Descriptor, (parts, sums): (i64, DType)) -> f64 {
    if parts <= 1 {
        return 0.0;
    }
    let out: f64 = contraction.c.dims.iter().map(|a| contraction.extent(*a) as f64).product();
    let each = parts as f64 * f64::from(sums.bytes()) + f64::from(contraction.c.dtype.bytes());
    (out * each + beside(contraction)) / (gpu.dram_gbs * 1e9) * 1e3 + gpu.launch_us * 1e-3
}

/// Bytes that the epilogue reads beside the sums.
pub(crate) fn beside(contraction: &Contraction) -> f64 {
    let bytes = |read: &OperandInfo| {
        let elements: f64 = read.dims.iter().map(|a| contraction.extent(*a) as f64).product();
        elements * f64::from(read.dtype.bytes())
    };
    contraction.epilogue.iter().flat_map(|e| &e.reads).map(bytes).sum()
}

/// All together.
fn join(outer: &Outer<'_>, sm_ms: f64, l2_ms: f64, dram_ms: f64, sum_ms: f64) -> f64 {
    norm(&[sm_ms, l2_ms, dram_ms], outer.gpu.overlap_exponent) + outer.gpu.launch_us * 1e-3 + sum_ms
}

/// Time of a plan from its summary.
pub(crate) fn time(outer: &Outer<'_>, inner: &Inner) -> Result<Times, Infeasible> {
    let (registers, resident, limit) = residency(outer, inner)?;
    let clocks = Clocks::of(outer, inner);
    let (sm_ms, per_sm) = clocks.on_sms(outer, resident);
    let (l2_bytes, l2_ms) = l2(outer, inner);
    let (dram_ms, sum_ms) = (dram_ms(outer), sum_ms(outer));
    Ok(Times {
        ms: join(outer, sm_ms, l2_ms, dram_ms, sum_ms),
        resident,
        limit,
        registers,
        clocks,
        per_sm: per_sm as f64,
        slots: resident * i64::from(outer.gpu.sms),
        sm_ms,
        l2_bytes,
        l2_ms,
        dram_ms,
        sum_ms,
    })
}

/// What no plan can beat whose summary is at least `inner` in every component, has `inner`'s threads, and as many rolled
/// steps as it (none, or not none). Infinite where none fits the GPU. `most`: registers of fragments and staged tiles
/// together that such a plan has at most, if its shared memory is `inner`'s; `None` where neither is known.
///
/// With the resident blocks fixed, the time is monotone in all of `inner`; rounding keeps that, for the operations are
/// the same and each is monotone. In the resident blocks it is not (a last group of few blocks can wait for latency), so
/// the least over all that are possible is taken.
pub(crate) fn least_ms(outer: &Outer<'_>, inner: &Inner, most: Option<i64>) -> f64 {
    let Ok((_, high, _)) = residency(outer, inner) else { return f64::INFINITY };
    let low = most.map_or(1, |most| {
        let all = rounded(outer.sums + most).min(most_registers(outer));
        resident_blocks(outer, all, inner.shared_bytes).0
    });
    let clocks = Clocks::of(outer, inner);
    let sm_ms = (low..=high).map(|resident| clocks.on_sms(outer, resident).0).fold(f64::INFINITY, f64::min);
    join(outer, sm_ms, l2(outer, inner).1, dram_ms(outer), sum_ms(outer))
}

/// Registers per thread that can be had.
fn most_registers(outer: &Outer<'_>) -> i64 {
    MOST_REGISTERS.min(i64::from(outer.gpu.registers_per_sm / outer.threads) / 8 * 8)
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
    let counted = || rounded(outer.sums + inner.fragment_registers + inner.staged_registers);
    let registers = inner.compiled.map_or_else(counted, |r| (r + 7) / 8 * 8);
    let most = most_registers(outer);
    if registers > most {
        return Err(Infeasible::Registers { registers, most, threads });
    }
    let (resident, limit) = resident_blocks(outer, registers, inner.shared_bytes);
    Ok((registers, resident, limit))
}

/// Resident blocks per multiprocessor, one at least, and what limits them.
fn resident_blocks(outer: &Outer<'_>, registers: i64, shared_bytes: i64) -> (i64, &'static str) {
    let gpu = outer.gpu;
    let threads = outer.threads;
    let by_shared = if shared_bytes == 0 {
        i64::MAX
    } else {
        i64::from(gpu.shared_per_sm) / (shared_bytes + i64::from(gpu.shared_reserved))
    };
    let limits = [
        (i64::from(gpu.registers_per_sm) / (registers * i64::from(threads)), "registers"),
        (by_shared, "shared memory"),
        (i64::from(gpu.threads_per_sm / threads), "threads"),
        (i64::from(gpu.blocks_per_sm), "blocks"),
    ];
    limits.iter().min_by_key(|l| l.0).map_or((1, "blocks"), |l| (l.0.max(1), l.1))
}
