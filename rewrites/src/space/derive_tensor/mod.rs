//! From a plan on tensor cores to the trace of primitives that makes it, and back: replayed on the source program, the
//! trace gives the scheduled program, and [`read_plan`] reads the plan off that program. What is replayed is thus what is
//! lowered.
//!
//! ```text
//! pad_einsum (ragged shapes), rfactor (parts of k)
//! cache_write to registers of warps, cache_read to shared memory and from there to registers; the epilogue inlined
//! split, reorder, fuse, bind: blocks, warps, steps along k, instructions
//! compute_at, reverse_compute_at; transform_layout: swizzled tiles, fragments in lanes and registers
//! software_pipeline annotations: the ring, and sets of fragments; `satune.*` annotations: what TensorIR has no primitive for
//! decompose_reduction, tensorize
//! ```
mod common;
mod mma;
mod read;
mod wgmma;

pub use read::{on_tensor_cores, read_plan, ReadError};

use crate::trace::Trace;
use satune_ir::term::tensor::{Gemm, NotGemm, TensorError};
use satune_ir::term::{Contraction, Schedule};

/// Why a schedule on tensor cores has no trace of primitives.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untraced {
    /// It is none on tensor cores.
    #[error("the schedule is none on tensor cores")]
    Kind,
    /// The program is no product.
    #[error(transparent)]
    NotGemm(#[from] NotGemm),
    /// The plan does not fit.
    #[error(transparent)]
    Plan(#[from] TensorError),
    /// No primitives are known for a decision.
    #[error("there are no primitives for {0}")]
    Decision(&'static str),
}

/// Makes the trace of a plan.
///
/// # Errors
/// See [`Untraced`].
pub fn tensor_trace(schedule: &Schedule, contraction: &Contraction) -> Result<Trace, Untraced> {
    let gemm = Gemm::of(contraction)?;
    let swapped = match schedule {
        Schedule::Mma(plan) => plan.swapped,
        Schedule::Wgmma(plan) => plan.swapped,
        Schedule::Cores(_) | Schedule::Stream(_) => return Err(Untraced::Kind),
    };
    if swapped {
        return Err(Untraced::Decision("swapped operands"));
    }
    if gemm.batch > 1 || contraction.batch().count() > 0 {
        return Err(Untraced::Decision("a batch of products"));
    }
    if gemm.c_transposed {
        return Err(Untraced::Decision("a result that is stored by columns"));
    }
    match schedule {
        Schedule::Mma(plan) if plan.instruction.wmma().is_some() => Err(Untraced::Decision("fragments of wmma")),
        Schedule::Mma(plan) => mma::trace(plan, &gemm, contraction),
        Schedule::Wgmma(plan) => wgmma::trace(plan, &gemm, contraction),
        Schedule::Cores(_) | Schedule::Stream(_) => Err(Untraced::Kind),
    }
}

/// Keys of annotations, each on the loop or block that it is about. What is not annotated is the usual: 0, or no.
pub(crate) mod key {
    /// Block loop: groups of so many rows of tiles.
    pub const RASTER_ROWS: &str = "satune.raster_rows";
    /// Block loop: groups of so many columns of tiles.
    pub const RASTER_COLUMNS: &str = "satune.raster_columns";
    /// Block loop: blocks that are to fit on a multiprocessor at once.
    pub const MIN_BLOCKS: &str = "satune.min_blocks";
    /// Loop over tiles along k: tiles that are waited for though they might still be under way.
    pub const SLACK: &str = "satune.slack";
    /// Loop over tiles along k: not unrolled by the ring's length.
    pub const ROLLED: &str = "satune.rolled";
    /// Loop over steps along k: from the last to the first.
    pub const DESCENDING: &str = "satune.descending";
    /// Outer loop over instructions: every other line backwards.
    pub const SERPENTINE: &str = "satune.serpentine";
    /// Outer loop over instructions: two lines at once.
    pub const PAIRS: &str = "satune.pairs";
    /// Copy to shared memory: most bytes of one, where rows allow no more than fewer.
    pub const COPY_BYTES: &str = "satune.copy_bytes";
    /// Copy to shared memory: bytes that L2 is asked to fetch.
    pub const PREFETCH: &str = "satune.prefetch";
    /// Copy to shared memory: step along k at which it is started.
    pub const STEP: &str = "satune.step";
    /// Copy to fragments: matrices that one `ldmatrix` loads.
    pub const LDMATRIX: &str = "satune.ldmatrix";
    /// Copy from fragments to shared memory: by `stmatrix`.
    pub const STMATRIX: &str = "satune.stmatrix";
    /// Block loop: so many blocks walk over the tiles.
    pub const PERSISTENT: &str = "satune.persistent";
    /// Block loop: consumers take whole tiles in turn.
    pub const PING_PONG: &str = "satune.ping_pong";
    /// Block loop: the tiles' steps along k are dealt out to the blocks evenly.
    pub const STREAM_K: &str = "satune.stream_k";
    /// Block loop: neighbouring tiles along m whose blocks form a cluster, which share what the TMA brings.
    pub const CLUSTER_M: &str = "satune.cluster_m";
    /// The same along n.
    pub const CLUSTER_N: &str = "satune.cluster_n";
    /// Loop over tiles along k: a tile's place in the ring is freed at once.
    pub const EAGER_RELEASE: &str = "satune.eager_release";
    /// Copy to or from shared memory: by the TMA.
    pub const TMA: &str = "satune.tma";

    /// All of ours.
    pub const ALL: [&str; 20] = [
        RASTER_ROWS,
        RASTER_COLUMNS,
        MIN_BLOCKS,
        SLACK,
        ROLLED,
        DESCENDING,
        SERPENTINE,
        PAIRS,
        COPY_BYTES,
        PREFETCH,
        STEP,
        LDMATRIX,
        STMATRIX,
        PERSISTENT,
        PING_PONG,
        STREAM_K,
        CLUSTER_M,
        CLUSTER_N,
        EAGER_RELEASE,
        TMA,
    ];

    /// TensorIR's: stages of a software pipeline's statements.
    pub const PIPELINE_STAGE: &str = "software_pipeline_stage";
    /// TensorIR's: their order.
    pub const PIPELINE_ORDER: &str = "software_pipeline_order";
    /// TensorIR's: the asynchronous stages.
    pub const PIPELINE_ASYNC: &str = "software_pipeline_async_stages";
}
