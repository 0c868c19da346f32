//! Schedules on `wgmma` that nobody's space has, written by hand (`tests/cases/wgmma`): lowered as they are written.
use crate::compiles::compile;
use crate::executed::right;
use crate::hopper::{cases, clustered, shared_steps, small, staged, stream};
use crate::support::some_of;
use crate::synchronisation::without;
use crate::tensor::{check, lower_written};
use satune::compile::Job;
use satune::kernel::{GroupOp, Kernel, Stmt, WarpOp};
use satune::lower::program::{lower, Module};
use satune::lower::wgmma::*;
use satune::operators::{self, Problem};
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

/// The scheduled programs of plans are lowered as they are written: a producer and consumers, also in turn, persistent blocks, clusters, results by
/// the TMA.
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
    let turns = WgmmaPlan { ping_pong: true, tile: [64, 64, 64], ..small(2, 64) };
    let in_turn = [
        half(turns.clone(), "NT", [256, 128, 192]),
        half(WgmmaPlan { stages: 2, blocks: Some(3), store: TileStore::Tma, ..turns.clone() }, "NN", [320, 192, 136]),
        half(WgmmaPlan { eager_release: true, cluster: [2, 1], ..turns.clone() }, "TN", [512, 128, 320]),
        half(WgmmaPlan { store: TileStore::Boxes, tile: [128, 128, 64], stages: 2, ..turns }, "NT", [300, 256, 200]),
    ];
    for (plan, operand, output, layout, shape) in all.chain(results).chain(clusters).chain(in_turn) {
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

/// The steps along k of all tiles are dealt out; a second kernel adds the parts of each tile.
#[test]
fn steps_are_dealt_out() {
    for (plan, layout, shape, output) in shared_steps() {
        let mut g = Gemm::plain("gemm", shape, DType::F16, output, layout);
        for _ in 0..2 {
            let module = lower_written(&g, &Schedule::Wgmma(plan.clone())).unwrap_or_else(|e| panic!("{plan:?}: {e}"));
            let notes: Vec<&String> = module.kernels.iter().flat_map(|kernel| &kernel.notes).collect();
            assert!(!notes.iter().any(|note| note.contains("ignored")), "{plan:?}: {notes:?}");
            check(&g, &module);
            let [main, sum] = module.kernels.as_slice() else { panic!("{plan:?}: {notes:?}") };
            let own = lower_wgmma(&g, &plan).unwrap();
            assert!(parts(main) && !parts(sum));
            assert_eq!(main.grid, own.kernels[0].grid, "{plan:?}");
            let blocks = |kernel: &Kernel| kernel.grid.iter().product::<u32>();
            assert_eq!((blocks(sum), sum.block), (blocks(&own.kernels[1]), own.kernels[1].block), "{plan:?}");
            crate::tensor::relu_and_residual(&mut g, 2.0, 1.0);
        }
    }
}

/// A product's program, scheduled.
fn scheduled(operator: &str, plan: &WgmmaPlan) -> Program {
    let problem = operators::parse(operator).unwrap();
    let trace = satune::scheduled::trace(&Schedule::Wgmma(plan.clone()), &problem.contraction);
    satune::scheduled::replayed(&problem.program, &trace).unwrap()
}

/// Where steps cannot be dealt out, blocks take whole tiles, and a note says why.
#[test]
fn steps_that_cannot_be_dealt_out_are_told() {
    let operator = "gemm:128,128,320,f16,NT,out=f16";
    let g = Gemm::of(&operators::parse(operator).unwrap().contraction).unwrap();
    let text = tvmscript::print(&scheduled(operator, &stream(1, 3)));
    let blocks = "\"satune.persistent\": 3";
    for (from, to, why) in [
        (blocks, "\"satune.persistent\": 21", "fewer steps than blocks"),
        (blocks, "\"satune.min_blocks\": 1", "does not say how many blocks"),
        (blocks, "\"satune.persistent\": 2, \"satune.cluster_m\": 2, \"satune.cluster_n\": 1", "blocks of a cluster"),
        (blocks, "\"satune.persistent\": 3, \"satune.ping_pong\": 1", "teams that take turns"),
        ("\"satune.tma\": 1", "\"satune.copy_bytes\": 4", "no producer brings"),
    ] {
        let changed = text.replace(from, to);
        assert_ne!(changed, text, "{from}");
        let module = made(&changed).unwrap_or_else(|e| panic!("{to}: {e}"));
        let [kernel] = module.kernels.as_slice() else { panic!("{to}") };
        let note = kernel.notes.iter().find(|note| note.contains("satune.stream_k")).unwrap();
        assert!(note.contains(why), "{note}");
        check(&g, &crate::tensor::of_program(&g, module));
    }
    // Results go by way of shared memory.
    let staged = WgmmaPlan { store: TileStore::Tma, blocks: Some(3), ..small(1, 64) };
    let text = tvmscript::print(&scheduled(operator, &staged));
    let module = made(&text.replace(blocks, "\"satune.persistent\": 3, \"satune.stream_k\": 1")).unwrap();
    let note = module.kernels[0].notes.iter().find(|note| note.contains("satune.stream_k")).unwrap();
    assert!(note.contains("a tile has more"), "{note}");
    check(&g, &crate::tensor::of_program(&g, module));
}

/// Without any of what keeps order, the steps that are dealt out are found wrong.
#[test]
fn order_of_dealt_steps_is_needed() {
    let g = Gemm::plain("gemm", [128, 128, 320], DType::F16, DType::F16, "NT");
    let plan = Schedule::Wgmma(stream(1, 3));
    let is = |s: &Stmt, op: &dyn Fn(&GroupOp) -> bool| matches!(s, Stmt::Group(own) if op(own));
    let drops: [(&str, &dyn Fn(&Stmt) -> bool); 3] = [
        ("waits for places", &|s| is(s, &|op| matches!(op, GroupOp::WaitPhase { .. }))),
        ("arrivals", &|s| is(s, &|op| matches!(op, GroupOp::Arrive { .. }))),
        ("waits for sums", &|s| is(s, &|op| matches!(op, GroupOp::MatrixWait(_)))),
    ];
    for (what, drop) in drops {
        let mut module = lower_written(&g, &plan).unwrap();
        assert!(without(&mut module.kernels[0].body, drop) > 0, "{what}");
        assert!(crate::tensor::run(&g, &module).is_err(), "without {what}");
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
        ("gemm:256,136,320,f16,NT,out=f16,bias", WgmmaPlan { raster: Raster::rows(2), ..stream(1, 5) }),
        ("gemm:200,136,320,i8,NT", WgmmaPlan { tile: [64, 64, 128], ..stream(1, 7) }),
        ("gemm:256,128,256,bf16,NN,out=bf16,relu", stream(2, 4)),
    ] {
        let problem = operators::parse(operator).unwrap();
        let made = problem.scheduled(&Schedule::Wgmma(plan.clone()), &Default::default()).unwrap();
        let module = lower(&made.program, &Default::default()).unwrap_or_else(|e| panic!("{operator}: {e}"));
        assert!(parts(&module.kernels[0]) && module.kernels[0].cluster == plan.cluster_size());
        assert_eq!(module.kernels.len() > 1, plan.stream_k);
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
    let shared = WgmmaPlan { stream_k: true, ..direct.clone() };
    let one = WgmmaPlan { tile: [64, 256, 64], consumers: 1, stages: 4, blocks: None, ..base.clone() };
    let plans = [
        (base.clone(), DType::BF16, DType::BF16, "NT"),
        (base, DType::F16, DType::F16, "NN"),
        (direct.clone(), DType::BF16, DType::F32, "NT"),
        (WgmmaPlan { tile: [128, 128, 128], stages: 3, ..direct }, DType::I8, DType::I32, "NT"),
        (one, DType::F16, DType::F16, "NN"),
        (shared, DType::BF16, DType::F32, "NT"),
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

/// Products of which neither factors nor results are matrices in memory, with plans.
fn gathered() -> Vec<(&'static str, Problem, WgmmaPlan)> {
    let tma = |plan: WgmmaPlan| WgmmaPlan { store: TileStore::Tma, ..plan };
    let conv = |operator: &str| operators::parse(operator).unwrap();
    let product = |shapes, loops, indices| {
        let text = crate::executed::product(shapes, loops, indices);
        satune::source::of_script("product.py", &text).unwrap()
    };
    vec![
        ("conv", conv("conv2d:2,16,16,64,64,3,3,f16,pad=1"), small(1, 64)),
        ("conv_s", conv("conv2d:2,16,16,64,64,3,3,f16,pad=1,stride=2"), tma(small(1, 64))),
        ("odd", conv("conv2d:2,9,8,64,32,3,3,f16,pad=1"), tma(WgmmaPlan { tile: [64, 32, 64], ..small(1, 64) })),
        ("one", conv("conv2d:1,9,8,64,32,3,3,f16,pad=1"), WgmmaPlan { tile: [64, 32, 64], ..small(1, 64) }),
        ("epi", conv("conv2d:3,11,9,64,64,3,2,bf16,stride=2,pad=1,bias,relu,out=bf16"), tma(small(1, 64))),
        (
            "one_by_one",
            conv("conv2d:2,8,8,128,256,1,1,bf16,stride=2,out=bf16"),
            WgmmaPlan { store: TileStore::Boxes, tile: [64, 256, 64], ..small(1, 64) },
        ),
        ("conv1d", conv("conv1d:3,70,64,48,5,f16,dilation=3,pad=4"), WgmmaPlan { tile: [64, 48, 64], ..small(1, 64) }),
        ("conv3d", conv("conv3d:1,4,5,6,64,32,2,3,3,f16,pad=1"), WgmmaPlan { tile: [64, 32, 64], ..small(1, 64) }),
        (
            "transposed",
            conv("conv2d_transpose:1,6,12,64,32,3,3,f16,pad=1"),
            WgmmaPlan { tile: [64, 32, 64], ..small(1, 64) },
        ),
        ("cluster", conv("conv2d:4,8,8,64,64,3,3,f16,pad=1"), clustered([2, 1])),
        ("cluster2", conv("conv2d:2,8,8,64,128,3,3,f16,pad=1"), clustered([1, 2])),
        ("cluster3", conv("conv2d:4,8,8,64,128,3,3,f16,pad=1"), WgmmaPlan { swapped: true, ..clustered([2, 1]) }),
        ("swapped", conv("conv2d:2,8,8,64,128,3,3,f16,pad=1"), WgmmaPlan { swapped: true, ..small(1, 64) }),
        (
            "groups",
            product(
                "2, 10, 9, 128; 2, 3, 3, 64, 32; 2, 8, 7, 64",
                "n 2 y 8 x 7 g 2 f 32 I 3 J 3 C 64",
                "n, y + i, x + j, g * 64 + c; g, i, j, c, f; n, y, x, g * 32 + f",
            ),
            WgmmaPlan { tile: [64, 32, 64], ..small(1, 64) },
        ),
        (
            "heads1",
            product(
                "70, 2, 3, 64; 40, 2, 3, 64; 2, 3, 70, 40",
                "b 2 h 3 p 70 q 40 D 64",
                "p, b, h, d; q, b, h, d; b, h, p, q",
            ),
            WgmmaPlan { tile: [64, 40, 64], ..small(1, 64) },
        ),
        (
            "heads2",
            product(
                "3, 50, 2, 72; 3, 56, 2, 72; 3, 50, 2, 56",
                "b 3 h 2 p 50 q 56 D 72",
                "b, p, h, d; b, q, h, d; b, p, h, q",
            ),
            small(1, 64),
        ),
        (
            "heads_stored",
            product(
                "2, 64, 3, 64; 2, 128, 3, 64; 2, 64, 3, 128",
                "b 2 h 3 p 64 q 128 D 64",
                "b, p, h, d; b, q, h, d; b, p, h, q",
            ),
            tma(small(1, 64)),
        ),
        (
            "heads_boxed",
            product(
                "2, 64, 3, 64; 2, 256, 3, 64; 2, 64, 3, 256",
                "b 2 h 3 p 64 q 256 D 64",
                "b, p, h, d; b, q, h, d; b, p, h, q",
            ),
            WgmmaPlan { store: TileStore::Boxes, tile: [64, 256, 64], ..small(1, 64) },
        ),
        (
            "heads3",
            product("2, 3, 72, 64; 3, 64, 96; 2, 72, 96", "b 2 p 72 q 96 H 3 D 64", "b, h, p, d; h, d, q; b, p, q"),
            tma(WgmmaPlan { tile: [64, 96, 64], ..small(1, 64) }),
        ),
        (
            "heads4",
            product("128, 3, 64; 128, 3, 32; 3, 64, 32", "b 3 p 64 q 32 D 128", "d, b, p; d, b, q; b, p, q"),
            WgmmaPlan { tile: [64, 32, 64], ..small(1, 64) },
        ),
        (
            "within",
            product(
                "2, 12, 12, 192; 3, 3, 64, 64; 2, 7, 6, 64",
                "n 2 y 7 x 6 f 64 I 3 J 3 C 64",
                "n, y + i + 2, x + j + 1, c + 64; i, j, c, f; n, y, x, f",
            ),
            tma(small(1, 64)),
        ),
        (
            "flat",
            product(
                "12, 11, 128; 64, 3, 3, 128; 10, 9, 64",
                "y 10 x 9 f 64 I 3 J 3 C 128",
                "y + i, x + j, c; f, i, j, c; y, x, f",
            ),
            small(1, 64),
        ),
    ]
}

/// Pixels of images and boxes of tensors come by the TMA, as the plans' own kernels bring them, and results go to their places.
#[test(slow)]
fn programs_of_gathered_products_are_executed() {
    let loads = |kernel: &Kernel| count(&kernel.body, &|s| matches!(s, Stmt::Group(GroupOp::LoadTile { .. })));
    let stores = |kernel: &Kernel| count(&kernel.body, &|s| matches!(s, Stmt::Group(GroupOp::StoreTile { .. })));
    let images = |kernel: &Kernel| kernel.tensor_maps.iter().filter(|map| map.image.is_some()).count();
    for (name, problem, plan) in some_of(gathered(), 4) {
        let made = problem.scheduled(&Schedule::Wgmma(plan.clone()), &Default::default()).unwrap();
        let module = lower(&made.program, &Default::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (own, theirs) = (&module.kernels[module.main], &made.module.kernels[made.module.main]);
        let told = own.notes.join("\n");
        assert!(parts(own) && !told.contains("not copied by the TMA"), "{name}: {told}");
        assert_eq!(
            (loads(own), images(own), own.cluster),
            (loads(theirs), images(theirs), theirs.cluster),
            "{name}: {told}"
        );
        assert_eq!(stores(own) > 0, plan.store != TileStore::Direct, "{name}: {told}");
        right(&problem.program, &module, "90a", name);
    }
}
