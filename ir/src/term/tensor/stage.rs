//! How far the decisions about a block on tensor cores have come: what the class of a term says of it.
use super::{Consumers, Mma, TileLayout};
use crate::term::Side;
use serde::{Deserialize, Serialize};

/// How far the decisions about a block on tensor cores have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TensorStage {
    /// How C is written comes next.
    Store(TensorInstruction),
    /// The ring comes next.
    Ring(TensorInstruction),
    /// The tile of a step along k, to be dealt out to warps or consumers.
    Deal {
        /// Who multiplies.
        kind: TensorInstruction,
        /// The ring has room for tiles whose rows are padded.
        room: bool,
    },
    /// A consumer's part of it.
    Multiply(TensorInstruction),
    /// A warp's part of it.
    Warp {
        /// Instruction.
        op: Mma,
        /// There are several warps along both axes.
        grid: bool,
        /// A loop of single tiles is possible.
        rolls: bool,
    },
    /// An operand's way to the warps. The tile: the block's extent, a warp's extent, k.
    Operand {
        /// Instruction.
        op: Mma,
        /// The operand.
        side: Side,
        /// The ring has room for tiles whose rows are padded.
        room: bool,
    },
    /// The copies of an operand. The tile: the block's extent, 1, k.
    Copy(Mma, Side, TileLayout),
    /// When an operand is copied. The tile: 1, 1, k.
    Issue {
        /// Instruction.
        op: Mma,
        /// The operand.
        side: Side,
        /// There are several copies per thread.
        several: bool,
        /// They can be unrolled.
        unrolls: bool,
        /// They are `cp.async`.
        asynchronous: bool,
    },
    /// The loads of a warp's fragments. The tile: the warp's extent, 1, k.
    Load(Mma, Side, TileLayout),
}

/// Which instruction a block uses, and how it is made up for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TensorInstruction {
    /// Warps.
    Mma(Mma),
    /// A producer and consumers, on `wgmma` or `tcgen05`.
    Wgmma(Consumers),
}

impl TensorStage {
    /// Which instruction the block uses.
    pub(super) fn kind(self) -> TensorInstruction {
        match self {
            TensorStage::Store(kind)
            | TensorStage::Ring(kind)
            | TensorStage::Deal { kind, .. }
            | TensorStage::Multiply(kind) => kind,
            TensorStage::Copy(op, ..)
            | TensorStage::Load(op, ..)
            | TensorStage::Operand { op, .. }
            | TensorStage::Issue { op, .. }
            | TensorStage::Warp { op, .. } => TensorInstruction::Mma(op),
        }
    }
}
