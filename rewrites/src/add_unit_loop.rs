//! `add_unit_loop`: a loop of one iteration around a loop or block.
//!
//! before                                after, add_unit_loop(C)
//!   with T.sblock("C"):                   for u in range(1):
//!       ...                                   with T.sblock("C"):
//!                                                 ...
//!
//! Legal for everything but the root block.
use crate::schedule::{Result, Schedule};
use crate::tree::{LoopId, Node};
use crate::ScheduleError;
use satune_ir::{DType, Expr, For, ForKind, Stmt};

/// The primitive. Returns the new loop.
pub fn add_unit_loop(s: &mut Schedule, node: Node) -> Result<LoopId> {
    apply(s, node).map_err(|e| e.within("add_unit_loop"))
}

fn apply(s: &mut Schedule, node: Node) -> Result<LoopId> {
    if node == Node::Block(s.root()) {
        return Err(ScheduleError::value("Cannot add loops on top of the root block")
            .at_block(s.root())
            .remedy("name a loop, or a block below the root"));
    }
    s.path(node)?;
    let var = s.program_mut().fresh_var("u", DType::I32);
    let id = var.id;
    s.replace(node, |inner| {
        Stmt::For(For {
            var,
            min: Expr::Int(0, DType::I32),
            extent: Expr::Int(1, DType::I32),
            kind: ForKind::Serial,
            annotations: Default::default(),
            body: Box::new(inner),
        })
    })?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{block, loops, matmul, refusal};

    #[test]
    fn wraps_blocks_and_loops() {
        let mut s = matmul();
        let c = block(&s, "C");
        let inner = add_unit_loop(&mut s, Node::Block(c)).unwrap();
        let outer = loops(&s, "C")[0];
        let top = add_unit_loop(&mut s, Node::Loop(outer)).unwrap();
        let l = loops(&s, "C");
        assert_eq!((l.len(), l[0], l[4]), (5, top, inner));
        let root = s.root();
        assert_eq!(
            refusal(&mut s, |s| add_unit_loop(s, Node::Block(root))),
            "Cannot add loops on top of the root block"
        );
    }
}
