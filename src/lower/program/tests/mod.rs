//! Programs are lowered, simulated (races, bounds, unwritten reads, divergent barriers), and compared exactly.
mod programs;

use super::*;
use crate::simulate::{self, Report};
use programs::*;
use satune_ir::Annotations;

/// Runs the kernels of a program on the parameters' values; written parameters are returned.
fn run(module: &Module, params: &mut [Vec<f64>]) -> Vec<Report> {
    let mut spaces: Vec<Vec<f64>> = module.workspaces.iter().map(|w| vec![0.0; w.elements as usize]).collect();
    let mut reports = Vec::new();
    for (kernel, args) in module.kernels.iter().zip(&module.args) {
        let mut values: Vec<Vec<f64>> = args
            .iter()
            .map(|a| match a {
                Argument::Param(i) => params[*i].clone(),
                Argument::Workspace(i) => spaces[*i].clone(),
            })
            .collect();
        let report = simulate::run(kernel, &mut values, &simulate::Options::default());
        reports.push(report.unwrap_or_else(|fault| panic!("{fault}\n{}", crate::cuda::print(kernel))));
        for (a, value) in args.iter().zip(values) {
            match a {
                Argument::Param(i) => params[*i] = value,
                Argument::Workspace(i) => spaces[*i] = value,
            }
        }
    }
    reports
}

fn numbers(count: i64, seed: i64) -> Vec<f64> {
    (0..count).map(|i| ((i * 7 + seed * 13 + i / 11) % 9 - 4) as f64).collect()
}

fn product((m, n, k): (i64, i64, i64), a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut out = Vec::new();
    for i in 0..m {
        for j in 0..n {
            out.push((0..k).map(|l| a[(i * k + l) as usize] * b[(l * n + j) as usize]).sum());
        }
    }
    out
}

fn check(gemm: &Gemm, options: &LowerOptions) -> (Module, Report) {
    let module = lower(&gemm.program(), options).unwrap_or_else(|e| panic!("{e}\n{gemm:?}"));
    let (m, n, k) = gemm.shape;
    let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
    let mut params = vec![a.clone(), b.clone(), vec![0.0; (m * n) as usize]];
    let report = run(&module, &mut params).remove(0);
    assert_eq!(report.unwritten, 0);
    let expected = product(gemm.shape, &a, &b);
    let wrong = params[2].iter().zip(&expected).position(|(x, y)| x != y);
    assert_eq!(wrong, None, "{gemm:?}\n{}", crate::cuda::print(&module.kernels[0]));
    (module, report)
}

fn text(module: &Module) -> String {
    module.kernels.iter().map(crate::cuda::print).collect()
}

/// The article's last stage, shrunk.
fn vectorized() -> Gemm {
    Gemm { vthreads: (2, 2), vector: 4, local_vector: 4, unroll: true, shape: (64, 96, 40), ..Gemm::default() }
}

fn pipelined(stages: &[i64], asynchronous: bool) -> Annotations {
    let mut out = Annotations::new();
    out.insert("software_pipeline_stage".into(), ints(stages));
    out.insert("software_pipeline_order".into(), ints(&[0, 1, 2]));
    if asynchronous {
        out.insert("software_pipeline_async_stages".into(), ints(&[0]));
    }
    out
}

#[test]
fn thread_tiles() {
    let (module, report) = check(&Gemm::default(), &LowerOptions::default());
    let kernel = &module.kernels[0];
    assert_eq!((kernel.grid, kernel.block, kernel.shared_bytes), ([4, 4, 1], [4, 4, 1], 2 * 16 * 8 * 4));
    // Two barriers per k tile.
    assert_eq!(report.total.barriers, 16 * 2 * 4);
    check(&Gemm { init_inside: true, ..Gemm::default() }, &LowerOptions::default());
}

#[test]
fn vthreads_are_packed() {
    let gemm = Gemm { vthreads: (2, 2), shape: (64, 96, 40), ..Gemm::default() };
    let (module, _) = check(&gemm, &LowerOptions::default());
    let registers: Vec<(&str, u64)> = module.kernels[0]
        .arrays
        .iter()
        .filter(|a| a.space == Space::Register)
        .map(|a| (a.name.as_str(), a.len))
        .collect();
    assert_eq!(registers, [("C_local", 64), ("A_shared_local", 8), ("B_shared_local", 8)]);
    println!("{}", text(&module));
}

#[test]
fn vectorized_stage() {
    let (module, _) = check(&vectorized(), &LowerOptions::default());
    println!("{}", text(&module));
    let (module, _) = check(&Gemm { transposed: true, ..vectorized() }, &LowerOptions::default());
    println!("{}", text(&module));
}
