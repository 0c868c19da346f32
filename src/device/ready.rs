//! A candidate as a device takes it: texts and launches, made in this process or read from a pack.
use super::protocol::KernelJob;
use super::{cuda, Subject};
use crate::compile::{Compiler, Job};
use crate::cuda::print;
use crate::execute::{self, Executed, Refusal};
use crate::lower::program::Module;
use crate::store::hash;
use crate::workload::Workload;
use satune_extract::Descriptor;
use satune_ir::term::stream::StreamPlan;
use satune_ir::term::Schedule;
use serde::{Deserialize, Serialize};

/// The text of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// Its name.
    pub name: String,
    /// CUDA C++.
    pub source: String,
    /// Whether it needs the features of the very chip (`sm_90a`): `wgmma`, `setmaxnreg`, and with them all kernels that take
    /// tensor maps.
    pub own_features: bool,
}

/// What there is to launch, and how its results are judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// Every decision.
    pub plan: Schedule,
    /// Hash of the canonical trace and the plan.
    pub trace: String,
    /// Predicted time, ms.
    pub predicted_ms: f64,
    /// Its kernels, in the order of their launches.
    pub kernels: Vec<Text>,
    /// One launch of each kernel.
    pub(crate) launches: Vec<KernelJob>,
    /// Bytes of each buffer between the kernels.
    pub(crate) workspaces: Vec<u64>,
    /// Of each parameter that is written the largest relative error; 0: exact.
    pub(crate) tolerances: Vec<f64>,
    /// Whether sums of small whole numbers come out exactly.
    pub(crate) exact_on_whole: bool,
    /// Machine code of each kernel, where it is there already.
    #[serde(skip)]
    pub code: Option<Vec<Vec<u8>>>,
}

impl Ready {
    /// A simulated candidate, ready for a device.
    pub fn of(problem: &dyn Workload, subject: &Subject) -> Ready {
        let (plan, trace) = (subject.plan.clone(), subject.trace.clone());
        Ready::of_module(problem, &subject.made.module, (plan, trace, subject.cost.ms))
    }

    /// The kernels of a schedule that is none of the space, ready for a device: its plan decides nothing.
    pub fn given(problem: &dyn Workload, module: &Module, predicted_ms: f64) -> Ready {
        let none = StreamPlan { inlined: Vec::new(), parts: 1, cascaded: false, kernels: Vec::new() };
        let text: String = module.kernels.iter().map(print).collect();
        Ready::of_module(problem, module, (Schedule::Stream(none), hash(&text), predicted_ms))
    }

    fn of_module(
        problem: &dyn Workload,
        module: &Module,
        (plan, trace, predicted_ms): (Schedule, String, f64),
    ) -> Ready {
        let text = |kernel: &crate::kernel::Kernel| Text {
            name: kernel.name.clone(),
            source: print(kernel),
            own_features: kernel.is_of_chip(),
        };
        Ready {
            trace,
            predicted_ms,
            kernels: module.kernels.iter().map(text).collect(),
            launches: cuda::launches(module),
            workspaces: cuda::workspaces(module),
            tolerances: cuda::tolerances(problem, Some(&plan)),
            exact_on_whole: cuda::exact_on_whole(problem),
            code: None,
            plan,
        }
    }

    /// Executes its kernels' texts (see [`execute`]), for as long as `go_on` says so. `ptx`: what a compiler made of them, where
    /// that is known.
    ///
    /// # Errors
    /// That they are wrong; or why they could not be executed.
    pub fn execute(
        &self,
        problem: &dyn Workload,
        gpu: &Descriptor,
        ptx: Option<Vec<String>>,
        compiler: &Compiler,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Executed, Refusal> {
        let plan = &self.plan;
        let made = problem.scheduled(plan, &problem.options(plan, gpu)).map_err(|e| Refusal::Unable(e.to_string()))?;
        let texts: Vec<String> = self.kernels.iter().map(|k| k.source.clone()).collect();
        execute::Candidate { problem, plan, module: &made.module, texts: &texts, gpu, go_on }.execute(ptx, compiler)
    }

    /// What to compile for an architecture (`sm_90`).
    pub fn jobs(&self, arch: &str) -> Vec<Job> {
        let of = |text: &Text| Job {
            name: text.name.clone(),
            source: text.source.clone(),
            arch: if text.own_features { format!("{arch}a") } else { arch.into() },
        };
        self.kernels.iter().map(of).collect()
    }
}
