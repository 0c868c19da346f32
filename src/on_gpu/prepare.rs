//! The packs of the calls, made where no GPU is.
use super::assumptions::ASSUMPTIONS;
use super::works;
use crate::compile::Compiler;
use crate::pack::{make, probes, variants, Draws, PackError, Wanted};
use crate::progress::Progress;
use crate::source::{SourceError, Work};
use satune_extract::Descriptor;
use std::path::Path;
use std::time::Duration;

/// Seed of all random choices.
const SEED: u64 = 13;

/// Why there are no packs.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// A file.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// A program.
    #[error(transparent)]
    Program(#[from] SourceError),
    /// It was told to end, before which file was whole.
    #[error("interrupted while packing: {0} and the packs after it are not written")]
    Interrupted(String),
    /// A folder.
    #[error("{path}: {error}")]
    Folder {
        /// Which.
        path: String,
        /// What the system says.
        error: std::io::Error,
    },
}

/// How much is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// For a GPU.
    Whole,
    /// For a rehearsal: few and small programs, few candidates.
    Small,
}

/// Programs whose families are tried: types, orders of storage, ragged shapes, results in 16 bits, epilogues, batches.
const FAMILIES: [&str; 20] = [
    "gemm:256,192,512,bf16,NT",
    "gemm:256,192,512,bf16,NN",
    "gemm:256,192,512,f16,TN",
    "gemm:256,192,512,f16,TT",
    "gemm:130,70,96,bf16,NT",
    "gemm:200,136,264,bf16,NT,out=bf16",
    "gemm:256,192,512,tf32,NT",
    "gemm:256,256,512,i8,NT",
    "gemm:256,256,512,e4m3,NT",
    "gemm:256,256,512,e5m2,NT",
    "gemm:256,192,512,bf16,NT,out=bf16,bias,gelu",
    "gemm:128,128,128,f32",
    "gemm:65,33,17,f64,TN",
    "bmm:3,64,64,64,f16",
    "gemm:64,64,4096,bf16,NT",
    "softmax:64,1024,f32",
    "rowsum:64,4096,f32",
    "mean:33,257,f16",
    "transpose:130,66,f32",
    "gemv:256,512,f32",
];
/// Shapes that users ask for.
const HEADLINES: [&str; 12] = [
    "gemm:4096,4096,4096,bf16,NT",
    "gemm:8192,8192,8192,bf16,NT",
    "gemm:4096,4096,4096,f32",
    "gemm:4096,4096,4096,e4m3,NT",
    "gemm:16,8192,8192,bf16,NT",
    "gemm:256,256,16384,bf16,NT",
    "gemm:4096,14336,4096,bf16,NT,out=bf16",
    "gemm:4096,4096,4096,tf32,NT",
    "gemm:4097,4095,4093,bf16,NT",
    "gemm:1024,1024,1024,f32",
    "softmax:4096,4096,f32",
    "gemv:16384,16384,f32",
];
/// Shapes that a descriptor is fitted to.
const CALIBRATE: [&str; 40] = [
    "gemm:512,512,512,f32",
    "gemm:1024,1024,1024,f32",
    "gemm:2048,2048,2048,f32",
    "gemm:4096,4096,512,f32",
    "gemm:512,512,16384,f32",
    "gemm:1000,1000,1000,f32",
    "gemm:128,4096,4096,f32",
    "gemm:3072,768,768,f32,NT",
    "gemm:512,512,512,bf16,NT",
    "gemm:1024,1024,1024,bf16,NT",
    "gemm:2048,2048,2048,bf16,NT",
    "gemm:4096,4096,4096,bf16,NT",
    "gemm:4096,4096,4096,bf16,NN",
    "gemm:2048,2048,2048,bf16,TN",
    "gemm:2048,2048,2048,f16,TT",
    "gemm:16,8192,8192,bf16,NT",
    "gemm:64,4096,4096,bf16,NT",
    "gemm:256,256,16384,bf16,NT",
    "gemm:4096,14336,4096,bf16,NT",
    "gemm:4097,4095,4093,bf16,NT",
    "gemm:2048,2048,2048,bf16,NT,out=bf16",
    "gemm:2048,2048,2048,bf16,NT,out=bf16,bias,gelu",
    "gemm:1536,3072,768,f16,NT",
    "gemm:2048,2048,2048,tf32,NT",
    "gemm:1024,4096,1024,tf32,NN",
    "gemm:2048,2048,2048,i8,NT",
    "gemm:2048,2048,2048,e4m3,NT",
    "gemm:4096,4096,4096,e4m3,NT",
    "bmm:16,512,512,64,bf16",
    "bmm:64,128,128,128,f16",
    "rowsum:65536,1024,f32",
    "rowsum:4096,4096,f32",
    "mean:2048,8192,f32",
    "softmax:4096,4096,f32",
    "softmax:4096,4096,f16",
    "transpose:8192,8192,f32",
    "transpose:4096,4096,f16",
    "gemv:16384,16384,f32",
    "gemv:8192,8192,f16",
    "relu_chain:8192,8192,f16",
];
/// What stands for all of it in a rehearsal.
const SMALL: [&str; 3] = ["gemm:64,64,64,f32", "softmax:64,256,f32", "transpose:128,128,f32"];
/// One program on tensor cores, whose space is larger, for the correctness of families.
const SMALL_FAMILIES: [&str; 4] =
    ["gemm:64,64,64,f32", "softmax:64,256,f32", "transpose:128,128,f32", "gemm:128,64,128,bf16,NT"];

/// Makes all packs of a GPU into a folder. `suites`: name and programs of each. Returns each file's name and bytes.
///
/// # Errors
/// See [`PrepareError`].
pub fn prepare(
    (gpu, descriptor): (&Descriptor, &str),
    suites: &[(String, Vec<Work>)],
    size: Size,
    compilers: &[Compiler],
    folder: &Path,
    progress: &dyn Progress,
) -> Result<Vec<(String, u64)>, PrepareError> {
    std::fs::create_dir_all(folder)
        .map_err(|error| PrepareError::Folder { path: folder.display().to_string(), error })?;
    let small = size == Size::Small;
    let looked_at = if small { 100 } else { 4000 };
    let draws = Draws { count: looked_at, seed: SEED };
    let limit = Duration::from_secs(if small { 10 } else { 60 });
    let of = |top, random, per_family, compared| Wanted {
        top,
        random,
        per_family,
        looked_at,
        seed: SEED,
        limit,
        // A GPU waits for no compiler.
        compiled: usize::MAX,
        compared,
    };
    let text = || (gpu, descriptor.to_string());
    let mut written = Vec::new();
    let mut write = |mut pack: crate::pack::Pack, name: &str| -> Result<crate::pack::Pack, PrepareError> {
        let file = format!("{name}.pack");
        if progress.stopped() {
            return Err(PrepareError::Interrupted(file));
        }
        let bytes = pack.write(&folder.join(&file))?;
        written.push((file, bytes));
        Ok(pack)
    };
    let fits = |a: &&crate::pack::Assumption| !small || SMALL.contains(&a.program);
    let assumptions: Vec<crate::pack::Assumption> = ASSUMPTIONS.iter().filter(fits).copied().collect();
    write(probes("probes", &assumptions, text(), draws, compilers, progress)?, "probes")?;
    let list = |whole: &[&'static str], few: &[&'static str]| works(if small { few } else { whole });
    let families = list(&FAMILIES, &SMALL_FAMILIES)?;
    write(
        make("families", &families, text(), &of(0, 0, if small { 1 } else { 2 }, 0), compilers, progress),
        "families",
    )?;
    let headlines = list(&HEADLINES, &SMALL[..2])?;
    let of_headlines = if small { of(2, 0, 0, 1) } else { of(4, 0, 0, 4) };
    let headlines = make("headlines", &headlines, text(), &of_headlines, compilers, progress);
    let headlines = write(headlines, "headlines")?;
    write(variants("single decisions", &headlines, gpu, compilers, progress)?, "ab")?;
    let few = works(&SMALL)?;
    let of_shape = if small { of(2, 2, 0, 0) } else { of(16, 40, 0, 0) };
    let shapes = if small { few } else { works(&CALIBRATE)? };
    write(make("calibrate", &shapes, text(), &of_shape, compilers, progress), "calibrate")?;
    for (name, programs) in suites {
        let programs: Vec<Work> = match small {
            true => works(&SMALL)?,
            false => programs.clone(),
        };
        let wanted = if small { of(1, 1, 0, 0) } else { of(64, 64, 0, 4) };
        write(make(name, &programs, text(), &wanted, compilers, progress), &format!("suite-{name}"))?;
    }
    Ok(written)
}
