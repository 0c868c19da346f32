//! `tensorize`: a block multiplies on tensor cores.
use super::offer::{at, decide, Offer};
use super::swap::is_offered;
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::tensor::{
    by_threads_conditions, mma_conditions, wgmma_conditions, Consumers, TensorInstruction, TensorNode, TensorStage,
};
use satune_ir::term::{Place, State, Team, Term};
use std::sync::Arc;

/// Whether it begins a block on tensor cores, as it is.
pub(super) fn begins(offer: &Offer, node: &Term, state: &State) -> bool {
    offer.is_block(node, state) && is_offered(offer.gemm(state))
}

/// `(grid nest) = (block nest)`, whose warps will use `mma.sync`.
///
/// It needs an instruction for the operands' type; how many warps there are is decided with their tiles.
pub struct TensorizeMma(pub(super) Arc<Offer>);

impl Rule for TensorizeMma {
    fn name(&self) -> &'static str {
        "tensorize mma.sync"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(op) = self.0.menu.mma.filter(|_| begins(&self.0, node, state)) else { return };
        let [m, n] = op.block();
        let gemm = self.0.gemm(state);
        let menu = &self.0.menu;
        let needed = menu.has_use(gemm.m, state.tile.m) && menu.has_use(gemm.n, state.tile.n);
        let whole = state.tile.m % m == 0 && state.tile.n % n == 0;
        if needed && whole && mma_conditions::operands(gemm, op).is_ok() {
            decide(engine, TensorNode::Mma { op }, at(state, TensorStage::Store(TensorInstruction::Mma(op))));
        }
    }
}

/// `(grid nest) = (cta producer and consumers nest)`, whose consumers will use `wgmma` or `tcgen05`; one block per tile, or a fixed
/// number of blocks that walk over the tiles.
///
/// A producer has the TMA bring the tiles. Where that does not take an operand as it is in memory, consumers may copy the tiles themselves
/// (`wgmma`; a block per tile).
///
/// Side conditions: the instruction takes the operands as they are stored, the TMA their rows, whole instructions make
/// the tile, and a consumer's sums fit its registers, or all of them tensor memory.
pub struct TensorizeWgmma(pub(super) Arc<Offer>);

impl Rule for TensorizeWgmma {
    fn name(&self) -> &'static str {
        "tensorize wgmma"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        for (team, blocks) in teams(&self.0, engine, node, state) {
            enter(engine, state, TensorNode::Wgmma { team, blocks, cluster: [1, 1], stream_k: false });
        }
    }
}

/// The node under consideration begins such a block.
pub(super) fn enter(engine: &mut Engine<'_>, state: &State, node: TensorNode) {
    let TensorNode::Wgmma { team: who, stream_k, .. } = node else { return };
    let kind = TensorInstruction::Wgmma(who);
    let team = Team::Cta(who.threads());
    let c = if stream_k { Place::Workspace } else { state.c };
    decide(engine, node, State { team, c, ..at(state, TensorStage::Store(kind)) });
}

/// Who may compute the tiles of an unscheduled block, and the blocks that walk over them.
pub(super) fn teams(
    offer: &Offer,
    engine: &mut Engine<'_>,
    node: &Term,
    state: &State,
) -> Vec<(Consumers, Option<u32>)> {
    let (gemm, menu) = (offer.gemm(state), &offer.menu);
    let mut list = Vec::new();
    let Some(op) = menu.group else { return list };
    if !begins(offer, node, state) || !menu.has_use(gemm.n, state.tile.n) {
        return list;
    }
    let step = wgmma_conditions::tile_k(gemm.operand, 1);
    let rows = wgmma_conditions::rows(gemm).is_ok() && wgmma_conditions::split(gemm, step, 1).is_ok();
    let by_tma = engine.holds(Condition::WgmmaRows, rows)
        && engine.holds(Condition::WgmmaOperands, wgmma_conditions::operands(gemm, op).is_ok());
    let by_threads = by_threads_conditions::has_use(gemm).is_ok()
        && engine.holds(Condition::WgmmaOperands, by_threads_conditions::operands(gemm, op).is_ok());
    let tile = [state.tile.m, state.tile.n, step];
    let along = |extent: i64, tile: i64| extent / tile + i64::from(extent % tile > 0);
    let parts = if state.c == Place::Workspace { gemm.k / state.tile.k } else { 1 };
    let tiles = gemm.batch * along(gemm.m, tile[0]) * along(gemm.n, tile[1]) * parts;
    let grids: Vec<Option<u32>> = [None]
        .into_iter()
        // A grid of as many blocks as tiles is that of one block per tile.
        .chain(menu.grids.iter().copied().filter(|g| i64::from(*g) < tiles).map(Some))
        .collect();
    for count in menu.consumers.iter().copied() {
        let producer = [false, true].map(|ping_pong| Consumers { op, count, ping_pong, by_threads: false });
        let none = Consumers { op, count, ping_pong: false, by_threads: true };
        for team in producer.into_iter().filter(|_| by_tma).chain(by_threads.then_some(none)) {
            let made = wgmma_conditions::consumers(team).is_ok();
            let whole = wgmma_conditions::tile(gemm, tile, team).is_ok();
            let fits = wgmma_conditions::sums(gemm, tile, team).is_ok();
            let (whole, fits) = (engine.holds(Condition::WgmmaTile, whole), engine.holds(Condition::WgmmaSums, fits));
            if !made || !whole || !fits {
                continue;
            }
            // Who takes turns needs more than one tile; who copies has one.
            let has_grid = |blocks: &Option<u32>| match blocks {
                None => !team.ping_pong,
                Some(_) => !team.by_threads,
            };
            let grids = grids.iter().copied().filter(has_grid);
            list.extend(grids.map(|blocks| (team, blocks)));
        }
    }
    list
}
