//! The first minutes on a rented GPU: stages, each of which writes its file before the next begins, ends by its own clock,
//! and costs the others nothing when it fails.
//!
//! `contact`: what is there, what is assumed of the hardware, whether each family of kernels is right, what the machine
//! reaches, the headlines beside the library, single decisions. `suites`: whole suites. `calibrate`: many plans of many
//! shapes, a fit, and the choice of the fitted model. Everything that needs no GPU stands in packs, which [`prepare`] makes.
mod assumptions;
mod closed_loop;
mod prepare;
mod tools;

pub use prepare::{prepare, PrepareError, Size};

use crate::device::{probe, Device, DeviceError};
use crate::explore::write_whole;
use crate::pack::{self, Breaker, Duels, Outcome, Pack, RunError, Settings};
use crate::progress::Progress;
use crate::{measurements, source};
use satune_extract::calibrate::{calibrate, descriptor_text};
use serde_json::{json, Value};
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Correctness, constants and headlines.
    Contact,
    /// All suites.
    Suites,
    /// Many plans, a fit, a closed loop.
    Calibrate,
}

/// Opens the device; again when it was lost.
pub type Open<'o> = dyn Fn() -> Result<Box<dyn Device>, DeviceError> + 'o;

/// What a call works with.
pub struct Hour<'h> {
    /// Folder for what comes back.
    pub out: PathBuf,
    /// Folder with the packs.
    pub packs: PathBuf,
    /// For the whole call.
    pub budget: Duration,
    /// Least time that a candidate is given.
    pub least_timeout: Duration,
    /// The device.
    pub open: &'h Open<'h>,
    /// Measure although the packs are for another GPU.
    pub any_gpu: bool,
    /// What is known of this machine's compilers, disassemblers and profilers.
    pub machine: Value,
    /// The `satune` command, which other tools run once more.
    pub program: PathBuf,
    /// Options that choose the same device there.
    pub again: Vec<String>,
}

/// Part of the time that is left which stages may use: the rest is for their files.
const FILES: f64 = 0.97;

/// Largest file that comes back, bytes.
const LARGEST: u64 = 16 << 20;

/// What a stage does, in its folder and its time.
type Step<'s> = dyn FnMut(&mut State<'_, '_>, &Path, Duration) -> Result<Value, Failed> + 's;

/// A stage: its name, its part of the budget.
struct Stage<'s> {
    name: String,
    share: f64,
    run: Box<Step<'s>>,
}

/// Why a stage has no result, in words.
struct Failed {
    reason: String,
    /// The device has to be opened again.
    lost: bool,
}

impl<E: std::fmt::Display> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed { reason: error.to_string(), lost: false }
    }
}

fn failed(error: RunError) -> Failed {
    let lost = matches!(error, RunError::Device(_));
    Failed { lost, ..Failed::from(error) }
}

/// What stages share.
struct State<'a, 'h> {
    hour: &'a Hour<'h>,
    device: Option<Box<dyn Device>>,
    breaker: Breaker,
    progress: &'a dyn Progress,
}

impl State<'_, '_> {
    /// The device, opened where it is not.
    fn device(&mut self) -> Result<&mut dyn Device, Failed> {
        if self.device.is_none() {
            self.device = Some((self.hour.open)()?);
        }
        match &mut self.device {
            Some(device) => Ok(&mut **device),
            None => Err(Failed { reason: "there is no device".into(), lost: false }),
        }
    }

    /// Runs a pack of the call's folder.
    fn pack(&mut self, name: &str, folder: &Path, settings: &Settings) -> Result<Value, Failed> {
        let path = self.hour.packs.join(name);
        let pack = Pack::read(&path)?;
        let outcome = self.run(&pack, folder, settings, self.progress)?;
        let missing: Vec<Value> = pack
            .programs
            .iter()
            .filter_map(|p| Some(json!({"program": p.name, "not packed": p.missing.as_ref()?})))
            .collect();
        Ok(json!({"outcome": outcome, "missing": missing}))
    }

    fn run(
        &mut self,
        pack: &Pack,
        folder: &Path,
        settings: &Settings,
        progress: &dyn Progress,
    ) -> Result<Outcome, Failed> {
        let any_gpu = self.hour.any_gpu;
        let least_timeout = self.hour.least_timeout;
        let described = self.device()?.describe();
        if let Some(reason) = described.and_then(|info| pack.misfit(&info)).filter(|_| !any_gpu) {
            return Err(Failed { reason, lost: false });
        }
        let settings = Settings { least_timeout: settings.least_timeout.max(least_timeout), ..settings.clone() };
        // Whatever happens, what families have cost is kept.
        let mut breaker = std::mem::take(&mut self.breaker);
        let done = self.device().map(|device| pack::run(pack, device, &settings, &mut breaker, folder, progress));
        self.breaker = breaker;
        done?.map_err(failed)
    }
}

impl Call {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Call::Contact => "contact",
            Call::Suites => "suites",
            Call::Calibrate => "calibrate",
        }
    }

    fn stages(self, hour: &Hour<'_>) -> Vec<Stage<'static>> {
        match self {
            Call::Contact => contact(),
            Call::Suites => suites(&hour.packs),
            Call::Calibrate => fitted(),
        }
    }
}

fn stage<'s>(
    name: &str,
    share: f64,
    run: impl FnMut(&mut State<'_, '_>, &Path, Duration) -> Result<Value, Failed> + 's,
) -> Stage<'s> {
    Stage { name: name.into(), share, run: Box::new(run) }
}

fn environment() -> Stage<'static> {
    stage("env", 0.03, |state, folder, _| {
        let log = std::fs::File::create(folder.join("clocks.csv"))?;
        let machine = state.hour.machine.clone();
        // What the machine has is written even where its GPU does not come up.
        write_whole(folder, "machine.json", &serde_json::to_string_pretty(&machine)?)?;
        let device = state.device()?;
        device.watch(log);
        let identity = device.identity().clone();
        let told = json!({"device": identity, "gpu": device.describe(), "machine": machine});
        write_whole(folder, "env.json", &serde_json::to_string_pretty(&told)?)?;
        Ok(told)
    })
}

fn contact() -> Vec<Stage<'static>> {
    let exact = |budget| Settings {
        budget,
        library: false,
        duels: Duels::None,
        whole: true,
        repeats: 10,
        ..Settings::default()
    };
    vec![
        environment(),
        stage("probes", 0.07, move |state, folder, budget| {
            state.pack("probes.pack", folder, &Settings { apart: true, ..exact(budget) })
        }),
        stage("families", 0.13, move |state, folder, budget| {
            // On whole numbers, where every bit is known, then on random ones.
            let (first, second) = (folder.join("whole"), folder.join("random"));
            let whole = state.pack("families.pack", &first, &exact(budget.mul_f64(0.6)))?;
            let settings = Settings { whole: false, ..exact(budget.mul_f64(0.4)) };
            Ok(json!({"whole": whole, "random": state.pack("families.pack", &second, &settings)?}))
        }),
        stage("sanitizer", 0.22, tools::sanitizers),
        stage("constants", 0.08, |state, folder, budget| {
            let device = state.device()?;
            let ceilings = device.ceilings(budget / 2)?;
            // What is finer may fail where the rest is there.
            let (finer, why) = match device.constants(budget / 2) {
                Ok(finer) => (finer, None),
                Err(error) => (None, Some(error.to_string())),
            };
            if let Some(info) = device.describe().filter(|_| ceilings.is_some()) {
                let here = probe::descriptor("here", &info, ceilings.as_ref(), finer.as_ref())?;
                write_whole(folder, "constants.toml", &here.text)?;
            }
            Ok(json!({"ceilings": ceilings, "constants": finer, "not measured": why}))
        }),
        stage("headlines", 0.3, |state, folder, budget| {
            state.pack("headlines.pack", folder, &Settings { budget, duels: Duels::Each, ..Settings::default() })
        }),
        stage("ab", 0.14, |state, folder, budget| {
            let settings = Settings { budget, library: false, duels: Duels::None, ..Settings::default() };
            state.pack("ab.pack", folder, &settings)
        }),
    ]
}

/// The packs of whole suites in a folder, by name.
fn suites(packs: &Path) -> Vec<Stage<'static>> {
    let mut names: Vec<String> = std::fs::read_dir(packs)
        .map(|d| d.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.retain(|n| n.starts_with("suite-") && n.ends_with(".pack"));
    names.sort();
    let share = 0.94 / names.len().max(1) as f64;
    let mut stages = vec![environment()];
    for file in names {
        let name = file.trim_end_matches(".pack").to_string();
        stages.push(stage(&name, share, move |state, folder, budget| {
            state.pack(&file, folder, &Settings { budget, ..Settings::default() })
        }));
    }
    stages
}

fn fitted() -> Vec<Stage<'static>> {
    vec![
        environment(),
        stage("measurements", 0.57, |state, folder, budget| {
            let settings = Settings { budget, library: false, duels: Duels::None, repeats: 24, ..Settings::default() };
            state.pack("calibrate.pack", folder, &settings)
        }),
        stage("fit", 0.1, |state, folder, _| {
            let pack = Pack::read(&state.hour.packs.join("calibrate.pack"))?;
            let gpu = pack.gpu()?;
            let rows = std::fs::read_to_string(state.hour.work("measurements").join("rows.ndjson"))?;
            let read = measurements::read(&rows, &gpu)?;
            let found = calibrate(&gpu, &read.rows)?;
            write_whole(folder, "fitted.toml", &descriptor_text(&pack.descriptor, &found)?)?;
            Ok(json!({"calibration": found, "left_out": read.skipped}))
        }),
        stage("closed-loop", 0.2, closed_loop::run),
        stage("counters", 0.08, tools::counters),
    ]
}

impl Hour<'_> {
    /// Where a stage works.
    fn work(&self, stage: &str) -> PathBuf {
        self.out.join("work").join(stage)
    }

    /// Runs a call. Stages that have their file from an earlier, interrupted call are not run again. What goes wrong in a
    /// stage stands in its file and in `SUMMARY.md`.
    ///
    /// # Errors
    /// When nothing can be written at all.
    pub fn run(&self, call: Call, progress: &dyn Progress) -> io::Result<()> {
        let begun = Instant::now();
        std::fs::create_dir_all(self.out.join("work"))?;
        let mut state = State { hour: self, device: None, breaker: Breaker::default(), progress };
        let mut told = format!("# {}\n\n", call.name());
        let mut pages = String::new();
        let stages = call.stages(self);
        let mut shares: f64 = stages.iter().map(|stage| stage.share).sum();
        for mut stage in stages {
            let folder = self.work(&stage.name);
            std::fs::create_dir_all(&folder)?;
            let file = format!("{}.json", stage.name);
            let known = std::fs::read_to_string(folder.join(&file)).ok();
            let known = known.and_then(|text| serde_json::from_str::<Value>(&text).ok());
            let result = match known {
                // Where it was running when the process ended, it has no file, and goes on.
                Some(result) => {
                    // What families have cost is not asked again.
                    let told = runs(&folder).iter().try_for_each(|run| state.breaker.recall(run));
                    told.map_err(io::Error::other)?;
                    result
                }
                None => {
                    progress.begin(&stage.name, 0);
                    // What stages leave of their time is for those that follow.
                    let left = self.budget.saturating_sub(begun.elapsed());
                    let budget = left.mul_f64((stage.share / shares.max(stage.share)).min(1.0)).mul_f64(FILES);
                    let result = match begin(&folder) {
                        Ok(()) => attempt(&mut state, &mut stage, &folder, budget),
                        Err(reason) => json!({"stage": stage.name, "seconds": 0.0, "failed": reason}),
                    };
                    write_whole(&folder, &file, &format!("{result:#}\n"))?;
                    result
                }
            };
            shares -= stage.share;
            let seconds = result["seconds"].as_f64().unwrap_or(0.0);
            let _ = match (result["failed"].as_str(), result["result"]["skipped"].as_str()) {
                (Some(reason), _) => writeln!(told, "* **{}** failed after {seconds:.1} s: {reason}", stage.name),
                (None, Some(reason)) => writeln!(told, "* {} was skipped: {reason}", stage.name),
                (None, None) => writeln!(told, "* {}: {seconds:.1} s", stage.name),
            };
            for page in summaries(&folder) {
                pages.push_str(&format!("\n#{}", page.trim_end()));
                pages.push('\n');
            }
            let _ = write!(told, "{}", bundle(&self.out, &stage.name, &folder));
            write_whole(&self.out, "SUMMARY.md", &format!("{told}{pages}"))?;
            if progress.stopped() {
                return Ok(());
            }
        }
        // Each stage has come into its own file.
        drop(state);
        std::fs::remove_dir_all(self.out.join("work"))
    }
}

/// Times that a stage is begun: a process that ended in it may have been killed by somebody.
const ATTEMPTS: u64 = 2;

/// Notes that a stage begins; why it should not.
fn begin(folder: &Path) -> Result<(), String> {
    let mut file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(folder.join("attempts"))
        .map_err(|e| format!("{}: {e}", folder.display()))?;
    let before = file.metadata().map_or(0, |m| m.len());
    if before >= ATTEMPTS {
        return Err(format!("the process ended in this stage {before} times; what it had until then is in its folder"));
    }
    io::Write::write_all(&mut file, b".").map_err(|e| e.to_string())
}

/// Runs a stage; whatever becomes of it is its result.
fn attempt(state: &mut State<'_, '_>, stage: &mut Stage<'_>, folder: &Path, budget: Duration) -> Value {
    let begun = Instant::now();
    // A panic is a bug, but no reason to lose the rest of the hour.
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (stage.run)(state, folder, budget)));
    let seconds = begun.elapsed().as_secs_f64();
    match done {
        Ok(Ok(result)) => json!({"stage": stage.name, "seconds": seconds, "result": result}),
        Ok(Err(Failed { reason, lost })) => {
            if lost {
                state.device = None;
            }
            json!({"stage": stage.name, "seconds": seconds, "failed": reason})
        }
        Err(_) => {
            state.device = None;
            json!({"stage": stage.name, "seconds": seconds, "failed": "a bug: it panicked; what it said stands in the log"})
        }
    }
}

/// Where a stage may have run packs: its folder, and those in it.
fn runs(folder: &Path) -> Vec<PathBuf> {
    let inner = std::fs::read_dir(folder).map(|d| d.flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect());
    let mut inner: Vec<PathBuf> = inner.unwrap_or_default();
    inner.sort();
    [vec![folder.into()], inner].concat()
}

/// The pages of the packs that a stage ran.
fn summaries(folder: &Path) -> Vec<String> {
    // Several runs of one pack have one heading.
    let headed = |(number, run): (usize, PathBuf)| {
        let page = std::fs::read_to_string(run.join("SUMMARY.md")).ok()?;
        match number {
            0 => Some(page),
            _ => Some(page.replacen('\n', &format!(" ({})\n", run.file_name()?.to_string_lossy()), 1)),
        }
    };
    runs(folder).into_iter().enumerate().filter_map(headed).collect()
}

/// Packs a stage's folder into one file. What is to be said about that; nothing where all went well.
fn bundle(out: &Path, name: &str, folder: &Path) -> String {
    let file = out.join(format!("{name}.tar.gz"));
    let written = std::fs::File::create(&file).and_then(|target| {
        let mut archive = tar::Builder::new(flate2::write::GzEncoder::new(target, flate2::Compression::default()));
        archive.append_dir_all(name, folder)?;
        archive.into_inner()?.finish()?.metadata()
    });
    match written {
        Ok(meta) if meta.len() > LARGEST => {
            format!("  * {name}.tar.gz has {} MiB, more than the {} that come back\n", meta.len() >> 20, LARGEST >> 20)
        }
        Ok(_) => String::new(),
        Err(error) => format!("  * {name}.tar.gz: {error}\n"),
    }
}

/// The works of a list of programs.
fn works(names: &[&str]) -> Result<Vec<source::Work>, source::SourceError> {
    names.iter().map(|name| source::load_work(name)).collect()
}
