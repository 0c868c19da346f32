//! Programs of several streaming blocks, from text to checked kernels: row sums and means, softmax, transposes,
//! matrix-vector products, elementwise chains.
mod check;
mod explore;
mod operators;
mod problem;
mod shrink;

pub use check::{check, scheduled};
pub use explore::{explore, space, together};
pub use operators::{names, script};
pub use problem::{NotStreaming, StreamProblem};
pub(crate) use shrink::resized;
pub use shrink::shrink;
