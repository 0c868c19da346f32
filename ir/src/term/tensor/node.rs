//! The tensor-core part of the term language: what a block does. The loops over blocks around it, split-K and the order
//! of blocks are those of every schedule.
//!
//! ```text
//! either may stand below `swap`: the block of the transposed product
//! mma.sync:  block  ->  store  ->  ring(stages, k, slack)  ->  warps(count, sets)  ->  A: layout (copies, when, loads)
//!                                                                              ->  B: the same
//!                                                                              ->  loop, order of instructions
//! wgmma, tcgen05: block(consumers, grid)  ->  store  ->  ring(stages)  ->  consumers  ->  instructions
//! ```
use super::{Consumers, CopyOrder, Mma, Order, Store, TensorInstruction, TensorStage, TileLayout, TileStore};
use crate::term::{Place, Side, Stage, State, Team, Tile};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A decision about a block on tensor cores; the body is what is decided after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TensorNode {
    /// The block computes a tile of the transposed product `C^T = B^T A^T`: below, A and B, m and n have changed places.
    Swap,
    /// The grid is made of blocks whose warps multiply by `mma.sync` or `wmma`; how many is decided when the tile is dealt out.
    Mma {
        /// Instruction.
        op: Mma,
    },
    /// The grid is made of blocks of some consumers, four warps each, which multiply by `wgmma` or `tcgen05`, and a producer or none.
    Wgmma {
        /// Who multiplies.
        team: Consumers,
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
        /// Tiles that are waited for though they might still be under way.
        slack: u32,
        /// Where the sums go from the team that holds them.
        c: Place,
    },
    /// The block's tile is dealt out to warps.
    Warps {
        /// Warps along m and n.
        count: [i64; 2],
        /// Sets of fragments of A and B.
        sets: [u32; 2],
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

/// The loop over k of a block's warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MmaLoop {
    /// Order of a warp's instructions.
    pub order: Order,
    /// A loop of single tiles.
    pub rolled: bool,
    /// Warps of neighbouring numbers lie side by side along n.
    pub m_outer: bool,
}

/// The instructions of a team's tile: a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Matrix {
    /// `mma.sync` of a warp.
    Mma(MmaLoop),
    /// The copies of an operand's tile.
    Copy {
        /// Most bytes of one.
        bytes: u32,
        /// Which chunks neighbouring threads copy.
        order: CopyOrder,
    },
    /// When and how copies are started.
    Issue {
        /// A loop, which computes addresses anew.
        rolled: bool,
        /// Step along k.
        step: u32,
        /// Bytes that L2 is asked to fetch.
        prefetch: u32,
    },
    /// The loads of an operand's fragments.
    Load {
        /// Matrices that an `ldmatrix` loads.
        matrices: u32,
    },
    /// `wgmma` of a group of four warps, or `tcgen05` for it.
    Wgmma {
        /// Blocks of rows go through all of a tile along k one after the other.
        by_rows: bool,
        /// A tile's place in the ring is freed at once.
        eager_release: bool,
        /// Each warp says that it has been read.
        arrive_per_warp: bool,
    },
}

/// The state of a leaf: it is one only of the team that executes such instructions.
pub(in crate::term) fn leaf_state(matrix: &Matrix, state: &State) -> Option<State> {
    let Stage::Tensor(stage) = state.stage else { return None };
    let in_shared = |place| matches!(place, Place::Shared(_));
    let block = matches!(state.team, Team::Cta(_));
    let fits = match (matrix, stage) {
        (Matrix::Mma(way), TensorStage::Warp { op, grid, rolls }) => {
            state.team == Team::Warp(32)
                && state.tile.m % op.block()[0] == 0
                && state.tile.n % op.block()[1] == 0
                && state.tile.k % i64::from(op.k()) == 0
                && (rolls || !way.rolled)
                && (grid || way.m_outer)
        }
        (Matrix::Copy { bytes, .. }, TensorStage::Copy(..)) => block && matches!(bytes, 4 | 8 | 16),
        (Matrix::Issue { rolled, step, prefetch }, TensorStage::Issue { op, several, unrolls, asynchronous, .. }) => {
            (asynchronous || *prefetch == 0)
                && (if *rolled { several } else { unrolls })
                && super::operand::steps(op, state.tile.k).contains(step)
        }
        (Matrix::Load { matrices }, TensorStage::Load(..)) => {
            state.team == Team::Warp(32) && matches!(matrices, 1 | 2 | 4)
        }
        (Matrix::Wgmma { .. }, TensorStage::Multiply(TensorInstruction::Wgmma(team))) => {
            state.team == Team::Warpgroup
                && state.tile.m % team.op.rows() == 0
                && in_shared(state.a)
                && in_shared(state.b)
        }
        _ => false,
    };
    fits.then_some(*state)
}

/// The state of a tile that is dealt out to warps, from the ways of A and B and a warp's part.
pub(in crate::term) fn dealt_state(node: &TensorNode, [a, b, warp]: [&State; 3]) -> Option<State> {
    let TensorNode::Warps { count: [m, n], .. } = node else { return None };
    let Stage::Tensor(TensorStage::Warp { op, grid, .. }) = warp.stage else { return None };
    let room = matches!(a.stage, Stage::Tensor(TensorStage::Operand { room: true, .. }));
    let warps = m.checked_mul(*n).filter(|w| (1..=32).contains(w) && *m >= 1)?;
    let team = Team::Cta(u32::try_from(warps * 32).ok()?);
    let tile = Tile { m: warp.tile.m.checked_mul(*m)?, n: warp.tile.n.checked_mul(*n)?, k: warp.tile.k };
    let of = |side, extent, own| State {
        team,
        stage: Stage::Tensor(TensorStage::Operand { op, side, room }),
        tile: Tile { m: extent, n: own, k: tile.k },
        ..*warp
    };
    let fits = warp.team == Team::Warp(32)
        && grid == (*m > 1 && *n > 1)
        && *a == of(Side::A, tile.m, warp.tile.m)
        && *b == of(Side::B, tile.n, warp.tile.n);
    let stage = Stage::Tensor(TensorStage::Deal { kind: TensorInstruction::Mma(op), room });
    fits.then_some(State { team: Team::Grid, stage, tile, ..*warp })
}

/// The state of an operand's way, from its copies, their time, and the loads of fragments; rows of `mma.sync`'s tiles are
/// padded where there is room for that.
pub(in crate::term) fn operand_state(
    (side, room): (Side, bool),
    layout: TileLayout,
    [copy, issue, load]: [&State; 3],
) -> Option<State> {
    let Stage::Tensor(TensorStage::Copy(op, s, l)) = copy.stage else { return None };
    let fits = s == side
        && l == layout
        && (room || layout != TileLayout::Padded || op.wmma().is_some())
        && load.stage == Stage::Tensor(TensorStage::Load(op, side, layout))
        && matches!(issue.stage, Stage::Tensor(TensorStage::Issue { op: o, side: s, .. }) if o == op && s == side)
        && issue.tile.k == copy.tile.k
        && load.tile.k == copy.tile.k
        && copy.tile.m % load.tile.m.max(1) == 0;
    let tile = Tile { n: load.tile.m, ..copy.tile };
    fits.then_some(State { stage: Stage::Tensor(TensorStage::Operand { op, side, room }), tile, ..*copy })
}

/// The state of a node over a body, if it may stand there.
pub(in crate::term) fn state_of(node: &TensorNode, b: &State) -> Option<State> {
    if *node == TensorNode::Swap {
        let begins = b.stage == Stage::Blocks { batch: 0, m: false, n: false } && b.team == Team::Grid && b.swapped;
        return begins.then(|| b.transposed());
    }
    let Stage::Tensor(stage) = b.stage else { return None };
    let kind = stage.kind();
    let next = |stage: TensorStage| State { stage: Stage::Tensor(stage), ..*b };
    let grid = State { team: Team::Grid, stage: Stage::Blocks { batch: 0, m: false, n: false }, ..*b };
    let in_memory = |place| matches!(place, Place::Global | Place::Workspace);
    // What goes by way of shared memory is C itself.
    let stored = |by_shared: bool, to: Place| match b.c {
        Place::Local => !by_shared && in_memory(to),
        Place::Shared(_) | Place::Strip(..) => by_shared && to == Place::Global,
        _ => false,
    };
    match (node, stage, kind) {
        (TensorNode::Mma { op }, TensorStage::Store(_), TensorInstruction::Mma(o)) => {
            (*op == o && b.team == Team::Grid && in_memory(b.c)).then_some(grid)
        }
        (TensorNode::Wgmma { team, stream_k, .. }, TensorStage::Store(_), TensorInstruction::Wgmma(own)) => {
            let fits = *team == own && b.team == Team::Cta(own.threads()) && in_memory(b.c);
            // With stream-K the blocks write partial sums of what is, as a whole, C.
            let c = match (stream_k, b.c) {
                (false, c) => c,
                (true, Place::Workspace) => Place::Global,
                (true, _) => return None,
            };
            fits.then_some(State { c, ..grid })
        }
        (TensorNode::Store { store, to }, TensorStage::Ring(_), TensorInstruction::Mma(_)) => {
            stored(*store != Store::Direct, *to).then_some(State { c: *to, ..next(TensorStage::Store(kind)) })
        }
        (TensorNode::StoreTile { store, to }, TensorStage::Ring(_), TensorInstruction::Wgmma(_)) => {
            let fits = TileStore::of_place(b.c) == *store && stored(*store != TileStore::Direct, *to);
            fits.then_some(State { c: *to, ..next(TensorStage::Store(kind)) })
        }
        (TensorNode::Ring { stages, total, slack, c }, TensorStage::Deal { .. }, _) => {
            let shared = |place| matches!(place, Place::Shared(_));
            let whole = (2..=16).contains(stages) && *total >= 1 && *slack <= stages - 2;
            // Warps' sums are in registers; whether they go from there by way of shared memory is the ring's matter.
            let fits = match kind {
                TensorInstruction::Mma(_) => b.c == Place::Local && !in_memory(*c),
                TensorInstruction::Wgmma(_) => b.c == *c && *slack == 0 && shared(b.a) && shared(b.b),
            };
            let state = next(TensorStage::Ring(kind));
            let tile = Tile { k: *total, ..b.tile };
            (whole && fits).then_some(State { tile, a: Place::Global, b: Place::Global, c: *c, ..state })
        }
        (TensorNode::Consumers { count, ping_pong }, TensorStage::Multiply(_), TensorInstruction::Wgmma(team)) => {
            let tile = Tile { m: b.tile.m.checked_mul(team.at_tile())?, ..b.tile };
            let fits = *count == team.count && *ping_pong == team.ping_pong && b.team == Team::Warpgroup;
            let stage = TensorStage::Deal { kind, room: false };
            fits.then_some(State { team: Team::Cta(team.threads()), tile, ..next(stage) })
        }
        _ => None,
    }
}

impl fmt::Display for TensorNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorNode::Swap => f.write_str("swap"),
            TensorNode::Mma { op: Mma::Wmma(op) } => write!(f, "cta:wmma:{:?}:{:?}", op.shape, op.operand),
            TensorNode::Mma { op } => write!(f, "cta:mma:{op:?}"),
            TensorNode::Wgmma { team: Consumers { op, count, ping_pong, by_threads }, blocks, cluster, stream_k } => {
                write!(f, "cta:{op}:{count}{}", if *ping_pong { ":in-turn" } else { "" })?;
                f.write_str(if *by_threads { ":by-threads" } else { "" })?;
                if *cluster != [1, 1] {
                    write!(f, ":cluster:{}x{}", cluster[0], cluster[1])?;
                }
                f.write_str(if *stream_k { ":stream-k" } else { "" })?;
                blocks.map_or(Ok(()), |b| write!(f, ":persistent:{b}"))
            }
            TensorNode::Store { store, .. } => write!(f, "store:{store:?}"),
            TensorNode::StoreTile { store, .. } => write!(f, "store:{store:?}"),
            TensorNode::Ring { stages, slack: 0, .. } => write!(f, "ring:{stages}"),
            TensorNode::Ring { stages, slack, .. } => write!(f, "ring:{stages}:slack:{slack}"),
            TensorNode::Warps { count: [m, n], sets: [a, b], min_blocks } => {
                write!(f, "warps:{m}x{n}:sets:{a}:{b}")?;
                min_blocks.map_or(Ok(()), |b| write!(f, ":min-blocks:{b}"))
            }
            TensorNode::Consumers { count, .. } => write!(f, "consumers:{count}"),
        }
    }
}

impl Matrix {
    /// The same, a place in the ring freed by one thread of a consumer.
    pub fn arriving_once(self) -> Matrix {
        match self {
            Matrix::Wgmma { by_rows, eager_release, .. } => {
                Matrix::Wgmma { by_rows, eager_release, arrive_per_warp: false }
            }
            other => other,
        }
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Matrix::Copy { bytes, order } => write!(f, "copy:{bytes}:{order:?}"),
            Matrix::Issue { rolled, step, prefetch } => {
                write!(f, "at:{step}{}", if *rolled { ":rolled" } else { "" })?;
                if *prefetch > 0 {
                    write!(f, ":l2:{prefetch}")?;
                }
                Ok(())
            }
            Matrix::Load { matrices } => write!(f, "ldmatrix:x{matrices}"),
            Matrix::Mma(MmaLoop { order, rolled, m_outer }) => {
                f.write_str(if *rolled { "rolled:" } else { "" })?;
                f.write_str(if *m_outer { "" } else { "n-outer:" })?;
                f.write_str(if order.pairs { "pairs:" } else { "" })?;
                f.write_str(if order.descending { "k-down:" } else { "" })?;
                f.write_str(if order.columns { "do:mma:columns" } else { "do:mma:rows" })?;
                f.write_str(if order.serpentine { ":serpentine" } else { "" })
            }
            Matrix::Wgmma { by_rows, eager_release, arrive_per_warp } => {
                f.write_str(if *by_rows { "do:wgmma:rows" } else { "do:wgmma:steps" })?;
                f.write_str(if *eager_release { ":eager" } else { "" })?;
                f.write_str(if *arrive_per_warp { ":per-warp" } else { "" })
            }
        }
    }
}
