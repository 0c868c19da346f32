//! What a candidate must survive before it is shown. It is lowered, run in the simulator, and compiled where there is a
//! compiler; what is refused is told, and the next best takes its place. What the compiler says of registers is put into
//! the model where they are more than the model counted: so a candidate can only fall behind, and what was not looked at
//! is no better than the model says. One that spills registers is shown only where the space has nothing clean.
use super::output::{self, CompiledReport, MeasuredReport};
use super::{trace_hash, Checked, Request};
use crate::compile::{self, CompileError, Compiled, Compiler, Job};
use crate::device::Subject;
use crate::progress::Progress;
use crate::scheduled::Scheduled;
use crate::workload::Explorable;
use rayon::prelude::*;
use satune_extract::Candidate;
use satune_ir::term::Schedule;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Candidates that are looked at beyond those asked for, at most: a space may hold millions that the compiler does not take.
pub const PATIENCE: usize = 64;

/// So many that spill, and the search goes on with one candidate per tile: the next best differ from these in little else than
/// what registers do not depend on.
const ALIKE: usize = 4;

/// A candidate that survived.
pub(super) struct Vetted<T> {
    pub candidate: Candidate<T>,
    pub measured: Option<MeasuredReport>,
    pub made: Scheduled,
    pub checked: Checked,
    /// Its id, and its kernels' texts in launch order.
    pub named: output::Named,
    pub compiled: Option<CompiledReport>,
}

impl<T> Vetted<T> {
    fn spills(&self) -> bool {
        self.compiled.as_ref().is_some_and(|c| c.spill_bytes > 0)
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
    /// Results by text and architecture: candidates often share the kernel that adds parts.
    compilations: HashMap<(String, String), Result<Compiled, CompileError>>,
    /// Survivors, in order of their coming.
    kept: Vec<Vetted<W::Term>>,
    /// Tile and threads of those that were looked at, and spill or were refused by the compiler.
    unfit: HashSet<(String, u32)>,
    looked_at: usize,
    /// Refused by lowering or simulator: bugs of Satune.
    pub bugs: Vec<String>,
    /// Refused by the compiler.
    pub rejected: Vec<String>,
    /// Why something was not compiled.
    pub not_compiled: Option<String>,
    pub check_time: Duration,
    pub compile_time: Duration,
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
            compilations: HashMap::new(),
            kept: Vec::new(),
            unfit: HashSet::new(),
            looked_at: 0,
            bugs: Vec::new(),
            rejected: Vec::new(),
            not_compiled,
            check_time: Duration::ZERO,
            compile_time: Duration::ZERO,
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
        times.get(self.request.top - 1).is_none_or(|last| *last > next_ms)
    }

    /// Whether the search ended though the space has more.
    pub fn gave_up(&self) -> bool {
        self.looked_at >= self.request.top.saturating_add(PATIENCE) && self.clean() < self.request.top
    }

    /// Looks at candidates. When told to end, one that was checked is enough: nothing is shown unchecked.
    pub fn take(&mut self, candidates: Vec<(Candidate<W::Term>, Option<MeasuredReport>)>) {
        self.looked_at += candidates.len();
        self.progress.begin("lowering and simulating", candidates.len());
        let start = Instant::now();
        let any = AtomicBool::new(!self.kept.is_empty());
        let (problem, gpu, progress, subjects) = (self.problem, &self.request.gpu, self.progress, &self.subjects);
        let results: Vec<_> = candidates
            .into_par_iter()
            .filter_map(|(candidate, measured)| {
                let result = match subjects.get(&trace_hash(&candidate.plan, problem)).cloned() {
                    Some(subject) => Ok(subject),
                    None if progress.stopped() && any.load(Ordering::Relaxed) => return None,
                    None => Subject::of(&candidate, problem, gpu),
                };
                any.fetch_or(result.is_ok(), Ordering::Relaxed);
                progress.advance();
                Some((candidate, measured, result))
            })
            .collect();
        self.check_time += start.elapsed();
        let mut new = Vec::new();
        for (candidate, measured, result) in results {
            match result {
                Err(fault) => self.bugs.push(format!("{fault}\n{}", candidate.plan.describe().join("\n"))),
                Ok(Subject { made, checked, .. }) => {
                    let named = output::Named::of(problem, &made, &candidate.plan, gpu);
                    new.push(Vetted { candidate, measured, made, checked, named, compiled: None });
                }
            }
        }
        let start = Instant::now();
        self.compile(&new);
        for vetted in new {
            let plan = &vetted.candidate.plan;
            let like = (plan.summary().tile, plan.threads());
            let judged = self.judged(vetted);
            if judged.as_ref().map_or(true, Vetted::spills) {
                self.unfit.insert(like);
            }
            match judged {
                Ok(vetted) => self.kept.push(vetted),
                Err(refusal) => self.rejected.push(refusal),
            }
        }
        self.compile_time += start.elapsed();
    }

    fn compile(&mut self, new: &[Vetted<W::Term>]) {
        if self.progress.stopped() {
            return;
        }
        let Some(compiler) = &self.compiler else { return };
        let mut jobs: Vec<Job> = Vec::new();
        for vetted in new {
            let arch = output::arch(&vetted.candidate.plan, &self.request.gpu).to_string();
            for (kernel, source) in vetted.made.module.kernels.iter().zip(&vetted.named.texts) {
                let known = self.compilations.contains_key(&(arch.clone(), source.clone()))
                    || jobs.iter().any(|j| j.source == *source && j.arch == arch);
                if !known {
                    jobs.push(Job { name: kernel.name.clone(), source: source.clone(), arch: arch.clone() });
                }
            }
        }
        self.progress.begin("compiling", jobs.len());
        let progress = self.progress;
        let results = compiler.compile_while(&jobs, &|| !progress.stopped());
        self.compilations.extend(jobs.into_iter().map(|job| (job.arch, job.source)).zip(results));
    }

    /// A candidate with what the compiler found; the error is why it is none.
    fn judged(&mut self, mut vetted: Vetted<W::Term>) -> Result<Vetted<W::Term>, String> {
        let plan = vetted.candidate.plan.clone();
        let refused = |why: &str| format!("{why}\n{}", plan.describe().join("\n"));
        let arch = output::arch(&plan, &self.request.gpu).to_string();
        let mut report: Option<CompiledReport> = None;
        for source in &vetted.named.texts {
            match self.compilations.get(&(arch.clone(), source.clone())) {
                None => return Ok(vetted),
                Some(Err(error @ CompileError::Refused { .. }))
                | Some(Err(error @ (CompileError::Timeout { .. } | CompileError::Memory { .. }))) => {
                    return Err(refused(error.to_string().trim()));
                }
                Some(Err(CompileError::Missing)) => {
                    self.compiler = None;
                    self.not_compiled = Some(CompileError::Missing.to_string());
                    return Ok(vetted);
                }
                Some(Err(CompileError::Stopped { .. })) => return Ok(vetted),
                Some(Err(error)) => {
                    self.not_compiled = Some(error.to_string());
                    return Ok(vetted);
                }
                // Of several kernels the first, which a contraction's work is in; what the others spill counts, too.
                Some(Ok(compiled)) => match &mut report {
                    Some(first) => first.spill_bytes += compiled.spill_bytes,
                    None => {
                        report = Some(CompiledReport {
                            arch: compiled.arch.clone(),
                            registers: compiled.registers,
                            spill_bytes: compiled.spill_bytes,
                            static_shared_bytes: compiled.static_shared_bytes,
                            warnings: super::warnings(&compiled.log),
                            hot_loop: compile::hot_loop_mix(&compiled.cubin),
                        });
                    }
                },
            }
        }
        if let Some(found) = &report {
            let cost = self.problem.predict_compiled(&plan, &self.request.gpu, found.registers);
            let cost = cost.map_err(|e| refused(&format!("as compiled it does not fit the GPU: {e}")))?;
            if cost.ms > vetted.candidate.cost.ms {
                vetted.candidate.cost = cost;
            }
        }
        vetted.compiled = report;
        Ok(vetted)
    }

    /// The best of those that survived, and how many are left out because they spill; `measured`: in the order in which they
    /// came, all of them.
    pub fn ranked(&mut self, measured: bool) -> (Vec<Vetted<W::Term>>, usize) {
        let mut kept = std::mem::take(&mut self.kept);
        if measured {
            return (kept, 0);
        }
        kept.sort_by(|a, b| {
            a.spills().cmp(&b.spills()).then_with(|| a.candidate.cost.ms.total_cmp(&b.candidate.cost.ms))
        });
        let spilled = kept.iter().skip(self.request.top).filter(|v| v.spills()).count();
        kept.truncate(self.request.top);
        (kept, spilled)
    }
}
