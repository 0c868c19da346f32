//! What a descriptor does not know exactly: each rate with its spread, and GPUs drawn within it.
use crate::Descriptor;
use rand::{Rng, SeedableRng};

/// A rate of a descriptor.
struct Rate {
    /// Its name in a descriptor's table of spreads.
    name: &'static str,
    /// Where it stands.
    of: fn(&mut Descriptor) -> Option<&mut f64>,
    /// The truth lies between the rate over and times 1 + this, where the descriptor does not say.
    spread: f64,
    /// It is a share: at most 1.
    share: bool,
}

macro_rules! rate {
    ($name:ident, $spread:expr) => {
        Rate { name: stringify!($name), of: |g| Some(&mut g.$name), spread: $spread, share: false }
    };
    (share $name:ident, $spread:expr) => {
        Rate { name: stringify!($name), of: |g| Some(&mut g.$name), spread: $spread, share: true }
    };
    (tensor $name:ident, $spread:expr) => {
        Rate { name: stringify!($name), of: |g| Some(&mut g.tensor.as_mut()?.$name), spread: $spread, share: true }
    };
    (power $name:ident, $spread:expr) => {
        Rate { name: stringify!($name), of: |g| Some(&mut g.power.as_mut()?.$name), spread: $spread, share: false }
    };
}

/// The rates that the truth may differ in. Sizes, counts and clocks of a data sheet are exact.
const RATES: [Rate; 16] = [
    rate!(share issue_efficiency, 0.10),
    rate!(tensor mma_share, 0.10),
    rate!(tensor wgmma_share, 0.10),
    rate!(l1_bytes_per_clock, 0.15),
    rate!(l2_bytes_per_clock, 0.25),
    rate!(dram_gbs, 0.06),
    rate!(dram_read_ratio, 0.03),
    rate!(latency_dram, 0.20),
    rate!(latency_l2, 0.20),
    rate!(latency_shared, 0.20),
    rate!(launch_us, 0.50),
    rate!(overlap_exponent, 0.50),
    rate!(power fp32_pj, 0.15),
    rate!(power tensor16_pj, 0.15),
    rate!(power l2_pj, 0.15),
    rate!(power dram_pj, 0.15),
];

/// Whether a descriptor's table of spreads may name it.
pub(crate) fn is_rate(name: &str) -> bool {
    RATES.iter().any(|rate| rate.name == name)
}

/// A GPU whose rates lie within the spreads of one that is described, each drawn by itself, evenly in the logarithm.
pub fn drawn(gpu: &Descriptor, seed: u64) -> Descriptor {
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
    let mut out = gpu.clone();
    for rate in &RATES {
        let spread = gpu.spread.get(rate.name).copied().unwrap_or(rate.spread);
        let factor = (1.0 + spread).powf(rng.gen_range(-1.0..=1.0));
        if let Some(value) = (rate.of)(&mut out) {
            *value *= factor;
            if rate.share {
                *value = value.min(1.0);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawn_gpu_is_sound_and_differs_in_rates_alone() {
        for name in Descriptor::names() {
            let gpu = Descriptor::load(name).unwrap();
            for seed in 0..50 {
                let other = drawn(&gpu, seed);
                assert_eq!(drawn(&gpu, seed), other, "one seed, one GPU");
                Descriptor::parse(&toml::to_string(&other).unwrap(), name).unwrap();
                assert_eq!(
                    (gpu.sms, gpu.shared_per_sm, gpu.l2_bytes),
                    (other.sms, other.shared_per_sm, other.l2_bytes)
                );
                let ratio = other.dram_gbs / gpu.dram_gbs;
                assert!((1.0 / 1.06 - 1e-9..=1.06 + 1e-9).contains(&ratio), "{ratio}");
            }
        }
    }
}
