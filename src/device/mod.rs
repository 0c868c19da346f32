//! Devices: what runs a candidate and says how long it took, or why it did not.
//!
//! Three implementations behind one trait: the simulator (always there; its "time" is the model's prediction), a CUDA GPU
//! and a script of outcomes, the last two in worker processes that may hang, crash or be killed at the cost of one
//! candidate.
pub(crate) mod clocks;
pub mod cuda;
pub mod exclusive;
pub mod probe;
mod protocol;
mod ready;
mod scripted;
mod simulator;
mod worker;

pub(crate) use cuda::{launches, workspaces};
pub(crate) use protocol::KernelJob;
pub use protocol::{Ceilings, Compared, Constants, Door, Duelled, GpuInfo, Libraries, Sustained};
pub use ready::{Ready, Text};
pub use scripted::{Outcome as ScriptedOutcome, Script, Scripted};
pub use simulator::Simulator;
pub(crate) use simulator::SIMULATED;
pub use worker::worker_main;

use crate::compile::Compiler;
use crate::execute::{self, Executed, Refusal};
use crate::explore::Checked;
use crate::scheduled::Scheduled;
use crate::store::Verdict;
use crate::workload::Workload;
use satune_extract::{Cost, Descriptor};
use satune_ir::term::Schedule;
use std::time::Duration;

/// What kind of device it is: what its times mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// Times are predictions; results are checked by simulation.
    Simulator,
    /// Times are measured.
    Cuda,
    /// Times are made up, for tests of everything around them.
    Scripted,
}

/// What identifies a device in the store.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Identity {
    /// What its times mean.
    pub kind: DeviceKind,
    /// The GPU and its clocks, or the simulator's GPU.
    pub device: String,
    /// What compiles for it and runs it.
    pub toolchain: String,
    /// Measuring twice gives the same number.
    pub deterministic: bool,
}

/// A candidate that the simulator has found right: what a device is given.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Every decision.
    pub plan: Schedule,
    /// Predicted time and parts.
    pub cost: Cost,
    /// Hash of the canonical trace and the plan.
    pub trace: String,
    /// Its trace, program and kernels.
    pub made: Scheduled,
    /// What the simulator found.
    pub checked: Checked,
    /// What of its text was executed, where that was right.
    pub executed: Option<Executed>,
}

impl Subject {
    /// Lowers a schedule and runs it in the simulator, for as long as `go_on` says so.
    ///
    /// # Errors
    /// What is wrong with it: a bug of Satune, where `go_on` did not end it.
    pub fn of(
        (plan, cost): (&Schedule, &Cost),
        problem: &dyn Workload,
        gpu: &Descriptor,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Subject, String> {
        let options = problem.options(plan, gpu);
        let made = problem.scheduled(plan, &options).map_err(|e| e.to_string())?;
        let checked = problem.check(plan, &options, go_on)?;
        let trace = crate::explore::trace_hash(plan, problem);
        Ok(Subject { plan: plan.clone(), cost: cost.clone(), trace, made, checked, executed: None })
    }

    /// Executes its kernels' text (see [`execute`]), for as long as `go_on` says so. `ptx`: what a compiler made of it, where that
    /// is known.
    ///
    /// # Errors
    /// That it is wrong, a bug of Satune; or why it could not be executed.
    pub fn execute(
        &mut self,
        problem: &dyn Workload,
        gpu: &Descriptor,
        ptx: Option<Vec<String>>,
        compiler: &Compiler,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), Refusal> {
        let texts: Vec<String> = self.made.module.kernels.iter().map(crate::cuda::print).collect();
        let (plan, module) = (&self.plan, &self.made.module);
        let candidate = execute::Candidate { problem, plan, module, texts: &texts, gpu, go_on };
        self.executed = Some(candidate.execute(ptx, compiler)?);
        Ok(())
    }
}

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Clearly slower than this, ms: stop after few repeats.
    pub cut_off_ms: Option<f64>,
    /// Repeat until the median is known to this fraction.
    pub settle: f64,
    /// Most repeats; 0: it runs for its results, and once more for a time, as a tool wants it that makes each run slow.
    pub most_repeats: u32,
    /// Longest time for one candidate, all repeats, beyond compilation.
    pub timeout: Duration,
    /// Floating-point inputs are small whole numbers, on which sums of products are exact.
    pub whole: bool,
}

impl Default for Ask {
    fn default() -> Ask {
        Ask { cut_off_ms: None, settle: 0.002, most_repeats: 100, timeout: Duration::from_secs(20), whole: false }
    }
}

/// Why a device does not answer at all: the candidate has nothing to do with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// It is not there.
    #[error("{what}; {remedy}")]
    Missing {
        /// What is missing.
        what: String,
        /// What would help.
        remedy: String,
    },
    /// Its worker does not come up any more.
    #[error("the worker process of {device} does not start: {reason}; everything measured so far is in the store: see `satune doctor`, then `satune resume`")]
    Gone {
        /// Which.
        device: String,
        /// Why.
        reason: String,
    },
    /// Another run measures on it.
    #[error("{who} measures on {gpu}, and two runs would measure each other; wait for it, or choose another GPU with CUDA_VISIBLE_DEVICES")]
    Busy {
        /// Which.
        gpu: String,
        /// Who.
        who: String,
    },
}

/// What a problem's candidates were compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct Rival {
    /// What it is: `cuBLAS`, `cuBLAS, the product alone`, `a copy of the least bytes`.
    pub what: String,
    /// Whether it computes what the problem asks for, and not a part of it or nothing.
    pub whole: bool,
    /// Its time, or why there is none.
    pub verdict: Verdict,
    /// The ways to have its result that were tried; the fastest is the one with the time.
    pub doors: Vec<Door>,
}

/// A candidate beside what it is compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct Duel {
    /// What it is compared with.
    pub what: String,
    /// Whether that computes what the problem asks for.
    pub whole: bool,
    /// Times in turns, or why there are none.
    pub outcome: Result<Duelled, Verdict>,
}

/// Runs candidates.
pub trait Device {
    /// What it is.
    fn identity(&self) -> &Identity;

    /// Told what will be measured next, so that it can compile all of it at once.
    fn prepare(&mut self, _problem: &dyn Workload, _subjects: &[&Subject]) {}

    /// PTX of each kernel of what was prepared, by its trace; `None` where there is none.
    fn ptx(&self, _trace: &str) -> Option<Vec<String>> {
        None
    }

    /// Measures a candidate.
    ///
    /// # Errors
    /// When the device is gone. Whatever is wrong with the candidate is a [`Verdict`].
    fn measure(&mut self, problem: &dyn Workload, subject: &Subject, ask: &Ask) -> Result<Verdict, DeviceError> {
        self.measure_ready(problem, &Ready::of(problem, subject), ask)
    }

    /// Measures a candidate that was made ready elsewhere.
    ///
    /// # Errors
    /// When the device is gone. Whatever is wrong with the candidate is a [`Verdict`].
    fn measure_ready(&mut self, problem: &dyn Workload, ready: &Ready, ask: &Ask) -> Result<Verdict, DeviceError>;

    /// Measures a candidate and what there is to compare with in turns, so many rounds; `None` where there is nothing to
    /// compare with.
    ///
    /// # Errors
    /// When the device is gone.
    fn duel(
        &mut self,
        _problem: &dyn Workload,
        _ready: &Ready,
        _ask: &Ask,
        _rounds: u32,
    ) -> Result<Option<Duel>, DeviceError> {
        Ok(None)
    }

    /// Who compiles for the device, and for what architecture; `None` where nothing is compiled.
    fn compiler(&self) -> Option<(Compiler, String)> {
        None
    }

    /// Told the machine code of a problem's reference, which was made elsewhere for this device's architecture.
    fn teach(&mut self, _problem: &dyn Workload, _code: &[Vec<u8>]) {}

    /// The next candidate runs in a process of its own.
    fn restart(&mut self) {}

    /// Notes clocks, power and what holds them back in a file, five times a second from now on.
    fn watch(&mut self, _log: std::fs::File) {}

    /// What the driver says about the device, where there is one.
    fn describe(&self) -> Option<GpuInfo> {
        None
    }

    /// Times what there is to compare with, on the same inputs where it computes the same: the vendor's library, or a copy.
    ///
    /// # Errors
    /// When the device is gone.
    fn library(&mut self, _problem: &dyn Workload, _ask: &Ask) -> Result<Option<Rival>, DeviceError> {
        Ok(None)
    }

    /// What the device reaches in a copy, in multiply-adds, in matrix products; measured now, within a time.
    ///
    /// # Errors
    /// When the device is gone.
    fn ceilings(&mut self, _limit: Duration) -> Result<Option<Ceilings>, DeviceError> {
        Ok(None)
    }

    /// Rates and latencies of the device's parts, measured now, within a time.
    ///
    /// # Errors
    /// When the device is gone, or why they cannot be had.
    fn constants(&mut self, _limit: Duration) -> Result<Option<Constants>, DeviceError> {
        Ok(None)
    }
}
