//! Compilation ahead of the GPU: all cores compile what will be asked for next, in that order.
use crate::compile::{CompileError, Compiled, Job};
use crate::device::cuda::rejected;
use crate::store::Verdict;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Machine code of kernels and the registers of the first, or what the compiler said.
pub(super) type Code = Result<(Vec<Vec<u8>>, u32), Verdict>;

/// What compiles, for as long as it is told to go on.
pub(super) type Compile = Box<dyn Fn(&Job, &dyn Fn() -> bool) -> Result<Compiled, CompileError> + Send + Sync>;

/// Entries that are compiled beyond the last one that was asked for, per thread.
const LEAD: usize = 16;

struct State<K> {
    /// What was made and not taken.
    made: HashMap<K, Code>,
    /// Which entries were made.
    finished: Vec<bool>,
    /// Where the next one to be compiled stands.
    next: usize,
    /// Where the last one that was asked for stands.
    reached: usize,
    stop: bool,
}

impl<K> State<K> {
    fn count(&self) -> usize {
        self.finished.iter().filter(|made| **made).count()
    }
}

struct Shared<K> {
    compile: Compile,
    /// Jobs of each entry, with what it is asked for by.
    list: Vec<(K, Vec<Job>)>,
    /// Where each stands in the list.
    places: HashMap<K, usize>,
    lead: usize,
    state: Mutex<State<K>>,
    changed: Condvar,
}

impl<K: Copy + Eq + Hash> Shared<K> {
    fn state(&self) -> MutexGuard<'_, State<K>> {
        // A thread that panicked left a state that is whole: each change is one statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let mut state = self.state();
            while !state.stop && state.next < self.list.len() && state.next > state.reached + self.lead {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let at = state.next;
            let Some((key, jobs)) = self.list.get(at).filter(|_| !state.stop) else { return };
            state.next += 1;
            drop(state);
            let compiled: Result<Vec<_>, _> =
                jobs.iter().map(|job| (self.compile)(job, &|| !self.state().stop)).collect();
            let code = compiled.map_err(|e| rejected(&e)).map(|all| {
                let registers = all.first().map_or(0, |c| c.registers);
                (all.into_iter().map(|c| c.cubin).collect(), registers)
            });
            let mut state = self.state();
            state.made.insert(*key, code);
            state.finished[at] = true;
            drop(state);
            self.changed.notify_all();
        }
    }
}

/// Compiles until it is dropped.
pub(super) struct Ahead<K> {
    shared: Arc<Shared<K>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl<K: Copy + Eq + Hash + Send + Sync + 'static> Ahead<K> {
    /// Begins with the first of a list, on so many threads.
    pub fn start(compile: Compile, threads: usize, list: Vec<(K, Vec<Job>)>) -> Ahead<K> {
        let places = list.iter().enumerate().map(|(at, (key, _))| (*key, at)).collect();
        let finished = vec![false; list.len()];
        let state = State { made: HashMap::new(), finished, next: 0, reached: 0, stop: false };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { compile, list, places, lead: LEAD * threads, state, changed });
        let spawn = |_| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.work())
        };
        let threads = (0..threads).map(spawn).collect();
        Ahead { shared, threads }
    }

    /// Entries made so far: what [`Ahead::wait`] is told.
    pub fn count(&self) -> usize {
        self.shared.state().count()
    }

    /// Whether one was made, or was never to be.
    pub fn has(&self, key: &K) -> bool {
        self.shared.places.get(key).is_none_or(|at| self.shared.state().finished[*at])
    }

    /// The code of one that was made, once.
    pub fn take(&self, key: &K) -> Option<Code> {
        let mut state = self.shared.state();
        self.reach(&mut state, key);
        state.made.remove(key)
    }

    /// Waits until more than `count` entries were made, when these are wanted. `false`: not before the deadline.
    pub fn wait(&self, wanted: &[K], count: usize, deadline: Instant) -> bool {
        let mut state = self.shared.state();
        wanted.iter().for_each(|key| self.reach(&mut state, key));
        while state.count() <= count {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// One is wanted: those before it, and so many behind it, are compiled.
    fn reach(&self, state: &mut State<K>, key: &K) {
        state.reached = state.reached.max(self.shared.places.get(key).copied().unwrap_or(0));
        self.shared.changed.notify_all();
    }
}

impl<K> Drop for Ahead<K> {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked compiles nothing more, which is what is wanted.
            let _ = thread.join();
        }
    }
}
