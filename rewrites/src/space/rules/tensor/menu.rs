//! What the rules of tensor-core schedules offer.
use satune_ir::term::tensor::{CopyOrder, GroupMma, Mma, TileLayout, Wmma};
use satune_ir::term::{Axis, Contraction};
use satune_ir::DType;

/// What a GPU and its user allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorCores {
    /// `mma.sync` as an architecture of this number has it. `None`: not offered.
    pub mma: Option<u32>,
    /// `wmma`, as an architecture of this number has it: 75 for sm_75. `None`: not offered.
    pub wmma: Option<u32>,
    /// `stmatrix` (sm_90).
    pub stmatrix: bool,
    /// `wgmma` (sm_90a) or `tcgen05` (sm_100a), with the TMA.
    pub group: Option<GroupMma>,
    /// Multiprocessors that blocks alone, and in clusters of 2 and of 4, fill at once: a persistent grid has a block for each.
    pub multiprocessors: [u32; 3],
    /// Operands in f32 may be rounded to tf32. The result then differs from the source program's.
    pub tf32: bool,
}

/// Sizes that the rules offer. [`TensorMenu::of`] makes the usual ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMenu {
    /// The instruction of `mma.sync` on offer.
    pub mma: Option<Mma>,
    /// The instructions of `wmma` on offer. What [`TensorMenu::of`] offers is what the GPU has, where that is asked for;
    /// where there is `mma.sync` it need not be, since that brings fragments from shared memory without conflicts in fewer
    /// registers.
    pub wmma: Vec<Wmma>,
    /// Offer `stmatrix`.
    pub stmatrix: bool,
    /// `wgmma` or `tcgen05`, if it is offered.
    pub group: Option<GroupMma>,
    /// Block tile along m.
    pub tile_m: Vec<i64>,
    /// Block tile along n.
    pub tile_n: Vec<i64>,
    /// k values per tile of the ring, for `mma.sync`.
    pub tile_k: Vec<i64>,
    /// Spans of 128 bytes along k of a tile of the ring, for `wgmma`.
    pub spans: Vec<i64>,
    /// Threads per block, for `mma.sync`.
    pub threads: Vec<u32>,
    /// Most rows and columns of a warp's tile.
    pub warp: [i64; 2],
    /// Tiles in the ring.
    pub stages: Vec<u32>,
    /// Tiles that are waited for at a barrier though they might still be under way.
    pub slack: Vec<u32>,
    /// Loops over k: unrolled by the ring's length, or of single tiles (true).
    pub loops: Vec<bool>,
    /// Steps of a tile upwards, or downwards (true).
    pub descending: Vec<bool>,
    /// Layouts of operands' tiles; plain ones bring bank conflicts and are there to be compared.
    pub layouts: Vec<TileLayout>,
    /// Most bytes of a copy, the most first.
    pub copy_bytes: Vec<u32>,
    /// Which chunks neighbouring threads copy.
    pub copy_orders: Vec<CopyOrder>,
    /// Copies of a thread unrolled, or as a loop (true).
    pub copy_loops: Vec<bool>,
    /// Copies are started at one of so many first steps.
    pub copy_steps: u32,
    /// Bytes that L2 is asked to fetch around a copy's; 0: its own.
    pub prefetch: Vec<u32>,
    /// Two rows (columns) of instructions at once (true).
    pub pairs: Vec<bool>,
    /// Matrices that an `ldmatrix` loads.
    pub matrices: Vec<u32>,
    /// Sets of fragments.
    pub sets: Vec<u32>,
    /// Blocks per multiprocessor that the compiler may be asked for.
    pub min_blocks: Vec<u32>,
    /// Groups of four warps that multiply.
    pub consumers: Vec<u32>,
    /// Blocks of a persistent grid.
    pub grids: Vec<u32>,
    /// Tiles along m and n whose blocks form a cluster.
    pub clusters: Vec<[u32; 2]>,
}

/// Sizes up to the first that covers an extent.
fn covering(extent: i64, sizes: &[i64]) -> Vec<i64> {
    let enough = sizes.iter().copied().find(|s| *s >= extent).unwrap_or(i64::MAX);
    sizes.iter().copied().filter(|s| *s <= enough).collect()
}

/// The most rows and columns of a block's tile: `wgmma` has as many columns.
const MOST: i64 = 256;

/// Tiles of a block along an axis. Beside the usual ones (all of them multiples of 16, which `mma.sync` needs): the multiple
/// of 8 in which the fewest tiles cover the axis with the least waste, and the largest one that divides the axis where no
/// large usual tile does. Instructions of `wgmma` have any such number of columns.
fn block_tiles(extent: i64) -> Vec<i64> {
    let mut sizes = covering(extent, &[16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, MOST]);
    let count = (extent + MOST - 1) / MOST;
    sizes.push((extent + count * 8 - 1) / (count * 8) * 8);
    if !sizes.iter().any(|size| *size >= 128 && extent % size == 0) {
        sizes.extend((1..=MOST / 8).rev().map(|eights| eights * 8).find(|size| extent % size == 0));
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Grids of one block per multiprocessor that can be filled, the largest first.
fn grids(cores: &TensorCores) -> Vec<u32> {
    let mut grids: Vec<u32> = cores.multiprocessors.into_iter().filter(|blocks| *blocks > 0).collect();
    grids.sort_unstable_by(|a, b| b.cmp(a));
    grids.dedup();
    grids
}

impl TensorMenu {
    /// The same without tiles that hang over an edge whichever way operands are.
    pub fn of_whole_tiles(mut self, contraction: &Contraction) -> TensorMenu {
        let [m, n, k] = [Axis::M, Axis::N, Axis::K].map(|axis| contraction.extent(axis));
        for tiles in [&mut self.tile_m, &mut self.tile_n] {
            tiles.retain(|tile| m % tile == 0 || n % tile == 0);
        }
        self.tile_k.retain(|tile| k % tile == 0);
        self
    }

    /// Whether an axis has use for a tile so large; rows of `wgmma` or `tcgen05` are as many though there be fewer of them.
    pub(super) fn has_use(&self, extent: i64, tile: i64) -> bool {
        self.group.is_none_or(|op| tile != op.rows() || extent > tile - 16)
    }

    /// The usual sizes for a contraction.
    pub fn of(contraction: &Contraction, cores: &TensorCores) -> TensorMenu {
        let operand = contraction.a.dtype;
        let bytes = i64::from(operand.bytes()).max(1);
        let allowed = match operand {
            DType::F16 | DType::BF16 | DType::I8 | DType::F8E4M3 | DType::F8E5M2 => true,
            DType::F32 => cores.tf32,
            _ => false,
        };
        // Sums of 16 bits have registers only.
        let sums = contraction.accumulate.bytes() > 2;
        let group = cores.group.filter(|op| allowed && (sums || op.holds_sums()));
        let tiles = |extent: i64| {
            let mut sizes = block_tiles(extent);
            if let Some(rows) = group.map(GroupMma::rows).filter(|rows| sizes.iter().all(|size| size < rows)) {
                sizes.push(rows);
            }
            sizes
        };
        // What computed operands are made of waits in registers, of which each tile of the ring has its own: no loop of single tiles.
        let (loops, stages) = match contraction.computes_operands() {
            true => (vec![false], (2..=5).collect()),
            false => (vec![false, true], (2..=8).collect()),
        };
        let types = [operand, contraction.accumulate];
        let has_wmma = |op: &Wmma| cores.wmma.is_some_and(|arch| op.needs() <= arch);
        TensorMenu {
            mma: cores.mma.filter(|_| allowed).and_then(|arch| Mma::of(types, arch)),
            wmma: Wmma::all().filter(|op| [op.operand, op.accumulator()] == types && has_wmma(op)).collect(),
            stmatrix: cores.stmatrix,
            group,
            tile_m: tiles(contraction.extent(Axis::M)),
            tile_n: tiles(contraction.extent(Axis::N)),
            tile_k: covering(contraction.extent(Axis::K), &[32, 64, 96, 128, 192, 256].map(|row| row / bytes)),
            spans: vec![1, 2],
            threads: vec![32, 64, 96, 128, 192, 256, 384, 512],
            warp: [128, 128],
            stages,
            slack: (0..=6).collect(),
            loops,
            descending: vec![false, true],
            layouts: vec![
                TileLayout::Xor(8),
                TileLayout::Xor(4),
                TileLayout::Xor(2),
                TileLayout::Rotate(8),
                TileLayout::Rotate(4),
                TileLayout::Padded,
                TileLayout::Plain,
            ],
            copy_bytes: vec![16, 8, 4],
            copy_orders: vec![CopyOrder::Rows, CopyOrder::Columns, CopyOrder::Own],
            copy_loops: vec![false, true],
            copy_steps: u32::MAX,
            prefetch: vec![0, 128, 256],
            pairs: vec![false, true],
            matrices: vec![4, 2, 1],
            sets: vec![2, 1],
            min_blocks: vec![2, 3, 4],
            consumers: vec![1, 2, 3],
            grids: grids(cores),
            clusters: vec![[2, 1], [1, 2], [2, 2], [4, 1], [1, 4], [2, 4], [4, 2]],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::block_tiles;

    #[test]
    fn tiles_fit_their_axis() {
        // What the usual tiles cover without waste needs no other.
        assert_eq!(block_tiles(4096), [16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256]);
        assert_eq!(block_tiles(1), [8, 16]);
        assert_eq!(block_tiles(20), [16, 24, 32]);
        assert!(block_tiles(300).contains(&152), "two tiles cover 300 with four to spare");
        assert!(block_tiles(1000).contains(&200), "200 divides 1000");
        for extent in 1..2000 {
            let sizes = block_tiles(extent);
            assert!(sizes.iter().all(|size| (8..=256).contains(size) && size % 8 == 0), "{extent}: {sizes:?}");
        }
    }
}
