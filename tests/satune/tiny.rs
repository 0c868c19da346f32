//! Tiny operators: extents of 1, around powers of two and primes, in every type and layout, on every GPU. Something is ranked
//! for each, and nothing is refused on the way, since the space holds right schedules only.
//!
//! The seed is another one in each run, and printed; `SATUNE_SEED=N` repeats a run, `SATUNE_SAMPLES=N` takes N times as many.
use crate::support::{samples, seed, NO_LIMIT};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rayon::prelude::*;
use satune::explore::Request;
use satune::progress::Quiet;
use satune::source;
use satune_extract::Descriptor;
use satune_rewrites::space::Fuel;

const SMALL: [i64; 15] = [1, 1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33];
const LONG: [i64; 5] = [64, 65, 129, 1024, 4096];

/// What was once refused, or ranked nothing.
const NAMED: [(&str, &str); 30] = [
    // A reduction over one value, padded after its axes were put in order.
    ("gemm:1,4096,1,f16", "h200"),
    ("gemm:64,129,1,f16", "h200"),
    ("gemm:8,129,1,tf32,NN", "rtx4090"),
    ("bmm:3,1,31,1,tf32,NT", "rtx4090"),
    ("gemm:1,5,1,bf16,TT,residual", "h200"),
    // A tile whose swizzle moves nothing.
    ("gemm:1,3,2,tf32,TN", "h200"),
    ("gemm:5,9,7,tf32,TN", "rtx3090"),
    ("gemm:31,1,3,tf32", "a100"),
    ("gemm:8,1,1,tf32,bias", "l4"),
    // What is copied into a swizzled tile ends within an access.
    ("bmm:3,2,4096,31,f64,NT", "v100"),
    ("gemm:2,4096,31,f32,NT", "a6000"),
    ("gemm:1,129,15,f64,TT", "h200"),
    // Parts of one result, added up by one of many threads.
    ("gemm:1,1,4096,f16,NN", "v100"),
    ("gemm:1,1,4096,e4m3,TN", "a6000"),
    // A store of eight 16-bit results reads eight sums of 32 bits.
    ("gemm:17,16,2,e4m3,out=bf16", "a6000"),
    ("gemm:16,16,4,e5m2,out=bf16", "v100"),
    // A write-back of an axis of one value under more threads than that.
    ("gemm:8,1,1024,f32", "h200"),
    ("conv1d:1,16,4,1,3,f32", "h200"),
    ("bmm:2,5,1,16,f16,TN", "t4"),
    ("gemm:2,1,7,f64,NT", "v100"),
    ("bmm:1,15,1,1,f32,TT,alpha=0.5", "rtx3090"),
    // Convolutions of one position: an axis without digits.
    ("conv1d:1,5,2,16,5,f64", "h200"),
    ("conv2d:1,3,3,4,8,3,3,f16,bias", "a100"),
    ("conv3d:1,2,2,1,3,1,2,2,1,i8", "t4"),
    // One output channel as well, and of a kernel that windows alone fill.
    ("conv1d:1,2,3,1,4,f32,pad=1", "v100"),
    ("conv2d_transpose:3,1,5,4,3,1,3,e4m3,stride=3", "h200"),
    // Nothing is added up: one channel, a kernel of one element.
    ("conv1d:1,5,1,3,1,f32,pad=1", "h200"),
    ("conv2d:1,1,1,1,1,1,1,tf32,bias,relu", "l4"),
    // A window that sees padding only.
    ("conv2d:3,2,1,1,5,3,1,bf16,stride=3,pad=1,alpha=0.5", "h200"),
    // Windows of 25 elements on two: of what is padded something is left where rows along k are cut.
    ("conv3d:1,5,2,1,2,5,3,5,5,f64,stride=3,pad=2", "rtx4090"),
];

fn pick<T: Clone>(rng: &mut StdRng, list: &[T]) -> T {
    list.choose(rng).expect("no list is empty").clone()
}

fn extent(rng: &mut StdRng) -> i64 {
    if rng.gen_bool(0.1) {
        pick(rng, &LONG)
    } else {
        pick(rng, &SMALL)
    }
}

/// What is done with the sums.
fn options(rng: &mut StdRng, dtype: &str) -> String {
    if dtype == "f64" || dtype == "i8" {
        return String::new();
    }
    let all = [("out=bf16", 0.15), ("bias", 0.15), ("gelu", 0.1), ("residual", 0.1), ("alpha=0.5", 0.1)];
    all.iter().filter(|(_, p)| rng.gen_bool(*p)).map(|(o, _)| format!(",{o}")).collect()
}

fn operator(rng: &mut StdRng) -> String {
    let dtype = pick(rng, &["f32", "tf32", "f64", "f16", "bf16", "e4m3", "e5m2", "i8"]);
    let layout = pick(rng, &["NN", "NT", "TN", "TT"]);
    let [m, n, k] = [extent(rng), extent(rng), extent(rng)];
    let after = options(rng, dtype);
    match rng.gen_range(0..20) {
        0..=8 => format!("gemm:{m},{n},{k},{dtype},{layout}{after}"),
        9..=11 => format!("bmm:{},{m},{n},{k},{dtype},{layout}{after}", pick(rng, &[1, 2, 3, 5])),
        12..=15 => convolution(rng, dtype, &after, &[1, 2, 3, 4, 5, 8, 16]),
        _ => {
            let names = ["rowsum", "mean", "softmax", "transpose", "gemv", "layernorm", "rmsnorm", "relu_chain"];
            format!("{}:{m},{n},{}", pick(rng, &names), pick(rng, &["f32", "f16", "bf16"]))
        }
    }
}

/// Of small sizes along all dimensions, some of them no larger than the kernel.
fn convolution(rng: &mut StdRng, dtype: &str, after: &str, channels: &[i64]) -> String {
    let (name, rank) = pick(rng, &[("conv1d", 1), ("conv2d", 2), ("conv3d", 3), ("conv2d_transpose", 2)]);
    let sizes: &[i64] = if rank == 3 { &[1, 2, 3, 5] } else { &[1, 2, 3, 4, 5, 6, 8, 13, 17] };
    let mut extents = vec![pick(rng, &[1, 1, 2, 3])];
    extents.extend((0..rank).map(|_| pick(rng, sizes)));
    extents.extend([pick(rng, channels), pick(rng, channels)]);
    extents.extend((0..rank).map(|_| pick(rng, &[1, 1, 2, 3, 5])));
    let extents: Vec<String> = extents.iter().map(i64::to_string).collect();
    let stride = pick(rng, &["", "", ",stride=2", ",pad=1", ",stride=3,pad=2"]);
    let dilation = if name != "conv2d_transpose" && rng.gen_bool(0.3) { ",dilation=2" } else { "" };
    format!("{name}:{},{dtype}{stride}{dilation}{after}", extents.join(","))
}

/// Whether there is no such convolution: its kernel is larger than its input, or its padding than its result.
fn is_none(refusal: &str) -> bool {
    ["is larger than its input of", "cuts a kernel of", "there is no result"].iter().any(|r| refusal.contains(r))
}

/// What is wrong with the exploration of an operator; `None` where nothing is, or the operator is none.
fn fault(operator: &str, gpu: &str) -> Option<String> {
    let gpu = Descriptor::load(gpu).expect("a built-in GPU");
    let request = Request { gpu, top: 3, twins: true, limit: NO_LIMIT, compile: false, fuel: Fuel::default() };
    let work = match source::load_work(operator) {
        Ok(work) => work,
        Err(error) => return Some(error.to_string()).filter(|e| !is_none(e)),
    };
    match work.explore_on(&request, None, &Quiet) {
        Err(error) => Some(error.to_string()),
        Ok(report) if report.candidates.is_empty() => Some(format!("nothing is ranked: {:?}", report.bugs.first())),
        Ok(report) => report.bugs.first().cloned(),
    }
}

fn all_are_ranked(cases: &[(String, String)]) {
    let faults: Vec<String> = cases
        .par_iter()
        .filter_map(|(operator, gpu)| fault(operator, gpu).map(|why| format!("{operator} --gpu {gpu}: {why}")))
        .collect();
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), cases.len(), faults.join("\n\n"));
}

#[test]
fn what_was_once_refused_is_ranked() {
    all_are_ranked(&NAMED.map(|(operator, gpu)| (operator.into(), gpu.into())));
}

#[test]
fn something_is_ranked_for_each_tiny_convolution() {
    let mut rng = StdRng::seed_from_u64(seed());
    let gpus: Vec<String> = Descriptor::names().map(String::from).collect();
    let mut case = || {
        let dtype = pick(&mut rng, &["f32", "tf32", "f64", "f16", "bf16", "e4m3", "i8"]);
        let after = options(&mut rng, dtype);
        (convolution(&mut rng, dtype, &after, &[1, 1, 2, 3, 4, 5]), pick(&mut rng, &gpus))
    };
    let cases: Vec<(String, String)> = (0..samples(20)).map(|_| case()).collect();
    all_are_ranked(&cases);
}

#[test]
fn something_is_ranked_for_each_tiny_operator() {
    let mut rng = StdRng::seed_from_u64(seed());
    let gpus: Vec<String> = Descriptor::names().map(String::from).collect();
    let cases: Vec<(String, String)> = (0..samples(20)).map(|_| (operator(&mut rng), pick(&mut rng, &gpus))).collect();
    all_are_ranked(&cases);
}
