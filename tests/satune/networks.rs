//! Programs as layers of networks are written: normalisations, losses, updates in place. Each by the command, every candidate
//! compiled and executed.
use crate::support::{executed, script};
use serde_json::Value;

/// Numbers of kernels of the best candidate.
fn kernels(report: &Value) -> usize {
    report["candidates"][0]["kernels"].as_array().map_or(0, Vec::len)
}

/// Whether a note says that a block has a plain kernel.
fn plain(report: &Value) -> bool {
    report["notes"].to_string().contains("runs as a plain kernel")
}

/// A nest of a block: `axes` gives kinds and extents, `init` what a sum begins with.
fn nest(name: &str, axes: &[(&str, char, i64)], init: Option<&str>, store: &str) -> String {
    let extents: Vec<String> = axes.iter().map(|(_, _, extent)| extent.to_string()).collect();
    let loops: Vec<String> = axes.iter().map(|(name, ..)| format!("l{name}")).collect();
    let names: Vec<&str> = axes.iter().map(|(name, ..)| *name).collect();
    let kinds: String = axes.iter().map(|(_, kind, _)| *kind).collect();
    let (loops, target) = (loops.join(", "), store.split(" = ").next().unwrap());
    let init = init.map_or(String::new(), |init| format!("        with T.init():\n            {target} = {init}\n"));
    format!(
        "for {loops} in T.grid({},):\n    with T.sblock(\"{name}\"):\n        {}, = T.axis.remap(\"{kinds}\", [{loops}])\n{init}        {store}\n",
        extents.join(", "),
        names.join(", "),
    )
}

/// Rows of two axes, of which 28 and 33 divide by no number of threads: what each thread holds of a row is one number.
#[test]
fn rows_of_two_axes_are_held_in_registers() {
    for (rows, columns) in [([32, 28], 28), ([20, 3], 33)] {
        let [c, h] = rows;
        let axes = |kind| [("c", 'S', c), ("h", kind, h), ("w", kind, columns)];
        let body = format!(
            "m = T.sblock_alloc_buffer(({c},), \"float32\")\n{}{}",
            nest("mean", &axes('R'), Some("T.float32(0)"), "m[c] = m[c] + X[c, h, w]"),
            nest("norm", &axes('S'), None, "Y[c, h, w] = X[c, h, w] - m[c]"),
        );
        let shape = format!("{c}, {h}, {columns}");
        let report = executed(&script(&format!("X: {shape} float32; Y: {shape} float32"), &body), "a100", 8);
        assert_eq!(kernels(&report), 1, "{report}");
    }
}

/// Groups of channels, said by an index of parts or by a quotient: all of it is one kernel.
#[test]
fn groups_of_channels_are_rows() {
    let axes = |kind| [("n", 'S', 2), ("g", 'S', 8), ("c", kind, 4), ("p", kind, 49)];
    let value = "X[n, g * 4 + c, p] - s[n, g] / T.float32(196)";
    let zero = Some("T.float32(0)");
    let body = format!(
        "s = T.sblock_alloc_buffer((2, 8), \"float32\")\nq = T.sblock_alloc_buffer((2, 8), \"float32\")\n{}{}{}",
        nest("sum", &axes('R'), zero, "s[n, g] = s[n, g] + X[n, g * 4 + c, p]"),
        nest("var", &axes('R'), zero, &format!("q[n, g] = q[n, g] + ({value}) * ({value})")),
        nest(
            "norm",
            &[("n", 'S', 2), ("k", 'S', 32), ("p", 'S', 49)],
            None,
            "Y[n, k, p] = (X[n, k, p] - s[n, k // 4] / T.float32(196)) * T.rsqrt(q[n, k // 4] / T.float32(196) + T.float32(1e-5)) * G[k]",
        ),
    );
    let report = executed(&script("X: 2, 32, 49 float32; G: 32, float32; Y: 2, 32, 49 float32", &body), "h200", 8);
    assert_eq!(kernels(&report), 1, "{report}");
    // Where the parts lie within rows of threads, whole rows and parts are accessed by kernels of their own.
    let body = format!(
        "s = T.sblock_alloc_buffer((2, 16), \"float32\")\n{}{}",
        nest(
            "sum",
            &[("n", 'S', 2), ("g", 'S', 16), ("p", 'R', 60), ("c", 'R', 4)],
            zero,
            "s[n, g] = s[n, g] + X[n, p, g * 4 + c]"
        ),
        nest("norm", &[("n", 'S', 2), ("p", 'S', 60), ("k", 'S', 64)], None, "Y[n, p, k] = X[n, p, k] - s[n, k // 4]"),
    );
    executed(&script("X: 2, 60, 64 float32; Y: 2, 60, 64 float32", &body), "t4", 4);
}

/// A loss reads what rows are reduced of at an index from data: the small program of the check keeps all that it may read.
#[test]
fn a_loss_gathers_from_what_rows_are_reduced_of() {
    let row = |kind| [("i", 'S', 128), ("k", kind, 1000)];
    let body = format!(
        "m = T.sblock_alloc_buffer((128,), \"float32\")\n{}{}",
        nest("max", &row('R'), Some("T.min_value(\"float32\")"), "m[i] = T.max(m[i], X[i, k])"),
        nest("loss", &[("i", 'S', 128)], None, "Y[i] = m[i] - X[i, L[i]]"),
    );
    executed(&script("X: 128, 1000 float32; L: 128, int32; Y: 128, float32", &body), "h200", 8);
}

#[test]
fn bools_are_reduced_by_threads() {
    for (init, update) in [
        ("T.bool(False)", "Y[i] = T.max(Y[i], M[i, k])"),
        ("T.bool(False)", "Y[i] = Y[i] or M[i, k]"),
        ("T.bool(True)", "Y[i] = M[i, k] and Y[i]"),
    ] {
        let body = nest("any", &[("i", 'S', 100), ("k", 'R', 300)], Some(init), update);
        let report = executed(&script("M: 100, 300 bool; Y: 100, bool", &body), "l4", 4);
        assert!(!plain(&report), "{update}: {report}");
    }
}

/// What only the last block updates keeps no block before it from its schedules, and is not copied.
#[test(slow)]
fn updates_in_place_leave_the_blocks_before_as_they_are() {
    let square = |kind| [("i", 'S', 129), ("j", kind, 256)];
    let zero = Some("T.float32(0)");
    let body = format!(
        "m = T.sblock_alloc_buffer((129,), \"float32\")\n{}{}{}{}",
        nest("add", &square('S'), None, "R[i, j] = R[i, j] + X[i, j]"),
        nest("mean", &square('R'), zero, "m[i] = m[i] + R[i, j]"),
        nest("norm", &square('S'), None, "Y[i, j] = R[i, j] - m[i]"),
        nest("running", &[("i", 'S', 129)], None, "V[i] = V[i] * T.float32(0.9) + m[i]"),
    );
    let params = "X: 129, 256 float32; R: 129, 256 float32; V: 129, float32; Y: 129, 256 float32";
    let report = executed(&script(params, &body), "h200", 4);
    assert!(!plain(&report) && !report["program"].to_string().contains("add_before"), "{report}");
    // A product into what the caller put there has the product's tiles, and a kernel that adds.
    let product =
        nest("C", &[("i", 'S', 200), ("j", 'S', 136), ("k", 'R', 96)], None, "C[i, j] = C[i, j] + A[i, k] * B[k, j]");
    let params = "A: 200, 96 float32; B: 96, 136 float32; C: 200, 136 float32";
    for gpu in ["h200", "v100"] {
        let report = executed(&script(params, &product), gpu, 4);
        assert!(!plain(&report) && kernels(&report) == 2, "{report}");
    }
}

/// Of two large results those elements are expected that were executed, and no others.
#[test]
fn two_large_results_of_a_block_are_checked_in_parts() {
    let both = "A[i, j] = X[i, j] * T.float32(2)\n        B[i, j] = X[i, j] + T.float32(1)";
    let body = nest("two", &[("i", 'S', 8192), ("j", 'S', 8192)], None, both);
    executed(&script("X: 8192, 8192 float32; A: 8192, 8192 float32; B: 8192, 8192 float32", &body), "h200", 2);
}
