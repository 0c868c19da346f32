//! What a module's kernels compute in the simulator.
use satune::lower::program::{Argument, Module};
use satune::simulate::{self, Report};

/// Runs the kernels of a program on the parameters' values; written parameters are returned.
pub fn run(module: &Module, params: &mut [Vec<f64>]) -> Vec<Report> {
    // What a kernel reads of a workspace before another has written it shows in its results.
    let mut spaces: Vec<Vec<f64>> = module.workspaces.iter().map(|w| vec![f64::NAN; w.elements as usize]).collect();
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
        reports.push(report.unwrap_or_else(|fault| panic!("{fault}\n{}", satune::cuda::print(kernel))));
        for (a, value) in args.iter().zip(values) {
            match a {
                Argument::Param(i) => params[*i] = value,
                Argument::Workspace(i) => spaces[*i] = value,
            }
        }
    }
    reports
}

/// Small whole numbers, different ones for each seed.
pub fn numbers(count: i64, seed: i64) -> Vec<f64> {
    (0..count).map(|i| ((i * 7 + seed * 13 + i / 11) % 9 - 4) as f64).collect()
}

/// The matrix product, rows after rows.
pub fn product((m, n, k): (i64, i64, i64), a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut out = Vec::new();
    for i in 0..m {
        for j in 0..n {
            out.push((0..k).map(|l| a[(i * k + l) as usize] * b[(l * n + j) as usize]).sum());
        }
    }
    out
}

/// The CUDA text of all kernels.
pub fn text(module: &Module) -> String {
    module.kernels.iter().map(satune::cuda::print).collect()
}
