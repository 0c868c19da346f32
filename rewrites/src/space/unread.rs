//! Why a scheduled program is that of no plan.

/// Why a program is none of a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the scheduled program is that of no plan: {place}: {reason}")]
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
