//! Commands on candidates that `explore` has written.
use super::{print, print_json, torch, Failure, Outcome};
use crate::explore::{CandidateReport, Report};
use crate::host::Launch;
use crate::lower::program::LowerOptions;
use crate::scheduled;
use crate::scheduled::Scheduled;
use crate::source::{self, Work};
use satune_extract::Descriptor;
use std::path::{Path, PathBuf};

/// Which candidate.
#[derive(clap::Args)]
pub(super) struct Pick {
    /// Its id, the beginning of one, or its rank
    pub(super) id: String,
    /// Folder that `explore` wrote
    #[arg(long, default_value = "satune-out")]
    pub(super) out: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Pick {
    /// The exploration, and the candidate of it.
    pub(super) fn load(&self) -> Result<(Report, CandidateReport), Failure> {
        let report = report(&self.out)?;
        let candidate = find(&report, &self.id)?.clone();
        Ok((report, candidate))
    }
}

/// The exploration in a folder.
pub(super) fn report(folder: &Path) -> Result<Report, Failure> {
    let path = folder.join("candidates.json");
    let text = std::fs::read_to_string(&path).map_err(|e| {
        Failure::Input(format!("{}: {e}; run `satune explore` first, or name its folder with --out", path.display()))
    })?;
    serde_json::from_str(&text)
        .map_err(|e| Failure::Input(format!("{}: {e}; it is not what `satune explore` writes", path.display())))
}

/// A candidate by its rank, its id, or the beginning of one.
pub(super) fn find<'a>(report: &'a Report, id: &str) -> Result<&'a CandidateReport, Failure> {
    let mut found: Vec<&CandidateReport> = report.candidates.iter().filter(|c| c.rank.to_string() == id).collect();
    if found.is_empty() {
        found = report.candidates.iter().filter(|c| c.id.starts_with(id)).collect();
    }
    match found[..] {
        [one] => Ok(one),
        _ => {
            let ids: Vec<&str> = report.candidates.iter().map(|c| c.id.as_str()).collect();
            let many = if found.is_empty() { "no candidate" } else { "more than one candidate" };
            Err(Failure::Input(format!("{many} is called `{id}`; there are {}", ids.join(", "))))
        }
    }
}

/// The predicted time, and what of it is the kernels' and what their launches'.
pub(super) fn predicted(c: &CandidateReport) -> String {
    let kernels = if c.kernels.len() == 1 { "the kernel" } else { "the kernels" };
    match c.launch_ms > 0.0 {
        true => {
            format!("{:.4} ms ({kernels} {:.4}, launching {:.4})", c.predicted_ms, c.predicted_kernel_ms, c.launch_ms)
        }
        // Stored by a version that did not tell them apart.
        false => format!("{:.4} ms", c.predicted_ms),
    }
}

/// Bars of the time's parts.
pub(super) fn parts(c: &CandidateReport) -> String {
    let longest = c.parts.values().copied().fold(0.0, f64::max).max(1e-12);
    c.parts
        .iter()
        .map(|(name, ms)| {
            let bar = "#".repeat((ms / longest * 40.0).round() as usize);
            format!("  {name:<14} {ms:>10.4} ms  {bar}\n")
        })
        .collect()
}

/// `why`.
pub(super) fn why(pick: &Pick) -> Outcome {
    let (report, c) = pick.load()?;
    if pick.json {
        return print_json(&serde_json::json!({
            "id": c.id, "predicted_ms": c.predicted_ms, "predicted_kernel_ms": c.predicted_kernel_ms,
            "launch_ms": c.launch_ms, "parts": c.parts, "bottleneck": c.bottleneck,
            "occupancy": c.occupancy, "derivation": c.derivation,
        }));
    }
    let mut out = format!(
        "{} of {} on {}: predicted {}, bound by {}. What each resource alone would take:\n{}",
        c.id,
        report.operator,
        report.gpu,
        predicted(&c),
        c.bottleneck,
        parts(&c)
    );
    out.push_str(&format!(
        "{} block{} resident per multiprocessor, limited by {}\nderivation, from the outside in:\n",
        c.occupancy.0,
        if c.occupancy.0 == 1 { "" } else { "s" },
        c.occupancy.1
    ));
    for line in &c.derivation {
        out.push_str(&format!("  {line}\n"));
    }
    print(&out)
}

/// `emit`.
pub(super) fn emit(pick: &Pick, form: &str) -> Outcome {
    let (report, c) = pick.load()?;
    match form {
        "c" => return print(&c_header(&c, &made(&report, &c)?)),
        "torch" => return print(&torch::extension(pick, &report, &c, &made(&report, &c)?)?),
        _ => {}
    }
    let files: Vec<&str> = match form {
        "cuda" => c.kernels.iter().map(|k| k.file.as_str()).collect(),
        "tvm" => vec![&c.tvm],
        "json" => vec![&c.trace],
        other => return Err(Failure::Input(format!("unknown form `{other}`; forms are cuda, c, torch, tvm, json"))),
    };
    for file in files {
        let path = pick.out.join(file);
        let text = std::fs::read_to_string(&path).map_err(|e| Failure::Input(format!("{}: {e}", path.display())))?;
        print(&text)?;
    }
    Ok(())
}

/// A candidate's kernels, made again.
fn made(report: &Report, c: &CandidateReport) -> Result<Scheduled, Failure> {
    let (work, options) = again(report)?;
    let made = work.workload().scheduled(&c.plan, &options);
    made.map_err(|e| Failure::Internal(format!("candidate {}: {e}", c.id)))
}

/// The problem of a stored exploration, and what its GPU lets kernels have.
fn again(report: &Report) -> Result<(Work, LowerOptions), Failure> {
    let work = source::work_of_script(&report.operator, &report.program).map_err(|e| Failure::Input(e.to_string()))?;
    let gpu = Descriptor::load(&report.gpu).map_err(|e| Failure::Input(e.to_string()))?;
    Ok((work, scheduled::options(&gpu)))
}

/// A C header that launches the candidate's kernels.
fn c_header(c: &CandidateReport, made: &Scheduled) -> String {
    let launches: Vec<Launch> =
        made.module.kernels.iter().zip(&c.kernels).map(|(kernel, k)| Launch::of(kernel, &k.args)).collect();
    let workspace = made.module.workspaces.iter().map(|w| w.elements * u64::from(w.dtype.bytes())).sum();
    let name = c.kernels.last().map_or(c.id.as_str(), |k| k.name.as_str());
    crate::host::c_header(name, &launches, workspace)
}

/// `check`.
pub(super) fn check(pick: &Pick) -> Outcome {
    let (report, c) = pick.load()?;
    let (work, options) = again(&report)?;
    let within = work.workload().agreement().words();
    let checked = work.workload().check(&c.plan, &options);
    let checked = checked.map_err(|fault| Failure::Internal(format!("candidate {} is wrong: {fault}", c.id)))?;
    if pick.json {
        return print_json(&checked.total);
    }
    let (taken, ideal) = checked.total.shared_wavefronts();
    let (touched, least) = checked.total.global_sectors();
    let arithmetic = match checked.total.matrix {
        0 => format!("{} multiply-adds", checked.total.fma),
        matrix => format!("{matrix} matrix instructions"),
    };
    print(&format!(
        "{}: {} blocks simulated, equal to the definition {within}, no races, nothing out of bounds or unwritten\n  shared wavefronts {taken} (least {ideal}), global sectors {touched} (least {least}), {arithmetic}\n",
        c.id, checked.blocks
    ))
}
