//! Sums that no kernel of rows takes, which the threads of a plain kernel share; and rows over several iterators, which vectors read.
use crate::support::{executed, h200, samples, script, seed};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use satune::scheduled;
use satune_extract::{Counts, Descriptor};
use satune_ir::term::stream::{KernelPlan, PlainPlan, StreamPlan, StreamTerm};
use satune_ir::{interp, tvmscript};
use satune_rewrites::space::stream::{rules, streams, trace, StreamMenu};
use satune_rewrites::space::{explored, saturate, Fuel};
use std::collections::BTreeSet;
use std::process::Command;

/// A sum: its iterators by kind and extent, where it begins, and the value that `SUM` becomes.
pub fn sum(name: &str, axes: &[(char, i64)], [to, init, value]: [&str; 3]) -> String {
    let list = |of: &dyn Fn(usize) -> String| (0..axes.len()).map(of).collect::<Vec<_>>().join(", ");
    let kinds: String = axes.iter().map(|(kind, _)| *kind).collect();
    format!(
        "for {} in T.grid({}):
    with T.sblock(\"{name}\"):
        {} = T.axis.remap(\"{kinds}\", [{}])
        with T.init():
            {to} = {init}
        {to} = {}
",
        list(&|i| format!("i{i}")),
        list(&|i| axes[i].1.to_string()),
        list(&|i| format!("v{i}")),
        list(&|i| format!("i{i}")),
        value.replace("SUM", to)
    )
}

/// A map: its axes, what it writes, and the value.
fn map(name: &str, axes: &[i64], [to, value]: [&str; 2]) -> String {
    let list = |of: &dyn Fn(usize) -> String| (0..axes.len()).map(of).collect::<Vec<_>>().join(", ");
    format!(
        "for {} in T.grid({}):\n    with T.sblock(\"{name}\"):\n        {} = T.axis.remap(\"{}\", [{}])\n        {to} = {value}\n",
        list(&|i| format!("i{i}")),
        list(&|i| axes[i].to_string()),
        list(&|i| format!("v{i}")),
        "S".repeat(axes.len()),
        list(&|i| format!("i{i}")),
    )
}

/// Sums over what lies across and along memory, at indices from data, and over packed weights.
fn programs(rng: &mut StdRng) -> Vec<(&'static str, String)> {
    let mut any = |list: &[i64]| *list.choose(rng).unwrap();
    let (m, n, k) = (any(&[3, 7, 16]), any(&[33, 64, 130]), any(&[40, 64, 100, 257]));
    let words = any(&[8, 12]);
    let packed = 8 * words;
    vec![
        (
            "columns",
            script(
                &format!("A: {k}, {n} float32; C: {n}, float32"),
                &sum("C", &[('S', n), ('R', k)], ["C[v0]", "T.float32(0)", "SUM + A[v1, v0]"]),
            ),
        ),
        (
            "the largest of a middle axis",
            script(
                &format!("A: {m}, {k}, {n} float32; C: {m}, {n} float32"),
                &sum(
                    "C",
                    &[('S', m), ('S', n), ('R', k)],
                    ["C[v0, v1]", "T.float32(-1000)", "T.max(SUM, A[v0, v2, v1])"],
                ),
            ),
        ),
        (
            "rows by number",
            script(
                &format!("A: {n}, {k} float32; R: {m}, int32; X: {k}, float32; C: {m}, float32"),
                &sum(
                    "C",
                    &[('S', m), ('R', k)],
                    ["C[v0]", "T.float32(2)", &format!("SUM + A[T.max(T.min(R[v0], {}), 0), v1] * X[v1]", n - 1)],
                ),
            ),
        ),
        (
            "packed weights across",
            script(
                &format!("W: {words}, {n} uint32; X: {packed}, float32; C: {n}, float32"),
                &sum(
                    "C",
                    &[('S', n), ('R', packed)],
                    [
                        "C[v0]",
                        "T.float32(0)",
                        "SUM + X[v1] * T.Cast(\"float32\", W[v1 // 8, v0] >> T.Cast(\"uint32\", v1 % 8 * 4) & T.uint32(15))",
                    ],
                ),
            ),
        ),
        (
            "two axes with one between",
            script(
                &format!("A: {m}, {n}, {k} float32; C: {n}, float32"),
                &sum("C", &[('S', n), ('R', m), ('R', k)], ["C[v0]", "T.float32(0)", "SUM + A[v1, v0, v2]"]),
            ),
        ),
    ]
}

/// Random schedules of a program that has certain plain kernels: right by interpreter and simulator. What they have is returned.
fn sampled_are_right(what: &str, text: &str, keeps: &dyn Fn(&StreamTerm) -> bool, rng: &mut StdRng) -> Vec<PlainPlan> {
    let limits = satune::explore::limits(&Descriptor::load("h200").unwrap());
    let program = explored(&tvmscript::parse(text).unwrap());
    let problem = streams(&program).unwrap_or_else(|e| panic!("{what}: {e}"));
    let space = saturate(&problem, limits, &StreamMenu::default(), &rules::all(), Fuel::default()).unwrap();
    let space = space.restricted(&|_, node| keeps(node));
    let counts = Counts::of(&space);
    let mut out = Vec::new();
    for i in 0..samples(4) {
        let plan = StreamPlan::from_term(&counts.sample(&space, rng).unwrap(), &problem).unwrap();
        let told = || plan.describe().join("\n");
        let made = scheduled::of_trace(&program, trace(&plan, &problem).unwrap(), &h200())
            .unwrap_or_else(|e| panic!("{what}: {e}\n{}\n{text}", told()));
        if let Err(difference) = interp::equal_on(&program, &made.program, i as u64) {
            panic!("{what}: {difference}\n{}\n{}", told(), tvmscript::print(&made.program));
        }
        scheduled::check(&program, &made, i as u64).unwrap_or_else(|e| panic!("{what}: {e}\n{}", told()));
        out.extend(plan.kernels.into_iter().filter_map(|kernel| match kernel {
            KernelPlan::Plain(plain) => Some(plain),
            _ => None,
        }));
    }
    out
}

#[test]
fn threads_share_sums() {
    let mut rng = StdRng::seed_from_u64(seed());
    let mut ways = BTreeSet::new();
    for (what, text) in programs(&mut rng) {
        let shared = |node: &StreamTerm| !matches!(node, StreamTerm::Plain { sharing: None, .. });
        let plans = sampled_are_right(what, &text, &shared, &mut rng);
        ways.extend(plans.into_iter().filter_map(|plan| plan.sharing.map(|s| s.lanes)));
    }
    assert_eq!(ways.len(), 2, "neighbours share sums, and others do");
}

/// Each of a thread's results has its own sum; what they read lies side by side, is one element for all, or is far apart.
#[test]
fn threads_have_several_results() {
    let mut rng = StdRng::seed_from_u64(seed());
    let [h, w, c] = [5, 7, 8].map(|n| n + n % 2 * rng.gen_range(0..3));
    let [ph, pw] = [h + 2, w + 2];
    let window = [('S', 2), ('S', h), ('S', w), ('S', c), ('R', 3), ('R', 3)];
    let padded = format!(
        "T.if_then_else(1 <= v1 and v1 < {} and 1 <= v2 and v2 < {}, A[v0, v1 - 1, v2 - 1, v3], T.float32(0))",
        h + 1,
        w + 1
    );
    for (what, params, body) in [
        (
            "a window around each pixel, and a map of the sums",
            format!("A: 2, {h}, {w}, {c} float32; W: 3, 3, {c} float32; Y: 2, {h}, {w}, {c} float32"),
            format!("P = T.sblock_alloc_buffer((2, {ph}, {pw}, {c}), \"float32\")\nS = T.sblock_alloc_buffer((2, {h}, {w}, {c}), \"float32\")\n")
                + &map("P", &[2, ph, pw, c], ["P[v0, v1, v2, v3]", &padded])
                + &sum("S", &window, ["S[v0, v1, v2, v3]", "T.float32(0)", "SUM + P[v0, v1 + v4, v2 + v5, v3] * W[v4, v5, v3]"])
                + &map("Y", &[2, h, w, c], ["Y[v0, v1, v2, v3]", "T.max(S[v0, v1, v2, v3], T.float32(0))"]),
        ),
        (
            "the largest of windows with a stride, along rows",
            format!("A: 3, {}, {} float16; Y: 3, {h}, {c} float16", 2 * h + 1, 2 * c + 1),
            sum(
                "Y",
                &[('S', 3), ('S', h), ('S', c), ('R', 3), ('R', 3)],
                ["Y[v0, v1, v2]", "T.float16(-1000)", "T.max(SUM, A[v0, v1 * 2 + v3, v2 * 2 + v4])"],
            ),
        ),
        (
            "two halves of a row",
            format!("A: {h}, {} float16; Y: {h}, {c} float16", 2 * c),
            map("Y", &[h, c], ["Y[v0, v1]", &format!("A[v0, v1] * A[v0, v1 + {c}]")]),
        ),
        (
            "one half or the other",
            format!("A: {h}, {} float32; B: {c}, float32; Y: {h}, {} float32", 2 * c, 2 * c),
            map(
                "Y",
                &[h, 2 * c],
                ["Y[v0, v1]", &format!("T.if_then_else(v1 < {c}, A[v0, v1 + {c}] - B[v1], A[v0, v1 - {c}] + B[v1 - {c}])")],
            ),
        ),
        (
            "rows by number",
            format!("A: {h}, {c} float32; N: {w}, int32; Y: {w}, {c} float32"),
            map("Y", &[w, c], ["Y[v0, v1]", &format!("A[T.max(T.min(N[v0], {}), 0), v1]", h - 1)]),
        ),
    ] {
        let several = |node: &StreamTerm| !matches!(node, StreamTerm::Plain { vector: 1, .. });
        let plans = sampled_are_right(what, &script(&params, &body), &several, &mut rng);
        assert!(plans.iter().any(|plan| plan.vector > 1), "{what}: {plans:?}");
    }
}

/// Sums over windows that slide along two loops or one, with a padding, a map before and one after, a stride, holes; and maps of neighbours.
fn windows(rng: &mut StdRng) -> Vec<(&'static str, String)> {
    let n = rng.gen_range(1..3);
    let [h, w, c] = [6, 12, 8].map(|extent| extent + rng.gen_range(0..2) * 2);
    let [ph, pw] = [h + 2, w + 2];
    let inside = format!("1 <= v1 and v1 < {} and 1 <= v2 and v2 < {}", h + 1, w + 1);
    let (long, kernel) = (24 + 4 * rng.gen_range(0..3), rng.gen_range(2..6));
    vec![
        (
            "channels last, with a padding and a map of the sums",
            script(
                &format!("A: {n}, {h}, {w}, {c} float16; W: 3, 3, {c} float16; Y: {n}, {h}, {w}, {c} float16"),
                &(format!("P = T.sblock_alloc_buffer(({n}, {ph}, {pw}, {c}), \"float16\")\nS = T.sblock_alloc_buffer(({n}, {h}, {w}, {c}), \"float32\")\n")
                    + &map("P", &[n, ph, pw, c], ["P[v0, v1, v2, v3]", &format!("T.if_then_else({inside}, A[v0, v1 - 1, v2 - 1, v3], T.float16(0))")])
                    + &sum(
                        "S",
                        &[('S', n), ('S', h), ('S', w), ('S', c), ('R', 3), ('R', 3)],
                        [
                            "S[v0, v1, v2, v3]",
                            "T.float32(0)",
                            "SUM + T.Cast(\"float32\", P[v0, v1 + v4, v2 + v5, v3]) * T.Cast(\"float32\", W[v4, v5, v3])",
                        ],
                    )
                    + &map("Y", &[n, h, w, c], ["Y[v0, v1, v2, v3]", "T.Cast(\"float16\", T.max(S[v0, v1, v2, v3], T.float32(0)))"])),
            ),
        ),
        (
            "channels first, with a padding",
            script(
                &format!("A: {n}, {h}, {w} float32; W: {n}, 3, 3 float32; Y: {n}, {h}, {w} float32"),
                &(format!("P = T.sblock_alloc_buffer(({n}, {ph}, {pw}), \"float32\")\n")
                    + &map("P", &[n, ph, pw], ["P[v0, v1, v2]", &format!("T.if_then_else({inside}, A[v0, v1 - 1, v2 - 1], T.float32(0))")])
                    + &sum(
                        "Y",
                        &[('S', n), ('S', h), ('S', w), ('R', 3), ('R', 3)],
                        ["Y[v0, v1, v2]", "T.float32(0)", "SUM + P[v0, v1 + v3, v2 + v4] * W[v0, v3, v4]"],
                    )),
            ),
        ),
        (
            "the largest of windows with a stride",
            script(
                &format!("A: {}, {}, {c} float16; Y: {h}, {w}, {c} float16", 2 * h + 1, 2 * w + 1),
                &sum(
                    "Y",
                    &[('S', h), ('S', w), ('S', c), ('R', 3), ('R', 3)],
                    ["Y[v0, v1, v2]", "T.float16(-1000)", "T.max(SUM, A[v0 * 2 + v3, v1 * 2 + v4, v2])"],
                ),
            ),
        ),
        (
            "the past of a sequence, gated",
            script(
                &format!("A: {long}, {c} float32; W: {kernel}, {c} float32; Y: {long}, {c} float32"),
                &(format!("P = T.sblock_alloc_buffer(({}, {c}), \"float32\")\nS = T.sblock_alloc_buffer(({long}, {c}), \"float32\")\n", long + kernel - 1)
                    + &map("P", &[long + kernel - 1, c], ["P[v0, v1]", &format!("T.if_then_else({} <= v0, A[v0 - {}, v1], T.float32(0))", kernel - 1, kernel - 1)])
                    + &sum("S", &[('S', long), ('S', c), ('R', kernel)], ["S[v0, v1]", "T.float32(0)", "SUM + P[v0 + v2, v1] * W[v2, v1]"])
                    + &map("Y", &[long, c], ["Y[v0, v1]", "S[v0, v1] * T.sigmoid(S[v0, v1])"])),
            ),
        ),
        (
            "sums of squares, with holes",
            script(
                &format!("A: {}, {} float32; Y: {h}, {w} float32", h + 4, w + 6),
                &(format!("Q = T.sblock_alloc_buffer(({}, {}), \"float32\")\n", h + 4, w + 6)
                    + &map("Q", &[h + 4, w + 6], ["Q[v0, v1]", "A[v0, v1] * A[v0, v1]"])
                    + &sum(
                        "Y",
                        &[('S', h), ('S', w), ('R', 3), ('R', 3)],
                        ["Y[v0, v1]", "T.float32(0)", "SUM + Q[v0 + v2 * 2, v1 + v3 * 3]"],
                    )),
            ),
        ),
        (
            "neighbours of each element",
            script(
                &format!("A: {ph}, {pw} float32; Y: {h}, {w} float32"),
                &map(
                    "Y",
                    &[h, w],
                    ["Y[v0, v1]", "A[v0, v1 + 1] + A[v0 + 2, v1 + 1] + A[v0 + 1, v1] + A[v0 + 1, v1 + 2] - T.float32(4) * A[v0 + 1, v1 + 1]"],
                ),
            ),
        ),
    ]
}

/// Results of a thread along a window read what it holds in registers: a map that it computes itself, or copies.
#[test]
fn threads_have_results_along_windows() {
    let mut rng = StdRng::seed_from_u64(seed());
    let mut before = 0;
    for (what, text) in windows(&mut rng) {
        let slides = |node: &StreamTerm| !matches!(node, StreamTerm::Plain { window: None, .. });
        let plans = sampled_are_right(what, &text, &slides, &mut rng);
        assert!(plans.iter().any(|plan| plan.window.is_some()), "{what}: {plans:?}");
        before += plans.iter().filter(|plan| plan.before.is_some()).count();
    }
    assert!(before > 0, "some compute the map before themselves");
}

/// As a user does: of a convolution of each channel the best kernel computes the padding itself.
#[test]
fn convolutions_of_each_channel_load_an_element_once_for_a_window() {
    let mut rng = StdRng::seed_from_u64(seed());
    let (_, text) = windows(&mut rng).swap_remove(0);
    for gpu in ["h100", "t4"] {
        let report = executed(&text, gpu, 3);
        let schedules = report["candidates"].as_array().unwrap().iter().map(|c| c["schedule"].to_string());
        assert!(schedules.into_iter().any(|s| s.contains("P + S + Y")), "{gpu}: {report}");
    }
}

/// As a user does: compiled, executed, and the best of them shares its sums.
#[test]
fn long_sums_across_memory_are_shared_by_threads() {
    let text = script(
        "A: 4000, 64 float32; C: 64, float32",
        &sum("C", &[('S', 64), ('R', 4000)], ["C[v0]", "T.float32(0)", "SUM + A[v1, v0]"]),
    );
    let report = executed(&text, "h200", 2);
    let first = report["candidates"][0]["schedule"].to_string();
    assert!(first.contains("threads per element"), "{first}");
}

/// A vector lies in one of the innermost rows, whether the threads go through several of them at a time, one, or a part of one.
/// What is no row is added up in parts by many blocks: over differences of neighbours, and over a length that nothing divides.
#[test]
fn few_sums_of_very_many_terms_are_parted() {
    let variation = "SUM + (T.abs(X[v0 + 1, v1] - X[v0, v1]) + T.abs(X[v0, v1 + 1] - X[v0, v1]))";
    let variation = sum("L", &[('R', 255), ('R', 255)], ["L[0]", "T.float32(0)", variation]);
    let steepest = ["L[v0]", "T.float32(-1e30)", "T.max(SUM, X[v0, v1 + 1] - X[v0, v1])"];
    let steepest = sum("L", &[('S', 3), ('R', 30011)], steepest);
    for (params, body) in
        [("X: 256, 256 float32; L: 1, float32", variation), ("X: 3, 30012 float32; L: 3, float32", steepest)]
    {
        let best = &executed(&script(params, &body), "h200", 2)["candidates"][0];
        assert_eq!(best["kernels"].as_array().unwrap().len(), 2, "{body}");
        assert!(best["kernels"][0]["grid"][0].as_u64() > Some(1), "{best}");
    }
}

#[test]
fn rows_over_two_axes_are_read_by_vectors() {
    let mut rng = StdRng::seed_from_u64(seed());
    for (outer, inner) in [(8, 4096), (64, 64), (3, 1000), (5, 1536)] {
        let text = script(
            &format!("A: 2, {outer}, {inner} float32; C: 2, float32"),
            &sum("C", &[('S', 2), ('R', outer), ('R', inner)], ["C[v0]", "T.float32(0)", "SUM + A[v0, v1, v2]"]),
        );
        let wide = |node: &StreamTerm| !matches!(node, StreamTerm::Columns { vector: 1, .. });
        sampled_are_right(&format!("{outer} x {inner}"), &text, &wide, &mut rng);
    }
}

/// Eight weights in an element: a thread loads it once, and what they are multiplied by as a vector.
#[test]
fn packed_rows_are_read_by_vectors() {
    let rows = StdRng::seed_from_u64(seed()).gen_range(33..90);
    let body = sum(
        "C",
        &[('S', rows), ('R', 1024)],
        [
            "C[v0]",
            "T.float32(0)",
            "SUM + X[v1] * (T.Cast(\"float32\", W[v0, v1 // 8] >> T.Cast(\"uint32\", v1 % 8 * 4) & T.uint32(15)) * S[v0, v1 // 32])",
        ],
    );
    let params = format!("W: {rows}, 128 uint32; S: {rows}, 32 float32; X: 1024, float32; C: {rows}, float32");
    let report = executed(&script(&params, &body), "h200", 2);
    let first = report["candidates"][0]["schedule"].to_string();
    assert!(first.contains("accesses of 4"), "{first}");
}

/// A schedule of the program as its author has it, of which another form is explored: `k` as `k_0, k_1`.
#[test]
fn a_schedule_of_the_source_is_put_beside_what_is_explored() {
    let packed = |loops: &str, row: &str| {
        script(
            "W: 64, 32 uint32; X: 256, float32; C: 64, float32",
            &format!(
                "{loops}
        with T.sblock(\"C\"):
            vn = T.axis.spatial(64, {row})
            vk = T.axis.reduce(256, k)
            with T.init():
                C[vn] = T.float32(0)
            C[vn] = C[vn] + X[vk] * T.Cast(\"float32\", W[vn, vk // 8] >> T.Cast(\"uint32\", vk % 8 * 4) & T.uint32(15))
"
            ),
        )
    };
    let source = packed("for n in range(64):\n    for k in range(256):", "n");
    let threads = "for b in T.thread_binding(2, thread=\"blockIdx.x\"):\n    for t, k in T.grid(32, 256):";
    let threads = threads.replace(
        "for t, k in T.grid(32, 256):",
        "for t in T.thread_binding(32, thread=\"threadIdx.x\"):\n      for k in range(256):",
    );
    let scheduled = packed(&threads, "b * 32 + t");
    let folder = tempfile::tempdir().unwrap();
    let [program, given] = [("program.py", source), ("given.py", scheduled)].map(|(name, text)| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    let run = Command::new(env!("CARGO_BIN_EXE_satune"))
        .args(["explore", program.to_str().unwrap(), "--given", given.to_str().unwrap()])
        .args(["--gpu", "h200", "--top", "1", "--json", "--out"])
        .arg(folder.path().join("out"))
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let given = &report["given"];
    assert!(given["refused"].is_null() && given["predicted_ms"].is_number(), "{given}");
    assert_eq!(report["shapes"][0], serde_json::json!([64, 32]), "its caller has the shapes of the source");
}

/// What the model counts of a plain kernel is what its simulated blocks do: a plan by its words, and its program as if by another hand.
fn counted_as_modelled(text: &str, gpu: &str, questions: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let [program, out] = ["program.py", "out"].map(|name| folder.path().join(name));
    std::fs::write(&program, text).unwrap();
    let given = |what: &std::ffi::OsStr| {
        let run = Command::new(env!("CARGO_BIN_EXE_satune"))
            .args(["explore", program.to_str().unwrap(), "--gpu", gpu, "--top", "1", "--no-compile", "--json"])
            .args(["--given".as_ref(), what, "--out".as_ref(), out.as_os_str()])
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
        let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
        report["given"].clone()
    };
    for words in questions {
        let plan = given(words.as_ref());
        let modelled = plan["entry"]["predicted_ms"].as_f64().unwrap_or_else(|| panic!("{words}: {plan}"));
        let scheduled = out.join(plan["entry"]["scheduled"].as_str().unwrap());
        let again = given(scheduled.as_os_str());
        let counted = again["predicted_ms"].as_f64().unwrap_or_else(|| panic!("{words}: {again}"));
        let ratio = modelled / counted;
        println!("{words}: {ratio:.2}");
        assert!((0.7..1.4).contains(&ratio), "{words}: {modelled} ms, and {counted} ms as counted");
    }
}

#[test]
fn plain_kernels_take_the_time_that_their_blocks_take() {
    let body = sum(
        "C",
        &[('S', 16), ('S', 128), ('R', 4096)],
        ["C[v0, v1]", "T.float32(0)", "SUM + T.exp(A[v0, v2]) * B[v0, v2, v1]"],
    );
    let text = script("A: 16, 4096 float32; B: 16, 4096, 128 float32; C: 16, 128 float32", &body);
    let words = ["sharing 64 lanes, threads 4", "sharing 64 lanes, threads 1", "sharing 32, threads 32", "sharing 1"];
    let questions = words.map(|words| format!("parts 1, C: as plain, {words}"));
    counted_as_modelled(&text, "h200", &questions.each_ref().map(String::as_str));
}

/// Windows that neighbours share, a stride, and values beside each other that one access brings.
#[test]
fn plain_kernels_of_windows_take_the_time_that_their_blocks_take() {
    let window = |value: &str| {
        sum(
            "C",
            &[('S', 8), ('S', 54), ('S', 54), ('S', 64), ('R', 3), ('R', 3)],
            ["C[v0, v1, v2, v3]", "T.float16(0)", value],
        )
    };
    for (params, value, questions) in [
        (
            "A: 8, 56, 56, 64 float16; W: 3, 3, 64 float16; C: 8, 54, 54, 64 float16",
            "SUM + A[v0, v1 + v4, v2 + v5, v3] * W[v4, v5, v3]",
            ["as plain, vector 1, threads 256", "as plain, vector 2, threads 64", "as plain, vector 8, threads 32"],
        ),
        (
            "A: 8, 110, 64, 110 float16; W: 3, 3, 64 float16; C: 8, 54, 54, 64 float16",
            "SUM + A[v0, v1 * 2 + v4, v3, v2 * 2 + v5] * W[v4, v5, v3]",
            ["as plain, vector 1, threads 128", "as plain, vector 2, threads 64", "as plain, vector 4, threads 256"],
        ),
    ] {
        counted_as_modelled(&script(params, &window(value)), "a100", &questions);
    }
}

/// The same where a thread computes the padding itself, for windows along either side.
#[test]
fn plain_kernels_that_compute_a_map_take_the_time_that_their_blocks_take() {
    let inside = "2 <= v1 and v1 < 58 and 2 <= v2 and v2 < 58";
    let text = script(
        "A: 8, 56, 56, 64 float16; W: 5, 5, 64 float16; Y: 8, 56, 56, 64 float16",
        &("P = T.sblock_alloc_buffer((8, 60, 60, 64), \"float16\")\n".to_string()
            + &map(
                "P",
                &[8, 60, 60, 64],
                ["P[v0, v1, v2, v3]", &format!("T.if_then_else({inside}, A[v0, v1 - 2, v2 - 2, v3], T.float16(0))")],
            )
            + &sum(
                "Y",
                &[('S', 8), ('S', 56), ('S', 56), ('S', 64), ('R', 5), ('R', 5)],
                ["Y[v0, v1, v2, v3]", "T.float16(0)", "SUM + P[v0, v1 + v4, v2 + v5, v3] * W[v4, v5, v3]"],
            )),
    );
    let words = [
        "window 4 along v2, vector 2, threads 128",
        "window 7 along v1, vector 4, threads 64",
        "window 1, vector 8, threads 64",
    ];
    let questions = words.map(|words| format!("kernels 1, keep P, {words}"));
    counted_as_modelled(&text, "a100", &questions.each_ref().map(String::as_str));
}

/// What is asked of a thread's results is refused with its numbers.
#[test]
fn results_that_a_thread_has_not_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("columns.py");
    for (n, words, why) in [
        (
            128,
            "as plain, vector 4, sharing 32, threads 32",
            "a thread has no 4 neighbouring results of C: threads share a sum, and have one of them",
        ),
        (130, "as plain, vector 4", "4 elements do not divide rows of 130"),
        (128, "as plain, vector 8", "8 elements of C take 32 bytes: an access has 16 bytes at most"),
        (128, "window 4", "a thread has no 4 results of C along"),
    ] {
        let body = sum("C", &[('S', n), ('R', 512)], ["C[v0]", "T.float32(0)", "SUM + A[v1, v0]"]);
        std::fs::write(&program, script(&format!("A: 512, {n} float32; C: {n}, float32"), &body)).unwrap();
        let run = Command::new(env!("CARGO_BIN_EXE_satune"))
            .args(["why-not", program.to_str().unwrap(), words, "--gpu", "h200"])
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
        assert!(told.contains(why), "{words}: {told}");
    }
}
