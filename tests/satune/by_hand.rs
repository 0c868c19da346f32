//! Schedules on `wgmma` that nobody's space has, written by hand (`tests/cases/wgmma`): lowered as they are written.
use crate::compiles::compile;
use crate::executed::right;
use crate::hopper::{clustered, small, stream};
use crate::support::some_of;
use crate::synchronisation::without;
use crate::tensor::check;
use crate::tensor::plans::*;
use satune::compile::Job;
use satune::kernel::{GroupOp, Kernel, Stmt, WarpOp};
use satune::lower::program::{lower, Module};
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

/// What is left out.
type Dropped<'d> = (&'d str, &'d dyn Fn(&Stmt) -> bool);

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

/// Those who multiply copy a later tile meanwhile. Both waits, what makes copies visible, and the barrier are needed.
#[test]
fn tiles_are_copied_while_others_are_multiplied() {
    let g = Gemm::plain("gemm", [128, 64, 448], DType::F16, DType::F32, "NT");
    for eager_release in [false, true] {
        let plan = WgmmaPlan { by_threads: true, eager_release, ..WgmmaPlan::plain([128, 64, 64], 2, 3) };
        let module = crate::tensor::plans::lower_wgmma(&g, &plan).unwrap();
        assert!(!parts(&module.kernels[0]));
        check(&g, &module);
        let of_tile = u32::from(!eager_release);
        type Drop<'d> = (&'d str, &'d dyn Fn(&Stmt) -> bool);
        let drops: [Drop<'_>; 4] = [
            ("waits for multiplications", &|s| matches!(s, Stmt::Group(GroupOp::MatrixWait(n)) if *n == of_tile)),
            ("waits for copies", &|s| matches!(s, Stmt::AsyncWait(_))),
            ("proxy fences", &|s| matches!(s, Stmt::Group(GroupOp::FenceAsync))),
            ("barriers", &|s| matches!(s, Stmt::Barrier)),
        ];
        for (what, drop) in drops {
            let mut changed = module.clone();
            assert!(without(&mut changed.kernels[0].body, drop) > 0, "{what}");
            assert!(crate::tensor::run(&g, &changed).is_err(), "without {what}");
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

/// A schedule that leads to no program is told by what is wrong with it, and where it could be judged.
#[test]
fn schedules_of_nothing_are_told() {
    let [(_, _, text), ..] = CASES;
    for (from, to, why) in [
        ("for t, r in T.grid(8, 4):", "for t, r in T.grid(4, 4):", "which lanes hold what of `C_warp`"),
        (
            "T.axis.spatial(2, j_0 + j_1)",
            "T.axis.spatial(2, j_0 * 0 + j_1)",
            "C_warp[0, 0, 0, 0] is read, and nothing before",
        ),
        (
            "T.axis.reduce(12, k_0 * 4 + k_1)",
            "T.axis.reduce(12, k_0 * 3 + k_1)",
            "do not take vk_o, vk through all values",
        ),
    ] {
        let changed = text.replace(from, to);
        assert_ne!(changed, text, "{from}");
        let error = work_of_script("own.py", &changed).expect_err(to).to_string();
        assert!(error.contains(why) && error.contains("--given own.py"), "{error}");
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
    let plan = stream(1, 3);
    let is = |s: &Stmt, op: &dyn Fn(&GroupOp) -> bool| matches!(s, Stmt::Group(own) if op(own));
    let drops: [Dropped; 3] = [
        ("waits for places", &|s| is(s, &|op| matches!(op, GroupOp::WaitPhase { .. }))),
        ("arrivals", &|s| is(s, &|op| matches!(op, GroupOp::Arrive { .. }))),
        ("waits for sums", &|s| is(s, &|op| matches!(op, GroupOp::MatrixWait(_)))),
    ];
    for (what, drop) in drops {
        let mut module = lower_wgmma(&g, &plan).unwrap();
        assert!(without(&mut module.kernels[0].body, drop) > 0, "{what}");
        assert!(crate::tensor::run(&g, &module).is_err(), "without {what}");
    }
}

/// Plans with clusters, results by the TMA and shared steps, executed.
#[test(slow)]
fn plans_are_executed() {
    let staged = WgmmaPlan { store: TileStore::Tma, blocks: Some(3), ..small(2, 64) };
    let turns = WgmmaPlan { ping_pong: true, tile: [64, 64, 64], blocks: Some(2), ..small(2, 64) };
    let cases = [
        ("gemm:256,128,320,f16,NT", clustered([2, 1])),
        ("gemm:128,256,192,bf16,TN,out=bf16,relu", WgmmaPlan { blocks: None, ..clustered([1, 2]) }),
        ("gemm:300,136,200,f16,NN", staged.clone()),
        ("gemm:256,192,136,f16,NT,out=f16,bias,gelu", staged),
        ("gemm:256,136,320,f16,NT,out=f16,bias", WgmmaPlan { raster: Raster::rows(2), ..stream(1, 5) }),
        ("gemm:200,136,320,i8,NT", WgmmaPlan { tile: [64, 64, 128], ..stream(1, 7) }),
        ("gemm:256,128,256,bf16,NN,out=bf16,relu", stream(2, 4)),
        ("gemm:320,192,136,f16,NN,out=f16,bias", WgmmaPlan { store: TileStore::Tma, stages: 2, ..turns.clone() }),
        (
            "gemm:300,256,200,bf16,NT,out=bf16",
            WgmmaPlan { store: TileStore::Boxes, tile: [128, 128, 64], stages: 2, ..turns },
        ),
    ];
    for (operator, plan) in cases {
        let problem = operators::parse(operator).unwrap();
        let made = problem.scheduled(&Schedule::Wgmma(plan.clone()), &Default::default()).unwrap();
        right(&problem.program, &made.module, "90a", operator);
    }
}

/// The loop that multiplies has as many instructions that multiply, and registers, as that of a kernel written for the plan alone, and at most a
/// tenth more instructions.
#[test(slow)]
fn loops_have_few_instructions() {
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
        (base.clone(), DType::BF16, DType::BF16, "NT", [37, 168, 12]),
        (base, DType::F16, DType::F16, "NN", [38, 168, 12]),
        (direct.clone(), DType::BF16, DType::F32, "NT", [79, 168, 16]),
        (WgmmaPlan { tile: [128, 128, 128], stages: 3, ..direct }, DType::I8, DType::I32, "NT", [38, 168, 12]),
        (one, DType::F16, DType::F16, "NN", [82, 154, 16]),
        (shared, DType::BF16, DType::F32, "NT", [54, 168, 4]),
    ];
    for (plan, operand, output, layout, [most, registers, math]) in some_of(plans, 3) {
        let g = Gemm::plain("gemm", [4096, 4096, 4096], operand, output, layout);
        let module = lower_wgmma(&g, &plan).unwrap();
        let kernel = &module.kernels[module.main];
        let job = Job { name: "kernel".into(), source: satune::cuda::print(kernel), arch: "sm_90a".into() };
        let list = compile(&[job]);
        let [made] = list.as_slice() else { panic!() };
        crate::accumulators::assert_untouched("kernel", &made.ptx);
        assert_eq!((made.spill_bytes, made.registers), (0, registers), "{plan:?}");
        assert!(!made.log.to_lowercase().contains("serializ"), "{}", made.log);
        let Some(mix) = satune::compile::hot_loop_mix(&made.cubin) else { continue };
        println!("{plan:?}: {} instructions, {most}", mix.instructions);
        assert_eq!(mix.math, math, "{plan:?}");
        assert!(mix.instructions * 10 <= most * 11, "{plan:?}: {mix:?}");
    }
}

/// Products of which neither factors nor results are matrices in memory, with plans; how many boxes the producer's text brings, and how many
/// buffers are images.
fn gathered() -> Vec<(&'static str, [usize; 2], Problem, WgmmaPlan)> {
    let tma = |plan: WgmmaPlan| WgmmaPlan { store: TileStore::Tma, ..plan };
    let conv = |operator: &str| operators::parse(operator).unwrap();
    let product = |shapes, loops, indices| {
        let text = crate::executed::product(shapes, loops, indices);
        satune::source::of_script("product.py", &text).unwrap()
    };
    vec![
        ("conv", [6, 1], conv("conv2d:2,16,16,64,64,3,3,f16,pad=1"), small(1, 64)),
        ("conv_s", [6, 1], conv("conv2d:2,16,16,64,64,3,3,f16,pad=1,stride=2"), tma(small(1, 64))),
        (
            "odd",
            [6, 1],
            conv("conv2d:2,9,8,64,32,3,3,f16,pad=1"),
            tma(WgmmaPlan { tile: [64, 32, 64], ..small(1, 64) }),
        ),
        ("one", [6, 1], conv("conv2d:1,9,8,64,32,3,3,f16,pad=1"), WgmmaPlan { tile: [64, 32, 64], ..small(1, 64) }),
        ("epi", [6, 1], conv("conv2d:3,11,9,64,64,3,2,bf16,stride=2,pad=1,bias,relu,out=bf16"), tma(small(1, 64))),
        (
            "one_by_one",
            [10, 1],
            conv("conv2d:2,8,8,128,256,1,1,bf16,stride=2,out=bf16"),
            WgmmaPlan { store: TileStore::Boxes, tile: [64, 256, 64], ..small(1, 64) },
        ),
        (
            "conv1d",
            [20, 1],
            conv("conv1d:3,70,64,48,5,f16,dilation=3,pad=4"),
            WgmmaPlan { tile: [64, 48, 64], ..small(1, 64) },
        ),
        (
            "conv3d",
            [6, 1],
            conv("conv3d:1,4,5,6,64,32,2,3,3,f16,pad=1"),
            WgmmaPlan { tile: [64, 32, 64], ..small(1, 64) },
        ),
        (
            "transposed",
            [6, 1],
            conv("conv2d_transpose:1,6,12,64,32,3,3,f16,pad=1"),
            WgmmaPlan { tile: [64, 32, 64], ..small(1, 64) },
        ),
        ("cluster", [6, 1], conv("conv2d:4,8,8,64,64,3,3,f16,pad=1"), clustered([2, 1])),
        ("cluster2", [6, 1], conv("conv2d:2,8,8,64,128,3,3,f16,pad=1"), clustered([1, 2])),
        (
            "cluster3",
            [6, 1],
            conv("conv2d:4,8,8,64,128,3,3,f16,pad=1"),
            WgmmaPlan { swapped: true, ..clustered([2, 1]) },
        ),
        ("swapped", [6, 1], conv("conv2d:2,8,8,64,128,3,3,f16,pad=1"), WgmmaPlan { swapped: true, ..small(1, 64) }),
        (
            "groups",
            [6, 1],
            product(
                "2, 10, 9, 128; 2, 3, 3, 64, 32; 2, 8, 7, 64",
                "n 2 y 8 x 7 g 2 f 32 I 3 J 3 C 64",
                "n, y + i, x + j, g * 64 + c; g, i, j, c, f; n, y, x, g * 32 + f",
            ),
            WgmmaPlan { tile: [64, 32, 64], ..small(1, 64) },
        ),
        (
            "heads1",
            [2, 0],
            product(
                "70, 2, 3, 64; 40, 2, 3, 64; 2, 3, 70, 40",
                "b 2 h 3 p 70 q 40 D 64",
                "p, b, h, d; q, b, h, d; b, h, p, q",
            ),
            WgmmaPlan { tile: [64, 40, 64], ..small(1, 64) },
        ),
        (
            "heads2",
            [4, 0],
            product(
                "3, 50, 2, 72; 3, 56, 2, 72; 3, 50, 2, 56",
                "b 3 h 2 p 50 q 56 D 72",
                "b, p, h, d; b, q, h, d; b, p, h, q",
            ),
            small(1, 64),
        ),
        (
            "heads_stored",
            [2, 0],
            product(
                "2, 64, 3, 64; 2, 128, 3, 64; 2, 64, 3, 128",
                "b 2 h 3 p 64 q 128 D 64",
                "b, p, h, d; b, q, h, d; b, p, h, q",
            ),
            tma(small(1, 64)),
        ),
        (
            "heads_boxed",
            [2, 0],
            product(
                "2, 64, 3, 64; 2, 256, 3, 64; 2, 64, 3, 256",
                "b 2 h 3 p 64 q 256 D 64",
                "b, p, h, d; b, q, h, d; b, p, h, q",
            ),
            WgmmaPlan { store: TileStore::Boxes, tile: [64, 256, 64], ..small(1, 64) },
        ),
        (
            "heads3",
            [12, 1],
            product("2, 3, 72, 64; 3, 64, 96; 2, 72, 96", "b 2 p 72 q 96 H 3 D 64", "b, h, p, d; h, d, q; b, p, q"),
            tma(WgmmaPlan { tile: [64, 96, 64], ..small(1, 64) }),
        ),
        (
            "heads4",
            [4, 0],
            product("128, 3, 64; 128, 3, 32; 3, 64, 32", "b 3 p 64 q 32 D 128", "d, b, p; d, b, q; b, p, q"),
            WgmmaPlan { tile: [64, 32, 64], ..small(1, 64) },
        ),
        (
            "within",
            [6, 1],
            product(
                "2, 12, 12, 192; 3, 3, 64, 64; 2, 7, 6, 64",
                "n 2 y 7 x 6 f 64 I 3 J 3 C 64",
                "n, y + i + 2, x + j + 1, c + 64; i, j, c, f; n, y, x, f",
            ),
            tma(small(1, 64)),
        ),
        (
            "flat",
            [6, 1],
            product(
                "12, 11, 128; 64, 3, 3, 128; 10, 9, 64",
                "y 10 x 9 f 64 I 3 J 3 C 128",
                "y + i, x + j, c; f, i, j, c; y, x, f",
            ),
            small(1, 64),
        ),
    ]
}

/// Pixels of images and boxes of tensors come by the TMA, and results go to their places.
#[test(slow)]
fn programs_of_gathered_products_are_executed() {
    let loads = |kernel: &Kernel| count(&kernel.body, &|s| matches!(s, Stmt::Group(GroupOp::LoadTile { .. })));
    let stores = |kernel: &Kernel| count(&kernel.body, &|s| matches!(s, Stmt::Group(GroupOp::StoreTile { .. })));
    let images = |kernel: &Kernel| kernel.tensor_maps.iter().filter(|map| map.image.is_some()).count();
    for (name, brought, problem, plan) in some_of(gathered(), 4) {
        let made = problem.scheduled(&Schedule::Wgmma(plan.clone()), &Default::default()).unwrap();
        let kernel = &made.module.kernels[made.module.main];
        let told = kernel.notes.join("\n");
        assert!(parts(kernel) && !told.contains("not copied by the TMA"), "{name}: {told}");
        assert_eq!(kernel.cluster, plan.cluster_size(), "{name}: {told}");
        assert_eq!([loads(kernel), images(kernel)], brought, "{name}: {told}");
        assert_eq!(stores(kernel) > 0, plan.store != TileStore::Direct, "{name}: {told}");
        right(&problem.program, &made.module, "90a", name);
    }
}
