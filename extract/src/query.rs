//! What is asked of a search.
use std::time::Duration;

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// How many.
    pub k: usize,
    /// No two of them share block tile and k tile; of streaming programs, kernel by kernel, what a block covers and its
    /// threads.
    pub diverse: bool,
    /// Longest time.
    pub limit: Duration,
    /// Nothing that takes this long, ms, is asked for: infinity, or what makes a search short that is to tell no more.
    pub below_ms: f64,
}
