//! `cache_write` of the sums, and how they leave: straight from registers, or by way of shared memory.
use super::offer::{at, decide, stage_of, Offer};
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::tensor::{
    mma_conditions, wgmma_conditions, Store, TensorInstruction, TensorNode, TensorStage, TileStore,
};
use satune_ir::term::{Place, StagedLayout, State, Term};
use std::sync::Arc;

/// A tile of C in shared memory: rows of C, swizzled.
const SWIZZLED: StagedLayout = StagedLayout { k_major: false, pad: 0, swizzle: true };
const STAGED: Place = Place::Shared(SWIZZLED);

/// `(cta nest) = (write C nest)`: warps write their sums.
///
/// Side condition: what goes by way of shared memory has 16 bits and whole chunks, and is no partial sum; that it fits
/// the ring is the ring's condition. Fragments of `wmma` are stored as a whole, straight to C where that is made of whole
/// tiles of nothing but sums.
pub struct StoreSums(pub(super) Arc<Offer>);

impl Rule for StoreSums {
    fn name(&self) -> &'static str {
        "cache_write fragments"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Store(kind @ TensorInstruction::Mma(op))) = stage_of(node, state) else { return };
        let to = state.c;
        let below = at(state, TensorStage::Ring(kind));
        let (tile, is_split) = ([state.tile.m, state.tile.n, state.tile.k], to == Place::Workspace);
        // All of k in the ring: its size is not known yet.
        let fits = |store| mma_conditions::store(self.0.gemm(state), op, store, is_split, tile, 16);
        if engine.holds(Condition::MmaStore, fits(Store::Direct)) {
            decide(engine, TensorNode::Store { store: Store::Direct, to }, State { c: Place::Local, ..below });
        }
        let variants: &[bool] = if self.0.menu.stmatrix { &[true, false] } else { &[false] };
        for stmatrix in variants {
            let store = Store::Shared { stmatrix: *stmatrix };
            if engine.holds(Condition::MmaStore, fits(store)) {
                decide(engine, TensorNode::Store { store, to }, State { c: STAGED, ..below });
            }
        }
    }
}

/// `(cta nest) = (write C nest)`: consumers write their sums, or the TMA does, all at once or box by box.
///
/// Side condition: what the TMA stores has 16 bits, or 32 in rows, whole chunks and boxes, and is no partial sum; of boxes that go one
/// by one there are more than shared memory holds.
pub struct StoreTiles(pub(super) Arc<Offer>);

impl Rule for StoreTiles {
    fn name(&self) -> &'static str {
        "cache_write accumulators"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Store(kind @ TensorInstruction::Wgmma(team))) = stage_of(node, state) else { return };
        let to = state.c;
        let below = at(state, TensorStage::Ring(kind));
        let boxes = Place::Strip(SWIZZLED, team.op.rows());
        for (store, c) in [(TileStore::Direct, Place::Local), (TileStore::Tma, STAGED), (TileStore::Boxes, boxes)] {
            let (is_split, tile) = (to == Place::Workspace, [state.tile.m, state.tile.n]);
            let fits = wgmma_conditions::store(self.0.gemm(state), store, is_split, tile, team);
            if engine.holds(Condition::WgmmaStore, fits) {
                decide(engine, TensorNode::StoreTile { store, to }, State { c, ..below });
            }
        }
    }
}
