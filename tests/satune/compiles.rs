//! Kernels really compiled by NVRTC, where it is to be had.
use crate::support::*;
use rand::SeedableRng;
use satune::compile::{hot_loop_mix, CompileError, Compiled, Compiler, Job};
use satune_extract::Counts;
use satune_ir::term::*;
use satune_ir::DType;
use std::process::Command;

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
pub fn classic(contraction: &Contraction) -> CoresPlan {
    let mut plan = CoresPlan::naive(contraction);
    plan.blocks = vec![
        BlockLoop { axis: Axis::M, extent: contraction.extent(Axis::M) / 128, group: false },
        BlockLoop { axis: Axis::N, extent: contraction.extent(Axis::N) / 128, group: false },
    ];
    plan.tile = Pair { m: 128, n: 128 };
    plan.k_tile = 8;
    plan.threads = 256;
    plan.pipe = Pipe::Registers;
    let stage = |pad| {
        let layout = StagedLayout { k_major: true, pad, swizzle: false };
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

#[test(slow)]
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
            let plan = CoresPlan::from_term(&counts.sample(&space, &mut rng).unwrap(), &c).unwrap();
            for kernel in kernels_of(&plan, &c).kernels {
                jobs.push(Job { name: format!("k{i}"), source: satune::cuda::print(&kernel), arch: arch.into() });
            }
        }
    }
    assert!(compile(&jobs).iter().all(|c| c.registers > 0 && !c.cubin.is_empty()));
}

#[test]
fn the_kernels_around_the_candidates_compile() {
    use satune::device::cuda::{constants_text, support_text};
    let jobs: Vec<Job> = ["sm_75", "sm_90"]
        .map(|arch| (arch, support_text()))
        .into_iter()
        .chain(["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"].map(|arch| (arch, constants_text())))
        .map(|(arch, source)| Job { name: "support".into(), source, arch: arch.into() })
        .collect();
    assert!(compile(&jobs).iter().all(|c| !c.cubin.is_empty() && c.nvrtc.contains('.')));
}

/// They measure nothing where they are wrong: each is executed, as PTX.
#[test]
fn the_kernels_that_measure_a_gpu_are_clean() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("constants.ptx");
    let job = Job { name: "constants".into(), source: satune::device::cuda::constants_text(), arch: "sm_90a".into() };
    // Compiled once for all launches.
    std::fs::write(&file, &compile(&[job])[0].ptx).unwrap();
    let sums = |kernel: &str, dtype: &str| {
        format!("kernel={kernel}, block=256, args=(out: scratch {dtype}[1], rounds: i64 2)")
    };
    let clocks = |kernel: &str, size: u32| {
        format!("kernel={kernel}, grid={size}, block=256, args=(rounds: i64 2, out: scratch i64[2])")
    };
    let mut launches = vec![
        "kernel=nothing, block=1".into(),
        "kernel=chain, grid=2, block=64, args=(out: out i64[300], n: i64 300, stride: i64 33)".into(),
        "kernel=follow_shared, block=32, args=(steps: i64 9, out: out i64[2])".into(),
        "kernel=read_often, grid=2, block=64, args=(in: in i32[4096], n: i64 1024, rounds: i64 2, out: scratch i32[1])"
            .into(),
        "kernel=write_all, grid=2, block=64, args=(out: out i32[4096], n: i64 1024)".into(),
        clocks("read_shared", 1),
    ];
    launches.extend([2, 4, 8].map(|size| clocks(&format!("cluster_{size}"), size)));
    launches.extend(["mma_f16", "mma_bf16", "mma_tf32"].map(|kernel| sums(kernel, "f32")));
    launches.push(sums("mma_s8", "i32"));
    launches.extend([64, 128, 256].map(|n| sums(&format!("wgmma_f16_n{n}"), "f32")));
    for launch in launches {
        let run = Command::new(env!("CARGO_BIN_EXE_satune"))
            .args(["check", file.to_str().unwrap(), "--gpu", "h200", "--launch", &launch])
            .output()
            .unwrap();
        let said = [run.stdout, run.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert_eq!(run.status.code(), Some(0), "{launch}: {said:?}");
    }
}

/// Names of programs that the language, headers, macros, the machine or the compiler's own functions have, too.
const TAKEN: &str = "
    NULL EOF __LINE__ __FILE__ __func__ __FUNCTION__ __cplusplus __CUDA_ARCH__ __CUDACC__ __CUDACC_RTC__ __NVCC__ __x86_64__ __x y__z _ __
    INT_MAX FLT_MAX DBL_EPSILON CHAR_BIT M_PI HUGE_VAL INFINITY NAN RAND_MAX BUFSIZ CUDART_INF_F CUDA_VERSION CUDARTAPI MAX MIN OUT Q
    linux unix i386 errno assert stdin stdout stderr signbit isnan isinf isfinite offsetof va_list va_start
    alignas asm auto bool char16_t class concept constexpr decltype default delete enum explicit export extern final float for friend goto
    if inline int long namespace new not nullptr operator or private register restrict return short signed sizeof static struct switch
    template this throw true try typedef typeid typename typeof union unsigned using virtual void volatile wchar_t while xor
    __global__ __device__ __shared__ __constant__ __restrict__ __launch_bounds__ __forceinline__ __syncthreads __int128
    threadIdx blockIdx blockDim gridDim warpSize dim3 float4 int2 uint4 double2 longlong2 ulonglong4 char4 half2 uchar1 size_t ptrdiff_t
    uint32_t int8_t cudaError_t cudaStream_t cudaSuccess CUdeviceptr nv_bfloat16 texture surface atomicAdd atomicCAS atomic
    main printf malloc free memcpy memset exit abort clock clock64 time abs labs llabs min max pow powf sin sinf cos exp expf exp10
    log log2f sqrt sqrtf rsqrt rsqrtf floor ceilf round roundf rint rintf trunc fmod fmodf fma fmaf fmin fmaxf hypot hypotf atan2 atan2f
    copysign copysignf norm norm3d normcdf rnorm3df rcbrt cbrt erf erff erfc erfcinv erfcxf lgamma tgamma j0 j1f jn y0 yn sinpi cospif
    sincos sincospi ldexp frexp modf logb ilogb nextafter remainder remquo scalbn lrint llround nan nanf isnanf cyl_bessel_i0 saturate
    umin umax llmin ullmax mulhi umulhi mul24 umul24 sad usad rhadd urhadd hadd clamp popc clz ffs brev trap brkpt rotate
    half_to_float float_to_half float_to_int8 double_to_uint64 floor_div_int32 shift_left_int64 magnitude_int32 copy_async_16 mma_f16
    shared_memory pack_half TensorMap barrier_wait wgmma_m64n8k16 div_uint32 std int8 uint8 float32 T tx bx unbound0 kernel program";

#[test]
fn names_that_somebody_else_has_compile() {
    use satune::kernel::{Array, ArrayId, Dim, Index, Kernel, Space, Stmt, Value};
    let mut source = String::new();
    let mut functions = std::collections::BTreeSet::new();
    for name in TAKEN.split_whitespace() {
        // The value calls functions, and a helper.
        let array = |name: &str, written| Array {
            name: name.into(),
            dtype: DType::F32,
            len: 32,
            space: Space::Global,
            align: 16,
            shared_offset: 0,
            written,
        };
        let at = || Index::ThreadIdx(Dim::X);
        let load = Box::new(Value::Load(ArrayId(1), at()));
        let whole = Box::new(Value::Cast(DType::I8, Box::new(Value::Unary("exp".into(), DType::F32, load))));
        let kernel = Kernel {
            name: name.into(),
            notes: Vec::new(),
            arrays: vec![array(name, true), array(&format!("{name}2"), false)],
            grid: [1; 3],
            block: [32, 1, 1],
            cluster: 1,
            shared_bytes: 0,
            min_blocks_per_sm: None,
            tensor_maps: Vec::new(),
            body: vec![Stmt::Store { array: ArrayId(0), index: at(), value: Value::Cast(DType::F32, whole) }],
        };
        let text = satune::cuda::print(&kernel);
        // Names of one kernel: `__` and `_` are the same to C.
        if functions.insert(satune::cuda::function_name(name)) {
            let helper = source.contains("float_to_int8(float f)");
            let kernel = text.find("extern \"C\"").unwrap();
            source += if helper { &text[kernel..] } else { &text };
        }
    }
    assert!(functions.len() > 200);
    for arch in ["sm_75", "sm_90"] {
        let job = Job { name: "names".into(), source: source.clone(), arch: arch.into() };
        compile(&[job]);
    }
}
