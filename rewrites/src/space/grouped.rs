//! Channels in groups, as groups and places in a group.
//!
//! before                                                after
//!   S[n, g] = S[n, g] + X[n, g * 4 + c, p]                S[n, g] = S[n, g] + X[n, g * 4 + c, p]
//!   Y[n, k, p] = X[n, k, p] - S[n, k // 4]                Y[n, g * 4 + c, p] = X[n, g * 4 + c, p] - S[n, g]
//!
//! It is what `transform_block_layout` does with `lambda n, k, p: (n, k // 4, k % 4, p)`: where a sum goes over parts of a dimension, a
//! map over the whole of it has an iterator for the part and one for the place in it, so that both have the same rows. The
//! innermost iterator of a map stays: what lies side by side in memory is one row of its threads.
//!
//! before                                                after
//!   C[n, k, p] += X[n, k // 4 * 8 + c, p] * W[k, c]       C[n, g * 4 + f, p] += X[n, g * 8 + c, p] * W[g * 4 + f, c]
//!
//! So it is with a product's channels, which then has tiles for each group.
use super::encode::sum_of_products;
use super::factored::has_sides;
use super::gather;
use super::nests::{block_of, by_data, nest_over, part_of, parts};
use crate::simplified::simplified;
use satune_ir::affine::constant;
use satune_ir::{visit, BinOp, Block, BufferId, Expr, IterKind, IterVar, Program, Stmt};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Lengths of the parts that dimensions of buffers are accessed by, and whether a product has them.
type Lengths = BTreeMap<(BufferId, usize), (i64, bool)>;

/// The same program, its products by the groups of their channels, and its maps by these.
pub(super) fn products(program: &Program) -> Program {
    with_maps(program, in_groups(program, |block| sum_of_products(block).is_ok(), gather::takes))
}

/// The maps of a program whose products are by groups now, by these.
fn with_maps(program: &Program, made: Program) -> Program {
    match made.body.block.body == program.body.block.body {
        true => made,
        false => grouped(&made),
    }
}

/// The same program, its maps by the parts that its sums are over. As it is where a sum goes over the whole of such a dimension.
pub(super) fn grouped(program: &Program) -> Program {
    let mut lengths = Lengths::new();
    let sums = |part: &&Stmt| block_of(program, part).is_ok_and(|b| b.init.is_some());
    for block in parts(program).into_iter().filter(sums).filter_map(|part| block_of(program, part).ok()) {
        // What a product reads is gathered, whatever parts it is accessed by.
        let product = has_sides(block);
        for (at, index) in indices(block).filter(|((buffer, _), _)| !product || writes(block, *buffer)) {
            if let Some(length) = length(index, block) {
                lengths.insert(at, (length, product));
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
            let Some((iter, (length, product))) = whole(block, &lengths) else { continue };
            if block.init.is_some() {
                return program.clone();
            }
            let bare = |(_, index): &((BufferId, usize), &Expr)| matches!(index, Expr::Var(v) if *v == iter.var);
            lengths.extend(indices(block).filter(bare).map(|(at, _)| (at, (length, product))));
            let (block, iter) = (block.clone(), iter.clone());
            *nest = by_parts(&mut out, &block, &iter, length);
            changed = true;
        }
    }
    *out.body.block.body = Stmt::seq(nests);
    simplified(&out)
}

/// The same program, its products by the groups of rows for which one element decides what these are multiplied with,
/// `X[i, k] * W[t[i // 64], j, k]`: without them neither factor is the rows' alone.
pub(super) fn by_tables(program: &Program) -> Program {
    let one_sided = |block: &Block| !has_sides(block) && indices_by_data(block);
    with_maps(program, in_groups(program, one_sided, |_, block| has_sides(block)))
}

/// Products of which a factor is indexed by the quotient of an iterator of the result, `k // 4 * 4 + c`: each group of channels is a product
/// by itself, the groups an axis of all three. `wanted` says of which blocks, `taken` whether it is of use.
fn in_groups(program: &Program, wanted: impl Fn(&Block) -> bool, taken: impl Fn(&Program, &Block) -> bool) -> Program {
    let mut out = program.clone();
    for at in 0..parts(program).len() {
        let nests: Vec<Stmt> = parts(&out).into_iter().cloned().collect();
        let Some(block) = block_of(&out, &nests[at]).ok().filter(|block| wanted(block)) else { continue };
        let tries = divided(block).into_iter().map(|(iter, length)| {
            let (mut tried, mut nests) = (out.clone(), nests.clone());
            nests[at] = by_parts(&mut tried, block, iter, length);
            *tried.body.block.body = Stmt::seq(nests);
            simplified(&tried)
        });
        let found = tries.into_iter().find(|tried| block_of(tried, parts(tried)[at]).is_ok_and(|b| taken(tried, b)));
        out = found.unwrap_or(out);
    }
    out
}

/// Iterators of the result of which indices take the quotient, and by what.
fn divided(block: &Block) -> Vec<(&IterVar, i64)> {
    let mut found = Vec::new();
    let mut look = |e: &Expr| {
        let Expr::Binary(BinOp::FloorDiv, of, by) = e else { return };
        let (Expr::Var(v), Expr::Int(by, _)) = (&**of, &**by) else { return };
        let iter = block.iter_vars.iter().find(|iv| iv.var == *v && iv.kind == IterKind::Spatial);
        let whole = iter.filter(|iv| constant(&iv.extent).is_some_and(|n| *by > 1 && n % by == 0 && n > *by));
        found.extend(whole.map(|iv| (iv, *by)).filter(|one| !found.contains(one)));
    };
    visit::walk_stmt_exprs(&block.body, &mut |e| visit::walk_expr(e, &mut look));
    found
}

/// Whether an element is read at a place that another decides.
fn indices_by_data(block: &Block) -> bool {
    let mut found = false;
    let mut look = |e: &Expr| found |= matches!(e, Expr::Load(_, at) if by_data(at));
    visit::walk_stmt_exprs(&block.body, &mut |e| visit::walk_expr(e, &mut look));
    found
}

fn writes(block: &Block, buffer: BufferId) -> bool {
    block.writes.iter().any(|w| w.buffer == buffer)
}

/// The indices of a block's regions, each with its buffer and dimension.
fn indices(block: &Block) -> impl Iterator<Item = ((BufferId, usize), &Expr)> {
    let regions = block.reads.iter().chain(&block.writes);
    regions.flat_map(|r| r.ranges.iter().enumerate().map(|(dim, range)| ((r.buffer, dim), &range.min)))
}

/// How long the parts of an index `part * length + place` are.
fn length(index: &Expr, block: &Block) -> Option<i64> {
    let (_, place) = part_of(index, block)?;
    block.iter_vars.iter().find(|iv| iv.var == *place).and_then(|iv| constant(&iv.extent))
}

/// An iterator of a block that indexes the whole of a dimension of which others access parts; not its innermost, unless a product does.
fn whole<'b>(block: &'b Block, lengths: &Lengths) -> Option<(&'b IterVar, (i64, bool))> {
    let (last, outer) = block.iter_vars.split_last()?;
    indices(block).find_map(|(at, index)| {
        let (Expr::Var(v), Some((length, product))) = (index, lengths.get(&at)) else { return None };
        let iter = outer.iter().chain(product.then_some(last)).find(|iv| iv.var == *v)?;
        let extent = constant(&iter.extent).filter(|_| constant(&iter.min) == Some(0))?;
        (extent % length == 0 && extent > *length).then_some((iter, (*length, *product)))
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
    let mut put = |stmt: &Stmt| visit::map_stmt_exprs(stmt, &mut |e| visit::substitute(e, &map));
    let (body, init) = (put(&block.body), block.init.as_deref().map(&mut put));
    let two = |iv: &IterVar| match iv.var == iter.var {
        true => vec![part.clone(), place.clone()],
        false => vec![iv.clone()],
    };
    let iters: Vec<IterVar> = block.iter_vars.iter().flat_map(two).collect();
    nest_over(out, block.name.clone(), &iters, init, body)
}
