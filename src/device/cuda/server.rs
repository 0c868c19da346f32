//! The worker's side of a CUDA GPU: inputs, reference, check, time.
use super::super::protocol::{Ceilings, ContractionJob, MeasureJob, OperandJob, Request, Said, What};
use super::super::worker::Serve;
use super::driver::{Arg, Blas, Buffer, Error, Event, Gemm, Gpu, Kernel, Module};
use super::support::{CLOCKS, COMPARE_BLOCKS, FMA_CHAINS, THREADS};
use crate::lower::program::Argument;
use crate::store::{median, Reason, Timing};
use satune_ir::DType;
use std::time::Instant;

/// Repeats whose events are queued at once.
const BATCH: usize = 8;
/// Repeats at least, unless cut off.
const LEAST: usize = 10;
const BLOCK: [u32; 3] = [THREADS, 1, 1];

/// The worker's state: what the candidates of one problem share.
#[derive(Default)]
pub(in crate::device) struct Server {
    gpu: Option<Gpu>,
    bench: Option<Bench>,
    blas: Option<Blas>,
}

/// Why there is no time.
enum Trouble {
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

/// What results are compared with.
fn checked(job: &MeasureJob) -> Result<&ContractionJob, Error> {
    job.contraction.as_ref().ok_or_else(|| Error::Missing("there is no reference for what is no contraction".into()))
}

impl Server {
    fn answer(&mut self, what: &What, blobs: &[Vec<u8>]) -> Result<Said, Trouble> {
        let gpu = match &self.gpu {
            Some(gpu) => gpu.clone(),
            None => self.gpu.insert(Gpu::open()?).clone(),
        };
        let none = Vec::new();
        let support = blobs.first().unwrap_or(&none);
        match what {
            What::Hello => Ok(Said::Hello(gpu.info()?)),
            What::Measure(job) => {
                let bench = self.bench(&gpu, checked(job)?, support)?;
                Ok(Said::Measured(bench.candidate(&gpu, job, blobs.get(1..).unwrap_or_default())?))
            }
            What::Library(job) => {
                if self.blas.is_none() {
                    self.blas = Blas::open(&gpu)?;
                }
                self.bench(&gpu, checked(job)?, support)?;
                match (&self.blas, &mut self.bench) {
                    (Some(blas), Some(bench)) => Ok(Said::Measured(bench.library(&gpu, job, blas)?)),
                    _ => Err(Error::Missing("cuBLAS is not to be found".into()).into()),
                }
            }
            What::Ceilings => {
                self.bench = None;
                if self.blas.is_none() {
                    self.blas = Blas::open(&gpu)?;
                }
                Ok(Said::Ceilings(ceilings(&gpu, support, self.blas.as_ref())?))
            }
        }
    }

    fn bench(&mut self, gpu: &Gpu, problem: &ContractionJob, support: &[u8]) -> Result<&mut Bench, Trouble> {
        if self.bench.as_ref().is_some_and(|b| b.problem != *problem) {
            // Its memory is needed for the next one.
            self.bench = None;
        }
        let bench = match self.bench.take() {
            Some(bench) => bench,
            None => Bench::new(gpu, problem, support)?,
        };
        Ok(self.bench.insert(bench))
    }
}

/// Inputs and reference of one problem.
struct Bench {
    problem: ContractionJob,
    support: Module,
    a: Buffer,
    b: Buffer,
    c: Buffer,
    expected: Buffer,
    sums: Buffer,
    /// Twice the L2: writing it leaves nothing of the inputs there.
    flush: Buffer,
    clock: Buffer,
    events: Vec<(Event, Event)>,
    /// Root mean square of the reference.
    size: f64,
}

fn bytes(operand: &OperandJob) -> u64 {
    operand.elements * u64::from(operand.dtype.bytes())
}

fn blocks(elements: u64) -> [u32; 3] {
    [u32::try_from(elements.div_ceil(u64::from(THREADS))).unwrap_or(u32::MAX).clamp(1, 1 << 20), 1, 1]
}

/// A byte that results are filled with before a run: repeated, it is no number in any floating type; in integer types it is
/// one that no sum of fewer than 130,560 products of bytes reaches.
fn poison(result: DType) -> u8 {
    if result.is_float() {
        0xff
    } else {
        0x80
    }
}

impl Bench {
    fn new(gpu: &Gpu, problem: &ContractionJob, support: &[u8]) -> Result<Bench, Trouble> {
        let info = gpu.info()?;
        let results = problem.results();
        let mut events = Vec::new();
        for _ in 0..BATCH {
            events.push((gpu.event()?, gpu.event()?));
        }
        let mut bench = Bench {
            support: gpu.load(support)?,
            a: gpu.alloc(bytes(&problem.a))?,
            b: gpu.alloc(bytes(&problem.b))?,
            c: gpu.alloc(bytes(&problem.c))?,
            expected: gpu.alloc(results * 8)?,
            sums: gpu.alloc(u64::from(COMPARE_BLOCKS) * 24)?,
            flush: gpu.alloc(2 * info.l2_bytes.max(1 << 24))?,
            clock: gpu.alloc(16)?,
            events,
            size: 0.0,
            problem: problem.clone(),
        };
        // A new seed for each worker: no candidate is ever checked on one set of inputs only.
        let seed =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as i64);
        let fill = bench.support.kernel("fill", 0)?;
        for (operand, buffer, seed) in [(&problem.a, &bench.a, seed), (&problem.b, &bench.b, seed ^ 0x5555)] {
            let count = operand.elements;
            fill.launch(blocks(count), BLOCK, &[Arg::Buffer(buffer), Arg::Int(count as i64), Arg::Int(seed)])?;
        }
        let mut arguments = vec![Arg::Buffer(&bench.a), Arg::Buffer(&bench.b), Arg::Buffer(&bench.expected)];
        arguments.extend(problem.spatial.iter().flatten().chain(problem.reduce.iter().flatten()).map(|n| Arg::Int(*n)));
        bench.support.kernel("reference", 0)?.launch(blocks(results), BLOCK, &arguments)?;
        gpu.synchronize()?;
        // Against itself nothing is known yet but its size.
        let (_, size, _) = bench.sums(f64::INFINITY)?;
        bench.size = (size / results as f64).sqrt();
        Ok(bench)
    }

    /// The buffer that an argument names.
    fn buffer<'b>(
        &'b self,
        argument: &Argument,
        params: &[usize; 3],
        workspaces: &'b [Buffer],
    ) -> Result<&'b Buffer, Error> {
        let found = match argument {
            Argument::Param(i) => params.iter().position(|p| p == i).map(|p| [&self.a, &self.b, &self.c][p]),
            Argument::Workspace(i) => workspaces.get(*i),
        };
        found.ok_or_else(|| Error::Unsupported(format!("not launched: there is no buffer for argument {argument:?}")))
    }

    /// Squared distance, squared size, results out of bounds.
    fn sums(&self, bound: f64) -> Result<(f64, f64, f64), Error> {
        let arguments = [
            Arg::Buffer(&self.c),
            Arg::Buffer(&self.expected),
            Arg::Buffer(&self.sums),
            Arg::Int(self.problem.results() as i64),
            Arg::Double(bound),
        ];
        self.support.kernel("compare", 0)?.launch([COMPARE_BLOCKS, 1, 1], BLOCK, &arguments)?;
        let parts: Vec<f64> = self.sums.read(COMPARE_BLOCKS as usize * 3)?;
        let sum = |which: usize| parts.iter().skip(which).step_by(3).sum::<f64>();
        Ok((sum(0), sum(1), sum(2)))
    }

    /// Runs once on poisoned results and compares; the relative error.
    fn verify(
        &mut self,
        run: &mut dyn FnMut(&mut Bench) -> Result<(), Error>,
        gpu: &Gpu,
        tolerance: f64,
    ) -> Result<f64, Trouble> {
        self.c.set(poison(self.problem.c.dtype))?;
        run(self)?;
        gpu.synchronize()?;
        // Eight times the tolerance for a single result: the largest of many is a few deviations off.
        let (distance, size, bad) = self.sums(8.0 * tolerance * self.size.max(f64::MIN_POSITIVE))?;
        let error = (distance / size.max(f64::MIN_POSITIVE)).sqrt();
        if bad > 0.0 {
            return Err(Trouble::Wrong(format!("{bad} results are unwritten or beyond the tolerance {tolerance:.1e}")));
        }
        if error > tolerance {
            return Err(Trouble::Wrong(format!("relative error {error:.2e}, tolerance {tolerance:.1e}")));
        }
        Ok(error)
    }

    fn candidate(&mut self, gpu: &Gpu, job: &MeasureJob, cubins: &[Vec<u8>]) -> Result<Timing, Trouble> {
        let mut workspaces = job.workspaces.iter().map(|w| gpu.alloc(*w)).collect::<Result<Vec<Buffer>, Error>>()?;
        for workspace in &mut workspaces {
            workspace.set(0xff)?;
        }
        let modules = cubins.iter().map(|c| gpu.load(c)).collect::<Result<Vec<Module>, Error>>()?;
        let kernels = job
            .kernels
            .iter()
            .zip(&modules)
            .map(|(k, m)| m.kernel(&k.name, k.dynamic_shared_bytes))
            .collect::<Result<Vec<Kernel<'_>>, Error>>()?;
        // Buffers stay where they are while this candidate is measured, so its maps are made once.
        let mut maps = Vec::new();
        for argument in job.kernels.iter().flat_map(|k| &k.args) {
            let made = match &argument.map {
                Some(map) => Some(gpu.tensor_map(self.buffer(&argument.buffer, &job.params, &workspaces)?, map)?),
                None => None,
            };
            maps.push(made);
        }
        let mut run = |bench: &mut Bench| -> Result<(), Error> {
            let mut made = maps.iter();
            for (kernel, launch) in kernels.iter().zip(&job.kernels) {
                let mut arguments: Vec<Arg<'_>> = Vec::with_capacity(launch.args.len());
                for (argument, map) in launch.args.iter().zip(made.by_ref()) {
                    arguments.push(match map {
                        Some(map) => Arg::Map(map),
                        None => Arg::Buffer(bench.buffer(&argument.buffer, &job.params, &workspaces)?),
                    });
                }
                kernel.launch(launch.grid, launch.block, &arguments)?;
            }
            Ok(())
        };
        self.time(gpu, job, &mut run)
    }

    fn library(&mut self, gpu: &Gpu, job: &MeasureJob, blas: &Blas) -> Result<Timing, Trouble> {
        let Some(product) = self.problem.product.clone() else {
            return Err(Error::Unsupported("the problem is no batch of matrix products".into()).into());
        };
        let [batch, m, n, k] = product.extents;
        let [a, b, c] = product.strides;
        let dtypes = [self.problem.a.dtype, self.problem.c.dtype];
        let int = |v: i64| i32::try_from(v).map_err(|_| Error::Unsupported(format!("cuBLAS takes no extent of {v}")));
        // Our row-major C = A B is its column-major C' = B' A'.
        let plain =
            |fast: i64, slow: i64, extent: i64| if fast == 1 && slow >= extent { (false, slow) } else { (true, fast) };
        let ((b_transposed, b_lead), (a_transposed, a_lead)) = (plain(b[2], b[3], n), plain(a[3], a[1], k));
        let shape = [int(n)?, int(m)?, int(k)?];
        let leads = [int(b_lead)?, int(a_lead)?, int(c[1].max(n))?];
        let batch = int(batch)?;
        let mut run = |bench: &mut Bench| {
            blas.gemm(&Gemm {
                transposed: [b_transposed, a_transposed],
                shape,
                operands: [(&bench.b, leads[0], b[0]), (&bench.a, leads[1], a[0]), (&bench.c, leads[2], c[0])],
                dtypes,
                batch,
            })
        };
        self.time(gpu, job, &mut run)
    }

    /// Checks, warms up, repeats until the median is known well enough, checks again.
    fn time(
        &mut self,
        gpu: &Gpu,
        job: &MeasureJob,
        run: &mut dyn FnMut(&mut Bench) -> Result<(), Error>,
    ) -> Result<Timing, Trouble> {
        let mut error = self.verify(run, gpu, job.tolerance)?;
        let start = Instant::now();
        let mut timing =
            Timing { times_ms: Vec::new(), rounds: 1, cut_off: false, clock_mhz: None, relative_error: None };
        // The first three tell how long it takes; they are warm-up and not recorded unless they decide.
        let first = self.batch(3, run)?;
        let quick = first.iter().copied().fold(f64::INFINITY, f64::min);
        if job.cut_off_ms.is_some_and(|limit| quick > limit) {
            timing.cut_off = true;
            timing.times_ms = first;
        } else {
            // 20 ms of work bring the clocks up.
            let warm = (20.0 / quick.max(1e-3)).ceil().min(200.0) as usize;
            for _ in 0..warm {
                run(self)?;
            }
            let most = (job.most_repeats as usize).max(LEAST);
            while timing.times_ms.len() < most && start.elapsed().as_secs_f64() < job.seconds {
                timing.times_ms.extend(self.batch(BATCH, run)?);
                let count = timing.times_ms.len();
                if count >= LEAST && 1.2533 * timing.spread() / (count as f64).sqrt() < job.settle {
                    break;
                }
            }
        }
        timing.clock_mhz = Some(self.clock_mhz(run)?);
        if !timing.cut_off {
            error = error.max(self.verify(run, gpu, job.tolerance)?);
        }
        timing.relative_error = Some(error);
        if timing.median_ms() < job.floor_ms {
            let (got, floor) = (timing.median_ms(), job.floor_ms);
            return Err(Trouble::Wrong(format!("{got:.6} ms, but this GPU cannot need less than {floor:.6} ms")));
        }
        Ok(timing)
    }

    /// Times of some repeats, the L2 flushed before each.
    fn batch(&mut self, count: usize, run: &mut dyn FnMut(&mut Bench) -> Result<(), Error>) -> Result<Vec<f64>, Error> {
        let count = count.min(BATCH);
        for i in 0..count {
            self.flush.set(i as u8)?;
            self.events[i].0.record()?;
            run(self)?;
            self.events[i].1.record()?;
        }
        self.events[..count]
            .iter()
            .map(|(start, end)| {
                end.wait()?;
                end.since(start)
            })
            .collect()
    }

    /// The clock right behind a few runs, MHz.
    fn clock_mhz(&mut self, run: &mut dyn FnMut(&mut Bench) -> Result<(), Error>) -> Result<f64, Error> {
        for _ in 0..3 {
            run(self)?;
        }
        let arguments = [Arg::Buffer(&self.clock), Arg::Int(CLOCKS)];
        self.support.kernel("clock_rate", 0)?.launch([1, 1, 1], [1, 1, 1], &arguments)?;
        let counted: Vec<u64> = self.clock.read(2)?;
        let (clocks, ns) = (counted.first().copied().unwrap_or(0), counted.get(1).copied().unwrap_or(0));
        Ok(clocks as f64 / (ns.max(1)) as f64 * 1e3)
    }
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
    let (mut to, mut from) = (gpu.alloc(bytes)?, gpu.alloc(bytes)?);
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
            let fill = support.kernel("fill", 0)?;
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
            };
            let ms = median_of(gpu, || blas.gemm(&gemm))?;
            Some(2.0 * f64::from(side).powi(3) / ms / 1e9)
        }
        None => None,
    };
    Ok(Ceilings { copy_gbs: copied / copy_ms / 1e6, fma_tflops: 2.0 * fmas / fma_ms / 1e9, matrix_tflops })
}
