//! What operands take of shared memory.
use satune_ir::term::{OperandInfo, Side, StagedLayout};
use std::fmt;

/// What an operand takes of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staged {
    /// The operand.
    pub side: Side,
    /// Extent along its spatial axis, and along k, of a strip; none of the tile of a k loop.
    pub strip: Option<[i64; 2]>,
    /// Bytes of one buffer.
    pub bytes: i64,
    /// Buffers.
    pub buffers: i64,
}

impl Staged {
    /// An operand's copy of so many k values in a layout: a strip, or a tile with so many buffers.
    pub fn of(
        side: Side,
        operand: &OperandInfo,
        layout: StagedLayout,
        [spatial, k]: [i64; 2],
        tile: Option<i64>,
    ) -> Staged {
        let bytes = layout.elements(spatial, k) * i64::from(operand.dtype.bytes());
        Staged { side, strip: tile.is_none().then_some([spatial, k]), bytes, buffers: tile.unwrap_or(1) }
    }
}

impl fmt::Display for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Staged { side, bytes, buffers, .. } = self;
        match self.strip {
            Some([spatial, k]) => write!(f, "{side}'s strip of {spatial} x {k} with {bytes}"),
            None => write!(f, "{side}'s tile with {bytes} in {buffers} buffer{}", if *buffers == 1 { "" } else { "s" }),
        }
    }
}

/// What both operands take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Both(pub [Option<Staged>; 2]);

impl fmt::Display for Both {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().flatten().map(Staged::to_string).collect();
        f.write_str(&parts.join(" and "))
    }
}
