//! The axes of a contraction, and its sides.
use serde::{Deserialize, Serialize};

/// One axis (block iterator) of a contraction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AxisInfo {
    /// Its name in the program.
    pub name: String,
    /// Number of values, at least 1.
    pub extent: i64,
    /// Whether it is reduced over.
    pub reduce: bool,
}

/// What an axis does in a contraction `C[batch, m, n] += A[batch, m, k] * B[batch, k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Axis {
    /// The spatial axis of C and A that is tiled.
    M,
    /// The spatial axis of C and B that is tiled.
    N,
    /// The reduction axis that is tiled.
    K,
    /// Another spatial axis (batch, or a further one of m or n): one value per block. The index counts [`super::Contraction::batch`].
    Batch(u8),
    /// Another reduction axis: a serial loop around the k loop. The index counts [`super::Contraction::outer_reduce`].
    Outer(u8),
}

impl Axis {
    /// The axis of the transposed product.
    #[must_use]
    pub fn transposed(self) -> Axis {
        match self {
            Axis::M => Axis::N,
            Axis::N => Axis::M,
            other => other,
        }
    }
}

/// One of the two factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Side {
    A,
    B,
}

impl Side {
    /// The other operand.
    pub fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }

    /// The spatial axis that it shares with C: m for A, n for B.
    pub fn spatial(self) -> Axis {
        match self {
            Side::A => Axis::M,
            Side::B => Axis::N,
        }
    }
}
