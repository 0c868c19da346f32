//! What read_at and write_at share: one block beside those under a loop that copies all they read, or write, of a buffer.
use crate::arith::{self, add, constant, int, Domains};
use crate::cache_common::{self, Redirect};
use crate::flags::threads_share;
use crate::linear::{Interval, Linear};
use crate::regions;
use crate::schedule::{BlockFlags, Result, Schedule};
use crate::scope;
use crate::tree::{self, LoopId, Node};
use crate::ScheduleError;
use satune_ir::{
    visit, Attr, Block, BlockId, BlockRealize, BufferId, DType, Expr, ForKind, IterKind, IterVar, Range, Region, Stmt,
    Var,
};
use std::collections::HashMap;

/// What is copied, and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The block that allocates the copy.
    pub scope: BlockId,
    /// The buffer.
    pub buffer: BufferId,
    /// The box that is copied, in terms of the loops around.
    pub region: Vec<Interval>,
    /// The entry of the loop's body before which the copy stands.
    pub at: usize,
}

/// The conditions of `read_at`, or `write_at`, in TVM's order.
pub fn legal(s: &Schedule, target: LoopId, block: BlockId, index: i64, memory: &str, write: bool) -> Result<Plan> {
    let buffer = regions::access(s, block, index, write)?.buffer;
    let name = s.program().buffer(buffer).name.clone();
    regions::require_storage_scope(memory).map_err(|_| {
        ScheduleError::internal(format!("unknown storage scope {memory}"))
            .remedy("use global, shared, shared.dyn, warp, local or one of the wmma scopes")
    })?;
    let entries = tree::entries(s.body_of(Node::Loop(target))?);
    let outer = regions::domains_to(s, Node::Loop(target))?;
    let (mut readers, mut writers) = (Vec::new(), Vec::new());
    let mut region: Option<Vec<Interval>> = None;
    for (at, entry) in entries.iter().enumerate() {
        for r in tree::child_realizes(entry) {
            let of = |list: &[Region]| list.iter().any(|x| x.buffer == buffer);
            if of(&r.block.reads) {
                readers.push(at);
            }
            if of(&r.block.writes) {
                writers.push(at);
            }
            for access in if write { &r.block.writes } else { &r.block.reads } {
                if access.buffer == buffer {
                    let new = relaxed(s, r, access, target, memory, &outer)?;
                    region = Some(match region {
                        None => new,
                        Some(old) => old.iter().zip(&new).map(|(a, b)| a.union(b, &outer)).collect(),
                    });
                }
            }
        }
    }
    let fail = |condition: &str, why: String, remedy: &str| {
        let mut error = ScheduleError::internal(format!("Check failed: {condition}"));
        error.detail = why;
        error.at_block(block).at_loop(target).remedy(remedy)
    };
    let word = if write { "writes" } else { "reads" };
    let Some(region) = region else {
        let condition = if write { "(!w_pos.empty()) is false: " } else { "(!r_pos.empty()) is false: " };
        return Err(fail(condition, format!("no block under the loop {word} {name}"), "give a loop around the block"));
    };
    let at = if write {
        let last = *writers.last().unwrap_or(&0);
        if readers.last().is_some_and(|r| *r > last) {
            return Err(fail(
                "(r_pos.empty() || r_pos.back() <= w_pos.back()) is false: ",
                format!("{name} is read under the loop after its last write"),
                "give a loop around the writers alone",
            ));
        }
        last + 1
    } else {
        let first = *readers.first().unwrap_or(&0);
        if writers.last().is_some_and(|w| *w >= first) {
            return Err(fail(
                "(w_pos.empty() || w_pos.back() < r_pos.front()) is false: ",
                format!("{name} is written under the loop after its first read"),
                "give a loop around the readers alone",
            ));
        }
        first
    };
    for (interval, dim) in region.iter().zip(regions::whole(s, buffer)?) {
        let end = dim.hi.as_constant();
        let inside = interval.lo.ends(&outer).0.is_some_and(|lo| lo >= 0)
            && interval.hi.ends(&outer).1.zip(end).is_some_and(|(hi, end)| hi <= end);
        if !inside {
            let why = format!("what is copied of {name} may lie outside of it");
            return Err(ScheduleError::refused("The copied region is not inside the buffer", why)
                .at_block(block)
                .remedy("use cache_read or cache_write, which guard the copy, or factors that divide the extents"));
        }
    }
    let scope = s.scope_of(Node::Loop(target))?;
    scope::require_stage_pipeline(s, scope)?;
    Ok(Plan { scope, buffer, region, at })
}

/// What a block accesses below the loop, and by the threads above it that share the copy's memory.
fn relaxed(
    s: &Schedule,
    r: &BlockRealize,
    access: &Region,
    target: LoopId,
    memory: &str,
    outer: &Domains,
) -> Result<Vec<Interval>> {
    let mut loops = regions::relaxed_loops(s, r.block.id, Node::Loop(target), access.buffer, false)?;
    for node in s.path(Node::Loop(target))? {
        if let Node::Loop(id) = node {
            let l = s.get_loop(id)?;
            if matches!(&l.kind, ForKind::ThreadBinding(tag) if threads_share(memory, tag)) {
                loops.extend(arith::domains(&[l]));
            }
        }
    }
    regions::relaxed(s, r, access, &loops, outer)
}

/// Makes the copy. Returns its block.
pub fn apply(s: &mut Schedule, target: LoopId, plan: &Plan, memory: &str, write: bool) -> Result<BlockId> {
    let loops: Vec<Var> = s
        .path(Node::Loop(target))?
        .into_iter()
        .filter_map(|n| match n {
            Node::Loop(id) => Some(s.get_loop(id).map(|l| l.var.clone())),
            Node::Block(_) => None,
        })
        .collect::<Result<_>>()?;
    let domains = regions::domains_to(s, Node::Loop(target))?;
    let copy = cache_common::cache_buffer(s, plan.buffer, memory, None);
    let name = s.program().buffer(copy).name.clone();
    // An iterator per loop that the box depends on, in the order in which the box names them.
    let extent = |i: &Interval| i.extent(&domains).unwrap_or_else(|| Linear::constant(0)).expr();
    let bounds: Vec<(Expr, Expr)> = plan.region.iter().map(|i| (i.lo.expr(), extent(i))).collect();
    let mut used: Vec<Var> = Vec::new();
    for e in bounds.iter().flat_map(|(min, extent)| [min, extent]) {
        visit::walk_expr(e, &mut |e| match e {
            Expr::Var(v) if !used.contains(v) => used.push(v.clone()),
            _ => {}
        });
    }
    let mut iter_vars = Vec::new();
    let mut map = HashMap::new();
    for (i, v) in used.iter().enumerate() {
        let Some(domain) = loops.iter().find(|l| *l == v).and_then(|l| domains.get(&l.id)).cloned() else {
            return Err(ScheduleError::internal("the copied region depends on no loop").at_loop(target));
        };
        let var = s.program_mut().fresh_var(format!("v{i}"), v.dtype);
        map.insert(v.id, Expr::Var(var.clone()));
        iter_vars.push(IterVar { var, min: domain.min, extent: domain.extent, kind: IterKind::Spatial });
    }
    let here = |e: &Expr| visit::substitute(e, &map);
    let ranges: Vec<Range> =
        bounds.iter().map(|(min, extent)| Range { min: here(min), extent: here(extent) }).collect();
    let (from, to) = if write { (copy, plan.buffer) } else { (plan.buffer, copy) };
    let dims: Vec<_> =
        (0..ranges.len()).map(|i| (format!("ax{i}"), int(0, DType::I32), ranges[i].extent.clone())).collect();
    let body = s.nest(&dims, |_, loops| {
        let indices: Vec<Expr> = ranges.iter().zip(loops).map(|(r, l)| sum(&r.min, l)).collect();
        Stmt::Store { buffer: to, indices: indices.clone(), value: Expr::Load(from, indices) }
    });
    let id = s.program_mut().fresh_block();
    let region = |buffer| Region { buffer, ranges: ranges.clone() };
    let block = Block {
        iter_vars,
        reads: vec![region(from)],
        writes: vec![region(to)],
        annotations: [("auto_copy".to_string(), Attr::Bool(true))].into_iter().collect(),
        ..Block::plain(id, name, body)
    };
    let realize = BlockRealize {
        iter_values: used.into_iter().map(Expr::Var).collect(),
        predicate: satune_ir::fold::boolean(true),
        block,
    };
    let affine = !realize.iter_values.is_empty();
    let redirect = Redirect { from: plan.buffer, to: copy, origin: None };
    s.update_body(Node::Loop(target), |body| {
        let old = std::mem::replace(body, Stmt::Seq(Vec::new()));
        let mut parts = if let Stmt::Seq(parts) = old { parts } else { vec![old] };
        let at = plan.at.min(parts.len());
        let (before, after) = parts.split_at_mut(at);
        for part in if write { before } else { after } {
            tree::for_each_child_realize(part, &mut |r| redirect.reads_and_writes(r));
        }
        parts.insert(at, Stmt::Realize(Box::new(realize)));
        *body = Stmt::seq(parts);
    })?;
    s.update_block(plan.scope, |b| b.alloc_buffers.push(copy))?;
    s.set_flags(id, BlockFlags { affine_binding: affine, region_cover: true, stage_pipeline: true });
    Ok(id)
}

fn sum(min: &Expr, index: &Expr) -> Expr {
    match constant(min) {
        Some(0) => index.clone(),
        _ => add(min.clone(), index.clone()),
    }
}
