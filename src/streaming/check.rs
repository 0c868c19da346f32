//! Every streaming candidate is run in the simulator before anybody sees it.
use super::shrink::shrink;
use crate::lower::program::LowerOptions;
use crate::scheduled::{self, Checked, Reduced, Scheduled, ScheduledError};
use satune_ir::term::stream::{StreamPlan, Streams};
use satune_ir::Program;
use satune_rewrites::space::stream::{streams_of, trace};

/// Kernels of a plan.
///
/// # Errors
/// See [`ScheduledError`].
pub fn scheduled(
    source: &Program,
    plan: &StreamPlan,
    problem: &Streams,
    options: &LowerOptions,
) -> Result<Scheduled, ScheduledError> {
    scheduled::of_trace(source, trace(plan, problem)?, options)
}

/// A plan's kernels on a small problem.
///
/// # Errors
/// A refused call, which is a bug.
pub fn reduced(
    source: &Program,
    plan: &StreamPlan,
    problem: &Streams,
    options: &LowerOptions,
) -> Result<Reduced, String> {
    let (small, plan) = shrink(source, plan, problem);
    let small_problem = streams_of(&small, &plan).map_err(|e| e.to_string())?;
    let made = scheduled(&small, &plan, &small_problem, options).map_err(|e| e.to_string())?;
    Ok(Reduced { source: small, made })
}

/// Runs a plan's kernels on a small problem, and compares with what the source means, as far as its numbers
/// can agree ([`crate::agreement`]), for as long as `go_on` says so. One result per kernel.
///
/// # Errors
/// What went wrong, for people: a refused call, a fault, an unwritten result, or a wrong number.
pub fn check(
    source: &Program,
    plan: &StreamPlan,
    problem: &Streams,
    options: &LowerOptions,
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<Checked>, String> {
    let Reduced { source, made } = reduced(source, plan, problem, options)?;
    scheduled::check_each(&source, &made, crate::reference::SEED, go_on).map_err(|e| e.to_string())
}

/// What all kernels of a module did.
pub fn together(kernels: &[Checked]) -> Checked {
    let mut all = Checked { total: Default::default(), hot_loop: Default::default(), blocks: 0 };
    for k in kernels {
        all.total += k.total;
        all.hot_loop += k.hot_loop;
        all.blocks += k.blocks;
    }
    all
}
