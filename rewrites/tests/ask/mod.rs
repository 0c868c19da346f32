//! Puts questions to TVM, where it is installed.
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the workspace.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let up = if here.join("scripts").is_dir() { here.into() } else { here.join("..") };
    up.canonicalize().expect("the workspace")
}

/// Puts the requests to TVM (scripts/tvm_check.py says what they are); None, with a word why, where it is not there.
pub fn ask(name: &str, requests: &[Value]) -> Option<Vec<Value>> {
    let tvm = root().join("target/tvm");
    if !tvm.join("tvm").is_dir() {
        println!("skipped: TVM is not in target/tvm (scripts/fetch-tvm)");
        return None;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (questions, answers) = (folder.join(format!("{name}.requests")), folder.join(format!("{name}.answers")));
    let lines: String = requests.iter().map(|r| format!("{r}\n")).collect();
    std::fs::write(&questions, lines).expect("requests are written");
    let script = root().join("scripts/tvm_check.py");
    let output = match Command::new("python3").arg(script).args([&tvm, &questions, &answers]).output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: python3: {error}");
            return None;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(answers).expect("answers");
    let answers: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("an answer")).collect();
    assert_eq!(answers.len(), requests.len());
    Some(answers)
}
