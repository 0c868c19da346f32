//! Programs sampled from spaces: their traces are replayed on the source program; the scheduled program means the same, bit
//! for bit, by the interpreter; its kernels are clean in the simulator and compute the same.
use crate::support::*;
use satune::scheduled;
use satune_ir::term::Contraction;
use satune_ir::DType;

fn right(contraction: &Contraction, count: usize) {
    sampled_schedules_are_right(&source(contraction), contraction, count);
}

#[test(slow)]
fn random_schedules_of_30x45x17_are_right() {
    right(&gemm(None, 30, 45, 17, DType::F32, DType::F32, "NN"), 40);
}

#[test]
fn random_schedules_of_1x7x64_are_right() {
    right(&gemm(None, 1, 7, 64, DType::F32, DType::F32, "NN"), 40);
}

#[test(slow)]
fn random_schedules_of_all_layouts_are_right() {
    for layout in some_of(["NN", "NT", "TN", "TT"], 2) {
        right(&gemm(None, 64, 64, 32, DType::F32, DType::F32, layout), 10);
    }
}

#[test(slow)]
fn random_schedules_of_half_precision_are_right() {
    right(&gemm(None, 48, 32, 40, DType::F16, DType::F32, "NT"), 24);
    right(&gemm(None, 33, 32, 24, DType::F16, DType::F32, "TN"), 16);
}

#[test]
fn random_schedules_of_a_batch_are_right() {
    right(&gemm(Some(3), 20, 24, 16, DType::F64, DType::F64, "NN"), 20);
    right(&gemm(Some(3), 20, 24, 16, DType::F64, DType::F64, "TT"), 20);
}

#[test(slow)]
fn random_schedules_of_a_long_reduction_are_right() {
    right(&gemm(None, 16, 16, 512, DType::F32, DType::F32, "TN"), 40);
}

/// Matmul with its rows and columns bound; `threads` of a block along the columns.
fn bound(threads: i64) -> satune_rewrites::Trace {
    let text = format!(
        "def schedule(sch):
    c = sch.get_sblock(\"C\")
    i, j, k = sch.get_loops(c)
    jo, ji = sch.split(j, [None, {threads}])
    sch.bind(i, \"blockIdx.y\")
    sch.bind(jo, \"blockIdx.x\")
    sch.bind(ji, \"threadIdx.x\")
"
    );
    satune_rewrites::Trace::read(&text).unwrap()
}

#[test]
fn schedules_beyond_the_limits_of_the_gpu_are_refused() {
    let contraction = gemm(None, 64, 2048, 32, DType::F32, DType::F32, "NN");
    let source = source(&contraction);
    let mut gpu = satune_extract::Descriptor::load("h200").unwrap();
    let refusal = |trace, gpu: &_| match scheduled::of_trace(&source, trace, &scheduled::options(gpu)) {
        Err(error @ scheduled::ScheduledError::Limits(_)) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => "none".into(),
    };
    assert_eq!(refusal(bound(1024), &gpu), "none");
    let many = refusal(bound(2048), &gpu);
    assert!(many.contains("extent of threadIdx.x (2048) is greater than the allowed maximum (1024)"), "{many}");
    let unbound = refusal(satune_rewrites::Trace::default(), &gpu);
    assert!(unbound.contains("Block C runs outside of every kernel") && unbound.contains("; bind one of"), "{unbound}");
    // The descriptor's own limit.
    gpu.threads_per_block = 512;
    assert_eq!(refusal(bound(512), &gpu), "none");
    let many = refusal(bound(1024), &gpu);
    assert!(many.contains("threads per block (1024) is greater than the allowed maximum (512)"), "{many}");
}
