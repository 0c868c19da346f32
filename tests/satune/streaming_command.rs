//! Streaming programs through the command: measured, stored, resumed, benched, reported, compared, asked about.
use crate::faults::{scripted, SATUNE};
use satune::device::ScriptedOutcome;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const SOFTMAX: &str = "softmax:16,256,f32";

fn satune(folder: &Path, args: &[&str]) -> Output {
    Command::new(SATUNE).args(args).current_dir(folder).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&text(output)).unwrap()
}

#[test]
fn they_are_measured_stored_and_found_again_by_every_strategy() {
    let (folder, _, _) = scripted(&[ScriptedOutcome::Near]);
    let script: [&str; 4] = ["--device", "scripted", "--script", "script.json"];
    for strategy in ["analytical", "random", "learned"] {
        let args = [
            "explore",
            SOFTMAX,
            "--no-compile",
            "--json",
            "--strategy",
            strategy,
            "--trials",
            "12",
            "--top",
            "4",
            "--out",
            strategy,
        ];
        let args = [&args[..], &script[..]].concat();
        let first = json(&satune(folder.path(), &args));
        let measured = &first["measured"];
        assert_eq!((&measured["trials"], &measured["reused"]), (&12.into(), &0.into()), "{strategy}");
        assert_eq!(measured["kind"], "scripted");
        let list = first["candidates"].as_array().unwrap();
        assert_eq!(list.len(), 4, "{strategy}");
        let times: Vec<f64> = list.iter().map(|c| c["measured"]["ms"].as_f64().unwrap()).collect();
        assert!(times.windows(2).all(|w| w[0] <= w[1]), "{strategy}: {times:?}");
        for c in list {
            let sum = c["predicted_kernel_ms"].as_f64().unwrap() + c["launch_ms"].as_f64().unwrap();
            assert!((sum - c["predicted_ms"].as_f64().unwrap()).abs() < 1e-12);
            assert_eq!(c["simulated"]["agreement"], "roundoff");
            assert!(!c["derivation"].as_array().unwrap().is_empty());
        }
        let again = json(&satune(folder.path(), &args));
        assert_eq!(again["measured"]["reused"], 12, "{strategy}");
        assert_eq!(again["candidates"][0]["id"], first["candidates"][0]["id"], "{strategy}");
    }
    let rows = json(&satune(folder.path(), &["db", "check", "--store", "random/store.db", "--json"]));
    assert_eq!((rows["rows"].as_u64(), rows["faults"].as_array().map(Vec::len)), (Some(12), Some(0)));
    // A fit takes them.
    let export = ["db", "export", "--store", "random/store.db", "--to", "rows.ndjson"];
    assert!(satune(folder.path(), &export).status.success());
    let fit = satune(folder.path(), &["calibrate", "rows.ndjson", "--out", "fitted.toml"]);
    assert!(fit.status.success(), "{}", String::from_utf8_lossy(&fit.stderr));
    assert!(std::fs::read_to_string(folder.path().join("fitted.toml")).unwrap().contains("dram_gbs"));
}

#[test]
fn the_report_shows_compares_and_benches_them() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let table = text(&satune(at, &["explore", SOFTMAX, "--no-compile", "--top", "3", "--device", "simulator"]));
    for part in ["to roundoff", "not measured on a GPU", "launch", "report.html"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let exact = text(&satune(at, &["explore", "mean:16,256,f32", "--no-compile", "--top", "1", "--out", "mean"]));
    assert!(exact.contains("exact") && exact.contains("no conflicts"), "{exact}");
    let page = std::fs::read_to_string(at.join("satune-out/report.html")).unwrap();
    for part in
        [SOFTMAX, "Loop tree", "combine over", "up to roundoff", "of a copy in DRAM", "Memory traffic", "threadIdx.x"]
    {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("FLOP/s") && !page.contains("Roofline") && !page.contains("https://"));
    let shown = text(&satune(at, &["show", "1"]));
    for part in ["loops:", "grid of", "launching 0.0030", "equal up to roundoff"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let difference = text(&satune(at, &["diff", "1", "3"]));
    for part in ["schedule:", "time by part, ms:", "global sectors over the least"] {
        assert!(difference.contains(part), "{part}: {difference}");
    }
    assert!(text(&satune(at, &["report"])).contains("report.html"));
    let benched =
        json(&satune(at, &["bench", SOFTMAX, "gemm:16,16,16,f32", "--top", "2", "--device", "simulator", "--json"]));
    let row = &benched["rows"][0];
    let (ms, gbs) = (row["ms"].as_f64().unwrap(), row["gbs"].as_f64().unwrap());
    // 16 x 256 elements of 4 bytes, read and written.
    assert!((gbs * ms * 1e6 / 32_768.0 - 1.0).abs() < 1e-9, "{gbs} {ms}");
    assert_eq!((row["unit"].as_str(), benched["rows"][1]["unit"].as_str()), (Some("B/s"), Some("FLOP/s")));
    let page = std::fs::read_to_string(at.join("satune-out/report.html")).unwrap();
    assert!(page.contains("id=\"p1c1\"") && page.contains("id=\"p2c1\"") && page.contains(SOFTMAX));
    let cuda = satune(at, &["explore", SOFTMAX, "--device", "cuda"]);
    let said = String::from_utf8_lossy(&cuda.stderr).into_owned();
    // They are measured where there is a GPU.
    assert!(
        cuda.status.success() || cuda.status.code() == Some(3) && said.contains("use --device simulator"),
        "{said}"
    );
}

#[test]
fn questions_are_answered_and_refusals_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let ask = |program: &str, questions: &[&str]| -> Vec<Value> {
        let args = [&["why-not", program, "--json"], questions].concat();
        json(&satune(at, &args)).as_array().unwrap().clone()
    };
    let yes = [
        "kernels 1, hold A registers, threads 64",
        "inline exp",
        "kernel max+exp, sum: vector 4",
        "exp: as flat, threads 32",
    ];
    for (question, answer) in yes.iter().zip(ask(SOFTMAX, &yes)) {
        assert_eq!(answer["in_space"], true, "{question}: {answer:#}");
        assert!(answer["asked"]["predicted_ms"].as_f64() >= answer["best"]["predicted_ms"].as_f64(), "{question}");
    }
    let no = [
        (SOFTMAX, "threads 96", "96 threads (the menu is [32, 64, 128, 256, 512, 1024])"),
        (SOFTMAX, "rows 3", "3 rows of a block (the menu is"),
        (SOFTMAX, "vector 8", "8 elements of A take 32 bytes: an access has 16 bytes at most"),
        (SOFTMAX, "inline max", "max is not inlined: "),
        (SOFTMAX, "rows 32", "32 rows of a block do not divide 16 rows"),
        (SOFTMAX, "threads 1024", "1024 threads with 1 elements each leave a warp without any of a row's 256"),
        (SOFTMAX, "threads 256, side-by-side 8", "256 threads for each of 8 rows are 2048"),
        (SOFTMAX, "tile 32", "no block of the program is a transpose of one buffer"),
        (SOFTMAX, "parts 3", "a power of two of parts"),
        (SOFTMAX, "parts 2", "have 128 elements each; 256 are the least"),
        (SOFTMAX, "keep exp, kernels 1, hold power global", "never through global memory"),
        (SOFTMAX, "kernel max+divide", "max + divide do not follow each other"),
        ("rowsum:4096,4096,f32", "parts 2", "4096 rows of sum in 2 parts are 8192; up to 4096 are split"),
        ("rowsum:2,1001,f32", "parts 2", "2 parts do not divide the 1001 columns of sum"),
        ("rowsum:2,1001,f32", "vector 2", "2 elements do not divide rows of 1001"),
        ("transpose:64,64,f32", "tile 64, pad 2, vector 4", "rows padded by 2 keep a part of an access of 4"),
        ("transpose:64,64,f32", "rows 2", "it has no kernel of rows"),
        ("transpose:64,64,f32", "tile 16, threads 512, vector 1", "512 threads on rows of 16 accesses"),
    ];
    for (program, question, part) in no {
        let answer = ask(program, &[question]).remove(0);
        assert_eq!(answer["in_space"], false, "{question}: {answer:#}");
        assert!(answer["reasons"].to_string().contains(part), "{program}, {question}: {}", answer["reasons"]);
    }
    let wrong = satune(at, &["why-not", SOFTMAX, "warps 2x2"]);
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(wrong.status.code() == Some(2) && said.contains("known are inline BLOCK"), "{said}");
    // What was found is in the space, by its trace and by its plan, at the rank that it has.
    let report = json(&satune(
        at,
        &["explore", SOFTMAX, "--no-compile", "--twins", "--top", "2", "--device", "none", "--json", "--out", "out"],
    ));
    for rank in [1, 2] {
        let candidate = &report["candidates"][rank - 1];
        let trace = format!("out/{}", candidate["trace"].as_str().unwrap());
        std::fs::write(at.join("plan.json"), candidate["plan"].to_string()).unwrap();
        let plan = candidate["plan"].to_string();
        for answer in ask(SOFTMAX, &[&plan, "--trace", &trace, "--plan", "plan.json"]) {
            assert_eq!((&answer["in_space"], &answer["members"]), (&true.into(), &"1".into()), "{answer:#}");
            assert_eq!(answer["asked"]["plan"], candidate["plan"]);
            assert!(answer["rank"].as_u64().unwrap() as usize <= rank, "{answer:#}");
        }
    }
    // A trace that was changed by hand is no candidate's.
    let changed = at.join("out").join(report["candidates"][0]["trace"].as_str().unwrap());
    let mut trace: Value = serde_json::from_str(&std::fs::read_to_string(&changed).unwrap()).unwrap();
    trace["calls"].as_array_mut().unwrap().pop();
    std::fs::write(&changed, trace.to_string()).unwrap();
    let refused = satune(at, &["why-not", SOFTMAX, "--trace", changed.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("its calls are not those of candidate"), "{said}");
    // A plan of no menu is not in the space, and a product's is of another kind.
    let mut plan = report["candidates"][0]["plan"].clone();
    plan["kernels"][0]["Row"]["threads"] = 96.into();
    std::fs::write(at.join("plan.json"), plan.to_string()).unwrap();
    assert_eq!(ask(SOFTMAX, &["--plan", "plan.json"])[0]["in_space"], false);
    let other = satune(at, &["why-not", "gemm:16,16,16,f32", "--plan", "plan.json"]);
    assert!(other.status.code() == Some(2), "{}", String::from_utf8_lossy(&other.stderr));
}
