//! Running a pack: breadth first, by its own clock, each result on disk before the next measurement begins.
//!
//! In the folder: `run.json` (what ran on what), `rows.ndjson` (candidates, as `db export` has them), `library.ndjson`,
//! `duels.ndjson`, `SUMMARY.md`. A run into a folder that has results of the same pack on the same device goes on.
use super::ahead::Ahead;
use super::breaker::{Breaker, Turn};
use super::{summary, Family, Origin, Pack, PackError};
use crate::compile::Job;
use crate::device::cuda::reference;
use crate::device::{Ask, Device, DeviceError, DeviceKind, Door, Duelled, Ready};
use crate::measure::bench::ROUNDS;
use crate::progress::Progress;
use crate::source::{SourceError, Work};
use crate::store::{hash, now, Key, Reason, Row, Verdict};
use satune_extract::Descriptor;
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Times its prediction that a candidate may take, all repeats.
const TIMES_PREDICTED: f64 = 200.0;
/// Of the time for all, what a candidate that hangs may take at least: one must not take the time of the others.
const LARGEST_PART: u32 = 3;
/// Candidates of each program that come right behind the library.
const EARLY: usize = 8;

/// Which candidates take turns with the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duels {
    /// None.
    None,
    /// Of each program the fastest, at the end.
    Fastest,
    /// All, in place of being measured alone.
    Each,
}

/// How to run a pack.
#[derive(Clone, Debug)]
pub struct Settings {
    /// For all of it.
    pub budget: Duration,
    /// Least time that a candidate is given, where the budget has three times as much.
    pub least_timeout: Duration,
    /// Beside the library.
    pub library: bool,
    /// In turns with it.
    pub duels: Duels,
    /// Inputs are whole numbers, on which sums of products must be exact.
    pub whole: bool,
    /// Most repeats of a measurement; 0: see [`Ask::most_repeats`].
    pub repeats: u32,
    /// Each candidate in a process of its own, for a tool that looks at processes too.
    pub apart: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            budget: Duration::from_secs(300),
            least_timeout: Duration::from_secs(2),
            library: true,
            duels: Duels::Fastest,
            whole: false,
            repeats: 100,
            apart: false,
        }
    }
}

/// Why a pack was not run, or not to its end. What was measured is on disk.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The pack.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// A program in it.
    #[error(transparent)]
    Program(#[from] SourceError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A file.
    #[error("{path}: {error}")]
    File {
        /// Which.
        path: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The folder has results of something else.
    #[error("{folder} has results of {of}, and this is {this}; give another folder")]
    Other {
        /// As asked.
        folder: String,
        /// What it has.
        of: String,
        /// What was to be added.
        this: String,
    },
}

/// What ran, on what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    pub pack: String,
    pub suite: String,
    pub gpu: String,
    pub kind: DeviceKind,
    pub device: String,
    pub toolchain: String,
}

/// A candidate's result: a row of a store, and how it came about.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Line {
    #[serde(flatten)]
    pub row: Row,
    pub place: Origin,
    pub family: Family,
    /// Time on the device, compilation apart, s.
    pub device_s: f64,
}

/// What candidates of a program are compared with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LibraryLine {
    pub operator: String,
    pub what: String,
    pub whole: bool,
    #[serde(flatten)]
    pub verdict: Verdict,
    pub doors: Vec<Door>,
}

/// A candidate and the library in turns.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct DuelLine {
    pub operator: String,
    pub trace: String,
    pub place: Origin,
    pub what: String,
    pub whole: bool,
    pub ratio: Option<f64>,
    pub spread: Option<f64>,
    pub duelled: Option<Duelled>,
    pub rejected: Option<Verdict>,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Candidates measured now.
    pub measured: usize,
    /// Candidates without a time now, by reason.
    pub rejected: BTreeMap<String, usize>,
    /// Candidates that were known from an earlier run.
    pub known: usize,
    /// Candidates that were not reached.
    pub left: usize,
    /// Candidates that were not asked, by reason.
    pub skipped: BTreeMap<String, usize>,
    /// Times that the device waited for a compiler, since nothing else was ready for it.
    pub waits: usize,
    /// Time that the device was asked for something, s.
    pub device_s: f64,
    /// Time of all, s.
    pub wall_s: f64,
}

impl Outcome {
    /// Part of the time of all that the device was asked for something.
    pub fn busy(&self) -> f64 {
        self.device_s / self.wall_s.max(1e-9)
    }

    /// Candidates measured per second of the device's time.
    pub fn per_second(&self) -> f64 {
        self.measured as f64 / self.device_s.max(1e-9)
    }
}

/// What is due, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Item {
    Candidate(usize, usize),
    Library(usize),
}

/// Breadth first: the first candidate of every program, the library for every program, the next of each up to the eighth, then
/// all others, round by round.
fn order(sizes: &[usize], library: bool) -> Vec<Item> {
    let round =
        |c: usize| sizes.iter().enumerate().filter(move |(_, n)| c < **n).map(move |(p, _)| Item::Candidate(p, c));
    let most = sizes.iter().copied().max().unwrap_or(0);
    let libraries = (0..sizes.len()).filter(|_| library).map(Item::Library);
    let early = (1..EARLY.min(most)).flat_map(round);
    // The model's later choices and random ones in turn: what was reached says something about both.
    let rest: Vec<usize> = (EARLY.min(most)..most).collect();
    let (first, second) = rest.split_at(rest.len() / 2);
    let mixed = first.iter().zip(second).flat_map(|(a, b)| [*a, *b]).chain(second.iter().skip(first.len()).copied());
    let mixed: Vec<usize> = mixed.collect();
    round(0).chain(libraries).chain(early).chain(mixed.into_iter().flat_map(round)).collect()
}

/// What is compiled before it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Code {
    Candidate(usize, usize),
    /// A program's reference: nothing of it is measured without.
    Reference(usize),
}

/// Where the first stands whose machine code is there; where there is none, it is waited for, and counted. `None`: not before
/// the deadline.
fn first_ready(queue: &VecDeque<Item>, ahead: &Ahead<Code>, deadline: Instant, waits: &mut usize) -> Option<usize> {
    let codes = |item: &Item| match *item {
        Item::Candidate(p, c) => [Code::Reference(p), Code::Candidate(p, c)],
        Item::Library(p) => [Code::Reference(p); 2],
    };
    let mut count = ahead.count();
    let ready = || queue.iter().position(|item| codes(item).iter().all(|code| ahead.has(code)));
    let mut found = ready();
    *waits += usize::from(found.is_none());
    while found.is_none() && ahead.wait(&codes(queue.front()?), count, deadline) {
        count = ahead.count();
        found = ready();
    }
    found
}

/// Files of results, which grow by lines.
struct Files {
    folder: PathBuf,
}

impl Files {
    fn error(&self, name: &str, error: std::io::Error) -> RunError {
        RunError::File { path: self.folder.join(name).display().to_string(), error }
    }

    /// The lines of a file that can be read.
    fn lines<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<T>, RunError> {
        let Ok(file) = File::open(self.folder.join(name)) else { return Ok(Vec::new()) };
        let lines: Result<Vec<String>, _> = BufReader::new(file).lines().collect();
        let lines = lines.map_err(|e| self.error(name, e))?;
        Ok(lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    fn append<T: Serialize>(&self, name: &str, line: &T) -> Result<(), RunError> {
        let text = serde_json::to_string(line).map_err(|e| self.error(name, e.into()))?;
        let file = File::options().create(true).append(true).open(self.folder.join(name));
        file.and_then(|mut f| f.write_all(format!("{text}\n").as_bytes())).map_err(|e| self.error(name, e))
    }

    /// Takes a line away that was cut off by the end of a process: what is behind the last end of a line.
    fn mend(&self, name: &str) -> Result<(), RunError> {
        let path = self.folder.join(name);
        let Ok(bytes) = std::fs::read(&path) else { return Ok(()) };
        let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        if whole == bytes.len() {
            return Ok(());
        }
        let file = File::options().write(true).open(path);
        file.and_then(|f| f.set_len(whole as u64)).map_err(|e| self.error(name, e))
    }
}

pub(super) const ROWS: &str = "rows.ndjson";
pub(super) const LIBRARY: &str = "library.ndjson";
pub(super) const DUELS: &str = "duels.ndjson";
const HEAD: &str = "run.json";

/// Runs a pack on a device. What goes wrong with a candidate is in its row; `breaker` remembers families from one pack to
/// the next.
///
/// # Errors
/// See [`RunError`]. What was measured before is on disk.
pub fn run(
    pack: &Pack,
    device: &mut dyn Device,
    settings: &Settings,
    breaker: &mut Breaker,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<Outcome, RunError> {
    let begun = Instant::now();
    let least_timeout = settings.least_timeout.min(settings.budget / LARGEST_PART);
    let settings = &Settings { least_timeout, ..settings.clone() };
    let files = Files { folder: folder.into() };
    std::fs::create_dir_all(folder).map_err(|e| files.error("", e))?;
    let works: Vec<Work> = pack.programs.iter().map(super::Packed::work).collect::<Result<_, _>>()?;
    let mut run = Run {
        pack,
        works,
        gpu: pack.gpu()?,
        settings,
        files,
        device,
        breaker,
        outcome: Outcome::default(),
        deadline: begun + settings.budget,
        known: HashSet::new(),
        compared: HashSet::new(),
        duelled: HashSet::new(),
        best: BTreeMap::new(),
    };
    run.head()?;
    run.recall()?;
    let done = run.all(progress);
    run.outcome.wall_s = begun.elapsed().as_secs_f64();
    let outcome = run.outcome.clone();
    let text = summary(folder, Some(&outcome)).map_err(|error| run.files.error("SUMMARY.md", error))?;
    std::fs::write(folder.join("SUMMARY.md"), text).map_err(|error| run.files.error("SUMMARY.md", error))?;
    done.map(|()| outcome)
}

struct Run<'r> {
    pack: &'r Pack,
    works: Vec<Work>,
    gpu: Descriptor,
    settings: &'r Settings,
    files: Files,
    device: &'r mut dyn Device,
    breaker: &'r mut Breaker,
    outcome: Outcome,
    deadline: Instant,
    /// Program and place of what has a row.
    known: HashSet<(usize, Origin)>,
    /// Programs whose library has a time or a reason.
    compared: HashSet<usize>,
    /// Program and trace of what took turns.
    duelled: HashSet<(usize, String)>,
    /// Of each program the fastest candidate.
    best: BTreeMap<usize, Best>,
}

/// The fastest candidate of a program.
struct Best {
    ms: f64,
    candidate: usize,
    /// Its machine code, where it was measured now.
    code: Option<Vec<Vec<u8>>>,
}

impl Run<'_> {
    /// Notes a time, and whose it is.
    fn timed(&mut self, p: usize, candidate: usize, ms: f64, code: Option<&Vec<Vec<u8>>>) {
        if self.best.get(&p).is_none_or(|best| ms < best.ms) {
            self.best.insert(p, Best { ms, candidate, code: code.cloned() });
        }
    }
}

impl Run<'_> {
    /// Says what runs on what, or that the folder has something else.
    fn head(&self) -> Result<(), RunError> {
        let identity = self.device.identity();
        let head = Head {
            pack: self.pack.hash.clone(),
            suite: self.pack.suite.clone(),
            gpu: self.gpu.name.clone(),
            kind: identity.kind,
            device: identity.device.clone(),
            toolchain: identity.toolchain.clone(),
        };
        let path = self.files.folder.join(HEAD);
        if let Ok(text) = std::fs::read_to_string(&path) {
            let tell = |h: &Head| {
                format!("the pack {} ({}) on {}, {}", h.suite, &h.pack[..12.min(h.pack.len())], h.device, h.toolchain)
            };
            let known: Head = serde_json::from_str(&text).map_err(|e| self.files.error(HEAD, e.into()))?;
            if known != head {
                let folder = self.files.folder.display().to_string();
                return Err(RunError::Other { folder, of: tell(&known), this: tell(&head) });
            }
            return Ok(());
        }
        let text = serde_json::to_string_pretty(&head).map_err(|e| self.files.error(HEAD, e.into()))?;
        std::fs::write(path, text).map_err(|e| self.files.error(HEAD, e))
    }

    /// What an earlier run found.
    fn recall(&mut self) -> Result<(), RunError> {
        for name in [ROWS, LIBRARY, DUELS] {
            self.files.mend(name)?;
        }
        self.breaker.recall(&self.files.folder)?;
        let pack = self.pack;
        let number = |operator: &str| pack.programs.iter().position(|p| p.name == operator);
        for line in self.files.lines::<Line>(ROWS)? {
            let Some(p) = number(&line.row.operator) else { continue };
            let trace = &line.row.key.trace;
            let at = pack.programs[p].candidates.iter().position(|c| c.place == line.place);
            debug_assert!(at.is_none_or(|c| self.ready(p, c).trace == *trace));
            if let (Some(ms), Some(c)) = (line.row.verdict.median_ms(), at) {
                self.timed(p, c, ms, None);
            }
            self.known.insert((p, line.place.clone()));
        }
        for line in self.files.lines::<LibraryLine>(LIBRARY)? {
            self.compared.extend(number(&line.operator));
        }
        for line in self.files.lines::<DuelLine>(DUELS)? {
            self.duelled.extend(number(&line.operator).map(|p| (p, line.trace)));
        }
        Ok(())
    }

    fn all(&mut self, progress: &dyn Progress) -> Result<(), RunError> {
        let sizes: Vec<usize> = self.pack.programs.iter().map(|p| p.candidates.len()).collect();
        let order = order(&sizes, self.settings.library);
        let due = |item: &Item| match item {
            Item::Candidate(p, c) => !self.known.contains(&(*p, self.pack.programs[*p].candidates[*c].place.clone())),
            Item::Library(p) => !self.compared.contains(p),
        };
        let mut queue: VecDeque<Item> = order.iter().copied().filter(due).collect();
        self.outcome.known = order.iter().filter(|i| matches!(i, Item::Candidate(..)) && !due(i)).count();
        let driver = self.driver()?;
        if let Some(driver) = &driver {
            for (program, work) in self.pack.programs.iter().zip(&self.works) {
                if let Some(code) = program.reference_for(driver) {
                    self.device.teach(work.workload(), code);
                }
            }
        }
        let pack = self.pack;
        let packed = |p: usize, c: usize| driver.as_ref().and_then(|d| pack.programs[p].candidates[c].code_for(d));
        let ahead = self.device.compiler().map(|(compiler, arch)| {
            let mut list: Vec<(Code, Vec<Job>)> = Vec::new();
            let mut begun = HashSet::new();
            for item in &queue {
                let (Item::Candidate(p, _) | Item::Library(p)) = *item;
                let referred = driver.as_ref().is_some_and(|d| pack.programs[p].reference_for(d).is_some());
                if begun.insert(p) && !referred {
                    list.push((Code::Reference(p), reference(self.works[p].workload(), &arch)));
                }
                if let Item::Candidate(p, c) = *item {
                    if packed(p, c).is_none() {
                        list.push((Code::Candidate(p, c), self.ready(p, c).jobs(&arch)));
                    }
                }
            }
            list.retain(|(_, jobs)| !jobs.is_empty());
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            Ahead::start(Box::new(move |job, go_on| compiler.compile_job(job, go_on)), threads, list)
        });
        // Time for the duels of the fastest at the end.
        let share = if self.settings.duels == Duels::Fastest { 0.12 } else { 0.0 };
        let reserve = self.settings.budget.mul_f64(share);
        progress.begin(&format!("measuring {}", self.pack.suite), queue.len());
        let mut last: VecDeque<Item> = VecDeque::new();
        let mut waited = false;
        loop {
            if progress.stopped() {
                break;
            }
            if queue.is_empty() {
                if last.is_empty() {
                    break;
                }
                (queue, waited) = (std::mem::take(&mut last), true);
            }
            if !self.has_time(reserve) {
                break;
            }
            let waits = &mut self.outcome.waits;
            let at = ahead.as_ref().map_or(Some(0), |ahead| first_ready(&queue, ahead, self.deadline, waits));
            let Some(item) = at.and_then(|at| queue.remove(at)) else { break };
            let (Item::Candidate(p, _) | Item::Library(p)) = item;
            if let Some(Ok((code, _))) = ahead.as_ref().and_then(|ahead| ahead.take(&Code::Reference(p))) {
                self.device.teach(self.works[p].workload(), &code);
            }
            let Item::Candidate(p, c) = item else {
                self.library(p)?;
                progress.advance();
                continue;
            };
            let candidate = &self.pack.programs[p].candidates[c];
            match self.breaker.turn(Family::of(&candidate.ready.plan)) {
                Turn::Now => {}
                Turn::Last if waited => {}
                Turn::Last => {
                    last.push_back(item);
                    continue;
                }
                Turn::Never(why) => {
                    *self.outcome.skipped.entry(why).or_default() += 1;
                    continue;
                }
            }
            let mut ready = candidate.ready.clone();
            let made = ahead.as_ref().and_then(|ahead| match packed(p, c) {
                Some((code, registers)) => Some(Ok((code.to_vec(), registers))),
                None => ahead.take(&Code::Candidate(p, c)),
            });
            let refused = match made {
                Some(Ok((code, registers))) => {
                    self.compiled(p, &mut ready, code, registers);
                    None
                }
                Some(Err(verdict)) => Some(verdict),
                None => None,
            };
            self.candidate(p, c, &ready, refused)?;
            progress.advance();
        }
        let left = queue.iter().chain(&last).filter(|i| matches!(i, Item::Candidate(..)));
        self.outcome.left = left.count();
        if self.settings.duels == Duels::Fastest && !progress.stopped() {
            self.fastest()?;
        }
        Ok(())
    }

    /// The CUDA version that the driver knows, where the pack's machine code is for this device's architecture.
    fn driver(&self) -> Result<Option<String>, RunError> {
        let arch = self.pack.gpu()?.arch;
        let fits = self.device.describe().is_some_and(|info| info.arch == arch);
        let driver = self.device.identity().toolchain.rsplit_once("driver ").map(|(_, version)| version.to_string());
        Ok(driver.filter(|_| fits))
    }

    /// A candidate with its machine code. Its time is predicted anew where the compiler gave it more registers than the model
    /// counted, before it is measured.
    fn compiled(&self, p: usize, ready: &mut Ready, code: Vec<Vec<u8>>, registers: u32) {
        ready.code = Some(code);
        let known = self.works[p].workload().predict_compiled(&ready.plan, &self.gpu, registers);
        if let Some(cost) = known.ok().filter(|_| registers > 0) {
            ready.predicted_ms = ready.predicted_ms.max(cost.ms);
        }
    }

    fn ready(&self, p: usize, c: usize) -> &Ready {
        &self.pack.programs[p].candidates[c].ready
    }

    /// A candidate's time, by its prediction.
    fn ask(&self, predicted_ms: f64) -> Ask {
        let wanted = Duration::from_secs_f64((TIMES_PREDICTED * predicted_ms * 1e-3).clamp(0.0, 3600.0));
        let timeout = wanted.max(self.settings.least_timeout);
        Ask { timeout, whole: self.settings.whole, most_repeats: self.settings.repeats, ..Ask::default() }
    }

    /// Whether there is time for one more, even if it hangs: a time that is cut short would say that it did.
    fn has_time(&self, reserve: Duration) -> bool {
        Instant::now() + reserve + self.settings.least_timeout < self.deadline
    }

    fn candidate(&mut self, p: usize, c: usize, ready: &Ready, refused: Option<Verdict>) -> Result<(), RunError> {
        let ask = self.ask(ready.predicted_ms);
        if self.settings.apart {
            self.device.restart();
        }
        let begun = Instant::now();
        let verdict = match refused {
            Some(verdict) => verdict,
            None if self.settings.duels == Duels::Each => match self.duel(p, c, ready, &ask)? {
                Some(verdict) => verdict,
                None => self.device.measure_ready(self.works[p].workload(), ready, &ask)?,
            },
            None => self.device.measure_ready(self.works[p].workload(), ready, &ask)?,
        };
        let device_s = begun.elapsed().as_secs_f64();
        self.outcome.device_s += device_s;
        let family = Family::of(&ready.plan);
        self.breaker.note(family, &verdict);
        match &verdict {
            Verdict::Measured(timing) => {
                self.outcome.measured += 1;
                self.timed(p, c, timing.median_ms(), ready.code.as_ref());
            }
            Verdict::Rejected { reason, .. } => *self.outcome.rejected.entry(reason.name().into()).or_default() += 1,
        }
        let program = &self.pack.programs[p];
        let identity = self.device.identity();
        let key = Key {
            program: hash(self.works[p].workload().script()),
            trace: ready.trace.clone(),
            toolchain: identity.toolchain.clone(),
            device: identity.device.clone(),
        };
        let row = Row {
            key,
            operator: program.name.clone(),
            script: program.script.clone(),
            gpu: self.gpu.name.clone(),
            predicted_ms: ready.predicted_ms,
            plan: ready.plan.clone(),
            at: now(),
            verdict,
        };
        let place = program.candidates[c].place.clone();
        self.files.append(ROWS, &Line { row, place, family, device_s })
    }

    /// A candidate and the library in turns. The candidate's verdict, where there is one.
    fn duel(&mut self, p: usize, c: usize, ready: &Ready, ask: &Ask) -> Result<Option<Verdict>, RunError> {
        let program = &self.pack.programs[p];
        let found = self.device.duel(self.works[p].workload(), ready, ask, ROUNDS)?;
        let Some(found) = found else { return Ok(None) };
        let mut line = DuelLine {
            operator: program.name.clone(),
            trace: ready.trace.clone(),
            place: program.candidates[c].place.clone(),
            what: found.what,
            whole: found.whole,
            ratio: None,
            spread: None,
            duelled: None,
            rejected: None,
        };
        let verdict = match found.outcome {
            Ok(duelled) => {
                (line.ratio, line.spread) = (Some(duelled.ratio()), Some(duelled.spread()));
                let ours = duelled.ours.clone();
                line.duelled = Some(duelled);
                Some(Verdict::Measured(ours))
            }
            Err(verdict) => {
                line.rejected = Some(verdict.clone());
                // The library may be what went wrong: a kernel that was not stopped is measured alone.
                let stopped = matches!(&verdict, Verdict::Rejected { reason: Reason::Timeout | Reason::Crash, .. });
                stopped.then_some(verdict)
            }
        };
        self.duelled.insert((p, ready.trace.clone()));
        self.files.append(DUELS, &line)?;
        Ok(verdict)
    }

    fn library(&mut self, p: usize) -> Result<(), RunError> {
        let begun = Instant::now();
        let predicted = self.pack.programs[p].candidates.first().map_or(0.0, |c| c.ready.predicted_ms);
        let mut ask = self.ask(predicted);
        // All ways to its result are tried.
        ask.timeout *= 10;
        let found = self.device.library(self.works[p].workload(), &ask)?;
        self.outcome.device_s += begun.elapsed().as_secs_f64();
        let Some(rival) = found else { return Ok(()) };
        let operator = self.pack.programs[p].name.clone();
        let line =
            LibraryLine { operator, what: rival.what, whole: rival.whole, verdict: rival.verdict, doors: rival.doors };
        self.compared.insert(p);
        self.files.append(LIBRARY, &line)
    }

    /// Of each program the fastest candidate in turns with the library.
    fn fastest(&mut self) -> Result<(), RunError> {
        let Some((compiler, arch)) = self.device.compiler() else { return Ok(()) };
        let driver = self.driver()?;
        for (p, Best { candidate: c, code, .. }) in std::mem::take(&mut self.best) {
            let mut ready = self.ready(p, c).clone();
            if self.duelled.contains(&(p, ready.trace.clone())) {
                continue;
            }
            if !self.has_time(Duration::ZERO) {
                break;
            }
            let packed = driver.as_ref().and_then(|d| self.pack.programs[p].candidates[c].code_for(d));
            ready.code = match (code, packed) {
                (Some(code), _) => Some(code),
                (None, Some((code, _))) => Some(code.to_vec()),
                (None, None) => {
                    let code: Result<Vec<_>, _> = ready.jobs(&arch).iter().map(|j| compiler.compile(j)).collect();
                    let Ok(code) = code else { continue };
                    Some(code.into_iter().map(|c| c.cubin).collect())
                }
            };
            let mut ask = self.ask(ready.predicted_ms);
            ask.timeout *= 4;
            let begun = Instant::now();
            self.duel(p, c, &ready, &ask)?;
            self.outcome.device_s += begun.elapsed().as_secs_f64();
        }
        Ok(())
    }
}

/// What a folder has.
pub(super) struct Results {
    pub head: Option<Head>,
    pub rows: Vec<Line>,
    pub libraries: Vec<LibraryLine>,
    pub duels: Vec<DuelLine>,
}

/// The results in a folder.
pub(super) fn results(folder: &Path) -> Result<Results, RunError> {
    let files = Files { folder: folder.into() };
    let head = std::fs::read_to_string(folder.join(HEAD)).ok().and_then(|t| serde_json::from_str(&t).ok());
    Ok(Results { head, rows: files.lines(ROWS)?, libraries: files.lines(LIBRARY)?, duels: files.lines(DUELS)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_breadth_first() {
        use Item::{Candidate as C, Library as L};
        let all = order(&[12, 2, 0], true);
        assert_eq!(all[..8], [C(0, 0), C(1, 0), L(0), L(1), L(2), C(0, 1), C(1, 1), C(0, 2)]);
        assert_eq!(all[all.len() - 5..], [C(0, 7), C(0, 8), C(0, 10), C(0, 9), C(0, 11)]);
        let candidates: HashSet<Item> = all.iter().copied().filter(|i| matches!(i, C(..))).collect();
        assert_eq!((all.len(), candidates.len()), (12 + 2 + 3, 14));
        assert_eq!(order(&[1], false), [C(0, 0)]);
    }

    #[test]
    fn what_is_compiled_goes_first() {
        use Item::{Candidate as C, Library as L};
        let (tell, told) = std::sync::mpsc::channel();
        let told = std::sync::Mutex::new(told);
        let compile: super::super::ahead::Compile = Box::new(move |job, _| {
            if job.name == "slow" {
                told.lock().unwrap().recv().unwrap();
            }
            Err(crate::compile::CompileError::Missing)
        });
        let job = |name: &str| vec![Job { name: name.into(), source: String::new(), arch: "sm_90".into() }];
        let list = vec![
            (Code::Reference(0), job("soon")),
            (Code::Candidate(0, 0), job("slow")),
            (Code::Candidate(1, 0), job("soon")),
            (Code::Reference(1), job("soon")),
        ];
        let ahead = Ahead::start(compile, 2, list);
        let late = Instant::now() + Duration::from_secs(3600);
        // Of the third program all is there from the start.
        let mut queue: VecDeque<Item> = [C(0, 0), C(1, 0), C(2, 0), L(1), L(2)].into();
        let mut waits = 0;
        let mut taken = HashSet::new();
        for _ in 0..4 {
            let at = first_ready(&queue, &ahead, late, &mut waits).unwrap();
            taken.extend(queue.remove(at));
        }
        assert_eq!(taken, HashSet::from([C(1, 0), C(2, 0), L(1), L(2)]));
        waits = 0;
        assert_eq!(first_ready(&queue, &ahead, Instant::now(), &mut waits), None);
        assert_eq!(waits, 1);
        tell.send(()).unwrap();
        assert_eq!(first_ready(&queue, &ahead, late, &mut waits), Some(0));
        assert!(ahead.take(&Code::Candidate(0, 0)).is_some_and(|code| code.is_err()));
        // Taken once, it was made all the same.
        assert!(ahead.take(&Code::Candidate(0, 0)).is_none() && ahead.has(&Code::Candidate(0, 0)));
    }
}
