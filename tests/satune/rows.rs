//! What kernels of rows do besides: results on the way are also copied to memory, for the caller or for other kernels; and a value of
//! a row is read from anywhere. All are compiled and executed.
use crate::streaming::BOTH;
use crate::support::{executed, kernels, samples, script, seed};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;

/// Of what a classifier says, less what it should have said: one row of logits per label.
const CROSS_ENTROPY: &str = "
M = T.sblock_alloc_buffer((ROWS,))
Z = T.sblock_alloc_buffer((ROWS,))
for i, k in T.grid(ROWS, COLUMNS):
    with T.sblock(\"M\"):
        vi, vk = T.axis.remap(\"SR\", [i, k])
        with T.init():
            M[vi] = T.min_value(\"float32\")
        M[vi] = T.max(M[vi], X[vi, vk])
for i, k in T.grid(ROWS, COLUMNS):
    with T.sblock(\"Z\"):
        vi, vk = T.axis.remap(\"SR\", [i, k])
        with T.init():
            Z[vi] = T.float32(0)
        Z[vi] = Z[vi] + T.exp(X[vi, vk] - M[vi])
for i in range(ROWS):
    with T.sblock(\"L\"):
        vi = T.axis.spatial(ROWS, i)
        L[vi] = T.log(Z[vi]) + M[vi] - X[vi, Y[vi]]
";

fn sized(text: &str, rows: i64, columns: i64) -> String {
    text.replace("ROWS", &rows.to_string()).replace("COLUMNS", &columns.to_string())
}

#[test]
fn a_value_of_a_row_is_read_from_anywhere() {
    let params = sized("X: ROWS, COLUMNS float32; Y: ROWS, int32; L: ROWS, float32", 67, 1500);
    let report = executed(&script(&params, &sized(CROSS_ENTROPY, 67, 1500)), "h200", 3);
    assert_eq!((kernels(&report), &report["proved_optimal"]), (1, &Value::Bool(true)));
    assert!(!report["notes"].to_string().contains("plain kernel"), "{}", report["notes"]);
}

#[test]
fn rows_that_nobody_in_the_kernel_reads_are_made_there() {
    let report = executed(&BOTH.replace("48", "67").replace("1000", "1500"), "h200", 3);
    assert_eq!((kernels(&report), &report["proved_optimal"]), (1, &Value::Bool(true)));
}

/// A softmax of a few values: eight lanes have a row, or less, and each warp several.
#[test]
fn short_rows_have_a_part_of_a_warp() {
    for columns in [16, 49] {
        let params = sized("X: ROWS, COLUMNS float32; Y: ROWS, int32; L: ROWS, float32", 131_072, columns);
        let report = executed(&script(&params, &sized(CROSS_ENTROPY, 131_072, columns)), "h200", 3);
        assert_eq!((kernels(&report), &report["proved_optimal"]), (1, &Value::Bool(true)));
        let threads = report["candidates"][0]["plan"]["kernels"][0]["Row"]["threads"].as_i64();
        assert!(threads.is_some_and(|threads| threads < 32), "{}", report["candidates"][0]);
    }
}

/// Maps and reductions of rows, each of what was before, of which the caller sees some; and now and then another kernel reads one.
#[test]
fn random_results_on_the_way_are_seen() {
    let mut rng = StdRng::seed_from_u64(seed());
    for _ in 0..samples(5) {
        let dtype = *["float32", "float16", "bfloat16"].choose(&mut rng).unwrap();
        let last = *[4, 20, 49, 36, 96, 520, 1001, 4104].choose(&mut rng).unwrap();
        // Rows that several of them fill a warp with.
        let rows = if last < 64 { 8 * rng.gen_range(1..=16) } else { rng.gen_range(1..=40) };
        let dims = [rng.gen_range(1..=3i64), rows, last];
        let [h, m, n] = dims;
        let mut body = String::new();
        let mut made: Vec<(String, bool)> = vec![("A0".into(), true)];
        let (mut seen, mut own) = (vec![format!("A0: {h}, {m}, {n} {dtype}")], Vec::new());
        let mut reduced = false;
        for number in 0..rng.gen_range(3..=5) {
            let name = format!("{}{number}", if number == 0 { "R" } else { "B" });
            // The first is a reduction or what one reads; the last has rows.
            let reduces = number > 0 && (!reduced || rng.gen_bool(0.4));
            reduced |= reduces;
            let value = |(name, full): &(String, bool)| {
                let at = if *full { "vh, vi, vj" } else { "vh, vi" };
                format!("T.Cast(\"float32\", {name}[{at}])")
            };
            let full: Vec<&(String, bool)> = made.iter().filter(|(_, full)| *full).collect();
            let (one, other) = (value(full.choose(&mut rng).unwrap()), value(made.choose(&mut rng).unwrap()));
            let stored = if reduces { "float32" } else { dtype };
            let to = if reduces { format!("{name}[vh, vi]") } else { format!("{name}[vh, vi, vj]") };
            let what = if reduces {
                let [init, op] = *[
                    ["T.float32(0)", "SUM + (ONE) * T.float32(0.0625)"],
                    ["T.float32(-30)", "T.max(SUM, ONE - OTHER)"],
                ]
                .choose(&mut rng)
                .unwrap();
                let op = op.replace("SUM", &to).replace("ONE", &one).replace("OTHER", &other);
                format!("with T.init():\n            {to} = {init}\n        {to} = {op}")
            } else {
                format!("{to} = T.Cast(\"{stored}\", ({one} + {other}) * T.float32(0.5))")
            };
            let kinds = if reduces { "SSR" } else { "SSS" };
            body += &format!(
                "for h, i, j in T.grid({h}, {m}, {n}):\n    with T.sblock(\"{name}\"):\n        vh, vi, vj = \
                 T.axis.remap(\"{kinds}\", [h, i, j])\n        {what}\n"
            );
            let shape = if reduces { format!("{h}, {m}") } else { format!("{h}, {m}, {n}") };
            if rng.gen_bool(0.6) || number == 2 {
                seen.push(format!("{name}: {shape} {stored}"));
            } else {
                own.push(format!("{name} = T.sblock_alloc_buffer(({shape}), \"{stored}\")\n"));
            }
            made.push((name, !reduces));
        }
        let text = script(&seen.join("; "), &(own.concat() + &body));
        println!("{text}");
        executed(&text, if dtype == "bfloat16" { "a100" } else { "t4" }, 2);
    }
}

/// All of a matrix, be it one element, as a sum of several axes; the check is on fewer of the outermost.
#[test]
fn sums_of_all_are_right_whatever_there_is() {
    for [m, n] in [[1, 1], [1, 70], [900, 3001]] {
        let body = format!(
            "for i, j in T.grid({m}, {n}):\n    with T.sblock(\"S\"):\n        vi, vj = T.axis.remap(\"RR\", [i, j])\n        with T.init():\n            \
             S[0] = T.float32(0)\n        S[0] = S[0] + X[vi, vj]\n"
        );
        executed(&script(&format!("X: {m}, {n} float32; S: 1, float32"), &body), "h200", 2);
    }
}
