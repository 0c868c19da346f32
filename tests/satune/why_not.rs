//! `why-not` as a user meets it.
use crate::known;
use crate::support::h200;
use satune_ir::term::*;
use serde_json::Value;
use std::process::Command;

const GEMM: &str = "gemm:1024,1024,1024,f32";

pub fn ask(program: &str, args: &[&str]) -> Vec<Value> {
    let mut all = vec!["why-not", program, "--json", "--time-limit", "1"];
    all.extend(args);
    let run = Command::new(env!("CARGO_BIN_EXE_satune")).args(&all).output().unwrap();
    assert!(run.status.success(), "{args:?}: {}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_slice(&run.stdout).unwrap()
}

/// The question that fixes every decision of a plan, in the command's words.
fn question(plan: &CoresPlan) -> String {
    let pair = |p: Pair| format!("{}x{}", p.m, p.n);
    let outer = |p: Pair, m: bool| match (p.m > 1 && p.n > 1, m) {
        (false, _) => "",
        (true, true) => " m outer",
        (true, false) => " n outer",
    };
    let stages = match plan.pipe {
        Pipe::Plain => "serial".into(),
        Pipe::Registers => "registers".into(),
        Pipe::Async(n) => n.to_string(),
    };
    let order: Vec<&str> = plan
        .blocks
        .iter()
        .filter(|l| !l.group && matches!(l.axis, Axis::M | Axis::N))
        .map(|l| if l.axis == Axis::M { "m" } else { "n" })
        .collect();
    let group = plan.blocks.iter().find(|l| l.group).map_or("none".into(), |l| format!("{} {}", l.axis, l.extent));
    let operand = |staging: &Staging| {
        let shared = match staging.shared {
            None => "global".into(),
            Some((l, f)) => format!(
                "{} {} {} fill {} {} {}",
                if staging.hoisted { "above-k" } else { "at-k" },
                if l.k_major { "k-major" } else { "x-major" },
                if l.swizzle { "xor".into() } else { format!("pad {}", l.pad) },
                f.vector,
                if f.coalesced { "rows" } else { "columns" },
                if f.unroll { "fill-unrolled" } else { "fill-rolled" },
            ),
        };
        let local = staging.local.map_or("in-place".into(), |v| format!("local {v}"));
        format!("{shared} {local}")
    };
    format!(
        "block {}, k {}, step {}, threads {}, warps {}{}, lanes {}{}, vthreads outside {}, vthreads inside {}, registers {}, \
         stages {stages}, split {}, order {}, group {group}, A {}, B {}, unroll {}, store {}, init {}, accumulators {}",
        pair(plan.tile),
        plan.k_tile,
        plan.k_step,
        plan.threads,
        pair(plan.warps),
        outer(plan.warps, plan.warps_m_outer),
        pair(plan.lanes),
        outer(plan.lanes, plan.lanes_m_outer),
        pair(plan.vthread_outer),
        pair(plan.vthread_inner),
        pair(plan.registers),
        plan.split_k,
        order.join(" "),
        operand(&plan.a),
        operand(&plan.b),
        if plan.unroll_k { "yes" } else { "no" },
        plan.store_vector,
        if plan.init_hoisted { "hoisted" } else { "inside" },
        if plan.accumulators { "registers" } else { "global" },
    )
}

#[test]
fn known_hand_schedules_are_in_the_space_by_question_by_program_and_by_plan() {
    let folder = tempfile::tempdir().unwrap();
    let known = known::schedules();
    assert_eq!(known.len(), 13);
    for (layout, program) in [("NN", GEMM.to_string()), ("TN", format!("{GEMM},TN"))] {
        let of_layout: Vec<_> = known.iter().filter(|(_, l, _)| *l == layout).collect();
        let mut args: Vec<String> = of_layout.iter().map(|(_, _, plan)| question(plan)).collect();
        let problem = satune::operators::parse(&program).unwrap();
        for (i, (name, _, plan)) in of_layout.iter().enumerate() {
            let made = satune::scheduled::of_plan(&problem.program, plan, &problem.contraction, &h200());
            let text = satune_ir::tvmscript::print(&made.unwrap_or_else(|e| panic!("{name}: {e}")).program);
            let path = folder.path().join(format!("{layout}{i}.py"));
            std::fs::write(&path, text).unwrap();
            args.push(path.to_str().unwrap().into());
        }
        for (i, (_, _, plan)) in of_layout.iter().enumerate() {
            let path = folder.path().join(format!("{layout}{i}.json"));
            std::fs::write(&path, serde_json::to_string(plan).unwrap()).unwrap();
            args.extend(["--plan".into(), path.to_str().unwrap().into()]);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let answers = ask(&program, &args);
        assert_eq!(answers.len(), 3 * of_layout.len());
        for (i, answer) in answers.iter().enumerate() {
            let (name, _, plan) = of_layout[i % of_layout.len()];
            assert_eq!(answer["in_space"], true, "{name}: {answer:#}");
            // The order of two register loops is the one decision that the question leaves free.
            let members: u64 = answer["members"].as_str().unwrap().parse().unwrap();
            assert!(members == 1 || (members == 2 && i < of_layout.len()), "{name}: {members}");
            let found: CoresPlan = serde_json::from_value(answer["asked"]["plan"].clone()).unwrap();
            let by_program = (of_layout.len()..2 * of_layout.len()).contains(&i);
            let plain = |p: &CoresPlan| {
                let mut p = CoresPlan { registers_m_outer: true, ..p.clone() };
                // Outside and inside of no warps are one program.
                let (outer, inner) = (&mut p.vthread_outer, &mut p.vthread_inner);
                let along = [(p.warps.m, &mut outer.m, &mut inner.m), (p.warps.n, &mut outer.n, &mut inner.n)];
                for (_, outer, inner) in along.into_iter().filter(|(warps, ..)| by_program && *warps == 1) {
                    *inner *= std::mem::replace(outer, 1);
                }
                p
            };
            assert_eq!(question(&plain(&found)), question(&plain(plan)), "{name}");
        }
    }
}

#[test]
fn questions_leave_the_rest_free() {
    let text =
        "block 128x128, k 8, registers 8x8, vthreads 1x1, threads 16x16, stages registers, A k-major pad 4, split 1";
    let answers = ask("gemm:256,256,256,f32", &[text, "block 128x128, threads 256"]);
    for answer in &answers {
        assert_eq!(answer["in_space"], true, "{answer:#}");
        assert!(answer["members"].as_str().unwrap().len() >= 3, "{answer:#}");
        assert!(answer["asked"]["predicted_ms"].as_f64().unwrap() >= answer["best"]["predicted_ms"].as_f64().unwrap());
        assert!(answer["asked"]["plan"]["tile"]["m"] == 128);
    }
    let plan: CoresPlan = serde_json::from_value(answers[0]["asked"]["plan"].clone()).unwrap();
    assert_eq!((plan.warps.m * plan.lanes.m, plan.warps.n * plan.lanes.n), (16, 16));
    assert_eq!((plan.pipe, plan.a.shared.unwrap().0.pad), (Pipe::Registers, 4));
    let run = Command::new(env!("CARGO_BIN_EXE_satune"))
        .args(["why-not", "gemm:256,256,256,f32", "block 128x128, threads 256", "--time-limit", "1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    for part in ["in the space: ", "x the best of all", "dominated in ", "time by part, ms: asked for, best"] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
}

#[test]
fn a_question_outside_a_menu_names_the_menu() {
    let cases = [
        ("block 77x16", "block tile 77 along m (the menu is [16, 32, 64, 128, 256])"),
        ("block 16x77", "block tile 77 along n (the menu is [16, 32, 64, 128, 256])"),
        ("k 12", "k tile 12 (the menu is [8, 16, 32, 64])"),
        ("threads 96", "96 threads (the menu is [32, 64, 128, 256, 512, 1024])"),
        ("vthreads outside 3x1", "3 vthreads outside the warps (the menu is [1, 2, 4, 8])"),
        ("vthreads inside 1x16", "16 vthreads inside a warp (the menu is [1, 2, 4, 8])"),
        ("registers 32x4", "registers 32x4 (the menu ends at 16 along an axis)"),
        ("split 3", "split 3 (the menu is [2, 4, 8, 16, 32])"),
        ("group m 3", "group m 3 (the menu is [2, 4, 8, 16])"),
        ("stages 7", "7 stages of cp.async (the menu is [2, 3, 4, 5])"),
        ("step 3", "k step 3 (the menu is [1, 2, 4])"),
        ("A fill 3", "vector 3 for the fill of A (the menu is [1, 2, 4, 8])"),
        ("B local 5", "vector 5 for the local copy of B (the menu is [1, 2, 4, 8])"),
        ("store 3", "vector 3 for the store (the menu is [1, 2, 4, 8])"),
    ];
    let questions: Vec<&str> = cases.iter().map(|c| c.0).collect();
    for ((question, part), answer) in cases.iter().zip(ask(GEMM, &questions)) {
        assert_eq!(answer["in_space"], false, "{question}");
        let reason = answer["reasons"][0].as_str().unwrap();
        assert!(reason.contains(part), "{question}: {reason}");
    }
}

#[test]
fn an_illegal_question_names_the_condition_with_its_numbers() {
    let cases = [
        ("block 256x256, threads 64", "1024 registers of accumulators for each of 64 threads"),
        ("block 16x16, threads 512", "256 results of the block tile do not divide among 512 threads"),
        (
            "block 256x256, k 64, stages 5",
            "A's tile with 65536 in 5 buffers are 327680 bytes; a block has 232448",
        ),
        (
            "block 128x128, registers 8x8, vthreads 2x2, threads 16x16",
            "vthreads 2 x threads 16 x registers 8 along m are 256",
        ),
        ("lanes 8x8", "lanes 8x8 are 64; a warp has 32"),
        ("warps 2x2, threads 256", "warps 2x2 are 128 threads, not 256"),
        ("split 32", "split 32 leaves 8 of k to a part, less than two of the longest k tile (64)"),
        ("A fill 8", "8 elements of A take 32 bytes; an access has 16 at most"),
        ("A fill 4 columns", "A is copied by columns"),
        ("B x-major", "B runs along n in global memory"),
        ("B xor", "xor is offered for operands that run along k; B runs along n"),
        ("A pad 3", "pad 3 of A; rows are padded by 16 bytes, 4 elements, or not"),
        ("A at-k k-major fill 4, stages 3", "4 elements of A at once need them side by side in shared memory too"),
        ("registers 2x2, store 4", "a store of 4 does not divide the 2 neighbouring results of a thread"),
        ("store 8", "a store of 8 takes 32 bytes"),
        ("stages registers, A global, B global", "neither A nor B is copied to shared memory in the k loop"),
        ("stages registers, A above-k, B global", "neither A nor B is copied to shared memory in the k loop"),
        (
            "block 256x128, A above-k, B at-k, k 16, stages 3, split 1",
            "A's strip of 256 x 256 with 262144 and B's tile with 8192 in 3 buffers are 286720 bytes; a block has 232448",
        ),
        ("B above-k pad 4", "a strip of B has rows along n, as in global memory, plain"),
        ("A above-k k-major plain", "a strip of A is x-major xor where its length is a power of two, else k-major"),
        ("split 2, k 64, A above-k, B above-k, block 256x256", "A's strip of 256 x 128 with 131072 and B's strip"),
        ("stages 2, accumulators global", "sums in global memory leave nothing to overlap"),
        ("init hoisted, accumulators global", "sums in global memory inside it"),
        ("block 128x128, group m 2", "group m 2 of 2 blocks along m and 2 across"),
        ("A k-major, B k-major, step 4", "a step of 4 needs an operand whose rows in shared memory run along k"),
    ];
    let questions: Vec<&str> = cases.iter().map(|c| c.0).collect();
    for ((question, part), answer) in cases.iter().zip(ask("gemm:256,256,256,f32", &questions)) {
        assert_eq!(answer["in_space"], false, "{question}");
        let reasons = answer["reasons"].to_string();
        assert!(reasons.contains(part), "{question}: {reasons}");
    }
    // v100 has no cp.async.
    let answers = ask("gemm:256,256,256,f32", &["stages 3", "--gpu", "v100"]);
    assert!(answers[0]["reasons"].to_string().contains("3 stages of cp.async need sm_80 or later"), "{answers:?}");
    let answers = ask("gemm:256,250,256,f32", &["B fill 4"]);
    assert!(answers[0]["reasons"].to_string().contains("not aligned in rows of B of 250 elements"), "{answers:?}");
    // Parts of 500 values of k, which no tile of eight ends with.
    let answers = ask(
        "gemm:64,64,1000,f32",
        &["split 2, k 8, A: shared at-k x-major xor", "split 2, k 8, A: shared at-k columns"],
    );
    let reasons = answers[0]["reasons"].to_string();
    assert!(reasons.contains("tiles along k reach into the next part of k"), "{answers:?}");
    assert_eq!(answers[1]["in_space"], true, "{answers:?}");
}

#[test]
fn stored_candidates_are_asked_by_their_trace() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let program = "gemm:64,48,32,f32";
    let args = ["explore", program, "--top", "2", "--twins", "--out", out.to_str().unwrap(), "--no-compile", "--json"];
    let run = Command::new(env!("CARGO_BIN_EXE_satune")).args(args).output().unwrap();
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    for rank in [1, 2] {
        let trace = out.join(report["candidates"][rank - 1]["trace"].as_str().unwrap());
        let answers = ask(program, &["--trace", trace.to_str().unwrap()]);
        assert_eq!(answers[0]["in_space"], true);
        assert_eq!(answers[0]["asked"]["predicted_ms"], report["candidates"][rank - 1]["predicted_ms"]);
        assert!(answers[0]["rank"].as_u64().unwrap() as usize <= rank, "{answers:?}");
    }
}

/// A program that no plan makes is told where.
#[test]
fn scheduled_programs_that_are_of_no_plan_are_told_where() {
    let (_, _, plan) = known::schedules().into_iter().find(|(.., plan)| plan.store_vector > 1).unwrap();
    let problem = satune::operators::parse(GEMM).unwrap();
    let made = satune::scheduled::of_plan(&problem.program, &plan, &problem.contraction, &h200()).unwrap();
    let file = tempfile::Builder::new().suffix(".py").tempfile().unwrap();
    let text = satune_ir::tvmscript::print(&made.program);
    std::fs::write(file.path(), text.replacen("T.vectorized(", "range(", 1)).unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_satune")).args(["why-not", GEMM]).arg(file.path()).output().unwrap();
    let told = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{told}");
    assert!(told.contains("is that of no plan") && told.contains("root / "), "{told}");
}
