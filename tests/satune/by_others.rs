//! Schedules on tensor cores that are no plans: what TVM's own schedulers make of products, and the scheduled programs of plans taken as
//! programs. Each is lowered statement by statement, and its kernels compute what the product does.
use crate::support::*;
use crate::tvm::ask;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use satune::lower::program::lower;
use satune::operators;
use satune::scheduled::{check, of_program, options, replayed, GivenSchedule, Scheduled};
use satune::source::work_of_script;
use satune::workload::Workload;
use satune_extract::Descriptor;
use satune_ir::term::tensor::{CopyOrder, Mma, OperandPlan, Store, TensorPlan, Wmma, WmmaShape};
use satune_ir::term::Schedule;
use satune_ir::{structural, tvmscript, DType, Program};
use satune_rewrites::heron::Row;
use satune_rewrites::space::contraction;
use satune_rewrites::Trace;
use satune_testing::seed;
use serde_json::json;

/// The kernels of a scheduled program are right for its source.
fn lowered(told: &str, source: &Program, program: &Program, gpu: &Descriptor) {
    let made = of_program(source, &Trace::default(), (Trace::default(), program.clone()), &options(gpu))
        .unwrap_or_else(|e| panic!("{told}: {e}\n{}", tvmscript::print(program)));
    let checked = check(source, &made, seed()).unwrap_or_else(|e| panic!("{told}: {e}\n{}", tvmscript::print(program)));
    assert!(checked.total.matrix > 0, "{told}: nothing is multiplied on tensor cores");
}

/// What MetaSchedule and dlight make of products is explored as the product, and is a given schedule that has kernels.
#[test(slow)]
fn schedules_of_tvm_on_tensor_cores_have_kernels() {
    let mut rng = StdRng::seed_from_u64(seed());
    let mut asked = Vec::new();
    for (by, types, least) in
        [("meta_schedule", ["f16", "f16"], 8), ("meta_schedule", ["i8", "i8"], 4), ("dlight", ["f16", "f16"], 2)]
    {
        for _ in 0..samples(least) {
            let [m, n, k] = [64, 32, 64].map(|unit| unit * rng.gen_range(1..4_i64));
            // dlight pads what is no whole tile.
            let m = if by == "dlight" && rng.gen_bool(0.5) { m - 28 } else { m };
            let order = ["NN", "NT", "TN", "TT"][rng.gen_range(0..4)];
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
        let work = work_of_script("theirs.py", text).unwrap_or_else(|e| panic!("{told}: {e}\n{text}"));
        let work = work.workload();
        structural::equal(work.program(), problem.program())
            .unwrap_or_else(|e| panic!("{told}: {e:?}\n{text}\n{}", tvmscript::print(work.program())));
        assert!(matches!(work.given(), Some(GivenSchedule::Program(_))), "{told}");
    }
    assert!(found * 3 > asked.len(), "{found} of {}", asked.len());
}

/// What a plan's trace makes is a program as any other: lowered as it is written it computes the same as the generator's kernel.
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
        let module = lower(&made.program, &options(&gpu))
            .unwrap_or_else(|e| panic!("{operator}: {e}\n{}", tvmscript::print(&made.program)));
        let written = Scheduled { module, ..made };
        let checked = check(problem.program(), &written, 5)
            .unwrap_or_else(|e| panic!("{operator}: {e}\n{}", satune::cuda::print(&written.module.kernels[0])));
        assert!(checked.total.matrix > 0, "{operator}");
    }
}

/// A row of Heron's for 128 x 64 x 64, by the same way, with sums in f16 and in f32.
#[test]
fn rows_of_heron_are_lowered() {
    let row = "16,16,16, 1,2, 1,0,0, 2,1,2,1,2, 1,32,32,32,1, 64,8, 1,2, 2,1,1, 1,2,2, 2,1,1, 32,8,4, 32,8,8";
    let row = Row::read(row).unwrap().unwrap();
    for [sums, factors] in [
        ["float16", "A[vi, vk] * B[vj, vk]"],
        ["float32", "T.Cast(\"float32\", A[vi, vk]) * T.Cast(\"float32\", B[vj, vk])"],
    ] {
        let body = format!(
            "
for i, j, k in T.grid(128, 64, 64):
    with T.sblock(\"C\"):
        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
        with T.init():
            C[vi, vj] = T.{sums}(0)
        C[vi, vj] = C[vi, vj] + {factors}
"
        );
        let text = script(&format!("A: 128, 64 float16; B: 64, 64 float16; C: 128, 64 {sums}"), &body);
        let program = tvmscript::parse(&text).unwrap();
        let trace = row.trace(&contraction(&program).unwrap()).unwrap();
        let theirs = replayed(&program, &trace).unwrap();
        lowered(sums, &program, &theirs, &Descriptor::load("v100").unwrap());
    }
}
