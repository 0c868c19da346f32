//! The invariant of a class of streaming schedules: which blocks are left, which of them the kernel has, and what is
//! decided of it.
use super::Point;
use serde::{Deserialize, Serialize};

/// Where a buffer is held while a row (or a block's rows) goes through the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Place {
    /// In global memory: every block reads it anew.
    Global,
    /// In shared memory.
    Shared,
    /// In registers: each thread keeps the elements that it will read.
    Registers,
}

/// Places of the first few buffers of [`super::Stream::held`], packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holds {
    places: u32,
    count: u8,
}

impl Holds {
    /// How many are decided.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether none is decided.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Place of one; global where it is not decided.
    pub fn get(&self, index: usize) -> Place {
        match (self.places >> (2 * index.min(15))) & 3 {
            1 => Place::Shared,
            2 => Place::Registers,
            _ => Place::Global,
        }
    }

    /// One more. At most 15 are kept apart.
    pub fn with(mut self, place: Place) -> Holds {
        let code = match place {
            Place::Global => 0,
            Place::Shared => 1,
            Place::Registers => 2,
        };
        self.places |= code << (2 * u32::from(self.count.min(15)));
        self.count += 1;
        self
    }

    /// All but the last one, which is returned too.
    pub fn without_last(mut self) -> Option<(Holds, Place)> {
        let index = self.len().checked_sub(1)?;
        let place = self.get(index);
        self.places &= !(3 << (2 * index.min(15)));
        self.count -= 1;
        Some((self, place))
    }
}

/// A row kernel, from the outside in; what is not decided is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowState {
    /// Rows of a block (of threads).
    pub per_block: i64,
    /// Rows that a block has at work side by side, one per threadIdx.y.
    pub side_by_side: i64,
    /// Threads per row.
    pub threads: i64,
    /// Elements per access.
    pub vector: i64,
    /// Where buffers are.
    pub holds: Holds,
    /// Blocks whose column loop is decided, counted from the kernel's first.
    pub loops: u8,
}

/// A flat kernel: what is left of its tile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlatState {
    /// Rows of a block, side by side.
    pub side_by_side: i64,
    /// Elements of a row that a block, then a thread covers; 0 before it is decided.
    pub tile: i64,
    /// 0: the loop over blocks along a row comes next, 1: the unrolled one, 2: threads, 3: the vector.
    pub done: u8,
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

/// What is to be decided next of a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// Into how many parts the rows of reductions are split.
    Parts,
    /// What becomes of its block of this number; those before it are kept for its first kernel, which has more where it says so.
    Block(u8, bool),
    /// How all its blocks, which are so many, run as one kernel.
    Kernel(u8),
    /// A row kernel of so many blocks.
    Row(u8, RowState),
    /// A flat kernel.
    Flat(FlatState),
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
