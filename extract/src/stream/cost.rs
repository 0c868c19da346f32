//! The time of a streaming plan: its kernels one after the other, each bound by DRAM, L2, or its multiprocessors (issue
//! slots, shared memory, L1, and the latency of a block's chain of steps where too few blocks are resident to cover it).
//! The formula is that of [`crate::time`], and every constant one of the GPU's descriptor.
use super::counts::KernelWork;
use super::work::{kernel_work, Passing};
use crate::cost::{predict, OfSchedule};
use crate::prediction::{Cost, Infeasible};
use crate::residency::{rounded, Takes};
use crate::time::{binding, clocks_per_ms, largest, stays_in_l2, Demand, Moved, Taken};
use crate::work::Work;
use crate::Descriptor;
use satune_ir::term::stream::{KernelPlan, Stream, StreamPlan, Streams};
use satune_ir::term::{Contraction, Schedule};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

/// Registers beyond those for what a thread holds (estimate).
pub const BASE_REGISTERS: i64 = 24;
/// Instructions that round a value to f16, and to bf16: from sm_80 on one for two values; before, a conversion for each and a
/// permutation for two, and of bf16 what rounds the bits as integers. Read off the machine code of kernels that do nothing else.
const NARROWED_SLOTS: [[f64; 2]; 2] = [[1.5, 7.75], [0.5, 0.5]];
/// The same of a value by itself: a conversion, and no permutation.
const NARROWED_ALONE_SLOTS: [[f64; 2]; 2] = [[1.0, 7.25], [1.0, 1.0]];
/// Clocks of one dependent arithmetic step.
pub const STEP_CLOCKS: f64 = 4.5;

/// Predicted time of a kernel and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelCost {
    /// Predicted time with its launch, ms.
    pub ms: f64,
    /// What each resource alone would take, ms.
    pub parts: BTreeMap<String, f64>,
    /// Resident blocks per multiprocessor, and what limits them.
    pub resident: (i64, String),
    /// Registers per thread (estimate).
    pub registers: i64,
    /// Blocks over the slots of the whole GPU.
    pub waves: f64,
    /// Bytes from and to DRAM.
    pub dram_bytes: f64,
    /// Sectors of global memory.
    pub sectors: f64,
    /// What its accesses and barriers come to.
    pub work: Work,
}

/// Predicted time of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamCost {
    /// Predicted time, ms.
    pub ms: f64,
    /// Sum over the kernels of what each resource alone would take, ms.
    pub parts: BTreeMap<String, f64>,
    /// The largest of them, launches aside.
    pub bottleneck: String,
    /// Kernel by kernel.
    pub kernels: Vec<KernelCost>,
}

/// The cost of a schedule of a streaming program.
///
/// # Errors
/// When the GPU cannot run it, or the schedule is of another kind of problem.
pub fn predict_stream(schedule: &Schedule, problem: &Streams, gpu: &Descriptor) -> Result<Cost, Infeasible> {
    match schedule {
        Schedule::Stream(plan) => Ok(stream_cost(plan, problem, gpu)?.whole()),
        _ => Err(Infeasible::Kind),
    }
}

impl StreamCost {
    fn of(kernels: Vec<KernelCost>) -> StreamCost {
        let mut parts: BTreeMap<String, f64> = BTreeMap::new();
        for (name, ms) in kernels.iter().flat_map(|k| &k.parts) {
            *parts.entry(name.clone()).or_default() += ms;
        }
        StreamCost { ms: kernels.iter().map(|k| k.ms).sum(), bottleneck: binding(&parts), parts, kernels }
    }

    /// The cost as candidates carry it: times and traffic are those of all kernels, occupancy is that of the slowest.
    pub fn whole(&self) -> Cost {
        let slowest = self.kernels.iter().max_by(|a, b| a.ms.total_cmp(&b.ms));
        let mut work = Work::NONE;
        self.kernels.iter().for_each(|k| work.add(&k.work, 1.0));
        Cost {
            ms: self.ms,
            parts: self.parts.clone(),
            bottleneck: self.bottleneck.clone(),
            resident_blocks: slowest.map_or(0, |k| k.resident.0),
            occupancy_limit: slowest.map_or_else(String::new, |k| k.resident.1.clone()),
            registers: slowest.map_or(0, |k| k.registers),
            waves: slowest.map_or(0.0, |k| k.waves),
            dram_bytes: self.kernels.iter().map(|k| k.dram_bytes).sum(),
            l2_bytes: self.kernels.iter().map(|k| k.sectors * 32.0).sum(),
            work,
        }
    }
}

/// A kernel's accesses in the terms of every cost.
fn counted(work: &KernelWork) -> Work {
    let sectors = work.load_sectors + work.store_sectors;
    Work {
        shared_loads: work.shared_loads,
        shared_stores: work.shared_stores,
        global_loads: work.global_loads,
        global_stores: work.global_stores,
        barriers: work.barriers,
        shared_load_wavefronts: work.load_wavefronts,
        shared_load_wavefronts_ideal: work.load_wavefronts_ideal,
        shared_store_wavefronts: work.store_wavefronts,
        shared_store_wavefronts_ideal: work.store_wavefronts_ideal,
        global_load_sectors: work.load_sectors,
        global_store_sectors: work.store_sectors,
        l1_bytes: sectors * 32.0,
        l2_sectors: sectors,
        ..Work::NONE
    }
}

/// Predicts a plan's time.
///
/// # Errors
/// When the GPU cannot run one of its kernels.
pub fn stream_cost(plan: &StreamPlan, problem: &Streams, gpu: &Descriptor) -> Result<StreamCost, Infeasible> {
    stream_cost_knowing(plan, problem, gpu, &TiledCosts::default())
}

/// [`stream_cost`] with what is known of contractions.
pub(super) fn stream_cost_knowing(
    plan: &StreamPlan,
    problem: &Streams,
    gpu: &Descriptor,
    known: &TiledCosts,
) -> Result<StreamCost, Infeasible> {
    let mut kernels = Vec::new();
    if let Some(stream) = problem.of_plan(plan) {
        for kernel in &plan.kernels {
            kernels.push(kernel_cost(kernel, &stream, gpu, known)?);
        }
    }
    Ok(StreamCost::of(kernels))
}

/// Costs of schedules of contractions on one GPU, each looked at once.
#[derive(Default)]
pub(super) struct TiledCosts(Mutex<Vec<(Contraction, Costs)>>);

/// By schedule.
type Costs = HashMap<Schedule, Result<Cost, Infeasible>>;

impl TiledCosts {
    fn of(&self, plan: &Schedule, contraction: &Contraction, gpu: &Descriptor) -> Result<Cost, Infeasible> {
        let all = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all().iter().find(|(c, _)| c == contraction).and_then(|(_, costs)| costs.get(plan).cloned());
        known.unwrap_or_else(|| {
            let cost = predict(plan, contraction, gpu);
            let mut all = all();
            let at = all.iter().position(|(c, _)| c == contraction).unwrap_or_else(|| {
                all.push((contraction.clone(), HashMap::new()));
                all.len() - 1
            });
            all[at].1.insert(plan.clone(), cost.clone());
            cost
        })
    }
}

/// The cost of kernels, one after the other, of which nothing is known but what they were counted to do, and the threads of their blocks.
///
/// # Errors
/// When the GPU cannot run one of them.
pub fn counted_cost(kernels: &[(KernelWork, i64)], gpu: &Descriptor) -> Result<Cost, Infeasible> {
    let kernels = kernels.iter().map(|(work, threads)| of_work(work, *threads, gpu)).collect::<Result<_, _>>()?;
    Ok(StreamCost::of(kernels).whole())
}

/// Predicts a kernel's time.
fn kernel_cost(
    kernel: &KernelPlan,
    stream: &Stream,
    gpu: &Descriptor,
    known: &TiledCosts,
) -> Result<KernelCost, Infeasible> {
    match kernel.contraction(stream) {
        Some((plan, contraction)) => Ok(of_cost(known.of(plan, contraction, gpu)?)),
        None => of_work(&kernel_work(kernel, stream), kernel.threads(), gpu),
    }
}

/// A kernel's time alone, ms, where what its blocks pass to others is known.
pub(super) fn kernel_ms(
    kernel: &KernelPlan,
    stream: &Stream,
    passing: &Passing,
    gpu: &Descriptor,
    known: &TiledCosts,
) -> Result<f64, Infeasible> {
    match kernel.contraction(stream) {
        Some((plan, contraction)) => Ok(known.of(plan, contraction, gpu)?.ms),
        None => work_ms(&passing.with(kernel, stream), kernel.threads(), gpu),
    }
}

/// The time of a kernel of so many threads a block from its work, ms.
pub(super) fn work_ms(work: &KernelWork, threads: i64, gpu: &Descriptor) -> Result<f64, Infeasible> {
    Ok(timed(work, threads, gpu)?.time.ms)
}

/// What L1 gives of what it has, in times of what L2 fills it with: 128 bytes a clock and multiprocessor, and 64 on sm_75 (Jia et al.,
/// "Dissecting the NVIDIA Volta GPU architecture via microbenchmarking", 2018, and "Dissecting the NVidia Turing T4 GPU", 2019).
const L1_HITS: f64 = 2.0;

/// Clocks that each pipe of a multiprocessor takes for all blocks.
fn pipes(work: &KernelWork, gpu: &Descriptor) -> [(&'static str, f64); 5] {
    let moved = work.global_loads + work.global_stores + work.shared_loads + work.shared_stores + work.shuffles;
    let of = |values: [f64; 2], slots: [[f64; 2]; 2]| -> f64 {
        values.iter().zip(slots[usize::from(gpu.arch_number() >= 80)]).map(|(values, each)| values * each).sum()
    };
    let narrowed = of(work.narrowed, NARROWED_SLOTS) + of(work.narrowed_alone, NARROWED_ALONE_SLOTS);
    let hits = if gpu.arch_number() == 75 { 1.0 } else { L1_HITS };
    let slots = moved + work.arithmetic + narrowed + work.barriers + work.overhead;
    [
        ("issue", slots / 4.0 / gpu.issue_efficiency),
        ("shared_memory", work.load_wavefronts + work.store_wavefronts + work.shuffles),
        ("load_store", moved * 32.0 / f64::from(gpu.load_store_lanes)),
        ("l1", l2_bytes(work).max(sector_bytes(work) / hits) / gpu.l1_bytes_per_clock),
        ("tensor_cores", work.tensor_clocks),
    ]
}

fn sector_bytes(work: &KernelWork) -> f64 {
    (work.load_sectors + work.store_sectors) * 32.0
}

/// Bytes between L1 and L2.
fn l2_bytes(work: &KernelWork) -> f64 {
    sector_bytes(work) - work.cached_sectors * 32.0
}

/// Clocks that a block takes when it is alone.
fn chain(work: &KernelWork, gpu: &Descriptor) -> f64 {
    work.chain[0] * gpu.latency_dram
        + work.chain[1] * gpu.latency_l2
        + work.chain[2] * gpu.latency_shared
        + work.chain[3] * STEP_CLOCKS
}

/// What a kernel leaves to move from and to DRAM, where L2 holds what it may, and what is to be read again.
fn moved(work: &KernelWork, again: f64, gpu: &Descriptor) -> Moved {
    let mut found = Moved::default();
    for kept in work.kept.iter().filter(|kept| stays_in_l2(kept.live, gpu)) {
        (found.read, found.written) = (found.read + kept.read, found.written + kept.written);
    }
    Moved { read: work.read_bytes + again - found.read, written: work.written_bytes - found.written }
}

/// No kernel with as much work or more takes less time, ms, however many of its blocks are resident: each block takes its busiest
/// pipe as long as it does, and the last one its chain of steps besides.
pub(super) fn least_ms(work: &KernelWork, gpu: &Descriptor) -> f64 {
    let all = largest(&pipes(work, gpu).map(|pipe| pipe.1));
    let sm_clocks = (all / f64::from(gpu.sms)).max(chain(work, gpu) + all / work.blocks.max(1.0));
    let demand = Demand { sm_clocks, l2_bytes: l2_bytes(work), dram: moved(work, 0.0, gpu), ..Demand::default() };
    demand.time(gpu).ms
}

/// All that a kernel's time depends on and that places of rows and unrolled loops change, beside registers and shared memory. It
/// grows in each: [`timed`] takes them through sums, largest and products with what is not negative.
pub(super) fn weights(work: &KernelWork, gpu: &Descriptor) -> [f64; 6] {
    let [issue, shared, load_store, l1, _] = pipes(work, gpu).map(|pipe| pipe.1);
    [issue, shared, load_store, l1, chain(work, gpu), work.again_bytes]
}

/// The cost of a contraction as that of a kernel.
fn of_cost(cost: Cost) -> KernelCost {
    KernelCost {
        ms: cost.ms,
        parts: cost.parts,
        resident: (cost.resident_blocks, cost.occupancy_limit),
        registers: cost.registers,
        waves: cost.waves,
        dram_bytes: cost.dram_bytes,
        sectors: cost.l2_bytes / 32.0,
        work: cost.work,
    }
}

/// A kernel with all counted that its time depends on beside a descriptor's rates.
#[derive(Clone, Debug)]
enum Counted<'a> {
    /// Its work and threads.
    Work(Box<KernelWork>, i64),
    /// A contraction by itself, or why the GPU cannot run it.
    Tiled(Result<OfSchedule<'a>, Infeasible>),
}

/// A plan, each of its kernels counted.
#[derive(Clone, Debug)]
pub(crate) struct Prepared<'a>(Vec<Counted<'a>>);

impl<'a> Prepared<'a> {
    /// Counts; nothing where the problem does not have the plan's kernels.
    pub fn of(plan: &'a StreamPlan, problem: &'a Streams, gpu: &'a Descriptor) -> Prepared<'a> {
        let Some(way) = problem.way_of(plan) else { return Prepared(Vec::new()) };
        let whole = problem.joined(&way.kernels);
        let of = |(kernel, stream): (&'a KernelPlan, &&'a Stream)| match kernel.contraction(stream) {
            Some((plan, contraction)) => Counted::Tiled(OfSchedule::of(plan, contraction, gpu)),
            None => Counted::Work(Box::new(kernel_work(kernel, &whole)), kernel.threads()),
        };
        Prepared(plan.kernels.iter().zip(&way.kernels).map(of).collect())
    }

    /// The time under the rates of a descriptor, ms.
    pub fn ms(&self, gpu: &Descriptor) -> Result<f64, Infeasible> {
        if self.0.is_empty() {
            return Err(Infeasible::Kind);
        }
        let ms = |counted: &Counted<'_>| match counted {
            Counted::Work(work, threads) => of_work(work, *threads, gpu).map(|cost| cost.ms),
            Counted::Tiled(prepared) => prepared.as_ref().map_err(Clone::clone)?.ms(gpu),
        };
        self.0.iter().map(ms).sum()
    }
}

/// What a kernel's work comes to on a GPU.
struct Timed {
    registers: i64,
    resident: i64,
    limit: &'static str,
    /// What each pipe of a multiprocessor takes for all blocks, clocks.
    pipes: [(&'static str, f64); 5],
    /// The most of them, of one block.
    busy: f64,
    demand: Demand,
    time: Taken,
}

fn timed(work: &KernelWork, threads: i64, gpu: &Descriptor) -> Result<Timed, Infeasible> {
    let registers = rounded(work.held_registers + BASE_REGISTERS);
    let (resident, limit) = Takes { threads, registers, shared_bytes: work.shared_bytes }.residency(gpu)?;
    let sms = f64::from(gpu.sms);
    // Clocks that a block keeps each pipe of its multiprocessor busy.
    let blocks = work.blocks.max(1.0);
    let pipes = pipes(work, gpu);
    let busy = largest(&pipes.map(|pipe| pipe.1)) / blocks;
    let chain = chain(work, gpu);
    let slots_all = resident as f64 * sms;
    let full = (blocks / slots_all).floor();
    let last = ((blocks - full * slots_all) / sms).ceil();
    let group = |count: f64| if count > 0.0 { (count * busy).max(chain + busy) } else { 0.0 };
    // Blocks follow each other without waiting for a whole wave: the chain of one hides behind the work of others.
    let live = work.again_live * resident as f64 * sms;
    let again = if stays_in_l2(live, gpu) { 0.0 } else { work.again_bytes };
    let demand = Demand {
        sm_clocks: full * group(resident as f64) + group(last),
        l2_bytes: l2_bytes(work),
        dram: moved(work, again, gpu),
        ..Demand::default()
    };
    let time = demand.time(gpu);
    Ok(Timed { registers, resident, limit, pipes, busy, demand, time })
}

/// The time of a kernel from its work.
fn of_work(work: &KernelWork, threads: i64, gpu: &Descriptor) -> Result<KernelCost, Infeasible> {
    let Timed { registers, resident, limit, pipes, busy, demand, time } = timed(work, threads, gpu)?;
    let (sms, blocks) = (f64::from(gpu.sms), work.blocks.max(1.0));
    let alone = |clocks: f64| clocks / sms / clocks_per_ms(gpu);
    let mut parts: BTreeMap<String, f64> =
        pipes.iter().map(|(name, clocks)| (name.to_string(), alone(*clocks))).collect();
    if work.tensor_clocks == 0.0 {
        parts.remove("tensor_cores");
    }
    parts.insert("latency".into(), (time.sm_ms - alone(busy * blocks)).max(0.0));
    time.name(&mut parts);
    Ok(KernelCost {
        ms: time.ms,
        parts,
        resident: (resident, limit.into()),
        registers,
        waves: blocks / (resident as f64 * sms),
        dram_bytes: demand.dram.total(),
        sectors: demand.l2_bytes / 32.0,
        work: counted(work),
    })
}
