//! Fits the few global scalars of a descriptor to measured times, and says how good the model is with them.
//!
//! The time is a function of counts, which are exact, and of the descriptor's rates and latencies, which are not. Only
//! those are fitted, and all kernels share them: a mechanism that the model misses stays visible as an error. Errors are
//! logarithms of predicted over measured time, under Huber's loss, so that a few wild measurements do not pull the fit.
//! Each scalar is held near its starting value by a weak prior; what the measurements say nothing about keeps it and is
//! reported as such.
//!
//! Each kind of measurement informs other scalars. Products on single threads: the clock, the share of issue slots, L1 and L2,
//! the latencies of DRAM and shared memory. Streaming programs: the bandwidth of DRAM, and the latency of L2, which
//! nothing else reads; the start of a kernel where they are short. Products on tensor cores: the shares that `mma.sync` and
//! `wgmma` sustain, which nothing else reads either. Those stand beside the clock in one product wherever the tensor
//! cores are what a kernel waits for, so that only the clock's narrow prior, and the kernels that wait for something
//! else, tell them apart; the predicted time depends on the product alone.
mod fit;
mod quality;
mod row;
mod text;

pub use fit::{variants, Fitted};
pub use quality::{kendall, spearman, Quality};
pub use row::{Measurement, Problem};
pub use text::descriptor_text;

use crate::Descriptor;
use rayon::prelude::*;
use row::{Model, Row};
use serde::Serialize;

/// Least measurements that a fit makes sense with.
const LEAST: usize = 8;

/// Why nothing was fitted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CalibrateError {
    /// Too few measurements.
    #[error("{found} measurements that the GPU of {gpu} can run ({infeasible} others it cannot); {LEAST} are needed at least")]
    Few {
        /// Of them that can be used.
        found: usize,
        /// Of them that cannot.
        infeasible: usize,
        /// Descriptor.
        gpu: String,
    },
    /// A time is not a time.
    #[error("measurement {row} of {shape} is {ms} ms; times are positive")]
    Time {
        /// Its number, from 1.
        row: usize,
        /// Shape.
        shape: String,
        /// Value.
        ms: f64,
    },
    /// A clock is none that a descriptor may have.
    #[error("measurement {row} of {shape} has a clock of {mhz} MHz; clocks are 1 to 100000 MHz")]
    Clock {
        /// Its number, from 1.
        row: usize,
        /// Shape.
        shape: String,
        /// Value.
        mhz: f64,
    },
    /// The descriptor's text and its values disagree.
    #[error("the fitted descriptor cannot be written: {0}")]
    Text(String),
}

/// The clock that the fit began with, where it is not the descriptor's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeenClock {
    /// The descriptor's, MHz.
    pub before: f64,
    /// Median of those that were seen with the measurements, MHz.
    pub seen: f64,
}

/// A shape predicted with scalars that were fitted to all the others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeldOut {
    /// The shape.
    pub shape: String,
    /// Its measurements.
    pub measurements: usize,
    /// How good the prediction is.
    pub quality: Quality,
}

/// What a calibration found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// With the fitted scalars.
    pub descriptor: Descriptor,
    /// Each scalar.
    pub scalars: Vec<Fitted>,
    /// The clock that was taken for the descriptor's before the fit; none where none was seen, or the same.
    pub clock: Option<SeenClock>,
    /// Measurements used.
    pub measurements: usize,
    /// Shapes among them.
    pub shapes: usize,
    /// Measurements of plans that the descriptor says the GPU cannot run: left out.
    pub infeasible: usize,
    /// The model before.
    pub before: Quality,
    /// The model after, on the measurements that it was fitted to.
    pub after: Quality,
    /// The model on each shape, fitted to the other shapes; empty where there is one shape only.
    pub held_out: Vec<HeldOut>,
    /// All held-out shapes together.
    pub left_out: Option<Quality>,
}

/// (shape, predicted, measured), ms.
type Predicted<'a> = (&'a str, f64, f64);

/// Fits a descriptor to measurements, each at the clock that was seen. Deterministic.
///
/// # Errors
/// See [`CalibrateError`].
pub fn calibrate(gpu: &Descriptor, measurements: &[Measurement]) -> Result<Calibration, CalibrateError> {
    for (at, m) in measurements.iter().enumerate() {
        if !(m.ms.is_finite() && m.ms > 0.0) {
            return Err(CalibrateError::Time { row: at + 1, shape: m.shape.clone(), ms: m.ms });
        }
        // 0 and less say that no clock was seen.
        if let Some(mhz) = m.clock_mhz.filter(|mhz| *mhz > 0.0 && !(1.0..=1e5).contains(mhz)) {
            return Err(CalibrateError::Clock { row: at + 1, shape: m.shape.clone(), mhz });
        }
    }
    // The rates that are fitted are those of the clock that was seen, and not of the one that the GPU could reach.
    let mut clocks: Vec<f64> = measurements.iter().filter_map(|m| m.clock_mhz).filter(|c| *c > 0.0).collect();
    clocks.sort_by(f64::total_cmp);
    let before = gpu.clock_mhz;
    let seen = clocks.get(clocks.len() / 2).copied().unwrap_or(before);
    let gpu = &Descriptor { clock_mhz: seen, ..gpu.clone() };
    let rows = measurements.par_iter().map(|m| {
        let clock = m.clock_mhz.filter(|c| *c > 0.0).map_or(1.0, |clock| clock / seen);
        Row { shape: &m.shape, prepared: Model::of(m, gpu), ms: m.ms, clock }
    });
    let clock = (seen != before).then_some(SeenClock { before, seen });
    Ok(Calibration { clock, ..of_rows(gpu, rows.collect())? })
}

fn of_rows(gpu: &Descriptor, all: Vec<Row<'_>>) -> Result<Calibration, CalibrateError> {
    let count = all.len();
    let rows: Vec<Row<'_>> = all.into_iter().filter(|row| row.predict(gpu).is_ok()).collect();
    let infeasible = count - rows.len();
    if rows.len() < LEAST {
        return Err(CalibrateError::Few { found: rows.len(), infeasible, gpu: gpu.name.clone() });
    }
    let mut shapes: Vec<&str> = rows.iter().map(|r| r.shape).collect();
    shapes.sort_unstable();
    shapes.dedup();
    let all: Vec<&Row<'_>> = rows.iter().collect();
    let fitted = fit::Problem::new(gpu, &all).solve();
    let held: Vec<(HeldOut, Vec<Predicted<'_>>)> = if shapes.len() < 2 {
        Vec::new()
    } else {
        shapes
            .par_iter()
            .filter_map(|shape| {
                let (out, rest): (Vec<&Row<'_>>, Vec<&Row<'_>>) = rows.iter().partition(|r| r.shape == *shape);
                if rest.len() < LEAST {
                    return None;
                }
                let without = fit::Problem::new(gpu, &rest).solve();
                let predicted = predict(&out, &without.descriptor);
                let quality = Quality::of(&predicted);
                Some((HeldOut { shape: (*shape).into(), measurements: out.len(), quality }, predicted))
            })
            .collect()
    };
    let together: Vec<Predicted<'_>> = held.iter().flat_map(|h| h.1.iter().copied()).collect();
    Ok(Calibration {
        before: Quality::of(&predict(&all, gpu)),
        after: Quality::of(&predict(&all, &fitted.descriptor)),
        left_out: (!together.is_empty()).then(|| Quality::of(&together)),
        held_out: held.into_iter().map(|h| h.0).collect(),
        descriptor: fitted.descriptor,
        scalars: fitted.scalars,
        clock: None,
        measurements: rows.len(),
        shapes: shapes.len(),
        infeasible,
    })
}

/// The times of each row under a descriptor.
fn predict<'a>(rows: &[&Row<'a>], gpu: &Descriptor) -> Vec<Predicted<'a>> {
    rows.iter().filter_map(|r| Some((r.shape, r.predict(gpu).ok()?, r.ms))).collect()
}

#[cfg(test)]
mod tests;
