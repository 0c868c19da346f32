//! Where NVRTC and nvdisasm may be.
use std::path::{Path, PathBuf};

/// Folders that may hold libnvrtc, nearest first: `SATUNE_CUDA_LIBS`, beside the executable, what `scripts/fetch-cuda`
/// put under `target/cuda`, Python's site-packages, the toolkit's usual place.
pub fn folders() -> Vec<PathBuf> {
    let mut list: Vec<PathBuf> = Vec::new();
    if let Some(paths) = std::env::var_os("SATUNE_CUDA_LIBS") {
        list.extend(std::env::split_paths(&paths));
    }
    for root in roots() {
        list.push(root.join("nvidia/cu13/lib"));
        list.push(root.join("nvidia/cuda_nvrtc/lib"));
        list.push(root.join("lib"));
    }
    list.push("/usr/local/cuda/lib64".into());
    list.retain(|p| p.is_dir());
    list
}

fn roots() -> Vec<PathBuf> {
    let mut roots = Vec::new();
    if let Ok(exe) = std::env::current_exe() {
        for folder in exe.ancestors().skip(1).take(4) {
            roots.push(folder.join("cuda"));
        }
    }
    roots.push(Path::new("target").join("cuda"));
    for prefix in ["/usr/local/lib", "/usr/lib"] {
        for minor in 8..15 {
            roots.push(Path::new(prefix).join(format!("python3.{minor}/site-packages")));
            roots.push(Path::new(prefix).join(format!("python3.{minor}/dist-packages")));
        }
    }
    roots
}

/// `LD_LIBRARY_PATH` for a worker: libnvrtc loads libnvrtc-builtins by name.
pub(super) fn loader_path() -> std::ffi::OsString {
    let mut list = folders();
    if let Some(paths) = std::env::var_os("LD_LIBRARY_PATH") {
        list.extend(std::env::split_paths(&paths));
    }
    std::env::join_paths(list.into_iter().filter_map(|p| std::path::absolute(p).ok())).unwrap_or_default()
}

/// The disassembler, where there is one.
pub fn nvdisasm() -> Option<PathBuf> {
    let mut candidates: Vec<PathBuf> = roots().into_iter().map(|r| r.join("nvidia/cu13/bin/nvdisasm")).collect();
    candidates.push("/usr/local/cuda/bin/nvdisasm".into());
    if let Some(paths) = std::env::var_os("PATH") {
        candidates.extend(std::env::split_paths(&paths).map(|p| p.join("nvdisasm")));
    }
    candidates.into_iter().find(|p| p.is_file())
}
