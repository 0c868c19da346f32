//! The rules of tensor-core schedules: every one is needed and fires, every program that they make is one that the
//! generator takes, and each side condition removed is caught.
use egg::RecExpr;
use satune_ir::term::tensor::{CopyOrder, GroupMma, Mma, TileLayout, Wmma, WmmaShape};
use satune_ir::term::*;
use satune_ir::{tvmscript, DType};
use satune_rewrites::space::rules::tensor::{TensorCores, TensorMenu};
use satune_rewrites::space::*;
use satune_testing::one_in;

const H200: Limits = Limits { threads: 1024, shared_bytes: 232_448, registers: 255, cp_async: true };
const CORES: TensorCores = TensorCores {
    mma: Some(90),
    wmma: None,
    stmatrix: true,
    group: Some(GroupMma::Wgmma),
    multiprocessors: [2; 3],
    tf32: false,
};

/// One of `wmma`'s instructions.
const HALF: Wmma = Wmma { shape: WmmaShape::M32N8, operand: DType::F16, f16_sums: false };

fn gemm(extents: [i64; 3], operand: DType, output: DType, layout: &str) -> Contraction {
    let sum = if operand == DType::I8 { DType::I32 } else { DType::F32 };
    let product = Contraction::gemm(None, extents, operand, sum, [layout.starts_with('T'), layout.ends_with('T')]);
    Contraction { c: OperandInfo { dtype: output, ..product.c.clone() }, ..product }
}

/// Two products of bytes whose A lies across k, and which of the two it is between its rows.
fn gathered_across([m, n, k]: [i64; 3]) -> Contraction {
    let script = format!(
        "@T.prim_func(s_tir=True)
def main(A: T.Buffer(({k}, 2, {m}), \"int8\"), B: T.Buffer((2, {n}, {k}), \"int8\"), C: T.Buffer((2, {m}, {n}), \"int32\")):
    for h, i, j, k in T.grid(2, {m}, {n}, {k}):
        with T.sblock(\"C\"):
            vh, vi, vj, vk = T.axis.remap(\"SSSR\", [h, i, j, k])
            with T.init():
                C[vh, vi, vj] = 0
            C[vh, vi, vj] = C[vh, vi, vj] + T.Cast(\"int32\", A[vk, vh, vi]) * T.Cast(\"int32\", B[vh, vj, vk])
"
    );
    contraction(&tvmscript::parse(&script).unwrap()).unwrap()
}

/// The same product with the result stored by columns.
fn by_columns(c: Contraction) -> Contraction {
    Contraction { c: OperandInfo { dims: vec![Axis::N, Axis::M], ..c.c.clone() }, ..c }
}

/// Two such products.
fn batched(c: Contraction) -> Contraction {
    let mut many = Contraction::gemm(Some(2), [1; 3], c.a.dtype, c.accumulate, [false; 2]);
    for (axis, info) in &mut many.iters {
        info.extent = if matches!(axis, Axis::Batch(_)) { 2 } else { c.extent(*axis) };
    }
    for (operand, of_one) in [(&mut many.a, &c.a), (&mut many.b, &c.b), (&mut many.c, &c.c)] {
        operand.dtype = of_one.dtype;
        operand.dims = [&[Axis::Batch(0)], &of_one.dims[..]].concat();
    }
    many
}

fn menu() -> TensorMenu {
    TensorMenu {
        mma: Some(Mma::F16),
        wmma: vec![],
        stmatrix: true,
        group: Some(GroupMma::Wgmma),
        tile_m: vec![64, 128],
        tile_n: vec![32, 64],
        tile_k: vec![32],
        spans: vec![1, 2],
        threads: vec![64, 128],
        warp: [64, 64],
        stages: vec![2, 3],
        slack: vec![0, 1],
        loops: vec![false],
        descending: vec![false],
        layouts: vec![TileLayout::Xor(8), TileLayout::Plain],
        copy_bytes: vec![16],
        copy_orders: vec![CopyOrder::Rows],
        copy_loops: vec![false],
        copy_steps: 1,
        prefetch: vec![0],
        pairs: vec![false],
        matrices: vec![4, 2],
        sets: vec![2],
        min_blocks: vec![2],
        consumers: vec![1, 2],
        grids: vec![3],
        clusters: vec![[2, 1]],
    }
}

/// The same with `wmma`.
fn menu_with_wmma() -> TensorMenu {
    TensorMenu { wmma: vec![HALF], ..menu() }
}

fn make(
    c: &Contraction,
    (menu, limits): (&TensorMenu, Limits),
    removed: Option<Condition>,
    without: Option<&str>,
) -> Result<Space, SaturationError> {
    let mut rules = rules::all();
    let mma = menu.mma.and(Mma::of([c.a.dtype, c.accumulate], 90));
    rules.extend(rules::tensor::all(c, TensorMenu { mma, ..menu.clone() }));
    rules.retain(|r| Some(r.name()) != without);
    saturate_without(c, limits, &Menu::without_threads(vec![2], vec![2]), &rules, Fuel::default(), removed)
}

#[test]
fn every_program_of_the_rules_is_one_that_the_generator_takes_and_none_is_there_twice() {
    let half = (DType::F16, DType::F16);
    let all = [
        (gemm([256, 128, 512], DType::BF16, DType::F32, "TN"), "TN", false),
        (gemm([256, 128, 256], half.0, half.1, "NT"), "NT", false),
        (gemm([200, 72, 131], DType::F16, DType::F32, "NN"), "NN", false),
        (gemm([256, 128, 512], DType::I8, DType::I32, "NT"), "NT", false),
        (gemm([256, 100, 512], DType::I8, DType::I32, "TN"), "TN", false),
        // Fewer rows than columns; results by columns; batches of products, of which the last two end within a tile.
        (gemm([64, 256, 256], half.0, half.1, "NT"), "NT", true),
        // Swapped, it has one tile of fewer steps than there are blocks.
        (gemm([32, 128, 128], half.0, half.1, "NT"), "NT", true),
        (by_columns(gemm([256, 128, 256], half.0, half.1, "NT")), "NT", true),
        (by_columns(gemm([256, 64, 256], half.0, half.1, "TN")), "TN", true),
        (batched(gemm([256, 128, 128], half.0, half.1, "NN")), "NN", false),
        (batched(gemm([64, 128, 128], half.0, half.1, "TN")), "TN", true),
        (batched(gemm([200, 72, 136], half.0, half.1, "NT")), "NT", false),
    ];
    for (c, layout, swapped) in one_in(2, all) {
        let (operand, shape) = (c.a.dtype, [Axis::M, Axis::N, Axis::K].map(|axis| c.extent(axis)));
        let space = make(&c, (&menu_with_wmma(), H200), None, None).unwrap();
        let terms = space.programs(space.root);
        let plans: std::collections::HashSet<Schedule> =
            terms.iter().map(|t| Schedule::from_term(t, &c).unwrap()).collect();
        let kinds: [fn(&Schedule) -> bool; 3] = [
            |s| matches!(s, Schedule::Mma(_)),
            |s| matches!(s, Schedule::Mma(plan) if plan.instruction.wmma().is_some()),
            |s| matches!(s, Schedule::Wgmma(_)),
        ];
        let [mma, wmma, wgmma] = kinds.map(|kind| plans.iter().filter(|p| kind(p)).count());
        println!(
            "{operand:?} {layout} {shape:?}: {} programs, {mma} by warps, {wmma} of them by wmma, {wgmma} by wgmma",
            terms.len()
        );
        assert_eq!(plans.len(), terms.len(), "two terms stand for one program");
        assert_eq!(mma + wgmma, plans.len());
        assert!(mma > wmma);
        // 8 columns of f16 are loaded along k only.
        assert_eq!(wmma > 0, operand == DType::F16 && layout == "NT");
        let is_swapped = |s: &Schedule| match s {
            Schedule::Mma(plan) => plan.swapped,
            Schedule::Wgmma(plan) => plan.swapped,
            _ => false,
        };
        assert_eq!(plans.iter().any(is_swapped), swapped);
        // What wgmma, or the TMA, does not take as it lies in memory is copied first.
        assert!(wgmma > 0);
        let memory = TensorMenu { mma: None, group: Some(GroupMma::Tcgen05), tile_m: vec![128, 256], ..menu() };
        let space = make(&c, (&memory, H200), None, None).unwrap();
        let terms = space.programs(space.root);
        let plans: std::collections::HashSet<Schedule> =
            terms.iter().map(|t| Schedule::from_term(t, &c).unwrap()).collect();
        assert_eq!(plans.len(), terms.len(), "two terms stand for one program");
        let on_memory = |s: &Schedule| matches!(s, Schedule::Wgmma(plan) if plan.op == GroupMma::Tcgen05);
        assert!(plans.iter().any(on_memory), "{operand:?} {layout} {shape:?}");
    }
}

#[test]
fn every_rule_is_needed() {
    let c = gemm([128, 256, 512], DType::F16, DType::F16, "NT");
    let whole = make(&c, (&menu_with_wmma(), H200), None, None).unwrap();
    let count = whole.programs(whole.root).len();
    for rule in one_in(2, rules::tensor::all(&c, menu_with_wmma()).iter().map(|r| r.name())) {
        let fired = whole.report.firings.iter().find(|f| f.0 == rule).map_or(0, |f| f.1);
        assert!(fired > 0, "{rule} never fires");
        let rest = make(&c, (&menu_with_wmma(), H200), None, Some(rule)).unwrap();
        assert!(rest.programs(rest.root).len() < count, "nothing is missed without {rule}");
    }
}

#[test]
fn tensor_cores_are_offered_where_they_are() {
    let offered = |operand, cores: &TensorCores| {
        let output = if operand == DType::I8 { DType::I32 } else { DType::F32 };
        let c = gemm([256, 256, 256], operand, output, "NT");
        let menu = TensorMenu::of(&c, cores);
        (menu.mma.is_some(), menu.group.is_some(), rules::tensor::all(&c, menu).len())
    };
    assert_eq!(offered(DType::BF16, &CORES), (true, true, 18));
    // tf32 rounds its operands: only who asks for it gets it.
    assert_eq!(offered(DType::F32, &CORES), (false, false, 0));
    assert_eq!(offered(DType::F32, &TensorCores { tf32: true, ..CORES }), (true, true, 18));
    let ampere = TensorCores { group: None, stmatrix: false, ..CORES };
    assert_eq!(offered(DType::F16, &ampere), (true, false, 11));
    assert_eq!(offered(DType::F16, &TensorCores { mma: None, ..ampere }), (false, false, 0));
    assert_eq!(offered(DType::F64, &CORES), (false, false, 0));
    // wmma of each architecture's types.
    let older = |number| TensorCores { mma: None, wmma: Some(number), ..ampere };
    let rules = |operand, number| offered(operand, &older(number)).2;
    assert_eq!([70, 75].map(|number| rules(DType::F16, number)), [11, 11]);
    assert_eq!([70, 72].map(|number| rules(DType::I8, number)), [0, 11]);
    assert_eq!([75, 80].map(|number| rules(DType::BF16, number)), [0, 11]);
    // mma.sync of each architecture's shapes; sm_75 has it beside wmma, for f16 alone.
    let instruction = |operand, number| {
        let c = gemm([256, 256, 256], operand, DType::F32, "NT");
        TensorMenu::of(&c, &TensorCores { mma: Some(number), ..older(number) }).mma
    };
    assert_eq!([70, 75, 80].map(|number| instruction(DType::F16, number)), [None, Some(Mma::F16k8), Some(Mma::F16)]);
    assert_eq!([75, 80].map(|number| instruction(DType::BF16, number)), [None, Some(Mma::Bf16)]);
    let fp8 = [80, 89, 90, 100, 120].map(|number| instruction(DType::F8E4M3, number).is_some());
    assert_eq!(fp8, [false, true, false, false, true]);
}

/// What is wrong with a program of a space without a condition.
fn wrong(term: &RecExpr<Term>, c: &Contraction, limits: &Limits) -> Option<String> {
    let schedule = match Schedule::from_term(term, c) {
        Err(error) => return Some(format!("refused: {error}")),
        Ok(schedule) => schedule,
    };
    let bytes = schedule.shared_bytes(c);
    if bytes > limits.shared_bytes {
        return Some(format!("hardware: {bytes} bytes of shared memory"));
    }
    let (tile_k, parts) = match &schedule {
        Schedule::Mma(plan) => {
            // Sums and all sets of fragments are held at once, whatever else is.
            let held = plan.warp[0] * plan.warp[1] / 32 + plan.warp[0] / 2 + plan.warp[1] / 2;
            let left = 65536 / (plan.threads() * i64::from(plan.min_blocks.unwrap_or(1)));
            if held > left.min(255) {
                return Some(format!("hardware: {held} registers of {left}"));
            }
            (plan.tile[2], plan.split_k)
        }
        Schedule::Wgmma(plan) => (plan.tile[2], plan.split_k),
        Schedule::Cores(_) | Schedule::Stream(_) => return Some("no schedule on tensor cores".into()),
    };
    // The kernel's parts are whole tiles; the term's are k / parts.
    let uneven = parts > 1 && c.extent(Axis::K) % (parts * tile_k) != 0;
    uneven.then(|| format!("meaning: parts of {tile_k} are not k / {parts}"))
}

#[test]
fn a_rule_without_its_side_condition_is_caught() {
    use Condition::*;
    type Case = (Condition, [i64; 3], DType, DType, &'static str, fn(&mut TensorMenu));
    let f = (DType::F16, DType::F16);
    let cases: Vec<Case> = vec![
        (MmaRows, [256, 128, 512], f.0, f.1, "NT", |m| (m.group, m.tile_k) = (None, vec![48])),
        (MmaWarps, [256, 128, 512], f.0, f.1, "NT", |m| (m.group, m.threads) = (None, vec![96])),
        (MmaRegisters, [256, 128, 512], f.0, f.1, "NT", |m| {
            (m.group, m.tile_m, m.tile_n, m.threads, m.warp) = (None, vec![128], vec![128], vec![64], [128, 128]);
        }),
        (MmaStore, [256, 128, 512], DType::F16, DType::F32, "NT", |m| m.group = None),
        (MmaStore, [256, 128, 512], f.0, f.1, "NT", |m| {
            (m.mma, m.group, m.wmma) = (None, None, vec![HALF]);
        }),
        (RingFits, [256, 128, 512], f.0, f.1, "NT", |m| {
            (m.mma, m.group, m.wmma, m.stages) = (None, None, vec![HALF], vec![3]);
        }),
        (WgmmaOperands, [256, 128, 512], DType::I8, DType::I32, "TN", |m| m.mma = None),
        // Rows of 2^23 + 1 elements, which are copied first, are more than 2^31 together.
        (WgmmaRows, [256, 128, (1 << 23) + 1], f.0, f.1, "NT", |m| m.mma = None),
        (WgmmaTile, [256, 128, 512], f.0, f.1, "NN", |m| (m.mma, m.tile_n) = (None, vec![40])),
        (WgmmaSums, [256, 256, 512], f.0, f.1, "NT", |m| {
            (m.mma, m.tile_m, m.tile_n, m.consumers) = (None, vec![256], vec![256], vec![1]);
        }),
        // Two tiles in work are 1024 columns of tensor memory.
        (WgmmaSums, [512, 256, 512], f.0, f.1, "NT", |m| {
            (m.mma, m.group) = (None, Some(GroupMma::Tcgen05));
            (m.tile_m, m.tile_n, m.consumers) = (vec![256], vec![256], vec![2]);
        }),
        // Three tiles along m: no pairs.
        (WgmmaCluster, [384, 128, 512], f.0, f.1, "NT", |m| (m.mma, m.tile_m) = (None, vec![128])),
        // Two tiles of eight steps: fewer than blocks.
        (WgmmaStream, [256, 128, 512], f.0, f.1, "NT", |m| {
            (m.mma, m.tile_m, m.tile_n, m.grids) = (None, vec![128], vec![64, 128], vec![40]);
        }),
        (WgmmaStore, [256, 128, 512], DType::F16, DType::F32, "NT", |m| m.mma = None),
        // Rows of 131 elements come one by one, by way of registers.
        (CopiedFits, [256, 192, 131], f.0, f.1, "NT", |m| {
            (m.mma, m.tile_m, m.tile_n, m.consumers) = (None, vec![256], vec![192], vec![2]);
        }),
        (RingFits, [256, 128, 131], f.0, f.1, "NT", |m| (m.mma, m.stages) = (None, vec![2])),
        (RingFits, [256, 256, 512], f.0, f.1, "NT", |m| (m.group, m.stages) = (None, vec![40])),
        (RingFits, [256, 256, 512], f.0, f.1, "NT", |m| (m.mma, m.stages) = (None, vec![16])),
        (RingParts, [256, 128, 4 * 132], f.0, f.1, "NT", |m| (m.group, m.tile_k) = (None, vec![32])),
    ];
    for (removed, shape, operand, output, layout, change) in cases {
        // What lies in memory is turned where it is stored across k; what is gathered is not.
        let c = if removed == WgmmaOperands { gathered_across(shape) } else { gemm(shape, operand, output, layout) };
        let mut menu = menu();
        change(&mut menu);
        let limits = H200;
        let sound = make(&c, (&menu, limits), None, None).unwrap();
        for term in sound.programs(sound.root) {
            assert_eq!(wrong(&term, &c, &limits), None, "{removed:?}");
        }
        let caught = match make(&c, (&menu, limits), Some(removed), None) {
            Err(SaturationError::Unsound { violation, .. }) => Some(format!("invariant: {violation}")),
            Err(other) => panic!("{other}"),
            Ok(space) => space.programs(space.root).iter().find_map(|term| wrong(term, &c, &limits)),
        };
        println!("{removed:?}: {caught:?}");
        assert!(caught.is_some(), "nothing is missed without {removed:?}");
    }
}

/// Eight rows of a product are the columns of one instruction of its transposed one; tiles of whole pairs of instructions are
/// dealt out in pairs.
#[test]
fn few_rows_are_single_instructions_columns() {
    let of = |operand, layout| {
        let c = gemm([8, 256, 512], operand, if operand == DType::I8 { DType::I32 } else { operand }, layout);
        let menu = TensorMenu { group: None, tile_m: vec![8, 16], tile_n: vec![64], ..menu() };
        let space = make(&c, (&menu, H200), None, None).unwrap();
        let plans = space.programs(space.root).into_iter().map(|t| Schedule::from_term(&t, &c).unwrap());
        let warps = plans.map(|schedule| match schedule {
            Schedule::Mma(plan) => (plan.tile[1], plan.warp[1]),
            other => panic!("{other:?}"),
        });
        warps.collect::<std::collections::BTreeSet<(i64, i64)>>()
    };
    let found = of(DType::F16, "NT");
    assert!(found.contains(&(8, 8)) && found.contains(&(16, 16)), "{found:?}");
    assert!(found.iter().all(|(n, warp)| n % 16 != 0 || warp % 16 == 0), "{found:?}");
    // Bytes stored across k come as pairs of columns: of the transposed product's B, which is A.
    assert!(!of(DType::I8, "TT").contains(&(8, 8)));
}

/// Rows are padded where the ring has room for both operands' rows so padded, and nowhere else.
#[test]
fn rows_are_padded_where_the_ring_has_room() {
    use std::collections::BTreeSet;
    let c = gemm([256, 256, 512], DType::F16, DType::F16, "NT");
    let menu = TensorMenu {
        group: None,
        tile_m: vec![128],
        tile_n: vec![128],
        tile_k: vec![64],
        threads: vec![128],
        slack: vec![0],
        layouts: vec![TileLayout::Xor(8), TileLayout::Padded],
        matrices: vec![4],
        ..menu()
    };
    // A tile has 2 x 128 rows of 128 bytes, or of 144 where they are padded.
    let (plain, padded) = (2 * 128 * 128, 2 * 128 * 144);
    let ways = |stages| [(stages, 0), (stages, 1), (stages, 2), (stages, 3)];
    let all: BTreeSet<(u32, usize)> = ways(2).into_iter().chain(ways(3)).collect();
    let up_to = |most: (u32, usize)| all.iter().copied().filter(|way| *way <= most).collect();
    for (shared_bytes, expected) in [
        (3 * padded, all.clone()),
        (3 * padded - 1, up_to((3, 0))),
        (3 * plain - 1, up_to((2, 3))),
        (2 * padded - 1, up_to((2, 0))),
        (2 * plain - 1, BTreeSet::new()),
    ] {
        let space = make(&c, (&menu, Limits { shared_bytes, ..H200 }), None, None).unwrap();
        let mut found = BTreeSet::new();
        for term in space.programs(space.root) {
            let schedule = Schedule::from_term(&term, &c).unwrap();
            let Schedule::Mma(plan) = &schedule else { panic!("{schedule:?}") };
            let [a, b] = plan.operands.map(|o| usize::from(o.layout == TileLayout::Padded));
            let bytes = schedule.shared_bytes(&c);
            let rows = 128 * (256 + 16 * (a + b) as i64);
            assert_eq!(bytes, i64::from(plan.stages) * rows);
            assert!(bytes <= shared_bytes);
            found.insert((plan.stages, a + 2 * b));
        }
        assert_eq!(found, expected, "{shared_bytes} bytes");
    }
}

/// Every rule stands in RULES.md.
#[test]
fn the_document_lists_every_rule() {
    let document = include_str!("../../RULES.md");
    let c = gemm([256, 256, 256], DType::F16, DType::F16, "NT");
    for rule in rules::tensor::all(&c, menu()) {
        assert!(document.contains(rule.name()), "RULES.md has no {}", rule.name());
    }
}
