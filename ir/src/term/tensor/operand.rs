//! How an operand's tiles come to the ring in shared memory, lie there, and come from there to the warps' fragments.
use super::{Gemm, Mma, TensorError};
use crate::term::{Axis, Side};
use crate::DType;
use serde::{Deserialize, Serialize};

/// The way of one operand, from global memory to fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OperandPlan {
    /// Where chunks of 16 bytes stand in a row of the tile.
    pub layout: TileLayout,
    /// Most bytes of one copy: 16, 8 or 4. Rows in global memory that are no multiples of that are copied by less.
    pub bytes: u32,
    /// Which chunks neighbouring threads copy.
    pub order: CopyOrder,
    /// A thread's copies are a loop, which computes each address anew (else unrolled).
    pub rolled: bool,
    /// Bytes around a copy's that L2 is asked to fetch from memory: 0 (its own sectors), 128 or 256.
    pub prefetch: u32,
    /// Step along k of a tile at which copies of a later one are started.
    pub step: u32,
    /// 8 x 8 matrices that one `ldmatrix` loads: 4, 2 or 1.
    pub matrices: u32,
    /// Sets of fragments: 2 where those of the next step are loaded while this one's are multiplied, 1 where not.
    pub sets: u32,
}

impl OperandPlan {
    /// The usual way, free of bank conflicts: swizzled, by wide copies that are started with the tile, double buffered.
    pub const USUAL: OperandPlan = OperandPlan {
        layout: TileLayout::Xor(8),
        bytes: 16,
        order: CopyOrder::Rows,
        rolled: false,
        prefetch: 0,
        step: 0,
        matrices: 4,
        sets: 2,
    };

    /// The same for an instruction: no more matrices than one of its loads has.
    pub fn usual(op: Mma) -> OperandPlan {
        OperandPlan { matrices: op.matrices(), ..OperandPlan::USUAL }
    }
}

impl Default for OperandPlan {
    fn default() -> OperandPlan {
        OperandPlan::USUAL
    }
}

/// Where chunks of 16 bytes stand in a row of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TileLayout {
    /// In order.
    Plain,
    /// In order, rows further apart than they are long ([`TileLayout::align`]).
    Padded,
    /// Within spans of so many chunks, xor-ed with a number that the row gives.
    Xor(u8),
    /// Within spans of so many chunks, moved on by a number that the row gives.
    Rotate(u8),
}

impl TileLayout {
    /// Chunks of a span, in rows of `chunks`.
    pub fn span(self, chunks: i64) -> i64 {
        match self {
            TileLayout::Plain | TileLayout::Padded => 1,
            TileLayout::Xor(span) | TileLayout::Rotate(span) => i64::from(span).min(chunks).max(1),
        }
    }

    /// The distance of rows of a tile as `storage_align` has it, in chunks: a factor, and what is left of the distance
    /// when divided by it. `None`: rows follow each other.
    pub fn align(self, turn: Turn) -> Option<[i64; 2]> {
        match (self, turn) {
            // Four rows' pairs of chunks lie in different banks.
            (TileLayout::Padded, Turn::Quads) => Some([4, 2]),
            // Eight neighbouring rows' chunks do; rows r and r + 8, of which bytes across k need both, never.
            (TileLayout::Padded, Turn::Rows | Turn::Bytes) => Some([2, 1]),
            _ => None,
        }
    }

    /// Elements from one row of a tile to the next; rows have `columns` elements, whole chunks.
    pub fn pitch(self, columns: i64, dtype: DType, turn: Turn) -> i64 {
        let chunk = 16 / i64::from(dtype.bytes());
        let chunks = columns / chunk;
        self.align(turn).map_or(columns, |[factor, rest]| (chunks + (factor + rest - chunks % factor) % factor) * chunk)
    }

    /// Whether chunks of any row stand elsewhere than in order, in rows of `chunks`. Two chunks that four rows' pairs would be
    /// turned by, for one, stay where they are.
    pub fn moves(self, chunks: i64, turn: Turn) -> bool {
        let span = self.span(chunks);
        // What rows give repeats after 16 of them.
        !matches!(self, TileLayout::Plain | TileLayout::Padded) && (0..16).any(|row| turn.of_row(row, span) != 0)
    }

    /// Where chunk `chunk` of a row stands, `turn` being what the row gives.
    pub fn place(self, chunks: i64, turn: i64, chunk: i64) -> i64 {
        let span = self.span(chunks);
        match self {
            TileLayout::Plain | TileLayout::Padded => chunk,
            TileLayout::Xor(_) => chunk ^ (turn % span),
            TileLayout::Rotate(_) => chunk / span * span + (chunk % span + turn) % span,
        }
    }
}

/// What a row gives to its chunks' places, so that those who read a tile meet no bank twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Turn {
    /// Any 8 neighbouring rows hold a chunk in 8 different bank groups: `ldmatrix`.
    Rows,
    /// Four neighbouring rows, two chunks each: words of 4 x 8 elements, one per lane.
    Quads,
    /// Rows whose numbers agree in bit 1, eight of sixteen: `ldmatrix` of bytes, two rows in four.
    Bytes,
}

impl Turn {
    /// What suits an instruction whose operand's rows run along k, or not.
    pub fn of(op: Mma, k_rows: bool) -> Turn {
        match (k_rows, op.word()) {
            (true, 1) => Turn::Quads,
            (true, 4) => Turn::Bytes,
            _ => Turn::Rows,
        }
    }

    /// What a row gives, for spans of so many chunks.
    pub fn of_row(self, row: i64, span: i64) -> i64 {
        match self {
            // Rows of 128 bytes or more fill the banks alone, shorter ones 2, 4 or 8 together.
            Turn::Rows => row / (8 / span.clamp(1, 8)) % span,
            Turn::Quads => row % 4 * 2 % span,
            Turn::Bytes => (row % 2 + row / 4 % 4 * 2) % span,
        }
    }
}

/// Which chunks neighbouring threads copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CopyOrder {
    /// Neighbouring ones of a row, all threads together one round after the other.
    Rows,
    /// Those below each other, all threads together one round after the other.
    Columns,
    /// Each thread has neighbouring chunks of its own.
    Own,
}

/// Whether rows of an operand's tile run along k, as they do in global memory.
pub fn rows_along_k(gemm: &Gemm, side: Side) -> bool {
    match side {
        Side::A => gemm.a_transposed,
        Side::B => !gemm.b_transposed,
    }
}

/// Rows of an operand's tile, and elements of a row.
pub fn tile_rows(gemm: &Gemm, side: Side, extent: i64, k: i64) -> (i64, i64) {
    match rows_along_k(gemm, side) {
        true => (k, extent),
        false => (extent, k),
    }
}

/// Bytes by which padded rows make an operand's tile larger.
pub fn padding(gemm: &Gemm, side: Side, op: Mma, tile: [i64; 2], layout: TileLayout) -> i64 {
    let (rows, columns) = tile_rows(gemm, side, tile[0], tile[1]);
    let pitch = layout.pitch(columns, gemm.operand, Turn::of(op, rows_along_k(gemm, side)));
    rows.saturating_mul(pitch.saturating_sub(columns)).saturating_mul(gemm.operand.bytes().into())
}

/// Elements that one copy of an operand's tile moves at most: 16 bytes where rows in global memory are multiples of that, else
/// as much as divides them; of a gathered one, as much as lies side by side.
fn copy_width(gemm: &Gemm, side: Side) -> i64 {
    let own = if side == Side::A { gemm.m } else { gemm.n };
    let (axis, extent) = if rows_along_k(gemm, side) { (side.spatial(), own) } else { (Axis::K, gemm.k) };
    let pitch = gemm.gathered(side).map_or(extent, |factor| factor.run(axis));
    let mut width = 16 / i64::from(gemm.operand.bytes());
    while width > 1 && pitch % width != 0 {
        width /= 2;
    }
    width
}

/// Elements of one copy of an operand.
pub fn copy_elements(gemm: &Gemm, side: Side, bytes: u32) -> i64 {
    copy_width(gemm, side).min(i64::from((bytes / gemm.operand.bytes()).max(1)))
}

/// Whether `cp.async` copies an operand: it moves 4 bytes at least, as they are in memory, and some GPUs do not have it.
pub fn is_async(gemm: &Gemm, side: Side, op: Mma, bytes: u32) -> bool {
    op.is_async()
        && gemm.computed(side).is_none()
        && copy_elements(gemm, side, bytes) * i64::from(gemm.operand.bytes()) >= 4
}

/// 32-bit registers of a thread in which what a tile of a computed operand is made of waits for it. In a ring that `cp.async` fills, as
/// many tiles wait as are under way.
pub fn waiting_registers(gemm: &Gemm, side: Side, tile: [i64; 2], threads: i64, bytes: u32) -> i64 {
    let registers = gemm.computed(side).map_or(0, |of| of.registers(copy_elements(gemm, side, bytes)));
    copies(gemm, side, tile, threads, bytes) * registers
}

/// Copies of a thread per tile.
pub fn copies(gemm: &Gemm, side: Side, [extent, k]: [i64; 2], threads: i64, bytes: u32) -> i64 {
    super::tiles(extent * k / copy_elements(gemm, side, bytes), threads.max(1))
}

/// Whether addresses of an operand's copies are looked up one by one: a tile hangs over the edge of the problem, or its elements
/// are gathered.
pub fn looked_up(gemm: &Gemm, side: Side, extent: i64) -> bool {
    let whole = if side == Side::A { gemm.m } else { gemm.n };
    whole % extent.max(1) != 0 || gemm.gathered(side).is_some()
}

/// Elements that are too narrow for `cp.async` pass through registers, so many of a thread at once: each waits for none of the others.
pub const LOADED_TOGETHER: i64 = 16;

/// 32-bit registers of a thread that an operand's copies take: an address for each where it is looked up, else one for
/// all, from which they differ by constants. Without `cp.async` the tile itself waits there. What passes through registers for want
/// of 4 bytes that `cp.async` could move takes a register for each that is loaded together, and one for its address. What is computed is so
/// of words that wait there ([`waiting_registers`]), of one tile here.
pub fn copy_registers(gemm: &Gemm, side: Side, op: Mma, tile: [i64; 2], threads: i64, plan: &OperandPlan) -> i64 {
    let count = copies(gemm, side, tile, threads, plan.bytes);
    // An index in each dimension that an access asks about, or an element that says where it is.
    let told = if gemm.looked_up(side) { count } else { 0 };
    let asked = told + gemm.gathered(side).map_or(0, |factor| count * factor.asked());
    asked
        + if let Some(computed) = gemm.computed(side) {
            // An address of each input, and one in shared memory.
            let addresses = count * (2 * computed.reads.len() as i64 + 1);
            waiting_registers(gemm, side, tile, threads, plan.bytes) + addresses
        } else if !op.is_async() {
            let bytes = copy_elements(gemm, side, plan.bytes) * i64::from(gemm.operand.bytes());
            let addresses = if looked_up(gemm, side, tile[0]) { 2 * count } else { 2 * count.min(2) };
            count * ((bytes + 3) / 4) + addresses
        } else if !is_async(gemm, side, op, plan.bytes) {
            2 * LOADED_TOGETHER + if plan.rolled { 0 } else { 2 * count }
        } else if plan.rolled {
            6
        } else if looked_up(gemm, side, tile[0]) {
            2 * count + 2
        } else {
            2 * count.min(4)
        }
}

/// Rows of an operand's tile are whole chunks of 16 bytes, of a number that the layout takes.
pub fn layout(gemm: &Gemm, side: Side, tile: [i64; 2], layout: TileLayout) -> Result<(), TensorError> {
    let chunk = 16 / i64::from(gemm.operand.bytes());
    let (_, columns) = tile_rows(gemm, side, tile[0], tile[1]);
    super::multiple("a tile's row", columns, chunk)?;
    let (chunks, span) = (columns / chunk, layout.span(columns / chunk));
    let swizzled = !matches!(layout, TileLayout::Plain | TileLayout::Padded);
    if swizzled && (!matches!(span, 1 | 2 | 4 | 8) || chunks % span != 0) {
        return Err(TensorError::Swizzle(if side == Side::A { "A" } else { "B" }, chunks));
    }
    Ok(())
}

/// Copies have 4 to 16 bytes, and begin at a step after which there is another (or at the only one); `ldmatrix` loads 1, 2
/// or 4 matrices, where it is used at all.
pub fn way(gemm: &Gemm, side: Side, op: Mma, tile_k: i64, plan: &OperandPlan) -> Result<(), TensorError> {
    if !matches!(plan.bytes, 4 | 8 | 16) {
        return Err(TensorError::Operand("a copy has 4, 8 or 16 bytes"));
    }
    if !matches!(plan.prefetch, 0 | 128 | 256) {
        return Err(TensorError::Operand("L2 is asked for 128 or 256 bytes, or for nothing"));
    }
    if op.wmma().is_some() && plan.layout != TileLayout::Padded {
        return Err(TensorError::Operand("wmma loads rows that are padded"));
    }
    if !op.is_async() && plan.rolled {
        return Err(TensorError::Operand("copies that wait in registers are not a loop"));
    }
    if gemm.gathered(side).is_some() && plan.rolled {
        return Err(TensorError::Operand(
            "copies of a gathered operand are not a loop, which would compute each place anew",
        ));
    }
    if plan.prefetch > 0 && !is_async(gemm, side, op, plan.bytes) {
        return Err(TensorError::Operand("only cp.async asks L2 for more than it copies"));
    }
    if !steps(op, tile_k).contains(&plan.step) {
        return Err(TensorError::Operand("copies begin at a step before the last one"));
    }
    if !matrices(gemm, side, op).contains(&plan.matrices) {
        return Err(TensorError::Operand(
            "ldmatrix loads 1, 2 or 4 matrices, 1 or 2 on sm_75; operands that it does not bring in order, all",
        ));
    }
    if !matches!(plan.sets, 1 | 2) {
        return Err(TensorError::Operand("there are one or two sets of fragments"));
    }
    Ok(())
}

/// Steps at which copies can begin.
pub fn steps(op: Mma, tile_k: i64) -> std::ops::Range<u32> {
    let steps = u32::try_from(tile_k / i64::from(op.k())).unwrap_or(1);
    0..steps.saturating_sub(1).max(1)
}

/// How many matrices an `ldmatrix` of an operand may load: all of a fragment's where they are not brought in order; 4 where it is not used.
pub fn matrices(gemm: &Gemm, side: Side, op: Mma) -> &'static [u32] {
    match Turn::of(op, rows_along_k(gemm, side)) {
        _ if op.wmma().is_some() => &[4],
        Turn::Rows if op.matrices() == 2 => &[2, 1],
        Turn::Rows => &[4, 2, 1],
        Turn::Bytes if op.matrices() == 2 => &[2],
        Turn::Quads | Turn::Bytes => &[4],
    }
}
