//! Loops as a person writes them, with no block around what they do.
use crate::support::{executed, script, some_of};
use serde_json::Value;

const PRODUCT: &str = "
for i, j in T.grid(96, 80):
    C[i, j] = T.float32(0)
    for k in range(64):
        C[i, j] += A[i, k] * B[k, j]
";
/// The sum is a variable of its own, and what is done with it comes after.
const ACTIVATED: &str = "
acc = T.alloc_buffer((1,), \"float32\", scope=\"local\")
for i, j in T.grid(96, 80):
    acc[0] = T.float32(0)
    for k in range(64):
        acc[0] = acc[0] + A[i, k] * B[k, j]
    C[i, j] = T.max(acc[0], T.float32(0))
";
/// k is the outermost loop.
const OUTER: &str = "
for i in range(96):
    for j in range(80):
        C[i, j] = T.float32(0)
for k in range(64):
    for i, j in T.grid(96, 80):
        C[i, j] += A[i, k] * B[k, j]
";
const SOFTMAX: &str = "
m = T.alloc_buffer((1,), \"float32\", scope=\"local\")
s = T.alloc_buffer((1,), \"float32\", scope=\"local\")
e = T.alloc_buffer((200,), \"float32\", scope=\"local\")
for i in range(96):
    m[0] = T.min_value(\"float32\")
    for j in range(200):
        m[0] = T.max(m[0], X[i, j])
    s[0] = T.float32(0)
    for j in range(200):
        e[j] = T.exp(X[i, j] - m[0])
        s[0] = s[0] + e[j]
    for j in range(200):
        Y[i, j] = e[j] / s[0]
";

/// What the best candidate's kernels are.
fn best(params: &str, body: &str, gpu: &str) -> (Value, Value) {
    let report = executed(&script(params, body), gpu, 2);
    assert_eq!(report["proved_optimal"], true, "{body}: {report}");
    (report["candidates"][0]["plan"].clone(), report["notes"].clone())
}

/// Sums that no loop is around, in a variable of the program's, and of a block's.
const TOTALS: [&str; 2] = [
    "
S = T.alloc_buffer((1,), \"float32\", scope=\"local\")
S[0] = T.float32(0)
for k in range(300):
    S[0] = S[0] + A[k]
B[0] = S[0]
",
    "
with T.sblock(\"total\"):
    S = T.sblock_alloc_buffer((1,), \"float32\")
    S[0] = T.float32(0)
    for k in range(300):
        S[0] = S[0] + A[k]
    B[0] = S[0]
",
];

/// They have the schedules of products and of rows, not one thread an element.
#[test]
fn loops_have_the_schedules_of_blocks() {
    let product = "A: 96, 64 float32; B: 64, 80 float32; C: 96, 80 float32";
    for body in some_of([PRODUCT, ACTIVATED, OUTER], 2) {
        let (plan, notes) = best(product, body, "a100");
        assert!(plan["k_tile"].as_i64().is_some_and(|k| k > 1), "{body}: {plan}");
        assert!(notes.to_string().contains("what they add up is not added up in their order"), "{notes}");
    }
    for body in TOTALS {
        let (plan, _) = best("A: 300, float32; B: 1, float32", body, "t4");
        assert!(plan.to_string().contains("\"side_by_side\""), "{body}: {plan}");
    }
    let (plan, _) = best("X: 96, 200 float32; Y: 96, 200 float32", SOFTMAX, "h200");
    let kernels = plan["kernels"].as_array().unwrap_or_else(|| panic!("{plan}"));
    assert!(kernels.len() == 1 && plan.to_string().contains("\"side_by_side\""), "{plan}");
}

/// A sum of what a condition chooses is none of a block; but each row's is its own, so that rows have threads.
#[test]
fn what_keeps_its_order_has_threads_where_it_can() {
    let body = "
t = T.alloc_buffer((1,), \"float32\", scope=\"local\")
for i in range(70):
    t[0] = T.float32(0)
    for j in range(40):
        if A[i, j] > T.float32(0):
            t[0] = t[0] + A[i, j]
    B[i] = t[0]
";
    let report = executed(&script("A: 70, 40 float32; B: 70, float32", body), "h200", 1);
    assert!(report["notes"].to_string().contains("40 steps in each of 2 x 64 threads"), "{}", report["notes"]);
}
