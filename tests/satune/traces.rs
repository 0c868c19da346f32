//! Traces of plans, replayed on the source program.
use crate::support::*;
use rand::SeedableRng;
use satune_extract::Counts;
use satune_ir::term::{Contraction, Plan};
use satune_ir::{interp, tvmscript, DType};
use satune_rewrites::replay::replay;
use satune_rewrites::space::trace;
use std::collections::BTreeMap;

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
                Ok(()) => good += 1,
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
