//! Schedules sampled from spaces, made by TVM from the Python text of their traces: TVM's program is ours.
#[path = "../../rewrites/tests/ask/mod.rs"]
mod ask;

use crate::support::*;
use rand::SeedableRng;
use satune::scheduled;
use satune_extract::Counts;
use satune_ir::term::{Contraction, Plan};
use satune_ir::{structural, tvmscript, DType, Program};
use satune_rewrites::replay::replay;
use satune_rewrites::Trace;
use serde_json::{json, Value};

/// Source, trace and scheduled program of `count` plans.
fn samples(contraction: &Contraction, count: usize, out: &mut Vec<(Program, Trace, Program)>) {
    let source = source(contraction);
    let space = space(contraction);
    let counts = Counts::of(&space);
    let mut rng = rand::rngs::StdRng::seed_from_u64(11);
    for _ in 0..count {
        let plan = Plan::from_term(&counts.sample(&space, &mut rng).unwrap(), contraction).unwrap();
        let made = scheduled::of_plan(&source, &plan, contraction, &h200()).unwrap();
        out.push((source.clone(), made.trace, made.program));
    }
}

#[test]
#[ignore = "8 of 32 agree; 16 differ in guards of compute_at, which TVM divides (i * 16 + j * 2 + x % 2 < 30 is i * 8 + j < 15) and we do not; 8 have xor layouts, which TVM refuses"]
fn tvm_makes_the_same_programs() {
    let mut all = Vec::new();
    samples(&gemm(None, 64, 64, 32, DType::F32, DType::F32, "NN"), 8, &mut all);
    samples(&gemm(None, 30, 45, 17, DType::F32, DType::F32, "NT"), 8, &mut all);
    samples(&gemm(None, 48, 32, 40, DType::F16, DType::F32, "TN"), 8, &mut all);
    samples(&gemm(Some(3), 20, 24, 16, DType::F64, DType::F64, "TT"), 8, &mut all);
    let requests: Vec<Value> = all
        .iter()
        .map(|(source, trace, ours)| {
            json!({"expect": tvmscript::print(ours), "script": tvmscript::print(source), "python": trace.to_python("schedule")})
        })
        .collect();
    let Some(answers) = ask::ask("sampled", &requests) else { return };
    let (mut failures, mut swizzled) = (Vec::new(), 0);
    for ((source, trace, ours), answer) in all.iter().zip(&answers) {
        let python = trace.to_python("schedule");
        // TVM cannot bound an xor, and so refuses every swizzled layout.
        if python.contains('^') && answer["error"].as_str().is_some_and(|e| e.contains("is_zero(range->min)")) {
            swizzled += 1;
            continue;
        }
        let verdict = same(answer, ours).and_then(|()| back(source, &answer["json"].to_string(), ours));
        failures.extend(verdict.err().map(|e| format!("{e}\n{python}")));
    }
    println!(
        "{} of {} agree, {swizzled} have layouts that TVM cannot express",
        all.len() - failures.len() - swizzled,
        all.len()
    );
    assert!(swizzled * 2 < all.len(), "{swizzled} of {} are refused", all.len());
    assert!(failures.is_empty(), "{} of {} differ:\n{}", failures.len(), all.len(), failures.join("\n"));
}

/// TVM's program, read by us: it has conditions like `0 * 2 + i < 4`, which reading folds and TVM's comparison does not.
fn same(answer: &Value, ours: &Program) -> Result<(), String> {
    let Some(text) = answer["final"].as_str() else { return Err(answer["error"].to_string()) };
    let theirs = tvmscript::parse(text).map_err(|e| format!("{e}\n{text}"))?;
    structural::equal(ours, &theirs)
        .map_err(|e| format!("{e:?}\n--- TVM's\n{text}\n--- ours\n{}", tvmscript::print(ours)))
}

/// The trace that TVM recorded, replayed.
fn back(source: &Program, trace: &str, ours: &Program) -> Result<(), String> {
    let trace = Trace::read(trace).map_err(|e| e.to_string())?;
    let (results, schedule) = replay(source, &trace.calls).map_err(|e| e.to_string())?;
    if let Some(error) = results.iter().find_map(|r| r.as_ref().err()) {
        return Err(error.detail.clone());
    }
    structural::equal(schedule.program(), ours).map_err(|e| format!("{e:?}"))
}
