//! `rfactor`: rows of reductions in parts, on blocks of their own; another kernel adds the parts up. For few long rows, which
//! leave most of a GPU without work when each has one block.
use super::Engine;
use crate::space::Rule;
use satune_ir::term::stream::{Step, StreamState, StreamTerm};

/// `nest = parts 1: nest`, and `nest = parts p: (nest with the rows of all reductions in p parts)` where the primitive takes
/// it.
///
/// Side condition: the primitive's own (among them that the parts divide the rows), tried when the program was encoded.
pub struct Rfactor;

impl Rule<StreamTerm> for Rfactor {
    fn name(&self) -> &'static str {
        "rfactor"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Step::Parts) = (node, state.step) else { return };
        let (problem, variant) = (engine.problem(), state.variant);
        let whole = (usize::from(variant), 1, usize::from(variant));
        let offered = problem.parted.iter().filter(|(from, _, _)| *from == usize::from(variant));
        for (_, parts, to) in [whole].iter().chain(offered) {
            let body = engine.nest(StreamState { variant: *to as u16, step: Step::Kernels(0) });
            engine.equals(StreamTerm::Parts { parts: *parts, variant, body: [body] });
        }
    }
}
