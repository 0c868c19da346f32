//! What a source program means, on inputs whose sums are exact. Candidates of one shape are compared with the same
//! results, so the last few are kept: interpreting the source takes longer than simulating a candidate. On a GPU, where
//! problems are large and inputs are any numbers, [`Plain`] stands in for the interpreter.
mod plain;
#[cfg(test)]
mod tests;

pub use plain::{Plain, PlainError};

use crate::agreement::Agreement;
use crate::execute::of_whole_numbers;
use satune_ir::interp::{self, Array, Fault};
use satune_ir::{tvmscript, Program};
use std::sync::{Arc, Mutex, PoisonError};

/// A program's inputs, and what it makes of them.
#[derive(Debug)]
pub struct Reference {
    /// Every parameter before.
    pub inputs: Vec<Array>,
    /// Every parameter after.
    pub expected: Vec<Array>,
    /// Every parameter after, computed without rounding ([`interp::in_double`]); none where results agree bit for bit.
    pub unrounded: Option<Vec<Array>>,
    /// The most by which rounding may change a whole number of each parameter.
    pub rounded: Vec<f64>,
}

/// Programs whose results are kept. The candidates of an exploration have a handful of shapes.
const KEPT: usize = 16;

/// Empty until somebody has made it.
type Slot = Arc<Mutex<Option<Result<Arc<Reference>, Fault>>>>;

static SLOTS: Mutex<Vec<((String, u64), Slot)>> = Mutex::new(Vec::new());

/// Steps of a program on which candidates are checked: half a minute's. Kernels of several products, and maps with long rows behind them,
/// have the largest.
const MOST_STEPS: u64 = 10_000_000_000;

/// The seed of the inputs on which candidates are checked.
pub(crate) const SEED: u64 = 0x5eed;

impl Reference {
    /// Interprets a program on random inputs of a seed, or takes what is known. Threads that ask for the same wait for
    /// the first one. What `go_on` ended is not kept.
    ///
    /// # Errors
    /// What the interpreter finds wrong with the program.
    pub fn of(source: &Program, seed: u64, go_on: &dyn Fn() -> bool) -> Result<Arc<Reference>, Fault> {
        let key = (tvmscript::print(source), seed);
        let slot = {
            // A thread that panicked here left a list that is whole.
            let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
            let known = slots.iter().position(|(k, _)| *k == key);
            // The latest stands last.
            let entry = known.map_or_else(|| (key, Slot::default()), |at| slots.remove(at));
            let slot = entry.1.clone();
            slots.push(entry);
            let excess = slots.len().saturating_sub(KEPT);
            slots.drain(..excess);
            slot
        };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*slot {
            return known.clone();
        }
        let made = Reference::made(source, seed, go_on).map(Arc::new);
        if !matches!(made, Err(Fault::Stopped)) {
            *slot = Some(made.clone());
        }
        made
    }

    fn made(source: &Program, seed: u64, go_on: &dyn Fn() -> bool) -> Result<Reference, Fault> {
        let inputs = interp::random_inputs(source, seed)?;
        let run = |program: &Program, inputs: &[Array]| {
            interp::run_while(program, inputs, &interp::Options { max_steps: MOST_STEPS, ..Default::default() }, go_on)
        };
        let expected = run(source, &inputs)?;
        let unrounded = match Agreement::of(source) {
            Agreement::Exact => None,
            Agreement::Roundoff => {
                let wide: Vec<Array> = inputs.iter().map(Array::in_double).collect();
                Some(run(&interp::in_double(source), &wide)?)
            }
        };
        let rounded = match unrounded {
            Some(_) => of_whole_numbers(source, &inputs, go_on)?,
            None => vec![0.0; inputs.len()],
        };
        Ok(Reference { inputs, expected, unrounded, rounded })
    }
}
