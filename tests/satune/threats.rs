//! What a stranger's file, folder, name or store can do: nothing but be refused. `docs/GUARANTEES.md` has the table.
use crate::faults::SATUNE;
use std::path::Path;
use std::process::{Command, Output};

fn satune(folder: &Path, args: &[&str]) -> Output {
    Command::new(SATUNE).args(args).current_dir(folder).output().unwrap()
}

fn said(run: &Output) -> String {
    String::from_utf8_lossy(&run.stderr).into_owned()
}

/// What is refused: exit code, and words.
fn refused(folder: &Path, args: &[&str], code: i32, part: &str) {
    let run = satune(folder, args);
    assert_eq!(run.status.code(), Some(code), "{args:?}: {}", said(&run));
    assert!(said(&run).contains(part), "{args:?}: {}", said(&run));
}

#[cfg(unix)]
#[test(slow)]
fn nothing_below_the_current_folder_is_loaded_or_run() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    for place in ["target/cuda", "cuda", "."] {
        for (below, name) in [("lib", "libnvrtc.so"), ("lib", "libnvrtc.so.13"), ("bin", "nvdisasm"), (".", "nvdisasm")]
        {
            let at = folder.path().join(place).join(below);
            std::fs::create_dir_all(&at).unwrap();
            let file = at.join(name);
            std::fs::write(&file, "#!/bin/sh\ntouch owned\n").unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let libraries = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let run = Command::new(SATUNE)
        .args(["doctor", "--json"])
        .current_dir(folder.path())
        .env("PATH", format!(":.:{path}"))
        .env("LD_LIBRARY_PATH", format!(".:lib::{libraries}"))
        .env("CUDA_HOME", "cuda")
        .output()
        .unwrap();
    let doctor: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let found = doctor["nvdisasm"]["what"].as_str().unwrap_or("/");
    assert!(Path::new(found).is_absolute() && !Path::new(found).starts_with(folder.path()), "{doctor}");
    assert!(!folder.path().join("owned").exists());
    // Nor is Python of that folder, nor a module that its own would import.
    std::fs::copy(folder.path().join("nvdisasm"), folder.path().join("python3")).unwrap();
    std::fs::write(folder.path().join("json.py"), "open('owned', 'w')\n").unwrap();
    let vs = Command::new(SATUNE)
        .args(["explore", "gemm:64,64,64,bf16,NT", "--vs", "nvmmh", "--device", "none", "--no-compile", "--top", "1"])
        .current_dir(folder.path())
        .env("PATH", format!(".:{path}"))
        .output()
        .unwrap();
    assert!(matches!(vs.status.code(), Some(0 | 2)), "{}", String::from_utf8_lossy(&vs.stderr));
    assert!(!folder.path().join("owned").exists());
    // What is named is taken, where it stands.
    let named = Command::new(SATUNE)
        .args(["doctor", "--json"])
        .current_dir(folder.path())
        .env("SATUNE_CUDA_LIBS", "cuda/lib")
        .output()
        .unwrap();
    let doctor: serde_json::Value = serde_json::from_slice(&named.stdout).unwrap();
    assert!(doctor["nvdisasm"]["what"].as_str().unwrap().starts_with("cuda/lib"), "{doctor}");
}

/// Scripts fetch into `target` before cargo builds there, and cargo does not mark a folder as a cache that it finds.
#[cfg(unix)]
#[test]
fn what_scripts_fetch_is_found_by_what_cargo_builds_after_them() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().canonicalize().unwrap().join("target");
    for below in ["release", "cuda/bin", "cuda/lib"] {
        std::fs::create_dir_all(target.join(below)).unwrap();
    }
    for file in ["cuda/bin/nvdisasm", "cuda/lib/libnvrtc.so.13"] {
        std::fs::write(target.join(file), "").unwrap();
    }
    let built = target.join("release/satune");
    std::fs::copy(SATUNE, &built).unwrap();
    let found = || {
        let run = Command::new(&built).args(["doctor", "--json"]).output().unwrap();
        let doctor: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
        doctor["nvdisasm"]["what"].as_str().is_some_and(|at| Path::new(at).starts_with(&target))
    };
    assert!(!found(), "nobody says that cargo built it there");
    std::fs::write(target.join(".rustc_info.json"), "{}").unwrap();
    assert!(found());
}

#[cfg(unix)]
#[test]
fn devices_and_pipes_are_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for name in ["zero.py", "zero.toml", "zero.json", "zero.txt", "zero.db"] {
        std::os::unix::fs::symlink("/dev/zero", at.join(name)).unwrap();
    }
    assert!(Command::new("mkfifo").arg(at.join("pipe.py")).status().unwrap().success());
    let part = "a pipe or a device";
    for args in [
        &["explore", "zero.py"][..],
        &["explore", "pipe.py"],
        &["count", "gemm:8,8,8,f32", "--gpu", "zero.toml"],
        &["gpu", "show", "zero.toml"],
        &["replay", "zero.json"],
        &["replay", "pipe.py"],
        &["bench", "--suite", "zero.txt"],
        &["calibrate", "zero.json", "--out", "x.toml"],
        &["why-not", "gemm:8,8,8,f32", "--plan", "zero.json"],
    ] {
        refused(at, args, 2, part);
    }
    refused(at, &["db", "check", "--store", "zero.db"], 3, "");
    refused(at, &["explore", "gemm:8,8,8,f32", "--store", "pipe.py"], 3, "no regular file");
}

#[test]
fn programs_and_traces_have_limits() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let mut script =
        "@T.prim_func\ndef main(A: T.Buffer((4,), \"float32\"), B: T.Buffer((4,), \"float32\")):\n".to_string();
    for n in 0..3000 {
        script += &format!("    for i{n} in range(4):\n        with T.block(\"b{n}\"):\n            v = T.axis.spatial(4, i{n})\n            B[v] = A[v]\n");
    }
    std::fs::write(at.join("many.py"), &script).unwrap();
    refused(at, &["explore", "many.py"], 2, "the program has 3000 blocks; at most 128");
    std::fs::write(at.join("trace.json"), serde_json::json!({"program": script, "calls": []}).to_string()).unwrap();
    refused(at, &["replay", "trace.json"], 2, "the program has 3000 blocks; at most 256");
    let call = serde_json::json!({"op": "get_sblock", "args": ["C"], "out": "c"});
    std::fs::write(at.join("long.json"), serde_json::to_string(&vec![call; 5000]).unwrap()).unwrap();
    refused(at, &["replay", "long.json", "--program", "gemm:8,8,8,f32"], 2, "5000 calls; at most 1000");
}

#[test]
fn a_store_is_what_satune_makes_or_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let made = rusqlite::Connection::open(at.join("view.db")).unwrap();
    made.execute_batch(
        "CREATE VIEW measurement AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n)
         SELECT id, 'a' AS program, 'b' AS trace, 'c' AS toolchain, 'd' AS device, 'measured' AS outcome, 1.0 AS median_ms,
         0 AS at, '' AS body, '' AS digest FROM n;
         CREATE TABLE run(id INTEGER PRIMARY KEY, request TEXT NOT NULL, started INTEGER NOT NULL, finished INTEGER) STRICT;
         PRAGMA application_id = 1935766645; PRAGMA user_version = 1;",
    )
    .unwrap();
    drop(made);
    refused(at, &["db", "check", "--store", "view.db"], 3, "its tables are not those of a store");
    refused(at, &["db", "export", "--store", "view.db"], 3, "its tables are not those of a store");
    let diary = "Dear diary, ".repeat(2000);
    std::fs::write(at.join("diary.txt"), &diary).unwrap();
    refused(at, &["db", "repair", "--store", "diary.txt"], 2, "it is left as it is");
    assert_eq!(std::fs::read_to_string(at.join("diary.txt")).unwrap(), diary);
    assert_eq!(
        std::fs::read_dir(at).unwrap().flatten().filter(|e| e.path().to_string_lossy().contains("diary")).count(),
        1
    );
}

#[test]
fn names_reach_the_terminal_as_letters() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let evil = "\u{1b}]0;owned\u{7}\u{9b}2J";
    std::fs::write(at.join("evil.py"), format!("# {evil}\nx = \"{evil}\" +\n")).unwrap();
    let letters = |run: &Output, what: &str| {
        let text = format!("{}{}", said(run), String::from_utf8_lossy(&run.stdout));
        assert!(!text.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{what}: {text:?}");
    };
    // A descriptor, a program and a trace, and what is shown of a store.
    let shown = satune(at, &["gpu", "show", "h200"]);
    let descriptor = String::from_utf8(shown.stdout).unwrap();
    let (_, rest) = descriptor.split_once("name = ").unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    std::fs::write(at.join("evil.toml"), format!("name = \"h\\u001b]0;owned\\u0007\"\n{rest}")).unwrap();
    let block = "\\x1b]0;owned\\x07\\x9b2J";
    let program = format!(
        "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((8, 8), \"float32\"), B: T.Buffer((8, 8), \"float32\")):\n    \
         for i, j in T.grid(8, 8):\n        with T.sblock(\"B{block}\"):\n            vi, vj = T.axis.remap(\"SS\", [i, \
         j])\n            B[vi, vj] = A[vi // 2, vj]\n"
    );
    std::fs::write(at.join("named.py"), program).unwrap();
    let calls = serde_json::json!([
        {"op": "get_sblock", "args": [format!("B{evil}")], "out": "b"},
        {"op": "annotate", "args": ["$b", evil, evil]},
        {"op": "cache_read", "args": ["$b", 0, evil]},
    ]);
    std::fs::write(at.join("trace.json"), calls.to_string()).unwrap();
    for (args, code) in [
        (vec!["explore", "named.py", "--gpu", "evil.toml", "--top", "1", "--device", "none"], 0),
        (vec!["show", "1"], 0),
        (vec!["why", "1"], 0),
        (vec!["bench", "gemm:16,16,16,f32", "--gpu", "evil.toml", "--device", "simulator"], 0),
        (vec!["replay", "trace.json", "--program", "named.py", "--strict"], 1),
    ] {
        let run = satune(at, &args);
        assert_eq!(run.status.code(), Some(code), "{args:?}: {}", said(&run));
        letters(&run, &args.join(" "));
    }
    for args in [
        vec!["explore".to_string(), format!("gemm:8,8,{evil},f32")],
        vec!["explore".into(), format!("{evil}:8")],
        vec!["explore".into(), "gemm:8,8,8,f32".into(), "--gpu".into(), evil.into()],
        vec!["explore".into(), "evil.py".into()],
        vec!["show".into(), evil.into()],
        vec![evil.into()],
        vec!["explore".into(), "gemm:8,8,8,f32".into(), "--top".into(), evil.into()],
    ] {
        let run = Command::new(SATUNE).args(&args).current_dir(at).output().unwrap();
        assert_eq!(run.status.code(), Some(2), "{args:?}");
        letters(&run, &args.join(" "));
    }
}
