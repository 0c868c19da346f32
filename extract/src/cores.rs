//! What schedules on single threads ask of a GPU, and what no work of at least that much can beat: the innermost code of
//! extraction.
use crate::prediction::{Infeasible, KLoop};
use crate::residency::{self, Takes};
use crate::time::{clocks_per_ms, fma_joules, largest, Demand, Moved, Taken};
use crate::work::{slots, Work};
use crate::Descriptor;
use satune_ir::term::{Beside, Contraction, Pipe, Way};
use satune_ir::DType;
use std::rc::Rc;

/// Instructions of a warp that a k tile costs beyond what is counted: loop, addresses, ring arithmetic (estimate from
/// machine code: 30 to 40).
const TILE_OVERHEAD: f64 = 36.0;
/// Instructions of a warp that an inner step costs where its loop is not expanded.
const STEP_OVERHEAD: f64 = 6.0;
/// Registers beyond accumulators, fragments and tiles held for the next iteration: addresses, counters.
pub(crate) const BASE_REGISTERS: i64 = 32;
/// Loads from global memory that a compiler starts before it waits for the first, where the k loop is expanded: as far as there
/// are registers for them, however many a fragment has (machine code of NVRTC 13.5, sm_86: 32 in a loop of 16 k values; of 12.9,
/// sm_70: 40 registers more than are counted without).
const EXPANDED_AHEAD: f64 = 32.0;
/// The same where each step has a turn of the loop and no fragment holds what is loaded: the step's two operands.
const ROLLED_AHEAD: f64 = 2.0;

/// Lanes of a multiprocessor that compare, choose, and work on integers (CUDA C++ Programming Guide, "Throughput of Native
/// Arithmetic Instructions": 64 from 7.0 to 9.0).
pub const LOGIC_LANES: f64 = 64.0;

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
    /// Registers of a thread that hold what is read from global memory where it is used.
    pub held: f64,
    /// Registers that fragments take.
    pub fragment_registers: i64,
    /// Registers of a second set of those that are read from shared memory. Where the inner loop is expanded, a k value at a time, the
    /// compiler reads the next one's fragments while those of this one are used.
    pub next_registers: i64,
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

impl Inner {
    /// Loads of a thread from global memory that are started together, of operands that are read where they are used.
    fn ahead(&self, outer: &Outer<'_>) -> f64 {
        match self.rolled_steps > 0.0 {
            false => self.held + self.more_held(outer),
            true if self.held > 0.0 => self.held,
            true => ROLLED_AHEAD,
        }
    }

    /// Registers that an expanded loop takes for such loads beyond those of fragments.
    fn more_held(&self, outer: &Outer<'_>) -> f64 {
        let loads = self.tile.global_loads / f64::from(outer.threads / 32);
        let expanded = self.waits.direct && self.rolled_steps == 0.0;
        if expanded {
            (EXPANDED_AHEAD.min(loads) - self.held).max(0.0)
        } else {
            0.0
        }
    }

    /// Registers beyond a compiler's own, with so many more for what the inner loop reads. A tile that is on its way while the loop runs
    /// takes its own; else it is stored before the first fragment is read.
    fn registers(&self, outer: &Outer<'_>, more: i64) -> i64 {
        let read = self.fragment_registers + more;
        let held =
            if outer.pipe == Pipe::Registers { read + self.staged_registers } else { read.max(self.staged_registers) };
        outer.sums + held
    }

    /// Registers that a compiler takes where there are as many.
    fn more_registers(&self, outer: &Outer<'_>) -> i64 {
        self.more_held(outer) as i64 + self.next_registers
    }
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
    pub dram: Moved,
}

/// Registers per thread, estimated, for so many sums, fragments and staged elements.
fn estimated(counted: i64) -> i64 {
    residency::rounded(counted + BASE_REGISTERS)
}

/// Pipes of a multiprocessor: names of their parts.
pub(crate) const PIPES: [&str; 5] = ["issue", "multiply_add", "shared_memory", "load_store", "l1"];

/// Clocks of each of [`PIPES`] for `work`.
fn clocks(outer: &Outer<'_>, work: &Work, overhead: f64) -> [f64; 5] {
    let gpu = outer.gpu;
    let moved = work.shared_loads + work.shared_stores + work.global_loads + work.global_stores + work.async_copies;
    let step = outer.contraction.step();
    let of = |instructions: u32, lanes: f64| work.fma * f64::from(instructions) * 32.0 / lanes;
    let math = match outer.contraction.accumulate {
        // Double precision is compared where it is added.
        DType::F64 => of(step.multiply_adds + step.logic, gpu.fp64_lanes.into()),
        _ => of(step.multiply_adds, gpu.fp32_lanes.into()).max(of(step.logic, LOGIC_LANES)),
    };
    let math = math / gpu.issue_efficiency;
    let arithmetic = work.fma * slots(step) + work.prepared;
    let issue = (arithmetic + work.addresses + moved + work.barriers + overhead) / 4.0 / gpu.issue_efficiency;
    let shared = work.shared_load_wavefronts + work.shared_store_wavefronts;
    let load_store = moved * 32.0 / f64::from(gpu.load_store_lanes);
    let l1 = work.l1_bytes / gpu.l1_bytes_per_clock;
    [issue, math, shared, load_store, l1]
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
    pub l2_bytes: f64,
    pub taken: Taken,
    pub sum_ms: f64,
}

/// What a block costs, however many are resident.
pub(crate) struct Clocks {
    /// Per k tile: clocks of each pipe, and of the largest.
    pub parts: [f64; 5],
    pub tile: f64,
    /// Clocks of the arithmetic and of the issue slots per k tile where one scheduler does all.
    serial: f64,
    /// What a group of resident blocks needs for a k tile at least, and what it takes a tile to come through a ring.
    arrives: f64,
    comes: f64,
    /// Once per block: the strips, and the stores.
    pub begin: f64,
    pub end: f64,
    /// Latency of the strips, once for all blocks that are resident together.
    strips: f64,
}

impl Clocks {
    fn of(outer: &Outer<'_>, inner: &Inner) -> Clocks {
        let gpu = outer.gpu;
        let warps = f64::from(outer.threads / 32);
        let init = if inner.init_inside { inner.tile.fma + inner.tile.fma / 4.0 } else { 0.0 };
        let overhead = warps * (TILE_OVERHEAD + inner.rolled_steps * STEP_OVERHEAD) + init;
        let mut parts = clocks(outer, &inner.tile, overhead);
        let mut fetch = 0.0;
        if inner.rolled_steps == 0.0 {
            // An expanded k tile longer than the instruction cache likes is fetched again and again.
            let bytes = 16.0 * (parts[0] * 4.0 * gpu.issue_efficiency) / warps;
            parts[0] *= 1.0 + (bytes / gpu.instruction_cache_bytes as f64 - 0.5).max(0.0);
            fetch = gpu.fetch_clocks(bytes);
        }
        let tile = largest(&parts);
        let serial = parts[0].max(parts[1]) * 4.0;
        // What one block needs for a tile when it is alone: its chain of steps, and what nothing covers: the stores of a
        // fill, which come in a burst at a barrier, and latencies.
        let chain = serial / warps + inner.rolled_steps * (gpu.latency_shared + 4.0);
        let busy = chain.max(tile).max(fetch) + inner.tile.shared_store_wavefronts;
        let waits = inner.waits;
        // Operands that are read where they are used are waited for once per batch of loads.
        let direct =
            if waits.direct { (inner.tile.global_loads / warps / inner.ahead(outer)).max(1.0).ceil() } else { 0.0 };
        let alone = busy + direct * gpu.latency_l2;
        let comes = match outer.pipe {
            Pipe::Plain => 0.0,
            Pipe::Registers => gpu.latency_dram,
            Pipe::Async(stages) => gpu.latency_dram / f64::from(stages.max(2) - 1),
        };
        let arrives = match outer.pipe {
            Pipe::Plain if waits.fills => gpu.latency_dram + 2.0 * gpu.latency_shared + alone,
            _ => alone.max(comes),
        };
        // A strip is filled like a tile that nothing overlaps.
        let (begin, strips) = if waits.strips {
            let filling = largest(&clocks(outer, &inner.begin, warps * TILE_OVERHEAD));
            (filling + inner.begin.shared_store_wavefronts, gpu.latency_dram + 2.0 * gpu.latency_shared)
        } else {
            (0.0, 0.0)
        };
        let end = largest(&clocks(outer, &inner.end, warps * 32.0));
        Clocks { parts, tile, serial, arrives, comes, begin, end, strips }
    }

    /// Clocks of a k tile of so many resident blocks.
    fn k_tile(&self, outer: &Outer, blocks: i64) -> f64 {
        let b = blocks as f64;
        // Fewer warps than schedulers leave some of them idle.
        let schedulers = (f64::from(outer.threads / 32) * b).min(4.0);
        (b * self.tile).max(b * self.serial / schedulers).max(self.arrives)
    }

    /// With so many resident blocks, whose k tiles take `k_tile`: clocks of the busiest multiprocessor, those of them that nothing
    /// overlaps, and blocks that it runs.
    fn on_sms(&self, outer: &Outer<'_>, resident: i64, k_tile: impl Fn(i64) -> f64) -> (f64, f64, i64) {
        let gpu = outer.gpu;
        let sms = i64::from(gpu.sms);
        let slots = resident * sms;
        let full = outer.blocks / slots;
        let last = (outer.blocks % slots + sms - 1) / sms;
        let group = |blocks: i64| {
            if blocks == 0 {
                return 0.0;
            }
            outer.k_tiles * k_tile(blocks) + blocks as f64 * (self.begin + self.end)
        };
        let waves = full + i64::from(last > 0);
        let waits = waves as f64 * (self.strips + 2.0 * gpu.latency_dram);
        (full as f64 * group(resident) + group(last), waits, full * resident + last)
    }
}

/// What the main kernel asks for, given the clocks of its multiprocessors and those that nothing overlaps.
fn demand(outer: &Outer<'_>, inner: &Inner, sm_clocks: f64, wait_clocks: f64) -> Demand {
    let blocks = outer.blocks as f64;
    let once = inner.begin.l2_sectors + inner.end.l2_sectors;
    let fma = blocks * outer.k_tiles * (inner.tile.fma * slots(outer.contraction.step()) + inner.tile.prepared) * 32.0;
    Demand {
        sm_clocks,
        wait_clocks,
        l2_bytes: blocks * (outer.k_tiles * inner.tile.l2_sectors + once) * 32.0,
        dram: outer.dram,
        joules: fma_joules(fma, outer.contraction.accumulate, outer.gpu),
        ..Demand::default()
    }
}

/// Time of the kernel that adds partial sums.
fn sum_ms(outer: &Outer<'_>) -> f64 {
    let sums = outer.contraction.c.dtype;
    add_parts_ms(outer.contraction, outer.gpu, (outer.split_k as f64, sums))
}

/// Bytes of all results in a type.
pub(crate) fn result_bytes(contraction: &Contraction, dtype: DType) -> f64 {
    let out: f64 = contraction.c.dims.iter().map(|a| contraction.extent(*a) as f64).product();
    out * f64::from(dtype.bytes())
}

/// Bytes that the main kernel writes to DRAM, of so many partial sums of each result, of a type: parts that stay in L2 until
/// they are added never get there.
pub(crate) fn stored(contraction: &Contraction, gpu: &Descriptor, (parts, sums): (f64, DType)) -> f64 {
    if parts <= 1.0 {
        return result_bytes(contraction, contraction.c.dtype);
    }
    from_dram(parts * result_bytes(contraction, sums), gpu)
}

/// Of bytes that a kernel leaves to the next one, those that pass through DRAM.
fn from_dram(bytes: f64, gpu: &Descriptor) -> f64 {
    if crate::time::stays_in_l2(bytes, gpu) {
        0.0
    } else {
        bytes
    }
}

/// Time of a kernel that adds so many partial sums of each result, of a type, and applies the epilogue.
pub(crate) fn add_parts_ms(contraction: &Contraction, gpu: &Descriptor, (parts, sums): (f64, DType)) -> f64 {
    if parts <= 1.0 {
        return 0.0;
    }
    let (added, written) = (parts * result_bytes(contraction, sums), result_bytes(contraction, contraction.c.dtype));
    let dram = Moved { read: from_dram(added, gpu) + beside(contraction), written };
    let l2_bytes = added + beside(contraction) + written;
    Demand { l2_bytes, dram, wait_clocks: 2.0 * gpu.latency_dram, ..Demand::default() }.time(gpu).ms
}

/// Bytes that the epilogue reads beside the sums.
pub(crate) fn beside(contraction: &Contraction) -> f64 {
    let bytes = |read: &Beside| contraction.elements_beside(read) as f64 * f64::from(read.dtype.bytes());
    contraction.epilogue.iter().flat_map(|e| &e.reads).map(bytes).sum()
}

/// Time of a plan from its summary.
pub(crate) fn time(outer: &Outer<'_>, inner: &Inner) -> Result<Times, Infeasible> {
    let (registers, resident, limit) = residency(outer, inner)?;
    let clocks = Clocks::of(outer, inner);
    let (sm, waits, per_sm) = clocks.on_sms(outer, resident, |blocks| clocks.k_tile(outer, blocks));
    let demand = demand(outer, inner, sm, waits);
    let (taken, sum_ms) = (demand.time(outer.gpu), sum_ms(outer));
    Ok(Times {
        ms: taken.ms + sum_ms,
        resident,
        limit,
        registers,
        clocks,
        per_sm: per_sm as f64,
        slots: resident * i64::from(outer.gpu.sms),
        l2_bytes: demand.l2_bytes,
        taken,
        sum_ms,
    })
}

/// The loop over k of a plan whose blocks have so many registers, as the model has it.
pub(crate) fn k_loop<'a>(outer: Outer<'a>, inner: Inner) -> Result<KLoop<'a>, Infeasible> {
    let (_, resident, _) = residency(&outer, &inner)?;
    let clocks = Rc::new(Clocks::of(&outer, &inner));
    let of = Rc::clone(&clocks);
    Ok(KLoop {
        flop: inner.tile.fma * 64.0,
        resident,
        copies: inner.waits.fills,
        clocks: Box::new(move |blocks| of.k_tile(&outer, blocks)),
        ms: Box::new(move |k_tile| {
            let comes = clocks.comes;
            let (sm, waits, _) = clocks.on_sms(&outer, resident, |blocks| k_tile(blocks).max(comes));
            demand(&outer, &inner, sm, waits).time(outer.gpu).ms + sum_ms(&outer)
        }),
    })
}

/// What no plan can beat whose summary is at least `inner` in every component, has `inner`'s threads, as many rolled
/// steps as it (none, or not none), and starts no more loads together. Infinite where none fits the GPU. `most`: registers
/// of fragments and staged tiles together that such a plan has at most, if its shared memory is `inner`'s; `None` where
/// neither is known.
///
/// With the resident blocks fixed, the time is monotone in all of `inner`; rounding keeps that, for the operations are
/// the same and each is monotone. In the resident blocks it is not (a last group of few blocks can wait for latency), so
/// the least over all that are possible is taken.
pub(crate) fn least_ms(outer: &Outer<'_>, inner: &Inner, most: Option<i64>) -> f64 {
    let Ok((_, high, _)) = residency(outer, inner) else { return f64::INFINITY };
    let low = most.map_or(1, |most| {
        let more = inner.next_registers + if inner.waits.direct { EXPANDED_AHEAD as i64 } else { 0 };
        let registers =
            estimated(outer.sums + most + more).min(residency::most_registers(outer.gpu, outer.threads.into()));
        takes(outer, inner, registers).resident(outer.gpu).0
    });
    let clocks = Clocks::of(outer, inner);
    // Many blocks are mostly best, and what takes no less of either than one that is known is no faster: its time need not be computed.
    let (mut least, mut known) = (f64::INFINITY, [[f64::INFINITY; 2]; 2]);
    for resident in (low..=high).rev() {
        let (sm, waits, _) = clocks.on_sms(outer, resident, |blocks| clocks.k_tile(outer, blocks));
        if known.iter().any(|[known_sm, known_waits]| sm >= *known_sm && waits >= *known_waits) {
            continue;
        }
        let ms = demand(outer, inner, sm, waits).time(outer.gpu).ms;
        if ms < least {
            (least, known) = (ms, [[sm, waits], known[0]]);
        }
    }
    least + sum_ms(outer)
}

fn takes(outer: &Outer<'_>, inner: &Inner, registers: i64) -> Takes {
    Takes { threads: outer.threads.into(), registers, shared_bytes: inner.shared_bytes }
}

/// (registers per thread, resident blocks per multiprocessor, what limits them).
fn residency(outer: &Outer<'_>, inner: &Inner) -> Result<(i64, i64, &'static str), Infeasible> {
    if matches!(outer.pipe, Pipe::Async(_)) && !outer.gpu.cp_async {
        return Err(Infeasible::CpAsync { arch: outer.gpu.arch.clone() });
    }
    let counted = || {
        let most = residency::most_registers(outer.gpu, outer.threads.into());
        estimated(inner.registers(outer, 0))
            .max(estimated(inner.registers(outer, inner.more_registers(outer))).min(most))
    };
    let registers = inner.compiled.unwrap_or_else(counted);
    let (resident, limit) = takes(outer, inner, registers).residency(outer.gpu)?;
    Ok((residency::rounded(registers), resident, limit))
}

impl Times {
    /// Each part as what the kernel would take if only that bound it, ms.
    pub fn parts(&self, outer: &Outer<'_>) -> std::collections::BTreeMap<String, f64> {
        let clocks = clocks_per_ms(outer.gpu);
        let of = |each: f64| self.per_sm * outer.k_tiles * each / clocks;
        let mut parts: std::collections::BTreeMap<String, f64> =
            PIPES.iter().zip(self.clocks.parts).map(|(name, each)| (name.to_string(), of(each))).collect();
        let around = self.per_sm * (self.clocks.begin + self.clocks.end) / clocks;
        let latency = self.taken.sm_ms - of(self.clocks.tile) - around;
        parts.insert("latency".into(), latency.max(0.0) + self.taken.wait_ms);
        parts.insert("epilogue".into(), self.per_sm * self.clocks.end / clocks);
        if self.clocks.begin > 0.0 {
            parts.insert("prologue".into(), self.per_sm * self.clocks.begin / clocks);
        }
        if self.sum_ms > 0.0 {
            parts.insert("add_parts".into(), self.sum_ms);
        }
        self.taken.name(&mut parts);
        parts
    }
}
