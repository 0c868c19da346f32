//! The cost of schedules on tensor cores, and the k best of them.
//!
//! [`work`] counts exactly, [`time`] is the formula, [`search`] finds the k best of a space's tensor-core part (of
//! `mma.sync`, [`deals`]). The
//! resources are those of every schedule (issue slots, shared memory's wavefronts, L2, DRAM) and the tensor cores.
mod deals;
mod operands;
mod search;
mod time;
mod traffic;
mod work;

pub(crate) use search::search;
pub use work::{block, Block};

use crate::cost::{Cost, Infeasible};
use crate::Descriptor;
use satune_ir::term::tensor::{Gemm, Raster, TensorPlan, WgmmaPlan};
use satune_ir::term::{Axis, BlockLoop, Contraction};

/// A plan of either kind.
#[derive(Clone, Copy, Debug)]
pub enum Kernel<'a> {
    /// On `mma.sync`.
    Mma(&'a TensorPlan),
    /// On `wgmma`.
    Wgmma(&'a WgmmaPlan),
}

impl Kernel<'_> {
    /// The transposed product is computed.
    fn swapped(&self) -> bool {
        match self {
            Kernel::Mma(plan) => plan.swapped,
            Kernel::Wgmma(plan) => plan.swapped,
        }
    }

    /// Tile of a block, m and n as the plan sees them.
    pub fn tile(&self) -> [i64; 3] {
        match self {
            Kernel::Mma(plan) => plan.tile,
            Kernel::Wgmma(plan) => plan.tile,
        }
    }

    fn split_k(&self) -> i64 {
        match self {
            Kernel::Mma(plan) => plan.split_k,
            Kernel::Wgmma(plan) => plan.split_k,
        }
    }

    /// Threads and bytes of shared memory of a block.
    fn takes(&self, gemm: &Gemm) -> (i64, i64) {
        match self {
            Kernel::Mma(plan) => (plan.threads(), plan.shared_bytes(gemm)),
            Kernel::Wgmma(plan) => (plan.threads().into(), plan.shared_bytes(&gemm.oriented(plan.swapped))),
        }
    }

    /// The loops over blocks (or tiles, of a persistent grid), outermost first, over the contraction's axes.
    fn loops(&self, gemm: &Gemm) -> Vec<BlockLoop> {
        let (tile, split_k) = (self.tile(), self.split_k());
        let [m, n, _] = of_product(tile, self.swapped());
        let raster = match self {
            Kernel::Mma(plan) => plan.raster,
            Kernel::Wgmma(plan) => plan.raster,
        }
        .oriented(self.swapped());
        let (rows, columns) = (tiles(gemm.m, m), tiles(gemm.n, n));
        let mut loops = Vec::new();
        if split_k > 1 {
            loops.push(BlockLoop { axis: Axis::K, extent: split_k, group: false });
        }
        if gemm.batch > 1 {
            loops.push(BlockLoop { axis: Axis::Batch(0), extent: gemm.batch, group: false });
        }
        loops.extend(order(raster, rows, columns));
        loops
    }
}

/// A tile in terms of the product, from that of a plan.
fn of_product([m, n, k]: [i64; 3], swapped: bool) -> [i64; 3] {
    if swapped {
        [n, m, k]
    } else {
        [m, n, k]
    }
}

fn order(raster: Raster, rows: i64, columns: i64) -> Vec<BlockLoop> {
    let (outer, inner) = if raster.columns { (Axis::N, Axis::M) } else { (Axis::M, Axis::N) };
    let (many, few) = if raster.columns { (columns, rows) } else { (rows, columns) };
    let of = |axis, extent, group| BlockLoop { axis, extent, group };
    if raster.group <= 1 {
        return vec![of(outer, many, false), of(inner, few, false)];
    }
    vec![of(outer, tiles(many, raster.group), false), of(inner, few, false), of(outer, raster.group, true)]
}

/// The number of tiles that cover an extent.
pub(crate) fn tiles(extent: i64, tile: i64) -> i64 {
    let tile = tile.max(1);
    extent / tile + i64::from(extent % tile > 0)
}

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

/// [`cost_of`] with the registers of a thread that a compiler gave the kernel.
///
/// # Errors
/// As [`cost_of`].
pub(crate) fn cost_compiled(
    kernel: &Kernel<'_>,
    contraction: &Contraction,
    gpu: &Descriptor,
    registers: u32,
) -> Result<Cost, Infeasible> {
    let prepared = Prepared::of(*kernel, contraction, gpu)?;
    let (inner, _) = prepared.parts(gpu)?;
    let inner = inner.compiled(registers.into(), kernel.takes(&prepared.gemm), gpu)?;
    let tile = (inner.tile, inner.k_part);
    let moved = time::moved(&kernel.loops(&prepared.gemm), tile, inner.resident, contraction, gpu);
    let outer = time::Outer::moving(moved, prepared.blocks, &inner, contraction, gpu);
    Ok(time::time(&outer, &inner, gpu).explain(&outer, &inner, gpu, prepared.counted.block))
}
