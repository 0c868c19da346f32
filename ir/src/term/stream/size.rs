//! Sizes that follow from a plan and its program: blocks of threads, shared memory, bytes and operations of the program.
use super::{
    Access, AccessForm, BlockKind, KernelPlan, RowPlace, Stream, StreamBlock, StreamBuffer, StreamPlan, Streams,
};
use crate::machine::SECTOR;
use crate::term::{Contraction, Schedule};

fn up(x: i64, y: i64) -> i64 {
    (x + y - 1) / y.max(1)
}

impl KernelPlan {
    /// Numbers of its blocks in a stream, from and to; `None` where the stream does not have them.
    pub fn range(&self, stream: &Stream) -> Option<(usize, usize)> {
        let names = self.blocks();
        let from = stream.blocks.iter().position(|b| Some(b.name.as_str()) == names.first().copied())?;
        let to = from + names.len();
        let same = stream.blocks.get(from..to)?.iter().zip(&names).all(|(b, name)| b.name == *name);
        same.then_some((from, to))
    }

    /// The contraction that it is by itself, and its schedule; `None` for other kernels, and where the stream has no such blocks.
    pub fn contraction<'p, 's>(&'p self, stream: &'s Stream) -> Option<(&'p Schedule, &'s Contraction)> {
        let KernelPlan::Tiled(tiled) = self else { return None };
        let (from, to) = self.range(stream)?;
        Some((&tiled.plan, stream.contraction(from, to)?))
    }

    /// Blocks of threads.
    pub fn thread_blocks(&self, stream: &Stream) -> i64 {
        let Some((from, to)) = self.range(stream) else { return 0 };
        let block = &stream.blocks[from];
        match self {
            KernelPlan::Row(p) => stream.row_shape(from, to).map_or(0, |s| s.rows / p.rows_per_block().max(1)),
            KernelPlan::Flat(p) => {
                let columns = block.iters.last().map_or(1, |i| i.extent);
                let rows = block.instances() / columns.max(1);
                rows / p.side_by_side.max(1) * up(columns, p.steps * p.threads * p.vector)
            }
            KernelPlan::Tile(p) => stream.transposed(from).map_or(0, |(read, write, _)| {
                let (a, b) = (block.iters[read].extent, block.iters[write].extent);
                up(a, p.side) * up(b, p.side) * (block.instances() / a / b)
            }),
            KernelPlan::Plain(p) => {
                let block = stream.blocks[from..to].iter().find(|b| b.name == p.block);
                block.map_or(0, |b| up(b.results(), p.results()))
            }
            KernelPlan::Tiled(p) => stream.contraction(from, to).map_or(0, |c| p.plan.block_count(c)),
        }
    }

    /// Shared memory of a block for what it holds, bytes; what a reduction over several warps exchanges is not counted.
    pub fn shared_bytes(&self, stream: &Stream) -> i64 {
        let Some((from, to)) = self.range(stream) else { return 0 };
        match self {
            KernelPlan::Row(p) => {
                let columns = stream.row_shape(from, to).map_or(0, |s| s.columns);
                let held = stream.held(from, to, p.rows_per_block());
                let in_shared = |b: &usize| p.place(&stream.buffers[*b].name) == RowPlace::Shared;
                held.iter()
                    .filter(|(buffer, _)| in_shared(buffer))
                    .map(|(buffer, form)| {
                        let side_by_side = if *form == AccessForm::PerColumn { 1 } else { p.side_by_side };
                        columns * i64::from(stream.buffers[*buffer].dtype.bytes()) * side_by_side
                    })
                    .sum()
            }
            KernelPlan::Flat(_) | KernelPlan::Plain(_) => 0,
            KernelPlan::Tiled(_) => self.contraction(stream).map_or(0, |(plan, c)| plan.shared_bytes(c)),
            KernelPlan::Tile(p) => stream.transposed(from).map_or(0, |(_, _, read)| {
                let buffer = stream.blocks[from].reads[read].buffer;
                p.side * (p.side + p.pad) * i64::from(stream.buffers[buffer].dtype.bytes())
            }),
        }
    }
}

/// Blocks of threads of the largest kernel; 0 where the plan is of another program.
pub fn stream_blocks(plan: &StreamPlan, problem: &Streams) -> i64 {
    let Some(stream) = problem.of_plan(plan) else { return 0 };
    plan.kernels.iter().map(|k| k.thread_blocks(&stream)).max().unwrap_or(0)
}

/// Shared memory of a block of the kernel that takes the most, bytes; 0 where the plan is of another program.
pub fn stream_shared_bytes(plan: &StreamPlan, problem: &Streams) -> i64 {
    let Some(stream) = problem.of_plan(plan) else { return 0 };
    plan.kernels.iter().map(|k| k.shared_bytes(&stream)).max().unwrap_or(0)
}

impl Stream {
    /// Bytes that blocks read of a buffer, each once: all of it, but where an index is unknown no more than a sector per instance, or
    /// an element where neighbours are read in a row. Of a nest in its own order nothing is known but the buffer's size.
    pub fn read_bytes(&self, blocks: &[StreamBlock], buffer: usize) -> f64 {
        let element = f64::from(self.buffers[buffer].dtype.bytes());
        let of = |b: &StreamBlock, access: &Access| match (access.known, access.dims.last()) {
            (true, _) => f64::INFINITY,
            _ if b.kind == BlockKind::Bound => f64::INFINITY,
            (false, Some(Some(_))) => b.instances() as f64 * element,
            (false, _) => b.instances() as f64 * SECTOR as f64,
        };
        let accesses = blocks.iter().flat_map(|b| b.loads().map(move |access| (b, access)));
        let most: f64 = accesses.filter(|(_, access)| access.buffer == buffer).map(|(b, access)| of(b, access)).sum();
        most.min(self.buffers[buffer].bytes() as f64)
    }
}

impl Streams {
    /// Bytes of what is accessed of the parameters: what must pass DRAM at least.
    pub fn least_bytes(&self) -> f64 {
        let whole = self.whole();
        let of = |(number, buffer): (usize, &StreamBuffer)| match whole.made_in(number, 0, whole.blocks.len()) {
            true => buffer.bytes() as f64,
            false => whole.read_bytes(&whole.blocks, number),
        };
        whole.buffers.iter().enumerate().filter(|(_, b)| b.param).map(of).sum()
    }

    /// Arithmetic of the source: what each instance computes, and for a reduction the sum (which is among it).
    pub fn operations(&self) -> f64 {
        self.whole()
            .blocks
            .iter()
            .map(|b| {
                b.instances() as f64
                    * f64::from((b.arithmetic + b.special + b.per_row[0] + b.per_row[1]).max(least(b.kind)))
            })
            .sum()
    }
}

/// A reduction does something with each element, even where its expression shows no operation.
fn least(kind: BlockKind) -> u32 {
    u32::from(kind == BlockKind::Reduce)
}
