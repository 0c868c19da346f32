//! `decompose_padding`: a block that writes values or padding becomes one that writes padding everywhere, and one that
//! writes the values over it.
//!
//! before                                after, decompose_padding(B, i)
//!   for i in range(20):                   for i in range(20):
//!       with T.sblock("B"):                   with T.sblock("B_pad_const"):
//!           vi = T.axis.spatial(20, i)            vi = T.axis.spatial(20, i)
//!           B[vi] = T.if_then_else(               B[vi] = T.float32(0)
//!               2 <= vi and vi < 18,      for i in range(16):
//!               A[vi - 2],                    with T.sblock("B"):
//!               T.float32(0))                     vi = T.axis.spatial(16, i)
//!                                                 B[vi + 2] = A[vi]
//!
//! Legal when: 1 the block is complete; 2 the loop is above it; 3 its body stores a value where a condition holds and a
//! constant elsewhere; 4 the condition bounds each iterator from below or above, and leaves something out; 5 iterators are
//! loops with offsets, or mixed radix, with unit stride. A consumer below a loop that only the values stay under is no
//! longer covered there.
use crate::arith::{self, add, constant, int, lt, Domains};
use crate::linear::{all, conjuncts, Linear};
use crate::schedule::{BlockFlags, Result, Schedule};
use crate::scope;
use crate::simplify::simplified;
use crate::tree::{LoopId, Node};
use crate::ScheduleError;
use satune_ir::{
    visit, BinOp, Block, BlockId, BlockRealize, BufferId, DType, Expr, For, ForKind, IterKind, IterVar, Range, Stmt,
    VarId,
};
use std::collections::HashMap;

/// The parts of a padding block.
#[derive(Clone, Debug)]
pub struct Plan {
    /// First index and number of values of each iterator inside the bounds.
    pub bounds: Vec<(i64, i64)>,
    /// What is left of the condition, in terms of loops.
    pub guard: Expr,
    buffer: BufferId,
    indices: Vec<Expr>,
    value: Expr,
    padding: Expr,
}

fn no_pattern(s: &Schedule, block: BlockId, reason: &str) -> ScheduleError {
    let name = s.block(block).map_or_else(|_| String::new(), |b| b.name.clone());
    ScheduleError::refused(
        format!("decompose_padding expect the block to match padding pattern\n  {reason}"),
        format!("ScheduleError: decompose_padding expect the block {name} to match padding pattern\n  {reason}"),
    )
    .at_block(block)
    .remedy("the body should be `B[..] = T.if_then_else(bounds of iterators, value, constant)`")
}

/// Conditions 1 to 5.
pub fn legal(s: &Schedule, block: BlockId, target: LoopId) -> Result<Plan> {
    let graph = s.scope(s.scope_of(Node::Block(block))?)?;
    scope::require_complete(s, block, &graph)?;
    let loops = s.loops_of(block)?;
    let realize = s.realize(block)?;
    if !loops.contains(&target) {
        let l = s.get_loop(target)?;
        return Err(ScheduleError::refused(
            "decompose_padding expect the loop to be an ancestor of block",
            format!(
                "The input loop {} of decompose_padding is required to be an ancestor of block {}.",
                l.var.name, realize.block.name
            ),
        )
        .at_block(block)
        .at_loop(target)
        .remedy("give a loop around the block"));
    }
    let fail = |reason: &str| Err(no_pattern(s, block, reason));
    let Stmt::Store { buffer, indices, value } = &*realize.block.body else {
        return fail("Block body expect a BufferStore to the write buffer");
    };
    let Expr::Select { lazy: true, cond, then, otherwise } = value else {
        return fail("Value of BufferStore expect to be constrained by a padding predicate");
    };
    if !matches!(**otherwise, Expr::Int(..) | Expr::Float(..)) {
        return fail("Pad value should be constant");
    }
    if realize.block.init.is_some()
        || !realize.block.alloc_buffers.is_empty()
        || !realize.block.match_buffers.is_empty()
    {
        return fail("Block body expect a BufferStore to the write buffer");
    }
    let domains = arith::domains(&s.get_loops(&loops)?);
    let bindings = crate::regions::bindings(realize);
    let padding: Vec<Expr> = conjuncts(cond).iter().map(|e| visit::substitute(e, &bindings)).collect();
    let guards = conjuncts(&realize.predicate);
    let real = |e: &Expr| !always(e, &domains);
    // Those of the padding come first; only they must all be bounds of iterators.
    let mut clauses: Vec<Expr> = padding.into_iter().filter(real).collect();
    let from_padding = clauses.len();
    clauses.extend(guards.into_iter().filter(real));
    if clauses.is_empty() {
        return fail("The in-bound predicate is trivial");
    }
    let mut bounds = Vec::new();
    let mut used = vec![false; clauses.len()];
    let values: Option<Vec<Linear>> = realize.iter_values.iter().map(|e| Linear::of(e, &domains)).collect();
    let Some(values) = values else { return fail("Block iters are not independent wrt padding condition") };
    for own in &values {
        let (Some(mut lo), Some(mut hi)) = own.ends(&domains) else {
            return fail("Block iters are not independent wrt padding condition");
        };
        for (clause, used) in clauses.iter().zip(&mut used) {
            if let Some((least, most)) = bound_of(clause, own, &domains) {
                lo = least.map_or(lo, |v| lo.max(v));
                hi = most.map_or(hi, |v| hi.min(v));
                *used = true;
            }
        }
        if lo > hi {
            return fail("Block iters are not independent wrt padding condition");
        }
        bounds.push((lo, hi - lo + 1));
    }
    // Tiles of which neighbours overlap are independent inside of one, where loops further out stay what they are.
    let from = loops.iter().position(|l| *l == target).unwrap_or(0);
    let inner = arith::domains(&s.get_loops(&loops[from..])?);
    let detect = |domains: &Domains, guard: &Expr| crate::iter_map::detect(&realize.iter_values, domains, guard, false);
    let map = detect(&domains, &realize.predicate).or_else(|| detect(&inner, &int(1, DType::Bool)));
    let Some(map) = map else {
        return fail("Block iters are not independent wrt padding condition");
    };
    if used[..from_padding].contains(&false) {
        return fail("Block iters are not independent wrt padding condition");
    }
    if !map.has_unit_strides() {
        return fail("Strided iteration is not supported");
    }
    Ok(Plan {
        bounds,
        guard: all(clauses),
        buffer: *buffer,
        indices: indices.clone(),
        value: (**then).clone(),
        padding: (**otherwise).clone(),
    })
}

/// `(left, right)` of `left <= right`, as linear forms.
fn sides(clause: &Expr, domains: &Domains) -> Option<(Linear, Linear)> {
    let Expr::Binary(op, a, b) = clause else { return None };
    let (a, b) = (Linear::of(a, domains)?, Linear::of(b, domains)?);
    match op {
        BinOp::Le => Some((a, b)),
        BinOp::Lt => Some((a.shifted(1)?, b)),
        BinOp::Ge => Some((b, a)),
        BinOp::Gt => Some((b.shifted(1)?, a)),
        _ => None,
    }
}

/// Whether a clause holds for all iterations.
fn always(clause: &Expr, domains: &Domains) -> bool {
    *clause == int(1, DType::Bool) || sides(clause, domains).is_some_and(|(a, b)| a.at_most(&b, domains))
}

/// What a clause says of a value: the least and the most that it may be.
fn bound_of(clause: &Expr, value: &Linear, domains: &Domains) -> Option<(Option<i64>, Option<i64>)> {
    if value.terms().is_empty() {
        return None;
    }
    let (a, b) = sides(clause, domains)?;
    // `b - a >= 0`: with `b - a = value + c`, the value is at least `-c`; with `c - value`, at most `c`.
    let slack = b.plus(&a, -1)?;
    let above = slack.plus(value, -1)?;
    if let Some(c) = above.as_constant() {
        return Some((Some(c.checked_neg()?), None));
    }
    let below = slack.plus(value, 1)?;
    below.as_constant().map(|c| (None, Some(c)))
}

/// The primitive. Returns the block that writes the padding.
pub fn decompose_padding(s: &mut Schedule, block: BlockId, target: LoopId) -> Result<BlockId> {
    let plan = legal(s, block, target).map_err(|e| e.within("decompose_padding"))?;
    apply(s, block, target, &plan).map_err(|e| e.within("decompose_padding"))
}

fn apply(s: &mut Schedule, block: BlockId, target: LoopId, plan: &Plan) -> Result<BlockId> {
    let scope = s.scope_of(Node::Block(block))?;
    let consumers = s.scope(scope)?.consumers(block);
    let loops = s.loops_of(block)?;
    let realize = s.realize(block)?.clone();
    let from = loops.iter().position(|l| *l == target).unwrap_or(0);
    let (id, fill) = fill(s, &realize, &loops[from..], plan)?;
    // Loops that hold nothing else than the block are cut to the bounds, up to the target.
    let mut top = loops.len();
    while top > from && s.child_blocks(Node::Loop(loops[top - 1]))? == [block] && is_chain(s, loops[top - 1]) {
        top -= 1;
    }
    let cut = values(s, &realize, &loops[top..], plan)?;
    match loops.get(top) {
        Some(l) => s.replace(Node::Loop(*l), |_| cut)?,
        None => s.replace(Node::Block(block), |_| cut)?,
    }
    s.replace(Node::Loop(target), |l| Stmt::seq(vec![fill, l]))?;
    s.set_flags(id, BlockFlags { affine_binding: true, region_cover: true, stage_pipeline: true });
    let path = s.path(Node::Block(id))?;
    for c in consumers {
        let at = s.lowest_common_ancestor(Node::Block(c), Node::Block(block))?;
        if !path.contains(&at) {
            let flags = s.flags(c);
            s.set_flags(c, BlockFlags { region_cover: false, ..flags });
            let flags = s.flags(scope);
            s.set_flags(scope, BlockFlags { stage_pipeline: false, ..flags });
        }
    }
    Ok(id)
}

/// Whether the body of a loop is a loop or a block.
fn is_chain(s: &Schedule, id: LoopId) -> bool {
    s.get_loop(id).is_ok_and(|l| matches!(&*l.body, Stmt::For(_) | Stmt::Realize(_)))
}

/// The nest that writes the padding.
fn fill(s: &mut Schedule, realize: &BlockRealize, loops: &[LoopId], plan: &Plan) -> Result<(BlockId, Stmt)> {
    let mut map: HashMap<VarId, Expr> = HashMap::new();
    let mut iter_vars = Vec::new();
    for iv in &realize.block.iter_vars {
        let var = s.program_mut().fresh_var(iv.var.name.clone(), iv.var.dtype);
        map.insert(iv.var.id, Expr::Var(var.clone()));
        iter_vars.push(IterVar { var, kind: IterKind::Spatial, ..iv.clone() });
    }
    let mut nest = Vec::new();
    for l in loops {
        let old = s.get_loop(*l)?.clone();
        let var = s.program_mut().fresh_var(old.var.name.clone(), old.var.dtype);
        map.insert(old.var.id, Expr::Var(var.clone()));
        nest.push(For { var, kind: ForKind::Serial, annotations: Default::default(), ..old });
    }
    let id = s.program_mut().fresh_block();
    let rename = &mut |e: &Expr| visit::substitute(e, &map);
    let block = Block {
        iter_vars,
        writes: realize.block.writes.iter().map(|w| visit::map_region(w, rename)).collect(),
        ..Block::plain(
            id,
            format!("{}_pad_const", realize.block.name),
            Stmt::Store {
                buffer: plan.buffer,
                indices: plan.indices.iter().map(&mut *rename).collect(),
                value: plan.padding.clone(),
            },
        )
    };
    // The loops further out are known here; those of the copy are new.
    let all = s.loops_of(realize.block.id)?;
    let above = arith::domains(&s.get_loops(&all[..all.len() - loops.len()])?);
    let iter_values = realize.iter_values.iter().map(|e| simplified(&rename(e), &above)).collect();
    let predicate = simplified(&rename(&realize.predicate), &above);
    let body = Stmt::Realize(Box::new(BlockRealize { iter_values, predicate, block }));
    Ok((id, wrap(body, nest)))
}

fn wrap(body: Stmt, nest: Vec<For>) -> Stmt {
    nest.into_iter().rev().fold(body, |body, l| Stmt::For(For { body: Box::new(body), ..l }))
}

/// The nest that writes the values, with the loops given cut to the bounds where an iterator is such a loop.
fn values(s: &mut Schedule, realize: &BlockRealize, loops: &[LoopId], plan: &Plan) -> Result<Stmt> {
    let around = s.loops_of(realize.block.id)?;
    let mut domains = arith::domains(&s.get_loops(&around)?);
    let mut nest: Vec<For> = s.get_loops(loops)?.into_iter().cloned().collect();
    let mut map: HashMap<VarId, Expr> = HashMap::new();
    let (mut iter_vars, mut iter_values) = (Vec::new(), Vec::new());
    for ((iv, value), (min, extent)) in realize.block.iter_vars.iter().zip(&realize.iter_values).zip(&plan.bounds) {
        let dtype = iv.var.dtype;
        let shifted = |e: Expr| add(e, int(*min, dtype));
        let var = s.program_mut().fresh_var(iv.var.name.clone(), dtype);
        map.insert(iv.var.id, shifted(Expr::Var(var.clone())));
        iter_vars.push(IterVar { var, min: int(0, dtype), extent: int(*extent, dtype), kind: IterKind::Spatial });
        let own = nest.iter_mut().find(|l| *value == Expr::Var(l.var.clone()));
        match own {
            // A loop that feeds several iterators, or is used again, cannot be cut for one of them.
            Some(l) if used_once(&realize.iter_values, l.var.id) => {
                l.min = int(0, dtype);
                l.extent = int(*extent, dtype);
                domains.insert(l.var.id, Range { min: l.min.clone(), extent: l.extent.clone() });
                map.insert(l.var.id, shifted(value.clone()));
                iter_values.push(value.clone());
            }
            _ => {
                let less = Linear::of(value, &domains).and_then(|l| l.shifted(min.checked_neg()?));
                let less = less.ok_or_else(|| ScheduleError::value("an index is too large"))?;
                iter_values.push(less.expr());
            }
        }
    }
    for iv in &iter_vars {
        domains.insert(iv.var.id, Range { min: iv.min.clone(), extent: iv.extent.clone() });
    }
    let rewrite = &mut |e: &Expr| simplified(&visit::substitute(e, &map), &Domains::new());
    // Of loops that run once nothing is left.
    let guards = conjuncts(&plan.guard).into_iter().map(|e| simplified(&rewrite(&e), &domains));
    let guards = guards.filter(|e| !always(e, &domains));
    let predicate = all(guards.map(normal).collect::<Vec<_>>());
    let old = &realize.block;
    let block = Block {
        iter_vars,
        reads: old.reads.iter().map(|r| visit::map_region(r, rewrite)).collect(),
        writes: old.writes.iter().map(|r| visit::map_region(r, rewrite)).collect(),
        body: Box::new(Stmt::Store {
            buffer: plan.buffer,
            indices: plan.indices.iter().map(&mut *rewrite).collect(),
            value: rewrite(&plan.value),
        }),
        ..old.clone()
    };
    Ok(wrap(Stmt::Realize(Box::new(BlockRealize { iter_values, predicate, block })), nest))
}

fn used_once(values: &[Expr], v: VarId) -> bool {
    values.iter().filter(|e| visit::uses_var(e, &|u| u == v)).count() == 1
}

/// A comparison in its plain form: `x < 4` for `x <= 3`, `12 <= x` for `3 <= x // 4`.
fn normal(e: Expr) -> Expr {
    let Expr::Binary(op @ (BinOp::Lt | BinOp::Le), a, b) = &e else { return e };
    match (quotient(a), quotient(b), constant(a), constant(b)) {
        (None, _, None, Some(limit)) if *op == BinOp::Le => {
            limit.checked_add(1).map_or(e.clone(), |v| lt((**a).clone(), int(v, DType::I32)))
        }
        (Some((x, d)), _, None, Some(limit)) => {
            let limit = limit.checked_add(i64::from(*op == BinOp::Le)).and_then(|v| v.checked_mul(d));
            limit.map_or(e.clone(), |v| lt(x, int(v, DType::I32)))
        }
        (_, Some((x, d)), Some(limit), None) => {
            let limit = limit.checked_add(i64::from(*op == BinOp::Lt)).and_then(|v| v.checked_mul(d));
            limit.map_or(e.clone(), |v| {
                Expr::Binary(BinOp::Le, std::sync::Arc::new(int(v, DType::I32)), std::sync::Arc::new(x))
            })
        }
        _ => e,
    }
}

/// Dividend and positive divisor.
fn quotient(e: &Expr) -> Option<(Expr, i64)> {
    match e {
        Expr::Binary(BinOp::FloorDiv, x, d) => Some(((**x).clone(), constant(d).filter(|d| *d > 0)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_program, block, chain, func, loops, refusal, schedule};

    const PARAMS: &str = "A: T.Buffer((16,), \"float32\"), B: T.Buffer((20,), \"float32\")";

    fn padded(value: &str) -> Schedule {
        let body = format!(
            "for i in range(20):\n    with T.sblock(\"B\"):\n        vi = T.axis.spatial(20, i)\n        B[vi] = {value}\n"
        );
        schedule(&func(PARAMS, &body))
    }

    #[test]
    fn the_picture() {
        let mut s = padded("T.if_then_else(2 <= vi and vi < 18, A[vi - 2], T.float32(0))");
        let (b, i) = (block(&s, "B"), loops(&s, "B")[0]);
        decompose_padding(&mut s, b, i).unwrap();
        assert_program(
            &s,
            &func(
                PARAMS,
                r#"
for i in range(20):
    with T.sblock("B_pad_const"):
        vi = T.axis.spatial(20, i)
        B[vi] = T.float32(0)
for i in range(16):
    with T.sblock("B"):
        vi = T.axis.spatial(16, i)
        B[vi + 2] = A[vi]
"#,
            ),
        );
    }

    #[test]
    fn refuses() {
        for (value, reason) in [
            ("A[0]", "Value of BufferStore expect to be constrained by a padding predicate"),
            ("T.if_then_else(vi < 16, A[0], A[1])", "Pad value should be constant"),
            ("T.if_then_else(vi < 20, A[0], T.float32(0))", "The in-bound predicate is trivial"),
            ("T.if_then_else(vi % 2 < 1, A[0], T.float32(0))", "Block iters are not independent wrt padding condition"),
        ] {
            let mut s = padded(value);
            let (b, i) = (block(&s, "B"), loops(&s, "B")[0]);
            let error = decompose_padding(&mut s, b, i).unwrap_err();
            let message = "ScheduleError: decompose_padding expect the block to match padding pattern";
            assert_eq!(error.fast, format!("{message}\n  {reason}"), "{value}");
        }
        let mut s = chain();
        let (b, i) = (block(&s, "B"), loops(&s, "C")[0]);
        let message = "ScheduleError: decompose_padding expect the loop to be an ancestor of block";
        assert_eq!(refusal(&mut s, |s| decompose_padding(s, b, i)), message);
    }
}
