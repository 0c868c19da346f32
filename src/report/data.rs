//! What the sections read: the exploration, and what follows from it and the GPU's descriptor.
use crate::explore::{CandidateReport, Report};
use crate::sensitivity::Sensitivity;
use crate::workload::{Workload, Yardstick};
use satune_extract::{Cost, Descriptor};
use satune_ir::term::Schedule;
use satune_ir::DType;
use std::path::Path;

/// A measured time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Median, ms.
    pub ms: f64,
    /// Spread of the repeats as a share of the median, where it is known.
    pub spread: Option<f64>,
}

/// Another program's time for the same problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    /// Its name, `cuBLAS`.
    pub name: String,
    /// ms.
    pub ms: f64,
}

/// A kernel's text.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// File name.
    pub file: String,
    /// CUDA.
    pub text: String,
}

/// A candidate with what the sections need beyond its report.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// As explored.
    pub report: &'a CandidateReport,
    /// The model's cost, with its counts; none where the descriptor's GPU cannot run it.
    pub cost: Option<Cost>,
    /// Shared memory of a block, bytes.
    pub shared_bytes: i64,
    /// Measured time, if any.
    pub measured: Option<Measured>,
    /// Texts of its kernels.
    pub sources: Vec<Source>,
}

impl Entry<'_> {
    /// Bytes that pass between shared memory and the multiprocessors: 128 for each wavefront.
    pub fn shared_traffic(&self) -> Option<f64> {
        let work = &self.cost.as_ref()?.work;
        Some(128.0 * (work.shared_load_wavefronts + work.shared_store_wavefronts))
    }
}

/// Everything on the page.
#[derive(Clone)]
pub struct Page<'a> {
    /// The exploration.
    pub report: &'a Report,
    /// The problem.
    pub problem: &'a dyn Workload,
    /// The GPU.
    pub gpu: &'a Descriptor,
    /// Best first.
    pub candidates: Vec<Entry<'a>>,
    /// What the measured times are compared with.
    pub baseline: Option<Baseline>,
    /// Best measured time after each trial: (trial, ms). Empty where nothing was measured.
    pub trials: Vec<(u64, f64)>,
    /// What the decisions of the first candidate are worth, where that was asked.
    pub sensitivity: Option<Sensitivity>,
    /// Begins the names of places on the page, where it is one of several in a file.
    pub anchor: String,
}

/// Rates that bound every kernel of a GPU, FLOP/s and bytes/s.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Ceilings {
    /// The units that do the arithmetic: those of a type, or the tensor cores where a candidate uses them.
    pub units: &'static str,
    /// All lanes, every clock.
    pub peak: f64,
    /// The share of it that the descriptor says is sustained.
    pub sustained: f64,
    pub dram: f64,
    pub l2: f64,
    pub shared: f64,
}

impl<'a> Page<'a> {
    /// The page of an exploration; sources are those that it still holds (see [`Page::read_sources`]).
    pub fn of(report: &'a Report, problem: &'a dyn Workload, gpu: &'a Descriptor) -> Page<'a> {
        let candidates = report
            .candidates
            .iter()
            .map(|c| Entry {
                report: c,
                cost: problem.predict(&c.plan, gpu).ok(),
                shared_bytes: problem.shared_bytes(&c.plan),
                measured: None,
                sources: c
                    .files
                    .iter()
                    .filter(|(name, _)| c.kernels.iter().any(|k| k.file == *name))
                    .map(|(file, text)| Source { file: file.clone(), text: text.clone() })
                    .collect(),
            })
            .collect();
        Page {
            report,
            problem,
            gpu,
            candidates,
            baseline: None,
            trials: Vec::new(),
            sensitivity: None,
            anchor: String::new(),
        }
    }

    /// Takes the sources of stored candidates from their folder; what is missing there is missing on the page.
    pub fn read_sources(&mut self, folder: &Path) {
        for entry in self.candidates.iter_mut().filter(|e| e.sources.is_empty()) {
            entry.sources = entry
                .report
                .kernels
                .iter()
                .filter_map(|k| {
                    let text = std::fs::read_to_string(folder.join(&k.file)).ok()?;
                    Some(Source { file: k.file.clone(), text })
                })
                .collect();
        }
    }

    /// Sets the measured time of a candidate.
    pub fn measured(&mut self, id: &str, measured: Measured) {
        for entry in self.candidates.iter_mut().filter(|e| e.report.id == id) {
            entry.measured = Some(measured);
        }
    }

    /// Floating-point operations of the problem.
    pub fn flops(&self) -> f64 {
        self.problem.flops()
    }

    /// Bytes of all parameters: what must pass DRAM at least.
    pub fn least_bytes(&self) -> f64 {
        self.problem.least_bytes()
    }

    /// Names of the parameters: `A, B and C`.
    pub fn parameters(&self) -> String {
        let program = self.problem.program();
        let names: Vec<&str> = program.params.iter().map(|id| program.buffer(*id).name.as_str()).collect();
        match names.split_last() {
            Some((last, [])) => (*last).to_string(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
            None => "no parameters".into(),
        }
    }

    /// What the problem's speed is told in.
    pub fn yardstick(&self) -> Yardstick {
        self.problem.yardstick()
    }

    /// What the rate is compared with, per second, and its name: the peak of the units that do the arithmetic, or of a copy.
    pub fn peak(&self) -> (f64, String) {
        match self.yardstick() {
            Yardstick::Arithmetic { .. } => {
                let ceilings = self.ceilings();
                (ceilings.peak, format!("{} peak", ceilings.units))
            }
            yardstick @ Yardstick::Bytes(_) => (yardstick.peak(self.gpu), "a copy in DRAM".into()),
        }
    }

    /// The GPU's rates for this problem's arithmetic.
    pub fn ceilings(&self) -> Ceilings {
        let gpu = self.gpu;
        let hz = gpu.clock_mhz * 1e6;
        let sums = match self.yardstick() {
            Yardstick::Arithmetic { sums, .. } => sums,
            Yardstick::Bytes(_) => DType::F32,
        };
        let mut peak = Yardstick::Arithmetic { flops: 0.0, factors: sums, sums }.peak(gpu);
        let mut units = if sums == DType::F64 { "f64" } else { "f32" };
        let mut share = gpu.issue_efficiency;
        let on_tensor_cores = |e: &Entry<'_>| matches!(e.report.plan, Schedule::Mma(_) | Schedule::Wgmma(_));
        let factors = self.problem.contraction().map_or(DType::F32, |c| c.a.dtype);
        if let Some(rates) = gpu.tensor.filter(|_| self.candidates.iter().any(on_tensor_cores)) {
            units = "tensor cores";
            peak = rates.of([factors, sums]) * f64::from(gpu.sms) * hz;
            share = rates.mma_share.max(rates.wgmma_share);
        }
        Ceilings {
            units,
            peak,
            sustained: peak * share,
            dram: gpu.dram_gbs * 1e9,
            l2: gpu.l2_bytes_per_clock * hz,
            // A wavefront of 128 bytes per clock and multiprocessor.
            shared: 128.0 * f64::from(gpu.sms) * hz,
        }
    }

    /// The problem's rate at a time in ms, in the yardstick's unit.
    pub fn rate(&self, ms: f64) -> f64 {
        if ms > 0.0 {
            self.yardstick().amount() / (ms * 1e-3)
        } else {
            0.0
        }
    }
}
