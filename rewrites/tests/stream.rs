//! The space of streaming programs: random programs of it mean what the source means, through the primitives.
use egg::{Id, Language, RecExpr};
use satune_ir::term::stream::{StreamPlan, StreamTerm, Streams};
use satune_ir::term::Space;
use satune_ir::{interp, tvmscript, Program};
use satune_rewrites::replay::replay_strict;
use satune_rewrites::space::stream::{rules, streams, trace, StreamMenu};
use satune_rewrites::space::{saturate, Fuel, Limits};

const H200: Limits = Limits { threads: 1024, shared_bytes: 232_448, registers: 255, cp_async: true };

/// Function parameters, allocations and nests as a program.
fn program(params: &str, allocations: &[&str], nests: &[&str]) -> Program {
    let mut text = format!("@T.prim_func(s_tir=True)\ndef main({params}):\n");
    for line in allocations {
        text += &format!("    {line}\n");
    }
    for nest in nests {
        for line in nest.lines() {
            text += &format!("    {line}\n");
        }
    }
    tvmscript::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// A reduction of rows of `source` into `target`.
fn reduce(name: &str, m: i64, n: i64, target: &str, init: &str, value: &str) -> String {
    format!(
        "for i, k in T.grid({m}, {n}):\n    with T.sblock(\"{name}\"):\n        vi, vj = T.axis.remap(\"SR\", [i, k])\n        with T.init():\n            {target}[vi] = {init}\n        {target}[vi] = {value}"
    )
}

fn map(name: &str, m: i64, n: i64, store: &str) -> String {
    format!(
        "for i, j in T.grid({m}, {n}):\n    with T.sblock(\"{name}\"):\n        vi, vj = T.axis.remap(\"SS\", [i, j])\n        {store}"
    )
}

fn row_map(name: &str, m: i64, store: &str) -> String {
    format!(
        "for i in range({m}):\n    with T.sblock(\"{name}\"):\n        vi = T.axis.spatial({m}, i)\n        {store}"
    )
}

fn row_sum(m: i64, n: i64) -> Program {
    let nest = reduce("sum", m, n, "S", "T.float32(0)", "S[vi] + A[vi, vj]");
    program(&format!("A: T.Buffer(({m}, {n}), \"float32\"), S: T.Buffer(({m},), \"float32\")"), &[], &[&nest])
}

fn mean(m: i64, n: i64) -> Program {
    let params = format!("A: T.Buffer(({m}, {n}), \"float32\"), S: T.Buffer(({m},), \"float32\")");
    let sum = reduce("sum", m, n, "s", "T.float32(0)", "s[vi] + A[vi, vj]");
    let divide = row_map("divide", m, &format!("S[vi] = s[vi] / T.float32({n})"));
    program(&params, &[&format!("s = T.sblock_alloc_buffer(({m},), \"float32\")")], &[&sum, &divide])
}

fn softmax(m: i64, n: i64) -> Program {
    let params = format!("A: T.Buffer(({m}, {n}), \"float32\"), B: T.Buffer(({m}, {n}), \"float32\")");
    let alloc = |name: &str, shape: String| format!("{name} = T.sblock_alloc_buffer({shape}, \"float32\")");
    let (x, e, s) = (alloc("x", format!("({m},)")), alloc("e", format!("({m}, {n})")), alloc("s", format!("({m},)")));
    program(
        &params,
        &[&x, &e, &s],
        &[
            &reduce("max", m, n, "x", "T.min_value(\"float32\")", "T.max(x[vi], A[vi, vj])"),
            &map("exp", m, n, "e[vi, vj] = T.exp(A[vi, vj] - x[vi])"),
            &reduce("sum", m, n, "s", "T.float32(0)", "s[vi] + e[vi, vj]"),
            &map("norm", m, n, "B[vi, vj] = e[vi, vj] / s[vi]"),
        ],
    )
}

fn gemv(m: i64, k: i64) -> Program {
    let params = format!(
        "A: T.Buffer(({m}, {k}), \"float32\"), x: T.Buffer(({k},), \"float32\"), y: T.Buffer(({m},), \"float32\")"
    );
    program(&params, &[], &[&reduce("dot", m, k, "y", "T.float32(0)", "y[vi] + A[vi, vj] * x[vj]")])
}

fn transpose(m: i64, n: i64) -> Program {
    let params = format!("A: T.Buffer(({n}, {m}), \"float32\"), B: T.Buffer(({m}, {n}), \"float32\")");
    program(&params, &[], &[&map("t", m, n, "B[vi, vj] = A[vj, vi]")])
}

fn chain(m: i64, n: i64) -> Program {
    let params = format!(
        "A: T.Buffer(({m}, {n}), \"float32\"), b: T.Buffer(({n},), \"float32\"), B: T.Buffer(({m}, {n}), \"float32\")"
    );
    let alloc = |name: &str| format!("{name} = T.sblock_alloc_buffer(({m}, {n}), \"float32\")");
    program(
        &params,
        &[&alloc("p"), &alloc("q")],
        &[
            &map("add", m, n, "p[vi, vj] = A[vi, vj] + b[vj]"),
            &map("twice", m, n, "q[vi, vj] = p[vi, vj] * T.float32(2)"),
            &map("relu", m, n, "B[vi, vj] = T.max(q[vi, vj], T.float32(0))"),
        ],
    )
}

/// A small generator: tests want the same programs every time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

fn walk(space: &Space<StreamTerm>, class: Id, random: &mut Random, out: &mut RecExpr<StreamTerm>) -> Option<Id> {
    let choices: Vec<&StreamTerm> = space.choices(space.egraph.find(class)).collect();
    if choices.is_empty() {
        return None;
    }
    let mut node = choices[random.below(choices.len())].clone();
    for child in node.children_mut() {
        *child = walk(space, *child, random, out)?;
    }
    Some(out.add(node))
}

fn space(problem: &Streams, menu: &StreamMenu) -> Space<StreamTerm> {
    saturate(problem, H200, menu, &rules::all(), Fuel::default()).unwrap().restricted(&|_, _| true)
}

/// What is wrong with a plan, if anything.
fn fault(source: &Program, plan: &StreamPlan, problem: &Streams, seed: u64) -> Option<String> {
    let trace = trace(plan, problem);
    let (results, schedule) = replay_strict(source, &trace.calls).unwrap();
    if let Some((i, error)) = results.iter().enumerate().find_map(|(i, r)| Some((i, r.as_ref().err()?))) {
        let calls: Vec<String> = trace.calls.iter().map(|c| format!("{c:?}")).collect();
        let script = tvmscript::print(schedule.program());
        return Some(format!("refused: call {i}: {}\n{}\n{script}", error.detail, calls[i]));
    }
    interp::equal_on(source, schedule.program(), seed).err().map(|difference| format!("meaning: {difference}"))
}

#[test]
fn random_programs_of_the_space_mean_what_the_source_means() {
    let mut menu = StreamMenu::default();
    menu.threads = vec![32, 64];
    menu.side_by_side = vec![1, 2, 4];
    menu.serial_rows = vec![1, 2];
    for (name, source) in [
        ("row sum", row_sum(8, 200)),
        ("mean", mean(8, 200)),
        ("softmax", softmax(8, 136)),
        ("gemv", gemv(8, 200)),
        ("transpose", transpose(40, 72)),
        ("chain", chain(12, 200)),
    ] {
        let problem = streams(&source).unwrap_or_else(|e| panic!("{name}: {e}"));
        let space = space(&problem, &menu);
        assert!(!space.is_empty(), "{name}");
        let mut random = Random(7);
        for seed in 0..40 {
            let mut term = RecExpr::default();
            walk(&space, space.root, &mut random, &mut term).unwrap();
            let plan = StreamPlan::from_term(&term, &problem).unwrap();
            if let Some(fault) = fault(&source, &plan, &problem, seed) {
                panic!("{name}: {fault}\n{}", plan.describe().join("\n"));
            }
        }
        println!("{name}: {} nodes, {} variants", space.report.nodes, problem.variants.len());
    }
}
