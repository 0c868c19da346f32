//! Host code for compiled kernels: a C header on the CUDA driver API, with functions that launch them, and a PyTorch
//! operator.
mod calls;
mod map;
mod torch;

pub use map::{Map, MapError};
pub use torch::{torch_extension, Extension, Tensor, TorchError};

use calls::Calls;

use crate::cuda::function_name;
use crate::kernel::Kernel;
use crate::lower::safe;

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
}

/// A header with the type `name_plan`, `name_prepare(plan, modules, buffers...)`, which makes what depends on the buffers alone,
/// and `name_launch(plan, stream)`, which launches the kernels in order; `workspaces`: buffers between kernels,
/// and the bytes of each, which the header says, too.
pub fn c_header(name: &str, launches: &[Launch], workspaces: &[(String, u64)]) -> String {
    let calls = Calls::of(name, launches);
    let name = safe(name);
    let guard = format!("{}_H", name.to_uppercase());
    let size = |(buffer, bytes): &(String, u64)| {
        let of = if workspaces.len() == 1 { "workspace" } else { buffer };
        format!(
            "/* Bytes of `{buffer}`. */\n#define {} {bytes}ull\n\n",
            safe(&format!("{name}_{of}_bytes")).to_uppercase()
        )
    };
    let workspaces: String = workspaces.iter().map(size).collect();
    format!(
        "/* Launches {name} by the CUDA driver API; link with libcuda. */
#ifndef {guard}
#define {guard}

#include <cuda.h>

{workspaces}{}
#endif
",
        calls.text()
    )
}
