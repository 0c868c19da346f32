//! Programs that no primitive schedules as they are: scans, scatters, histograms, indices and conditions from data, several
//! nests under one loop. Each has kernels, and these compute what the statements do in their order.
use crate::support::{executed, samples, script, seed, some_of};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use satune::source;
use serde_json::Value;

/// Explores a program; what is left is compiled and executed.
fn explored(text: &str, gpu: &str) -> Value {
    executed(text, gpu, 2)
}

#[test]
fn data_are_indices() {
    for (params, body) in [
        (
            "A: 100, 64 float32; I: 37, int32; B: 37, 64 float32",
            "for i, j in T.grid(37, 64):\n    with T.sblock(\"take\"):\n        vi, vj = T.axis.remap(\"SS\", [i, j])\n        B[vi, vj] = A[I[vi], vj]\n",
        ),
        (
            "A: 100, float16; I: 37, int8; J: 128, int64; B: 37, float32",
            "for i in range(37):\n    with T.sblock(\"take\"):\n        vi = T.axis.spatial(37, i)\n        B[vi] = T.Cast(\"float32\", A[T.min(T.max(J[T.Cast(\"int32\", I[vi]) & 127], T.int64(0)), T.int64(99))])\n",
        ),
        (
            // An index that leaves no linear form is computed in its type.
            "A: 100, float32; I: 37, int32; B: 37, float32",
            "for i in range(37):\n    with T.sblock(\"take\"):\n        vi = T.axis.spatial(37, i)\n        B[vi] = A[(I[vi] * 2654435 + vi) & 63]\n",
        ),
        (
            "A: 100, 64 float32; I: 37, int32; W: 64, 32 float32; B: 37, 32 float32",
            "for i, j, k in T.grid(37, 32, 64):\n    with T.sblock(\"rows\"):\n        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])\n        with T.init():\n            B[vi, vj] = T.float32(0)\n        B[vi, vj] = B[vi, vj] + A[I[vi], vk] * W[vk, vj]\n",
        ),
    ] {
        explored(&script(params, body), "h200");
    }
}

/// Others are made smaller with it when it is checked: rows beside it have as many elements as it makes of them.
/// A condition from data that is asked only where another one does not hold.
#[test]
fn conditions_stand_in_each_other() {
    let body = "
for i in range(20):
    for k in range(3):
        O[i, k] = T.min_value(\"float32\")
    for j in range(64):
        if A[i, j] > O[i, 0]:
            O[i, 2] = O[i, 1]
            O[i, 1] = O[i, 0]
            O[i, 0] = A[i, j]
        else:
            if A[i, j] > O[i, 1]:
                O[i, 2] = O[i, 1]
                O[i, 1] = A[i, T.Select(j < 32, j, 95 - j)]
            else:
                O[i, 2] = T.max(O[i, 2], A[i, j])
";
    explored(&script("A: 20, 64 float32; O: 20, 3 float32", body), "h200");
}

#[test(slow)]
fn it_stands_beside_large_nests() {
    let before = "
S = T.sblock_alloc_buffer((4096, 4096))
for i, j in T.grid(4096, 4096):
    with T.sblock(\"shift\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        S[vi, vj] = A[vi, vj] + T.float32(1)
";
    let scan = "
B = T.sblock_alloc_buffer((4096, 4096))
for i, j in T.grid(4096, 4096):
    with T.sblock(\"scan\"):
        vi = T.axis.spatial(4096, i)
        vj = T.axis.opaque(4096, j)
        if vj == 0:
            B[vi, vj] = S[vi, vj]
        else:
            B[vi, vj] = B[vi, vj - 1] + S[vi, vj]
";
    let after = "
R = T.sblock_alloc_buffer((4096,))
for i, j in T.grid(4096, 4096):
    with T.sblock(\"most\"):
        vi, vj = T.axis.remap(\"SR\", [i, j])
        with T.init():
            R[vi] = T.float32(0)
        R[vi] = T.max(R[vi], B[vi, vj])
for i, j in T.grid(4096, 4096):
    with T.sblock(\"scale\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = B[vi, vj] - R[vi]
";
    let params = "A: 4096, 4096 float32; C: 4096, 4096 float32";
    let cases = [
        (script(params, &format!("{before}{scan}{after}")), "h200"),
        (script(&params.replace('A', "S"), &format!("{scan}{after}")), "t4"),
    ];
    for (text, gpu) in some_of(cases, 1) {
        explored(&text, gpu);
    }
}

/// The note on the steps that each thread takes.
fn steps(report: &Value) -> &str {
    let notes = report["notes"].as_array().unwrap();
    let note = notes.iter().filter_map(Value::as_str).find(|n| n.contains("in the order of its statements"));
    note.unwrap_or_else(|| panic!("{notes:?}"))
}

#[test(slow)]
fn what_depends_on_its_order_keeps_it() {
    let scan = "
for i, j in T.grid(137, 64):
    with T.sblock(\"scan\"):
        vi = T.axis.spatial(137, i)
        vj = T.axis.opaque(64, j)
        if vj == 0:
            B[vi, vj] = A[vi, vj]
        else:
            B[vi, vj] = B[vi, vj - 1] + A[vi, vj]
";
    let both = "A: 137, 64 float32; B: 137, 64 float32";
    let kind = some_of(["opaque", "scan"], 1)[0];
    let report = explored(&script(both, &scan.replace("opaque", kind)), "h200");
    assert!(steps(&report).contains("64 steps in each of 3 x 64 threads"), "{}", steps(&report));
    assert!(
        steps(&report).ends_with("no primitive schedules it, since iterator `vj` is neither spatial nor a reduction's"),
        "{}",
        steps(&report)
    );
    assert_eq!(report["untiled"], serde_json::json!(["scan"]));
    // The first column by a nest of its own: two nests write one buffer.
    let first = "
for i in range(137):
    with T.sblock(\"first\"):
        vi = T.axis.spatial(137, i)
        B[vi, 0] = A[vi, 0]
for i, j in T.grid(137, 63):
    with T.sblock(\"scan\"):
        vi = T.axis.spatial(137, i)
        vj = T.axis.reduce(63, j)
        B[vi, vj + 1] = B[vi, vj] + A[vi, vj + 1]
";
    explored(&script(both, first), "a100");
    // Sparse rows: data say where a row begins and ends.
    let rows = "
for i, j in T.grid(37, 16):
    B[i, j] = T.float32(0)
    for k in range(P[i], P[i + 1]):
        B[i, j] = B[i, j] + V[k] * X[J[k], j]
";
    let params = "V: 640, float32; J: 640, int32; P: 38, int32; X: 64, 16 float32; B: 37, 16 float32";
    explored(&script(params, rows), "h200");
    let triangle = "for i in range(64):\n    for j in range(i + 1):\n        B[i, j] = A[i, j]\n";
    explored(&script("A: 64, 64 float32; B: 64, 64 float32", triangle), "t4");
    // The compiler reads a sum ahead of the condition under which it begins.
    let product = "
for i, j, k in T.grid(16, 8, 24):
    if k == 0:
        C[i, j] = T.float32(0)
    C[i, j] = C[i, j] + A[i, k] * B[k, j]
";
    explored(&script("A: 16, 24 float32; B: 24, 8 float32; C: 16, 8 float32", product), "h200");
    // A part of a result stays as it was.
    let half = "for i in range(8):\n    C[i] = A[i] + 1\n";
    explored(&script("A: 8, int32; C: 16, int32", half), "h200");
    // No loop is parted: bare statements, and elements that data choose.
    let bare = "B[0] = A[0]\nfor i in range(63):\n    B[i + 1] = B[i] * T.float32(0.5) + A[i + 1]\n";
    let report = explored(&script("A: 64, float32; B: 64, float32", bare), "h200");
    assert!(steps(&report).contains("1 x 1 threads"), "{}", steps(&report));
    let histogram = "
for i in range(16):
    with T.sblock(\"zero\"):
        vi = T.axis.spatial(16, i)
        B[vi] = 0
for i in range(1000):
    with T.sblock(\"count\"):
        vi = T.axis.reduce(1000, i)
        B[A[vi] & 15] = B[A[vi] & 15] + 1
";
    explored(&script("A: 1000, int32; B: 16, int32", histogram), "h200");
    // Too much for the simulator as it is: fewer blocks and steps are checked, and what the budget lets of the text itself.
    let large = |text: &str| text.replace("137", "2100").replace("64", "2100");
    explored(&script(&large(both), &large(scan)), "h200");
    let large = histogram.replace("1000", "5000000");
    explored(&script("A: 5000000, int32; B: 16, int32", &large), "h200");
}

#[test]
fn a_loop_over_several_nests_is_distributed() {
    let text = "
for i in range(64):
    for j in range(128):
        with T.sblock(\"sum\"):
            vi, vj = T.axis.remap(\"SR\", [i, j])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + A[vi, vj]
    for j in range(128):
        with T.sblock(\"divide\"):
            vi, vj = T.axis.remap(\"SS\", [i, j])
            B[vi, vj] = A[vi, vj] / S[vi]
";
    let report = explored(&script("A: 64, 128 float32; S: 64, float32; B: 64, 128 float32", text), "h200");
    assert_eq!((&report["proved_optimal"], report["untiled"].as_array().map_or(0, Vec::len)), (&Value::Bool(true), 0));
    assert!(report["space"]["schedules"].as_str().is_some_and(|n| n.len() > 1), "{}", report["space"]);
}

/// Threads that a program binds itself, and what they have read: where two of them may store to one element the program is refused,
/// and where an index tells them apart it is taken.
#[test]
fn threads_that_a_program_binds_have_elements_of_their_own() {
    let bound = |params: &str, body: &str| {
        let body: String = body.lines().map(|line| format!("        {line}\n")).collect();
        script(
            params,
            &format!(
                "for i in T.thread_binding(64, thread=\"threadIdx.x\"):\n    with T.sblock(\"B\"):\n        vi = T.axis.opaque(64, i)\n\
                 {body}"
            ),
        )
    };
    let (row, rows) = ("A: 64, int32; B: 64, float32", "A: 64, int32; B: 64, 64 float32");
    let decide = "a store to B that data of several threads decide";
    let hold = "a store to an element of B of what several threads hold";
    let race = "threads that the program binds itself race";
    for (params, body, why) in [
        // By an index, and by one that a register holds, since it may leave its type.
        (row, "B[A[vi] & 63] = T.float32(1)", decide),
        (row, "B[A[vi] * A[vi] % 64] = T.float32(1)", decide),
        (rows, "for j in range(64):\n    B[j, A[vi] * A[vi] % 64] = T.float32(1)", decide),
        // By a condition.
        (row, "if A[vi] > 0:\n    B[5] = T.float32(1)", decide),
        (row, "if A[vi] > 0:\n    if A[0] > 0:\n        B[T.min(A[0] & 63, 5)] = T.float32(1)", decide),
        // What each of them holds is another value, and one element takes it.
        (row, "L = T.alloc_buffer((1,), \"float32\", scope=\"local\")\nL[0] = T.Cast(\"float32\", A[vi])\nB[0] = L[0]", hold),
        (row, "L = T.alloc_buffer((1,), scope=\"local\")\nL[0] = T.float32(0)\nif vi > 3:\n    L[0] = T.float32(1)\nB[7] = L[0]", hold),
        // By nothing but their number.
        (row, "B[vi // 2] = T.Cast(\"float32\", A[vi])", race),
        (row, "B[0] = B[0] + T.Cast(\"float32\", A[vi])", race),
    ] {
        let error = source::work_of_script("bound.py", &bound(params, body)).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(why), "{body}: {error}");
    }
    for (params, body) in [
        (rows, "B[vi, A[vi] & 63] = T.float32(1)"),
        (rows, "B[63 - vi, A[vi] * A[vi] % 64] = T.float32(1)"),
        (rows, "B[vi, A[vi] & 63] = B[vi, A[vi] * A[vi] % 64] + T.float32(1)"),
        ("A: 64, int32; B: 8, 8 float32", "if A[vi] > 0:\n    B[vi // 8, vi % 8] = T.float32(1)"),
        ("A: 64, int32; B: 8, 9 float32", "if A[vi] > 0:\n    B[vi // 8, vi % 8 + 1] = T.float32(1)"),
        // All threads have read the same, or hold it.
        (row, "L = T.alloc_buffer((1,), scope=\"local\")\nL[0] = T.float32(3)\nB[0] = L[0]\nB[vi] = L[0]"),
        (row, "if A[0] * A[0] > 3:\n    B[vi] = T.float32(1)"),
    ] {
        explored(&bound(params, body), "h200");
    }
}

/// A random program whose statements depend on their order, or on data.
fn random(r: &mut StdRng) -> String {
    let (n, m) = (r.gen_range(1..=40i64), r.gen_range(1..=24i64));
    let dtype =
        ["float32", "int32", "float16", "int8", "uint8", "int64", "float64", "bfloat16"][r.gen_range(0..8usize)];
    let op = ["{x} + {y}", "T.max({x}, {y})", "{x} * {y}", "{x} - {y}", "T.min({y}, {x})"][r.gen_range(0..5usize)];
    let combine = |x: &str, y: &str| op.replace("{x}", x).replace("{y}", y);
    let two = format!("A: {n}, {m} {dtype}; B: {n}, {m} {dtype}");
    let kinds = if r.gen_range(0..2) == 0 { ["spatial", "opaque"] } else { ["opaque", "opaque"] };
    let head = format!(
        "for i, j in T.grid({n}, {m}):\n    with T.sblock(\"b\"):\n        vi = T.axis.{}({n}, i)\n        vj = T.axis.{}({m}, j)\n",
        kinds[0], kinds[1]
    );
    match r.gen_range(0..9) {
        0 => {
            let x = combine("B[vi, vj - 1]", "A[vi, vj]");
            script(&two, &format!("{head}        if vj == 0:\n            B[vi, vj] = A[vi, vj]\n        else:\n            B[vi, vj] = {x}\n"))
        }
        1 => {
            let x = combine("B[vi - 1, vj]", "A[vi, vj]");
            script(&two, &format!("{head}        if vi == 0:\n            B[vi, vj] = A[vi, vj]\n        else:\n            B[vi, vj] = {x}\n"))
        }
        2 => {
            let at = format!("T.min(T.max(I[vi], 0), {})", n - 1);
            let x = combine(&format!("B[{at}, vj]"), "A[vi, vj]");
            script(&format!("{two}; I: {n}, int32"), &format!("{head}        B[{at}, vj] = {x}\n"))
        }
        3 => {
            let x = combine(&format!("B[vi, {} - vj]", m - 1), "A[vi, vj]");
            script(&two, &format!("{head}        B[vi, vj] = {x}\n"))
        }
        4 => {
            let x = combine("B[vi, vj]", "A[vi, vj]");
            script(&two, &format!("{head}        if A[vi, vj] > B[vi, vj]:\n            B[vi, vj] = {x}\n            A[vi, vj] = B[vi, vj]\n"))
        }
        5 => {
            let (x, y) = (combine("A[i, j]", "A[i, j]"), combine("C[i]", "A[i, j]"));
            let body = format!("for i in range({n}):\n    C[i] = A[i, 0]\n    for j in range({m}):\n        B[i, j] = {x}\n        C[i] = {y}\n");
            script(&format!("{two}; C: {n}, {dtype}"), &body)
        }
        6 => {
            let x = combine("t", "B[vi, vj]");
            let body = format!(
                "{head}        t = A[vi, vj]\n        B[vi, vj] = t\n        A[vi, vj] = {x}\n        C[vi, vj] = t\n"
            );
            script(&format!("{two}; C: {n}, {m} {dtype}"), &body)
        }
        7 => {
            let body = format!(
                "for i, k in T.grid({n}, {m}):\n    with T.sblock(\"least\"):\n        vi, vk = T.axis.remap(\"SR\", [i, k])\n        with T.init():\n            I[vi] = 0\n            V[vi] = A[vi, 0]\n        if A[vi, vk] < V[vi]:\n            I[vi] = vk\n            V[vi] = A[vi, vk]\n"
            );
            script(&format!("A: {n}, {m} {dtype}; I: {n}, int32; V: {n}, {dtype}"), &body)
        }
        _ => {
            let x = combine("A[vi, I[vj] & 7]", "A[I[vi + vj] & 7, 0]");
            let (rows, columns) = (n.max(8), m.max(8));
            let params = format!("A: {rows}, {columns} {dtype}; I: {}, int32; B: {n}, {m} {dtype}", n + m);
            let head = head.replace("opaque", "spatial");
            script(&params, &format!("{head}        B[vi, vj] = {x}\n"))
        }
    }
}

#[test]
fn random_programs_in_order_are_what_they_say() {
    let mut r = StdRng::seed_from_u64(seed());
    for number in 0..samples(5) {
        let gpu = ["h200", "t4", "a100", "v100", "l4"][number % 5];
        explored(&random(&mut r), gpu);
    }
}
