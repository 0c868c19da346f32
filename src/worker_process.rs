//! What all worker processes have in common.
use std::path::Path;
use std::process::{Command, Stdio};

/// A command that runs this program (or a stand-in) as a worker: its pipes are ours, and Ctrl-C on the terminal does
/// not reach it, since an interruption of the command is no fault of what the worker is busy with. A worker ends when
/// its standard input does.
pub(crate) fn command(program: &Path, role: &str, library_path: &std::ffi::OsStr) -> Command {
    let mut command = Command::new(program);
    command.arg(role).env("LD_LIBRARY_PATH", library_path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command
}
