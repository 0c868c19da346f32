//! Reductions with several results at once: sums beside each other, an extremum and its place. Each result is a reduction of its own,
//! of which each row has a team of threads; others have a thread per row. All are compiled and executed.
use crate::support::{executed, kernels, samples, script, seed};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;

/// Two sums of rows and what is done with them, as a normalisation.
const NORM: &str = "
S = T.sblock_alloc_buffer((2048,))
Q = T.sblock_alloc_buffer((2048,))
for i, k in T.grid(2048, 1024):
    with T.sblock(\"sums\"):
        vi, vk = T.axis.remap(\"SR\", [i, k])
        with T.init():
            S[vi] = T.float32(0)
            Q[vi] = T.float32(0)
        v_s: T.float32 = S[vi] + A[vi, vk]
        v_q: T.float32 = Q[vi] + A[vi, vk] * A[vi, vk]
        S[vi] = v_s
        Q[vi] = v_q
for i, k in T.grid(2048, 1024):
    with T.sblock(\"norm\"):
        vi, vk = T.axis.remap(\"SS\", [i, k])
        C[vi, vk] = (A[vi, vk] - S[vi] / T.float32(1024)) * T.rsqrt(Q[vi] / T.float32(1024) + T.float32(1))
";

/// The place of the largest element of a row, as topi has it.
const PLACE: &str = "
M = T.sblock_alloc_buffer((2048,), \"int32\")
V = T.sblock_alloc_buffer((2048,))
for i, k in T.grid(2048, 1024):
    with T.sblock(\"argmax\"):
        vi, vk = T.axis.remap(\"SR\", [i, k])
        with T.init():
            M[vi] = -1
            V[vi] = T.min_value(\"float32\")
        v_i: T.int32 = T.Select(V[vi] > A[vi, vk] or V[vi] == A[vi, vk] and M[vi] < vk, M[vi], vk)
        v_v: T.float32 = T.Select(V[vi] > A[vi, vk], V[vi], A[vi, vk])
        M[vi] = v_i
        V[vi] = v_v
for i in range(2048):
    with T.sblock(\"I\"):
        vi = T.axis.spatial(2048, i)
        I[vi] = M[vi]
";

/// The same with the element, as TVM's documentation has it.
const BOTH: &str = "
for i, k in T.grid(37, 300):
    with T.sblock(\"argmax\"):
        vi, vk = T.axis.remap(\"SR\", [i, k])
        with T.init():
            I[vi] = -1
            V[vi] = T.min_value(\"float32\")
        v_i: T.int32 = T.Select(V[vi] >= A[vi, vk], I[vi], vk)
        v_v: T.float32 = T.Select(V[vi] >= A[vi, vk], V[vi], A[vi, vk])
        I[vi] = v_i
        V[vi] = v_v
";

fn predicted(report: &Value) -> f64 {
    report["candidates"][0]["predicted_ms"].as_f64().unwrap()
}

/// One kernel that reads the rows once, about as fast as what has one result.
#[test]
fn rows_are_read_once_by_teams_of_threads() {
    let row = "
for i, k in T.grid(2048, 1024):
    with T.sblock(\"S\"):
        vi, vk = T.axis.remap(\"SR\", [i, k])
        with T.init():
            S[vi] = T.float32(0)
        S[vi] = S[vi] + A[vi, vk]
";
    let one = executed(&script("A: 2048, 1024 float32; S: 2048, float32", row), "h200", 1);
    for (params, body, times) in [
        ("A: 2048, 1024 float32; C: 2048, 1024 float32", NORM, 2.5),
        ("A: 2048, 1024 float32; I: 2048, int32", PLACE, 1.5),
    ] {
        let report = executed(&script(params, body), "h200", 2);
        let (this, one) = (predicted(&report), predicted(&one));
        assert!(this < times * one, "{this} ms, a sum of rows {one}\n{body}");
        assert_eq!(kernels(&report), 1, "{body}");
        assert!(report["proved_optimal"] == true && report["untiled"].is_null(), "{body}");
    }
}

#[test]
fn an_index_and_its_maximum_are_found_together() {
    let params = "A: 37, 300 float32; I: 37, int32; V: 37, float32";
    let report = executed(&script(params, BOTH), "h200", 2);
    assert_eq!(kernels(&report), 1);
    let from = BOTH.find("        v_i:").unwrap();
    let text = format!(
        "{}        if A[vi, vk] > V[vi]:\n            I[vi] = vk\n            V[vi] = A[vi, vk]\n",
        &BOTH[..from]
    );
    executed(&script(params, &text), "t4", 2);
    // One row: no index tells threads apart, and only one of them has a row.
    let one = |text: &str| text.replace("37", "1");
    executed(&script(&one(params), &one(&text)), "h200", 2);
    // The index is an element, too: what was found and what is found are addresses to pick from, and the compiler must not take
    // what is written for what nobody writes. The block stays as it is.
    let given = "A: 37, 300 float32; J: 37, 300 int32; I: 37, int32; V: 37, float32";
    let report = executed(&script(given, &BOTH.replace("I[vi], vk)", "I[vi], J[vi, vk])")), "h200", 2);
    assert_eq!(report["untiled"], serde_json::json!(["argmax"]));
    executed(
        &script(given, &text.replace("I[vi] = vk", "I[vi] = T.if_then_else(J[vi, vk] > 0, J[vi, vk], I[vi])")),
        "h200",
        2,
    );
}

/// Random ones: an extremum and its place, or that alone, of a map of the rows, and sometimes a sum beside them.
#[test]
fn random_ones_are_right() {
    let mut rng = StdRng::seed_from_u64(seed());
    for _ in 0..samples(3) {
        let dtype = *["float32", "float16", "int32", "bfloat16"].choose(&mut rng).unwrap();
        let [rows, columns] = [rng.gen_range(1..=70i64), rng.gen_range(2..=1500i64)];
        let (more, worst) = *[(">", "min"), ("<", "max")].choose(&mut rng).unwrap();
        let forms = [
            ("$v MORE $a or $v == $a and $i < vk, $i, vk", "$v MORE $a, $v, $a"),
            ("$v MORE= $a, $i, vk", "$v MORE= $a, $v, $a"),
            ("$a MORE $v, vk, $i", "$a MORE $v, $a, $v"),
            ("not $v MORE $a, vk, $i", "$v MORE $a, $v, $a"),
        ];
        let filled = |text: &str| {
            let words = [("MORE", more), ("$v", "V[vi]"), ("$a", "B[vi, vk]"), ("$i", "I[vi]")];
            words.iter().fold(text.to_string(), |text, (from, to)| text.replace(from, to))
        };
        let form = forms.choose(&mut rng).unwrap();
        let (i, v) = (filled(form.0), filled(form.1));
        let map = ["A[vi, vk]", "T.max(A[vi, vk], A[vi, 0])", "A[vi, vk] - A[0, vk]"].choose(&mut rng).unwrap();
        let [asked, summed]: [bool; 2] = rng.gen();
        let of = |yes: bool, text: &str| if yes { text.to_string() } else { String::new() };
        let body = format!(
            "B = T.sblock_alloc_buffer(({rows}, {columns}), \"{dtype}\")\n{}for i, k in T.grid({rows}, {columns}):\n    with \
             T.sblock(\"B\"):\n        vi, vk = T.axis.remap(\"SS\", [i, k])\n        B[vi, vk] = {map}\nfor i, k in T.grid({rows}, \
             {columns}):\n    with T.sblock(\"reduced\"):\n        vi, vk = T.axis.remap(\"SR\", [i, k])\n        with \
             T.init():\n            I[vi] = -1\n            V[vi] = T.{worst}_value(\"{dtype}\")\n{}        v_i: T.int32 = \
             T.Select({i})\n        v_v: T.{dtype} = T.Select({v})\n{}        I[vi] = v_i\n        V[vi] = v_v\n{}",
            of(!asked, &format!("V = T.sblock_alloc_buffer(({rows},), \"{dtype}\")\n")),
            of(summed, "            S[vi] = T.float32(0)\n"),
            of(summed, "        v_s: T.float32 = S[vi] + T.Cast(\"float32\", B[vi, vk])\n"),
            of(summed, "        S[vi] = v_s\n"),
        );
        let params = format!(
            "A: {rows}, {columns} {dtype}; I: {rows}, int32{}{}",
            of(asked, &format!("; V: {rows}, {dtype}")),
            of(summed, &format!("; S: {rows}, float32")),
        );
        executed(&script(&params, &body), ["h200", "t4"].choose(&mut rng).unwrap(), 2);
    }
}
