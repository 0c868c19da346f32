//! What no program of an outer choice can beat, before anything below it has been looked at.
use crate::time::{least_ms, Inner};
use crate::topk::{Search, Unit};
use crate::work::Work;
use satune_ir::term::{Pipe, Side, Team};

impl<'s> Search<'_, 's> {
    /// The least work that any program of a unit can do that stages so many operands, as an [`Inner`].
    pub(crate) fn least(&self, unit: &Unit<'s>, staged: usize) -> Inner {
        let contraction = &self.space.contraction;
        let state = self.space.state(unit.accumulators);
        let threads = if let Team::Cta(t) = state.team { t } else { 1 };
        let warps = f64::from(threads / 32);
        let results = (state.tile.m * state.tile.n) as f64 / f64::from(threads);
        let k = unit.k_tile as f64;
        let bytes = |side: Side| f64::from(contraction.operand(side).dtype.bytes());
        let narrow = bytes(Side::A).min(bytes(Side::B));
        let mut tile = Work { fma: results * k * warps, ..Work::default() };
        // A thread's results are a grid of rows and columns; it reads at least rows + columns >= 2 sqrt(results) factors
        // per k value: from shared memory 16 bytes at a time, from global memory one by one.
        let factors = 2.0 * results.sqrt() * k * warps;
        let mut fragments = 2.0 * results.sqrt();
        match staged {
            2 => {
                tile.shared_loads = factors * narrow / 16.0;
                for side in [Side::A, Side::B] {
                    let moved = state.tile.get(side.spatial()) as f64 * k * bytes(side);
                    tile.l2_sectors += moved / 32.0;
                    tile.shared_store_wavefronts += moved / 128.0;
                    if matches!(unit.pipe, Pipe::Async(_)) {
                        tile.async_copies += moved / 512.0;
                    } else {
                        tile.global_loads += moved / 512.0;
                        tile.shared_stores += moved / 512.0;
                    }
                    tile.l1_bytes += moved;
                }
            }
            1 => {
                // One factor per k value at least comes from global memory, and one from shared.
                tile.global_loads = k * warps;
                tile.l1_bytes = k * warps * 64.0;
                tile.shared_loads = ((factors - results * k * warps).max(k * warps)) * narrow / 16.0;
                fragments = 2.0;
            }
            _ => {
                tile.global_loads = factors;
                tile.l1_bytes = factors * 64.0;
                fragments = 4.0;
            }
        }
        tile.shared_load_wavefronts = tile.shared_loads;
        if unit.in_place {
            tile.global_loads = 2.0 * tile.fma;
        }
        Inner {
            tile,
            end: Work::default(),
            fragment_registers: if unit.in_place { 2 } else { fragments as i64 },
            staged_registers: 0,
            shared_bytes: 0,
            rolled_steps: 0.0,
            init_inside: unit.in_place,
        }
    }

    /// A time that no program of a unit beats; infinite where none fits the GPU.
    pub(crate) fn bound(&self, unit: &Unit<'s>) -> f64 {
        let Some(outer) = self.least_outer(unit) else { return f64::INFINITY };
        // What is overlapped has both operands staged.
        let cases: &[usize] = match (unit.pipe, unit.in_place) {
            (Pipe::Plain, true) => &[0],
            (Pipe::Plain, false) => &[0, 1, 2],
            _ => &[2],
        };
        let mut least = f64::INFINITY;
        for staged in cases {
            let mut inner = self.least(unit, *staged);
            // The inner k loop is expanded, or has a step at least.
            for rolled in [0.0, 1.0] {
                inner.rolled_steps = rolled;
                least = least.min(least_ms(&outer, &inner, None));
            }
        }
        least
    }
}
