//! `cache_read` of both operands to a ring in shared memory, `software_pipeline`: the loop over k.
use super::{at, decide, shared, stage_of, Offer};
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::tensor::{mma_conditions, wgmma_conditions, Gemm, Kind, Store, TensorNode, TensorStage};
use satune_ir::term::{Axis, Place, Side, State, Term};
use std::sync::Arc;

/// `nest(K) = (ring S (for k in ceil(K / t): nest(t)))`, filled by cp.async.
///
/// Side conditions: the ring fits in shared memory, and C's tile in the ring where it goes that way; a part of k has whole
/// tiles.
pub struct CopyRing(pub(super) Arc<Offer>);

impl Rule for CopyRing {
    fn name(&self) -> &'static str {
        "cache_read ring, cp.async"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Ring(kind @ Kind::Mma(op))) = stage_of(node, state) else { return };
        let (gemm, menu) = (self.0.gemm(state), &self.0.menu);
        let total = state.tile.k;
        for k in menu.tile_k.iter().copied().filter(|k| k % i64::from(op.k()) == 0) {
            let tile = [state.tile.m, state.tile.n, k];
            if !engine.holds(Condition::RingParts, whole_parts(gemm, total, k)) {
                continue;
            }
            for stages in menu.stages.iter().copied() {
                let fits = mma_conditions::ring(gemm, tile, stages).is_ok()
                    && i64::from(stages) * ring_stage(gemm, tile) <= engine.limits.shared_bytes;
                let by_shared = matches!(state.c, Place::Shared(_));
                let store = Store::Shared { stmatrix: false };
                let holds_c = !by_shared || mma_conditions::store(gemm, store, false, tile, stages).is_ok();
                if !engine.holds(Condition::RingFits, fits) || !engine.holds(Condition::MmaStore, holds_c) {
                    continue;
                }
                let below =
                    State { c: Place::Local, tile: state.tile.with(Axis::K, k), ..at(state, TensorStage::Deal(kind)) };
                for slack in menu.slack.iter().copied().filter(|s| s + 2 <= stages) {
                    decide(engine, TensorNode::Ring { stages, total, slack, c: state.c }, below);
                }
            }
        }
    }
}

/// The same filled by the TMA, 128 bytes of k at a time.
///
/// Side conditions: the ring (and C's tile where the TMA stores it) fits in shared memory; a part of k has whole tiles.
pub struct TmaRing(pub(super) Arc<Offer>);

impl Rule for TmaRing {
    fn name(&self) -> &'static str {
        "cache_read ring, TMA"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Ring(kind @ Kind::Wgmma { ping_pong, consumers })) = stage_of(node, state) else {
            return;
        };
        let (gemm, menu) = (self.0.gemm(state), &self.0.menu);
        let (total, k) = (state.tile.k, 128 / i64::from(gemm.operand.bytes()));
        if !engine.holds(Condition::RingParts, whole_parts(gemm, total, k)) {
            return;
        }
        let tile = [state.tile.m, state.tile.n, k];
        let in_work = if ping_pong { i64::from(consumers) } else { 1 };
        let staging = match state.c {
            Place::Shared(_) => in_work * tile[0] * tile[1] * i64::from(gemm.output.bytes()),
            _ => 0,
        };
        for stages in menu.stages.iter().copied() {
            // Two barriers of 8 bytes per stage, and two for turns.
            let bytes = i64::from(stages) * (ring_stage(gemm, tile) + 16) + staging + if ping_pong { 16 } else { 0 };
            let fits = wgmma_conditions::stages(stages).is_ok() && bytes <= engine.limits.shared_bytes;
            if engine.holds(Condition::RingFits, fits) {
                let node = TensorNode::Ring { stages, total, slack: 0, c: state.c };
                decide(engine, node, staged(gemm, state, kind, k));
            }
        }
    }
}

/// Bytes of one stage.
fn ring_stage(gemm: &Gemm, [m, n, k]: [i64; 3]) -> i64 {
    (m + n) * k * i64::from(gemm.operand.bytes())
}

/// The whole of k may end within a tile; a part of it may not.
fn whole_parts(gemm: &Gemm, total: i64, k: i64) -> bool {
    total == gemm.k || total % k == 0
}

fn staged(gemm: &Gemm, state: &State, kind: Kind, k: i64) -> State {
    let below = at(state, TensorStage::Deal(kind));
    let (a, b) = (shared(gemm, Side::A), shared(gemm, Side::B));
    State { a, b, tile: state.tile.with(Axis::K, k), ..below }
}
