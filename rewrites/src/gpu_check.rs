//! The check of a scheduled program for a GPU: what the primitives cannot see one by one.
//!
//! A *kernel* is an outermost thread-bound loop and what is below it. Legal when: 1 something is bound, and every block
//! lies in a kernel; 2 all loops of a kernel with one `blockIdx`, `threadIdx` or cluster tag have equal, constant extents
//! (TVM drops all but one of them silently); 3 no loop lies in another of its tag, except cooperative copies into shared
//! memory; 4 reductions over threads have a form that threads can combine; 5 the kernel stays within the limits.
//! Sizes of shared and local buffers are no part of this: they are known after their regions are compacted.
use crate::lane::Lane;
use crate::regions::bindings;
use crate::schedule::Result;
use crate::tree::{self, tag_of, Node};
use crate::{arith, ScheduleError};
use indexmap::IndexMap;
use satune_ir::{
    visit, Block, BlockRealize, BufferId, DType, Expr, For, ForKind, IterKind, Program, Region, Stmt, VarId,
};
use serde::{Deserialize, Serialize};

/// What a GPU can run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLimits {
    /// Threads of a block, all dimensions together.
    pub threads_per_block: i64,
    /// Threads of a block in x, y and z.
    pub threads: [i64; 3],
    /// Blocks of a grid in x, y and z.
    pub blocks: [i64; 3],
    /// Virtual threads, all dimensions together.
    pub virtual_threads: i64,
    /// Bytes of one vector access.
    pub vector_bytes: i64,
}

impl Default for GpuLimits {
    /// CUDA's, on every GPU since compute capability 3.0; eight virtual threads per dimension.
    fn default() -> Self {
        GpuLimits {
            threads_per_block: 1024,
            threads: [1024, 1024, 64],
            blocks: [i64::from(i32::MAX), 65535, 65535],
            virtual_threads: 512,
            vector_bytes: 16,
        }
    }
}

fn refused(message: String) -> ScheduleError {
    ScheduleError::refused(&message, message.clone())
        .within("gpu_check")
        .remedy("choose tiles and threads within the limits of the GPU, which `satune gpu show` prints")
}

/// A loop inside another of its tag.
pub(crate) fn nested_tag(outer: &For, inner: &For, tag: &str) -> ScheduleError {
    refused(format!(
        "The loops {} and {} are nested and bound to one tag, {tag}: only their diagonal would be computed",
        outer.var.name, inner.var.name
    ))
    .at_loop(outer.var.id)
    .at_loop(inner.var.id)
    .remedy("fuse the loops before the bind, or bind one of them to another tag")
}

/// Whether `inner`, below the loop `outer` of the same tag, may use the threads anew: it feeds only blocks that copy from
/// global or shared memory into shared memory, and none of them uses `outer`.
pub fn is_cooperative(program: &Program, outer: VarId, inner: &For) -> bool {
    let realizes = tree::all_realizes(&inner.body);
    !realizes.is_empty()
        && realizes.iter().all(|r| {
            let scope = |region: &satune_ir::Region| &program.buffer(region.buffer).scope;
            !r.block.writes.is_empty()
                && r.block.writes.iter().all(|w| scope(w).starts_with("shared"))
                && r.block.reads.iter().all(|x| scope(x) == "global" || scope(x).starts_with("shared"))
                && !mentions(r, outer)
        })
}

fn mentions(r: &BlockRealize, var: VarId) -> bool {
    let mut found = false;
    visit::map_realize_exprs(r, &mut |e| {
        found |= visit::uses_var(e, &|v| v == var);
        e.clone()
    });
    found
}

/// Conditions 1 to 5.
pub fn check(program: &Program, limits: &GpuLimits) -> Result<()> {
    check_outside(program, &program.body.block.body, limits)
}

fn check_outside(program: &Program, stmt: &Stmt, limits: &GpuLimits) -> Result<()> {
    match stmt {
        Stmt::For(_) if tag_of(stmt).is_some() => check_kernel(program, stmt, limits),
        Stmt::Realize(r) if tree::child_realizes(&r.block.body).is_empty() => {
            Err(refused(format!("Block {} runs outside of every kernel. Did you forget to bind?", r.block.name))
                .at_block(r.block.id)
                .remedy("bind one of its loops to blockIdx.x or threadIdx.x, or compute it at a loop of a kernel"))
        }
        Stmt::Store { .. } => Err(refused("A statement runs outside of every kernel. Did you forget to bind?".into())),
        other => tree::children(other).into_iter().try_for_each(|s| check_outside(program, s, limits)),
    }
}

fn check_kernel(program: &Program, kernel: &Stmt, limits: &GpuLimits) -> Result<()> {
    let mut extents: IndexMap<String, (i64, VarId)> = IndexMap::new();
    for l in tree::all_loops(kernel) {
        let ForKind::ThreadBinding(tag) = &l.kind else { continue };
        let Some(extent) = arith::constant(&l.extent) else {
            return Err(refused(format!("The extent of loop {}, bound to {tag}, is not a constant", l.var.name))
                .at_loop(l.var.id));
        };
        match extents.get(tag) {
            Some(&(first, id)) if first != extent && !tag.starts_with("vthread") => {
                return Err(refused(format!(
                    "All loops that are bound to `{tag}` should have the same extent. However, there are two loops with \
                     extent {first} and {extent}, which are not equal"
                ))
                .at_loop(id)
                .at_loop(l.var.id)
                .remedy("split the longer loop so that its thread part has the extent of the other"));
            }
            Some(&(first, _)) if first >= extent => {}
            _ => {
                extents.insert(tag.clone(), (extent, l.var.id));
            }
        }
        for inner in tree::all_loops(&l.body) {
            if inner.kind == l.kind && !is_cooperative(program, l.var.id, inner) {
                return Err(nested_tag(l, inner, tag));
            }
        }
    }
    check_extents(&extents, limits)?;
    check_vectors(program, kernel, limits)?;
    check_reductions(program, kernel, &mut Vec::new())
}

fn check_extents(extents: &IndexMap<String, (i64, VarId)>, limits: &GpuLimits) -> Result<()> {
    let too_many = |what: String, used: i64, limit: i64| {
        let ids: Vec<VarId> = extents.values().map(|(_, id)| *id).collect();
        let mut error = refused(format!("Used {what} ({used}) is greater than the allowed maximum ({limit})"));
        error.loops = ids;
        Err(error)
    };
    let product = |prefix: &str| {
        extents.iter().filter(|(tag, _)| tag.starts_with(prefix)).fold(1i64, |p, (_, (e, _))| p.saturating_mul(*e))
    };
    for (axis, name) in ["x", "y", "z"].into_iter().enumerate() {
        for (prefix, limit) in [("threadIdx", limits.threads[axis]), ("blockIdx", limits.blocks[axis])] {
            let tag = format!("{prefix}.{name}");
            if let Some(&(extent, _)) = extents.get(&tag).filter(|(e, _)| *e > limit) {
                return too_many(format!("extent of {tag}"), extent, limit);
            }
        }
    }
    let threads = product("threadIdx");
    if threads > limits.threads_per_block {
        return too_many("threads per block".into(), threads, limits.threads_per_block);
    }
    let virtual_threads = product("vthread");
    if virtual_threads > limits.virtual_threads {
        return too_many("virtual threads".into(), virtual_threads, limits.virtual_threads);
    }
    Ok(())
}

fn check_vectors(program: &Program, kernel: &Stmt, limits: &GpuLimits) -> Result<()> {
    for l in tree::all_loops(kernel).into_iter().filter(|l| l.kind == ForKind::Vectorized) {
        let lanes = arith::constant(&l.extent).unwrap_or(i64::MAX);
        for r in tree::child_realizes(&l.body) {
            // An element that does not move with the loop is one for all lanes: a word of packed weights, too.
            let map = bindings(r);
            let lane = Lane { var: l.var.id, lanes };
            let moves = |at: &Expr| !lane.stays(&visit::substitute(at, &map));
            for (accessed, _) in accesses(&r.block).into_iter().filter(|(_, at)| at.iter().any(moves)) {
                let buffer = program.buffer(accessed);
                let used = lanes.saturating_mul(bytes(buffer.dtype));
                if used > limits.vector_bytes {
                    return Err(refused(format!(
                        "The vectorized loop {} makes accesses of {used} bytes to {}, more than the allowed maximum of {}",
                        l.var.name, buffer.name, limits.vector_bytes
                    ))
                    .at_loop(l.var.id)
                    .at_block(r.block.id)
                    .remedy("split the loop and vectorize a shorter one"));
                }
            }
        }
    }
    Ok(())
}

/// What a block accesses, and where: where its regions begin, if its body is more than a store.
fn accesses(block: &Block) -> Vec<(BufferId, Vec<Expr>)> {
    let Stmt::Store { buffer, indices, value } = &*block.body else {
        let start = |region: &Region| (region.buffer, region.ranges.iter().map(|x| x.min.clone()).collect());
        return block.writes.iter().chain(&block.reads).map(start).collect();
    };
    let mut all = vec![(*buffer, indices.clone())];
    all.extend(visit::loads(value));
    all
}

fn bytes(dtype: DType) -> i64 {
    match dtype {
        DType::Bool | DType::I8 | DType::U8 | DType::F8E4M3 | DType::F8E5M2 => 1,
        DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
        DType::I32 | DType::U32 | DType::TF32 | DType::F32 => 4,
        DType::I64 | DType::U64 | DType::F64 | DType::Handle => 8,
    }
}

/// Condition 4, for every block with reduction iterators below `stmt`; `above` are the loops around it.
fn check_reductions<'a>(program: &Program, stmt: &'a Stmt, above: &mut Vec<&'a For>) -> Result<()> {
    match stmt {
        Stmt::For(l) => {
            above.push(l);
            let result = check_reductions(program, &l.body, above);
            above.pop();
            result
        }
        Stmt::Realize(r) => {
            check_reduction(program, r, above)?;
            check_reductions(program, &r.block.body, &mut Vec::new())
        }
        other => tree::children(other).into_iter().try_for_each(|s| check_reductions(program, s, above)),
    }
}

fn check_reduction(program: &Program, r: &BlockRealize, above: &[&For]) -> Result<()> {
    let b = &r.block;
    let feeds_reduction = |l: &For| {
        let id = l.var.id;
        b.iter_vars
            .iter()
            .zip(&r.iter_values)
            .any(|(iv, e)| iv.kind == IterKind::Reduce && visit::uses_var(e, &|v| v == id))
    };
    let is_bound = |l: &For| matches!(l.kind, ForKind::ThreadBinding(_)) && arith::constant(&l.extent) != Some(1);
    let Some(bound) = above.iter().find(|l| feeds_reduction(l) && is_bound(l)) else { return Ok(()) };
    let fail = |b: &Block, why: &str| {
        Err(refused(format!("Cross-thread reduction cannot be applied to the block {}: {why}", b.name))
            .at_block(b.id)
            .at_loop(bound.var.id))
    };
    if b.init.is_none() {
        return fail(b, "it has no init any more, so the threads have nothing to combine");
    }
    let first = above.iter().position(|l| feeds_reduction(l)).unwrap_or(0);
    if above[first..].iter().any(|l| !feeds_reduction(l) && arith::constant(&l.extent) != Some(1)) {
        return fail(
            b,
            "it requires all the reduction-related loops to be the deepest among all statements outside the desired block",
        );
    }
    if above
        .iter()
        .any(|l| feeds_reduction(l) && matches!(&l.kind, ForKind::ThreadBinding(tag) if !tag.starts_with("threadIdx.")))
    {
        return fail(b, "reduction-related loops may be bound to threadIdx.x/y/z only");
    }
    let local = b.writes.iter().filter(|w| program.buffer(w.buffer).scope == "local").count();
    if local != 0 && local != b.writes.len() {
        return fail(b, "its result buffers are neither all local nor all elsewhere");
    }
    if tree::child_realizes(&above[first].body).last().is_some_and(|last| last.block.id != b.id) {
        return fail(b, "it is not the last block under its first reduction-related loop");
    }
    Ok(())
}

/// The kernels of a program, outermost thread-bound loops in program order.
pub fn kernels(program: &Program) -> Vec<Node> {
    fn visit(stmt: &Stmt, out: &mut Vec<Node>) {
        match stmt {
            Stmt::For(l) if tag_of(stmt).is_some() => out.push(Node::Loop(l.var.id)),
            other => tree::children(other).into_iter().for_each(|s| visit(s, out)),
        }
    }
    let mut out = Vec::new();
    visit(&program.body.block.body, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind::bind;
    use crate::reorder::reorder;
    use crate::split::split;
    use crate::testing::{chain, copy, joined, loops, matmul};
    use crate::vectorize::vectorize;
    use crate::Schedule;

    fn verdict(s: &Schedule) -> String {
        check(s.program(), &GpuLimits::default()).map_or_else(|e| e.detail.clone(), |()| "ok".into())
    }

    #[test]
    fn accepts_a_bound_kernel() {
        let mut s = matmul();
        let l = loops(&s, "C");
        assert_eq!(verdict(&s), "Block C runs outside of every kernel. Did you forget to bind?");
        bind(&mut s, l[0], "blockIdx.x").unwrap();
        bind(&mut s, l[1], "threadIdx.x").unwrap();
        assert_eq!(verdict(&s), "ok");
        assert_eq!(kernels(s.program()), vec![Node::Loop(l[0])]);
    }

    #[test]
    fn one_tag_has_one_extent_within_a_kernel() {
        let mut s = joined();
        let (b, c) = (loops(&s, "B"), loops(&s, "C"));
        bind(&mut s, b[0], "blockIdx.x").unwrap();
        bind(&mut s, b[1], "threadIdx.x").unwrap();
        let parts = split(&mut s, c[1], &[None, Some(15)], true, false).unwrap();
        bind(&mut s, parts[1], "threadIdx.x").unwrap();
        assert_eq!(
            verdict(&s),
            "All loops that are bound to `threadIdx.x` should have the same extent. However, there are two loops with \
             extent 30 and 15, which are not equal"
        );
        let mut s = chain();
        for (name, factor) in [("B", 30), ("C", 15)] {
            let l = loops(&s, name);
            bind(&mut s, l[0], "blockIdx.x").unwrap();
            let parts = split(&mut s, l[1], &[None, Some(factor)], true, false).unwrap();
            bind(&mut s, parts[1], "threadIdx.x").unwrap();
        }
        assert_eq!(verdict(&s), "ok", "two kernels may differ");
    }

    #[test]
    fn reductions_over_threads_are_innermost() {
        let mut s = matmul();
        let l = loops(&s, "C");
        bind(&mut s, l[0], "blockIdx.x").unwrap();
        bind(&mut s, l[2], "threadIdx.x").unwrap();
        assert_eq!(verdict(&s), "ok");
        reorder(&mut s, &[l[2], l[1]]).unwrap();
        assert!(verdict(&s).contains("to be the deepest among all statements"), "{}", verdict(&s));
    }

    #[test]
    fn vectors_are_short() {
        let mut s = matmul();
        let l = loops(&s, "C");
        bind(&mut s, l[0], "blockIdx.x").unwrap();
        let parts = split(&mut s, l[1], &[None, Some(8)], true, false).unwrap();
        vectorize(&mut s, parts[1]).unwrap();
        let eight = "The vectorized loop j_1 makes accesses of 32 bytes to C, more than the allowed maximum of 16";
        assert_eq!(verdict(&s), eight);
        let wide = GpuLimits { vector_bytes: 32, ..GpuLimits::default() };
        check(s.program(), &wide).unwrap();
    }

    #[test]
    fn a_word_for_all_lanes_is_no_vector() {
        let packed = |index: &str| {
            let text = format!(
                "@T.prim_func(s_tir=True)\ndef main(W: T.Buffer((64,), \"uint32\"), B: T.Buffer((256,), \"float16\")):\n    for i in \
                 T.grid(256):\n        with T.sblock(\"B\"):\n            v = T.axis.spatial(256, i)\n            B[v] = \
                 T.Cast(\"float16\", T.shift_right(W[{index}], T.Cast(\"uint32\", v % 8 * 4)))\n"
            );
            let mut s = Schedule::new(satune_ir::tvmscript::parse(&text).unwrap()).unwrap();
            let i = loops(&s, "B")[0];
            let parts = split(&mut s, i, &[None, Some(8)], true, false).unwrap();
            bind(&mut s, parts[0], "threadIdx.x").unwrap();
            vectorize(&mut s, parts[1]).unwrap();
            verdict(&s)
        };
        assert_eq!(packed("v // 8"), "ok");
        assert_eq!(packed("(v + 96) % 256 // 16 + 1"), "ok");
        for wide in ["v // 4", "(v + 1) // 8", "v % 12 // 8", "v % 8"] {
            assert!(packed(wide).contains("makes accesses of 32 bytes to W"), "{wide}");
        }
    }

    #[test]
    fn limits_hold() {
        let mut s = copy("for i in range(32):");
        let i = loops(&s, "B")[0];
        bind(&mut s, i, "threadIdx.x").unwrap();
        let limits = GpuLimits { threads_per_block: 16, ..GpuLimits::default() };
        let error = check(s.program(), &limits).unwrap_err();
        assert_eq!(error.detail, "Used threads per block (32) is greater than the allowed maximum (16)");
    }
}
