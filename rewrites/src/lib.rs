//! Satune's schedule primitives: the legality, the transformation and the rewrite rule of each, one file per primitive.
#![forbid(unsafe_code)]

mod error;
mod flags;
mod render;
pub mod schedule;
pub mod scope;
pub mod tree;

// Loops.

// Data movement and reductions.

pub use error::{ErrorClass, Refusal, ScheduleError};
pub use schedule::{BlockFlags, Result, Schedule};
pub use scope::Scope;
pub use tree::{LoopId, Node};
