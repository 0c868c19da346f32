//! Tensor-core kernels of transposed products (swapped operands), of results by columns, and of batches: simulated bit for
//! bit, and really compiled.
use crate::compiles::compile;
use crate::tensor::plans::*;
use crate::tensor::{check, lower_mma, product_of, relu_and_residual, TYPES};
use crate::{hopper, tensor};
use satune::compile::Job;
use satune::simulate::Report;
use satune_ir::DType;

/// A product, a batch of them, and whether results are stored by columns.
fn gemm(batch: i64, shape: [i64; 3], [operand, output]: [DType; 2], layout: &str, c_transposed: bool) -> Gemm {
    Gemm { batch, c_transposed, ..Gemm::plain("gemm", shape, operand, output, layout) }
}

fn assert_no_conflicts(report: &Report, what: &str) {
    let t = &report.total;
    assert_eq!(
        (t.shared_load_wavefronts, t.shared_store_wavefronts),
        (t.shared_load_wavefronts_ideal, t.shared_store_wavefronts_ideal),
        "{what}"
    );
}

#[test(slow)]
fn transposed_products_on_mma_sync_are_exact() {
    for (op, output) in TYPES {
        for layout in ["NN", "NT", "TN", "TT"] {
            // Of 16 rows of C, swapped; and by columns, both ways.
            for (swapped, c_transposed, shape) in
                [(true, false, [16, 192, 160]), (true, true, [72, 104, 200]), (false, true, [100, 65, 131])]
            {
                let plan = TensorPlan { swapped, tile: [64, 32, tensor::small(op).tile[2]], ..tensor::small(op) };
                let mut g = Gemm { c_transposed, ..product_of(op, shape, output, layout) };
                check(&g, &lower_mma(&g, &plan).unwrap());
                check(&g, &lower_mma(&g, &TensorPlan { split_k: 2, ..plan.clone() }).unwrap());
                relu_and_residual(&mut g, 2.0, 0.5);
                check(&g, &lower_mma(&g, &plan).unwrap());
            }
        }
    }
}

#[test]
fn columns_leave_through_shared_memory_without_conflicts() {
    for stmatrix in [true, false] {
        for (tile, warp, shape) in [
            ([64, 32, 32], [32, 32], [128, 40, 96]),
            ([32, 64, 32], [16, 32], [96, 128, 96]),
            ([16, 64, 64], [16, 16], [40, 72, 128]),
            ([128, 64, 32], [64, 32], [136, 100, 96]),
        ] {
            let store = Store::Shared { stmatrix };
            let plan = TensorPlan { store, ..TensorPlan::plain(tile, warp, Mma::F16, 3) };
            let mut g = gemm(1, shape, [DType::F16; 2], "NT", true);
            let report = check(&g, &lower_mma(&g, &plan).unwrap());
            assert_no_conflicts(&report, &format!("{stmatrix} {tile:?}"));
            relu_and_residual(&mut g, 2.0, 0.5);
            check(&g, &lower_mma(&g, &plan).unwrap());
            // The product with rows, whose transposed form it is.
            let g = gemm(2, [shape[1], shape[0], shape[2]], [DType::F16; 2], "NT", false);
            check(&g, &lower_mma(&g, &TensorPlan { swapped: true, ..plan }).unwrap());
        }
    }
}

#[test]
fn transposed_products_on_wgmma_are_exact() {
    let base = hopper::small(1, 16);
    let half = [DType::F16; 2];
    let wide = [DType::BF16, DType::F32];
    let cases = [
        // Few rows of C are columns of an instruction.
        (WgmmaPlan { tile: [64, 8, 64], ..base.clone() }, half, ["NT", "NN"], false, [1, 200, 256]),
        (WgmmaPlan { tile: [64, 24, 64], ..base.clone() }, wide, ["NT", "NN"], false, [20, 136, 200]),
        (WgmmaPlan { tile: [128, 64, 64], consumers: 2, ..base.clone() }, half, ["NN", "TN"], false, [64, 256, 192]),
        (WgmmaPlan { split_k: 2, blocks: None, ..base.clone() }, wide, ["NT", "NN"], false, [16, 128, 512]),
        (WgmmaPlan { stream_k: true, blocks: Some(3), ..base.clone() }, wide, ["NT", "NN"], false, [16, 136, 448]),
        (WgmmaPlan { cluster: [2, 1], ..base.clone() }, half, ["NT", "NN"], false, [16, 256, 256]),
        // Results by columns are rows of the transposed product.
        (
            WgmmaPlan { tile: [64, 64, 64], store: TileStore::Tma, ..base.clone() },
            half,
            ["NT", "TN"],
            true,
            [128, 72, 128],
        ),
        (WgmmaPlan { tile: [64, 64, 64], ..base.clone() }, wide, ["NN", "TT"], true, [72, 136, 128]),
    ];
    for (plan, [operand, output], layouts, c_transposed, shape) in cases {
        for layout in layouts {
            let plan = WgmmaPlan { swapped: true, ..plan.clone() };
            let mut g = gemm(1, shape, [operand, output], layout, c_transposed);
            check(&g, &lower_wgmma(&g, &plan).unwrap());
            relu_and_residual(&mut g, 2.0, 0.5);
            check(&g, &lower_wgmma(&g, &plan).unwrap());
        }
    }
}

#[test]
fn the_tma_stores_columns_without_conflicts() {
    for (n, consumers, shape, ping_pong) in [
        (8, 1, [8, 128, 256], false),
        (16, 2, [16, 256, 256], false),
        (24, 1, [40, 136, 128], false),
        (64, 2, [64, 256, 128], true),
        (72, 1, [100, 72, 128], false),
    ] {
        let tile = [64 * if ping_pong { 1 } else { i64::from(consumers) }, n, 64];
        let store = TileStore::Tma;
        let plan = WgmmaPlan { swapped: true, tile, store, ping_pong, ..hopper::small(consumers, n) };
        let mut g = gemm(1, shape, [DType::BF16; 2], "NT", false);
        let report = check(&g, &lower_wgmma(&g, &plan).unwrap());
        assert_no_conflicts(&report, &format!("{n}"));
        assert!(report.total.matrix_moves > 0);
        relu_and_residual(&mut g, 2.0, 0.5);
        check(&g, &lower_wgmma(&g, &plan).unwrap());
    }
}

#[test(slow)]
fn batches_are_exact() {
    let half = [DType::F16; 2];
    for layout in ["NN", "NT", "TN", "TT"] {
        for shape in [[64, 128, 128], [40, 100, 100]] {
            let g = gemm(3, shape, half, layout, false);
            for plan in [
                tensor::small(Mma::F16),
                TensorPlan { split_k: 2, raster: Raster { columns: true, group: 2 }, ..tensor::small(Mma::F16) },
                TensorPlan { swapped: true, ..tensor::small(Mma::F16) },
            ] {
                check(&g, &lower_mma(&g, &plan).unwrap());
            }
        }
        let base = hopper::small(1, 64);
        for plan in [
            base.clone(),
            WgmmaPlan { blocks: None, split_k: 2, ..base.clone() },
            WgmmaPlan { blocks: Some(5), stream_k: true, ..base.clone() },
            WgmmaPlan { store: TileStore::Tma, ..base.clone() },
            WgmmaPlan { cluster: [1, 2], ..base.clone() },
            WgmmaPlan { consumers: 2, ping_pong: true, blocks: Some(3), ..base.clone() },
            WgmmaPlan { swapped: true, store: TileStore::Tma, ..base.clone() },
        ] {
            let mut g = gemm(3, [128, 128, 128], half, layout, false);
            check(&g, &lower_wgmma(&g, &plan).unwrap());
            relu_and_residual(&mut g, 2.0, 0.5);
            check(&g, &lower_wgmma(&g, &plan).unwrap());
        }
    }
    // Rows that end within a tile: the rows after them are another product's, and what comes of them is not stored.
    let ragged = gemm(3, [72, 40, 136], [DType::F16, DType::F32], "NT", false);
    check(&ragged, &lower_wgmma(&ragged, &hopper::small(1, 64)).unwrap());
}

#[test]
fn batches_whose_tiles_would_meet_are_refused() {
    let half = [DType::F16; 2];
    let base = hopper::small(1, 64);
    let refused = |g: &Gemm, plan: &WgmmaPlan| lower_wgmma(g, plan).map(|_| ()).unwrap_err().to_string();
    let rows = gemm(2, [72, 128, 128], half, "NT", false);
    let store = WgmmaPlan { store: TileStore::Tma, ..base.clone() };
    assert!(refused(&rows, &store).contains("would reach into the next product's"));
    let across = gemm(2, [128, 128, 136], half, "TT", false);
    assert!(refused(&across, &base).contains("A: its last tile along k would reach into the next product's"));
    let many = gemm(1 << 20, [2048, 64, 64], half, "NT", false);
    assert!(refused(&many, &base).contains("the TMA cannot move A: the products together have 2^31 rows or more"));
    let parts = gemm(2, [128, 128, 192], half, "NN", false);
    assert!(refused(&parts, &WgmmaPlan { split_k: 2, ..base.clone() }).contains("B: its last tile along k"));
    assert!(lower_wgmma(&parts, &base).is_ok());
    let many = Gemm { batch: 1 << 30, m: 1 << 30, n: 1 << 30, ..rows };
    assert!(refused(&many, &base).contains("more than 2^48 elements"));
}

#[test]
fn transposed_and_batched_kernels_compile_without_spills() {
    let bf16 = [DType::BF16; 2];
    let decode = WgmmaPlan { swapped: true, ..WgmmaPlan::plain([128, 16, 64], 2, 8) };
    let tall = WgmmaPlan { swapped: true, ..WgmmaPlan::plain([64, 8, 64], 1, 8) };
    let large =
        WgmmaPlan { stages: 3, blocks: Some(132), store: TileStore::Tma, ..WgmmaPlan::plain([128, 256, 64], 2, 3) };
    let wgmma = [
        ("swapped_16", gemm(1, [16, 8192, 8192], bf16, "NT", false), decode.clone()),
        ("swapped_16_tma", gemm(1, [16, 8192, 8192], bf16, "NT", false), WgmmaPlan { store: TileStore::Tma, ..decode }),
        ("swapped_1", gemm(1, [1, 8192, 8192], [DType::BF16, DType::F32], "NT", false), tall),
        ("by_columns", gemm(1, [4096, 4096, 4096], bf16, "NT", true), WgmmaPlan { swapped: true, ..large.clone() }),
        ("columns_of_rows", gemm(1, [4096, 4096, 4096], bf16, "NT", true), large.clone()),
        ("batched", gemm(96, [2048, 2048, 128], bf16, "NT", false), large),
    ];
    let mut jobs = Vec::new();
    for (name, g, plan) in wgmma {
        let module = lower_wgmma(&Gemm { name: name.into(), ..g }, &plan).unwrap();
        jobs.push(Job { name: name.into(), source: satune::cuda::print(&module.kernels[0]), arch: "sm_90a".into() });
    }
    let mma = TensorPlan { stages: 4, ..TensorPlan::plain([128, 128, 32], [64, 32], Mma::Bf16, 4) };
    let mma = [
        (
            "mma_by_columns",
            gemm(1, [4096; 3], bf16, "NT", true),
            TensorPlan { store: Store::Shared { stmatrix: true }, ..mma.clone() },
        ),
        ("mma_columns_direct", gemm(1, [4096; 3], [DType::BF16, DType::F32], "NT", true), mma.clone()),
        ("mma_batched", gemm(12, [512, 512, 64], bf16, "NN", false), mma),
    ];
    for (name, g, plan) in mma {
        let module = lower_mma(&Gemm { name: name.into(), ..g }, &plan).unwrap();
        jobs.push(Job { name: name.into(), source: satune::cuda::print(&module.kernels[0]), arch: "sm_90".into() });
    }
    let list = compile(&jobs);
    for (job, kernel) in jobs.iter().zip(list) {
        println!("{}: {} registers, {} bytes spilled", job.name, kernel.registers, kernel.spill_bytes);
        assert_eq!(kernel.spill_bytes, 0, "{}", kernel.log);
        assert!(!kernel.log.contains("setmaxnreg") && !kernel.log.contains("serializ"), "{}", kernel.log);
    }
}
