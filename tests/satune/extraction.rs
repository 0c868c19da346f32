//! The k best are the k best; the model's counts are the simulator's; known schedules are in the space.
use crate::compiles::classic;
use crate::known;
use crate::support::*;
use egg::RecExpr;
use rand::SeedableRng;
use satune::explore::{check, shrink};
use satune_extract::{best, cost, work, Counts, Descriptor, Query};
use satune_ir::term::*;
use satune_ir::DType;
use satune_rewrites::space::{rules, saturate, Fuel, Menu};
use std::collections::HashSet;

/// Small menus, by number.
pub fn small_menu(i: i64) -> Menu {
    Menu {
        tile_m: vec![[4, 8, 16][i as usize % 3]],
        tile_n: vec![[8, 16][i as usize % 2]],
        tile_k: vec![[4, 8][i as usize / 2 % 2]],
        threads: vec![if i % 5 == 4 { 64 } else { 32 }],
        vthreads: if i % 4 == 3 { vec![1, 2] } else { vec![1] },
        registers: 4,
        split_k: if i % 6 == 0 { vec![2] } else { vec![] },
        groups: vec![2],
        async_stages: if i % 7 == 0 { vec![3] } else { vec![] },
    }
}

#[test(slow)]
fn extraction_equals_brute_force_on_small_spaces() {
    let gpus = ["h200", "rtx3090", "v100"].map(|n| Descriptor::load(n).unwrap());
    let (mut tried, mut strips) = (0, 0);
    for i in 0..90 {
        let c = gemm(None, 8 + 8 * (i % 3), 16, 16, DType::F64, DType::F64, ["TN", "TN", "TN", "NN"][i as usize % 4]);
        let space = saturate(&c, H200, &small_menu(i), &rules::all(), Fuel::default()).unwrap();
        let counted: u64 = Counts::of(&space).total().try_into().unwrap_or(u64::MAX);
        if counted == 0 || counted > 20_000 {
            continue;
        }
        let gpu = &gpus[i as usize % 3];
        let terms = space.programs(space.root);
        assert_eq!(terms.len() as u64, counted, "the count is not the number of programs");
        strips += usize::from(terms.iter().any(|t| t.as_ref().iter().any(|n| matches!(n, Term::Strip { .. }))));
        let plans: HashSet<CoresPlan> = terms.iter().map(|t| CoresPlan::from_term(t, &c).unwrap()).collect();
        assert_eq!(plans.len(), terms.len(), "two terms stand for one program");
        let mut times: Vec<f64> = plans.iter().filter_map(|p| cost(p, &c, gpu).ok()).map(|c| c.ms).collect();
        times.sort_by(f64::total_cmp);
        let found = best(&space, gpu, Query { k: 5, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY });
        assert!(found.proved);
        let got: Vec<f64> = found.candidates.iter().map(|c| c.cost.ms).collect();
        assert_eq!(got.len(), times.len().min(5));
        for (got, want) in got.iter().zip(&times) {
            assert!((got - want).abs() <= 1e-12 * want, "menu {i}: {got} is not {want}");
        }
        let distinct: HashSet<&Schedule> = found.candidates.iter().map(|c| &c.plan).collect();
        assert_eq!(distinct.len(), found.candidates.len());
        tried += 1;
    }
    println!("{tried} spaces, {strips} of them with strips");
    assert!(tried >= 20 && strips >= 10, "only {tried} spaces were small enough, {strips} of them with strips");
}

#[test]
fn a_large_gemm_is_extracted_and_proved() {
    let gpu = Descriptor::load("h200").unwrap();
    let c = gemm(None, 1024, 1024, 1024, DType::F32, DType::F32, "NN");
    let space = space(&c);
    let total = Counts::of(&space).total();
    assert!(total > 1_000_000_000_000_u64.into());
    assert!(total / space.report.nodes > 1_000_000_u64.into());
    let found = best(&space, &gpu, Query { k: 8, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY });
    assert!(found.proved);
    assert_eq!(found.candidates.len(), 8);
    let again = best(&space, &gpu, Query { k: 8, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY });
    let plans = |e: &satune_extract::Extraction| e.candidates.iter().map(|c| c.plan.clone()).collect::<Vec<_>>();
    assert_eq!(plans(&found), plans(&again), "two runs differ");
}

/// Parts of a space by a condition on nodes.
type Keep = fn(&State, &Term) -> bool;

/// Operands that are strips; one operand alone copied in an overlapped loop.
const RARE: [Keep; 2] = [
    |state, node| {
        let first = state.stage == Stage::Reduce(0) && state.a == Place::Global && state.b == Place::Global;
        !first || matches!(node, Term::Strip { .. })
    },
    |_, node| match node {
        Term::Stage { side, pipe, more, .. } => *pipe != Pipe::Plain && (*side == Side::A) == *more,
        Term::Direct { pipe, .. } => *pipe != Pipe::Plain,
        _ => true,
    },
];

/// A random plan that is simulated in a moment: of at most 2^21 multiply-adds.
pub fn quick(mut draw: impl FnMut() -> Option<RecExpr<Term>>, c: &Contraction) -> CoresPlan {
    loop {
        let plan = CoresPlan::from_term(&draw().unwrap(), c).unwrap();
        let (_, small) = shrink(&plan, c);
        if [Axis::M, Axis::N, Axis::K].map(|axis| small.extent(axis)).iter().product::<i64>() <= 1 << 21 {
            return plan;
        }
    }
}

#[test]
fn the_models_counts_are_the_simulators() {
    let gpu = Descriptor::load("h200").unwrap();
    for (m, n, k, layout) in some_of([(1024, 1024, 1024, "NN"), (512, 2048, 256, "NT"), (256, 256, 4096, "TN")], 1) {
        let c = gemm(None, m, n, k, DType::F32, DType::F32, layout);
        let space = space(&c);
        let found = best(&space, &gpu, Query { k: 3, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY });
        assert_eq!(found.candidates.len(), 3);
        let counts = Counts::of(&space);
        let mut rng = rand::rngs::StdRng::seed_from_u64(11);
        let mut random: Vec<CoresPlan> = (0..2).map(|_| quick(|| counts.sample(&space, &mut rng), &c)).collect();
        // And some of those decisions that few programs have.
        for keep in RARE {
            let part = space.restricted(&|class, node| keep(space.state(class), node));
            let counts = Counts::of(&part);
            random.extend((0..2).map(|_| quick(|| counts.sample(&part, &mut rng), &c)));
        }
        for plan in found.candidates.iter().filter_map(|c| c.plan.cores().cloned()).chain(random) {
            counts_agree(&plan, &c, |simulated| simulated.fma);
        }
    }
}

/// What the simulator counts for each element that is combined.
pub type Steps = fn(&satune::simulate::Counts) -> u64;

/// The model's counts of a plan are those of the simulator, on the small problem of the check.
pub fn counts_agree(plan: &CoresPlan, c: &Contraction, steps: Steps) {
    let simulated = check(&plan.clone().into(), c, &h200(), &|| true).unwrap().total;
    let (plan, small) = shrink(plan, c);
    let w = work::total(&plan, &small);
    let model = [
        w.fma,
        w.shared_loads,
        w.shared_stores,
        w.global_loads,
        w.global_stores,
        w.async_copies,
        w.barriers,
        w.shared_load_wavefronts,
        w.shared_load_wavefronts_ideal,
        w.shared_store_wavefronts,
        w.shared_store_wavefronts_ideal,
        w.global_load_sectors,
        w.global_store_sectors,
    ];
    let counted = [
        steps(&simulated),
        simulated.shared_loads,
        simulated.shared_stores,
        simulated.global_loads,
        simulated.global_stores,
        simulated.async_copies,
        simulated.barriers,
        simulated.shared_load_wavefronts,
        simulated.shared_load_wavefronts_ideal,
        simulated.shared_store_wavefronts,
        simulated.shared_store_wavefronts_ideal,
        simulated.global_load_sectors,
        simulated.global_store_sectors,
    ];
    assert_eq!(model.map(|x| x as u64), counted, "{:#?}", plan.describe());
}

#[test]
fn known_hand_schedules_are_in_the_space() {
    let spaces = ["NN", "TN"].map(|layout| space(&gemm(None, 1024, 1024, 1024, DType::F32, DType::F32, layout)));
    for (name, layout, plan) in known::schedules() {
        let space = &spaces[usize::from(layout == "TN")];
        space.contains(&plan).unwrap_or_else(|missing| panic!("{name}: {missing}"));
    }
    // What is not there is not found.
    let mut odd = classic(&spaces[0].contraction);
    odd.threads = 96;
    assert!(spaces[0].contains(&odd).is_err());
}
