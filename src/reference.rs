//! What a source program means, on inputs whose sums are exact. Candidates of one shape are compared with the same
//! results, so the last few are kept: interpreting the source takes longer than simulating a candidate. On a GPU, where
//! problems are large and inputs are any numbers, [`Plain`] stands in for the interpreter.
mod plain;
#[cfg(test)]
mod tests;

pub use plain::{Plain, PlainError};

use crate::agreement::Agreement;
use satune_ir::interp::{self, Array, Fault};
use satune_ir::{tvmscript, Program};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A program's inputs, and what it makes of them.
#[derive(Debug)]
pub struct Reference {
    /// Every parameter before.
    pub inputs: Vec<Array>,
    /// Every parameter after.
    pub expected: Vec<Array>,
    /// Every parameter after, computed without rounding ([`interp::in_double`]); none where results agree bit for bit.
    pub unrounded: Option<Vec<Array>>,
}

/// Programs whose results are kept. The candidates of an exploration have a handful of shapes.
const KEPT: usize = 16;

type Slot = Arc<OnceLock<Result<Arc<Reference>, Fault>>>;

static SLOTS: Mutex<Vec<((String, u64), Slot)>> = Mutex::new(Vec::new());

/// The seed of the inputs on which candidates are checked.
pub(crate) const SEED: u64 = 0x5eed;

impl Reference {
    /// Interprets a program on random inputs of a seed, or takes what is known. Threads that ask for the same wait for
    /// the first one.
    ///
    /// # Errors
    /// What the interpreter finds wrong with the program.
    pub fn of(source: &Program, seed: u64) -> Result<Arc<Reference>, Fault> {
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
        slot.get_or_init(|| {
            let inputs = interp::random_inputs(source, seed)?;
            let expected = interp::run(source, &inputs)?;
            let unrounded = match Agreement::of(source) {
                Agreement::Exact => None,
                Agreement::Roundoff => {
                    let wide: Vec<Array> = inputs.iter().map(Array::in_double).collect();
                    Some(interp::run(&interp::in_double(source), &wide)?)
                }
            };
            Ok(Arc::new(Reference { inputs, expected, unrounded }))
        })
        .clone()
    }
}
