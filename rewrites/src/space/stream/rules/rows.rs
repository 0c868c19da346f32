//! `split` and `bind` of the rows of a row kernel: blockIdx.x, a serial loop, threadIdx.y.
use super::engine::Engine;
use crate::space::conditions::stream::{row_fits, rows_divide, teams_divide};
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{Step, StreamState, StreamTerm};

/// `kernel(rows) = for blocks(rows / (s y)): rows s x y: nest`.
///
/// Side condition: the rows of a block divide all rows, so that no team is without a row.
pub struct Rows;

impl Rule<StreamTerm> for Rows {
    fn name(&self) -> &'static str {
        "split rows, bind"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let StreamTerm::Nest(_) = node else { return };
        let Some(stream) = engine.problem().works.get(usize::from(state.work)) else { return };
        match state.step {
            Step::Kernel(blocks) => {
                let (start, end) = (0, usize::from(blocks));
                let Some(shape) = stream.row_shape(start, end) else { return };
                if !engine.holds(StreamCondition::RowFits, row_fits(stream, start, end)) {
                    return;
                }
                let mut sizes: Vec<i64> = Vec::new();
                for s in &engine.menu.serial_rows {
                    sizes.extend(engine.menu.side_by_side.iter().map(|y| s * y));
                }
                sizes.sort_unstable();
                sizes.dedup();
                for per_block in sizes {
                    let divides = rows_divide(per_block, shape.rows);
                    if per_block > shape.rows || !engine.holds(StreamCondition::RowsDivide, divides) {
                        continue;
                    }
                    let body = engine.nest(StreamState { step: Step::Rows(blocks, per_block), ..*state });
                    engine.equals(StreamTerm::Blocks { rows: per_block, body: [body] });
                }
            }
            Step::Rows(blocks, per_block) => {
                // What else depends on the rows of a block: whether values per column are kept for several.
                let several = per_block > 1 && stream.rows_held(true) != stream.rows_held(false);
                for side_by_side in engine.menu.side_by_side.clone() {
                    let serial = per_block / side_by_side;
                    if teams_divide(side_by_side, per_block).is_err() || !engine.menu.serial_rows.contains(&serial) {
                        continue;
                    }
                    let below = Step::Team(blocks, side_by_side, several);
                    let body = engine.nest(StreamState { step: below, ..*state });
                    engine.equals(StreamTerm::Rows { serial, side_by_side, body: [body] });
                }
            }
            _ => {}
        }
    }
}
