//! Tilings of a matrix product: lowered, simulated (races, bounds, unwritten reads, divergent barriers), and compared exactly.
use crate::programs::*;
use crate::simulated::{numbers, product, run, text};
use crate::support::{h200, samples, seed, H200};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use satune::kernel::Space;
use satune::lower::program::*;
use satune::simulate::Report;
use satune::{operators, scheduled};
use satune_extract::Counts;
use satune_ir::term::{CoresPlan, Side, Way};
use satune_ir::{Annotations, DType};
use satune_rewrites::space::{rules, saturate_without, Condition, Fuel, Menu};

fn check(gemm: &Gemm, options: &LowerOptions) -> (Module, Report) {
    let module = lower(&gemm.program(), options).unwrap_or_else(|e| panic!("{e}\n{gemm:?}"));
    let (m, n, k) = gemm.shape;
    let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
    let mut params = vec![a.clone(), b.clone(), vec![0.0; (m * n) as usize]];
    let report = run(&module, &mut params).remove(0);
    assert_eq!(report.unwritten, 0);
    let expected = product(gemm.shape, &a, &b);
    let wrong = params[2].iter().zip(&expected).position(|(x, y)| x != y);
    assert_eq!(wrong, None, "{gemm:?}\n{}", satune::cuda::print(&module.kernels[0]));
    (module, report)
}

/// The article's last stage, shrunk.
fn vectorized() -> Gemm {
    Gemm { vthreads: (2, 2), vector: 4, local_vector: 4, unroll: true, shape: (64, 96, 40), ..Gemm::default() }
}

fn pipelined(stages: &[i64], asynchronous: bool) -> Annotations {
    let mut out = Annotations::new();
    out.insert("software_pipeline_stage".into(), ints(stages));
    out.insert("software_pipeline_order".into(), ints(&[0, 1, 2]));
    if asynchronous {
        out.insert("software_pipeline_async_stages".into(), ints(&[0]));
    }
    out
}

#[test]
fn thread_tiles() {
    let (module, report) = check(&Gemm::default(), &LowerOptions::default());
    let kernel = &module.kernels[0];
    assert_eq!((kernel.grid, kernel.block, kernel.shared_bytes), ([4, 4, 1], [4, 4, 1], 2 * 16 * 8 * 4));
    // Two barriers per k tile.
    assert_eq!(report.total.barriers, 16 * 2 * 4);
    check(&Gemm { init_inside: true, ..Gemm::default() }, &LowerOptions::default());
}

#[test]
fn vthreads_are_packed() {
    let gemm = Gemm { vthreads: (2, 2), shape: (64, 96, 40), ..Gemm::default() };
    let (module, _) = check(&gemm, &LowerOptions::default());
    let registers: Vec<(&str, u64)> = module.kernels[0]
        .arrays
        .iter()
        .filter(|a| a.space == Space::Register)
        .map(|a| (a.name.as_str(), a.len))
        .collect();
    assert_eq!(registers, [("C_local", 64), ("A_local", 8), ("B_local", 8)]);
    println!("{}", text(&module));
}

#[test]
fn vectorized_stage() {
    let (module, _) = check(&vectorized(), &LowerOptions::default());
    println!("{}", text(&module));
    let (module, _) = check(&Gemm { transposed: true, ..vectorized() }, &LowerOptions::default());
    println!("{}", text(&module));
}

#[test]
fn rings_of_asynchronous_copies() {
    for stages in 2..=4 {
        for shape in [(64, 96, 40), (64, 96, 16), (64, 96, 8)] {
            let gemm = Gemm { k_annotations: pipelined(&[0, 0, stages - 1], true), shape, ..vectorized() };
            let (module, report) = check(&gemm, &LowerOptions::default());
            let kernel = &module.kernels[0];
            if shape.2 > 8 {
                assert_eq!(u64::from(kernel.shared_bytes), stages as u64 * (32 * 8 + 8 * 32) * 4);
                assert!(report.total.async_copies > 0);
                // One barrier per k tile.
                assert_eq!(report.total.barriers as i64, kernel.grid.iter().product::<u32>() as i64 * shape.2 / 8);
            }
            if stages == 3 && shape.2 == 40 {
                println!("{}", text(&module));
            }
        }
    }
}

#[test]
fn without_cp_async_the_next_tile_waits_in_registers() {
    let mut options = LowerOptions::default();
    options.target.has_cp_async = false;
    let gemm = Gemm { k_annotations: pipelined(&[0, 0, 1], true), ..vectorized() };
    let (_, report) = check(&gemm, &options);
    assert_eq!(report.total.async_copies, 0);
    let gemm = Gemm { k_annotations: pipelined(&[0, 0, 2], true), ..vectorized() };
    check(&gemm, &options);
}

#[test]
fn register_double_buffer() {
    let mut staged = Annotations::new();
    staged.insert("tir.manifest_shared_memory_local_stage".into(), satune_ir::Attr::Int(1));
    for transposed in [false, true] {
        for shape in [(64, 96, 40), (64, 96, 16), (50, 90, 37)] {
            let gemm = Gemm {
                k_annotations: pipelined(&[0, 0, 1], false),
                copy_annotations: staged.clone(),
                transposed,
                shape,
                ..vectorized()
            };
            let (module, _) = check(&gemm, &LowerOptions::default());
            if transposed && shape.0 == 64 {
                println!("{}", text(&module));
            }
        }
    }
}

#[test]
fn ragged_shapes() {
    for shape in [(30, 45, 17), (64, 45, 16), (33, 64, 9), (64, 64, 17), (31, 64, 16), (32, 44, 12)] {
        for (vthreads, vector, transposed) in
            [((1, 1), 1, false), ((2, 2), 1, false), ((2, 1), 4, true), ((1, 2), 2, false)]
        {
            for init_inside in [false, true] {
                let gemm =
                    Gemm { shape, vthreads, vector, local_vector: vector, transposed, init_inside, ..Gemm::default() };
                let (module, _) = check(&gemm, &LowerOptions::default());
                if shape == (30, 45, 17) && vthreads == (2, 2) && !init_inside {
                    println!("{}", text(&module));
                }
            }
            for (stages, asynchronous) in [(1, false), (2, true)] {
                let k_annotations = pipelined(&[0, 0, stages], asynchronous);
                let gemm = Gemm {
                    shape,
                    vthreads,
                    vector,
                    local_vector: vector,
                    transposed,
                    k_annotations,
                    ..Gemm::default()
                };
                check(&gemm, &LowerOptions::default());
            }
        }
    }
}

#[test]
fn tiles_that_the_threads_do_not_divide() {
    // 24 x 20 elements of A by 24 threads of 5, 3 pieces: the copies' last steps overshoot.
    let gemm = Gemm { shape: (48, 40, 21), threads: (6, 5), k_tile: 7, ..Gemm::default() };
    let (module, _) = check(&gemm, &LowerOptions::default());
    println!("{}", text(&module));
    let (module, _) = check(&Gemm { shape: (50, 41, 23), ..gemm }, &LowerOptions::default());
    // The guards of the copies' surplus and of the stores: none around the arithmetic.
    assert_eq!(text(&module).matches("if (").count(), 4, "{}", text(&module));
}

#[test]
fn half_inputs_are_widened() {
    let gemm = Gemm {
        input: DType::F16,
        vector: 8,
        local_vector: 4,
        vthreads: (2, 2),
        shape: (64, 64, 32),
        ..Gemm::default()
    };
    let (module, _) = check(&gemm, &LowerOptions::default());
    println!("{}", text(&module));
}

#[test]
fn rows_are_padded_as_storage_align_says() {
    let mut padded = Annotations::new();
    padded.insert("buffer_dim_align".into(), satune_ir::Attr::List(vec![ints(&[0, 0, 32, 4])]));
    for transposed in [false, true] {
        let gemm = Gemm { copy_annotations: padded.clone(), transposed, ..vectorized() };
        let (module, _) = check(&gemm, &LowerOptions::default());
        let sizes: Vec<u64> =
            module.kernels[0].arrays.iter().filter(|a| a.space == Space::Shared).map(|a| a.len).collect();
        assert_eq!(sizes, if transposed { [8 * 36, 8 * 36] } else { [32 * 36, 8 * 36] });
    }
}

#[test]
fn random_tilings() {
    use rand::{rngs::StdRng, seq::SliceRandom, Rng, SeedableRng};
    let mut rng = StdRng::seed_from_u64(11);
    let mut staged = Annotations::new();
    staged.insert("tir.manifest_shared_memory_local_stage".into(), satune_ir::Attr::Int(1));
    for _ in 0..150 {
        let pick = |rng: &mut StdRng, list: &[i64]| *list.choose(rng).unwrap_or(&1);
        let pair = |rng: &mut StdRng, list: &[i64]| (pick(rng, list), pick(rng, list));
        let vector = pick(&mut rng, &[1, 1, 2, 4, 8]);
        let whole = rng.gen_bool(0.5);
        let mut gemm = Gemm {
            threads: pair(&mut rng, &[1, 2, 3, 4, 8]),
            vthreads: pair(&mut rng, &[1, 1, 2, 3]),
            registers: pair(&mut rng, &[1, 2, 3, 4, 8]),
            k_tile: pick(&mut rng, &[1, 3, 4, 8, 12]),
            vector,
            local_vector: if rng.gen_bool(0.5) { 1 } else { 4 },
            unroll: rng.gen_bool(0.5),
            init_inside: rng.gen_bool(0.3),
            transposed: rng.gen_bool(0.5),
            input: if rng.gen_bool(0.2) { DType::F16 } else { DType::F32 },
            ..Gemm::default()
        };
        let (m, n) =
            (gemm.threads.0 * gemm.vthreads.0 * gemm.registers.0, gemm.threads.1 * gemm.vthreads.1 * gemm.registers.1);
        gemm.shape = if whole {
            (m * rng.gen_range(1..3), n * rng.gen_range(1..3), gemm.k_tile * rng.gen_range(1..5))
        } else {
            (rng.gen_range(1..70), rng.gen_range(1..70), rng.gen_range(1..40))
        };
        match rng.gen_range(0..4) {
            0 => gemm.k_annotations = pipelined(&[0, 0, rng.gen_range(1..4)], true),
            1 => gemm.k_annotations = pipelined(&[0, 0, rng.gen_range(1..3)], false),
            2 => {
                gemm.k_annotations = pipelined(&[0, 0, 1], false);
                gemm.copy_annotations = staged.clone();
            }
            _ => {}
        }
        check(&gemm, &LowerOptions::default());
    }
}

#[test]
fn machine_code_of_the_staircase() {
    use satune::compile::{hot_loop_mix, Job};
    let mut staged = Annotations::new();
    staged.insert("tir.manifest_shared_memory_local_stage".into(), satune_ir::Attr::Int(1));
    let big = Gemm {
        shape: (4096, 4096, 4096),
        threads: (16, 16),
        vthreads: (2, 2),
        vector: 4,
        local_vector: 4,
        unroll: true,
        transposed: true,
        ..Gemm::default()
    };
    let variants = [
        ("plain", big.clone()),
        ("not transposed", Gemm { transposed: false, ..big.clone() }),
        ("registers", Gemm { k_annotations: pipelined(&[0, 0, 1], false), copy_annotations: staged, ..big.clone() }),
        ("ring", Gemm { k_annotations: pipelined(&[0, 0, 2], true), transposed: false, ..big.clone() }),
        ("k 16", Gemm { k_tile: 16, k_annotations: pipelined(&[0, 0, 1], true), transposed: false, ..big.clone() }),
        ("ragged", Gemm { shape: (4095, 4097, 4099), vector: 1, ..big }),
    ];
    let mut jobs = Vec::new();
    for (name, gemm) in &variants {
        let module = lower(&gemm.program(), &LowerOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        jobs.push(Job { name: "main_kernel".into(), source: text(&module), arch: "sm_90".into() });
    }
    let compiled = crate::compiles::compile(&jobs);
    for ((name, _), c) in variants.iter().zip(&compiled) {
        let mix = hot_loop_mix(&c.cubin);
        println!("{name}: {} registers, {} spilled, {mix:?}", c.registers, c.spill_bytes);
        assert_eq!(c.spill_bytes, 0, "{name}");
        if let (Some(mix), false) = (mix, *name == "ragged") {
            assert!(mix.share > 0.8, "{name}: {mix:?}");
        }
    }
}

/// Whether tiles along k reach into the next part of k.
fn is_cut(plan: &CoresPlan) -> bool {
    plan.split_k > 1 && plan.k_part % plan.k_tile != 0
}

/// Random schedules of an operator's space, which is made without a condition, that are not lowered, or whose kernels take more shared
/// memory than they say. `wanted`: those to look at, by their number. Some of the others are simulated.
fn beyond_what_they_say(
    operator: &str,
    removed: Option<Condition>,
    wanted: impl Fn(usize, &CoresPlan) -> bool,
    random: &mut StdRng,
) -> Vec<String> {
    let problem = operators::parse(operator).unwrap();
    let c = &problem.contraction;
    let space = saturate_without(c, H200, &Menu::of(c, &H200), &rules::all(), Fuel::default(), removed).unwrap();
    let counts = Counts::of(&space);
    let mut draw = || CoresPlan::from_term(&counts.sample(&space, random).unwrap(), c).unwrap();
    let mut beyond = Vec::new();
    for i in 0..samples(20) {
        let found = (0..2000).map(|_| draw()).find(|plan| wanted(i, plan));
        let plan = found.unwrap_or_else(&mut draw);
        let (said, told) = (plan.shared_bytes(c), plan.describe().join("\n"));
        match scheduled::of_plan(&problem.program, &plan, c, &h200()) {
            Err(error) => beyond.push(format!("{error}\n{told}")),
            Ok(made) => {
                let taken = i64::from(made.module.kernels[0].shared_bytes);
                if taken > said {
                    beyond.push(format!("said {said}, taken {taken}\n{told}"));
                } else if i % 4 == 0 {
                    scheduled::check(&problem.program, &made, i as u64)
                        .unwrap_or_else(|e| panic!("{operator}: {e}\n{told}"));
                }
            }
        }
    }
    beyond
}

/// Products whose tiles do not end with the matrix, or reach into the next part of k: kernels are right, and take no more shared
/// memory than their plans say.
#[test(slow)]
fn shared_memory_is_what_plans_say() {
    let mut random = StdRng::seed_from_u64(seed());
    let mut any = || {
        let [m, n, k] = [20..70, 20..70, 150..500].map(|range| random.gen_range(range));
        let dtype = ["f32", "f16", "f64", "i8"].choose(&mut random).unwrap();
        format!("gemm:{m},{n},{},{dtype},{}", 2 * k, ["NN", "NT", "TN", "TT"].choose(&mut random).unwrap())
    };
    for operator in [any(), "gemm:64,48,1000,f32".into(), "gemm:48,24,520,f16,TT".into()] {
        let beyond = beyond_what_they_say(&operator, None, |i, plan| i % 3 == 0 || is_cut(plan), &mut random);
        assert!(beyond.is_empty(), "{operator}: {}", beyond.join("\n"));
    }
    let swizzled = |plan: &CoresPlan, across: bool| {
        [Side::A, Side::B].into_iter().any(|side| {
            let rows = plan.staging(side).shared.is_some_and(|(layout, _)| layout.swizzle && layout.k_major == across);
            rows && plan.way(side) == Way::Tile
        })
    };
    // Swizzled rows across k, where tiles also reach over the edge of the matrix: with several parts of k, and with one.
    for operator in ["gemm:46,63,984,f64,NT", "gemm:65,50,830,f32,NT"] {
        let wanted = |i, plan: &CoresPlan| swizzled(plan, true) && (i % 2 == 0 || is_cut(plan));
        let beyond = beyond_what_they_say(operator, None, wanted, &mut random);
        assert!(beyond.is_empty(), "{operator}: {}", beyond.join("\n"));
    }
    // Without the condition a tile begins between two swizzled rows along k there, and takes room for many.
    let (operator, wanted) = ("gemm:64,48,1000,f32", |_, plan: &CoresPlan| is_cut(plan) && swizzled(plan, false));
    let beyond = beyond_what_they_say(operator, Some(Condition::SwizzleParts), wanted, &mut random);
    assert!(!beyond.is_empty(), "{operator}");
}
