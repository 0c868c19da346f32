//! `tensorize` by `wmma`: fragments whose layout only the machine knows, on GPUs before `mma.sync` of today's shapes.
use super::offer::{at, decide, Offer};
use super::tensorize::begins;
use crate::space::{Engine, Rule};
use satune_ir::term::tensor::{mma_conditions, Mma, TensorInstruction, TensorNode, TensorStage};
use satune_ir::term::{State, Term};
use std::sync::Arc;

/// `(grid nest) = (block nest)`, whose warps will use `wmma` of 16x16x16, 32x8x16 or 8x32x16.
///
/// Side conditions: whole instructions make the tile, and the instruction takes the operands as they are stored.
pub struct TensorizeWmma(pub(super) Arc<Offer>);

impl Rule for TensorizeWmma {
    fn name(&self) -> &'static str {
        "tensorize wmma"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        if !begins(&self.0, node, state) {
            return;
        }
        for op in self.0.menu.wmma.iter().copied().map(Mma::Wmma) {
            let [m, n] = op.block();
            let whole = state.tile.m % m == 0 && state.tile.n % n == 0;
            if whole && mma_conditions::operands(self.0.gemm(state), op).is_ok() {
                decide(engine, TensorNode::Mma { op }, at(state, TensorStage::Store(TensorInstruction::Mma(op))));
            }
        }
    }
}
