//! `pack`, `run-pack` and `on-gpu`: what is prepared where no GPU is, and what is done with it where one is.
use super::devices::{self, Choice};
use super::{bench, print, print_json, table, watch::Watch, Failure, Outcome};
use crate::compile::{self, Compiler};
use crate::device::DeviceKind;
use crate::on_gpu::{self, Call, Hour, PrepareError, Size};
use crate::pack::{self, Breaker, Duels, Family, Pack, PackError, RunError, Settings, Wanted};
use crate::source::SourceError;
use clap::Subcommand;
use satune_extract::Descriptor;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to pack.
#[derive(clap::Args)]
pub(super) struct PackArgs {
    /// Files with one program per line, or programs; any number of them
    #[arg(required = true)]
    suite: Vec<String>,
    /// The model's best of each program
    #[arg(long, default_value_t = 64)]
    top: usize,
    /// Random schedules of each program
    #[arg(long, default_value_t = 64)]
    random: usize,
    /// Seed of the random choices
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A GPU by name (see `gpu list`), or a TOML file
    #[arg(long, default_value = "h200")]
    gpu: String,
    /// Longest time for extraction of one program, seconds
    #[arg(long, default_value_t = 60)]
    time_limit: u64,
    /// Candidates of each program whose machine code is packed [default: all, so that no GPU waits for a compiler]
    #[arg(long)]
    compiled: Option<usize>,
    /// Candidates of each program that all other versions of NVRTC compile, too
    #[arg(long, default_value_t = 4)]
    compared: usize,
    /// File to write
    #[arg(long)]
    out: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What to run.
#[derive(clap::Args)]
pub(super) struct RunArgs {
    /// The pack
    pack: PathBuf,
    /// Time for all of it: 300s, 5m, 300
    #[arg(long, default_value = "300s", value_parser = duration)]
    budget: Duration,
    /// Folder for the results; one that has results of the same pack goes on
    #[arg(long)]
    out: PathBuf,
    /// What candidates run on
    #[arg(long, value_enum, default_value = "cuda")]
    device: Choice,
    /// Least time for one candidate, at most a third of the time for all; more where 200 times its prediction is more
    #[arg(long, default_value = "2s", value_parser = duration)]
    least_timeout: Duration,
    /// Measure kernels that are packed for another GPU
    #[arg(long)]
    any_gpu: bool,
    /// Each candidate in a process of its own, and no library: for a tool that looks at processes
    #[arg(long)]
    apart: bool,
    /// A family that is not asked; several times: several
    #[arg(long, value_name = "FAMILY", value_parser = family)]
    without: Vec<Family>,
    /// Outcomes of --device scripted
    #[arg(long, hide = true)]
    script: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The first minutes on a GPU.
#[derive(Subcommand)]
pub(super) enum OnGpu {
    /// Make the packs that the calls need; needs no GPU
    Prepare {
        /// Folder for the packs
        #[arg(long, default_value = "packs", overrides_with = "packs")]
        packs: PathBuf,
        /// A GPU by name (see `gpu list`), or a TOML file
        #[arg(long, default_value = "h200")]
        gpu: String,
        /// Folder with the suites, files with one program per line
        #[arg(long, default_value = "benches/suites", overrides_with = "suites")]
        suites: PathBuf,
        /// Few and small programs, for a rehearsal
        #[arg(long)]
        small: bool,
        /// Pack no machine code: for a device that takes none
        #[arg(long)]
        no_compile: bool,
    },
    /// What is there, what is assumed, families of kernels, constants, headlines beside the library, single decisions
    Contact(CallArgs),
    /// All packed suites
    Suites(CallArgs),
    /// Many plans of many shapes, a fitted descriptor, the fitted model's choice
    Calibrate(CallArgs),
    /// All three calls one after the other, in folders of their own, each with a third of the time
    Rehearse(CallArgs),
}

/// A call.
#[derive(clap::Args)]
pub(super) struct CallArgs {
    /// Folder for what comes back: at most eight files
    out: PathBuf,
    /// Folder with the packs
    #[arg(long, default_value = "packs", overrides_with = "packs")]
    packs: PathBuf,
    /// Time for all of it
    #[arg(long, default_value = "550s", value_parser = duration)]
    budget: Duration,
    /// Least time for one candidate, at most a third of a stage's time
    #[arg(long, default_value = "2s", value_parser = duration)]
    least_timeout: Duration,
    /// What candidates run on
    #[arg(long, value_enum, default_value = "cuda")]
    device: Choice,
    /// Measure kernels that are packed for another GPU
    #[arg(long)]
    any_gpu: bool,
    /// Outcomes of --device scripted
    #[arg(long, hide = true)]
    script: Option<PathBuf>,
}

/// Reads `90`, `90s`, `1.5m`.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60.0),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let seconds = number.parse::<f64>().ok().map(|n| n * unit).filter(|s| *s > 0.0 && *s <= 86_400.0);
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "give a time as 300s or 5m, at most a day".into())
}

impl From<PackError> for Failure {
    fn from(error: PackError) -> Failure {
        match error {
            PackError::File { .. } => Failure::Environment(error.to_string()),
            _ => Failure::Input(error.to_string()),
        }
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Failure {
        Failure::Input(error.to_string())
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        match error {
            RunError::Pack(error) => error.into(),
            RunError::Program(error) => error.into(),
            RunError::Device(error) => error.into(),
            RunError::File { .. } => Failure::Environment(error.to_string()),
            RunError::Other { .. } => Failure::Input(error.to_string()),
        }
    }
}

impl From<PrepareError> for Failure {
    fn from(error: PrepareError) -> Failure {
        match error {
            PrepareError::Pack(error) => error.into(),
            PrepareError::Program(error) => error.into(),
            PrepareError::Interrupted(_) => Failure::Early(error.to_string()),
            PrepareError::Folder { .. } => Failure::Environment(error.to_string()),
        }
    }
}

/// The compilers whose machine code is packed, the preferred one first; none where there is no NVRTC.
fn compilers() -> Result<Vec<Compiler>, Failure> {
    let first = Compiler { lines: false, ..Compiler::of(devices::this_program()?) };
    let all = compile::versions();
    if all.is_empty() {
        super::say("satune: no NVRTC here: no machine code is packed, and all of it is compiled where it is measured");
        return Ok(Vec::new());
    }
    let preferred = compile::preferred().into_iter().next();
    let others = all.into_iter().map(|(_, folder)| folder).filter(|folder| Some(folder) != preferred.as_ref());
    let others: Vec<Compiler> = others.map(|folder| Compiler { nvrtc: Some(folder), ..first.clone() }).collect();
    Ok([vec![first], others].concat())
}

/// Candidates of which compilers make something else, one line each.
fn differences(pack: &Pack) -> Option<String> {
    let mut shown =
        table::table(&["program", "candidate", "NVRTC", "registers", "spilled bytes", "hot loop", "code bytes"]);
    table::right(&mut shown, &[2, 3, 4, 5, 6]);
    for program in &pack.programs {
        for candidate in &program.candidates {
            let all: Vec<_> =
                candidate.figures().filter_map(|(nvrtc, figures)| Some((nvrtc, figures.first()?))).collect();
            for (nvrtc, f) in all.iter().filter(|_| all.len() > 1) {
                let (name, place) = (program.name.clone(), candidate.place.to_string());
                let hot_loop = f.hot_loop.map_or("-".into(), |n| n.to_string());
                let numbers = [f.registers.to_string(), f.spill_bytes.to_string(), hot_loop, f.code_bytes.to_string()];
                shown.add_row([vec![name, place, (*nvrtc).to_string()], numbers.to_vec()].concat());
            }
        }
    }
    (shown.row_count() > 0).then(|| table::text(&shown))
}

fn descriptor(gpu: &str) -> Result<(Descriptor, String), Failure> {
    let text = Descriptor::source(gpu).map_err(|e| Failure::Input(e.to_string()))?;
    let gpu = Descriptor::parse(&text, gpu).map_err(|e| Failure::Input(e.to_string()))?;
    Ok((gpu, text))
}

/// `pack`.
pub(super) fn pack(args: &PackArgs) -> Outcome {
    let (gpu, text) = descriptor(&args.gpu)?;
    let mut works = Vec::new();
    for name in &args.suite {
        let path = Path::new(name);
        works.extend(match path.is_file() && path.extension().is_none_or(|e| e != "py") {
            true => bench::problems(&[], Some(path))?,
            false => bench::problems(std::slice::from_ref(name), None)?,
        });
    }
    let wanted = Wanted {
        top: args.top,
        random: args.random,
        per_family: 0,
        looked_at: 0,
        seed: args.seed,
        limit: Duration::from_secs(args.time_limit),
        compiled: args.compiled.unwrap_or(usize::MAX),
        compared: args.compared,
    };
    let watch = Watch::new();
    let name =
        args.suite.iter().map(|s| Path::new(s).file_stem().map_or(s.clone(), |n| n.to_string_lossy().into_owned()));
    let name = name.collect::<Vec<_>>().join(" ");
    let mut made = pack::make(&name, &works, (&gpu, text), &wanted, &compilers()?, &watch);
    if watch.finish() {
        return Err(Failure::Early("interrupted while packing: nothing is written".into()));
    }
    let candidates: usize = made.programs.iter().map(|p| p.candidates.len()).sum();
    for program in &made.programs {
        if let Some(why) = &program.missing {
            super::say(&format!("satune: {}: {why}", program.name));
        }
    }
    if candidates == 0 {
        return Err(Failure::Nothing("there is no candidate to pack".into()));
    }
    let bytes = made.write(&args.out)?;
    if args.json {
        return print_json(&serde_json::json!({
            "file": args.out, "bytes": bytes, "hash": made.hash, "programs": made.programs.len(), "candidates": candidates,
        }));
    }
    print(&differences(&made).unwrap_or_default())?;
    print(&format!(
        "{}: {candidates} candidates of {} programs, {:.2} MB; run it with `satune run-pack {} --out DIR`\n",
        args.out.display(),
        made.programs.len(),
        bytes as f64 * 1e-6,
        args.out.display()
    ))
}

/// A family by its name.
fn family(text: &str) -> Result<Family, String> {
    let names = || Family::ALL.map(Family::name).join(", ");
    Family::ALL.into_iter().find(|f| f.name() == text).ok_or_else(|| format!("there is none; they are {}", names()))
}

/// `run-pack`.
pub(super) fn run(args: &RunArgs) -> Outcome {
    let pack = Pack::read(&args.pack)?;
    let gpu = pack.gpu()?;
    let mut device = devices::open(args.device, &gpu, args.script.as_deref())?
        .ok_or_else(|| Failure::Input("--device none measures nothing; choose cuda or simulator".into()))?;
    if let Some(reason) = device.describe().and_then(|info| pack.misfit(&info)).filter(|_| !args.any_gpu) {
        return Err(Failure::Input(reason));
    }
    let watch = Watch::new();
    let (budget, least_timeout, apart) = (args.budget, args.least_timeout, args.apart);
    let settings = Settings { budget, least_timeout, apart, library: !apart, ..Settings::default() };
    // A tool makes each run slow, and wants one.
    let settings = if apart { Settings { repeats: 0, ..settings } } else { settings };
    // Times of a simulator are predictions: there is nothing to take turns with.
    let duels = if device.identity().kind == DeviceKind::Cuda && !apart { Duels::Fastest } else { Duels::None };
    let settings = Settings { duels, ..settings };
    let done =
        pack::run(&pack, &mut *device, &settings, &mut Breaker::without(args.without.clone()), &args.out, &watch);
    let interrupted = watch.finish();
    let outcome = done?;
    if args.json {
        print_json(&outcome)?;
    } else {
        let text = std::fs::read_to_string(args.out.join("SUMMARY.md")).unwrap_or_default();
        print(&text)?;
    }
    match interrupted {
        true => Err(Failure::Interrupted),
        false if outcome.measured + outcome.known == 0 => Err(Failure::Nothing("no candidate has a time".into())),
        false => Ok(()),
    }
}

/// `on-gpu`.
pub(super) fn on_gpu(what: &OnGpu) -> Outcome {
    match what {
        OnGpu::Prepare { packs, gpu, suites, small, no_compile } => {
            let compilers = if *no_compile { Vec::new() } else { compilers()? };
            prepare(packs, gpu, suites, *small, &compilers)
        }
        OnGpu::Contact(args) => call(args, &[Call::Contact]),
        OnGpu::Suites(args) => call(args, &[Call::Suites]),
        OnGpu::Calibrate(args) => call(args, &[Call::Calibrate]),
        OnGpu::Rehearse(args) => call(args, &[Call::Contact, Call::Suites, Call::Calibrate]),
    }
}

fn prepare(packs: &Path, gpu: &str, suites: &Path, small: bool, compilers: &[Compiler]) -> Outcome {
    let (gpu, text) = descriptor(gpu)?;
    let unread = |e: std::io::Error| Failure::Input(format!("suites {}: {e}", suites.display()));
    let mut files: Vec<PathBuf> = std::fs::read_dir(suites).map_err(unread)?.flatten().map(|e| e.path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "txt"));
    files.sort();
    // In a rehearsal one suite stands for all.
    files.truncate(if small { 1 } else { files.len() });
    let mut lists = Vec::new();
    for file in files {
        let name = file.file_stem().map_or(String::new(), |n| n.to_string_lossy().into_owned());
        lists.push((name, bench::problems(&[], Some(&file))?));
    }
    let watch = Watch::new();
    let size = if small { Size::Small } else { Size::Whole };
    let written = on_gpu::prepare((&gpu, &text), &lists, size, compilers, packs, &watch);
    let interrupted = watch.finish();
    let lines: Vec<String> =
        written?.into_iter().map(|(name, bytes)| format!("{name}: {:.2} MB\n", bytes as f64 * 1e-6)).collect();
    print(&lines.concat())?;
    if interrupted {
        Err(Failure::Interrupted)
    } else {
        Ok(())
    }
}

fn call(args: &CallArgs, calls: &[Call]) -> Outcome {
    let first = ["probes", "calibrate"].iter().map(|n| args.packs.join(format!("{n}.pack"))).find(|p| p.is_file());
    let first = first.ok_or_else(|| {
        Failure::Input(format!(
            "{}: there are no packs; `satune on-gpu prepare --packs {0}` makes them",
            args.packs.display()
        ))
    })?;
    let gpu = Pack::read(&first)?.gpu()?;
    let program = devices::this_program()?;
    let open = || devices::opened(args.device, &gpu, args.script.as_deref(), &program);
    let watch = Watch::new();
    let mut again = vec!["--device".to_string(), args.device.name()];
    again.extend(args.any_gpu.then(|| "--any-gpu".to_string()));
    if let Some(script) = &args.script {
        let script = std::path::absolute(script).unwrap_or_else(|_| script.clone());
        again.extend(["--script".to_string(), script.display().to_string()]);
    }
    for which in calls {
        let alone = calls.len() == 1;
        let hour = Hour {
            out: if alone { args.out.clone() } else { args.out.join(which.name()) },
            packs: args.packs.clone(),
            budget: args.budget / calls.len() as u32,
            least_timeout: args.least_timeout,
            open: &open,
            any_gpu: args.any_gpu,
            machine: super::doctor::machine(),
            program: program.clone(),
            again: again.clone(),
        };
        let ran = hour.run(*which, &watch);
        ran.map_err(|e| Failure::Environment(format!("{}: {e}", hour.out.display())))?;
        let text = std::fs::read_to_string(hour.out.join("SUMMARY.md")).unwrap_or_default();
        print(&text)?;
    }
    match watch.finish() {
        true => Err(Failure::Interrupted),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_units() {
        assert_eq!(duration("300s"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        for bad in ["", "s", "0s", "-1", "2d", "NaN", "90000"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
