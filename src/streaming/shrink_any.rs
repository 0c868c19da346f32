//! A program of fewer values along its axes, where blocks read in ways that the space does not know: what a block needs of a
//! buffer is read off its regions, and each step is kept only where the smaller program is right by itself.
use super::shrink::resized;
use satune_ir::affine::interval::Interval;
use satune_ir::affine::{constant, Domains};
use satune_ir::term::stream::{BlockKind, Stream, StreamPlan, Streams};
use satune_ir::{access, Block, BufferId, DType, Expr, ForKind, Program, Range, Region, Stmt};
use satune_rewrites::soundness;
use satune_rewrites::space::stream::streams_of;
use satune_rewrites::tree::{child_realizes, children_and_init_mut};
use std::collections::{BTreeMap, HashMap};

/// Blocks of no more instances are simulated as they are.
const WHOLE: i64 = 1 << 14;
/// Values along an axis, at first and where these are too few for the program to be right.
const FEW: [i64; 3] = [5, 9, 17];

/// Extents of the loops of each nest.
type Extents = Vec<Vec<i64>>;

/// The source program with fewer values along its axes, as far as it stays one that the plan schedules. `sizes` has the number
/// of values along the axes where it matters.
pub(super) fn shrink_any(
    program: &Program,
    plan: &StreamPlan,
    problem: &Streams,
    sizes: &BTreeMap<usize, i64>,
) -> Program {
    let Some(source) = problem.variants.first() else { return program.clone() };
    let blocks: Vec<&Block> = child_realizes(&program.body.block.body).into_iter().map(|r| &r.block).collect();
    let mut extents: Extents = source.blocks.iter().map(|b| b.iters.iter().map(|i| i.extent).collect()).collect();
    let mut small = program.clone();
    if blocks.len() != source.blocks.len() {
        return small;
    }
    let mut axes: Vec<(i64, usize)> = Vec::new();
    for iter in source.blocks.iter().flat_map(|b| &b.iters) {
        match axes.iter_mut().find(|(_, axis)| *axis == iter.axis) {
            Some((extent, _)) => *extent = iter.extent.max(*extent),
            None => axes.push((iter.extent, iter.axis)),
        }
    }
    axes.sort_unstable_by_key(|(extent, axis)| (std::cmp::Reverse(*extent), *axis));
    for (extent, axis) in axes {
        if extents.iter().all(|nest| product(nest) <= WHOLE) {
            break;
        }
        let wanted = sizes.get(&axis).map_or(FEW.to_vec(), |size| vec![*size]);
        for few in wanted.into_iter().filter(|few| *few < extent) {
            let mut trial = extents.clone();
            let iters = source.blocks.iter().zip(&mut trial).flat_map(|(b, nest)| b.iters.iter().zip(nest));
            iters.filter(|(iter, _)| iter.axis == axis).for_each(|(_, e)| *e = few.min(*e));
            let shapes = needed(program, source, &blocks, &mut trial);
            let made = resized(program, &trial, &shapes);
            if soundness::readable(&made).is_ok() && streams_of(&made, plan).is_ok() {
                (small, extents) = (made, trial);
                break;
            }
        }
    }
    small
}

/// The source program with fewer blocks, and fewer steps of each thread, in the nests that are bound in it, and with buffers as large
/// as all nests access: as far as it stays right by itself.
pub(super) fn shrink_in_order(program: &Program, plan: &StreamPlan, source: &Stream) -> Program {
    for few in FEW {
        let mut small = program.clone();
        let mut parts = match *small.body.block.body {
            Stmt::Seq(parts) => parts,
            one => vec![one],
        };
        if parts.len() != source.blocks.len() {
            break;
        }
        let mut shapes: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for (part, block) in parts.iter_mut().zip(&source.blocks) {
            if block.kind == BlockKind::Bound && block.instances() > WHOLE {
                fewer(part, few);
            }
            let touched = access::of_block(None, part, &[], &program.buffers);
            for region in touched.reads.iter().chain(&touched.writes) {
                let name = program.buffer(region.buffer).name.clone();
                grow(shapes.entry(name).or_default(), &reach(program, region, &Domains::new()));
            }
        }
        *small.body.block.body = Stmt::seq(parts);
        let made = resized(&small, &[], &shapes);
        if soundness::readable(&made).is_ok() && streams_of(&made, plan).is_ok() {
            return made;
        }
    }
    program.clone()
}

/// A nest with no more than two blocks and a few steps in each loop of a thread.
fn fewer(stmt: &mut Stmt, few: i64) {
    if let Stmt::For(l) = stmt {
        let most = match &l.kind {
            ForKind::ThreadBinding(tag) if tag.starts_with("blockIdx") => 2,
            ForKind::ThreadBinding(_) => i64::MAX,
            _ => few,
        };
        if let Some(extent) = constant(&l.extent).filter(|extent| *extent > most) {
            l.extent = Expr::Int(most.min(extent), l.var.dtype);
        }
    }
    children_and_init_mut(stmt).into_iter().for_each(|s| fewer(s, few));
}

fn product(extents: &[i64]) -> i64 {
    extents.iter().fold(1, |n, e| n.saturating_mul(*e))
}

/// The shapes of buffers, as large as blocks of these extents access. What a block makes for others is no more than they
/// read: last blocks first, its extents become fewer.
fn needed(program: &Program, source: &Stream, blocks: &[&Block], extents: &mut Extents) -> BTreeMap<String, Vec<i64>> {
    let mut read: HashMap<BufferId, Vec<i64>> = HashMap::new();
    let mut shapes: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for (number, block) in blocks.iter().enumerate().rev() {
        let known = &source.blocks[number];
        let only =
            if let [write] = block.writes.as_slice() { read.get(&write.buffer).map(|r| (write, r)) } else { None };
        if let Some((_, read)) = only.filter(|(write, _)| !program.params.contains(&write.buffer)) {
            for (place, (dim, most)) in known.write.dims.iter().zip(read).enumerate() {
                let bare = known.write.split.is_none() && place < read.len();
                if let Some(iter) = dim.filter(|_| bare) {
                    let extent = &mut extents[number][iter];
                    *extent = (*extent).min(*most).max(1);
                }
            }
        }
        let number_of = |value: i64| Expr::Int(value, DType::I32);
        let range = |place: usize| {
            let at = known.places.iter().position(|p| *p == place);
            let extent = at.and_then(|at| extents[number].get(at)).copied().unwrap_or(1);
            Range { min: number_of(0), extent: number_of(extent) }
        };
        let domains: Domains =
            block.iter_vars.iter().enumerate().map(|(place, iv)| (iv.var.id, range(place))).collect();
        for region in &block.reads {
            grow(read.entry(region.buffer).or_default(), &reach(program, region, &domains));
        }
        for region in block.reads.iter().chain(&block.writes) {
            let name = program.buffer(region.buffer).name.clone();
            grow(shapes.entry(name).or_default(), &reach(program, region, &domains));
        }
    }
    shapes
}

/// One past the largest index of each dimension; all of it where that is not known.
fn reach(program: &Program, region: &Region, domains: &Domains) -> Vec<i64> {
    let shape = program.buffer(region.buffer).shape.iter().map(|e| constant(e).unwrap_or(1));
    let end = |range: &Range| {
        let interval = Interval::of_range(range, domains, &Domains::new())?;
        interval.hi.as_constant()?.checked_add(1)
    };
    region.ranges.iter().zip(shape).map(|(range, whole)| end(range).map_or(whole, |e| e.clamp(1, whole))).collect()
}

fn grow(known: &mut Vec<i64>, other: &[i64]) {
    known.resize(other.len().max(known.len()), 1);
    known.iter_mut().zip(other).for_each(|(k, o)| *k = (*k).max(*o));
}
