//! What is explored, measured and reported: a program, and the kind of problem that it is. Everything around a schedule
//! (its trace, its kernels, their check, its predicted time) is asked of the workload, which knows its kind; measuring,
//! devices, stores and reports do not.
use crate::agreement::Agreement;
use crate::explore::{self, ExploreError};
use crate::lower::program::LowerOptions;
use crate::scheduled::{self, Checked, GivenSchedule, Reduced, Scheduled, ScheduledError};
use crate::streaming;
use satune_extract::{registers_left, Cost, Descriptor, Infeasible, Searched};
use satune_ir::term::stream::{stream_blocks, stream_shared_bytes, Streams};
use satune_ir::term::{Axis, Contraction, Schedule, Side, Space, TermLanguage};
use satune_ir::{DType, Program};
use satune_rewrites::space::stream::trace as stream_trace;
use satune_rewrites::space::Fuel;
use satune_rewrites::Trace;
use std::time::Duration;

/// Registers that resident blocks must leave for each that the model counts, before a compiler is asked for these blocks. It
/// takes what it is told as an aim: of 120 kernels for sm_70, sm_75 and sm_90 those that spilled only when asked had less.
const ROOM: f64 = 1.25;

/// The kind of a problem, and what it is made of.
#[derive(Clone, Copy, Debug)]
pub enum ProblemKind<'a> {
    /// A sum of products, or what else is combined of two operands.
    Contraction(&'a Contraction),
    /// Streaming blocks.
    Streams(&'a Streams),
}

/// What a problem's speed is told in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Yardstick {
    /// Floating-point operations, in sums of this type.
    Arithmetic {
        /// Operations.
        flops: f64,
        /// Type of the factors.
        factors: DType,
        /// Type of the sums.
        sums: DType,
    },
    /// Bytes of the parameters, each moved once: programs that do little with each element are as fast as a copy.
    Bytes(f64),
}

impl Yardstick {
    /// What there is to do, in operations or bytes.
    pub fn amount(&self) -> f64 {
        match self {
            Yardstick::Arithmetic { flops, .. } => *flops,
            Yardstick::Bytes(bytes) => *bytes,
        }
    }

    /// Its unit, per second.
    pub fn unit(&self) -> &'static str {
        match self {
            Yardstick::Arithmetic { .. } => "FLOP/s",
            Yardstick::Bytes(_) => "B/s",
        }
    }

    /// What the descriptor allows, per second: its tensor cores where they take the factors without rounding, else all lanes,
    /// in every clock; or a copy in DRAM.
    pub fn peak(&self, gpu: &Descriptor) -> f64 {
        match self {
            Yardstick::Arithmetic { factors, sums, .. } => {
                let lanes = f64::from(if *sums == DType::F64 { gpu.fp64_lanes } else { gpu.fp32_lanes });
                let on_tensor_cores = gpu.tensor.map_or(0.0, |rates| rates.of([*factors, *sums]));
                let flop_per_clock = match factors {
                    DType::F32 | DType::F64 => 2.0 * lanes,
                    _ if on_tensor_cores > 0.0 => on_tensor_cores,
                    _ => 2.0 * lanes,
                };
                flop_per_clock * f64::from(gpu.sms) * gpu.clock_mhz * 1e6
            }
            Yardstick::Bytes(_) => gpu.dram_gbs * 1e9,
        }
    }
}

/// What there is to a problem beside the program that is explored.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// What is to be said of its schedules.
    pub notes: Vec<String>,
    /// The schedule to put beside the best, where there is one.
    pub given: Option<GivenSchedule>,
    /// The program as it was given, where another one of the same meaning is explored.
    pub source: Option<Box<Program>>,
    /// What it took to encode it: to find the programs that primitives make of it, each checked as it was made.
    pub encoding: Duration,
}

/// A program to be scheduled.
pub trait Workload: Sync {
    /// As it was asked for.
    fn name(&self) -> &str;

    /// TVMScript of the source program.
    fn script(&self) -> &str;

    /// The program that is explored.
    fn program(&self) -> &Program;

    /// What else there is to it.
    fn asked(&self) -> &Asked;

    /// The program as it was given.
    fn source(&self) -> &Program {
        self.asked().source.as_deref().unwrap_or_else(|| self.program())
    }

    /// What it is.
    fn kind(&self) -> ProblemKind<'_>;

    /// The contraction, where it is one.
    fn contraction(&self) -> Option<&Contraction> {
        match self.kind() {
            ProblemKind::Contraction(contraction) => Some(contraction),
            ProblemKind::Streams(_) => None,
        }
    }

    /// What was decided before the space, in the words of a derivation: how a convolution became a product.
    fn origin(&self) -> Vec<String> {
        let Some((c, gather)) = self.contraction().and_then(|c| Some((c, c.gather.as_ref()?))) else {
            return Vec::new();
        };
        let axis = |(axis, _): &(Axis, _)| {
            let digits = gather.iters.iter().filter(|(a, _)| a == axis).map(|(_, info)| info.name.as_str());
            format!("{axis} = {}", digits.collect::<Vec<_>>().join(" "))
        };
        let axes: Vec<String> = c.iters.iter().map(axis).collect();
        vec![format!("product with {}  by  reindex, transform_layout, transform_block_layout", axes.join(", "))]
    }

    /// What is to be said of its schedules as a whole.
    fn notes(&self) -> Vec<String> {
        self.asked().notes.iter().cloned().chain(self.contraction().and_then(Contraction::left_out)).collect()
    }

    /// The schedule to put beside the best, where there is one.
    fn given(&self) -> Option<&GivenSchedule> {
        self.asked().given.as_ref()
    }

    /// Blocks of whose schedules the space leaves some out that may be faster than all that it holds: they have the same elements
    /// read again and again, and no tiles to keep these in or not along all axes, or there are too many ways to inline them.
    fn untiled(&self) -> Vec<String> {
        match self.kind() {
            ProblemKind::Contraction(c) => c.left_out().map(|_| c.block_name.clone()).into_iter().collect(),
            ProblemKind::Streams(streams) => streams.untiled().into_iter().map(String::from).collect(),
        }
    }

    /// Whether tensor cores may round factors in f32 to tf32.
    fn allows_tf32(&self) -> bool {
        false
    }

    /// The primitive calls of a schedule; none where it is of another kind.
    fn trace(&self, schedule: &Schedule) -> Trace {
        match (self.kind(), schedule) {
            (ProblemKind::Contraction(contraction), _) => scheduled::trace(schedule, contraction),
            (ProblemKind::Streams(streams), Schedule::Stream(plan)) => stream_trace(plan, streams).unwrap_or_default(),
            (ProblemKind::Streams(_), _) => Trace::default(),
        }
    }

    /// What a GPU lets a schedule's kernels have. Of kernels on single threads a compiler is asked for the resident blocks that
    /// the prediction counts on, as far as there are so many.
    fn options(&self, schedule: &Schedule, gpu: &Descriptor) -> LowerOptions {
        let sms = i64::from(gpu.sms.max(1));
        let there = (self.block_count(schedule) + sms - 1) / sms;
        let asked = |cost: Cost| {
            let blocks = cost.resident_blocks.min(there);
            let left = registers_left(gpu, schedule.threads().into(), blocks);
            let room = left as f64 >= ROOM * cost.registers as f64;
            u32::try_from(blocks).ok().filter(|blocks| *blocks > 1 && room)
        };
        let cost = matches!(schedule, Schedule::Cores(_)).then(|| self.predict(schedule, gpu).ok()).flatten();
        LowerOptions { min_blocks: cost.and_then(asked), ..scheduled::options(gpu) }
    }

    /// A schedule's kernels.
    ///
    /// # Errors
    /// See [`ScheduledError`].
    fn scheduled(&self, schedule: &Schedule, options: &LowerOptions) -> Result<Scheduled, ScheduledError> {
        match (self.kind(), schedule) {
            (ProblemKind::Contraction(contraction), _) => {
                scheduled::of_schedule(self.program(), schedule, contraction, options)
            }
            (ProblemKind::Streams(streams), Schedule::Stream(plan)) => {
                streaming::scheduled(self.program(), plan, streams, options)
            }
            (ProblemKind::Streams(_), _) => Err(ScheduledError::Kind),
        }
    }

    /// Runs a schedule's kernels in the simulator, on a problem of few blocks, and compares with what the source means, as
    /// far as [`Workload::agreement`] lets results agree; for as long as `go_on` says so.
    ///
    /// # Errors
    /// What went wrong, for people.
    fn check(&self, schedule: &Schedule, options: &LowerOptions, go_on: &dyn Fn() -> bool) -> Result<Checked, String> {
        match (self.kind(), schedule) {
            (ProblemKind::Contraction(contraction), _) => explore::check(schedule, contraction, options, go_on),
            (ProblemKind::Streams(streams), Schedule::Stream(plan)) => {
                let kernels = streaming::check(self.program(), plan, streams, options, go_on)?;
                Ok(streaming::together(&kernels))
            }
            (ProblemKind::Streams(_), _) => Err(ScheduledError::Kind.to_string()),
        }
    }

    /// The schedule on a problem of few blocks, the one that [`Workload::check`] runs.
    ///
    /// # Errors
    /// What went wrong, for people.
    fn reduced(&self, schedule: &Schedule, options: &LowerOptions) -> Result<Reduced, String> {
        match (self.kind(), schedule) {
            (ProblemKind::Contraction(contraction), _) => explore::reduced(schedule, contraction, options),
            (ProblemKind::Streams(streams), Schedule::Stream(plan)) => {
                streaming::reduced(self.program(), plan, streams, options)
            }
            (ProblemKind::Streams(_), _) => Err(ScheduledError::Kind.to_string()),
        }
    }

    /// Predicts the time of a schedule.
    ///
    /// # Errors
    /// When the GPU cannot run it.
    fn predict(&self, schedule: &Schedule, gpu: &Descriptor) -> Result<Cost, Infeasible> {
        match self.kind() {
            ProblemKind::Contraction(contraction) => satune_extract::predict(schedule, contraction, gpu),
            ProblemKind::Streams(streams) => satune_extract::stream::predict_stream(schedule, streams, gpu),
        }
    }

    /// [`Workload::predict`] with the registers of a thread that a compiler gave the main kernel; of streaming blocks the
    /// time does not depend on them.
    ///
    /// # Errors
    /// When the GPU cannot run it.
    fn predict_compiled(&self, schedule: &Schedule, gpu: &Descriptor, registers: u32) -> Result<Cost, Infeasible> {
        match self.kind() {
            ProblemKind::Contraction(c) => satune_extract::compiled(schedule, c, gpu, registers).map(|of| of.cost),
            ProblemKind::Streams(_) => self.predict(schedule, gpu),
        }
    }

    /// How closely results agree when the order of sums changes.
    fn agreement(&self) -> Agreement {
        Agreement::of(self.program())
    }

    /// Bytes of what is accessed of the parameters: what must pass DRAM at least.
    fn least_bytes(&self) -> f64 {
        match self.kind() {
            ProblemKind::Contraction(c) => {
                let size = |dims: &[Axis], dtype: DType| {
                    dims.iter().map(|a| c.extent(*a) as f64).product::<f64>() * f64::from(dtype.bytes())
                };
                let operands = [Side::A, Side::B].map(|s| c.elements(s) * f64::from(c.operand(s).dtype.bytes()));
                operands.iter().sum::<f64>() + size(&c.c.dims, c.c.dtype)
            }
            ProblemKind::Streams(streams) => streams.least_bytes(),
        }
    }

    /// Floating-point operations.
    fn flops(&self) -> f64 {
        match self.kind() {
            ProblemKind::Contraction(c) => {
                f64::from(c.operations()) * c.iters.iter().map(|(_, i)| i.extent as f64).product::<f64>()
            }
            ProblemKind::Streams(streams) => streams.operations(),
        }
    }

    /// What its speed is told in.
    fn yardstick(&self) -> Yardstick {
        match self.kind() {
            ProblemKind::Contraction(c) => {
                // Only products are multiplied on tensor cores.
                let factors = c.combine.as_ref().map_or(c.a.dtype, |_| c.accumulate);
                Yardstick::Arithmetic { flops: self.flops(), factors, sums: c.accumulate }
            }
            ProblemKind::Streams(_) => Yardstick::Bytes(self.least_bytes()),
        }
    }

    /// Shared memory of a block, bytes; of several kernels the most.
    fn shared_bytes(&self, schedule: &Schedule) -> i64 {
        match (self.kind(), schedule) {
            (ProblemKind::Contraction(contraction), _) => schedule.shared_bytes(contraction),
            (ProblemKind::Streams(streams), Schedule::Stream(plan)) => stream_shared_bytes(plan, streams),
            (ProblemKind::Streams(_), _) => 0,
        }
    }

    /// Blocks of threads; of several kernels the most.
    fn block_count(&self, schedule: &Schedule) -> i64 {
        match (self.kind(), schedule) {
            (ProblemKind::Contraction(contraction), _) => schedule.block_count(contraction),
            (ProblemKind::Streams(streams), Schedule::Stream(plan)) => stream_blocks(plan, streams),
            (ProblemKind::Streams(_), _) => 0,
        }
    }
}

/// A workload with the space of its schedules.
pub trait Explorable: Workload {
    /// The language of its schedules.
    type Term: Searched;

    /// What is scheduled.
    fn problem(&self) -> &<Self::Term as TermLanguage>::Problem;

    /// The space of its schedules on a GPU.
    ///
    /// # Errors
    /// When a rule is unsound, which is a bug, or nothing fits the GPU.
    fn space(&self, gpu: &Descriptor) -> Result<Space<Self::Term>, ExploreError> {
        self.space_while(gpu, Fuel::default(), &|_| true)
    }

    /// The same of at most so many nodes, for as long as `go_on` says so, which is told how many there are.
    ///
    /// # Errors
    /// As [`Explorable::space`], and when it is told to end.
    fn space_while(
        &self,
        gpu: &Descriptor,
        fuel: Fuel,
        go_on: &(dyn Fn(usize) -> bool + Sync),
    ) -> Result<Space<Self::Term>, ExploreError>;
}

impl Workload for crate::operators::Problem {
    fn name(&self) -> &str {
        &self.name
    }

    fn script(&self) -> &str {
        &self.script
    }

    fn program(&self) -> &Program {
        &self.program
    }

    fn kind(&self) -> ProblemKind<'_> {
        ProblemKind::Contraction(&self.contraction)
    }

    fn asked(&self) -> &Asked {
        &self.asked
    }

    fn allows_tf32(&self) -> bool {
        self.tf32
    }
}

impl Explorable for crate::operators::Problem {
    type Term = satune_ir::term::Term;

    fn problem(&self) -> &Contraction {
        &self.contraction
    }

    fn space_while(
        &self,
        gpu: &Descriptor,
        fuel: Fuel,
        go_on: &(dyn Fn(usize) -> bool + Sync),
    ) -> Result<Space, ExploreError> {
        explore::space_while(self, gpu, fuel, go_on)
    }
}

impl Workload for streaming::StreamProblem {
    fn name(&self) -> &str {
        &self.name
    }

    fn script(&self) -> &str {
        &self.script
    }

    fn program(&self) -> &Program {
        &self.program
    }

    fn kind(&self) -> ProblemKind<'_> {
        ProblemKind::Streams(&self.streams)
    }

    fn asked(&self) -> &Asked {
        &self.asked
    }
}

impl Explorable for streaming::StreamProblem {
    type Term = satune_ir::term::stream::StreamTerm;

    fn problem(&self) -> &Streams {
        &self.streams
    }

    fn space_while(
        &self,
        gpu: &Descriptor,
        fuel: Fuel,
        go_on: &(dyn Fn(usize) -> bool + Sync),
    ) -> Result<Space<Self::Term>, ExploreError> {
        streaming::space_while(self, gpu, fuel, go_on)
    }
}
