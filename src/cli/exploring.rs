//! `explore` and `resume`.
use super::devices::{open, open_store, store_path, Choice};
use super::{ask, given, print_json, print_styled, report, table, watch::Watch, Failure, Outcome, Target};
use crate::device::{Ask, DeviceKind};
use crate::explore::{results, Request, Search};
use crate::measure::{Record, StrategyKind};
use crate::operators;
use crate::source::{self, Work};
use crate::store::{hash, Store};
use satune_extract::Descriptor;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is asked; kept in the store, so that the run can be resumed.
#[derive(clap::Args, Clone, Serialize, Deserialize)]
#[command(after_help = examples())]
pub(super) struct Explore {
    #[command(flatten)]
    target: Target,
    /// How many candidates
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    top: u32,
    /// Folder for kernels, traces and candidates.json
    #[arg(long, default_value = "satune-out")]
    out: PathBuf,
    /// Show the plain best under the model, though they be twins, not those that are worth measuring together
    #[arg(long)]
    #[serde(default)]
    twins: bool,
    /// What is done without --twins
    #[arg(long, hide = true, conflicts_with = "twins")]
    #[serde(default)]
    diverse: bool,
    /// Longest time for extraction, seconds
    #[arg(long, default_value_t = 60)]
    time_limit: u64,
    /// A schedule to put beside the best: a file with one (a scheduled PrimFunc; a trace of Satune's or of TVM's, as JSON or Python; the
    /// `plan` of a candidate), or what is fixed of one in the words of why-not ("block 128x128, k 8"), of Triton ("BLOCK_M=128, BLOCK_N=128,
    /// BLOCK_K=32, num_warps=4, num_stages=3") or of CUTLASS ("128x128x32"), the rest as good as can be; or a row of Heron's table, in a file
    /// or as text; of a log or a table of several the fastest
    #[arg(long, value_name = "SCHEDULE")]
    #[serde(default)]
    given: Option<String>,
    /// Show beside: what nvMatmulHeuristics takes first for a product, and where that is in the space
    #[arg(long, value_enum)]
    #[serde(default)]
    vs: Option<Heuristic>,
    /// Do not call NVRTC for the report
    #[arg(long)]
    no_compile: bool,
    /// What candidates run on
    #[arg(long, value_enum, default_value = "auto")]
    device: Choice,
    /// Which candidates are measured: analytical, random, learned
    #[arg(long, default_value = "analytical")]
    strategy: StrategyKind,
    /// How many candidates are measured [default: as many as --top]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    trials: Option<u32>,
    /// Seed of random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Longest time for one candidate on the device, seconds
    #[arg(long, default_value_t = 20.0)]
    timeout: f64,
    /// File that remembers what was measured [default: store.db in the output folder]
    #[arg(long)]
    store: Option<PathBuf>,
    /// Outcomes of --device scripted
    #[arg(long, hide = true)]
    script: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// What explorations are shown beside.
#[derive(Clone, Copy, clap::ValueEnum, Serialize, Deserialize)]
enum Heuristic {
    /// NVIDIA's nvMatmulHeuristics, which needs no GPU (scripts/fetch-nvmmh)
    Nvmmh,
}

/// The operators, and commands to begin with.
fn examples() -> String {
    format!(
        "Operators, each with an example (layout is NN, NT, TN or TT for row-major buffers, NT: B is stored as N x K, which BLAS \
         calls TN; options are out=TYPE, sum=f16, alpha=X, bias, relu|gelu|silu, residual, of convolutions stride=, pad=, dilation=, groups= too):\n{}\n\
         Types: f32, tf32, f64, f16, bf16, e4m3, e5m2, i8; fp32, float16, int8 and the like are understood.\n\n\
         Examples:\n  satune explore gemm:1024,1024,1024,f32 --gpu h200 --top 8\n  \
         satune explore gemm:4096,4096,4096,bf16,NT,out=bf16 --gpu h100 --out products\n  \
         satune explore softmax:4096,4096,f32 --gpu a100 --json\n  \
         satune explore my_func.py --gpu my-gpu.toml",
        operators::help()
    )
}

/// Which run to go on with.
#[derive(clap::Args)]
pub(super) struct Resume {
    /// Its number [default: the latest that did not come to its end]
    run: Option<i64>,
    /// The store that it was recorded in
    #[arg(long, default_value = "satune-out/store.db")]
    store: PathBuf,
    /// Folder for the results [default: where the run was to write, if that is the store's folder or below it; else the
    /// store's folder]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// A text with its hash.
#[derive(Clone, Serialize, Deserialize)]
struct Text {
    text: String,
    hash: String,
}

impl Text {
    fn of(text: String) -> Text {
        Text { hash: hash(&text), text }
    }

    /// The text, if it is the one that the hash was taken of.
    fn sound(self, what: &str) -> Result<String, Failure> {
        match hash(&self.text) == self.hash {
            true => Ok(self.text),
            false => Err(Failure::Environment(format!("the {what} of the stored run does not have its hash"))),
        }
    }
}

/// A run as the store keeps it: what was asked, and the texts that names stood for.
#[derive(Serialize, Deserialize)]
struct Recorded {
    #[serde(flatten)]
    asked: Explore,
    /// TVMScript of an operator, or the file's text; none in stores of earlier versions.
    #[serde(default)]
    source: Option<Text>,
    /// TOML of the GPU.
    #[serde(default)]
    descriptor: Option<Text>,
    /// The output folder, from the root of the file system.
    #[serde(default)]
    folder: Option<PathBuf>,
}

/// What is explored, with the texts that it was read from.
struct Inputs {
    work: Work,
    gpu: Descriptor,
    source: String,
    descriptor: String,
}

impl Inputs {
    /// By the names of now.
    fn named(target: &Target) -> Result<Inputs, Failure> {
        let input = |e: &dyn std::fmt::Display| Failure::Input(e.to_string());
        let (work, source) = source::load_text(&target.program).map_err(|e| input(&e))?;
        let descriptor = Descriptor::source(&target.gpu).map_err(|e| input(&e))?;
        let gpu = Descriptor::parse(&descriptor, &target.gpu).map_err(|e| input(&e))?;
        Ok(Inputs { work, gpu, source, descriptor })
    }

    /// By the texts of a stored run; says what has another text now.
    fn stored(target: &Target, source: Text, descriptor: Text) -> Result<Inputs, Failure> {
        let input = |e: &dyn std::fmt::Display| Failure::Input(e.to_string());
        let (source, descriptor) = (source.sound("program")?, descriptor.sound("descriptor")?);
        let program = &target.program;
        let work = match source::load_text(program) {
            // An operator keeps what its text does not say, such as tf32.
            Ok((work, now)) if now == source => work,
            now => {
                let state = if now.is_ok() { "was changed" } else { "is not there any more" };
                super::say(&format!(
                    "satune: {program} {state} since the run began; what was explored then is gone on with"
                ));
                source::work_of_script(program, &source).map_err(|e| input(&e))?
            }
        };
        if Descriptor::source(&target.gpu).ok().as_ref() != Some(&descriptor) {
            let gpu = &target.gpu;
            super::say(&format!("satune: the descriptor {gpu} has another text now; that of the run is gone on with"));
        }
        let gpu = Descriptor::parse(&descriptor, &target.gpu).map_err(|e| input(&e))?;
        Ok(Inputs { work, gpu, source, descriptor })
    }
}

/// `explore`.
pub(super) fn explore(args: &Explore) -> Outcome {
    run(args, Inputs::named(&args.target)?, None)
}

/// `resume`.
pub(super) fn resume(args: &Resume) -> Outcome {
    let store = Store::existing(&args.store)?;
    let found = store.run_to_resume(args.run)?;
    let Recorded { mut asked, source, descriptor, folder } = serde_json::from_str(&found.request).map_err(|_| {
        Failure::Input(format!("run {} is no exploration, it cannot be resumed: {}", found.id, found.request))
    })?;
    let done = store.steps(found.id)?.len();
    super::say(&format!("satune: run {} of {}, {done} candidates done", found.id, asked.target.program));
    let inputs = match (source, descriptor) {
        (Some(source), Some(descriptor)) => Inputs::stored(&asked.target, source, descriptor)?,
        _ => Inputs::named(&asked.target)?,
    };
    // What a store says is no reason to write outside of its folder.
    let wanted = folder.unwrap_or_else(|| asked.out.clone());
    let home = args.store.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    asked.out = match &args.out {
        Some(out) => out.clone(),
        None if is_below(&wanted, home) => wanted,
        None => {
            let (home, wanted) = (home.display(), wanted.display());
            super::say(&format!("satune: results go to {home}; the run was to write into {wanted} (--out names it)"));
            args.store.parent().map_or_else(PathBuf::new, Path::to_path_buf)
        }
    };
    if asked.out.as_os_str().is_empty() {
        asked.out = ".".into();
    }
    (asked.store, asked.json) = (Some(args.store.clone()), args.json);
    run(&asked, inputs, Some((store, found.id)))
}

/// Whether a folder is another one or below it, links followed.
fn is_below(folder: &Path, home: &Path) -> bool {
    let plain = |path: &Path| std::fs::canonicalize(path).or_else(|_| std::path::absolute(path));
    let up = |path: &Path| path.components().any(|part| part == std::path::Component::ParentDir);
    match (plain(folder), plain(home)) {
        (Ok(folder), Ok(home)) => folder.starts_with(home) && !up(&folder),
        _ => false,
    }
}

/// A folder that cannot be written is said before the work, not after it.
fn folder(args: &Explore) -> Outcome {
    std::fs::create_dir_all(&args.out)
        .and_then(|()| tempfile::tempfile_in(&args.out).map(drop))
        .map_err(|e| Failure::Environment(format!("output folder {}: {e}", args.out.display())))
}

fn run(args: &Explore, inputs: Inputs, resumed: Option<(Store, i64)>) -> Outcome {
    let Inputs { mut work, gpu, source, descriptor } = inputs;
    let shapes = source::given_shapes(work.workload());
    if !(args.timeout > 0.0 && args.timeout <= 86_400.0) {
        return Err(Failure::Input(format!("--timeout {}: give seconds, more than 0, up to a day", args.timeout)));
    }
    if matches!(args.device, Choice::None) && args.strategy != StrategyKind::Analytical {
        return Err(Failure::Input(
            "--strategy random and learned choose what is measured, and --device none measures nothing; leave one of them out, or give --device simulator".into(),
        ));
    }
    let choice = match args.vs {
        Some(Heuristic::Nvmmh) => ask::heuristic(ask::VS, &[&work], &gpu)?.pop(),
        None => None,
    };
    if let Some(named) = &args.given {
        let limits = (args.target.size.fuel(), Duration::from_secs(args.time_limit));
        given::put_beside(named, &mut work, &gpu, limits)?;
    }
    folder(args)?;
    let mut device = open(args.device, &gpu, args.script.as_deref())?;
    let request = Request {
        gpu,
        top: args.top as usize,
        twins: args.twins,
        limit: Duration::from_secs(args.time_limit),
        compile: !args.no_compile,
        fuel: args.target.size.fuel(),
    };
    let watch = Watch::new();
    let mut recorded = match (&device, resumed) {
        (None, _) => None,
        (Some(_), Some(found)) => Some(found),
        (Some(_), None) => {
            let mut store = open_store(&store_path(args.store.as_deref(), &args.out))?;
            let recorded = Recorded {
                asked: args.clone(),
                source: Some(Text::of(source)),
                descriptor: Some(Text::of(descriptor)),
                folder: std::path::absolute(&args.out).ok(),
            };
            let text = serde_json::to_string(&recorded).map_err(|e| Failure::Internal(e.to_string()))?;
            let run = store.begin_run(&text)?;
            Some((store, run))
        }
    };
    let search = match (&mut device, &mut recorded) {
        (Some(device), Some((store, run))) => Some(Search {
            device: &mut **device,
            record: Record { store, run: *run },
            strategy: args.strategy,
            trials: args.trials.unwrap_or(args.top) as usize,
            seed: args.seed,
            fresh: false,
            ask: Ask { timeout: Duration::from_secs_f64(args.timeout), ..Ask::default() },
        }),
        _ => None,
    };
    let gpu = request.gpu.clone();
    let mut report = work.explore_on(&request, search, &watch)?;
    report.shapes = shapes;
    if let Some(choice) = choice {
        let found = ask::beside(&work, &request.gpu, &choice, (request.fuel, request.limit))?;
        report.notes.push(found.text());
        report.nvmmh = Some(found);
    }
    let interrupted = watch.finish();
    if report.measured.as_ref().is_some_and(|m| m.kind == DeviceKind::Simulator) {
        // A simulator's times are the predictions, which each candidate has: nothing was measured.
        report.candidates.iter_mut().for_each(|c| c.measured = None);
    }
    let resumable = |e: io::Error| {
        let again = recorded.as_ref().map_or_else(String::new, |(store, run)| {
            format!("; what was measured is safe: `satune resume {run} --store {}`", store.path().display())
        });
        Failure::Environment(format!("{e}{again}"))
    };
    let page = |folder: &Path| report::write(&report, work.workload(), &gpu, None, folder);
    results::publish(&report, &args.out, page).map_err(resumable)?;
    if let Some((store, run)) = recorded.as_mut().filter(|_| !interrupted) {
        // Only now: a run whose results are not there is not at its end.
        store.finish_run(*run)?;
    }
    refusals("a bug: the simulator refuses", &report.bugs);
    refusals("the compiler refuses", &report.rejected);
    if args.json {
        print_json(&report)?;
    } else {
        print_styled(&table::candidates(&report, &work, &gpu, &args.out))?;
    }
    if interrupted {
        return Err(Failure::Interrupted);
    }
    match &report.measured {
        _ if !report.candidates.is_empty() => Ok(()),
        Some(m) if m.trials > 0 => Err(Failure::Nothing(format!(
            "none of {} candidates ran and was right: {}; `satune db export` has each one's reason",
            m.trials,
            m.rejected_text()
        ))),
        _ if !report.bugs.is_empty() => Err(Failure::Internal("the simulator refused every candidate".into())),
        _ => Err(Failure::Nothing(match report.rejected.first() {
            Some(why) => format!("the compiler refused every candidate that was looked at, the first: {why}"),
            None => "there is nothing to show".into(),
        })),
    }
}

/// Says which candidates were refused: the first few, and how many.
fn refusals(who: &str, all: &[String]) {
    const SHOWN: usize = 2;
    for why in all.iter().take(SHOWN) {
        super::say(&format!("satune: {who} a candidate, which is not ranked: {why}"));
    }
    if all.len() > SHOWN {
        let more = all.len() - SHOWN;
        super::say(&format!("satune: {who} {more} more; candidates.json has all of them"));
    }
}
