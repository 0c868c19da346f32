//! Schedules of warps that multiply by `mma.sync` or `wmma`, and when they fit.
use super::shared::{least_layout, padding, ring, ring_bytes, staged_layout};
use super::{multiple, operand, tiles, wmma, Gemm, Mma, OperandPlan, TensorError, TileLayout, Turn};
use crate::term::Side;
use serde::{Deserialize, Serialize};

/// A schedule of warps that multiply: a ring of tiles in shared memory, fragments double buffered along k. The ring is filled by
/// `cp.async`, or has two tiles which wait in registers on their way ([`Mma::is_async`]); fragments of `mma.sync` by `ldmatrix`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorPlan {
    /// The transposed product `C^T = B^T A^T` is computed: m of all that follows runs over columns of C, A's way is B's.
    #[serde(default)]
    pub swapped: bool,
    /// Tile of a block: m, n, k.
    pub tile: [i64; 3],
    /// Tile of a warp: m, n.
    pub warp: [i64; 2],
    /// Whether warps of neighbouring numbers lie side by side along n (else along m).
    pub warps_m_outer: bool,
    /// Instruction; its operand type is the problem's.
    pub instruction: Mma,
    /// Order of a warp's instructions.
    pub order: Order,
    /// Tiles in the ring, 2 at least.
    pub stages: u32,
    /// Tiles whose copies could still be under way at a barrier, and are waited for all the same: 0 waits for as few as
    /// possible, `stages - 2` for all.
    pub slack: u32,
    /// The loop over k is a loop of single tiles (else as many tiles are unrolled as the ring has).
    pub rolled: bool,
    /// The ways of A and B.
    pub operands: [OperandPlan; 2],
    /// Order of the blocks.
    pub raster: Raster,
    /// Parts of k, summed by a second kernel.
    pub split_k: i64,
    /// How C is written.
    pub store: Store,
    /// Blocks that are to fit on a multiprocessor at once, where the compiler shall save registers for that.
    pub min_blocks: Option<u32>,
}

/// Order in which tiles of C are given to blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Raster {
    /// Groups are of columns, and go from row to row; else of rows, from column to column.
    pub columns: bool,
    /// Rows (columns) of tiles that neighbouring blocks walk down before the next column (row); 1: along rows (columns).
    pub group: i64,
}

impl Raster {
    /// The same order of tiles in terms of a product that is swapped, or of one that is not.
    pub fn oriented(self, swapped: bool) -> Raster {
        Raster { columns: self.columns != swapped, ..self }
    }

    /// Groups of so many rows.
    pub fn rows(group: i64) -> Raster {
        Raster { columns: false, group }
    }
}

/// Order of the instructions of a warp's tile in one step along k.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Order {
    /// Down the columns; else along the rows.
    pub columns: bool,
    /// Every other row (column) is walked backwards, so that neighbouring instructions share an operand.
    pub serpentine: bool,
    /// Two rows (columns) are walked at once, so that each operand of the other side serves two instructions.
    pub pairs: bool,
    /// Steps of a tile along k are taken from the last to the first.
    pub descending: bool,
}

/// How C is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Store {
    /// From the fragments.
    Direct,
    /// By way of shared memory, 16 bytes per access (types of 16 bits, rows of a multiple of 16 bytes).
    Shared {
        /// With `stmatrix` (sm_90).
        stmatrix: bool,
    },
}

impl TensorPlan {
    /// A plan without any refinement: swizzled tiles, blocks in rows, sums stored from the fragments.
    pub fn plain(tile: [i64; 3], warp: [i64; 2], instruction: Mma, stages: u32) -> TensorPlan {
        let layout = if instruction.wmma().is_some() { least_layout(instruction) } else { OperandPlan::USUAL.layout };
        TensorPlan {
            swapped: false,
            tile,
            warp,
            warps_m_outer: true,
            instruction,
            order: Order::default(),
            stages,
            slack: 0,
            rolled: false,
            operands: [OperandPlan { layout, ..OperandPlan::usual(instruction) }; 2],
            raster: Raster::rows(1),
            split_k: 1,
            store: Store::Direct,
            min_blocks: None,
        }
    }

    /// Whether the plan fits the problem.
    ///
    /// # Errors
    /// The condition that does not hold.
    pub fn check(&self, gemm: &Gemm) -> Result<(), TensorError> {
        let gemm = &*gemm.oriented(self.swapped);
        problem(gemm)?;
        operands(gemm, self.instruction)?;
        warps(gemm, self.instruction, [self.tile[0], self.tile[1]], self.warp)?;
        whole_steps(self.instruction, self.tile[2])?;
        multiple("raster group", self.raster.group, 1)?;
        multiple("split_k", self.split_k, 1)?;
        threads(self.threads())?;
        rows(gemm, self.tile, self.operands)?;
        ring(gemm, self.instruction, self.tile, self.stages, self.padding(gemm))?;
        for (side, plan) in [Side::A, Side::B].into_iter().zip(&self.operands) {
            operand::way(gemm, side, self.instruction, self.tile[2], plan)?;
        }
        instructions(self.instruction, self.warp, self.order)?;
        k_loop(self.instruction, self.tile[2], (self.stages, self.slack), self.rolled, sets(&self.operands))?;
        split(gemm, self.tile[2], self.split_k)?;
        store(gemm, self.instruction, self.store, self.split_k > 1, self.tile, self.stages)
    }

    /// Bytes by which padded rows make both tiles larger; of the product as the plan has it.
    fn padding(&self, gemm: &Gemm) -> i64 {
        padding(gemm, self.instruction, self.tile, self.operands.map(|o| o.layout))
    }

    /// Warps below each other, and beside each other.
    pub fn warps(&self) -> [i64; 2] {
        [0, 1].map(|i| self.tile[i] / self.warp[i].max(1))
    }

    /// Threads per block.
    pub fn threads(&self) -> i64 {
        self.warps().iter().product::<i64>() * 32
    }

    /// Shared memory per block, bytes.
    pub fn shared_bytes(&self, gemm: &Gemm) -> i64 {
        self.shared_with(gemm, self.padding(&gemm.oriented(self.swapped)))
    }

    /// The same where padded rows make both tiles larger by so many bytes, whatever the plan's layouts are.
    pub fn shared_with(&self, gemm: &Gemm, padding: i64) -> i64 {
        let staged = match (self.instruction.wmma(), self.store) {
            (Some(op), Store::Shared { .. }) => op.staged_bytes(self.warps(), self.warp[1]),
            _ => 0,
        };
        ring_bytes(gemm, self.tile, self.stages, padding).max(staged)
    }

    /// Blocks, all products and parts of k together.
    pub fn blocks(&self, gemm: &Gemm) -> i64 {
        let gemm = gemm.oriented(self.swapped);
        gemm.batch * tiles(gemm.m, self.tile[0]) * tiles(gemm.n, self.tile[1]) * self.split_k
    }

    /// The schedule in a few lines for people.
    pub fn describe(&self) -> Vec<String> {
        let [m, n, k] = self.tile;
        let store = match self.store {
            Store::Direct => "from the fragments",
            Store::Shared { stmatrix: true } => "by stmatrix and shared memory",
            Store::Shared { stmatrix: false } => "by way of shared memory",
        };
        let order = match (self.order.columns, self.order.serpentine) {
            (false, false) => "by rows",
            (false, true) => "by rows, back and forth",
            (true, false) => "by columns",
            (true, true) => "by columns, back and forth",
        };
        let mut lines = vec![
            format!(
                "{}{}, {}{}",
                self.instruction,
                swapped_text(self.swapped),
                self.raster.oriented(self.swapped).text(),
                if self.split_k > 1 { format!(", k in {} parts", self.split_k) } else { String::new() }
            ),
            format!(
                "block tile {m}x{n}, k {k} ({}, {} stages{}{}), {} threads{}",
                if self.instruction.is_async() { "cp.async" } else { "through registers" },
                self.stages,
                match self.slack {
                    0 => String::new(),
                    n => format!(", waits for {n} more"),
                },
                if self.rolled { ", rolled" } else { "" },
                self.threads(),
                self.min_blocks.map_or(String::new(), |b| format!(", {b} blocks per multiprocessor asked for")),
            ),
            format!(
                "warp tile {}x{}{}, instructions {order}{}; C {store}",
                self.warp[0],
                self.warp[1],
                if self.warps_m_outer { "" } else { " (n outer)" },
                match (self.order.pairs, self.order.descending) {
                    (true, true) => ", two at once, k downwards",
                    (true, false) => ", two at once",
                    (false, true) => ", k downwards",
                    (false, false) => "",
                },
            ),
        ];
        lines.extend(
            ["A", "B"]
                .iter()
                .zip(&self.operands)
                .map(|(name, plan)| format!("{name}: {}", plan.text(self.instruction))),
        );
        lines
    }
}

/// What a plan's description says of its operands.
pub(in crate::term) fn swapped_text(swapped: bool) -> &'static str {
    if swapped {
        " swapped"
    } else {
        ""
    }
}

impl Raster {
    pub(super) fn text(self) -> String {
        let (group, along) = if self.columns { ("columns", "rows") } else { ("rows", "columns") };
        match self.group {
            1 if self.columns => "blocks down the columns".into(),
            1 => "blocks along the rows".into(),
            g => format!("blocks in groups of {g} {group} over the {along}"),
        }
    }
}

/// Sizes and the result's type.
pub fn problem(gemm: &Gemm) -> Result<(), TensorError> {
    gemm.check()
}

/// The instruction takes the problem's operands.
pub fn operands(gemm: &Gemm, op: Mma) -> Result<(), TensorError> {
    if op.operand() != gemm.operand {
        return Err(TensorError::OperandType { instruction: op.to_string(), operand: gemm.operand });
    }
    let sums = [op.accumulator(), gemm.accumulator()];
    if sums[0] != sums[1] {
        return Err(TensorError::SumType { instruction: op.to_string(), sums });
    }
    op.wmma().map_or(Ok(()), |op| wmma::operands(gemm, op))
}

/// Whole instructions make a warp's tile (m, n), and whole warps a block's. Of bytes stored across k two instructions' columns
/// come together.
pub fn warps(gemm: &Gemm, op: Mma, tile: [i64; 2], warp: [i64; 2]) -> Result<(), TensorError> {
    let [m, n] = op.block();
    let together = op.word() == 4 && operand::rows_along_k(gemm, Side::B);
    let n = if together { op.loaded(Side::B) } else { n };
    multiple("warp tile m", warp[0], m)?;
    multiple("warp tile n", warp[1], n)?;
    multiple("block tile m", tile[0], warp[0])?;
    multiple("block tile n", tile[1], warp[1])
}

/// A GPU runs so many threads.
pub fn threads(threads: i64) -> Result<(), TensorError> {
    if (32..=1024).contains(&threads) {
        Ok(())
    } else {
        Err(TensorError::Threads(threads))
    }
}

/// Rows of both tiles are whole chunks of 16 bytes, of a number that the layout takes.
pub fn rows(gemm: &Gemm, [m, n, k]: [i64; 3], operands: [OperandPlan; 2]) -> Result<(), TensorError> {
    operand::layout(gemm, Side::A, [m, k], operands[0].layout)?;
    operand::layout(gemm, Side::B, [n, k], operands[1].layout)
}

/// Rows (columns) of instructions are walked two at once only where their number is even.
pub fn instructions(op: Mma, warp: [i64; 2], order: Order) -> Result<(), TensorError> {
    let [m, n] = op.block();
    let lines = if order.columns { warp[1] / n } else { warp[0] / m };
    if order.pairs && lines % 2 != 0 {
        return Err(TensorError::Loop("rows of instructions are walked two at once only where their number is even"));
    }
    Ok(())
}

/// Sets of fragments of A and B.
pub fn sets(operands: &[OperandPlan; 2]) -> [u32; 2] {
    [operands[0].sets, operands[1].sets]
}

/// No more tiles are waited for than are under way; a rolled loop takes an even number of steps, where sets of fragments
/// alternate.
pub fn k_loop(
    op: Mma,
    tile_k: i64,
    (stages, slack): (u32, u32),
    rolled: bool,
    sets: [u32; 2],
) -> Result<(), TensorError> {
    if slack > stages.saturating_sub(2) {
        return Err(TensorError::Loop("it cannot wait for more tiles than are under way"));
    }
    if rolled && sets != [1, 1] && tile_k / i64::from(op.k()) % 2 != 0 {
        return Err(TensorError::Loop(
            "two sets of fragments alternate in a rolled loop only where its steps are even",
        ));
    }
    Ok(())
}

/// Whole instructions make a tile along k.
pub fn whole_steps(op: Mma, tile_k: i64) -> Result<(), TensorError> {
    multiple("block tile k", tile_k, i64::from(op.k()))
}

/// The whole of k may end within a tile; a part of it may not.
pub fn whole_parts(gemm: &Gemm, part: i64, tile_k: i64) -> Result<(), TensorError> {
    if part != gemm.k && part % tile_k.max(1) != 0 {
        return Err(TensorError::Part { part, tile: tile_k });
    }
    Ok(())
}

/// Every part of k has a tile.
pub fn split(gemm: &Gemm, tile_k: i64, parts: i64) -> Result<(), TensorError> {
    let tiles = tiles(gemm.k, tile_k);
    if parts > tiles {
        return Err(TensorError::Split { parts, tiles });
    }
    Ok(())
}

/// C can be written so; `is_split`: what is written are sums of a part of k.
pub fn store(
    gemm: &Gemm,
    op: Mma,
    store: Store,
    is_split: bool,
    tile: [i64; 3],
    stages: u32,
) -> Result<(), TensorError> {
    let [m, n, _] = tile;
    if op.wmma().is_some() && gemm.c_transposed {
        return Err(TensorError::Store("fragments of wmma are stored in rows, and C is by columns"));
    }
    let Store::Shared { stmatrix } = store else {
        return op.wmma().map_or(Ok(()), |_| wmma::store_direct(gemm, is_split, [m, n]));
    };
    // Rows of the tile are those of memory.
    let (rows, row) = if gemm.c_transposed { (n, m) } else { (m, n) };
    let pitch = staged_layout(row).pitch(row, gemm.output, Turn::Rows);
    let reason = if is_split {
        "split-K stores its sums at once"
    } else if op.wmma().is_some() {
        match stmatrix {
            true => "stmatrix takes no fragments of wmma",
            false => return Ok(()),
        }
    } else if gemm.output != gemm.operand || !gemm.stores_halves() {
        "its type is not the operands' 16-bit type"
    } else if gemm.c_run(false) % 8 != 0 {
        "its rows are not multiples of 16 bytes"
    } else if rows * pitch * 2 > ring_bytes(gemm, tile, stages, 0) {
        // Whatever padding of its tiles makes the ring larger.
        "its tile is larger than the ring"
    } else {
        return Ok(());
    };
    Err(TensorError::Store(reason))
}

/// 32-bit registers of a thread, estimated from machine code: sums, two sets of fragments, 40 for addresses and counters,
/// and those of copies. Where the kernel has one set of fragments the compiler still loads ahead: warps of 64 x 80 with one
/// set need more than 255 registers. On `wmma` there is one set, and fewer addresses: a block of 256 x 64 x 32 with 16 warps
/// of 16 x 64 is given 102 registers by ptxas for sm_75, and 80 for sm_80.
pub fn registers(op: Mma, warp: [i64; 2], copies: i64) -> i64 {
    let (block, words) = (op.block(), op.fragment_words());
    let set = warp[0] / block[0] * words[0] + warp[1] / block[1] * words[1];
    let (sets, others) = if op.wmma().is_some() { (1, 24) } else { (2, 40) };
    warp[0] / block[0] * (warp[1] / block[1]) * op.sum_words() + sets * set + others + copies
}

/// [`registers`] where operands' copies, of so many bytes each, take as few as they can.
pub fn least_registers(
    gemm: &Gemm,
    op: Mma,
    [m, n, k]: [i64; 3],
    warp: [i64; 2],
    threads: i64,
    bytes: [u32; 2],
) -> i64 {
    let least = |side, extent, bytes| {
        let of = |rolled| {
            let plan = OperandPlan { bytes, rolled, ..OperandPlan::default() };
            operand::copy_registers(gemm, side, op, [extent, k], threads, &plan)
        };
        of(false).min(of(true))
    };
    registers(op, warp, least(Side::A, m, bytes[0]) + least(Side::B, n, bytes[1]))
}

/// Registers of a thread that are planned with, at most: the estimate may be a few short of the compiler's 255.
const MOST_REGISTERS: i64 = 248;

/// So many registers of a thread are left by the blocks that are to be resident, of 65536 in steps of 8 per thread, and to a
/// thread of the GPU.
pub fn registers_fit(need: i64, threads: i64, min_blocks: Option<u32>, of_thread: i64) -> Result<(), TensorError> {
    let resident = i64::from(min_blocks.unwrap_or(1).max(1));
    let left = 65536 / (resident * threads.max(1)) / 8 * 8;
    let most = MOST_REGISTERS.min(of_thread).min(left);
    if need > most {
        return Err(TensorError::Registers { need, most });
    }
    Ok(())
}

impl TensorPlan {
    /// [`registers`] of the plan.
    pub fn registers(&self, gemm: &Gemm) -> i64 {
        let [m, n, k] = self.tile;
        let gemm = &*gemm.oriented(self.swapped);
        let of = |side, extent, plan| {
            operand::copy_registers(gemm, side, self.instruction, [extent, k], self.threads(), plan)
        };
        let copies = of(Side::A, m, &self.operands[0]) + of(Side::B, n, &self.operands[1]);
        registers(self.instruction, self.warp, copies)
    }
}

impl OperandPlan {
    fn text(&self, op: Mma) -> String {
        let layout = match self.layout {
            TileLayout::Plain => "not swizzled".into(),
            TileLayout::Padded => "rows padded".into(),
            TileLayout::Xor(8) => "swizzled".into(),
            TileLayout::Xor(span) => format!("swizzled in spans of {span}"),
            TileLayout::Rotate(span) => format!("rotated in spans of {span}"),
        };
        let order = match self.order {
            operand::CopyOrder::Rows => "along rows",
            operand::CopyOrder::Columns => "across rows",
            operand::CopyOrder::Own => "each thread its own",
        };
        let loops = if self.rolled { ", rolled" } else { "" };
        format!(
            "copies of {} bytes {order}{loops}, at step {}{}; {layout}; {}, {} of fragments",
            self.bytes,
            self.step,
            match self.prefetch {
                0 => String::new(),
                bytes => format!(", {bytes} bytes to L2"),
            },
            match op {
                Mma::Wmma(_) => "wmma.load".to_string(),
                _ => format!("ldmatrix x{}", self.matrices),
            },
            if self.sets == 2 { "two sets" } else { "one set" }
        )
    }
}
