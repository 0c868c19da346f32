//! What each decision of a schedule is worth: the exact best of the space when it takes another value, everything else free;
//! and where the schedule stands among all.
use super::answer::parts;
use super::{Askable, Fixes};
use rand::rngs::StdRng;
use rand::SeedableRng;
use satune_extract::{Counts, Descriptor, Query, Searched};
use satune_ir::term::{Schedule, Space};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Values that a decision is given besides the one that it has; of more, those that looked best when schedules were drawn.
const VALUES: usize = 3;

/// How much slower the best with a value may be before it is told by that alone.
const FAR: f64 = 2.0;

/// Schedules that are drawn to see which values there are, with all other decisions as they are.
const NEAR: usize = 100;

/// Schedules that are drawn evenly of the whole space.
const DRAWN: usize = 10_000;

/// What the decisions of a schedule are worth.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Sensitivity {
    /// Those of which the space has other values, that which costs most when it is left first.
    pub decisions: Vec<Decision>,
    /// Predicted times of schedules drawn evenly from the space, over that of the schedule.
    pub drawn: Drawn,
}

/// A decision.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Decision {
    /// What it is about.
    name: String,
    /// What is decided, in the words of `why-not`.
    value: String,
    /// Other values, best first.
    others: Vec<Other>,
    /// How many other values were seen.
    seen: usize,
}

/// Another value of a decision.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Other {
    /// In the words of `why-not`.
    value: String,
    /// Time of the best schedule with it over that of the schedule; none where it is more than twice that.
    ratio: Option<f64>,
    /// The best schedule with it is found for certain.
    proved: bool,
}

/// Times of schedules drawn evenly.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Drawn {
    /// How many the GPU can run, and were drawn.
    runnable: usize,
    count: usize,
    /// Upper ends of the classes (the last has none), as ratios, and how many fall into each.
    classes: Vec<(Option<f64>, usize)>,
    /// The fastest, and the one in the middle, as ratios.
    least: Option<f64>,
    median: Option<f64>,
}

/// Finds out what the decisions of a schedule are worth.
///
/// # Errors
/// When the schedule is of another kind than the problem, or is none of the space: then nothing of it is worth anything there.
pub(in crate::cli) fn sensitivity<W: Askable>(
    problem: &W,
    space: &Space<W::Term>,
    gpu: &Descriptor,
    plan: &Schedule,
    limit: Duration,
) -> Result<Sensitivity, String> {
    let own = problem.fixed_of(plan)?;
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
    let query = Query { k: 1, diverse: false, limit, below_ms: FAR * ms };
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
            let mut proved = true;
            let mut least: Option<f64> = None;
            for part in parts(space, &fixed) {
                let found = W::Term::best_while(&part, gpu, query, &|| true);
                proved &= found.proved;
                least = found.candidates.iter().map(|c| c.cost.ms).chain(least).reduce(f64::min);
            }
            Other { value, ratio: least.map(|least| least / ms), proved }
        };
        let mut others: Vec<Other> = others.into_iter().take(VALUES).map(worth).collect();
        others.sort_by(|a, b| at_least(a).total_cmp(&at_least(b)));
        decisions.push(Decision { name, value, others, seen });
    }
    decisions.sort_by(|a, b| b.cheapest().total_cmp(&a.cheapest()));
    times.iter_mut().for_each(|t| *t /= ms);
    Ok(Sensitivity { decisions, drawn: Drawn::of(count, times) })
}

/// The ratio, or where it is far beyond, infinity.
fn at_least(other: &Other) -> f64 {
    other.ratio.unwrap_or(f64::INFINITY)
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

impl Decision {
    /// What it costs at least to decide otherwise.
    fn cheapest(&self) -> f64 {
        self.others.iter().map(at_least).fold(f64::INFINITY, f64::min)
    }
}

impl Drawn {
    /// Counts ratios.
    fn of(count: usize, mut ratios: Vec<f64>) -> Drawn {
        const ENDS: [f64; 7] = [1.1, 1.5, 2.0, 4.0, 8.0, 16.0, 64.0];
        ratios.sort_by(f64::total_cmp);
        let mut from = 0;
        let mut classes = Vec::new();
        for end in ENDS.map(Some).into_iter().chain([None]) {
            let to = end.map_or(ratios.len(), |end| ratios.partition_point(|r| *r < end));
            classes.push((end, to - from));
            from = to;
        }
        let (least, median) = (ratios.first().copied(), ratios.get(ratios.len() / 2).copied());
        Drawn { runnable: ratios.len(), count, classes, least, median }
    }
}

impl Sensitivity {
    /// For people.
    pub fn text(&self) -> String {
        let mut out =
            String::from("what each decision is worth: the best schedule with another value, all else free\n");
        for decision in &self.decisions {
            let percent = |ratio: f64| match 100.0 * (ratio - 1.0) {
                p if p.abs() < 0.05 => "as fast".to_string(),
                p => format!("{p:+.1}%"),
            };
            let worth = |other: &Other| {
                let ratio = other.ratio.map_or_else(|| format!("more than {FAR}x"), percent);
                format!("{}: {ratio}{}", other.value, if other.proved { "" } else { " (not proved)" })
            };
            let shown: Vec<String> = decision.others.iter().map(worth).collect();
            let more = decision.seen - decision.others.len();
            let more = if more > 0 { format!(" ({more} more values)") } else { String::new() };
            out.push_str(&format!("  {} ({}): {}{more}\n", decision.name, decision.value, shown.join("; ")));
        }
        let drawn = &self.drawn;
        out.push_str(&format!(
            "of {} different schedules drawn evenly from the space this GPU can run {}; their times over this one's:\n",
            drawn.count, drawn.runnable
        ));
        let most = drawn.classes.iter().map(|c| c.1).max().unwrap_or(0).max(1);
        let mut from = 0.0;
        for (end, many) in &drawn.classes {
            let class = end.map_or_else(|| format!("{from}x and more"), |end| format!("below {end}x"));
            out.push_str(&format!("  {class:<14} {many:>6}  {}\n", "#".repeat((many * 40).div_ceil(most))));
            from = end.unwrap_or(from);
        }
        if let (Some(least), Some(median)) = (drawn.least, drawn.median) {
            out.push_str(&format!("  the fastest of them {least:.2}x, the one in the middle {median:.2}x\n"));
        }
        out
    }
}
