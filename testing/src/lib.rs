//! The runner of integration tests that need what a machine may lack: NVRTC, TVM, a C compiler, a browser.
//!
//! Cargo's own runner decides at compile time what is ignored, and a test that returns early has passed there. Here a test
//! that lacks something is counted: `N passed; N failed; N ignored` has it, and its line has the reason.
//!
//! A binary takes part with `harness = false` in its manifest and
//!
//! ```text
//! #[macro_use]
//! extern crate satune_testing;
//!
//! fn main() {
//!     satune_testing::main()
//! }
//! ```
//!
//! Then `#[test]` and `println!` in it are those of this crate: tests are written as always, what they print is shown where
//! they fail or with `--nocapture`. A test that needs something says so where it finds out, at any depth:
//! [`missing`] for what a script of `scripts/` fetches, [`skip`] for what lies in the nature of the machine. Both leave the
//! test. With `CI=true` in the environment what is missing is a failure, unless the script wrote down that it cannot be had
//! (`target/<what>/.unavailable`).
//!
//! Tests that take 10 s and more are `#[test(slow)]`. A run takes one in [`TURNS`] of them, others for each change; what waits for its
//! turn is counted as ignored and says so. All run where `SATUNE_SAMPLES` is [`TURNS`] or more, and those that are asked for by a
//! part of their names.
mod cases;

pub use cases::{one_in, samples, seed, some_of};
pub use inventory;
pub use satune_testing_macros::test;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::any::Any;
use std::cell::RefCell;
use std::fmt::{self, Write};
use std::panic::{catch_unwind, resume_unwind, set_hook, take_hook, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A test, as `#[test]` enters it.
pub struct Test {
    /// Crate, modules and name.
    pub path: &'static str,
    /// Its function.
    pub run: fn(),
    /// Whether it is only run when asked for.
    pub ignored: bool,
    /// Whether it takes turns with others.
    pub slow: bool,
}

inventory::collect!(Test);

/// A run of all tests takes one in so many of the slow ones.
pub const TURNS: usize = 6;

/// How many of the slowest tests are named at the end, of runs of more.
const SLOWEST: usize = 20;

/// How long each test took that was run.
static TOOK: Mutex<Vec<(Duration, &str)>> = Mutex::new(Vec::new());

/// What leaves a test that cannot be run here, with the reason.
struct Skipped {
    reason: String,
    /// Whether it should have been there in CI.
    fetched: bool,
}

thread_local! {
    /// What the test of this thread has printed.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Prints a line: kept for the test of this thread where it is captured.
pub fn say(line: fmt::Arguments<'_>) {
    SAID.with_borrow_mut(|said| match said {
        // Writing to a string cannot fail.
        Some(text) => drop(writeln!(text, "{line}")),
        None => std::println!("{line}"),
    });
}

/// `println!` whose lines are shown where the test fails.
#[macro_export]
macro_rules! println {
    ($($what:tt)*) => { $crate::say(::core::format_args!($($what)*)) };
}

/// Leaves a test for which this machine is not made.
pub fn skip(reason: &str) -> ! {
    resume_unwind(Box::new(Skipped { reason: reason.into(), fetched: false }))
}

/// Leaves a test that lacks what `scripts/fetch-NAME` puts into `target/NAME`.
pub fn missing(what: &str, name: &str) -> ! {
    let told = std::fs::read_to_string(root().join("target").join(name).join(".unavailable")).ok();
    let reason = match &told {
        Some(why) => format!("{what} cannot be had here: {}", why.trim()),
        None => format!("no {what} here: scripts/fetch-{name}"),
    };
    resume_unwind(Box::new(Skipped { reason, fetched: told.is_none() }))
}

/// Leaves a test that calls a compiler which the machine lacks.
pub fn no_compiler(error: &std::io::Error) -> ! {
    resume_unwind(Box::new(Skipped { reason: format!("no C compiler here: {error}"), fetched: true }))
}

/// The checkout.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Runs the tests of the binary, and ends the process.
pub fn main() {
    let mut arguments = Arguments::from_args();
    // Tests wait for compilers, drivers and time limits as often as they compute.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    arguments.test_threads.get_or_insert(cores + 2);
    let capture = !arguments.nocapture;
    let usual = take_hook();
    set_hook(Box::new(move |info| {
        let kept = SAID.with_borrow_mut(|said| said.as_mut().map(|text| writeln!(text, "{info}")).is_some());
        if !kept {
            usual(info);
        }
    }));
    let mut tests: Vec<&Test> = inventory::iter::<Test>.into_iter().collect();
    tests.sort_by_key(|test| test.path);
    // Who asks for tests by name wants these.
    let all = arguments.filter.is_some();
    let mut slow = 0..;
    let trials = tests.into_iter().map(|test| {
        let waits = test.slow && slow.next().is_some_and(|place| !all && !cases::has_turn(place, TURNS));
        let name = test.path.split_once("::").map_or(test.path, |(_, rest)| rest);
        let run = move || {
            if waits {
                let why = format!("takes turns with other slow tests: SATUNE_SAMPLES={TURNS} runs all of them");
                return Ok(Completion::ignored_with(why));
            }
            let begun = Instant::now();
            let ended = one(test.run, capture);
            TOOK.lock().unwrap_or_else(PoisonError::into_inner).push((begun.elapsed(), name));
            ended
        };
        Trial::ignorable_test(name, run).with_ignored_flag(test.ignored)
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    let mut took = TOOK.lock().unwrap_or_else(PoisonError::into_inner);
    if took.len() > SLOWEST {
        took.sort_by(|a, b| b.cmp(a));
        std::println!("slowest, each beside others:");
        took.iter().take(SLOWEST).for_each(|(time, name)| std::println!("{:>7.1} s  {name}", time.as_secs_f64()));
    }
    conclusion.exit();
}

fn one(run: fn(), capture: bool) -> Result<Completion, Failed> {
    SAID.set(capture.then(String::new));
    let ended = catch_unwind(AssertUnwindSafe(run));
    let said = SAID.take().unwrap_or_default();
    let Err(payload) = ended else { return Ok(Completion::Completed) };
    let in_ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false");
    match payload.downcast::<Skipped>() {
        Ok(left) if left.fetched && in_ci => Err(format!("{said}{} (CI is set)", left.reason).into()),
        Ok(left) => Ok(Completion::ignored_with(left.reason)),
        Err(payload) => Err(format!("{said}{}", words(&*payload)).into()),
    }
}

/// What a panic said, where the hook did not see it on this thread.
fn words(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without words")
}
