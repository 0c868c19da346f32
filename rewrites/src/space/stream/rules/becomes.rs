//! Other blocks with the same results: `compute_inline`, `reverse_compute_inline`, `rfactor`, `rebase_reduction`.
use super::engine::Engine;
use crate::space::Rule;
use satune_ir::term::stream::{StreamState, StreamTerm};

/// `work = become b: other work`, for each way that the primitives take.
///
/// Side condition: the primitive's own, asked about the work as a program by itself when the program was encoded.
pub struct Become;

impl Rule<StreamTerm> for Become {
    fn name(&self) -> &'static str {
        "compute_inline, rfactor, rebase_reduction"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Some(at)) = (node, state.point()) else { return };
        let Some(choices) = engine.problem().choices.get(&at) else { return };
        for (number, next) in choices.becomes.iter().enumerate() {
            let body = engine.nest(StreamState::at(next.to));
            engine.equals(StreamTerm::Become { at, choice: number as u8, body: [body] });
        }
    }
}
