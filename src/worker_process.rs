//! What all worker processes have in common.
use std::path::Path;
use std::process::{Command, Stdio};

/// The first argument of a process that compiles.
pub(crate) const COMPILE: &str = "compile-worker";
/// The first argument of a process that measures.
pub(crate) const MEASURE: &str = "measure-worker";

/// Does the work of a worker process and ends the process, where it was started as one; else returns at once. The first line of
/// the `main` of each program that compiles ([`crate::compile::Compiler::of_this_program`]) or measures by this library: its
/// workers are the program itself, started again.
pub fn worker() {
    let arguments: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    let status = match arguments.get(1).map(String::as_str) {
        Some(COMPILE) => crate::compile::worker_main(),
        Some(MEASURE) => crate::device::worker_main(&arguments[2..]),
        _ => return,
    };
    std::process::exit(status)
}

/// Whether this process was started as a worker.
pub(crate) fn is_worker() -> bool {
    std::env::args_os().nth(1).is_some_and(|role| role == COMPILE || role == MEASURE)
}

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
