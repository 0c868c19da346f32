//! Conditions of copies in faster memory: layouts in shared memory, room, and fragments in registers.
use super::copies::MOST_BYTES;
use super::refusal::{unless, Held, Refusal};
use super::staged::{Both, Staged};
use satune_ir::term::{Axis, OperandInfo, Pipe, Side, StagedLayout};

/// What is staged fits in shared memory with all its buffers.
pub fn shared_fits(staged: [Option<Staged>; 2], most: i64) -> Held {
    let bytes = staged.iter().flatten().map(|s| s.bytes.saturating_mul(s.buffers)).fold(0, i64::saturating_add);
    unless(bytes <= most, Refusal::SharedFits { staged: Both(staged), bytes, most })
}

/// Operands are staged only where sums are in registers.
pub fn staged_sums(side: Side, in_registers: bool) -> Held {
    unless(in_registers, Refusal::StagedSums { side })
}

/// Only sums in registers leave copies to overlap with.
pub fn overlap_sums(pipe: Pipe, in_registers: bool) -> Held {
    unless(pipe == Pipe::Plain || in_registers, Refusal::OverlapSums { pipe })
}

/// An overlapped k loop copies tiles to shared memory.
pub fn overlap_staged(pipe: Pipe, copied: bool) -> Held {
    unless(pipe == Pipe::Plain || copied, Refusal::OverlapStaged { pipe })
}

/// Elements of 16 bytes, by which rows are padded.
pub fn chunk(operand: &OperandInfo) -> u32 {
    (16 / operand.dtype.bytes()).max(1)
}

/// The layouts of tiles on offer: plain, padded by 16 bytes (so that vector accesses stay aligned), or xor-ed where the
/// operand runs along k in global memory, transposed or not. Where it runs along its spatial axis a transposed tile is not
/// offered: it costs scalar stores and wins nothing.
pub fn layout_offered(side: Side, operand: &OperandInfo, layout: StagedLayout) -> Held {
    let along_k = operand.contiguous_along(Axis::K);
    let (pad, chunk) = (layout.pad, chunk(operand));
    unless(layout.k_major || along_k, Refusal::TransposedTile { side })?;
    unless(pad == 0 || pad == chunk, Refusal::Pad { side, pad, chunk })?;
    unless(!layout.swizzle || along_k, Refusal::Xor { side })?;
    unless(!layout.swizzle || pad == 0, Refusal::XorPadded { side })
}

/// A swizzled row has a power of two of 16-byte chunks, two at least.
pub fn swizzle_rows(side: Side, operand: &OperandInfo, layout: StagedLayout, [spatial, k]: [i64; 2]) -> Held {
    let row = if layout.k_major { spatial } else { k };
    let chunk = i64::from(chunk(operand));
    let power = row % chunk == 0 && row / chunk >= 2 && row.count_ones() == 1;
    unless(!layout.swizzle || power, Refusal::SwizzleRows { side, row, bytes: i64::from(operand.dtype.bytes()) })
}

/// Swizzled rows along k begin at a whole row of the operand, so that the xor stays inside the tile. Where tiles reach into the next
/// part of k (`cut`), those of the next part begin between two.
pub fn swizzle_parts(side: Side, layout: StagedLayout, cut: bool) -> Held {
    unless(!layout.swizzle || !cut || layout.k_major, Refusal::SwizzleParts { side })
}

/// All layouts that [`layout_offered`] takes.
pub fn offered(side: Side, operand: &OperandInfo) -> impl Iterator<Item = StagedLayout> + '_ {
    let pad = chunk(operand);
    let plain = |k_major| StagedLayout { k_major, pad: 0, swizzle: false };
    let padded = move |k_major| StagedLayout { pad, ..plain(k_major) };
    let xor = |k_major| StagedLayout { swizzle: true, ..plain(k_major) };
    let all = [plain(true), padded(true), plain(false), padded(false), xor(true), xor(false)];
    all.into_iter().filter(move |layout| layout_offered(side, operand, *layout).is_ok())
}

/// The layout that a strip of an operand takes; one, to keep the space small. Rows along the spatial axis in global memory
/// stay as they are. Rows along k, which threads read across, are swizzled where they can be (`swizzles`); else the strip is
/// transposed and padded.
pub fn strip_layout(
    side: Side,
    operand: &OperandInfo,
    extents: [i64; 2],
    swizzles: impl Fn(Held) -> bool,
) -> Option<StagedLayout> {
    let mut layouts =
        offered(side, operand).filter(|l| swizzles(swizzle_rows(side, operand, *l, extents))).collect::<Vec<_>>();
    if !operand.contiguous_along(Axis::K) {
        layouts.truncate(1);
        return layouts.pop();
    }
    let swizzled = layouts.iter().find(|l| !l.k_major && l.swizzle);
    swizzled.or_else(|| layouts.iter().find(|l| l.k_major && l.pad > 0)).copied()
}

/// A strip has the one layout that strips of its length have.
pub fn strip_offered(side: Side, operand: &OperandInfo, layout: StagedLayout, extents: [i64; 2]) -> Held {
    let only = strip_layout(side, operand, extents, |held| held.is_ok());
    unless(only == Some(layout), Refusal::StripLayout { side, along_k: operand.contiguous_along(Axis::K) })
}

/// A fragment's access has 16 bytes at most.
pub fn fragment_bytes(side: Side, vector: i64, element: i64) -> Held {
    let bytes = vector * element;
    unless(bytes <= MOST_BYTES, Refusal::FragmentBytes { side, vector, bytes })
}

/// The width of a fragment's access divides the run that it reads, and what rows are longer by.
pub fn fragment_run(side: Side, vector: i64, run: i64, pad: i64) -> Held {
    let aligned = run % vector.max(1) == 0 && pad % vector.max(1) == 0;
    unless(aligned, Refusal::FragmentRun { side, vector, run, pad })
}

/// Fragments are for sums in registers.
pub fn fragment_sums(side: Side, in_registers: bool) -> Held {
    unless(in_registers, Refusal::FragmentSums { side })
}
