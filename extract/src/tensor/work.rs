//! Exact counts of what a block on tensor cores does; they equal the simulator's, by a test, where rows are whole sectors.
use super::Kernel;
use crate::tensor::tiles;
use crate::work::Work;
use satune_ir::machine::wavefronts;
use satune_ir::term::tensor::{mma_conditions, Gemm, Mma, Store, TensorPlan, TileStore, WgmmaPlan};
use satune_ir::term::Side;

/// Work of one tile of C.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Block {
    /// Per tile along k.
    pub tile: Work,
    /// Once: what is stored.
    pub end: Work,
    /// Tiles along k.
    pub k_tiles: i64,
}

impl Block {
    /// All of it.
    pub fn total(&self) -> Work {
        let mut all = self.end;
        all.add(&self.tile, self.k_tiles as f64);
        all
    }
}

/// Counts a block.
pub fn block(kernel: &Kernel<'_>, gemm: &Gemm) -> Block {
    match kernel {
        Kernel::Mma(plan) => mma(plan, gemm),
        Kernel::Wgmma(plan) => wgmma(plan, gemm),
    }
}

fn mma(plan: &TensorPlan, gemm: &Gemm) -> Block {
    let [m, n, k] = plan.tile;
    let threads = plan.threads();
    let warps = threads / 32;
    let op = plan.instruction;
    let steps = k / i64::from(op.k());
    let mut tile = Work { barriers: warps as f64, ..Work::default() };
    tile.matrix = (warps * steps * (plan.warp[0] / 16) * (plan.warp[1] / 8)) as f64;
    for (side, extent, warp, swizzled) in
        [(Side::A, m, plan.warp[0], plan.swizzle[0]), (Side::B, n, plan.warp[1], plan.swizzle[1])]
    {
        let k_rows = rows_along_k(gemm, side);
        let blocks = (warps * steps * (warp / 16)) as f64;
        let columns = if k_rows { extent } else { k };
        if k_rows && op == Mma::Tf32 {
            // Four words of a fragment one by one: four lanes' rows, eight columns.
            tile.shared_loads += 4.0 * blocks;
            let each = if swizzled { 1.0 } else { quad_wavefronts(columns) };
            tile.shared_load_wavefronts += 4.0 * blocks * each;
            tile.shared_load_wavefronts_ideal += 4.0 * blocks;
        } else {
            tile.matrix_moves += blocks;
            let each = if swizzled { 4.0 } else { matrix_wavefronts(op, k_rows, columns, gemm) };
            tile.shared_load_wavefronts += blocks * each;
            tile.shared_load_wavefronts_ideal += 4.0 * blocks;
        }
        fill(&mut tile, gemm, side, [extent, k], threads);
    }
    let end = match plan.store {
        Store::Direct => direct(gemm, plan.split_k > 1, [m, n], op == Mma::S8 && !gemm.b_transposed),
        Store::Shared { stmatrix } => {
            // Two fragments at once, then rows of 16 bytes per lane.
            let pieces = (m * n / 256) as f64;
            let rows = tiles(m * n / 8, threads) as f64 * warps as f64;
            let moved = (m * n * 2) as f64;
            Work {
                matrix_moves: if stmatrix { pieces } else { 0.0 },
                shared_stores: if stmatrix { 0.0 } else { 4.0 * pieces },
                shared_store_wavefronts: 4.0 * pieces,
                shared_store_wavefronts_ideal: 4.0 * pieces,
                shared_loads: rows,
                shared_load_wavefronts: moved / 128.0,
                shared_load_wavefronts_ideal: moved / 128.0,
                global_stores: rows,
                global_store_sectors: moved / 32.0,
                l2_sectors: moved / 32.0,
                barriers: 2.0 * warps as f64,
                ..Work::default()
            }
        }
    };
    Block { tile, end, k_tiles: k_tiles(gemm.k, k, plan.split_k) }
}

fn wgmma(plan: &WgmmaPlan, gemm: &Gemm) -> Block {
    let [m, n, k] = plan.tile;
    let steps = (k * i64::from(gemm.operand.bytes()) / 32) as f64;
    let row_blocks = (m / 64) as f64;
    // What blocks of a cluster share, each brings a part of.
    let [along_m, along_n] = plan.cluster.map(i64::from);
    let brought = ((m / along_n + n / along_m) * 128) as f64;
    let boxes = |across: bool, extent: i64| if across { extent / 64 } else { 1 };
    // Once per warp; shared memory: what the TMA writes, and A's 64 rows and B's columns of each instruction.
    let tile = Work {
        async_copies: (boxes(gemm.a_transposed, m) + boxes(!gemm.b_transposed, n)) as f64,
        matrix: row_blocks * steps * 4.0,
        shared_load_wavefronts: row_blocks * (64 + n) as f64,
        shared_load_wavefronts_ideal: row_blocks * (64 + n) as f64,
        shared_store_wavefronts: (m + n) as f64,
        shared_store_wavefronts_ideal: (m + n) as f64,
        l2_sectors: brought / 32.0,
        global_load_sectors: brought / 32.0,
        ..Work::default()
    };
    let end = match plan.store {
        TileStore::Direct => direct(gemm, plan.partial(), [m, n], false),
        TileStore::Tma => {
            let moved = (m * n) as f64 * 2.0;
            Work {
                async_copies: (m / 64 * (n / 64)) as f64,
                matrix_moves: (m * n / 256) as f64,
                shared_store_wavefronts: moved / 128.0,
                shared_store_wavefronts_ideal: moved / 128.0,
                shared_load_wavefronts: moved / 128.0,
                shared_load_wavefronts_ideal: moved / 128.0,
                global_store_sectors: moved / 32.0,
                l2_sectors: moved / 32.0,
                ..Work::default()
            }
        }
    };
    Block { tile, end, k_tiles: k_tiles(gemm.k, k, plan.split_k) }
}

/// Tiles along k of a part.
pub(super) fn k_tiles(extent: i64, tile: i64, parts: i64) -> i64 {
    tiles(extent, tile * parts)
}

fn rows_along_k(gemm: &Gemm, side: Side) -> bool {
    match side {
        Side::A => gemm.a_transposed,
        Side::B => !gemm.b_transposed,
    }
}

/// The copies of one operand's tile.
fn fill(work: &mut Work, gemm: &Gemm, side: Side, [extent, k]: [i64; 2], threads: i64) {
    let bytes = i64::from(gemm.operand.bytes());
    let k_rows = rows_along_k(gemm, side);
    let along = if side == Side::A { gemm.m } else { gemm.n };
    let (rows, columns, pitch) = if k_rows { (k, extent, along) } else { (extent, k, gemm.k) };
    let vector = mma_conditions::copy_width(gemm, !k_rows, along);
    let total = rows * columns / vector;
    // Warps that have an active lane.
    let copies = (total / threads * (threads / 32) + tiles(total % threads, 32)) as f64;
    let moved = (rows * columns * bytes) as f64;
    let wavefronts = if vector * bytes >= 4 { moved / 128.0 } else { copies };
    if vector * bytes >= 4 {
        work.async_copies += copies;
    } else {
        work.global_loads += copies;
        work.shared_stores += copies;
    }
    work.shared_store_wavefronts += wavefronts;
    work.shared_store_wavefronts_ideal += wavefronts;
    // Rows that are not whole sectors touch one more each.
    let sectors = if pitch * bytes % 32 == 0 && columns * bytes % 32 == 0 {
        moved / 32.0
    } else {
        rows as f64 * ((columns * bytes) as f64 / 32.0 + 1.0)
    };
    work.global_load_sectors += sectors;
    work.l2_sectors += sectors;
    work.l1_bytes += moved;
}

/// Sums leave from registers: four lanes write neighbouring pairs, in eight rows. `apart`: each lane's columns are not
/// neighbours (operand bytes stored across k), so that four lanes' results are 64 bytes wide.
fn direct(gemm: &Gemm, is_split: bool, [m, n]: [i64; 2], apart: bool) -> Work {
    let bytes = if is_split { gemm.accumulator().bytes() } else { gemm.output.bytes() };
    let pairs = gemm.n % 2 == 0 && !apart;
    let stores = (m * n / 64) as f64 * if pairs { 1.0 } else { 2.0 };
    // A quad's results lie within one sector where rows begin at one.
    let whole = gemm.n * i64::from(bytes) % 32 == 0 && !apart;
    let sectors = stores * if whole { 8.0 } else { 16.0 };
    Work {
        global_stores: stores,
        global_store_sectors: sectors,
        l2_sectors: sectors,
        l1_bytes: stores * 64.0 * f64::from(bytes),
        ..Work::default()
    }
}

/// Wavefronts of an `ldmatrix` of four matrices from rows that are not swizzled, each row one after the other.
fn matrix_wavefronts(op: Mma, k_rows: bool, columns: i64, gemm: &Gemm) -> f64 {
    let pitch = columns * i64::from(gemm.operand.bytes());
    let rows: Vec<i64> = match (k_rows, op) {
        // Bytes stored across k: rows 4 i and 4 i + 1, the same of every four.
        (true, Mma::S8) => (0..8).map(|r| 4 * (r / 2) + r % 2).collect(),
        _ => (0..8).collect(),
    };
    let addresses: Vec<(u32, u64)> = rows.iter().zip(0..).map(|(row, lane)| (lane, (row * pitch) as u64)).collect();
    4.0 * f64::from(wavefronts(&addresses, 16).0)
}

/// Wavefronts of 32 words of four rows, eight neighbours each, that are not swizzled.
fn quad_wavefronts(columns: i64) -> f64 {
    let addresses: Vec<(u32, u64)> =
        (0..32_u32).map(|lane| (lane, ((i64::from(lane % 4) * columns + i64::from(lane / 4)) * 4) as u64)).collect();
    f64::from(wavefronts(&addresses, 4).0)
}
