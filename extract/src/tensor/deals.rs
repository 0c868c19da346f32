//! The k best on `mma.sync`: ways to deal a block's tile out to warps, each under a bound.
//!
//! A deal's bound is the least that any store, ring, ways of operands and number of resident blocks could make of it.
//! What of these is decided is put into the bound step by step: the store and the ring, how many registers the ways of A
//! and of B take, the way of A, the way of B, the loop, the order of blocks. Nothing is looked into whose bound is not
//! below the k-th best time, so that what costs the same as that is passed over at once.
use super::open::{Blocks, Chain, Deals, Part};
use super::operands;
use super::search::Search;
use super::time::{self, Inner, Outer, Share};
use super::work::{self, Block};
use crate::path::Path;
use egg::{Id, Language};
use satune_ir::term::tensor::{Store, TensorNode, TensorPlan, TensorSchedule};
use satune_ir::term::Term;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is known of a plan before its operands' ways are.
struct Begun<'p> {
    plan: &'p TensorPlan,
    counts: Block,
    /// Clocks of the tensor cores per tile along k.
    tensor: f64,
}

impl<'s> Search<'_, 's> {
    /// Opens the ways in which a block's tile is dealt out to warps, and says how many there are.
    pub(super) fn open_deals(&mut self, class: Id, begin: &'s Term) -> usize {
        let mut count = 0;
        let space = self.space;
        let body = |node: &Term| space.egraph.find(node.children()[0]);
        let mut by_class: BTreeMap<Id, Vec<Chain<'s>>> = BTreeMap::new();
        for store in space.choices(body(begin)) {
            for ring in space.choices(body(store)) {
                let nodes = [begin, store, ring];
                let (
                    Term::Tensor { node: TensorNode::Store { store, .. }, .. },
                    Term::Tensor { node: TensorNode::Ring { stages, slack, .. }, .. },
                ) = (store, ring)
                else {
                    continue;
                };
                let chain = Chain { nodes, store: *store, stages: *stages, slack: *slack };
                by_class.entry(body(ring)).or_default().push(chain);
            }
        }
        for (below, mut chains) in by_class {
            // Long rings that wait for little first: they wait least.
            chains.sort_by_key(|chain| (chain.slack, u32::MAX - chain.stages));
            let chains = Arc::new(chains);
            for deals in self.deals(class, below, &chains) {
                count += deals.nodes.len();
                if let Some(bound) = self.least_of(class, &deals) {
                    self.open(bound, class, Part::Deals(deals));
                }
            }
        }
        count
    }

    /// The ways to deal out a tile, those together that cost the same.
    fn deals(&self, class: Id, below: Id, chains: &Arc<Vec<Chain<'s>>>) -> Vec<Deals<'s>> {
        let space = self.space;
        let mut list: BTreeMap<([i64; 2], bool), Deals<'s>> = BTreeMap::new();
        let mut first: Option<TensorPlan> = None;
        for node in space.choices(below) {
            let Term::Dealt { node: TensorNode::Warps { count, sets, .. }, .. } = node else { continue };
            let key = (*count, *sets == [2, 2]);
            if let Some(same) = list.get_mut(&key) {
                same.nodes.push(node);
                continue;
            }
            // Plans of one tile differ in few things only.
            let plan = match &first {
                Some(plan) => {
                    let [m, n, _] = plan.tile;
                    let mut plan = TensorPlan { warp: [m / count[0].max(1), n / count[1].max(1)], ..plan.clone() };
                    (plan.operands[0].sets, plan.operands[1].sets) = (sets[0], sets[1]);
                    plan
                }
                None => {
                    let Some(plan) = self.plan_of(class, chains, node) else { continue };
                    first.insert(TensorPlan { min_blocks: None, ..plan }).clone()
                }
            };
            list.insert(key, Deals { nodes: vec![node], chains: chains.clone(), plan, with_traffic: false });
        }
        list.into_values().collect()
    }

    /// The plan of a deal with the usual ways of operands and the first of its rings and loops.
    fn plan_of(&self, class: Id, chains: &[Chain<'s>], node: &'s Term) -> Option<TensorPlan> {
        let reach = self.ways.get(&class)?.reaches.first()?;
        let leaf = operands::leaves(self.space, node.children()[2]).first().copied()?;
        let above = reach.above.iter().map(|(n, _)| *n);
        let nodes: Vec<&Term> = above.chain(chains.first()?.nodes).chain([node, leaf]).collect();
        match TensorSchedule::from_chain_of(&nodes, self.gemm(false)) {
            Ok(TensorSchedule::Mma(plan)) => Some(plan),
            _ => None,
        }
    }

    fn begun<'p>(&self, plan: &'p TensorPlan) -> Option<Begun<'p>> {
        let gemm = self.gemm(plan.swapped);
        let tensor = time::tensor_clocks(plan, self.gpu)?;
        Some(Begun { plan, counts: work::without_operands(plan, gemm), tensor })
    }

    /// What ways of operands and a loop make of it.
    fn block_of(&self, begun: &Begun<'_>, share: &Share, in_loop: f64) -> Option<Inner> {
        time::with_share(
            begun.plan,
            self.gemm(begun.plan.swapped),
            self.gpu,
            (&begun.counts, begun.tensor),
            share,
            in_loop,
        )
        .ok()
    }

    /// What deals take at least, whichever the store, the ring, the operands' ways and the resident blocks: each of them
    /// taken as the best.
    fn least_of(&mut self, class: Id, deals: &Deals<'s>) -> Option<f64> {
        let first = deals.chains.first()?;
        let mut stores: Vec<Store> = Vec::new();
        for chain in deals.chains.iter() {
            if !stores.contains(&chain.store) {
                stores.push(chain.store);
            }
        }
        let least = stores.into_iter().filter_map(|store| {
            // The longest ring waits least, the shortest leaves most room.
            let longest = TensorPlan { store, ..first.of(&deals.plan) };
            let shortest = TensorPlan { stages: 2, slack: 0, ..longest.clone() };
            self.least_with(class, [&longest, &shortest], 0.0, deals.with_traffic)
        });
        least.reduce(f64::min)
    }

    /// What a plan takes at least, with the waits of the first and the room of the second, and any number of blocks that
    /// its registers without those of copies leave.
    fn least_with(
        &mut self,
        class: Id,
        [waits, room]: [&TensorPlan; 2],
        in_loop: f64,
        with_traffic: bool,
    ) -> Option<f64> {
        let gemm = self.gemm(waits.swapped);
        let least = work::places(waits).iter().fold(Share::default(), |least, p| least.plus(&p.least(gemm)));
        let (waits, room) = (self.begun(waits)?, self.begun(room)?);
        let (mut inner, most) =
            (self.block_of(&waits, &least, in_loop)?, self.block_of(&room, &least, in_loop)?.resident);
        let (contraction, gpu) = (&self.space.contraction, self.gpu);
        let blocks = self.ways.get_mut(&class)?;
        let count = blocks.traffic.blocks();
        let of = |resident: i64| {
            inner.resident = resident;
            let moved = match with_traffic {
                true => blocks.traffic.least(resident, contraction, gpu),
                false => time::least_moved(contraction),
            };
            time::at_least(&Outer::moving(moved, count, &inner, contraction, gpu), &inner, gpu)
        };
        // Rounding: parts are added in another order.
        (1..=most).map(of).reduce(f64::min).map(|ms| ms * (1.0 - 1e-9))
    }

    /// Looks into deals, or opens them again with a better bound; the number of those that were looked into.
    pub(super) fn look_into(&mut self, class: Id, mut deals: Deals<'s>) -> usize {
        if !deals.with_traffic {
            deals.with_traffic = true;
            if let Some(bound) = self.least_of(class, &deals) {
                self.open(bound, class, Part::Deals(deals));
            }
            return 0;
        }
        for node in deals.nodes.iter().copied() {
            for chain in deals.chains.iter() {
                self.dealt(class, &deals.plan, node, chain);
            }
        }
        deals.nodes.len()
    }

    /// A tile that is dealt out to warps, with a store and a ring.
    fn dealt(&mut self, class: Id, plan: &TensorPlan, node: &'s Term, chain: &Chain<'s>) -> Option<()> {
        let Term::Dealt { children, node: TensorNode::Warps { sets, min_blocks, .. } } = node else { return None };
        let mut plan = TensorPlan { min_blocks: *min_blocks, ..chain.of(plan) };
        (plan.operands[0].sets, plan.operands[1].sets) = (sets[0], sets[1]);
        let begun = self.begun(&plan)?;
        let loops = self.loops(&begun, children[2]);
        let least_loop = loops.first()?.1;
        if self.least_with(class, [&plan, &plan], least_loop, true)? >= self.worst_of(self.tile_of(class)) {
            return None;
        }
        let (a, b) = (self.ways_of(children[0]), self.ways_of(children[1]));
        let mut blocks = self.ways.remove(&class)?;
        for (ones, others) in a.iter().flat_map(|a| b.iter().map(move |b| (a, b))) {
            if !self.is_fast(&mut blocks, &begun, &ones.least.plus(&others.least), least_loop) {
                continue;
            }
            // Ways that cost the same, of which there may be as many as are asked for, are slow together.
            let mut slow_ones: Vec<&Share> = Vec::new();
            for one in &ones.ways {
                let too_slow = slow_ones.contains(&&one.share)
                    || !self.is_fast(&mut blocks, &begun, &one.share.plus(&others.least), least_loop);
                if too_slow {
                    continue;
                }
                let (mut slow, mut is_slow) = (Vec::new(), true);
                for other in &others.ways {
                    if slow.contains(&&other.share) {
                        continue;
                    }
                    let share = one.share.plus(&other.share);
                    let taken = loops.iter().take_while(|(leaf, in_loop)| {
                        let inner = self.block_of(&begun, &share, *in_loop);
                        let Some(inner) = inner.filter(|inner| self.is_below(&mut blocks, inner)) else { return false };
                        let parts = || vec![one.path.clone(), other.path.clone(), Path::leaf(leaf)];
                        self.offer_in_orders(&mut blocks, &inner, &chain.nodes, &|| Path::with(node, parts()))
                    });
                    match taken.count() {
                        0 => slow.push(&other.share),
                        _ => is_slow = false,
                    }
                }
                if is_slow {
                    slow_ones.push(&one.share);
                }
            }
        }
        self.ways.insert(class, blocks);
        Some(())
    }

    /// The loops, with what they add to a tile's instructions, the least first; no more than are asked for.
    fn loops(&self, begun: &Begun<'_>, class: Id) -> Vec<(&'s Term, f64)> {
        let of = |leaf: &'s Term| {
            let way = operands::loop_of(leaf)?;
            let with = TensorPlan { order: way.order, rolled: way.rolled, ..begun.plan.clone() };
            Some((leaf, time::loop_issue(&with, begun.counts.tile.matrix)))
        };
        let mut loops: Vec<_> = operands::leaves(self.space, class).into_iter().filter_map(of).collect();
        loops.sort_by(|a, b| a.1.total_cmp(&b.1));
        loops.truncate(self.wanted());
        loops
    }

    /// Whether the best order of blocks makes it one of the best.
    fn is_fast(&self, blocks: &mut Blocks<'s>, begun: &Begun<'_>, share: &Share, in_loop: f64) -> bool {
        let inner = self.block_of(begun, share, in_loop);
        inner.is_some_and(|inner| self.is_below(blocks, &inner))
    }

    fn is_below(&self, blocks: &mut Blocks<'s>, inner: &Inner) -> bool {
        self.least_ms(blocks, inner) < self.worst_of(inner.tile)
    }
}
