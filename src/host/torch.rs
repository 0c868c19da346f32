//! A PyTorch extension: one C++ file that holds the kernels' text, compiles it for the GPU at hand when it is first
//! called, and launches it on PyTorch's stream.
use super::{launched, pointers, Launch};
use crate::lower::safe;
use satune_ir::DType;
use std::fmt::Write;

/// A parameter of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, which launches use.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents, row-major.
    pub shape: Vec<i64>,
    /// Whether the kernels write it: then the extension makes it and returns it.
    pub written: bool,
    /// Whether they read it first and then write it: then the extension takes it, and changes it in place.
    pub updated: bool,
}

/// What an extension is made of.
#[derive(Clone, Copy, Debug)]
pub struct Extension<'a> {
    /// Name of the function in Python.
    pub name: &'a str,
    /// In the program's order.
    pub tensors: &'a [Tensor],
    /// Name and bytes of each buffer between the kernels.
    pub workspaces: &'a [(String, u64)],
    /// One per kernel.
    pub launches: &'a [Launch],
    /// CUDA text of each kernel.
    pub sources: &'a [String],
}

/// Why a schedule makes no extension.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TorchError {
    /// PyTorch does not have the type.
    #[error("parameter {name} has elements of {dtype:?}, which PyTorch has no type for; use `emit --as c`")]
    Type {
        /// Parameter.
        name: String,
        /// Its type.
        dtype: DType,
    },
    /// The text cannot be put between raw quotes.
    #[error("the CUDA text of kernel {0} holds `)CUDA\"`")]
    Text(usize),
}

fn torch_type(tensor: &Tensor) -> Result<&'static str, TorchError> {
    Ok(match tensor.dtype {
        DType::F8E4M3 => "torch::kFloat8_e4m3fn",
        DType::F8E5M2 => "torch::kFloat8_e5m2",
        DType::F16 => "torch::kFloat16",
        DType::BF16 => "torch::kBFloat16",
        DType::F32 => "torch::kFloat32",
        DType::F64 => "torch::kFloat64",
        DType::I8 => "torch::kInt8",
        DType::U8 => "torch::kUInt8",
        DType::I16 => "torch::kInt16",
        DType::I32 => "torch::kInt32",
        DType::I64 => "torch::kInt64",
        DType::Bool => "torch::kBool",
        DType::TF32 | DType::U16 | DType::U32 | DType::U64 | DType::Handle => {
            return Err(TorchError::Type { name: tensor.name.clone(), dtype: tensor.dtype })
        }
    })
}

const HEAD: &str = r##"#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda.h>
#include <nvrtc.h>
#include <torch/extension.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

"##;

const COMPILE: &str = r##"void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  cuGetErrorString(result, &text);
  TORCH_CHECK(false, what, ": ", text ? text : "an unknown error of the driver");
}

// One module per kernel, compiled for the architecture of the GPU.
std::vector<CUmodule> compile(int major, int minor) {
  const std::string arch =
      "--gpu-architecture=sm_" + std::to_string(major) + std::to_string(minor) + (major >= 9 ? "a" : "");
  const char* const options[] = {arch.c_str(), "--std=c++17"};
  std::vector<CUmodule> modules;
  for (const char* source : SOURCES) {
    nvrtcProgram program;
    TORCH_CHECK(nvrtcCreateProgram(&program, source, "kernel.cu", 0, nullptr, nullptr) == NVRTC_SUCCESS, "NVRTC failed");
    if (nvrtcCompileProgram(program, 2, options) != NVRTC_SUCCESS) {
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

const std::vector<CUmodule>& modules_of(int device) {
  static std::mutex lock;
  static std::map<int, std::vector<CUmodule>> known;
  const std::lock_guard<std::mutex> guard(lock);
  auto found = known.find(device);
  if (found == known.end()) {
    const cudaDeviceProp* gpu = at::cuda::getDeviceProperties(device);
    found = known.emplace(device, compile(gpu->major, gpu->minor)).first;
  }
  return found->second;
}

"##;

/// The text of an extension. Build it with `torch.utils.cpp_extension.load`, linked with `libcuda` and `libnvrtc`.
///
/// # Errors
/// See [`TorchError`].
pub fn torch_extension(what: &Extension<'_>) -> Result<String, TorchError> {
    let name = safe(what.name);
    let mut out = format!(
        "// {name}: made by Satune, for PyTorch. Build it with
//   torch.utils.cpp_extension.load(\"{name}\", [\"this file\"], extra_ldflags=[\"-lcuda\", \"-lnvrtc\"])
{HEAD}const char* const SOURCES[] = {{\n"
    );
    for (number, source) in what.sources.iter().enumerate() {
        if source.contains(")CUDA\"") {
            return Err(TorchError::Text(number));
        }
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(out, "R\"CUDA(\n{source})CUDA\",");
    }
    out.push_str("};\n\n");
    out.push_str(COMPILE);
    let pointers = pointers(what.launches);
    let list: Vec<String> = pointers.iter().map(|p| format!("CUdeviceptr {p}")).collect();
    let _ = write!(
        out,
        "CUresult launch(const std::vector<CUmodule>& modules, {}, CUstream stream) {{
    CUresult result = CUDA_SUCCESS;
    CUfunction kernel;
{}    return result;
}}

}}  // namespace

",
        list.join(", "),
        launched(what.launches, |number| format!("modules[{number}]"))
    );
    let reads: Vec<&Tensor> = what.tensors.iter().filter(|t| !t.written || t.updated).collect();
    let writes: Vec<&Tensor> = what.tensors.iter().filter(|t| t.written && !t.updated).collect();
    let argument = |t: &&Tensor| match t.updated {
        true => format!("torch::Tensor {}", safe(&t.name)),
        false => format!("const torch::Tensor& {}", safe(&t.name)),
    };
    let arguments: Vec<String> = reads.iter().map(argument).collect();
    let result = match writes.len() {
        0 => "void",
        1 => "torch::Tensor",
        _ => "std::vector<torch::Tensor>",
    };
    let updated: Vec<String> = reads.iter().filter(|t| t.updated).map(|t| safe(&t.name)).collect();
    if !updated.is_empty() {
        let _ = writeln!(out, "// Changes {} in place.", updated.join(", "));
    }
    let _ = writeln!(out, "{result} {name}({}) {{", arguments.join(", "));
    for tensor in &reads {
        let (t, dtype, shape) = (safe(&tensor.name), torch_type(tensor)?, extents(&tensor.shape));
        let _ = write!(
            out,
            "  TORCH_CHECK({t}.is_cuda() && {t}.is_contiguous(), \"{t} must be a contiguous tensor on a GPU\");
  TORCH_CHECK({t}.scalar_type() == {dtype} && {t}.sizes() == at::IntArrayRef({shape}),
              \"{t} must have the type {dtype} and the shape {}\");
  TORCH_CHECK(reinterpret_cast<uintptr_t>({t}.data_ptr()) % 16 == 0, \"{t} must be aligned to 16 bytes\");
",
            shape.trim_matches(|c| c == '{' || c == '}')
        );
    }
    if let Some((first, rest)) = reads.split_first() {
        let first = safe(&first.name);
        for other in rest {
            let other = safe(&other.name);
            let _ = writeln!(
                out,
                "  TORCH_CHECK({other}.device() == {first}.device(), \"{other} must be where {first} is\");"
            );
        }
        let _ = writeln!(out, "  const c10::cuda::CUDAGuard guard({first}.device());");
    }
    for tensor in &writes {
        let (t, dtype, shape) = (safe(&tensor.name), torch_type(tensor)?, extents(&tensor.shape));
        let _ = writeln!(
            out,
            "  torch::Tensor {t} = torch::empty({shape}, torch::TensorOptions().dtype({dtype}).device(torch::kCUDA));"
        );
    }
    for (workspace, bytes) in what.workspaces {
        let workspace = safe(workspace);
        let _ = writeln!(out, "  torch::Tensor {workspace} = torch::empty({{{bytes}}}, torch::TensorOptions().dtype(torch::kUInt8).device(torch::kCUDA));");
    }
    let passed: Vec<String> =
        pointers.iter().map(|p| format!("reinterpret_cast<CUdeviceptr>({p}.data_ptr())")).collect();
    let _ = write!(
        out,
        "  check(launch(modules_of(at::cuda::current_device()),
               {},
               at::cuda::getCurrentCUDAStream().stream()),
        \"{name} cannot be launched\");
",
        passed.join(",\n               ")
    );
    let results: Vec<String> = writes.iter().map(|t| safe(&t.name)).collect();
    let _ = match &results[..] {
        [] => writeln!(out, "}}\n"),
        [one] => writeln!(out, "  return {one};\n}}\n"),
        _ => writeln!(out, "  return {{{}}};\n}}\n", results.join(", ")),
    };
    let _ =
        writeln!(out, "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def(\"{name}\", &{name}, \"made by Satune\"); }}");
    Ok(out)
}

/// `{4, 5}`
fn extents(shape: &[i64]) -> String {
    format!("{{{}}}", shape.iter().map(i64::to_string).collect::<Vec<_>>().join(", "))
}
