//! Kernels around the candidates: inputs, comparison with the reference, ceilings, clock. Header-free, and every parameter
//! is 8 bytes wide.
use crate::cuda::{c_type, fp8};
use satune_ir::DType;

/// Threads per block of all of them.
pub(super) const THREADS: u32 = 256;
/// Blocks of the comparison; each leaves three sums.
pub(super) const COMPARE_BLOCKS: u32 = 1024;
/// Multiply-adds of one thread per iteration of `fma_ceiling`.
pub(super) const FMA_CHAINS: u64 = 8 * 16;
/// Clocks that `clock_rate` waits.
pub(super) const CLOCKS: i64 = 1_000_000;

/// How an element is held, read as a number, and made from a number x in [-1, 1).
struct Element {
    load: &'static str,
    store: &'static str,
    /// What a reference holds of it: floats in double precision, whole numbers as they are.
    wide: &'static str,
}

/// Types of parameters.
const TYPES: [DType; 15] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F8E4M3,
    DType::F8E5M2,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool,
];

fn element(dtype: DType) -> Element {
    let float = |load, store| Element { load, store, wide: "double" };
    let whole = |store| Element { load: "(double)x", store, wide: c_type(dtype) };
    match dtype {
        DType::F64 => float("x", "x"),
        DType::F16 => float("half_to_float(x)", "float_to_half((float)x)"),
        DType::BF16 => float("bf16_to_float(x)", "float_to_bf16((float)x)"),
        DType::F8E4M3 => float("e4m3_to_float(x)", "float_to_e4m3((float)x)"),
        DType::F8E5M2 => float("e5m2_to_float(x)", "float_to_e5m2((float)x)"),
        // All values of a byte are as likely; wider types have as many.
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => whole("floor(x * 128.0)"),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => whole("floor((x + 1.0) * 128.0)"),
        DType::Bool => whole("x >= 0.0"),
        _ => float("x", "(float)x"),
    }
}

/// The name of the kernel that fills a buffer of a type with random numbers.
pub(super) fn fill(dtype: DType) -> String {
    format!("fill_{}", kind(dtype).name())
}

/// The name of the kernel that compares results of a type with the reference's.
pub(super) fn compare(dtype: DType) -> String {
    format!("compare_{}", kind(dtype).name())
}

/// The type by which elements are held and read.
fn kind(dtype: DType) -> DType {
    match dtype {
        DType::TF32 => DType::F32,
        DType::Handle => DType::U64,
        other => other,
    }
}

/// The text of the kernels around the candidates, for parameters of all types.
pub fn text() -> String {
    let mut text = CONVERSIONS.to_string();
    for e4m3 in [true, false] {
        text.push_str(&format!("__device__ {}\n\n__device__ {}\n\n", fp8::to_float(e4m3), fp8::from_float(e4m3)));
    }
    text.push_str(COMMON);
    for dtype in TYPES {
        let Element { load, store, wide } = element(dtype);
        let own = PER_TYPE.replace("LOAD", load).replace("STORE", store).replace("WIDE", wide);
        let own = own.replace("FLOAT", if dtype.is_float() { "1" } else { "0" });
        text.push_str(&own.replace("TYPE", c_type(dtype)).replace("NAME", dtype.name()));
    }
    text.push_str(CEILINGS);
    text
}

const CONVERSIONS: &str = r#"
__device__ float half_to_float(unsigned short h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

__device__ unsigned short float_to_half(float f)
{
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

__device__ float bf16_to_float(unsigned short h) { return __uint_as_float((unsigned int)h << 16); }

// To nearest, ties to even; of numbers.
__device__ unsigned short float_to_bf16(float f)
{
    const unsigned int u = __float_as_uint(f);
    return (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

"#;

const COMMON: &str = r#"
// Uniform in [-1, 1), by splitmix64.
__device__ double uniform(long long seed, long long i)
{
    unsigned long long z = (unsigned long long)seed + (unsigned long long)i * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return (double)(z >> 12) * (1.0 / 2251799813685248.0) - 1.0;
}

// One more result and its reference: squared distance, squared reference, results that are further off than the bound or
// no numbers.
__device__ void note(double* of_thread, double result, double r, double bound)
{
    double d = result - r;
    of_thread[1] += r * r;
    if (d <= bound && d >= -bound) {
        of_thread[0] += d * d;
    } else {
        of_thread[2] += 1.0;
    }
}

// The three sums of a block from those of its threads.
__device__ void finish(const double* of_thread, double* sums)
{
    __shared__ double shared[3][256];
    for (int s = 0; s < 3; ++s) {
        shared[s][threadIdx.x] = of_thread[s];
    }
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            for (int s = 0; s < 3; ++s) {
                shared[s][threadIdx.x] += shared[s][threadIdx.x + half];
            }
        }
    }
    if (threadIdx.x == 0) {
        for (int s = 0; s < 3; ++s) {
            sums[blockIdx.x * 3 + s] = shared[s][0];
        }
    }
}
"#;

const PER_TYPE: &str = r#"
__device__ double load_NAME(TYPE x) { return LOAD; }
__device__ TYPE store_NAME(double x) { return (TYPE)(STORE); }

// Random numbers, or of floating types whole ones from -3 to 2.
extern "C" __global__ void fill_NAME(TYPE* out, long long n, long long seed, long long whole)
{
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
        double x = uniform(seed, i);
        out[i] = store_NAME(FLOAT && whole ? floor(x * 3.0) : x);
    }
}

extern "C" __global__ void compare_NAME(
    const TYPE* results, const WIDE* expected, double* sums, long long n, double bound)
{
    double of_thread[3] = {0.0, 0.0, 0.0};
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
        note(of_thread, load_NAME(results[i]), (double)expected[i], bound);
    }
    finish(of_thread, sums);
}
"#;

const CEILINGS: &str = r#"
// Reads all of a buffer: what was in the L2 before is not there any more, and nothing that waits to be written.
extern "C" __global__ void read_all(const unsigned long long* in, long long n, unsigned long long* out)
{
    unsigned long long sum = 0;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
        sum ^= in[i];
    }
    if (sum == 0x0123456789abcdefull) {
        out[0] = sum;
    }
}

// Eight chains of multiply-adds per thread, 16 long in each iteration.
extern "C" __global__ void fma_ceiling(float* out, long long iterations)
{
    float x[8];
    float factor = 1.0f - 1e-7f * threadIdx.x;
    for (int i = 0; i < 8; ++i) {
        x[i] = i + blockIdx.x;
    }
    for (long long l = 0; l < iterations; ++l) {
        #pragma unroll
        for (int r = 0; r < 16; ++r) {
            #pragma unroll
            for (int i = 0; i < 8; ++i) {
                x[i] = fmaf(x[i], factor, 0.5f);
            }
        }
    }
    float sum = 0.0f;
    for (int i = 0; i < 8; ++i) {
        sum += x[i];
    }
    if (sum == 0.25f) {
        out[0] = sum;
    }
}

// Clocks and nanoseconds that pass while one thread waits.
extern "C" __global__ void clock_rate(unsigned long long* out, long long clocks)
{
    unsigned long long start, end;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    long long first = clock64(), now = first;
    while (now - first < clocks) {
        now = clock64();
    }
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(end));
    out[0] = now - first;
    out[1] = end - start;
}
"#;
