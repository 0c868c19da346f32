//! Schedules on tensor cores as traces of primitives: the trace is replayed, the program means what the source means, the
//! plan is read back from it, and TVM makes the same program.
mod ask;

use satune_ir::interp::{random_inputs, run, Array};
use satune_ir::term::tensor::{
    mma_conditions, CopyOrder, Gemm, Mma, OperandPlan, Order, Raster, Store, TensorPlan, TileLayout, TileStore,
    WgmmaPlan, Wmma, WmmaShape,
};
use satune_ir::term::*;
use satune_ir::{structural, tvmscript, DType, Program};
use satune_rewrites::replay::replay_strict;
use satune_rewrites::space::rules::tensor::{TensorCores, TensorMenu};
use satune_rewrites::space::*;
use satune_rewrites::{intrinsics, Call, Trace};
use serde_json::{json, Value};

const H200: Limits = Limits { threads: 1024, shared_bytes: 232_448, registers: 255, cp_async: true };
const CORES: TensorCores =
    TensorCores { mma: true, wmma: None, stmatrix: true, wgmma: true, multiprocessors: 3, tf32: true };

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> Vec<T> {
        vec![of[self.roll(of.len())]]
    }
}

/// A source program of a product, with these blocks after it. Its form: first how A and B are stored, then words where it is
/// not the usual one: how many products (`x3`), that the result is stored by columns, that B's factor comes first (`BA`), and
/// the order of loops.
fn source([m, n, k]: [i64; 3], operand: &str, form: &str, epilogue: Option<&str>) -> Program {
    let words: Vec<&str> = form.split(' ').collect();
    let batch = words.iter().find_map(|w| w.strip_prefix('x'));
    let is = |word: &str| words.contains(&word);
    // The dimensions of a matrix and its indices; those of a result in order of storage.
    let matrix = |transposed: bool, dims: [(i64, &str); 2]| {
        let [(x, vx), (y, vy)] = if transposed { [dims[1], dims[0]] } else { dims };
        match batch {
            Some(b) => (format!("{b}, {x}, {y}"), format!("vb, {vx}, {vy}")),
            None => (format!("{x}, {y}"), format!("{vx}, {vy}")),
        }
    };
    let sum = if operand == "int8" { "int32" } else { "float32" };
    let (a, a_at) = matrix(form.starts_with('T'), [(m, "vi"), (k, "vk")]);
    let (b, b_at) = matrix(words[0].ends_with('T'), [(k, "vk"), (n, "vj")]);
    let (c, c_at) = matrix(is("columns"), [(m, "vi"), (n, "vj")]);
    let cast = |x: String| if operand == sum { x } else { format!("T.Cast(\"{sum}\", {x})") };
    let [first, second] = if is("BA") { [("B", &b_at), ("A", &a_at)] } else { [("A", &a_at), ("B", &b_at)] };
    let product = [first, second].map(|(name, at)| cast(format!("{name}[{at}]"))).join(" * ");
    let order = words.iter().skip(1).find(|w| w.contains('i') && w.contains('j'));
    let order = order.copied().unwrap_or(if batch.is_some() { "bijk" } else { "ijk" });
    let listed = |one: &dyn Fn(char) -> String| order.chars().map(one).collect::<Vec<_>>().join(", ");
    let loops = listed(&|l| l.to_string());
    let extents = listed(&|l| match l {
        'i' => m.to_string(),
        'j' => n.to_string(),
        'k' => k.to_string(),
        _ => batch.unwrap_or("1").to_string(),
    });
    let (iterators, kinds) = (listed(&|l| format!("v{l}")), order.replace(['i', 'j', 'b'], "S").replace('k', "R"));
    // A block after it has the result's dimensions as loops.
    let (params, alloc, after) = match epilogue {
        None => (format!(", C: T.Buffer(({c}), \"{sum}\")"), String::new(), String::new()),
        Some(value) => (
            format!(", bias: T.Buffer(({n},), \"{operand}\"), D: T.Buffer(({c}), \"{operand}\")"),
            format!("    C = T.sblock_alloc_buffer(({c}), \"{sum}\")\n"),
            format!(
                "    for {loops} in T.grid({c}):\n        with T.sblock(\"D\"):\n            {c_at} = \
                 T.axis.remap(\"{kinds}\", [{loops}])\n            D[{c_at}] = T.Cast(\"{operand}\", {})\n",
                value.replace("C[]", &format!("C[{c_at}]")),
                loops = c_at.replace('v', ""),
                kinds = "S".repeat(c_at.split(", ").count()),
            ),
        ),
    };
    let zero = if sum == "int32" { "0" } else { "T.float32(0)" };
    let text = format!(
        "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer(({a}), \"{operand}\"), B: T.Buffer(({b}), \
         \"{operand}\"){params}):\n{alloc}    for {loops} in T.grid({extents}):\n        with \
         T.sblock(\"C\"):\n            {iterators} = T.axis.remap(\"{kinds}\", [{loops}])\n            with \
         T.init():\n                C[{c_at}] = {zero}\n            C[{c_at}] = C[{c_at}] + {product}\n{after}"
    );
    tvmscript::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// A space with few of all decisions, which others of another seed have.
fn space(c: &Contraction, dice: &mut Dice) -> Space {
    let usual = TensorMenu::of(c, &CORES);
    let first = usual.copy_bytes.len();
    // With each span the shorter ones: a longer one than a row is that of the row's length.
    let kind = std::mem::discriminant(&dice.pick(&usual.layouts)[0]);
    let of_kind = |layout: &TileLayout| std::mem::discriminant(layout) == kind;
    let menu = TensorMenu {
        tile_m: vec![[32, 96][dice.roll(2)], 64],
        tile_n: dice.pick(&[24, 32, 64]),
        tile_k: dice.pick(&usual.tile_k[..usual.tile_k.len().min(3)]),
        threads: vec![64, 128],
        warp: [64, 64],
        stages: dice.pick(&[2, 3, 4]),
        slack: dice.pick(&[0, 1]),
        loops: dice.pick(&[false, true]),
        descending: dice.pick(&[false, true]),
        layouts: usual.layouts.iter().copied().filter(of_kind).chain([TileLayout::Plain]).collect(),
        copy_bytes: vec![usual.copy_bytes[dice.roll(first)]],
        copy_orders: dice.pick(&[CopyOrder::Rows, CopyOrder::Columns, CopyOrder::Own]),
        copy_loops: dice.pick(&[false, true]),
        copy_steps: 1 + dice.roll(2) as u32,
        prefetch: dice.pick(&[0, 128]),
        pairs: dice.pick(&[false, true]),
        matrices: if dice.roll(2) == 0 { vec![4] } else { vec![4, 2] },
        sets: vec![1, 2],
        min_blocks: vec![2],
        ..usual
    };
    let threads = Menu {
        tile_m: vec![],
        tile_n: vec![],
        tile_k: vec![16],
        threads: vec![],
        vthreads: vec![1],
        registers: 8,
        split_k: vec![2],
        groups: vec![2],
        async_stages: vec![],
    };
    let mut rules = rules::all();
    rules.extend(rules::tensor::all(c, menu));
    saturate(c, H200, &threads, &rules, Fuel::default()).unwrap()
}

/// Plans on `wgmma` that fit a problem, of all that there may be.
fn wgmma(gemm: &Gemm, dice: &mut Dice) -> Vec<Schedule> {
    let k = 128 / i64::from(gemm.operand.bytes());
    let mut plan = || {
        let consumers = 1 + dice.roll(3) as u32;
        let ping_pong = consumers == 2 && dice.roll(2) == 0;
        let together = if ping_pong { 1 } else { i64::from(consumers) };
        let n = [8, 24, 32, 64, 96][dice.roll(5)];
        let mut yes = || dice.roll(2) == 0;
        WgmmaPlan {
            swapped: yes() && yes(),
            ping_pong,
            by_rows: yes(),
            eager_release: yes(),
            blocks: yes().then_some(2),
            stream_k: yes() && yes(),
            cluster: if yes() && yes() { [2, 1] } else { [1, 1] },
            split_k: if yes() && yes() { 2 } else { 1 },
            store: if yes() { TileStore::Tma } else { TileStore::Direct },
            // Groups that do not divide the tiles, too.
            raster: Raster { columns: yes(), group: if yes() { 1 } else { 2 } },
            ..WgmmaPlan::plain([64 * together * if yes() { 1 } else { 2 }, n, k], consumers, if yes() { 3 } else { 4 })
        }
    };
    let all = (0..400).map(|_| plan()).filter(|p| p.check(gemm).is_ok());
    all.map(Schedule::Wgmma).collect()
}

/// Plans on `wmma` that fit a problem: of those that compute the same in the same order, the one that spaces hold.
fn wmma(gemm: &Gemm, dice: &mut Dice) -> Vec<Schedule> {
    let shapes = WmmaShape::ALL.into_iter().filter_map(|shape| Wmma::of(shape, gemm.operand));
    let instructions: Vec<Mma> = shapes.map(Mma::Wmma).collect();
    if instructions.is_empty() {
        return Vec::new();
    }
    let mut plan = || {
        let instruction = instructions[dice.roll(instructions.len())];
        let [m, n] = instruction.block();
        let mut some = |most: usize| 1 + dice.roll(most) as i64;
        let (warp, warps, steps) = ([m * some(2), n * some(3)], [some(2), some(2)], some(3));
        let tile = [warp[0] * warps[0], warp[1] * warps[1], 16 * steps];
        let operand = |dice: &mut Dice| OperandPlan {
            layout: TileLayout::Padded,
            bytes: [16, 8, 4][dice.roll(3)],
            order: [CopyOrder::Rows, CopyOrder::Columns, CopyOrder::Own][dice.roll(3)],
            step: dice.roll(2) as u32,
            sets: 1 + dice.roll(2) as u32,
            ..OperandPlan::USUAL
        };
        let operands = [operand(dice), operand(dice)];
        let mut yes = || dice.roll(2) == 0;
        let several = warp[0] > m;
        TensorPlan {
            warps_m_outer: yes() || warps[0] == 1 || warps[1] == 1,
            order: Order {
                columns: several && yes(),
                serpentine: several && yes(),
                pairs: yes(),
                descending: steps > 1 && yes(),
            },
            rolled: yes(),
            operands,
            raster: Raster { columns: yes(), group: if yes() { 1 } else { 2 } },
            split_k: if yes() && yes() { 2 } else { 1 },
            swapped: yes(),
            store: if yes() { Store::Direct } else { Store::Shared { stmatrix: false } },
            min_blocks: yes().then_some(2),
            ..TensorPlan::plain(tile, warp, instruction, 2)
        }
    };
    let all = (0..400).map(|_| plan()).filter(|p| p.check(gemm).is_ok());
    all.map(Schedule::Mma).collect()
}

/// Whether no span is longer than a row: small menus lack the shorter one that says the same.
fn spans_fit(plan: &TensorPlan, gemm: &Gemm) -> bool {
    let gemm = &*gemm.oriented(plan.swapped);
    let [m, n, k] = plan.tile;
    [(Side::A, m), (Side::B, n)].into_iter().zip(&plan.operands).all(|((side, extent), operand)| {
        let (_, columns) = mma_conditions::tile_rows(gemm, side, extent, k);
        let chunks = columns * i64::from(gemm.operand.bytes()) / 16;
        let (TileLayout::Xor(span) | TileLayout::Rotate(span)) = operand.layout else { return true };
        i64::from(span) <= chunks
    })
}

struct Sample {
    name: String,
    plan: Schedule,
    contraction: Contraction,
    source: Program,
    trace: Trace,
    made: Program,
}

/// Problems of all types, orders of storage, ragged shapes and epilogues.
fn problems() -> Vec<(String, Program)> {
    let mut out = Vec::new();
    for (operand, form, shape, epilogue) in [
        ("bfloat16", "NT", [64, 64, 64], None),
        ("bfloat16", "TN", [64, 64, 64], None),
        ("float16", "NN", [60, 36, 45], None),
        ("float16", "TT", [64, 32, 67], Some("T.max(C[] + T.Cast(\"float32\", bias[vj]), T.float32(0))")),
        ("bfloat16", "NT", [64, 72, 64], Some("C[] * T.float32(0.5)")),
        ("float32", "NT", [64, 32, 32], None),
        ("float32", "TN", [32, 36, 40], None),
        ("int8", "NT", [64, 32, 128], None),
        ("int8", "TN", [32, 48, 66], None),
        ("bfloat16", "NT", [160, 64, 128], None),
        ("float16", "TN", [64, 64, 72], Some("C[] + T.Cast(\"float32\", bias[vj])")),
        ("float8_e4m3fn", "NT", [64, 40, 128], None),
        // Batches, results by columns, operands swapped in the text, loops in other orders.
        ("bfloat16", "NT x2", [32, 64, 64], None),
        ("float16", "TN x2", [64, 32, 64], Some("C[] + T.Cast(\"float32\", bias[vj])")),
        ("int8", "NT x2 jbki", [60, 24, 64], None),
        ("float16", "NN x3 columns", [30, 36, 48], Some("T.max(C[], T.float32(0))")),
        ("float16", "NT columns", [64, 32, 64], Some("C[] + T.Cast(\"float32\", bias[vj])")),
        ("bfloat16", "TN columns jik", [40, 64, 64], None),
        ("float32", "NT columns BA", [64, 32, 32], None),
        ("bfloat16", "NT BA kij", [32, 64, 64], None),
        ("float16", "TT jik", [16, 96, 72], Some("C[] + T.Cast(\"float32\", bias[vj])")),
    ] {
        let name = format!("{operand} {form} {shape:?} {}", epilogue.unwrap_or_default());
        out.push((name, source(shape, operand, form, epilogue)));
    }
    out
}

/// Some plans of small spaces, by `mma.sync`, `wgmma` and `wmma`, each with the program that its trace makes.
fn samples(seed: u64, of_each: usize) -> Vec<Sample> {
    let mut dice = Dice(seed);
    let mut out = Vec::new();
    for (name, source) in problems() {
        let c = contraction(&source).unwrap_or_else(|e| panic!("{name}: {e}"));
        let space = space(&c, &mut dice);
        let terms = space.programs(space.root);
        let plan = |t| Schedule::from_term(t, &c).unwrap_or_else(|e| panic!("{name}: {e}: {t}"));
        let mut plans: Vec<Schedule> = terms.iter().map(plan).collect();
        let gemm = Gemm::of(&c).unwrap();
        plans.retain(|plan| matches!(plan, Schedule::Mma(p) if spans_fit(p, &gemm)));
        let kinds = [plans, wgmma(&gemm, &mut dice), wmma(&gemm, &mut dice)];
        for kind in kinds.iter().filter(|k| !k.is_empty()) {
            for _ in 0..of_each {
                let mut plan = kind[dice.roll(kind.len())].clone();
                if let Schedule::Mma(plan) = &mut plan {
                    // Rare among all layouts. Rows of an odd number of chunks are apart as they are.
                    let (gemm, sides) = (Gemm::of(&c).unwrap(), [vec![], vec![0], vec![1], vec![0, 1]]);
                    for side in &sides[dice.roll(4)] {
                        let [plain, padded] = [TileLayout::Plain, TileLayout::Padded].map(|layout| {
                            let mut plan = plan.clone();
                            plan.operands[*side].layout = layout;
                            plan.shared_bytes(&gemm)
                        });
                        if padded > plain {
                            plan.operands[*side].layout = TileLayout::Padded;
                        }
                    }
                }
                let trace = tensor_trace(&plan, &c).unwrap_or_else(|e| panic!("{name}: {plan:?}: {e}"));
                let (results, schedule) = replay_strict(&source, &trace.calls).unwrap();
                if let Some((call, e)) =
                    trace.calls.iter().zip(&results).find_map(|(c, r)| Some((c, r.as_ref().err()?)))
                {
                    panic!("{name}: {plan:?}: {}: {}\n{}", call.op, e.detail, tvmscript::print(schedule.program()));
                }
                let (source, contraction) = (source.clone(), c.clone());
                let made = schedule.into_program();
                out.push(Sample { name: name.clone(), plan, contraction, source, trace, made });
            }
        }
    }
    out
}

#[test]
fn plans_are_read_back_from_their_programs() {
    let all = samples(1, 3);
    let swapped = |s: &&Sample| match &s.plan {
        Schedule::Mma(plan) => plan.swapped,
        Schedule::Wgmma(plan) => plan.swapped,
        _ => false,
    };
    let by_wmma = |s: &&Sample| matches!(&s.plan, Schedule::Mma(plan) if plan.instruction.wmma().is_some());
    let of_parts = |s: &&Sample| match &s.plan {
        Schedule::Mma(plan) => plan.split_k > 1 && s.contraction.epilogue.is_some(),
        Schedule::Wgmma(plan) => (plan.split_k > 1 || plan.stream_k) && s.contraction.epilogue.is_some(),
        _ => false,
    };
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
    let half = Mma::Wmma(Wmma { shape: WmmaShape::M32N8, operand: DType::BF16 });
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
    refused(&|calls| calls.retain(|c| !waits(c)), &[other_plan, "tir.manifest_shared_memory_local_stage"]);
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
    for s in samples(2, 1) {
        let meaning =
            |p: &Program, inputs: &[Array]| run(p, inputs).unwrap_or_else(|e| panic!("{}: {e}\n{:?}", s.name, s.plan));
        let inputs = random_inputs(&s.source, 7).unwrap();
        let described = intrinsics::described(&s.made);
        assert_eq!(meaning(&described, &inputs), meaning(&s.source, &inputs), "{}: {:?}", s.name, s.plan);
    }
}

#[test]
fn tvm_makes_the_same_programs() {
    let all = samples(3, 1);
    let requests: Vec<Value> = all
        .iter()
        .map(|s| {
            let (expect, script) = (tvmscript::print(&s.made), tvmscript::print(&s.source));
            json!({"expect": expect, "script": script, "python": s.trace.to_python("schedule")})
        })
        .collect();
    let Some(answers) = ask::ask("tensor_traces", &requests) else { return };
    for (s, answer) in all.iter().zip(&answers) {
        let python = s.trace.to_python("schedule");
        let Some(text) = answer["final"].as_str() else { panic!("{}: {}\n{python}", s.name, answer["error"]) };
        let theirs = tvmscript::parse(text).unwrap();
        structural::equal(&s.made, &theirs).unwrap_or_else(|e| {
            panic!("{}: {e}\n{python}\n--- TVM's\n{text}\n--- ours\n{}", s.name, tvmscript::print(&s.made))
        });
        // Python text, intrinsics and all, is read as the same trace.
        assert_eq!(Trace::read(&python).unwrap().to_python("schedule"), python);
    }
    println!("{} of {} agree", all.len(), all.len());
}
