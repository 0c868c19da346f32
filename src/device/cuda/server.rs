//! The worker's side of a CUDA GPU: answers to requests.
use super::super::protocol::{Ceilings, Compared, Duelled, LibraryJob, ParamJob, ProblemJob, Request, Said, What};
use super::super::worker::Serve;
use super::constants;
use super::doors;
use super::driver::blas::{Blas, Gemm};
use super::driver::{Arg, Error, Gpu};
use super::inputs::{blocks, Inputs, Launches};
use super::support::{fill, FMA_CHAINS, THREADS};
use super::timing::{Timer, BLOCK};
use crate::store::{median, Reason};
use satune_ir::DType;

/// What a copy is called.
const COPY: &str = "cuMemcpyDtoDAsync";

/// The worker's state: what the candidates of one problem share.
#[derive(Default)]
pub(in crate::device) struct Server {
    gpu: Option<Gpu>,
    timer: Option<Timer>,
    /// Of several problems, the last one used last.
    inputs: Vec<Inputs>,
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
                let (Some(inputs), Some(timer)) = (self.inputs.last(), &self.timer) else {
                    return Err(Error::Unsupported("there are no inputs".into()).into());
                };
                let cubins = blobs.get(1 + count..).unwrap_or_default();
                let launches = Launches::new(&gpu, cubins, &job.kernels, &job.workspaces)?;
                let ready = launches.ready(&gpu, inputs.params())?;
                Ok(Said::Measured(timer.time(&gpu, job, Some(inputs), &mut || ready.run())?))
            }
            What::Library(job, LibraryJob::Copy { bytes }) => {
                if takes_all(*bytes, gpu.info()?.memory_bytes) {
                    self.inputs.clear();
                }
                let Some(timer) = &self.timer else { return Err(Error::Unsupported("no clock".into()).into()) };
                let (to, from) = (gpu.alloc(bytes / 2)?, gpu.alloc(bytes / 2)?);
                from.set(1)?;
                let timing = timer.time(&gpu, job, None, &mut || to.copy_from(&from))?;
                Ok(Said::Compared(Compared { timing, door: COPY.into(), doors: Vec::new() }))
            }
            What::Library(job, library) => {
                let problem = job.problem.as_ref().ok_or_else(|| Error::Unsupported("there is no problem".into()))?;
                self.inputs(&gpu, problem, blobs.get(1..).unwrap_or_default())?;
                self.open_blas(&gpu)?;
                let (Some(inputs), Some(timer)) = (self.inputs.last(), &self.timer) else {
                    return Err(Error::Unsupported("there are no inputs".into()).into());
                };
                let ways = doors::of(&gpu, library, inputs, self.blas.as_ref())?;
                let (way, doors) = doors::fastest(&gpu, &job.tolerances, timer, inputs, ways)?;
                let timing = timer.time(&gpu, job, Some(inputs), &mut || way.run())?;
                Ok(Said::Compared(way.compared(timing, doors)))
            }
            What::Duel(job, library, duel) => {
                let problem = job.problem.as_ref().ok_or_else(|| Error::Unsupported("there is no problem".into()))?;
                let count = problem.reference.len();
                self.inputs(&gpu, problem, blobs.get(1..1 + count).unwrap_or_default())?;
                if !matches!(library, LibraryJob::Copy { .. }) {
                    self.open_blas(&gpu)?;
                }
                let (Some(inputs), Some(timer)) = (self.inputs.last(), &self.timer) else {
                    return Err(Error::Unsupported("there are no inputs".into()).into());
                };
                let cubins = blobs.get(1 + count..).unwrap_or_default();
                let launches = Launches::new(&gpu, cubins, &job.kernels, &job.workspaces)?;
                let ready = launches.ready(&gpu, inputs.params())?;
                let ours = &mut || ready.run();
                let error = inputs.verify(&gpu, timer, &job.tolerances, ours)?;
                let ([mut ours, mut theirs], ratios, door, doors) = if let LibraryJob::Copy { bytes } = library {
                    let (to, from) = (gpu.alloc(bytes / 2)?, gpu.alloc(bytes / 2)?);
                    from.set(1)?;
                    let (timings, ratios) = timer.in_turns(job, duel.rounds, [ours, &mut || to.copy_from(&from)])?;
                    (timings, ratios, COPY.into(), Vec::new())
                } else {
                    let ways = doors::of(&gpu, library, inputs, self.blas.as_ref())?;
                    let (way, doors) = doors::fastest(&gpu, &duel.tolerances, timer, inputs, ways)?;
                    let (timings, ratios) = timer.in_turns(job, duel.rounds, [ours, &mut || way.run()])?;
                    let Compared { door, doors, .. } = way.compared(timings[1].clone(), doors);
                    (timings, ratios, door, doors)
                };
                // Of two checks the worse; the library's was before its times.
                let again = inputs.verify(&gpu, timer, &job.tolerances, &mut || ready.run())?;
                ours.relative_error = Some(error.max(again));
                theirs.relative_error = None;
                Ok(Said::Duelled(Duelled { ours, theirs: Compared { timing: theirs, door, doors }, ratios }))
            }
            What::Ceilings => {
                self.inputs.clear();
                self.open_blas(&gpu)?;
                Ok(Said::Ceilings(ceilings(&gpu, support, self.blas.as_ref())?))
            }
            What::Constants => {
                self.inputs.clear();
                let module = gpu.load(blobs.get(1).unwrap_or(&none))?;
                Ok(Said::Constants(constants::measure(&gpu, &gpu.load(support)?, &module)?))
            }
        }
    }

    fn open_blas(&mut self, gpu: &Gpu) -> Result<(), Error> {
        if self.blas.is_none() {
            self.blas = Blas::open(gpu)?;
        }
        Ok(())
    }

    /// Makes the inputs and the reference of a problem, unless they are there; they are the last ones then.
    fn inputs(&mut self, gpu: &Gpu, problem: &ProblemJob, cubins: &[Vec<u8>]) -> Result<(), Trouble> {
        if let Some(at) = self.inputs.iter().position(|known| *known.problem() == *problem) {
            let known = self.inputs.remove(at);
            self.inputs.push(known);
            return Ok(());
        }
        let Some(timer) = &self.timer else { return Ok(()) };
        let sizes: Vec<u64> = self.inputs.iter().map(|known| needed(known.problem())).collect();
        self.inputs.drain(..too_many(&sizes, needed(problem), gpu.info()?.memory_bytes));
        self.inputs.push(Inputs::new(gpu, problem, cubins, timer)?);
        Ok(())
    }
}

/// Device memory for a problem's inputs and results, and for what these should be, bytes.
pub(super) fn needed(problem: &ProblemJob) -> u64 {
    let of = |param: &ParamJob| {
        let own = u64::from(param.dtype.bytes());
        let wide = if param.dtype.is_float() { 8 } else { own };
        param.elements.saturating_mul(own + if param.written { wide } else { 0 })
    };
    problem.params.iter().map(of).sum()
}

/// Whether a copy of so many bytes needs the memory that problems' inputs have.
pub(super) fn takes_all(bytes: u64, memory: u64) -> bool {
    bytes > memory / 2
}

/// How many problems make room for a further one: those that were not used for the longest time. Inputs have half of the
/// memory, the other half is for what candidates need.
pub(super) fn too_many(sizes: &[u64], further: u64, memory: u64) -> usize {
    let fits = |first: &usize| sizes[*first..].iter().sum::<u64>().saturating_add(further) <= memory / 2;
    (0..sizes.len()).find(fits).unwrap_or(sizes.len())
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
                let arguments =
                    [Arg::Buffer(factor), Arg::Int(elements as i64), Arg::Int(seed as i64 + 7), Arg::Int(0)];
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
                f16_sums: false,
            };
            let ms = median_of(gpu, || blas.strided(&gemm))?;
            Some(2.0 * f64::from(side).powi(3) / ms / 1e9)
        }
        None => None,
    };
    Ok(Ceilings { copy_gbs: copied / copy_ms / 1e6, fma_tflops: 2.0 * fmas / fma_ms / 1e9, matrix_tflops })
}
