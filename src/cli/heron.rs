//! Rows of Heron's table wherever schedules are named: `--given`, `why-not`.
use crate::scheduled::replayed;
use crate::workload::Workload;
use satune_ir::Program;
use satune_rewrites::heron::{Measured, Record, Row, RowError, Tile};

/// Static shared memory of a block, bytes, which is all that TVM's kernels ask for (CUDA C++ Programming Guide, "Technical Specifications
/// per Compute Capability").
const STATIC_BYTES: u64 = 48 << 10;

/// The rows that a text has.
///
/// # Errors
/// Where it has some with something wrong.
pub(super) fn rows(text: &str) -> Result<Option<Vec<Record>>, String> {
    Record::read(text).transpose().map_err(|e| e.to_string())
}

/// The row that is meant where one is asked for: the fastest that Heron measured.
///
/// # Errors
/// Where there are several and no times.
pub(super) fn fastest(mut records: Vec<Record>) -> Result<(Row, String), String> {
    let of = records.len();
    if of > 1 {
        let seconds = |r: &Record| if let Measured::Seconds(s) = r.measured { s } else { f64::INFINITY };
        records.retain(|r| seconds(r).is_finite());
        records.sort_by(|x, y| seconds(x).total_cmp(&seconds(y)));
    }
    let none = || format!("none of its {of} rows has a time, by which one could be taken; give one row");
    let record = records.into_iter().next().ok_or_else(none)?;
    let mut told = "row of Heron's".to_string();
    if of > 1 {
        told += &format!(", the fastest of {of}");
    }
    told += &said_of(&record, of);
    Ok((record.row, told))
}

/// Where a record stands, and the time that Heron measured.
pub(super) fn said_of(record: &Record, of: usize) -> String {
    let line = if of > 1 { format!(", line {}", record.line) } else { String::new() };
    let time = match record.measured {
        Measured::NotSaid => String::new(),
        Measured::Failed => ", which did not run there".into(),
        Measured::Seconds(seconds) => format!(", measured there at {:.4} ms", seconds * 1e3),
    };
    line + &time
}

/// A row that is a schedule of a program.
pub(super) struct Scheduled {
    /// The program with that schedule.
    pub program: Program,
    /// The shared memory of TVM's kernel, against what it can have, and vectors that are none.
    pub told: String,
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
    let scattered = row.scattered(contraction).map_err(|e| e.to_string())?;
    let told = format!("shared memory as TVM lays it out: {}", bytes.against(STATIC_BYTES));
    let told = scattered.into_iter().fold(told, |told, vectors| format!("{told}; {vectors}"));
    let Tile { block: [m, n, k], warp: [warp_m, warp_n], threads } =
        row.tile(contraction).map_err(|e| e.to_string())?;
    let words = format!("wmma, tile {m}x{n}x{k}, warp {warp_m}x{warp_n}, {threads} threads");
    Ok(Scheduled { program, told, fits: bytes.sum <= STATIC_BYTES, words })
}
