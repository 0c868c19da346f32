//! The same schedule on a problem of few blocks and few iterations, for the simulator.
use super::shrink_any::{shrink_any, shrink_in_order};
use crate::explore::{k_tiles, on_few, oriented, refitted, tensor_parts, tensor_tiles};
use satune_ir::term::stream::{BlockKind, KernelPlan, Stream, StreamBlock, StreamIter, StreamPlan, Streams, TiledPlan};
use satune_ir::term::{Axis, CoresPlan, Schedule};
use satune_ir::{BlockRealize, DType, Expr, Program, Stmt};
use satune_rewrites::space::stream::streams_of;
use std::collections::BTreeMap;

/// What a kernel wants of an axis.
#[derive(Clone, Copy, Debug)]
struct Want {
    /// Values at least.
    size: i64,
    /// A multiple of this.
    multiple: i64,
    /// Tiles of so many values, whose number is a multiple of that: clusters are whole.
    tiles: [i64; 2],
}

impl Want {
    fn of(size: i64, multiple: i64) -> Want {
        Want { size, multiple, tiles: [1, 1] }
    }

    /// Both at once; tiles of one contraction have an axis.
    fn and(self, other: Want) -> Want {
        Want {
            size: self.size.max(other.size),
            multiple: self.multiple / gcd(self.multiple, other.multiple) * other.multiple,
            tiles: if self.tiles[1] > 1 { self.tiles } else { other.tiles },
        }
    }

    /// The fewest values. Most multiples near the size have a number of tiles that fits; where none of 64 has, whole clusters of whole tiles
    /// do.
    fn fewest(self) -> i64 {
        let Want { size, multiple, tiles: [tile, count] } = self;
        let first = up(size, multiple);
        let enough = multiple / gcd(multiple, tile * count) * tile * count;
        let few = (first..).map(|n| n * multiple).take(64).find(|values| up(*values, tile) % count == 0);
        few.unwrap_or(up(size, enough) * enough)
    }
}

/// What is wanted of the source's axes: size, and what it is a multiple of.
fn in_source<'s>(
    wants: BTreeMap<usize, Want>,
    stream: &'s Stream,
    source: &'s Stream,
) -> impl Iterator<Item = (usize, [i64; 2])> + 's {
    let of = |b: &'s StreamBlock| {
        let original = source.blocks.iter().find(|o| o.name == b.name);
        b.iters.iter().zip(original.into_iter().flat_map(|o| &o.iters))
    };
    let both = stream.blocks.iter().flat_map(of);
    both.filter_map(move |(iter, old)| wants.get(&iter.axis).map(|want| (old.axis, [want.fewest(), want.multiple])))
}

/// Axes of the source along which threads of plain kernels have several results, and how many.
fn beside(plan: &StreamPlan, stream: &Stream, source: &Stream) -> BTreeMap<usize, i64> {
    let mut out = BTreeMap::new();
    for kernel in &plan.kernels {
        let KernelPlan::Plain(plain) = kernel else { continue };
        let own = stream.blocks.iter().find(|b| b.name == plain.block);
        let (Some(own), Some(original)) = (own, source.blocks.iter().find(|b| b.name == plain.block)) else { continue };
        let vector = own.spatial().checked_sub(1).map(|last| (last, plain.vector));
        for (iter, results) in vector.into_iter().chain(plain.window.map(|w| (w.iter, w.results))) {
            if let Some(iter) = original.iters.get(iter) {
                let most = out.entry(iter.axis).or_insert(1);
                *most = results.max(*most);
            }
        }
    }
    out
}

/// New extents by axis, so that every kernel of the plan has two blocks or iterations along each axis, the last of them cut
/// where the problem's is.
fn wanted(plan: &StreamPlan, stream: &Stream) -> BTreeMap<usize, Want> {
    let mut wants: BTreeMap<usize, Want> = BTreeMap::new();
    let mut want = |axis: usize, more: Want| {
        let known = wants.entry(axis).or_insert(Want::of(0, 1));
        *known = known.and(more);
    };
    let cut = |extent: i64, tile: i64| if extent % tile == 0 { 2 * tile } else { tile + extent % tile };
    for kernel in &plan.kernels {
        let names = kernel.blocks();
        let Some(from) = stream.blocks.iter().position(|b| Some(b.name.as_str()) == names.first().copied()) else {
            continue;
        };
        let blocks = &stream.blocks[from..from + names.len()];
        match kernel {
            KernelPlan::Row(p) => {
                let Some(shape) = stream.row_shape(from, from + names.len()) else { continue };
                let tile = p.threads * p.vector;
                for b in blocks {
                    // Rows of two blocks, from the innermost row iterator outwards.
                    let (mut rows, mut multiple) = (2 * p.rows_per_block(), p.rows_per_block());
                    for iter in b.iters[..shape.row_iters].iter().rev() {
                        want(iter.axis, Want::of(rows, multiple));
                        (rows, multiple) = (up(rows, iter.extent), multiple / gcd(multiple, iter.extent));
                    }
                    match &b.iters[shape.row_iters..] {
                        [iter] => want(iter.axis, Want::of(tile + cut(iter.extent, tile), p.vector)),
                        [outer, inner @ ..] => {
                            // So many of the outermost that the last tile is cut where the row's is.
                            let below: i64 = inner.iter().map(|iter| iter.extent).product();
                            let step = |whole: i64| whole / gcd(whole, below);
                            want(outer.axis, Want::of(cut(outer.extent, step(tile)), step(p.vector)));
                            inner.iter().for_each(|iter| want(iter.axis, Want::of(iter.extent, 1)));
                        }
                        [] => {}
                    }
                }
            }
            KernelPlan::Flat(p) => {
                for (last, rows) in blocks.iter().filter_map(|b| b.iters.split_last()) {
                    want(last.axis, Want::of(cut(last.extent, p.steps * p.threads * p.vector), p.vector));
                    for (i, iter) in rows.iter().enumerate() {
                        let side = if i + 1 == rows.len() { p.side_by_side } else { 1 };
                        want(iter.axis, Want::of(2 * side, side));
                    }
                }
            }
            KernelPlan::Plain(_) => {}
            KernelPlan::Tiled(p) => {
                let Some(contraction) = stream.contraction(from, from + names.len()) else { continue };
                let Some(sum) = blocks.iter().find(|b| b.name == contraction.block_name) else { continue };
                match &contraction.gather {
                    None => {
                        for (axis, iter) in axes(&contraction.iters, sum) {
                            want(iter.axis, tiled(p, axis, iter.extent));
                        }
                    }
                    Some(gather) => {
                        let digits: Vec<(Axis, &StreamIter)> = axes(&gather.iters, sum).collect();
                        for (axis, info) in &contraction.iters {
                            let own: Vec<&StreamIter> = digits.iter().filter(|(a, _)| a == axis).map(|d| d.1).collect();
                            of_digits(*axis, &own, tiled(p, *axis, info.extent), &mut want);
                        }
                    }
                }
            }
            KernelPlan::Tile(p) => {
                let Some((read, write, _)) = stream.transposed(from) else { continue };
                for (i, iter) in blocks[0].iters.iter().enumerate() {
                    if i == read || i == write {
                        want(iter.axis, Want::of(cut(iter.extent, p.side), p.vector));
                    } else {
                        want(iter.axis, Want::of(2, 1));
                    }
                }
            }
        }
    }
    together(plan, stream, &mut wants);
    wants
}

/// Blocks of one kernel over the same rows or elements need not read the same: their axes keep one size each.
fn together(plan: &StreamPlan, stream: &Stream, wants: &mut BTreeMap<usize, Want>) {
    let of_kernel = |kernel: &KernelPlan| -> Vec<Vec<usize>> {
        if !matches!(kernel, KernelPlan::Row(_) | KernelPlan::Flat(_)) {
            return Vec::new();
        }
        let names = kernel.blocks();
        let blocks = || stream.blocks.iter().filter(|b| names.contains(&b.name.as_str()));
        let most = blocks().map(|b| b.iters.len()).max().unwrap_or(0);
        (0..most).map(|at| blocks().filter_map(|b| Some(b.iters.get(at)?.axis)).collect()).collect()
    };
    let alike: Vec<Vec<usize>> = plan.kernels.iter().flat_map(of_kernel).collect();
    // Each round at least one axis has what another of its kernel wants.
    for _ in 0..wants.len() {
        for axes in &alike {
            let all: Vec<Want> = axes.iter().filter_map(|axis| wants.get(axis).copied()).collect();
            let one = all.into_iter().reduce(Want::and);
            wants.extend(axes.iter().filter_map(|axis| Some((*axis, one?))));
        }
    }
}

/// What an axis of a convolution wants of its digits, the highest first: of m and n the highest have fewer values; of k that with the
/// most, whose runs stay aligned.
fn of_digits(axis: Axis, digits: &[&StreamIter], whole: Want, want: &mut impl FnMut(usize, Want)) {
    if let [one] = digits {
        return want(one.axis, whole);
    }
    let most = digits.iter().map(|iter| iter.extent).max().unwrap_or(1);
    for (at, iter) in digits.iter().enumerate() {
        let others = digits.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, iter)| iter.extent);
        let rest: i64 = others.product();
        let below: i64 = digits[at + 1..].iter().map(|iter| iter.extent).product();
        let own = match axis {
            Axis::K if iter.extent == most => Want::of(up(whole.size, rest), gcd(most, 16)),
            Axis::K => Want::of(iter.extent, 1),
            _ => Want::of(up(whole.size, below).clamp(1, iter.extent), 1),
        };
        // Tiles of what has several digits are no tiles of one of them.
        want(iter.axis, if rest == 1 { Want { tiles: whole.tiles, ..own } } else { own });
    }
}

/// The iterators of the block that sums up, each with its axis.
fn axes<'b, T>(iters: &'b [(Axis, T)], block: &'b StreamBlock) -> impl Iterator<Item = (Axis, &'b StreamIter)> {
    let of = |(place, iter): (&usize, &'b StreamIter)| iters.get(*place).map(|(axis, _)| (*axis, iter));
    block.places.iter().zip(&block.iters).filter_map(of)
}

/// What a contraction wants of an axis: two tiles along m and n, the second cut where the problem's last one is, and as many k tiles
/// as its loop needs.
fn tiled(tiled: &TiledPlan, axis: Axis, extent: i64) -> Want {
    let (tile, tiles) = match (&tiled.plan, axis) {
        (Schedule::Cores(plan), Axis::M) => (plan.tile.m, 2),
        (Schedule::Cores(plan), Axis::N) => (plan.tile.n, 2),
        (Schedule::Cores(plan), Axis::K) => (plan.k_tile * plan.split_k, k_tiles(plan)),
        (on_tensor_cores, axis) => tensor_tiles(on_tensor_cores, axis).unwrap_or((1, 2)),
    };
    // Clusters, and parts of k, have as many tiles each.
    let together = match (&tiled.plan, axis) {
        (Schedule::Cores(_), _) => tile,
        (on_tensor_cores, Axis::K) => tile * tensor_parts(on_tensor_cores),
        _ => tile * tiles,
    };
    let own = match extent % tile {
        0 if extent % together == 0 => Want::of(tiles * tile, together),
        0 => Want::of(tiles * tile, tile),
        // Accesses are as wide as divides the extent.
        rest => Want::of((tiles - 1) * tile + rest, gcd(extent, 16)),
    };
    let in_clusters = match (oriented(&tiled.plan), axis) {
        (Some((tile, cluster)), Axis::M) => [tile[0], cluster[0]],
        (Some((tile, cluster)), Axis::N) => [tile[1], cluster[1]],
        _ => own.tiles,
    };
    Want { tiles: in_clusters, ..own }
}

/// A row that is split, as one kernel wants it.
struct Parted<'a> {
    /// The source's iterator.
    row: &'a StreamIter,
    /// Parts at least.
    parts: i64,
    /// Their number is a multiple of this.
    multiple: i64,
    /// Length of a part at least, and what it is a multiple of.
    place: (i64, i64),
}

/// The source program with fewer values along its axes, and the plan on it, which differs in the number of parts that rows
/// are split into, if in anything.
pub fn shrink(program: &Program, plan: &StreamPlan, problem: &Streams) -> (Program, StreamPlan) {
    let Some(stream) = &problem.of_plan(plan) else { return (program.clone(), plan.clone()) };
    let source = problem.whole();
    if source.blocks.iter().any(|b| b.kind == BlockKind::Bound) {
        let wants = in_source(wanted(plan, stream), stream, source);
        let small = shrink_in_order(program, plan, source, &wants.collect());
        let plan = fitted(plan.clone(), &small);
        return (small, plan);
    }
    // Of what is gathered, the iterators say less than the regions.
    let of_matrices = |b: &StreamBlock| {
        let kernel = plan.kernels.iter().find(|k| k.blocks().contains(&b.name.as_str()));
        kernel.and_then(|k| k.contraction(stream)).is_some_and(|(_, contraction)| contraction.gather.is_none())
    };
    if stream.blocks.iter().any(|b| b.kind == BlockKind::Other && !of_matrices(b)) {
        // What contractions and rows want of their axes; the plain kernels take any number.
        let wants_some = |k: &&KernelPlan| matches!(k, KernelPlan::Tiled(_) | KernelPlan::Row(_));
        let kernels = plan.kernels.iter().filter(wants_some).cloned().collect();
        let wants = wanted(&StreamPlan { kernels, ..plan.clone() }, stream);
        let wants = in_source(wants, stream, source);
        let mut sizes: BTreeMap<usize, i64> =
            wants.map(|(axis, [size, multiple])| (axis, up(size, multiple) * multiple)).collect();
        if plan.parts > 1 {
            let sums = source.blocks.iter().filter(|b| b.sums);
            for iter in sums.filter_map(|b| b.iters.iter().find(|i| i.reduce)) {
                sizes.entry(iter.axis).or_insert(2 * plan.parts);
            }
        }
        let small = shrink_any(program, plan, problem, &sizes, &beside(plan, stream, source));
        let plan = fitted(plan.clone(), &small);
        return (small, plan);
    }
    // Axes are numbered anew when blocks go; iterators of one name and block are the same.
    let wants = wanted(plan, stream);
    let size = |iter: &StreamIter| {
        let w = wants.get(&iter.axis)?;
        Some(w.fewest()).filter(|size| *size < iter.extent)
    };
    // Tiles that come in clusters, by the source's axes.
    let mut clusters: BTreeMap<usize, [i64; 2]> = BTreeMap::new();
    let multiple = |iter: &StreamIter| wants.get(&iter.axis).map_or(1, |w| w.multiple);
    // Of each axis of the source the size, and what it is a multiple of.
    let mut extents: BTreeMap<usize, (i64, i64)> = BTreeMap::new();
    let mut least = |axis: usize, size: i64, multiple: i64| {
        let known = extents.entry(axis).or_insert((size, multiple));
        *known = (known.0.max(size), known.1.max(multiple));
    };
    let mut parted: Vec<Parted<'_>> = Vec::new();
    for b in &stream.blocks {
        let Some(original) = source.blocks.iter().find(|o| o.name == b.name.trim_end_matches("_rf")) else { continue };
        if plan.parts > 1 && b.name.ends_with("_rf") && original.name != b.name {
            // Its iterators are those of the original, the first that is reduced over as a part, and a place in it unless
            // each value is a part.
            let at = original.spatial();
            let (Some(part), Some(row)) = (b.iters.get(at), original.iters.get(at)) else { continue };
            let place = (b.iters.len() > original.iters.len()).then(|| &b.iters[at + 1]);
            parted.push(Parted {
                row,
                parts: size(part).unwrap_or(part.extent),
                multiple: multiple(part),
                place: place.map_or((1, 1), |p| (size(p).unwrap_or(p.extent), multiple(p))),
            });
            let inner = at + 1 + usize::from(place.is_some());
            let rows = b.iters[..at].iter().zip(&original.iters);
            for (iter, old) in rows.chain(b.iters[inner..].iter().zip(&original.iters[at + 1..])) {
                least(old.axis, size(iter).unwrap_or(iter.extent), 1);
            }
            continue;
        }
        let whole = |other: &&StreamBlock| other.name == format!("{}_rf", b.name);
        let adds_parts = plan.parts > 1 && stream.blocks.iter().any(|other| whole(&other));
        for (iter, old) in b.iters.iter().zip(&original.iters) {
            // What is reduced over there are the parts.
            if !(adds_parts && iter.reduce) {
                least(old.axis, size(iter).unwrap_or(iter.extent), multiple(iter));
                clusters.extend(wants.get(&iter.axis).filter(|w| w.tiles[1] > 1).map(|w| (old.axis, w.tiles)));
            }
        }
    }
    let mut small = plan.clone();
    if let Some(most) = parted.iter().map(|p| p.parts).max() {
        // All rows have as many parts.
        let multiple = parted.iter().map(|p| p.multiple).max().unwrap_or(1);
        small.parts = (up(most, multiple) * multiple).min(plan.parts);
    }
    for Parted { row, place, .. } in &parted {
        least(row.axis, small.parts * place.0, place.1);
    }
    let whole_again = parted.iter().any(|p| {
        let (size, multiple) = extents.get(&p.row.axis).copied().unwrap_or((p.row.extent, 1));
        up(size, small.parts * multiple) * small.parts * multiple >= p.row.extent
    });
    if whole_again {
        small.parts = plan.parts;
    }
    for Parted { row, .. } in &parted {
        let Some((size, multiple)) = extents.get_mut(&row.axis) else { continue };
        let whole = small.parts * *multiple;
        *size = if whole_again { row.extent } else { up(*size, whole) * whole };
    }
    // Another kernel may want more of an axis than its clusters do.
    for (axis, tiles) in clusters {
        if let Some((size, multiple)) = extents.get_mut(&axis) {
            *size = Want { size: *size, multiple: *multiple, tiles }.fewest();
        }
    }
    let new = |i: &StreamIter| extents.get(&i.axis).map_or(i.extent, |(size, _)| *size).min(i.extent);
    let nests: Vec<Vec<i64>> = source.blocks.iter().map(|b| b.iters.iter().map(new).collect()).collect();
    let mut shapes = BTreeMap::new();
    for b in &source.blocks {
        for access in b.accesses() {
            shapes.insert(source.buffers[access.buffer].name.clone(), access.reach(&|i| new(&b.iters[i])));
        }
    }
    let program = resized(program, &nests, &shapes);
    let plan = fitted(small, &program);
    (program, plan)
}

/// The plan with as many blocks in its contractions as the program has tiles.
pub(super) fn fitted(mut plan: StreamPlan, program: &Program) -> StreamPlan {
    let problem = streams_of(program, &plan).ok();
    let Some(stream) = problem.as_ref().and_then(|problem| problem.of_plan(&plan)) else { return plan };
    for kernel in &mut plan.kernels {
        let contraction = kernel.contraction(&stream).map(|(_, contraction)| contraction);
        if let (KernelPlan::Tiled(tiled), Some(contraction)) = (kernel, contraction) {
            tiled.plan = match &tiled.plan {
                Schedule::Cores(plan) => {
                    let k_part = contraction.extent(Axis::K) / plan.split_k;
                    Schedule::Cores(refitted(CoresPlan { k_part, ..plan.clone() }, contraction))
                }
                on_tensor_cores => on_few(on_tensor_cores),
            };
        }
    }
    plan
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

fn up(x: i64, y: i64) -> i64 {
    (x + y - 1) / y.max(1)
}

fn integer(value: i64) -> Expr {
    Expr::Int(value, DType::I32)
}

/// The program with other extents: of the loops of each nest in order, and of the buffers by name.
pub(crate) fn resized(program: &Program, nests: &[Vec<i64>], shapes: &BTreeMap<String, Vec<i64>>) -> Program {
    let mut out = program.clone();
    let mut parts = match (*out.body.block.body).clone() {
        Stmt::Seq(parts) => parts,
        one => vec![one],
    };
    for (part, extents) in parts.iter_mut().zip(nests) {
        resize_nest(part, extents);
    }
    for buffer in &mut out.buffers {
        if let Some(shape) = shapes.get(&buffer.name) {
            buffer.shape = shape.iter().map(|e| integer(*e)).collect();
        }
    }
    out.body.block.body = Box::new(Stmt::seq(parts));
    out
}

fn resize_nest(stmt: &mut Stmt, extents: &[i64]) {
    if let (Stmt::For(l), Some((first, rest))) = (stmt, extents.split_first()) {
        l.extent = integer(*first);
        resize_nest(&mut l.body, rest);
        // The block's iterators have the loops' extents.
        resize_block(&mut l.body, &l.var.clone(), &l.extent.clone());
    }
}

fn resize_block(stmt: &mut Stmt, var: &satune_ir::Var, extent: &Expr) {
    match stmt {
        Stmt::For(l) => resize_block(&mut l.body, var, extent),
        Stmt::Realize(r) => {
            let BlockRealize { iter_values, block, .. } = &mut **r;
            for (value, iter) in iter_values.iter().zip(&mut block.iter_vars) {
                if matches!(value, Expr::Var(v) if v == var) {
                    iter.extent = extent.clone();
                }
            }
        }
        _ => {}
    }
}
