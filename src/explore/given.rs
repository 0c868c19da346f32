//! The schedule that a program came with, beside the best: lowered, counted, compiled, executed as candidates are. It is none of the
//! space, so that its time is that of what its kernels are counted to do ([`counted_cost`]).
mod counted;

use super::output::{self, kernels_of, CandidateReport, KernelReport};
use super::{function_base, head, renamed};
use crate::compile::{CompileError, Compiler, Job};
use crate::device::{Ask, Device, DeviceError, Ready};
use crate::execute::{self, Executed, Refusal};
use crate::lower::program::{lower, Module};
use crate::progress::Progress;
use crate::scheduled::{self, Scheduled};
use crate::store::Verdict;
use crate::workload::Workload;
use counted::works;
use satune_extract::stream::counted_cost;
use satune_extract::{Cost, Descriptor};
use satune_ir::{structural, tvmscript, Program};
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
    program: Program,
    module: Option<Module>,
}

impl Given {
    /// Lowers, compiles, executes and counts the schedule that a problem came with, where it came with one.
    pub fn of(problem: &dyn Workload, gpu: &Descriptor, compile: bool, progress: &dyn Progress) -> Option<Given> {
        let given = problem.given()?;
        progress.begin("looking at the given schedule", 0);
        let module = match lowered(given, gpu) {
            Ok(module) => module,
            Err(why) => {
                let report = GivenReport { refused: Some(why), ..GivenReport::default() };
                return Some(Given { report, program: given.clone(), module: None });
            }
        };
        let made = Scheduled { trace: Trace::default(), program: given.clone(), module };
        let compiler = if compile { Compiler::of_this_program().ok() } else { None };
        let report = of_kernels(problem, gpu, &made, compiler.as_ref(), progress);
        Some(Given { report, program: made.program, module: Some(made.module) })
    }

    /// Measures it, where it was found right or at least could be counted.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn measure(&mut self, problem: &dyn Workload, device: &mut dyn Device, ask: &Ask) -> Result<(), DeviceError> {
        let report = &mut self.report;
        let sound = report.refused.is_none() && (report.executed.is_some() || report.predicted_ms.is_some());
        let Some(module) = self.module.as_ref().filter(|_| sound) else { return Ok(()) };
        let ready = Ready::given(problem, module, report.predicted_ms.unwrap_or(0.0));
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
        // Names may be others.
        let own = |c: &&CandidateReport| {
            let program = c.files.iter().find(|(name, _)| *name == c.scheduled);
            let program = program.and_then(|(_, text)| tvmscript::parse(text).ok());
            program.is_some_and(|program| structural::equal(&self.program, &program).is_ok())
        };
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
fn lowered(given: &Program, gpu: &Descriptor) -> Result<Module, String> {
    let options = scheduled::options(gpu);
    gpu_check::check(given, &scheduled::limits(&options.target)).map_err(|e| e.detail.clone())?;
    lower(given, &options).map_err(|e| e.to_string())
}

fn of_kernels(
    problem: &dyn Workload,
    gpu: &Descriptor,
    made: &Scheduled,
    compiler: Option<&Compiler>,
    progress: &dyn Progress,
) -> GivenReport {
    let mut report = GivenReport::default();
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
    report.files = names.into_iter().zip(texts).collect();
    let cost = works(&made.module, &registers, gpu, &go_on)
        .and_then(|works| counted_cost(&works, gpu).map_err(|e| e.to_string()));
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
