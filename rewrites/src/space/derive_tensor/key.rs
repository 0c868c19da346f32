//! Keys of annotations, each on the loop or block that it is about, and how they are read. What is not annotated is the
//! usual: 0, or no.
use super::read::{wrong, Read};
use satune_ir::{Annotations, Attr};

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub(super) const $name: &str = $text;)*

        /// All of ours.
        const ALL: &[&str] = &[$($name),*];
    };
}

keys! {
    /// Block loop: groups of so many rows of tiles.
    RASTER_ROWS = "satune.raster_rows";
    /// Block loop: groups of so many columns of tiles.
    RASTER_COLUMNS = "satune.raster_columns";
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
    /// Copy to or from shared memory: by the TMA.
    TMA = "satune.tma";
}

/// TensorIR's: stages of a software pipeline's statements.
pub(super) const PIPELINE_STAGE: &str = "software_pipeline_stage";
/// TensorIR's: their order.
pub(super) const PIPELINE_ORDER: &str = "software_pipeline_order";
/// TensorIR's: the asynchronous stages.
pub(super) const PIPELINE_ASYNC: &str = "software_pipeline_async_stages";

/// The keys that there are, where one looks like ours and is none of them.
pub(crate) fn unknown(key: &str) -> Option<&'static [&'static str]> {
    (key.starts_with("satune.") && !ALL.contains(&key)).then_some(ALL)
}

/// The number of an annotation; 0 where there is none.
pub(super) fn number(place: &str, annotations: &Annotations, key: &str) -> Read<i64> {
    match annotations.get(key) {
        None => Ok(0),
        Some(Attr::Int(n)) => Ok(*n),
        Some(_) => wrong(place, format!("annotation `{key}` is no number")),
    }
}

/// The same, where it is not negative.
pub(super) fn small(place: &str, annotations: &Annotations, key: &str) -> Read<u32> {
    let n = number(place, annotations, key)?;
    u32::try_from(n).or_else(|_| wrong(place, format!("annotation `{key}` is {n}")))
}

/// Yes or no; no where there is none.
pub(super) fn flag(place: &str, annotations: &Annotations, key: &str) -> Read<bool> {
    match number(place, annotations, key)? {
        0 => Ok(false),
        1 => Ok(true),
        n => wrong(place, format!("annotation `{key}` is {n}; it is 0 or 1")),
    }
}

/// The numbers of an annotation.
pub(super) fn numbers(place: &str, annotations: &Annotations, key: &str) -> Read<Option<Vec<i64>>> {
    let list = match annotations.get(key) {
        None => return Ok(None),
        Some(Attr::List(items)) => items.iter().map(|i| if let Attr::Int(n) = i { Some(*n) } else { None }).collect(),
        Some(_) => None,
    };
    list.map_or_else(|| wrong(place, format!("annotation `{key}` is no list of numbers")), |l| Ok(Some(l)))
}
