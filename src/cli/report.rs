//! `report`: `report.html` of what `explore` has stored.
use super::{print, stored, Failure, Outcome};
use crate::device::DeviceKind;
use crate::explore::{results, Report};
use crate::measure::bench::Benchmark;
use crate::report::{Baseline, Measured, Page, Row};
use crate::sensitivity::Sensitivity;
use crate::source::{self, Work};
use crate::workload::Workload;
use satune_extract::Descriptor;
use std::io;
use std::path::{Path, PathBuf};

/// Which exploration.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder that `explore` wrote
    #[arg(long, default_value = "satune-out")]
    out: PathBuf,
    /// Another GPU than the one that was explored for: a name or a TOML file
    #[arg(long)]
    gpu: Option<String>,
    #[command(flatten)]
    worth: super::ask::Worth,
}

/// The page of an exploration.
fn page<'a>(report: &'a Report, problem: &'a dyn Workload, gpu: &'a Descriptor) -> Page<'a> {
    let mut page = Page::of(report, problem, gpu);
    // A simulator's times are the predictions, which the page has anyway.
    if let Some(search) = report.measured.as_ref().filter(|m| m.kind != DeviceKind::Simulator) {
        for candidate in &report.candidates {
            if let Some(times) = &candidate.measured {
                page.measured(&candidate.id, Measured { ms: times.ms, spread: Some(times.spread) });
            }
        }
        page.trials = search.log.iter().filter_map(|s| Some((u64::from(s.number), s.best_ms?))).collect();
    }
    page
}

/// Writes the page of an exploration into its folder; with what its first candidate's decisions are worth, where that is known.
pub(super) fn write(
    report: &Report,
    problem: &dyn Workload,
    gpu: &Descriptor,
    worth: Option<Sensitivity>,
    folder: &Path,
) -> io::Result<()> {
    let mut page = page(report, problem, gpu);
    page.read_sources(folder);
    page.sensitivity = worth;
    crate::report::write(&page, folder)
}

/// Writes the pages of a benchmark as one file.
pub(super) fn write_bench(
    result: &Benchmark,
    problems: &[Work],
    gpu: &Descriptor,
    notes: &[String],
    folder: &Path,
) -> Outcome {
    let anchor = |at: usize| format!("p{}", at + 1);
    let rows: Vec<Row> = result
        .rows
        .iter()
        .enumerate()
        .map(|(at, r)| Row {
            program: r.program.clone(),
            anchor: anchor(at),
            ms: r.ms,
            predicted_ms: r.predicted_ms,
            rate: r.rate,
            unit: r.unit.clone(),
            fraction_of_peak: r.fraction_of_peak,
            library_ms: r.library_ms,
            ratio: r.ratio,
        })
        .collect();
    let pages: Vec<Page<'_>> = result
        .reports
        .iter()
        .zip(&result.rows)
        .enumerate()
        .filter_map(|(at, (report, row))| {
            // Some problems have no result.
            let problem = problems.iter().find(|p| p.workload().name() == row.program)?;
            let mut page = page(report, problem.workload(), gpu);
            page.anchor = anchor(at);
            page.baseline =
                row.library_ms.map(|ms| Baseline { name: row.library.clone().unwrap_or_else(|| "cuBLAS".into()), ms });
            Some(page)
        })
        .collect();
    let text = crate::report::render_all(&format!("Benchmark on {}", result.device), &rows, notes, &pages);
    crate::explore::write_whole(folder, "report.html", &text).map_err(|e| Failure::Environment(e.to_string()))
}

/// `report`.
pub(super) fn run(args: &Args) -> Outcome {
    let report = stored::report(&args.out)?;
    let work = source::work_of_script(&report.operator, &report.program).map_err(|e| Failure::Input(e.to_string()))?;
    let gpu = args.gpu.as_ref().map_or_else(|| report.gpu(), |name| Descriptor::load(name));
    let gpu = gpu.map_err(|e| Failure::Input(e.to_string()))?;
    let folder = results::folder(&args.out);
    let failed = |e: io::Error| Failure::Environment(e.to_string());
    let worth = match report.candidates.first() {
        Some(first) => args.worth.of(&report, &gpu, &first.plan)?,
        None => None,
    };
    write(&report, work.workload(), &gpu, worth, &folder).map_err(failed)?;
    results::show_again(&args.out).map_err(failed)?;
    print(&format!("{}\n", folder.join("report.html").display()))
}
