//! Instructions that a whole warp executes together on matrices: `ldmatrix`, `stmatrix`, `mma.sync`, and what goes with
//! them. Fragments are register arrays in [`Space::Fragment`](super::Space): whole 32-bit words per thread, each of
//! which holds one element of 32 bits, two of 16 or four of 8, the first in the low bits. Indices count elements.
use super::{ArrayId, Index, Value};
use satune_ir::DType;
use serde::{Deserialize, Serialize};

/// `mma.sync`: D (16 x 8) = A (16 x k) * B (k x 8) + D, one warp, D in place.
///
/// With `g = lane / 4` and `t = lane % 4`: word w of A holds row `g + 8 (w % 2)`, and `word` neighbouring k from
/// `(t + 4 (w / 2)) * word`; word w of B holds column g and `word` neighbouring k from `(t + 4 w) * word`; D holds
/// (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1), where `word` is the number of elements in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mma {
    /// m16n8k16, f16 to f32.
    F16,
    /// m16n8k16, bf16 to f32.
    Bf16,
    /// m16n8k8, tf32 to f32. Operands are f32 numbers whose last 13 bits the machine does not read.
    Tf32,
    /// m16n8k32, s8 to s32.
    S8,
}

impl Mma {
    /// Extent along k.
    pub fn k(self) -> u32 {
        self.word() * 8
    }

    /// Elements of an operand in a 32-bit word.
    pub fn word(self) -> u32 {
        4 / self.operand().bytes()
    }

    /// Type of A's and B's elements.
    pub fn operand(self) -> DType {
        match self {
            Mma::F16 => DType::F16,
            Mma::Bf16 => DType::BF16,
            Mma::Tf32 => DType::F32,
            Mma::S8 => DType::I8,
        }
    }

    /// Type of D's elements.
    pub fn accumulator(self) -> DType {
        match self {
            Mma::S8 => DType::I32,
            _ => DType::F32,
        }
    }

    /// (row, k) of element `i` of a lane's fragment of A, which has 4 words.
    pub fn a_place(self, lane: u32, i: u32) -> (u32, u32) {
        let (w, e) = (i / self.word(), i % self.word());
        (lane / 4 + 8 * (w % 2), (lane % 4 + 4 * (w / 2)) * self.word() + e)
    }

    /// (k, column) of element `i` of a lane's fragment of B, which has 2 words.
    pub fn b_place(self, lane: u32, i: u32) -> (u32, u32) {
        let (w, e) = (i / self.word(), i % self.word());
        ((lane % 4 + 4 * w) * self.word() + e, lane / 4)
    }

    /// (row, column) of element `i` of a lane's part of D, which has 4.
    pub fn d_place(lane: u32, i: u32) -> (u32, u32) {
        (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2)
    }
}

/// An instruction of a warp. All 32 lanes must reach it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum WarpOp {
    /// `ldmatrix`: `count` (1, 2 or 4) matrices of 8 rows of 16 bytes. Lane `8 m + r` names the start of row r of
    /// matrix m. The lane receives, in word m, word `lane % 4` of row `lane / 4`; transposed (16-bit units): unit
    /// `lane / 4` of rows `2 (lane % 4)` and the next.
    LoadMatrix {
        /// Fragment array.
        dst: ArrayId,
        /// First element there.
        dst_index: Index,
        /// Shared array.
        src: ArrayId,
        /// Start of the lane's row; its address is a multiple of 16 bytes.
        src_index: Index,
        /// Matrices.
        count: u32,
        /// `.trans`.
        transposed: bool,
    },
    /// `stmatrix` (sm_90): the way back.
    StoreMatrix {
        /// Shared array.
        dst: ArrayId,
        /// Start of the lane's row.
        dst_index: Index,
        /// Fragment array.
        src: ArrayId,
        /// First element there.
        src_index: Index,
        /// Matrices.
        count: u32,
        /// `.trans`.
        transposed: bool,
    },
    /// `mma.sync`.
    Mma {
        /// Instruction.
        op: Mma,
        /// D: register array and first element.
        d: (ArrayId, Index),
        /// A: fragment array and first element.
        a: (ArrayId, Index),
        /// B: fragment array and first element.
        b: (ArrayId, Index),
    },
    /// `prmt`: a word whose byte i is byte `selector >> 4 i & 7` of the eight bytes of two words; 8-bit types.
    Permute {
        /// Target word.
        dst: (ArrayId, Index),
        /// Bytes 0 to 3.
        low: (ArrayId, Index),
        /// Bytes 4 to 7.
        high: (ArrayId, Index),
        /// One hexadecimal digit per byte.
        selector: u16,
    },
    /// One word of two 16-bit elements, each rounded from the value.
    Pack {
        /// Target word.
        dst: (ArrayId, Index),
        /// Low half.
        low: Value,
        /// High half.
        high: Value,
    },
}
