//! Small programs, and index maps for their iterators.

/// A program: its name, parameters, and body.
pub const PROGRAMS: &[(&str, &str, &str)] = &[
    (
        "copy",
        "A: (8, 6), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vi, vj] + T.float32(1)",
    ),
    (
        "transpose",
        "A: (6, 8), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vj, 7 - vi]",
    ),
    (
        "row",
        "A: (8, 6), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vi // 2, 3]",
    ),
    (
        "window",
        "A: (9, 7), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vi, vj] + A[vi + 1, vj + 1]",
    ),
    (
        "padded",
        "A: (8, 6), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = T.if_then_else(1 <= vi, A[vi - 1, vj], T.float32(0))",
    ),
    (
        "unit",
        "A: (8, 1), C: (8, 1)",
        "
for i, j in T.grid(8, 1):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vi, vj]",
    ),
    (
        "twice",
        "A: (8, 6), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi // 2, vj] = A[vi, vj]",
    ),
    (
        "matmul",
        "A: (8, 6), C: (8, 4), D: (6, 4)",
        "
for i, j, k in T.grid(8, 4, 6):
    with T.sblock(\"C\"):
        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
        with T.init():
            C[vi, vj] = T.float32(0)
        C[vi, vj] = C[vi, vj] + A[vi, vk] * D[vk, vj]",
    ),
    (
        "ragged",
        "A: (8, 6), C: (8, 6)",
        "
for i_0, i_1, j in T.grid(3, 3, 6):
    with T.sblock(\"C\"):
        vi = T.axis.spatial(8, i_0 * 3 + i_1)
        vj = T.axis.spatial(6, j)
        T.where(i_0 * 3 + i_1 < 8)
        C[vi, vj] = A[vi, vj]",
    ),
    (
        "fused",
        "A: (8, 6), C: (8, 6)",
        "
for f in range(48):
    with T.sblock(\"C\"):
        vi = T.axis.spatial(8, f // 6)
        vj = T.axis.spatial(6, f % 6)
        C[vi, vj] = A[vi, vj]",
    ),
    (
        "chain",
        "A: (8, 6), C: (8, 6); B: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"B\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        B[vi, vj] = A[vi, vj] * T.float32(2)
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = B[7 - vi, vj] + T.float32(1)",
    ),
    (
        "joined",
        "A: (8, 6), C: (8, 6); B: (8, 6)",
        "
for i in range(8):
    for j in range(6):
        with T.sblock(\"B\"):
            vi, vj = T.axis.remap(\"SS\", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
    for j in range(6):
        with T.sblock(\"C\"):
            vi, vj = T.axis.remap(\"SS\", [i, j])
            C[vi, vj] = B[vi, 5 - vj] + T.float32(1)",
    ),
    (
        "three",
        "A: (8, 6), C: (8, 6), D: (8, 6); B: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"B\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        B[vi, vj] = A[vi, vj] * T.float32(2)
for i, j in T.grid(8, 6):
    with T.sblock(\"D\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        D[vi, vj] = B[vi, vj] + T.float32(1)
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = B[vi, vj] - T.float32(1)",
    ),
    (
        "overwritten",
        "A: (8, 6), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[7 - vi, vj]
for i, j in T.grid(8, 6):
    with T.sblock(\"B\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        A[vi, vj] = A[vi, vj] + T.float32(1)",
    ),
    (
        "in_place",
        "C: (12,)",
        "
for i in range(2):
    with T.sblock(\"C\"):
        T.reads(C[0:12])
        T.writes(C[0:12])
        for k in range(12):
            C[k] = C[k] + T.float32(1)",
    ),
    (
        "part",
        "C: (12,)",
        "
for i in range(1):
    with T.sblock(\"C\"):
        T.reads(C[0:8])
        T.writes(C[2:6])
        for k in range(4):
            C[k + 2] = C[k + 4] + T.float32(1)",
    ),
    (
        "shift",
        "C: (12,)",
        "
for i in range(1):
    with T.sblock(\"C\"):
        T.reads(C[0:4])
        T.writes(C[4:12])
        for k in range(4):
            C[k + 4] = C[k] + T.float32(1)",
    ),
    (
        "update",
        "C: (12,)",
        "
for i in range(12):
    with T.sblock(\"C\"):
        vi = T.axis.spatial(12, i)
        C[vi] = C[vi] + T.float32(1)",
    ),
    (
        "resize",
        "A: (4, 3), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vi // 4 + vj // 4, vj // 2]",
    ),
    (
        "resize_mean",
        "A: (4, 3), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        T.reads(A[0:4, 0:3])
        T.writes(C[vi, vj])
        C[vi, vj] = A[vi // 4 + vj // 4, vj // 4] + A[vj // 4 + vi // 4, vj // 2] * T.Cast(\"float32\", vi + vj)",
    ),
    (
        "two_stores",
        "A: (8,), C: (16,)",
        "
for i in range(8):
    with T.sblock(\"C\"):
        vi = T.axis.spatial(8, i)
        T.reads(A[0:8])
        T.writes(C[vi * 2:vi * 2 + 2])
        C[vi * 2] = A[7 - vi]
        C[vi * 2 + 1] = A[7 - vi] + A[vi // 2]",
    ),
    (
        "units",
        "A: (1, 6), C: (1, 1)",
        "
for i, j, k in T.grid(1, 1, 6):
    with T.sblock(\"C\"):
        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
        with T.init():
            C[vi, vj] = T.float32(0)
        C[vi, vj] = C[vi, vj] + A[vi, vk]",
    ),
    (
        "all_units",
        "A: (1, 1), C: (1, 1)",
        "
for i, j in T.grid(1, 1):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vi, vj]",
    ),
    (
        "sum_of_one",
        "A: (8, 1), C: (8,)",
        "
for i, k in T.grid(8, 1):
    with T.sblock(\"C\"):
        vi, vk = T.axis.remap(\"SR\", [i, k])
        with T.init():
            C[vi] = T.float32(0)
        C[vi] = C[vi] + A[vi, vk]",
    ),
    (
        "reordered",
        "A: (8, 6), C: (8, 6)",
        "
for j, i in T.grid(6, 8):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vi, vj]",
    ),
];

/// Index maps, good ones and bad ones.
pub const MAPS: &[&str] = &[
    "lambda i, j: (j, i)",
    "lambda i, j: (i * 6 + j,)",
    "lambda i, j: (i // 4, j, i % 4)",
    "lambda i, j: (i // 3, j, i % 3)",
    "lambda i, j: (i * 2, j)",
    "lambda i, j: (i + j * 9,)",
    "lambda i, j: (i + j,)",
    "lambda i, j: (i + 1, j)",
    "lambda i, j: (7 - i, j)",
    "lambda i, j: (i, j ^ i)",
    "lambda i, j: (i,)",
    "lambda i, j: (i // 2,)",
    "lambda i: (i,)",
    "lambda i, j, k: (i // 4, j, i % 4)",
    "lambda i, j, k: (k, i)",
    "lambda i, j, k: (k, j)",
];

/// A program in TVMScript. After a semicolon, the buffers that are no parameters.
pub fn script(params: &str, body: &str) -> String {
    let (params, allocated) = params.split_once(';').unwrap_or((params, ""));
    let buffers = |text: &str| -> Vec<(String, String)> {
        let parts = text.split("), ").filter(|p| !p.trim().is_empty());
        let named = parts.filter_map(|p| p.split_once(": "));
        named.map(|(n, shape)| (n.trim().to_string(), format!("{})", shape.trim_end_matches(')')))).collect()
    };
    let params: Vec<String> =
        buffers(params).iter().map(|(n, shape)| format!("{n}: T.Buffer({shape}, \"float32\")")).collect();
    let allocated: String =
        buffers(allocated).iter().map(|(n, shape)| format!("    {n} = T.sblock_alloc_buffer({shape})\n")).collect();
    let body: String = body.lines().filter(|l| !l.trim().is_empty()).map(|l| format!("    {l}\n")).collect();
    format!("@T.prim_func(s_tir=True)\ndef main({}):\n{allocated}{body}", params.join(", "))
}
