//! Rows of reductions in parts, on blocks of their own; another kernel adds the parts up (`rfactor`, when the reduction comes). For
//! few long rows, which leave most of a GPU without work when each has one block.
use super::engine::Engine;
use crate::space::Rule;
use satune_ir::term::stream::{Point, Step, StreamState, StreamTerm};

/// `program = parts p: work`, for each number of parts on offer.
///
/// Side condition: the parts divide the rows, and are neither too short nor too many; the primitive is asked when the reduction
/// comes.
pub struct Parts;

impl Rule<StreamTerm> for Parts {
    fn name(&self) -> &'static str {
        "parts of rows"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Step::Parts) = (node, state.step) else { return };
        for (parts, work) in &engine.problem().roots {
            let body = engine.nest(StreamState::at(Point::of(*work)));
            engine.equals(StreamTerm::Parts { parts: *parts, body: [body] });
        }
    }
}
