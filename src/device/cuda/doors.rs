//! The ways to have a library's result: of a product of matrices `cublasGemmEx`, `cublasGemmStridedBatchedEx` and the
//! first choices of cuBLASLt's heuristic, in fp8 with and without fast accumulation. A library is as fast as its fastest.
use super::super::protocol::{Compared, Door, LibraryJob, ProductJob};
use super::driver::blas::{Blas, Gemm};
use super::driver::lt::Lt;
use super::driver::{Error, Gpu};
use super::inputs::Inputs;
use super::server::Trouble;
use super::timing::Timer;
use satune_ir::DType;
use std::rc::Rc;

/// One way.
pub(super) struct Way<'w> {
    name: String,
    run: Box<dyn Fn() -> Result<(), Error> + 'w>,
}

/// The ways that there may be; a library refuses what it does not have when it is asked.
pub(super) fn of<'w>(
    gpu: &Gpu,
    library: &LibraryJob,
    inputs: &'w Inputs,
    blas: Option<&'w Blas>,
) -> Result<Vec<Way<'w>>, Trouble> {
    let missing = || Error::Unsupported("cuBLAS is not to be found".into());
    match library {
        LibraryJob::Rows { params, rows, columns } => {
            let blas = blas.ok_or_else(missing)?;
            let sizes = [int(*rows)?, int(*columns)?];
            let buffers = inputs.operands(params)?;
            Ok(vec![Way { name: "cublasSgemv".into(), run: Box::new(move || blas.rows(sizes, buffers)) }])
        }
        LibraryJob::Product(product) => {
            let gemm = gemm(product, inputs)?;
            let fp8 = gemm.dtypes[0].bytes() == 1 && gemm.dtypes[0].is_float();
            let mut ways: Vec<Way<'w>> = Vec::new();
            match blas {
                // Neither has products in fp8.
                _ if fp8 => {}
                None => return Err(missing().into()),
                Some(blas) => {
                    let name = "cublasGemmStridedBatchedEx";
                    ways.push(Way { name: name.into(), run: Box::new(move || blas.strided(&gemm)) });
                    if gemm.batch == 1 {
                        ways.push(Way { name: "cublasGemmEx".into(), run: Box::new(move || blas.single(&gemm)) });
                    }
                }
            }
            if !Lt::present() {
                return match ways.is_empty() {
                    true => {
                        Err(Error::Unsupported("cuBLASLt, which has the products in fp8, is not to be found".into())
                            .into())
                    }
                    false => Ok(ways),
                };
            }
            if fp8 && (gemm.batch != 1 || gemm.transposed != [true, false]) {
                let why =
                    "cuBLASLt has products in fp8 without a batch, of operands that are both stored along k (NT) alone";
                return Err(Error::Unsupported(why.into()).into());
            }
            // Without it the sums of fp8 are promoted in parts on CUDA cores, which the kernels here do not do.
            for fast in if fp8 { &[false, true][..] } else { &[false][..] } {
                let lt = match Lt::open(gpu, &gemm, *fast) {
                    Ok(lt) => Rc::new(lt),
                    Err(Error::Unsupported(_)) if !ways.is_empty() => continue,
                    Err(error) => return Err(error.into()),
                };
                for choice in 0..lt.choices() {
                    let what = if *fast { ", fast accumulation" } else { "" };
                    let (lt, operands) = (lt.clone(), gemm.operands.map(|o| o.0));
                    ways.push(Way {
                        name: format!("cublasLt {}{what}", choice + 1),
                        run: Box::new(move || lt.run(choice, operands)),
                    });
                }
            }
            Ok(ways)
        }
        LibraryJob::Copy { .. } => Err(Error::Unsupported("a copy is no product".into()).into()),
    }
}

/// The fastest way whose result is right, and what came of each.
pub(super) fn fastest<'w>(
    gpu: &Gpu,
    tolerances: &[f64],
    timer: &Timer,
    inputs: &Inputs,
    ways: Vec<Way<'w>>,
) -> Result<(Way<'w>, Vec<Door>), Trouble> {
    let mut doors = Vec::new();
    let mut best: Option<(f64, usize)> = None;
    let mut refused = None;
    for (at, way) in ways.iter().enumerate() {
        let tried = inputs.verify(gpu, timer, tolerances, &mut || (way.run)());
        let tried = tried.and_then(|_| Ok(timer.quick(&mut || (way.run)())?));
        let door = |ms, reason| Door { name: way.name.clone(), ms, reason };
        match tried {
            Ok(ms) => {
                if best.is_none_or(|(least, _)| ms < least) {
                    best = Some((ms, at));
                }
                doors.push(door(Some(ms), None));
            }
            Err(Trouble::Machine(Error::Unsupported(why))) => {
                doors.push(door(None, Some(why.clone())));
                refused = refused.or(Some(Trouble::Machine(Error::Unsupported(why))));
            }
            Err(Trouble::Wrong(why)) => {
                doors.push(door(None, Some(why.clone())));
                refused = refused.or(Some(Trouble::Wrong(why)));
            }
            Err(other) => return Err(other),
        }
    }
    match best.and_then(|(_, at)| ways.into_iter().nth(at)) {
        Some(way) => Ok((way, doors)),
        None => Err(refused.unwrap_or_else(|| Error::Unsupported("the library has no such product".into()).into())),
    }
}

impl Way<'_> {
    /// Queues it.
    pub fn run(&self) -> Result<(), Error> {
        (self.run)()
    }

    /// Its times, as the library's.
    pub fn compared(&self, timing: crate::store::Timing, doors: Vec<Door>) -> Compared {
        Compared { timing, door: self.name.clone(), doors }
    }
}

fn int(value: i64) -> Result<i32, Error> {
    i32::try_from(value).map_err(|_| Error::Unsupported(format!("cuBLAS takes no extent of {value}")))
}

/// A batch of row-major products C = A B as column-major ones: C' = B' A'.
fn gemm<'w>(product: &ProductJob, inputs: &'w Inputs) -> Result<Gemm<'w>, Error> {
    let [a, b, c] = inputs.operands(&product.params)?;
    let [a_type, _, c_type] = inputs.dtypes(&product.params)?;
    let [batch, m, n, k] = product.extents;
    let [of_a, of_b, of_c] = product.strides;
    let plain = |fast: i64, slow: i64, extent: i64| match fast == 1 && slow >= extent {
        true => (false, slow),
        false => (true, fast),
    };
    let (b_transposed, b_lead) = plain(of_b[2], of_b[3], n);
    let (a_transposed, a_lead) = plain(of_a[3], of_a[1], k);
    Ok(Gemm {
        transposed: [b_transposed, a_transposed],
        shape: [int(n)?, int(m)?, int(k)?],
        operands: [(b, int(b_lead)?, of_b[0]), (a, int(a_lead)?, of_a[0]), (c, int(of_c[1].max(n))?, of_c[0])],
        dtypes: [a_type, c_type],
        batch: int(batch)?,
        tf32: product.tf32 || a_type == DType::TF32,
        f16_sums: product.f16_sums,
    })
}
