//! Programs of several streaming blocks, from text to checked kernels: row sums and means, softmax, transposes,
//! matrix-vector products, elementwise chains.
mod check;
mod operators;
mod problem;
mod shrink;
mod shrink_any;
mod space;

pub use check::{check, reduced, scheduled, together};
pub use operators::{list, names, script};
pub use problem::{NotStreaming, StreamProblem};
pub(crate) use shrink::resized;
pub use shrink::shrink;
pub use space::{menu, space, space_while};
