//! What is shown is what survived: the next best take the places of those that a check refuses.
use crate::support::NO_LIMIT;
use satune::compile::{CompileError, Compiler, Job};
use satune::explore::{ExploreError, Report, Request};
use satune::progress::{Progress, Quiet};
use satune::source;
use satune_extract::Descriptor;
use satune_rewrites::space::Fuel;
use std::sync::atomic::{AtomicUsize, Ordering};

fn explore(operator: &str, top: usize, fuel: Fuel, progress: &dyn Progress) -> Result<Report, ExploreError> {
    let gpu = Descriptor::load("h200").unwrap();
    let request = Request { gpu, top, twins: true, limit: NO_LIMIT, compile: false, fuel };
    source::load_work(operator).unwrap().explore_on(&request, None, progress)
}

#[test]
fn a_space_that_outgrows_its_fuel_says_so() {
    let whole = explore("gemm:64,64,64,f32", 2, Fuel::default(), &Quiet).unwrap();
    assert!(whole.proved_optimal && whole.space.stopped_by == "saturated");
    let fuel = Fuel { nodes: whole.space.enodes / 2 };
    match explore("gemm:64,64,64,f32", 2, fuel, &Quiet) {
        Ok(part) => {
            assert!(!part.proved_optimal);
            assert_eq!(part.space.stopped_by, format!("nodes {}", fuel.nodes));
            assert_ne!(part.space.schedules, whole.space.schedules);
            // The same again: a limit in nodes does not depend on the machine.
            let again = explore("gemm:64,64,64,f32", 2, fuel, &Quiet).unwrap();
            let plans = |r: &Report| r.candidates.iter().map(|c| c.plan.clone()).collect::<Vec<_>>();
            assert_eq!((part.space.enodes, plans(&part)), (again.space.enodes, plans(&again)));
        }
        Err(error) => assert!(matches!(error, ExploreError::Limit { .. }), "{error}"),
    }
}

#[test]
fn a_space_that_ends_says_so() {
    let report = explore("transpose:1,1,f32", 1000, Fuel::default(), &Quiet).unwrap();
    assert!(!report.candidates.is_empty() && report.candidates.len() < 1000 && report.bugs.is_empty());
    assert!(report.notes.iter().any(|n| n.contains("no more than these")), "{:?}", report.notes);
}

/// Says stop after it was asked so many times.
struct Stops(AtomicUsize);

impl Progress for Stops {
    fn begin(&self, _step: &str, _pieces: usize) {}

    fn stopped(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }
}

#[test]
fn what_is_interrupted_says_so() {
    for asked in [0, 1, 10, 100, 1_000, 10_000] {
        let stops = Stops(AtomicUsize::new(asked));
        match explore("gemm:128,64,64,f32", 4, Fuel::default(), &stops) {
            // It was faster.
            Ok(_) if stops.0.load(Ordering::Relaxed) > 0 => {}
            Ok(report) => {
                assert!(!report.candidates.is_empty() && !report.proved_optimal);
                assert_eq!(report.space.schedules, "", "what was interrupted is not counted");
            }
            Err(ExploreError::Interrupted(step)) => assert!(!step.is_empty()),
            Err(error) => panic!("stopped after {asked}: {error}"),
        }
    }
}

/// A result that stands where an input stood is copied first, and right; where the order of instances matters, it is kept.
#[test]
fn updates_in_place_have_plain_kernels() {
    let program = |body: &str| {
        format!(
            "from tvm.script import tirx as T\n\n@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((8, 8), \"float32\"), B: T.Buffer((8, 8), \"float32\"), R: T.Buffer((8, 8), \"float32\")):\n{body}"
        )
    };
    let product = "    for i, j, k in T.grid(8, 8, 8):\n        with T.sblock(\"R\"):\n            vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])\n            R[vi, vj] = R[vi, vj] + A[vi, vk] * B[vk, vj]\n";
    let map = "    for i, j in T.grid(8, 8):\n        with T.sblock(\"R\"):\n            vi, vj = T.axis.remap(\"SS\", [i, j])\n            R[vi, vj] = A[vi, vj] + R[vi, vj]\n";
    for body in [product, map] {
        let work = source::work_of_script("test.py", &program(body)).unwrap();
        let gpu = Descriptor::load("h200").unwrap();
        let request = Request { gpu, top: 3, twins: true, limit: NO_LIMIT, compile: false, fuel: Fuel::default() };
        let report = work.explore_on(&request, None, &Quiet).unwrap();
        assert_eq!((report.candidates.len(), &report.bugs), (3, &Vec::new()));
    }
    let shifted = map.replace("+ R[vi, vj]", "+ R[vi, 7 - vj]");
    let work = source::work_of_script("test.py", &program(&shifted)).unwrap();
    let notes = work.workload().notes();
    assert!(notes.iter().any(|n| n.contains("R runs in the order of its statements, 8 steps")), "{notes:?}");
    let init = product.replace(
        "            R[vi, vj] = R",
        "            with T.init():\n                R[vi, vj] = T.float32(0)\n            R[vi, vj] = R",
    );
    source::work_of_script("test.py", &program(&init)).unwrap();
}

/// A kernel is compiled for sm_70 where an NVRTC of 12.x stands beside one of 13.x; where there is only the latter, the message
/// says what would help.
#[test]
fn the_oldest_architecture_has_its_compiler() {
    let compiler = Compiler::of(env!("CARGO_BIN_EXE_satune"));
    let source = "extern \"C\" __global__ void k(int* p) { *p = 1; }".to_string();
    for arch in ["sm_70", "sm_90"] {
        match compiler.compile(&Job { name: "k".into(), source: source.clone(), arch: arch.into() }) {
            Ok(compiled) => assert!(!compiled.cubin.is_empty()),
            Err(CompileError::Missing) => satune_testing::missing("NVRTC", "cuda"),
            Err(CompileError::UnknownArch { .. }) if arch == "sm_70" => {
                satune_testing::missing("an NVRTC for sm_70", "cuda")
            }
            Err(error) => panic!("{arch}: {error}"),
        }
    }
}
