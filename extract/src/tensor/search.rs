//! The k best schedules on tensor cores of a space, exactly.
//!
//! The ways down to a block (split-K, tiles, order of blocks) meet what the block does in the block's class. Of the
//! former a time depends on by traffic alone: a block that is too slow without any is too slow in any order. What blocks
//! do is enumerated, the most promising first: on `wgmma` under a bound that the tensor cores alone set, on `mma.sync` each
//! way to deal a tile out to warps, under a bound with the best of all that is decided besides. Operands' ways and loops
//! are looked at only where that is fast enough.
use super::operands::{self, Way};
use super::time::{self, Inner, Outer, Share};
use super::work::{self, Block};
use super::{of_product, tiles, Kernel};
use crate::path::Path;
use crate::topk::Above;
use crate::Descriptor;
use egg::{Id, Language};
use satune_ir::term::tensor::{Gemm, TensorNode, TensorPlan, TensorSchedule};
use satune_ir::term::{BlockLoop, Role, Space, Term};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A schedule that was found.
pub(crate) struct Found<'s> {
    pub ms: f64,
    pub key: (i64, i64, i64),
    pub path: Arc<Path<'s>>,
}

/// What a search found.
pub(crate) struct Outcome<'s> {
    /// Best first.
    pub found: Vec<Found<'s>>,
    /// Nothing that was not looked at is faster than this, where the time limit ended the search.
    pub left: f64,
    /// Kinds of blocks in all, and those that were looked into.
    pub looked: (usize, usize),
}

/// How a block is reached from the root.
struct Reach<'s> {
    above: Above<'s>,
    loops: Vec<BlockLoop>,
}

struct Search<'a, 's> {
    space: &'s Space,
    gpu: &'a Descriptor,
    /// The product as it is, and swapped.
    gemms: [Gemm; 2],
    ways: BTreeMap<Id, Vec<Reach<'s>>>,
    k: usize,
    diverse: bool,
    best: Vec<Found<'s>>,
    /// The ways of operands, by their class.
    operands: BTreeMap<Id, Arc<Vec<Way<'s>>>>,
}

/// A kind of block: its class, the node that begins it, and what its tensor cores take at least, ms.
struct Unit<'s> {
    class: Id,
    node: &'s Term,
    bound: f64,
}

/// A tile on `mma.sync` that is dealt out to warps in one way.
struct Deal<'s> {
    /// The block's class.
    class: Id,
    node: &'s Term,
    /// The decisions between the two, each way that there is: the store and the ring. Long rings first.
    chains: Arc<Vec<Vec<&'s Term>>>,
    /// What any of these takes at least, ms.
    bound: f64,
}

/// Registers of both operands' copies, at most: beyond that no plan has room for sums.
const MOST_COPY_REGISTERS: i64 = 160;

/// Finds the k best.
pub(crate) fn search<'s>(
    space: &'s Space,
    gpu: &Descriptor,
    (k, diverse): (usize, bool),
    go_on: &dyn Fn() -> bool,
) -> Outcome<'s> {
    let mut outcome = Outcome { found: Vec::new(), left: f64::INFINITY, looked: (0, 0) };
    let (Ok(gemm), Some(rates)) = (Gemm::of(&space.contraction), gpu.tensor) else { return outcome };
    let gemms = [false, true].map(|swapped| gemm.oriented(swapped).into_owned());
    let mut search =
        Search { space, gpu, gemms, ways: BTreeMap::new(), k, diverse, best: Vec::new(), operands: BTreeMap::new() };
    search.grid(space.egraph.find(space.root), Vec::new(), Vec::new());
    let mut units = Vec::new();
    let mut deals = Vec::new();
    for class in search.ways.keys() {
        for node in space.choices(*class) {
            let Term::Tensor { node: kind, .. } = node else { continue };
            match kind {
                TensorNode::Swap => {}
                TensorNode::Wgmma { stream_k, .. } => {
                    let bound = search.bound(*class, rates.wgmma_share, *stream_k);
                    units.push(Unit { class: *class, node, bound });
                }
                _ => search.deals(*class, node, &mut deals),
            }
        }
    }
    // The sort is stable: the order depends on the space alone.
    units.sort_by(|a, b| a.bound.total_cmp(&b.bound));
    outcome.looked.0 = units.len() + deals.len();
    for unit in &units {
        if unit.bound >= search.worst() {
            break;
        }
        if !go_on() {
            outcome.left = unit.bound;
            break;
        }
        outcome.looked.1 += 1;
        let body = space.egraph.find(unit.node.children()[0]);
        search.block(unit.class, body, &mut vec![unit.node]);
    }
    deals.retain(|d| d.bound < search.worst());
    deals.sort_by(|a, b| a.bound.total_cmp(&b.bound));
    for deal in &deals {
        if deal.bound >= search.worst() {
            break;
        }
        if !go_on() {
            outcome.left = outcome.left.min(deal.bound);
            break;
        }
        outcome.looked.1 += 1;
        for chain in deal.chains.iter() {
            search.dealt(deal.class, deal.node, chain);
        }
    }
    outcome.found = search.best;
    outcome
}

impl<'s> Search<'_, 's> {
    /// Collects the ways from the root to blocks.
    fn grid(&mut self, class: Id, above: Above<'s>, loops: Vec<BlockLoop>) {
        let space = self.space;
        let begins = |node: &Term| matches!(node, Term::Tensor { node, .. } if *node != TensorNode::Swap);
        if space.choices(class).any(begins) {
            let way = Reach { above: above.clone(), loops: loops.clone() };
            self.ways.entry(class).or_default().push(way);
        }
        for node in space.choices(class) {
            let mut above = above.clone();
            let mut loops = loops.clone();
            match node {
                Term::Split(children) => {
                    let finish = space.egraph.find(children[1]);
                    let Some(finish) = space.choices(finish).next() else { continue };
                    above.push((node, Some(Path::leaf(finish))));
                }
                Term::Loop { axis, role: role @ (Role::Block | Role::Group), extent, .. } => {
                    loops.push(BlockLoop { axis: *axis, extent: *extent, group: *role == Role::Group });
                    above.push((node, None));
                }
                Term::Grid(_) | Term::Tensor { node: TensorNode::Swap, .. } => above.push((node, None)),
                _ => continue,
            }
            let next = space.egraph.find(node.children()[0]);
            self.grid(next, above, loops);
        }
    }

    /// What the tensor cores of the busiest multiprocessor take at least for a class's blocks, with their waves: with
    /// whole tiles, and the sums of parts added; `even`: steps along k are dealt out, not tiles.
    fn bound(&self, class: Id, share: f64, even: bool) -> f64 {
        let tile = self.space.state(class).tile;
        let blocks: i64 =
            self.ways.get(&class).and_then(|w| w.first()).map_or(1, |w| w.loops.iter().map(|l| l.extent).product());
        let sms = i64::from(self.gpu.sms);
        let whole = Gemm { m: tile.m, n: tile.n, k: tile.k, ..self.gemms[0].clone() };
        let launch = self.gpu.launch_us * 1e-3;
        // One tile on one multiprocessor.
        let one = (Inner::least_ms(&whole, self.gpu, share) - launch) * sms as f64;
        // Rounding: the formula joins more than this by a norm.
        one * if even { blocks as f64 / sms as f64 } else { tiles(blocks, sms) as f64 } * (1.0 - 1e-9) + launch
    }

    fn worst(&self) -> f64 {
        if self.best.len() < self.k {
            f64::INFINITY
        } else {
            self.best.last().map_or(f64::INFINITY, |f| f.ms)
        }
    }

    /// What a block does, decision by decision; `chain`: those made.
    fn block(&mut self, class: Id, below: Id, chain: &mut Vec<&'s Term>) {
        let space = self.space;
        let leaves = space.choices(below).any(|node| matches!(node, Term::Matrix { .. }));
        if leaves {
            self.leaves(class, below, chain);
            return;
        }
        for node in space.choices(below) {
            chain.push(node);
            self.block(class, space.egraph.find(node.children()[0]), chain);
            chain.pop();
        }
    }

    /// The ways in which a block's tile is dealt out to warps, with bounds.
    fn deals(&self, class: Id, begin: &'s Term, out: &mut Vec<Deal<'s>>) {
        let space = self.space;
        let body = |node: &Term| space.egraph.find(node.children()[0]);
        let mut by_class: BTreeMap<Id, Vec<Vec<&'s Term>>> = BTreeMap::new();
        for store in space.choices(body(begin)) {
            for ring in space.choices(body(store)) {
                by_class.entry(body(ring)).or_default().push(vec![begin, store, ring]);
            }
        }
        let slack = |chain: &[&Term]| match chain.last() {
            Some(Term::Tensor { node: TensorNode::Ring { stages, slack, .. }, .. }) => (*slack, u32::MAX - stages),
            _ => (0, 0),
        };
        for (below, mut chains) in by_class {
            chains.sort_by_key(|chain| slack(chain));
            let chains = Arc::new(chains);
            for node in space.choices(below) {
                let bound = self.least_of_deal(class, node, &chains);
                if bound.is_finite() {
                    out.push(Deal { class, node, chains: chains.clone(), bound });
                }
            }
        }
    }

    /// What a deal takes at least, whichever its store, its ring, its operands' ways and its resident blocks: each of
    /// them taken as the best.
    fn least_of_deal(&self, class: Id, node: &'s Term, chains: &[Vec<&'s Term>]) -> f64 {
        let none = f64::INFINITY;
        let (Some(reach), Some(chain)) = (self.ways.get(&class).and_then(|w| w.first()), chains.first()) else {
            return none;
        };
        let Some((plan, _)) = self.plan_of(reach, chain, node) else { return none };
        let gemm = self.gemm(&plan);
        let Some(tensor) = time::tensor_clocks(&plan, gemm, self.gpu) else { return none };
        let least = self.least_share(&plan);
        // The longest ring waits least, the shortest leaves most room.
        let shortest = TensorPlan { stages: 2, slack: 0, ..plan.clone() };
        let mut stores: Vec<&TensorNode> = Vec::new();
        for chain in chains {
            if let Some(Term::Tensor { node, .. }) = chain.get(1) {
                if !stores.contains(&node) {
                    stores.push(node);
                }
            }
        }
        let mut best = none;
        for store in stores {
            let TensorNode::Store { store, .. } = store else { continue };
            let with = |plan: &TensorPlan| TensorPlan { store: *store, ..plan.clone() };
            let counts = work::without_operands(&with(&plan), gemm);
            let of = |plan: &TensorPlan| time::with_share(plan, gemm, self.gpu, (&counts, tensor), &least, 0.0).ok();
            let (Some(longest), Some(shortest)) = (of(&with(&plan)), of(&with(&shortest))) else { continue };
            for resident in 1..=shortest.resident {
                let mut inner = longest;
                inner.resident = resident;
                let outer = Outer::without_traffic(&reach.loops, &inner, &self.space.contraction, self.gpu);
                best = best.min(time::time(&outer, &inner, self.gpu).ms);
            }
        }
        // Rounding: parts are added in another order.
        best * (1.0 - 1e-9)
    }

    /// The product as a plan sees it.
    fn gemm(&self, plan: &TensorPlan) -> &Gemm {
        &self.gemms[usize::from(plan.swapped)]
    }

    /// The least that ways of a plan's operands add, each quantity by itself.
    fn least_share(&self, plan: &TensorPlan) -> Share {
        let gemm = self.gemm(plan);
        time::places(plan).iter().fold(Share::default(), |least, place| least.plus(&place.least(gemm)))
    }

    /// The plan of a deal with the usual ways of operands and the first of its loops, and these loops.
    fn plan_of(&self, reach: &Reach<'s>, chain: &[&'s Term], node: &'s Term) -> Option<(TensorPlan, Vec<&'s Term>)> {
        let Term::Dealt { children, .. } = node else { return None };
        let leaves = operands::leaves(self.space, children[2]);
        let leaf = leaves.first().copied()?;
        let above = reach.above.iter().map(|(n, _)| *n);
        let nodes: Vec<&Term> = above.chain(chain.iter().copied()).chain([node, leaf]).collect();
        match TensorSchedule::from_chain_of(&nodes, &self.gemms[0]) {
            Ok(TensorSchedule::Mma(plan)) => Some((plan, leaves)),
            _ => None,
        }
    }

    /// The ways of an operand, found once.
    fn ways_of(&mut self, class: Id) -> Arc<Vec<Way<'s>>> {
        let class = self.space.egraph.find(class);
        let (space, k) = (self.space, if self.diverse { 1 } else { self.k });
        let gemm = &self.gemms[usize::from(space.state(class).swapped)];
        self.operands.entry(class).or_insert_with(|| Arc::new(operands::ways(space, gemm, class, k))).clone()
    }

    /// A tile that is dealt out to warps: the ways of A and B and the loops are tried together, where a plan that adds
    /// the least of everything would be fast enough.
    fn dealt(&mut self, class: Id, node: &'s Term, chain: &[&'s Term]) {
        let space = self.space;
        let Term::Dealt { children, .. } = node else { return };
        let Some(reach) = self.ways.get(&class).and_then(|w| w.first()) else { return };
        let mut loops: Vec<(&'s Term, f64)> = Vec::new();
        let Some((plan, leaves)) = self.plan_of(reach, chain, node) else { return };
        let Some(tensor) = time::tensor_clocks(&plan, self.gemm(&plan), self.gpu) else { return };
        let block_loops = reach.loops.clone();
        let counts = work::without_operands(&plan, self.gemm(&plan));
        for leaf in leaves {
            let Some(way) = operands::loop_of(leaf) else { continue };
            let with = TensorPlan { order: way.order, rolled: way.rolled, ..plan.clone() };
            loops.push((leaf, time::loop_issue(&with, counts.tile.matrix)));
        }
        loops.sort_by(|a, b| a.1.total_cmp(&b.1));
        loops.truncate(if self.diverse { 1 } else { self.k });
        let Some(least_loop) = loops.first().map(|l| l.1) else { return };
        let contraction = &space.contraction;
        let fast_enough = |search: &Self, share: &Share, in_loop: f64| -> Option<Inner> {
            let inner =
                time::with_share(&plan, search.gemm(&plan), search.gpu, (&counts, tensor), share, in_loop).ok()?;
            let none = Outer::without_traffic(&block_loops, &inner, contraction, search.gpu);
            (time::time(&none, &inner, search.gpu).ms < search.worst()).then_some(inner)
        };
        // Nothing at all; a plan with more registers may be one with fewer blocks at once, which the bound must not miss.
        if self.best.len() >= self.k && !self.hopeful(&plan, (&counts, tensor), least_loop, &block_loops) {
            return;
        }
        let (a, b) = (self.ways_of(children[0]), self.ways_of(children[1]));
        let Some(reaches) = self.ways.remove(&class) else { return };
        for one in a.iter() {
            for other in b.iter() {
                let share = one.share.plus(&other.share);
                for (leaf, in_loop) in &loops {
                    let Some(inner) = fast_enough(self, &share, *in_loop) else { break };
                    for reach in &reaches {
                        let outer = Outer::of(&reach.loops, &inner, contraction, self.gpu);
                        let ms = time::time(&outer, &inner, self.gpu).ms;
                        let key = of_product(plan.tile, plan.swapped).into();
                        self.offer(ms, key, || {
                            let parts = vec![one.path.clone(), other.path.clone(), Path::leaf(leaf)];
                            reach.over(chain, Path::with(node, parts))
                        });
                    }
                }
            }
        }
        self.ways.insert(class, reaches);
    }

    /// Whether a plan could be fast enough whose operands' ways add as little as there is, with any number of resident
    /// blocks that their registers (of which 8 at a time are given) leave.
    fn hopeful(&self, plan: &TensorPlan, (counts, tensor): (&Block, f64), in_loop: f64, loops: &[BlockLoop]) -> bool {
        let least = self.least_share(plan);
        (0..=MOST_COPY_REGISTERS).step_by(8).any(|registers| {
            let share = Share { registers, ..least };
            let inner = time::with_share(plan, self.gemm(plan), self.gpu, (counts, tensor), &share, in_loop);
            inner.is_ok_and(|inner| {
                let none = Outer::without_traffic(loops, &inner, &self.space.contraction, self.gpu);
                time::time(&none, &inner, self.gpu).ms < self.worst()
            })
        })
    }

    /// Leaves of blocks on `wgmma`.
    fn leaves(&mut self, class: Id, below: Id, chain: &[&'s Term]) {
        let space = self.space;
        let contraction = &space.contraction;
        let Some(reaches) = self.ways.remove(&class) else { return };
        for leaf in space.choices(below) {
            let Some(first) = reaches.first() else { break };
            let nodes: Vec<&Term> =
                first.above.iter().map(|(n, _)| *n).chain(chain.iter().copied()).chain([leaf]).collect();
            let Ok(TensorSchedule::Wgmma(plan)) = TensorSchedule::from_chain_of(&nodes, &self.gemms[0]) else {
                continue;
            };
            let Ok(inner) = Inner::of(&Kernel::Wgmma(&plan), &self.gemms[0], self.gpu) else { continue };
            // Without any traffic the time is least.
            let none = Outer::without_traffic(&first.loops, &inner, contraction, self.gpu);
            if time::time(&none, &inner, self.gpu).ms >= self.worst() {
                continue;
            }
            for reach in &reaches {
                let outer = Outer::of(&reach.loops, &inner, contraction, self.gpu);
                let ms = time::time(&outer, &inner, self.gpu).ms;
                let key = of_product(plan.tile, plan.swapped).into();
                self.offer(ms, key, || reach.over(chain, Path::leaf(leaf)));
            }
        }
        self.ways.insert(class, reaches);
    }

    fn offer(&mut self, ms: f64, key: (i64, i64, i64), path: impl FnOnce() -> Arc<Path<'s>>) {
        if self.diverse {
            if let Some(same) = self.best.iter().position(|f| f.key == key) {
                if self.best[same].ms <= ms {
                    return;
                }
                self.best.remove(same);
            }
        }
        if ms >= self.worst() {
            return;
        }
        let at = self.best.partition_point(|f| f.ms <= ms);
        self.best.insert(at, Found { ms, key, path: path() });
        self.best.truncate(self.k);
    }
}

impl<'s> Reach<'s> {
    /// The whole path: this, what the block does, and what is below.
    fn over(&self, chain: &[&'s Term], below: Arc<Path<'s>>) -> Arc<Path<'s>> {
        let path = chain.iter().rev().fold(below, |path, node| Path::over(node, path, None));
        self.above.iter().rev().fold(path, |path, (node, side)| Path::over(node, path, side.clone()))
    }
}
