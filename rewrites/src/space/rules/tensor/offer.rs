//! What the rules of tensor-core schedules know, and the states between their decisions.
use super::menu::TensorMenu;
use crate::space::Engine;
use satune_ir::term::tensor::{mma_conditions, Gemm, TensorNode, TensorStage};
use satune_ir::term::{Place, Side, Stage, StagedLayout, State, Term};

/// What all these rules know: the matrix product as it is and swapped, and the sizes on offer.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub gemms: [Gemm; 2],
    pub menu: TensorMenu,
}

impl Offer {
    /// The product that a state is about.
    pub fn gemm(&self, state: &State) -> &Gemm {
        &self.gemms[usize::from(state.swapped)]
    }

    /// Whether the node is an unscheduled block, whose tile is one of the menu's.
    pub fn is_block(&self, node: &Term, state: &State) -> bool {
        let open = matches!((node, state.stage), (Term::Nest(_), Stage::Blocks { batch: 0, m: false, n: false }));
        let tile = state.product_tile();
        open && self.menu.tile_m.contains(&tile.m) && self.menu.tile_n.contains(&tile.n)
    }
}

/// The stage of an unscheduled nest of a block on tensor cores.
pub(super) fn stage_of(node: &Term, state: &State) -> Option<TensorStage> {
    match (node, state.stage) {
        (Term::Nest(_), Stage::Tensor(stage)) => Some(stage),
        _ => None,
    }
}

/// The tile of an operand in shared memory, as it is in global memory.
pub(super) fn shared(gemm: &Gemm, side: Side) -> Place {
    let k_major = mma_conditions::rows_along_k(gemm, side);
    Place::Shared(StagedLayout { k_major, pad: 0, swizzle: true })
}

/// States that the node under consideration equals `node` over what is not decided yet.
pub(super) fn decide(engine: &mut Engine<'_>, node: TensorNode, below: State) {
    let body = engine.nest(below);
    engine.equals(Term::Tensor { node, body: [body] });
}

/// The same state with another decision to come.
pub(super) fn at(state: &State, stage: TensorStage) -> State {
    State { stage: Stage::Tensor(stage), ..*state }
}
