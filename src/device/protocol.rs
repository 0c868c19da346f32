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
    /// Measure a candidate. Bytes: the support module, then the machine code of each kernel.
    Measure(Box<MeasureJob>),
    /// Time the vendor's library. Bytes: the support module.
    Library(Box<MeasureJob>),
    /// Measure the machine's ceilings. Bytes: the support module.
    Ceilings,
}

/// A candidate for a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MeasureJob {
    /// Hash of its trace.
    pub trace: String,
    /// Predicted time, ms.
    pub predicted_ms: f64,
    /// What is computed, where it is a contraction: what a GPU's results are compared with.
    pub contraction: Option<ContractionJob>,
    pub kernels: Vec<KernelJob>,
    /// Bytes of each buffer between the kernels.
    pub workspaces: Vec<u64>,
    /// Which of the program's parameters a contraction's A, B and C are.
    pub params: [usize; 3],
    pub cut_off_ms: Option<f64>,
    pub settle: f64,
    pub most_repeats: u32,
    /// Seconds that the repeats may take together.
    pub seconds: f64,
    /// A time below this is faster than the machine can compute, ms.
    pub floor_ms: f64,
    /// Largest relative error of the result, by the root of the sum of squares; 0: exact.
    pub tolerance: f64,
}

impl MeasureJob {
    /// Additions and multiplications of a contraction.
    pub fn flops(&self) -> f64 {
        self.contraction.as_ref().map_or(0.0, ContractionJob::flops)
    }
}

/// The problem for a worker: sums of products over axes, each with its extent and the operands' strides along it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContractionJob {
    /// Extent; strides of A, B and C, in elements. In the order of C's dimensions where it has a choice.
    pub spatial: [[i64; 4]; SPATIAL],
    /// Extent; strides of A and B.
    pub reduce: [[i64; 3]; REDUCE],
    pub a: OperandJob,
    pub b: OperandJob,
    pub c: OperandJob,
    /// The same as one batch of matrix products, for the library, if it is one.
    pub product: Option<ProductJob>,
}

/// Axes of the results, and axes that are summed over, that the reference takes.
pub(crate) const SPATIAL: usize = 4;
/// See [`SPATIAL`].
pub(crate) const REDUCE: usize = 3;

impl ContractionJob {
    /// Number of results.
    pub fn results(&self) -> u64 {
        self.spatial.iter().map(|axis| axis[0].unsigned_abs()).product()
    }

    /// Terms of each sum.
    pub fn terms(&self) -> u64 {
        self.reduce.iter().map(|axis| axis[0].unsigned_abs()).product()
    }

    /// Additions and multiplications.
    pub fn flops(&self) -> f64 {
        2.0 * self.results() as f64 * self.terms() as f64
    }
}

/// A batch of matrix products.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProductJob {
    /// Batch, m, n, k.
    pub extents: [i64; 4],
    /// Strides of A, B and C along them, in elements.
    pub strides: [[i64; 4]; 3],
}

/// An operand for a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OperandJob {
    pub dtype: DType,
    pub elements: u64,
}

/// A launch for a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// The machine's ceilings.
    Ceilings(Ceilings),
    /// Not to be had here.
    Missing { what: String, remedy: String },
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
