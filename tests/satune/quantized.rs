//! Whole numbers that are made of sums, of floats, and by comparing them: what quantized networks compute. Every candidate is
//! compiled, and its text executed.
use crate::support::{executed, samples, seed, some_of};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use satune::explore::Report;
use satune_ir::term::tensor::TileStore;
use satune_ir::term::Schedule;

fn explored(text: &str, gpu: &str) -> Report {
    serde_json::from_value(executed(text, gpu, 3)).unwrap()
}

/// Whether a candidate is one kernel on tensor cores, or that and one that adds parts of sums.
fn on_tensor_cores(report: &Report) -> bool {
    report.candidates.iter().any(|c| matches!(c.plan, Schedule::Mma(_) | Schedule::Wgmma(_)))
}

/// `D = f(A * B^T)`; `maps` are the blocks after the sums: type, and value of `{x}`.
fn product([m, n, k]: [i64; 3], [factor, sum]: [&str; 2], params: &str, maps: &[(&str, String)]) -> String {
    let result = maps.last().unwrap().0;
    let mut text = format!(
        "@T.prim_func(s_tir=True)
def main(A: T.Buffer(({m}, {k}), \"{factor}\"), B: T.Buffer(({n}, {k}), \"{factor}\"), {params}D: T.Buffer(({m}, {n}), \"{result}\")):
    C0 = T.sblock_alloc_buffer(({m}, {n}), \"{sum}\")
"
    );
    for (number, (dtype, _)) in maps.iter().enumerate().take(maps.len() - 1) {
        text += &format!("    C{} = T.sblock_alloc_buffer(({m}, {n}), \"{dtype}\")\n", number + 1);
    }
    text += &format!(
        "    for i, j, k in T.grid({m}, {n}, {k}):
        with T.sblock(\"sums\"):
            vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
            with T.init():
                C0[vi, vj] = T.{sum}(0)
            C0[vi, vj] = C0[vi, vj] + T.Cast(\"{sum}\", A[vi, vk]) * T.Cast(\"{sum}\", B[vj, vk])
"
    );
    for (number, (_, value)) in maps.iter().enumerate() {
        let to = if number + 1 == maps.len() { "D".to_string() } else { format!("C{}", number + 1) };
        let value = value.replace("{x}", &format!("C{number}[vi, vj]"));
        text += &format!(
            "    for i, j in T.grid({m}, {n}):
        with T.sblock(\"map{number}\"):
            vi, vj = T.axis.remap(\"SS\", [i, j])
            {to}[vi, vj] = {value}
"
        );
    }
    text
}

/// A chain of maps by chance after sums of a type, to a result of a type.
fn chain(rng: &mut StdRng, sum: &str, n: i64) -> (String, Vec<(&'static str, String)>) {
    let mut params = String::new();
    let mut read = |name: &str, dtype: &str| {
        let name = format!("{name}{}", params.matches("T.Buffer").count());
        params += &format!("{name}: T.Buffer(({n},), \"{dtype}\"), ");
        format!("{name}[vj]")
    };
    let mut maps: Vec<(&'static str, String)> = Vec::new();
    let whole = sum == "int32";
    if whole && rng.gen() {
        maps.push(("int32", format!("{{x}} + {}", read("bias", "int32"))));
    }
    if whole && rng.gen() {
        let (multiplier, shift) = (read("multiplier", "int32"), read("shift", "int32"));
        maps.push((
            "int32",
            format!("T.q_multiply_shift_per_axis({{x}}, {multiplier}, 0, {shift}, 31, False, True, dtype=\"int32\")"),
        ));
    } else {
        let scaled = format!("T.Cast(\"float32\", {{x}}) * {}", read("scale", "float32"));
        maps.push(("float32", scaled));
        if rng.gen() {
            maps.push(("float32", "T.Select({x} > T.float32(0), {x}, {x} * T.float32(0.125))".into()));
        }
        if rng.gen() {
            let rounded = ["T.round({x})", "T.floor({x})", "{x}"].choose(rng).unwrap();
            maps.push(("int32", format!("T.Cast(\"int32\", {rounded}) + {}", read("zero", "int32"))));
        }
    }
    let last = if maps.last().unwrap().0 == "float32" {
        [
            ("float16", "T.Cast(\"float16\", {x})"),
            ("int8", "T.Cast(\"int8\", T.max(T.min({x}, T.float32(127)), T.float32(-128)))"),
            ("float8_e4m3fn", "T.Cast(\"float8_e4m3fn\", {x})"),
            ("float8_e5m2", "T.Cast(\"float8_e5m2\", {x} * T.float32(0.25))"),
            ("bool", "{x} > T.float32(0.5)"),
        ]
        .choose(rng)
    } else {
        [
            ("int8", "T.Cast(\"int8\", T.max(T.min({x}, 127), -128))"),
            ("uint8", "T.Cast(\"uint8\", T.max(T.min({x}, 255), 0))"),
            ("bool", "{x} < 3"),
            ("int16", "T.Cast(\"int16\", T.shift_right({x}, 3))"),
            ("int32", "T.Select({x} < 0, {x} * 2, {x})"),
            ("float16", "T.Cast(\"float16\", {x})"),
        ]
        .choose(rng)
    };
    let (dtype, value) = last.unwrap();
    maps.push((dtype, (*value).to_string()));
    (params, maps)
}

#[test(slow)]
fn products_are_brought_to_narrow_types_on_tensor_cores() {
    let mut rng = StdRng::seed_from_u64(seed());
    for _ in 0..samples(3) {
        let (gpu, factor) =
            *[("h200", "int8"), ("a100", "int8"), ("t4", "int8"), ("h200", "float16"), ("v100", "float16")]
                .choose(&mut rng)
                .unwrap();
        let sum = if factor == "int8" { "int32" } else { "float32" };
        let extents = *[[64, 96, 64], [61, 50, 48], [33, 40, 80], [96, 144, 64]].choose(&mut rng).unwrap();
        let (params, maps) = chain(&mut rng, sum, extents[1]);
        let text = product(extents, [factor, sum], &params, &maps);
        let report = explored(&text, gpu);
        assert!(on_tensor_cores(&report), "{gpu}: {:?}\n{text}", report.notes);
    }
}

/// Bytes that are made of a large product leave by way of shared memory and the TMA.
#[test(slow)]
fn bytes_leave_by_the_tma() {
    let scaled = "T.Cast(\"float32\", {x}) * scale[vj]".to_string();
    let clipped = "T.Cast(\"int8\", T.max(T.min(T.round({x}), T.float32(127)), T.float32(-128)))".to_string();
    let params = "scale: T.Buffer((2048,), \"float32\"), ";
    let maps = [("float32", scaled), ("int8", clipped)];
    let report = explored(&product([2048, 2048, 1024], ["int8", "int32"], params, &maps), "h200");
    let staged = |plan: &Schedule| matches!(plan, Schedule::Wgmma(plan) if plan.store != TileStore::Direct);
    assert!(staged(&report.candidates[0].plan), "{:?}", report.candidates[0].plan);
}

/// As MetaSchedule tests it: a convolution by one position, with a padding that pads nothing, and iterators of one value.
#[test(slow)]
fn a_quantized_layer_of_a_network_is_on_tensor_cores() {
    let text = "
@T.prim_func(s_tir=True)
def main(X: T.Buffer((2, 7, 7, 64), \"int8\"), W: T.Buffer((48, 1, 1, 64), \"int8\"), bias: T.Buffer((1, 1, 1, 48), \"int32\"), scale: T.Buffer((1, 1, 1, 48), \"int64\"), Y: T.Buffer((2, 7, 7, 48), \"uint8\")):
    P = T.sblock_alloc_buffer((2, 7, 7, 64), \"int8\")
    C = T.sblock_alloc_buffer((2, 7, 7, 48), \"int32\")
    S = T.sblock_alloc_buffer((2, 7, 7, 48), \"int32\")
    for i0, i1, i2, i3 in T.grid(2, 7, 7, 64):
        with T.sblock(\"pad\"):
            v0, v1, v2, v3 = T.axis.remap(\"SSSS\", [i0, i1, i2, i3])
            P[v0, v1, v2, v3] = X[v0, v1, v2, v3]
    for i0, i1, i2, i3, i4, i5, i6 in T.grid(2, 7, 7, 48, 1, 1, 64):
        with T.sblock(\"conv\"):
            nn, yy, xx, ff, ry, rx, rc = T.axis.remap(\"SSSSRRR\", [i0, i1, i2, i3, i4, i5, i6])
            with T.init():
                C[nn, yy, xx, ff] = 0
            C[nn, yy, xx, ff] = C[nn, yy, xx, ff] + T.Cast(\"int32\", P[nn, yy + ry, xx + rx, rc]) * T.Cast(\"int32\", W[ff, ry, rx, rc])
    for i0, i1, i2, i3 in T.grid(2, 7, 7, 48):
        with T.sblock(\"scaled\"):
            v0, v1, v2, v3 = T.axis.remap(\"SSSS\", [i0, i1, i2, i3])
            S[v0, v1, v2, v3] = T.Cast(\"int32\", T.shift_right(T.Cast(\"int64\", C[v0, v1, v2, v3] + bias[0, 0, 0, v3]) * scale[0, 0, 0, v3] + T.int64(64), T.int64(7)))
    for i0, i1, i2, i3 in T.grid(2, 7, 7, 48):
        with T.sblock(\"clipped\"):
            v0, v1, v2, v3 = T.axis.remap(\"SSSS\", [i0, i1, i2, i3])
            Y[v0, v1, v2, v3] = T.Cast(\"uint8\", T.max(T.min(S[v0, v1, v2, v3], 255), 0))
";
    for gpu in some_of(["h200", "a100", "t4"], 1) {
        let report = explored(text, gpu);
        assert!(on_tensor_cores(&report), "{gpu}: {:?}", report.notes);
    }
}

/// What is rounded in another order, or a product and its sum at once, may make another number: it is no error of the kernel.
#[test]
fn maps_and_rows_make_whole_numbers_of_rounded_floats() {
    let block = |name: &str, value: &str| {
        format!(
            "    for i, j in T.grid(96, 160):
        with T.sblock(\"{name}\"):
            vi, vj = T.axis.remap(\"SS\", [i, j])
            {name}[vi, vj] = {value}
"
        )
    };
    let sum = "    for i, j in T.grid(96, 160):
        with T.sblock(\"S\"):
            vi, vj = T.axis.remap(\"SR\", [i, j])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + T.exp(X[vi, vj] * T.float32(0.1))
";
    let clipped = |value: &str| format!("T.Cast(\"int8\", T.max(T.min({value}, T.float32(127)), T.float32(-128)))");
    let scaled = clipped("T.round(X[vi, vj] * s[vj] + z[vj])");
    let shares = clipped("T.round(T.exp(X[vi, vj] * T.float32(0.1)) / S[vi] * T.float32(255))");
    let cases = [
        ("int8", block("Q", &scaled)),
        ("int8", format!("    S = T.sblock_alloc_buffer((96,))\n{sum}{}", block("Q", &shares))),
        (
            "bool",
            format!(
                "    S = T.sblock_alloc_buffer((96,))\n{sum}{}",
                block("Q", "X[vi, vj] * T.float32(160.1) > S[vi] + z[vj]")
            ),
        ),
        (
            "int32",
            format!(
                "    R = T.sblock_alloc_buffer((96, 160), \"int32\")\n{}{}",
                block("R", "T.Cast(\"int32\", T.floor(X[vi, vj] * s[vj] + z[vj]))"),
                block("Q", "T.Select(R[vi, vj] > 3, R[vi, vj] * 5 - 1, T.shift_right(R[vi, vj], 1))"),
            ),
        ),
    ];
    for ((dtype, body), gpu) in some_of(cases, 2).into_iter().zip(["h200", "t4", "a100", "rtx4090"]) {
        let text = format!(
            "@T.prim_func(s_tir=True)
def main(X: T.Buffer((96, 160), \"float32\"), s: T.Buffer((160,), \"float32\"), z: T.Buffer((160,), \"float32\"), Q: T.Buffer((96, 160), \"{dtype}\")):
{body}"
        );
        executed(&text, gpu, 3);
    }
}
