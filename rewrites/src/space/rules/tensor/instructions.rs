//! `reorder`: the order of a team's instructions within a tile along k.
use super::stage_of;
use crate::space::{Engine, Rule};
use satune_ir::term::tensor::{Kind, Matrix, Order, TensorStage};
use satune_ir::term::{State, Term};

/// `nest = mma by rows or columns`, each of them straight or back and forth. The sums are different ones, so any order
/// means the same.
pub struct MmaOrder;

impl Rule for MmaOrder {
    fn name(&self) -> &'static str {
        "order of mma.sync"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Multiply(Kind::Mma(_))) = stage_of(node, state) else { return };
        // One row of instructions has one order.
        let both: &[bool] = if state.tile.m > 16 { &[false, true] } else { &[false] };
        for columns in both {
            for serpentine in both {
                let matrix = Matrix::Mma(Order { columns: *columns, serpentine: *serpentine });
                engine.equals(Term::Matrix { matrix, state: Box::new(*state) });
            }
        }
    }
}

/// `nest = wgmma step by step, or one block of 64 rows after the other`; and a tile's place in the ring is freed when
/// its own instructions are done, or when those of the next tile have been issued.
pub struct WgmmaOrder;

impl Rule for WgmmaOrder {
    fn name(&self) -> &'static str {
        "order of wgmma"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Multiply(Kind::Wgmma { .. })) = stage_of(node, state) else { return };
        let orders: &[bool] = if state.tile.m > 64 { &[false, true] } else { &[false] };
        for by_rows in orders {
            for eager_release in [false, true] {
                let matrix = Matrix::Wgmma { by_rows: *by_rows, eager_release };
                engine.equals(Term::Matrix { matrix, state: Box::new(*state) });
            }
        }
    }
}
