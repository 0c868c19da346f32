//! What is handed out lives together: names are of one candidate only, and each file says what it is. And the command knows the
//! names that people type.
use crate::faults::SATUNE;
use std::path::Path;
use std::process::{Command, Output};

fn satune(folder: &Path, args: &[&str]) -> Output {
    Command::new(SATUNE).args(args).current_dir(folder).output().unwrap()
}

fn text(folder: &Path, args: &[&str]) -> String {
    let run = satune(folder, args);
    assert!(run.status.success(), "{args:?}: {}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

#[test]
fn two_headers_live_in_one_program() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for (program, out) in [("gemm:64,64,64,f32", "a"), ("gemm:256,256,256,f32", "b")] {
        text(at, &["explore", program, "--top", "1", "--no-compile", "--out", out]);
    }
    let header = |out: &str, name: &[&str]| text(at, &[&["emit", "1", "--as", "c", "--out", out], name].concat());
    let (a, b) = (header("a", &[]), header("b", &[]));
    let guard = |text: &str| text.lines().find(|l| l.starts_with("#ifndef")).unwrap().to_string();
    assert_ne!(guard(&a), guard(&b));
    assert!(a.contains("// gemm:64,64,64,f32 for h200") && a.contains("by satune ") && a.contains("-lcuda"), "{a}");
    assert!(a.contains("CUresult gemm_64_64_64_f32_"), "{a}");
    // What a header launches is what the CUDA text defines, also by another name.
    for name in [&[][..], &["--name", "mine"]] {
        let (header, cuda) = (header("a", name), text(at, &[&["emit", "1", "--out", "a"], name].concat()));
        let function = header
            .split("cuModuleGetFunction(&plan->kernels[0], modules[0], \"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap();
        assert!(cuda.contains(&format!("{function}(")), "{function} is not in\n{cuda}");
        assert!(
            cuda.starts_with("// gemm:64,64,64,f32 for h200") && cuda.contains("// Compile: nvcc -arch=sm_90 "),
            "{cuda}"
        );
    }
    assert!(header("a", &["--name", "mine"]).contains("CUresult mine_launch("));
    assert_eq!(satune(at, &["emit", "1", "--out", "a", "--name", "for"]).status.code(), Some(2));
    let json: serde_json::Value = serde_json::from_str(&text(at, &["emit", "1", "--out", "a", "--json"])).unwrap();
    assert!(json["files"][0]["text"].as_str().unwrap().contains("__global__"));
    // Both in one program.
    std::fs::write(at.join("a.h"), &a).unwrap();
    std::fs::write(at.join("b.h"), &b).unwrap();
    std::fs::write(at.join("cuda.h"), format!("#pragma once\n{}", crate::host::DRIVER)).unwrap();
    let call = |text: &str| {
        let name = text.split("_prepare(").next().unwrap().split_whitespace().last().unwrap();
        // One of them is the plan's array of buffers.
        let buffers = ", 1".repeat(text.matches("CUdeviceptr ").count() - 1);
        format!(
            "{{ {name}_plan plan; CUmodule modules[4] = {{0}}; \
             failed |= {name}_prepare(&plan, modules{buffers}) || {name}_launch(&plan, 0); }}"
        )
    };
    let main = format!(
        "#include \"a.h\"\n#include \"b.h\"\nint main(void) {{ int failed = 0; {} {} return failed; }}\n",
        call(&a),
        call(&b)
    );
    std::fs::write(at.join("main.c"), main).unwrap();
    let built = Command::new("cc").args(["-std=c11", "-w", "-I.", "main.c", "-o", "main"]).current_dir(at).output();
    let built = built.unwrap_or_else(|error| satune_testing::no_compiler(&error));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(at.join("main")).output().unwrap();
    assert!(ran.status.success());
    assert!(String::from_utf8(ran.stdout).unwrap().lines().filter(|l| l.contains("<<<")).count() >= 2);
}

#[test(slow)]
fn files_of_python_are_python() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    text(at, &["explore", "gemm:512,512,512,f16,NT", "--gpu", "A100", "--top", "1", "--no-compile"]);
    for entry in std::fs::read_dir(at.join("satune-out/latest")).unwrap().map(|e| e.unwrap().path()) {
        let name = entry.to_string_lossy().into_owned();
        let Ok(text) = std::fs::read_to_string(&entry) else { continue };
        if name.ends_with("program.py") {
            assert!(text.contains("from tvm.script import tirx as T\n"), "{text}");
        }
        if name.ends_with(".tvm.py") {
            assert!(text.contains("It cannot compile it"), "{text}");
        }
        assert!(text.contains("gemm:512,512,512,f16,NT"), "{name} does not say what it is");
    }
}

#[test(slow)]
fn the_command_knows_the_names_that_people_type() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let counted = |program: &str, gpu: &str| text(at, &["count", program, "--gpu", gpu, "--json"]);
    let of = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap()["schedules"].clone();
    assert_eq!(of(counted("MatMul:32,32,32,Float32,nn", "NVIDIA H200")), of(counted("gemm:32,32,32,f32", "h200")));
    for (args, part) in [
        (["count", "gem:8,8,8,f32", "--gpu", "h200"], "did you mean `gemm`?"),
        (["count", "sofmax:8,8,f32", "--gpu", "h200"], "did you mean `softmax`?"),
        (["count", "gemm:8,8,8,f32", "--gpu", "b300"], "satune probe"),
    ] {
        let run = satune(at, &args);
        assert_eq!(run.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&run.stderr).contains(part), "{}", String::from_utf8_lossy(&run.stderr));
    }
    let help = text(at, &["explore", "--help"]);
    for (name, _, example) in satune::operators::OPERATORS {
        assert!(help.contains(name) && help.contains(example), "{name}");
    }
    assert!(text(at, &["completions", "bash"]).contains("_satune"));
    text(at, &["man", "--out", "man"]);
    assert!(at.join("man/satune-explore.1").is_file());
    // Quiet is quiet, and a table fits.
    let run = satune(at, &["explore", "gemm:512,384,512,bf16,NT", "--top", "2", "--no-compile", "--quiet"]);
    assert!(run.status.success() && run.stderr.is_empty());
    let table = String::from_utf8(run.stdout).unwrap();
    assert!(table.contains("row-major NT (column-major BLAS: TN") && table.contains("result float32"), "{table}");
    assert!(table.contains("TFLOP/s") && !table.contains('\u{1b}'), "{table}");
    let rows = table.lines().filter(|l| !l.contains("candidates on") && !l.contains("schedules in"));
    assert!(rows.clone().all(|l| l.chars().count() <= 120), "{table}");
}

#[test]
fn selftest_shows_that_each_guarantee_holds() {
    let folder = tempfile::tempdir().unwrap();
    let said: serde_json::Value = serde_json::from_str(&text(folder.path(), &["selftest", "--json"])).unwrap();
    let trials = said["trials"].as_array().unwrap();
    assert!(said["held"] == true && trials.len() >= 10, "{said:#}");
    assert!(trials.iter().all(|t| t["verdict"] != "broken"));
}
