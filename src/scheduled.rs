//! From a decision to kernels, by the one way through the house: the plan's trace of primitives is replayed on the source
//! program, under the legality of each primitive, and the scheduled program is lowered.
use crate::agreement::{self, Agreement, Spread};
use crate::kernel::Kernel;
use crate::lower::program::{lower, Argument, LowerError, LowerOptions, LowerTarget, Module};
use crate::reference::Reference;
use crate::simulate::{self, Counts, FaultKind, Options};
use satune_extract::Descriptor;
use satune_ir::interp::{self, doubled, Array, Scalar};
use satune_ir::term::{Contraction, CoresPlan, Schedule};
use satune_ir::{DType, Program};
use satune_rewrites::gpu_check::{self, GpuLimits};
use satune_rewrites::replay::replay_strict;
use satune_rewrites::space;
use satune_rewrites::{ScheduleError, Trace};

/// Why a plan has no kernels: each is a bug, since the space holds legal schedules only.
#[derive(Debug, thiserror::Error)]
pub enum ScheduledError {
    /// A primitive of the trace refuses.
    #[error("call {index} ({op}) of the trace is refused: {detail}")]
    Refused {
        /// Which call.
        index: usize,
        /// The primitive.
        op: String,
        /// Why.
        detail: String,
    },
    /// The source program is refused.
    #[error("the source program is refused: {}", .0.detail)]
    Source(ScheduleError),
    /// The scheduled program is none that the GPU can run.
    #[error("the scheduled program cannot run on the GPU: {}{}", .0.detail, remedy(.0))]
    Limits(ScheduleError),
    /// The program cannot be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The schedule belongs to another kind of problem.
    #[error("the schedule is one of streaming blocks, and the problem a contraction")]
    Kind,
    /// A schedule on tensor cores has no trace.
    #[error(transparent)]
    Untraced(#[from] space::Untraced),
    /// The scheduled program is none of a plan on tensor cores.
    #[error(transparent)]
    Read(#[from] space::ReadError),
    /// The scheduled program does not mean what the source means.
    #[error("the scheduled program differs from its source: {0}")]
    Meaning(String),
    /// The check was told to end.
    #[error("interrupted")]
    Stopped,
    /// Threads of a kernel access one element of global memory, and one of them writes.
    #[error("kernel {kernel}: {fault}")]
    Race {
        /// Its name.
        kernel: String,
        /// What the simulator found.
        fault: simulate::Fault,
    },
    /// A kernel is wrong.
    #[error("kernel {kernel}: {fault}")]
    Kernel {
        /// Its name.
        kernel: String,
        /// What the simulator found.
        fault: String,
    },
}

/// A schedule that is put beside the best: that with which a program came, or one that was named.
#[derive(Clone, Debug)]
pub enum GivenSchedule {
    /// A scheduled program that means what is explored.
    Program(Box<Program>),
    /// Every decision of a schedule of the space's kind.
    Plan(Box<Schedule>),
    /// None, and why.
    Refused(String),
}

/// A schedule on its way to kernels.
#[derive(Clone, Debug)]
pub struct Scheduled {
    /// The calls that make it.
    pub trace: Trace,
    /// The program that they make.
    pub program: Program,
    /// Its kernels.
    pub module: Module,
}

/// A schedule on a smaller problem of the same kind: what fits into a simulator.
#[derive(Clone, Debug)]
pub struct Reduced {
    /// The smaller problem.
    pub source: Program,
    /// The schedule on it.
    pub made: Scheduled,
}

/// What a GPU lets kernels have.
pub fn options(gpu: &Descriptor) -> LowerOptions {
    let target = LowerTarget {
        max_shared_bytes: u64::from(gpu.shared_per_block),
        has_cp_async: gpu.cp_async,
        max_threads: i64::from(gpu.threads_per_block),
    };
    LowerOptions { target, ..LowerOptions::default() }
}

/// What the check of a scheduled program asks for a target; what differs between GPUs is the threads of a block, and shared
/// memory, which lowering checks once buffers have their sizes.
pub fn limits(target: &LowerTarget) -> GpuLimits {
    GpuLimits { threads_per_block: target.max_threads, ..GpuLimits::default() }
}

fn remedy(error: &ScheduleError) -> String {
    if error.remedy.is_empty() {
        return String::new();
    }
    format!("; {}", error.remedy)
}

/// The trace of a schedule; empty where it is none of the contraction's.
pub fn trace(schedule: &Schedule, contraction: &Contraction) -> Trace {
    match schedule {
        Schedule::Cores(plan) => space::trace(plan, contraction),
        // A contraction has no streaming schedules.
        Schedule::Stream(_) => Trace::default(),
        Schedule::Mma(_) | Schedule::Wgmma(_) => space::tensor_trace(schedule, contraction).unwrap_or_default(),
    }
}

/// Kernels of a schedule of any kind.
///
/// # Errors
/// See [`ScheduledError`].
pub fn of_schedule(
    source: &Program,
    schedule: &Schedule,
    contraction: &Contraction,
    options: &LowerOptions,
) -> Result<Scheduled, ScheduledError> {
    match schedule {
        Schedule::Cores(plan) => of_plan(source, plan, contraction, options),
        Schedule::Stream(_) => Err(ScheduledError::Kind),
        Schedule::Mma(_) | Schedule::Wgmma(_) => of_trace(source, space::tensor_trace(schedule, contraction)?, options),
    }
}

/// Replays a plan on its source program and lowers the result.
///
/// # Errors
/// See [`ScheduledError`].
pub fn of_plan(
    source: &Program,
    plan: &CoresPlan,
    contraction: &Contraction,
    options: &LowerOptions,
) -> Result<Scheduled, ScheduledError> {
    of_trace(source, space::trace(plan, contraction), options)
}

/// Replays a trace on its source program, checks that a GPU can run the result ([`gpu_check`]), and lowers it.
///
/// # Errors
/// See [`ScheduledError`].
pub fn of_trace(source: &Program, trace: Trace, options: &LowerOptions) -> Result<Scheduled, ScheduledError> {
    let program = replayed(source, &trace)?;
    of_program((trace, program), options)
}

/// What [`of_trace`] makes of a scheduled program, whatever scheduled it.
///
/// # Errors
/// See [`ScheduledError`].
pub fn of_program((trace, program): (Trace, Program), options: &LowerOptions) -> Result<Scheduled, ScheduledError> {
    gpu_check::check(&program, &limits(&options.target)).map_err(ScheduledError::Limits)?;
    let module = lower(&program, options)?;
    Ok(Scheduled { trace, program, module })
}

/// The program that a trace makes.
///
/// # Errors
/// Where a call is refused, or the source is.
pub fn replayed(source: &Program, trace: &Trace) -> Result<Program, ScheduledError> {
    let (results, schedule) = replay_strict(source, &trace.calls).map_err(ScheduledError::Source)?;
    if let Some((index, error)) = results.iter().enumerate().find_map(|(i, r)| r.as_ref().err().map(|e| (i, e))) {
        let op = trace.calls.get(index).map(|c| c.op.clone()).unwrap_or_default();
        return Err(ScheduledError::Refused { index, op, detail: error.detail.clone() });
    }
    Ok(schedule.into_program())
}

/// What the simulator counted.
#[derive(Clone, Copy, Debug)]
pub struct Checked {
    /// Of the kernel.
    pub total: Counts,
    /// Of its hot loop.
    pub hot_loop: Counts,
    /// Blocks that were run.
    pub blocks: u64,
}

/// Runs the kernels in the simulator and compares with what the source program means, on inputs whose sums are exact: bit
/// for bit, unless the program adds up rounded values. Then twice: in its types, as closely as rounding lets results agree,
/// and without rounding ([`interp::in_double`]), where they agree much more closely (see [`agreement`]).
///
/// # Errors
/// See [`ScheduledError`].
pub fn check(source: &Program, scheduled: &Scheduled, seed: u64) -> Result<Checked, ScheduledError> {
    let kernels = check_each(source, scheduled, seed, &|| true)?;
    kernels.into_iter().nth(scheduled.module.main).ok_or_else(|| ScheduledError::Meaning("it has no kernels".into()))
}

/// [`check`], and what each kernel did; for as long as `go_on` says so.
///
/// # Errors
/// See [`ScheduledError`].
pub fn check_each(
    source: &Program,
    scheduled: &Scheduled,
    seed: u64,
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<Checked>, ScheduledError> {
    let meaning = |fault| match fault {
        interp::Fault::Stopped => ScheduledError::Stopped,
        other => ScheduledError::Meaning(other.to_string()),
    };
    let reference = Reference::of(source, seed, go_on).map_err(meaning)?;
    let held = |list: &[Array]| list.iter().map(Held::from).collect::<Vec<_>>();
    let numbers = |list: &[Array]| list.iter().map(Array::to_f64).collect::<Vec<_>>();
    let number = |at: usize, value: f64| {
        reference.expected.get(at).map_or(value, |array| Scalar::of_held(value, doubled(array.dtype())).as_f64())
    };
    let (inputs, expected) = (held(&reference.inputs), held(&reference.expected));
    let Some(unrounded) = reference.unrounded.as_deref() else {
        return simulate_module(&scheduled.module, inputs, &expected, (false, go_on), |at, want, got| {
            match reference.expected.get(at).map(Array::dtype) {
                // Their bits: not all of them are numbers.
                Some(DType::I64 | DType::U64) => want.to_bits() == got.to_bits(),
                _ => Agreement::Exact.agree(want, got, DType::F64),
            }
        });
    };
    let terms = agreement::terms(source);
    // A whole number that is made of rounded floats may be another one.
    let other = |at: usize, want: f64, got: f64| {
        let most = reference.rounded.get(at).copied().unwrap_or_default();
        most > 0.0 && (number(at, want) - number(at, got)).abs() <= 2.0 * most
    };
    let rounded = Spread::of_each(&numbers(&reference.expected), &numbers(unrounded));
    let checked = simulate_module(&scheduled.module, inputs.clone(), &expected, (false, go_on), |at, want, got| {
        let known = reference.expected.get(at).zip(rounded.get(at));
        let agree =
            |(array, spread): (&Array, &Spread)| spread.agree(number(at, want), number(at, got), array.dtype(), terms);
        known.is_some_and(agree) || other(at, want, got)
    })?;
    simulate_module(&scheduled.module, inputs, &held(unrounded), (true, go_on), |at, want, got| {
        let agree = |spread: &Spread| spread.agree_unrounded(number(at, want), number(at, got));
        rounded.get(at).is_some_and(agree) || other(at, want, got)
    })?;
    Ok(checked)
}

/// Values of a parameter as [`satune_ir::semantics::held`] has them, and which elements have one.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    values: Vec<f64>,
    known: Vec<bool>,
}

impl From<&Array> for Held {
    fn from(array: &Array) -> Held {
        Held { values: array.to_held(), known: array.iter().map(|e| e.is_some()).collect() }
    }
}

impl Held {
    /// Floats; a NaN is no value.
    pub(crate) fn floats(values: Vec<f64>) -> Held {
        Held { known: values.iter().map(|v| !v.is_nan()).collect(), values }
    }
}

/// Runs a module's kernels on the values of its parameters, and compares each with what is expected; `agree` says whether a
/// parameter's element may be what it is (number of the parameter, value wanted, value found). With `double` nothing is rounded;
/// `go_on` says for how long.
pub(crate) fn simulate_module(
    module: &Module,
    params: Vec<Held>,
    expected: &[Held],
    (double, go_on): (bool, &dyn Fn() -> bool),
    agree: impl Fn(usize, f64, f64) -> bool,
) -> Result<Vec<Checked>, ScheduledError> {
    let mut spaces: Vec<Vec<f64>> = module.workspaces.iter().map(|w| vec![f64::NAN; w.elements as usize]).collect();
    let (mut params, mut known): (Vec<_>, Vec<_>) = params.into_iter().map(|p| (p.values, p.known)).unzip();
    let mut made: Vec<Vec<bool>> = spaces.iter().map(|list| vec![false; list.len()]).collect();
    let mut checked: Vec<Checked> = Vec::new();
    for (kernel, args) in module.kernels.iter().zip(&module.args) {
        let wrong = |fault: String| ScheduledError::Kernel { kernel: kernel.name.clone(), fault };
        let mut buffers: Vec<Vec<f64>> = args
            .iter()
            .map(|a| match a {
                Argument::Param(i) => params[*i].clone(),
                Argument::Workspace(i) => spaces[*i].clone(),
            })
            .collect();
        let holds = |((_, array), a): ((_, &crate::kernel::Array), &Argument)| match a {
            Argument::Param(i) => known[*i].clone(),
            // A workspace may have room that a problem does not need: it is NaN, and would be missed in the results.
            Argument::Workspace(i) if !array.written => vec![true; made[*i].len()],
            Argument::Workspace(i) => made[*i].clone(),
        };
        let mut holds: Vec<Vec<bool>> = kernel.params().zip(args).map(holds).collect();
        let options = Options { double };
        let report =
            simulate::run_while(kernel, &mut buffers, &mut holds, &options, go_on).map_err(|fault| {
                match fault.kind {
                    FaultKind::Stopped => ScheduledError::Stopped,
                    FaultKind::Race { .. } | FaultKind::BlockRace { .. }
                        if kernel.params().any(|(_, array)| array.name == fault.array) =>
                    {
                        ScheduledError::Race { kernel: kernel.name.clone(), fault }
                    }
                    _ => wrong(fault.to_string()),
                }
            })?;
        checked.push(Checked { total: report.total, hot_loop: report.hot_loop, blocks: report.blocks });
        for (a, (buffer, holds)) in args.iter().zip(buffers.into_iter().zip(holds)) {
            match a {
                Argument::Param(i) => (params[*i], known[*i]) = (buffer, holds),
                Argument::Workspace(i) => (spaces[*i], made[*i]) = (buffer, holds),
            }
        }
    }
    let missing = |(want, known): (&Held, &Vec<bool>)| {
        want.known.iter().zip(known).filter(|(want, known)| **want && !**known).count()
    };
    let missing: usize = expected.iter().zip(&known).map(missing).sum();
    if let Some(last) = module.kernels.last().filter(|_| missing > 0) {
        let fault = format!("{missing} results are not written");
        return Err(ScheduledError::Kernel { kernel: last.name.clone(), fault });
    }
    for (i, (want, got)) in expected.iter().zip(&params).enumerate() {
        // Of what the program leaves as it was nothing is expected, but that nobody writes there.
        let wrong = |at: &usize| match want.known[*at] {
            true => !agree(i, want.values[*at], got[*at]),
            false => known[i][*at],
        };
        let want = &want.values;
        if let Some(at) = (0..want.len().min(got.len())).find(wrong) {
            let name = module.kernels.last().map(|k| k.name.clone()).unwrap_or_default();
            let of = |kernel: &Kernel, args: &[Argument]| {
                let mut both = kernel.params().zip(args).map(|((_, array), a)| (array.dtype, a));
                both.find(|(_, a)| matches!(a, Argument::Param(p) if *p == i)).map(|(dtype, _)| dtype)
            };
            let dtype = module.kernels.iter().zip(&module.args).find_map(|(kernel, args)| of(kernel, args));
            let show = |value: f64| match dtype {
                Some(dtype @ (DType::I64 | DType::U64)) => Scalar::of_held(value, dtype).to_string(),
                _ => value.to_string(),
            };
            let fault = format!("element {at} of parameter {i} is {}, not {}", show(got[at]), show(want[at]));
            return Err(ScheduledError::Kernel { kernel: name, fault });
        }
    }
    Ok(checked)
}
