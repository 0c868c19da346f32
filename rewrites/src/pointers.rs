//! Accesses that cannot be seen: through a buffer's address (`A.data`, `T.tvm_access_ptr`, `T.address_of`), which says neither
//! which elements are touched nor in which order. Who moves or renames elements of such a buffer has to be refused.
use crate::schedule::{Result, Schedule};
use crate::tree;
use crate::ScheduleError;
use satune_ir::{pointers, Block, BufferId, Stmt};

/// Whether a block, apart from those inside it, takes the address of a buffer.
pub fn takes(block: &Block, buffer: BufferId) -> bool {
    let own = |stmt: &Stmt| {
        // Blocks inside it answer for themselves.
        let inner: usize = tree::child_realizes(stmt).iter().map(|r| count(&r.block, buffer)).sum();
        pointers::pointed_in(stmt).iter().filter(|(b, _)| *b == buffer).count() > inner
    };
    own(&block.body) || block.init.as_deref().is_some_and(own)
}

fn count(block: &Block, buffer: BufferId) -> usize {
    let of = |stmt: &Stmt| pointers::pointed_in(stmt).iter().filter(|(b, _)| *b == buffer).count();
    of(&block.body) + block.init.as_deref().map_or(0, of)
}

/// Refuses a buffer of which any block of the program has the address; `what` would happen to its elements.
pub fn require_none(s: &Schedule, buffer: BufferId, what: &str) -> Result<()> {
    let root = &s.program().body.block;
    let all = [root].into_iter().chain(tree::all_realizes(&root.body).into_iter().map(|r| &r.block));
    match all.into_iter().find(|b| takes(b, buffer)) {
        None => Ok(()),
        Some(block) => Err(refused(s, block, buffer, what)),
    }
}

/// The same, of a primitive that TVM lets fail an internal check: its message, with what is the matter.
pub fn require_none_as_tvm(s: &Schedule, buffer: BufferId, what: &str, check: &str) -> Result<()> {
    require_none(s, buffer, what).map_err(|refusal| {
        let mut error = ScheduleError::internal(format!("Check failed: ({check}) is false:"));
        (error.detail, error.blocks) = (refusal.detail.clone(), refusal.blocks.clone());
        error.remedy(refusal.remedy.clone())
    })
}

/// The refusal.
pub fn refused(s: &Schedule, block: &Block, buffer: BufferId, what: &str) -> ScheduleError {
    let name = &s.program().buffer(buffer).name;
    ScheduleError::refused(
        "The buffer has opaque access (e.g. `B.data`)",
        format!("The block {} accesses {name} through its address, and {what}", block.name),
    )
    .at_block(block.id)
    .remedy(format!("access {name} by its elements, or make this call on a buffer whose address nobody takes"))
}
