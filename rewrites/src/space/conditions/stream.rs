//! The side conditions of the rules for streaming programs, and what else they offer no schedule for.
use crate::space::stream::StreamCondition;
use satune_ir::term::stream::{AccessForm, BlockKind, RowPlace, Stream, StreamBlock};

/// Most bytes of an access.
const ACCESS_BYTES: i64 = 16;
/// Threads of a warp.
const WARP: i64 = 32;

/// Why a rule for streaming programs does not fire.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum StreamRefusal {
    #[error("{blocks} make no kernel: {why} ({})", StreamCondition::RowFits)]
    RowFits { blocks: String, why: String },
    #[error("{block} is no kernel over all elements: {}", StreamCondition::FlatFits)]
    FlatFits { block: String },
    #[error("{block} is no transpose of one buffer, which tiles are for")]
    Transposes { block: String },
    #[error("{blocks} are several blocks, and {kernel} is made of one")]
    OneBlock { blocks: String, kernel: &'static str },
    #[error("{per_block} rows of a block do not divide {rows} rows: {}", StreamCondition::RowsDivide)]
    RowsDivide { per_block: i64, rows: i64 },
    #[error("{side_by_side} rows side by side do not divide the {per_block} of a block")]
    TeamsDivide { side_by_side: i64, per_block: i64 },
    #[error(
        "{threads} threads for each of {side_by_side} rows are {}: {} ({most})",
        .threads.saturating_mul(*.side_by_side),
        StreamCondition::ThreadsFit
    )]
    ThreadsFit { threads: i64, side_by_side: i64, most: i64 },
    #[error("{threads} threads do not share the sum of {block}: {why}")]
    Sharing { threads: i64, block: String, why: &'static str },
    #[error("a thread has no {vector} neighbouring results of {block}: {why}")]
    Neighbours { vector: i64, block: String, why: &'static str },
    #[error("a thread has no {results} results of {block} along {iter}: {why}")]
    Window { results: i64, block: String, iter: String, why: &'static str },
    #[error("{block} needs {statements} statements of a thread in a step; at most {most} are offered")]
    Statements { block: String, statements: i64, most: i64 },
    #[error("{block} computes each value of {before} for one result, of which there is nothing to hold")]
    NothingHeld { block: String, before: String },
    #[error("{threads} threads with {vector} elements each leave a warp without any of a row's {columns}")]
    IdleWarp { threads: i64, vector: i64, columns: i64 },
    #[error("{threads} threads are less than a warp: such take a row's {columns} elements at once, one access of {columns} / {threads} each")]
    ShortRow { threads: i64, columns: i64 },
    #[error(
        "{threads} threads with {vector} elements each are a part of a warp, which takes rows of {} to {} elements; these have {columns}",
        part_rows(*.threads, *.vector).0,
        part_rows(*.threads, *.vector).1
    )]
    PartOfWarp { threads: i64, vector: i64, columns: i64 },
    #[error("{threads} threads for each of {side_by_side} rows are {}: no whole warps", .threads.saturating_mul(*.side_by_side))]
    WholeWarps { threads: i64, side_by_side: i64 },
    #[error(
        "{vector} elements of {buffer} take {} bytes: {}",
        .vector.saturating_mul(*.bytes),
        StreamCondition::VectorBytes
    )]
    VectorBytes { vector: i64, buffer: String, bytes: i64 },
    #[error("{vector} elements do not divide rows of {row}: {}", StreamCondition::VectorDivides)]
    VectorDivides { vector: i64, row: i64 },
    #[error("{what} take {bytes} bytes; a block has {most}: {}", StreamCondition::SharedFits)]
    SharedFits { what: &'static str, bytes: i64, most: i64 },
    #[error(
        "{registers} registers of a thread for what it holds of a row; at most {most} are offered: {}",
        StreamCondition::RegistersFit
    )]
    RegistersFit { registers: i64, most: i64 },
    #[error("{buffer} passes between blocks of the kernel, and never through global memory")]
    PassesHere { buffer: String },
    #[error("{buffer} has a value per column for several rows, which shared memory holds")]
    PerColumn { buffer: String },
    #[error(
        "{buffer} is not held in shared memory for {side_by_side} rows side by side: these need a loop over rows of their own, \
         which rows over several iterators, or what a block of the kernel makes, do not have"
    )]
    RowsApart { buffer: String, side_by_side: i64 },
    #[error("{threads} threads on rows of {along} accesses: {}", StreamCondition::TeamDivides)]
    TeamDivides { threads: i64, along: i64 },
    #[error(
        "{blocks} make no plain kernel: one block that no other kernel takes does, or a sum that such a block is, with the map over its \
         elements that alone reads it, the map before it that it alone reads, or both"
    )]
    PlainFits { blocks: String },
    #[error("{blocks} are no contraction by themselves: a sum of products, and a chain of maps after it")]
    Contraction { blocks: String },
    #[error("accesses of {vector} elements are copies to registers: {}", StreamCondition::Pipeline)]
    Pipeline { vector: i64 },
    #[error("rows padded by {pad} keep a part of an access of {vector}")]
    Pad { pad: i64, vector: i64 },
}

/// What [`shared_fits`] is asked about.
pub const HELD_ROWS: &str = "rows held in shared memory";
/// What [`shared_fits`] is asked about.
pub const TILE: &str = "the elements of a tile";

/// What a condition says.
pub type StreamHeld = Result<(), StreamRefusal>;

/// Nothing where a condition holds; a refusal, which may have names in it, is made only where it does not.
fn unless(met: bool, refusal: impl FnOnce() -> StreamRefusal) -> StreamHeld {
    met.then_some(()).ok_or_else(refusal)
}

/// Names of the blocks `from..to`, as messages have them.
pub fn names(stream: &Stream, from: usize, to: usize) -> String {
    let names: Vec<&str> = stream.blocks[from..to].iter().map(|b| b.name.as_str()).collect();
    names.join(" + ")
}

/// Blocks `from..to` share a row kernel.
pub fn row_fits(stream: &Stream, from: usize, to: usize) -> StreamHeld {
    if stream.fits_row(from, to) {
        return Ok(());
    }
    let blocks = &stream.blocks[from..to];
    let over = |b: &StreamBlock| {
        let extents: Vec<String> = b.iters.iter().map(|i| i.extent.to_string()).collect();
        format!("{} has {}", b.name, extents.join(" x "))
    };
    let why = if !stream.pipeline && to > from + 1 {
        "one of the program's blocks writes what an earlier one reads, so that none moves to another".into()
    } else if to > from + 1 && blocks.iter().all(|b| b.kind == BlockKind::Map) {
        let elements: Vec<String> = blocks.iter().map(over).collect();
        format!("they are maps, but not over the same elements: {}", elements.join(", "))
    } else if let Some(b) = blocks.iter().find(|b| b.updates) {
        format!("{} changes a buffer in place, which no kernel of rows does", b.name)
    } else if stream.row_shape(from, to).is_none() {
        "there is no reduction among them whose rows and columns all of them have".into()
    } else {
        "an access among them neither follows the rows nor the columns, or rows that one of them makes are read by none of them".into()
    };
    Err(StreamRefusal::RowFits { blocks: names(stream, from, to), why })
}

/// Blocks `from..to` are a kernel over all their elements.
pub fn flat_fits(stream: &Stream, from: usize, to: usize) -> StreamHeld {
    unless(stream.fits_flat(from, to), || StreamRefusal::FlatFits { block: names(stream, from, to) })
}

/// Blocks `from..to` are taken by plain kernels only: one, or a sum with the map of its results, the one before it, or both.
pub fn plain_fits(stream: &Stream, from: usize, to: usize) -> StreamHeld {
    unless(stream.fits_plain(from, to), || StreamRefusal::PlainFits { blocks: names(stream, from, to) })
}

/// Blocks `from..to` are a contraction by themselves.
pub fn contraction_fits(stream: &Stream, from: usize, to: usize) -> StreamHeld {
    let found = stream.contraction(from, to).is_some();
    unless(found, || StreamRefusal::Contraction { blocks: names(stream, from, to) })
}

/// Wide accesses of the blocks `from..to` are copies, which `compute_at` puts under their threads.
pub fn pipeline(stream: &Stream, from: usize, to: usize, vector: i64) -> StreamHeld {
    let copied = stream.pipeline && stream.blocks[from..to].iter().all(|b| !b.updates);
    unless(vector == 1 || copied, || StreamRefusal::Pipeline { vector })
}

/// A block transposes one buffer.
pub fn transposes(stream: &Stream, block: usize) -> StreamHeld {
    let transposed = stream.transposed(block).is_some();
    unless(transposed, || StreamRefusal::Transposes { block: names(stream, block, block + 1) })
}

/// The rows of a block divide all rows.
pub fn rows_divide(per_block: i64, rows: i64) -> StreamHeld {
    unless(per_block > 0 && rows % per_block == 0, || StreamRefusal::RowsDivide { per_block, rows })
}

/// The rows side by side divide those of a block.
pub fn teams_divide(side_by_side: i64, per_block: i64) -> StreamHeld {
    let whole = side_by_side > 0 && per_block % side_by_side == 0;
    unless(whole, || StreamRefusal::TeamsDivide { side_by_side, per_block })
}

/// A block has no more threads than it may.
pub fn threads_fit(threads: i64, side_by_side: i64, most: i64) -> StreamHeld {
    let fit = threads.checked_mul(side_by_side).is_some_and(|all| all <= most);
    unless(fit, || StreamRefusal::ThreadsFit { threads, side_by_side, most })
}

/// Threads along so many rows fill warps.
pub fn whole_warps(threads: i64, side_by_side: i64) -> StreamHeld {
    let whole = threads.checked_mul(side_by_side).is_some_and(|all| all % WARP == 0);
    unless(whole, || StreamRefusal::WholeWarps { threads, side_by_side })
}

/// Most accesses of a thread along a row that a part of a warp takes: of longer ones more threads have as little left over.
const PART_LAPS: i64 = 8;

/// The shortest and the longest rows of a part of a warp.
fn part_rows(threads: i64, vector: i64) -> (i64, i64) {
    let team = threads.saturating_mul(vector);
    let twice = vector.saturating_mul(2 * WARP);
    (team.saturating_sub(vector).saturating_add(1), team.saturating_mul(PART_LAPS).min(twice.saturating_sub(1)))
}

/// A part of a warp takes a row of a row kernel where a whole one would have lanes without elements, and all of its threads have some,
/// a few each.
pub fn part_team(threads: i64, vector: i64, columns: i64) -> StreamHeld {
    let (least, most) = part_rows(threads, vector);
    let short = (least..=most).contains(&columns);
    unless(!part_of_warp(threads) || short, || StreamRefusal::PartOfWarp { threads, vector, columns })
}

/// Whether so many threads are a part of a warp.
pub fn part_of_warp(threads: i64) -> bool {
    threads < WARP
}

/// A part of a warp takes a row whole, one access for each thread: rows that follow each other in memory then leave no lane without
/// an element.
pub fn short_row(threads: i64, steps: i64, vector: i64, columns: i64) -> StreamHeld {
    let whole = steps == 1 && threads.checked_mul(vector) == Some(columns);
    unless(!part_of_warp(threads) || whole, || StreamRefusal::ShortRow { threads, columns })
}

/// No warp is without an element, where a narrower team would do.
pub fn no_idle_warp(threads: i64, vector: i64, columns: i64) -> StreamHeld {
    let idle = threads > WARP && (threads - WARP).saturating_mul(vector) >= columns;
    unless(!idle, || StreamRefusal::IdleWarp { threads, vector, columns })
}

/// The widest element that blocks `from..to` access along their columns, bytes, and its buffer.
pub fn widest(stream: &Stream, from: usize, to: usize, row_iters: usize) -> Option<(i64, &str)> {
    let along = |form| matches!(form, AccessForm::Full | AccessForm::PerColumn | AccessForm::SharedRow);
    let blocks = stream.blocks[from..to].iter();
    let accesses = blocks.flat_map(|b| b.accesses().map(move |a| (b, a)));
    let accessed = accesses.filter(|(b, a)| along(b.form(a, row_iters)));
    accessed
        .map(|(_, a)| &stream.buffers[a.buffer])
        .map(|buffer| (i64::from(buffer.dtype.bytes()), buffer.name.as_str()))
        .max()
}

/// The same of all that they access.
pub fn widest_of_any(stream: &Stream, from: usize, to: usize) -> Option<(i64, &str)> {
    let blocks = stream.blocks[from..to].iter();
    let accessed = blocks.flat_map(|b| b.loaded.iter().map(|load| load.buffer).chain([b.write.buffer]));
    accessed
        .map(|buffer| &stream.buffers[buffer])
        .map(|buffer| (i64::from(buffer.dtype.bytes()), buffer.name.as_str()))
        .max()
}

/// The same of a transpose, whose read of number `access` permutes.
pub fn widest_of_tile(stream: &Stream, block: usize, access: usize) -> (i64, &str) {
    let b = &stream.blocks[block];
    let element = |buffer: usize| {
        let buffer = &stream.buffers[buffer];
        (i64::from(buffer.dtype.bytes()), buffer.name.as_str())
    };
    element(b.reads[access].buffer).max(element(b.write.buffer))
}

/// An access of the widest element has no more bytes than it may; where nothing is accessed, it is of one element.
pub fn vector_bytes(vector: i64, widest: Option<(i64, &str)>) -> StreamHeld {
    let (bytes, buffer) = widest.unwrap_or((ACCESS_BYTES, "no buffer"));
    let fits = vector.checked_mul(bytes).is_some_and(|all| all <= ACCESS_BYTES);
    unless(fits, || StreamRefusal::VectorBytes { vector, buffer: buffer.into(), bytes })
}

/// The width of an access divides the rows that it runs along.
pub fn vector_divides(vector: i64, row: i64) -> StreamHeld {
    unless(vector > 0 && row % vector == 0, || StreamRefusal::VectorDivides { vector, row })
}

/// What is held in shared memory fits there.
pub fn shared_fits(what: &'static str, bytes: i64, most: i64) -> StreamHeld {
    unless(bytes <= most, || StreamRefusal::SharedFits { what, bytes, most })
}

/// What a thread holds of rows fits its registers.
pub fn registers_fit(registers: i64, most: i64) -> StreamHeld {
    unless(registers <= most, || StreamRefusal::RegistersFit { registers, most })
}

/// How a row kernel holds what its blocks read.
#[derive(Clone, Copy, Debug)]
pub struct Team {
    /// Elements of a row.
    pub columns: i64,
    /// Rows at once.
    pub side_by_side: i64,
    /// Threads of a row.
    pub threads: i64,
    /// Elements of an access.
    pub vector: i64,
}

impl Team {
    /// How often a thread goes along a row.
    pub fn laps(&self) -> i64 {
        let each = self.threads.saturating_mul(self.vector).max(1);
        self.columns / each + i64::from(self.columns % each > 0)
    }

    /// (bytes of shared memory of a block, registers of a thread) that one buffer takes in a place; `bytes` are those of
    /// an element.
    pub fn taken(&self, form: AccessForm, place: RowPlace, bytes: i64) -> (i64, i64) {
        let row = self.columns.saturating_mul(bytes);
        match (place, form) {
            (RowPlace::Shared, AccessForm::PerColumn) => (row, 0),
            (RowPlace::Shared, _) => (row.saturating_mul(self.side_by_side), 0),
            (RowPlace::Registers, _) => (0, self.laps().saturating_mul(self.vector).saturating_mul((bytes + 3) / 4)),
            (RowPlace::Global, _) => (0, 0),
        }
    }
}

/// What is made in a kernel for another of its blocks stays there, and values per column are for all threads.
pub fn holdable(buffer: &str, form: AccessForm, made: bool, place: RowPlace) -> StreamHeld {
    let named = || buffer.to_string();
    if place == RowPlace::Registers {
        return unless(form != AccessForm::PerColumn, || StreamRefusal::PerColumn { buffer: named() });
    }
    let passes = made && form != AccessForm::PerColumn && place == RowPlace::Global;
    unless(!passes, || StreamRefusal::PassesHere { buffer: named() })
}

/// Rows side by side in shared memory need a loop of their own, which several row iterators do not give; and a block that
/// makes them for another would be computed by every team for all of them.
pub fn rows_apart(buffer: &str, place: RowPlace, side_by_side: i64, row_iters: usize, made: bool) -> StreamHeld {
    let apart = place != RowPlace::Shared || side_by_side == 1 || row_iters == 1 && !made;
    unless(apart, || StreamRefusal::RowsApart { buffer: buffer.into(), side_by_side })
}

/// The threads of a tile kernel are whole rows of its tile, and these rows divide it.
pub fn team_divides(threads: i64, side: i64, vector: i64) -> StreamHeld {
    let along = side / vector.max(1);
    let rows = threads / along.max(1);
    let whole = along > 0 && threads % along == 0 && rows > 0 && side % rows == 0;
    unless(whole, || StreamRefusal::TeamDivides { threads, along })
}

/// Rows that keep a part of an access's width would halve the accesses to the source, too.
pub fn pad_whole(pad: i64, vector: i64) -> StreamHeld {
    unless(vector > 0 && pad % vector == 0 || pad % 2 != 0, || StreamRefusal::Pad { pad, vector })
}
