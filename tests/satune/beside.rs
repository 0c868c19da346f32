//! What blocks after a product read beside its sums, on tensor cores: an element for each result, or one for several results, and
//! results whose matrix no memory holds. Random schedules equal the interpreter; what a user explores is executed.
use crate::support::*;
use crate::tensor_space::tensor_only;
use rand::SeedableRng;
use satune::scheduled;
use satune_extract::{Counts, Descriptor};
use satune_ir::term::Schedule;
use satune_ir::tvmscript;
use satune_rewrites::space::contraction;

/// `o = value`, after `c[index] += a * b`.
fn product(iters: &str, [extents, spatial]: [&str; 2], kinds: &str, sum: [&str; 2], value: &str) -> String {
    let [result, factors] = sum;
    let sums = format!("c[{result}]");
    let zero = if factors.contains("int32") { "0" } else { "T.float32(0)" };
    let count = spatial.split(',').count();
    let names: Vec<&str> = iters.split(',').collect();
    let (all, some) = (names.join(", "), names[..count].join(", "));
    let vars = |n: usize| names[..n].iter().map(|name| format!("v{name}")).collect::<Vec<_>>().join(", ");
    format!(
        "c = T.alloc_buffer(({spatial}), \"{}\")
for {all} in T.grid({extents}):
    with T.sblock(\"c\"):
        {} = T.axis.remap(\"{kinds}\", [{all}])
        with T.init():
            {sums} = {zero}
        {sums} = {sums} + {factors}
for {some} in T.grid({spatial}):
    with T.sblock(\"o\"):
        {} = T.axis.remap(\"{}\", [{some}])
        o[{result}] = {}
",
        if zero == "0" { "int32" } else { "float32" },
        vars(names.len()),
        vars(count),
        "S".repeat(count),
        value.replace("SUM", &sums),
    )
}

/// Programs with their parameters, and GPUs for each.
fn programs() -> Vec<(&'static str, String, &'static [&'static str])> {
    let half = |a: &str, b: &str| format!("T.Cast(\"float32\", {a}) * T.Cast(\"float32\", {b})");
    let bytes = |a: &str, b: &str| format!("T.Cast(\"int32\", {a}) * T.Cast(\"int32\", {b})");
    let float = |x: &str| format!("T.Cast(\"float32\", {x})");
    let stored = |x: &str| format!("T.Cast(\"float16\", {x})");
    vec![
        (
            "quantized: a scale per row, one per column, a number for all",
            script(
                "a: 48, 64 int8; b: 72, 64 int8; p: 48 float32; q: 72 float32; z: 1 float32; o: 48, 72 float32",
                &product(
                    "i,j,k",
                    ["48, 72, 64", "48, 72"],
                    "SSR",
                    ["vi, vj", &bytes("a[vi, vk]", "b[vj, vk]")],
                    "T.Cast(\"float32\", SUM) * p[vi] * q[vj] + z[0]",
                ),
            ),
            &["a100", "h200", "t4"],
        ),
        (
            "of a batch: a number per product, a matrix for all of them, a row for each",
            script(
                "a: 3, 40, 64 float16; b: 3, 56, 64 float16; p: 3 float32; q: 40, 56 float32; r: 3, 1, 56 float16; o: 3, 40, 56 float16",
                &product(
                    "g,i,j,k",
                    ["3, 40, 56, 64", "3, 40, 56"],
                    "SSSR",
                    ["vg, vi, vj", &half("a[vg, vi, vk]", "b[vg, vj, vk]")],
                    &stored(&format!("SUM * p[vg] + q[vi, vj] + {}", float("r[vg, 0, vj]"))),
                ),
            ),
            &["a100", "h200", "v100"],
        ),
        (
            "two matrices like the result, one with its rows as columns",
            script(
                "a: 64, 64 bfloat16; b: 64, 64 bfloat16; p: 64, 64 bfloat16; q: 64, 64 float32; r: 64, 64 float32; o: 64, 64 bfloat16",
                &product(
                    "i,j,k",
                    ["64, 64, 64", "64, 64"],
                    "SSR",
                    ["vi, vj", &half("a[vi, vk]", "b[vk, vj]")],
                    &format!("T.Cast(\"bfloat16\", (SUM + {}) * q[vi, vj] - r[vj, vi])", float("p[vi, vj]")),
                ),
            ),
            &["a100", "h200"],
        ),
        (
            "a convolution with a scale per image and channel",
            script(
                "X: 3, 6, 7, 16 float16; W: 3, 3, 16, 24 float16; p: 3, 1, 1, 24 float16; q: 24 float32; o: 3, 4, 5, 24 float16",
                &product(
                    "n,h,w,f,i,j,d",
                    ["3, 4, 5, 24, 3, 3, 16", "3, 4, 5, 24"],
                    "SSSSRRR",
                    ["vn, vh, vw, vf", &half("X[vn, vh + vi, vw + vj, vd]", "W[vi, vj, vd, vf]")],
                    &stored(&format!("SUM * {} + q[vf]", float("p[vn, 0, 0, vf]"))),
                ),
            ),
            &["a100", "v100", "h200"],
        ),
        (
            "channels first, of several images, with a bias and what was there",
            script(
                "X: 2, 16, 6, 10 float16; W: 32, 16, 3, 3 float16; p: 32 float16; q: 2, 32, 4, 8 float16; o: 2, 32, 4, 8 float16",
                &product(
                    "n,f,h,w,d,i,j",
                    ["2, 32, 4, 8, 16, 3, 3", "2, 32, 4, 8"],
                    "SSSSRRR",
                    ["vn, vf, vh, vw", &half("X[vn, vd, vh + vi, vw + vj]", "W[vf, vd, vi, vj]")],
                    &stored(&format!("T.max(SUM + {} + {}, T.float32(0))", float("p[vf]"), float("q[vn, vf, vh, vw]"))),
                ),
            ),
            &["a100", "v100", "t4"],
        ),
        (
            "channels first, rows of an odd number of places",
            script(
                "X: 3, 8, 5, 9 float16; W: 24, 8, 3, 3 float16; p: 3, 24 float32; o: 3, 24, 3, 7 float32",
                &product(
                    "n,f,h,w,d,i,j",
                    ["3, 24, 3, 7, 8, 3, 3", "3, 24, 3, 7"],
                    "SSSSRRR",
                    ["vn, vf, vh, vw", &half("X[vn, vd, vh + vi, vw + vj]", "W[vf, vd, vi, vj]")],
                    "SUM + p[vn, vf]",
                ),
            ),
            &["a100", "v100"],
        ),
        (
            "channels in groups",
            script(
                "X: 2, 6, 6, 3, 16 float16; W: 3, 3, 3, 16, 24 float16; p: 3, 24 float32; o: 2, 4, 4, 3, 24 float16",
                &product(
                    "n,h,w,g,f,i,j,d",
                    ["2, 4, 4, 3, 24, 3, 3, 16", "2, 4, 4, 3, 24"],
                    "SSSSSRRR",
                    ["vn, vh, vw, vg, vf", &half("X[vn, vh + vi, vw + vj, vg, vd]", "W[vg, vi, vj, vd, vf]")],
                    &stored("SUM + p[vg, vf]"),
                ),
            ),
            &["a100", "v100"],
        ),
        (
            "heads beside each other in the result",
            script(
                "a: 4, 48, 32 float16; b: 4, 32, 40 float16; p: 48 float32; o: 48, 4, 40 float16",
                &product(
                    "i,g,j,k",
                    ["48, 4, 40, 32", "48, 4, 40"],
                    "SSSR",
                    ["vi, vg, vj", &half("a[vg, vi, vk]", "b[vg, vk, vj]")],
                    &stored("SUM * p[vi]"),
                ),
            ),
            &["a100", "v100"],
        ),
        (
            "scores of heads between positions and channels",
            script(
                "a: 2, 24, 3, 32 float16; b: 2, 40, 3, 32 float16; p: 3 float32; o: 2, 3, 24, 40 float16",
                &product(
                    "n,g,i,j,k",
                    ["2, 3, 24, 40, 32", "2, 3, 24, 40"],
                    "SSSSR",
                    ["vn, vg, vi, vj", &half("a[vn, vi, vg, vk]", "b[vn, vj, vg, vk]")],
                    &stored("SUM * p[vg]"),
                ),
            ),
            &["a100", "v100"],
        ),
        (
            "a sum over heads and channels",
            script(
                "a: 2, 32, 3, 32 bfloat16; b: 3, 32, 64 bfloat16; p: 64 float32; o: 2, 32, 64 bfloat16",
                &product(
                    "n,i,j,g,k",
                    ["2, 32, 64, 3, 32", "2, 32, 64"],
                    "SSSRR",
                    ["vn, vi, vj", &half("a[vn, vi, vg, vk]", "b[vg, vk, vj]")],
                    "T.Cast(\"bfloat16\", SUM + p[vj])",
                ),
            ),
            &["h200", "a100"],
        ),
    ]
}

#[test]
fn random_schedules_on_tensor_cores_are_right() {
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed());
    for (what, text, gpus) in programs() {
        let program = tvmscript::parse(&text).unwrap();
        let c = contraction(&program).unwrap_or_else(|e| panic!("{what}: {e}"));
        for gpu in gpus {
            let space = tensor_only(&c, &Descriptor::load(gpu).unwrap());
            assert!(!space.is_empty(), "{what}: {gpu}");
            let counts = Counts::of(&space);
            for _ in 0..samples(3) {
                let term = counts.sample(&space, &mut rng).unwrap();
                let plan = Schedule::from_term(&term, &c).unwrap();
                let told = || format!("{what}, {gpu}\n{}", plan.describe().join("\n"));
                let made =
                    scheduled::of_schedule(&program, &plan, &c, &h200()).unwrap_or_else(|e| panic!("{e}\n{}", told()));
                scheduled::check(&program, &made, 3).unwrap_or_else(|e| panic!("{e}\n{}", told()));
            }
        }
    }
}

/// Explored as a user does: every candidate is executed, and the first is on tensor cores, unless the elements of a factor are copied
/// one by one: in so small a program single threads may be as fast.
#[test(slow)]
fn what_is_read_beside_sums_is_explored_on_tensor_cores() {
    for (what, text, gpus) in some_of(programs(), 3) {
        let report = executed(&text, gpus[0], 2);
        assert_eq!(report["untiled"].as_array().map_or(0, Vec::len), 0, "{what}: {}", report["untiled"]);
        let first = report["candidates"][0]["schedule"].to_string();
        assert!(first.contains("mma") || what.starts_with("channels first"), "{what}: {first}");
    }
}

/// Sums that are read in two places have a kernel of their own.
#[test]
fn sums_that_are_read_at_two_places_are_stored() {
    let half = "T.Cast(\"float32\", a[vi, vk]) * T.Cast(\"float32\", b[vk, vj])";
    let text = product("i,j,k", ["64, 64, 32", "64, 64"], "SSR", ["vi, vj", half], "SUM + c[vj, vi]");
    let report = executed(&script("a: 64, 32 float16; b: 32, 64 float16; o: 64, 64 float32", &text), "a100", 1);
    assert_eq!(report["candidates"][0]["kernels"].as_array().map(Vec::len), Some(2));
}
