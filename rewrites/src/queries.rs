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
        .within("get_sblock")
        .remedy("name a block of the program; `show` prints them")),
        _ => {
            let mut error = ScheduleError::refused(
                "Found multiple blocks with the specified name",
                format!("Found  {} blocks with the name: {name}", found.len()),
            )
            .within("get_sblock")
            .remedy("give each block a name of its own");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{block, chain, func, schedule};

    #[test]
    fn answers() {
        let s = chain();
        let (b, c) = (block(&s, "B"), block(&s, "C"));
        assert_eq!(get_producers(&s, c).unwrap(), vec![b]);
        assert_eq!(get_consumers(&s, b).unwrap(), vec![c]);
        assert_eq!(get_producers(&s, b).unwrap(), vec![]);
        assert_eq!(get_output_blocks(&s, s.root()).unwrap(), vec![c]);
        assert_eq!(get_child_blocks(&s, Node::Block(s.root())).unwrap(), vec![b, c]);
        let loops = get_loops(&s, c).unwrap();
        assert_eq!(loops.len(), 2);
        assert_eq!(get_child_blocks(&s, Node::Loop(loops[1])).unwrap(), vec![c]);
    }

    #[test]
    fn refuses_unknown_and_ambiguous_names() {
        let s = chain();
        let error = get_sblock(&s, "X").unwrap_err();
        assert_eq!(error.fast, "ScheduleError: Cannot find a block with the specified name");
        assert_eq!(error.detail, "Cannot find a block with the name: X");
        let twice =
            "for i in range(4):\n    with T.sblock(\"B\"):\n        vi = T.axis.spatial(4, i)\n        B[vi] = A[vi]\n";
        let s = schedule(&func(
            "A: T.Buffer((4,), \"float32\"), B: T.Buffer((4,), \"float32\")",
            &format!("{twice}{twice}"),
        ));
        let error = get_sblock(&s, "B").unwrap_err();
        assert_eq!(error.fast, "ScheduleError: Found multiple blocks with the specified name");
        assert_eq!(error.detail, "Found  2 blocks with the name: B");
        assert_eq!(error.blocks.len(), 2);
    }

    #[test]
    fn the_root_block_has_no_producers() {
        let s = chain();
        let error = get_producers(&s, s.root()).unwrap_err();
        assert_eq!(error.fast, "ScheduleError: The primitive does not operate on the root block");
    }
}
