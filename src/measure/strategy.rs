//! Search strategies: which candidates are measured next. All work on one space, through one device interface.
use super::Trial;
use rand::SeedableRng;
use satune_extract::{portfolio, Candidate, Counts, Descriptor, Evenly, Portfolio, Query, Searched};
use satune_ir::term::{Schedule, Space, Term, TermLanguage};
use std::collections::{HashSet, VecDeque};
use std::time::Duration;

/// The strategies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StrategyKind {
    /// The k best under the model, best first.
    Analytical,
    /// Uniform samples of the space.
    Random,
    /// The model, re-fitted to what was measured after each batch.
    Learned,
}

impl std::str::FromStr for StrategyKind {
    type Err = String;

    fn from_str(text: &str) -> Result<StrategyKind, String> {
        match text {
            "analytical" => Ok(StrategyKind::Analytical),
            "random" => Ok(StrategyKind::Random),
            "learned" => Ok(StrategyKind::Learned),
            other => Err(format!("unknown strategy `{other}`; strategies are analytical, random, learned")),
        }
    }
}

/// Chooses candidates. Depends on nothing but its seed and what came of the earlier ones, so that a resumed run goes the
/// same way.
pub trait Strategy<T = Term> {
    /// At most `most` new candidates; none when it has no more.
    fn next(&mut self, known: &[Trial<T>], most: usize) -> Vec<Candidate<T>>;
}

/// A fixed list, best first.
pub struct TopK<T = Term> {
    rest: std::vec::IntoIter<Candidate<T>>,
}

impl<T> TopK<T> {
    /// Of what extraction found.
    pub fn of(candidates: Vec<Candidate<T>>) -> TopK<T> {
        TopK { rest: candidates.into_iter() }
    }
}

impl<T> Strategy<T> for TopK<T> {
    fn next(&mut self, _known: &[Trial<T>], most: usize) -> Vec<Candidate<T>> {
        self.rest.by_ref().take(most).collect()
    }
}

/// All programs of a space, best first: as many as are asked for are extracted, and more where those do not suffice.
pub struct BestFirst<'s, T: Searched = Term> {
    space: &'s Space<T>,
    known: T::Known<'s>,
    gpu: &'s Descriptor,
    query: Query,
    go_on: &'s (dyn Fn() -> bool + Sync),
    given: HashSet<Schedule>,
    rest: VecDeque<Candidate<T>>,
    /// How many were extracted, and whether the space has no more of them, or no time is left.
    extracted: usize,
    ended: bool,
    /// Whether what was extracted is proved to be the best.
    pub proved: bool,
    /// Nothing that was not extracted is faster than this under the model, ms.
    pub bound_ms: f64,
    /// Time that extraction took.
    pub time: Duration,
}

impl<'s, T: Searched> BestFirst<'s, T> {
    /// Extracts the first; `query.limit` is for all that follow together.
    pub fn of(
        space: &'s Space<T>,
        gpu: &'s Descriptor,
        query: Query,
        go_on: &'s (dyn Fn() -> bool + Sync),
    ) -> BestFirst<'s, T> {
        Self::without(HashSet::new(), space, gpu, query, go_on)
    }

    /// Another question to the same space: what was taken here is not given again.
    pub fn asked(&self, query: Query) -> BestFirst<'s, T> {
        Self::without(self.given.clone(), self.space, self.gpu, query, self.go_on)
    }

    fn without(
        given: HashSet<Schedule>,
        space: &'s Space<T>,
        gpu: &'s Descriptor,
        query: Query,
        go_on: &'s (dyn Fn() -> bool + Sync),
    ) -> BestFirst<'s, T> {
        let rest = VecDeque::new();
        let (extracted, ended, proved, bound_ms, time) = (0, false, true, f64::INFINITY, Duration::ZERO);
        let known = T::known(space);
        let mut all =
            BestFirst { space, known, gpu, query, go_on, given, rest, extracted, ended, proved, bound_ms, time };
        all.extract(query.k);
        all
    }

    fn extract(&mut self, k: usize) {
        let limit = self.query.limit.saturating_sub(self.time);
        let found = T::best_knowing(self.space, &self.known, self.gpu, Query { k, limit, ..self.query }, self.go_on);
        self.time += found.time;
        self.ended = found.candidates.len() < k || limit.is_zero() || !(self.go_on)();
        self.extracted = k;
        // One that ran out of time says nothing new of those that an earlier one found.
        (self.proved, self.bound_ms) = (found.proved, found.bound_ms);
        let known = |c: &Candidate<T>| self.given.contains(&c.plan);
        self.rest = found.candidates.into_iter().filter(|c| !known(c)).collect();
    }

    /// The next best; fewer than `most` where the space, or the time, ends.
    pub fn take(&mut self, most: usize) -> Vec<Candidate<T>> {
        let mut out = Vec::new();
        while out.len() < most {
            match self.rest.pop_front() {
                Some(next) => {
                    self.given.insert(next.plan.clone());
                    out.push(next);
                }
                None if self.ended => break,
                None => self.extract((2 * self.extracted).max(1)),
            }
        }
        out
    }

    /// The best one that was not taken.
    pub fn first(&self) -> Option<&Candidate<T>> {
        self.rest.front()
    }

    /// Puts those first that are worth measuring together, as many as were extracted; the best under the model stays first.
    pub fn spread_out(&mut self) -> Portfolio<T> {
        let plain: Vec<Candidate<T>> = self.rest.iter().cloned().collect();
        let limit = self.query.limit.saturating_sub(self.time);
        let found = portfolio(self.space, &self.known, self.gpu, &plain, Query { limit, ..self.query }, self.go_on);
        self.time += found.time;
        let others = plain.into_iter().filter(|c| found.candidates.iter().all(|f| f.plan != c.plan));
        self.rest = found.candidates.iter().cloned().chain(others).collect();
        found
    }

    /// What the others take at least under the model, ms.
    pub fn least_ms(&self) -> f64 {
        let least = self.rest.iter().map(|c| c.cost.ms).reduce(f64::min);
        least.unwrap_or(if self.ended && self.proved { f64::INFINITY } else { self.bound_ms })
    }

    /// Whether nothing is left, or nothing can be found in time.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty() && self.ended
    }
}

impl<T: Searched> Strategy<T> for &mut BestFirst<'_, T> {
    fn next(&mut self, _known: &[Trial<T>], most: usize) -> Vec<Candidate<T>> {
        self.take(most)
    }
}

/// Samples in vain before a space counts as exhausted.
const IN_VAIN: usize = 2000;

/// Samples of a space, without repetition; those that the GPU cannot run are passed over.
pub struct Random<'s, T: TermLanguage = Term> {
    space: &'s Space<T>,
    gpu: &'s Descriptor,
    counts: Counts,
    evenly: Evenly,
    rng: rand::rngs::StdRng,
    seen: HashSet<Schedule>,
    go_on: &'s (dyn Fn() -> bool + Sync),
}

impl<'s, T: Searched> Random<'s, T> {
    /// Samples of a space, each program with the same probability, by a seed; none more once `go_on` says so.
    pub fn of(
        space: &'s Space<T>,
        gpu: &'s Descriptor,
        seed: u64,
        go_on: &'s (dyn Fn() -> bool + Sync),
    ) -> Random<'s, T> {
        let rng = rand::rngs::StdRng::seed_from_u64(seed);
        let counts = Counts::of_while(space, go_on);
        Random { space, gpu, counts, evenly: Evenly::Programs, rng, seen: HashSet::new(), go_on }
    }

    /// The same samples of another distribution.
    pub fn evenly(self, evenly: Evenly) -> Random<'s, T> {
        Random { evenly, ..self }
    }

    /// One more that was not seen before.
    pub(super) fn draw(&mut self) -> Option<Candidate<T>> {
        for _ in 0..IN_VAIN {
            if !(self.go_on)() {
                return None;
            }
            let term = self.counts.sample_evenly(self.space, self.evenly, &mut self.rng)?;
            let Ok(plan) = T::schedule(&term, self.space.problem()) else { continue };
            if self.seen.contains(&plan) {
                continue;
            }
            self.seen.insert(plan.clone());
            if let Ok(cost) = T::predict(&plan, self.space.problem(), self.gpu) {
                return Some(Candidate { term, plan, cost });
            }
        }
        None
    }
}

impl<T: Searched> Strategy<T> for Random<'_, T> {
    fn next(&mut self, _known: &[Trial<T>], most: usize) -> Vec<Candidate<T>> {
        std::iter::from_fn(|| self.draw()).take(most).collect()
    }
}
