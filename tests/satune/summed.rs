//! Sums of several products: each is a sum of its own, with tiles.
use crate::sums::sum;
use crate::support::{executed, script, seed};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::SeedableRng;

/// A product of complex matrices whose parts are buffers, and a layer that adds two products: large enough for a kernel each.
#[test(slow)]
fn each_product_has_tiles() {
    let mut rng = StdRng::seed_from_u64(seed());
    let dtype = *["float32", "float16", "bfloat16"].choose(&mut rng).unwrap();
    let gpu = *["h200", "a100", "t4"].choose(&mut rng).unwrap();
    let part = |at: &str| format!("T.Cast(\"float32\", {at})");
    let [ar, ai] = ["Ar[v0, v2]", "Ai[v0, v2]"].map(part);
    let [br, bi] = ["Br[v2, v1]", "Bi[v2, v1]"].map(part);
    let axes = [('S', 320), ('S', 256), ('R', 224)];
    let nest = |out: &str, update: &str| {
        sum(out, &axes, [&format!("{out}[v0, v1]"), "T.float32(0)", &format!("SUM + ({update})")])
    };
    let params = [
        format!("Ar: 320, 224 {dtype}; Ai: 320, 224 {dtype}; Br: 224, 256 {dtype}; Bi: 224, 256 {dtype}"),
        "Cr: 320, 256 float32; Ci: 320, 256 float32".into(),
    ];
    let body = nest("Cr", &format!("{ar} * {br} - {ai} * {bi}")) + &nest("Ci", &format!("{ar} * {bi} + {ai} * {br}"));
    let report = executed(&script(&params.join("; "), &body), gpu, 2);
    assert!(report["notes"].to_string().contains("explored as a sum of each"), "{}", report["notes"]);
    let best = &report["candidates"][0];
    // What puts two products together is computed where the second one is.
    assert_eq!(best["kernels"].as_array().unwrap().len(), 4, "{gpu} {dtype}");
    let schedule = best["schedule"].to_string();
    let multiplied = dtype == "float16" || dtype == "bfloat16" && gpu != "t4";
    assert_eq!(schedule.contains("mma"), multiplied, "{gpu} {dtype}: {schedule}");
}
