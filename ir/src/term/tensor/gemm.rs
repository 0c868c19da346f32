//! What is computed.
use super::TensorError;
use crate::term::{Axis, Contraction};
use crate::DType;
use serde::{Deserialize, Serialize};

/// C = epilogue(A * B), all row-major without gaps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gemm {
    /// Name of the main kernel.
    pub name: String,
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
    /// A is stored as k x m.
    pub a_transposed: bool,
    /// B is stored as n x k.
    pub b_transposed: bool,
    /// What is done with the sums.
    pub epilogue: Epilogue,
}

/// `activation(alpha * sum + bias) + residual`, rounded to C's type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epilogue {
    /// Factor of the sums.
    pub alpha: f64,
    /// Whether one number per column is added.
    pub bias: bool,
    /// Function.
    pub activation: Activation,
    /// Factor of a matrix like C that is added.
    pub residual: Option<f64>,
}

impl Default for Epilogue {
    fn default() -> Epilogue {
        Epilogue { alpha: 1.0, bias: false, activation: Activation::None, residual: None }
    }
}

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activation {
    /// x
    None,
    /// max(x, 0)
    Relu,
    /// By tanh.
    Gelu,
    /// x * sigmoid(x)
    Silu,
}

/// Why a contraction is no product of two matrices that tensor cores take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor cores do not take this contraction: {0}")]
pub struct NotGemm(pub String);

impl Gemm {
    /// `alpha = 1` and nothing else, f32 sums rounded to the output's type.
    pub fn plain(name: &str, [m, n, k]: [i64; 3], operand: DType, output: DType, layout: &str) -> Gemm {
        let (a_transposed, b_transposed) = (layout.starts_with('T'), layout.ends_with('T'));
        let epilogue = Epilogue::default();
        Gemm { name: name.into(), m, n, k, operand, output, a_transposed, b_transposed, epilogue }
    }

    /// The matrix product that a contraction is.
    ///
    /// # Errors
    /// Where it has further axes, operands of two types, a result stored by columns, or types that no instruction takes.
    pub fn of(contraction: &Contraction) -> Result<Gemm, NotGemm> {
        let no = |reason: &str| Err(NotGemm(reason.into()));
        if contraction.gather.is_some() {
            return no("its operands are no matrices in memory, but gathered (a convolution)");
        }
        if contraction.batch().count() > 0 || contraction.outer_reduce().count() > 0 {
            return no("it has axes beside m, n and k");
        }
        if contraction.a.dtype != contraction.b.dtype {
            return no("its operands have different types");
        }
        if contraction.c.dims != [Axis::M, Axis::N] {
            return no("its result is stored by columns");
        }
        let a_transposed = match contraction.a.dims[..] {
            [Axis::M, Axis::K] => false,
            [Axis::K, Axis::M] => true,
            _ => return no("A is no matrix"),
        };
        let b_transposed = match contraction.b.dims[..] {
            [Axis::K, Axis::N] => false,
            [Axis::N, Axis::K] => true,
            _ => return no("B is no matrix"),
        };
        let [m, n, k] = [Axis::M, Axis::N, Axis::K].map(|axis| contraction.extent(axis));
        let (operand, output) = (contraction.a.dtype, contraction.c.dtype);
        let epilogue = super::epilogue::recognized(contraction).map_err(NotGemm)?;
        let name = contraction.block_name.clone();
        let gemm = Gemm { name, m, n, k, operand, output, a_transposed, b_transposed, epilogue };
        if !super::wgmma::multiplies(operand) {
            return no(&format!("no instruction multiplies {operand:?}"));
        }
        if gemm.accumulator() != contraction.accumulate {
            return no(&format!("sums of {operand:?} are held in {:?}", gemm.accumulator()));
        }
        gemm.check().map_err(|e| NotGemm(e.to_string()))?;
        Ok(gemm)
    }

    /// The operands of the contraction's epilogue that are added per column and per result, by number.
    pub fn added(contraction: &Contraction) -> [Option<usize>; 2] {
        [super::epilogue::bias(contraction), super::epilogue::residual(contraction)].map(|r| r.ok().flatten())
    }

    /// Type in which the sums are held.
    pub fn accumulator(&self) -> DType {
        if self.operand == DType::I8 {
            DType::I32
        } else {
            DType::F32
        }
    }

    /// Sizes and the result's type.
    pub(super) fn check(&self) -> Result<(), TensorError> {
        for (what, size) in [("m", self.m), ("n", self.n), ("k", self.k)] {
            if size < 1 || size > i64::from(i32::MAX) {
                return Err(TensorError::Size(what, size));
            }
        }
        let (accumulator, output) = (self.accumulator(), self.output);
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
}
