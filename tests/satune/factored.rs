//! Sums of what is computed of more than two buffers, or of one buffer twice: each side is a block of its own, and the sum has tiles.
use crate::support::{executed, samples, script, seed, some_of};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;

/// A program that combines `f` over k, of extents m, n and k.
fn combined(params: &str, update: &str, [m, n, k]: [i64; 3]) -> String {
    let body = format!(
        "
for i, j, k in T.grid({m}, {n}, {k}):
    with T.sblock(\"C\"):
        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
        with T.init():
            C[vi, vj] = T.float32(0)
        C[vi, vj] = {update}
"
    );
    script(params, &body)
}

fn predicted(report: &Value) -> f64 {
    report["candidates"][0]["predicted_kernel_ms"].as_f64().unwrap()
}

/// Each as large as a product, and about as fast.
#[test(slow)]
fn they_have_the_tiles_of_a_product() {
    let of = |params: &str, update: &str| executed(&combined(params, update, [512, 512, 512]), "h200", 1);
    let product =
        of("A: 512, 512 float32; B: 512, 512 float32; C: 512, 512 float32", "C[vi, vj] + A[vi, vk] * B[vk, vj]");
    let cases = [
        ("A: 512, 512 float32; C: 512, 512 float32", "C[vi, vj] + A[vi, vk] * A[vj, vk]"),
        ("A: 512, 512 float32; C: 512, 512 float32", "C[vi, vj] + A[vk, vi] * A[vk, vj]"),
        (
            "A: 512, 512 float32; B: 512, 512 int8; s: 512, float32; C: 512, 512 float32",
            "C[vi, vj] + A[vi, vk] * (T.Cast(\"float32\", B[vj, vk]) * s[vj])",
        ),
        (
            "A: 512, 512 float32; s: 512, float32; B: 512, 512 float32; C: 512, 512 float32",
            "C[vi, vj] + T.exp(A[vi, vk] - s[vi]) * B[vk, vj]",
        ),
        (
            "A: 512, 512 float32; B: 512, 512 float32; C: 512, 512 float32",
            "C[vi, vj] + T.Select(vk <= vi, A[vi, vk], T.float32(0)) * B[vk, vj]",
        ),
    ];
    for (params, update) in some_of(cases, 1) {
        let report = of(params, update);
        let (this, other) = (predicted(&report), predicted(&product));
        assert!(this < 1.5 * other, "{update}: {this} ms, a product {other}");
        assert_eq!(report["untiled"].as_array().map_or(0, Vec::len), 0, "{update}");
    }
}

/// Random ones, each by the command, every candidate compiled and executed.
#[test(slow)]
fn random_ones_are_right() {
    let mut rng = StdRng::seed_from_u64(seed());
    for _ in 0..samples(2) {
        let [m, n, k] = [(); 3].map(|()| rng.gen_range(2..=70i64));
        let types = ["float32", "float16", "int8", "bfloat16"];
        let [a, b] = [(); 2].map(|()| *types.choose(&mut rng).unwrap());
        let number = |place: &str| format!("T.Cast(\"float32\", {place})");
        let [x, y] = ["A[vi, vk]", "B[vj, vk]"].map(number);
        let (again, turned) = (number("A[vj, vk]"), number("D[vk, vj]"));
        let updates = [
            format!("C[vi, vj] + {x} * ({y} * s[vj])"),
            format!("C[vi, vj] + {x} * ({y} * t[vk] + s[vj])"),
            format!("T.max(C[vi, vj], T.abs({x} - ({y} + s[vj])))"),
            format!("C[vi, vj] + T.if_then_else(vk <= vi, {x} * r[vi], T.float32(0)) * {turned}"),
            format!("C[vi, vj] + T.max({x} - r[vi], T.float32(0)) * {turned}"),
            format!("C[vi, vj] + {} * {y}", number(&format!("T.Select(vk <= vi + 2, A[vi, vk], T.{a}(0))"))),
            format!("C[vi, vj] + {x} * {again}"),
            format!("C[vi, vj] + T.abs({x} - {again})"),
            format!("C[vi, vj] + ({x} + r[vi]) * ({y} + s[vj])"),
        ];
        let update = updates.choose(&mut rng).unwrap();
        // One matrix twice is square where its rows are both.
        let n = if update.contains(&again) { m } else { n };
        let params = [
            format!("A: {m}, {k} {a}"),
            format!("B: {n}, {k} {b}"),
            format!("D: {k}, {n} {b}"),
            format!("r: {m}, float32"),
            format!("s: {n}, float32"),
            format!("t: {k}, float32"),
        ];
        let read = |param: &&String| update.contains(&format!("{}[", &param[..1]));
        let mut params: Vec<String> = params.iter().filter(read).cloned().collect();
        params.push(format!("C: {m}, {n} float32"));
        let gpu = ["h200", "t4", "v100", "rtx3090"].choose(&mut rng).unwrap();
        executed(&combined(&params.join("; "), update, [m, n, k]), gpu, 2);
    }
}
