//! What a problem's candidates are compared with: the vendor's library where it has the same computation, the product
//! alone where more is done with it or its matrices are gathered (a convolution), and a copy of the least bytes for programs
//! that only stream.
use super::super::protocol::{LibraryJob, ProductJob};
use crate::operators::Problem;
use crate::workload::{ProblemKind, Workload};
use satune_ir::term::stream::{BlockKind, Streams};
use satune_ir::term::tensor::Gemm;
use satune_ir::term::{Axis, Contraction, OperandInfo};
use satune_ir::{visit, BinOp, DType, Expr, Program, Stmt};

/// What to compare with.
pub(super) struct Opponent {
    /// In a table.
    pub what: &'static str,
    /// It computes what the problem asks for.
    pub whole: bool,
    /// How.
    pub job: LibraryJob,
    /// The problem that it computes, where that is another one.
    pub alone: Option<Box<Problem>>,
}

/// What candidates of a problem are compared with.
///
/// # Errors
/// Why there is nothing.
pub(super) fn of(problem: &dyn Workload) -> Result<Opponent, String> {
    match problem.kind() {
        ProblemKind::Streams(streams) => Ok(of_streams(problem.program(), streams)),
        ProblemKind::Contraction(c) if c.combine.is_some() => {
            Err("no library is known that combines two operands like this program".into())
        }
        ProblemKind::Contraction(contraction) => {
            let tf32 = problem.allows_tf32();
            // A cast of the sums is no more than the library does itself.
            let stored = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::I32);
            let casts = || Gemm::of(contraction).is_ok_and(|g| g.epilogue == Default::default() && stored(g.output));
            if contraction.gather.is_none() && (contraction.epilogue.is_none() || casts()) {
                let params = params(problem.program(), contraction)?;
                let job = LibraryJob::Product(product(contraction, params, tf32)?);
                return Ok(Opponent { what: name(contraction, tf32), whole: true, job, alone: None });
            }
            let alone = Problem::product_of(contraction, tf32)?;
            let job = LibraryJob::Product(product(&alone.contraction, [0, 1, 2], tf32)?);
            let what = match contraction.gather {
                Some(_) => "cuBLAS, a product of matrices of its size",
                None => "cuBLAS, the product alone",
            };
            Ok(Opponent { what, whole: false, job, alone: Some(Box::new(alone)) })
        }
    }
}

fn name(contraction: &Contraction, tf32: bool) -> &'static str {
    match contraction.a.dtype {
        DType::F8E4M3 | DType::F8E5M2 => "cuBLASLt",
        DType::F32 if tf32 => "cuBLAS with TF32",
        _ => "cuBLAS",
    }
}

/// Which of the program's parameters A, B and C are.
fn params(program: &Program, c: &Contraction) -> Result<[usize; 3], String> {
    let at = |o: &OperandInfo| program.params.iter().position(|id| *id == o.buffer);
    let none = || "an operand of the product is no parameter of the program".to_string();
    let (a, b) = (at(&c.a).ok_or_else(none)?, at(&c.b).ok_or_else(none)?);
    Ok([a, b, at(&c.c).ok_or_else(none)?])
}

fn product(c: &Contraction, params: [usize; 3], tf32: bool) -> Result<ProductJob, String> {
    let axes = [Axis::Batch(0), Axis::M, Axis::N, Axis::K];
    if c.iters.iter().any(|(axis, _)| !axes.contains(axis)) {
        return Err("cuBLAS has no product with axes beside a batch, m, n and k".into());
    }
    let stride = |o: &OperandInfo, axis: Axis| -> i64 {
        let after = o.dims.iter().skip_while(|d| **d != axis).skip(1);
        if o.dims.contains(&axis) {
            after.map(|d| c.extent(*d)).product()
        } else {
            0
        }
    };
    let strides = [&c.a, &c.b, &c.c].map(|o| axes.map(|axis| stride(o, axis)));
    // A result by columns would be another product, of the operands in the other order.
    if strides[2][2] != 1 && c.extent(Axis::N) > 1 {
        return Err("cuBLAS is not asked for products whose result is stored by columns".into());
    }
    let f16_sums = c.accumulate == DType::F16;
    Ok(ProductJob { params, extents: axes.map(|axis| c.extent(axis)), strides, tf32, f16_sums })
}

fn of_streams(program: &Program, streams: &Streams) -> Opponent {
    match rows(program, streams) {
        Some(job) => Opponent { what: "cuBLAS (cublasSgemv)", whole: true, job, alone: None },
        None => {
            let job = LibraryJob::Copy { bytes: streams.least_bytes() as u64 };
            Opponent { what: "a copy of the least bytes", whole: false, job, alone: None }
        }
    }
}

/// The product of a matrix and a vector in f32, where the program is one.
fn rows(program: &Program, streams: &Streams) -> Option<LibraryJob> {
    let stream = streams.whole();
    let [block] = &stream.blocks[..] else { return None };
    let [matrix, vector] = &block.reads[..] else { return None };
    let plain = block.kind == BlockKind::Reduce && matrix.split.is_none() && vector.split.is_none();
    let shapes = matrix.dims == [Some(0), Some(1)] && vector.dims == [Some(1)] && block.write.dims == [Some(0)];
    if !(plain && shapes) {
        return None;
    }
    let number = |buffer: usize| {
        let name = &stream.buffers.get(buffer).filter(|b| b.dtype == DType::F32)?.name;
        program.params.iter().position(|id| program.buffer(*id).name == *name)
    };
    let params = [number(matrix.buffer)?, number(vector.buffer)?, number(block.write.buffer)?];
    // y + A * x, and nothing else.
    let mut multiplies = false;
    visit::walk_stmt(&program.body.block.body, &mut |s| {
        if let Stmt::Store { value: Expr::Binary(BinOp::Add, sum, term), .. } = s {
            if let (Expr::Load(..), Expr::Binary(BinOp::Mul, a, b)) = (sum.as_ref(), term.as_ref()) {
                multiplies |= matches!((a.as_ref(), b.as_ref()), (Expr::Load(..), Expr::Load(..)));
            }
        }
    });
    let [rows, columns] = [block.iters.first()?.extent, block.iters.get(1)?.extent];
    multiplies.then_some(LibraryJob::Rows { params, rows, columns })
}
