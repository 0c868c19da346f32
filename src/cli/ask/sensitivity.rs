//! What each decision of a schedule is worth: the exact best of the space when it takes another value, everything else free;
//! and where the schedule stands among all.
use super::answer::parts;
use super::{Askable, Fixes};
use crate::sensitivity::{Decision, Drawn, Mark, Other, Sensitivity, FAR};
use rand::rngs::StdRng;
use rand::SeedableRng;
use satune_extract::{Counts, Descriptor, Query, Searched};
use satune_ir::term::{Schedule, Space};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Values that a decision is given besides the one that it has; of more, those that looked best when schedules were drawn.
const VALUES: usize = 3;

/// Schedules that are drawn to see which values there are, with all other decisions as they are.
const NEAR: usize = 100;

/// Schedules that are drawn evenly of the whole space.
const DRAWN: usize = 10_000;

/// Something to find among the schedules.
pub(in crate::cli) struct Marked {
    /// What it is called.
    pub name: String,
    /// What it fixes, in the words of `why-not`.
    pub words: String,
}

/// Finds out what the decisions of a schedule are worth.
///
/// # Errors
/// When the schedule is of another kind than the problem, or is none of the space: then nothing of it is worth anything there.
/// When a mark's words are not understood.
pub(in crate::cli) fn sensitivity<W: Askable>(
    problem: &W,
    space: &Space<W::Term>,
    gpu: &Descriptor,
    plan: &Schedule,
    (marks, limit): (&[Marked], Duration),
) -> Result<Sensitivity, String> {
    let own = problem.fixed_of(plan)?;
    let marks: Vec<(&str, W::Fixed)> =
        marks.iter().map(|m| Ok((m.name.as_str(), problem.question(&m.words)?))).collect::<Result<_, String>>()?;
    if let Some(why) = problem.missing(space, plan) {
        return Err(format!("{why}; it was found with another --fuel or version, or drawn from elsewhere"));
    }
    let ms = problem.predict(plan, gpu).map_err(|e| e.to_string())?.ms;
    let mut values = Values { problem, gpu, of: BTreeMap::new() };
    for (_, freer) in own.freer() {
        for part in parts(space, &freer) {
            values.draw(&part, NEAR);
        }
    }
    let (count, mut times) = values.draw(space, DRAWN);
    // Time of the best that keeps to a question, over that of the schedule.
    let best = |fixed: &W::Fixed, below_ms: f64| {
        let query = Query { k: 1, diverse: false, limit, below_ms };
        let found: Vec<_> =
            parts(space, fixed).iter().map(|part| W::Term::best_while(part, gpu, query, &|| true)).collect();
        let least = found.iter().flat_map(|f| &f.candidates).map(|c| c.cost.ms).reduce(f64::min);
        (least.map(|least| least / ms), found.iter().all(|f| f.proved))
    };
    let mut decisions = Vec::new();
    for (name, alone) in own.decisions() {
        let value = alone.words();
        let mut others: Vec<(f64, String, W::Fixed)> = values.of.remove(&name).map_or_else(Vec::new, |seen| {
            seen.into_iter().filter(|(words, _)| *words != value).map(|(words, (ms, f))| (ms, words, f)).collect()
        });
        if others.is_empty() {
            continue;
        }
        let seen = others.len();
        others.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        let worth = |(_, value, fixed): (f64, String, W::Fixed)| {
            let (ratio, proved) = best(&fixed, FAR * ms);
            Other { value, ratio, proved }
        };
        let mut others: Vec<Other> = others.into_iter().take(VALUES).map(worth).collect();
        others.sort_by(|a, b| a.at_least().total_cmp(&b.at_least()));
        decisions.push(Decision { name, value, others, seen });
    }
    decisions.sort_by(|a, b| b.cheapest().total_cmp(&a.cheapest()));
    times.iter_mut().for_each(|t| *t /= ms);
    let mark = |(name, fixed): (&str, W::Fixed)| {
        let (ratio, proved) = best(&fixed, f64::INFINITY);
        Mark { name: name.into(), ratio, proved, absent: None }
    };
    Ok(Sensitivity { decisions, drawn: Drawn::of(count, times), marks: marks.into_iter().map(mark).collect() })
}

/// The values of decisions that were seen, with the least time that a schedule drawn with one has.
struct Values<'a, W: Askable> {
    problem: &'a W,
    gpu: &'a Descriptor,
    of: BTreeMap<String, BTreeMap<String, (f64, W::Fixed)>>,
}

impl<W: Askable> Values<'_, W> {
    /// Draws schedules of a space and takes up their values; how many different ones, and the times of those that the GPU can
    /// run.
    fn draw(&mut self, space: &Space<W::Term>, many: usize) -> (usize, Vec<f64>) {
        let counts = Counts::of(space);
        let mut rng = StdRng::seed_from_u64(0);
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let mut times = Vec::new();
        for _ in 0..many {
            let Some(term) = counts.sample(space, &mut rng) else { break };
            if !seen.insert(term.to_string()) {
                continue;
            }
            let Ok(plan) = <W::Term as Searched>::schedule(&term, space.problem()) else { continue };
            let Ok(cost) = self.problem.predict(&plan, self.gpu) else { continue };
            times.push(cost.ms);
            let Ok(fixed) = self.problem.fixed_of(&plan) else { continue };
            for (name, alone) in fixed.decisions() {
                let values = self.of.entry(name).or_default();
                let value = values.entry(alone.words()).or_insert((f64::INFINITY, alone));
                value.0 = value.0.min(cost.ms);
            }
        }
        (seen.len(), times)
    }
}
