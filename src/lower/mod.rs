//! Lowering: from scheduled programs to kernels.
mod index;
pub mod program;
pub mod tensor;

pub use crate::cuda::identifier as safe;
