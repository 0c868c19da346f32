//! The k best distinct programs of a space under the full cost, exactly.
//!
//! The outer decisions (tiles and order of blocks, threads, k tile, overlap) are searched best first under a bound that
//! no program below them can beat ([`crate::least`]). What a block does within a k tile is searched below them, loop by
//! loop, under the bound that the ideals of each class give ([`crate::descend`], [`crate::inner`]). A part is left out
//! only when its bound is not below the k-th best time: so the k found are the k best, or, where a time limit ends the
//! search, the bound says how good anything else can be.
use crate::cores::Outer;
use crate::cost;
use crate::inner::{Known, Labels};
use crate::path::{Above, Path};
use crate::prediction::Cost;
use crate::query::Query;
use crate::tensor;
use crate::time::Moved;
use crate::work::outer_iterations;
use crate::Descriptor;
use egg::{Id, Language, RecExpr};
use rayon::prelude::*;
use satune_ir::term::{
    Axis, BlockLoop, Contraction, CoresPlan, Pair, Pipe, Role, Schedule, Side, Space, StagedLayout, State, Team, Term,
};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An extracted program, a term of language `T`.
#[derive(Clone, Debug)]
pub struct Candidate<T = Term> {
    /// Its term.
    pub term: RecExpr<T>,
    /// Its decisions.
    pub plan: Schedule,
    /// Its predicted time and parts.
    pub cost: Cost,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Extraction<T = Term> {
    /// Best first.
    pub candidates: Vec<Candidate<T>>,
    /// Whether they are proved to be the k best.
    pub proved: bool,
    /// No program of the space that is not among them is faster than this, ms.
    pub bound_ms: f64,
    /// Outer choices in all, and those that had to be looked into; of streaming programs the kernels' schedules.
    pub outer: (usize, usize),
    /// Wall-clock time.
    pub time: Duration,
}

/// One way to reach a block: the order of the loops over blocks.
#[derive(Clone)]
pub(crate) struct Context<'s> {
    blocks: Vec<BlockLoop>,
    split_k: i64,
    dram: Moved,
    /// From the root down to, and without, what the block does.
    pub above: Above<'s>,
}

/// A choice of everything down to the k loop.
pub(crate) struct Unit<'s> {
    pub accumulators: Id,
    /// From the block's class down to, and with, the k loop.
    pub above: Above<'s>,
    pub in_place: bool,
    /// Operands that are copied whole before the k loop.
    pub strips: Vec<Strip>,
    pub pipe: Pipe,
    pub k_tile: i64,
    pub staging: Id,
    pub bound: f64,
}

/// A strip that is copied before the k loop.
#[derive(Clone, Copy)]
pub(crate) struct Strip {
    pub side: Side,
    pub layout: StagedLayout,
    /// The class of its copy.
    pub fill: Id,
    /// Shared memory that it takes.
    pub bytes: i64,
}

impl Unit<'_> {
    /// The strip of an operand.
    pub fn strip(&self, side: Side) -> Option<&Strip> {
        self.strips.iter().find(|s| s.side == side)
    }
}

/// Block tile and k tile.
type Shape = (i64, i64, i64);

struct Found<'s> {
    ms: f64,
    path: Arc<Path<'s>>,
    key: Shape,
}

/// What the workers of a search share.
pub(crate) struct Common<'k> {
    /// The k-th best time that any worker knows, as bits.
    worst: AtomicU64,
    /// Where no two candidates share block tile and k tile: the best time of each.
    shapes: Mutex<HashMap<Shape, f64>>,
    /// Whether there is time left.
    go_on: &'k (dyn Fn() -> bool + Sync),
}

impl Common<'_> {
    /// The best time of a shape that any worker knows, `ms` being one.
    fn best_of(&self, shape: Shape, ms: f64) -> f64 {
        let mut shapes = self.shapes.lock().unwrap_or_else(PoisonError::into_inner);
        let best = shapes.entry(shape).or_insert(ms);
        *best = best.min(ms);
        *best
    }
}

/// The contexts of each block's class, those that move the fewest bytes first.
type Contexts<'s> = BTreeMap<Id, Vec<Context<'s>>>;

pub(crate) struct Search<'k, 's> {
    pub space: &'s Space,
    gpu: &'k Descriptor,
    pub query: Query,
    pub labels: Labels<'k, 's>,
    contexts: Arc<Contexts<'s>>,
    best: Vec<Found<'s>>,
    common: &'k Common<'k>,
    /// No program of the shape that is looked into matters unless it is as fast as this, where shapes must differ.
    of_shape: f64,
    /// Whether the search was told to end.
    stopped: Cell<bool>,
}

/// Finds the k best programs of a space on a GPU. The outer choices are dealt out to as many workers as rayon has
/// threads; the result does not depend on how many, or on which was faster.
pub fn best(space: &Space, gpu: &Descriptor, query: Query) -> Extraction {
    best_while(space, gpu, query, &|| true)
}

/// [`best`], ended early when `go_on` says so: then as if the time were over.
pub fn best_while(space: &Space, gpu: &Descriptor, query: Query, go_on: &(dyn Fn() -> bool + Sync)) -> Extraction {
    best_knowing(space, &Known::new(space), gpu, query, go_on)
}

/// [`best_while`] with what earlier searches of the space, for any GPU, have found out.
pub fn best_knowing<'s>(
    space: &'s Space,
    known: &Known<'s>,
    gpu: &Descriptor,
    query: Query,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Extraction {
    let start = Instant::now();
    // Tensor cores first: where there are some, what single threads do seldom comes near.
    let go_on = || start.elapsed() <= query.limit && go_on();
    let tensor = tensor::search(space, &known.tensor, gpu, query, &go_on);
    let worst = tensor.found.get(query.k.wrapping_sub(1)).map_or(query.below_ms, |f| f.ms);
    let shapes = if query.diverse { tensor.found.iter().map(|f| (f.key, f.ms)).collect() } else { HashMap::new() };
    let common = Common { worst: AtomicU64::new(worst.to_bits()), shapes: Mutex::new(shapes), go_on: &go_on };
    let mut first = Search::new(space, gpu, query, &common, known);
    // Where tensor cores are far ahead, not even bounds are made of what single threads do.
    if single_threads_ms(&space.contraction, gpu) < worst {
        first.grid(space.egraph.find(space.root), Vec::new(), Vec::new());
    }
    for list in Arc::make_mut(&mut first.contexts).values_mut() {
        // What a block's class does is the same in all of them but for the traffic, in which the time is monotone.
        list.sort_by(|a, b| a.dram.total().total_cmp(&b.dram.total()));
        list.truncate(if query.diverse { 1 } else { query.k });
    }
    let mut units = first.units();
    // The sort is stable, so the order does not depend on anything but the space.
    units.sort_by(|a, b| a.bound.total_cmp(&b.bound));
    let total = units.len();
    // Every worker begins with a share of the most promising ones.
    let mut shares: Vec<Vec<Unit>> = (0..SHARES).map(|_| Vec::new()).collect();
    for (i, unit) in units.into_iter().enumerate() {
        shares[i % SHARES].push(unit);
    }
    let contexts = first.contexts.clone();
    let results: Vec<(Vec<Found>, usize, Option<f64>)> = shares
        .into_par_iter()
        .map(|units| {
            let mut search = Search::new(space, gpu, query, &common, known);
            search.contexts = contexts.clone();
            let mut looked = 0;
            let mut stopped = None;
            for unit in &units {
                // What another unit's shape has found says nothing of this one's.
                search.of_shape = f64::INFINITY;
                let hopeless = search.hopeless(unit.bound);
                if !hopeless {
                    looked += 1;
                    search.enter_shape(unit);
                    search.look_into(unit);
                }
                if search.stopped.get() {
                    stopped = Some(unit.bound);
                }
                if hopeless || search.stopped.get() {
                    break;
                }
            }
            (search.best, looked, stopped)
        })
        .collect();
    let looked = results.iter().map(|r| r.1).sum::<usize>() + tensor.looked.1;
    let total = total + tensor.looked.0;
    // Of units that were not even collected nothing is known.
    let unknown = if first.stopped.get() { 0.0 } else { f64::INFINITY };
    let left = results.iter().filter_map(|r| r.2).fold(tensor.left.min(unknown), f64::min);
    let from_tensor = tensor.found.into_iter().map(|f| Found { ms: f.ms, path: f.path, key: f.key });
    let mut found: Vec<Found> = from_tensor.chain(results.into_iter().flat_map(|r| r.0)).collect();
    found.sort_by(|a, b| a.ms.total_cmp(&b.ms));
    if query.diverse {
        let mut seen = std::collections::HashSet::new();
        found.retain(|f| seen.insert(f.key));
    }
    found.truncate(query.k);
    let worst = if found.len() == query.k { found.last().map_or(query.below_ms, |f| f.ms) } else { query.below_ms };
    let contraction = &space.contraction;
    let candidates: Vec<Candidate> = found
        .into_iter()
        .filter_map(|found| {
            let term = found.path.term();
            let plan = Schedule::from_term(&term, contraction).ok()?;
            let cost = cost::predict(&plan, contraction, gpu).ok()?;
            Some(Candidate { term, plan, cost })
        })
        .collect();
    Extraction {
        candidates,
        proved: left >= worst,
        bound_ms: left.min(worst),
        outer: (total, looked),
        time: start.elapsed(),
    }
}

/// What single threads take at least for the multiply-adds of a contraction, ms: every lane of the chip begins some in each
/// clock, of 8-bit operands four.
fn single_threads_ms(contraction: &Contraction, gpu: &Descriptor) -> f64 {
    const AT_ONCE: f64 = 4.0;
    let multiply_adds: f64 = contraction.iters.iter().map(|(_, info)| info.extent as f64).product();
    let per_clock = AT_ONCE * f64::from(gpu.fp32_lanes.max(gpu.fp64_lanes)) * f64::from(gpu.sms);
    multiply_adds / per_clock / (gpu.clock_mhz * 1e3)
}

/// Parts that the outer choices are dealt into.
const SHARES: usize = 4;

impl<'k, 's> Search<'k, 's> {
    fn new(
        space: &'s Space,
        gpu: &'k Descriptor,
        query: Query,
        common: &'k Common<'k>,
        known: &'k Known<'s>,
    ) -> Search<'k, 's> {
        let labels = Labels { space, k: query.k, known };
        let (of_shape, stopped) = (f64::INFINITY, Cell::new(false));
        Search { space, gpu, query, labels, contexts: Arc::default(), best: Vec::new(), common, of_shape, stopped }
    }

    /// Whether a program of at least this time cannot be among the k best, or the search was told to end. A tie with what
    /// another worker has is kept, so that the outcome does not depend on who was first.
    pub(crate) fn hopeless(&self, ms: f64) -> bool {
        if self.stopped.get() || !(self.common.go_on)() {
            self.stopped.set(true);
            return true;
        }
        ms >= self.worst() || ms > self.of_shape || ms > f64::from_bits(self.common.worst.load(Ordering::Relaxed))
    }

    /// Looks up what is known of a unit's block tile and k tile.
    fn enter_shape(&mut self, unit: &Unit<'s>) {
        if self.query.diverse {
            let tile = self.space.state(unit.accumulators).tile;
            self.of_shape = self.common.best_of((tile.m, tile.n, unit.k_tile), f64::INFINITY);
        }
    }

    /// The time that a new program of this worker must beat.
    fn worst(&self) -> f64 {
        if self.best.len() < self.query.k {
            self.query.below_ms
        } else {
            self.best.last().map_or(self.query.below_ms, |f| f.ms)
        }
    }

    /// Takes up a program if it is among the k best so far.
    pub(crate) fn offer(&mut self, ms: f64, key: Shape, path: Arc<Path<'s>>) {
        if self.query.diverse {
            if let Some(same) = self.best.iter().position(|f| f.key == key) {
                if self.best[same].ms <= ms {
                    return;
                }
                self.best.remove(same);
            }
        }
        if self.hopeless(ms) {
            return;
        }
        if self.query.diverse {
            self.of_shape = self.common.best_of(key, ms);
        }
        let at = self.best.partition_point(|f| f.ms <= ms);
        self.best.insert(at, Found { ms, path, key });
        self.best.truncate(self.query.k);
        let worst = self.worst();
        // Times are positive, so their bits are ordered as they are.
        self.common.worst.fetch_min(worst.to_bits(), Ordering::Relaxed);
    }

    /// Collects the ways from the root to the blocks.
    fn grid(&mut self, class: Id, above: Above<'s>, blocks: Vec<BlockLoop>) {
        let space = self.space;
        for node in space.choices(class) {
            let mut above = above.clone();
            let mut blocks = blocks.clone();
            let next = space.egraph.find(node.children()[0]);
            match node {
                Term::Split(children) => {
                    let finish = space.egraph.find(children[1]);
                    let Some(finish) = space.choices(finish).next() else { continue };
                    above.push((node, Some(Path::leaf(finish))));
                }
                Term::Loop { axis, role, extent, .. } => {
                    blocks.push(BlockLoop { axis: *axis, extent: *extent, group: *role == Role::Group });
                    above.push((node, None));
                }
                Term::Cta { .. } => {
                    above.push((node, None));
                    self.context(next, above, blocks);
                    continue;
                }
                Term::Tensor { .. } => continue,
                _ => above.push((node, None)),
            }
            self.grid(next, above, blocks);
        }
    }

    fn context(&mut self, class: Id, above: Above<'s>, blocks: Vec<BlockLoop>) {
        let state = *self.space.state(class);
        let Team::Cta(threads) = state.team else { return };
        let contraction = &self.space.contraction;
        let split_k = blocks.iter().find(|b| b.axis == Axis::K).map_or(1, |b| b.extent);
        let mut plan = CoresPlan::naive(contraction);
        plan.blocks.clone_from(&blocks);
        plan.split_k = split_k;
        plan.tile = Pair { m: state.tile.m, n: state.tile.n };
        plan.k_part = state.tile.k;
        plan.threads = threads;
        let sums = sums(&state, threads, contraction);
        let dram = cost::dram_bytes(&plan, contraction, self.gpu, sums);
        Arc::make_mut(&mut self.contexts).entry(class).or_default().push(Context { blocks, split_k, dram, above });
    }

    /// Every choice down to the k loop, with its bound.
    fn units(&self) -> Vec<Unit<'s>> {
        let space = self.space;
        let mut units = Vec::new();
        for class in self.contexts.keys() {
            if !(self.common.go_on)() {
                self.stopped.set(true);
                break;
            }
            for node in space.choices(*class) {
                let side = match node {
                    Term::Write(children) => {
                        let drain = space.egraph.find(children[1]);
                        space.choices(drain).next().map(Path::leaf)
                    }
                    _ => None,
                };
                let in_place = matches!(node, Term::InPlace(_));
                let next = space.egraph.find(node.children()[0]);
                self.reduce((*class, in_place), next, vec![(node, side)], Vec::new(), &mut units);
            }
        }
        units
    }

    /// `block`: the class of the accumulators, and whether the sums are kept in place.
    fn reduce(&self, block: (Id, bool), class: Id, above: Above<'s>, strips: Vec<Strip>, units: &mut Vec<Unit<'s>>) {
        let space = self.space;
        let (accumulators, in_place) = block;
        for node in space.choices(class) {
            let (mut above, mut strips) = (above.clone(), strips.clone());
            above.push((node, None));
            let first = space.egraph.find(node.children()[0]);
            match node {
                Term::Loop { role: Role::Pipeline(pipe), .. } => {
                    let (pipe, k_tile, staging) = (*pipe, space.state(first).tile.k, first);
                    let mut unit = Unit { accumulators, above, in_place, strips, pipe, k_tile, staging, bound: 0.0 };
                    unit.bound = self.bound(&unit);
                    if unit.bound.is_finite() {
                        units.push(unit);
                    }
                }
                Term::Strip { side, layout, tile, children } => {
                    let element = i64::from(space.contraction.operand(*side).dtype.bytes());
                    let bytes = layout.elements(tile[0], tile[1]) * element;
                    strips.push(Strip { side: *side, layout: *layout, fill: first, bytes });
                    self.reduce(block, space.egraph.find(children[1]), above, strips, units);
                }
                _ => self.reduce(block, first, above, strips, units),
            }
        }
    }

    /// What of a unit's programs is fixed before their blocks begin, in each context, the least traffic first.
    pub(crate) fn contexts(&self, unit: &Unit<'s>) -> Vec<(Outer<'k>, Above<'s>)> {
        let contexts = self.contexts.get(&unit.accumulators).map_or(&[][..], Vec::as_slice);
        contexts.iter().map(|c| (self.outer(unit, c), c.above.clone())).collect()
    }

    /// The one of [`Search::contexts`] with the least traffic.
    pub(crate) fn least_outer(&self, unit: &Unit<'s>) -> Option<Outer<'k>> {
        Some(self.outer(unit, self.contexts.get(&unit.accumulators)?.first()?))
    }

    fn outer(&self, unit: &Unit<'s>, context: &Context<'s>) -> Outer<'k> {
        let space = self.space;
        let contraction = &space.contraction;
        let state = space.state(unit.accumulators);
        let threads = if let Team::Cta(t) = state.team { t } else { 1 };
        let tiles = (state.tile.k + unit.k_tile - 1) / unit.k_tile;
        Outer {
            contraction,
            gpu: self.gpu,
            threads,
            blocks: context.blocks.iter().map(|b| b.extent).product(),
            split_k: context.split_k,
            k_tiles: tiles as f64 * outer_iterations(contraction),
            sums: if unit.in_place { 0 } else { sums(state, threads, contraction) },
            pipe: unit.pipe,
            dram: context.dram,
        }
    }
}

/// 32-bit registers of a thread's accumulators.
fn sums(state: &State, threads: u32, contraction: &Contraction) -> i64 {
    state.tile.m * state.tile.n / i64::from(threads) * cost::words(contraction.accumulate)
}
