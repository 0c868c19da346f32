//! Shared memory of a row's kernel, as TVM's storage rewrite lays it out.
use super::fit::{by_rows, Fit};
use super::{Row, RowError};
use satune_ir::term::Contraction;
use satune_ir::DType;
use std::fmt;

/// A buffer takes the place of one that is read no more if neither is over so many times as large as the other.
const ALIKE: u64 = 16;

/// Bytes of shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedBytes {
    /// Of A's tile.
    pub a: u64,
    /// Of B's tile.
    pub b: u64,
    /// Of C's tile.
    pub c: u64,
    /// Of all places, each as large as the largest buffer there.
    pub sum: u64,
    /// The buffers of each place.
    places: Vec<Place>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    bytes: u64,
    /// Of the buffer that it is made for.
    dtype: DType,
    buffers: Vec<&'static str>,
    /// What is there is read no more.
    free: bool,
}

/// Puts a buffer where TVM does: in the smallest free place that is large enough, else in the largest one of its type, which
/// grows.
fn place(places: &mut Vec<Place>, name: &'static str, bytes: u64, dtype: DType) {
    let takes = |p: &&mut Place| {
        let is_alike = p.bytes >= bytes / ALIKE && p.bytes <= bytes.saturating_mul(ALIKE);
        p.free && is_alike && (p.bytes >= bytes || p.dtype == dtype)
    };
    let order = |p: &&mut Place| if p.bytes >= bytes { (0, p.bytes) } else { (1, u64::MAX - p.bytes) };
    match places.iter_mut().filter(takes).min_by_key(order) {
        Some(place) => {
            place.bytes = place.bytes.max(bytes);
            place.buffers.push(name);
            place.free = false;
        }
        None => places.push(Place { bytes, dtype, buffers: vec![name], free: false }),
    }
}

impl Row {
    /// The shared memory that TVM gives the kernel of this row.
    ///
    /// # Errors
    /// Where the row is none of the product.
    pub fn shared_bytes(&self, contraction: &Contraction) -> Result<SharedBytes, RowError> {
        let contraction = &*by_rows(contraction);
        let fit = Fit::of(self, contraction)?;
        let types = [contraction.a.dtype, contraction.b.dtype, contraction.accumulate];
        let size = |at: usize, pitch: i64| {
            let elements = fit.rows[at].unsigned_abs().saturating_mul(pitch.unsigned_abs());
            elements.saturating_mul(types[at].bytes().into())
        };
        let [a, b, c] = [size(0, self.a.pitch()), size(1, self.b.pitch()), size(2, self.c.pitch())];
        let mut places = Vec::new();
        place(&mut places, "A.shared", a, types[0]);
        // At one level A's fragments are loaded before B's tile is copied.
        places.iter_mut().for_each(|p| p.free = self.tiles_at == self.fragments_at);
        place(&mut places, "B.shared", b, types[1]);
        // C's tile is written where no tile is read any more, unless a loop over fragments is around both.
        let loops = self.sums_at == 1 && fit.warp != [self.wmma[0], self.wmma[1]];
        places.iter_mut().for_each(|p| p.free = !loops);
        place(&mut places, "C.shared", c, types[2]);
        let sum = places.iter().fold(0_u64, |sum, p| sum.saturating_add(p.bytes));
        Ok(SharedBytes { a, b, c, sum, places })
    }
}

impl SharedBytes {
    /// The sum against a limit, for people.
    pub fn against(&self, limit: u64) -> String {
        let (sign, end) = if self.sum > limit { (">", "it does not fit") } else { ("<=", "it fits") };
        format!("{self} {sign} {limit} B: {end}")
    }
}

impl fmt::Display for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SharedBytes { a, b, c, sum, .. } = self;
        write!(f, "A.shared {a} B, B.shared {b} B, C.shared {c} B")?;
        for Place { buffers, .. } in self.places.iter().filter(|p| p.buffers.len() > 1) {
            write!(f, ", {} in one place", buffers.join(" and "))?;
        }
        let parts: Vec<String> = self.places.iter().map(|p| p.bytes.to_string()).collect();
        write!(f, ": {} = {sum} B", parts.join(" + "))
    }
}

#[cfg(test)]
mod tests {
    use crate::heron::testing::{product, row, ROW_1190, ROW_77, ROW_99};
    use crate::heron::RowError;

    #[test]
    fn the_row_that_failed_needs_more_than_there_is() {
        let c = product([1024; 3], "NT", ["float16", "float16"]).1;
        let bytes = row(ROW_99).shared_bytes(&c).unwrap();
        assert_eq!((bytes.a, bytes.b, bytes.c, bytes.sum), (28_672, 7_168, 45_056, 52_224));
        assert_eq!(
            bytes.against(49_152),
            "A.shared 28672 B, B.shared 7168 B, C.shared 45056 B, A.shared and C.shared in one place: 45056 + 7168 = \
             52224 B > 49152 B: it does not fit"
        );
        // Those that ran.
        for (text, sum) in [(ROW_77, 36_864 + 512), (ROW_1190, 32_768 + 7_168)] {
            let bytes = row(text).shared_bytes(&c).unwrap();
            assert_eq!(bytes.sum, sum);
            assert!(bytes.against(49_152).ends_with("<= 49152 B: it fits"), "{bytes}");
        }
        // Sums of one fragment at a time, 16 columns of B: a loop is around the copies and the stores.
        let mut one = row(ROW_99);
        one.sums_at = 1;
        assert_eq!(one.shared_bytes(&c).unwrap().sum, 28_672 + 1_792 + 45_056);
        // Tiles of a size, each read before the next is written.
        let mut alike = row(ROW_99);
        (alike.fragments_at, alike.a.offset, alike.c.offset) = (1, 0, 0);
        assert_eq!(alike.shared_bytes(&c).unwrap().sum, 32_768);
        assert!(matches!(
            row(ROW_99).shared_bytes(&product([1000; 3], "NT", ["float16"; 2]).1),
            Err(RowError::Disagree(_))
        ));
    }
}
