//! A program of fewer values along its axes, where blocks read in ways that the space does not know: what a block needs of a
//! buffer is read off its regions, and each step is kept only where the smaller program is right by itself.
use super::shrink::{fitted, resized};
use satune_ir::affine::interval::Interval;
use satune_ir::affine::{constant, Domains};
use satune_ir::term::stream::{BlockKind, Stream, StreamBlock, StreamPlan, Streams};
use satune_ir::term::tensor::Gemm;
use satune_ir::term::Side;
use satune_ir::{access, Block, BufferId, DType, Expr, ForKind, Program, Range, Region, Stmt};
use satune_rewrites::soundness;
use satune_rewrites::space::stream::{streams_of, trace};
use satune_rewrites::tree::{child_realizes, children_and_init_mut};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Blocks of no more instances are simulated as they are.
const WHOLE: i64 = 1 << 14;
/// Values along an axis, at first and where these are too few for the program to be right.
const FEW: [i64; 3] = [5, 9, 17];

/// Extents of the loops of each nest.
type Extents = Vec<Vec<i64>>;

/// The source program with fewer values along its axes, as far as it stays one that the plan schedules. `sizes` has the number
/// of values along the axes where it matters, `multiples` what it is a multiple of along others.
pub(super) fn shrink_any(
    program: &Program,
    plan: &StreamPlan,
    problem: &Streams,
    sizes: &BTreeMap<usize, i64>,
    multiples: &BTreeMap<usize, i64>,
) -> Program {
    let source = problem.whole();
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
    let wanted_of_factors = gathered(plan, problem);
    axes.sort_unstable_by_key(|(extent, axis)| (std::cmp::Reverse(*extent), *axis));
    for (extent, axis) in axes {
        if extents.iter().all(|nest| product(nest) <= WHOLE) {
            break;
        }
        let of = multiples.get(&axis).copied().unwrap_or(1);
        let few = FEW.map(|few| (few + of - 1) / of * of);
        // Several digits make one axis of a product: so many of one of them may be no whole clusters.
        let some = |size: &i64| vec![*size, size + (size + 3) / 4, 2 * size];
        let wanted = sizes.get(&axis).map_or(few.to_vec(), some);
        for few in wanted.into_iter().filter(|few| *few < extent) {
            let mut trial = extents.clone();
            let iters = source.blocks.iter().zip(&mut trial).flat_map(|(b, nest)| b.iters.iter().zip(nest));
            iters.filter(|(iter, _)| iter.axis == axis).for_each(|(_, e)| *e = few.min(*e));
            let shapes = needed(program, source, &blocks, &mut trial);
            let made = resized(program, &trial, &shapes);
            let own = streams_of(&made, plan).ok().filter(|_| soundness::readable(&made).is_ok());
            let fits = |own: Streams| {
                gathered(plan, &own) == wanted_of_factors && trace(&fitted(plan.clone(), &made), &own).is_ok()
            };
            if own.is_some_and(fits) {
                (small, extents) = (made, trial);
                break;
            }
        }
    }
    small
}

/// Which factors of the products on tensor cores are gathered. A matrix of which fewer rows are read than it has is; its copies are others.
fn gathered(plan: &StreamPlan, problem: &Streams) -> Vec<[bool; 2]> {
    let Some(stream) = problem.of_plan(plan) else { return Vec::new() };
    let contractions = plan.kernels.iter().filter_map(|kernel| kernel.contraction(&stream));
    let on_tensor_cores = contractions.filter(|(plan, _)| plan.cores().is_none());
    let gemms = on_tensor_cores.filter_map(|(_, contraction)| Gemm::of(contraction).ok());
    gemms.map(|gemm| [Side::A, Side::B].map(|side| gemm.gathered(side).is_some())).collect()
}

/// Steps of a thread in a nest that runs in its order: few, or as many as the nests beside it want.
const STEPS: [i64; 6] = [5, 9, 17, 64, 256, ENOUGH];
const ENOUGH: i64 = 512;

/// The source program with fewer blocks, and fewer steps of each thread, in the nests that are bound in it, fewer values along the
/// axes of the others, and buffers as large as all nests access: as far as it stays right by itself. `wants` is what the plan wants
/// of an axis: how many values, and what they are a multiple of.
pub(super) fn shrink_in_order(
    program: &Program,
    plan: &StreamPlan,
    source: &Stream,
    wants: &BTreeMap<usize, [i64; 2]>,
) -> Program {
    if source.blocks.iter().all(|b| b.instances() <= WHOLE) {
        return program.clone();
    }
    // Where tiles are as large as the program, a part of one will do.
    let tries = STEPS.iter().map(|few| (*few, true)).chain([(ENOUGH, false)]);
    for (few, tiles) in tries {
        let mut small = program.clone();
        let mut parts = match *small.body.block.body {
            Stmt::Seq(parts) => parts,
            one => vec![one],
        };
        if parts.len() != source.blocks.len() {
            break;
        }
        let mut bound = Shapes::default();
        for (part, block) in parts.iter_mut().zip(&source.blocks).filter(|(_, b)| b.kind == BlockKind::Bound) {
            if block.instances() > WHOLE {
                fewer(part, few);
            }
            bound.touched(program, part);
        }
        *small.body.block.body = Stmt::seq(parts);
        let Some(extents) = beside(source, &bound, (few, tiles, wants)) else { continue };
        let small = resized(&small, &extents, &BTreeMap::new());
        let mut all = Shapes::default();
        match &*small.body.block.body {
            Stmt::Seq(parts) => parts.iter().for_each(|part| all.touched(program, part)),
            one => all.touched(program, one),
        }
        let made = resized(&small, &[], &all.reached);
        if soundness::readable(&made).is_ok() && streams_of(&made, plan).is_ok() {
            return made;
        }
    }
    program.clone()
}

/// What nests access of buffers, by name.
#[derive(Default)]
struct Shapes {
    reached: BTreeMap<String, Vec<i64>>,
    written: BTreeSet<String>,
}

impl Shapes {
    fn touched(&mut self, program: &Program, nest: &Stmt) {
        let touched = access::of_block(None, nest, &[], &program.buffers);
        for region in touched.reads.iter().chain(&touched.writes) {
            let name = program.buffer(region.buffer).name.clone();
            grow(self.reached.entry(name).or_default(), &reach(program, region, &Domains::new()));
        }
        self.written.extend(touched.writes.iter().map(|region| program.buffer(region.buffer).name.clone()));
    }
}

/// Extents of the nests that are not bound: of a buffer that bound ones access, and one nest of all makes, all that they access. None
/// where that is not what the plan wants; `tiles`: with two of its tiles along each axis.
fn beside(
    source: &Stream,
    bound: &Shapes,
    (few, tiles, wants): (i64, bool, &BTreeMap<usize, [i64; 2]>),
) -> Option<Extents> {
    let plain = || source.blocks.iter().filter(|b| b.kind != BlockKind::Bound);
    let mut shared: HashMap<usize, i64> = HashMap::new();
    for block in plain() {
        for (access, writes) in block.reads.iter().map(|r| (r, false)).chain([(&block.write, true)]) {
            let name = &source.buffers[access.buffer].name;
            let passes = access.split.is_none() && (writes || bound.written.contains(name));
            let Some(reached) = bound.reached.get(name).filter(|_| passes) else { continue };
            for (iter, reached) in access.dims.iter().zip(reached).filter_map(|(dim, r)| dim.map(|iter| (iter, *r))) {
                if *shared.entry(block.iters[iter].axis).or_insert(reached) != reached {
                    return None;
                }
            }
        }
    }
    let fitting = |axis: usize, extent: i64| {
        let [size, multiple] = wants.get(&axis).copied().unwrap_or([few, 1]);
        let size = if tiles { size } else { size.min(few) };
        let rounded = (size + multiple - 1) / multiple * multiple;
        let value = shared.get(&axis).copied().unwrap_or(rounded).min(extent);
        (value == extent || value >= size && value % multiple == 0).then_some(value)
    };
    let extents = |b: &StreamBlock| match b.kind {
        BlockKind::Bound => Some(Vec::new()),
        _ => b.iters.iter().map(|iter| fitting(iter.axis, iter.extent)).collect(),
    };
    source.blocks.iter().map(extents).collect()
}

/// Blocks of a nest with so few steps: more where others want many.
fn few_blocks(few: i64) -> i64 {
    (few / 64).clamp(2, 16)
}

/// A nest with few blocks and a few steps in each loop of a thread.
fn fewer(stmt: &mut Stmt, few: i64) {
    if let Stmt::For(l) = stmt {
        let most = match &l.kind {
            ForKind::ThreadBinding(tag) if tag.starts_with("blockIdx") => few_blocks(few),
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
