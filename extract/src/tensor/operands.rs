//! What is chosen independently of each other below a tile that is dealt out to warps: the ways of A and of B, and the loop.
//!
//! Each way adds to the same few quantities ([`Share`]), in all of which the time grows, but for registers and bytes of
//! shared memory, which only decide how many blocks are resident. So a way is no part of the k best where k others with as
//! many of both add no more of anything; what is left of A, of B and of the loops is tried together.
use super::time::Share;
use super::work::{copied_places, Operand, Sectors};
use crate::path::Path;
use crate::work::Work;
use egg::Id;
use satune_ir::term::tensor::{
    by_threads_conditions, mma_conditions, Gemm, Matrix, MmaLoop, OperandPlan, TensorStage, TileLayout, WgmmaPlan,
};
use satune_ir::term::{Side, Space, Stage, Team, Term};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A way of an operand.
pub(super) struct Way<'s> {
    pub share: Share,
    pub path: Arc<Path<'s>>,
}

/// Ways that take as many registers, and as much shared memory.
pub(super) struct Ways<'s> {
    /// Those that add the least first.
    pub ways: Vec<Way<'s>>,
    /// The least of each quantity that any of them adds.
    pub least: Share,
}

/// What searches of one space have found out of operands, which depends on no GPU.
#[derive(Default)]
pub(crate) struct Known<'s> {
    /// The ways of a class, for the k best.
    ways: Once<(Id, usize), Arc<Vec<Ways<'s>>>>,
    /// Counts of the copies of a class, which several warps' tiles share.
    copies: Once<Id, Arc<Vec<(&'s Term, Work)>>>,
    /// Counts of the copies that threads make for `wgmma`.
    copied: Once<(bool, Operand), Work>,
    /// What accesses of so many elements touch of an operand's tile.
    touching: Once<(bool, Side, [i64; 3]), Arc<Sectors>>,
}

/// What is found out once, whoever asks first; others wait for it.
struct Once<K, V>(Mutex<HashMap<K, Arc<OnceLock<V>>>>);

impl<K, V> Default for Once<K, V> {
    fn default() -> Self {
        Once(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Once<K, V> {
    fn get(&self, key: K, make: impl FnOnce() -> V) -> V {
        let cell = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone();
        cell.get_or_init(make).clone()
    }
}

impl<'s> Known<'s> {
    /// The operands that a plan's own threads copy for `wgmma`, with the counts.
    pub(super) fn copied(&self, gemm: &Gemm, plan: &WgmmaPlan) -> Vec<(Operand, Work)> {
        let of = |place: Operand| {
            let counted = || {
                let vector = mma_conditions::copy_elements(gemm, place.side, by_threads_conditions::WAY.bytes);
                place.copies_of(gemm, &by_threads_conditions::WAY, &self.touched(gemm, &place, vector))
            };
            (place, self.copied.get((gemm.swapped, place), counted))
        };
        copied_places(plan, gemm).into_iter().map(of).collect()
    }

    /// What accesses of so many elements touch of an operand's tile.
    fn touched(&self, gemm: &Gemm, place: &Operand, vector: i64) -> Arc<Sectors> {
        let key = (gemm.swapped, place.side, [place.extent, place.k, vector]);
        self.touching.get(key, || Arc::new(place.sectors(gemm, vector)))
    }

    /// The ways of a class that can be among the k best.
    pub(super) fn ways(&self, space: &'s Space, gemm: &Gemm, class: Id, k: usize) -> Arc<Vec<Ways<'s>>> {
        self.ways.get((class, k), || Arc::new(ways(space, gemm, class, k, self)))
    }

    fn copies(
        &self,
        space: &'s Space,
        gemm: &Gemm,
        place: &Operand,
        class: Id,
        start: OperandPlan,
    ) -> Arc<Vec<(&'s Term, Work)>> {
        let class = space.egraph.find(class);
        let of = |copy: &'s Term| {
            let plan = apply(start, copy);
            let vector = mma_conditions::copy_elements(gemm, place.side, plan.bytes);
            (copy, place.copies_of(gemm, &plan, &self.touched(gemm, place, vector)))
        };
        self.copies.get(class, || Arc::new(leaves(space, class).into_iter().map(of).collect()))
    }
}

/// The ways of a class that can be among the k best, by what they take of a multiprocessor.
fn ways<'s>(space: &'s Space, gemm: &Gemm, class: Id, k: usize, known: &Known<'s>) -> Vec<Ways<'s>> {
    let state = space.state(class);
    let (Stage::Tensor(TensorStage::Operand { op, side, .. }), Team::Cta(threads)) = (state.stage, state.team) else {
        return Vec::new();
    };
    let tile = state.tile;
    let place = Operand { side, op, extent: tile.m, own: tile.n, k: tile.k, threads: threads.into() };
    let mut all = Vec::new();
    for node in space.choices(class) {
        let Term::Operand { layout, children, .. } = node else { continue };
        let [_, issues, loads] = children.map(|c| leaves(space, c));
        let of = |plan: OperandPlan| OperandPlan { layout: *layout, ..plan };
        let start = of(OperandPlan::default());
        let loads: Vec<_> = loads.into_iter().map(|l| (l, place.loads(gemm, &apply(start, l)))).collect();
        let copies = known.copies(space, gemm, &place, children[0], start);
        for (copy, copied) in copies.iter() {
            let with_copy = apply(start, copy);
            for issue in &issues {
                for (load, loaded) in &loads {
                    let plan = apply(apply(with_copy, issue), load);
                    let share = Share::counted(&place, gemm, &plan, copied, loaded);
                    all.push((node, [*copy, *issue, *load], plan, share));
                }
            }
        }
    }
    // Those that add less stand first, the usual ones among equals; no later one adds less of everything.
    let weight = |s: &Share| s.issued + s.shared + s.l2_bytes / 64.0 + s.late;
    all.sort_by(|(_, _, p, s), (_, _, q, t)| weight(s).total_cmp(&weight(t)).then_with(|| unusual(p).cmp(&unusual(q))));
    let mut groups: Vec<Ways<'s>> = Vec::new();
    for (node, parts, _, share) in all {
        let taken = |s: &Share| (s.registers, s.waiting, s.padding);
        let same = groups.iter().position(|g| taken(&g.least) == taken(&share));
        let at = same.unwrap_or_else(|| {
            groups.push(Ways { ways: Vec::new(), least: share });
            groups.len() - 1
        });
        let Some(group) = groups.get_mut(at) else { continue };
        if group.ways.iter().filter(|way| way.share.adds_no_more(&share)).count() < k {
            group.least = group.least.least(&share);
            let path = Path::with(node, parts.into_iter().map(Path::leaf).collect());
            group.ways.push(Way { share, path });
        }
    }
    groups
}

/// How many of a way's decisions are not the usual ones.
fn unusual(plan: &OperandPlan) -> (bool, bool, bool, u32, u32) {
    let usual = OperandPlan::default();
    (plan.rolled, plan.order != usual.order, !matches!(plan.layout, TileLayout::Xor(_)), plan.step, plan.prefetch)
}

/// The leaves of a class.
pub(super) fn leaves(space: &Space, class: Id) -> Vec<&Term> {
    space.choices(space.egraph.find(class)).collect()
}

fn apply(plan: OperandPlan, leaf: &Term) -> OperandPlan {
    let Term::Matrix { matrix, .. } = leaf else { return plan };
    match *matrix {
        Matrix::Copy { bytes, order } => OperandPlan { bytes, order, ..plan },
        Matrix::Issue { rolled, step, prefetch } => OperandPlan { rolled, step, prefetch, ..plan },
        Matrix::Load { matrices } => OperandPlan { matrices, ..plan },
        Matrix::Mma(_) | Matrix::Wgmma { .. } => plan,
    }
}

/// The loop that a leaf is.
pub(super) fn loop_of(leaf: &Term) -> Option<MmaLoop> {
    match leaf {
        Term::Matrix { matrix: Matrix::Mma(way), .. } => Some(*way),
        _ => None,
    }
}
