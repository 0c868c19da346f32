//! What a thread executes.
use serde::{Deserialize, Serialize};

/// Instructions of a thread, by the unit that executes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instructions {
    /// Sums, products, multiply-adds.
    pub multiply_adds: u32,
    /// Comparisons, minima, choices, logic, conversions, sums of integers.
    pub logic: u32,
    /// Divisions and functions.
    pub special: u32,
}

impl Instructions {
    /// Of a step of a sum of products.
    pub const MULTIPLY_ADD: Instructions = Instructions { multiply_adds: 1, logic: 0, special: 0 };
}
