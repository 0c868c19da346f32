//! The two blocks that `rfactor` makes of one.
use crate::arith::int;
use crate::linear::{all, conjuncts};
use crate::reducer::Reduction;
use crate::schedule::{BlockFlags, Result, Schedule};
use crate::tree::{LoopId, Node};
use satune_ir::{
    visit, Block, BlockId, BlockRealize, BufferId, DType, Expr, For, IterKind, IterVar, Range, Region, Stmt, Var, VarId,
};
use std::collections::HashMap;

/// What is factored.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The block.
    pub block: BlockId,
    /// The block in which it stands.
    pub scope: BlockId,
    /// Its loops, outermost first.
    pub loops: Vec<LoopId>,
    /// The loops that feed its reduction iterators.
    pub reduction_loops: Vec<LoopId>,
    /// What it computes.
    pub reduction: Reduction,
    /// The new dimension of the partial results.
    pub axis: usize,
}

/// Makes the blocks. Returns the first one, which did not exist before.
pub(super) fn apply(s: &mut Schedule, target: LoopId, plan: &Plan) -> Result<BlockId> {
    let old = s.realize(plan.block)?.clone();
    let loops: Vec<For> = s.get_loops(&plan.loops)?.into_iter().cloned().collect();
    let along = s.get_loop(target)?.clone();
    let partial: Vec<BufferId> =
        plan.reduction.buffers.iter().map(|b| partial_buffer(s, *b, plan.axis, &along)).collect();

    let (id, first) = first_step(s, plan, &old, &loops, &along, &partial);
    let second = second_step(s, plan, &old, &along, &partial);
    s.update_realize(plan.block, |r| *r = second)?;
    for l in plan.reduction_loops.iter().filter(|l| **l != target) {
        s.replace(Node::Loop(*l), |stmt| match stmt {
            Stmt::For(l) => *l.body,
            other => other,
        })?;
    }
    // The outermost loop that is left is where the nest stood.
    let left = s.loops_of(plan.block)?;
    let top = left.first().map_or(Node::Block(plan.block), |l| Node::Loop(*l));
    s.replace(top, |nest| Stmt::seq(vec![first, nest]))?;
    s.update_block(plan.scope, |b| b.alloc_buffers.extend(&partial))?;
    let known = BlockFlags { affine_binding: true, region_cover: true, stage_pipeline: true };
    s.set_flags(id, known);
    s.set_flags(plan.block, known);
    Ok(id)
}

/// A buffer like `buffer` with a dimension for the iterations of `along`.
fn partial_buffer(s: &mut Schedule, buffer: BufferId, axis: usize, along: &For) -> BufferId {
    let mut new = s.program().buffer(buffer).clone();
    new.name.push_str(".rf");
    new.shape.insert(axis, along.extent.clone());
    new.strides = Vec::new();
    s.program_mut().add_buffer(new)
}

/// An iterator that is a loop.
fn iterator(s: &mut Schedule, l: &For, kind: IterKind) -> IterVar {
    let var = s.program_mut().fresh_var(format!("v{}", l.var.name), l.var.dtype);
    IterVar { var, min: l.min.clone(), extent: l.extent.clone(), kind }
}

/// A new iterator with the name and domain of another.
fn renamed(s: &mut Schedule, iv: &IterVar) -> IterVar {
    IterVar { var: s.program_mut().fresh_var(iv.var.name.clone(), iv.var.dtype), ..iv.clone() }
}

fn load(buffer: BufferId, indices: &[Expr]) -> Expr {
    Expr::Load(buffer, indices.to_vec())
}

fn with_axis(indices: &[Expr], axis: usize, index: Expr) -> Vec<Expr> {
    let mut out = indices.to_vec();
    out.insert(axis, index);
    out
}

/// The reduction into the partial results: a data-parallel block along the loop. Returns its nest.
fn first_step(
    s: &mut Schedule,
    plan: &Plan,
    old: &BlockRealize,
    loops: &[For],
    along: &For,
    partial: &[BufferId],
) -> (BlockId, Stmt) {
    let extra = iterator(s, along, IterKind::Spatial);
    let here = Expr::Var(extra.var.clone());
    let mut iter_values = vec![Expr::Var(along.var.clone())];
    // What old iterators and loops are called inside the new block.
    let mut inside: HashMap<VarId, Expr> = HashMap::new();
    let mut of_loop: HashMap<VarId, Expr> = HashMap::from([(along.var.id, here.clone())]);
    let mut iter_vars = vec![extra];
    for (iv, value) in old.block.iter_vars.iter().zip(&old.iter_values) {
        if iv.kind != IterKind::Reduce || !visit::uses_var(value, &|v| v == along.var.id) {
            let new = renamed(s, iv);
            inside.insert(iv.var.id, Expr::Var(new.var.clone()));
            iter_vars.push(new);
            iter_values.push(value.clone());
            continue;
        }
        // An iterator made of this loop and others is split into one for each.
        for var in variables(value) {
            if let Some(l) = loops.iter().find(|l| l.var == var && !of_loop.contains_key(&var.id)) {
                let new = iterator(s, l, IterKind::Reduce);
                of_loop.insert(var.id, Expr::Var(new.var.clone()));
                iter_vars.push(new);
                iter_values.push(Expr::Var(var));
            }
        }
        inside.insert(iv.var.id, visit::substitute(value, &of_loop));
    }
    let rename = |e: &Expr| visit::substitute(e, &inside);
    let indices: Vec<Expr> = with_axis(&plan.reduction.indices.iter().map(rename).collect::<Vec<_>>(), plan.axis, here);
    let operands: Vec<Expr> = plan.reduction.operands.iter().map(rename).collect();
    let reads = old.block.reads.iter().map(|r| visit::map_region(r, &mut |e| rename(e))).collect();
    let place = Range { min: indices[plan.axis].clone(), extent: int(1, along.var.dtype) };
    let write = |w: &Region| {
        let at = plan.reduction.buffers.iter().position(|b| *b == w.buffer)?;
        let mut new = visit::map_region(w, &mut |e| rename(e));
        new.buffer = partial[at];
        new.ranges.insert(plan.axis.min(new.ranges.len()), place.clone());
        Some(new)
    };
    let writes = old.block.writes.iter().filter_map(write).collect();
    let (init, body) = update(s, &plan.reduction, partial, &indices, &operands, &iter_vars);
    let id = s.program_mut().fresh_block();
    let block = Block {
        iter_vars,
        reads,
        writes,
        init: init.map(Box::new),
        annotations: old.block.annotations.clone(),
        ..Block::plain(id, format!("{}_rf", old.block.name), body)
    };
    // The nest stands beside the old one, so its loops are new.
    let vars: Vec<Var> = loops.iter().map(|l| s.program_mut().fresh_var(l.var.name.clone(), l.var.dtype)).collect();
    let outside: HashMap<VarId, Expr> =
        loops.iter().zip(&vars).map(|(l, v)| (l.var.id, Expr::Var(v.clone()))).collect();
    let moved = |e: &Expr| visit::substitute(e, &outside);
    let realize =
        BlockRealize { iter_values: iter_values.iter().map(moved).collect(), predicate: moved(&old.predicate), block };
    let nest = loops.iter().zip(vars).rev().fold(Stmt::Realize(Box::new(realize)), |body, (l, var)| {
        Stmt::For(For { var, min: moved(&l.min), extent: moved(&l.extent), body: Box::new(body), ..l.clone() })
    });
    (id, nest)
}

/// The reduction of the partial results, in the place of the old block.
fn second_step(s: &mut Schedule, plan: &Plan, old: &BlockRealize, along: &For, partial: &[BufferId]) -> BlockRealize {
    let extra = iterator(s, along, IterKind::Reduce);
    let here = Expr::Var(extra.var.clone());
    let mut iter_vars = vec![extra];
    let mut iter_values = vec![Expr::Var(along.var.clone())];
    for (iv, value) in old.block.iter_vars.iter().zip(&old.iter_values).filter(|(iv, _)| iv.kind == IterKind::Spatial) {
        iter_vars.push(iv.clone());
        iter_values.push(value.clone());
    }
    let indices = plan.reduction.indices.clone();
    let source = with_axis(&indices, plan.axis, here);
    let point = |b: &BufferId, at: &[Expr]| {
        let range = |e: &Expr| Range { min: e.clone(), extent: int(1, DType::I32) };
        Region { buffer: *b, ranges: at.iter().map(range).collect() }
    };
    let reads = partial.iter().map(|b| point(b, &source)).collect();
    let writes = plan.reduction.buffers.iter().map(|b| point(b, &indices)).collect();
    let operands: Vec<Expr> = partial.iter().map(|b| load(*b, &source)).collect();
    let (init, body) = update(s, &plan.reduction, &plan.reduction.buffers, &indices, &operands, &iter_vars);
    // TVM drops the whole predicate; what keeps the data-parallel iterators inside of their domains has to stay.
    let gone = |c: &Expr| visit::uses_var(c, &|v| plan.reduction_loops.contains(&v));
    let predicate = all(conjuncts(&old.predicate).into_iter().filter(|c| !gone(c)));
    let block = Block {
        iter_vars,
        reads,
        writes,
        init: init.map(Box::new),
        annotations: old.block.annotations.clone(),
        ..Block::plain(plan.block, old.block.name.clone(), body)
    };
    BlockRealize { iter_values, predicate, block }
}

/// Init and body of a block with these iterators that reduces `operands` into `buffers`; plain stores where no iterator is
/// reduced over.
fn update(
    s: &mut Schedule,
    reduction: &Reduction,
    buffers: &[BufferId],
    indices: &[Expr],
    operands: &[Expr],
    iter_vars: &[IterVar],
) -> (Option<Stmt>, Stmt) {
    let stores = |values: &[Expr]| {
        let store =
            |(b, v): (&BufferId, &Expr)| Stmt::Store { buffer: *b, indices: indices.to_vec(), value: v.clone() };
        Stmt::seq(buffers.iter().zip(values).map(store).collect())
    };
    if iter_vars.iter().all(|iv| iv.kind != IterKind::Reduce) {
        return (None, stores(operands));
    }
    let init = stores(&reduction.identities);
    let accumulators: Vec<Expr> = buffers.iter().map(|b| load(*b, indices)).collect();
    let results = reduction.combined(&accumulators, operands);
    if buffers.len() == 1 {
        return (Some(init), stores(&results));
    }
    // All results are made before any is stored: each of them reads what the others overwrite.
    let vars: Vec<Var> = buffers
        .iter()
        .map(|b| {
            let (name, dtype) = (format!("v_{}", s.program().buffer(*b).name), s.program().buffer(*b).dtype);
            s.program_mut().fresh_var(name, dtype)
        })
        .collect();
    let body = stores(&vars.iter().cloned().map(Expr::Var).collect::<Vec<_>>());
    let body = vars.into_iter().zip(results).rev().fold(body, |body, (var, value)| Stmt::Let {
        var,
        value,
        body: Box::new(body),
    });
    (Some(init), body)
}

/// The variables of an expression, in the order of their first occurrence.
fn variables(e: &Expr) -> Vec<Var> {
    let mut out: Vec<Var> = Vec::new();
    visit::walk_expr(e, &mut |e| {
        if let Expr::Var(v) = e {
            if !out.contains(v) {
                out.push(v.clone());
            }
        }
    });
    out
}
