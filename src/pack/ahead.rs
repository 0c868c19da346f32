//! Compilation ahead of the GPU: all cores compile what will be measured next, in that order.
use crate::compile::{Compiler, Job};
use crate::device::cuda::rejected;
use crate::store::{Reason, Verdict};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Machine code of a candidate's kernels and the registers of the first, or what the compiler said.
pub(super) type Code = Result<(Vec<Vec<u8>>, u32), Verdict>;

/// Candidates that are compiled before the one at hand has been asked for, per core.
const LEAD: usize = 16;

#[derive(Default)]
struct State {
    made: HashMap<usize, Code>,
    /// Where the next one to be compiled stands.
    next: usize,
    /// Where the last one that was asked for stands.
    reached: usize,
    stop: bool,
}

struct Shared {
    compiler: Compiler,
    /// Jobs of each candidate, with the number that it is asked for by.
    list: Vec<(usize, Vec<Job>)>,
    lead: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked left a state that is whole: each change is one statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let mut state = self.state();
            while !state.stop && state.next < self.list.len() && state.next > state.reached + self.lead {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let Some((number, jobs)) = self.list.get(state.next).filter(|_| !state.stop) else { return };
            state.next += 1;
            drop(state);
            let compiled: Result<Vec<_>, _> = jobs.iter().map(|job| self.compiler.compile(job)).collect();
            let code = compiled.map_err(|e| rejected(&e)).map(|all| {
                let registers = all.first().map_or(0, |c| c.registers);
                (all.into_iter().map(|c| c.cubin).collect(), registers)
            });
            self.state().made.insert(*number, code);
            self.changed.notify_all();
        }
    }
}

/// Compiles until it is dropped.
pub(super) struct Ahead {
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Ahead {
    /// Begins with the first of a list.
    pub fn start(compiler: Compiler, list: Vec<(usize, Vec<Job>)>) -> Ahead {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { compiler, list, lead: LEAD * cores, state, changed });
        let spawn = |_| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.work())
        };
        let threads = (0..cores).map(spawn).collect();
        Ahead { shared, threads }
    }

    /// The code of one, once it is compiled; `None` where that is not before the deadline. Those that stand before it in the
    /// list are kept until they are asked for.
    pub fn take(&self, number: usize, deadline: Instant) -> Option<Code> {
        let Some(at) = self.shared.list.iter().position(|(n, _)| *n == number) else {
            let detail = "it was not to be compiled".into();
            return Some(Err(Verdict::Rejected { reason: Reason::CompileError, detail }));
        };
        let mut state = self.shared.state();
        state.reached = state.reached.max(at);
        self.shared.changed.notify_all();
        loop {
            if let Some(code) = state.made.remove(&number) {
                return Some(code);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let wait = left.min(Duration::from_secs(1));
            state = self.shared.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // Its compiler's processes end by themselves, at their own limits.
            let _ = thread.join();
        }
    }
}
