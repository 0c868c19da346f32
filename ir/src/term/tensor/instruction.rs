//! The matrix instructions of a warp; of `mma.sync`, where lanes hold their operands.
use super::Wmma;
use crate::DType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A matrix instruction of one warp, D in place. `mma.sync`: D (16 x 8) = A (16 x k) * B (k x 8) + D; for `wmma` see [`Wmma`].
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
    /// `wmma`.
    Wmma(Wmma),
}

impl Mma {
    /// Extent along k.
    pub fn k(self) -> u32 {
        self.wmma().map_or(self.word() * 8, |op| op.extents()[2])
    }

    /// Rows and columns of D, which a warp's tile is made of.
    pub fn block(self) -> [i64; 2] {
        self.wmma().map_or([16, 8], |op| [op.extents()[0].into(), op.extents()[1].into()])
    }

    /// Rows of A, or columns of B, that one load brings: of `mma.sync`'s B the columns of two neighbouring instructions, where
    /// there are two.
    pub fn loaded(self, side: crate::term::Side) -> i64 {
        let [m, n] = self.block();
        match side {
            crate::term::Side::A => m,
            crate::term::Side::B => self.wmma().map_or(2 * n, |_| n),
        }
    }

    /// The instruction of `wmma` that it is.
    pub fn wmma(self) -> Option<Wmma> {
        match self {
            Mma::Wmma(op) => Some(op),
            _ => None,
        }
    }

    /// Registers that a set of fragments takes for one row (A) and one column (B) of [`Mma::block`]s.
    pub fn fragment_words(self) -> [i64; 2] {
        use crate::term::Side::{A, B};
        let words = |op: Wmma, side| i64::from(op.elements(side) / self.word());
        self.wmma().map_or([4, 2], |op| [words(op, A), words(op, B)])
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
            Mma::Wmma(op) => op.operand,
        }
    }

    /// Type of D's elements.
    pub fn accumulator(self) -> DType {
        match self {
            Mma::S8 => DType::I32,
            Mma::Wmma(op) => op.accumulator(),
            _ => DType::F32,
        }
    }

    /// (row, k) of element `i` of a lane's fragment of A on `mma.sync`, which has 4 words.
    pub fn a_place(self, lane: u32, i: u32) -> (u32, u32) {
        let (w, e) = (i / self.word(), i % self.word());
        (lane / 4 + 8 * (w % 2), (lane % 4 + 4 * (w / 2)) * self.word() + e)
    }

    /// (k, column) of element `i` of a lane's fragment of B on `mma.sync`, which has 2 words.
    pub fn b_place(self, lane: u32, i: u32) -> (u32, u32) {
        let (w, e) = (i / self.word(), i % self.word());
        ((lane % 4 + 4 * w) * self.word() + e, lane / 4)
    }

    /// (row, column) of element `i` of a lane's part of D on `mma.sync`, which has 4.
    pub fn d_place(lane: u32, i: u32) -> (u32, u32) {
        (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2)
    }
}

impl fmt::Display for Mma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mma::Wmma(op) => write!(f, "{op}"),
            op => write!(f, "mma.sync {op:?}"),
        }
    }
}
