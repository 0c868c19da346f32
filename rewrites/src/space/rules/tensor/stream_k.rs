//! Stream-K: blocks of a fixed grid share the steps along k of all tiles evenly.
use super::offer::Offer;
use super::tensorize::enter;
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::tensor::{wgmma_conditions, TensorNode, WgmmaPlan};
use satune_ir::term::{Place, State, Term};
use std::sync::Arc;

/// `(grid nest) = (steps of (cta producer and consumers nest), and their sums added)`. Sums may be added in any order, and
/// are in that of k.
///
/// Side condition: k is not split, consumers work on a tile together, and no block is idle, whichever of the menu's tiles
/// along k is taken below. That its tiles alone do not
/// fill the grid evenly is no condition, but what makes it worth a place in the space.
pub struct ShareSteps(pub(super) Arc<Offer>);

impl Rule for ShareSteps {
    fn name(&self) -> &'static str {
        "split, bind to blocks evenly (stream-K)"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (gemm, menu) = (self.0.gemm(state), &self.0.menu);
        if state.c != Place::Global {
            return;
        }
        let longest = menu.spans.iter().copied().max().unwrap_or(1);
        let tile = [state.tile.m, state.tile.n, wgmma_conditions::tile_k(gemm.operand, longest)];
        for (team, blocks) in super::tensorize::teams(&self.0, engine, node, state) {
            // One of the teams stands for all grids, some of which have more blocks than there are tiles. They have a producer.
            if blocks.is_some() || team.by_threads {
                continue;
            }
            for grid in menu.grids.iter().copied() {
                // In the terms of this block's product, swapped or not: its tiles are counted.
                let plan = WgmmaPlan {
                    swapped: gemm.swapped,
                    blocks: Some(grid),
                    stream_k: true,
                    ..WgmmaPlan::of_team(team, tile, 2)
                };
                let even = plan.dealt(gemm).is_some_and(|s| s.tiles % s.blocks == 0);
                let shared = wgmma_conditions::stream_k(&plan, gemm).is_ok();
                if engine.holds(Condition::WgmmaStream, shared) && !even {
                    let (blocks, cluster) = (Some(grid), [1, 1]);
                    enter(engine, state, TensorNode::Wgmma { team, blocks, cluster, stream_k: true });
                }
            }
        }
    }
}
