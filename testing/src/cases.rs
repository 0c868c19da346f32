//! Which cases a test takes where all of them take long.
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::SeedableRng;
use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of what a test draws: another one in each run, and printed, unless `SATUNE_SEED` says which.
pub fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let seed = std::env::var("SATUNE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(now);
    crate::say(format_args!("SATUNE_SEED={seed}"));
    seed
}

/// How many random cases a test takes: the usual number, `SATUNE_SAMPLES` times.
pub fn samples(usual: usize) -> usize {
    let times = std::env::var("SATUNE_SAMPLES").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    usual.saturating_mul(times)
}

/// Some of the cases of a test that each take long: others in each run, the usual number `SATUNE_SAMPLES` times.
pub fn some_of<T>(cases: impl IntoIterator<Item = T>, usual: usize) -> Vec<T> {
    let mut cases: Vec<T> = cases.into_iter().collect();
    cases.shuffle(&mut StdRng::seed_from_u64(seed()));
    cases.truncate(samples(usual));
    cases
}

/// A share of the cases of a test, one in so many: others in each run, `SATUNE_SAMPLES` times as many. One in one: all, in their order.
pub fn one_in<T>(parts: usize, cases: impl IntoIterator<Item = T>) -> Vec<T> {
    let cases: Vec<T> = cases.into_iter().collect();
    if parts <= 1 {
        return cases;
    }
    let usual = cases.len().div_ceil(parts);
    some_of(cases, usual)
}
