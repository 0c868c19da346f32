//! The explorer's own speed: saturation, counting, extraction, simulation. Compare with a saved baseline:
//! `cargo bench -- --save-baseline before`, change, `cargo bench -- --baseline before`.
use criterion::{criterion_group, criterion_main, Criterion};
use satune::explore::{check, space};
use satune::operators;
use satune_extract::{best, Counts, Descriptor, Query};
use std::time::Duration;

fn explorer(c: &mut Criterion) {
    let gpu = Descriptor::load("h200").expect("a built-in descriptor");
    let mut group = c.benchmark_group("gemm 1024^3 f32 on h200");
    group.sample_size(10).measurement_time(Duration::from_secs(10));
    let problem = operators::parse("gemm:1024,1024,1024,f32").expect("an operator");
    group.bench_function("saturate", |b| b.iter(|| space(&problem, &gpu).map(|s| s.report.nodes)));
    let held = space(&problem, &gpu).expect("a space");
    group.bench_function("count", |b| b.iter(|| Counts::of(&held).total()));
    let query = Query { k: 8, diverse: false, limit: Duration::from_secs(600), below_ms: f64::INFINITY };
    group.bench_function("extract 8", |b| b.iter(|| best(&held, &gpu, query).candidates.len()));
    let found = best(&held, &gpu, query);
    let plan = &found.candidates[0].plan;
    let options = satune::scheduled::options(&gpu);
    group.bench_function("lower and simulate", |b| {
        b.iter(|| check(plan, &problem.contraction, &options, &|| true).map(|c| c.blocks))
    });
    group.finish();
}

/// The search of tensor-core schedules where tiles wait for DRAM alike, where operands hang over the edge, and of a usual
/// product.
fn tensor_cores(c: &mut Criterion) {
    let mut group = c.benchmark_group("extract 8 on tensor cores");
    group.sample_size(10).measurement_time(Duration::from_secs(10));
    let query = Query { k: 8, diverse: false, limit: Duration::from_secs(600), below_ms: f64::INFINITY };
    for (gpu, operator) in [
        ("h200", "gemm:16,8192,8192,bf16,TN"),
        ("h200", "gemm:4097,4095,4093,bf16,TN"),
        ("a100", "gemm:4096,4096,4096,bf16,TN"),
    ] {
        let gpu = Descriptor::load(gpu).expect("a built-in descriptor");
        let problem = operators::parse(operator).expect("an operator");
        let held = space(&problem, &gpu).expect("a space");
        let name = format!("{operator} on {}", gpu.name);
        group.bench_function(name, |b| b.iter(|| best(&held, &gpu, query).candidates.len()));
    }
    group.finish();
}

criterion_group!(benches, explorer, tensor_cores);
criterion_main!(benches);
