//! Streaming programs, from the operator to simulated kernels.
use crate::support::NO_LIMIT;
use rand::rngs::StdRng;
use rand::SeedableRng;
use satune::streaming::StreamProblem;
use satune::{operators, scheduled, streaming};
use satune_extract::stream::{best_stream, stream_cost, stream_work};
use satune_extract::{Counts, Descriptor, Query};
use satune_ir::term::stream::{KernelPlan, StreamPlan, StreamTerm, Streams};
use satune_ir::term::{CoresPlan, Schedule, Space};
use satune_ir::{tvmscript, Program};
use satune_rewrites::space::stream::{rules, streams, streams_of, StreamMenu};
use satune_rewrites::space::{explored, saturate, Fuel};

fn problem(operator: &str) -> (Program, Streams) {
    let program = tvmscript::parse(&streaming::script(operator).unwrap()).unwrap();
    let problem = streams(&program).unwrap();
    (program, problem)
}

/// Sums over several axes, or all, whose results have fewer axes than others or axes of one element; and maxima in place.
pub const SUMS: [(&str, &str); 11] = [
    (
        "total",
        r#"
@T.prim_func(s_tir=True)
def total(A: T.Buffer((64, 1000), "float32"), B: T.Buffer((), "float32")):
    for i, j in T.grid(64, 1000):
        with T.sblock("B"):
            vi, vj = T.axis.remap("RR", [i, j])
            with T.init():
                B[()] = T.float32(0)
            B[()] = B[()] + A[vi, vj]
"#,
    ),
    (
        "statistics of channels",
        r#"
@T.prim_func(s_tir=True)
def channels(A: T.Buffer((6, 8, 20, 20), "float32"), B: T.Buffer((1, 8, 1, 1), "float32")):
    for c, n, h, w in T.grid(8, 6, 20, 20):
        with T.sblock("B"):
            vc, vn, vh, vw = T.axis.remap("SRRR", [c, n, h, w])
            with T.init():
                B[0, vc, 0, 0] = T.float32(0)
            B[0, vc, 0, 0] = B[0, vc, 0, 0] + A[vn, vc, vh, vw]
"#,
    ),
    (
        "pooling of whole images",
        r#"
@T.prim_func(s_tir=True)
def pooling(A: T.Buffer((2, 8, 32, 32), "float16"), B: T.Buffer((2, 8, 1, 1), "float16")):
    for n, c, h, w in T.grid(2, 8, 32, 32):
        with T.sblock("B"):
            vn, vc, vh, vw = T.axis.remap("SSRR", [n, c, h, w])
            with T.init():
                B[vn, vc, 0, 0] = T.float16(-65504)
            B[vn, vc, 0, 0] = T.max(B[vn, vc, 0, 0], A[vn, vc, vh, vw])
"#,
    ),
    (
        "division by the sum of all",
        r#"
@T.prim_func(s_tir=True)
def divided(A: T.Buffer((32, 1000), "float32"), C: T.Buffer((32, 1000), "float32")):
    B = T.sblock_alloc_buffer((1,), "float32")
    for i, j in T.grid(32, 1000):
        with T.sblock("B"):
            vi, vj = T.axis.remap("RR", [i, j])
            with T.init():
                B[0] = T.float32(1)
            B[0] = T.max(B[0], A[vi, vj])
    for i, j in T.grid(32, 1000):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] / B[0]
"#,
    ),
    (
        "mean of all",
        r#"
@T.prim_func(s_tir=True)
def mean(A: T.Buffer((4096,), "float32"), C: T.Buffer((1, 1), "float32")):
    B = T.sblock_alloc_buffer((), "float32")
    for i in range(4096):
        with T.sblock("B"):
            vi = T.axis.reduce(4096, i)
            with T.init():
                B[()] = T.float32(0)
            B[()] = B[()] + A[vi]
    with T.sblock("C"):
        T.reads(B[()])
        T.writes(C[0, 0])
        C[0, 0] = B[()] * T.float32(0.000244140625)
"#,
    ),
    IN_PLACE,
    ("a sum of two tensors and its norm", SUM_AND_NORM),
    ("a normalisation and its statistics", STATISTICS),
    ("maps of which some are results", MAPS),
    ("two maps of the same rows", BOTH),
    ("maps of which one changes what it reads", UPDATED),
];

/// The caller sees the sum that is normalised, too, as the next layer of a network does.
const SUM_AND_NORM: &str = r#"
@T.prim_func(s_tir=True)
def norm(X: T.Buffer((48, 1000), "float16"), D: T.Buffer((48, 1000), "float16"), R: T.Buffer((48, 1000), "float16"), Y: T.Buffer((48, 1000), "float16")):
    S = T.sblock_alloc_buffer((48,), "float32")
    for i, j in T.grid(48, 1000):
        with T.sblock("R"):
            vi, vj = T.axis.remap("SS", [i, j])
            R[vi, vj] = X[vi, vj] + D[vi, vj]
    for i, j in T.grid(48, 1000):
        with T.sblock("S"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + T.Cast("float32", R[vi, vj]) * T.Cast("float32", R[vi, vj])
    for i, j in T.grid(48, 1000):
        with T.sblock("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.Cast("float16", T.Cast("float32", R[vi, vj]) * T.rsqrt(S[vi] / T.float32(1000) + T.float32(1)))
"#;

/// Two maps of the same rows, neither of the other.
pub const BOTH: &str = r#"
@T.prim_func(s_tir=True)
def both(X: T.Buffer((48, 1000), "float32"), D: T.Buffer((48, 1000), "float32"), Y: T.Buffer((48, 1000), "float32"), Z: T.Buffer((48, 1000), "float32")):
    S = T.sblock_alloc_buffer((48,), "float32")
    for i, j in T.grid(48, 1000):
        with T.sblock("S"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + X[vi, vj]
    for i, j in T.grid(48, 1000):
        with T.sblock("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = X[vi, vj] - S[vi]
    for i, j in T.grid(48, 1000):
        with T.sblock("Z"):
            vi, vj = T.axis.remap("SS", [i, j])
            Z[vi, vj] = X[vi, vj] * S[vi] + D[vi, vj]
"#;

/// Maps over the same elements: two are results, one is read by both that come after it, and what is read is shared.
const MAPS: &str = r#"
@T.prim_func(s_tir=True)
def maps(X: T.Buffer((48, 1000), "float32"), D: T.Buffer((48,), "float32"), Y: T.Buffer((48, 1000), "float32"), Z: T.Buffer((48, 1000), "float32")):
    E = T.sblock_alloc_buffer((48, 1000), "float32")
    for i, j in T.grid(48, 1000):
        with T.sblock("E"):
            vi, vj = T.axis.remap("SS", [i, j])
            E[vi, vj] = T.exp(X[vi, vj] * D[vi])
    for i, j in T.grid(48, 1000):
        with T.sblock("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = E[vi, vj] + D[vi]
    for i, j in T.grid(48, 1000):
        with T.sblock("Z"):
            vi, vj = T.axis.remap("SS", [i, j])
            Z[vi, vj] = E[vi, vj] * Y[vi, vj] - X[vi, vj]
"#;

/// Two maps read what the first has changed.
const UPDATED: &str = r#"
@T.prim_func(s_tir=True)
def updated(X: T.Buffer((48, 1000), "float32"), D: T.Buffer((48,), "float32"), Y: T.Buffer((48, 1000), "float32"), Z: T.Buffer((48, 1000), "float32")):
    for i, j in T.grid(48, 1000):
        with T.sblock("X"):
            vi, vj = T.axis.remap("SS", [i, j])
            X[vi, vj] = X[vi, vj] * T.float32(0.5) + D[vi]
    for i, j in T.grid(48, 1000):
        with T.sblock("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = X[vi, vj] + D[vi]
    for i, j in T.grid(48, 1000):
        with T.sblock("Z"):
            vi, vj = T.axis.remap("SS", [i, j])
            Z[vi, vj] = X[vi, vj] * Y[vi, vj]
"#;

/// The caller sees the mean and the deviation of each row, as training does; in shapes of their own.
const STATISTICS: &str = r#"
@T.prim_func(s_tir=True)
def norm(X: T.Buffer((48, 1000), "float32"), M: T.Buffer((48, 1), "float32"), V: T.Buffer((1, 48), "float32"), Y: T.Buffer((48, 1000), "float32")):
    S = T.sblock_alloc_buffer((48,), "float32")
    Q = T.sblock_alloc_buffer((48,), "float32")
    for i, j in T.grid(48, 1000):
        with T.sblock("S"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + X[vi, vj]
    for i in range(48):
        with T.sblock("M"):
            vi = T.axis.spatial(48, i)
            M[vi, 0] = S[vi] / T.float32(1000)
    for i, j in T.grid(48, 1000):
        with T.sblock("Q"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                Q[vi] = T.float32(0)
            Q[vi] = Q[vi] + (X[vi, vj] - M[vi, 0]) * (X[vi, vj] - M[vi, 0])
    for i in range(48):
        with T.sblock("V"):
            vi = T.axis.spatial(48, i)
            V[0, vi] = T.rsqrt(Q[vi] / T.float32(1000) + T.float32(1))
    for i, j in T.grid(48, 1000):
        with T.sblock("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = (X[vi, vj] - M[vi, 0]) * V[0, vi]
"#;

/// Its last block writes what the first has read.
const IN_PLACE: (&str, &str) = (
    "rows less their maxima, in place",
    r#"
@T.prim_func(s_tir=True)
def less(A: T.Buffer((48, 1000), "float32")):
    B = T.sblock_alloc_buffer((48,), "float32")
    C = T.sblock_alloc_buffer((48, 1000), "float32")
    for i, j in T.grid(48, 1000):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                B[vi] = T.min_value("float32")
            B[vi] = T.max(B[vi], A[vi, vj])
    for i, j in T.grid(48, 1000):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] - B[vi]
    for i, j in T.grid(48, 1000):
        with T.sblock("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = C[vi, vj] * T.float32(2)
"#,
);

/// Maps whose rows a part of a warp takes: colours of pixels, and the digits of words, each with values for some of its rows.
const SHORT: [(&str, &str); 2] = [
    (
        "colours",
        r#"
@T.prim_func(s_tir=True)
def colours(X: T.Buffer((2, 8, 48, 3), "float32"), M: T.Buffer((3,), "float32"), S: T.Buffer((2, 48), "float32"), Y: T.Buffer((2, 8, 48, 3), "float16")):
    for n, h, w, c in T.grid(2, 8, 48, 3):
        with T.sblock("Y"):
            vn, vh, vw, vc = T.axis.remap("SSSS", [n, h, w, c])
            Y[vn, vh, vw, vc] = T.Cast("float16", (X[vn, vh, vw, vc] - M[vc]) * S[vn, vw])
"#,
    ),
    (
        "digits",
        r#"
@T.prim_func(s_tir=True)
def digits(W: T.Buffer((24, 32), "uint32"), S: T.Buffer((24, 8), "float16"), B: T.Buffer((24, 256), "float16")):
    for n, k in T.grid(24, 256):
        with T.sblock("B"):
            vn, vk = T.axis.remap("SS", [n, k])
            B[vn, vk] = T.Cast("float16", T.bitwise_and(T.shift_right(W[vn, vk // 8], T.Cast("uint32", vk % 8 * 4)), T.uint32(15))) * S[vn, vk // 32]
"#,
    ),
];

fn space(problem: &Streams, gpu: &Descriptor, menu: &StreamMenu) -> Space<StreamTerm> {
    saturate(problem, satune::explore::limits(gpu), menu, &rules::all(), Fuel::default()).unwrap()
}

#[test(slow)]
fn random_schedules_run_and_their_sectors_are_counted_exactly() {
    let gpu = Descriptor::load("h200").unwrap();
    let options = scheduled::options(&gpu);
    let scripts = SUMS.into_iter().chain(SHORT).map(|(name, script)| {
        let program = explored(&tvmscript::parse(script).unwrap());
        let problem = streams(&program).unwrap();
        assert!(problem.plain.is_empty(), "{name}: {:?}", problem.plain);
        (name, program, problem)
    });
    let operators = [
        "rowsum:64,1000,f32",
        "mean:64,4096,f32",
        "softmax:64,1000,f32",
        "softmax:64,1024,f16",
        "gemv:64,2048,f32",
        "transpose:96,200,f32",
        "transpose:128,128,f16",
        "relu_chain:64,1000,f32",
        "layernorm:64,1000,f32",
        "rmsnorm:32,512,bf16",
        "rowsum:4,16384,f32",
        "mean:2,10000,f16",
        "softmax:4,8192,f32",
        "gemv:2,16384,f32",
        "rowsum:512,4,f32",
        "softmax:512,16,f16",
        "softmax:192,49,f32",
        "layernorm:256,96,f32",
        "rmsnorm:128,24,bf16",
    ]
    .map(|operator| {
        let (program, problem) = problem(operator);
        (operator, program, problem)
    });
    for (operator, program, problem) in operators.into_iter().chain(scripts) {
        let space = space(&problem, &gpu, &StreamMenu::default());
        let counts = Counts::of(&space);
        let mut random = StdRng::seed_from_u64(1);
        println!("{operator}: {} schedules", counts.total());
        let mut failed = Vec::new();
        for _ in 0..12 {
            let term = counts.sample(&space, &mut random).unwrap();
            let plan = StreamPlan::from_term(&term, &problem).unwrap();
            let (small, small_plan) = streaming::shrink(&program, &plan, &problem);
            let small_problem = streams_of(&small, &small_plan).unwrap();
            let text = plan.describe().join("\n");
            let checked = match streaming::check(&program, &plan, &problem, &options, &|| true) {
                Ok(checked) => checked,
                Err(fault) => {
                    failed.push(format!("{fault}\n{text}"));
                    continue;
                }
            };
            let work = stream_work(&small_plan, &small_problem);
            assert_eq!(work.len(), checked.len(), "{operator}");
            // Rows of lanes of one warp exchange nothing through shared memory: what they load there is what is held of rows.
            let is_short = |k: &KernelPlan| matches!(k, KernelPlan::Row(row) if row.threads < 32);
            let short: Vec<f64> = small_plan.kernels.iter().map(|k| f64::from(u8::from(is_short(k)))).collect();
            let mut counted: Vec<[f64; 3]> = (work.iter().zip(&short))
                .map(|(w, short)| [w.load_sectors, w.store_sectors, short * w.load_wavefronts])
                .collect();
            let mut expected: Vec<[f64; 3]> = (checked.iter().map(|c| &c.total).zip(&short))
                .map(|(c, short)| {
                    let [loads, stores] = [c.global_load_sectors, c.global_store_sectors].map(|sectors| sectors as f64);
                    [loads, stores, short * c.shared_load_wavefronts as f64]
                })
                .collect();
            // Kernels that do not need each other may stand in another order than in the plan, as only those of this program.
            if program.name == "both" {
                [&mut counted, &mut expected]
                    .into_iter()
                    .for_each(|list| list.sort_by(|a, b| a.partial_cmp(b).unwrap()));
            }
            if counted != expected {
                failed.push(format!("sectors {counted:?} {expected:?}\n{text}"));
            }
        }
        assert!(failed.is_empty(), "{operator}: {} of 12:\n{}", failed.len(), failed.join("\n---\n"));
    }
}

/// The least that a program must move: every parameter once, bytes.
fn least_bytes(problem: &Streams) -> f64 {
    problem.whole().buffers.iter().filter(|b| b.param).map(|b| b.bytes() as f64).sum()
}

#[test]
fn the_best_schedules_read_each_input_once_in_one_kernel_without_conflicts() {
    let gpu = Descriptor::load("h200").unwrap();
    let options = scheduled::options(&gpu);
    let query = Query { k: 2, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY };
    for operator in [
        "rowsum:2048,8192,f32",
        "mean:2048,8192,f32",
        "softmax:4096,4096,f32",
        "transpose:8192,8192,f32",
        "gemv:16384,16384,f32",
        "relu_chain:8192,8192,f32",
    ] {
        let (program, problem) = problem(operator);
        let found = best_stream(&space(&problem, &gpu, &StreamMenu::default()), &gpu, query);
        assert!(found.proved, "{operator}");
        for c in &found.candidates {
            let text = format!("{operator}: {}", c.plan.describe().join("\n"));
            let Schedule::Stream(plan) = &c.plan else { panic!("{text}") };
            assert_eq!(plan.kernels.len(), 1, "{text}");
            let checked = streaming::check(&program, plan, &problem, &options, &|| true).unwrap();
            let small = streams(&streaming::shrink(&program, plan, &problem).0).unwrap();
            let least = least_bytes(&small) / 32.0;
            let sectors = checked[0].total.global_sectors().0 as f64;
            println!("{text}: {sectors} sectors, least {least}, {:.4} ms", c.cost.ms);
            // A chain's bias comes from L2 once per row, beside the rows that are read and written.
            let most = if operator.starts_with("relu_chain") { 1.5 } else { 1.02 };
            assert!(sectors <= most * least, "{text}: {sectors} {least}");
            let (taken, ideal) = checked[0].total.shared_wavefronts();
            assert_eq!(taken, ideal, "{text}");
            // A launch takes as long whatever it moves; beyond it the time is that of a copy, or of reads alone, which are faster.
            let copy_ms = least_bytes(&problem) / (gpu.dram_gbs * 1e9) * 1e3;
            let ms = c.cost.kernel_ms();
            assert!((c.cost.launch_ms() - gpu.launch_us * 1e-3).abs() < 1e-12, "{text}");
            assert!(ms >= copy_ms / gpu.dram_read_ratio && ms <= 1.1 * copy_ms, "{text}: {ms} {copy_ms}");
        }
    }
}

#[test]
fn extraction_and_count_equal_brute_force() {
    let gpu = Descriptor::load("a100").unwrap();
    let menu = StreamMenu {
        side_by_side: vec![1, 2],
        serial_rows: vec![1],
        threads: vec![32, 64],
        vectors: vec![1, 4],
        steps: vec![2],
        tiles: vec![16, 32],
        tile_threads: vec![64],
        pads: vec![0, 1],
        ..StreamMenu::default()
    };
    let mut all =
        ["softmax:8,256,f32", "transpose:64,64,f32", "relu_chain:8,256,f32"].map(|o| (o, problem(o).1)).to_vec();
    all.push((IN_PLACE.0, streams(&tvmscript::parse(IN_PLACE.1).unwrap()).unwrap()));
    for (operator, problem) in all {
        let space = space(&problem, &gpu, &menu);
        let terms = space.programs(space.root);
        assert_eq!(Counts::of(&space).total(), terms.len().into(), "{operator}");
        let mut times: Vec<f64> = terms
            .into_iter()
            .map(|term| StreamPlan::from_term(&term, &problem).unwrap())
            .filter_map(|plan| stream_cost(&plan, &problem, &gpu).ok())
            .map(|cost| cost.ms)
            .collect();
        times.sort_by(f64::total_cmp);
        let query = Query { k: 10, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY };
        let found = best_stream(&space, &gpu, query);
        let best: Vec<f64> = found.candidates.iter().map(|c| c.cost.ms).collect();
        println!("{operator}: {} programs, best {:?}", times.len(), best.first());
        assert_eq!(best.len(), 10.min(times.len()), "{operator}");
        for (a, b) in best.iter().zip(&times) {
            assert!((a - b).abs() <= 1e-12 * b, "{operator}: {a} {b}");
        }
    }
}

#[test]
fn an_epilogue_is_computed_in_the_kernel_of_its_contraction() {
    let gpu = Descriptor::load("h200").unwrap();
    let options = scheduled::options(&gpu);
    let problem = operators::parse("gemm_bias_relu:256,192,64,f32").unwrap();
    let epilogue = problem.contraction.epilogue.as_ref().unwrap();
    assert_eq!((epilogue.blocks.len(), epilogue.reads.len()), (2, 1));
    let space = satune::explore::space(&problem, &gpu).unwrap();
    let counts = Counts::of(&space);
    let mut random = StdRng::seed_from_u64(3);
    let mut plans: Vec<CoresPlan> = Vec::new();
    while plans.len() < 6 {
        let term = counts.sample(&space, &mut random).unwrap();
        let plan = CoresPlan::from_term(&term, &problem.contraction).unwrap();
        if satune_extract::cost(&plan, &problem.contraction, &gpu).is_ok() {
            plans.push(plan);
        }
    }
    let query = Query { k: 2, diverse: true, limit: NO_LIMIT, below_ms: f64::INFINITY };
    let best = satune_extract::best(&space, &gpu, query);
    plans.extend(best.candidates.iter().filter_map(|c| c.plan.cores().cloned()));
    for plan in plans {
        let text = plan.describe().join("\n");
        let made = scheduled::of_plan(&problem.program, &plan, &problem.contraction, &options);
        let made = made.unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!((made.module.kernels.len(), made.module.workspaces.len()), (1, 0), "{text}");
        let checked = satune::explore::check(&Schedule::Cores(plan.clone()), &problem.contraction, &options, &|| true);
        assert!(checked.is_ok(), "{}\n{text}", checked.unwrap_err());
    }
}

#[test]
fn streaming_programs_are_explored_shown_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let run = |arguments: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_satune")).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text)
    };
    let explored = run(&["explore", "mean:256,1000,f32", "--gpu", "h200", "--top", "2", "--out", out, "--no-compile"]);
    assert_eq!(explored.0, Some(0), "{}", explored.1);
    for (command, part) in
        [("show", "sum + divide"), ("why", "derivation"), ("check", "equal to the definition"), ("emit", "__global__")]
    {
        let (code, text) = run(&[command, "1", "--out", out]);
        assert_eq!(code, Some(0), "{command}: {text}");
        assert!(text.contains(part), "{command}: {text}");
    }
    let (code, text) = run(&["count", "softmax:64,256,f32", "--gpu", "h200"]);
    assert!(code == Some(0) && text.contains("schedules"), "{text}");
    for (question, part) in [("kernels 1, threads 64", "in the space: "), ("threads 96", "96 threads (the menu is")] {
        let (code, text) = run(&["why-not", "mean:256,1000,f32", "--gpu", "h200", question]);
        assert!(code == Some(0) && text.contains(part), "{text}");
    }
}

#[test]
fn few_long_rows_are_reduced_in_parts_by_two_kernels() {
    let gpu = Descriptor::load("h200").unwrap();
    let problem = StreamProblem::operator("rowsum:4,16777216,f32").unwrap();
    let space = streaming::space(&problem, &gpu).unwrap();
    let query = Query { k: 1, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY };
    let best = best_stream(&space, &gpu, query).candidates.remove(0);
    let Schedule::Stream(plan) = &best.plan else { panic!() };
    assert!(plan.parts > 1 && plan.kernels.len() == 2, "{}", plan.describe().join("\n"));
    let copy_ms = problem.streams.least_bytes() / (gpu.dram_gbs * 1e9) * 1e3;
    assert!(best.cost.kernel_ms() <= 1.1 * copy_ms, "{} {copy_ms}", best.cost.kernel_ms());
    // Whole rows keep four blocks busy.
    let whole = space.restricted(&|_, node| !matches!(node, StreamTerm::Parts { parts, .. } if parts.number > 1));
    let slow = best_stream(&whole, &gpu, query).candidates.remove(0);
    assert!(slow.cost.ms > 10.0 * best.cost.ms, "{} {}", slow.cost.ms, best.cost.ms);
    // Other rows, of no power of two, of some that are more: each in parts, and right.
    let options = scheduled::options(&gpu);
    for operator in ["rowsum:3,1000000,f32", "mean:16,65536,f16", "gemv:2,262144,f32", "softmax:2,65536,f32"] {
        let problem = StreamProblem::operator(operator).unwrap();
        let space = streaming::space(&problem, &gpu).unwrap();
        let parted = space.restricted(&|_, node| !matches!(node, StreamTerm::Parts { parts, .. } if parts.number == 1));
        let found = best_stream(&parted, &gpu, query).candidates.remove(0);
        let Schedule::Stream(plan) = &found.plan else { panic!() };
        let text = format!("{operator}: {}", plan.describe().join("\n"));
        assert!(plan.parts > 1, "{text}");
        let checked = streaming::check(&problem.program, plan, &problem.streams, &options, &|| true);
        let (taken, least) =
            streaming::together(&checked.unwrap_or_else(|e| panic!("{text}: {e}"))).total.shared_wavefronts();
        assert_eq!(taken, least, "{text}");
    }
}

/// Three updates in place are kernels of their own, for the first reads what the last changes; that reads what the others left in L2:
/// a kernel's time depends on the others'.
#[test]
fn what_is_not_proved_has_a_bound_that_no_program_lies_below() {
    let gpu = Descriptor::load("h200").unwrap();
    let moment = |name: &str, value: &str| {
        format!("    for i, j in T.grid(4096, 1024):\n        with T.sblock(\"{name}\"):\n            vi, vj = T.axis.remap(\"SS\", [i, j])\n            {name}[vi, vj] = {value}\n")
    };
    let text = format!(
        "@T.prim_func(s_tir=True)\ndef adam({}):\n{}{}{}",
        ["P", "G", "M", "V"].map(|p| format!("{p}: T.Buffer((4096, 1024), \"float32\")")).join(", "),
        moment("M", "T.float32(0.9) * M[vi, vj] + T.float32(0.1) * G[vi, vj] * P[vi, vj]"),
        moment("V", "T.float32(0.9) * V[vi, vj] + T.float32(0.1) * G[vi, vj] * G[vi, vj]"),
        moment("P", "P[vi, vj] - T.float32(0.001) * M[vi, vj] / (T.sqrt(V[vi, vj]) + T.float32(0.00001))"),
    );
    let problem = streams(&explored(&tvmscript::parse(&text).unwrap())).unwrap();
    let space = space(&problem, &gpu, &StreamMenu::default());
    let query = Query { k: 1, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY };
    let found = best_stream(&space, &gpu, query);
    let best = found.candidates[0].cost.ms;
    assert!(!found.proved && found.bound_ms > 0.5 * best && found.bound_ms < best, "{} {best}", found.bound_ms);
    let counts = Counts::of(&space);
    let mut random = StdRng::seed_from_u64(7);
    for _ in 0..1000 {
        let plan = StreamPlan::from_term(&counts.sample(&space, &mut random).unwrap(), &problem).unwrap();
        let Ok(cost) = stream_cost(&plan, &problem, &gpu) else { continue };
        assert!(cost.ms >= found.bound_ms, "{} {}", cost.ms, found.bound_ms);
    }
}
