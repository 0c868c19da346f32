//! The invariant of an e-class: who executes its terms, on which tile, from and to which memory, and which loops that
//! team has still to place. Two terms of one class agree in all of it; a merge of classes that differ is an error.
use super::{Axis, Pipe, Side, StagedLayout};
use serde::{Deserialize, Serialize};

/// Who executes a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Team {
    /// All blocks of a launch.
    Grid,
    /// A block, or what is left of it after some warp loops: this many threads.
    Cta(u32),
    /// Four warps that multiply together.
    Warpgroup,
    /// A warp, or what is left of it after some lane loops: this many lanes.
    Warp(u32),
    /// One thread.
    Thread,
}

/// Where an operand (or the result) is for the statement below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Place {
    /// In its own buffer.
    Global,
    /// Partial sums, one slice per part of the reduction (split-K).
    Workspace,
    /// In a tile in shared memory. Where its rows run along the spatial axis it may as well be a strip: neither the
    /// length of a row nor what an access of a warp touches depends on how many rows there are.
    Shared(StagedLayout),
    /// In a strip in shared memory whose rows run along k and are as good as ones of this many k values
    /// ([`Place::strip`]). Of C: box by box of so many columns.
    Strip(StagedLayout, i64),
    /// In registers.
    Local,
}

impl Place {
    /// The place of a strip of so many k values. The banks of shared memory repeat after 128 bytes, so rows whose lengths
    /// differ by a multiple of 128 elements cost the same to read: one length stands for all of them. It is 128 at least,
    /// lest neighbouring rows overlap.
    pub fn strip(layout: StagedLayout, k: i64) -> Place {
        match layout.k_major {
            true => Place::Shared(layout),
            false if k < 128 => Place::Strip(layout, k),
            false => Place::Strip(layout, 128 + k % 128),
        }
    }

    /// The layout, where the place is shared memory.
    pub fn layout(self) -> Option<StagedLayout> {
        match self {
            Place::Shared(layout) | Place::Strip(layout, _) => Some(layout),
            _ => None,
        }
    }
}

/// Which operands stand in shared memory as whole strips before the k loop begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Strips {
    /// A does.
    pub a: bool,
    /// B does.
    pub b: bool,
    /// k values of a strip; 0 where there is none.
    pub k: i64,
    /// The last tile along k reaches into the next part of k.
    pub cut: bool,
}

impl Strips {
    /// Whether an operand does.
    pub fn has(self, side: Side) -> bool {
        match side {
            Side::A => self.a,
            Side::B => self.b,
        }
    }
}

/// How far the team has come in the one canonical order of its decisions; it says which nodes may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stage {
    /// The whole problem: one kernel, or split along k.
    Root,
    /// Blocks: this many batch axes are still unbound, then m and n where open.
    Blocks {
        /// Unbound batch axes.
        batch: u8,
        /// m is still unbound.
        m: bool,
        /// n is still unbound.
        n: bool,
    },
    /// Inside a grouped rasterization: the grouped axis is m (else n).
    Grouped {
        /// Whether m is grouped.
        m: bool,
        /// Whether the loop over the other axis is already placed around the group.
        crossed: bool,
    },
    /// A block begins: accumulators may be made.
    Accumulators,
    /// Accumulators exist and are not yet cleared.
    Clear,
    /// This many outer reduction loops are still to come, then strips of operands, then the k loop.
    Reduce(u8),
    /// Inside the k loop: operands that are no strips may be staged; the loop's overlap decides the number of buffers.
    Staging {
        /// Overlap of the k loop.
        pipe: Pipe,
        /// Operands that are strips.
        strips: Strips,
    },
    /// Virtual threads of the block along m, then n.
    CtaVthread {
        /// The m loop is still to come (else only n).
        m: bool,
    },
    /// Warp loops still to come.
    Warps {
        /// Along m.
        m: bool,
        /// Along n.
        n: bool,
    },
    /// Virtual threads of the warp along m, then n.
    WarpVthread {
        /// The m loop is still to come (else only n).
        m: bool,
    },
    /// Lane loops still to come.
    Lanes {
        /// Along m.
        m: bool,
        /// Along n.
        n: bool,
    },
    /// A thread: the inner k loop is still to come.
    Steps,
    /// A thread, one step of k: operands may be read to registers, A first.
    Fragments {
        /// A may still be read.
        a: bool,
    },
    /// Register loops still to come.
    Registers {
        /// Along m.
        m: bool,
        /// Along n.
        n: bool,
    },
    /// The run of neighbouring results that one store takes.
    Piece,
    /// The statement itself.
    Statement,
    /// A cooperative copy: its two loops are not yet fused. `asynchronous` where the k loop asks for cp.async.
    Copy {
        /// Which operand.
        side: Side,
        /// Filled by cp.async.
        asynchronous: bool,
    },
    /// The fused copy loop, to be split; `tile.k` is then 1 and `tile.m` the fused length.
    FusedCopy {
        /// Which operand.
        side: Side,
        /// Filled by cp.async.
        asynchronous: bool,
        /// Neighbouring threads run along the contiguous dimension.
        coalesced: bool,
        /// 0: the serial loop comes next, 1: the thread loop, 2: the vector loop, 3: the copy itself.
        done: u8,
    },
    /// Write-back of the accumulators, by the threads that hold them.
    Drain,
    /// The second kernel of a split reduction: adds this many partial sums.
    Finish(i64),
    /// A block on tensor cores.
    Tensor(super::tensor::TensorStage),
}

/// Extents that a term covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Tile {
    pub m: i64,
    pub n: i64,
    pub k: i64,
}

impl Tile {
    /// Extent along an axis; batch and outer reduction axes are not part of a tile.
    pub fn get(&self, axis: Axis) -> i64 {
        match axis {
            Axis::M => self.m,
            Axis::N => self.n,
            Axis::K => self.k,
            Axis::Batch(_) | Axis::Outer(_) => 1,
        }
    }

    /// The same tile with another extent along an axis.
    pub fn with(mut self, axis: Axis, extent: i64) -> Tile {
        match axis {
            Axis::M => self.m = extent,
            Axis::N => self.n = extent,
            Axis::K => self.k = extent,
            Axis::Batch(_) | Axis::Outer(_) => {}
        }
        self
    }
}

/// The invariant of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct State {
    /// Who executes it.
    pub team: Team,
    /// What is left to decide.
    pub stage: Stage,
    /// What it covers.
    pub tile: Tile,
    /// Where A is.
    pub a: Place,
    /// Where B is.
    pub b: Place,
    /// Where the result is.
    pub c: Place,
    /// A and B, m and n have changed places: what is computed is `C^T = B^T A^T`. Only blocks on tensor cores do so.
    pub swapped: bool,
}

impl State {
    /// Place of an operand.
    pub fn place(&self, side: Side) -> Place {
        match side {
            Side::A => self.a,
            Side::B => self.b,
        }
    }

    /// The state of the transposed product; twice, it is the state again.
    pub fn transposed(self) -> State {
        let Tile { m, n, k } = self.tile;
        State { tile: Tile { m: n, n: m, k }, a: self.b, b: self.a, swapped: !self.swapped, ..self }
    }

    /// The tile in terms of the product, whichever way it is computed.
    pub fn product_tile(&self) -> Tile {
        if self.swapped {
            self.transposed().tile
        } else {
            self.tile
        }
    }

    /// The same state with an operand elsewhere.
    pub fn with_place(mut self, side: Side, place: Place) -> State {
        match side {
            Side::A => self.a = place,
            Side::B => self.b = place,
        }
        self
    }
}
