//! Swapped operands: `C = A B` is `C^T = B^T A^T`.
use super::offer::{decide, Offer};
use crate::space::{Engine, Rule};
use satune_ir::term::tensor::{Gemm, TensorNode};
use satune_ir::term::{State, Term};
use std::sync::Arc;

/// Rows of C up to which blocks of the transposed product may win: two instructions of `wgmma`, whose columns come in
/// eights, but whose rows come in 64.
const FEW: i64 = 128;

/// `(grid nest of C = A B) = (swap (grid nest of C^T = B^T A^T))`.
///
/// It means the same whatever the shape. To keep the space small it is offered where it can win: where C is stored by
/// columns, which are the rows of the transposed product; else where C has few rows, and more columns.
pub struct SwapOperands(pub(super) Arc<Offer>);

impl Rule for SwapOperands {
    fn name(&self) -> &'static str {
        "swap operands"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        if !state.swapped && self.0.is_block(node, state) && is_offered(&self.0.gemms[1]) {
            decide(engine, TensorNode::Swap, state.transposed());
        }
    }
}

/// Whether blocks compute tiles of a product in this form: where its result is stored by rows, or the other form, whose
/// is, has few rows of instructions to fill.
pub fn is_offered(gemm: &Gemm) -> bool {
    !gemm.c_transposed || gemm.n <= FEW && gemm.n < gemm.m
}
