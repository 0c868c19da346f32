//! The regions that blocks declare, after their bodies have changed.
use satune_ir::{access, pointers, Block, Buffer, BufferId, Stmt};

/// Declares what the block's body touches; accesses of a view are accesses of what it names, whole.
fn declare(block: &mut Block, buffers: &[Buffer]) {
    let own: Vec<BufferId> =
        block.alloc_buffers.iter().copied().chain(block.match_buffers.iter().map(|m| m.0)).collect();
    let found = access::of_block(block.init.as_deref(), &block.body, &own, buffers);
    let mut views: Vec<BufferId> = block.match_buffers.iter().map(|(_, source)| source.buffer).collect();
    // What is accessed through a pointer is what was declared: the text does not say.
    let init = block.init.as_deref().map(pointers::pointed_in).unwrap_or_default();
    views.extend(pointers::pointed_in(&block.body).into_iter().chain(init).map(|(b, _)| b));
    for (declared, now) in [(&mut block.reads, found.reads), (&mut block.writes, found.writes)] {
        let of_views = declared.iter().filter(|r| views.contains(&r.buffer)).cloned().collect::<Vec<_>>();
        *declared = now.into_iter().filter(|r| !views.contains(&r.buffer)).collect();
        declared.extend(of_views);
    }
}

/// Declares anew what all blocks below `stmt` touch that declare an access of `buffer`, inner blocks first.
pub fn refresh(stmt: &mut Stmt, buffers: &[Buffer], buffer: BufferId) {
    match stmt {
        Stmt::For(l) => refresh(&mut l.body, buffers, buffer),
        Stmt::Realize(r) => {
            refresh(&mut r.block.body, buffers, buffer);
            if let Some(init) = &mut r.block.init {
                refresh(init, buffers, buffer);
            }
            if r.block.reads.iter().chain(&r.block.writes).any(|x| x.buffer == buffer) {
                declare(&mut r.block, buffers);
            }
        }
        Stmt::Seq(parts) => parts.iter_mut().for_each(|s| refresh(s, buffers, buffer)),
        Stmt::If { then, otherwise, .. } => {
            refresh(then, buffers, buffer);
            if let Some(s) = otherwise {
                refresh(s, buffers, buffer);
            }
        }
        Stmt::Let { body, .. } => refresh(body, buffers, buffer),
        Stmt::Store { .. } | Stmt::Evaluate(_) => {}
    }
}
