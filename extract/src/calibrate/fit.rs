//! The fit: Huber's loss over logarithms of the times, minimized by a coordinate search that finds the valley and
//! damped Gauss-Newton steps that follow it.
use super::row::Row;
use crate::Descriptor;
use serde::Serialize;

/// A scalar that is fitted.
pub(super) struct Scalar {
    pub name: &'static str,
    /// None where the GPU does not have it.
    pub get: fn(&Descriptor) -> Option<f64>,
    set: fn(&mut Descriptor, f64),
    /// Range, as multiples of the starting value.
    range: (f64, f64),
    /// Range whatever the starting value.
    limits: (f64, f64),
    /// How far from its starting value it may well be: standard deviation of its logarithm. A boost clock is known to
    /// a tenth; an estimated latency is not.
    prior: f64,
}

macro_rules! scalar {
    ($field:ident, $range:expr, $limits:expr, $prior:expr) => {
        Scalar {
            name: stringify!($field),
            get: |g| Some(g.$field),
            set: |g, v| g.$field = v,
            range: $range,
            limits: $limits,
            prior: $prior,
        }
    };
}

/// A share of the tensor cores' rate; 0 where the GPU does not have the instruction.
macro_rules! share {
    ($field:ident, $prior:expr) => {
        Scalar {
            name: stringify!($field),
            get: |g| g.tensor.map(|t| t.$field).filter(|share| *share > 0.0),
            set: |g, v| {
                if let Some(rates) = &mut g.tensor {
                    rates.$field = v;
                }
            },
            range: (0.2, 5.0),
            limits: (0.05, 1.0),
            prior: $prior,
        }
    };
}

/// A scalar of the descriptor after the fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fitted {
    /// The descriptor's field.
    pub name: &'static str,
    /// Value before.
    pub before: f64,
    /// Value after.
    pub after: f64,
    /// Whether the measurements determine it; otherwise it keeps its value.
    pub determined: bool,
    /// Standard error, as a share of the value.
    pub error: f64,
}

/// Every rate and latency that the cost reads.
pub(super) const SCALARS: [Scalar; 12] = [
    scalar!(clock_mhz, (0.4, 1.15), (1.0, 1e5), 0.1),
    scalar!(issue_efficiency, (0.3, 3.0), (0.05, 1.0), 0.3),
    scalar!(dram_gbs, (0.3, 2.0), (1.0, 1e6), 0.2),
    scalar!(l2_bytes_per_clock, (0.2, 5.0), (1.0, 1e6), 0.5),
    scalar!(l1_bytes_per_clock, (0.2, 5.0), (1.0, 1e5), 0.5),
    scalar!(latency_dram, (0.2, 5.0), (1.0, 1e5), 0.5),
    scalar!(latency_l2, (0.2, 5.0), (1.0, 1e5), 0.5),
    scalar!(latency_shared, (0.2, 5.0), (1.0, 1e5), 0.5),
    scalar!(launch_us, (0.1, 10.0), (0.1, 1e4), 0.7),
    scalar!(overlap_exponent, (0.2, 8.0), (1.0, 32.0), 0.7),
    // An estimate, and what cuBLAS is known to reach.
    share!(mma_share, 0.3),
    share!(wgmma_share, 0.2),
];

/// Residuals beyond this many scales weigh less than their square: 95% efficient where the noise is normal.
const HUBER: f64 = 1.345;
/// A scale of the noise below this (1%) is not believed: clocks and caches vary more from run to run.
const LEAST_SCALE: f64 = 0.01;
/// A scalar is determined if the measurements shrink its prior's spread below this share.
const DETERMINED: f64 = 0.5;

/// Descriptors with one scalar off, down and up: what a fit to few measurements leaves open.
pub fn variants(gpu: &Descriptor) -> Vec<Descriptor> {
    let with = |scalar: &Scalar, value: f64, factor: f64| {
        let mut changed = gpu.clone();
        let (low, high) = (value * scalar.range.0, value * scalar.range.1);
        (scalar.set)(&mut changed, (value * factor).clamp(low, high).clamp(scalar.limits.0, scalar.limits.1));
        changed
    };
    let known = SCALARS.iter().filter_map(|s| Some((s, (s.get)(gpu)?)));
    known.flat_map(|(s, value)| [with(s, value, 0.6), with(s, value, 1.6)]).collect()
}

/// A fit to be made.
pub(super) struct Problem<'r, 'a> {
    gpu: &'r Descriptor,
    rows: &'r [&'r Row<'a>],
    /// Those that the GPU has, each with its value before.
    scalars: Vec<(&'static Scalar, f64)>,
    /// Logarithms of the starting values, and the ranges.
    start: Vec<f64>,
    low: Vec<f64>,
    high: Vec<f64>,
    /// Which scalars may move.
    free: Vec<bool>,
}

/// A fitted descriptor.
pub(super) struct Solution {
    pub descriptor: Descriptor,
    pub scalars: Vec<Fitted>,
}

impl<'r, 'a> Problem<'r, 'a> {
    pub fn new(gpu: &'r Descriptor, rows: &'r [&'r Row<'a>]) -> Problem<'r, 'a> {
        let scalars: Vec<(&Scalar, f64)> = SCALARS.iter().filter_map(|s| Some((s, (s.get)(gpu)?))).collect();
        // A value of 0 (a launch that costs nothing) has no logarithm.
        let start = |(s, v): &(&Scalar, f64)| v.clamp(s.limits.0, s.limits.1);
        let range = |s: &Scalar, v: f64| [(v * s.range.0).max(s.limits.0).ln(), (v * s.range.1).min(s.limits.1).ln()];
        let ranges: Vec<[f64; 2]> = scalars.iter().map(|s| range(s.0, start(s))).collect();
        Problem {
            gpu,
            rows,
            start: scalars.iter().map(|s| start(s).ln()).collect(),
            low: ranges.iter().map(|r| r[0]).collect(),
            high: ranges.iter().map(|r| r[1]).collect(),
            free: vec![true; scalars.len()],
            scalars,
        }
    }

    fn descriptor(&self, x: &[f64]) -> Descriptor {
        let mut gpu = self.gpu.clone();
        for (i, (scalar, _)) in self.scalars.iter().enumerate() {
            // A scalar that did not move keeps its value to the last digit.
            if x[i] != self.start[i] {
                (scalar.set)(&mut gpu, x[i].exp());
            }
        }
        gpu
    }

    /// ln(predicted / measured) of every row.
    fn residuals(&self, x: &[f64]) -> Vec<f64> {
        let gpu = self.descriptor(x);
        self.rows
            .iter()
            .map(|r| match r.predict(&gpu) {
                Ok(ms) if ms > 0.0 => (ms / r.ms).ln(),
                // Feasibility does not depend on what is fitted, so this is never reached; a large error if it were.
                _ => 10.0,
            })
            .collect()
    }

    fn loss(&self, x: &[f64], scale: f64) -> f64 {
        let data: f64 = self
            .residuals(x)
            .iter()
            .map(|r| {
                let z = (r / scale).abs();
                if z <= HUBER {
                    z * z / 2.0
                } else {
                    HUBER * (z - HUBER / 2.0)
                }
            })
            .sum();
        let prior: f64 = (0..x.len()).map(|i| ((x[i] - self.start[i]) / self.scalars[i].0.prior).powi(2) / 2.0).sum();
        data + prior
    }

    /// Scale of the noise: the median absolute residual, as a standard deviation.
    fn scale(&self, x: &[f64]) -> f64 {
        let mut sizes: Vec<f64> = self.residuals(x).iter().map(|r| r.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        (1.4826 * sizes.get(sizes.len() / 2).copied().unwrap_or(0.0)).max(LEAST_SCALE)
    }

    /// Moves one scalar at a time by the steps given, as long as that helps.
    fn coordinates(&self, x: &mut [f64], scale: f64, steps: &[f64], rounds: usize) {
        let mut best = self.loss(x, scale);
        for _ in 0..rounds {
            let before = best;
            for i in (0..x.len()).filter(|i| self.free[*i]) {
                let from = x[i];
                let mut to = from;
                for step in steps.iter().flat_map(|s| [*s, -*s]) {
                    x[i] = (from + step).clamp(self.low[i], self.high[i]);
                    let loss = self.loss(x, scale);
                    if loss < best {
                        (best, to) = (loss, x[i]);
                    }
                }
                x[i] = to;
            }
            if before - best <= 1e-9 * before {
                return;
            }
        }
    }

    /// Slopes of every residual, row by row.
    fn jacobian(&self, x: &[f64]) -> Vec<Vec<f64>> {
        const STEP: f64 = 1e-4;
        let columns: Vec<Vec<f64>> = (0..x.len())
            .map(|i| {
                let mut moved = x.to_vec();
                moved[i] += STEP;
                let up = self.residuals(&moved);
                moved[i] -= 2.0 * STEP;
                let down = self.residuals(&moved);
                up.iter().zip(&down).map(|(u, d)| (u - d) / (2.0 * STEP)).collect()
            })
            .collect();
        (0..self.rows.len()).map(|r| columns.iter().map(|c| c[r]).collect()).collect()
    }

    /// Curvature of the loss and its slope, over the free scalars; the others stand as the identity.
    fn normal(&self, x: &[f64], scale: f64) -> (Vec<Vec<f64>>, Vec<f64>) {
        let n = x.len();
        let (mut h, mut g) = (vec![vec![0.0; n]; n], vec![0.0; n]);
        for (slopes, r) in self.jacobian(x).iter().zip(self.residuals(x)) {
            let z = (r / scale).abs();
            let weight = if z <= HUBER { 1.0 } else { HUBER / z } / (scale * scale);
            for i in 0..n {
                g[i] += weight * slopes[i] * r;
                for (h, slope) in h[i].iter_mut().zip(slopes) {
                    *h += weight * slopes[i] * slope;
                }
            }
        }
        for i in 0..n {
            let precision = self.scalars[i].0.prior.powi(-2);
            h[i][i] += precision;
            g[i] += precision * (x[i] - self.start[i]);
            if !self.free[i] {
                g[i] = 0.0;
                h[i].fill(0.0);
                h.iter_mut().for_each(|row| row[i] = 0.0);
                h[i][i] = 1.0;
            }
        }
        (h, g)
    }

    /// Damped Gauss-Newton steps.
    fn descend(&self, x: &mut Vec<f64>, scale: f64) {
        let mut best = self.loss(x, scale);
        let mut damping = 1e-2;
        for _ in 0..60 {
            let (h, g) = self.normal(x, scale);
            let mut moved = false;
            for _ in 0..12 {
                let mut damped = h.clone();
                for (i, row) in damped.iter_mut().enumerate() {
                    row[i] *= 1.0 + damping;
                }
                let Some(step) = solve(damped, g.clone()) else {
                    damping *= 10.0;
                    continue;
                };
                let next: Vec<f64> = (0..x.len()).map(|i| (x[i] - step[i]).clamp(self.low[i], self.high[i])).collect();
                let loss = self.loss(&next, scale);
                if loss < best {
                    moved = best - loss > 1e-10 * best;
                    (*x, best) = (next, loss);
                    damping = (damping / 5.0).max(1e-9);
                    break;
                }
                damping *= 5.0;
            }
            if !moved {
                return;
            }
        }
    }

    fn minimize(&self) -> (Vec<f64>, f64) {
        let mut x = self.start.clone();
        let mut scale = self.scale(&x);
        // The scale follows the fit: while it is coarse, no measurement counts as wild.
        for round in 0..6 {
            if round == 0 {
                self.coordinates(&mut x, scale, &[0.1, 0.25, 0.5, 0.8], 4);
            }
            self.descend(&mut x, scale);
            // The loss has kinks, at which a Gauss-Newton step may stop short.
            self.coordinates(&mut x, scale, &[0.05, 0.01, 0.002], 6);
            let next = self.scale(&x);
            if (next / scale - 1.0).abs() < 0.01 {
                break;
            }
            scale = next;
        }
        (x, scale)
    }

    /// Fits; scalars that the measurements do not determine are put back and the rest is fitted again.
    pub fn solve(mut self) -> Solution {
        let (x, scale) = self.minimize();
        let errors = self.errors(&x, scale);
        self.free = (0..x.len()).map(|i| errors[i] < DETERMINED * self.scalars[i].0.prior).collect();
        let (x, scale) = self.minimize();
        let again = self.errors(&x, scale);
        let descriptor = self.descriptor(&x);
        let of = |(i, (s, before)): (usize, &(&Scalar, f64))| Fitted {
            name: s.name,
            before: *before,
            after: (s.get)(&descriptor).unwrap_or(*before),
            determined: self.free[i],
            error: if self.free[i] { again[i] } else { errors[i] },
        };
        let scalars = self.scalars.iter().enumerate().map(of).collect();
        Solution { descriptor, scalars }
    }

    /// Standard errors of the logarithms.
    fn errors(&self, x: &[f64], scale: f64) -> Vec<f64> {
        let (h, _) = self.normal(x, scale);
        (0..x.len())
            .map(|i| {
                let mut unit = vec![0.0; x.len()];
                unit[i] = 1.0;
                solve(h.clone(), unit).map_or(self.scalars[i].0.prior, |column| column[i].max(0.0).sqrt())
            })
            .collect()
    }
}

/// Solves a linear system by elimination with pivots; `None` where it is singular.
fn solve(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Option<Vec<f64>> {
    let n = b.len();
    for i in 0..n {
        let pivot = (i..n).max_by(|p, q| a[*p][i].abs().total_cmp(&a[*q][i].abs()))?;
        if a[pivot][i].abs() < 1e-300 || !a[pivot][i].is_finite() {
            return None;
        }
        a.swap(i, pivot);
        b.swap(i, pivot);
        let above = a[i].clone();
        for j in i + 1..n {
            let factor = a[j][i] / above[i];
            for (x, y) in a[j].iter_mut().zip(&above).skip(i) {
                *x -= factor * y;
            }
            b[j] -= factor * b[i];
        }
    }
    for i in (0..n).rev() {
        let sum: f64 = (i + 1..n).map(|k| a[i][k] * b[k]).sum();
        b[i] = (b[i] - sum) / a[i][i];
    }
    Some(b)
}
