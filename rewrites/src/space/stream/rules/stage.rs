//! `unroll` of the loop over columns of each block of a row kernel.
use super::{up, Engine};
use crate::space::Rule;
use satune_ir::term::stream::{Place, RowState, Step, StreamState, StreamTerm};

/// `nest = block b (unrolled or not): nest`, block by block; after the last one nothing is left to decide. A loop of one
/// iteration is not unrolled; one that reads what is in registers always is, for registers have no addresses.
pub struct Stage;

impl Rule<StreamTerm> for Stage {
    fn name(&self) -> &'static str {
        "unroll columns"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Step::Row(blocks, row)) = (node, state.step) else { return };
        if row.threads == 0 {
            return;
        }
        let Some(stream) = engine.problem().works.get(usize::from(state.work)) else { return };
        let (start, end) = (0, usize::from(blocks));
        let Some(shape) = stream.row_shape(start, end) else { return };
        let held = stream.held(start, end, row.per_block);
        if row.holds.len() < held.len() {
            return;
        }
        let block = row.loops;
        if block == blocks {
            engine.equals(StreamTerm::Done(Box::new(*state)));
            return;
        }
        let b = &stream.blocks[usize::from(block)];
        let in_registers = held.iter().enumerate().any(|(i, (buffer, _))| {
            row.holds.get(i) == Place::Registers
                && (b.write.buffer == *buffer || b.reads.iter().any(|r| r.buffer == *buffer))
        });
        let iterations = up(shape.columns, row.threads * row.vector);
        let one = b.iters.len() == shape.row_iters || iterations == 1;
        let choices: &[bool] = if one {
            &[false]
        } else if in_registers {
            &[true]
        } else if iterations * row.vector <= engine.menu.unrolled {
            &[false, true]
        } else {
            &[false]
        };
        let below = RowState { loops: row.loops + 1, ..row };
        let body = engine.nest(StreamState { step: Step::Row(blocks, below), ..*state });
        for unroll in choices {
            engine.equals(StreamTerm::Stage { block, unroll: *unroll, body: [body] });
        }
    }
}
