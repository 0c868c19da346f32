//! Tensor-core schedules in the space: extraction is exact, the model's counts are the simulator's, random schedules and
//! the best ones are right, and `explore` hands them out.
use crate::compiles::compile;
use crate::hopper::assert_only_multiplies;
use crate::support::{gemm, h200, source, NO_LIMIT};
use crate::tensor::plans::lower_wgmma;
use crate::tensor_traces::kernels_come_from_traces;
use rand::SeedableRng;
use satune::compile::{hot_loop_mix, Job};
use satune::explore::{check, explore, tensor_cores, Report, Request};
use satune::lower::program::LowerOptions;
use satune::{operators, scheduled};
use satune_extract::{best, predict, Counts, Descriptor, Evenly, Query};
use satune_ir::term::tensor::*;
use satune_ir::term::*;
use satune_ir::{DType, Program};
use satune_rewrites::space::rules::tensor::{TensorCores, TensorMenu};
use satune_rewrites::space::{rules, saturate, Fuel, Limits, Menu};
use std::collections::HashSet;

pub fn gpu(name: &str) -> Descriptor {
    Descriptor::load(name).unwrap()
}

fn limits(gpu: &Descriptor) -> Limits {
    satune::explore::limits(gpu)
}

/// A menu of single threads' schedules: few, or none.
fn few(tiles: &[i64]) -> Menu {
    Menu {
        tile_m: tiles.to_vec(),
        tile_n: tiles.to_vec(),
        tile_k: vec![16],
        threads: vec![64],
        vthreads: vec![1],
        registers: 2,
        split_k: vec![2, 4, 8, 16],
        groups: vec![2, 4],
        async_stages: vec![],
    }
}

/// Few schedules of either kind.
pub fn small(c: &Contraction, gpu: &Descriptor, i: usize) -> Space {
    let offered = TensorMenu {
        tile_m: vec![64],
        tile_n: vec![[32, 64, 128][i % 3]],
        tile_k: vec![32],
        threads: vec![64, 128],
        stages: if i % 2 == 0 { vec![2, 3] } else { vec![4] },
        // Some decisions are offered in one space, some in another, so that each has few programs.
        slack: vec![0, 1],
        loops: if i == 1 { vec![false, true] } else { vec![false] },
        descending: vec![false],
        layouts: match i {
            0 => vec![TileLayout::Xor(8), TileLayout::Plain],
            1 => vec![TileLayout::Rotate(4), TileLayout::Padded],
            _ => vec![TileLayout::Rotate(4)],
        },
        copy_bytes: if i == 2 { vec![16, 4] } else { vec![16] },
        copy_orders: if i == 2 { vec![CopyOrder::Rows, CopyOrder::Own] } else { vec![CopyOrder::Rows] },
        copy_loops: if i == 1 { vec![false, true] } else { vec![false] },
        copy_steps: 1,
        prefetch: if i == 3 { vec![0, 128] } else { vec![0] },
        pairs: if i == 1 { vec![false, true] } else { vec![false] },
        matrices: if i == 0 { vec![4, 1] } else { vec![4] },
        sets: if i == 2 { vec![2] } else { vec![2, 1] },
        min_blocks: vec![2],
        consumers: vec![1, 2],
        grids: vec![2 + i as u32 % 2],
        clusters: vec![[2, 1]],
        ..TensorMenu::of(c, &tensor_cores(gpu))
    };
    let mut rules = rules::all();
    // Operands of single threads stay where they are: that leaves few of their schedules.
    rules.retain(|r| !r.name().starts_with("cache_read shared"));
    rules.extend(rules::tensor::all(c, offered));
    let menu = Menu { split_k: vec![2], groups: vec![2], ..few(&[16]) };
    saturate(c, limits(gpu), &menu, &rules, Fuel::default()).unwrap()
}

/// The usual schedules on tensor cores, and no others.
pub fn tensor_only(c: &Contraction, gpu: &Descriptor) -> Space {
    on_tensor_cores(c, gpu, TensorMenu::of(c, &tensor_cores(gpu)))
}

/// So many random schedules on tensor cores, and as many of those that use `wgmma` where there are any.
pub fn drawn(c: &Contraction, gpu: &Descriptor, times: usize, rng: &mut rand::rngs::StdRng) -> Vec<Schedule> {
    let all = tensor_only(c, gpu);
    let is_mma = |node: &Term| matches!(node, Term::Tensor { node: TensorNode::Mma { .. }, .. });
    let groups = all.restricted(&|_, node| !is_mma(node));
    let spaces = [&all, &groups].map(|space| (space, Counts::of(space)));
    let some = spaces.into_iter().filter(|(_, counts)| counts.total() > 0_u32.into());
    some.flat_map(|(space, counts)| {
        let mut one = || Schedule::from_term(&counts.sample(space, rng).unwrap(), c).unwrap();
        (0..times).map(|_| one()).collect::<Vec<_>>()
    })
    .collect()
}

/// A program by a schedule of its contraction, which does what the program does.
pub fn right(program: &Program, c: &Contraction, plan: &Schedule, what: &str) -> scheduled::Scheduled {
    let told = || format!("{what}\n{}", plan.describe().join("\n"));
    let made = scheduled::of_schedule(program, plan, c, &h200()).unwrap_or_else(|e| panic!("{e}\n{}", told()));
    scheduled::check(program, &made, 3).unwrap_or_else(|e| panic!("{e}\n{}", told()));
    made
}

/// The schedules of a menu on tensor cores, and no others.
pub fn on_tensor_cores(c: &Contraction, gpu: &Descriptor, menu: TensorMenu) -> Space {
    let mut rules = rules::all();
    rules.extend(rules::tensor::all(c, menu));
    saturate(c, limits(gpu), &few(&[]), &rules, Fuel::default()).unwrap()
}

pub fn is_swapped(schedule: &Schedule) -> bool {
    match schedule {
        Schedule::Mma(plan) => plan.swapped,
        Schedule::Wgmma(plan) => plan.swapped,
        Schedule::Cores(_) | Schedule::Stream(_) => false,
    }
}

#[test(slow)]
fn extraction_equals_brute_force_with_both_kinds() {
    let mut kinds = [0; 3];
    let mut swapped = 0;
    let bf16 = [
        ("h200", None, [128, 128], "TN", false),
        ("a100", None, [128, 100], "NT", false),
        ("h200", None, [128, 128], "NT", false),
        ("v100", None, [128, 100], "NT", false),
        ("h200", Some(3), [64, 128], "NN", false),
        ("h200", None, [128, 64], "NT", true),
    ];
    let cases = bf16.into_iter().map(|case| (case, DType::BF16));
    let cases = cases.chain([(("t4", None, [128, 128], "TN", false), DType::F16)]);
    for (i, ((name, batch, [m, n], layout, columns), operand)) in cases.enumerate() {
        let gpu = gpu(name);
        let c = gemm(batch, m, n, 256, operand, DType::F32, layout);
        let c = if columns { by_columns(c) } else { c };
        let space = small(&c, &gpu, i);
        let terms = space.programs(space.root);
        assert_eq!(Counts::of(&space).total(), terms.len().into(), "the count is not the number of programs");
        let plans: HashSet<Schedule> = terms.iter().map(|t| Schedule::from_term(t, &c).unwrap()).collect();
        assert_eq!(plans.len(), terms.len(), "two terms stand for one program");
        let mut times: Vec<f64> = plans.iter().filter_map(|p| predict(p, &c, &gpu).ok()).map(|c| c.ms).collect();
        times.sort_by(f64::total_cmp);
        let found = best(&space, &gpu, Query { k: 7, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY });
        assert!(found.proved);
        assert_eq!(found.candidates.len(), times.len().min(7));
        for (got, want) in found.candidates.iter().zip(&times) {
            assert!((got.cost.ms - want).abs() <= 1e-12 * want, "{name} {i}: {} is not {want}", got.cost.ms);
        }
        let distinct: HashSet<&Schedule> = found.candidates.iter().map(|c| &c.plan).collect();
        assert_eq!(distinct.len(), found.candidates.len());
        swapped += plans.iter().filter(|p| is_swapped(p)).count();
        for plan in &plans {
            kinds[match plan {
                Schedule::Cores(_) => 0,
                Schedule::Mma(_) => 1,
                Schedule::Wgmma(_) => 2,
                Schedule::Stream(_) => panic!("a contraction does not stream"),
            }] += 1;
        }
        let on_tensor_cores = plans.iter().any(|p| p.cores().is_none());
        assert_eq!(on_tensor_cores, name != "v100", "{name}");
    }
    println!("{kinds:?} programs of single threads, mma.sync, wgmma; {swapped} swapped");
    assert!(kinds.iter().all(|n| *n >= 10) && swapped >= 10);
}

/// What L2 is asked for and the order of steps cost nothing, several resident blocks may be asked for, and shared memory
/// suffices for every ring: the k-th best time is that of many programs.
#[test(slow)]
fn extraction_equals_brute_force_where_much_costs_the_same() {
    for (name, k, ragged) in [("h200", 2048, 0), ("a100", 4096, 0), ("a100", 512, 3)] {
        let gpu = gpu(name);
        let c = gemm(None, 16, 64 - ragged, k, DType::BF16, DType::F32, "NN");
        let offered = TensorMenu {
            tile_m: vec![16],
            tile_n: vec![32, 64],
            tile_k: vec![32],
            threads: vec![32, 64],
            stages: vec![2, 4],
            slack: vec![0, 2],
            loops: vec![false],
            layouts: vec![TileLayout::Xor(8)],
            copy_bytes: vec![16],
            copy_orders: vec![CopyOrder::Rows],
            copy_loops: vec![false],
            copy_steps: 1,
            prefetch: vec![0, 128],
            matrices: vec![4],
            min_blocks: vec![2, 4],
            consumers: vec![],
            ..TensorMenu::of(&c, &tensor_cores(&gpu))
        };
        let rules: Vec<_> = rules::all().into_iter().chain(rules::tensor::all(&c, offered)).collect();
        let space = saturate(&c, limits(&gpu), &few(&[]), &rules, Fuel::default()).unwrap();
        let terms = space.programs(space.root);
        let plans: HashSet<Schedule> = terms.iter().map(|t| Schedule::from_term(t, &c).unwrap()).collect();
        assert_eq!(plans.len(), terms.len(), "two terms stand for one program");
        let mut times: Vec<f64> = plans.iter().filter_map(|p| predict(p, &c, &gpu).ok()).map(|c| c.ms).collect();
        times.sort_by(f64::total_cmp);
        let alike = times.iter().filter(|t| **t == times[0]).count();
        println!("{name}: {} programs, {alike} are the best", times.len());
        assert!(alike > 8);
        for wanted in [8, alike + 5] {
            let found =
                best(&space, &gpu, Query { k: wanted, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY });
            assert!(found.proved);
            let got: Vec<f64> = found.candidates.iter().map(|c| c.cost.ms).collect();
            assert_eq!(got.len(), wanted);
            assert!(got.iter().zip(&times).all(|(g, w)| (g - w).abs() <= 1e-12 * w), "{name} {wanted}: {got:?}");
            let distinct: HashSet<&Schedule> = found.candidates.iter().map(|c| &c.plan).collect();
            assert_eq!(distinct.len(), wanted);
        }
    }
}

/// Each way to say that a tile has been read has its twin, which asks for more issue slots and for nothing else.
#[test]
fn an_arrival_per_warp_is_another_schedule_and_never_faster() {
    let h200 = gpu("h200");
    let c = gemm(None, 512, 512, 512, DType::BF16, DType::F32, "TN");
    let both = tensor_only(&c, &h200);
    let per_warp = |node: &Term, which: bool| match node {
        Term::Matrix { matrix: Matrix::Wgmma { arrive_per_warp, .. }, .. } => *arrive_per_warp == which,
        _ => true,
    };
    let is_mma = |node: &Term| matches!(node, Term::Tensor { node: TensorNode::Mma { .. }, .. });
    let halves = [false, true].map(|which| both.restricted(&|_, node| !is_mma(node) && per_warp(node, which)));
    let totals = halves.each_ref().map(|half| Counts::of(half).total());
    assert_eq!(totals[0], totals[1]);
    let wgmma = both.restricted(&|_, node| !is_mma(node));
    assert_eq!(Counts::of(&wgmma).total(), totals[0].clone() + totals[1].clone());
    let counts = Counts::of(&halves[1]);
    let mut rng = rand::rngs::StdRng::seed_from_u64(41);
    for _ in 0..40 {
        let plan = Schedule::from_term(&counts.sample(&halves[1], &mut rng).unwrap(), &c).unwrap();
        let Schedule::Wgmma(plan) = plan else { panic!("another kind") };
        let plain = WgmmaPlan { arrive_per_warp: false, ..plan.clone() };
        let costs = [&plan, &plain].map(|p| predict(&Schedule::Wgmma(p.clone()), &c, &h200));
        let [Ok(more), Ok(less)] = costs else { continue };
        assert!(more.ms >= less.ms && more.parts["issue"] > less.parts["issue"], "{more:?} {less:?}");
        assert_eq!((more.work, more.registers, more.l2_bytes), (less.work, less.registers, less.l2_bytes));
    }
}

/// A kind of kernel that has few schedules is drawn where choices are drawn evenly.
#[test]
fn each_kind_of_kernel_is_drawn() {
    let c = gemm(None, 256, 256, 256, DType::BF16, DType::F32, "NT");
    let space = tensor_only(&c, &gpu("h200"));
    let counts = Counts::of(&space);
    let mut rng = rand::rngs::StdRng::seed_from_u64(5);
    let mut drawn = || Schedule::from_term(&counts.sample_evenly(&space, Evenly::Choices, &mut rng).unwrap(), &c);
    let wgmma = (0..200).filter(|_| matches!(drawn(), Ok(Schedule::Wgmma(_)))).count();
    assert!((20..180).contains(&wgmma), "{wgmma} of 200");
}

/// Elements that `cp.async` cannot copy are waited for, sixteen at a time.
#[test]
fn narrow_elements_are_waited_for() {
    let h200 = gpu("h200");
    let mut plan = TensorPlan::plain([128, 128, 64], [64, 32], Mma::Bf16, 3);
    plan.operands.iter_mut().for_each(|operand| operand.rolled = true);
    let plan = Schedule::Mma(plan);
    // One block on a multiprocessor.
    let [even, odd] = [4096, 4095].map(|k| {
        let c = gemm(None, 1024, 1024, k, DType::BF16, DType::F32, "NT");
        predict(&plan, &c, &h200).unwrap().parts["latency"]
    });
    // Each of 256 threads copies 32 elements of either operand, in 64 tiles along k.
    let waits = 64.0 * 4.0 * h200.latency_dram / (h200.clock_mhz * 1e3);
    assert!(odd > waits && even < waits / 4.0, "{odd} and {even} ms, {waits} ms");
}

/// A random schedule whose tile is small enough to be simulated quickly.
fn random(space: &Space, counts: &Counts, rng: &mut rand::rngs::StdRng) -> Schedule {
    loop {
        let plan = Schedule::from_term(&counts.sample(space, rng).unwrap(), &space.contraction).unwrap();
        let tile = match &plan {
            Schedule::Mma(p) => p.tile,
            Schedule::Wgmma(p) => p.tile,
            Schedule::Cores(_) | Schedule::Stream(_) => panic!("no schedule on tensor cores"),
        };
        if tile.iter().product::<i64>() <= 64 * 128 * 64 {
            return plan;
        }
    }
}

#[test]
fn random_schedules_on_tensor_cores_are_right() {
    let h200 = gpu("h200");
    let mut rng = rand::rngs::StdRng::seed_from_u64(23);
    let mut wgmma = 0;
    for (shape, operand, sum, layouts) in [
        ([192, 136, 512], DType::BF16, DType::F32, ["TN", "NT"]),
        ([96, 131, 259], DType::F16, DType::F32, ["NN", "TT"]),
        ([160, 136, 256], DType::F16, DType::F16, ["NT", "TN"]),
        ([128, 128, 512], DType::I8, DType::I32, ["NT", "TN"]),
    ] {
        for layout in layouts {
            let c = gemm(None, shape[0], shape[1], shape[2], operand, sum, layout);
            let both = tensor_only(&c, &h200);
            // Few of all schedules use wgmma, so they are drawn by themselves too.
            let is_mma = |node: &Term| matches!(node, Term::Tensor { node: TensorNode::Mma { .. }, .. });
            let rest = both.restricted(&|_, node| !is_mma(node));
            for (space, times) in [(&both, 3), (&rest, if rest.is_empty() { 0 } else { 3 })] {
                let counts = Counts::of(space);
                for _ in 0..times {
                    let plan = random(space, &counts, &mut rng);
                    wgmma += usize::from(matches!(plan, Schedule::Wgmma(_)));
                    check(&plan, &c, &LowerOptions::default(), &|| true)
                        .unwrap_or_else(|e| panic!("{e}\n{layout} {shape:?}\n{}", plan.describe().join("\n")));
                }
            }
        }
    }
    println!("{wgmma} use wgmma");
    assert!(wgmma >= 15);
}

/// Transposed products, results by columns, and batches.
#[test]
fn random_schedules_of_other_forms_are_right() {
    let h200 = gpu("h200");
    let mut rng = rand::rngs::StdRng::seed_from_u64(31);
    let (mut swapped, mut wgmma) = (0, 0);
    for (batch, shape, columns, layout) in [
        (None, [20, 200, 256], false, "NT"),
        (None, [8, 136, 259], false, "NN"),
        (None, [136, 72, 256], true, "NT"),
        (None, [72, 256, 264], true, "TN"),
        (Some(5), [128, 64, 128], false, "TN"),
        (Some(3), [16, 128, 256], false, "NT"),
    ] {
        let c = gemm(batch, shape[0], shape[1], shape[2], DType::BF16, DType::F32, layout);
        let c = if columns { by_columns(c) } else { c };
        let both = tensor_only(&c, &h200);
        let is_mma = |node: &Term| matches!(node, Term::Tensor { node: TensorNode::Mma { .. }, .. });
        let is_swap = |node: &Term| matches!(node, Term::Tensor { node: TensorNode::Swap, .. });
        let without = [both.restricted(&|_, node| !is_mma(node)), both.restricted(&|_, node| !is_swap(node))];
        for space in [&both, &without[0], &without[1]].into_iter().filter(|s| !s.is_empty()) {
            let counts = Counts::of(space);
            if counts.total() == 0_u32.into() {
                continue;
            }
            for _ in 0..2 {
                let plan = random(space, &counts, &mut rng);
                swapped += usize::from(is_swapped(&plan));
                wgmma += usize::from(matches!(plan, Schedule::Wgmma(_)));
                check(&plan, &c, &LowerOptions::default(), &|| true)
                    .unwrap_or_else(|e| panic!("{e}\n{layout} {shape:?}\n{}", plan.describe().join("\n")));
            }
        }
    }
    println!("{swapped} are swapped, {wgmma} use wgmma");
    assert!(swapped >= 8 && wgmma >= 8);
}

/// The same product with its result stored by columns.
pub fn by_columns(c: Contraction) -> Contraction {
    let mut dims = c.c.dims.clone();
    let rows = dims.len() - 2;
    dims.swap(rows, rows + 1);
    Contraction { c: OperandInfo { dims, ..c.c.clone() }, ..c }
}

pub fn explored(operator: &str, gpu_name: &str, top: usize, diverse: bool) -> Report {
    explored_problem(&operators::parse(operator).unwrap(), gpu_name, top, diverse)
}

pub fn explored_problem(problem: &operators::Problem, gpu_name: &str, top: usize, diverse: bool) -> Report {
    let request = Request {
        gpu: gpu(gpu_name),
        top,
        twins: !diverse,
        limit: NO_LIMIT,
        compile: false,
        fuel: satune_rewrites::space::Fuel::default(),
    };
    let report = explore(problem, &request, &satune::progress::Quiet).unwrap();
    assert!(report.bugs.is_empty(), "{:#?}", report.bugs);
    assert!(report.proved_optimal);
    assert_eq!(report.candidates.len(), top);
    report
}

/// Nobody's f32 operands are rounded without being asked.
#[test(slow)]
fn tf32_is_an_operand_type_that_is_asked_for() {
    for (name, layout) in [("h200", "NT"), ("a100", "TN")] {
        let gpu = gpu(name);
        let best_of = |operand: &str| {
            let problem = operators::parse(&format!("gemm:256,256,256,{operand},{layout}")).unwrap();
            let space = satune::explore::space(&problem, &gpu).unwrap();
            let found = best(&space, &gpu, Query { k: 1, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY });
            assert!(found.proved);
            found.candidates[0].clone()
        };
        let (on_cores, rounded) = (best_of("f32"), best_of("tf32"));
        assert!(on_cores.plan.cores().is_some(), "{name}");
        assert!(rounded.plan.cores().is_none(), "{name}");
        assert!(rounded.cost.ms < on_cores.cost.ms, "{name}");
    }
}

#[test]
fn explore_gives_wgmma_to_an_h200_and_mma_to_an_a100() {
    let report = explored("gemm:512,512,512,bf16,TN", "h200", 4, true);
    let uses = |kind: fn(&Schedule) -> bool| report.candidates.iter().filter(|c| kind(&c.plan)).count();
    let on_tensor_cores = uses(|p| p.cores().is_none());
    assert_eq!(on_tensor_cores, 4);
    for c in report.candidates.iter().filter(|c| matches!(c.plan, Schedule::Wgmma(_))) {
        let maps = &c.kernels[0].tensor_maps;
        assert_eq!(maps.iter().map(|m| m.buffer.as_str()).collect::<Vec<_>>(), ["A", "B"]);
    }
    let tiles: HashSet<[i64; 3]> = report.candidates.iter().map(|c| shape(&c.plan).0).collect();
    assert!(tiles.len() > 1, "what is measured together differs in tile and k tile");
    let report = explored("gemm:256,256,256,f16,TN", "a100", 2, false);
    for c in &report.candidates {
        assert!(matches!(c.plan, Schedule::Mma(_)));
        assert!(c.simulated.matrix > 0 && c.simulated.shared_wavefronts == c.simulated.shared_wavefronts_ideal);
        let stored = serde_json::to_value(&c.plan).unwrap();
        assert_eq!(serde_json::from_value::<Schedule>(stored).unwrap(), c.plan, "a stored plan is read again");
        assert!(!c.derivation.is_empty());
    }
}

/// Tile of C and parts of k.
fn shape(schedule: &Schedule) -> ([i64; 3], i64) {
    match schedule {
        Schedule::Mma(TensorPlan { tile: [m, n, k], split_k, .. })
        | Schedule::Wgmma(WgmmaPlan { tile: [m, n, k], split_k, .. }) => match is_swapped(schedule) {
            false => ([*m, *n, *k], *split_k),
            true => ([*n, *m, *k], *split_k),
        },
        Schedule::Cores(p) => ([p.tile.m, p.tile.n, p.k_tile], p.split_k),
        Schedule::Stream(_) => panic!("a contraction does not stream"),
    }
}

#[test]
fn skewed_shapes_get_their_tiles() {
    let best_where =
        |[m, n, k]: [i64; 3], (operand, sum), gpu_name: &str, cores: &dyn Fn(TensorCores) -> TensorCores| {
            let c = gemm(None, m, n, k, operand, sum, "NT");
            let gpu = gpu(gpu_name);
            let space = on_tensor_cores(&c, &gpu, TensorMenu::of(&c, &cores(tensor_cores(&gpu))));
            let query = Query { k: 1, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY };
            let found = best(&space, &gpu, query);
            assert!(found.proved);
            let plan = found.candidates[0].plan.clone();
            println!("{m} x {n} x {k} {operand:?} on {gpu_name}: {:?}", plan.describe());
            (plan, found.candidates[0].cost.ms)
        };
    let best_of = |shape, operand, sum, gpu_name: &str| best_where(shape, (operand, sum), gpu_name, &|cores| cores).0;
    let (bf16, f32) = (DType::BF16, DType::F32);
    let long = best_of([256, 256, 16384], bf16, f32, "h200");
    let shares = matches!(&long, Schedule::Wgmma(p) if p.stream_k);
    assert!(shape(&long).1 > 1 || shares, "a long k is split");
    // 257 steps along k have no equal parts.
    let odd = best_of([384, 384, 64 * 257], bf16, f32, "h200");
    assert!(matches!(&odd, Schedule::Wgmma(p) if p.stream_k), "nine tiles are shared by all blocks");
    let few = best_of([16, 8192, 8192], bf16, f32, "h200");
    assert_eq!(shape(&few).0[0], 16, "few rows get a flat tile");
    // On an H100 both take as long within 2%.
    let ways = [|cores| TensorCores { group: None, ..cores }, |cores| TensorCores { mma: None, ..cores }]
        .map(|cores: fn(TensorCores) -> TensorCores| best_where([16, 8192, 8192], (bf16, f32), "h200", &cores));
    assert!(is_swapped(&ways[1].0), "rows of instructions run over its columns");
    assert!((ways[0].1 / ways[1].1 - 1.0).abs() < 0.05, "{ways:?}");
    let Schedule::Wgmma(plan) = best_of([4096, 4096, 4096], bf16, f32, "h200") else { panic!("no wgmma") };
    assert!(plan.cluster_size() > 1, "what L2 must give is halved by pairs");
    let source =
        satune::cuda::print(&lower_wgmma(&Gemm::plain("best", [4096; 3], bf16, f32, "NT"), &plan).unwrap().kernels[0]);
    let job = Job { name: "best".into(), source, arch: "sm_90a".into() };
    for kernel in compile(&[job]) {
        assert_eq!(kernel.spill_bytes, 0, "{}", kernel.log);
        hot_loop_mix(&kernel.cubin).iter().for_each(assert_only_multiplies);
    }
    assert!(matches!(best_of([4096, 4096, 4096], DType::I8, DType::I32, "h200"), Schedule::Wgmma(_)));
    assert!(matches!(best_of([4096, 4096, 4096], bf16, f32, "a100"), Schedule::Mma(_)));
    // Rows that are no multiples of 16 bytes are not the TMA's: of a large product they are worth a copy, of a small one not.
    assert!(matches!(best_of([4097, 4095, 4093], bf16, f32, "h200"), Schedule::Wgmma(_)));
    assert!(matches!(best_of([200, 205, 203], bf16, f32, "h200"), Schedule::Mma(_)));
}

/// What elementwise blocks mean, from the interpreter, is what the generator fuses.
#[test]
fn epilogues_that_operators_spell_are_fused() {
    for options in ["out=bf16", "bias,relu", "out=bf16,alpha=0.5,bias,gelu,residual", "out=bf16,silu", "residual"] {
        let problem = operators::parse(&format!("gemm:48,72,64,bf16,NT,{options}")).unwrap();
        let plan = TensorPlan::plain([32, 32, 32], [16, 32], Mma::Bf16, 2);
        let (schedule, c) = (Schedule::Mma(plan), &problem.contraction);
        let made = scheduled::of_schedule(&problem.program, &schedule, c, &LowerOptions::default()).unwrap();
        scheduled::check(&problem.program, &made, 7).unwrap_or_else(|e| panic!("{options}: {e}"));
    }
    // Sums in f16, and what is made of them.
    let wmma = Wmma { shape: WmmaShape::M16N16, operand: DType::F16, f16_sums: true };
    let staged = Store::Shared { stmatrix: false };
    let plan = |op, store| TensorPlan { store, ..TensorPlan::plain([32, 32, 32], [16, 32], op, 2) };
    let plans = [
        Schedule::Mma(plan(Mma::F16Sums, Store::Direct)),
        Schedule::Mma(plan(Mma::Wmma(wmma), staged)),
        Schedule::Wgmma(WgmmaPlan::plain([64, 64, 64], 1, 2)),
        Schedule::Mma(TensorPlan { split_k: 2, ..plan(Mma::F16Sums, Store::Direct) }),
    ];
    for (schedule, options) in plans.iter().zip(["bias,gelu", "alpha=0.5,residual", "out=f32,silu", "bias,relu"]) {
        let problem = operators::parse(&format!("gemm:48,72,64,f16,NT,sum=f16,{options}")).unwrap();
        let made = scheduled::of_schedule(&problem.program, schedule, &problem.contraction, &LowerOptions::default());
        scheduled::check(&problem.program, &made.unwrap(), 7).unwrap_or_else(|e| panic!("{options}: {e}"));
    }
    // Where k is split the kernel that adds the parts does it, of tiles that lie over the edge, too.
    let halves = TensorPlan { split_k: 2, ..TensorPlan::plain([32, 32, 32], [16, 32], Mma::Bf16, 2) };
    let wgmma = WgmmaPlan::plain([64, 64, 64], 1, 2);
    let shared = WgmmaPlan { blocks: Some(3), stream_k: true, ..wgmma.clone() };
    let plans = [Schedule::Mma(halves), Schedule::Wgmma(WgmmaPlan { split_k: 2, ..wgmma }), Schedule::Wgmma(shared)];
    for (schedule, options) in plans.iter().zip(["out=bf16,bias,silu", "out=bf16,alpha=0.5,bias,relu,residual", "bias"])
    {
        let problem = operators::parse(&format!("gemm:80,72,256,bf16,NT,{options}")).unwrap();
        let made =
            scheduled::of_schedule(&problem.program, schedule, &problem.contraction, &LowerOptions::default()).unwrap();
        assert_eq!(made.module.kernels.len(), 2);
        scheduled::check(&problem.program, &made, 11).unwrap_or_else(|e| panic!("{options}: {e}"));
    }
    // A choice is one, too.
    let relu = operators::parse("gemm:64,64,64,bf16,NT,relu").unwrap();
    let value = "T.max(C[vi, vj], T.float32(0))";
    assert!(relu.script.contains(value), "{}", relu.script);
    let choice = "T.if_then_else(C[vi, vj] > T.float32(1), C[vi, vj], T.float32(0))";
    let program = satune_ir::tvmscript::parse(&relu.script.replace(value, choice)).unwrap();
    let c = satune_rewrites::space::contraction(&program).unwrap();
    assert!(Gemm::of(&c).unwrap().epilogue.to_string().contains('?'));
    let plan = Schedule::Mma(TensorPlan::plain([32, 32, 32], [16, 32], Mma::Bf16, 2));
    let made = scheduled::of_schedule(&program, &plan, &c, &LowerOptions::default()).unwrap();
    scheduled::check(&program, &made, 7).unwrap();
}

/// Masks and slopes of the indices, whichever way operands are, and whatever brings C to memory.
#[test]
fn epilogues_compute_with_their_indices() {
    let value = "T.max(C[vi, vj], T.float32(0))";
    let masked = "T.if_then_else(vj <= vi + 3, C[vi, vj] * T.float32(0.5), T.cast(vi - 2 * vj, \"float32\"))";
    let wmma = Mma::Wmma(Wmma::of(WmmaShape::M16N16, DType::F16).unwrap());
    let wmma =
        TensorPlan { store: Store::Shared { stmatrix: false }, ..TensorPlan::plain([32, 64, 32], [16, 32], wmma, 2) };
    let mma = TensorPlan::plain([32, 64, 32], [16, 32], Mma::F16, 2);
    let wgmma = WgmmaPlan { swapped: false, ..WgmmaPlan::plain([64, 64, 64], 1, 2) };
    let staged = Schedule::Mma(TensorPlan { store: Store::Shared { stmatrix: false }, ..mma.clone() });
    let plans = [
        Schedule::Mma(mma.clone()),
        Schedule::Mma(TensorPlan { swapped: true, ..mma.clone() }),
        Schedule::Mma(wmma),
        Schedule::Mma(TensorPlan { split_k: 2, ..mma }),
        Schedule::Wgmma(wgmma.clone()),
        Schedule::Wgmma(WgmmaPlan { swapped: true, ..wgmma.clone() }),
        Schedule::Wgmma(WgmmaPlan { blocks: Some(3), stream_k: true, ..wgmma }),
    ];
    for (operator, more) in
        [("gemm:80,72,256,f16,NT,relu", None), ("gemm:80,72,256,f16,NT,relu,out=f16", Some(&staged))]
    {
        let relu = operators::parse(operator).unwrap();
        assert!(relu.script.contains(value), "{}", relu.script);
        let program = satune_ir::tvmscript::parse(&relu.script.replace(value, masked)).unwrap();
        let c = satune_rewrites::space::contraction(&program).unwrap();
        assert!(Gemm::of(&c).unwrap().epilogue.to_string().contains("index 1"));
        for plan in plans.iter().chain(more) {
            let told = plan.describe().join("; ");
            let made = scheduled::of_schedule(&program, plan, &c, &LowerOptions::default());
            let made = made.unwrap_or_else(|e| panic!("{operator} {told}: {e}"));
            scheduled::check(&program, &made, 7).unwrap_or_else(|e| panic!("{operator} {told}: {e}"));
        }
    }
    // Heads between rows and columns: indices are digits of rows, and of the number of the product.
    let script = crate::support::script(
        "Q: 2, 48, 3, 16 float16; K: 2, 40, 3, 16 float16; C: 2, 3, 48, 40 float32",
        "S = T.sblock_alloc_buffer((2, 3, 48, 40), \"float32\")
for b, h, i, j, k in T.grid(2, 3, 48, 40, 16):
    with T.sblock(\"scores\"):
        vb, vh, vi, vj, vk = T.axis.remap(\"SSSSR\", [b, h, i, j, k])
        with T.init():
            S[vb, vh, vi, vj] = T.float32(0)
        S[vb, vh, vi, vj] = S[vb, vh, vi, vj] + T.cast(Q[vb, vi, vh, vk], \"float32\") * T.cast(K[vb, vj, vh, vk], \"float32\")
for b, h, i, j in T.grid(2, 3, 48, 40):
    with T.sblock(\"masked\"):
        vb, vh, vi, vj = T.axis.remap(\"SSSS\", [b, h, i, j])
        C[vb, vh, vi, vj] = T.Select(vj <= vi, S[vb, vh, vi, vj] + T.cast(vh * (vj - vi), \"float32\"), T.float32(-100))
",
    );
    let program = satune_ir::tvmscript::parse(&script).unwrap();
    let c = satune_rewrites::space::contraction(&program).unwrap();
    let mut rng = rand::rngs::StdRng::seed_from_u64(satune_testing::seed());
    for name in ["t4", "a100", "h200"] {
        let space = tensor_only(&c, &gpu(name));
        let counts = Counts::of(&space);
        for _ in 0..3 {
            let schedule = random(&space, &counts, &mut rng);
            let told = schedule.describe().join("; ");
            let made = scheduled::of_schedule(&program, &schedule, &c, &scheduled::options(&gpu(name)));
            let made = made.unwrap_or_else(|e| panic!("{name} {told}: {e}"));
            scheduled::check(&program, &made, 7).unwrap_or_else(|e| panic!("{name} {told}: {e}"));
        }
    }
}

/// A long k is split under an epilogue, too, by tensor cores alone.
#[test]
fn k_is_split_under_an_epilogue() {
    for (name, operator) in [
        ("a100", "gemm:64,64,8192,bf16,TN,out=bf16,bias,gelu"),
        ("h200", "gemm:256,256,16384,bf16,TN,out=bf16,residual"),
    ] {
        let gpu = gpu(name);
        let c = operators::parse(operator).unwrap().contraction;
        let space = tensor_only(&c, &gpu);
        let found = best(&space, &gpu, Query { k: 1, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY });
        assert!(found.proved);
        let plan = &found.candidates[0].plan;
        let partial = match plan {
            Schedule::Mma(p) => p.split_k > 1,
            Schedule::Wgmma(p) => p.partial(),
            _ => false,
        };
        assert!(partial, "{operator}: {:?}", plan.describe());
        println!("{operator} on {name}: {:?}", plan.describe());
        check(plan, &c, &LowerOptions::default(), &|| true).unwrap();
    }
    // Without tensor cores there is no second kernel that knows the epilogue.
    let c = operators::parse("gemm:64,64,8192,f32,bias").unwrap().contraction;
    let menu = Menu { tile_m: vec![16], tile_n: vec![16], split_k: vec![2], ..few(&[16]) };
    let space = saturate(&c, limits(&gpu("v100")), &menu, &rules::tiling(), Fuel::default()).unwrap();
    assert!(space.choices(space.root).all(|node| !matches!(node, Term::Split(_))));
}

#[test]
fn explore_gives_tensor_cores_to_products_with_epilogues() {
    let report = explored("gemm:256,256,256,bf16,TN,out=bf16,bias,gelu", "a100", 2, true);
    assert!(report.candidates.iter().all(|c| matches!(c.plan, Schedule::Mma(_))));
}

/// Batches, few rows, and results by columns get tensor cores too.
#[test(slow)]
fn explore_gives_tensor_cores_to_other_forms() {
    for (operator, name) in [
        ("bmm:4,256,256,128,bf16,TN", "h200"),
        ("bmm:4,128,128,64,f16,NN", "a100"),
        ("gemm:16,1024,512,bf16,NT,out=bf16,bias", "h200"),
    ] {
        let problem = operators::parse(operator).unwrap();
        let report = explored_problem(&problem, name, 1, false);
        assert!(report.candidates[0].plan.cores().is_none(), "{operator} on {name}");
        kernels_come_from_traces(&problem, &report);
    }
    let columns = by_columns(gemm(None, 256, 128, 256, DType::BF16, DType::F32, "NT"));
    let script = operators::script(&columns);
    let program = satune_ir::tvmscript::parse(&script).unwrap();
    let contraction = satune_rewrites::space::contraction(&program).unwrap();
    assert_eq!(contraction.c.dims.len(), 2);
    let (name, asked) = ("columns".into(), Default::default());
    let problem = operators::Problem { name, script, program, contraction, tf32: false, asked };
    let report = explored_problem(&problem, "h200", 1, false);
    assert!(report.candidates[0].plan.cores().is_none());
    kernels_come_from_traces(&problem, &report);
}

/// Kernels on `wgmma` and `tcgen05` are what their plans say: roles, the grid, clusters, shared memory, and nothing of it left out.
#[test(slow)]
fn kernels_have_what_their_plans_say() {
    use satune::kernel::Stmt;
    let mut rng = rand::rngs::StdRng::seed_from_u64(satune_testing::seed());
    let is_mma = |node: &Term| matches!(node, Term::Tensor { node: TensorNode::Mma { .. }, .. });
    let (f32, bf16) = (DType::F32, DType::BF16);
    for name in ["h200", "b200"] {
        let gpu = gpu(name);
        let mut seen = 0;
        for (batch, shape, operand, sum, layouts) in [
            (None, [4096, 4096, 4096], bf16, f32, ["TN", "NT"]),
            (None, [4096, 4096, 4096], DType::F16, DType::F16, ["NN", "NT"]),
            (None, [1000, 520, 333], DType::F16, f32, ["NN", "TT"]),
            (None, [1023, 1025, 1027], bf16, f32, ["NN", "NT"]),
            (None, [4096, 4096, 4096], DType::I8, DType::I32, ["NT", "NN"]),
            (None, [2048, 24, 4096], DType::F8E4M3, f32, ["NT", "TN"]),
            (None, [16, 4096, 4096], bf16, f32, ["NT", "NN"]),
            (Some(6), [512, 384, 64], bf16, f32, ["NT", "NN"]),
        ] {
            for layout in layouts {
                let c = gemm(batch, shape[0], shape[1], shape[2], operand, sum, layout);
                let space = tensor_only(&c, &gpu).restricted(&|_, node| !is_mma(node));
                if space.is_empty() {
                    continue;
                }
                let (counts, source, g) = (Counts::of(&space), source(&c), Gemm::of(&c).unwrap());
                for _ in 0..3 {
                    let schedule = random(&space, &counts, &mut rng);
                    let Schedule::Wgmma(plan) = &schedule else { continue };
                    let told = format!("{name} {batch:?} {shape:?} {operand:?} {layout} {plan:?}");
                    let options = satune::scheduled::options(&gpu);
                    let made = satune::scheduled::of_schedule(&source, &schedule, &c, &options);
                    let module = made.unwrap_or_else(|e| panic!("{told}: {e}")).module;
                    let kernel = &module.kernels[module.main];
                    let notes = kernel.notes.join("\n");
                    assert!(kernel.body.iter().any(|s| matches!(s, Stmt::Roles(_))), "{told}\n{notes}");
                    assert!(!notes.contains("ignored") && !notes.contains("no clusters"), "{told}\n{notes}");
                    let has = (i64::from(kernel.grid[0]), kernel.cluster);
                    assert_eq!(has, (plan.grid(&g), plan.cluster_size()), "{told}");
                    assert!(i64::from(kernel.shared_bytes) <= plan.shared_bytes(&g), "{told}: {}", kernel.shared_bytes);
                    seen += 1;
                }
            }
        }
        assert!(seen >= 20, "{name}: {seen}");
    }
}
