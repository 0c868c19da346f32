//! Measured times as NDJSON, one object a line: what `db export` writes, and what anybody may write by hand.
//!
//! A line, or the `row` in it, needs `operator`, `plan` (an object, or a text that holds one) and `measured_ms`, `ms`,
//! or `times_ms`, whose median it is. `gpu` names where it was measured, and `script` holds the TVMScript of what was
//! explored from a file. `clock_mhz`, or `sm_mhz` in `conditions`, is the clock that was seen. Other fields are not read. Lines that are no measurement (the head of an export, a refused
//! candidate, another GPU, times that a simulator predicted) are counted by reason, not refused: an export holds
//! everything that was tried.
use crate::source::{self, Work};
use satune_extract::calibrate::{Measurement, Problem};
use satune_extract::Descriptor;
use satune_ir::term::{CoresPlan, Schedule};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

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
    let mut problems: HashMap<String, Arc<Problem>> = HashMap::new();
    for (at, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let error = |reason: String| MeasurementError { line: at + 1, reason };
        let row: Value = serde_json::from_str(line).map_err(|e| error(e.to_string()))?;
        let row = match row {
            Value::Object(mut line) => match line.remove("row") {
                Some(Value::Object(row)) => row,
                _ => line,
            },
            _ => return Err(error("it is no object".into())),
        };
        if row.contains_key("satune") && !row.contains_key("plan") {
            // The head of an export.
            continue;
        }
        let text_of = |names: &[&str]| names.iter().find_map(|n| row.get(*n)?.as_str());
        let mut skip = |reason: String| *out.skipped.entry(reason).or_default() += 1;
        if let Some(status) = text_of(&["status", "outcome"]).filter(|s| !GOOD.contains(s)) {
            skip(format!("outcome {}", text_of(&["reason"]).unwrap_or(status)));
            continue;
        }
        if let Some(device) = text_of(&["device"]).filter(|d| d.starts_with("simulator")) {
            skip(format!("predicted by a {device}, not measured"));
            continue;
        }
        if let Some(other) = text_of(&["gpu", "gpu_name"]).filter(|name| !is_of(name, gpu)) {
            skip(format!("measured on {other}"));
            continue;
        }
        let written = ["measured_ms", "ms", "median_ms"].iter().find_map(|n| row.get(*n)?.as_f64());
        let Some(ms) = written.or_else(|| median(row.get("times_ms")?)) else {
            skip("no measured time".into());
            continue;
        };
        let plan = match row.get("plan") {
            None | Some(Value::Null) => {
                skip("no plan".into());
                continue;
            }
            // A column of a table holds it as text.
            Some(Value::String(text)) => serde_json::from_str::<Value>(text),
            Some(value) => Ok(value.clone()),
        }
        .map_err(|e| error(format!("plan: {e}")))?;
        let plan = match Schedule::deserialize(&plan) {
            Ok(plan) => plan,
            // The error that names a field is that of the plan that it is not.
            Err(_) => CoresPlan::deserialize(&plan).map(Schedule::Cores).map_err(|e| error(format!("plan: {e}")))?,
        };
        let Some(operator) = text_of(&["operator"]) else {
            skip("no operator".into());
            continue;
        };
        if !problems.contains_key(operator) {
            // What was explored from a file has its program in the row: the file may be gone.
            let work = match text_of(&["script"]) {
                Some(script) => source::work_of_script(operator, script).map_err(|e| error(e.to_string()))?,
                None => source::operator(operator).map_err(|e| error(e.to_string()))?,
            };
            let problem = match work {
                Work::Contraction(problem) => Problem::Contraction(Box::new(problem.contraction)),
                Work::Streams(problem) => Problem::Streams(problem.streams),
            };
            problems.insert(operator.into(), Arc::new(problem));
        }
        if let Some(problem) = problems.get(operator) {
            // Of the driver's samples, else of the count of clocks right behind the last repeat.
            let sampled = row.get("conditions").and_then(|c| c.get("sm_mhz"));
            let clock_mhz = sampled.or(row.get("clock_mhz")).and_then(Value::as_f64);
            out.rows.push(Measurement { shape: operator.into(), problem: problem.clone(), plan, ms, clock_mhz });
        }
    }
    Ok(out)
}

/// The middle one of a list of times.
fn median(times: &Value) -> Option<f64> {
    let mut times: Vec<f64> = times.as_array()?.iter().filter_map(Value::as_f64).collect();
    times.sort_by(f64::total_cmp);
    let half = times.len() / 2;
    let upper = *times.get(half)?;
    Some(if times.len() % 2 == 1 { upper } else { (times.get(half - 1)? + upper) / 2.0 })
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
    fn rows_of_an_export_are_read() {
        let gpu = Descriptor::load("h200").unwrap();
        let plan = serde_json::json!({
            "blocks": [{"axis": "M", "extent": 1, "group": false}], "split_k": 1, "tile": {"m": 8, "n": 8}, "k_part": 8,
            "k_tile": 8, "threads": 32, "pipe": "Plain", "a": {"shared": null, "local": null},
            "b": {"shared": null, "local": null}, "vthread_outer": {"m": 1, "n": 1}, "warps": {"m": 1, "n": 1},
            "warps_m_outer": true, "vthread_inner": {"m": 1, "n": 1}, "lanes": {"m": 4, "n": 8}, "lanes_m_outer": true,
            "registers": {"m": 2, "n": 1}, "registers_m_outer": true, "k_step": 1, "unroll_k": false,
            "accumulators": true, "init_hoisted": true, "store_vector": 1,
        });
        let row = |device: &str, outcome: &str| {
            serde_json::json!({"digest": "x", "row": {
                "program": "00ff", "trace": "ff00", "device": device, "operator": "gemm:8,8,8,f32", "gpu": "h200",
                "plan": plan, "outcome": outcome, "reason": "oom", "times_ms": [3.0, 1.0, 2.0, 9.0],
            }})
        };
        let head = "{\"satune\":\"measurements\",\"version\":1}";
        let good = row("NVIDIA H200, 1980 MHz", "measured");
        let simulated = row("simulator of h200", "measured");
        let rejected = row("NVIDIA H200, 1980 MHz", "rejected");
        let found = read(&format!("{head}\n{good}\n{simulated}\n{rejected}\n"), &gpu).unwrap();
        assert_eq!(found.rows.iter().map(|r| r.ms).collect::<Vec<_>>(), [2.5]);
        let reasons: Vec<&str> = found.skipped.keys().map(String::as_str).collect();
        assert_eq!(reasons, ["outcome oom", "predicted by a simulator of h200, not measured"]);
    }

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
