//! What several tests need.
use rand::SeedableRng;
use satune::scheduled;
use satune_extract::Counts;
use satune_ir::term::*;
use satune_ir::{interp, tvmscript, DType, Program};
use satune_rewrites::space::{rules, saturate, Fuel, Limits, Menu};
pub use satune_testing::{one_in, samples, seed, some_of};
use std::process::Command;
use std::time::Duration;

/// A GEMM or batched GEMM, operands of type `input`, sums of type `sum`.
pub fn gemm(batch: Option<i64>, m: i64, n: i64, k: i64, input: DType, sum: DType, layout: &str) -> Contraction {
    Contraction::gemm(batch, [m, n, k], input, sum, [layout.starts_with('T'), layout.ends_with('T')])
}

/// A limit that no search reaches: what a test finds must not depend on how busy the machine is.
pub const NO_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Explores a program by the command, as a user does: every candidate is compiled, and its text executed. Returns the report.
pub fn executed(text: &str, gpu: &str, top: usize) -> serde_json::Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("program.py");
    std::fs::write(&file, text).unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_satune"))
        .args(["explore", file.to_str().unwrap(), "--gpu", gpu, "--top", &top.to_string(), "--json", "--out"])
        .arg(folder.path().join("out"))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(0), "{gpu}: {told}\n{text}");
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    if report["not_compiled"].is_string() {
        satune_testing::missing("NVRTC", "cuda");
    }
    let candidates = report["candidates"].as_array().unwrap();
    assert!(!candidates.is_empty() && report["bugs"].as_array().is_none_or(Vec::is_empty), "{report}");
    let ran = candidates.iter().all(|c| c["executed"].is_object());
    assert!(ran, "{gpu}: {}\n{text}", report["not_executed"]);
    report
}

/// How many kernels the best candidate of a report has.
pub fn kernels(report: &serde_json::Value) -> usize {
    report["candidates"][0]["kernels"].as_array().unwrap().len()
}

/// A program with parameters `name: shape, type`, separated by semicolons.
pub fn script(params: &str, body: &str) -> String {
    let param = |text: &str| {
        let (name, rest) = text.split_once(':').unwrap();
        let (shape, dtype) = rest.rsplit_once(' ').unwrap();
        format!("{}: T.Buffer(({}), \"{dtype}\")", name.trim(), shape.trim())
    };
    let params: Vec<String> = params.split(';').map(param).collect();
    let body: String = body.lines().filter(|l| !l.trim().is_empty()).map(|l| format!("    {l}\n")).collect();
    format!("from tvm.script import tirx as T\n\n@T.prim_func(s_tir=True)\ndef main({}):\n{body}", params.join(", "))
}

pub const H200: Limits = Limits { threads: 1024, shared_bytes: 232_448, registers: 255, cp_async: true };

/// The space of a contraction with the usual menu.
pub fn space(contraction: &Contraction) -> Space {
    saturate(contraction, H200, &Menu::of(contraction, &H200), &rules::all(), Fuel::default()).unwrap()
}

/// The source program of a contraction.
pub fn source(contraction: &Contraction) -> satune_ir::Program {
    satune_ir::tvmscript::parse(&satune::operators::script(contraction)).unwrap()
}

/// The GPU that most tests lower for.
pub fn h200() -> satune::lower::program::LowerOptions {
    satune::scheduled::options(&satune_extract::Descriptor::load("h200").unwrap())
}

/// The kernels of a plan, through its trace.
pub fn kernels_of(plan: &CoresPlan, contraction: &Contraction) -> satune::lower::program::Module {
    match satune::scheduled::of_plan(&source(contraction), plan, contraction, &h200()) {
        Ok(scheduled) => scheduled.module,
        Err(error) => panic!("{error}\n{}", plan.describe().join("\n")),
    }
}

/// Random schedules of a space: their traces are replayed on the source; the scheduled program means the same, bit for bit, by
/// the interpreter; its kernels are clean in the simulator and compute the same. `SATUNE_SAMPLES` times `count` of them.
pub fn sampled_schedules_are_right(source: &Program, contraction: &Contraction, count: usize) {
    let options = h200();
    let space = space(contraction);
    let counts = Counts::of(&space);
    let mut rng = rand::rngs::StdRng::seed_from_u64(7);
    for i in 0..samples(count) {
        let plan = CoresPlan::from_term(&counts.sample(&space, &mut rng).unwrap(), contraction).unwrap();
        let told = || plan.describe().join("\n");
        let scheduled = scheduled::of_plan(source, &plan, contraction, &options)
            .unwrap_or_else(|e| panic!("sample {i}: {e}\n{}", told()));
        if let Err(difference) = interp::equal_on(source, &scheduled.program, i as u64) {
            panic!("sample {i}: {difference}\n{}\n{}", told(), tvmscript::print(&scheduled.program));
        }
        if let Err(fault) = scheduled::check(source, &scheduled, i as u64) {
            panic!("sample {i}: {fault}\n{}\n{}", told(), tvmscript::print(&scheduled.program));
        }
        if i % 4 == 0 {
            is_read_back(&scheduled.program, source, contraction, &plan);
        }
    }
}

/// From a scheduled program the plan is read that makes it; two plans may make one program.
pub fn is_read_back(program: &Program, source: &Program, contraction: &Contraction, plan: &CoresPlan) {
    let told = || format!("{}\n{}", plan.describe().join("\n"), tvmscript::print(program));
    let read = satune_rewrites::space::read_plan(program, source, contraction);
    let read = read.unwrap_or_else(|e| panic!("{e}\n{}", told()));
    let of = |plan: &CoresPlan| {
        (plan.tile, plan.k_tile, plan.threads, plan.pipe, plan.a, plan.b, plan.registers, plan.lanes)
    };
    assert_eq!(read.cores().map(of), Some(of(plan)), "{}", told());
}

/// The text of the kernels that a worker needs beside a candidate's, as C++ for one thread. Of machine instructions only the
/// conversion from f16 is there.
pub fn support_as_cpp() -> String {
    let head = r#"
#include <cmath>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#define __device__ static
#define __global__
#define __shared__ static
struct Dim { int x; };
static Dim blockIdx{0}, threadIdx{0}, blockDim{1}, gridDim{1};
static void __syncthreads() {}
static long long clock64() { static long long c = 0; return c += 10; }
static unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
static float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static float half_value(unsigned short h)
{
    int e = h >> 10 & 31, m = h & 1023;
    float f = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf(1024 + m, e - 25) : ldexpf(m, -24);
    return h & 0x8000 ? -f : f;
}
#define asm(...) ((void)0)
"#;
    let text = satune::device::cuda::support_text()
        .replace("asm volatile(", "asm(")
        .replace("asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(f) : \"h\"(half));", "f = half_value(half);");
    format!("{head}{text}")
}
