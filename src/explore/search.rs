//! The measured half of an exploration: a device, a store, a strategy.
use super::given::Given;
use super::output::{MeasuredReport, SearchReport};
use super::Request;
use crate::device::{Ask, Device, DeviceKind, Subject};
use crate::measure::{measure, BestFirst, Learned, MeasureError, Random, Record, Settings, Strategy, StrategyKind};
use crate::progress::Progress;
use crate::store::Verdict;
use crate::workload::Explorable;
use satune_extract::{Candidate, Searched};
use satune_ir::term::Space;
use std::collections::{BTreeMap, HashMap};

/// How to measure.
pub struct Search<'a> {
    /// What runs candidates.
    pub device: &'a mut dyn Device,
    /// Where it is written down.
    pub record: Record<'a>,
    /// Which candidates.
    pub strategy: StrategyKind,
    /// How many.
    pub trials: usize,
    /// Of random choices.
    pub seed: u64,
    /// Measure what the store knows again.
    pub fresh: bool,
    /// What the device is asked for.
    pub ask: Ask,
}

/// Candidates, best first, and what is known about them and the rest.
pub(super) struct Found<T> {
    pub candidates: Vec<(Candidate<T>, Option<MeasuredReport>)>,
    /// Of those, what was made and simulated when they were measured, by the hash of their trace.
    pub subjects: HashMap<String, Subject>,
    /// Time that it took to make and simulate those, s.
    pub simulate_s: f64,
    /// They are the best under the model, and the next best may take the place of those that are refused.
    pub by_model: bool,
    /// Their order is that of times on a device.
    pub measured: bool,
    pub bugs: Vec<String>,
    /// Time that executing texts before they were measured took, s; and why one was not.
    pub execute_s: f64,
    pub not_executed: Option<String>,
    pub report: Option<SearchReport>,
}

impl<T: Searched> Found<T> {
    /// The best `top` under the model.
    pub fn unmeasured(list: &mut BestFirst<'_, T>, top: usize) -> Found<T> {
        Found {
            candidates: list.take(top).into_iter().map(|c| (c, None)).collect(),
            subjects: HashMap::new(),
            simulate_s: 0.0,
            by_model: true,
            measured: false,
            bugs: Vec::new(),
            execute_s: 0.0,
            not_executed: None,
            report: None,
        }
    }
}

impl Search<'_> {
    /// How many candidates extraction must find: the other strategies only need to know what the best could be.
    pub(super) fn to_extract(&self, top: usize) -> usize {
        match self.strategy {
            StrategyKind::Analytical => self.trials.max(top),
            StrategyKind::Random | StrategyKind::Learned => 1,
        }
    }

    pub(super) fn run<W: Explorable>(
        mut self,
        problem: &W,
        request: &Request,
        space: &Space<W::Term>,
        (list, given): (&mut BestFirst<'_, W::Term>, &mut Option<Given>),
        progress: &dyn Progress,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Found<W::Term>, MeasureError> {
        let mut found = Found::unmeasured(list, 0);
        let first = list.first().cloned();
        let mut strategy: Box<dyn Strategy<W::Term> + '_> = match self.strategy {
            StrategyKind::Analytical => Box::new(list),
            StrategyKind::Random => Box::new(Random::of(space, &request.gpu, self.seed, go_on)),
            StrategyKind::Learned => Box::new(Learned::of(space, &request.gpu, self.seed, request.limit, go_on)),
        };
        let settings = Settings {
            trials: self.trials,
            keep: request.top,
            fresh: self.fresh,
            ask: self.ask,
            ..Settings::default()
        };
        let identity = self.device.identity().clone();
        let measured =
            measure(problem, &request.gpu, &mut *strategy, self.device, &mut self.record, &settings, progress)?;
        if let Some(given) = given.as_mut().filter(|_| identity.kind != DeviceKind::Simulator && !progress.stopped()) {
            progress.begin("measuring the given schedule", 0);
            given.measure(problem, &request.gpu, self.device, &self.ask, go_on).map_err(MeasureError::from)?;
        }
        let mut rejected: BTreeMap<String, usize> = BTreeMap::new();
        let mut rejections: BTreeMap<String, String> = BTreeMap::new();
        for trial in &measured.trials {
            if let Verdict::Rejected { reason, detail } = &trial.verdict {
                *rejected.entry(reason.name().into()).or_default() += 1;
                rejections.entry(reason.name().into()).or_insert_with(|| detail.clone());
            }
        }
        found.candidates = measured
            .ranking
            .iter()
            .take(request.top)
            .map(|ranked| {
                let trial = &measured.trials[ranked.trial];
                let (clock_mhz, relative_error, conditions) = match &trial.verdict {
                    Verdict::Measured(t) => (t.clock_mhz, t.relative_error, t.conditions.clone()),
                    Verdict::Rejected { .. } => (None, None, None),
                };
                let report = MeasuredReport {
                    place: ranked.place,
                    ms: ranked.ms,
                    spread: ranked.spread,
                    repeats: ranked.repeats,
                    clock_mhz,
                    relative_error,
                    conditions,
                    reused: trial.reused,
                };
                (trial.candidate.clone(), Some(report))
            })
            .collect();
        if found.candidates.is_empty() && progress.stopped() {
            // Told to end before anything was measured: the best under the model is what there is.
            found.candidates.extend(first.map(|c| (c, None)));
        }
        found.measured = identity.kind != DeviceKind::Simulator;
        found.by_model = !found.measured && self.strategy == StrategyKind::Analytical;
        (found.subjects, found.simulate_s) = (measured.subjects, measured.simulate_s);
        found.bugs = measured.bugs;
        (found.execute_s, found.not_executed) = (measured.execute_s, measured.not_executed);
        found.report = Some(SearchReport {
            kind: identity.kind,
            device: identity.device,
            toolchain: identity.toolchain,
            strategy: self.strategy,
            trials: measured.trials.len(),
            reused: measured.reused,
            rejected,
            rejections,
            overhead_ms: measured.overhead_ms,
            run: self.record.run,
            log: measured.log,
        });
        Ok(found)
    }
}
