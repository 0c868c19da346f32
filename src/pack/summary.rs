//! What a run came to, on one page: what failed, ratios to the library, how far the model is off by family, its largest
//! misses.
use super::run::{results, DuelLine, LibraryLine, Line, Outcome, Results};
use super::Family;
use crate::store::Verdict;
use satune_extract::calibrate::Quality;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Misses that are named.
const MISSES: usize = 10;

/// The numbers of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// Rows with a time, and all.
    pub measured: (usize, usize),
    /// Rows without a time, by reason.
    pub rejected: BTreeMap<String, usize>,
    /// Of each program the library's time over the best one's, and its spread where both took turns.
    pub ratios: BTreeMap<String, (f64, Option<f64>)>,
    /// Their geometric mean, of libraries that compute the same.
    pub mean_ratio: Option<f64>,
    /// How well predictions order the times.
    pub quality: Option<Quality>,
}

fn percent(value: Option<f64>) -> String {
    value.map_or("-".into(), |v| format!("{:.1}%", 100.0 * v))
}

/// The numbers of a run's folder.
fn figures(rows: &[Line], libraries: &[LibraryLine], duels: &[DuelLine]) -> Figures {
    let mut best: BTreeMap<&str, f64> = BTreeMap::new();
    let mut pairs: Vec<(&str, f64, f64)> = Vec::new();
    let mut out = Figures { measured: (0, rows.len()), ..Figures::default() };
    for line in rows {
        match &line.row.verdict {
            Verdict::Measured(timing) => {
                out.measured.0 += 1;
                let ms = timing.median_ms();
                pairs.push((&line.row.operator, line.row.predicted_ms, ms));
                let best = best.entry(&line.row.operator).or_insert(f64::INFINITY);
                *best = best.min(ms);
            }
            Verdict::Rejected { reason, .. } => *out.rejected.entry(reason.name().into()).or_default() += 1,
        }
    }
    let mut whole = Vec::new();
    for library in libraries {
        if let (Some(theirs), Some(ours)) = (library.verdict.median_ms(), best.get(library.operator.as_str())) {
            out.ratios.insert(library.operator.clone(), (theirs / ours, None));
        }
    }
    // In turns is the fairer way; of several the best candidate's.
    let mut fair: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for duel in duels {
        if let (Some(ratio), Some(spread)) = (duel.ratio, duel.spread) {
            let known = fair.entry(&duel.operator).or_insert((ratio, spread));
            if ratio > known.0 {
                *known = (ratio, spread);
            }
        }
    }
    for (operator, (ratio, spread)) in fair {
        out.ratios.insert(operator.into(), (ratio, Some(spread)));
    }
    let is_whole = |operator: &str| {
        let mut of = libraries.iter().filter(|l| l.operator == operator).map(|l| l.whole);
        let mut duel = duels.iter().filter(|d| d.operator == operator).map(|d| d.whole);
        of.next().or_else(|| duel.next()).unwrap_or(false)
    };
    whole.extend(out.ratios.iter().filter(|(o, _)| is_whole(o)).map(|(_, (ratio, _))| ratio.ln()));
    out.mean_ratio = (!whole.is_empty()).then(|| (whole.iter().sum::<f64>() / whole.len() as f64).exp());
    out.quality = (!pairs.is_empty()).then(|| Quality::of(&pairs));
    out
}

/// A page in Markdown about a folder with a run's results.
///
/// # Errors
/// A file that cannot be read.
pub fn summary(folder: &Path, outcome: Option<&Outcome>) -> std::io::Result<String> {
    let Results { head, rows, libraries, duels } = results(folder).map_err(std::io::Error::other)?;
    let figures = figures(&rows, &libraries, &duels);
    let mut out = String::new();
    let line = |out: &mut String, text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    let name = head.as_ref().map_or("a pack", |h| h.suite.as_str());
    line(&mut out, format!("# {name}\n"));
    if let Some(head) = &head {
        let told = match head.kind {
            crate::device::DeviceKind::Cuda => "measured",
            crate::device::DeviceKind::Simulator => "**predicted, not measured on a GPU**",
            crate::device::DeviceKind::Scripted => "**made up, not measured on a GPU**",
        };
        line(&mut out, format!("{}; {}; times are {told}; pack {}\n", head.device, head.toolchain, head.pack));
    }
    line(&mut out, format!("{} of {} candidates have a time.", figures.measured.0, figures.measured.1));
    for (reason, count) in &figures.rejected {
        line(&mut out, format!("* {reason}: {count}"));
    }
    if let Some(outcome) = outcome {
        line(
            &mut out,
            format!(
                "\nThis call: {:.1} s, the device at work {:.0}% of it, {:.1} candidates measured per second of its work; it waited {} times for a compiler. {} candidates were not reached, {} known.",
                outcome.wall_s,
                100.0 * outcome.busy(),
                outcome.per_second(),
                outcome.waits,
                outcome.left,
                outcome.known
            ),
        );
        for (why, count) in &outcome.skipped {
            line(&mut out, format!("* {count} not asked: {why}"));
        }
    }
    let failed: Vec<&Line> = rows.iter().filter(|l| matches!(l.row.verdict, Verdict::Rejected { .. })).collect();
    if !failed.is_empty() {
        line(&mut out, "\n## What failed\n".into());
        line(&mut out, "| program | candidate | family | reason |\n|---|---|---|---|".into());
        for row in failed.iter().take(24) {
            let Verdict::Rejected { reason, detail } = &row.row.verdict else { continue };
            let said: String =
                detail.lines().next().unwrap_or("").chars().take(160).collect::<String>().replace('|', "/");
            let _ =
                writeln!(out, "| {} | {} | {} | {reason}: {said} |", row.row.operator, row.place, row.family.name());
        }
        if failed.len() > 24 {
            line(&mut out, format!("\nand {} more, in rows.ndjson", failed.len() - 24));
        }
    }
    if !figures.ratios.is_empty() {
        line(&mut out, "\n## Beside the library\n".into());
        line(&mut out, "| program | library's time over ours | spread |\n|---|---|---|".into());
        for (operator, (ratio, spread)) in &figures.ratios {
            let _ = writeln!(out, "| {operator} | {ratio:.3} | {} |", percent(*spread));
        }
        if let Some(mean) = figures.mean_ratio {
            line(&mut out, format!("\nGeometric mean of those that compute the same: {mean:.3}"));
        }
    }
    if let Some(q) = &figures.quality {
        line(&mut out, "\n## The model\n".into());
        let number = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.3}"));
        let regrets = [q.regret_1, q.regret_8, q.regret_16].map(percent);
        line(
            &mut out,
            format!(
                "Spearman {}, regret of 1, 8, 16: {}; median error {}, worst {}",
                number(q.spearman),
                regrets.join(", "),
                percent(Some(q.median_error)),
                percent(Some(q.worst_error))
            ),
        );
        line(&mut out, "\n| family | candidates | predicted over measured, median |\n|---|---|---|".into());
        for family in Family::ALL {
            let of = |l: &&Line| l.family == family;
            let ratios: Vec<f64> =
                rows.iter().filter(of).filter_map(|l| Some(l.row.predicted_ms / l.row.verdict.median_ms()?)).collect();
            if !ratios.is_empty() {
                let _ =
                    writeln!(out, "| {} | {} | {:.2} |", family.name(), ratios.len(), crate::store::median(&ratios));
            }
        }
        let miss = |l: &Line| Some((l.row.predicted_ms / l.row.verdict.median_ms()?).ln().abs());
        let mut misses: Vec<(f64, &Line)> = rows.iter().filter_map(|l| Some((miss(l)?, l))).collect();
        misses.sort_by(|a, b| b.0.total_cmp(&a.0));
        line(&mut out, "\n| largest misses | candidate | predicted, ms | measured, ms |\n|---|---|---|---|".into());
        for (_, l) in misses.iter().take(MISSES) {
            let ms = l.row.verdict.median_ms().unwrap_or(f64::NAN);
            let _ = writeln!(out, "| {} | {} | {:.4} | {ms:.4} |", l.row.operator, l.place, l.row.predicted_ms);
        }
    }
    Ok(out)
}
