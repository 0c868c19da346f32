//! What a candidate must survive before it is shown. It is lowered, run in the simulator, and, where there is a compiler,
//! compiled and its PTX executed ([`crate::execute`]); what is refused is told, and the next best takes its place. What the compiler says of registers is put into
//! the model where they are more than the model counted: so a candidate can only fall behind, and what was not looked at
//! is no better than the model says. One that spills registers is shown only where the space has nothing clean.
use super::compiled_loop::{judge_of, Counted, Judge, LoopReport};
use super::output::{self, CandidateReport, CompiledReport, MeasuredReport};
use super::{trace_hash, Checked, Request};
use crate::compile::{self, CompileError, Compiler, Job};
use crate::device::Subject;
use crate::execute::{self, Executed, Refusal};
use crate::progress::Progress;
use crate::scheduled::Scheduled;
use crate::workload::{Explorable, Workload};
use rayon::prelude::*;
use satune_extract::{Candidate, Compiled};
use satune_ir::term::Schedule;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Candidates that are looked at beyond those asked for, at most: a space may hold millions that the compiler does not take.
pub const PATIENCE: usize = 64;

/// So many that spill, and the search goes on with one candidate per tile: the next best differ from these in little else than
/// what registers do not depend on.
const ALIKE: usize = 4;

/// So long a first simulation may go on after all was told to end.
const LAST_CHANCE: Duration = Duration::from_millis(300);

/// A candidate that survived.
pub(super) struct Vetted<T> {
    pub candidate: Candidate<T>,
    pub measured: Option<MeasuredReport>,
    pub made: Scheduled,
    pub checked: Checked,
    /// Its id, and its kernels' texts in launch order.
    pub named: output::Named,
    pub compiled: Option<CompiledReport>,
    /// What of its text was executed.
    pub executed: Option<Executed>,
}

impl<T> Vetted<T> {
    /// What is reported of it.
    pub fn entry(self, rank: usize, problem: &dyn Workload, derivation: Vec<String>) -> CandidateReport {
        let Vetted { candidate, measured, made, checked, named, compiled, executed } = self;
        let agreement = problem.agreement();
        let parts = output::Parts { problem, scheduled: &made, named, checked: &checked, agreement, derivation };
        let entry = output::candidate(rank, (&candidate.plan, &candidate.cost), parts);
        CandidateReport { measured, compiled, executed, ..entry }
    }

    fn spills(&self) -> bool {
        self.compiled.as_ref().is_some_and(|c| c.spill_bytes > 0)
    }

    fn of_loop(&self) -> Option<&LoopReport> {
        self.compiled.as_ref()?.loop_clocks.as_ref()
    }
}

/// Survivors in their order.
pub(super) struct Ranked<T> {
    pub shown: Vec<Vetted<T>>,
    /// How many are left out because they spill.
    pub spilled: usize,
    /// Who ordered them, and what there is to say of it.
    pub judge: Judge,
    pub note: Option<String>,
}

/// What came of a text; empty until somebody has compiled it.
type Compilation = Arc<OnceLock<Result<compile::Compiled, CompileError>>>;

/// What was found out about a candidate.
struct Looked<T> {
    verdict: Result<Box<Vetted<T>>, Out>,
    /// Why it was not compiled.
    not_compiled: Option<CompileError>,
    /// Why its text was not executed.
    not_executed: Option<String>,
}

impl<T> Looked<T> {
    fn out(out: Out) -> Looked<T> {
        Looked { verdict: Err(out), not_compiled: None, not_executed: None }
    }
}

/// Why a candidate is out.
enum Out {
    /// Refused by lowering, simulator or execution.
    Bug(String),
    /// Refused by the compiler; its tile and threads.
    Refused { why: String, like: (String, u32) },
}

fn about(why: &str, plan: &Schedule) -> String {
    format!("{why}\n{}", plan.describe().join("\n"))
}

/// Tile and threads.
fn likeness(plan: &Schedule) -> (String, u32) {
    (plan.summary().tile, plan.threads())
}

/// Nanoseconds of work in each stage, of all cores together.
#[derive(Default)]
struct Spent {
    simulate: AtomicU64,
    compile: AtomicU64,
    execute: AtomicU64,
}

impl Spent {
    fn on<R>(&self, stage: &AtomicU64, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let out = work();
        stage.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        out
    }
}

/// Wall-clock time of the stages. They overlap: what passed is dealt out by their shares of the work.
#[derive(Default)]
pub(super) struct Times {
    pub simulate: Duration,
    pub compile: Duration,
    pub execute: Duration,
}

impl Times {
    fn add(&mut self, spent: &Spent, passed: Duration) {
        let of = |stage: &AtomicU64| stage.load(Ordering::Relaxed) as f64;
        let all = of(&spent.simulate) + of(&spent.compile) + of(&spent.execute);
        let share = |stage| if all > 0.0 { passed.mul_f64(of(stage) / all) } else { Duration::ZERO };
        self.simulate += share(&spent.simulate);
        self.compile += share(&spent.compile);
        self.execute += share(&spent.execute);
    }
}

/// Candidates on their way.
pub(super) struct Vet<'a, W: Explorable> {
    problem: &'a W,
    request: &'a Request,
    progress: &'a dyn Progress,
    /// What was made and simulated when it was measured, by the hash of its trace.
    subjects: HashMap<String, Subject>,
    compiler: Option<Compiler>,
    /// Results by architecture and text: candidates often share the kernel that adds parts.
    compilations: Mutex<HashMap<(String, String), Compilation>>,
    /// Survivors, in order of their coming.
    kept: Vec<Vetted<W::Term>>,
    /// Tile and threads of those that were looked at, and spill or were refused by the compiler.
    unfit: HashSet<(String, u32)>,
    looked_at: usize,
    /// Refused by lowering, simulator or execution: bugs of Satune.
    pub bugs: Vec<String>,
    /// Refused by the compiler.
    pub rejected: Vec<String>,
    /// Why something was not compiled.
    pub not_compiled: Option<String>,
    /// Why the text of something was not executed.
    pub not_executed: Option<String>,
    pub times: Times,
    /// When a simulation learned that it shall end.
    told: OnceLock<Instant>,
}

impl<'a, W: Explorable> Vet<'a, W> {
    pub fn new(
        problem: &'a W,
        request: &'a Request,
        subjects: HashMap<String, Subject>,
        progress: &'a dyn Progress,
    ) -> Vet<'a, W> {
        let compiler = request.compile.then(Compiler::of_this_program);
        let not_compiled = compiler.as_ref().and_then(|c| c.as_ref().err()).map(ToString::to_string);
        Vet {
            problem,
            request,
            progress,
            subjects,
            compiler: compiler.and_then(Result::ok),
            compilations: Mutex::default(),
            kept: Vec::new(),
            unfit: HashSet::new(),
            looked_at: 0,
            bugs: Vec::new(),
            rejected: Vec::new(),
            not_compiled,
            not_executed: None,
            times: Times::default(),
            told: OnceLock::new(),
        }
    }

    /// Survivors that spill nothing.
    pub fn clean(&self) -> usize {
        self.kept.iter().filter(|v| !v.spills()).count()
    }

    /// Whether what comes next is too much like what spills, or was refused by the compiler.
    pub fn stuck(&self) -> bool {
        self.kept.len() - self.clean() + self.rejected.len() >= ALIKE
    }

    /// Whether candidates of the same tile and threads spill, or were refused by the compiler.
    pub fn is_like_unfit(&self, plan: &Schedule) -> bool {
        self.unfit.contains(&(plan.summary().tile, plan.threads()))
    }

    /// Whether there is a reason to look at the next best, which takes so much at least, ms.
    pub fn wants_more(&self, next_ms: f64) -> bool {
        if self.progress.stopped() || self.looked_at >= self.request.top.saturating_add(PATIENCE) {
            return false;
        }
        let mut times: Vec<f64> = self.kept.iter().filter(|v| !v.spills()).map(|v| v.candidate.cost.ms).collect();
        times.sort_by(f64::total_cmp);
        // Of those that are worth measuring together the first must be the best, of the plain best all.
        let top = self.request.top;
        let least = if self.request.twins { times.get(top - 1) } else { times.first() };
        times.len() < top || least.is_none_or(|ms| *ms > next_ms)
    }

    /// Whether the search ended though the space has more.
    pub fn gave_up(&self) -> bool {
        self.looked_at >= self.request.top.saturating_add(PATIENCE) && self.clean() < self.request.top
    }

    /// Looks at candidates, each from its lowering to its execution by itself: while one is compiled, another is run. When told to
    /// end, one that was simulated is enough: nothing is shown unchecked.
    pub fn take(&mut self, candidates: Vec<(Candidate<W::Term>, Option<MeasuredReport>)>) {
        self.looked_at += candidates.len();
        self.progress.begin("lowering, simulating, compiling, executing", candidates.len());
        let start = Instant::now();
        let any = AtomicBool::new(!self.kept.is_empty());
        let spent = Spent::default();
        let this = &*self;
        let looked: Vec<Looked<W::Term>> = candidates
            .into_par_iter()
            .filter_map(|candidate| {
                let looked = this.look_at(candidate, &any, &spent);
                this.progress.advance();
                looked
            })
            .collect();
        self.times.add(&spent, start.elapsed());
        for Looked { verdict, not_compiled, not_executed } in looked {
            match verdict {
                Ok(vetted) => {
                    if vetted.spills() {
                        self.unfit.insert(likeness(&vetted.candidate.plan));
                    }
                    self.kept.push(*vetted);
                }
                Err(Out::Bug(fault)) => self.bugs.push(fault),
                Err(Out::Refused { why, like }) => {
                    self.unfit.insert(like);
                    self.rejected.push(why);
                }
            }
            if let Some(error) = not_compiled {
                if error == CompileError::Missing {
                    self.compiler = None;
                }
                self.not_compiled = Some(error.to_string());
            }
            self.not_executed = not_executed.or(self.not_executed.take());
        }
    }

    /// `any`: whether something was simulated before.
    fn look_at(
        &self,
        (candidate, measured): (Candidate<W::Term>, Option<MeasuredReport>),
        any: &AtomicBool,
        spent: &Spent,
    ) -> Option<Looked<W::Term>> {
        let (problem, gpu) = (self.problem, &self.request.gpu);
        let subject = match self.subjects.get(&trace_hash(&candidate.plan, problem)).cloned() {
            Some(subject) => Ok(subject),
            None if !self.go_on(any) => return None,
            None => spent.on(&spent.simulate, || {
                Subject::of((&candidate.plan, &candidate.cost), problem, gpu, &|| self.go_on(any))
            }),
        };
        // What was interrupted is nobody's fault, and shown to nobody.
        if subject.is_err() && !self.go_on(any) {
            return None;
        }
        any.fetch_or(subject.is_ok(), Ordering::Relaxed);
        let Subject { made, checked, executed, .. } = match subject {
            Ok(subject) => subject,
            Err(fault) => return Some(Looked::out(Out::Bug(about(&fault, &candidate.plan)))),
        };
        let named = output::Named::of(problem, &made, &candidate.plan, gpu);
        let vetted = Vetted { candidate, measured, made, checked, named, compiled: None, executed };
        let like = likeness(&vetted.candidate.plan);
        let (vetted, not_compiled) = match spent.on(&spent.compile, || self.judged(vetted)) {
            Ok(judged) => judged,
            Err(why) => return Some(Looked::out(Out::Refused { why, like })),
        };
        // What spills is executed when there is nothing else to show, what was measured before it was.
        let (verdict, not_executed) = match vetted.spills() || vetted.executed.is_some() {
            true => (Ok(vetted), None),
            false => spent.on(&spent.execute, || self.executed(vetted)),
        };
        Some(Looked { verdict: verdict.map(Box::new), not_compiled, not_executed })
    }

    /// Executes what was compiled. Its text is right, or could not be executed, and why; the error is a bug.
    fn executed(&self, mut vetted: Vetted<W::Term>) -> (Result<Vetted<W::Term>, Out>, Option<String>) {
        let Some(compiler) = &self.compiler else { return (Ok(vetted), None) };
        let plan = &vetted.candidate.plan;
        let (problem, gpu) = (self.problem, &self.request.gpu);
        let arch = output::arch(plan, gpu);
        let ptx = vetted.named.texts.iter().map(|text| match self.known(arch, text).get() {
            Some(Ok(compiled)) => Some(compiled.ptx.clone()),
            _ => None,
        });
        let (module, texts) = (&vetted.made.module, &vetted.named.texts);
        let go_on = || !self.progress.stopped();
        let candidate = execute::Candidate { problem, plan, module, texts, gpu, go_on: &go_on };
        let result = match (self.progress.stopped(), ptx.collect::<Option<Vec<_>>>()) {
            (true, _) => Err(Refusal::Unable("interrupted".into())),
            (_, None) => Err(Refusal::Unable("it was not compiled".into())),
            (_, ptx) => candidate.execute(ptx, compiler),
        };
        match result {
            Ok(executed) => {
                vetted.executed = Some(executed);
                (Ok(vetted), None)
            }
            Err(Refusal::Unable(why)) => (Ok(vetted), Some(why)),
            Err(Refusal::Wrong(fault)) => (Err(Out::Bug(about(&fault, plan))), None),
        }
    }

    /// Whether a simulation goes on: until it is told to end, or a little longer where there would be nothing to show else.
    /// `any`: whether something was simulated before.
    fn go_on(&self, any: &AtomicBool) -> bool {
        if !self.progress.stopped() {
            return true;
        }
        let told = self.told.get_or_init(Instant::now);
        !any.load(Ordering::Relaxed) && told.elapsed() < LAST_CHANCE
    }

    /// What is known of a text, for an architecture.
    fn known(&self, arch: &str, text: &str) -> Compilation {
        let mut all = self.compilations.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry((arch.into(), text.into())).or_default().clone()
    }

    /// A candidate with what the compiler found, or why nothing was compiled; the error is why it is none.
    fn judged(&self, mut vetted: Vetted<W::Term>) -> Result<(Vetted<W::Term>, Option<CompileError>), String> {
        let Some(compiler) = &self.compiler else { return Ok((vetted, None)) };
        let plan = vetted.candidate.plan.clone();
        let refused = |why: &str| about(why, &plan);
        let arch = output::arch(&plan, &self.request.gpu).to_string();
        let mut report: Option<CompiledReport> = None;
        let mut listing = None;
        let (main, mut spilled) = (vetted.made.module.main, 0);
        for (number, (kernel, source)) in vetted.made.module.kernels.iter().zip(&vetted.named.texts).enumerate() {
            let known = self.known(&arch, source);
            // Who comes second waits for the first.
            let result = known.get_or_init(|| {
                let job = Job { name: kernel.name.clone(), source: source.clone(), arch: arch.clone() };
                compiler.compile_job(&job, &|| !self.progress.stopped())
            });
            match result {
                Err(
                    error @ (CompileError::Refused { .. } | CompileError::Timeout { .. } | CompileError::Memory { .. }),
                ) => return Err(refused(error.to_string().trim())),
                Err(CompileError::Stopped { .. }) => return Ok((vetted, None)),
                Err(error) => return Ok((vetted, Some(error.clone()))),
                // Of several kernels the one that a contraction's work is in; what the others spill counts, too.
                Ok(compiled) => {
                    spilled += compiled.spill_bytes;
                    if number == main {
                        listing = compile::disassemble(&compiled.cubin);
                        report = Some(CompiledReport {
                            arch: compiled.arch.clone(),
                            registers: compiled.registers,
                            spill_bytes: 0,
                            static_shared_bytes: compiled.static_shared_bytes,
                            warnings: super::warnings(&compiled.log),
                            hot_loop: listing.as_ref().and_then(compile::Mix::of),
                            loop_clocks: None,
                        });
                    }
                }
            }
        }
        if let Some(found) = &mut report {
            found.spill_bytes = spilled;
            let (gpu, unfit) = (&self.request.gpu, |e| refused(&format!("as compiled it does not fit the GPU: {e}")));
            let contraction = self.problem.contraction();
            let (cost, k_loop) = match contraction {
                Some(c) => {
                    let Compiled { cost, k_loop } =
                        satune_extract::compiled(&plan, c, gpu, found.registers).map_err(unfit)?;
                    (cost, Some(k_loop))
                }
                None => (self.problem.predict_compiled(&plan, gpu, found.registers).map_err(unfit)?, None),
            };
            let kernel = vetted.made.module.kernels.get(main);
            found.loop_clocks = kernel.zip(listing).map(|(kernel, listing)| {
                let counted = Counted {
                    schedule: &plan,
                    k_loop: k_loop.as_ref(),
                    combines: contraction.is_some_and(|c| c.combine.is_some()),
                    checked: &vetted.checked,
                    launch: (kernel.grid.iter().map(|n| u64::from(*n)).product(), kernel.block.iter().product()),
                };
                counted.report(&listing, gpu)
            });
            if cost.ms > vetted.candidate.cost.ms {
                vetted.candidate.cost = cost;
            }
        }
        vetted.compiled = report;
        Ok((vetted, None))
    }

    /// A candidate that was executed, now or before; none where its text is wrong.
    fn shown(&mut self, vetted: Vetted<W::Term>) -> Option<Vetted<W::Term>> {
        if vetted.executed.is_some() || vetted.compiled.is_none() {
            return Some(vetted);
        }
        let (start, spent) = (Instant::now(), Spent::default());
        let (verdict, why) = spent.on(&spent.execute, || self.executed(vetted));
        self.times.add(&spent, start.elapsed());
        self.not_executed = why.or(self.not_executed.take());
        match verdict {
            Ok(vetted) => Some(vetted),
            Err(Out::Bug(why) | Out::Refused { why, .. }) => {
                self.bugs.push(why);
                None
            }
        }
    }

    /// The best of those that survived; `measured`: in the order in which they came, all of them.
    pub fn ranked(&mut self, measured: bool) -> Ranked<W::Term> {
        let mut kept = std::mem::take(&mut self.kept);
        if measured {
            let shown = kept.into_iter().filter_map(|v| self.shown(v)).collect();
            return Ranked { shown, spilled: 0, judge: Judge::Device, note: None };
        }
        let in_order = |a: &Vetted<W::Term>, b: &Vetted<W::Term>| {
            a.spills().cmp(&b.spills()).then_with(|| a.candidate.cost.ms.total_cmp(&b.candidate.cost.ms))
        };
        if self.request.twins {
            kept.sort_by(in_order);
        } else if let Some((best, _)) = kept.iter().enumerate().min_by(|a, b| in_order(a.1, b.1)) {
            // The best, then in the order of their coming, in which each adds most to those before it.
            kept[..=best].rotate_right(1);
            kept.sort_by_key(Vetted::spills);
        }
        let (mut shown, mut rest) = (Vec::new(), kept.into_iter());
        for vetted in rest.by_ref() {
            shown.extend(self.shown(vetted));
            if shown.len() >= self.request.top {
                break;
            }
        }
        let spilled = rest.filter(Vetted::spills).count();
        shown.sort_by(in_order);
        let loops: Vec<_> = shown.iter().map(|v| (v.candidate.cost.ms, v.of_loop())).collect();
        let (judge, note) = judge_of(&loops);
        if judge == Judge::CompiledLoops {
            let by_loop = |v: &Vetted<W::Term>| v.of_loop().and_then(|l| l.judged_ms).unwrap_or(f64::INFINITY);
            shown.sort_by(|a, b| a.spills().cmp(&b.spills()).then_with(|| by_loop(a).total_cmp(&by_loop(b))));
        }
        Ranked { shown, spilled, judge, note }
    }
}
