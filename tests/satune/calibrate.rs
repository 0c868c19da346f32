//! Measurements of every kind, from the lines of an export to a fitted descriptor. The times are made up.
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use satune::measurements;
use satune::streaming::StreamProblem;
use satune_extract::calibrate::{calibrate, Calibration};
use satune_extract::{Counts, Descriptor};
use satune_ir::term::stream::StreamPlan;
use satune_ir::term::tensor::{Mma, TensorPlan, WgmmaPlan};
use satune_ir::term::Schedule;
use serde_json::json;

/// Lines of an export: schedules of streaming programs drawn at random, with times under `truth` that are off by 2%.
fn streams(truth: &Descriptor, each: usize) -> String {
    let mut random = StdRng::seed_from_u64(5);
    let mut lines = String::new();
    for operator in [
        "mean:2048,8192,f32",
        "softmax:4096,4096,f32",
        "transpose:4096,4096,f32",
        "gemv:8192,8192,f32",
        "rowsum:64,4096,f16",
        "relu_chain:512,512,f32",
    ] {
        let problem = StreamProblem::operator(operator).unwrap();
        let space = satune::streaming::space(&problem, truth).unwrap();
        let counts = Counts::of(&space);
        let mut made = 0;
        while made < each {
            let term = counts.sample(&space, &mut random).unwrap();
            let plan = StreamPlan::from_term(&term, &problem.streams).unwrap();
            let Ok(cost) = satune_extract::stream::stream_cost(&plan, &problem.streams, truth) else { continue };
            made += 1;
            let normal = (0..12).map(|_| random.gen::<f64>()).sum::<f64>() - 6.0;
            let ms = cost.ms * (0.02 * normal).exp();
            lines += &format!(
                "{}\n",
                json!({"operator": operator, "gpu": "h200", "plan": Schedule::Stream(plan), "ms": ms})
            );
        }
    }
    lines
}

fn of(found: &Calibration, name: &str) -> (f64, f64, bool) {
    let scalar = found.scalars.iter().find(|s| s.name == name).unwrap();
    (scalar.after, scalar.error, scalar.determined)
}

#[test]
fn measurements_of_streaming_programs_give_bandwidth_and_latencies() {
    let start = Descriptor::load("h200").unwrap();
    let truth = Descriptor {
        dram_gbs: 3800.0,
        l2_bytes_per_clock: 4200.0,
        latency_dram: 780.0,
        latency_l2: 330.0,
        launch_us: 4.2,
        overlap_exponent: 6.0,
        ..start.clone()
    };
    let read = measurements::read(&streams(&truth, 12), &start).unwrap();
    assert_eq!((read.rows.len(), read.skipped.len()), (72, 0));
    let found = calibrate(&start, &read.rows).unwrap();
    println!("{:#?}\n{:?}\n{:?}", found.scalars, found.before, found.after);
    assert_eq!((found.shapes, found.infeasible), (6, 0));
    assert!(found.after.median_error < 0.02 && found.before.median_error > 0.05, "{:?}", found.after);
    for (name, want) in [
        ("dram_gbs", truth.dram_gbs),
        ("l2_bytes_per_clock", truth.l2_bytes_per_clock),
        ("latency_dram", truth.latency_dram),
        ("latency_l2", truth.latency_l2),
        ("launch_us", truth.launch_us),
    ] {
        let (got, error, determined) = of(&found, name);
        let far = (got / want).ln().abs();
        assert!(!determined || far <= (4.0 * error).max(0.02), "{name} is {got}, not {want}");
    }
    for name in ["dram_gbs", "launch_us"] {
        assert!(of(&found, name).2, "{name} is not determined");
    }
    // Nothing here is on tensor cores.
    let (share, _, determined) = of(&found, "wgmma_share");
    assert!(!determined && Some(share) == start.tensor.map(|t| t.wgmma_share));
}

#[test]
fn lines_of_every_kind_are_read() {
    let gpu = Descriptor::load("h200").unwrap();
    let mma = Schedule::Mma(TensorPlan::plain([128, 128, 32], [64, 32], Mma::Bf16, 3));
    let wgmma = Schedule::Wgmma(WgmmaPlan::plain([128, 128, 64], 2, 3));
    let line =
        |operator: &str, plan: &Schedule| format!("{}\n", json!({"operator": operator, "plan": plan, "ms": 1.0}));
    let script = StreamProblem::operator("mean:64,64,f32").unwrap().script;
    let stream = streams(&gpu, 1).lines().next().unwrap().to_string();
    let mut file: serde_json::Value = serde_json::from_str(&stream).unwrap();
    file["operator"] = "some/file.py".into();
    file["script"] = script.into();
    let text = [
        line("gemm:512,512,512,bf16,NT", &mma),
        line("gemm:512,512,512,bf16,NT", &wgmma),
        stream + "\n",
        format!("{file}\n"),
        // A schedule of another kind of problem is one that the GPU cannot run.
        line("mean:64,64,f32", &mma),
    ]
    .concat();
    let read = measurements::read(&text, &gpu).unwrap();
    assert!(read.skipped.is_empty(), "{:?}", read.skipped);
    let kinds: Vec<&str> = read
        .rows
        .iter()
        .map(|r| match &r.plan {
            Schedule::Mma(_) => "mma",
            Schedule::Wgmma(_) => "wgmma",
            Schedule::Stream(_) => "stream",
            _ => "other",
        })
        .collect();
    assert_eq!(kinds, ["mma", "wgmma", "stream", "stream", "mma"]);
    let few = calibrate(&gpu, &read.rows).unwrap_err().to_string();
    assert!(few.contains("1 others it cannot") || few.contains("2 others it cannot"), "{few}");
    let error = measurements::read("{\"operator\":\"means:1\",\"plan\":{},\"ms\":1}", &gpu).unwrap_err().to_string();
    assert!(error.starts_with("line 1: "), "{error}");
}
