//! Names: what the language, the machine and the prelude keep for themselves.
use std::collections::BTreeSet;

/// Words that no array or variable of a kernel may be called: keywords of C++, built-in names of CUDA, what the printer
/// itself writes.
const RESERVED: &[&str] = &[
    // C++
    "alignas",
    "alignof",
    "and",
    "and_eq",
    "asm",
    "auto",
    "bitand",
    "bitor",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "char16_t",
    "char32_t",
    "char8_t",
    "class",
    "co_await",
    "co_return",
    "co_yield",
    "compl",
    "concept",
    "const",
    "const_cast",
    "consteval",
    "constexpr",
    "constinit",
    "continue",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "dynamic_cast",
    "else",
    "enum",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "not",
    "not_eq",
    "nullptr",
    "operator",
    "or",
    "or_eq",
    "private",
    "protected",
    "public",
    "register",
    "reinterpret_cast",
    "requires",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "static_cast",
    "std",
    "struct",
    "switch",
    "template",
    "this",
    "thread_local",
    "throw",
    "true",
    "try",
    "typedef",
    "typeid",
    "typename",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "wchar_t",
    "while",
    "xor",
    "xor_eq",
    // CUDA
    "atomicAdd",
    "blockDim",
    "blockIdx",
    "double2",
    "float2",
    "float4",
    "gridDim",
    "int2",
    "int4",
    "threadIdx",
    "uint2",
    "uint4",
    "warpSize",
    // functions that values call
    "abs",
    "erf",
    "erff",
    "exp",
    "expf",
    "fabs",
    "fabsf",
    "fma",
    "fmaf",
    "fmax",
    "fmaxf",
    "fmin",
    "fminf",
    "log",
    "logf",
    "max",
    "min",
    "rsqrt",
    "rsqrtf",
    "sqrt",
    "sqrtf",
    "tanh",
    "tanhf",
    // the printer
    "shared_memory",
    "half_to_float",
    "float_to_half",
    "double_to_half",
    "half_add",
    "half_sub",
    "half_mul",
    "half_fma",
    "bf16_to_float",
    "float_to_bf16",
    "double_to_bf16",
    "bf16_fma",
    "copy_async_4",
    "copy_async_8",
    "copy_async_16",
    "copy_async_4_or_zero",
    "copy_async_8_or_zero",
    "copy_async_16_or_zero",
    "copy_async_commit",
    "copy_async_wait",
    "load_matrix_x1",
    "load_matrix_x2",
    "load_matrix_x4",
    "load_matrix_x1_transposed",
    "load_matrix_x2_transposed",
    "load_matrix_x4_transposed",
    "store_matrix_x1",
    "store_matrix_x2",
    "store_matrix_x4",
    "store_matrix_x1_transposed",
    "store_matrix_x2_transposed",
    "store_matrix_x4_transposed",
    "mma_f16",
    "mma_bf16",
    "mma_tf32",
    "mma_s8",
    "pack_half",
    "pack_bf16",
    "TensorMap",
    "barrier_init",
    "barrier_init_fence",
    "barrier_arrive",
    "barrier_arrive_expect",
    "barrier_wait",
    "load_tile",
    "store_tile",
    "store_tile_commit",
    "store_tile_wait",
    "store_tile_wait_read",
    "async_fence",
    "named_barrier",
    "more_registers",
    "fewer_registers",
    "matrix_descriptor",
    "wgmma_fence",
    "wgmma_commit",
    "wgmma_wait",
];

/// Functions of the C library that the compiler knows: a kernel cannot be called so.
const KNOWN_FUNCTIONS: &[&str] = &[
    "abort", "acos", "asin", "atan", "calloc", "ceil", "clock", "cos", "cosh", "exit", "exp2", "floor", "fmod", "free",
    "j0", "j1", "jn", "labs", "main", "malloc", "memcpy", "memset", "pow", "printf", "round", "sin", "sinh", "tan",
    "trunc", "y0", "y1", "yn",
];

/// The name of a kernel's function in its CUDA text: its own, unless the compiler keeps that for itself.
pub fn function_name(kernel: &str) -> String {
    let name = crate::lower::safe(kernel);
    if RESERVED.contains(&name.as_str()) || KNOWN_FUNCTIONS.contains(&name.as_str()) {
        format!("{name}_kernel")
    } else {
        name
    }
}

/// The names visible at a place.
#[derive(Clone, Default)]
pub(super) struct Names(BTreeSet<String>);

impl Names {
    /// Takes a name as near to the wish as is free.
    pub fn take(&mut self, wish: &str) -> String {
        let mut wish = crate::lower::safe(wish);
        if RESERVED.contains(&wish.as_str()) {
            wish.push('_');
        }
        // The prelude has one such function for each shape.
        if wish.starts_with("wgmma_") {
            wish.insert_str(0, "v_");
        }
        let mut name = wish.clone();
        let mut number = 1;
        while RESERVED.contains(&name.as_str()) || self.0.contains(&name) {
            number += 1;
            name = format!("{wish}{number}");
        }
        self.0.insert(name.clone());
        name
    }
}
