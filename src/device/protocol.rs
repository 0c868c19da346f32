//! What passes between the command and a worker process: a line of JSON each way, and behind a request's line the bytes
//! that it announces.
use crate::host::Map;
use crate::lower::program::Argument;
use crate::store::{Reason, Timing};
use satune_ir::DType;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read, Write};

/// A request: its number, what is asked, sizes of the byte strings that follow the line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub number: u64,
    pub what: What,
    pub sizes: Vec<usize>,
}

/// What is asked of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum What {
    /// Who are you?
    Hello,
    /// Measure a candidate. Bytes: the support module, the machine code of the reference's kernels, then of each kernel.
    Measure(Box<MeasureJob>),
    /// Time what candidates are compared with. Bytes: the support module, the machine code of the reference's kernels.
    Library(Box<MeasureJob>, LibraryJob),
    /// Time a candidate and what it is compared with in turns. Bytes: those of `Measure`.
    Duel(Box<MeasureJob>, LibraryJob, DuelJob),
    /// Measure the machine's ceilings. Bytes: the support module.
    Ceilings,
    /// Measure rates and latencies of its parts. Bytes: the support module, the module of the constants' kernels.
    Constants,
}

/// A candidate for a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MeasureJob {
    /// Hash of its trace.
    pub trace: String,
    /// Predicted time, ms.
    pub predicted_ms: f64,
    /// Parameters and reference. A device that runs nothing needs none, nor does what has no results.
    pub problem: Option<ProblemJob>,
    pub kernels: Vec<KernelJob>,
    /// Bytes of each buffer between the kernels.
    pub workspaces: Vec<u64>,
    pub cut_off_ms: Option<f64>,
    pub settle: f64,
    pub most_repeats: u32,
    /// Seconds that the repeats may take together.
    pub seconds: f64,
    /// A time below this is faster than the machine can compute, ms.
    pub floor_ms: f64,
    /// Of each parameter that is written the largest relative error, by the root of the sum of squares; 0: exact.
    pub tolerances: Vec<f64>,
}

/// How two are timed in turns.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DuelJob {
    pub rounds: u32,
    /// As those of the candidate's job, for what it is compared with.
    pub tolerances: Vec<f64>,
}

/// A problem for a worker: what it makes inputs for, and the kernels that make the reference of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProblemJob {
    /// Hash of the program: problems of one program are the same.
    pub program: String,
    /// Its parameters in order.
    pub params: Vec<ParamJob>,
    /// Launches that make the reference. Parameters that are written stand for the reference's own: floats in double
    /// precision, whole numbers in their type.
    pub reference: Vec<KernelJob>,
    /// Bytes of each buffer between them.
    pub workspaces: Vec<u64>,
    /// Floating-point inputs are whole numbers from -3 to 2, whose sums are exact in any order, and not random ones.
    pub whole: bool,
}

/// A parameter for a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ParamJob {
    pub name: String,
    pub dtype: DType,
    pub elements: u64,
    /// Whether it is a result, which the program does not read before it has written it.
    pub written: bool,
}

/// What candidates are compared with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LibraryJob {
    /// A batch of matrix products by cuBLAS, or in fp8 by cuBLASLt.
    Product(ProductJob),
    /// A matrix, stored by rows, times a vector, in f32, by cuBLAS.
    Rows {
        /// Which parameters are the matrix, the vector and the result.
        params: [usize; 3],
        rows: i64,
        columns: i64,
    },
    /// A copy in device memory that reads and writes so many bytes together.
    Copy { bytes: u64 },
}

/// A batch of matrix products.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProductJob {
    /// Which of the problem's parameters A, B and C are.
    pub params: [usize; 3],
    /// Batch, m, n, k.
    pub extents: [i64; 4],
    /// Strides of A, B and C along them, in elements.
    pub strides: [[i64; 4]; 3],
    /// Operands in f32 may be rounded to tf32.
    pub tf32: bool,
    /// Products of f16 are added up in f16.
    #[serde(default)]
    pub f16_sums: bool,
}

/// A launch for a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KernelJob {
    pub name: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared_bytes: u32,
    pub args: Vec<ArgumentJob>,
}

/// An argument of a launch: a buffer's address, or a tensor map on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ArgumentJob {
    pub buffer: Argument,
    /// The map, where the kernel takes one.
    pub map: Option<Map>,
}

/// What a worker answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Number of the request.
    pub number: u64,
    pub what: Said,
}

/// What a worker says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    /// I am.
    Hello(GpuInfo),
    /// It ran and was right.
    Measured(Timing),
    /// It did not, or was not.
    Rejected {
        reason: Reason,
        detail: String,
        /// Nothing runs any more in this process.
        poisoned: bool,
    },
    /// What candidates are compared with ran and was right.
    Compared(Compared),
    /// Both ran in turns, and were right.
    Duelled(Duelled),
    /// The machine's ceilings.
    Ceilings(Ceilings),
    /// Rates and latencies.
    Constants(Constants),
    /// Not to be had here.
    Missing { what: String, remedy: String },
}

/// One way to have a library's result, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Door {
    /// `cublasGemmEx`, `cublasLt 3, fast accumulation`.
    pub name: String,
    /// Least of three times, ms.
    pub ms: Option<f64>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A library's time by its fastest way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Of the fastest way.
    pub timing: Timing,
    /// Its name.
    pub door: String,
    /// All that were tried.
    pub doors: Vec<Door>,
}

/// A candidate and what it is compared with, timed in turns: what drifts, drifts for both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Duelled {
    /// The candidate's times.
    pub ours: Timing,
    /// The other's.
    pub theirs: Compared,
    /// Of each round its time over ours, medians of the round.
    pub ratios: Vec<f64>,
}

impl Duelled {
    /// Its median over ours: above 1, ours is faster.
    pub fn ratio(&self) -> f64 {
        self.theirs.timing.median_ms() / self.ours.median_ms()
    }

    /// Spread of the rounds' ratios: median distance from their median over it, scaled to a standard deviation.
    pub fn spread(&self) -> f64 {
        let middle = crate::store::median(&self.ratios);
        let distances: Vec<f64> = self.ratios.iter().map(|r| (r - middle).abs()).collect();
        1.4826 * crate::store::median(&distances) / middle
    }
}

/// A GPU as its driver describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// Name.
    pub name: String,
    /// `sm_90`.
    pub arch: String,
    /// Multiprocessors.
    pub sms: u32,
    /// Largest clock of the multiprocessors, MHz.
    pub clock_mhz: u32,
    /// Largest clock of the memory, MHz.
    pub memory_clock_mhz: u32,
    /// Bytes.
    pub l2_bytes: u64,
    /// Bytes.
    pub memory_bytes: u64,
    /// Largest shared memory of a block, bytes.
    pub shared_per_block: u32,
    /// Shared memory of a multiprocessor, bytes; 0 here and below where the driver does not say.
    #[serde(default)]
    pub shared_per_sm: u32,
    /// Shared memory that the system takes per block, bytes.
    #[serde(default)]
    pub shared_reserved: u32,
    /// 32-bit registers of a multiprocessor.
    #[serde(default)]
    pub registers_per_sm: u32,
    /// Resident threads of a multiprocessor.
    #[serde(default)]
    pub threads_per_sm: u32,
    /// Resident blocks of a multiprocessor.
    #[serde(default)]
    pub blocks_per_sm: u32,
    /// Width of the memory's bus, bits.
    #[serde(default)]
    pub bus_bits: u32,
    /// Clusters of 1, 2, 4, 8 blocks that are resident at once, where each block takes a multiprocessor's shared memory; none
    /// where the driver does not say.
    #[serde(default)]
    pub max_clusters: Vec<u32>,
    /// Where it is on the machine's bus: `0000:3b:00`.
    #[serde(default)]
    pub bus: String,
    /// Versions.
    pub libraries: Libraries,
}

/// Versions of what runs kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Libraries {
    /// Of CUDA that the driver knows: 13.0.
    pub driver: String,
    /// NVRTC, if it is there.
    pub nvrtc: Option<String>,
    /// cuBLAS, if it is there.
    pub cublas: Option<String>,
}

/// What a machine reaches, measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Copy within device memory, GB/s, read and written bytes together.
    pub copy_gbs: f64,
    /// Single-precision multiply-adds, TFLOP/s.
    pub fma_tflops: f64,
    /// Half-precision matrix products of cuBLAS, TFLOP/s, where it is there.
    pub matrix_tflops: Option<f64>,
}

/// Rates and latencies of a machine's parts, measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constants {
    /// An empty kernel between two events, microseconds.
    pub empty_us: f64,
    /// Reads from DRAM, GB/s.
    pub read_gbs: f64,
    /// Writes to DRAM, GB/s.
    pub write_gbs: f64,
    /// Reads from L2, GB/s, and the clock behind them, MHz.
    pub l2_gbs: f64,
    /// See `l2_gbs`.
    pub l2_mhz: f64,
    /// A load from DRAM that waits for the one before, clocks.
    pub latency_dram: f64,
    /// The same from L2.
    pub latency_l2: f64,
    /// The same from shared memory.
    pub latency_shared: f64,
    /// Reads of shared memory by one multiprocessor, bytes per clock.
    pub shared_bytes_per_clock: f64,
    /// A barrier of clusters of so many blocks, clocks.
    pub cluster_barrier: Vec<(u32, f64)>,
    /// Arithmetic of each kind.
    pub sustained: Vec<Sustained>,
}

/// What arithmetic reaches, at first and after a second of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sustained {
    /// `wgmma_f16_n256`.
    pub name: String,
    /// At first, TFLOP/s.
    pub first_tflops: f64,
    /// After a second, TFLOP/s.
    pub tflops: f64,
    /// The clock then, MHz.
    pub clock_mhz: f64,
}

impl GpuInfo {
    /// The architecture with the chip's own features: `sm_90a`.
    pub fn arch_features(&self) -> String {
        let own = if satune_extract::arch_number(&self.arch) >= 90 { "a" } else { "" };
        format!("{}{own}", self.arch)
    }
}

/// The bytes of a request.
pub(crate) fn encode(number: u64, what: What, blobs: &[&[u8]]) -> io::Result<Vec<u8>> {
    let request = Request { number, what, sizes: blobs.iter().map(|b| b.len()).collect() };
    let mut bytes = serde_json::to_vec(&request)?;
    bytes.push(b'\n');
    blobs.iter().for_each(|b| bytes.extend_from_slice(b));
    Ok(bytes)
}

/// Reads a request; `None` at the end of the input.
pub(crate) fn read_request(input: &mut impl BufRead) -> io::Result<Option<(Request, Vec<Vec<u8>>)>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let request: Request = serde_json::from_str(&line)?;
    let mut blobs = Vec::with_capacity(request.sizes.len());
    for size in &request.sizes {
        let mut blob = Vec::new();
        if input.by_ref().take(*size as u64).read_to_end(&mut blob)? != *size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        blobs.push(blob);
    }
    Ok(Some((request, blobs)))
}

/// Writes an answer.
pub(crate) fn write_answer(output: &mut impl Write, number: u64, what: Said) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Answer { number, what })?;
    line.push(b'\n');
    output.write_all(&line)?;
    output.flush()
}
