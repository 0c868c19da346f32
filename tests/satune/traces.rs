//! Traces of plans, replayed on the source program.
use crate::support::*;
use rand::SeedableRng;
use satune::lower::program::{lower, Argument, LowerOptions, LowerTarget};
use satune::simulate;
use satune_extract::Counts;
use satune_ir::term::{Contraction, Plan};
use satune_ir::{interp, tvmscript, DType};
use satune_rewrites::replay::replay;
use satune_rewrites::space::trace;
use std::collections::BTreeMap;

/// Lowers a scheduled program, simulates its kernels, and compares with the definition.
fn lowered(program: &satune_ir::Program, contraction: &Contraction) -> Result<(), String> {
    let target = LowerTarget { max_shared_bytes: 227 * 1024, has_cp_async: true, max_threads: 1024 };
    let module = lower(program, &LowerOptions { target, ..LowerOptions::default() }).map_err(|e| e.to_string())?;
    let (a, b) = (inputs(&contraction.a, contraction, 3), inputs(&contraction.b, contraction, 5));
    let expected = reference(contraction, &a, &b);
    let mut params = [a, b, vec![f64::NAN; expected.len()]];
    let mut spaces: Vec<Vec<f64>> = module.workspaces.iter().map(|w| vec![f64::NAN; w.elements as usize]).collect();
    for (kernel, args) in module.kernels.iter().zip(&module.args) {
        let mut values: Vec<Vec<f64>> = args
            .iter()
            .map(|a| match a {
                Argument::Param(i) => params[*i].clone(),
                Argument::Workspace(i) => spaces[*i].clone(),
            })
            .collect();
        let report = simulate::run(kernel, &mut values, &simulate::Options::default()).map_err(|f| f.to_string())?;
        if report.unwritten > 0 {
            return Err(format!("{} results are not written", report.unwritten));
        }
        for (a, value) in args.iter().zip(values) {
            match a {
                Argument::Param(i) => params[*i] = value,
                Argument::Workspace(i) => spaces[*i] = value,
            }
        }
    }
    match params[2].iter().zip(&expected).position(|(x, y)| x != y) {
        None => Ok(()),
        Some(at) => Err(format!("result {at} is {}, not {}", params[2][at], expected[at])),
    }
}

fn try_all(contraction: &Contraction, count: usize) {
    let source = tvmscript::parse(&satune::operators::script(contraction)).unwrap();
    let space = space(contraction);
    let counts = Counts::of(&space);
    let mut rng = rand::rngs::StdRng::seed_from_u64(7);
    let mut failures: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let mut good = 0;
    for _ in 0..count {
        let plan = Plan::from_term(&counts.sample(&space, &mut rng).unwrap(), contraction).unwrap();
        let t = trace(&plan, contraction);
        let (results, s) = replay(&source, &t.calls).unwrap();
        match results.iter().position(|r| r.is_err()) {
            Some(i) => {
                let e = results[i].as_ref().unwrap_err();
                let key = format!("{}: {}", t.calls[i].op, e.fast);
                let detail = format!(
                    "call {i} {:?}: {}\n{}\n{}",
                    t.calls[i].args,
                    e.detail,
                    plan.describe().join("\n"),
                    tvmscript::print(s.program())
                );
                failures.entry(key).or_insert((0, detail)).0 += 1;
            }
            None => match interp::equal_on(&source, s.program(), 1) {
                Ok(()) => match lowered(s.program(), contraction) {
                    Ok(()) => good += 1,
                    Err(e) => {
                        let text = format!("{e}\n{}\n{}", plan.describe().join("\n"), tvmscript::print(s.program()));
                        let key = format!("lowering: {}", e.chars().take(60).collect::<String>());
                        failures.entry(key).or_insert((0, text)).0 += 1;
                    }
                },
                Err(d) => {
                    let text = format!("{d}\n{}\n{}", plan.describe().join("\n"), tvmscript::print(s.program()));
                    failures.entry("not equal".into()).or_insert((0, text)).0 += 1;
                }
            },
        }
    }
    println!("{good} of {count} are replayed and equal");
    for (key, (n, detail)) in &failures {
        println!("{n} x {key}\n   {detail}");
    }
    assert!(failures.is_empty());
}

#[test]
fn sampled_plans_replay() {
    try_all(&gemm(None, 64, 64, 32, DType::F32, DType::F32, "NN"), 60);
}

#[test]
fn ragged_plans_replay() {
    try_all(&gemm(None, 30, 45, 17, DType::F32, DType::F32, "NN"), 60);
}

#[test]
fn thin_plans_replay() {
    try_all(&gemm(None, 1, 7, 64, DType::F32, DType::F32, "NN"), 60);
}

#[test]
fn transposed_half_plans_replay() {
    try_all(&gemm(None, 48, 32, 40, DType::F16, DType::F32, "NT"), 40);
    try_all(&gemm(None, 33, 32, 24, DType::F16, DType::F32, "TN"), 40);
}

#[test]
fn batched_plans_replay() {
    try_all(&gemm(Some(3), 20, 24, 16, DType::F64, DType::F64, "TT"), 60);
}

#[test]
fn long_plans_replay() {
    try_all(&gemm(None, 16, 16, 512, DType::F32, DType::F32, "TN"), 60);
}
