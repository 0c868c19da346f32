//! Rows of Heron's table wherever schedules are named: `--given`, `why-not`.
use crate::scheduled::replayed;
use crate::workload::Workload;
use satune_ir::term::{Axis, Contraction};
use satune_ir::{files, Program};
use satune_rewrites::heron::{Row, RowError};
use std::path::Path;

/// Static shared memory of a block, bytes, which is all that TVM's kernels ask for (CUDA C++ Programming Guide, "Technical Specifications
/// per Compute Capability").
const STATIC_BYTES: u64 = 48 << 10;
/// Largest file that may be a row, bytes.
const LONGEST: u64 = 64 << 10;

/// The row that a text is.
///
/// # Errors
/// Where it is one with something wrong.
pub(super) fn row(text: &str) -> Result<Option<Row>, String> {
    Row::read(text).transpose().map_err(|e| e.to_string())
}

/// The row in a file.
///
/// # Errors
/// See [`row`].
pub(super) fn row_in(path: &Path) -> Result<Option<Row>, String> {
    files::read_text(path, LONGEST).map_or(Ok(None), |text| row(&text))
}

/// A row that is a schedule of a program.
pub(super) struct Scheduled {
    /// The program with that schedule.
    pub program: Program,
    /// The shared memory of TVM's kernel, against what it can have.
    pub shared: String,
    /// Whether that fits.
    pub fits: bool,
}

/// What a row makes of a program.
///
/// # Errors
/// Why it is no schedule of it.
pub(super) fn scheduled(row: &Row, problem: &dyn Workload) -> Result<Scheduled, String> {
    let none = || RowError::Product(format!("{} is no product", problem.name())).to_string();
    let contraction = problem.contraction().ok_or_else(none)?;
    let trace = row.trace(contraction).map_err(|e| e.to_string())?;
    let program = replayed(problem.program(), &trace).map_err(|e| e.to_string())?;
    let bytes = row.shared_bytes(contraction).map_err(|e| e.to_string())?;
    let shared = format!("shared memory as TVM lays it out: {}", bytes.against(STATIC_BYTES));
    Ok(Scheduled { program, shared, fits: bytes.sum <= STATIC_BYTES })
}

/// What of a row a plan can have, in the words of `why-not`.
pub(super) fn words(row: &Row, contraction: &Contraction) -> String {
    let part = |axis, parts: i64| contraction.extent(axis) / parts.max(1);
    let [m, n] = [part(Axis::M, row.blocks[0]), part(Axis::N, row.blocks[1])];
    let levels = row.parts.iter().take(usize::try_from(row.tiles_at).unwrap_or(0) + 1);
    let k = levels.fold(contraction.extent(Axis::K), |k, parts| k / parts[2].max(1));
    let warp = [m / row.sums[0].max(1), n / row.sums[1].max(1)];
    let threads = row.threads_x.saturating_mul(row.threads_y);
    format!("wmma, tile {m}x{n}x{k}, warp {}x{}, {threads} threads", warp[0], warp[1])
}
