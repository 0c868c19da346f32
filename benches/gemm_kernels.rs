//! The kernels that are found for a few GEMMs: `cargo bench --bench gemm_kernels` shows a regression of any of them.
//!
//! On a GPU the times are measured (CUDA events, L2 flushed, median of the device's own repeats). Elsewhere the simulator
//! stands in: what is shown is then the model's prediction for the descriptor in `SATUNE_BENCH_GPU` (h200 by default),
//! which only changes when the space, the search or the model does.
use criterion::{criterion_group, criterion_main, Criterion};
use satune::device::cuda::Cuda;
use satune::device::{Ask, Device, DeviceKind, Simulator, Subject};
use satune::explore::space;
use satune::operators;
use satune::store::Verdict;
use satune_extract::{best, Descriptor, Query};
use std::time::Duration;

const PROGRAMS: [&str; 4] =
    ["gemm:1024,1024,1024,f32", "gemm:4096,4096,4096,f32", "gemm:512,512,16384,f32", "gemm:1000,1000,1000,f32"];

fn gemm_kernels(c: &mut Criterion) {
    let gpu = std::env::var("SATUNE_BENCH_GPU").unwrap_or_else(|_| "h200".into());
    let gpu = Descriptor::load(&gpu).expect("a descriptor");
    let mut device: Box<dyn Device> = match Cuda::open(env!("CARGO_BIN_EXE_satune").into()) {
        Ok(cuda) => Box::new(cuda),
        Err(error) => {
            eprintln!("not measured on a GPU ({error}); the times below are predictions");
            Box::new(Simulator::of(&gpu))
        }
    };
    let kind = if device.identity().kind == DeviceKind::Cuda { "measured" } else { "predicted" };
    let mut group = c.benchmark_group(format!("{kind}, {}", device.identity().device));
    group.sample_size(10).warm_up_time(Duration::from_millis(1)).measurement_time(Duration::from_millis(1));
    let query = Query { k: 1, diverse: false, limit: Duration::from_secs(60), below_ms: f64::INFINITY };
    for program in PROGRAMS {
        let problem = operators::parse(program).expect("an operator");
        let space = space(&problem, &gpu).expect("a space");
        let found = best(&space, &gpu, query).candidates;
        let subject =
            Subject::of((&found[0].plan, &found[0].cost), &problem, &gpu, &|| true).expect("a right candidate");
        device.prepare(&problem, &[&subject]);
        group.bench_function(program, |b| {
            b.iter_custom(|iterations| match device.measure(&problem, &subject, &Ask::default()) {
                Ok(Verdict::Measured(timing)) => Duration::from_secs_f64(timing.median_ms() / 1e3 * iterations as f64),
                other => panic!("{program}: {other:?}"),
            });
        });
    }
    group.finish();
}

criterion_group!(benches, gemm_kernels);
criterion_main!(benches);
