//! The term language: a contraction's schedules as e-graph terms, the invariant of a class, and the space.
mod contraction;
mod display;
mod find;
mod language;
mod plan;
mod read;
mod restrict;
mod space;
mod state;

pub use contraction::{Axis, AxisInfo, Contraction, OperandInfo, Side};
pub use find::NotInSpace;
pub use language::{state_of, IllFormed, Role, Term};
pub use plan::{BlockLoop, Fill, Layout, Pair, Pipe, Plan, Staging, Way};
pub use read::Incomplete;
pub use space::{Invariants, SaturationReport, Space, StoppedBy};
pub use state::{Place, Stage, State, Strips, Team, Tile};
