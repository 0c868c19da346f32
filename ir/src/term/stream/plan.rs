//! A complete schedule of a streaming program: every decision by its name.
use super::{Inlining, Place, Stream};
use crate::term::Schedule;
use serde::{Deserialize, Serialize};

/// A complete schedule of a streaming program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StreamPlan {
    /// Blocks that are inlined.
    pub inlined: Vec<Inlining>,
    /// Parts that each row of a reduction is split into: one kernel reduces the parts, another adds these up (`rfactor`).
    #[serde(default = "whole", skip_serializing_if = "is_whole")]
    pub parts: i64,
    /// Kernels in order; together they have every block that is left, once.
    pub kernels: Vec<KernelPlan>,
}

fn whole() -> i64 {
    1
}

fn is_whole(parts: &i64) -> bool {
    *parts == 1
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum KernelPlan {
    /// A map over all elements.
    Flat(FlatPlan),
    /// Row by row.
    Row(RowPlan),
    /// Tile by tile through shared memory.
    Tile(TilePlan),
    /// One thread per element of the result.
    Plain(PlainPlan),
    /// A contraction by itself.
    Tiled(Box<TiledPlan>),
}

/// The spatial loops of a block, fused, into (blockIdx.x, threadIdx.x); what it reduces over one value after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PlainPlan {
    /// Name of the block.
    pub block: String,
    /// Threads per block.
    pub threads: i64,
    /// Whether it is a nest that is bound in the source, whose statements run in their order.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_order: bool,
}

/// Blocks that are a contraction, under one of its schedules.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TiledPlan {
    /// Names of the blocks: what sums up first, then what is done with the sums.
    pub blocks: Vec<String>,
    /// The contraction's schedule.
    pub plan: Schedule,
}

/// The innermost loop of a block split into (blockIdx.y, unrolled, threadIdx.x, vector); the others, fused, into
/// (blockIdx.x, threadIdx.y).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FlatPlan {
    /// Name of the block.
    pub block: String,
    /// Rows of a block of threads, side by side.
    pub side_by_side: i64,
    /// Unrolled iterations of a thread.
    pub steps: i64,
    /// Threads along a row.
    pub threads: i64,
    /// Elements per access.
    pub vector: i64,
}

/// A buffer and where it is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Held {
    /// Name of the buffer.
    pub buffer: String,
    /// Where.
    pub place: Place,
}

/// Rows split into (blockIdx.x, serial, threadIdx.y); the columns of each block of the kernel into (serial or unrolled,
/// threadIdx.x, vector).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowPlan {
    /// Names of the blocks, in order.
    pub blocks: Vec<String>,
    /// Rows of a block of threads, one after the other.
    pub serial_rows: i64,
    /// Rows of a block of threads, side by side.
    pub side_by_side: i64,
    /// Threads per row.
    pub threads: i64,
    /// Elements per access.
    pub vector: i64,
    /// Where rows are held.
    pub held: Vec<Held>,
    /// For each block: whether its loop over columns is unrolled.
    pub unroll: Vec<bool>,
}

/// A square tile is read along the rows of the source, held in shared memory, and written along the rows of the result.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TilePlan {
    /// Name of the block.
    pub block: String,
    /// Side of the tile.
    pub side: i64,
    /// Elements per access to the source and to the result.
    pub vector: i64,
    /// Threads per block: `side / vector` along a row, the others side by side.
    pub threads: i64,
    /// Elements added to each row of the tile.
    pub pad: i64,
}

impl RowPlan {
    /// Where a buffer is held; global where nothing is decided.
    pub fn place(&self, buffer: &str) -> Place {
        self.held.iter().find(|h| h.buffer == buffer).map_or(Place::Global, |h| h.place)
    }

    /// Rows of a block of threads.
    pub fn rows_per_block(&self) -> i64 {
        self.serial_rows * self.side_by_side
    }
}

impl KernelPlan {
    /// Threads per block.
    pub fn threads(&self) -> i64 {
        match self {
            KernelPlan::Flat(p) => p.threads * p.side_by_side,
            KernelPlan::Row(p) => p.threads * p.side_by_side,
            KernelPlan::Tile(p) => p.threads,
            KernelPlan::Plain(p) => p.threads,
            KernelPlan::Tiled(p) => p.plan.threads().into(),
        }
    }

    /// Whether the blocks of a work are what a kernel of this kind computes.
    pub fn fits(&self, work: &Stream) -> bool {
        let (count, alone) = (work.blocks.len(), work.blocks.len() == 1);
        match self {
            KernelPlan::Flat(_) => alone && work.fits_flat(0),
            KernelPlan::Row(_) => work.fits_row(0, count),
            KernelPlan::Tile(_) => alone && work.transposed(0).is_some(),
            KernelPlan::Plain(_) => alone && work.fits_plain(0),
            KernelPlan::Tiled(_) => work.contraction(0, count).is_some(),
        }
    }

    /// Names of its blocks.
    pub fn blocks(&self) -> Vec<&str> {
        match self {
            KernelPlan::Flat(p) => vec![&p.block],
            KernelPlan::Row(p) => p.blocks.iter().map(String::as_str).collect(),
            KernelPlan::Tile(p) => vec![&p.block],
            KernelPlan::Plain(p) => vec![&p.block],
            KernelPlan::Tiled(p) => p.blocks.iter().map(String::as_str).collect(),
        }
    }

    /// What a thread block covers, for a table.
    pub fn tile_text(&self) -> String {
        match self {
            KernelPlan::Flat(p) => format!("{}x{}", p.side_by_side, p.steps * p.threads * p.vector),
            KernelPlan::Row(p) if p.rows_per_block() == 1 => "1 row".into(),
            KernelPlan::Row(p) => format!("{} rows", p.rows_per_block()),
            KernelPlan::Tile(p) => format!("{0}x{0}", p.side),
            KernelPlan::Plain(p) => format!("{} {}", p.threads, if p.in_order { "in order" } else { "plain" }),
            KernelPlan::Tiled(p) => p.plan.summary().volume(),
        }
    }

    /// The kernel in a line.
    pub fn describe(&self) -> String {
        match self {
            KernelPlan::Flat(p) => format!(
                "{}: over all elements, {}x{} threads, {} unrolled steps, accesses of {}",
                p.block, p.side_by_side, p.threads, p.steps, p.vector
            ),
            KernelPlan::Row(p) => {
                let rows = match (p.serial_rows, p.side_by_side) {
                    (1, 1) => "a row per block".into(),
                    (s, y) => format!("{} rows per block ({y} side by side, {s} in turn)", s * y),
                };
                let held: Vec<String> = p
                    .held
                    .iter()
                    .map(|h| {
                        let place = match h.place {
                            Place::Global => "read again",
                            Place::Shared => "in shared memory",
                            Place::Registers => "in registers",
                        };
                        format!("; {} {place}", h.buffer)
                    })
                    .collect();
                let unrolled: Vec<&str> =
                    p.blocks.iter().zip(&p.unroll).filter(|(_, u)| **u).map(|(b, _)| b.as_str()).collect();
                format!(
                    "{}: {rows}, {} threads per row, accesses of {}{}{}",
                    p.blocks.join(" + "),
                    p.threads,
                    p.vector,
                    held.concat(),
                    if unrolled.is_empty() { String::new() } else { format!("; unrolled: {}", unrolled.join(", ")) }
                )
            }
            KernelPlan::Tile(p) => format!(
                "{0}: tiles of {1}x{1} through shared memory, rows padded by {2}, {3} threads, accesses of {4}",
                p.block, p.side, p.pad, p.threads, p.vector
            ),
            KernelPlan::Plain(p) if p.in_order => {
                format!("{}: its statements in order, {} threads per block", p.block, p.threads)
            }
            KernelPlan::Plain(p) => {
                format!(
                    "{}: a plain kernel, one thread per element of its result, {} threads per block",
                    p.block, p.threads
                )
            }
            KernelPlan::Tiled(p) => format!("{}: {}", p.blocks.join(" + "), p.plan.describe().join("; ")),
        }
    }
}

impl StreamPlan {
    /// The schedule in a few lines for people.
    pub fn describe(&self) -> Vec<String> {
        let inlined: Vec<String> = self
            .inlined
            .iter()
            .map(|i| format!("{}{}", i.block, if i.reverse { " (into its producer)" } else { "" }))
            .collect();
        let mut lines = Vec::new();
        if !inlined.is_empty() {
            lines.push(format!("inlined: {}", inlined.join(", ")));
        }
        if self.parts > 1 {
            lines.push(format!("rows in {} parts, added up by another kernel", self.parts));
        }
        lines.extend(self.kernels.iter().map(KernelPlan::describe));
        lines
    }
}
