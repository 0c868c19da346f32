//! The terms: chains without names and without strides. A loop says which axis it runs over and how often; its stride
//! is the tile that its body covers, so a term's meaning does not depend on what stands around it.
use super::tensor::{self, Matrix, TensorNode};
use super::{Axis, Pipe, Place, Side, Stage, StagedLayout, State, Strips, Team};
use egg::{Id, Language};
use serde::{Deserialize, Serialize};

/// What a loop does to the team that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// One iteration per block; all such loops are fused into blockIdx.x.
    Block,
    /// The inner part of a grouped rasterization, bound like `Block`.
    Group,
    /// Serial, run by every thread.
    Serial,
    /// The block's k loop with its overlap.
    Pipeline(Pipe),
    /// Virtual threads: every thread runs all iterations, interleaved.
    Vthread,
    /// One iteration per warp.
    Warp,
    /// One iteration per lane (or, in a copy, per thread of the block).
    Thread,
    /// Expanded.
    Unroll,
    /// Lanes of one vector access.
    Vector,
}

/// A node of a term.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Term {
    /// What is not scheduled yet: the plain loop nest of a state. Not a program that a GPU can run; every rule starts
    /// from one, and no extracted term holds one.
    Nest(Box<State>),
    /// `for axis in extent`, whose iterations cover `total` values of the axis; the last may hang over.
    Loop {
        /// Axis.
        axis: Axis,
        /// What it does to the team.
        role: Role,
        /// Number of iterations.
        extent: i64,
        /// Values of the axis that it covers: more than `(extent - 1) * tile`, at most `extent * tile`.
        total: i64,
        /// What is repeated.
        body: [Id; 1],
    },
    /// The grid is made of blocks of this many threads.
    Cta {
        /// Threads per block.
        threads: u32,
        /// What a block does.
        body: [Id; 1],
    },
    /// cache_write to registers: the body accumulates there, the drain stores it by the threads that hold it.
    /// Children: body, drain.
    Write([Id; 2]),
    /// decompose_reduction: accumulators are cleared, then the body only updates.
    Init([Id; 1]),
    /// cache_read to shared memory above the k loop: the whole strip that the loop runs along. Children: fill, body.
    Strip {
        /// Which operand.
        side: Side,
        /// Layout of the strip.
        layout: StagedLayout,
        /// Extents of the strip along its spatial axis and k.
        tile: [i64; 2],
        /// Fill and body.
        children: [Id; 2],
    },
    /// cache_read to shared memory inside the k loop. Children: fill, body.
    Stage {
        /// Which operand.
        side: Side,
        /// Layout of the tile.
        layout: StagedLayout,
        /// Overlap of the k loop around it.
        pipe: Pipe,
        /// Operands that stand above it.
        strips: Strips,
        /// Whether the body still may stage (false after the last operand).
        more: bool,
        /// Extents of the copied tile along its spatial axis and k.
        tile: [i64; 2],
        /// Fill and body.
        children: [Id; 2],
    },
    /// Nothing more is staged: operands that are in shared memory by now are read there, the others from global memory.
    Direct {
        /// Overlap of the k loop around it.
        pipe: Pipe,
        /// Operands that stand above it.
        strips: Strips,
        /// The body.
        body: [Id; 1],
    },
    /// cache_read to registers at the inner k loop, by accesses of `vector` elements.
    Fragment {
        /// Which operand.
        side: Side,
        /// Where it is read from.
        from: Place,
        /// Elements per access.
        vector: u32,
        /// The body.
        body: [Id; 1],
    },
    /// The statement reads what is not in registers by now where it is (ends the choice of fragments).
    Operands([Id; 1]),
    /// All blocks of one kernel run the body: the reduction is not split.
    Grid([Id; 1]),
    /// The sum is kept in C's own buffer and cleared in the loop: no cache_write.
    InPlace([Id; 1]),
    /// The two loops of a copy are fused, in the order of the source's rows if `coalesced`.
    Fuse {
        /// Which operand.
        side: Side,
        /// Filled by cp.async.
        asynchronous: bool,
        /// Neighbouring threads run along the contiguous dimension in global memory.
        coalesced: bool,
        /// Spatial and k extents that were fused.
        tile: [i64; 2],
        /// The fused copy.
        body: [Id; 1],
    },
    /// One element (or vector) of a copy.
    CopyElement(Box<State>),
    /// Write-back of the accumulators to C or to the workspace, with the width that their pieces have.
    Store(Place),
    /// The multiply-add.
    Multiply(Box<State>),
    /// rfactor over the split of k: the first child writes partial sums, the second adds them, in a kernel of its own.
    Split([Id; 2]),
    /// The kernel that adds `parts` partial sums of a state's tile.
    AddParts(Box<State>),
    /// A decision about a block on tensor cores.
    Tensor {
        /// The decision.
        node: TensorNode,
        /// What is decided after it.
        body: [Id; 1],
    },
    /// A tile on tensor cores is dealt out to warps. Children: the ways of A and B to them, and a warp's part.
    Dealt {
        /// The decision.
        node: TensorNode,
        /// A, B, warp.
        children: [Id; 3],
    },
    /// The way of an operand to the warps. Children: its copies to the ring, when they are started, loads of fragments.
    Operand {
        /// Which operand.
        side: Side,
        /// Where chunks of its tile stand.
        layout: tensor::TileLayout,
        /// The ring has room for tiles whose rows are padded.
        room: bool,
        /// Copies, when, loads.
        children: [Id; 3],
    },
    /// The instructions of a warp's or consumer's tile on tensor cores.
    Matrix {
        /// Which, in what order.
        matrix: Matrix,
        /// Their team, tile and operands.
        state: Box<State>,
    },
}

impl Language for Term {
    type Discriminant = std::mem::Discriminant<Term>;

    fn discriminant(&self) -> Self::Discriminant {
        std::mem::discriminant(self)
    }

    fn matches(&self, other: &Self) -> bool {
        // The same but for the children.
        self.discriminant() == other.discriminant() && self.children().len() == other.children().len() && {
            let mut other = other.clone();
            other.children_mut().copy_from_slice(self.children());
            *self == other
        }
    }

    fn children(&self) -> &[Id] {
        match self {
            Term::Nest(_) | Term::CopyElement(_) | Term::Store(_) | Term::Multiply(_) | Term::AddParts(_) => &[],
            Term::Matrix { .. } => &[],
            Term::Loop { body, .. }
            | Term::Cta { body, .. }
            | Term::Direct { body, .. }
            | Term::Tensor { body, .. }
            | Term::Fragment { body, .. }
            | Term::Fuse { body, .. } => body,
            Term::Init(body) | Term::Operands(body) | Term::Grid(body) | Term::InPlace(body) => body,
            Term::Write(children) | Term::Split(children) => children,
            Term::Stage { children, .. } | Term::Strip { children, .. } => children,
            Term::Dealt { children, .. } | Term::Operand { children, .. } => children,
        }
    }

    fn children_mut(&mut self) -> &mut [Id] {
        match self {
            Term::Nest(_) | Term::CopyElement(_) | Term::Store(_) | Term::Multiply(_) | Term::AddParts(_) => &mut [],
            Term::Matrix { .. } => &mut [],
            Term::Loop { body, .. }
            | Term::Cta { body, .. }
            | Term::Direct { body, .. }
            | Term::Tensor { body, .. }
            | Term::Fragment { body, .. }
            | Term::Fuse { body, .. } => body,
            Term::Init(body) | Term::Operands(body) | Term::Grid(body) | Term::InPlace(body) => body,
            Term::Write(children) | Term::Split(children) => children,
            Term::Stage { children, .. } | Term::Strip { children, .. } => children,
            Term::Dealt { children, .. } | Term::Operand { children, .. } => children,
        }
    }
}

/// A node whose children do not fit it: what the invariant check reports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node} cannot stand over a body in state {body:?}")]
pub struct IllFormed {
    /// The node.
    pub node: String,
    /// State of its (first) child.
    pub body: Option<Box<State>>,
}

/// The state of a node, from the states of its children. This is the meaning of well-formedness.
///
/// # Errors
/// When the node may not stand over such children.
pub fn state_of(node: &Term, child: impl Fn(Id) -> Option<State>) -> Result<State, IllFormed> {
    let first = node.children().first().and_then(|id| child(*id));
    let ill = || IllFormed { node: node.to_string(), body: first.map(Box::new) };
    let body = || first.ok_or_else(ill);
    match node {
        Term::Tensor { node, .. } => tensor::state_of(node, &body()?).ok_or_else(ill),
        Term::Dealt { node, children } => {
            let [a, b, warp] = three(children, &child).ok_or_else(ill)?;
            tensor::dealt_state(node, [&a, &b, &warp]).ok_or_else(ill)
        }
        Term::Operand { side, layout, room, children } => {
            let [copy, issue, load] = three(children, &child).ok_or_else(ill)?;
            tensor::operand_state((*side, *room), *layout, [&copy, &issue, &load]).ok_or_else(ill)
        }
        Term::Matrix { matrix, state } => tensor::leaf_state(matrix, state).ok_or_else(ill),
        Term::Nest(state) | Term::CopyElement(state) | Term::Multiply(state) | Term::AddParts(state) => Ok(**state),
        Term::Store(place) => Ok(State {
            team: Team::Thread,
            stage: Stage::Drain,
            tile: super::Tile { m: 1, n: 1, k: 1 },
            a: Place::Global,
            b: Place::Global,
            c: *place,
            swapped: false,
        }),
        Term::Loop { axis, role, extent, total, .. } => {
            let b = body()?;
            let tile = b.tile.get(*axis);
            if *extent < 1 || (*extent - 1) * tile >= *total || *extent * tile < *total {
                return Err(ill());
            }
            let (team, stage) = over_loop(*axis, *role, (*extent, *total), &b).ok_or_else(ill)?;
            Ok(State { team, stage, tile: b.tile.with(*axis, *total), ..b })
        }
        Term::Cta { threads, .. } => {
            let b = body()?;
            if b.stage != Stage::Accumulators || b.team != Team::Cta(*threads) {
                return Err(ill());
            }
            Ok(State { team: Team::Grid, stage: Stage::Blocks { batch: 0, m: false, n: false }, ..b })
        }
        Term::Write(_) => {
            let b = body()?;
            if b.stage != Stage::Clear || b.c != Place::Local {
                return Err(ill());
            }
            let drain = child(node.children()[1]).ok_or_else(ill)?;
            if drain.stage != Stage::Drain {
                return Err(ill());
            }
            Ok(State { stage: Stage::Accumulators, c: drain.c, ..b })
        }
        Term::Init(_) => {
            let b = body()?;
            match b.stage {
                Stage::Reduce(_) => Ok(State { stage: Stage::Clear, ..b }),
                _ => Err(ill()),
            }
        }
        Term::Strip { side, layout, tile, children } => {
            let fill = child(children[0]).ok_or_else(ill)?;
            let b = child(children[1]).ok_or_else(ill)?;
            let spatial = b.tile.get(side.spatial());
            let fits = fill.team == b.team
                && matches!(fill.stage, Stage::Copy { side: s, asynchronous: false, .. } if s == *side)
                && fill.place(*side) == Place::Shared(*layout)
                && *tile == [spatial, b.tile.k]
                && [fill.tile.m, fill.tile.k] == *tile
                && b.place(*side) == Place::strip(*layout, b.tile.k)
                && b.stage == Stage::Reduce(0)
                && b.c == Place::Local
                // A comes before B.
                && (*side == Side::B || b.b == Place::Global);
            if !fits {
                return Err(ill());
            }
            Ok(b.with_place(*side, Place::Global))
        }
        Term::Stage { side, layout, pipe, strips, more, tile, children } => {
            let fill = child(children[0]).ok_or_else(ill)?;
            let b = child(children[1]).ok_or_else(ill)?;
            let asynchronous = matches!(pipe, Pipe::Async(_));
            let spatial = b.tile.get(side.spatial());
            let fits = fill.team == b.team
                && fill.stage == (Stage::Copy { side: *side, asynchronous })
                && fill.place(*side) == Place::Shared(*layout)
                && *tile == [spatial, b.tile.k]
                && [fill.tile.m, fill.tile.k] == *tile
                && b.place(*side) == Place::Shared(*layout)
                && !strips.has(*side)
                && b.stage == if *more { staging(*pipe, *strips) } else { Stage::CtaVthread { m: true } };
            if !fits {
                return Err(ill());
            }
            Ok(State { stage: staging(*pipe, *strips), ..b.with_place(*side, Place::Global) })
        }
        Term::Direct { pipe, strips, .. } => {
            let b = body()?;
            if b.stage != (Stage::CtaVthread { m: true }) {
                return Err(ill());
            }
            Ok(State { stage: staging(*pipe, *strips), ..b })
        }
        Term::Fragment { side, from, .. } => {
            let b = body()?;
            let expected = match side {
                Side::A => Stage::Fragments { a: false },
                Side::B => Stage::Registers { m: true, n: true },
            };
            if b.stage != expected || b.place(*side) != Place::Local {
                return Err(ill());
            }
            let stage = Stage::Fragments { a: *side == Side::A };
            Ok(State { stage, ..b.with_place(*side, *from) })
        }
        Term::Operands(_) => {
            let b = body()?;
            if b.stage != (Stage::Registers { m: true, n: true }) {
                return Err(ill());
            }
            Ok(State { stage: Stage::Fragments { a: b.a != Place::Local }, ..b })
        }
        Term::Grid(_) => {
            let b = body()?;
            match b.stage {
                Stage::Blocks { .. } if b.c == Place::Global && !b.swapped => Ok(State { stage: Stage::Root, ..b }),
                _ => Err(ill()),
            }
        }
        Term::InPlace(_) => {
            let b = body()?;
            match b.stage {
                Stage::Reduce(_) if b.c == Place::Global => Ok(State { stage: Stage::Accumulators, ..b }),
                _ => Err(ill()),
            }
        }
        Term::Fuse { side, asynchronous, coalesced, tile, .. } => {
            let b = body()?;
            let stage = Stage::FusedCopy { side: *side, asynchronous: *asynchronous, coalesced: *coalesced, done: 0 };
            if b.stage != stage || b.tile.m != tile[0] * tile[1] {
                return Err(ill());
            }
            let stage = Stage::Copy { side: *side, asynchronous: *asynchronous };
            Ok(State { stage, tile: super::Tile { m: tile[0], n: 1, k: tile[1] }, ..b })
        }
        Term::Split(children) => {
            let finish = child(children[1]).ok_or_else(ill)?;
            let b = body()?;
            match (b.stage, finish.stage) {
                (Stage::Blocks { .. }, Stage::Finish(_)) if b.c == Place::Workspace && !b.swapped => {
                    Ok(State { stage: Stage::Root, c: Place::Global, ..b })
                }
                _ => Err(ill()),
            }
        }
    }
}

fn three(children: &[Id; 3], child: &impl Fn(Id) -> Option<State>) -> Option<[State; 3]> {
    Some([child(children[0])?, child(children[1])?, child(children[2])?])
}

fn staging(pipe: Pipe, strips: Strips) -> Stage {
    Stage::Staging { pipe, strips }
}

/// Team and stage above a loop, given what its body is.
fn over_loop(axis: Axis, role: Role, (extent, total): (i64, i64), b: &State) -> Option<(Team, Stage)> {
    let scale = |threads: u32| u32::try_from(i64::from(threads).checked_mul(extent)?).ok();
    Some(match (role, axis, b.stage, b.team) {
        (Role::Block, Axis::M, Stage::Blocks { batch: 0, m: false, n }, team) => {
            (team, Stage::Blocks { batch: 0, m: true, n })
        }
        (Role::Block, Axis::N, Stage::Blocks { batch: 0, m, n: false }, team) => {
            (team, Stage::Blocks { batch: 0, m, n: true })
        }
        (Role::Group, Axis::M | Axis::N, Stage::Blocks { batch: 0, m: false, n: false }, team) => {
            (team, Stage::Grouped { m: axis == Axis::M, crossed: false })
        }
        (Role::Block, Axis::M, Stage::Grouped { m: false, crossed: false }, team) => {
            (team, Stage::Grouped { m: false, crossed: true })
        }
        (Role::Block, Axis::N, Stage::Grouped { m: true, crossed: false }, team) => {
            (team, Stage::Grouped { m: true, crossed: true })
        }
        (Role::Block, Axis::M, Stage::Grouped { m: true, crossed: true }, team)
        | (Role::Block, Axis::N, Stage::Grouped { m: false, crossed: true }, team) => {
            (team, Stage::Blocks { batch: 0, m: true, n: true })
        }
        (Role::Block, Axis::Batch(_), Stage::Blocks { batch, m: true, n: true }, team) => {
            (team, Stage::Blocks { batch: batch + 1, m: true, n: true })
        }
        (Role::Block, Axis::K, stage @ Stage::Blocks { m: true, n: true, .. }, team) if b.c == Place::Workspace => {
            (team, stage)
        }
        (Role::Serial, Axis::Outer(_), Stage::Reduce(left), team) => (team, Stage::Reduce(left + 1)),
        (Role::Pipeline(pipe), Axis::K, Stage::Staging { pipe: inner, strips }, team) if inner == pipe => {
            // In shared memory are by now the strips, each as long as the loop, and nothing else.
            let stands = |side: Side| match b.place(side) {
                Place::Strip(layout, _) | Place::Shared(layout) => {
                    strips.has(side) && b.place(side) == Place::strip(layout, total)
                }
                _ => !strips.has(side),
            };
            let length = if strips.a || strips.b { total } else { 0 };
            if !stands(Side::A) || !stands(Side::B) || strips.k != length {
                return None;
            }
            (team, Stage::Reduce(0))
        }
        (Role::Vthread, Axis::N, Stage::Warps { m: true, n: true }, team) => (team, Stage::CtaVthread { m: false }),
        (Role::Vthread, Axis::M, Stage::CtaVthread { m: false }, team) => (team, Stage::CtaVthread { m: true }),
        (Role::Warp, Axis::M, Stage::Warps { m: false, n }, Team::Cta(t)) => {
            (Team::Cta(scale(t)?), Stage::Warps { m: true, n })
        }
        (Role::Warp, Axis::N, Stage::Warps { m, n: false }, Team::Cta(t)) => {
            (Team::Cta(scale(t)?), Stage::Warps { m, n: true })
        }
        // The innermost warp loop stands over a warp.
        (Role::Warp, Axis::M, Stage::WarpVthread { m: true }, Team::Warp(32)) => {
            (Team::Cta(scale(32)?), Stage::Warps { m: true, n: false })
        }
        (Role::Warp, Axis::N, Stage::WarpVthread { m: true }, Team::Warp(32)) => {
            (Team::Cta(scale(32)?), Stage::Warps { m: false, n: true })
        }
        (Role::Vthread, Axis::N, Stage::Lanes { m: true, n: true }, team) => (team, Stage::WarpVthread { m: false }),
        (Role::Vthread, Axis::M, Stage::WarpVthread { m: false }, team) => (team, Stage::WarpVthread { m: true }),
        (Role::Thread, Axis::M, Stage::Steps, Team::Thread) => {
            (Team::Warp(scale(1)?), Stage::Lanes { m: true, n: false })
        }
        (Role::Thread, Axis::N, Stage::Steps, Team::Thread) => {
            (Team::Warp(scale(1)?), Stage::Lanes { m: false, n: true })
        }
        (Role::Thread, Axis::M, Stage::Lanes { m: false, n: true }, Team::Warp(lanes)) => {
            (Team::Warp(scale(lanes)?), Stage::Lanes { m: true, n: true })
        }
        (Role::Thread, Axis::N, Stage::Lanes { m: true, n: false }, Team::Warp(lanes)) => {
            (Team::Warp(scale(lanes)?), Stage::Lanes { m: true, n: true })
        }
        (Role::Serial | Role::Unroll, Axis::K, Stage::Fragments { a: true }, team) => (team, Stage::Steps),
        (Role::Unroll, Axis::N, Stage::Piece, team) => (team, Stage::Registers { m: false, n: true }),
        (Role::Unroll, Axis::M, Stage::Piece, team) => (team, Stage::Registers { m: true, n: false }),
        (Role::Unroll, Axis::M, Stage::Registers { m: false, n: true }, team) => {
            (team, Stage::Registers { m: true, n: true })
        }
        (Role::Unroll, Axis::N, Stage::Registers { m: true, n: false }, team) => {
            (team, Stage::Registers { m: true, n: true })
        }
        (Role::Vector, Axis::N, Stage::Statement, team) => (team, Stage::Piece),
        (Role::Vector, Axis::M, Stage::FusedCopy { side, asynchronous, coalesced, done: 3 }, Team::Thread) => {
            (Team::Thread, Stage::FusedCopy { side, asynchronous, coalesced, done: 2 })
        }
        (Role::Thread, Axis::M, Stage::FusedCopy { side, asynchronous, coalesced, done: 2 }, Team::Thread) => {
            (Team::Cta(scale(1)?), Stage::FusedCopy { side, asynchronous, coalesced, done: 1 })
        }
        (Role::Serial | Role::Unroll, Axis::M, Stage::FusedCopy { side, asynchronous, coalesced, done: 1 }, team) => {
            (team, Stage::FusedCopy { side, asynchronous, coalesced, done: 0 })
        }
        _ => return None,
    })
}
