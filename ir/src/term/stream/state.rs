//! The invariant of a class of streaming schedules: which blocks are left, which of them the kernel has, and what is
//! decided of it.
use serde::{Deserialize, Serialize};

/// Where a buffer is held while a row (or a block's rows) goes through the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RowPlace {
    /// In global memory: every block reads it anew.
    #[default]
    Global,
    /// In shared memory.
    Shared,
    /// In registers: each thread keeps the elements that it will read.
    Registers,
}

/// Places of the buffers that a row kernel holds, packed, by the order in which its blocks come to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Places(u128);

impl Places {
    /// How many are told apart.
    pub const MOST: usize = 64;

    /// Place of one; global where none is given.
    pub fn get(self, index: usize) -> RowPlace {
        match (self.0 >> (2 * index)) & 3 {
            1 => RowPlace::Shared,
            2 => RowPlace::Registers,
            _ => RowPlace::Global,
        }
    }

    /// With one of them in a place.
    pub fn with(self, index: usize, place: RowPlace) -> Places {
        let code = match place {
            RowPlace::Global => 0,
            RowPlace::Shared => 1,
            RowPlace::Registers => 2,
        };
        Places(self.0 & !(3 << (2 * index)) | code << (2 * index))
    }
}

/// How often a thread goes along a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Laps {
    /// Once: there is no loop.
    #[default]
    Once,
    /// So few times that the loop may be unrolled.
    Few,
    /// More often.
    Many,
}

/// What is left of a row kernel whose rows and columns have threads: block by block, where a row is held that it is the first to
/// access, and whether its loop is unrolled. It knows what is left to choose, and where the rows are that blocks to come access;
/// not what is decided of others, nor which threads there are. So teams and places that leave the same choices meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainState {
    /// Blocks whose loop is decided.
    pub loops: u8,
    /// Buffers of [`super::Stream::rows_held`] whose place is decided.
    pub decided: u8,
    /// Where those are that blocks to come access.
    pub live: Places,
    /// How often a thread goes along a row.
    pub laps: Laps,
    /// Whether a block has several rows; where values per column are read.
    pub several: bool,
    /// Whether rows side by side keep some row that is not decided yet out of shared memory.
    pub apart: bool,
    /// Registers that the rows which one block finds held may take, in those of one element of every access of a thread.
    pub registers: Room,
    /// Shared memory that is left, bytes per column.
    pub shared: Room,
    /// Bytes per column of shared memory that a row of one-byte elements takes.
    pub rows: i64,
}

/// What is left of something, as far as it matters for what may still be taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Room {
    /// More than can be taken.
    #[default]
    Enough,
    /// So much. Negative where a test has removed the limit.
    Left(i64),
}

impl Room {
    /// Whether so much may be taken of it, and the most that there is.
    pub fn most(self) -> i64 {
        match self {
            Room::Enough => i64::MAX,
            Room::Left(left) => left,
        }
    }

    /// What is left after so much of it was taken.
    pub fn less(self, taken: i64) -> Room {
        match self {
            Room::Enough => Room::Enough,
            Room::Left(left) => Room::Left(left.saturating_sub(taken)),
        }
    }

    /// The same for whoever may take any of these: the largest sum of some of them that it has room for.
    pub fn settled(self, takers: &[i64]) -> Room {
        let Room::Left(left) = self else { return self };
        if takers.iter().fold(0, |all: i64, one| all.saturating_add(*one)) <= left {
            return Room::Enough;
        }
        let mut sums = std::collections::BTreeSet::from([0]);
        for taken in takers {
            let more: Vec<i64> = sums.iter().map(|sum| sum + taken).take_while(|sum| *sum <= left).collect();
            sums.extend(more);
        }
        Room::Left(sums.last().copied().filter(|sum| *sum <= left).unwrap_or(-1))
    }
}

/// A tile kernel; what is not decided is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TileState {
    /// Side of the square tile.
    pub side: i64,
    /// Elements per access, on both sides.
    pub vector: i64,
    /// Threads per block.
    pub threads: i64,
}

/// Where one is in a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point {
    /// Number of the work.
    pub work: u16,
    /// Its first blocks, which are kept for its first kernel; the next is decided about.
    pub kept: u8,
    /// Whether the kernel has more blocks than those, since a block was inlined into what comes.
    pub open: bool,
}

impl Point {
    /// Where a work begins.
    pub fn of(work: usize) -> Point {
        Point { work: work as u16, kept: 0, open: false }
    }

    /// The same, with the next block kept, too.
    pub fn with_next(self) -> Point {
        Point { kept: self.kept + 1, open: false, ..self }
    }
}

/// What is to be decided next of a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// Into how many parts the rows of reductions are split.
    Parts,
    /// What becomes of its block of this number; those before it are kept for its first kernel, which has more where it says so.
    Block(u8, bool),
    /// How all its blocks, which are so many, run as one kernel.
    Kernel(u8),
    /// A row kernel of so many blocks: how many of so many rows of a block are side by side.
    Rows(u8, i64),
    /// The same: threads of a row, of so many side by side; whether a block has several, where that matters.
    Team(u8, i64, bool),
    /// The same, and what is left of it once rows and columns have threads.
    Chain(u8, ChainState),
    /// A flat kernel of so many blocks whose rows and columns have threads: what each of them does. How many threads there are along a row,
    /// where that keeps anything out; 0 otherwise.
    Flat(u8, i64),
    /// A tile kernel.
    Tile(TileState),
}

/// The invariant of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamState {
    /// Number of the work.
    pub work: u16,
    /// What comes next.
    pub step: Step,
}

impl StreamState {
    /// The state of a point in a work.
    pub fn at(point: Point) -> StreamState {
        StreamState { work: point.work, step: Step::Block(point.kept, point.open) }
    }

    /// The point in a work that it is, if it is one.
    pub fn point(&self) -> Option<Point> {
        match self.step {
            Step::Block(kept, open) => Some(Point { work: self.work, kept, open }),
            _ => None,
        }
    }
}
