//! Cases of calls with TVM's verdicts, and whether ours are the same.
use satune_ir::{structural, tvmscript};
use satune_rewrites::replay::replay;
use satune_rewrites::Call;
use serde::Deserialize;

/// Calls on a program, and what TVM says of them.
#[derive(Deserialize)]
pub struct Case {
    pub name: String,
    pub script: String,
    pub calls: Vec<Call>,
    /// One for each call that TVM made; it stops at the first that it refuses.
    #[serde(default)]
    pub expected: Vec<Expected>,
    /// TVM's program, where it refuses none.
    pub final_script: Option<String>,
}

/// TVM's verdict on a call.
#[derive(Deserialize)]
pub struct Expected {
    pub ok: bool,
    pub error_class: Option<String>,
    pub fast: Option<String>,
}

/// What differs from TVM, if anything.
pub fn judge(case: &Case) -> Result<(), String> {
    let program = tvmscript::parse(&case.script).map_err(|e| format!("source does not parse: {e}"))?;
    let (results, schedule) = replay(&program, &case.calls).map_err(|e| e.to_string())?;
    for ((call, expected), result) in case.calls.iter().zip(&case.expected).zip(&results) {
        match (expected.ok, result) {
            (true, Ok(())) => {}
            (true, Err(e)) => return Err(format!("{}: TVM accepts, we refuse: {}", call.op, e.detail)),
            (false, Ok(())) => {
                return Err(format!("{}: we accept, TVM refuses: {}", call.op, expected.fast.as_deref().unwrap_or("")))
            }
            (false, Err(e)) => {
                let (class, fast) = (expected.error_class.as_deref(), expected.fast.as_deref());
                if class.is_some_and(|c| c != e.class.to_string()) || fast.is_some_and(|f| f != e.fast) {
                    return Err(format!("{}: TVM says {class:?} {fast:?}, we say {} {:?}", call.op, e.class, e.fast));
                }
            }
        }
    }
    if results.len() != case.expected.len() {
        return Err(format!("{} calls made, TVM made {}", results.len(), case.expected.len()));
    }
    let Some(text) = &case.final_script else { return Ok(()) };
    let theirs = tvmscript::parse(text).map_err(|e| format!("TVM's program does not parse: {e}"))?;
    structural::equal(schedule.program(), &theirs).map_err(|e| {
        format!("final program differs: {e:?}\n{}\n--- TVM's\n{text}", tvmscript::print(schedule.program()))
    })
}
