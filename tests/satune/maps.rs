//! Maps over the same elements are one kernel, whatever of them are results: what is read is read once, what one makes others have in
//! registers. All are compiled and executed.
use crate::support::{executed, kernels, samples, script, seed};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;

/// A map of a matrix, by its number.
fn map([m, n]: [i64; 2], number: usize, to: &str, value: &str) -> String {
    format!(
        "for i, j in T.grid({m}, {n}):\n    with T.sblock(\"m{number}\"):\n        vi, vj = T.axis.remap(\"SS\", [i, j])\n        \
         {to}[vi, vj] = {value}\n"
    )
}

/// A step of Adam: the moments of gradients, and the weights.
const STEP: &str = "
for i in range(COUNT):
    with T.sblock(\"m\"):
        vi = T.axis.spatial(COUNT, i)
        M1[vi] = M[vi] * T.float32(0.9) + G[vi] * T.float32(0.1)
for i in range(COUNT):
    with T.sblock(\"v\"):
        vi = T.axis.spatial(COUNT, i)
        V1[vi] = V[vi] * T.float32(0.999) + G[vi] * G[vi] * T.float32(0.001)
for i in range(COUNT):
    with T.sblock(\"w\"):
        vi = T.axis.spatial(COUNT, i)
        W1[vi] = W[vi] - M1[vi] / (T.sqrt(T.max(V1[vi], T.float32(0))) + T.float32(0.5))
";

#[test]
fn a_step_of_an_optimiser_is_one_kernel() {
    let vectors = ["G", "M", "V", "W", "M1", "V1", "W1"].map(|name| format!("{name}: COUNT, float32")).join("; ");
    let of = |text: &str| text.replace("COUNT", "100004");
    let report = executed(&script(&of(&vectors), &of(STEP)), "h200", 3);
    assert_eq!((kernels(&report), &report["proved_optimal"]), (1, &Value::Bool(true)));
    // Each vector passes memory once, by whole sectors.
    let simulated = &report["candidates"][0]["simulated"];
    assert_eq!(simulated["global_sectors"], simulated["global_sectors_ideal"]);
    let kernel = &report["candidates"][0]["kernels"][0]["args"];
    assert_eq!(kernel.as_array().map(Vec::len), Some(7));
}

/// The moments and the weights in place, as optimisers have them.
#[test]
fn a_step_in_place_is_one_kernel() {
    let vectors = ["G", "M", "V", "W"].map(|name| format!("{name}: COUNT, float32")).join("; ");
    let step = ["M", "V", "W"]
        .iter()
        .fold(STEP.to_string(), |step, name| step.replace(&format!("{name}1["), &format!("{name}[")));
    let of = |text: &str| text.replace("COUNT", "100004");
    let report = executed(&script(&of(&vectors), &of(&step)), "h200", 3);
    assert_eq!((kernels(&report), &report["proved_optimal"]), (1, &Value::Bool(true)));
    let kernel = &report["candidates"][0]["kernels"][0]["args"];
    assert_eq!(kernel.as_array().map(Vec::len), Some(4));
}

/// Maps of tensors, rows, columns and of each other, some of which the caller sees, or change what they read.
#[test]
fn random_maps_share_kernels() {
    let mut rng = StdRng::seed_from_u64(seed());
    for _ in 0..samples(5) {
        let dtype = *["float32", "float16", "bfloat16"].choose(&mut rng).unwrap();
        let n = *[1, 3, 8, 24, 36, 96, 520, 1001, 4104].choose(&mut rng).unwrap();
        let m = if n < 32 { 32 * rng.gen_range(1..=40i64) } else { rng.gen_range(1..=40) };
        let (whole, row, column) = (format!("{m}, {n}"), format!("{m},"), format!("{n},"));
        let mut seen = vec![
            format!("A: {whole} {dtype}"),
            format!("D: {whole} {dtype}"),
            format!("R: {row} {dtype}"),
            format!("C: {column} {dtype}"),
        ];
        let mut values: Vec<String> = ["A[vi, vj]", "D[vi, vj]", "R[vi]", "C[vj]"].map(String::from).to_vec();
        let (mut own, mut body) = (String::new(), String::new());
        let count = rng.gen_range(2..=5);
        for number in 0..count {
            let value = |rng: &mut StdRng| format!("T.Cast(\"float32\", {})", values.choose(rng).unwrap());
            let [one, other, third] = [0; 3].map(|_| value(&mut rng));
            let op = *["ONE + OTHER * THIRD", "T.max(ONE, OTHER) - THIRD", "(ONE - OTHER) * THIRD"]
                .choose(&mut rng)
                .unwrap();
            let op = op.replace("ONE", &one).replace("OTHER", &other).replace("THIRD", &third);
            let changed = (number + 2 < count && rng.gen_bool(0.3)).then(|| *["A", "D"].choose(&mut rng).unwrap());
            let target = changed.map_or_else(|| format!("B{number}"), str::to_string);
            let op = changed.map_or_else(|| op.clone(), |name| format!("{op} - T.Cast(\"float32\", {name}[vi, vj])"));
            body += &map([m, n], number, &target, &format!("T.Cast(\"{dtype}\", ({op}) * T.float32(0.5))"));
            if changed.is_some() {
                continue;
            }
            values.push(format!("B{number}[vi, vj]"));
            // The last ones are results.
            if number + 2 >= count || rng.gen_bool(0.5) {
                seen.push(format!("B{number}: {whole} {dtype}"));
            } else {
                own += &format!("B{number} = T.sblock_alloc_buffer(({whole}), \"{dtype}\")\n");
            }
        }
        let text = script(&seen.join("; "), &(own + &body));
        println!("{text}");
        executed(&text, if dtype == "bfloat16" { "a100" } else { "t4" }, 2);
    }
}

/// Three colours of pixels, and eight digits of words: no lane of a warp is without an element, and what is stored lies together.
#[test]
fn rows_of_a_few_elements_fill_warps() {
    let colours = "
for n, h, w, c in T.grid(4, 64, 64, 3):
    with T.sblock(\"Y\"):
        vn, vh, vw, vc = T.axis.remap(\"SSSS\", [n, h, w, c])
        Y[vn, vh, vw, vc] = (X[vn, vh, vw, vc] - M[vc]) / S[vc]
";
    let images = ["X", "Y"].map(|name| format!("{name}: 4, 64, 64, 3 float32")).join("; ");
    let digits = "
for n, k in T.grid(256, 1024):
    with T.sblock(\"B\"):
        vn, vk = T.axis.remap(\"SS\", [n, k])
        B[vn, vk] = T.Cast(\"float16\", T.bitwise_and(T.shift_right(W[vn, vk // 8], T.Cast(\"uint32\", vk % 8 * 4)), T.uint32(15)))
";
    for (params, body) in [
        (format!("{images}; M: 3, float32; S: 3, float32"), colours),
        ("W: 256, 128 uint32; B: 256, 1024 float16".into(), digits),
    ] {
        let report = executed(&script(&params, body), "h200", 3);
        assert_eq!((kernels(&report), &report["proved_optimal"]), (1, &Value::Bool(true)));
        let best = &report["candidates"][0];
        let threads = best["plan"]["kernels"][0]["Flat"]["threads"].as_i64();
        assert!(threads.is_some_and(|threads| threads < 32), "{best}");
        let simulated = &best["simulated"];
        assert_eq!(simulated["global_sectors"], simulated["global_sectors_ideal"]);
    }
}

/// Rounding leaves -0 of a difference, or little; times values without end that is a number here and an infinity there.
#[test]
fn what_cancels_out_may_be_any_number_times_values_without_end() {
    let whole = ["A", "D", "R", "B1", "B2"].map(|name| match name {
        "R" => "R: 24, float32; C: 1001, float32".to_string(),
        name => format!("{name}: 24, 1001, float32"),
    });
    let maps = [
        ("A", "D[vi, vj] + D[vi, vj] * C[vj] - A[vi, vj]"),
        ("B1", "D[vi, vj] + A[vi, vj] * D[vi, vj]"),
        ("B2", "(D[vi, vj] - A[vi, vj]) * R[vi]"),
    ];
    let body: String = (maps.iter().enumerate())
        .map(|(number, (target, value))| map([24, 1001], number, target, &format!("({value}) * T.float32(0.5)")))
        .collect();
    executed(&script(&whole.join("; "), &body), "t4", 2);
}

/// `c + c * r - d` may be an infinity of either sign, as the product is rounded by itself or not: what is computed of it may be, too.
#[test]
fn rounding_decides_between_infinities() {
    let number = |place: &str| format!("T.Cast(\"float32\", {place})");
    let half = |number: usize, to: &str, value: String| {
        map([1024, 24], number, to, &format!("T.Cast(\"float32\", ({value}) * T.float32(0.5))"))
    };
    let [a, d, b1, b2] = ["A", "D", "B1", "B2"].map(|name| number(&format!("{name}[vi, vj]")));
    let [r, c] = [number("R[vi]"), number("C[vj]")];
    let body = [
        "B2 = T.sblock_alloc_buffer((1024, 24), \"float32\")\n".into(),
        half(0, "D", format!("{c} + {c} * {r} - {d}")),
        half(1, "B1", format!("{r} + {c} * {a}")),
        half(2, "B2", format!("{b1} + {d} * {r}")),
        half(3, "B3", format!("({r} - {b2}) * {b1}")),
        half(4, "B4", format!("T.max({a}, {b2}) - {d}")),
    ];
    let params = "A: 1024, 24 float32; D: 1024, 24 float32; R: 1024, float32; C: 24, float32; B1: 1024, 24 float32; B3: 1024, 24 \
                  float32; B4: 1024, 24 float32";
    executed(&script(params, &body.concat()), "t4", 2);
}
