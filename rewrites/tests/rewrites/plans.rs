//! Plans on tensor cores of products of many forms, each with the program that its trace makes.
use satune_ir::term::tensor::{
    mma_conditions, CopyOrder, Gemm, GroupMma, Mma, OperandPlan, Order, Raster, Store, TensorPlan, TileLayout,
    TileStore, WgmmaPlan, Wmma,
};
use satune_ir::term::*;
use satune_ir::{tvmscript, Program};
use satune_rewrites::replay::replay_strict;
use satune_rewrites::space::rules::tensor::{TensorCores, TensorMenu};
use satune_rewrites::space::*;
use satune_rewrites::Trace;
use satune_testing::one_in;

const H200: Limits = Limits { threads: 1024, shared_bytes: 232_448, registers: 255, cp_async: true };
const CORES: TensorCores = TensorCores {
    mma: Some(90),
    wmma: None,
    stmatrix: true,
    group: Some(GroupMma::Wgmma),
    multiprocessors: [3; 3],
    tf32: true,
};

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
/// not the usual one: how many products (`x3`), that the result is stored by columns, that B's factor comes first (`BA`), that sums
/// are f16 (`halves`), and the order of loops.
pub fn source([m, n, k]: [i64; 3], operand: &str, form: &str, epilogue: Option<&str>) -> Program {
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
    let sum = match operand {
        "int8" => "int32",
        _ if is("halves") => "float16",
        _ => "float32",
    };
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
    let zero = if sum == "int32" { "0".into() } else { format!("T.{sum}(0)") };
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
    let threads = Menu::without_threads(vec![2], vec![2]);
    let mut rules = rules::all();
    rules.extend(rules::tensor::all(c, menu));
    saturate(c, H200, &threads, &rules, Fuel::default()).unwrap()
}

/// Plans on `wgmma` and `tcgen05` that fit a problem, of all that there may be.
fn wgmma(gemm: &Gemm, dice: &mut Dice) -> Vec<Schedule> {
    let k = 128 / i64::from(gemm.operand.bytes());
    let mut plan = || {
        let op = GroupMma::ALL[dice.roll(2)];
        let consumers = 1 + dice.roll(3) as u32;
        let ping_pong = consumers == 2 && dice.roll(2) == 0;
        let together = if ping_pong { 1 } else { i64::from(consumers) };
        let n = [8, 24, 32, 64, 96, 192][dice.roll(6)];
        let store = [TileStore::Direct, TileStore::Tma, TileStore::Boxes][dice.roll(3)];
        let mut yes = || dice.roll(2) == 0;
        let open = op.holds_sums();
        WgmmaPlan {
            op,
            swapped: yes() && yes(),
            ping_pong,
            by_rows: open && yes(),
            eager_release: open && yes(),
            arrive_per_warp: open && yes(),
            blocks: yes().then_some(2),
            stream_k: yes() && yes(),
            cluster: if yes() && yes() { [2, 1] } else { [1, 1] },
            split_k: if yes() && yes() { 2 } else { 1 },
            store,
            // Groups that do not divide the tiles, too.
            raster: Raster { columns: yes(), group: if yes() { 1 } else { 2 } },
            ..WgmmaPlan::plain(
                [op.rows() * together * if yes() { 1 } else { 2 }, n, k],
                consumers,
                if yes() { 3 } else { 4 },
            )
        }
    };
    let all = (0..400).map(|_| plan()).filter(|p| p.check(gemm).is_ok());
    all.map(Schedule::Wgmma).collect()
}

/// Plans on `wmma` that fit a problem: of those that compute the same in the same order, the one that spaces hold.
fn wmma(gemm: &Gemm, dice: &mut Dice) -> Vec<Schedule> {
    let multiplies = |op: &Wmma| [op.operand, op.accumulator()] == gemm.types();
    let instructions: Vec<Mma> = Wmma::all().filter(multiplies).map(Mma::Wmma).collect();
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
    let all = (0..400).map(|_| plan()).filter(|p| p.check(gemm).is_ok() && orders_differ(p, gemm));
    all.map(Schedule::Mma).collect()
}

/// Whether copies are in the order that spaces hold, where several are the same: a tile of one row, or of one chunk per row, has one.
fn orders_differ(plan: &TensorPlan, gemm: &Gemm) -> bool {
    let gemm = &*gemm.oriented(plan.swapped);
    let [m, n, k] = plan.tile;
    [(Side::A, m), (Side::B, n)].into_iter().zip(&plan.operands).all(|((side, extent), operand)| {
        let (rows, columns) = mma_conditions::tile_rows(gemm, side, extent, k);
        let per_row = columns / mma_conditions::copy_elements(gemm, side, operand.bytes);
        match operand.order {
            CopyOrder::Rows => true,
            CopyOrder::Columns => rows > 1 && per_row > 1,
            CopyOrder::Own => mma_conditions::copies(gemm, side, [extent, k], plan.threads(), operand.bytes) > 1,
        }
    })
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

/// Whether a second kernel adds parts of k.
pub fn is_partial(plan: &Schedule) -> bool {
    match plan {
        Schedule::Mma(plan) => plan.split_k > 1,
        Schedule::Wgmma(plan) => plan.partial(),
        Schedule::Cores(_) | Schedule::Stream(_) => false,
    }
}

pub struct Sample {
    pub name: String,
    pub plan: Schedule,
    pub contraction: Contraction,
    pub source: Program,
    pub trace: Trace,
    pub made: Program,
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
        ("float16", "NT halves", [64, 72, 64], None),
        ("float16", "TN halves x2", [60, 36, 72], Some("T.max(C[] + bias[vj], T.float16(0))")),
    ] {
        let name = format!("{operand} {form} {shape:?} {}", epilogue.unwrap_or_default());
        out.push((name, source(shape, operand, form, epilogue)));
    }
    out
}

/// Some plans of small spaces, by `mma.sync`, `wgmma` and `wmma`, each with the program that its trace makes; of one problem in so many.
pub fn samples(seed: u64, of_each: usize, parts: usize) -> Vec<Sample> {
    let mut dice = Dice(seed);
    let mut out = Vec::new();
    for (name, source) in one_in(parts, problems()) {
        let c = contraction(&source).unwrap_or_else(|e| panic!("{name}: {e}"));
        let space = space(&c, &mut dice);
        let terms = space.programs(space.root);
        let plan = |t| Schedule::from_term(t, &c).unwrap_or_else(|e| panic!("{name}: {e}: {t}"));
        let mut plans: Vec<Schedule> = terms.iter().map(plan).collect();
        let gemm = Gemm::of(&c).unwrap();
        plans.retain(|plan| matches!(plan, Schedule::Mma(p) if spans_fit(p, &gemm)));
        let kinds = [plans, wgmma(&gemm, &mut dice), wmma(&gemm, &mut dice)];
        for kind in kinds.iter().filter(|k| !k.is_empty()) {
            // Few plans split k under an epilogue.
            let partial = kind.iter().filter(|p| c.epilogue.is_some() && is_partial(p));
            let partial: Vec<Schedule> = partial.cloned().collect();
            for _ in 0..of_each {
                let from = if !partial.is_empty() && dice.roll(2) == 0 { &partial } else { kind };
                let mut plan = from[dice.roll(from.len())].clone();
                if let Schedule::Mma(plan) = &mut plan {
                    // Rare among all layouts. Rows of an odd number of chunks are apart as they are.
                    let sides = [vec![], vec![0], vec![1], vec![0, 1]];
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
