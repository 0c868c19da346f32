//! Programs of several streaming blocks: elementwise maps, transposes, and reductions of rows. Their schedules as terms,
//! the invariant of a class, and plans.
//!
//! A schedule says which blocks are inlined, which of the others share a kernel, and how each kernel runs: as a map over
//! all elements (`Flat`), over rows with the row's threads side by side (`Row`), over tiles through shared memory
//! (`Tile`), as a contraction by itself (`Tiled`), or with one thread per element of its result (`Plain`), which takes
//! blocks that read in any way.
mod language;
mod parts;
mod plain;
mod problem;
mod read;
mod size;
mod state;
mod works;

pub use super::schedule::{
    FlatPlan, Held, KernelPlan, PlainPlan, RowPlan, Sharing, StreamPlan, TilePlan, TiledPlan, Window,
};
pub use language::StreamTerm;
pub use plain::{PlainBlocks, PlainHeld, PlainStep};
pub use problem::{
    Access, AccessForm, BlockKind, HeldRow, Indexed, Issued, PartValue, Shape, Stream, StreamBlock, StreamBuffer,
    StreamIter, Tiled,
};
pub use size::{stream_blocks, stream_shared_bytes};
pub use state::{ChainState, Laps, Places, Point, Room, RowPlace, Step, StreamState, TileState};
pub use works::{Become, Cascade, Choices, How, Inlining, Parting, RowParts, Streams, Way};
