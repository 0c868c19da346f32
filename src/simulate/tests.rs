use super::*;
mod warp;

use crate::kernel::{Array, ArrayId, Cond, Dim, Index, LocalVar, Stmt, Unroll};
use satune_ir::DType;

fn array(name: &str, len: u64, space: Space, written: bool) -> Array {
    Array { name: name.into(), dtype: DType::F32, len, space, align: 16, shared_offset: 0, written }
}

fn kernel(threads: u32, arrays: Vec<Array>, body: Vec<Stmt>) -> Kernel {
    Kernel {
        name: "test".into(),
        notes: vec![],
        arrays,
        grid: [1, 1, 1],
        block: [threads, 1, 1],
        shared_bytes: 8192,
        min_blocks_per_sm: None,
        cluster: 1,
        tensor_maps: vec![],
        body,
    }
}

fn t() -> Index {
    Index::ThreadIdx(Dim::X)
}
fn c(v: i64) -> Index {
    Index::Const(v)
}
fn add(a: Index, b: Index) -> Index {
    Index::Add(Box::new(a), Box::new(b))
}
fn mul(a: Index, b: i64) -> Index {
    Index::Mul(Box::new(a), Box::new(c(b)))
}
fn copy(dst: u32, dst_index: Index, src: u32, src_index: Index) -> Stmt {
    Stmt::Copy { dst: ArrayId(dst), dst_index, src: ArrayId(src), src_index, width: 1, zero_unless: Cond::True }
}

/// in[64] -> shared -> out[64], each thread reading what its neighbour wrote.
fn exchange(barrier: bool) -> Kernel {
    let neighbour = Index::Mod(Box::new(add(t(), c(1))), Box::new(c(64)));
    let mut body = vec![copy(2, t(), 0, t()), Stmt::Barrier, copy(3, c(0), 2, neighbour), copy(1, t(), 3, c(0))];
    if !barrier {
        body.remove(1);
    }
    let arrays = vec![
        array("a", 64, Space::Global, false),
        array("b", 64, Space::Global, true),
        array("s", 64, Space::Shared, false),
        array("r", 1, Space::Register, false),
    ];
    kernel(64, arrays, body)
}

#[test]
fn values_pass_through_shared_memory_and_are_counted() {
    let mut args = vec![(0..64).map(f64::from).collect(), vec![0.0; 64]];
    let report = run(&exchange(true), &mut args, &Options::default()).unwrap();
    assert_eq!(args[1][..3], [1.0, 2.0, 3.0]);
    let total = report.total;
    assert_eq!((total.global_loads, total.global_load_sectors, total.global_stores), (2, 8, 2));
    assert_eq!((total.shared_stores, total.shared_store_wavefronts, total.shared_loads), (2, 2, 2));
    assert_eq!((total.barriers, report.unwritten), (2, 0));
}

#[test]
fn a_missing_barrier_is_a_race() {
    let mut args = vec![vec![1.0; 64], vec![0.0; 64]];
    let fault = run(&exchange(false), &mut args, &Options::default()).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
}

#[test]
fn a_barrier_in_a_branch_is_divergent() {
    let half = Cond::Lt(t(), c(32));
    let body = vec![Stmt::If { cond: half, then: vec![Stmt::Barrier], otherwise: vec![] }];
    let fault = run(&kernel(64, vec![], body), &mut [], &Options::default()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::DivergentBarrier);
}

#[test]
fn bounds_alignment_and_unwritten_reads_are_checked() {
    let arrays = || {
        vec![
            array("a", 64, Space::Global, false),
            array("b", 64, Space::Global, true),
            array("s", 64, Space::Shared, false),
            array("r", 4, Space::Register, false),
        ]
    };
    let faults = [
        (copy(3, c(0), 0, add(t(), c(1))), FaultKind::OutOfBounds { len: 64 }),
        (copy(3, c(0), 2, t()), FaultKind::Unwritten),
        (copy(1, t(), 3, c(0)), FaultKind::Unwritten),
        (
            Stmt::Copy {
                dst: ArrayId(3),
                dst_index: c(0),
                src: ArrayId(0),
                src_index: c(2),
                width: 4,
                zero_unless: Cond::True,
            },
            FaultKind::Misaligned { width: 4 },
        ),
    ];
    for (stmt, kind) in faults {
        let mut args = vec![vec![1.0; 64], vec![0.0; 64]];
        let fault = run(&kernel(64, arrays(), vec![stmt]), &mut args, &Options::default()).unwrap_err();
        assert_eq!(fault.kind, kind);
    }
}

#[test]
fn asynchronous_data_needs_a_wait_and_others_a_barrier() {
    let arrays = || {
        vec![
            array("a", 32, Space::Global, false),
            array("b", 32, Space::Global, true),
            array("s", 32, Space::Shared, false),
            array("r", 1, Space::Register, false),
        ]
    };
    let body = |wait: bool, barrier: bool| {
        let neighbour = Index::Xor(Box::new(t()), Box::new(c(1)));
        let mut body = vec![
            Stmt::AsyncCopy {
                dst: ArrayId(2),
                dst_index: t(),
                src: ArrayId(0),
                src_index: t(),
                width: 1,
                prefetch: 0,
                zero_unless: Cond::True,
            },
            Stmt::AsyncCommit,
        ];
        body.extend(wait.then_some(Stmt::AsyncWait(0)));
        body.extend(barrier.then_some(Stmt::Barrier));
        body.extend([copy(3, c(0), 2, neighbour), copy(1, t(), 3, c(0))]);
        body
    };
    let go = |wait, barrier| {
        let mut args = vec![(0..32).map(f64::from).collect(), vec![0.0; 32]];
        run(&kernel(32, arrays(), body(wait, barrier)), &mut args, &Options::default()).map(|_| args[1][0])
    };
    assert_eq!(go(true, true).unwrap(), 1.0);
    assert_eq!(go(false, true).unwrap_err().kind, FaultKind::InFlight);
    assert!(matches!(go(true, false).unwrap_err().kind, FaultKind::Race { .. }));
}

#[test]
fn two_blocks_that_write_one_element_race() {
    let mut k = kernel(
        1,
        vec![array("b", 4, Space::Global, true), array("r", 1, Space::Register, false)],
        vec![
            Stmt::Store { array: ArrayId(1), index: c(0), value: crate::kernel::Value::Float(1.0, DType::F32) },
            copy(0, c(0), 1, c(0)),
        ],
    );
    k.grid = [2, 1, 1];
    let fault = run(&k, &mut [vec![0.0; 4]], &Options::default()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::BlockRace { other: 0 });
}

#[test]
fn the_hot_loop_is_the_one_with_the_most_multiply_adds() {
    use crate::kernel::Value;
    let load = |i: u32| Box::new(Value::Load(ArrayId(i), c(0)));
    let fma = Stmt::Store { array: ArrayId(0), index: c(0), value: Value::Fma(DType::F32, load(0), load(0), load(0)) };
    let body = vec![
        Stmt::Store { array: ArrayId(0), index: c(0), value: Value::Float(0.0, DType::F32) },
        Stmt::For {
            var: LocalVar(0),
            name: "k".into(),
            start: c(0),
            extent: c(5),
            unroll: Unroll::No,
            body: vec![Stmt::For {
                var: LocalVar(1),
                name: "i".into(),
                start: c(0),
                extent: c(3),
                unroll: Unroll::Full,
                body: vec![fma],
            }],
        },
    ];
    let report =
        run(&kernel(32, vec![array("r", 1, Space::Register, false)], body), &mut [], &Options::default()).unwrap();
    assert_eq!((report.hot_loop.fma, report.hot_iterations, report.total.fma), (15, 5, 15));
}

#[test]
fn strided_columns_conflict() {
    let arrays = vec![array("s", 1024, Space::Shared, false), array("r", 1, Space::Register, false)];
    let zero = Stmt::Store { array: ArrayId(1), index: c(0), value: crate::kernel::Value::Float(0.0, DType::F32) };
    let body = vec![zero, copy(0, mul(t(), 32), 1, c(0))];
    let report = run(&kernel(32, arrays, body), &mut [], &Options::default()).unwrap();
    assert_eq!((report.total.shared_store_wavefronts, report.total.shared_store_wavefronts_ideal), (32, 1));
}

/// A block reads 32 lines of its own twice, and one sector that all read, in an array that no memory would hold.
#[test]
fn blocks_of_any_kernel_are_sampled_at_its_size() {
    let i = Index::Var(LocalVar(0));
    let block = Index::BlockIdx(Dim::X);
    let own = add(mul(block.clone(), 1 << 20), add(mul(i, 32), t()));
    let repeated = |var: u32, extent: i64, body: Vec<Stmt>| Stmt::For {
        var: LocalVar(var),
        name: "i".into(),
        start: c(0),
        extent: c(extent),
        unroll: Unroll::No,
        body,
    };
    let reads = vec![copy(2, c(0), 0, own), copy(2, c(0), 0, c(0))];
    let body = vec![repeated(1, 2, vec![repeated(0, 32, reads)]), copy(1, add(mul(block, 32), t()), 2, c(0))];
    let arrays = vec![
        array("a", 1 << 40, Space::Global, false),
        array("b", 32 << 20, Space::Global, true),
        array("r", 1, Space::Register, false),
    ];
    let kernel = Kernel { grid: [1 << 20, 1, 1], ..kernel(32, arrays, body) };
    let all = |cache| sampled(&kernel, &[0, 1000, (1 << 20) - 1], cache, &|| true).unwrap();
    let roomy = all(128 << 10);
    assert_eq!((roomy.blocks, roomy.laps), (3, 3 * (2 + 64)));
    assert_eq!((roomy.total.global_loads, roomy.total.global_load_sectors), (3 * 128, 3 * (64 * 4 + 64)));
    // The first block's own lines begin with the sector that all read.
    let lines = 32 * 4;
    assert_eq!(roomy.fetched, 3 * lines + 2);
    assert_eq!(roomy.touched[&ArrayId(0)], Touched { read: 3 * lines + 2, written: 0 });
    assert_eq!(roomy.touched[&ArrayId(1)], Touched { read: 0, written: 3 * 4 });
    // What does not stay is read again; the sector that all read now and then.
    let tight = all(1 << 10);
    assert!(tight.fetched >= 2 * 3 * lines && tight.fetched < tight.total.global_load_sectors);
    assert_eq!(tight.touched, roomy.touched);
    let beyond = Kernel { grid: [(1 << 20) + 1, 1, 1], ..kernel };
    let fault = sampled(&beyond, &[1 << 20], 0, &|| true).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::OutOfBounds { .. }), "{fault}");
}
