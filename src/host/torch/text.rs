//! The parts of an operator's C++ that are the same in all.

/// Headers, types and the functions that are found when the operator is first called.
pub(super) const HEAD: &str = r##"#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

namespace {

// As much of cuda.h and nvrtc.h as is used. The functions are found when the operator is first called.
using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using nvrtcProgram = struct nvrtcProgram_st*;
constexpr CUresult CUDA_SUCCESS = 0;
constexpr int CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;
constexpr int CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75;
constexpr int CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76;

CUresult (*cuCtxGetCurrent)(CUcontext*);
CUresult (*cuCtxSetCurrent)(CUcontext);
CUresult (*cuDeviceGet)(CUdevice*, int);
CUresult (*cuDeviceGetAttribute)(int*, int, CUdevice);
CUresult (*cuDevicePrimaryCtxRetain)(CUcontext*, CUdevice);
CUresult (*cuFuncSetAttribute)(CUfunction, int, int);
CUresult (*cuGetErrorString)(CUresult, const char**);
CUresult (*cuLaunchKernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                           void**, void**);
CUresult (*cuModuleGetFunction)(CUfunction*, CUmodule, const char*);
CUresult (*cuModuleLoadData)(CUmodule*, const void*);
int (*nvrtcCreateProgram)(nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*);
int (*nvrtcCompileProgram)(nvrtcProgram, int, const char* const*);
int (*nvrtcDestroyProgram)(nvrtcProgram*);
int (*nvrtcGetProgramLogSize)(nvrtcProgram, size_t*);
int (*nvrtcGetProgramLog)(nvrtcProgram, char*);
int (*nvrtcGetCUBINSize)(nvrtcProgram, size_t*);
int (*nvrtcGetCUBIN)(nvrtcProgram, char*);
// Of libtorch_cuda.
int (*aoti_torch_get_current_cuda_stream)(int32_t, void**);
"##;

/// What is needed of it only for tensor maps.
pub(super) const MAPS: &str = r##"using cuuint64_t = uint64_t;
using cuuint32_t = uint32_t;
struct alignas(64) CUtensorMap { uint64_t opaque[16]; };
enum { CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_DATA_TYPE_UINT16, CU_TENSOR_MAP_DATA_TYPE_UINT32,
       CU_TENSOR_MAP_DATA_TYPE_INT32, CU_TENSOR_MAP_DATA_TYPE_UINT64, CU_TENSOR_MAP_DATA_TYPE_INT64,
       CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
       CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 };
enum { CU_TENSOR_MAP_INTERLEAVE_NONE = 0, CU_TENSOR_MAP_SWIZZLE_NONE = 0, CU_TENSOR_MAP_SWIZZLE_32B = 1,
       CU_TENSOR_MAP_SWIZZLE_64B = 2, CU_TENSOR_MAP_SWIZZLE_128B = 3,
       CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };
CUresult (*cuTensorMapEncodeTiled)(CUtensorMap*, int, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                                   const cuuint32_t*, const cuuint32_t*, int, int, int, int);
CUresult (*cuTensorMapEncodeIm2col)(CUtensorMap*, int, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const int*,
                                    const int*, cuuint32_t, cuuint32_t, const cuuint32_t*, int, int, int, int);
"##;

/// Where they are found; behind it come lines `find(library, name, function)`.
pub(super) const FIND: &str = r##"
template <class F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  TORCH_CHECK(function != nullptr, name, " is not to be found: the driver or PyTorch is too old for this operator");
}

// NVRTC where the loader finds it, or in the wheels beside PyTorch's.
void* nvrtc(const std::string& torch_lib) {
  const std::string packages = torch_lib + "/../../nvidia/";
  for (const char* version : {"13", "12", "11.2"}) {
    const std::string file = std::string("libnvrtc.so.") + version;
    for (const std::string& folder : {std::string(), packages + "cu13/lib/", packages + "cuda_nvrtc/lib/", torch_lib + "/"}) {
      if (void* library = dlopen((folder + file).c_str(), RTLD_NOW)) return library;
    }
  }
  TORCH_CHECK(false, "NVRTC (libnvrtc.so) is not to be found; install the wheel nvidia-cuda-nvrtc, or name its folder in LD_LIBRARY_PATH");
  return nullptr;
}

void find_all() {
  void* torch = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  TORCH_CHECK(torch != nullptr, "this PyTorch is not one of CUDA");
  find(torch, "aoti_torch_get_current_cuda_stream", aoti_torch_get_current_cuda_stream);
  Dl_info info;
  std::string folder;
  if (dladdr(reinterpret_cast<void*>(aoti_torch_get_current_cuda_stream), &info) != 0) folder = info.dli_fname;
  folder.resize(folder.find_last_of('/') == std::string::npos ? 0 : folder.find_last_of('/'));
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  TORCH_CHECK(driver != nullptr, "the CUDA driver (libcuda.so.1) is not to be found");
  void* compiler = nvrtc(folder);
"##;

/// The end of that; errors, and what compiles.
pub(super) const LOAD: &str = r##"}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  cuGetErrorString(result, &text);
  TORCH_CHECK(false, what, ": ", text ? text : "an unknown error of the driver");
}

// One module per kernel, compiled for the architecture of the GPU.
std::vector<CUmodule> load(int number) {
  static const bool found = (find_all(), true);
  (void)found;
  CUdevice device;
  int major = 0, minor = 0;
  check(cuDeviceGet(&device, number), "there is no such GPU");
  check(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device), "its architecture is not known");
  check(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device), "its architecture is not known");
  CUcontext context = nullptr;
  check(cuDevicePrimaryCtxRetain(&context, device), "the GPU has no context");
  check(cuCtxSetCurrent(context), "the GPU's context cannot be used");
  const std::string arch =
      "--gpu-architecture=sm_" + std::to_string(major) + std::to_string(minor) + (major >= 9 ? "a" : "");
  const char* const options[] = {arch.c_str(), "--std=c++17"};
  std::vector<CUmodule> modules;
  for (const char* source : SOURCES) {
    nvrtcProgram program;
    TORCH_CHECK(nvrtcCreateProgram(&program, source, "kernel.cu", 0, nullptr, nullptr) == 0, "NVRTC failed");
    if (nvrtcCompileProgram(program, 2, options) != 0) {
      size_t length = 0;
      nvrtcGetProgramLogSize(program, &length);
      std::string log(length, '\0');
      nvrtcGetProgramLog(program, &log[0]);
      nvrtcDestroyProgram(&program);
      TORCH_CHECK(false, "NVRTC refuses the kernel: ", log);
    }
    size_t length = 0;
    nvrtcGetCUBINSize(program, &length);
    std::string code(length, '\0');
    nvrtcGetCUBIN(program, &code[0]);
    nvrtcDestroyProgram(&program);
    CUmodule module;
    check(cuModuleLoadData(&module, code.data()), "the compiled kernel cannot be loaded");
    modules.push_back(module);
  }
  return modules;
}

"##;

/// What is asked of tensors.
pub(super) const CHECKS: &str = r##"
// Type and shape, which tensors without data have too.
void fits(const at::Tensor& tensor, const Parameter& wanted) {
  bool same = tensor.scalar_type() == wanted.type && tensor.dim() == static_cast<int64_t>(wanted.shape.size());
  for (size_t i = 0; same && i < wanted.shape.size(); ++i) {
    same = tensor.sym_size(static_cast<int64_t>(i)) == wanted.shape[i];
  }
  TORCH_CHECK(same, wanted.name, " must have the type ", wanted.type, " and the shape ", at::IntArrayRef(wanted.shape));
}

at::Tensor made(const Parameter& wanted, const at::Tensor& beside) {
  return at::empty(wanted.shape, beside.options().dtype(wanted.type));
}

CUdeviceptr address(const at::Tensor& tensor) { return reinterpret_cast<CUdeviceptr>(tensor.data_ptr()); }

"##;
