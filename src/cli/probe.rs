//! `probe`: measures what an unknown GPU reaches, and writes a first descriptor.
use super::{devices, print, print_json, Failure, Outcome};
use crate::device::{cuda::Cuda, probe, Device};
use crate::explore;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where to.
#[derive(clap::Args)]
pub(super) struct Args {
    /// File to write
    #[arg(long, default_value = "gpu.toml")]
    out: PathBuf,
    /// Its name [default: the file's]
    #[arg(long)]
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `probe`.
pub(super) fn run(args: &Args) -> Outcome {
    let file = args.out.file_name().and_then(|n| n.to_str());
    let file = file.ok_or_else(|| Failure::Input(format!("--out {} names no file", args.out.display())))?;
    let name = args.name.as_deref().unwrap_or_else(|| file.trim_end_matches(".toml"));
    let folder = match args.out.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut cuda = Cuda::open(devices::this_program()?)?;
    let limit = Duration::from_secs(120);
    let ceilings = cuda.ceilings(limit)?;
    let constants = cuda.constants(limit).unwrap_or_else(|error| {
        super::say(&format!("satune: {error}"));
        None
    });
    let info = cuda.info().clone();
    let probed = probe::descriptor(name, &info, ceilings.as_ref(), constants.as_ref())
        .map_err(|e| Failure::Environment(e.to_string()))?;
    explore::write_whole(folder, file, &probed.text).map_err(|e| Failure::Environment(e.to_string()))?;
    if args.json {
        return print_json(&serde_json::json!({
            "file": args.out, "gpu": info, "ceilings": ceilings, "constants": constants, "estimates_of": probed.similar,
        }));
    }
    print(&format!(
        "{}: limits from the driver, rates measured, the rest estimated as for {}\nwritten to {}: use it as --gpu {}\n",
        info.name,
        probed.similar,
        args.out.display(),
        args.out.display()
    ))
}
