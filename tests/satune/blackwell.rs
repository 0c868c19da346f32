//! Kernels on `tcgen05`: simulated bit for bit, compiled for sm_100a, and their PTX executed.
use crate::compiles::compile;
use crate::executed::{all_right, right};
use crate::hopper::small as on_wgmma;
use crate::support::some_of;
use crate::synchronisation::without;
use crate::tensor::plans::*;
use crate::tensor::{check_plan, relu_and_residual, run};
use satune::compile::Job;
use satune::kernel::{GroupOp, Stmt, TensorMemoryOp};
use satune::lower::program::lower;
use satune::operators;
use satune::workload::Workload;
use satune_ir::term::tensor::{GroupMma, TensorError};
use satune_ir::term::Schedule;
use satune_ir::{tvmscript, DType};

/// A small plan: so many consumers of 128 rows each.
pub fn small(consumers: u32, n: i64) -> WgmmaPlan {
    WgmmaPlan { op: GroupMma::Tcgen05, tile: [128 * i64::from(consumers), n, 64], ..on_wgmma(consumers, n) }
}

#[test]
fn layouts_types_and_schedules_are_exact() {
    let base = small(1, 64);
    let stream = WgmmaPlan { stream_k: true, blocks: Some(5), ..base.clone() };
    let turns = WgmmaPlan { ping_pong: true, tile: [128, 64, 64], ..small(2, 64) };
    let pairs = |cluster: [u32; 2]| WgmmaPlan { cluster, blocks: Some(cluster[0] * cluster[1]), ..base.clone() };
    let cases = [
        (base.clone(), DType::F16, DType::F16, ["NT", "NN", "TN", "TT"].as_slice(), [384, 128, 256]),
        (small(2, 64), DType::BF16, DType::F32, &["NT", "TN"], [256, 136, 200]),
        (WgmmaPlan { tile: [256, 48, 64], ..base.clone() }, DType::F16, DType::F32, &["NT"], [300, 104, 136]),
        (WgmmaPlan { split_k: 3, ..base.clone() }, DType::F16, DType::F16, &["NT", "TN"], [136, 64, 512]),
        (WgmmaPlan { stages: 2, blocks: None, ..small(2, 128) }, DType::BF16, DType::BF16, &["TN"], [136, 200, 72]),
        (WgmmaPlan { tile: [128, 112, 128], ..base.clone() }, DType::F16, DType::F32, &["NT", "TT"], [136, 128, 456]),
        (WgmmaPlan { tile: [128, 32, 32], ..base.clone() }, DType::F32, DType::F32, &["NT", "NN"], [140, 36, 100]),
        (WgmmaPlan { tile: [128, 32, 128], ..base.clone() }, DType::I8, DType::I32, &["NT", "TN"], [136, 48, 400]),
        (WgmmaPlan { tile: [128, 48, 128], ..base.clone() }, DType::F8E4M3, DType::F32, &["NT"], [136, 56, 400]),
        (WgmmaPlan { tile: [128, 48, 128], ..base.clone() }, DType::F8E5M2, DType::BF16, &["NT"], [136, 56, 400]),
        (stream, DType::F16, DType::F32, &["NT"], [256, 136, 320]),
        (turns, DType::F16, DType::F32, &["NT", "NN"], [512, 128, 192]),
        (pairs([2, 1]), DType::F16, DType::F16, &["NT", "TN"], [256, 128, 320]),
        (pairs([1, 2]), DType::BF16, DType::F32, &["NN"], [128, 256, 192]),
        (pairs([2, 2]), DType::F16, DType::F16, &["NT"], [512, 128, 200]),
    ];
    for (plan, operand, output, layouts, shape) in cases {
        for layout in layouts {
            let g = Gemm::plain("gemm", shape, operand, output, layout);
            check_plan(&g, &plan);
        }
    }
}

/// Results of all ways to memory: lines of rows, of columns, of narrow types, box by box, rows that are no multiples of 16 bytes.
#[test]
fn results_leave_every_way() {
    let tma = |plan: WgmmaPlan| WgmmaPlan { store: TileStore::Tma, ..plan };
    let boxes = |plan: WgmmaPlan| WgmmaPlan { store: TileStore::Boxes, ..plan };
    let turns = WgmmaPlan { ping_pong: true, tile: [128, 192, 64], stages: 2, ..small(2, 192) };
    let bytes = WgmmaPlan { tile: [128, 128, 128], stages: 2, ..small(1, 128) };
    let cases = [
        (tma(small(2, 64)), DType::F16, DType::F16, [256, 192, 128]),
        (tma(small(1, 128)), DType::F16, DType::F32, [150, 136, 72]),
        (
            boxes(WgmmaPlan { tile: [256, 128, 64], stages: 2, ..small(1, 128) }),
            DType::F16,
            DType::F16,
            [300, 136, 200],
        ),
        (boxes(turns), DType::BF16, DType::BF16, [320, 384, 136]),
        (tma(bytes.clone()), DType::I8, DType::I8, [150, 144, 272]),
        (tma(bytes), DType::I8, DType::I32, [150, 135, 144]),
        (tma(small(1, 128)), DType::F16, DType::F16, [131, 133, 72]),
    ];
    for (plan, operand, output, shape) in cases {
        let mut g = Gemm::plain("gemm", shape, operand, output, "NT");
        if operand != DType::I8 {
            relu_and_residual(&mut g, 2.0, 1.0);
        }
        let total = check_plan(&g, &plan).total;
        let more = if output.bytes() == 4 { 2 * total.shared_stores } else { 0 };
        assert_eq!(total.shared_store_wavefronts, total.shared_store_wavefronts_ideal + more, "{plan:?} {output:?}");
    }
    // The transposed product: rows of the result are columns of memory.
    for store in [TileStore::Direct, TileStore::Tma] {
        let plan = WgmmaPlan { swapped: true, store, ..small(1, 48) };
        let g = Gemm::plain("gemm", [40, 200, 136], DType::F16, DType::F16, "NT");
        check_plan(&g, &plan);
        let g = Gemm { batch: 2, ..Gemm::plain("gemm", [48, 256, 64], DType::BF16, DType::BF16, "NT") };
        check_plan(&g, &plan);
    }
}

#[test]
fn what_tensor_memory_does_not_hold_is_refused() {
    let g = Gemm::plain("gemm", [4096, 4096, 4096], DType::F16, DType::F16, "NT");
    let of = |tile: [i64; 3], consumers: u32, ping_pong: bool| WgmmaPlan { tile, ping_pong, ..small(consumers, 64) };
    assert_eq!(of([256, 256, 64], 2, false).check(&g), Ok(()));
    assert_eq!(of([128, 256, 64], 2, true).check(&g), Ok(()));
    let refused = of([256, 256, 64], 2, true).check(&g);
    assert_eq!(refused, Err(TensorError::Columns(1024, 512)));
    assert!(of([64, 128, 64], 1, false).check(&g).is_err(), "instructions have 128 rows");
    assert!(of([128, 40, 64], 1, false).check(&g).is_err(), "columns by 16");
    assert!(WgmmaPlan { eager_release: true, ..small(1, 64) }.check(&g).is_err());
    assert!(small(1, 64).check(&Gemm { f16_sums: true, ..g }).is_err());
}

/// Programs that no plan makes: sums that a half of the columns is read of at a time; and what is no schedule on tensor memory, with why.
#[test]
fn programs_by_hand_are_lowered_or_told() {
    let operator = "gemm:256,64,192,f16,NT";
    let problem = operators::parse(operator).unwrap();
    let plan = Schedule::Wgmma(WgmmaPlan { stages: 2, ..small(1, 64) });
    let text = tvmscript::print(&problem.scheduled(&plan, &Default::default()).unwrap().program);
    let lowered = |text: &str| lower(&tvmscript::parse(text).unwrap(), &Default::default());
    let at = text.rfind("            for ax0, ax1 in T.grid(128, 64):").unwrap();
    let (before, store) = text.split_at(at);
    let half = |first: i64| {
        let read = store.replace("T.grid(128, 64)", "T.grid(128, 32)");
        let read = read.replace("T.axis.spatial(64, ax1)", &format!("T.axis.spatial(64, {first} + ax1)"));
        assert_ne!(read, store.replace("T.grid(128, 64)", "T.grid(128, 32)"), "{store}");
        read
    };
    let halves = lowered(&format!("{before}{}{}", half(0), half(32))).unwrap();
    assert!(halves.kernels[0].body.iter().any(|s| matches!(s, Stmt::Roles(_))));
    right(&problem.program, &halves, "100a", operator);
    for (from, to, why) in [
        ("\"satune.tma\": 1", "\"satune.copy_bytes\": 16", "no producer brings"),
        ("for i, j in T.grid(128, 64):", "for i, j in T.grid(64, 64):", "not all of it is cleared"),
    ] {
        let changed = text.replace(from, to);
        assert_ne!(changed, text, "{from}");
        let error = lowered(&changed).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// Without a wait, a commit or a barrier a kernel is wrong, or does not end.
#[test]
fn each_synchronisation_is_needed() {
    let g = Gemm::plain("gemm", [384, 128, 256], DType::F16, DType::F16, "NT");
    let plan = WgmmaPlan { stages: 2, store: TileStore::Tma, ..small(1, 64) };
    type Part = fn(&Stmt) -> bool;
    let parts: [(&str, Part); 5] = [
        ("commits", |s| matches!(s, Stmt::Group(GroupOp::TensorMemory(TensorMemoryOp::Commit { .. })))),
        ("waits", |s| matches!(s, Stmt::Group(GroupOp::WaitPhase { .. }))),
        ("meetings", |s| matches!(s, Stmt::Group(GroupOp::NamedBarrier { .. }))),
        ("the end", |s| matches!(s, Stmt::Group(GroupOp::TensorMemory(TensorMemoryOp::Free { .. })))),
        ("the beginning", |s| matches!(s, Stmt::Group(GroupOp::TensorMemory(TensorMemoryOp::Allocate { .. })))),
    ];
    let module = lower_wgmma(&g, &plan).unwrap();
    assert!(run(&g, &module).is_ok());
    for (what, part) in parts {
        let mut broken = module.clone();
        assert!(without(&mut broken.kernels[module.main].body, &part) > 0, "{what}");
        assert!(run(&g, &broken).is_err(), "without {what}");
    }
}

/// The kernels' PTX is executed, all of it; their plans are read back from the scheduled programs.
#[test(slow)]
fn products_are_right_by_their_ptx() {
    let base = small(1, 64);
    let tma = |plan: WgmmaPlan| WgmmaPlan { store: TileStore::Tma, ..plan };
    let pair = WgmmaPlan { cluster: [2, 1], blocks: None, ..base.clone() };
    let turns = WgmmaPlan { ping_pong: true, tile: [128, 64, 64], ..small(2, 64) };
    let boxes = WgmmaPlan { store: TileStore::Boxes, tile: [256, 128, 64], stages: 2, ..small(1, 128) };
    let cases: Vec<(&str, WgmmaPlan)> = vec![
        ("gemm:256,64,128,f16,NT", base.clone()),
        ("gemm:200,136,100,f16,TN,out=f16", base.clone()),
        ("gemm:256,136,136,bf16,NN,out=bf16,bias,relu", tma(small(2, 64))),
        ("gemm:130,36,100,tf32,NT", WgmmaPlan { tile: [128, 32, 32], ..base.clone() }),
        ("gemm:130,48,272,i8,NT", WgmmaPlan { tile: [128, 32, 128], ..base.clone() }),
        ("gemm:130,48,272,e4m3,NT,out=e4m3", tma(WgmmaPlan { tile: [128, 128, 128], ..base.clone() })),
        ("gemm:128,64,256,f16,TT", WgmmaPlan { split_k: 2, ..base.clone() }),
        ("gemm:384,128,320,f16,NT", WgmmaPlan { stages: 2, ..turns }),
        ("gemm:300,136,136,bf16,NT,out=bf16,bias,relu", boxes),
        ("gemm:256,64,320,f16,NT", WgmmaPlan { stages: 2, ..pair.clone() }),
        ("gemm:128,128,128,bf16,NN", WgmmaPlan { cluster: [1, 2], ..pair }),
        ("gemm:256,128,200,f16,NT", WgmmaPlan { stream_k: true, blocks: Some(3), ..base.clone() }),
        ("gemm:16,200,128,f16,NT,out=f16", tma(WgmmaPlan { swapped: true, tile: [128, 16, 64], ..base.clone() })),
        ("bmm:2,128,64,64,f16,NT", base),
    ];
    for (operator, plan) in some_of(cases, 6) {
        let schedule = Schedule::Wgmma(plan);
        println!("{operator}: {}", schedule.describe().join("; "));
        all_right("100a", &[(operator, schedule)]);
    }
}

#[test(slow)]
fn large_tiles_compile_without_spills() {
    let base =
        WgmmaPlan { raster: Raster::rows(16), blocks: Some(148), stages: 4, store: TileStore::Tma, ..small(1, 256) };
    let turns = WgmmaPlan { ping_pong: true, stages: 3, store: TileStore::Boxes, consumers: 2, ..base.clone() };
    let plans = [
        ("one", DType::BF16, DType::BF16, WgmmaPlan { stages: 3, ..base.clone() }),
        ("turns", DType::BF16, DType::BF16, turns.clone()),
        (
            "two",
            DType::F16,
            DType::F32,
            WgmmaPlan { tile: [256, 256, 64], consumers: 2, stages: 3, store: TileStore::Direct, ..base.clone() },
        ),
        ("pair", DType::BF16, DType::BF16, WgmmaPlan { cluster: [2, 1], ..turns }),
        ("tf32", DType::F32, DType::F32, WgmmaPlan { tile: [128, 128, 32], ..base.clone() }),
        ("s8", DType::I8, DType::I32, WgmmaPlan { tile: [128, 128, 128], store: TileStore::Direct, ..base.clone() }),
        ("e4m3", DType::F8E4M3, DType::BF16, WgmmaPlan { tile: [128, 128, 128], ..base.clone() }),
        ("stream", DType::BF16, DType::F32, WgmmaPlan { stream_k: true, store: TileStore::Direct, ..base }),
    ];
    let mut jobs = Vec::new();
    for (name, operand, output, plan) in some_of(plans, 4) {
        let g = Gemm::plain(name, [4096, 4096, 4096], operand, output, "NT");
        let module = lower_wgmma(&g, &plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let source = satune::cuda::print(&module.kernels[0]);
        if let Some(folder) = std::env::var_os("SATUNE_TEST_TEXT") {
            std::fs::write(std::path::Path::new(&folder).join(format!("{name}.cu")), &source).unwrap();
        }
        jobs.push(Job { name: name.into(), source, arch: "sm_100a".into() });
    }
    for (kernel, job) in compile(&jobs).iter().zip(&jobs) {
        println!("{}: {} registers", job.name, kernel.registers);
        assert_eq!(kernel.spill_bytes, 0, "{}", job.name);
    }
}
