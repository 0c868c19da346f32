//! Kernels on `wgmma`: simulated bit for bit, every synchronisation removed in turn, and really compiled.
use crate::compiles::compile;
use crate::tensor::{check, run};
use satune::compile::{hot_loop_mix, Job, Mix};
use satune::kernel::{Dim, GroupOp, Index, Stmt};
use satune::lower::tensor::*;
use satune_ir::DType;

pub fn small(consumers: u32, n: i64) -> WgmmaPlan {
    let tile = [64 * i64::from(consumers), n, 64];
    WgmmaPlan { raster: Raster::rows(2), blocks: Some(2), ..WgmmaPlan::plain(tile, consumers, 3) }
}

#[test]
fn layouts_types_and_schedules_are_exact() {
    let base = small(1, 64);
    let cases = [
        (base.clone(), DType::F16, DType::F16, ["NT", "NN", "TN", "TT"].as_slice(), [192, 128, 256]),
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
    ];
    for (plan, operand, output, layouts, shape) in cases {
        for layout in layouts {
            let g = Gemm::plain("gemm", shape, operand, output, layout);
            check(&g, &lower_wgmma(&g, &plan).unwrap());
        }
    }
}

#[test]
fn the_tma_stores_without_conflicts() {
    for (plan, shape) in [(small(2, 64), [256, 192, 128]), (small(1, 128), [150, 136, 72])] {
        let plan = WgmmaPlan { store: TileStore::Tma, ..plan };
        let mut g = Gemm::plain("gemm", shape, DType::F16, DType::F16, "NT");
        g.epilogue = Epilogue { alpha: 2.0, bias: true, activation: Activation::Relu, residual: Some(1.0) };
        let report = check(&g, &lower_wgmma(&g, &plan).unwrap());
        assert_eq!(report.total.shared_store_wavefronts, report.total.shared_store_wavefronts_ideal);
        assert!(report.total.matrix_moves > 0);
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
        WgmmaPlan { split_k: 2, blocks: Some(3), ..base.clone() },
    ] {
        check(&g, &lower_wgmma(&g, &plan).unwrap());
    }
    let module = lower_wgmma(&g, &base).unwrap();
    let order = module.kernels[0].arrays.iter().position(|a| a.name == "order").unwrap() as u32;
    let mut broken = module.clone();
    let drop = |s: &Stmt| matches!(s, Stmt::Group(GroupOp::WaitPhase { barrier, .. }) if barrier.0 .0 == order);
    assert_eq!(without(&mut broken.kernels[0].body, &drop), 1);
    assert!(run(&g, &broken).map_or(true, |r| r.0 != run(&g, &module).unwrap().0));
}

/// Clusters along m, along n, and along both.
fn clustered(cluster: [u32; 2]) -> WgmmaPlan {
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
            let module = lower_wgmma(&g, &plan).unwrap();
            let shared = check(&g, &module);
            // Alone, each block reads all of its tiles.
            let alone = WgmmaPlan { cluster: [1, 1], ..plan.clone() };
            let alone = check(&g, &lower_wgmma(&g, &alone).unwrap());
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

fn stream(consumers: u32, blocks: u32) -> WgmmaPlan {
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
        (WgmmaPlan { raster: Raster { columns: true, group: 2 }, ..stream(1, 3) }, "NT", [192, 136, 192], DType::F16),
        (stream(1, 1), "NT", [64, 64, 128], DType::F32),
    ];
    for (plan, layout, shape, output) in cases {
        let mut g = Gemm::plain("gemm", shape, DType::F16, output, layout);
        check(&g, &lower_wgmma(&g, &plan).unwrap());
        g.epilogue = Epilogue { alpha: 2.0, bias: true, activation: Activation::Relu, residual: Some(1.0) };
        check(&g, &lower_wgmma(&g, &plan).unwrap());
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
fn every_missing_synchronisation_of_shared_steps_is_found() {
    let g = Gemm::plain("gemm", [128, 128, 320], DType::F16, DType::F16, "NT");
    let module = lower_wgmma(&g, &WgmmaPlan { stages: 2, ..stream(1, 3) }).unwrap();
    run(&g, &module).unwrap();
    type Drop = fn(&GroupOp) -> bool;
    let drops: [(&str, Drop); 4] = [
        ("waits for phases", |op| matches!(op, GroupOp::WaitPhase { .. })),
        ("arrivals", |op| matches!(op, GroupOp::Arrive { .. })),
        ("matrix wait 1", |op| matches!(op, GroupOp::MatrixWait(1))),
        ("matrix wait 0", |op| matches!(op, GroupOp::MatrixWait(0))),
    ];
    for (name, drop) in drops {
        let mut broken = module.clone();
        assert!(without(&mut broken.kernels[0].body, &|s| matches!(s, Stmt::Group(op) if drop(op))) > 0, "{name}");
        assert!(run(&g, &broken).is_err(), "{name}");
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

#[test]
fn every_missing_synchronisation_of_a_cluster_is_found() {
    let g = Gemm::plain("gemm", [256, 128, 320], DType::F16, DType::F16, "NT");
    let plan = WgmmaPlan { stages: 2, ..clustered([2, 1]) };
    let module = lower_wgmma(&g, &plan).unwrap();
    run(&g, &module).unwrap();
    let meets = |s: &Stmt| matches!(s, Stmt::Group(GroupOp::ClusterBarrier));
    let fails = |name: &str, change: &dyn Fn(&mut Vec<Stmt>)| {
        let mut broken = module.clone();
        change(&mut broken.kernels[0].body);
        assert_ne!(broken, module, "{name}");
        match run(&g, &broken) {
            Err(fault) => println!("{name}: {fault}"),
            Ok(_) => panic!("nothing is missed: {name}"),
        }
    };
    fails("no cluster barrier at the start", &|body| {
        // The block's own barrier is not enough.
        let at = body.iter().position(meets).unwrap();
        body[at] = Stmt::Barrier;
    });
    fails("no cluster barrier at the end", &|body| {
        let Some(Stmt::Roles(roles)) = body.last_mut() else { panic!("no roles") };
        roles.iter_mut().for_each(|r| r.body.retain(|s| !meets(s)));
    });
    fails("no init fence", &|body| {
        without(body, &|s| matches!(s, Stmt::Group(GroupOp::FenceBarrierInit)));
    });
    fails("no remote arrivals", &|body| {
        without(body, &|s| matches!(s, Stmt::Group(GroupOp::ArriveRemote { .. })));
    });
    let each = |body: &mut Vec<Stmt>, change: &dyn Fn(&mut GroupOp)| every(body, change);
    fails("arrivals at the own block only", &|body| {
        each(body, &|op| {
            if let GroupOp::ArriveRemote { rank, .. } = op {
                *rank = Index::Mod(Box::new(Index::BlockIdx(Dim::X)), Box::new(Index::Const(2)));
            }
        });
    });
    fails("arrivals beyond the cluster", &|body| {
        each(body, &|op| {
            if let GroupOp::ArriveRemote { rank, .. } = op {
                *rank = Index::Const(2);
            }
        });
    });
    fails("empty barriers that count the own consumers only", &|body| {
        each(body, &|op| {
            if let GroupOp::BarrierInit { arrivals, .. } = op {
                *arrivals = 1;
            }
        });
    });
    for (name, mask) in [("of nobody", 0), ("of the first", 1), ("of the second", 2), ("of three", 7)] {
        fails(&format!("a mask {name}"), &|body| {
            each(body, &|op| {
                if let GroupOp::LoadTile { multicast: Some(blocks), .. } = op {
                    *blocks = Index::Const(mask);
                }
            });
        });
    }
    fails("no multicast", &|body| {
        each(body, &|op| {
            if let GroupOp::LoadTile { multicast, .. } = op {
                *multicast = None;
            }
        });
    });
    fails("no wait for the empty stage", &|body| {
        let is_empty = |a: &satune::kernel::ArrayId| module.kernels[0].array(*a).name == "empty";
        without(body, &|s| matches!(s, Stmt::Group(GroupOp::WaitPhase { barrier, .. }) if is_empty(&barrier.0)));
    });
}

/// Changes each operation.
fn every(body: &mut [Stmt], change: &dyn Fn(&mut GroupOp)) {
    for s in body {
        match s {
            Stmt::For { body, .. } => every(body, change),
            Stmt::If { then, .. } => every(then, change),
            Stmt::Roles(roles) => roles.iter_mut().for_each(|r| every(&mut r.body, change)),
            Stmt::Group(op) => change(op),
            _ => {}
        }
    }
}

/// Removes what `drop` says; counts it.
fn without(body: &mut Vec<Stmt>, drop: &dyn Fn(&Stmt) -> bool) -> usize {
    let before = body.len();
    body.retain(|s| !drop(s));
    let mut count = before - body.len();
    for s in body {
        count += match s {
            Stmt::For { body, .. } => without(body, drop),
            Stmt::If { then, .. } => without(then, drop),
            Stmt::Roles(roles) => roles.iter_mut().map(|r| without(&mut r.body, drop)).sum(),
            _ => 0,
        };
    }
    count
}

#[test]
fn every_missing_synchronisation_is_found() {
    type Drop = (&'static str, Box<dyn Fn(&Stmt) -> bool>);
    let group = |name: &'static str, f: fn(&GroupOp) -> bool| -> Drop {
        (name, Box::new(move |s| matches!(s, Stmt::Group(op) if f(op))))
    };
    let g = Gemm::plain("gemm", [256, 192, 320], DType::F16, DType::F16, "NT");
    let plan = WgmmaPlan { store: TileStore::Tma, stages: 2, ..small(2, 64) };
    let module = lower_wgmma(&g, &plan).unwrap();
    let full = module.kernels[0].arrays.iter().position(|a| a.name == "full").unwrap() as u32;
    let on = move |barrier: &satune::kernel::ArrayId, is_full: bool| (barrier.0 == full) == is_full;
    let drops: Vec<Drop> = vec![
        ("block barrier", Box::new(|s| *s == Stmt::Barrier)),
        group("init", |op| matches!(op, GroupOp::BarrierInit { .. })),
        group("init fence", |op| matches!(op, GroupOp::FenceBarrierInit)),
        group("arrive", |op| matches!(op, GroupOp::Arrive { .. })),
        group("announcement", |op| matches!(op, GroupOp::ArriveExpect { .. })),
        (
            "wait for full",
            Box::new(move |s| matches!(s, Stmt::Group(GroupOp::WaitPhase { barrier, .. }) if on(&barrier.0, true))),
        ),
        (
            "wait for empty",
            Box::new(move |s| matches!(s, Stmt::Group(GroupOp::WaitPhase { barrier, .. }) if on(&barrier.0, false))),
        ),
        group("matrix fence", |op| matches!(op, GroupOp::MatrixFence)),
        group("matrix commit", |op| matches!(op, GroupOp::MatrixCommit)),
        group("matrix wait 1", |op| matches!(op, GroupOp::MatrixWait(1))),
        group("matrix wait 0", |op| matches!(op, GroupOp::MatrixWait(0))),
        group("async fence", |op| matches!(op, GroupOp::FenceAsync)),
        group("named barriers", |op| matches!(op, GroupOp::NamedBarrier { .. })),
        group("store commit", |op| matches!(op, GroupOp::StoreCommit)),
        group("store wait for reads", |op| matches!(op, GroupOp::StoreWait { read: true, .. })),
        group("store wait", |op| matches!(op, GroupOp::StoreWait { read: false, .. })),
        group("load", |op| matches!(op, GroupOp::LoadTile { .. })),
    ];
    run(&g, &module).unwrap();
    for (name, drop) in drops {
        let mut broken = module.clone();
        assert!(without(&mut broken.kernels[0].body, &*drop) > 0, "{name}");
        match run(&g, &broken) {
            Err(fault) => println!("without {name}: {fault}"),
            Ok(_) => panic!("nothing is missed without {name}"),
        }
    }
}

#[test]
fn the_named_barriers_are_each_needed() {
    let g = Gemm::plain("gemm", [256, 192, 128], DType::F16, DType::F16, "NT");
    let plan = WgmmaPlan { store: TileStore::Tma, ..small(1, 64) };
    for kept in 0..2 {
        let mut module = lower_wgmma(&g, &plan).unwrap();
        let seen = std::cell::Cell::new(0);
        let drop = |s: &Stmt| {
            let is = matches!(s, Stmt::Group(GroupOp::NamedBarrier { .. }));
            seen.set(seen.get() + usize::from(is));
            is && seen.get() - 1 != kept
        };
        without(&mut module.kernels[0].body, &drop);
        assert!(run(&g, &module).is_err(), "{kept}");
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

#[test]
fn the_large_tile_compiles_without_spills_or_warnings() {
    let mut jobs = Vec::new();
    let base = WgmmaPlan {
        raster: Raster::rows(16),
        blocks: Some(132),
        store: TileStore::Tma,
        ..WgmmaPlan::plain([128, 256, 64], 2, 3)
    };
    for (name, layout, operand, output, plan) in [
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
    ] {
        let g = Gemm::plain(name, [4096, 4096, 4096], operand, output, layout);
        let source = satune::cuda::print(&lower_wgmma(&g, &plan).unwrap().kernels[0]);
        if let Some(folder) = std::env::var_os("SATUNE_TEST_TEXT") {
            std::fs::write(std::path::Path::new(&folder).join(format!("{name}.cu")), &source).unwrap();
        }
        jobs.push(Job { name: name.into(), source, arch: "sm_90a".into() });
    }
    let Some(list) = compile(&jobs, "the_large_tile_compiles_without_spills_or_warnings") else { return };
    for (kernel, job) in list.iter().zip(&jobs) {
        let mix = hot_loop_mix(&kernel.cubin);
        println!("{}: {} registers, {mix:?}", job.name, kernel.registers);
        if let (Some(mix), "wgmma_nt" | "wgmma_pair_m" | "wgmma_s8") = (mix, job.name.as_str()) {
            assert_only_multiplies(&mix);
        }
        assert_eq!(kernel.spill_bytes, 0, "{}", kernel.log);
        for word in ["warning", "serializ", "setmaxnreg"] {
            assert!(!kernel.log.to_lowercase().contains(word), "{}: {}", job.name, kernel.log);
        }
    }
}
