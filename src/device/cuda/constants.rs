//! Rates and latencies of a GPU's parts, each by a small kernel: what a model of its time counts with. Header-free, and every
//! parameter is 8 bytes wide.
use super::driver::{Arg, Buffer, Error, Gpu, Module};
use super::support::{CLOCKS, FMA_CHAINS, THREADS};
use super::timing::{between, BLOCK};
use crate::cuda::{self, mma_text, operands};
use crate::device::protocol::{Constants, Sustained};
use crate::store::median;
use satune_ir::term::tensor::Mma;
use std::fmt::Write;
use std::ops::RangeInclusive;

/// Columns of the `wgmma` that are tried.
const COLUMNS: [u32; 3] = [64, 128, 256];
/// Products along k that one iteration of a `wgmma` kernel queues.
const STEPS: u32 = 4;
/// Chains of products of a warp: enough that none waits for its own last one.
const CHAINS: u32 = 8;
/// Loads of 16 bytes that a thread starts together.
const TOGETHER: u64 = 8;
/// Blocks of a cluster.
const CLUSTERS: [u32; 3] = [2, 4, 8];
/// How long a rate must be sustained, ms, and launches that may take.
const LONG_MS: f64 = 1000.0;
const LAUNCHES: usize = 2000;

/// The text of all kernels; those that an architecture does not have are left out where it is compiled for.
pub fn text() -> String {
    let mut text = MEMORY.to_string();
    for cluster in CLUSTERS {
        text.push_str(&CLUSTER.replace("SIZE", &cluster.to_string()));
    }
    Mma::SYNC.iter().for_each(|op| text.push_str(&product(*op)));
    COLUMNS.iter().for_each(|n| text.push_str(&wgmma(*n)));
    text
}

/// [`CHAINS`] chains of products per warp, where machine code has the instruction.
fn product(op: Mma) -> String {
    let Ok(sync) = op.sync() else { return String::new() };
    let (name, [a, b], c) = (op.name(), op.fragment_words().map(|words| words as u32), op.sum_words());
    let (sum, letter, _) = cuda::sums(op.accumulator());
    let native = |archs: &RangeInclusive<u32>| {
        let [first, last] = [archs.start(), archs.end()].map(|arch| arch.saturating_mul(10).min(i32::MAX as u32));
        format!("__CUDA_ARCH__ >= {first} && __CUDA_ARCH__ <= {last}")
    };
    let native = sync.archs.iter().map(native).collect::<Vec<_>>().join(" || ");
    let sums: Vec<String> = (0..c).map(|i| format!("\"+{letter}\"(sums[i][{i}])")).collect();
    let factors =
        |name: &str, count: u32| -> Vec<String> { (0..count).map(|i| format!("\"r\"({name}[{i}])")).collect() };
    let [first, second] = [factors("a", a).join(", "), factors("b", b).join(", ")];
    format!(
        r#"
#if {native}
// {CHAINS} chains of products per warp.
extern "C" __global__ void {name}({sum}* out, long long rounds)
{{
    unsigned int a[{a}], b[{b}];
    {sum} sums[{CHAINS}][{c}] = {{}};
    for (int i = 0; i < {a}; ++i) a[i] = noise(threadIdx.x * 8 + i);
    for (int i = 0; i < {b}; ++i) b[i] = noise(threadIdx.x * 8 + 4 + i);
    for (long long r = 0; r < rounds; ++r) {{
        #pragma unroll
        for (int i = 0; i < {CHAINS}; ++i) {{
            asm volatile("{text}"
                : {outputs} : {first}, {second});
        }}
    }}
    {sum} sum = 0;
    for (int i = 0; i < {CHAINS}; ++i) for (int j = 0; j < {c}; ++j) sum += sums[i][j];
    if (sum == ({sum})0.25) out[0] = sum;
}}
#endif
"#,
        text = mma_text(op),
        outputs = sums.join(", "),
    )
}

/// Floating-point operations of one round of a warp.
fn flops(op: Mma) -> f64 {
    16.0 * 8.0 * f64::from(op.k()) * 2.0 * f64::from(CHAINS)
}

/// Two warpgroups, each with a tile of A of its own, both with the same of B, all in shared memory.
fn wgmma(n: u32) -> String {
    let sums: Vec<String> = (0..n / 2).map(|i| format!("\"+f\"(sums[{i}])")).collect();
    let mut products = String::new();
    for step in 0..STEPS {
        // Rows of 128 bytes, swizzled: a step along k is 32 bytes on.
        let _ = write!(
            products,
            r#"
        asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {{{all}}}, %{a}, %{b}, 1, 1, 1, 0, 0;"
            : {outputs} : "l"(a + {at}), "l"(b + {at}));"#,
            all = operands(0, n / 2),
            a = n / 2,
            b = n / 2 + 1,
            outputs = sums.join(", "),
            at = 2 * step,
        );
    }
    format!(
        r#"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
extern "C" __global__ void __launch_bounds__({THREADS}, 1) wgmma_f16_n{n}(float* out, long long rounds)
{{
    __shared__ __align__(1024) unsigned int tiles[(2 * 64 + {n}) * 32];
    for (int i = threadIdx.x; i < (2 * 64 + {n}) * 32; i += {THREADS}) tiles[i] = noise(i);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const unsigned int begin = (unsigned int)__cvta_generic_to_shared(tiles);
    const unsigned long long rows = ((unsigned long long)1 << 62) | ((unsigned long long)64 << 32) | ((unsigned long long)1 << 16);
    const unsigned long long a = rows | ((begin + threadIdx.x / 128 * 8192) >> 4), b = rows | ((begin + 16384) >> 4);
    float sums[{half}];
    for (int i = 0; i < {half}; ++i) sums[i] = 0.0f;
    for (long long r = 0; r < rounds; ++r) {{
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");{products}
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    }}
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    float sum = 0.0f;
    for (int i = 0; i < {half}; ++i) sum += sums[i];
    if (sum == 0.25f) out[0] = sum;
}}
#endif
"#,
        half = n / 2,
    )
}

const MEMORY: &str = r#"
// Two numbers of 16 bits from 1 to 2, of either sign, that differ from place to place: power depends on bits that change.
__device__ unsigned int noise(unsigned int i)
{
    i = (i ^ 61u) ^ (i >> 16);
    i = (i + (i << 3)) * 0x27d4eb2du;
    return ((i ^ (i >> 15)) & 0x83ff83ffu) | 0x3c003c00u;
}

extern "C" __global__ void nothing() {}

// Each element is the address of the one that is so far behind it, in a ring.
extern "C" __global__ void chain(unsigned long long* out, long long n, long long stride)
{
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
        out[i] = (unsigned long long)(out + (i + stride) % n);
    }
}

// Clocks of so many loads, each of the address that the one before it found; past L1.
extern "C" __global__ void follow(const unsigned long long* from, long long steps, unsigned long long* out)
{
    unsigned long long at = (unsigned long long)from;
    const long long begin = clock64();
    for (long long i = 0; i < steps; ++i) {
        asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(at) :: "memory");
    }
    out[1] = at;
    out[0] = clock64() - begin;
}

extern "C" __global__ void follow_shared(long long steps, unsigned long long* out)
{
    __shared__ unsigned int next[1024];
    const unsigned int first = (unsigned int)__cvta_generic_to_shared(next);
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
        next[i] = first + (i + 33) % 1024 * 4;
    }
    __syncthreads();
    unsigned int at = first;
    const long long begin = clock64();
    for (long long i = 0; i < steps; ++i) {
        asm volatile("ld.shared.u32 %0, [%0];" : "+r"(at) :: "memory");
    }
    if (threadIdx.x == 0) {
        out[1] = at;
        out[0] = clock64() - begin;
    }
}

// Reads n times 16 bytes, so often, past L1.
extern "C" __global__ void read_often(const uint4* in, long long n, long long rounds, unsigned int* out)
{
    unsigned int sum = 0;
    for (long long r = 0; r < rounds; ++r) {
        #pragma unroll 8
        for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
            uint4 v;
            asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(in + i));
            sum ^= v.x ^ v.y ^ v.z ^ v.w;
        }
    }
    if (sum == 0x01234567u) {
        out[0] = sum;
    }
}

extern "C" __global__ void write_all(uint4* out, long long n)
{
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
        out[i] = make_uint4(1, 2, 3, 4);
    }
}

// Clocks that one block takes for so many times 8 loads of 16 bytes of each thread, without conflicts.
extern "C" __global__ void read_shared(long long rounds, unsigned long long* out)
{
    __shared__ uint4 tile[1024];
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
        tile[i] = make_uint4(i, i, i, i);
    }
    __syncthreads();
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(tile + threadIdx.x);
    const long long begin = clock64();
    for (long long r = 0; r < rounds; ++r) {
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            uint4 v;
            // What nobody uses ptxas leaves out, unless it is volatile.
            asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at + i % 3 * 4096));
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        out[0] = clock64() - begin;
    }
}
"#;

const CLUSTER: &str = r#"
#if __CUDA_ARCH__ >= 900
// Clocks of so many barriers of a cluster.
extern "C" __global__ void __cluster_dims__(SIZE, 1, 1) cluster_SIZE(long long rounds, unsigned long long* out)
{
    const long long begin = clock64();
    for (long long r = 0; r < rounds; ++r) {
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        out[0] = clock64() - begin;
    }
}
#endif
"#;

/// What is measured with.
struct Bench<'g> {
    gpu: &'g Gpu,
    support: &'g Module,
    module: &'g Module,
    /// What kernels leave.
    out: Buffer,
}

impl Bench<'_> {
    /// Time of something, ms.
    fn once(&self, run: &mut dyn FnMut() -> Result<(), Error>) -> Result<f64, Error> {
        between(&self.gpu.event()?, &self.gpu.event()?, run)
    }

    /// Median of ten times, ms, after two to warm up.
    fn median(&self, mut run: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
        let mut times = Vec::new();
        for i in 0..12 {
            let ms = self.once(&mut run)?;
            times.extend((i >= 2).then_some(ms));
        }
        Ok(median(&times))
    }

    /// The same of what takes the GPU less than its driver to start: both events and all between them wait in the queue behind a
    /// kernel that takes longer.
    fn queued(&self, mut run: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
        let busy = self.support.kernel("clock_rate", 0)?;
        let mut times = Vec::new();
        for _ in 0..10 {
            busy.launch([1, 1, 1], [1, 1, 1], &[Arg::Buffer(&self.out), Arg::Int(CLOCKS)])?;
            times.push(self.once(&mut run)?);
        }
        Ok(median(&times))
    }

    /// The number that a kernel left, per step of it.
    fn clocks(&self, steps: i64) -> Result<f64, Error> {
        let left: Vec<u64> = self.out.read(1)?;
        Ok(left.first().copied().unwrap_or(0) as f64 / steps as f64)
    }

    /// The clock now, MHz.
    fn clock_mhz(&self) -> Result<f64, Error> {
        let arguments = [Arg::Buffer(&self.out), Arg::Int(CLOCKS)];
        self.support.kernel("clock_rate", 0)?.launch([1, 1, 1], [1, 1, 1], &arguments)?;
        let counted: Vec<u64> = self.out.read(2)?;
        let (clocks, ns) = (counted.first().copied().unwrap_or(0), counted.get(1).copied().unwrap_or(0));
        Ok(clocks as f64 / (ns.max(1)) as f64 * 1e3)
    }

    /// Clocks of a load in a ring of so many bytes, whose elements follow each other at a distance; the second time, when pages are
    /// known. `anew`: the ring is written again before, so that of one far larger than L2 only the end is still there.
    fn latency(&self, (bytes, anew): (u64, bool), stride: i64, steps: i64) -> Result<f64, Error> {
        let ring = self.gpu.alloc(bytes)?;
        let elements = Arg::Int((bytes / 8) as i64);
        let chain = self.module.kernel("chain", 0)?;
        let follow = self.module.kernel("follow", 0)?;
        for time in 0..2 {
            if time == 0 || anew {
                chain.launch([1024, 1, 1], BLOCK, &[Arg::Buffer(&ring), elements, Arg::Int(stride)])?;
            }
            follow.launch([1, 1, 1], [1, 1, 1], &[Arg::Buffer(&ring), Arg::Int(steps), Arg::Buffer(&self.out)])?;
        }
        self.clocks(steps)
    }

    /// A rate at first and after a second of it. `flops`: of one round of a block. None where the kernel is not there.
    fn sustained(&self, module: &Module, name: &str, grid: u32, flops: f64) -> Result<Option<Sustained>, Error> {
        let Ok(kernel) = module.kernel(name, 0) else { return Ok(None) };
        let ran = |rounds: i64| {
            self.once(&mut || kernel.launch([grid, 1, 1], BLOCK, &[Arg::Buffer(&self.out), Arg::Int(rounds)]))
        };
        ran(64)?;
        // Some 4 ms each.
        let rounds = (64.0 * 4.0 / ran(64)?.max(1e-3)).clamp(64.0, 1e7) as i64;
        let mut times = Vec::new();
        while times.len() < 8 || (times.iter().sum::<f64>() < LONG_MS && times.len() < LAUNCHES) {
            times.push(ran(rounds)?);
        }
        let tflops = |times: &[f64]| flops * f64::from(grid) * rounds as f64 / median(times).max(1e-9) * 1e-9;
        let (first, last) = (&times[..4], &times[times.len() - 4..]);
        let clock_mhz = self.clock_mhz()?;
        Ok(Some(Sustained { name: name.into(), first_tflops: tflops(first), tflops: tflops(last), clock_mhz }))
    }
}

/// Measures all of them. `module`: of [`text`].
pub(super) fn measure(gpu: &Gpu, support: &Module, module: &Module) -> Result<Constants, Error> {
    let info = gpu.info()?;
    let bench = Bench { gpu, support, module, out: gpu.alloc(1 << 16)? };
    let out = Arg::Buffer(&bench.out);
    let gbs = |bytes: u64, ms: f64| bytes as f64 / ms.max(1e-9) / 1e6;
    let nothing = module.kernel("nothing", 0)?;
    let empty_us = 1e3 * bench.queued(|| nothing.launch([1, 1, 1], [32, 1, 1], &[]))?;
    let grid = info.sms * 8;
    let (read, write) = (module.kernel("read_often", 0)?, module.kernel("write_all", 0)?);
    let often = |from: &Buffer, rounds: i64| {
        let words = Arg::Int((from.bytes() / 16) as i64);
        bench.median(|| read.launch([grid, 1, 1], BLOCK, &[Arg::Buffer(from), words, Arg::Int(rounds), out]))
    };
    let (read_gbs, write_gbs) = {
        let large = gpu.alloc((info.memory_bytes / 8).min(1 << 30))?;
        let words = Arg::Int((large.bytes() / 16) as i64);
        let write_ms = bench.median(|| write.launch([grid, 1, 1], BLOCK, &[Arg::Buffer(&large), words]))?;
        (gbs(large.bytes(), often(&large, 1)?), gbs(large.bytes(), write_ms))
    };
    // A quarter of L2 stays there.
    let (l2_gbs, l2_mhz) = {
        let (near, rounds) = (gpu.alloc((info.l2_bytes / 4).max(1 << 18))?, 200);
        let ms = often(&near, rounds)?;
        (gbs(near.bytes() * rounds.unsigned_abs(), ms), bench.clock_mhz()?)
    };
    // Rings: eight times L2, of which the first 16 MB are read, each step 16 KB on; and a part of L2 that is far more than L1.
    let far = (info.l2_bytes * 8).clamp(1 << 25, (info.memory_bytes / 4).max(1 << 25));
    let latency_dram = bench.latency((far, true), 2053, 1000)?;
    let latency_l2 = bench.latency(((info.l2_bytes / 8).clamp(1 << 19, 1 << 22), false), 16, 20_000)?;
    let steps = 10_000;
    module.kernel("follow_shared", 0)?.launch([1, 1, 1], [32, 1, 1], &[Arg::Int(steps), out])?;
    let latency_shared = bench.clocks(steps)?;
    module.kernel("read_shared", 0)?.launch([info.sms, 1, 1], BLOCK, &[Arg::Int(steps), out])?;
    let of_block = (u64::from(THREADS) * 16 * TOGETHER) as f64;
    let shared_bytes_per_clock = of_block / bench.clocks(steps)?.max(1e-9);
    let mut cluster_barrier = Vec::new();
    for size in CLUSTERS {
        let Ok(kernel) = module.kernel(&format!("cluster_{size}"), 0) else { continue };
        kernel.launch([size, 1, 1], [128, 1, 1], &[Arg::Int(steps), out])?;
        cluster_barrier.push((size, bench.clocks(steps)?));
    }
    let warps = f64::from(THREADS / 32);
    let fma = 2.0 * f64::from(THREADS) * FMA_CHAINS as f64;
    let mut sustained = Vec::from_iter(bench.sustained(support, "fma_ceiling", grid, fma)?);
    for op in Mma::SYNC {
        sustained.extend(bench.sustained(module, &op.name(), 2 * info.sms, flops(op) * warps)?);
    }
    for n in COLUMNS {
        let flops = 2.0 * 64.0 * f64::from(n) * 16.0 * f64::from(STEPS) * warps / 4.0;
        sustained.extend(bench.sustained(module, &format!("wgmma_f16_n{n}"), info.sms, flops)?);
    }
    Ok(Constants {
        empty_us,
        read_gbs,
        write_gbs,
        l2_gbs,
        l2_mhz,
        latency_dram,
        latency_l2,
        latency_shared,
        shared_bytes_per_clock,
        cluster_barrier,
        sustained,
    })
}
