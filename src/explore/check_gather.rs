//! Convolutions for the simulator: a problem of few blocks, with the windows and paddings of the whole one.
use satune_ir::affine::linear::{gcd, Linear};
use satune_ir::affine::{constant, Domains};
use satune_ir::term::{Axis, Contraction, Gather};
use satune_ir::{tvmscript, visit, BinOp, Block, BufferId, Expr, IterVar, Program, Stmt, VarId};
use satune_rewrites::space;
use satune_rewrites::tree::child_realizes;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What a schedule asks of its problem beyond its size.
#[derive(Clone, Copy, Default)]
pub(super) struct KeptTiles {
    /// Of m and n the tile, of which as large a part as divides the lowest digit still does, and of how many the number of tiles
    /// is a multiple (a cluster's).
    pub tiles: [(i64, i64); 2],
    /// Where rows along k may be cut: the tile there.
    pub k_tile: Option<i64>,
}

/// A problem of few tiles: its program, and what is read off it. Its fused axes are about as long as `wanted`'s; rows along k end within
/// a tile where they did.
///
/// # Errors
/// When the smaller program is none that is taken, which is a bug.
pub(super) fn smaller(
    contraction: &Contraction,
    gather: &Gather,
    wanted: &Contraction,
    kept: KeptTiles,
) -> Result<(Program, Contraction), String> {
    let program = tvmscript::parse(&gather.script).map_err(|e| e.to_string())?;
    let (program, _) = super::check::read_apart(program, contraction)?;
    let extents = tied(&program, &contraction.block_name, extents(gather, wanted, kept));
    // Blocks after it go through its results as these are in memory.
    let results = gather.c.by_iterators(&gather.iters).unwrap_or_default();
    let results: Vec<i64> = results.into_iter().map(|(i, _)| i.map_or(1, |i| extents[i])).collect();
    let source = resized(&program, &contraction.block_name, &extents, &results);
    let small = space::contraction(&source).map_err(|e| format!("a smaller problem is refused: {e}"))?;
    Ok((source, small))
}

/// Fewer values of the source block's iterators, so that the fused axes are about as long as wanted.
fn extents(gather: &Gather, wanted: &Contraction, kept: KeptTiles) -> Vec<i64> {
    let mut extents: Vec<i64> = gather.iters.iter().map(|(_, info)| info.extent).collect();
    // Zeros between elements stay at their places.
    let step = |i: usize| {
        let dims = [&gather.a, &gather.b, &gather.c].into_iter().flat_map(|g| &g.dims);
        dims.filter(|d| d.terms.iter().any(|(x, _)| *x == i)).map(|d| d.step).max().unwrap_or(1)
    };
    // Of what several iterators are the digits, the highest has fewer.
    let low = |i: usize| {
        let factor = |list: &[(usize, i64)]| list.iter().find(|(x, _)| *x == i).map(|(_, c)| *c);
        let mut dims = gather.c.dims.iter().filter_map(|d| Some((&d.terms, factor(&d.terms)?)));
        dims.any(|(terms, own)| terms.iter().any(|(_, c)| *c > own))
    };
    // By how much fewer values there may be: of what is padded something is left.
    let most = |i: usize| {
        if low(i) {
            return 0;
        }
        let dims = [&gather.a, &gather.b, &gather.c].into_iter().flat_map(|g| &g.dims);
        let of = dims.filter_map(|d| d.terms.iter().find(|(x, _)| *x == i).map(|(_, c)| (d, c.abs().max(1))));
        of.map(|(d, c)| (d.extent - d.extent.min(2)) * d.step / c).min().unwrap_or(0)
    };
    let digits = |axis: Axis| (0..gather.iters.len()).filter(move |i| gather.iters[*i].0 == axis);
    for (i, (axis, _)) in gather.iters.iter().enumerate().filter(|(_, (a, _))| matches!(a, Axis::Batch(_))) {
        extents[i] = wanted.extent(*axis).min(extents[i]);
    }
    for (axis, (tile, count)) in [Axis::M, Axis::N].into_iter().zip(kept.tiles) {
        // Wide stores of rows stay aligned: a product of digits is a multiple of what each is a multiple of.
        let row = gather.c.running(&gather.iters, axis);
        let unit = |i: usize| {
            let extent = gather.iters[i].1.extent;
            let of_row = if row.contains(&i) { gcd(extent, 16) } else { 1 };
            let of_tile = if digits(axis).next_back() == Some(i) { gcd(extent, tile.max(1)) } else { 1 };
            multiple(multiple(of_row, of_tile), step(i))
        };
        for i in digits(axis) {
            let below: i64 = digits(axis).filter(|x| *x > i).map(|x| extents[x]).product();
            let want = (wanted.extent(axis) + below - 1) / below.max(1);
            let fewer = (extents[i] - want.clamp(1, extents[i])).min(most(i)) / unit(i) * unit(i);
            extents[i] -= fewer.max(0);
        }
        // Whole clusters: of one digit so many values that there are about as many rows as before, and else all that there were.
        let rows = |extents: &[i64]| digits(axis).map(|x| extents[x]).product::<i64>();
        let whole = |extents: &[i64]| (rows(extents) + tile - 1) / tile.max(1) % count.max(1) == 0;
        if whole(&extents) {
            continue;
        }
        let others = digits(axis).flat_map(|i| {
            let all = gather.iters[i].1.extent;
            let least = all - most(i).max(0) / unit(i) * unit(i);
            let other = |extent| [&extents[..i], &[extent], &extents[i + 1..]].concat();
            (least..=all).step_by(unit(i).max(1) as usize).map(other).collect::<Vec<_>>()
        });
        let near = |other: &Vec<i64>| (rows(other) - rows(&extents)).abs();
        extents = others.filter(|other| whole(other)).min_by_key(near).unwrap_or_else(|| {
            let all = gather.iters.iter().zip(&extents);
            all.map(|((a, info), fewer)| if *a == axis { info.extent } else { *fewer }).collect()
        });
    }
    if let Some((i, k_tile)) = digits(Axis::K).max_by_key(|i| most(*i)).zip(kept.k_tile) {
        let others: i64 = digits(Axis::K).filter(|x| *x != i).map(|x| extents[x]).product();
        // Wide accesses stay aligned, a last tile cut, and whole tiles within one value of what is beside it.
        let unit = multiple(gcd(extents[i], 16), gcd(extents[i], k_tile));
        let cut = |extent: i64| (extent * others) % k_tile != 0;
        let least = (wanted.extent(Axis::K) / others.max(1)).max(extents[i] - most(i));
        let candidates = (1..=extents[i] / unit).map(|n| n * unit);
        let fitting = candidates.clone().find(|e| *e >= least && cut(*e) == cut(extents[i]));
        extents[i] = fitting.unwrap_or(extents[i]);
    }
    extents
}

/// The least common multiple of positive numbers.
fn multiple(a: i64, b: i64) -> i64 {
    a / gcd(a, b) * b
}

/// An iterator, or a dimension of a buffer that one indexes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Index {
    Iter(VarId),
    Dim(BufferId, usize),
}

/// The extents of the iterators of the block `name`, those alike that index one dimension of a buffer, as of a matrix that both
/// factors are.
fn tied(program: &Program, name: &str, mut extents: Vec<i64>) -> Vec<i64> {
    let blocks: Vec<&Block> = child_realizes(&program.body.block.body).into_iter().map(|r| &r.block).collect();
    let Some(block) = blocks.iter().find(|b| b.name == name) else { return extents };
    let mut together: Vec<BTreeSet<Index>> = Vec::new();
    for region in blocks.iter().flat_map(|b| b.reads.iter().chain(&b.writes)) {
        for (dim, range) in region.ranges.iter().enumerate() {
            let Expr::Var(v) = &range.min else { continue };
            let both = BTreeSet::from([Index::Iter(v.id), Index::Dim(region.buffer, dim)]);
            let (met, others): (Vec<_>, Vec<_>) = together.into_iter().partition(|known| !known.is_disjoint(&both));
            together = others;
            together.push(met.into_iter().flatten().chain(both).collect());
        }
    }
    for alike in together {
        let own = |(_, iv): &(usize, &IterVar)| alike.contains(&Index::Iter(iv.var.id));
        let places: Vec<usize> = block.iter_vars.iter().enumerate().filter(own).map(|(at, _)| at).collect();
        let most = places.iter().filter_map(|at| extents.get(*at)).max().copied();
        places.into_iter().for_each(|at| extents[at] = most.unwrap_or(extents[at]));
    }
    extents
}

/// The program with other extents of the iterators of its block `name`: windows, paddings and blocks after it stay as they
/// are, on buffers as large as is then needed.
fn resized(program: &Program, name: &str, extents: &[i64], results: &[i64]) -> Program {
    let parts: Vec<&Stmt> = match &*program.body.block.body {
        Stmt::Seq(parts) => parts.iter().collect(),
        one => vec![one],
    };
    let blocks: Vec<&Block> = parts.into_iter().filter_map(block_of).collect();
    let Some(at) = blocks.iter().position(|b| b.name == name) else { return program.clone() };
    let mut shapes = Shapes { program, shapes: BTreeMap::new(), fewer: HashMap::new() };
    let mut nests: Vec<Vec<i64>> = vec![Vec::new(); blocks.len()];
    // Producers after their consumers, then what comes after the sums.
    for i in (0..=at).rev().chain(at + 1..blocks.len()) {
        let new = match i.cmp(&at) {
            Ordering::Less => shapes.made_by(blocks[i]),
            Ordering::Equal => Some(extents.to_vec()),
            Ordering::Greater => Some(results.to_vec()),
        };
        let Some(new) = new else { continue };
        shapes.accessed(blocks[i], &new);
        nests[i] = new;
    }
    let mut out = crate::streaming::resized(program, &nests, &shapes.shapes);
    let body = visit::map_stmt_exprs(&out.body.block.body, &mut |e| visit::map_expr(e, &mut |e| shapes.bounded(e)));
    out.body.block.body = Box::new(body);
    out
}

/// The block of a nest.
fn block_of(part: &Stmt) -> Option<&Block> {
    match part {
        Stmt::For(l) => block_of(&l.body),
        Stmt::Realize(r) => Some(&r.block),
        _ => None,
    }
}

/// Shapes of buffers in the smaller program.
struct Shapes<'p> {
    program: &'p Program,
    /// By name.
    shapes: BTreeMap<String, Vec<i64>>,
    /// How many values an iterator has lost.
    fewer: HashMap<VarId, i64>,
}

impl Shapes<'_> {
    /// Shape of what a block writes.
    fn of(&self, block: &Block) -> Option<&[i64]> {
        let name = &self.program.buffer(block.writes.first()?.buffer).name;
        self.shapes.get(name).map(Vec::as_slice)
    }

    /// Extents of a block that makes a buffer, or a part of it: they lose what the buffer's dimensions lose that they index.
    fn made_by(&self, block: &Block) -> Option<Vec<i64>> {
        let (region, shape) = (block.writes.first()?, self.of(block)?);
        let lost = |iv: &IterVar| {
            let is_index = |r: &satune_ir::Range| matches!(&r.min, Expr::Var(v) if v.id == iv.var.id);
            let dim = region.ranges.iter().position(is_index)?;
            Some(constant(self.program.buffer(region.buffer).shape.get(dim)?)? - shape.get(dim)?)
        };
        block.iter_vars.iter().map(|iv| Some(constant(&iv.extent)? - lost(iv).unwrap_or(0))).collect()
    }

    /// Shapes of what a block accesses, given its new extents.
    fn accessed(&mut self, block: &Block, extents: &[i64]) {
        for (iv, new) in block.iter_vars.iter().zip(extents) {
            self.fewer.insert(iv.var.id, constant(&iv.extent).unwrap_or(*new) - new);
        }
        for region in block.reads.iter().chain(&block.writes) {
            let buffer = self.program.buffer(region.buffer);
            let old = buffer.shape.iter().map(|e| constant(e).unwrap_or(1));
            let new = old.zip(&region.ranges).map(|(old, r)| old - self.lost(&r.min)).collect();
            self.shapes.entry(buffer.name.clone()).or_insert(new);
        }
    }

    /// By how much an index's last value gets smaller.
    fn lost(&self, e: &Expr) -> i64 {
        if let Expr::Binary(BinOp::FloorDiv, inner, by) = e {
            return self.lost(inner) / constant(by).unwrap_or(1).max(1);
        }
        let form = Linear::of(e, &Domains::new());
        let lost = |(atom, c): &(Expr, i64)| match atom {
            Expr::Var(v) => c.max(&0) * self.fewer.get(&v.id).copied().unwrap_or(0),
            _ => 0,
        };
        form.map_or(0, |form| form.terms().iter().map(lost).sum())
    }

    /// An upper bound of an index moves with the end of what is padded.
    fn bounded(&self, e: Expr) -> Expr {
        let Expr::Binary(op, a, b) = &e else { return e };
        let moved = |bound: &Expr, index: &Expr| match bound {
            Expr::Int(value, dtype) => Some(Arc::new(Expr::Int(value - self.lost(index), *dtype))),
            _ => None,
        };
        let (left, right) = match op {
            BinOp::Lt | BinOp::Le => (Some(a.clone()), moved(b, a)),
            BinOp::Gt | BinOp::Ge => (moved(a, b), Some(b.clone())),
            _ => return e,
        };
        left.zip(right).map_or_else(|| e.clone(), |(left, right)| Expr::Binary(*op, left, right))
    }
}
