//! What a space is built from: the limits of the GPU, and the menus of tile sizes that the rules offer.
use satune_ir::term::{Axis, Contraction};

/// What a GPU can run; a rule never makes a class beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Threads per block.
    pub threads: u32,
    /// Shared memory per block, bytes.
    pub shared_bytes: i64,
    /// 32-bit registers per thread.
    pub registers: i64,
    /// Whether the GPU copies from global to shared memory asynchronously (sm_80 and later).
    pub cp_async: bool,
}

/// How far saturation may go. There is no limit in seconds: a space must not depend on how busy a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fuel {
    /// Nodes of the e-graph.
    pub nodes: usize,
}

impl Default for Fuel {
    fn default() -> Fuel {
        Fuel { nodes: 4_000_000 }
    }
}

/// Sizes that the rules offer. [`Menu::of`] makes the usual ones; a user may narrow or widen each list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Menu {
    /// Block tile along m.
    pub tile_m: Vec<i64>,
    /// Block tile along n.
    pub tile_n: Vec<i64>,
    /// k values per iteration of the block's k loop.
    pub tile_k: Vec<i64>,
    /// Threads per block, multiples of 32.
    pub threads: Vec<u32>,
    /// Virtual threads along an axis, of the block and of a warp.
    pub vthreads: Vec<i64>,
    /// Most results along an axis in one register tile.
    pub registers: i64,
    /// Parts that k may be split into.
    pub split_k: Vec<i64>,
    /// Blocks in a raster group.
    pub groups: Vec<i64>,
    /// Ring sizes for cp.async.
    pub async_stages: Vec<u8>,
}

/// The smallest power of two that is at least `x`.
fn next_power(x: i64) -> i64 {
    let mut p = 1;
    while p < x {
        p *= 2;
    }
    p
}

/// Most sizes along an axis that are no powers of two: the nodes of a space grow with the square of the sizes.
const ODD_SIZES: usize = 2;

/// Powers of two from `low` to `high`, cut at the first that covers `extent`; then divisors of the extent between
/// them that are a small odd number times a power of two, so that 96 or 40 is tried where it leaves no tail: those with
/// the largest power of two, which warps and lanes divide best.
fn tiles(extent: i64, low: i64, high: i64) -> Vec<i64> {
    let cover = next_power(extent);
    let mut sizes = Vec::new();
    let mut size = low.min(cover);
    while size <= high.min(cover) {
        sizes.push(size);
        size *= 2;
    }
    let mut others = Vec::new();
    for odd in [3, 5, 7, 9, 15] {
        let mut size = odd;
        while size <= high.min(extent) {
            if size >= low && extent % size == 0 {
                others.push(size);
            }
            size *= 2;
        }
    }
    others.sort_unstable_by_key(|size: &i64| std::cmp::Reverse((size.trailing_zeros(), *size)));
    sizes.extend(others.into_iter().take(ODD_SIZES));
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

impl Menu {
    /// No schedules of single threads, so that a space holds those on tensor cores only, with these parts of k and groups.
    pub fn without_threads(split_k: Vec<i64>, groups: Vec<i64>) -> Menu {
        Menu {
            tile_m: Vec::new(),
            tile_n: Vec::new(),
            tile_k: vec![16],
            threads: Vec::new(),
            vthreads: vec![1],
            registers: 8,
            split_k,
            groups,
            async_stages: Vec::new(),
        }
    }

    /// The usual sizes for a contraction.
    pub fn of(contraction: &Contraction, limits: &Limits) -> Menu {
        let k = contraction.extent(Axis::K);
        let mut threads: Vec<u32> = vec![32, 64, 128, 256, 512, 1024];
        threads.retain(|t| *t <= limits.threads);
        let tile_m = tiles(contraction.extent(Axis::M), 16, 256);
        let mut tile_n = tiles(contraction.extent(Axis::N), 16, 256);
        // A warp has 32 lanes: a smaller problem's tile hangs over its edge.
        let widest = tile_m.iter().copied().filter(|t| t.count_ones() == 1).max().unwrap_or(1);
        if widest * next_power(contraction.extent(Axis::N)) < 32 {
            tile_n.push(32 / widest);
        }
        // What is computed where it is copied waits in registers.
        let asynchronous = limits.cp_async && !contraction.computes_operands();
        Menu {
            tile_m,
            tile_n,
            tile_k: tiles(k, 8, 64).into_iter().filter(|t| t.count_ones() == 1).collect(),
            threads,
            vthreads: vec![1, 2, 4, 8],
            registers: 16,
            split_k: vec![2, 4, 8, 16, 32],
            groups: vec![2, 4, 8, 16],
            async_stages: if asynchronous { vec![2, 3, 4, 5] } else { Vec::new() },
        }
    }
}
