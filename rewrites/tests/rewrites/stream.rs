//! The space of streaming programs: random programs of it mean what the source means, through the primitives.
use egg::{Id, Language, RecExpr};
use satune_ir::term::stream::{HeldRow, KernelPlan, Point, RowPlace, StreamPlan, StreamTerm, Streams};
use satune_ir::term::tensor::{Mma, OperandPlan, TensorPlan, TileLayout};
use satune_ir::term::{Schedule, Space};
use satune_ir::{interp, tvmscript, Program};
use satune_rewrites::replay::replay_strict;
use satune_rewrites::space::stream::{rules, streams, trace, StreamCondition, StreamMenu};
use satune_rewrites::space::{explored, saturate, saturate_without, Fuel, Limits, SaturationError};

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

/// A buffer between blocks.
fn alloc(name: &str, dims: &[i64]) -> String {
    let dims: String = dims.iter().map(|d| format!("{d}, ")).collect();
    format!("{name} = T.sblock_alloc_buffer(({dims}), \"float32\")")
}

/// A parameter of two dimensions.
fn matrix(name: &str, m: i64, n: i64) -> String {
    format!("{name}: T.Buffer(({m}, {n}), \"float32\")")
}

fn row_sum(m: i64, n: i64) -> Program {
    let nest = reduce("sum", m, n, "S", "T.float32(0)", "S[vi] + A[vi, vj]");
    program(&format!("A: T.Buffer(({m}, {n}), \"float32\"), S: T.Buffer(({m},), \"float32\")"), &[], &[&nest])
}

fn mean(m: i64, n: i64) -> Program {
    let params = format!("A: T.Buffer(({m}, {n}), \"float32\"), S: T.Buffer(({m},), \"float32\")");
    let sum = reduce("sum", m, n, "s", "T.float32(0)", "s[vi] + A[vi, vj]");
    let divide = row_map("divide", m, &format!("S[vi] = s[vi] / T.float32({n})"));
    program(&params, &[&alloc("s", &[m])], &[&sum, &divide])
}

/// The largest of a row, something of each element and it, the sum of those, in another buffer something of each and that.
fn four_stages(m: i64, n: i64, less: &str, norm: &str) -> Program {
    let params = format!("A: T.Buffer(({m}, {n}), \"float32\"), B: T.Buffer(({m}, {n}), \"float32\")");
    stages(m, n, &params, less, &format!("B[vi, vj] = {norm}"))
}

fn stages(m: i64, n: i64, params: &str, less: &str, norm: &str) -> Program {
    let all: [(&str, &[i64]); 3] = [("x", &[m]), ("e", &[m, n]), ("s", &[m])];
    let own = all.into_iter().filter(|(name, _)| !params.contains(&format!("{name}: ")));
    let own: Vec<String> = own.map(|(name, dims)| alloc(name, dims)).collect();
    program(
        params,
        &own.iter().map(String::as_str).collect::<Vec<_>>(),
        &[
            &reduce("max", m, n, "x", "T.min_value(\"float32\")", "T.max(x[vi], A[vi, vj])"),
            &map("less", m, n, &format!("e[vi, vj] = {less}")),
            &reduce("sum", m, n, "s", "T.float32(0)", "s[vi] + e[vi, vj]"),
            &map("norm", m, n, norm),
        ],
    )
}

fn softmax(m: i64, n: i64) -> Program {
    four_stages(m, n, "T.exp(A[vi, vj] - x[vi])", "e[vi, vj] / s[vi]")
}

/// Blocks as those of a softmax, whose sums are exact in any order.
fn centered(m: i64, n: i64) -> Program {
    four_stages(m, n, "A[vi, vj] - x[vi]", "e[vi, vj] - s[vi]")
}

/// The same, of which the caller sees what is named, too.
fn seen(m: i64, n: i64, names: &[&str]) -> Program {
    let shape = |name: &str| if name == "e" { format!("({m}, {n})") } else { format!("({m},)") };
    let names: String = names.iter().map(|x| format!(", {x}: T.Buffer({}, \"float32\")", shape(x))).collect();
    let params = format!("A: T.Buffer(({m}, {n}), \"float32\"), B: T.Buffer(({m}, {n}), \"float32\"){names}");
    stages(m, n, &params, "A[vi, vj] - x[vi]", "B[vi, vj] = e[vi, vj] - s[vi]")
}

/// The same, in place: its last block writes what the first has read.
fn centered_in_place(m: i64, n: i64) -> Program {
    let params = format!("A: T.Buffer(({m}, {n}), \"float32\")");
    stages(m, n, &params, "A[vi, vj] - x[vi]", "A[vi, vj] = e[vi, vj] - s[vi]")
}

/// A mean over the last of three axes, subtracted from what it is of.
fn heads(h: i64, m: i64, n: i64) -> Program {
    let params = format!("A: T.Buffer(({h}, {m}, {n}), \"float32\"), B: T.Buffer(({h}, {m}, {n}), \"float32\")");
    let sum = format!(
        "for i, j, k in T.grid({h}, {m}, {n}):\n    with T.sblock(\"sum\"):\n        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])\n        with T.init():\n            s[vi, vj] = T.float32(0)\n        s[vi, vj] = s[vi, vj] + A[vi, vj, vk]"
    );
    let less = format!(
        "for i, j, k in T.grid({h}, {m}, {n}):\n    with T.sblock(\"less\"):\n        vi, vj, vk = T.axis.remap(\"SSS\", [i, j, k])\n        B[vi, vj, vk] = A[vi, vj, vk] - s[vi, vj] * T.float32(0.5)"
    );
    program(&params, &[&alloc("s", &[h, m])], &[&sum, &less])
}

/// The last two of three axes change places.
fn permute(h: i64, m: i64, n: i64) -> Program {
    let params = format!("A: T.Buffer(({h}, {n}, {m}), \"float32\"), B: T.Buffer(({h}, {m}, {n}), \"float32\")");
    let nest = format!(
        "for i, j, k in T.grid({h}, {m}, {n}):\n    with T.sblock(\"permute\"):\n        vi, vj, vk = T.axis.remap(\"SSS\", [i, j, k])\n        B[vi, vj, vk] = A[vi, vk, vj]"
    );
    program(&params, &[], &[&nest])
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
    program(
        &params,
        &[&alloc("p", &[m, n]), &alloc("q", &[m, n])],
        &[
            &map("add", m, n, "p[vi, vj] = A[vi, vj] + b[vj]"),
            &map("twice", m, n, "q[vi, vj] = p[vi, vj] * T.float32(2)"),
            &map("relu", m, n, "B[vi, vj] = T.max(q[vi, vj], T.float32(0))"),
        ],
    )
}

/// Two buffers change their contents.
fn swap(m: i64, n: i64) -> Program {
    let params = format!("A: T.Buffer(({m}, {n}), \"float32\"), B: T.Buffer(({m}, {n}), \"float32\")");
    let copy = |name: &str, to: &str, from: &str| map(name, m, n, &format!("{to}[vi, vj] = {from}[vi, vj]"));
    let kept = alloc("t", &[m, n]);
    program(&params, &[&kept], &[&copy("keep", "t", "A"), &copy("there", "A", "B"), &copy("back", "B", "t")])
}

/// A map whose reads follow no loop.
fn gather(m: i64, n: i64) -> Program {
    let params = format!("A: T.Buffer(({m}, {n}), \"float32\"), B: T.Buffer(({m}, {n}), \"float32\")");
    program(&params, &[], &[&map("g", m, n, &format!("B[vi, vj] = A[vi, (vj * 3) % {n}]"))])
}

/// Zeros around rows, and sums of three neighbours, loops in another order than iterators.
fn padded(m: i64, n: i64) -> Program {
    let params = format!("A: T.Buffer(({m}, {n}), \"float32\"), B: T.Buffer(({m}, {n}), \"float32\")");
    let (wide, padded) = (n + 2, alloc("p", &[m, n + 2]));
    let pad = map(
        "pad",
        m,
        wide,
        &format!("p[vi, vj] = T.if_then_else(1 <= vj and vj < {}, A[vi, vj - 1], T.float32(0))", n + 1),
    );
    let sum = format!(
        "for k, i, j in T.grid(3, {m}, {n}):\n    with T.sblock(\"sum\"):\n        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])\n        with T.init():\n            B[vi, vj] = T.float32(0)\n        B[vi, vj] = B[vi, vj] + p[vi, vj + vk]"
    );
    program(&params, &[&padded], &[&pad, &sum])
}

fn product(m: i64, n: i64, k: i64) -> Program {
    let params = format!(
        "A: T.Buffer(({m}, {k}), \"float32\"), B: T.Buffer(({k}, {n}), \"float32\"), C: T.Buffer(({m}, {n}), \"float32\")"
    );
    program(
        &params,
        &[],
        &[&format!("for i, j, k in T.grid({m}, {n}, {k}):\n    with T.sblock(\"C\"):\n        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])\n        with T.init():\n            C[vi, vj] = T.float32(0)\n        C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]")],
    )
}

/// One sum of all elements.
fn total(n: i64) -> Program {
    let params = format!("A: T.Buffer(({n},), \"float32\"), S: T.Buffer((), \"float32\")");
    let nest = format!(
        "for k in range({n}):\n    with T.sblock(\"sum\"):\n        vk = T.axis.reduce({n}, k)\n        with T.init():\n            S[()] = T.float32(0)\n        S[()] = S[()] + A[vk]"
    );
    program(&params, &[], &[&nest])
}

/// The sum of a matrix's diagonal.
fn diagonal(n: i64) -> Program {
    let params = format!("A: T.Buffer(({n}, {n}), \"float32\"), S: T.Buffer((), \"float32\")");
    let nest = format!(
        "for k in range({n}):\n    with T.sblock(\"sum\"):\n        vk = T.axis.reduce({n}, k)\n        with T.init():\n            S[()] = T.float32(0)\n        S[()] = S[()] + A[vk, vk]"
    );
    program(&params, &[], &[&nest])
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

/// The call of a plan's trace that is refused, if one is.
fn refused(source: &Program, plan: &StreamPlan, problem: &Streams) -> Option<String> {
    let trace = trace(plan, problem).unwrap();
    let (results, _) = replay_strict(source, &trace.calls).unwrap();
    let of = |(call, result): (_, &satune_rewrites::schedule::Result<_>)| {
        Some(format!("{call:?}: {}", result.as_ref().err()?.detail))
    };
    trace.calls.iter().zip(&results).find_map(of)
}

/// What is wrong with a plan, if anything.
fn fault(source: &Program, plan: &StreamPlan, problem: &Streams, seed: u64) -> Option<String> {
    let trace = trace(plan, problem).unwrap();
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
    let menu = StreamMenu {
        threads: vec![32, 64],
        side_by_side: vec![1, 2, 4],
        serial_rows: vec![1, 2],
        ..StreamMenu::default()
    };
    for (name, source) in [
        ("row sum", row_sum(8, 200)),
        ("mean", mean(8, 200)),
        ("softmax", softmax(8, 136)),
        ("gemv", gemv(8, 200)),
        ("transpose", transpose(40, 72)),
        ("chain", chain(12, 200)),
        ("heads", heads(3, 4, 136)),
        ("permute", permute(3, 40, 24)),
        ("swap", swap(8, 136)),
        ("two sums", two_sums(8, 136)),
        ("apart", apart(8, 136)),
        ("unread", unread(8, 136)),
        ("idle", idle(8, 136)),
        ("results of maps", results(8, 136)),
        ("results of long maps", results(2, 1024)),
        ("updated by maps", explored(&updated(8, 136))),
        ("updated by long maps", explored(&updated(2, 1024))),
        ("one seen", seen(8, 136, &["x"])),
        ("all seen", seen(8, 136, &["e", "x", "s"])),
        ("long seen", seen(2, 1024, &["e", "x", "s"])),
        ("in place", centered_in_place(8, 136)),
        ("gather", gather(8, 24)),
        ("padded", padded(8, 30)),
        ("product", product(8, 24, 40)),
        ("total", total(40)),
        ("long rows", row_sum(2, 2048)),
        ("long mean", mean(2, 1024)),
        ("long softmax", centered(2, 1024)),
        ("long gemv", gemv(2, 1024)),
        ("long heads", heads(1, 2, 1024)),
    ] {
        let problem = streams(&source).unwrap_or_else(|e| panic!("{name}: {e}"));
        let space = space(&problem, &menu);
        assert!(!space.is_empty(), "{name}");
        let mut random = Random(7);
        let mut parted = 0;
        for seed in 0..40 {
            let mut term = RecExpr::default();
            walk(&space, space.root, &mut random, &mut term).unwrap();
            let plan = StreamPlan::from_term(&term, &problem).unwrap();
            parted += usize::from(plan.parts > 1);
            for block in &problem.of_plan(&plan).unwrap().blocks {
                let of_values = block.parts.iter().flat_map(|part| &part.buffers);
                assert!(of_values.into_iter().all(|buffer| block.touches(*buffer)), "{name}: {block:?}");
            }
            if let Some(fault) = fault(&source, &plan, &problem, seed) {
                panic!("{name}: {fault}\n{}", plan.describe().join("\n"));
            }
        }
        assert_eq!(parted > 0, name.starts_with("long"), "{name}: {parted}");
        println!("{name}: {} nodes, {} works", space.report.nodes, problem.works.len());
    }
}

/// Both factors are computed by one kernel, and none, one or both of them are padded for the tiles of the other: the copies of that kernel
/// stand before all that reads them.
#[test]
fn nests_that_become_one_stand_before_what_reads_any_of_them() {
    let source = tvmscript::parse(
        "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((48, 48), \"float16\"), B: T.Buffer((48, 48), \"float16\"), C: T.Buffer((48, 48), \
         \"float32\")):\n    for i, j, k in T.grid(48, 48, 48):\n        with T.sblock(\"C\"):\n            \
         vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])\n            with T.init():\n                C[vi, vj] = T.float32(0)\n            \
         C[vi, vj] = C[vi, vj] + T.Cast(\"float32\", T.Select(vk <= vi, A[vi, vk], T.float16(0))) * \
         T.Cast(\"float32\", T.Select(vj <= vk, B[vk, vj], T.float16(0)))\n",
    );
    let source = explored(&source.unwrap());
    let problem = streams(&source).unwrap();
    let padded = OperandPlan { layout: TileLayout::Padded, ..OperandPlan::usual(Mma::F16) };
    for tile in [[48, 48, 16], [32, 48, 16], [48, 32, 16], [32, 32, 32]] {
        let [swapped, plain] = [true, false].map(|swapped| {
            Schedule::Mma(TensorPlan {
                swapped,
                operands: [padded; 2],
                ..TensorPlan::plain(tile, [16, 16], Mma::F16, 2)
            })
        });
        let works = problem.kernels().filter(|work| !problem.works[*work].tiled.is_empty());
        let tiled = works.map(|work| (work as u16, vec![swapped.clone(), plain.clone()])).collect();
        let space = space(&problem, &StreamMenu { tiled, ..few() });
        let (mut random, mut seen) = (Random(7), 0);
        for _ in 0..1000 {
            let mut term = RecExpr::default();
            walk(&space, space.root, &mut random, &mut term).unwrap();
            let plan = StreamPlan::from_term(&term, &problem).unwrap();
            let both = |kernel: &KernelPlan| matches!(kernel, KernelPlan::Flat(p) if p.blocks.len() > 1);
            let multiplied = |kernel: &KernelPlan| matches!(kernel, KernelPlan::Tiled(_));
            if plan.kernels.iter().any(both) && plan.kernels.iter().any(multiplied) {
                seen += 1;
                assert_eq!(refused(&source, &plan, &problem), None, "{tile:?}: {}", plan.describe().join("\n"));
            }
        }
        assert!(seen > 0, "{tile:?}");
    }
}

/// A menu of few sizes.
fn few() -> StreamMenu {
    StreamMenu {
        side_by_side: vec![1, 2],
        serial_rows: vec![1],
        threads: vec![32],
        vectors: vec![1, 4],
        steps: vec![1, 2],
        tiles: vec![16, 32],
        tile_threads: vec![64],
        pads: vec![0, 1],
        ..StreamMenu::default()
    }
}

#[test]
fn every_term_is_another_plan() {
    for (name, source) in [("softmax", softmax(4, 136)), ("transpose", transpose(40, 72)), ("chain", chain(4, 136))] {
        let problem = streams(&source).unwrap();
        let space = space(&problem, &few());
        let plans: Vec<StreamPlan> =
            space.programs(space.root).iter().map(|t| StreamPlan::from_term(t, &problem).unwrap()).collect();
        let distinct: std::collections::HashSet<&StreamPlan> = plans.iter().collect();
        println!("{name}: {} programs", plans.len());
        // A block goes into its consumer, or its consumer into it, but not either way.
        let inlined: std::collections::HashSet<_> = plans.iter().map(|p| &p.inlined).collect();
        let ways = [("softmax", 2), ("transpose", 1), ("chain", 4)].iter().find(|x| x.0 == name).unwrap().1;
        assert_eq!(inlined.len(), ways, "{name}");
        assert_eq!(distinct.len(), plans.len(), "{name}");
    }
}

/// Whether a plan is beyond what the GPU can run, or what its accesses can be.
fn beyond(plan: &StreamPlan, problem: &Streams, limits: &Limits) -> Option<&'static str> {
    let stream = problem.of_plan(plan)?;
    for kernel in &plan.kernels {
        if kernel.threads() > i64::from(limits.threads) {
            return Some("threads");
        }
        let first = stream.blocks.iter().position(|b| b.name == kernel.blocks()[0])?;
        let block = &stream.blocks[first];
        let (vector, columns) = match kernel {
            KernelPlan::Flat(p) => (p.vector, block.iters.last()?.extent),
            KernelPlan::Row(p) => (p.vector, stream.row_shape(first, first + p.blocks.len())?.columns),
            KernelPlan::Tile(p) => (p.vector, block.iters.last()?.extent),
            KernelPlan::Plain(_) | KernelPlan::Tiled(_) => continue,
        };
        if vector * 4 > 16 {
            return Some("width");
        }
        if columns % vector != 0 {
            return Some("alignment");
        }
        match kernel {
            KernelPlan::Plain(_) | KernelPlan::Tiled(_) => {}
            KernelPlan::Flat(p) => {
                if block.instances() / columns % p.side_by_side != 0 {
                    return Some("blocks without all of their rows");
                }
                let inner = Some(block.iters.len() - 1);
                let strided = block.reads.iter().any(|r| r.dims.contains(&inner) && r.dims.last() != Some(&inner));
                if strided {
                    return Some("strided accesses");
                }
            }
            KernelPlan::Row(p) => {
                if !stream.fits_row(first, first + p.blocks.len()) {
                    return Some("blocks that are of no kernel of rows");
                }
                if stream.row_shape(first, first + p.blocks.len())?.innermost % p.vector != 0 {
                    return Some("accesses over the end of an iterator");
                }
                if stream.row_shape(first, first + p.blocks.len())?.rows % p.rows_per_block() != 0 {
                    return Some("blocks without all of their rows");
                }
                let shared = p.held.iter().filter(|h| h.place == RowPlace::Shared).count() as i64;
                if shared * columns * 4 * p.side_by_side > limits.shared_bytes {
                    return Some("shared memory");
                }
                let rows = stream.rows_of(first, first + p.blocks.len(), p.rows_per_block());
                let in_registers = |row: &&HeldRow| p.place(&stream.buffers[row.buffer].name) == RowPlace::Registers;
                let held: Vec<_> = rows.iter().filter(in_registers).map(|row| (*row, 1)).collect();
                if HeldRow::most_at_once(&held) * columns / p.threads > limits.registers {
                    return Some("registers");
                }
            }
            KernelPlan::Tile(p) => {
                if p.side * (p.side + p.pad) * 4 > limits.shared_bytes {
                    return Some("shared memory");
                }
                if p.threads % (p.side / p.vector) != 0 {
                    return Some("threads that are no whole rows");
                }
            }
        }
    }
    None
}

/// How a rule without a condition is caught.
fn caught(removed: StreamCondition, source: &Program, menu: &StreamMenu, limits: Limits) -> Option<String> {
    let problem = streams(source).unwrap();
    let made = saturate_without(&problem, limits, menu, &rules::all(), Fuel::default(), Some(removed));
    let space = match made {
        Err(SaturationError::Unsound { violation, .. }) => return Some(format!("invariant: {violation}")),
        other => other.unwrap().restricted(&|_, _| true),
    };
    let mut random = Random(3);
    for seed in 0..400 {
        let mut term = RecExpr::default();
        walk(&space, space.root, &mut random, &mut term)?;
        let plan = StreamPlan::from_term(&term, &problem).unwrap();
        if let Some(what) = beyond(&plan, &problem, &limits) {
            return Some(format!("limits: {what}"));
        }
        if let Some(fault) = fault(source, &plan, &problem, seed) {
            return Some(fault);
        }
    }
    None
}

#[test]
fn every_side_condition_is_needed() {
    use StreamCondition::*;
    let small = Limits { threads: 64, shared_bytes: 600, ..H200 };
    let wide = StreamMenu { vectors: vec![1, 8], ..few() };
    let tall = StreamMenu { side_by_side: vec![1, 4], ..few() };
    let of = |condition| match condition {
        RowFits => (turned(8, 24, 40), few(), H200),
        FlatFits => (transpose(40, 72), few(), H200),
        RowsDivide => (row_sum(5, 136), few(), H200),
        ThreadsFit => (row_sum(8, 136), tall.clone(), small),
        VectorBytes => (row_sum(4, 136), wide.clone(), H200),
        VectorDivides => (row_sum(4, 130), few(), H200),
        SharedFits => (softmax(4, 136), few(), small),
        RegistersFit => (softmax(4, 32_768), few(), H200),
        Pipeline => (swap(4, 136), few(), H200),
        TeamDivides => (transpose(40, 72), StreamMenu { tile_threads: vec![24], ..few() }, H200),
    };
    // One that several rules ask is caught in each.
    let also = [(Pipeline, (centered_in_place(4, 136), few(), H200))];
    for (condition, (source, menu, limits)) in StreamCondition::ALL.map(|c| (c, of(c))).into_iter().chain(also) {
        let sound = space(&streams(&source).unwrap(), &menu);
        let problem = streams(&source).unwrap();
        // With the condition, the same walk finds nothing.
        let mut random = Random(3);
        for seed in 0..12 {
            let mut term = RecExpr::default();
            if limits != H200 || walk(&sound, sound.root, &mut random, &mut term).is_none() {
                break;
            }
            let plan = StreamPlan::from_term(&term, &problem).unwrap();
            assert_eq!(beyond(&plan, &problem, &limits), None, "{condition:?}");
            if condition != RegistersFit {
                assert_eq!(fault(&source, &plan, &problem, seed), None, "{condition:?}");
            }
        }
        let caught = caught(condition, &source, &menu, limits);
        println!("{condition:?}: {}", caught.as_deref().unwrap_or("not caught").lines().next().unwrap_or_default());
        assert!(caught.is_some(), "{condition:?} is not needed");
    }
}

/// Two row sums and a map of both.
fn two_sums(m: i64, n: i64) -> Program {
    let params = ["A", "D", "B"].map(|name| matrix(name, m, n)).join(", ");
    let sum =
        |name: &str, to: &str, of: &str| reduce(name, m, n, to, "T.float32(0)", &format!("{to}[vi] + {of}[vi, vj]"));
    let add = map("add", m, n, "B[vi, vj] = A[vi, vj] + s[vi] * t[vi]");
    program(
        &params,
        &[&alloc("s", &[m]), &alloc("t", &[m])],
        &[&sum("first", "s", "A"), &sum("second", "t", "D"), &add],
    )
}

/// Rows less their maxima, other sums, and columns of both: nobody reads the rows of a kernel of the first three there.
fn apart(m: i64, n: i64) -> Program {
    let params = [matrix("A", m, n), matrix("D", m, n), matrix("B", n, m)].join(", ");
    program(
        &params,
        &[&alloc("x", &[m]), &alloc("e", &[m, n]), &alloc("s", &[m])],
        &[
            &reduce("max", m, n, "x", "T.min_value(\"float32\")", "T.max(x[vi], A[vi, vj])"),
            &map("less", m, n, "e[vi, vj] = A[vi, vj] - x[vi]"),
            &reduce("sum", m, n, "s", "T.float32(0)", "s[vi] + D[vi, vj]"),
            &map("turn", n, m, "B[vi, vj] = e[vj, vi] - s[vj]"),
        ],
    )
}

/// Products of rows, which are tiled with what follows: there a matrix is read along its columns, as in no kernel of rows.
fn turned(m: i64, n: i64, k: i64) -> Program {
    let params = [matrix("A", m, k), matrix("B", n, k), matrix("E", n, m), matrix("D", m, n)].join(", ");
    let products = format!(
        "for i, j, k in T.grid({m}, {n}, {k}):\n    with T.sblock(\"p\"):\n        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])\n        with T.init():\n            C[vi, vj] = T.float32(0)\n        C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vj, vk]"
    );
    let add = map("d", m, n, "D[vi, vj] = C[vi, vj] + E[vj, vi]");
    program(&params, &[&alloc("C", &[m, n])], &[&products, &add])
}

/// Rows less their maxima, and sums that nobody reads.
fn idle(m: i64, n: i64) -> Program {
    let params = ["A", "D", "B"].map(|name| matrix(name, m, n)).join(", ");
    program(
        &params,
        &[&alloc("x", &[m]), &alloc("s", &[m])],
        &[
            &reduce("max", m, n, "x", "T.min_value(\"float32\")", "T.max(x[vi], A[vi, vj])"),
            &reduce("sum", m, n, "s", "T.float32(0)", "s[vi] + D[vi, vj]"),
            &map("less", m, n, "B[vi, vj] = A[vi, vj] - x[vi]"),
        ],
    )
}

/// Rows less their maxima, two sums of others, and a map of all: in a kernel that ends with the first sum, nobody reads the first rows.
fn unread(m: i64, n: i64) -> Program {
    let params = ["A", "D", "B"].map(|name| matrix(name, m, n)).join(", ");
    program(
        &params,
        &[&alloc("x", &[m]), &alloc("e", &[m, n]), &alloc("s", &[m]), &alloc("t", &[m])],
        &[
            &reduce("max", m, n, "x", "T.min_value(\"float32\")", "T.max(x[vi], A[vi, vj])"),
            &map("less", m, n, "e[vi, vj] = A[vi, vj] - x[vi]"),
            &reduce("sum", m, n, "s", "T.float32(0)", "s[vi] + D[vi, vj]"),
            &reduce("more", m, n, "t", "T.float32(1)", "T.max(t[vi], D[vi, vj])"),
            &map("norm", m, n, "B[vi, vj] = e[vi, vj] - s[vi] * t[vi]"),
        ],
    )
}

/// Maps of the same elements, two of them results that others read, one read twice, one by a transpose, too.
fn results(m: i64, n: i64) -> Program {
    let all = ["A", "D", "B", "C", "F"].map(|name| matrix(name, m, n)).join(", ");
    let params = format!("{all}, r: T.Buffer(({m},), \"float32\"), {}", matrix("T_", n, m));
    program(
        &params,
        &[&alloc("e", &[m, n]), &alloc("g", &[m, n])],
        &[
            &map("b", m, n, "B[vi, vj] = A[vi, vj] + D[vi, vj]"),
            &map("c", m, n, "C[vi, vj] = B[vi, vj] * r[vi]"),
            &map("e", m, n, "e[vi, vj] = C[vi, vj] - B[vi, vj] * A[vi, vj]"),
            &map("f", m, n, "F[vi, vj] = e[vi, vj] * e[vi, vj] + D[vi, vj]"),
            &map("g", m, n, "g[vi, vj] = e[vi, vj] - T.float32(2)"),
            &map("t", n, m, "T_[vi, vj] = g[vj, vi]"),
        ],
    )
}

/// Maps of the same elements, two of which change what they read; others read that, and what they read is of the first.
fn updated(m: i64, n: i64) -> Program {
    let params = ["A", "D", "F", "G"].map(|name| matrix(name, m, n)).join(", ");
    program(
        &format!("{params}, r: T.Buffer(({m},), \"float32\")"),
        &[&alloc("e", &[m, n])],
        &[
            &map("a", m, n, "A[vi, vj] = A[vi, vj] * T.float32(0.5) + D[vi, vj]"),
            &map("e", m, n, "e[vi, vj] = A[vi, vj] + r[vi]"),
            &map("f", m, n, "F[vi, vj] = F[vi, vj] - e[vi, vj] * A[vi, vj]"),
            &map("g", m, n, "G[vi, vj] = e[vi, vj] * F[vi, vj] - D[vi, vj]"),
        ],
    )
}

/// Maps, each of the one before.
fn maps(count: usize, m: i64, n: i64) -> Program {
    let params = format!("A0: T.Buffer(({m}, {n}), \"float32\"), A{count}: T.Buffer(({m}, {n}), \"float32\")");
    let allocations: Vec<String> = (1..count).map(|at| alloc(&format!("A{at}"), &[m, n])).collect();
    let nests: Vec<String> = (1..=count)
        .map(|at| map(&format!("m{at}"), m, n, &format!("A{at}[vi, vj] = A{}[vi, vj] + T.float32({at})", at - 1)))
        .collect();
    let allocations: Vec<&str> = allocations.iter().map(String::as_str).collect();
    program(&params, &allocations, &nests.iter().map(String::as_str).collect::<Vec<_>>())
}

/// How many ways there are from a point to the end.
fn ways(problem: &Streams, at: Point) -> u64 {
    let Some(choices) = problem.choices.get(&at) else { return 0 };
    let keep = at.with_next();
    let onward = choices.becomes.iter().map(|b| b.to).chain(choices.keep.then_some(keep));
    let ended = choices.then.map_or(0, |(_, rest)| rest.map_or(1, |rest| ways(problem, Point::of(rest))));
    onward.map(|next| ways(problem, next)).sum::<u64>() + ended
}

/// However blocks were inlined, what is left after a kernel is one class: a chain has a kernel per segment, not per way to inline.
#[test]
fn different_ways_to_inline_meet() {
    for count in [1, 2, 5, 12] {
        let problem = streams(&maps(count, 4, 136)).unwrap();
        let segments = count * (count + 1) / 2;
        assert_eq!(problem.kernels().count(), segments, "{count}");
        // What is left of the program when a kernel has begun with some blocks: as many.
        assert_eq!(problem.works.len(), 2 * segments, "{count}");
        assert_eq!(problem.left_out, None);
        let space = space(&problem, &few());
        let states: std::collections::HashSet<_> = space.bottom_up().iter().map(|c| *space.state(*c)).collect();
        assert_eq!(states.len(), space.bottom_up().len(), "a state has one class");
        // Each block ends a kernel, or is computed in that of the next.
        assert_eq!(ways(&problem, Point::of(0)), 1 << (count - 1), "{count}");
        println!("{count} maps: {} e-nodes", space.report.nodes);
    }
}

#[test]
fn what_does_not_stream_is_left_to_plain_kernels_with_the_reason() {
    for (source, block, part) in [
        (gather(8, 8), "g", "no bare iterator"),
        (product(8, 8, 8), "C", "nor transpose one buffer"),
        (padded(8, 8), "pad", "no bare iterator"),
        (padded(8, 8), "sum", "a spatial iterator comes after a reduction"),
        (diagonal(8), "sum", "indexes two dimensions of buffer `A`"),
    ] {
        let told = streams(&source).unwrap().plain;
        assert!(told.iter().any(|(b, why)| b == block && why.contains(part)), "{told:?}");
    }
}

#[test]
fn what_is_larger_than_its_accesses_is_left_to_plain_kernels() {
    let part = map("half", 8, 8, "B[vi, vj] = A[vi, vj]");
    let larger = program("A: T.Buffer((8, 8), \"float32\"), B: T.Buffer((8, 16), \"float32\")", &[], &[&part]);
    let told = streams(&larger).unwrap().plain;
    assert!(told[0].1.contains("buffer `B` is larger or smaller than what is accessed"), "{told:?}");
}
