//! The schedule that a program came with, or that was named, beside the best: lowered, compiled, executed as candidates are. One of the
//! space's kind is a candidate as any other, and goes through what they go through ([`Vet`]). Of another its kernels are what is known, and
//! its time is that of what they are counted to do ([`counted_cost`]).
mod counted;

use super::output::{self, kernels_of, CandidateReport, KernelReport};
use super::vet::Vet;
use super::{function_base, head, renamed, Request};
use crate::compile::{CompileError, Compiler, Job};
use crate::device::{Ask, Device, DeviceError, Ready, Subject};
use crate::execute::{self, Executed, Refusal};
use crate::progress::Progress;
use crate::scheduled::{self, GivenSchedule, Scheduled, ScheduledError};
use crate::store::Verdict;
use crate::workload::{Explorable, ProblemKind, Workload};
use counted::works;
use satune_extract::stream::counted_cost;
use satune_extract::{Candidate, Cost, Descriptor};
use satune_ir::term::Schedule;
use satune_ir::{structural, tvmscript, Program};
use satune_rewrites::space::read_plan;
use satune_rewrites::Trace;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is known of the schedule that a program came with.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GivenReport {
    /// Why it has no kernels, or what they do wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// All of it, where it is of the space's kind and none of the candidates: its rank is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Box<CandidateReport>>,
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

/// What is made of it.
enum Made {
    /// One of the space's kind, simulated.
    Plan(Box<Subject>),
    /// The kernels of any other.
    Program(Box<Scheduled>),
}

impl Given {
    /// Lowers the schedule that a problem came with, where it came with one, and looks at kernels that no candidate can be.
    pub fn of(problem: &dyn Workload, request: &Request, progress: &dyn Progress) -> Option<Given> {
        let given = problem.given()?;
        progress.begin("looking at the given schedule", 0);
        let go_on = || !progress.stopped();
        let made = match given {
            GivenSchedule::Program(program) => of_program(problem, program, &request.gpu, &go_on),
            GivenSchedule::Plan(plan) => of_plan(problem, plan, &request.gpu, &go_on),
            GivenSchedule::Refused(why) => Err(why.clone()),
        };
        Some(match made {
            Ok(Made::Program(scheduled)) => Given {
                report: of_kernels(problem, request, &scheduled, progress),
                made: Some(Made::Program(scheduled)),
            },
            Ok(made) => Given { report: GivenReport::default(), made: Some(made) },
            Err(why) => Given::refused(why),
        })
    }

    fn refused(why: String) -> Given {
        Given { report: GivenReport { refused: Some(why), ..GivenReport::default() }, made: None }
    }

    /// Measures it, where it was found right or at least could be counted.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn measure(
        &mut self,
        problem: &dyn Workload,
        gpu: &Descriptor,
        device: &mut dyn Device,
        ask: &Ask,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), DeviceError> {
        let Given { report, made } = self;
        let verdict = match made {
            Some(Made::Plan(subject)) => {
                if let Some((compiler, _)) = device.compiler() {
                    if let Err(Refusal::Wrong(fault)) = subject.execute(problem, gpu, None, &compiler, go_on) {
                        (report.refused, *made) = (Some(fault), None);
                        return Ok(());
                    }
                }
                device.measure(problem, subject, ask)?
            }
            Some(Made::Program(scheduled))
                if report.refused.is_none() && (report.executed.is_some() || report.predicted_ms.is_some()) =>
            {
                let ready = Ready::given(problem, &scheduled.module, report.predicted_ms.unwrap_or(0.0));
                device.measure_ready(problem, &ready, ask)?
            }
            _ => return Ok(()),
        };
        match verdict {
            Verdict::Measured(t) => {
                report.measured = Some(GivenTime { ms: t.median_ms(), spread: t.spread(), repeats: t.times_ms.len() });
            }
            Verdict::Rejected { reason, detail } => report.not_measured = Some(format!("{} ({detail})", reason.name())),
        }
        Ok(())
    }

    /// What is reported of it. Where it is one of the candidates, which; then they have said all else.
    pub fn beside<W: Explorable>(
        self,
        candidates: &[CandidateReport],
        problem: &W,
        request: &Request,
        progress: &dyn Progress,
    ) -> GivenReport {
        let Given { report, made } = self;
        let same = |c: &&CandidateReport| match &made {
            Some(Made::Plan(subject)) => subject.plan == c.plan,
            // Names may be others.
            Some(Made::Program(scheduled)) => {
                let program = c.files.iter().find(|(name, _)| *name == c.scheduled);
                let program = program.and_then(|(_, text)| tvmscript::parse(text).ok());
                program.is_some_and(|program| structural::equal(&scheduled.program, &program).is_ok())
            }
            None => false,
        };
        match (candidates.iter().find(same), made) {
            (Some(c), _) => GivenReport {
                candidate: Some(c.rank),
                predicted_ms: Some(c.predicted_ms),
                measured: report.measured,
                ..GivenReport::default()
            },
            (None, Some(Made::Plan(subject))) => vetted(report, *subject, problem, request, progress),
            _ => report,
        }
    }
}

/// A schedule of the space's kind goes through what candidates go through.
fn vetted<W: Explorable>(
    report: GivenReport,
    subject: Subject,
    problem: &W,
    request: &Request,
    progress: &dyn Progress,
) -> GivenReport {
    let request = Request { top: 1, ..request.clone() };
    let candidate = Candidate { term: Default::default(), plan: subject.plan.clone(), cost: subject.cost.clone() };
    let subjects = [(subject.trace.clone(), subject)].into();
    let mut vet = Vet::new(problem, &request, subjects, progress);
    vet.take(vec![(candidate, None)]);
    let shown = vet.ranked(false).shown.pop();
    let Some(vetted) = shown else {
        let why = vet.bugs.pop().or(vet.rejected.pop()).unwrap_or_else(|| "interrupted".into());
        return GivenReport { refused: Some(why), ..report };
    };
    let derivation = [problem.origin(), vec!["the schedule is given".into()]].concat();
    let mut entry = vetted.entry(0, problem, derivation);
    let not_executed = match (&entry.executed, request.compile) {
        (Some(_), _) | (None, false) => None,
        (None, true) => vet.not_executed.or(vet.not_compiled),
    };
    GivenReport {
        predicted_ms: Some(entry.predicted_ms),
        parts: entry.parts.clone(),
        bottleneck: entry.bottleneck.clone(),
        schedule: entry.schedule.clone(),
        kernels: entry.kernels.clone(),
        compiled: entry.compiled.as_ref().map(|c| (c.registers, c.spill_bytes)),
        executed: entry.executed.clone(),
        not_executed,
        files: std::mem::take(&mut entry.files),
        entry: Some(Box::new(entry)),
        ..report
    }
}

/// What a scheduled program is: a schedule of the space's kind where it is a product on tensor cores, else kernels.
fn of_program(
    problem: &dyn Workload,
    program: &Program,
    gpu: &Descriptor,
    go_on: &dyn Fn() -> bool,
) -> Result<Made, String> {
    if let ProblemKind::Contraction(contraction) = problem.kind() {
        if let Ok(plan) = read_plan(program, problem.program(), contraction) {
            return of_plan(problem, &plan, gpu, go_on);
        }
    }
    let made = (Trace::default(), program.clone());
    let scheduled = scheduled::of_program(made, &scheduled::options(gpu));
    let scheduled = scheduled.map_err(|e| match e {
        ScheduledError::Limits(e) => e.detail.clone(),
        other => other.to_string(),
    })?;
    Ok(Made::Program(Box::new(scheduled)))
}

/// A schedule of the space's kind, predicted and simulated.
fn of_plan(
    problem: &dyn Workload,
    plan: &Schedule,
    gpu: &Descriptor,
    go_on: &dyn Fn() -> bool,
) -> Result<Made, String> {
    let cost = problem.predict(plan, gpu).map_err(|e| format!("{} cannot run it: {e}", gpu.name))?;
    Ok(Made::Plan(Box::new(Subject::of((plan, &cost), problem, gpu, go_on)?)))
}

/// What is known of kernels that no candidate can be.
fn of_kernels(problem: &dyn Workload, request: &Request, made: &Scheduled, progress: &dyn Progress) -> GivenReport {
    let gpu = &request.gpu;
    let mut report = GivenReport::default();
    let compiler = match request.compile.then(Compiler::of_this_program) {
        Some(Ok(compiler)) => Some(compiler),
        Some(Err(missing)) => {
            report.not_executed = Some(missing.to_string());
            None
        }
        None => {
            let why = "it was not to be compiled, so that what it computes is not compared";
            report.not_executed = Some(why.into());
            None
        }
    };
    let kernels = renamed(made, &function_base(problem.name(), "given"));
    let about = format!("{} for {} ({}), as it is given", problem.name(), gpu.name, gpu.full_name);
    let text = |(kernel, file): (&crate::kernel::Kernel, &String)| {
        format!("{}{}", head(&about, arch(kernel, gpu), file), crate::cuda::print(kernel))
    };
    let names: Vec<String> = output::files_of("given", made).collect();
    let texts: Vec<String> = kernels.iter().zip(&names).map(text).collect();
    report.kernels = kernels_of(&made.module, problem.program(), kernels.into_iter().map(|k| k.name), &names);
    let go_on = || !progress.stopped();
    let mut registers = Vec::new();
    // An instruction that the GPU does not have.
    let missing = made.module.kernels.iter().find_map(|kernel| counted::matrix_instructions(kernel, gpu).err());
    if let (Some(missing), true) = (&missing, request.compile) {
        report.refused = Some(missing.clone());
    } else if let Some(compiler) = &compiler {
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

/// The architecture that a kernel is compiled for.
fn arch<'g>(kernel: &crate::kernel::Kernel, gpu: &'g Descriptor) -> &'g str {
    if kernel.is_of_chip() {
        &gpu.arch_features
    } else {
        &gpu.arch
    }
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
        arch: arch(kernel, gpu).to_string(),
    };
    made.module.kernels.iter().zip(texts).map(|each| compiler.compile_job(&job(each), go_on)).collect()
}
