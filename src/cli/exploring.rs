//! `explore` and `resume`.
use super::devices::{open, open_store, store_path, Choice};
use super::{print, print_json, report, table, watch::Watch, work, Failure, Outcome, Target};
use crate::device::Ask;
use crate::explore::{self, Request, Search};
use crate::measure::{Record, StrategyKind};
use crate::store::Store;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// What is asked; kept in the store, so that the run can be resumed.
#[derive(clap::Args, Clone, Serialize, Deserialize)]
pub(super) struct Explore {
    #[command(flatten)]
    target: Target,
    /// How many candidates
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    top: u32,
    /// Folder for kernels, traces and candidates.json
    #[arg(long, default_value = "satune-out")]
    out: PathBuf,
    /// No two candidates share block tile and k tile
    #[arg(long)]
    diverse: bool,
    /// Longest time for extraction, seconds
    #[arg(long, default_value_t = 60)]
    time_limit: u64,
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

/// Which run to go on with.
#[derive(clap::Args)]
pub(super) struct Resume {
    /// Its number [default: the latest that did not come to its end]
    run: Option<i64>,
    /// The store that it was recorded in
    #[arg(long, default_value = "satune-out/store.db")]
    store: PathBuf,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// `explore`.
pub(super) fn explore(args: &Explore) -> Outcome {
    run(args, None)
}

/// `resume`.
pub(super) fn resume(args: &Resume) -> Outcome {
    let store = Store::existing(&args.store)?;
    let found = store.run_to_resume(args.run)?;
    let mut asked: Explore = serde_json::from_str(&found.request).map_err(|_| {
        Failure::Input(format!("run {} is no exploration, it cannot be resumed: {}", found.id, found.request))
    })?;
    let done = store.steps(found.id)?.len();
    super::say(&format!("satune: run {} of {}, {done} candidates done", found.id, asked.target.program));
    (asked.store, asked.json) = (Some(args.store.clone()), args.json);
    run(&asked, Some((store, found.id)))
}

/// A folder that cannot be written is said before the work, not after it.
fn folder(args: &Explore) -> Outcome {
    std::fs::create_dir_all(&args.out)
        .and_then(|()| tempfile::tempfile_in(&args.out).map(drop))
        .map_err(|e| Failure::Environment(format!("output folder {}: {e}", args.out.display())))
}

fn run(args: &Explore, resumed: Option<(Store, i64)>) -> Outcome {
    let (work, gpu) = work(&args.target)?;
    if !(args.timeout > 0.0 && args.timeout <= 86_400.0) {
        return Err(Failure::Input(format!("--timeout {}: give seconds, more than 0, up to a day", args.timeout)));
    }
    if matches!(args.device, Choice::None) && args.strategy != StrategyKind::Analytical {
        return Err(Failure::Input(
            "--strategy random and learned choose what is measured, and --device none measures nothing; leave one of them out, or give --device simulator".into(),
        ));
    }
    folder(args)?;
    let mut device = open(args.device, &gpu, args.script.as_deref())?;
    let request = Request {
        gpu,
        top: args.top as usize,
        diverse: args.diverse,
        limit: Duration::from_secs(args.time_limit),
        compile: !args.no_compile,
        fuel: args.target.fuel(),
    };
    let watch = Watch::new();
    let mut recorded = match (&device, resumed) {
        (None, _) => None,
        (Some(_), Some(found)) => Some(found),
        (Some(_), None) => {
            let mut store = open_store(&store_path(args.store.as_deref(), &args.out))?;
            let text = serde_json::to_string(args).map_err(|e| Failure::Internal(e.to_string()))?;
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
    let report = work.explore_on(&request, search, &watch)?;
    let interrupted = watch.finish();
    report::write(&report, work.workload(), &gpu, &args.out)?;
    explore::write(&report, &args.out).map_err(|e| Failure::Environment(e.to_string()))?;
    refusals("a bug: the simulator refuses", &report.bugs);
    refusals("the compiler refuses", &report.rejected);
    if args.json {
        print_json(&report)?;
    } else {
        print(&table::candidates(&report, &args.out))?;
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
