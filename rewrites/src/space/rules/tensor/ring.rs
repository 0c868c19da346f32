//! `cache_read` of both operands to a ring in shared memory, `software_pipeline`: the loop over k.
use super::offer::{at, decide, shared, stage_of, Offer};
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::tensor::{
    by_threads_conditions, mma_conditions, wgmma_conditions, Gemm, Store, TensorInstruction, TensorNode, TensorStage,
    TileLayout, TileStore, WgmmaPlan,
};
use satune_ir::term::{Axis, Place, Side, State, Term};
use std::sync::Arc;

/// `nest(K) = (ring S (for k in ceil(K / t): nest(t)))`, filled by cp.async, or through registers.
///
/// Side conditions: the ring fits in shared memory, and C's tile in the ring where it goes that way; a part of k has whole
/// tiles. Rows of tiles may be padded below where the ring has room for both operands' so padded.
pub struct CopyRing(pub(super) Arc<Offer>);

impl Rule for CopyRing {
    fn name(&self) -> &'static str {
        "cache_read ring"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Ring(kind @ TensorInstruction::Mma(op))) = stage_of(node, state) else { return };
        let (gemm, menu) = (self.0.gemm(state), &self.0.menu);
        let total = state.tile.k;
        for k in menu.tile_k.iter().copied().filter(|k| k % i64::from(op.k()) == 0) {
            let tile = [state.tile.m, state.tile.n, k];
            if !engine.holds(Condition::RingParts, mma_conditions::whole_parts(gemm, total, k)) {
                continue;
            }
            let most = engine.limits.shared_bytes;
            let least = mma_conditions::padding(gemm, op, tile, [mma_conditions::least_layout(op); 2]);
            let pads = op.wmma().is_none()
                && menu.layouts.contains(&TileLayout::Padded)
                && mma_conditions::padding(gemm, op, tile, [TileLayout::Padded; 2]) > 0;
            for stages in menu.stages.iter().copied() {
                let bytes = mma_conditions::ring_bytes(gemm, tile, stages, least);
                let fits =
                    mma_conditions::ring(gemm, op, tile, stages, least).and(mma_conditions::shared_fits(bytes, most));
                let store = Store::Shared { stmatrix: false };
                let holds_c = match state.c {
                    Place::Shared(_) => mma_conditions::store(gemm, op, store, false, tile, stages),
                    _ => Ok(()),
                };
                if !engine.holds(Condition::RingFits, fits) || !engine.holds(Condition::MmaStore, holds_c) {
                    continue;
                }
                let has_room = mma_conditions::room(gemm, op, tile, stages, most);
                let room = pads && engine.holds(Condition::RingFits, has_room);
                let deal = at(state, TensorStage::Deal { kind, room });
                let below = State { c: Place::Local, tile: state.tile.with(Axis::K, k), ..deal };
                for slack in menu.slack.iter().copied().filter(|s| s + 2 <= stages) {
                    decide(engine, TensorNode::Ring { stages, total, slack, c: state.c }, below);
                }
            }
        }
    }
}

/// The same for `wgmma`, filled by the TMA or by those who multiply.
///
/// Side conditions: the ring (and C's tile where the TMA stores it) fits in shared memory; a part of k has whole tiles; what threads
/// copy waits in registers beside their sums.
pub struct GroupRing(pub(super) Arc<Offer>);

impl Rule for GroupRing {
    fn name(&self) -> &'static str {
        "cache_read ring, wgmma"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Ring(kind @ TensorInstruction::Wgmma(team))) = stage_of(node, state) else { return };
        let (gemm, menu) = (self.0.gemm(state), &self.0.menu);
        let total = state.tile.k;
        let store = TileStore::of_place(state.c);
        for spans in menu.spans.iter().copied() {
            let k = wgmma_conditions::tile_k(gemm.operand, spans);
            let parts = gemm.k / total.max(1);
            let split = match team.by_threads {
                true => mma_conditions::split(gemm, k, parts),
                false => wgmma_conditions::split(gemm, k, parts),
            };
            let whole = mma_conditions::whole_parts(gemm, total, k).and(split);
            if !engine.holds(Condition::RingParts, whole) {
                continue;
            }
            let tile = [state.tile.m, state.tile.n, k];
            for stages in menu.stages.iter().copied() {
                let plan = WgmmaPlan { store, ..WgmmaPlan::of_team(team, tile, stages) };
                let room = mma_conditions::shared_fits(plan.shared_bytes(gemm), engine.limits.shared_bytes);
                let (long, waits) = match team.by_threads {
                    true => (by_threads_conditions::stages(stages), by_threads_conditions::registers_fit(&plan, gemm)),
                    false => (wgmma_conditions::stages(stages), Ok(())),
                };
                if engine.holds(Condition::RingFits, long.and(room)) && engine.holds(Condition::CopiedFits, waits) {
                    let node = TensorNode::Ring { stages, total, slack: 0, c: state.c };
                    decide(engine, node, staged(gemm, state, kind, k));
                }
            }
        }
    }
}

fn staged(gemm: &Gemm, state: &State, kind: TensorInstruction, k: i64) -> State {
    let below = at(state, TensorStage::Deal { kind, room: false });
    let (a, b) = (shared(gemm, Side::A), shared(gemm, Side::B));
    State { a, b, tile: state.tile.with(Axis::K, k), ..below }
}
