//! The classes of blocks and of scopes that primitives ask for.
use crate::dependencies::Scope;
use crate::schedule::{Result, Schedule};
use crate::tree::{self, Node};
use crate::ScheduleError;
use satune_ir::{visit, Block, BlockId, IterKind, Stmt, VarId};
use std::collections::HashSet;

/// The condition of a complete block that does not hold, if any: 1 all iterators are data-parallel, 2 it is the only
/// writer of what it writes (`dominant`), 3 it reads nothing that it writes.
fn complete_violation(block: &Block, dominant: bool) -> Option<u8> {
    if block.iter_vars.iter().any(|iv| iv.kind != IterKind::Spatial) {
        Some(1)
    } else if !dominant {
        Some(2)
    } else if block.reads.iter().any(|r| block.writes.iter().any(|w| w.buffer == r.buffer)) {
        Some(3)
    } else {
        None
    }
}

/// The condition of a reduction block that does not hold, if any: 1 it has an init, 2 its binding is affine, 3 iterators
/// are data-parallel or reductions, 4 it is the only writer of what it writes, 5 no reduction iterator indexes what it
/// writes.
fn reduction_violation(s: &Schedule, block: &Block, dominant: bool) -> Option<u8> {
    if block.init.is_none() {
        Some(1)
    } else if !s.flags(block.id).affine_binding {
        Some(2)
    } else if block.iter_vars.iter().any(|iv| !iv.kind.any_order()) {
        Some(3)
    } else if !dominant {
        Some(4)
    } else if reduce_iter_indexes_output(block) {
        Some(5)
    } else {
        None
    }
}

fn reduce_iter_indexes_output(block: &Block) -> bool {
    let reduce: HashSet<VarId> =
        block.iter_vars.iter().filter(|iv| iv.kind == IterKind::Reduce).map(|iv| iv.var.id).collect();
    let mut found = false;
    visit::walk_stmt(&block.body, &mut |s| {
        if let Stmt::Store { buffer, indices, .. } = s {
            found |= block.writes.iter().any(|w| w.buffer == *buffer)
                && indices.iter().any(|e| visit::uses_var(e, &|v| reduce.contains(&v)));
        }
    });
    found
}

const COMPLETE: &str =
    "Definition of a complete block:\n1) All block vars are data parallel\n2) Dominant: the block is the only \
                        writer of its output, dominating the reader of its output buffers\n3) No overlap between the \
                        buffers the block reads and writes";
const REDUCTION: &str = "Definition of a reduction block:\n1) The block has the `init` statement\n2) All the block bindings are \
                         quasi-affine expressions\n3) All block vars are either data parallel block vars or reduction \
                         block vars\n4) Dominant: the block is the only writer of its output, dominating the reader of its \
                         output buffers\n5) The reduction block vars are not used to index the output buffers";

/// Refuses a block that is not complete in its scope.
pub fn require_complete(s: &Schedule, block: BlockId, scope: &Scope) -> Result<()> {
    let b = s.block(block)?;
    complete_violation(b, scope.is_dominant(b)).map_or(Ok(()), |n| {
        let detail = format!("The block {} is not a complete block - it violates condition #{n}.\n{COMPLETE}", b.name);
        Err(ScheduleError::refused("Incomplete block", detail)
            .at_block(block)
            .remedy("make this call before the one that lost the condition named"))
    })
}

/// Refuses a block that is not a reduction block in its scope.
pub fn require_reduction(s: &Schedule, block: BlockId, scope: &Scope) -> Result<()> {
    let b = s.block(block)?;
    reduction_violation(s, b, scope.is_dominant(b)).map_or(Ok(()), |n| {
        let detail =
            format!("The block {} is not a reduction block - it violates condition #{n}.\n{REDUCTION}", b.name);
        Err(ScheduleError::refused("Not a reduction block", detail)
            .at_block(block)
            .remedy("make this call before decompose_reduction, on a block with an init"))
    })
}

/// Whether a block is complete in its scope.
pub fn is_complete(s: &Schedule, block: BlockId, scope: &Scope) -> bool {
    require_complete(s, block, scope).is_ok()
}

/// Whether a block is a reduction block in its scope.
pub fn is_reduction(s: &Schedule, block: BlockId, scope: &Scope) -> bool {
    require_reduction(s, block, scope).is_ok()
}

/// Refuses a block that is neither complete nor a reduction block in its scope.
pub fn require_complete_or_reduction(s: &Schedule, block: BlockId, scope: &Scope) -> Result<()> {
    let b = s.block(block)?;
    let dominant = scope.is_dominant(b);
    match (complete_violation(b, dominant), reduction_violation(s, b, dominant)) {
        (Some(c), Some(r)) => Err(ScheduleError::refused(
            "Not a complete or reduction block",
            format!(
                "The block {0} is not a complete block - it violates condition #{c}.\n{COMPLETE}\nThe block {0} is not a \
                 reduction block - it violates condition #{r}.\n{REDUCTION}",
                b.name
            ),
        )
        .at_block(block).remedy("let each buffer have one writer, and reductions only update what their init set")),
        _ => Ok(()),
    }
}

/// Refuses a subtree with a child block that is neither locally complete nor a local reduction.
pub fn require_compact_dataflow(s: &Schedule, node: Node) -> Result<()> {
    let body = s.body_of(node)?;
    let children = tree::child_realizes(body);
    // Below a loop, dominance is asked of the writers inside the child blocks, as TVM does: vacuous for leaf blocks.
    let inner: Vec<Scope> = match node {
        Node::Block(id) => vec![s.scope(id)?],
        Node::Loop(_) => children.iter().map(|r| Scope::of(&r.block)).collect(),
    };
    for r in children {
        let b = &r.block;
        let dominant = inner.iter().all(|scope| scope.is_dominant(b));
        if let (Some(c), Some(n)) = (complete_violation(b, dominant), reduction_violation(s, b, dominant)) {
            let detail = format!(
                "The queried subtree root in SRef tree does not have compact dataflow, because its child block {0} on SRef \
                 tree is neither a local complete block nor a local reduction block.\nIt violates condition #{c} as a local \
                 complete block.\n{COMPLETE}\nIt violates condition #{n} as a local reduction block.\n{REDUCTION}",
                b.name
            );
            return Err(ScheduleError::refused(
                "The queried subtree root in SRef tree does not have compact dataflow, because some of its child block on \
                 SRef tree is neither a local complete block nor a local reduction block.",
                detail,
            )
            .at_block(b.id)
            .remedy("bind, parallelize and vectorize before decompose_reduction"));
        }
    }
    Ok(())
}

/// Refuses a scope that is not a stage pipeline.
pub fn require_stage_pipeline(s: &Schedule, scope: BlockId) -> Result<()> {
    if s.flags(scope).stage_pipeline {
        return Ok(());
    }
    let detail = format!(
        "The scope {} is not a stage pipeline.\nDefinition of a scope that is a stage pipeline:\n- The region cover property \
         holds for every of its child blocks\n- No write-after-read dependency or opaque dependency\n- only read-after-write \
         and write-after-write are allowed\n- All the statements in the scope are schedulable statements, i.e. Block and For",
        s.block(scope)?.name
    );
    Err(ScheduleError::refused("The scope root is not a stage pipeline", detail)
        .at_block(scope)
        .remedy("let each buffer of the scope have one writer, before its readers"))
}

/// The scope in which a block stands. Refused where it is not a stage pipeline.
pub fn pipeline_of(s: &Schedule, block: BlockId) -> Result<BlockId> {
    let scope = s.scope_of(Node::Block(block))?;
    require_stage_pipeline(s, scope)?;
    Ok(scope)
}

/// Refuses a block that writes a buffer of an outer scope.
pub fn require_not_output(s: &Schedule, block: BlockId, scope: &Scope) -> Result<()> {
    let b = s.block(block)?;
    if scope.is_output(b) {
        let detail = format!("The block {} is an output block", b.name);
        return Err(ScheduleError::refused("Cannot operate on an output block", detail)
            .at_block(block)
            .remedy("cache_write the block first, then move the block that it leaves"));
    }
    Ok(())
}
