//! Why a plan on tensor cores has no program, and why a program is none of a plan.
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

/// Why a program is none of a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no kernel on tensor cores is known for the scheduled program: {place}: {reason}")]
pub struct ReadError {
    /// Loop, block or buffer.
    pub place: String,
    /// What is wrong there, and what would be right.
    pub reason: String,
}

pub(super) type Read<T> = Result<T, ReadError>;

pub(super) fn wrong<T>(place: impl Into<String>, reason: impl Into<String>) -> Read<T> {
    Err(ReadError { place: place.into(), reason: reason.into() })
}
