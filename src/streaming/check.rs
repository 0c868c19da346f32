//! Every streaming candidate is run in the simulator before anybody sees it.
use super::shrink::shrink;
use crate::lower::program::LowerOptions;
use crate::scheduled::{self, Checked, Scheduled, ScheduledError};
use satune_ir::term::stream::{StreamPlan, Streams};
use satune_ir::{Expr, Program};
use satune_rewrites::space::stream::{streams, trace};

/// Relative difference that a result may have where divisions and functions round: sums over threads come in another order
/// than in the source.
const TOLERANCE: f64 = 2e-5;

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
    scheduled::of_trace(source, trace(plan, problem), options)
}

/// Runs a plan's kernels on a small problem, and compares with what the source means: bit for bit, or, where functions and
/// divisions round, to 2e-5. One result per kernel.
///
/// # Errors
/// What went wrong, for people: a refused call, a fault, an unwritten result, or a wrong number.
pub fn check(
    source: &Program,
    plan: &StreamPlan,
    problem: &Streams,
    options: &LowerOptions,
) -> Result<Vec<Checked>, String> {
    let small = shrink(source, plan, problem);
    let small_problem = streams(&small).map_err(|e| e.to_string())?;
    let made = scheduled(&small, plan, &small_problem, options).map_err(|e| e.to_string())?;
    scheduled::check_within(&small, &made, 0x5eed, tolerance(&small)).map_err(|e| e.to_string())
}

/// 0 where every operation is exact on small integers.
pub fn tolerance(program: &Program) -> f64 {
    let mut rounds = false;
    satune_ir::visit::walk_stmt(&program.body.block.body, &mut |s| {
        if let satune_ir::Stmt::Store { value, .. } = s {
            satune_ir::visit::walk_expr(value, &mut |e| {
                rounds |= matches!(e, Expr::Call(..) | Expr::Binary(satune_ir::BinOp::Div, ..));
            });
        }
    });
    if rounds {
        TOLERANCE
    } else {
        0.0
    }
}
