//! The main job: a problem in, checked kernels of its best schedules out.
mod check;
mod check_gather;
mod check_tensor;
mod derivation;
mod output;
pub mod results;
mod search;

pub use crate::scheduled::Checked;
pub use check::{check, shrink};
pub use check_tensor::shrink as shrink_tensor;
pub(crate) use output::{about, arch, comment, function_base, head, renamed};
pub use output::{
    write_whole, CandidateReport, CompiledReport, KernelReport, MeasuredReport, Report, SearchReport, SimulatedReport,
    SpaceReport, TensorMapReport,
};
pub use search::Search;

use crate::compile;
use crate::compile::{CompileError, Compiler, Job};
use crate::device::Subject;
use crate::lower::program::{Argument, Workspace};
use crate::operators::Problem;
use crate::progress::Progress;
use crate::scheduled::Scheduled;
use crate::workload::{Explorable, Workload};
use rayon::prelude::*;
use satune_extract::{Candidate, Counts, Descriptor, Query, Searched};
use satune_ir::term::{Schedule, Space, StoppedBy};
use satune_ir::Program;
use satune_rewrites::space::rules::tensor::{TensorCores, TensorMenu};
use satune_rewrites::space::{rules, saturate, Fuel, Limits, Menu};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What to explore.
#[derive(Clone, Debug)]
pub struct Request {
    /// The GPU.
    pub gpu: Descriptor,
    /// How many candidates.
    pub top: usize,
    /// No two of them share block tile and k tile.
    pub diverse: bool,
    /// Longest time for extraction.
    pub limit: Duration,
    /// Compile with NVRTC.
    pub compile: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ExploreError {
    /// The space could not be made.
    #[error(transparent)]
    Space(#[from] satune_rewrites::space::SaturationError),
    /// Nothing fits.
    #[error("no schedule of {0} fits the GPU: every one needs more registers or shared memory than there are")]
    Nothing(String),
    /// Saturation ended before any schedule was whole.
    #[error("the space of {operator} outgrew its limit ({limit}) before any schedule was complete; a smaller or rounder shape has fewer tilings")]
    Limit {
        /// As asked.
        operator: String,
        /// Name and value.
        limit: String,
    },
    /// Measuring came to a halt.
    #[error(transparent)]
    Measure(#[from] crate::measure::MeasureError),
}

/// The limits that a GPU sets to a space.
pub fn limits(gpu: &Descriptor) -> Limits {
    Limits {
        threads: 1024.min(gpu.threads_per_sm),
        shared_bytes: i64::from(gpu.shared_per_block),
        registers: 255,
        cp_async: gpu.cp_async,
    }
}

/// The tensor cores of a GPU that schedules are made for: `wmma` where there is no `mma.sync`. f32 operands are not rounded to
/// tf32 unless a problem allows it.
pub fn tensor_cores(gpu: &Descriptor) -> TensorCores {
    let mma = gpu.cp_async && gpu.tensor.is_some_and(|t| t.mma_share > 0.0);
    TensorCores {
        mma,
        wmma: (gpu.tensor.is_some() && !mma).then(|| gpu.arch_number()),
        stmatrix: gpu.tma,
        wgmma: gpu.tma && gpu.tensor.is_some_and(|t| t.wgmma_share > 0.0),
        multiprocessors: gpu.sms,
        tf32: false,
    }
}

/// The hash that the store knows a schedule of a problem by: its canonical trace, and the plan, which also holds what is
/// no primitive.
pub fn trace_hash(plan: &Schedule, problem: &dyn Workload) -> String {
    let trace = problem.trace(plan).to_json().unwrap_or_default();
    let plan = serde_json::to_string(plan).unwrap_or_default();
    crate::store::hash(&format!("{trace}\n{plan}"))
}

/// The space of a problem on a GPU.
///
/// # Errors
/// When a rule is unsound, which is a bug.
pub fn space(problem: &Problem, gpu: &Descriptor) -> Result<Space, ExploreError> {
    let limits = limits(gpu);
    let menu = Menu::of(&problem.contraction, &limits);
    let mut rules = rules::all();
    let cores = TensorCores { tf32: problem.tf32, ..tensor_cores(gpu) };
    let tensor = TensorMenu::of(&problem.contraction, &cores);
    rules.extend(rules::tensor::all(&problem.contraction, tensor));
    Ok(saturate(&problem.contraction, limits, &menu, &rules, Fuel::default())?)
}

/// A candidate's kernels with what the simulator found, or its fault.
type Verdict = Result<(Scheduled, Checked), String>;

/// Explores without measuring. When `progress` says stop, what has been found and checked by then is the answer.
///
/// # Errors
/// See [`ExploreError`].
pub fn explore<W: Explorable>(problem: &W, request: &Request, progress: &dyn Progress) -> Result<Report, ExploreError> {
    explore_on(problem, request, None, progress)
}

/// Explores, and measures if told how.
///
/// # Errors
/// See [`ExploreError`]. What was measured before is in the store.
pub fn explore_on<W: Explorable>(
    problem: &W,
    request: &Request,
    search: Option<Search<'_>>,
    progress: &dyn Progress,
) -> Result<Report, ExploreError> {
    progress.begin("saturating", 0);
    let start = Instant::now();
    let space = problem.space(&request.gpu)?;
    let saturate_s = start.elapsed().as_secs_f64();
    progress.begin("extracting", 0);
    let k = search.as_ref().map_or(request.top, |s| s.to_extract(request.top));
    let query = Query { k, diverse: request.diverse, limit: request.limit };
    let extraction = W::Term::best_while(&space, &request.gpu, query, &|| !progress.stopped());
    if extraction.candidates.is_empty() {
        if let StoppedBy::Limit(limit) = &space.report.stopped_by {
            return Err(ExploreError::Limit { operator: problem.name().into(), limit: limit.clone() });
        }
        return Err(ExploreError::Nothing(problem.name().into()));
    }
    let found = match search {
        None => search::Found::unmeasured(extraction),
        Some(search) => search.run(problem, request, &space, extraction, progress)?,
    };
    progress.begin("counting", 0);
    let schedules = Counts::of(&space).total().to_string();
    progress.begin("lowering and simulating", found.candidates.len());
    let checking = Instant::now();
    let any_right = AtomicBool::new(false);
    let (subjects, measured_s) = (found.subjects, found.simulate_s);
    let checked: Vec<(Candidate<W::Term>, Option<MeasuredReport>, Verdict)> = found
        .candidates
        .into_par_iter()
        .filter_map(|(candidate, measured)| {
            let known = subjects.get(&trace_hash(&candidate.plan, problem)).cloned();
            let result = match known {
                Some(subject) => Ok((subject.made, subject.checked)),
                // Nothing is shown unchecked: when told to end, one checked candidate is enough.
                None if progress.stopped() && any_right.load(Ordering::Relaxed) => return None,
                None => Subject::of(&candidate, problem, &request.gpu).map(|s| (s.made, s.checked)),
            };
            any_right.fetch_or(result.is_ok(), Ordering::Relaxed);
            progress.advance();
            Some((candidate, measured, result))
        })
        .collect();
    let simulate_s = measured_s + checking.elapsed().as_secs_f64();
    let mut report = Report {
        program: problem.script().into(),
        operator: problem.name().into(),
        gpu: request.gpu.name.clone(),
        descriptor: Some(request.gpu.clone()),
        satune: env!("CARGO_PKG_VERSION").into(),
        space: SpaceReport {
            schedules,
            enodes: space.report.nodes,
            eclasses: space.report.classes,
            saturate_s,
            extract_s: found.extract_s,
            simulate_s,
            compile_s: 0.0,
            peak_bytes: peak_bytes(),
            stopped_by: match &space.report.stopped_by {
                StoppedBy::Saturated => "saturated".into(),
                StoppedBy::Limit(limit) => limit.clone(),
            },
        },
        proved_optimal: found.proved && space.report.stopped_by == StoppedBy::Saturated,
        bound_ms: found.bound_ms,
        candidates: Vec::new(),
        bugs: found.bugs,
        not_compiled: None,
        measured: found.report,
    };
    let agreement = problem.agreement();
    let mut sources = Vec::new();
    for (candidate, measured, result) in checked {
        match result {
            Err(fault) => report.bugs.push(format!("{fault}\n{}", candidate.plan.describe().join("\n"))),
            Ok((scheduled, checked)) => {
                let derivation = [problem.origin(), derivation::of(&space, &candidate.term)].concat();
                let rank = report.candidates.len() + 1;
                let named = output::Named::of(problem, &scheduled, &candidate.plan, &request.gpu);
                let texts = named.texts.clone();
                let parts =
                    output::Parts { problem, scheduled: &scheduled, named, checked: &checked, agreement, derivation };
                let mut entry = output::candidate(rank, (&candidate.plan, &candidate.cost), parts);
                entry.measured = measured;
                report.candidates.push(entry);
                sources.push(texts);
            }
        }
    }
    if request.compile && !progress.stopped() {
        progress.begin("compiling", 0);
        let start = Instant::now();
        compile_all(&mut report, &sources, &request.gpu);
        report.space.compile_s = start.elapsed().as_secs_f64();
    }
    report.space.peak_bytes = peak_bytes();
    Ok(report)
}

fn compile_all(report: &mut Report, sources: &[Vec<String>], gpu: &Descriptor) {
    let compiler = match Compiler::of_this_program() {
        Ok(compiler) => compiler,
        Err(error) => {
            report.not_compiled = Some(error.to_string());
            return;
        }
    };
    let jobs: Vec<Job> = report
        .candidates
        .iter()
        .zip(sources)
        .filter_map(|(c, texts)| {
            let arch = output::arch(&c.plan, gpu);
            // Of several kernels the first, which a contraction's work is in.
            Some(Job { name: c.id.clone(), source: texts.first()?.clone(), arch: arch.into() })
        })
        .collect();
    for (candidate, result) in report.candidates.iter_mut().zip(compiler.compile_many(&jobs)) {
        match result {
            Ok(compiled) => {
                let mix = compile::hot_loop_mix(&compiled.cubin);
                candidate.compiled = Some(CompiledReport {
                    arch: compiled.arch,
                    registers: compiled.registers,
                    spill_bytes: compiled.spill_bytes,
                    static_shared_bytes: compiled.static_shared_bytes,
                    warnings: warnings(&compiled.log),
                    hot_loop: mix,
                });
            }
            Err(error @ CompileError::Missing) => {
                report.not_compiled = Some(error.to_string());
                return;
            }
            Err(error) => report.not_compiled = Some(error.to_string()),
        }
    }
}

/// What the compiler warns of in its log: among it that it runs `wgmma` one after the other, or ignores `setmaxnreg`.
fn warnings(log: &str) -> Vec<String> {
    let words = ["warning", "serializ", "setmaxnreg"];
    let warns = |line: &&str| words.iter().any(|w| line.to_lowercase().contains(w));
    log.lines().filter(warns).map(str::to_string).collect()
}

/// Most memory that this process has used, bytes; 0 where the system does not say.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok())
        .map_or(0, |kb| kb * 1024)
}

/// Name of a kernel's argument.
pub(crate) fn argument_name(argument: Argument, program: &Program, workspaces: &[Workspace]) -> String {
    let name = match argument {
        Argument::Param(i) => program.params.get(i).map(|id| program.buffer(*id).name.clone()),
        Argument::Workspace(i) => workspaces.get(i).map(|w| w.name.clone()),
    };
    name.unwrap_or_default()
}
