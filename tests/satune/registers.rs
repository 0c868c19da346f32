//! Registers of kernels on `mma.sync` and on single threads: the estimate of plans against what the compiler takes, and none spilled by
//! what the search hands out.
use crate::compiles::compile;
use crate::support::{some_of, NO_LIMIT};
use crate::tensor::lower_mma;
use crate::tensor::plans::*;
use satune::compile::{Compiled, Job};
use satune::explore::tensor_cores;
use satune_extract::{best, Descriptor, Query};
use satune_ir::term::tensor::mma_conditions;
use satune_ir::term::Schedule;
use satune_ir::DType;
use satune_rewrites::space::rules::tensor::TensorMenu;
use satune_rewrites::space::{rules, saturate, Fuel, Menu};

/// What the compiler takes more than estimated, in the whole grid below.
const ERROR: std::ops::RangeInclusive<i64> = -24..=8;

fn job(name: &str, gemm: &Gemm, plan: &TensorPlan, arch: &str) -> Job {
    let module = lower_mma(gemm, plan).unwrap();
    Job { name: name.into(), source: satune::cuda::print(&module.kernels[0]), arch: arch.into() }
}

/// Tiles, warps' tiles and rings of all sizes, in all types and orders of storage. What the compiler takes is within the
/// stated error of the estimate, and nothing that fits by it spills.
#[test]
fn estimated_registers_are_those_of_the_compiler() {
    let shapes: [([i64; 2], [i64; 2], i64, u32); 6] = [
        ([128, 128], [64, 32], 128, 4),
        ([128, 128], [64, 64], 128, 3),
        ([128, 80], [32, 80], 128, 6),
        ([64, 64], [32, 32], 64, 4),
        ([128, 160], [64, 80], 128, 3),
        ([32, 64], [16, 32], 128, 5),
    ];
    let types = [
        (Mma::F16, "NN"),
        (Mma::F16Sums, "NT"),
        (Mma::Bf16, "TN"),
        (Mma::Tf32, "NT"),
        (Mma::Tf32, "NN"),
        (Mma::S8, "NT"),
        (Mma::S8, "NN"),
    ];
    let (mut jobs, mut estimates) = (Vec::new(), Vec::new());
    for (op, layout) in types {
        let operand = op.operand();
        for (number, ([m, n], warp, row, stages)) in shapes.into_iter().enumerate() {
            // A few of each type, so that each shape is met by several.
            if !full() && (number + jobs.len()) % 3 != 0 {
                continue;
            }
            let gemm = crate::tensor::product_of(op, [2048, 2560, 2048], op.accumulator(), layout);
            let plan = TensorPlan::plain([m, n, row / i64::from(operand.bytes())], warp, op, stages);
            if plan.check(&gemm).is_err() {
                continue;
            }
            estimates.push(plan.registers(&gemm));
            jobs.push(job(&format!("{op:?} {layout} {m}x{n} {warp:?} {stages}"), &gemm, &plan, "sm_80"));
        }
    }
    let list = compile(&jobs);
    for ((kernel, job), estimate) in list.iter().zip(&jobs).zip(&estimates) {
        let (got, spilled) = (i64::from(kernel.registers), kernel.spill_bytes);
        println!("{}: {estimate} estimated, {got} taken, {spilled} bytes spilled", job.name);
    }
    for ((kernel, job), estimate) in list.iter().zip(&jobs).zip(&estimates) {
        if mma_conditions::registers_fit(*estimate, 32, None, 255).is_ok() {
            assert_eq!(kernel.spill_bytes, 0, "{}", job.name);
            assert!(ERROR.contains(&(i64::from(kernel.registers) - estimate)), "{}", job.name);
        }
    }
}

/// The whole grid is compiled where `SATUNE_FULL_GRID` is set: a minute.
fn full() -> bool {
    std::env::var_os("SATUNE_FULL_GRID").is_some()
}

/// The best of types and GPUs, from spaces of `mma.sync` alone.
#[test]
fn the_best_do_not_spill() {
    let cases = [
        ("a100", DType::F32, DType::F32, 1024, "NT"),
        ("rtx4090", DType::F32, DType::F32, 2048, "NN"),
        ("rtx4090", DType::I8, DType::I32, 1024, "NT"),
    ];
    let mut jobs = Vec::new();
    for (name, operand, sum, extent, layout) in cases {
        let gpu = Descriptor::load(name).unwrap();
        let c = crate::support::gemm(None, extent, extent, extent, operand, sum, layout);
        let mut cores = tensor_cores(&gpu);
        cores.tf32 = true;
        let menu = TensorMenu { group: None, ..TensorMenu::of(&c, &cores) };
        let none = Menu::without_threads(vec![2, 4], vec![2, 4]);
        let rules: Vec<_> = rules::all().into_iter().chain(rules::tensor::all(&c, menu)).collect();
        let space = saturate(&c, satune::explore::limits(&gpu), &none, &rules, Fuel::default()).unwrap();
        let found = best(&space, &gpu, Query { k: 8, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY });
        assert!(found.proved && found.candidates.len() == 8);
        let gemm = Gemm::of(&c).unwrap();
        for (number, candidate) in found.candidates.iter().enumerate() {
            let Schedule::Mma(plan) = &candidate.plan else { panic!("not on mma.sync") };
            println!(
                "{name} {operand:?} {number}: {} registers estimated; {:?}",
                plan.registers(&gemm),
                plan.describe()
            );
            if full() || number % 7 == 0 {
                jobs.push(job(&format!("{name} {operand:?} {number}"), &gemm, plan, &gpu.arch));
            }
        }
    }
    let list = compile(&jobs);
    for (kernel, job) in list.iter().zip(&jobs) {
        let Compiled { registers, spill_bytes, .. } = kernel;
        println!("{}: {registers} registers, {spill_bytes} bytes spilled", job.name);
        assert_eq!(*spill_bytes, 0, "{}", job.name);
    }
}

/// What the compiler takes more or less than estimated, of kernels on single threads.
const ON_THREADS: i64 = 16;

/// The best on single threads of GPUs that have nothing else for f32, and where the whole grid is asked for the eight that are shown: as
/// many registers as estimated, or of the others as many blocks as with those. What costs no block a compiler may take or leave.
#[test(slow)]
fn estimated_registers_of_kernels_on_single_threads_are_those_of_the_compiler() {
    let top = if full() { "8" } else { "1" };
    let mut wrong = Vec::new();
    for name in some_of(["v100", "rtx3090", "a6000"], if full() { 3 } else { 1 }) {
        let gpu = Descriptor::load(name).unwrap();
        let operator = "gemm:4096,4096,4096,f32";
        let problem = satune::operators::parse(operator).unwrap();
        let out = tempfile::tempdir().unwrap();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_satune"))
            .args(["explore", operator, "--gpu", name, "--top", top, "--device", "none", "--out"])
            .arg(out.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = std::fs::read_to_string(out.path().join("candidates.json")).unwrap();
        let report: satune::explore::Report = serde_json::from_str(&text).unwrap();
        assert_eq!(report.candidates.len().to_string(), top);
        let best = report.candidates.iter().min_by(|a, b| a.predicted_ms.total_cmp(&b.predicted_ms)).unwrap();
        for (number, candidate) in report.candidates.iter().enumerate() {
            let Some(compiled) = &candidate.compiled else { satune_testing::missing("NVRTC", "cuda") };
            let plan = &candidate.plan;
            let model = satune_extract::predict(plan, &problem.contraction, &gpu).unwrap();
            let made = satune_extract::compiled(plan, &problem.contraction, &gpu, compiled.registers).unwrap().cost;
            let alike = candidate.id != best.id && made.resident_blocks == model.resident_blocks;
            let estimated = model.registers;
            let taken = i64::from(compiled.registers);
            println!("{name} {number}: {estimated} registers estimated, {taken} taken; {:?}", plan.summary());
            if (taken - estimated).abs() > ON_THREADS && !alike {
                wrong.push(format!("{name} {number}: {estimated} estimated, {taken} taken"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
