//! What intrinsics of `wgmma` and `tcgen05` share: an instruction for tiles in shared memory, its names, and what it computes. TVM has none of
//! them. How each holds its sums, and its call, stand in [`super::wgmma`] and [`super::tcgen05`].
//!
//! That tiles in shared memory are swizzled in rows of 128 bytes is the instruction's and the TMA's own matter: both go
//! through the same descriptor, and elements are named by row and column.
use super::fragment;
use super::registry::Registry;
use super::text::{cast, function, in_order, param, rest_of_shared, short, swapped, zero, SWAPPED};
use satune_ir::term::tensor::{Fragment, GroupMma, Mma};
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
pub struct Group {
    /// Which of the two.
    pub op: GroupMma,
    /// Columns: at most 256, a multiple of 8 with `wgmma`, of 16 with `tcgen05`.
    pub n: i64,
    /// Type of the operands, f32 being multiplied as tf32, and of the sums.
    pub types: [DType; 2],
    /// A is stored as k x m, B as n x k.
    pub transposed: [bool; 2],
    /// A is in the warps' registers, as `mma.sync` has it.
    pub held: bool,
}

/// What is its instruction's own.
pub(super) struct Own {
    /// The sums' parameter; all of it; and its element of a row and a column.
    pub sums: String,
    pub whole: String,
    pub place: fn(&str, &str) -> String,
    /// The call that multiplies.
    pub call: String,
    /// What clears the sums; `None`: it is written as what it does.
    pub clears: Option<String>,
}

impl Group {
    /// Extent along k: 32 bytes.
    pub fn k(&self) -> i64 {
        32 / i64::from(self.types[0].bytes())
    }

    /// The types of operands and sums, as names have them.
    pub(super) fn types(&self) -> String {
        let [operand, sums] = self.types;
        let operand = match operand {
            DType::F32 => "tf32",
            other => short(other.name()),
        };
        format!("{operand}{operand}{}", short(sums.name()))
    }

    /// The instruction of a warp that has A's rows in the same registers; none where A is in shared memory.
    fn of_a(&self) -> Option<Mma> {
        GroupMma::of_warp(self.types[0]).filter(|_| self.held)
    }

    /// The orders of storage, as names have them. Of tiles as wide as deep the shapes do not say them.
    pub(super) fn orders(&self) -> String {
        let [a, b] = self.transposed.map(|t| if t { 't' } else { 'n' });
        [if self.held { 'r' } else { a }, b].into_iter().collect()
    }

    /// Its name in the registry.
    pub fn name(&self) -> String {
        let (op, types, orders) = (self.op, self.types(), self.orders());
        format!("{op}_m{}n{}k{}_{types}_{orders}", op.rows(), self.n, self.k())
    }

    /// The name of what clears its sums.
    pub fn fill_name(&self) -> String {
        format!("{}_fill_m{}n{}_{}", self.op, self.op.rows(), self.n, short(self.types[1].name()))
    }

    /// The instruction that an intrinsic of the name is, and whether the description has B's factors first.
    pub fn of_call(name: &str) -> Option<(Group, bool)> {
        let plain = name.strip_suffix(SWAPPED);
        Group::named(plain.unwrap_or(name)).map(|group| (group, plain.is_some()))
    }

    /// The instruction of a name.
    pub fn named(name: &str) -> Option<Group> {
        let of_name = GroupMma::ALL.into_iter().find(|op| name.starts_with(op.name()))?;
        all(of_name).find(|g| g.name() == name)
    }
}

/// Numbers of columns.
fn columns(op: GroupMma) -> impl Iterator<Item = i64> {
    let step = if op.holds_sums() { 8 } else { 16 };
    (step..=MOST_COLUMNS).step_by(step as usize)
}

/// Operand types; sums of 16 bits are held in registers alone.
fn types(op: GroupMma) -> impl Iterator<Item = (DType, DType, bool)> {
    TYPES.into_iter().filter(move |(_, sums, _)| op.holds_sums() || sums.bytes() == 4)
}

fn all(op: GroupMma) -> impl Iterator<Item = Group> {
    types(op).flat_map(move |(operand, sums, across)| {
        let types = [operand, sums];
        let orders = [[false, true], [false, false], [true, true], [true, false]];
        let orders = orders.into_iter().filter(move |o| across || *o == [false, true]);
        let shared = orders.map(|transposed| (transposed, false));
        // Registers have rows of A.
        let held = [[false, true], [false, false]].into_iter().filter(move |o| op.holds_sums() && (across || o[1]));
        let ways = shared.chain(held.map(|transposed| (transposed, true)));
        ways.flat_map(move |(transposed, held)| columns(op).map(move |n| Group { op, n, types, transposed, held }))
    })
}

/// Puts all of an instruction's in the registry; `own`: what is its own.
pub(super) fn register(registry: &mut Registry, op: GroupMma, own: fn(&Group) -> Own) {
    // A block is known as the first that has its instructions: the swapped ones come last.
    for swapped in [false, true] {
        for instruction in all(op) {
            multiply(registry, &instruction, own(&instruction), swapped);
        }
    }
    // Sums of a type are cleared alike, whatever was multiplied.
    for (operand, sums, _) in types(op).filter(|(operand, ..)| matches!(operand, DType::F16 | DType::I8)) {
        for n in columns(op) {
            let group = Group { op, n, types: [operand, sums], transposed: [false, true], held: false };
            fill(registry, &group, own(&group));
        }
    }
}

fn multiply(registry: &mut Registry, g: &Group, own: Own, is_swapped: bool) {
    let (m, n, k) = (g.op.rows(), g.n, g.k());
    let Own { sums, whole, place, call, .. } = own;
    let [input, output] = g.types.map(DType::name);
    let shape = |transposed: bool, rows: i64, columns: i64| if transposed { [columns, rows] } else { [rows, columns] };
    let (a, b) = (shape(g.transposed[0], m, k), shape(g.transposed[1], k, n));
    let rest = rest_of_shared();
    let registers = g.of_a().map(|op| op.fragment_words()[0] * i64::from(op.word()));
    let params = |s: [&str; 2]| {
        let held =
            |count| format!("A: T.Buffer((4, 1, 32, {count}), \"{input}\", scope=\"warp\", offset_factor={count})");
        let of_a = registers.map_or_else(|| param("A", &a, input, s[0], &rest), held);
        [of_a, param("B", &b, input, s[1], &rest), sums.clone()]
    };
    let mut operands = [("A", &a), ("B", &b)].map(|(name, of)| format!("{name}[0:{}, 0:{}]", of[0], of[1]));
    if let Some(count) = registers {
        operands[0] = format!("A[0:4, 0:1, 0:32, 0:{count}]");
    }
    let reads = format!("{whole}, {}", in_order(is_swapped, operands, ", "));
    let c = place("vi", "vj");
    let at = |transposed: bool, name: &str, row: &str, column: &str| {
        let (x, y) = if transposed { (column, row) } else { (row, column) };
        cast(input, output, &format!("{name}[{x}, {y}]"))
    };
    let mut factors = [at(g.transposed[0], "A", "vi", "vk"), at(g.transposed[1], "B", "vk", "vj")];
    if let Some(op) = g.of_a() {
        let [lane, register] = fragment::held(op, Fragment::A, ["vi", "vk"], false);
        factors[0] = cast(input, output, &format!("A[vi // 16, vk // {k}, {lane}, {register}]"));
    }
    let description = format!(
        "for i, j, k in T.grid({m}, {n}, {k}):\n    with T.sblock(\"C\"):\n        vi, vj, vk = T.axis.remap(\"SSR\", \
         [i, j, k])\n        {c} = {c} + {}\n",
        in_order(is_swapped, factors, " * ")
    );
    registry.own(
        if is_swapped { swapped(&g.name()) } else { g.name() },
        function(&params(["", ""]), &reads, &whole, &description),
        function(&params(["a", "b"]), &reads, &whole, &call),
    );
}

fn fill(registry: &mut Registry, g: &Group, own: Own) {
    let Own { sums, whole, place, clears, .. } = own;
    let params = [sums];
    let description = format!(
        "for i, j in T.grid({}, {}):\n    with T.sblock(\"C_init\"):\n        vi, vj = T.axis.remap(\"SS\", [i, j])\n        \
         {} = {}\n",
        g.op.rows(),
        g.n,
        place("vi", "vj"),
        zero(g.types[1].name())
    );
    registry.own(
        g.fill_name(),
        function(&params, "", &whole, &description),
        function(&params, "", &whole, clears.as_ref().unwrap_or(&description)),
    );
}
