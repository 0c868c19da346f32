//! `mma.sync` on registers of a warp: a tile of 16 x 16 results in `warp` buffers of 32 threads, made with two
//! multiplications m16n8k16 (16-bit floats) or m16n8k8 (tf32), and the `ldmatrix` loads of their operands.
//!
//! TVM's descriptions have an operand's registers where its rows as they are stored would be, whichever side of the product they are and
//! however they lie. Where lanes hold them is said beside ([`super::Intrinsic::held`]).
use super::registry::{Lie, Registry};
use super::text::{cast, function, zero};
use satune_ir::term::tensor::Mma;

/// Thread and register that hold element (i, j) of a 16 x 16 tile of results or of 16-bit operands.
fn tile(i: &str, j: &str) -> String {
    format!("4 * ({i} % 8) + {j} % 8 // 2, 4 * ({j} // 8) + {i} // 8 * 2 + {j} % 2")
}

/// Thread and register that hold element (n, k) of a 16-bit B: each half of n goes to one multiplication.
fn tile_of_b(n: &str, k: &str) -> String {
    format!("4 * ({n} % 8) + {k} % 8 // 2, 4 * ({n} // 8) + {k} // 8 * 2 + {k} % 2")
}

/// The same of operands of 8 bits, 16 rows of 32 along k.
fn bytes_tile(i: &str, k: &str) -> String {
    format!("4 * ({i} % 8) + {k} % 16 // 4, 8 * ({k} // 16) + {i} // 8 * 4 + {k} % 4")
}

/// The same of a B of 8 bits.
fn bytes_tile_of_b(n: &str, k: &str) -> String {
    format!("4 * ({n} % 8) + {k} % 16 // 4, 8 * ({n} // 8) + {k} // 16 * 4 + {k} % 4")
}

/// A B of 8 bits, stored by rows of k, as TVM's description has it.
fn bytes_tile_across(k: &str, n: &str) -> String {
    format!("{k} % 16 // 4 + 4 * ({n} % 8), 8 * ({n} // 8) + {k} // 16 * 4 + {k} % 4")
}

/// Elements along k, and registers of a lane.
fn extents(dtype: &str) -> (i64, i64) {
    match dtype {
        "tfloat32" => (8, 4),
        dtype if BYTES.contains(&dtype) => (32, 16),
        _ => (16, 8),
    }
}

/// The same of a tf32 operand of 16 rows and 8 columns along k: in A the rows differ first, in B (whose rows are
/// those of its transpose) the halves of k, since each of its two matrices goes to one multiplication.
fn narrow_tile(i: &str, k: &str, b: bool) -> String {
    if b {
        format!("4 * ({i} % 8) + {k} % 4, {i} // 8 * 2 + {k} // 4")
    } else {
        format!("4 * ({i} % 8) + {k} % 4, {k} // 4 * 2 + {i} // 8")
    }
}

fn warp(name: &str, registers: i64, dtype: &str, factor: i64) -> String {
    let rest = if factor > 0 { format!(", offset_factor={factor}") } else { String::new() };
    format!("{name}: T.Buffer((32, {registers}), \"{dtype}\", scope=\"warp\"{rest})")
}

pub(super) fn register(registry: &mut Registry) {
    for dtype in ["float16", "bfloat16"] {
        for scope in ["shared", "shared.dyn"] {
            for (b, transposed) in [(false, false), (false, true), (true, false), (true, true)] {
                load(registry, dtype, scope, b, transposed);
            }
        }
    }
    for scope in ["shared", "shared.dyn"] {
        load(registry, "tfloat32", scope, false, false);
        load(registry, "tfloat32", scope, true, true);
    }
    for dtype in BYTES {
        for (b, transposed) in [(false, false), (true, false), (true, true)] {
            load(registry, dtype, "shared", b, transposed);
        }
    }
    for (input, output) in [("float16", "float32"), ("float16", "float16"), ("bfloat16", "float32")] {
        for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
            sync(registry, input, output, a, b);
        }
    }
    sync(registry, "tfloat32", "float32", false, true);
    for dtype in BYTES {
        for b_transposed in [false, true] {
            sync(registry, dtype, sums_of_bytes(dtype), false, b_transposed);
        }
    }
    for dtype in ["float32", "float16", "int32"] {
        fill(registry, dtype);
        for scope in ["global", "shared", "shared.dyn"] {
            for simple in [false, true] {
                store(registry, dtype, scope, simple);
            }
        }
    }
}

/// Whether TVM has no intrinsics of operands of a type.
fn is_own(operand: &str) -> bool {
    matches!(operand, "bfloat16" | "tfloat32")
}

/// Operands of 8 bits: 32 of them along k.
const BYTES: [&str; 3] = ["int8", "float8_e4m3fn", "float8_e5m2"];

fn sums_of_bytes(dtype: &str) -> &'static str {
    if dtype == "int8" {
        "int32"
    } else {
        "float32"
    }
}

/// A type as these names have it.
fn short(dtype: &str) -> &'static str {
    match dtype {
        "int8" => "i8",
        "int32" => "i32",
        other => super::text::short(other),
    }
}

fn suffix(scope: &str) -> &'static str {
    if scope == "shared.dyn" {
        "_dyn"
    } else {
        ""
    }
}

/// `ldmatrix`: each thread names the row that it loads, and receives its registers of four matrices of 8 rows.
fn load(registry: &mut Registry, dtype: &str, scope: &str, b: bool, transposed: bool) {
    let (narrow, bytes) = (dtype == "tfloat32", BYTES.contains(&dtype));
    let (k, registers) = extents(dtype);
    let across = bytes && b && !transposed;
    let (rows, columns) = if across { (k, 16) } else { (16, k) };
    let shared = |strides: &str| {
        format!(
            "shared: T.Buffer(({rows}, {columns}), \"{dtype}\"{strides}, scope=\"{scope}\", offset_factor={columns})"
        )
    };
    let warp = warp("warp", registers, dtype, columns);
    let (reads, writes) = (format!("shared[0:{rows}, 0:{columns}]"), format!("warp[0:32, 0:{registers}]"));
    let place = match (narrow, bytes, across) {
        (true, ..) => narrow_tile("v0", "v1", b),
        (_, true, true) => bytes_tile_across("v0", "v1"),
        (_, true, false) => bytes_tile("v0", "v1"),
        _ => tile("v0", "v1"),
    };
    let copied_to = |place: &str| {
        format!(
            "for ax0, ax1 in T.grid({rows}, {columns}):\n    with T.sblock(\"shared_warp\"):\n        v0, v1 = \
             T.axis.remap(\"SS\", [ax0, ax1])\n        warp[{place}] = shared[v0, v1]\n"
        )
    };
    let description = copied_to(&place);
    let held = match (b, transposed) {
        _ if narrow || across => None,
        (true, true) if bytes => Some(bytes_tile_of_b("v0", "v1")),
        (false, false) => None,
        (false, true) => Some(tile("v1", "v0")),
        (true, false) => Some(tile_of_b("v1", "v0")),
        (true, true) => Some(tile_of_b("v0", "v1")),
    };
    let half = columns / 2;
    let offset = if across {
        // No instruction transposes bytes: TVM writes a loop, which takes the pitch alone.
        "shared.strides[0]".into()
    } else if transposed {
        // As TVM's text has it for either type.
        let row = if bytes { "tx % 8 * shared.strides[0]" } else { "shared.strides[0] * (tx % 8)" };
        format!("shared.strides[0] * 8 * (tx // 16) + {row} + {half} * (tx % 16 // 8)")
    } else {
        format!("shared.strides[0] * (tx % 16) + {half} * (tx // 16)")
    };
    // The loads hold A by rows and B by columns.
    let turned = if transposed != b { "True" } else { "False" };
    let implementation = format!(
        "for tx in T.thread_binding(32, thread=\"threadIdx.x\"):\n    T.ptx_legacy.ldmatrix(T.bool({turned}), 4, \
         \".b16\", warp.data, warp.elem_offset + {registers} * tx, shared.access_ptr(\"r\"), {offset})\n"
    );
    let matrix = if b { "b" } else { "a" };
    let trans = if transposed { "_trans" } else { "" };
    let texts = [
        function(&[warp.clone(), shared("")], &reads, &writes, &description),
        function(&[warp.clone(), shared(", strides=(\"s0\", \"s1\")")], &reads, &writes, &implementation),
    ];
    let name = format!("mma_ldmatrix_{}_{matrix}{trans}{}", short(dtype), suffix(scope));
    registry.entry(Lie::Load { target: 0, transposed }, is_own(dtype), name, texts);
    if let Some(place) = held {
        registry.held(function(&[warp, shared("")], &reads, &writes, &copied_to(&place)));
    }
}

fn sync_name(input: &str, output: &str, [a, b]: [bool; 2]) -> String {
    let (a, b) = (if a { "_trans_a" } else { "" }, if b { "_trans_b" } else { "" });
    format!("mma_{}{}{}{a}{b}", short(input), short(input), short(output))
}

/// The instruction of which an intrinsic of the name is two, side by side along n.
pub fn pair(name: &str) -> Option<Mma> {
    const ORDERS: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];
    let pairs = [Mma::F16, Mma::F16Sums, Mma::Bf16, Mma::S8, Mma::E4m3, Mma::E5m2];
    let names = |op: Mma| ORDERS.map(|order| sync_name(op.operand().name(), op.accumulator().name(), order));
    pairs.into_iter().find(|op| names(*op).iter().any(|own| own == name))
}

/// The multiplication of 16 x k and k x 16.
fn sync(registry: &mut Registry, input: &'static str, output: &'static str, a_transposed: bool, b_transposed: bool) {
    let (narrow, bytes) = (input == "tfloat32", BYTES.contains(&input));
    let (k, registers) = extents(input);
    let columns_of_b = if bytes && !b_transposed { 16 } else { k };
    let params = [warp("A", registers, input, k), warp("B", registers, input, columns_of_b), warp("C", 8, output, 16)];
    let reads = format!("C[0:32, 0:8], A[0:32, 0:{registers}], B[0:32, 0:{registers}]");
    let writes = "C[0:32, 0:8]";
    let swap = |flag: bool, x: &'static str, y: &'static str| if flag { (y, x) } else { (x, y) };
    let ((a0, a1), (b0, b1)) = (swap(a_transposed, "vi", "vk"), swap(b_transposed, "vk", "vj"));
    let (a, b) = match (narrow, bytes, b_transposed) {
        (true, ..) => (narrow_tile("vi", "vk", false), narrow_tile("vj", "vk", true)),
        (_, true, true) => (bytes_tile("vi", "vk"), bytes_tile("vj", "vk")),
        (_, true, false) => (bytes_tile("vi", "vk"), bytes_tile_across("vk", "vj")),
        _ => (tile(a0, a1), tile(b0, b1)),
    };
    let c = tile("vi", "vj");
    // Types are written as TVM's description has them: it converts to wide results only.
    let multiplied = |a: &str, b: &str| {
        format!(
            "for i, j, k in T.grid(16, 16, {k}):\n    with T.sblock(\"C\"):\n        vi, vj, vk = T.axis.remap(\"SSR\", \
             [i, j, k])\n        C[{c}] = C[{c}] + {} * {}\n",
            cast(input, output, &format!("A[{a}]")),
            cast(input, output, &format!("B[{b}]"))
        )
    };
    let description = multiplied(&a, &b);
    let name = |t: &'static str| match t {
        "float16" => "fp16",
        "bfloat16" => "bf16",
        "tfloat32" => "tf32",
        "int8" | "int32" => t,
        "float8_e4m3fn" => "e4m3",
        "float8_e5m2" => "e5m2",
        _ => "fp32",
    };
    let half = registers / 2;
    let (i, o) = (name(input), name(output));
    let start = format!(
        "    T.ptx_legacy.mma(\"m16n8k{k}\", \"row\", \"col\", \"{i}\", \"{i}\", \"{o}\", A.data, A.elem_offset + tx * \
         {registers}, B.data, B.elem_offset + tx * {registers}"
    );
    let implementation = format!(
        "for tx in T.thread_binding(32, thread=\"threadIdx.x\"):\n{start}, C.data, C.elem_offset + tx * 8, \
         T.bool(False))\n{start} + {half}, C.data, C.elem_offset + tx * 8 + 4, T.bool(False))\n"
    );
    let texts = [&description, &implementation].map(|text| function(&params, &reads, writes, text));
    let lie = Lie::Multiply { a: a_transposed, b: b_transposed };
    registry.entry(lie, is_own(input), sync_name(input, output, [a_transposed, b_transposed]), texts);
    let held = match (narrow, bytes) {
        (true, _) => return,
        (_, true) => multiplied(&bytes_tile("vi", "vk"), &bytes_tile_of_b("vj", "vk")),
        _ => multiplied(&tile("vi", "vk"), &tile_of_b("vj", "vk")),
    };
    registry.held(function(&params, &reads, writes, &held));
}

fn fill(registry: &mut Registry, dtype: &str) {
    let c = tile("i", "j");
    let description = format!(
        "for i0, i1 in T.grid(16, 16):\n    with T.sblock(\"C_warp\"):\n        i, j = T.axis.remap(\"SS\", [i0, \
         i1])\n        C_warp[{c}] = {}\n",
        zero(dtype)
    );
    let implementation = "for tx in T.thread_binding(32, thread=\"threadIdx.x\"):\n    T.cuda.mma_fill_legacy(8, \
                          C_warp.data, C_warp.elem_offset)\n";
    let writes = "C_warp[0:32, 0:8]";
    let texts = [(0, description.as_str()), (1, implementation)]
        .map(|(factor, text)| function(&[warp("C_warp", 8, dtype, factor)], "", writes, text));
    registry.entry(Lie::Any, false, format!("mma_fill_16x16_{}", short(dtype)), texts);
}

/// `simple`: element by element.
fn store(registry: &mut Registry, dtype: &str, scope: &str, simple: bool) {
    let target = format!("C: T.Buffer((16, 16), \"{dtype}\", scope=\"{scope}\")");
    let strided =
        format!("C: T.Buffer((16, 16), \"{dtype}\", strides=(\"s0\", \"s1\"), scope=\"{scope}\", offset_factor=1)");
    let (reads, writes) = ("C_warp[0:32, 0:8]", "C[0:16, 0:16]");
    let description = format!(
        "for i0, i1 in T.grid(16, 16):\n    with T.sblock(\"C_warp\"):\n        v0, v1 = T.axis.remap(\"SS\", [i0, \
         i1])\n        C[v0, v1] = C_warp[{}]\n",
        tile("v0", "v1")
    );
    let implementation = if simple {
        "for tx in T.thread_binding(32, thread=\"threadIdx.x\"):\n    for local_id in range(8):\n        C[8 * (local_id % 4 // 2) + \
         tx // 4, 8 * (local_id // 4) + tx % 4 * 2 + local_id % 2] = C_warp[tx, local_id]\n"
    } else {
        "for tx in T.thread_binding(32, thread=\"threadIdx.x\"):\n    T.cuda.mma_store_legacy(16, 16, \
         C.access_ptr(\"w\"), C_warp.data, C_warp.elem_offset, C.strides[0])\n"
    };
    let texts = [
        function(&[warp("C_warp", 8, dtype, 0), target], reads, writes, &description),
        function(&[warp("C_warp", 8, dtype, 1), strided], reads, writes, implementation),
    ];
    let is_tvms = match (scope, simple) {
        ("global", false) => true,
        ("shared.dyn", false) => dtype == "float32",
        ("shared.dyn", true) => dtype != "int32",
        _ => false,
    };
    let (scope, simple) = (scope.replace('.', "_"), if simple { "simple_" } else { "" });
    registry.entry(Lie::Any, !is_tvms, format!("mma_store_16x16_{}_{scope}_{simple}", short(dtype)), texts);
}
