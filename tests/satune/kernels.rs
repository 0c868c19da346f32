//! Kernels of random schedules: equal to the contraction bit for bit on integers, clean in the simulator.
use crate::support::*;
use rand::SeedableRng;
use satune::lower::{lower, Argument};
use satune::simulate;
use satune_extract::Counts;
use satune_ir::term::*;
use satune_ir::DType;

/// Lowers and simulates a plan; compares with the definition.
pub fn check(plan: &Plan, contraction: &Contraction, seed: u64) {
    let module = lower(plan, contraction, "gemm").unwrap();
    let a = inputs(&contraction.a, contraction, seed);
    let b = inputs(&contraction.b, contraction, seed + 1);
    let expected = reference(contraction, &a, &b);
    let mut c = vec![f64::NAN; expected.len()];
    let mut workspace = vec![f64::NAN; module.workspace.0 as usize];
    for (kernel, arguments) in module.kernels.iter().zip(&module.args) {
        let mut values: Vec<Vec<f64>> = arguments
            .iter()
            .map(|argument| match argument {
                Argument::A => a.clone(),
                Argument::B => b.clone(),
                Argument::C => c.clone(),
                Argument::Workspace => workspace.clone(),
            })
            .collect();
        let report = simulate::run(kernel, &mut values, &simulate::Options::default())
            .unwrap_or_else(|fault| panic!("{fault}\n{plan:#?}"));
        assert_eq!(report.unwritten, 0, "{plan:#?}");
        for (argument, value) in arguments.iter().zip(values) {
            match argument {
                Argument::C => c = value,
                Argument::Workspace => workspace = value,
                Argument::A | Argument::B => {}
            }
        }
    }
    assert!(c == expected, "wrong numbers from {plan:#?}");
}

fn samples(contraction: &Contraction, count: usize) {
    let space = space(contraction);
    let counts = Counts::of(&space);
    let mut rng = rand::rngs::StdRng::seed_from_u64(7);
    for i in 0..count {
        let term = counts.sample(&space, &mut rng).unwrap();
        let plan = Plan::from_term(&term, contraction).unwrap();
        check(&plan, contraction, i as u64);
    }
}

#[test]
fn random_schedules_of_30x45x17_are_right() {
    samples(&gemm(None, 30, 45, 17, DType::F32, DType::F32, "NN"), 100);
}

#[test]
fn random_schedules_of_1x7x64_are_right() {
    samples(&gemm(None, 1, 7, 64, DType::F32, DType::F32, "NN"), 100);
}

#[test]
fn random_schedules_of_64x64x32_are_right_in_every_layout() {
    for layout in ["NN", "NT", "TN", "TT"] {
        samples(&gemm(None, 64, 64, 32, DType::F32, DType::F32, layout), 25);
    }
}

#[test]
fn random_schedules_with_half_inputs_are_right() {
    samples(&gemm(None, 48, 32, 40, DType::F16, DType::F32, "NT"), 100);
}

#[test]
fn random_schedules_of_a_batch_in_doubles_are_right() {
    samples(&gemm(Some(3), 20, 24, 16, DType::F64, DType::F64, "NN"), 100);
}

#[test]
fn random_schedules_with_a_long_reduction_are_right() {
    samples(&gemm(None, 16, 16, 512, DType::F32, DType::F32, "TN"), 100);
}
