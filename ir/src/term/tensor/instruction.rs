//! The matrix instructions of a warp; of `mma.sync`, where lanes hold their operands.
use super::Wmma;
use crate::layout::Layout;
use crate::DType;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::OnceLock;

/// A matrix instruction of one warp, D in place. `mma.sync`: D (16 x 8) = A (16 x k) * B (k x 8) + D; for `wmma` see [`Wmma`].
///
/// Where lanes hold what [`Mma::layout`] says.
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

    /// Where the lanes of `mma.sync` hold a matrix: of the elements of each lane's fragment, the "row" and "k" (A), "k" and "column" (B),
    /// "row" and "column" (D). Source: PTX ISA, matrix fragments of `mma`.
    pub fn layout(self, matrix: Fragment) -> Layout {
        let word = |along: &'static str| Layout::along("element", along, self.word()).then("lane", along, 4);
        match matrix {
            Fragment::A => word("k").then("lane", "row", 8).then("element", "row", 2).then("element", "k", 2),
            Fragment::B => word("k").then("lane", "column", 8).then("element", "k", 2),
            Fragment::D => sums(),
        }
    }

    /// The two numbers of [`Mma::layout`] for each element of each lane, lane by lane.
    pub fn places(self, matrix: Fragment) -> &'static [[u32; 2]] {
        type Table = OnceLock<Vec<[u32; 2]>>;
        static KNOWN: [[Table; 3]; 3] = [const { [const { OnceLock::new() }; 3] }; 3];
        // Words of one, two or four elements.
        let table = &KNOWN[self.word().trailing_zeros().min(2) as usize][matrix as usize];
        table.get_or_init(|| self.layout(matrix).table(["lane", "element"], matrix.names()))
    }
}

/// Where lanes hold sums, of `mma.sync` and of every eight columns of `wgmma`: pairs of neighbouring columns, two of them eight rows apart.
fn sums() -> Layout {
    Layout::along("element", "column", 2).then("lane", "column", 4).then("lane", "row", 8).then("element", "row", 2)
}

/// A matrix of an instruction, as lanes hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// The left operand.
    A,
    /// The right operand.
    B,
    /// What is added, and the result.
    D,
}

impl Fragment {
    /// What its two sides are called in a layout.
    pub fn names(self) -> [&'static str; 2] {
        match self {
            Fragment::A => ["row", "k"],
            Fragment::B => ["k", "column"],
            Fragment::D => ["row", "column"],
        }
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
