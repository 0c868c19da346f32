//! `check`: a stored candidate once more, or any CUDA kernel.
use super::{print, print_json, stored, Failure, Outcome};
use crate::compile::{CompileError, Compiler, Job};
use crate::execute::{self, Findings, KernelError, LaunchWords, Request};
use satune_extract::Descriptor;
use satune_ir::files;
use std::path::PathBuf;

/// Bytes of a kernel's text, at most.
const LONGEST: u64 = 64 << 20;

const EXAMPLES: &str = "\
Examples:
  satune check 3f0c
      the candidate whose id begins so, of the exploration in satune-out
  satune check saxpy.cu --launch \"grid=8, block=256, args=(x: in f32[2048], y: inout f32[2048], a: f32 2.5, n: i32 2048)\"
      runs the kernel's own PTX on the CPU, and says with source lines: data races, accesses out of bounds or misaligned,
      reads of memory that nothing has written, barriers that not all threads reach, asynchronous copies that were not waited for

Words of --launch, in any order:
  grid=8x2        blocks (1)
  block=32x4      threads of a block
  shared=49152    bytes of dynamic shared memory (0)
  kernel=NAME     where the text has several
  args=(..)       one for each parameter, with or without a name:
                    in f32[64x64]     read only
                    out f32[64x64]    written, all of it
                    inout f32[64]     read and written
                    scratch f32[64]   written before it is read
                    in i32[64] below 10   integers from 0 to 9 (else any number of the type, with its extremes)
                    i32 64            a number
                    map in f16[64x128] box 32x64 swizzle 128    a tensor map by value, on an array of its own,
                    map of x f16[64x128] box 32x64              or on that of an earlier argument; contiguous dimension last
Exit code: 0 nothing is wrong, 1 something is, 2 bad input, 3 no NVRTC";

/// Arguments of `check`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Check {
    /// A candidate's id, the beginning of one, or its rank; or a CUDA text (.cu) or PTX (.ptx), with --launch
    id: String,
    /// Folder that `explore` wrote
    #[arg(long, default_value = "satune-out")]
    out: PathBuf,
    /// How to launch the kernel of a file; see below
    #[arg(long)]
    launch: Option<String>,
    /// The GPU that a file is compiled for (see `gpu list`), or a TOML file
    #[arg(long, default_value = "h200")]
    gpu: String,
    /// Most blocks of a file's kernel to run: the corners and edges of the grid, and others at random. 0: all
    #[arg(long, default_value_t = 0)]
    blocks: u64,
    /// Seed of the inputs of a file's kernel
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Most thread instructions of a block, after which a file's kernel is said not to end
    #[arg(long, default_value_t = 2_000_000_000)]
    budget: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `check`.
pub(super) fn run(args: &Check) -> Outcome {
    let file = ["cu", "ptx", "cuh", "cpp"].iter().any(|e| args.id.ends_with(&format!(".{e}")));
    match &args.launch {
        Some(launch) => kernel(args, launch),
        None if file => Err(Failure::Input(format!(
            "how is the kernel of {} launched? --launch \"grid=.., block=.., args=(..)\"; see `satune check --help`",
            args.id
        ))),
        None => stored::check(&stored::Pick { id: args.id.clone(), out: args.out.clone(), json: args.json }),
    }
}

fn kernel(args: &Check, launch: &str) -> Outcome {
    let launch: LaunchWords = launch.parse().map_err(|e: execute::WordsError| Failure::Input(e.to_string()))?;
    let text = files::read_text(args.id.as_ref(), LONGEST).map_err(|e| Failure::Input(format!("{}: {e}", args.id)))?;
    let (ptx, source) = match args.id.ends_with(".ptx") {
        true => (text, String::new()),
        false => (compiled(args, &text)?, text),
    };
    let request = Request {
        ptx: &ptx,
        source: &source,
        launch: &launch,
        blocks: args.blocks,
        seed: args.seed,
        budget: args.budget,
    };
    let findings = execute::check(&request).map_err(|e: KernelError| Failure::Input(format!("{}: {e}", args.id)))?;
    if args.json {
        print_json(&findings)?;
    } else {
        print(&shown(&args.id, &findings))?;
    }
    if findings.clean() {
        return Ok(());
    }
    Err(Failure::Nothing(format!("`{}` is wrong", findings.kernel)))
}

fn compiled(args: &Check, text: &str) -> Result<String, Failure> {
    let gpu = Descriptor::load(&args.gpu).map_err(|e| Failure::Input(e.to_string()))?;
    let compiler = Compiler::of_this_program().map_err(|e| Failure::Environment(e.to_string()))?;
    let name = args.id.trim_end_matches(".cu").rsplit('/').next().unwrap_or("kernel").to_string();
    let job = Job { name, source: text.into(), arch: gpu.arch_features.clone() };
    match compiler.compile(&job) {
        Ok(compiled) if compiled.ptx.is_empty() => Err(Failure::Environment("NVRTC gives no PTX".into())),
        Ok(compiled) => Ok(compiled.ptx),
        Err(e @ CompileError::Refused { .. }) => Err(Failure::Input(e.to_string())),
        Err(e) => Err(Failure::Environment(e.to_string())),
    }
}

fn shown(file: &str, f: &Findings) -> String {
    let mut out = String::new();
    for fault in &f.faults {
        let at = match (fault.line, fault.called_at) {
            (0, _) => file.to_string(),
            (line, 0) => format!("{file}:{line}"),
            (line, call) => format!("{file}:{line} (called at line {call})"),
        };
        let thread = if fault.thread.is_empty() { String::new() } else { format!("{}: ", fault.thread) };
        out.push_str(&format!("{at}: {thread}{}\n", fault.what));
        if !fault.text.is_empty() {
            out.push_str(&format!("    {}\n", fault.text));
        }
        if !fault.instruction.is_empty() {
            out.push_str(&format!("    in PTX: {}\n", fault.instruction));
        }
    }
    for u in &f.unwritten {
        out.push_str(&format!(
            "{file}: {} elements of `{}` are never written, the first is element {}\n",
            u.elements, u.argument, u.first
        ));
    }
    let blocks =
        if f.blocks_run == f.blocks { format!("{}", f.blocks) } else { format!("{} of {}", f.blocks_run, f.blocks) };
    let plural = |n: u64| if n == 1 { "" } else { "s" };
    let wrong = (f.faults.len() + f.unwritten.len()) as u64;
    let verdict = match wrong {
        0 if f.blocks_run == f.blocks => "no races, nothing out of bounds or unwritten".to_string(),
        0 => "no races, nothing out of bounds".to_string(),
        n => format!("{n} fault{}", plural(n)),
    };
    out.push_str(&format!(
        "`{}`: {blocks} block{} run, {} thread instructions: {verdict}\n",
        f.kernel,
        plural(f.blocks_run),
        f.executed
    ));
    out
}
