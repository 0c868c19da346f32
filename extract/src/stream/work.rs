//! Counts of what the kernels of a streaming plan do. Sectors of global memory equal the simulator's, by a test; what
//! registers and compilers decide (arithmetic, address computation) is estimated.
use super::accesses::{rows, Places, ShortRows, Touched};
use super::counts::{distinct_rows, starts, up, Edge, Kept, KernelWork, KEPT, LEAVE};
use super::row::Rows;
use super::{plain, tile};
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
            KernelPlan::Plain(p) => plain::work(p, stream, &stream.blocks[from..to]),
            // Its work is counted with the contraction.
            KernelPlan::Tiled(_) => KernelWork::default(),
        };
        self.passes(&mut work);
        work
    }

    /// No less work than a plain kernel of these blocks has.
    pub fn least(&self, plan: &PlainPlan, stream: &Stream) -> KernelWork {
        let (from, to) = self.range;
        let mut work = plain::least(plan, stream, &stream.blocks[from..to]);
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
