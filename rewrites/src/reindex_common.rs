//! What `reindex`, `reindex_cache_read` and `reindex_cache_write` share: a leaf block that accesses a buffer at one place
//! is made to access a copy of it, at other indices.
use crate::arith::{self, constant, Domains};
use crate::cache_common::point;
use crate::linear::Linear;
use crate::schedule::{Result, Schedule};
use crate::tree::{self, Node};
use crate::{regions, ScheduleError};
use satune_ir::{pointers, visit, Block, BlockId, BufferId, Expr, Region, Stmt};

/// The indices with which the block accesses a buffer. Refused where there are several, or none.
pub fn one_place(s: &Schedule, block: &Block, buffer: BufferId) -> Result<Vec<Expr>> {
    if !tree::child_realizes(&block.body).is_empty() {
        return Err(ScheduleError::refused(
            "The target block is not a leaf block.",
            format!("The target block {} is not a leaf block.", block.name),
        )
        .at_block(block.id)
        .remedy("name the innermost block that accesses the buffer"));
    }
    let (mut places, mut opaque): (Vec<Vec<Expr>>, bool) = (Vec::new(), false);
    let rank = s.program().buffer(buffer).shape.len();
    let mut note = |stmt: &Stmt| {
        visit::map_stmt_exprs(stmt, &mut |e| {
            // `A.data` holds the buffer without indices.
            visit::walk_expr(e, &mut |e| {
                opaque |= matches!(e, Expr::Load(b, list) if *b == buffer && list.len() != rank)
            });
            opaque |= pointers::pointed(e).iter().any(|(b, _)| *b == buffer);
            places.extend(visit::loads(e).into_iter().filter(|(b, _)| *b == buffer).map(|(_, i)| i));
            e.clone()
        });
        visit::walk_stmt(stmt, &mut |s| match s {
            Stmt::Store { buffer: b, indices, .. } if *b == buffer => places.push(indices.clone()),
            _ => {}
        });
    };
    note(&block.body);
    if let Some(init) = &block.init {
        note(init);
    }
    let why = match places.split_first() {
        _ if opaque => "Opaque buffer accesses found.",
        None => "No buffer accesses found.",
        Some((first, rest)) if rest.iter().all(|i| i == first) => return Ok(first.clone()),
        Some(_) => "Multiple buffer accesses have non-unique indices.",
    };
    Err(ScheduleError::refused(
        // The mixed names are TVM 0.27's.
        "The target buffer should be accessed via TensorLoad or BufferStore. The indices should be the same if there are \
         multiple accesses to the target buffer.",
        format!(
            "The target buffer {} should be accessed in the leaf block {} via BufferLoad or BufferStore. The indices should \
             be the same if there are multiple accesses to the target buffer. {why}",
            s.program().buffer(buffer).name,
            block.name
        ),
    )
    .at_block(block.id)
    .remedy("cache_read copies a buffer that is read at several places"))
}

/// A refusal because a copy of the buffer would not do for the block.
pub fn refused(s: &Schedule, block: BlockId, buffer: BufferId, why: impl std::fmt::Display) -> Result<ScheduleError> {
    let (name, buffer) = (&s.block(block)?.name, &s.program().buffer(buffer).name);
    Ok(ScheduleError::refused(
        "The copy would not hold what the block exchanges with others",
        format!("The block {name} cannot access a copy of {buffer}: {why}"),
    )
    .at_block(block)
    .remedy("choose a buffer whose elements this block alone exchanges"))
}

/// Refuses an update in place: it goes both ways, the copy only one.
pub fn require_one_way(s: &Schedule, block: &Block, buffer: BufferId, write: bool) -> Result<()> {
    let reads = block.reads.iter().any(|r| r.buffer == buffer);
    let writes = block.writes.iter().any(|w| w.buffer == buffer);
    // A reduction sets what it updates, whether it declares to read it or not.
    if writes && (!write || (reads && block.init.is_none())) {
        return Err(
            refused(s, block.id, buffer, "it is updated in place")?.remedy("reindex before decompose_reduction")
        );
    }
    Ok(())
}

/// Refuses indices that may leave the buffer: what a condition inside the block kept from being accessed, the copy would access.
pub fn require_in_bounds(s: &Schedule, block: &Block, buffer: BufferId, indices: &[Expr]) -> Result<()> {
    let mut domains = Domains::new();
    for node in s.path(Node::Block(block.id))? {
        match node {
            Node::Block(id) => domains.extend(regions::iter_domains(s.block(id)?)),
            Node::Loop(id) => domains.extend(arith::domains(&[s.get_loop(id)?])),
        }
    }
    let shape = &s.program().buffer(buffer).shape;
    for (e, dim) in indices.iter().zip(shape) {
        if !in_bounds(e, dim, &domains) {
            let why = format!("index {} may lie outside of it", crate::text::expr(e));
            return Err(refused(s, block.id, buffer, why)?);
        }
    }
    Ok(())
}

/// Whether an index stays inside `[0, dim)`.
fn in_bounds(index: &Expr, dim: &Expr, domains: &Domains) -> bool {
    match (Linear::of(index, domains).map(|l| l.ends(domains)), constant(dim)) {
        (Some((Some(lo), Some(hi))), Some(dim)) => lo >= 0 && hi < dim,
        _ => false,
    }
}

/// Makes the block access `copy` at `indices` wherever it accesses `buffer`.
pub fn redirect(block: &mut Block, buffer: BufferId, copy: BufferId, indices: &[Expr]) {
    for stmt in [Some(&mut block.body), block.init.as_mut()].into_iter().flatten() {
        **stmt = visit::map_stmt_exprs(stmt, &mut |e| {
            visit::replace_loads(e, buffer, &mut |_| Expr::Load(copy, indices.to_vec()))
        });
        stores(stmt, buffer, copy, indices);
    }
    let point = point(copy, indices);
    let region = |x: &mut Region| {
        if x.buffer == buffer {
            *x = point.clone();
        }
    };
    block.reads.iter_mut().for_each(region);
    block.writes.iter_mut().for_each(region);
}

fn stores(stmt: &mut Stmt, from: BufferId, to: BufferId, at: &[Expr]) {
    match stmt {
        Stmt::Store { buffer, indices, .. } if *buffer == from => {
            *buffer = to;
            *indices = at.to_vec();
        }
        Stmt::For(l) => stores(&mut l.body, from, to, at),
        Stmt::Seq(parts) => parts.iter_mut().for_each(|s| stores(s, from, to, at)),
        Stmt::If { then, otherwise, .. } => {
            stores(then, from, to, at);
            if let Some(s) = otherwise {
                stores(s, from, to, at);
            }
        }
        Stmt::Let { body, .. } => stores(body, from, to, at),
        Stmt::Store { .. } | Stmt::Realize(_) | Stmt::Evaluate(_) => {}
    }
}
