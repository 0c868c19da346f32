//! `mma.sync` on registers of a warp: a tile of 16 x 16 results in `warp` buffers of 32 threads, made with two
//! multiplications m16n8k16 (16-bit floats) or m16n8k8 (tf32), and the `ldmatrix` loads of their operands.
//!
//! TVM's descriptions have an operand's registers where its rows as they are stored would be, whichever side of the product they are and
//! however they lie. Where lanes hold them is said beside ([`super::Intrinsic::held`]).
use super::registry::{Lie, Registry};
use super::text::{cast, function, short, zero};
use satune_ir::term::tensor::Mma;

/// Thread and register that hold element (i, j) of a 16 x 16 tile of results or of 16-bit operands.
fn tile(i: &str, j: &str) -> String {
    format!("4 * ({i} % 8) + {j} % 8 // 2, 4 * ({j} // 8) + {i} // 8 * 2 + {j} % 2")
}

/// Thread and register that hold element (n, k) of a 16-bit B: each half of n goes to one multiplication.
fn tile_of_b(n: &str, k: &str) -> String {
    format!("4 * ({n} % 8) + {k} % 8 // 2, 4 * ({n} // 8) + {k} // 8 * 2 + {k} % 2")
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
    for (input, output) in [("float16", "float32"), ("float16", "float16"), ("bfloat16", "float32")] {
        for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
            sync(registry, input, output, a, b);
        }
    }
    sync(registry, "tfloat32", "float32", false, true);
    for dtype in ["float32", "float16"] {
        fill(registry, dtype);
        for scope in ["global", "shared", "shared.dyn"] {
            store(registry, dtype, scope);
        }
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
    let narrow = dtype == "tfloat32";
    let (columns, registers) = if narrow { (8, 4) } else { (16, 8) };
    let shared = |strides: &str| {
        format!("shared: T.Buffer((16, {columns}), \"{dtype}\"{strides}, scope=\"{scope}\", offset_factor={columns})")
    };
    let warp = warp("warp", registers, dtype, columns);
    let (reads, writes) = (format!("shared[0:16, 0:{columns}]"), format!("warp[0:32, 0:{registers}]"));
    let place = if narrow { narrow_tile("v0", "v1", b) } else { tile("v0", "v1") };
    let copied_to = |place: &str| {
        format!(
            "for ax0, ax1 in T.grid(16, {columns}):\n    with T.sblock(\"shared_warp\"):\n        v0, v1 = \
             T.axis.remap(\"SS\", [ax0, ax1])\n        warp[{place}] = shared[v0, v1]\n"
        )
    };
    let description = copied_to(&place);
    let held = match (b, transposed) {
        (false, false) => None,
        (false, true) => Some(tile("v1", "v0")),
        (true, false) => Some(tile_of_b("v1", "v0")),
        (true, true) => Some(tile_of_b("v0", "v1")),
    };
    let half = columns / 2;
    let offset = if transposed {
        format!("shared.strides[0] * 8 * (tx // 16) + shared.strides[0] * (tx % 8) + {half} * (tx % 16 // 8)")
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
    registry.lying(
        Lie::Load { target: 0, transposed },
        format!("mma_ldmatrix_{}_{matrix}{trans}{}", short(dtype), suffix(scope)),
        function(&[warp.clone(), shared("")], &reads, &writes, &description),
        function(&[warp.clone(), shared(", strides=(\"s0\", \"s1\")")], &reads, &writes, &implementation),
    );
    if let Some(place) = held.filter(|_| !narrow) {
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
    let of = |op: Mma| match op {
        Mma::Tf32 => ["tfloat32", "float32"],
        op => [op.operand().name(), op.accumulator().name()],
    };
    let pairs = [Mma::F16, Mma::F16Sums, Mma::Bf16, Mma::Tf32];
    pairs.into_iter().find(|op| ORDERS.iter().any(|order| sync_name(of(*op)[0], of(*op)[1], *order) == name))
}

/// The multiplication of 16 x k and k x 16.
fn sync(registry: &mut Registry, input: &str, output: &str, a_transposed: bool, b_transposed: bool) {
    let narrow = input == "tfloat32";
    let (k, registers) = if narrow { (8, 4) } else { (16, 8) };
    let params = [warp("A", registers, input, k), warp("B", registers, input, k), warp("C", 8, output, 16)];
    let reads = format!("C[0:32, 0:8], A[0:32, 0:{registers}], B[0:32, 0:{registers}]");
    let writes = "C[0:32, 0:8]";
    let swap = |flag: bool, x: &'static str, y: &'static str| if flag { (y, x) } else { (x, y) };
    let ((a0, a1), (b0, b1)) = (swap(a_transposed, "vi", "vk"), swap(b_transposed, "vk", "vj"));
    let (a, b) = if narrow {
        (narrow_tile("vi", "vk", false), narrow_tile("vj", "vk", true))
    } else {
        (tile(a0, a1), tile(b0, b1))
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
    let name = |t: &str| match t {
        "float16" => "fp16",
        "bfloat16" => "bf16",
        "tfloat32" => "tf32",
        _ => "fp32",
    };
    let half = registers / 2;
    let (shape, i, o) = (if narrow { "m16n8k8" } else { "m16n8k16" }, name(input), name(output));
    let start = format!(
        "    T.ptx_legacy.mma(\"{shape}\", \"row\", \"col\", \"{i}\", \"{i}\", \"{o}\", A.data, A.elem_offset + tx * \
         {registers}, B.data, B.elem_offset + tx * {registers}"
    );
    let implementation = format!(
        "for tx in T.thread_binding(32, thread=\"threadIdx.x\"):\n{start}, C.data, C.elem_offset + tx * 8, \
         T.bool(False))\n{start} + {half}, C.data, C.elem_offset + tx * 8 + 4, T.bool(False))\n"
    );
    registry.lying(
        Lie::Multiply { a: a_transposed, b: b_transposed },
        sync_name(input, output, [a_transposed, b_transposed]),
        function(&params, &reads, writes, &description),
        function(&params, &reads, writes, &implementation),
    );
    if !narrow {
        registry.held(function(&params, &reads, writes, &multiplied(&tile("vi", "vk"), &tile_of_b("vj", "vk"))));
    }
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
    registry.add(
        format!("mma_fill_16x16_{}", short(dtype)),
        function(&[warp("C_warp", 8, dtype, 0)], "", writes, &description),
        function(&[warp("C_warp", 8, dtype, 1)], "", writes, implementation),
    );
}

fn store(registry: &mut Registry, dtype: &str, scope: &str) {
    let target = format!("C: T.Buffer((16, 16), \"{dtype}\", scope=\"{scope}\")");
    let strided =
        format!("C: T.Buffer((16, 16), \"{dtype}\", strides=(\"s0\", \"s1\"), scope=\"{scope}\", offset_factor=1)");
    let (reads, writes) = ("C_warp[0:32, 0:8]", "C[0:16, 0:16]");
    let description = format!(
        "for i0, i1 in T.grid(16, 16):\n    with T.sblock(\"C_warp\"):\n        v0, v1 = T.axis.remap(\"SS\", [i0, \
         i1])\n        C[v0, v1] = C_warp[{}]\n",
        tile("v0", "v1")
    );
    let implementation = "for tx in T.thread_binding(32, thread=\"threadIdx.x\"):\n    T.cuda.mma_store_legacy(16, \
                          16, C.access_ptr(\"w\"), C_warp.data, C_warp.elem_offset, C.strides[0])\n";
    registry.add(
        format!("mma_store_16x16_{}_{}_", short(dtype), scope.replace('.', "_")),
        function(&[warp("C_warp", 8, dtype, 0), target], reads, writes, &description),
        function(&[warp("C_warp", 8, dtype, 1), strided], reads, writes, implementation),
    );
}
