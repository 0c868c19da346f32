//! What is computed.
use super::{Epilogue, GatheredMatrix, Read, TensorError};
use crate::term::{Axis, Computed, Contraction, OperandInfo, Side};
use crate::DType;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// C = epilogue(A * B), or a batch of such products; all without gaps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gemm {
    /// Name of the main kernel.
    pub name: String,
    /// Products; the matrices of one follow those of the one before.
    pub batch: i64,
    /// Rows of C.
    pub m: i64,
    /// Columns of C.
    pub n: i64,
    /// Extent of the sum.
    pub k: i64,
    /// Type of A's and B's elements: f16, bf16, f32 (multiplied as tf32), i8; fp8 on `wgmma`.
    pub operand: DType,
    /// Type of C's elements.
    pub output: DType,
    /// Sums of f16 are held in f16, as C has them: the program says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub f16_sums: bool,
    /// A is stored as k x m.
    pub a_transposed: bool,
    /// B is stored as n x k.
    pub b_transposed: bool,
    /// C, and what is added to each result, are stored as n x m.
    pub c_transposed: bool,
    /// This is the transposed form `C^T = B^T A^T` of a product: A is its B, B its A, and a number per column of its result
    /// is one per row of C.
    pub swapped: bool,
    /// What is done with the sums.
    pub epilogue: Epilogue,
    /// What it reads beside the sums.
    #[serde(default)]
    pub reads: Vec<Read>,
    /// Where the results are along each dimension whose index it computes with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indices: Vec<GatheredMatrix>,
    /// Rows of C are several indices of the program (a convolution): a block puts results in their places.
    #[serde(default)]
    pub scattered: bool,
    /// Where results are, where memory does not hold C as a matrix.
    #[serde(default)]
    pub placed: Option<Box<GatheredMatrix>>,
    /// How A and B are gathered from memory, where that does not hold their matrices.
    #[serde(default)]
    pub gathered: [Option<Box<GatheredMatrix>>; 2],
}

/// Why a contraction is no product of two matrices that tensor cores take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor cores do not take this contraction: {0}")]
pub struct NotGemm(pub String);

impl Gemm {
    /// `alpha = 1` and nothing else, f32 sums rounded to the output's type.
    pub fn plain(name: &str, [m, n, k]: [i64; 3], operand: DType, output: DType, layout: &str) -> Gemm {
        let (a_transposed, b_transposed) = (layout.starts_with('T'), layout.ends_with('T'));
        Gemm {
            name: name.into(),
            batch: 1,
            m,
            n,
            k,
            operand,
            output,
            f16_sums: false,
            a_transposed,
            b_transposed,
            c_transposed: false,
            swapped: false,
            epilogue: Epilogue::default(),
            reads: Vec::new(),
            indices: Vec::new(),
            scattered: false,
            placed: None,
            gathered: [None, None],
        }
    }

    /// The product as a plan sees it whose operands are swapped, or are not; what is so already stays as it is.
    pub fn oriented(&self, swapped: bool) -> Cow<'_, Gemm> {
        if self.swapped == swapped {
            return Cow::Borrowed(self);
        }
        Cow::Owned(Gemm {
            m: self.n,
            n: self.m,
            a_transposed: !self.b_transposed,
            b_transposed: !self.a_transposed,
            c_transposed: !self.c_transposed,
            swapped,
            reads: self.reads.iter().map(Read::transposed).collect(),
            indices: self.indices.iter().map(GatheredMatrix::transposed).collect(),
            placed: self.placed.as_ref().map(|result| Box::new(result.transposed())),
            gathered: [1, 0].map(|i| self.gathered[i].as_ref().map(|factor| Box::new(factor.transposed()))),
            ..self.clone()
        })
    }

    /// The indices that the epilogue computes with, of a result of one of the products.
    pub fn indices_of(&self, product: i64, place: [i64; 2]) -> Vec<i64> {
        self.indices.iter().map(|index| index.place(product, place)).collect()
    }

    /// How a factor is gathered, where it is.
    pub fn gathered(&self, side: Side) -> Option<&GatheredMatrix> {
        self.gathered[usize::from(side == Side::B)].as_deref()
    }

    /// What computes a factor where it is copied, if anything does.
    pub fn computed(&self, side: Side) -> Option<&Computed> {
        self.made(side).filter(|of| !of.looked_up)
    }

    /// Whether a factor is copied as it is, from where data say.
    pub fn looked_up(&self, side: Side) -> bool {
        self.made(side).is_some_and(|of| of.looked_up)
    }

    fn made(&self, side: Side) -> Option<&Computed> {
        self.gathered(side).and_then(|factor| factor.of.computed.as_ref())
    }

    /// What the width of an access along C's rows in memory has to divide; `is_split`: along those of partial sums, a matrix.
    pub fn c_run(&self, is_split: bool) -> i64 {
        let along = if self.c_transposed { Axis::M } else { Axis::N };
        let placed = self.placed.as_ref().filter(|_| !is_split);
        placed.map_or(self.c_pitch(), |result| result.run(along))
    }

    /// Elements of C, or of partial sums, from one row in memory to the next.
    pub fn c_pitch(&self) -> i64 {
        if self.c_transposed {
            self.m
        } else {
            self.n
        }
    }

    /// Elements of C, of all products together.
    pub fn results(&self) -> i64 {
        self.batch * self.m * self.n
    }

    /// Whether there are instructions for the types of a contraction, and for what it combines.
    pub fn multiplied(contraction: &Contraction) -> bool {
        let operand = contraction.a.dtype;
        let typed = operand == contraction.b.dtype && multiplies(operand);
        typed && contraction.combine.is_none() && sums_of(operand).contains(&contraction.accumulate)
    }

    /// The matrix product that a contraction is.
    ///
    /// # Errors
    /// Where it is reduced over further axes, batch axes are not the outermost of all operands, operands have two types, or
    /// types that no instruction takes.
    pub fn of(contraction: &Contraction) -> Result<Gemm, NotGemm> {
        let no = |reason: &str| Err(NotGemm(reason.into()));
        // Where an axis has one value its index is 0, and of that there is nothing to pad.
        if contraction.gather.is_some() && [Axis::M, Axis::N].iter().any(|axis| contraction.extent(*axis) == 1) {
            return no("its result has one row or one column (a convolution of one position, or to one channel)");
        }
        if contraction.combine.is_some() {
            return no("it is no sum of products from 0 on");
        }
        if contraction.outer_reduce().count() > 0 {
            return no("it is reduced over axes beside k");
        }
        if contraction.a.dtype != contraction.b.dtype {
            return no("its operands have different types");
        }
        let batches: Vec<Axis> = contraction.batch().map(|(axis, _)| axis).collect();
        // Whether a matrix is stored as columns x rows.
        let stored = |operand: &OperandInfo, [row, column]: [Axis; 2]| -> Result<bool, NotGemm> {
            match operand.dims.strip_prefix(&batches[..]) {
                Some([first, last]) if [*first, *last] == [row, column] => Ok(false),
                Some([first, last]) if [*first, *last] == [column, row] => Ok(true),
                _ => Err(NotGemm(format!("`{}` is no matrix, or none per batch", operand.name))),
            }
        };
        let a_transposed = stored(&contraction.a, [Axis::M, Axis::K])?;
        let b_transposed = stored(&contraction.b, [Axis::K, Axis::N])?;
        let c_transposed = stored(&contraction.c, [Axis::M, Axis::N])?;
        let [m, n, k] = [Axis::M, Axis::N, Axis::K].map(|axis| contraction.extent(axis));
        let mut extents = contraction.batch().map(|(_, info)| info.extent);
        let Some(batch) = extents.try_fold(1_i64, i64::checked_mul) else {
            return no("it has too many products");
        };
        let (operand, output) = (contraction.a.dtype, contraction.c.dtype);
        let (epilogue, reads, indices) = super::epilogue::read(contraction).map_err(NotGemm)?;
        let name = contraction.block_name.clone();
        let gemm = Gemm {
            name,
            batch,
            m,
            n,
            k,
            operand,
            output,
            f16_sums: contraction.accumulate == DType::F16,
            a_transposed,
            b_transposed,
            c_transposed,
            swapped: false,
            epilogue,
            scattered: contraction.gather.is_some(),
            placed: GatheredMatrix::result(contraction),
            gathered: GatheredMatrix::of(contraction),
            reads,
            indices,
        };
        if !multiplies(operand) {
            return no(&format!("no instruction multiplies {operand:?}"));
        }
        if !sums_of(operand).contains(&contraction.accumulate) {
            let types: Vec<String> = sums_of(operand).iter().map(|dtype| format!("{dtype:?}")).collect();
            return no(&format!("sums of {operand:?} are held in {}", types.join(" or ")));
        }
        gemm.check().map_err(|e| NotGemm(e.to_string()))?;
        Ok(gemm)
    }

    /// Whether two of C's elements are packed into a register: floats of 16 bits.
    pub fn stores_halves(&self) -> bool {
        matches!(self.output, DType::F16 | DType::BF16)
    }

    /// The types of the operands and of the sums.
    pub fn types(&self) -> [DType; 2] {
        [self.operand, self.accumulator()]
    }

    /// 32-bit registers that so many sums of a thread take.
    pub fn sum_registers(&self, sums: i64) -> i64 {
        sums * i64::from(self.accumulator().bytes()) / 4
    }

    /// Type in which the sums are held.
    pub fn accumulator(&self) -> DType {
        if self.f16_sums {
            return DType::F16;
        }
        sums_of(self.operand)[0]
    }

    /// Sizes and the result's type.
    pub(super) fn check(&self) -> Result<(), TensorError> {
        for (what, size) in [("batch", self.batch), ("m", self.m), ("n", self.n), ("k", self.k)] {
            if size < 1 || size > i64::from(i32::MAX) {
                return Err(TensorError::Size(what, size));
            }
        }
        // Two sizes fit 62 bits; the third must leave room for tiles and parts.
        for (what, matrix) in [("A", self.m * self.k), ("B", self.k * self.n), ("C", self.m * self.n)] {
            if matrix.checked_mul(self.batch).is_none_or(|all| all > 1 << 48) {
                return Err(TensorError::Elements(what));
            }
        }
        use DType::{Bool, BF16, F16, F32, F8E4M3, F8E5M2, I16, I32, I8, U16, U32, U8};
        match self.output {
            F32 | F16 | BF16 | F8E4M3 | F8E5M2 | Bool | I8 | I16 | I32 | U8 | U16 | U32 => Ok(()),
            output => Err(TensorError::OutputType { accumulator: self.accumulator(), output }),
        }
    }
}

/// Whether there is an instruction of tensor cores that multiplies operands of a type: `wgmma` has one for all of them.
pub fn multiplies(operand: DType) -> bool {
    use DType::{BF16, F16, F32, F8E4M3, F8E5M2, I8};
    matches!(operand, F16 | BF16 | F32 | I8 | F8E4M3 | F8E5M2)
}

/// Types in which instructions hold sums of products, the usual one first.
fn sums_of(operand: DType) -> &'static [DType] {
    match operand {
        DType::I8 => &[DType::I32],
        DType::F16 => &[DType::F32, DType::F16],
        _ => &[DType::F32],
    }
}
