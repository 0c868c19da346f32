//! Kernels on `wgmma`: simulated bit for bit, and really compiled.
use crate::compiles::compile;
use crate::support::some_of;
use crate::synchronisation::without;
use crate::tensor::plans::*;
use crate::tensor::{check, check_plan, run};
use satune::compile::{hot_loop_mix, Job, Mix};
use satune::kernel::{GroupOp, Stmt};
use satune::simulate::Counts;
use satune_ir::DType;

pub fn small(consumers: u32, n: i64) -> WgmmaPlan {
    let tile = [64 * i64::from(consumers), n, 64];
    WgmmaPlan { raster: Raster::rows(2), blocks: Some(2), ..WgmmaPlan::plain(tile, consumers, 3) }
}

/// A plan, types of operands and results, layouts, and the shape of products.
type Case = (WgmmaPlan, DType, DType, &'static [&'static str], [i64; 3]);

fn cases() -> Vec<Case> {
    let base = small(1, 64);
    vec![
        (base.clone(), DType::F16, DType::F16, &["NT", "NN", "TN", "TT"], [192, 128, 256]),
        (small(2, 64), DType::BF16, DType::F32, &["NT", "TN"], [256, 136, 200]),
        (WgmmaPlan { split_k: 3, ..base.clone() }, DType::F16, DType::F16, &["NT", "TN"], [72, 64, 512]),
        (WgmmaPlan { split_k: 2, blocks: None, ..small(2, 64) }, DType::F16, DType::F32, &["NN"], [128, 72, 456]),
        (WgmmaPlan { stages: 2, blocks: None, ..small(2, 128) }, DType::BF16, DType::BF16, &["TN"], [136, 200, 72]),
        (
            WgmmaPlan {
                by_rows: true,
                tile: [128, 64, 64],
                raster: Raster { columns: true, group: 2 },
                ..base.clone()
            },
            DType::F16,
            DType::F32,
            &["NT", "TN"],
            [264, 192, 256],
        ),
        (
            WgmmaPlan { eager_release: true, stages: 2, ..small(2, 64) },
            DType::F16,
            DType::F32,
            &["NT"],
            [256, 192, 320],
        ),
        // Each warp says that a tile has been read.
        (
            WgmmaPlan { arrive_per_warp: true, stages: 2, ..small(2, 64) },
            DType::BF16,
            DType::F32,
            &["NT", "TN"],
            [256, 192, 320],
        ),
        (
            WgmmaPlan { arrive_per_warp: true, eager_release: true, stages: 2, ..small(3, 64) },
            DType::F16,
            DType::F16,
            &["NT"],
            [192, 128, 320],
        ),
        // Two spans of the swizzle along k.
        (
            WgmmaPlan { tile: [128, 64, 128], ..base.clone() },
            DType::F16,
            DType::F32,
            &["NT", "NN", "TN", "TT"],
            [256, 128, 456],
        ),
        (
            WgmmaPlan { tile: [128, 64, 128], by_rows: true, split_k: 2, ..small(2, 64) },
            DType::BF16,
            DType::F32,
            &["NT", "TN"],
            [136, 72, 512],
        ),
        // Boxes of 16 and of 32 columns, whose rows a narrower swizzle permutes.
        (WgmmaPlan { tile: [64, 80, 64], ..base.clone() }, DType::F16, DType::F32, &["NN", "TN"], [128, 168, 200]),
        (WgmmaPlan { tile: [128, 32, 128], ..base.clone() }, DType::BF16, DType::F32, &["NN"], [128, 72, 264]),
        (WgmmaPlan { tile: [64, 40, 256], ..base.clone() }, DType::F8E4M3, DType::F32, &["NT"], [66, 56, 784]),
        (WgmmaPlan { tile: [64, 32, 64], ..base.clone() }, DType::F32, DType::F32, &["NT"], [70, 36, 228]),
        (WgmmaPlan { tile: [64, 32, 32], ..base.clone() }, DType::F32, DType::F32, &["NT"], [70, 36, 100]),
        (WgmmaPlan { tile: [64, 32, 128], ..base.clone() }, DType::I8, DType::I32, &["NT"], [66, 48, 400]),
        (WgmmaPlan { tile: [64, 40, 128], ..base.clone() }, DType::F8E4M3, DType::F32, &["NT"], [66, 56, 400]),
        (
            WgmmaPlan { tile: [128, 32, 128], split_k: 2, ..small(2, 32) },
            DType::F8E5M2,
            DType::F16,
            &["NT"],
            [130, 48, 784],
        ),
        (
            WgmmaPlan { tile: [128, 64, 64], stages: 4, ..base.clone() },
            DType::F16,
            DType::F16,
            &["NT", "TN"],
            [256, 64, 576],
        ),
    ]
}

#[test]
fn layouts_types_and_schedules_are_exact() {
    for (plan, operand, output, layouts, shape) in cases() {
        for layout in layouts {
            let g = Gemm::plain("gemm", shape, operand, output, layout);
            check_plan(&g, &plan);
        }
        if operand == DType::F16 && output == DType::F16 {
            // Sums below 2048 are exact.
            let shape = [shape[0], shape[1], shape[2].min(256)];
            let g = Gemm { f16_sums: true, ..Gemm::plain("gemm", shape, operand, output, layouts[0]) };
            check_plan(&g, &plan);
        }
    }
}

/// Plans whose results go through shared memory, and products for them.
fn staged() -> [(WgmmaPlan, [i64; 3]); 6] {
    let (whole, boxes) = (TileStore::Tma, TileStore::Boxes);
    // Boxes one by one: an odd number of them, tile after tile; of two blocks of rows; of consumers in turn.
    let odd = WgmmaPlan { tile: [64, 192, 64], stages: 2, ..small(1, 64) };
    let turns = WgmmaPlan { ping_pong: true, tile: [64, 192, 64], stages: 2, blocks: Some(2), ..small(2, 64) };
    let cases = [
        (small(2, 64), whole, [256, 192, 128]),
        (small(1, 128), whole, [150, 136, 72]),
        (WgmmaPlan { blocks: Some(2), ..odd.clone() }, boxes, [150, 200, 136]),
        (WgmmaPlan { blocks: None, ..odd }, boxes, [128, 192, 64]),
        (WgmmaPlan { tile: [256, 128, 64], stages: 2, blocks: Some(1), ..small(2, 128) }, boxes, [300, 136, 200]),
        (turns, boxes, [320, 384, 136]),
    ];
    cases.map(|(plan, store, shape)| (WgmmaPlan { store, ..plan }, shape))
}

/// What kernels count whose results of a type leave by the TMA.
fn stored_by_the_tma(output: DType) -> Vec<Counts> {
    let counted = staged().map(|(plan, shape)| {
        // Of some the sums are f16, two to a register.
        let f16_sums = shape[0] % 64 != 0;
        let mut g = Gemm { f16_sums, ..Gemm::plain("gemm", shape, DType::F16, output, "NT") };
        crate::tensor::relu_and_residual(&mut g, 2.0, 1.0);
        check_plan(&g, &plan).total
    });
    counted.into()
}

#[test]
fn the_tma_stores_without_conflicts() {
    for total in stored_by_the_tma(DType::F16) {
        assert_eq!(total.shared_store_wavefronts, total.shared_store_wavefronts_ideal);
        assert!(total.matrix_moves > 0);
    }
}

/// Pairs of 32 bits of two rows meet in the same banks: two wavefronts more of each store.
#[test]
fn pairs_of_32_bits_take_twice_the_wavefronts() {
    for total in stored_by_the_tma(DType::F32) {
        assert!(total.shared_stores > 0);
        let more = 2 * total.shared_stores;
        assert_eq!(total.shared_store_wavefronts, total.shared_store_wavefronts_ideal + more);
    }
    // Sums of bytes' products, too.
    let g = Gemm::plain("gemm", [150, 136, 144], DType::I8, DType::I32, "NT");
    let plan = WgmmaPlan { store: TileStore::Boxes, tile: [64, 128, 128], ..small(1, 64) };
    check_plan(&g, &plan);
}

/// Pairs of bytes, and of whole numbers of 16 bits, meet in no banks.
#[test]
fn narrow_whole_numbers_leave_by_the_tma() {
    let whole = WgmmaPlan { store: TileStore::Tma, tile: [128, 128, 128], ..small(2, 128) };
    let boxes = WgmmaPlan { store: TileStore::Boxes, tile: [192, 128, 128], stages: 2, ..small(1, 64) };
    let cases = [
        (&whole, DType::I8, [150, 144, 272]),
        (&whole, DType::U8, [256, 128, 128]),
        (&whole, DType::I16, [150, 136, 272]),
        (&boxes, DType::I8, [330, 144, 144]),
        // Rows that are no multiples of 16 bytes.
        (&whole, DType::I8, [131, 135, 144]),
        (&whole, DType::I16, [131, 133, 144]),
        (&boxes, DType::I8, [200, 141, 144]),
    ];
    for (plan, output, shape) in cases {
        // Of small sums, which the narrow types hold.
        let g = Gemm::plain("gemm", shape, DType::I8, output, "NT");
        let total = check_plan(&g, plan).total;
        assert!(total.shared_stores > 0 && total.matrix_moves == 0);
        assert_eq!(total.shared_store_wavefronts, total.shared_store_wavefronts_ideal, "{output:?}");
    }
}

/// Operands with rows that are no multiples of 16 bytes, or that are not along k where they must be, are copied first: one or both.
#[test]
fn operands_that_the_tma_does_not_take_are_copied_first() {
    let base = small(1, 64);
    let shares = WgmmaPlan { stream_k: true, blocks: Some(3), ..base.clone() };
    let cases = [
        (base.clone(), DType::F16, ["NT", "NN", "TN", "TT"].as_slice(), [131, 69, 203], [2; 4].as_slice()),
        // A stored by columns of 136, B by rows of 203 and by columns of 70.
        (base.clone(), DType::BF16, &["TT", "TN"], [136, 70, 203], &[1, 1]),
        (WgmmaPlan { split_k: 2, ..base.clone() }, DType::F16, &["NT"], [130, 64, 331], &[2]),
        (shares, DType::F16, &["NN"], [130, 129, 331], &[2]),
        (WgmmaPlan { cluster: [2, 1], tile: [64, 64, 32], ..base.clone() }, DType::F32, &["NT"], [128, 70, 101], &[2]),
        (WgmmaPlan { tile: [64, 64, 128], ..base.clone() }, DType::I8, &["NT"], [70, 65, 150], &[2]),
        // Bytes and words are read along k alone: what lies across k is turned.
        (WgmmaPlan { tile: [64, 64, 128], ..base.clone() }, DType::I8, &["NN", "TN", "TT"], [70, 65, 160], &[1, 2, 1]),
        (WgmmaPlan { tile: [64, 64, 32], ..base.clone() }, DType::F32, &["NN", "TN", "TT"], [68, 72, 101], &[2, 2, 2]),
    ];
    for (plan, operand, layouts, shape, copies) in cases {
        let output = if operand == DType::I8 { DType::I32 } else { DType::F32 };
        for ((layout, copies), swapped) in layouts.iter().zip(copies).flat_map(|l| [(l, false), (l, true)]) {
            let mut g = Gemm::plain("gemm", shape, operand, output, layout);
            let across = operand.bytes() == 2 && (g.a_transposed || !g.b_transposed);
            g.batch = if plan.partial() || across { 1 } else { 2 };
            // Turned around, a cluster along rows of the result is one along its columns.
            let cluster = if swapped { [plan.cluster[1], plan.cluster[0]] } else { plan.cluster };
            let module = lower_wgmma(&g, &WgmmaPlan { swapped, cluster, ..plan.clone() });
            let Ok(module) = module else { panic!("{layout} {shape:?} {swapped}: {:?}", module.err()) };
            assert_eq!(module.main, *copies, "{layout}");
            check(&g, &module);
        }
    }
}

/// Rows of results that are no multiples of 16 bytes are stored by threads, which wait for each other.
#[test]
fn rows_that_the_tma_does_not_store_are_stored_by_threads() {
    for ((plan, [m, n, k]), output) in staged().iter().flat_map(|c| [(c, DType::F16), (c, DType::F32)]) {
        // An odd number of columns.
        let mut g = Gemm::plain("gemm", [*m, n - 1, *k], DType::F16, output, "NT");
        crate::tensor::relu_and_residual(&mut g, 2.0, 1.0);
        let module = lower_wgmma(&g, plan).unwrap();
        let total = check(&g, &module).total;
        assert_eq!(total.shared_load_wavefronts, total.shared_load_wavefronts_ideal);
        let is_meeting = |s: &Stmt| matches!(s, Stmt::Group(GroupOp::NamedBarrier { .. }));
        let mut broken = module.clone();
        assert!(without(&mut broken.kernels[module.main].body, &is_meeting) > 0);
        assert!(run(&g, &broken).is_err(), "{plan:?}: without barriers");
    }
}

#[test]
fn consumers_in_turn_are_exact_and_need_their_order() {
    let base = WgmmaPlan { ping_pong: true, tile: [64, 64, 64], stages: 3, ..small(2, 64) };
    let g = Gemm::plain("gemm", [448, 128, 384], DType::F16, DType::F16, "NT");
    for plan in [
        base.clone(),
        WgmmaPlan { store: TileStore::Tma, stages: 2, ..base.clone() },
        WgmmaPlan { tile: [128, 64, 64], blocks: Some(3), ..base.clone() },
        WgmmaPlan { blocks: None, ..base.clone() },
        WgmmaPlan { eager_release: true, by_rows: true, tile: [128, 64, 64], ..base.clone() },
        WgmmaPlan { arrive_per_warp: true, stages: 2, ..base.clone() },
        WgmmaPlan { split_k: 2, blocks: Some(3), ..base.clone() },
    ] {
        check_plan(&g, &plan);
    }
    let module = lower_wgmma(&g, &base).unwrap();
    let order = module.kernels[0].arrays.iter().position(|a| a.name == "order").unwrap() as u32;
    let mut broken = module.clone();
    let drop = |s: &Stmt| matches!(s, Stmt::Group(GroupOp::WaitPhase { barrier, .. }) if barrier.0 .0 == order);
    assert_eq!(without(&mut broken.kernels[0].body, &drop), 1);
    assert!(run(&g, &broken).map_or(true, |r| r.0 != run(&g, &module).unwrap().0));
}

/// Clusters along m, along n, and along both.
pub fn clustered(cluster: [u32; 2]) -> WgmmaPlan {
    WgmmaPlan { cluster, blocks: Some(cluster[0] * cluster[1]), ..small(1, 64) }
}

#[test]
fn clusters_with_multicast_are_exact() {
    let cases = [
        (clustered([2, 1]), ["NT", "TN"].as_slice(), [256, 128, 320]),
        (clustered([1, 2]), &["NT", "TN"], [128, 256, 320]),
        (WgmmaPlan { blocks: Some(8), raster: Raster::rows(4), ..clustered([2, 2]) }, &["NN", "TT"], [256, 256, 256]),
        (WgmmaPlan { blocks: None, stages: 2, ..clustered([4, 1]) }, &["NT"], [250, 64, 200]),
        (WgmmaPlan { blocks: None, eager_release: true, ..clustered([1, 4]) }, &["NT"], [64, 256, 256]),
        (WgmmaPlan { arrive_per_warp: true, stages: 2, ..clustered([2, 1]) }, &["NT", "TN"], [256, 128, 320]),
        (
            WgmmaPlan { arrive_per_warp: true, blocks: None, eager_release: true, stages: 2, ..clustered([2, 4]) },
            &["NT"],
            [128, 256, 320],
        ),
        (WgmmaPlan { blocks: None, stages: 2, ..clustered([2, 4]) }, &["NT", "NN"], [128, 256, 192]),
        (WgmmaPlan { tile: [64, 16, 128], blocks: None, ..clustered([2, 4]) }, &["NN"], [128, 64, 256]),
        (WgmmaPlan { tile: [64, 64, 128], stages: 2, ..clustered([4, 2]) }, &["NT", "TN"], [256, 128, 384]),
        (WgmmaPlan { split_k: 2, blocks: None, ..clustered([2, 1]) }, &["NT"], [128, 64, 512]),
        (
            WgmmaPlan { store: TileStore::Tma, consumers: 2, tile: [128, 64, 64], ..clustered([1, 2]) },
            &["NT"],
            [256, 256, 256],
        ),
        (
            WgmmaPlan {
                ping_pong: true,
                consumers: 2,
                raster: Raster { columns: true, group: 2 },
                ..clustered([2, 1])
            },
            &["NT"],
            [256, 128, 256],
        ),
    ];
    for (plan, layouts, shape) in cases {
        for layout in layouts {
            let g = Gemm::plain("gemm", shape, DType::F16, DType::F16, layout);
            let shared = check_plan(&g, &plan);
            // Alone, each block reads all of its tiles.
            let alone = WgmmaPlan { cluster: [1, 1], ..plan.clone() };
            let alone = check_plan(&g, &alone);
            let part = 1.0 / f64::from(plan.cluster[0]) + 1.0 / f64::from(plan.cluster[1]);
            let read = |r: &satune::simulate::Report| r.total.global_load_sectors as f64;
            if shape[0] % 64 == 0 && shape[2] % 64 == 0 && plan.tile[0] == plan.tile[1] && plan.split_k == 1 {
                assert_eq!(read(&shared), read(&alone) * part / 2.0, "{layout} {:?}", plan.cluster);
            } else {
                assert!(read(&shared) < read(&alone), "{layout} {:?}", plan.cluster);
            }
            assert_eq!(shared.total.shared_wavefronts().0, shared.total.shared_wavefronts().1);
        }
    }
}

pub fn stream(consumers: u32, blocks: u32) -> WgmmaPlan {
    WgmmaPlan { stream_k: true, blocks: Some(blocks), ..small(consumers, 64) }
}

#[test]
fn shared_steps_are_exact() {
    let cases = [
        // Tiles shared by two blocks, by all of them, and by none; more blocks than tiles; a grid that divides the steps.
        (stream(1, 3), "NT", [128, 128, 320], DType::F32),
        (stream(1, 5), "TN", [64, 64, 64 * 17], DType::F16),
        (stream(2, 4), "NN", [256, 128, 256], DType::F16),
        (WgmmaPlan { eager_release: true, stages: 2, ..stream(1, 7) }, "NT", [72, 136, 200], DType::F32),
        (WgmmaPlan { arrive_per_warp: true, stages: 2, ..stream(1, 5) }, "NT", [128, 128, 320], DType::F16),
        (WgmmaPlan { raster: Raster { columns: true, group: 2 }, ..stream(1, 3) }, "NT", [192, 136, 192], DType::F16),
        (stream(1, 1), "NT", [64, 64, 128], DType::F32),
    ];
    for (plan, layout, shape, output) in cases {
        let mut g = Gemm::plain("gemm", shape, DType::F16, output, layout);
        check_plan(&g, &plan);
        crate::tensor::relu_and_residual(&mut g, 2.0, 1.0);
        check_plan(&g, &plan);
        // The second kernel has a thread for each element of a tile.
        let module = lower_wgmma(&g, &plan).unwrap();
        let [_, sum] = module.kernels.as_slice() else { panic!("{plan:?}: {} kernels", module.kernels.len()) };
        let [m, n, _] = plan.tile;
        let tiles = plan.dealt(&g).unwrap().tiles;
        assert!(!sum.body.iter().any(|s| matches!(s, Stmt::Roles(_))), "{plan:?}");
        let blocks = i64::from(sum.grid.iter().product::<u32>());
        assert_eq!((blocks, sum.block), (tiles * ((m * n + 255) / 256), [256, 1, 1]), "{plan:?}");
    }
    let g = Gemm::plain("gemm", [128, 128, 320], DType::F16, DType::F16, "NT");
    let refused = |plan: WgmmaPlan| lower_wgmma(&g, &plan).map(|_| ()).unwrap_err().to_string();
    for (plan, why) in [
        (WgmmaPlan { blocks: None, ..stream(1, 3) }, "a fixed grid"),
        (WgmmaPlan { split_k: 2, ..stream(1, 3) }, "split already"),
        (WgmmaPlan { cluster: [2, 1], ..stream(1, 4) }, "cluster"),
        (WgmmaPlan { ping_pong: true, tile: [64, 64, 64], ..stream(2, 3) }, "turns"),
        (stream(1, 21), "fewer steps"),
        (WgmmaPlan { store: TileStore::Tma, ..stream(1, 3) }, "split-K stores"),
    ] {
        let text = refused(plan);
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn clusters_that_do_not_fit_are_refused() {
    let g = Gemm::plain("gemm", [384, 192, 256], DType::F16, DType::F16, "NT");
    let refused = |plan: &WgmmaPlan| lower_wgmma(&g, plan).map(|_| ()).unwrap_err().to_string();
    assert!(lower_wgmma(&g, &clustered([2, 1])).is_ok());
    for (plan, why) in [
        (clustered([1, 2]), "do not divide the tiles"),
        (clustered([4, 1]), "do not divide the tiles"),
        (WgmmaPlan { blocks: Some(3), ..clustered([2, 1]) }, "do not divide the grid"),
        (clustered([3, 1]), "1, 2, 4 or 8"),
        (clustered([4, 4]), "1, 2, 4 or 8"),
        (WgmmaPlan { tile: [64, 24, 64], ..clustered([2, 1]) }, "eight rows"),
    ] {
        let text = refused(&plan);
        assert!(text.contains(why), "{text}");
    }
}

/// A consumer's loop holds instructions that multiply, barriers, and for the loop its counter and the parity of its waits:
/// descriptors of twelve instructions, and addresses of barriers, stay where they are.
pub fn assert_only_multiplies(mix: &Mix) {
    const BARRIERS: [&str; 6] = ["HGMMA", "IGMMA", "QGMMA", "SYNCS", "WARPGROUP", "BRA"];
    const COUNTER: [&str; 7] = ["LOP3", "SHF", "VIADD", "IADD3", "IMAD", "ISETP", "MOV"];
    let of = |names: &[&str]| names.iter().filter_map(|op| mix.by_opcode.get(*op)).sum::<u32>();
    assert_eq!(of(&BARRIERS) + of(&COUNTER), mix.instructions, "{mix:?}");
    assert!(of(&COUNTER) <= 12, "{mix:?}");
}

#[test(slow)]
fn the_large_tile_compiles_without_spills_or_warnings() {
    let mut jobs = Vec::new();
    let base = WgmmaPlan {
        raster: Raster::rows(16),
        blocks: Some(132),
        store: TileStore::Tma,
        ..WgmmaPlan::plain([128, 256, 64], 2, 3)
    };
    let plans = [
        ("wgmma_nt", "NT", DType::BF16, DType::BF16, base.clone()),
        ("wgmma_nn", "NN", DType::F16, DType::F16, base.clone()),
        ("wgmma_tn", "TN", DType::BF16, DType::BF16, base.clone()),
        (
            "wgmma_direct",
            "NT",
            DType::BF16,
            DType::F32,
            WgmmaPlan { stages: 4, store: TileStore::Direct, ..base.clone() },
        ),
        // 200 sums: what the producer leaves at 24 registers.
        (
            "wgmma_wide",
            "NT",
            DType::BF16,
            DType::F32,
            WgmmaPlan { tile: [256, 200, 64], store: TileStore::Direct, ..base.clone() },
        ),
        ("wgmma_tall", "NT", DType::BF16, DType::BF16, WgmmaPlan { tile: [256, 128, 64], ..base.clone() }),
        (
            "wgmma_three",
            "NT",
            DType::F16,
            DType::F16,
            WgmmaPlan { tile: [192, 128, 64], consumers: 3, stages: 4, ..base.clone() },
        ),
        (
            "wgmma_one",
            "NN",
            DType::F16,
            DType::F16,
            WgmmaPlan { tile: [64, 256, 64], consumers: 1, stages: 4, blocks: None, ..base.clone() },
        ),
        (
            "wgmma_ping_pong",
            "NT",
            DType::BF16,
            DType::BF16,
            WgmmaPlan { tile: [128, 128, 64], ping_pong: true, stages: 4, ..base.clone() },
        ),
        ("wgmma_pair_m", "NT", DType::BF16, DType::BF16, WgmmaPlan { cluster: [2, 1], ..base.clone() }),
        ("wgmma_pair_n", "TN", DType::BF16, DType::BF16, WgmmaPlan { cluster: [1, 2], ..base.clone() }),
        ("wgmma_per_warp", "NT", DType::BF16, DType::BF16, WgmmaPlan { arrive_per_warp: true, ..base.clone() }),
        (
            "wgmma_pair_per_warp",
            "NT",
            DType::BF16,
            DType::BF16,
            WgmmaPlan { arrive_per_warp: true, cluster: [2, 1], ..base.clone() },
        ),
        (
            "wgmma_four",
            "NN",
            DType::BF16,
            DType::F32,
            WgmmaPlan { cluster: [2, 2], store: TileStore::Direct, stages: 4, ..base.clone() },
        ),
        (
            "wgmma_ping_pong_pair",
            "NT",
            DType::BF16,
            DType::BF16,
            WgmmaPlan { tile: [128, 128, 64], ping_pong: true, stages: 4, cluster: [2, 1], ..base.clone() },
        ),
        (
            "wgmma_stream",
            "NT",
            DType::BF16,
            DType::F32,
            WgmmaPlan { store: TileStore::Direct, stages: 4, stream_k: true, ..base.clone() },
        ),
        (
            "wgmma_tf32",
            "NT",
            DType::F32,
            DType::F32,
            WgmmaPlan { tile: [128, 128, 32], store: TileStore::Direct, ..base.clone() },
        ),
        (
            "wgmma_s8",
            "NT",
            DType::I8,
            DType::I32,
            WgmmaPlan { tile: [128, 128, 128], store: TileStore::Direct, ..base.clone() },
        ),
        ("wgmma_e4m3", "NT", DType::F8E4M3, DType::BF16, WgmmaPlan { tile: [128, 256, 128], ..base.clone() }),
        (
            "wgmma_e5m2",
            "NT",
            DType::F8E5M2,
            DType::F32,
            WgmmaPlan { tile: [128, 128, 128], ping_pong: true, store: TileStore::Direct, ..base.clone() },
        ),
    ];
    for (name, layout, operand, output, plan) in some_of(plans, 8) {
        let g = Gemm::plain(name, [4096, 4096, 4096], operand, output, layout);
        let source = satune::cuda::print(&lower_wgmma(&g, &plan).unwrap().kernels[0]);
        if let Some(folder) = std::env::var_os("SATUNE_TEST_TEXT") {
            std::fs::write(std::path::Path::new(&folder).join(format!("{name}.cu")), &source).unwrap();
        }
        jobs.push(Job { name: name.into(), source, arch: "sm_90a".into() });
    }
    let list = compile(&jobs);
    for (kernel, job) in list.iter().zip(&jobs) {
        let mix = hot_loop_mix(&kernel.cubin);
        println!("{}: {} registers, {mix:?}", job.name, kernel.registers);
        let plain = ["wgmma_nt", "wgmma_pair_m", "wgmma_per_warp", "wgmma_pair_per_warp", "wgmma_s8"];
        if let Some(mix) = mix.filter(|_| plain.contains(&job.name.as_str())) {
            assert_only_multiplies(&mix);
        }
        assert_eq!(kernel.spill_bytes, 0, "{}", kernel.log);
        crate::accumulators::assert_untouched(&job.name, &kernel.ptx);
        for word in ["warning", "serializ", "setmaxnreg"] {
            assert!(!kernel.log.to_lowercase().contains(word), "{}: {}", job.name, kernel.log);
        }
    }
}
