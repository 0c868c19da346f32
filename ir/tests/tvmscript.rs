//! Every program of `tests/cases` is read, printed, and read again as the same program.
use satune_ir::{structural, tvmscript};
use std::path::PathBuf;

/// The scripts of the cases, with a name each.
fn scripts() -> Vec<(String, String)> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/cases");
    let mut out = Vec::new();
    for file in ["tvm_verdicts.jsonl", "stricter.jsonl"] {
        let text = std::fs::read_to_string(path.join(file)).expect("cases");
        for line in text.lines() {
            let case: serde_json::Value = serde_json::from_str(line).expect("a case");
            for field in ["script", "final_script"] {
                if let Some(script) = case[field].as_str() {
                    out.push((format!("{} {field}", case["name"]), script.to_string()));
                }
            }
        }
    }
    for stage in std::fs::read_dir(path.join("staircase")).expect("stages").flatten() {
        for file in ["program.py", "final.py"] {
            let script = std::fs::read_to_string(stage.path().join(file)).expect("a program");
            out.push((format!("{} {file}", stage.file_name().to_string_lossy()), script));
        }
    }
    out
}

#[test]
fn every_case_survives_printing() {
    let all = scripts();
    let mut failures = Vec::new();
    for (name, script) in &all {
        let result = tvmscript::parse_named(name, script).map_err(|e| e.to_string()).and_then(|program| {
            let text = tvmscript::print(&program);
            let again = tvmscript::parse(&text).map_err(|e| format!("{e}\n{text}"))?;
            structural::equal(&program, &again).map_err(|e| format!("{e}\n{text}"))
        });
        if let Err(why) = result {
            failures.push(format!("{name}: {why}"));
        }
    }
    println!("{} programs", all.len());
    assert!(
        failures.is_empty(),
        "{} of {}:\n{}",
        failures.len(),
        all.len(),
        failures[..failures.len().min(8)].join("\n")
    );
}
