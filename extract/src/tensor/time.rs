//! The time of a tensor-core schedule from its counts.
//!
//! Per multiprocessor and tile along k the pipes are the tensor cores, issue slots, shared memory's wavefronts and the
//! load/store units, of which the largest binds; what a block waits for (copies on their way, its own chain of instructions)
//! bounds a tile from below. Where the warps that multiply also start the copies, latencies that vary hold both up: there the
//! copies' is joined by the norm, and a longer ring is a little better even where a shorter one hides the usual latency.
//! The rest is the formula of [`crate::time`]. Every rate is the descriptor's; the constants here are properties of the
//! code that is made, or estimates of latencies that no descriptor has, and say so.
mod counted;
mod mma;
mod share;
mod wgmma;

pub(super) use counted::Counted;
pub use mma::matrix_clocks;
pub(super) use mma::{loop_issue, tensor_clocks, with_share};
pub(super) use share::Share;
pub use wgmma::group_clocks;

use super::kernel::tiles;
use super::work::Block;
use crate::cores::{add_parts_ms, beside, stored};
use crate::panels::panels;
use crate::prediction::{Cost, Infeasible};
use crate::residency::{rounded, Takes};
use crate::time::{binding, clocks_per_ms, largest, stays_in_l2, tensor_joules, Demand, Moved, Taken};
use crate::work::Work;
use crate::Descriptor;
use satune_ir::term::tensor::Gemm;
use satune_ir::term::{BlockLoop, Contraction, Side};
use std::collections::BTreeMap;

/// Clocks from the issue of a consumer's last `wgmma` to its results (estimate).
const DRAIN: f64 = 64.0;

/// What a block does, whatever the order of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inner {
    /// Tile of C, in terms of the product.
    pub tile: [i64; 3],
    pub registers: i64,
    /// Resident blocks per multiprocessor, and what limits them.
    pub resident: i64,
    limit: &'static str,
    /// Blocks that something else leaves room for.
    most_resident: i64,
    k_tiles: f64,
    /// Clocks of each of [`PIPES`] per tile along k, and of the largest.
    parts: [f64; 4],
    step: f64,
    /// What a tile along k takes at least, however few blocks there are, and what it takes to come through the ring.
    arrives: f64,
    pub comes: f64,
    /// Clocks to store a tile of C.
    end: f64,
    /// Bytes from and to L2, of a tile of C.
    l2_bytes: f64,
    split_k: i64,
    /// Partial sums of a result, on average.
    sums: f64,
    walk: Walk,
    pub k_part: i64,
    /// Multiprocessors that have blocks, and clocks that nothing overlaps: of the kernel, and of each round of blocks.
    sms: i64,
    once: f64,
    ends: f64,
    /// Time of kernels that copy operands to rows that the TMA takes, ms.
    aligned_ms: f64,
}

/// Pipes of a multiprocessor: names of their parts.
const PIPES: [&str; 4] = ["tensor_cores", "issue", "shared_memory", "load_store"];

/// How tiles come to blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Walk {
    /// A block per tile.
    One,
    /// So many blocks walk over the tiles; their consumers take turns or not.
    Persistent { grid: i64, in_turn: bool },
    /// So many blocks share the tiles' steps along k: the most steps of one, and the most parts of tiles.
    Stream { grid: i64, steps: f64, pieces: f64 },
}

/// What of a plan's time depends on all its blocks together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outer {
    pub tiles: i64,
    pub dram: Moved,
    /// Energy of the multiplications.
    joules: f64,
    pub sum_ms: f64,
    aligned_ms: f64,
}

impl Outer {
    /// Time of the other kernels, ms.
    fn beside_ms(&self) -> f64 {
        self.sum_ms + self.aligned_ms
    }

    /// Of blocks that move so many bytes of the operands from DRAM; see [`moved`].
    pub fn moving(moved: f64, tiles: i64, inner: &Inner, contraction: &Contraction, gpu: &Descriptor) -> Outer {
        let (parts, more) = if inner.is_partial() { (inner.parts(), 0.0) } else { (1.0, beside(contraction)) };
        let written = stored(contraction, gpu, (parts, contraction.accumulate));
        let [m, n, _] = inner.tile;
        let flop = 2.0 * tiles as f64 * (m * n) as f64 * inner.k_part as f64;
        Outer {
            tiles,
            dram: Moved { read: moved + more, written },
            joules: tensor_joules(flop, contraction.a.dtype, gpu),
            sum_ms: inner.sum_ms(contraction, gpu),
            aligned_ms: inner.aligned_ms,
        }
    }
}

/// Bytes of both operands.
pub(super) fn least_moved(contraction: &Contraction) -> f64 {
    let elements: f64 = [Side::A, Side::B].map(|side| contraction.elements(side)).iter().sum();
    elements * f64::from(contraction.a.dtype.bytes())
}

/// Multiply-adds of a product.
fn macs(gemm: &Gemm) -> f64 {
    [gemm.batch, gemm.m, gemm.n, gemm.k].map(|x| x as f64).iter().product()
}

/// Bytes of the operands from DRAM, for tiles of m x n over a part of k in the order of `loops`, so many of them
/// `resident` on each multiprocessor: every wave reads the panels that its tiles need, once; what fits in L2 is read once
/// in all.
pub(super) fn moved(
    loops: &[BlockLoop],
    ([m, n, _], k_part): ([i64; 3], i64),
    resident: i64,
    contraction: &Contraction,
    gpu: &Descriptor,
) -> f64 {
    let least = least_moved(contraction);
    if stays_in_l2(least, gpu) {
        return least;
    }
    let count: i64 = loops.iter().map(|l| l.extent).product();
    let slots = (resident * i64::from(gpu.sms)).min(count);
    let (a, b) = panels(loops, slots);
    let bytes = f64::from(contraction.a.dtype.bytes());
    // What a panel of a gathered factor reads several times it reads from a cache; its rim is left out.
    let per = |panels: usize, tile: i64, side: Side| {
        panels as f64 * tile as f64 * k_part as f64 * bytes / contraction.repeats(side)
    };
    let waves = count as f64 / slots as f64;
    (waves * (per(a, m, Side::A) + per(b, n, Side::B))).max(least)
}

/// A time with what its parts are made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub ms: f64,
    taken: Taken,
    /// Tiles that one multiprocessor computes.
    per_sm: f64,
}

/// What kernels of each kind say of their blocks; [`Inner::of_block`] makes the rest.
struct Facts<'a> {
    tile: [i64; 3],
    split_k: i64,
    threads: i64,
    registers: i64,
    shared_bytes: i64,
    /// Clocks of each of [`PIPES`] per tile along k.
    parts: [f64; 4],
    /// Clocks of a tile along k at least, however few blocks there are: for a warp or consumer alone and for copies to come, and
    /// for these alone.
    arrives: f64,
    comes: f64,
    /// What is stored at the end, and clocks of that beyond what is counted.
    end: &'a Work,
    more_end: f64,
    /// Multiprocessors that store at once.
    at_once: f64,
    k_tiles: i64,
    l2_bytes: f64,
    /// Resident blocks that tensor memory has room for.
    most_resident: i64,
}

/// Resident blocks, and what limits them, where tensor memory has room for so many.
fn within(fits: (i64, &'static str), most: i64) -> (i64, &'static str) {
    if most < fits.0 {
        (most, "tensor memory")
    } else {
        fits
    }
}

impl Inner {
    /// A block of each tile, all multiprocessors at work.
    fn of_block(facts: &Facts<'_>, gemm: &Gemm, gpu: &Descriptor) -> Result<Inner, Infeasible> {
        let Facts { threads, registers, shared_bytes, .. } = *facts;
        let fits = Takes { threads, registers, shared_bytes }.residency(gpu)?;
        let (resident, limit) = within(fits, facts.most_resident);
        Ok(Inner {
            most_resident: facts.most_resident,
            tile: facts.tile,
            registers,
            resident,
            limit,
            k_tiles: facts.k_tiles as f64,
            parts: facts.parts,
            step: largest(&facts.parts),
            arrives: facts.arrives,
            comes: facts.comes,
            end: end_clocks(facts.end, facts.at_once, gpu) + facts.more_end,
            l2_bytes: facts.l2_bytes,
            split_k: facts.split_k,
            sums: facts.split_k as f64,
            walk: Walk::One,
            k_part: tiles(gemm.k, facts.split_k),
            sms: gpu.sms.into(),
            once: 0.0,
            ends: 2.0 * gpu.latency_dram,
            aligned_ms: 0.0,
        })
    }

    /// This with so many registers of a thread, of blocks that take so many threads and bytes of shared memory.
    pub fn compiled(self, registers: i64, (threads, bytes): (i64, i64), gpu: &Descriptor) -> Result<Inner, Infeasible> {
        let fits = Takes { threads, registers, shared_bytes: bytes }.residency(gpu)?;
        let (resident, limit) = within(fits, self.most_resident);
        Ok(Inner { registers: rounded(registers), resident, limit, ..self })
    }

    /// Whether a second kernel adds what this one writes.
    fn is_partial(&self) -> bool {
        self.split_k > 1 || matches!(self.walk, Walk::Stream { .. })
    }

    /// Partial sums of a result that are added; two at least, though some results may have but one.
    fn parts(&self) -> f64 {
        self.sums.ceil().max(2.0)
    }

    fn sum_ms(&self, contraction: &Contraction, gpu: &Descriptor) -> f64 {
        match self.is_partial() {
            false => 0.0,
            true => add_parts_ms(contraction, gpu, (self.parts(), contraction.accumulate)),
        }
    }

    /// Clocks of a tile along k of so many resident blocks.
    pub fn k_tile(&self, blocks: i64) -> f64 {
        (blocks as f64 * self.step).max(self.arrives)
    }

    /// For so many tiles of C, the blocks of one launch, where a tile along k takes `k_tile`: what their rounds ask for, and the tiles of
    /// the busiest multiprocessor.
    fn rounds(&self, outer: &Outer, k_tile: impl Fn(i64) -> f64) -> (Demand, f64) {
        let sms = self.sms;
        let share = |last: i64| last as f64 / outer.tiles as f64;
        match self.walk {
            Walk::One => {
                let slots = self.resident * sms;
                let (full, rest) = (outer.tiles / slots, outer.tiles % slots);
                let last = tiles(rest, sms);
                let group = |blocks: i64| match blocks {
                    0 => 0.0,
                    _ => self.k_tiles * k_tile(blocks) + blocks as f64 * self.end,
                };
                let rounds = Demand {
                    sm_clocks: full as f64 * group(self.resident) + group(last),
                    last_clocks: group(last),
                    last_share: share(rest),
                    wait_clocks: self.once + (full + i64::from(last > 0)) as f64 * self.ends,
                    ..Demand::default()
                };
                (rounds, (full * self.resident + last) as f64)
            }
            Walk::Stream { grid, steps, pieces } => {
                // The producer is ahead of the stores here too.
                let blocks_per_sm = tiles(grid, sms) as f64;
                let each = steps * k_tile(1) + pieces * (DRAIN + self.end);
                let rounds =
                    Demand { sm_clocks: blocks_per_sm * each, wait_clocks: self.once + self.ends, ..Demand::default() };
                (rounds, blocks_per_sm * steps / self.k_tiles.max(1.0))
            }
            Walk::Persistent { grid, in_turn } => {
                // Each block has its multiprocessor; the producer is ahead of the stores, so only the first tile waits.
                let grid = grid.max(1);
                let per_block = tiles(outer.tiles, grid) as f64;
                let main = self.k_tiles * k_tile(1) + DRAIN;
                let each = if in_turn { main.max((main + self.end) / 2.0) } else { main + self.end };
                let last = if in_turn { self.end } else { 0.0 };
                let blocks_per_sm = tiles(grid, sms) as f64;
                let rest = outer.tiles % grid;
                let rounds = Demand {
                    sm_clocks: blocks_per_sm * (per_block * each + last),
                    last_clocks: if rest > 0 { blocks_per_sm * (each + last) } else { 0.0 },
                    last_share: share(rest),
                    wait_clocks: self.once + self.ends,
                    ..Demand::default()
                };
                (rounds, blocks_per_sm * per_block)
            }
        }
    }
}

/// Time of a plan.
pub(super) fn time(outer: &Outer, inner: &Inner, gpu: &Descriptor) -> Times {
    time_of(outer, inner, gpu, |blocks| inner.k_tile(blocks))
}

/// [`time`] where a tile along k of so many resident blocks takes `k_tile`.
pub(super) fn time_of(outer: &Outer, inner: &Inner, gpu: &Descriptor, k_tile: impl Fn(i64) -> f64) -> Times {
    let (demand, per_sm) = demand(outer, inner, k_tile);
    let taken = demand.time(gpu);
    Times { ms: taken.ms + outer.beside_ms(), taken, per_sm }
}

/// What a plan takes at least, ms, where `inner` has the least that its open decisions can come to. That rounds are slowed down by
/// themselves is left out: that part need not grow with the others.
pub(super) fn at_least(outer: &Outer, inner: &Inner, gpu: &Descriptor) -> f64 {
    let (demand, _) = demand(outer, inner, |blocks| inner.k_tile(blocks));
    Demand { last_clocks: 0.0, last_share: 0.0, ..demand }.time(gpu).ms + outer.beside_ms()
}

/// What a plan asks of the GPU, and the tiles of the busiest multiprocessor.
fn demand(outer: &Outer, inner: &Inner, k_tile: impl Fn(i64) -> f64) -> (Demand, f64) {
    let (rounds, per_sm) = inner.rounds(outer, k_tile);
    let l2_bytes = outer.tiles as f64 * inner.l2_bytes;
    (Demand { l2_bytes, dram: outer.dram, joules: outer.joules, ..rounds }, per_sm)
}

/// Clocks to store a tile of C: issue slots (a store, its address, its conversion), what passes L1, shared memory, and L2, to which so
/// many multiprocessors store at once (measured on an H100: f32 tiles of 128 x 256, one on each, 5400 clocks by the TMA).
fn end_clocks(end: &Work, at_once: f64, gpu: &Descriptor) -> f64 {
    let moved = end.global_stores + end.shared_stores + end.matrix_moves + end.shared_loads;
    let issued = 3.0 * moved - 2.0 * end.shared_loads + end.barriers;
    let issue = issued / 4.0 / gpu.issue_efficiency;
    let shared = end.shared_load_wavefronts + end.shared_store_wavefronts;
    let load_store = moved * 32.0 / f64::from(gpu.load_store_lanes);
    let l2 = end.l2_sectors * 32.0 * at_once / gpu.l2_bytes_per_clock;
    largest(&[issue, shared, load_store, end.l1_bytes / gpu.l1_bytes_per_clock, l2])
}

/// Multiprocessors that have one of so many blocks.
fn with_blocks(blocks: i64, gpu: &Descriptor) -> f64 {
    blocks.min(gpu.sms.into()) as f64
}

/// What `waves` tiles take at least one after the other: their instructions alone, at a share of the tensor cores' rate,
/// and the operands' bytes from DRAM, ms.
pub(super) fn least_ms(
    [m, n, k]: [i64; 3],
    waves: f64,
    (gemm, share): (&Gemm, f64),
    contraction: &Contraction,
    gpu: &Descriptor,
) -> f64 {
    let rate = gpu.tensor.map_or(1.0, |t| t.of(gemm.types())) * share;
    let flop = 2.0 * m as f64 * n as f64 * k as f64;
    let least = Demand {
        sm_clocks: waves * flop / rate,
        dram: Moved { read: least_moved(contraction), written: 0.0 },
        joules: tensor_joules(2.0 * macs(gemm), contraction.a.dtype, gpu),
        ..Demand::default()
    };
    least.time(gpu).ms
}

impl Times {
    /// The cost with its parts named; each is what the kernel would take if only that resource bound it.
    pub fn explain(&self, outer: &Outer, inner: &Inner, gpu: &Descriptor, block: Block) -> Cost {
        let clocks = clocks_per_ms(gpu);
        let of = |each: f64| self.per_sm * inner.k_tiles * each / clocks;
        let mut parts: BTreeMap<String, f64> =
            PIPES.iter().zip(inner.parts).map(|(name, each)| (name.to_string(), of(each))).collect();
        let epilogue = self.per_sm * inner.end / clocks;
        let latency = (self.taken.sm_ms - of(inner.step) - epilogue).max(0.0);
        parts.insert("latency".into(), latency + self.taken.wait_ms);
        parts.insert("epilogue".into(), epilogue);
        if outer.sum_ms > 0.0 {
            parts.insert("add_parts".into(), outer.sum_ms);
        }
        if outer.aligned_ms > 0.0 {
            parts.insert("align_rows".into(), outer.aligned_ms);
        }
        self.taken.name(&mut parts);
        let mut work = Work::default();
        work.add(&block.total(), outer.tiles as f64);
        let slots = match inner.walk {
            Walk::One => inner.resident * inner.sms,
            Walk::Persistent { grid, .. } | Walk::Stream { grid, .. } => grid,
        };
        Cost {
            ms: self.ms,
            bottleneck: binding(&parts),
            parts,
            resident_blocks: inner.resident,
            occupancy_limit: inner.limit.into(),
            registers: inner.registers,
            waves: outer.tiles as f64 / slots.max(1) as f64,
            dram_bytes: outer.dram.total(),
            l2_bytes: outer.tiles as f64 * inner.l2_bytes,
            work,
        }
    }
}
