//! The main job: a problem in, checked kernels of its best schedules out.
mod binds;
mod check;
mod check_gather;
mod check_tensor;
mod compiled_loop;
mod derivation;
mod given;
mod output;
pub mod results;
mod search;
mod single;
mod vet;

pub use crate::scheduled::Checked;
pub use binds::sentence as binds;
pub use check::{check, reduced, shrink};
pub(crate) use check::{k_tiles, refitted};
pub use check_tensor::shrink as shrink_tensor;
pub(crate) use check_tensor::{on_few, oriented, parts as tensor_parts, tiles as tensor_tiles};
pub use compiled_loop::{Judge, LoopReport};
use given::Given;
pub use given::{GivenReport, GivenTime};
pub(crate) use output::{about, arch, comment, function_base, head, renamed};
pub use output::{
    write_whole, CandidateReport, CompiledReport, KernelReport, MeasuredReport, PortfolioReport, Report, SearchReport,
    SimulatedReport, SpaceReport, TensorMapReport,
};
pub use search::Search;
use vet::{Ranked, Vet};

use crate::lower::program::{Argument, Workspace};
use crate::measure::{BestFirst, StrategyKind};
use crate::operators::Problem;
use crate::progress::{Looks, Progress};
use crate::workload::{Explorable, Workload};
use satune_extract::{Candidate, Counts, Descriptor, Query};
use satune_ir::term::tensor::GroupMma;
use satune_ir::term::{Schedule, Space, StoppedBy};
use satune_ir::Program;
use satune_rewrites::space::rules::tensor::{TensorCores, TensorMenu};
use satune_rewrites::space::{rules, saturate_while, Fuel, Limits, Menu, SaturationError};
use std::time::{Duration, Instant};

/// What to explore.
#[derive(Clone, Debug)]
pub struct Request {
    /// The GPU.
    pub gpu: Descriptor,
    /// How many candidates.
    pub top: usize,
    /// The plain best under the model, though they be twins, not those that are worth measuring together.
    pub twins: bool,
    /// Longest time for extraction.
    pub limit: Duration,
    /// Compile with NVRTC.
    pub compile: bool,
    /// How far saturation may go.
    pub fuel: Fuel,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ExploreError {
    /// The space could not be made.
    #[error(transparent)]
    Space(SaturationError),
    /// Nothing fits.
    #[error("no schedule of {0} fits the GPU: every one needs more registers or shared memory than there are")]
    Nothing(String),
    /// Saturation ended before any schedule was whole.
    #[error("the space of {operator} outgrew its limit ({limit}) before any schedule was complete; give more with --fuel, or a smaller or rounder shape, which has fewer tilings")]
    Limit {
        /// As asked.
        operator: String,
        /// Name and value.
        limit: String,
    },
    /// Extraction found nothing in its time.
    #[error("extraction found no schedule of {operator} in {seconds} s; give it more with --time-limit")]
    Time {
        /// As asked.
        operator: String,
        /// Limit.
        seconds: u64,
    },
    /// It was told to end, in which step.
    #[error("interrupted while {0}, before any schedule was found and checked: there is nothing to keep")]
    Interrupted(String),
    /// Measuring came to a halt.
    #[error(transparent)]
    Measure(#[from] crate::measure::MeasureError),
}

impl From<SaturationError> for ExploreError {
    fn from(error: SaturationError) -> ExploreError {
        match error {
            SaturationError::Interrupted { nodes } => {
                ExploreError::Interrupted(format!("saturating, at {nodes} e-nodes"))
            }
            other => ExploreError::Space(other),
        }
    }
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

/// The tensor cores of a GPU that schedules are made for: `wmma` before sm_80, whose `mma.sync` takes f16 alone. f32 operands are not rounded to
/// tf32 unless a problem allows it.
pub fn tensor_cores(gpu: &Descriptor) -> TensorCores {
    let mma = gpu.tensor.is_some_and(|t| t.mma_share > 0.0);
    TensorCores {
        mma: mma.then(|| gpu.arch_number()),
        wmma: (gpu.tensor.is_some() && !(mma && gpu.cp_async)).then(|| gpu.arch_number()),
        stmatrix: gpu.tma,
        group: GroupMma::of(gpu.arch_number()).filter(|_| gpu.tma && gpu.tensor.is_some_and(|t| t.wgmma_share > 0.0)),
        // What is only estimated adds no grids.
        multiprocessors: [1, 2, 4].map(|cluster| gpu.clustered(cluster).unwrap_or(gpu.sms)),
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
    space_while(problem, gpu, Fuel::default(), &|_| true)
}

/// [`space`] of at most so many nodes, for as long as `go_on` says so, which is told how many there are.
///
/// # Errors
/// As [`space`], and when it is told to end.
pub fn space_while(
    problem: &Problem,
    gpu: &Descriptor,
    fuel: Fuel,
    go_on: &(dyn Fn(usize) -> bool + Sync),
) -> Result<Space, ExploreError> {
    let limits = limits(gpu);
    let menu = Menu::of(&problem.contraction, &limits);
    let mut rules = rules::all();
    let cores = TensorCores { tf32: problem.tf32, ..tensor_cores(gpu) };
    let tensor = TensorMenu::of(&problem.contraction, &cores);
    rules.extend(rules::tensor::all(&problem.contraction, tensor));
    Ok(saturate_while(&problem.contraction, limits, &menu, &rules, fuel, go_on)?)
}

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
    let looks = Looks::of(progress, "choices looked at");
    let go_on = || looks.go_on();
    let start = Instant::now();
    let space = problem.space_while(&request.gpu, request.fuel, &|nodes| grows(progress, nodes))?;
    let saturate_s = start.elapsed().as_secs_f64();
    progress.begin("extracting", 0);
    let k = search.as_ref().map_or(request.top, |s| s.to_extract(request.top));
    let query = Query { k, diverse: false, limit: request.limit, below_ms: f64::INFINITY };
    let mut list = BestFirst::of(&space, &request.gpu, query, &go_on);
    let whole = space.report.stopped_by == StoppedBy::Saturated;
    if list.first().is_none() {
        if progress.stopped() {
            return Err(ExploreError::Interrupted("extracting".into()));
        }
        if let StoppedBy::Limit(limit) = &space.report.stopped_by {
            return Err(ExploreError::Limit { operator: problem.name().into(), limit: limit.clone() });
        }
        return Err(match list.proved {
            true => ExploreError::Nothing(problem.name().into()),
            false => ExploreError::Time { operator: problem.name().into(), seconds: request.limit.as_secs() },
        });
    }
    // A strategy that does not go by the model proves nothing about it.
    let by_model = search.as_ref().is_none_or(|s| s.strategy == StrategyKind::Analytical);
    let portfolio = (by_model && !request.twins && k > 1).then(|| list.spread_out());
    let mut given = Given::of(problem, request, progress);
    let mut found = match search {
        None => search::Found::unmeasured(&mut list, request.top),
        Some(search) => search.run(problem, request, &space, (&mut list, &mut given), progress, &go_on)?,
    };
    let mut vet = Vet::new(problem, request, std::mem::take(&mut found.subjects), progress);
    vet.take(found.candidates);
    // One per tile, where the best tiles are none that the compiler takes well.
    let mut tiles: Option<BestFirst<'_, W::Term>> = None;
    while found.by_model && vet.wants_more(tiles.as_ref().unwrap_or(&list).least_ms()) {
        if tiles.is_none() && vet.stuck() {
            progress.begin("extracting", 0);
            let query = Query { k: 4 * request.top, diverse: true, limit: request.limit, below_ms: f64::INFINITY };
            tiles = Some(list.asked(query));
        }
        let next = tiles.as_mut().unwrap_or(&mut list).take(request.top.saturating_sub(vet.clean()).max(1));
        if next.is_empty() {
            break;
        }
        let other = |c: &Candidate<W::Term>| tiles.is_none() || !vet.is_like_unfit(&c.plan);
        let next: Vec<_> = next.into_iter().filter(other).map(|c| (c, None)).collect();
        vet.take(next);
    }
    let whole_list = tiles.is_none() && list.is_empty() && list.proved;
    let stopped = progress.stopped();
    // A count takes its time; what was interrupted is not counted.
    let schedules = (!stopped).then(|| {
        progress.begin("counting", 0);
        let steps = Looks::of(progress, "steps");
        Counts::of_while(&space, &|| steps.go_on()).total().to_string()
    });
    let schedules = schedules.filter(|_| !progress.stopped());
    let gave_up = vet.gave_up();
    let mut report = Report {
        program: problem.script().into(),
        shapes: Vec::new(),
        operator: problem.name().into(),
        gpu: request.gpu.name.clone(),
        descriptor: Some(request.gpu.clone()),
        satune: env!("CARGO_PKG_VERSION").into(),
        space: SpaceReport {
            schedules: schedules.unwrap_or_default(),
            enodes: space.report.nodes,
            eclasses: space.report.classes,
            encode_s: problem.asked().encoding.as_secs_f64(),
            saturate_s,
            extract_s: list.time.as_secs_f64(),
            simulate_s: found.simulate_s + vet.times.simulate.as_secs_f64(),
            compile_s: vet.times.compile.as_secs_f64(),
            execute_s: 0.0,
            peak_bytes: 0,
            stopped_by: match &space.report.stopped_by {
                StoppedBy::Saturated => "saturated".into(),
                StoppedBy::Limit(limit) => limit.clone(),
            },
        },
        proved_optimal: by_model && whole && list.proved && !progress.stopped() && !gave_up && tiles.is_none(),
        bound_ms: list.bound_ms,
        ranked_by: Judge::Model,
        candidates: Vec::new(),
        bugs: found.bugs.into_iter().chain(std::mem::take(&mut vet.bugs)).collect(),
        rejected: std::mem::take(&mut vet.rejected),
        untiled: problem.untiled(),
        notes: problem.notes(),
        not_compiled: vet.not_compiled.take(),
        not_executed: None,
        given: None,
        portfolio: portfolio.as_ref().map(PortfolioReport::of),
        nvmmh: None,
        measured: found.report,
    };
    let (single, why) = single::on_single_threads(problem, &request.gpu);
    report.untiled.extend(single.into_iter().filter(|block| !problem.untiled().contains(block)));
    report.notes.extend(why);
    report.notes.extend(report.portfolio.as_ref().map(|p| p.text(request.top)));
    let Ranked { shown: ranked, spilled, judge, note } = vet.ranked(found.measured);
    report.ranked_by = judge;
    report.bugs.append(&mut vet.bugs);
    report.space.execute_s = found.execute_s + vet.times.execute.as_secs_f64();
    if ranked.iter().any(|v| v.executed.is_none()) {
        let why = vet.not_executed.take().or(found.not_executed).or_else(|| report.not_compiled.clone());
        report.not_executed =
            Some(why.unwrap_or_else(|| if stopped { "interrupted" } else { "it was not to be compiled" }.into()));
    }
    if ranked.is_empty() && stopped {
        return Err(ExploreError::Interrupted("checking".into()));
    }
    if spilled > 0 {
        report.notes.push(format!("{spilled} candidates spill registers, and others that do not take their places"));
    }
    if tiles.is_some() {
        report.notes.push(
            "what is best under the model spills registers or is refused by the compiler: the search went on with one candidate per tile".into(),
        );
    }
    if gave_up {
        report.notes.push(format!(
            "the search ended after {} candidates beyond those asked for, since so many were refused",
            vet::PATIENCE
        ));
    } else if found.by_model && ranked.len() < request.top && whole_list && !stopped {
        report.notes.push(match whole {
            true => format!("the space has no more than these {}", ranked.len()),
            false => format!("what was made of the space has no more than these {}", ranked.len()),
        });
    }
    for vetted in ranked {
        let derivation = [problem.origin(), derivation::of(&space, &vetted.candidate.term)].concat();
        let rank = report.candidates.len() + 1;
        let mut entry = vetted.entry(rank, problem, derivation);
        // A simulator's times are the predictions.
        if let Some(m) = entry.measured.as_mut().filter(|_| !found.measured) {
            (m.place, m.ms) = (rank.min(m.place), entry.predicted_ms);
        }
        report.candidates.push(entry);
    }
    report.notes.extend(note);
    report.given = given.map(|given| given.beside(&report.candidates, problem, request, progress));
    report.space.peak_bytes = peak_bytes();
    Ok(report)
}

/// Tells how far saturation is; whether it goes on.
pub(crate) fn grows(progress: &dyn Progress, nodes: usize) -> bool {
    progress.grown(nodes as u64, "e-nodes");
    !progress.stopped()
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
