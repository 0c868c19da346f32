//! `diff`: what differs between two stored candidates.
use super::{print, print_json, stored, Failure, Outcome};
use crate::explore::{CandidateReport, SimulatedReport};
use similar::{ChangeTag, TextDiff};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Which two.
#[derive(clap::Args)]
pub(super) struct Pair {
    /// The first: its id, the beginning of one, or its rank
    a: String,
    /// The second
    b: String,
    /// Folder that `explore` wrote
    #[arg(long, default_value = "satune-out")]
    out: PathBuf,
    /// Folder of the second one, where it is another
    #[arg(long)]
    other: Option<PathBuf>,
    /// Unchanged lines around a change of the CUDA text
    #[arg(long, default_value_t = 2)]
    context: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Numbers of both under one name; `None` where one side has none.
type Row = (String, Option<f64>, Option<f64>);

/// `diff`.
pub(super) fn run(pair: &Pair) -> Outcome {
    let other = pair.other.as_ref().unwrap_or(&pair.out);
    let (first, second) = (stored::report(&pair.out)?, stored::report(other)?);
    let (a, b) = (stored::find(&first, &pair.a)?, stored::find(&second, &pair.b)?);
    let parts = parts(a, b);
    let counts = counts(a, b);
    let schedule = schedule(a, b);
    let cuda = unified(&text(a, &pair.out)?, &text(b, other)?, (&a.id, &b.id), pair.context);
    if pair.json {
        let rows = |rows: &[Row]| -> serde_json::Value {
            rows.iter().map(|(name, a, b)| (name.clone(), serde_json::json!([a, b]))).collect()
        };
        return print_json(&serde_json::json!({
            "a": { "id": a.id, "operator": first.operator, "gpu": first.gpu, "predicted_ms": a.predicted_ms },
            "b": { "id": b.id, "operator": second.operator, "gpu": second.gpu, "predicted_ms": b.predicted_ms },
            "schedule": schedule, "parts": rows(&parts), "counts": rows(&counts), "cuda": cuda,
        }));
    }
    let mut out = String::new();
    for (sign, report, c) in [("-", &first, a), ("+", &second, b)] {
        out.push_str(&format!(
            "{sign} {}, {}, of {} on {}: predicted {:.4} ms, bound by {}\n",
            c.id,
            stored::place(c),
            report.operator,
            report.gpu,
            c.predicted_ms,
            c.bottleneck
        ));
    }
    out.push_str("schedule:\n");
    for line in &schedule {
        out.push_str(&format!("  {line}\n"));
    }
    out.push_str("time by part, ms:\n");
    out.push_str(&table(&parts, 4));
    out.push_str("counts:\n");
    out.push_str(&table(&counts, 0));
    if cuda.is_empty() {
        out.push_str("CUDA: the same text\n");
    } else {
        out.push_str("CUDA:\n");
        out.push_str(&cuda);
    }
    print(&out)
}

/// The lines of both schedules, changed ones marked.
fn schedule(a: &CandidateReport, b: &CandidateReport) -> Vec<String> {
    let old: Vec<&str> = a.schedule.iter().map(String::as_str).collect();
    let new: Vec<&str> = b.schedule.iter().map(String::as_str).collect();
    TextDiff::from_slices(&old, &new).iter_all_changes().map(|c| format!("{} {}", c.tag(), c.value())).collect()
}

fn parts(a: &CandidateReport, b: &CandidateReport) -> Vec<Row> {
    let names: BTreeSet<&String> = a.parts.keys().chain(b.parts.keys()).collect();
    let row = |name: &&String| ((*name).clone(), a.parts.get(*name).copied(), b.parts.get(*name).copied());
    let mut rows: Vec<Row> = names.iter().map(row).collect();
    rows.push(("predicted".into(), Some(a.predicted_ms), Some(b.predicted_ms)));
    rows
}

fn counts(a: &CandidateReport, b: &CandidateReport) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |name: &str, of: &dyn Fn(&CandidateReport) -> Option<f64>| {
        rows.push((name.to_string(), of(a), of(b)));
    };
    row("blocks", &|c| c.kernels.first().map(|k| k.grid.iter().map(|n| f64::from(*n)).product()));
    row("threads per block", &|c| Some(f64::from(c.plan.threads())));
    row("resident blocks", &|c| Some(c.occupancy.0 as f64));
    row("registers", &|c| c.compiled.as_ref().map(|m| f64::from(m.registers)));
    row("spilled bytes", &|c| c.compiled.as_ref().map(|m| f64::from(m.spill_bytes)));
    row("static shared bytes", &|c| c.compiled.as_ref().map(|m| f64::from(m.static_shared_bytes)));
    row("hot loop instructions", &|c| Some(f64::from(c.compiled.as_ref()?.hot_loop.as_ref()?.instructions)));
    row("hot loop arithmetic", &|c| Some(f64::from(c.compiled.as_ref()?.hot_loop.as_ref()?.math)));
    let over = |taken: u64, least: u64| (least > 0).then(|| taken as f64 / least as f64);
    row("shared wavefronts over the least", &|c| {
        over(c.simulated.shared_wavefronts, c.simulated.shared_wavefronts_ideal)
    });
    row("global sectors over the least", &|c| over(c.simulated.global_sectors, c.simulated.global_sectors_ideal));
    // The simulated problems may differ in size; per multiply-add they can be compared.
    let mut per_fma = |name: &str, of: fn(&SimulatedReport) -> u64| {
        row(&format!("{name} per 1000 multiply-adds"), &|c| {
            let fma = c.simulated.fma;
            (fma > 0).then(|| 1000.0 * of(&c.simulated) as f64 / fma as f64)
        });
    };
    per_fma("shared wavefronts", |s| s.shared_wavefronts);
    per_fma("least shared wavefronts", |s| s.shared_wavefronts_ideal);
    per_fma("global sectors", |s| s.global_sectors);
    per_fma("least global sectors", |s| s.global_sectors_ideal);
    per_fma("barriers", |s| s.barriers);
    rows
}

/// Rows with the second as a multiple of the first.
fn table(rows: &[Row], places: usize) -> String {
    let number = |v: &Option<f64>| match v {
        None => "-".to_string(),
        Some(v) if places == 0 && v.fract() != 0.0 => format!("{v:.2}"),
        Some(v) => format!("{v:.places$}"),
    };
    let width = rows.iter().map(|r| r.0.chars().count()).max().unwrap_or(0);
    rows.iter()
        .map(|(name, a, b)| {
            let change = match (a, b) {
                (Some(a), Some(b)) if number(&Some(*a)) == number(&Some(*b)) => String::new(),
                (Some(a), Some(b)) if *a > 0.0 => format!("  {:.3}x", b / a),
                _ => "  changed".into(),
            };
            format!("  {name:<width$} {:>12} {:>12}{change}\n", number(a), number(b))
        })
        .collect()
}

/// The CUDA text of all kernels.
fn text(c: &CandidateReport, folder: &Path) -> Result<String, Failure> {
    let mut out = String::new();
    for k in &c.kernels {
        let path = folder.join(&k.file);
        let text = satune_ir::files::read_text(&path, 64 << 20)
            .map_err(|e| Failure::Input(format!("{}: {e}", path.display())))?;
        out.push_str(&text);
    }
    Ok(out)
}

/// The usual form of a difference; empty where there is none.
fn unified(a: &str, b: &str, (name_a, name_b): (&str, &str), context: usize) -> String {
    let diff = TextDiff::from_lines(a, b);
    if diff.iter_all_changes().all(|c| c.tag() == ChangeTag::Equal) {
        return String::new();
    }
    diff.unified_diff().context_radius(context).header(&format!("{name_a}.cu"), &format!("{name_b}.cu")).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_name_what_changed() {
        let rows = [("same".to_string(), Some(2.0), Some(2.0)), ("twice".to_string(), Some(1.0), Some(2.0))];
        let text = table(&rows, 1);
        assert_eq!(text, "  same           2.0          2.0\n  twice          1.0          2.0  2.000x\n");
        assert_eq!(table(&[("new".into(), None, Some(3.0))], 0), "  new            -            3  changed\n");
    }

    #[test]
    fn equal_texts_have_no_difference() {
        assert_eq!(unified("a\nb\n", "a\nb\n", ("x", "y"), 2), "");
        assert!(unified("a\nb\n", "a\nc\n", ("x", "y"), 2).contains("\n-b\n+c\n"));
    }
}
