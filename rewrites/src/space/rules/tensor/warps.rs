//! `split`, `bind`: a block's tile is dealt out to warps that use `mma.sync` or `wmma`.
use super::offer::{stage_of, Offer};
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::tensor::{mma_conditions, Mma, TensorInstruction, TensorNode, TensorStage};
use satune_ir::term::{Side, Stage, State, Team, Term, Tile};
use std::sync::Arc;

/// `(block nest) = for m in warps(a): for n in warps(b): (warp nest)` with the ways of A and B to them, for any number of
/// warps, one or two sets of fragments of each operand, and any number of blocks that shall be resident.
///
/// Side conditions: whole instructions make a warp's tile, and whole warps the block's; sums, fragments and addresses
/// fit the registers that so many resident blocks leave.
pub struct BindWarps(pub(super) Arc<Offer>);

impl Rule for BindWarps {
    fn name(&self) -> &'static str {
        "bind to warps, fragments"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Deal { kind: TensorInstruction::Mma(op), room }) = stage_of(node, state) else { return };
        let (gemm, menu) = (self.0.gemm(state), &self.0.menu);
        for threads in menu.threads.iter().copied() {
            let warps = i64::from(threads / 32);
            // More warps than there are blocks of instructions have nothing to do.
            let [block_m, block_n] = op.block();
            let blocks = state.tile.m / block_m * (state.tile.n / block_n);
            if mma_conditions::threads(threads.into()).is_err() || warps > blocks {
                continue;
            }
            for m in (1..=warps).filter(|m| warps % m == 0) {
                let (n, tile) = (warps / m, state.tile);
                let warp = [tile.m / m, tile.n / n];
                let whole = mma_conditions::warps(gemm, op, [tile.m, tile.n], warp).is_ok();
                // A single instruction's columns at the end of a warp's tile only where the block's has no other.
                let even = warp[1] % op.loaded(Side::B) == 0 || tile.n % op.loaded(Side::B) != 0;
                let offered = even && warp[0] <= menu.warp[0] && warp[1] <= menu.warp[1];
                let exact = warp[0] * m == tile.m && warp[1] * n == tile.n;
                if engine.holds(Condition::MmaWarps, whole && exact) && offered {
                    self.deal(engine, state, threads, [m, n], (op, room));
                }
            }
        }
    }
}

impl BindWarps {
    fn deal(&self, engine: &mut Engine<'_>, state: &State, threads: u32, count: [i64; 2], (op, room): (Mma, bool)) {
        let (gemm, menu, tile) = (self.0.gemm(state), &self.0.menu, state.tile);
        let warp = [tile.m / count[0], tile.n / count[1]];
        let staged = op.wmma().map_or(0, |op| op.staged_bytes(count, warp[1]));
        if !engine.holds(Condition::RingFits, mma_conditions::shared_fits(staged, engine.limits.shared_bytes)) {
            return;
        }
        let team = Team::Cta(threads);
        let way = |engine: &mut Engine<'_>, side, extent, own| {
            let stage = Stage::Tensor(TensorStage::Operand { op, side, room });
            engine.nest(State { team, stage, tile: Tile { m: extent, n: own, k: tile.k }, ..*state })
        };
        let a = way(engine, Side::A, tile.m, warp[0]);
        let b = way(engine, Side::B, tile.n, warp[1]);
        // The least that copies take; those that take more are left to the cost.
        let bytes = [Side::A, Side::B].map(|side| self.0.copy_bytes(gemm, side).first().copied().unwrap_or(16));
        let block = [tile.m, tile.n, tile.k];
        let registers = mma_conditions::least_registers(gemm, op, block, warp, threads.into(), bytes);
        for sets in menu.sets.iter().flat_map(|a| menu.sets.iter().map(|b| [*a, *b])) {
            let even = tile.k / i64::from(op.k()) % 2 == 0;
            let rolls = menu.loops.contains(&true) && (even || sets == [1, 1]);
            let grid = count[0] > 1 && count[1] > 1;
            let stage = Stage::Tensor(TensorStage::Warp { op, grid, rolls });
            let own = Tile { m: warp[0], n: warp[1], k: tile.k };
            let mut body = None;
            for min_blocks in [None].into_iter().chain(menu.min_blocks.iter().copied().map(Some)) {
                let fits =
                    mma_conditions::registers_fit(registers, threads.into(), min_blocks, engine.limits.registers);
                if !engine.holds(Condition::MmaRegisters, fits) {
                    continue;
                }
                let nest = State { team: Team::Warp(32), stage, tile: own, ..*state };
                let warp = *body.get_or_insert_with(|| engine.nest(nest));
                let node = TensorNode::Warps { count, sets, min_blocks };
                engine.equals(Term::Dealt { node, children: [a, b, warp] });
            }
        }
    }
}
