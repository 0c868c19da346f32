//! The term language: a contraction's schedules as e-graph terms, the invariant of a class, and the space.
mod contraction;
mod plan;

pub use contraction::{Axis, AxisInfo, Contraction, OperandInfo, Side};
pub use plan::{BlockLoop, Fill, Layout, Pair, Pipe, Plan, Staging};
