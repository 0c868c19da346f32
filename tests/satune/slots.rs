//! Issue slots of streaming kernels as the model counts them, against the warp instructions of their machine code.
use crate::compiles::compile;
use crate::support::{some_of, NO_LIMIT};
use satune::compile::{disassemble, Compiled, Job};
use satune::explore::tensor_cores;
use satune::kernel::Kernel;
use satune::{operators, scheduled, streaming};
use satune_extract::stream::{best_stream, stream_cost};
use satune_extract::{best, Descriptor, Query};
use satune_ir::term::Schedule;
use satune_ir::tvmscript;
use satune_rewrites::space::rules::tensor::TensorMenu;
use satune_rewrites::space::stream::{rules, streams, StreamMenu};
use satune_rewrites::space::{saturate, Fuel};
use satune_sass::{issued, Launch};

/// How far the model may be off.
const ERROR: f64 = 0.15;
/// Blocks that are followed through a kernel's code.
const BLOCKS: u32 = 8;

#[test]
fn issue_slots_are_the_instructions_of_the_machine_code() {
    counted_and_issued(&[
        ("rowsum:4096,4096,f32", "a100"),
        ("mean:128,32768,f16", "a100"),
        ("softmax:4096,4096,f16", "a100"),
        ("softmax:16384,512,f32", "h200"),
        ("layernorm:4096,4096,f32", "h200"),
        ("rmsnorm:4096,4096,bf16", "a100"),
        ("gemv:4096,4096,f16", "rtx4090"),
        ("relu_chain:4096,4096,f16", "t4"),
        ("transpose:4096,4096,f32", "a100"),
    ]);
}

/// Rows that end within a lap, and within what vectors of 16 bytes would take: with guards in the last lap alone, none beyond it.
#[test]
fn issue_slots_of_rows_that_end_within_a_lap_are_those_of_the_machine_code() {
    counted_and_issued(&[
        ("gemv:1024,1000,f32", "t4"),
        ("mean:1024,1000,f16", "a100"),
        ("layernorm:1024,1000,f32", "t4"),
        ("transpose:1024,1000,f16", "a100"),
        ("softmax:1024,1002,f32", "h200"),
        ("relu_chain:1024,1002,f16", "rtx4090"),
        ("gemv:1024,333,bf16", "a100"),
        ("layernorm:1024,333,f16", "rtx4090"),
        ("transpose:1024,333,f32", "t4"),
        ("rowsum:1024,333,f32", "h200"),
    ]);
}

/// Warp instructions that kernels issue, by their machine code, of which so many blocks are followed.
fn instructions(name: &str, kernels: &[Kernel], gpu: &Descriptor, blocks: u32) -> f64 {
    let job = |kernel| Job { name: name.into(), source: satune::cuda::print(kernel), arch: gpu.arch.clone() };
    let jobs: Vec<Job> = kernels.iter().map(job).collect();
    let of = |(compiled, kernel): (&Compiled, &Kernel)| -> f64 {
        let Some(listing) = disassemble(&compiled.cubin) else { satune_testing::missing("nvdisasm", "cuda") };
        let launch = Launch { grid: kernel.grid, block: kernel.block };
        issued(&listing, launch, blocks).unwrap().values().sum()
    };
    compile(&jobs).iter().zip(kernels).map(of).sum()
}

/// The best schedules of programs on GPUs: what the model counts is what the kernels issue.
fn counted_and_issued(programs: &[(&str, &str)]) {
    let mut wrong = Vec::new();
    for (operator, name) in programs {
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
        let trace = satune_rewrites::space::stream::trace(plan, &problem).unwrap();
        let made = scheduled::of_trace(&program, trace, &scheduled::options(&gpu)).unwrap();
        let machine = instructions(operator, &made.module.kernels, &gpu, BLOCKS);
        println!("{operator} on {name}: {model:.0} slots counted, {machine:.0} issued, {:.2}", model / machine);
        if (model / machine - 1.0).abs() > ERROR {
            wrong.push(format!("{operator} on {name}: {:.2}", model / machine));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// How far it may be off on tensor cores: what a block does before and after its loop along k is not among the slots.
const ERROR_OF_LOOPS: f64 = 0.25;

#[test(slow)]
fn issue_slots_of_convolutions_on_tensor_cores_are_the_instructions_of_the_machine_code() {
    let mut wrong = Vec::new();
    let cases = [
        ("conv2d:32,56,56,64,64,3,3,f16,pad=1", "a100"),
        ("conv2d:32,28,28,256,256,3,3,f16,pad=1", "h200"),
        ("conv2d:32,28,28,128,128,3,3,f16,pad=1", "rtx4090"),
        ("conv2d:32,28,28,128,128,3,3,f16,pad=1", "t4"),
        ("conv2d:32,28,28,128,128,3,3,f16,pad=1", "v100"),
    ];
    for (operator, name) in some_of(cases, 2) {
        let (gpu, problem) = (Descriptor::load(name).unwrap(), operators::parse(operator).unwrap());
        // On `wgmma` the TMA gathers, without instructions for it.
        let menu = TensorMenu::of(&problem.contraction, &tensor_cores(&gpu));
        let menu = TensorMenu { group: None, ..menu };
        let space = crate::tensor_space::on_tensor_cores(&problem.contraction, &gpu, menu);
        // One of each tile.
        let found = best(&space, &gpu, Query { k: 3, diverse: true, limit: NO_LIMIT, below_ms: f64::INFINITY });
        for candidate in &found.candidates {
            let options = scheduled::options(&gpu);
            let made =
                scheduled::of_schedule(&problem.program, &candidate.plan, &problem.contraction, &options).unwrap();
            let kernel = &made.module.kernels[0];
            let machine = instructions(operator, std::slice::from_ref(kernel), &gpu, 2);
            // Of the multiprocessor that has the most blocks.
            let blocks = f64::from(kernel.grid.iter().product::<u32>());
            let sms = f64::from(gpu.sms);
            let full = candidate.cost.resident_blocks as f64 * sms;
            let busiest =
                (blocks / full).floor() * candidate.cost.resident_blocks as f64 + (blocks % full / sms).ceil();
            let clocks = candidate.cost.parts["issue"] * gpu.clock_mhz * 1e3;
            let model = clocks * 4.0 * gpu.issue_efficiency / busiest * blocks;
            let told =
                format!("{operator} on {name}: {:.2}, {}", model / machine, candidate.plan.describe().join("; "));
            println!("{told}");
            if (model / machine - 1.0).abs() > ERROR_OF_LOOPS {
                wrong.push(told);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
