//! The instructions of `wmma`: a warp's matrices in fragments whose layout nobody but the machine knows.
use super::{Gemm, TensorError};
use crate::term::Side;
use crate::DType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Extents of a `wmma` instruction along m and n; along k it has 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WmmaShape {
    /// 16 x 16.
    M16N16,
    /// 32 x 8.
    M32N8,
    /// 8 x 32.
    M8N32,
}

impl WmmaShape {
    /// All that there are.
    pub const ALL: [WmmaShape; 3] = [WmmaShape::M16N16, WmmaShape::M32N8, WmmaShape::M8N32];
}

/// `wmma`: D (m x n) = A (m x 16) * B (16 x n) + D, one warp, D in place.
///
/// A fragment is loaded, multiplied, stored, and treated element by element as a whole: where a lane holds which element is
/// not specified (PTX ISA, "Matrix Fragments for WMMA").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Wmma {
    /// m and n.
    pub shape: WmmaShape,
    /// Type of A's and B's elements: f16, bf16 or i8.
    pub operand: DType,
    /// Sums of f16 are f16.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub f16_sums: bool,
}

/// Elements of C that a warp stages at once on their way to global memory, at most: with their padding no more than 3 KiB, so
/// that 16 warps' fit in 48 KiB.
const STAGED: i64 = 512;

impl Wmma {
    /// The instruction of a shape for operands of a type, where there is one, with sums of 32 bits.
    pub fn of(shape: WmmaShape, operand: DType) -> Option<Wmma> {
        Wmma::all().find(|op| op.shape == shape && op.operand == operand && !op.f16_sums)
    }

    /// All instructions.
    pub fn all() -> impl Iterator<Item = Wmma> {
        let types = [(DType::F16, false), (DType::F16, true), (DType::BF16, false), (DType::I8, false)];
        let of = move |shape| types.into_iter().map(move |(operand, f16_sums)| Wmma { shape, operand, f16_sums });
        WmmaShape::ALL.into_iter().flat_map(of)
    }

    /// The first architecture that has it, as in `sm_70` (PTX ISA, "wmma.mma: Target ISA Notes").
    pub fn needs(self) -> u32 {
        match self.operand {
            DType::BF16 => 80,
            DType::I8 => 72,
            _ => 70,
        }
    }

    /// Extents along m, n and k.
    pub fn extents(self) -> [u32; 3] {
        match self.shape {
            WmmaShape::M16N16 => [16, 16, 16],
            WmmaShape::M32N8 => [32, 8, 16],
            WmmaShape::M8N32 => [8, 32, 16],
        }
    }

    /// Type of D's elements.
    pub fn accumulator(self) -> DType {
        match self.operand {
            DType::I8 => DType::I32,
            DType::F16 if self.f16_sums => DType::F16,
            _ => DType::F32,
        }
    }

    /// Elements of A or B that a lane's registers have room for. f16 fragments have eight registers in every shape, since
    /// Volta holds each element twice or four times; others have no more than the matrix needs (PTX ISA).
    pub fn elements(self, side: Side) -> u32 {
        let [m, n, k] = self.extents();
        match (self.operand, side) {
            (DType::F16, _) => 16,
            (_, Side::A) => m * k / 32,
            (_, Side::B) => n * k / 32,
        }
    }

    /// Elements of D that a lane has.
    pub fn sums(self) -> u32 {
        8
    }

    /// Of what a matrix's first element and its lines in memory are multiples, bytes, one way or the other, where a lane's part of the fragment
    /// has so many bytes: of that (PTX ISA, "Matrix Storage for WMMA"), or of 32 and 16 (CUDA C++ Programming Guide, "Warp Matrix Functions").
    pub fn alignments(fragment: u32) -> [[u32; 2]; 2] {
        [[fragment, fragment], [32, 16]]
    }

    /// Columns of a warp's tile that are staged at once on their way to C.
    pub fn staged_columns(self, warp_n: i64) -> i64 {
        let [m, n, _] = self.extents().map(i64::from);
        let most = (STAGED / m).max(n);
        (1..=warp_n / n).rev().map(|i| i * n).find(|c| warp_n % c == 0 && *c <= most).unwrap_or(n)
    }

    /// Sums from one staged row to the next are of this multiple, and so many more: rows are 32 bytes more than a multiple of 64
    /// apart, so that four of them, 32 bytes each, lie in different banks.
    pub fn staged_align(self) -> [i64; 2] {
        [64, 32].map(|bytes| bytes / i64::from(self.accumulator().bytes()))
    }

    /// Sums from one staged row to the next: what `warps` beside each other stage lies side by side.
    pub fn staged_pitch(self, warp_n: i64, warps: i64) -> i64 {
        let ([unit, more], columns) = (self.staged_align(), warps * self.staged_columns(warp_n));
        columns + (more - columns).rem_euclid(unit)
    }

    /// Bytes that warps, so many below each other and so many beside each other, stage C with.
    pub fn staged_bytes(self, [below, beside]: [i64; 2], warp_n: i64) -> i64 {
        let rows = below * i64::from(self.extents()[0]);
        rows * self.staged_pitch(warp_n, beside) * i64::from(self.accumulator().bytes())
    }
}

impl fmt::Display for Wmma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [m, n, k] = self.extents();
        let sums = if self.f16_sums { " with f16 sums" } else { "" };
        write!(f, "wmma m{m}n{n}k{k} {:?}{sums}", self.operand)
    }
}

/// Bytes are loaded along k only: stored across it, the machine code takes them one by one. Lines of f16 must begin at
/// multiples of 32 bytes, or the matrix must (PTX ISA and CUDA C++ guide); those of 8 neighbours across k begin at 16.
pub(super) fn operands(gemm: &Gemm, op: Wmma) -> Result<(), TensorError> {
    let [m, n, _] = op.extents();
    for (side, across, own) in [("A", gemm.a_transposed, m), ("B", !gemm.b_transposed, n)] {
        let is_narrow = op.operand == DType::F16 && own == 8;
        if across && (op.operand.bytes() == 1 || is_narrow) {
            let instruction = if is_narrow { "wmma of 8 rows or columns" } else { "wmma" };
            return Err(TensorError::Order { instruction, operand: gemm.operand, side });
        }
    }
    Ok(())
}

/// The sums of a warp leave its fragments as a whole: straight to C only where that is of their type, and whole tiles
/// without anything added.
pub(super) fn store_direct(gemm: &Gemm, is_split: bool, [m, n]: [i64; 2]) -> Result<(), TensorError> {
    let reason = if !is_split && gemm.scattered {
        "wmma stores matrices, and rows of C are several indices of the program"
    } else if gemm.m % m != 0 || gemm.n % n != 0 {
        "wmma stores whole fragments, and tiles hang over the edge"
    } else if gemm.n * i64::from(gemm.accumulator().bytes()) % 16 != 0 {
        "wmma stores rows that are multiples of 16 bytes"
    } else if !is_split && gemm.output != gemm.accumulator() {
        "wmma stores sums as they are, and C has another type"
    } else if !is_split && gemm.epilogue != super::Epilogue::default() {
        "wmma stores sums as they are, and C is made from them"
    } else {
        return Ok(());
    };
    Err(TensorError::Store(reason))
}

/// Neighbouring elements that a lane brings from there to C at once: 16 bytes of sums, of results and of what the epilogue reads, or
/// fewer where rows of C are no multiples.
pub fn staged_width(gemm: &Gemm) -> i64 {
    let types = gemm.reads.iter().map(|read| read.dtype).chain([gemm.accumulator(), gemm.output]);
    let most = 16 / i64::from(types.map(DType::bytes).max().unwrap_or(16).clamp(1, 16));
    [8, 4, 2].into_iter().find(|width| *width <= most && gemm.c_run(false) % width == 0).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::super::Read;
    use super::*;

    /// A vector has 16 bytes at most, whatever it is of.
    #[test]
    fn the_widest_that_is_read_beside_the_sums_says_how_many_go_at_once() {
        let mut gemm = Gemm::plain("gemm", [64, 64, 64], DType::I8, DType::I32, "NT");
        assert_eq!(staged_width(&gemm), 4);
        gemm.output = DType::I8;
        for (dtype, width) in [(DType::I8, 4), (DType::F32, 4), (DType::I64, 2)] {
            gemm.reads = vec![Read::per_column(dtype, 64)];
            assert_eq!(staged_width(&gemm), width, "{dtype:?}");
        }
    }

    #[test]
    fn fragments_have_room_for_their_matrices() {
        for op in Wmma::all() {
            let [m, n, k] = op.extents();
            assert_eq!(m * n, 32 * op.sums());
            assert!(m * k <= 32 * op.elements(Side::A) && n * k <= 32 * op.elements(Side::B), "{op}");
        }
    }

    #[test]
    fn staged_columns_are_whole_instructions_that_divide_the_warps_tile() {
        for op in Wmma::all() {
            let [m, n, _] = op.extents().map(i64::from);
            for warp_n in (1..=8).map(|i| i * n) {
                let columns = op.staged_columns(warp_n);
                assert!(columns % n == 0 && warp_n % columns == 0 && m * columns <= STAGED, "{op} {warp_n}");
                for warps in [[1, 1], [16, 1], [4, 4], [3, 2], [1, 16]] {
                    let bytes = op.staged_bytes(warps, warp_n);
                    assert!(bytes % 128 == 0 && bytes <= 48 << 10, "{op} {warp_n} {warps:?}: {bytes}");
                }
            }
        }
    }
}
