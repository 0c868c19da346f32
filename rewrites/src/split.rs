//! `split`: a loop becomes a nest.
//!
//! before                                after, split(i, [None, 8])
//!   for i in range(30):                   for i_0, i_1 in T.grid(4, 8):
//!       with T.sblock("B"):                   with T.sblock("B"):
//!           vi = T.axis.spatial(30, i)            vi = T.axis.spatial(30, i_0 * 8 + i_1)
//!           B[vi] = A[vi]                         T.where(i_0 * 8 + i_1 < 30)
//!                                                 B[vi] = A[vi]
//!
//! Legal when: 1 at most one factor is left to be inferred; 2 factors are positive; 3 their product covers the extent;
//! 4 the loop has neither annotations nor a thread binding; 5 it starts with 0; 6 predicates may be disabled only where
//! none is needed (TVM accepts more, and runs iterations that do not exist). The kind of the loop is dropped, as in TVM.
use crate::arith::{self, add, and, int, lt, mul};
use crate::loop_checks::{constant_extent, require_plain, require_zero_start};
use crate::schedule::{Result, Schedule};
use crate::tree::{self, LoopId, Node};
use crate::ScheduleError;
use satune_ir::{visit, DType, Expr, For, ForKind, Stmt};
use std::collections::HashMap;

/// How a loop is to be split.
#[derive(Clone, Debug)]
pub struct Plan {
    /// All factors, outermost first.
    pub factors: Vec<i64>,
    /// Whether the nest has more iterations than the loop had.
    pub guarded: bool,
}

/// Conditions 1 to 6.
pub fn legal(s: &Schedule, id: LoopId, factors: &[Option<i64>], disable_predication: bool) -> Result<Plan> {
    let l = s.get_loop(id)?;
    if factors.is_empty() {
        return Err(ScheduleError::value("split needs at least one factor")
            .at_loop(id)
            .remedy("give factors, of which one may be left open"));
    }
    if factors.iter().filter(|f| f.is_none()).count() > 1 {
        let message = "only one factor can be specified as -1 or none";
        return Err(ScheduleError::refused(message, "Only one factor can be specified as -1 or none")
            .at_loop(id)
            .remedy("leave at most one factor open"));
    }
    if let Some((i, Some(f))) = factors.iter().enumerate().find(|(_, f)| f.is_some_and(|f| f <= 0)) {
        let all = "All the constant factors are required to be positive. However,";
        return Err(ScheduleError::refused(
            format!("{all} some constant input factor is zero or negative."),
            format!("{all} the factor at position {i} is {f}"),
        )
        .at_loop(id)
        .remedy("give factors of 1 or more"));
    }
    let overflow =
        || ScheduleError::value("The product of factors is too large").at_loop(id).remedy("give smaller factors");
    let known = factors.iter().flatten().try_fold(1i64, |p, f| p.checked_mul(*f)).ok_or_else(overflow)?;
    // The extent is looked at before the loop's kind, as TVM does.
    let extent = constant_extent(l)?;
    let inferred = factors.iter().any(Option::is_none);
    if !inferred && known < extent {
        let what = "The product of factors is not larger than or equal to the extent of loop";
        return Err(ScheduleError::refused(what, format!("{what} {}", l.var.name))
            .at_loop(id)
            .remedy("leave one factor open, or give factors whose product reaches the extent"));
    }
    require_plain(l)?;
    require_zero_start(l)?;
    let rest = extent.checked_add(known - 1).ok_or_else(overflow)? / known;
    let total = if inferred { known.checked_mul(rest).ok_or_else(overflow)? } else { known };
    if total > extent && disable_predication {
        return Err(ScheduleError::refused(
            "The predicate cannot be disabled because the factors do not divide the extent of the loop",
            format!(
                "Without a predicate the loop {} of extent {extent} would run {total} iterations after the split",
                l.var.name
            ),
        )
        .at_loop(id)
        .remedy("choose factors that divide the extent, or leave the predicate on"));
    }
    let factors = factors.iter().map(|f| f.unwrap_or(rest)).collect();
    Ok(Plan { factors, guarded: total > extent })
}

/// The primitive. `None` is the factor to infer. Returns the new loops, outermost first.
pub fn split(
    s: &mut Schedule,
    id: LoopId,
    factors: &[Option<i64>],
    preserve_unit_iters: bool,
    disable_predication: bool,
) -> Result<Vec<LoopId>> {
    let plan = legal(s, id, factors, disable_predication).map_err(|e| e.within("split"))?;
    apply(s, id, &plan, preserve_unit_iters).map_err(|e| e.within("split"))
}

fn apply(s: &mut Schedule, id: LoopId, plan: &Plan, preserve_unit_iters: bool) -> Result<Vec<LoopId>> {
    let mut around = arith::domains(&s.get_loops(&s.loops_above(Node::Loop(id))?)?);
    let l = s.get_loop(id)?;
    let (name, dtype) = (l.var.name.clone(), l.var.dtype);
    let extent = l.extent.clone();
    let vars: Vec<_> =
        (0..plan.factors.len()).map(|i| s.program_mut().fresh_var(format!("{name}_{i}"), dtype)).collect();
    let value = vars
        .iter()
        .zip(&plan.factors)
        .fold(int(0, dtype), |value, (var, &f)| add(mul(value, int(f, dtype)), Expr::Var(var.clone())));
    let map = HashMap::from([(id, value.clone())]);
    let ids = vars.iter().map(|v| v.id).collect();
    s.replace(Node::Loop(id), |stmt| {
        let Stmt::For(old) = stmt else { return stmt };
        let mut body = visit::map_stmt_exprs(&old.body, &mut |e| visit::substitute(e, &map));
        if plan.guarded {
            let guard = lt(value, extent);
            tree::for_each_child_realize(&mut body, &mut |r| {
                r.predicate = and(std::mem::replace(&mut r.predicate, int(1, DType::Bool)), guard.clone());
            });
        }
        let mut nest = serial_nest(vars.into_iter().zip(plan.factors.iter().copied()), body);
        arith::simplify_bindings(&mut nest, &mut around, preserve_unit_iters);
        nest
    })?;
    Ok(ids)
}

/// Serial loops from 0, outermost first, around a body.
pub(crate) fn serial_nest(loops: impl DoubleEndedIterator<Item = (satune_ir::Var, i64)>, body: Stmt) -> Stmt {
    loops.rev().fold(body, |body, (var, extent)| {
        let dtype = var.dtype;
        Stmt::For(For {
            var,
            min: int(0, dtype),
            extent: int(extent, dtype),
            kind: ForKind::Serial,
            annotations: Default::default(),
            body: Box::new(body),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotate::annotate;
    use crate::bind::bind;
    use crate::testing::{assert_program, copy, func, loops, refusal};
    use satune_ir::Attr;

    const PARAMS: &str = "A: T.Buffer((32,), \"float32\"), B: T.Buffer((32,), \"float32\")";

    #[test]
    fn splits_evenly() {
        let mut s = copy("for i in range(32):");
        let i = loops(&s, "B")[0];
        let new = split(&mut s, i, &[None, Some(2), Some(4)], true, true).unwrap();
        assert_eq!(new, loops(&s, "B"));
        let body = r#"
for i_0, i_1, i_2 in T.grid(4, 2, 4):
    with T.sblock("B"):
        vi = T.axis.spatial(32, i_0 * 8 + i_1 * 4 + i_2)
        B[vi] = A[vi]
"#;
        assert_program(&s, &func(PARAMS, body));
    }

    #[test]
    fn guards_what_does_not_divide() {
        let mut s = copy("for i in range(32):");
        let i = loops(&s, "B")[0];
        split(&mut s, i, &[None, Some(5)], true, false).unwrap();
        let body = r#"
for i_0, i_1 in T.grid(7, 5):
    with T.sblock("B"):
        vi = T.axis.spatial(32, i_0 * 5 + i_1)
        T.where(i_0 * 5 + i_1 < 32)
        B[vi] = A[vi]
"#;
        assert_program(&s, &func(PARAMS, body));
    }

    #[test]
    fn refuses_factors() {
        let mut s = copy("for i in range(32):");
        let i = loops(&s, "B")[0];
        assert_eq!(
            refusal(&mut s, |s| split(s, i, &[None, None], true, false)),
            "ScheduleError: only one factor can be specified as -1 or none"
        );
        assert_eq!(
            refusal(&mut s, |s| split(s, i, &[None, Some(0)], true, false)),
            "ScheduleError: All the constant factors are required to be positive. However, some constant input factor is \
             zero or negative."
        );
        assert_eq!(
            refusal(&mut s, |s| split(s, i, &[Some(3), Some(10)], true, false)),
            "ScheduleError: The product of factors is not larger than or equal to the extent of loop"
        );
        assert_eq!(
            refusal(&mut s, |s| split(s, i, &[None, Some(5)], true, true)),
            "ScheduleError: The predicate cannot be disabled because the factors do not divide the extent of the loop"
        );
        refusal(&mut s, |s| split(s, i, &[None, Some(i64::MAX), Some(i64::MAX)], true, true));
    }

    #[test]
    fn refuses_loops() {
        let message = "ScheduleError: The primitive can't be applied because the loop has annotation or thread binding";
        let mut s = copy("for i in range(32):");
        let i = loops(&s, "B")[0];
        bind(&mut s, i, "threadIdx.x").unwrap();
        assert_eq!(refusal(&mut s, |s| split(s, i, &[None, Some(4)], true, false)), message);
        let mut s = copy("for i in range(32):");
        let i = loops(&s, "B")[0];
        annotate(&mut s, Node::Loop(i), "k", Attr::Int(1)).unwrap();
        assert_eq!(refusal(&mut s, |s| split(s, i, &[None, Some(4)], true, false)), message);
        let mut s = copy("for i in range(1, 31):");
        let i = loops(&s, "B")[0];
        assert_eq!(
            refusal(&mut s, |s| split(s, i, &[None, Some(4)], true, false)),
            "ScheduleError: The primitive only supports loop starting with 0"
        );
    }

    #[test]
    fn the_old_loop_is_gone() {
        let mut s = copy("for i in range(32):");
        let i = loops(&s, "B")[0];
        split(&mut s, i, &[None, Some(4)], true, false).unwrap();
        assert_eq!(
            refusal(&mut s, |s| split(s, i, &[None, Some(4)], true, false)),
            "The loop no longer exists in the IRModule"
        );
    }
}
