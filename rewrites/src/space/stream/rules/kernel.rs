//! Which blocks share a kernel: `compute_at` of all but the last of them.
use super::engine::Engine;
use crate::space::conditions::stream::{flat_fits, plain_fits, row_fits, transposes};
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{Point, Step, StreamState, StreamTerm};

/// `work = keep b: work`, and `work = then (kernel of what is kept) (what is left)`.
///
/// Side condition: some kind of kernel takes the blocks.
pub struct Kernels;

impl Rule<StreamTerm> for Kernels {
    fn name(&self) -> &'static str {
        "compute_at (kernel)"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Some(at)) = (node, state.point()) else { return };
        let problem = engine.problem();
        let Some(choices) = problem.choices.get(&at) else { return };
        if choices.keep {
            let body = engine.nest(StreamState::at(at.with_next()));
            engine.equals(StreamTerm::Keep { at, body: [body] });
        }
        let Some((number, rest)) = choices.then else { return };
        let (stream, kernel) = (&problem.works[number], number as u16);
        let (one, end) = (at.kept == 1, usize::from(at.kept));
        let flat = stream.same_elements(0, end) && engine.holds(StreamCondition::FlatFits, flat_fits(stream, 0, end));
        let rows =
            stream.row_shape(0, end).is_some() && engine.holds(StreamCondition::RowFits, row_fits(stream, 0, end));
        let tile = || one && transposes(stream, 0).is_ok();
        if !(flat || rows || engine.menu.tiled.contains_key(&kernel) || tile() || plain_fits(stream, 0, end).is_ok()) {
            return;
        }
        let body = engine.nest(StreamState { work: kernel, step: Step::Kernel(at.kept) });
        match rest {
            None => engine.equals(StreamTerm::Last { at, kernel, body: [body] }),
            Some(rest) => {
                let rest = engine.nest(StreamState::at(Point::of(rest)));
                engine.equals(StreamTerm::Then { at, kernel, children: [body, rest] });
            }
        }
    }
}
