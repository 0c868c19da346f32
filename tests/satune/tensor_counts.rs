//! What the model counts of tensor-core kernels is what the simulator counts.
use crate::support::gemm;
use crate::tensor_space::by_columns;
use satune::explore::{check, shrink_tensor};
use satune::lower::program::LowerOptions;
use satune_extract::tensor;
use satune_ir::term::tensor::*;
use satune_ir::term::*;
use satune_ir::DType;

/// What the model counts of a kernel on `mma.sync` is what the simulator counts.
fn assert_mma_counts(plan: &TensorPlan, c: &Contraction) {
    let schedule = Schedule::Mma(plan.clone());
    let simulated = check(&schedule, c, &LowerOptions::default(), &|| true).unwrap().total;
    let (small_plan, small) = shrink_tensor(&schedule, c);
    let Schedule::Mma(small_plan) = small_plan else { panic!("another kind") };
    let g = Gemm::of(&small).unwrap();
    let w = tensor::block(&tensor::Kernel::Mma(&small_plan), &g).total();
    let more = [(w.barriers, simulated.barriers), (w.shared_loads, simulated.shared_loads)];
    assert_same(&w, small_plan.blocks(&g) as f64, &simulated, &more, &format!("{plan:#?}"));
}

/// Counts of one block, and how many there are, against the simulator's; `more` are those that only this kind of kernel has.
fn assert_same(
    w: &satune_extract::work::Work,
    blocks: f64,
    simulated: &satune::simulate::Counts,
    more: &[(f64, u64)],
    what: &str,
) {
    let both = [
        (w.matrix, simulated.matrix),
        (w.matrix_moves, simulated.matrix_moves),
        (w.async_copies, simulated.async_copies),
        (w.shared_load_wavefronts, simulated.shared_load_wavefronts),
        (w.shared_load_wavefronts_ideal, simulated.shared_load_wavefronts_ideal),
        (w.shared_store_wavefronts, simulated.shared_store_wavefronts),
        (w.global_load_sectors, simulated.global_load_sectors),
        (w.global_stores, simulated.global_stores),
        (w.global_store_sectors, simulated.global_store_sectors),
    ];
    let (model, counted): (Vec<u64>, Vec<u64>) =
        both.iter().chain(more).map(|(x, count)| ((x * blocks) as u64, *count)).unzip();
    assert_eq!(model, counted, "{what}");
}

/// The same on `wgmma`.
fn assert_wgmma_counts_of(plan: &WgmmaPlan, c: &Contraction) {
    let schedule = Schedule::Wgmma(plan.clone());
    let simulated = check(&schedule, c, &LowerOptions::default(), &|| true).unwrap().total;
    let (schedule, small) = shrink_tensor(&schedule, c);
    let Schedule::Wgmma(plan) = schedule else { panic!("another kind") };
    let g = Gemm::of(&small).unwrap();
    let w = tensor::block(&tensor::Kernel::Wgmma(&plan), &g).total();
    let blocks = plan.tiles(&g) as f64;
    assert_wgmma_counts(&w, blocks, &simulated);
}

#[test(slow)]
fn the_models_counts_are_the_simulators() {
    let base = TensorPlan::plain([64, 64, 32], [32, 32], Mma::F16, 3);
    let plain = OperandPlan { layout: TileLayout::Plain, ..OperandPlan::default() };
    let across = OperandPlan { order: CopyOrder::Columns, bytes: 8, matrices: 2, sets: 1, ..plain };
    let own = OperandPlan {
        layout: TileLayout::Rotate(4),
        order: CopyOrder::Own,
        bytes: 4,
        rolled: true,
        matrices: 1,
        ..plain
    };
    let padded = OperandPlan { layout: TileLayout::Padded, ..OperandPlan::default() };
    let narrow_padded = OperandPlan { bytes: 4, order: CopyOrder::Columns, ..padded };
    let half = |plan: TensorPlan| (plan, DType::F16, DType::F16, DType::F32);
    let mma = [
        half(base.clone()),
        half(TensorPlan { operands: [plain, OperandPlan::default()], ..base.clone() }),
        half(TensorPlan { operands: [OperandPlan::default(), plain], tile: [64, 64, 64], ..base.clone() }),
        half(TensorPlan { operands: [across, own], tile: [64, 64, 64], slack: 1, ..base.clone() }),
        half(TensorPlan { operands: [padded, across], ..base.clone() }),
        half(TensorPlan { operands: [padded, across], tile: [64, 8, 64], warp: [16, 8], ..base.clone() }),
        half(TensorPlan { tile: [64, 8, 32], warp: [32, 8], ..base.clone() }),
        half(TensorPlan { operands: [narrow_padded, padded], tile: [64, 32, 64], warp: [32, 16], ..base.clone() }),
        (
            TensorPlan { operands: [padded; 2], instruction: Mma::Tf32, ..base.clone() },
            DType::F32,
            DType::F32,
            DType::F32,
        ),
        (
            TensorPlan { operands: [padded; 2], instruction: Mma::S8, tile: [64, 64, 64], ..base.clone() },
            DType::I8,
            DType::I32,
            DType::I32,
        ),
        half(TensorPlan { operands: [own, across], rolled: true, ..base.clone() }),
        half(TensorPlan { tile: [128, 64, 32], warp: [32, 32], split_k: 2, stages: 4, ..base.clone() }),
        (TensorPlan { instruction: Mma::Tf32, ..base.clone() }, DType::F32, DType::F32, DType::F32),
        (
            TensorPlan { instruction: Mma::S8, tile: [128, 128, 64], warp: [64, 64], ..base.clone() },
            DType::I8,
            DType::I32,
            DType::I32,
        ),
    ];
    let wmma = |shape, operand| Mma::Wmma(Wmma::of(shape, operand).unwrap());
    let wide = TensorPlan::plain([64, 64, 32], [32, 32], wmma(WmmaShape::M16N16, DType::F16), 2);
    let staged = TensorPlan { store: Store::Shared { stmatrix: false }, ..wide.clone() };
    let narrow = OperandPlan { order: CopyOrder::Columns, bytes: 8, sets: 1, ..wide.operands[0] };
    let mma = mma.into_iter().chain([
        half(wide.clone()),
        half(TensorPlan { split_k: 2, tile: [64, 32, 32], warp: [16, 32], ..wide.clone() }),
        half(TensorPlan { operands: [narrow; 2], ..staged.clone() }),
        half(TensorPlan { instruction: wmma(WmmaShape::M32N8, DType::F16), ..staged.clone() }),
        half(TensorPlan { instruction: wmma(WmmaShape::M8N32, DType::F16), ..staged }),
        (TensorPlan { instruction: wmma(WmmaShape::M16N16, DType::I8), ..wide }, DType::I8, DType::I32, DType::I32),
    ]);
    for (plan, operand, output, sum) in mma {
        // Bytes, and lines of 8 f16, are loaded along k.
        let square = |op: Wmma| op.shape == WmmaShape::M16N16;
        let along_k_alone = plan.instruction.wmma().is_some_and(|op| operand == DType::I8 || !square(op));
        for layout in if along_k_alone { &["NT"][..] } else { &["NN", "NT", "TN"] } {
            let mut c = gemm(None, 256, 128, 512, operand, sum, layout);
            c.c.dtype = if output == DType::F16 { DType::F32 } else { output };
            assert_mma_counts(&plan, &c);
        }
    }
    let other = TensorPlan { swapped: true, tile: [64, 32, 32], ..base.clone() };
    assert_mma_counts(&other, &gemm(None, 32, 256, 512, DType::F16, DType::F32, "NT"));
    assert_mma_counts(&base, &by_columns(gemm(None, 256, 128, 512, DType::F16, DType::F32, "TN")));
    let bytes = TensorPlan { instruction: Mma::S8, tile: [128, 128, 64], warp: [64, 64], ..base.clone() };
    assert_mma_counts(&bytes, &by_columns(gemm(None, 256, 128, 512, DType::I8, DType::I32, "TN")));
    assert_mma_counts(&TensorPlan { split_k: 2, ..base }, &gemm(Some(3), 128, 128, 512, DType::F16, DType::F32, "NN"));
    let plan = WgmmaPlan::plain([128, 64, 64], 2, 3);
    for (split_k, cluster, layout) in
        [(1, [1, 1], "NT"), (2, [1, 1], "TN"), (1, [2, 1], "TN"), (1, [1, 2], "NT"), (2, [2, 2], "NT")]
    {
        let c = gemm(None, 256, 128, 1024, DType::F16, DType::F32, layout);
        assert_wgmma_counts_of(&WgmmaPlan { split_k, cluster, ..plan.clone() }, &c);
    }
    for (cluster, layout) in [([1, 1], "NT"), ([4, 1], "NN"), ([2, 4], "NT")] {
        let plan = WgmmaPlan { cluster, ..WgmmaPlan::plain([128, 64, 128], 2, 2) };
        assert_wgmma_counts_of(&plan, &gemm(None, 512, 256, 1024, DType::F16, DType::F32, layout));
    }
    let narrow = WgmmaPlan { cluster: [2, 1], ..WgmmaPlan::plain([64, 80, 64], 1, 3) };
    assert_wgmma_counts_of(&narrow, &gemm(None, 128, 160, 1024, DType::F16, DType::F32, "NN"));
    let decode = WgmmaPlan { swapped: true, cluster: [2, 1], ..WgmmaPlan::plain([64, 16, 64], 1, 3) };
    assert_wgmma_counts_of(&decode, &gemm(None, 16, 256, 1024, DType::F16, DType::F32, "NT"));
    assert_wgmma_counts_of(&plan, &by_columns(gemm(None, 256, 128, 1024, DType::F16, DType::F32, "NN")));
    assert_wgmma_counts_of(&plan, &gemm(Some(2), 128, 128, 1024, DType::F16, DType::F32, "TN"));
    // Copied by those who multiply: along k, across it, by fewer bytes.
    let copying = WgmmaPlan { by_threads: true, ..WgmmaPlan::plain([128, 64, 64], 2, 4) };
    for (eager_release, layout, m) in [(false, "NT", 256), (true, "TN", 256), (false, "NN", 128)] {
        let plan = WgmmaPlan { eager_release, ..copying.clone() };
        assert_wgmma_counts_of(&plan, &gemm(None, m, 128, 1024, DType::F16, DType::F32, layout));
    }
    assert_wgmma_counts_of(
        &WgmmaPlan { split_k: 2, tile: [128, 64, 128], ..copying },
        &gemm(None, 256, 128, 1024, DType::I8, DType::I32, "NT"),
    );
    let memory = |plan: WgmmaPlan| WgmmaPlan { op: GroupMma::Tcgen05, ..plan };
    for (cluster, store, layout) in
        [([1, 1], TileStore::Direct, "NT"), ([2, 1], TileStore::Tma, "TN"), ([1, 2], TileStore::Boxes, "NN")]
    {
        let plan = memory(WgmmaPlan { cluster, store, ..WgmmaPlan::plain([256, 128, 64], 1, 2) });
        assert_wgmma_counts_of(&plan, &gemm(None, 512, 256, 1024, DType::F16, DType::F32, layout));
    }
    let decode = memory(WgmmaPlan { swapped: true, store: TileStore::Direct, ..WgmmaPlan::plain([128, 16, 64], 1, 3) });
    assert_wgmma_counts_of(&decode, &gemm(None, 16, 256, 1024, DType::F16, DType::F32, "NT"));
}

/// The counts of a kernel on `wgmma`: what the TMA and `wgmma` do to shared memory among them.
fn assert_wgmma_counts(w: &satune_extract::work::Work, tiles: f64, simulated: &satune::simulate::Counts) {
    let more = [(w.shared_store_wavefronts_ideal, simulated.shared_store_wavefronts_ideal)];
    // Blocks with a producer meet otherwise.
    let meets = (w.barriers > 0.0).then_some((w.barriers, simulated.barriers));
    let more = [more.as_slice(), meets.as_slice()].concat();
    assert_same(w, tiles, simulated, &more, "wgmma");
    assert!(simulated.shared_load_wavefronts > 0 && simulated.shared_store_wavefronts > 0);
}

/// C's tile by way of shared memory: swizzled, or padded, of which rows that are no wavefronts are read.
#[test]
fn the_models_counts_are_the_simulators_where_shared_memory_holds_c() {
    for (tile, stmatrix, swapped) in [
        ([64, 64, 64], true, false),
        ([64, 48, 64], false, false),
        ([64, 24, 64], true, false),
        ([64, 96, 64], true, false),
        ([48, 64, 64], false, true),
    ] {
        let (extents, warp) = ([2 * tile[0], 2 * tile[1], 512], [16, tile[1]]);
        let mut g = Gemm::plain("gemm", extents, DType::F16, DType::F16, "NT");
        if swapped {
            (g.m, g.n) = (g.n, g.m);
        }
        let store = Store::Shared { stmatrix };
        let plan = TensorPlan { swapped, store, ..TensorPlan::plain(tile, warp, Mma::F16, 3) };
        let total = crate::tensor::check(&g, &crate::tensor::lower_mma(&g, &plan).unwrap()).total;
        let mut w = tensor::block(&tensor::Kernel::Mma(&plan), &g).total();
        if tile[1] % 16 != 0 {
            // Warps whose rows share a sector each touch it.
            assert!((w.global_store_sectors * plan.blocks(&g) as f64) <= total.global_store_sectors as f64);
            w.global_store_sectors = total.global_store_sectors as f64 / plan.blocks(&g) as f64;
        }
        let more = [(w.barriers, total.barriers), (w.shared_loads, total.shared_loads)];
        assert_same(&w, plan.blocks(&g) as f64, &total, &more, &format!("{plan:#?}"));
    }
}

#[test]
fn the_models_counts_are_the_simulators_where_the_tma_stores() {
    let g = Gemm::plain("gemm", [256, 256, 512], DType::F16, DType::F16, "NN");
    let plan = WgmmaPlan {
        by_rows: true,
        blocks: Some(2),
        cluster: [1, 2],
        store: TileStore::Tma,
        ..WgmmaPlan::plain([128, 128, 64], 2, 2)
    };
    // Its columns, in boxes of 24 of them.
    for (cluster, layout) in [([1, 1], "NT"), ([4, 1], "NN"), ([2, 4], "NT")] {
        let plan = WgmmaPlan { cluster, ..WgmmaPlan::plain([128, 64, 128], 2, 2) };
        assert_wgmma_counts_of(&plan, &gemm(None, 512, 256, 1024, DType::F16, DType::F32, layout));
    }
    let narrow = WgmmaPlan { cluster: [2, 1], ..WgmmaPlan::plain([64, 80, 64], 1, 3) };
    assert_wgmma_counts_of(&narrow, &gemm(None, 128, 160, 1024, DType::F16, DType::F32, "NN"));
    let decode = WgmmaPlan { swapped: true, store: TileStore::Tma, ..WgmmaPlan::plain([128, 24, 64], 2, 2) };
    let few = Gemm::plain("gemm", [48, 256, 512], DType::F16, DType::F16, "NN");
    let boxes = WgmmaPlan { store: TileStore::Boxes, ..WgmmaPlan::plain([128, 256, 64], 2, 2) };
    // Whole numbers by pairs: of bytes, 16 and 32 bits.
    let narrow = WgmmaPlan { store: TileStore::Tma, ..WgmmaPlan::plain([128, 128, 128], 2, 3) };
    let pairs = [DType::I8, DType::I16, DType::I32];
    let pairs = pairs.map(|output| (Gemm::plain("gemm", [256, 256, 512], DType::I8, output, "NT"), narrow.clone()));
    for (g, plan) in [(g.clone(), plan), (g, boxes), (few, decode)].into_iter().chain(pairs) {
        let report = crate::tensor::check(&g, &crate::tensor::plans::lower_wgmma(&g, &plan).unwrap());
        let w = tensor::block(&tensor::Kernel::Wgmma(&plan), &g).total();
        assert_wgmma_counts(&w, plan.tiles(&g) as f64, &report.total);
    }
}
