//! Compilation of CUDA text by NVRTC, each in a worker process of its own: a compiler that hangs, crashes or eats the
//! memory costs its kernel and nothing else, and several compile at once.
mod compare;
mod libraries;
mod mix;
mod nvrtc;
mod worker;

pub use compare::{by_all, Figures};
pub use libraries::{choose, folders, nvdisasm, tool, versions, ChoiceError, Version};
pub(crate) use libraries::{loader_path, near, preferred, python};
pub use mix::{disassemble, hot_loop_mix, Mix};
pub use nvrtc::worker_main;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What to compile.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Name for messages.
    pub name: String,
    /// CUDA C++.
    pub source: String,
    /// Architecture, `sm_90` for instance; `compute_90`: PTX alone, which takes a fraction of the time.
    pub arch: String,
}

/// A compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Architecture.
    pub arch: String,
    /// Machine code.
    pub cubin: Vec<u8>,
    /// PTX, with the lines of the source.
    pub ptx: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes per thread that did not fit in registers (stores and loads).
    pub spill_bytes: u32,
    /// Bytes of stack per thread.
    pub stack_bytes: u32,
    /// Static shared memory, bytes.
    pub static_shared_bytes: u32,
    /// What the compiler said.
    pub log: String,
    /// Version of NVRTC.
    pub nvrtc: String,
}

/// Why there is no machine code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The library is not on this machine.
    #[error("NVRTC is not to be found; install the CUDA toolkit or the wheel nvidia-cuda-nvrtc, or name the folder of libnvrtc.so in SATUNE_CUDA_LIBS")]
    Missing,
    /// The compiler refuses the text, or the architecture.
    #[error("{name}: NVRTC refuses it: {log}")]
    Refused {
        /// Kernel.
        name: String,
        /// What the compiler said.
        log: String,
    },
    /// The compiler is too old or too new for the GPU.
    #[error("{name}: not compiled: this NVRTC does not know {arch} (it knows {known}); another version may: `scripts/fetch-cuda` fetches 12.x, which begins with sm_50, beside 13.x")]
    UnknownArch {
        /// Kernel.
        name: String,
        /// Architecture asked for.
        arch: String,
        /// Architectures that it compiles for.
        known: String,
    },
    /// The compiler took too much memory.
    #[error("{name}: NVRTC was stopped at {mib} MiB of memory")]
    Memory {
        /// Kernel.
        name: String,
        /// What it had taken.
        mib: u64,
    },
    /// The work was told to end.
    #[error("{name}: not compiled: interrupted")]
    Stopped {
        /// Kernel.
        name: String,
    },
    /// The compiler took too long.
    #[error("{name}: NVRTC was stopped after {seconds} s")]
    Timeout {
        /// Kernel.
        name: String,
        /// Limit.
        seconds: u64,
    },
    /// The compiler crashed, or the process could not be started.
    #[error("{name}: the compiler process failed: {reason}")]
    Crashed {
        /// Kernel.
        name: String,
        /// Why.
        reason: String,
    },
}

/// Head of a worker's answer; the machine code follows.
#[derive(Serialize, Deserialize)]
enum Answer {
    Done { log: String, version: String, ptx: String },
    Missing,
    UnknownArch { known: String },
    Refused { log: String },
}

/// Starts worker processes.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// Program whose `main` begins with [`crate::worker`], as that of the `satune` command does.
    pub worker: PathBuf,
    /// Longest time for one kernel.
    pub timeout: Duration,
    /// Most memory for one kernel, bytes (kept where the system tells how much a process has).
    pub memory: u64,
    /// The folder of the only NVRTC that is asked; else the newest that knows the architecture.
    pub nvrtc: Option<PathBuf>,
    /// Whether machine code and PTX have the lines of the source.
    pub lines: bool,
}

/// What a worker is asked.
#[derive(Serialize, Deserialize)]
struct Request {
    job: Job,
    lines: bool,
}

impl Compiler {
    /// Workers of a program, with the usual limits.
    pub fn of(worker: impl Into<PathBuf>) -> Compiler {
        let (timeout, memory) = (Duration::from_secs(120), 4 << 30);
        Compiler { worker: worker.into(), timeout, memory, nvrtc: None, lines: true }
    }

    /// Workers of this executable, whose `main` begins with [`crate::worker`].
    ///
    /// # Errors
    /// When the path of the running executable is not known, or this process is itself a worker: its `main` does not begin so.
    pub fn of_this_program() -> std::io::Result<Compiler> {
        if crate::worker_process::is_worker() {
            return Err(std::io::Error::other("a worker is started again: the first line of main is satune::worker()"));
        }
        std::env::current_exe().map(Compiler::of)
    }

    /// Compiles all jobs, as many at once as rayon has threads.
    pub fn compile_many(&self, jobs: &[Job]) -> Vec<Result<Compiled, CompileError>> {
        use rayon::prelude::*;
        jobs.par_iter().map(|job| self.compile(job)).collect()
    }

    /// Compiles one job.
    ///
    /// # Errors
    /// See [`CompileError`].
    pub fn compile(&self, job: &Job) -> Result<Compiled, CompileError> {
        self.compile_job(job, &|| true)
    }

    /// [`Compiler::compile`] for as long as `go_on` says so, by the newest NVRTC on this machine that knows the architecture.
    pub(crate) fn compile_job(&self, job: &Job, go_on: &dyn Fn() -> bool) -> Result<Compiled, CompileError> {
        static KNOWN: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());
        if let Some(folder) = &self.nvrtc {
            return self.compile_by(job, Some(folder), go_on);
        }
        let folders = libraries::preferred();
        let first = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(&job.arch).copied().unwrap_or(0);
        let mut unknown = None;
        for (number, folder) in folders.iter().enumerate().skip(first) {
            match self.compile_by(job, Some(folder), go_on) {
                Err(error @ CompileError::UnknownArch { .. }) => unknown = unknown.or(Some(error)),
                other => {
                    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).insert(job.arch.clone(), number);
                    return other;
                }
            }
        }
        // Where no folder is known, the system's loader may know one.
        unknown.map_or_else(|| self.compile_by(job, None, go_on), Err)
    }

    fn compile_by(&self, job: &Job, nvrtc: Option<&Path>, go_on: &dyn Fn() -> bool) -> Result<Compiled, CompileError> {
        let name = job.name.clone();
        let crashed = |reason: String| CompileError::Crashed { name: job.name.clone(), reason };
        let request = Request { job: job.clone(), lines: self.lines };
        let request = serde_json::to_vec(&request).map_err(|e| crashed(e.to_string()))?;
        let bytes = worker::run(self, request, nvrtc, go_on).map_err(|end| match end {
            worker::End::Told => CompileError::Stopped { name: name.clone() },
            worker::End::Time => CompileError::Timeout { name: name.clone(), seconds: self.timeout.as_secs() },
            worker::End::Memory(bytes) => CompileError::Memory { name: name.clone(), mib: bytes >> 20 },
            worker::End::Failed(reason) => crashed(reason),
        })?;
        let end = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
        match serde_json::from_slice(&bytes[..end]).map_err(|e| crashed(format!("its answer is no answer: {e}")))? {
            Answer::Missing => Err(CompileError::Missing),
            Answer::UnknownArch { known } => Err(CompileError::UnknownArch { name, arch: job.arch.clone(), known }),
            Answer::Refused { log } => Err(CompileError::Refused { name, log }),
            Answer::Done { log, version, ptx } => {
                let cubin = bytes.get(end + 1..).unwrap_or_default().to_vec();
                Ok(Compiled { nvrtc: version, ptx, ..read_resources(&job.arch, cubin, log) })
            }
        }
    }
}

/// Reads the resource lines that ptxas writes under `-v`.
fn read_resources(arch: &str, cubin: Vec<u8>, log: String) -> Compiled {
    let before = |text: &str, what: &str| -> u32 {
        let Some(end) = text.find(what) else { return 0 };
        text[..end]
            .rsplit(|c: char| !c.is_ascii_digit())
            .find(|s| !s.is_empty())
            .and_then(|s| s.parse().ok())
            .unwrap_or(0)
    };
    // Warnings speak of registers too.
    let registers = log.find("Used ").map_or(0, |at| before(&log[at..], " registers"));
    let spill_bytes = before(&log, " bytes spill stores") + before(&log, " bytes spill loads");
    let stack_bytes = before(&log, " bytes stack frame");
    let static_shared_bytes = before(&log, " bytes smem");
    Compiled {
        arch: arch.into(),
        cubin,
        ptx: String::new(),
        registers,
        spill_bytes,
        stack_bytes,
        static_shared_bytes,
        log,
        nvrtc: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_lines_are_read() {
        let log = "ptxas info    : (C7517) a wait is injected in around line 494 by compiler to allow use of registers\nptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function 'k' for 'sm_90'\n    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\nptxas info    : Used 128 registers, used 1 barriers, 16640 bytes smem\n";
        let c = read_resources("sm_90", vec![], log.into());
        assert_eq!((c.registers, c.spill_bytes, c.stack_bytes, c.static_shared_bytes), (128, 16, 8, 16640));
    }
}
