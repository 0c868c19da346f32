//! `fuse_reduction_epilogue`: what is added to a sum, and the bounds it is cut to, become part of the reduction.
//!
//! before                                              after, fuse_reduction_epilogue(S, D)
//!   S = T.sblock_alloc_buffer((16, 16))                 for i, j, k in T.grid(16, 16, 16):
//!   for i, j, k in T.grid(16, 16, 16):                      with T.sblock("S"):
//!       with T.sblock("S"):                                     vi, vj, vk = ...
//!           vi, vj, vk = ...                                    with T.init():
//!           with T.init():                                          D[vi, vj] = C[vj]
//!               S[vi, vj] = 0                                   D[vi, vj] = D[vi, vj] + A[vi, vk] * B[vk, vj]
//!           S[vi, vj] = S[vi, vj] + A[vi, vk] * B[vk, vj]
//!   for i, j in T.grid(16, 16):
//!       with T.sblock("D"):
//!           vi, vj = ...
//!           D[vi, vj] = S[vi, vj] + C[vj]
//!
//! (The allocation of S stays, as in TVM.)
//!
//! Legal when: 1 the scope is a stage pipeline; 2 the first block writes one buffer, and is a reduction; 3 the second is
//! complete; 4 the first is no output; 5 the second is one store without predicate, which reads the sum once, under
//! additions, and these under minima and maxima; and, what TVM does not ask and then gets wrong: 6 the reduction is a sum
//! from 0, in the type of the result; 7 the second block's iterators are the first one's spatial ones, over the same domain;
//! 8 nothing that the second block reads is written between the two; 9 nobody takes the sum's address, or has a view of it.
//!
//! Where there are bounds (`max(S + C, 0)`), the fused block cuts after each step of the sum, as TVM documents: that is
//! another result than to cut the whole sum. Strict replays refuse it ([`is_linear`]), and `soundness` reports it.
use crate::arith::constant;
use crate::dependencies::touched;
use crate::inline_common as common;
use crate::reducer;
use crate::schedule::{Result, Schedule};
use crate::scope;
use crate::tree::{self, Node};
use crate::ScheduleError;
use satune_ir::{visit, BinOp, Block, BlockId, BufferId, Expr, IterKind, Region, Stmt, VarId};
use std::collections::HashMap;
use std::sync::Arc;

const REMEDY: &str = "the body should be `D[i, ...] = min(max(S[i, ...] + C[...], lower), upper)`, the bounds and the \
                      addend as you like, for a reduction that sums into S from 0";

/// What is fused.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The block around both.
    pub scope: BlockId,
    /// The sum.
    pub sum: BufferId,
    /// What the second block writes.
    pub out: BufferId,
    /// Where, in terms of the first block's iterators.
    pub indices: Vec<Expr>,
    /// The value with which the sum begins.
    pub init: Expr,
    /// The value after a step, in terms of the value before.
    pub update: Expr,
    /// The regions that the second block reads, but for the sum.
    pub reads: Vec<Region>,
    /// The region that it writes.
    pub write: Region,
}

/// Conditions 1 to 9, in TVM's order.
pub fn legal(s: &Schedule, reduction: BlockId, epilogue: BlockId) -> Result<Plan> {
    let scope_id = scope::pipeline_of(s, epilogue)?;
    let graph = s.scope(scope_id)?;
    let first = s.block(reduction)?;
    let sum = single_write(first)?;
    scope::require_reduction(s, reduction, &graph)?;
    scope::require_complete(s, epilogue, &graph)?;
    scope::require_not_output(s, reduction, &graph)?;
    let realize = s.realize(epilogue)?;
    let second = &realize.block;
    let refused = |why: &str| common::wrong_body(second, why, REMEDY);
    if !matches!(realize.predicate, Expr::Int(1, _)) {
        return Err(refused("it has a predicate"));
    }
    let Stmt::Store { buffer: out, indices, value } = &*second.body else {
        return Err(refused("its body is not a single store"));
    };
    let loads: Vec<Vec<Expr>> =
        indices.iter().chain([value]).flat_map(visit::loads).filter_map(|(b, i)| (b == sum).then_some(i)).collect();
    let [read] = &loads[..] else { return Err(refused("it does not read the sum exactly once")) };
    if !first.iter_vars.iter().any(|iv| iv.kind == IterKind::Reduce) {
        return Err(refused("the first block does not reduce"));
    }
    let spatial = |b: &Block| b.iter_vars.iter().filter(|iv| iv.kind == IterKind::Spatial).count();
    if spatial(first) != spatial(second) {
        return Err(ScheduleError::value(
            "The number of data parallel iter vars must be the same in the reduction and epilogue blocks.",
        )
        .at_block(reduction)
        .at_block(epilogue)
        .remedy(REMEDY));
    }
    let program = s.program();
    let reduced = reducer::of(program, first).map_err(|_| refused("the reduction is no sum"))?;
    let (Some(Expr::Int(0, _) | Expr::Float(0, _)), [operand]) = (reduced.identities.first(), &reduced.operands[..])
    else {
        return Err(refused("the reduction does not begin with 0"));
    };
    if program.buffer(*out).dtype != program.buffer(sum).dtype {
        return Err(refused("it changes the type of the sum"));
    }
    let map = iterators(first, second, &reduced.indices, read)
        .ok_or_else(|| refused("its iterators are not those of the reduction, over the same domain"))?;
    if let Some(writer) = between(s, scope_id, reduction, epilogue)? {
        return Err(refused("what it reads is written after the reduction").at_block(writer));
    }
    common::require_no_views(s, scope_id, sum)?;
    let here = |e: &Expr| visit::substitute(e, &map);
    let accumulator = Expr::Load(*out, indices.iter().map(here).collect());
    let step = reduced.combined(std::slice::from_ref(&accumulator), std::slice::from_ref(operand));
    // Another reducer than a sum may begin with 0, too.
    let Some(update @ Expr::Binary(BinOp::Add, ..)) = step.first() else {
        return Err(refused("the reduction is no sum"));
    };
    let zero = reduced.identities[0].clone();
    let (init, update) = parts(value, sum, &zero, update)
        .ok_or_else(|| refused("it does more with the sum than to add to it and to cut it to bounds"))?;
    let bound = |r: &Region| visit::map_region(r, &mut |e| here(e));
    let write = second.writes.iter().find(|w| w.buffer == *out).map(bound);
    Ok(Plan {
        scope: scope_id,
        sum,
        out: *out,
        indices: indices.iter().map(here).collect(),
        init: here(&init),
        update: here(&update),
        reads: second.reads.iter().filter(|r| r.buffer != sum).map(bound).collect(),
        write: write.ok_or_else(|| refused("it does not declare what it writes"))?,
    })
}

/// The one buffer that a block writes.
fn single_write(block: &Block) -> Result<BufferId> {
    let mut all: Vec<BufferId> = block.writes.iter().map(|w| w.buffer).collect();
    all.dedup();
    match all[..] {
        [one] => Ok(one),
        _ => Err(ScheduleError::refused(
            "The block is allowed to write only a single buffer region",
            format!(
                "The block is only allowed to write a single buffer region, but it writes {} region(s): {}",
                all.len(),
                block.name
            ),
        )
        .at_block(block.id)
        .remedy("split the block")),
    }
}

/// The second block's iterators in terms of the first one's: both index the sum, dimension by dimension. Others have one
/// value.
fn iterators(first: &Block, second: &Block, made: &[Expr], read: &[Expr]) -> Option<HashMap<VarId, Expr>> {
    let of = |b: &Block, e: &Expr| match e {
        Expr::Var(v) => b.iter_vars.iter().find(|iv| iv.var == *v).cloned(),
        _ => None,
    };
    let mut map = HashMap::new();
    let mut used = Vec::new();
    for (made, read) in made.iter().zip(read) {
        match (of(first, made), of(second, read)) {
            (Some(m), Some(r)) if m.min == r.min && m.extent == r.extent && !used.contains(&m.var) => {
                if map.insert(r.var.id, made.clone()).is_some() {
                    return None;
                }
                used.push(m.var);
            }
            _ if constant(made).is_some() && made == read => {}
            _ => return None,
        }
    }
    let single = |e: &Expr| constant(e) == Some(1);
    let rest: Vec<_> = second.iter_vars.iter().filter(|iv| !map.contains_key(&iv.var.id)).collect();
    if !rest.iter().all(|iv| single(&iv.extent)) {
        return None;
    }
    map.extend(rest.into_iter().map(|iv| (iv.var.id, iv.min.clone())));
    let left = |iv: &&satune_ir::IterVar| iv.kind == IterKind::Spatial && !used.contains(&iv.var);
    first.iter_vars.iter().filter(left).all(|iv| single(&iv.extent)).then_some(map)
}

/// A block between both that writes what the second one reads.
fn between(s: &Schedule, scope: BlockId, first: BlockId, second: BlockId) -> Result<Option<BlockId>> {
    let reads: Vec<BufferId> = s.block(second)?.reads.iter().map(|r| r.buffer).collect();
    let children = tree::child_realizes(s.body_of(Node::Block(scope))?);
    let after = children.iter().skip_while(|r| r.block.id != first).skip(1).take_while(|r| r.block.id != second);
    let mut writers = after.filter(|r| touched(&r.block).1.iter().any(|w| reads.contains(w)));
    Ok(writers.next().map(|r| r.block.id))
}

/// A value over a sum, taken apart: with what the sum begins (`zero` in its place), and what a step makes of it (`step` in
/// its place, what is added left out). None where it is no addition under bounds.
fn parts(value: &Expr, sum: BufferId, zero: &Expr, step: &Expr) -> Option<(Expr, Expr)> {
    let reads = |e: &Expr| visit::loads(e).iter().any(|(b, _)| *b == sum);
    match value {
        Expr::Binary(op @ (BinOp::Min | BinOp::Max), a, b) => {
            let left = reads(a);
            let (inner, bound) = if left { (a, b) } else { (b, a) };
            let (init, update) = parts(inner, sum, zero, step)?;
            let join = |x: Expr| {
                let (x, y) = if left { (x, (**bound).clone()) } else { ((**bound).clone(), x) };
                cut(*op, x, y)
            };
            Some((join(init), join(update)))
        }
        Expr::Binary(BinOp::Add, a, b) => {
            let (inner, addend) = if reads(a) { (a, b) } else { (b, a) };
            let init = match parts(inner, sum, zero, step)? {
                (init, update) if update == *step => init,
                // An addition around bounds.
                _ => return None,
            };
            let init = if init == *zero { (**addend).clone() } else { fold_add(reads(a), init, addend) };
            Some((init, step.clone()))
        }
        Expr::Load(b, _) if *b == sum => Some((zero.clone(), step.clone())),
        _ => None,
    }
}

/// The smaller or greater one, where both are constants.
fn cut(op: BinOp, x: Expr, y: Expr) -> Expr {
    let first = match (&x, &y) {
        (Expr::Int(a, _), Expr::Int(b, _)) => Some((a <= b) == (op == BinOp::Min)),
        (Expr::Float(a, _), Expr::Float(b, _)) => {
            f64::from_bits(*a).partial_cmp(&f64::from_bits(*b)).map(|order| order.is_le() == (op == BinOp::Min))
        }
        _ => None,
    };
    match first {
        Some(true) => x,
        Some(false) => y,
        None => Expr::Binary(op, Arc::new(x), Arc::new(y)),
    }
}

fn fold_add(first: bool, init: Expr, addend: &Arc<Expr>) -> Expr {
    let (x, y) = if first { (Arc::new(init), addend.clone()) } else { (addend.clone(), Arc::new(init)) };
    Expr::Binary(BinOp::Add, x, y)
}

/// Whether the fused reduction computes what the two blocks do, but for rounding: there are no bounds.
pub fn is_linear(plan: &Plan) -> bool {
    !matches!(plan.update, Expr::Binary(BinOp::Min | BinOp::Max, ..))
}

/// The primitive. The reduction's block stays, the other one is gone; the sum's allocation stays, as in TVM.
pub fn fuse_reduction_epilogue(s: &mut Schedule, reduction: BlockId, epilogue: BlockId) -> Result<()> {
    let plan = legal(s, reduction, epilogue).map_err(|e| e.within("fuse_reduction_epilogue"))?;
    apply(s, reduction, epilogue, plan).map_err(|e| e.within("fuse_reduction_epilogue"))
}

fn apply(s: &mut Schedule, reduction: BlockId, epilogue: BlockId, plan: Plan) -> Result<()> {
    s.remove_leaf(epilogue)?;
    let store = |value: &Expr| Stmt::Store { buffer: plan.out, indices: plan.indices.clone(), value: value.clone() };
    s.update_block(reduction, |b| {
        b.init = Some(Box::new(store(&plan.init)));
        *b.body = store(&plan.update);
        let own = std::mem::take(&mut b.reads);
        b.reads = plan.reads.clone();
        b.reads.extend(own.into_iter().filter(|r| r.buffer != plan.sum && !plan.reads.contains(r)));
        b.writes = vec![plan.write.clone()];
    })?;
    s.recompute_flags(plan.scope);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soundness;
    use crate::testing::{assert_program, block, func, refusal, schedule};

    const PARAMS: &str =
        "A: T.Buffer((8, 4), \"float32\"), B: T.Buffer((4, 8), \"float32\"), C: T.Buffer((8,), \"float32\"), \
                          D: T.Buffer((8, 8), \"float32\")";
    const BODY: &str =
        "ScheduleError: The block cannot be inlined because its body pattern does not meet the condition for inlining";

    fn product(sum: &str, init: &str, step: &str) -> String {
        format!(
            r#"
for i, j, k in T.grid(8, 8, 4):
    with T.sblock("S"):
        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
        with T.init():
            {sum}[vi, vj] = {init}
        {sum}[vi, vj] = {step}
"#
        )
    }

    fn source(value: &str) -> Schedule {
        let sum = product("S", "T.float32(0)", "S[vi, vj] + A[vi, vk] * B[vk, vj]");
        let body = format!(
            "S = T.sblock_alloc_buffer((8, 8))\n{sum}\nfor i, j in T.grid(8, 8):\n    with T.sblock(\"D\"):\n        vi, vj = \
             T.axis.remap(\"SS\", [i, j])\n        D[vi, vj] = {value}\n"
        );
        schedule(&func(PARAMS, &body))
    }

    #[test]
    fn adds_and_cuts() {
        for (value, init, step, linear) in [
            ("S[vi, vj] + C[vj]", "C[vj]", "D[vi, vj] + A[vi, vk] * B[vk, vj]", true),
            ("C[vj] + S[vi, vj]", "C[vj]", "D[vi, vj] + A[vi, vk] * B[vk, vj]", true),
            ("S[vi, vj] + C[vj] + C[vi]", "C[vj] + C[vi]", "D[vi, vj] + A[vi, vk] * B[vk, vj]", true),
            (
                "T.max(S[vi, vj] + C[vj], T.float32(0))",
                "T.max(C[vj], T.float32(0))",
                "T.max(D[vi, vj] + A[vi, vk] * B[vk, vj], T.float32(0))",
                false,
            ),
            (
                "T.min(T.float32(5), T.max(S[vi, vj], T.float32(-5)))",
                "T.float32(0)",
                "T.min(T.float32(5), T.max(D[vi, vj] + A[vi, vk] * B[vk, vj], T.float32(-5)))",
                false,
            ),
        ] {
            let mut s = source(value);
            let (before, first, second) = (s.program().clone(), block(&s, "S"), block(&s, "D"));
            assert_eq!(is_linear(&legal(&s, first, second).unwrap()), linear);
            fuse_reduction_epilogue(&mut s, first, second).unwrap();
            assert_eq!(soundness::check(&before, s.program()).is_ok(), linear, "{value}");
            let reads = if init.contains('C') && !init.contains("C[vi]") { "C[vj], A[vi, vk], B[vk, vj]" } else { "" };
            if reads.is_empty() {
                continue;
            }
            let fused = product("D", init, step).replace(
                "        with T.init",
                &format!("        T.reads({reads})\n        T.writes(D[vi, vj])\n        with T.init"),
            );
            assert_program(&s, &func(PARAMS, &format!("S = T.sblock_alloc_buffer((8, 8))\n{fused}")));
        }
    }

    #[test]
    fn refuses_other_values() {
        for value in [
            "S[vi, vj] * T.float32(2) + C[vj]",
            "S[vi, vj] + S[vi, vj]",
            "S[vi, vj] - C[vj]",
            "T.exp(S[vi, vj])",
            "T.max(S[vi, vj], T.float32(0)) + C[vj]",
            "S[vi, vi] + C[vj]",
            "C[vj]",
        ] {
            let mut s = source(value);
            let (first, second) = (block(&s, "S"), block(&s, "D"));
            assert_eq!(refusal(&mut s, |s| fuse_reduction_epilogue(s, first, second)), BODY, "{value}");
        }
        let mut s = source("S[vj, vi] + C[vj]");
        let (before, first, second) = (s.program().clone(), block(&s, "S"), block(&s, "D"));
        fuse_reduction_epilogue(&mut s, first, second).unwrap();
        soundness::check(&before, s.program()).unwrap();
        let mut s = source("S[vi, vj] + C[vj]");
        assert_eq!(
            refusal(&mut s, |s| fuse_reduction_epilogue(s, second, first)),
            "ScheduleError: Not a reduction block"
        );
    }
}
