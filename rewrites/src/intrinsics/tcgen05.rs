//! `tcgen05.mma` m128nNkK: 128 x K times K x N by one thread, operands in shared memory, sums in tensor memory: a matrix of 128 lanes and N
//! columns, in the scope that TVM has for it. TVM has none of these instructions.
//!
//! As with `wgmma`, that tiles in shared memory are swizzled is the instruction's and the TMA's own matter.
use super::registry::Registry;
use super::text::{cast, function, in_order, param, rest_of_shared, short, swapped, zero};
use satune_ir::term::tensor::GroupMma;
use satune_ir::DType;

/// The scope of tensor memory.
pub const SCOPE: &str = "shared.tmem";

/// Most columns of an instruction, which has a multiple of 16.
const MOST_COLUMNS: i64 = 256;
const COLUMNS: usize = 16;

/// Operand types; of each the sums' type, and whether it may be stored across k.
const TYPES: [(DType, DType, bool); 6] = [
    (DType::F16, DType::F32, true),
    (DType::BF16, DType::F32, true),
    (DType::F32, DType::F32, false),
    (DType::I8, DType::I32, false),
    (DType::F8E4M3, DType::F32, false),
    (DType::F8E5M2, DType::F32, false),
];

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcgen05 {
    /// Columns: a multiple of 16, at most 256.
    pub n: i64,
    /// Type of the operands, f32 being multiplied as tf32, and of the sums.
    pub types: [DType; 2],
    /// A is stored as k x m, B as n x k.
    pub transposed: [bool; 2],
}

impl Tcgen05 {
    /// Extent along k: 32 bytes.
    pub fn k(&self) -> i64 {
        32 / i64::from(self.types[0].bytes())
    }

    /// Its name in the registry.
    pub fn name(&self) -> String {
        let [a, b] = self.transposed.map(|t| if t { 't' } else { 'n' });
        let [operand, sums] = self.types;
        let operand = if operand == DType::F32 { "tf32" } else { short(operand.name()) };
        let sums = short(sums.name());
        format!("tcgen05_m{}n{}k{}_{operand}{operand}{sums}_{a}{b}", GroupMma::Tcgen05.rows(), self.n, self.k())
    }

    /// The name of what clears its sums.
    pub fn fill_name(&self) -> String {
        format!("tcgen05_fill_m{}n{}_{}", GroupMma::Tcgen05.rows(), self.n, short(self.types[1].name()))
    }

    /// The instruction of a name.
    pub fn named(name: &str) -> Option<Tcgen05> {
        all().find(|op| op.name() == name)
    }
}

fn all() -> impl Iterator<Item = Tcgen05> {
    TYPES.into_iter().flat_map(|(operand, sums, across)| {
        let types = [operand, sums];
        let orders = [[false, true], [false, false], [true, true], [true, false]];
        let orders = orders.into_iter().filter(move |o| across || *o == [false, true]);
        let columns = || (COLUMNS as i64..=MOST_COLUMNS).step_by(COLUMNS);
        orders.flat_map(move |transposed| columns().map(move |n| Tcgen05 { n, types, transposed }))
    })
}

pub(super) fn register(registry: &mut Registry) {
    // A block is known as the first that has its instructions: the swapped ones come last.
    for swapped in [false, true] {
        for instruction in all() {
            multiply(registry, instruction, swapped);
        }
    }
    for types in [[DType::F16, DType::F32], [DType::I8, DType::I32]] {
        for n in (COLUMNS as i64..=MOST_COLUMNS).step_by(COLUMNS) {
            fill(registry, Tcgen05 { n, types, transposed: [false, true] });
        }
    }
}

/// The sums.
fn sums(n: i64, dtype: &str) -> String {
    let rest = format!("scope=\"{SCOPE}\", offset_factor=1");
    param("C", &[GroupMma::Tcgen05.rows(), n], dtype, "c", &rest)
}

fn multiply(registry: &mut Registry, op: Tcgen05, is_swapped: bool) {
    let (m, n, k) = (GroupMma::Tcgen05.rows(), op.n, op.k());
    let [input, output] = op.types.map(DType::name);
    let shape = |transposed: bool, rows: i64, columns: i64| if transposed { [columns, rows] } else { [rows, columns] };
    let (a, b) = (shape(op.transposed[0], m, k), shape(op.transposed[1], k, n));
    let rest = rest_of_shared();
    let params = [param("A", &a, input, "a", &rest), param("B", &b, input, "b", &rest), sums(n, output)];
    let whole = format!("C[0:{m}, 0:{n}]");
    let operands = [("A", &a), ("B", &b)].map(|(name, of)| format!("{name}[0:{}, 0:{}]", of[0], of[1]));
    let reads = format!("{whole}, {}", in_order(is_swapped, operands, ", "));
    let at = |transposed: bool, name: &str, row: &str, column: &str| {
        let (x, y) = if transposed { (column, row) } else { (row, column) };
        cast(input, output, &format!("{name}[{x}, {y}]"))
    };
    let factors = [at(op.transposed[0], "A", "vi", "vk"), at(op.transposed[1], "B", "vk", "vj")];
    let description = format!(
        "for i, j, k in T.grid({m}, {n}, {k}):\n    with T.sblock(\"C\"):\n        vi, vj, vk = T.axis.remap(\"SSR\", \
         [i, j, k])\n        C[vi, vj] = C[vi, vj] + {}\n",
        in_order(is_swapped, factors, " * ")
    );
    // Of square tiles the shapes do not say in which order operands lie.
    let [x, y] = op.transposed.map(|t| if t { 't' } else { 'n' });
    let implementation = format!(
        "T.call_extern(\"int32\", \"tcgen05.mma.cta_group.1.m{m}n{n}k{k}.{}.{x}{y}\", C.access_ptr(\"rw\"), A.access_ptr(\"r\"), \
         A.strides[0], B.access_ptr(\"r\"), B.strides[0])\n",
        short(input)
    );
    registry.own(
        if is_swapped { swapped(&op.name()) } else { op.name() },
        function(&params, &reads, &whole, &description),
        function(&params, &reads, &whole, &implementation),
    );
}

/// What the first product of a tile is not added to.
fn fill(registry: &mut Registry, op: Tcgen05) {
    let (m, n, output) = (GroupMma::Tcgen05.rows(), op.n, op.types[1].name());
    let body = format!(
        "for i, j in T.grid({m}, {n}):\n    with T.sblock(\"C_init\"):\n        vi, vj = T.axis.remap(\"SS\", [i, j])\n        \
         C[vi, vj] = {}\n",
        zero(output)
    );
    let writes = format!("C[0:{m}, 0:{n}]");
    let text = || function(&[sums(n, output)], "", &writes, &body);
    registry.own(op.fill_name(), text(), text());
}
