//! What a command is asked to work on: an operator by name, or a PrimFunc in a file.
use crate::execute::difference;
use crate::explore::{self, ExploreError, Report, Request, Search};
use crate::operators::{self, Operator, OperatorError, Problem, MOST};
use crate::progress::Progress;
use crate::reference::Plain;
use crate::scheduled::GivenSchedule;
use crate::streaming::{self, NotStreaming, StreamProblem};
use crate::workload::{Asked, Workload};
use satune_ir::term::stream::StreamBlock;
use satune_ir::term::Axis;
use satune_ir::tvmscript::{self, ParseError};
use satune_ir::{files, visit, BufferId, ForKind, Program, Stmt};
use satune_rewrites::intrinsics::described;
use satune_rewrites::space::stream::contractions;
use satune_rewrites::space::{
    contraction, explored, not_told, of_bare_loops, on_tensor_cores, scans, sums_products_apart, EncodeError,
};
use satune_rewrites::tree::has_blocks;
use satune_rewrites::{soundness, ScheduleError};
use std::path::Path;

/// Why there is no problem to work on.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The text names no operator.
    #[error(transparent)]
    Operator(#[from] OperatorError),
    /// The file cannot be read.
    #[error("{path}: {error}")]
    File {
        /// As asked.
        path: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// More blocks than are explored.
    #[error("{path}: the program has {blocks} blocks; at most {most} are explored: give a part of it", most = MOST_BLOCKS)]
    Blocks {
        /// As asked.
        path: String,
        /// How many.
        blocks: usize,
    },
    /// The file is no program.
    #[error("{}", rendered(.0))]
    Parse(Box<ParseError>),
    /// The program accesses what is not there, or reads what nothing has written.
    #[error("{path}: the program is wrong before anything is scheduled: {reason}")]
    Unsound {
        /// As asked.
        path: String,
        /// What was found.
        reason: String,
    },
    /// The program cannot be explored.
    #[error("{path}: {error}")]
    Encode {
        /// As asked.
        path: String,
        /// What does not fit.
        error: EncodeError,
    },
    /// The program is neither a contraction nor a sequence of streaming blocks.
    #[error("{path}: as a contraction: {contraction}\n  as streaming blocks: {streaming}")]
    Neither {
        /// As asked.
        path: String,
        /// Why it is no contraction.
        contraction: EncodeError,
        /// Why it does not stream.
        streaming: NotStreaming,
    },
    /// The program is scheduled, and leads to none that could be explored.
    #[error(
        "{path}: the program is scheduled, and which program it schedules cannot be told: {reason}; `satune explore PROGRAM --given \
         {path}` judges it beside the program that it is to schedule"
    )]
    Scheduled {
        /// As asked.
        path: String,
        /// What is in the way.
        reason: String,
    },
    /// A matrix is too large.
    #[error("{path}: {reason}; give smaller extents")]
    Elements {
        /// As asked.
        path: String,
        /// Which, and how large.
        reason: String,
    },
    /// An axis is too long.
    #[error("{path}: axis {axis} has {extent} iterations; at most {most} are explored", most = MOST)]
    Extent {
        /// As asked.
        path: String,
        /// Name of the iterator.
        axis: String,
        /// Its extent.
        extent: i64,
    },
}

/// Longest file, bytes: what the reader of programs takes.
const LONGEST: u64 = 4 << 20;

/// Most blocks of a program that is explored: what is asked of each pair of them is then asked some ten thousand times.
const MOST_BLOCKS: usize = 128;

/// What can be explored.
#[derive(Clone, Debug)]
pub enum Work {
    /// A sum of products, or what else is combined of two operands.
    Contraction(Box<Problem>),
    /// Streaming blocks.
    Streams(Box<StreamProblem>),
}

impl Work {
    /// What is asked of a problem of any kind.
    pub fn workload(&self) -> &dyn Workload {
        match self {
            Work::Contraction(problem) => &**problem,
            Work::Streams(problem) => &**problem,
        }
    }

    /// Puts a schedule beside the best, with what there is to say of it.
    pub fn put_beside(&mut self, schedule: GivenSchedule, note: Option<String>) {
        let asked = self.asked();
        asked.notes.extend(note);
        asked.given = Some(schedule);
    }

    fn asked(&mut self) -> &mut Asked {
        match self {
            Work::Contraction(problem) => &mut problem.asked,
            Work::Streams(problem) => &mut problem.asked,
        }
    }

    /// [`explore::explore_on`].
    ///
    /// # Errors
    /// See [`ExploreError`].
    pub fn explore_on(
        &self,
        request: &Request,
        search: Option<Search<'_>>,
        progress: &dyn Progress,
    ) -> Result<Report, ExploreError> {
        match self {
            Work::Contraction(problem) => explore::explore_on(&**problem, request, search, progress),
            Work::Streams(problem) => explore::explore_on(&**problem, request, search, progress),
        }
    }
}

/// Whether a text is an operator, of which a store need not keep the program.
pub fn is_operator(text: &str) -> bool {
    let text = &operators::canonical(text);
    if streaming::names(text) {
        streaming::script(text).is_ok()
    } else {
        operators::read(text).is_ok()
    }
}

/// An operator (`gemm:M,N,K,dtype`), or the path of a file with a PrimFunc; `file.py::name(n=128)` chooses one of several
/// functions, and gives its scalars values.
///
/// # Errors
/// See [`SourceError`].
pub fn load_work(text: &str) -> Result<Work, SourceError> {
    load_text(text).map(|(work, _)| work)
}

/// [`load_work`], and the text that was read: the file's, or an operator's TVMScript.
///
/// # Errors
/// See [`SourceError`].
pub fn load_text(name: &str) -> Result<(Work, String), SourceError> {
    let path = Path::new(tvmscript::file_of(name));
    if is_file(path) {
        let text = read(path)?;
        return Ok((work_of_script(name, &text)?, text));
    }
    let work = operator(name)?;
    let script = work.workload().script().to_string();
    Ok((work, script))
}

/// Whether a name is that of a file, not of an operator.
fn is_file(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "py") || path.exists()
}

/// An operator of any kind.
///
/// # Errors
/// See [`OperatorError`].
pub fn operator(text: &str) -> Result<Work, OperatorError> {
    let text = &operators::canonical(text);
    Ok(match streaming::names(text) {
        true => Work::Streams(Box::new(StreamProblem::operator(text)?)),
        false => match operators::read(text)? {
            Operator::Product(problem) => Work::Contraction(problem),
            Operator::Program { program, why } => {
                let streams = streams(text, *program, &why).map_err(|streaming| OperatorError {
                    text: text.clone(),
                    reason: format!("{why}\n  as streaming blocks: {streaming}"),
                    remedy: "give other extents".into(),
                })?;
                Work::Streams(Box::new(streams))
            }
        },
    })
}

/// [`of_script`], for programs of any kind. An operator's own script is that operator, which may allow what no script says: f32
/// operands rounded to tf32.
///
/// # Errors
/// See [`SourceError`].
pub fn work_of_script(name: &str, text: &str) -> Result<Work, SourceError> {
    if let Some(work) = operator(name).ok().filter(|work| work.workload().script() == text) {
        return Ok(work);
    }
    let given = sound_program(name, text)?;
    match on_tensor_cores(&given).then(|| operators::of_scheduled(&given)).flatten() {
        Some(problem) => Ok(Work::Contraction(Box::new(problem))),
        None => work_of(name, given, &explored),
    }
}

/// What is explored for a program is made by `equations`.
fn work_of(name: &str, given: Program, equations: &dyn Fn(&Program) -> Program) -> Result<Work, SourceError> {
    let Checked { program, note, given: beside } = checked(given.clone(), equations);
    let mut work = kind_of(name, program).map_err(|error| undone(error, name, &given))?;
    let same = *work.workload().program() == given;
    let asked = work.asked();
    asked.notes.extend(note);
    asked.given = beside.map(GivenSchedule::Program);
    asked.source = (!same).then(|| Box::new(given));
    Ok(work)
}

/// The error where a program is scheduled and is of no kind: what is wrong with the schedule.
fn undone(error: SourceError, name: &str, given: &Program) -> SourceError {
    if !matches!(error, SourceError::Neither { streaming: NotStreaming::Blocks(_), .. }) || !is_scheduled(given) {
        return error;
    }
    let unsound = soundness::readable(&described(given)).err().map(|e| e.detail.clone());
    match unsound.or_else(|| not_told(given)) {
        Some(reason) => SourceError::Scheduled { path: name.into(), reason },
        None => error,
    }
}

/// The kind of problem that a program is.
fn kind_of(name: &str, program: Program) -> Result<Work, SourceError> {
    let error = match of_program(name, program.clone()) {
        Ok(problem) => {
            // Blocks before a product of matrices may be kernels of their own: what they make is then a matrix, too.
            let parts = || contractions(&program).iter().any(|t| t.from > 0 && t.contraction.gather.is_none());
            let made = problem.contraction.computes_operands() || parts();
            let parted = made.then(|| StreamProblem::of_program(name, program).ok()).flatten();
            return Ok(match parted {
                Some(parted) => Work::Streams(Box::new(parted)),
                None => Work::Contraction(Box::new(problem)),
            });
        }
        Err(SourceError::Encode { error, .. }) => error,
        Err(other) => return Err(other),
    };
    match streams(name, program, &error) {
        Ok(problem) => Ok(Work::Streams(Box::new(problem))),
        Err(streaming) => Err(SourceError::Neither { path: name.into(), contraction: error, streaming }),
    }
}

/// What is explored for a program.
struct Checked {
    program: Program,
    note: Option<String>,
    /// The given one, where it is scheduled and what is explored is not.
    given: Option<Box<Program>>,
}

/// What equations make of a program. Where that does not compute what was given it is none to explore: then the given one is, and a
/// note says so.
fn checked(given: Program, equations: &dyn Fn(&Program) -> Program) -> Checked {
    let made = equations(&given);
    let wrong = if made == given { None } else { difference(&made, &given) };
    match wrong {
        None => {
            let (bare, scanned) = (of_bare_loops(&given), scans(&given));
            let undone = bare.is_none() && !scanned && is_scheduled(&given) && !is_scheduled(&made);
            let loops = "its loops are those of blocks, which run in any order: what they add up is not added up in their order";
            let schedule = "the program is scheduled already: explored is the program that it schedules";
            let sums = "its scans are explored as sums of parts: what they add up is not added up in their order";
            let products =
                "its sums of several products are explored as a sum of each: what they add up is not added up in their order";
            let note = scanned.then_some(sums).or(bare.unwrap_or_default().then_some(loops));
            let note = note.or(undone.then_some(schedule)).or(sums_products_apart(&given).then_some(products));
            Checked { program: made, note: note.map(String::from), given: undone.then(|| Box::new(given)) }
        }
        Some(wrong) => {
            let note = format!(
                "a bug: the form in which this program would be explored computes something else ({wrong}); it is explored as it \
                 is given, and schedules that the other form has are not among these"
            );
            Checked { program: given, note: Some(note), given: None }
        }
    }
}

/// Whether a program has loops that are no serial ones, buffers that are not in global memory, or blocks in blocks.
fn is_scheduled(program: &Program) -> bool {
    let away = |b: &BufferId| program.buffer(*b).scope != "global";
    let mut found = program.body.block.alloc_buffers.iter().any(away);
    visit::walk_stmt(&program.body.block.body, &mut |s| {
        found |= match s {
            Stmt::For(l) => l.kind != ForKind::Serial,
            Stmt::Realize(r) => r.block.alloc_buffers.iter().any(away) || has_blocks(&r.block.body),
            _ => false,
        };
    });
    found
}

/// A program that is no contraction; where plain kernels run its one sum, a note says why it is none.
fn streams(name: &str, program: Program, why: &EncodeError) -> Result<StreamProblem, NotStreaming> {
    let mut problem = StreamProblem::of_program(name, program)?;
    let reduces = |b: &&StreamBlock| b.iters.iter().any(|i| i.reduce);
    let mut sums = problem.streams.whole().blocks.iter().filter(reduces);
    let one = sums.next().filter(|_| sums.next().is_none()).map(|b| b.name.as_str());
    if problem.streams.left_plain().any(|(block, _)| one == Some(block)) {
        problem.asked.notes.push(match why {
            EncodeError::Convolution { reason, .. } => format!("as a convolution: {reason}"),
            why => format!("as a contraction: {why}"),
        });
    }
    Ok(problem)
}

/// Reads a file that must not be larger than a program can be.
///
/// # Errors
/// What the system says, the size, or that it is no regular file.
pub fn read(path: &Path) -> Result<String, SourceError> {
    files::read_text(path, LONGEST).map_err(|error| SourceError::File { path: path.display().to_string(), error })
}

/// A problem from the text of a PrimFunc; `name` is for errors and reports.
///
/// # Errors
/// When the text is no program, or one that the explorer does not take.
pub fn of_script(name: &str, text: &str) -> Result<Problem, SourceError> {
    let Checked { program, note, given } = checked(sound_program(name, text)?, &explored);
    let mut problem = of_program(name, program)?;
    problem.asked.notes.extend(note);
    problem.asked.given = given.map(GivenSchedule::Program);
    Ok(problem)
}

/// Reads a program. What it accesses outside of its buffers, or reads unwritten, no schedule of it would.
fn sound_program(name: &str, text: &str) -> Result<Program, SourceError> {
    let program = tvmscript::parse_named(name, text).map_err(SourceError::Parse)?;
    // One of them is the root.
    let blocks = program.next_block.saturating_sub(1) as usize;
    if blocks > MOST_BLOCKS {
        return Err(SourceError::Blocks { path: name.into(), blocks });
    }
    let unsound = |e: ScheduleError| SourceError::Unsound { path: name.into(), reason: e.detail.clone() };
    soundness::readable(&program).map_err(unsound)?;
    Ok(program)
}

/// The shapes that parameters were given, where the program that is explored has other ones over the same memory; else none.
pub fn given_shapes(problem: &dyn Workload) -> Vec<Vec<i64>> {
    let (given, explored) = (problem.source(), problem.program());
    let all = |program: &Program| -> Option<Vec<Vec<i64>>> {
        program.params.iter().map(|id| program.buffer(*id).extents()).collect()
    };
    let (Some(mut shapes), Some(now)) = (all(given), all(explored)) else { return Vec::new() };
    if shapes.len() != now.len() {
        return Vec::new();
    }
    for ((shape, now), id) in shapes.iter_mut().zip(&now).zip(&given.params) {
        // What has strides of its own lies otherwise in memory.
        if !given.buffer(*id).strides.is_empty() || shape.iter().product::<i64>() != now.iter().product::<i64>() {
            shape.clone_from(now);
        }
    }
    if shapes == now {
        shapes.clear();
    }
    shapes
}

fn of_program(name: &str, program: Program) -> Result<Problem, SourceError> {
    let contraction = contraction(&program).map_err(|error| SourceError::Encode { path: name.into(), error })?;
    let long = contraction.iters.iter().find(|(axis, i)| i.extent > MOST && !matches!(axis, Axis::Batch(_)));
    if let Some((_, info)) = long {
        return Err(SourceError::Extent { path: name.into(), axis: info.name.clone(), extent: info.extent });
    }
    if let Some(reason) = operators::oversized(&contraction) {
        return Err(SourceError::Elements { path: name.into(), reason });
    }
    if contraction.combine.is_some() || contraction.epilogue.is_some() {
        // Products have kernels; whether an expression has any, the lowering says.
        Plain::of(&program).map_err(|error| {
            let block = contraction.block_name.clone();
            let reason = format!("no kernel computes it ({error})");
            SourceError::Encode { path: name.into(), error: EncodeError::NotContraction { block, reason } }
        })?;
    }
    let script = tvmscript::print(&program);
    Ok(Problem { name: name.into(), script, program, contraction, tf32: false, asked: Asked::default() })
}

/// The error with the line and what would make it right.
pub fn rendered(error: &ParseError) -> String {
    let mut out = error.to_string();
    out.push_str(&format!("\n  {:>5} | {}", error.line, clip(&error.source_line)));
    if let Some(help) = &error.help {
        out.push_str(&format!("\n  help: {help}"));
    }
    out
}

/// The beginning of a line that may be very long.
fn clip(text: &str) -> String {
    match text.char_indices().nth(160) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRODUCT: &str = r#"
@T.prim_func(s_tir=True)
def main(A: T.Buffer((48, 32), "float32"), B: T.Buffer((32, 40), "float32"), C: T.Buffer((48, 40), "float32")):
    for i, j, k in T.grid(48, 40, 32):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"#;
    const MAP: &str = r#"
@T.prim_func(s_tir=True)
def main(A: T.Buffer((48, 32), "float32"), B: T.Buffer((48, 32), "float32")):
    for i, j in T.grid(48, 32):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
"#;

    /// An equation that is wrong, as none is that is known, is not used, and the report says so.
    #[test]
    fn a_form_that_computes_something_else_is_not_explored() {
        for (text, right, wrong) in [
            (PRODUCT, ("A[vi, vk] * B[vk, vj]", "B[vk, vj] * A[vi, vk]"), ("A[vi, vk]", "A[vi, 31 - vk]")),
            (MAP, ("A[vi, vj] * T.float32(2)", "A[vi, vj] + A[vi, vj]"), ("T.float32(2)", "T.float32(3)")),
        ] {
            let given = sound_program("given.py", text).unwrap();
            let made = |(from, to): (&str, &str)| tvmscript::parse(&text.replace(from, to)).unwrap();
            let taken = work_of("given.py", given.clone(), &|_| made(right)).unwrap();
            assert_eq!((taken.workload().program(), taken.workload().notes()), (&made(right), vec![]));
            let work = work_of("given.py", given.clone(), &|_| made(wrong)).unwrap();
            assert_eq!(work.workload().program(), &given);
            let notes = work.workload().notes();
            assert!(notes.iter().any(|n| n.contains("computes something else (") && n.contains(", not ")), "{notes:?}");
        }
    }
}
