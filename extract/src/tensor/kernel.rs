//! A plan on tensor cores of either kind: what they have in common.
use satune_ir::term::tensor::{Gemm, Raster, TensorPlan, WgmmaPlan};
use satune_ir::term::{Axis, BlockLoop};

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
    pub(super) fn swapped(&self) -> bool {
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

    pub(super) fn split_k(&self) -> i64 {
        match self {
            Kernel::Mma(plan) => plan.split_k,
            Kernel::Wgmma(plan) => plan.split_k,
        }
    }

    /// Threads and bytes of shared memory of a block.
    pub(super) fn takes(&self, gemm: &Gemm) -> (i64, i64) {
        match self {
            Kernel::Mma(plan) => (plan.threads(), plan.shared_bytes(gemm)),
            Kernel::Wgmma(plan) => (plan.threads().into(), plan.shared_bytes(&gemm.oriented(plan.swapped))),
        }
    }

    /// The loops over blocks (or tiles, of a persistent grid), outermost first, over the contraction's axes.
    pub(super) fn loops(&self, gemm: &Gemm) -> Vec<BlockLoop> {
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
pub(super) fn of_product([m, n, k]: [i64; 3], swapped: bool) -> [i64; 3] {
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
