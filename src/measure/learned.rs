//! Active learning: the model is re-fitted to what was measured after each batch, and the next batch is what it then
//! takes for fastest, and what is unlike everything measured so far.
use super::strategy::{Random, Strategy};
use super::Trial;
use satune_extract::calibrate::variants;
use satune_extract::{Candidate, Descriptor, Query, Searched};
use satune_ir::term::stream::{KernelPlan, RowPlace, StreamPlan};
use satune_ir::term::{Pipe, Schedule, Space, Term};
use std::time::Duration;

/// Random samples in the pool.
const SAMPLES: usize = 256;
/// Candidates extracted for each variant of the model.
const VARIANT: usize = 2;
/// Of a batch, the share that is chosen for being unlike the others.
const EXPLORE: f64 = 0.25;
/// What is predicted slower than the best by this factor is not worth a visit, however unlike.
const WORTH: f64 = 2.0;

/// The strategy.
pub struct Learned<'s, T: Searched = Term> {
    space: &'s Space<T>,
    known: T::Known<'s>,
    base: &'s Descriptor,
    random: Random<'s, T>,
    pool: Vec<Candidate<T>>,
    limit: Duration,
    go_on: &'s (dyn Fn() -> bool + Sync),
}

impl<'s, T: Searched> Learned<'s, T> {
    /// On a space, from a descriptor, by a seed; `limit` is the longest time of one extraction, which ends when `go_on` says so.
    pub fn of(
        space: &'s Space<T>,
        base: &'s Descriptor,
        seed: u64,
        limit: Duration,
        go_on: &'s (dyn Fn() -> bool + Sync),
    ) -> Learned<'s, T> {
        let (known, random) = (T::known(space), Random::of(space, base, seed, go_on));
        Learned { space, known, base, random, pool: Vec::new(), limit, go_on }
    }

    /// Extracts what a descriptor takes for best into the pool, and what would be best if one of its scalars were off:
    /// where these differ, a measurement tells which is right.
    fn extract(&mut self, gpu: &Descriptor, most: usize) {
        let asked = std::iter::once((gpu.clone(), most.max(8))).chain(variants(gpu).into_iter().map(|g| (g, VARIANT)));
        for (gpu, k) in asked {
            let query = Query { k, diverse: false, limit: self.limit, below_ms: f64::INFINITY };
            for found in T::best_knowing(self.space, &self.known, &gpu, query, self.go_on).candidates {
                if !self.pool.iter().any(|c| c.plan == found.plan) {
                    self.pool.push(found);
                }
            }
        }
    }
}

/// Decisions as a point: what makes schedules behave differently.
fn point(schedule: &Schedule) -> [f64; 11] {
    let log = |n: i64| (n.max(1) as f64).log2();
    // Kinds lie apart: nothing is near that multiplies by another unit.
    let tensor = |tile: &[i64; 3], threads: i64, split_k: i64, stages: u32, kind: f64| {
        let [m, n, k] = tile.map(log);
        [m, n, k, log(threads), log(split_k), 0.0, 0.0, f64::from(stages), kind, 0.0, 0.0]
    };
    let plan = match schedule {
        Schedule::Cores(plan) => plan,
        Schedule::Mma(p) => return tensor(&p.tile, p.threads(), p.split_k, p.stages, 50.0),
        Schedule::Wgmma(p) => return tensor(&p.tile, p.threads().into(), p.split_k, p.stages, 100.0),
        Schedule::Stream(plan) => return stream_point(plan),
    };
    let stages = match plan.pipe {
        Pipe::Plain => 0.0,
        Pipe::Registers => 1.0,
        Pipe::Async(stages) => f64::from(stages),
    };
    [
        log(plan.tile.m),
        log(plan.tile.n),
        log(plan.k_tile),
        log(i64::from(plan.threads)),
        log(plan.split_k),
        log(plan.registers.m),
        log(plan.registers.n),
        stages,
        f64::from(u8::from(plan.a.shared.is_some())) + f64::from(u8::from(plan.b.shared.is_some())),
        f64::from(u8::from(plan.a.hoisted)) + f64::from(u8::from(plan.b.hoisted)),
        f64::from(u8::from(plan.unroll_k)),
    ]
}

fn distance(a: &[f64; 11], b: &[f64; 11]) -> f64 {
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).sum()
}

/// The decisions of a streaming program as a point: means over its kernels, and how many there are.
fn stream_point(plan: &StreamPlan) -> [f64; 11] {
    let log = |n: i64| (n.max(1) as f64).log2();
    let kernels = plan.kernels.len().max(1) as f64;
    let mut sum = [0.0; 9];
    for kernel in &plan.kernels {
        let held =
            |p: &satune_ir::term::stream::RowPlan, place| p.held.iter().filter(|h| h.place == place).count() as f64;
        let own = match kernel {
            KernelPlan::Flat(p) => {
                [log(p.threads), log(p.side_by_side), log(p.vector), log(p.steps), 0.0, 0.0, 0.0, 0.0]
            }
            KernelPlan::Row(p) => [
                log(p.threads),
                log(p.side_by_side),
                log(p.vector),
                log(p.serial_rows),
                held(p, RowPlace::Shared),
                held(p, RowPlace::Registers),
                p.unroll.iter().filter(|u| **u).count() as f64,
                0.0,
            ],
            KernelPlan::Plain(p) => {
                let shared = p.sharing.map_or(0.0, |s| log(s.threads));
                [log(p.teams), shared, log(p.vector), log(p.window.map_or(1, |w| w.results)), 0.0, 0.0, 0.0, 0.0]
            }
            KernelPlan::Tiled(p) => {
                let [m, n, k, threads, parts, rows, columns, stages, kind, ..] = point(&p.plan);
                [threads, m, n, k, parts, rows + columns, stages, kind]
            }
            KernelPlan::Tile(p) => [log(p.threads), 0.0, log(p.vector), log(p.side), 0.0, 0.0, 0.0, log(p.pad + 1)],
        };
        // Kinds lie apart.
        let kind = match kernel {
            KernelPlan::Flat(_) => 0.0,
            KernelPlan::Row(_) => 50.0,
            KernelPlan::Tile(_) => 100.0,
            KernelPlan::Plain(_) => 150.0,
            KernelPlan::Tiled(_) => 200.0,
        };
        for (to, value) in sum.iter_mut().zip(own.into_iter().chain([kind])) {
            *to += value / kernels;
        }
    }
    let [a, b, c, d, e, f, g, h, kind] = sum;
    [a, b, c, d, e, f, g, h, kind, 4.0 * kernels, 4.0 * plan.inlined.len() as f64]
}

impl<T: Searched> Learned<'_, T> {
    /// The descriptor fitted to what was measured; as it is while that is too little.
    fn fitted(&self, known: &[Trial<T>]) -> Descriptor {
        let measured: Vec<(&Schedule, f64)> =
            known.iter().filter_map(|t| Some((&t.candidate.plan, t.verdict.median_ms()?))).collect();
        T::fitted(self.base, self.space.problem(), &measured)
    }
}

impl<T: Searched> Strategy<T> for Learned<'_, T> {
    fn next(&mut self, known: &[Trial<T>], most: usize) -> Vec<Candidate<T>> {
        let problem = self.space.problem();
        let gpu = self.fitted(known);
        self.extract(&gpu, most);
        if known.is_empty() {
            self.pool.extend(std::iter::from_fn(|| self.random.draw()).take(SAMPLES));
        }
        self.pool.retain(|c| known.iter().all(|t| t.candidate.plan != c.plan));
        let mut open: Vec<(f64, usize)> = self
            .pool
            .iter()
            .enumerate()
            .filter_map(|(i, c)| Some((T::predict(&c.plan, problem, &gpu).ok()?.ms, i)))
            .collect();
        // The order of the pool decides among equals.
        open.sort_by(|a, b| a.0.total_cmp(&b.0));
        let Some(fastest) = open.first().map(|(ms, _)| *ms) else { return Vec::new() };
        let mut met: Vec<[f64; 11]> = known.iter().map(|t| point(&t.candidate.plan)).collect();
        let unlike = ((most as f64 * EXPLORE).round() as usize).min(most);
        let mut chosen = Vec::new();
        // Predicted fastest first; twins of what is chosen (less than a doubling apart) wait.
        for pass in 0..2 {
            for (_, i) in &open {
                let here = point(&self.pool[*i].plan);
                let apart = met.iter().map(|p| distance(p, &here)).fold(f64::INFINITY, f64::min);
                if chosen.len() < most - unlike && !chosen.contains(i) && (pass == 1 || apart >= 1.0) {
                    chosen.push(*i);
                    met.push(here);
                }
            }
        }
        while chosen.len() < most {
            let far = |i: usize| {
                let here = point(&self.pool[i].plan);
                met.iter().map(|p| distance(p, &here)).fold(f64::INFINITY, f64::min)
            };
            let rest = open.iter().filter(|(ms, i)| *ms <= WORTH * fastest && !chosen.contains(i));
            let Some((_, next)) = rest.max_by(|a, b| far(a.1).total_cmp(&far(b.1)).then(b.1.cmp(&a.1))) else { break };
            met.push(point(&self.pool[*next].plan));
            chosen.push(*next);
        }
        // Predictions are the descriptor's own, so that rows of one program compare.
        let told = |c: &Candidate<T>| Candidate {
            cost: T::predict(&c.plan, problem, self.base).unwrap_or_else(|_| c.cost.clone()),
            ..c.clone()
        };
        chosen.into_iter().map(|i| told(&self.pool[i])).collect()
    }
}
