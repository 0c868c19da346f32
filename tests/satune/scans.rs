//! Scans: explored as sums of parts, checked against the source in its order, and told.
use crate::support::{executed, script, some_of};

/// Sums and products of rows, of squares, in columns, and what is done with them: whole parts or not.
#[test]
fn scans_are_explored_as_sums() {
    let rows = |n: i64, begin: &str, next: &str| {
        let body = format!(
            "for i in range(9):\n    B[i, 0] = {begin}\n    for j in range({}):\n        B[i, j + 1] = {next}\n",
            n - 1
        );
        script(&format!("A: 9, {n} float32; B: 9, {n} float32"), &body)
    };
    let columns = "
for t, i in T.grid(2304, 24):
    with T.sblock(\"scan\"):
        vt = T.axis.scan(2304, t)
        vi = T.axis.spatial(24, i)
        B[vt, vi] = T.if_then_else(vt == 0, A[vt, vi], B[vt - 1, vi] + A[vt, vi])
";
    let normalised = "
S = T.sblock_alloc_buffer((9, 160))
for i in range(9):
    S[i, 0] = T.exp(A[i, 0])
    for j in range(159):
        S[i, j + 1] = S[i, j] + T.exp(A[i, j + 1])
for i, j in T.grid(9, 160):
    with T.sblock(\"share\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        B[vi, vj] = S[vi, vj] / S[vi, 159]
";
    let all = [
        (rows(141, "A[i, 0]", "B[i, j] + A[i, j + 1]"), "h200"),
        (rows(2112, "T.float32(0)", "B[i, j] + A[i, j] * A[i, j]"), "a100"),
        (rows(128, "T.float32(1)", "B[i, j] * (T.float32(1) + A[i, j] * T.float32(0.01))"), "t4"),
        (script("A: 2304, 24 float32; B: 2304, 24 float32", columns), "h200"),
        (script("A: 9, 160 float32; B: 9, 160 float32", normalised), "b200"),
    ];
    for (text, gpu) in some_of(all, 3) {
        let report = executed(&text, gpu, 2);
        let notes = report["notes"].to_string();
        assert!(notes.contains("its scans are explored as sums of parts"), "{notes}");
        assert!(!notes.contains("in the order of its statements"), "{notes}");
    }
}
