//! What NVIDIA's nvMatmulHeuristics takes first for a product is in the space.
use crate::support::samples;
use satune::{nvmmh, operators};
use satune_extract::Descriptor;
use satune_ir::term::tensor::Gemm;
use serde_json::Value;
use std::process::Command;

/// Products in bf16, M, N and K: in the orders of storage NT, NN and TN in turn. First such as it takes long tiles and large
/// clusters for.
const SHAPES: [[i64; 3]; 60] = [
    [16, 6144, 4096],
    [1024, 1024, 1024],
    [512, 512, 512],
    [256, 256, 16384],
    [4096, 4096, 4096],
    [64, 28672, 8192],
    [256, 256, 256],
    [384, 384, 384],
    [768, 768, 768],
    [1536, 1536, 1536],
    [2048, 2048, 2048],
    [3072, 3072, 3072],
    [6144, 6144, 6144],
    [8192, 8192, 8192],
    [16384, 16384, 16384],
    [16, 4096, 4096],
    [16, 14336, 4096],
    [16, 4096, 14336],
    [16, 8192, 8192],
    [16, 28672, 8192],
    [16, 1280, 8192],
    [64, 4096, 4096],
    [64, 14336, 4096],
    [64, 4096, 14336],
    [64, 6144, 4096],
    [64, 8192, 8192],
    [64, 1280, 8192],
    [128, 4096, 4096],
    [128, 14336, 4096],
    [128, 4096, 14336],
    [128, 6144, 4096],
    [128, 8192, 8192],
    [128, 28672, 8192],
    [128, 1280, 8192],
    [512, 4096, 4096],
    [512, 14336, 4096],
    [512, 4096, 14336],
    [512, 6144, 4096],
    [512, 8192, 8192],
    [512, 28672, 8192],
    [512, 1280, 8192],
    [2048, 4096, 4096],
    [2048, 14336, 4096],
    [2048, 4096, 14336],
    [2048, 6144, 4096],
    [2048, 8192, 8192],
    [2048, 28672, 8192],
    [2048, 1280, 8192],
    [8192, 4096, 4096],
    [8192, 14336, 4096],
    [8192, 4096, 14336],
    [8192, 6144, 4096],
    [8192, 8192, 8192],
    [8192, 28672, 8192],
    [8192, 1280, 8192],
    [128, 128, 32768],
    [1024, 1024, 8192],
    [4096, 14336, 1024],
    [4097, 4096, 4096],
    [32, 1000, 2048],
];

/// Each choice is asked for by the question that `--vs nvmmh` asks. Five shapes, `SATUNE_SAMPLES` times; of all 60, 55 must be
/// there.
#[test(slow)]
fn its_first_choice_is_in_the_space() {
    if !nvmmh::is_here() {
        satune_testing::missing("nvMatmulHeuristics", "nvmmh");
    }
    let gpu = Descriptor::load("h200").unwrap();
    let names: Vec<String> = (SHAPES.iter().zip(["NT", "NN", "TN"].iter().cycle()))
        .map(|([m, n, k], layout)| format!("gemm:{m},{n},{k},bf16,{layout}"))
        .take(samples(3))
        .collect();
    let gemms: Vec<Gemm> =
        names.iter().map(|name| Gemm::of(&operators::parse(name).unwrap().contraction).unwrap()).collect();
    let choices = nvmmh::choices(&gpu, &gemms).unwrap();
    assert!(choices.iter().all(|choice| choice.estimated_ms > 0.0));
    let mut missing = Vec::new();
    for (name, choice) in names.iter().zip(&choices) {
        let question = choice.question(&gpu);
        let run = Command::new(env!("CARGO_BIN_EXE_satune"))
            .args(["why-not", name, &question, "--gpu", "h200", "--json"])
            .output()
            .unwrap();
        assert!(run.status.success(), "{name}: {}", String::from_utf8_lossy(&run.stderr));
        let answers: Value = serde_json::from_slice(&run.stdout).unwrap();
        let answer = &answers[0];
        let ms = |which: &str| answer[which]["predicted_ms"].as_f64();
        println!("{name}: {question}: {} {:?} {:?}", answer["in_space"], ms("asked"), ms("best"));
        match (answer["in_space"].as_bool(), ms("asked"), ms("best")) {
            (Some(true), Some(asked), Some(best)) => assert!(best <= asked, "{name}: {best} {asked}"),
            _ => {
                println!("  {}", answer["reasons"]);
                missing.push(name);
            }
        }
    }
    assert!(missing.len() * 12 <= names.len(), "{missing:?}");
}

#[test]
fn what_cannot_be_asked_is_said() {
    let run = |args: &[&str], folder: &str| {
        let run = Command::new(env!("CARGO_BIN_EXE_satune")).args(args).env("SATUNE_NVMMH", folder).output().unwrap();
        (run.status.code(), String::from_utf8_lossy(&run.stderr).into_owned())
    };
    let out = tempfile::tempdir().unwrap();
    let explore = ["explore", "gemm:64,64,64,bf16,NT", "--vs", "nvmmh", "--out", out.path().to_str().unwrap()];
    let asked = |more: &[&str]| run(&[&explore[..], more].concat(), "/nonexistent");
    let (code, said) = asked(&[]);
    assert!(code == Some(2) && said.contains("scripts/fetch-nvmmh"), "{said}");
    let (code, said) = asked(&["--gpu", "t4"]);
    assert!(code == Some(2) && said.contains("does not know the GPU t4"), "{said}");
    // A library that breaks down: the process's own words.
    let broken = tempfile::tempdir().unwrap();
    std::fs::create_dir(broken.path().join("nvMatmulHeuristics")).unwrap();
    std::fs::write(broken.path().join("nvMatmulHeuristics/__init__.py"), "raise SystemError('it is broken')").unwrap();
    let (code, said) = run(&explore, broken.path().to_str().unwrap());
    assert!(code == Some(2) && said.contains("gave 0 of 1 answers: SystemError: it is broken"), "{said}");
    // Whoever asked is named: the option, and what the program is not.
    let streams = ["explore", "rowsum:64,64,f32", "--gpu", "h200", "--out", out.path().to_str().unwrap()];
    let (code, said) = run(&[&streams[..], &["--vs", "nvmmh"]].concat(), "/nonexistent");
    assert!(code == Some(2) && said.contains("--vs nvmmh: nvMatmulHeuristics is asked about products"), "{said}");
    assert_eq!(run(&streams, "/nonexistent").0, Some(0));
    for command in [&["why", "1"][..], &["report"]] {
        let marked = ["--sensitivity", "--mark", "nvmmh", "--out", out.path().to_str().unwrap()];
        let (code, said) = run(&[command, &marked].concat(), "/nonexistent");
        assert!(code == Some(2) && said.contains("--mark nvmmh: nvMatmulHeuristics is asked about products"), "{said}");
        assert!(!said.contains("--vs"), "{said}");
    }
}
