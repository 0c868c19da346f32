//! Programs of several streaming blocks, from text to checked kernels: row sums and means, softmax, transposes,
//! matrix-vector products, elementwise chains.
mod check;
mod operators;
mod shrink;

pub use check::{check, scheduled, tolerance};
pub use operators::{names, script};
pub use shrink::shrink;
