//! Schedules on `wgmma` that nobody's space has, written by hand (`tests/cases/wgmma`): lowered as they are written.
use crate::compiles::compile;
use crate::executed::right;
use crate::hopper::{cases, clustered, small, staged};
use crate::support::some_of;
use crate::synchronisation::without;
use crate::tensor::{check, lower_written};
use satune::compile::Job;
use satune::kernel::{GroupOp, Kernel, Stmt, WarpOp};
use satune::lower::program::{lower, Module};
use satune::lower::wgmma::*;
use satune::operators;
use satune::source::work_of_script;
use satune::workload::Workload;
use satune_ir::term::Schedule;
use satune_ir::{structural, tvmscript, DType, Program};
use satune_rewrites::space::explored;

const CASES: [(&str, &str, &str); 4] = [
    // Tiles come by asynchronous copies of all threads, which also multiply.
    ("cp_async", "gemm:256,128,192,f16,NT", include_str!("../cases/wgmma/cp_async.py")),
    // One tile at a time; the result goes by way of shared memory.
    ("plain", "gemm:128,128,128,f16,NT", include_str!("../cases/wgmma/plain.py")),
    // The TMA brings tiles and takes results; two instructions side by side along n.
    ("tma", "gemm:256,256,192,f16,NT", include_str!("../cases/wgmma/tma.py")),
    // A goes on to registers, step by step.
    ("registers", "gemm:128,64,192,f16,NT", include_str!("../cases/wgmma/registers.py")),
];

/// What is left out of which case: its name, and its statements.
type Omission<'d> = (&'d str, &'d str, &'d dyn Fn(&Stmt) -> bool);

fn product(operator: &str) -> Program {
    operators::parse(operator).unwrap().program
}

fn made(text: &str) -> Result<Module, String> {
    lower(&tvmscript::parse(text).unwrap(), &Default::default()).map_err(|e| e.to_string())
}

fn count(body: &[Stmt], is_one: &dyn Fn(&Stmt) -> bool) -> usize {
    without(&mut body.to_vec(), is_one)
}

fn parts(kernel: &Kernel) -> bool {
    kernel.body.iter().any(|s| matches!(s, Stmt::Roles(_)))
}

#[test]
fn schedules_by_hand_become_kernels() {
    for (name, operator, text) in CASES {
        let module = made(text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let [kernel] = module.kernels.as_slice() else { panic!("{name}") };
        assert_eq!(parts(kernel), ["tma", "registers"].contains(&name));
        let loads = count(&kernel.body, &|s| matches!(s, Stmt::Warp(WarpOp::LoadMatrix { count: 4, .. })));
        assert_eq!(loads > 0, name == "registers", "by ldmatrix");
        assert_eq!(count(&kernel.body, &|s| matches!(s, Stmt::AsyncCopy { .. })) > 0, name == "cp_async");
        let stores = count(&kernel.body, &|s| matches!(s, Stmt::Group(GroupOp::StoreTile { .. })));
        // A tile of 64 rows has a box for each 32 columns.
        assert_eq!(stores, if name == "tma" { 4 } else { 0 });
        right(&product(operator), &module, "90a", name);
    }
}

/// They are explored as what they schedule, without a name for it.
#[test]
fn schedules_by_hand_lead_to_their_product() {
    for (name, operator, text) in CASES {
        let found = work_of_script("theirs.py", text).unwrap();
        let (found, wanted) = (explored(found.workload().program()), explored(&product(operator)));
        if let Err(difference) = structural::equal(&found, &wanted) {
            panic!("{name}: {difference:?}\n{}", tvmscript::print(&found));
        }
    }
}

/// Without any of what keeps order, a kernel is found wrong.
#[test]
fn what_keeps_order_is_needed() {
    let is = |s: &Stmt, op: &dyn Fn(&GroupOp) -> bool| matches!(s, Stmt::Group(own) if op(own));
    let drops: [Omission; 10] = [
        ("cp_async", "proxy fences", &|s| is(s, &|op| matches!(op, GroupOp::FenceAsync))),
        ("cp_async", "barriers", &|s| matches!(s, Stmt::Barrier)),
        ("cp_async", "waits for copies", &|s| matches!(s, Stmt::AsyncWait(_))),
        ("plain", "waits for sums", &|s| is(s, &|op| matches!(op, GroupOp::MatrixWait(_)))),
        ("plain", "fences", &|s| is(s, &|op| matches!(op, GroupOp::MatrixFence))),
        ("registers", "fences", &|s| is(s, &|op| matches!(op, GroupOp::MatrixFence))),
        ("registers", "barriers before places are free", &|s| is(s, &|op| matches!(op, GroupOp::NamedBarrier { .. }))),
        ("tma", "waits for places", &|s| is(s, &|op| matches!(op, GroupOp::WaitPhase { .. }))),
        ("tma", "arrivals", &|s| is(s, &|op| matches!(op, GroupOp::Arrive { .. }))),
        ("tma", "barriers of consumers", &|s| is(s, &|op| matches!(op, GroupOp::NamedBarrier { .. }))),
    ];
    for (name, what, drop) in drops {
        let (_, operator, text) = CASES.into_iter().find(|case| case.0 == name).unwrap();
        let g = Gemm::of(&operators::parse(operator).unwrap().contraction).unwrap();
        let mut module = crate::tensor::of_program(&g, made(text).unwrap());
        check(&g, &module);
        assert!(without(&mut module.kernels[0].body, drop) > 0, "{name}: {what}");
        assert!(crate::tensor::run(&g, &module).is_err(), "{name}: without {what}");
    }
}

/// What no instruction can be is said with what would make it one.
#[test]
fn what_is_no_instruction_is_refused() {
    let [(_, _, by_threads), _, (_, _, by_tma), _] = CASES;
    for (text, from, to, why) in [
        // A tile of rows too many.
        (by_threads, "C_warp = T.sblock_alloc_buffer((16,", "C_warp = T.sblock_alloc_buffer((18,", "multiple of 4"),
        // An instruction that is not known.
        (by_threads, "f16f16f32.nt\"", "f16f16f32\"", "wgmma.mma_async.sync.aligned.m64n64k16.f16f16f32"),
        // More than a block can have: no tile of C fits beside twelve places.
        (
            by_tma,
            "\"software_pipeline_stage\": [0, 0, 1]",
            "\"software_pipeline_stage\": [0, 0, 11]",
            "bytes of shared memory",
        ),
    ] {
        let changed = text.replace(from, to);
        assert_ne!(changed, text, "{from}");
        let error = made(&changed).err().unwrap_or_else(|| panic!("{to} is lowered"));
        assert!(error.contains(why), "{error}");
    }
}

/// The scheduled programs of plans are lowered as they are written: a producer and consumers, persistent blocks, clusters, results by the TMA. What
/// only the plan's own kernels have (turns, shared steps) is left out.
#[test]
fn programs_of_plans_are_lowered_as_they_are_written() {
    let results = staged().into_iter().flat_map(|(plan, shape)| {
        [(DType::F16, "NT"), (DType::F32, "NN")]
            .map(|(output, layout)| (plan.clone(), DType::F16, output, layout, shape))
    });
    let all = cases().into_iter().flat_map(|(plan, operand, output, layouts, shape)| {
        layouts.iter().map(move |layout| (plan.clone(), operand, output, *layout, shape))
    });
    let half = |plan: WgmmaPlan, layout, shape| (plan, DType::F16, DType::F16, layout, shape);
    let clusters = [
        half(clustered([2, 1]), "NT", [256, 128, 320]),
        half(clustered([2, 1]), "TN", [256, 128, 320]),
        half(clustered([1, 2]), "NT", [128, 256, 320]),
        half(WgmmaPlan { blocks: Some(8), raster: Raster::rows(4), ..clustered([2, 2]) }, "NN", [256, 256, 256]),
        half(WgmmaPlan { blocks: None, stages: 2, ..clustered([4, 1]) }, "NT", [250, 64, 200]),
        half(WgmmaPlan { blocks: None, eager_release: true, ..clustered([1, 4]) }, "NT", [64, 256, 256]),
        half(WgmmaPlan { arrive_per_warp: true, stages: 2, ..clustered([2, 1]) }, "TN", [256, 128, 320]),
        half(WgmmaPlan { blocks: None, stages: 2, ..clustered([2, 4]) }, "NT", [128, 256, 192]),
        half(WgmmaPlan { tile: [64, 64, 128], stages: 2, ..clustered([4, 2]) }, "TN", [256, 128, 384]),
        half(WgmmaPlan { split_k: 2, blocks: None, ..clustered([2, 1]) }, "NT", [128, 64, 512]),
    ];
    for (plan, operand, output, layout, shape) in all.chain(results).chain(clusters) {
        let g = Gemm::plain("gemm", shape, operand, output, layout);
        let module = lower_written(&g, &Schedule::Wgmma(plan.clone())).unwrap_or_else(|e| panic!("{plan:?}: {e}"));
        check(&g, &module);
        let kernel = &module.kernels[module.main];
        assert!(parts(kernel), "{plan:?}\n{}", kernel.notes.join("\n"));
        assert_eq!(
            (kernel.grid[0], kernel.cluster),
            (plan.grid(&g) as u32, plan.cluster_size()),
            "{plan:?}\n{}",
            kernel.notes.join("\n")
        );
        let stores = count(&kernel.body, &|s| matches!(s, Stmt::Group(GroupOp::StoreTile { .. })));
        assert_eq!(stores > 0, plan.store != TileStore::Direct, "{plan:?}");
        // Beside the ring a box of each consumer, or the whole tile.
        assert!(i64::from(kernel.shared_bytes) <= plan.shared_bytes(&g), "{plan:?}: {}", kernel.shared_bytes);
    }
}

/// Their text, executed.
#[test(slow)]
fn programs_of_plans_are_executed() {
    let staged = WgmmaPlan { store: TileStore::Tma, blocks: Some(3), ..small(2, 64) };
    for (operator, plan) in [
        ("gemm:256,128,320,f16,NT", clustered([2, 1])),
        ("gemm:128,256,192,bf16,TN,out=bf16,relu", WgmmaPlan { blocks: None, ..clustered([1, 2]) }),
        ("gemm:300,136,200,f16,NN", staged.clone()),
        ("gemm:256,192,136,f16,NT,out=f16,bias,gelu", staged),
    ] {
        let problem = operators::parse(operator).unwrap();
        let made = problem.scheduled(&Schedule::Wgmma(plan.clone()), &Default::default()).unwrap();
        let module = lower(&made.program, &Default::default()).unwrap_or_else(|e| panic!("{operator}: {e}"));
        assert!(parts(&module.kernels[0]) && module.kernels[0].cluster == plan.cluster_size());
        right(&problem.program, &module, "90a", operator);
    }
}

/// The loop that multiplies is the one of the plan's own kernel.
#[test(slow)]
fn loops_are_those_of_the_plans_own_kernels() {
    let base = WgmmaPlan {
        raster: Raster::rows(16),
        blocks: Some(132),
        store: TileStore::Tma,
        ..WgmmaPlan::plain([128, 256, 64], 2, 3)
    };
    let direct = WgmmaPlan { stages: 4, store: TileStore::Direct, ..base.clone() };
    let one = WgmmaPlan { tile: [64, 256, 64], consumers: 1, stages: 4, blocks: None, ..base.clone() };
    let plans = [
        (base.clone(), DType::BF16, DType::BF16, "NT"),
        (base, DType::F16, DType::F16, "NN"),
        (direct.clone(), DType::BF16, DType::F32, "NT"),
        (WgmmaPlan { tile: [128, 128, 128], stages: 3, ..direct }, DType::I8, DType::I32, "NT"),
        (one, DType::F16, DType::F16, "NN"),
    ];
    for (plan, operand, output, layout) in some_of(plans, 3) {
        let g = Gemm::plain("gemm", [4096, 4096, 4096], operand, output, layout);
        let own = lower_wgmma(&g, &plan).unwrap();
        let written = lower_written(&g, &Schedule::Wgmma(plan.clone())).unwrap();
        let job = |module: &TensorModule| {
            let kernel = &module.kernels[module.main];
            Job { name: kernel.name.clone(), source: satune::cuda::print(kernel), arch: "sm_90a".into() }
        };
        let list = compile(&[job(&own), job(&written)]);
        let [own, written] = list.as_slice() else { panic!() };
        crate::accumulators::assert_untouched("written", &written.ptx);
        assert_eq!((written.spill_bytes, written.registers), (0, own.registers), "{plan:?}");
        assert!(!written.log.to_lowercase().contains("serializ"), "{}", written.log);
        let mixes = [own, written].map(|c| satune::compile::hot_loop_mix(&c.cubin));
        let [Some(own), Some(written)] = &mixes else { continue };
        assert_eq!(written.math, own.math, "{plan:?}");
        // Places of A's and B's rings are told apart.
        assert!(written.instructions * 10 <= own.instructions * 11, "{plan:?}: {own:?} {written:?}");
    }
}
