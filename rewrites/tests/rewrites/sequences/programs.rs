//! Small programs, in a short form.
use satune_ir::{tvmscript, Program};
use std::sync::LazyLock;

/// Small programs: parameters, and the body of the function.
pub const SCRIPTS: &[(&str, &str, &str)] = &[
    ("matmul", "A: (8, 6), B: (6, 8), C: (8, 8)", "SSR C[vi, vj] 8 8 6 | T.float32(0) | C[vi, vj] + A[vi, vk] * B[vk, vj]"),
    ("gemv", "A: (8, 12), B: (12,), C: (8,)", "SR C[vi] 8 12 | T.float32(0) | C[vi] + A[vi, vj] * B[vj]"),
    ("bmm", "A: (2, 4, 6), B: (2, 6, 4), C: (2, 4, 4)", "SSSR C[vi, vj, vk] 2 4 4 6 | T.float32(0) | C[vi, vj, vk] + A[vi, vj, vl] * B[vi, vl, vk]"),
    ("conv1d", "A: (12, 3), B: (3, 3, 4), C: (10, 4)", "SSRR C[vi, vj] 10 4 3 3 | T.float32(0) | C[vi, vj] + A[vi + vk, vl] * B[vk, vl, vj]"),
    (
        "conv2d",
        "A: (5, 5, 2), B: (3, 3, 2), C: (5, 5); P: (7, 7, 2)",
        "SSS P[vi, vj, vk] 7 7 2 | | T.if_then_else(1 <= vi and vi < 6 and 1 <= vj and vj < 6, A[vi - 1, vj - 1, vk], T.float32(0))
SSRRR C[vi, vj] 5 5 3 3 2 | T.float32(0) | C[vi, vj] + P[vi + vk, vj + vl, vm] * B[vk, vl, vm]",
    ),
    (
        "chain",
        "A: (8, 6), D: (8, 6); B: (8, 6), C: (8, 6)",
        "SS B[vi, vj] 8 6 | | A[vi, vj] * T.float32(2)
SS C[vi, vj] 8 6 | | B[vi, vj] + T.float32(1)
SS D[vi, vj] 8 6 | | T.max(C[vi, vj], T.float32(0))",
    ),
    (
        "softmax_like",
        "A: (4, 8), O: (4, 8); X: (4,), E: (4, 8), S: (4,)",
        "SR X[vi] 4 8 | T.float32(-3.4028234663852886e+38) | T.max(X[vi], A[vi, vj])
SS E[vi, vj] 4 8 | | (A[vi, vj] - X[vi]) * T.float32(2)
SR S[vi] 4 8 | T.float32(0) | S[vi] + E[vi, vj]
SS O[vi, vj] 4 8 | | E[vi, vj] * T.float32(4) - S[vi]",
    ),
    (
        "mean",
        "A: (6, 8), M: (6,); S: (6,)",
        "SR S[vi] 6 8 | T.float32(0) | S[vi] + A[vi, vj]
S M[vi] 6 | | S[vi] * T.float32(0.125)",
    ),
    (
        "two_consumers",
        "A: (8, 6), C: (8, 6), D: (6, 8); B: (8, 6)",
        "SS B[vi, vj] 8 6 | | A[vi, vj] * T.float32(2)
SS C[vi, vj] 8 6 | | B[vi, vj] + T.float32(1)
SS D[vi, vj] 6 8 | | B[vj, vi] - T.float32(1)",
    ),
    ("transpose", "A: (8, 6), B: (6, 8)", "SS B[vi, vj] 6 8 | | A[vj, vi]"),
    ("ragged", "A: (7, 5), B: (5, 11), C: (7, 11)", "SSR C[vi, vj] 7 11 5 | T.float32(0) | C[vi, vj] + A[vi, vk] * B[vk, vj]"),
    (
        "in_place",
        "A: (12,), B: (12,)",
        "S B[vi] 12 | | A[vi] * T.float32(2)
S A[vi] 12 | | A[vi] + T.float32(1)
S B[vi] 12 | | B[vi] - A[vi]",
    ),
    ("int8", "A: (6, 8) int8, B: (5, 8) int8, C: (6, 5) int32", "SSR C[vi, vj] 6 5 8 | 0 | C[vi, vj] + T.Cast(\"int32\", A[vi, vk]) * T.Cast(\"int32\", B[vj, vk])"),
    (
        "epilogue",
        "A: (8, 6), B: (6, 8), D: (8, 8), R: (8,); C: (8, 8)",
        "SSR C[vi, vj] 8 8 6 | T.float32(0) | C[vi, vj] + A[vi, vk] * B[vk, vj]
SS D[vi, vj] 8 8 | | T.max(C[vi, vj] + A[vi, 0], T.float32(0))
SR R[vi] 8 8 | T.float32(0) | R[vi] + C[vi, vj]",
    ),
    (
        "pool",
        "A: (9, 5), B: (4, 5)",
        "SSR B[vi, vj] 4 5 3 | T.float32(-3.4028234663852886e+38) | T.max(B[vi, vj], A[vi * 2 + vk, vj])",
    ),
    (
        "pad1d",
        "A: (9,), W: (3,), C: (9,); P: (11,)",
        "S P[vi] 11 | | T.if_then_else(1 <= vi and vi < 10, A[vi - 1], T.float32(0))
SR C[vi] 9 3 | T.float32(0) | C[vi] + P[vi + vj] * W[vj]",
    ),
    (
        "two_sums",
        "A: (6, 10), T: (1,); S: (6,)",
        "SR S[vi] 6 10 | T.float32(0) | S[vi] + A[vi, vj]
SR T[vi] 1 6 | T.float32(0) | T[vi] + S[vj]",
    ),
    (
        "norm",
        "A: (5, 7), O: (5, 7); X: (5,), Y: (5,)",
        "SR X[vi] 5 7 | T.float32(0) | X[vi] + A[vi, vj]
SR Y[vi] 5 7 | T.float32(0) | Y[vi] + A[vi, vj] * A[vi, vj]
SS O[vi, vj] 5 7 | | A[vi, vj] * Y[vi] - X[vi]",
    ),
    (
        "flatten",
        "A: (6, 4), C: (24,); B: (6, 4)",
        "SS B[vi, vj] 6 4 | | A[vi, vj] + T.float32(1)
S C[vi] 24 | | B[vi // 4, vi % 4] * T.float32(2)",
    ),
    (
        "gather",
        "A: (10,), I: (7,) int32, C: (7, 3); B: (10,)",
        "S B[vi] 10 | | A[vi] * T.float32(2)
SS C[vi, vj] 7 3 | | B[I[vi]] + A[vj]",
    ),
    (
        "interleave",
        "A: (6,), C: (12,); B: (12,)",
        "S B[vi * 2] 6 | | A[vi]
S B[vi * 2 + 1] 6 | | A[vi] * T.float32(3)
S C[vi] 12 | | B[vi] + T.float32(1)",
    ),
    (
        "bias_relu",
        "A: (7, 6), B: (6, 9), V: (9,), D: (7, 9); C: (7, 9), E: (7, 9)",
        "SSR C[vi, vj] 7 9 6 | T.float32(0) | C[vi, vj] + A[vi, vk] * B[vk, vj]
SS E[vi, vj] 7 9 | | C[vi, vj] + V[vj]
SS D[vi, vj] 7 9 | | T.max(E[vi, vj], T.float32(0))",
    ),
    (
        "blur",
        "A: (14,), C: (10,); B: (12,)",
        "S B[vi] 12 | | A[vi] + A[vi + 1] + A[vi + 2]
S C[vi] 10 | | B[vi] + B[vi + 1] + B[vi + 2]",
    ),
    (
        "two_gemms",
        "A: (5, 6), B: (6, 4), D: (4, 7), E: (5, 7); C: (5, 4)",
        "SSR C[vi, vj] 5 4 6 | T.float32(0) | C[vi, vj] + A[vi, vk] * B[vk, vj]
SSR E[vi, vj] 5 7 4 | T.float32(0) | E[vi, vj] + C[vi, vk] * D[vk, vj]",
    ),
];

/// TVMScript of the short forms above: one nest a line, `kinds store extents | init | value`.
fn script(params: &str, body: &str) -> String {
    let (given, own) = params.split_once("; ").unwrap_or((params, ""));
    let buffers = |list: &str| -> Vec<(String, String, String)> {
        let parts = list.replace("), ", ")\n").replace("int8, ", "int8\n").replace("int32, ", "int32\n");
        let one = |part: &str| {
            let (name, rest) = part.split_once(": ").expect("a name");
            let (shape, dtype) = rest.split_once(')').expect("a shape");
            let dtype = if dtype.trim().is_empty() { "float32" } else { dtype.trim() };
            (name.to_string(), format!("{shape})"), dtype.to_string())
        };
        parts.lines().filter(|p| !p.is_empty()).map(one).collect()
    };
    let signature: Vec<String> =
        buffers(given).iter().map(|(n, s, t)| format!("{n}: T.Buffer({s}, \"{t}\")")).collect();
    let mut out = format!("@T.prim_func(s_tir=True)\ndef main({}):\n", signature.join(", "));
    for (name, shape, dtype) in buffers(own) {
        out += &format!("    {name} = T.sblock_alloc_buffer({shape}, \"{dtype}\")\n");
    }
    for (number, line) in body.lines().enumerate() {
        let mut parts = line.splitn(3, '|').map(str::trim);
        let (head, init, value) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        let (kinds, rest) = head.split_once(' ').unwrap();
        let (store, extents) = rest.split_once("] ").unwrap();
        let extents: Vec<&str> = extents.split(' ').collect();
        let names = &["i", "j", "k", "l", "m"][..extents.len()];
        let vars: Vec<String> = names.iter().map(|n| format!("v{n}")).collect();
        let loops = names.join(", ");
        let range = if names.len() == 1 { "range" } else { "T.grid" };
        let left = if names.len() == 1 {
            format!("vi = T.axis.{}({}, i)", if kinds == "S" { "spatial" } else { "reduce" }, extents[0])
        } else {
            format!("{} = T.axis.remap(\"{kinds}\", [{loops}])", vars.join(", "))
        };
        out += &format!("    for {loops} in {range}({}):\n", extents.join(", "));
        let name = store.split('[').next().unwrap();
        let name = if body.lines().take(number).any(|l| l.contains(&format!(" {name}["))) { "Again" } else { name };
        out += &format!("        with T.sblock(\"{name}\"):\n            {left}\n");
        if !init.is_empty() {
            out += &format!("            with T.init():\n                {store}] = {init}\n");
        }
        out += &format!("            {store}] = {value}\n");
    }
    out
}

/// The programs, with their names.
pub static PROGRAMS: LazyLock<Vec<(&str, Program)>> = LazyLock::new(|| {
    let parse = |(name, params, body): &(&'static str, &str, &str)| {
        let text = script(params, body);
        (*name, tvmscript::parse(&text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}")))
    };
    SCRIPTS.iter().map(parse).collect()
});
