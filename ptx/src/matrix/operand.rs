//! Operands that stand in shared memory: which chunks hold a piece of one, and the numbers that the chunks are.
use super::descriptor::Descriptor;
use super::product::{Numbers, Panels};
use crate::format::Element;
use std::ops::Range;

/// Lines of an operand, rows of A or columns of B, each of so many numbers along k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// What the numbers are.
    pub element: Element,
    /// Whether they are contiguous along k, else along the lines.
    pub along_k: bool,
    /// The first line, and how many.
    pub first: usize,
    /// How many.
    pub lines: usize,
    /// Numbers of a line.
    pub k: usize,
    /// They change their signs.
    pub negated: bool,
}

impl Piece {
    /// The chunks of 16 bytes that hold it, in the order in which they are read.
    pub fn chunks(&self, descriptor: &Descriptor) -> Vec<u64> {
        let per_chunk = 128 / u64::from(self.element.bits());
        let (first, end, k) = (self.first as u64, (self.first + self.lines) as u64, self.k as u64);
        let mut out = Vec::new();
        if self.along_k {
            for line in first..end {
                out.extend((0..k / per_chunk).map(|chunk| descriptor.chunk(true, line, chunk)));
            }
        } else {
            for line in 0..k {
                out.extend((first / per_chunk..end / per_chunk).map(|chunk| descriptor.chunk(false, line, chunk)));
            }
        }
        out
    }

    /// As A, a row after the other, from its chunks.
    pub fn rows(&self, bytes: &[u8]) -> Numbers {
        let numbers = Numbers::of_bytes(self.element, bytes, self.negated);
        if self.along_k {
            numbers
        } else {
            numbers.transposed(self.lines)
        }
    }

    /// As B, K x N, from its chunks.
    pub fn panels(&self, bytes: &[u8]) -> Panels {
        let numbers = Numbers::of_bytes(self.element, bytes, self.negated);
        Panels::of(numbers, self.k, !self.along_k)
    }
}

/// The stretches that chunks of 16 bytes make up, in order.
pub fn stretches(chunks: &[u64]) -> Vec<Range<u64>> {
    let mut sorted = chunks.to_vec();
    sorted.sort_unstable();
    let mut stretches: Vec<Range<u64>> = Vec::new();
    for at in sorted {
        match stretches.last_mut() {
            Some(last) if last.end == at => last.end += 16,
            Some(last) if last.end > at => {}
            _ => stretches.push(at..at + 16),
        }
    }
    stretches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_make_up_stretches() {
        assert_eq!(stretches(&[32, 16, 64, 16, 80]), [16..48, 64..96]);
        assert!(stretches(&[]).is_empty());
    }
}
