//! Making a pack: spaces, the model's choice and random schedules of each program, simulated, and the first of them compiled.
use super::{Candidate, Family, Origin, Pack, Packed, Stored};
use crate::compile::{CompileError, Compiler, Figures};
use crate::device::cuda::reference;
use crate::device::{Ready, Subject};
use crate::execute::Refusal;
use crate::explore::{grows, ExploreError};
use crate::measure::{BestFirst, Random, Strategy};
use crate::progress::{Looks, Part, Progress};
use crate::source::{self, SourceError, Work};
use crate::workload::{Explorable, Workload};
use rayon::prelude::*;
use satune_extract::{Descriptor, Evenly, Query};
use satune_ir::term::tensor::{TensorPlan, WgmmaPlan};
use satune_ir::term::{CoresPlan, Pipe, Schedule, Space};
use satune_rewrites::space::Fuel;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

/// What to pack of each program.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The model's best.
    pub top: usize,
    /// Random ones.
    pub random: usize,
    /// Of each family that the space has, so many random ones, beside those.
    pub per_family: usize,
    /// Random schedules that are looked at for those.
    pub looked_at: usize,
    /// Seed of the random choices.
    pub seed: u64,
    /// Longest time to extract the best of one program.
    pub limit: Duration,
    /// How many of each program are compiled here by the first compiler.
    pub compiled: usize,
    /// And by each other one.
    pub compared: usize,
}

/// Random schedules: how many, by which seed.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    /// How many of each program.
    pub count: usize,
    /// Seed.
    pub seed: u64,
}

/// Something that is assumed of the hardware, and the schedules that rest on it.
#[derive(Clone, Copy)]
pub struct Assumption {
    /// In words.
    pub what: &'static str,
    /// A program that is small, with schedules that rest on it.
    pub program: &'static str,
    /// Which they are.
    pub fits: fn(&Schedule) -> bool,
}

/// A schedule that was chosen, with how.
type Chosen = (Origin, Schedule);

/// Makes a pack. A program of which nothing can be had stands in it with the reason.
pub fn make(
    suite: &str,
    works: &[Work],
    (gpu, descriptor): (&Descriptor, String),
    wanted: &Wanted,
    compilers: &[Compiler],
    progress: &dyn Progress,
) -> Pack {
    let mut programs = Vec::new();
    for work in works {
        if progress.stopped() {
            break;
        }
        let name = format!("packing {} of {}, {}", programs.len() + 1, works.len(), work.workload().name());
        let progress = Part { whole: progress, name };
        programs.push(match work {
            Work::Contraction(problem) => pack(&**problem, gpu, wanted, &progress),
            Work::Streams(problem) => pack(&**problem, gpu, wanted, &progress),
        });
    }
    let mut pack = Pack {
        satune: env!("CARGO_PKG_VERSION").into(),
        suite: suite.into(),
        descriptor,
        programs,
        hash: String::new(),
    };
    compile(&mut pack, gpu, [wanted.compiled, wanted.compared], compilers, progress);
    pack
}

fn pack<W: Explorable>(problem: &W, gpu: &Descriptor, wanted: &Wanted, progress: &dyn Progress) -> Packed {
    let (candidates, missing) = match choose(problem, gpu, wanted, progress) {
        Ok(chosen) => made(problem, gpu, chosen, progress),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let named = source::is_operator(problem.name());
    let script = (!named).then(|| problem.script().into());
    Packed { name: problem.name().into(), script, candidates, missing, reference: Vec::new() }
}

/// A pack with one small kernel for each assumption: of random schedules that rest on it the one that is predicted to be
/// fastest. An assumption without a kernel stands in the pack with the reason.
///
/// # Errors
/// When a program of an assumption is none.
pub fn probes(
    suite: &str,
    assumptions: &[Assumption],
    (gpu, descriptor): (&Descriptor, String),
    draws: Draws,
    compilers: &[Compiler],
    progress: &dyn Progress,
) -> Result<Pack, SourceError> {
    let mut programs = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for assumption in assumptions {
        if !names.contains(&assumption.program) {
            names.push(assumption.program);
        }
    }
    let all = names.len();
    for name in names {
        if progress.stopped() {
            break;
        }
        let progress = Part { whole: progress, name: format!("packing {} of {all}, {name}", programs.len() + 1) };
        let mine: Vec<&Assumption> = assumptions.iter().filter(|a| a.program == name).collect();
        programs.push(match source::load_work(name)? {
            Work::Contraction(problem) => assumed(&*problem, gpu, &mine, draws, &progress),
            Work::Streams(problem) => assumed(&*problem, gpu, &mine, draws, &progress),
        });
    }
    let (satune, suite) = (env!("CARGO_PKG_VERSION").into(), suite.into());
    let mut pack = Pack { satune, suite, descriptor, programs, hash: String::new() };
    compile(&mut pack, gpu, [usize::MAX, 0], compilers, progress);
    Ok(pack)
}

fn assumed<W: Explorable>(
    problem: &W,
    gpu: &Descriptor,
    assumptions: &[&Assumption],
    draws: Draws,
    progress: &dyn Progress,
) -> Packed {
    let go_on = || !progress.stopped();
    let mut missing = Vec::new();
    let mut candidates: Vec<Candidate> = Vec::new();
    match space(problem, gpu, progress) {
        Err(error) => missing.push(error.to_string()),
        Ok(space) => {
            // Of kinds of kernels that have few schedules, too.
            let drawn = Random::of(&space, gpu, draws.seed, &go_on).evenly(Evenly::Choices).next(&[], draws.count);
            for assumption in assumptions {
                let fits = drawn.iter().filter(|c| (assumption.fits)(&c.plan));
                let fresh = fits.filter(|c| candidates.iter().all(|known| known.ready.plan != c.plan));
                match fresh.min_by(|a, b| a.cost.ms.total_cmp(&b.cost.ms)) {
                    None => {
                        let count = drawn.len();
                        missing.push(format!("{}: none of {count} random schedules rests on it", assumption.what));
                    }
                    Some(c) => {
                        let chosen = vec![(Origin::Probe(assumption.what.into()), c.plan.clone())];
                        let (made, refused) = made(problem, gpu, chosen, progress);
                        candidates.extend(made);
                        missing.extend(refused);
                    }
                }
            }
        }
    }
    let missing = (!missing.is_empty()).then(|| missing.join("\n"));
    Packed { name: problem.name().into(), script: None, candidates, missing, reference: Vec::new() }
}

/// Changes of a plan, one decision each, in words.
fn changes(plan: &Schedule) -> Vec<Chosen> {
    let mut list: Vec<(String, Schedule)> = Vec::new();
    match plan {
        Schedule::Wgmma(plan) => {
            let mut with = |what: &str, changed| list.push((what.into(), Schedule::Wgmma(changed)));
            with("release late", WgmmaPlan { eager_release: false, ..plan.clone() });
            with("release early", WgmmaPlan { eager_release: true, ..plan.clone() });
            with("arrive per warpgroup", WgmmaPlan { arrive_per_warp: false, ..plan.clone() });
            with("arrive per warp", WgmmaPlan { arrive_per_warp: true, ..plan.clone() });
            for stages in [2, 3, 4, 5] {
                with(&format!("{stages} stages"), WgmmaPlan { stages, ..plan.clone() });
            }
            for cluster in [[1, 1], [2, 1], [1, 2]] {
                with(&format!("cluster {}x{}", cluster[0], cluster[1]), WgmmaPlan { cluster, ..plan.clone() });
            }
        }
        Schedule::Mma(plan) => {
            let mut with = |what: &str, changed| list.push((what.into(), Schedule::Mma(changed)));
            for stages in [2, 3, 4, 5] {
                let slack = plan.slack.min(stages - 2);
                with(&format!("{stages} stages"), TensorPlan { stages, slack, ..plan.clone() });
            }
            with("single tiles along k", TensorPlan { rolled: true, ..plan.clone() });
            with("tiles along k unrolled", TensorPlan { rolled: false, ..plan.clone() });
            with("registers not bounded", TensorPlan { min_blocks: None, ..plan.clone() });
        }
        Schedule::Cores(plan) => {
            let mut with =
                |what: &str, pipe| list.push((what.into(), Schedule::Cores(CoresPlan { pipe, ..plan.clone() })));
            with("one buffer", Pipe::Plain);
            with("two buffers, through registers", Pipe::Registers);
            for buffers in [2, 3, 4] {
                with(&format!("{buffers} buffers, cp.async"), Pipe::Async(buffers));
            }
        }
        Schedule::Stream(_) => {}
    }
    list.retain(|(_, changed)| changed != plan);
    list.into_iter().map(|(what, changed)| (Origin::Change(what), changed)).collect()
}

/// A pack with the first candidate of each program of another, by each of its compilers, and with one decision changed; what
/// such a change makes impossible is left out.
///
/// # Errors
/// When a program of the pack is none.
pub fn variants(
    suite: &str,
    of: &Pack,
    gpu: &Descriptor,
    compilers: &[Compiler],
    progress: &dyn Progress,
) -> Result<Pack, SourceError> {
    let mut programs = Vec::new();
    for program in &of.programs {
        if progress.stopped() {
            break;
        }
        let progress = Part { whole: progress, name: format!("changing {}", program.name) };
        let Some(first) = program.candidates.first() else { continue };
        let work = program.work()?;
        let chosen = changes(&first.ready.plan);
        if chosen.is_empty() && by_compilers(first).is_empty() {
            continue;
        }
        let (candidates, missing) = made(work.workload(), gpu, chosen, &progress);
        programs.push(Packed { candidates, missing, ..program.clone() });
    }
    let mut pack = Pack { suite: suite.into(), programs, hash: String::new(), ..of.clone() };
    pack.programs.iter_mut().for_each(|p| p.reference.clear());
    compile(&mut pack, gpu, [usize::MAX, 0], compilers, progress);
    for changed in &mut pack.programs {
        let first = of.programs.iter().find(|p| p.name == changed.name).and_then(|p| p.candidates.first());
        let first: Vec<Candidate> =
            first.into_iter().flat_map(|c| [vec![c.clone()], by_compilers(c)].concat()).collect();
        changed.candidates.splice(0..0, first);
    }
    Ok(pack)
}

/// Lowers and simulates what was chosen. Second: what was refused, and why.
fn made(
    problem: &dyn Workload,
    gpu: &Descriptor,
    chosen: Vec<Chosen>,
    progress: &dyn Progress,
) -> (Vec<Candidate>, Option<String>) {
    progress.begin("simulating", chosen.len());
    let one = |(place, plan): Chosen| -> Result<Candidate, String> {
        let cost = problem.predict(&plan, gpu).map_err(|e| format!("{place}: {e}"))?;
        let subject = Subject::of((&plan, &cost), problem, gpu, &|| !progress.stopped());
        progress.advance();
        let subject = subject.map_err(|e| format!("{place}: {e}"))?;
        let ready = Ready::of(problem, &subject);
        Ok(Candidate { place, ready, cost, counts: subject.checked.total, code: Vec::new() })
    };
    let all: Vec<Result<Candidate, String>> = chosen.into_par_iter().map(one).collect();
    let mut refused = Vec::new();
    let candidates = all.into_iter().filter_map(|c| c.map_err(|e| refused.push(e)).ok()).collect();
    (candidates, (!refused.is_empty()).then(|| refused.join("\n")))
}

/// The space of a problem, unless it is told to end.
fn space<W: Explorable>(
    problem: &W,
    gpu: &Descriptor,
    progress: &dyn Progress,
) -> Result<Space<W::Term>, ExploreError> {
    progress.begin("saturating", 0);
    problem.space_while(gpu, Fuel::default(), &|nodes| grows(progress, nodes))
}

/// The model's best, then random ones that are not among them, then the families' members.
fn choose<W: Explorable>(
    problem: &W,
    gpu: &Descriptor,
    wanted: &Wanted,
    progress: &dyn Progress,
) -> Result<Vec<Chosen>, ExploreError> {
    let space = space(problem, gpu, progress)?;
    let looks = Looks::of(progress, "choices looked at");
    let go_on = || looks.go_on();
    progress.begin("extracting", 0);
    let mut chosen: Vec<Chosen> = Vec::new();
    if wanted.top > 0 {
        let query = Query { k: wanted.top, diverse: false, limit: wanted.limit, below_ms: f64::INFINITY };
        let mut best = BestFirst::of(&space, gpu, query, &go_on);
        // Those that are worth measuring together; the model's first stays the first.
        best.spread_out();
        let found = best.take(wanted.top);
        if found.is_empty() {
            return Err(ExploreError::Nothing(problem.name().into()));
        }
        chosen.extend(found.into_iter().enumerate().map(|(i, c)| (Origin::Top(i + 1), c.plan)));
    }
    let mut seen: HashSet<Schedule> = chosen.iter().map(|(_, plan)| plan.clone()).collect();
    let mut random = Random::of(&space, gpu, wanted.seed, &go_on);
    let mut count = 0;
    while count < wanted.random {
        let Some(candidate) = random.next(&[], 1).pop() else { break };
        if seen.insert(candidate.plan.clone()) {
            count += 1;
            chosen.push((Origin::Random(count), candidate.plan));
        }
    }
    if wanted.per_family > 0 {
        let mut random = random.evenly(Evenly::Choices);
        let mut members: BTreeMap<Family, usize> = BTreeMap::new();
        for candidate in random.next(&[], wanted.looked_at) {
            let family = Family::of(&candidate.plan);
            let members = members.entry(family).or_default();
            if *members < wanted.per_family && seen.insert(candidate.plan.clone()) {
                *members += 1;
                chosen.push((Origin::Probe(format!("{} {members}", family.name())), candidate.plan));
            }
        }
    }
    Ok(chosen)
}

/// Compiles the first candidates of each program, and its reference: so many by the first compiler, so many by each other. Those
/// that are measured first are executed, too; one whose text is wrong is taken out, and told.
/// What a compiler refuses is compiled where it is measured, and refused there.
fn compile(pack: &mut Pack, gpu: &Descriptor, first: [usize; 2], compilers: &[Compiler], progress: &dyn Progress) {
    for (number, compiler) in compilers.iter().enumerate() {
        let most = first[number.min(1)];
        if most == 0 {
            continue;
        }
        // Program and candidate, or none for the reference.
        let chosen: Vec<(usize, Option<usize>)> = pack
            .programs
            .iter()
            .enumerate()
            .flat_map(|(p, program)| {
                let references = (number == 0).then_some((p, None));
                (0..program.candidates.len().min(most)).map(move |c| (p, Some(c))).chain(references)
            })
            .collect();
        progress.begin("compiling", chosen.len());
        let go_on = || !progress.stopped();
        let programs = &pack.programs;
        let made: Vec<Option<(Stored, Option<String>)>> = chosen
            .par_iter()
            .map(|(p, c)| {
                let jobs = match c {
                    Some(c) => programs[*p].candidates[*c].ready.jobs(&gpu.arch),
                    None => reference(programs[*p].work().ok()?.workload(), &gpu.arch),
                };
                let all: Result<Vec<_>, CompileError> = match progress.stopped() {
                    true => return None,
                    false => jobs.iter().map(|j| compiler.compile_job(j, &go_on)).collect(),
                };
                progress.advance();
                let all = all.ok()?;
                let nvrtc = all.first()?.nvrtc.clone();
                let wrong = match c.map(|c| &programs[*p].candidates[c]) {
                    Some(candidate) if number == 0 && candidate.place.is_early() => {
                        let ptx = all.iter().map(|made| made.ptx.clone()).collect();
                        wrong(&programs[*p], candidate, ptx, (gpu, compiler), &go_on)
                    }
                    _ => None,
                };
                let figures = all.iter().map(Figures::from).collect();
                let cubins = all.into_iter().map(|c| c.cubin).collect();
                Some((Stored { nvrtc, figures, pieces: Vec::new(), cubins }, wrong))
            })
            .collect();
        let mut out: Vec<(usize, usize, String)> = Vec::new();
        for ((p, c), made) in chosen.into_iter().zip(made) {
            let program = &mut pack.programs[p];
            let Some((stored, wrong)) = made else { continue };
            out.extend(c.zip(wrong).map(|(c, why)| (p, c, why)));
            c.map_or(&mut program.reference, |c| &mut program.candidates[c].code).push(stored);
        }
        // From the last, so that places stay what they are.
        for (p, c, why) in out.into_iter().rev() {
            let program = &mut pack.programs[p];
            let place = program.candidates.remove(c).place;
            let told = format!("{place}: {why}");
            program.missing = Some(program.missing.take().map_or_else(|| told.clone(), |all| format!("{all}\n{told}")));
        }
    }
}

/// What is wrong with a candidate's text when it is executed; a text that cannot be executed was simulated, and its results are
/// compared where it is measured.
fn wrong(
    program: &Packed,
    candidate: &Candidate,
    ptx: Vec<String>,
    (gpu, compiler): (&Descriptor, &Compiler),
    go_on: &(dyn Fn() -> bool + Sync),
) -> Option<String> {
    let work = program.work().ok()?;
    match candidate.ready.execute(work.workload(), gpu, Some(ptx), compiler, go_on) {
        Err(Refusal::Wrong(why)) => Some(why),
        Ok(_) | Err(Refusal::Unable(_)) => None,
    }
}

/// Of candidates that several compilers made code of, one for each of them: the same text.
fn by_compilers(candidate: &Candidate) -> Vec<Candidate> {
    if candidate.code.len() < 2 {
        return Vec::new();
    }
    let by = |stored: &Stored| Candidate {
        place: Origin::Change(format!("compiled by NVRTC {}", stored.nvrtc)),
        code: vec![stored.clone()],
        ..candidate.clone()
    };
    candidate.code.iter().map(by).collect()
}
