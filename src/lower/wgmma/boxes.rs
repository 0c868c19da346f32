//! A swizzled box in shared memory, as the TMA takes it: lines of 128 bytes, whose chunks of 16 are xor-ed with the line's number modulo 8.
use super::{add, c, div, mul, rem, Index};
use crate::lower::index::xor;
use satune_ir::DType;

/// Chunks of a line, and lines after which the swizzle repeats.
const CHUNKS: i64 = 8;

/// A box of elements of a type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile(pub DType);

/// A place in a box: what differs between threads, and what does not.
pub(super) struct TileIndex {
    /// Row and 16-byte chunk of the thread, and element within the chunk.
    pub row: Index,
    pub chunk: Index,
    pub within: Index,
    /// Added to row and chunk; the row's part is a multiple of the swizzle's period.
    pub rows: i64,
    pub chunks: i64,
}

impl Tile {
    /// Elements of a chunk.
    pub fn chunk(self) -> i64 {
        16 / i64::from(self.0.bytes())
    }

    /// (number of the base, base, constant): the place's element is `base + constant`; places of equal number, row,
    /// chunk and element have equal bases.
    pub fn address(self, place: &TileIndex) -> (i64, Index, i64) {
        let key = place.chunks % CHUNKS;
        let chunk = xor(add(place.chunk.clone(), c(key)), rem(place.row.clone(), CHUNKS));
        let row = mul(place.row.clone(), CHUNKS * self.chunk());
        let base = add(add(row, mul(chunk, self.chunk())), place.within.clone());
        (key, base, (place.rows * CHUNKS + place.chunks - key) * self.chunk())
    }

    /// The element at a row and column.
    pub fn element(self, row: &Index, column: &Index) -> Index {
        let (chunk, within) = (div(column.clone(), self.chunk()), rem(column.clone(), self.chunk()));
        let (row, column) = (row.clone(), xor(chunk, rem(row.clone(), CHUNKS)));
        add(add(mul(row, CHUNKS * self.chunk()), mul(column, self.chunk())), within)
    }
}
