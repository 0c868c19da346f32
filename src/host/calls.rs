//! The calls of the driver that launch kernels, as C that C++ takes too: what depends on the buffers alone (functions, shared
//! memory, tensor maps) is made once, and a launch is a launch.
use super::{Launch, Map};
use crate::lower::safe;
use std::fmt::Write;

/// Names of the functions' own variables, and of what cuda.h defines as macros.
const OWN: [&str; 11] =
    ["plan", "modules", "stream", "result", "arguments", "dims", "pitches", "tile", "lower", "upper", "steps"];

/// Kernels that are launched one after the other, under a name.
pub(super) struct Calls<'l> {
    /// Of the functions and the type.
    name: String,
    launches: &'l [Launch],
    /// Of each launch, the buffers that its arguments are, by number.
    arguments: Vec<Vec<usize>>,
    /// Names of the buffers, each once, in the order of their first use.
    pub buffers: Vec<&'l str>,
}

impl<'l> Calls<'l> {
    pub fn of(name: &str, launches: &'l [Launch]) -> Calls<'l> {
        let mut buffers: Vec<&str> = Vec::new();
        let mut number = |name: &'l str| {
            buffers.iter().position(|b| *b == name).unwrap_or_else(|| {
                buffers.push(name);
                buffers.len() - 1
            })
        };
        let arguments = launches.iter().map(|l| l.arguments.iter().map(|a| number(&a.name)).collect()).collect();
        Calls { name: safe(name), launches, arguments, buffers }
    }

    /// Whether kernels take tensor maps.
    pub fn has_maps(&self) -> bool {
        self.maps().next().is_some()
    }

    /// The tensor maps, and numbers of their buffers.
    fn maps(&self) -> impl Iterator<Item = (usize, &Map)> {
        let arguments = self.launches.iter().flat_map(|l| &l.arguments);
        arguments.zip(self.arguments.iter().flatten()).filter_map(|(a, buffer)| Some((*buffer, a.map.as_ref()?)))
    }

    /// The buffers as names of variables.
    fn variables(&self) -> Vec<String> {
        identifiers(&self.buffers, &OWN)
    }

    /// The type `NAME_plan`, `NAME_prepare`, which fills one, and `NAME_launch`.
    pub fn text(&self) -> String {
        let name = &self.name;
        let variables = self.variables();
        let kernels: Vec<&str> = self.launches.iter().map(|l| l.function.as_str()).collect();
        let maps = self.maps().count();
        let maps_field = if maps > 0 { format!("    CUtensorMap maps[{maps}];\n") } else { String::new() };
        let parameters: Vec<String> = variables.iter().map(|v| format!("CUdeviceptr {v}")).collect();
        format!(
            "/* What launches need beyond a stream. */
typedef struct {{
    CUfunction kernels[{count}]; /* {kernels} */
    CUdeviceptr buffers[{buffers}]; /* {list} */
{maps_field}}} {name}_plan;

/* Fills a plan, which is good for as long as the modules are loaded and the buffers stay where they are. `modules`: of each
   kernel the module that holds it, in the order above. Buffers are in device memory, aligned to 16 bytes. */
static inline CUresult {name}_prepare({name}_plan* plan, const CUmodule* modules,
                                      {parameters})
{{
    CUresult result = CUDA_SUCCESS;
{prepared}    return result;
}}

/* Launches the kernels of a plan in order. */
static inline CUresult {name}_launch({name}_plan* plan, CUstream stream)
{{
    CUresult result = CUDA_SUCCESS;
{launched}    return result;
}}
",
            count = self.launches.len(),
            kernels = kernels.join(", "),
            buffers = self.buffers.len(),
            list = variables.join(", "),
            parameters = parameters.join(", "),
            prepared = self.prepared(&variables),
            launched = self.launched(),
        )
    }

    fn prepared(&self, variables: &[String]) -> String {
        let check = "    if (result != CUDA_SUCCESS) return result;\n";
        let mut out = String::new();
        // Writing to a string cannot fail, here and below.
        for (number, variable) in variables.iter().enumerate() {
            let _ = writeln!(out, "    plan->buffers[{number}] = {variable};");
        }
        for (number, launch) in self.launches.iter().enumerate() {
            let (function, bytes) = (&launch.function, launch.shared_bytes);
            let _ = write!(
                out,
                "    result = cuModuleGetFunction(&plan->kernels[{number}], modules[{number}], \"{function}\");\n{check}"
            );
            if bytes > 0 {
                let attribute = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES";
                let _ = write!(
                    out,
                    "    result = cuFuncSetAttribute(plan->kernels[{number}], {attribute}, {bytes});\n{check}"
                );
            }
        }
        for (number, (buffer, map)) in self.maps().enumerate() {
            out.push_str(&encoded(number, &variables[buffer], map));
            out.push_str(check);
        }
        out
    }

    fn launched(&self) -> String {
        let mut out = String::new();
        let mut map = 0;
        for (number, launch) in self.launches.iter().enumerate() {
            let mut arguments = Vec::new();
            for (argument, buffer) in launch.arguments.iter().zip(&self.arguments[number]) {
                if argument.map.is_some() {
                    arguments.push(format!("&plan->maps[{map}]"));
                    map += 1;
                } else {
                    arguments.push(format!("&plan->buffers[{buffer}]"));
                }
            }
            let ([gx, gy, gz], [bx, by, bz], shared) = (launch.grid, launch.block, launch.shared_bytes);
            // Writing to a string cannot fail.
            let _ = write!(
                out,
                "    {{
        void* arguments[] = {{{}}};
        result = cuLaunchKernel(plan->kernels[{number}], {gx}, {gy}, {gz}, {bx}, {by}, {bz}, {shared}, stream, arguments, 0);
        if (result != CUDA_SUCCESS) return result;
    }}
",
                arguments.join(", ")
            );
        }
        out
    }
}

/// C names of things, each its own and none that is taken.
pub(super) fn identifiers(names: &[&str], taken: &[&str]) -> Vec<String> {
    let mut known: Vec<String> = Vec::new();
    for name in names {
        let mut name = safe(name);
        while known.contains(&name) || taken.contains(&name.as_str()) {
            name.push('_');
        }
        known.push(name);
    }
    known
}

fn encoded(number: usize, buffer: &str, map: &Map) -> String {
    let (_, dtype) = map.element();
    let list = |numbers: Vec<String>| numbers.join(", ");
    let dims = list(map.dims.iter().map(u64::to_string).collect());
    let pitches = list(map.strides.iter().map(u64::to_string).collect());
    let tile = list(map.tile.iter().map(u32::to_string).collect());
    let steps = list(map.steps().iter().map(u32::to_string).collect());
    let rank = map.dims.len();
    let swizzle = map.span().map_or("NONE".into(), |span| format!("{span}B"));
    let (mode, boxes, passed) = match &map.image {
        None => ("Tiled", format!("const cuuint32_t tile[] = {{{tile}}};"), "tile".to_string()),
        Some(image) => {
            let corners = |list: &[i32]| list.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
            let (lower, upper) = (corners(&image.lower), corners(&image.upper));
            let boxes = format!("const int lower[] = {{{lower}}};\n        const int upper[] = {{{upper}}};");
            ("Im2col", boxes, format!("lower, upper, {tile}"))
        }
    };
    format!(
        "    {{
        const cuuint64_t dims[] = {{{dims}}};
        const cuuint64_t pitches[] = {{{pitches}}};
        {boxes}
        const cuuint32_t steps[] = {{{steps}}};
        result = cuTensorMapEncode{mode}(&plan->maps[{number}], CU_TENSOR_MAP_DATA_TYPE_{dtype}, {rank}, (void*){buffer},
                                        dims, pitches, {passed}, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                        CU_TENSOR_MAP_SWIZZLE_{swizzle}, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    }}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_names_of_their_own() {
        assert_eq!(identifiers(&["A", "a b", "a_b", "plan", "plan_"], &OWN), ["A", "a_b", "a_b_", "plan_", "plan__"]);
    }
}
