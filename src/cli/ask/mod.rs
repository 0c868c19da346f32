//! `why-not`: what stands between a schedule and the top.
mod answer;
mod contraction;
mod cores;
mod decisions;
mod elsewhere;
mod fixed;
mod parse;
mod sensitivity;
mod stream;
mod tensor;
#[cfg(test)]
mod tests;
mod words;

use super::given::Written;
use super::{given, heron, print, print_json, stored, work, Failure, Outcome, Size, Target};
use crate::explore::Report;
use crate::nvmmh::{self, Beside, Choice, NvmmhError};
use crate::published;
use crate::sensitivity::{Mark, Sensitivity};
use crate::source::{self, Work};
use crate::workload::{Explorable, Workload};
use satune_extract::{Descriptor, Searched};
use satune_ir::files;
use satune_ir::term::tensor::Gemm;
use satune_ir::term::{Contraction, CoresPlan, Schedule, Space};
use satune_rewrites::heron::Record;
use satune_rewrites::space::Fuel;
use satune_rewrites::Trace;
use sensitivity::Marked;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `why-not`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    target: Target,
    /// Questions, each what is fixed of a schedule: "block 128x128, k 8, registers 8x8, A k-major pad 4, split 1", or a plan as JSON,
    /// or a file with a plan or a product that is scheduled, or rows of Heron's table
    #[arg(long_help = format!("Questions, each what is fixed of a schedule, or the `plan` of a candidate as JSON; the rest is free. A file may hold a plan, or a product that is scheduled: a PrimFunc or a trace. A row of Heron's table (37 numbers, or names with values) is a question, too; of its log, or of a table with a row a line, each is. Known of products: {}. On tensor cores: {}. Known of streaming programs: {}", parse::WORDS, tensor::WORDS, stream::WORDS))]
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
struct Question<F> {
    name: String,
    fixed: F,
    /// Where every decision is given.
    plan: Option<Schedule>,
    /// Why it is no schedule, where that is known before a space is asked.
    refused: Option<String>,
    /// What there is to say where the space has none.
    otherwise: Option<String>,
}

impl<F> Question<F> {
    /// A question of which no more is known.
    fn new(name: String, fixed: F, plan: Option<Schedule>) -> Question<F> {
        Question { name, fixed, plan, refused: None, otherwise: None }
    }
}

/// What a question fixes of a schedule.
trait Fixes: Clone + PartialEq {
    /// The language of the schedules.
    type Term: Searched;

    /// Questions whose answers together are this one's, and do not overlap.
    fn variants(&self) -> Vec<Self> {
        vec![self.clone()]
    }

    /// Whether a program with this node can keep to what is fixed.
    fn keeps(&self, space: &Space<Self::Term>, class: egg::Id, node: &Self::Term) -> bool;

    /// The question with one decision left free, for each decision.
    fn freer(&self) -> Vec<(String, Self)>;

    /// Each decision that is fixed, and the question that fixes it alone.
    fn decisions(&self) -> Vec<(String, Self)>;

    /// The question in the words that it is read from.
    fn words(&self) -> String;

    /// Each decision that is fixed, and its value in words.
    fn told(&self) -> Vec<(String, String)> {
        self.decisions().into_iter().map(|(name, alone)| (name, alone.words())).collect()
    }
}

/// A problem that questions are asked about.
trait Askable: Explorable {
    /// What a question fixes.
    type Fixed: Fixes<Term = Self::Term>;

    /// Reads a question.
    ///
    /// # Errors
    /// Says which word is not understood.
    fn question(&self, text: &str) -> Result<Self::Fixed, String>;

    /// The question that fixes every decision of a schedule.
    ///
    /// # Errors
    /// When the schedule is of another kind.
    fn fixed_of(&self, plan: &Schedule) -> Result<Self::Fixed, String>;

    /// Decisions that no menu offers.
    fn outside(&self, fixed: &Self::Fixed, gpu: &Descriptor) -> Vec<String>;

    /// Conditions of the rules that what is fixed breaks, with their numbers.
    fn broken(&self, fixed: &Self::Fixed, gpu: &Descriptor) -> Vec<String>;

    /// Where a whole schedule is not in the space.
    fn missing(&self, space: &Space<Self::Term>, plan: &Schedule) -> Option<String>;
}

/// Whether to ask what decisions are worth, and beside what.
#[derive(clap::Args)]
pub(super) struct Worth {
    /// Also what each decision is worth (the exact best of the space when it takes another value), and where the schedule
    /// stands among 10,000 that are drawn evenly
    #[arg(long)]
    sensitivity: bool,
    /// Mark the best of certain schedules among those: what is fixed in the words of why-not ("block 128x128, k 8"), or
    /// nvmmh, the first choice of NVIDIA's nvMatmulHeuristics (scripts/fetch-nvmmh)
    #[arg(long, requires = "sensitivity", value_name = "SCHEDULE")]
    mark: Vec<String>,
    #[command(flatten)]
    size: Size,
    /// Longest time for one of those searches, seconds
    #[arg(long, default_value_t = 10, requires = "sensitivity")]
    time_limit: u64,
}

impl Worth {
    /// What the decisions of a schedule of an exploration are worth, where that is asked.
    pub fn of(&self, report: &Report, gpu: &Descriptor, plan: &Schedule) -> Result<Option<Sensitivity>, Failure> {
        if !self.sensitivity {
            return Ok(None);
        }
        let work = &source::work_of_script(&report.operator, &report.program)?;
        let marked = |name: &String| match name.as_str() {
            "nvmmh" => {
                let words =
                    heuristic("--mark nvmmh", &[work], gpu)?.iter().map(|choice| choice.question(gpu)).collect();
                Ok(Marked { name: "nvMatmulHeuristics".into(), words })
            }
            words => Ok(Marked { name: words.into(), words: words.into() }),
        };
        let marks = self.mark.iter().map(marked).collect::<Result<Vec<_>, Failure>>()?;
        let asked = (marks.as_slice(), Duration::from_secs(self.time_limit));
        let fuel = self.size.fuel();
        let found = match work {
            Work::Contraction(problem) => {
                sensitivity::sensitivity(&**problem, &problem.space_while(gpu, fuel, &|_| true)?, gpu, plan, asked)
            }
            Work::Streams(problem) => {
                sensitivity::sensitivity(&**problem, &problem.space_while(gpu, fuel, &|_| true)?, gpu, plan, asked)
            }
        };
        let mut found = found.map_err(Failure::Input)?;
        found.marks.extend(library(work, gpu, plan));
        Ok(Some(found))
    }
}

/// Where the library stands beside a schedule of a contraction, by its published time.
fn library(work: &Work, gpu: &Descriptor, plan: &Schedule) -> Option<Mark> {
    let Work::Contraction(problem) = work else { return None };
    let cost = problem.predict(plan, gpu).ok()?;
    let known = published::library(problem.name(), gpu);
    let name = known.as_ref().map_or_else(|| "cuBLAS".into(), |known| format!("{}, measured, published", known.0));
    let ratio = known.map(|(_, ms)| (ms + cost.launch_ms()) / cost.ms);
    let absent =
        ratio.is_none().then(|| format!("no time of this product on {} is among the published ones", gpu.name));
    Some(Mark { name, ratio, proved: true, absent })
}

/// Decisions in which schedules of a program differ, each with its values in the order of their coming.
pub(super) fn differences(work: &Work, plans: &[&Schedule]) -> Vec<(String, Vec<String>)> {
    fn of<W: Askable>(problem: &W, plans: &[&Schedule]) -> Vec<(String, Vec<String>)> {
        let mut all: Vec<(String, Vec<String>)> = Vec::new();
        for fixed in plans.iter().filter_map(|plan| problem.fixed_of(plan).ok()) {
            for (name, value) in fixed.told() {
                match all.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, values)) if values.contains(&value) => {}
                    Some((_, values)) => values.push(value),
                    None => all.push((name, vec![value])),
                }
            }
        }
        all.retain(|(_, values)| values.len() > 1);
        all
    }
    match work {
        Work::Contraction(problem) => of(&**problem, plans),
        Work::Streams(problem) => of(&**problem, plans),
    }
}

/// Whether nvMatmulHeuristics may know a program: whether it is a product on tensor cores.
pub(super) fn is_product(work: &Work) -> bool {
    let is_one = |c: &Contraction| c.gather.is_none() && Gemm::of(c).is_ok();
    matches!(work, Work::Contraction(problem) if is_one(&problem.contraction))
}

/// How a command is told to put nvMatmulHeuristics beside what it finds.
pub(super) const VS: &str = "--vs nvmmh";

/// A product's first choices by nvMatmulHeuristics, in the order of the products. `option`: what asked for it.
pub(super) fn heuristic(option: &str, works: &[&Work], gpu: &Descriptor) -> Result<Vec<Choice>, Failure> {
    let gemm = |work: &&Work| match work {
        Work::Contraction(problem) if problem.contraction.gather.is_some() => {
            Err(NvmmhError::Product("its matrices are gathered (a convolution)".into()))
        }
        Work::Contraction(problem) => Gemm::of(&problem.contraction).map_err(|e| NvmmhError::Product(e.to_string())),
        Work::Streams(_) => Err(NvmmhError::Product("this program is none".into())),
    };
    let gemms = works.iter().map(gemm).collect::<Result<Vec<_>, _>>();
    gemms.and_then(|gemms| nvmmh::choices(gpu, &gemms)).map_err(|e| Failure::Input(format!("{option}: {e}")))
}

/// Where its choice stands in the space of at most so many nodes.
pub(super) fn beside(
    work: &Work,
    gpu: &Descriptor,
    choice: &Choice,
    (fuel, limit): (Fuel, Duration),
) -> Result<Beside, Failure> {
    let Work::Contraction(problem) = work else {
        let none = NvmmhError::Product("this program is none".into());
        return Err(Failure::Input(format!("{VS}: {none}")));
    };
    let name = choice.question(gpu);
    let fixed = problem.question(&name).map_err(Failure::Internal)?;
    let mut asked = answer::Asked::new(&**problem, gpu, limit, fuel);
    Ok(asked.answer(&Question::new(name, fixed, None))?.beside(choice))
}

/// The best schedule of a program that keeps to what words fix, in a space of at most so many nodes; why there is none.
pub(super) fn named(
    words: &str,
    work: &Work,
    gpu: &Descriptor,
    limits: (Fuel, Duration),
) -> Result<Result<Schedule, String>, Failure> {
    fn of<W: Askable>(
        problem: &W,
        words: &str,
        gpu: &Descriptor,
        (fuel, limit): (Fuel, Duration),
    ) -> Result<Result<Schedule, String>, Failure> {
        let mut asked = answer::Asked::new(problem, gpu, limit, fuel);
        let mut answers = Vec::new();
        for question in questions_of(words, problem)? {
            answers.push(asked.answer(&question)?);
        }
        Ok(answer::best(answers))
    }
    match work {
        Work::Contraction(problem) => of(&**problem, words, gpu, limits),
        Work::Streams(problem) => of(&**problem, words, gpu, limits),
    }
}

/// Runs `why-not`.
pub(super) fn run(args: &Args) -> Outcome {
    let (work, gpu) = work(&args.target)?;
    match &work {
        Work::Contraction(problem) => ask(args, &**problem, &gpu),
        Work::Streams(problem) => ask(args, &**problem, &gpu),
    }
}

fn ask<W: Askable>(args: &Args, problem: &W, gpu: &Descriptor) -> Outcome {
    let questions = questions(args, problem)?;
    let mut asked = answer::Asked::new(problem, gpu, Duration::from_secs(args.time_limit), args.target.size.fuel());
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

fn questions<W: Askable>(args: &Args, problem: &W) -> Result<Vec<Question<W::Fixed>>, Failure> {
    let mut out = Vec::new();
    for text in &args.schedules {
        let wrong = |e: String| Failure::Input(format!("{text}: {e}"));
        match given::file_of(text).map_err(wrong)? {
            Some(path) => match Written::read(path, problem).map_err(wrong)? {
                Written::Plan { plan, .. } => out.push(of_plan(path, *plan, problem)?),
                Written::Program(program) => {
                    out.push(of_plan(path, given::plan_of(&program, problem).map_err(wrong)?, problem)?);
                }
                Written::Rows(records) => out.extend(of_rows(&records, problem)?),
            },
            None => match heron::rows(text).map_err(wrong)? {
                Some(records) => out.extend(of_rows(&records, problem)?),
                None => out.extend(questions_of(text, problem)?),
            },
        }
    }
    let traced = |path: &Path| traced_plan(path, problem);
    type Reader<'a> = &'a dyn Fn(&Path) -> Result<Schedule, Failure>;
    for (paths, read) in [(&args.plan, &plan_file as Reader), (&args.trace, &traced)] {
        for path in paths {
            out.push(of_plan(path, read(path)?, problem)?);
        }
    }
    if out.is_empty() {
        return Err(Failure::Input("nothing is asked; name a schedule, --trace FILE or --plan FILE".into()));
    }
    Ok(out)
}

/// The question that a plan from a file is.
fn of_plan<W: Askable>(path: &Path, plan: Schedule, problem: &W) -> Result<Question<W::Fixed>, Failure> {
    let name = path.display().to_string();
    let fixed = problem.fixed_of(&plan).map_err(|e| Failure::Input(format!("{name}: {e}")))?;
    Ok(Question::new(name, fixed, Some(plan)))
}

/// The questions that rows of Heron's are.
fn of_rows<W: Askable>(records: &[Record], problem: &W) -> Result<Vec<Question<W::Fixed>>, Failure> {
    records.iter().map(|record| of_row(record, records.len(), problem)).collect()
}

/// The question that a row of Heron's is, one of so many: whether it is a schedule, whether TVM's kernel has the shared memory for it, and where what it
/// fixes stands here.
fn of_row<W: Askable>(record: &Record, of: usize, problem: &W) -> Result<Question<W::Fixed>, Failure> {
    let builds = "the row itself is a schedule of the program, which `satune explore --given` builds";
    let (words, refused, otherwise) = match heron::scheduled(&record.row, problem) {
        Ok(found) if found.fits => (found.words, None, Some(format!("{builds}; {}", found.told))),
        Ok(found) => (found.words, Some(found.told), Some(format!("{builds}, with less shared memory"))),
        // Only products are asked about instructions.
        Err(why) if problem.contraction().is_none() => return Err(Failure::Input(why)),
        Err(why) => ("wmma".into(), Some(why), None),
    };
    let fixed = problem.question(&words).map_err(|e| Failure::Input(format!("a row of Heron's: {e}")))?;
    let name = format!("a row of Heron's{}: {words}", heron::said_of(record, of));
    Ok(Question { refused, otherwise, ..Question::new(name, fixed, None) })
}

/// The questions that a text is: one in words, or as the plan of a candidate; several in the words of others.
fn questions_of<W: Askable>(text: &str, problem: &W) -> Result<Vec<Question<W::Fixed>>, Failure> {
    match elsewhere::questions(text) {
        Some(questions) => questions.iter().map(|words| question(words, problem)).collect(),
        None => Ok(vec![question(text, problem)?]),
    }
}

/// A question in words, or as the plan of a candidate.
fn question<W: Askable>(text: &str, problem: &W) -> Result<Question<W::Fixed>, Failure> {
    let name = text.chars().take(80).collect::<String>();
    let named = |e: String| Failure::Input(format!("schedule \"{name}\": {e}"));
    let plan = text.trim_start().starts_with('{').then(|| plan_of(text)).transpose().map_err(named)?;
    let fixed = plan.as_ref().map_or_else(|| problem.question(text), |plan| problem.fixed_of(plan)).map_err(named)?;
    let name = if plan.is_some() { name } else { text.to_string() };
    Ok(Question::new(name, fixed, plan))
}

/// Largest file of a plan or a trace, bytes.
pub(super) const LONGEST: u64 = 16 << 20;

fn plan_file(path: &Path) -> Result<Schedule, Failure> {
    let named = |e: String| Failure::Input(format!("{}: {e}", path.display()));
    let text = files::read_text(path, LONGEST).map_err(|e| named(e.to_string()))?;
    plan_of(&text).map_err(named)
}

pub(super) fn plan_of(text: &str) -> Result<Schedule, String> {
    // Of no kind: the error that names a field is that of a plan on single threads.
    serde_json::from_str::<Schedule>(text)
        .or_else(|_| serde_json::from_str::<CoresPlan>(text).map(Schedule::Cores))
        .map_err(|e| format!("{e}; it is not the `plan` of a candidate in candidates.json"))
}

/// The plan of a stored candidate, by its trace's file: a trace says what is done, not which decision each call is, so the
/// exploration that wrote it is asked.
fn traced_plan<W: Explorable>(path: &Path, problem: &W) -> Result<Schedule, Failure> {
    let trace = files::read_text(path, LONGEST).map_err(|e| Failure::Input(format!("{}: {e}", path.display())))?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let report: Report = stored::report(parent)?;
    let same = |file: &str| files::read_text(&parent.join(file), LONGEST).is_ok_and(|t| t == trace);
    let found = report.candidates.iter().find(|c| same(&c.trace)).ok_or_else(|| {
        Failure::Input(format!(
            "{}: no candidate of {} has this trace; give its schedule with --plan",
            path.display(),
            parent.join("candidates.json").display()
        ))
    })?;
    let named = |e: String| Failure::Input(format!("{}: {e}", path.display()));
    let read = Trace::read(&trace).map_err(|e| named(e.to_string()))?;
    match read.calls == problem.trace(&found.plan).calls {
        true => Ok(found.plan.clone()),
        false => Err(named(format!(
            "its calls are not those of candidate {} of this program; `satune replay` makes them, and --plan asks for a schedule",
            found.id
        ))),
    }
}
