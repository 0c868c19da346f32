//! Programs that are scheduled already: what is explored for them is the program that they schedule.
use crate::faults::{explore_of, scripted};
use crate::support::{executed, gemm, h200, kernels, samples, script, some_of, source, space};
use rand::SeedableRng;
use satune::device::ScriptedOutcome as Outcome;
use satune::operators;
use satune::source::work_of_script;
use satune::workload::Workload;
use satune_extract::{Counts, Descriptor};
use satune_ir::term::tensor::{Mma, TensorPlan, WgmmaPlan};
use satune_ir::term::{CoresPlan, Schedule};
use satune_ir::{structural, tvmscript, DType, Program};
use satune_rewrites::space::explored;

fn is_taken_back(scheduled: &Program, source: &Program, told: &str) {
    let (made, wanted) = (explored(scheduled), explored(source));
    if let Err(difference) = structural::equal(&made, &wanted) {
        panic!("{difference:?}\n{told}\n{}\n{}", tvmscript::print(scheduled), tvmscript::print(&made));
    }
}

/// From any member of a space one comes back to its source: so what is explored from there is the same space.
#[test(slow)]
fn members_of_a_space_lead_to_its_source() {
    for contraction in [
        gemm(None, 64, 96, 128, DType::F32, DType::F32, "NN"),
        gemm(None, 60, 36, 50, DType::F16, DType::F32, "NT"),
        gemm(Some(3), 32, 48, 64, DType::F32, DType::F32, "TN"),
    ] {
        let (source, space) = (source(&contraction), space(&contraction));
        let counts = Counts::of(&space);
        let mut rng = rand::rngs::StdRng::seed_from_u64(11);
        for _ in 0..samples(12) {
            let plan = CoresPlan::from_term(&counts.sample(&space, &mut rng).unwrap(), &contraction).unwrap();
            let made = satune::scheduled::of_plan(&source, &plan, &contraction, &h200()).unwrap();
            is_taken_back(&made.program, &source, &plan.describe().join("\n"));
        }
    }
}

/// A program on tensor cores leads to the operator that it is a schedule of.
#[test]
fn members_on_tensor_cores_lead_to_their_operator() {
    let mma = |instruction| Schedule::Mma(TensorPlan::plain([32, 32, 32], [16, 32], instruction, 2));
    let wgmma = Schedule::Wgmma(WgmmaPlan::plain([128, 64, 64], 2, 3));
    for (operator, plan, gpu) in [
        ("gemm:64,72,96,f16,NT,bias", mma(Mma::F16), "a100"),
        ("gemm:64,64,64,bf16,TN,out=bf16,residual,gelu", mma(Mma::Bf16), "a100"),
        ("bmm:3,64,32,64,f16,NN,out=f16", mma(Mma::F16), "a100"),
        ("gemm:64,64,64,tf32,NT", mma(Mma::Tf32), "a100"),
        ("gemm_bias_relu:64,64,64,f16,NN", mma(Mma::F16), "a100"),
        ("gemm:256,128,128,bf16,NT", wgmma.clone(), "h200"),
        ("gemm:256,128,128,f16,TT,out=f16,bias,silu", wgmma, "h200"),
    ] {
        let (problem, gpu) = (operators::parse(operator).unwrap(), Descriptor::load(gpu).unwrap());
        let made = problem.scheduled(&plan, &problem.options(&plan, &gpu)).unwrap();
        let found = work_of_script("theirs.py", &tvmscript::print(&made.program)).unwrap();
        let contraction = found.workload().contraction().unwrap_or_else(|| panic!("{operator}"));
        assert_eq!(contraction, &problem.contraction, "{operator}: {}", found.workload().name());
        assert!(found.workload().given().is_some() && !found.workload().notes().is_empty());
    }
    // What is not tried is not found, though all else is the same.
    let (problem, plan) = (operators::parse("gemm:64,64,64,f16,NT,alpha=0.5").unwrap(), mma(Mma::F16));
    let made = problem.scheduled(&plan, &problem.options(&plan, &Descriptor::load("a100").unwrap())).unwrap();
    assert!(operators::of_scheduled(&made.program).is_none());
}

/// As MetaSchedule leaves a product: with what it adds to be bound, copied and tensorized.
const SCHEDULED: &str = "
local = T.sblock_alloc_buffer((128, 128), scope=\"local\")
shared = T.sblock_alloc_buffer((128, 64), scope=\"shared\")
for b in T.thread_binding(16, thread=\"blockIdx.x\"):
    for t in T.thread_binding(64, thread=\"threadIdx.x\"):
        for i_init, j_init in T.grid(4, 4):
            with T.sblock(\"C_init\"):
                vi = T.axis.spatial(128, b // 4 * 32 + t // 8 * 4 + i_init)
                vj = T.axis.spatial(128, b % 4 * 32 + t % 8 * 4 + j_init)
                local[vi, vj] = T.float32(0)
        for k_0 in range(8):
            for f in range(256):
                with T.sblock(\"shared\"):
                    v0 = T.axis.spatial(128, b // 4 * 32 + f // 8)
                    v1 = T.axis.spatial(64, k_0 * 8 + f % 8)
                    T.sblock_attr({\"meta_schedule.cooperative_fetch\": 2})
                    shared[v0, v1] = A[v0, v1]
            for k_1, i, j in T.grid(8, 4, 4):
                with T.sblock(\"C_update\"):
                    vi = T.axis.spatial(128, b // 4 * 32 + t // 8 * 4 + i)
                    vj = T.axis.spatial(128, b % 4 * 32 + t % 8 * 4 + j)
                    vk = T.axis.reduce(64, k_0 * 8 + k_1)
                    local[vi, vj] = local[vi, vj] + shared[vi, vk] * B[vk, vj]
        for i, j in T.grid(4, 4):
            with T.sblock(\"write\"):
                vi = T.axis.spatial(128, b // 4 * 32 + t // 8 * 4 + i)
                vj = T.axis.spatial(128, b % 4 * 32 + t % 8 * 4 + j)
                C[vi, vj] = local[vi, vj]
";

#[test]
fn a_schedule_from_elsewhere_is_explored_as_what_it_schedules() {
    let text = script("A: 128, 64 float32; B: 64, 128 float32; C: 128, 128 float32", SCHEDULED);
    let work = work_of_script("given.py", &text).unwrap();
    let contraction = work.workload().contraction().unwrap();
    let extents: Vec<i64> = contraction.iters.iter().map(|(_, info)| info.extent).collect();
    assert_eq!((extents, contraction.block_name.as_str()), (vec![128, 128, 64], "C"));
    let notes = work.workload().notes();
    assert!(notes.iter().any(|n| n.contains("is scheduled already")), "{notes:?}");
    // One that leaves out the last values of k is another program, and no product.
    let fewer = text.replace("for k_0 in range(8)", "for k_0 in range(7)");
    assert_ne!(fewer, text);
    let other = work_of_script("given.py", &fewer);
    assert!(other.is_err() || other.is_ok_and(|work| work.workload().contraction().is_none()));
}

fn product(types: [&str; 3], int: &str, after: &str) -> String {
    let [factor, sum, result] = types;
    let n = |extent: i64| format!("{int}({extent})");
    let cast = |e: &str| if factor == sum { e.to_string() } else { format!("T.Cast(\"{sum}\", {e})") };
    let (a, b) = (cast("A[vi, vk]"), cast("B[vj, vk]"));
    let zero = if sum == "int32" { "0".into() } else { format!("T.{sum}(0)") };
    let shape = format!("{0}, {0}", n(512));
    let body = format!(
        "
S = T.sblock_alloc_buffer(({shape}), \"{sum}\")
for i, j, k in T.grid({0}, {0}, {0}):
    with T.sblock(\"S\"):
        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
        with T.init():
            S[vi, vj] = {zero}
        S[vi, vj] = S[vi, vj] + {a} * {b}
for i, j in T.grid({0}, {0}):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = {after}
",
        n(512)
    );
    script(&format!("A: {shape} {factor}; B: {shape} {factor}; C: {shape} {result}"), &body)
}

/// Programs from Relax have indices of 64 bits: so have the implementations of tensor intrinsics in them.
#[test(slow)]
fn indices_of_64_bits_are_taken_on_tensor_cores() {
    let half = product(["float16", "float32", "float16"], "T.int64", "T.Cast(\"float16\", S[vi, vj])");
    let [b, n, k] = ["T.int64(12)", "T.int64(197)", "T.int64(64)"];
    let params = format!("A: {b}, {n}, {k} int8; B: {b}, {n}, {k} int8; C: {b}, {n}, {n} int32");
    let body = format!(
        "
for b, i, j, k in T.grid({b}, {n}, {n}, {k}):
    with T.sblock(\"C\"):
        vb, vi, vj, vk = T.axis.remap(\"SSSR\", [b, i, j, k])
        with T.init():
            C[vb, vi, vj] = 0
        C[vb, vi, vj] = C[vb, vi, vj] + T.Cast(\"int32\", A[vb, vi, vk]) * T.Cast(\"int32\", B[vb, vj, vk])
"
    );
    let bytes = script(&params, &body);
    for (text, gpu) in some_of([(&half, "h200"), (&half, "a100"), (&half, "t4"), (&bytes, "h200")], 2) {
        on_tensor_cores(&executed(text, gpu, 2), gpu);
    }
}

fn on_tensor_cores(report: &serde_json::Value, gpu: &str) {
    let plan = report["candidates"][0]["schedule"].to_string();
    assert!(plan.contains("mma"), "{gpu}: {plan}");
}

/// Arithmetic on narrow floats after a product is that of its type: each step is rounded.
#[test(slow)]
fn blocks_after_a_product_may_compute_in_narrow_floats() {
    for (dtype, gpu) in some_of([("float16", "h200"), ("bfloat16", "a100"), ("float16", "t4")], 1) {
        let rounded = format!("T.Cast(\"{dtype}\", S[vi, vj])");
        let after = format!("T.max({rounded} * A[vi, vj] + B[vi, vj], T.{dtype}(0.25)) - T.{dtype}(0.1)");
        on_tensor_cores(&executed(&product([dtype, "float32", dtype], "", &after), gpu, 2), gpu);
    }
}

/// What is added to a product may be one of its factors.
#[test(slow)]
fn a_factor_is_read_again_after_the_product() {
    for (value, gpu) in some_of([("S[vi, vj] + A[vi, vj]", "h200"), ("S[vi, vj] * B[vj, vi] + A[vj, vi]", "a100")], 1) {
        executed(&product(["float32"; 3], "", value), gpu, 2);
    }
    let half = product(["float16", "float32", "float16"], "", "T.Cast(\"float16\", S[vi, vj]) + A[vi, vj]");
    for gpu in some_of(["h200", "a100", "v100"], 1) {
        on_tensor_cores(&executed(&half, gpu, 2), gpu);
    }
}

/// The schedule that a program came with is lowered, executed and predicted beside the best; one of the space is found among the best.
#[test(slow)]
fn the_given_schedule_is_compared_with_the_best() {
    let text = script("A: 128, 64 float32; B: 64, 128 float32; C: 128, 128 float32", SCHEDULED);
    let report = executed(&text, "h200", 2);
    let given = &report["given"];
    let ms = |of: &serde_json::Value| of["predicted_ms"].as_f64().unwrap();
    assert!(given["refused"].is_null() && ms(given) >= ms(&report["candidates"][0]), "{given}");
    assert_eq!((&given["executed"]["blocks"], &given["executed"]["of"]), (&16.into(), &16.into()), "{given}");
    assert_eq!(given["kernels"][0]["grid"], serde_json::json!([16, 1, 1]));
    // By one block it takes longer.
    let slow = text.replace("T.thread_binding(16, thread=\"blockIdx.x\")", "range(16)");
    assert_ne!(slow, text);
    assert!(ms(&executed(&slow, "h200", 1)["given"]) > 2.0 * ms(given));
}

/// A device measures it, too, after the candidates.
#[test]
fn the_given_schedule_is_measured_where_candidates_are() {
    let (folder, ..) = scripted(&[Outcome::Time(0.25)]);
    let file = folder.path().join("program.py");
    let text = script("A: 128, 64 float32; B: 64, 128 float32; C: 128, 128 float32", SCHEDULED);
    std::fs::write(&file, text).unwrap();
    // Kernels that no candidate can be, and a schedule of the space's kind.
    let words = ["--given", "block 32x32, k 8"];
    for (program, named) in [(file.to_str().unwrap(), &[][..]), ("gemm:64,64,32,f32", &words)] {
        let run = explore_of(program, folder.path(), 2).args(named).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
        let measured = &report["given"]["measured"];
        assert_eq!((&measured["ms"], &measured["repeats"]), (&0.25.into(), &5.into()), "{}", report["given"]);
    }
}

#[test]
fn a_given_schedule_that_cannot_run_is_refused_with_its_reason() {
    let text = script("A: 128, 64 float32; B: 64, 128 float32; C: 128, 128 float32", SCHEDULED);
    // Nothing is bound: there is no kernel.
    let serial = text.replace("T.thread_binding(64, thread=\"threadIdx.x\")", "range(64)");
    let serial = serial.replace("T.thread_binding(16, thread=\"blockIdx.x\")", "range(16)");
    let report = executed(&serial, "h200", 1);
    let refused = report["given"]["refused"].as_str().unwrap_or_default();
    assert!(refused.contains("outside of every kernel"), "{}", report["given"]);
    // An instruction that the GPU does not have.
    let report = executed(include_str!("../cases/wgmma/plain.py"), "a100", 1);
    assert_eq!(report["given"]["refused"], "a100 has no wgmma", "{}", report["given"]);
}

#[test(slow)]
fn a_member_of_the_space_is_found_among_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let explored = |program: &str, out: &str| {
        let run = std::process::Command::new(env!("CARGO_BIN_EXE_satune"))
            .args(["explore", program, "--gpu", "h200", "--top", "2", "--no-compile", "--json", "--out"])
            .arg(folder.path().join(out))
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
        serde_json::from_slice::<serde_json::Value>(&run.stdout).unwrap()
    };
    for (operator, best) in [("gemm:256,256,256,f32", "a"), ("softmax:512,512,f32", "b")] {
        let report = explored(operator, best);
        let file = folder.path().join(best).join(report["candidates"][0]["scheduled"].as_str().unwrap());
        let again = explored(file.to_str().unwrap(), &format!("{best}_again"));
        assert_eq!(again["given"]["candidate"], 1, "{operator}: {}", again["given"]);
        assert_eq!(again["candidates"][0]["predicted_ms"], report["candidates"][0]["predicted_ms"], "{operator}");
    }
}

/// Weights of 4 bits, eight in an element, with a scale for each 32; `by_columns`: they lie across.
fn quantized(by_columns: bool) -> String {
    let (shape, scales) = if by_columns { ("64, 256", "16, 256") } else { ("256, 64", "256, 16") };
    let at = |quotient: i64| match by_columns {
        true => format!("vk // {quotient}, vn"),
        false => format!("vn, vk // {quotient}"),
    };
    let body = format!(
        "
W = T.sblock_alloc_buffer((256, 512))
for n, k in T.grid(256, 512):
    with T.sblock(\"decode\"):
        vn, vk = T.axis.remap(\"SS\", [n, k])
        W[vn, vk] = (T.Cast(\"float32\", (Q[{}] >> T.Cast(\"uint32\", vk % 8 * 4)) & T.uint32(15)) - T.float32(7)) * S[{}]
for i, n, k in T.grid(1, 256, 512):
    with T.sblock(\"Y\"):
        vi, vn, vk = T.axis.remap(\"SSR\", [i, n, k])
        with T.init():
            Y[vi, vn] = T.float32(0)
        Y[vi, vn] = Y[vi, vn] + X[vi, vk] * W[vn, vk]
",
        at(8),
        at(32)
    );
    script(&format!("Q: {shape} uint32; S: {scales} float32; X: 1, 512 float32; Y: 1, 256 float32"), &body)
}

/// Weights that are packed are unpacked where they are used: one kernel of rows, and nothing in between.
#[test]
fn packed_weights_are_unpacked_in_the_kernel_that_uses_them() {
    let report = executed(&quantized(false), "h200", 2);
    assert_eq!(kernels(&report), 1, "{}", report["candidates"][0]["schedule"]);
    assert_eq!(report["shapes"][0], serde_json::json!([256, 64]), "shapes are those of the given program");
    executed(&quantized(true), "a100", 2);
}
