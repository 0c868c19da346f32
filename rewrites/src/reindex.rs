//! `reindex`: copy a buffer into one that is indexed by a block's iterators.
//!
//! before                                        after, reindex(C, ("read", 0))
//!   for i, j in T.grid(16, 30):                   A_reindex = T.sblock_alloc_buffer((16, 30))
//!       with T.sblock("C"):                       for ax0, ax1 in T.grid(16, 30):
//!           vi, vj = ...                              with T.sblock("A_reindex_reindex"):
//!           C[vi, vj] = A[vj, vi] * 2                     v0, v1 = T.axis.remap("SS", [ax0, ax1])
//!                                                         A_reindex[v0, v1] = A[v1, v0]
//!                                                 for i, j in T.grid(16, 30):
//!                                                     with T.sblock("C"):
//!                                                         vi, vj = ...
//!                                                         C[vi, vj] = A_reindex[vi, vj] * 2
//!
//! Legal when: 1 the index names a buffer that the block reads (or writes); 2 its scope is a stage pipeline; 3 the block
//! holds no other block, and accesses the buffer at one place only; 4 every loop above it holds just the next one; and, what
//! TVM does not ask: 5 the block does not both read and write the buffer, but for a reduction's own result; 6 no other block
//! of the nest exchanges the buffer with it; 7 the copy stays inside the buffer; 8 what is written, the block writes whole,
//! every element once.
use crate::arith::{self, add, constant, int, Domains};
use crate::cache_common;
use crate::guards::always;
use crate::linear::{all, conjuncts, Linear};
use crate::reindex_common::{self as common, refused};
use crate::schedule::{BlockFlags, Result, Schedule};
use crate::simplify::sorted;
use crate::tree::Node;
use crate::{iter_map, regions, scope, ScheduleError};
use satune_ir::{
    visit, Block, BlockId, BlockRealize, Buffer, BufferId, DType, Expr, For, IterKind, IterVar, Range, Stmt, VarId,
};
use std::collections::HashMap;

/// Which way the buffer is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferIndexType {
    /// The block reads it: the copy comes before.
    Read,
    /// The block writes it: the copy comes after.
    Write,
}

/// What is copied, and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The block in which the copy stands.
    pub scope: BlockId,
    /// What is accessed by other indices from now on.
    pub buffer: BufferId,
    /// Where the block accesses it.
    pub indices: Vec<Expr>,
    /// The iterators that these use.
    pub iterators: Vec<IterVar>,
    /// The outermost loop of the block, or the block.
    pub top: Node,
}

/// Conditions 1 to 8.
pub fn legal(s: &Schedule, block: BlockId, kind: BufferIndexType, index: i64) -> Result<Plan> {
    let region = regions::access(s, block, index, kind == BufferIndexType::Write)?;
    let scope_id = scope::pipeline_of(s, block)?;
    let realize = s.realize(block)?;
    let b = &realize.block;
    let written = common::one_place(s, b, region.buffer)?;
    let domains = regions::iter_domains(b);
    let indices: Vec<Expr> = written.iter().map(|e| sorted(e, &domains)).collect();
    let covers = |iv: &&IterVar| indices.iter().any(|e| visit::uses_var(e, &|v| v == iv.var.id));
    let iterators: Vec<IterVar> = b.iter_vars.iter().filter(covers).cloned().collect();
    let top = require_chain(s, block)?;
    common::require_one_way(s, b, region.buffer, kind == BufferIndexType::Write)?;
    require_no_exchange(s, block, top, region.buffer)?;
    common::require_in_bounds(s, b, region.buffer, &indices)?;
    if kind == BufferIndexType::Write {
        require_whole_writes(s, realize, region.buffer, &indices, &iterators)?;
    }
    Ok(Plan { scope: scope_id, buffer: region.buffer, indices, iterators, top })
}

/// The outermost loop above the block (or the block, where there is none). Refused where a loop holds more than the next.
fn require_chain(s: &Schedule, block: BlockId) -> Result<Node> {
    let loops = s.loops_of(block)?;
    for pair in loops.windows(2) {
        if !matches!(s.body_of(Node::Loop(pair[0]))?, Stmt::For(inner) if inner.var.id == pair[1]) {
            let outer = s.get_loop(pair[0])?;
            return Err(ScheduleError::internal(format!(
                "The loops above block {} are no chain: loop {} holds more than the next one",
                s.block(block)?.name,
                outer.var.name
            ))
            .at_block(block)
            .at_loop(pair[0])
            .remedy("reindex before other blocks are moved under these loops"));
        }
    }
    Ok(loops.first().map_or(Node::Block(block), |l| Node::Loop(*l)))
}

/// Condition 6: the copy stands outside of the nest, so nothing inside may be between it and the block.
fn require_no_exchange(s: &Schedule, block: BlockId, top: Node, buffer: BufferId) -> Result<()> {
    let Node::Loop(_) = top else { return Ok(()) };
    for other in s.child_blocks(top)?.into_iter().filter(|b| *b != block) {
        let b = s.block(other)?;
        // A reader would come too early, which TVM accepts; `soundness` finds it.
        if b.writes.iter().any(|w| w.buffer == buffer) {
            let why = format!("{} in the same nest writes it", b.name);
            return Err(refused(s, block, buffer, why)?.at_block(other));
        }
    }
    Ok(())
}

/// Condition 8: the copy writes every element, in an order of its own.
fn require_whole_writes(
    s: &Schedule,
    realize: &BlockRealize,
    buffer: BufferId,
    indices: &[Expr],
    iterators: &[IterVar],
) -> Result<()> {
    let b = &realize.block;
    let yes = int(1, DType::Bool);
    let domains = regions::iter_domains(b);
    let used: Domains = domains.into_iter().filter(|(v, _)| iterators.iter().any(|iv| iv.var.id == *v)).collect();
    if !iter_map::detect(indices, &used, &yes, true).is_some_and(|m| m.is_bijective(&used)) {
        return Err(refused(s, b.id, buffer, "it may write an element several times")?);
    }
    let loops = s.get_loops(&s.loops_of(b.id)?)?.into_iter().cloned().collect::<Vec<_>>();
    let domains = arith::domains(&loops.iter().collect::<Vec<_>>());
    let ranges: Vec<Range> = b
        .iter_vars
        .iter()
        .zip(&realize.iter_values)
        .filter(|(iv, _)| used.contains_key(&iv.var.id))
        .map(|(_, e)| Range { min: e.clone(), extent: int(1, DType::I32) })
        .collect();
    // Every element is written in the first round of the loops that only reduce, if not before.
    let moves = |l: &For| ranges.iter().any(|r| visit::uses_var(&r.min, &|v| v == l.var.id));
    let first: HashMap<VarId, Expr> = loops.iter().filter(|l| !moves(l)).map(|l| (l.var.id, l.min.clone())).collect();
    let clauses = conjuncts(&realize.predicate).into_iter().map(|c| visit::substitute(&c, &first));
    let predicate = all(clauses.filter(|c| !always(c, &domains)));
    let whole = |(iv, e): (&IterVar, &Expr)| !used.contains_key(&iv.var.id) || in_whole(e, iv, &domains, &predicate);
    if arith::fills_boxes(&ranges, &domains, &predicate) && b.iter_vars.iter().zip(&realize.iter_values).all(whole) {
        return Ok(());
    }
    Err(refused(s, b.id, buffer, "it may leave elements unwritten")?)
}

/// Whether an iterator's value takes both ends of its domain.
fn in_whole(value: &Expr, iv: &IterVar, loops: &Domains, predicate: &Expr) -> bool {
    let (Some(lo), Some(extent)) = (constant(&iv.min), constant(&iv.extent)) else { return false };
    let Some((Some(first), Some(last))) = Linear::of(value, loops).map(|l| l.ends(loops)) else { return false };
    let end = lo.saturating_add(extent);
    // Under a guard, the loops may run further than the domain.
    first == lo && (last == end - 1 || (last >= end && !matches!(predicate, Expr::Int(1, _))))
}

/// The primitive. Returns the block that copies.
pub fn reindex(s: &mut Schedule, block: BlockId, kind: BufferIndexType, index: i64) -> Result<BlockId> {
    let plan = legal(s, block, kind, index).map_err(|e| e.within("reindex"))?;
    apply(s, block, kind, &plan).map_err(|e| e.within("reindex"))
}

fn apply(s: &mut Schedule, block: BlockId, kind: BufferIndexType, plan: &Plan) -> Result<BlockId> {
    let old = s.program().buffer(plan.buffer);
    let shape = plan.iterators.iter().map(|iv| add(iv.min.clone(), iv.extent.clone())).collect();
    let new = Buffer { name: format!("{}_reindex", old.name), shape, strides: Vec::new(), ..old.clone() };
    let copy = s.program_mut().add_buffer(new);
    let (id, nest) = copy_nest(s, kind, plan, copy);
    let indices: Vec<Expr> = plan.iterators.iter().map(|iv| Expr::Var(iv.var.clone())).collect();
    s.update_block(block, |b| common::redirect(b, plan.buffer, copy, &indices))?;
    s.replace(plan.top, |old| {
        Stmt::seq(if kind == BufferIndexType::Read { vec![nest, old] } else { vec![old, nest] })
    })?;
    s.update_block(plan.scope, |b| b.alloc_buffers.push(copy))?;
    s.set_flags(id, BlockFlags { affine_binding: false, region_cover: true, stage_pipeline: true });
    s.update_affine_binding(id);
    Ok(id)
}

/// The nest that copies, and its block.
fn copy_nest(s: &mut Schedule, kind: BufferIndexType, plan: &Plan, copy: BufferId) -> (BlockId, Stmt) {
    let target = if kind == BufferIndexType::Read { copy } else { plan.buffer };
    let name = format!("{}_reindex", s.program().buffer(target).name);
    let dims: Vec<_> = plan
        .iterators
        .iter()
        .enumerate()
        .map(|(i, iv)| (format!("ax{i}"), iv.min.clone(), iv.extent.clone()))
        .collect();
    let id = s.program_mut().fresh_block();
    let nest = s.nest(&dims, |program, loops| {
        let fresh = |(i, iv): (usize, &IterVar)| IterVar {
            var: program.fresh_var(format!("v{i}"), iv.var.dtype),
            kind: IterKind::Spatial,
            ..iv.clone()
        };
        let iter_vars: Vec<IterVar> = plan.iterators.iter().enumerate().map(fresh).collect();
        let own: Vec<Expr> = iter_vars.iter().map(|iv| Expr::Var(iv.var.clone())).collect();
        let rename: HashMap<VarId, Expr> = plan.iterators.iter().map(|iv| iv.var.id).zip(own.iter().cloned()).collect();
        let other: Vec<Expr> = plan.indices.iter().map(|e| visit::substitute(e, &rename)).collect();
        let (from, source, to, target) = match kind {
            BufferIndexType::Read => (plan.buffer, other, copy, own),
            BufferIndexType::Write => (copy, own, plan.buffer, other),
        };
        let block = Block {
            iter_vars,
            reads: vec![cache_common::point(from, &source)],
            writes: vec![cache_common::point(to, &target)],
            ..Block::plain(id, name, Stmt::Store { buffer: to, indices: target, value: Expr::Load(from, source) })
        };
        Stmt::Realize(Box::new(BlockRealize { iter_values: loops.to_vec(), predicate: int(1, DType::Bool), block }))
    });
    (id, nest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decompose_reduction::decompose_reduction;
    use crate::testing::{assert_program, block, func, joined, loops, matmul, refusal, schedule};

    const COPY: &str = "ScheduleError: The copy would not hold what the block exchanges with others";
    const HEADER: &str =
        "A: T.Buffer((16, 16), \"float32\"), B: T.Buffer((16, 16), \"float32\"), C: T.Buffer((16, 16), \"float32\")";

    #[test]
    fn applies_to_reads() {
        let mut s = matmul();
        let c = block(&s, "C");
        let id = reindex(&mut s, c, BufferIndexType::Read, 1).unwrap();
        assert_eq!(s.block(id).unwrap().name, "B_reindex_reindex");
        assert_program(
            &s,
            &func(
                HEADER,
                r#"
B_reindex = T.sblock_alloc_buffer((16, 16))
for ax0, ax1 in T.grid(16, 16):
    with T.sblock("B_reindex_reindex"):
        v0, v1 = T.axis.remap("SS", [ax0, ax1])
        T.reads(B[v1, v0])
        T.writes(B_reindex[v0, v1])
        B_reindex[v0, v1] = B[v1, v0]
for i, j, k in T.grid(16, 16, 16):
    with T.sblock("C"):
        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
        T.reads(A[vi, vk], B_reindex[vj, vk])
        T.writes(C[vi, vj])
        with T.init():
            C[vi, vj] = T.float32(0)
        C[vi, vj] = C[vi, vj] + A[vi, vk] * B_reindex[vj, vk]
"#,
            ),
        );
    }

    #[test]
    fn applies_to_writes() {
        let mut s = matmul();
        let c = block(&s, "C");
        reindex(&mut s, c, BufferIndexType::Write, 0).unwrap();
        assert_program(
            &s,
            &func(
                HEADER,
                r#"
C_reindex = T.sblock_alloc_buffer((16, 16))
for i, j, k in T.grid(16, 16, 16):
    with T.sblock("C"):
        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
        T.reads(A[vi, vk], B[vk, vj])
        T.writes(C_reindex[vi, vj])
        with T.init():
            C_reindex[vi, vj] = T.float32(0)
        C_reindex[vi, vj] = C_reindex[vi, vj] + A[vi, vk] * B[vk, vj]
for ax0, ax1 in T.grid(16, 16):
    with T.sblock("C_reindex"):
        v0, v1 = T.axis.remap("SS", [ax0, ax1])
        T.reads(C_reindex[v0, v1])
        T.writes(C[v0, v1])
        C[v0, v1] = C_reindex[v0, v1]
"#,
            ),
        );
    }

    /// One block that stores `value` at `index`.
    fn one(index: &str, value: &str) -> Schedule {
        let body = format!(
            r#"
for i, j in T.grid(8, 16):
    with T.sblock("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[{index}] = {value}
"#
        );
        schedule(&func(HEADER, &body))
    }

    #[test]
    fn refuses_several_places() {
        let mut s = one("vi, vj", "A[vi, vj] + A[vj, vi]");
        let c = block(&s, "C");
        let message =
            "ScheduleError: The target buffer should be accessed via TensorLoad or BufferStore. The indices should \
                       be the same if there are multiple accesses to the target buffer.";
        assert_eq!(refusal(&mut s, |s| reindex(s, c, BufferIndexType::Read, 0)), message);
        assert!(refusal(&mut s, |s| reindex(s, c, BufferIndexType::Read, 1)).contains("`buffer_index` is out of range"));
    }

    #[test]
    fn refuses_blocks_with_blocks() {
        let mut s = one("vi, vj", "A[vi, vj]");
        let root = s.root();
        let message = "ScheduleError: The primitive does not operate on the root block";
        s.update_block(root, |b| b.reads.push(satune_ir::Region { buffer: BufferId(0), ranges: Vec::new() })).unwrap();
        assert_eq!(refusal(&mut s, |s| reindex(s, root, BufferIndexType::Read, 0)), message);
    }

    #[test]
    fn refuses_what_the_copy_would_get_wrong() {
        // Outside of the buffer where the condition does not hold.
        let mut s = one("vi, vj", "T.if_then_else(1 <= vi, A[vi - 1, vj], T.float32(0))");
        let c = block(&s, "C");
        assert_eq!(refusal(&mut s, |s| reindex(s, c, BufferIndexType::Read, 0)), COPY);
        // Several instances write one element.
        let mut s = one("vi // 2, vj", "A[vi, vj]");
        let c = block(&s, "C");
        assert_eq!(refusal(&mut s, |s| reindex(s, c, BufferIndexType::Write, 0)), COPY);
        // The producer is in the same nest.
        let mut s = joined();
        let (b, c) = (block(&s, "B"), block(&s, "C"));
        assert_eq!(
            refusal(&mut s, |s| reindex(s, b, BufferIndexType::Write, 0)).split(':').next(),
            Some("The loops above block B are no chain")
        );
        assert!(s.block(c).is_ok());
        // An update in place.
        let mut s = matmul();
        let (c, k) = (block(&s, "C"), loops(&s, "C")[2]);
        decompose_reduction(&mut s, c, k).unwrap();
        assert!(refusal(&mut s, |s| reindex(s, c, BufferIndexType::Write, 0)).starts_with("The loops above"));
    }
}
