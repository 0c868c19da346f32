//! Lowering: from scheduled programs to kernels.
mod index;
pub mod program;

pub use crate::cuda::identifier as safe;
