//! Packs and the calls of a rented hour: made without a GPU, run on a device that computes by simulation and goes wrong as it
//! is told.
use crate::faults::SATUNE;
use serde_json::{json, Value};
use std::path::Path;
use std::process::{Command, Output};

fn satune(folder: &Path, args: &[&str]) -> Output {
    Command::new(SATUNE).args(args).current_dir(folder).env("TMPDIR", folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Device and script; a pack's random kernels are few, so that the simulator is done soon.
fn scripted(folder: &Path, script: &Value) {
    std::fs::write(folder.join("script.json"), script.to_string()).unwrap();
    let _ = std::fs::remove_file(folder.join("script.json.turns"));
}

const RUN: [&str; 8] =
    ["run-pack", "p.pack", "--device", "scripted", "--script", "script.json", "--json", "--least-timeout"];

fn pack(folder: &Path, programs: &[&str], random: &str) -> Value {
    let args =
        [&["pack"], programs, &["--top", "2", "--random", random, "--compiled", "0", "--out", "p.pack", "--json"]];
    let made = satune(folder, &args.concat());
    assert!(made.status.success(), "{}", text(&made.stderr));
    serde_json::from_slice(&made.stdout).unwrap()
}

#[test]
fn a_pack_runs_breadth_first_goes_on_and_is_refused_where_it_does_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let made = pack(folder, &["gemm:32,32,32,f32", "rowsum:8,64,f32"], "3");
    assert_eq!((&made["programs"], &made["candidates"]), (&json!(2), &json!(10)));
    scripted(folder, &json!({"outcomes": ["near"]}));
    let run = satune(folder, &[&RUN[..], &["10s", "--out", "r"]].concat());
    assert!(run.status.success(), "{}", text(&run.stderr));
    let outcome: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!((&outcome["measured"], &outcome["known"], &outcome["left"]), (&json!(10), &json!(0), &json!(0)));
    let rows = lines(&folder.join("r/rows.ndjson"));
    let order: Vec<&str> = rows.iter().map(|r| r["operator"].as_str().unwrap()).collect();
    assert_eq!(order[..4], ["gemm:32,32,32,f32", "rowsum:8,64,f32", "gemm:32,32,32,f32", "rowsum:8,64,f32"]);
    assert_eq!((&rows[0]["place"], &rows[4]["place"]), (&json!({"top": 1}), &json!({"random": 1})));
    // Goes on where it was: a row that was cut off in the middle is made again, the others are kept.
    let path = folder.join("r/rows.ndjson");
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 40]).unwrap();
    let again = satune(folder, &[&RUN[..], &["10s", "--out", "r"]].concat());
    let outcome: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!((&outcome["measured"], &outcome["known"]), (&json!(1), &json!(9)));
    assert_eq!(lines(&path).len(), 10);
    // The rows are what a fit reads.
    let fit = satune(folder, &["calibrate", "r/rows.ndjson", "--out", "fitted.toml"]);
    assert!(fit.status.success(), "{}", text(&fit.stderr));
    // Another pack into the same folder, a changed byte, no pack, another version.
    let refused = |path: &str, out: &str, part: &str| {
        let run = satune(folder, &["run-pack", path, "--device", "simulator", "--out", out]);
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{said}");
        assert!(said.contains(part), "{said}");
    };
    refused("p.pack", "r", "give another folder");
    let bytes = std::fs::read(folder.join("p.pack")).unwrap();
    let changed = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        std::fs::write(folder.join(name), bytes).unwrap();
    };
    changed("bad.pack", &|b| *b.last_mut().unwrap() ^= 1);
    refused("bad.pack", "x", "the pack is damaged");
    changed("cut.pack", &|b| b.truncate(b.len() / 2));
    refused("cut.pack", "x", "the pack is damaged");
    changed("new.pack", &|b| b["satune-pack ".len()] = b'9');
    refused("new.pack", "x", "the pack is of format 9, this is format 2");
    std::fs::write(folder.join("no.pack"), "gemm:8,8,8,f32\n").unwrap();
    refused("no.pack", "x", "this is no pack");
}

#[test(slow)]
fn a_family_that_always_hangs_costs_four_timeouts_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pack(folder, &["gemm:32,32,32,f32", "rowsum:8,64,f32"], "6");
    scripted(folder, &json!({"outcomes": ["near"], "families": {"single-threads": "hang"}}));
    let run = satune(folder, &[&RUN[..], &["3s", "--out", "r"]].concat());
    assert!(run.status.success(), "{}", text(&run.stderr));
    let outcome: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!((&outcome["measured"], &outcome["rejected"]), (&json!(8), &json!({"timeout": 4})));
    assert_eq!(outcome["skipped"], json!({"4 kernels of the family single threads hung": 4}));
    // After the first, its others waited until all else was measured.
    let families: Vec<Value> = lines(&folder.join("r/rows.ndjson")).iter().map(|r| r["family"].clone()).collect();
    assert_eq!(families[0], "single-threads");
    assert!(families[1..9].iter().all(|f| f == "streaming") && families[9..].iter().all(|f| f == "single-threads"));
    let page = std::fs::read_to_string(folder.join("r/SUMMARY.md")).unwrap();
    assert!(page.contains("4 not asked: 4 kernels of the family single threads hung"), "{page}");
    // What a budget does not reach is left, and the run ends by its own clock.
    scripted(folder, &json!({"outcomes": ["near"], "delay_ms": 300}));
    let run = satune(folder, &[&RUN[..], &["5s", "--budget", "3s", "--out", "short"]].concat());
    let outcome: Value = serde_json::from_slice(&run.stdout).unwrap();
    let number = |name: &str| outcome[name].as_u64().unwrap();
    assert!(number("left") > 0 && number("measured") + number("left") == 16, "{outcome}");
}

/// A device that executes the texts finds the one that is not what was packed for.
#[test]
fn texts_of_a_pack_are_executed() {
    if satune::compile::versions().is_empty() {
        satune_testing::missing("NVRTC", "cuda");
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pack(folder, &["rowsum:8,64,f32"], "1");
    let file = folder.join("p.pack");
    let mut packed = satune::pack::Pack::read(&file).unwrap();
    let source = &mut packed.programs[0].candidates[1].ready.kernels[0].source;
    let changed = source.replace(" + ", " - ");
    assert_ne!(*source, changed);
    *source = changed;
    packed.write(&file).unwrap();
    scripted(folder, &json!({"outcomes": ["executed"]}));
    let run = satune(folder, &[&RUN[..], &["60s", "--out", "r"]].concat());
    let outcome: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!((&outcome["measured"], &outcome["rejected"]), (&json!(2), &json!({"wrong": 1})), "{outcome}");
}

/// A file of a stage's archive.
fn stage_of(archive: &Path, name: &str) -> Value {
    let out = Command::new("tar").arg("-xzOf").arg(archive).arg(name).output().unwrap();
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{name}: {e}: {}", text(&out.stderr)))
}

/// The small packs of a rehearsal, made once.
fn prepared() -> &'static Path {
    static MADE: std::sync::LazyLock<std::path::PathBuf> = std::sync::LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("small-packs");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let suites = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/suites");
        // The scripted device takes no machine code.
        let args = ["on-gpu", "prepare", "--small", "--no-compile", "--packs", ".", "--suites", suites];
        let made = satune(&folder, &args);
        assert!(made.status.success(), "{}", text(&made.stderr));
        folder
    });
    &MADE
}

/// A folder of a rented machine: the script, the program beside it, packs that are not where the script looks for them, and a
/// compute-sanitizer that does `first`, runs what it is given, and finds something with one of its tools.
fn rented(first: &str) -> tempfile::TempDir {
    let rented = tempfile::tempdir().unwrap();
    let folder = rented.path();
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/on-gpu"), folder.join("on-gpu")).unwrap();
    std::os::unix::fs::symlink(SATUNE, folder.join("satune")).unwrap();
    for name in ["packs", "carried", "bin"] {
        std::fs::create_dir(folder.join(name)).unwrap();
    }
    for pack in std::fs::read_dir(prepared()).unwrap() {
        let pack = pack.unwrap();
        std::fs::copy(pack.path(), folder.join("carried").join(pack.file_name())).unwrap();
    }
    let tool = format!("#!/bin/sh\n{first}\nkind=$2 log=$6\nshift 6\n\"$@\"\ncode=$?\n[ $kind = racecheck ] && echo '========= Error: a race' >> $log\necho '========= ERROR SUMMARY: 0 errors' >> $log\nexit $code\n");
    std::fs::write(folder.join("bin/compute-sanitizer"), tool).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.join("bin/compute-sanitizer"), executable).unwrap();
    rented
}

/// A call of the script on the scripted device.
fn on_gpu(folder: &Path, call: &str, budget: &str, least_timeout: &str) {
    let args = [call, "out", "--packs", "carried", "--device", "scripted", "--script", "script.json"];
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let run = Command::new(folder.join("on-gpu"))
        .args(args)
        .args(["--budget", budget, "--least-timeout", least_timeout])
        .current_dir(folder)
        .env("TMPDIR", folder)
        .env("PATH", path)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}{}", text(&run.stdout), text(&run.stderr));
}

/// In a short call each stage has its part, and what a family costs that always hangs is not asked again: not by a later stage,
/// not under a tool, not after the process was killed.
#[test(slow)]
fn a_family_that_always_hangs_costs_a_whole_contact_four_timeouts() {
    let rented = rented("[ -e $TMPDIR/killed ] || { touch $TMPDIR/killed; kill -9 $PPID; exit; }");
    let folder = rented.path();
    scripted(folder, &json!({"outcomes": ["near"], "families": {"streaming": "hang"}}));
    on_gpu(folder, "contact", "120s", "1s");
    assert!(folder.join("killed").exists());
    let mut timeouts = 0;
    for stage in ["probes", "families", "sanitizer", "headlines", "ab"] {
        let archive = folder.join("out").join(format!("{stage}.tar.gz"));
        let rows =
            Command::new("tar").args(["-xzO", "--wildcards", "*/rows.ndjson", "-f"]).arg(archive).output().unwrap();
        let rows = text(&rows.stdout);
        let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(!rows.is_empty(), "{stage}");
        timeouts += rows.iter().filter(|row| row["family"] == "streaming" && row["reason"] == "timeout").count();
    }
    assert!((1..=4).contains(&timeouts), "{timeouts}");
}

/// The hour from end to end, every kernel simulated, with what can go wrong injected.
#[test(slow)]
fn the_hour_is_rehearsed_with_faults() {
    let rented = rented(":");
    let folder = rented.path();
    // Faults of kernels and workers, in the order of requests; one that dies is asked twice.
    let faults = [
        "illegal_access",
        "wrong",
        "hang",
        "abort",
        "abort",
        "compile_error",
        "oom",
        "oom",
        "nonsense",
        "nonsense",
        "leaves",
        "leaves",
        "empty",
        "empty",
    ];
    scripted(folder, &json!({"outcomes": ["computed"], "first": faults}));
    // And of files: one is missing, one is damaged.
    std::fs::remove_file(folder.join("carried/ab.pack")).unwrap();
    let headlines = folder.join("carried/headlines.pack");
    let mut bytes = std::fs::read(&headlines).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&headlines, bytes).unwrap();
    on_gpu(folder, "rehearse", "6000s", "10s");
    let out = folder.join("out");
    let files = |call: &str| {
        let mut names: Vec<String> = std::fs::read_dir(out.join(call))
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert!(names.len() <= 8, "{names:?}");
        names
    };
    let contact = [
        "SUMMARY.md",
        "ab.tar.gz",
        "constants.tar.gz",
        "env.tar.gz",
        "families.tar.gz",
        "headlines.tar.gz",
        "probes.tar.gz",
        "sanitizer.tar.gz",
    ];
    assert_eq!(files("contact"), contact);
    assert_eq!(files("suites").len(), 3);
    assert_eq!(
        files("calibrate"),
        ["SUMMARY.md", "closed-loop.tar.gz", "counters.tar.gz", "env.tar.gz", "fit.tar.gz", "measurements.tar.gz"]
    );
    let page = |call: &str| std::fs::read_to_string(out.join(call).join("SUMMARY.md")).unwrap();
    let contact = page("contact");
    for part in [
        "an illegal memory access",
        "relative error 0.5",
        "no answer within",
        "the worker process died twice: signal: 6",
        "compile_error: refused",
        "out of device memory",
        "its answer is no answer",
        "exit status: 0",
        "implausible times: no times",
        "racecheck: 1 errors",
        "Error: a race",
        "(racecheck)",
        "ab.pack: No such file",
        "headlines.pack: the pack is damaged",
        "made up, not measured on a GPU",
    ] {
        assert!(contact.contains(part), "{part} is not in\n{contact}");
    }
    let told = stage_of(&out.join("contact/sanitizer.tar.gz"), "sanitizer/sanitizer.json");
    let of = |kind: &str| &told["result"][kind];
    assert_eq!(
        (&of("memcheck")["errors"], &of("racecheck")["errors"]),
        (&json!([]), &json!(["========= Error: a race"]))
    );
    assert!(of("synccheck")["run"]["status"].as_str().unwrap().starts_with("exit status: 0"), "{told}");
    for call in ["suites", "calibrate"] {
        assert!(!page(call).contains("failed after"), "{}", page(call));
    }
    // A second call finds each stage's file, and has nothing to do.
    assert!(!out.join("contact/work").exists());
}
