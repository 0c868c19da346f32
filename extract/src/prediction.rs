//! What is said of a schedule on a GPU: its predicted time and why, or why it cannot run there.
use crate::work::Work;
use crate::Descriptor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Why a plan cannot run on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Infeasible {
    /// Too many threads per block.
    #[error("{threads} threads per block; a GPU runs at most 1024")]
    Threads {
        /// Asked for.
        threads: u32,
    },
    /// Too much shared memory.
    #[error("{bytes} bytes of shared memory per block; this GPU has {most}")]
    Shared {
        /// Asked for.
        bytes: i64,
        /// Limit.
        most: i64,
    },
    /// Too many registers.
    #[error("about {registers} registers per thread; {most} can be had with {threads} threads per block")]
    Registers {
        /// Estimate.
        registers: i64,
        /// Limit.
        most: i64,
        /// Threads per block.
        threads: u32,
    },
    /// The schedule belongs to another kind of problem.
    #[error(
        "the schedule is one of another kind of problem: streaming blocks and contractions have schedules of their own"
    )]
    Kind,
    /// No tensor cores, or none with the instruction.
    #[error("{instruction} needs {needs}; this GPU is {arch}")]
    TensorCores {
        /// Instruction.
        instruction: String,
        /// Architectures that have it.
        needs: String,
        /// Architecture.
        arch: String,
    },
    /// No kernel is made of it.
    #[error("tensor cores: {0}")]
    Tensor(String),
    /// No asynchronous copies.
    #[error("cp.async needs sm_80 or later; this GPU is {arch}")]
    CpAsync {
        /// Architecture.
        arch: String,
    },
}

impl Infeasible {
    /// A GPU whose tensor cores do not have an instruction, with who has it.
    pub(crate) fn cores(instruction: &str, needs: &str, gpu: &Descriptor) -> Infeasible {
        Infeasible::TensorCores { instruction: instruction.into(), needs: needs.into(), arch: gpu.arch.clone() }
    }
}

/// Predicted time and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Predicted time, ms.
    pub ms: f64,
    /// Parts, ms each: what the kernel would take if only that resource bound it.
    pub parts: BTreeMap<String, f64>,
    /// The largest part.
    pub bottleneck: String,
    /// Resident blocks per multiprocessor.
    pub resident_blocks: i64,
    /// What limits them.
    pub occupancy_limit: String,
    /// Registers per thread (estimate).
    pub registers: i64,
    /// Blocks over the slots of the whole GPU.
    pub waves: f64,
    /// Bytes from and to DRAM.
    pub dram_bytes: f64,
    /// Bytes from and to L2.
    pub l2_bytes: f64,
    /// Work of the whole main kernel; of streaming programs that of all kernels, without arithmetic.
    pub work: Work,
}

impl Cost {
    /// The part of the predicted time that launching takes, ms. The launch of a second kernel that adds the parts of split k
    /// is in `add_parts`.
    pub fn launch_ms(&self) -> f64 {
        self.parts.get("launch").copied().unwrap_or(0.0)
    }

    /// The predicted time of the kernels alone, without their launches, ms.
    pub fn kernel_ms(&self) -> f64 {
        self.ms - self.launch_ms()
    }
}

/// A schedule as a compiler made it: with the registers of a thread that it gave the main kernel, in place of the model's.
pub struct Compiled<'a> {
    /// Its cost.
    pub cost: Cost,
    /// Its loop over k.
    pub k_loop: KLoop<'a>,
}

/// The loop over k of a schedule. Another judge than the model may say what it takes ([`KLoop::ms`]).
pub struct KLoop<'a> {
    /// Multiply-adds of a block's tile along k, times two.
    pub flop: f64,
    /// Resident blocks per multiprocessor.
    pub resident: i64,
    /// The loop copies tiles to shared memory.
    pub copies: bool,
    pub(crate) clocks: Box<dyn Fn(i64) -> f64 + 'a>,
    pub(crate) ms: OfLoop<'a>,
}

/// The time of a kernel from what its loop takes.
type OfLoop<'a> = Box<dyn Fn(&dyn Fn(i64) -> f64) -> f64 + 'a>;

impl KLoop<'_> {
    /// Clocks of a multiprocessor for a tile along k of so many resident blocks, by the model.
    pub fn clocks(&self, blocks: i64) -> f64 {
        (self.clocks)(blocks)
    }

    /// The predicted time, ms, if a tile along k of so many resident blocks takes the clocks that `judged` says, and no less than
    /// it takes to come from DRAM. All else is the model's.
    pub fn ms(&self, judged: &dyn Fn(i64) -> f64) -> f64 {
        (self.ms)(judged)
    }
}
