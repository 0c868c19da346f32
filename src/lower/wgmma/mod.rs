//! Matrix products on `wgmma` and `tcgen05`: from a short description of a schedule to kernels.
//!
//! [`Gemm`] says what is computed, [`WgmmaPlan`] how; they and their legality are [`satune_ir::term::tensor`]'s. Lowering gives a
//! [`TensorModule`]: kernels to be launched in order, and the operands that each takes. `docs/TENSOR.md` describes the schedules. All other
//! products are lowered as any scheduled program is, see [`super::program`].
mod align;
mod boxes;
mod epilogue;
mod gathered;
mod pipeline;
mod store;
mod stream_k;
mod tensor_memory;

pub use crate::kernel::Mma;
pub use satune_ir::term::tensor::{
    CopyOrder, Epilogue, Gemm, OperandPlan, Order, Raster, Read, Store, TensorError, TensorPlan, TileLayout, TileStore,
    WgmmaPlan,
};

use super::index::{add, all, c, div, grouped, mul, rem};
use crate::kernel::{Array, ArrayId, Cond, Dim, Index, Kernel, LocalVar, Space, Stmt, Unroll, Value, WarpOp};
use satune_ir::term::tensor::wgmma_conditions::AlignedRows;
use satune_ir::DType;

/// Kernels to be launched in order, and the buffer between them.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorModule {
    /// In order.
    pub kernels: Vec<Kernel>,
    /// For each kernel: the operand for each of its parameters.
    pub args: Vec<Vec<Operand>>,
    /// The buffers between kernels: partial sums, operands whose rows are copied first.
    pub workspaces: Vec<Between>,
    /// The number of the kernel that multiplies.
    pub main: usize,
}

/// A buffer between kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Between {
    /// Its name.
    pub name: &'static str,
    /// Elements, and their type.
    pub elements: u64,
    /// Type of its elements.
    pub dtype: DType,
}

impl Between {
    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.elements * u64::from(self.dtype.bytes())
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// First factor.
    A,
    /// Second factor.
    B,
    /// Result.
    C,
    /// What the epilogue reads, by number.
    Read(usize),
    /// A buffer between kernels, by number.
    Between(usize),
}

/// Lowers a plan on `wgmma` or `tcgen05`.
///
/// # Errors
/// Where the plan does not fit the problem; see [`TensorError`].
pub fn lower_wgmma(gemm: &Gemm, plan: &WgmmaPlan) -> Result<TensorModule, TensorError> {
    pipeline::lower(gemm, plan)
}

/// A kernel's name, and the lines at its head: what it computes, then its schedule.
fn title(gemm: &Gemm, is_partial: bool, schedule: Vec<String>) -> (String, Vec<String>) {
    let letter = |t: bool| if t { 'T' } else { 'N' };
    let gemm = gemm.oriented(false);
    let (a, b) = (letter(gemm.a_transposed), letter(gemm.b_transposed));
    let Gemm { batch, m, n, k, operand, output, .. } = *gemm;
    let times = if batch == 1 { String::new() } else { format!("{batch} times ") };
    let stored = match (&gemm.placed, gemm.c_transposed) {
        (Some(_), _) => ", stored at places of its rows and columns",
        (None, true) => ", stored by columns",
        (None, false) => "",
    };
    let product = format!("{times}C ({m} x {n}, {output:?}{stored}) = A * B, k {k}, {operand:?}, {a}{b}");
    let name = if is_partial { format!("{}_partial", gemm.name) } else { gemm.name.clone() };
    (name, [vec![product], schedule].concat())
}

/// A kernel under construction.
struct Builder {
    arrays: Vec<Array>,
    shared_bytes: u32,
    vars: u32,
}

impl Builder {
    fn new() -> Builder {
        Builder { arrays: Vec::new(), shared_bytes: 0, vars: 0 }
    }

    fn fresh(&mut self) -> LocalVar {
        self.vars += 1;
        LocalVar(self.vars - 1)
    }

    /// `const int name = value;`, where it is more than a name or number.
    fn bind(&mut self, body: &mut Vec<Stmt>, name: &str, value: Index) -> Index {
        if matches!(value, Index::Const(_) | Index::Var(_)) {
            return value;
        }
        let var = self.fresh();
        body.push(Stmt::Let { var, name: name.into(), value });
        Index::Var(var)
    }

    fn array(&mut self, name: &str, dtype: DType, len: i64, space: Space, align: u32) -> ArrayId {
        let written = space != Space::Global;
        let mut array = Array { name: name.into(), dtype, len: len as u64, space, align, shared_offset: 0, written };
        if space == Space::Shared {
            array.shared_offset = self.shared_bytes.next_multiple_of(align);
            self.shared_bytes = array.shared_offset + len as u32 * dtype.bytes();
        }
        self.arrays.push(array);
        ArrayId(self.arrays.len() as u32 - 1)
    }

    /// `for name in start..start + extent`; nothing where it has no iteration.
    fn repeat(
        &mut self,
        name: &str,
        (start, extent): (i64, i64),
        unroll: Unroll,
        body: impl FnOnce(&mut Self, Index) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        match extent {
            ..=0 => Vec::new(),
            1 => body(self, c(start)),
            _ => {
                let var = self.fresh();
                let body = body(self, Index::Var(var));
                vec![Stmt::For { var, name: name.into(), start: c(start), extent: c(extent), unroll, body }]
            }
        }
    }

    /// Where a thread holds sums: two of f16 in a register.
    fn space_of_sums(gemm: &Gemm) -> Space {
        match gemm.accumulator().bytes() {
            4 => Space::Register,
            _ => Space::Fragment,
        }
    }

    /// Sums in a thread's registers begin with zeros.
    fn cleared(&mut self, sums: ArrayId, count: i64) -> Vec<Stmt> {
        let Array { dtype, space, .. } = self.arrays[sums.0 as usize];
        let per_word = if space == Space::Fragment { 2 } else { 1 };
        self.repeat("i", (0, count / per_word), Unroll::Full, |_, i| {
            vec![match per_word {
                1 => Stmt::Store { array: sums, index: i, value: Value::zero(dtype) },
                _ => {
                    let [low, high] = [Value::zero(dtype), Value::zero(dtype)];
                    Stmt::Warp(WarpOp::Pack { dst: (sums, mul(i, per_word)), low, high })
                }
            }]
        })
    }

    /// The operands' parameters: the left factor, the right one, then what the epilogue reads, then C or the workspace. Some factors are
    /// copies, each the buffer of this number; partial sums come after these.
    fn params(&mut self, gemm: &Gemm, split: i64, copied: [Option<(usize, AlignedRows)>; 2]) -> Params {
        let mut factors = [(Operand::A, "A"), (Operand::B, "B")];
        if gemm.swapped {
            factors.reverse();
        }
        let [a, b] = [0, 1].map(|i| {
            let of_matrix = gemm.batch * gemm.k * [gemm.m, gemm.n][i];
            let elements = gemm.gathered[i].as_ref().map_or(of_matrix, |factor| factor.of.elements());
            let elements = copied[i].map_or(elements, |(_, copy)| copy.elements());
            self.array(factors[i].1, gemm.operand, elements, Space::Global, 16)
        });
        let between = |i: usize| copied[i].map(|(number, _)| Operand::Between(number));
        let mut operands: Vec<Operand> = (0..2).map(|i| between(i).unwrap_or(factors[i].0)).collect();
        let reads = if split == 1 { self.epilogue_params(gemm, &mut operands) } else { Vec::new() };
        let (name, dtype, last) = match split {
            1 => ("C", gemm.output, Operand::C),
            _ => ("partial", gemm.accumulator(), Operand::Between(copied.iter().flatten().count())),
        };
        let out = self.array(name, dtype, gemm.results() * split, Space::Global, 16);
        self.arrays[out.0 as usize].written = true;
        operands.push(last);
        Params { a, b, reads, out, operands }
    }

    fn epilogue_params(&mut self, gemm: &Gemm, operands: &mut Vec<Operand>) -> Vec<ArrayId> {
        operands.extend((0..gemm.reads.len()).map(Operand::Read));
        let array = |read: &Read| self.array(&read.name, read.dtype, read.elements(gemm.results()), Space::Global, 16);
        gemm.reads.iter().map(array).collect()
    }
}

/// Parameters of a kernel.
#[derive(Clone, Debug)]
struct Params {
    a: ArrayId,
    b: ArrayId,
    /// What the epilogue reads.
    reads: Vec<ArrayId>,
    out: ArrayId,
    operands: Vec<Operand>,
}

/// Index of a result in a matrix, from that of its product's (or part's) first.
fn result(gemm: &Gemm, first: &Index, row: &Index, column: &Index) -> Index {
    let place = match gemm.c_transposed {
        false => add(mul(row.clone(), gemm.n), column.clone()),
        true => add(mul(column.clone(), gemm.m), row.clone()),
    };
    add(first.clone(), place)
}

/// A result of a product: its row and column, and its index in memory.
struct ResultPlace<'a> {
    batch: &'a Index,
    row: &'a Index,
    column: &'a Index,
    index: &'a Index,
}

/// Index in memory of a result of a product.
fn in_memory(gemm: &Gemm, batch: &Index, row: &Index, column: &Index) -> Index {
    match &gemm.placed {
        None => result(gemm, &first_result(gemm, &c(0), batch), row, column),
        Some(placed) => gathered::place(placed, batch, row, column),
    }
}

/// Index of the first result of a product, of a part of k.
fn first_result(gemm: &Gemm, part: &Index, batch: &Index) -> Index {
    add(mul(part.clone(), gemm.results()), mul(batch.clone(), gemm.m * gemm.n))
}

/// (product, number of the tile within it) from a tile's number, where each has so many.
fn product(gemm: &Gemm, number: Index, tiles: i64) -> (Index, Index) {
    match gemm.batch {
        1 => (c(0), number),
        _ => (div(number.clone(), tiles), rem(number, tiles)),
    }
}

/// (row, column) of a tile from its number, in the plan's order.
fn place(number: &Index, rows: i64, columns: i64, raster: Raster) -> (Index, Index) {
    if raster.columns {
        let (column, row) = grouped(number, columns, rows, raster.group);
        return (row, column);
    }
    grouped(number, rows, columns, raster.group)
}

/// Two neighbours from the registers where they are side by side.
fn copy_pair(pair: ArrayId, (dst, dst_index): (ArrayId, Index)) -> Stmt {
    Stmt::Copy { dst, dst_index, src: pair, src_index: c(0), width: 2, zero_unless: Cond::True }
}

/// Two neighbours as one store, by way of registers where they are side by side.
fn store_pair(pair: ArrayId, [low, high]: [Value; 2], to: (ArrayId, Index)) -> Vec<Stmt> {
    let store = |i, value| Stmt::Store { array: pair, index: c(i), value };
    vec![store(0, low), store(1, high), copy_pair(pair, to)]
}

/// `a < b`, or nothing to check.
fn less(needed: bool, a: &Index, b: i64) -> Cond {
    if needed {
        Cond::Lt(a.clone(), c(b))
    } else {
        Cond::True
    }
}

fn guarded(cond: Cond, then: Vec<Stmt>) -> Vec<Stmt> {
    match cond {
        Cond::True => then,
        cond => vec![Stmt::If { cond, then, otherwise: vec![] }],
    }
}

fn both(a: Cond, b: Cond) -> Cond {
    all(vec![a, b])
}

fn thread() -> Index {
    Index::ThreadIdx(Dim::X)
}
