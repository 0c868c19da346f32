//! Host code for compiled kernels: a C header on the CUDA driver API, with a function that launches them, and a PyTorch
//! extension.
mod map;
mod torch;

pub use map::{Map, MapError};
pub use torch::{torch_extension, Extension, Tensor, TorchError};

use crate::cuda::function_name;
use crate::kernel::Kernel;
use crate::lower::safe;
use crate::lower::tensor::{Operand, TensorModule};
use std::fmt::Write;

/// How a kernel is launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Name of the function.
    pub function: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_bytes: u32,
    /// One per parameter.
    pub arguments: Vec<Argument>,
}

/// An argument: a pointer to device memory, or a tensor map on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Name of the pointer; arguments of one name are one buffer.
    pub name: String,
    /// The map.
    pub map: Option<Map>,
}

impl Launch {
    /// The launch of a kernel with arguments of the names.
    pub fn of(kernel: &Kernel, names: &[String]) -> Launch {
        let arguments = kernel
            .params()
            .zip(names)
            .map(|((id, array), name)| Argument {
                name: name.clone(),
                map: kernel.tensor_maps.iter().find(|m| m.array == id).map(|m| Map::of(m, array.dtype)),
            })
            .collect();
        Launch {
            function: function_name(&kernel.name),
            grid: kernel.grid,
            block: kernel.block,
            shared_bytes: kernel.dynamic_shared_bytes(),
            arguments,
        }
    }

    /// The launches of a module.
    pub fn of_module(module: &TensorModule) -> Vec<Launch> {
        let name = |operand: &Operand| match operand {
            Operand::A => "A".to_string(),
            Operand::B => "B".into(),
            Operand::C => "C".into(),
            Operand::Bias => "bias".into(),
            Operand::Residual => "residual".into(),
            Operand::Workspace => "partial".into(),
        };
        let names = |list: &Vec<Operand>| list.iter().map(name).collect::<Vec<_>>();
        module.kernels.iter().zip(&module.args).map(|(k, list)| Launch::of(k, &names(list))).collect()
    }
}

/// A header with `name_launch(module, pointers, stream)`, which launches the kernels in order; `workspace_bytes`: of the
/// buffer `partial`.
pub fn c_header(name: &str, launches: &[Launch], workspace_bytes: u64) -> String {
    let name = safe(name);
    let guard = format!("{}_H", name.to_uppercase());
    let pointers = pointers(launches);
    let mut out = format!(
        "/* Launches {name} by the CUDA driver API; link with libcuda. */
#ifndef {guard}
#define {guard}

#include <cuda.h>

"
    );
    // Writing to a string cannot fail, here and below.
    if workspace_bytes > 0 {
        let size = format!("{}_WORKSPACE_BYTES", name.to_uppercase());
        let _ = writeln!(out, "/* Bytes of the workspace. */\n#define {size} {workspace_bytes}ull\n");
    }
    let list: Vec<String> = pointers.iter().map(|p| format!("CUdeviceptr {p}")).collect();
    let _ = write!(
        out,
        "/* `module` holds the compiled kernels. Pointers are to device memory, aligned to 16 bytes. */
static inline CUresult {name}_launch(CUmodule module, {}, CUstream stream)
{{
    CUresult result = CUDA_SUCCESS;
    CUfunction kernel;
",
        list.join(", ")
    );
    out.push_str(&launched(launches, |_| "module".into()));
    out.push_str("    return result;\n}\n\n#endif\n");
    out
}

/// Names of the buffers, each once, in the order of their first use.
fn pointers(launches: &[Launch]) -> Vec<String> {
    let mut pointers: Vec<String> = Vec::new();
    for argument in launches.iter().flat_map(|l| &l.arguments) {
        let pointer = safe(&argument.name);
        if !pointers.contains(&pointer) {
            pointers.push(pointer);
        }
    }
    pointers
}

/// C that launches the kernels in order and leaves with `result` where one fails; `module` names the module of a kernel.
fn launched(launches: &[Launch], module: impl Fn(usize) -> String) -> String {
    let mut out = String::new();
    for (number, launch) in launches.iter().enumerate() {
        let check = "    if (result != CUDA_SUCCESS) return result;\n";
        let inner = "        if (result != CUDA_SUCCESS) return result;\n";
        let module = module(number);
        // Writing to a string cannot fail, here and below.
        let _ = write!(out, "\n    result = cuModuleGetFunction(&kernel, {module}, \"{}\");\n{check}", launch.function);
        out.push_str("    {\n");
        if launch.shared_bytes > 0 {
            let attribute = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES";
            let _ = write!(
                out,
                "        result = cuFuncSetAttribute(kernel, {attribute}, {});\n{inner}",
                launch.shared_bytes
            );
        }
        let mut arguments = Vec::new();
        for argument in &launch.arguments {
            let pointer = safe(&argument.name);
            match &argument.map {
                None => arguments.push(format!("&{pointer}")),
                Some(map) => {
                    out.push_str(&encoded(&pointer, map));
                    out.push_str(inner);
                    arguments.push(format!("&{pointer}_map"));
                }
            }
        }
        let [gx, gy, gz] = launch.grid;
        let [bx, by, bz] = launch.block;
        let _ = write!(
            out,
            "        void* arguments[] = {{{}}};
        result = cuLaunchKernel(kernel, {gx}, {gy}, {gz}, {bx}, {by}, {bz}, {}, stream, arguments, 0);
{inner}    }}
",
            arguments.join(", "),
            launch.shared_bytes
        );
    }
    out
}

fn encoded(pointer: &str, map: &Map) -> String {
    let (_, dtype) = map.element();
    let list = |numbers: Vec<String>| numbers.join(", ");
    let dims = list(map.dims.iter().map(u64::to_string).collect());
    let pitch = list(map.strides.iter().map(u64::to_string).collect());
    let tile = list(map.tile.iter().map(u32::to_string).collect());
    let steps = vec!["1"; map.dims.len()].join(", ");
    let rank = map.dims.len();
    let swizzle = if map.swizzle { "128B" } else { "NONE" };
    format!(
        "        CUtensorMap {pointer}_map;
        const cuuint64_t {pointer}_dims[] = {{{dims}}};
        const cuuint64_t {pointer}_pitch[] = {{{pitch}}};
        const cuuint32_t {pointer}_box[] = {{{tile}}};
        const cuuint32_t {pointer}_steps[] = {{{steps}}};
        result = cuTensorMapEncodeTiled(&{pointer}_map, CU_TENSOR_MAP_DATA_TYPE_{dtype}, {rank}, (void*){pointer},
                                        {pointer}_dims, {pointer}_pitch, {pointer}_box, {pointer}_steps,
                                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_{swizzle},
                                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
"
    )
}
