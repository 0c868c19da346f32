//! `fuse`: a nest becomes one loop.
//!
//! before                                after, fuse(i, j)
//!   for i, j in T.grid(4, 8):             for i_j_fused in range(32):
//!       with T.sblock("B"):                   with T.sblock("B"):
//!           vi, vj = ...("SS", [i, j])            vi = T.axis.spatial(4, i_j_fused // 8)
//!                                                 vj = T.axis.spatial(8, i_j_fused % 8)
//!
//! Legal when, for each loop: 1 it has neither annotations nor a thread binding; 2 it starts with 0; 3 its parent is the
//! loop before it; 4 and it is that loop's only child; 5 its extent uses none of the loops before it. Kinds are dropped.
use crate::arith::{self, floor_div, floor_mod, int};
use crate::loop_checks::{constant_extent, require_only_child, require_plain, require_zero_start};
use crate::schedule::{Result, Schedule};
use crate::split::serial_nest;
use crate::tree::{LoopId, Node};
use crate::ScheduleError;
use satune_ir::{visit, Stmt};
use std::collections::HashMap;

/// Conditions 1 to 5. Returns the extents.
pub fn legal(s: &Schedule, loops: &[LoopId]) -> Result<Vec<i64>> {
    if loops.is_empty() {
        return Err(ScheduleError::value("`fuse` requires at least 1 loop(s)")
            .remedy("give the loops to be fused, outer first"));
    }
    let mut extents = Vec::new();
    for (i, &id) in loops.iter().enumerate() {
        let l = s.get_loop(id)?;
        require_plain(l)?;
        require_zero_start(l)?;
        if let Some(&outer) = i.checked_sub(1).and_then(|i| loops.get(i)) {
            let outer_loop = s.get_loop(outer)?;
            if s.parent(Node::Loop(id))? != Some(Node::Loop(outer)) {
                return Err(ScheduleError::refused(
                    "The outer loop is not the parent of the inner loop",
                    format!(
                        "The loops can't be fused because the outer loop {} is not the parent of the inner loop {}",
                        outer_loop.var.name, l.var.name
                    ),
                )
                .at_loop(outer)
                .at_loop(id)
                .remedy("give loops that stand directly inside one another, outer first; reorder brings them there"));
            }
            require_only_child(s, outer, id)?;
        }
        if visit::uses_var(&l.extent, &|v| loops[..i].contains(&v)) {
            return Err(dependent(
                "A loop's `extent` is dependent on another loop",
                format!("The loop {}'s `extent` is dependent on another loop to be fused", l.var.name),
                id,
            ));
        }
        extents.push(constant_extent(l)?);
    }
    Ok(extents)
}

/// A loop's bounds use another loop that would not be above it any more.
pub(crate) fn dependent(message: &str, detail: String, id: LoopId) -> ScheduleError {
    ScheduleError::refused(message, detail)
        .at_loop(id)
        .remedy("leave loops as they are whose bounds depend on one another")
}

/// The primitive. Returns the fused loop.
pub fn fuse(s: &mut Schedule, loops: &[LoopId], preserve_unit_iters: bool) -> Result<LoopId> {
    let extents = legal(s, loops).map_err(|e| e.within("fuse"))?;
    apply(s, loops, &extents, preserve_unit_iters).map_err(|e| e.within("fuse"))
}

fn apply(s: &mut Schedule, loops: &[LoopId], extents: &[i64], preserve_unit_iters: bool) -> Result<LoopId> {
    let overflow = || ScheduleError::value("The product of the extents is too large").remedy("fuse fewer loops");
    let total = extents.iter().try_fold(1i64, |p, e| p.checked_mul(*e)).ok_or_else(overflow)?;
    let mut around = arith::domains(&s.get_loops(&s.loops_above(Node::Loop(loops[0]))?)?);
    let names: Vec<String> = s.get_loops(loops)?.iter().map(|l| l.var.name.to_string()).collect();
    let dtype = s.get_loop(loops[0])?.var.dtype;
    let innermost = s.get_loop(loops[loops.len() - 1])?;
    let body = (*innermost.body).clone();
    let fused = s.program_mut().fresh_var(format!("{}_fused", names.join("_")), dtype);
    let id = fused.id;
    let mut map = HashMap::new();
    let mut lower = 1i64;
    for (i, (&old, &extent)) in loops.iter().zip(extents).enumerate().rev() {
        let whole = satune_ir::Expr::Var(fused.clone());
        let value = if extent == 1 {
            int(0, dtype)
        } else if i == 0 {
            floor_div(whole, lower, dtype)
        } else {
            floor_div(floor_mod(whole, lower * extent, dtype), lower, dtype)
        };
        map.insert(old, value);
        lower *= extent;
    }
    let body = visit::map_stmt_exprs(&body, &mut |e| visit::substitute(e, &map));
    let mut nest: Stmt = serial_nest(std::iter::once((fused, total)), body);
    arith::simplify_bindings(&mut nest, &mut around, preserve_unit_iters);
    s.replace(Node::Loop(loops[0]), |_| nest)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind::bind;
    use crate::testing::{assert_program, chain, func, joined, loops, matmul, refusal, schedule};

    #[test]
    fn fuses_and_keeps_bindings_simple() {
        let script = |body: &str| func("A: T.Buffer((4, 8), \"float32\"), B: T.Buffer((4, 8), \"float32\")", body);
        let mut s = schedule(&script(
            r#"
for i, j in T.grid(4, 8):
    with T.sblock("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj]
"#,
        ));
        let nest = loops(&s, "B");
        let fused = fuse(&mut s, &nest, true).unwrap();
        assert_eq!(loops(&s, "B"), vec![fused]);
        assert_program(
            &s,
            &script(
                r#"
for i_j_fused in range(32):
    with T.sblock("B"):
        vi = T.axis.spatial(4, i_j_fused // 8)
        vj = T.axis.spatial(8, i_j_fused % 8)
        B[vi, vj] = A[vi, vj]
"#,
            ),
        );
    }

    #[test]
    fn refuses_what_is_no_nest() {
        let mut s = matmul();
        let l = loops(&s, "C");
        let parent = "ScheduleError: The outer loop is not the parent of the inner loop";
        assert_eq!(refusal(&mut s, |s| fuse(s, &[l[1], l[0]], true)), parent);
        assert_eq!(refusal(&mut s, |s| fuse(s, &[l[0], l[2]], true)), parent);
        let mut s = joined();
        let l = loops(&s, "C");
        assert_eq!(
            refusal(&mut s, |s| fuse(s, &l, true)),
            "ScheduleError: The inner loop is not the only child of outer loop"
        );
        let mut s = chain();
        refusal(&mut s, |s| fuse(s, &[], true));
        let l = loops(&s, "B");
        bind(&mut s, l[1], "threadIdx.x").unwrap();
        assert_eq!(
            refusal(&mut s, |s| fuse(s, &l, true)),
            "ScheduleError: The primitive can't be applied because the loop has annotation or thread binding"
        );
    }
}
