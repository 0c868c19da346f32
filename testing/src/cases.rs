//! Which cases a test takes where all of them take long.
use rand::rngs::StdRng;
use rand::seq::index::sample;
use rand::SeedableRng;
use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of what a test draws: another one in each run, and printed, unless `SATUNE_SEED` says which.
pub fn seed() -> u64 {
    let seed = drawn();
    crate::say(format_args!("SATUNE_SEED={seed}"));
    seed
}

/// Another number in each run, unless `SATUNE_SEED` says which.
fn drawn() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    std::env::var("SATUNE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(now)
}

/// Whether it is the turn of a test that takes turns with others, at its place among them: another one's in each run, of `SATUNE_SAMPLES`
/// neighbours at once.
pub(crate) fn has_turn(place: usize, turns: usize) -> bool {
    static FIRST: OnceLock<u64> = OnceLock::new();
    let first = (FIRST.get_or_init(drawn) % turns as u64) as usize;
    (place + first) % turns < samples(1)
}

/// How many random cases a test takes: the usual number, `SATUNE_SAMPLES` times.
pub fn samples(usual: usize) -> usize {
    let times = std::env::var("SATUNE_SAMPLES").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    usual.saturating_mul(times)
}

/// Some of the cases of a test that each take long, in their order: others in each run, the usual number `SATUNE_SAMPLES` times.
pub fn some_of<T>(cases: impl IntoIterator<Item = T>, usual: usize) -> Vec<T> {
    let cases: Vec<T> = cases.into_iter().collect();
    let count = samples(usual).min(cases.len());
    let taken: BTreeSet<usize> = sample(&mut StdRng::seed_from_u64(seed()), cases.len(), count).into_iter().collect();
    cases.into_iter().enumerate().filter(|(at, _)| taken.contains(at)).map(|(_, case)| case).collect()
}

/// A share of the cases of a test, one in so many: see [`some_of`].
pub fn one_in<T>(parts: usize, cases: impl IntoIterator<Item = T>) -> Vec<T> {
    let cases: Vec<T> = cases.into_iter().collect();
    let usual = cases.len().div_ceil(parts);
    some_of(cases, usual)
}
