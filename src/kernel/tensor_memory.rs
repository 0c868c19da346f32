//! What Blackwell (sm_100a) adds: `tcgen05`, matrix instructions of one thread whose sums are in tensor memory.
//!
//! Tensor memory has 128 lanes and 512 columns of 32 bits per multiprocessor. An address has the lane in its upper 16 bits and the
//! column in the lower ones. Warp w of each four reaches lanes `32 w` to `32 w + 31`.
use super::{ArrayId, Cond, Descriptor, Index};
use satune_ir::DType;
use serde::{Deserialize, Serialize};

/// `tcgen05.mma`: D (128 x n) = A (128 x k) * B (k x n), or that + D; A and B in shared memory. Row r of D is lane r of tensor memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Tcgen05 {
    /// Columns: 16 to 256 by 16.
    pub n: u32,
    /// Type of A's and B's elements: f16, bf16, f32 (read as tf32), i8, fp8.
    pub operand: DType,
    /// A is stored with rows along memory (16-bit types only).
    pub a_transposed: bool,
    /// B is stored with columns along memory (16-bit types only).
    pub b_transposed: bool,
}

impl Tcgen05 {
    /// Rows.
    pub const ROWS: u32 = 128;

    /// Extent along k: 32 bytes.
    pub fn k(self) -> u32 {
        32 / self.operand.bytes()
    }

    /// Type of D's elements.
    pub fn accumulator(self) -> DType {
        match self.operand {
            DType::I8 => DType::I32,
            _ => DType::F32,
        }
    }

    /// The kind of the instruction, as PTX spells it.
    pub fn kind(self) -> &'static str {
        match self.operand {
            DType::F16 | DType::BF16 => "f16",
            DType::I8 => "i8",
            DType::F8E4M3 | DType::F8E5M2 => "f8f6f4",
            _ => "tf32",
        }
    }

    /// The instruction descriptor: types, orders, shape (PTX ISA, `tcgen05` instruction descriptor).
    pub fn descriptor(self) -> u32 {
        let sums = if self.operand == DType::I8 { 2 } else { 1 };
        let operand = match self.operand {
            DType::F16 | DType::F8E4M3 => 0,
            DType::BF16 | DType::I8 | DType::F8E5M2 => 1,
            _ => 2,
        };
        let orders = u32::from(self.a_transposed) << 15 | u32::from(self.b_transposed) << 16;
        let shape = (self.n / 8) << 17 | (Tcgen05::ROWS / 16) << 24;
        sums << 4 | operand << 7 | operand << 10 | orders | shape
    }
}

/// See the module. What says "one thread" is executed by each thread that reaches it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TensorMemoryOp {
    /// `tcgen05.alloc`, by one warp: so many columns, whose address it writes to an element of a shared array of i32. The
    /// block gets no more afterwards.
    Allocate {
        /// Where the address goes.
        slot: (ArrayId, Index),
        /// A power of two, 32 to 512.
        columns: u32,
    },
    /// `tcgen05.dealloc`, by one warp.
    Free {
        /// Their address.
        at: Index,
        /// How many.
        columns: u32,
    },
    /// `tcgen05.mma`, by one thread: done some time before what a later [`TensorMemoryOp::Commit`] of the thread arrives at.
    Multiply {
        /// Instruction.
        op: Tcgen05,
        /// Tensor memory, and the address of D.
        d: (ArrayId, Index),
        /// 128 x k.
        a: Descriptor,
        /// k x n.
        b: Descriptor,
        /// Whether D is added.
        adds: Cond,
    },
    /// `tcgen05.commit`, by one thread: an arrival at a barrier when all that it multiplied before is done.
    Commit {
        /// Barrier.
        barrier: (ArrayId, Index),
        /// At that barrier of each block of the cluster whose bit is set; otherwise of the thread's own.
        multicast: Option<Index>,
    },
    /// `tcgen05.ld` of shape 16x256b and `tcgen05.wait::ld`, by whole warps: 16 lanes and `8 * eights` columns of 32 bits. Lane `4 g + t` of the
    /// warp gets, as element `4 j + i`, lane `g + 8 (i / 2)`, column `8 j + 2 t + i % 2`, counted from the address.
    Load {
        /// A register array and the first of its elements, a constant.
        dst: (ArrayId, Index),
        /// Tensor memory, and the address.
        from: (ArrayId, Index),
        /// 1, 2, 4, 8, 16 or 32.
        eights: u32,
    },
    /// `tcgen05.fence::before_thread_sync`: what the thread loaded is done before what other threads do behind a barrier.
    FenceBefore,
    /// `tcgen05.fence::after_thread_sync`: what follows sees what was done before the barrier.
    FenceAfter,
}
