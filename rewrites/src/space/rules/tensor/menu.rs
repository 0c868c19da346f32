//! What the rules of tensor-core schedules offer.
use satune_ir::term::{Axis, Contraction};
use satune_ir::DType;

/// What a GPU and its user allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorCores {
    /// `mma.sync` of f16, bf16, tf32 and i8, and cp.async (sm_80 and later).
    pub mma: bool,
    /// `stmatrix` (sm_90).
    pub stmatrix: bool,
    /// `wgmma` and the TMA (sm_90a).
    pub wgmma: bool,
    /// Multiprocessors: a persistent grid has a block for each.
    pub multiprocessors: u32,
    /// Operands in f32 may be rounded to tf32. The result then differs from the source program's.
    pub tf32: bool,
}

/// Sizes that the rules offer. [`TensorMenu::of`] makes the usual ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMenu {
    /// Offer `mma.sync`.
    pub mma: bool,
    /// Offer `stmatrix`.
    pub stmatrix: bool,
    /// Offer `wgmma`.
    pub wgmma: bool,
    /// Block tile along m.
    pub tile_m: Vec<i64>,
    /// Block tile along n.
    pub tile_n: Vec<i64>,
    /// k values per tile of the ring, for `mma.sync`; a tile for `wgmma` has 128 bytes.
    pub tile_k: Vec<i64>,
    /// Threads per block, for `mma.sync`.
    pub threads: Vec<u32>,
    /// Most rows and columns of a warp's tile.
    pub warp: [i64; 2],
    /// Tiles in the ring.
    pub stages: Vec<u32>,
    /// Swizzled or plain tiles; plain ones bring bank conflicts and are there to be compared.
    pub swizzles: Vec<[bool; 2]>,
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

impl TensorMenu {
    /// The usual sizes for a contraction.
    pub fn of(contraction: &Contraction, cores: &TensorCores) -> TensorMenu {
        let operand = contraction.a.dtype;
        let bytes = i64::from(operand.bytes()).max(1);
        let allowed = match operand {
            DType::F16 | DType::BF16 | DType::I8 | DType::F8E4M3 | DType::F8E5M2 => true,
            DType::F32 => cores.tf32,
            _ => false,
        };
        let all = [true, false];
        TensorMenu {
            mma: cores.mma && allowed,
            stmatrix: cores.stmatrix,
            wgmma: cores.wgmma && allowed,
            tile_m: covering(contraction.extent(Axis::M), &[16, 32, 64, 96, 128, 192, 256]),
            tile_n: covering(contraction.extent(Axis::N), &[16, 32, 64, 96, 128, 160, 192, 224, 256]),
            tile_k: covering(contraction.extent(Axis::K), &[32, 64, 128, 256].map(|row| row / bytes)),
            threads: vec![32, 64, 96, 128, 192, 256, 384, 512],
            warp: [128, 128],
            stages: (2..=8).collect(),
            swizzles: all.into_iter().flat_map(|a| all.map(|b| [a, b])).collect(),
            min_blocks: vec![2, 3, 4],
            consumers: vec![1, 2, 3],
            grids: vec![cores.multiprocessors],
            clusters: vec![[2, 1], [1, 2], [2, 2]],
        }
    }
}
