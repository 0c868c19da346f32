//! Reductions that use the result of another over the same row: the parts of the later ones use the parts of the first, so that a row
//! is read once (`rebase_reduction`).
use crate::sums::sum;
use crate::support::{executed, h200, samples, script, seed, NO_LIMIT};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::SeedableRng;
use satune::{scheduled, streaming};
use satune_extract::stream::best_stream;
use satune_extract::{Counts, Descriptor, Query};
use satune_ir::term::stream::{StreamPlan, StreamTerm};
use satune_ir::term::Schedule;
use satune_ir::tvmscript;
use satune_rewrites::space::stream::{rules, streams, trace, StreamMenu};
use satune_rewrites::space::{explored, saturate, Fuel};

/// A map: its iterators' extents, and what is stored.
fn map(name: &str, axes: &[i64], store: &str) -> String {
    let list = |of: &dyn Fn(usize) -> String| (0..axes.len()).map(of).collect::<Vec<_>>().join(", ");
    let (loops, extents) = (list(&|i| format!("i{i}")), list(&|i| axes[i].to_string()));
    let header = match axes.len() {
        1 => format!("for i0 in range({extents}):\n    with T.sblock(\"{name}\"):\n        v0 = T.axis.spatial({extents}, i0)"),
        _ => format!(
            "for {loops} in T.grid({extents}):\n    with T.sblock(\"{name}\"):\n        {} = T.axis.remap(\"{}\", [{loops}])",
            list(&|i| format!("v{i}")),
            "S".repeat(axes.len())
        ),
    };
    format!("{header}\n        {store}\n")
}

fn alloc(name: &str, shape: &str) -> String {
    format!("{name} = T.sblock_alloc_buffer(({shape}))\n")
}

const LOWEST: &str = "T.min_value(\"float32\")";

/// The largest element of each row, as M.
fn largest(m: i64, n: i64, value: &str) -> String {
    alloc("M", &format!("{m},")) + &sum("M", &[('S', m), ('R', n)], ["M[v0]", LOWEST, &format!("T.max(SUM, {value})")])
}

/// Programs over rows of so many elements, all of which have cascaded reductions.
fn programs(m: i64, n: i64) -> Vec<(&'static str, String)> {
    let rows = [('S', m), ('R', n)];
    let zero = "T.float32(0)";
    let matrix = format!("A: {m}, {n} float32");
    let with_maximum = |value: &str| {
        largest(m, n, "A[v0, v1]")
            + &alloc("Z", &format!("{m},"))
            + &sum("Z", &rows, ["Z[v0]", zero, &format!("SUM + {value}")])
    };
    let power = "T.exp(A[v0, v1] - M[v0])";
    vec![
        (
            "softmax as topi has it",
            script(
                &format!("{matrix}; B: {m}, {n} float32"),
                &(largest(m, n, "A[v0, v1]")
                    + &alloc("E", &format!("{m}, {n}"))
                    + &alloc("Z", &format!("{m},"))
                    + &map("E", &[m, n], &format!("E[v0, v1] = {power}"))
                    + &sum("Z", &rows, ["Z[v0]", zero, "SUM + E[v0, v1]"])
                    + &map("B", &[m, n], "B[v0, v1] = E[v0, v1] / Z[v0]")),
            ),
        ),
        (
            "cross entropy",
            script(
                &format!("{matrix}; L: {m}, int32; B: {m}, float32"),
                &(with_maximum(power)
                    + &map(
                        "B",
                        &[m],
                        &format!("B[v0] = T.log(Z[v0]) + M[v0] - A[v0, T.max(T.min(L[v0], {}), 0)]", n - 1),
                    )),
            ),
        ),
        (
            "a mean under weights that are powers",
            script(
                &format!("{matrix}; W: {n}, float32; B: {m}, float32"),
                &(with_maximum("T.exp2((A[v0, v1] - M[v0]) * T.float32(0.5))")
                    + &alloc("N", &format!("{m},"))
                    + &sum("N", &rows, ["N[v0]", zero, "SUM + W[v1] * T.exp2((A[v0, v1] - M[v0]) * T.float32(0.5))"])
                    + &map("B", &[m], "B[v0] = N[v0] / Z[v0]")),
            ),
        ),
        (
            "half precision",
            script(
                &format!("A: {m}, {n} float16; B: {m}, float32"),
                &(largest(m, n, "T.Cast(\"float32\", A[v0, v1])")
                    + &alloc("Z", &format!("{m},"))
                    + &sum("Z", &rows, ["Z[v0]", zero, "SUM + T.exp(T.Cast(\"float32\", A[v0, v1]) - M[v0])"])
                    + &map("B", &[m], "B[v0] = M[v0] + T.log(Z[v0])")),
            ),
        ),
        (
            "variance around the mean",
            script(
                &format!("{matrix}; B: {m}, {n} float32"),
                &(alloc("S", &format!("{m},"))
                    + &alloc("Mean", &format!("{m},"))
                    + &alloc("V", &format!("{m},"))
                    + &sum("S", &rows, ["S[v0]", zero, "SUM + A[v0, v1]"])
                    + &map("Mean", &[m], &format!("Mean[v0] = S[v0] / T.float32({n})"))
                    + &sum("V", &rows, ["V[v0]", zero, "SUM + (A[v0, v1] - Mean[v0]) * (A[v0, v1] - Mean[v0])"])
                    + &map(
                        "B",
                        &[m, n],
                        &format!(
                            "B[v0, v1] = (A[v0, v1] - Mean[v0]) * T.rsqrt(V[v0] / T.float32({n}) + T.float32(0.00001))"
                        ),
                    )),
            ),
        ),
    ]
}

#[test]
fn parts_are_reduced_once_and_right() {
    let mut rng = StdRng::seed_from_u64(seed());
    let limits = satune::explore::limits(&Descriptor::load("h200").unwrap());
    let (m, n) = (*[1, 3, 4].choose(&mut rng).unwrap(), *[512, 768, 1040, 2048].choose(&mut rng).unwrap());
    for (what, text) in programs(m, n) {
        let program = explored(&tvmscript::parse(&text).unwrap());
        let problem = streams(&program).unwrap_or_else(|e| panic!("{what}: {e}"));
        let space = saturate(&problem, limits, &StreamMenu::default(), &rules::all(), Fuel::default()).unwrap();
        let whole_or_apart = |node: &StreamTerm| matches!(node, StreamTerm::Parts { parts, .. } if !parts.cascaded);
        let space = space.restricted(&|_, node| !whole_or_apart(node));
        assert!(!space.is_empty(), "{what}: nothing is cascaded");
        let counts = Counts::of(&space);
        for i in 0..samples(4) {
            let plan = StreamPlan::from_term(&counts.sample(&space, &mut rng).unwrap(), &problem).unwrap();
            let told = || plan.describe().join("\n");
            assert!(plan.cascaded && plan.parts > 1, "{what}: {}", told());
            let trace = trace(&plan, &problem).unwrap();
            assert_eq!(trace.beyond_tvm(), Some("rebase_reduction"), "{what}");
            let made = scheduled::of_trace(&program, trace, &h200())
                .unwrap_or_else(|e| panic!("{what}: {e}\n{}\n{text}", told()));
            scheduled::check(&program, &made, i as u64).unwrap_or_else(|e| panic!("{what}: {e}\n{}", told()));
        }
    }
}

/// Rows that have no room beside the threads that read them are read once where reductions are cascaded, and twice where they are not.
#[test]
fn long_rows_are_read_once() {
    let gpu = Descriptor::load("h200").unwrap();
    let query = Query { k: 1, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY };
    for (what, text) in programs(4096, 131_072) {
        let problem = streaming::StreamProblem::of_program("rows", tvmscript::parse(&text).unwrap()).unwrap();
        let space = streaming::space(&problem, &gpu).unwrap();
        let best = best_stream(&space, &gpu, query).candidates.remove(0);
        let Schedule::Stream(plan) = &best.plan else { panic!() };
        assert!(plan.cascaded, "{what}: {}", plan.describe().join("\n"));
        let apart = space.restricted(&|_, node| !matches!(node, StreamTerm::Parts { parts, .. } if parts.cascaded));
        let other = best_stream(&apart, &gpu, query).candidates.remove(0);
        // Of three accesses of each element, or of two, one is left out.
        let fewer = if what.contains("softmax") || what.contains("variance") { 0.8 } else { 0.6 };
        assert!(best.cost.ms < fewer * other.cost.ms, "{what}: {} {}", best.cost.ms, other.cost.ms);
    }
}

/// As a user does: compiled, executed, and the best of them are cascaded.
#[test]
fn few_long_rows_take_two_kernels() {
    for (what, text) in programs(8, 131_072) {
        let report = executed(&text, "h200", 2);
        let first = &report["candidates"][0];
        assert!(first["schedule"].to_string().contains("read once for all"), "{what}: {first}");
        let maps = usize::from(what.contains("softmax") || what.contains("variance"));
        assert_eq!(crate::support::kernels(&report), 2 + maps, "{what}");
    }
}
