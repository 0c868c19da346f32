//! `split`, `bind`: a block's tile is dealt out to groups of four warps that use `wgmma` or `tcgen05`.
use super::offer::{at, decide, stage_of};
use crate::space::{Engine, Rule};
use satune_ir::term::tensor::{TensorInstruction, TensorNode, TensorStage};
use satune_ir::term::{Axis, State, Team, Term};

/// `(cta nest) = for m in consumers(c): (warpgroup nest)`, or each of two consumers takes whole tiles in turn. That
/// the rows are whole instructions was asked for when the block was entered.
pub struct BindConsumers;

impl Rule for BindConsumers {
    fn name(&self) -> &'static str {
        "bind to consumers"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Deal { kind: kind @ TensorInstruction::Wgmma(team), .. }) = stage_of(node, state) else {
            return;
        };
        let rows = state.tile.m / team.at_tile();
        let below = at(state, TensorStage::Multiply(kind));
        let below = State { team: Team::Warpgroup, tile: state.tile.with(Axis::M, rows), ..below };
        decide(engine, TensorNode::Consumers { count: team.count, ping_pong: team.ping_pong }, below);
    }
}
