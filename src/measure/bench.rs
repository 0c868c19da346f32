//! `bench`: the best of the k best of each problem, beside the vendor's library, in one run.
use super::{MeasureError, Record, StrategyKind};
use crate::device::{Ask, Ceilings, Device, Identity, Kind};
use crate::explore::{ExploreError, Report, Request, Search};
use crate::progress::{Progress, Quiet};
use crate::source::Work;
use crate::store::{Store, Verdict};
use serde::{Deserialize, Serialize};

/// A benchmark of several problems.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Benchmark {
    /// What the times mean: of a simulator they are predictions.
    pub kind: Kind,
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
    /// Geometric mean of the ratios to the library, where there are any.
    pub mean_ratio: Option<f64>,
    /// The exploration of each program, for its page.
    #[serde(skip)]
    pub reports: Vec<Report>,
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
    /// Median of the vendor's library on the same inputs, ms.
    pub library_ms: Option<f64>,
    /// Library's time over ours: above 1, ours is faster.
    pub ratio: Option<f64>,
    /// Why there is no time of the library, where one was asked for.
    pub library_missing: Option<String>,
    /// Candidates measured, and those without a time.
    pub candidates: (usize, usize),
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
        /// Reasons and how often.
        reasons: String,
    },
}

/// Measures problems, one after the other, now: what the store knows is not taken for an answer.
///
/// # Errors
/// When the device or the store fails, or nothing of a problem runs.
pub fn bench(
    problems: &[Work],
    wanted: &Wanted,
    device: &mut dyn Device,
    store: &mut Store,
    progress: &dyn Progress,
) -> Result<Benchmark, BenchError> {
    let Identity { kind, device: name, toolchain, .. } = device.identity().clone();
    progress.begin("measuring ceilings", 0);
    let ceilings = device.ceilings().map_err(MeasureError::from)?;
    let (mut rows, mut reports) = (Vec::new(), Vec::new());
    for problem in problems {
        if progress.stopped() {
            break;
        }
        progress.begin(problem.workload().name(), 0);
        let (row, report) = one(problem, wanted, device, store)?;
        rows.push(row);
        reports.push(report);
    }
    let ratios: Vec<f64> = rows.iter().filter_map(|r| r.ratio).collect();
    let mean_ratio =
        (!ratios.is_empty()).then(|| (ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len() as f64).exp());
    Ok(Benchmark {
        kind,
        device: name,
        toolchain,
        gpu: wanted.request.gpu.name.clone(),
        ceilings,
        rows,
        mean_ratio,
        reports,
    })
}

fn one(
    problem: &Work,
    wanted: &Wanted,
    device: &mut dyn Device,
    store: &mut Store,
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
    let report: Report =
        problem.explore_on(&wanted.request, Some(search), &Quiet).map_err(|e| BenchError::Explore(name.clone(), e))?;
    let (tried, rejected) =
        report.measured.as_ref().map_or((0, Default::default()), |m| (m.trials, m.rejected.clone()));
    let best = report.candidates.first().and_then(|c| Some((c, c.measured.as_ref()?)));
    let Some((candidate, measured)) = best else {
        let reasons: Vec<String> = rejected.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
        return Err(BenchError::Nothing { program: name, tried, reasons: reasons.join(", ") });
    };
    let (mut library_ms, mut library_missing) = (None, None);
    if wanted.library {
        match device.library(workload, &wanted.ask).map_err(MeasureError::from)? {
            Some(Verdict::Measured(timing)) => library_ms = Some(timing.median_ms()),
            Some(Verdict::Rejected { reason, detail }) => library_missing = Some(format!("{reason}: {detail}")),
            None => library_missing = Some("no cuBLAS on this device".into()),
        }
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
        library_ms,
        ratio: library_ms.map(|l| l / measured.ms),
        library_missing,
        candidates: (tried, rejected.values().sum()),
    };
    Ok((row, report))
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
