//! `explore --given`: a schedule from wherever it is, beside the best.
use crate::command::satune;
use crate::support::one_in;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn explore(operator: &str, gpu: &str, out: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_satune"))
        .args(["explore", operator, "--gpu", gpu, "--top", "2", "--twins", "--device", "none", "--json", "--out"])
        .arg(out)
        .args(more)
        .output()
        .unwrap()
}

/// What is told of a schedule that was named.
fn given(operator: &str, gpu: &str, named: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let run = explore(operator, gpu, folder.path(), &["--no-compile", "--given", named]);
    assert!(run.status.success(), "{named}: {}", String::from_utf8_lossy(&run.stderr));
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    report["given"].clone()
}

fn failed(operator: &str, named: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let run = explore(operator, "h200", folder.path(), &["--no-compile", "--given", named]);
    assert_eq!(run.status.code(), Some(2), "{named}: {}", String::from_utf8_lossy(&run.stdout));
    String::from_utf8_lossy(&run.stderr).into_owned()
}

/// Explores, and returns the second candidate with a file of each form of its schedule.
fn forms(operator: &str, gpu: &str, out: &Path) -> (Value, Vec<String>) {
    let run = explore(operator, gpu, out, &["--no-compile"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    let second = report["candidates"][1].clone();
    let plan = out.join("plan.json");
    std::fs::write(&plan, second["plan"].to_string()).unwrap();
    let file = |what: &str| out.join(second[what].as_str().unwrap()).to_str().unwrap().to_string();
    let files = ["scheduled", "trace", "tvm"].map(file).into_iter().chain([plan.to_str().unwrap().to_string()]);
    (second.clone(), files.collect())
}

/// Every form of a candidate's schedule is that candidate.
#[test(slow)]
fn every_form_of_a_schedule_is_taken() {
    let cases = [("softmax:64,512,f32", "h200"), ("gemm:64,72,32,f16,NT,bias", "a100"), ("gemm:96,64,32,f32", "h200")];
    for (operator, gpu) in one_in(2, cases) {
        let folder = tempfile::tempdir().unwrap();
        let (second, files) = forms(operator, gpu, folder.path());
        for file in files {
            let given = given(operator, gpu, &file);
            println!("{operator}, {file}: {given}");
            assert_eq!(given["candidate"], second["rank"], "{operator}: {file}: {given}");
        }
    }
}

/// Words fix some of a schedule; others' words do, too.
#[test(slow)]
fn words_name_the_best_that_keeps_to_them() {
    let product = "gemm:256,256,128,f16,NT";
    let cases = [
        (product, "a100", "tile 64x64x32, 3 stages", "64x64, k 32"),
        (product, "a100", "BLOCK_M=64, BLOCK_N=128, BLOCK_K=32, num_warps=4, num_stages=3", "64x128, k 32"),
        (product, "a100", "cutlass_tensorop_f16_s16816gemm_f16_128x64_32x3_tn_align8", "128x64, k 32"),
        ("gemm:256,256,128,f32", "h200", "64x64x16", "64x64, k 16"),
        ("softmax:64,512,f32", "h200", "threads 128, rows 2", "rows 2"),
    ];
    for (operator, gpu, words, part) in one_in(3, cases) {
        let given = given(operator, gpu, words);
        println!("{operator}, {words}: {given}");
        if given["candidate"].is_null() {
            let lines = given["schedule"].to_string();
            assert!(lines.contains(part) || operator.starts_with("softmax"), "{words}: {given}");
        }
        assert!(given["predicted_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{words}: {given}");
    }
    let refused = given("softmax:64,512,f32", "h200", "threads 77");
    assert!(refused["refused"].as_str().unwrap().contains("threads"), "{refused}");
}

/// What is no schedule of the program is refused with the reason.
#[test]
fn what_is_no_schedule_of_the_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (_, files) = forms("rowsum:64,512,f32", "h200", folder.path());
    let [program, trace] = [&files[0], &files[1]];
    let other = failed("rowsum:64,256,f32", program);
    assert!(other.contains("its parameters are") && other.contains("64x512"), "{other}");
    let other = failed("transpose:64,512,f32", trace);
    assert!(other.contains("is refused"), "{other}");
    let text = std::fs::read_to_string(program).unwrap();
    let wrong = text.replacen("S_local[vi] + ", "S_local[vi] + T.float32(2) * ", 1);
    assert_ne!(text, wrong);
    let file = folder.path().join("wrong.py");
    std::fs::write(&file, wrong).unwrap();
    let run = explore("rowsum:64,512,f32", "h200", &folder.path().join("out"), &["--given", file.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    if report["not_compiled"].is_string() {
        satune_testing::missing("NVRTC", "cuda");
    }
    let why = report["given"]["refused"].as_str().unwrap();
    assert!(why.starts_with("its kernels are wrong"), "{why}");
    // Nor is a plan taken that no rule makes.
    let plan = std::fs::read_to_string(&files[3]).unwrap().replace("\"threads\":32", "\"threads\":0");
    assert!(plan.contains("\"threads\":0"), "{plan}");
    std::fs::write(&files[3], plan).unwrap();
    let idle = given("rowsum:64,512,f32", "h200", &files[3]);
    assert!(idle["refused"].as_str().unwrap().starts_with("not in the space: 0 threads"), "{idle}");
    assert!(failed("rowsum:64,512,f32", "nothing.json").contains("there is no such file"));
    let asked = satune(&["why-not", "rowsum:64,512,f32", "nothing.json", "--gpu", "h200"]);
    assert_eq!(asked.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&asked.stderr).contains("nothing.json: there is no such file"));
}

/// What `satune` says, where it succeeds.
fn said(args: &[&str]) -> String {
    let run = satune(args);
    assert!(run.status.success(), "{args:?}: {}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

/// A schedule of the space's kind that was named is looked at as candidates are, though it is none of the best.
#[test(slow)]
fn a_named_schedule_is_shown_checked_and_emitted() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let (operator, words) = ("gemm:64,64,64,f16,NT", "tile 32x32x16, 2 stages");
    let run = explore(operator, "a100", folder.path(), &["--no-compile", "--given", words]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    let entry = &report["given"]["entry"];
    assert!(entry["schedule"].to_string().contains("32x32, k 16"), "{entry}");
    let id = entry["id"].as_str().unwrap();
    for (command, part) in [("show", "as it is given"), ("why", "What each resource alone"), ("check", "no races")] {
        let text = said(&[command, "given", "--out", out]);
        assert!(text.contains(id) && text.contains(part), "{command}: {text}");
        assert_eq!(text, said(&[command, id, "--out", out]));
    }
    let cuda = said(&["emit", "given", "--out", out]);
    assert!(cuda.contains("__global__") && cuda.contains(id), "{cuda}");
    assert!(said(&["emit", "given", "--as", "c", "--out", out]).contains("cuLaunchKernel"));
    assert!(said(&["diff", "given", "1", "--out", out]).contains("tile"));
    // Where none was given, and where it is none of the space, that is said.
    let none = tempfile::tempdir().unwrap();
    let out = none.path().to_str().unwrap();
    let refused = |out: &str, code: i32| {
        let run = satune(&["show", "given", "--out", out]);
        assert_eq!(run.status.code(), Some(code), "{}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stderr).unwrap()
    };
    let (_, files) = forms("rowsum:64,512,f32", "h200", none.path());
    assert!(refused(out, 2).contains("no schedule was given"));
    let other = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(&files[0]).unwrap();
    let plain = text.replace("T.unroll(", "T.serial(");
    assert_ne!(text, plain);
    std::fs::write(&files[0], plain).unwrap();
    let run = explore("rowsum:64,512,f32", "h200", other.path(), &["--no-compile", "--given", &files[0]]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let why = refused(other.path().to_str().unwrap(), 1);
    assert!(why.contains("none of the space") && why.contains("given"), "{why}");
}

/// Questions of `why-not` may be files, and `bench` measures beside the best.
#[test(slow)]
fn files_are_questions_and_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let operator = "gemm:64,72,32,f16,NT";
    let (second, files) = forms(operator, "a100", folder.path());
    let ms = second["predicted_ms"].as_f64().unwrap();
    for file in one_in(2, &files) {
        let answer = said(&["why-not", operator, file, "--gpu", "a100", "--json"]);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let own = answer[0]["asked"]["predicted_ms"].as_f64();
        println!("{file}: {answer}");
        assert!(own.is_some_and(|own| (own / ms - 1.0).abs() < 1e-9), "{file}: {answer}");
    }
    let (_, single) = forms("rowsum:64,512,f32", "h200", &folder.path().join("rows"));
    let run = satune(&["why-not", "rowsum:64,512,f32", &single[0], "--gpu", "h200"]);
    assert_eq!(run.status.code(), Some(2), "{}", String::from_utf8_lossy(&run.stdout));
    assert!(String::from_utf8_lossy(&run.stderr).contains("explore --given"));
    let out = folder.path().join("bench");
    let out = out.to_str().unwrap();
    let bench = ["bench", operator, "--gpu", "a100", "--device", "simulator", "--top", "2", "--out", out];
    let text = said(&[&bench[..], &["--given", "tile 32x32x16, 2 stages"]].concat());
    assert!(text.contains("the given schedule: "), "{text}");
    let run = satune(&[&bench[..], &["gemm:64,64,64,f16", "--given", "tile 32x32x16"]].concat());
    assert_eq!(run.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&run.stderr).contains("--given is of one program, and 2 are named"));
}

/// Rows of Heron's for 1024 x 1024 x 1024 in f16; the second did not run there.
const ROW_1190: &str =
    "1190,10.28,16,16,16,0,1,1,0,5,4,16,16,1,16,1,32,32,16,1,64,0,16,1,1,1,32,1,1,1,1,4,2,32,24,8,32,8,8";
const ROW_99: &str = "0.0,16,16,16,1,2,1,0,5,4,16,16,1,16,1,32,32,16,1,64,24,16,1,1,1,32,1,1,1,1,1,1,32,24,2,32,24,2";

/// C = A * B^T in f16, as Heron's `dense`.
fn dense(folder: &Path) -> String {
    let body = "
for i, j, k in T.grid(1024, 1024, 1024):
    with T.sblock(\"C\"):
        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
        with T.init():
            C[vi, vj] = T.float16(0)
        C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vj, vk]
";
    let text = crate::support::script("A: 1024, 1024 float16; B: 1024, 1024 float16; C: 1024, 1024 float16", body);
    let path = folder.join("dense.py");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// A row of Heron's is a schedule beside the best, or is refused with its numbers.
#[test(slow)]
fn rows_of_heron_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let dense = dense(folder.path());
    let run = explore(&dense, "v100", folder.path(), &["--given", ROW_1190]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    let given = &report["given"];
    assert!(given["predicted_ms"].as_f64().is_some_and(|ms| ms > 0.02) && given["refused"].is_null(), "{given}");
    assert!(given["executed"].is_object(), "{given}");
    let note = "A.shared 20480 B, B.shared 7168 B, C.shared 32768 B";
    assert!(report["notes"].to_string().contains(note), "{}", report["notes"]);

    let contradicted = ROW_1190.replace(",4,16,16,1,16,", ",4,16,16,1,8,");
    let refused = self::given(&dense, "v100", &contradicted)["refused"].to_string();
    assert!(refused.contains("threadIdx.y is 8, but the loops of dense have 16 x 1 = 16"), "{refused}");
    assert!(failed(&dense, "16,16,16,3,3,1").contains("37 numbers"));

    // A table with the performance before each row: the fastest is meant, and did run.
    let table = folder.path().join("rows.csv");
    std::fs::write(&table, format!("{ROW_99}\n{ROW_1190}\n{}\n", ROW_1190.replacen("10.28", "8.9", 1))).unwrap();
    let run = explore(&dense, "v100", folder.path(), &["--no-compile", "--given", table.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&run.stdout).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    let note = "the given row of Heron's, the fastest of 3, line 2, measured there at 0.0343 ms: ";
    assert!(report["notes"].to_string().contains(note), "{}", report["notes"]);
    let without = format!("{}\n{}", ROW_99.replacen("0.0,", "", 1), ROW_1190.replacen("1190,10.28,", "", 1));
    assert!(failed(&dense, &without).contains("none of its 2 rows has a time"));

    let asked = |row: &str| {
        let run = satune(&["why-not", &dense, "--gpu", "v100", row]);
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8_lossy(&run.stdout).into_owned()
    };
    let run = satune(&["why-not", "softmax:64,64,f32", "--gpu", "v100", ROW_99]);
    assert_eq!(run.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&run.stderr).contains("softmax:64,64,f32 is no product"));
    let why = asked(ROW_99);
    assert!(why.contains("45056 + 7168 = 52224 B > 49152 B: it does not fit"), "{why}");
    let why = asked(ROW_1190);
    // Its tile and its instruction are in the space.
    assert!(why.contains("in the space: ") && why.contains("F16 with f16 sums"), "{why}");
    let why = asked(table.to_str().unwrap());
    for part in ["line 1, which did not run there: wmma, tile", "line 3, measured there at 0.1364 ms: wmma, tile"] {
        assert!(why.contains(part), "{part}: {why}");
    }
}
