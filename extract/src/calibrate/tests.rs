//! Fits to synthetic measurements: times under a perturbed descriptor, with noise.
use super::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use satune_ir::term::tensor::{Mma, TensorPlan, WgmmaPlan};
use satune_ir::term::{Axis, BlockLoop, Contraction, CoresPlan, Fill, Pair, Pipe, Schedule, StagedLayout, Staging};
use satune_ir::DType;
use std::sync::Arc;

fn gemm(m: i64, n: i64, k: i64) -> Contraction {
    Contraction::gemm(None, [m, n, k], DType::F32, DType::F32, [false; 2])
}

/// A plan at random; not every one fits a GPU.
fn plan(c: &Contraction, rng: &mut StdRng) -> CoresPlan {
    let pick = |rng: &mut StdRng, of: &[i64]| of[rng.gen_range(0..of.len())];
    let pair = |m, n| Pair { m, n };
    let (lanes_m, lanes_n) = [(4, 8), (8, 4), (2, 16), (1, 32)][rng.gen_range(0..4)];
    let warps = pair(pick(rng, &[1, 2, 4]), pick(rng, &[1, 2, 4]));
    let registers = pair(pick(rng, &[1, 2, 4, 8]), pick(rng, &[1, 2, 4, 8]));
    let inner = pair(pick(rng, &[1, 2]), pick(rng, &[1, 2]));
    let tile = pair(warps.m * inner.m * lanes_m * registers.m, warps.n * inner.n * lanes_n * registers.n);
    let k_tile = pick(rng, &[8, 16, 32]);
    let split_k = pick(rng, &[1, 1, 1, 4]);
    let vector = |most: i64| u32::try_from(most.min(4)).unwrap_or(1);
    let staging = |rng: &mut StdRng, along: i64| Staging {
        hoisted: false,
        shared: rng.gen_bool(0.85).then(|| {
            let layout = StagedLayout { k_major: true, pad: rng.gen_range(0..2) * 4, swizzle: false };
            (layout, Fill { coalesced: true, vector: 4, unroll: rng.gen_bool(0.5) })
        }),
        local: rng.gen_bool(0.9).then(|| vector(along)),
    };
    let blocks = |extent: i64, tile: i64| (extent + tile - 1) / tile;
    CoresPlan {
        blocks: vec![
            BlockLoop { axis: Axis::K, extent: split_k, group: false },
            BlockLoop { axis: Axis::M, extent: blocks(c.extent(Axis::M), tile.m), group: false },
            BlockLoop { axis: Axis::N, extent: blocks(c.extent(Axis::N), tile.n), group: false },
        ],
        split_k,
        tile,
        k_part: c.extent(Axis::K) / split_k,
        k_tile,
        threads: 32 * warps.product() as u32,
        pipe: [Pipe::Plain, Pipe::Registers, Pipe::Async(2), Pipe::Async(3), Pipe::Async(4)][rng.gen_range(0..5)],
        a: staging(rng, registers.m),
        b: staging(rng, registers.n),
        vthread_outer: pair(1, 1),
        warps,
        warps_m_outer: true,
        vthread_inner: inner,
        lanes: pair(lanes_m, lanes_n),
        lanes_m_outer: true,
        registers,
        registers_m_outer: true,
        k_step: 1,
        unroll_k: rng.gen_bool(0.5),
        accumulators: true,
        init_hoisted: true,
        store_vector: vector(registers.n),
    }
}

const SHAPES: [(i64, i64, i64); 6] =
    [(4096, 4096, 4096), (1024, 1024, 1024), (256, 256, 8192), (8192, 64, 4096), (128, 128, 128), (8192, 8192, 128)];

/// A time with a relative error of that size.
fn noisy(ms: f64, noise: f64, rng: &mut StdRng) -> f64 {
    // Twelve uniform numbers are near a normal one.
    let normal: f64 = (0..12).map(|_| rng.gen::<f64>()).sum::<f64>() - 6.0;
    ms * (noise * normal).exp()
}

/// Times under `truth` with noise of `noise` (a share), `each` per shape, every `wild`-th of them 2.5 times too long.
fn measured(truth: &Descriptor, each: usize, noise: f64, wild: usize) -> Vec<Measurement> {
    let mut rng = StdRng::seed_from_u64(7);
    let mut out = Vec::new();
    for (m, n, k) in SHAPES {
        let contraction = gemm(m, n, k);
        let problem = Arc::new(Problem::Contraction(Box::new(contraction.clone())));
        let mut made = 0;
        while made < each {
            let plan = plan(&contraction, &mut rng);
            let Ok(cost) = crate::cost(&plan, &contraction, truth) else { continue };
            made += 1;
            let outlier = if wild > 0 && out.len() % wild == 0 { 2.5 } else { 1.0 };
            let ms = noisy(cost.ms, noise, &mut rng) * outlier;
            let shape = format!("gemm:{m},{n},{k},f32");
            out.push(Measurement { shape, problem: problem.clone(), plan: Schedule::Cores(plan), ms, clock_mhz: None });
        }
    }
    out
}

fn truth() -> Descriptor {
    let mut gpu = Descriptor::load("h200").unwrap();
    gpu.clock_mhz = 1755.0;
    gpu.issue_efficiency = 0.76;
    gpu.dram_gbs = 3700.0;
    gpu.l2_bytes_per_clock = 3900.0;
    gpu.l1_bytes_per_clock = 88.0;
    gpu.latency_dram = 800.0;
    gpu.latency_shared = 24.0;
    gpu.launch_us = 4.5;
    gpu.overlap_exponent = 6.0;
    gpu.power = None;
    gpu
}

/// What fits begin with: a GPU that power does not slow down, for that hides its rates.
fn cool(name: &str) -> Descriptor {
    Descriptor { power: None, ..Descriptor::load(name).unwrap() }
}

/// Each scalar that is determined is the true one, as nearly as its error says; the others are kept.
fn check_scalars(found: &Calibration, truth: &Descriptor) {
    for s in &found.scalars {
        let scalar = fit::SCALARS.iter().find(|f| f.name == s.name).unwrap();
        let want = (scalar.get)(truth).unwrap();
        println!(
            "{:<20} {:>9.3} -> {:>9.3} (truth {want:.3}) ±{:.1}% {}",
            s.name,
            s.before,
            s.after,
            100.0 * s.error,
            s.determined
        );
        if s.determined {
            let tolerance = (4.0 * s.error).max(0.02);
            assert!((s.after / want).ln().abs() <= tolerance, "{} is {}, not {want}", s.name, s.after);
        } else {
            assert_eq!(s.after, s.before);
        }
    }
}

#[test]
fn the_scalars_behind_synthetic_times_are_recovered() {
    let start = cool("h200");
    let truth = truth();
    let found = calibrate(&start, &measured(&truth, 60, 0.02, 0)).unwrap();
    check_scalars(&found, &truth);
    let determined: Vec<&str> = found.scalars.iter().filter(|s| s.determined).map(|s| s.name).collect();
    for name in ["clock_mhz", "issue_efficiency", "dram_gbs", "l2_bytes_per_clock", "latency_dram", "launch_us"] {
        assert!(determined.contains(&name), "{name} is not determined: {determined:?}");
    }
    println!("before {:?}\nafter {:?}\nleft out {:?}", found.before, found.after, found.left_out);
    assert!(found.after.median_error < 0.02 && found.before.median_error > 0.05);
    let left_out = found.left_out.unwrap();
    assert!(left_out.spearman.unwrap() > 0.99 && left_out.regret_16.unwrap() < 0.05);
    assert_eq!(found.held_out.len(), SHAPES.len());
}

/// Products in bf16 on tensor cores with instructions of both kinds, and some on single threads.
fn on_tensor_cores(truth: &Descriptor, noise: f64) -> Vec<Measurement> {
    let mut rng = StdRng::seed_from_u64(11);
    let mut out = Vec::new();
    for (m, n, k) in [(4096, 4096, 4096), (8192, 8192, 2048), (16, 8192, 8192), (256, 256, 256)] {
        let contraction = Contraction::gemm(None, [m, n, k], DType::BF16, DType::F32, [false, true]);
        let problem = Arc::new(Problem::Contraction(Box::new(contraction.clone())));
        let mut plans = Vec::new();
        for (tile_m, tile_n) in [(64, 64), (128, 128), (128, 256), (256, 128)] {
            for (tile_k, stages, split_k) in [(32, 6, 1), (64, 4, 1), (64, 4, 4)] {
                let tile = [tile_m, tile_n, tile_k];
                for warp in [[32, 32], [64, 32]] {
                    let plan = TensorPlan::plain(tile, warp, Mma::Bf16, stages);
                    plans.push(Schedule::Mma(TensorPlan { split_k, ..plan }));
                }
                for consumers in [1, 2] {
                    // Without clusters L2 binds, and says nothing of the instruction.
                    for cluster in [[1, 1], [2, 1], [2, 2]] {
                        let plan = WgmmaPlan::plain(tile, consumers, stages);
                        plans.push(Schedule::Wgmma(WgmmaPlan { split_k, cluster, ..plan }));
                    }
                }
            }
        }
        for plan in plans {
            let Ok(cost) = crate::predict(&plan, &contraction, truth) else { continue };
            let shape = format!("gemm:{m},{n},{k},bf16,NT");
            let ms = noisy(cost.ms, noise, &mut rng);
            out.push(Measurement { shape, problem: problem.clone(), plan, ms, clock_mhz: None });
        }
    }
    out
}

#[test]
fn times_at_several_clocks_fit_where_the_clocks_were_seen() {
    let truth = truth();
    let mut rows = on_tensor_cores(&truth, 0.0);
    for (number, row) in rows.iter_mut().enumerate() {
        let clock_mhz = if number % 2 == 0 { truth.clock_mhz } else { 0.7 * truth.clock_mhz };
        let Problem::Contraction(c) = &*row.problem else { panic!("a product") };
        row.ms = crate::predict(&row.plan, c, &Descriptor { clock_mhz, ..truth.clone() }).unwrap().ms;
        row.clock_mhz = Some(clock_mhz);
    }
    let start = cool("h200");
    let seen = calibrate(&start, &rows).unwrap().after;
    rows.iter_mut().for_each(|row| row.clock_mhz = None);
    let blind = calibrate(&start, &rows).unwrap().after;
    assert!(seen.median_error < 0.01 && blind.median_error > 5.0 * seen.median_error, "{seen:?} {blind:?}");
}

#[test]
fn measurements_on_tensor_cores_give_their_shares() {
    let start = cool("h200");
    let mut truth = truth();
    truth.tensor = truth.tensor.map(|t| crate::TensorRates { mma_share: 0.45, wgmma_share: 0.84, ..t });
    let rows = on_tensor_cores(&truth, 0.02);
    let [mma, wgmma] = [0, 1].map(|kind| {
        rows.iter().filter(|r| matches!((&r.plan, kind), (Schedule::Mma(_), 0) | (Schedule::Wgmma(_), 1))).count()
    });
    assert!(mma > 30 && wgmma > 20, "{mma} {wgmma}");
    // Prepared, a plan takes what it takes when it is predicted anew.
    for row in rows.iter().step_by(17) {
        let Problem::Contraction(c) = &*row.problem else { panic!("a product") };
        let again = Model::of(row, &start)
            .map(|m| Row { shape: "", prepared: Ok(m), ms: 1.0, clock: 1.0 }.predict(&truth).unwrap());
        assert_eq!(again.unwrap(), crate::predict(&row.plan, c, &truth).unwrap().ms);
    }
    let found = calibrate(&start, &rows).unwrap();
    check_scalars(&found, &truth);
    assert!(found.after.median_error < 0.02 && found.before.median_error > 0.05, "{:?}", found.after);
    // What the tensor cores do per second is known well, whatever the clock's part of it.
    let rate =
        |g: &Descriptor, share: fn(&crate::TensorRates) -> f64| g.clock_mhz * g.tensor.as_ref().map_or(0.0, share);
    let shares: [fn(&crate::TensorRates) -> f64; 2] = [|t| t.mma_share, |t| t.wgmma_share];
    for share in shares {
        let (got, want) = (rate(&found.descriptor, share), rate(&truth, share));
        assert!((got / want - 1.0).abs() < 0.04, "{got} is not {want}");
    }
    let of = |name: &str| found.scalars.iter().find(|s| s.name == name).unwrap();
    assert!(of("mma_share").determined && of("wgmma_share").determined);
    // Nothing of them reads the latency of L2.
    assert!(!of("latency_l2").determined && found.descriptor.latency_l2 == start.latency_l2);
    let text = descriptor_text(Descriptor::text("h200").unwrap(), &found).unwrap();
    let read = Descriptor::parse(&text, "x").unwrap().tensor.unwrap();
    assert!((read.mma_share / of("mma_share").after - 1.0).abs() < 1e-4, "{text}");
    // With those of single threads the clock is known, too, and each share with it.
    let all = [rows, measured(&truth, 20, 0.02, 0)].concat();
    let both = calibrate(&start, &all).unwrap().descriptor;
    for share in shares {
        let (got, want) = (share(&both.tensor.unwrap()), share(&truth.tensor.unwrap()));
        assert!((got / want - 1.0).abs() < 0.06, "{got} is not {want}");
    }
}

#[test]
fn a_schedule_of_another_kind_is_left_out() {
    let gpu = cool("a100");
    let mut rows = measured(&gpu, 4, 0.0, 0);
    let wgmma = Schedule::Wgmma(WgmmaPlan::plain([128, 128, 64], 2, 3));
    rows[0].plan = wgmma;
    let found = calibrate(&gpu, &rows).unwrap();
    assert_eq!((found.measurements, found.infeasible), (rows.len() - 1, 1));
    // A GPU without the instruction has no share of it to be fitted.
    assert!(found.scalars.iter().any(|s| s.name == "mma_share"));
    assert!(found.scalars.iter().all(|s| s.name != "wgmma_share"));
}

#[test]
fn wild_measurements_do_not_pull_the_fit() {
    let start = cool("h200");
    let truth = truth();
    // One in ten took 2.5 times as long as it should.
    let found = calibrate(&start, &measured(&truth, 60, 0.02, 10)).unwrap();
    assert!(found.after.median_error < 0.03, "{:?}", found.after);
    let d = &found.descriptor;
    for (got, want) in [(d.dram_gbs, truth.dram_gbs), (d.launch_us, truth.launch_us)] {
        assert!((got / want - 1.0).abs() < 0.08, "{got} is not {want}");
    }
    let rate = |g: &Descriptor| g.clock_mhz * g.issue_efficiency;
    assert!((rate(d) / rate(&truth) - 1.0).abs() < 0.05, "{} is not {}", rate(d), rate(&truth));
}

#[test]
fn the_true_descriptor_stays_and_what_nothing_measures_is_kept() {
    let start = cool("a100");
    let mut rows = measured(&start, 30, 0.0, 0);
    let found = calibrate(&start, &rows).unwrap();
    assert!(found.after.worst_error < 1e-3, "{:?}", found.after);
    // Large problems only, without split-K: a start of 3 microseconds drowns in milliseconds.
    rows.retain(|r| r.shape.starts_with("gemm:4096") && r.plan.cores().is_some_and(|p| p.split_k == 1));
    let found = calibrate(&start, &rows).unwrap();
    let launch = found.scalars.iter().find(|s| s.name == "launch_us").unwrap();
    assert!(!launch.determined && launch.after == launch.before);
    assert!(found.held_out.is_empty() && found.left_out.is_none());
}

#[test]
fn the_file_is_read_back_and_twice_is_the_same() {
    let start = cool("h200");
    let rows = measured(&truth(), 20, 0.02, 0);
    let found = calibrate(&start, &rows).unwrap();
    assert_eq!(found, calibrate(&start, &rows).unwrap());
    let text = descriptor_text(Descriptor::text("h200").unwrap(), &found).unwrap();
    let read = Descriptor::parse(&text, "x").unwrap();
    assert_eq!(read.name, "h200-calibrated");
    assert!((read.clock_mhz / found.descriptor.clock_mhz - 1.0).abs() < 1e-4);
    assert!(text.contains("# Fitted to 120 measurements of 6 shapes"), "{text}");
    assert!(text.contains("# fitted, standard error"), "{text}");
    assert!(descriptor_text("sms = 3", &found).is_err());
}

#[test]
fn the_clock_that_was_seen_is_written_whether_or_not_it_is_fitted() {
    let start = cool("h200");
    let truth = Descriptor { clock_mhz: 1000.0, ..truth() };
    let mut rows = measured(&truth, 20, 0.02, 0);
    rows.iter_mut().for_each(|row| row.clock_mhz = Some(truth.clock_mhz));
    let fitted = calibrate(&start, &rows).unwrap();
    assert_eq!(fitted.clock, Some(SeenClock { before: start.clock_mhz, seen: truth.clock_mhz }));
    // Where the measurements do not determine it, the fit leaves it as it began.
    let mut kept = fitted.clone();
    kept.descriptor.clock_mhz = truth.clock_mhz;
    let clock = kept.scalars.iter_mut().find(|s| s.name == "clock_mhz").unwrap();
    assert!(clock.determined);
    (clock.determined, clock.after) = (false, truth.clock_mhz);
    for found in [fitted, kept] {
        let text = descriptor_text(Descriptor::text("h200").unwrap(), &found).unwrap();
        let line = text.lines().find(|l| l.starts_with("clock_mhz = ")).unwrap();
        assert!(line.ends_with(&format!("seen while measuring; was {}", start.clock_mhz)), "{line}");
        let clock = found.scalars.iter().find(|s| s.name == "clock_mhz").unwrap();
        assert_eq!(line.contains("# fitted"), clock.determined, "{line}");
        let read = Descriptor::parse(&text, "x").unwrap();
        assert!((read.clock_mhz / found.descriptor.clock_mhz - 1.0).abs() < 1e-4, "{line}");
    }
}

#[test]
fn what_cannot_be_fitted_is_refused() {
    let gpu = Descriptor::load("h200").unwrap();
    let mut rows = measured(&gpu, 2, 0.0, 0);
    rows.truncate(3);
    let few = calibrate(&gpu, &rows).unwrap_err();
    assert!(few.to_string().starts_with("3 measurements that the GPU of h200 can run (0 others it cannot)"), "{few}");
    rows[1].ms = -1.0;
    let time = calibrate(&gpu, &rows).unwrap_err();
    assert_eq!(time.to_string(), "measurement 2 of gemm:4096,4096,4096,f32 is -1 ms; times are positive");
    rows[1].clock_mhz = Some(2e6);
    rows[1].ms = 1.0;
    let clock = calibrate(&gpu, &rows).unwrap_err().to_string();
    assert_eq!(
        clock,
        "measurement 2 of gemm:4096,4096,4096,f32 has a clock of 2000000 MHz; clocks are 1 to 100000 MHz"
    );
}
