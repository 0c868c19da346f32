//! Search strategies: which candidates are measured next. All work on one space, through one device interface.
use super::Trial;
use rand::SeedableRng;
use satune_extract::{Candidate, Counts, Descriptor, Searched};
use satune_ir::term::{Schedule, Space, Term, TermLanguage};
use std::collections::HashSet;

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

/// Samples in vain before a space counts as exhausted.
const IN_VAIN: usize = 2000;

/// Uniform samples of a space, without repetition; those that the GPU cannot run are passed over.
pub struct Random<'s, T: TermLanguage = Term> {
    space: &'s Space<T>,
    gpu: &'s Descriptor,
    counts: Counts,
    rng: rand::rngs::StdRng,
    seen: HashSet<Schedule>,
}

impl<'s, T: Searched> Random<'s, T> {
    /// Samples of a space, by a seed.
    pub fn of(space: &'s Space<T>, gpu: &'s Descriptor, seed: u64) -> Random<'s, T> {
        let rng = rand::rngs::StdRng::seed_from_u64(seed);
        Random { space, gpu, counts: Counts::of(space), rng, seen: HashSet::new() }
    }

    /// One more that was not seen before.
    pub(super) fn draw(&mut self) -> Option<Candidate<T>> {
        for _ in 0..IN_VAIN {
            let term = self.counts.sample(self.space, &mut self.rng)?;
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
