//! What a question fixes of schedules on tensor cores, in the words of their descriptions.
mod broken;
mod keeps;
mod words;

pub(super) use broken::Products;
pub(super) use words::{read, read_way, WORDS};

use satune_ir::term::tensor::{CopyOrder, GroupMma, Mma, Store, TileLayout, TileStore};
use satune_ir::term::{Pair, Side};

/// What multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Multiplier {
    Cores,
    Mma,
    Wgmma,
}

impl Multiplier {
    pub const ALL: [Multiplier; 3] = [Multiplier::Cores, Multiplier::Mma, Multiplier::Wgmma];

    pub fn name(self) -> &'static str {
        match self {
            Multiplier::Cores => "single threads",
            Multiplier::Mma => "mma.sync",
            Multiplier::Wgmma => "wgmma (tcgen05)",
        }
    }
}

/// What is fixed of an operand's way to the warps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Way {
    pub layout: Option<TileLayout>,
    pub bytes: Option<u32>,
    pub order: Option<CopyOrder>,
    pub rolled: Option<bool>,
    pub prefetch: Option<u32>,
    pub step: Option<u32>,
    pub matrices: Option<u32>,
    pub sets: Option<u32>,
}

/// What is fixed of a schedule on `mma.sync`, besides what every product has.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MmaFixed {
    pub instruction: Option<Mma>,
    /// Rows and columns of a warp.
    pub warp: Option<Pair>,
    pub warps_m_outer: Option<bool>,
    pub slack: Option<u32>,
    /// The loop over k is one of single tiles.
    pub rolled: Option<bool>,
    pub columns: Option<bool>,
    pub serpentine: Option<bool>,
    pub pairs: Option<bool>,
    pub descending: Option<bool>,
    pub store: Option<Store>,
    /// `Some(None)`: the compiler is not asked.
    pub min_blocks: Option<Option<u32>>,
    pub ways: [Way; 2],
}

impl MmaFixed {
    pub fn way(&mut self, side: Side) -> &mut Way {
        &mut self.ways[usize::from(side == Side::B)]
    }

    fn of(&self, side: Side) -> &Way {
        &self.ways[usize::from(side == Side::B)]
    }
}

/// What is fixed of a schedule on `wgmma`, besides what every product has.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WgmmaFixed {
    /// `wgmma`, or `tcgen05`.
    pub op: Option<GroupMma>,
    /// Columns of an instruction, which are the block's.
    pub n: Option<i64>,
    pub consumers: Option<u32>,
    pub in_turn: Option<bool>,
    /// Consumers copy the tiles, not the TMA.
    pub by_threads: Option<bool>,
    /// Blocks of 64 rows of a consumer.
    pub row_blocks: Option<i64>,
    pub by_rows: Option<bool>,
    pub eager_release: Option<bool>,
    pub arrive_per_warp: Option<bool>,
    /// `Some(None)`: a block per tile.
    pub grid: Option<Option<u32>>,
    pub stream_k: Option<bool>,
    pub cluster: Option<[u32; 2]>,
    pub store: Option<TileStore>,
}
