//! NVIDIA's nvMatmulHeuristics beside Satune: which tile it takes first for a product, and how long it thinks that takes.
//!
//! It is a closed library in a Python wheel, which needs no GPU, knows some of them by name, and may crash: it is asked in a
//! process of its own.
use crate::compile::{near, python};
use satune_extract::Descriptor;
use satune_ir::term::tensor::{Gemm, GroupMma};
use satune_ir::DType;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// What it takes first for a product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Tile of a block: m, n, k.
    pub tile: [i64; 3],
    /// Rows and columns of a warp's part; on `wgmma` without a meaning.
    pub warp: [i64; 2],
    /// Tiles in the ring.
    pub stages: u32,
    /// Parts of k.
    pub split_k: i64,
    /// Tiles along m and n whose blocks form a cluster.
    pub cluster: [u32; 2],
    /// How long it takes by its own estimate, ms.
    pub estimated_ms: f64,
}

/// A choice beside the space of Satune.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// The choice.
    pub choice: Choice,
    /// The question about it, as `satune why-not` takes it.
    pub question: String,
    /// Whether the space has a schedule of that tile, cluster, ring and parts of k.
    pub in_space: bool,
    /// Why not.
    pub reasons: Vec<String>,
    /// The best of those schedules under the model, ms.
    pub predicted_ms: Option<f64>,
    /// That schedule, for people.
    pub schedule: Vec<String>,
    /// The best of the space under the model, ms.
    pub best_ms: Option<f64>,
}

/// Why there is no choice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmmhError {
    /// No wheel.
    #[error("there is no nvMatmulHeuristics here; `scripts/fetch-nvmmh` fetches it (a Python wheel), or SATUNE_NVMMH names the folder that holds it")]
    Absent,
    /// A GPU that it does not know.
    #[error("nvMatmulHeuristics does not know the GPU {0}; it knows {known}", known = known())]
    Gpu(String),
    /// Nothing for such operands.
    #[error("nvMatmulHeuristics is asked about products on tensor cores, and {0}")]
    Product(String),
    /// The process did not answer.
    #[error("nvMatmulHeuristics, asked by python3, {0}")]
    Process(String),
}

/// Satune's names of GPUs, and the library's.
const GPUS: [(&str, &str); 8] = [
    ("a100", "A100_SXM_80GB"),
    ("a6000", "RTX_A6000"),
    ("rtx3090", "RTX_3090"),
    ("l4", "L4"),
    ("rtx4090", "RTX_4090"),
    ("h100", "H100_SXM"),
    ("h200", "H200_SXM"),
    ("b200", "B200"),
];

fn known() -> String {
    GPUS.map(|(name, _)| name).join(", ")
}

/// How long it may take for all products: the library loads in a second, and answers in milliseconds.
const LIMIT: Duration = Duration::from_secs(120);

/// The folder that the wheel was unpacked into: `SATUNE_NVMMH`, or `nvmmh` beside the executable or in the `target` that it
/// was built in.
fn folder() -> Option<PathBuf> {
    let holds = |folder: &PathBuf| folder.join("nvMatmulHeuristics").is_dir();
    if let Some(named) = std::env::var_os("SATUNE_NVMMH") {
        return Some(PathBuf::from(named)).filter(holds);
    }
    near("nvmmh").into_iter().find(holds)
}

/// Whether the library is here.
pub fn is_here() -> bool {
    folder().is_some()
}

/// The letters by which the library knows the types of a product: operands, sums, result.
fn precision(gemm: &Gemm) -> Option<&'static str> {
    use DType::{BF16, F16, F32, F8E4M3, I32, I8};
    Some(match (gemm.operand, gemm.output) {
        (F16, F32) => "HSS",
        (F16, F16) => "HSH",
        (BF16, F32) => "TSS",
        (BF16, BF16) => "TST",
        (F32, F32) => "SFS",
        (I8, I32) => "BII",
        (F8E4M3, F32) => "QQSSS",
        _ => return None,
    })
}

/// The order of storage: of a result by rows as it is, of one by columns in terms of columns.
fn layout(gemm: &Gemm) -> String {
    let letter = |across: bool| if across { 'T' } else { 'N' };
    let (a, b) = (gemm.a_transposed != gemm.c_transposed, gemm.b_transposed != gemm.c_transposed);
    format!("{}{}_{}_MAJOR", letter(a), letter(b), if gemm.c_transposed { "COL" } else { "ROW" })
}

/// The first choice for each product.
///
/// # Errors
/// Where the library is not here, does not know the GPU or a product's types, or ends without an answer.
pub fn choices(gpu: &Descriptor, gemms: &[Gemm]) -> Result<Vec<Choice>, NvmmhError> {
    let (_, name) = GPUS.iter().find(|(own, _)| *own == gpu.name).ok_or_else(|| NvmmhError::Gpu(gpu.name.clone()))?;
    let folder = folder().ok_or(NvmmhError::Absent)?;
    let problems = gemms
        .iter()
        .map(|gemm| {
            let (operand, output) = (gemm.operand, gemm.output);
            let refused = || NvmmhError::Product(format!("not from {operand:?} to {output:?}"));
            Ok(json!({
                "m": gemm.m, "n": gemm.n, "k": gemm.k, "batch": gemm.batch,
                "layout": layout(gemm), "precision": precision(gemm).ok_or_else(refused)?,
            }))
        })
        .collect::<Result<Vec<_>, NvmmhError>>()?;
    let target = if gpu.tma { "CUTLASS3" } else { "CUTLASS" };
    let said = ask(&json!({"folder": folder, "gpu": name, "target": target, "problems": problems}).to_string())?;
    let lines: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("answer ")).collect();
    if lines.len() != gemms.len() {
        let (got, all) = (lines.len(), gemms.len());
        return Err(NvmmhError::Process(format!("gave {got} of {all} answers: {}", tail(&said))));
    }
    let read = |line: &&str| {
        serde_json::from_str(line).map_err(|_| NvmmhError::Process(format!("has no kernel for a product ({line})")))
    };
    lines.iter().map(read).collect()
}

/// The last words of a process.
fn tail(said: &str) -> String {
    said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").chars().take(200).collect()
}

/// What the process says: answers, and behind them what it complained of.
fn ask(request: &str) -> Result<String, NvmmhError> {
    let wrong = |e: std::io::Error| NvmmhError::Process(format!("did not run: {e}"));
    let python = python().ok_or_else(|| NvmmhError::Process("did not run: the PATH has no python3".into()))?;
    let mut child = Command::new(python)
        // Isolated: nothing is imported from the current directory.
        .args(["-I", "-c", include_str!("ask.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(wrong)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (done, said) = channel();
    // Threads, since a process that hangs neither reads nor writes.
    let request = request.to_string();
    std::thread::spawn(move || stdin.map(|mut pipe| pipe.write_all(request.as_bytes())));
    let complaints = std::thread::spawn(move || text(stderr));
    std::thread::spawn(move || done.send(text(stdout) + &complaints.join().unwrap_or_default()));
    let all = said.recv_timeout(LIMIT);
    if all.is_err() {
        let _ = child.kill();
    }
    child.wait().map_err(wrong)?;
    all.map_err(|_| NvmmhError::Process(format!("did not end within {} s", LIMIT.as_secs())))
}

fn text(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What was read before an error is there all the same.
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Choice {
    /// The question about its tile, as `satune why-not` takes it.
    pub fn question(&self, gpu: &Descriptor) -> String {
        let Choice { tile: [m, n, k], warp, stages, split_k, cluster, .. } = self;
        let how = match GroupMma::of(gpu.arch_number()).filter(|_| gpu.tma) {
            Some(op) => format!("{op}, cluster {}x{}", cluster[0], cluster[1]),
            None => format!("mma.sync, warp {}x{}", warp[0], warp[1]),
        };
        format!("{how}, swapped no, tile {m}x{n}x{k}, {stages} stages, k in {split_k} parts")
    }
}

impl Beside {
    /// For people.
    pub fn text(&self) -> String {
        let Choice { tile: [m, n, k], stages, split_k, cluster: [a, b], estimated_ms, .. } = &self.choice;
        let parts = if *split_k > 1 { format!(", k in {split_k} parts") } else { String::new() };
        let cluster = if [*a, *b] == [1, 1] { String::new() } else { format!(", clusters of {a}x{b}") };
        let place = match (self.in_space, self.predicted_ms) {
            (false, _) => format!("not in the space: {}", self.reasons.join("; ")),
            (true, None) => format!("in the space, but {}", self.reasons.join("; ")),
            (true, Some(ms)) => {
                let best = self.best_ms.unwrap_or(ms);
                format!("in the space, its best predicted {ms:.4} ms, {:.2}x the best of all ({best:.4} ms)", ms / best)
            }
        };
        format!(
            "nvMatmulHeuristics takes {m}x{n}, k {k}, {stages} stages{cluster}{parts}: {estimated_ms:.4} ms by its own \
             estimate; {place}"
        )
    }
}
