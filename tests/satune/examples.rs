//! The examples do what their headers say. `cargo test` builds them; with `--test satune` alone, `cargo build --examples` does.
use crate::support::script;
use std::path::Path;
use std::process::Command;

/// What an example prints, which must hold the texts given, in this order. Leaves the test where it lacks NVRTC.
fn prints(name: &str, texts: &[&str]) {
    prints_given(name, &[], texts);
}

/// The same with arguments.
fn prints_given(name: &str, args: &[&Path], texts: &[&str]) {
    // target/PROFILE/deps/satune-HASH is this test, target/PROFILE/examples/NAME the example.
    let test = std::env::current_exe().unwrap();
    let file =
        test.ancestors().nth(2).unwrap().join("examples").join(name).with_extension(std::env::consts::EXE_EXTENSION);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name).with_extension("rs");
    let made = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
    assert!(made(&file) >= made(&source), "{} is not there or old: cargo build --examples", file.display());
    let run = Command::new(&file).args(args).output().unwrap();
    let (said, printed) = (String::from_utf8_lossy(&run.stderr), String::from_utf8_lossy(&run.stdout));
    if said.contains("Missing") {
        satune_testing::missing("NVRTC", "cuda");
    }
    assert!(run.status.success(), "{said}");
    let mut rest = &*printed;
    for text in texts {
        let at = rest.find(text).unwrap_or_else(|| panic!("{name} does not print `{text}` there:\n{printed}"));
        rest = &rest[at + text.len()..];
    }
}

#[test(slow)]
fn explore_writes_the_best_as_cuda() {
    prints("explore", &["best proved: true", "ms, bound by", "__global__"]);
}

#[test]
fn illegal_calls_are_refused_and_the_others_make_a_kernel() {
    let refused = ["bind is refused", "split is refused", "Without a predicate"];
    let made = ["__global__", "simulated: 2 blocks", "executed: all 2 blocks, 128 results compared"];
    prints("by_hand", &[&refused[..], &made[..]].concat());
}

#[test]
fn a_program_and_calls_of_ones_own_make_a_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let [program, calls] = ["program.py", "calls.json"].map(|name| folder.path().join(name));
    let nest = "for i in range(100):\n    with T.sblock(\"B\"):\n        vi = T.axis.spatial(100, i)\n        B[vi] = A[vi] + T.float32(1)";
    std::fs::write(&program, script("A: 100, float32; B: 100, float32", nest)).unwrap();
    let made = r#"[{"op": "get_sblock", "args": ["B"], "out": "b"}, {"op": "get_loops", "args": ["$b"], "out": ["i"]},
        {"op": "bind", "args": ["$i", "threadIdx.x"]}]"#;
    std::fs::write(&calls, made).unwrap();
    prints_given("by_hand", &[&program, &calls], &["__global__", "executed: all 1 blocks, 200 results compared"]);
}

#[test]
fn a_missing_barrier_is_found_and_the_line_is_told() {
    prints("check_kernel", &["line 7", "tile[63 - threadIdx.x]", "clean: false", "4 of 4 blocks run, clean: true"]);
}

#[test]
fn samples_are_drawn_and_the_best_is_faster() {
    prints("sample", &["schedules in", "of 200 drawn can run", "75% of them are faster than", "(proved: true)"]);
}
