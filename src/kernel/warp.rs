//! Instructions that a whole warp executes together on matrices: `ldmatrix`, `stmatrix`, `mma.sync`, and what goes with
//! them; `wmma` has instructions of its own. Fragments are register arrays in [`Space::Fragment`](super::Space): whole 32-bit words per thread, each of
//! which holds one element of 32 bits, two of 16 or four of 8, the first in the low bits. Indices count elements.
use super::{ArrayId, Index, Value, WmmaOp};
pub use satune_ir::term::tensor::Mma;
use serde::{Deserialize, Serialize};

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
    /// `wmma`.
    Wmma(WmmaOp),
}
