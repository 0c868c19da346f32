//! When a plan on `wgmma` or `tcgen05` fits a problem, whoever brings its tiles.
use super::wgmma::{cluster, consumers, operands, order, rows, split, stages, store, stream_k, sums, tile};
use super::{by_threads, multiple, Gemm, TensorError, WgmmaPlan, MOST_SHARED};

impl WgmmaPlan {
    /// Whether the plan fits the problem.
    ///
    /// # Errors
    /// The condition that does not hold.
    pub fn check(&self, gemm: &Gemm) -> Result<(), TensorError> {
        let gemm = &*gemm.oriented(self.swapped);
        gemm.check()?;
        operands(gemm, self.op)?;
        consumers(self.team())?;
        order(self)?;
        stages(self.stages)?;
        tile(gemm, self.tile, self.team())?;
        multiple("raster group", self.raster.group, 1)?;
        multiple("split_k", self.split_k, 1)?;
        if self.by_threads {
            by_threads::check(self, gemm)?;
        } else {
            split(gemm, self.tile[2], self.split_k)?;
            rows(gemm)?;
        }
        store(gemm, self.store, self.partial(), [self.tile[0], self.tile[1]], self.team())?;
        sums(gemm, self.tile, self.team())?;
        cluster(gemm, self.tile, self.cluster, self.blocks)?;
        stream_k(self, gemm)?;
        super::shared::shared_fits(self.shared_bytes(gemm), MOST_SHARED)
    }
}
