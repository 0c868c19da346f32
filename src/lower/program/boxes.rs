//! How shared memory holds what `wgmma` multiplies: rows in boxes, permuted as the instruction finds them.
//!
//! A box has all rows of a tile and so many columns as a swizzle's span has bytes (128, 64 or 32). Chunks of 16 bytes are permuted within
//! its rows:
//!
//! ```text
//!   element (row, column) of span S, C columns to a chunk:
//!       box column // S,  row,  chunk (column % S // C) ^ (row * S bytes // 128 % (S // C)),  column % C
//! ```
//! That is what the machine makes of an address in a box that begins at a multiple of 1024 bytes: bits 4 and up are xor-ed with those from
//! 7 on.
use super::linear::{Linear, Ranges};

/// Bytes of a chunk, which stays together.
const CHUNK: i64 = 16;
/// Bytes after which the permutation is another.
const LINE: i64 = 128;
/// Bytes at multiples of which boxes begin.
pub const ALIGN: i64 = 1024;

/// Boxes of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boxes {
    /// Columns of a box.
    pub columns: i64,
    /// Bytes of an element.
    bytes: i64,
}

impl Boxes {
    /// The widest boxes that a matrix of so many columns, of elements of so many bytes, has whole, where matrices begin at multiples of
    /// `step` columns.
    pub fn of(columns: i64, bytes: i64, step: i64) -> Option<Boxes> {
        let fits = |boxes: &Boxes| columns % boxes.columns == 0 && step % boxes.columns == 0;
        [128, 64, 32].map(|span| Boxes { columns: span / bytes, bytes }).into_iter().find(fits)
    }

    /// Bytes of a box's row.
    pub fn span(&self) -> i64 {
        self.columns * self.bytes
    }

    /// Where an element is, of a matrix of so many rows.
    pub fn place(&self, row: &Linear, column: &Linear, rows: i64, ranges: &Ranges) -> Linear {
        let unit = CHUNK / self.bytes;
        let within = column.remainder(self.columns, ranges);
        let (chunk, rest) = (within.divided(unit, ranges), within.remainder(unit, ranges));
        let line = row.divided(LINE / self.span(), ranges).remainder(self.columns / unit, ranges);
        let first = column.divided(self.columns, ranges).scaled(rows * self.columns).plus(row, self.columns);
        first.plus(&chunk.xor(&line, ranges), unit).plus(&rest, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// As the machine permutes addresses.
        #[test]
        fn places_are_those_of_the_machine(
            span in prop::sample::select(vec![128_i64, 64, 32]),
            bytes in prop::sample::select(vec![1_i64, 2, 4]),
            rows in 1_i64..9,
            row in 0_i64..64,
            column in 0_i64..512,
        ) {
            let (rows, ranges) = (8 * rows, Ranges::new());
            let (row, boxes) = (row % rows, Boxes { columns: span / bytes, bytes });
            let plain = (column / boxes.columns * rows + row) * span + column % boxes.columns * bytes;
            let mask = span / 16 - 1;
            let there = plain ^ ((plain >> 7 & mask) << 4);
            let found = boxes.place(&Linear::of(row), &Linear::of(column), rows, &ranges);
            prop_assert_eq!(found.as_constant(), Some(there / bytes));
        }
    }

    #[test]
    fn boxes_are_as_wide_as_tiles_have_them_whole() {
        let span = |columns, bytes, step| Boxes::of(columns, bytes, step).map(|boxes| boxes.span());
        assert_eq!(span(64, 2, 64), Some(128));
        assert_eq!(span(96, 2, 96), Some(64));
        assert_eq!(span(16, 2, 16), Some(32));
        assert_eq!(span(128, 2, 32), Some(64));
        assert_eq!(span(24, 2, 8), None);
    }
}
