//! A schedule that is named, from wherever it is: `--given`.
use super::{ask, Failure};
use crate::scheduled::GivenSchedule;
use crate::source::Work;
use crate::workload::Workload;
use satune_extract::Descriptor;
use satune_ir::affine::constant;
use satune_ir::{files, tvmscript, BufferId, Program};
use satune_rewrites::replay::replay_strict;
use satune_rewrites::space::on_tensor_cores;
use satune_rewrites::space::Fuel;
use satune_rewrites::{intrinsics, soundness, Trace};
use std::path::Path;
use std::time::Duration;

/// Reads a schedule of a program: a file with one, or words that fix some of it. `(fuel, limit)`: of the space that words are asked about.
///
/// # Errors
/// Where it is none of the program, with the reason.
pub(super) fn read(
    named: &str,
    work: &Work,
    gpu: &Descriptor,
    limits: (Fuel, Duration),
) -> Result<GivenSchedule, Failure> {
    let path = Path::new(named);
    let failed = |e: String| Failure::Input(format!("--given {named}: {e}"));
    if !path.is_file() {
        // A name with a suffix is that of a file which is not there.
        if named.contains('.') && !named.contains([' ', ',', '{']) {
            return Err(failed(
                "there is no such file; schedules are named by one, or in the words of why-not (`satune why-not --help`)".into(),
            ));
        }
        return of_space(named, work, gpu, limits);
    }
    let text = files::read_text(path, ask::LONGEST).map_err(|e| failed(e.to_string()))?;
    if text.lines().any(|line| line.starts_with("@T.prim_func")) {
        let program = tvmscript::parse(&text).map_err(|e| failed(e.to_string()))?;
        return of_program(work.workload(), program).map_err(failed);
    }
    if ask::plan_of(&text).is_ok() {
        return of_space(&text, work, gpu, limits);
    }
    let trace = Trace::read(&text).map_err(|e| failed(format!("it is no plan, and no trace: {e}")))?;
    let program = replayed(work.workload().program(), &trace).map_err(failed)?;
    Ok(GivenSchedule::Program(Box::new(program)))
}

/// The best schedule of the space that keeps to words, or the one that a plan is: whatever else a plan says, a member is legal.
fn of_space(words: &str, work: &Work, gpu: &Descriptor, limits: (Fuel, Duration)) -> Result<GivenSchedule, Failure> {
    Ok(match ask::named(words, work, gpu, limits)? {
        Ok(plan) => GivenSchedule::Plan(Box::new(plan)),
        Err(why) => GivenSchedule::Refused(why),
    })
}

/// A scheduled program that accesses what is explored in an order that it allows. What it computes is compared where it is executed.
fn of_program(problem: &dyn Workload, program: Program) -> Result<GivenSchedule, String> {
    let buffers = |p: &Program| -> Vec<String> {
        let told = |id: &BufferId| {
            let buffer = p.buffer(*id);
            let shape: Vec<String> =
                buffer.shape.iter().map(|e| constant(e).map_or_else(|| "?".into(), |n| n.to_string())).collect();
            format!("{} of {}", buffer.dtype.name(), shape.join("x"))
        };
        p.params.iter().map(told).collect()
    };
    let [own, asked] = [&program, problem.program()].map(buffers);
    if own != asked {
        let [own, asked] = [own, asked].map(|list| list.join(", "));
        return Err(format!("its parameters are {own}; those of {} are {asked}", problem.name()));
    }
    // A product's is compared with that of a plan, call by call.
    if problem.contraction().is_none() || !on_tensor_cores(&program) {
        soundness::check(problem.program(), &intrinsics::described(&program))
            .map_err(|e| format!("it is no schedule of {}: {}", problem.name(), e.detail))?;
    }
    Ok(GivenSchedule::Program(Box::new(program)))
}

/// What a trace makes of a program.
fn replayed(source: &Program, trace: &Trace) -> Result<Program, String> {
    let (results, schedule) = replay_strict(source, &trace.calls).map_err(|e| e.detail.clone())?;
    match results
        .iter()
        .zip(&trace.calls)
        .enumerate()
        .find_map(|(at, (result, call))| Some((at, call, result.as_ref().err()?)))
    {
        None => Ok(schedule.into_program()),
        Some((at, call, error)) => Err(format!("call {} ({}) is refused: {}", at + 1, call.op, error.detail)),
    }
}
