//! Programs of several blocks: one kernel or several, rows kept in registers or shared memory between the stages.
use crate::reductions::{loop_tags, lowered, parse, simulated, text};
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

/// Where transcendental functions take part, sums of rounded values depend on their order.
const SUMS: f64 = 1e-5;

/// The interpreter's results of both programs agree, and those of the kernels.
fn checked(source: &Program, scheduled: &Program, tolerance: f64) -> (Module, Vec<Counts>) {
    let inputs = interp::random_inputs(source, 5).unwrap();
    let results =
        [source, scheduled].map(|p| interp::run(p, &inputs).unwrap_or_else(|e| panic!("{e}\n{}", tvmscript::print(p))));
    for (x, y) in results[0].iter().zip(&results[1]) {
        for (x, y) in x.to_f64().into_iter().zip(y.to_f64()) {
            assert!((x - y).abs() <= tolerance * x.abs().max(y.abs()), "{x} {y}\n{}", tvmscript::print(scheduled));
        }
    }
    let module = lowered(scheduled);
    let counts = simulated(source, &module, tolerance);
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
        (None, Some("shared"), "local", 4, 64, 1),
    ] {
        let how = Rows { rows, threads, vector, input, between, results };
        let scheduled = row_kernel(&source, &how, &["largest", "total"], &["power"], "B");
        let (module, counts) = checked(&source, &scheduled, SUMS);
        assert_eq!(module.kernels.len(), 1);
        println!("{how:?}: {:?}", counts[0]);
        if input.is_some() {
            assert_eq!(counts[0].global_load_sectors, sectors, "{}", text(&module));
        }
        assert_eq!(counts[0].global_store_sectors, sectors);
    }
}

#[test]
#[ignore]
fn show() {
    let source = softmax(4, 500);
    for (input, between) in [(Some("local"), Some("local")), (Some("shared"), Some("shared"))] {
        let how = Rows { rows: 1, threads: 64, vector: 4, input, between, results: "local" };
        let scheduled = row_kernel(&source, &how, &["largest", "total"], &["power"], "B");
        println!("{}", tvmscript::print(&scheduled));
        println!("{}", text(&lowered(&scheduled)));
    }
}

/// What a thread reads again itself needs no barrier.
#[test]
fn rows_of_the_thread_itself_need_no_barriers() {
    let source = softmax(4, 512);
    for (results, barriers) in [("local", 2), ("shared", 4)] {
        let how = Rows { rows: 1, threads: 128, vector: 1, input: Some("shared"), between: Some("shared"), results };
        let scheduled = row_kernel(&source, &how, &["largest", "total"], &["power"], "B");
        let (module, counts) = checked(&source, &scheduled, SUMS);
        assert_eq!(counts[0].barriers, barriers * 4 * 4, "{}", text(&module));
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
    use satune::kernel::{Kernel, Stmt};
    use satune::simulate::{run, Options};
    let source = two_exchanges();
    let (module, counts) = checked(&source, &source, 0.0);
    let kernel = &module.kernels[0];
    assert_eq!(kernel.shared_bytes, 1024, "{}", text(&module));
    assert_eq!(counts[0].barriers, 3 * 8 * 2, "{}", text(&module));
    let barriers: Vec<usize> = (0..kernel.body.len()).filter(|i| kernel.body[*i] == Stmt::Barrier).collect();
    assert_eq!(barriers.len(), 3);
    for at in barriers {
        let mut body = kernel.body.clone();
        body.remove(at);
        let broken = Kernel { body, ..kernel.clone() };
        let mut args = vec![vec![1.0; 512], vec![0.0; 512]];
        run(&broken, &mut args, &Options::default()).expect_err("each barrier is needed");
    }
}
