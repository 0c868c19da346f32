//! Why a plan on tensor cores has no program.
use satune_ir::term::tensor::{NotGemm, TensorError};

/// Why a schedule on tensor cores has no trace of primitives.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untraced {
    /// It is none on tensor cores.
    #[error("the schedule is none on tensor cores")]
    Kind,
    /// The program is no product.
    #[error(transparent)]
    NotGemm(#[from] NotGemm),
    /// The plan does not fit.
    #[error(transparent)]
    Plan(#[from] TensorError),
}
