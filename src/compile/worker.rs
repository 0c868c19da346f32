//! The parent's side of a worker process: its input, its output, its limits.
use super::{libraries, Compiler};
use crate::worker_process::{command, COMPILE};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// How a worker ended that gave no answer.
pub(super) enum End {
    Time,
    /// It was told to.
    Told,
    /// Bytes that it had taken.
    Memory(u64),
    /// Why.
    Failed(String),
}

impl From<std::io::Error> for End {
    fn from(error: std::io::Error) -> End {
        End::Failed(error.to_string())
    }
}

/// Gives the request to a new worker, with the libnvrtc of a folder where one is given, and takes its answer.
pub(super) fn run(
    compiler: &Compiler,
    request: Vec<u8>,
    nvrtc: Option<&Path>,
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<u8>, End> {
    let library_path = libraries::loader_path_of(nvrtc);
    let mut child = command(&compiler.worker, COMPILE, &library_path).spawn()?;
    // Threads, since a worker that hangs may neither read nor close its pipes before it is killed.
    let stdin = child.stdin.take();
    let writer = std::thread::spawn(move || {
        // A worker that died early is told apart by its exit status below.
        let _ = stdin.map(|mut pipe| pipe.write_all(&request));
    });
    let stdout = reader(child.stdout.take());
    let stderr = reader(child.stderr.take());
    let status = wait(&mut child, compiler, go_on);
    if status.is_err() {
        // Already gone is as good as killed.
        let _ = child.kill();
        let _ = child.wait();
    }
    let finished = |thread: std::thread::JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
    let _ = writer.join();
    let (answer, talk) = (finished(stdout), finished(stderr));
    let status = status?;
    if !status.success() || answer.is_empty() {
        let talk = String::from_utf8_lossy(&talk);
        let last: Vec<&str> = talk.lines().map(str::trim).filter(|l| !l.is_empty()).take(3).collect();
        let said = if last.is_empty() { "without a word".into() } else { last.join(" ") };
        return Err(End::Failed(format!("{status}: {said}")));
    }
    Ok(answer)
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is what there is.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        bytes
    })
}

fn wait(child: &mut Child, compiler: &Compiler, go_on: &dyn Fn() -> bool) -> Result<ExitStatus, End> {
    let start = Instant::now();
    let mut before = 0;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() > compiler.timeout {
            return Err(End::Time);
        }
        if !go_on() {
            return Err(End::Told);
        }
        // A process that has only begun may still be seen with the memory of the one that began it: seen twice, it is its own.
        let bytes = memory_of(child.id());
        if bytes.min(before) > compiler.memory {
            return Err(End::Memory(bytes));
        }
        before = bytes;
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes of memory that a process has; 0 where the system does not say.
fn memory_of(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().map_or(0, |kib| kib * 1024)
}
