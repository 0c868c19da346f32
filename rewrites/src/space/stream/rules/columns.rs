//! `split`, `bind` to threadIdx.x and `vectorize` of the columns of every block of a row kernel. Where a block reduces
//! over them, binding makes it a reduction across threads.
use super::Engine;
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{AccessForm, RowState, Step, StreamState, StreamTerm};

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
        let (StreamTerm::Nest(_), Step::Row(from, to, row)) = (node, state.step) else { return };
        if row.side_by_side == 0 || row.threads != 0 {
            return;
        }
        let Some(stream) = engine.problem().variants.get(usize::from(state.variant)) else { return };
        let (start, end) = (usize::from(from), usize::from(to));
        let Some(shape) = stream.row_shape(start, end) else { return };
        let blocks = &stream.blocks[start..end];
        let column_iters = blocks.iter().map(|b| b.iters.len() - shape.row_iters).max().unwrap_or(0);
        // The widest element that is accessed along the columns.
        let bytes = blocks
            .iter()
            .flat_map(|b| b.reads.iter().chain([&b.write]).map(move |a| (b, a)))
            .filter(|(b, a)| {
                matches!(b.form(a, shape.row_iters), AccessForm::Full | AccessForm::PerColumn | AccessForm::SharedRow)
            })
            .map(|(_, a)| i64::from(stream.buffers[a.buffer].dtype.bytes()))
            .max()
            .unwrap_or(16);
        for vector in engine.menu.vectors.clone() {
            let divides = shape.columns % vector == 0 && (vector == 1 || column_iters == 1);
            if !engine.holds(StreamCondition::VectorBytes, vector * bytes <= 16)
                || !engine.holds(StreamCondition::VectorDivides, divides)
            {
                continue;
            }
            for threads in engine.menu.threads.clone() {
                let most = i64::from(engine.limits.threads);
                // No warp is without an element, where a narrower team would do.
                let idle = threads > 32 && (threads - 32) * vector >= shape.columns;
                let fits = engine.holds(StreamCondition::ThreadsFit, threads * row.side_by_side <= most);
                if idle || !fits {
                    continue;
                }
                let below = RowState { threads, vector, ..row };
                let body = engine.nest(StreamState { step: Step::Row(from, to, below), ..*state });
                engine.equals(StreamTerm::Columns { threads, vector, body: [body] });
            }
        }
    }
}
