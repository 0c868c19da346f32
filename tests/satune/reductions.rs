//! Reductions over threads: scheduled with the primitives, interpreted, lowered, simulated, compiled.
use crate::compiles::compile;
use crate::simulated::{run, text};
use satune::agreement::Agreement;
use satune::compile::Job;
use satune::kernel::{Kernel, Stmt};
use satune::lower::program::{lower, LowerOptions, Module};
use satune::simulate::{self, Counts, FaultKind};
use satune_ir::{interp, tvmscript, Program};
use satune_rewrites::bind::bind;
use satune_rewrites::cache_read::cache_read;
use satune_rewrites::compute_at::compute_at;
use satune_rewrites::queries::{get_loops, get_sblock};
use satune_rewrites::rfactor::rfactor;
use satune_rewrites::set_scope::set_scope;
use satune_rewrites::split::split;
use satune_rewrites::unroll::unroll;
use satune_rewrites::vectorize::vectorize;
use satune_rewrites::{LoopId, Schedule};

/// A function of a TVMScript body.
pub fn parse(params: &str, body: &str) -> Program {
    let body: String = body.lines().filter(|l| !l.trim().is_empty()).map(|l| format!("    {l}\n")).collect();
    let text = format!("@T.prim_func(s_tir=True)\ndef main({params}):\n{body}");
    tvmscript::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

pub fn lowered(program: &Program) -> Module {
    let mut options = LowerOptions::default();
    options.target.max_shared_bytes = 227 * 1024;
    lower(program, &options).unwrap_or_else(|e| panic!("{e}\n{}", tvmscript::print(program)))
}

/// Runs the kernels on random inputs of the source, and compares with what the source means.
pub fn simulated(source: &Program, module: &Module) -> Vec<Counts> {
    let inputs = interp::random_inputs(source, 5).unwrap();
    let expected = interp::run(source, &inputs).unwrap();
    let mut params: Vec<Vec<f64>> = inputs.iter().map(interp::Array::to_f64).collect();
    let mut counts = Vec::new();
    for (kernel, report) in module.kernels.iter().zip(run(module, &mut params)) {
        assert_eq!(report.unwritten, 0, "{}", satune::cuda::print(kernel));
        counts.push(report.total);
    }
    let agreement = Agreement::of(source);
    for (want, got) in expected.iter().zip(&params) {
        let wrong = |(x, y): (f64, &f64)| !agreement.agree(x, *y, want.dtype());
        if let Some(at) = want.to_f64().into_iter().zip(got).position(wrong) {
            panic!("element {at}: {} is not {}\n{}", got[at], want.to_f64()[at], text(module));
        }
    }
    counts
}

/// The same meaning by the interpreter; what the kernels did.
pub fn checked(source: &Program, scheduled: &Program) -> (Module, Counts) {
    interp::equal_on(source, scheduled, 3).unwrap_or_else(|e| panic!("{e}\n{}", tvmscript::print(scheduled)));
    let module = lowered(scheduled);
    let counts = simulated(source, &module)[0];
    (module, counts)
}

/// B[i] = reduction of A[i, k] over k.
pub fn rows(m: i64, k: i64, input: &str, dtype: &str, init: &str, update: &str) -> Program {
    parse(
        &format!("A: T.Buffer(({m}, {k}), \"{input}\"), B: T.Buffer(({m},), \"{dtype}\")"),
        &format!(
            r#"
for i, k in T.grid({m}, {k}):
    with T.sblock("B"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            B[vi] = {init}
        B[vi] = {update}
"#
        ),
    )
}

fn row_sum(m: i64, k: i64) -> Program {
    rows(m, k, "float32", "float32", "T.float32(0)", "B[vi] + A[vi, vk]")
}

pub fn loop_tags(s: &mut Schedule, tags: &[(LoopId, &str)]) {
    for (l, tag) in tags {
        bind(s, *l, tag).unwrap();
    }
}

/// `rows` rows per block, `threads` threads for each, which read `vector` neighbouring elements at a time.
fn by_threads(source: &Program, rows: i64, threads: i64, vector: i64) -> Program {
    let mut s = Schedule::new(source.clone()).unwrap();
    let b = get_sblock(&s, "B").unwrap();
    let l = get_loops(&s, b).unwrap();
    let i = split(&mut s, l[0], &[None, Some(rows)], true, false).unwrap();
    let k = split(&mut s, l[1], &[None, Some(threads), Some(vector)], true, false).unwrap();
    loop_tags(&mut s, &[(i[0], "blockIdx.x"), (i[1], "threadIdx.y"), (k[1], "threadIdx.x")]);
    if vector > 1 {
        let a = cache_read(&mut s, b, 0, "local", &[]).unwrap();
        compute_at(&mut s, a, k[1], true, -1).unwrap();
        let last = *get_loops(&s, a).unwrap().last().unwrap();
        vectorize(&mut s, last).unwrap();
        unroll(&mut s, k[2]).unwrap();
    }
    s.into_program()
}

#[test]
fn row_sums_by_a_warp_and_by_many() {
    for (rows, threads, vector) in
        [(1, 32, 1), (4, 32, 4), (1, 256, 4), (2, 128, 2), (8, 16, 1), (1, 1024, 1), (2, 96, 1)]
    {
        let source = row_sum(8, 1536);
        let (module, counts) = checked(&source, &by_threads(&source, rows, threads, vector));
        assert_eq!(counts.global_load_sectors, 8 * 1536 * 4 / 32, "A is read once");
        assert_eq!(counts.global_load_sectors, counts.global_load_sectors_ideal);
        assert_eq!(counts.shared_wavefronts().0, counts.shared_wavefronts().1);
        let steps = i64::from(threads.min(32).trailing_zeros());
        if threads <= 32 {
            assert_eq!(counts.barriers, 0, "{}", text(&module));
            assert_eq!(counts.shuffles as i64, steps * 8 * threads / 32);
        } else {
            let warps = (8 * threads / 32) as u64;
            assert_eq!(counts.barriers, warps, "one barrier per block\n{}", text(&module));
        }
    }
}

#[test]
fn threads_that_do_not_divide_the_row() {
    for (m, k, rows, threads, vector) in
        [(5, 100, 2, 32, 1), (3, 37, 1, 64, 1), (4, 200, 1, 64, 4), (3, 50, 1, 24, 1), (7, 33, 4, 8, 2)]
    {
        let source = row_sum(m, k);
        checked(&source, &by_threads(&source, rows, threads, vector));
    }
}

#[test(slow)]
fn all_operations_and_types() {
    let minimum = "T.min_value(\"float32\")";
    for (input, dtype, init, update) in [
        ("float32", "float32", minimum, "T.max(B[vi], A[vi, vk])"),
        ("float32", "float32", "T.float32(\"-inf\")", "T.max(B[vi], A[vi, vk])"),
        ("float32", "float32", "T.max_value(\"float32\")", "T.min(B[vi], A[vi, vk])"),
        ("float32", "float32", "T.float32(1)", "B[vi] * A[vi, vk]"),
        ("float16", "float32", "T.float32(0)", "B[vi] + T.Cast(\"float32\", A[vi, vk])"),
        ("float16", "float16", "T.float16(0)", "B[vi] + A[vi, vk]"),
        ("float64", "float64", "T.float64(0)", "A[vi, vk] + B[vi]"),
        ("int32", "int32", "0", "B[vi] + A[vi, vk]"),
        ("float32", "float32", "T.Cast(\"float32\", 0)", "B[vi] + A[vi, vk]"),
        ("int32", "int32", "T.min_value(\"int32\")", "T.max(B[vi], A[vi, vk])"),
        ("int8", "int8", "T.int8(0)", "B[vi] + A[vi, vk]"),
        // What the init stores is no identity: it counts once.
        ("float32", "float32", "T.float32(10)", "B[vi] + A[vi, vk]"),
        ("float32", "float32", "T.float32(2)", "T.max(B[vi], A[vi, vk])"),
    ] {
        let source = rows(3, 21, input, dtype, init, update);
        let mut jobs = Vec::new();
        for (rows, threads) in [(1, 32), (1, 96), (2, 8)] {
            let (module, _) = checked(&source, &by_threads(&source, rows, threads, 1));
            jobs.push(Job { name: format!("{dtype} {threads}"), source: text(&module), arch: "sm_80".into() });
        }
        compile(&jobs);
    }
}

/// Columns: threadIdx.x runs along the memory, threadIdx.y reduces.
#[test]
fn column_sums() {
    let source = parse(
        "A: T.Buffer((96, 64), \"float32\"), B: T.Buffer((64,), \"float32\")",
        r#"
for j, k in T.grid(64, 96):
    with T.sblock("B"):
        vj, vk = T.axis.remap("SR", [j, k])
        with T.init():
            B[vj] = T.float32(0)
        B[vj] = B[vj] + A[vk, vj]
"#,
    );
    for (x, y) in [(32, 8), (16, 4), (64, 3)] {
        let mut s = Schedule::new(source.clone()).unwrap();
        let b = get_sblock(&s, "B").unwrap();
        let l = get_loops(&s, b).unwrap();
        let j = split(&mut s, l[0], &[None, Some(x)], true, false).unwrap();
        let k = split(&mut s, l[1], &[None, Some(y)], true, false).unwrap();
        loop_tags(&mut s, &[(j[0], "blockIdx.x"), (j[1], "threadIdx.x"), (k[1], "threadIdx.y")]);
        let (_, counts) = checked(&source, s.program());
        assert_eq!(counts.shared_wavefronts().0, counts.shared_wavefronts().1);
        assert_eq!(counts.global_load_sectors, 96 * 64 * 4 / 32);
    }
}

/// A partial block in registers, then a block that reduces over the threads.
#[test]
fn rfactor_then_threads() {
    for threads in [32, 128] {
        let source = row_sum(6, 1024);
        let mut s = Schedule::new(source.clone()).unwrap();
        let b = get_sblock(&s, "B").unwrap();
        let l = get_loops(&s, b).unwrap();
        let k = split(&mut s, l[1], &[None, Some(threads)], true, false).unwrap();
        let partial = rfactor(&mut s, k[1], 0).unwrap();
        set_scope(&mut s, partial, 0, "local").unwrap();
        let l = get_loops(&s, b).unwrap();
        loop_tags(&mut s, &[(l[0], "blockIdx.x"), (l[1], "threadIdx.x")]);
        compute_at(&mut s, partial, l[1], true, -1).unwrap();
        let (module, counts) = checked(&source, s.program());
        assert!(counts.shuffles > 0, "{}", text(&module));
        assert_eq!(counts.global_load_sectors, 6 * 1024 * 4 / 32);
    }
}

/// The kernel without its n-th barrier, where there are so many.
fn without_barrier(kernel: &Kernel, n: usize) -> Option<Kernel> {
    fn go(body: &[Stmt], left: &mut Option<usize>) -> Vec<Stmt> {
        let mut out = Vec::new();
        for s in body {
            match s {
                Stmt::Barrier if *left == Some(0) => *left = None,
                Stmt::Barrier => {
                    *left = left.map(|n| n - 1);
                    out.push(s.clone());
                }
                Stmt::For { var, name, start, extent, unroll, body } => out.push(Stmt::For {
                    var: *var,
                    name: name.clone(),
                    start: start.clone(),
                    extent: extent.clone(),
                    unroll: *unroll,
                    body: go(body, left),
                }),
                other => out.push(other.clone()),
            }
        }
        out
    }
    let mut left = Some(n);
    let body = go(&kernel.body, &mut left);
    left.is_none().then(|| Kernel { body, ..kernel.clone() })
}

/// Runs the kernel, then without each of its barriers in turn, which is a fault; how many it has.
pub fn every_barrier_is_needed(kernel: &Kernel) -> usize {
    let run = |kernel: &Kernel| {
        let mut args: Vec<Vec<f64>> = kernel.params().map(|(_, a)| vec![1.0; a.len as usize]).collect();
        simulate::run(kernel, &mut args, &simulate::Options::default())
    };
    run(kernel).unwrap();
    let broken = (0..).map_while(|n| without_barrier(kernel, n)).enumerate();
    let faults = broken.map(|(n, k)| match run(&k) {
        Ok(_) => panic!("barrier {n} is not needed\n{}", satune::cuda::print(kernel)),
        Err(fault) => assert!(
            matches!(fault.kind, FaultKind::Race { .. } | FaultKind::Unwritten),
            "{fault}\n{}",
            satune::cuda::print(&k)
        ),
    });
    faults.count()
}

#[test]
fn a_missing_barrier_is_a_race() {
    let source = row_sum(2, 512);
    let module = lowered(&by_threads(&source, 1, 256, 1));
    assert_eq!(every_barrier_is_needed(&module.kernels[0]), 1);
}

#[test]
fn what_threads_cannot_combine_says_so() {
    let refused = |program: &Program| lower(program, &LowerOptions::default()).map(|_| ()).unwrap_err().to_string();
    let scheduled = |order: &str, body: &str| {
        parse(
            "A: T.Buffer((4, 64), \"float32\"), B: T.Buffer((4,), \"float32\")",
            &format!("{order}\n            with T.sblock(\"B\"):\n                vi, vk = T.axis.remap(\"SR\", [i, k])\n{body}"),
        )
    };
    let order = "for i in T.thread_binding(4, thread=\"blockIdx.x\"):\n    for k in T.thread_binding(64, thread=\"threadIdx.x\"):\n        for u in range(1):";
    let init = "                with T.init():\n                    B[vi] = T.float32(0)\n";
    let sum = "                B[vi] = B[vi] + A[vi, vk]\n";
    assert_eq!(
        refused(&scheduled(order, sum)),
        "block B reduces over threads, and it has no init any more, so that its threads have nothing to start from; leave \
         out decompose_reduction"
    );
    let difference = format!("{init}                B[vi] = B[vi] - A[vi, vk]\n");
    assert_eq!(
        refused(&scheduled(order, &difference)),
        "block B reduces over threads, and its init and body are not one store each, `S = constant` and `S = S op value` \
         with op one of +, *, min, max"
    );
    let inside = "for k in T.thread_binding(64, thread=\"threadIdx.x\"):\n    for i in T.thread_binding(4, thread=\"threadIdx.y\"):\n        for u in range(1):";
    assert_eq!(
        refused(&scheduled(inside, &format!("{init}{sum}"))),
        "block B reduces over threads, and loop i lies inside of its first reduction loop k, but does not reduce; reorder \
         it to the outside"
    );
    let blocks = order.replace("64, thread=\"threadIdx.x\"", "64, thread=\"blockIdx.y\"");
    assert_eq!(
        refused(&scheduled(&blocks, &format!("{init}{sum}"))),
        "block B reduces over threads, and its reduction loop k is bound to blockIdx.y, and blocks cannot wait for each \
         other: rfactor that loop, and reduce its partial results in a second kernel"
    );
}

/// Each row's threads read 16 bytes at a time whatever the type.
#[test]
fn halves_are_read_eight_at_a_time() {
    let source = rows(3, 1024, "float16", "float32", "T.float32(0)", "B[vi] + T.Cast(\"float32\", A[vi, vk])");
    let (module, counts) = checked(&source, &by_threads(&source, 1, 128, 8));
    assert_eq!(counts.global_loads, 3 * 1024 / 8 / 32, "{}", text(&module));
    assert_eq!(counts.global_load_sectors, 3 * 1024 * 2 / 32);
}

/// What a thread may have of its own, and how many virtual threads.
#[test]
fn limits_of_a_kernel_are_named() {
    let program = |extent: i64, tag: &str| {
        parse(
            "A: T.Buffer((262144,), \"float64\"), B: T.Buffer((262144,), \"float64\")",
            &format!(
                r#"
S = T.sblock_alloc_buffer((262144,), "float64", scope="local")
for b in T.thread_binding(1, thread="blockIdx.x"):
    for t in T.thread_binding({extent}, thread="{tag}"):
        for k in range({per}):
            with T.sblock("S"):
                vk = T.axis.spatial(262144, t * {per} + k)
                S[vk] = A[vk]
        for k in range({per}):
            with T.sblock("B"):
                vk = T.axis.spatial(262144, t * {per} + k)
                B[vk] = S[vk]
"#,
                per = 262144 / extent
            ),
        )
    };
    let refused = |program: &Program| {
        let options = LowerOptions { max_expanded: 1 << 20, ..LowerOptions::default() };
        lower(program, &options).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&program(1, "threadIdx.x")),
        "2097152 bytes of registers and local memory per thread (S 2097152), a GPU has 524288; choose smaller tiles, or \
         more threads"
    );
    assert_eq!(
        refused(&program(1024, "vthread.x")),
        "virtual threads: 1024, at most 512 are possible; choose smaller extents for the bound loops"
    );
}
