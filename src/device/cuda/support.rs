//! Kernels around the candidates: inputs, reference in double precision, comparison, ceilings, clock. Header-free, and
//! every parameter is 8 bytes wide.
use satune_ir::DType;

/// Threads per block of all of them.
pub(super) const THREADS: u32 = 256;
/// Blocks of the comparison; each leaves three sums.
pub(super) const COMPARE_BLOCKS: u32 = 1024;
/// Multiply-adds of one thread per iteration of `fma_ceiling`.
pub(super) const FMA_CHAINS: u64 = 8 * 16;
/// Clocks that `clock_rate` waits.
pub(super) const CLOCKS: i64 = 1_000_000;

/// The text, for factors and results of these types.
pub(super) fn text(factor: DType, result: DType) -> String {
    let (factor_type, load, store) = match factor {
        DType::F64 => ("double", "x", "x"),
        DType::F16 => ("unsigned short", "half_to_float(x)", "float_to_half((float)x)"),
        _ => ("float", "x", "(float)x"),
    };
    let result_type = if result == DType::F64 { "double" } else { "float" };
    format!(
        "typedef {factor_type} factor_t;
typedef {result_type} result_t;

__device__ float half_to_float(unsigned short h)
{{
    float f;
    asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(f) : \"h\"(h));
    return f;
}}

__device__ unsigned short float_to_half(float f)
{{
    unsigned short h;
    asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(h) : \"f\"(f));
    return h;
}}

__device__ double load(factor_t x) {{ return {load}; }}
__device__ factor_t store(double x) {{ return {store}; }}
{BODY}"
    )
}

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

// Sums of products in double precision, one thread per result. Results lie in order: batch, m, n.
extern "C" __global__ void reference(
    const factor_t* a, const factor_t* b, double* c, long long batch, long long m, long long n, long long k,
    long long a_batch, long long a_m, long long a_k, long long b_batch, long long b_n, long long b_k)
{
    long long all = batch * m * n;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < all; i += (long long)gridDim.x * blockDim.x) {
        long long column = i % n, row = i / n % m, part = i / n / m;
        const factor_t* x = a + part * a_batch + row * a_m;
        const factor_t* y = b + part * b_batch + column * b_n;
        double sum = 0.0;
        for (long long l = 0; l < k; ++l) {
            sum += load(x[l * a_k]) * load(y[l * b_k]);
        }
        c[i] = sum;
    }
}

// Per block: squared distance, squared reference, number of results that are further off than the bound or no numbers.
extern "C" __global__ void compare(
    const result_t* c, const double* expected, double* sums, long long batch, long long m, long long n,
    long long c_batch, long long c_m, long long c_n, double bound)
{
    __shared__ double shared[3][256];
    double distance = 0.0, size = 0.0, bad = 0.0;
    long long all = batch * m * n;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < all; i += (long long)gridDim.x * blockDim.x) {
        long long column = i % n, row = i / n % m, part = i / n / m;
        double r = expected[i];
        double d = (double)c[part * c_batch + row * c_m + column * c_n] - r;
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
    if (threadIdx.x < 3) {
        sums[blockIdx.x * 3 + threadIdx.x] = shared[threadIdx.x][0];
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
