//! `cache_read` and `set_scope`: where a row is between the blocks that read it, and values per column between rows.
use super::{up, Engine};
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{AccessForm, Place, RowState, Step, Stream, StreamState, StreamTerm};

/// `nest = hold b in p: nest`, for each buffer in order: an input that several blocks read is read anew each time, held in
/// shared memory, or in registers; what a block of the kernel makes for another is in shared memory or in registers; values
/// per column are read anew in each row or held in shared memory.
///
/// Side conditions: shared memory and registers suffice.
pub struct Hold;

/// Elements of a row that a thread has.
fn per_thread(columns: i64, row: &RowState) -> i64 {
    up(columns, row.threads * row.vector) * row.vector
}

/// (bytes of shared memory of a block, elements in registers of a thread) of what is decided.
fn taken(stream: &Stream, held: &[(usize, AccessForm)], columns: i64, row: &RowState) -> (i64, i64) {
    let (mut shared, mut registers) = (0, 0);
    for (i, (buffer, form)) in held.iter().enumerate().take(row.holds.len()) {
        let bytes = i64::from(stream.buffers[*buffer].dtype.bytes());
        match (row.holds.get(i), form) {
            (Place::Shared, AccessForm::PerColumn) => shared += columns * bytes,
            (Place::Shared, _) => shared += columns * bytes * row.side_by_side,
            (Place::Registers, _) => registers += per_thread(columns, row) * up(bytes, 4),
            (Place::Global, _) => {}
        }
    }
    (shared, registers)
}

impl Rule<StreamTerm> for Hold {
    fn name(&self) -> &'static str {
        "cache_read, set_scope"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Step::Row(from, to, row)) = (node, state.step) else { return };
        if row.threads == 0 || row.loops > 0 {
            return;
        }
        let Some(stream) = engine.problem().variants.get(usize::from(state.variant)) else { return };
        let (start, end) = (usize::from(from), usize::from(to));
        let Some(shape) = stream.row_shape(start, end) else { return };
        let held = stream.held(start, end, row.per_block);
        let Some((buffer, form)) = held.get(row.holds.len()).copied() else { return };
        let made = stream.made_in(buffer, start, end);
        let places: &[Place] = match (form, made) {
            (AccessForm::PerColumn, _) => &[Place::Global, Place::Shared],
            (_, true) => &[Place::Shared, Place::Registers],
            (_, false) => &[Place::Global, Place::Shared, Place::Registers],
        };
        for place in places {
            let below = RowState { holds: row.holds.with(*place), ..row };
            let (shared, registers) = taken(stream, &held, shape.columns, &below);
            // Rows side by side in shared memory need a loop of their own, which several row iterators do not give; and a
            // block that makes them for another would be computed by every team for all of them.
            let own_loop = shape.row_iters == 1 && !made;
            let apart = *place != Place::Shared || row.side_by_side == 1 || own_loop;
            let fits_shared = engine.holds(StreamCondition::SharedFits, shared <= engine.limits.shared_bytes);
            let fits_registers = engine.holds(StreamCondition::RegistersFit, registers <= engine.menu.held_elements);
            if !apart || !fits_shared || !fits_registers {
                continue;
            }
            let body = engine.nest(StreamState { step: Step::Row(from, to, below), ..*state });
            engine.equals(StreamTerm::Hold { buffer: buffer as u8, place: *place, body: [body] });
        }
    }
}
