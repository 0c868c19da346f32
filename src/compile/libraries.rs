//! Where NVRTC and nvdisasm may be.
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Folders that hold libnvrtc, nearest first: `SATUNE_CUDA_LIBS`; `cuda` beside the executable; `target/cuda`, where
/// `scripts/fetch-cuda` puts it, if the executable was built in that `target`; Python's site-packages; the toolkit's usual
/// places. Nothing below the current directory is loaded because one stands in it.
pub fn folders() -> Vec<PathBuf> {
    with("libnvrtc.so")
}

fn with(library: &str) -> Vec<PathBuf> {
    let toolkits = toolkits().into_iter().flat_map(|t| [t.join("lib64"), t.join("lib")]);
    named().into_iter().chain(wheels("lib")).chain(toolkits).filter(|f| holds(f, library)).collect()
}

/// The disassembler, where there is one: near libnvrtc, in the toolkit, on the `PATH`.
pub fn nvdisasm() -> Option<PathBuf> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let search = || {
        let near = named().into_iter().map(|f| f.join("../bin"));
        let toolkits = toolkits().into_iter().map(|t| t.join("bin"));
        let mut folders = near.chain(wheels("bin")).chain(toolkits).chain(paths("PATH"));
        folders.find_map(|f| Some(f.join("nvdisasm")).filter(|p| p.is_file()))
    };
    FOUND.get_or_init(search).clone()
}

/// `LD_LIBRARY_PATH` for a worker: libnvrtc loads libnvrtc-builtins by name, which must be of the same version; cuBLAS
/// may be in a folder of its own.
pub(crate) fn loader_path() -> std::ffi::OsString {
    static FOUND: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let nearest = FOUND.get_or_init(|| {
        let first = |library| with(library).into_iter().next().and_then(|f| std::path::absolute(f).ok());
        ["libnvrtc.so", "libcublas.so"].into_iter().filter_map(first).collect()
    });
    let list = nearest.iter().cloned().chain(paths("LD_LIBRARY_PATH"));
    std::env::join_paths(list).unwrap_or_default()
}

/// The absolute paths of a variable: an empty or relative one would be of the current directory.
fn paths(variable: &str) -> Vec<PathBuf> {
    listed(variable).into_iter().filter(|path| path.is_absolute()).collect()
}

fn listed(variable: &str) -> Vec<PathBuf> {
    std::env::var_os(variable).map(|v| std::env::split_paths(&v).collect()).unwrap_or_default()
}

/// What the user names for Satune is taken as it is named.
fn named() -> Vec<PathBuf> {
    listed("SATUNE_CUDA_LIBS").into_iter().filter(|path| !path.as_os_str().is_empty()).collect()
}

fn toolkits() -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().flat_map(paths);
    named.chain([PathBuf::from("/usr/local/cuda")]).collect()
}

/// The `lib` or `bin` folders of wheels: `nvidia/<name>/lib` under each root.
fn wheels(kind: &str) -> Vec<PathBuf> {
    let mut list = Vec::new();
    for root in roots() {
        list.push(root.join(kind));
        list.extend(entries(&root.join("nvidia")).into_iter().rev().map(|f| f.join(kind)));
    }
    list.retain(|f| f.is_dir());
    list
}

fn roots() -> Vec<PathBuf> {
    let mut roots = Vec::new();
    if let Ok(exe) = std::env::current_exe() {
        // Installed with its libraries beside it, or built by cargo: in target/release, or target/release/deps.
        let near = exe.ancestors().skip(1).take(4).enumerate();
        let trusted = near.filter(|(up, folder)| *up == 0 || folder.join("CACHEDIR.TAG").is_file());
        roots.extend(trusted.map(|(_, folder)| folder.join("cuda")));
    }
    // Python installations: active environments, then those on the PATH, the user's, the system's.
    let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().flat_map(paths).collect();
    prefixes.extend(
        paths("PATH").iter().filter(|f| f.join("python3").exists()).filter_map(|f| f.parent().map(Path::to_path_buf)),
    );
    prefixes.extend(paths("HOME").iter().map(|home| home.join(".local")));
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    for prefix in prefixes {
        for python in entries(&prefix.join("lib")) {
            if python.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python3")) {
                roots.push(python.join("site-packages"));
                roots.push(python.join("dist-packages"));
            }
        }
    }
    roots
}

/// What a folder holds, in order of names; nothing where it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut list: Vec<PathBuf> =
        std::fs::read_dir(folder).map(|d| d.flatten().map(|e| e.path()).collect()).unwrap_or_default();
    list.sort();
    list
}

fn holds(folder: &Path, start: &str) -> bool {
    entries(folder).iter().any(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(start)))
}
