//! Why a plan has no kernel.
use crate::DType;

/// Why a plan has no kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// A size that is not positive, or beyond 2^31.
    #[error("{0} is {1}; sizes are 1 to 2^31 - 1")]
    Size(&'static str, i64),
    /// A matrix that no memory holds.
    #[error("{0} has more than 2^48 elements in all batches")]
    Elements(&'static str),
    /// The instruction does not take these operands.
    #[error("{instruction} does not multiply {operand:?}")]
    OperandType {
        /// Instruction.
        instruction: String,
        /// Operand type.
        operand: DType,
    },
    /// The instruction does not hold sums so.
    #[error("the instruction {instruction}: it adds up in {}, and the program in {}", .sums[0].name(), .sums[1].name())]
    SumType {
        /// Instruction.
        instruction: String,
        /// Its type of sums, and the program's.
        sums: [DType; 2],
    },
    /// The result cannot have this type.
    #[error("sums in {accumulator:?} are not stored as {output:?}")]
    OutputType {
        /// Type of the sums.
        accumulator: DType,
        /// Type of C.
        output: DType,
    },
    /// A tile does not divide.
    #[error("{what} is {value}; it must be a positive multiple of {of}")]
    Multiple {
        /// What.
        what: &'static str,
        /// Its value.
        value: i64,
        /// What it must be a multiple of.
        of: i64,
    },
    /// Rows of a tile whose 16-byte chunks cannot be xor-ed.
    #[error("rows of {0}'s tile have {1} 16-byte chunks; a swizzle takes 1, 2, 4 or a multiple of 8")]
    Swizzle(&'static str, i64),
    /// An operand's way to the fragments.
    #[error("an operand cannot be brought so: {0}")]
    Operand(&'static str),
    /// The loop over k.
    #[error("the loop over k cannot be so: {0}")]
    Loop(&'static str),
    /// Too many threads, or none.
    #[error("{0} threads per block; a GPU runs 32 to 1024")]
    Threads(i64),
    /// The ring is too short or too long.
    #[error("{0} stages; a ring has 2 to 16")]
    Stages(u32),
    /// Too much shared memory.
    #[error("{bytes} bytes of shared memory per block; at most {most}")]
    Shared {
        /// Asked for.
        bytes: i64,
        /// Limit.
        most: i64,
    },
    /// No room for padded rows.
    #[error(
        "rows of tiles are padded where the ring has room for both operands' rows so padded: {bytes} bytes of shared \
         memory per block; at most {most}"
    )]
    Padding {
        /// With both padded.
        bytes: i64,
        /// Limit.
        most: i64,
    },
    /// The way through shared memory is not open.
    #[error("C cannot be stored by way of shared memory: {0}")]
    Store(&'static str),
    /// Types that are read along k only.
    #[error("{instruction} reads {operand:?} only along k: {side} is stored across it")]
    Order {
        /// Instruction.
        instruction: &'static str,
        /// Operand type.
        operand: DType,
        /// A or B.
        side: &'static str,
    },
    /// More accumulators than registers.
    #[error("{0} accumulators per thread; at most {1} fit")]
    Accumulators(i64, i64),
    /// More sums than tensor memory holds.
    #[error("{0} columns of tensor memory per block; at most {1} fit")]
    Columns(i64, i64),
    /// What the TMA cannot move.
    #[error("the TMA cannot move {0}: {1}")]
    TensorMap(&'static str, &'static str),
    /// Blocks that cannot form such clusters.
    #[error("clusters of {} x {} blocks: {why}", .cluster[0], .cluster[1])]
    Cluster {
        /// Blocks along m and n.
        cluster: [u32; 2],
        /// What forbids them.
        why: &'static str,
    },
    /// Tiles that threads cannot copy.
    #[error("the threads that multiply cannot copy the tiles: {0}")]
    ByThreads(&'static str),
    /// Steps along k that cannot be dealt out evenly.
    #[error("stream-K: {0}")]
    StreamK(&'static str),
    /// More registers than a thread can have.
    #[error("{need} registers for a thread at least; {most} are left to each")]
    Registers {
        /// What is needed.
        need: i64,
        /// What there is.
        most: i64,
    },
    /// A part of k ends within a tile.
    #[error("a part of k has {part} values, which tiles of {tile} do not divide")]
    Part {
        /// Values of k in a part.
        part: i64,
        /// Those of a tile.
        tile: i64,
    },
    /// More parts than tiles along k.
    #[error("{parts} parts of {tiles} tiles along k")]
    Split {
        /// Parts.
        parts: i64,
        /// Tiles.
        tiles: i64,
    },
}
