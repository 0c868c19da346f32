//! A PyTorch operator: one C++ file that holds the kernels' text, compiles it for the GPU at hand when it is first called,
//! and launches it on PyTorch's stream. It is built without a CUDA toolkit: the driver and NVRTC are opened by their
//! sonames, NVRTC also where the wheels that PyTorch comes with have it.
mod forms;
mod text;

use super::calls::{identifiers, Calls};
use super::Launch;
use crate::lower::safe;
use forms::Forms;
use satune_ir::DType;
use std::fmt::Write;
use text::{CHECKS, FIND, HEAD, LOAD, MAPS};

/// A parameter of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, which launches use.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents, row-major.
    pub shape: Vec<i64>,
    /// Whether the kernels write it: then the operator makes it and returns it, or is given it as `out`.
    pub written: bool,
    /// Whether they read it first and then write it: then the operator takes it, and changes it in place.
    pub updated: bool,
}

/// What an operator is made of.
#[derive(Clone, Copy, Debug)]
pub struct Extension<'a> {
    /// Its name in `torch.ops.satune`.
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

/// Why a schedule makes no operator.
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
    /// A kernel takes something that is not given.
    #[error("kernel argument {0} is neither a parameter nor a workspace")]
    Argument(String),
}

/// Names that arguments cannot have in Python or in a schema, and those of the C++ functions' own variables.
const TAKEN: &[&str] = &[
    "None",
    "True",
    "False",
    "and",
    "as",
    "assert",
    "async",
    "await",
    "break",
    "class",
    "continue",
    "def",
    "del",
    "elif",
    "else",
    "except",
    "finally",
    "for",
    "from",
    "global",
    "if",
    "import",
    "in",
    "is",
    "lambda",
    "nonlocal",
    "not",
    "or",
    "pass",
    "raise",
    "return",
    "try",
    "while",
    "with",
    "yield",
    "inf",
    "nan",
    "self",
    "PARAMETERS",
    "fits",
    "made",
    "run",
];

fn torch_type(tensor: &Tensor) -> Result<&'static str, TorchError> {
    Ok(match tensor.dtype {
        DType::F8E4M3 => "at::kFloat8_e4m3fn",
        DType::F8E5M2 => "at::kFloat8_e5m2",
        DType::F16 => "at::kHalf",
        DType::BF16 => "at::kBFloat16",
        // In memory a float.
        DType::F32 | DType::TF32 => "at::kFloat",
        DType::F64 => "at::kDouble",
        DType::I8 => "at::kChar",
        DType::U8 => "at::kByte",
        DType::I16 => "at::kShort",
        DType::I32 => "at::kInt",
        DType::I64 => "at::kLong",
        DType::U16 => "at::kUInt16",
        DType::U32 => "at::kUInt32",
        DType::U64 => "at::kUInt64",
        DType::Bool => "at::kBool",
        DType::Handle => return Err(TorchError::Type { name: tensor.name.clone(), dtype: tensor.dtype }),
    })
}

/// The text of an operator `torch.ops.satune.NAME`, with a kernel for CUDA and one for tensors without data, each in a form
/// that makes its results and one (`NAME.out`) that is given them.
///
/// # Errors
/// See [`TorchError`].
pub fn torch_extension(what: &Extension<'_>) -> Result<String, TorchError> {
    let name = safe(what.name);
    let calls = Calls::of(what.name, what.launches);
    let names: Vec<&str> = what.tensors.iter().map(|t| t.name.as_str()).collect();
    let variables = identifiers(&names, TAKEN);
    let forms = Forms::of(&name, what.tensors, &variables);
    let mut out = forms.usage();
    out.push_str(HEAD);
    out.push_str(if calls.has_maps() { MAPS } else { "" });
    out.push_str("\nconst char* const SOURCES[] = {\n");
    // Writing to a string cannot fail, here and below.
    for (number, source) in what.sources.iter().enumerate() {
        if source.contains(")CUDA\"") {
            return Err(TorchError::Text(number));
        }
        let _ = writeln!(out, "R\"CUDA(\n{source})CUDA\",");
    }
    out.push_str("};\n");
    out.push_str(FIND);
    for library in ["driver cu", "compiler nvrtc"] {
        let (handle, begin) = library.split_once(' ').unwrap_or((library, ""));
        let declared = format!("{HEAD}{}", if calls.has_maps() { MAPS } else { "" });
        let functions = declared.lines().filter_map(|l| l.split_once("(*")?.1.split_once(')'));
        for (function, _) in functions.filter(|(f, _)| f.starts_with(begin)) {
            let _ = writeln!(out, "  find({handle}, \"{function}\", {function});");
        }
    }
    out.push_str(LOAD);
    out.push_str(&calls.text());
    out.push_str("\nstruct Parameter {\n  const char* name;\n  at::ScalarType type;\n  std::vector<int64_t> shape;\n  bool written;\n};\n\nconst Parameter PARAMETERS[] = {\n");
    for (tensor, variable) in what.tensors.iter().zip(&variables) {
        let shape: Vec<String> = tensor.shape.iter().map(i64::to_string).collect();
        let (dtype, shape) = (torch_type(tensor)?, shape.join(", "));
        let _ = writeln!(out, "    {{\"{variable}\", {dtype}, {{{shape}}}, {}}},", tensor.written);
    }
    out.push_str("};\n");
    out.push_str(CHECKS);
    out.push_str(&run(what, &calls, &name)?);
    out.push_str(&forms.functions());
    out.push_str("}  // namespace\n\n");
    out.push_str(&forms.registered());
    Ok(out)
}

/// C++ that launches on given tensors.
fn run(what: &Extension<'_>, calls: &Calls<'_>, name: &str) -> Result<String, TorchError> {
    let (count, buffers) = (what.tensors.len(), calls.buffers.len());
    let mut workspaces = String::new();
    for (number, (_, bytes)) in what.workspaces.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(
            workspaces,
            "  const at::Tensor workspace{number} = at::empty({{{bytes}}}, tensors[0].options().dtype(at::kByte));"
        );
    }
    let address = |buffer: &&str| {
        let tensor = what.tensors.iter().position(|t| t.name == **buffer).map(|at| format!("address(tensors[{at}])"));
        let workspace =
            || what.workspaces.iter().position(|(w, _)| w == *buffer).map(|at| format!("address(workspace{at})"));
        tensor.or_else(workspace).ok_or_else(|| TorchError::Argument(buffer.to_string()))
    };
    let addresses = calls.buffers.iter().map(address).collect::<Result<Vec<String>, _>>()?;
    let passed: Vec<String> = (0..buffers).map(|i| format!("buffers[{i}]")).collect();
    Ok(format!(
        "using Buffers = std::array<CUdeviceptr, {buffers}>;

// What is loaded on a GPU, and the plans for buffers that were seen: PyTorch gives the same ones out again.
struct Loaded {{
  std::vector<CUmodule> modules;
  std::map<Buffers, {name}_plan> plans;
}};

void launch(int device, const Buffers& buffers) {{
  static std::mutex lock;
  static std::map<int, Loaded> known;
  const std::lock_guard<std::mutex> guard(lock);
  auto loaded = known.find(device);
  if (loaded == known.end()) loaded = known.emplace(device, Loaded{{load(device), {{}}}}).first;
  CUcontext context = nullptr;
  check(cuCtxGetCurrent(&context), \"the driver has no context\");
  if (context == nullptr) {{
    CUdevice gpu;
    check(cuDeviceGet(&gpu, device), \"there is no such GPU\");
    check(cuDevicePrimaryCtxRetain(&context, gpu), \"the GPU has no context\");
    check(cuCtxSetCurrent(context), \"the GPU's context cannot be used\");
  }}
  auto& plans = loaded->second.plans;
  auto plan = plans.find(buffers);
  if (plan == plans.end()) {{
    if (plans.size() >= 256) plans.clear();
    {name}_plan fresh;
    check({name}_prepare(&fresh, loaded->second.modules.data(), {passed}),
          \"{name} cannot be prepared\");
    plan = plans.emplace(buffers, fresh).first;
  }}
  void* stream = nullptr;
  TORCH_CHECK(aoti_torch_get_current_cuda_stream(device, &stream) == 0, \"PyTorch has no stream\");
  check({name}_launch(&plan->second, static_cast<CUstream>(stream)), \"{name} cannot be launched\");
}}

void run(const std::array<at::Tensor, {count}>& tensors) {{
  for (size_t i = 0; i < tensors.size(); ++i) {{
    const at::Tensor& tensor = tensors[i];
    const Parameter& wanted = PARAMETERS[i];
    fits(tensor, wanted);
    TORCH_CHECK(tensor.is_cuda() && tensor.device() == tensors[0].device(), wanted.name,
                \" must be on the GPU that the other tensors are on\");
    TORCH_CHECK(tensor.is_contiguous(), wanted.name, \" must be contiguous\");
    TORCH_CHECK(address(tensor) % 16 == 0, wanted.name, \" must be aligned to 16 bytes\");
    for (size_t other = 0; wanted.written && other < tensors.size(); ++other) {{
      if (other != i) at::assert_no_overlap(tensor, tensors[other]);
    }}
  }}
  const at::DeviceGuard guard(tensors[0].device());
{workspaces}  launch(tensors[0].device().index(), {{{addresses}}});
}}

",
        passed = passed.join(", "),
        addresses = addresses.join(", "),
    ))
}
