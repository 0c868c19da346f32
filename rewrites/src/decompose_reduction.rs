//! `decompose_reduction`: the init of a reduction becomes a block of its own.
//!
//! before                                after, decompose_reduction(C, k)
//!   for i, j, k in T.grid(16, 16, 16):    for i, j in T.grid(16, 16):
//!       with T.sblock("C"):                   with T.sblock("C_init"):
//!           vi, vj, vk = ...                      vi, vj = T.axis.remap("SS", [i, j])
//!           with T.init():                        C[vi, vj] = 0
//!               C[vi, vj] = 0                 for k in range(16):
//!           C[vi, vj] += A[vi, vk]                with T.sblock("C_update"):
//!                                                     vi, vj, vk = ...
//!                                                     C[vi, vj] += A[vi, vk]
//!
//! Legal when: 1 the loop is above the block; 2 the block is a reduction; 3 no loop further out feeds a reduction iterator.
//! Bind, parallelize and vectorize first: the update is no reduction block any more.
use crate::linear::{all, conjuncts};
use crate::schedule::{Result, Schedule};
use crate::scope;
use crate::tree::{LoopId, Node};
use crate::ScheduleError;
use satune_ir::{visit, BinOp, Block, BlockId, BlockRealize, Expr, For, IterKind, IterVar, Stmt};
use std::collections::HashMap;

/// Conditions 1 to 3.
pub fn legal(s: &Schedule, block: BlockId, target: LoopId) -> Result<()> {
    let loops = s.loops_of(block)?;
    let (name, loop_name) = (&s.block(block)?.name, s.get_loop(target)?.var.name.clone());
    let Some(at) = loops.iter().position(|l| *l == target) else {
        return Err(ScheduleError::refused(
            "decompose_reduction expect the loop to be an ancestor of block",
            format!("The input loop {loop_name} of decompose_reduction is required to be an ancestor of block {name}."),
        )
        .at_block(block)
        .at_loop(target)
        .remedy("give a loop around the block"));
    };
    let graph = s.scope(s.scope_of(Node::Block(block))?)?;
    scope::require_reduction(s, block, &graph)?;
    let realize = s.realize(block)?;
    for (iv, value) in realize.block.iter_vars.iter().zip(&realize.iter_values) {
        if iv.kind != IterKind::Reduce {
            continue;
        }
        if let Some(&high) = loops[..at].iter().find(|l| visit::uses_var(value, &|v| v == **l)) {
            let high_name = s.get_loop(high)?.var.name.clone();
            return Err(ScheduleError::refused(
                "decompose_reduction expect the loop to be higher than all the loops related to reduce block var",
                format!(
                    "decompose_reduction expect the loop {loop_name} to be higher than all the loops related to reduce block \
                     var of block {name}. However, {high_name} is related to the reduce block var {} and is higher than it.",
                    iv.var.name
                ),
            )
            .at_block(block)
            .at_loop(high)
            .at_loop(target)
            .remedy(format!("decompose at loop {high_name} or further out")));
        }
    }
    if let Some(clause) = conjuncts(&realize.predicate).iter().find(|c| !matches!(c, Expr::Binary(BinOp::Lt, ..))) {
        return Err(ScheduleError::internal(format!(
            "Unexpected predicate for reduction block: {}",
            crate::text::expr(clause)
        ))
        .at_block(block));
    }
    Ok(())
}

/// The primitive. Returns the block of the init.
pub fn decompose_reduction(s: &mut Schedule, block: BlockId, target: LoopId) -> Result<BlockId> {
    legal(s, block, target).map_err(|e| e.within("decompose_reduction"))?;
    apply(s, block, target).map_err(|e| e.within("decompose_reduction"))
}

fn apply(s: &mut Schedule, block: BlockId, target: LoopId) -> Result<BlockId> {
    let scope = s.scope_of(Node::Block(block))?;
    let realize = s.realize(block)?.clone();
    let loops = s.loops_of(block)?;
    let below: Vec<For> =
        loops.iter().skip_while(|l| **l != target).map(|l| s.get_loop(*l).cloned()).collect::<Result<_>>()?;
    let spatial: Vec<(&IterVar, &Expr)> = realize
        .block
        .iter_vars
        .iter()
        .zip(&realize.iter_values)
        .filter(|(iv, _)| iv.kind == IterKind::Spatial)
        .collect();
    let feeds = |l: &For| spatial.iter().any(|(_, e)| visit::uses_var(e, &|v| v == l.var.id));
    let (kept, dropped): (Vec<&For>, Vec<&For>) = below.iter().partition(|l| feeds(l));

    let mut inner = HashMap::new();
    let mut iter_vars = Vec::new();
    for (iv, _) in &spatial {
        let var = s.program_mut().fresh_var(iv.var.name.clone(), iv.var.dtype);
        inner.insert(iv.var.id, Expr::Var(var.clone()));
        iter_vars.push(IterVar { var, ..(*iv).clone() });
    }
    let vars: Vec<_> =
        kept.iter().map(|l| s.program_mut().fresh_var(format!("{}_init", l.var.name), l.var.dtype)).collect();
    let outer: HashMap<_, _> = kept.iter().zip(&vars).map(|(l, v)| (l.var.id, Expr::Var(v.clone()))).collect();
    let uses_dropped = |c: &Expr| visit::uses_var(c, &|v| dropped.iter().any(|l| l.var.id == v));
    let predicate = all(conjuncts(&realize.predicate).into_iter().filter(|c| !uses_dropped(c)));
    let rename = |e: &Expr, map: &HashMap<_, _>| visit::substitute(e, map);
    let id = s.program_mut().fresh_block();
    let Some(init) = &realize.block.init else { return Err(ScheduleError::internal("a reduction without init")) };
    let new = BlockRealize {
        iter_values: spatial.iter().map(|(_, e)| rename(e, &outer)).collect(),
        predicate: rename(&predicate, &outer),
        block: Block {
            iter_vars,
            writes: realize.block.writes.iter().map(|w| visit::map_region(w, &mut |e| rename(e, &inner))).collect(),
            annotations: realize.block.annotations.clone(),
            ..Block::plain(
                id,
                format!("{}_init", realize.block.name),
                visit::map_stmt_exprs(init, &mut |e| rename(e, &inner)),
            )
        },
    };
    let nest = kept.iter().zip(vars).rev().fold(Stmt::Realize(Box::new(new)), |body, (l, var)| {
        Stmt::For(For { var, body: Box::new(body), ..(*l).clone() })
    });
    s.update_block(block, |b| {
        b.name.push_str("_update");
        b.init = None;
        let mut reads = b.writes.clone();
        reads.extend(b.reads.drain(..).filter(|r| b.writes.iter().all(|w| w.buffer != r.buffer)));
        b.reads = reads;
    })?;
    s.replace(Node::Loop(target), |l| Stmt::seq(vec![nest, l]))?;
    s.recompute_flags(scope);
    Ok(id)
}
