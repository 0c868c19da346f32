//! Where NVRTC and nvdisasm may be, and which of several versions is taken.
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;

/// A version of NVRTC, which is that of its CUDA: `13.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Before the point.
    pub major: u32,
    /// Behind it.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Version {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Version, Self::Err> {
        let mut parts = text.split('.');
        let mut part = || parts.next().map_or(Ok(0), str::parse);
        Ok(Version { major: part()?, minor: part()? })
    }
}

/// Why no compiler is chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// There is none of that name.
    #[error("--nvrtc {asked}: there is no such NVRTC here; there is {known}. Give a version (13.0), or the folder of a libnvrtc.so; `scripts/fetch-cuda 13.0` fetches one")]
    Unknown {
        /// As asked.
        asked: String,
        /// Versions that are there.
        known: String,
    },
}

static CHOSEN: OnceLock<PathBuf> = OnceLock::new();

/// From now on all is compiled by one NVRTC: a version (`13.0`, or `12`, the newest of those), or a folder that holds one.
///
/// # Errors
/// When there is none.
pub fn choose(asked: &str) -> Result<(), ChoiceError> {
    let of = |version: &Version| match asked.contains('.') {
        true => version.to_string() == asked,
        false => version.major.to_string() == asked,
    };
    let folder = Path::new(asked);
    let named = holds(folder, "libnvrtc.so").then(|| std::path::absolute(folder).ok()).flatten();
    let found = named.or_else(|| versions().into_iter().find(|(version, _)| of(version)).map(|(_, folder)| folder));
    let Some(folder) = found else {
        let known: Vec<String> = versions().iter().map(|(version, _)| version.to_string()).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        return Err(ChoiceError::Unknown { asked: asked.into(), known });
    };
    // The first choice of a process stands.
    CHOSEN.get_or_init(|| folder);
    Ok(())
}

/// The folders that are compiled with, the first one first: the chosen one, or all of [`versions`].
pub(crate) fn preferred() -> Vec<PathBuf> {
    match CHOSEN.get() {
        Some(folder) => vec![folder.clone()],
        None => versions().into_iter().map(|(_, folder)| folder).collect(),
    }
}

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

/// The disassembler, where there is one.
pub fn nvdisasm() -> Option<PathBuf> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND.get_or_init(|| tool("nvdisasm")).clone()
}

/// Python, where an absolute folder of the `PATH` has it.
pub(crate) fn python() -> Option<PathBuf> {
    paths("PATH").into_iter().map(|folder| folder.join("python3")).find(|file| file.is_file())
}

/// A program of NVIDIA's, where there is one: near libnvrtc, in the toolkit, on the `PATH`.
pub fn tool(name: &str) -> Option<PathBuf> {
    let near = named().into_iter().map(|f| f.join("../bin"));
    let toolkits = toolkits().into_iter().map(|t| t.join("bin"));
    // A wheel has compute-sanitizer in a folder of that name.
    let wheels = ["bin", "compute-sanitizer"].into_iter().flat_map(wheels);
    let mut folders = near.chain(wheels).chain(toolkits).chain(paths("PATH"));
    folders.find_map(|f| Some(f.join(name)).filter(|p| p.is_file()))
}

/// The folders of different versions of libnvrtc, the newest first; of one version the nearest. Each begins with another
/// architecture: 13.x with sm_75, 12.x with sm_50.
pub fn versions() -> Vec<(Version, PathBuf)> {
    static FOUND: OnceLock<Vec<(Version, PathBuf)>> = OnceLock::new();
    let search = || {
        let mut list: Vec<(Version, PathBuf)> = Vec::new();
        for folder in folders() {
            let (version, Ok(folder)) = (version_of(&folder), std::path::absolute(&folder)) else { continue };
            if list.iter().all(|(known, _)| *known != version) {
                list.push((version, folder));
            }
        }
        // What was named comes first.
        let first = usize::from(!named().is_empty()).min(list.len());
        list[first..].sort_by_key(|(version, _)| std::cmp::Reverse(*version));
        list
    };
    FOUND.get_or_init(search).clone()
}

/// The version of a folder's libnvrtc, by the names of files: that of libnvrtc-builtins says all of it, libnvrtc's own in
/// wheels only the part before the point. 0.0 where none says.
fn version_of(folder: &Path) -> Version {
    let of = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?;
        let rest = name.strip_prefix("libnvrtc-builtins.so.").or_else(|| name.strip_prefix("libnvrtc.so."))?;
        rest.parse::<Version>().ok()
    };
    entries(folder).iter().filter_map(of).max().unwrap_or(Version { major: 0, minor: 0 })
}

/// `LD_LIBRARY_PATH` for a worker: libnvrtc loads libnvrtc-builtins by name, which must be of the same version; cuBLAS
/// may be in a folder of its own.
pub(crate) fn loader_path() -> std::ffi::OsString {
    loader_path_of(preferred().first().map(PathBuf::as_path))
}

/// [`loader_path`] with the libnvrtc of a folder.
pub(crate) fn loader_path_of(nvrtc: Option<&Path>) -> std::ffi::OsString {
    static CUBLAS: OnceLock<Option<PathBuf>> = OnceLock::new();
    let cublas =
        CUBLAS.get_or_init(|| with("libcublas.so").into_iter().next().and_then(|f| std::path::absolute(f).ok()));
    let nearest = nvrtc.map(Path::to_path_buf).into_iter().chain(cublas.clone());
    std::env::join_paths(nearest.chain(paths("LD_LIBRARY_PATH"))).unwrap_or_default()
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

/// What may stand under a name beside the executable (installed with its libraries), or in the `target` folder that cargo built
/// it in. Cargo marks a folder that it has made as a cache, and writes into each, whoever made it, what it knows of its
/// compiler: a script may have made the folder before.
pub(crate) fn near(name: &str) -> Vec<PathBuf> {
    let Ok(exe) = std::env::current_exe() else { return Vec::new() };
    let built = |folder: &Path| ["CACHEDIR.TAG", ".rustc_info.json"].iter().any(|mark| folder.join(mark).is_file());
    // target/release, or target/release/deps.
    let folders = exe.ancestors().skip(1).take(4).enumerate().filter(|(up, folder)| *up == 0 || built(folder));
    folders.map(|(_, folder)| folder.join(name)).collect()
}

fn roots() -> Vec<PathBuf> {
    let mut roots = Vec::new();
    for cuda in near("cuda") {
        // Further versions, which `scripts/fetch-cuda VERSION` puts into folders of their names.
        let further = entries(&cuda).into_iter().filter(|f| f.join("nvidia").is_dir());
        roots.extend([vec![cuda.clone()], further.collect()].concat());
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
