//! A CUDA GPU: kernels are compiled by NVRTC for its architecture, each in a process of its own, and run in a worker
//! process, which is the only one that loads the driver.
mod driver;
mod server;
mod support;
#[cfg(test)]
mod tests;

pub(super) use server::Server;
pub use support::text as support_text;

use super::exclusive::{self, Exclusive};
use super::protocol::{
    ArgumentJob, ContractionJob, GpuInfo, KernelJob, MeasureJob, OperandJob, ProductJob, Said, What, REDUCE, SPATIAL,
};
use super::worker::Supervised;
use super::{Ask, Ceilings, Device, DeviceError, Identity, Kind, Subject};
use crate::agreement::Rounding;
use crate::compile::{CompileError, Compiler, Job};
use crate::cuda::{function_name, print};
use crate::host::Map;
use crate::kernel::{Array, ArrayId, Kernel};
use crate::lower::program::Argument;
use crate::store::{Reason, Verdict};
use crate::workload::Workload;
use satune_ir::term::{Axis, Contraction, OperandInfo, Schedule};
use satune_ir::DType;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

/// The first GPU that the driver shows (CUDA_VISIBLE_DEVICES chooses another).
pub struct Cuda {
    supervised: Supervised,
    compiler: Compiler,
    info: GpuInfo,
    identity: Identity,
    /// Nobody else measures on it meanwhile.
    _exclusive: Exclusive,
    /// Machine code of what was prepared, by trace.
    compiled: HashMap<String, Result<Vec<Vec<u8>>, Verdict>>,
    /// Machine code of the kernels around the candidates, by types.
    support: HashMap<(DType, DType), Vec<u8>>,
}

impl Cuda {
    /// Opens the GPU in a worker process; `program` is the `satune` command.
    ///
    /// # Errors
    /// When there is no driver, no GPU or no NVRTC.
    pub fn open(program: PathBuf) -> Result<Cuda, DeviceError> {
        let missing = |what: String, remedy: &str| DeviceError::Missing { what, remedy: remedy.into() };
        let mut supervised = Supervised::new(program.clone(), vec!["cuda".into()]);
        let Said::Hello(mut info) = supervised.hello()? else {
            return Err(missing("the worker process did not describe the GPU".into(), "see `satune doctor`"));
        };
        let exclusive = Exclusive::take(&exclusive::path(&info.bus), &format!("{} at {}", info.name, info.bus))?;
        let compiler = Compiler::of(program);
        let probe =
            Job { name: "probe".into(), source: support::text(DType::F32, DType::F32), arch: info.arch.clone() };
        let compiled = compiler.compile(&probe).map_err(|e| missing(e.to_string(), "see `satune doctor`"))?;
        info.libraries.nvrtc = Some(compiled.nvrtc);
        let toolchain =
            format!("NVRTC {}, driver {}", info.libraries.nvrtc.as_deref().unwrap_or("unknown"), info.libraries.driver);
        let identity = Identity {
            kind: Kind::Cuda,
            device: format!("{}, {} MHz, memory {} MHz", info.name, info.clock_mhz, info.memory_clock_mhz),
            toolchain,
            deterministic: false,
        };
        let support = HashMap::from([((DType::F32, DType::F32), compiled.cubin)]);
        Ok(Cuda { supervised, compiler, info, identity, _exclusive: exclusive, compiled: HashMap::new(), support })
    }

    /// What the driver says about the GPU, asked in a worker process.
    ///
    /// # Errors
    /// When there is no driver or no GPU.
    pub fn describe(program: PathBuf) -> Result<GpuInfo, DeviceError> {
        match Supervised::new(program, vec!["cuda".into()]).hello()? {
            Said::Hello(info) => Ok(info),
            other => Err(DeviceError::Gone { device: "cuda".into(), reason: format!("it said {other:?}") }),
        }
    }

    /// What the driver says about the GPU.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    fn support(&mut self, factor: DType, result: DType) -> Result<Vec<u8>, Verdict> {
        if let Some(cubin) = self.support.get(&(factor, result)) {
            return Ok(cubin.clone());
        }
        let job = Job { name: "support".into(), source: support::text(factor, result), arch: self.info.arch.clone() };
        let compiled = self.compiler.compile(&job).map_err(|e| rejected(&e))?;
        self.support.insert((factor, result), compiled.cubin.clone());
        Ok(compiled.cubin)
    }

    fn finish(answer: Result<Said, Verdict>) -> Verdict {
        match answer {
            Ok(Said::Measured(timing)) => Verdict::Measured(timing),
            Ok(Said::Missing { what, remedy }) => {
                Verdict::Rejected { reason: Reason::CompileError, detail: format!("{what}; {remedy}") }
            }
            Ok(other) => Verdict::Rejected { reason: Reason::Crash, detail: format!("unexpected answer {other:?}") },
            Err(verdict) => verdict,
        }
    }

    /// A time that no kernel for the problem can be under, ms: twice the arithmetic rate that the driver's figures allow.
    fn floor_ms(&self, job: &MeasureJob, on_tensor_cores: bool) -> f64 {
        // Multiply-adds per clock and multiprocessor: the most that any architecture has, tensor cores counted where the
        // type has them (for f32 only where the kernel uses them).
        let lanes = match job.contraction.as_ref().map(|c| c.a.dtype) {
            Some(DType::F16 | DType::BF16) => 4096.0,
            Some(DType::I8 | DType::U8 | DType::F8E4M3 | DType::F8E5M2) => 8192.0,
            Some(DType::F32) if on_tensor_cores => 2048.0,
            _ => 256.0,
        };
        let rate = 2.0 * lanes * f64::from(self.info.sms) * f64::from(self.info.clock_mhz) * 1e6;
        if rate > 0.0 {
            job.flops() / (2.0 * rate) * 1e3
        } else {
            0.0
        }
    }

    /// The architecture to compile a kernel for: `wgmma`, `setmaxnreg` and with them all kernels that take tensor maps are
    /// features of the very chip.
    fn arch_of(&self, kernel: &Kernel) -> String {
        if kernel.tensor_maps.is_empty() {
            self.info.arch.clone()
        } else {
            format!("{}a", self.info.arch)
        }
    }

    /// Longest time: what was asked for, and the reference in double precision at a rate that every GPU exceeds.
    fn timeout(job: &MeasureJob, ask: &Ask) -> Duration {
        ask.timeout + Duration::from_secs_f64((job.flops() / 5e10).min(3600.0))
    }
}

/// What a compiler's error says about a candidate.
fn rejected(error: &CompileError) -> Verdict {
    let reason = match error {
        CompileError::Timeout { .. } => Reason::Timeout,
        CompileError::Memory { .. } => Reason::Oom,
        CompileError::Crashed { .. } => Reason::Crash,
        CompileError::Missing | CompileError::Refused { .. } | CompileError::UnknownArch { .. } => Reason::CompileError,
    };
    Verdict::Rejected { reason, detail: error.to_string() }
}

/// A problem, and a candidate of it, in a worker's terms. Without a contraction where it is none, has other buffers than A,
/// B and C, or more axes than the reference takes: then no GPU's results could be checked.
pub(super) fn job(problem: &dyn Workload, subject: Option<&Subject>, ask: &Ask) -> MeasureJob {
    let product = problem.contraction().and_then(|c| {
        let known = &problem.program().params;
        let at = |o: &OperandInfo| known.iter().position(|id| *id == o.buffer);
        let params = [at(&c.a)?, at(&c.b)?, at(&c.c)?];
        // One buffer in two places would need inputs of its own, and the reference is the product alone.
        let plain = params[0] != params[1] && known.len() == params.len() && !c.finishes();
        Some((contraction(c)?, params)).filter(|_| plain)
    });
    let (contraction, params) = product.map_or((None, [0, 1, 2]), |(c, params)| (Some(c), params));
    let tolerance = problem.contraction().zip(contraction.as_ref()).map_or(0.0, |(c, job)| {
        let tensor_cores = subject.is_some_and(on_tensor_cores);
        let (factor, sum, result, terms) = (c.a.dtype, c.accumulate, c.c.dtype, job.terms());
        Rounding { factor, sum, result, terms, tensor_cores }.tolerance()
    });
    let mut job = MeasureJob {
        trace: String::new(),
        predicted_ms: 0.0,
        contraction,
        kernels: Vec::new(),
        workspaces: Vec::new(),
        params,
        cut_off_ms: ask.cut_off_ms,
        settle: ask.settle,
        most_repeats: ask.most_repeats,
        seconds: ask.timeout.as_secs_f64() / 4.0,
        floor_ms: 0.0,
        tolerance,
    };
    if let Some(subject) = subject {
        let module = &subject.made.module;
        job.trace.clone_from(&subject.trace);
        job.predicted_ms = subject.cost.ms;
        job.workspaces = module.workspaces.iter().map(|w| w.elements * u64::from(w.dtype.bytes())).collect();
        job.kernels = module
            .kernels
            .iter()
            .zip(&module.args)
            .map(|(kernel, args)| KernelJob {
                name: function_name(&kernel.name),
                grid: kernel.grid,
                block: kernel.block,
                dynamic_shared_bytes: kernel.dynamic_shared_bytes(),
                args: kernel
                    .params()
                    .zip(args)
                    .map(|((id, array), buffer)| argument(kernel, id, array, buffer))
                    .collect(),
            })
            .collect();
    }
    job
}

/// Whether a candidate multiplies on tensor cores.
fn on_tensor_cores(subject: &Subject) -> bool {
    matches!(subject.plan, Schedule::Mma(_) | Schedule::Wgmma(_))
}

fn argument(kernel: &Kernel, id: ArrayId, array: &Array, buffer: &Argument) -> ArgumentJob {
    let map = kernel.tensor_maps.iter().find(|m| m.array == id);
    ArgumentJob { buffer: *buffer, map: map.map(|m| Map::of(m, array.dtype)) }
}

/// The verdict on a problem that no worker takes.
fn too_many_axes() -> Verdict {
    let detail = format!(
        "not measured: a worker takes products of two buffers without an epilogue, of at most {SPATIAL} axes of results and {REDUCE} reductions"
    );
    Verdict::Rejected { reason: Reason::CompileError, detail }
}

fn contraction(c: &Contraction) -> Option<ContractionJob> {
    let stride = |o: &OperandInfo, axis: Axis| -> i64 {
        let after = o.dims.iter().skip_while(|d| **d != axis).skip(1);
        if o.dims.contains(&axis) {
            after.map(|d| c.extent(*d)).product()
        } else {
            0
        }
    };
    let operand = |o: &OperandInfo| OperandJob {
        dtype: o.dtype,
        elements: o.dims.iter().map(|d| c.extent(*d).unsigned_abs()).product(),
    };
    let of = |reduce: bool| c.iters.iter().filter(move |(_, info)| info.reduce == reduce).map(|(axis, _)| *axis);
    let mut spatial = [[1, 0, 0, 0]; SPATIAL];
    let mut reduce = [[1, 0, 0]; REDUCE];
    if of(false).count() > SPATIAL || of(true).count() > REDUCE {
        return None;
    }
    for (to, axis) in spatial.iter_mut().zip(of(false)) {
        *to = [c.extent(axis), stride(&c.a, axis), stride(&c.b, axis), stride(&c.c, axis)];
    }
    for (to, axis) in reduce.iter_mut().zip(of(true)) {
        *to = [c.extent(axis), stride(&c.a, axis), stride(&c.b, axis)];
    }
    let axes = [Axis::Batch(0), Axis::M, Axis::N, Axis::K];
    let plain = c.iters.iter().all(|(axis, _)| axes.contains(axis));
    let product = plain.then(|| ProductJob {
        extents: axes.map(|a| c.extent(a)),
        strides: [&c.a, &c.b, &c.c].map(|o| axes.map(|axis| stride(o, axis))),
    });
    Some(ContractionJob { spatial, reduce, a: operand(&c.a), b: operand(&c.b), c: operand(&c.c), product })
}

impl Device for Cuda {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn prepare(&mut self, _problem: &dyn Workload, subjects: &[&Subject]) {
        self.compiled.retain(|trace, _| subjects.iter().any(|s| s.trace == *trace));
        let fresh: Vec<&&Subject> = subjects.iter().filter(|s| !self.compiled.contains_key(&s.trace)).collect();
        let jobs: Vec<Job> = fresh
            .iter()
            .flat_map(|s| &s.made.module.kernels)
            .map(|kernel| Job { name: kernel.name.clone(), source: print(kernel), arch: self.arch_of(kernel) })
            .collect();
        let mut results = self.compiler.compile_many(&jobs).into_iter();
        for subject in fresh {
            let mine: Vec<_> = results.by_ref().take(subject.made.module.kernels.len()).collect();
            let cubins: Result<Vec<Vec<u8>>, CompileError> = mine.into_iter().map(|r| r.map(|c| c.cubin)).collect();
            self.compiled.insert(subject.trace.clone(), cubins.map_err(|e| rejected(&e)));
        }
    }

    fn measure(&mut self, problem: &dyn Workload, subject: &Subject, ask: &Ask) -> Result<Verdict, DeviceError> {
        let Some(c) = problem.contraction() else { return Ok(too_many_axes()) };
        let mut job = job(problem, Some(subject), ask);
        if job.contraction.is_none() {
            return Ok(too_many_axes());
        }
        if !self.compiled.contains_key(&subject.trace) {
            self.prepare(problem, &[subject]);
        }
        let cubins = match self.compiled.get(&subject.trace).cloned() {
            Some(Ok(cubins)) => cubins,
            Some(Err(verdict)) => return Ok(verdict),
            None => return Ok(rejected(&CompileError::Missing)),
        };
        let support = match self.support(c.a.dtype, c.c.dtype) {
            Ok(support) => support,
            Err(verdict) => return Ok(verdict),
        };
        job.floor_ms = self.floor_ms(&job, on_tensor_cores(subject));
        let blobs: Vec<&[u8]> = std::iter::once(&support).chain(&cubins).map(Vec::as_slice).collect();
        let timeout = Cuda::timeout(&job, ask);
        Ok(Cuda::finish(self.supervised.ask(&What::Measure(Box::new(job)), &blobs, timeout)?))
    }

    fn library(&mut self, problem: &dyn Workload, ask: &Ask) -> Result<Option<Verdict>, DeviceError> {
        if self.info.libraries.cublas.is_none() {
            return Ok(None);
        }
        let Some(c) = problem.contraction() else { return Ok(None) };
        let mut job = job(problem, None, &Ask { cut_off_ms: None, ..*ask });
        if job.contraction.as_ref().is_none_or(|c| c.product.is_none()) {
            return Ok(None);
        }
        let support = match self.support(c.a.dtype, c.c.dtype) {
            Ok(support) => support,
            Err(verdict) => return Ok(Some(verdict)),
        };
        job.floor_ms = self.floor_ms(&job, false);
        let timeout = Cuda::timeout(&job, ask);
        let answer = self.supervised.ask(&What::Library(Box::new(job)), &[&support], timeout)?;
        Ok(Some(Cuda::finish(answer)))
    }

    fn ceilings(&mut self) -> Result<Option<Ceilings>, DeviceError> {
        let Ok(support) = self.support(DType::F16, DType::F32) else { return Ok(None) };
        match self.supervised.ask(&What::Ceilings, &[&support], Duration::from_secs(120))? {
            Ok(Said::Ceilings(ceilings)) => Ok(Some(ceilings)),
            _ => Ok(None),
        }
    }
}
