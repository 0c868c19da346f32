//! Schedules on tensor cores: what is computed, the plans with their legality, and their part of the term language.
//!
//! [`Gemm`] says what is computed, [`TensorPlan`] how on `mma.sync` (sm_80 and later) or `wmma` (sm_70 and later),
//! [`WgmmaPlan`] how on `wgmma` (sm_90a) or `tcgen05` (sm_100a). Each condition of a plan is a function of its own, which `check` and the rules of the space both call.
mod boxes;
mod by_threads;
mod epilogue;
mod error;
mod fits;
mod gathered;
mod gemm;
mod group;
mod instruction;
mod mma;
mod node;
mod operand;
mod read;
mod shared;
mod stage;
mod stream_k;
mod wgmma;
mod wmma;

pub use boxes::{BoxIndex, Boxes, Images, Part as BoxPart, BEYOND};
pub use epilogue::{Epilogue, Read};
pub use error::TensorError;
pub use gathered::GatheredMatrix;
pub use gemm::{Gemm, NotGemm};
pub use group::{Consumers, GroupMma};
pub use instruction::{Fragment, Mma, Sync};
pub(super) use mma::swapped_text;
pub use mma::{Order, Raster, Store, TensorPlan};
pub(super) use node::{dealt_state, leaf_state, operand_state, state_of};
pub use node::{Matrix, MmaLoop, TensorNode};
pub use operand::{CopyOrder, OperandPlan, TileLayout, Turn};
pub use read::TensorSchedule;
pub use stage::{TensorInstruction, TensorStage};
pub use stream_k::StreamK;
pub use wgmma::{TileStore, WgmmaPlan, MOST_KEPT};
pub use wmma::{Wmma, WmmaShape};

/// The conditions of `mma.sync` plans, one by one.
pub mod mma_conditions {
    pub use super::mma::{
        instructions, k_loop, least_registers, operands, problem, registers, registers_fit, rows, sets, split, store,
        threads, warps, whole_parts, whole_steps,
    };
    pub use super::operand::{
        copies, copy_elements, copy_registers, is_async, layout, looked_up, matrices, padding as padding_of,
        rows_along_k, steps, tile_rows, waiting_registers, way, LOADED_TOGETHER,
    };
    pub use super::shared::{least_layout, padding, ring, ring_bytes, room, shared_fits, staged_layout};
    pub use super::wmma::staged_width;
}

/// The conditions of `wgmma` plans, one by one.
pub mod wgmma_conditions {
    pub use super::gemm::multiplies;
    pub use super::wgmma::{
        across, aligned, box_columns, box_line, boxes, by_rows, cluster, columns, consumers, dealt_registers, operands,
        places, rows, split, stages, store, stream_k, sums, tile, tile_k, AlignedRows, BOXES, COLUMNS,
    };
}

/// The conditions of `wgmma` plans whose tiles are copied by the threads that multiply, one by one.
pub mod by_threads_conditions {
    pub use super::by_threads::{alone, has_use, operands, registers, registers_fit, stages, WAY};
}

/// Shared memory that a block can have on the largest GPUs, bytes.
const MOST_SHARED: i64 = 227 * 1024;

/// `value` is a positive multiple of `of`.
fn multiple(what: &'static str, value: i64, of: i64) -> Result<(), TensorError> {
    if value > 0 && value % of == 0 {
        Ok(())
    } else {
        Err(TensorError::Multiple { what, value, of })
    }
}

/// The number of tiles that cover an extent.
fn tiles(extent: i64, tile: i64) -> i64 {
    let tile = tile.max(1);
    extent / tile + i64::from(extent % tile > 0)
}
