//! Exact counts of what a plan's kernel does, per block: instructions, wavefronts, sectors. They equal what the
//! simulator counts on the kernel, by a test; both use the machine model of `satune_ir::machine`.
use satune_ir::machine::{touched, wavefronts};
use satune_ir::term::{
    Axis, Contraction, CoresPlan, Fill, Gathered, Instructions, Pair, Pipe, Places, Side, StagedLayout, Way,
};
use serde::{Deserialize, Serialize};

/// Work of one block, warp instructions, wavefronts, 32-byte sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Multiply-adds; of a contraction that combines something else ([`satune_ir::term::Combine`]) its steps.
    pub fma: f64,
    /// Issue slots of what is computed of an element of one operand alone, where it is read.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prepared: f64,
    /// Integer instructions for the addresses of gathered operands (estimate); those of others are not counted.
    #[serde(default)]
    pub addresses: f64,
    /// Matrix multiply-adds of warps: `mma.sync`; `wgmma` once per warp.
    #[serde(default)]
    pub matrix: f64,
    /// `ldmatrix` and `stmatrix`.
    #[serde(default)]
    pub matrix_moves: f64,
    /// Loads from shared memory.
    pub shared_loads: f64,
    /// Stores to shared memory.
    pub shared_stores: f64,
    /// Loads from global memory.
    pub global_loads: f64,
    /// Stores to global memory.
    pub global_stores: f64,
    /// cp.async.
    pub async_copies: f64,
    /// Barriers, per warp.
    pub barriers: f64,
    /// Wavefronts of loads from shared memory.
    pub shared_load_wavefronts: f64,
    /// The least for them.
    pub shared_load_wavefronts_ideal: f64,
    /// Wavefronts of stores to shared memory.
    pub shared_store_wavefronts: f64,
    /// The least for them.
    pub shared_store_wavefronts_ideal: f64,
    /// Sectors read.
    pub global_load_sectors: f64,
    /// Sectors written.
    pub global_store_sectors: f64,
    /// Bytes that L1 is occupied with: those that global loads and cp.async move, where an access takes a clock per
    /// 128-byte line at least, so that each line counts as 64 bytes at least; and for each line that a store touches, 128:
    /// it passes whole (measured: a tile of C from registers, 4 neighbours in 8 rows, 4572 clocks on H100 where its sectors
    /// alone are 1024).
    pub l1_bytes: f64,
    /// Sectors that pass between L1 and L2: all of a fill's and all stores, and of loads that are not staged each
    /// distinct one of a k tile once, for L1 keeps them that long.
    pub l2_sectors: f64,
}

impl Work {
    /// Nothing.
    pub const NONE: Work = Work {
        prepared: 0.0,
        addresses: 0.0,
        matrix: 0.0,
        matrix_moves: 0.0,
        fma: 0.0,
        shared_loads: 0.0,
        shared_stores: 0.0,
        global_loads: 0.0,
        global_stores: 0.0,
        async_copies: 0.0,
        barriers: 0.0,
        shared_load_wavefronts: 0.0,
        shared_load_wavefronts_ideal: 0.0,
        shared_store_wavefronts: 0.0,
        shared_store_wavefronts_ideal: 0.0,
        global_load_sectors: 0.0,
        global_store_sectors: 0.0,
        l1_bytes: 0.0,
        l2_sectors: 0.0,
    };

    /// Component-wise sum of this and `times` times the other.
    pub fn add(&mut self, o: &Work, times: f64) {
        self.fma += o.fma * times;
        self.prepared += o.prepared * times;
        self.addresses += o.addresses * times;
        self.matrix += o.matrix * times;
        self.matrix_moves += o.matrix_moves * times;
        self.shared_loads += o.shared_loads * times;
        self.shared_stores += o.shared_stores * times;
        self.global_loads += o.global_loads * times;
        self.global_stores += o.global_stores * times;
        self.async_copies += o.async_copies * times;
        self.barriers += o.barriers * times;
        self.shared_load_wavefronts += o.shared_load_wavefronts * times;
        self.shared_load_wavefronts_ideal += o.shared_load_wavefronts_ideal * times;
        self.shared_store_wavefronts += o.shared_store_wavefronts * times;
        self.shared_store_wavefronts_ideal += o.shared_store_wavefronts_ideal * times;
        self.global_load_sectors += o.global_load_sectors * times;
        self.global_store_sectors += o.global_store_sectors * times;
        self.l1_bytes += o.l1_bytes * times;
        self.l2_sectors += o.l2_sectors * times;
    }
}

fn is_zero(x: &f64) -> bool {
    *x == 0.0
}

/// Issue slots of a division or function: several instructions, some at a quarter of the rate (estimate).
pub(crate) const SPECIAL_SLOTS: f64 = 10.0;

/// Issue slots of instructions.
pub(crate) fn slots(all: Instructions) -> f64 {
    f64::from(all.multiply_adds) + f64::from(all.logic) + f64::from(all.special) * SPECIAL_SLOTS
}

/// Iterations of the loops over further reduction axes.
pub(crate) fn outer_iterations(contraction: &Contraction) -> f64 {
    contraction.outer_reduce().map(|(_, info)| info.extent as f64).product()
}

/// Issue slots of what is computed of so many elements of one operand alone, where they are read: a compiler keeps it with the
/// element in a register.
pub fn prepared(contraction: &Contraction, side: Side, elements: f64) -> f64 {
    contraction.combine.as_ref().map_or(0.0, |combine| elements * slots(combine.sided[side as usize]))
}

/// Instructions for the address of one access to a gathered operand, and for whether it is inside: quotients of k by constants,
/// a comparison for each end of each padded dimension, sums (estimate).
const GATHERED_ADDRESS: f64 = 14.0;

/// Instructions for the addresses of so many accesses to an operand in global memory, each of so many neighbouring elements, and for
/// what is computed where they are read.
pub fn addresses(contraction: &Contraction, side: Side, accesses: f64, vector: u32) -> f64 {
    match contraction.gathered(side) {
        Some(of) => accesses * (GATHERED_ADDRESS + computing(of, vector.into())),
        None => 0.0,
    }
}

/// Instructions of an access to so many neighbouring elements of a gathered operand beyond one load: further loads, and what computes.
pub fn computing(of: &Gathered, vector: i64) -> f64 {
    let Some(computed) = &of.computed else { return 0.0 };
    computed.reads.len() as f64 - 1.0 + vector as f64 * slots(computed.step)
}

/// One cooperative copy of a tile of `spatial` by `k`, by `threads` threads. Of a gathered operand, whose tiles differ, it is
/// the mean of a few tiles' sectors.
pub fn fill(
    contraction: &Contraction,
    side: Side,
    (spatial, k): (i64, i64),
    threads: u32,
    pipe: Pipe,
    (layout, fill): (StagedLayout, Fill),
) -> Work {
    let operand = contraction.operand(side);
    let bytes = u64::from(operand.dtype.bytes());
    let along_k = operand.contiguous_along(Axis::K);
    let size = [spatial, k];
    let samples = contraction.samples([side.spatial(), Axis::K], size);
    let parts: Vec<Places> = samples.iter().map(|origin| contraction.places(side, *origin, size)).collect();
    let share = contraction.read_share(side) / parts.len() as f64;
    let vector = i64::from(fill.vector);
    let step = vector * i64::from(threads);
    let total = spatial * k;
    let k_inner = along_k == fill.coalesced;
    let same_rows = layout.k_major != along_k;
    let asynchronous = matches!(pipe, Pipe::Async(_));
    let stores = if same_rows || vector == 1 { 1 } else { vector };
    let per_lane = (fill.vector / stores as u32) * bytes as u32;
    let mut work = Work::default();
    for s in 0..(total + step - 1) / step {
        for warp in 0..threads / 32 {
            let mut read = vec![Vec::with_capacity(32); parts.len()];
            let mut active = false;
            let mut places = vec![Vec::with_capacity(32); stores as usize];
            for lane in 0..32_u32 {
                let fused = s * step + i64::from(warp * 32 + lane) * vector;
                if fused >= total {
                    continue;
                }
                let (x, kk) = if k_inner { (fused / k, fused % k) } else { (fused % spatial, fused / spatial) };
                active = true;
                for (list, part) in read.iter_mut().zip(&parts) {
                    list.extend(part.at(x, kk).map(|place| place * bytes));
                }
                for (o, list) in places.iter_mut().enumerate() {
                    let o = if stores == 1 { 0 } else { o as i64 };
                    let (x, kk) = if along_k { (x, kk + o) } else { (x + o, kk) };
                    let offset = layout.offset(x, kk, spatial, k, bytes as i64);
                    list.push((lane, offset as u64 * bytes));
                }
            }
            if !active {
                continue;
            }
            let width = fill.vector * bytes as u32;
            for list in &read {
                let sectors = f64::from(touched(list, width)) * share;
                work.global_load_sectors += sectors;
                work.l2_sectors += sectors;
                work.l1_bytes += l1_bytes(list, width) * share;
            }
            work.addresses += addresses(contraction, side, 1.0, fill.vector);
            if asynchronous {
                work.async_copies += 1.0;
            } else {
                work.global_loads += 1.0;
                work.shared_stores += stores as f64;
            }
            for list in &places {
                let (taken, ideal) = wavefronts(list, per_lane);
                work.shared_store_wavefronts += f64::from(taken);
                work.shared_store_wavefronts_ideal += f64::from(ideal);
            }
        }
    }
    work
}

/// Bytes that one access of a warp occupies L1 with: what it moves, and no less than 64 for each line of 128.
fn l1_bytes(addresses: &[u64], bytes_per_lane: u32) -> f64 {
    let mut lines: Vec<u64> = addresses.iter().map(|a| a / 128).collect();
    // Neighbouring lanes often share one.
    lines.dedup();
    lines.sort_unstable();
    lines.dedup();
    (addresses.len() as f64 * f64::from(bytes_per_lane)).max(64.0 * lines.len() as f64)
}

/// How the lanes of a warp lie over the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneGrid {
    /// Lanes along m and n.
    pub lanes: Pair,
    /// Whether m is the outer loop.
    pub m_outer: bool,
    /// Neighbouring results of a lane.
    pub registers: Pair,
}

impl LaneGrid {
    /// Lane number along an axis.
    fn along(&self, lane: i64, axis: Axis) -> i64 {
        let (m, n) = if self.m_outer {
            (lane / self.lanes.n, lane % self.lanes.n)
        } else {
            (lane % self.lanes.m, lane / self.lanes.m)
        };
        if axis == Axis::M {
            m
        } else {
            n
        }
    }

    fn registers_along(&self, axis: Axis) -> i64 {
        if axis == Axis::M {
            self.registers.m
        } else {
            self.registers.n
        }
    }
}

/// Loads of one piece of a fragment by one warp, over all of a k tile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loads {
    /// Instructions.
    pub loads: f64,
    /// Wavefronts of shared memory, and the least for as many bytes.
    pub wavefronts: (f64, f64),
    /// Sectors of global memory.
    pub sectors: f64,
    /// Bytes that L1 is occupied with: distinct ones, and no less than 64 per line.
    pub l1_bytes: f64,
}

/// Loads of one piece of a fragment by one warp, over all of a k tile: from shared memory in a layout for so many k
/// values, or from global memory (then there are sectors and no wavefronts). In a strip every k tile costs the same: that
/// it begins elsewhere adds a constant to all addresses, or to all of a swizzle's chunks.
pub fn fragment(
    contraction: &Contraction,
    side: Side,
    grid: &LaneGrid,
    layout: Option<(StagedLayout, i64)>,
    (spatial, k_tile, k_step): (i64, i64, i64),
    vector: u32,
) -> Loads {
    let bytes = i64::from(contraction.operand(side).dtype.bytes());
    let axis = side.spatial();
    let registers = grid.registers_along(axis);
    let v = i64::from(vector);
    let along_k = layout.is_some_and(|(l, _)| !l.k_major);
    let (r_width, k_width) = if along_k { (1, v) } else { (v, 1) };
    let count = (registers / r_width) * (k_step / k_width) * (k_tile / k_step);
    let Some((layout, staged_k)) = layout else {
        let lanes = if axis == Axis::M { grid.lanes.m } else { grid.lanes.n };
        let size = [lanes * registers, k_tile];
        // The one in the middle stands for all parts.
        let samples = contraction.samples([axis, Axis::K], size);
        let places = contraction.places(side, samples.get(samples.len() / 2).copied().unwrap_or_default(), size);
        let mut result = Loads { loads: count as f64, ..Loads::default() };
        let share = contraction.read_share(side);
        for r in 0..registers {
            for k in 0..k_tile {
                let mut addresses: Vec<u64> = (0..32)
                    .filter_map(|lane| places.at(grid.along(lane, axis) * registers + r, k))
                    .map(|place| place * bytes as u64)
                    .collect();
                result.sectors += f64::from(touched(&addresses, bytes as u32)) * share;
                // One word for several lanes is read once.
                addresses.sort_unstable();
                addresses.dedup();
                result.l1_bytes += l1_bytes(&addresses, bytes as u32) * share;
            }
        }
        return result;
    };
    let one = |r: i64, k: i64| {
        let addresses: Vec<(u32, u64)> = (0..32)
            .map(|lane| {
                let x = grid.along(lane, axis) * registers + r;
                (lane as u32, (layout.offset(x, k, spatial, staged_k, bytes) * bytes) as u64)
            })
            .collect();
        wavefronts(&addresses, (v * bytes) as u32)
    };
    if !layout.swizzle {
        // A constant added to all addresses turns the banks and changes no conflict.
        let (taken, ideal) = one(0, 0);
        let wavefronts = (f64::from(taken) * count as f64, f64::from(ideal) * count as f64);
        return Loads { loads: count as f64, wavefronts, ..Loads::default() };
    }
    let (mut taken, mut ideal) = (0.0, 0.0);
    for r in (0..registers).step_by(r_width as usize) {
        for k in (0..k_tile).step_by(k_width as usize) {
            let (t, i) = one(r, k);
            taken += f64::from(t);
            ideal += f64::from(i);
        }
    }
    Loads { loads: count as f64, wavefronts: (taken, ideal), ..Loads::default() }
}

/// Stores of one piece of the results by one warp: (instructions, sectors, bytes that L1 is occupied with).
pub fn store(contraction: &Contraction, grid: &LaneGrid, vector: u32) -> [f64; 3] {
    let bytes = u64::from(contraction.c.dtype.bytes());
    let size = [grid.lanes.m * grid.registers.m, grid.lanes.n * grid.registers.n];
    let places = contraction.result_places([0, 0], size);
    let (mut count, mut sectors, mut l1) = (0.0, 0.0, 0.0);
    for rm in 0..grid.registers.m {
        for rn in (0..grid.registers.n).step_by(vector as usize) {
            let place = |lane| {
                let m = grid.along(lane, Axis::M) * grid.registers.m + rm;
                places.at(m, grid.along(lane, Axis::N) * grid.registers.n + rn)
            };
            let addresses: Vec<u64> = (0..32).filter_map(place).map(|place| place * bytes).collect();
            count += 1.0;
            sectors += f64::from(touched(&addresses, vector * bytes as u32));
            l1 += stored_bytes(&addresses);
        }
    }
    [count, sectors, l1]
}

/// Bytes that a store occupies L1 with: whole lines.
fn stored_bytes(addresses: &[u64]) -> f64 {
    let mut lines: Vec<u64> = addresses.iter().map(|a| a / 128).collect();
    lines.sort_unstable();
    lines.dedup();
    128.0 * lines.len() as f64
}

/// What an epilogue reads beside `stores` of `sectors`: a load per store and operand. One that has both axes of the result
/// touches as many elements; a value per row or column stays in L1, and counts as a sector per load.
pub fn epilogue(contraction: &Contraction, stores: f64, sectors: f64) -> Work {
    let mut work = Work::default();
    let Some(fused) = &contraction.epilogue else { return work };
    let dims = contraction.result_dims();
    for read in &fused.reads {
        let full = [Axis::M, Axis::N].iter().all(|axis| read.dims.iter().flatten().any(|d| dims[*d].0 == *axis));
        let wide = f64::from(read.dtype.bytes()) / f64::from(contraction.c.dtype.bytes());
        let touched = if full { sectors * wide } else { stores };
        work.global_loads += stores;
        work.global_load_sectors += touched;
        work.l1_bytes += touched * 32.0;
        work.l2_sectors += touched;
    }
    work
}

/// Sectors of an operand's tile.
pub fn distinct_sectors(contraction: &Contraction, side: Side, spatial: i64, k_tile: i64) -> f64 {
    (spatial * k_tile) as f64 * f64::from(contraction.operand(side).dtype.bytes()) * contraction.read_share(side) / 32.0
}

/// Work of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockWork {
    /// Before the k loop: fills of strips.
    pub begin: Work,
    /// Of one k tile: fills and arithmetic.
    pub tile: Work,
    /// Of one k value: sums that the program keeps in global memory, read and written at every k value. A compiler keeps
    /// them in registers over the k loop, as no two pointers are aliases (machine code: one store per result), so that
    /// they are part of the counts and not of the time.
    pub in_place: Work,
    /// After it: stores, and all barriers.
    pub end: Work,
}

/// Barriers of each thread of a block, where shared memory passes between threads, given where the k loop of so many
/// tiles finds its operands.
pub fn barriers(pipe: Pipe, tiles: i64, ways: [Way; 2]) -> i64 {
    let (filled, strips) = (ways.contains(&Way::Tile), ways.contains(&Way::Strip));
    if tiles == 1 {
        // No loop is left.
        return i64::from(filled || strips);
    }
    let in_loop = match (filled, pipe) {
        (false, _) => 0,
        (true, Pipe::Plain) => 2 * tiles,
        (true, Pipe::Registers) => tiles + 1,
        (true, Pipe::Async(_)) => tiles,
    };
    in_loop + i64::from(strips)
}

/// Work of a block: before its k loop, per k tile, and after it.
pub fn of_block(plan: &CoresPlan, contraction: &Contraction) -> BlockWork {
    let warps = f64::from(plan.threads / 32);
    let grid = LaneGrid { lanes: plan.lanes, m_outer: plan.lanes_m_outer, registers: plan.registers };
    let BlockWork { mut begin, mut tile, mut in_place, mut end } = BlockWork::default();
    let pieces =
        Pair { m: plan.vthread_outer.m * plan.vthread_inner.m, n: plan.vthread_outer.n * plan.vthread_inner.n };
    tile.fma = (plan.results_per_thread() * plan.k_tile) as f64 * warps;
    for side in [Side::A, Side::B] {
        let spatial = plan.spatial(side);
        let (count, other) = match side {
            Side::A => (pieces.m, pieces.n * plan.registers.n),
            Side::B => (pieces.n, pieces.m * plan.registers.m),
        };
        let staging = plan.staging(side);
        let staged_k = plan.staged_k(side);
        if let Some(shared) = staging.shared {
            let pipe = if plan.way(side) == Way::Strip { Pipe::Plain } else { plan.pipe };
            let work = fill(contraction, side, (spatial, staged_k), plan.threads, pipe, shared);
            // A strip is filled again for each value of the reduction axes around it.
            let (part, times) = if plan.way(side) == Way::Strip {
                (&mut begin, outer_iterations(contraction))
            } else {
                (&mut tile, 1.0)
            };
            part.add(&work, times);
        }
        let layout = staging.shared.map(|s| (s.0, staged_k));
        // An operand that is read where it is used is read once per multiply-add.
        let repeats = if staging.local.is_some() { 1.0 } else { other as f64 };
        let vector = staging.local.unwrap_or(1);
        let read = fragment(contraction, side, &grid, layout, (spatial, plan.k_tile, plan.k_step), vector);
        let times = count as f64 * warps * repeats;
        tile.prepared += prepared(contraction, side, read.loads * f64::from(vector) * times);
        if layout.is_some() {
            tile.shared_loads += read.loads * times;
            tile.shared_load_wavefronts += read.wavefronts.0 * times;
            tile.shared_load_wavefronts_ideal += read.wavefronts.1 * times;
        } else {
            tile.global_loads += read.loads * times;
            tile.global_load_sectors += read.sectors * times;
            tile.l2_sectors += distinct_sectors(contraction, side, spatial, plan.k_tile);
            tile.l1_bytes += read.l1_bytes * times;
            tile.addresses += addresses(contraction, side, read.loads * times, 1);
        }
    }
    let times = pieces.product() as f64 * warps;
    let stores = store(contraction, &grid, plan.store_vector).map(|x| x * times);
    end.add(&stored(stores), 1.0);
    if plan.accumulators {
        end.add(&epilogue(contraction, stores[0], stores[1]), 1.0);
    } else {
        in_place = Work { global_loads: stores[0], global_load_sectors: stores[1], ..stored(stores) };
    }
    end.barriers = warps * barriers(plan.pipe, k_tiles(plan), [Side::A, Side::B].map(|s| plan.way(s))) as f64;
    BlockWork { begin, tile, in_place, end }
}

/// What storing results comes to: instructions, sectors, bytes of L1.
pub fn stored([stores, sectors, l1_bytes]: [f64; 3]) -> Work {
    Work { global_stores: stores, global_store_sectors: sectors, l2_sectors: sectors, l1_bytes, ..Work::NONE }
}

/// Iterations of the block's k loop.
pub fn k_tiles(plan: &CoresPlan) -> i64 {
    (plan.k_part + plan.k_tile - 1) / plan.k_tile
}

/// Work of the whole main kernel: all blocks.
pub fn total(plan: &CoresPlan, contraction: &Contraction) -> Work {
    let BlockWork { begin, tile, in_place, end } = of_block(plan, contraction);
    let mut sum = if plan.accumulators { end } else { Work { barriers: end.barriers, ..Work::NONE } };
    sum.add(&in_place, (k_tiles(plan) * plan.k_tile) as f64);
    sum.add(&begin, 1.0);
    sum.add(&tile, k_tiles(plan) as f64);
    let mut all = Work::default();
    all.add(&sum, plan.block_count() as f64);
    all
}
