//! Issue slots of streaming kernels as the model counts them, against the warp instructions of their machine code.
use crate::compiles::compile;
use crate::support::NO_LIMIT;
use satune::compile::{disassemble, Job};
use satune::{scheduled, streaming};
use satune_extract::stream::{best_stream, stream_cost};
use satune_extract::{Descriptor, Query};
use satune_ir::term::Schedule;
use satune_ir::tvmscript;
use satune_rewrites::space::stream::{rules, streams, StreamMenu};
use satune_rewrites::space::{saturate, Fuel};
use satune_sass::{issued, Launch};

/// How far the model may be off.
const ERROR: f64 = 0.15;
/// Blocks that are followed through a kernel's code.
const BLOCKS: u32 = 8;

#[test]
fn issue_slots_are_the_instructions_of_the_machine_code() {
    let mut wrong = Vec::new();
    for (operator, name) in [
        ("rowsum:4096,4096,f32", "a100"),
        ("mean:128,32768,f16", "a100"),
        ("softmax:4096,4096,f16", "a100"),
        ("softmax:16384,512,f32", "h200"),
        ("layernorm:4096,4096,f32", "h200"),
        ("rmsnorm:4096,4096,bf16", "a100"),
        ("gemv:4096,4096,f16", "rtx4090"),
        ("relu_chain:4096,4096,f16", "t4"),
        ("transpose:4096,4096,f32", "a100"),
    ] {
        let gpu = Descriptor::load(name).unwrap();
        let program = tvmscript::parse(&streaming::script(operator).unwrap()).unwrap();
        let problem = streams(&program).unwrap();
        let limits = satune::explore::limits(&gpu);
        let space = saturate(&problem, limits, &StreamMenu::default(), &rules::all(), Fuel::default()).unwrap();
        let query = Query { k: 1, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY };
        let best = best_stream(&space, &gpu, query);
        let Schedule::Stream(plan) = &best.candidates[0].plan else { panic!("{operator}") };
        let model: f64 = stream_cost(plan, &problem, &gpu).unwrap().parts["issue"]
            * gpu.clock_mhz
            * 1e3
            * f64::from(gpu.sms)
            * 4.0
            * gpu.issue_efficiency;
        let trace = satune_rewrites::space::stream::trace(plan, &problem);
        let made = scheduled::of_trace(&program, trace, &scheduled::options(&gpu)).unwrap();
        let job = |kernel| Job { name: operator.into(), source: satune::cuda::print(kernel), arch: gpu.arch.clone() };
        let jobs: Vec<Job> = made.module.kernels.iter().map(job).collect();
        let mut machine = 0.0;
        for (compiled, kernel) in compile(&jobs).iter().zip(&made.module.kernels) {
            let Some(listing) = disassemble(&compiled.cubin) else { satune_testing::missing("nvdisasm", "cuda") };
            let launch = Launch { grid: kernel.grid, block: kernel.block };
            machine += issued(&listing, launch, BLOCKS).unwrap().values().sum::<f64>();
        }
        println!("{operator} on {name}: {model:.0} slots counted, {machine:.0} issued, {:.2}", model / machine);
        if (model / machine - 1.0).abs() > ERROR {
            wrong.push(format!("{operator} on {name}: {:.2}", model / machine));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
