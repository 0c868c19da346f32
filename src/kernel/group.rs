//! What Hopper (sm_90a) adds: barriers in shared memory with phases, copies of tiles by the tensor memory accelerator
//! (TMA), `wgmma` by four warps together, and warps with roles of their own.
//!
//! Barriers are elements of shared arrays of type u64. A barrier completes a phase when as many threads have arrived as
//! it was made for and all bytes that were announced have landed; its phases have parities 0, 1, 0 and so on.
use super::{ArrayId, Index, LocalVar, Stmt, TensorMemoryOp};
use satune_ir::term::tensor::{Boxes, GroupMma};
use satune_ir::DType;
use serde::{Deserialize, Serialize};

/// A parameter as the TMA sees it: a row-major matrix, a tensor, or images, moved in boxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorMap {
    /// The parameter.
    pub array: ArrayId,
    /// Elements of a row, rows, and more dimensions; of images: channels, columns (rows, depth), images.
    pub dims: Vec<u64>,
    /// Elements from one to the next along each dimension but the first.
    pub strides: Vec<u64>,
    /// Elements of a box's row, rows of a box: at most 256 each; along further dimensions it has one. Of images: channels, and pixels.
    pub tile: [u32; 2],
    /// Boxes are pixels of images.
    pub image: Option<Image>,
    /// Whether 16-byte chunks of a box in shared memory are permuted within its rows, of 128, 64 or 32 bytes: bits 4 and up
    /// of an address are xor-ed with those from 7 on, so that chunk c of row r of 128 bytes is at `c ^ r % 8`. Boxes are then
    /// aligned to eight rows.
    pub swizzle: bool,
}

/// A box of pixels: how `cp.async.bulk.tensor` in its mode im2col goes from one to the next. From the pixel at the coordinates on it
/// goes along the columns by their step to the last column, then to the next row's first, and after the last row to the next image.
/// Offsets are added to the places of all. For each dimension between the channels and the images:
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// From the image's first column (row, ..) to that of the first pixel.
    pub lower: Vec<i32>,
    /// From the image's last column (row, ..) to the last that a pixel may have.
    pub upper: Vec<i32>,
    /// From one pixel to the next: 1 to 8.
    pub steps: Vec<u32>,
}

impl Image {
    /// Index in dimension `d` of the last pixel, of images of so many columns (rows, ..).
    pub fn last(&self, d: usize, extent: u64) -> i64 {
        extent as i64 - 1 + self.upper.get(d).map_or(0, |corner| i64::from(*corner))
    }
}

impl TensorMap {
    /// A matrix with rows of `dims[0]` elements.
    pub fn matrix(array: ArrayId, dims: [u64; 2], tile: [u32; 2]) -> TensorMap {
        TensorMap { array, dims: dims.to_vec(), strides: vec![dims[0]], tile, image: None, swizzle: true }
    }

    /// A tensor as the TMA sees it, in boxes of so many elements of a row and rows.
    pub fn of_boxes(array: ArrayId, boxes: &Boxes, tile: [u32; 2]) -> TensorMap {
        TensorMap {
            array,
            dims: boxes.extents.iter().map(|d| *d as u64).collect(),
            strides: boxes.strides.iter().map(|d| *d as u64).collect(),
            tile,
            image: boxes.images.as_ref().map(|images| Image {
                lower: images.corners.iter().map(|corners| corners[0] as i32).collect(),
                upper: images.corners.iter().map(|corners| corners[1] as i32).collect(),
                steps: images.steps.iter().map(|step| *step as u32).collect(),
            }),
            swizzle: true,
        }
    }

    /// Elements of the parameter up to its last one, gaps between rows included.
    pub fn spanned(&self) -> u64 {
        let steps = std::iter::once(1).chain(self.strides.iter().copied());
        self.dims.iter().zip(steps).map(|(extent, step)| extent.saturating_sub(1) * step).sum::<u64>() + 1
    }

    /// Bytes of a box.
    pub fn bytes(&self, dtype: DType) -> u32 {
        self.tile[0] * self.tile[1] * dtype.bytes()
    }
}

/// `wgmma`: D (64 x n) = A (64 x k) * B (k x n) + D by four warps, B in shared memory, A there or in registers.
///
/// Lane `4 g + t` of warp w holds, as element `4 j + i`, row `16 w + g + 8 (i / 2)`, column `8 j + 2 t + i % 2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Wgmma {
    /// Columns: 8 to 256 by 8.
    pub n: u32,
    /// Type of A's and B's elements: f16, bf16, f32 (read as tf32), i8, fp8.
    pub operand: DType,
    /// Sums of f16 are f16.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub f16_sums: bool,
    /// A is in registers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub a_held: bool,
    /// A is stored with rows along memory (16-bit types only).
    pub a_transposed: bool,
    /// B is stored with columns along memory (16-bit types only).
    pub b_transposed: bool,
}

impl Wgmma {
    /// Extent along k: 32 bytes.
    pub fn k(self) -> u32 {
        32 / self.operand.bytes()
    }

    /// Type of D's elements.
    pub fn accumulator(self) -> DType {
        match self.operand {
            DType::I8 => DType::I32,
            DType::F16 if self.f16_sums => DType::F16,
            _ => DType::F32,
        }
    }
}

/// An operand of `wgmma` or `tcgen05` in shared memory, swizzled: atoms of 8 rows of a span, as the TMA writes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Descriptor {
    /// Whose: each has its own form.
    #[serde(default)]
    pub of: GroupMma,
    /// Shared array.
    pub array: ArrayId,
    /// Bytes of a row that the swizzle permutes: 128, 64 or 32; along k always 128.
    pub span: u32,
    /// First element; the pattern of the swizzle begins at multiples of eight spans.
    pub index: Index,
    /// Leading byte offset: transposed, from a span of rows or columns to the next; otherwise not read.
    pub leading: u32,
    /// Stride byte offset: from one atom to the next; along rows, or along k where transposed.
    pub stride: u32,
}

/// Where `wgmma` has A.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Left {
    /// In shared memory.
    Shared(Descriptor),
    /// In the warps' registers, each its 16 rows as `mma.sync` of the types has them: an array, and the first of the instruction's
    /// elements. Nothing writes them until the instruction is waited for.
    Registers(ArrayId, Index),
}

/// A role of some of the block's warps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Role {
    /// Name for people.
    pub name: String,
    /// First of its warps.
    pub first_warp: u32,
    /// Warps of each instance; a multiple of 4 where it sets registers or uses `wgmma`.
    pub warps: u32,
    /// How often there is such a role, one after the other; at least 1. Instances meet at barriers of their own.
    pub instances: u32,
    /// The number of the instance, for the code.
    pub number: Option<LocalVar>,
    /// `setmaxnreg` at the start.
    pub registers: Option<u32>,
    /// Its code.
    pub body: Vec<Stmt>,
}

/// See the module. What says "one thread" is executed by each thread that reaches it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum GroupOp {
    /// `mbarrier.init`, by one thread.
    BarrierInit {
        /// Barrier.
        barrier: (ArrayId, Index),
        /// Arrivals of a phase.
        arrivals: u32,
    },
    /// `fence.mbarrier_init`: the thread's barriers are ready for the TMA.
    FenceBarrierInit,
    /// `mbarrier.arrive`.
    Arrive {
        /// Barrier.
        barrier: (ArrayId, Index),
    },
    /// `mbarrier.arrive` on a barrier of a block of the cluster.
    ArriveRemote {
        /// The barrier, as the thread's own block has it.
        barrier: (ArrayId, Index),
        /// The block's number in the cluster.
        rank: Index,
    },
    /// `barrier.cluster`: all threads of all blocks of the cluster that have not ended.
    ClusterBarrier,
    /// `mbarrier.arrive.expect_tx`: announces bytes of this phase, and arrives.
    ArriveExpect {
        /// Barrier.
        barrier: (ArrayId, Index),
        /// Bytes.
        bytes: u32,
    },
    /// `mbarrier.try_wait.parity` until the phase of that parity is complete.
    WaitPhase {
        /// Barrier.
        barrier: (ArrayId, Index),
        /// 0 or 1.
        parity: Index,
    },
    /// `prefetch.tensormap`, by one thread: the map is brought before the first box asks for it.
    PrefetchMap {
        /// Position in [`Kernel::tensor_maps`](super::Kernel::tensor_maps).
        map: u32,
    },
    /// TMA: a box from global to shared memory; zeros where it hangs over. Its bytes count at the barrier.
    LoadTile {
        /// Shared array.
        dst: ArrayId,
        /// First element.
        dst_index: Index,
        /// Position in [`Kernel::tensor_maps`](super::Kernel::tensor_maps).
        map: u32,
        /// First element of the box, along each dimension of the map.
        at: Vec<Index>,
        /// Of images: what is added to it along each dimension between the channels and the images.
        offsets: Vec<Index>,
        /// Barrier.
        barrier: (ArrayId, Index),
        /// To each block of the cluster whose bit is set, at the same place, and its bytes at that block's barrier;
        /// otherwise to the thread's own.
        multicast: Option<Index>,
    },
    /// TMA: a box from shared to global memory, as far as it does not hang over.
    StoreTile {
        /// Position in [`Kernel::tensor_maps`](super::Kernel::tensor_maps).
        map: u32,
        /// First element of the box, along each dimension of the map.
        at: Vec<Index>,
        /// Shared array.
        src: ArrayId,
        /// First element.
        src_index: Index,
    },
    /// `cp.async.bulk.commit_group`: closes a group of the thread's stores.
    StoreCommit,
    /// `cp.async.bulk.wait_group`: all but the latest groups have read their shared memory, or are complete.
    StoreWait {
        /// Groups that may still be under way.
        latest: u32,
        /// Wait for the reads only.
        read: bool,
    },
    /// `fence.proxy.async`: what the thread wrote to shared memory becomes visible to TMA and `wgmma`.
    FenceAsync,
    /// `bar.sync`: the threads of the warps that share the number.
    NamedBarrier {
        /// 1 to 15.
        id: Index,
        /// Threads that take part: all of the role's.
        threads: u32,
    },
    /// The accumulators are in their registers from here on: else the compiler may set one where it is needed first, which is
    /// after the fence.
    MatrixKeep {
        /// A register array.
        array: ArrayId,
        /// Its elements.
        count: u32,
    },
    /// `wgmma.fence`: before the first `wgmma`, and after other instructions touched its registers.
    MatrixFence,
    /// `wgmma.mma_async`.
    Matrix {
        /// Instruction.
        op: Wgmma,
        /// Accumulators: a register array and the first of its n / 2 elements, a constant.
        d: (ArrayId, Index),
        /// 64 x k.
        a: Left,
        /// k x n.
        b: Descriptor,
    },
    /// `wgmma.commit_group`.
    MatrixCommit,
    /// `wgmma.wait_group`: all but the latest groups are complete.
    MatrixWait(u32),
    /// Matrix instructions whose sums are in tensor memory.
    TensorMemory(TensorMemoryOp),
}

/// Calls `f` with each operation of groups of warps in statements that are no roles.
pub fn each_group_op<'s>(body: &'s [Stmt], f: &mut dyn FnMut(&'s GroupOp)) {
    for stmt in body {
        match stmt {
            Stmt::For { body, .. } => each_group_op(body, f),
            Stmt::If { then, otherwise, .. } => {
                each_group_op(then, f);
                each_group_op(otherwise, f);
            }
            Stmt::Group(op) => f(op),
            _ => {}
        }
    }
}
