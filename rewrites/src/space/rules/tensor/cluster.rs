//! `bind` to clusters, with multicast: blocks of neighbouring tiles bring what they share once.
use super::offer::Offer;
use super::tensorize::{enter, teams};
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::tensor::{wgmma_conditions, Consumers, TensorNode};
use satune_ir::term::{State, Term};
use std::sync::Arc;

/// `(grid nest) = (cluster (cta producer and consumers nest))`. A's tile does not depend on n, so that blocks along n
/// share it, and B's those along m.
///
/// Side condition: clusters divide the tiles and a persistent grid, and each block brings whole atoms of eight rows.
pub struct BindCluster(pub(super) Arc<Offer>);

impl Rule for BindCluster {
    fn name(&self) -> &'static str {
        "bind to clusters, multicast"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (gemm, menu) = (self.0.gemm(state), &self.0.menu);
        let tile = [state.tile.m, state.tile.n, wgmma_conditions::tile_k(gemm.operand, 1)];
        let with_producer = |(team, _): &(Consumers, _)| !team.by_threads;
        for (team, blocks) in teams(&self.0, engine, node, state).into_iter().filter(with_producer) {
            for cluster in menu.clusters.iter().copied() {
                let whole = wgmma_conditions::cluster(gemm, tile, cluster, blocks).is_ok();
                if engine.holds(Condition::WgmmaCluster, whole) {
                    enter(engine, state, TensorNode::Wgmma { team, blocks, cluster, stream_k: false });
                }
            }
        }
    }
}
