//! `split`, `bind` to threadIdx.x and `vectorize` of the columns of every block of a row kernel. Where a block reduces
//! over them, binding makes it a reduction across threads.
use super::Engine;
use crate::space::conditions::stream::{
    no_idle_warp, threads_fit, vector_bytes, vector_divides, vector_one_loop, widest,
};
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{RowState, Step, StreamState, StreamTerm};

/// `nest = columns t x v: nest`.
///
/// Side conditions: the block's threads are no more than it may have; an access has 16 bytes at most; its width divides
/// the rows of everything that is accessed along them.
pub struct Columns;

impl Rule<StreamTerm> for Columns {
    fn name(&self) -> &'static str {
        "split columns, bind, vectorize"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Step::Row(blocks, row)) = (node, state.step) else { return };
        if row.side_by_side == 0 || row.threads != 0 {
            return;
        }
        let Some(stream) = engine.problem().works.get(usize::from(state.work)) else { return };
        let (start, end) = (0, usize::from(blocks));
        let Some(shape) = stream.row_shape(start, end) else { return };
        let widest = widest(stream, start, end, shape.row_iters);
        for vector in engine.menu.vectors.clone() {
            let divides = vector_divides(vector, shape.columns)
                .and_then(|()| vector_one_loop(stream, start, end, shape.row_iters, vector));
            if !engine.holds(StreamCondition::VectorBytes, vector_bytes(vector, widest))
                || !engine.holds(StreamCondition::VectorDivides, divides)
            {
                continue;
            }
            for threads in engine.menu.threads.clone() {
                let most = i64::from(engine.limits.threads);
                let fits = engine.holds(StreamCondition::ThreadsFit, threads_fit(threads, row.side_by_side, most));
                if !fits || no_idle_warp(threads, vector, shape.columns).is_err() {
                    continue;
                }
                let below = RowState { threads, vector, ..row };
                let body = engine.nest(StreamState { step: Step::Row(blocks, below), ..*state });
                engine.equals(StreamTerm::Columns { threads, vector, body: [body] });
            }
        }
    }
}
