//! From a plan on tensor cores to the trace of primitives that makes it, and back: replayed on the source program, the
//! trace gives the scheduled program, which is lowered, and [`super::read_plan`] reads the plan off that program.
//!
//! ```text
//! cache_read, transform_layout, storage_align (operands that are copied first), pad_einsum (ragged shapes), rfactor (parts of k)
//! cache_write to registers of warps, cache_read to shared memory and from there to registers; the epilogue inlined
//! split, reorder, fuse, bind: blocks, warps, steps along k, instructions
//! compute_at, reverse_compute_at; transform_layout: swizzled tiles, fragments in lanes and registers
//! software_pipeline annotations: the ring, and sets of fragments; `satune.*` annotations: what TensorIR has no primitive for
//! decompose_reduction, tensorize
//! ```
mod common;
mod error;
mod key;
mod mma;
mod read;
mod wgmma;
mod wmma;

pub use error::Untraced;
pub use read::on_tensor_cores;
pub(in crate::space) use read::read_tensor;

use crate::trace::Trace;
use common::Product;
use satune_ir::term::tensor::{wgmma_conditions, Gemm};
use satune_ir::term::{Contraction, Schedule, Side};

/// Makes the trace of a plan.
///
/// # Errors
/// See [`Untraced`].
pub fn tensor_trace(schedule: &Schedule, contraction: &Contraction) -> Result<Trace, Untraced> {
    let parts = trace_in_parts(schedule, contraction)?;
    Ok(Trace { calls: parts.into_iter().flat_map(|part| part.calls).collect() })
}

/// Names of the operands that a schedule on tensor cores pads, or copies to other rows, each by a block of its own.
pub fn padded(schedule: &Schedule, contraction: &Contraction) -> Vec<String> {
    let (tile, swapped, by_tma) = match schedule {
        Schedule::Mma(plan) => (plan.tile, plan.swapped, false),
        Schedule::Wgmma(plan) => (plan.tile, plan.swapped, !plan.by_threads),
        Schedule::Cores(_) | Schedule::Stream(_) => return Vec::new(),
    };
    let Ok(gemm) = Gemm::of(contraction) else { return Vec::new() };
    let product = Product::of(&gemm, contraction, swapped);
    let writer = common::Writer::new(&product, tile, schedule.split_k());
    let copied = |side: Side| by_tma && wgmma_conditions::aligned(&product.gemm, side).is_some();
    let sides = common::SIDES.into_iter().filter(|side| writer.pads(*side) || copied(*side));
    sides.map(|side| product.contraction.matrix(side)).collect()
}

/// In which order copies of operands stand before the block that multiplies them: those that bring matrices to their form, or pad them, as
/// it reads them; then those to shared memory, of the product's first factor first.
pub(in crate::space) fn copies(schedule: &Schedule, contraction: &Contraction) -> [(String, usize); 2] {
    let (padded, swapped) = (padded(schedule, contraction), swapped(schedule) == Some(true));
    [(Side::A, &contraction.a, swapped), (Side::B, &contraction.b, !swapped)].map(|(side, operand, second)| {
        let before = contraction.gather.is_some() || padded.contains(&contraction.matrix(side));
        (operand.name.clone(), if before { operand.index } else { usize::MAX - 2 + usize::from(second) })
    })
}

/// Whether a schedule on tensor cores multiplies the operands swapped.
fn swapped(schedule: &Schedule) -> Option<bool> {
    match schedule {
        Schedule::Mma(plan) => Some(plan.swapped),
        Schedule::Wgmma(plan) => Some(plan.swapped),
        Schedule::Cores(_) | Schedule::Stream(_) => None,
    }
}

/// [`tensor_trace`] in three: the calls while the nests are whole, those that take them apart, and those that clear sums and
/// multiply, after which a block is no reduction any more.
///
/// # Errors
/// See [`Untraced`].
pub(in crate::space) fn trace_in_parts(schedule: &Schedule, contraction: &Contraction) -> Result<[Trace; 3], Untraced> {
    let gemm = Gemm::of(contraction)?;
    let is_swapped = swapped(schedule).ok_or(Untraced::Kind)?;
    let product = Product::of(&gemm, contraction, is_swapped);
    match schedule {
        Schedule::Mma(plan) => mma::trace(plan, &product),
        Schedule::Wgmma(plan) => wgmma::trace(plan, &product),
        Schedule::Cores(_) | Schedule::Stream(_) => Err(Untraced::Kind),
    }
}
