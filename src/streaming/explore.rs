//! Exploring a streaming program: its space, the best of it, checked kernels.
use super::check::{check, scheduled};
use super::StreamProblem;
use crate::cuda;
use crate::explore::output::{candidate, Parts, Report, SpaceReport};
use crate::explore::{compile_all, derivation, limits, peak_bytes, ExploreError, Request};
use crate::progress::Progress;
use crate::scheduled::{options, Checked, Scheduled};
use rayon::prelude::*;
use satune_extract::stream::{best_stream, StreamCandidate, StreamCost, StreamQuery};
use satune_extract::work::Work;
use satune_extract::{Candidate, Cost, Counts, Descriptor};
use satune_ir::term::stream::StreamTerm;
use satune_ir::term::{Schedule, Space, StoppedBy};
use satune_rewrites::space::stream::{rules, StreamMenu};
use satune_rewrites::space::{saturate, Fuel};
use std::time::Instant;

/// The space of a streaming problem on a GPU.
///
/// # Errors
/// When a rule is unsound, which is a bug.
pub fn space(problem: &StreamProblem, gpu: &Descriptor) -> Result<Space<StreamTerm>, ExploreError> {
    Ok(saturate(&problem.streams, limits(gpu), &StreamMenu::default(), &rules::all(), Fuel::default())?)
}

/// A candidate's kernels with what the simulator found, or its fault.
type Verdict = Result<(Scheduled, Checked), String>;

/// Explores; nothing is measured. `progress` is told what begins.
///
/// # Errors
/// See [`ExploreError`].
pub fn explore(problem: &StreamProblem, request: &Request, progress: &dyn Progress) -> Result<Report, ExploreError> {
    progress.begin("saturating", 0);
    let start = Instant::now();
    let space = space(problem, &request.gpu)?;
    let saturate_s = start.elapsed().as_secs_f64();
    progress.begin("extracting", 0);
    let query = StreamQuery { k: request.top, diverse: request.diverse, limit: request.limit };
    let found = best_stream(&space, &request.gpu, query);
    if found.candidates.is_empty() {
        return Err(ExploreError::Nothing(problem.name.clone()));
    }
    progress.begin("counting", 0);
    let schedules = Counts::of(&space).total().to_string();
    progress.begin("lowering and simulating", found.candidates.len());
    let checking = Instant::now();
    let options = options(&request.gpu);
    let checked: Vec<(StreamCandidate, Verdict)> = found
        .candidates
        .into_par_iter()
        .map(|c| {
            let made = scheduled(&problem.program, &c.plan, &problem.streams, &options).map_err(|e| e.to_string());
            let result = made.and_then(|made| {
                let kernels = check(&problem.program, &c.plan, &problem.streams, &options)?;
                Ok((made, together(&kernels)))
            });
            progress.advance();
            (c, result)
        })
        .collect();
    let saturated = space.report.stopped_by == StoppedBy::Saturated;
    let mut report = Report {
        program: problem.script.clone(),
        operator: problem.name.clone(),
        gpu: request.gpu.name.clone(),
        space: SpaceReport {
            schedules,
            enodes: space.report.nodes,
            eclasses: space.report.classes,
            saturate_s,
            extract_s: found.time.as_secs_f64(),
            simulate_s: checking.elapsed().as_secs_f64(),
            compile_s: 0.0,
            peak_bytes: 0,
            stopped_by: match &space.report.stopped_by {
                StoppedBy::Saturated => "saturated".into(),
                StoppedBy::Limit(limit) => limit.clone(),
            },
        },
        proved_optimal: found.proved && saturated,
        bound_ms: found.bound_ms,
        candidates: Vec::new(),
        bugs: Vec::new(),
        not_compiled: None,
        measured: None,
    };
    let mut sources = Vec::new();
    for (c, result) in checked {
        let (scheduled, checked) = match result {
            Ok(parts) => parts,
            Err(fault) => {
                report.bugs.push(format!("{fault}\n{}", c.plan.describe().join("\n")));
                continue;
            }
        };
        let texts: Vec<String> = scheduled.module.kernels.iter().map(cuda::print).collect();
        let parts = Parts {
            script: &problem.script,
            program: &problem.program,
            scheduled: &scheduled,
            texts: &texts,
            checked: &checked,
            derivation: derivation::of(&space, &c.term),
        };
        // The report's own fields are the same for all kinds of schedules; the term is in the derivation.
        let as_candidate =
            Candidate { term: Default::default(), plan: Schedule::Stream(c.plan), cost: summary(&c.cost) };
        report.candidates.push(candidate(report.candidates.len() + 1, &as_candidate, parts));
        sources.push(texts);
    }
    if request.compile {
        progress.begin("compiling", 0);
        let start = Instant::now();
        compile_all(&mut report, &sources, &request.gpu);
        report.space.compile_s = start.elapsed().as_secs_f64();
    }
    report.space.peak_bytes = peak_bytes();
    Ok(report)
}

/// What all kernels of a module did.
pub fn together(kernels: &[Checked]) -> Checked {
    let mut all = Checked { total: Default::default(), hot_loop: Default::default(), blocks: 0 };
    for k in kernels {
        all.total += k.total;
        all.hot_loop += k.hot_loop;
        all.blocks += k.blocks;
    }
    all
}

/// The cost as reports carry it: occupancy is that of the slowest kernel.
fn summary(cost: &StreamCost) -> Cost {
    let slowest = cost.kernels.iter().max_by(|a, b| a.ms.total_cmp(&b.ms));
    Cost {
        ms: cost.ms,
        parts: cost.parts.clone(),
        bottleneck: cost.bottleneck.clone(),
        resident_blocks: slowest.map_or(0, |k| k.resident.0),
        occupancy_limit: slowest.map_or_else(String::new, |k| k.resident.1.clone()),
        registers: slowest.map_or(0, |k| k.registers),
        waves: slowest.map_or(0.0, |k| k.waves),
        dram_bytes: cost.kernels.iter().map(|k| k.dram_bytes).sum(),
        l2_bytes: cost.kernels.iter().map(|k| k.sectors * 32.0).sum(),
        work: Work::default(),
    }
}
