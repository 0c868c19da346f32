//! The progress bar of a command, and what Ctrl-C does to it.
use crate::progress::Progress;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Whether some work is under way that ends early when asked to, and whether it was asked.
static WATCHED: AtomicU32 = AtomicU32::new(0);
static STOP: AtomicBool = AtomicBool::new(false);

/// Exit code of a command that Ctrl-C ended.
pub(super) const INTERRUPTED: i32 = 130;

/// Installs what Ctrl-C does: work that can end early does so and keeps the best found so far; a second Ctrl-C, and
/// the first where there is nothing to keep, ends the process at once. Files and rows are written whole or not at all.
pub(super) fn install() {
    // A limit on file sizes is then an error of the write that meets it, not the end of the process.
    #[cfg(unix)]
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, std::sync::Arc::default());
    let _ = ctrlc::set_handler(|| {
        let again = STOP.swap(true, Ordering::SeqCst);
        if again || WATCHED.load(Ordering::SeqCst) == 0 {
            super::say(
                "satune: interrupted; no file is half-written (a run of `explore` goes on with `satune resume`)",
            );
            std::process::exit(INTERRUPTED);
        }
        super::say("satune: interrupted; ending with what was found so far (again to end at once)");
    });
}

/// A bar on a terminal, nothing elsewhere.
pub(super) struct Watch {
    bar: ProgressBar,
}

impl Watch {
    pub fn new() -> Watch {
        WATCHED.fetch_add(1, Ordering::SeqCst);
        let bar = if std::io::stderr().is_terminal() && !super::is_quiet() {
            ProgressBar::new_spinner()
        } else {
            ProgressBar::hidden()
        };
        bar.enable_steady_tick(Duration::from_millis(100));
        Watch { bar }
    }

    /// Takes the bar away, and says whether the work was told to end early.
    pub fn finish(self) -> bool {
        self.bar.finish_and_clear();
        STOP.load(Ordering::SeqCst)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        WATCHED.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Progress for Watch {
    fn begin(&self, step: &str, pieces: usize) {
        let (template, length) = match pieces {
            0 => ("{spinner} {msg}{prefix} {elapsed}", None),
            _ => ("{spinner} {msg} [{bar:30}] {pos} of {len}, {elapsed}", Some(pieces as u64)),
        };
        // The templates are constants; one that indicatif did not take would leave the style as it was.
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
        match length {
            Some(length) => self.bar.set_length(length),
            None => self.bar.unset_length(),
        }
        self.bar.reset();
        self.bar.set_prefix("");
        self.bar.set_message(step.to_string());
    }

    fn advance(&self) {
        self.bar.inc(1);
    }

    fn grown(&self, count: u64, what: &str) {
        self.bar.set_prefix(format!(", {} {what},", HumanCount(count)));
    }

    fn stopped(&self) -> bool {
        STOP.load(Ordering::SeqCst)
    }
}
