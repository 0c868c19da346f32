//! `calibrate`: a descriptor fitted to measured times, and how far the built-in ones are from published measurements.
use super::{print, print_json, Failure, Outcome};
use crate::{explore, measurements, published};
use satune_extract::calibrate::{calibrate, descriptor_text, Calibration, Quality};
use satune_extract::published::Verdict;
use satune_extract::Descriptor;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to fit to what.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Measurements, one JSON object a line: operator, plan, measured_ms, and gpu where there are several
    #[arg(required_unless_present = "published")]
    measurements: Option<PathBuf>,
    /// The GPU to begin with, by name or TOML file
    #[arg(long, default_value = "h200")]
    gpu: String,
    /// Where the fitted descriptor goes
    #[arg(long, required_unless_present = "published")]
    out: Option<PathBuf>,
    /// Fit nothing: say how far the built-in descriptors' predictions are from published measurements. What a library took
    /// stands beside the best of the space, which is searched for
    #[arg(long, conflicts_with_all = ["measurements", "out", "gpu"])]
    published: bool,
    /// Of the published ones only those whose schedule is known, which takes no search
    #[arg(long, requires = "published")]
    known: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `calibrate`.
pub(super) fn run(args: &Args) -> Outcome {
    let (Some(measurements), Some(out)) = (&args.measurements, &args.out) else { return judge(args) };
    let input = |e: String| Failure::Input(e);
    let base = Descriptor::source(&args.gpu).map_err(|e| input(e.to_string()))?;
    let gpu = Descriptor::parse(&base, &args.gpu).map_err(|e| input(e.to_string()))?;
    let path = measurements.display();
    let text = satune_ir::files::read_text(measurements, 256 << 20).map_err(|e| input(format!("{path}: {e}")))?;
    let read = measurements::read(&text, &gpu).map_err(|e| input(format!("{path}: {e}")))?;
    for (reason, lines) in &read.skipped {
        super::say(&format!("satune: {lines} line{} left out: {reason}", if *lines == 1 { "" } else { "s" }));
    }
    let found = calibrate(&gpu, &read.rows).map_err(|e| Failure::Nothing(format!("{path}: {e}")))?;
    let fitted = descriptor_text(&base, &found).map_err(|e| Failure::Internal(e.to_string()))?;
    let folder = match out.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let name = out.file_name().and_then(|n| n.to_str());
    let name = name.ok_or_else(|| input(format!("--out {} names no file", out.display())))?;
    explore::write_whole(folder, name, &fitted).map_err(|e| Failure::Environment(e.to_string()))?;
    if args.json {
        return print_json(&found);
    }
    print(&table(&found, out))
}

/// Longest search for the best of one row's space.
const LIMIT: Duration = Duration::from_secs(300);

/// `calibrate --published`.
fn judge(args: &Args) -> Outcome {
    let judging = published::Judging { known_only: args.known, limit: LIMIT };
    let told = |set: &str, row: &str| {
        if !args.known {
            super::say(&format!("satune: {set}: {row}"));
        }
        true
    };
    let verdicts = published::judge(judging, &told).map_err(|e| Failure::Internal(e.to_string()))?;
    if args.json {
        return print_json(&verdicts);
    }
    print(&verdicts.iter().map(verdict).collect::<String>())
}

/// A set: each row, then what they come to.
fn verdict(v: &Verdict) -> String {
    let mut text =
        format!("{} on {}\n{:>12} {:>12} {:>6}  bound by\n", v.set, v.gpu, "measured ms", "predicted ms", "ratio");
    for row in &v.rows {
        let mark = if row.holds() { "" } else { "  (not within its spread)" };
        text.push_str(&format!(
            "{:>12.4} {:>12.4} {:>6.2}  {:<14} {}{mark}\n",
            row.measured_ms,
            row.predicted_ms,
            row.ratio(),
            row.mechanism,
            row.name
        ));
    }
    let factor = |share: f64| format!("{share:.2}x");
    text.push_str(&format!("  error, geometric mean: {}; bias {}", factor(v.error), factor(v.bias)));
    if let Some(spearman) = v.spearman {
        text.push_str(&format!("; Spearman {spearman:.3}"));
    }
    let by: Vec<String> = v.by_mechanism.iter().map(|(name, error)| format!("{name} {}", factor(*error))).collect();
    text.push_str(&format!("\n  error by mechanism: {}\n", by.join(", ")));
    for (what, rows) in [("order", &v.out_of_order), ("gain over the one before", &v.wrong_gains)] {
        if !rows.is_empty() {
            text.push_str(&format!("  wrong {what}: {}\n", rows.join("; ")));
        }
    }
    text.push('\n');
    text
}

fn table(found: &Calibration, out: &Path) -> String {
    let mut text = format!(
        "{} measurements of {} shape{}{}\n",
        found.measurements,
        found.shapes,
        if found.shapes == 1 { "" } else { "s" },
        match found.infeasible {
            0 => String::new(),
            n => format!("; {n} more are of plans that this GPU cannot run, and were left out"),
        }
    );
    if let Some(clock) = &found.clock {
        text.push_str(&format!(
            "clock: {:.0} MHz was seen while measuring; the fit begins with that, and not with the descriptor's {:.0}\n",
            clock.seen, clock.before
        ));
    }
    text.push_str("scalar                     before      fitted  standard error\n");
    for s in &found.scalars {
        let after = if s.determined { format!("{:>11.3}", s.after) } else { format!("{:>11}", "kept") };
        let error = if s.determined {
            format!("{:.1}%", 100.0 * s.error)
        } else {
            "not determined by these measurements".into()
        };
        text.push_str(&format!("  {:<20} {:>10.3} {after}  {error}\n", s.name, s.before));
    }
    text.push_str("model           Spearman  Kendall  top-1 regret  top-8  top-16  median error  worst\n");
    text.push_str(&row("before", &found.before));
    text.push_str(&row("fitted", &found.after));
    match &found.left_out {
        Some(quality) => text.push_str(&row("left out", quality)),
        None => text.push_str("no shape was left out: there is one only, or too few measurements of the others\n"),
    }
    if !found.held_out.is_empty() {
        text.push_str("each shape with a fit to the others:\n");
        for h in &found.held_out {
            text.push_str(&row(&format!("{} ({})", h.shape, h.measurements), &h.quality));
        }
    }
    text.push_str(&format!("written to {}: use it as --gpu {}\n", out.display(), out.display()));
    text
}

fn row(name: &str, q: &Quality) -> String {
    let share = |v: Option<f64>| v.map_or("-".into(), |v| format!("{:.1}%", 100.0 * v));
    let number = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.3}"));
    // A long name has a line of its own.
    let name = if name.len() > 12 { format!("  {name}\n{:14}", "") } else { format!("  {name:<12}") };
    format!(
        "{name} {:>9} {:>8} {:>13} {:>6} {:>7} {:>13} {:>6}\n",
        number(q.spearman),
        number(q.kendall),
        share(q.regret_1),
        share(q.regret_8),
        share(q.regret_16),
        share(Some(q.median_error)),
        share(Some(q.worst_error))
    )
}
