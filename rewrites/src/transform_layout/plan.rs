//! What `transform_layout` does: to which buffer, and what with the elements that no index goes to.
use crate::index_map::MappedBox;
use satune_ir::{BufferId, Expr};

/// What is laid out anew, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The buffer.
    pub buffer: BufferId,
    /// The image of its shape.
    pub layout: MappedBox,
}

/// What stands in elements that the map gives no source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Padding<'v> {
    /// There must be none.
    None,
    /// They stay unused (TVM: `assume_injective_transform`). That the map is one to one is still proved.
    Unused,
    /// This value.
    Value(&'v Expr),
}

impl<'v> Padding<'v> {
    pub(super) fn value(self) -> Option<&'v Expr> {
        match self {
            Padding::Value(v) => Some(v),
            Padding::None | Padding::Unused => None,
        }
    }
}
