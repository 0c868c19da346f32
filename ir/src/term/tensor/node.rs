//! The tensor-core part of the term language: what a block does. The loops over blocks around it, split-K and the order
//! of blocks are those of every schedule.
//!
//! ```text
//! mma.sync:  block(threads)  ->  store  ->  ring(stages, k)  ->  warps  ->  instructions
//! wgmma:     block(consumers, grid)  ->  store  ->  ring(stages)  ->  consumers  ->  instructions
//! ```
use super::{Mma, Order, Store, TileStore};
use crate::term::{Place, Stage, State, Team};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A decision about a block on tensor cores; the body is what is decided after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TensorNode {
    /// The grid is made of blocks of this many threads, whose warps multiply by `mma.sync`.
    Mma {
        /// Instruction.
        op: Mma,
        /// Threads per block.
        threads: u32,
    },
    /// The grid is made of blocks of a producer and some consumers, four warps each, which multiply by `wgmma`.
    Wgmma {
        /// Groups of four warps that multiply.
        consumers: u32,
        /// They take whole tiles in turn.
        ping_pong: bool,
        /// Blocks that walk over the tiles; `None`: one per tile.
        blocks: Option<u32>,
        /// Tiles along m and n whose blocks form a cluster.
        cluster: [u32; 2],
        /// The blocks share the tiles' steps along k evenly, and a second kernel adds their sums.
        stream_k: bool,
    },
    /// How warps write C.
    Store {
        /// The way.
        store: Store,
        /// Where to: C, or the partial sums.
        to: Place,
    },
    /// How consumers write C.
    StoreTile {
        /// The way.
        store: TileStore,
        /// Where to: C, or the partial sums.
        to: Place,
    },
    /// cache_read of both operands to a ring of tiles in shared memory, filled asynchronously; the loop over k.
    Ring {
        /// Tiles in the ring.
        stages: u32,
        /// Values of k that the loop covers; the last tile may hang over.
        total: i64,
    },
    /// The block's tile is dealt out to warps; fragments are read ahead by one step.
    Warps {
        /// Warps along m and n.
        count: [i64; 2],
        /// Warps of neighbouring numbers lie side by side along n.
        m_outer: bool,
        /// Blocks that are to fit on a multiprocessor at once.
        min_blocks: Option<u32>,
    },
    /// The block's tile is dealt out to its consumers, or each takes the whole of it.
    Consumers {
        /// How many.
        count: u32,
        /// They take whole tiles in turn.
        ping_pong: bool,
    },
}

/// The instructions of a team's tile: a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Matrix {
    /// `mma.sync` of a warp.
    Mma(Order),
    /// `wgmma` of a group of four warps.
    Wgmma {
        /// Blocks of 64 rows go through all of a tile along k one after the other.
        by_rows: bool,
        /// A tile's place in the ring is freed at once.
        eager_release: bool,
    },
}

/// How far the decisions about a block on tensor cores have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TensorStage {
    /// How C is written comes next.
    Store(Kind),
    /// The ring comes next.
    Ring(Kind),
    /// The tile of a step along k, to be dealt out to warps or consumers.
    Deal(Kind),
    /// A warp's or consumer's part of it.
    Multiply(Kind),
}

/// Which instruction a block uses, and how it is made up for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// Warps.
    Mma(Mma),
    /// A producer and consumers.
    Wgmma {
        /// Groups of four warps that multiply.
        consumers: u32,
        /// They take whole tiles in turn.
        ping_pong: bool,
    },
}

impl Kind {
    fn of(stage: Stage) -> Option<(TensorStage, Kind)> {
        let Stage::Tensor(stage) = stage else { return None };
        let (TensorStage::Store(kind)
        | TensorStage::Ring(kind)
        | TensorStage::Deal(kind)
        | TensorStage::Multiply(kind)) = stage;
        Some((stage, kind))
    }
}

/// The state of a leaf: it is one only of the team that executes such instructions.
pub(in crate::term) fn leaf_state(matrix: &Matrix, state: &State) -> Option<State> {
    let (TensorStage::Multiply(kind), _) = Kind::of(state.stage)? else { return None };
    let fits = match (matrix, kind) {
        (Matrix::Mma(_), Kind::Mma(op)) => {
            state.team == Team::Warp(32)
                && state.tile.m % 16 == 0
                && state.tile.n % 16 == 0
                && state.tile.k % i64::from(op.k()) == 0
        }
        (Matrix::Wgmma { .. }, Kind::Wgmma { .. }) => state.team == Team::Warpgroup && state.tile.m % 64 == 0,
        _ => false,
    };
    let shared = |place| matches!(place, Place::Shared(_));
    (fits && shared(state.a) && shared(state.b)).then_some(*state)
}

/// The state of a node over a body, if it may stand there.
pub(in crate::term) fn state_of(node: &TensorNode, b: &State) -> Option<State> {
    let (stage, kind) = Kind::of(b.stage)?;
    let next = |stage: TensorStage| State { stage: Stage::Tensor(stage), ..*b };
    let grid = State { team: Team::Grid, stage: Stage::Blocks { batch: 0, m: false, n: false }, ..*b };
    let in_memory = |place| matches!(place, Place::Global | Place::Workspace);
    // What goes by way of shared memory is C itself.
    let stored = |by_shared: bool, to: Place| match b.c {
        Place::Local => !by_shared && in_memory(to),
        Place::Shared(_) => by_shared && to == Place::Global,
        _ => false,
    };
    match (node, stage, kind) {
        (TensorNode::Mma { op, threads }, TensorStage::Store(_), Kind::Mma(o)) => {
            (*op == o && b.team == Team::Cta(*threads) && in_memory(b.c)).then_some(grid)
        }
        (
            TensorNode::Wgmma { consumers, ping_pong, stream_k, .. },
            TensorStage::Store(_),
            Kind::Wgmma { consumers: c, ping_pong: p },
        ) => {
            let team = Team::Cta((c + 1) * 128);
            let fits = *consumers == c && *ping_pong == p && b.team == team && in_memory(b.c);
            // With stream-K the blocks write partial sums of what is, as a whole, C.
            let c = match (stream_k, b.c) {
                (false, c) => c,
                (true, Place::Workspace) => Place::Global,
                (true, _) => return None,
            };
            fits.then_some(State { c, ..grid })
        }
        (TensorNode::Store { store, to }, TensorStage::Ring(_), Kind::Mma(_)) => {
            stored(*store != Store::Direct, *to).then_some(State { c: *to, ..next(TensorStage::Store(kind)) })
        }
        (TensorNode::StoreTile { store, to }, TensorStage::Ring(_), Kind::Wgmma { .. }) => {
            stored(*store == TileStore::Tma, *to).then_some(State { c: *to, ..next(TensorStage::Store(kind)) })
        }
        (TensorNode::Ring { stages, total }, TensorStage::Deal(_), _) => {
            let shared = |place| matches!(place, Place::Shared(_));
            let fits = (2..=16).contains(stages) && *total >= 1 && shared(b.a) && shared(b.b);
            let state = next(TensorStage::Ring(kind));
            let tile = crate::term::Tile { k: *total, ..b.tile };
            fits.then_some(State { tile, a: Place::Global, b: Place::Global, ..state })
        }
        (TensorNode::Warps { count: [m, n], .. }, TensorStage::Multiply(_), Kind::Mma(_)) => {
            let warps = m.checked_mul(*n).filter(|w| (1..=32).contains(w) && *m >= 1)?;
            let tile = crate::term::Tile { m: b.tile.m.checked_mul(*m)?, n: b.tile.n.checked_mul(*n)?, ..b.tile };
            let team = Team::Cta(u32::try_from(warps * 32).ok()?);
            (b.team == Team::Warp(32)).then_some(State { team, tile, ..next(TensorStage::Deal(kind)) })
        }
        (
            TensorNode::Consumers { count, ping_pong },
            TensorStage::Multiply(_),
            Kind::Wgmma { consumers, ping_pong: p },
        ) => {
            let own = if *ping_pong { 1 } else { i64::from(*count) };
            let tile = crate::term::Tile { m: b.tile.m.checked_mul(own)?, ..b.tile };
            let fits = *count == consumers && *ping_pong == p && b.team == Team::Warpgroup;
            fits.then_some(State { team: Team::Cta((count + 1) * 128), tile, ..next(TensorStage::Deal(kind)) })
        }
        _ => None,
    }
}

impl fmt::Display for TensorNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorNode::Mma { op, threads } => write!(f, "cta:{threads}:mma:{op:?}"),
            TensorNode::Wgmma { consumers, ping_pong, blocks, cluster, stream_k } => {
                write!(f, "cta:wgmma:{consumers}{}", if *ping_pong { ":in-turn" } else { "" })?;
                if *cluster != [1, 1] {
                    write!(f, ":cluster:{}x{}", cluster[0], cluster[1])?;
                }
                f.write_str(if *stream_k { ":stream-k" } else { "" })?;
                blocks.map_or(Ok(()), |b| write!(f, ":persistent:{b}"))
            }
            TensorNode::Store { store, .. } => write!(f, "store:{store:?}"),
            TensorNode::StoreTile { store, .. } => write!(f, "store:{store:?}"),
            TensorNode::Ring { stages, .. } => write!(f, "ring:{stages}"),
            TensorNode::Warps { count: [m, n], m_outer, min_blocks } => {
                write!(f, "warps:{m}x{n}{}", if *m_outer { "" } else { ":n-outer" })?;
                min_blocks.map_or(Ok(()), |b| write!(f, ":min-blocks:{b}"))
            }
            TensorNode::Consumers { count, .. } => write!(f, "consumers:{count}"),
        }
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Matrix::Mma(order) => {
                f.write_str(if order.columns { "do:mma:columns" } else { "do:mma:rows" })?;
                f.write_str(if order.serpentine { ":serpentine" } else { "" })
            }
            Matrix::Wgmma { by_rows, eager_release } => {
                f.write_str(if *by_rows { "do:wgmma:rows" } else { "do:wgmma:steps" })?;
                f.write_str(if *eager_release { ":eager" } else { "" })
            }
        }
    }
}
