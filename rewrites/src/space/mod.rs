//! The space of a contraction's schedules: encoding, rules, saturation.
mod condition;
mod derive;
mod encode;
mod engine;
mod epilogue;
mod gather;
mod menu;
pub mod rules;
pub mod stream;
mod writer;

pub use condition::Condition;
pub use derive::trace;
pub use encode::{contraction, EncodeError};
pub use engine::{root_state, saturate, saturate_without, Engine, Explored, Rule, SaturationError};
pub use menu::{Fuel, Limits, Menu};
