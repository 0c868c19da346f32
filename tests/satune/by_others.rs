//! Schedules on tensor cores that are no plans: what TVM's own schedulers make of products, and the scheduled programs of plans taken as
//! programs. Each is lowered statement by statement, and its kernels compute what the product does.
use crate::support::*;
use crate::tensor_space::on_tensor_cores;
use crate::tvm::ask;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use satune::explore::tensor_cores;
use satune::lower::program::lower;
use satune::operators;
use satune::scheduled::{check, of_program, options, replayed, GivenSchedule};
use satune::source::work_of_script;
use satune::workload::Workload;
use satune_extract::{Counts, Descriptor};
use satune_ir::term::tensor::{CopyOrder, Mma, OperandPlan, Store, TensorPlan, Wmma, WmmaShape};
use satune_ir::term::Schedule;
use satune_ir::{structural, tvmscript, DType, Program};
use satune_rewrites::heron::{Row, Rows};
use satune_rewrites::space::contraction;
use satune_rewrites::space::rules::tensor::{TensorCores, TensorMenu};
use satune_rewrites::{Call, Trace};
use satune_testing::seed;
use serde_json::json;

/// The kernels of a scheduled program are right for its source.
fn lowered(told: &str, source: &Program, program: &Program, gpu: &Descriptor) {
    let made = of_program((Trace::default(), program.clone()), &options(gpu))
        .unwrap_or_else(|e| panic!("{told}: {e}\n{}", tvmscript::print(program)));
    let checked = check(source, &made, seed()).unwrap_or_else(|e| panic!("{told}: {e}\n{}", tvmscript::print(program)));
    assert!(checked.total.matrix > 0, "{told}: nothing is multiplied on tensor cores");
    let mut notes = made.module.kernels.iter().flat_map(|k| &k.notes);
    assert_eq!(notes.find(|note| note.contains("pipeline")), None, "{told}\n{}", tvmscript::print(program));
}

/// What is explored of a scheduled program is what it schedules, and its own schedule is given.
fn explored_as(told: &str, scheduled: &Program, source: &Program) {
    let text = tvmscript::print(scheduled);
    let work = work_of_script("theirs.py", &text).unwrap_or_else(|e| panic!("{told}: {e}\n{text}"));
    let work = work.workload();
    structural::equal(work.program(), source)
        .unwrap_or_else(|e| panic!("{told}: {e:?}\n{text}\n{}", tvmscript::print(work.program())));
    assert!(matches!(work.given(), Some(GivenSchedule::Program(_))), "{told}");
}

/// What MetaSchedule and dlight make of products is explored as the product, and is a given schedule that has kernels.
#[test(slow)]
fn schedules_of_tvm_on_tensor_cores_have_kernels() {
    let mut rng = StdRng::seed_from_u64(seed());
    let mut asked = Vec::new();
    for (by, types, least) in [
        ("meta_schedule", ["f16", "f16"], 8),
        ("meta_schedule", ["i8", "i8"], 4),
        ("pipelined", ["f16", "f16"], 4),
        ("dlight", ["f16", "f16"], 2),
    ] {
        for _ in 0..samples(least) {
            let [m, n, k] = [64, 32, 64].map(|unit| unit * rng.gen_range(1..4_i64));
            // dlight pads what is no whole tile.
            let m = if by == "dlight" && rng.gen_bool(0.5) { m - 28 } else { m };
            let order = if by == "pipelined" { "NN" } else { ["NN", "NT", "TN", "TT"][rng.gen_range(0..4)] };
            let operator = format!("gemm:{m},{n},{k},{},{order}", types[0]);
            asked.push((by, operator, rng.gen_range(0..1000_u32)));
        }
    }
    let requests: Vec<_> = asked
        .iter()
        .map(|(by, operator, seed)| {
            let script = operators::parse(operator).unwrap().script;
            json!({"schedule": script, "by": by, "arch": if operator.contains("i8") { "sm_75" } else { "sm_70" }, "seed": seed})
        })
        .collect();
    let answers = ask::ask("by_others", &requests);
    let mut found = 0;
    for ((by, operator, seed), answer) in asked.iter().zip(&answers) {
        let told = format!("{by} {seed} of {operator}");
        assert!(answer["error"].is_null(), "{told}: {}", answer["error"]);
        // Of few rows dlight makes a schedule on single threads.
        let Some(text) = answer["final"].as_str().filter(|text| text.contains("wmma")) else { continue };
        found += 1;
        let problem = operators::parse(operator).unwrap();
        let theirs = tvmscript::parse(text).unwrap_or_else(|e| panic!("{told}: {e}\n{text}"));
        let gpu = Descriptor::load(if operator.contains("i8") { "t4" } else { "v100" }).unwrap();
        lowered(&told, problem.program(), &theirs, &gpu);
        if text.contains("_pad") {
            continue;
        }
        explored_as(&told, &theirs, problem.program());
    }
    assert!(found * 3 > asked.len(), "{found} of {}", asked.len());
}

/// What a plan's trace makes is a program as any other: lowered as it is written it computes what its source does.
#[test]
fn programs_of_plans_on_wmma_are_lowered_as_they_are_written() {
    let op = |shape, dtype| Mma::Wmma(Wmma::of(shape, dtype).unwrap());
    let plain = |tile, warp, op| TensorPlan::plain(tile, warp, op, 2);
    let half = plain([64, 64, 32], [32, 32], op(WmmaShape::M16N16, DType::F16));
    let late = OperandPlan { step: 1, order: CopyOrder::Columns, ..half.operands[0] };
    let staged = TensorPlan { store: Store::Shared { stmatrix: false }, ..half.clone() };
    for (operator, plan) in [
        ("gemm:128,64,96,f16,NT", half.clone()),
        (
            "gemm:64,128,128,f16,TN",
            TensorPlan { tile: [64, 64, 64], operands: [late, half.operands[1]], ..half.clone() },
        ),
        ("gemm:100,60,70,f16,NN,out=f16,bias", staged.clone()),
        ("gemm:64,64,64,bf16,TT", plain([64, 32, 32], [32, 16], op(WmmaShape::M32N8, DType::BF16))),
        ("gemm:64,64,64,i8,NT", plain([32, 64, 64], [8, 64], op(WmmaShape::M8N32, DType::I8))),
        ("bmm:3,64,64,64,f16,NT", half),
    ] {
        let (problem, gpu) = (operators::parse(operator).unwrap(), Descriptor::load("a100").unwrap());
        let plan = Schedule::Mma(plan);
        let made =
            problem.scheduled(&plan, &problem.options(&plan, &gpu)).unwrap_or_else(|e| panic!("{operator}: {e}"));
        let checked = check(problem.program(), &made, 5)
            .unwrap_or_else(|e| panic!("{operator}: {e}\n{}", satune::cuda::print(&made.module.kernels[0])));
        assert!(checked.total.matrix > 0, "{operator}");
    }
}

/// The same of plans on `mma.sync`, which lanes hold: random ones of the space.
#[test]
fn programs_of_plans_on_mma_sync_are_lowered_as_they_are_written() {
    let mut rng = StdRng::seed_from_u64(seed());
    for (operator, gpu) in [
        ("gemm:128,64,96,f16,NT", "a100"),
        ("gemm:64,128,128,bf16,TN", "a100"),
        ("gemm:100,64,72,f16,NN,out=f16,bias", "h200"),
        ("gemm:64,64,64,f16,TT", "t4"),
        ("gemm:64,64,96,f16,NT,sum=f16", "a100"),
        ("gemm:64,64,64,i8,NT", "t4"),
        ("gemm:64,96,128,i8,NT", "a100"),
        ("gemm:64,96,128,i8,NN", "a100"),
        ("gemm:96,64,128,i8,TT", "t4"),
        ("gemm:96,64,96,e4m3,TN,out=f16,bias", "rtx4090"),
        ("gemm:64,64,64,tf32,NT", "a100"),
        ("gemm:64,64,64,e4m3,NT", "rtx4090"),
        ("bmm:3,64,64,64,f16,NT", "a100"),
        ("gemm:100,64,72,f16,NT,alpha=0.5,bias", "a100"),
    ] {
        let (problem, gpu) = (operators::parse(operator).unwrap(), Descriptor::load(gpu).unwrap());
        let cores = TensorCores { tf32: problem.tf32, ..tensor_cores(&gpu) };
        let space = on_tensor_cores(&problem.contraction, &gpu, TensorMenu::of(&problem.contraction, &cores));
        let counts = Counts::of(&space);
        for _ in 0..samples(3) {
            let plan = (0..500).find_map(|_| {
                let term = counts.sample(&space, &mut rng)?;
                let plan = Schedule::from_term(&term, &problem.contraction).ok()?;
                matches!(&plan, Schedule::Mma(plan) if plan.instruction.wmma().is_none()).then_some(plan)
            });
            let plan = plan.unwrap_or_else(|| panic!("{operator}"));
            let made =
                problem.scheduled(&plan, &problem.options(&plan, &gpu)).unwrap_or_else(|e| panic!("{operator}: {e}"));
            let told = plan.describe().join("\n");
            // No operator's: what is explored is taken from the program alone.
            if operator.contains("alpha") {
                let text = tvmscript::print(&made.program);
                let work = work_of_script("plan.py", &text).unwrap_or_else(|e| panic!("{operator}: {e}\n{text}"));
                let source = tvmscript::print(work.workload().program());
                assert!(work.workload().contraction().is_some(), "{operator}: {told}\n{source}\n{text}");
            }
            let texts = || made.module.kernels.iter().map(satune::cuda::print).collect::<String>();
            let checked = check(problem.program(), &made, 5).unwrap_or_else(|e| {
                panic!("{operator}: {e}\n{told}\n{}\n{}", tvmscript::print(&made.program), texts())
            });
            assert!(checked.total.matrix > 0, "{operator}");
            // Bytes across k come by whole matrices, too.
            let bytes = problem.contraction.a.dtype.bytes() == 1;
            assert!(
                !bytes || texts().contains("load_matrix_") && !texts().contains("_shared_warp_vector"),
                "{operator}: {told}\n{}",
                texts()
            );
        }
    }
}

/// Pipelines around others, as TVM annotates them, have the kernels of those that say one stage for each statement.
#[test]
fn pipelines_around_others_are_lowered_as_one() {
    let wmma = Mma::Wmma(Wmma::of(WmmaShape::M16N16, DType::F16).unwrap());
    let plain = |op, stages| {
        let plan = TensorPlan::plain([64, 64, 64], [32, 32], op, stages);
        TensorPlan { operands: plan.operands.map(|o| OperandPlan { sets: 2, ..o }), ..plan }
    };
    let outer = |stages: &str, order: &str| {
        format!("\"software_pipeline_stage\": [{stages}], \"software_pipeline_order\": [{order}]")
    };
    for (plan, gpu, written, nested, other) in [
        (plain(Mma::F16, 3), "a100", "0, 0, 2", ["0, 0, 1, 2, 2", "0, 1, 3, 2, 4"], "0, 1, 2, 3, 4"),
        (plain(wmma, 2), "v100", "0, 0, 1", ["0, 0, 0, 0, 0, 1, 1", "0, 3, 1, 4, 5, 2, 6"], "0, 1, 2, 3, 4, 5, 6"),
    ] {
        let (problem, gpu) = (operators::parse("gemm:128,128,256,f16,NT").unwrap(), Descriptor::load(gpu).unwrap());
        let plan = Schedule::Mma(plan);
        let made = problem.scheduled(&plan, &problem.options(&plan, &gpu)).unwrap();
        let text = tvmscript::print(&made.program);
        let written = outer(written, "0, 1, 2");
        assert!(text.matches(&written).count() >= 1, "{text}");
        let lowered = |by: &str| {
            // The loop over tiles comes first.
            let program = tvmscript::parse(&text.replacen(&written, by, 1)).unwrap();
            lower(&program, &options(&gpu)).unwrap().kernels.remove(0)
        };
        let [as_written, as_one] = [written.as_str(), &outer(nested[0], nested[1])].map(lowered);
        assert_eq!(satune::cuda::print(&as_one), satune::cuda::print(&as_written));
        let refused = lowered(&outer(nested[0], other));
        assert!(refused.notes.iter().any(|n| n.contains("is not pipelined")), "{:?}", refused.notes);
    }
}

/// On GPUs without asynchronous copies a schedule may have one to eight buffers, rows padded by any number of chunks, and copies by way of
/// registers or not.
#[test]
fn rings_of_one_to_eight_buffers_and_pads_of_any_chunks_have_kernels() {
    let mut rng = StdRng::seed_from_u64(seed());
    let op = Mma::Wmma(Wmma::of(WmmaShape::M16N16, DType::F16).unwrap());
    let (problem, gpu) = (operators::parse("gemm:64,64,160,f16,NT").unwrap(), Descriptor::load("v100").unwrap());
    let plan = Schedule::Mma(TensorPlan::plain([32, 64, 32], [16, 32], op, 2));
    let made = problem.scheduled(&plan, &problem.options(&plan, &gpu)).unwrap();
    let text = tvmscript::print(&made.program);
    let ring = "\"software_pipeline_stage\": [0, 0, 1], \"software_pipeline_order\": [0, 1, 2]";
    let attributes = |annotation: &str, pad: i64| {
        format!("T.sblock_attr({{{annotation}\"buffer_dim_align\": [[0, 0, 32, {}]]}})", 8 * pad)
    };
    let local = format!("\"{}\": 1, ", satune_rewrites::keys::LOCAL_STAGE);
    let usual = attributes(&local, 1).replace("[0, 0, 32, 8]", "[0, 0, 16, 8]");
    assert!(text.contains(ring) && text.matches(&usual).count() == 2, "{text}");
    for buffers in 1..=8_usize {
        let staged = rng.gen_bool(0.5);
        let annotation = if staged { local.as_str() } else { "" };
        let [a, b] = [0, 1].map(|_| rng.gen_range(0..4));
        // In one buffer nothing is loaded ahead.
        let text = match buffers {
            1 => text.replace(ring, ""),
            _ => text.replacen(ring, &ring.replace("[0, 0, 1]", &format!("[0, 0, {}]", buffers - 1)), 1),
        };
        let text = text.replacen(&usual, &attributes(annotation, a), 1);
        let text = text.replacen(&usual, &attributes(annotation, b), 1);
        let program = tvmscript::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        lowered(&format!("{buffers} buffers, pads {a} and {b}, staged {staged}"), problem.program(), &program, &gpu);
    }
}

/// Calls of a trace.
#[derive(Default)]
struct Calls(Vec<serde_json::Value>);

impl Calls {
    fn add(&mut self, op: &str, args: serde_json::Value, out: serde_json::Value) {
        let mut call = json!({"op": op, "args": args});
        if !out.is_null() {
            call["out"] = out;
        }
        self.0.push(call);
    }

    /// A call with no result.
    fn go(&mut self, op: &str, args: serde_json::Value) {
        self.add(op, args, json!(null));
    }

    fn transform_layout(&mut self, block: &str, buffer: &str, map: &str) {
        self.0.push(json!({"op": "transform_layout", "args": [block, [buffer, 0]], "kwargs": {"index_map": map}}));
    }
}

/// A product as TVM's own schedules on `mma.sync` have it: tiles of 16 x 16 that warps hold, `ldmatrix`, two multiplications side by side.
fn on_lanes([operand, sums]: [&str; 2], order: &str, rng: &mut StdRng) -> Trace {
    let mut draw = |of: &[i64]| of[rng.gen_range(0..of.len())];
    let (warps, tiles, steps) = ([draw(&[1, 2]), draw(&[1, 2])], [draw(&[1, 2, 3]), draw(&[1, 2, 4])], draw(&[1, 2]));
    let bytes = !operand.contains("f16");
    let k = if bytes { 32 } else { 16 };
    let shared = if bytes { "shared" } else { ["shared", "shared.dyn"][draw(&[0, 1]) as usize] };
    let suffix = if shared == "shared" { "" } else { "_dyn" };
    let store = [("global", ""), ("shared_dyn", "simple_")][draw(&[0, usize::from(sums != "i32") as i64]) as usize];
    let transposed = [order.starts_with('T'), order.ends_with('T')];
    let mut t = Calls::default();
    t.add("get_sblock", json!(["C"]), json!("C"));
    t.add("get_loops", json!(["$C"]), json!(["i", "j", "k"]));
    for (axis, unit) in [("i", 16), ("j", 16), ("k", k)] {
        t.add("split", json!([format!("${axis}"), [null, unit]]), json!([format!("{axis}_o"), format!("{axis}_t")]));
    }
    t.go("reorder", json!(["$i_o", "$j_o", "$k_o", "$i_t", "$j_t", "$k_t"]));
    t.add("blockize", json!(["$i_t"]), json!("tile"));
    t.add("split", json!(["$i_o", [null, warps[0], tiles[0]]]), json!(["i0", "i1", "i2"]));
    t.add("split", json!(["$j_o", [null, warps[1], tiles[1]]]), json!(["j0", "j1", "j2"]));
    t.add("split", json!(["$k_o", [null, steps]]), json!(["k0", "k1"]));
    t.go("reorder", json!(["$i0", "$j0", "$i1", "$j1", "$k0", "$k1", "$i2", "$j2"]));
    for (l, tag) in [("$i0", "blockIdx.y"), ("$j0", "blockIdx.x"), ("$i1", "threadIdx.z"), ("$j1", "threadIdx.y")] {
        t.go("bind", json!([l, tag]));
    }
    for (side, name) in ["a", "b"].iter().enumerate() {
        let (block, held) = (format!("${name}_shared"), format!("${name}_warp"));
        t.add("cache_read", json!(["$tile", side, shared, ["$tile"]]), json!(block[1..]));
        t.go("compute_at", json!([block, "$k0", true]));
        t.add("get_loops", json!([block]), json!(format!("{name}_loops")));
        let all = format!("${name}_all");
        t.add("fuse", json!([format!("${name}_loops[-2]"), format!("${name}_loops[-1]")]), json!(all[1..]));
        let parts = ["o", "y", "z", "x", "v"].map(|part| format!("{name}_{part}"));
        t.add("split", json!([all, [null, warps[1], warps[0], 32, 8]]), json!(parts));
        for (part, tag) in [(1, "threadIdx.y"), (2, "threadIdx.z"), (3, "threadIdx.x")] {
            t.go("bind", json!([format!("${}", parts[part]), tag]));
        }
        t.go("vectorize", json!([format!("${}", parts[4])]));
        t.go("storage_align", json!([block, 0, -2, k, k / 2]));
        t.add("cache_read", json!(["$tile", side, "warp", ["$tile"]]), json!(held[1..]));
        t.go("compute_at", json!([held, "$k1", true]));
    }
    if store.0 != "global" {
        t.add("cache_write", json!(["$tile", 0, "shared.dyn"]), json!("c_shared"));
    }
    t.add("cache_write", json!(["$tile", 0, "warp"]), json!("c_warp"));
    t.go("reverse_compute_at", json!(["$c_warp", "$j1", true]));
    if store.0 != "global" {
        t.go("reverse_compute_at", json!(["$c_shared", "$j1", true]));
    }
    t.add("get_loops", json!(["$c_warp"]), json!("c_loops"));
    t.add("split", json!(["$c_loops[-2]", [null, 16]]), json!(["c_io", "c_i"]));
    t.add("split", json!(["$c_loops[-1]", [null, 16]]), json!(["c_jo", "c_j"]));
    t.go("reorder", json!(["$c_io", "$c_jo", "$c_i", "$c_j"]));
    t.add("decompose_reduction", json!(["$tile", "$k0"]), json!("clear"));
    let halves =
        "lambda i, j: (i // 16, j // 16, 4 * (i % 8) + j % 8 // 2, 4 * (j % 16 // 8) + i % 16 // 8 * 2 + j % 2)";
    let words =
        "lambda i, j: (i // 16, j // 32, 4 * (i % 8) + j % 16 // 4, 8 * (j % 32 // 16) + i % 16 // 8 * 4 + j % 4)";
    let across =
        "lambda i, j: (i // 32, j // 16, i % 16 // 4 + 4 * (j % 8), 8 * (j % 16 // 8) + i % 32 // 16 * 4 + i % 4)";
    let map_of = |is_across: bool| match (bytes, is_across) {
        (false, _) => halves,
        (true, false) => words,
        (true, true) => across,
    };
    t.transform_layout("$a_warp", "write", map_of(false));
    t.transform_layout("$b_warp", "write", map_of(!transposed[1]));
    t.transform_layout("$c_warp", "read", halves);
    for (name, is_transposed) in [("a", transposed[0]), ("b", transposed[1])] {
        let loops = format!("${name}_held");
        t.add("get_loops", json!([format!("${name}_warp")]), json!(loops[1..]));
        let across = is_transposed == (name == "a");
        let units = if across { [k, 16] } else { [16, k] };
        for (at, part, unit) in [(-2, "i", units[0]), (-1, "j", units[1])] {
            let out = [format!("{name}_{part}o"), format!("{name}_{part}t")];
            t.add("split", json!([format!("{loops}[{at}]"), [null, unit]]), json!(out));
        }
        let order = ["io", "jo", "it", "jt"].map(|part| format!("${name}_{part}"));
        t.go("reorder", json!(order));
        let trans = if is_transposed { "_trans" } else { "" };
        t.go("tensorize", json!([order[2], format!("mma_ldmatrix_{operand}_{name}{trans}{suffix}")]));
    }
    let trans = [("_trans_a", transposed[0]), ("_trans_b", transposed[1])];
    let trans: String = trans.into_iter().filter(|(_, is)| *is).map(|(text, _)| text).collect();
    t.go("tensorize", json!(["$tile", format!("mma_{operand}{operand}{sums}{trans}")]));
    t.go("tensorize", json!(["$clear", format!("mma_fill_16x16_{sums}")]));
    t.go("tensorize", json!(["$c_i", format!("mma_store_16x16_{sums}_{}_{}", store.0, store.1)]));
    if store.0 != "global" {
        t.add("get_loops", json!(["$c_shared"]), json!("out_loops"));
        t.add("fuse", json!(["$out_loops[-2]", "$out_loops[-1]"]), json!("out"));
        t.add("split", json!(["$out", [null, 32, 4]]), json!(["out_o", "out_x", "out_v"]));
        t.go("bind", json!(["$out_x", "threadIdx.x"]));
        t.go("vectorize", json!(["$out_v"]));
    }
    Trace::read(&json!({"calls": t.0}).to_string()).unwrap()
}

/// TVM's descriptions of loads and multiplications agree with each other alone on where registers are.
#[test]
fn operands_that_tvms_loads_do_not_fill_are_refused() {
    let problem = operators::parse("gemm:192,128,64,f16,NT").unwrap();
    let mut trace = on_lanes(["f16", "f32"], "NT", &mut StdRng::seed_from_u64(seed()));
    let is_load = |call: &Call| call.op == "tensorize" && format!("{:?}", call.args).contains("ldmatrix_f16_b");
    trace.calls.retain(|call| !is_load(call));
    let program = replayed(problem.program(), &trace).unwrap();
    let refused = lower(&program, &options(&Descriptor::load("a100").unwrap())).unwrap_err().to_string();
    assert!(refused.contains("B_shared") && refused.contains("mma_ldmatrix"), "{refused}");
}

/// What a given schedule takes of the tensor cores is counted; a GPU without the instruction is told.
#[test(slow)]
fn schedules_on_lanes_take_the_time_of_the_tensor_cores() {
    let problem = operators::parse("gemm:192,128,64,f16,NT").unwrap();
    let trace = on_lanes(["f16", "f32"], "NT", &mut StdRng::seed_from_u64(seed()));
    let program = replayed(problem.program(), &trace).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("schedule.py");
    std::fs::write(&file, tvmscript::print(&program)).unwrap();
    let given = |gpu: &str| {
        let run = std::process::Command::new(env!("CARGO_BIN_EXE_satune"))
            .args(["explore", &problem.name, "--gpu", gpu, "--top", "1", "--no-compile", "--json", "--given"])
            .arg(&file)
            .arg("--out")
            .arg(folder.path().join(gpu))
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
        serde_json::from_slice::<serde_json::Value>(&run.stdout).unwrap()["given"].take()
    };
    let on_a100 = given("a100");
    // 2 x 192 x 128 x 64 at 2048 a clock of a multiprocessor: all blocks at once, the busiest has a twelfth at most.
    let clocks = 2.0 * 192.0 * 128.0 * 64.0 / 2048.0;
    let ms = clocks / (Descriptor::load("a100").unwrap().clock_mhz * 1e3);
    let taken = on_a100["parts"]["tensor_cores"].as_f64().unwrap_or_default();
    assert!(taken >= ms / 108.0 && taken <= ms, "{taken} of {ms}: {on_a100}");
    let on_t4 = given("t4");
    assert_eq!(on_t4["not_predicted"], "t4 has no mma.sync F16", "{on_t4}");
}

/// TVM makes the same programs, of the intrinsics that it has; each is lowered as it is written.
#[test(slow)]
fn products_on_lanes_as_tvm_has_them_have_kernels() {
    let mut rng = StdRng::seed_from_u64(seed());
    let all = ["NN", "NT", "TN", "TT"];
    let (mut made, mut requests) = (Vec::new(), Vec::new());
    for (types, gpu, orders) in [
        (["f16", "f32"], "a100", &all[..]),
        (["f16", "f16"], "a100", &all[..]),
        (["bf16", "f32"], "a100", &all[..]),
        (["i8", "i32"], "a100", &all[..2]),
        (["e4m3", "f32"], "rtx4090", &all[..2]),
    ] {
        let gpu = Descriptor::load(gpu).unwrap();
        for order in orders {
            let sum = if types == ["f16"; 2] { ",sum=f16" } else { "" };
            let problem = operators::parse(&format!("gemm:192,128,64,{},{order}{sum}", types[0])).unwrap();
            let told = format!("{types:?} {order}");
            let trace = on_lanes(types, order, &mut rng);
            let program = replayed(problem.program(), &trace).unwrap_or_else(|e| panic!("{told}: {e}"));
            lowered(&told, problem.program(), &program, &gpu);
            explored_as(&told, &program, problem.program());
            // TVM does not read what it prints of such instructions: we compare.
            let python = trace.to_python("schedule");
            requests.push(json!({"script": problem.script, "python": python, "verdict": true}));
            made.push((told, program));
        }
    }
    for ((told, program), answer) in made.iter().zip(ask::ask("on_lanes", &requests)) {
        assert!(answer["error"].is_null(), "{told}: {}", answer["error"]);
        let text = answer["final"].as_str().unwrap();
        let theirs = tvmscript::parse(text).unwrap_or_else(|e| panic!("{told}: {e}\n{text}"));
        structural::equal(program, &theirs)
            .unwrap_or_else(|e| panic!("{told}: {e:?}\n{text}\n{}", tvmscript::print(program)));
    }
}

/// Parts of an extent: so many factors of it, by chance, whose product divides it; what is left, too.
fn parts<const N: usize>(mut left: i64, rng: &mut StdRng) -> ([i64; N], i64) {
    let parts = [(); N].map(|()| {
        let factors: Vec<i64> = (1..=left.min(64)).filter(|f| left % f == 0).collect();
        let part = factors[rng.gen_range(0..factors.len())];
        left /= part;
        part
    });
    (parts, left)
}

/// A row of Heron's for f16 m x n x k with A and B along k and sums of so many bytes, as its search draws them; none where the numbers
/// drawn do not fit each other.
fn drawn_row([m, n, k]: [i64; 3], bytes: i64, rng: &mut StdRng) -> Option<Row> {
    let wmma = [[16, 16, 16], [32, 8, 16], [8, 32, 16]][rng.gen_range(0..3)];
    let lanes = [1, 2, 4, 8, 16, 32][rng.gen_range(0..6)];
    let lanes = [lanes, 32 / lanes];
    let (sums, warps) = ([1, 2, 4].map(|_| 1 << rng.gen_range(0..3)), 1 << rng.gen_range(0..3));
    let sums = [sums[0], sums[1]];
    if (sums[0] * sums[1]) % warps != 0 {
        return None;
    }
    let warps = [warps, sums[0] * sums[1] / warps];
    let threads_y = sums[0] * sums[1];
    let (mut blocks, mut serial, mut warp, mut elements) = ([1; 2], [1; 2], [0; 2], 1);
    for (at, extent) in [m, n].into_iter().enumerate() {
        blocks[at] = [1, 2, 4][rng.gen_range(0..3)];
        let block = extent / blocks[at];
        let of_threads = warps[at] * lanes[at];
        if block % of_threads != 0 || block % (sums[at] * wmma[at]) != 0 {
            return None;
        }
        let ([steps], vector) = parts(block / of_threads, rng);
        serial[at] = steps;
        elements *= vector;
        warp[at] = block / sums[at];
    }
    if elements * bytes > 16 {
        return None;
    }
    let levels = [warp[0] / wmma[0], warp[1] / wmma[1], k / wmma[2]].map(|tiles| parts::<3>(tiles, rng).0);
    let tiles_at = rng.gen_range(0..4);
    let along = if tiles_at == 3 { wmma[2] } else { k / levels[2][..=tiles_at].iter().product::<i64>() };
    let rows = |length, rng: &mut StdRng| Rows { length, offset: 8 * rng.gen_range(0..7) };
    let vector = |rng: &mut StdRng| 1 << rng.gen_range(0..4);
    Some(Row {
        wmma,
        tiles_at: tiles_at as i64,
        fragments_at: rng.gen_range(tiles_at as i64..4),
        result_at: 1,
        sums_at: 0,
        unroll: rng.gen_range(0..6),
        blocks,
        warps,
        threads_y,
        lanes,
        threads_x: 32,
        serial,
        c: rows(n / blocks[1], rng),
        sums,
        parts: [0, 1, 2].map(|level| levels.map(|axis| axis[level])),
        b: rows(along, rng),
        b_vector: vector(rng),
        a: rows(along, rng),
        a_vector: vector(rng),
    })
}

/// Rows of Heron's by the same way, as its search draws them: with sums in f16 and in f32, of one product and of several shapes. What a row
/// says of its vectors, and whether TVM's kernel has the shared memory, changes nothing of what it computes.
#[test]
fn rows_of_heron_are_lowered() {
    let mut rng = StdRng::seed_from_u64(seed());
    let gpu = Descriptor::load("v100").unwrap();
    for _ in 0..samples(8) {
        let [m, n, k] = [0, 1, 2].map(|_| 32 * rng.gen_range(1..5_i64));
        let (sums, bytes, factors) = match rng.gen_bool(0.5) {
            true => ("float16", 2, "A[vi, vk] * B[vj, vk]"),
            false => ("float32", 4, "T.Cast(\"float32\", A[vi, vk]) * T.Cast(\"float32\", B[vj, vk])"),
        };
        let row = std::iter::repeat_with(|| drawn_row([m, n, k], bytes, &mut rng)).flatten().next().unwrap();
        let body = format!(
            "
for i, j, k in T.grid({m}, {n}, {k}):
    with T.sblock(\"C\"):
        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
        with T.init():
            C[vi, vj] = T.{sums}(0)
        C[vi, vj] = C[vi, vj] + {factors}
"
        );
        let text = script(&format!("A: {m}, {k} float16; B: {n}, {k} float16; C: {m}, {n} {sums}"), &body);
        let program = tvmscript::parse(&text).unwrap();
        let told = format!("{m} x {n} x {k}, {sums}: {row:?}");
        let trace = row.trace(&contraction(&program).unwrap()).unwrap_or_else(|e| panic!("{told}: {e}"));
        let theirs = replayed(&program, &trace).unwrap_or_else(|e| panic!("{told}: {e}"));
        let made = of_program((Trace::default(), theirs), &options(&gpu));
        if made.as_ref().is_err_and(|e| e.to_string().contains("shared memory")) {
            continue;
        }
        lowered(&told, &program, &made.unwrap_or_else(|e| panic!("{told}: {e}")).program, &gpu);
    }
}
