//! Schedules on tensor cores as traces of primitives: the trace is replayed, the program means what the source means, the
//! plan is read back from it, and TVM makes the same program.
use crate::plans::{is_partial, samples, source, Sample};
use satune_ir::interp::{random_inputs, run, Array};
use satune_ir::term::tensor::{Mma, Store, TensorPlan, TileLayout, Wmma, WmmaShape};
use satune_ir::term::Schedule;
use satune_ir::{structural, tvmscript, DType, Program};
use satune_rewrites::replay::replay_strict;
use satune_rewrites::simplified::simplified;
use satune_rewrites::space::{contraction, read_plan, tensor_trace};
use satune_rewrites::{intrinsics, Call, Trace};
use serde_json::{json, Value};

#[test]
fn plans_are_read_back_from_their_programs() {
    let all = samples(1, 3, 1);
    let swapped = |s: &&Sample| match &s.plan {
        Schedule::Mma(plan) => plan.swapped,
        Schedule::Wgmma(plan) => plan.swapped,
        _ => false,
    };
    let by_wmma = |s: &&Sample| matches!(&s.plan, Schedule::Mma(plan) if plan.instruction.wmma().is_some());
    let of_parts = |s: &&Sample| is_partial(&s.plan) && s.contraction.epilogue.is_some();
    let counts =
        [all.iter().filter(swapped).count(), all.iter().filter(by_wmma).count(), all.iter().filter(of_parts).count()];
    println!("{} plans: {counts:?} with swapped operands, on wmma, with an epilogue of parts of k", all.len());
    assert!(all.len() >= 60 && counts.into_iter().zip([10, 20, 3]).all(|(count, least)| count >= least), "{counts:?}");
    for s in &all {
        match read_plan(&s.made, &s.source, &s.contraction) {
            Ok(plan) => assert_eq!(plan, s.plan, "{}", s.name),
            Err(e) => panic!("{}: {e}\n{:?}\n{}", s.name, s.plan, tvmscript::print(&s.made)),
        }
    }
}

/// What is read from the program that a trace makes after a change to it.
fn after(change: impl FnOnce(&mut Vec<Call>)) -> Result<TensorPlan, String> {
    after_in("NT", false, change)
}

/// The same for a product of another form, and swapped operands.
fn after_in(form: &str, swapped: bool, change: impl FnOnce(&mut Vec<Call>)) -> Result<TensorPlan, String> {
    let plan = TensorPlan { swapped, ..TensorPlan::plain([64, 64, 32], [32, 32], Mma::Bf16, 3) };
    after_of(plan, form, change)
}

/// The same for another plan.
fn after_of(plan: TensorPlan, form: &str, change: impl FnOnce(&mut Vec<Call>)) -> Result<TensorPlan, String> {
    let source = source([128, 128, 128], "bfloat16", form, None);
    let c = contraction(&source).unwrap();
    let mut calls = tensor_trace(&Schedule::Mma(plan), &c).unwrap().calls;
    change(&mut calls);
    let (results, schedule) = replay_strict(&source, &calls).unwrap();
    if let Some(error) = results.iter().find_map(|r| r.as_ref().err()) {
        panic!("the change is refused by a primitive: {}", error.detail);
    }
    match read_plan(schedule.program(), &source, &c) {
        Ok(Schedule::Mma(plan)) => Ok(plan),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

/// The call of a primitive with this first argument.
fn call<'c>(calls: &'c mut [Call], op: &str, first: &str) -> &'c mut Call {
    let found = calls.iter_mut().find(|c| c.op == op && c.args.first() == Some(&json!(first)));
    found.unwrap_or_else(|| panic!("no {op} of {first}"))
}

#[test]
fn what_is_replayed_is_what_is_read() {
    let plan = after(|_| {}).unwrap();
    assert_eq!((plan.tile, plan.warp, plan.stages), ([64, 64, 32], [32, 32], 3));
    // Extents, bindings and annotations are the plan.
    let factors = |calls: &mut Vec<Call>, of: &str, to: Value| {
        call(calls, "split", of).kwargs["factors"] = to;
    };
    let plan = after(|calls| factors(calls, "$l_k", json!([null, 4, 16]))).unwrap();
    assert_eq!((plan.tile, plan.operands[0].layout), ([64, 64, 64], TileLayout::Xor(4)));
    let plan = after(|calls| {
        factors(calls, "$l_m", json!([null, 4, 1, 16]));
        for c in calls.iter_mut().filter(|c| c.op == "split" && c.args[0].to_string().contains("copy_fused")) {
            c.kwargs["factors"] = json!([null, 8, 32, 8]);
        }
    });
    assert_eq!(plan.unwrap().warp, [16, 32]);
    let plan = after(|calls| {
        let stage = |c: &&mut Call| c.op == "annotate" && c.args[1] == "software_pipeline_stage";
        calls.iter_mut().find(stage).unwrap().args[2] = json!([0, 0, 3]);
    });
    assert_eq!(plan.unwrap().stages, 4);
    let plan = after(|calls| calls.retain(|c| c.op != "unroll")).unwrap();
    assert!(plan.operands.iter().all(|o| o.rolled));
    // What no plan has is refused, and the sentence says where.
    let refused = |change: &dyn Fn(&mut Vec<Call>), parts: &[&str]| {
        let error = after(|calls| change(calls)).unwrap_err();
        assert!(parts.iter().all(|p| error.contains(p)), "{error}");
    };
    // The copies are dealt to four warps of eight.
    refused(
        &|calls| factors(calls, "$l_m", json!([null, 4, 1, 16])),
        &["not those of any plan", "k_0 / ax0_ax1_fused_0", "extent: 2 against 1"],
    );
    refused(
        &|calls| calls.retain(|c| c.args.get(1) != Some(&json!("satune.raster_rows"))),
        &["fused", "`satune.raster_rows` or `satune.raster_columns`"],
    );
    refused(
        &|calls| {
            calls.iter_mut().find(|c| c.args.get(1) == Some(&json!("satune.raster_rows"))).unwrap().args[2] = json!(2);
        },
        &["not those of any plan"],
    );
    refused(
        &|calls| calls.retain(|c| c.op != "tensorize"),
        &["block `C`", "is not tensorized with an instruction of mma.sync"],
    );
    refused(&|calls| calls.push(Call::new("unroll", [json!("$k_step")])), &["loop `k_1`", "are serial"]);
}

/// Batches, results by columns, swapped operands: there, too, the program is the plan.
#[test]
fn what_is_read_of_other_forms_is_what_is_replayed() {
    for (form, swapped) in [("NT x2", false), ("NT columns", false), ("NT", true), ("TN x2 columns", true)] {
        let plan = after_in(form, swapped, |_| {}).unwrap();
        assert_eq!((plan.swapped, plan.tile, plan.stages), (swapped, [64, 64, 32], 3), "{form}");
        let plan = after_in(form, swapped, |calls| {
            call(calls, "split", "$l_n").kwargs["factors"] = json!([null, 4, 2, 8]);
            for c in calls.iter_mut().filter(|c| c.op == "split" && c.args[0].to_string().contains("copy_fused")) {
                c.kwargs["factors"] = json!([null, 8, 32, 8]);
            }
        });
        assert_eq!(plan.unwrap().warp, [32, 16], "{form}");
        let error = after_in(form, swapped, |calls| {
            call(calls, "split", "$l_n").kwargs["factors"] = json!([null, 4, 2, 8]);
        });
        let error = error.unwrap_err();
        assert!(error.contains("not those of any plan") && error.contains("extent: 2 against 1"), "{form}: {error}");
    }
    // The batch's loop is one of those over blocks.
    let error = after_in("NT x2", false, |calls| {
        let fuse = calls.iter_mut().find(|c| c.op == "fuse").unwrap();
        assert_eq!(fuse.args.remove(0), json!("$l_batch0"));
    });
    assert!(error.as_ref().is_err_and(|e| e.contains("it has 7 loops; they are blocks")), "{error:?}");
}

/// What no kernel knows would be lost: a trace cannot say it, and a program that says it anyway is no plan's.
#[test]
fn annotations_that_nobody_knows_are_refused() {
    let source = source([128, 128, 128], "bfloat16", "NT", None);
    let c = contraction(&source).unwrap();
    let plan = TensorPlan::plain([64, 64, 32], [32, 32], Mma::Bf16, 3);
    let mut calls = tensor_trace(&Schedule::Mma(plan), &c).unwrap().calls;
    calls.push(Call::new("annotate", [json!("$k_tile"), json!("satune.magic"), json!(1)]));
    let (results, schedule) = replay_strict(&source, &calls).unwrap();
    let error = results.last().unwrap().as_ref().unwrap_err();
    assert!(error.detail.contains("satune.magic is not known") && error.remedy.contains("satune.slack"));
    let picture = error.render(schedule.program());
    assert!(picture.lines().any(|l| l.contains("k_0")), "{picture}");
    let said = tvmscript::print(schedule.program()).replace("satune.raster_rows", "satune.magic");
    let error = read_plan(&tvmscript::parse(&said).unwrap(), &source, &c).unwrap_err().to_string();
    assert!(error.contains("fused") && error.contains("`satune.magic` is not known"), "{error}");
}

/// Rows are apart as suits who reads them, and storage_align says so.
#[test]
fn padded_rows_are_those_of_storage_align() {
    for (operand, op, layout, aligned) in [
        ("bfloat16", Mma::Bf16, "NT", [[16, 8], [16, 8]]),
        ("float16", Mma::F16, "TT", [[16, 8], [16, 8]]),
        ("int8", Mma::S8, "NT", [[32, 16], [32, 16]]),
        // Words stored across k: pairs of chunks of four rows.
        ("float32", Mma::Tf32, "TT", [[16, 8], [8, 4]]),
    ] {
        let source = source([64, 64, 128], operand, layout, None);
        let c = contraction(&source).unwrap();
        let mut plan = TensorPlan::plain([32, 32, i64::from(2 * op.k())], [16, 16], op, 2);
        plan.operands.iter_mut().for_each(|o| o.layout = TileLayout::Padded);
        let mut calls = tensor_trace(&Schedule::Mma(plan.clone()), &c).unwrap().calls;
        let said: Vec<Value> = calls.iter().filter(|c| c.op == "storage_align").map(|c| json!(c.args)).collect();
        let [a, b] = aligned.map(|[factor, rest]| (json!(factor), json!(rest)));
        assert_eq!(said, [json!(["$a_shared", 0, -2, a.0, a.1]), json!(["$b_shared", 0, -2, b.0, b.1])]);
        let read = |calls: &[Call]| {
            let (_, schedule) = replay_strict(&source, calls).unwrap();
            read_plan(schedule.program(), &source, &c)
        };
        assert_eq!(read(&calls).unwrap(), Schedule::Mma(plan));
        // Rows elsewhere are no plan's.
        let call = calls.iter_mut().find(|c| c.op == "storage_align").unwrap();
        call.args[3] = json!(64);
        let error = read(&calls).unwrap_err().to_string();
        assert!(error.contains("A_shared") && error.contains("no layout of chunks"), "{error}");
    }
}

#[test]
fn what_is_replayed_is_what_is_read_of_wmma() {
    let half = Mma::Wmma(Wmma::of(WmmaShape::M32N8, DType::BF16).unwrap());
    let plan = || TensorPlan {
        store: Store::Shared { stmatrix: false },
        rolled: true,
        ..TensorPlan::plain([64, 64, 32], [32, 32], half, 2)
    };
    let is_about = |c: &Call, op: &str, block: &str| c.op == op && c.args[0] == json!(format!("${block}"));
    // Extents are the plan; what is split for the store follows the warp's tile.
    let changed = after_of(plan(), "NT", |calls| {
        call(calls, "split", "$l_k").kwargs["factors"] = json!([null, 4, 16]);
    });
    assert_eq!(changed.unwrap().tile, [64, 64, 64]);
    let changed = after_of(plan(), "NT", |calls| calls.retain(|c| c.args.get(1) != Some(&json!("satune.rolled"))));
    assert!(!changed.unwrap().rolled);
    let refused = |change: &dyn Fn(&mut Vec<Call>), parts: &[&str]| {
        let Err(error) = after_of(plan(), "NT", |calls| change(calls)) else { panic!("{parts:?} is not refused") };
        assert!(parts.iter().all(|p| error.contains(p)), "{error}");
    };
    let other_plan = "not those of any plan";
    // Rows that are not padded, or are padded otherwise.
    for (block, unpadded, otherwise) in [
        ("a_shared", "rows that are padded", "no layout of chunks"),
        ("b_shared", "rows that are padded", "no layout of chunks"),
        ("c_store", "buffer_dim_align", "buffer_dim_align"),
    ] {
        refused(&|calls| calls.retain(|c| !is_about(c, "storage_align", block)), &[unpadded]);
        let apart = |calls: &mut Vec<Call>| call(calls, "storage_align", &format!("${block}")).args[4] = json!(0);
        refused(&apart, &[otherwise]);
    }
    // Tiles that do not pass through registers.
    let waits = |c: &Call| is_about(c, "annotate", "a_shared") && c.args[1] != json!("satune.step");
    refused(&|calls| calls.retain(|c| !waits(c)), &[other_plan, "tirx.manifest_shared_memory_local_stage"]);
    // A ring of three.
    let stage = |c: &&mut Call| c.op == "annotate" && c.args[1] == "software_pipeline_stage";
    refused(&|calls| calls.iter_mut().find(stage).unwrap().args[2] = json!([0, 0, 2]), &["two tiles"]);
    // Fragments that are loaded element by element, and sums that are stored so.
    let without =
        |name: &'static str| move |calls: &mut Vec<Call>| calls.retain(|c| c.args.get(1) != Some(&json!(name)));
    refused(&without("wmma_load_32x8x16_bf16_b_trans_shared"), &[other_plan]);
    refused(&without("wmma_store_32x8x16_f32_shared"), &["buffer `C_wmma.accumulator`", "not read by one copy"]);
    refused(
        &|calls| calls.retain(|c| c.op != "tensorize" || !c.args[1].to_string().contains("sync")),
        &["block `C`", "is not tensorized with an instruction of mma.sync"],
    );
}

#[test]
fn programs_mean_what_their_sources_mean() {
    for s in samples(2, 1, 2) {
        let meaning =
            |p: &Program, inputs: &[Array]| run(p, inputs).unwrap_or_else(|e| panic!("{}: {e}\n{:?}", s.name, s.plan));
        let inputs = random_inputs(&s.source, 7).unwrap();
        let described = intrinsics::described(&s.made);
        assert_eq!(meaning(&described, &inputs), meaning(&s.source, &inputs), "{}: {:?}", s.name, s.plan);
    }
}

#[test]
fn tvm_makes_the_same_programs() {
    let all = samples(3, 1, 2);
    let requests: Vec<Value> = all
        .iter()
        .map(|s| {
            let (expect, script) = (tvmscript::print(&s.made), tvmscript::print(&s.source));
            json!({"expect": expect, "script": script, "python": s.trace.to_python("schedule")})
        })
        .collect();
    let answers = crate::ask::ask("tensor_traces", &requests);
    for (s, answer) in all.iter().zip(&answers) {
        let python = s.trace.to_python("schedule");
        let Some(text) = answer["final"].as_str() else { panic!("{}: {}\n{python}", s.name, answer["error"]) };
        // TVM keeps quotients that bounds decide where another index of the access is swizzled.
        let theirs = simplified(&tvmscript::parse(text).unwrap());
        structural::equal(&s.made, &theirs).unwrap_or_else(|e| {
            panic!("{}: {e}\n{python}\n--- TVM's\n{text}\n--- ours\n{}", s.name, tvmscript::print(&s.made))
        });
        // Python text, intrinsics and all, is read as the same trace.
        assert_eq!(Trace::read(&python).unwrap().to_python("schedule"), python);
    }
    println!("{} of {} agree", all.len(), all.len());
}
