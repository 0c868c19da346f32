//! Tensorization: verdicts and programs that TVM gave, every intrinsic on its own description, and every refusal.
use crate::judged::{judge, Case};
use satune_ir::term::tensor::GroupMma;
use satune_ir::{interp, structural, tvmscript, Attr, BlockId, Program, Stmt};
use satune_rewrites::replay::replay;
use satune_rewrites::tensorize::{legal, tensorize};
use satune_rewrites::{intrinsics, Node, Schedule, ScheduleError};
use satune_testing::one_in;

fn cases() -> Vec<Case> {
    include_str!("tensorize.jsonl").lines().map(|l| serde_json::from_str(l).expect("a case")).collect()
}

#[test]
fn verdicts_and_programs_are_those_of_tvm() {
    let (mut applied, mut refused) = (0, 0);
    for case in cases() {
        assert!(case.expected.iter().all(|e| e.ok || (e.error_class.is_some() && e.fast.is_some())), "{}", case.name);
        judge(&case).unwrap_or_else(|why| panic!("{}: {why}", case.name));
        let program = tvmscript::parse(&case.script).unwrap();
        let (results, schedule) = replay(&program, &case.calls).unwrap();
        refused += results.iter().filter(|r| r.is_err()).count();
        if case.final_script.is_none() {
            continue;
        }
        let ours = schedule.program();
        let again = tvmscript::parse(&tvmscript::print(ours)).unwrap();
        structural::equal(ours, &again).unwrap_or_else(|d| panic!("{}: printed: {d}", case.name));
        let meaning = intrinsics::described(ours);
        interp::equal_on(&program, &meaning, 7).unwrap_or_else(|d| panic!("{}: {d}", case.name));
        applied += 1;
    }
    assert!(applied >= 8 && refused >= 11, "{applied} applied, {refused} refused");
}

/// The description of an intrinsic as a program, its block inside the root.
fn description(name: &str) -> (Program, BlockId) {
    let mut program = intrinsics::get(name).unwrap().description.clone();
    let mut root = program.body.clone();
    let id = program.fresh_block();
    root.block.id = id;
    root.block.name = "tile".into();
    program.body.block.reads.clear();
    program.body.block.writes.clear();
    *program.body.block.body = Stmt::Realize(Box::new(root));
    (program, id)
}

#[test]
fn every_intrinsic_is_its_description() {
    for name in one_in(2, intrinsics::names()) {
        // Of the many widths one of each kind, and that of tiles as wide as deep.
        let wide = GroupMma::ALL.iter().any(|op| name.starts_with(op.name()));
        if wide && !["n16k", "n24", "n48k", "n48_"].iter().any(|n| name.contains(n)) {
            continue;
        }
        let (program, block) = description(name);
        let mut s = Schedule::new(program.clone()).unwrap();
        tensorize(&mut s, Node::Block(block), name, true).unwrap_or_else(|e| panic!("{name}: {}", e.detail));
        // The interpreter knows descriptions only; what clears registers, and a store that no instruction does, is written out.
        let fault = interp::equal_on(&program, s.program(), 1);
        let written = ["mma_fill_m16n8", "wgmma_fill", "tcgen05_fill"].iter().any(|begin| name.starts_with(begin));
        let runs = written || name.ends_with("_simple_");
        assert_eq!(fault.is_ok(), runs, "{name}");
        if name.contains("_trans") && !name.contains("load") && !name.contains("ldmatrix") {
            // The instruction is that of operands as they are: how they were loaded makes the difference.
            continue;
        }
        let meaning = intrinsics::described(s.program());
        interp::equal_on(&program, &meaning, 1).unwrap_or_else(|d| panic!("{name}: {d}"));
    }
}

/// What a changed description is told.
fn refusal(name: &str, change: impl FnOnce(&mut Program)) -> ScheduleError {
    let (mut program, block) = description(name);
    change(&mut program);
    let mut s = Schedule::new(program.clone()).unwrap();
    let asked = legal(&s, block, name).unwrap_err();
    let error = tensorize(&mut s, Node::Block(block), name, true).unwrap_err();
    assert_eq!(asked.detail, error.detail);
    assert_eq!(error.primitive, "tensorize");
    assert_eq!(structural::equal(s.program(), &program), Ok(()), "a refusal changed the program");
    error
}

fn changed(name: &str, from: &str, to: &str) -> String {
    let error = refusal(name, |p| {
        let text = tvmscript::print(p);
        assert!(text.contains(from), "{from} is not in\n{text}");
        let next = (p.next_var, p.next_block);
        *p = tvmscript::parse(&text.replace(from, to)).unwrap_or_else(|e| panic!("{e}"));
        (p.next_var, p.next_block) = (next.0.max(p.next_var), next.1.max(p.next_block));
        // The block keeps its identity.
        let Stmt::Realize(tile) = p.body.block.body.as_mut() else { panic!("no block") };
        tile.block.id = BlockId(next.1 - 1);
    });
    assert_eq!(error.fast, "ScheduleError: The stmt doesn't match the tensor intrin.");
    error.detail.clone()
}

fn says(detail: String, part: &str) {
    assert!(detail.contains(part), "{detail}");
}

#[test]
fn refusals_name_what_does_not_match() {
    let sync = "wmma_sync_16x16x16_f16f16f32";
    says(changed(sync, "wmma.accumulator", "local"), "buffer C is in scope local");
    says(
        changed(
            sync,
            "(16, 16), \"float16\", scope=\"wmma.matrix_a\"",
            "(16, 16), \"float32\", scope=\"wmma.matrix_a\"",
        ),
        "buffer A is float32",
    );
    says(changed(sync, "B[vk, vj])", "B[vj, vk])"), "of B");
    says(changed(sync, "T.grid(16, 16, 16)", "T.grid(16, 16, 8)"), "extent of loop k");
    says(changed(sync, "for i, j, k in T.grid(16, 16, 16)", "for i, j, k in T.grid(16, 8, 16)"), "extent of loop j");
    says(changed(sync, "\"SSR\"", "\"SSS\""), "iterator");
    says(changed(sync, "] + T.Cast", "] - T.Cast"), "against");
    says(changed(sync, ") * T.Cast", ") + T.Cast"), "the values differ");
    says(
        changed(
            sync,
            "T.reads(C[0:16, 0:16], A[0:16, 0:16], B[0:16, 0:16])",
            "T.reads(C[0:16, 0:16], B[0:16, 0:16], A[0:16, 0:16])",
        ),
        "scope",
    );
    says(
        changed(sync, "T.reads(C[0:16, 0:16], A[0:16, 0:16], B[0:16, 0:16])", "T.reads(A[0:16, 0:16], B[0:16, 0:16])"),
        "2 reads, the intrinsic has 3",
    );
    let load = "wmma_load_16x16x16_f16_a_shared";
    says(changed(load, "T.grid(16, 16)", "T.grid(16, 8)"), "extent of loop");
    says(changed(load, "T.reads(A[0:16, 0:16])", "T.reads(A[0:8, 0:16])"), "extent of a region of A");
    says(changed(load, "scope=\"shared\"", "scope=\"shared.dyn\""), "buffer A is in scope shared.dyn");
    says(changed("wmma_fill_16x16x16_f32", "T.float32(0.0)", "T.float32(1.0)"), "the values differ");
}

#[test]
fn refusals_of_other_kinds() {
    let (program, block) = description("dp4a_s8s8s32");
    let mut s = Schedule::new(program).unwrap();
    let error = tensorize(&mut s, Node::Block(block), "dp5a", true).unwrap_err();
    assert_eq!(
        (error.class.to_string().as_str(), error.fast.as_str()),
        ("ValueError", "TensorIntrin 'dp5a' is not registered")
    );
    let root = s.program().body.block.id;
    assert!(tensorize(&mut s, Node::Block(root), "dp4a_s8s8s32", true).is_err(), "the root block");
    // A loop that blockize refuses.
    let text = "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((32,), \"int8\"), B: T.Buffer((32,), \"int8\")):\n    for i, j \
                in T.grid(7, 5):\n        with T.sblock(\"B\"):\n            vi = T.axis.spatial(32, i * 5 + j)\n            \
                T.where(i * 5 + j < 32)\n            B[vi] = A[vi]\n";
    let mut s = Schedule::new(tvmscript::parse(text).unwrap()).unwrap();
    let b = satune_rewrites::queries::get_sblock(&s, "B").unwrap();
    let j = satune_rewrites::queries::get_loops(&s, b).unwrap()[1];
    let error = tensorize(&mut s, Node::Loop(j), "dp4a_s8s8s32", true).unwrap_err();
    assert_eq!(error.fast, "ScheduleError: The bindings of the inner block can not be blockized.");
    assert_eq!(error.primitive, "tensorize");
}

#[test]
fn annotations_of_the_block_stay() {
    let (mut program, block) = description("wmma_fill_16x16x16_f32");
    let Stmt::Realize(tile) = program.body.block.body.as_mut() else { panic!("no block") };
    tile.block.annotations.insert("mine".into(), Attr::Int(1));
    let mut s = Schedule::new(program).unwrap();
    tensorize(&mut s, Node::Block(block), "wmma_fill_16x16x16_f32", true).unwrap();
    assert_eq!(s.block(block).unwrap().annotations.get("mine"), Some(&Attr::Int(1)));
}
