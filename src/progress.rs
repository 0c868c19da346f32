//! How long work tells how far it is, and learns that it shall come to an end.
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Watches a piece of work. Told from several threads at once.
pub trait Progress: Sync {
    /// A step begins. `pieces` is how many times [`Progress::advance`] will be called in it; 0 where nobody knows.
    fn begin(&self, step: &str, pieces: usize);

    /// A piece of the step is done.
    fn advance(&self) {}

    /// There are so many of something by now, in a step of which nobody knows how many pieces it has.
    fn grown(&self, _count: u64, _what: &str) {}

    /// Whether to end soon, with what there is.
    fn stopped(&self) -> bool {
        false
    }
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn begin(&self, _step: &str, _pieces: usize) {}
}

/// What looks at one thing after the other, and asks before each whether to go on: tells how many there were.
pub struct Looks<'a> {
    progress: &'a dyn Progress,
    what: &'static str,
    looks: AtomicU64,
}

/// Looks of a thread that are told together: threads do not wait for each other to count.
const TOGETHER: u64 = 1024;

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

impl<'a> Looks<'a> {
    /// None yet, at things of a kind.
    pub fn of(progress: &'a dyn Progress, what: &'static str) -> Looks<'a> {
        Looks { progress, what, looks: AtomicU64::new(0) }
    }

    /// Before a look: whether to go on.
    pub fn go_on(&self) -> bool {
        let looks = LOOKS.get() + 1;
        LOOKS.set(looks % TOGETHER);
        if looks == TOGETHER {
            let all = self.looks.fetch_add(TOGETHER, Ordering::Relaxed) + TOGETHER;
            self.progress.grown(all, self.what);
        }
        !self.progress.stopped()
    }
}

/// A part of a larger piece of work, whose name stands before its steps.
pub struct Part<'a> {
    /// Who watches all of it.
    pub whole: &'a dyn Progress,
    /// The part's name.
    pub name: String,
}

impl Progress for Part<'_> {
    fn begin(&self, step: &str, pieces: usize) {
        self.whole.begin(&format!("{}: {step}", self.name), pieces);
    }

    fn advance(&self) {
        self.whole.advance();
    }

    fn grown(&self, count: u64, what: &str) {
        self.whole.grown(count, what);
    }

    fn stopped(&self) -> bool {
        self.whole.stopped()
    }
}
