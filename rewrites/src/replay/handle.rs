//! What calls make, and later ones are given.
use crate::sample_compute_location::Location;
use crate::tree::LoopId;
use satune_ir::BlockId;

/// A value that a call made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handle {
    /// Nothing.
    None,
    /// A block.
    Block(BlockId),
    /// A loop.
    Loop(LoopId),
    /// No loop, but where a sample puts a block: inlined, or where it stands.
    Place(Location),
    /// An integer.
    Int(i64),
    /// Several.
    List(Vec<Handle>),
}

impl From<Vec<LoopId>> for Handle {
    fn from(ids: Vec<LoopId>) -> Handle {
        Handle::List(ids.into_iter().map(Handle::Loop).collect())
    }
}

impl From<Vec<BlockId>> for Handle {
    fn from(ids: Vec<BlockId>) -> Handle {
        Handle::List(ids.into_iter().map(Handle::Block).collect())
    }
}
