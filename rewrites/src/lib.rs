//! Satune's schedule primitives, one file each: what it does, when it is legal, how it changes a program.
//!
//! ```
//! use satune_ir::tvmscript;
//! use satune_rewrites::replay::Replay;
//! use satune_rewrites::Trace;
//!
//! let program = tvmscript::parse("
//! @T.prim_func
//! def total(A: T.Buffer((8, 100), 'float32'), B: T.Buffer((8,), 'float32')):
//!     for i, k in T.grid(8, 100):
//!         with T.block('B'):
//!             vi, vk = T.axis.remap('SR', [i, k])
//!             with T.init():
//!                 B[vi] = T.float32(0)
//!             B[vi] = B[vi] + A[vi, vk]
//! ")?;
//! // Calls as TVM has them. Strict: each is judged by what the program means after it.
//! let mut hand = Replay::strict(&program)?;
//! for call in Trace::read("b = sch.get_block(\"B\")\ni, k = sch.get_loops(b)\nsch.bind(i, \"blockIdx.x\")\n")?.calls {
//!     hand.call(&call)?;
//! }
//! let parallel = &Trace::from_json(r#"[{"op": "parallel", "args": ["$k"]}]"#)?.calls[0];
//! let refusal = hand.call(parallel).unwrap_err();
//! assert!(refusal.render(hand.schedule.program()).contains("help:"));
//! assert!(tvmscript::print(hand.schedule.program()).contains("T.thread_binding(8, thread=\"blockIdx.x\")"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`replay`] makes the calls of a trace; [`space`] has the rewrite rules. A rule for a streaming program asks the primitive itself
//! about the blocks that it touches. A rule for a contraction has side conditions of its own (`space/conditions`), since there are
//! millions of its terms; what it leads to is replayed under the primitives' legality before it is ranked, and a test that takes a
//! condition away finds a wrong program (`RULES.md`).
#![forbid(unsafe_code)]

mod access_regions;
pub mod arith;
mod cache_common;
mod compute_at_common;
mod compute_domain;
pub mod dependencies;
mod error;
pub mod flags;
pub mod gpu_check;
mod guards;
mod inline_common;
mod iter_map;
pub mod keys;
mod lane;
mod loop_checks;
mod loop_kind;
mod pointers;
mod read_write_at;
mod reducer;
mod regions;
mod reindex_cache;
mod reindex_common;
mod reindexed;
mod render;
pub mod replay;
pub mod sample;
pub mod schedule;
pub mod scope;
pub mod simplified;
pub mod soundness;
use satune_ir::affine::{linear, simplify};
#[cfg(test)]
mod testing;
mod text;
pub mod trace;
mod trace_python;
mod trace_read;
mod trace_tvm;
pub mod tree;

// Loops.
pub mod add_unit_loop;
pub mod annotate;
pub mod annotate_buffer_access;
pub mod bind;
pub mod fuse;
pub mod merge;
pub mod parallel;
pub mod queries;
pub mod reorder;
pub mod reorder_block_iter_var;
pub mod sample_categorical;
pub mod sample_compute_location;
pub mod sample_partitioned_tile;
pub mod sample_perfect_tile;
pub mod split;
pub mod unroll;
pub mod unsafe_hide_buffer_access;
pub mod vectorize;

pub mod heron;
pub mod space;

// Data movement and reductions.
pub mod cache_index;
pub mod cache_inplace;
pub mod cache_read;
pub mod cache_write;
pub mod compute_at;
pub mod compute_inline;
pub mod decompose_reduction;
pub mod fuse_reduction_epilogue;
pub mod read_at;
pub mod rebase_reduction;
pub mod reindex;
pub mod reindex_cache_read;
pub mod reindex_cache_write;
pub mod reverse_compute_at;
pub mod reverse_compute_inline;
pub mod rfactor;
pub mod rolling_buffer;
pub mod set_scope;
pub mod storage_align;
pub mod unsafe_set_dtype;
pub mod write_at;

// Blocks, padding and layouts.
pub mod blockize;
pub mod decompose_padding;
pub mod index_map;
mod index_types;
pub mod intrinsics;
pub mod loop_partition;
pub mod normalize_prim_func;
pub mod pad_einsum;
pub mod tensorize;
pub mod transform_block_layout;
pub mod transform_layout;
pub mod views;

pub use dependencies::Scope;
pub use error::{ErrorClass, Refusal, ScheduleError};
pub use schedule::{BlockFlags, Result, Schedule};
pub use trace::{Call, Out, Trace, TraceError};
pub use tree::{LoopId, Node};
