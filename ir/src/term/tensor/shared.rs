//! Shared memory of plans on `mma.sync` and `wmma`: the ring of tiles, padded rows, and C on its way to memory.
use super::{operand, Gemm, Mma, TensorError, TileLayout, MOST_SHARED};
use crate::term::Side;

/// The ring has a length that there is, and fits the largest shared memory. Without `cp.async` one tile waits in registers, so that no
/// more than two are ever in the ring. `padding`: see [`padding`].
pub fn ring(gemm: &Gemm, op: Mma, tile: [i64; 3], stages: u32, padding: i64) -> Result<(), TensorError> {
    if !(2..=16).contains(&stages) {
        return Err(TensorError::Stages(stages));
    }
    if !op.is_async() && stages != 2 {
        return Err(TensorError::Loop("a ring that is filled through registers has two tiles"));
    }
    shared_fits(ring_bytes(gemm, tile, stages, padding), MOST_SHARED)
}

/// Rows of tiles are padded where the ring has room for both operands' rows so padded, of at most so many bytes of shared
/// memory: then whether A's are does not depend on B's.
pub fn room(gemm: &Gemm, op: Mma, tile: [i64; 3], stages: u32, most: i64) -> Result<(), TensorError> {
    let most = most.min(MOST_SHARED);
    match ring_bytes(gemm, tile, stages, padding(gemm, op, tile, [TileLayout::Padded; 2])) {
        bytes if bytes > most => Err(TensorError::Padding { bytes, most }),
        _ => Ok(()),
    }
}

/// A block's shared memory is there.
pub fn shared_fits(bytes: i64, most: i64) -> Result<(), TensorError> {
    if bytes > most {
        return Err(TensorError::Shared { bytes, most });
    }
    Ok(())
}

/// Bytes of a ring of so many tiles of both operands, which padded rows make larger by `padding`.
pub fn ring_bytes(gemm: &Gemm, [m, n, k]: [i64; 3], stages: u32, padding: i64) -> i64 {
    let plain = m.saturating_add(n).saturating_mul(k).saturating_mul(gemm.operand.bytes().into());
    plain.saturating_add(padding).saturating_mul(stages.into())
}

/// Bytes by which padded rows make both operands' tiles larger.
pub fn padding(gemm: &Gemm, op: Mma, [m, n, k]: [i64; 3], [a, b]: [TileLayout; 2]) -> i64 {
    let of = |side, extent, layout| operand::padding(gemm, side, op, [extent, k], layout);
    of(Side::A, m, a).saturating_add(of(Side::B, n, b))
}

/// The layout that takes the least shared memory: `wmma` loads fragments from padded rows only.
pub fn least_layout(op: Mma) -> TileLayout {
    if op.wmma().is_some() {
        TileLayout::Padded
    } else {
        TileLayout::Plain
    }
}

/// How a tile of C with rows of so many elements of 16 bits lies in shared memory on its way to memory: swizzled, or
/// padded where rows have no number of chunks that a swizzle takes.
pub fn staged_layout(row: i64) -> TileLayout {
    if matches!(row / 8, 1 | 2 | 4) || row % 64 == 0 {
        TileLayout::Xor(8)
    } else {
        TileLayout::Padded
    }
}
