//! Measured times as NDJSON, one object a line: what `db export` writes, and what anybody may write by hand.
//!
//! A line needs `operator`, `plan` (an object, or a text that holds one) and `measured_ms` (or `ms`); `gpu` names where
//! it was measured, and `program` holds the TVMScript of what was explored from a file. Other fields are not read. Lines that are no measurement (a refused candidate, another GPU) are
//! counted by reason, not refused: an export holds everything that was tried.
use crate::{operators, source};
use satune_extract::calibrate::Measurement;
use satune_extract::Descriptor;
use satune_ir::term::Plan;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

/// What a file holds.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    /// In the file's order.
    pub rows: Vec<Measurement>,
    /// Lines left out, by reason.
    pub skipped: BTreeMap<String, usize>,
}

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct MeasurementError {
    /// From 1.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

/// Outcomes that a line with a time may have.
const GOOD: [&str; 3] = ["ok", "measured", "correct"];

/// Reads the measurements of a GPU.
///
/// # Errors
/// A line that is no JSON object, an operator that cannot be read, a plan that is none.
pub fn read(text: &str, gpu: &Descriptor) -> Result<Measurements, MeasurementError> {
    let mut out = Measurements::default();
    let mut problems: HashMap<String, operators::Problem> = HashMap::new();
    for (at, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let error = |reason: String| MeasurementError { line: at + 1, reason };
        let row: Value = serde_json::from_str(line).map_err(|e| error(e.to_string()))?;
        let Value::Object(row) = row else { return Err(error("it is no object".into())) };
        let text_of = |names: &[&str]| names.iter().find_map(|n| row.get(*n)?.as_str());
        let mut skip = |reason: String| *out.skipped.entry(reason).or_default() += 1;
        if let Some(status) = text_of(&["status", "outcome"]).filter(|s| !GOOD.contains(s)) {
            skip(format!("outcome {status}"));
            continue;
        }
        if let Some(other) = text_of(&["gpu", "gpu_name"]).filter(|name| !is_of(name, gpu)) {
            skip(format!("measured on {other}"));
            continue;
        }
        let Some(ms) = ["measured_ms", "ms", "median_ms"].iter().find_map(|n| row.get(*n)?.as_f64()) else {
            skip("no measured time".into());
            continue;
        };
        let plan = match row.get("plan") {
            None | Some(Value::Null) => {
                skip("no plan".into());
                continue;
            }
            // A column of a table holds it as text.
            Some(Value::String(text)) => serde_json::from_str::<Plan>(text),
            Some(value) => Plan::deserialize(value),
        }
        .map_err(|e| error(format!("plan: {e}")))?;
        let Some(operator) = text_of(&["operator"]) else {
            skip("no operator".into());
            continue;
        };
        if !problems.contains_key(operator) {
            // What was explored from a file has its program in the row: the file may be gone.
            let problem = match text_of(&["program", "script"]) {
                Some(script) => source::of_script(operator, script).map_err(|e| error(e.to_string()))?,
                None => operators::parse(operator).map_err(|e| error(e.to_string()))?,
            };
            problems.insert(operator.into(), problem);
        }
        if let Some(problem) = problems.get(operator) {
            out.rows.push(Measurement { shape: operator.into(), contraction: problem.contraction.clone(), plan, ms });
        }
    }
    Ok(out)
}

/// Whether a name is the descriptor's: its short name, with or without `-calibrated`, or its full name.
fn is_of(name: &str, gpu: &Descriptor) -> bool {
    let plain = |n: &str| n.trim_end_matches("-calibrated").to_lowercase();
    let name = plain(name);
    name == plain(&gpu.name) || name == gpu.full_name.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_measurement_are_counted_and_nonsense_is_refused() {
        let gpu = Descriptor::load("h200").unwrap();
        let text = "\n{\"operator\":\"gemm:8,8,8,f32\",\"gpu\":\"a100\",\"measured_ms\":1}\n\
            {\"operator\":\"gemm:8,8,8,f32\",\"status\":\"timeout\"}\n{\"gpu\":\"NVIDIA H200\",\"ms\":2.0}\n{}\n";
        let found = read(text, &gpu).unwrap();
        assert!(found.rows.is_empty());
        let reasons: Vec<(&str, usize)> = found.skipped.iter().map(|(r, n)| (r.as_str(), *n)).collect();
        let want = [("measured on a100", 1), ("no measured time", 1), ("no plan", 1), ("outcome timeout", 1)];
        assert_eq!(reasons, want);
        assert_eq!(read("[]", &gpu).unwrap_err().to_string(), "line 1: it is no object");
        let error = read("\n{\"ms\":1,\"plan\":{}}", &gpu).unwrap_err().to_string();
        assert!(error.starts_with("line 2: plan: missing field"), "{error}");
    }
}
