//! The few schedules that are worth measuring.
//!
//! The k best under a model are often twins: they differ in what the model hardly sees, and when it is wrong about one it is
//! wrong about all. A portfolio is the set whose best is expected to be good whatever the truth is: GPUs are drawn whose
//! rates lie within what is known of them ([`crate::uncertainty`]), the exact best under each is found, and those k are
//! chosen whose best loses least against it, in the mean over the GPUs drawn. The first is the best under the model as it
//! is. Where fewer than k help, the best of other tiles follow: of them a measurement tells what no rate of the model says.
use crate::uncertainty::drawn;
use crate::{Candidate, Descriptor, Query, Searched};
use rayon::prelude::*;
use satune_ir::term::Space;
use std::time::{Duration, Instant};

/// GPUs that are drawn, besides the one that is described.
pub const DRAWS: u64 = 8;

/// Sets that are looked at one by one; where there are more, the best is built by adding and exchanging.
const SETS: u64 = 200_000;

/// A set of schedules, and how much it is expected to lose.
#[derive(Clone, Debug)]
pub struct Portfolio<T> {
    /// First the best under the model, then those that add most.
    pub candidates: Vec<Candidate<T>>,
    /// How many of them were chosen; the others are the best of other tiles.
    pub chosen: usize,
    /// Mean over the GPUs drawn: time of the best of the set over that of the best of the space, less 1.
    pub regret: f64,
    /// The same for the plain k best.
    pub plain_regret: f64,
    /// GPUs drawn, the described one among them.
    pub drawn: usize,
    /// Whether the best under each of them is proved.
    pub proved: bool,
    /// Wall-clock time.
    pub time: Duration,
}

/// The portfolio of a space whose `query.k` best under the model are `plain`, best first. `known`: of earlier searches of the space.
pub fn portfolio<'s, T: Searched>(
    space: &'s Space<T>,
    known: &T::Known<'s>,
    gpu: &Descriptor,
    plain: &[Candidate<T>],
    query: Query,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Portfolio<T> {
    let start = Instant::now();
    let mut pool: Vec<Candidate<T>> = plain.to_vec();
    let gpus: Vec<Descriptor> = std::iter::once(gpu.clone()).chain((1..=DRAWS).map(|i| drawn(gpu, i))).collect();
    let ms = |candidate: &Candidate<T>, gpu: &Descriptor| {
        T::predict(&candidate.plan, space.problem(), gpu).map_or(f64::INFINITY, |cost| cost.ms)
    };
    // Each GPU by itself, so that what is found does not depend on which search was faster.
    let found: Vec<(Vec<Candidate<T>>, bool)> = gpus[1..]
        .par_iter()
        .map(|gpu| {
            let limit = query.limit.saturating_sub(start.elapsed());
            if !go_on() || limit.is_zero() {
                return (Vec::new(), false);
            }
            let below_ms = plain.iter().map(|c| ms(c, gpu)).fold(query.below_ms, f64::min);
            let found = T::best_knowing(space, known, gpu, Query { k: 1, limit, below_ms, ..query }, go_on);
            (found.candidates, found.proved)
        })
        .collect();
    let proved = found.iter().all(|(_, proved)| *proved);
    for candidate in found.into_iter().flat_map(|(candidates, _)| candidates) {
        if pool.iter().all(|c| c.plan != candidate.plan) {
            pool.push(candidate);
        }
    }
    // Losses of each of the pool under each GPU.
    let mut loss: Vec<Vec<f64>> = pool.iter().map(|c| gpus.iter().map(|gpu| ms(c, gpu)).collect()).collect();
    for column in 0..gpus.len() {
        let best = loss.iter().map(|row| row[column]).fold(f64::INFINITY, f64::min);
        loss.iter_mut().for_each(|row| row[column] = row[column] / best - 1.0);
    }
    let set = chosen(&loss, query.k);
    let plain_regret = mean_loss(&loss, &(0..plain.len()).collect::<Vec<_>>());
    let regret = mean_loss(&loss, &set);
    let of_model = |index: &usize| {
        let mut candidate = pool[*index].clone();
        candidate.cost = T::predict(&candidate.plan, space.problem(), gpu).ok()?;
        Some(candidate)
    };
    let mut candidates: Vec<Candidate<T>> = set.iter().filter_map(of_model).collect();
    let chosen = candidates.len();
    if chosen < query.k {
        let limit = query.limit.saturating_sub(start.elapsed());
        let tiles = match go_on() {
            true => T::best_knowing(space, known, gpu, Query { diverse: true, limit, ..query }, go_on).candidates,
            false => Vec::new(),
        };
        let tile = |c: &Candidate<T>| (c.plan.summary().tile, c.plan.summary().step);
        for other in tiles.into_iter().chain(plain.iter().cloned()) {
            let other_tile = candidates.iter().all(|c| tile(c) != tile(&other));
            if candidates.len() < query.k && other_tile {
                candidates.push(other);
            }
        }
        for twin in plain {
            if candidates.len() < query.k && candidates.iter().all(|c| c.plan != twin.plan) {
                candidates.push(twin.clone());
            }
        }
    }
    Portfolio { candidates, chosen, regret, plain_regret, drawn: gpus.len(), proved, time: start.elapsed() }
}

/// Mean over the columns of the least loss in the rows of a set.
fn mean_loss(loss: &[Vec<f64>], set: &[usize]) -> f64 {
    let columns = loss.first().map_or(0, Vec::len);
    let least = |column: usize| set.iter().map(|row| loss[*row][column]).fold(f64::INFINITY, f64::min);
    (0..columns).map(least).sum::<f64>() / columns.max(1) as f64
}

/// At most `k` rows, the first among them, of which the mean of the least losses is smallest; none of them is idle. In the
/// order in which each takes most off it.
fn chosen(loss: &[Vec<f64>], k: usize) -> Vec<usize> {
    // A row that another is at least as good as everywhere adds nothing.
    let dominated = |row: usize| {
        (0..loss.len()).any(|other| {
            let (a, b) = (&loss[other], &loss[row]);
            other != row && a.iter().zip(b).all(|(a, b)| a <= b) && (a != b || other < row)
        })
    };
    let rows: Vec<usize> = (1..loss.len()).filter(|row| !dominated(*row)).collect();
    if loss.is_empty() || k == 0 {
        return Vec::new();
    }
    let more = (k - 1).min(rows.len());
    let mut best = added(loss, &rows, more);
    if combinations(rows.len() as u64, more as u64) <= SETS {
        let mut set = vec![0];
        each_set(&rows, more, &mut set, &mut |set| {
            if mean_loss(loss, set) < mean_loss(loss, &best) {
                best = set.to_vec();
            }
        });
    }
    // In the order in which they help, those that do.
    let within: Vec<usize> = best.iter().copied().filter(|row| *row != 0).collect();
    added(loss, &within, within.len())
}

/// The first row, then at most `more` of `rows`, each that which takes most off the mean loss, as long as one does.
fn added(loss: &[Vec<f64>], rows: &[usize], more: usize) -> Vec<usize> {
    let mut set = vec![0];
    for _ in 0..more {
        let with = |row: &usize| mean_loss(loss, &[&set[..], &[*row]].concat());
        let next = rows.iter().filter(|row| !set.contains(row)).min_by(|a, b| with(a).total_cmp(&with(b)));
        match next {
            Some(row) if with(row) < mean_loss(loss, &set) => set.push(*row),
            _ => break,
        }
    }
    set
}

/// Calls `found` with `set` and each choice of `more` of `rows`.
fn each_set(rows: &[usize], more: usize, set: &mut Vec<usize>, found: &mut dyn FnMut(&[usize])) {
    if more == 0 {
        return found(set);
    }
    for (i, row) in rows.iter().enumerate().take((rows.len() + 1).saturating_sub(more)) {
        set.push(*row);
        each_set(&rows[i + 1..], more - 1, set, found);
        set.pop();
    }
}

/// n over k, or as much as 64 bits hold.
fn combinations(n: u64, k: u64) -> u64 {
    (0..k.min(n.saturating_sub(k))).try_fold(1u64, |c, i| c.checked_mul(n - i).map(|c| c / (i + 1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_covers_what_its_members_do_not_one_by_one() {
        // The best pair with the first is not that of the two that are best alone.
        let loss = vec![
            vec![0.0, 9.0, 9.0, 9.0, 9.0],
            vec![1.0, 0.0, 0.0, 5.0, 5.0],
            vec![1.0, 0.0, 5.0, 0.0, 4.0],
            vec![1.0, 4.0, 5.0, 0.0, 0.0],
        ];
        let set = chosen(&loss, 3);
        assert_eq!(set[0], 0);
        assert_eq!(
            {
                let mut s = set.clone();
                s.sort_unstable();
                s
            },
            vec![0, 1, 3]
        );
        assert!(mean_loss(&loss, &set) < 1e-12);
    }

    #[test]
    fn twins_are_not_chosen() {
        let loss = vec![vec![0.0, 1.0], vec![0.0, 1.0], vec![0.1, 1.0], vec![0.5, 0.0]];
        assert_eq!(chosen(&loss, 8), vec![0, 3]);
        assert_eq!(chosen(&loss, 1), vec![0]);
        assert!(chosen(&loss, 0).is_empty());
    }

    #[test]
    fn the_number_of_sets_is_that_of_the_binomial_coefficient() {
        assert_eq!(combinations(23, 7), 245_157);
        assert_eq!(combinations(5, 5), 1);
        assert_eq!(combinations(200, 100), u64::MAX);
        let mut seen = 0;
        each_set(&[1, 2, 3, 4, 5], 3, &mut vec![0], &mut |set| {
            assert_eq!(set.len(), 4);
            seen += 1;
        });
        assert_eq!(seen, 10);
    }
}
