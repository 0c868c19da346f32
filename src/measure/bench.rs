//! `bench`: the best of the k best of each problem, beside the vendor's library, in one run.
use super::{MeasureError, Record, StrategyKind};
use crate::device::{Ask, Ceilings, Device, DeviceKind, Door, Identity, Ready, Rival, Subject};
use crate::execute::Executed;
use crate::explore::{CandidateReport, ExploreError, Report, Request, Search};
use crate::nvmmh::Beside;
use crate::progress::{Part, Progress};
use crate::source::Work;
use crate::store::{Conditions, Store, Verdict};
use crate::workload::Workload;
use satune_extract::Descriptor;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A benchmark of several problems.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Benchmark {
    /// What the times mean: of a simulator they are predictions.
    pub kind: DeviceKind,
    /// The device and its clocks.
    pub device: String,
    /// What compiled and ran.
    pub toolchain: String,
    /// Descriptor that the predictions are made with.
    pub gpu: String,
    /// What the device reaches, measured in the same run; none on a simulator.
    pub ceilings: Option<Ceilings>,
    /// One for each problem.
    pub rows: Vec<BenchRow>,
    /// Those that have no result.
    #[serde(default)]
    pub failed: Vec<Failed>,
    /// The device or the store was lost with the last of [`Benchmark::failed`], and the problems behind it were not tried.
    #[serde(default)]
    pub lost: bool,
    /// Geometric mean of the ratios to a library that computes the same, where there are any.
    pub mean_ratio: Option<f64>,
    /// The exploration of each program, for its page.
    #[serde(skip)]
    pub reports: Vec<Report>,
}

/// A problem without a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// As it was asked for.
    pub program: String,
    /// Why.
    pub reason: String,
}

/// A problem's result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchRow {
    /// As it was asked for.
    pub program: String,
    /// The best candidate.
    pub id: String,
    /// Its predicted time, ms.
    pub predicted_ms: f64,
    /// Its median, ms.
    pub ms: f64,
    /// Spread of its repeats.
    pub spread: f64,
    /// Useful arithmetic over time.
    pub tflops: f64,
    /// Bytes of all parameters over time, GB/s.
    #[serde(default)]
    pub gbs: f64,
    /// What the program's speed is told in, per second: operations, or for streaming programs bytes.
    #[serde(default)]
    pub rate: f64,
    /// Its unit.
    #[serde(default)]
    pub unit: String,
    /// Part of that rate that the descriptor allows: of its arithmetic (without tensor cores), or of its copy bandwidth.
    pub fraction_of_peak: f64,
    /// Median of the candidate that the model takes for best, ms, if it was measured.
    pub first_ms: Option<f64>,
    /// What it was compared with: `cuBLAS`, `cuBLAS, the product alone`, `a copy of the least bytes`.
    #[serde(default)]
    pub library: Option<String>,
    /// Whether that computes what the program asks for.
    #[serde(default = "whole")]
    pub library_whole: bool,
    /// Its median, ms, on inputs of the same kind in the same run.
    pub library_ms: Option<f64>,
    /// Its time over ours: above 1, ours is faster. Of a copy: the part of a copy's bandwidth that ours reaches. Both were
    /// timed in turns where they are of the same problem.
    pub ratio: Option<f64>,
    /// Spread of the ratios of single rounds, where both were timed in turns.
    #[serde(default)]
    pub ratio_spread: Option<f64>,
    /// The ways to have the library's result that were tried; its time is the fastest's, which stands first.
    #[serde(default)]
    pub doors: Vec<Door>,
    /// Clocks, power and what held them back while the best candidate ran.
    #[serde(default)]
    pub conditions: Option<Box<Conditions>>,
    /// Why there is no time of it, where one was asked for.
    pub library_missing: Option<String>,
    /// The schedule that the program came with, or that was named, beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<String>,
    /// What nvMatmulHeuristics takes, where it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvmmh: Option<Box<Beside>>,
    /// Candidates measured, and those without a time.
    pub candidates: (usize, usize),
    /// What of its text was executed before it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executed: Option<Executed>,
    /// Why it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_executed: Option<String>,
    /// Candidates that simulator or execution refused, and no device saw: bugs of Satune.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bugs: Vec<String>,
}

/// What earlier results were compared with computed the same.
fn whole() -> bool {
    true
}

/// What to benchmark.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// As for an exploration; its `top` candidates are measured.
    pub request: Request,
    /// Beside the library.
    pub library: bool,
    /// What the device is asked for.
    pub ask: Ask,
}

/// Why a benchmark has no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The exploration.
    #[error("{0}: {1}")]
    Explore(String, ExploreError),
    /// Device or store.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// Nothing ran.
    #[error("{program}: none of {tried} candidates ran and was right ({reasons})")]
    Nothing {
        /// As it was asked for.
        program: String,
        /// How many were tried.
        tried: usize,
        /// Reasons, how often, and what was said first.
        reasons: String,
    },
}

/// Measures problems, one after the other, now: what the store knows is not taken for an answer. One that fails costs the
/// others nothing; when the device is lost, what was measured before is the result. `so_far` is called after each problem.
///
/// # Errors
/// When the device or the store fails before there is a result, or the only problem fails.
pub fn bench(
    problems: &[Work],
    wanted: &Wanted,
    device: &mut dyn Device,
    store: &mut Store,
    progress: &dyn Progress,
    so_far: &mut dyn FnMut(&Benchmark),
) -> Result<Benchmark, BenchError> {
    let Identity { kind, device: name, toolchain, .. } = device.identity().clone();
    progress.begin("measuring ceilings", 0);
    let ceilings = device.ceilings(Duration::from_secs(120)).map_err(MeasureError::from)?;
    let mut result = Benchmark {
        kind,
        device: name,
        toolchain,
        gpu: wanted.request.gpu.name.clone(),
        ceilings,
        rows: Vec::new(),
        failed: Vec::new(),
        lost: false,
        mean_ratio: None,
        reports: Vec::new(),
    };
    for (number, problem) in problems.iter().enumerate() {
        if progress.stopped() {
            break;
        }
        let name = format!("{} of {}, {}", number + 1, problems.len(), problem.workload().name());
        match one(problem, wanted, device, store, &Part { whole: progress, name }) {
            Ok((row, report)) => {
                result.rows.push(row);
                result.reports.push(report);
            }
            Err(error) if problems.len() == 1 => return Err(error),
            // Its figures are none; those of the others are.
            Err(BenchError::Explore(_, ExploreError::Interrupted(_))) if !result.rows.is_empty() => break,
            Err(error @ BenchError::Explore(_, ExploreError::Interrupted(_))) => return Err(error),
            Err(error) => {
                result.lost =
                    matches!(error, BenchError::Measure(_) | BenchError::Explore(_, ExploreError::Measure(_)));
                if result.lost && result.rows.is_empty() {
                    return Err(error);
                }
                let reason = match &error {
                    // The program is named beside it.
                    BenchError::Explore(_, error) => error.to_string(),
                    BenchError::Nothing { tried, reasons, .. } => {
                        format!("none of {tried} candidates ran and was right ({reasons})")
                    }
                    BenchError::Measure(error) => error.to_string(),
                };
                result.failed.push(Failed { program: problem.workload().name().into(), reason });
            }
        }
        let ratios: Vec<f64> = result.rows.iter().filter(|r| r.library_whole).filter_map(|r| r.ratio).collect();
        let mean = || (ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len() as f64).exp();
        result.mean_ratio = (!ratios.is_empty()).then(mean);
        so_far(&result);
        if result.lost {
            break;
        }
    }
    Ok(result)
}

fn one(
    problem: &Work,
    wanted: &Wanted,
    device: &mut dyn Device,
    store: &mut Store,
    progress: &dyn Progress,
) -> Result<(BenchRow, Report), BenchError> {
    let workload = problem.workload();
    let name = workload.name().to_string();
    let run = store.begin_run(&format!("bench {name}")).map_err(MeasureError::from)?;
    let search = Search {
        device: &mut *device,
        record: Record { store, run },
        strategy: StrategyKind::Analytical,
        trials: wanted.request.top,
        seed: 0,
        fresh: true,
        ask: wanted.ask,
    };
    let report: Report = problem
        .explore_on(&wanted.request, Some(search), progress)
        .map_err(|e| BenchError::Explore(name.clone(), e))?;
    if progress.stopped() {
        let step = "measuring".into();
        return Err(BenchError::Explore(name, ExploreError::Interrupted(step)));
    }
    // Its rows are all that it has to write.
    store.finish_run(run).map_err(MeasureError::from)?;
    let (tried, rejected) = report.measured.as_ref().map_or((0, 0), |m| (m.trials, m.rejected.values().sum::<usize>()));
    let best = report.candidates.first().and_then(|c| Some((c, c.measured.as_ref()?)));
    let Some((candidate, measured)) = best else {
        let mut reasons = report.measured.as_ref().map_or_else(String::new, |m| m.rejected_text());
        if let Some(bug) = report.bugs.first() {
            let comma = if reasons.is_empty() { "" } else { ", " };
            reasons += &format!("{comma}{} refused by simulator or execution (a bug): {bug}", report.bugs.len());
        }
        return Err(BenchError::Nothing { program: name, tried, reasons });
    };
    let mut versus = Versus::default();
    if wanted.library {
        versus = match duel(workload, candidate, &wanted.request.gpu, device, &wanted.ask)? {
            Some(versus) => versus,
            None => alone(workload, measured.ms, device, &wanted.ask)?,
        };
    }
    let seconds = measured.ms * 1e-3;
    let yardstick = workload.yardstick();
    let first = report.measured.as_ref().and_then(|m| m.log.first()).and_then(|s| s.ms);
    let row = BenchRow {
        program: name,
        id: candidate.id.clone(),
        predicted_ms: candidate.predicted_ms,
        ms: measured.ms,
        spread: measured.spread,
        tflops: workload.flops() / seconds * 1e-12,
        gbs: workload.least_bytes() / seconds * 1e-9,
        rate: yardstick.amount() / seconds,
        unit: yardstick.unit().into(),
        fraction_of_peak: yardstick.amount() / seconds / yardstick.peak(&wanted.request.gpu),
        first_ms: first,
        library: versus.what,
        library_whole: versus.whole,
        library_ms: versus.ms,
        ratio: versus.ratio,
        ratio_spread: versus.spread,
        doors: versus.doors,
        conditions: measured.conditions.clone(),
        library_missing: versus.missing,
        given: report.given.as_ref().map(|given| given.sentence(Some(candidate))),
        nvmmh: None,
        candidates: (tried, rejected),
        executed: candidate.executed.clone(),
        not_executed: report.not_executed.clone(),
        bugs: report.bugs.clone(),
    };
    Ok((row, report))
}

/// A candidate beside what it is compared with.
struct Versus {
    what: Option<String>,
    whole: bool,
    ms: Option<f64>,
    ratio: Option<f64>,
    spread: Option<f64>,
    doors: Vec<Door>,
    missing: Option<String>,
}

impl Default for Versus {
    fn default() -> Versus {
        Versus { what: None, whole: true, ms: None, ratio: None, spread: None, doors: Vec::new(), missing: None }
    }
}

/// Rounds in which a candidate and what it is compared with take turns.
pub const ROUNDS: u32 = 10;

/// Both in turns; `None` where the device has no such comparison, or one of the two went wrong in it.
fn duel(
    workload: &dyn Workload,
    best: &CandidateReport,
    gpu: &Descriptor,
    device: &mut dyn Device,
    ask: &Ask,
) -> Result<Option<Versus>, BenchError> {
    if device.identity().kind != DeviceKind::Cuda {
        return Ok(None);
    }
    let Ok(cost) = workload.predict(&best.plan, gpu) else { return Ok(None) };
    let Ok(subject) = Subject::of((&best.plan, &cost), workload, gpu, &|| true) else { return Ok(None) };
    let ready = Ready::of(workload, &subject);
    let Some(duel) = device.duel(workload, &ready, ask, ROUNDS).map_err(MeasureError::from)? else { return Ok(None) };
    Ok(duel.outcome.ok().map(|mut duelled| Versus {
        what: Some(duel.what),
        whole: duel.whole,
        ms: Some(duelled.theirs.timing.median_ms()),
        ratio: Some(duelled.ratio()),
        spread: Some(duelled.spread()),
        doors: {
            duelled.theirs.doors.sort_by_key(|d| d.name != duelled.theirs.door);
            duelled.theirs.doors
        },
        missing: None,
    }))
}

/// What a candidate is compared with, after it.
fn alone(workload: &dyn Workload, ms: f64, device: &mut dyn Device, ask: &Ask) -> Result<Versus, BenchError> {
    let Some(rival) = device.library(workload, ask).map_err(MeasureError::from)? else {
        return Ok(Versus { missing: Some("no cuBLAS on this device".into()), ..Versus::default() });
    };
    let Rival { what, whole, verdict, doors } = rival;
    let versus = Versus { what: Some(what), whole, doors, ..Versus::default() };
    Ok(match verdict {
        Verdict::Measured(timing) => {
            let theirs = timing.median_ms();
            Versus { ms: Some(theirs), ratio: Some(theirs / ms), ..versus }
        }
        Verdict::Rejected { reason, detail } => Versus { missing: Some(format!("{reason}: {detail}")), ..versus },
    })
}

/// The problems that became slower than a baseline by more than a fraction, in words.
pub fn regressions(now: &Benchmark, before: &Benchmark, tolerance: f64) -> Vec<String> {
    now.rows
        .iter()
        .filter_map(|row| {
            let old = before.rows.iter().find(|r| r.program == row.program)?;
            let slower = row.ms / old.ms - 1.0;
            (slower > tolerance).then(|| {
                format!("{}: {:.4} ms, {:.1}% slower than {:.4} ms", row.program, row.ms, 100.0 * slower, old.ms)
            })
        })
        .collect()
}
