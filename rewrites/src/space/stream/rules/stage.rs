//! `unroll` of the loop over columns of each block of a row kernel.
use super::engine::Engine;
use super::hold::settled;
use crate::space::Rule;
use satune_ir::term::stream::{ChainState, Laps, RowPlace, Step, StreamState, StreamTerm};

/// `nest = block b (unrolled or not): nest`, once it is decided where all is held that the block accesses; after the last one
/// nothing is left to decide. A loop of one iteration is not unrolled; one that reads what is in registers always is, for
/// registers have no addresses.
pub struct Stage;

impl Rule<StreamTerm> for Stage {
    fn name(&self) -> &'static str {
        "unroll columns"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Step::Chain(blocks, chain)) = (node, state.step) else { return };
        let Some(stream) = engine.problem().works.get(usize::from(state.work)) else { return };
        let block = chain.loops;
        let Some(b) = stream.blocks.get(usize::from(block)) else {
            engine.equals(StreamTerm::Done(Box::new(*state)));
            return;
        };
        let rows = stream.rows_held(chain.several);
        if rows.get(usize::from(chain.decided)).is_some_and(|held| held.first <= usize::from(block)) {
            return;
        }
        let Some(shape) = stream.row_shape(0, stream.blocks.len()) else { return };
        let mut decided = rows.iter().enumerate().take(usize::from(chain.decided));
        let in_registers =
            decided.any(|(number, held)| chain.live.get(number) == RowPlace::Registers && b.touches(held.buffer));
        let choices: &[bool] = match chain.laps {
            _ if b.iters.len() == shape.row_iters => &[false],
            Laps::Once => &[false],
            _ if in_registers => &[true],
            Laps::Few => &[false, true],
            Laps::Many => &[false],
        };
        let below = settled(stream, ChainState { loops: block + 1, ..chain });
        let body = engine.nest(StreamState { step: Step::Chain(blocks, below), ..*state });
        for unroll in choices {
            let of = Box::new(*state);
            engine.equals(StreamTerm::Stage { block, unroll: *unroll, of, body: [body] });
        }
    }
}
