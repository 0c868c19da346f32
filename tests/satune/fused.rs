//! Programs of several blocks: one kernel or several, rows kept in registers or shared memory between the stages.
use crate::compiles::compile;
use crate::reductions::{every_barrier_is_needed, loop_tags, lowered, parse, simulated};
use crate::simulated::text;
use satune::agreement::Agreement;
use satune::compile::Job;
use satune::lower::program::Module;
use satune::simulate::Counts;
use satune_ir::{interp, tvmscript, BlockId, Program};
use satune_rewrites::bind::bind;
use satune_rewrites::cache_read::cache_read;
use satune_rewrites::compute_at::compute_at;
use satune_rewrites::compute_inline::compute_inline;
use satune_rewrites::queries::{get_loops, get_sblock};
use satune_rewrites::set_scope::set_scope;
use satune_rewrites::split::split;
use satune_rewrites::vectorize::vectorize;
use satune_rewrites::{LoopId, Schedule};

/// The interpreter's results of both programs agree, and those of the kernels.
fn checked(source: &Program, scheduled: &Program) -> (Module, Vec<Counts>) {
    let inputs = interp::random_inputs(source, 5).unwrap();
    let results =
        [source, scheduled].map(|p| interp::run(p, &inputs).unwrap_or_else(|e| panic!("{e}\n{}", tvmscript::print(p))));
    let agreement = Agreement::of(source);
    for (x, y) in results[0].iter().zip(&results[1]) {
        let dtype = x.dtype();
        for (x, y) in x.to_f64().into_iter().zip(y.to_f64()) {
            assert!(agreement.agree(x, y, dtype), "{x} {y}\n{}", tvmscript::print(scheduled));
        }
    }
    let module = lowered(scheduled);
    let counts = simulated(source, &module);
    (module, counts)
}

fn softmax(m: i64, k: i64) -> Program {
    parse(
        &format!("A: T.Buffer(({m}, {k}), \"float32\"), B: T.Buffer(({m}, {k}), \"float32\")"),
        &format!(
            r#"
largest = T.sblock_alloc_buffer(({m},))
power = T.sblock_alloc_buffer(({m}, {k}))
total = T.sblock_alloc_buffer(({m},))
for i, k in T.grid({m}, {k}):
    with T.sblock("largest"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            largest[vi] = T.min_value("float32")
        largest[vi] = T.max(largest[vi], A[vi, vk])
for i, k in T.grid({m}, {k}):
    with T.sblock("power"):
        vi, vk = T.axis.remap("SS", [i, k])
        power[vi, vk] = T.exp(A[vi, vk] - largest[vi])
for i, k in T.grid({m}, {k}):
    with T.sblock("total"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            total[vi] = T.float32(0)
        total[vi] = total[vi] + power[vi, vk]
for i, k in T.grid({m}, {k}):
    with T.sblock("B"):
        vi, vk = T.axis.remap("SS", [i, k])
        B[vi, vk] = power[vi, vk] / total[vi]
"#
        ),
    )
}

/// How a row kernel is scheduled.
#[derive(Clone, Copy, Debug)]
struct Rows<'s> {
    rows: i64,
    threads: i64,
    vector: i64,
    /// Where the row's input is kept; none: read anew.
    input: Option<&'s str>,
    /// Where the intermediate row is kept; none: computed anew.
    between: Option<&'s str>,
    /// Scope of what is reduced.
    results: &'s str,
}

/// Splits a block's last loop among the threads; the innermost part.
fn spread(s: &mut Schedule, block: BlockId, how: &Rows, vectorized: bool) -> LoopId {
    let last = *get_loops(s, block).unwrap().last().unwrap();
    let k = split(s, last, &[None, Some(how.threads), Some(how.vector)], true, false).unwrap();
    bind(s, k[1], "threadIdx.x").unwrap();
    if vectorized && how.vector > 1 {
        vectorize(s, k[2]).unwrap();
    }
    k[1]
}

/// All stages of a row under the loop over rows of the last one.
fn row_kernel(source: &Program, how: &Rows, reductions: &[&str], between: &[&str], last: &str) -> Program {
    let mut s = Schedule::new(source.clone()).unwrap();
    let out = get_sblock(&s, last).unwrap();
    let first = get_sblock(&s, reductions[0]).unwrap();
    let l = get_loops(&s, out).unwrap();
    let i = split(&mut s, l[0], &[None, Some(how.rows)], true, false).unwrap();
    loop_tags(&mut s, &[(i[0], "blockIdx.x"), (i[1], "threadIdx.y")]);
    let cached = how.input.map(|scope| cache_read(&mut s, first, 0, scope, &[]).unwrap());
    spread(&mut s, out, how, true);
    let mut order: Vec<(BlockId, bool)> = Vec::new();
    for name in reductions {
        let b = get_sblock(&s, name).unwrap();
        set_scope(&mut s, b, 0, how.results).unwrap();
        order.push((b, true));
    }
    for name in between {
        let b = get_sblock(&s, name).unwrap();
        match how.between {
            None => compute_inline(&mut s, b).unwrap(),
            Some(scope) => {
                set_scope(&mut s, b, 0, scope).unwrap();
                order.push((b, false));
            }
        }
    }
    // Consumers are moved before their producers.
    let position = |s: &Schedule, b: BlockId| {
        s.child_blocks(satune_rewrites::Node::Block(s.root())).unwrap().iter().position(|x| *x == b)
    };
    order.sort_by_key(|(b, _)| std::cmp::Reverse(position(&s, *b)));
    order.extend(cached.map(|c| (c, false)));
    for (b, reduces) in order {
        compute_at(&mut s, b, i[1], true, -1).unwrap();
        spread(&mut s, b, how, !reduces);
    }
    s.into_program()
}

#[test]
fn softmax_in_one_kernel() {
    let (m, k) = (4, 512);
    let source = softmax(m, k);
    let sectors = (m * k * 4 / 32) as u64;
    for (input, between, results, vector, threads, rows) in [
        (None, None, "local", 1, 32, 1),
        (None, None, "shared", 1, 64, 2),
        (Some("local"), None, "local", 4, 128, 1),
        (Some("local"), Some("local"), "local", 4, 64, 2),
        (Some("shared"), None, "local", 1, 128, 1),
        (Some("shared"), Some("shared"), "shared", 1, 64, 1),
        (Some("shared"), Some("shared"), "local", 4, 64, 1),
        (None, Some("shared"), "local", 4, 64, 1),
    ] {
        let how = Rows { rows, threads, vector, input, between, results };
        let scheduled = row_kernel(&source, &how, &["largest", "total"], &["power"], "B");
        let (module, counts) = checked(&source, &scheduled);
        assert_eq!(module.kernels.len(), 1);
        if input.is_some() {
            assert_eq!(counts[0].global_load_sectors, sectors, "{}", text(&module));
        }
        assert_eq!(counts[0].global_store_sectors, sectors);
        let (taken, least) = counts[0].shared_wavefronts();
        assert_eq!(taken, least, "{how:?}\n{}", text(&module));
        every_barrier_is_needed(&module.kernels[0]);
    }
}

/// What a thread reads again itself needs no barrier.
#[test]
fn rows_of_the_thread_itself_need_no_barriers() {
    let source = softmax(4, 512);
    for (results, barriers) in [("local", 2), ("shared", 4)] {
        let how = Rows { rows: 1, threads: 128, vector: 1, input: Some("shared"), between: Some("shared"), results };
        let scheduled = row_kernel(&source, &how, &["largest", "total"], &["power"], "B");
        let (module, counts) = checked(&source, &scheduled);
        assert_eq!(counts[0].barriers, barriers * 4 * 4, "{}", text(&module));
    }
}

/// Rows and columns that nothing divides; the long rows of the benchmark, of which each element is read once.
#[test]
fn softmax_of_ragged_and_of_long_rows() {
    for (m, k, rows, threads, vector) in [(5, 500, 2, 32, 4), (3, 77, 2, 64, 1), (2, 4096, 1, 256, 4)] {
        let source = softmax(m, k);
        let how = Rows { rows, threads, vector, input: Some("local"), between: Some("local"), results: "local" };
        let scheduled = row_kernel(&source, &how, &["largest", "total"], &["power"], "B");
        let (module, counts) = checked(&source, &scheduled);
        let least = (m * k * 4 / 32) as u64;
        let read = counts[0].global_load_sectors;
        // Rows of 77 or 500 elements begin within a sector, which is then touched for both rows.
        assert!(read >= least && (read == least || k % 8 != 0), "{read} of {least}\n{}", text(&module));
    }
}

/// Two exchanges through shared memory, one after the other, in the same bytes.
fn two_exchanges() -> Program {
    let stage = |from: &str, to: &str, index: &str, scale: i64| {
        format!(
            r#"
    for t in T.thread_binding(256, thread="threadIdx.x"):
        with T.sblock("{to}"):
            vi, vt = T.axis.remap("SS", [b, t])
            {to}[vi, vt] = {from}[vi, {index}] * T.float32({scale})
"#
        )
    };
    parse(
        "A: T.Buffer((2, 256), \"float32\"), B: T.Buffer((2, 256), \"float32\")",
        &format!(
            r#"
first = T.sblock_alloc_buffer((2, 256), scope="shared")
turned = T.sblock_alloc_buffer((2, 256), scope="local")
second = T.sblock_alloc_buffer((2, 256), scope="shared")
for b in T.thread_binding(2, thread="blockIdx.x"):
{}{}{}{}
"#,
            stage("A", "first", "vt", 1),
            stage("first", "turned", "255 - vt", 3),
            stage("turned", "second", "vt", 2),
            stage("second", "B", "(vt + 7) % 256", 1)
        ),
    )
}

#[test]
fn shared_memory_is_used_again() {
    let source = two_exchanges();
    let (module, counts) = checked(&source, &source);
    let kernel = &module.kernels[0];
    assert_eq!(kernel.shared_bytes, 1024, "{}", text(&module));
    assert_eq!(counts[0].barriers, 3 * 8 * 2, "{}", text(&module));
    assert_eq!(every_barrier_is_needed(kernel), 3);
}

/// Functions, selections and comparisons of elements; vectors where the types allow them.
#[test]
fn expressions_of_all_kinds() {
    let mut jobs = Vec::new();
    for (input, dtype, expression) in [
        ("float32", "float32", "T.tanh(A[vi]) * T.sqrt(T.abs(A[vi])) + T.rsqrt(A[vi] * A[vi] + T.float32(1))"),
        ("float32", "float32", "T.max(T.min(T.exp(A[vi]), T.float32(4)), T.sigmoid(A[vi])) - T.erf(A[vi])"),
        ("float32", "float32", "T.Select(A[vi] < T.float32(0), A[vi] * T.float32(0.25), T.exp2(A[vi]))"),
        ("float32", "float32", "T.if_then_else(A[vi] >= T.float32(1) and A[vi] != T.float32(2), T.float32(1), A[vi])"),
        (
            "float32",
            "float32",
            "T.if_then_else(not A[vi] > T.float32(1) or vi < 20, T.log(A[vi] + T.float32(4)), A[vi])",
        ),
        ("float32", "float32", "T.pow(A[vi], T.float32(3)) / T.float32(7) + T.floor(A[vi] / T.float32(2))"),
        ("float32", "float32", "T.Cast(\"float32\", A[vi] < T.float32(0)) + T.Cast(\"float32\", vi)"),
        ("float16", "float16", "T.Cast(\"float16\", T.tanh(T.Cast(\"float32\", A[vi])))"),
        ("float16", "float32", "T.Select(A[vi] < T.float16(0), T.float32(0), T.Cast(\"float32\", A[vi]))"),
        ("float64", "float64", "T.exp(A[vi]) + T.cos(A[vi]) * T.sin(A[vi])"),
        ("float32", "int32", "T.Cast(\"int32\", A[vi] * T.float32(1.5))"),
        ("int32", "int8", "T.Cast(\"int8\", A[vi] * 100)"),
    ] {
        let source = parse(
            &format!("A: T.Buffer((1000,), \"{input}\"), B: T.Buffer((1000,), \"{dtype}\")"),
            &format!(
                r#"
for i in range(1000):
    with T.sblock("B"):
        vi = T.axis.spatial(1000, i)
        B[vi] = {expression}
"#
            ),
        );
        let mut s = Schedule::new(source.clone()).unwrap();
        let b = get_sblock(&s, "B").unwrap();
        let l = get_loops(&s, b).unwrap();
        let vector = if input == "float64" { 2 } else { 4 };
        let i = split(&mut s, l[0], &[None, Some(64), Some(vector)], true, false).unwrap();
        loop_tags(&mut s, &[(i[0], "blockIdx.x"), (i[1], "threadIdx.x")]);
        vectorize(&mut s, i[2]).unwrap();
        let (module, counts) = checked(&source, s.program());
        let kernel = text(&module);
        let bytes = |t: &str| {
            if t.ends_with("64") {
                8
            } else if t.ends_with("16") {
                2
            } else if t == "int8" {
                1
            } else {
                4
            }
        };
        let sectors = |t: &str| (1000 * bytes(t) as u64).div_ceil(32);
        assert_eq!(counts[0].global_store_sectors, sectors(dtype), "{kernel}");
        if !expression.contains("T.if_then_else") && !expression.contains("T.Select") {
            assert_eq!(counts[0].global_load_sectors, sectors(input), "{kernel}");
        }
        jobs.push(Job { name: expression.into(), source: kernel, arch: "sm_80".into() });
    }
    compile(&jobs);
}

fn mean(m: i64, k: i64) -> Program {
    parse(
        &format!("A: T.Buffer(({m}, {k}), \"float32\"), B: T.Buffer(({m},), \"float32\")"),
        &format!(
            r#"
total = T.sblock_alloc_buffer(({m},))
for i, k in T.grid({m}, {k}):
    with T.sblock("total"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            total[vi] = T.float32(0)
        total[vi] = total[vi] + A[vi, vk]
for i in range({m}):
    with T.sblock("B"):
        vi = T.axis.spatial({m}, i)
        B[vi] = total[vi] / T.float32({k})
"#
        ),
    )
}

#[test]
fn means_in_one_kernel_and_in_two() {
    let source = mean(6, 768);
    // Shared results of several rows would be computed for all of them by each row's threads.
    for (results, rows) in [("local", 2), ("shared", 1)] {
        let mut s = Schedule::new(source.clone()).unwrap();
        let [total, out] = ["total", "B"].map(|n| get_sblock(&s, n).unwrap());
        let l = get_loops(&s, out).unwrap();
        let i = split(&mut s, l[0], &[None, Some(rows)], true, false).unwrap();
        loop_tags(&mut s, &[(i[0], "blockIdx.x"), (i[1], "threadIdx.y")]);
        set_scope(&mut s, total, 0, results).unwrap();
        compute_at(&mut s, total, i[1], true, -1).unwrap();
        let how = Rows { rows, threads: 64, vector: 4, input: None, between: None, results };
        spread(&mut s, total, &how, false);
        let a = cache_read(&mut s, total, 0, "local", &[]).unwrap();
        let reading = get_loops(&s, total).unwrap();
        compute_at(&mut s, a, reading[reading.len() - 2], true, -1).unwrap();
        let last = *get_loops(&s, a).unwrap().last().unwrap();
        vectorize(&mut s, last).unwrap();
        let (module, counts) = checked(&source, s.program());
        assert_eq!((module.kernels.len(), module.workspaces.len()), (1, 0));
        assert_eq!(counts[0].global_load_sectors, 6 * 768 * 4 / 32);
        assert_eq!(counts[0].global_loads, 6 * 768 / 4 / 32, "{}", text(&module));
    }
    let mut s = Schedule::new(source.clone()).unwrap();
    let [total, out] = ["total", "B"].map(|n| get_sblock(&s, n).unwrap());
    let (l, o) = (get_loops(&s, total).unwrap(), get_loops(&s, out).unwrap());
    let k = split(&mut s, l[1], &[None, Some(32)], true, false).unwrap();
    loop_tags(&mut s, &[(l[0], "blockIdx.x"), (k[1], "threadIdx.x"), (o[0], "threadIdx.x")]);
    let (module, counts) = checked(&source, s.program());
    assert_eq!((module.kernels.len(), module.workspaces.len()), (2, 1));
    assert_eq!(counts[1].global_load_sectors, 1, "the totals come from the workspace");
}

/// Mean and variance of a row, and the row normalised: four stages, the input read once.
#[test]
fn layer_normalisation() {
    let (m, k) = (3, 384);
    let source = parse(
        &format!("A: T.Buffer(({m}, {k}), \"float32\"), B: T.Buffer(({m}, {k}), \"float32\")"),
        &format!(
            r#"
total = T.sblock_alloc_buffer(({m},))
deviation = T.sblock_alloc_buffer(({m}, {k}))
spread = T.sblock_alloc_buffer(({m},))
for i, k in T.grid({m}, {k}):
    with T.sblock("total"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            total[vi] = T.float32(0)
        total[vi] = total[vi] + A[vi, vk]
for i, k in T.grid({m}, {k}):
    with T.sblock("deviation"):
        vi, vk = T.axis.remap("SS", [i, k])
        deviation[vi, vk] = A[vi, vk] - total[vi] / T.float32({k})
for i, k in T.grid({m}, {k}):
    with T.sblock("spread"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            spread[vi] = T.float32(0)
        spread[vi] = spread[vi] + deviation[vi, vk] * deviation[vi, vk]
for i, k in T.grid({m}, {k}):
    with T.sblock("B"):
        vi, vk = T.axis.remap("SS", [i, k])
        B[vi, vk] = deviation[vi, vk] * T.rsqrt(spread[vi] / T.float32({k}) + T.float32(0.00001))
"#
        ),
    );
    let mut jobs = Vec::new();
    for (input, between) in [("local", None), ("local", Some("local")), ("shared", Some("shared"))] {
        let how = Rows { rows: 1, threads: 96, vector: 4, input: Some(input), between, results: "local" };
        let scheduled = row_kernel(&source, &how, &["total", "spread"], &["deviation"], "B");
        let (module, counts) = checked(&source, &scheduled);
        let sectors = (m * k * 4 / 32) as u64;
        assert_eq!((counts[0].global_load_sectors, counts[0].global_store_sectors), (sectors, sectors));
        every_barrier_is_needed(&module.kernels[0]);
        jobs.push(Job { name: input.into(), source: text(&module), arch: "sm_90".into() });
    }
    compile(&jobs);
}

/// y = A x: a warp for each row, x read through the cache.
#[test]
fn matrix_times_vector() {
    let (m, k) = (12, 640);
    let source = parse(
        &format!(
            "A: T.Buffer(({m}, {k}), \"float32\"), x: T.Buffer(({k},), \"float32\"), y: T.Buffer(({m},), \"float32\")"
        ),
        &format!(
            r#"
for i, k in T.grid({m}, {k}):
    with T.sblock("y"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            y[vi] = T.float32(0)
        y[vi] = y[vi] + A[vi, vk] * x[vk]
"#
        ),
    );
    let mut s = Schedule::new(source.clone()).unwrap();
    let y = get_sblock(&s, "y").unwrap();
    let l = get_loops(&s, y).unwrap();
    let i = split(&mut s, l[0], &[None, Some(4)], true, false).unwrap();
    let k = split(&mut s, l[1], &[None, Some(32), Some(4)], true, false).unwrap();
    loop_tags(&mut s, &[(i[0], "blockIdx.x"), (i[1], "threadIdx.y"), (k[1], "threadIdx.x")]);
    satune_rewrites::unroll::unroll(&mut s, k[2]).unwrap();
    let (module, counts) = checked(&source, s.program());
    // The unrolled loop takes vectors by itself.
    assert_eq!(counts[0].global_load_sectors, (2 * 12 * 640 * 4 / 32) as u64, "{}", text(&module));
    assert_eq!(counts[0].global_load_sectors, counts[0].global_load_sectors_ideal);
    assert!(text(&module).contains("fmaf(A_vector[k_2], x_vector[k_2], y_partial[0])"), "{}", text(&module));
}

/// B = A^T through a padded tile of shared memory, and through a swizzled one.
#[test]
fn transposes() {
    let (m, n) = (96, 64);
    let source = parse(
        &format!("A: T.Buffer(({m}, {n}), \"float32\"), B: T.Buffer(({n}, {m}), \"float32\")"),
        &format!(
            r#"
for i, j in T.grid({n}, {m}):
    with T.sblock("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vj, vi]
"#
        ),
    );
    for layout in ["plain", "padded", "swizzled"] {
        let mut s = Schedule::new(source.clone()).unwrap();
        let b = get_sblock(&s, "B").unwrap();
        let l = get_loops(&s, b).unwrap();
        let i = split(&mut s, l[0], &[None, Some(4), Some(8)], true, false).unwrap();
        let j = split(&mut s, l[1], &[None, Some(32)], true, false).unwrap();
        satune_rewrites::reorder::reorder(&mut s, &[i[0], j[0], i[1], i[2], j[1]]).unwrap();
        loop_tags(&mut s, &[(i[0], "blockIdx.y"), (j[0], "blockIdx.x"), (i[2], "threadIdx.y"), (j[1], "threadIdx.x")]);
        let tile = cache_read(&mut s, b, 0, "shared", &[]).unwrap();
        compute_at(&mut s, tile, j[0], true, -1).unwrap();
        let l = get_loops(&s, tile).unwrap();
        let rows = split(&mut s, l[l.len() - 2], &[None, Some(8)], true, false).unwrap();
        loop_tags(&mut s, &[(rows[1], "threadIdx.y"), (l[l.len() - 1], "threadIdx.x")]);
        match layout {
            "padded" => satune_rewrites::storage_align::storage_align(&mut s, tile, 0, 0, 32, 1).unwrap(),
            "swizzled" => {
                use satune_rewrites::transform_layout::{transform_layout, Padding};
                let map = "lambda i, j: (i, j // 32 * 32 + (j % 32 ^ i % 32))";
                let map = satune_rewrites::index_map::IndexMap::parse(map).unwrap();
                transform_layout(&mut s, tile, true, 0, &map, Padding::Unused).unwrap();
            }
            _ => {}
        }
        let (module, counts) = checked(&source, s.program());
        let (taken, least) = counts[0].shared_wavefronts();
        match layout {
            "plain" => assert!(taken > 8 * least, "{taken} of {least}"),
            _ => assert_eq!(taken, least, "{layout}\n{}", text(&module)),
        }
        let sectors = (m * n * 4 / 32) as u64;
        assert_eq!((counts[0].global_load_sectors, counts[0].global_store_sectors), (sectors, sectors));
        assert_eq!(counts[0].barriers, 6 * 8, "one barrier per block");
        every_barrier_is_needed(&module.kernels[0]);
    }
}
