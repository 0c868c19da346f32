//! `cache_index`: compute what a block computes of its iterators beforehand, once for each of their values.
//!
//! before                                      after, cache_index(B, "global", 0)
//!   for i, j in T.grid(80, 80):                 index_var_0 = T.sblock_alloc_buffer((80, 80), "int32")
//!       with T.sblock("B"):                     index_var_1 = T.sblock_alloc_buffer((80,), "int32")
//!           vi, vj = ...                        for ax0, ax1 in T.grid(80, 80):
//!           B[vi, vj] =                             with T.sblock("index_0"):
//!               A[vi // 4 + vj // 4, vj // 2]           v0, v1 = ...
//!                                                       index_var_0[v0, v1] = v0 // 4 + v1 // 4
//!                                               for ax0 in range(80):
//!                                                   with T.sblock("index_1"):
//!                                                       v0 = ...
//!                                                       index_var_1[v0] = v0 // 2
//!                                               for i, j in T.grid(80, 80):
//!                                                   with T.sblock("B"):
//!                                                       vi, vj = ...
//!                                                       B[vi, vj] = A[index_var_0[vi, vj], index_var_1[vj]]
//!
//! Taken are expressions without loads in the values that the block stores, the largest ones that occur often enough: one
//! that occurs less often is taken apart. Equal are expressions that simplify to the same. As in TVM, the block does not
//! declare that it reads the new buffers, and an expression that two stores share is computed for each. Other than TVM's,
//! the buffers are laid out row by row (TVM says `strides=[1]`, however many dimensions there are).
//!
//! Legal when: 1 the threshold is not negative; 2 the block is not the root; 3 there are two such expressions or more
//! (TVM 0.27 fails to make a sequence of fewer); and, what TVM does not ask and gets wrong: 4 each iterator that they use is
//! a loop of its own, from 0 on, over its whole domain; 5 they use nothing else.
use crate::arith::{constant, int, Domains};
use crate::cache_common::point;
use crate::schedule::{BlockFlags, Result, Schedule};
use crate::simplify::simplified;
use crate::tree::{self, Node};
use crate::ScheduleError;
use satune_ir::{fold, interp, visit};
use satune_ir::{Block, BlockId, BlockRealize, Buffer, BufferId, DType, Expr, IterKind, IterVar, Stmt, Var, VarId};
use std::collections::HashMap;

/// What is computed beforehand.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The block in which the target stands.
    pub scope: BlockId,
    /// Before which entry of its body the new nests stand.
    pub at: usize,
    /// The expressions, the largest first, each with the iterators that it uses in the order of their first use.
    pub expressions: Vec<(Expr, Vec<IterVar>)>,
}

/// Conditions 1 to 5.
pub fn legal(s: &Schedule, block: BlockId, threshold: i64) -> Result<Plan> {
    let Ok(threshold) = usize::try_from(threshold) else {
        return Err(ScheduleError::internal(format!("cse_thresh should not be negative, and is {threshold}")));
    };
    let scope = s.scope_of(Node::Block(block))?;
    let realize = s.realize(block)?;
    let mut found: Vec<Expr> = Vec::new();
    for (indices, value) in stores(&realize.block) {
        found.extend(repeated(indices, value, threshold));
        // The order in which TVM has them: those of a later store may be larger.
        found.sort_by_key(|e| std::cmp::Reverse(size(e)));
    }
    let bound = bound_iterators(s, realize)?;
    let mut expressions = Vec::with_capacity(found.len());
    for e in found {
        let iterators = variables(&e)
            .into_iter()
            .map(|v| {
                bound.get(&v.id).cloned().ok_or_else(|| {
                    ScheduleError::internal(format!(
                        "The expression {} uses {}, which is no iterator of block {} that is a loop of its own from 0 on",
                        crate::text::expr(&e),
                        v.name,
                        realize.block.name
                    ))
                    .at_block(block)
                    .remedy("call cache_index before the block's loops are split, fused or partitioned")
                })
            })
            .collect::<Result<_>>()?;
        expressions.push((e, iterators));
    }
    if expressions.len() < 2 {
        return Err(ScheduleError::internal(format!(
            "The block {} has {} expression(s) of its iterators that occur {threshold} times or more; TVM takes no fewer than \
             two",
            realize.block.name,
            expressions.len()
        ))
        .at_block(block)
        .remedy("a lower threshold takes larger expressions that occur less often"));
    }
    let entries = tree::entries(s.body_of(Node::Block(scope))?);
    let at = entries.iter().position(|e| tree::contains(e, Node::Block(block))).unwrap_or(0);
    Ok(Plan { scope, at, expressions })
}

/// The stores of a leaf block, with those of its init; of blocks inside it none.
fn stores(block: &Block) -> Vec<(&[Expr], &Expr)> {
    fn visit<'a>(stmt: &'a Stmt, out: &mut Vec<(&'a [Expr], &'a Expr)>) {
        match stmt {
            Stmt::Store { indices, value, .. } => out.push((indices, value)),
            Stmt::Realize(_) => {}
            other => tree::children(other).into_iter().for_each(|s| visit(s, out)),
        }
    }
    let mut out = Vec::new();
    if let Some(init) = &block.init {
        visit(init, &mut out);
    }
    visit(&block.body, &mut out);
    out
}

/// The iterators that condition 4 admits.
fn bound_iterators(s: &Schedule, realize: &BlockRealize) -> Result<HashMap<VarId, IterVar>> {
    let loops = s.loops_of(realize.block.id)?;
    let mut out = HashMap::new();
    for (iv, value) in realize.block.iter_vars.iter().zip(&realize.iter_values) {
        let Expr::Var(v) = value else { continue };
        let alone = realize.iter_values.iter().filter(|e| visit::uses_var(e, &|x| x == v.id)).count() == 1;
        if !alone || !loops.contains(&v.id) {
            continue;
        }
        let l = s.get_loop(v.id)?;
        let from_zero = constant(&l.min) == Some(0) && constant(&iv.min) == Some(0);
        if from_zero && constant(&l.extent).is_some() && l.extent == iv.extent {
            out.insert(iv.var.id, iv.clone());
        }
    }
    Ok(out)
}

/// An expression, in the form in which it is compared, and how often it occurs.
struct Counted {
    expr: Expr,
    normal: Expr,
    count: usize,
}

fn normal(e: &Expr) -> Expr {
    simplified(e, &Domains::new())
}

/// The expressions in `value` that a store repeats at least `threshold` times, in the order of their occurrence.
fn repeated(indices: &[Expr], value: &Expr, threshold: usize) -> Vec<Expr> {
    let mut all: Vec<Counted> = Vec::new();
    let mut largest = Vec::new();
    [value].into_iter().chain(indices).for_each(|e| candidates(e, &mut largest));
    for e in largest {
        count(&mut all, e, 1);
    }
    // What does not occur often enough is replaced by its parts.
    all.sort_by_key(|c| std::cmp::Reverse(size(&c.expr)));
    let mut at = 0;
    while at < all.len() {
        if all[at].count < threshold {
            let (expr, times) = (all[at].expr.clone(), all[at].count);
            let mut parts = Vec::new();
            operands(&expr).into_iter().for_each(|e| candidates(e, &mut parts));
            for part in parts {
                count(&mut all, part, times);
            }
            // New ones are smaller than what they are part of: they come after it.
            all[at + 1..].sort_by_key(|c| std::cmp::Reverse(size(&c.expr)));
        }
        at += 1;
    }
    let mut out: Vec<Expr> = Vec::new();
    post_order(value, &mut |e| {
        let n = normal(e);
        for c in all.iter().filter(|c| c.count >= threshold && c.normal == n) {
            if !out.contains(&c.expr) {
                out.push(c.expr.clone());
            }
        }
    });
    out
}

fn count(all: &mut Vec<Counted>, e: &Expr, times: usize) {
    let n = normal(e);
    match all.iter_mut().find(|c| c.normal == n) {
        Some(c) => c.count += times,
        None => all.push(Counted { expr: e.clone(), normal: n, count: times }),
    }
}

/// The largest parts of an expression that load nothing and compute something.
fn candidates<'a>(e: &'a Expr, out: &mut Vec<&'a Expr>) {
    if size(e) > 1 && size(&normal(e)) > 1 && is_pure(e) {
        return out.push(e);
    }
    operands(e).into_iter().for_each(|e| candidates(e, out));
}

/// Whether the value depends on variables only.
fn is_pure(e: &Expr) -> bool {
    let mut pure = true;
    visit::walk_expr(e, &mut |e| {
        pure &= match e {
            Expr::Load(..) | Expr::Str(_) => false,
            Expr::Call(name, args, t) => {
                let name = name.rsplit('.').next().unwrap_or(name);
                interp::intrinsic(name, &vec![1.0; args.len()], *t).is_some()
            }
            _ => true,
        }
    });
    pure
}

fn operands(e: &Expr) -> Vec<&Expr> {
    match e {
        Expr::Int(..) | Expr::Float(..) | Expr::Str(_) | Expr::Var(_) => Vec::new(),
        Expr::Binary(_, a, b) => vec![&**a, &**b],
        Expr::Not(a) | Expr::Cast(_, a) => vec![&**a],
        Expr::Select { cond, then, otherwise, .. } => vec![&**cond, &**then, &**otherwise],
        Expr::Load(_, args) | Expr::Call(_, args, _) => args.iter().collect(),
    }
}

/// Number of nodes.
fn size(e: &Expr) -> usize {
    let mut nodes = 0;
    visit::walk_expr(e, &mut |_| nodes += 1);
    nodes
}

fn post_order(e: &Expr, f: &mut dyn FnMut(&Expr)) {
    operands(e).into_iter().for_each(|e| post_order(e, f));
    f(e);
}

/// The variables of an expression in the order of their first occurrence.
fn variables(e: &Expr) -> Vec<Var> {
    let mut out: Vec<Var> = Vec::new();
    post_order(e, &mut |e| match e {
        Expr::Var(v) if !out.contains(v) => out.push(v.clone()),
        _ => {}
    });
    out
}

/// The primitive. Returns the blocks that compute the expressions.
pub fn cache_index(s: &mut Schedule, block: BlockId, memory: &str, threshold: i64) -> Result<Vec<BlockId>> {
    let plan = legal(s, block, threshold).map_err(|e| e.within("cache_index"))?;
    apply(s, block, &plan, memory).map_err(|e| e.within("cache_index"))
}

fn apply(s: &mut Schedule, block: BlockId, plan: &Plan, memory: &str) -> Result<Vec<BlockId>> {
    let (mut ids, mut nests, mut caches) = (Vec::new(), Vec::new(), Vec::new());
    for (k, (e, iterators)) in plan.expressions.iter().enumerate() {
        let buffer = Buffer::plain(
            format!("index_var_{k}"),
            fold::dtype(e, &s.program().buffers),
            iterators.iter().map(|iv| iv.extent.clone()).collect(),
            memory,
        );
        let cache = s.program_mut().add_buffer(buffer);
        let (id, nest) = nest(s, k, cache, e, iterators);
        ids.push(id);
        nests.push(nest);
        caches.push(cache);
    }
    let loads: Vec<(Expr, Expr)> = plan
        .expressions
        .iter()
        .zip(&caches)
        .map(|((e, iterators), cache)| {
            let indices = iterators.iter().map(|iv| Expr::Var(iv.var.clone())).collect();
            (normal(e), Expr::Load(*cache, indices))
        })
        .collect();
    s.update_block(block, |b| {
        for stmt in [b.init.as_mut(), Some(&mut b.body)].into_iter().flatten() {
            replace_in(stmt, &loads);
        }
    })?;
    s.insert(Node::Block(plan.scope), plan.at, nests)?;
    s.update_block(plan.scope, |b| b.alloc_buffers.extend(caches))?;
    let stage_pipeline = s.flags(block).stage_pipeline;
    for &id in &ids {
        s.set_flags(id, BlockFlags { affine_binding: false, region_cover: true, stage_pipeline });
        s.update_affine_binding(id);
    }
    Ok(ids)
}

/// The loops and the block that compute one expression.
fn nest(s: &mut Schedule, k: usize, cache: BufferId, e: &Expr, iterators: &[IterVar]) -> (BlockId, Stmt) {
    let id = s.program_mut().fresh_block();
    let dims: Vec<_> =
        iterators.iter().enumerate().map(|(d, iv)| (format!("ax{d}"), int(0, DType::I32), iv.extent.clone())).collect();
    let nest = s.nest(&dims, |program, loops| {
        let fresh = |(d, iv): (usize, &IterVar)| IterVar {
            var: program.fresh_var(format!("v{d}"), iv.var.dtype),
            kind: IterKind::Spatial,
            ..iv.clone()
        };
        let iter_vars: Vec<IterVar> = iterators.iter().enumerate().map(fresh).collect();
        let indices: Vec<Expr> = iter_vars.iter().map(|iv| Expr::Var(iv.var.clone())).collect();
        let map = iterators.iter().map(|iv| iv.var.id).zip(indices.iter().cloned()).collect();
        let value = visit::substitute(e, &map);
        let block = Block {
            iter_vars,
            writes: vec![point(cache, &indices)],
            ..Block::plain(id, format!("index_{k}"), Stmt::Store { buffer: cache, indices, value })
        };
        Stmt::Realize(Box::new(BlockRealize { iter_values: loops.to_vec(), predicate: int(1, DType::Bool), block }))
    });
    (id, nest)
}

/// Replaces the expressions in the stores of a statement; not in blocks inside it.
fn replace_in(stmt: &mut Stmt, loads: &[(Expr, Expr)]) {
    match stmt {
        Stmt::Store { indices, value, .. } => {
            for e in indices.iter_mut().chain([value]) {
                *e = loads.iter().fold(e.clone(), |e, (normal, load)| replaced(&e, normal, load));
            }
        }
        Stmt::For(l) => replace_in(&mut l.body, loads),
        Stmt::Seq(parts) => parts.iter_mut().for_each(|s| replace_in(s, loads)),
        Stmt::If { then, otherwise, .. } => {
            replace_in(then, loads);
            if let Some(s) = otherwise {
                replace_in(s, loads);
            }
        }
        Stmt::Let { body, .. } => replace_in(body, loads),
        Stmt::Realize(_) | Stmt::Evaluate(_) => {}
    }
}

/// `e` with a load wherever something simplifies to `wanted`.
fn replaced(e: &Expr, wanted: &Expr, load: &Expr) -> Expr {
    if normal(e) == *wanted {
        return load.clone();
    }
    visit::map_children(e, &mut |e| replaced(e, wanted, load))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::split;
    use crate::testing::{assert_program, block, func, loops, refusal, schedule};

    const PARAMS: &str = "A: T.Buffer((40, 40), \"float32\"), B: T.Buffer((80, 80), \"float32\")";

    /// B[vi, vj] = value.
    fn one(value: &str) -> Schedule {
        schedule(&func(
            PARAMS,
            &format!(
                r#"
for i, j in T.grid(80, 80):
    with T.sblock("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = {value}
"#
            ),
        ))
    }

    /// The values of the new blocks, in order.
    fn values(s: &Schedule, ids: &[BlockId]) -> Vec<String> {
        let text = |id: &BlockId| match &*s.block(*id).unwrap().body {
            Stmt::Store { value, .. } => crate::text::expr(value),
            _ => String::new(),
        };
        ids.iter().map(text).collect()
    }

    #[test]
    fn the_picture() {
        let mut s = one("A[vi // 4 + vj // 4, vj // 2]");
        let b = block(&s, "B");
        let ids = cache_index(&mut s, b, "global", 0).unwrap();
        assert_eq!(
            ids.iter().map(|id| s.block(*id).unwrap().name.as_str()).collect::<Vec<_>>(),
            ["index_0", "index_1"]
        );
        assert!(s.flags(ids[0]).affine_binding);
        assert_program(
            &s,
            &func(
                PARAMS,
                r#"
index_var_0 = T.sblock_alloc_buffer((80, 80), "int32")
index_var_1 = T.sblock_alloc_buffer((80,), "int32")
for ax0, ax1 in T.grid(80, 80):
    with T.sblock("index_0"):
        v0, v1 = T.axis.remap("SS", [ax0, ax1])
        index_var_0[v0, v1] = v0 // 4 + v1 // 4
for ax0 in range(80):
    with T.sblock("index_1"):
        v0 = T.axis.spatial(80, ax0)
        index_var_1[v0] = v0 // 2
for i, j in T.grid(80, 80):
    with T.sblock("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        T.reads(A[vi // 4 + vj // 4, vj // 2])
        T.writes(B[vi, vj])
        B[vi, vj] = A[index_var_0[vi, vj], index_var_1[vj]]
"#,
            ),
        );
    }

    #[test]
    fn takes_apart_what_is_rare() {
        let both = "A[vi // 4 + vj // 4, vj // 4] + A[vj // 4 + vi // 4, vj // 2]";
        let mut s = one(both);
        let b = block(&s, "B");
        let ids = cache_index(&mut s, b, "global", 2).unwrap();
        assert_eq!(values(&s, &ids), ["v0 // 4", "v0 // 4"]);
        assert_eq!(loops(&s, "index_0").len(), 1);
        // Sums in another order are others.
        let mut s = one(both);
        let b = block(&s, "B");
        let ids = cache_index(&mut s, b, "global", 1).unwrap();
        assert_eq!(values(&s, &ids), ["v0 // 4 + v1 // 4", "v0 // 4 + v1 // 4", "v0 // 4", "v0 // 2"]);
    }

    #[test]
    fn takes_conditions_and_floats() {
        let mut s = one("T.if_then_else(vi < 3, A[vi // 2, 0], T.exp(T.Cast(\"float32\", vj)))");
        let b = block(&s, "B");
        let ids = cache_index(&mut s, b, "local", 0).unwrap();
        let types: Vec<DType> = s.program().buffers.iter().skip(2).map(|b| b.dtype).collect();
        assert_eq!((ids.len(), types), (3, vec![DType::Bool, DType::I32, DType::F32]));
    }

    #[test]
    fn refuses() {
        let mut s = one("A[vi // 4, vj // 2]");
        let (b, root) = (block(&s, "B"), s.root());
        assert!(refusal(&mut s, |s| cache_index(s, b, "global", -1)).starts_with("cse_thresh should not be negative"));
        assert!(refusal(&mut s, |s| cache_index(s, root, "global", 0)).contains("root block"));
        // Nothing occurs twice.
        assert!(refusal(&mut s, |s| cache_index(s, b, "global", 2)).contains("TVM takes no fewer than two"));
        let i = loops(&s, "B")[0];
        split(&mut s, i, &[None, Some(7)], true, false).unwrap();
        assert!(refusal(&mut s, |s| cache_index(s, b, "global", 0)).contains("a loop of its own from 0 on"));
        let mut s = one("A[vi // 4, 1]");
        let b = block(&s, "B");
        assert!(refusal(&mut s, |s| cache_index(s, b, "global", 0)).contains("has 1 expression(s)"));
        // A loop inside the block.
        let mut s = schedule(&func(
            PARAMS,
            r#"
for i in range(40):
    with T.sblock("B"):
        vi = T.axis.spatial(40, i)
        for k in range(40):
            B[vi, k] = A[vi, k // 2] + A[39 - vi, k // 2]
"#,
        ));
        let b = block(&s, "B");
        assert!(refusal(&mut s, |s| cache_index(s, b, "global", 0)).contains("uses k"));
    }
}
