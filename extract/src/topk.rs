//! The k best distinct programs of a space under the full cost, exactly.
//!
//! The outer decisions (tiles and order of blocks, threads, k tile, overlap) are searched best first under a bound that
//! no program below them can beat; what a block does within a k tile comes from labels under k-dominance (see
//! [`crate::inner`]). The time is monotone in every component of a label, and the search stops only when the bound of
//! everything that is left exceeds the k-th best: so the k found are the k best, or, where a time limit ends it, the
//! bound says how good anything else can be.
use crate::cost::{self, time, Cost, Inner, Outer};
use crate::dominance;
use crate::inner::{FillLabel, Known, Label, Labels};
use crate::path::Path;
use crate::work::Work;
use crate::Descriptor;
use egg::{Id, Language, RecExpr};
use rayon::prelude::*;
use satune_ir::term::{Axis, BlockLoop, Contraction, Layout, Pipe, Plan, Role, Side, Space, State, Team, Term};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An extracted program.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its term.
    pub term: RecExpr<Term>,
    /// Its plan.
    pub plan: Plan,
    /// Its predicted time and parts.
    pub cost: Cost,
}

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// How many.
    pub k: usize,
    /// No two of them share block tile and k tile.
    pub diverse: bool,
    /// Longest time.
    pub limit: Duration,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Extraction {
    /// Best first.
    pub candidates: Vec<Candidate>,
    /// Whether they are proved to be the k best.
    pub proved: bool,
    /// No program of the space that is not among them is faster than this, ms.
    pub bound_ms: f64,
    /// Outer choices in all, and those that had to be looked into.
    pub outer: (usize, usize),
    /// Wall-clock time.
    pub time: Duration,
}

/// One way to reach a block: the order of the loops over blocks.
#[derive(Clone)]
struct Context {
    blocks: Vec<BlockLoop>,
    split_k: i64,
    dram_bytes: f64,
    /// From the root down to, and without, what the block does.
    above: Vec<(Term, Option<Arc<Path>>)>,
}

/// A choice of everything down to the k loop.
struct Unit {
    accumulators: Id,
    /// From the block's class down to, and with, the k loop.
    above: Vec<(Term, Option<Arc<Path>>)>,
    in_place: bool,
    pipe: Pipe,
    k_tile: i64,
    staging: Id,
    bound: f64,
    /// Position in the order in which units were found.
    order: usize,
    /// Which worker's it is.
    share: usize,
}

struct Found {
    ms: f64,
    path: Arc<Path>,
    key: (i64, i64, i64),
}

struct Search<'s> {
    space: &'s Space,
    gpu: &'s Descriptor,
    query: Query,
    labels: Labels<'s>,
    contexts: Arc<BTreeMap<Id, Vec<Context>>>,
    best: Vec<Found>,
    /// The k-th best time that any worker knows, as bits.
    shared: &'s AtomicU64,
}

/// Finds the k best programs of a space on a GPU. The outer choices are dealt out to as many workers as rayon has
/// threads; the result does not depend on how many, or on which was faster.
pub fn best(space: &Space, gpu: &Descriptor, query: Query) -> Extraction {
    let start = Instant::now();
    let shared = AtomicU64::new(f64::INFINITY.to_bits());
    let known = Known::default();
    let mut first = Search::new(space, gpu, query, &shared, &known);
    first.grid(space.egraph.find(space.root), Vec::new(), Vec::new());
    for list in Arc::make_mut(&mut first.contexts).values_mut() {
        list.sort_by(|a, b| a.dram_bytes.total_cmp(&b.dram_bytes));
        list.truncate(if query.diverse { 1 } else { query.k });
    }
    let mut units = first.units();
    units.sort_by(|a, b| a.bound.total_cmp(&b.bound).then(a.order.cmp(&b.order)));
    let total = units.len();
    // Units that share labels go to one worker.
    let mut shares: Vec<Vec<Unit>> = (0..SHARES).map(|_| Vec::new()).collect();
    for unit in units {
        shares[unit.share].push(unit);
    }
    let contexts = first.contexts.clone();
    let results: Vec<(Vec<Found>, usize, Option<f64>)> = shares
        .into_par_iter()
        .map(|units| {
            let mut search = Search::new(space, gpu, query, &shared, &known);
            search.contexts = contexts.clone();
            let mut looked = 0;
            let mut stopped = None;
            for unit in &units {
                if search.hopeless(unit.bound) {
                    break;
                }
                if start.elapsed() > query.limit {
                    stopped = Some(unit.bound);
                    break;
                }
                looked += 1;
                search.look_into(unit);
            }
            (search.best, looked, stopped)
        })
        .collect();
    let looked = results.iter().map(|r| r.1).sum();
    let left = results.iter().filter_map(|r| r.2).fold(f64::INFINITY, f64::min);
    let mut found: Vec<Found> = results.into_iter().flat_map(|r| r.0).collect();
    found.sort_by(|a, b| a.ms.total_cmp(&b.ms));
    if query.diverse {
        let mut seen = std::collections::HashSet::new();
        found.retain(|f| seen.insert(f.key));
    }
    found.truncate(query.k);
    let worst = if found.len() == query.k { found.last().map_or(f64::INFINITY, |f| f.ms) } else { f64::INFINITY };
    let contraction = &space.contraction;
    let candidates: Vec<Candidate> = found
        .into_iter()
        .filter_map(|found| {
            let term = found.path.term();
            let plan = Plan::from_term(&term, contraction).ok()?;
            let cost = cost::cost(&plan, contraction, gpu).ok()?;
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

/// Parts that the outer choices are dealt into.
const SHARES: usize = 4;

impl<'s> Search<'s> {
    fn new(space: &'s Space, gpu: &'s Descriptor, query: Query, shared: &'s AtomicU64, known: &'s Known) -> Search<'s> {
        let labels = Labels::new(space, query.k, known);
        Search { space, gpu, query, labels, contexts: Arc::default(), best: Vec::new(), shared }
    }

    /// Whether a program of at least this time cannot be among the k best. A tie with what another worker has is kept,
    /// so that the outcome does not depend on who was first.
    fn hopeless(&self, ms: f64) -> bool {
        ms >= self.worst() || ms > f64::from_bits(self.shared.load(Ordering::Relaxed))
    }

    /// The time that a new program of this worker must beat.
    fn worst(&self) -> f64 {
        if self.best.len() < self.query.k {
            f64::INFINITY
        } else {
            self.best.last().map_or(f64::INFINITY, |f| f.ms)
        }
    }

    fn offer(&mut self, ms: f64, key: (i64, i64, i64), path: impl FnOnce() -> Arc<Path>) {
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
        let at = self.best.partition_point(|f| f.ms <= ms);
        self.best.insert(at, Found { ms, path: path(), key });
        self.best.truncate(self.query.k);
        let worst = self.worst();
        // Times are positive, so their bits are ordered as they are.
        self.shared.fetch_min(worst.to_bits(), Ordering::Relaxed);
    }

    /// Collects the ways from the root to the blocks.
    fn grid(&mut self, class: Id, above: Vec<(Term, Option<Arc<Path>>)>, blocks: Vec<BlockLoop>) {
        let nodes: Vec<Term> = self.space.choices(class).cloned().collect();
        for node in nodes {
            let mut above = above.clone();
            let mut blocks = blocks.clone();
            let next = self.space.egraph.find(node.children()[0]);
            match &node {
                Term::Split(children) => {
                    let finish = self.space.egraph.find(children[1]);
                    let Some(finish) = self.space.choices(finish).next().cloned() else { continue };
                    above.push((node.clone(), Some(Path::leaf(finish))));
                }
                Term::Loop { axis, role, extent, .. } => {
                    blocks.push(BlockLoop { axis: *axis, extent: *extent, group: *role == Role::Group });
                    above.push((node.clone(), None));
                }
                Term::Cta { .. } => {
                    above.push((node.clone(), None));
                    self.context(next, above, blocks);
                    continue;
                }
                _ => above.push((node.clone(), None)),
            }
            self.grid(next, above, blocks);
        }
    }

    fn context(&mut self, class: Id, above: Vec<(Term, Option<Arc<Path>>)>, blocks: Vec<BlockLoop>) {
        let state = *self.space.state(class);
        let Team::Cta(threads) = state.team else { return };
        let contraction = &self.space.contraction;
        let split_k = blocks.iter().find(|b| b.axis == Axis::K).map_or(1, |b| b.extent);
        let mut plan = Plan::naive(contraction);
        plan.blocks.clone_from(&blocks);
        plan.split_k = split_k;
        plan.tile = satune_ir::term::Pair { m: state.tile.m, n: state.tile.n };
        plan.k_part = state.tile.k;
        plan.threads = threads;
        let sums = sums(&state, threads, contraction);
        let dram_bytes = cost::dram_bytes(&plan, contraction, self.gpu, sums);
        Arc::make_mut(&mut self.contexts).entry(class).or_default().push(Context {
            blocks,
            split_k,
            dram_bytes,
            above,
        });
    }

    /// Every choice down to the k loop, with its bound.
    fn units(&self) -> Vec<Unit> {
        let mut units = Vec::new();
        for class in self.contexts.keys() {
            for node in self.space.choices(*class) {
                let side = match node {
                    Term::Write(children) => {
                        let drain = self.space.egraph.find(children[1]);
                        self.space.choices(drain).next().cloned().map(Path::leaf)
                    }
                    _ => None,
                };
                let in_place = matches!(node, Term::InPlace(_));
                let next = self.space.egraph.find(node.children()[0]);
                self.reduce(*class, next, vec![(node.clone(), side)], in_place, &mut units);
            }
        }
        units
    }

    fn reduce(
        &self,
        accumulators: Id,
        class: Id,
        above: Vec<(Term, Option<Arc<Path>>)>,
        in_place: bool,
        units: &mut Vec<Unit>,
    ) {
        for node in self.space.choices(class) {
            let mut above = above.clone();
            above.push((node.clone(), None));
            let next = self.space.egraph.find(node.children()[0]);
            if let Term::Loop { role: Role::Pipeline(pipe), .. } = node {
                let k_tile = self.space.state(next).tile.k;
                let order = units.len();
                let state = self.space.state(accumulators);
                let size = state.tile.m.trailing_zeros() + 3 * state.tile.n.trailing_zeros() + k_tile.trailing_zeros();
                let share = size as usize % SHARES;
                let mut unit = Unit {
                    accumulators,
                    above,
                    in_place,
                    pipe: *pipe,
                    k_tile,
                    staging: next,
                    bound: 0.0,
                    order,
                    share,
                };
                unit.bound = self.bound(&unit);
                if unit.bound.is_finite() {
                    units.push(unit);
                }
            } else {
                self.reduce(accumulators, next, above, in_place, units);
            }
        }
    }

    fn outer<'a>(&'a self, unit: &Unit, context: &Context) -> Outer<'a> {
        let contraction = &self.space.contraction;
        let state = self.space.state(unit.accumulators);
        let threads = if let Team::Cta(t) = state.team { t } else { 1 };
        let tiles = (state.tile.k + unit.k_tile - 1) / unit.k_tile;
        Outer {
            contraction,
            gpu: self.gpu,
            threads,
            blocks: context.blocks.iter().map(|b| b.extent).product(),
            split_k: context.split_k,
            k_tiles: tiles as f64 * cost::outer_iterations(contraction),
            sums: if unit.in_place { 0 } else { sums(state, threads, contraction) },
            pipe: unit.pipe,
            dram_bytes: context.dram_bytes,
        }
    }

    /// The least work that any program of a unit can do that stages so many operands, as an [`Inner`].
    fn least(&self, unit: &Unit, staged: usize) -> Inner {
        let contraction = &self.space.contraction;
        let state = self.space.state(unit.accumulators);
        let threads = if let Team::Cta(t) = state.team { t } else { 1 };
        let warps = f64::from(threads / 32);
        let results = (state.tile.m * state.tile.n) as f64 / f64::from(threads);
        let k = unit.k_tile as f64;
        let bytes = |side: Side| f64::from(contraction.operand(side).dtype.bytes());
        let narrow = bytes(Side::A).min(bytes(Side::B));
        let mut tile = Work { fma: results * k * warps, ..Work::default() };
        // A thread's results are a grid of rows and columns; it reads at least rows + columns >= 2 sqrt(results) factors
        // per k value: from shared memory 16 bytes at a time, from global memory one by one.
        let factors = 2.0 * results.sqrt() * k * warps;
        let mut fragments = 2.0 * results.sqrt();
        match staged {
            2 => {
                tile.shared_loads = factors * narrow / 16.0;
                for side in [Side::A, Side::B] {
                    let moved = state.tile.get(side.spatial()) as f64 * k * bytes(side);
                    tile.l2_sectors += moved / 32.0;
                    tile.shared_store_wavefronts += moved / 128.0;
                    if matches!(unit.pipe, Pipe::Async(_)) {
                        tile.async_copies += moved / 512.0;
                    } else {
                        tile.global_loads += moved / 512.0;
                        tile.shared_stores += moved / 512.0;
                    }
                    tile.l1_bytes += moved;
                }
            }
            1 => {
                // One factor per k value at least comes from global memory, and one from shared.
                tile.global_loads = k * warps;
                tile.l1_bytes = k * warps * 64.0;
                tile.shared_loads = ((factors - results * k * warps).max(k * warps)) * narrow / 16.0;
                fragments = 2.0;
            }
            _ => {
                tile.global_loads = factors;
                tile.l1_bytes = factors * 64.0;
                fragments = 4.0;
            }
        }
        tile.shared_load_wavefronts = tile.shared_loads;
        if unit.in_place {
            tile.global_loads = 2.0 * tile.fma;
        }
        Inner {
            tile,
            end: Work::default(),
            fragment_registers: if unit.in_place { 2 } else { fragments as i64 },
            staged_registers: 0,
            shared_bytes: 0,
            rolled_steps: 0.0,
            init_inside: unit.in_place,
        }
    }

    fn bound(&self, unit: &Unit) -> f64 {
        let Some(context) = self.contexts.get(&unit.accumulators).and_then(|c| c.first()) else { return f64::INFINITY };
        let outer = self.outer(unit, context);
        // What is overlapped has both operands staged.
        let cases: &[usize] = match (unit.pipe, unit.in_place) {
            (Pipe::Plain, true) => &[0],
            (Pipe::Plain, false) => &[0, 1, 2],
            _ => &[2],
        };
        let of = |staged: &usize| time(&outer, &self.least(unit, *staged)).map_or(f64::INFINITY, |t| t.ms);
        cases.iter().map(of).fold(f64::INFINITY, f64::min)
    }

    /// Looks at every choice below a unit.
    fn look_into(&mut self, unit: &Unit) {
        self.stages(unit, unit.staging, &mut Vec::new());
    }

    fn stages(&mut self, unit: &Unit, class: Id, staged: &mut Vec<Staged>) {
        let nodes: Vec<Term> = self.space.choices(class).cloned().collect();
        for node in nodes {
            match &node {
                Term::Stage { side, layout, pipe, more, children, .. } => {
                    let fills = self.labels.fills(children[0], *side, *layout, *pipe);
                    if fills.is_empty() {
                        continue;
                    }
                    let next = self.space.egraph.find(children[1]);
                    staged.push(Staged { node: node.clone(), side: *side, layout: *layout, fills });
                    if *more {
                        self.stages(unit, next, staged);
                    } else {
                        self.inner(unit, next, staged, None);
                    }
                    staged.pop();
                }
                Term::Direct { body, .. } => {
                    let next = self.space.egraph.find(body[0]);
                    self.inner(unit, next, staged, Some(&node));
                }
                _ => {}
            }
        }
    }

    fn inner(&mut self, unit: &Unit, class: Id, staged: &[Staged], direct: Option<&Term>) {
        let state = *self.space.state(unit.accumulators);
        let contraction = &self.space.contraction;
        let threads = if let Team::Cta(t) = state.team { t } else { 1 };
        let shared_bytes: i64 = staged
            .iter()
            .map(|s| {
                let spatial = state.tile.get(s.side.spatial());
                let bytes = i64::from(contraction.operand(s.side).dtype.bytes());
                s.layout.elements(spatial, unit.k_tile) * bytes * unit.pipe.buffers()
            })
            .sum();
        if shared_bytes > i64::from(self.gpu.shared_per_block) {
            return;
        }
        // With the least of every fill and no arithmetic but the multiply-adds: is it worth a look?
        let mut least = self.least(unit, staged.len());
        least.shared_bytes = shared_bytes;
        let cheapest = |s: &Staged| {
            let by = |f: fn(&FillLabel) -> f64| s.fills.iter().map(f).fold(f64::INFINITY, f64::min);
            Work {
                global_loads: by(|l| l.work.global_loads),
                async_copies: by(|l| l.work.async_copies),
                shared_stores: by(|l| l.work.shared_stores),
                shared_store_wavefronts: by(|l| l.work.shared_store_wavefronts),
                global_load_sectors: by(|l| l.work.global_load_sectors),
                l2_sectors: by(|l| l.work.l2_sectors),
                l1_bytes: by(|l| l.work.l1_bytes),
                ..Work::default()
            }
        };
        if staged.len() == 2 {
            let (fma, loads) = (least.tile.fma, least.tile.shared_loads);
            least.tile = Work { fma, shared_loads: loads, shared_load_wavefronts: loads, ..Work::default() };
            for s in staged {
                least.tile.add(&cheapest(s), 1.0);
            }
        }
        let Some(context) = self.contexts.get(&unit.accumulators).and_then(|c| c.first()) else { return };
        match time(&self.outer(unit, context), &least) {
            Ok(c) if !self.hopeless(c.ms) => {}
            _ => return,
        }
        let labels = self.labels.of(class);
        let combos: Vec<Vec<&FillLabel>> = staged.iter().fold(vec![Vec::new()], |sets, s| {
            sets.iter()
                .flat_map(|set| {
                    s.fills.iter().map(move |f| {
                        let mut set = set.clone();
                        set.push(f);
                        set
                    })
                })
                .collect()
        });
        let combos = self.best_combos(combos);
        let floor = FillLabel {
            work: staged.iter().fold(Work::default(), |mut sum, s| {
                sum.add(&cheapest(s), 1.0);
                sum
            }),
            registers: 0.0,
            path: Path::leaf(Term::Store(satune_ir::term::Place::Local)),
        };
        let warps = f64::from(threads / 32);
        for label in labels.iter() {
            // With the least of every fill: can this label still win?
            let inner = self.summary(unit, &state, label, &[&floor], staged, warps, shared_bytes);
            let Some(context) = self.contexts.get(&unit.accumulators).and_then(|c| c.first()) else { return };
            match time(&self.outer(unit, context), &inner) {
                Ok(t) if !self.hopeless(t.ms) => {}
                _ => continue,
            }
            for fills in &combos {
                let inner = self.summary(unit, &state, label, fills, staged, warps, shared_bytes);
                self.try_contexts(unit, &inner, label, fills, staged, direct);
            }
        }
    }

    /// Of all pairs of fills those that k others do not dominate.
    fn best_combos<'f>(&self, combos: Vec<Vec<&'f FillLabel>>) -> Vec<Vec<&'f FillLabel>> {
        let vectors: Vec<[f64; 7]> = combos
            .iter()
            .map(|set| {
                set.iter().fold([0.0; 7], |mut sum, fill| {
                    sum.iter_mut().zip(fill.components()).for_each(|(s, c)| *s += c);
                    sum
                })
            })
            .collect();
        dominance::keep(&vectors, self.query.k).into_iter().map(|i| combos[i].clone()).collect()
    }

    #[allow(clippy::too_many_arguments)]
    fn summary(
        &self,
        unit: &Unit,
        state: &State,
        label: &Label,
        fills: &[&FillLabel],
        staged: &[Staged],
        warps: f64,
        shared_bytes: i64,
    ) -> Inner {
        let contraction = &self.space.contraction;
        let mut tile = Work { fma: (state.tile.m * state.tile.n * unit.k_tile) as f64 / 32.0, ..Work::default() };
        let mut end = Work::default();
        for fill in fills {
            tile.add(&fill.work, 1.0);
        }
        let mut registers = 0.0;
        for side in [Side::A, Side::B] {
            let [loads, wavefronts, sectors, l1, held] = label.side(side);
            registers += held;
            if staged.iter().any(|s| s.side == side) {
                tile.shared_loads += loads * warps;
                tile.shared_load_wavefronts += wavefronts * warps;
            } else {
                tile.global_loads += loads * warps;
                tile.global_load_sectors += sectors * warps;
                let spatial = state.tile.get(side.spatial());
                tile.l2_sectors += crate::work::distinct_sectors(contraction, side, spatial, unit.k_tile);
                tile.l1_bytes += l1 * warps;
            }
        }
        let (stores, store_sectors) = label.stores();
        if unit.in_place {
            let k = unit.k_tile as f64;
            let bytes = f64::from(contraction.c.dtype.bytes());
            tile.global_stores += stores * warps * k;
            tile.global_store_sectors += store_sectors * warps * k;
            tile.l2_sectors += store_sectors * warps * k;
            tile.global_loads += stores * warps * k;
            tile.global_load_sectors += store_sectors * warps * k;
            tile.l1_bytes += 2.0 * stores * warps * k * 32.0 * bytes;
        } else {
            end.global_stores = stores * warps;
            end.global_store_sectors = store_sectors * warps;
            end.l2_sectors = store_sectors * warps;
        }
        if !staged.is_empty() {
            let tiles = ((state.tile.k + unit.k_tile - 1) / unit.k_tile) as f64;
            end.barriers = warps
                * match unit.pipe {
                    Pipe::Plain if tiles > 1.0 => 2.0 * tiles,
                    Pipe::Plain => 1.0,
                    Pipe::Registers if tiles > 1.0 => tiles + 1.0,
                    Pipe::Registers => 1.0,
                    Pipe::Async(_) => tiles,
                };
        }
        Inner {
            tile,
            end,
            fragment_registers: if label.direct { 4 } else { registers as i64 },
            staged_registers: fills.iter().map(|f| f.registers as i64).sum(),
            shared_bytes,
            rolled_steps: label.rolled(),
            init_inside: unit.in_place,
        }
    }

    fn try_contexts(
        &mut self,
        unit: &Unit,
        inner: &Inner,
        label: &Label,
        fills: &[&FillLabel],
        staged: &[Staged],
        direct: Option<&Term>,
    ) {
        let state = self.space.state(unit.accumulators);
        let key = (state.tile.m, state.tile.n, unit.k_tile);
        let count = self.contexts.get(&unit.accumulators).map_or(0, Vec::len);
        for i in 0..count {
            let Some(context) = self.contexts.get(&unit.accumulators).and_then(|c| c.get(i)) else { return };
            let Ok(cost) = time(&self.outer(unit, context), inner) else { return };
            if self.hopeless(cost.ms) {
                // The contexts that follow move more bytes.
                return;
            }
            let mut path = label.path.clone();
            if let Some(node) = direct {
                path = Path::over(node.clone(), path);
            }
            for (s, fill) in staged.iter().zip(fills).rev() {
                path = Path::over_two(s.node.clone(), path, fill.path.clone());
            }
            for (node, side) in context.above.iter().chain(&unit.above).rev() {
                path = Arc::new(Path { node: node.clone(), main: Some(path), side: side.clone() });
            }
            self.offer(cost.ms, key, || path);
        }
    }
}

/// An operand that is staged.
struct Staged {
    node: Term,
    side: Side,
    layout: Layout,
    fills: Arc<Vec<FillLabel>>,
}

/// 32-bit registers of a thread's accumulators.
fn sums(state: &State, threads: u32, contraction: &Contraction) -> i64 {
    state.tile.m * state.tile.n / i64::from(threads) * cost::words(contraction.accumulate)
}
