//! Where the results of explorations stand: each in a folder of its own, which is there whole or not at all.
//!
//! ```text
//! satune-out/
//!   store.db
//!   runs/1-softmax_64_64_f32-h200/
//!   runs/2-gemm_64_48_32_f32-a100/    kernels, traces, report.html, candidates.json
//!   latest -> runs/2-gemm_64_48_32_f32-a100
//!   candidates.json -> latest/candidates.json, and so on for each file of the latest
//! ```
//!
//! Files are written into a folder with a name of its own, which is then renamed, and `latest` is replaced by one rename:
//! whoever reads sees the files of one exploration. A run of the store is finished after that, so that `satune resume` makes
//! again what a killed process left out. One process at a time writes here.
use super::output::{write_whole, Report};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const RUNS: &str = "runs";
const LATEST: &str = "latest";
const PARTIAL: &str = ".partial-";

/// How long another process is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// The folder that holds the latest exploration's files: that of an output folder, or the folder of one exploration itself.
pub fn folder(out: &Path) -> PathBuf {
    let latest = out.join(LATEST);
    if latest.join("candidates.json").is_file() {
        std::fs::canonicalize(&latest).unwrap_or(latest)
    } else {
        out.to_path_buf()
    }
}

/// Writes an exploration's files, with what `more` adds to them in the folder that it is told, and makes it the latest.
/// Returns its folder.
///
/// # Errors
/// What the system says, with the path; what was there before is there still. Where another process writes here for a
/// minute, that.
pub fn publish(report: &Report, out: &Path, more: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<PathBuf> {
    let runs = out.join(RUNS);
    std::fs::create_dir_all(&runs).map_err(|e| named(&e, &runs))?;
    let _lock = lock(out)?;
    // What a killed process left: nobody else is writing.
    for left in names(&runs)?.iter().filter(|name| name.starts_with(PARTIAL)) {
        let _ = std::fs::remove_dir_all(runs.join(left));
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(PARTIAL);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755));
    let partial = builder.tempdir_in(&runs).map_err(|e| named(&e, &runs))?;
    let given = report.given.iter().flat_map(|g| &g.files);
    for (name, text) in report.candidates.iter().flat_map(|c| &c.files).chain(given) {
        write(partial.path(), name, text)?;
    }
    write(partial.path(), "program.py", &report.program_text())?;
    more(partial.path())?;
    reached()?;
    write(partial.path(), "candidates.json", &serde_json::to_string_pretty(report).map_err(io::Error::other)?)?;
    let number = names(&runs)?.iter().filter_map(|n| n.split('-').next()?.parse::<u64>().ok()).max().unwrap_or(0) + 1;
    let name = format!("{number}-{}-{}", report.slug(), crate::lower::safe(&report.gpu));
    let whole = runs.join(&name);
    reached()?;
    std::fs::rename(partial.path(), &whole).map_err(|e| named(&e, &whole))?;
    // It has another name now: there is nothing to remove.
    let _ = partial.keep();
    reached()?;
    show(out, &name)?;
    reached()?;
    Ok(whole)
}

/// Names the files of the latest exploration in the output folder again.
///
/// # Errors
/// As [`publish`].
pub fn show_again(out: &Path) -> io::Result<()> {
    let Ok(latest) = std::fs::read_link(out.join(LATEST)) else { return Ok(()) };
    let _lock = lock(out)?;
    match latest.file_name().and_then(|name| name.to_str()) {
        Some(name) => show(out, name),
        None => Ok(()),
    }
}

fn write(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    write_whole(folder, name, text)?;
    reached()
}

/// Makes an exploration the latest: one rename, then names for its files in the output folder.
#[cfg(unix)]
fn show(out: &Path, name: &str) -> io::Result<()> {
    let link = |target: &Path, at: &Path| -> io::Result<()> {
        if std::fs::read_link(at).is_ok_and(|known| known == target) {
            return Ok(());
        }
        let fresh = out.join(format!(".link-{}", std::process::id()));
        let _ = std::fs::remove_file(&fresh);
        std::os::unix::fs::symlink(target, &fresh).map_err(|e| named(&e, &fresh))?;
        std::fs::rename(&fresh, at).map_err(|e| named(&e, at))
    };
    link(&Path::new(RUNS).join(name), &out.join(LATEST))?;
    reached()?;
    for file in names(&out.join(LATEST))? {
        link(&Path::new(LATEST).join(&file), &out.join(&file))?;
    }
    // Names of earlier explorations' files lead nowhere now.
    for file in names(out)? {
        let at = out.join(&file);
        if std::fs::read_link(&at).is_ok_and(|target| target.starts_with(LATEST)) && !at.exists() {
            let _ = std::fs::remove_file(&at);
        }
    }
    Ok(())
}

/// Without links the files themselves, `candidates.json` last.
#[cfg(not(unix))]
fn show(out: &Path, name: &str) -> io::Result<()> {
    let folder = out.join(RUNS).join(name);
    let mut files = names(&folder)?;
    files.sort_by_key(|file| file == "candidates.json");
    for file in files {
        write_whole(out, &file, &std::fs::read_to_string(folder.join(&file))?)?;
    }
    Ok(())
}

/// Names in a folder.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).map_err(|e| named(&e, folder))?;
    Ok(entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
}

/// The right to write into an output folder, until it is dropped or the process ends.
fn lock(out: &Path) -> io::Result<Option<File>> {
    let path = out.join(".lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(|e| named(&e, &path))?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other(format!(
                    "{}: another satune has been writing here for {} s; wait for it, or name another folder with --out",
                    out.display(),
                    PATIENCE.as_secs()
                )))
            }
            // Where files cannot be locked, there is no lock.
            Err(TryLockError::Error(_)) => return Ok(None),
        }
    }
}

fn named(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// A point between two steps. In a development build a test may end the process here, or let the disk be full: at the n-th
/// point, by `SATUNE_FAULT_AT=kill:n` or `full:n`.
pub fn reached() -> io::Result<()> {
    #[cfg(debug_assertions)]
    {
        use std::sync::atomic::{AtomicU32, Ordering};
        static POINTS: AtomicU32 = AtomicU32::new(0);
        let number = POINTS.fetch_add(1, Ordering::Relaxed) + 1;
        let asked = std::env::var("SATUNE_FAULT_AT").unwrap_or_default();
        match asked.split_once(':') {
            Some(("kill", at)) if at.parse() == Ok(number) => std::process::abort(),
            Some(("full", at)) if at.parse() == Ok(number) => {
                return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on device (acted out)"))
            }
            _ => {}
        }
    }
    Ok(())
}
