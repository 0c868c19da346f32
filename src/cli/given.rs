//! A schedule that is named, from wherever it is: `--given`, and the questions of `why-not` that are files.
use super::{ask, heron, Failure};
use crate::scheduled::{replayed, GivenSchedule};
use crate::source::Work;
use crate::workload::Workload;
use satune_extract::Descriptor;
use satune_ir::term::Schedule;
use satune_ir::{files, tvmscript, BufferId, Program};
use satune_rewrites::heron::{Record, Row};
use satune_rewrites::space::{read_plan, Fuel};
use satune_rewrites::{intrinsics, soundness, Trace};
use std::path::Path;
use std::time::Duration;

/// Puts the schedule that is named beside the best of a program: a file with one, or words that fix some of it. `(fuel, limit)`: of the
/// space that words are asked about.
///
/// # Errors
/// Where it is none of the program, with the reason.
pub(super) fn put_beside(
    named: &str,
    work: &mut Work,
    gpu: &Descriptor,
    limits: (Fuel, Duration),
) -> Result<(), Failure> {
    let failed = |e: String| Failure::Input(format!("--given {named}: {e}"));
    let written = match file_of(named).map_err(failed)? {
        Some(path) => Some(Written::read(path, work.workload()).map_err(failed)?),
        None => heron::rows(named).map_err(failed)?.map(Written::Rows),
    };
    let (given, note) = match written {
        None => (of_space(named, work, gpu, limits)?, None),
        Some(Written::Plan { text, .. }) => (of_space(&text, work, gpu, limits)?, None),
        Some(Written::Program(program)) => (of_program(work.workload(), *program).map_err(failed)?, None),
        Some(Written::Rows(records)) => {
            let (row, told) = heron::fastest(records).map_err(failed)?;
            of_row(&row, &told, work.workload())
        }
    };
    work.put_beside(given, note);
    Ok(())
}

/// What a row of Heron's is, and the shared memory of TVM's kernel.
fn of_row(row: &Row, said: &str, problem: &dyn Workload) -> (GivenSchedule, Option<String>) {
    match heron::scheduled(row, problem) {
        Ok(heron::Scheduled { program, told, .. }) => match of_program(problem, program) {
            Ok(given) => (given, Some(format!("the given {said}: {told}"))),
            Err(why) => (GivenSchedule::Refused(why), None),
        },
        Err(why) => (GivenSchedule::Refused(why), None),
    }
}

/// The file that a schedule is named by; none where it is said in words.
///
/// # Errors
/// Where it is named by a file that is not there. (`mma.sync` is a word.)
pub(super) fn file_of(named: &str) -> Result<Option<&Path>, String> {
    let path = Path::new(named);
    match path.is_file() {
        true => Ok(Some(path)),
        false if path.extension().is_some_and(|suffix| suffix == "json" || suffix == "py") => Err(
            "there is no such file; schedules are named by one, or in the words of why-not (`satune why-not --help`)"
                .into(),
        ),
        false => Ok(None),
    }
}

/// The plan of a scheduled program.
///
/// # Errors
/// Where it has none, with the reason.
pub(super) fn plan_of(program: &Program, problem: &dyn Workload) -> Result<Schedule, String> {
    match problem.contraction() {
        Some(contraction) => read_plan(program, problem.program(), contraction).map_err(|e| {
            format!("{e}; `satune explore --given` puts any scheduled program beside the best, and --plan asks about every decision")
        }),
        None => Err("it is a scheduled program whose decisions are not read back: those of products alone are. \
                     `satune explore --given` puts it beside the best, and --plan asks about every decision"
            .into()),
    }
}

/// A schedule as files have it.
pub(super) enum Written {
    /// The plan of a candidate, and the text of it.
    Plan { plan: Box<Schedule>, text: String },
    /// A scheduled program, or what a trace makes of the one that is scheduled.
    Program(Box<Program>),
    /// Rows of Heron's.
    Rows(Vec<Record>),
}

impl Written {
    /// # Errors
    /// Where a file has no schedule, with the reason.
    pub(super) fn read(path: &Path, problem: &dyn Workload) -> Result<Written, String> {
        let text = files::read_text(path, ask::LONGEST).map_err(|e| e.to_string())?;
        if text.lines().any(|line| line.starts_with("@T.prim_func")) {
            return Ok(Written::Program(Box::new(tvmscript::parse(&text).map_err(|e| e.to_string())?)));
        }
        if let Ok(plan) = ask::plan_of(&text) {
            return Ok(Written::Plan { plan: Box::new(plan), text });
        }
        // Last: names of a row's columns may stand in a program or a trace.
        let trace = match Trace::read(&text) {
            Ok(trace) => trace,
            Err(error) => {
                let rows = heron::rows(&text)?.map(Written::Rows);
                return rows.ok_or_else(|| format!("it is no plan, no trace and no row of Heron's: {error}"));
            }
        };
        // A candidate's is of the program that is explored.
        let program = replayed(problem.program(), &trace).or_else(|_| replayed(problem.source(), &trace));
        Ok(Written::Program(Box::new(program.map_err(|e| e.to_string())?)))
    }
}

/// The best schedule of the space that keeps to words, or the one that a plan is: whatever else a plan says, a member is legal.
fn of_space(words: &str, work: &Work, gpu: &Descriptor, limits: (Fuel, Duration)) -> Result<GivenSchedule, Failure> {
    Ok(match ask::named(words, work, gpu, limits)? {
        Ok(plan) => GivenSchedule::Plan(Box::new(plan)),
        Err(why) => GivenSchedule::Refused(why),
    })
}

/// A schedule of the program as it was given, or of the one that is explored for it: what it accesses is in an order that this one
/// allows. What it computes is compared where it is executed.
fn of_program(problem: &dyn Workload, program: Program) -> Result<GivenSchedule, String> {
    let buffers = |p: &Program| -> Vec<String> {
        let told = |id: &BufferId| {
            let buffer = p.buffer(*id);
            let extents: Vec<String> = buffer.extents().unwrap_or_default().iter().map(i64::to_string).collect();
            format!("{} of {}", buffer.dtype.name(), extents.join("x"))
        };
        p.params.iter().map(told).collect()
    };
    let own = buffers(&program);
    let sources: Vec<&Program> =
        [problem.source(), problem.program()].into_iter().filter(|source| buffers(source) == own).collect();
    if sources.is_empty() {
        let [own, asked] = [own, buffers(problem.source())].map(|list| list.join(", "));
        return Err(format!("its parameters are {own}; those of {} are {asked}", problem.name()));
    }
    // Compared with the plan's, call by call.
    if let Ok(plan) = plan_of(&program, problem) {
        return Ok(GivenSchedule::Plan(Box::new(plan)));
    }
    let described = intrinsics::described(&program);
    let mut verdicts = sources.into_iter().map(|source| soundness::check(source, &described));
    let first = verdicts.next().unwrap_or(Ok(()));
    first
        .or_else(|why| verdicts.next().and_then(Result::ok).ok_or(why))
        .map_err(|e| format!("it is no schedule of {}: {}", problem.name(), e.detail))?;
    Ok(GivenSchedule::Program(Box::new(program)))
}
