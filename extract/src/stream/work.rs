//! Counts of what the kernels of a streaming plan do. Sectors of global memory equal the simulator's, by a test; what
//! registers and compilers decide (arithmetic, address computation) is estimated.
use super::accesses::{rows, Places, ShortRows, Touched};
use super::counts::{distinct_rows, starts, up, Edge, Kept, KernelWork, EXCHANGE, KEPT, LAP, LEAVE};
use super::row::Rows;
use super::tile;
use satune_ir::machine::SECTOR;
use satune_ir::term::stream::{Access, FlatPlan, KernelPlan, PlainPlan, Stream, StreamBlock, StreamPlan, Streams};
use std::collections::BTreeSet;

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
            list.push(Kept { live: live(&blocks[before..to]), read: stream.read_bytes(here, buffer), written: 0.0 });
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
            KernelPlan::Flat(p) => flat(p, stream, (from, to)),
            KernelPlan::Row(p) => {
                Rows::of(p, stream, (from, to)).map_or_else(KernelWork::default, |rows| rows.whole(p))
            }
            KernelPlan::Tile(p) => tile::work(p, stream, from),
            KernelPlan::Plain(p) => plain(p, stream, &stream.blocks[from..to]),
            // Its work is counted with the contraction.
            KernelPlan::Tiled(_) => KernelWork::default(),
        };
        self.passes(&mut work);
        work
    }

    /// What passes, noted.
    pub fn passes(&self, work: &mut KernelWork) {
        [work.read_bytes, work.written_bytes] = self.least;
        work.kept = self.kept;
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
    let written = written.iter().map(|b: &usize| stream.buffers[*b].bytes() as f64).sum();
    [read.iter().map(|b| stream.read_bytes(blocks, *b)).sum(), written]
}

fn flat(plan: &FlatPlan, stream: &Stream, (from, to): (usize, usize)) -> KernelWork {
    let maps = &stream.blocks[from..to];
    let first = &maps[0];
    let inner = first.iters.len() - 1;
    let columns = first.iters[inner].extent;
    let all_rows = first.instances() / columns;
    let chunk = 32 * plan.vector;
    let tile = plan.steps * plan.threads * plan.vector;
    let blocks = (all_rows / plan.side_by_side.max(1) * up(columns, tile)) as f64;
    let mut work = KernelWork { blocks, ..KernelWork::default() };
    let short = (plan.threads < 32).then_some(ShortRows { rows: all_rows, threads: plan.threads.max(1) });
    // Accesses of warps to what all of them access once.
    let active = match &short {
        Some(short) => short.warps(),
        None => all_rows as f64 * up(columns, chunk) as f64,
    };
    // What a map makes for others is in registers, but for what it updates; and what several read along the row is read once.
    let mut accesses: Vec<(&StreamBlock, &Access, bool)> = Vec::new();
    for b in maps {
        for read in b.loads() {
            let maker = maps.iter().find(|m| m.write.buffer == read.buffer);
            let once = || {
                let along = read.dims.contains(&Some(inner));
                !along || accesses.iter().all(|(_, a, store)| *store || *a != read)
            };
            if maps.len() == 1 || maker.map_or_else(once, |m| m.updates) {
                accesses.push((b, read, false));
            }
        }
        if maps.len() == 1 || stream.outlives(b.write.buffer, to) {
            accesses.push((b, &b.write, true));
        }
    }
    let loads = accesses.iter().filter(|(.., store)| !store).count();
    let stores = accesses.len() - loads;
    for (b, access, store) in accesses {
        let bytes = i64::from(stream.buffers[access.buffer].dtype.bytes());
        let along = access.dims.contains(&Some(inner));
        let touched = if let Some(short) = &short {
            let places = Places::of(b, access, inner);
            match along {
                true => short.touched(columns, plan.vector, bytes, &places),
                false => short.touched(1, 1, bytes, &places).times(plan.vector as f64),
            }
        } else if along {
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
    let warps = active / plan.steps as f64;
    work.overhead = starts(warps, loads + stores);
    let edge = Edge::of(columns, plan.steps, plan.threads * plan.vector);
    work.overhead += blocks * (plan.threads * plan.side_by_side) as f64 / 32.0 * edge.steps * LEAVE;
    maps.iter().for_each(|b| work.operations(b, lanes, warps, plan.vector == 1));
    let updates = maps.iter().filter(|b| b.updates).count();
    work.held_registers = plan.steps * plan.vector * (loads - updates + maps.len()) as i64;
    work.chain = [1.0, 0.0, 0.0, 8.0 * maps.len() as f64];
    work
}

/// Sectors of a warp's access of which nothing is known but that it is to neighbouring elements, or to others nearby
/// (estimate).
const UNKNOWN_SECTORS: f64 = 8.0;

/// Most steps of a loop that compilers expand (estimate).
const EXPANDED: f64 = 16.0;
/// Steps of a longer loop, or of any that is left to them, that they expand together: NVRTC 13.0 expands a loop over loads by
/// four or eight.
pub const TOGETHER: f64 = 4.0;

/// One thread per result, or some. What a block of which little is known reads is an estimate.
fn plain(plan: &PlainPlan, stream: &Stream, blocks: &[StreamBlock]) -> KernelWork {
    let [b, maps @ ..] = blocks else { return KernelWork::default() };
    let results = b.results();
    let each = plan.sharing.map_or(1, |s| s.threads);
    let warps = up(results * each, 32) as f64;
    let of_one = |i: usize| {
        if plan.sharing.is_some_and(|s| s.iter == i) {
            up(b.iters[i].extent, each)
        } else {
            b.iters[i].extent
        }
    };
    // Values that a thread adds up, in the loops from `from` on.
    let inside = |from: usize| -> i64 { (from..b.iters.len()).filter(|i| b.iters[*i].reduce).map(of_one).product() };
    let steps = inside(0) as f64;
    // A sum is held, and its threads follow the elements that are written, or those that are added up.
    let last = b.write.dims.iter().rev().flatten().next().copied().filter(|_| b.sums);
    let along = plan.sharing.filter(|s| s.lanes).map(|s| s.iter);
    let lane = along.or(last).or_else(|| b.iters.iter().rposition(|i| !i.reduce));
    let innermost = b.iters.iter().rposition(|i| i.reduce);
    let mut work = KernelWork { blocks: up(results, plan.results) as f64, ..KernelWork::default() };
    for access in b.loads() {
        let bytes = i64::from(stream.buffers[access.buffer].dtype.bytes());
        let known = access.known;
        let sectors = match access.dims.iter().position(|d| lane.is_some() && *d == lane) {
            Some(at) if known => {
                let below = access.dims[at + 1..].iter().flatten().map(|i| b.iters[*i].extent);
                up(32 * bytes * below.fold(1, i64::saturating_mul), SECTOR as i64).min(32) as f64
            }
            None if known => 1.0,
            Some(at) if at + 1 == access.dims.len() => up(32 * bytes, SECTOR as i64) as f64,
            _ => UNKNOWN_SECTORS,
        };
        // What the innermost loops do not move on in is loaded before them. What the innermost one goes along is in L1, sector by sector.
        let used = access.dims.iter().flatten().max().map_or(0, |last| last + 1);
        let times = warps * if known { steps / inside(used).max(1) as f64 } else { steps };
        let touched = Touched { instructions: times, sectors: times * sectors };
        let ends = |iter: Option<usize>| known && access.dims.last() == Some(&iter) && iter != lane;
        // So do the neighbouring results of a block.
        let run = if ends(innermost) {
            inside(b.iters.len() - 1)
        } else {
            last.filter(|_| ends(last)).map_or(1, |i| b.iters[i].extent.min(plan.results))
        };
        let run = run.clamp(1, SECTOR as i64 / bytes);
        work.cached_sectors += touched.sectors * (1.0 - 1.0 / run as f64);
        work.global(touched, false);
    }
    for (map, access) in maps.iter().flat_map(|map| map.loads().map(move |access| (map, access))) {
        if access.buffer != b.write.buffer {
            let bytes = i64::from(stream.buffers[access.buffer].dtype.bytes());
            let along = access.dims.contains(&map.iters.len().checked_sub(1));
            let sectors = if along { up(32 * bytes, SECTOR as i64) as f64 } else { 1.0 };
            work.global(Touched { instructions: warps, sectors: warps * sectors }, false);
        }
    }
    maps.iter().for_each(|map| work.operations(map, warps, warps, true));
    let written = maps.last().unwrap_or(b).write.buffer;
    let bytes = i64::from(stream.buffers[written].dtype.bytes());
    work.global(Touched { instructions: warps, sectors: warps * up(32 * bytes, 32) as f64 }, true);
    // What the innermost loop does not change is computed before it; a short one is expanded.
    let inner = inside(b.iters.len().saturating_sub(1)).max(1) as f64;
    let laps = if inner <= EXPANDED { steps / inner } else { (steps / TOGETHER).ceil() };
    work.operations(b, warps * steps, warps * steps / inner, true);
    let buffers = b.loads().count() + maps.iter().map(|map| map.loads().count() - 1).sum::<usize>();
    work.overhead = starts(warps, buffers + 1) + if laps > 1.0 { warps * laps * LAP } else { 0.0 };
    // The loads of a lap wait for L1 or L2, one lap after the other.
    work.chain = [1.0, laps - 1.0, 0.0, steps * f64::from(b.arithmetic + 4 * b.special).max(1.0)];
    // Lanes of a warp halve what is left step by step; other threads exchange their parts, and read all of them.
    let parts = if plan.sharing.is_some_and(|s| s.lanes) { each / 32 } else { each };
    if along.is_some() {
        work.shuffles += 5.0 * warps;
        work.arithmetic += 5.0 * warps;
        work.chain[3] += 5.0 * 6.0;
    }
    if parts > 1 {
        work.barriers += warps;
        work.shared(warps, 4, true);
        work.shared(warps * parts as f64, 4, false);
        work.arithmetic += warps * parts as f64;
        work.overhead += EXCHANGE * warps;
        work.chain[2] += parts as f64;
    }
    work
}
