//! The instructions of `mma.sync`, and where lanes hold their operands.
use crate::DType;
use serde::{Deserialize, Serialize};

/// `mma.sync`: D (16 x 8) = A (16 x k) * B (k x 8) + D, one warp, D in place.
///
/// With `g = lane / 4` and `t = lane % 4`: word w of A holds row `g + 8 (w % 2)`, and `word` neighbouring k from
/// `(t + 4 (w / 2)) * word`; word w of B holds column g and `word` neighbouring k from `(t + 4 w) * word`; D holds
/// (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1), where `word` is the number of elements in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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
