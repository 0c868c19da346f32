//! The cost of schedules on tensor cores, and the k best of them.
//!
//! [`work`] counts exactly, [`time`] is the formula, [`search`] finds the k best of a space's tensor-core part (of
//! `mma.sync`, [`deals`]). The
//! resources are those of every schedule (issue slots, shared memory's wavefronts, L2, DRAM) and the tensor cores.
mod deals;
mod kernel;
mod open;
mod operands;
mod search;
mod time;
mod traffic;
mod work;

pub use kernel::Kernel;
pub(crate) use operands::Known;
pub(crate) use search::search;
pub use time::{group_clocks, matrix_clocks};
pub use work::{block, Block};

use crate::prediction::{Compiled, Cost, Infeasible, KLoop};
use crate::Descriptor;
use satune_ir::term::tensor::Gemm;
use satune_ir::term::Contraction;

/// The product that a plan computes, which it fits.
fn checked(kernel: &Kernel<'_>, contraction: &Contraction) -> Result<Gemm, Infeasible> {
    let gemm = Gemm::of(contraction).map_err(|e| Infeasible::Tensor(e.to_string()))?;
    match kernel {
        Kernel::Mma(plan) => plan.check(&gemm),
        Kernel::Wgmma(plan) => plan.check(&gemm),
    }
    .map_err(|e| Infeasible::Tensor(e.to_string()))?;
    Ok(gemm)
}

/// A plan with what its time depends on beside a descriptor's rates.
#[derive(Clone, Debug)]
pub(crate) struct Prepared<'a> {
    kernel: Kernel<'a>,
    contraction: &'a Contraction,
    gemm: Gemm,
    counted: time::Counted,
    /// Blocks of the grid's loops.
    blocks: i64,
    /// Bytes of the operands from DRAM.
    moved: f64,
}

impl<'a> Prepared<'a> {
    /// Counts what does not change with the rates of a GPU.
    ///
    /// # Errors
    /// When the GPU cannot run the plan, or it does not fit the contraction.
    pub fn of(kernel: Kernel<'a>, contraction: &'a Contraction, gpu: &Descriptor) -> Result<Prepared<'a>, Infeasible> {
        let gemm = checked(&kernel, contraction)?;
        let counted = time::Counted::of(&kernel, &gemm);
        let inner = time::Inner::of_counts(&kernel, &gemm, &counted, gpu)?;
        let loops = kernel.loops(&gemm);
        let moved = time::moved(&loops, (inner.tile, inner.k_part), inner.resident, contraction, gpu);
        let blocks = loops.iter().map(|l| l.extent).product();
        Ok(Prepared { kernel, contraction, gemm, counted, blocks, moved })
    }

    /// The time under the rates of `gpu`, which has the limits that the plan was prepared with; ms.
    pub fn ms(&self, gpu: &Descriptor) -> Result<f64, Infeasible> {
        let (inner, outer) = self.parts(gpu)?;
        Ok(time::time(&outer, &inner, gpu).ms)
    }

    fn parts(&self, gpu: &Descriptor) -> Result<(time::Inner, time::Outer), Infeasible> {
        let inner = time::Inner::of_counts(&self.kernel, &self.gemm, &self.counted, gpu)?;
        let outer = time::Outer::moving(self.moved, self.blocks, &inner, self.contraction, gpu);
        Ok((inner, outer))
    }
}

/// Predicts a plan's time.
///
/// # Errors
/// When the GPU cannot run it, or it does not fit the contraction.
pub fn cost_of(kernel: &Kernel<'_>, contraction: &Contraction, gpu: &Descriptor) -> Result<Cost, Infeasible> {
    let prepared = Prepared::of(*kernel, contraction, gpu)?;
    let (inner, outer) = prepared.parts(gpu)?;
    Ok(time::time(&outer, &inner, gpu).explain(&outer, &inner, gpu, prepared.counted.block))
}

/// A plan as a compiler made it, with so many registers of a thread.
///
/// # Errors
/// As [`cost_of`].
pub(crate) fn compiled<'a>(
    kernel: &Kernel<'_>,
    contraction: &Contraction,
    gpu: &'a Descriptor,
    registers: u32,
) -> Result<Compiled<'a>, Infeasible> {
    let prepared = Prepared::of(*kernel, contraction, gpu)?;
    let (inner, _) = prepared.parts(gpu)?;
    let inner = inner.compiled(registers.into(), kernel.takes(&prepared.gemm), gpu)?;
    let tile = (inner.tile, inner.k_part);
    let moved = time::moved(&kernel.loops(&prepared.gemm), tile, inner.resident, contraction, gpu);
    let outer = time::Outer::moving(moved, prepared.blocks, &inner, contraction, gpu);
    let cost = time::time(&outer, &inner, gpu).explain(&outer, &inner, gpu, prepared.counted.block);
    let k_loop = KLoop {
        flop: kernel.tile().iter().product::<i64>() as f64 * 2.0,
        resident: inner.resident,
        copies: true,
        clocks: Box::new(move |blocks| inner.k_tile(blocks)),
        ms: Box::new(move |k_tile| time::time_of(&outer, &inner, gpu, |blocks| k_tile(blocks).max(inner.comes)).ms),
    };
    Ok(Compiled { cost, k_loop })
}
