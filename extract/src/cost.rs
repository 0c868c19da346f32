//! The analytical cost: exact counts, and the time that a GPU needs for them, in parts. The formula is that of
//! [`crate::time`]; every constant is one of the descriptor, none belongs to a kernel.
use crate::cores::{beside, stored, time, Inner, Outer, Times, Waits, BASE_REGISTERS};
use crate::panels::panels;
use crate::prediction::{Compiled, Cost, Infeasible};
use crate::tensor;
use crate::time::{binding, clocks_per_ms, stays_in_l2, Moved};
use crate::work::{self, outer_iterations, Work};
use crate::Descriptor;
use satune_ir::term::{Contraction, CoresPlan, Pipe, Schedule, Side, Way};
use satune_ir::DType;

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

/// A contraction's schedule of any kind with all counted that its time depends on.
#[derive(Clone, Debug)]
pub(crate) enum OfSchedule<'a> {
    /// On single threads.
    Cores(Box<Prepared<'a>>),
    /// On tensor cores.
    Tensor(Box<tensor::Prepared<'a>>),
}

impl<'a> OfSchedule<'a> {
    /// Counts.
    ///
    /// # Errors
    /// When the GPU cannot run the schedule, or it is none of a contraction.
    pub fn of(schedule: &'a Schedule, contraction: &'a Contraction, gpu: &'a Descriptor) -> Result<Self, Infeasible> {
        let on_tensor_cores = |kernel| {
            tensor::Prepared::of(kernel, contraction, gpu).map(|prepared| OfSchedule::Tensor(Box::new(prepared)))
        };
        match schedule {
            Schedule::Cores(plan) => Ok(OfSchedule::Cores(Box::new(prepare(plan, contraction, gpu)))),
            Schedule::Mma(plan) => on_tensor_cores(tensor::Kernel::Mma(plan)),
            Schedule::Wgmma(plan) => on_tensor_cores(tensor::Kernel::Wgmma(plan)),
            Schedule::Stream(_) => Err(Infeasible::Kind),
        }
    }

    /// The time under the rates of `gpu`, which has the limits that the schedule was counted with; ms.
    pub fn ms(&self, gpu: &Descriptor) -> Result<f64, Infeasible> {
        match self {
            OfSchedule::Cores(prepared) => prepared.ms(gpu),
            OfSchedule::Tensor(prepared) => prepared.ms(gpu),
        }
    }
}

/// Counts what a plan's time depends on.
pub(crate) fn prepare<'a>(plan: &CoresPlan, contraction: &'a Contraction, gpu: &'a Descriptor) -> Prepared<'a> {
    let work::BlockWork { begin, tile, end, .. } = work::of_block(plan, contraction);
    let inner = Inner {
        begin,
        tile,
        end,
        waits: Waits::of([Side::A, Side::B].map(|side| plan.way(side))),
        held: held_direct(plan, contraction),
        fragment_registers: fragment_registers(plan, contraction),
        next_registers: next_registers(plan, contraction),
        staged_registers: staged_registers(plan, contraction),
        shared_bytes: plan.shared_bytes(contraction),
        rolled_steps: if plan.unroll_k { 0.0 } else { (plan.k_tile / plan.k_step) as f64 },
        init_inside: !plan.init_hoisted,
        compiled: None,
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
        dram: dram_bytes(plan, contraction, gpu, sums),
    };
    Prepared { outer, inner }
}

/// Predicts a plan's time.
///
/// # Errors
/// When the GPU cannot run it.
pub fn cost(plan: &CoresPlan, contraction: &Contraction, gpu: &Descriptor) -> Result<Cost, Infeasible> {
    let Prepared { outer, inner } = prepare(plan, contraction, gpu);
    Ok(time(&outer, &inner)?.explain(&outer, work::total(plan, contraction)))
}

/// Predicts a schedule as a compiler made it.
///
/// # Errors
/// When the GPU cannot run it.
pub fn compiled<'a>(
    schedule: &'a Schedule,
    contraction: &'a Contraction,
    gpu: &'a Descriptor,
    registers: u32,
) -> Result<Compiled<'a>, Infeasible> {
    match schedule {
        Schedule::Cores(plan) => {
            let Prepared { outer, inner } = prepare(plan, contraction, gpu);
            let inner = Inner { compiled: Some(registers.into()), ..inner };
            let cost = time(&outer, &inner)?.explain(&outer, work::total(plan, contraction));
            Ok(Compiled { cost, k_loop: crate::cores::k_loop(outer, inner)? })
        }
        Schedule::Stream(_) => Err(Infeasible::Kind),
        Schedule::Mma(plan) => tensor::compiled(&tensor::Kernel::Mma(plan), contraction, gpu, registers),
        Schedule::Wgmma(plan) => tensor::compiled(&tensor::Kernel::Wgmma(plan), contraction, gpu, registers),
    }
}

/// Predicts the time of a schedule of any kind.
///
/// # Errors
/// When the GPU cannot run it.
pub fn predict(schedule: &Schedule, contraction: &Contraction, gpu: &Descriptor) -> Result<Cost, Infeasible> {
    match schedule {
        Schedule::Cores(plan) => cost(plan, contraction, gpu),
        Schedule::Stream(_) => Err(Infeasible::Kind),
        Schedule::Mma(plan) => tensor::cost_of(&tensor::Kernel::Mma(plan), contraction, gpu),
        Schedule::Wgmma(plan) => tensor::cost_of(&tensor::Kernel::Wgmma(plan), contraction, gpu),
    }
}

/// What a product takes on single threads at least, ms: a multiply-add for each of its steps, on all lanes of all multiprocessors.
pub fn least_on_threads(contraction: &Contraction, gpu: &Descriptor) -> f64 {
    let steps: f64 = contraction.iters.iter().map(|(_, info)| info.extent as f64).product();
    steps / f64::from(gpu.fp32_lanes) / f64::from(gpu.sms) / clocks_per_ms(gpu)
}

/// 32-bit registers of a value.
pub(crate) fn words(dtype: DType) -> i64 {
    i64::from(dtype.bytes().max(4) / 4)
}

/// Registers that hold what a plan reads from global memory where it is used.
fn held_direct(plan: &CoresPlan, contraction: &Contraction) -> f64 {
    let direct = |side: &Side| plan.way(*side) == Way::Direct;
    let held: i64 = [Side::A, Side::B].iter().filter(|s| direct(s)).map(|s| held(plan, *s, contraction)).sum();
    held as f64
}

/// Registers of a fragment; 0 where there is none.
fn held(plan: &CoresPlan, side: Side, contraction: &Contraction) -> i64 {
    let (pieces, registers) = match side {
        Side::A => (plan.vthread_outer.m * plan.vthread_inner.m, plan.registers.m),
        Side::B => (plan.vthread_outer.n * plan.vthread_inner.n, plan.registers.n),
    };
    match plan.staging(side).local {
        Some(_) => pieces * registers * plan.k_step * words(contraction.operand(side).dtype),
        None => 0,
    }
}

fn fragment_registers(plan: &CoresPlan, contraction: &Contraction) -> i64 {
    let of = |side| match plan.staging(side).local {
        Some(_) => held(plan, side, contraction),
        None => 2,
    };
    [Side::A, Side::B].into_iter().map(of).sum()
}

/// Registers of the next step's fragments, which are read from shared memory while this step's are used.
fn next_registers(plan: &CoresPlan, contraction: &Contraction) -> i64 {
    let staged = [Side::A, Side::B].into_iter().filter(|side| plan.way(*side) != Way::Direct);
    match plan.unroll_k && plan.k_step == 1 {
        true => staged.map(|side| held(plan, side, contraction)).sum(),
        false => 0,
    }
}

/// Registers that hold a tile between its load and its store.
pub(crate) fn staged_of(elements: i64, threads: u32, vector: u32, dtype: DType, held: bool) -> i64 {
    let step = i64::from(threads) * i64::from(vector);
    let each = if held { (elements + step - 1) / step * i64::from(vector) } else { i64::from(vector) };
    (each * i64::from(dtype.bytes()) + 3) / 4
}

/// Those of the tiles that the k loop copies, or of the strips copied before it, whichever are more.
fn staged_registers(plan: &CoresPlan, contraction: &Contraction) -> i64 {
    let of = |way: Way, pipe: Pipe| -> i64 {
        if matches!(pipe, Pipe::Async(_)) {
            return 0;
        }
        [Side::A, Side::B]
            .into_iter()
            .filter(|side| plan.way(*side) == way)
            .filter_map(|side| {
                let (_, fill) = plan.staging(side).shared?;
                let elements = plan.spatial(side) * plan.staged_k(side);
                let held = fill.unroll || pipe == Pipe::Registers;
                Some(staged_of(elements, plan.threads, fill.vector, contraction.operand(side).dtype, held))
            })
            .sum()
    };
    of(Way::Tile, plan.pipe).max(of(Way::Strip, Pipe::Plain))
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
pub(crate) fn dram_bytes(plan: &CoresPlan, contraction: &Contraction, gpu: &Descriptor, sums: i64) -> Moved {
    let size = |side: Side| contraction.elements(side) * f64::from(contraction.operand(side).dtype.bytes());
    let least = size(Side::A) + size(Side::B);
    let written = stored(contraction, gpu, (plan.split_k as f64, contraction.c.dtype));
    // Partial sums are added, and the epilogue applied, by another kernel.
    let more = if plan.split_k > 1 { 0.0 } else { beside(contraction) };
    if stays_in_l2(least, gpu) {
        return Moved { read: least + more, written };
    }
    let slots = wave_slots(gpu, plan.threads, sums).min(plan.block_count());
    let (panels_a, panels_b) = panels(&plan.blocks, slots);
    let k = plan.k_part as f64 * outer_iterations(contraction);
    // What a panel of a gathered operand reads several times it reads from a cache; its rim is left out.
    let panel = |side: Side| k * f64::from(contraction.operand(side).dtype.bytes()) / contraction.repeats(side);
    let bytes_a = plan.tile.m as f64 * panel(Side::A);
    let bytes_b = plan.tile.n as f64 * panel(Side::B);
    let waves = plan.block_count() as f64 / slots as f64;
    let read = waves * (panels_a as f64 * bytes_a + panels_b as f64 * bytes_b);
    Moved { read: read.max(least) + more, written }
}

impl Times {
    /// The cost with its parts named.
    fn explain(&self, outer: &Outer<'_>, work: Work) -> Cost {
        let parts = self.parts(outer);
        Cost {
            ms: self.ms,
            bottleneck: binding(&parts),
            parts,
            resident_blocks: self.resident,
            occupancy_limit: self.limit.into(),
            registers: self.registers,
            waves: outer.blocks as f64 / self.slots as f64,
            dram_bytes: outer.dram.total(),
            l2_bytes: self.l2_bytes,
            work,
        }
    }
}
