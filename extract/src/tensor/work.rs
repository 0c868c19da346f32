//! Exact counts of what a block on tensor cores does; they equal the simulator's, by a test, where rows are whole sectors.
use super::kernel::{tiles, Kernel};
use crate::work::{computing, Work};
use satune_ir::machine::{matrix_wavefronts, wavefronts};
use satune_ir::term::tensor::{
    by_threads_conditions, mma_conditions, wgmma_conditions, CopyOrder, Gemm, GroupMma, Mma, OperandPlan, Store,
    TensorPlan, TileLayout, TileStore, Turn, WgmmaPlan, Wmma,
};
use satune_ir::term::{Axis, Places, Side};

/// Instructions of a copy of a gathered factor: for its place, for its bounds in each dimension that is asked about, and for each
/// digit of k, which the compiler computes anew (machine code of sm_80 and sm_90).
const PLACE: f64 = 4.0;
const BOUNDS: f64 = 3.0;
const DIGIT: f64 = 4.0;

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

/// Counts a block, of the product or of its transposed form, as the plan has it.
pub fn block(kernel: &Kernel<'_>, gemm: &Gemm) -> Block {
    let gemm = &*gemm.oriented(kernel.swapped());
    match kernel {
        Kernel::Mma(plan) => mma(plan, gemm),
        Kernel::Wgmma(plan) => wgmma(plan, gemm, &copied(plan, gemm)),
    }
}

fn mma(plan: &TensorPlan, gemm: &Gemm) -> Block {
    let mut block = without_operands(plan, gemm);
    for (place, operand) in places(plan).iter().zip(&plan.operands) {
        block.tile.add(&place.copies(gemm, operand), 1.0);
        block.tile.add(&place.loads(gemm, operand), 1.0);
    }
    block
}

/// The counts of a block but for those that the ways of its operands decide.
pub(super) fn without_operands(plan: &TensorPlan, gemm: &Gemm) -> Block {
    let [m, n, k] = plan.tile;
    let threads = plan.threads();
    let warps = threads / 32;
    let op = plan.instruction;
    let tile = multiplied(op, [m, n, k], threads);
    let end = match (plan.store, op) {
        (Store::Direct, Mma::Wmma(op)) => direct_wmma(op, [m, n]),
        (Store::Shared { .. }, Mma::Wmma(op)) => staged(gemm, op, plan),
        (Store::Direct, _) => {
            let together = [gemm.a_transposed, !gemm.b_transposed].map(|across| across && op.word() == 4);
            direct(gemm, plan.split_k > 1, [m, n], together)
        }
        (Store::Shared { stmatrix }, _) => {
            // Two fragments at once where there are two, then rows of 16 bytes per lane.
            let pieces = (m / 16 * (n / plan.warp[1].max(1)) * tiles(plan.warp[1], 16)) as f64;
            // Two results lie side by side in a row of C; in a column each is written by itself.
            let written = (m * n / 64) as f64 * if gemm.c_transposed && !stmatrix { 2.0 } else { 1.0 };
            let rows = tiles(m * n / 8, 32) as f64;
            let (lines, line) = if gemm.c_transposed { (n, m) } else { (m, n) };
            // The least that rows of a matrix touch: what begins or ends within a sector is left out.
            let sectors = gemm.placed.as_ref().map_or(tiles(line * 2, 32) as f64, |_| line_sectors(gemm, line));
            let stored = lines as f64 * sectors;
            let (read, ideal) = staged_rows(gemm, [m, n]);
            Work {
                matrix_moves: if stmatrix { pieces } else { 0.0 },
                shared_stores: if stmatrix { 0.0 } else { written },
                shared_store_wavefronts: written,
                shared_store_wavefronts_ideal: written,
                shared_loads: rows,
                shared_load_wavefronts: read,
                shared_load_wavefronts_ideal: ideal,
                global_stores: rows,
                global_store_sectors: stored,
                l2_sectors: stored,
                l1_bytes: stored * 32.0,
                barriers: 2.0 * warps as f64,
                ..Work::default()
            }
        }
    };
    Block { tile, end, k_tiles: k_tiles(gemm.k, k, plan.split_k) }
}

/// The counts of a block on `wgmma` whose own threads make such copies, if any.
pub(super) fn wgmma(plan: &WgmmaPlan, gemm: &Gemm, copied: &[(Operand, Work)]) -> Block {
    let [m, n, k] = plan.tile;
    let steps = (k * i64::from(gemm.operand.bytes()) / 32) as f64;
    let rows = plan.op.rows();
    let row_blocks = (m / rows) as f64;
    // `wgmma` counts once per warp; `tcgen05` is one thread's.
    let warps = if plan.op.holds_sums() { 4.0 } else { 1.0 };
    // What blocks of a cluster share, each brings a part of.
    let [along_m, along_n] = plan.cluster.map(i64::from);
    let row = k * i64::from(gemm.operand.bytes());
    let brought = ((m / along_n + n / along_m) * row) as f64;
    // Wavefronts of 128 bytes of a row along k.
    let spans = row / 128;
    let boxes = |side: Side, extent: i64| match wgmma_conditions::across(gemm, side) {
        true => extent / wgmma_conditions::box_columns(extent),
        false => spans,
    };
    // Of shared memory A's rows and B's columns of each instruction.
    let mut tile = Work {
        matrix: row_blocks * steps * warps,
        shared_load_wavefronts: row_blocks * ((rows + n) * spans) as f64,
        shared_load_wavefronts_ideal: row_blocks * ((rows + n) * spans) as f64,
        ..Work::default()
    };
    if plan.by_threads {
        tile.barriers = f64::from(plan.threads() / 32);
        copied.iter().for_each(|(_, copies)| tile.add(copies, 1.0));
    } else {
        let by_tma = Work {
            async_copies: (boxes(Side::A, m) + boxes(Side::B, n)) as f64,
            shared_store_wavefronts: ((m + n) * spans) as f64,
            shared_store_wavefronts_ideal: ((m + n) * spans) as f64,
            l2_sectors: brought / 32.0,
            global_load_sectors: brought / 32.0,
            ..Work::default()
        };
        tile.add(&by_tma, 1.0);
    }
    let end = match plan.store {
        TileStore::Direct => direct(gemm, plan.partial(), [m, n], [false; 2]),
        TileStore::Tma | TileStore::Boxes => {
            let moved = (m * n * i64::from(gemm.output.bytes())) as f64;
            let line = wgmma_conditions::box_line(gemm.output);
            // A box has all rows of a consumer, or an instruction's.
            let high = match plan.store {
                TileStore::Tma if !gemm.c_transposed && gemm.placed.is_none() => rows * plan.row_blocks(),
                _ => rows,
            };
            let boxes = if gemm.c_transposed { rows / line } else { n / line };
            let pairs = !gemm.stores_halves();
            let stores = if pairs { (m * n / 64) as f64 } else { 0.0 };
            // Of pairs of 32 bits, four in each of eight rows, the swizzle puts those of two rows into the same banks.
            let written = match gemm.output.bytes() {
                4 => moved / 64.0,
                _ if pairs => stores,
                _ => moved / 128.0,
            };
            let staged = Work {
                async_copies: (m / high * boxes) as f64,
                matrix_moves: if pairs { 0.0 } else { (m / 16 * tiles(n, 16)) as f64 },
                shared_stores: stores,
                shared_store_wavefronts: written,
                // Pairs of bytes are half a wavefront.
                shared_store_wavefronts_ideal: stores.max(moved / 128.0),
                shared_load_wavefronts: moved / 128.0,
                shared_load_wavefronts_ideal: moved / 128.0,
                global_store_sectors: moved / 32.0,
                l2_sectors: moved / 32.0,
                l1_bytes: moved,
                ..Work::default()
            };
            if wgmma_conditions::by_rows(gemm) {
                let stores = (m * n / 32) as f64;
                let sectors = stores * line_sectors(gemm, 32);
                Work {
                    async_copies: 0.0,
                    shared_loads: stores,
                    shared_load_wavefronts: stores,
                    shared_load_wavefronts_ideal: stores,
                    global_stores: stores,
                    global_store_sectors: sectors,
                    l2_sectors: sectors,
                    // A row begins anywhere, and ends in the next line of a cache.
                    l1_bytes: stores * 2.0 * 128.0,
                    ..staged
                }
            } else {
                staged
            }
        }
    };
    // Each warp of a block reads once where tensor memory begins.
    let told = match plan.op.holds_sums() {
        true => 0.0,
        false => f64::from(plan.threads() / 32) * plan.grid(gemm) as f64 / plan.tiles(gemm) as f64,
    };
    let end = Work {
        shared_loads: end.shared_loads + told,
        shared_load_wavefronts: end.shared_load_wavefronts + told,
        shared_load_wavefronts_ideal: end.shared_load_wavefronts_ideal + told,
        ..end
    };
    Block { tile, end, k_tiles: k_tiles(gemm.k, k, plan.split_k) }
}

/// The operands of a plan on `wgmma` whose threads copy them; none have a warp's part.
pub(super) fn copied_places(plan: &WgmmaPlan, gemm: &Gemm) -> Vec<Operand> {
    let ([m, n, k], threads) = (plan.tile, i64::from(plan.threads()));
    let Some(op) = GroupMma::of_warp(gemm.operand).filter(|_| plan.by_threads) else { return Vec::new() };
    [(Side::A, m), (Side::B, n)].map(|(side, extent)| Operand { side, op, extent, own: extent, k, threads }).to_vec()
}

/// The same with their copies per tile along k.
pub(super) fn copied(plan: &WgmmaPlan, gemm: &Gemm) -> Vec<(Operand, Work)> {
    let of = |place: Operand| (place, place.copies(gemm, &by_threads_conditions::WAY));
    copied_places(plan, gemm).into_iter().map(of).collect()
}

/// Tiles along k of a part.
pub(super) fn k_tiles(extent: i64, tile: i64, parts: i64) -> i64 {
    tiles(extent, tile * parts)
}

/// What warps do per tile along k whatever the ways of the operands are.
pub(super) fn multiplied(op: Mma, [m, n, k]: [i64; 3], threads: i64) -> Work {
    let [rows, columns] = op.block();
    let matrix = m / rows * (n / columns) * (k / i64::from(op.k()));
    Work { matrix: matrix as f64, barriers: (threads / 32) as f64, ..Work::default() }
}

/// The operands of a plan.
pub(super) fn places(plan: &TensorPlan) -> [Operand; 2] {
    let ([m, n, k], op, threads) = (plan.tile, plan.instruction, plan.threads());
    [(Side::A, m, plan.warp[0]), (Side::B, n, plan.warp[1])].map(|(side, extent, own)| Operand {
        side,
        op,
        extent,
        own,
        k,
        threads,
    })
}

/// An operand of a block: its extent, a warp's part of it, k of a tile, threads of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Operand {
    pub side: Side,
    pub op: Mma,
    pub extent: i64,
    pub own: i64,
    pub k: i64,
    pub threads: i64,
}

/// Sectors of memory that copies of a tile touch.
#[derive(Clone, Debug)]
pub(super) struct Sectors {
    /// Elements of an access.
    vector: i64,
    /// Of each of a few tiles, for each access.
    of: Vec<Vec<Option<u64>>>,
    /// Rows that are not whole sectors, nor parts of one, touch one more each.
    more: f64,
}

impl Operand {
    /// Rows of the tile, and elements of a row.
    fn rows(&self, gemm: &Gemm) -> (i64, i64) {
        mma_conditions::tile_rows(gemm, self.side, self.extent, self.k)
    }

    fn turn(&self, gemm: &Gemm) -> Turn {
        Turn::of(self.op, mma_conditions::rows_along_k(gemm, self.side))
    }

    /// Where a chunk stands in the tile, in elements.
    fn chunk(&self, gemm: &Gemm, layout: TileLayout, row: i64, chunk: i64) -> i64 {
        let elements = 16 / i64::from(gemm.operand.bytes());
        let (_, columns) = self.rows(gemm);
        let chunks = columns / elements;
        let turn = self.turn(gemm);
        let place = layout.place(chunks, turn.of_row(row, layout.span(chunks)), chunk);
        row * layout.pitch(columns, gemm.operand, turn) + place * elements
    }

    /// Instructions that load fragments, each up to so many matrices of 8 x 8 or of `wmma`, of all warps and steps along k.
    pub fn load_count(&self, matrices: u32) -> f64 {
        let (loaded, all) = (self.op.loaded(self.side), i64::from(self.op.matrices()));
        let matrices = i64::from(matrices).clamp(1, all.max(1));
        let per_block = if self.op.wmma().is_some() { 1 } else { all / matrices };
        // The columns of a last instruction are half of them.
        let last = if self.own % loaded == 0 { 0 } else { all / 2 / matrices.min(all / 2).max(1) };
        self.each_step(self.own / loaded * per_block + last)
    }

    /// Matrices of 8 x 8 that these load in all: each is a wavefront where banks do not conflict.
    pub fn matrices(&self) -> f64 {
        self.each_step(self.own * i64::from(self.op.matrices()) / 16)
    }

    fn each_step(&self, count: i64) -> f64 {
        (self.threads / 32 * (self.k / i64::from(self.op.k())) * count) as f64
    }

    /// `wmma.load` of the first block; the others are multiples of 128 bytes away along rows, or the same chunks of other banks.
    pub fn wmma_loads(&self, gemm: &Gemm, op: Wmma) -> Work {
        let ([m, n, k], bytes) = (op.extents().map(u64::from), u64::from(gemm.operand.bytes()));
        let own = if self.side == Side::A { m } else { n };
        let across = mma_conditions::rows_along_k(gemm, self.side);
        let (lines, line) = if across { (k, own) } else { (own, k) };
        let (_, columns) = self.rows(gemm);
        let pitch = TileLayout::Padded.pitch(columns, gemm.operand, self.turn(gemm)) as u64 * bytes;
        let (taken, least) = matrix_wavefronts(0, [lines, line * bytes], pitch, 16);
        Work {
            matrix_moves: self.load_count(1),
            shared_load_wavefronts: self.load_count(1) * taken as f64,
            shared_load_wavefronts_ideal: self.load_count(1) * least as f64,
            ..Work::default()
        }
    }

    /// The loads of fragments per tile along k.
    pub fn loads(&self, gemm: &Gemm, plan: &OperandPlan) -> Work {
        if let Some(op) = self.op.wmma() {
            return self.wmma_loads(gemm, op);
        }
        let mut work = Work::default();
        let matrices = self.matrices();
        let turn = self.turn(gemm);
        let bytes = i64::from(gemm.operand.bytes());
        // The first of all: the others differ in whole periods of the layout, or lie as far from each other.
        let address = |row, chunk, within: i64| (self.chunk(gemm, plan.layout, row, chunk) + within) * bytes;
        if turn == Turn::Quads {
            // Four words of a fragment one by one: four lanes' rows, eight columns.
            let lanes: Vec<(u32, u64)> = (0..32_u32)
                .map(|lane| {
                    let (group, member) = (i64::from(lane / 4), i64::from(lane % 4));
                    (lane, address(member, group / 4, group % 4) as u64)
                })
                .collect();
            work.shared_loads = matrices;
            work.shared_load_wavefronts = matrices * f64::from(wavefronts(&lanes, 4).0);
            work.shared_load_wavefronts_ideal = matrices;
            return work;
        }
        let rows: Vec<i64> = match turn {
            // Bytes stored across k: rows 4 i and 4 i + 1, the same of every four.
            Turn::Bytes => (0..8).map(|r| 4 * (r / 2) + r % 2).collect(),
            _ => (0..8).collect(),
        };
        let lanes: Vec<(u32, u64)> =
            rows.iter().zip(0..).map(|(row, lane)| (lane, address(*row, 0, 0) as u64)).collect();
        work.matrix_moves = self.load_count(plan.matrices);
        // Each matrix after the other.
        work.shared_load_wavefronts = matrices * f64::from(wavefronts(&lanes, 16).0);
        work.shared_load_wavefronts_ideal = matrices;
        work
    }

    /// The sectors of memory that accesses to a tile touch, of so many elements each: those of a few tiles that stand for all, and
    /// of each the number for each access by rows; none where zeros are read.
    pub fn sectors(&self, gemm: &Gemm, vector: i64) -> Sectors {
        let (rows, columns) = self.rows(gemm);
        let bytes = u64::from(gemm.operand.bytes());
        let k_rows = mma_conditions::rows_along_k(gemm, self.side);
        let along = if self.side == Side::A { gemm.m } else { gemm.n };
        let pitch = if k_rows { along } else { gemm.k } as u64;
        let row = columns as u64 * bytes;
        let whole = pitch * bytes % 32 == 0 && (row % 32 == 0 || 32 % row.max(1) == 0);
        let (parts, more) = match gemm.gathered(self.side) {
            Some(factor) => (factor.parts([self.side.spatial(), Axis::K], [self.extent, self.k]), 0.0),
            None => {
                let strides = if k_rows { [1, pitch] } else { [pitch, 1] };
                (vec![Places::Strides(strides)], if whole { 0.0 } else { rows as f64 })
            }
        };
        let of = |part: &Places| {
            let places = (0..rows).flat_map(|row| (0..columns / vector).map(move |at| (row, at * vector)));
            let place = |(row, column)| if k_rows { part.at(column, row) } else { part.at(row, column) };
            places.map(|at| place(at).map(|place| place * bytes / 32)).collect()
        };
        Sectors { vector, of: parts.iter().map(of).collect(), more }
    }

    /// The copies per tile along k, each access of each warp.
    pub fn copies(&self, gemm: &Gemm, plan: &OperandPlan) -> Work {
        let vector = mma_conditions::copy_elements(gemm, self.side, plan.bytes);
        self.copies_of(gemm, plan, &self.sectors(gemm, vector))
    }

    /// The same where what they touch is known.
    pub fn copies_of(&self, gemm: &Gemm, plan: &OperandPlan, touching: &Sectors) -> Work {
        let mut work = Work::default();
        let bytes = i64::from(gemm.operand.bytes());
        let Sectors { vector, of: ref parts, more } = *touching;
        let (rows, columns) = self.rows(gemm);
        let (per_row, per_chunk) = (columns / vector, 16 / bytes);
        let row_chunks = columns / per_chunk;
        let total = rows * per_row;
        let count = tiles(total, self.threads);
        // Several accesses may be of one chunk.
        let places = (0..rows).flat_map(|row| (0..row_chunks).map(move |chunk| (row, chunk)));
        let chunks: Vec<i64> = places.map(|(row, chunk)| self.chunk(gemm, plan.layout, row, chunk)).collect();
        let (mut accesses, mut stored, mut sectors) = (0_i64, (0_u64, 0_u64), 0_usize);
        let mut lanes: Vec<(u32, u64)> = Vec::with_capacity(32);
        let mut touched: Vec<u64> = Vec::with_capacity(32);
        for (i, warp) in (0..count).flat_map(|i| (0..self.threads / 32).map(move |w| (i, w))) {
            lanes.clear();
            touched.clear();
            // Each access stands for that of one of the tiles, in turn.
            let (turn, all) = ((i * (self.threads / 32) + warp) as usize, parts.len().max(1));
            let part = parts.get((turn + turn / all) % all);
            for lane in 0..32_u32 {
                let thread = warp * 32 + i64::from(lane);
                let number = match plan.order {
                    CopyOrder::Own => thread * count + i,
                    CopyOrder::Rows | CopyOrder::Columns => thread + i * self.threads,
                };
                if number >= total {
                    continue;
                }
                let (row, column) = match plan.order {
                    CopyOrder::Columns => (number % rows, number / rows * vector),
                    CopyOrder::Rows | CopyOrder::Own => (number / per_row, number % per_row * vector),
                };
                let at = chunks[(row * row_chunks + column / per_chunk) as usize] + column % per_chunk;
                lanes.push((lane, (at * bytes) as u64));
                touched.extend(part.and_then(|p| p.get((row * per_row + column / vector) as usize)).copied().flatten());
            }
            if lanes.is_empty() {
                continue;
            }
            accesses += 1;
            let (taken, least) = wavefronts(&lanes, (vector * bytes) as u32);
            stored = (stored.0 + u64::from(taken), stored.1 + u64::from(least));
            touched.sort_unstable();
            touched.dedup();
            sectors += touched.len();
        }
        let (accesses, moved) = (accesses as f64, (rows * columns * bytes) as f64);
        if mma_conditions::is_async(gemm, self.side, self.op, plan.bytes) {
            work.async_copies = accesses;
        } else {
            work.global_loads = accesses;
            work.shared_stores = accesses;
        }
        (work.shared_store_wavefronts, work.shared_store_wavefronts_ideal) = (stored.0 as f64, stored.1 as f64);
        let gathered = gemm.gathered(self.side);
        let sectors = (sectors as f64 + more) * gathered.map_or(1.0, |factor| factor.of.read_share());
        work.addresses = gathered.map_or(0.0, |factor| {
            let digits = factor.digits(|axis| axis == Axis::K).len() as f64;
            accesses * (PLACE + BOUNDS * factor.asked() as f64 + DIGIT * digits + computing(&factor.of, vector))
        });
        work.global_load_sectors = sectors;
        work.l2_sectors = sectors;
        work.l1_bytes = moved;
        work
    }
}

/// Wavefronts of the loads of C's tile from shared memory, 16 bytes per lane, chunk after chunk of its rows: (taken, least).
fn staged_rows(gemm: &Gemm, [m, n]: [i64; 2]) -> (f64, f64) {
    let (row, warps) = (if gemm.c_transposed { m } else { n }, m * n / 8 / 32);
    let layout = mma_conditions::staged_layout(row);
    if layout != TileLayout::Padded {
        // Swizzled rows are whole wavefronts.
        return ((4 * warps) as f64, (4 * warps) as f64);
    }
    let (chunks, pitch) = (row / 8, layout.pitch(row, gemm.output, Turn::Rows) * 2);
    let of_warp = |warp: i64| {
        let lanes: Vec<(u32, u64)> = (0..32_u32)
            .map(|lane| (lane, warp * 32 + i64::from(lane)))
            .map(|(lane, number)| (lane, (number / chunks * pitch + number % chunks * 16) as u64))
            .collect();
        wavefronts(&lanes, 16)
    };
    // Accesses differ in where in a row they begin, and that repeats with the number of its chunks.
    let period = chunks.min(warps).max(1);
    let sums = (0..period).map(|warp| (of_warp(warp), (warps - warp + period - 1) / period));
    sums.fold((0.0, 0.0), |(taken, least), ((one, ideal), times)| {
        (taken + f64::from(one) * times as f64, least + f64::from(ideal) * times as f64)
    })
}

/// Sectors of so many results side by side along C's rows in memory, or its columns; those that begin or end within a sector touch
/// one more. Where memory does not hold C as a matrix: of a few such lines, the mean.
fn line_sectors(gemm: &Gemm, length: i64) -> f64 {
    let bytes = i64::from(gemm.output.bytes());
    let whole = (length * bytes) % 32 == 0 && gemm.c_run(false) * bytes % 32 == 0;
    let Some(placed) = gemm.placed.as_ref().filter(|_| !whole) else {
        return (tiles(length * bytes, 32) + i64::from(!whole)) as f64;
    };
    let (along, across) = if gemm.c_transposed { (Axis::M, Axis::N) } else { (Axis::N, Axis::M) };
    let lines = placed.parts([across, along], [1, length]);
    let touched = |line: &Places| {
        let mut sectors: Vec<u64> =
            (0..length).filter_map(|at| line.at(0, at)).map(|place| place * bytes as u64 / 32).collect();
        sectors.dedup();
        sectors.len()
    };
    lines.iter().map(touched).sum::<usize>() as f64 / lines.len().max(1) as f64
}

/// Fragments of `wmma` are stored in rows.
fn direct_wmma(op: Wmma, [m, n]: [i64; 2]) -> Work {
    let stores = m * n / i64::from(32 * op.sums());
    let sectors = (m * n * i64::from(op.accumulator().bytes()) / 32) as f64;
    let [rows, ..] = op.extents();
    Work {
        matrix_moves: stores as f64,
        global_store_sectors: sectors,
        l2_sectors: sectors,
        // Each row of a matrix is a part of a line.
        l1_bytes: stores as f64 * f64::from(rows) * 128.0,
        ..Work::default()
    }
}

/// Fragments of `wmma` are stored to shared memory, some columns at a time, and go from there to C.
fn staged(gemm: &Gemm, op: Wmma, plan: &TensorPlan) -> Work {
    let [m, n, _] = plan.tile;
    let ([rows, own, _], columns) = (op.extents(), op.staged_columns(plan.warp[1]));
    let bytes = u64::from(op.accumulator().bytes());
    let pitch = op.staged_pitch(plan.warp[1], plan.warps()[1]) as u64 * bytes;
    let stores = (m * n / i64::from(32 * op.sums())) as f64;
    let (taken, least) = matrix_wavefronts(0, [rows.into(), u64::from(own) * bytes], pitch, 32);
    // One piece after the other; all are alike.
    let pieces = (m * n / (i64::from(rows) * columns)) as f64;
    let width = mma_conditions::staged_width(gemm);
    let (mut read, mut rounds) = ((0, 0), 0);
    for first in (0..i64::from(rows) * columns / width).step_by(32) {
        let lanes: Vec<(u32, u64)> = (0..32_u32)
            .map(|lane| (lane, (first + i64::from(lane)) * width))
            .map(|(lane, at)| (lane, (at / columns) as u64 * pitch + (at % columns) as u64 * bytes))
            .collect();
        let (taken, least) = wavefronts(&lanes, width as u32 * bytes as u32);
        read = (read.0 + taken, read.1 + least);
        rounds += 1;
    }
    let sectors = pieces * f64::from(rows) * line_sectors(gemm, columns);
    Work {
        matrix_moves: stores,
        shared_store_wavefronts: stores * taken as f64,
        shared_store_wavefronts_ideal: stores * least as f64,
        shared_loads: pieces * f64::from(rounds),
        shared_load_wavefronts: pieces * f64::from(read.0),
        shared_load_wavefronts_ideal: pieces * f64::from(read.1),
        global_stores: pieces * f64::from(rounds),
        global_store_sectors: sectors,
        l2_sectors: sectors,
        l1_bytes: (m * n) as f64 * f64::from(gemm.output.bytes()),
        barriers: 2.0 * pieces,
        ..Work::default()
    }
}

/// Sums leave from registers: of a row of C four lanes write neighbouring pairs, in eight rows; where C is stored by
/// columns, eight lanes write neighbours of one column, of four. `together`: twice as many rows, or columns, of a lane are neighbours
/// (operand bytes stored across k).
fn direct(gemm: &Gemm, is_split: bool, [m, n]: [i64; 2], [rows_together, columns_together]: [bool; 2]) -> Work {
    let bytes = i64::from(if is_split { gemm.accumulator().bytes() } else { gemm.output.bytes() });
    let run = gemm.c_run(is_split);
    // Neighbours of a lane, lanes along them, and lines of memory.
    let (near, along, lines) = match gemm.c_transposed {
        false => (2 << u32::from(columns_together), 4, 8),
        true => (1 << u32::from(rows_together), 8, 4),
    };
    let width = [4, 2, 1].into_iter().find(|width| near % width == 0 && run % width == 0).unwrap_or(1);
    let each = tiles(near * along * bytes, 32) + i64::from(run * bytes % 32 != 0);
    let (stores, sectors) = ((m * n / (32 * width)) as f64, (lines * each) as f64);
    let lines = lines as f64;
    Work {
        global_stores: stores,
        global_store_sectors: stores * sectors,
        l2_sectors: stores * sectors,
        l1_bytes: stores * lines * 128.0,
        ..Work::default()
    }
}
