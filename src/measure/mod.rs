//! The measuring loop: candidates in, times out, by any device and any search strategy.
//!
//! What the store knows is not measured again. Each candidate is simulated, and where it is compiled its text executed, before a
//! device sees it; one that is clearly
//! slower than the best is cut off early; those within noise of each other are measured again in turns, and reported as
//! ties where that does not tell them apart. Every result is in the store before the next one begins.
pub mod bench;
mod learned;
mod rank;
mod strategy;

pub use learned::Learned;
pub use rank::{rank, Ranked};
pub use strategy::{BestFirst, Random, Strategy, StrategyKind, TopK};

use crate::device::{Ask, Device, DeviceError, Subject};
use crate::execute::Refusal;
use crate::explore::trace_hash;
use crate::progress::Progress;
use crate::source;
use crate::store::{hash, now, Key, Reason, Row, Step, Store, StoreError, Timing, Verdict};
use crate::workload::Workload;
use rayon::prelude::*;
use satune_extract::{Candidate, Descriptor};
use satune_ir::term::{Term, TermLanguage};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Candidates to try.
    pub trials: usize,
    /// How many of them the user wants: the cut-off spares these, and they are measured again where noise blurs them.
    pub keep: usize,
    /// Candidates that a strategy chooses at once; they are simulated and compiled together.
    pub batch: usize,
    /// Slower than the `keep`-th best by this factor is clearly slower.
    pub cut_off: f64,
    /// Visits to candidates within noise of each other, the first included.
    pub rounds: u32,
    /// Measure what the store knows again.
    pub fresh: bool,
    /// What a device is asked for.
    pub ask: Ask,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { trials: 8, keep: 8, batch: 16, cut_off: 1.5, rounds: 3, fresh: false, ask: Ask::default() }
    }
}

/// Why a run of measurements stopped. What was measured before is in the store.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A candidate that had its turn.
#[derive(Clone, Debug)]
pub struct Trial<T = Term> {
    /// The candidate.
    pub candidate: Candidate<T>,
    /// Hash of its trace.
    pub trace: String,
    /// What came of it.
    pub verdict: Verdict,
    /// Whether the store knew it.
    pub reused: bool,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Measured<T = Term> {
    /// In the order of their turns.
    pub trials: Vec<Trial<T>>,
    /// The measured ones, fastest first, with ties.
    pub ranking: Vec<Ranked>,
    /// Best so far after each turn.
    pub log: Vec<Step>,
    /// Turns that the store answered.
    pub reused: usize,
    /// The fastest of those that were simulated in this run, by the hash of their trace: twice as many as are kept.
    pub subjects: HashMap<String, Subject>,
    /// Time that lowering and simulation took, s.
    pub simulate_s: f64,
    /// Time that executing texts took, s.
    pub execute_s: f64,
    /// Candidates that simulator or execution refused, which no device saw: bugs of Satune.
    pub bugs: Vec<String>,
    /// Why the text of something that was compiled was not executed.
    pub not_executed: Option<String>,
    /// Time around the device's own work, per candidate that was measured, ms: store, bookkeeping.
    pub overhead_ms: f64,
}

/// Where a run is recorded.
pub struct Record<'s> {
    /// The store.
    pub store: &'s mut Store,
    /// The run's number there.
    pub run: i64,
}

/// Candidates beyond those asked for that are tried where some are refused.
const MORE: usize = 256;

/// Measures what a strategy chooses.
///
/// # Errors
/// When the device or the store fails; not when a candidate does.
pub fn measure<T: TermLanguage>(
    problem: &dyn Workload,
    gpu: &Descriptor,
    strategy: &mut dyn Strategy<T>,
    device: &mut dyn Device,
    record: &mut Record<'_>,
    settings: &Settings,
    progress: &dyn Progress,
) -> Result<Measured<T>, MeasureError> {
    let mut run = Run {
        problem,
        gpu,
        program: hash(problem.script()),
        settings,
        out: Measured {
            trials: Vec::new(),
            ranking: Vec::new(),
            log: Vec::new(),
            reused: 0,
            subjects: HashMap::new(),
            simulate_s: 0.0,
            execute_s: 0.0,
            bugs: Vec::new(),
            not_executed: None,
            overhead_ms: 0.0,
        },
        seen: HashSet::new(),
        around: Duration::ZERO,
    };
    let mut chances = settings.trials.saturating_add(MORE);
    while run.missing() > 0 && chances > 0 && !progress.stopped() {
        let wanted = settings.batch.min(run.missing()).min(chances);
        let chosen = strategy.next(&run.out.trials, wanted);
        if chosen.is_empty() {
            break;
        }
        chances -= chosen.len().min(chances);
        run.batch(chosen, device, record, progress)?;
    }
    if !device.identity().deterministic && !progress.stopped() {
        run.again(device, record, progress)?;
    }
    run.out.ranking = rank(&run.out.trials);
    let measured = run.out.trials.iter().filter(|t| !t.reused).count().max(1);
    run.out.overhead_ms = run.around.as_secs_f64() * 1e3 / measured as f64;
    // Whoever writes the results down finishes the run.
    Ok(run.out)
}

struct Run<'a, T> {
    problem: &'a dyn Workload,
    gpu: &'a Descriptor,
    program: String,
    settings: &'a Settings,
    out: Measured<T>,
    seen: HashSet<String>,
    /// Time spent on store and bookkeeping.
    around: Duration,
}

/// A candidate of a batch: known, or ready for the device.
enum Turn {
    Known(Box<Row>),
    Ready(Box<Subject>),
    Refused(String),
}

impl<T: TermLanguage> Run<'_, T> {
    /// Trials that are still to be made. What the compiler refused is none of those that were asked for.
    fn missing(&self) -> usize {
        let refused = |t: &&Trial<T>| matches!(&t.verdict, Verdict::Rejected { reason: Reason::CompileError, .. });
        let ran = self.out.trials.len() - self.out.trials.iter().filter(refused).count();
        self.settings.trials.saturating_sub(ran)
    }

    fn key(&self, trace: &str, device: &dyn Device) -> Key {
        let identity = device.identity();
        Key {
            program: self.program.clone(),
            trace: trace.into(),
            toolchain: identity.toolchain.clone(),
            device: identity.device.clone(),
        }
    }

    fn row(&self, key: Key, candidate: &Candidate<T>, verdict: Verdict) -> Row {
        Row {
            key,
            operator: self.problem.name().into(),
            script: (!source::is_operator(self.problem.name())).then(|| self.problem.script().into()),
            gpu: self.gpu.name.clone(),
            predicted_ms: candidate.cost.ms,
            plan: candidate.plan.clone(),
            at: now(),
            verdict,
        }
    }

    fn batch(
        &mut self,
        chosen: Vec<Candidate<T>>,
        device: &mut dyn Device,
        record: &mut Record<'_>,
        progress: &dyn Progress,
    ) -> Result<(), MeasureError> {
        let mut turns: Vec<(Candidate<T>, String, Option<Turn>)> = Vec::with_capacity(chosen.len());
        for candidate in chosen {
            let trace = trace_hash(&candidate.plan, self.problem);
            if !self.seen.insert(trace.clone()) {
                continue;
            }
            let key = self.key(&trace, device);
            let known = if self.settings.fresh { None } else { record.store.get(&key)? };
            turns.push((candidate, trace, known.map(|row| Turn::Known(Box::new(row)))));
        }
        let fresh = turns.iter().filter(|(_, _, t)| t.is_none()).count();
        progress.begin("simulating", fresh);
        let go_on = || !progress.stopped();
        let (problem, gpu) = (self.problem, self.gpu);
        let simulating = Instant::now();
        turns.par_iter_mut().filter(|(_, _, turn)| turn.is_none()).for_each(|(candidate, _, turn)| {
            *turn = match Subject::of((&candidate.plan, &candidate.cost), problem, gpu, &go_on) {
                Ok(subject) => Some(Turn::Ready(Box::new(subject))),
                // What was interrupted is nobody's fault.
                Err(_) if !go_on() => None,
                Err(fault) => Some(Turn::Refused(fault)),
            };
            progress.advance();
        });
        self.out.simulate_s += simulating.elapsed().as_secs_f64();
        let ready: Vec<&Subject> = turns
            .iter()
            .filter_map(|(_, _, turn)| match turn {
                Some(Turn::Ready(subject)) => Some(&**subject),
                _ => None,
            })
            .collect();
        if !ready.is_empty() && go_on() {
            progress.begin(&format!("compiling {} candidates", ready.len()), 0);
            device.prepare(self.problem, &ready);
        }
        if let Some((compiler, _)) = device.compiler() {
            // What does not compile is the device's to tell.
            let ready: Vec<_> =
                turns.iter_mut().filter_map(|(_, trace, turn)| Some((device.ptx(trace)?, turn))).collect();
            progress.begin("executing", ready.len());
            let executing = Instant::now();
            let unable: Vec<Option<String>> = ready
                .into_par_iter()
                .map(|(ptx, turn)| {
                    let Some(Turn::Ready(subject)) = turn else { return None };
                    if progress.stopped() {
                        return Some("interrupted".into());
                    }
                    let refusal = subject.execute(problem, gpu, Some(ptx), &compiler, &go_on).err();
                    progress.advance();
                    match refusal? {
                        Refusal::Unable(why) => Some(why),
                        Refusal::Wrong(fault) => {
                            *turn = Some(Turn::Refused(fault));
                            None
                        }
                    }
                })
                .collect();
            self.out.execute_s += executing.elapsed().as_secs_f64();
            self.out.not_executed = unable.into_iter().flatten().next().or(self.out.not_executed.take());
        }
        for (candidate, trace, turn) in turns {
            if progress.stopped() {
                break;
            }
            progress.begin(&format!("measuring {} of {}", self.out.trials.len() + 1, self.settings.trials), 0);
            match turn {
                Some(Turn::Known(row)) if self.holds(&row.verdict) => {
                    self.reuse(candidate, trace, row.verdict, record)?;
                }
                // It was cut off beside better ones than there are now.
                Some(Turn::Known(_)) => match self.made(&candidate, device, &go_on) {
                    Ok(subject) => self.take(candidate, subject, device, record)?,
                    Err(_) if !go_on() => break,
                    Err(fault) => self.out.bugs.push(fault),
                },
                Some(Turn::Ready(subject)) => self.take(candidate, *subject, device, record)?,
                Some(Turn::Refused(fault)) => {
                    self.out.bugs.push(format!("{fault}\n{}", candidate.plan.describe().join("\n")));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// A candidate that was not prepared, lowered, simulated and executed; or what is wrong with it.
    fn made(
        &mut self,
        candidate: &Candidate<T>,
        device: &dyn Device,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Subject, String> {
        let mut subject = Subject::of((&candidate.plan, &candidate.cost), self.problem, self.gpu, go_on)?;
        if let Some((compiler, _)) = device.compiler() {
            match subject.execute(self.problem, self.gpu, None, &compiler, go_on) {
                Err(Refusal::Wrong(fault)) => return Err(fault),
                Err(Refusal::Unable(why)) => self.out.not_executed = Some(why),
                Ok(()) => {}
            }
        }
        Ok(subject)
    }

    /// Keeps the subjects of the fastest, so that nobody has to simulate them again, and not those of thousands.
    fn forget_slow(&mut self) {
        let most = 2 * self.settings.keep.max(1);
        if self.out.subjects.len() <= most {
            return;
        }
        let time = |trace: &str| {
            let trial = self.out.trials.iter().find(|t| t.trace == trace);
            trial.and_then(|t| t.verdict.median_ms()).unwrap_or(f64::INFINITY)
        };
        let slowest = self.out.subjects.keys().max_by(|a, b| time(a).total_cmp(&time(b)).then(a.cmp(b))).cloned();
        if let Some(slowest) = slowest {
            self.out.subjects.remove(&slowest);
        }
    }

    /// The time beyond which a candidate is clearly slower than those that are kept.
    fn limit(&self) -> Option<f64> {
        let mut times: Vec<f64> = self.out.trials.iter().filter_map(|t| t.verdict.median_ms()).collect();
        times.sort_by(f64::total_cmp);
        times.get(self.settings.keep.max(1) - 1).map(|ms| ms * self.settings.cut_off)
    }

    /// Whether a known verdict answers for a new visit: one that was cut off does where it would be cut off again.
    fn holds(&self, verdict: &Verdict) -> bool {
        match verdict {
            Verdict::Measured(t) if t.cut_off => self.limit().is_some_and(|limit| t.median_ms() > limit),
            _ => true,
        }
    }

    fn step(&self, trace: &str, candidate: &Candidate<T>, verdict: &Verdict, reused: bool) -> Step {
        let best = self.out.log.last().and_then(|s| s.best_ms);
        let ms = verdict.median_ms();
        let best_ms = match (best, ms) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Step {
            number: u32::try_from(self.out.log.len() + 1).unwrap_or(u32::MAX),
            trace: trace.into(),
            outcome: verdict.name().into(),
            predicted_ms: candidate.cost.ms,
            ms,
            best_ms,
            reused,
        }
    }

    fn reuse(
        &mut self,
        candidate: Candidate<T>,
        trace: String,
        verdict: Verdict,
        record: &mut Record<'_>,
    ) -> Result<(), MeasureError> {
        let step = self.step(&trace, &candidate, &verdict, true);
        record.store.put_step(record.run, &step)?;
        self.out.log.push(step);
        self.out.reused += 1;
        self.out.trials.push(Trial { candidate, trace, verdict, reused: true });
        Ok(())
    }

    fn take(
        &mut self,
        candidate: Candidate<T>,
        subject: Subject,
        device: &mut dyn Device,
        record: &mut Record<'_>,
    ) -> Result<(), MeasureError> {
        let ask = Ask { cut_off_ms: self.limit(), ..self.settings.ask };
        let verdict = device.measure(self.problem, &subject, &ask)?;
        let start = Instant::now();
        let step = self.step(&subject.trace, &candidate, &verdict, false);
        let row = self.row(self.key(&subject.trace, device), &candidate, verdict.clone());
        record.store.put_with(&row, Some((record.run, &step)))?;
        self.out.log.push(step);
        self.out.trials.push(Trial { candidate, trace: subject.trace.clone(), verdict, reused: false });
        self.out.subjects.insert(subject.trace.clone(), subject);
        self.forget_slow();
        self.around += start.elapsed();
        Ok(())
    }

    /// Measures those that noise may have put in the wrong order again, in turns: what drifts, drifts for all of them.
    fn again(
        &mut self,
        device: &mut dyn Device,
        record: &mut Record<'_>,
        progress: &dyn Progress,
    ) -> Result<(), MeasureError> {
        for round in 1..self.settings.rounds {
            let blurred = rank::blurred(&self.out.trials, self.settings.keep);
            let due = |t: &Trial<T>| matches!(&t.verdict, Verdict::Measured(timing) if timing.rounds <= round);
            let due: Vec<usize> = blurred.into_iter().filter(|i| due(&self.out.trials[*i])).collect();
            for at in due {
                if progress.stopped() {
                    return Ok(());
                }
                progress.begin(&format!("measuring again, round {}", round + 1), 0);
                let candidate = self.out.trials[at].candidate.clone();
                // It was simulated when it was first measured; a reused one is simulated now.
                let go_on = || !progress.stopped();
                let Ok(subject) = Subject::of((&candidate.plan, &candidate.cost), self.problem, self.gpu, &go_on)
                else {
                    continue;
                };
                let verdict = device.measure(self.problem, &subject, &self.settings.ask)?;
                let merged = match (&self.out.trials[at].verdict, verdict) {
                    (Verdict::Measured(old), Verdict::Measured(new)) => Verdict::Measured(joined(old, &new)),
                    // Right once and wrong now is wrong; a kernel that fails now is not to be trusted either. But a lack of
                    // memory, say, is no news about it.
                    (_, Verdict::Rejected { reason, .. }) if !reason.distrusts() => continue,
                    (_, other) => other,
                };
                let row = self.row(self.key(&subject.trace, device), &candidate, merged.clone());
                record.store.put(&row)?;
                self.out.trials[at].verdict = merged;
            }
        }
        Ok(())
    }
}

/// The times of two visits as one.
fn joined(old: &Timing, new: &Timing) -> Timing {
    let worse = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    };
    Timing {
        times_ms: old.times_ms.iter().chain(&new.times_ms).copied().collect(),
        rounds: old.rounds + new.rounds,
        cut_off: old.cut_off && new.cut_off,
        clock_mhz: new.clock_mhz.or(old.clock_mhz),
        conditions: new.conditions.clone().or_else(|| old.conditions.clone()),
        relative_error: worse(old.relative_error, new.relative_error),
    }
}
