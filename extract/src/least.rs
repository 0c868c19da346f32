//! What no program of an outer choice can beat, before anything below it has been looked at.
use crate::cores::{least_ms, Inner, Outer, Waits};
use crate::fills::Floor;
use crate::topk::{Search, Unit};
use crate::work::{outer_iterations, Work};
use satune_ir::term::{Contraction, Pipe, Side, Way};

impl<'s> Search<'_, 's> {
    /// A time that no program of a unit beats; infinite where none fits the GPU.
    pub(crate) fn bound(&self, unit: &Unit<'s>) -> f64 {
        let Some(outer) = self.least_outer(unit) else { return f64::INFINITY };
        let mut least = f64::INFINITY;
        let ways = |side: Side| -> &[Way] {
            if unit.strip(side).is_some() {
                &[Way::Strip]
            } else if unit.in_place {
                &[Way::Direct]
            } else {
                &[Way::Tile, Way::Direct]
            }
        };
        for a in ways(Side::A) {
            for b in ways(Side::B) {
                if unit.pipe == Pipe::Plain || [*a, *b].contains(&Way::Tile) {
                    let bytes = unit.strips.iter().map(|s| s.bytes).sum();
                    least = least.min(self.least(unit, &outer, [*a, *b], bytes, None));
                }
            }
        }
        least
    }

    /// A time that no program of a unit beats that finds its operands there and takes so much shared memory at least;
    /// `copies`: the least work of its copies, where it is known.
    pub(crate) fn least(
        &self,
        unit: &Unit<'s>,
        outer: &Outer<'_>,
        ways: [Way; 2],
        shared_bytes: i64,
        copies: Option<&Floor>,
    ) -> f64 {
        let contraction = &self.space.contraction;
        let state = self.space.state(unit.accumulators);
        let warps = f64::from(outer.threads / 32);
        let results = (state.tile.m * state.tile.n) as f64 / f64::from(outer.threads);
        let k = unit.k_tile as f64;
        let mut inner = Inner {
            begin: Work::NONE,
            tile: Work { fma: results * k * warps, ..Work::NONE },
            end: Work::NONE,
            waits: Waits::of(ways),
            // As many as any program of the unit starts together.
            held: f64::INFINITY,
            fragment_registers: 2,
            next_registers: 0,
            staged_registers: 0,
            shared_bytes,
            rolled_steps: 0.0,
            init_inside: unit.in_place,
            compiled: None,
        };
        for (side, way) in [Side::A, Side::B].into_iter().zip(ways) {
            let bytes = f64::from(contraction.operand(side).dtype.bytes());
            let row = state.tile.get(side.spatial()) as f64 * bytes;
            match way {
                Way::Direct => inner.tile.l2_sectors += row * k * contraction.read_share(side) / 32.0,
                _ if copies.is_some() => {}
                Way::Tile => inner.tile.add(&copied(row * k, unit.pipe, contraction), 1.0),
                Way::Strip => {
                    let rounds = outer_iterations(contraction);
                    inner.begin.add(&copied(row * state.tile.k as f64, Pipe::Plain, contraction), rounds);
                }
            }
        }
        if let Some(floor) = copies {
            inner.tile.add(&floor.tile, 1.0);
            inner.begin.add(&floor.begin, 1.0);
        }
        if unit.in_place {
            inner.tile.global_loads = 2.0 * inner.tile.fma;
        }
        let steps = k * warps;
        let mut least = f64::INFINITY;
        for reads in self.reads(results, ways) {
            let mut inner = inner;
            inner.tile.shared_loads += reads.shared * steps;
            inner.tile.shared_load_wavefronts += reads.shared * steps;
            if contraction.gather.is_none() {
                inner.tile.l1_bytes += reads.global * steps * 64.0;
            }
            if !unit.in_place {
                inner.tile.global_loads += reads.global * steps;
                inner.fragment_registers = reads.registers as i64;
            }
            // The inner k loop is expanded, or has a step at least.
            for rolled in [0.0, 1.0] {
                inner.rolled_steps = rolled;
                least = least.min(least_ms(outer, &inner, None));
            }
        }
        least
    }

    /// What a thread reads per k value at least: its results are a grid of rows and columns, and it needs a factor for
    /// each row and for each column: from shared memory 16 bytes at a time, from global memory one by one. Several, where
    /// no one is the least: every program does at least as much as one of them.
    fn reads(&self, results: f64, ways: [Way; 2]) -> Vec<Reads> {
        let contraction = &self.space.contraction;
        let [a, b] = [Side::A, Side::B].map(|side| f64::from(contraction.operand(side).dtype.bytes()) / 16.0);
        // x y = results, so a x + b y is at least 2 sqrt(a b results).
        let both = 2.0 * results.sqrt();
        let (weight, direct) = match ways {
            // Operands read where they are used take 4 registers.
            [Way::Direct, Way::Direct] => {
                return vec![Reads { shared: 0.0, global: both, registers: both.min(4.0) }];
            }
            [Way::Direct, _] => (b, true),
            [_, Way::Direct] => (a, true),
            _ => (0.0, false),
        };
        if !direct {
            return vec![Reads { shared: both * (a * b).sqrt(), global: 0.0, registers: both }];
        }
        // From `least` to four times as many factors come from global memory; the other side has results / factors.
        let mut out = Vec::new();
        let mut least = 1.0;
        while least <= results.max(1.0) {
            let other = (results / (4.0 * least)).max(1.0);
            out.push(Reads { shared: weight * other, global: least, registers: least + other });
            least *= 4.0;
        }
        out
    }
}

/// Factors that a thread reads per k value, as accesses.
struct Reads {
    shared: f64,
    global: f64,
    /// Registers that hold them.
    registers: f64,
}

/// The least work of copying so many bytes to shared memory. Of a gathered operand they may all be zeros of a padding.
fn copied(bytes: f64, pipe: Pipe, contraction: &Contraction) -> Work {
    let accesses = bytes / 512.0;
    let read = if contraction.gather.is_some() { 0.0 } else { bytes };
    let (copies, loads) = if let Pipe::Async(_) = pipe { (accesses, 0.0) } else { (0.0, accesses) };
    Work {
        async_copies: copies,
        global_loads: loads,
        shared_stores: loads,
        shared_store_wavefronts: bytes / 128.0,
        l1_bytes: read,
        l2_sectors: read / 32.0,
        ..Work::NONE
    }
}
