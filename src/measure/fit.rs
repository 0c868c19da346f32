//! Re-fitting of the model's few global scalars to measured times.
//!
//! Minimised is the sum of Huber's loss of log(predicted / measured), so that a single odd measurement does not decide,
//! and a weak pull towards the descriptor's own values, so that what the measurements say nothing about stays. The
//! minimum is searched one scalar after the other; there are few, and the model is cheap.
use satune_extract::{predict, Descriptor};
use satune_ir::term::{Contraction, Schedule};

/// A measurement.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// The problem.
    pub contraction: &'a Contraction,
    /// The schedule.
    pub plan: &'a Schedule,
    /// Measured time, ms.
    pub ms: f64,
}

/// A fitted descriptor.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The descriptor, its scalars changed.
    pub gpu: Descriptor,
    /// Median of |log(predicted / measured)| before and after.
    pub error: (f64, f64),
}

/// A scalar: its name, how to reach it, its range.
type Scalar = (&'static str, fn(&mut Descriptor) -> &mut f64, f64, f64);

/// What is fitted.
const SCALARS: [Scalar; 8] = [
    ("issue_efficiency", |g| &mut g.issue_efficiency, 0.05, 1.0),
    ("l2_bytes_per_clock", |g| &mut g.l2_bytes_per_clock, 16.0, 1e6),
    ("l1_bytes_per_clock", |g| &mut g.l1_bytes_per_clock, 4.0, 1e4),
    ("dram_gbs", |g| &mut g.dram_gbs, 1.0, 1e6),
    ("latency_dram", |g| &mut g.latency_dram, 10.0, 1e4),
    ("latency_shared", |g| &mut g.latency_shared, 1.0, 1e4),
    ("launch_us", |g| &mut g.launch_us, 0.1, 1e3),
    ("overlap_exponent", |g| &mut g.overlap_exponent, 1.0, 50.0),
];

/// Where Huber's loss turns from square to straight: a tenth.
const HUBER: f64 = 0.1;
/// Pull towards the descriptor, per squared log of the factor, in observations.
const PULL: f64 = 0.003;

fn loss(gpu: &Descriptor, base: &Descriptor, observations: &[Observation<'_>]) -> f64 {
    let huber = |x: f64| if x.abs() <= HUBER { x * x / 2.0 } else { HUBER * (x.abs() - HUBER / 2.0) };
    let fit: f64 = observations
        .iter()
        .filter_map(|o| Some(huber((predict(o.plan, o.contraction, gpu).ok()?.ms / o.ms).ln())))
        .sum();
    let (mut changed, mut own) = (gpu.clone(), base.clone());
    let pull: f64 = SCALARS.iter().map(|(_, get, _, _)| (*get(&mut changed) / *get(&mut own)).ln().powi(2)).sum();
    fit + PULL * pull
}

fn error(gpu: &Descriptor, observations: &[Observation<'_>]) -> f64 {
    let errors: Vec<f64> = observations
        .iter()
        .filter_map(|o| Some((predict(o.plan, o.contraction, gpu).ok()?.ms / o.ms).ln().abs()))
        .collect();
    crate::store::median(&errors)
}

/// Descriptors with one scalar off, up and down: what a fit to few measurements leaves open.
pub(super) fn variants(gpu: &Descriptor) -> Vec<Descriptor> {
    let with = |(_, get, low, high): &Scalar, factor: f64| {
        let mut changed = gpu.clone();
        let value = get(&mut changed);
        *value = (*value * factor).clamp(*low, *high);
        changed
    };
    SCALARS.iter().flat_map(|s| [with(s, 0.6), with(s, 1.6)]).collect()
}

/// Fits a descriptor's scalars to measurements; without any, it stays as it is.
pub fn fit(base: &Descriptor, observations: &[Observation<'_>]) -> Fitted {
    let mut gpu = base.clone();
    let before = error(base, observations);
    let mut least = loss(&gpu, base, observations);
    // Steps shrink from a factor of 1.5 to one of 1.03.
    let mut step = 0.4_f64;
    while !observations.is_empty() && step > 0.02 {
        let start = least;
        for (_, get, low, high) in SCALARS {
            for factor in [step.exp(), (-step).exp()] {
                loop {
                    let mut tried = gpu.clone();
                    let value = get(&mut tried);
                    *value = (*value * factor).clamp(low, high);
                    let loss = loss(&tried, base, observations);
                    if loss >= least * (1.0 - 1e-3) {
                        break;
                    }
                    (gpu, least) = (tried, loss);
                }
            }
        }
        if least > start * 0.98 {
            step /= 2.0;
        }
    }
    let after = error(&gpu, observations);
    Fitted { gpu, error: (before, after) }
}
