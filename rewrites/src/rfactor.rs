//! `rfactor`: reduce in two steps, first per iteration of a loop, then over these.
//!
//! before                                     after, rfactor(k, 0)
//!   for i, k in T.grid(16, 64):                C_rf = T.sblock_alloc_buffer((64, 16))
//!       with T.sblock("C"):                    for i, k in T.grid(16, 64):
//!           vi, vk = ...                           with T.sblock("C_rf"):
//!           with T.init():                             vk, vi = T.axis.remap("SS", [k, i])
//!               C[vi] = 0                              C_rf[vk, vi] = A[vi, vk]
//!           C[vi] = C[vi] + A[vi, vk]          for i, k in T.grid(16, 64):
//!                                                  with T.sblock("C"):
//!                                                      vk, vi = T.axis.remap("RS", [k, i])
//!                                                      with T.init():
//!                                                          C[vi] = 0
//!                                                      C[vi] = C[vi] + C_rf[vk, vi]
//!
//! Legal when: 1 one block is under the loop; 2 its scope is a stage pipeline; 3 it is a reduction; 4 the loop is serial;
//! 5 the block is the first one under its outermost loop, no loop feeds both data-parallel and reduction iterators, the
//! loop feeds reduction iterators only (TVM lets it feed none, and repeats the sum), the outermost reduction loop holds no other block, and below it every loop of
//! several iterations feeds an iterator; 6 its init and update are those of a known reducer; 7 the axis is one of the
//! result. Where a guard leaves out all rounds that would initialize a partial result, a later decompose_reduction puts the
//! init before it; without that, [`crate::soundness`] finds what nobody wrote.
use crate::arith::constant;
use crate::loop_checks::only_child;
use crate::reducer;
use crate::schedule::{Result, Schedule};
use crate::scope;
use crate::tree::{LoopId, Node};
use crate::ScheduleError;
use satune_ir::{visit, BlockId, Buffer, For, ForKind, IterKind};

mod steps;
pub use steps::Plan;

/// Conditions 1 to 7, in TVM's order.
pub fn legal(s: &Schedule, target: LoopId, axis: i64) -> Result<Plan> {
    let block = only_child(s, target)?;
    let scope_id = scope::pipeline_of(s, block)?;
    scope::require_reduction(s, block, &s.scope(scope_id)?)?;
    require_serial(s.get_loop(target)?)?;
    let loops = s.loops_of(block)?;
    let reduction_loops = require_loops(s, block, &loops, target)?;
    let realize = s.realize(block)?;
    let reduction = reducer::of(s.program(), &realize.block)?;
    let axis = require_axis(s.program().buffer(reduction.buffers[0]), block, axis)?;
    Ok(Plan { block, scope: scope_id, loops, reduction_loops, reduction, axis })
}

fn require_serial(l: &For) -> Result<()> {
    if l.kind == ForKind::Serial {
        return Ok(());
    }
    Err(ScheduleError::refused(
        "The input loop of rfactor is required to be `kSerial`",
        format!("The loop {} is {:?}; rfactor takes serial loops only", l.var.name, l.kind),
    )
    .at_loop(l.var.id)
    .remedy("rfactor first, then bind or unroll the loops of the two blocks"))
}

/// Condition 5. Returns the loops that feed reduction iterators.
fn require_loops(s: &Schedule, block: BlockId, loops: &[LoopId], target: LoopId) -> Result<Vec<LoopId>> {
    let refused = |message: &str, detail: String, id: LoopId| {
        Err(ScheduleError::refused(message, detail)
            .at_loop(id)
            .at_block(block)
            .remedy("choose a loop of the reduction"))
    };
    let name = |id: LoopId| s.get_loop(id).map(|l| l.var.name.clone());
    if let Some(&top) = loops.first() {
        if s.child_blocks(Node::Loop(top))?.first() != Some(&block) {
            return refused(
                "The reduction block should be the first child block of the outermost loop outside of it",
                format!("The first child block of the outermost loop {} is not the reduction block", name(top)?),
                top,
            );
        }
    }
    let realize = s.realize(block)?;
    let feeds = |id: LoopId, kind: IterKind| {
        realize
            .block
            .iter_vars
            .iter()
            .zip(&realize.iter_values)
            .any(|(iv, e)| iv.kind == kind && visit::uses_var(e, &|v| v == id))
    };
    let mut reducing = Vec::new();
    for &id in loops {
        match (feeds(id, IterKind::Spatial), feeds(id, IterKind::Reduce)) {
            (true, true) => return refused(
                "The loops outside of the reduction block are required not to be touched by both data parallel block \
                     iters and reduction block iters",
                format!("Loop {} feeds both data-parallel and reduction iterators", name(id)?),
                id,
            ),
            (true, false) if id == target => return refused(
                "The loop to be applied rfactor is required not to be touched by any data parallel block iter of the \
                     block",
                format!("Loop {} feeds a data-parallel iterator: there is nothing to reduce over", name(id)?),
                id,
            )
            .map_err(|e| e.remedy("rfactor a loop that feeds a reduction iterator")),
            (true, false) => {}
            (false, true) => {
                if reducing.is_empty() {
                    only_child(s, id)?;
                }
                reducing.push(id);
            }
            // TVM does not ask, and adds the whole sum up as often as the loop runs.
            (false, false) if id == target && constant(&s.get_loop(id)?.extent) != Some(1) => {
                return refused(
                    "The loop to be applied rfactor is required to be touched by a reduction block iter of the block",
                    format!(
                        "Loop {} feeds no iterator: it repeats the block, and its rounds are no parts of the sum",
                        name(id)?
                    ),
                    id,
                )
                .map_err(|e| e.remedy("rfactor a loop that feeds a reduction iterator"))
            }
            (false, false) if !reducing.is_empty() && constant(&s.get_loop(id)?.extent) != Some(1) => return refused(
                "A loop who has extent greater than one and is not bound to any block iter should not appear under a \
                     reduction loop",
                format!("Loop {} repeats the block, and stands under a reduction loop", name(id)?),
                id,
            ),
            (false, false) => {}
        }
    }
    Ok(reducing)
}

/// The axis, counted from the front.
fn require_axis(buffer: &Buffer, block: BlockId, axis: i64) -> Result<usize> {
    let rank = buffer.shape.len() as i64;
    let front = if axis < 0 { axis.checked_add(rank + 1) } else { Some(axis) };
    match front.and_then(|a| usize::try_from(a).ok()).filter(|a| *a as i64 <= rank) {
        Some(axis) => Ok(axis),
        None => Err(ScheduleError::refused(
            "The input `factor_axis` is out of range. It is required to be in range [-(ndim + 1), ndim] where `ndim` is the \
             number of dimensions of the write buffer",
            format!(
                "The write buffer {} has {rank} dimension(s), so `factor_axis` is required to be in [{}, {rank}] for rfactor. \
                 However, the input `factor_axis` is {axis}, which is out of the expected range",
                buffer.name,
                -(rank + 1)
            ),
        )
        .at_block(block)
        .remedy(format!("{rank} puts the new dimension last, 0 puts it first"))),
    }
}

/// The primitive. Returns the block of the first step.
pub fn rfactor(s: &mut Schedule, target: LoopId, factor_axis: i64) -> Result<BlockId> {
    let plan = legal(s, target, factor_axis).map_err(|e| e.within("rfactor"))?;
    steps::apply(s, target, &plan).map_err(|e| e.within("rfactor"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_program, block, func, joined, loops, matmul, refusal, schedule};
    use crate::{decompose_reduction::decompose_reduction, fuse::fuse, split::split, unroll::unroll};
    use satune_ir::Stmt;

    /// C = the sum (or whatever `update` says) of the rows of A, 16 x 16.
    fn rows(init: &str, update: &str) -> Schedule {
        let body = format!(
            r#"
for i, k in T.grid(16, 16):
    with T.sblock("C"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            C[vi] = {init}
        C[vi] = {update}
"#
        );
        schedule(&func(HEADER, &body))
    }

    const HEADER: &str = "A: T.Buffer((16, 16), \"float32\"), C: T.Buffer((16,), \"float32\")";

    fn sums() -> Schedule {
        rows("T.float32(0)", "C[vi] + A[vi, vk]")
    }

    #[test]
    fn applies() {
        let mut s = sums();
        let k = loops(&s, "C")[1];
        let id = rfactor(&mut s, k, 0).unwrap();
        assert_eq!(s.block(id).unwrap().name, "C_rf");
        assert_program(
            &s,
            &func(
                HEADER,
                r#"
C_rf = T.sblock_alloc_buffer((16, 16))
for i, k in T.grid(16, 16):
    with T.sblock("C_rf"):
        vk, vi = T.axis.remap("SS", [k, i])
        T.reads(A[vi, vk])
        T.writes(C_rf[vk, vi])
        C_rf[vk, vi] = A[vi, vk]
for i, k in T.grid(16, 16):
    with T.sblock("C"):
        vk, vi = T.axis.remap("RS", [k, i])
        T.reads(C_rf[vk, vi])
        T.writes(C[vi])
        with T.init():
            C[vi] = T.float32(0)
        C[vi] = C[vi] + C_rf[vk, vi]
"#,
            ),
        );
    }

    #[test]
    fn splits_iterators() {
        let mut s = sums();
        let k = loops(&s, "C")[1];
        let parts = split(&mut s, k, &[None, Some(5)], true, false).unwrap();
        rfactor(&mut s, parts[1], -1).unwrap();
        assert_program(
            &s,
            &func(
                HEADER,
                r#"
C_rf = T.sblock_alloc_buffer((16, 5))
for i, k_0, k_1 in T.grid(16, 4, 5):
    with T.sblock("C_rf"):
        vk_1, vi, vk_0 = T.axis.remap("SSR", [k_1, i, k_0])
        T.where(k_0 * 5 + k_1 < 16)
        T.reads(A[vi, vk_0 * 5 + vk_1])
        T.writes(C_rf[vi, vk_1])
        with T.init():
            C_rf[vi, vk_1] = T.float32(0)
        C_rf[vi, vk_1] = C_rf[vi, vk_1] + A[vi, vk_0 * 5 + vk_1]
for i, k_1 in T.grid(16, 5):
    with T.sblock("C"):
        vk_1, vi = T.axis.remap("RS", [k_1, i])
        T.reads(C_rf[vi, vk_1])
        T.writes(C[vi])
        with T.init():
            C[vi] = T.float32(0)
        C[vi] = C[vi] + C_rf[vi, vk_1]
"#,
            ),
        );
    }

    #[test]
    fn keeps_the_guard_of_data_parallel_iterators() {
        let mut s = sums();
        let i = loops(&s, "C")[0];
        split(&mut s, i, &[None, Some(5)], true, false).unwrap();
        let k = loops(&s, "C")[2];
        rfactor(&mut s, k, 0).unwrap();
        for name in ["C", "C_rf"] {
            let guard = &s.realize(block(&s, name)).unwrap().predicate;
            assert_eq!(crate::text::expr(guard), "i_0 * 5 + i_1 < 16");
        }
    }

    /// The init stands where the guard holds; decompose_reduction puts it before.
    #[test]
    fn partial_results_that_nobody_writes_are_found_until_their_init_is_moved() {
        for (factors, at) in [([Some(7), Some(5)], 0), ([Some(1), Some(32)], 1)] {
            let mut s = sums();
            let source = s.program().clone();
            let k = loops(&s, "C")[1];
            let parts = split(&mut s, k, &factors, true, false).unwrap();
            let factored = rfactor(&mut s, parts[at], 0).unwrap();
            let error = crate::soundness::check(&source, s.program()).unwrap_err();
            assert!(error.detail.contains("is read, and nothing before has written it"), "{}", error.detail);
            let inner = loops(&s, "C_rf")[1];
            decompose_reduction(&mut s, factored, inner).unwrap();
            crate::soundness::check(&source, s.program()).unwrap();
            satune_ir::interp::equal_on(&source, s.program(), 3).unwrap();
        }
    }

    #[test]
    fn knows_reducers() {
        for (init, update) in [
            ("T.float32(1)", "C[vi] * A[vi, vk]"),
            ("T.min_value(\"float32\")", "T.max(C[vi], A[vi, vk])"),
            ("T.max_value(\"float32\")", "T.min(C[vi], A[vi, vk])"),
        ] {
            let mut s = rows(init, update);
            let k = loops(&s, "C")[1];
            rfactor(&mut s, k, 0).unwrap();
        }
        let message =
            "ScheduleError: No matched reducer for the identity and the combiner of this reduction block. So \
                       rfactor and cross-thread reduction cannot be applied.";
        for (init, update) in [
            ("T.float32(1)", "C[vi] + A[vi, vk]"),
            ("T.float32(0)", "A[vi, vk] + C[vi]"),
            ("T.float32(0)", "C[vi] - A[vi, vk]"),
        ] {
            let mut s = rows(init, update);
            let k = loops(&s, "C")[1];
            assert_eq!(refusal(&mut s, |s| rfactor(s, k, 0)), message);
        }
    }

    #[test]
    fn several_buffers() {
        let mut s = schedule(&func(
            "A: T.Buffer((16, 16), \"float32\"), I: T.Buffer((16,), \"int32\"), V: T.Buffer((16,), \"float32\")",
            r#"
for i, k in T.grid(16, 16):
    with T.sblock("C"):
        vi, vk = T.axis.remap("SR", [i, k])
        T.reads(A[vi, vk])
        T.writes(I[vi], V[vi])
        with T.init():
            I[vi] = -1
            V[vi] = T.min_value("float32")
        v_i: T.int32 = T.Select(V[vi] >= A[vi, vk], I[vi], vk)
        v_v: T.float32 = T.Select(V[vi] >= A[vi, vk], V[vi], A[vi, vk])
        I[vi] = v_i
        V[vi] = v_v
"#,
        ));
        let k = loops(&s, "C")[1];
        let parts = split(&mut s, k, &[Some(4), None], true, false).unwrap();
        let id = rfactor(&mut s, parts[0], 1).unwrap();
        let block = s.block(id).unwrap();
        assert_eq!(block.writes.len(), 2);
        assert!(matches!(*block.body, Stmt::Let { .. }));
    }

    #[test]
    fn refuses_loops() {
        let data_parallel =
            "ScheduleError: The loop to be applied rfactor is required not to be touched by any data parallel \
                             block iter of the block";
        let both =
            "ScheduleError: The loops outside of the reduction block are required not to be touched by both data \
                    parallel block iters and reduction block iters";
        let mut s = matmul();
        let l = loops(&s, "C");
        assert_eq!(refusal(&mut s, |s| rfactor(s, l[0], 0)), data_parallel);
        unroll(&mut s, l[2]).unwrap();
        let message = "ScheduleError: The input loop of rfactor is required to be `kSerial`";
        assert_eq!(refusal(&mut s, |s| rfactor(s, l[2], 0)), message);
        let mut s = sums();
        let l = loops(&s, "C");
        let fused = fuse(&mut s, &l, true).unwrap();
        assert_eq!(refusal(&mut s, |s| rfactor(s, fused, 0)), both);
    }

    #[test]
    fn refuses_axes_and_other_blocks() {
        let mut s = matmul();
        let k = loops(&s, "C")[2];
        for axis in [-4, 3] {
            assert!(refusal(&mut s, |s| rfactor(s, k, axis)).starts_with("ScheduleError: The input `factor_axis`"));
        }
        let mut s = joined();
        let l = loops(&s, "C");
        let message = "ScheduleError: The loop is required to have only one child block";
        assert_eq!(refusal(&mut s, |s| rfactor(s, l[0], 0)), message);
        assert_eq!(refusal(&mut s, |s| rfactor(s, l[1], 0)), "ScheduleError: Not a reduction block");
    }
}
