//! Programs of several blocks with products among them: each product has a kernel with tiles, under the schedules of its own space,
//! and what surrounds it is scheduled as ever.
use crate::support::{executed, kernels, some_of, NO_LIMIT};
use satune::explore::{Report, Request};
use satune::lower::program::LowerOptions;
use satune::progress::Quiet;
use satune::source;
use satune::streaming::{reduced, StreamProblem};
use satune_extract::Descriptor;
use satune_ir::term::stream::{FlatPlan, KernelPlan, StreamPlan, TiledPlan};
use satune_ir::term::tensor::WgmmaPlan;
use satune_ir::term::Schedule;
use satune_ir::tvmscript;
use satune_rewrites::space::Fuel;

/// A program with parameters `(name, shape)` in f32, and buffers in between.
fn script(params: &[(&str, &str)], between: &[(&str, &str)], nests: &[String]) -> String {
    let params: Vec<String> = params.iter().map(|(n, s)| format!("{n}: T.Buffer(({s}), \"float32\")")).collect();
    let between = between.iter().map(|(n, s)| format!("    {n} = T.sblock_alloc_buffer(({s}), \"float32\")\n"));
    format!(
        "from tvm.script import tirx as T\n\n@T.prim_func(s_tir=True)\ndef main({}):\n{}{}",
        params.join(", "),
        between.collect::<String>(),
        nests.concat()
    )
}

/// `C[i, j] = sum over k of A[i, k] * B[..]`, of `m` by `n` by `k`; `b` is B's index.
fn product([a, b, c]: [&str; 3], at: &str, extents: [i64; 3]) -> String {
    sum(c, &format!("{a}[vi, vk] * {b}[{at}]"), extents)
}

/// `C[i, j] = sum over k of value`, in f32, of `m` by `n` by `k`.
fn sum(c: &str, value: &str, [m, n, k]: [i64; 3]) -> String {
    format!(
        "    for i, j, k in T.grid({m}, {n}, {k}):
        with T.sblock(\"{c}\"):
            vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
            with T.init():
                {c}[vi, vj] = T.float32(0)
            {c}[vi, vj] = {c}[vi, vj] + {value}
"
    )
}

/// A map of `m` by `n`.
fn map(name: &str, store: &str, value: &str, [m, n]: [i64; 2]) -> String {
    format!(
        "    for i, j in T.grid({m}, {n}):
        with T.sblock(\"{name}\"):
            vi, vj = T.axis.remap(\"SS\", [i, j])
            {store} = {value}
"
    )
}

/// Explores a program; nothing is refused on the way. What is left is compiled and executed, where asked: then by the command.
fn explored(text: &str, gpu: &str, compile: bool) -> Report {
    if compile {
        return serde_json::from_value(executed(text, gpu, 3)).unwrap();
    }
    let work = source::work_of_script("several.py", text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let gpu = Descriptor::load(gpu).unwrap();
    let request = Request { gpu, top: 3, twins: false, limit: NO_LIMIT, compile: false, fuel: Fuel::default() };
    let report = work.explore_on(&request, None, &Quiet).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert!(report.bugs.is_empty() && !report.candidates.is_empty(), "{:?}\n{text}", report.bugs);
    report
}

/// Names of the blocks that the best candidate has in kernels with tiles.
fn tiled(report: &Report) -> Vec<String> {
    let Schedule::Stream(plan) = &report.candidates[0].plan else { panic!("{:?}", report.candidates[0].plan) };
    let of = |kernel: &KernelPlan| match kernel {
        KernelPlan::Tiled(tiled) => tiled.blocks.clone(),
        _ => Vec::new(),
    };
    plan.kernels.iter().flat_map(of).collect()
}

fn two_products([m, n, k, l]: [i64; 4]) -> String {
    let shape = |a: i64, b: i64| format!("{a}, {b}");
    script(
        &[("A", &shape(m, k)), ("B", &shape(n, k)), ("D", &shape(n, l)), ("E", &shape(m, l))],
        &[("C", &shape(m, n))],
        &[product(["A", "B", "C"], "vj, vk", [m, n, k]), product(["C", "D", "E"], "vk, vj", [m, l, n])],
    )
}

#[test(slow)]
fn two_products_in_a_row_have_tiles() {
    let report = explored(&two_products([256, 256, 64, 64]), "h200", true);
    assert_eq!(tiled(&report), ["C", "E"]);
    assert!(report.proved_optimal && report.untiled.is_empty());
    // Ragged, and on a GPU without asynchronous copies.
    for (gpu, extents) in some_of([("t4", [33, 70, 35, 18]), ("a100", [100, 50, 130, 20]), ("h200", [5, 3, 1, 2])], 1) {
        explored(&two_products(extents), gpu, false);
    }
}

#[test(slow)]
fn gated_products_share_their_search_and_the_second_one_reads_the_first() {
    let (n, shape) = (256, "256, 256");
    let text = script(
        &[("X", shape), ("W", shape), ("U", shape), ("O", shape)],
        &[("G", shape), ("H", shape)],
        &[
            product(["X", "W", "G"], "vj, vk", [n; 3]),
            product(["X", "U", "H"], "vj, vk", [n; 3]),
            map("O", "O[vi, vj]", "G[vi, vj] * T.sigmoid(G[vi, vj]) * H[vi, vj]", [n, n]),
        ],
    );
    let report = explored(&text, "h200", true);
    assert_eq!(tiled(&report), ["G", "H", "O"]);
    assert_eq!(kernels(&executed(&text, "h200", 1)), 2);
}

/// The map of a gated pair in 16 bits is computed where the second product's sums are, on all tensor cores, also over an edge.
#[test(slow)]
fn what_comes_after_a_product_reads_what_other_kernels_make() {
    for (gpu, [m, n, k]) in some_of(
        [
            ("a100", [512, 768, 512]),
            ("h200", [640, 512, 256]),
            ("t4", [500, 392, 264]),
            ("v100", [512, 1024, 512]),
            ("b200", [1024; 3]),
        ],
        2,
    ) {
        let sum = |to: &str, of: &str| {
            format!(
                "    for i, j, k in T.grid({m}, {n}, {k}):
        with T.sblock(\"{to}\"):
            vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
            with T.init():
                {to}[vi, vj] = T.float32(0)
            {to}[vi, vj] = {to}[vi, vj] + T.Cast(\"float32\", X[vi, vk]) * T.Cast(\"float32\", {of}[vj, vk])
"
            )
        };
        let text = format!(
            "from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def main(X: T.Buffer(({m}, {k}), \"float16\"), W: T.Buffer(({n}, {k}), \"float16\"), U: T.Buffer(({n}, {k}), \"float16\"), O: T.Buffer(({m}, {n}), \"float16\")):
    G = T.sblock_alloc_buffer(({m}, {n}), \"float32\")
    S = T.sblock_alloc_buffer(({m}, {n}), \"float16\")
    H = T.sblock_alloc_buffer(({m}, {n}), \"float32\")
    R = T.sblock_alloc_buffer(({m}, {n}), \"float16\")
{}{}{}{}{}",
            sum("G", "W"),
            map("S", "S[vi, vj]", "T.Cast(\"float16\", G[vi, vj] * T.sigmoid(G[vi, vj]))", [m, n]),
            sum("H", "U"),
            map("R", "R[vi, vj]", "T.Cast(\"float16\", H[vi, vj])", [m, n]),
            map("O", "O[vi, vj]", "S[vi, vj] * R[vi, vj]", [m, n]),
        );
        let report = executed(&text, gpu, 4);
        assert_eq!(kernels(&report), 2, "{gpu}: {report}");
        let schedule = report["candidates"][0]["schedule"].to_string();
        assert!(schedule.contains("H + R + O") || schedule.contains("H + O"), "{gpu}: {schedule}");
    }
}

#[test(slow)]
fn a_product_is_a_result_beside_what_is_made_of_it() {
    // Smaller ones are as fast without tiles, where threads share the sums.
    let (n, shape) = (256, "256, 256");
    let product = || product(["A", "B", "C"], "vk, vj", [n; 3]);
    let operands = [("A", shape), ("B", shape)];
    let with = |more: &[(&'static str, &'static str)]| [&operands[..], more].concat();
    let relu = "T.max(C[vi, vj], T.float32(0))";
    // A second result; a result that lies across; a reduction of the product's rows.
    let second = script(&with(&[("C", shape), ("D", shape)]), &[], &[product(), map("D", "D[vi, vj]", relu, [n, n])]);
    let across = script(&with(&[("D", shape)]), &[("C", shape)], &[product(), map("D", "D[vj, vi]", relu, [n, n])]);
    let largest = "    for i, j in T.grid(256, 256):
        with T.sblock(\"M\"):
            vi, vj = T.axis.remap(\"SR\", [i, j])
            with T.init():
                M[vi] = T.min_value(\"float32\")
            M[vi] = T.max(M[vi], C[vi, vj])
";
    let rows = script(
        &with(&[("D", shape)]),
        &[("C", shape), ("M", "256,")],
        &[product(), largest.into(), map("D", "D[vi, vj]", "C[vi, vj] - M[vi]", [n, n])],
    );
    for text in some_of([second, across, rows], 1) {
        assert_eq!(tiled(&explored(&text, "h200", true)), ["C"], "{text}");
    }
}

#[test]
fn one_value_for_all_results_is_read_by_the_products_own_kernel() {
    let text = script(
        &[("A", "64, 64"), ("B", "64, 64"), ("s", "1,"), ("D", "64, 64")],
        &[("C", "64, 64")],
        &[product(["A", "B", "C"], "vk, vj", [64; 3]), map("D", "D[vi, vj]", "C[vi, vj] * s[0]", [64, 64])],
    );
    let report = explored(&text, "h200", true);
    assert!(matches!(report.candidates[0].plan, Schedule::Cores(_)), "{:?}", report.candidates[0].plan);
}

#[test]
fn what_is_read_again_without_tiles_is_not_called_proved() {
    // Three factors: no contraction of two operands.
    let text = script(
        &[("A", "64, 64"), ("B", "64, 64"), ("C", "64, 64"), ("D", "64, 64")],
        &[],
        &["    for i, j, k in T.grid(64, 64, 64):
        with T.sblock(\"D\"):
            vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
            with T.init():
                D[vi, vj] = T.float32(0)
            D[vi, vj] = D[vi, vj] + A[vi, vk] * B[vk, vj] * C[vi, vj]
"
        .into()],
    );
    assert_eq!(explored(&text, "h200", false).untiled, ["D"]);
    let sums = explored(
        &script(
            &[("A", "64, 64"), ("D", "64,")],
            &[],
            &["    for i, k in T.grid(64, 64):
        with T.sblock(\"D\"):
            vi, vk = T.axis.remap(\"SR\", [i, k])
            with T.init():
                D[vi] = T.float32(0)
            D[vi] = D[vi] + A[vi, vk]
"
            .into()],
        ),
        "h200",
        false,
    );
    assert!(sums.untiled.is_empty());
}

/// `C[h, i, j] = sum of A[.., k] * B[.., j]`, and after it what is in `last`.
fn of_heads(a: &str, b: &str, last: &[String]) -> Report {
    let product = format!(
        "    for h, i, j, k in T.grid(4, 16, 32, 32):
        with T.sblock(\"C\"):
            vh, vi, vj, vk = T.axis.remap(\"SSSR\", [h, i, j, k])
            with T.init():
                C[vh, vi, vj] = T.float32(0)
            C[vh, vi, vj] = C[vh, vi, vj] + A[{a}] * B[{b}]
"
    );
    let shape = |at: &str| at.replace("vh", "4").replace("vi", "16").replace("vj", "32").replace("vk", "32");
    let (a, b, c) = (shape(a), shape(b), "4, 16, 32");
    let result = if last.is_empty() { ("C", c) } else { ("D", "4, 16") };
    let between = if last.is_empty() { &[][..] } else { &[("C", c)] };
    explored(&script(&[("A", &a), ("B", &b), result], between, &[&[product], last].concat()), "h200", false)
}

/// Sums of the squares of its rows.
const SQUARES: &str = "    for h, i, k in T.grid(4, 16, 32):
        with T.sblock(\"D\"):
            vh, vi, vk = T.axis.remap(\"SSR\", [h, i, k])
            with T.init():
                D[vh, vi] = T.float32(0)
            D[vh, vi] = D[vh, vi] + C[vh, vi, vk] * C[vh, vi, vk]
";

#[test]
fn axes_that_have_no_tiles_are_named() {
    let named = |report: &Report| report.notes.iter().any(|n| n.contains("one value of vh at a time"));
    for last in [vec![], vec![SQUARES.to_string()]] {
        // h and i do not lie side by side in A.
        let further = of_heads("vi, vh, vk", "vk, vj", &last);
        assert!(further.untiled == ["C"] && named(&further), "{:?} {:?}", further.untiled, further.notes);
        // Of a batch nothing is read again.
        let batch = of_heads("vh, vi, vk", "vh, vk, vj", &last);
        assert!(batch.untiled.is_empty() && !named(&batch), "{:?} {:?}", batch.untiled, batch.notes);
    }
}

#[test]
fn neighbouring_axes_are_one() {
    for (last, result) in [(vec![], "C: T.Buffer((64, 32)"), (vec![SQUARES.to_string()], "D: T.Buffer((64,)")] {
        let whole = of_heads("vh, vi, vk", "vk, vj", &last);
        assert!(whole.untiled.is_empty(), "{:?}", whole.notes);
        for part in ["A: T.Buffer((64, 32)", result] {
            assert!(whole.program.contains(part), "{part}\n{}", whole.program);
        }
        assert!(whole.bugs.is_empty(), "{:?}", whole.bugs);
    }
}

/// A layer on a batch of sequences: factors of 16 bits, and something of another type that is added per column.
pub fn layer(half: &str, bias: &str) -> String {
    activated(half, bias, "T.max(X, T.float32(0))")
}

/// The same with a function of X, the sum and what is added to it.
fn activated(half: &str, bias: &str, value: &str) -> String {
    let x = "(C[vb, vi, vj] + T.Cast(\"float32\", bias[vj]))";
    let value = value.replace('X', x);
    format!(
        "@T.prim_func(s_tir=True)
def main(A: T.Buffer((4, 24, 64), \"{half}\"), W: T.Buffer((48, 64), \"{half}\"), bias: T.Buffer((48,), \"{bias}\"), D: T.Buffer((4, \
         24, 48), \"{half}\")):
    C = T.sblock_alloc_buffer((4, 24, 48), \"float32\")
    for b, i, j, k in T.grid(4, 24, 48, 64):
        with T.sblock(\"C\"):
            vb, vi, vj, vk = T.axis.remap(\"SSSR\", [b, i, j, k])
            with T.init():
                C[vb, vi, vj] = T.float32(0)
            C[vb, vi, vj] = C[vb, vi, vj] + T.Cast(\"float32\", A[vb, vi, vk]) * T.Cast(\"float32\", W[vj, vk])
    for b, i, j in T.grid(4, 24, 48):
        with T.sblock(\"D\"):
            vb, vi, vj = T.axis.remap(\"SSS\", [b, i, j])
            D[vb, vi, vj] = T.Cast(\"{half}\", {value})
"
    )
}

#[test(slow)]
fn layers_on_batches_of_sequences_are_for_tensor_cores() {
    for (bias, gpu) in some_of([("float32", "h200"), ("bfloat16", "a100"), ("float32", "t4")], 1) {
        let report = explored(&layer("float16", bias), gpu, true);
        let on_tensor_cores = report.candidates.iter().filter(|c| !matches!(c.plan, Schedule::Cores(_))).count();
        assert!(on_tensor_cores > 0 && report.untiled.is_empty(), "{bias} on {gpu}: {:?}", report.notes);
    }
}

#[test(slow)]
fn epilogues_of_any_arithmetic_are_for_tensor_cores() {
    let values = [
        ("h200", "X * T.float32(0.5) * (T.float32(1) + T.erf(X * T.float32(0.70710677)))"),
        ("a100", "T.max(X, T.float32(0)) - T.exp(T.min(X, T.float32(0))) / T.float32(3)"),
        ("t4", "T.Cast(\"float32\", T.Cast(\"float16\", X)) / (T.abs(X) + T.float32(1))"),
    ];
    for (gpu, value) in some_of(values, 1) {
        let report = explored(&activated("float16", "float32", value), gpu, true);
        let on_tensor_cores = report.candidates.iter().filter(|c| !matches!(c.plan, Schedule::Cores(_))).count();
        assert!(on_tensor_cores > 0 && report.untiled.is_empty(), "{value} on {gpu}: {:?}", report.notes);
    }
}

#[test(slow)]
fn what_tensor_cores_could_multiply_is_not_called_proved_on_single_threads() {
    let said = |report: &Report, gpu: &str| {
        let note = report.notes.iter().any(|n| n.contains("on single threads alone"));
        assert_eq!(note, !report.untiled.is_empty(), "{gpu}: {:?} {:?}", report.untiled, report.notes);
        note
    };
    // Their kernels add no doubles; a T4 does not multiply bfloat16.
    let cases = [
        ("float16", "float64", "h200", true),
        ("float16", "float32", "h200", false),
        ("bfloat16", "float64", "t4", false),
    ];
    for (half, bias, gpu, single) in some_of(cases, 1) {
        assert_eq!(said(&explored(&layer(half, bias), gpu, false), gpu), single, "{half}, {bias} on {gpu}");
    }
}

/// `D = f(A * B)`, `G = D * E` of 16-bit factors.
fn two_of_16_bits(half: &str, [m, n, k, l]: [i64; 4]) -> String {
    let sums = |c: &str, [a, b]: [&str; 2], extents: [i64; 3]| {
        let factor = |name: &str, row: &str| format!("T.Cast(\"float32\", {name}[{row}, vk])");
        sum(c, &format!("{} * {}", factor(a, "vi"), factor(b, "vj")), extents)
    };
    let rounded = |value: &str| format!("T.Cast(\"{half}\", {value})");
    format!(
        "@T.prim_func(s_tir=True)
def main(A: T.Buffer(({m}, {k}), \"{half}\"), B: T.Buffer(({n}, {k}), \"{half}\"), E: T.Buffer(({l}, {n}), \"{half}\"), G: T.Buffer(({m}, {l}), \"{half}\")):
    C = T.sblock_alloc_buffer(({m}, {n}), \"float32\")
    D = T.sblock_alloc_buffer(({m}, {n}), \"{half}\")
    F = T.sblock_alloc_buffer(({m}, {l}), \"float32\")
{}{}{}{}",
        sums("C", ["A", "B"], [m, n, k]),
        map("D", "D[vi, vj]", &rounded("T.max(C[vi, vj], T.float32(0))"), [m, n]),
        sums("F", ["D", "E"], [m, l, n]),
        map("G", "G[vi, vj]", &rounded("F[vi, vj] * T.float32(0.25)"), [m, l]),
    )
}

/// The schedules of the best candidate's kernels that are contractions.
fn schedules(report: &Report) -> Vec<Schedule> {
    let Schedule::Stream(plan) = &report.candidates[0].plan else { panic!("{:?}", report.candidates[0].plan) };
    let of = |kernel: &KernelPlan| match kernel {
        KernelPlan::Tiled(tiled) => Some(tiled.plan.clone()),
        _ => None,
    };
    plan.kernels.iter().filter_map(of).collect()
}

/// Each product in its own kernel, whole tiles and tiles over the edge.
#[test(slow)]
fn products_beside_other_blocks_are_multiplied_on_tensor_cores() {
    let cases = [("bfloat16", "h200", [256, 256, 128, 256], false), ("bfloat16", "a100", [264, 200, 136, 104], true)];
    for (half, gpu, extents, execute) in some_of(cases, 1) {
        let report = explored(&two_of_16_bits(half, extents), gpu, execute);
        let found = schedules(&report);
        let on_tensor_cores = found.iter().all(|s| matches!(s, Schedule::Mma(_) | Schedule::Wgmma(_)));
        assert!(
            found.len() == 2 && on_tensor_cores && report.untiled.is_empty(),
            "{gpu}: {found:?} {:?}",
            report.notes
        );
    }
}

/// A padded matrix is a block of one name: where two products read it, none of them pads it. Where they have to, there are single
/// threads, or rows, and that is not called the best.
#[test(slow)]
fn products_that_read_one_matrix_do_not_pad_it() {
    for (extents, whole) in some_of([([512, 128, 128, 256], true), ([200, 136, 136, 40], false)], 1) {
        let text = two_of_16_bits("bfloat16", extents).replace("D[vi, vk]", "A[vi, vk]");
        // What the first makes is a result beside that of the second.
        let made = format!("D = T.sblock_alloc_buffer(({}, {}), \"bfloat16\")\n    ", extents[0], extents[1]);
        let text = text.replace(&made, "").replace(
            "G: T.Buffer",
            &format!("D: T.Buffer(({}, {}), \"bfloat16\"), G: T.Buffer", extents[0], extents[1]),
        );
        let report = explored(&text, "a100", false);
        let tiles = schedules(&report);
        let on_tensor_cores = !tiles.is_empty() && tiles.iter().all(|s| matches!(s, Schedule::Mma(_)));
        assert_eq!((on_tensor_cores, report.proved_optimal), (whole, whole), "{:?}", report.candidates[0].plan);
    }
}

/// The operands of a product of halves in memory of their own, with longer rows: as they are, or with zeros beyond the edge of k and n, of which
/// the result has what it wants. On a small problem blocks that copy may be as large as what they copy.
#[test(slow)]
fn copies_before_a_product_are_kernels_or_inlined() {
    let half = |text: String| text.replace("float32", "float16");
    let sums = |a: &str, b: &str, c: &str, extents: [i64; 3]| {
        let value = format!("T.Cast(\"float32\", {a}[vi, vk]) * T.Cast(\"float32\", {b}[vk, vj])");
        sum(c, &value, extents)
    };
    let program = |params: &str, made: &[(&str, &str, &str)], nests: &[String]| {
        let made = made.iter().map(|(n, s, t)| format!("    {n} = T.sblock_alloc_buffer(({s}), \"{t}\")\n"));
        format!(
            "from tvm.script import tirx as T\n\n@T.prim_func(s_tir=True)\ndef main({params}):\n{}{}",
            made.collect::<String>(),
            nests.concat()
        )
    };
    let params =
        "A: T.Buffer((130, 93), \"float16\"), B: T.Buffer((93, 71), \"float16\"), C: T.Buffer((130, 71), \"float32\")";
    let longer = program(
        params,
        &[("P", "130, 96", "float16"), ("Q", "93, 72", "float16")],
        &[
            half(map("P", "P[vi, vj]", "A[vi, vj]", [130, 93])),
            half(map("Q", "Q[vi, vj]", "B[vi, vj]", [93, 71])),
            sums("P", "Q", "C", [130, 71, 93]),
        ],
    );
    let zero = |e: &str, within: &str| format!("T.if_then_else({within}, {e}, T.float16(0))");
    let padded = program(
        params,
        &[("P", "130, 96", "float16"), ("Q", "96, 72", "float16"), ("R", "130, 72", "float32")],
        &[
            half(map("P", "P[vi, vj]", &zero("A[vi, vj]", "vj < 93"), [130, 96])),
            half(map("Q", "Q[vi, vj]", &zero("B[vi, vj]", "vi < 93 and vj < 71"), [96, 72])),
            sums("P", "Q", "R", [130, 72, 96]),
            map("C", "C[vi, vj]", "R[vi, vj]", [130, 71]),
        ],
    );
    for (text, gpu) in some_of([(&longer, "a100"), (&longer, "h200"), (&padded, "a100"), (&padded, "h200")], 2) {
        explored(text, gpu, false);
    }
}

/// Clusters are whole on the smaller program that is simulated, whatever another kernel wants of the axis, and where tiles hang
/// over the edge.
#[test]
fn clusters_are_whole_where_another_kernel_wants_more_of_their_axis() {
    let body = "
for b, i, j, k in T.grid(1, 1024, 11008, 4096):
    with T.sblock(\"C\"):
        vb, vi, vj, vk = T.axis.remap(\"SSSR\", [b, i, j, k])
        with T.init():
            C[vb, vi, vj] = T.float16(0)
        C[vb, vi, vj] = C[vb, vi, vj] + A[vb, vi, vk] * W[vj, vk]
for b, i, j in T.grid(1, 1024, 11008):
    with T.sblock(\"D\"):
        vb, vi, vj = T.axis.remap(\"SSS\", [b, i, j])
        D[vb, vi, vj] = C[vb, vi, vj] * G[vb, vi, vj]
";
    let parameters =
        "A: 1, 1024, 4096 float16; W: 11008, 4096 float16; C: 1, 1024, 11008 float16; G: 1, 1024, 11008 float16; \
                      D: 1, 1024, 11008 float16";
    let program = tvmscript::parse(&crate::support::script(parameters, body)).unwrap();
    let problem = StreamProblem::of_program("clusters", program).unwrap();
    let name = |name: &str| vec![name.to_string()];
    for cluster in [[1, 2], [2, 1], [1, 4]] {
        let product = WgmmaPlan { cluster, blocks: Some(132), ..WgmmaPlan::plain([256, 192, 64], 2, 3) };
        let kernels = vec![
            KernelPlan::Tiled(Box::new(TiledPlan { blocks: name("C"), plan: Schedule::Wgmma(product) })),
            KernelPlan::Flat(FlatPlan { blocks: name("D"), side_by_side: 1, steps: 8, threads: 64, vector: 4 }),
        ];
        let plan = StreamPlan { inlined: Vec::new(), parts: 1, cascaded: false, kernels };
        let made = reduced(&problem.program, &plan, &problem.streams, &LowerOptions::default());
        let made = made.unwrap_or_else(|e| panic!("{cluster:?}: {e}")).made;
        assert_eq!(made.module.kernels[0].cluster, cluster[0] * cluster[1], "{cluster:?}");
    }
}

/// The end of a residual block: a convolution, and one of single pixels beside it, which reads the same image. The sum of both is computed
/// where the second one's sums are; on few pixels each reads its matrices as it does on all.
#[test(slow)]
fn a_shortcut_beside_a_convolution_is_added_in_its_kernel() {
    for (gpu, [n, h, c]) in some_of([("h200", [8, 28, 128]), ("a100", [8, 28, 128]), ("v100", [4, 28, 128])], 1) {
        let p = h + 2;
        let text = format!(
            "from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def main(X: T.Buffer(({n}, {h}, {h}, {c}), \"float16\"), W: T.Buffer((3, 3, {c}, {c}), \"float16\"), V: T.Buffer(({c}, {c}), \"float16\"), Y: T.Buffer(({n}, {h}, {h}, {c}), \"float16\")):
    P = T.sblock_alloc_buffer(({n}, {p}, {p}, {c}), \"float16\")
    C = T.sblock_alloc_buffer(({n}, {h}, {h}, {c}), \"float32\")
    S = T.sblock_alloc_buffer(({n}, {h}, {h}, {c}), \"float32\")
    for b, i, j, k in T.grid({n}, {p}, {p}, {c}):
        with T.sblock(\"P\"):
            vb, vi, vj, vk = T.axis.remap(\"SSSS\", [b, i, j, k])
            P[vb, vi, vj, vk] = T.if_then_else(1 <= vi and vi < {0} and 1 <= vj and vj < {0}, X[vb, vi - 1, vj - 1, vk], T.float16(0))
    for b, i, j, o, y, x, k in T.grid({n}, {h}, {h}, {c}, 3, 3, {c}):
        with T.sblock(\"C\"):
            vb, vi, vj, vo, vy, vx, vk = T.axis.remap(\"SSSSRRR\", [b, i, j, o, y, x, k])
            with T.init():
                C[vb, vi, vj, vo] = T.float32(0)
            C[vb, vi, vj, vo] = C[vb, vi, vj, vo] + T.Cast(\"float32\", P[vb, vi + vy, vj + vx, vk]) * T.Cast(\"float32\", W[vy, vx, vk, vo])
    for b, i, j, o, k in T.grid({n}, {h}, {h}, {c}, {c}):
        with T.sblock(\"S\"):
            vb, vi, vj, vo, vk = T.axis.remap(\"SSSSR\", [b, i, j, o, k])
            with T.init():
                S[vb, vi, vj, vo] = T.float32(0)
            S[vb, vi, vj, vo] = S[vb, vi, vj, vo] + T.Cast(\"float32\", X[vb, vi, vj, vk]) * T.Cast(\"float32\", V[vk, vo])
    for b, i, j, o in T.grid({n}, {h}, {h}, {c}):
        with T.sblock(\"Y\"):
            vb, vi, vj, vo = T.axis.remap(\"SSSS\", [b, i, j, o])
            Y[vb, vi, vj, vo] = T.Cast(\"float16\", T.max(C[vb, vi, vj, vo] + S[vb, vi, vj, vo], T.float32(0)))
",
            h + 1
        );
        let report = executed(&text, gpu, 2);
        assert_eq!(kernels(&report), 2, "{gpu}: {report}");
    }
}
