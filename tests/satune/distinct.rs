//! Schedules of a space are different programs: the count of terms is that of programs.
use crate::extraction::small_menu;
use crate::support::{some_of, H200};
use crate::tensor_space::{gpu, small};
use satune::explore::limits;
use satune::source::{self, Work};
use satune::workload::{Explorable, Workload};
use satune_ir::term::stream::StreamPlan;
use satune_ir::term::{CoresPlan, Schedule};
use satune_ir::tvmscript;
use satune_rewrites::replay::replay;
use satune_rewrites::space::stream::{rules as of_streams, StreamMenu};
use satune_rewrites::space::{rules, saturate, Fuel, Menu};
use std::collections::HashMap;

/// Most programs of a space that are written out.
const MOST: usize = 4000;

/// A program's text, its variables by the order in which they come.
fn by_order(text: &str) -> String {
    let (mut out, mut names, mut word) = (String::new(), HashMap::new(), String::new());
    let mut is_quoted = false;
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_alphanumeric() || "_.".contains(c) {
            word.push(c);
            continue;
        }
        let is_name = word.starts_with(|c: char| c.is_ascii_alphabetic()) && !word.starts_with("T.") && !is_quoted;
        if is_name {
            let next = names.len();
            let number = *names.entry(std::mem::take(&mut word)).or_insert(next);
            out += &format!("v{number}");
        } else {
            out += &std::mem::take(&mut word);
        }
        is_quoted ^= c == '"';
        out.push(c);
    }
    out
}

/// Pairs of schedules that are one program.
fn twins(problem: &dyn Workload, schedules: impl Iterator<Item = Schedule>) -> Vec<[Schedule; 2]> {
    let (mut seen, mut found) = (HashMap::new(), Vec::new());
    for schedule in schedules {
        let (results, made) = replay(problem.program(), &problem.trace(&schedule).calls).unwrap();
        assert!(results.iter().all(Result::is_ok), "{schedule:?}");
        if let Some(other) = seen.insert(by_order(&tvmscript::print(made.program())), schedule.clone()) {
            found.push([other, schedule]);
        }
    }
    assert!(seen.len() > 1, "{}", problem.name());
    found
}

/// Of so many some, evenly.
fn step(all: usize) -> usize {
    all.div_ceil(MOST)
}

/// Virtual threads inside of warps, along axes that have one warp.
fn inside(plan: &CoresPlan) -> CoresPlan {
    let mut plan = plan.clone();
    for (warps, outer, inner) in [
        (plan.warps.m, &mut plan.vthread_outer.m, &mut plan.vthread_inner.m),
        (plan.warps.n, &mut plan.vthread_outer.n, &mut plan.vthread_inner.n),
    ] {
        if warps == 1 {
            *inner *= std::mem::replace(outer, 1);
        }
    }
    plan
}

/// But for virtual threads along an axis with one warp, which are the same outside of it and inside.
#[test]
fn on_single_threads() {
    let mut alike = 0;
    let menus = some_of([0, 4, 6, 9, 10, 12, 21, 42, 49], 2);
    for i in [16].into_iter().chain(menus) {
        let form = ["TN", "TN", "TN", "NN"][i as usize % 4];
        let Work::Contraction(problem) =
            source::operator(&format!("gemm:{},16,16,f64,{form}", 8 + 8 * (i % 3))).unwrap()
        else {
            panic!("no product")
        };
        let c = problem.problem();
        let menu = Menu { vthreads: vec![1, 2], ..small_menu(i) };
        let space = saturate(c, H200, &menu, &rules::all(), Fuel::default()).unwrap();
        let terms = space.programs(space.root);
        let each = step(terms.len());
        println!("menu {i}: {} schedules, one of {each}", terms.len());
        let plans = terms.iter().step_by(each).map(|t| CoresPlan::from_term(t, c).unwrap());
        for [a, b] in twins(&*problem, plans.map(Schedule::Cores)) {
            let [a, b] = [&a, &b].map(|schedule| inside(schedule.cores().unwrap()));
            assert_eq!(a, b, "menu {i}: one program");
            alike += 1;
        }
    }
    assert!(alike > 0);
}

#[test(slow)]
fn on_tensor_cores() {
    let products = [
        (0, "a100", "gemm:128,100,250,bf16,NT,relu"),
        (2, "t4", "gemm:128,128,256,f16,TN"),
        (4, "h200", "bmm:3,64,128,256,bf16,NN"),
        (5, "h200", "gemm:128,100,250,bf16,TN"),
        (8, "h200", "gemm:128,128,256,e4m3,TN"),
        (9, "rtx4090", "gemm:128,128,256,i8,NN"),
    ];
    for (i, name, text) in some_of(products, 2) {
        let Work::Contraction(problem) = source::operator(text).unwrap() else { panic!("no product") };
        let c = problem.problem();
        let space = small(c, &gpu(name), i);
        let terms = space.programs(space.root);
        let each = step(terms.len());
        println!("{text}, {name}: {} schedules, one of {each}", terms.len());
        let found = twins(&*problem, terms.iter().step_by(each).map(|t| Schedule::from_term(t, c).unwrap()));
        assert!(found.is_empty(), "{text}, {name}: {:?}", found[0]);
    }
}

#[test]
fn of_rows() {
    let menu = StreamMenu {
        side_by_side: vec![1, 2],
        serial_rows: vec![1, 2],
        threads: vec![32, 64],
        vectors: vec![1, 4],
        steps: vec![1, 2],
        tiles: vec![16, 32],
        tile_threads: vec![64],
        pads: vec![0, 1],
        ..StreamMenu::default()
    };
    for text in
        ["transpose:64,64,f32", "relu_chain:8,256,f32", "rmsnorm:8,256,f16", "row_sum:8,256,f32", "gemv:64,256,f32"]
    {
        let Work::Streams(work) = source::operator(text).unwrap() else { panic!("no rows") };
        let problem = work.problem();
        let space = saturate(problem, limits(&gpu("a100")), &menu, &of_streams::all(), Fuel::default()).unwrap();
        let terms = space.programs(space.root);
        let each = step(terms.len());
        println!("{text}: {} schedules, one of {each}", terms.len());
        let plans = terms.iter().step_by(each).map(|t| StreamPlan::from_term(t, problem).unwrap());
        let found = twins(&*work, plans.map(Schedule::Stream));
        assert!(found.is_empty(), "{text}: {:?}", found[0]);
    }
}
