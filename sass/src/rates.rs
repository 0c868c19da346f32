//! How long each unit of a partition takes an instruction, and how long its result takes, clocks.
use super::instruction::{Access, Matrix, Unit};
use super::Unknown;
use satune_extract::{Descriptor, TensorRates, LOGIC_LANES};

/// Lanes of a partition that work on integers.
const INTEGER_LANES: f64 = LOGIC_LANES / 4.0;
/// Transcendental functions and conversions (the same table: 16 per multiprocessor).
const SPECIAL_LANES: f64 = 4.0;
/// Result of a special-function unit or a special register, clocks (estimate; 15 to 30).
const SPECIAL_LATENCY: f64 = 20.0;
/// From the last warp's arrival at a barrier until the block goes on, clocks (estimate; 10 to 30).
const BARRIER: f64 = 20.0;
/// Result of a matrix instruction that holds a scoreboard, clocks (estimate; 20 to 35). Others are in the stall counts.
const MATRIX_LATENCY: f64 = 33.0;

/// Rates of a GPU's partitions.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    /// Whether half of the multiply-add lanes take no integers.
    pub lite: bool,
    pub barrier: u64,
    fma: f64,
    half: f64,
    fp64: f64,
    /// Clocks of the multiprocessor for the least access of a warp.
    access: f64,
    l1_bytes: f64,
    /// Wavefronts of a shared access over those of its bytes: conflicts above 1, words that lanes share below.
    pub wavefronts: f64,
    latency_shared: f64,
    latency_global: f64,
    /// Rates of the multiprocessor's tensor cores, and the share of them that a warp's own instruction has.
    tensor: Option<TensorRates>,
    warp_share: f64,
}

impl Rates {
    /// Of a GPU, where shared accesses take the wavefronts that their bytes need.
    ///
    /// # Errors
    /// For architectures whose machine code or units are not known here.
    pub fn of_gpu(gpu: &Descriptor) -> Result<Rates, Unknown> {
        let arch = gpu.arch_number();
        if ![70, 72, 75, 80, 86, 87, 89, 90].contains(&arch) {
            return Err(Unknown::Architecture(gpu.arch.clone()));
        }
        let lite = gpu.fp32_lanes >= 128;
        // The programming guide's table: pairs per clock and multiprocessor are 128 on 8.0 and 9.0, 64 on the others.
        let half = if matches!(arch, 80 | 90) { 32.0 } else { 16.0 };
        // On sm_90 the full rate is wgmma's.
        let warp_share = gpu.tensor.as_ref().filter(|_| arch >= 90).map_or(1.0, |t| t.mma_share);
        Ok(Rates {
            lite,
            barrier: BARRIER as u64,
            // Each half of the lanes takes a warp's instruction for two clocks.
            fma: if lite { 2.0 } else { 32.0 * 4.0 / f64::from(gpu.fp32_lanes) },
            half: 32.0 / half,
            fp64: 32.0 * 4.0 / f64::from(gpu.fp64_lanes.max(1)),
            access: 32.0 / f64::from(gpu.load_store_lanes.max(1)),
            l1_bytes: gpu.l1_bytes_per_clock,
            wavefronts: 1.0,
            latency_shared: gpu.latency_shared,
            latency_global: gpu.latency_l2,
            tensor: gpu.tensor,
            warp_share,
        })
    }

    /// What no unit of the GPU takes.
    pub fn lacks(&self, unit: Unit) -> bool {
        match unit {
            Unit::Tensor(matrix) => self.tensor_rate(matrix) * self.warp_share <= 0.0,
            Unit::Warpgroup(matrix) => self.tensor_rate(matrix) <= 0.0,
            _ => false,
        }
    }

    /// FLOP per clock of a partition's tensor cores.
    fn tensor_rate(&self, matrix: Matrix) -> f64 {
        self.tensor.map_or(0.0, |rates| rates.of(matrix.types) / 4.0)
    }

    /// (Clocks that the unit is busy, clocks until the result is there for those that wait for a scoreboard.) `partitions`
    /// share what a multiprocessor has once.
    pub fn of(&self, unit: Unit, partitions: f64) -> (f64, u64) {
        let (busy, latency) = match unit {
            Unit::Fma => (self.fma, 0.0),
            Unit::IntegerFma | Unit::Alu => (32.0 / INTEGER_LANES, 0.0),
            Unit::Half => (self.half, 0.0),
            Unit::Fp64 => (self.fp64, self.fp64 + SPECIAL_LATENCY),
            Unit::Special => (32.0 / SPECIAL_LANES, SPECIAL_LATENCY),
            Unit::Tensor(matrix) => {
                (f64::from(matrix.flop) / (self.tensor_rate(matrix) * self.warp_share), MATRIX_LATENCY)
            }
            // Operands of all four partitions come at 128 bytes a clock, or the arithmetic takes longer.
            Unit::Warpgroup(matrix) => {
                let busy = (f64::from(matrix.flop) / self.tensor_rate(matrix)).max(f64::from(matrix.bytes) / 128.0);
                (busy, busy.ceil() + MATRIX_LATENCY)
            }
            Unit::Issue => (0.0, SPECIAL_LATENCY),
            Unit::Memory(access) => {
                let busy = self.access_clocks(access);
                let latency = match access {
                    Access::Global { .. } | Access::Copy { .. } => self.latency_global,
                    _ => self.latency_shared,
                };
                // The first data come after the latency, the last when the unit is done.
                (busy * partitions, latency + busy - 1.0)
            }
        };
        (busy, latency.round() as u64)
    }

    /// Clocks of the multiprocessor: a wavefront of 128 bytes each from shared memory, L1's rate from global memory.
    fn access_clocks(&self, access: Access) -> f64 {
        let clocks = match access {
            Access::Shared { .. } | Access::Matrices(_) => Unit::Memory(access).wavefronts() * self.wavefronts,
            Access::Global { bytes } | Access::Copy { bytes } => 32.0 * f64::from(bytes) / self.l1_bytes,
            Access::Shuffle | Access::Word => 1.0,
        };
        clocks.max(self.access)
    }
}
