//! Channels in groups, as groups and places in a group.
//!
//! before                                                after
//!   S[n, g] = S[n, g] + X[n, g * 4 + c, p]                S[n, g] = S[n, g] + X[n, g * 4 + c, p]
//!   Y[n, k, p] = X[n, k, p] - S[n, k // 4]                Y[n, g * 4 + c, p] = X[n, g * 4 + c, p] - S[n, g]
//!
//! It is what `transform_block_layout` does with `lambda n, k, p: (n, k // 4, k % 4, p)`: where a sum goes over parts of a dimension, a
//! map over the whole of it has an iterator for the part and one for the place in it, so that both have the same rows. The
//! innermost iterator of a map stays: what lies side by side in memory is one row of its threads.
use super::nests::{block_of, nest_over, part_of, parts};
use crate::simplified::simplified;
use satune_ir::affine::constant;
use satune_ir::{visit, BinOp, Block, BufferId, Expr, IterVar, Program, Stmt};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Lengths of the parts that dimensions of buffers are accessed by.
type Lengths = BTreeMap<(BufferId, usize), i64>;

/// The same program, its maps by the parts that its sums are over. As it is where a sum goes over the whole of such a dimension.
pub(super) fn grouped(program: &Program) -> Program {
    let mut lengths = Lengths::new();
    let sums = |part: &&Stmt| block_of(program, part).is_ok_and(|b| b.init.is_some());
    for block in parts(program).into_iter().filter(sums).filter_map(|part| block_of(program, part).ok()) {
        for (at, index) in indices(block) {
            if let Some(length) = length(index, block) {
                lengths.insert(at, length);
            }
        }
    }
    if lengths.is_empty() {
        return program.clone();
    }
    let mut out = program.clone();
    let mut nests: Vec<Stmt> = parts(program).into_iter().cloned().collect();
    let mut changed = true;
    while std::mem::take(&mut changed) {
        for nest in &mut nests {
            let Ok(block) = block_of(&out, nest) else { continue };
            let Some((iter, length)) = whole(block, &lengths) else { continue };
            if block.init.is_some() {
                return program.clone();
            }
            let bare = |(_, index): &((BufferId, usize), &Expr)| matches!(index, Expr::Var(v) if *v == iter.var);
            lengths.extend(indices(block).into_iter().filter(bare).map(|(at, _)| (at, length)));
            let (block, iter) = (block.clone(), iter.clone());
            *nest = by_parts(&mut out, &block, &iter, length);
            changed = true;
        }
    }
    *out.body.block.body = Stmt::seq(nests);
    simplified(&out)
}

/// The indices of a block's regions, each with its buffer and dimension.
fn indices(block: &Block) -> Vec<((BufferId, usize), &Expr)> {
    let regions = block.reads.iter().chain(&block.writes);
    regions.flat_map(|r| r.ranges.iter().enumerate().map(|(dim, range)| ((r.buffer, dim), &range.min))).collect()
}

/// How long the parts of an index `part * length + place` are.
fn length(index: &Expr, block: &Block) -> Option<i64> {
    let (_, place) = part_of(index, block)?;
    block.iter_vars.iter().find(|iv| iv.var == *place).and_then(|iv| constant(&iv.extent))
}

/// An iterator of a block, not its innermost, that indexes the whole of a dimension of which others access parts.
fn whole<'b>(block: &'b Block, lengths: &Lengths) -> Option<(&'b IterVar, i64)> {
    let (_, outer) = block.iter_vars.split_last()?;
    indices(block).into_iter().find_map(|(at, index)| {
        let (Expr::Var(v), Some(length)) = (index, lengths.get(&at)) else { return None };
        let iter = outer.iter().find(|iv| iv.var == *v)?;
        let extent = constant(&iter.extent).filter(|_| constant(&iter.min) == Some(0))?;
        (extent % length == 0 && extent > *length).then_some((iter, *length))
    })
}

/// The nest of a block with two iterators in the place of one.
fn by_parts(out: &mut Program, block: &Block, iter: &IterVar, length: i64) -> Stmt {
    let dtype = iter.var.dtype;
    let int = |value| Expr::Int(value, dtype);
    let mut half = |name: &str, extent| IterVar {
        var: out.fresh_var(format!("{}_{name}", iter.var.name), dtype),
        extent: int(extent),
        ..iter.clone()
    };
    let extent = constant(&iter.extent).unwrap_or(length);
    let (part, place) = (half("part", extent / length), half("place", length));
    let var = |iv: &IterVar| Arc::new(Expr::Var(iv.var.clone()));
    let first = Expr::Binary(BinOp::Mul, var(&part), Arc::new(int(length)));
    let index = Expr::Binary(BinOp::Add, Arc::new(first), var(&place));
    let map = HashMap::from([(iter.var.id, index)]);
    let body = visit::map_stmt_exprs(&block.body, &mut |e| visit::substitute(e, &map));
    let two = |iv: &IterVar| match iv.var == iter.var {
        true => vec![part.clone(), place.clone()],
        false => vec![iv.clone()],
    };
    let iters: Vec<IterVar> = block.iter_vars.iter().flat_map(two).collect();
    nest_over(out, block.name.clone(), &iters, None, body)
}
