//! Warp matrix multiply and accumulate (`nvcuda::wmma`): loads into fragments, fill, multiplication, store. TVM has those of
//! 16x16x16 in f16 and in bytes, whose A runs along k; the other shapes, bf16, A stored across k and factors in the other order
//! are ours, in the same words.
use super::registry::{Lie, Registry};
use super::text::{cast, copied, function, in_order, param, short, swapped, zero};
use satune_ir::term::tensor::Wmma;
use satune_ir::term::Side;

/// m, n and k of the multiplications that the instructions have.
const SHAPES: [Shape; 3] = [TVM_SHAPE, (32, 8, 16), (8, 32, 16)];
/// Types of operands and of results.
const TYPES: [(&str, &str); 4] =
    [("float16", "float32"), ("float16", "float16"), ("bfloat16", "float32"), ("int8", "int32")];
const SHARED: [&str; 2] = ["shared", "shared.dyn"];
/// The only shape that TVM has for operands that plans know.
const TVM_SHAPE: Shape = (16, 16, 16);

type Shape = (i64, i64, i64);

/// Whether TVM has no intrinsics of a shape and type.
fn is_own(shape: Shape, dtype: &str) -> bool {
    shape != TVM_SHAPE || dtype == "bfloat16"
}

fn shape_of(op: Wmma) -> Shape {
    let [m, n, k] = op.extents().map(i64::from);
    (m, n, k)
}

/// The name of the load of a fragment from shared memory, where A's tile is stored as k x m, B's as n x k (transposed), or
/// not.
pub fn load_name(op: Wmma, side: Side, transposed: bool) -> String {
    load_in(shape_of(op), op.operand.name(), SHARED[0], side == Side::B, transposed)
}

/// The name of what clears a fragment of sums.
pub fn fill_name(op: Wmma) -> String {
    fill_of(shape_of(op), op.accumulator().name())
}

/// The name of the multiplication of A and B, each of them stored transposed or not.
pub fn sync_name(op: Wmma, transposed: [bool; 2]) -> String {
    sync_of(shape_of(op), op.operand.name(), op.accumulator().name(), transposed)
}

/// The name of the store of a fragment of sums to shared or global memory.
pub fn store_name(op: Wmma, scope: &str) -> String {
    store_to(shape_of(op), op.accumulator().name(), scope)
}

/// The instruction of plans whose multiplication has a name.
pub fn named(name: &str) -> Option<Wmma> {
    Wmma::all().find(|op| ORDERS.iter().any(|order| sync_name(*op, *order) == name))
}

/// What an intrinsic of `wmma` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Clears a fragment of sums.
    Fill(Wmma),
    /// Loads a fragment of an operand; whether its tile is stored as k x m, or n x k.
    Load(Wmma, Side, bool),
    /// Multiplies; whether A and B are stored so.
    Multiply(Wmma, [bool; 2]),
    /// Stores a fragment of sums.
    Store(Wmma),
}

/// What an intrinsic does, by its name. Of instructions that share one (a load says nothing of sums, a fill nothing of operands) it names
/// the first.
pub fn step(name: &str) -> Option<Step> {
    if !name.starts_with("wmma_") {
        return None;
    }
    let sides = [Side::A, Side::B].into_iter().flat_map(|side| [false, true].map(|transposed| (side, transposed)));
    Wmma::all().find_map(|op| {
        let load = |(side, transposed): (Side, bool)| {
            let of = |scope| load_in(shape_of(op), op.operand.name(), scope, side == Side::B, transposed);
            SHARED.iter().any(|scope| of(scope) == name).then_some(Step::Load(op, side, transposed))
        };
        let multiply = |order: [bool; 2]| {
            let own = sync_name(op, order);
            (own == name || swapped(&own) == name).then_some(Step::Multiply(op, order))
        };
        let stores = ["global"].iter().chain(&SHARED).any(|scope| store_name(op, scope) == name);
        let own = (fill_name(op) == name).then_some(Step::Fill(op)).or(stores.then_some(Step::Store(op)));
        own.or_else(|| sides.clone().find_map(load)).or_else(|| ORDERS.into_iter().find_map(multiply))
    })
}

/// How A and B may lie: transposed or not.
const ORDERS: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

fn load_in((m, n, k): Shape, dtype: &str, scope: &str, b: bool, transposed: bool) -> String {
    let (matrix, trans) = (if b { "b" } else { "a" }, if transposed { "_trans" } else { "" });
    format!("wmma_load_{m}x{n}x{k}_{}_{matrix}{trans}_{}", short(dtype), scope.replace('.', "_"))
}

fn fill_of((m, n, k): Shape, dtype: &str) -> String {
    format!("wmma_fill_{m}x{n}x{k}_{}", short(dtype))
}

fn store_to((m, n, k): Shape, dtype: &str, scope: &str) -> String {
    format!("wmma_store_{m}x{n}x{k}_{}_{}", short(dtype), scope.replace('.', "_"))
}

fn sync_of((m, n, k): Shape, input: &str, output: &str, transposed: [bool; 2]) -> String {
    // TVM's name for a transposed B, which is all that it has.
    let trans = match transposed {
        [false, false] => "",
        [false, true] => "_trans",
        [true, false] => "_trans_a",
        [true, true] => "_trans_a_trans_b",
    };
    format!("wmma_sync_{m}x{n}x{k}_{0}{0}{1}{trans}", short(input), short(output))
}

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
            // A block is known as the first that has its instructions: the swapped ones come last.
            for (is_swapped, transposed) in [false, true].into_iter().flat_map(|s| ORDERS.map(|order| (s, order))) {
                sync(registry, (m, n, k), [input, output], transposed, is_swapped);
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
    registry.entry(
        Lie::Load { target: 1, transposed },
        is_own((m, n, k), dtype),
        load_in((m, n, k), dtype, scope, b, transposed),
        [
            function(&params("", ""), &reads, &writes, &copied(rows, columns, "load", "C[vi, vj]", "A[vi, vj]")),
            function(&params("s", "d"), &reads, &writes, &body),
        ],
    );
}

fn fill(registry: &mut Registry, (m, n, k): Shape, dtype: &str) {
    let params = |d: &str| [param("C", &[m, n], dtype, d, &rest("wmma.accumulator", n))];
    let writes = format!("C[0:{m}, 0:{n}]");
    let body = format!("T.tvm_fill_fragment(C.data, {m}, {n}, {k}, {}, T.float32(0))\n", fragment("C", m, n));
    registry.entry(
        Lie::Any,
        is_own((m, n, k), dtype),
        fill_of((m, n, k), dtype),
        [
            function(&params(""), "", &writes, &copied(m, n, "init", "C[vi, vj]", &zero(dtype))),
            function(&params("d"), "", &writes, &body),
        ],
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
    registry.entry(
        Lie::Any,
        is_own((m, n, k), dtype),
        store_to((m, n, k), dtype, scope),
        [
            function(&params("", ""), &reads, &writes, &copied(m, n, "store", "C[vi, vj]", "A[vi, vj]")),
            function(&params("d", "s"), &reads, &writes, &body),
        ],
    );
}

fn sync(
    registry: &mut Registry,
    (m, n, k): Shape,
    [input, output]: [&str; 2],
    transposed: [bool; 2],
    is_swapped: bool,
) {
    let [a_transposed, b_transposed] = transposed;
    let shape = |transposed: bool, rows: i64, columns: i64| if transposed { [columns, rows] } else { [rows, columns] };
    let ([a0, a1], [b0, b1]) = (shape(a_transposed, m, k), shape(b_transposed, k, n));
    let params = |a: &str, b: &str, c: &str| {
        [
            param("A", &[a0, a1], input, a, &rest("wmma.matrix_a", a1)),
            param("B", &[b0, b1], input, b, &rest("wmma.matrix_b", b1)),
            param("C", &[m, n], output, c, &rest("wmma.accumulator", n)),
        ]
    };
    let writes = format!("C[0:{m}, 0:{n}]");
    let operands = [format!("A[0:{a0}, 0:{a1}]"), format!("B[0:{b0}, 0:{b1}]")];
    let reads = format!("{writes}, {}", in_order(is_swapped, operands, ", "));
    let a = if a_transposed { "A[vk, vi]" } else { "A[vi, vk]" };
    let b = if b_transposed { "B[vj, vk]" } else { "B[vk, vj]" };
    let factors = [a, b].map(|x| cast(input, output, x));
    let description = format!(
        "for i, j, k in T.grid({m}, {n}, {k}):\n    with T.sblock(\"\"):\n        vi, vj, vk = \
         T.axis.remap(\"SSR\", [i, j, k])\n        C[vi, vj] = C[vi, vj] + {}\n",
        in_order(is_swapped, factors, " * ")
    );
    let c = fragment("C", m, n);
    let implementation = format!(
        "T.tvm_mma_sync(C.data, {c}, A.data, {}, B.data, {}, C.data, {c})\n",
        fragment("A", a0, a1),
        fragment("B", b0, b1)
    );
    let name = sync_of((m, n, k), input, output, transposed);
    registry.entry(
        Lie::Multiply { a: a_transposed, b: b_transposed },
        is_swapped || a_transposed || is_own((m, n, k), input),
        if is_swapped { swapped(&name) } else { name },
        [
            function(&params("", "", ""), &reads, &writes, &description),
            function(&params("a", "b", "c"), &reads, &writes, &implementation),
        ],
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_one_step() {
        let mut counts = [0; 4];
        for name in crate::intrinsics::names().filter(|name| name.starts_with("wmma_")) {
            let step = step(name).unwrap_or_else(|| panic!("{name}"));
            let (at, again) = match step {
                Step::Fill(op) => (0, fill_name(op) == name),
                Step::Load(op, side, transposed) => (1, name.starts_with(&load_name(op, side, transposed))),
                Step::Multiply(op, order) => (2, name.starts_with(&sync_name(op, order))),
                Step::Store(op) => (3, name.contains(&format!("_{}_", short(op.accumulator().name())))),
            };
            assert!(again, "{name}: {step:?}");
            counts[at] += 1;
        }
        // Shapes, and types or scopes, orders and sides.
        assert_eq!(counts, [3 * 3, 3 * 3 * 2 * 2 * 2, 3 * 4 * 4 * 2, 3 * 3 * 3]);
        assert_eq!(step("mma_sync_m16n8k16"), None);
    }
}
