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
use satune_ir::{ForKind, Stmt};

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

/// The tag of a statement that is a thread-bound loop.
pub fn tag_of(stmt: &Stmt) -> Option<&str> {
    match stmt {
        Stmt::For(l) => match &l.kind {
            ForKind::ThreadBinding(tag) => Some(tag),
            _ => None,
        },
        _ => None,
    }
}
