//! The measure worker of a CUDA GPU, driven through a driver that computes nothing. This tests every call but no
//! kernel: what a GPU measures is not tested here.
use crate::faults::SATUNE;
use std::path::Path;
use std::process::{Command, Output};

/// A folder with the driver, or none where there is no C compiler or no NVRTC.
fn driver(test: &str) -> Option<tempfile::TempDir> {
    let skip = |why: &str| {
        println!("skipped: {test} ({why})");
        None
    };
    if Path::new("/proc/driver/nvidia/version").exists() {
        return skip("there is a real driver");
    }
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/satune/fake_driver.c");
    let library = folder.path().join("libcuda.so");
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).arg(library).arg(source).arg("-lm").output();
    let Ok(compiled) = compiled else { return skip("no C compiler") };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let doctor = satune(folder.path(), "", &["doctor", "--json"]);
    let doctor: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    if doctor["nvrtc"]["ok"] != true {
        return skip("NVRTC is not to be had here");
    }
    assert!(doctor["driver"]["what"].as_str().unwrap().starts_with("CUDA 13.0"), "{doctor}");
    assert!(doctor["gpu"]["what"].as_str().unwrap().starts_with("Fake GPU: sm_90, 132 multiprocessors, 1500 MHz"));
    assert!(doctor["descriptor"]["what"].is_string(), "{doctor}");
    Some(folder)
}

fn satune(folder: &Path, mode: &str, args: &[&str]) -> Output {
    let old = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    Command::new(SATUNE)
        .args(args)
        .current_dir(folder)
        .env("LD_LIBRARY_PATH", format!("{}:{old}", folder.display()))
        .env("SATUNE_FAKE", mode)
        // Its lock is its own: tests run side by side.
        .env("TMPDIR", folder)
        .output()
        .unwrap()
}

const EXPLORE: [&str; 9] =
    ["explore", "gemm:16,16,16,f32", "--device", "cuda", "--top", "2", "--no-compile", "--json", "--timeout"];

#[test]
fn a_candidate_goes_all_the_way_to_a_time() {
    let Some(folder) = driver("a_candidate_goes_all_the_way_to_a_time") else { return };
    let run = satune(folder.path(), "", &[&EXPLORE[..], &["10"]].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let measured = &report["measured"];
    assert_eq!(measured["kind"], "cuda");
    assert_eq!(measured["device"], "Fake GPU, 1500 MHz, memory 2000 MHz");
    assert!(measured["toolchain"].as_str().unwrap().ends_with("driver 13.0"));
    assert!(measured["overhead_ms"].as_f64().unwrap() < 20.0);
    let first = &report["candidates"][0]["measured"];
    assert!((first["ms"].as_f64().unwrap() - 0.05).abs() < 1e-6 && first["repeats"].as_u64().unwrap() >= 10);
    assert_eq!((first["clock_mhz"].as_f64(), first["relative_error"].as_f64()), (Some(1400.0), Some(0.0)));
    // Split-K, half precision, batches and a library that is not there.
    let programs = ["gemm:32,32,4096,f32", "gemm:64,32,32,f16,NT", "bmm:2,16,8,8,f64,TN"];
    let args = [&["bench", "--device", "cuda", "--top", "2", "--vs", "cublas", "--json"], &programs[..]].concat();
    let run = satune(folder.path(), "", &args);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert!(report["ceilings"]["copy_gbs"].as_f64().unwrap() > 0.0);
    for row in report["rows"].as_array().unwrap() {
        assert!((row["ms"].as_f64().unwrap() - 0.05).abs() < 1e-6, "{row}");
        assert_eq!(row["library_missing"], "no cuBLAS on this device");
    }
}

#[test]
fn an_unknown_gpu_gets_a_descriptor() {
    let Some(folder) = driver("an_unknown_gpu_gets_a_descriptor") else { return };
    let run = satune(folder.path(), "", &["probe", "--out", "fake.toml", "--json"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let said: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert!(said["ceilings"]["copy_gbs"].as_f64().unwrap() > 0.0, "{said}");
    let show = satune(folder.path(), "", &["gpu", "show", "fake.toml"]);
    let text = String::from_utf8_lossy(&show.stdout).into_owned();
    for line in [
        "name = \"fake\"",
        "full_name = \"Fake GPU\" # driver",
        "clock_mhz = 1500 # driver",
        "tma = true # architecture",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(text.contains("# measured: a copy"), "{text}");
    let run = satune(folder.path(), "", &["count", "gemm:64,64,64,f32", "--gpu", "fake.toml"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn a_driver_that_goes_wrong_gives_reasons_and_no_times() {
    let Some(folder) = driver("a_driver_that_goes_wrong_gives_reasons_and_no_times") else { return };
    for (mode, reason, part) in [
        ("wrong", "wrong", "beyond the tolerance"),
        ("illegal", "crash", "ILLEGAL_ADDRESS"),
        ("oom", "oom", "out of device memory"),
        ("fast", "wrong", "cannot need less than"),
        ("hang", "timeout", "no answer within 1.0 s"),
    ] {
        let store = format!("{mode}.db");
        let run = satune(folder.path(), mode, &[&EXPLORE[..], &["1", "--store", &store]].concat());
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(1), "{mode}: {said}");
        assert!(said.contains("none of 2 candidates ran and was right"), "{said}");
        let rows = satune(folder.path(), mode, &["db", "export", "--store", &store]);
        let rows = String::from_utf8_lossy(&rows.stdout).into_owned();
        assert_eq!(rows.matches(&format!("\"reason\":\"{reason}\"")).count(), 2, "{mode}: {rows}");
        assert!(rows.contains(part), "{mode}: {rows}");
    }
    for (mode, part) in [("none", "the CUDA driver shows no GPU"), ("init", "the CUDA driver does not come up")] {
        let run = satune(folder.path(), mode, &[&EXPLORE[..], &["1"]].concat());
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(3), "{mode}: {said}");
        assert!(said.contains(part) && said.contains("use --device simulator"), "{mode}: {said}");
    }
}
