//! `tensorize`: a block multiplies on tensor cores.
use super::{at, decide, Offer};
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::tensor::{mma_conditions, wgmma_conditions, Kind, Mma, TensorNode, TensorStage};
use satune_ir::term::{Place, Stage, State, Team, Term};
use std::sync::Arc;

/// Whether the node is an unscheduled block, whose tile is one of the menu's.
fn is_block(offer: &Offer, node: &Term, state: &State) -> bool {
    let open = matches!((node, state.stage), (Term::Nest(_), Stage::Blocks { batch: 0, m: false, n: false }));
    open && offer.menu.tile_m.contains(&state.tile.m) && offer.menu.tile_n.contains(&state.tile.n)
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
        let whole = state.tile.m % 16 == 0 && state.tile.n % 16 == 0;
        let Some(op) = Mma::of(self.0.gemm.operand).filter(|_| whole && is_block(&self.0, node, state)) else { return };
        if mma_conditions::operands(&self.0.gemm, op).is_ok() {
            decide(engine, TensorNode::Mma { op }, at(state, TensorStage::Store(Kind::Mma(op))));
        }
    }
}

/// `(grid nest) = (cta producer and consumers nest)`, whose consumers will use `wgmma`; one block per tile, or a fixed
/// number of blocks that walk over the tiles.
///
/// Side conditions: the instruction takes the operands as they are stored, the TMA their rows, whole instructions make
/// the tile, and a consumer's sums fit its registers.
pub struct TensorizeWgmma(pub(super) Arc<Offer>);

impl Rule for TensorizeWgmma {
    fn name(&self) -> &'static str {
        "tensorize wgmma"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (gemm, menu) = (&self.0.gemm, &self.0.menu);
        if !is_block(&self.0, node, state) {
            return;
        }
        let rows = engine.holds(Condition::WgmmaRows, wgmma_conditions::rows(gemm).is_ok());
        let operands = engine.holds(Condition::WgmmaOperands, wgmma_conditions::operands(gemm).is_ok());
        if !rows || !operands {
            return;
        }
        let tile = [state.tile.m, state.tile.n, 128 / i64::from(gemm.operand.bytes())];
        let along = |extent: i64, tile: i64| extent / tile + i64::from(extent % tile > 0);
        let parts = if state.c == Place::Workspace { gemm.k / state.tile.k } else { 1 };
        let tiles = along(gemm.m, tile[0]) * along(gemm.n, tile[1]) * parts;
        let grids: Vec<Option<u32>> = [None]
            .into_iter()
            // A grid of as many blocks as tiles is that of one block per tile.
            .chain(menu.grids.iter().copied().filter(|g| i64::from(*g) < tiles).map(Some))
            .collect();
        for consumers in &menu.consumers {
            for ping_pong in [false, true] {
                let made = wgmma_conditions::consumers(*consumers, ping_pong).is_ok();
                let whole = wgmma_conditions::tile(gemm, tile, *consumers, ping_pong).is_ok();
                let fits = wgmma_conditions::sums(tile, *consumers, ping_pong).is_ok();
                let (whole, fits) =
                    (engine.holds(Condition::WgmmaTile, whole), engine.holds(Condition::WgmmaSums, fits));
                if !made || !whole || !fits {
                    continue;
                }
                let kind = Kind::Wgmma { consumers: *consumers, ping_pong };
                let team = Team::Cta((consumers + 1) * 128);
                for blocks in &grids {
                    // Who takes turns needs more than one tile.
                    if ping_pong && blocks.is_none() {
                        continue;
                    }
                    let below = State { team, ..at(state, TensorStage::Store(kind)) };
                    decide(engine, TensorNode::Wgmma { consumers: *consumers, ping_pong, blocks: *blocks }, below);
                }
            }
        }
    }
}
