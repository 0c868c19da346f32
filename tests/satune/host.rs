//! C headers: compiled with a driver that only writes down what it is asked.
use satune::host::{c_header, Launch};
use satune::lower::tensor::*;
use satune_ir::DType;
use std::process::Command;

/// As much of cuda.h as headers use.
pub const DRIVER: &str = r#"
#include <stdio.h>
#include <stdint.h>
typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef uint64_t cuuint64_t;
typedef uint32_t cuuint32_t;
typedef const char *CUfunction;
typedef struct mod *CUmodule;
typedef struct str *CUstream;
typedef struct { _Alignas(64) uint64_t opaque[16]; } CUtensorMap;
enum { CUDA_SUCCESS, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES };
enum { CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    CU_TENSOR_MAP_DATA_TYPE_UINT8 };
enum { CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_128B };
enum { CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };
static CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) { (void)m; *f = name; return 0; }
static inline CUresult cuFuncSetAttribute(CUfunction f, int a, int v) { (void)a; printf("%s shared %d\n", f, v); return 0; }
static inline CUresult cuTensorMapEncodeTiled(CUtensorMap *m, int t, cuuint32_t rank, void *p, const cuuint64_t *d,
    const cuuint64_t *pitch, const cuuint32_t *box, const cuuint32_t *steps, int i, int s, int l, int o)
{
    (void)i; (void)l; (void)o;
    m->opaque[0] = (uint64_t)p;
    printf("map %d of %d: %llu x %llu, pitch %llu, box %u x %u by %u, swizzle %d\n", (int)(uint64_t)p, t, (long long)d[1],
        (long long)d[0], (long long)pitch[0], box[1], box[0], steps[0] * rank, s == CU_TENSOR_MAP_SWIZZLE_128B);
    return 0;
}
static CUresult cuLaunchKernel(CUfunction f, int gx, int gy, int gz, int bx, int by, int bz, int shared, CUstream s,
    void **a, void **e)
{
    (void)s; (void)e;
    printf("%s<<<%d %d %d, %d %d %d, %d>>> %d\n", f, gx, gy, gz, bx, by, bz, shared, (int)*(uint64_t *)a[0]);
    return 0;
}
"#;

/// What the launches ask of the driver.
fn asked(module: &TensorModule, pointers: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let bytes = module.workspace.0 * u64::from(module.workspace.1.bytes());
    std::fs::write(at("gemm.h"), c_header("gemm", &Launch::of_module(module), bytes)).unwrap();
    std::fs::write(at("cuda.h"), DRIVER).unwrap();
    let main = format!("#include \"gemm.h\"\nint main(void) {{ return gemm_launch(0, {pointers}, 0); }}\n");
    std::fs::write(at("main.c"), main).unwrap();
    let flags = ["-std=c11", "-Wall", "-Wextra", "-Wno-int-to-pointer-cast", "-Werror", "-I."];
    let built = Command::new("cc").args(flags).args(["main.c", "-o", "main"]).current_dir(folder.path()).output();
    let built = built.unwrap_or_else(|error| satune_testing::no_compiler(&error));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(at("main")).output().unwrap();
    assert!(ran.status.success());
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn tensor_maps_and_launches_are_what_the_kernel_needs() {
    let plan = WgmmaPlan {
        raster: Raster::rows(16),
        blocks: Some(132),
        store: TileStore::Tma,
        ..WgmmaPlan::plain([128, 256, 64], 2, 3)
    };
    let g = Gemm::plain("gemm", [4096, 8192, 2048], DType::BF16, DType::BF16, "NT");
    let text = asked(&lower_wgmma(&g, &plan).unwrap(), "1, 2, 3");
    assert_eq!(
        text,
        "gemm shared 213040
map 1 of 1: 4096 x 2048, pitch 4096, box 128 x 64 by 2, swizzle 1
map 2 of 1: 8192 x 2048, pitch 4096, box 256 x 64 by 2, swizzle 1
map 3 of 1: 4096 x 8192, pitch 16384, box 64 x 64 by 2, swizzle 1
gemm<<<132 1 1, 384 1 1, 213040>>> 1
"
    );
    // The driver has no type for fp8: its bytes are moved as such.
    let plan = WgmmaPlan { tile: [128, 256, 128], store: TileStore::Direct, ..plan };
    let g = Gemm::plain("gemm", [256, 512, 1024], DType::F8E4M3, DType::F32, "NT");
    let text = asked(&lower_wgmma(&g, &plan).unwrap(), "1, 2, 3");
    assert_eq!(
        text,
        "gemm shared 147504
map 1 of 3: 256 x 1024, pitch 1024, box 128 x 128 by 2, swizzle 1
map 2 of 3: 512 x 1024, pitch 1024, box 256 x 128 by 2, swizzle 1
gemm<<<4 1 1, 384 1 1, 147504>>> 1
"
    );
}

#[test]
fn kernels_of_split_k_follow_each_other() {
    let plan = TensorPlan { split_k: 2, ..TensorPlan::plain([64, 64, 32], [32, 32], satune::kernel::Mma::F16, 3) };
    let g = Gemm::plain("gemm", [64, 128, 512], DType::F16, DType::F16, "NN");
    let text = asked(&lower_mma(&g, &plan).unwrap(), "1, 2, 3, 4");
    assert_eq!(text, "gemm_partial<<<2 1 2, 128 1 1, 0>>> 1\ngemm_sum<<<32 1 1, 256 1 1, 0>>> 3\n");
}

/// As much of PyTorch's, CUDA's and NVRTC's headers as extensions use.
const TORCH: &str = r#"
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>
namespace at { struct IntArrayRef { IntArrayRef(std::initializer_list<int64_t>) {} bool operator==(IntArrayRef) const { return true; } }; }
namespace torch {
enum Type { kFloat16, kBFloat16, kFloat32, kFloat64, kInt8, kUInt8, kInt16, kInt32, kInt64, kBool,
  kFloat8_e4m3fn };
struct Device { bool operator==(Device) const { return true; } };
const Device kCUDA;
struct TensorOptions { TensorOptions dtype(Type) const { return *this; } TensorOptions device(Device) const { return *this; } };
struct Tensor {
  bool is_cuda() const; bool is_contiguous() const; Type scalar_type() const; at::IntArrayRef sizes() const;
  void* data_ptr() const; Device device() const;
};
Tensor empty(at::IntArrayRef, TensorOptions);
}
void torch_check(bool, ...);
template <class... T> void torch_check_any(bool ok, const T&...) { torch_check(ok); }
#define TORCH_CHECK(...) torch_check_any(__VA_ARGS__)
#define TORCH_EXTENSION_NAME extension
struct Module { template <class F> void def(const char*, F, const char*) {} };
#define PYBIND11_MODULE(name, m) void pybind_##m(Module& m)
"#;
const ATEN: &str = r#"
#pragma once
#include <cuda.h>
struct cudaDeviceProp { int major, minor; };
namespace at { namespace cuda {
struct Stream { CUstream stream() const; };
Stream getCurrentCUDAStream(); int current_device(); const cudaDeviceProp* getDeviceProperties(int);
} }
"#;
const NVRTC: &str = r#"
#pragma once
#include <cstddef>
typedef struct prog* nvrtcProgram; enum nvrtcResult { NVRTC_SUCCESS };
nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*);
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*);
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*);
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t*); nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*);
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t*); nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*);
"#;

/// The extension's own code and its use of the interfaces are compiled; PyTorch itself is not at hand.
#[test]
fn pytorch_extensions_compile_against_the_interfaces_that_they_use() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let satune = |args: &[&str]| {
        let run = Command::new(crate::faults::SATUNE).args(args).arg("--out").arg(&out).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap()
    };
    // Two kernels and a workspace, and one kernel.
    for (operator, kernels) in [("gemm:16,16,8192,f32", 2), ("gemm:32,48,16,f16,NT", 1), ("gemm:64,64,256,e4m3,NT", 1)]
    {
        satune(&["explore", operator, "--top", "1", "--no-compile", "--device", "none"]);
        let text = satune(&["emit", "1", "--as", "torch"]);
        assert_eq!(text.matches("R\"CUDA(").count(), kernels, "{text}");
        assert_eq!(text.matches("cuLaunchKernel").count(), kernels);
        assert!(text.contains("(const torch::Tensor& A, const torch::Tensor& B) {"), "{text}");
        let at = |name: &str| folder.path().join(name);
        for folder in ["torch", "ATen/cuda", "c10/cuda"] {
            std::fs::create_dir_all(at(folder)).unwrap();
        }
        let guard = "#pragma once\n#include <torch/extension.h>\nnamespace c10 { namespace cuda { struct CUDAGuard { CUDAGuard(torch::Device) {} ~CUDAGuard() {} }; } }\n";
        let driver = DRIVER.replace("_Alignas(64)", "alignas(64)").replace("typedef const char *CUfunction", "typedef const char *CUfunction;\nstatic inline int cuGetErrorString(int, const char **) { return 0; }\nstruct mod; static inline int cuModuleLoadData(struct mod **, const void *) { return 0; }\ntypedef const char *Unused");
        for (name, text) in [
            ("torch/extension.h", TORCH),
            ("ATen/cuda/CUDAContext.h", ATEN),
            ("c10/cuda/CUDAGuard.h", guard),
            ("cuda.h", &format!("#pragma once\n{driver}")),
            ("nvrtc.h", NVRTC),
            ("extension.cpp", &text),
        ] {
            std::fs::write(at(name), text).unwrap();
        }
        let flags = ["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-unused", "-Werror", "-I."];
        let built = Command::new("c++").args(flags).arg("extension.cpp").current_dir(folder.path()).output();
        let built = built.unwrap_or_else(|error| satune_testing::no_compiler(&error));
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    }
}
