//! Lowering: from scheduled programs to kernels.
mod index;
pub mod program;
pub mod wgmma;

pub use crate::cuda::identifier as safe;
