//! A run is a transaction: its results are there whole or not at all, and a run is finished when they are.
use crate::faults::{explore_of, scripted, top, SATUNE};
use satune::device::ScriptedOutcome as Outcome;
use satune::store::Store;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

const PROGRAM: &str = "rowsum:16,256,f32";
const TRIALS: u32 = 12;

fn satune(folder: &Path, args: &[&str]) -> Output {
    Command::new(SATUNE).args(args).current_dir(folder).output().unwrap()
}

fn said(run: &Output) -> String {
    String::from_utf8_lossy(&run.stderr).into_owned()
}

/// Every file that the report in a folder names is there.
fn is_whole(folder: &Path) {
    let text = std::fs::read_to_string(folder.join("candidates.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    for c in report["candidates"].as_array().unwrap() {
        for file in [&c["trace"], &c["tvm"], &c["scheduled"], &c["kernels"][0]["file"]] {
            assert!(folder.join(file.as_str().unwrap()).is_file(), "{file} is not in {}", folder.display());
        }
    }
    assert!(folder.join("report.html").is_file() && folder.join("program.py").is_file());
}

/// Ends runs at each point of writing their results, by a kill or by a full disk; some of the points, or all of them where
/// `SATUNE_KILLS` is set.
#[test]
fn a_run_ended_while_its_results_are_written_is_resumed_to_the_same() {
    let all = std::env::var_os("SATUNE_KILLS").is_some();
    let (whole, _, _) = scripted(&[Outcome::Near]);
    let expected = top(&explore_of(PROGRAM, whole.path(), TRIALS).output().unwrap().stdout);
    for fault in ["kill", "full"] {
        let (mut ended, mut points) = (0, 0);
        for point in 1..1000 {
            // The first ones write one candidate's file after the other.
            if !all && point < 34 && point % 16 != 1 {
                continue;
            }
            let (folder, _, _) = scripted(&[Outcome::Near]);
            let (file, out) = (folder.path().join("store.db"), folder.path().join("out"));
            let mut explore = explore_of(PROGRAM, folder.path(), TRIALS);
            let run = explore.env("SATUNE_FAULT_AT", format!("{fault}:{point}")).output().unwrap();
            if run.status.success() {
                points = point - 1;
                break;
            }
            ended += 1;
            if fault == "full" {
                assert_eq!(run.status.code(), Some(3), "{}", said(&run));
                assert!(said(&run).contains("no space left") && said(&run).contains("satune resume 1 --store"));
            }
            // What is there is whole; the run is not at its end.
            if out.join("candidates.json").exists() {
                is_whole(&out);
            }
            assert!(Store::existing(&file).unwrap().run_to_resume(None).is_ok(), "{fault} at {point}");
            let resumed = Command::new(SATUNE).args(["resume", "--json", "--store"]).arg(&file).output().unwrap();
            assert_eq!(top(&resumed.stdout), expected, "{fault} at {point}: {}", said(&resumed));
            is_whole(&out);
            assert_eq!(top(&std::fs::read(out.join("candidates.json")).unwrap()), expected);
            let names = std::fs::read_dir(out.join("runs")).unwrap().map(|e| e.unwrap().file_name());
            assert!(names.into_iter().all(|n| !n.to_string_lossy().starts_with('.')), "a partial folder is left");
            assert!(Store::existing(&file).unwrap().run_to_resume(None).is_err(), "it is at its end now");
        }
        println!("{fault}: {ended} of {ended} resumed to the same, {points} points");
        assert!(points > 34 && ended >= if all { 20 } else { 3 }, "{ended} of {points}");
    }
}

#[test]
fn explorations_into_one_folder_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let programs = ["gemm:8,8,8,f32", "gemm:16,8,8,f32", "rowsum:8,64,f32", "transpose:16,8,f32"];
    let explore = |program: &str| {
        let mut command = Command::new(SATUNE);
        command.args(["explore", program, "--top", "2", "--no-compile", "--out", "out", "--quiet"]);
        command.current_dir(folder.path()).stdout(std::process::Stdio::null()).spawn().unwrap()
    };
    for mut child in programs.map(explore) {
        assert!(child.wait().unwrap().success());
    }
    let out = folder.path().join("out");
    let runs: Vec<_> = std::fs::read_dir(out.join("runs")).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(runs.len(), programs.len());
    runs.iter().for_each(|run| is_whole(run));
    // The folder itself shows the latest, and nothing of the others.
    is_whole(&out);
    let kernels = |at: &Path| -> BTreeSet<String> {
        let names = std::fs::read_dir(at).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|n| n.ends_with(".cu")).collect()
    };
    assert_eq!(kernels(&out), kernels(&out.join("latest")));
    // Each of them is asked by its folder.
    for run in runs {
        let shown = satune(folder.path(), &["show", "1", "--out", run.to_str().unwrap()]);
        assert!(shown.status.success(), "{}", said(&shown));
    }
}

const COPY: &str = "@T.prim_func
def main(A: T.Buffer((16, 64), \"float32\"), B: T.Buffer((16, 64), \"float32\")):
    for i, j in T.grid(16, 64):
        with T.block(\"B\"):
            vi, vj = T.axis.remap(\"SS\", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
";

#[test]
fn resume_goes_on_with_what_was_explored_and_writes_beside_its_store() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("copy.py"), COPY).unwrap();
    let gpu = satune_extract::Descriptor::text("h200").unwrap();
    std::fs::write(at("my.toml"), gpu).unwrap();
    let explore = |out: &str, fault: &str| {
        let args =
            ["explore", "copy.py", "--gpu", "my.toml", "--top", "2", "--no-compile", "--json", "--store", "s/store.db"];
        let run = Command::new(SATUNE)
            .args(args)
            .args(["--out", out])
            .current_dir(folder.path())
            .env("SATUNE_FAULT_AT", fault)
            .output()
            .unwrap();
        (run.status.success(), run.stdout)
    };
    let ids = |text: &[u8]| -> Vec<String> {
        let report: serde_json::Value = serde_json::from_slice(text).unwrap();
        report["candidates"].as_array().unwrap().iter().map(|c| c["id"].to_string()).collect()
    };
    let (done, whole) = explore("whole", "");
    assert!(done);
    assert!(!explore("elsewhere", "kill:1").0);
    std::fs::write(at("copy.py"), COPY.replace("float32(2)", "float32(3)")).unwrap();
    std::fs::write(at("my.toml"), gpu.replace("sms = 132", "sms = 100")).unwrap();
    let resumed = satune(folder.path(), &["resume", "--store", "s/store.db", "--json"]);
    assert!(resumed.status.success(), "{}", said(&resumed));
    assert!(said(&resumed).contains("copy.py was changed since the run began"), "{}", said(&resumed));
    assert!(said(&resumed).contains("the descriptor my.toml has another text now"), "{}", said(&resumed));
    assert!(said(&resumed).contains("results go to s;"), "{}", said(&resumed));
    assert_eq!(ids(&resumed.stdout), ids(&whole));
    is_whole(&at("s"));
    assert!(!at("elsewhere/candidates.json").exists());
    let named = satune(folder.path(), &["resume", "2", "--store", "s/store.db", "--out", "there", "--json"]);
    assert!(named.status.success(), "{}", said(&named));
    is_whole(&at("there"));
    // The stored descriptor answers for the file, which may be gone.
    std::fs::remove_file(at("my.toml")).unwrap();
    for args in
        [&["check", "1", "--json"][..], &["report"], &["emit", "1", "--as", "c"], &["emit", "1", "--as", "torch"]]
    {
        let run = satune(folder.path(), &[args, &["--out", "there"]].concat());
        assert!(run.status.success() && !run.stdout.is_empty(), "{args:?}: {}", said(&run));
    }
    let verdict = satune(folder.path(), &["check", "1", "--json", "--out", "there"]);
    let verdict: serde_json::Value = serde_json::from_slice(&verdict.stdout).unwrap();
    assert_eq!(verdict["verdict"], "right");
}
