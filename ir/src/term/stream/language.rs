//! The terms of streaming schedules: chains of decisions, one canonical order, one node per primitive (or per group of
//! primitives that only make sense together).
use super::{ChainState, Point, RowParts, RowPlace, Sharing, Step, StreamState, Streams, TileState, Window};
use crate::term::{Schedule, TermLanguage};
use egg::{Id, Language};
use std::fmt;

/// A node of a term.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StreamTerm {
    /// What is not scheduled yet. No extracted term holds one.
    Nest(Box<StreamState>),
    /// rfactor of every reduction over long rows; 1 part where rows stay whole.
    Parts {
        /// Parts of a row.
        parts: RowParts,
        /// Schedule of what is left.
        body: [Id; 1],
    },
    /// Other blocks with the same results: compute_inline or reverse_compute_inline of a block, or rfactor.
    Become {
        /// Where it is decided.
        at: Point,
        /// Which of the choices there.
        choice: u8,
        /// Schedule of what it becomes.
        body: [Id; 1],
    },
    /// The block after so many others shares their kernel.
    Keep {
        /// Where it is decided.
        at: Point,
        /// The rest.
        body: [Id; 1],
    },
    /// The blocks that are kept make a kernel, and others follow. Children: the kernel, the rest.
    Then {
        /// Where it is decided.
        at: Point,
        /// Number of the work that the kernel is.
        kernel: u16,
        /// Kernel and rest.
        children: [Id; 2],
    },
    /// All blocks are kept and make the last kernel.
    Last {
        /// Where it is decided.
        at: Point,
        /// Number of the work that the kernel is.
        kernel: u16,
        /// The kernel.
        body: [Id; 1],
    },
    /// The loop over the blocks of a row kernel.
    Blocks {
        /// Rows of a block.
        rows: i64,
        /// What each of them does.
        body: [Id; 1],
    },
    /// The threads of a flat kernel: rows side by side along threadIdx.y, the elements of a row along threadIdx.x, blocks over the rest.
    Threads {
        /// Rows.
        side_by_side: i64,
        /// Along a row.
        threads: i64,
        /// What each of them does.
        body: [Id; 1],
    },
    /// What a thread of a flat kernel does: unrolled steps, each of neighbouring elements. The last decision about it.
    Steps {
        /// Unrolled.
        steps: i64,
        /// Elements per access.
        vector: i64,
        /// What was decided before.
        state: Box<StreamState>,
    },
    /// The rows of a block: split into a serial loop and threadIdx.y.
    Rows {
        /// One after the other.
        serial: i64,
        /// Side by side.
        side_by_side: i64,
        /// The rest.
        body: [Id; 1],
    },
    /// The columns of every block of the kernel: split, bound to threadIdx.x (a reduction across threads where they are
    /// reduced over), and accesses vectorized.
    Columns {
        /// Threads per row.
        threads: i64,
        /// Elements per access.
        vector: i64,
        /// What is decided.
        of: Box<StreamState>,
        /// The rest.
        body: [Id; 1],
    },
    /// Where a buffer is held between the blocks of a row kernel: cache_read or set_scope.
    Hold {
        /// Number of the buffer.
        buffer: u8,
        /// Where.
        place: RowPlace,
        /// What is decided.
        of: Box<StreamState>,
        /// The rest.
        body: [Id; 1],
    },
    /// The loop over columns of one block of a row kernel (compute_at the row).
    Stage {
        /// Number of the block.
        block: u8,
        /// Whether it is unrolled.
        unroll: bool,
        /// What is decided.
        of: Box<StreamState>,
        /// The rest.
        body: [Id; 1],
    },
    /// A tile kernel: both axes split, the rest bound to blocks; cache_read to shared memory at the block.
    Tile {
        /// Side of the tile.
        side: i64,
        /// The rest.
        body: [Id; 1],
    },
    /// vectorize of the tile's copy and of its stores.
    Wide {
        /// Elements per access.
        vector: i64,
        /// The rest.
        body: [Id; 1],
    },
    /// Threads of a tile kernel.
    Team {
        /// Per block.
        threads: i64,
        /// The rest.
        body: [Id; 1],
    },
    /// storage_align of the tile, the last decision about it.
    Pad {
        /// Elements added to each row.
        pad: i64,
        /// What was decided before.
        state: Box<StreamState>,
    },
    /// A plain kernel of one block, what is computed before and after it aside: one thread per element of its result or for some of them,
    /// or several that share the sum.
    Plain {
        /// Threads of a block, or teams of those that share a sum.
        teams: i64,
        /// Results of each, side by side.
        vector: i64,
        /// Results of each along another loop.
        window: Option<Window>,
        /// Threads that share a sum.
        sharing: Option<Sharing>,
        /// What was decided before.
        state: Box<StreamState>,
    },
    /// A kernel that is a contraction by itself, under one of the contraction's schedules.
    Tiled {
        /// The schedule.
        plan: Box<Schedule>,
        /// What was decided before.
        state: Box<StreamState>,
    },
    /// Nothing is left to decide.
    Done(Box<StreamState>),
}

impl Language for StreamTerm {
    type Discriminant = std::mem::Discriminant<StreamTerm>;

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
        use StreamTerm::*;
        match self {
            Nest(_) | Steps { .. } | Pad { .. } | Plain { .. } | Tiled { .. } | Done(_) => &[],
            Then { children, .. } => children,
            Parts { body, .. }
            | Become { body, .. }
            | Keep { body, .. }
            | Last { body, .. }
            | Blocks { body, .. }
            | Threads { body, .. }
            | Rows { body, .. }
            | Columns { body, .. }
            | Hold { body, .. }
            | Stage { body, .. }
            | Tile { body, .. }
            | Wide { body, .. }
            | Team { body, .. } => body,
        }
    }

    fn children_mut(&mut self) -> &mut [Id] {
        use StreamTerm::*;
        match self {
            Nest(_) | Steps { .. } | Pad { .. } | Plain { .. } | Tiled { .. } | Done(_) => &mut [],
            Then { children, .. } => children,
            Parts { body, .. }
            | Become { body, .. }
            | Keep { body, .. }
            | Last { body, .. }
            | Blocks { body, .. }
            | Threads { body, .. }
            | Rows { body, .. }
            | Columns { body, .. }
            | Hold { body, .. }
            | Stage { body, .. }
            | Tile { body, .. }
            | Wide { body, .. }
            | Team { body, .. } => body,
        }
    }
}

impl fmt::Display for StreamTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use StreamTerm::*;
        match self {
            Nest(state) => write!(f, "nest:{:?}", state.step),
            Parts { parts: RowParts { number, cascaded }, .. } => {
                write!(f, "parts:{number}{}", if *cascaded { ":cascaded" } else { "" })
            }
            Become { at, choice, .. } => write!(f, "become:{}.{}:{choice}", at.work, at.kept),
            Keep { at, .. } => write!(f, "keep:{}", at.kept),
            Then { at, kernel, .. } => write!(f, "then:{kernel}:{}", at.kept),
            Last { at, kernel, .. } => write!(f, "last:{kernel}:{}", at.kept),
            Blocks { rows, .. } => write!(f, "blocks:{rows}"),
            Threads { side_by_side, threads, .. } => write!(f, "threads:{side_by_side}x{threads}"),
            Steps { steps, vector, .. } => write!(f, "steps:{steps}x{vector}"),
            Rows { serial, side_by_side, .. } => write!(f, "rows:{serial}x{side_by_side}"),
            Columns { threads, vector, .. } => write!(f, "columns:{threads}x{vector}"),
            Hold { buffer, place, .. } => write!(f, "hold:{buffer}:{place:?}"),
            Stage { block, unroll, .. } => write!(f, "stage:{block}{}", if *unroll { ":unroll" } else { "" }),
            Tile { side, .. } => write!(f, "tile:{side}x{side}"),
            Wide { vector, .. } => write!(f, "wide:{vector}"),
            Team { threads, .. } => write!(f, "team:{threads}"),
            Pad { pad, .. } => write!(f, "pad:{pad}"),
            Plain { teams, sharing: Some(s), .. } => {
                write!(f, "plain:{teams}x{}{}", s.threads, if s.lanes { "l" } else { "" })
            }
            Plain { teams, vector, window, .. } => {
                write!(f, "plain:{teams}")?;
                if *vector > 1 {
                    write!(f, "v{vector}")?;
                }
                window.map_or(Ok(()), |w| write!(f, "w{}.{}", w.iter, w.results))
            }
            Tiled { plan, .. } => write!(f, "tiled:{}", plan.summary().volume()),
            Done(_) => f.write_str("done"),
        }
    }
}

/// What stands over a body of `b`; `None` where the node may not.
fn above(node: &StreamTerm, b: StreamState, rest: Option<StreamState>) -> Option<StreamState> {
    let with = |step: Step| Some(StreamState { step, ..b });
    match (node, b.step) {
        (StreamTerm::Parts { parts, .. }, Step::Block(0, false)) => {
            // Whole rows are those of the source.
            let whole = *parts == RowParts::WHOLE;
            (whole == (b.work == 0) && (whole || parts.number > 1))
                .then_some(StreamState { work: 0, step: Step::Parts })
        }
        (StreamTerm::Become { at, .. }, Step::Block(below, _)) if at.kept == below => {
            (at.work != b.work).then_some(StreamState::at(*at))
        }
        (StreamTerm::Keep { at, .. }, Step::Block(below, false)) if at.kept.checked_add(1) == Some(below) => {
            (at.work == b.work).then_some(StreamState::at(*at))
        }
        // A kernel that has more blocks does not end.
        (StreamTerm::Then { at, kernel, .. }, Step::Kernel(blocks)) if blocks == at.kept && !at.open => {
            let fits = b.work == *kernel && rest.is_some_and(|r| r.step == Step::Block(0, false));
            fits.then_some(StreamState::at(*at))
        }
        (StreamTerm::Last { at, kernel, .. }, Step::Kernel(blocks)) if blocks == at.kept && !at.open => {
            (b.work == *kernel).then_some(StreamState::at(*at))
        }
        (StreamTerm::Blocks { rows, .. }, Step::Rows(blocks, below)) => {
            (*rows > 0 && *rows == below).then_some(())?;
            with(Step::Kernel(blocks))
        }
        (StreamTerm::Rows { serial, side_by_side, .. }, Step::Team(blocks, team, several)) => {
            let rows = serial.checked_mul(*side_by_side).filter(|rows| *rows > i64::from(several))?;
            (team == *side_by_side).then_some(())?;
            with(Step::Rows(blocks, rows))
        }
        (StreamTerm::Columns { threads, vector, of, .. }, Step::Chain(blocks, below)) => {
            let begins = (below.loops, below.decided) == (0, 0) && *threads > 0 && *vector > 0;
            let fits = matches!(of.step, Step::Team(same, _, several) if (same, several) == (blocks, below.several));
            (begins && fits && of.work == b.work).then_some(**of)
        }
        (StreamTerm::Hold { of, .. }, Step::Chain(blocks, below)) => {
            let next =
                |above: &ChainState| above.loops == below.loops && above.decided.checked_add(1) == Some(below.decided);
            let fits = matches!(of.step, Step::Chain(same, above) if same == blocks && next(&above));
            (fits && of.work == b.work).then_some(**of)
        }
        (StreamTerm::Stage { block, of, .. }, Step::Chain(blocks, below)) => {
            let next = |above: &ChainState| above.loops == *block && block.checked_add(1) == Some(below.loops);
            let fits = matches!(of.step, Step::Chain(same, above) if same == blocks && next(&above));
            (fits && below.loops <= blocks && of.work == b.work).then_some(**of)
        }
        (StreamTerm::Threads { side_by_side, threads, .. }, Step::Flat(blocks, along)) => {
            (*side_by_side > 0 && *threads > 0 && (along == 0 || along == *threads)).then_some(())?;
            with(Step::Kernel(blocks))
        }
        (StreamTerm::Tile { side, .. }, Step::Tile(tile)) => {
            (tile == TileState { side: *side, ..TileState::default() }).then_some(())?;
            with(Step::Kernel(1))
        }
        (StreamTerm::Wide { vector, .. }, Step::Tile(tile)) => {
            (tile.vector == *vector && tile.threads == 0 && *vector > 0).then_some(())?;
            with(Step::Tile(TileState { vector: 0, ..tile }))
        }
        (StreamTerm::Team { threads, .. }, Step::Tile(tile)) => {
            (tile.threads == *threads && tile.vector > 0 && *threads > 0).then_some(())?;
            with(Step::Tile(TileState { threads: 0, ..tile }))
        }
        _ => None,
    }
}

impl TermLanguage for StreamTerm {
    type State = StreamState;
    type Problem = Streams;

    fn plain(state: StreamState) -> StreamTerm {
        StreamTerm::Nest(Box::new(state))
    }

    fn is_plain(&self) -> bool {
        matches!(self, StreamTerm::Nest(_))
    }

    fn invariant(&self, child: &dyn Fn(Id) -> Option<StreamState>) -> Result<StreamState, String> {
        let found = match self {
            StreamTerm::Nest(state) => Some(**state),
            StreamTerm::Done(state) => match state.step {
                Step::Chain(blocks, chain) => (chain.loops == blocks).then_some(**state),
                _ => None,
            },
            StreamTerm::Plain { teams, vector, state, .. } => {
                (matches!(state.step, Step::Kernel(1..=3)) && *teams > 0 && *vector > 0).then_some(**state)
            }
            StreamTerm::Steps { steps, vector, state } => {
                (matches!(state.step, Step::Flat(..)) && *steps > 0 && *vector > 0).then_some(**state)
            }
            StreamTerm::Tiled { state, .. } => matches!(state.step, Step::Kernel(_)).then_some(**state),
            StreamTerm::Pad { pad, state } => {
                matches!(state.step, Step::Tile(tile) if tile.threads > 0 && *pad >= 0).then_some(**state)
            }
            node => {
                let body = node.children().first().and_then(|id| child(*id));
                let rest = node.children().get(1).and_then(|id| child(*id));
                body.and_then(|b| above(node, b, rest))
            }
        };
        found.ok_or_else(|| {
            let body = self.children().first().and_then(|id| child(*id));
            format!("{self} cannot stand over a body in state {body:?}")
        })
    }

    fn no_invariant() -> StreamState {
        StreamState { work: u16::MAX, step: Step::Block(u8::MAX, true) }
    }
}
