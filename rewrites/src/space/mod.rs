//! The space of a contraction's schedules: encoding, rules, saturation.
mod derive;
mod encode;
mod engine;
mod menu;
pub mod rules;

pub use derive::trace;
pub use encode::{contraction, EncodeError};
pub use engine::{root_state, saturate, Engine, Rule, SaturationError};
pub use menu::{Fuel, Limits, Menu};
