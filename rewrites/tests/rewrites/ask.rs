//! Puts questions to TVM, where it is installed.
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Puts the requests to TVM (scripts/tvm_check.py says what they are); leaves the test where it is not there.
pub fn ask(name: &str, requests: &[Value]) -> Vec<Value> {
    let tvm = satune_testing::root().join("target/tvm");
    if !tvm.join("tvm").is_dir() {
        satune_testing::missing("TVM", "tvm");
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (questions, answers) = (folder.join(format!("{name}.requests")), folder.join(format!("{name}.answers")));
    let lines: String = requests.iter().map(|r| format!("{r}\n")).collect();
    std::fs::write(&questions, lines).expect("requests are written");
    let script = satune_testing::root().join("scripts/tvm_check.py");
    let output = Command::new("python3").arg(script).args([&tvm, &questions, &answers]).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(answers).expect("answers");
    let answers: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("an answer")).collect();
    assert_eq!(answers.len(), requests.len());
    answers
}
