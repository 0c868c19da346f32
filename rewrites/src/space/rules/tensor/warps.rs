//! `split`, `bind`: a block's tile is dealt out to warps that use `mma.sync`.
use super::{at, decide, stage_of, Offer};
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::tensor::{mma_conditions, Kind, TensorNode, TensorStage};
use satune_ir::term::{Axis, State, Team, Term};
use std::sync::Arc;

/// Most registers of a thread that a kernel is planned with: the estimate may be a few short of the compiler's 255.
const MOST_REGISTERS: i64 = 248;

/// `(cta T nest) = for m in warps(w): for n in warps(T / 32 / w): (warp nest)`, in either order of numbers, for any
/// number of blocks that shall be resident.
///
/// Side conditions: whole instructions make a warp's tile, and whole warps the block's; sums, fragments and addresses
/// fit the registers that so many resident blocks leave.
pub struct BindWarps(pub(super) Arc<Offer>);

impl Rule for BindWarps {
    fn name(&self) -> &'static str {
        "bind to warps, fragments"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Deal(kind @ Kind::Mma(_))) = stage_of(node, state) else { return };
        let Team::Cta(threads) = state.team else { return };
        let (gemm, menu) = (&self.0.gemm, &self.0.menu);
        let (tile, warps) = (state.tile, i64::from(threads / 32));
        for m in (1..=warps).filter(|m| warps % m == 0) {
            let n = warps / m;
            let warp = [tile.m / m, tile.n / n];
            let whole =
                mma_conditions::warps([tile.m, tile.n], warp).is_ok() && warp[0] * m == tile.m && warp[1] * n == tile.n;
            let offered = warp[0] <= menu.warp[0] && warp[1] <= menu.warp[1];
            if !engine.holds(Condition::MmaWarps, whole) || !offered {
                continue;
            }
            let registers = mma_conditions::registers(gemm, [tile.m, tile.n, tile.k], warp);
            let below = at(state, TensorStage::Multiply(kind));
            let below = State { tile: tile.with(Axis::M, warp[0]).with(Axis::N, warp[1]), ..below };
            let below = State { team: Team::Warp(32), ..below };
            for min_blocks in [None].into_iter().chain(menu.min_blocks.iter().copied().map(Some)) {
                let resident = i64::from(min_blocks.unwrap_or(1).max(1));
                // Of 65536 registers, in steps of 8 per thread.
                let left = 65536 / (resident * i64::from(threads)) / 8 * 8;
                let most = MOST_REGISTERS.min(engine.limits.registers).min(left);
                if !engine.holds(Condition::MmaRegisters, registers <= most) {
                    continue;
                }
                // One warp along an axis has no neighbours there.
                let orders: &[bool] = if m > 1 && n > 1 { &[true, false] } else { &[true] };
                for m_outer in orders {
                    decide(engine, TensorNode::Warps { count: [m, n], m_outer: *m_outer, min_blocks }, below);
                }
            }
        }
    }
}
