//! Matrix products on tensor cores: from a short description of a schedule to kernels.
//!
//! [`Gemm`] says what is computed, [`TensorPlan`] how on `mma.sync` (sm_80 and later), [`WgmmaPlan`] how on `wgmma`
//! (sm_90a). Both give a [`TensorModule`]: kernels to be launched in order, and the operands that each takes.
//! `docs/TENSOR.md` describes the schedules.
mod epilogue;
mod fragments;
mod mma;
mod mma_store;
mod tile;
mod wgmma;
mod wgmma_plan;
mod wgmma_store;

pub use epilogue::{Activation, Epilogue};
pub use wgmma_plan::{TileStore, WgmmaPlan};

use super::index::{add, all, c, div, mul, rem};
use crate::kernel::{Array, ArrayId, Cond, Dim, Index, Kernel, LocalVar, Mma, Space, Stmt, Unroll};
use satune_ir::DType;

/// C = epilogue(A * B), all row-major without gaps.
#[derive(Clone, Debug, PartialEq)]
pub struct Gemm {
    /// Name of the main kernel.
    pub name: String,
    /// Rows of C.
    pub m: i64,
    /// Columns of C.
    pub n: i64,
    /// Extent of the sum.
    pub k: i64,
    /// Type of A's and B's elements: f16, bf16, f32 (multiplied as tf32), i8.
    pub operand: DType,
    /// Type of C's elements.
    pub output: DType,
    /// A is stored as k x m.
    pub a_transposed: bool,
    /// B is stored as n x k.
    pub b_transposed: bool,
    /// What is done with the sums.
    pub epilogue: Epilogue,
}

impl Gemm {
    /// `alpha = 1` and nothing else, f32 sums rounded to the output's type.
    pub fn plain(name: &str, [m, n, k]: [i64; 3], operand: DType, output: DType, layout: &str) -> Gemm {
        let (a_transposed, b_transposed) = (layout.starts_with('T'), layout.ends_with('T'));
        let epilogue = Epilogue::default();
        Gemm { name: name.into(), m, n, k, operand, output, a_transposed, b_transposed, epilogue }
    }

    /// Type in which the sums are held.
    pub fn accumulator(&self) -> DType {
        if self.operand == DType::I8 {
            DType::I32
        } else {
            DType::F32
        }
    }
}

/// A schedule on `mma.sync`: a ring of tiles in shared memory filled by `cp.async`, fragments by `ldmatrix`, double
/// buffered along k.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorPlan {
    /// Tile of a block: m, n, k.
    pub tile: [i64; 3],
    /// Tile of a warp: m, n.
    pub warp: [i64; 2],
    /// Instruction; its operand type is the problem's.
    pub instruction: Mma,
    /// Tiles in the ring, 2 at least.
    pub stages: u32,
    /// Whether 16-byte chunks of a tile are xor-ed with the row, which frees `ldmatrix` of bank conflicts.
    pub swizzle: bool,
    /// Rows of tiles that neighbouring blocks walk down before the next column (1: along rows).
    pub group: i64,
    /// Parts of k, summed by a second kernel.
    pub split_k: i64,
    /// How C is written.
    pub store: Store,
    /// Blocks that are to fit on a multiprocessor at once, where the compiler shall save registers for that.
    pub min_blocks: Option<u32>,
}

impl TensorPlan {
    /// Whether the plan fits the problem.
    ///
    /// # Errors
    /// The condition that does not hold.
    pub fn check(&self, gemm: &Gemm) -> Result<(), TensorError> {
        mma::check(gemm, self)
    }

    /// Threads per block.
    pub fn threads(&self) -> i64 {
        self.tile[0] / self.warp[0].max(1) * (self.tile[1] / self.warp[1].max(1)) * 32
    }

    /// Shared memory per block, bytes.
    pub fn shared_bytes(&self, gemm: &Gemm) -> i64 {
        let [m, n, k] = self.tile;
        i64::from(self.stages) * (m + n) * k * i64::from(gemm.operand.bytes())
    }

    /// Blocks, all parts of k together.
    pub fn blocks(&self, gemm: &Gemm) -> i64 {
        let tiles = |extent: i64, tile: i64| (extent + tile.max(1) - 1) / tile.max(1);
        tiles(gemm.m, self.tile[0]) * tiles(gemm.n, self.tile[1]) * self.split_k
    }
}

/// How C is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Store {
    /// From the fragments.
    Direct,
    /// By way of shared memory, 16 bytes per access (types of 16 bits, rows of a multiple of 16 bytes).
    Shared {
        /// With `stmatrix` (sm_90).
        stmatrix: bool,
    },
}

/// Kernels to be launched in order, and the buffer between them.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorModule {
    /// In order.
    pub kernels: Vec<Kernel>,
    /// For each kernel: the operand for each of its parameters.
    pub args: Vec<Vec<Operand>>,
    /// Elements of the workspace (partial sums of split-K) and their type; 0 where there is none.
    pub workspace: (u64, DType),
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
    /// One number per column of C, of C's type.
    Bias,
    /// As C.
    Residual,
    /// Partial sums.
    Workspace,
}

/// Why a plan has no kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// A size that is not positive, or beyond 2^31.
    #[error("{0} is {1}; sizes are 1 to 2^31 - 1")]
    Size(&'static str, i64),
    /// The instruction does not take these operands.
    #[error("{instruction} does not multiply {operand:?}")]
    OperandType {
        /// Instruction.
        instruction: String,
        /// Operand type.
        operand: DType,
    },
    /// The result cannot have this type.
    #[error("sums in {accumulator:?} are not stored as {output:?}")]
    OutputType {
        /// Type of the sums.
        accumulator: DType,
        /// Type of C.
        output: DType,
    },
    /// A tile does not divide.
    #[error("{what} is {value}; it must be a positive multiple of {of}")]
    Multiple {
        /// What.
        what: &'static str,
        /// Its value.
        value: i64,
        /// What it must be a multiple of.
        of: i64,
    },
    /// Rows of a tile whose 16-byte chunks cannot be xor-ed.
    #[error("rows of {0}'s tile have {1} 16-byte chunks; a swizzle takes 1, 2, 4 or a multiple of 8")]
    Swizzle(&'static str, i64),
    /// Too many threads, or none.
    #[error("{0} threads per block; a GPU runs 32 to 1024")]
    Threads(i64),
    /// The ring is too short or too long.
    #[error("{0} stages; a ring has 2 to 16")]
    Stages(u32),
    /// Too much shared memory.
    #[error("{bytes} bytes of shared memory per block; at most {most}")]
    Shared {
        /// Asked for.
        bytes: i64,
        /// Limit.
        most: i64,
    },
    /// The way through shared memory is not open.
    #[error("C cannot be stored by way of shared memory: {0}")]
    Store(&'static str),
    /// `wgmma` reads other types than 16-bit ones along k only.
    #[error("wgmma reads {operand:?} only along k: {side} is stored across it")]
    Order {
        /// Operand type.
        operand: DType,
        /// A or B.
        side: &'static str,
    },
    /// More accumulators than registers.
    #[error("{0} accumulators per thread; at most {1} fit")]
    Accumulators(i64, i64),
    /// What the TMA cannot move.
    #[error("the TMA cannot move {0}: {1}")]
    TensorMap(&'static str, &'static str),
    /// More parts than tiles along k.
    #[error("{parts} parts of {tiles} tiles along k")]
    Split {
        /// Parts.
        parts: i64,
        /// Tiles.
        tiles: i64,
    },
}

/// Shared memory that a block can have on the largest GPUs, bytes.
const MOST_SHARED: i64 = 227 * 1024;

/// Lowers a plan on `mma.sync`.
///
/// # Errors
/// Where the plan does not fit the problem; see [`TensorError`].
pub fn lower_mma(gemm: &Gemm, plan: &TensorPlan) -> Result<TensorModule, TensorError> {
    mma::lower(gemm, plan)
}

/// Lowers a plan on `wgmma`.
///
/// # Errors
/// Where the plan does not fit the problem; see [`TensorError`].
pub fn lower_wgmma(gemm: &Gemm, plan: &WgmmaPlan) -> Result<TensorModule, TensorError> {
    wgmma::lower(gemm, plan)
}

fn check_problem(gemm: &Gemm) -> Result<(), TensorError> {
    for (what, size) in [("m", gemm.m), ("n", gemm.n), ("k", gemm.k)] {
        if size < 1 || size > i64::from(i32::MAX) {
            return Err(TensorError::Size(what, size));
        }
    }
    let (accumulator, output) = (gemm.accumulator(), gemm.output);
    let fits = match accumulator {
        DType::I32 => matches!(output, DType::I32 | DType::F32),
        _ => matches!(output, DType::F32 | DType::F16 | DType::BF16),
    };
    if fits {
        Ok(())
    } else {
        Err(TensorError::OutputType { accumulator, output })
    }
}

fn multiple(what: &'static str, value: i64, of: i64) -> Result<(), TensorError> {
    if value > 0 && value % of == 0 {
        Ok(())
    } else {
        Err(TensorError::Multiple { what, value, of })
    }
}

/// What both generators need to build a kernel.
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

    /// The operands' parameters: A, B, then what the epilogue reads, then C or the workspace.
    fn params(&mut self, gemm: &Gemm, split: i64) -> Params {
        let a = self.array("A", gemm.operand, gemm.m * gemm.k, Space::Global, 16);
        let b = self.array("B", gemm.operand, gemm.k * gemm.n, Space::Global, 16);
        let mut operands = vec![Operand::A, Operand::B];
        let (mut bias, mut residual) = (None, None);
        if split == 1 {
            (bias, residual) = self.epilogue_params(gemm, &mut operands);
        }
        let (name, dtype, last) = match split {
            1 => ("C", gemm.output, Operand::C),
            _ => ("partial", gemm.accumulator(), Operand::Workspace),
        };
        let out = self.array(name, dtype, gemm.m * gemm.n * split, Space::Global, 16);
        self.arrays[out.0 as usize].written = true;
        operands.push(last);
        Params { a, b, bias, residual, out, operands }
    }

    fn epilogue_params(&mut self, gemm: &Gemm, operands: &mut Vec<Operand>) -> (Option<ArrayId>, Option<ArrayId>) {
        let (mut bias, mut residual) = (None, None);
        if gemm.epilogue.bias {
            bias = Some(self.array("bias", gemm.output, gemm.n, Space::Global, 16));
            operands.push(Operand::Bias);
        }
        if gemm.epilogue.residual.is_some() {
            residual = Some(self.array("residual", gemm.output, gemm.m * gemm.n, Space::Global, 16));
            operands.push(Operand::Residual);
        }
        (bias, residual)
    }
}

/// Parameters of a kernel.
#[derive(Clone, Debug)]
struct Params {
    a: ArrayId,
    b: ArrayId,
    bias: Option<ArrayId>,
    residual: Option<ArrayId>,
    out: ArrayId,
    operands: Vec<Operand>,
}

/// Place of a tile from its number: down `group` rows of tiles, then the next column.
fn raster(number: &Index, rows: i64, columns: i64, group: i64) -> (Index, Index) {
    let group = group.clamp(1, rows);
    if group == 1 {
        return (div(number.clone(), columns), rem(number.clone(), columns));
    }
    let per = group * columns;
    let first = mul(div(number.clone(), per), group);
    let within = rem(number.clone(), per);
    if rows % group == 0 {
        return (add(first, rem(within.clone(), group)), div(within, group));
    }
    // The last group has fewer rows.
    let left = Index::Sub(Box::new(c(rows)), Box::new(first.clone()));
    let high = Index::Min(Box::new(left), Box::new(c(group)));
    let row = Index::Mod(Box::new(within.clone()), Box::new(high.clone()));
    (add(first, row), Index::Div(Box::new(within), Box::new(high)))
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
