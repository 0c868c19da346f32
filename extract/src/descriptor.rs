//! GPU descriptors: what a GPU can hold and how fast it is. One TOML file each; a user's own file works like a built-in.
use satune_ir::DType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A GPU. Units are in the fields' names or comments; the built-in files say where each number is from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// Short name.
    pub name: String,
    /// Marketing name.
    pub full_name: String,
    /// Portable architecture, `sm_90`.
    pub arch: String,
    /// Architecture with the chip's own features, `sm_90a`.
    pub arch_features: String,
    /// Multiprocessors.
    pub sms: u32,
    /// Clock, MHz.
    pub clock_mhz: f64,
    /// Single-precision multiply-adds per clock and multiprocessor.
    pub fp32_lanes: u32,
    /// Double-precision multiply-adds per clock and multiprocessor.
    pub fp64_lanes: u32,
    /// Lanes of the load/store units, for shared and global memory: a warp's access takes 32 / this clocks at least.
    #[serde(default = "load_store_lanes")]
    pub load_store_lanes: u32,
    /// Share of the issue slots that dense arithmetic sustains.
    pub issue_efficiency: f64,
    /// Shared memory per multiprocessor, bytes.
    pub shared_per_sm: u32,
    /// Shared memory per block, bytes.
    pub shared_per_block: u32,
    /// Threads that a block can have: 1024 on every GPU so far (CUDA C++ Programming Guide, technical specifications per
    /// compute capability), where a file does not say.
    #[serde(default = "threads_per_block", skip_serializing_if = "is_usual")]
    pub threads_per_block: u32,
    /// Shared memory that the system takes per resident block, bytes.
    pub shared_reserved: u32,
    /// Registers per multiprocessor.
    pub registers_per_sm: u32,
    /// Resident threads per multiprocessor.
    pub threads_per_sm: u32,
    /// Resident blocks per multiprocessor.
    pub blocks_per_sm: u32,
    /// Clusters of 1, 2, 4 and 8 blocks that are resident at once, where each block takes a multiprocessor's shared memory
    /// (`cuOccupancyMaxActiveClusters`); estimated where a file does not say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub max_clusters: Vec<u32>,
    /// L2, bytes.
    pub l2_bytes: u64,
    /// L2 bytes per clock for the chip.
    pub l2_bytes_per_clock: f64,
    /// Bytes per clock with which L1 of a multiprocessor is filled.
    pub l1_bytes_per_clock: f64,
    /// DRAM, GB/s, nominal.
    pub dram_nominal_gbs: f64,
    /// DRAM, GB/s, reached by a copy: read and written together.
    pub dram_gbs: f64,
    /// Rate of reads alone over that of a copy; writes alone are as much slower as makes a copy what it is.
    #[serde(default = "dram_read_ratio")]
    pub dram_read_ratio: f64,
    /// Clocks.
    pub latency_dram: f64,
    /// Clocks.
    pub latency_l2: f64,
    /// Clocks.
    pub latency_shared: f64,
    /// Bytes of instructions that a loop may have before fetching them slows it.
    pub instruction_cache_bytes: u64,
    /// Bytes of instructions that a loop may have before a warp alone in its partition waits for them, where that is known: see
    /// [`Descriptor::fetch_clocks`].
    #[serde(default)]
    pub instruction_buffer_bytes: Option<u64>,
    /// Microseconds.
    pub launch_us: f64,
    /// Exponent of the norm over resources.
    pub overlap_exponent: f64,
    /// cp.async exists (sm_80 and later).
    pub cp_async: bool,
    /// The bulk tensor copy engine exists (sm_90).
    pub tma: bool,
    /// How far the truth may be from a rate, as a share, where that is known better than of GPUs in general.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spread: BTreeMap<String, f64>,
    /// Power and energies; without them a GPU is never slowed down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<Power>,
    /// Tensor cores (sm_70 and later).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<TensorRates>,
}

/// What a board may take, and what work takes at the boost clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    /// Limit of the board, W.
    pub limit_w: f64,
    /// Taken whatever it does, W: leakage, clocks, DRAM's refresh.
    pub idle_w: f64,
    /// pJ per FLOP in single precision, with its instructions and operands; twice as much in double precision.
    pub fp32_pj: f64,
    /// pJ per FLOP of tensor cores with operands of 16 bits; others by their width.
    pub tensor16_pj: f64,
    /// pJ per byte between L2 and L1.
    pub l2_pj: f64,
    /// pJ per byte of DRAM.
    pub dram_pj: f64,
}

/// Rates of tensor cores: dense FLOP per clock and multiprocessor, and the shares that instructions sustain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorRates {
    /// Operands in f16, sums in f32.
    pub f16: f64,
    /// Operands and sums in f16: as fast as with sums in f32 where a file does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f16_sums: Option<f64>,
    /// Operands in bf16: as fast as in f16 where a file does not say; 0 where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16: Option<f64>,
    /// Operands in tf32; 0 where there are none.
    pub tf32: f64,
    /// Operands in i8, sums in i32; 0 where there are none.
    pub i8: f64,
    /// Operands in fp8, sums in f32: as fast as i8 where a file does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp8: Option<f64>,
    /// Share that `mma.sync` sustains; 0 where it has no shape that is offered.
    pub mma_share: f64,
    /// Share that `wmma` sustains: that of `mma.sync` where a file does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wmma_share: Option<f64>,
    /// Share that `wgmma`, or on Blackwell `tcgen05`, sustains; 0 where there is none.
    pub wgmma_share: f64,
}

/// The number of an architecture: 90 for `sm_90` and `sm_90a`; 0 where it has none.
pub fn arch_number(arch: &str) -> u32 {
    let digits = arch.strip_prefix("sm_").unwrap_or(arch).bytes().take_while(u8::is_ascii_digit);
    digits.fold(0u32, |number, digit| number.saturating_mul(10).saturating_add(u32::from(digit - b'0')))
}

/// Bytes of instructions per clock that a partition of a multiprocessor fetches of a loop longer than its buffer, 8 of the 16 that it
/// can issue (measured on an H100: a lone warp takes 1.9 clocks for each of a loop's 2,300 instructions, two warps together none more).
const FETCHED: f64 = 8.0;

impl Descriptor {
    /// Clocks at least of an iteration of so many bytes of instructions, for one warp of a partition or several in step.
    pub fn fetch_clocks(&self, bytes: f64) -> f64 {
        match self.instruction_buffer_bytes {
            Some(buffer) if bytes > buffer as f64 => bytes / FETCHED,
            _ => 0.0,
        }
    }

    /// The number of the architecture: 90 for `sm_90`.
    pub fn arch_number(&self) -> u32 {
        arch_number(&self.arch)
    }

    /// Blocks that are resident at once in clusters of so many, one on a multiprocessor: as `max_clusters` says, where it is
    /// there. `None` where it is not.
    pub fn clustered(&self, cluster: u32) -> Option<u32> {
        let at = CLUSTERS.iter().position(|size| *size == cluster)?;
        let clusters = self.max_clusters.get(at)?;
        Some(clusters.saturating_mul(cluster).min(self.sms))
    }

    /// [`Descriptor::clustered`], estimated where a file does not say: pairs are neighbours everywhere; of larger clusters the
    /// last multiprocessors of a graphics processing cluster may hold none.
    pub fn usable(&self, cluster: u32) -> u32 {
        let estimate = match cluster {
            ..=2 => self.sms,
            _ => (self.sms / (SMS_OF_GPC + 2) * SMS_OF_GPC).max(cluster.min(self.sms)),
        };
        self.clustered(cluster).filter(|blocks| *blocks > 0).unwrap_or(estimate)
    }
}

/// Sizes of clusters that a descriptor speaks of.
pub const CLUSTERS: [u32; 4] = [1, 2, 4, 8];

/// Multiprocessors of a graphics processing cluster, which holds whole clusters only; at least so many of them.
const SMS_OF_GPC: u32 = 16;

impl TensorRates {
    /// FLOP per clock and multiprocessor for the types of operands and sums; 0 where tensor cores do not take them.
    pub fn of(&self, types: [DType; 2]) -> f64 {
        match types {
            [DType::I8, _] => self.i8,
            [DType::F8E4M3 | DType::F8E5M2, _] => self.fp8.unwrap_or(self.i8),
            [DType::F32, _] => self.tf32,
            [DType::BF16, _] => self.bf16.unwrap_or(self.f16),
            [_, DType::F16] => self.f16_sums.unwrap_or(self.f16),
            _ => self.f16,
        }
    }

    /// Share of the rate that a warp's instruction sustains.
    pub fn share(&self, op: satune_ir::term::tensor::Mma) -> f64 {
        match op.wmma() {
            Some(_) => self.wmma_share.unwrap_or(self.mma_share),
            None => self.mma_share,
        }
    }
}

/// Of the SMs of data-centre GPUs (whitepapers of GV100, GA100, GH100); Turing's and those of GeForce boards have 16.
fn load_store_lanes() -> u32 {
    32
}

/// Measured on H100: a sum reads 3240 GB/s where a copy reaches 3000.
fn dram_read_ratio() -> f64 {
    1.08
}

const THREADS_PER_BLOCK: u32 = 1024;

fn threads_per_block() -> u32 {
    THREADS_PER_BLOCK
}

fn is_usual(threads: &u32) -> bool {
    *threads == THREADS_PER_BLOCK
}
