//! Rule 11: the steps of a reduction.
use crate::schedule::Result;
use crate::ScheduleError;
use satune_ir::{visit, BinOp, Block, Expr, IterKind, Program, Stmt};

/// The first block with an init that does more with its accumulator, in a step, than to combine it with something by one
/// operation: what comes out depends on where the steps begin and end.
pub(super) fn impure(program: &Program) -> Option<&Block> {
    crate::tree::all_realizes(&program.body.block.body).into_iter().map(|r| &r.block).find(|b| {
        let Stmt::Store { buffer, indices, value } = &*b.body else { return false };
        let own = |e: &Expr| visit::loads(e).iter().any(|(b, i)| b == buffer && i == indices);
        b.init.is_some() && b.iter_vars.iter().any(|iv| iv.kind == IterKind::Reduce) && mixed(value, None, &own)
    })
}

/// Whether different operations stand above the accumulator.
fn mixed(e: &Expr, above: Option<BinOp>, own: &dyn Fn(&Expr) -> bool) -> bool {
    match e {
        Expr::Binary(op @ (BinOp::Add | BinOp::Mul | BinOp::Min | BinOp::Max), a, b) => {
            let inner = [a, b].into_iter().filter(|e| own(e)).collect::<Vec<_>>();
            match (&inner[..], above) {
                ([], _) => false,
                (_, Some(other)) if other != *op => true,
                (inner, _) => inner.iter().any(|e| mixed(e, Some(*op), own)),
            }
        }
        _ => false,
    }
}

/// Refuses such steps where the source has none.
pub(super) fn pure(source: &Program, scheduled: &Program) -> Result<()> {
    match impure(scheduled) {
        Some(b) if impure(source).is_none() => Err(ScheduleError::value(format!(
            "{} changes its result in each step by more than one operation: no block of the source does, and the result is \
             another one",
            b.name
        ))
        .at_block(b.id)),
        _ => Ok(()),
    }
}
