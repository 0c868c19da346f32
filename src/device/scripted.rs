//! A device whose outcomes stand in a file, for tests of everything around a device: each outcome is acted out by a real
//! worker process, so that hangs hang and crashes crash.
use super::protocol::{GpuInfo, Libraries, MeasureJob, Request, Said, What};
use super::worker::{Serve, Supervised};
use super::{Ask, Device, DeviceError, DeviceKind, Identity, Ready};
use crate::compile::Compiler;
use crate::pack::Family;
use crate::source::Work;
use crate::store::{hash, Reason, Timing, Verdict};
use crate::workload::Workload;
use crate::{scheduled, source};
use satune_extract::Descriptor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What happens to a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Its kernels are lowered and simulated; right, it takes what `Near` says, else it is wrong.
    Computed,
    /// Its kernels' texts are compiled by NVRTC and executed as PTX; right, it takes what `Near` says, else it is wrong.
    Executed,
    /// It takes so long, ms.
    Time(f64),
    /// It takes what was predicted times a factor from 0.75 to 1.25 that depends on its trace.
    Near,
    /// As `Near`, with a spread of two percent between visits and repeats.
    Noisy,
    /// No answer, ever.
    Hang,
    /// The worker calls `abort`.
    Abort,
    /// The worker kills itself with signal 9, always.
    Killed,
    /// The worker is killed the first time; the second time the candidate takes what was predicted.
    KilledOnce,
    /// The worker exits with status 0 and without a word.
    Leaves,
    /// The worker says that an illegal access has spoilt its context.
    IllegalAccess,
    /// The result differs from the reference.
    Wrong,
    /// Not enough device memory.
    Oom,
    /// Not enough device memory the first time only.
    OomOnce,
    /// The compiler refuses it.
    CompileError,
    /// The answer is no JSON.
    Nonsense,
    /// The answer ends in the middle, with the process.
    Half,
    /// The answer is to another request.
    Stale,
    /// An answer without end.
    Flood,
    /// More talk on standard error than a pipe holds, then what was predicted.
    Talkative,
    /// The device is lost, the first time only: this worker dies, and none comes up as long as there is a file
    /// `SCRIPT.down`.
    TakesDown,
    /// No times.
    Empty,
    /// Times of zero.
    Zero,
    /// Negative times.
    Negative,
    /// A time that is no number.
    NotANumber,
}

/// A script.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Each candidate takes its turn's outcome: the one at its trace's hash modulo their number.
    pub outcomes: Vec<Outcome>,
    /// Instead, of families of kernels.
    #[serde(default)]
    pub families: BTreeMap<Family, Outcome>,
    /// Instead of all, of the first requests in their order, over all processes; they are counted in a file `SCRIPT.turns`.
    #[serde(default)]
    pub first: Vec<Outcome>,
    /// The GPU that `Computed` and `Executed` are for.
    #[serde(default = "usual")]
    pub gpu: String,
    /// Before each answer, ms.
    #[serde(default)]
    pub delay_ms: u64,
    /// Whether each answer is noted in a file `SCRIPT.log`: process and trace.
    #[serde(default)]
    pub log: bool,
}

fn usual() -> String {
    "h200".into()
}

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    /// When there is none, or it is malformed.
    pub fn load(path: &Path) -> Result<Script, String> {
        let named = |e: String| format!("script {}: {e}", path.display());
        let text = satune_ir::files::read_text(path, 1 << 20).map_err(|e| named(e.to_string()))?;
        let script: Script = serde_json::from_str(&text).map_err(|e| named(e.to_string()))?;
        if script.outcomes.is_empty() {
            return Err(named("no outcomes".into()));
        }
        Ok(script)
    }

    /// What a candidate takes, ms, if it takes always the same.
    pub fn time_ms(&self, trace: &str, predicted_ms: f64) -> Option<f64> {
        match self.outcome(trace) {
            Outcome::Time(ms) => Some(*ms),
            Outcome::Near => Some(near(trace, predicted_ms)),
            Outcome::KilledOnce | Outcome::OomOnce | Outcome::Talkative | Outcome::TakesDown => Some(predicted_ms),
            _ => None,
        }
    }

    /// The outcome of a candidate.
    pub fn outcome(&self, trace: &str) -> &Outcome {
        &self.outcomes[(number(trace) % self.outcomes.len() as u64) as usize]
    }
}

fn number(trace: &str) -> u64 {
    u64::from_str_radix(trace.get(..15).unwrap_or("0"), 16).unwrap_or(0)
}

/// The time of [`Outcome::Near`].
fn near(trace: &str, predicted_ms: f64) -> f64 {
    let share = (number(&hash(trace)) % 10_007) as f64 / 10_006.0;
    predicted_ms * (0.75 + 0.5 * share)
}

/// The scripted device.
pub struct Scripted {
    supervised: Supervised,
    identity: Identity,
}

impl Scripted {
    /// The device of a script; `program` is the `satune` command.
    ///
    /// # Errors
    /// When the script is malformed.
    pub fn new(program: PathBuf, script: &Path) -> Result<Scripted, DeviceError> {
        let read = Script::load(script)
            .map_err(|what| DeviceError::Missing { what, remedy: "give a script of outcomes".into() })?;
        let text = serde_json::to_string(&read.outcomes).unwrap_or_default();
        let identity = Identity {
            kind: DeviceKind::Scripted,
            device: format!("script {}", &hash(&text)[..12]),
            toolchain: "none".into(),
            deterministic: !read.outcomes.contains(&Outcome::Noisy),
        };
        let arguments = vec!["scripted".into(), script.display().to_string()];
        Ok(Scripted { supervised: Supervised::new(program, arguments), identity })
    }

    /// Workers started so far.
    pub fn workers(&self) -> u64 {
        self.supervised.started
    }
}

impl Device for Scripted {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn restart(&mut self) {
        self.supervised.end();
    }

    fn measure_ready(&mut self, problem: &dyn Workload, ready: &Ready, ask: &Ask) -> Result<Verdict, DeviceError> {
        let job = super::cuda::job(problem, Some(ready), ask);
        let script = (!crate::source::is_operator(problem.name())).then(|| problem.script().into());
        let whole = Whole { name: problem.name().into(), script, ready: ready.clone() };
        let whole = serde_json::to_vec(&whole).unwrap_or_default();
        match self.supervised.ask(&What::Measure(Box::new(job)), &[&whole], ask.timeout)? {
            Ok(Said::Measured(timing)) => Ok(Verdict::Measured(timing)),
            Ok(other) => {
                Ok(Verdict::Rejected { reason: Reason::Crash, detail: format!("unexpected answer {other:?}") })
            }
            Err(verdict) => Ok(verdict),
        }
    }
}

/// What a worker computes.
#[derive(Serialize, Deserialize)]
struct Whole {
    name: String,
    script: Option<String>,
    ready: Ready,
}

impl Whole {
    fn work(&self) -> Result<Work, String> {
        let work = match &self.script {
            Some(script) => source::work_of_script(&self.name, script),
            None => source::load_work(&self.name),
        };
        work.map_err(|e| e.to_string())
    }

    /// Lowers the plan and simulates its kernels.
    fn compute(&self, gpu: &Descriptor) -> Result<(), String> {
        self.work()?.workload().check(&self.ready.plan, &scheduled::options(gpu), &|| true).map(drop)
    }

    /// Executes the texts that came with it.
    fn execute(&self, gpu: &Descriptor) -> Result<(), String> {
        let compiler = Compiler::of(std::env::current_exe().map_err(|e| e.to_string())?);
        let done = self.ready.execute(self.work()?.workload(), gpu, None, &compiler, &|| true);
        done.map(drop).map_err(|e| e.to_string())
    }

    /// The answer of a device that computes: a time, or what is wrong.
    fn answer(&self, gpu: &str, compute: fn(&Whole, &Descriptor) -> Result<(), String>) -> Said {
        match Descriptor::load(gpu).map_err(|e| e.to_string()).and_then(|gpu| compute(self, &gpu)) {
            Ok(()) => times(vec![near(&self.ready.trace, self.ready.predicted_ms); 5]),
            Err(fault) => rejected(Reason::Wrong, &fault, false),
        }
    }
}

/// The worker's side.
pub(super) struct Server {
    script: Script,
    path: PathBuf,
    visits: u64,
}

impl Server {
    pub fn load(path: &str) -> Result<Server, String> {
        let path = PathBuf::from(path);
        let server = Server { script: Script::load(&path)?, path, visits: 0 };
        if server.beside("down").exists() {
            return Err("the device is lost".into());
        }
        Ok(server)
    }

    fn beside(&self, what: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{what}"));
        PathBuf::from(name)
    }

    /// Whether something is done for the first time, over all processes.
    fn first(&self, what: &str) -> bool {
        std::fs::OpenOptions::new().write(true).create_new(true).open(self.beside(what)).is_ok()
    }

    /// The number of this request, from 0, over all processes, where the script asks for it.
    fn turn(&self) -> Option<usize> {
        if self.script.first.is_empty() {
            return None;
        }
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(self.beside("turns")).ok()?;
        let turn = file.metadata().ok()?.len();
        file.write_all(b".").ok()?;
        usize::try_from(turn).ok()
    }

    fn note(&self, trace: &str) {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(self.beside("log"));
        let _ = file.and_then(|mut f| f.write_all(format!("{} {trace}\n", std::process::id()).as_bytes()));
    }
}

fn die() -> ! {
    let me = std::process::id().to_string();
    let _ = std::process::Command::new("kill").args(["-9", &me]).status();
    // Where there is no `kill`, the next best.
    std::process::abort()
}

fn forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Writes raw bytes instead of an answer.
fn raw(bytes: &[u8]) {
    let mut out = std::io::stdout();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

fn times(list: Vec<f64>) -> Said {
    Said::Measured(Timing {
        times_ms: list,
        rounds: 1,
        cut_off: false,
        clock_mhz: Some(1000.0),
        relative_error: Some(0.0),
        conditions: None,
    })
}

fn rejected(reason: Reason, detail: &str, poisoned: bool) -> Said {
    Said::Rejected { reason, detail: detail.into(), poisoned }
}

impl Serve for Server {
    fn serve(&mut self, request: &Request, blobs: &[Vec<u8>]) -> Said {
        let job: &MeasureJob = match &request.what {
            What::Measure(job) => job,
            What::Hello => {
                let libraries = Libraries { driver: "none".into(), nvrtc: None, cublas: None };
                return Said::Hello(GpuInfo { name: "script".into(), libraries, ..GpuInfo::default() });
            }
            What::Library(..) | What::Duel(..) | What::Ceilings | What::Constants => {
                return Said::Missing { what: "a script has no library".into(), remedy: "none is needed".into() }
            }
        };
        self.visits += 1;
        std::thread::sleep(Duration::from_millis(self.script.delay_ms));
        let (trace, predicted) = (job.trace.as_str(), job.predicted_ms);
        if self.script.log {
            self.note(trace);
        }
        let whole: Option<Whole> = blobs.first().and_then(|b| serde_json::from_slice(b).ok());
        let of_family = whole.as_ref().and_then(|w| self.script.families.get(&Family::of(&w.ready.plan)));
        let outcome = self.turn().and_then(|turn| self.script.first.get(turn)).or(of_family);
        match outcome.unwrap_or_else(|| self.script.outcome(trace)) {
            outcome @ (Outcome::Computed | Outcome::Executed) => match whole {
                Some(whole) if *outcome == Outcome::Computed => whole.answer(&self.script.gpu, Whole::compute),
                Some(whole) => whole.answer(&self.script.gpu, Whole::execute),
                None => rejected(Reason::Wrong, "there is nothing to compute", false),
            },
            Outcome::Time(ms) => times(vec![*ms; 5]),
            Outcome::Near => times(vec![near(trace, predicted); 5]),
            Outcome::Noisy => {
                let noise =
                    |i: u64| 0.98 + 0.04 * (number(&hash(&format!("{trace}{i}{}", self.visits))) % 100) as f64 / 99.0;
                times((0..20).map(|i| near(trace, predicted) * noise(i)).collect())
            }
            Outcome::Hang => forever(),
            Outcome::Abort => std::process::abort(),
            Outcome::Killed => die(),
            Outcome::KilledOnce if self.first(trace) => die(),
            Outcome::OomOnce if self.first(trace) => rejected(Reason::Oom, "out of device memory", false),
            Outcome::TakesDown if self.first(trace) => {
                self.first("down");
                std::process::exit(1)
            }
            Outcome::KilledOnce | Outcome::OomOnce | Outcome::TakesDown => times(vec![predicted; 5]),
            Outcome::Leaves => std::process::exit(0),
            Outcome::IllegalAccess => rejected(Reason::Crash, "an illegal memory access", true),
            Outcome::Wrong => rejected(Reason::Wrong, "relative error 0.5", false),
            Outcome::Oom => rejected(Reason::Oom, "out of device memory", false),
            Outcome::CompileError => rejected(Reason::CompileError, "refused", false),
            Outcome::Nonsense => {
                raw(b"Segmentation fault\n");
                forever()
            }
            Outcome::Half => {
                raw(format!("{{\"number\":{},\"what\":{{\"Measured\":{{\"times_ms\":[0.1", request.number).as_bytes());
                std::process::exit(0)
            }
            Outcome::Stale => {
                let stale = serde_json::json!({"number": request.number - 1, "what": {"Measured": {"times_ms": [1e-9],
                    "rounds": 1, "cut_off": false, "clock_mhz": null, "relative_error": null}}});
                raw(format!("{stale}\n").as_bytes());
                forever()
            }
            Outcome::Flood => loop {
                raw(&[b'1'; 1 << 16]);
            },
            Outcome::Talkative => {
                eprintln!("{}", "warning ".repeat(100_000));
                times(vec![predicted; 5])
            }
            Outcome::Empty => times(Vec::new()),
            Outcome::Zero => times(vec![0.0; 5]),
            Outcome::Negative => times(vec![predicted, -1.0]),
            Outcome::NotANumber => times(vec![f64::NAN; 5]),
        }
    }
}
