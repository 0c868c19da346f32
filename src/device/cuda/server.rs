//! The worker's side of a CUDA GPU: answers to requests.
use super::super::protocol::{Ceilings, LibraryJob, MeasureJob, ProblemJob, ProductJob, Request, Said, What};
use super::super::worker::Serve;
use super::driver::blas::{Blas, Gemm};
use super::driver::lt::Lt;
use super::driver::{Arg, Error, Gpu};
use super::inputs::{blocks, Inputs, Launches};
use super::support::{fill, FMA_CHAINS, THREADS};
use super::timing::{Timer, BLOCK};
use crate::store::{median, Reason, Timing};
use satune_ir::DType;

/// The worker's state: what the candidates of one problem share.
#[derive(Default)]
pub(in crate::device) struct Server {
    gpu: Option<Gpu>,
    timer: Option<Timer>,
    inputs: Option<Inputs>,
    blas: Option<Blas>,
}

/// Why there is no time.
pub(super) enum Trouble {
    Machine(Error),
    Wrong(String),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Machine(error)
    }
}

impl Serve for Server {
    fn serve(&mut self, request: &Request, blobs: &[Vec<u8>]) -> Said {
        let remedy = "install an NVIDIA driver that shows a GPU, or use --device simulator";
        match self.answer(&request.what, blobs) {
            Ok(said) => said,
            Err(Trouble::Wrong(detail)) => Said::Rejected { reason: Reason::Wrong, detail, poisoned: false },
            Err(Trouble::Machine(Error::Missing(what))) => Said::Missing { what, remedy: remedy.into() },
            Err(Trouble::Machine(Error::Unsupported(detail))) => {
                Said::Rejected { reason: Reason::CompileError, detail, poisoned: false }
            }
            Err(Trouble::Machine(error @ Error::Memory(_))) => {
                Said::Rejected { reason: Reason::Oom, detail: error.to_string(), poisoned: true }
            }
            Err(Trouble::Machine(error @ Error::Driver(_))) if self.gpu.is_none() => {
                Said::Missing { what: format!("the CUDA driver does not come up: {error}"), remedy: remedy.into() }
            }
            // Most of the driver's errors are sticky; a new process is cheap and certain.
            Err(Trouble::Machine(error @ Error::Driver(_))) => {
                Said::Rejected { reason: Reason::Crash, detail: error.to_string(), poisoned: true }
            }
        }
    }
}

impl Server {
    fn answer(&mut self, what: &What, blobs: &[Vec<u8>]) -> Result<Said, Trouble> {
        let gpu = match &self.gpu {
            Some(gpu) => gpu.clone(),
            None => self.gpu.insert(Gpu::open()?).clone(),
        };
        let none = Vec::new();
        let support = blobs.first().unwrap_or(&none);
        if self.timer.is_none() && !matches!(what, What::Hello) {
            self.timer = Some(Timer::new(&gpu, support)?);
        }
        match what {
            What::Hello => Ok(Said::Hello(gpu.info()?)),
            What::Measure(job) => {
                let problem = job.problem.as_ref().ok_or_else(|| Error::Unsupported("there is no problem".into()))?;
                let count = problem.reference.len();
                self.inputs(&gpu, problem, blobs.get(1..1 + count).unwrap_or_default())?;
                let (Some(inputs), Some(timer)) = (&self.inputs, &self.timer) else {
                    return Err(Error::Unsupported("there are no inputs".into()).into());
                };
                let cubins = blobs.get(1 + count..).unwrap_or_default();
                let launches = Launches::new(&gpu, cubins, &job.kernels, &job.workspaces)?;
                let ready = launches.ready(&gpu, inputs.params())?;
                Ok(Said::Measured(timer.time(&gpu, job, Some(inputs), &mut || ready.run())?))
            }
            What::Library(job, LibraryJob::Copy { bytes }) => {
                // Its memory is needed.
                self.inputs = None;
                let Some(timer) = &self.timer else { return Err(Error::Unsupported("no clock".into()).into()) };
                let (to, from) = (gpu.alloc(bytes / 2)?, gpu.alloc(bytes / 2)?);
                from.set(1)?;
                Ok(Said::Measured(timer.time(&gpu, job, None, &mut || to.copy_from(&from))?))
            }
            What::Library(job, library) => {
                let problem = job.problem.as_ref().ok_or_else(|| Error::Unsupported("there is no problem".into()))?;
                self.inputs(&gpu, problem, blobs.get(1..).unwrap_or_default())?;
                self.open_blas(&gpu)?;
                let (Some(inputs), Some(timer)) = (&self.inputs, &self.timer) else {
                    return Err(Error::Unsupported("there are no inputs".into()).into());
                };
                Ok(Said::Measured(by_library(&gpu, job, library, timer, inputs, self.blas.as_ref())?))
            }
            What::Ceilings => {
                self.inputs = None;
                self.open_blas(&gpu)?;
                Ok(Said::Ceilings(ceilings(&gpu, support, self.blas.as_ref())?))
            }
        }
    }

    fn open_blas(&mut self, gpu: &Gpu) -> Result<(), Error> {
        if self.blas.is_none() {
            self.blas = Blas::open(gpu)?;
        }
        Ok(())
    }

    /// Makes the inputs and the reference of a problem, unless they are there.
    fn inputs(&mut self, gpu: &Gpu, problem: &ProblemJob, cubins: &[Vec<u8>]) -> Result<(), Trouble> {
        if self.inputs.as_ref().is_some_and(|known| *known.problem() == *problem) {
            return Ok(());
        }
        // Its memory is needed for the next one.
        self.inputs = None;
        if let Some(timer) = &self.timer {
            self.inputs = Some(Inputs::new(gpu, problem, cubins, timer)?);
        }
        Ok(())
    }
}

/// Times a library's product.
fn by_library(
    gpu: &Gpu,
    job: &MeasureJob,
    library: &LibraryJob,
    timer: &Timer,
    inputs: &Inputs,
    blas: Option<&Blas>,
) -> Result<Timing, Trouble> {
    let missing = || Error::Unsupported("cuBLAS is not to be found".into());
    match library {
        LibraryJob::Rows { params, rows, columns } => {
            let blas = blas.ok_or_else(missing)?;
            let sizes = [int(*rows)?, int(*columns)?];
            let buffers = inputs.operands(params)?;
            timer.time(gpu, job, Some(inputs), &mut || blas.rows(sizes, buffers))
        }
        LibraryJob::Product(product) => {
            let [a, b, c] = inputs.operands(&product.params)?;
            let [a_type, _, c_type] = inputs.dtypes(&product.params)?;
            if a_type.bytes() == 1 && a_type.is_float() {
                let lt = fp8_product(gpu, product, [a_type, c_type])?;
                return timer.time(gpu, job, Some(inputs), &mut || lt.run([b, a, c]));
            }
            let blas = blas.ok_or_else(missing)?;
            let [batch, m, n, k] = product.extents;
            let [of_a, of_b, of_c] = product.strides;
            // Our row-major C = A B is its column-major C' = B' A'.
            let plain = |fast: i64, slow: i64, extent: i64| match fast == 1 && slow >= extent {
                true => (false, slow),
                false => (true, fast),
            };
            let (b_transposed, b_lead) = plain(of_b[2], of_b[3], n);
            let (a_transposed, a_lead) = plain(of_a[3], of_a[1], k);
            let gemm = Gemm {
                transposed: [b_transposed, a_transposed],
                shape: [int(n)?, int(m)?, int(k)?],
                operands: [(b, int(b_lead)?, of_b[0]), (a, int(a_lead)?, of_a[0]), (c, int(of_c[1].max(n))?, of_c[0])],
                dtypes: [a_type, c_type],
                batch: int(batch)?,
                tf32: product.tf32,
            };
            timer.time(gpu, job, Some(inputs), &mut || blas.gemm(&gemm))
        }
        LibraryJob::Copy { .. } => Err(Error::Unsupported("a copy is no product".into()).into()),
    }
}

fn int(value: i64) -> Result<i32, Error> {
    i32::try_from(value).map_err(|_| Error::Unsupported(format!("cuBLAS takes no extent of {value}")))
}

/// One product in fp8. Both factors have to run along k.
fn fp8_product(gpu: &Gpu, product: &ProductJob, dtypes: [DType; 2]) -> Result<Lt, Error> {
    let [batch, m, n, k] = product.extents;
    let [a, b, _] = product.strides;
    if batch != 1 || a[3] != 1 || b[3] != 1 {
        let why = "cuBLASLt has products in fp8 without a batch, of operands that are both stored along k (NT) alone";
        return Err(Error::Unsupported(why.into()));
    }
    Lt::open(gpu, [n.unsigned_abs(), m.unsigned_abs(), k.unsigned_abs()], dtypes)
}

/// Median time of something, ms, after two runs to warm up.
fn median_of(gpu: &Gpu, mut run: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let (start, end) = (gpu.event()?, gpu.event()?);
    let mut times = Vec::new();
    for i in 0..12 {
        start.record()?;
        run()?;
        end.record()?;
        end.wait()?;
        if i >= 2 {
            times.push(end.since(&start)?);
        }
    }
    Ok(median(&times))
}

fn ceilings(gpu: &Gpu, support: &[u8], blas: Option<&Blas>) -> Result<Ceilings, Error> {
    let info = gpu.info()?;
    let support = gpu.load(support)?;
    let bytes = (info.memory_bytes / 8).min(1 << 30);
    let (to, from) = (gpu.alloc(bytes)?, gpu.alloc(bytes)?);
    from.set(1)?;
    let copy_ms = median_of(gpu, || to.copy_from(&from))?;
    let copied = 2.0 * to.bytes() as f64;
    let (grid, iterations) = (info.sms * 8, 4096_i64);
    let fma = support.kernel("fma_ceiling", 0)?;
    let fma_ms = median_of(gpu, || fma.launch([grid, 1, 1], BLOCK, &[Arg::Buffer(&to), Arg::Int(iterations)]))?;
    let fmas = f64::from(grid) * f64::from(THREADS) * (FMA_CHAINS * iterations.unsigned_abs()) as f64;
    let matrix_tflops = match blas {
        Some(blas) => {
            let side = 8192_i32;
            let elements = u64::from(side.unsigned_abs()) * u64::from(side.unsigned_abs());
            let fill = support.kernel(&fill(DType::F16), 0)?;
            let factors = [gpu.alloc(elements * 2)?, gpu.alloc(elements * 2)?];
            for (seed, factor) in factors.iter().enumerate() {
                let arguments = [Arg::Buffer(factor), Arg::Int(elements as i64), Arg::Int(seed as i64 + 7)];
                fill.launch(blocks(elements), BLOCK, &arguments)?;
            }
            let result = gpu.alloc(elements * 4)?;
            let gemm = Gemm {
                transposed: [false, false],
                shape: [side; 3],
                operands: [(&factors[0], side, 0), (&factors[1], side, 0), (&result, side, 0)],
                dtypes: [DType::F16, DType::F32],
                batch: 1,
                tf32: false,
            };
            let ms = median_of(gpu, || blas.gemm(&gemm))?;
            Some(2.0 * f64::from(side).powi(3) / ms / 1e9)
        }
        None => None,
    };
    Ok(Ceilings { copy_gbs: copied / copy_ms / 1e6, fma_tflops: 2.0 * fmas / fma_ms / 1e9, matrix_tflops })
}
