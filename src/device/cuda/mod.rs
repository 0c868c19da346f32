//! A CUDA GPU: kernels are compiled by NVRTC for its architecture, each in a process of its own, and run in a worker
//! process, which is the only one that loads the driver.
mod constants;
mod doors;
mod driver;
mod inputs;
mod job;
mod opponent;
mod server;
mod support;
#[cfg(test)]
mod tests;
mod timing;

pub use constants::text as constants_text;
pub(super) use job::{exact_on_whole, job, tolerances};
pub(crate) use job::{launches, workspaces};
pub(super) use server::Server;
pub use support::text as support_text;

use super::clocks::Clocks;
use super::exclusive::{self, Exclusive};
use super::protocol::{Compared, DuelJob, GpuInfo, LibraryJob, MeasureJob, ProblemJob, Said, What};
use super::worker::Supervised;
use super::{Ask, Ceilings, Constants, Device, DeviceError, DeviceKind, Door, Duel, Identity, Ready, Rival, Subject};
use crate::compile::{CompileError, Compiled, Compiler, Job};
use crate::cuda::print;
use crate::kernel::Kernel;
use crate::reference::{Plain, PlainError};
use crate::store::{hash, Conditions, Reason, Timing, Verdict};
use crate::workload::{Workload, Yardstick};
use satune_ir::term::Schedule;
use satune_ir::DType;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first GPU that the driver shows (CUDA_VISIBLE_DEVICES chooses another).
pub struct Cuda {
    supervised: Supervised,
    compiler: Compiler,
    info: GpuInfo,
    identity: Identity,
    /// Programs and kinds of inputs that the worker of a number has, with their bytes, the one used last at the end.
    warm: (u64, Vec<(String, bool, u64)>),
    /// What its clocks do meanwhile.
    clocks: Option<Clocks>,
    /// Nobody else measures on it meanwhile.
    _exclusive: Exclusive,
    /// What was prepared, compiled, by trace.
    compiled: HashMap<String, Result<Vec<Compiled>, Verdict>>,
    /// Machine code of the kernels around the candidates.
    support: Vec<u8>,
    /// References of problems, by the hash of the program: candidates of several problems come in turns.
    known: HashMap<String, Result<Arc<Known>, Verdict>>,
    /// Machine code of references that was made elsewhere, by the hash of the program.
    taught: HashMap<String, Vec<Vec<u8>>>,
}

/// Problems whose references are kept.
const KEPT: usize = 256;

/// What a worker said, or the verdict where that is not to be used, and how the clocks were meanwhile.
type Answered = (Result<Said, Verdict>, Option<Box<Conditions>>);

/// What a worker needs of a problem.
struct Known {
    job: ProblemJob,
    /// Machine code of the reference's kernels.
    cubins: Vec<Vec<u8>>,
    /// Longest time that the reference may take, s.
    seconds: f64,
}

/// Instances of blocks that a GPU computes per second in double precision at least, one thread each: a rate that every GPU
/// exceeds.
const INSTANCES_PER_SECOND: f64 = 2.5e10;
/// Seconds for an instance of a thread's own chain: a load from DRAM that nothing hides, and room.
const CHAIN_SECONDS: f64 = 2e-6;

impl Cuda {
    /// Opens the GPU in a worker process; `program` is the `satune` command.
    ///
    /// # Errors
    /// When there is no driver, no GPU or no NVRTC.
    pub fn open(program: PathBuf) -> Result<Cuda, DeviceError> {
        let missing = |what: String, remedy: &str| DeviceError::Missing { what, remedy: remedy.into() };
        let mut supervised = Supervised::new(program.clone(), vec!["cuda".into()]);
        let Said::Hello(mut info) = supervised.hello()? else {
            return Err(missing("the worker process did not describe the GPU".into(), "see `satune doctor`"));
        };
        let exclusive = Exclusive::take(&exclusive::path(&info.bus), &format!("{} at {}", info.name, info.bus))?;
        let compiler = Compiler::of(program);
        let probe = Job { name: "support".into(), source: support::text(), arch: info.arch.clone() };
        let compiled = compiler.compile(&probe).map_err(|e| missing(e.to_string(), "see `satune doctor`"))?;
        info.libraries.nvrtc = Some(compiled.nvrtc);
        let toolchain =
            format!("NVRTC {}, driver {}", info.libraries.nvrtc.as_deref().unwrap_or("unknown"), info.libraries.driver);
        let identity = Identity {
            kind: DeviceKind::Cuda,
            device: format!("{}, {} MHz, memory {} MHz", info.name, info.clock_mhz, info.memory_clock_mhz),
            toolchain,
            deterministic: false,
        };
        let (support, compiled) = (compiled.cubin, HashMap::new());
        Ok(Cuda {
            supervised,
            compiler,
            info,
            identity,
            warm: (0, Vec::new()),
            clocks: None,
            _exclusive: exclusive,
            compiled,
            support,
            known: HashMap::new(),
            taught: HashMap::new(),
        })
    }

    /// What the driver says about the GPU, asked in a worker process.
    ///
    /// # Errors
    /// When there is no driver or no GPU.
    pub fn describe(program: PathBuf) -> Result<GpuInfo, DeviceError> {
        match Supervised::new(program, vec!["cuda".into()]).hello()? {
            Said::Hello(info) => Ok(info),
            other => Err(DeviceError::Gone { device: "cuda".into(), reason: format!("it said {other:?}") }),
        }
    }

    /// What the driver says about the GPU.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// The reference of a problem, compiled.
    fn known(&mut self, problem: &dyn Workload) -> Result<Arc<Known>, Verdict> {
        let program = hash(problem.script());
        if let Some(known) = self.known.get(&program) {
            return known.clone();
        }
        if self.known.len() >= KEPT {
            self.known.clear();
        }
        let made = self.refer(problem, &program).map(Arc::new);
        self.known.insert(program, made.clone());
        made
    }

    fn refer(&self, problem: &dyn Workload, program: &str) -> Result<Known, Verdict> {
        let none = |e: PlainError| {
            let detail = format!("not measured: results cannot be checked: {e}");
            Verdict::Rejected { reason: Reason::CompileError, detail }
        };
        let plain = Plain::of(problem.program()).map_err(none)?;
        let cubins = match self.taught.get(program) {
            Some(cubins) if cubins.len() == plain.module.kernels.len() => cubins.clone(),
            _ => {
                let jobs = reference_jobs(&plain, &self.info.arch);
                let compiled: Result<Vec<_>, CompileError> = self.compiler.compile_many(&jobs).into_iter().collect();
                compiled.map_err(|e| rejected(&e))?.into_iter().map(|c| c.cubin).collect()
            }
        };
        let seconds = plain.instances / INSTANCES_PER_SECOND + plain.serial * CHAIN_SECONDS;
        Ok(Known { job: job::of_problem(problem.program(), &plain, program), cubins, seconds: seconds.min(3600.0) })
    }

    /// What an answer means where there is none to use; `Ok` is for whoever asked.
    fn usable(answer: Result<Said, Verdict>) -> Result<Said, Verdict> {
        match answer {
            Ok(Said::Missing { what, remedy }) => {
                Err(Verdict::Rejected { reason: Reason::CompileError, detail: format!("{what}; {remedy}") })
            }
            other => other,
        }
    }

    /// Asks a worker, and tells how the clocks were meanwhile.
    fn ask(&mut self, what: &What, blobs: &[&[u8]], timeout: Duration) -> Result<Answered, DeviceError> {
        if self.clocks.is_none() {
            self.clocks = Some(Clocks::start(&self.info.bus, None));
        }
        let begun = Instant::now();
        let answer = self.supervised.ask(what, blobs, timeout)?;
        let seen = self.clocks.as_ref().and_then(|clocks| clocks.since(begun));
        Ok((Cuda::usable(answer), seen))
    }

    /// A candidate's job, the bytes that go with it, and how long it may take.
    fn job_of(
        &mut self,
        problem: &dyn Workload,
        ready: &Ready,
        ask: &Ask,
    ) -> Result<(MeasureJob, Vec<Vec<u8>>, Duration), Verdict> {
        let known = self.known(problem)?;
        let cubins = match (&ready.code, self.compiled.get(&ready.trace)) {
            (Some(code), _) => code.clone(),
            (None, Some(Ok(compiled))) => compiled.iter().map(|c| c.cubin.clone()).collect(),
            (None, Some(Err(verdict))) => return Err(verdict.clone()),
            (None, None) => self.compile(ready)?,
        };
        let mut job = job(problem, Some(ready), ask);
        job.floor_ms = self.floor_ms(problem, &known.job, on_tensor_cores(&ready.plan));
        job.problem = Some(ProblemJob { whole: ask.whole, ..known.job.clone() });
        let code = std::iter::once(&self.support).chain(&known.cubins).chain(&cubins).cloned().collect();
        // The worker makes inputs and their reference once, while its memory holds them.
        let more = if self.warmed(&known.job, ask.whole) { 0.0 } else { known.seconds };
        Ok((job, code, ask.timeout + Duration::from_secs_f64(more)))
    }

    /// Whether the worker has a problem's inputs and reference; from now on it has them. It makes room as the worker does.
    fn warmed(&mut self, problem: &ProblemJob, whole: bool) -> bool {
        if self.warm.0 != self.supervised.started {
            self.warm = (self.supervised.started, Vec::new());
        }
        let list = &mut self.warm.1;
        let found = list.iter().position(|(program, kind, _)| (program, *kind) == (&problem.program, whole));
        let entry = match found {
            Some(at) => list.remove(at),
            None => {
                let bytes = server::needed(problem);
                let sizes: Vec<u64> = list.iter().map(|(_, _, bytes)| *bytes).collect();
                list.drain(..server::too_many(&sizes, bytes, self.info.memory_bytes));
                (problem.program.clone(), whole, bytes)
            }
        };
        list.push(entry);
        found.is_some()
    }

    fn compile(&self, ready: &Ready) -> Result<Vec<Vec<u8>>, Verdict> {
        let compiled: Result<Vec<_>, CompileError> =
            self.compiler.compile_many(&ready.jobs(&self.info.arch)).into_iter().collect();
        Ok(compiled.map_err(|e| rejected(&e))?.into_iter().map(|c| c.cubin).collect())
    }

    /// A time that no kernel for the problem can be under, ms: twice the arithmetic rate, or twice the bandwidth, that the
    /// driver's figures allow.
    fn floor_ms(&self, problem: &dyn Workload, params: &ProblemJob, on_tensor_cores: bool) -> f64 {
        let info = &self.info;
        let (amount, rate) = match problem.yardstick() {
            Yardstick::Arithmetic { flops, factors, .. } => {
                // Some of what a person counts may be computed once for many results; a step has a multiply-add or so at least.
                let flops = problem.contraction().map_or(flops, |c| flops * 2.0 / f64::from(c.operations().max(2)));
                // Multiply-adds per clock and multiprocessor: the most that any architecture has, tensor cores counted where
                // the type has them (for f32 only where the kernel uses them).
                let lanes = match factors {
                    DType::F16 | DType::BF16 => 4096.0,
                    DType::I8 | DType::U8 | DType::F8E4M3 | DType::F8E5M2 => 8192.0,
                    DType::F32 if on_tensor_cores => 2048.0,
                    _ => 256.0,
                };
                (flops, 2.0 * lanes * f64::from(info.sms) * f64::from(info.clock_mhz) * 1e6)
            }
            Yardstick::Bytes(_) => {
                // What is written may stay in L2, what is read comes from DRAM. Two transfers per clock.
                let read = params.params.iter().filter(|p| !p.written);
                let bytes = read.map(|p| p.elements as f64 * f64::from(p.dtype.bytes())).sum();
                (bytes, f64::from(info.memory_clock_mhz) * 2e6 * f64::from(info.bus_bits) / 8.0)
            }
        };
        if rate > 0.0 {
            amount / (2.0 * rate) * 1e3
        } else {
            0.0
        }
    }
}

/// What to compile for a reference.
fn reference_jobs(plain: &Plain, arch: &str) -> Vec<Job> {
    let of = |kernel: &Kernel| Job { name: kernel.name.clone(), source: print(kernel), arch: arch.into() };
    plain.module.kernels.iter().map(of).collect()
}

/// What to compile for a problem's reference on an architecture (`sm_90`); nothing where it has none.
pub(crate) fn reference(problem: &dyn Workload, arch: &str) -> Vec<Job> {
    Plain::of(problem.program()).map(|plain| reference_jobs(&plain, arch)).unwrap_or_default()
}

/// What a compiler's error says about a candidate.
pub(crate) fn rejected(error: &CompileError) -> Verdict {
    let reason = match error {
        CompileError::Timeout { .. } => Reason::Timeout,
        CompileError::Memory { .. } => Reason::Oom,
        CompileError::Crashed { .. } | CompileError::Stopped { .. } => Reason::Crash,
        CompileError::Missing | CompileError::Refused { .. } | CompileError::UnknownArch { .. } => Reason::CompileError,
    };
    Verdict::Rejected { reason, detail: error.to_string() }
}

/// Whether a schedule multiplies on tensor cores.
fn on_tensor_cores(plan: &Schedule) -> bool {
    plan.any(&|own| matches!(own, Schedule::Mma(_) | Schedule::Wgmma(_)))
}

fn unexpected(said: &Said) -> Verdict {
    Verdict::Rejected { reason: Reason::Crash, detail: format!("unexpected answer {said:?}") }
}

impl Device for Cuda {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn compiler(&self) -> Option<(Compiler, String)> {
        Some((self.compiler.clone(), self.info.arch.clone()))
    }

    fn teach(&mut self, problem: &dyn Workload, code: &[Vec<u8>]) {
        self.taught.insert(hash(problem.script()), code.to_vec());
    }

    fn restart(&mut self) {
        self.supervised.end();
    }

    fn watch(&mut self, log: std::fs::File) {
        self.clocks = Some(Clocks::start(&self.info.bus, Some(log)));
    }

    fn describe(&self) -> Option<GpuInfo> {
        Some(self.info.clone())
    }

    fn prepare(&mut self, problem: &dyn Workload, subjects: &[&Subject]) {
        self.compiled.retain(|trace, _| subjects.iter().any(|s| s.trace == *trace));
        let fresh: Vec<&&Subject> = subjects.iter().filter(|s| !self.compiled.contains_key(&s.trace)).collect();
        let jobs: Vec<Vec<Job>> = fresh.iter().map(|s| Ready::of(problem, s).jobs(&self.info.arch)).collect();
        let mut results = self.compiler.compile_many(&jobs.concat()).into_iter();
        for (subject, jobs) in fresh.into_iter().zip(jobs) {
            let mine: Vec<_> = results.by_ref().take(jobs.len()).collect();
            let compiled: Result<Vec<Compiled>, CompileError> = mine.into_iter().collect();
            self.compiled.insert(subject.trace.clone(), compiled.map_err(|e| rejected(&e)));
        }
    }

    fn ptx(&self, trace: &str) -> Option<Vec<String>> {
        let compiled = self.compiled.get(trace)?.as_ref().ok()?;
        Some(compiled.iter().map(|c| c.ptx.clone()).collect())
    }

    fn measure_ready(&mut self, problem: &dyn Workload, ready: &Ready, ask: &Ask) -> Result<Verdict, DeviceError> {
        let (job, blobs, timeout) = match self.job_of(problem, ready, ask) {
            Ok(made) => made,
            Err(verdict) => return Ok(verdict),
        };
        let blobs: Vec<&[u8]> = blobs.iter().map(Vec::as_slice).collect();
        let (answer, conditions) = self.ask(&What::Measure(Box::new(job)), &blobs, timeout)?;
        Ok(match answer {
            Ok(Said::Measured(timing)) => Verdict::Measured(Timing { conditions, ..timing }),
            Ok(other) => unexpected(&other),
            Err(verdict) => verdict,
        })
    }

    fn duel(
        &mut self,
        problem: &dyn Workload,
        ready: &Ready,
        ask: &Ask,
        rounds: u32,
    ) -> Result<Option<Duel>, DeviceError> {
        let Ok(opponent) = opponent::of(problem) else { return Ok(None) };
        // A product alone is on another problem's inputs; the two are timed one after the other.
        let copies = matches!(opponent.job, LibraryJob::Copy { .. });
        if opponent.alone.is_some() || (self.info.libraries.cublas.is_none() && !copies) {
            return Ok(None);
        }
        let duel = |outcome| Ok(Some(Duel { what: opponent.what.into(), whole: opponent.whole, outcome }));
        let (job, blobs, timeout) = match self.job_of(problem, ready, ask) {
            Ok(made) => made,
            Err(verdict) => return duel(Err(verdict)),
        };
        let blobs: Vec<&[u8]> = blobs.iter().map(Vec::as_slice).collect();
        let mut tolerances = tolerances(problem, None);
        if ask.whole && ready.exact_on_whole {
            tolerances.fill(0.0);
        }
        let what = What::Duel(Box::new(job), opponent.job.clone(), DuelJob { rounds, tolerances });
        let (answer, conditions) = self.ask(&what, &blobs, timeout)?;
        duel(match answer {
            Ok(Said::Duelled(mut duelled)) => {
                duelled.ours.conditions.clone_from(&conditions);
                duelled.theirs.timing.conditions = conditions;
                Ok(duelled)
            }
            Ok(other) => Err(unexpected(&other)),
            Err(verdict) => Err(verdict),
        })
    }

    fn library(&mut self, problem: &dyn Workload, ask: &Ask) -> Result<Option<Rival>, DeviceError> {
        let opponent = match opponent::of(problem) {
            Ok(opponent) => opponent,
            Err(why) => {
                let verdict = Verdict::Rejected { reason: Reason::CompileError, detail: why };
                return Ok(Some(Rival { what: "cuBLAS".into(), whole: false, verdict, doors: Vec::new() }));
            }
        };
        let copies = matches!(opponent.job, LibraryJob::Copy { .. });
        if self.info.libraries.cublas.is_none() && !copies {
            return Ok(None);
        }
        let rival =
            |verdict, doors: Vec<Door>| Rival { what: opponent.what.into(), whole: opponent.whole, verdict, doors };
        let asked = opponent.alone.as_deref().map_or(problem, |p| p as &dyn Workload);
        let mut job = job(asked, None, &Ask { cut_off_ms: None, ..*ask });
        let (mut blobs, mut timeout) = (vec![self.support.clone()], ask.timeout);
        if !copies {
            let known = match self.known(asked) {
                Ok(known) => known,
                Err(verdict) => return Ok(Some(rival(verdict, Vec::new()))),
            };
            job.floor_ms = self.floor_ms(asked, &known.job, asked.allows_tf32());
            job.problem = Some(known.job.clone());
            blobs.extend(known.cubins.iter().cloned());
            if !self.warmed(&known.job, false) {
                timeout += Duration::from_secs_f64(known.seconds);
            }
        }
        if matches!(opponent.job, LibraryJob::Copy { bytes } if server::takes_all(bytes, self.info.memory_bytes)) {
            self.warm.1.clear();
        }
        let blobs: Vec<&[u8]> = blobs.iter().map(Vec::as_slice).collect();
        let request = What::Library(Box::new(job), opponent.job.clone());
        let (answer, conditions) = self.ask(&request, &blobs, timeout)?;
        Ok(Some(match answer {
            Ok(Said::Compared(Compared { timing, door, mut doors })) => {
                // The one with the time stands first.
                doors.sort_by_key(|d| d.name != door);
                rival(Verdict::Measured(Timing { conditions, ..timing }), doors)
            }
            Ok(other) => rival(unexpected(&other), Vec::new()),
            Err(verdict) => rival(verdict, Vec::new()),
        }))
    }

    fn ceilings(&mut self, limit: Duration) -> Result<Option<Ceilings>, DeviceError> {
        self.warm.1.clear();
        match self.supervised.ask(&What::Ceilings, &[&self.support], limit)? {
            Ok(Said::Ceilings(ceilings)) => Ok(Some(ceilings)),
            _ => Ok(None),
        }
    }

    fn constants(&mut self, limit: Duration) -> Result<Option<Constants>, DeviceError> {
        self.warm.1.clear();
        let not = |why: String| DeviceError::Missing {
            what: format!("no constants: {why}"),
            remedy: "they stay estimates".into(),
        };
        let job = Job { name: "constants".into(), source: constants::text(), arch: self.info.arch_features() };
        let module = self.compiler.compile(&job).map_err(|e| not(e.to_string()))?;
        let support = self.support.clone();
        let (answer, _) = self.ask(&What::Constants, &[&support, &module.cubin], limit)?;
        match answer {
            Ok(Said::Constants(constants)) => Ok(Some(constants)),
            Ok(other) => Err(not(format!("unexpected answer {other:?}"))),
            Err(Verdict::Rejected { detail, .. }) => Err(not(detail)),
            Err(Verdict::Measured(_)) => Err(not("they were not asked for".into())),
        }
    }
}
