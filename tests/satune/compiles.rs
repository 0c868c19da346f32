//! Kernels really compiled by NVRTC, where it is to be had.
use crate::support::*;
use rand::SeedableRng;
use satune::compile::{hot_loop_mix, CompileError, Compiled, Compiler, Job};
use satune_extract::Counts;
use satune_ir::term::*;
use satune_ir::DType;

/// What NVRTC makes of the texts; leaves the test where it is not to be had.
pub fn compile(jobs: &[Job]) -> Vec<Compiled> {
    let compiler = Compiler::of(env!("CARGO_BIN_EXE_satune"));
    let mut compiled = Vec::new();
    for (result, job) in compiler.compile_many(jobs).into_iter().zip(jobs) {
        match result {
            Ok(c) => compiled.push(c),
            Err(CompileError::Missing) => satune_testing::missing("NVRTC", "cuda"),
            Err(error) => panic!("{error}\n{}", job.source),
        }
    }
    compiled
}

/// 128 x 128 x 8, 256 threads, 8 x 8 each, double-buffered through registers.
pub fn classic(contraction: &Contraction) -> Plan {
    let mut plan = Plan::naive(contraction);
    plan.blocks = vec![
        BlockLoop { axis: Axis::M, extent: contraction.extent(Axis::M) / 128, group: false },
        BlockLoop { axis: Axis::N, extent: contraction.extent(Axis::N) / 128, group: false },
    ];
    plan.tile = Pair { m: 128, n: 128 };
    plan.k_tile = 8;
    plan.threads = 256;
    plan.pipe = Pipe::Registers;
    let stage = |pad| {
        let layout = Layout { k_major: true, pad, swizzle: false };
        Staging {
            shared: Some((layout, Fill { coalesced: true, vector: 4, unroll: true })),
            local: Some(4),
            ..Staging::default()
        }
    };
    (plan.a, plan.b) = (stage(4), stage(0));
    plan.warps = Pair { m: 4, n: 2 };
    plan.vthread_inner = Pair { m: 2, n: 2 };
    plan.lanes = Pair { m: 4, n: 8 };
    plan.registers = Pair { m: 4, n: 4 };
    plan.unroll_k = true;
    plan.accumulators = true;
    plan.init_hoisted = true;
    plan.store_vector = 4;
    plan
}

#[test]
fn the_classic_schedule_compiles_to_ffma_without_spills() {
    let c = gemm(None, 4096, 4096, 4096, DType::F32, DType::F32, "NN");
    for (arch, pipe) in [("sm_90", Pipe::Registers), ("sm_80", Pipe::Registers), ("sm_90", Pipe::Async(3))] {
        let mut plan = classic(&c);
        plan.pipe = pipe;
        if pipe != Pipe::Registers {
            plan.a.shared.as_mut().unwrap().1.vector = 1;
        }
        let module = kernels_of(&plan, &c);
        let source = satune::cuda::print(&module.kernels[0]);
        let job = Job { name: "gemm".into(), source: source.clone(), arch: arch.into() };
        let compiled = compile(&[job]);
        assert_eq!(compiled[0].spill_bytes, 0);
        if let Some(mix) = hot_loop_mix(&compiled[0].cubin) {
            println!("{arch} {pipe:?}: {} registers, {mix:?}", compiled[0].registers);
            assert!(mix.share > 0.8, "{mix:?}\n{source}");
        }
    }
}

#[test]
fn random_schedules_compile() {
    let mut jobs = Vec::new();
    for (c, arch) in [
        (gemm(None, 30, 45, 17, DType::F32, DType::F32, "NN"), "sm_80"),
        (gemm(None, 128, 96, 64, DType::F16, DType::F32, "NT"), "sm_90"),
        (gemm(Some(2), 64, 64, 64, DType::F64, DType::F64, "TN"), "sm_86"),
        (gemm(None, 1 << 20, 4096, 1 << 12, DType::F32, DType::F32, "TT"), "sm_89"),
    ] {
        let space = space(&c);
        let counts = Counts::of(&space);
        let mut rng = rand::rngs::StdRng::seed_from_u64(3);
        for i in 0..4 {
            let plan = Plan::from_term(&counts.sample(&space, &mut rng).unwrap(), &c).unwrap();
            for kernel in kernels_of(&plan, &c).kernels {
                jobs.push(Job { name: format!("k{i}"), source: satune::cuda::print(&kernel), arch: arch.into() });
            }
        }
    }
    assert!(compile(&jobs).iter().all(|c| c.registers > 0 && !c.cubin.is_empty()));
}

#[test]
fn the_kernels_around_the_candidates_compile() {
    let jobs: Vec<Job> = ["sm_75", "sm_90"]
        .into_iter()
        .map(|arch| (arch, satune::device::cuda::support_text()))
        .map(|(arch, source)| Job { name: "support".into(), source, arch: arch.into() })
        .collect();
    assert!(compile(&jobs).iter().all(|c| !c.cubin.is_empty() && c.nvrtc.contains('.')));
}
