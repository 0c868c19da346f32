//! Products of what data choose: rows that a list of tokens names, weights of the expert that a group of rows goes to, pages of keys,
//! weights that are numbers of a codebook. The factor is looked up where it is copied, on tensor cores too.
use crate::support::{executed, samples, script, seed, some_of};
use crate::tensor_space::{drawn, on_tensor_cores, right};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use satune::explore::tensor_cores;
use satune_extract::{Counts, Descriptor};
use satune_ir::term::{Axis, Contraction, Schedule, Side};
use satune_ir::{tvmscript, Program};
use satune_rewrites::space::rules::tensor::TensorMenu;
use satune_rewrites::space::{contraction, explored};

/// `C[of the spatial axes] += x * y` in f32; axes with their extents, the last one is summed over.
fn product(params: &str, axes: &[(&str, i64)], place: &str, [x, y]: [&str; 2]) -> String {
    let names: Vec<&str> = axes.iter().map(|(name, _)| *name).collect();
    let extents: Vec<String> = axes.iter().map(|(_, extent)| extent.to_string()).collect();
    let vars: Vec<String> = names.iter().map(|name| format!("v{name}")).collect();
    let kinds = "S".repeat(axes.len() - 1) + "R";
    let body = format!(
        "for {names} in T.grid({extents}):\n    with T.sblock(\"C\"):\n        {vars} = T.axis.remap(\"{kinds}\", [{names}])\n        \
         with T.init():\n            C[{place}] = T.float32(0)\n        C[{place}] = C[{place}] + T.Cast(\"float32\", {x}) * \
         T.Cast(\"float32\", {y})\n",
        names = names.join(", "),
        extents = extents.join(", "),
        vars = vars.join(", "),
    );
    script(params, &body)
}

const IJK: fn([i64; 3]) -> [(&'static str, i64); 3] = |[m, n, k]| [("i", m), ("j", n), ("k", k)];

/// Programs of a number of groups of so many rows, with n columns, and sums of k terms, a multiple of 32.
fn programs([groups, rows, n, k]: [i64; 4]) -> Vec<(&'static str, String)> {
    let m = groups * rows;
    let axes = IJK([m, n, k]);
    let of_expert = format!("W[e[vi // {rows}], vj, vk]");
    let words = format!("W[e[vi // {rows}], vj, vk // 8]");
    let nibble = format!("T.bitwise_and(T.shift_right({words}, T.Cast(\"uint32\", vk % 8 * 4)), T.uint32(15))");
    let of_words = format!("(T.Cast(\"float16\", {nibble}) - T.float16(7)) * S[e[vi // {rows}], vj, vk // 32]");
    vec![
        (
            "rows that a list names",
            product(
                &format!("X: 50, {k} float16; t: {m}, int32; W: {n}, {k} float16; C: {m}, {n} float32"),
                &axes,
                "vi, vj",
                ["X[t[vi], vk]", "W[vj, vk]"],
            ),
        ),
        (
            "an expert for each group",
            product(
                &format!("X: {m}, {k} float16; e: {groups}, int32; W: 6, {n}, {k} float16; C: {m}, {n} float32"),
                &axes,
                "vi, vj",
                ["X[vi, vk]", &of_expert],
            ),
        ),
        (
            "tokens in the order of their experts, several to a token",
            product(
                &format!("X: {m}, {k} float16; s: {m}, int32; e: {groups}, int32; W: 6, {n}, {k} float16; C: {m}, {n} float32"),
                &axes,
                "vi, vj",
                ["X[s[vi] // 2, vk]", &of_expert],
            ),
        ),
        (
            "weights of 4 bits of an expert",
            product(
                &format!(
                    "X: {m}, {k} float16; e: {groups}, int32; W: 6, {n}, {} uint32; S: 6, {n}, {} float16; C: {m}, {n} float32",
                    k / 8,
                    k / 32
                ),
                &axes,
                "vi, vj",
                ["X[vi, vk]", &of_words],
            ),
        ),
        (
            "keys in pages",
            product(
                &format!("Q: {groups}, {rows}, 2, {k} float16; K: 20, 8, 2, {k} float16; p: {groups}, 5 int32; C: {groups}, 2, {rows}, 40 float32"),
                &[("b", groups), ("h", 2), ("r", rows), ("l", 40), ("k", k)],
                "vb, vh, vr, vl",
                ["Q[vb, vr, vh, vk]", "K[p[vb, vl // 8], vl % 8, vh, vk]"],
            ),
        ),
        (
            "numbers of a codebook",
            product(
                &format!("X: {m}, {k} float16; q: {n}, {} uint8; B: 70, 8 float16; C: {m}, {n} float32", k / 8),
                &axes,
                "vi, vj",
                ["X[vi, vk]", "B[T.Cast(\"int32\", q[vj, vk // 8]), vk % 8]"],
            ),
        ),
        (
            "columns in blocks that are not zeros",
            product(
                &format!("X: {m}, 256 float16; c: {}, int32; W: {n}, {k} float16; C: {m}, {n} float32", k / 8),
                &axes,
                "vi, vj",
                ["X[vi, c[vk // 8] * 8 + vk % 8]", "W[vj, vk]"],
            ),
        ),
        (
            "a type narrower than a word",
            product(
                &format!("X: 50, {k} int8; t: {m}, int32; W: {n}, {k} int8; C: {m}, {n} int32"),
                &axes,
                "vi, vj",
                ["X[t[vi], vk]", "W[vj, vk]"],
            )
            .replace("float32(0)", "int32(0)")
            .replace("\"float32\", ", "\"int32\", "),
        ),
    ]
}

fn read(what: &str, text: &str) -> (Program, Contraction) {
    let program = tvmscript::parse(text).unwrap_or_else(|e| panic!("{what}: {e}\n{text}"));
    let program = explored(&program);
    let c = contraction(&program).unwrap_or_else(|e| panic!("{what}: {e}\n{}", tvmscript::print(&program)));
    assert!(c.computes_operands(), "{what}");
    (program, c)
}

#[test]
fn random_schedules_are_right() {
    let mut rng = StdRng::seed_from_u64(seed());
    for (what, text) in programs([3, 16, 40, 96]) {
        let (program, c) = read(what, &text);
        for gpu in ["a100", "t4", "h200"] {
            let plans = drawn(&c, &Descriptor::load(gpu).unwrap(), samples(2), &mut rng);
            assert!(!plans.is_empty(), "{what}: {gpu}");
            for plan in plans {
                right(&program, &c, &plan, &format!("{what}, {gpu}"));
            }
        }
    }
}

/// On Hopper the TMA brings the matrix that an element chooses, to one block or to those of a cluster.
#[test]
fn matrices_that_are_looked_up_are_brought_by_the_tma() {
    let mut rng = StdRng::seed_from_u64(seed());
    let gpu = Descriptor::load("h200").unwrap();
    let [m, n, k] = [64, 96, 160];
    let across = product(
        &format!("X: 3, {m}, {k} float16; e: 3, int32; W: 6, {k}, {n} float16; C: 3, {m}, {n} float32"),
        &[("g", 3), ("i", m), ("j", n), ("k", k)],
        "vg, vi, vj",
        ["X[vg, vi, vk]", "W[e[vg], vk, vj]"],
    );
    let by_groups = programs([2, 64, 72, 192]).swap_remove(1).1;
    for (what, text) in [("along k", by_groups), ("across k", across)] {
        let (program, c) = read(what, &text);
        let computed = c.gathered(Side::B).and_then(|of| of.computed.as_ref()).unwrap();
        assert!(computed.whole_matrices, "{computed:?}");
        let menu = TensorMenu { mma: None, wmma: Vec::new(), ..TensorMenu::of(&c, &tensor_cores(&gpu)) };
        let space = on_tensor_cores(&c, &gpu, menu);
        let counts = Counts::of(&space);
        for _ in 0..samples(4) {
            let plan = Schedule::from_term(&counts.sample(&space, &mut rng).unwrap(), &c).unwrap();
            assert!(matches!(plan, Schedule::Wgmma(_)), "{plan:?}");
            let made = right(&program, &c, &plan, what);
            let notes: Vec<&String> = made.module.kernels.iter().flat_map(|kernel| &kernel.notes).collect();
            let threads = notes.iter().any(|note| note.contains("not copied by the TMA"));
            assert!(!threads, "{what}: {notes:?}\n{}", plan.describe().join("\n"));
        }
    }
}

#[test]
fn random_schedules_on_single_threads_are_right() {
    let mut rng = StdRng::seed_from_u64(seed());
    for (what, text) in some_of(programs([3, 16, 40, 96]), 3) {
        let (program, c) = read(what, &text);
        let space = crate::support::space(&c);
        let counts = Counts::of(&space);
        for _ in 0..samples(4) {
            let plan = Schedule::from_term(&counts.sample(&space, &mut rng).unwrap(), &c).unwrap();
            right(&program, &c, &plan, what);
        }
    }
}

/// What is copied as it is goes by `cp.async`, 16 bytes at a time, and is what memory is read for; the groups of rows are an axis of all
/// three matrices.
#[test]
fn what_is_copied_as_it_is_is_told() {
    let many = programs([3, 16, 40, 96]);
    let of = |name: &str| {
        let (what, text) = many.iter().find(|(what, _)| *what == name).unwrap();
        read(what, text).1
    };
    let rows = of("rows that a list names");
    let computed = rows.gathered(Side::A).and_then(|of| of.computed.as_ref()).unwrap();
    assert!(computed.looked_up && computed.vector == 8, "{computed:?}");
    // 48 of 50 rows of 96 halves, and a number of 32 bits for each.
    let share = (48.0 * 96.0 * 2.0 + 48.0 * 4.0) / (48.0 * 96.0 * 2.0);
    assert!((rows.read_share(Side::A) - share).abs() < 1e-9, "{}", rows.read_share(Side::A));
    let experts = of("an expert for each group");
    assert_eq!([Axis::Batch(0), Axis::M, Axis::N].map(|axis| experts.extent(axis)), [3, 16, 40]);
    let words = of("weights of 4 bits of an expert");
    let computed = words.gathered(Side::B).and_then(|of| of.computed.as_ref()).unwrap();
    assert!(!computed.looked_up && computed.vector == 8, "{computed:?}");
}

/// By the command, every candidate compiled and executed: one kernel, and nothing without tiles.
#[test(slow)]
fn random_ones_are_explored() {
    let mut rng = StdRng::seed_from_u64(seed());
    for _ in 0..samples(2) {
        let [groups, rows] = [rng.gen_range(2..5), *[8, 16, 24, 32].choose(&mut rng).unwrap()];
        let (n, k) = (rng.gen_range(5..100), 32 * rng.gen_range(1..5));
        let many = programs([groups, rows, n, k]);
        let (what, text) = many.choose(&mut rng).unwrap();
        let gpu = ["a100", "h200", "t4"].choose(&mut rng).unwrap();
        let report = executed(text, gpu, 2);
        let first = &report["candidates"][0];
        assert_eq!(first["kernels"].as_array().map(Vec::len), Some(1), "{what}, {gpu}: {first}");
        assert_eq!(report["untiled"].as_array().map_or(0, Vec::len), 0, "{what}, {gpu}");
    }
}
