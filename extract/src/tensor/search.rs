//! The k best schedules on tensor cores of a space, exactly.
//!
//! The ways down to a block (split-K, tiles, order of blocks) meet what the block does in the block's class. Of the
//! former a time depends on by traffic alone, so that the best few of them are enough. What blocks do is searched best
//! first: each kind of block under a bound that the tensor cores and the operands' bytes alone set, on `mma.sync` then
//! each way to deal a tile out to warps ([`super::deals`]).
use super::kernel::{tiles, Kernel};
use super::open::{Blocks, Open, Part, Reach};
use super::operands::{Known, Ways};
use super::time::{self, Counted, Inner, Outer};
use super::traffic::Traffic;
use crate::path::{Above, Path};
use crate::{Descriptor, Query};
use egg::{Id, Language};
use satune_ir::term::tensor::{Gemm, Matrix, TensorNode, TensorSchedule};
use satune_ir::term::{Axis, BlockLoop, Role, Space, Term};
use std::collections::{BTreeMap, BinaryHeap};
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
    /// Kinds of blocks, those on `mma.sync` with each deal to warps where they were opened; and those looked into.
    pub looked: (usize, usize),
}

pub(super) struct Search<'a, 's> {
    pub space: &'s Space,
    pub gpu: &'a Descriptor,
    /// The product as it is, and swapped.
    gemms: [Gemm; 2],
    pub ways: BTreeMap<Id, Blocks<'s>>,
    query: Query,
    best: Vec<Found<'s>>,
    /// What is known of operands.
    known: &'a Known<'s>,
    queue: BinaryHeap<Open<'s>>,
    opened: usize,
    /// Whether there is time left.
    go_on: &'a dyn Fn() -> bool,
}

/// Finds the k best.
pub(crate) fn search<'s>(
    space: &'s Space,
    known: &Known<'s>,
    gpu: &Descriptor,
    query: Query,
    go_on: &dyn Fn() -> bool,
) -> Outcome<'s> {
    let mut outcome = Outcome { found: Vec::new(), left: f64::INFINITY, looked: (0, 0) };
    let (Ok(gemm), Some(rates)) = (Gemm::of(&space.contraction), gpu.tensor) else { return outcome };
    let mut search = Search {
        space,
        gpu,
        gemms: [false, true].map(|swapped| gemm.oriented(swapped).into_owned()),
        ways: BTreeMap::new(),
        query,
        best: Vec::new(),
        known,
        queue: BinaryHeap::new(),
        opened: 0,
        go_on,
    };
    let mut reaches = BTreeMap::new();
    search.grid(space.egraph.find(space.root), Vec::new(), Vec::new(), &mut reaches);
    for (class, list) in reaches {
        if !go_on() {
            outcome.left = 0.0;
            return outcome;
        }
        let blocks = search.blocks(class, list);
        search.ways.insert(class, blocks);
    }
    let classes: Vec<Id> = search.ways.keys().copied().collect();
    for class in classes {
        for node in space.choices(class) {
            let Term::Tensor { node: kind, .. } = node else { continue };
            let bound = match kind {
                TensorNode::Swap => continue,
                TensorNode::Wgmma { stream_k, .. } => search.bound(class, rates.wgmma_share, *stream_k),
                TensorNode::Mma { op } => search.bound(class, rates.share(*op), false),
                _ => continue,
            };
            outcome.looked.0 += 1;
            search.open(bound, class, Part::Blocks(node));
        }
    }
    while let Some(Open { bound, class, part, .. }) = search.queue.pop() {
        if bound >= search.worst() {
            break;
        }
        if !go_on() {
            outcome.left = bound;
            break;
        }
        if bound >= search.worst_of(search.tile_of(class)) {
            continue;
        }
        match part {
            Part::Blocks(node @ Term::Tensor { node: TensorNode::Wgmma { .. }, .. }) => {
                outcome.looked.1 += 1;
                let body = space.egraph.find(node.children()[0]);
                search.block(class, body, &mut vec![node]);
            }
            Part::Blocks(node) => outcome.looked.0 += search.open_deals(class, node).saturating_sub(1),
            Part::Deals(deals) => outcome.looked.1 += search.look_into(class, deals),
        }
        // It may have ended in the middle.
        if !go_on() {
            outcome.left = bound;
            break;
        }
    }
    outcome.found = search.best;
    outcome
}

impl<'s> Search<'_, 's> {
    /// Collects the ways from the root to blocks.
    fn grid(&self, class: Id, above: Above<'s>, loops: Vec<BlockLoop>, found: &mut BTreeMap<Id, Vec<Reach<'s>>>) {
        let space = self.space;
        let begins = |node: &Term| matches!(node, Term::Tensor { node, .. } if *node != TensorNode::Swap);
        if space.choices(class).any(begins) {
            let way = Reach { above: above.clone(), loops: loops.clone() };
            found.entry(class).or_default().push(way);
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
            self.grid(next, above, loops, found);
        }
    }

    /// The blocks of a class, with the ways to them. All of these split k into as many parts.
    fn blocks(&self, class: Id, reaches: Vec<Reach<'s>>) -> Blocks<'s> {
        let tile = self.space.state(class).product_tile();
        let along_k = |r: &Reach| r.loops.iter().find(|l| l.axis == Axis::K).map_or(1, |l| l.extent);
        let k_part = tiles(self.gemm(false).k, reaches.first().map_or(1, along_k));
        let orders = reaches.iter().map(|r| r.loops.clone()).collect();
        Blocks { reaches, traffic: Traffic::new(orders, ([tile.m, tile.n, tile.k], k_part), self.wanted()) }
    }

    /// The product as a plan sees it.
    pub(super) fn gemm(&self, swapped: bool) -> &Gemm {
        &self.gemms[usize::from(swapped)]
    }

    /// How many ways that differ in one decision alone can be among the best.
    pub(super) fn wanted(&self) -> usize {
        if self.query.diverse {
            1
        } else {
            self.query.k
        }
    }

    /// Puts a part of the space among those to be looked into.
    pub(super) fn open(&mut self, bound: f64, class: Id, part: Part<'s>) {
        self.opened += 1;
        self.queue.push(Open { bound, number: self.opened, class, part });
    }

    /// What the tensor cores of the busiest multiprocessor take at least for a class's blocks, with their waves, joined
    /// with the operands' bytes from DRAM; `even`: steps along k are dealt out, not tiles.
    fn bound(&self, class: Id, share: f64, even: bool) -> f64 {
        let tile = self.space.state(class).tile;
        let blocks = self.ways.get(&class).map_or(1, |b| b.traffic.blocks());
        let sms = i64::from(self.gpu.sms);
        let waves = if even { blocks as f64 / sms as f64 } else { tiles(blocks, sms) as f64 };
        let ms = time::least_ms(
            [tile.m, tile.n, tile.k],
            waves,
            (self.gemm(false), share),
            &self.space.contraction,
            self.gpu,
        );
        // Rounding: the formula joins more than this by a norm.
        ms * (1.0 - 1e-9)
    }

    pub(super) fn worst(&self) -> f64 {
        if self.best.len() < self.query.k {
            self.query.below_ms
        } else {
            self.best.last().map_or(self.query.below_ms, |f| f.ms)
        }
    }

    /// What a block of a tile has to be faster than: of each tile one is wanted where they are to be different.
    pub(super) fn worst_of(&self, [m, n, k]: [i64; 3]) -> f64 {
        let same = self.best.iter().find(|f| self.query.diverse && f.key == (m, n, k));
        same.map_or_else(|| self.worst(), |f| f.ms)
    }

    /// The tile of a class's blocks, in terms of the product.
    pub(super) fn tile_of(&self, class: Id) -> [i64; 3] {
        let tile = self.space.state(class).product_tile();
        [tile.m, tile.n, tile.k]
    }

    /// What a block does, decision by decision; `chain`: those made.
    fn block(&mut self, class: Id, below: Id, chain: &mut Vec<&'s Term>) {
        let space = self.space;
        if !(self.go_on)() {
            return;
        }
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

    /// The ways of an operand.
    pub(super) fn ways_of(&self, class: Id) -> Arc<Vec<Ways<'s>>> {
        let (space, class) = (self.space, self.space.egraph.find(class));
        self.known.ways(space, self.gemm(space.state(class).swapped), class, self.wanted())
    }

    /// Leaves of blocks on `wgmma`.
    fn leaves(&mut self, class: Id, below: Id, chain: &[&'s Term]) {
        let space = self.space;
        let Some(mut blocks) = self.ways.remove(&class) else { return };
        // Those that are too slow with one arrival of a consumer: with one of each warp they are no faster.
        let mut slow: Vec<Matrix> = Vec::new();
        for leaf in space.choices(below) {
            let Term::Matrix { matrix, .. } = leaf else { continue };
            if slow.contains(&matrix.arriving_once()) {
                continue;
            }
            let Some(first) = blocks.reaches.first() else { break };
            let nodes: Vec<&Term> =
                first.above.iter().map(|(n, _)| *n).chain(chain.iter().copied()).chain([leaf]).collect();
            let Ok(TensorSchedule::Wgmma(plan)) = TensorSchedule::from_chain_of(&nodes, self.gemm(false)) else {
                continue;
            };
            let gemm = self.gemm(plan.swapped);
            let counted = Counted::of_copied(&plan, gemm, &self.known.copied(gemm, &plan));
            let Ok(inner) = Inner::of_counts(&Kernel::Wgmma(&plan), gemm, &counted, self.gpu) else { continue };
            if self.least_ms(&mut blocks, &inner) >= self.worst_of(inner.tile) {
                slow.push(*matrix);
                continue;
            }
            self.offer_in_orders(&mut blocks, &inner, chain, &|| Path::leaf(leaf));
        }
        self.ways.insert(class, blocks);
    }

    /// Of blocks that move so many bytes.
    fn outer(&self, blocks: &Blocks<'s>, inner: &Inner, moved: f64) -> Outer {
        Outer::moving(moved, blocks.traffic.blocks(), inner, &self.space.contraction, self.gpu)
    }

    /// The time of a block in the best order at least, ms; of one of which `inner` may have less than it takes.
    pub(super) fn least_ms(&self, blocks: &mut Blocks<'s>, inner: &Inner) -> f64 {
        let moved = blocks.traffic.least(inner.resident, &self.space.contraction, self.gpu);
        time::at_least(&self.outer(blocks, inner, moved), inner, self.gpu)
    }

    /// Offers a block in each order that it may be reached in; `below`: what is under the chain. Whether one is among the best.
    pub(super) fn offer_in_orders(
        &mut self,
        blocks: &mut Blocks<'s>,
        inner: &Inner,
        chain: &[&'s Term],
        below: &dyn Fn() -> Arc<Path<'s>>,
    ) -> bool {
        let [m, n, k] = inner.tile;
        let mut taken = false;
        for (moved, number) in blocks.traffic.best(inner.resident, &self.space.contraction, self.gpu).iter() {
            let ms = time::time(&self.outer(blocks, inner, *moved), inner, self.gpu).ms;
            let Some(reach) = blocks.reaches.get(*number).filter(|_| ms < self.worst()) else { break };
            taken |= self.offer(ms, (m, n, k), || reach.over(chain, below()));
        }
        taken
    }

    fn offer(&mut self, ms: f64, key: (i64, i64, i64), path: impl FnOnce() -> Arc<Path<'s>>) -> bool {
        if self.query.diverse {
            if let Some(same) = self.best.iter().position(|f| f.key == key) {
                if self.best[same].ms <= ms {
                    return false;
                }
                self.best.remove(same);
            }
        }
        if ms >= self.worst() {
            return false;
        }
        let at = self.best.partition_point(|f| f.ms <= ms);
        self.best.insert(at, Found { ms, key, path: path() });
        self.best.truncate(self.query.k);
        true
    }
}
