//! Programs that no other kernels take, as TVM's topi writes them: explored as plain kernels, checked, and told to be plain.
use crate::support::{self, executed, NO_LIMIT};
use satune::explore::Request;
use satune::progress::Quiet;
use satune::source;
use satune_extract::Descriptor;
use satune_rewrites::space::Fuel;

fn script(params: &str, body: &str) -> String {
    let body: String = body.lines().map(|line| format!("    {line}\n")).collect();
    format!("from tvm.script import tirx as T\n\n@T.prim_func(s_tir=True)\ndef main({params}):\n{body}")
}

/// A nest of one block: `axes` names iterators by kind and extent.
fn nest(name: &str, axes: &[(char, i64)], init: Option<&str>, store: &str, target: &str) -> String {
    let extents: Vec<String> = axes.iter().map(|(_, extent)| extent.to_string()).collect();
    let names: Vec<String> = (0..axes.len()).map(|i| format!("i{i}")).collect();
    let (loops, kinds) = (names.join(", "), axes.iter().map(|(kind, _)| *kind).collect::<String>());
    let vars: Vec<String> = (0..axes.len()).map(|i| format!("v{i}")).collect();
    let init = init.map_or_else(String::new, |init| format!("        with T.init():\n            {target} = {init}\n"));
    format!(
        "for {loops} in T.grid({}):\n    with T.sblock(\"{name}\"):\n        {} = T.axis.remap(\"{kinds}\", [{loops}])\n{init}        {target} = {store}\n",
        extents.join(", "),
        vars.join(", ")
    )
}

/// Explores, and returns what is noted.
fn explored(script: &str, gpu: &str) -> Vec<String> {
    let work = source::work_of_script("te.py", script).unwrap_or_else(|e| panic!("{e}\n{script}"));
    let gpu = Descriptor::load(gpu).unwrap();
    let request = Request { gpu, top: 2, twins: true, limit: NO_LIMIT, compile: false, fuel: Fuel::default() };
    let report = work.explore_on(&request, None, &Quiet).unwrap_or_else(|e| panic!("{e}\n{script}"));
    assert!(report.bugs.is_empty() && !report.candidates.is_empty(), "{:?}\n{script}", report.bugs);
    report.notes
}

/// `extents` of batch, input channels, rows and columns; of output channels.
fn transposed([n, ci, h, w]: [i64; 4], co: i64) -> String {
    let dilated = [2 * h - 1, 2 * w - 1];
    let padded = dilated.map(|x| x + 4);
    let out = padded.map(|x| x - 3);
    let params = format!(
        "data: T.Buffer(({n}, {ci}, {h}, {w}), \"float32\"), w: T.Buffer(({ci}, {co}, 4, 4), \"float32\"), out: T.Buffer(({n}, {co}, {}, {}), \"float32\")",
        out[0], out[1]
    );
    let alloc = |name: &str, shape: [i64; 4]| {
        let [a, b, c, d] = shape;
        format!("{name} = T.sblock_alloc_buffer(({a}, {b}, {c}, {d}), \"float32\")\n")
    };
    let spatial = |shape: [i64; 4]| shape.map(|extent| ('S', extent));
    let body = [
        alloc("dilate", [n, ci, dilated[0], dilated[1]]),
        alloc("pad", [n, ci, padded[0], padded[1]]),
        alloc("kernel", [co, ci, 4, 4]),
        nest(
            "dilate",
            &spatial([n, ci, dilated[0], dilated[1]]),
            None,
            "T.if_then_else(v2 % 2 == 0 and v3 % 2 == 0, data[v0, v1, v2 // 2, v3 // 2], T.float32(0))",
            "dilate[v0, v1, v2, v3]",
        ),
        nest(
            "pad",
            &spatial([n, ci, padded[0], padded[1]]),
            None,
            &format!(
                "T.if_then_else(2 <= v2 and v2 < {} and 2 <= v3 and v3 < {}, dilate[v0, v1, v2 - 2, v3 - 2], T.float32(0))",
                dilated[0] + 2,
                dilated[1] + 2
            ),
            "pad[v0, v1, v2, v3]",
        ),
        nest("kernel", &spatial([co, ci, 4, 4]), None, "w[v1, v0, 3 - v2, 3 - v3]", "kernel[v0, v1, v2, v3]"),
        nest(
            "compute",
            &[('S', n), ('S', co), ('S', out[0]), ('S', out[1]), ('R', ci), ('R', 4), ('R', 4)],
            Some("T.float32(0)"),
            "out[v0, v1, v2, v3] + pad[v0, v4, v2 + v5, v3 + v6] * kernel[v1, v4, v5, v6]",
            "out[v0, v1, v2, v3]",
        ),
    ];
    script(&params, &body.concat())
}

#[test(slow)]
fn transposed_convolutions_have_kernels_large_and_small() {
    for (extents, co) in [([1, 3, 5, 6], 2), ([2, 128, 14, 14], 96)] {
        let notes = explored(&transposed(extents, co), "h200");
        assert!(notes.iter().any(|n| n.contains("block dilate runs as a plain kernel")), "{notes:?}");
        assert!(notes.iter().any(|n| n.starts_with("compute is tiled as a contraction")), "{notes:?}");
    }
}

#[test]
fn grouped_and_depthwise_convolutions_have_kernels() {
    let params = "data: T.Buffer((1, 8, 9, 9), \"float32\"), w: T.Buffer((12, 2, 3, 3), \"float32\"), out: T.Buffer((1, 12, 7, 7), \"float32\")";
    let grouped = nest(
        "conv",
        &[('S', 1), ('S', 12), ('S', 7), ('S', 7), ('R', 2), ('R', 3), ('R', 3)],
        Some("T.float32(0)"),
        "out[v0, v1, v2, v3] + data[v0, v1 // 3 * 2 + v4, v2 + v5, v3 + v6] * w[v1, v4, v5, v6]",
        "out[v0, v1, v2, v3]",
    );
    explored(&script(params, &grouped), "a100");
    // The channel last, with a multiplier of one.
    let params = "data: T.Buffer((1, 12, 12, 16), \"float16\"), w: T.Buffer((3, 3, 16, 1), \"float16\"), out: T.Buffer((1, 12, 12, 16), \"float16\")";
    let pad = nest(
        "pad",
        &[('S', 1), ('S', 14), ('S', 14), ('S', 16)],
        None,
        "T.if_then_else(1 <= v1 and v1 < 13 and 1 <= v2 and v2 < 13, data[v0, v1 - 1, v2 - 1, v3], T.float16(0))",
        "padded[v0, v1, v2, v3]",
    );
    let depthwise = nest(
        "depthwise",
        &[('S', 1), ('S', 12), ('S', 12), ('S', 16), ('R', 3), ('R', 3)],
        Some("T.float16(0)"),
        "out[v0, v1, v2, v3] + padded[v0, v1 + v4, v2 + v5, v3 // 1] * w[v4, v5, v3 // 1, v3 % 1]",
        "out[v0, v1, v2, v3]",
    );
    let alloc = "padded = T.sblock_alloc_buffer((1, 14, 14, 16), \"float16\")\n";
    explored(&script(params, &format!("{alloc}{pad}{depthwise}")), "t4");
}

#[test]
fn pooling_totals_and_copies_of_all_kinds_have_kernels() {
    let of = |shape: &str, result: &str| {
        format!("A: T.Buffer(({shape}), \"float32\"), B: T.Buffer(({result}), \"float32\")")
    };
    for (params, body) in [
        (
            of("2, 9, 9", "2, 4, 4"),
            nest(
                "pool",
                &[('S', 2), ('S', 4), ('S', 4), ('R', 3), ('R', 3)],
                Some("T.min_value(\"float32\")"),
                "T.max(B[v0, v1, v2], A[v0, v1 * 2 + v3, v2 * 2 + v4])",
                "B[v0, v1, v2]",
            ),
        ),
        (of("100,", ""), nest("sum", &[('R', 100)], Some("T.float32(0)"), "B[()] + A[v0]", "B[()]")),
        (
            of("4, 100", "8, 50"),
            nest("reshape", &[('S', 8), ('S', 50)], None, "A[v0 // 2, v0 % 2 * 50 + v1]", "B[v0, v1]"),
        ),
        (of("4, 100", "4, 100"), nest("flip", &[('S', 4), ('S', 100)], None, "A[v0, 99 - v1]", "B[v0, v1]")),
    ] {
        explored(&script(&params, &body), "h200");
    }
}

/// Normalisation in place; two buffers change their contents, also by a transposed one, which alone is left to plain kernels; what
/// was made before is made under another name.
#[test]
fn programs_that_write_what_they_read_have_kernels() {
    let square = "A: T.Buffer((24, 40), \"float32\"), B: T.Buffer((24, 40), \"float32\")";
    let map = |name: &str, store: &str, target: &str| nest(name, &[('S', 24), ('S', 40)], None, store, target);
    let sums = nest("sum", &[('S', 24), ('R', 40)], Some("T.float32(0)"), "s[v0] + A[v0, v1]", "s[v0]");
    let normalised =
        ["s = T.sblock_alloc_buffer((24,), \"float32\")\n".into(), sums, map("norm", "A[v0, v1] - s[v0]", "A[v0, v1]")];
    let swap = [
        "t = T.sblock_alloc_buffer((24, 40), \"float32\")\n".into(),
        map("keep", "A[v0, v1]", "t[v0, v1]"),
        map("there", "B[v0, v1]", "A[v0, v1]"),
        map("back", "t[v0, v1]", "B[v0, v1]"),
    ];
    let turned = swap.concat().replacen("(24, 40)", "(40, 24)", 1).replace("t[v0, v1]", "t[v1, v0]");
    let twice = [
        map("first", "A[v0, v1] + T.float32(1)", "B[v0, v1]"),
        map("then", "T.max(B[v0, v1], T.float32(0))", "B[v0, v1]"),
    ];
    let all = [(normalised.concat(), false), (swap.concat(), false), (twice.concat(), false), (turned, true)];
    for (body, plain) in all {
        let notes = explored(&script(square, &body), "h200");
        assert_eq!(notes.iter().any(|n| n.contains("plain kernel")), plain, "{notes:?}");
    }
}

/// Indices and conditions that wrap in their type, or choose, or count bits: their kernels compute them as the program says.
#[test(slow)]
fn indices_are_typed_as_elements_are() {
    let loop_of = |extent: i64, body: &str| {
        let body: String = body.lines().map(|l| format!("        {l}\n")).collect();
        format!(
            "for j in range({extent}):\n    with T.sblock(\"B\"):\n        vj = T.axis.spatial({extent}, j)\n{body}"
        )
    };
    let vector = "A: 300, float32; B: 300, float32";
    for (params, body) in [
        ("A: 256, float32; B: 600, float32", loop_of(600, "B[vj] = A[T.Cast(\"uint8\", vj)]")),
        ("A: 256, float32; B: 600, float32", loop_of(600, "B[vj] = A[T.Cast(\"int32\", T.Cast(\"int8\", vj)) + 128]")),
        (vector, loop_of(300, "B[vj] = A[vj * 100000000 % 300]")),
        (vector, loop_of(300, "B[vj] = A[T.Select(vj < 100, vj, 299 - vj)] + A[T.popcount(vj)] + A[1 << vj % 6]")),
        (
            vector,
            loop_of(
                300,
                "B[vj] = A[T.truncmod(vj - 150, 7) + 50] + A[T.Cast(\"int32\", T.sqrt(T.Cast(\"float32\", vj)))]",
            ),
        ),
        (vector, loop_of(300, "B[vj] = A[T.Cast(\"int32\", T.Cast(\"int64\", vj) * T.int64(5) % T.int64(300))]")),
        (vector, loop_of(300, "B[vj] = T.float32(0)\nif T.Cast(\"int8\", vj) > T.int8(0):\n    B[vj] = A[vj]")),
        ("I: 300, int64; A: 256, float32; B: 300, float32", loop_of(300, "B[vj] = A[T.Cast(\"uint8\", I[vj])]")),
        // Not one element per value: in its order.
        ("A: 600, float32; B: 256, float32", loop_of(600, "B[T.Cast(\"uint8\", vj * 7)] = A[vj]")),
    ] {
        executed(&support::script(params, &body), "h200", 2);
    }
    let (shape, reads) = ("A: 64, 256 float32; B: 64, float32", "B[v0] + A[v0, T.Cast(\"uint8\", v1 * 3)]");
    let sum = nest("sum", &[('S', 64), ('R', 40)], Some("T.float32(0)"), reads, "B[v0]");
    executed(&support::script(shape, &sum), "t4", 2);
    // Where it leaves its buffer it is no program.
    let text = support::script("A: 100, float32; B: 300, float32", &loop_of(300, "B[vj] = A[T.Cast(\"int8\", vj)]"));
    let error = source::work_of_script("wrong.py", &text).unwrap_err().to_string();
    assert!(error.contains("an element of A outside of its shape is accessed: Cast(\"int8\", vj) is "), "{error}");
}

/// A product and a sum of a map, which a compiler fuses: what is then rounded once is right, also where the product alone is none.
#[test]
fn fused_products_are_right() {
    for (dtype, value) in [
        ("float32", "A[v0, v1] * B[v0, v1] + A[v0, v1]"),
        ("float32", "A[v0, v1] + T.float32(0.3) * (B[v0, v1] - A[v0, v1])"),
        ("float64", "A[v0, v1] * B[v0, v1] - B[v0, v1] * T.float64(0.1)"),
    ] {
        let params = format!("A: 37, 53 {dtype}; B: 37, 53 {dtype}; O: 37, 53 {dtype}");
        let text = nest("O", &[('S', 37), ('S', 53)], None, value, "O[v0, v1]");
        executed(&support::script(&params, &text), "h200", 2);
    }
    // Of whole numbers and truth values any order is right, bit for bit.
    for (dtype, init, update) in [
        ("int32", "-1", "B[v0] & A[v0, v1]"),
        ("uint8", "T.uint8(1)", "B[v0] * A[v0, v1]"),
        ("bool", "T.bool(False)", "B[v0] or A[v0, v1]"),
    ] {
        let text = nest("B", &[('S', 24), ('R', 40)], Some(init), update, "B[v0]");
        let report = executed(&support::script(&format!("A: 24, 40 {dtype}; B: 24, {dtype}"), &text), "h200", 1);
        assert_eq!(report["candidates"][0]["simulated"]["agreement"], "exact", "{dtype}");
    }
    // A product whose iterators have the names that TVM gives them.
    let product = nest(
        "O",
        &[('S', 6), ('S', 9), ('R', 7), ('R', 8)],
        Some("T.float32(0)"),
        "O[v0, v1] + A[v0, v2, v3] * B[v3, v2, v1]",
        "O[v0, v1]",
    );
    executed(&support::script("A: 6, 7, 8 float32; B: 8, 7, 9 float32; O: 6, 9 float32", &product), "h200", 1);
}

/// Strides that a row-major array has, of more elements or in another order of dimensions; those that overlap are refused.
#[test]
fn strides_of_arrays_are_taken() {
    let text = |a: &str, b: &str| {
        let matched = |name: &str, of: &str, strides: &str| {
            format!("    {name} = T.match_buffer({of}, (24, 40), \"float32\", strides={strides})\n")
        };
        let body = nest("B", &[('S', 24), ('S', 40)], None, "A[v0, v1] * T.float32(2)", "B[v0, v1]");
        let body: String = body.lines().map(|line| format!("    {line}\n")).collect();
        let head =
            "from tvm.script import tirx as T\n\n@T.prim_func(s_tir=True)\ndef main(a: T.handle, b: T.handle):\n";
        format!("{head}{}{}{body}", matched("A", "a", a), matched("B", "b", b))
    };
    for (a, b) in [("[40, 1]", "[40, 1]"), ("[48, 1]", "[48, 1]"), ("[1, 24]", "[40, 1]"), ("[80, 2]", "[1, 32]")] {
        executed(&text(a, b), "h200", 2);
    }
    let error = source::work_of_script("overlap.py", &text("[0, 1]", "[40, 1]")).unwrap_err().to_string();
    assert!(error.contains("buffer `A` is not a plain row-major array"), "{error}");
}

/// A function that nobody knows has no kernels, and the reason is told.
#[test]
fn what_has_no_kernels_is_refused_with_the_reason() {
    let params = "A: T.Buffer((8, 16), \"float32\"), B: T.Buffer((8, 16), \"float32\")";
    let call = "T.call_extern(\"float32\", \"erfinv\", A[v0, v1])";
    let text = script(params, &nest("inverse", &[('S', 8), ('S', 16)], None, call, "B[v0, v1]"));
    let error = source::work_of_script("inverse.py", &text).unwrap_err().to_string();
    assert!(error.contains("no kernel computes it: block inverse: function"), "{error}");
}

/// As many steps as a choice between two says, as TVM writes pools of which one takes a row more than another; the regions are those
/// that TVM declares.
#[test]
fn pools_of_unequal_sizes_have_kernels() {
    let steps = |v: &str| {
        format!("T.Select(({v} * 13 + 3) % 5 == 0, ({v} * 13 + 13) // 5, ({v} * 13 + 13) // 5 + 1) - {v} * 13 // 5")
    };
    let reads = |v: &str| format!("{v} * 13 // 5:{v} * 13 // 5 + (({v} * 3 % 5 + 13) // 5 + 1)");
    for declared in [true, false] {
        let reads = if declared {
            format!("        T.reads(A[v0, {}, {}])\n", reads("v1"), reads("v2"))
        } else {
            String::new()
        };
        let body = format!(
            "for i0, i1, i2 in T.grid(3, 5, 5):\n    with T.sblock(\"rows\"):\n        v0, v1, v2 = T.axis.remap(\"SSS\", [i0, i1, i2])\n{reads}\
             \u{20}       T.writes(B[v0, v1, v2])\n        for r0, r1 in T.grid({}, {}):\n            with T.sblock(\"pool\"):\n\
             \u{20}               v3, v4 = T.axis.remap(\"RR\", [r0, r1])\n                with T.init():\n                    B[v0, v1, v2] = \
             T.min_value(\"float32\")\n                B[v0, v1, v2] = T.max(B[v0, v1, v2], A[v0, v1 * 13 // 5 + v3, v2 * 13 // 5 + v4])\n",
            steps("v1"),
            steps("v2")
        );
        let params = "A: T.Buffer((3, 13, 13), \"float32\"), B: T.Buffer((3, 5, 5), \"float32\")";
        executed(&script(params, &body), "h100", 1);
    }
}

/// Interpolation of many neighbours, each kept within the image: which of two such places comes first is not known.
#[test]
fn many_reads_at_clamped_places_have_kernels() {
    let place = "T.Cast(\"int32\", T.floor(T.Cast(\"float32\", v0) * T.float32(0.4)))";
    let reads: Vec<String> = (-8..8)
        .map(|shift| format!("A[T.max(T.min({place} + {shift}, 39), 0)] * T.float32({}.5)", shift + 8))
        .collect();
    let body = nest("resize", &[('S', 100)], None, &reads.join(" + "), "B[v0]");
    executed(&script("A: T.Buffer((40,), \"float32\"), B: T.Buffer((100,), \"float32\")", &body), "a100", 1);
}

#[test]
fn functions_have_kernels() {
    let names = "exp exp2 exp10 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid abs \
                 fabs floor ceil round nearbyint trunc";
    let names: Vec<&str> = names.split_whitespace().collect();
    for dtype in ["float32", "float16"] {
        let out = |i: usize| format!("B{i}: T.Buffer((96,), \"{dtype}\")");
        let params: Vec<String> = (0..names.len()).map(out).collect();
        let body: String = names
            .iter()
            .enumerate()
            .map(|(i, name)| nest(name, &[('S', 96)], None, &format!("T.{name}(A[v0])"), &format!("B{i}[v0]")))
            .collect();
        executed(&script(&format!("A: T.Buffer((96,), \"{dtype}\"), {}", params.join(", ")), &body), "h200", 1);
    }
}

/// Threads share a sum whose values are read at computed places.
#[test]
fn sums_of_values_at_computed_places_are_shared() {
    let place = "T.Cast(\"int32\", T.floor(P[v0, v1] * T.float32(4)))";
    let value = format!("S[v0] + A[v0, T.max(T.min({place}, 39), 0)] * P[v0, v1]");
    let body = nest("sum", &[('S', 6), ('R', 700)], Some("T.float32(0)"), &value, "S[v0]");
    let params =
        "A: T.Buffer((6, 40), \"float32\"), P: T.Buffer((6, 700), \"float32\"), S: T.Buffer((6,), \"float32\")";
    let report = executed(&script(params, &body), "a100", 6);
    let candidates = report["candidates"].as_array().unwrap();
    let shared = candidates.iter().filter(|c| c["plan"]["kernels"][0]["Plain"]["sharing"].is_object());
    assert!(shared.count() > 3, "{report}");
}

/// A sum and the map of its results are one kernel: nothing between them is in memory, though maps follow, and one reads more.
#[test]
fn sums_and_the_maps_of_their_results_are_one_kernel() {
    let pool = nest(
        "pool",
        &[('S', 3), ('S', 9), ('S', 9), ('R', 3), ('R', 3)],
        Some("T.float16(0)"),
        "P[v0, v1, v2] + A[v0, v1 * 2 + v3, v2 * 2 + v4]",
        "P[v0, v1, v2]",
    );
    let count = "T.Cast(\"float16\", (T.min(2, 9 - v1) + 1) * (T.min(1, 9 - v2) + 2))";
    let divided =
        nest("divided", &[('S', 3), ('S', 9), ('S', 9)], None, &format!("P[v0, v1, v2] / {count}"), "D[v0, v1, v2]");
    let biased = nest(
        "biased",
        &[('S', 3), ('S', 9), ('S', 9)],
        None,
        "D[v0, v1, v2] * D[v0, v1, v2] + B[v0, v2]",
        "O[v0, v1, v2]",
    );
    let own = "P = T.sblock_alloc_buffer((3, 9, 9), \"float16\")\nD = T.sblock_alloc_buffer((3, 9, 9), \"float16\")\n";
    let params =
        "A: T.Buffer((3, 19, 19), \"float16\"), B: T.Buffer((3, 9), \"float16\"), O: T.Buffer((3, 9, 9), \"float16\")";
    let pools = script(params, &format!("{own}{pool}{divided}{biased}"));
    // Few results of long sums across memory, which threads share.
    let sum = nest("sum", &[('S', 24), ('R', 900)], Some("T.float32(0)"), "S[v0] + A[v1, v0] * A[v1, v0]", "S[v0]");
    let root = nest("root", &[('S', 24)], None, "T.sqrt(S[v0] / T.float32(900))", "O[v0]");
    let params = "A: T.Buffer((900, 24), \"float32\"), O: T.Buffer((24,), \"float32\")";
    let roots = script(params, &format!("S = T.sblock_alloc_buffer((24,), \"float32\")\n{sum}{root}"));
    for (text, gpu, shares) in [(pools, "t4", false), (roots, "h100", true)] {
        let report = executed(&text, gpu, 6);
        assert_eq!(support::kernels(&report), 1, "{report}");
        let best = &report["candidates"][0]["plan"]["kernels"][0]["Plain"];
        assert!(best["map"].is_string() && (best["sharing"].is_object() || !shares), "{best}");
    }
}

/// Sums of one element each, by several loops of one step (a convolution of each channel by itself, of one pixel), have kernels.
#[test]
fn sums_of_one_element_have_kernels() {
    let params = "X: T.Buffer((2, 9, 7, 12), \"float32\"), W: T.Buffer((1, 1, 12), \"float32\"), C: T.Buffer((2, 9, 7, 12), \"float32\")";
    let body = nest(
        "C",
        &[('S', 2), ('S', 9), ('S', 7), ('S', 12), ('R', 1), ('R', 1)],
        Some("T.float32(0)"),
        "C[v0, v1, v2, v3] + X[v0, v1 + v4, v2 + v5, v3] * W[v4, v5, v3]",
        "C[v0, v1, v2, v3]",
    );
    explored(&script(params, &body), "a100");
    let params = "X: T.Buffer((200, 1, 1), \"float32\"), C: T.Buffer((200,), \"float32\")";
    let body = nest("C", &[('S', 200), ('R', 1), ('R', 1)], Some("T.float32(0)"), "C[v0] + X[v0, v1, v2]", "C[v0]");
    explored(&script(params, &body), "h200");
}
