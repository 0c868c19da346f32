//! Traces of tensor-core schedules that the space holds and `explore` writes: their kernels are those of the schedules.
use crate::support::gemm;
use crate::tensor_space::{by_columns, explored_problem, gpu, is_swapped, tensor_only};
use rand::SeedableRng;
use satune::explore::Report;
use satune::lower::program::LowerOptions;
use satune::workload::Workload;
use satune::{operators, scheduled};
use satune_extract::Counts;
use satune_ir::term::tensor::*;
use satune_ir::term::*;
use satune_ir::{tvmscript, DType};
use satune_rewrites::space::read_plan;
use satune_rewrites::Trace;

/// Products whose tiles pass through registers, on `wmma` and `mma.sync`, and parts of k under an epilogue.
#[test(slow)]
fn explore_writes_traces_of_ways_through_registers_and_of_parts_under_an_epilogue() {
    for (operator, name) in [
        ("gemm:256,256,256,f16,NT", "t4"),
        ("gemm:200,136,256,f16,TN,out=f16,bias,relu", "v100"),
        ("gemm:64,64,8192,bf16,NT,out=bf16,bias", "a100"),
        ("gemm:64,64,8192,bf16,NT,out=bf16,bias", "h200"),
    ] {
        let problem = operators::parse(operator).unwrap();
        let report = explored_problem(&problem, name, 1, false);
        let plan = &report.candidates[0].plan;
        let is_as_said = match plan {
            Schedule::Mma(plan) => !plan.instruction.is_async() || plan.split_k > 1,
            Schedule::Wgmma(plan) => plan.split_k > 1 || plan.stream_k,
            _ => false,
        };
        assert!(is_as_said, "{operator} on {name}: {:?}", plan.describe());
        kernels_come_from_traces(&problem, &report);
    }
}

/// The trace files that `explore` writes hold primitives, whose replay alone gives the candidates' kernels.
pub fn kernels_come_from_traces(problem: &operators::Problem, report: &Report) {
    let folder = tempfile::tempdir().unwrap();
    satune::explore::results::publish(report, folder.path(), |_| Ok(())).unwrap();
    for c in &report.candidates {
        let text = std::fs::read_to_string(folder.path().join(&c.trace)).unwrap();
        let trace = Trace::read(&text).unwrap();
        let made = scheduled::of_trace(&problem.program, trace, &LowerOptions::default()).unwrap();
        let of_plan = problem.scheduled(&c.plan, &LowerOptions::default()).unwrap();
        assert_eq!(made.module.kernels, of_plan.module.kernels, "{:?}", c.schedule);
        // TVM's text and the scheduled program are those of the trace, too.
        let [tvm, program] = [&c.tvm, &c.scheduled].map(|f| std::fs::read_to_string(folder.path().join(f)).unwrap());
        // Comments and an import stand before them.
        assert_eq!(Trace::read(&tvm).unwrap().to_python("schedule"), tvm[tvm.find("def schedule").unwrap()..]);
        assert_eq!(tvmscript::print(&made.program), program[program.find("@T.prim_func").unwrap()..]);
    }
}

/// Of whole spaces, on problems of a real size: what is lowered is what the trace says.
#[test(slow)]
fn traces_of_random_schedules_are_read_back() {
    let [h200, t4, v100] = ["h200", "t4", "v100"].map(gpu);
    let mut rng = rand::rngs::StdRng::seed_from_u64(29);
    let (mut kinds, mut swapped) = ([0; 3], 0);
    let of = |batch, [m, n, k]: [i64; 3], operand, sum, layout| gemm(batch, m, n, k, operand, sum, layout);
    for (gpu, c) in [
        (&h200, of(None, [1024, 2048, 1024], DType::BF16, DType::F32, "TN")),
        (&h200, of(None, [1025, 1023, 1021], DType::F16, DType::F32, "NN")),
        (&h200, of(None, [256, 256, 4096], DType::I8, DType::I32, "NT")),
        (&h200, of(Some(12), [512, 512, 64], DType::BF16, DType::F32, "NN")),
        (&h200, by_columns(of(Some(3), [200, 256, 1024], DType::F16, DType::F32, "NT"))),
        (&h200, of(None, [16, 1024, 1024], DType::BF16, DType::F32, "NT")),
        (&t4, of(None, [256, 512, 1024], DType::F16, DType::F32, "TN")),
        (&t4, of(Some(2), [200, 136, 256], DType::I8, DType::I32, "NT")),
        // `wmma` alone.
        (&v100, of(None, [256, 384, 512], DType::F16, DType::F32, "NN")),
    ] {
        let source = tvmscript::parse(&operators::script(&c)).unwrap();
        let both = tensor_only(&c, gpu);
        let is_mma = |node: &Term| matches!(node, Term::Tensor { node: TensorNode::Mma { .. }, .. });
        let rest = both.restricted(&|_, node| !is_mma(node));
        for (space, times) in [(&both, 4), (&rest, if rest.is_empty() { 0 } else { 3 })] {
            let counts = Counts::of(space);
            for _ in 0..times {
                let term = counts.sample(space, &mut rng).unwrap_or_else(|| panic!("{c:?} has no programs"));
                let plan = Schedule::from_term(&term, &c).unwrap();
                let made = scheduled::of_schedule(&source, &plan, &c, &LowerOptions::default())
                    .unwrap_or_else(|e| panic!("{e}\n{c:?}\n{}", plan.describe().join("\n")));
                assert!(!made.trace.calls.is_empty(), "{:?}", plan.describe());
                swapped += usize::from(is_swapped(&plan));
                kinds[match &plan {
                    Schedule::Wgmma(_) => 2,
                    Schedule::Mma(plan) => usize::from(plan.instruction.wmma().is_some()),
                    _ => panic!("{plan:?}"),
                }] += 1;
                assert_eq!(read_plan(&made.program, &source, &c).unwrap(), plan);
                // Replayed from its trace alone, it has the same kernels.
                let again = scheduled::of_trace(&source, made.trace, &LowerOptions::default()).unwrap();
                assert_eq!(again.module.kernels, made.module.kernels);
            }
        }
    }
    println!("{kinds:?} on mma.sync, wmma, wgmma; {swapped} with swapped operands");
    assert!(kinds.iter().all(|n| *n >= 3) && swapped >= 3);
}
