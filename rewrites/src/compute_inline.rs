//! `compute_inline`: compute a block's value where it is read.
//!
//! before                                        after, compute_inline(B)
//!   B = T.sblock_alloc_buffer((16, 30))           for i, j in T.grid(16, 30):
//!   for i, j in T.grid(16, 30):                       with T.sblock("C"):
//!       with T.sblock("B"):                               vi, vj = T.axis.remap("SS", [i, j])
//!           vi, vj = T.axis.remap("SS", [i, j])           C[vi, vj] = A[vi, vj] * 2 + 1
//!           B[vi, vj] = A[vi, vj] * 2
//!   for i, j in T.grid(16, 30):
//!       with T.sblock("C"):
//!           vi, vj = T.axis.remap("SS", [i, j])
//!           C[vi, vj] = B[vi, vj] + 1
//!
//! Legal when: 1 the block has no init; 2 it writes one buffer; 3 its scope is a stage pipeline; 4 the buffer is not used
//! outside of the scope; 5 the block is complete; 6 its body stores one value at indices from which the iterators can be
//! told, and the value depends on iterators only; 7 it is not alone in its scope; 8 nobody has a view of the buffer.
use crate::arith::{constant, int, Domains};
use crate::inline_common as common;
use crate::iter_map;
use crate::regions;
use crate::schedule::{Result, Schedule};
use crate::scope;
use crate::ScheduleError;
use satune_ir::{visit, Block, BlockId, BufferId, DType, Expr, Stmt, Var, VarId};
use std::collections::HashMap;

/// What replaces the loads.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The block that allocates the buffer.
    pub scope: BlockId,
    /// The buffer that disappears.
    pub buffer: BufferId,
    /// The variable that stands in `value` for the index of each dimension.
    pub indices: Vec<VarId>,
    /// The value of the element at these indices.
    pub value: Expr,
}

/// Conditions 1 to 8, in TVM's order.
pub fn legal(s: &Schedule, block: BlockId) -> Result<Plan> {
    let b = s.block(block)?;
    common::require_no_init(b)?;
    let buffer = single_write(b)?;
    let scope_id = scope::pipeline_of(s, block)?;
    let graph = s.scope(scope_id)?;
    scope::require_not_output(s, block, &graph)?;
    scope::require_complete(s, block, &graph)?;
    let (indices, value) = value_by_index(s, b)?;
    s.removal_plan(block)?;
    common::require_no_views(s, scope_id, buffer)?;
    Ok(Plan { scope: scope_id, buffer, indices, value })
}

/// The buffer that the block writes. Refused where there are several.
fn single_write(block: &Block) -> Result<BufferId> {
    match block.writes.as_slice() {
        [one] => Ok(one.buffer),
        many => Err(ScheduleError::refused(
            "The block is allowed to write only a single buffer region",
            format!(
                "The block is only allowed to write a single buffer region, but it writes {} region(s): {}",
                many.len(),
                block.name
            ),
        )
        .at_block(block.id)
        .remedy("inline a block that writes one buffer")),
    }
}

const REMEDY: &str =
    "the body should be `B[f(i, j, ...)] = g(i, j, ...)`, with indices from which i, j, ... can be told";

/// The stored value in terms of the indices at which it is stored.
fn value_by_index(s: &Schedule, block: &Block) -> Result<(Vec<VarId>, Expr)> {
    let refused = |why: &str| common::wrong_body(block, why, REMEDY);
    let Stmt::Store { indices, value, .. } = &*block.body else {
        return Err(refused("its body is not a single store"));
    };
    // Such a variable means something else where the value goes. TVM does not ask.
    let loops = s.loops_of(block.id)?;
    if visit::uses_var(value, &|v| loops.contains(&v)) {
        return Err(refused("its value depends on a loop that is no iterator of the block"));
    }
    if let Some(vars) = plain_indices(block, indices) {
        return Ok((vars, value.clone()));
    }
    let domains = regions::iter_domains(block);
    let (vars, iterators) = inverted(s, indices, &domains)
        .ok_or_else(|| refused("its indices are no bijective affine map of its iterators"))?;
    Ok((vars, visit::substitute(value, &iterators)))
}

/// The iterators, where the indices are just these; an iterator of one value may be written as 0.
fn plain_indices(block: &Block, indices: &[Expr]) -> Option<Vec<VarId>> {
    if block.iter_vars.len() != indices.len() {
        return None;
    }
    let plain = block.iter_vars.iter().zip(indices).all(|(iv, e)| match e {
        Expr::Var(v) => *v == iv.var,
        e => constant(e) == Some(0) && constant(&iv.min) == Some(0) && constant(&iv.extent) == Some(1),
    });
    plain.then(|| block.iter_vars.iter().map(|iv| iv.var.id).collect())
}

/// A variable per index, and the iterators in terms of these. The variables are replaced before anybody sees them.
fn inverted(s: &Schedule, indices: &[Expr], domains: &Domains) -> Option<(Vec<VarId>, HashMap<VarId, Expr>)> {
    let next = s.program().next_var;
    let vars: Vec<Var> =
        (next..).zip(indices).map(|(id, _)| Var { id: VarId(id), name: "index".into(), dtype: DType::I32 }).collect();
    let outputs: Vec<Expr> = vars.iter().cloned().map(Expr::Var).collect();
    let map = iter_map::detect(indices, domains, &int(1, DType::Bool), true)?;
    if !map.is_bijective(domains) {
        return None;
    }
    let mut iterators = map.inverse_exprs(&outputs)?;
    for (v, range) in domains {
        if constant(&range.extent) == Some(1) {
            iterators.insert(*v, range.min.clone());
        }
    }
    Some((vars.into_iter().map(|v| v.id).collect(), iterators))
}

/// The primitive.
pub fn compute_inline(s: &mut Schedule, block: BlockId) -> Result<()> {
    let plan = legal(s, block).map_err(|e| e.within("compute_inline"))?;
    apply(s, block, &plan).map_err(|e| e.within("compute_inline"))
}

fn apply(s: &mut Schedule, block: BlockId, plan: &Plan) -> Result<()> {
    s.remove_leaf(block)?;
    let inline = |e: &Expr| {
        visit::replace_loads(e, plan.buffer, &mut |indices| {
            visit::substitute(&plan.value, &plan.indices.iter().copied().zip(indices).collect())
        })
    };
    s.update_block(plan.scope, |b| *b.body = visit::map_stmt_exprs(&b.body, &mut |e| inline(e)))?;
    common::drop_buffer(s, plan.scope, plan.buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_program, block, chain, func, loops, matmul, refusal, schedule};
    use crate::{compute_at::compute_at, split::split};

    const BODY: &str =
        "ScheduleError: The block cannot be inlined because its body pattern does not meet the condition for \
                        inlining";

    #[test]
    fn applies() {
        let mut s = chain();
        let b = block(&s, "B");
        compute_inline(&mut s, b).unwrap();
        assert_program(
            &s,
            &func(
                "A: T.Buffer((16, 30), \"float32\"), C: T.Buffer((16, 30), \"float32\")",
                r#"
for i, j in T.grid(16, 30):
    with T.sblock("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        T.reads(A[vi, vj])
        T.writes(C[vi, vj])
        C[vi, vj] = A[vi, vj] * T.float32(2) + T.float32(1)
"#,
            ),
        );
        assert_eq!(s.block(b).unwrap_err().fast, "The block no longer exists in the IRModule");
    }

    #[test]
    fn removes_only_its_branch() {
        let mut s = chain();
        let (b, i) = (block(&s, "B"), loops(&s, "C")[0]);
        compute_at(&mut s, b, i, false, -1).unwrap();
        compute_inline(&mut s, b).unwrap();
        assert_eq!(loops(&s, "C").len(), 2);
    }

    /// `B[index] = A[vi, vj]`, read by C at `read`.
    fn stored_at(index: &str, dims: &str, read: &str) -> Schedule {
        let body = format!(
            r#"
B = T.sblock_alloc_buffer(({dims}))
for i, j in T.grid(16, 8):
    with T.sblock("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[{index}] = A[vi, vj] * T.float32(2)
for i, j in T.grid(16, 8):
    with T.sblock("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = B[{read}]
"#
        );
        schedule(&func("A: T.Buffer((16, 8), \"float32\"), C: T.Buffer((16, 8), \"float32\")", &body))
    }

    #[test]
    fn inverts_the_indices() {
        for (index, dims, read, value) in [
            ("vi * 8 + vj", "128,", "vi * 8 + vj", "A[(vi * 8 + vj) // 8, (vi * 8 + vj) % 8]"),
            ("15 - vi, vj", "16, 8", "vi, vj", "A[(vi - 15) * -1, vj]"),
            ("vi + 4, vj", "20, 8", "vi + 4, vj", "A[vi + 4 - 4, vj]"),
            ("vi // 4, vi % 4, vj", "4, 4, 8", "vi // 4, vi % 4, vj", "A[vi % 4 + vi // 4 * 4, vj]"),
        ] {
            let mut s = stored_at(index, dims, read);
            let b = block(&s, "B");
            compute_inline(&mut s, b).unwrap();
            let body = format!(
                "for i, j in T.grid(16, 8):\n    with T.sblock(\"C\"):\n        vi, vj = T.axis.remap(\"SS\", [i, j])\n        \
                 T.reads({value})\n        T.writes(C[vi, vj])\n        C[vi, vj] = {value} * T.float32(2)"
            );
            let header = "A: T.Buffer((16, 8), \"float32\"), C: T.Buffer((16, 8), \"float32\")";
            assert_program(&s, &func(header, &body));
        }
    }

    #[test]
    fn refuses_indices_that_do_not_tell_the_iterators() {
        let mut s = stored_at("vi, 0", "16, 8", "vi, 0");
        let b = block(&s, "B");
        assert_eq!(refusal(&mut s, |s| compute_inline(s, b)), BODY);
    }

    #[test]
    fn refuses_reductions_and_outputs() {
        let mut s = matmul();
        let c = block(&s, "C");
        assert_eq!(refusal(&mut s, |s| compute_inline(s, c)), "ScheduleError: The block has init statement");
        let mut s = chain();
        let c = block(&s, "C");
        assert_eq!(refusal(&mut s, |s| compute_inline(s, c)), "ScheduleError: Cannot operate on an output block");
    }

    #[test]
    fn works_under_predicates() {
        let mut s = chain();
        let (b, i) = (block(&s, "B"), loops(&s, "C")[0]);
        split(&mut s, i, &[None, Some(5)], true, false).unwrap();
        compute_inline(&mut s, b).unwrap();
        assert_eq!(loops(&s, "C").len(), 3);
    }

    /// Two blocks under one loop, B with this body.
    fn with_body(body: &str) -> Schedule {
        let body = format!(
            r#"
B = T.sblock_alloc_buffer((16,))
B2 = T.sblock_alloc_buffer((16,))
for i in range(16):
    with T.sblock("B"):
        vi = T.axis.spatial(16, i)
{body}
for i in range(16):
    with T.sblock("C"):
        vi = T.axis.spatial(16, i)
        C[vi] = B[vi] + B2[vi]
"#
        );
        schedule(&func("A: T.Buffer((16,), \"float32\"), C: T.Buffer((16,), \"float32\")", &body))
    }

    #[test]
    fn refuses_several_results_and_other_bodies() {
        let mut s = with_body("        B[vi] = A[vi]\n        B2[vi] = A[vi]");
        let b = block(&s, "B");
        let message = "ScheduleError: The block is allowed to write only a single buffer region";
        assert_eq!(refusal(&mut s, |s| compute_inline(s, b)), message);
        let mut s = with_body("        if A[vi] < T.float32(0):\n            B[vi] = A[vi]");
        let b = block(&s, "B");
        assert_eq!(refusal(&mut s, |s| compute_inline(s, b)), BODY);
    }
}
