//! Single changes of emitted text, each of which makes the kernel wrong: executing the text must find them. The changes stand in
//! `tests/cases/mutants.toml`; where the text to change is not in a kernel any more, the test fails.
use crate::compiles::{classic, compile};
use crate::executed::{of_schedule, texts};
use crate::hopper::{clustered, small as wgmma, stream};
use crate::support::{gemm, h200, kernels_of, source};
use crate::tensor::plans::*;
use crate::tensor::small as mma;
use rand::rngs::StdRng;
use rand::SeedableRng;
use satune::compile::Job;
use satune::execute::{execute_whole, Refusal};
use satune::kernel::Mma;
use satune::lower::program::Module;
use satune::streaming;
use satune::streaming::StreamProblem;
use satune::workload::{Explorable, Workload};
use satune_extract::{Counts, Descriptor};
use satune_ir::term::stream::StreamPlan;
use satune_ir::term::tensor::{Wmma, WmmaShape};
use satune_ir::term::{Pipe, Schedule};
use satune_ir::{DType, Program};
use serde::Deserialize;

/// A change of a text.
#[derive(Deserialize)]
struct Mutant {
    /// Which kernel, see [`kernels`].
    kernel: String,
    /// What is done to it.
    what: String,
    /// The text that is changed.
    find: String,
    /// The place among those that it is at, from 0; from the end where negative.
    #[serde(default)]
    at: i64,
    /// What stands there instead.
    with: String,
}

#[derive(Deserialize)]
struct Mutants {
    mutant: Vec<Mutant>,
}

/// A kernel with its program and architecture.
struct Subject {
    name: &'static str,
    arch: &'static str,
    source: Program,
    module: Module,
}

/// A schedule of a streaming operator whose text has some words.
fn streaming_kernel(operator: &str, words: &[&str]) -> (Program, Module) {
    let gpu = Descriptor::load("h200").unwrap();
    let problem = StreamProblem::operator(operator).unwrap();
    let space = problem.space(&gpu).unwrap();
    let counts = Counts::of(&space);
    let mut random = StdRng::seed_from_u64(2);
    for _ in 0..400 {
        let plan = StreamPlan::from_term(&counts.sample(&space, &mut random).unwrap(), &problem.streams).unwrap();
        let made = streaming::scheduled(problem.program(), &plan, &problem.streams, &h200()).unwrap();
        let text: String = made.module.kernels.iter().map(satune::cuda::print).collect();
        if words.iter().all(|w| text.contains(w)) {
            return (problem.program().clone(), made.module);
        }
    }
    panic!("no schedule of {operator} has {words:?}");
}

/// The kernels that are changed: on single threads and on tensor cores of each generation.
fn kernels(mutants: &[Mutant]) -> Vec<Subject> {
    let tensor = |name, arch, operator: &str, schedule: Schedule| {
        let (source, module) = of_schedule(operator, &schedule);
        Subject { name, arch, source, module }
    };
    let wmma =
        TensorPlan::plain([32, 64, 32], [32, 32], Mma::Wmma(Wmma::of(WmmaShape::ALL[0], DType::F16).unwrap()), 2);
    let base = wgmma(1, 64);
    let mut all = vec![
        tensor("mma", "80", "gemm:72,88,128,f16,NT,out=f16,bias,relu", Schedule::Mma(mma(Mma::F16))),
        tensor("split", "80", "gemm:64,64,128,bf16,NT", Schedule::Mma(TensorPlan { split_k: 2, ..mma(Mma::Bf16) })),
        tensor("i8", "80", "gemm:64,64,192,i8,NT", Schedule::Mma(mma(Mma::S8))),
        tensor("wmma", "70", "gemm:64,64,96,f16,NT", Schedule::Mma(wmma)),
        tensor("wgmma", "90a", "gemm:128,64,384,f16,NT", Schedule::Wgmma(base.clone())),
        tensor(
            "store",
            "90a",
            "gemm:128,64,128,f16,NN,out=f16,bias,relu",
            Schedule::Wgmma(WgmmaPlan { store: TileStore::Tma, blocks: None, ..wgmma(2, 64) }),
        ),
        tensor(
            "cluster",
            "90a",
            "gemm:128,64,384,f16,NT",
            Schedule::Wgmma(WgmmaPlan { blocks: None, ..clustered([2, 1]) }),
        ),
        tensor(
            "warps",
            "90a",
            "gemm:128,64,384,f16,NT",
            Schedule::Wgmma(WgmmaPlan { arrive_per_warp: true, ..base.clone() }),
        ),
        tensor("stream", "90a", "gemm:64,128,1280,f16,NT", Schedule::Wgmma(stream(1, 3))),
        tensor(
            "turns",
            "90a",
            "gemm:128,128,192,f16,NT",
            Schedule::Wgmma(WgmmaPlan { ping_pong: true, tile: [64, 64, 64], ..wgmma(2, 64) }),
        ),
    ];
    let c = gemm(None, 256, 128, 48, DType::F32, DType::F32, "NN");
    let registers = classic(&c);
    let mut asynchronous = registers.clone();
    asynchronous.pipe = Pipe::Async(3);
    asynchronous.a.shared.as_mut().unwrap().1.vector = 1;
    for (name, plan) in [("f32", registers), ("async", asynchronous)] {
        all.push(Subject { name, arch: "80", source: source(&c), module: kernels_of(&plan, &c) });
    }
    let streams = [
        ("softmax", "softmax:3,300,f32", vec!["__shfl_xor_sync", "__syncthreads"]),
        ("transpose", "transpose:40,72,f32", vec!["__shared__", "__syncthreads"]),
        ("rows", "rowsum:3,1000,f32", vec!["__shfl_xor_sync"]),
        ("norm", "layernorm:3,200,f16", vec!["__syncthreads"]),
    ];
    for (name, operator, mut words) in streams {
        // There is what is changed.
        words.extend(mutants.iter().filter(|m| m.kernel == name).map(|m| m.find.as_str()));
        let (source, module) = streaming_kernel(operator, &words);
        all.push(Subject { name, arch: "90", source, module });
    }
    all
}

/// A text with a change; none where what is to be changed is not there.
fn changed(text: &str, mutant: &Mutant) -> Option<String> {
    let places: Vec<usize> = text.match_indices(&mutant.find).map(|(at, _)| at).collect();
    let at = if mutant.at < 0 { places.len() as i64 + mutant.at } else { mutant.at };
    let at = *places.get(usize::try_from(at).ok()?)?;
    Some(format!("{}{}{}", &text[..at], mutant.with, &text[at + mutant.find.len()..]))
}

#[test(slow)]
fn changes_of_the_text_are_found() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/mutants.toml");
    let Mutants { mutant: mutants } = toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut missed = Vec::new();
    let mut kinds = std::collections::BTreeSet::new();
    for subject in kernels(&mutants) {
        let (texts, ptx) = texts(&subject.module, subject.arch);
        if std::env::var_os("SATUNE_SHOW").is_some() {
            println!("=== {}\n{}", subject.name, texts.join("\n"));
        }
        execute_whole(&subject.source, &subject.module, &texts, &ptx)
            .unwrap_or_else(|e| panic!("{} is wrong without a change: {e}", subject.name));
        for mutant in mutants.iter().filter(|m| m.kernel == subject.name) {
            kinds.insert(subject.name);
            let Mutant { what, find, .. } = mutant;
            // Of several kernels the first that has it.
            let place = texts.iter().enumerate().find_map(|(i, text)| Some((i, changed(text, mutant)?)));
            let (place, text) = place.unwrap_or_else(|| panic!("{}: `{find}` is not in its text", subject.name));
            let job = Job { name: "mutant".into(), source: text.clone(), arch: format!("compute_{}", subject.arch) };
            let (mut others, mut compiled) = (texts.clone(), ptx.clone());
            compiled[place] = compile(&[job])[0].ptx.clone();
            assert_ne!(compiled[place], ptx[place], "{}: {what}: the change has no effect on the PTX", subject.name);
            others[place] = text;
            match execute_whole(&subject.source, &subject.module, &others, &compiled) {
                Err(Refusal::Wrong(fault)) => println!("{}, {what}: {fault}", subject.name),
                Err(Refusal::Unable(why)) => panic!("{}, {what}: {why}", subject.name),
                Ok(_) => missed.push(format!("{}: {what}", subject.name)),
            }
        }
    }
    assert!(kinds.len() >= 8 && mutants.len() >= 40, "{} changes of {} kernels", mutants.len(), kinds.len());
    assert!(mutants.iter().all(|m| kinds.contains(m.kernel.as_str())), "a change of an unknown kernel");
    println!("{} of {} are found", mutants.len() - missed.len(), mutants.len());
    assert!(missed.len() <= mutants.len() / 40, "not found: {missed:#?}");
}
