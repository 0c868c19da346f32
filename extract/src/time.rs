//! The time of a kernel from what it asks of a GPU: one formula for all families of schedules.
//!
//! ```text
//! T = launch + max(T_boost, sqrt(T_boost E / P), floor E / P)        T_boost = waits + norm_p(SM, L2, DRAM)
//! ```
//! * SM: clocks of the busiest multiprocessor. Within it the largest pipe binds (issue slots, multiply-add units, tensor
//!   cores, wavefronts of shared memory, load/store units, L1): they work on one stream of instructions, so a pipe that is
//!   not the slowest is hidden behind it. Each family counts its own.
//! * L2 and DRAM have queues of their own, filled by all multiprocessors: where two of the three are near each other, neither
//!   is hidden whole, which the descriptor's p-norm says (`overlap_exponent`).
//! * Waits: what nothing overlaps, the latency at the begin and at the end of each wave of blocks; and once for each kernel, until its
//!   code and its parameters have come, and until its last store is known to be done.
//! * E: energy of arithmetic and of the bytes that L2 and DRAM move; P: what the board's limit leaves above idling. A kernel
//!   that would take more power is slowed down; as the voltage falls with the clock, the energy falls too, in the range
//!   of dynamic voltage scaling about in proportion, so that the power goes with the square of the clock. Below a share of
//!   the boost clock (`floor`) the voltage is at its least and the energy falls no more: boards of 70 W run there. Order among
//!   kernels that are slowed down is kept. Where a last round of blocks leaves multiprocessors idle, what it takes less of power comes
//!   too late for the others: both are slowed down by themselves.
//! * DRAM: reads alone are faster than a copy, writes slower; both together take what a copy takes.
use crate::Descriptor;
use satune_ir::DType;
use std::collections::BTreeMap;

/// Share of L2 that data of a kernel can count on (estimate; the rest goes to what passes through).
const L2_SHARE: f64 = 0.8;

/// Clocks until a kernel's first load is asked for: its code and its parameters come from DRAM, as its data do (measured on an H100: 1400
/// with the barriers of a cluster; until the first tile is there 2000 to 2300 clocks with `cp.async`, 4050 with the TMA).
const COLD: f64 = 650.0;

/// Share of the boost clock below which the voltage falls no more (estimate, 0.75 to 0.95: where published curves of voltage over
/// clock, 0.88 to 1.08 V at 0.9 to 1.0 of a board's highest clock, come down to the 0.67 V of idling).
const VOLTAGE_FLOOR: f64 = 0.85;

/// Bytes between DRAM and L2.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Moved {
    pub read: f64,
    pub written: f64,
}

impl Moved {
    /// Both.
    pub fn total(&self) -> f64 {
        self.read + self.written
    }

    /// Milliseconds. A copy reads as many bytes as it writes, at the descriptor's rate.
    pub fn ms(&self, gpu: &Descriptor) -> f64 {
        let reading = self.read / gpu.dram_read_ratio;
        let writing = self.written * (2.0 - 1.0 / gpu.dram_read_ratio);
        (reading + writing) / (gpu.dram_gbs * 1e9) * 1e3
    }
}

/// What a kernel asks of a GPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    /// Clocks of the busiest multiprocessor.
    pub sm_clocks: f64,
    /// Of those, clocks of the last round of blocks, and its share of all blocks, where it leaves multiprocessors idle.
    pub last_clocks: f64,
    pub last_share: f64,
    /// Clocks that nothing overlaps.
    pub wait_clocks: f64,
    /// Bytes between L2 and L1.
    pub l2_bytes: f64,
    pub dram: Moved,
    /// Energy of arithmetic at the boost clock, joules.
    pub joules: f64,
}

/// The time of a kernel, and what each part would take alone, ms.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    pub ms: f64,
    pub sm_ms: f64,
    pub wait_ms: f64,
    pub l2_ms: f64,
    pub dram_ms: f64,
    /// At the boost clock, the energy over what may be taken of power; 0 where the descriptor does not say.
    pub power_ms: f64,
    pub launch_ms: f64,
}

/// Parts that add to the others; the rest overlap.
pub const ADDED: [&str; 6] = ["latency", "prologue", "epilogue", "launch", "add_parts", "align_rows"];

impl Taken {
    /// Adds what every kernel has to its parts.
    pub fn name(&self, parts: &mut BTreeMap<String, f64>) {
        parts.insert("l2".into(), self.l2_ms);
        parts.insert("dram".into(), self.dram_ms);
        parts.insert("launch".into(), self.launch_ms);
        if self.power_ms > 0.0 {
            parts.insert("power".into(), self.power_ms);
        }
    }
}

/// The part that binds: of those that overlap the largest.
pub(crate) fn binding(parts: &BTreeMap<String, f64>) -> String {
    let overlap = parts.iter().filter(|(name, _)| !ADDED.contains(&name.as_str()));
    overlap.max_by(|a, b| a.1.total_cmp(b.1)).map_or_else(String::new, |(name, _)| name.clone())
}

/// The clock in kHz: clocks per millisecond.
pub(crate) fn clocks_per_ms(gpu: &Descriptor) -> f64 {
    gpu.clock_mhz * 1e3
}

/// Whether so many bytes stay in L2 until they are read again.
pub fn stays_in_l2(bytes: f64, gpu: &Descriptor) -> bool {
    bytes <= L2_SHARE * gpu.l2_bytes as f64
}

/// Joins resources that overlap but for their queues.
pub(crate) fn norm(parts: &[f64], p: f64) -> f64 {
    if p == 4.0 {
        // The usual exponent, without a power function: this is the innermost code of extraction.
        let sum: f64 = parts.iter().map(|x| x * x * x * x).sum();
        return sum.sqrt().sqrt();
    }
    let largest = parts.iter().copied().fold(0.0, f64::max);
    if largest <= 0.0 {
        return 0.0;
    }
    // By logarithms, which take half as long as powers: a portfolio's GPUs have other exponents.
    let power = |x: f64, p: f64| (p * x.log2()).exp2();
    largest * power(parts.iter().map(|x| power(x / largest, p)).sum(), 1.0 / p)
}

/// Joins the pipes of a multiprocessor: the largest binds. A thousandth of what is hidden counts too, so that of schedules that
/// are equal but for that the one that does less comes first.
pub(crate) fn largest(pipes: &[f64]) -> f64 {
    let largest = pipes.iter().copied().fold(0.0, f64::max);
    largest + 1e-3 * (pipes.iter().sum::<f64>() - largest)
}

/// Energy of so many multiply-adds of single threads, joules.
pub(crate) fn fma_joules(count: f64, dtype: DType, gpu: &Descriptor) -> f64 {
    // In proportion to the width: twice as much in double precision.
    let width = f64::from(dtype.bytes().max(4)) / 4.0;
    gpu.power.map_or(0.0, |p| count * 2.0 * width * p.fp32_pj * 1e-12)
}

/// Energy of so many FLOP of tensor cores, joules.
pub(crate) fn tensor_joules(flop: f64, operand: DType, gpu: &Descriptor) -> f64 {
    let width = f64::from(operand.bytes()) / 2.0;
    gpu.power.map_or(0.0, |p| flop * width * p.tensor16_pj * 1e-12)
}

impl Demand {
    /// The time.
    pub fn time(&self, gpu: &Descriptor) -> Taken {
        let clocks = clocks_per_ms(gpu);
        let begin_and_end = COLD + gpu.latency_dram;
        let (sm_ms, wait_ms) = (self.sm_clocks / clocks, (self.wait_clocks + begin_and_end) / clocks);
        let l2_ms = self.l2_bytes / gpu.l2_bytes_per_clock / clocks;
        let dram_ms = self.dram.ms(gpu);
        let at_boost = norm(&[sm_ms, l2_ms, dram_ms], gpu.overlap_exponent) + wait_ms;
        let power_ms = gpu.power.map_or(0.0, |p| {
            let moved = self.l2_bytes * p.l2_pj + self.dram.total() * p.dram_pj;
            (self.joules + moved * 1e-12) / (p.limit_w - p.idle_w) * 1e3
        });
        let part = |time: f64, share: f64| slowed(time * at_boost, share * power_ms);
        let last = if self.last_clocks > 0.0 { self.last_clocks / self.sm_clocks } else { 0.0 };
        let busy = part(1.0, 1.0).max(part(1.0 - last, 1.0 - self.last_share) + part(last, self.last_share));
        let launch_ms = gpu.launch_us * 1e-3;
        Taken { ms: busy + launch_ms, sm_ms, wait_ms, l2_ms, dram_ms, power_ms, launch_ms }
    }
}

/// What takes so long at the boost clock, and as long by its energy, ms.
fn slowed(at_boost: f64, power_ms: f64) -> f64 {
    let scaled = (power_ms.max(at_boost) * at_boost).sqrt();
    // A thousandth of what the floor hides tells kernels of one energy apart.
    scaled.max(0.999 * VOLTAGE_FLOOR * power_ms + 0.001 * scaled)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GPU on which the arithmetic below can be done by hand.
    fn gpu() -> Descriptor {
        let mut gpu = Descriptor::load("a100").unwrap();
        (gpu.clock_mhz, gpu.launch_us, gpu.l2_bytes_per_clock, gpu.dram_gbs) = (1000.0, 0.0, 1000.0, 1000.0);
        gpu.power = Some(crate::Power {
            limit_w: 150.0,
            idle_w: 50.0,
            fp32_pj: 5.0,
            tensor16_pj: 1.0,
            l2_pj: 10.0,
            dram_pj: 40.0,
        });
        gpu
    }

    #[test]
    fn queues_are_joined_by_a_norm_and_waits_are_added() {
        let gpu = gpu();
        let sm = Demand { sm_clocks: 1e6, ..Demand::default() };
        let empty = Demand::default().time(&gpu).ms;
        assert!(empty > 0.0 && (sm.time(&gpu).ms - 1.0 - empty).abs() < 1e-12);
        let both = Demand { l2_bytes: 1e9, wait_clocks: 1e5, ..sm };
        let gpu = Descriptor { power: None, ..gpu };
        assert!((both.time(&gpu).ms - (2.0_f64.powf(0.25) + 0.1 + empty)).abs() < 1e-12);
    }

    #[test]
    fn what_takes_more_power_than_there_is_is_slowed_down_and_stays_in_order() {
        let gpu = gpu();
        let near = |demand: &Demand, ms: f64| (demand.time(&gpu).ms / ms - 1.0).abs() < 2e-3;
        let of = |joules: f64| Demand { sm_clocks: 1e6, joules, ..Demand::default() };
        // 0.121 J at 100 W are 1.21 ms of what takes 1 ms at the boost clock: 1.1 ms, as the voltage falls.
        assert!(near(&of(0.121), 1.1) && (of(0.121).time(&gpu).power_ms - 1.21).abs() < 1e-12);
        // At the least voltage the energy is what it is.
        assert!(near(&of(0.4), VOLTAGE_FLOOR * 4.0) && near(&of(0.8), VOLTAGE_FLOOR * 8.0));
        for joules in [0.121, 0.4] {
            let slower = Demand { sm_clocks: 1.1e6, ..of(joules) };
            assert!(slower.time(&gpu).ms > of(joules).time(&gpu).ms);
        }
        assert!(near(&of(0.1), 1.0));
    }

    #[test]
    fn what_a_last_round_leaves_of_power_comes_too_late() {
        let gpu = gpu();
        let of = |last_share: f64| {
            Demand { sm_clocks: 1e6, last_clocks: 2e5, last_share, joules: 0.11, ..Demand::default() }.time(&gpu).ms
        };
        // As much as its part of the time: as if there were none.
        assert!((of(0.2) / 1.1_f64.sqrt() - 1.0).abs() < 2e-3);
        // Little of it: the last fifth runs at the boost clock, the rest takes 1.045 ms of energy in 0.8 ms.
        assert!((of(0.05) / ((0.8 * 1.045_f64).sqrt() + 0.2) - 1.0).abs() < 2e-3);
    }

    #[test]
    fn a_copy_takes_the_copy_rate_whatever_the_ratio() {
        let mut gpu = gpu();
        for ratio in [1.0, 1.08, 1.2] {
            gpu.dram_read_ratio = ratio;
            let copy = Moved { read: 1e9, written: 1e9 };
            assert!((copy.ms(&gpu) - 2.0).abs() < 1e-12);
            let read = Moved { read: 1e9, written: 0.0 };
            assert!((read.ms(&gpu) - 1.0 / ratio).abs() < 1e-12);
        }
    }

    #[test]
    fn energies_go_by_width() {
        let gpu = gpu();
        assert!((fma_joules(1e12, DType::F32, &gpu) - 10.0).abs() < 1e-9);
        assert!((fma_joules(1e12, DType::F64, &gpu) - 20.0).abs() < 1e-9);
        assert!((tensor_joules(1e12, DType::BF16, &gpu) - 1.0).abs() < 1e-12);
        assert!((tensor_joules(1e12, DType::I8, &gpu) - 0.5).abs() < 1e-12);
    }
}
