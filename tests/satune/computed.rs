//! Factors of products on tensor cores that are computed where they are copied: packed weights become numbers, activations lose their
//! negative part, types change, all on the way to shared memory.
use crate::support::{executed, samples, script, seed, some_of};
use crate::tensor_space::{drawn, right, tensor_only};
use rand::SeedableRng;
use satune_extract::{predict, Counts, Descriptor};
use satune_ir::term::{Contraction, Pipe, Schedule, Side};
use satune_ir::tvmscript;
use satune_rewrites::space::contraction;

/// A map of a matrix, or of several.
fn map([buffer, dtype]: [&str; 2], shape: &str, axes: &str, value: &str) -> String {
    let loops: Vec<String> = axes.split(", ").map(|axis| axis.trim_start_matches('v').to_string()).collect();
    format!(
        "{buffer} = T.sblock_alloc_buffer(({shape}), \"{dtype}\")\nfor {loops} in T.grid({shape}):\n    with \
         T.sblock(\"make_{buffer}\"):\n        {axes} = T.axis.remap(\"{kinds}\", [{loops}])\n        {buffer}[{axes}] = {value}\n",
        kinds = "S".repeat(loops.len()),
        loops = loops.join(", "),
    )
}

/// `C[i, j] = sum a * b` in f32.
fn product([m, n, k]: [i64; 3], a: &str, b: &str) -> String {
    format!(
        "for i, j, k in T.grid({m}, {n}, {k}):\n    with T.sblock(\"C\"):\n        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])\n        \
         with T.init():\n            C[vi, vj] = T.float32(0)\n        C[vi, vj] = C[vi, vj] + T.Cast(\"float32\", {a}) * \
         T.Cast(\"float32\", {b})\n"
    )
}

/// Weights of 4 bits, eight to a word along k, with a scale for each 32 of a row.
fn packed([m, n, k]: [i64; 3]) -> String {
    let nibble = "T.bitwise_and(T.shift_right(W[vj, vk // 8], T.Cast(\"uint32\", vk % 8 * 4)), T.uint32(15))";
    let value = format!("(T.Cast(\"float16\", {nibble}) - T.float16(7)) * S[vj, vk // 32]");
    script(
        &format!("W: {n}, {} uint32; S: {n}, {} float16; A: {m}, {k} float16; C: {m}, {n} float32", k / 8, k / 32),
        &(map(["B", "float16"], &format!("{n}, {k}"), "vj, vk", &value)
            + &product([m, n, k], "A[vi, vk]", "B[vj, vk]")),
    )
}

/// Programs, and GPUs with instructions for them.
fn programs() -> Vec<(&'static str, String, &'static [&'static str])> {
    let sizes @ [m, n, k] = [40, 72, 96];
    let bytes = "T.Cast(\"bfloat16\", W[vk, vj]) * T.Cast(\"bfloat16\", Z[vj])";
    vec![
        ("4 bits along k", packed([40, 72, 128]), &["a100", "v100", "t4", "h200"]),
        (
            "bytes across k, and what belongs to a column",
            script(
                &format!("W: {k}, {n} int8; Z: {n}, float32; A: {m}, {k} bfloat16; C: {m}, {n} float32"),
                &(map(["B", "bfloat16"], &format!("{k}, {n}"), "vk, vj", bytes)
                    + &product(sizes, "A[vi, vk]", "B[vk, vj]")),
            ),
            &["a100", "h200"],
        ),
        (
            "activations without their negative part",
            script(
                &format!("A: {m}, {k} float16; B: {k}, {n} float16; C: {m}, {n} float32"),
                &(map(["P", "float16"], &format!("{m}, {k}"), "vi, vk", "T.max(A[vi, vk], T.float16(0))")
                    + &product(sizes, "P[vi, vk]", "B[vk, vj]")),
            ),
            &["a100", "v100", "t4"],
        ),
        (
            "rounded numbers of 32 bits, which a copy takes by four",
            script(
                &format!("A: {m}, {k} bfloat16; W: {n}, {k} float32; C: {m}, {n} float32"),
                &(map(["B", "bfloat16"], &format!("{n}, {k}"), "vj, vk", "T.Cast(\"bfloat16\", W[vj, vk])")
                    + &product(sizes, "A[vi, vk]", "B[vj, vk]")),
            ),
            &["a100"],
        ),
        (
            "an image in which each pixel stands for four",
            script(
                "X: 1, 5, 7, 16 float16; W: 3, 3, 16, 24 float16; C: 1, 8, 12, 24 float32",
                &(map(["U", "float16"], "1, 10, 14, 16", "vn, vh, vw, vc", "X[vn, vh // 2, vw // 2, vc]")
                    + "for n, h, w, co, kh, kw, ci in T.grid(1, 8, 12, 24, 3, 3, 16):\n    with T.sblock(\"C\"):\n        vn, vh, vw, \
                       vco, vkh, vkw, vci = T.axis.remap(\"SSSSRRR\", [n, h, w, co, kh, kw, ci])\n        with T.init():\n            \
                       C[vn, vh, vw, vco] = T.float32(0)\n        C[vn, vh, vw, vco] = C[vn, vh, vw, vco] + T.Cast(\"float32\", U[vn, \
                       vh + vkh, vw + vkw, vci]) * T.Cast(\"float32\", W[vkh, vkw, vci, vco])\n"),
            ),
            &["a100", "t4", "h200"],
        ),
        (
            "both factors",
            script(
                &format!("A: {m}, {k} float16; W: {n}, {k} int8; C: {m}, {n} float32"),
                &(map(["P", "float16"], &format!("{m}, {k}"), "vi, vk", "A[vi, vk] * T.float16(0.5)")
                    + &map(["B", "float16"], &format!("{n}, {k}"), "vj, vk", "T.Cast(\"float16\", W[vj, vk])")
                    + &product(sizes, "P[vi, vk]", "B[vj, vk]")),
            ),
            &["a100", "t4"],
        ),
    ]
}

fn read(what: &str, text: &str) -> (satune_ir::Program, Contraction) {
    let program = tvmscript::parse(text).unwrap_or_else(|e| panic!("{what}: {e}\n{text}"));
    let c = contraction(&program).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(c.computes_operands(), "{what}");
    (program, c)
}

#[test]
fn random_schedules_are_right() {
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed());
    for (what, text, gpus) in programs() {
        let (program, c) = read(what, &text);
        for gpu in gpus {
            let plans = drawn(&c, &Descriptor::load(gpu).unwrap(), samples(4), &mut rng);
            assert_eq!(plans.iter().any(|plan| matches!(plan, Schedule::Wgmma(_))), *gpu == "h200", "{what}");
            for plan in plans {
                // The TMA moves what lies in memory, and nothing else.
                assert!(!matches!(&plan, Schedule::Wgmma(plan) if !plan.by_threads), "{what}: {:?}", plan.describe());
                right(&program, &c, &plan, &format!("{what}, {gpu}"));
            }
        }
    }
}

/// Single threads read, or stage, what is computed as they do what is gathered.
#[test]
fn random_schedules_on_single_threads_are_right() {
    let [m, n, k] = [33, 40, 48];
    let value = "T.Cast(\"float32\", W[vj, vk]) * Z[vj, vk // 16]";
    let text = script(
        &format!("W: {n}, {k} int8; Z: {n}, {} float32; A: {m}, {k} float32; C: {m}, {n} float32", k / 16),
        &(map(["B", "float32"], &format!("{n}, {k}"), "vj, vk", value) + &product([m, n, k], "A[vi, vk]", "B[vj, vk]")),
    );
    let (program, c) = read("bytes with scales", &text);
    let space = crate::support::space(&c);
    let counts = Counts::of(&space);
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed());
    for _ in 0..samples(12) {
        let plan = Schedule::from_term(&counts.sample(&space, &mut rng).unwrap(), &c).unwrap();
        let told = || plan.describe().join("\n");
        let cores = plan.cores().unwrap_or_else(|| panic!("{}", told()));
        assert!(!matches!(cores.pipe, Pipe::Async(_)), "{}", told());
        right(&program, &c, &plan, "bytes with scales");
    }
}

/// Explored as a user does: every candidate is executed, and the first is one kernel, which reads the weights as they are packed.
#[test(slow)]
fn what_is_computed_is_explored_with_its_product() {
    let many = [("many rows", packed([64, 512, 1024]), "a100"), ("few rows", packed([16, 512, 2048]), "h200")];
    for (what, text, gpu) in some_of(many.to_vec(), 1) {
        let report = executed(&text, gpu, 2);
        let first = &report["candidates"][0];
        assert_eq!(first["kernels"].as_array().map(Vec::len), Some(1), "{what}: {first}");
        assert!(first["schedule"].to_string().contains("make_B + C: mma.sync"), "{what}: {}", first["schedule"]);
    }
}

/// What is read of packed weights is what counts in memory: a product with weights of 4 bits takes no longer than one with these as
/// halves, where memory is what binds.
#[test]
fn packed_weights_are_read_as_they_are() {
    let sizes = [16, 4096, 4096];
    let (_, c) = read("packed", &packed(sizes));
    let share = c.read_share(Side::B);
    assert!((share - (0.5 + 2.0 / 32.0) / 2.0).abs() < 1e-9, "{share}");
    let plain = Contraction::gemm(None, sizes, satune_ir::DType::F16, satune_ir::DType::F32, [false, true]);
    let gpu = Descriptor::load("a100").unwrap();
    let best = |c: &Contraction| {
        let space = tensor_only(c, &gpu);
        let query =
            satune_extract::Query { k: 1, diverse: false, limit: crate::support::NO_LIMIT, below_ms: f64::INFINITY };
        let found = satune_extract::best(&space, &gpu, query);
        predict(&found.candidates[0].plan, c, &gpu).unwrap()
    };
    let [packed, halves] = [best(&c), best(&plain)];
    assert!(packed.dram_bytes < 0.35 * halves.dram_bytes, "{} {}", packed.dram_bytes, halves.dram_bytes);
    assert!(packed.ms < 0.8 * halves.ms, "{} {}", packed.ms, halves.ms);
}

#[test]
fn what_is_not_computed_where_it_is_copied_is_said() {
    let whole = packed([40, 72, 128]);
    for (from, to, part) in [
        // An element says where a scale is: before or behind all of them.
        ("S[vj, vk // 32]", "S[vj, T.Cast(\"int32\", W[vj, vk // 8]) - 1]", "it may read outside of buffer `S`"),
        ("S[vj, vk // 32]", "S[vj, T.Cast(\"int32\", W[vj, vk // 8]) + 4]", "it may read outside of buffer `S`"),
        ("S[vj, vk // 32]", "S[vj, 3 - T.Cast(\"int32\", W[vj, vk // 8])]", "it may read outside of buffer `S`"),
        ("B[vj, vk] = (", "B[vj, 127 - vk] = (", "it does not write at its iterators"),
        ("S[vj, vk // 32]", "S[vj, vk // 16]", "it may read outside of buffer `S`"),
    ] {
        assert!(whole.contains(from), "{from}");
        let program = tvmscript::parse(&whole.replace(from, to)).unwrap();
        let told = contraction(&program).unwrap_err().to_string();
        assert!(told.contains(part), "{part}: {told}");
    }
}
