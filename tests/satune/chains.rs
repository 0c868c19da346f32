//! Long chains of blocks: how large their spaces are, and what rows that follow each other take of registers.
use crate::support::executed;
use satune::streaming;
use satune_extract::Descriptor;
use satune_ir::term::stream::{KernelPlan, RowPlace, StreamPlan};
use satune_ir::term::Schedule;
use satune_ir::tvmscript;
use satune_rewrites::space::stream::{rules, streams, StreamMenu};
use satune_rewrites::space::{saturate, Fuel};
use std::collections::BTreeSet;

/// Maps one after the other, and where `reduced` says so the sum of each row before each of them, which it takes off.
fn chain(maps: usize, reduced: bool, [rows, columns]: [i64; 2]) -> String {
    let shape = format!("({rows}, {columns})");
    let mut text = format!(
        "@T.prim_func(s_tir=True)\ndef main(X: T.Buffer({shape}, \"float32\"), Y: T.Buffer({shape}, \"float32\")):\n"
    );
    let name = |at: usize| if at == maps { "Y".to_string() } else { format!("M{at}") };
    (1..maps).for_each(|at| text += &format!("    M{at} = T.alloc_buffer({shape}, \"float32\")\n"));
    if reduced {
        (1..=maps).for_each(|at| text += &format!("    R{at} = T.alloc_buffer(({rows},), \"float32\")\n"));
    }
    for at in 1..=maps {
        let from = if at == 1 { "X".to_string() } else { name(at - 1) };
        let to = name(at);
        let value = match reduced {
            true => format!("{from}[vi, vj] - R{at}[vi]"),
            false => format!("{from}[vi, vj] * T.float32({at}) + T.float32(1)"),
        };
        if reduced {
            text += &format!(
                r#"    for i, j in T.grid({rows}, {columns}):
        with T.sblock("r{at}"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                R{at}[vi] = T.float32(0)
            R{at}[vi] = R{at}[vi] + {from}[vi, vj]
"#
            );
        }
        text += &format!(
            r#"    for i, j in T.grid({rows}, {columns}):
        with T.sblock("m{at}"):
            vi, vj = T.axis.remap("SS", [i, j])
            {to}[vi, vj] = {value}
"#
        );
    }
    text
}

/// 24 maps, and 12 with reductions between, become one kernel each, whose rows pass from one to the next in the same registers: no more
/// than twice one row's at once, and none spilled.
#[test(slow)]
fn long_chains_are_one_kernel_found_among_few_nodes() {
    for (maps, reduced) in [(24, false), (12, true)] {
        let text = chain(maps, reduced, [64, 4096]);
        let report = executed(&text, "h200", 1);
        let nodes = report["space"]["enodes"].as_u64().unwrap();
        let best = &report["candidates"][0];
        let compiled = &best["compiled"];
        println!("{maps} maps, reduced: {reduced}: {nodes} e-nodes, {compiled}");
        assert!(nodes < 100_000, "{nodes}");
        assert_eq!(compiled["spill_bytes"], 0, "{compiled}");
        let plan: Schedule = serde_json::from_value(best["plan"].clone()).unwrap();
        let Schedule::Stream(plan) = plan else { panic!("{best}") };
        assert_eq!(plan.kernels.len(), 1, "{best}");
        if let [KernelPlan::Row(row)] = plan.kernels.as_slice() {
            let held = row.held.iter().filter(|held| held.place == RowPlace::Registers).count();
            assert_eq!(held, maps, "the source and what is made between");
            let two_rows = 2 * 4096 / row.threads;
            assert!(compiled["registers"].as_i64().unwrap() <= two_rows + 32, "{compiled}, {}", row.threads);
        }
        assert_eq!(matches!(plan.kernels[0], KernelPlan::Row(_)), reduced);
    }
}

/// A row kernel may hold in registers whatever a block finds held at once: that and nothing else is in the space.
#[test(slow)]
fn rows_in_registers_make_room_for_those_that_follow() {
    const MAPS: usize = 4;
    const LIMIT: i64 = 16;
    let gpu = Descriptor::load("h200").unwrap();
    let program = tvmscript::parse(&chain(MAPS, true, [8, 256])).unwrap();
    let problem = streams(&program).unwrap();
    let menu = StreamMenu {
        side_by_side: vec![1],
        serial_rows: vec![1],
        threads: vec![32],
        vectors: vec![1],
        held_elements: LIMIT,
        ..streaming::menu()
    };
    let space = saturate(&problem, satune::explore::limits(&gpu), &menu, &rules::all(), Fuel::default()).unwrap();
    let kernels = space.programs(space.root).into_iter().filter_map(|term| {
        let plan = StreamPlan::from_term(&term, &problem).unwrap();
        match plan.kernels.as_slice() {
            [KernelPlan::Row(row)] if plan.inlined.is_empty() && plan.parts == 1 => Some(row.clone()),
            _ => None,
        }
    });
    // Places of X and of what each map makes for the next.
    let buffers: Vec<String> = std::iter::once("X".into()).chain((1..MAPS).map(|at| format!("M{at}"))).collect();
    let found: BTreeSet<Vec<RowPlace>> =
        kernels.map(|row| buffers.iter().map(|buffer| row.place(buffer)).collect()).collect();
    let places = [RowPlace::Global, RowPlace::Shared, RowPlace::Registers];
    let mut expected = BTreeSet::new();
    for number in 0..places.len().pow(MAPS as u32) {
        let of = |at: usize| places[number / places.len().pow(at as u32) % places.len()];
        let all: Vec<RowPlace> = (0..MAPS).map(of).collect();
        // A sum and the map after it read one row, and a map finds the row that it makes beside the one that it reads: of 8 elements
        // of each thread. What is made does not go through global memory.
        let registers = |at: usize| if all.get(at) == Some(&RowPlace::Registers) { 8 } else { 0 };
        let fits = (0..MAPS).all(|at| registers(at) + registers(at + 1) <= LIMIT);
        if fits && all[1..].iter().all(|place| *place != RowPlace::Global) {
            expected.insert(all);
        }
    }
    println!("{} ways to hold {} rows", found.len(), MAPS);
    assert_eq!(found, expected);
    assert!(expected.contains(&vec![RowPlace::Registers; MAPS]), "all of them, two at once");
}
