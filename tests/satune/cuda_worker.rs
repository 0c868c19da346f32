//! The measure worker of a CUDA GPU, driven through a driver that computes nothing. This tests every call but no
//! kernel: what a GPU measures is not tested here.
use crate::faults::SATUNE;
use satune::kernel::Mma;
use std::path::Path;
use std::process::{Command, Output};

/// A folder with the driver; leaves the test where there is no C compiler or no NVRTC.
fn driver() -> tempfile::TempDir {
    libraries(&[("fake_driver.c", "libcuda.so", &[])])
}

/// A folder with libraries: source, name, flags of the compiler.
fn libraries(list: &[(&str, &str, &[&str])]) -> tempfile::TempDir {
    if Path::new("/proc/driver/nvidia/version").exists() {
        satune_testing::skip("there is a real driver");
    }
    let folder = tempfile::tempdir().unwrap();
    for (source, name, flags) in list {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/satune").join(source);
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-w", "-o"]).arg(folder.path().join(name)).arg(source).args(*flags).arg("-lm");
        let compiled = cc.output().unwrap_or_else(|error| satune_testing::no_compiler(&error));
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    }
    let doctor = satune(folder.path(), "", &["doctor", "--json"]);
    let doctor: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    if doctor["nvrtc"]["ok"] != true {
        satune_testing::missing("NVRTC", "cuda");
    }
    assert!(doctor["driver"]["what"].as_str().unwrap().starts_with("CUDA 1"), "{doctor}");
    assert!(doctor["gpu"]["what"].as_str().unwrap().starts_with("Fake GPU: sm_90, 132 multiprocessors, 1500 MHz"));
    assert!(doctor["descriptor"]["what"].is_string(), "{doctor}");
    folder
}

fn satune(folder: &Path, mode: &str, args: &[&str]) -> Output {
    let old = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    Command::new(SATUNE)
        .args(args)
        .current_dir(folder)
        .env("LD_LIBRARY_PATH", format!("{}:{old}", folder.display()))
        .env("SATUNE_FAKE", mode)
        .env("SATUNE_FAKE_LOG", folder.join("log.txt"))
        // Its lock is its own: tests run side by side.
        .env("TMPDIR", folder)
        .output()
        .unwrap()
}

const EXPLORE: [&str; 9] =
    ["explore", "gemm:16,16,16,f32", "--device", "cuda", "--top", "2", "--no-compile", "--json", "--timeout"];

#[test(slow)]
fn a_candidate_goes_all_the_way_to_a_time() {
    let folder = driver();
    let run = satune(folder.path(), "", &[&EXPLORE[..], &["10"]].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let measured = &report["measured"];
    assert_eq!(measured["kind"], "cuda");
    assert_eq!(measured["device"], "Fake GPU, 1500 MHz, memory 2000 MHz");
    assert!(measured["toolchain"].as_str().unwrap().ends_with("driver 13.0"));
    assert!(measured["overhead_ms"].as_f64().is_some_and(|ms| ms >= 0.0));
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
        // Its text was executed before.
        assert!(row["executed"]["compared"].as_u64() > Some(0) && row["bugs"].is_null(), "{row}");
    }
    let run = satune(folder.path(), "", &["bench", "--device", "cuda", "--top", "1", "gemm:16,16,16,f32"]);
    let table = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(table.contains(" ran") && table.contains("all 1"), "{table}");
}

#[test]
fn an_unknown_gpu_gets_a_descriptor() {
    let folder = driver();
    let run = satune(folder.path(), "", &["probe", "--out", "fake.toml", "--json"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let said: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert!(said["ceilings"]["copy_gbs"].as_f64().unwrap() > 0.0, "{said}");
    let sustained = said["constants"]["sustained"].as_array().unwrap();
    let names: Vec<&str> = sustained.iter().map(|s| s["name"].as_str().unwrap()).collect();
    let warps = Mma::SYNC.map(Mma::name);
    let groups = [64, 128, 256].map(|n| format!("wgmma_f16_n{n}"));
    assert_eq!(names, [&["fma_ceiling".to_string()], &warps[..], &groups[..]].concat());
    // A driver that computes nothing: work that lasts as long, whatever it is.
    let of = |name: &str| sustained.iter().find(|s| s["name"] == name).unwrap()["tflops"].as_f64().unwrap();
    assert!((of("wgmma_f16_n256") / of("wgmma_f16_n64") - 4.0).abs() < 1e-3, "{said}");
    let show = satune(folder.path(), "", &["gpu", "show", "fake.toml"]);
    let text = String::from_utf8_lossy(&show.stdout).into_owned();
    for line in [
        "name = \"fake\"",
        "full_name = \"Fake GPU\" # driver",
        "clock_mhz = 1500 # driver",
        "tma = true # architecture",
        "max_clusters = [132, 66, 33, 14] # driver: of 1, 2, 4, 8 blocks",
        "latency_dram = 500.000 # measured: loads that wait for each other",
        "latency_shared = 25.000 # measured: loads that wait for each other",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(text.contains("# measured: a copy"), "{text}");
    let run = satune(folder.path(), "", &["count", "gemm:64,64,64,f32", "--gpu", "fake.toml"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

/// Seconds that a measurement may take: few only where it never ends, for a busy machine is no fault of a driver.
fn patience(mode: &str) -> &'static str {
    if mode == "hang" {
        "1"
    } else {
        "60"
    }
}

/// Machine code of candidates and references comes with a pack, by all compilers that are there: where it runs, what is
/// compiled are the kernels around them alone. Problems come in turns, and each one's inputs are made once.
#[test(slow)]
fn a_pack_brings_its_machine_code() {
    let folder = driver();
    let programs = ["gemm:32,32,32,f32", "rowsum:8,64,f32"];
    let args = [&["pack"], &programs[..], &["--top", "2", "--random", "1", "--compared", "1", "--out", "p.pack"]];
    let made = satune(folder.path(), "", &args.concat());
    let said = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(said.contains("6 candidates of 2 programs"), "{said}");
    let versions = satune::compile::versions();
    // What several make of the first candidate stands side by side.
    for (version, _) in versions.iter().filter(|_| versions.len() > 1) {
        let version = version.to_string();
        let row = |l: &str| l.starts_with("gemm:32") && l.split_whitespace().any(|word| word == version);
        assert!(said.lines().any(row), "{version} is not in\n{said}");
    }
    let run = satune(folder.path(), "", &["run-pack", "p.pack", "--any-gpu", "--json", "--out", "r"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let outcome: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!((&outcome["measured"], &outcome["left"]), (&6.into(), &0.into()), "{outcome}");
    // All its code is there: the device waits for nobody.
    assert_eq!(outcome["waits"], 0, "{outcome}");
    let log = std::fs::read_to_string(folder.path().join("log.txt")).unwrap();
    // Two inputs of the product and one of the sums, though their candidates take turns.
    assert_eq!(log.matches("fill_float32").count(), 3, "{log}");
}

/// A warm-up of 4 s leaves nothing of the 3.75 s for repeats; that is no fault of the kernel.
#[test]
fn a_warm_up_that_takes_all_the_time_leaves_times() {
    let folder = driver();
    let args = [&EXPLORE[..3], &["cuda", "--top", "1", "--no-compile", "--json", "--timeout", "15"]].concat();
    let run = satune(folder.path(), "slow", &args);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(report["candidates"][0]["measured"]["repeats"], 8);
}

/// Changes of one decision stand beside the choice, and beside what each compiler makes of its text; all bring their machine code.
#[test(slow)]
fn a_pack_of_single_decisions_brings_its_machine_code() {
    use satune::pack::{make, variants, Wanted};
    let folder = driver();
    let text = satune_extract::Descriptor::source("h200").unwrap();
    let gpu = satune_extract::Descriptor::parse(&text, "h200").unwrap();
    let newest = satune::compile::Compiler { lines: false, ..satune::compile::Compiler::of(SATUNE) };
    let versions = satune::compile::versions();
    let older = versions.iter().skip(1).take(1);
    let older = older.map(|(_, folder)| satune::compile::Compiler { nvrtc: Some(folder.clone()), ..newest.clone() });
    let compilers: Vec<satune::compile::Compiler> = std::iter::once(newest.clone()).chain(older).collect();
    let wanted = Wanted {
        top: 1,
        random: 0,
        per_family: 0,
        looked_at: 0,
        seed: 0,
        limit: std::time::Duration::from_secs(60),
        compiled: usize::MAX,
        compared: 1,
    };
    let works = [satune::source::load_work("gemm:32,32,64,f32").unwrap()];
    let quiet = satune::progress::Quiet;
    let chosen = make("chosen", &works, (&gpu, text.clone()), &wanted, &compilers, &quiet);
    let mut changed = variants("single decisions", &chosen, &gpu, &compilers, &quiet).unwrap();
    let file = folder.path().join("ab.pack");
    changed.write(&file).unwrap();
    let run = satune(folder.path(), "", &["run-pack", "ab.pack", "--any-gpu", "--json", "--out", "r"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let outcome: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!((&outcome["waits"], &outcome["left"]), (&0.into(), &0.into()), "{outcome}");
    let rows = std::fs::read_to_string(folder.path().join("r/rows.ndjson")).unwrap();
    let place = |row: &str| serde_json::from_str::<serde_json::Value>(row).unwrap()["place"].to_string();
    let places: Vec<String> = rows.lines().map(place).collect();
    for (part, there) in [("top", true), ("buffer", true), ("compiled by NVRTC", compilers.len() > 1)] {
        assert_eq!(places.iter().any(|place| place.contains(part)), there, "{part}: {places:?}");
    }
}

#[test(slow)]
fn a_driver_that_goes_wrong_gives_reasons_and_no_times() {
    let folder = driver();
    for (mode, reason, part) in [
        ("wrong", "wrong", "beyond the tolerance"),
        ("illegal", "crash", "ILLEGAL_ADDRESS"),
        ("oom", "oom", "out of device memory"),
        ("fast", "wrong", "cannot need less than"),
        ("hang", "timeout", "no answer within 1.0 s"),
    ] {
        let store = format!("{mode}.db");
        let run = satune(folder.path(), mode, &[&EXPLORE[..], &[patience(mode), "--store", &store]].concat());
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(1), "{mode}: {said}");
        assert!(said.contains("none of 2 candidates ran and was right"), "{said}");
        let rows = satune(folder.path(), mode, &["db", "export", "--store", &store]);
        let rows = String::from_utf8_lossy(&rows.stdout).into_owned();
        assert_eq!(rows.matches(&format!("\"reason\":\"{reason}\"")).count(), 2, "{mode}: {rows}");
        assert!(rows.contains(part), "{mode}: {rows}");
    }
    for (mode, part) in [("none", "the CUDA driver shows no GPU"), ("init", "the CUDA driver does not come up")] {
        let run = satune(folder.path(), mode, &[&EXPLORE[..], &[patience(mode)]].concat());
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(3), "{mode}: {said}");
        assert!(said.contains(part) && said.contains("use --device simulator"), "{mode}: {said}");
    }
}

/// A product whose best schedules are on wgmma, small as it is: no other tensor-core instruction takes fp8 here.
const WGMMA: [&str; 9] =
    ["explore", "gemm:64,64,384,e4m3,NT", "--device", "cuda", "--top", "1", "--no-compile", "--json", "--timeout"];

#[test]
fn kernels_with_tensor_maps_are_launched() {
    let folder = driver();
    let run = satune(folder.path(), "", &[&WGMMA[..], &["10"]].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let candidate = &report["candidates"][0];
    assert!((candidate["measured"]["ms"].as_f64().unwrap() - 0.05).abs() < 1e-6, "{candidate}");
    let kernel = &candidate["kernels"][0];
    let maps = kernel["tensor_maps"].as_array().unwrap();
    assert!((2..=3).contains(&maps.len()), "{kernel}");
    let log = std::fs::read_to_string(folder.path().join("log.txt")).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    // Each map once, as the launcher's header says it.
    let asked: Vec<&&str> = lines.iter().filter(|l| l.starts_with("map: ")).collect();
    assert_eq!(asked.len(), maps.len(), "{log}");
    // The factors', and the result's where the copy engine stores it.
    let kinds = [("F8E4M3", 0), ("F8E4M3", 0), ("F32", 7)];
    for ((map, line), (dtype, kind)) in maps.iter().zip(asked).zip(kinds) {
        let numbers =
            |field: &str| -> Vec<u64> { map[field].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect() };
        let (dims, strides, tile) = (numbers("dims"), numbers("strides"), numbers("tile"));
        assert_eq!(map["dtype"], dtype);
        assert_eq!(
            **line,
            format!(
                "map: type {kind}, rank 2, dims {} {}, strides {}, box {} by 1 {} by 1, interleave 0, swizzle 3, promotion 3, fill 0",
                dims[0], dims[1], strides[0], tile[0], tile[1]
            )
        );
        assert_eq!((dims[0], dims[1], strides[0]), if kind == 0 { (384, 64, 384) } else { (64, 64, 256) });
    }
    // The launch: its shared memory asked for, its grid and threads, maps where it takes maps.
    let (shared, name) = (kernel["dynamic_shared_bytes"].as_u64().unwrap(), "main_kernel");
    assert!(shared > 48 << 10 && lines.contains(&format!("{name}: attribute 8 = {shared}").as_str()), "{log}");
    let (grid, block) = (&kernel["grid"], &kernel["block"]);
    let third = if maps.len() == 3 { "map" } else { "pointer" };
    let launch = format!("{name}<<<{} 1 1, {}, {shared}>>> map map {third}", grid[0], block[0]);
    assert!(lines.iter().filter(|l| **l == launch).count() > 10, "{launch} is not in\n{log}");
}

/// A layer in fp8, which `wgmma` alone multiplies here: the driver is asked for images.
#[test(slow)]
fn kernels_on_pixels_of_images_are_launched() {
    let folder = driver();
    let body = "
P = T.alloc_buffer((2, 10, 10, 128), \"float8_e4m3fn\")
for n, y, x, c in T.grid(2, 10, 10, 128):
    with T.sblock(\"P\"):
        vn, vy, vx, vc = T.axis.remap(\"SSSS\", [n, y, x, c])
        P[vn, vy, vx, vc] = T.if_then_else(1 <= vy and vy < 9 and 1 <= vx and vx < 9, X[vn, vy - 1, vx - 1, vc], T.float8_e4m3fn(0))
for n, y, x, f, i, j, c in T.grid(2, 8, 8, 64, 3, 3, 128):
    with T.sblock(\"C\"):
        vn, vy, vx, vf, vi, vj, vc = T.axis.remap(\"SSSSRRR\", [n, y, x, f, i, j, c])
        with T.init():
            C[vn, vy, vx, vf] = T.float32(0)
        C[vn, vy, vx, vf] = C[vn, vy, vx, vf] + T.Cast(\"float32\", P[vn, vy + vi, vx + vj, vc]) * T.Cast(\"float32\", W[vf, vi, vj, vc])
";
    let params = "X: 2, 8, 8, 128 float8_e4m3fn; W: 64, 3, 3, 128 float8_e4m3fn; C: 2, 8, 8, 64 float32";
    std::fs::write(folder.path().join("layer.py"), crate::support::script(params, body)).unwrap();
    let layer = folder.path().join("layer.py");
    let arguments =
        ["explore", layer.to_str().unwrap(), "--device", "cuda", "--top", "1", "--no-compile", "--timeout", "10"];
    let run = satune(folder.path(), "", &arguments);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let log = std::fs::read_to_string(folder.path().join("log.txt")).unwrap();
    let images = "images: type 0, rank 4, dims 128 by 1 8 by 1 8 by 1 2 by 1, strides 128 1024 8192, corners -1 to -1 -1 to -1, 128 channels of";
    assert!(log.contains(images), "{log}");
    // Who refuses them is told by its name.
    let run = satune(folder.path(), "refuses", &[&arguments[..], &["--store", "refused.db"]].concat());
    let said = String::from_utf8_lossy(&run.stderr).into_owned() + &String::from_utf8_lossy(&run.stdout);
    assert!(said.contains("cuTensorMapEncodeIm2col refuses"), "{said}");
}

#[test(slow)]
fn faults_of_kernels_with_tensor_maps_have_reasons() {
    let folder = driver();
    for (mode, reason, part) in [
        ("refuses", "crash", "cuTensorMapEncodeTiled refuses"),
        ("illegal", "crash", "ILLEGAL_ADDRESS"),
        ("hang", "timeout", "no answer within"),
    ] {
        let store = format!("{mode}.db");
        let run = satune(folder.path(), mode, &[&WGMMA[..], &[patience(mode), "--store", &store]].concat());
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(1), "{mode}: {said}");
        let rows = satune(folder.path(), "", &["db", "export", "--store", &store]);
        let rows = String::from_utf8_lossy(&rows.stdout).into_owned();
        assert_eq!(rows.matches(&format!("\"reason\":\"{reason}\"")).count(), 1, "{mode}: {rows}");
        assert!(rows.contains(part), "{mode}: {rows}");
    }
}

/// What cannot be launched there is refused like what does not compile: it is no trial, and the search goes on to the best
/// kernel that takes no tensor maps.
#[test(slow)]
fn a_driver_without_tensor_maps_gets_a_kernel_without_them() {
    let folder = libraries(&[("fake_driver.c", "libcuda.so", &["-DOLD"])]);
    let run = satune(folder.path(), "", &[&WGMMA[..], &["60", "--store", "old.db"]].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let candidates = report["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 1);
    assert!(candidates[0]["measured"]["ms"].is_f64(), "{}", candidates[0]);
    for kernel in candidates[0]["kernels"].as_array().unwrap() {
        assert!(kernel["tensor_maps"].as_array().is_none_or(Vec::is_empty), "{kernel}");
    }
    // All but that one are refused, for this reason, and each has its row.
    let refused = report["measured"]["trials"].as_u64().unwrap() - 1;
    assert!(refused > 0);
    assert_eq!(report["measured"]["rejected"], serde_json::json!({"compile_error": refused}));
    let rows = satune(folder.path(), "", &["db", "export", "--store", "old.db"]);
    let rows = String::from_utf8_lossy(&rows.stdout).into_owned();
    for part in ["\"reason\":\"compile_error\"", "this driver (of CUDA 11.8) makes no tensor maps"] {
        assert_eq!(rows.matches(part).count() as u64, refused, "{part}");
    }
}

#[test(slow)]
fn the_library_is_asked_for_the_same_product_in_every_order() {
    let list: [(&str, &str, &[&str]); 2] = [("fake_driver.c", "libcuda.so", &[]), ("fake_blas.c", "libcublas.so", &[])];
    let folder = libraries(&list);
    // (problem, what a column-major library must be asked for: B' A', so n, m, k)
    let cases = [
        ("gemm:16,32,64,bf16", "NN 32 x 16 x 64, types 14 14 0, leading 32 64 32, compute 68"),
        ("gemm:16,32,64,f16,NT", "TN 32 x 16 x 64, types 2 2 0, leading 64 64 32, compute 68"),
        ("gemm:16,32,64,bf16,TN", "NT 32 x 16 x 64, types 14 14 0, leading 32 16 32, compute 68"),
        ("gemm:16,32,64,f16,TT", "TT 32 x 16 x 64, types 2 2 0, leading 64 16 32, compute 68"),
        ("gemm:16,32,64,i8,NT", "TN 32 x 16 x 64, types 3 3 10, leading 64 64 32, compute 72"),
        ("gemm:16,32,64,f32", "NN 32 x 16 x 64, types 0 0 0, leading 32 64 32, compute 68"),
        ("gemm:16,32,64,f64", "NN 32 x 16 x 64, types 1 1 1, leading 32 64 32, compute 70"),
        // Rounded to tf32 where the problem lets it, and into a result in 16 bits.
        ("gemm:16,32,64,tf32,NT", "TN 32 x 16 x 64, types 0 0 0, leading 64 64 32, compute 77"),
        ("gemm:16,32,64,f16,NT,out=f16", "TN 32 x 16 x 64, types 2 2 2, leading 64 64 32, compute 68"),
    ];
    let mut args = vec!["bench", "--device", "cuda", "--top", "1", "--vs", "cublas", "--json"];
    args.extend(cases.iter().map(|c| c.0));
    // One that the library does not have.
    args.push("gemm:16,32,33,i8,NT");
    let run = satune(folder.path(), "", &args);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let log = std::fs::read_to_string(folder.path().join("log.txt")).unwrap();
    for ((problem, asked), row) in cases.iter().zip(rows) {
        assert_eq!(row["program"], *problem);
        assert!((row["ratio"].as_f64().unwrap() - 1.0).abs() < 1e-6, "{row}");
        assert!(log.contains(&format!("blas: {asked}, scalars 1 0\n")), "{asked} is not in\n{log}");
    }
    let missing = rows[cases.len()]["library_missing"].as_str().unwrap();
    assert!(missing.contains("cuBLAS does not have this product"), "{missing}");
    assert!((report["mean_ratio"].as_f64().unwrap() - 1.0).abs() < 1e-6);
}

/// Everything that can be explored is measured, on inputs and a reference of its own, beside what there is.
#[test(slow)]
fn programs_of_every_kind_are_measured_beside_what_there_is() {
    let list: [(&str, &str, &[&str]); 3] = [
        ("fake_driver.c", "libcuda.so", &[]),
        ("fake_blas.c", "libcublas.so", &[]),
        ("fake_lt.c", "libcublasLt.so", &[]),
    ];
    let folder = libraries(&list);
    // (program, what it is compared with, whether that is the same, what is asked of it, comparisons of its results)
    let cases = [
        ("mean:64,256,f32", "a copy of the least bytes", false, "copy: 32896 bytes", "compare_float32"),
        ("softmax:16,64,f16", "a copy of the least bytes", false, "copy: 2048 bytes", "compare_float16"),
        ("transpose:64,64,f32", "a copy of the least bytes", false, "copy: 16384 bytes", "compare_float32"),
        (
            "gemv:32,64,f32",
            "cuBLAS (cublasSgemv)",
            true,
            "blas: rows T 64 x 32, leading 64, steps 1 1, scalars 1 0",
            "compare_float32",
        ),
        (
            "gemm:16,32,64,f32,bias,gelu,residual",
            "cuBLAS, the product alone",
            false,
            "blas: NN 32 x 16 x 64, types 0 0 0, leading 32 64 32, compute 68, scalars 1 0",
            "compare_float32",
        ),
        (
            "gemm:16,32,64,e4m3,NT",
            "cuBLASLt",
            true,
            "lt: T 64 x 32, 64 x 16, 32 x 16, types 28 28 0, leading 64 64 32, compute 68, scalars 1 0",
            "compare_float32",
        ),
    ];
    let mut args = vec!["bench", "--device", "cuda", "--top", "1", "--vs", "cublas", "--json"];
    args.extend(cases.iter().map(|c| c.0));
    args.push("gemm:16,32,64,e5m2,NT");
    let run = satune(folder.path(), "", &args);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let log = std::fs::read_to_string(folder.path().join("log.txt")).unwrap();
    for ((program, what, whole, asked, compared), row) in cases.iter().zip(rows) {
        assert_eq!(
            (&row["program"], &row["library"], &row["library_whole"]),
            (&(*program).into(), &(*what).into(), &(*whole).into())
        );
        assert!((row["ratio"].as_f64().unwrap() - 1.0).abs() < 1e-6, "{row}");
        for line in [asked, compared] {
            assert!(log.lines().any(|l| l == *line), "{program}: {line} is not in\n{log}");
        }
    }
    // The factors, bias and residual of the one with an epilogue are inputs.
    for line in ["fill_float32: 1024 elements", "fill_float32: 32 elements", "fill_float32: 512 elements"] {
        assert!(log.lines().any(|l| l == line), "{line} is not in\n{log}");
    }
    let missing = rows[cases.len()]["library_missing"].as_str().unwrap();
    assert!(missing.contains("cuBLASLt does not have this product"), "{missing}");
    assert!((report["mean_ratio"].as_f64().unwrap() - 1.0).abs() < 1e-6);
}

#[test(slow)]
fn a_program_that_fails_costs_a_benchmark_no_other() {
    let folder = driver();
    // The second needs more memory than there is.
    let programs = ["gemm:16,16,16,f32", "gemm:8192,8192,1,f32", "gemm:24,40,8,f32,NT"];
    let run =
        satune(folder.path(), "", &[&["bench", "--top", "1", "--device", "cuda", "--json"], &programs[..]].concat());
    assert_eq!(run.status.code(), Some(1));
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(said.contains("1 of 3 programs have no result") && said.contains("out of device memory"), "{said}");
    let result: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let names: Vec<&serde_json::Value> = result["rows"].as_array().unwrap().iter().map(|r| &r["program"]).collect();
    assert_eq!(names, [programs[0], programs[2]]);
    assert_eq!((&result["failed"][0]["program"], &result["lost"]), (&programs[1].into(), &false.into()));
    let at = |name: &str| std::fs::read_to_string(folder.path().join("satune-out").join(name)).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&at("bench.json")).unwrap(), result);
    let page = at("report.html");
    assert!(page.contains("href=\"#p2\"") && page.contains("gemm:24,40,8,f32,NT") && !page.contains("8192,8192,1"));
}

/// A `nvidia-smi` that tells the same twice a second.
const SMI: &str = "#!/bin/sh\nwhile :; do echo '1755, 3201, 512.5, 61, 0x0000000000000004'; sleep 0.5; done\n";

#[cfg(unix)]
#[test(slow)]
fn a_pack_is_run_in_turns_with_the_library_and_tells_the_clocks() {
    let list: [(&str, &str, &[&str]); 3] = [
        ("fake_driver.c", "libcuda.so", &[]),
        ("fake_blas.c", "libcublas.so", &[]),
        ("fake_lt.c", "libcublasLt.so", &[]),
    ];
    let folder = libraries(&list);
    let folder = folder.path();
    let smi = folder.join("nvidia-smi");
    std::fs::write(&smi, SMI).unwrap();
    std::fs::set_permissions(&smi, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let programs = ["gemm:64,64,64,bf16,NT", "gemm:64,64,256,e4m3,NT"];
    let pack =
        [&["pack"], &programs[..], &["--top", "2", "--random", "1", "--compared", "0", "--out", "p.pack"]].concat();
    let made = satune(folder, "", &pack);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let args = ["run-pack", "p.pack", "--budget", "900s", "--least-timeout", "60s", "--out", "r", "--json"];
    let old = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let run = Command::new(SATUNE)
        .args(args)
        .current_dir(folder)
        .env("PATH", path)
        .env("LD_LIBRARY_PATH", format!("{}:{old}", folder.display()))
        .env("TMPDIR", folder)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let outcome: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!((&outcome["measured"], &outcome["left"]), (&6.into(), &0.into()), "{outcome}");
    let lines = |name: &str| -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(folder.join("r").join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let seen: Vec<serde_json::Value> = lines("rows.ndjson").iter().map(|row| row["conditions"].clone()).collect();
    let told = serde_json::json!({"sm_mhz": 1755.0, "memory_mhz": 3201.0, "power_w": 512.5, "temperature_c": 61.0,
        "held_back_by": ["power cap"]});
    // Where no sample fell near a short measurement there is none.
    let near = seen.iter().filter(|c| !c.is_null());
    assert!(seen.len() == 6 && near.clone().count() > 0 && near.into_iter().all(|c| *c == told), "{seen:?}");
    // The ways to the library's result: in fp8 with and without fast accumulation.
    let doors = |line: &serde_json::Value| -> Vec<String> {
        let all = line["doors"].as_array().unwrap();
        let mut names: Vec<String> = all.iter().map(|d| d["name"].as_str().unwrap().into()).collect();
        names.sort();
        names
    };
    let libraries = lines("library.ndjson");
    assert_eq!(doors(&libraries[0]), ["cublasGemmEx", "cublasGemmStridedBatchedEx", "cublasLt 1", "cublasLt 2"]);
    let fp8 = ["cublasLt 1", "cublasLt 1, fast accumulation", "cublasLt 2", "cublasLt 2, fast accumulation"];
    assert_eq!(doors(&libraries[1]), fp8);
    let duels = lines("duels.ndjson");
    assert_eq!(duels.len(), 2);
    for duel in duels {
        assert!((duel["ratio"].as_f64().unwrap() - 1.0).abs() < 1e-6 && duel["spread"] == 0.0, "{duel}");
        assert_eq!(duel["duelled"]["ratios"].as_array().unwrap().len(), 10);
    }
    let page = std::fs::read_to_string(folder.join("r/SUMMARY.md")).unwrap();
    assert!(page.contains("| gemm:64,64,256,e4m3,NT | 1.000 | 0.0% |"), "{page}");
}
