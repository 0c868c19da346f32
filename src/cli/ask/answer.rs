//! Answers: in the space or not, reached or not, how good at best, and where the time goes.
use super::fixed::Fixed;
use super::{legal, Failure, Question};
use crate::explore::limits;
use crate::operators::Problem;
use satune_extract::{best, Candidate, Counts, Descriptor, Extraction, Query};
use satune_ir::term::{Plan, Schedule, Space, StoppedBy};
use satune_rewrites::space::{rules, saturate, Fuel, Limits, Menu};
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

fn shown(candidate: &Candidate) -> Shown {
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
pub(super) struct Asked<'a> {
    problem: &'a Problem,
    gpu: &'a Descriptor,
    limits: Limits,
    menu: Menu,
    time: Duration,
    space: Option<Space>,
    top: Option<Extraction>,
}

impl<'a> Asked<'a> {
    pub fn new(problem: &'a Problem, gpu: &'a Descriptor, time: Duration) -> Asked<'a> {
        let limits = limits(gpu);
        let menu = Menu::of(&problem.contraction, &limits);
        Asked { problem, gpu, limits, menu, time, space: None, top: None }
    }

    pub fn answer(&mut self, question: &Question) -> Result<Answer, Failure> {
        let contraction = &self.problem.contraction;
        let mut answer = Answer {
            question: question.name.clone(),
            in_space: false,
            reasons: legal::outside(&question.fixed, &self.menu),
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
        self.make()?;
        let gpu = self.gpu;
        let Some(space) = &self.space else { return Ok(answer) };
        if let StoppedBy::Limit(limit) = &space.report.stopped_by {
            answer.stopped_by = Some(limit.clone());
        }
        let parts = parts(space, &question.fixed);
        let missing = question.plan.as_ref().and_then(|plan| space.contains(plan).err());
        if parts.is_empty() || missing.is_some() {
            answer.reasons = legal::broken(&question.fixed, contraction, &self.limits, &self.menu);
            if answer.reasons.is_empty() {
                answer.reasons = conflict(space, &question.fixed);
            }
            answer.reasons.extend(missing.map(|m| m.to_string()));
            return Ok(answer);
        }
        answer.in_space = true;
        answer.members = parts.iter().map(|p| Counts::of(p).total()).sum::<num_bigint::BigUint>().to_string();
        let query = Query { k: 1, diverse: false, limit: self.time };
        let mut found: Vec<Candidate> = parts.iter().flat_map(|part| best(part, gpu, query).candidates).collect();
        found.sort_by(|a, b| a.cost.ms.total_cmp(&b.cost.ms));
        let Some(asked) = found.first() else {
            let why = question
                .plan
                .clone()
                .or_else(|| parts.first().and_then(any))
                .and_then(|plan| satune_extract::cost(&plan, contraction, gpu).err());
            answer.reasons.push(match why {
                Some(infeasible) => format!("{} cannot run it: {infeasible}", gpu.name),
                None => format!("none of them was found to run on {}", gpu.name),
            });
            return Ok(answer);
        };
        let top = self.top()?;
        answer.asked = Some(shown(asked));
        answer.best_proved = top.proved;
        answer.rank = top.candidates.iter().position(|c| asked.cost.ms <= c.cost.ms).map(|i| i + 1);
        if let Some(winner) = top.candidates.first() {
            answer.best = Some(shown(winner));
            answer.dominated_in = worst_part(asked, winner).filter(|_| answer.rank != Some(1));
        }
        Ok(answer)
    }

    fn make(&mut self) -> Result<(), Failure> {
        if self.space.is_none() {
            let made = saturate(&self.problem.contraction, self.limits, &self.menu, &rules::all(), Fuel::default())
                .map_err(|e| Failure::Internal(e.to_string()))?;
            self.space = Some(made);
        }
        Ok(())
    }

    /// The best of all.
    fn top(&mut self) -> Result<&Extraction, Failure> {
        if self.top.is_none() {
            let query = Query { k: TOP, diverse: false, limit: self.time };
            self.top = self.space.as_ref().map(|space| best(space, self.gpu, query));
        }
        self.top.as_ref().ok_or_else(|| Failure::Internal("there is no space".into()))
    }
}

/// The programs that keep to a question, in parts that do not overlap; parts without programs are left out.
fn parts(space: &Space, fixed: &Fixed) -> Vec<Space> {
    let part = |fixed: Fixed| space.restricted(&|class, node| fixed.keeps(space, class, node));
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

/// Any program of a space.
fn any(space: &Space) -> Option<Plan> {
    let mut rng = <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(0);
    Plan::from_term(&Counts::of(space).sample(space, &mut rng)?, &space.contraction).ok()
}

/// Leaves a decision free.
type Release = fn(&mut Fixed);

/// Decisions of which any one left free would do: what is fixed contradicts itself there.
fn conflict(space: &Space, fixed: &Fixed) -> Vec<String> {
    let free: [(&str, Release); 18] = [
        ("block", |f| f.block = None),
        ("k", |f| f.k = None),
        ("step", |f| f.step = None),
        ("threads", |f| (f.threads, f.thread_grid) = (None, None)),
        ("warps", |f| (f.warps, f.warps_m_outer) = (None, None)),
        ("lanes", |f| (f.lanes, f.lanes_m_outer) = (None, None)),
        ("vthreads", |f| (f.vthreads, f.vthreads_outside, f.vthreads_inside) = (None, None, None)),
        ("registers", |f| (f.registers, f.registers_m_outer) = (None, None)),
        ("stages", |f| f.stages = None),
        ("split", |f| f.split = None),
        ("order", |f| f.blocks_m_outer = None),
        ("group", |f| f.group = None),
        ("A", |f| f.a = Default::default()),
        ("B", |f| f.b = Default::default()),
        ("unroll", |f| f.unroll = None),
        ("store", |f| f.store = None),
        ("init", |f| f.init_hoisted = None),
        ("accumulators", |f| f.accumulators = None),
    ];
    let enough: Vec<&str> = free
        .iter()
        .filter(|(_, release)| {
            let mut freer = fixed.clone();
            release(&mut freer);
            freer != *fixed && !parts(space, &freer).is_empty()
        })
        .map(|(name, _)| *name)
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
fn worst_part(asked: &Candidate, winner: &Candidate) -> Option<String> {
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

impl Answer {
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
