//! Why a rule for single threads does not fire.
use super::staged::Both;
use satune_ir::term::{Axis, Pipe, Side};

/// Why a rule does not fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Refusal {
    #[error("bind: {results} results of the block tile do not divide among {threads} threads")]
    ThreadsDivide { results: i64, threads: i64 },
    #[error(
        "cache_write: {need} registers of accumulators for each of {threads} threads (and {rest} for the rest); a thread \
         has {registers}"
    )]
    AccumulatorsFit { need: i64, rest: i64, threads: i64, registers: i64 },
    #[error("bind: {parts} {what} along {axis} do not divide a tile of {tile}")]
    Divides { what: &'static str, axis: Axis, parts: i64, tile: i64 },
    #[error("rfactor: split {parts} does not divide k = {k}")]
    PartsDivide { parts: i64, k: i64 },
    #[error("rfactor: split {parts} leaves {left} of k to a part, less than two of the longest k tile ({longest})")]
    LongParts { parts: i64, left: i64, longest: i64 },
    #[error("rfactor: the kernel that adds the parts of k {0}")]
    OneKernelParts(&'static str),
    #[error("in place: {0}")]
    InPlace(&'static str),
    #[error(
        "grouped rasterization: group {axis} {group} of {along} blocks along {axis} and {across} across; it has to divide \
         them into more than one group, with more than one block across"
    )]
    GroupDivides { axis: Axis, group: i64, along: i64, across: i64 },
    #[error("split k: a step of {step} does not divide the k tile {k}")]
    StepDivides { step: i64, k: i64 },
    #[error("split k: a step of {step} needs an operand whose rows in shared memory run along k (x-major)")]
    StepAlongK { step: i64 },
    #[error(
        "compute_at above k: with k tiles of {tile} a block has the whole of its {strip} k values in one, so the copy in the \
         k loop is the same program"
    )]
    StripRepeats { tile: i64, strip: i64 },
    #[error("software_pipeline ({pipe}): sums in global memory leave nothing to overlap")]
    OverlapSums { pipe: Pipe },
    #[error(
        "software_pipeline ({pipe}): neither A nor B is copied to shared memory in the k loop, so there is no copy to overlap"
    )]
    OverlapStaged { pipe: Pipe },
    #[error("cache_read shared: {side} is staged only where sums are kept in registers")]
    StagedSums { side: Side },
    #[error("cache_read shared: {staged} are {bytes} bytes; a block has {most} bytes of shared memory")]
    SharedFits { staged: Both, bytes: i64, most: i64 },
    #[error(
        "transform_layout: {side} runs along {} in global memory; a tile with rows along k is not offered",
        .side.spatial()
    )]
    TransposedTile { side: Side },
    #[error("storage_align: pad {pad} of {side}; rows are padded by 16 bytes, {chunk} elements, or not")]
    Pad { side: Side, pad: u32, chunk: u32 },
    #[error("transform_layout: xor is offered for operands that run along k; {side} runs along {}", .side.spatial())]
    Xor { side: Side },
    #[error("transform_layout: rows of {side} are xor-ed or padded, not both")]
    XorPadded { side: Side },
    #[error(
        "transform_layout: xor needs rows of a power of two of 16-byte chunks, two at least; rows of {side} have {row} \
         elements of {bytes} bytes"
    )]
    SwizzleRows { side: Side, row: i64, bytes: i64 },
    #[error(
        "transform_layout: xor of {side} along k, but tiles along k reach into the next part of k, where a tile begins between \
         two swizzled rows"
    )]
    SwizzleParts { side: Side },
    #[error(
        "cache_read shared above k: a strip of {side} {}; no other layout is offered",
        if *.along_k {
            "is x-major xor where its length is a power of two, else k-major and padded".into()
        } else {
            format!("has rows along {}, as in global memory, plain", .side.spatial())
        }
    )]
    StripLayout { side: Side, along_k: bool },
    #[error("vectorize copy: {vector} elements of {side} take {bytes} bytes; an access has 16 at most")]
    CopyBytes { side: Side, vector: i64, bytes: i64 },
    #[error("vectorize copy: accesses of {vector} are not aligned in rows of {side} of {row} elements")]
    CopyRows { side: Side, vector: i64, row: i64 },
    #[error("vectorize copy: {vector} does not divide the runs of {run} elements of a tile of {side}")]
    CopyRuns { side: Side, vector: i64, run: i64 },
    #[error("vectorize copy: {side} is copied by columns, so neighbouring elements are not in one access")]
    CopyCoalesced { side: Side },
    #[error("split copy: {threads} threads times {vector} elements are {all}; the tile of {side} has {tile}")]
    CopyThreads { side: Side, threads: i64, vector: i64, all: i64, tile: i64 },
    #[error("cp.async: {vector} elements of {side} are {bytes} bytes; it moves 4 at least")]
    AsyncBytes { side: Side, vector: i64, bytes: i64 },
    #[error(
        "cp.async: {vector} elements of {side} at once need them side by side in shared memory too, but the tile is transposed"
    )]
    AsyncRows { side: Side, vector: i64 },
    #[error("cache_read local: {vector} elements of {side} take {bytes} bytes; an access has 16 at most")]
    FragmentBytes { side: Side, vector: i64, bytes: i64 },
    #[error(
        "cache_read local: accesses of {vector} do not divide the run of {run} elements of {side} that a thread reads, or the \
         {pad} elements by which rows are longer"
    )]
    FragmentRun { side: Side, vector: i64, run: i64, pad: i64 },
    #[error("cache_read local: {side} is read to registers only where sums are kept there too")]
    FragmentSums { side: Side },
    #[error("vectorize: a store of {vector} takes {bytes} bytes; an access has 16 at most")]
    StoreBytes { vector: i64, bytes: i64 },
    #[error("vectorize: a store of {vector} does not divide the {n} neighbouring results of a thread")]
    StoreDivides { vector: i64, n: i64 },
    #[error("vectorize: a store of {vector} is not aligned in rows of {row} elements")]
    StoreRows { vector: i64, row: i64 },
    #[error("vectorize: a store of {vector} along n, but {0}", .why)]
    StoreAlong { vector: i64, why: &'static str },
}

/// What a condition says.
pub type Held = Result<(), Refusal>;

/// Nothing where a condition holds.
pub(super) fn unless(met: bool, refusal: Refusal) -> Held {
    if met {
        Ok(())
    } else {
        Err(refusal)
    }
}
