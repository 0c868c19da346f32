//! The instructions with which some warps together multiply tiles in shared memory, which descriptors say.
use super::Mma;
use crate::DType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An instruction for tiles in shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum GroupMma {
    /// `wgmma` (sm_90a): four warps multiply 64 rows, and hold the sums in their registers.
    #[default]
    Wgmma,
    /// `tcgen05.mma` (sm_100a): one thread multiplies 128 rows; the sums are in tensor memory, from which four warps load them.
    Tcgen05,
}

impl GroupMma {
    /// All of them.
    pub const ALL: [GroupMma; 2] = [GroupMma::Wgmma, GroupMma::Tcgen05];

    /// The instruction of an architecture, by number: 90 for sm_90.
    pub fn of(arch: u32) -> Option<GroupMma> {
        match arch {
            90 => Some(GroupMma::Wgmma),
            100..=103 => Some(GroupMma::Tcgen05),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            GroupMma::Wgmma => "wgmma",
            GroupMma::Tcgen05 => "tcgen05",
        }
    }

    /// The architecture that has it.
    pub fn needs(self) -> &'static str {
        match self {
            GroupMma::Wgmma => "sm_90a",
            GroupMma::Tcgen05 => "sm_100a",
        }
    }

    /// Rows of an instruction, which a group of four warps takes.
    pub fn rows(self) -> i64 {
        match self {
            GroupMma::Wgmma => 64,
            GroupMma::Tcgen05 => 128,
        }
    }

    /// The instruction of a warp in whose registers A's rows are where `wgmma` has them, of operands of a type.
    pub fn of_warp(operand: DType) -> Option<Mma> {
        // Both take 32 bytes along k.
        Mma::SYNC.into_iter().find(|op| op.operand() == operand && op.k() * operand.bytes() == 32)
    }

    /// Rows of an instruction that are one warp's.
    pub fn rows_of_warp(self) -> i64 {
        self.rows() / 4
    }

    /// Whether threads hold the sums in registers, and wait for their instructions themselves; else sums are in tensor memory, and
    /// barriers say when they are there.
    pub fn holds_sums(self) -> bool {
        self == GroupMma::Wgmma
    }

    /// For stored plans: those that do not name it are of `wgmma`.
    pub(crate) fn is_wgmma(&self) -> bool {
        *self == GroupMma::Wgmma
    }
}

/// Who multiplies a block's tile on such an instruction: groups of four warps, beside that of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Consumers {
    /// The instruction.
    pub op: GroupMma,
    /// Groups: each takes an equal part of a tile's rows.
    pub count: u32,
    /// Instead they take whole tiles, in turn.
    pub ping_pong: bool,
    /// They copy operands to shared memory themselves, as threads do. Else four more warps, the producer, have the TMA bring them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_threads: bool,
}

impl Consumers {
    /// Threads of a block.
    pub fn threads(self) -> u32 {
        self.count.saturating_add(u32::from(!self.by_threads)).saturating_mul(128)
    }

    /// Groups that share a tile's rows.
    pub fn at_tile(self) -> i64 {
        if self.ping_pong {
            1
        } else {
            i64::from(self.count.max(1))
        }
    }

    /// Tiles of C that are in work at once.
    pub fn tiles(self) -> i64 {
        if self.ping_pong {
            i64::from(self.count)
        } else {
            1
        }
    }

    /// Blocks of an instruction's rows that a group has of a tile of so many rows.
    pub fn row_blocks(self, rows: i64) -> i64 {
        rows / self.at_tile() / self.op.rows()
    }
}

impl fmt::Display for GroupMma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
