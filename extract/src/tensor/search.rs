//! The k best schedules on tensor cores of a space, exactly.
//!
//! The ways down to a block (split-K, tiles, order of blocks) meet what the block does in the block's class. Of the
//! former a time depends on by traffic alone: a block that is too slow without any is too slow in any order. What blocks do is enumerated, a class at a time, the most promising first under a bound that the
//! tensor cores alone set; the order of a warp's instructions is looked at only where the rest is fast enough.
use super::time::{self, Inner, Outer};
use super::{tiles, Kernel};
use crate::path::Path;
use crate::topk::Above;
use crate::Descriptor;
use egg::{Id, Language};
use satune_ir::term::tensor::{Gemm, Matrix, Order, TensorNode, TensorSchedule};
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

/// A way from the root to a block.
struct Way<'s> {
    above: Above<'s>,
    loops: Vec<BlockLoop>,
}

struct Search<'a, 's> {
    space: &'s Space,
    gpu: &'a Descriptor,
    gemm: Gemm,
    ways: BTreeMap<Id, Vec<Way<'s>>>,
    k: usize,
    diverse: bool,
    best: Vec<Found<'s>>,
}

/// A kind of block: its class, the node that begins it, and what its tensor cores take at least, ms.
struct Unit<'s> {
    class: Id,
    node: &'s Term,
    bound: f64,
}

/// Finds the k best.
pub(crate) fn search<'s>(
    space: &'s Space,
    gpu: &Descriptor,
    (k, diverse): (usize, bool),
    go_on: &dyn Fn() -> bool,
) -> Outcome<'s> {
    let mut outcome = Outcome { found: Vec::new(), left: f64::INFINITY, looked: (0, 0) };
    let (Ok(gemm), Some(rates)) = (Gemm::of(&space.contraction), gpu.tensor) else { return outcome };
    let mut search = Search { space, gpu, gemm, ways: BTreeMap::new(), k, diverse, best: Vec::new() };
    search.grid(space.egraph.find(space.root), Vec::new(), Vec::new());
    let mut units = Vec::new();
    for class in search.ways.keys() {
        for node in space.choices(*class) {
            let Term::Tensor { node: kind, .. } = node else { continue };
            let share = match kind {
                TensorNode::Wgmma { .. } => rates.wgmma_share,
                _ => rates.mma_share,
            };
            let shares_steps = matches!(kind, TensorNode::Wgmma { stream_k: true, .. });
            units.push(Unit { class: *class, node, bound: search.bound(*class, share, shares_steps) });
        }
    }
    // The sort is stable: the order depends on the space alone.
    units.sort_by(|a, b| a.bound.total_cmp(&b.bound));
    outcome.looked.0 = units.len();
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
    outcome.found = search.best;
    outcome
}

impl<'s> Search<'_, 's> {
    /// Collects the ways from the root to blocks.
    fn grid(&mut self, class: Id, above: Above<'s>, loops: Vec<BlockLoop>) {
        let space = self.space;
        if space.choices(class).any(|node| matches!(node, Term::Tensor { .. })) {
            let way = Way { above: above.clone(), loops: loops.clone() };
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
                Term::Grid(_) => above.push((node, None)),
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
        let whole = Gemm { m: tile.m, n: tile.n, k: tile.k, ..self.gemm.clone() };
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

    fn leaves(&mut self, class: Id, below: Id, chain: &[&'s Term]) {
        let space = self.space;
        let contraction = &space.contraction;
        let Some(ways) = self.ways.remove(&class) else { return };
        // Back and forth is the fastest order, so where it is too slow the others are.
        let mut list: Vec<&Term> = space.choices(below).collect();
        list.sort_by_key(|leaf| !is_serpentine(leaf));
        for leaf in list {
            let Some(first) = ways.first() else { break };
            let nodes: Vec<&Term> =
                first.above.iter().map(|(n, _)| *n).chain(chain.iter().copied()).chain([leaf]).collect();
            let Ok(schedule) = TensorSchedule::from_chain(&nodes, contraction) else { continue };
            let (kernel, tile) = match &schedule {
                TensorSchedule::Mma(plan) => (Kernel::Mma(plan), plan.tile),
                TensorSchedule::Wgmma(plan) => (Kernel::Wgmma(plan), plan.tile),
            };
            let Ok(inner) = Inner::of(&kernel, &self.gemm, self.gpu) else { continue };
            // Without any traffic the time is least.
            let none = Outer::without_traffic(&first.loops, &inner, contraction, self.gpu);
            if time::time(&none, &inner, self.gpu).ms >= self.worst() {
                if is_serpentine(leaf) {
                    break;
                }
                continue;
            }
            for way in &ways {
                let outer = Outer::of(&way.loops, &inner, contraction, self.gpu);
                let ms = time::time(&outer, &inner, self.gpu).ms;
                let key = (tile[0], tile[1], tile[2]);
                self.offer(ms, key, || {
                    let mut path = Path::leaf(leaf);
                    for node in chain.iter().rev() {
                        path = Path::over(node, path, None);
                    }
                    for (node, side) in way.above.iter().rev() {
                        path = Path::over(node, path, side.clone());
                    }
                    path
                });
            }
        }
        self.ways.insert(class, ways);
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

fn is_serpentine(leaf: &Term) -> bool {
    matches!(leaf, Term::Matrix { matrix: Matrix::Mma(Order { serpentine: true, .. }), .. })
}
