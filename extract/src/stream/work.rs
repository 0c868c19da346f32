//! Counts of what the kernels of a streaming plan do. Sectors of global memory equal the simulator's, by a test; what
//! registers and compilers decide (arithmetic, address computation) is estimated.
use super::accesses::{rows, Parted, Touched};
use super::tile;
use satune_ir::term::stream::{
    Access, AccessForm, BlockKind, FlatPlan, KernelPlan, Place, PlainPlan, RowPlan, Shape, Stream, StreamBlock,
    StreamPlan, Streams,
};
use std::collections::BTreeSet;

/// Work of one kernel, all blocks: warp instructions, wavefronts, 32-byte sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KernelWork {
    /// Blocks of threads.
    pub blocks: f64,
    /// Loads from global memory.
    pub global_loads: f64,
    /// Stores to global memory.
    pub global_stores: f64,
    /// Sectors read.
    pub load_sectors: f64,
    /// Sectors written.
    pub store_sectors: f64,
    /// Loads from shared memory.
    pub shared_loads: f64,
    /// Stores to shared memory.
    pub shared_stores: f64,
    /// Wavefronts of loads from shared memory.
    pub load_wavefronts: f64,
    /// The least for them.
    pub load_wavefronts_ideal: f64,
    /// Wavefronts of stores to shared memory.
    pub store_wavefronts: f64,
    /// The least for them.
    pub store_wavefronts_ideal: f64,
    /// Arithmetic.
    pub arithmetic: f64,
    /// Divisions and functions.
    pub special: f64,
    /// Shuffles.
    pub shuffles: f64,
    /// Barriers, per warp.
    pub barriers: f64,
    /// Iterations of loops that are not unrolled, and rows, per warp.
    pub iterations: f64,
    /// Bytes that must pass from DRAM: every buffer once.
    pub read_bytes: f64,
    /// Bytes that must pass to DRAM.
    pub written_bytes: f64,
    /// What of these another kernel has just touched, or will.
    pub kept: [Kept; KEPT],
    /// Bytes that are read again where L2 does not hold them.
    pub again_bytes: f64,
    /// Bytes that resident blocks want L2 to hold for that, per row at work.
    pub again_live: f64,
    /// Shared memory of a block, bytes.
    pub shared_bytes: i64,
    /// Registers of a thread for what it holds, 32 bits each.
    pub held_registers: i64,
    /// Clocks of latency of a block's chain of steps, in units of (DRAM, L2, shared memory, arithmetic step).
    pub chain: [f64; 4],
}

/// Most distances at which a kernel's buffers are told apart.
const KEPT: usize = 4;

/// Bytes that never pass to or from DRAM where L2 holds so many from one kernel to another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Kept {
    /// Bytes of all buffers that are touched from the one use of a buffer to the next.
    pub live: f64,
    /// Bytes that are found there.
    pub read: f64,
    /// Bytes of buffers of the program that nobody needs after their next use.
    pub written: f64,
}

/// Of each buffer that the blocks share with others of the program: what is touched from its last use before to here, and from
/// here to its next. A distance beyond the first few counts as the longest. Of what comes before a work, or after it, only is
/// known what it touches: the distances are then the least that there can be.
fn kept(stream: &Stream, from: usize, to: usize) -> [Kept; KEPT] {
    let bytes = |buffer: usize| stream.buffers[buffer].bytes() as f64;
    let live = |blocks: &[StreamBlock]| -> f64 {
        let all = 0..stream.buffers.len();
        all.filter(|buffer| blocks.iter().any(|b| b.touches(*buffer))).map(bytes).sum()
    };
    let blocks = &stream.blocks;
    let mut list: Vec<Kept> = Vec::new();
    for (buffer, known) in stream.buffers.iter().enumerate() {
        let here = &blocks[from..to];
        let first = here.iter().position(|b| b.touches(buffer));
        let is_read = first.is_some_and(|at| here[at].reads.iter().any(|r| r.buffer == buffer));
        let before = (0..from).rev().find(|at| blocks[*at].touches(buffer)).or(known.before.then_some(0));
        if let Some(before) = before.filter(|_| is_read) {
            list.push(Kept { live: live(&blocks[before..to]), read: bytes(buffer), written: 0.0 });
        }
        let last = known.after.then_some(blocks.len() - 1);
        let after = (to..blocks.len()).rev().find(|at| blocks[*at].touches(buffer)).or(last);
        let made = here.iter().any(|b| b.write.buffer == buffer);
        if let Some(after) = after.filter(|_| made && !known.param) {
            list.push(Kept { live: live(&blocks[from..=after]), read: 0.0, written: bytes(buffer) });
        }
    }
    list.sort_by(|a, b| a.live.total_cmp(&b.live));
    let mut out = [Kept::default(); KEPT];
    for (at, one) in list.into_iter().enumerate() {
        let slot = &mut out[at.min(KEPT - 1)];
        *slot = Kept { live: one.live, read: slot.read + one.read, written: slot.written + one.written };
    }
    out
}

/// Work of every kernel of a plan. Empty where the plan is of another program.
pub fn stream_work(plan: &StreamPlan, problem: &Streams) -> Vec<KernelWork> {
    let Some(stream) = problem.of_plan(plan) else { return Vec::new() };
    plan.kernels.iter().map(|k| kernel_work(k, &stream)).collect()
}

/// Work of a kernel; nothing where the stream does not have its blocks.
pub fn kernel_work(kernel: &KernelPlan, stream: &Stream) -> KernelWork {
    kernel
        .range(stream)
        .map_or_else(KernelWork::default, |(from, to)| Passing::of(stream, from, to).with(kernel, stream))
}

/// What blocks pass to others through memory, however they are scheduled.
pub(super) struct Passing {
    range: (usize, usize),
    least: [f64; 2],
    kept: [Kept; KEPT],
}

impl Passing {
    /// Of the blocks `from..to`.
    pub fn of(stream: &Stream, from: usize, to: usize) -> Passing {
        Passing { range: (from, to), least: least_bytes(stream, from, to), kept: kept(stream, from, to) }
    }

    /// The work of a kernel of these blocks.
    pub fn with(&self, kernel: &KernelPlan, stream: &Stream) -> KernelWork {
        let (from, to) = self.range;
        let mut work = match kernel {
            KernelPlan::Flat(p) => flat(p, stream, &stream.blocks[from]),
            KernelPlan::Row(p) => match stream.row_shape(from, to) {
                Some(shape) => Row { plan: p, stream, shape, from, to }.work(),
                None => KernelWork::default(),
            },
            KernelPlan::Tile(p) => tile::work(p, stream, from),
            KernelPlan::Plain(p) => plain(p, stream, &stream.blocks[from]),
            // Its work is counted with the contraction.
            KernelPlan::Tiled(_) => KernelWork::default(),
        };
        [work.read_bytes, work.written_bytes] = self.least;
        work.kept = self.kept;
        work
    }
}

/// Bytes of the buffers that the kernel reads and has not made, and of those that it makes for others, each once.
fn least_bytes(stream: &Stream, from: usize, to: usize) -> [f64; 2] {
    let blocks = &stream.blocks[from..to];
    let made: BTreeSet<usize> = blocks.iter().map(|b| b.write.buffer).collect();
    let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
    for (i, b) in blocks.iter().enumerate() {
        let inside = |buffer: usize| blocks[..i].iter().any(|p| p.write.buffer == buffer);
        read.extend(b.loads().map(|r| r.buffer).filter(|r| !inside(*r)));
    }
    written.extend(made.into_iter().filter(|buffer| stream.outlives(*buffer, to)));
    [read, written].map(|buffers| buffers.iter().map(|b| stream.buffers[*b].bytes() as f64).sum())
}

pub(super) fn up(x: i64, y: i64) -> i64 {
    (x + y - 1) / y.max(1)
}

/// Wavefronts of a warp's access to neighbouring elements in shared memory.
fn run_wavefronts(bytes_per_lane: i64) -> f64 {
    (bytes_per_lane as f64 / 4.0).max(1.0)
}

/// Rows of an access that depend on a part of the row iterators: (different rows, how often each is accessed).
fn distinct_rows(b: &StreamBlock, access: &Access, row_iters: usize) -> (i64, f64) {
    let used: i64 = access.dims.iter().flatten().filter(|i| **i < row_iters).map(|i| b.iters[*i].extent).product();
    let all: i64 = b.iters[..row_iters].iter().map(|i| i.extent).product();
    (used, all as f64 / used as f64)
}

fn flat(plan: &FlatPlan, stream: &Stream, b: &StreamBlock) -> KernelWork {
    let inner = b.iters.len() - 1;
    let columns = b.iters[inner].extent;
    let all_rows = b.instances() / columns;
    let chunk = 32 * plan.vector;
    let tile = plan.steps * plan.threads * plan.vector;
    let blocks = (all_rows / plan.side_by_side.max(1) * up(columns, tile)) as f64;
    let mut work = KernelWork { blocks, ..KernelWork::default() };
    let active = all_rows as f64 * up(columns, chunk) as f64;
    for (access, store) in b.loads().map(|r| (r, false)).chain([(&b.write, true)]) {
        let bytes = i64::from(stream.buffers[access.buffer].dtype.bytes());
        let touched = if access.dims.contains(&Some(inner)) {
            let (different, times) = distinct_rows(b, access, inner);
            rows(different, columns, chunk, bytes).times(times)
        } else {
            // One value for all lanes, read for each element of a thread.
            let each = active * plan.vector as f64;
            Touched { instructions: each, sectors: each }
        };
        work.global(touched, store);
    }
    let lanes = active * plan.vector as f64;
    work.iterations = active / plan.steps as f64;
    work.operations(b, lanes, work.iterations);
    work.held_registers = plan.steps * plan.vector * (b.reads.len() as i64 + 1);
    work.chain = [1.0, 0.0, 0.0, 8.0];
    work
}

/// Sectors of a warp's access of which nothing is known but that it is to neighbouring elements, or to others nearby
/// (estimate).
const UNKNOWN_SECTORS: f64 = 8.0;

/// One thread per result. What a block of which little is known reads is an estimate.
fn plain(plan: &PlainPlan, stream: &Stream, b: &StreamBlock) -> KernelWork {
    let results = b.results();
    let warps = up(results, 32) as f64;
    let steps = (b.instances() / results.max(1)) as f64;
    // A sum is held, and its threads follow the elements that are written.
    let last = b.write.dims.iter().rev().flatten().next().copied().filter(|_| b.sums);
    let lane = last.or_else(|| b.iters.iter().rposition(|i| !i.reduce));
    let mut work = KernelWork { blocks: up(results, plan.threads) as f64, ..KernelWork::default() };
    for access in b.loads() {
        let bytes = i64::from(stream.buffers[access.buffer].dtype.bytes());
        let known = access.dims.iter().all(Option::is_some);
        let sectors = match access.dims.iter().position(|d| lane.is_some() && *d == lane) {
            Some(at) if at + 1 == access.dims.len() => up(32 * bytes, 32) as f64,
            None if known => 1.0,
            _ => UNKNOWN_SECTORS,
        };
        work.global(Touched { instructions: warps * steps, sectors: warps * steps * sectors }, false);
    }
    let bytes = i64::from(stream.buffers[b.write.buffer].dtype.bytes());
    work.global(Touched { instructions: warps, sectors: warps * up(32 * bytes, 32) as f64 }, true);
    // Threads walk over the instances in order, so that nothing stays the same for long.
    work.operations(b, warps * steps, warps * steps);
    work.iterations = warps * steps;
    // The loads of a step wait for L1 or L2, one step after the other.
    work.chain = [1.0, steps - 1.0, 0.0, steps * f64::from(b.arithmetic + 4 * b.special).max(1.0)];
    work
}

impl KernelWork {
    /// Operations of a block, of so many instances of warps, and of as many of what does not change within a row.
    pub(super) fn operations(&mut self, b: &StreamBlock, instances: f64, rows: f64) {
        self.arithmetic += instances * f64::from(b.arithmetic) + rows * f64::from(b.per_row[0]);
        self.special += instances * f64::from(b.special) + rows * f64::from(b.per_row[1]);
    }

    fn global(&mut self, touched: Touched, store: bool) {
        if store {
            self.global_stores += touched.instructions;
            self.store_sectors += touched.sectors;
        } else {
            self.global_loads += touched.instructions;
            self.load_sectors += touched.sectors;
        }
    }

    pub(super) fn accesses(&mut self, touched: Touched, store: bool) {
        self.global(touched, store);
    }
}

struct Row<'a> {
    plan: &'a RowPlan,
    stream: &'a Stream,
    shape: Shape,
    from: usize,
    to: usize,
}

impl Row<'_> {
    fn bytes(&self, buffer: usize) -> i64 {
        i64::from(self.stream.buffers[buffer].dtype.bytes())
    }

    /// Warp accesses along a row, all rows.
    fn along(&self) -> f64 {
        self.shape.rows as f64 * up(self.shape.columns, 32 * self.plan.vector) as f64
    }

    /// What reading so many rows touches.
    fn row_reads(&self, b: &StreamBlock, access: &Access, count: i64) -> Touched {
        let (plan, length) = (self.plan, self.shape.columns);
        let (chunk, bytes) = (32 * plan.vector, self.bytes(access.buffer));
        let parts = access.split.and_then(|at| access.dims[at]).map(|i| b.iters[i].extent);
        match parts.filter(|_| plan.vector > 1) {
            Some(parts) => {
                let tile = plan.threads * plan.vector;
                Parted { rows: count / parts, parts, length, tile }.touched(chunk, bytes)
            }
            None => rows(count, length, chunk, bytes),
        }
    }

    fn work(&self) -> KernelWork {
        let (plan, shape) = (self.plan, &self.shape);
        let blocks = &self.stream.blocks[self.from..self.to];
        let chunk = 32 * plan.vector;
        let iterations = up(shape.columns, plan.threads * plan.vector) as f64;
        let warps = (plan.threads / 32) as f64;
        let rows_all = shape.rows as f64;
        let blocks_all = (shape.rows / plan.rows_per_block().max(1)) as f64;
        let mut work = KernelWork { blocks: blocks_all, ..KernelWork::default() };
        // What is held.
        for (buffer, form) in self.stream.held(self.from, self.to, plan.rows_per_block()) {
            let bytes = self.bytes(buffer);
            let made = self.stream.made_in(buffer, self.from, self.to);
            let place = plan.place(&self.stream.buffers[buffer].name);
            match place {
                Place::Global => continue,
                Place::Registers => {
                    work.held_registers += iterations as i64 * plan.vector * up(bytes, 4);
                }
                Place::Shared if form == AccessForm::PerColumn => work.shared_bytes += shape.columns * bytes,
                Place::Shared => work.shared_bytes += shape.columns * bytes * plan.side_by_side,
            }
            if made {
                continue;
            }
            let (copied, times) = match form {
                AccessForm::PerColumn => (rows(1, shape.columns, chunk, bytes), work.blocks),
                _ => (rows(shape.rows, shape.columns, chunk, bytes), 1.0),
            };
            let copied = copied.times(times);
            work.global(copied, false);
            work.chain[0] += if form == AccessForm::PerColumn { 1.0 / plan.serial_rows as f64 } else { 1.0 };
            if place == Place::Shared {
                work.shared(copied.instructions, plan.vector * bytes, true);
                work.barriers += copied.instructions / iterations.max(1.0);
            }
        }
        for (i, b) in blocks.iter().enumerate() {
            self.stage(i, b, &mut work);
        }
        // Rows of a block in turn, one chain after the other.
        work.chain.iter_mut().for_each(|c| *c *= plan.serial_rows as f64);
        work.iterations += rows_all * warps * 4.0;
        work.again_live = (shape.columns * plan.side_by_side) as f64 * 4.0;
        work
    }

    /// One block of the kernel.
    fn stage(&self, number: usize, b: &StreamBlock, work: &mut KernelWork) {
        let (plan, shape) = (self.plan, &self.shape);
        let blocks = &self.stream.blocks[self.from..self.to];
        let last = number + 1 == blocks.len();
        let has_columns = b.iters.len() > shape.row_iters;
        let chunk = 32 * plan.vector;
        let rows_all = shape.rows as f64;
        let warps = (plan.threads / 32) as f64;
        let iterations = if has_columns { up(shape.columns, plan.threads * plan.vector) as f64 } else { 1.0 };
        let unrolled = plan.unroll.get(number) == Some(&true) || iterations == 1.0;
        let groups = if unrolled { 1.0 } else { iterations };
        // Instances, as warp instructions.
        let only_first = last && !has_columns;
        let instances = match (has_columns, only_first) {
            (true, _) => self.along() * plan.vector as f64,
            (false, true) => rows_all,
            (false, false) => rows_all * warps,
        };
        let mut latency = 0;
        for access in &b.reads {
            let made = blocks[..number].iter().any(|p| p.write.buffer == access.buffer);
            let bytes = self.bytes(access.buffer);
            let place = plan.place(&self.stream.buffers[access.buffer].name);
            match (b.form(access, shape.row_iters), place) {
                (AccessForm::Full | AccessForm::PerColumn, Place::Registers) => {}
                (AccessForm::Full | AccessForm::PerColumn, Place::Shared) => {
                    work.shared(self.along(), plan.vector * bytes, false);
                    latency = latency.max(1);
                }
                (AccessForm::Full, Place::Global) => {
                    work.global(self.row_reads(b, access, shape.rows), false);
                    let before = blocks[..number].iter().any(|p| p.reads.iter().any(|r| r.buffer == access.buffer));
                    if before {
                        work.again_bytes += (shape.rows * shape.columns * bytes) as f64;
                    }
                    latency = latency.max(if before { 2 } else { 3 });
                }
                (AccessForm::SharedRow, _) => {
                    // Rows that others have read, too, come from L2.
                    let (different, times) = distinct_rows(b, access, shape.row_iters);
                    let touched = self.row_reads(b, access, different);
                    work.global(touched.times(times), false);
                    latency = latency.max(if times > 1.0 { 2 } else { 3 });
                }
                (AccessForm::PerColumn, Place::Global) => {
                    work.global(rows(1, shape.columns, chunk, bytes).times(rows_all), false);
                    latency = latency.max(2);
                }
                (AccessForm::PerRow, _) if made => {}
                _ => {
                    work.global(Touched { instructions: instances, sectors: instances }, false);
                    latency = latency.max(2);
                }
            }
        }
        match latency {
            3 => work.chain[0] += groups,
            2 => work.chain[1] += groups,
            1 => work.chain[2] += groups,
            _ => {}
        }
        work.operations(b, instances, rows_all * warps);
        work.iterations += if unrolled { rows_all * warps } else { rows_all * warps * iterations };
        work.chain[3] += iterations * plan.vector as f64 * f64::from(b.arithmetic + 4 * b.special).max(1.0);
        if b.kind == BlockKind::Reduce {
            let stages = if plan.threads > 32 { 2.0 } else { 1.0 };
            work.shuffles += rows_all * warps * 5.0 * stages;
            work.arithmetic += rows_all * warps * 5.0 * stages;
            work.chain[3] += 5.0 * 6.0 * stages;
            if stages > 1.0 {
                work.barriers += 2.0 * rows_all * warps;
                work.shared(2.0 * rows_all * warps, 4, false);
                work.chain[2] += 2.0;
            }
        }
        let bytes = self.bytes(b.write.buffer);
        match b.form(&b.write, shape.row_iters) {
            AccessForm::Full if last => work.global(rows(shape.rows, shape.columns, chunk, bytes), true),
            AccessForm::Full if plan.place(&self.stream.buffers[b.write.buffer].name) == Place::Shared => {
                work.shared(self.along(), plan.vector * bytes, true);
                work.barriers += rows_all * warps;
            }
            AccessForm::PerRow if last => work.global(Touched { instructions: rows_all, sectors: rows_all }, true),
            _ => {}
        }
    }
}

impl KernelWork {
    /// Accesses of neighbouring elements in shared memory, which have no conflicts.
    fn shared(&mut self, instructions: f64, bytes_per_lane: i64, store: bool) {
        let wavefronts = instructions * run_wavefronts(bytes_per_lane);
        let [count, taken, least] = if store {
            [&mut self.shared_stores, &mut self.store_wavefronts, &mut self.store_wavefronts_ideal]
        } else {
            [&mut self.shared_loads, &mut self.load_wavefronts, &mut self.load_wavefronts_ideal]
        };
        *count += instructions;
        *taken += wavefronts;
        *least += wavefronts;
    }
}
