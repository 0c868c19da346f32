//! Satune: explores GPU schedules of a tensor program by equality saturation, and proves, writes and measures the
//! best few.

pub mod compile;
pub mod cuda;
pub mod kernel;
pub mod lower;
pub mod simulate;
