//! Worker processes and their supervision: one process per device runs the candidates, and is killed and replaced when
//! it hangs, dies, talks nonsense, or says that an error has spoilt it.
use super::protocol::{encode, read_request, write_answer, Answer, Request, Said, What};
use super::{cuda, scripted, DeviceError};
use crate::store::{Reason, Verdict};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::Child;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// Longest answer, bytes: more than a list of times can take.
const LONGEST_ANSWER: u64 = 1 << 22;
/// How long a worker may take to come up (a driver initialises every GPU of the machine).
const HELLO: Duration = Duration::from_secs(60);

/// Why a worker gave no answer.
enum End {
    Time,
    Died(String),
}

/// A live worker process. Dropping it kills it.
struct Worker {
    child: Child,
    requests: Sender<Vec<u8>>,
    answers: Receiver<Result<Answer, String>>,
}

impl Worker {
    fn start(
        program: &std::path::Path,
        arguments: &[String],
        library_path: &std::ffi::OsStr,
    ) -> Result<Worker, String> {
        let mut child = crate::worker_process::command(program, crate::worker_process::MEASURE, library_path)
            .args(arguments)
            // Whether the library may round f32 to tf32 is said at each call; the variable would override that.
            .env_remove("NVIDIA_TF32_OVERRIDE")
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let (requests, inbox) = channel::<Vec<u8>>();
        let (outbox, answers) = channel();
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // Threads, since a worker that hangs neither reads nor writes.
        std::thread::spawn(move || {
            let Some(mut pipe) = stdin else { return };
            while let Ok(bytes) = inbox.recv() {
                if pipe.write_all(&bytes).and_then(|()| pipe.flush()).is_err() {
                    return;
                }
            }
        });
        let mut talk = Some(std::thread::spawn(move || {
            // The beginning says what went wrong; the rest is read, so that the worker never waits for us.
            let mut said = Vec::new();
            if let Some(mut pipe) = stderr {
                let _ = pipe.by_ref().take(2000).read_to_end(&mut said);
                let _ = std::io::copy(&mut pipe, &mut std::io::sink());
            }
            String::from_utf8_lossy(&said).into_owned()
        }));
        std::thread::spawn(move || {
            let Some(pipe) = stdout else { return };
            let mut pipe = BufReader::new(pipe);
            loop {
                let mut line = Vec::new();
                let read = pipe.by_ref().take(LONGEST_ANSWER).read_until(b'\n', &mut line);
                let answer = match read {
                    Ok(0) | Err(_) => Err(talk.take().and_then(|t| t.join().ok()).unwrap_or_default()),
                    Ok(_) if line.last() != Some(&b'\n') => Err("it stopped in the middle of an answer".into()),
                    Ok(_) => serde_json::from_slice(&line).map_err(|e| format!("its answer is no answer: {e}")),
                };
                let last = answer.is_err();
                if outbox.send(answer).is_err() || last {
                    return;
                }
            }
        });
        Ok(Worker { child, requests, answers })
    }

    fn ask(&mut self, number: u64, bytes: Vec<u8>, timeout: Duration) -> Result<Said, End> {
        let died = |child: &mut Child, said: String| {
            // Give a process whose pipe has closed the time to be waited for; then it is killed.
            let status = (0..50).find_map(|_| {
                let status = child.try_wait().ok().flatten();
                if status.is_none() {
                    std::thread::sleep(Duration::from_millis(2));
                }
                status
            });
            let status = status.map_or_else(|| "it was stopped".to_string(), |s| s.to_string());
            let said: Vec<&str> = said.lines().map(str::trim).filter(|l| !l.is_empty()).take(3).collect();
            End::Died(if said.is_empty() { status } else { format!("{status}: {}", said.join(" ")) })
        };
        if self.requests.send(bytes).is_err() {
            return Err(died(&mut self.child, String::new()));
        }
        match self.answers.recv_timeout(timeout) {
            Ok(Ok(answer)) if answer.number == number => Ok(answer.what),
            // An answer to something else is never taken for this one's.
            Ok(Ok(answer)) => {
                let said = format!("it answered request {} when {number} was asked", answer.number);
                Err(died(&mut self.child, said))
            }
            Ok(Err(said)) => Err(died(&mut self.child, said)),
            Err(RecvTimeoutError::Timeout) => Err(End::Time),
            Err(RecvTimeoutError::Disconnected) => Err(died(&mut self.child, String::new())),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Already gone is as good as killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A device behind a worker process, which is replaced as often as need be.
pub(super) struct Supervised {
    program: PathBuf,
    arguments: Vec<String>,
    name: String,
    worker: Option<Worker>,
    number: u64,
    /// Workers started so far.
    pub started: u64,
}

impl Supervised {
    /// A device whose worker is this program, called with these arguments behind `measure-worker`.
    pub fn new(program: PathBuf, arguments: Vec<String>) -> Supervised {
        let name = arguments.join(" ");
        Supervised { program, arguments, name, worker: None, number: 0, started: 0 }
    }

    /// Starts a worker if there is none, and asks it who it is.
    ///
    /// # Errors
    /// When it does not come up, twice.
    pub(crate) fn hello(&mut self) -> Result<Said, DeviceError> {
        self.worker = None;
        self.ensure()?.ok_or_else(|| self.gone("it said nothing".into()))
    }

    /// Ends the worker; the next request starts another.
    pub(crate) fn end(&mut self) {
        self.worker = None;
    }

    fn gone(&self, reason: String) -> DeviceError {
        DeviceError::Gone { device: self.name.clone(), reason }
    }

    /// A worker that has said hello; what it said, if it is new.
    fn ensure(&mut self) -> Result<Option<Said>, DeviceError> {
        if self.worker.is_some() {
            return Ok(None);
        }
        let mut reason = String::new();
        for _ in 0..2 {
            self.started += 1;
            self.number += 1;
            let bytes = encode(self.number, What::Hello, &[]).map_err(|e| self.gone(e.to_string()))?;
            let path = crate::compile::loader_path();
            let mut worker = Worker::start(&self.program, &self.arguments, &path).map_err(|e| self.gone(e))?;
            match worker.ask(self.number, bytes, HELLO) {
                Ok(Said::Missing { what, remedy }) => return Err(DeviceError::Missing { what, remedy }),
                Ok(said) => {
                    self.worker = Some(worker);
                    return Ok(Some(said));
                }
                Err(End::Time) => reason = format!("no sign of life for {} s", HELLO.as_secs()),
                Err(End::Died(why)) => reason = why,
            }
        }
        Err(self.gone(reason))
    }

    /// Asks something. A worker that dies without a word is given a second chance, since someone else may have killed
    /// it; one that hangs is not. The inner error is the verdict where there is no answer to use.
    pub(crate) fn ask(
        &mut self,
        what: &What,
        blobs: &[&[u8]],
        timeout: Duration,
    ) -> Result<Result<Said, Verdict>, DeviceError> {
        let rejected = |reason, detail| Ok(Err(Verdict::Rejected { reason, detail }));
        let mut detail = String::new();
        for attempt in 0..2 {
            self.ensure()?;
            self.number += 1;
            let number = self.number;
            let bytes = encode(number, what.clone(), blobs).map_err(|e| self.gone(e.to_string()))?;
            let Some(worker) = self.worker.as_mut() else { continue };
            match worker.ask(number, bytes, timeout) {
                Ok(Said::Measured(timing)) if timing.fault().is_some() => {
                    self.worker = None;
                    detail = format!("implausible times: {}", timing.fault().unwrap_or_default());
                }
                Ok(Said::Rejected { reason: Reason::Oom, .. }) if attempt == 0 => self.worker = None,
                Ok(Said::Rejected { reason, detail, poisoned }) => {
                    if poisoned {
                        self.worker = None;
                    }
                    return rejected(reason, detail);
                }
                Ok(said) => return Ok(Ok(said)),
                Err(End::Time) => {
                    self.worker = None;
                    return rejected(Reason::Timeout, format!("no answer within {:.1} s", timeout.as_secs_f64()));
                }
                Err(End::Died(why)) => {
                    self.worker = None;
                    detail = format!("the worker process died twice: {why}");
                }
            }
        }
        rejected(Reason::Crash, detail)
    }
}

/// Answers requests; one after the other, in one process.
pub(crate) trait Serve {
    fn serve(&mut self, request: &Request, blobs: &[Vec<u8>]) -> Said;
}

/// The worker's side: answers from standard input to standard output until the input ends. Returns the exit status.
pub fn worker_main(arguments: &[String]) -> i32 {
    let mut server: Box<dyn Serve> = match arguments {
        [kind] if kind == "cuda" => Box::new(cuda::Server::default()),
        [kind, script] if kind == "scripted" => match scripted::Server::load(script) {
            Ok(server) => Box::new(server),
            Err(error) => {
                eprintln!("{error}");
                return 2;
            }
        },
        _ => return 2,
    };
    let (sender, requests) = channel();
    // A thread of its own reads: when whoever asked is gone, even by a kill, this process ends although a kernel may hang.
    std::thread::spawn(move || {
        let mut input = BufReader::new(std::io::stdin());
        loop {
            match read_request(&mut input) {
                Ok(Some(request)) => {
                    if sender.send(request).is_err() {
                        return;
                    }
                }
                Ok(None) => std::process::exit(0),
                Err(error) => {
                    eprintln!("request: {error}");
                    std::process::exit(2);
                }
            }
        }
    });
    let mut out = std::io::stdout();
    while let Ok((request, blobs)) = requests.recv() {
        let said = server.serve(&request, &blobs);
        if write_answer(&mut out, request.number, said).is_err() {
            return 3;
        }
    }
    0
}
