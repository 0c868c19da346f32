//! Kernels on `wgmma` with a barrier, fence, wait or arrival taken out or changed: the simulator finds each.
use crate::hopper::{clustered, small, stream};
use crate::tensor::plans::*;
use crate::tensor::run;
use satune::kernel::{Dim, GroupOp, Index, Stmt};
use satune_ir::DType;

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

/// A barrier counts who arrives: the roles of one way to arrive, at the barriers of the other.
#[test]
fn barriers_count_the_arrivals_that_there_are() {
    let g = Gemm::plain("gemm", [256, 128, 320], DType::F16, DType::F16, "NT");
    for cluster in [[1, 1], [2, 1]] {
        let plan = WgmmaPlan { stages: 2, ..clustered(cluster) };
        let modules = [false, true]
            .map(|arrive_per_warp| lower_wgmma(&g, &WgmmaPlan { arrive_per_warp, ..plan.clone() }).unwrap());
        for (one, other) in [(0, 1), (1, 0)] {
            run(&g, &modules[one]).unwrap();
            let mut broken = modules[one].clone();
            let roles = modules[other].kernels[0].body.last().unwrap();
            assert!(matches!(roles, Stmt::Roles(_)));
            *broken.kernels[0].body.last_mut().unwrap() = roles.clone();
            let fault = run(&g, &broken).unwrap_err();
            println!("{cluster:?}: {fault}");
        }
    }
}

#[test]
fn every_missing_synchronisation_is_found() {
    let g = Gemm::plain("gemm", [256, 192, 320], DType::F16, DType::F16, "NT");
    missed(&g, &WgmmaPlan { store: TileStore::Tma, stages: 2, ..small(2, 64) });
    let boxes = WgmmaPlan { tile: [64, 192, 64], stages: 2, ..small(1, 64) };
    missed(&g, &WgmmaPlan { store: TileStore::Boxes, ..boxes.clone() });
    // A box that is written while the one before last of its place is still read.
    let mut module = lower_wgmma(&g, &WgmmaPlan { store: TileStore::Boxes, blocks: None, ..boxes }).unwrap();
    run(&g, &module).unwrap();
    let drop = |s: &Stmt| matches!(s, Stmt::Group(GroupOp::StoreWait { latest: 1, .. }));
    assert_eq!(without(&mut module.kernels[0].body, &drop), 1);
    assert!(run(&g, &module).is_err());
}

/// Every kind of synchronisation of a kernel, one after the other.
fn missed(g: &Gemm, plan: &WgmmaPlan) {
    type Drop = (&'static str, Box<dyn Fn(&Stmt) -> bool>);
    let group = |name: &'static str, f: fn(&GroupOp) -> bool| -> Drop {
        (name, Box::new(move |s| matches!(s, Stmt::Group(op) if f(op))))
    };
    let module = lower_wgmma(g, plan).unwrap();
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
    run(g, &module).unwrap();
    for (name, drop) in drops {
        let mut broken = module.clone();
        assert!(without(&mut broken.kernels[0].body, &*drop) > 0, "{name}");
        match run(g, &broken) {
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

/// Leaves out the statements that `drop` names, wherever they stand; how many there were.
pub fn without(body: &mut Vec<Stmt>, drop: &dyn Fn(&Stmt) -> bool) -> usize {
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
