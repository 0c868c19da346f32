//! `wmma`: a warp's matrices in fragments. Fragments are arrays in [`Space::Opaque`](super::Space): how a matrix is spread over
//! lanes and registers is the machine's own matter, so that these instructions alone touch them, and always a whole fragment.
use super::{ArrayId, Index};
use satune_ir::term::tensor::Wmma;
use satune_ir::term::Side;
use serde::{Deserialize, Serialize};

/// An instruction on fragments. All 32 lanes must reach it, with the same addresses. Indices into opaque arrays count
/// elements of a lane, and are constants: multiples of [`Wmma::elements`] for operands, of [`Wmma::sums`] for sums.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum WmmaOp {
    /// Zeros into a fragment of sums.
    Zero {
        /// Instruction.
        op: Wmma,
        /// Fragment.
        d: (ArrayId, Index),
    },
    /// `wmma.load`: a matrix from shared memory.
    Load {
        /// Instruction.
        op: Wmma,
        /// A or B.
        side: Side,
        /// Fragment.
        dst: (ArrayId, Index),
        /// Shared array and the matrix's first element: 32 bytes aligned, or as the fragment's registers of a lane.
        src: (ArrayId, Index),
        /// Elements from one line of memory to the next: a multiple of 16 bytes.
        stride: u32,
        /// Lines run along m or n (else along k).
        across: bool,
    },
    /// `wmma.mma`.
    Multiply {
        /// Instruction.
        op: Wmma,
        /// D.
        d: (ArrayId, Index),
        /// A, and whether its lines ran along m.
        a: (ArrayId, Index),
        /// B.
        b: (ArrayId, Index),
        /// Whether A's lines ran along m and B's along n, when they were loaded.
        across: [bool; 2],
    },
    /// `wmma.store`: sums, by rows, to shared or global memory.
    Store {
        /// Instruction.
        op: Wmma,
        /// Array and the matrix's first element, 32 bytes aligned.
        dst: (ArrayId, Index),
        /// Elements from one row to the next: a multiple of 16 bytes.
        stride: u64,
        /// Fragment.
        src: (ArrayId, Index),
    },
}
