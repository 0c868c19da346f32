//! Queries: `get_sblock`, `get_loops`, `get_child_blocks`, `get_producers`, `get_consumers`, `get_output_blocks`.
//! They change nothing.
use crate::schedule::{Result, Schedule};
use crate::tree::{self, LoopId, Node};
use crate::ScheduleError;
use satune_ir::BlockId;

/// The block of a name. Refused where no block, or more than one, has it.
pub fn get_sblock(s: &Schedule, name: &str) -> Result<BlockId> {
    let root = &s.program().body;
    let mut found: Vec<BlockId> = Vec::new();
    if root.block.name == name {
        found.push(root.block.id);
    }
    found.extend(tree::all_realizes(&root.block.body).into_iter().filter(|r| r.block.name == name).map(|r| r.block.id));
    match found[..] {
        [one] => Ok(one),
        [] => Err(ScheduleError::refused(
            "Cannot find a block with the specified name",
            format!("Cannot find a block with the name: {name}"),
        )
        .within("get_sblock")),
        _ => {
            let mut error = ScheduleError::refused(
                "Found multiple blocks with the specified name",
                format!("Found  {} blocks with the name: {name}", found.len()),
            )
            .within("get_sblock");
            error.blocks = found;
            Err(error)
        }
    }
}

/// The same under its older name.
pub fn get_block(s: &Schedule, name: &str) -> Result<BlockId> {
    get_sblock(s, name)
}

/// The loops of a block, outermost first.
pub fn get_loops(s: &Schedule, block: BlockId) -> Result<Vec<LoopId>> {
    s.loops_of(block).map_err(|e| e.within("get_loops"))
}

/// The direct child blocks of a loop or block, in program order.
pub fn get_child_blocks(s: &Schedule, node: Node) -> Result<Vec<BlockId>> {
    s.child_blocks(node).map_err(|e| e.within("get_child_blocks"))
}

/// The blocks of the scope that write what `block` reads or writes, before it.
pub fn get_producers(s: &Schedule, block: BlockId) -> Result<Vec<BlockId>> {
    let scope = s.scope_of(Node::Block(block)).and_then(|scope| s.scope(scope));
    scope.map(|g| g.producers(block)).map_err(|e| e.within("get_producers"))
}

/// The blocks of the scope that read or overwrite what `block` writes, after it.
pub fn get_consumers(s: &Schedule, block: BlockId) -> Result<Vec<BlockId>> {
    let scope = s.scope_of(Node::Block(block)).and_then(|scope| s.scope(scope));
    scope.map(|g| g.consumers(block)).map_err(|e| e.within("get_consumers"))
}

/// The child blocks of a scope block that write a buffer which the scope does not allocate.
pub fn get_output_blocks(s: &Schedule, scope: BlockId) -> Result<Vec<BlockId>> {
    let graph = s.scope(scope).map_err(|e| e.within("get_output_blocks"))?;
    let outputs = graph.children.iter().filter(|&&b| s.block(b).is_ok_and(|b| graph.is_output(b)));
    Ok(outputs.copied().collect())
}
