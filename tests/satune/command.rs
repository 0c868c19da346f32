//! The command as a user meets it.
use std::process::{Command, Output};

pub fn satune(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_satune")).args(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn explore_writes_candidates_and_the_rest_reads_them() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    let run = satune(&[
        "explore",
        "gemm:64,48,32,f32",
        "--gpu",
        "a100",
        "--top",
        "3",
        "--out",
        out,
        "--json",
        "--no-compile",
    ]);
    assert!(run.status.success(), "{}", stderr(&run));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let written: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(format!("{out}/candidates.json")).unwrap()).unwrap();
    assert_eq!(report, written);
    assert_eq!(report["gpu"], "a100");
    assert_eq!(report["proved_optimal"], true);
    let candidates = report["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 3);
    for c in candidates {
        assert_eq!(c["simulated"]["ok"], true);
        for file in [&c["trace"], &c["tvm"], &c["kernels"][0]["file"]] {
            assert!(std::path::Path::new(out).join(file.as_str().unwrap()).is_file());
        }
    }
    for args in [
        vec!["show", "1"],
        vec!["why", "1"],
        vec!["check", "2"],
        vec!["emit", "3", "--as", "cuda"],
        vec!["emit", "1", "--as", "c"],
        vec!["emit", "1", "--as", "tvm"],
    ] {
        let mut args = args;
        args.extend(["--out", out]);
        let run = satune(&args);
        assert!(run.status.success() && !run.stdout.is_empty(), "{args:?}: {}", stderr(&run));
    }
    let why = satune(&["why", "1", "--out", out]);
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(why.contains("by  cache_write, reverse_compute_at"), "{why}");
    assert!(why.contains("what would help:") && why.contains("load_store"), "{why}");
}

#[test]
fn problems_of_one_result_have_kernels() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    for operator in ["gemm:1,1,1,f32", "gemm:1,1,300,f32,TN", "bmm:3,1,1,7,f16"] {
        let run = satune(&["explore", operator, "--top", "3", "--out", out, "--no-compile", "--json"]);
        assert!(run.status.success() && stderr(&run).is_empty(), "{operator}: {}", stderr(&run));
        let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
        assert_eq!(report["candidates"].as_array().unwrap().len(), 3, "{operator}");
    }
}

#[test]
fn bad_input_gets_one_message_and_exit_code_2() {
    let parentheses = format!("gemm:{},1,1,f32", "(".repeat(100_000));
    let cases: Vec<(Vec<&str>, i32, &str)> = vec![
        (vec!["explore", "gemm:0,1,1,f32"], 2, "M is 0"),
        (vec!["explore", "gemm:-1,1,1,f32"], 2, "M is -1"),
        (vec!["explore", "gemm:1.5,1,1,f32"], 2, "not a whole number"),
        (vec!["explore", "gemm:99999999999999999999,1,1,f32"], 2, "not a whole number"),
        (vec!["explore", "conv:1,1"], 2, "unknown operator"),
        (vec!["explore", "gemm:1,1,1,f99"], 2, "unknown type"),
        (vec!["explore", "gemm:1,1,1,f32,QQ"], 2, "unknown layout"),
        (vec!["explore", "gemm:1,1,1,f32", "--gpu", "h2000"], 2, "did you mean `h200`"),
        (vec!["explore", "gemm:1,1,1,f32", "--top", "0"], 2, "0 is not in"),
        (vec!["explore", &parentheses], 2, "not a whole number"),
        (vec!["explore", "gemm:16,16,16,f32", "--out", "/proc/nowhere"], 3, "output folder /proc/nowhere"),
        (vec!["show", "1", "--out", "/nonexistent"], 2, "run `satune explore` first"),
        (vec!["why-not", "gemm:16,16,16,f32", "blok 1"], 2, "`blok` is not known"),
        (vec!["nonsense"], 2, "unrecognized subcommand"),
    ];
    for (args, code, part) in cases {
        let run = satune(&args);
        let text = stderr(&run);
        assert_eq!(run.status.code(), Some(code), "{text}");
        assert!(text.contains(part), "{text}");
        assert!(text.len() < 1000 && !text.contains("panicked"), "{text}");
    }
}

#[test]
fn a_program_that_reads_outside_of_its_buffers_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sum.py");
    let text = "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((2, 8), \"float32\"), S: T.Buffer((2,), \"float32\")):\n    for i, j in T.grid(2, 8):\n        with T.sblock(\"sum\"):\n            vi, vj = T.axis.remap(\"SR\", [i, j])\n            with T.init():\n                S[vi] = T.float32(0)\n            S[vi] = S[vi] + A[vi, vj + 1]\n";
    std::fs::write(&file, text).unwrap();
    let run = satune(&["count", file.to_str().unwrap()]);
    assert_eq!(run.status.code(), Some(2), "{}", stderr(&run));
    assert!(stderr(&run).contains("wrong before anything is scheduled: an element of A outside"), "{}", stderr(&run));
}

/// `satune ... 2>&1 | head` closes both ends early.
#[test]
fn a_reader_of_errors_that_went_away_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let arguments = ["explore", "gemm:0,1,1,f32"];
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_satune")).args(arguments).stderr(writer).status().unwrap();
    assert_eq!(run.code(), Some(2));
}

#[test]
fn stored_candidates_are_compared_and_reported_again() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    let args = ["explore", "gemm:128,64,64,f32", "--top", "2", "--diverse", "--out", out, "--no-compile"];
    let run = satune(&args);
    assert!(run.status.success(), "{}", stderr(&run));
    let page = std::path::Path::new(out).join("report.html");
    let first = std::fs::read_to_string(&page).unwrap();
    std::fs::remove_file(&page).unwrap();
    let run = satune(&["report", "--out", out]);
    assert!(run.status.success(), "{}", stderr(&run));
    assert_eq!(std::fs::read_to_string(&page).unwrap(), first, "the stored report makes the same page");

    let run = satune(&["diff", "1", "2", "--out", out]);
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    for part in ["- ", ", rank 1, of gemm:128,64,64,f32 on h200", "schedule:", "time by part, ms:", "CUDA:", "@@"] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    let run = satune(&["diff", "1", "1", "--out", out, "--json"]);
    let same: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(same["cuda"], "");
    assert_eq!(same["parts"]["predicted"][0], same["parts"]["predicted"][1]);
    let run = satune(&["show", "1", "--out", out]);
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(text.contains("loops:\n  grid   grid of ") && text.contains("multiply-add\n"), "{text}");
    let run = satune(&["diff", "1", "99999", "--out", out]);
    assert_eq!(run.status.code(), Some(2));
}

#[test(slow)]
fn a_descriptor_is_calibrated_to_measurements() {
    use rand::SeedableRng;
    let truth = {
        let mut gpu = satune_extract::Descriptor::load("h200").unwrap();
        gpu.issue_efficiency = 0.7;
        gpu.dram_gbs = 3600.0;
        gpu
    };
    let mut rng = rand::rngs::StdRng::seed_from_u64(1);
    let mut lines = String::new();
    for operator in ["gemm:1024,1024,1024,f32", "gemm:128,4096,128,f32", "gemm:256,256,4096,f32"] {
        let problem = satune::operators::parse(operator).unwrap();
        let space = crate::support::space(&problem.contraction);
        let counts = satune_extract::Counts::of(&space);
        let mut made = 0;
        while made < 24 {
            let Some(term) = counts.sample(&space, &mut rng) else { continue };
            let plan = satune_ir::term::CoresPlan::from_term(&term, &problem.contraction).unwrap();
            let Ok(cost) = satune_extract::cost(&plan, &problem.contraction, &truth) else { continue };
            made += 1;
            let row = serde_json::json!({ "operator": operator, "gpu": "h200", "plan": plan, "measured_ms": cost.ms });
            lines.push_str(&format!("{row}\n"));
        }
    }
    lines.push_str("{\"operator\":\"gemm:8,8,8,f32\",\"gpu\":\"h200\",\"status\":\"timeout\"}\n");
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.ndjson");
    let fitted = folder.path().join("fitted.toml");
    std::fs::write(&rows, lines).unwrap();
    let run = satune(&["calibrate", rows.to_str().unwrap(), "--gpu", "h200", "--out", fitted.to_str().unwrap()]);
    assert!(run.status.success(), "{}", stderr(&run));
    assert!(stderr(&run).contains("1 line left out: outcome timeout"), "{}", stderr(&run));
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(text.contains("72 measurements of 3 shapes") && text.contains("left out"), "{text}");
    let read = satune_extract::Descriptor::load(fitted.to_str().unwrap()).unwrap();
    let rate = |g: &satune_extract::Descriptor| g.clock_mhz * g.issue_efficiency;
    assert!((rate(&read) / rate(&truth) - 1.0).abs() < 0.03, "{text}");
    let run = satune(&["count", "gemm:16,16,16,f32", "--gpu", fitted.to_str().unwrap()]);
    assert!(run.status.success(), "{}", stderr(&run));

    std::fs::write(&rows, "{\"operator\":").unwrap();
    let run = satune(&["calibrate", rows.to_str().unwrap(), "--out", fitted.to_str().unwrap()]);
    assert_eq!(run.status.code(), Some(2), "{}", stderr(&run));
    assert!(stderr(&run).contains("rows.ndjson: line 1: "), "{}", stderr(&run));
    std::fs::write(&rows, "").unwrap();
    let run = satune(&["calibrate", rows.to_str().unwrap(), "--out", fitted.to_str().unwrap()]);
    assert_eq!(run.status.code(), Some(1), "{}", stderr(&run));
}
