//! Answers: in the space or not, reached or not, how good at best, and where the time goes.
use super::{Askable, Failure, Fixes, Question};
use crate::nvmmh::{Beside, Choice};
use satune_extract::{Candidate, Counts, Descriptor, Extraction, Query, Searched};
use satune_ir::term::{Schedule, Space, StoppedBy};
use satune_rewrites::space::Fuel;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// How many of the best are kept to give a rank among.
const TOP: usize = 8;

/// An answer.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    question: String,
    /// Whether a schedule with these decisions is in the space.
    in_space: bool,
    /// Why not.
    reasons: Vec<String>,
    /// How many there are.
    members: String,
    /// The limit that ended saturation, if one did.
    stopped_by: Option<String>,
    /// The best of them.
    asked: Option<Shown>,
    /// Its rank among all, where it is one of the first few.
    rank: Option<usize>,
    /// The best of all.
    best: Option<Shown>,
    /// Whether that is proved.
    best_proved: bool,
    /// The part of the time in which it loses most.
    dominated_in: Option<String>,
}

/// A schedule and its time.
#[derive(Clone, Debug, Serialize)]
struct Shown {
    predicted_ms: f64,
    bottleneck: String,
    parts: BTreeMap<String, f64>,
    schedule: Vec<String>,
    plan: Schedule,
    /// The term, as an s-expression.
    term: String,
}

fn shown<T: Searched>(candidate: &Candidate<T>) -> Shown {
    Shown {
        predicted_ms: candidate.cost.ms,
        bottleneck: candidate.cost.bottleneck.clone(),
        parts: candidate.cost.parts.clone(),
        schedule: candidate.plan.describe(),
        plan: candidate.plan.clone(),
        term: candidate.term.to_string(),
    }
}

/// A space that questions are asked about; it and its best are made when they are first needed, once.
pub(super) struct Asked<'a, W: Askable> {
    problem: &'a W,
    gpu: &'a Descriptor,
    query: Query,
    fuel: Fuel,
    space: Option<Space<W::Term>>,
    top: Option<Extraction<W::Term>>,
}

impl<'a, W: Askable> Asked<'a, W> {
    pub fn new(problem: &'a W, gpu: &'a Descriptor, limit: Duration, fuel: Fuel) -> Asked<'a, W> {
        let query = Query { k: 1, diverse: false, limit, below_ms: f64::INFINITY };
        Asked { problem, gpu, query, fuel, space: None, top: None }
    }

    pub fn answer(&mut self, question: &Question<W::Fixed>) -> Result<Answer, Failure> {
        let mut answer = self.found(question)?;
        answer.reasons.extend(question.otherwise.clone().filter(|_| !answer.in_space));
        Ok(answer)
    }

    fn found(&mut self, question: &Question<W::Fixed>) -> Result<Answer, Failure> {
        let mut answer = Answer {
            question: question.name.clone(),
            in_space: false,
            reasons: match &question.refused {
                Some(why) => vec![why.clone()],
                None => self.problem.outside(&question.fixed, self.gpu),
            },
            members: "0".into(),
            stopped_by: None,
            asked: None,
            rank: None,
            best: None,
            best_proved: false,
            dominated_in: None,
        };
        if !answer.reasons.is_empty() {
            return Ok(answer);
        }
        if self.space.is_none() {
            self.space = Some(self.problem.space_while(self.gpu, self.fuel, &|_| true)?);
        }
        let (problem, gpu, query) = (self.problem, self.gpu, self.query);
        let Some(space) = &self.space else { return Ok(answer) };
        if let StoppedBy::Limit(limit) = &space.report.stopped_by {
            answer.stopped_by = Some(limit.clone());
        }
        let parts = parts(space, &question.fixed);
        let missing = question.plan.as_ref().and_then(|plan| problem.missing(space, plan));
        if parts.is_empty() || missing.is_some() {
            answer.reasons = problem.broken(&question.fixed, gpu);
            if answer.reasons.is_empty() {
                answer.reasons = match answer.stopped_by {
                    Some(_) => vec!["no condition that shows in one or two decisions forbids it".into()],
                    None => conflict(space, &question.fixed),
                };
            }
            answer.reasons.extend(missing);
            return Ok(answer);
        }
        answer.in_space = true;
        answer.members = parts.iter().map(|p| Counts::of(p).total()).sum::<num_bigint::BigUint>().to_string();
        let of_part = |part: &Space<W::Term>| W::Term::best_while(part, gpu, query, &|| true).candidates;
        let mut found: Vec<Candidate<W::Term>> = parts.iter().flat_map(of_part).collect();
        found.sort_by(|a, b| a.cost.ms.total_cmp(&b.cost.ms));
        let Some(asked) = found.first() else {
            let plan = question.plan.clone().or_else(|| parts.first().and_then(any));
            let why = plan.and_then(|plan| problem.predict(&plan, gpu).err());
            answer.reasons.push(match why {
                Some(infeasible) => format!("{} cannot run it: {infeasible}", gpu.name),
                None => format!("none of them was found to run on {}", gpu.name),
            });
            return Ok(answer);
        };
        if self.top.is_none() {
            let query = Query { k: TOP, ..query };
            self.top = Some(W::Term::best_while(space, gpu, query, &|| true));
        }
        let Some(top) = &self.top else { return Ok(answer) };
        answer.asked = Some(shown(asked));
        answer.best_proved = top.proved;
        answer.rank = top.candidates.iter().position(|c| asked.cost.ms <= c.cost.ms).map(|i| i + 1);
        if let Some(winner) = top.candidates.first() {
            answer.best = Some(shown(winner));
            answer.dominated_in = worst_part(asked, winner).filter(|_| answer.rank != Some(1));
        }
        Ok(answer)
    }
}

/// The programs that keep to a question, in parts that do not overlap; parts without programs are left out.
pub(super) fn parts<F: Fixes>(space: &Space<F::Term>, fixed: &F) -> Vec<Space<F::Term>> {
    let part = |fixed: F| space.restricted(&|class, node| fixed.keeps(space, class, node));
    // What single nodes say comes first: it leaves little for the products.
    let variants = fixed.variants();
    if variants.len() < 2 {
        return variants.into_iter().map(part).filter(|p| !p.is_empty()).collect();
    }
    let local = part(fixed.clone());
    if local.is_empty() {
        return Vec::new();
    }
    variants
        .into_iter()
        .map(|f| local.restricted(&|class, node| f.keeps(&local, class, node)))
        .filter(|p| !p.is_empty())
        .collect()
}

/// Said of a schedule every decision of which the space offers, but not together.
pub(super) const NOT_HELD: &str = "the space does not hold this very schedule";

/// Any schedule that keeps to a question, where there is one.
pub(super) fn only<F: Fixes>(space: &Space<F::Term>, fixed: &F) -> Option<Schedule> {
    any(&space.restricted(&|class, node| fixed.keeps(space, class, node)))
}

/// Any program of a space.
fn any<T: Searched>(space: &Space<T>) -> Option<Schedule> {
    let mut rng = <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(0);
    T::schedule(&Counts::of(space).sample(space, &mut rng)?, space.problem()).ok()
}

/// Whether some program keeps to a question.
fn has_any<F: Fixes>(space: &Space<F::Term>, fixed: &F) -> bool {
    fixed.variants().iter().any(|f| space.has_program(&|class, node| f.keeps(space, class, node)))
}

/// Decisions of which any one left free would do: what is fixed contradicts itself there.
fn conflict<F: Fixes>(space: &Space<F::Term>, fixed: &F) -> Vec<String> {
    let enough: Vec<String> = fixed
        .freer()
        .into_iter()
        .filter(|(_, freer)| freer != fixed && has_any(space, freer))
        .map(|(name, _)| name)
        .collect();
    if enough.is_empty() {
        return vec!["what is fixed contradicts itself in more than one decision".into()];
    }
    vec![format!(
        "no rule makes these decisions together; there are schedules once {} is left free",
        enough.join(" or ")
    )]
}

/// The part of the time that is longer than the best schedule's by most.
fn worst_part<T>(asked: &Candidate<T>, winner: &Candidate<T>) -> Option<String> {
    let other = |name: &String| winner.cost.parts.get(name).copied().unwrap_or(0.0);
    let (name, more) = asked
        .cost
        .parts
        .iter()
        .filter(|(name, _)| name.as_str() != "predicted")
        .map(|(name, ms)| (name, ms - other(name)))
        .max_by(|a, b| a.1.total_cmp(&b.1))?;
    (more > 0.0).then(|| name.clone())
}

/// The best schedule of those that were asked for, or why there is none.
pub(super) fn best(answers: Vec<Answer>) -> Result<Schedule, String> {
    let time = |answer: &Answer| answer.asked.as_ref().map_or(f64::INFINITY, |asked| asked.predicted_ms);
    let why = |answer: &Answer| {
        let reasons = answer.reasons.join("; ");
        if answer.in_space {
            reasons
        } else {
            format!("not in the space: {reasons}")
        }
    };
    let mut reasons: Vec<String> = answers.iter().map(why).collect();
    reasons.dedup();
    let best = answers.into_iter().min_by(|a, b| time(a).total_cmp(&time(b)));
    best.and_then(|answer| answer.asked).map(|asked| asked.plan).ok_or_else(|| reasons.join("; "))
}

impl Answer {
    /// As the place of a choice of nvMatmulHeuristics.
    pub fn beside(self, choice: &Choice) -> Beside {
        Beside {
            choice: choice.clone(),
            question: self.question,
            in_space: self.in_space,
            reasons: self.reasons,
            predicted_ms: self.asked.as_ref().map(|asked| asked.predicted_ms),
            schedule: self.asked.map(|asked| asked.schedule).unwrap_or_default(),
            best_ms: self.best.map(|best| best.predicted_ms),
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let reached = match &self.stopped_by {
            Some(limit) => format!("; saturation ended at its limit ({limit}), so it may just not be reached"),
            None => String::new(),
        };
        if !self.in_space {
            return format!("not in the space: {}{reached}\n", self.reasons.join("; "));
        }
        let Some(asked) = &self.asked else {
            return format!("in the space ({} schedules), but {}\n", self.members, self.reasons.join("; "));
        };
        let mut out = format!("in the space: {} schedule{}", self.members, if self.members == "1" { "" } else { "s" });
        let Some(best) = &self.best else {
            out.push_str(&format!("; the best is predicted to take {:.4} ms\n", asked.predicted_ms));
            return out;
        };
        let rank = match self.rank {
            Some(rank) => format!("rank {rank}"),
            None => format!("not among the best {TOP}"),
        };
        out.push_str(&format!(
            "; the best of them is predicted to take {:.4} ms, {:.2}x the best of all ({:.4} ms{}): {rank}\n",
            asked.predicted_ms,
            asked.predicted_ms / best.predicted_ms,
            best.predicted_ms,
            if self.best_proved { "" } else { ", not proved" },
        ));
        for line in &asked.schedule {
            out.push_str(&format!("  {line}\n"));
        }
        if let Some(part) = &self.dominated_in {
            let of = |s: &Shown| s.parts.get(part).copied().unwrap_or(0.0);
            out.push_str(&format!("dominated in {part} ({:.4} ms against {:.4} ms) by\n", of(asked), of(best)));
            for line in &best.schedule {
                out.push_str(&format!("  {line}\n"));
            }
        }
        out.push_str("time by part, ms: asked for, best\n");
        for (name, ms) in &asked.parts {
            let other = best.parts.get(name).copied().unwrap_or(0.0);
            let mark = if *ms > other * 1.02 { "  <- more" } else { "" };
            out.push_str(&format!("  {name:<14} {ms:>10.4} {other:>10.4}{mark}\n"));
        }
        out
    }
}
