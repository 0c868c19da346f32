//! Rows of Heron's table wherever schedules are named: `--given`, `why-not`.
use crate::scheduled::replayed;
use crate::workload::Workload;
use satune_ir::Program;
use satune_rewrites::heron::{Row, RowError, Tile};

/// Static shared memory of a block, bytes, which is all that TVM's kernels ask for (CUDA C++ Programming Guide, "Technical Specifications
/// per Compute Capability").
const STATIC_BYTES: u64 = 48 << 10;

/// The row that a text is.
///
/// # Errors
/// Where it is one with something wrong.
pub(super) fn row(text: &str) -> Result<Option<Row>, String> {
    Row::read(text).transpose().map_err(|e| e.to_string())
}

/// A row that is a schedule of a program.
pub(super) struct Scheduled {
    /// The program with that schedule.
    pub program: Program,
    /// The shared memory of TVM's kernel, against what it can have.
    pub shared: String,
    /// Whether that fits.
    pub fits: bool,
    /// What a plan can have of it, in the words of `why-not`.
    pub words: String,
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
    let Tile { block: [m, n, k], warp: [warp_m, warp_n], threads } =
        row.tile(contraction).map_err(|e| e.to_string())?;
    let words = format!("wmma, tile {m}x{n}x{k}, warp {warp_m}x{warp_n}, {threads} threads");
    Ok(Scheduled { program, shared, fits: bytes.sum <= STATIC_BYTES, words })
}
