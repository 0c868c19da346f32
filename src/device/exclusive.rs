//! One run at a time measures on a GPU: two would measure each other.
use super::DeviceError;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The right to measure on a GPU, until it is dropped or the process ends.
#[derive(Debug)]
pub struct Exclusive {
    _file: Option<File>,
}

/// Where the lock of a GPU is: every user's runs on a machine meet there.
pub fn path(gpu: &str) -> PathBuf {
    let name: String = gpu.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    std::env::temp_dir().join(format!("satune-gpu-{name}.lock"))
}

impl Exclusive {
    /// Takes a GPU, by the file of its lock. Where files cannot be locked, it is taken for free.
    ///
    /// # Errors
    /// When another process has it.
    pub fn take(path: &Path, gpu: &str) -> Result<Exclusive, DeviceError> {
        let opened = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
        let Ok(mut file) = opened else { return Ok(Exclusive { _file: None }) };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let holder = holder.trim();
                let who = if holder.is_empty() { "another run".into() } else { format!("process {holder}") };
                return Err(DeviceError::Busy { gpu: gpu.into(), who });
            }
            Err(TryLockError::Error(_)) => return Ok(Exclusive { _file: None }),
        }
        // Only for the other one's message, so a failure does not matter.
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Exclusive { _file: Some(file) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_run_is_told_who_has_the_gpu() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu.lock");
        let first = Exclusive::take(&path, "GPU 0").unwrap();
        let error = Exclusive::take(&path, "GPU 0").unwrap_err().to_string();
        assert!(error.contains(&format!("process {} measures on GPU 0", std::process::id())), "{error}");
        drop(first);
        Exclusive::take(&path, "GPU 0").unwrap();
        // No place for a lock is no reason not to measure.
        Exclusive::take(&folder.path().join("no/such/folder"), "GPU 0").unwrap();
    }
}
