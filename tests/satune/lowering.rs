//! Programs are lowered, simulated (races, bounds, unwritten reads, divergent barriers), and compared exactly.
use crate::programs::*;
use satune::kernel::Space;
use satune::lower::program::*;
use satune::simulate::{self, Report};
use satune_ir::{Annotations, DType};

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
    assert_eq!(wrong, None, "{gemm:?}\n{}", satune::cuda::print(&module.kernels[0]));
    (module, report)
}

fn text(module: &Module) -> String {
    module.kernels.iter().map(satune::cuda::print).collect()
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

#[test]
fn rings_of_asynchronous_copies() {
    for stages in 2..=4 {
        for shape in [(64, 96, 40), (64, 96, 16), (64, 96, 8)] {
            let gemm = Gemm { k_annotations: pipelined(&[0, 0, stages - 1], true), shape, ..vectorized() };
            let (module, report) = check(&gemm, &LowerOptions::default());
            let kernel = &module.kernels[0];
            if shape.2 > 8 {
                assert_eq!(u64::from(kernel.shared_bytes), stages as u64 * (32 * 8 + 8 * 32) * 4);
                assert!(report.total.async_copies > 0);
                // One barrier per k tile.
                assert_eq!(report.total.barriers as i64, kernel.grid.iter().product::<u32>() as i64 * shape.2 / 8);
            }
            if stages == 3 && shape.2 == 40 {
                println!("{}", text(&module));
            }
        }
    }
}

#[test]
fn without_cp_async_the_next_tile_waits_in_registers() {
    let mut options = LowerOptions::default();
    options.target.has_cp_async = false;
    let gemm = Gemm { k_annotations: pipelined(&[0, 0, 1], true), ..vectorized() };
    let (_, report) = check(&gemm, &options);
    assert_eq!(report.total.async_copies, 0);
    let gemm = Gemm { k_annotations: pipelined(&[0, 0, 2], true), ..vectorized() };
    check(&gemm, &options);
}

#[test]
fn register_double_buffer() {
    let mut staged = Annotations::new();
    staged.insert("tir.manifest_shared_memory_local_stage".into(), satune_ir::Attr::Int(1));
    for transposed in [false, true] {
        for shape in [(64, 96, 40), (64, 96, 16), (50, 90, 37)] {
            let gemm = Gemm {
                k_annotations: pipelined(&[0, 0, 1], false),
                copy_annotations: staged.clone(),
                transposed,
                shape,
                ..vectorized()
            };
            let (module, _) = check(&gemm, &LowerOptions::default());
            if transposed && shape.0 == 64 {
                println!("{}", text(&module));
            }
        }
    }
}

#[test]
fn ragged_shapes() {
    for shape in [(30, 45, 17), (64, 45, 16), (33, 64, 9), (64, 64, 17), (31, 64, 16)] {
        for (vthreads, vector, transposed) in
            [((1, 1), 1, false), ((2, 2), 1, false), ((2, 1), 4, true), ((1, 2), 2, false)]
        {
            for init_inside in [false, true] {
                let gemm =
                    Gemm { shape, vthreads, vector, local_vector: vector, transposed, init_inside, ..Gemm::default() };
                let (module, _) = check(&gemm, &LowerOptions::default());
                if shape == (30, 45, 17) && vthreads == (2, 2) && !init_inside {
                    println!("{}", text(&module));
                }
            }
            for (stages, asynchronous) in [(1, false), (2, true)] {
                let k_annotations = pipelined(&[0, 0, stages], asynchronous);
                let gemm = Gemm {
                    shape,
                    vthreads,
                    vector,
                    local_vector: vector,
                    transposed,
                    k_annotations,
                    ..Gemm::default()
                };
                check(&gemm, &LowerOptions::default());
            }
        }
    }
}

#[test]
fn tiles_that_the_threads_do_not_divide() {
    // 24 x 20 elements of A by 24 threads of 5, 3 pieces: the copies' last steps overshoot.
    let gemm = Gemm { shape: (48, 40, 21), threads: (6, 5), k_tile: 7, ..Gemm::default() };
    let (module, _) = check(&gemm, &LowerOptions::default());
    println!("{}", text(&module));
    check(&Gemm { shape: (50, 41, 23), ..gemm }, &LowerOptions::default());
}

#[test]
fn half_inputs_are_widened() {
    let gemm = Gemm {
        input: DType::F16,
        vector: 8,
        local_vector: 4,
        vthreads: (2, 2),
        shape: (64, 64, 32),
        ..Gemm::default()
    };
    let (module, _) = check(&gemm, &LowerOptions::default());
    println!("{}", text(&module));
}
