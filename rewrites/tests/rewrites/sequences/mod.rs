//! Random sequences of calls: what a strict replay accepts means what its source means.
mod calls;
mod classes;
mod extents;
mod oracle;
mod programs;

use calls::{Choice, Step};
use programs::PROGRAMS;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use satune_ir::{interp, tvmscript, Program};
use satune_rewrites::replay::Replay;
use satune_rewrites::simplified::simplified;
use std::collections::BTreeMap;

/// Always the same sequences, so that a change is judged by what it changes; `SATUNE_SEQUENCES_SEED` draws others.
fn seed() -> u64 {
    std::env::var("SATUNE_SEQUENCES_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(987_654_321_987)
}

/// Whether the steps, made again, leave a program that means something else; steps that are refused are left out.
fn wrong(source: &Program, steps: &[Step], inputs: u64) -> Option<String> {
    let mut state = Replay::strict(source).expect("a schedule");
    for step in steps {
        calls::make(&mut state, step);
    }
    oracle::wrong(source, state.schedule.program(), inputs)
}

/// The steps of a wrong sequence without those that it is wrong without.
fn shrunk(source: &Program, mut steps: Vec<Step>, inputs: u64) -> Vec<Step> {
    let mut at = steps.len();
    while at > 0 {
        at -= 1;
        let mut fewer = steps.clone();
        fewer.remove(at);
        if wrong(source, &fewer, inputs).is_some() {
            steps = fewer;
            at = at.min(steps.len());
        }
    }
    steps
}

fn report(name: &str, source: &Program, steps: Vec<Step>, inputs: u64) -> String {
    let steps = shrunk(source, steps, inputs);
    let mut state = Replay::strict(source).expect("a schedule");
    steps.iter().for_each(|s| {
        calls::make(&mut state, s);
    });
    let difference = oracle::wrong(source, state.schedule.program(), inputs);
    let calls: Vec<String> = steps.iter().map(ToString::to_string).collect();
    let after = tvmscript::print(state.schedule.program());
    format!("{name}: {}\n{}\n{after}", difference.unwrap_or_default(), calls.join("\n"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, rng_seed: RngSeed::Fixed(seed()), max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn accepted_sequences_keep_the_meaning(
        program in 0..programs::SCRIPTS.len(),
        choices in prop::collection::vec(any::<Choice>(), 1..12),
        inputs in any::<u64>(),
    ) {
        let (name, source) = &PROGRAMS[program];
        let (state, steps) = calls::accepted(source, &choices, &mut |_| {});
        if oracle::wrong(source, state.schedule.program(), inputs).is_some() {
            return Err(TestCaseError::fail(report(name, source, steps, inputs)));
        }
        // What bounds decide is written out after each primitive, where it was before.
        let (before, after) = (tvmscript::print(source), tvmscript::print(state.schedule.program()));
        if before == tvmscript::print(&simplified(source)) {
            prop_assert_eq!(after, tvmscript::print(&simplified(state.schedule.program())), "{:?}", steps);
        }
    }
}

/// Each program runs.
#[test]
fn programs_are_what_they_are_called() {
    for (name, program) in PROGRAMS.iter() {
        interp::equal_on(program, program, 1).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// Many seeds one after the other, for those who look for what is wrong: `SATUNE_SEQUENCES_SEED` is the first one,
/// `SATUNE_SEEDS` says how many. Says how many calls of each primitive were accepted, and which the check refused though they leave a
/// program that means the same; `SATUNE_SHOW` prints these programs.
#[test]
#[ignore = "runs for minutes; 10,000 sequences for each of SATUNE_SEEDS seeds"]
fn many_seeds() {
    let count = std::env::var("SATUNE_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(20);
    let (mut refused, mut without_need) = (BTreeMap::<String, usize>::new(), 0);
    let (mut found, mut sequences, mut ops) = (Vec::new(), 0, BTreeMap::<String, usize>::new());
    for seed in seed()..seed() + count {
        let mut state = seed;
        let mut next = || {
            // splitmix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        for _ in 0..10_000 {
            let (name, source) = &PROGRAMS[(next() >> 32) as usize % PROGRAMS.len()];
            let choices: Vec<Choice> = (0..1 + next() % 11)
                .map(|_| {
                    let b = next().to_le_bytes();
                    (b[0], b[1], b[2], b[3], b[4])
                })
                .collect();
            let (schedule, steps) = calls::accepted(source, &choices, &mut |(program, why)| {
                *refused.entry(why.split(' ').next().unwrap_or_default().to_string()).or_default() += 1;
                if oracle::wrong(source, &program, seed).is_none() {
                    without_need += 1;
                    println!("seed {seed}: {name}: refused without need: {why}");
                    if std::env::var("SATUNE_SHOW").is_ok() {
                        println!("{}", tvmscript::print(&program));
                    }
                }
            });
            sequences += 1;
            steps.iter().for_each(|s| *ops.entry(s.call.op.clone()).or_default() += 1);
            let inputs = next();
            if oracle::wrong(source, schedule.schedule.program(), inputs).is_some() {
                let text = report(name, source, steps, inputs);
                println!("seed {seed}: {text}");
                found.push(text);
            }
        }
        println!("seed {seed}: {} wrong so far", found.len());
    }
    let all: usize = refused.values().sum();
    println!("{all} calls refused for the programs that they leave, {without_need} of them without need: {refused:?}");
    println!("{sequences} sequences, {} accepted calls: {ops:?}", ops.values().sum::<usize>());
    assert!(found.is_empty(), "{} of {sequences} are wrong", found.len());
}
