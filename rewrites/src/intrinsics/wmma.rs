//! Warp matrix multiply and accumulate (`nvcuda::wmma`): loads into fragments, fill, multiplication, store.
use super::{cast, copied, function, param, short, zero, Lie, Registry};

/// m, n and k of the multiplications that the instructions have.
const SHAPES: [(i64, i64, i64); 3] = [(16, 16, 16), (32, 8, 16), (8, 32, 16)];
/// Types of operands and of results.
const TYPES: [(&str, &str); 4] =
    [("float16", "float32"), ("float16", "float16"), ("bfloat16", "float32"), ("int8", "int32")];
const SHARED: [&str; 2] = ["shared", "shared.dyn"];

/// The position of a fragment among those of its buffer, from the offset of its first element.
fn fragment(buffer: &str, rows: i64, columns: i64) -> String {
    format!(
        "{buffer}.elem_offset // {buffer}.strides[0] // {rows} * ({buffer}.strides[0] // {columns}) + \
         {buffer}.elem_offset % {buffer}.strides[0] // {columns}"
    )
}

fn rest(scope: &str, factor: i64) -> String {
    format!("scope=\"{scope}\", offset_factor={factor}")
}

pub(super) fn register(registry: &mut Registry) {
    for (m, n, k) in SHAPES {
        for (at, (input, output)) in TYPES.into_iter().enumerate() {
            for transposed in [false, true] {
                sync(registry, (m, n, k), input, output, transposed);
            }
            // The loads do not depend on the type of the result.
            if TYPES[..at].iter().any(|(i, _)| *i == input) {
                continue;
            }
            for scope in SHARED {
                for (b, transposed) in [(false, false), (false, true), (true, false), (true, true)] {
                    load(registry, (m, n, k), input, scope, b, transposed);
                }
            }
        }
        for output in ["float32", "float16", "int32"] {
            fill(registry, (m, n, k), output);
            for scope in ["global", "shared", "shared.dyn"] {
                store(registry, (m, n, k), output, scope);
            }
        }
    }
}

type Shape = (i64, i64, i64);

fn load(registry: &mut Registry, (m, n, k): Shape, dtype: &str, scope: &str, b: bool, transposed: bool) {
    let (rows, columns) = if b { (k, n) } else { (m, k) };
    let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
    let layout = if transposed { "col_major" } else { "row_major" };
    let matrix = if b { "b" } else { "a" };
    let (from, to) = (rest(scope, columns), rest(&format!("wmma.matrix_{matrix}"), columns));
    let params =
        |s: &str, d: &str| [param("A", &[rows, columns], dtype, s, &from), param("C", &[rows, columns], dtype, d, &to)];
    let (reads, writes) = (format!("A[0:{rows}, 0:{columns}]"), format!("C[0:{rows}, 0:{columns}]"));
    let body = format!(
        "T.tvm_load_matrix_sync(C.data, {m}, {n}, {k}, {}, A.access_ptr(\"r\"), A.strides[0], \"{layout}\")\n",
        fragment("C", rows, columns)
    );
    registry.lying(
        Lie::Load { target: 1, transposed },
        format!(
            "wmma_load_{m}x{n}x{k}_{}_{matrix}{}_{}",
            short(dtype),
            if transposed { "_trans" } else { "" },
            scope.replace('.', "_")
        ),
        function(&params("", ""), &reads, &writes, &copied(rows, columns, "load", "C[vi, vj]", "A[vi, vj]")),
        function(&params("s", "d"), &reads, &writes, &body),
    );
}

fn fill(registry: &mut Registry, (m, n, k): Shape, dtype: &str) {
    let params = |d: &str| [param("C", &[m, n], dtype, d, &rest("wmma.accumulator", n))];
    let writes = format!("C[0:{m}, 0:{n}]");
    let body = format!("T.tvm_fill_fragment(C.data, {m}, {n}, {k}, {}, T.float32(0))\n", fragment("C", m, n));
    registry.add(
        format!("wmma_fill_{m}x{n}x{k}_{}", short(dtype)),
        function(&params(""), "", &writes, &copied(m, n, "init", "C[vi, vj]", &zero(dtype))),
        function(&params("d"), "", &writes, &body),
    );
}

fn store(registry: &mut Registry, (m, n, k): Shape, dtype: &str, scope: &str) {
    let (from, to) = (rest("wmma.accumulator", n), rest(scope, n));
    let params = |d: &str, s: &str| [param("A", &[m, n], dtype, d, &from), param("C", &[m, n], dtype, s, &to)];
    let (reads, writes) = (format!("A[0:{m}, 0:{n}]"), format!("C[0:{m}, 0:{n}]"));
    let body = format!(
        "T.tvm_store_matrix_sync(A.data, {m}, {n}, {k}, {}, C.access_ptr(\"w\"), C.strides[0], \"row_major\")\n",
        fragment("A", m, n)
    );
    registry.add(
        format!("wmma_store_{m}x{n}x{k}_{}_{}", short(dtype), scope.replace('.', "_")),
        function(&params("", ""), &reads, &writes, &copied(m, n, "store", "C[vi, vj]", "A[vi, vj]")),
        function(&params("d", "s"), &reads, &writes, &body),
    );
}

fn sync(registry: &mut Registry, (m, n, k): Shape, input: &str, output: &str, transposed: bool) {
    let (rows, columns) = if transposed { (n, k) } else { (k, n) };
    let params = |a: &str, b: &str, c: &str| {
        [
            param("A", &[m, k], input, a, &rest("wmma.matrix_a", k)),
            param("B", &[rows, columns], input, b, &rest("wmma.matrix_b", columns)),
            param("C", &[m, n], output, c, &rest("wmma.accumulator", n)),
        ]
    };
    let (reads, writes) =
        (format!("C[0:{m}, 0:{n}], A[0:{m}, 0:{k}], B[0:{rows}, 0:{columns}]"), format!("C[0:{m}, 0:{n}]"));
    let b = if transposed { "B[vj, vk]" } else { "B[vk, vj]" };
    let description = format!(
        "for i, j, k in T.grid({m}, {n}, {k}):\n    with T.sblock(\"\"):\n        vi, vj, vk = \
         T.axis.remap(\"SSR\", [i, j, k])\n        C[vi, vj] = C[vi, vj] + {} * {}\n",
        cast(input, output, "A[vi, vk]"),
        cast(input, output, b)
    );
    let c = fragment("C", m, n);
    let implementation = format!(
        "T.tvm_mma_sync(C.data, {c}, A.data, {}, B.data, {}, C.data, {c})\n",
        fragment("A", m, k),
        fragment("B", rows, columns)
    );
    let types = format!("{}{}{}", short(input), short(input), short(output));
    registry.lying(
        Lie::Multiply { a: false, b: transposed },
        format!("wmma_sync_{m}x{n}x{k}_{types}{}", if transposed { "_trans" } else { "" }),
        function(&params("", "", ""), &reads, &writes, &description),
        function(&params("a", "b", "c"), &reads, &writes, &implementation),
    );
}
