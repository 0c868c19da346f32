//! Conditions of loops: over blocks, threads, k and parts of k.
use super::refusal::{unless, Held, Refusal};
use satune_ir::term::{Axis, Contraction};
use satune_ir::DType;

/// Steps of the inner k loop that are offered.
pub const STEPS: [i64; 3] = [1, 2, 4];

/// Registers that fragments and addresses take at least; any kernel takes more.
const REST: i64 = 40;

/// The results of a block divide among its threads.
pub fn threads_divide(results: i64, threads: i64) -> Held {
    unless(threads > 0 && results % threads == 0, Refusal::ThreadsDivide { results, threads })
}

/// The accumulators fit the registers of a thread.
pub fn accumulators_fit(results: i64, threads: i64, sums: DType, registers: i64) -> Held {
    let need = results / threads.max(1) * i64::from(sums.bytes().max(4) / 4);
    let refusal = Refusal::AccumulatorsFit { need, rest: REST, threads, registers };
    unless(need.saturating_add(REST) <= registers, refusal)
}

/// Warps, lanes or virtual threads along an axis divide the tile.
pub fn divides(what: &'static str, axis: Axis, parts: i64, tile: i64) -> Held {
    unless(parts > 0 && tile % parts == 0, Refusal::Divides { what, axis, parts, tile })
}

/// The parts divide k.
pub fn parts_divide(k: i64, parts: i64) -> Held {
    unless(parts > 0 && k % parts == 0, Refusal::PartsDivide { parts, k })
}

/// A part of k keeps two of the longest k tile. It keeps the space small.
pub fn long_parts(k: i64, parts: i64, longest: i64) -> Held {
    let left = k / parts.max(1);
    unless(left >= 2 * longest, Refusal::LongParts { parts, left, longest })
}

/// The second kernel adds the parts of sums over one axis.
pub fn one_kernel_parts(contraction: &Contraction) -> Held {
    let refuse = |why| Err(Refusal::OneKernelParts(why));
    if contraction.gather.is_some() {
        return refuse("writes a matrix, and this program's result is none in memory (a convolution)");
    }
    if contraction.outer_reduce().count() > 0 {
        return refuse("adds over one axis, and this program reduces over several");
    }
    if contraction.combine.as_ref().is_some_and(|combine| !combine.splits) {
        return refuse("adds what `rfactor` takes apart, and it does not take this program's reduction");
    }
    Ok(())
}

/// After the products of single threads the second kernel only adds; after those of tensor cores it applies the
/// epilogue, too.
pub fn plain_parts(contraction: &Contraction) -> Held {
    let why = "has no epilogue after products of single threads, and this program has one";
    unless(contraction.epilogue.is_none(), Refusal::OneKernelParts(why))
}

/// Sums are kept in the result's own buffer neither as parts nor under an epilogue, which would be a kernel of its own.
pub fn in_place(partial: bool, contraction: &Contraction) -> [Held; 2] {
    let parts = "the partial sums of a split k are kept in registers, never in global memory";
    let epilogue =
        "sums in global memory would leave the epilogue, or a convolution's order of results, a kernel of its own";
    [unless(!partial, Refusal::InPlace(parts)), unless(!contraction.finishes(), Refusal::InPlace(epilogue))]
}

/// The group divides the blocks along its axis into more than one, and there are several blocks across.
pub fn group_divides(axis: Axis, group: i64, along: i64, across: i64) -> [Held; 2] {
    let refusal = Refusal::GroupDivides { axis, group, along, across };
    [unless(group < along && across > 1, refusal), unless(group > 0 && along % group == 0, refusal)]
}

/// The step divides the k tile.
pub fn step_divides(k: i64, step: i64) -> Held {
    unless(step > 0 && k % step == 0, Refusal::StepDivides { step, k })
}

/// Steps of more than one k value are for fragments that are read along k.
pub fn step_along_k(step: i64, along_k: bool) -> Held {
    unless(step == 1 || along_k, Refusal::StepAlongK { step })
}

/// Over one k tile the copy above the loop is the copy in it.
pub fn strip_repeats(tile: i64, strip: i64) -> Held {
    unless(tile < strip, Refusal::StripRepeats { tile, strip })
}
