//! `reorder`: the order of a team's instructions within a tile along k.
use super::offer::{stage_of, Offer};
use crate::space::{Engine, Rule};
use satune_ir::term::tensor::{mma_conditions, Matrix, MmaLoop, Order, TensorInstruction, TensorStage};
use satune_ir::term::{State, Term};
use std::sync::Arc;

/// `nest = mma by rows or columns`, each of them straight or back and forth, steps along k upwards or downwards; tiles
/// along k in a loop that is unrolled by the ring's length, or one by one; warps numbered along m or n. The sums are
/// different ones, and those of steps are added in any order, so any order means the same.
pub struct MmaOrder(pub(super) Arc<Offer>);

impl Rule for MmaOrder {
    fn name(&self) -> &'static str {
        "order of a warp's instructions"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Warp { op, grid, rolls }) = stage_of(node, state) else { return };
        // One row of instructions, or one column, has one order, and so has one step.
        let [rows, columns] = [state.tile.m / op.block()[0], state.tile.n / op.block()[1]];
        let both: &[bool] = if rows > 1 && columns > 1 { &[false, true] } else { &[false] };
        let several = state.tile.k > i64::from(op.k());
        let down = self.0.menu.descending.iter().copied().filter(|d| several || !d);
        let rolled = self.0.menu.loops.iter().copied().filter(|r| rolls || !r);
        let numbers: &[bool] = if grid { &[true, false] } else { &[true] };
        for (descending, rolled) in down.flat_map(|d| rolled.clone().map(move |r| (d, r))) {
            let pairs = self.0.menu.pairs.iter().filter(|pairs| columns > 1 || !**pairs);
            let orders = both.iter().flat_map(|c| both.iter().map(move |s| (*c, *s)));
            for (columns, serpentine, pairs) in orders.flat_map(|(c, s)| pairs.clone().map(move |p| (c, s, *p))) {
                let order = Order { columns, serpentine, pairs, descending };
                if mma_conditions::instructions(op, [state.tile.m, state.tile.n], order).is_err() {
                    continue;
                }
                for m_outer in numbers.iter().copied() {
                    let matrix = Matrix::Mma(MmaLoop { order, rolled, m_outer });
                    engine.equals(Term::Matrix { matrix, state: Box::new(*state) });
                }
            }
        }
    }
}

/// `nest = wgmma step by step, or one block of 64 rows after the other`; and a tile's place in the ring is freed when
/// its own instructions are done, or when those of the next tile have been issued, by a thread of the group or of each warp.
/// Without a producer the block meets instead. `tcgen05` has one order, and frees a place itself.
pub struct WgmmaOrder;

impl Rule for WgmmaOrder {
    fn name(&self) -> &'static str {
        "order of wgmma"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Multiply(TensorInstruction::Wgmma(team))) = stage_of(node, state) else { return };
        let holds = team.op.holds_sums();
        let orders: &[bool] = if holds && state.tile.m > team.op.rows() { &[false, true] } else { &[false] };
        let releases = [(false, false), (true, false), (false, true), (true, true)];
        for by_rows in orders {
            let releases = releases.into_iter().filter(|(_, per_warp)| !per_warp || !team.by_threads);
            for (eager_release, arrive_per_warp) in releases.take(if holds { 4 } else { 1 }) {
                let matrix = Matrix::Wgmma { by_rows: *by_rows, eager_release, arrive_per_warp };
                engine.equals(Term::Matrix { matrix, state: Box::new(*state) });
            }
        }
    }
}
