//! Keys of annotations, each on the loop or block that it is about.
use satune_ir::{visit, Program, Stmt};

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = $text;)*

        /// All of ours.
        const ALL: &[&str] = &[$($name),*];
    };
}

keys! {
    /// Block loop: groups of so many rows of tiles.
    RASTER_ROWS = "satune.raster_rows";
    /// Block loop: groups of so many columns of tiles.
    RASTER_COLUMNS = "satune.raster_columns";
    /// Block loop: tiles along the loop that is in groups, and across it, where groups do not divide them; blocks are then numbered group
    /// by group.
    RASTER_TILES = "satune.raster_tiles";
    /// Block loop: blocks that are to fit on a multiprocessor at once.
    MIN_BLOCKS = "satune.min_blocks";
    /// Loop over tiles along k: tiles that are waited for though they might still be under way.
    SLACK = "satune.slack";
    /// Loop over tiles along k: not unrolled by the ring's length.
    ROLLED = "satune.rolled";
    /// Loop over steps along k: from the last to the first.
    DESCENDING = "satune.descending";
    /// Outer loop over instructions: every other line backwards.
    SERPENTINE = "satune.serpentine";
    /// Outer loop over instructions: two lines at once.
    PAIRS = "satune.pairs";
    /// Copy to shared memory: most bytes of one, where rows allow no more than fewer.
    COPY_BYTES = "satune.copy_bytes";
    /// Copy of a padded operand to shared memory: the dimension whose padding makes nothing but results that are left out, so that
    /// anything may stand there; and the elements of it that are copied at once.
    CROPPED = "satune.cropped";
    /// Copy to shared memory: bytes that L2 is asked to fetch.
    PREFETCH = "satune.prefetch";
    /// Copy to shared memory: step along k at which it is started.
    STEP = "satune.step";
    /// Copy to fragments: matrices that one `ldmatrix` loads.
    LDMATRIX = "satune.ldmatrix";
    /// Copy from fragments to shared memory: by `stmatrix`.
    STMATRIX = "satune.stmatrix";
    /// Block loop: so many blocks walk over the tiles.
    PERSISTENT = "satune.persistent";
    /// Block loop: consumers take whole tiles in turn.
    PING_PONG = "satune.ping_pong";
    /// Block loop: the tiles' steps along k are dealt out to the blocks evenly.
    STREAM_K = "satune.stream_k";
    /// Block loop: neighbouring tiles along m whose blocks form a cluster, which share what the TMA brings.
    CLUSTER_M = "satune.cluster_m";
    /// The same along n.
    CLUSTER_N = "satune.cluster_n";
    /// Loop over tiles along k: a tile's place in the ring is freed at once.
    EAGER_RELEASE = "satune.eager_release";
    /// Loop over tiles along k: each warp says that a tile has been read.
    ARRIVE_PER_WARP = "satune.arrive_per_warp";
    /// Copy to or from shared memory: by the TMA; 2: box by box, as there is room for two.
    TMA = "satune.tma";
}

/// What says nothing that the rest of a plan's program does not say: how a kernel may be written.
pub(crate) const HINTS: [&str; 2] = [CROPPED, RASTER_TILES];

/// TensorIR's: stages of a software pipeline's statements.
pub const PIPELINE_STAGE: &str = "software_pipeline_stage";
/// TensorIR's: their order.
pub const PIPELINE_ORDER: &str = "software_pipeline_order";
/// TensorIR's: the asynchronous stages.
pub const PIPELINE_ASYNC: &str = "software_pipeline_async_stages";
/// TensorIR's: a copy to shared memory passes through registers, where a tile waits while another one is read.
pub const LOCAL_STAGE: &str = "tirx.manifest_shared_memory_local_stage";
/// What earlier versions of TVM, and traces for them, call it.
pub const OLD_LOCAL_STAGE: &str = "tir.manifest_shared_memory_local_stage";

/// A program, its annotations by the names that they have now.
pub(crate) fn by_present_names(program: &Program) -> Program {
    let mut out = program.clone();
    visit::walk_stmt_mut(&mut out.body.block.body, &mut |s| {
        let annotations = match s {
            Stmt::For(l) => &mut l.annotations,
            Stmt::Realize(r) => &mut r.block.annotations,
            _ => return,
        };
        if let Some(staged) = annotations.swap_remove(OLD_LOCAL_STAGE) {
            annotations.insert(LOCAL_STAGE.into(), staged);
        }
    });
    out
}

/// The keys that there are, where one looks like ours and is none of them.
pub(crate) fn unknown(key: &str) -> Option<&'static [&'static str]> {
    (key.starts_with("satune.") && !ALL.contains(&key)).then_some(ALL)
}
