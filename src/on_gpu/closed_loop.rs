//! The closed loop: what the fitted model chooses is measured. Its choices are explored and compiled program by program while
//! the GPU goes on with the measurements that the fit did not wait for, and are measured as they come.
use super::{bundle, Failed, State};
use crate::compile::Compiler;
use crate::pack::{self, Duels, Outcome, Pack, Settings, Wanted};
use crate::progress::Progress;
use satune_extract::Descriptor;
use serde_json::{json, Value};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, TryRecvError};
use std::time::{Duration, Instant};

/// Programs whose fitted choice is measured.
const CLOSED: usize = 6;
/// Part of the time in which choices are explored.
const EXPLORING: f64 = 0.7;

/// Progress of work that ends when something has happened, too.
struct Until<'a> {
    whole: &'a dyn Progress,
    happened: &'a (dyn Fn() -> bool + Sync),
}

impl Progress for Until<'_> {
    fn begin(&self, step: &str, pieces: usize) {
        self.whole.begin(step, pieces);
    }

    fn advance(&self) {
        self.whole.advance();
    }

    fn grown(&self, count: u64, what: &str) {
        self.whole.grown(count, what);
    }

    fn stopped(&self) -> bool {
        self.whole.stopped() || (self.happened)()
    }
}

/// The stage.
pub(super) fn run(state: &mut State<'_, '_>, folder: &Path, budget: Duration) -> Result<Value, Failed> {
    let begun = Instant::now();
    let pack = Pack::read(&state.hour.packs.join("calibrate.pack"))?;
    let text = std::fs::read_to_string(state.hour.work("fit").join("fitted.toml"))?;
    let gpu = Descriptor::parse(&text, "fitted.toml")?;
    let mut works = Vec::new();
    for program in pack.programs.iter().take(CLOSED) {
        works.push(program.work()?);
    }
    let limit = budget.mul_f64(EXPLORING / works.len().max(1) as f64);
    let wanted =
        Wanted { top: 4, random: 0, per_family: 0, looked_at: 0, seed: 0, limit, compiled: usize::MAX, compared: 0 };
    let compilers: Vec<Compiler> =
        state.device()?.compiler().into_iter().map(|(compiler, _)| Compiler { lines: false, ..compiler }).collect();
    let before = state.hour.work("measurements");
    let measure = |left| Settings { budget: left, library: false, duels: Duels::None, ..Settings::default() };
    let progress = state.progress;
    let (over, arrived) = (begun + budget.mul_f64(EXPLORING), AtomicUsize::new(0));
    let ended = || Instant::now() > over;
    let (mut chosen, mut meanwhile): (Vec<Outcome>, Vec<Outcome>) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| -> Result<(), Failed> {
        let (send, choices) = channel();
        scope.spawn({
            let (arrived, ended, works, pack, gpu, wanted, compilers) =
                (&arrived, &ended, &works, &pack, &gpu, &wanted, &compilers);
            move || {
                let progress = Until { whole: progress, happened: ended };
                for work in works.iter().take_while(|_| !progress.stopped()) {
                    let one = std::slice::from_ref(work);
                    let mut made = pack::make("closed loop", one, (gpu, text.clone()), wanted, compilers, &progress);
                    made.hash.clone_from(&pack.hash);
                    if send.send(made).is_err() {
                        return;
                    }
                    arrived.fetch_add(1, Ordering::Release);
                }
            }
        });
        let mut more = true;
        loop {
            let left = budget.saturating_sub(begun.elapsed());
            let choice = match choices.try_recv() {
                Ok(choice) => choice,
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) if more => {
                    let known = chosen.len();
                    let happened = || arrived.load(Ordering::Acquire) > known;
                    let until = Until { whole: progress, happened: &happened };
                    meanwhile.push(state.run(&pack, &before, &Settings { repeats: 24, ..measure(left) }, &until)?);
                    // Without a choice it ended because there is no more, or no more time.
                    more = happened();
                    continue;
                }
                Err(TryRecvError::Empty) => match choices.recv_timeout(left) {
                    Ok(choice) => choice,
                    Err(_) => return Ok(()),
                },
            };
            let left = budget.saturating_sub(begun.elapsed());
            chosen.push(state.run(&choice, folder, &measure(left), progress)?);
        }
    })?;
    let device_s: f64 = chosen.iter().chain(&meanwhile).map(|outcome| outcome.device_s).sum();
    let told = bundle(&state.hour.out, "measurements", &before);
    Ok(json!({
        "chosen": chosen, "measured meanwhile": meanwhile, "busy": device_s / begun.elapsed().as_secs_f64(), "told": told,
    }))
}
