// A CUDA driver that computes nothing: it answers the calls of the measure worker as a GPU would, or goes wrong in the
// way that SATUNE_FAKE names. Device memory is host memory.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char* mode(void)
{
    const char* m = getenv("SATUNE_FAKE");
    return m ? m : "";
}
static int is(const char* m) { return strcmp(mode(), m) == 0; }
static int poisoned = 0;

// What was asked, for tests that look at it: lines in the file SATUNE_FAKE_LOG.
#define NOTE(...) do { \
    const char* name = getenv("SATUNE_FAKE_LOG"); \
    FILE* file = name ? fopen(name, "a") : 0; \
    if (file) { fprintf(file, __VA_ARGS__); fclose(file); } \
} while (0)

int cuInit(unsigned flags) { return is("init") ? 999 : 0; }
#ifdef OLD
int cuDriverGetVersion(int* v) { *v = 11080; return 0; }
#else
int cuDriverGetVersion(int* v) { *v = 13000; return 0; }
#endif
int cuDeviceGetCount(int* n) { *n = is("none") ? 0 : 1; return 0; }
int cuDeviceGet(int* d, int i) { *d = i; return 0; }
int cuDeviceGetName(char* s, int n, int d) { snprintf(s, n, "Fake GPU"); return 0; }
int cuDeviceTotalMem_v2(size_t* n, int d) { *n = (size_t)1 << 26; return 0; }
int cuDevicePrimaryCtxRetain(void** c, int d) { *c = (void*)1; return 0; }
int cuCtxSetCurrent(void* c) { return 0; }
int cuDeviceGetAttribute(int* v, int what, int d)
{
    switch (what) {
    case 75: *v = 9; break;         // compute capability
    case 76: *v = 0; break;
    case 16: *v = 132; break;       // multiprocessors
    case 13: *v = 1500000; break;   // clock, kHz
    case 36: *v = 2000000; break;   // memory clock, kHz
    case 38: *v = 1 << 20; break;   // L2
    case 97: *v = 232448; break;    // shared memory of a block
    default: return 1;
    }
    return 0;
}
int cuCtxSynchronize(void)
{
    while (is("hang")) sleep(1);
    if (is("illegal")) poisoned = 1;
    return poisoned ? 700 : 0;
}
int cuMemAlloc_v2(uint64_t* p, size_t n)
{
    // It has 256 MiB to give.
    if (is("oom") || n > (size_t)1 << 28) return 2;
    *p = (uint64_t)(uintptr_t)calloc(1, n);
    return *p ? 0 : 2;
}
int cuMemFree_v2(uint64_t p) { free((void*)(uintptr_t)p); return 0; }
int cuMemsetD8Async(uint64_t p, unsigned char v, size_t n, void* s) { memset((void*)(uintptr_t)p, v, n); return 0; }
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t n) { memcpy(to, (void*)(uintptr_t)from, n); return poisoned ? 700 : 0; }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void* s)
{
    NOTE("copy: %zu bytes\n", n);
    memcpy((void*)(uintptr_t)to, (void*)(uintptr_t)from, n);
    return 0;
}
int cuModuleLoadData(void** m, const void* image)
{
    // Machine code, or text that the driver compiles itself.
    if (memcmp(image, "\177ELF", 4) != 0 && memcmp(image, ".version", 8) != 0) return 200;
    *m = (void*)2;
    return 0;
}
int cuModuleUnload(void* m) { return 0; }
int cuModuleGetFunction(void** f, void* m, const char* name)
{
    *f = strdup(name);
    return 0;
}
#ifndef OLD
// Of 132 multiprocessors in parts of 16 and 18: clusters of 8 blocks leave some idle.
struct Config { unsigned grid[3], block[3], shared; void* stream; unsigned* attributes; unsigned count; };
int cuOccupancyMaxActiveClusters(int* clusters, void* f, const struct Config* config)
{
    // The attribute's number, padding, then the cluster's extents.
    if (config->count != 1 || config->attributes[0] != 4) return 1;
    unsigned size = config->attributes[2];
    *clusters = size == 8 ? 14 : 132 / size;
    return 0;
}
#endif
int cuFuncSetAttribute(void* f, int what, int v)
{
    NOTE("%s: attribute %d = %d\n", (char*)f, what, v);
    return what == 8 && v > 0 && v <= 232448 ? 0 : 1;
}
#ifndef OLD
// A map begins with this, then the address; the rest is not set.
#define MAP 0x70616d726f736e74ull
int cuTensorMapEncodeTiled(uint64_t* map, int type, uint32_t rank, void* address, const uint64_t* dims,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave, int swizzle,
                           int promotion, int fill)
{
    NOTE("map: type %d, rank %u, dims", type, rank);
    for (unsigned i = 0; i < rank; ++i) NOTE(" %llu", (unsigned long long)dims[i]);
    NOTE(", strides");
    for (unsigned i = 0; i + 1 < rank; ++i) NOTE(" %llu", (unsigned long long)strides[i]);
    NOTE(", box");
    for (unsigned i = 0; i < rank; ++i) NOTE(" %u by %u", box[i], steps[i]);
    NOTE(", interleave %d, swizzle %d, promotion %d, fill %d\n", interleave, swizzle, promotion, fill);
    if ((uintptr_t)map % 64 != 0 || (uintptr_t)address % 16 != 0 || is("refuses")) return 1;
    map[0] = MAP;
    map[1] = (uint64_t)(uintptr_t)address;
    return 0;
}
int cuTensorMapEncodeIm2col(uint64_t* map, int type, uint32_t rank, void* address, const uint64_t* dims,
                            const uint64_t* strides, const int* lower, const int* upper, uint32_t channels, uint32_t pixels,
                            const uint32_t* steps, int interleave, int swizzle, int promotion, int fill)
{
    NOTE("images: type %d, rank %u, dims", type, rank);
    for (unsigned i = 0; i < rank; ++i) NOTE(" %llu by %u", (unsigned long long)dims[i], steps[i]);
    NOTE(", strides");
    for (unsigned i = 0; i + 1 < rank; ++i) NOTE(" %llu", (unsigned long long)strides[i]);
    NOTE(", corners");
    for (unsigned i = 0; i + 2 < rank; ++i) NOTE(" %d to %d", lower[i], upper[i]);
    NOTE(", %u channels of %u pixels, interleave %d, swizzle %d, promotion %d, fill %d\n", channels, pixels, interleave,
         swizzle, promotion, fill);
    if ((uintptr_t)map % 64 != 0 || (uintptr_t)address % 16 != 0 || is("refuses")) return 1;
    map[0] = MAP;
    map[1] = (uint64_t)(uintptr_t)address;
    return 0;
}
#endif
int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void* stream, void** params, void** extra)
{
    if (gx == 0 || gy == 0 || bx == 0 || bx * by * bz > 1024) return 1;
    // A launch that takes as long as events say, for figures (benches/results/run_pack.md), or far longer.
    if (is("paced")) usleep(50);
    if (is("slow")) usleep(20000);
    if (strncmp(f, "compare_", 8) == 0) {
        NOTE("%s\n", (char*)f);
        double* sums = (double*)(uintptr_t)*(uint64_t*)params[2];
        double bound = *(double*)params[4];
        for (unsigned b = 0; b < gx; ++b) {
            sums[b * 3] = 0.0;
            sums[b * 3 + 1] = 1.0;
            sums[b * 3 + 2] = is("wrong") && isfinite(bound) ? 1.0 : 0.0;
        }
#ifndef OLD
    } else if (strcmp(f, "main_kernel") == 0 && *(uint64_t*)params[0] == MAP) {
        NOTE("%s<<<%u %u %u, %u, %u>>>", (char*)f, gx, gy, gz, bx * by * bz, shared);
        for (int i = 0; i < 3; ++i) NOTE(" %s", *(uint64_t*)params[i] == MAP ? "map" : "pointer");
        NOTE("\n");
#endif
    } else if (strncmp(f, "follow", 6) == 0) {
        // 500 clocks for a load, 25 of shared memory.
        int shared = strcmp(f, "follow_shared") == 0;
        long long steps = *(long long*)params[shared ? 0 : 1];
        *(uint64_t*)(uintptr_t)*(uint64_t*)params[shared ? 1 : 2] = steps * (shared ? 25 : 500);
    } else if (strcmp(f, "clock_rate") == 0) {
        uint64_t* out = (uint64_t*)(uintptr_t)*(uint64_t*)params[0];
        out[0] = 1400000;
        out[1] = 1000000;
    }
    else if (strncmp(f, "fill_", 5) == 0) {
        NOTE("%s: %lld elements\n", (char*)f, *(long long*)params[1]);
    }
    return poisoned ? 700 : 0;
}
int cuEventCreate(void** e, unsigned flags) { *e = (void*)3; return 0; }
int cuEventRecord(void* e, void* s) { return 0; }
int cuEventSynchronize(void* e) { return poisoned ? 700 : 0; }
int cuEventElapsedTime(float* ms, void* a, void* b) { *ms = is("fast") ? 1e-9f : 0.05f; return 0; }
int cuEventElapsedTime_v2(float* ms, void* a, void* b) { return cuEventElapsedTime(ms, a, b); }
int cuEventDestroy_v2(void* e) { return 0; }
int cuGetErrorName(int e, const char** s) { *s = e == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR"; return 0; }
int cuGetErrorString(int e, const char** s) { *s = e == 700 ? "an illegal memory access was encountered" : "an error"; return 0; }
