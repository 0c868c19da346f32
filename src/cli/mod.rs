//! The `satune` command: results on stdout, talk on stderr, exit codes 0 ok, 1 nothing found, 2 bad input, 3
//! environment, 4 internal.
mod ask;
mod bench;
mod calibrate;
mod check;
mod completions;
mod db;
mod devices;
mod diff;
mod doctor;
mod exploring;
mod given;
mod heron;
mod pack;
mod probe;
mod replay;
mod report;
mod selftest;
mod show;
mod stored;
mod table;
mod torch;
mod watch;

use crate::explore::ExploreError;
use crate::source::{self, Work};
use crate::workload::Explorable;
use clap::{Parser, Subcommand};
use satune_extract::{Counts, Descriptor};
use satune_ir::term::{SaturationReport, StoppedBy};
use satune_rewrites::intrinsics;
use satune_rewrites::space::Fuel;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Explores GPU schedules by equality saturation.
#[derive(Parser)]
#[command(name = "satune", version, about, max_term_width = 100)]
struct Command {
    /// Say nothing on stderr but why a command failed
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    what: What,
    /// Tensor intrinsics of your own, for tensorize: a Python file with pairs of PrimFuncs and, below them,
    /// TensorIntrin.register("name", description, implementation); may be given several times
    #[arg(long, global = true, value_name = "FILE")]
    intrinsics: Vec<PathBuf>,
    /// Compile with this NVRTC: a version (13.0), or the folder of a libnvrtc.so [default: the newest that knows the GPU]
    #[arg(long, global = true, value_name = "VERSION")]
    nvrtc: Option<String>,
}

/// Registers the intrinsics of files.
fn register(files: &[PathBuf]) -> Outcome {
    for file in files {
        let text = source::read(file).map_err(|e| Failure::Input(e.to_string()))?;
        let name = file.display().to_string();
        intrinsics::register(&name, &text).map_err(|e| {
            Failure::Input(match e {
                intrinsics::RegisterError::Parse(error) => source::rendered(&error),
                other => format!("{name}: {other}"),
            })
        })?;
    }
    Ok(())
}

/// Takes the compiler that is asked for.
fn chosen(nvrtc: Option<&str>) -> Outcome {
    nvrtc.map_or(Ok(()), |asked| crate::compile::choose(asked).map_err(|e| Failure::Input(e.to_string())))
}

#[derive(clap::Args, Clone, serde::Serialize, serde::Deserialize)]
struct Target {
    /// An operator such as gemm:M,N,K,dtype[,layout] or softmax:M,N,dtype (`explore --help` lists them), or a Python file with a
    /// PrimFunc
    /// (of several functions: FILE::name; with values of open scalars: FILE::name(n=128))
    program: String,
    /// A GPU by name (see `gpu list`), or a TOML file
    #[arg(long, default_value = "h200")]
    gpu: String,
    #[command(flatten)]
    #[serde(flatten)]
    size: Size,
}

/// How far saturation may go.
#[derive(clap::Args, Clone, serde::Serialize, serde::Deserialize)]
struct Size {
    /// Most e-nodes of the space [default: 4000000]; a larger one is not searched to its end, and says so
    #[arg(long, value_name = "NODES", value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    #[serde(default)]
    fuel: Option<u64>,
}

impl Size {
    fn fuel(&self) -> Fuel {
        let given = self.fuel.and_then(|nodes| usize::try_from(nodes).ok());
        given.map_or_else(Fuel::default, |nodes| Fuel { nodes })
    }
}

#[derive(Subcommand)]
enum What {
    /// Find the best schedules, check them, measure them, write them as CUDA
    Explore(exploring::Explore),
    /// Go on with a run of `explore` that was interrupted
    Resume(exploring::Resume),
    /// Measure programs, beside cuBLAS if asked
    Bench(bench::Bench),
    /// Put a suite's best and random candidates into one file, for a machine with a GPU
    Pack(pack::PackArgs),
    /// Measure a pack, breadth first, within a time
    RunPack(pack::RunArgs),
    /// The first minutes on a GPU: what is right, what is fast, what is assumed
    OnGpu {
        #[command(subcommand)]
        what: pack::OnGpu,
    },
    /// The store of measurements: check, repair, export, import, gc
    Db {
        #[command(subcommand)]
        what: db::Db,
    },
    /// Count the schedules of a space, exactly
    Count {
        #[command(flatten)]
        target: Target,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a candidate: its loops, time parts, kernels
    Show(show::Show),
    /// What differs between two candidates: schedule, time parts, counts, CUDA text
    Diff(diff::Pair),
    /// Write report.html of a stored exploration again
    Report(report::Args),
    /// Fit a GPU's descriptor to measured times, and write it as a file for --gpu
    Calibrate(calibrate::Args),
    /// Measure what this machine's GPU reaches, and write a first descriptor of it for --gpu
    Probe(probe::Args),
    /// Why a candidate is as fast as it is, and how it was derived
    Why(stored::Why),
    /// Why a schedule is not among the best: "block 128x256, k 16, threads 256"
    WhyNot(ask::Args),
    /// Print a candidate as CUDA, as a C header or a PyTorch operator that launches it, as a Python function on tvm.s_tir.Schedule, or its
    /// trace as JSON
    Emit(stored::Emit),
    /// Check a candidate again, or any CUDA kernel: races, bounds, unwritten results, with source lines
    Check(check::Check),
    /// Make the calls of a trace, or of cases (one JSON object a line), on their programs
    Replay(replay::Replay),
    /// GPU descriptors
    Gpu {
        #[command(subcommand)]
        what: Gpu,
    },
    /// Try each guarantee on this machine: what is tried, and what came of it
    Selftest(selftest::Args),
    /// Completions of a shell, on stdout
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Manual pages, one for each command
    Man {
        /// Folder to write them into [default: the page of `satune` on stdout]
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// What this machine has: NVRTC, a disassembler, a driver, a GPU, cuBLAS
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Subcommand)]
enum Gpu {
    /// Names of the built-in descriptors
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// A descriptor's text, with units and sources
    Show {
        /// Its name
        name: String,
    },
    /// The same as `satune probe`
    Probe(probe::Args),
}

/// What the command came to.
pub(crate) enum Failure {
    /// Exit code 1.
    Nothing(String),
    /// Exit code 2.
    Input(String),
    /// Exit code 3.
    Environment(String),
    /// Exit code 4.
    Internal(String),
    /// Exit code 130: ended by Ctrl-C, with what was found by then.
    Interrupted,
    /// Exit code 130: ended by Ctrl-C before anything was found.
    Early(String),
}

impl Failure {
    fn code(&self) -> i32 {
        match self {
            Failure::Nothing(_) => 1,
            Failure::Input(_) => 2,
            Failure::Environment(_) => 3,
            Failure::Internal(_) => 4,
            Failure::Interrupted | Failure::Early(_) => watch::INTERRUPTED,
        }
    }

    fn text(&self) -> &str {
        match self {
            Failure::Nothing(t)
            | Failure::Input(t)
            | Failure::Environment(t)
            | Failure::Internal(t)
            | Failure::Early(t) => t,
            Failure::Interrupted => "interrupted; what was found by then is above and in the output folder",
        }
    }
}

pub(crate) type Outcome = Result<(), Failure>;

/// A text as a terminal may have it: control characters, and those that turn the direction of writing, are written out, so that
/// no name in a program, a trace or a store moves the cursor, sets a title or hides what stands there.
pub(crate) fn visible(text: &str) -> String {
    let acts = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match acts(c) {
            // As JSON and C write it, so that both stay what they are.
            true => out.push_str(&format!("\\u{:04x}", c as u32)),
            false => out.push(c),
        }
    }
    out
}

/// Prints a text to stdout, as a terminal may have it; a reader that went away is no error.
pub(crate) fn print(text: &str) -> Outcome {
    print_styled(&visible(text))
}

/// Prints a text whose colours are ours.
pub(crate) fn print_styled(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::Environment(format!("stdout: {e}"))),
        _ => Ok(()),
    }
}

/// Whether `--quiet` was given.
static QUIET: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Says something to people, on stderr, unless they want it quiet.
pub(crate) fn say(text: &str) {
    if !is_quiet() {
        complain(text);
    }
}

/// Says why a command failed; where nobody reads that, it is not said.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", visible(text));
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::Internal(e.to_string()))?;
    print(&format!("{text}\n"))
}

/// Runs the command and returns the exit code.
pub fn main() -> i32 {
    crate::worker();
    let command = match Command::try_parse() {
        Ok(command) => command,
        Err(error) => {
            // Help and version are no errors and go to stdout.
            if error.use_stderr() {
                // What was typed is in it.
                complain(error.render().to_string().trim_end());
                return 2;
            }
            let _ = error.print();
            return 0;
        }
    };
    watch::install();
    QUIET.store(command.quiet, Ordering::Relaxed);
    match register(&command.intrinsics).and_then(|()| chosen(command.nvrtc.as_deref())).and_then(|()| run(command.what))
    {
        Ok(()) => 0,
        Err(failure) => {
            complain(&format!("satune: {}", failure.text()));
            failure.code()
        }
    }
}

fn work(target: &Target) -> Result<(Work, Descriptor), Failure> {
    let work = source::load_work(&target.program).map_err(|e| Failure::Input(e.to_string()))?;
    let gpu = Descriptor::load(&target.gpu).map_err(|e| Failure::Input(e.to_string()))?;
    Ok((work, gpu))
}

impl From<ExploreError> for Failure {
    fn from(error: ExploreError) -> Failure {
        match error {
            ExploreError::Space(_) => Failure::Internal(error.to_string()),
            ExploreError::Nothing(_) | ExploreError::Limit { .. } | ExploreError::Time { .. } => {
                Failure::Nothing(error.to_string())
            }
            ExploreError::Interrupted(_) => Failure::Early(error.to_string()),
            ExploreError::Measure(error) => error.into(),
        }
    }
}

fn run(what: What) -> Outcome {
    match what {
        What::Explore(args) => exploring::explore(&args),
        What::Resume(args) => exploring::resume(&args),
        What::Bench(args) => bench::run(&args),
        What::Pack(args) => pack::pack(&args),
        What::RunPack(args) => pack::run(&args),
        What::OnGpu { what } => pack::on_gpu(&what),
        What::Db { what } => db::run(&what),
        What::Count { target, json } => count(&target, json),
        What::Show(args) => show::run(&args),
        What::Diff(pair) => diff::run(&pair),
        What::Report(args) => report::run(&args),
        What::Calibrate(args) => calibrate::run(&args),
        What::Probe(args) => probe::run(&args),
        What::Why(args) => stored::why(&args),
        What::WhyNot(args) => ask::run(&args),
        What::Emit(args) => stored::emit(&args),
        What::Selftest(args) => selftest::run(&args),
        What::Completions { shell } => completions::shell(shell),
        What::Man { out } => completions::manual(out.as_deref()),
        What::Check(args) => check::run(&args),
        What::Replay(args) => replay::run(&args),
        What::Gpu { what: Gpu::List { json } } => {
            let all: Vec<Descriptor> = Descriptor::names().filter_map(|n| Descriptor::load(n).ok()).collect();
            if json {
                return print_json(&all);
            }
            print_styled(&table::gpus(&all))
        }
        What::Gpu { what: Gpu::Show { name } } => {
            Descriptor::load(&name).map_err(|e| Failure::Input(e.to_string()))?;
            print(&Descriptor::source(&name).map_err(|e| Failure::Input(e.to_string()))?)
        }
        What::Gpu { what: Gpu::Probe(args) } => probe::run(&args),
        What::Doctor { json } => doctor::run(json),
    }
}

/// `count`.
fn count(target: &Target, json: bool) -> Outcome {
    let (work, gpu) = work(target)?;
    let fuel = target.size.fuel();
    fn of<W: Explorable>(
        problem: &W,
        gpu: &Descriptor,
        fuel: Fuel,
    ) -> Result<(String, SaturationReport, f64), Failure> {
        let start = Instant::now();
        let space = problem.space_while(gpu, fuel, &|_| true)?;
        let saturate_s = start.elapsed().as_secs_f64();
        Ok((Counts::of(&space).total().to_string(), space.report, saturate_s))
    }
    let (total, report, saturate_s) = match &work {
        Work::Contraction(problem) => of(&**problem, &gpu, fuel)?,
        Work::Streams(problem) => of(&**problem, &gpu, fuel)?,
    };
    let (name, encode_s) = (work.workload().name(), work.workload().asked().encoding.as_secs_f64());
    let saturated = report.stopped_by == StoppedBy::Saturated;
    if json {
        return print_json(&serde_json::json!({
            "operator": name,
            "gpu": gpu.name,
            "schedules": total,
            "saturated": saturated,
            "enodes": report.nodes,
            "eclasses": report.classes,
            "encode_s": encode_s,
            "saturate_s": saturate_s,
        }));
    }
    print(&format!(
        "{total} schedules in {} e-nodes and {} e-classes, {}{} in {saturate_s:.2} s\n",
        report.nodes,
        report.classes,
        table::encoded(encode_s),
        if saturated { "saturated" } else { "a part of the space: it outgrew --fuel" },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_reaches_a_terminal() {
        let name = "A\u{1b}]0;title\u{7}\u{9b}2J\r\u{202e}\tok\nend";
        assert_eq!(visible(name), "A\\u001b]0;title\\u0007\\u009b2J\\u000d\\u202e\tok\nend");
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Command::command().debug_assert();
    }
}
