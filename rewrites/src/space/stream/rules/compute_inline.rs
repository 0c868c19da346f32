//! `compute_inline` and `reverse_compute_inline`: a block that is not computed on its own.
use super::Engine;
use crate::space::Rule;
use satune_ir::term::stream::{Step, StreamState, StreamTerm};

/// `nest = inline b (nest without b)` where the primitive takes it, and `nest = keep b (nest)`.
///
/// Side condition: the primitive's own, tried when the program was encoded.
pub struct Inline;

impl Rule<StreamTerm> for Inline {
    fn name(&self) -> &'static str {
        "compute_inline"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Step::Inline(block)) = (node, state.step) else { return };
        let problem = engine.problem();
        let last = usize::from(block) + 1 == problem.source.len();
        let step = if last { Step::Parts } else { Step::Inline(block + 1) };
        let body = engine.nest(StreamState { step, ..*state });
        engine.equals(StreamTerm::Keep { block, body: [body] });
        for (from, number, to, reverse) in &problem.inline {
            if (*from, *number) == (usize::from(state.variant), usize::from(block)) {
                let body = engine.nest(StreamState { variant: *to as u16, step });
                let (reverse, variant) = (*reverse, state.variant);
                engine.equals(StreamTerm::Inline { block, reverse, variant, body: [body] });
            }
        }
    }
}
