//! Order by measured time, and what noise leaves open.
use super::Trial;
use crate::store::{Timing, Verdict};
use serde::{Deserialize, Serialize};

/// A place in the order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranked {
    /// Index of the trial.
    pub trial: usize,
    /// Its place; those that noise does not tell apart share one.
    pub place: usize,
    /// Median, ms.
    pub ms: f64,
    /// Spread of the repeats over the median.
    pub spread: f64,
    /// Repeats.
    pub repeats: usize,
}

/// Two standard errors of a median, relative; at least what a clock resolves.
fn noise(timing: &Timing) -> f64 {
    let error = 1.2533 * timing.spread() / (timing.times_ms.len() as f64).sqrt();
    if timing.spread() == 0.0 {
        0.0
    } else {
        (2.0 * error).max(0.001)
    }
}

fn measured<T>(trials: &[Trial<T>]) -> Vec<(usize, &Timing)> {
    let mut list: Vec<(usize, &Timing)> = trials
        .iter()
        .enumerate()
        .filter_map(|(i, t)| match &t.verdict {
            Verdict::Measured(timing) => Some((i, timing)),
            Verdict::Rejected { .. } => None,
        })
        .collect();
    // The trace decides among equals, so that the order does not depend on who came first.
    list.sort_by(|(i, a), (j, b)| {
        a.median_ms().total_cmp(&b.median_ms()).then_with(|| trials[*i].trace.cmp(&trials[*j].trace))
    });
    list
}

fn same(a: &Timing, b: &Timing) -> bool {
    let apart = (a.median_ms() / b.median_ms() - 1.0).abs();
    apart <= noise(a).hypot(noise(b))
}

/// The measured trials, fastest first. A place is shared with the first one that noise does not tell it apart from.
pub fn rank<T>(trials: &[Trial<T>]) -> Vec<Ranked> {
    let list = measured(trials);
    let mut out: Vec<Ranked> = Vec::with_capacity(list.len());
    let mut leader: Option<(&Timing, usize)> = None;
    for (at, (trial, timing)) in list.into_iter().enumerate() {
        let place = match leader {
            Some((first, place)) if same(first, timing) => place,
            _ => {
                leader = Some((timing, at + 1));
                at + 1
            }
        };
        let (ms, spread, repeats) = (timing.median_ms(), timing.spread(), timing.times_ms.len());
        out.push(Ranked { trial, place, ms, spread, repeats });
    }
    out
}

/// Trials among the first `keep`, or next behind them, that are within noise of a neighbour. Two percent or three
/// spreads, whichever is more: what a second visit at another clock may differ by.
pub(super) fn blurred<T>(trials: &[Trial<T>], keep: usize) -> Vec<usize> {
    let list = measured(trials);
    let close =
        |a: &Timing, b: &Timing| b.median_ms() / a.median_ms() - 1.0 <= (3.0 * a.spread().max(b.spread())).max(0.02);
    let mut out: Vec<usize> = Vec::new();
    for (at, pair) in list.windows(2).enumerate() {
        if at < keep && close(pair[0].1, pair[1].1) {
            for (trial, _) in pair {
                if !out.contains(trial) {
                    out.push(*trial);
                }
            }
        }
    }
    out
}
