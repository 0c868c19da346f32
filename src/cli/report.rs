//! `report`: `report.html` of what `explore` has stored.
use super::{print, stored, Failure, Outcome};
use crate::device::Kind;
use crate::explore::Report;
use crate::operators::Problem;
use crate::report::{Measured, Page};
use crate::source;
use satune_extract::Descriptor;
use std::path::{Path, PathBuf};

/// Which exploration.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder that `explore` wrote
    #[arg(long, default_value = "satune-out")]
    out: PathBuf,
    /// The GPU's TOML file, where the exploration was not for a built-in one
    #[arg(long)]
    gpu: Option<String>,
}

/// Writes the page of an exploration into its folder.
pub(super) fn write(report: &Report, problem: &Problem, gpu: &Descriptor, folder: &Path) -> Outcome {
    let mut page = Page::of(report, &problem.contraction, gpu);
    // A simulator's times are the predictions, which the page has anyway.
    if let Some(search) = report.measured.as_ref().filter(|m| m.kind != Kind::Simulator) {
        for candidate in &report.candidates {
            if let Some(times) = &candidate.measured {
                page.measured(&candidate.id, Measured { ms: times.ms, spread: Some(times.spread) });
            }
        }
        page.trials = search.log.iter().filter_map(|s| Some((u64::from(s.number), s.best_ms?))).collect();
    }
    page.read_sources(folder);
    crate::report::write(&page, folder).map_err(|e| Failure::Environment(e.to_string()))
}

/// `report`.
pub(super) fn run(args: &Args) -> Outcome {
    let report = stored::report(&args.out)?;
    let problem = source::of_script(&report.operator, &report.program).map_err(|e| Failure::Input(e.to_string()))?;
    let gpu = Descriptor::load(args.gpu.as_ref().unwrap_or(&report.gpu)).map_err(|e| Failure::Input(e.to_string()))?;
    write(&report, &problem, &gpu, &args.out)?;
    print(&format!("{}\n", args.out.join("report.html").display()))
}
