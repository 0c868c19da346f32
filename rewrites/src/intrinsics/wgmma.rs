//! `wgmma.mma_async` m64nNkK: 64 x K times K x N by four warps, operands in shared memory, sums in the warps' registers,
//! whose places are those of `mma.sync` tile by tile ([`super::fragment`]). TVM has none of them.
//!
//! That tiles in shared memory are swizzled in rows of 128 bytes is the instruction's and the TMA's own matter: both go
//! through the same descriptor, and elements are named by row and column.
use super::fragment;
use super::registry::Registry;
use super::text::{cast, function, in_order, param, rest_of_shared, short, swapped, zero};
use satune_ir::term::tensor::{Fragment, Mma};
use satune_ir::DType;

/// Most columns of an instruction.
const MOST_COLUMNS: i64 = 256;
/// Operand types; of each the sums' type, and whether it may be stored across k.
const TYPES: [(DType, DType, bool); 7] = [
    (DType::F16, DType::F32, true),
    (DType::F16, DType::F16, true),
    (DType::BF16, DType::F32, true),
    (DType::F32, DType::F32, false),
    (DType::I8, DType::I32, false),
    (DType::F8E4M3, DType::F32, false),
    (DType::F8E5M2, DType::F32, false),
];

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wgmma {
    /// Columns: a multiple of 8, at most 256.
    pub n: i64,
    /// Type of the operands, f32 being multiplied as tf32, and of the sums.
    pub types: [DType; 2],
    /// A is stored as k x m, B as n x k.
    pub transposed: [bool; 2],
}

impl Wgmma {
    /// Extent along k: 32 bytes.
    pub fn k(&self) -> i64 {
        32 / i64::from(self.types[0].bytes())
    }

    fn types(&self) -> String {
        let [operand, sums] = self.types;
        let operand = match operand {
            DType::F32 => "tf32",
            other => short(other.name()),
        };
        format!("{operand}{operand}{}", short(sums.name()))
    }

    /// Its name in the registry.
    pub fn name(&self) -> String {
        let [a, b] = self.transposed.map(|t| if t { 't' } else { 'n' });
        format!("wgmma_m64n{}k{}_{}_{a}{b}", self.n, self.k(), self.types())
    }

    /// The name of what clears its sums.
    pub fn fill_name(&self) -> String {
        format!("wgmma_fill_m64n{}_{}", self.n, short(self.types[1].name()))
    }

    /// The instruction of a name.
    pub fn named(name: &str) -> Option<Wgmma> {
        all().find(|w| w.name() == name)
    }
}

fn all() -> impl Iterator<Item = Wgmma> {
    TYPES.into_iter().flat_map(|(operand, sums, across)| {
        let types = [operand, sums];
        let orders = [[false, true], [false, false], [true, true], [true, false]];
        let orders = orders.into_iter().filter(move |o| across || *o == [false, true]);
        orders.flat_map(move |transposed| (1..=MOST_COLUMNS / 8).map(move |n| Wgmma { n: 8 * n, types, transposed }))
    })
}

pub(super) fn register(registry: &mut Registry) {
    // A block is known as the first that has its instructions: the swapped ones come last.
    for swapped in [false, true] {
        for instruction in all() {
            multiply(registry, instruction, swapped);
        }
    }
    for types in [[DType::F16, DType::F32], [DType::F16, DType::F16], [DType::I8, DType::I32]] {
        for n in (8..=MOST_COLUMNS).step_by(8) {
            fill(registry, Wgmma { n, types, transposed: [false, true] });
        }
    }
}

/// The sums: tiles of 16 rows and 8 columns, lanes, registers.
fn sums(n: i64, dtype: &str) -> String {
    format!("C: T.Buffer((4, {}, 32, 4), \"{dtype}\", scope=\"warp\", offset_factor=4)", n / 8)
}

fn place(row: &str, column: &str) -> String {
    let [lane, register] = fragment::held(Mma::F16, Fragment::D, [row, column], false);
    format!("C[{row} // 16, {column} // 8, {lane}, {register}]")
}

fn multiply(registry: &mut Registry, w: Wgmma, is_swapped: bool) {
    let (n, k) = (w.n, w.k());
    let [input, output] = w.types.map(DType::name);
    let shape = |transposed: bool, rows: i64, columns: i64| if transposed { [columns, rows] } else { [rows, columns] };
    let (a, b) = (shape(w.transposed[0], 64, k), shape(w.transposed[1], k, n));
    let rest = rest_of_shared();
    let params =
        |s: [&str; 2]| [param("A", &a, input, s[0], &rest), param("B", &b, input, s[1], &rest), sums(n, output)];
    let (whole, writes) = (format!("C[0:4, 0:{}, 0:32, 0:4]", n / 8), format!("C[0:4, 0:{}, 0:32, 0:4]", n / 8));
    let operands = [("A", &a), ("B", &b)].map(|(name, of)| format!("{name}[0:{}, 0:{}]", of[0], of[1]));
    let reads = format!("{whole}, {}", in_order(is_swapped, operands, ", "));
    let c = place("vi", "vj");
    let at = |transposed: bool, name: &str, row: &str, column: &str| {
        let (x, y) = if transposed { (column, row) } else { (row, column) };
        cast(input, output, &format!("{name}[{x}, {y}]"))
    };
    let factors = [at(w.transposed[0], "A", "vi", "vk"), at(w.transposed[1], "B", "vk", "vj")];
    let description = format!(
        "for i, j, k in T.grid(64, {n}, {k}):\n    with T.sblock(\"C\"):\n        vi, vj, vk = T.axis.remap(\"SSR\", \
         [i, j, k])\n        {c} = {c} + {}\n",
        in_order(is_swapped, factors, " * ")
    );
    // Of square tiles the shapes do not say in which order operands lie.
    let [x, y] = w.transposed.map(|t| if t { 't' } else { 'n' });
    let implementation = format!(
        "for tx in T.thread_binding(128, thread=\"threadIdx.x\"):\n    T.call_extern(\"int32\", \
         \"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{}.{x}{y}\", C.data, C.elem_offset + tx * {}, A.access_ptr(\"r\"), \
         A.strides[0], B.access_ptr(\"r\"), B.strides[0])\n",
        w.types(),
        n / 2
    );
    registry.own(
        if is_swapped { swapped(&w.name()) } else { w.name() },
        function(&params(["", ""]), &reads, &writes, &description),
        function(&params(["a", "b"]), &reads, &writes, &implementation),
    );
}

/// Registers are cleared one by one.
fn fill(registry: &mut Registry, w: Wgmma) {
    let (n, output) = (w.n, w.types[1].name());
    let description = format!(
        "for i, j in T.grid(64, {n}):\n    with T.sblock(\"C_init\"):\n        vi, vj = T.axis.remap(\"SS\", [i, j])\n        \
         {} = {}\n",
        place("vi", "vj"),
        zero(output)
    );
    let implementation = format!(
        "for tx in T.thread_binding(128, thread=\"threadIdx.x\"):\n    for t, r in T.grid({}, 4):\n        \
         C[tx // 32, t, tx % 32, r] = {}\n",
        n / 8,
        zero(output)
    );
    let writes = format!("C[0:4, 0:{}, 0:32, 0:4]", n / 8);
    registry.own(
        w.fill_name(),
        function(&[sums(n, output)], "", &writes, &description),
        function(&[sums(n, output)], "", &writes, &implementation),
    );
}
