//! `cache_inplace`: copy what a block updates to another memory, let it work there, and copy the result back.
//!
//! before                                after, cache_inplace(A, 0, "local")
//!   for i in range(1):                    A_local = T.sblock_alloc_buffer((64,), scope="local")
//!       with T.sblock("A"):               for i in range(1):
//!           T.reads(A[0:64])                  for ax0 in range(64):
//!           T.writes(A[0:64])                     with T.sblock("A_local"):
//!           ...                                       v0 = ...
//!                                                     A_local[v0] = A[v0]
//!                                             with T.sblock("A"):
//!                                                 T.reads(A_local[0:64])
//!                                                 T.writes(A_local[0:64])
//!                                                 ...
//!                                             for ax0 in range(64):
//!                                                 with T.sblock("A_local"):
//!                                                     v0 = ...
//!                                                     A[v0] = A_local[v0]
//!
//! Legal when: 1 the memory scope exists; 2 the index names a buffer that the block reads; 3 all that is read of the buffer
//! in this scope is written before; 4 the block writes the buffer, too; and, what TVM does not ask: 5 it writes no more of it
//! than it reads (the copy back would hold what nobody computed). The copies stand beside the block. TVM leaves them with
//! the block's iterators, which nothing binds there; here they have their values, and the block's condition.
use crate::cache_common::{self, Copy, Location, Redirect};
use crate::cache_read::require_region_cover;
use crate::linear::{all, conjuncts, Interval};
use crate::regions;
use crate::schedule::{BlockFlags, Result, Schedule};
use crate::tree::{self, Node};
use crate::ScheduleError;
use satune_ir::{BlockId, BufferId, Expr, Region};

/// What is copied, and where the block stands.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The block in which the target stands; it allocates the cache.
    pub scope: BlockId,
    /// The buffer.
    pub buffer: BufferId,
    /// The body that holds the block, and its entry there.
    pub at: Location,
    /// What the block reads, in terms of the loops around it.
    pub read: Vec<Interval>,
    /// What it writes.
    pub written: Vec<Interval>,
    /// Where the block runs.
    pub guards: Vec<Expr>,
}

/// Conditions 1 to 5, in TVM's order.
pub fn legal(s: &Schedule, block: BlockId, index: i64, memory: &str) -> Result<Plan> {
    regions::require_storage_scope(memory)?;
    let read = regions::access(s, block, index, false)?;
    let scope = s.scope_of(Node::Block(block))?;
    let name = s.program().buffer(read.buffer).name.clone();
    require_region_cover(s, &s.scope(scope)?, &read)?;
    let realize = s.realize(block)?;
    let Some(written) = realize.block.writes.iter().find(|w| w.buffer == read.buffer) else {
        return Err(ScheduleError::refused(
            "The target block does not both read & write target buffer.",
            format!("The block {} reads {name}, but does not write it", realize.block.name),
        )
        .at_block(block)
        .remedy("cache_read copies what a block reads only"));
    };
    let (read_box, written_box) = (bounds(s, block, &read)?, bounds(s, block, written)?);
    let domains = regions::domains_to(s, Node::Block(block))?;
    let inside = |(w, r): (&Interval, &Interval)| r.lo.at_most(&w.lo, &domains) && w.hi.at_most(&r.hi, &domains);
    if !written_box.iter().zip(&read_box).all(inside) {
        return Err(ScheduleError::refused(
            "The block writes more of the buffer than it reads",
            format!(
                "The block {} declares to write more of {name} than it reads: what it leaves unwritten would be copied \
                 back without ever having been copied to the cache",
                realize.block.name
            ),
        )
        .at_block(block)
        .remedy("use cache_write where the block writes all that it declares"));
    }
    cache_common::require_replaceable(s, &[block], read.buffer, memory, None)?;
    let parent = s.parent(Node::Block(block))?.unwrap_or(Node::Block(scope));
    let entries = tree::entries(s.body_of(parent)?);
    let index = entries.iter().position(|e| tree::contains(e, Node::Block(block))).unwrap_or(0);
    Ok(Plan {
        scope,
        buffer: read.buffer,
        at: Location { node: parent, index },
        read: read_box,
        written: written_box,
        guards: conjuncts(&realize.predicate),
    })
}

/// The box of a region in terms of the loops around the block.
fn bounds(s: &Schedule, block: BlockId, region: &Region) -> Result<Vec<Interval>> {
    let realize = s.realize(block)?;
    let outer = regions::domains_to(s, Node::Block(block))?;
    regions::relaxed(s, realize, region, &Default::default(), &outer)
}

/// The primitive. Returns the block that copies to the cache and the one that copies back.
pub fn cache_inplace(s: &mut Schedule, block: BlockId, index: i64, memory: &str) -> Result<[BlockId; 2]> {
    let plan = legal(s, block, index, memory).map_err(|e| e.within("cache_inplace"))?;
    apply(s, block, &plan, memory).map_err(|e| e.within("cache_inplace"))
}

fn apply(s: &mut Schedule, block: BlockId, plan: &Plan, memory: &str) -> Result<[BlockId; 2]> {
    let around = regions::domains_to(s, plan.at.node)?;
    let buffer = plan.buffer;
    let cache = cache_common::cache_buffer(s, buffer, memory, None);
    let to = Copy { from: buffer, to: cache, cache, region: plan.read.clone(), compact: false };
    let back = Copy { from: cache, to: buffer, cache, region: plan.written.clone(), compact: false };
    let (read, first) = cache_common::copy_nest(s, &to, &around);
    let (write, last) = cache_common::copy_nest(s, &back, &around);
    let redirect = Redirect { from: buffer, to: cache, origin: None };
    s.update_realize(block, |r| redirect.reads_and_writes(r))?;
    s.insert(plan.at.node, plan.at.index + 1, vec![last])?;
    s.insert(plan.at.node, plan.at.index, vec![first])?;
    s.update_block(plan.scope, |b| b.alloc_buffers.push(cache))?;
    for id in [read, write] {
        s.update_realize(id, |r| {
            r.predicate = all(plan.guards.iter().cloned().chain(conjuncts(&r.predicate)));
        })?;
        s.set_flags(id, BlockFlags { affine_binding: false, region_cover: true, stage_pipeline: false });
        s.update_affine_binding(id);
    }
    Ok([read, write])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::split;
    use crate::testing::{assert_program, block, func, loops, matmul, refusal, schedule};

    const PARAMS: &str = "A: T.Buffer((64,), \"float32\")";

    #[test]
    fn the_picture() {
        let mut s = schedule(&func(
            PARAMS,
            r#"
for i in range(1):
    with T.sblock("A"):
        T.reads(A[0:64])
        T.writes(A[0:64])
        for k in range(64):
            A[k] = A[k] + T.float32(1)
"#,
        ));
        let a = block(&s, "A");
        let [read, write] = cache_inplace(&mut s, a, 0, "local").unwrap();
        let around = s.parent(Node::Block(a)).unwrap().unwrap();
        assert_eq!(s.child_blocks(around).unwrap(), [read, a, write]);
        assert_program(
            &s,
            &func(
                PARAMS,
                r#"
A_local = T.sblock_alloc_buffer((64,), scope="local")
for i in range(1):
    for ax0 in range(64):
        with T.sblock("A_local"):
            v0 = T.axis.spatial(64, ax0)
            A_local[v0] = A[v0]
    with T.sblock("A"):
        T.reads(A_local[0:64])
        T.writes(A_local[0:64])
        for k in range(64):
            A_local[k] = A_local[k] + T.float32(1)
    for ax0 in range(64):
        with T.sblock("A_local_1"):
            v0 = T.axis.spatial(64, ax0)
            A[v0] = A_local[v0]
"#,
            )
            .replace("A_local_1", "A_local"),
        );
    }

    #[test]
    fn copies_what_an_instance_touches_where_it_runs() {
        let mut s = schedule(&func(
            PARAMS,
            r#"
for i in range(60):
    with T.sblock("A"):
        vi = T.axis.spatial(60, i)
        A[vi + 4] = A[vi + 4] + T.float32(1)
"#,
        ));
        let (a, i) = (block(&s, "A"), loops(&s, "A")[0]);
        split(&mut s, i, &[None, Some(8)], true, false).unwrap();
        cache_inplace(&mut s, a, 0, "local").unwrap();
        assert_program(
            &s,
            &func(
                PARAMS,
                r#"
A_local = T.sblock_alloc_buffer((64,), scope="local")
for i_0, i_1 in T.grid(8, 8):
    for ax0 in range(1):
        with T.sblock("A_local"):
            v0 = T.axis.spatial(64, i_0 * 8 + i_1 + 4 + ax0)
            T.where(i_0 * 8 + i_1 < 60 and i_0 * 8 + i_1 + 4 + ax0 < 64)
            A_local[v0] = A[v0]
    with T.sblock("A"):
        vi = T.axis.spatial(60, i_0 * 8 + i_1)
        T.where(i_0 * 8 + i_1 < 60)
        A_local[vi + 4] = A_local[vi + 4] + T.float32(1)
    for ax0 in range(1):
        with T.sblock("A_local"):
            v0 = T.axis.spatial(64, i_0 * 8 + i_1 + 4 + ax0)
            T.where(i_0 * 8 + i_1 < 60 and i_0 * 8 + i_1 + 4 + ax0 < 64)
            A[v0] = A_local[v0]
"#,
            ),
        );
    }

    #[test]
    fn refuses() {
        let mut s = matmul();
        let (c, root) = (block(&s, "C"), s.root());
        assert_eq!(
            refusal(&mut s, |s| cache_inplace(s, c, 0, "attic")),
            "ScheduleError: The input storage scope is invalid"
        );
        assert!(refusal(&mut s, |s| cache_inplace(s, c, 2, "local")).contains("`buffer_index` is out of range"));
        assert_eq!(
            refusal(&mut s, |s| cache_inplace(s, c, 0, "local")),
            "ScheduleError: The target block does not both read & write target buffer."
        );
        assert!(refusal(&mut s, |s| cache_inplace(s, root, 0, "local")).contains("`buffer_index` is out of range"));
        // It writes what it does not read.
        let mut s = schedule(&func(
            PARAMS,
            r#"
for i in range(32):
    with T.sblock("A"):
        vi = T.axis.spatial(32, i)
        A[vi + 32] = A[vi] + T.float32(1)
"#,
        ));
        let a = block(&s, "A");
        assert_eq!(
            refusal(&mut s, |s| cache_inplace(s, a, 0, "local")),
            "ScheduleError: The block writes more of the buffer than it reads"
        );
    }

    #[test]
    fn refuses_what_is_read_before_it_is_written() {
        let mut s = schedule(&func(
            "A: T.Buffer((64,), \"float32\")",
            r#"
B = T.sblock_alloc_buffer((64,))
for i in range(32):
    with T.sblock("B"):
        vi = T.axis.spatial(32, i)
        B[vi] = A[vi]
for i in range(64):
    with T.sblock("D"):
        vi = T.axis.spatial(64, i)
        B[vi] = B[vi] + T.float32(1)
"#,
        ));
        let d = block(&s, "D");
        assert_eq!(
            refusal(&mut s, |s| cache_inplace(s, d, 0, "local")),
            "ScheduleError: The scope root's region cover is not complete."
        );
    }
}
