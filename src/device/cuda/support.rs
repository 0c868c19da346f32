//! Kernels around the candidates: inputs, reference in double precision, comparison, ceilings, clock. Header-free, and
//! every parameter is 8 bytes wide.
use crate::cuda::fp8;
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
    c_type: &'static str,
    load: &'static str,
    store: &'static str,
}

fn element(dtype: DType) -> Element {
    let of = |c_type, load, store| Element { c_type, load, store };
    match dtype {
        DType::F64 => of("double", "x", "x"),
        DType::F16 => of("unsigned short", "half_to_float(x)", "float_to_half((float)x)"),
        DType::BF16 => of("unsigned short", "bf16_to_float(x)", "float_to_bf16((float)x)"),
        DType::F8E4M3 => of("unsigned char", "e4m3_to_float(x)", "float_to_e4m3((float)x)"),
        DType::F8E5M2 => of("unsigned char", "e5m2_to_float(x)", "float_to_e5m2((float)x)"),
        // All values of a byte are as likely.
        DType::I8 => of("signed char", "x", "(signed char)floor(x * 128.0)"),
        DType::U8 => of("unsigned char", "x", "(unsigned char)floor((x + 1.0) * 128.0)"),
        DType::I32 => of("int", "x", "(int)floor(x * 128.0)"),
        _ => of("float", "x", "(float)x"),
    }
}

/// The text of the kernels around the candidates, for factors and results of these types.
pub fn text(factor: DType, result: DType) -> String {
    let (factor, result) = (element(factor), element(result));
    let mut text = format!("typedef {} factor_t;\ntypedef {} result_t;\n", factor.c_type, result.c_type);
    text.push_str(CONVERSIONS);
    for e4m3 in [true, false] {
        text.push_str(&format!("__device__ {}\n\n__device__ {}\n\n", fp8::to_float(e4m3), fp8::from_float(e4m3)));
    }
    text.push_str(&format!("__device__ double load(factor_t x) {{ return {}; }}\n", factor.load));
    text.push_str(&format!("__device__ factor_t store(double x) {{ return {}; }}\n", factor.store));
    text.push_str(&format!("__device__ double load_result(result_t x) {{ return {}; }}\n", result.load));
    text.push_str(BODY);
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

const BODY: &str = r#"
// Uniform in [-1, 1), by splitmix64.
extern "C" __global__ void fill(factor_t* out, long long n, long long seed)
{
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
        unsigned long long z = (unsigned long long)seed + (unsigned long long)i * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        z ^= z >> 31;
        out[i] = store((double)(z >> 12) * (1.0 / 2251799813685248.0) - 1.0);
    }
}

// Sums of products in double precision, one thread per result. Each axis has an extent and a stride in each operand.
extern "C" __global__ void reference(
    const factor_t* a, const factor_t* b, double* c,
    long long n0, long long a0, long long b0, long long c0, long long n1, long long a1, long long b1, long long c1,
    long long n2, long long a2, long long b2, long long c2, long long n3, long long a3, long long b3, long long c3,
    long long k0, long long ka0, long long kb0, long long k1, long long ka1, long long kb1,
    long long k2, long long ka2, long long kb2)
{
    long long all = n0 * n1 * n2 * n3;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < all; i += (long long)gridDim.x * blockDim.x) {
        long long i3 = i % n3, i2 = i / n3 % n2, i1 = i / n3 / n2 % n1, i0 = i / n3 / n2 / n1;
        const factor_t* x = a + i0 * a0 + i1 * a1 + i2 * a2 + i3 * a3;
        const factor_t* y = b + i0 * b0 + i1 * b1 + i2 * b2 + i3 * b3;
        double sum = 0.0;
        for (long long p = 0; p < k0; ++p) {
            for (long long q = 0; q < k1; ++q) {
                for (long long r = 0; r < k2; ++r) {
                    sum += load(x[p * ka0 + q * ka1 + r * ka2]) * load(y[p * kb0 + q * kb1 + r * kb2]);
                }
            }
        }
        c[i0 * c0 + i1 * c1 + i2 * c2 + i3 * c3] = sum;
    }
}

// Per block: squared distance, squared reference, number of results that are further off than the bound or no numbers.
extern "C" __global__ void compare(
    const result_t* c, const double* expected, double* sums, long long all, double bound)
{
    __shared__ double shared[3][256];
    double distance = 0.0, size = 0.0, bad = 0.0;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < all; i += (long long)gridDim.x * blockDim.x) {
        double r = expected[i];
        double d = load_result(c[i]) - r;
        size += r * r;
        if (d <= bound && d >= -bound) {
            distance += d * d;
        } else {
            bad += 1.0;
        }
    }
    shared[0][threadIdx.x] = distance;
    shared[1][threadIdx.x] = size;
    shared[2][threadIdx.x] = bad;
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
