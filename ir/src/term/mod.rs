//! The term languages: a contraction's schedules as e-graph terms, the invariant of a class, and the space; programs of
//! several streaming blocks in [`stream`].
mod axis;
mod contraction;
mod display;
mod enumerate;
mod find;
mod gather;
mod instructions;
mod language;
mod places;
mod plan;
mod read;
mod restrict;
mod schedule;
mod space;
mod state;
pub mod stream;
pub mod tensor;

pub use axis::{Axis, AxisInfo, Side};
pub use contraction::{Beside, Combine, Contraction, Epilogue, OperandInfo, ReadsMade};
pub use find::NotInSpace;
pub use gather::{Computed, Dimension, Gather, Gathered, Input};
pub use instructions::Instructions;
pub use language::{state_of, IllFormed, Role, Term};
pub use places::Places;
pub use plan::{strip_length, BlockLoop, CoresPlan, Fill, Pair, Pipe, StagedLayout, Staging, Way};
pub use read::Incomplete;
pub use schedule::{Schedule, Summary};
pub use space::{Behind, Invariants, SaturationReport, Space, StoppedBy, TermLanguage};
pub use state::{Place, Stage, State, Strips, Team, Tile};
