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
use crate::linear::{Interval, Linear};
use crate::regions;
use crate::schedule::{Result, Schedule};
use crate::scope;
use crate::tree::Node;
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
    let scope_id = s.scope_of(Node::Block(block))?;
    scope::require_stage_pipeline(s, scope_id)?;
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
        .at_block(block.id)),
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
    let none = Domains::new();
    let at = |v: &Var| Linear::of(&Expr::Var(v.clone()), &none).map(Interval::point);
    let outputs = vars.iter().map(at).collect::<Option<Vec<_>>>()?;
    let map = iter_map::detect(indices, domains, &int(1, DType::Bool), true)?;
    let mut iterators: HashMap<VarId, Expr> =
        map.inverse(&outputs, domains, &none)?.into_iter().map(|(v, i)| (v, i.lo.expr())).collect();
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
        visit::map_expr(e, &mut |e| match e {
            Expr::Load(b, indices) if b == plan.buffer => {
                visit::substitute(&plan.value, &plan.indices.iter().copied().zip(indices).collect())
            }
            other => other,
        })
    };
    s.update_block(plan.scope, |b| *b.body = visit::map_stmt_exprs(&b.body, &mut |e| inline(e)))?;
    common::drop_buffer(s, plan.scope, plan.buffer)
}
