//! `bind`: run the iterations of a loop on the blocks or threads of a GPU.
//!
//! before                                after, bind(i, "threadIdx.x")
//!   for i in range(32):                   for i in T.thread_binding(32, thread="threadIdx.x"):
//!       B[i] = A[i]                           B[i] = A[i]
//!
//! Legal when: 1 the tag is one of CUDA's or a virtual thread; 2 the subtree has compact dataflow; 3 every block iterator
//! that uses the loop is data-parallel, or a reduction and the tag is `threadIdx`; 4 no two sibling blocks under the loop
//! write one buffer; 5 no loop above or below has the same tag, except that a cooperative copy into shared memory may
//! use the threads anew (see [`crate::gpu_check`]).
use crate::loop_kind::{require_one_writer_each, require_parallelizable, What};
use crate::schedule::{Result, Schedule};
use crate::tree::{self, LoopId, Node};
use crate::{gpu_check, ScheduleError};
use satune_ir::ForKind;

const TAGS: [&str; 9] = [
    "blockIdx.x",
    "blockIdx.y",
    "blockIdx.z",
    "threadIdx.x",
    "threadIdx.y",
    "threadIdx.z",
    "clusterCtaIdx.x",
    "clusterCtaIdx.y",
    "clusterCtaIdx.z",
];

/// Whether a tag names threads: CUDA's indices, `vthread`, `vthread.NAME`, `cthread`.
pub fn is_thread_tag(tag: &str) -> bool {
    TAGS.contains(&tag) || tag == "vthread" || tag.starts_with("vthread.") || tag == "cthread"
}

/// Conditions 1 to 5.
pub fn legal(s: &Schedule, id: LoopId, tag: &str) -> Result<()> {
    if !is_thread_tag(tag) {
        return Err(ScheduleError::internal(format!("Unknown threadscope {tag}")).at_loop(id));
    }
    require_parallelizable(s, id, What::Bind(tag))?;
    require_one_writer_each(s, id, What::Bind(tag))?;
    require_tag_free(s, id, tag)
}

fn has_tag(kind: &ForKind, tag: &str) -> bool {
    matches!(kind, ForKind::ThreadBinding(t) if t == tag)
}

fn require_tag_free(s: &Schedule, id: LoopId, tag: &str) -> Result<()> {
    let loop_ = s.get_loop(id)?;
    for node in s.path(Node::Loop(id))? {
        if let Node::Loop(outer) = node {
            let outer_loop = s.get_loop(outer)?;
            if outer != id && has_tag(&outer_loop.kind, tag) && !gpu_check::is_cooperative(s.program(), outer, loop_) {
                return Err(gpu_check::nested_tag(outer_loop, loop_, tag));
            }
        }
    }
    let mut error = None;
    for inner in tree::all_loops(&loop_.body) {
        if has_tag(&inner.kind, tag) && !gpu_check::is_cooperative(s.program(), id, inner) {
            error = Some(gpu_check::nested_tag(loop_, inner, tag));
        }
    }
    error.map_or(Ok(()), Err)
}

/// The primitive.
pub fn bind(s: &mut Schedule, id: LoopId, tag: &str) -> Result<()> {
    legal(s, id, tag).map_err(|e| e.within("bind"))?;
    s.update_loop(id, |l| l.kind = ForKind::ThreadBinding(tag.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{func, loops, matmul, refusal, schedule};

    #[test]
    fn binds_spatial_loops_to_all_and_reductions_to_threads() {
        let mut s = matmul();
        let l = loops(&s, "C");
        bind(&mut s, l[0], "blockIdx.x").unwrap();
        bind(&mut s, l[1], "vthread.x").unwrap();
        bind(&mut s, l[2], "threadIdx.x").unwrap();
        assert_eq!(s.get_loop(l[2]).unwrap().kind, ForKind::ThreadBinding("threadIdx.x".into()));
    }

    #[test]
    fn refuses() {
        let mut s = matmul();
        let l = loops(&s, "C");
        let wrong = "ScheduleError: The \"bind\" cannot be fulfilled with regard to some of its underlying block";
        assert_eq!(refusal(&mut s, |s| bind(s, l[2], "blockIdx.x")), wrong);
        assert_eq!(refusal(&mut s, |s| bind(s, l[2], "vthread.x")), wrong);
        assert_eq!(refusal(&mut s, |s| bind(s, l[0], "warpIdx")), "Unknown threadscope warpIdx");
        bind(&mut s, l[0], "threadIdx.x").unwrap();
        let nested =
            "ScheduleError: The loops i and j are nested and bound to one tag, threadIdx.x: only their diagonal \
                      would be computed";
        assert_eq!(refusal(&mut s, |s| bind(s, l[1], "threadIdx.x")), nested);
        let mut s = matmul();
        let l = loops(&s, "C");
        bind(&mut s, l[1], "threadIdx.x").unwrap();
        assert_eq!(refusal(&mut s, |s| bind(s, l[0], "threadIdx.x")), nested);
    }

    fn decomposed() -> Schedule {
        schedule(&func(
            "A: T.Buffer((16, 16), \"float32\"), B: T.Buffer((16,), \"float32\")",
            r#"
for i in range(16):
    with T.sblock("B_init"):
        vi = T.axis.spatial(16, i)
        B[vi] = T.float32(0)
    for k in range(16):
        with T.sblock("B_update"):
            vi, vk = T.axis.remap("SR", [i, k])
            B[vi] = B[vi] + A[vi, vk]
"#,
        ))
    }

    #[test]
    fn refuses_a_decomposed_reduction() {
        let mut s = decomposed();
        let i = loops(&s, "B_init")[0];
        assert_eq!(
            refusal(&mut s, |s| bind(s, i, "threadIdx.x")),
            "ScheduleError: The queried subtree root in SRef tree does not have compact dataflow, because some of its child \
             block on SRef tree is neither a local complete block nor a local reduction block."
        );
    }

    #[test]
    fn two_writers_take_threads_where_each_has_elements_of_its_own() {
        let twice = |index: &str| {
            let body = format!(
                r#"
for i in range(16):
    with T.sblock("B1"):
        vi = T.axis.spatial(16, i)
        B[vi] = A[vi]
    with T.sblock("B2"):
        vi = T.axis.spatial(16, {index})
        B[vi] = A[vi] * T.float32(2)
"#
            );
            schedule(&func("A: T.Buffer((16,), \"float32\"), B: T.Buffer((16,), \"float32\")", &body))
        };
        let mut s = twice("i");
        let i = loops(&s, "B1")[0];
        bind(&mut s, i, "threadIdx.x").unwrap();
        let mut s = twice("15 - i");
        let i = loops(&s, "B1")[0];
        assert_eq!(
            refusal(&mut s, |s| bind(s, i, "threadIdx.x")),
            "ScheduleError: The \"bind\" cannot be fulfilled because two blocks under the loop write one buffer"
        );
    }

    #[test]
    fn a_cooperative_copy_uses_the_threads_anew() {
        let script = |index: &str| {
            func(
                "A: T.Buffer((32, 32), \"float32\"), B: T.Buffer((32, 32), \"float32\")",
                &format!(
                    r#"
S = T.sblock_alloc_buffer((32, 32), scope="shared")
for b in T.thread_binding(32, thread="blockIdx.x"):
    for t in T.thread_binding(32, thread="threadIdx.x"):
        for ax in range(32):
            with T.sblock("S"):
                v0 = T.axis.spatial(32, b)
                v1 = T.axis.spatial(32, {index})
                S[v0, v1] = A[v0, v1]
        with T.sblock("B"):
            v0, v1 = T.axis.remap("SS", [b, t])
            B[v0, v1] = S[v0, 31 - v1]
"#
                ),
            )
        };
        let mut s = schedule(&script("ax"));
        let ax = loops(&s, "S")[2];
        bind(&mut s, ax, "threadIdx.x").unwrap();
        let mut s = schedule(&script("(ax + t) % 32"));
        let ax = loops(&s, "S")[2];
        refusal(&mut s, |s| bind(s, ax, "threadIdx.x"));
    }
}
