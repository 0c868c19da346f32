//! The schedule that a program came with, or that was named, beside the best: lowered, compiled, executed as candidates are. Where it is
//! none of the space, its time is that of what its kernels are counted to do ([`counted_cost`]).
mod counted;

use super::output::{self, kernels_of, CandidateReport, KernelReport};
use super::{function_base, head, renamed};
use crate::compile::{CompileError, Compiler, Job};
use crate::device::{Ask, Device, DeviceError, Ready};
use crate::execute::{self, Executed, Refusal};
use crate::lower::program::lower;
use crate::progress::Progress;
use crate::scheduled::{self, GivenSchedule, Scheduled};
use crate::store::Verdict;
use crate::workload::{ProblemKind, Workload};
use counted::works;
use satune_extract::stream::counted_cost;
use satune_extract::{Cost, Descriptor};
use satune_ir::term::Schedule;
use satune_ir::{structural, tvmscript, Program};
use satune_rewrites::space::{on_tensor_cores, read_plan};
use satune_rewrites::{gpu_check, Trace};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is known of the schedule that a program came with.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GivenReport {
    /// Why it has no kernels, or what they do wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Rank of the candidate that is this schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<usize>,
    /// Predicted time, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_ms: Option<f64>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_predicted: Option<String>,
    /// What each resource alone would take, ms.
    #[serde(default)]
    pub parts: BTreeMap<String, f64>,
    /// The largest of them, launches aside.
    #[serde(default)]
    pub bottleneck: String,
    /// The schedule in a few lines, where it is one of the space's kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedule: Vec<String>,
    /// Kernels in launch order.
    #[serde(default)]
    pub kernels: Vec<KernelReport>,
    /// Most registers of a thread, and bytes that spill, as compiled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiled: Option<(u32, u32)>,
    /// What of its text was executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executed: Option<Executed>,
    /// Why nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_executed: Option<String>,
    /// Its time on a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<GivenTime>,
    /// Why a device gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_measured: Option<String>,
    /// Texts to be written, not part of the JSON.
    #[serde(skip)]
    pub(crate) files: Vec<(String, String)>,
}

/// A time on a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GivenTime {
    /// Median, ms.
    pub ms: f64,
    /// Spread of the repeats over the median.
    pub spread: f64,
    /// Repeats.
    pub repeats: usize,
}

impl GivenReport {
    /// In a sentence, beside the best candidate.
    pub fn sentence(&self, best: Option<&CandidateReport>) -> String {
        let best_ms = best.map(|c| c.predicted_ms);
        let text = match (self, self.predicted_ms) {
            (GivenReport { refused: Some(why), .. }, _) => return format!("the given schedule is not compared: {why}"),
            (GivenReport { candidate: Some(rank), .. }, _) => return format!("the given schedule is candidate {rank}"),
            (_, Some(ms)) => {
                let beside = best_ms.map_or_else(String::new, |best| format!(", {:.2}x the best", ms / best));
                let bound = self.bottleneck.replace('_', " ");
                format!("the given schedule: {ms:.4} ms predicted{beside}; bound by {bound}")
            }
            (GivenReport { not_predicted: Some(why), .. }, _) => format!("the given schedule is not predicted: {why}"),
            _ => "the given schedule".into(),
        };
        let compiled = self.compiled.map_or_else(String::new, |(registers, spill)| match spill {
            0 => format!("; {registers} registers"),
            spill => format!("; {registers} registers, {spill} bytes spill"),
        });
        let executed = match (&self.executed, &self.not_executed) {
            (Some(executed), _) => format!("; {} executed", executed.words()),
            (None, Some(why)) => format!("; text not executed: {why}"),
            (None, None) => String::new(),
        };
        let beside = best.and_then(|c| c.measured.as_ref()).map(|m| m.ms);
        let measured = match (&self.measured, &self.not_measured) {
            (Some(m), _) => {
                let beside = beside.map_or_else(String::new, |best| format!(", {:.2}x the best", m.ms / best));
                format!("; {:.4} ms measured{beside}", m.ms)
            }
            (None, Some(why)) => format!("; not measured: {why}"),
            (None, None) => String::new(),
        };
        format!("{text}{compiled}{executed}{measured}")
    }
}

/// The schedule that a problem came with, looked at.
pub(super) struct Given {
    report: GivenReport,
    made: Option<Made>,
}

/// Its kernels.
struct Made {
    scheduled: Scheduled,
    /// Every decision, where it is of the space's kind.
    plan: Option<Schedule>,
}

impl Given {
    /// Lowers, compiles, executes and predicts the schedule that a problem came with, where it came with one.
    pub fn of(problem: &dyn Workload, gpu: &Descriptor, compile: bool, progress: &dyn Progress) -> Option<Given> {
        let given = problem.given()?;
        progress.begin("looking at the given schedule", 0);
        let made = match given {
            GivenSchedule::Program(program) => of_program(problem, program, gpu, progress),
            GivenSchedule::Plan(plan) => of_plan(problem, plan, gpu, progress),
            GivenSchedule::Refused(why) => Err(why.clone()),
        };
        let made = match made {
            Ok(made) => made,
            Err(why) => {
                let report = GivenReport { refused: Some(why), ..GivenReport::default() };
                return Some(Given { report, made: None });
            }
        };
        let compiler = if compile { Compiler::of_this_program().ok() } else { None };
        let report = of_kernels(problem, gpu, &made, compiler.as_ref(), progress);
        Some(Given { report, made: Some(made) })
    }

    /// Measures it, where it was found right or at least could be counted.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn measure(&mut self, problem: &dyn Workload, device: &mut dyn Device, ask: &Ask) -> Result<(), DeviceError> {
        let report = &mut self.report;
        let sound = report.refused.is_none() && (report.executed.is_some() || report.predicted_ms.is_some());
        let Some(made) = self.made.as_ref().filter(|_| sound) else { return Ok(()) };
        let ready = Ready::given(problem, &made.scheduled.module, report.predicted_ms.unwrap_or(0.0));
        match device.measure_ready(problem, &ready, ask)? {
            Verdict::Measured(t) => {
                report.measured = Some(GivenTime { ms: t.median_ms(), spread: t.spread(), repeats: t.times_ms.len() });
            }
            Verdict::Rejected { reason, detail } => report.not_measured = Some(format!("{} ({detail})", reason.name())),
        }
        Ok(())
    }

    /// What is reported of it. Where it is one of the candidates, which; then they have said all else.
    pub fn beside(self, candidates: &[CandidateReport]) -> GivenReport {
        let same = |made: &Made, c: &CandidateReport| match &made.plan {
            Some(plan) => *plan == c.plan,
            // Names may be others.
            None => {
                let program = c.files.iter().find(|(name, _)| *name == c.scheduled);
                let program = program.and_then(|(_, text)| tvmscript::parse(text).ok());
                program.is_some_and(|program| structural::equal(&made.scheduled.program, &program).is_ok())
            }
        };
        let own = |c: &&CandidateReport| self.made.as_ref().is_some_and(|made| same(made, c));
        match candidates.iter().find(own) {
            Some(c) => GivenReport {
                candidate: Some(c.rank),
                predicted_ms: Some(c.predicted_ms),
                measured: self.report.measured,
                ..GivenReport::default()
            },
            None => self.report,
        }
    }
}

/// The kernels of a program that is scheduled.
fn of_program(
    problem: &dyn Workload,
    program: &Program,
    gpu: &Descriptor,
    progress: &dyn Progress,
) -> Result<Made, String> {
    let options = scheduled::options(gpu);
    let (trace, program) = (Trace::default(), program.clone());
    let scheduled = match (on_tensor_cores(&program), problem.kind()) {
        (true, ProblemKind::Contraction(contraction)) => {
            let plan = read_plan(&program, problem.program(), contraction).map_err(|e| e.to_string())?;
            return of_plan(problem, &plan, gpu, progress);
        }
        (true, ProblemKind::Streams(_)) => {
            scheduled::of_tensorized(problem.program(), program, &options).map_err(|e| e.to_string())?
        }
        (false, _) => {
            gpu_check::check(&program, &scheduled::limits(&options.target)).map_err(|e| e.detail.clone())?;
            let module = lower(&program, &options).map_err(|e| e.to_string())?;
            Scheduled { trace, program, module }
        }
    };
    Ok(Made { scheduled, plan: None })
}

/// The kernels of a schedule of the space's kind, checked in the simulator.
fn of_plan(problem: &dyn Workload, plan: &Schedule, gpu: &Descriptor, progress: &dyn Progress) -> Result<Made, String> {
    problem.predict(plan, gpu).map_err(|e| format!("{} cannot run it: {e}", gpu.name))?;
    let options = problem.options(plan, gpu);
    let scheduled = problem.scheduled(plan, &options).map_err(|e| e.to_string())?;
    problem.check(plan, &options, &|| !progress.stopped())?;
    Ok(Made { scheduled, plan: Some(plan.clone()) })
}

fn of_kernels(
    problem: &dyn Workload,
    gpu: &Descriptor,
    made: &Made,
    compiler: Option<&Compiler>,
    progress: &dyn Progress,
) -> GivenReport {
    let Made { scheduled: made, plan } = made;
    let schedule = plan.as_ref().map(Schedule::describe).unwrap_or_default();
    let mut report = GivenReport { schedule, ..GivenReport::default() };
    let kernels = renamed(made, &function_base(problem.name(), "given"));
    let about = format!("{} for {} ({}), as it is given", problem.name(), gpu.name, gpu.full_name);
    let text = |(kernel, file): (&crate::kernel::Kernel, &String)| {
        format!("{}{}", head(&about, &gpu.arch, file), crate::cuda::print(kernel))
    };
    let names: Vec<String> = output::files_of("given", made).collect();
    let texts: Vec<String> = kernels.iter().zip(&names).map(text).collect();
    report.kernels = kernels_of(&made.module, problem.program(), kernels.into_iter().map(|k| k.name), &names);
    let go_on = || !progress.stopped();
    let mut registers = Vec::new();
    if let Some(compiler) = compiler {
        match compiled(compiler, made, &texts, gpu, &go_on) {
            Ok(found) => {
                registers = found.iter().map(|c| c.registers).collect();
                let spill = found.iter().map(|c| c.spill_bytes).sum();
                report.compiled = registers.iter().max().map(|most| (*most, spill));
                let ptx: Vec<String> = found.into_iter().map(|c| c.ptx).collect();
                match execute::execute_given((problem.program(), &made.module), &texts, &ptx, &go_on) {
                    Ok(executed) => report.executed = Some(executed),
                    Err(Refusal::Wrong(fault)) => report.refused = Some(format!("its kernels are wrong: {fault}")),
                    Err(Refusal::Unable(why)) => report.not_executed = Some(why),
                }
            }
            Err(CompileError::Refused { log, .. }) => {
                report.refused = Some(format!("the compiler refuses it: {}", log.lines().next().unwrap_or_default()));
            }
            Err(error) => report.not_executed = Some(error.to_string()),
        }
    }
    if compiler.is_none() && plan.is_none() {
        report.not_executed = Some("it was not to be compiled, so that what it computes is not compared".into());
    }
    report.files = names.into_iter().zip(texts).collect();
    let cost = match plan {
        Some(plan) => problem.predict(plan, gpu).map_err(|e| e.to_string()),
        None => works(&made.module, &registers, gpu, &go_on)
            .and_then(|works| counted_cost(&works, gpu).map_err(|e| e.to_string())),
    };
    match cost {
        Ok(Cost { ms, parts, bottleneck, .. }) => {
            (report.predicted_ms, report.parts, report.bottleneck) = (Some(ms), parts, bottleneck);
        }
        Err(why) => report.not_predicted = Some(why),
    }
    report
}

fn compiled(
    compiler: &Compiler,
    made: &Scheduled,
    texts: &[String],
    gpu: &Descriptor,
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<crate::compile::Compiled>, CompileError> {
    let job = |(kernel, text): (&crate::kernel::Kernel, &String)| Job {
        name: kernel.name.clone(),
        source: text.clone(),
        arch: gpu.arch.clone(),
    };
    made.module.kernels.iter().zip(texts).map(|each| compiler.compile_job(&job(each), go_on)).collect()
}
