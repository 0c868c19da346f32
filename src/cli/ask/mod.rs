//! `why-not`: what stands between a schedule and the top.
mod answer;
mod fixed;
mod legal;
mod parse;
#[cfg(test)]
mod tests;

use super::{print, print_json, problem, stored, Failure, Outcome, Target};
use crate::explore::Report;
use crate::operators::Problem;
use fixed::Fixed;
use satune_ir::term::{Plan, Schedule};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `why-not`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    target: Target,
    /// Questions, each what is fixed of a schedule: "block 128x128, k 8, registers 8x8, A k-major pad 4, split 1"
    #[arg(long_help = format!("Questions, each what is fixed of a schedule; the rest is free. Known: {}", parse::WORDS))]
    schedules: Vec<String>,
    /// A trace that `explore` wrote (NAME.trace.json beside its candidates.json)
    #[arg(long)]
    trace: Vec<PathBuf>,
    /// A schedule as JSON, every decision by its name (the `plan` of a candidate)
    #[arg(long)]
    plan: Vec<PathBuf>,
    /// Longest time to search for the best schedule of all, seconds
    #[arg(long, default_value_t = 60)]
    time_limit: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A question and where it came from.
struct Question {
    name: String,
    fixed: Fixed,
    /// Where every decision is given.
    plan: Option<Plan>,
}

/// Runs `why-not`.
pub(super) fn run(args: &Args) -> Outcome {
    let (problem, gpu) = problem(&args.target)?;
    let questions = questions(args, &problem)?;
    let mut asked = answer::Asked::new(&problem, &gpu, Duration::from_secs(args.time_limit));
    let mut answers = Vec::new();
    for question in &questions {
        let answer = asked.answer(question)?;
        if args.json {
            answers.push(answer);
            continue;
        }
        if questions.len() > 1 {
            print(&format!("{}:\n", question.name))?;
        }
        print(&answer.text())?;
    }
    if args.json {
        return print_json(&answers);
    }
    Ok(())
}

fn questions(args: &Args, problem: &Problem) -> Result<Vec<Question>, Failure> {
    let mut out = Vec::new();
    for text in &args.schedules {
        let fixed = parse::parse(text, &problem.contraction)
            .map_err(|e| Failure::Input(format!("schedule \"{}\": {e}", text.chars().take(80).collect::<String>())))?;
        out.push(Question { name: text.clone(), fixed, plan: None });
    }
    for (paths, read) in [(&args.plan, plan_file as fn(&Path) -> Result<Plan, Failure>), (&args.trace, traced_plan)] {
        for path in paths {
            let plan = read(path)?;
            out.push(Question { name: path.display().to_string(), fixed: Fixed::of(&plan), plan: Some(plan) });
        }
    }
    if out.is_empty() {
        return Err(Failure::Input("nothing is asked; name a schedule, --trace FILE or --plan FILE".into()));
    }
    Ok(out)
}

fn plan_file(path: &Path) -> Result<Plan, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::Input(format!("{}: {e}", path.display())))?;
    // Of another kind of schedule the error would be that of the plan that it is not.
    if let Ok(schedule) = serde_json::from_str::<Schedule>(&text) {
        return on_threads(path, &schedule);
    }
    serde_json::from_str(&text).map_err(|e| {
        Failure::Input(format!("{}: {e}; it is not the `plan` of a candidate in candidates.json", path.display()))
    })
}

/// The plan on single threads that is asked about.
fn on_threads(path: &Path, schedule: &Schedule) -> Result<Plan, Failure> {
    schedule.cores().cloned().ok_or_else(|| {
        Failure::Input(format!(
            "{}: the schedule uses tensor cores; why-not answers for schedules on single threads, `satune why ID` shows the parts of this one's time",
            path.display()
        ))
    })
}

/// The plan of a stored candidate, by its trace's file: a trace says what is done, not which decision each call is, so the
/// exploration that wrote it is asked.
fn traced_plan(path: &Path) -> Result<Plan, Failure> {
    let trace = std::fs::read_to_string(path).map_err(|e| Failure::Input(format!("{}: {e}", path.display())))?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let report: Report = stored::report(parent)?;
    let same = |file: &str| std::fs::read_to_string(parent.join(file)).is_ok_and(|t| t == trace);
    let found = report.candidates.iter().find(|c| same(&c.trace)).ok_or_else(|| {
        Failure::Input(format!(
            "{}: no candidate of {} has this trace; give its schedule with --plan",
            path.display(),
            parent.join("candidates.json").display()
        ))
    })?;
    on_threads(path, &found.plan)
}
