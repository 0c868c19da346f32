//! The matrix instructions of a warp; each of `mma.sync` is a row of [`Mma::sync`], of which all that is said of it is read: where it
//! is, how it is written, and where lanes hold its operands.
use super::Wmma;
use crate::layout::Layout;
use crate::DType;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::OnceLock;

/// A matrix instruction of one warp, D in place. `mma.sync`: D (16 x 8) = A (16 x k) * B (k x 8) + D; for `wmma` see [`Wmma`].
///
/// Where lanes hold what [`Mma::layout`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mma {
    /// m16n8k16, f16 to f32.
    F16,
    /// m16n8k16, f16 to f16.
    F16Sums,
    /// m16n8k8, f16 to f32.
    F16k8,
    /// m16n8k8, f16 to f16.
    F16k8Sums,
    /// m16n8k16, bf16 to f32.
    Bf16,
    /// m16n8k8, bf16 to f32: of schedules by others.
    Bf16k8,
    /// m16n8k8, tf32 to f32. Operands are f32 numbers whose last 13 bits the machine does not read.
    Tf32,
    /// m16n8k32, s8 to s32.
    S8,
    /// m16n8k16, s8 to s32: two of m8n8k16, one for the upper rows and one for the lower.
    S8k16,
    /// m16n8k32, e4m3 to f32.
    E4m3,
    /// m16n8k32, e5m2 to f32.
    E5m2,
    /// `wmma`.
    Wmma(Wmma),
}

/// What an instruction of `mma.sync` is. It has 4 or 8 words of k, a word being 32 bits of neighbouring elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    /// Extent along k.
    pub k: u32,
    /// Rows that one instruction of PTX has: 16, or 8 where two are written.
    pub rows: u32,
    /// Type of A's and B's elements in memory.
    pub operand: DType,
    /// Type of D's elements.
    pub accumulator: DType,
    /// A's and B's type, and D's, as PTX spells them.
    pub ptx: [&'static str; 2],
    /// The same as TVM's `ptx_mma` does.
    pub tvm: [&'static str; 2],
    /// Architectures that it is for, by number: others do not know it, make it of several instructions, or have a larger one.
    pub archs: &'static [RangeInclusive<u32>],
}

impl Sync {
    /// The modifiers of PTX, `m16n8k16.row.col.f32.f16.f16.f32`.
    pub fn form(&self) -> String {
        let (rows, k, [operand, sums]) = (self.rows, self.k, self.ptx);
        format!("m{rows}n8k{k}.row.col.{sums}.{operand}.{operand}.{sums}")
    }

    /// Instructions of PTX that it is written as: each has some of its rows.
    pub fn parts(&self) -> u32 {
        16 / self.rows
    }
}

const TURING: &[RangeInclusive<u32>] = &[75..=79];
const AMPERE: &[RangeInclusive<u32>] = &[80..=u32::MAX];
/// With fp8: sm_90 and sm_100 convert to f16 and multiply that (machine code).
const ADA: &[RangeInclusive<u32>] = &[89..=89, 120..=121];

impl Mma {
    /// All instructions of `mma.sync`.
    pub const SYNC: [Mma; 11] = [
        Mma::F16,
        Mma::F16Sums,
        Mma::F16k8,
        Mma::F16k8Sums,
        Mma::Bf16,
        Mma::Bf16k8,
        Mma::Tf32,
        Mma::S8,
        Mma::S8k16,
        Mma::E4m3,
        Mma::E5m2,
    ];

    /// What the instruction of `mma.sync` is, or which of `wmma` it is. Source: PTX ISA, "Matrix multiply-accumulate operation using
    /// mma instruction".
    pub fn sync(self) -> Result<Sync, Wmma> {
        let row =
            |k, operand, accumulator, ptx, tvm, archs| Ok(Sync { k, rows: 16, operand, accumulator, ptx, tvm, archs });
        match self {
            Mma::F16 => row(16, DType::F16, DType::F32, ["f16", "f32"], ["fp16", "fp32"], AMPERE),
            Mma::F16Sums => row(16, DType::F16, DType::F16, ["f16", "f16"], ["fp16", "fp16"], AMPERE),
            Mma::F16k8 => row(8, DType::F16, DType::F32, ["f16", "f32"], ["fp16", "fp32"], TURING),
            Mma::F16k8Sums => row(8, DType::F16, DType::F16, ["f16", "f16"], ["fp16", "fp16"], TURING),
            Mma::Bf16 => row(16, DType::BF16, DType::F32, ["bf16", "f32"], ["bf16", "fp32"], AMPERE),
            Mma::Bf16k8 => row(8, DType::BF16, DType::F32, ["bf16", "f32"], ["bf16", "fp32"], AMPERE),
            Mma::Tf32 => row(8, DType::F32, DType::F32, ["tf32", "f32"], ["tf32", "fp32"], AMPERE),
            Mma::S8 => row(32, DType::I8, DType::I32, ["s8", "s32"], ["int8", "int32"], AMPERE),
            Mma::S8k16 => {
                let whole = row(16, DType::I8, DType::I32, ["s8", "s32"], ["int8", "int32"], TURING);
                whole.map(|sync| Sync { rows: 8, ..sync })
            }
            Mma::E4m3 => row(32, DType::F8E4M3, DType::F32, ["e4m3", "f32"], ["e4m3", "fp32"], ADA),
            Mma::E5m2 => row(32, DType::F8E5M2, DType::F32, ["e5m2", "f32"], ["e5m2", "fp32"], ADA),
            Mma::Wmma(op) => Err(op),
        }
    }

    /// Its name in texts, `mma_f16k8`.
    pub fn name(self) -> String {
        format!("mma_{self:?}").to_lowercase()
    }

    /// Whether it is for an architecture, by number.
    pub fn is_native(self, arch: u32) -> bool {
        self.sync().map_or_else(|op| op.needs() <= arch, |sync| sync.archs.iter().any(|archs| archs.contains(&arch)))
    }

    /// Whether `cp.async` brings its operands to shared memory, as GPUs that it is for have it from sm_80 on; else tiles wait in
    /// registers on their way.
    pub fn is_async(self) -> bool {
        self.sync().is_ok_and(|sync| sync.archs.iter().all(|archs| *archs.start() >= 80))
    }

    /// The architectures of [`Mma::is_native`], for people.
    pub fn needs(self) -> String {
        let text = |archs: &RangeInclusive<u32>| match (*archs.start(), *archs.end()) {
            (first, u32::MAX) => format!("sm_{first} or later"),
            (first, last) if first == last => format!("sm_{first}"),
            (first, last) => format!("sm_{first} to sm_{last}"),
        };
        match self.sync() {
            Err(op) => format!("sm_{} or later", op.needs()),
            Ok(sync) => sync.archs.iter().map(text).collect::<Vec<_>>().join(" or "),
        }
    }

    /// Extent along k.
    pub fn k(self) -> u32 {
        self.sync().map_or_else(|op| op.extents()[2], |sync| sync.k)
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
        self.sync().err()
    }

    /// Matrices of 8 rows of 16 bytes that a load of `mma.sync`'s operands has: of 16 rows or columns. Loads of `wmma`, whose matrices
    /// nobody knows, count as the most.
    pub fn matrices(self) -> u32 {
        self.sync().map_or(4, |sync| sync.k / self.word() / 2)
    }

    /// Registers that a set of fragments takes for one row (A) and one column (B) of [`Mma::block`]s.
    pub fn fragment_words(self) -> [i64; 2] {
        use crate::term::Side::{A, B};
        let words = |op: Wmma, side| i64::from(op.elements(side) / self.word());
        let sync = [2, 1].map(|rows| rows * i64::from(self.k() / self.word() / 4));
        self.wmma().map_or(sync, |op| [words(op, A), words(op, B)])
    }

    /// 32-bit registers of a lane that hold the sums of one [`Mma::block`].
    pub fn sum_words(self) -> i64 {
        let [m, n] = self.block();
        m * n / 32 * i64::from(self.accumulator().bytes()) / 4
    }

    /// Elements of an operand in a 32-bit word.
    pub fn word(self) -> u32 {
        4 / self.operand().bytes()
    }

    /// Type of A's and B's elements.
    pub fn operand(self) -> DType {
        self.sync().map_or_else(|op| op.operand, |sync| sync.operand)
    }

    /// Type of D's elements.
    pub fn accumulator(self) -> DType {
        self.sync().map_or_else(Wmma::accumulator, |sync| sync.accumulator)
    }

    /// Where the lanes of `mma.sync` hold a matrix: of the elements of each lane's fragment, the "row" and "k" (A), "k" and "column" (B),
    /// "row" and "column" (D). Source: PTX ISA, matrix fragments of `mma`.
    pub fn layout(self, matrix: Fragment) -> Layout {
        let word = |along: &'static str| Layout::along("element", along, self.word()).then("lane", along, 4);
        // The lanes of a row have four words of k.
        let more = self.k() / self.word() / 4;
        match matrix {
            Fragment::A => word("k").then("lane", "row", 8).then("element", "row", 2).then("element", "k", more),
            Fragment::B => word("k").then("lane", "column", 8).then("element", "k", more),
            Fragment::D => sums(),
        }
    }

    /// The two numbers of [`Mma::layout`] for each element of each lane, lane by lane.
    pub fn places(self, matrix: Fragment) -> &'static [[u32; 2]] {
        type Table = OnceLock<Vec<[u32; 2]>>;
        static KNOWN: [[Table; 3]; Mma::SYNC.len()] = [const { [const { OnceLock::new() }; 3] }; Mma::SYNC.len()];
        let of = Mma::SYNC.iter().position(|op| *op == self).unwrap_or(0);
        let table = &KNOWN[of][matrix as usize];
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
        match self.sync() {
            Err(op) => write!(f, "{op}"),
            Ok(_) => write!(f, "mma.sync {self:?}"),
        }
    }
}
