//! A CUDA GPU: kernels are compiled by NVRTC for its architecture, each in a process of its own, and run in a worker
//! process, which is the only one that loads the driver.
mod driver;
mod inputs;
mod job;
mod opponent;
mod server;
mod support;
#[cfg(test)]
mod tests;
mod timing;

pub(super) use job::job;
pub(super) use server::Server;
pub use support::text as support_text;

use super::exclusive::{self, Exclusive};
use super::protocol::{GpuInfo, LibraryJob, ProblemJob, Said, What};
use super::worker::Supervised;
use super::{Ask, Ceilings, Device, DeviceError, Identity, Kind, Rival, Subject};
use crate::compile::{CompileError, Compiler, Job};
use crate::cuda::print;
use crate::kernel::Kernel;
use crate::reference::{Plain, PlainError};
use crate::store::{hash, Reason, Verdict};
use crate::workload::{Workload, Yardstick};
use satune_ir::term::Schedule;
use satune_ir::DType;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The first GPU that the driver shows (CUDA_VISIBLE_DEVICES chooses another).
pub struct Cuda {
    supervised: Supervised,
    compiler: Compiler,
    info: GpuInfo,
    identity: Identity,
    /// Nobody else measures on it meanwhile.
    _exclusive: Exclusive,
    /// Machine code of what was prepared, by trace.
    compiled: HashMap<String, Result<Vec<Vec<u8>>, Verdict>>,
    /// Machine code of the kernels around the candidates.
    support: Vec<u8>,
    /// The reference of the problem at hand, by the hash of its program.
    known: Option<(String, Result<Arc<Known>, Verdict>)>,
}

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
            kind: Kind::Cuda,
            device: format!("{}, {} MHz, memory {} MHz", info.name, info.clock_mhz, info.memory_clock_mhz),
            toolchain,
            deterministic: false,
        };
        let (support, compiled) = (compiled.cubin, HashMap::new());
        Ok(Cuda { supervised, compiler, info, identity, _exclusive: exclusive, compiled, support, known: None })
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
        if let Some((_, known)) = self.known.as_ref().filter(|(of, _)| *of == program) {
            return known.clone();
        }
        let made = self.refer(problem, &program).map(Arc::new);
        self.known = Some((program, made.clone()));
        made
    }

    fn refer(&self, problem: &dyn Workload, program: &str) -> Result<Known, Verdict> {
        let none = |e: PlainError| {
            let detail = format!("not measured: results cannot be checked: {e}");
            Verdict::Rejected { reason: Reason::CompileError, detail }
        };
        let plain = Plain::of(problem.program()).map_err(none)?;
        let arch = &self.info.arch;
        let jobs: Vec<Job> = plain.module.kernels.iter().map(|k| compilation(k, arch.clone())).collect();
        let compiled: Result<Vec<_>, CompileError> = self.compiler.compile_many(&jobs).into_iter().collect();
        let cubins = compiled.map_err(|e| rejected(&e))?.into_iter().map(|c| c.cubin).collect();
        let seconds = plain.instances / INSTANCES_PER_SECOND + plain.serial * CHAIN_SECONDS;
        Ok(Known { job: job::of_problem(problem.program(), &plain, program), cubins, seconds: seconds.min(3600.0) })
    }

    fn finish(answer: Result<Said, Verdict>) -> Verdict {
        match answer {
            Ok(Said::Measured(timing)) => Verdict::Measured(timing),
            Ok(Said::Missing { what, remedy }) => {
                Verdict::Rejected { reason: Reason::CompileError, detail: format!("{what}; {remedy}") }
            }
            Ok(other) => Verdict::Rejected { reason: Reason::Crash, detail: format!("unexpected answer {other:?}") },
            Err(verdict) => verdict,
        }
    }

    /// A time that no kernel for the problem can be under, ms: twice the arithmetic rate, or twice the bandwidth, that the
    /// driver's figures allow.
    fn floor_ms(&self, problem: &dyn Workload, params: &ProblemJob, on_tensor_cores: bool) -> f64 {
        let info = &self.info;
        let (amount, rate) = match problem.yardstick() {
            Yardstick::Arithmetic { flops, factors, .. } => {
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

    /// The architecture to compile a kernel for: `wgmma`, `setmaxnreg` and with them all kernels that take tensor maps are
    /// features of the very chip.
    fn arch_of(&self, kernel: &Kernel) -> String {
        if kernel.tensor_maps.is_empty() {
            self.info.arch.clone()
        } else {
            format!("{}a", self.info.arch)
        }
    }
}

fn compilation(kernel: &Kernel, arch: String) -> Job {
    Job { name: kernel.name.clone(), source: print(kernel), arch }
}

/// What a compiler's error says about a candidate.
fn rejected(error: &CompileError) -> Verdict {
    let reason = match error {
        CompileError::Timeout { .. } => Reason::Timeout,
        CompileError::Memory { .. } => Reason::Oom,
        CompileError::Crashed { .. } | CompileError::Stopped { .. } => Reason::Crash,
        CompileError::Missing | CompileError::Refused { .. } | CompileError::UnknownArch { .. } => Reason::CompileError,
    };
    Verdict::Rejected { reason, detail: error.to_string() }
}

/// Whether a candidate multiplies on tensor cores.
fn on_tensor_cores(subject: &Subject) -> bool {
    !matches!(subject.plan, Schedule::Cores(_) | Schedule::Stream(_))
}

impl Device for Cuda {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn prepare(&mut self, _problem: &dyn Workload, subjects: &[&Subject]) {
        self.compiled.retain(|trace, _| subjects.iter().any(|s| s.trace == *trace));
        let fresh: Vec<&&Subject> = subjects.iter().filter(|s| !self.compiled.contains_key(&s.trace)).collect();
        let jobs: Vec<Job> = fresh
            .iter()
            .flat_map(|s| &s.made.module.kernels)
            .map(|kernel| compilation(kernel, self.arch_of(kernel)))
            .collect();
        let mut results = self.compiler.compile_many(&jobs).into_iter();
        for subject in fresh {
            let mine: Vec<_> = results.by_ref().take(subject.made.module.kernels.len()).collect();
            let cubins: Result<Vec<Vec<u8>>, CompileError> = mine.into_iter().map(|r| r.map(|c| c.cubin)).collect();
            self.compiled.insert(subject.trace.clone(), cubins.map_err(|e| rejected(&e)));
        }
    }

    fn measure(&mut self, problem: &dyn Workload, subject: &Subject, ask: &Ask) -> Result<Verdict, DeviceError> {
        let known = match self.known(problem) {
            Ok(known) => known,
            Err(verdict) => return Ok(verdict),
        };
        if !self.compiled.contains_key(&subject.trace) {
            self.prepare(problem, &[subject]);
        }
        let cubins = match self.compiled.get(&subject.trace).cloned() {
            Some(Ok(cubins)) => cubins,
            Some(Err(verdict)) => return Ok(verdict),
            None => return Ok(rejected(&CompileError::Missing)),
        };
        let mut job = job(problem, Some(subject), ask);
        job.floor_ms = self.floor_ms(problem, &known.job, on_tensor_cores(subject));
        job.problem = Some(known.job.clone());
        let code = std::iter::once(&self.support).chain(&known.cubins).chain(&cubins);
        let blobs: Vec<&[u8]> = code.map(Vec::as_slice).collect();
        let timeout = ask.timeout + Duration::from_secs_f64(known.seconds);
        Ok(Cuda::finish(self.supervised.ask(&What::Measure(Box::new(job)), &blobs, timeout)?))
    }

    fn library(&mut self, problem: &dyn Workload, ask: &Ask) -> Result<Option<Rival>, DeviceError> {
        let opponent = match opponent::of(problem) {
            Ok(opponent) => opponent,
            Err(why) => {
                let verdict = Verdict::Rejected { reason: Reason::CompileError, detail: why };
                return Ok(Some(Rival { what: "cuBLAS".into(), whole: false, verdict }));
            }
        };
        let copies = matches!(opponent.job, LibraryJob::Copy { .. });
        if self.info.libraries.cublas.is_none() && !copies {
            return Ok(None);
        }
        let rival = |verdict| Rival { what: opponent.what.into(), whole: opponent.whole, verdict };
        let asked = opponent.alone.as_deref().map_or(problem, |p| p as &dyn Workload);
        let mut job = job(asked, None, &Ask { cut_off_ms: None, ..*ask });
        let (mut blobs, mut timeout) = (vec![self.support.clone()], ask.timeout);
        if !copies {
            let known = match self.known(asked) {
                Ok(known) => known,
                Err(verdict) => return Ok(Some(rival(verdict))),
            };
            job.floor_ms = self.floor_ms(asked, &known.job, asked.allows_tf32());
            job.problem = Some(known.job.clone());
            blobs.extend(known.cubins.iter().cloned());
            timeout += Duration::from_secs_f64(known.seconds);
        }
        let blobs: Vec<&[u8]> = blobs.iter().map(Vec::as_slice).collect();
        let request = What::Library(Box::new(job), opponent.job.clone());
        Ok(Some(rival(Cuda::finish(self.supervised.ask(&request, &blobs, timeout)?))))
    }

    fn ceilings(&mut self) -> Result<Option<Ceilings>, DeviceError> {
        match self.supervised.ask(&What::Ceilings, &[&self.support], Duration::from_secs(120))? {
            Ok(Said::Ceilings(ceilings)) => Ok(Some(ceilings)),
            _ => Ok(None),
        }
    }
}
