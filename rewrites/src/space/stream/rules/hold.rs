//! `cache_read` and `set_scope`: where a row is between the blocks that read it, and values per column between rows.
use super::Engine;
use crate::space::conditions::stream::{holdable, registers_fit, rows_apart, shared_fits, Team, HELD_ROWS};
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{AccessForm, Place, RowState, Step, Stream, StreamState, StreamTerm};

/// `nest = hold b in p: nest`, for each buffer in order: an input that several blocks read is read anew each time, held in
/// shared memory, or in registers; what a block of the kernel makes for another is in shared memory or in registers; values
/// per column are read anew in each row or held in shared memory.
///
/// Side conditions: shared memory and registers suffice.
pub struct Hold;

/// (bytes of shared memory of a block, registers of a thread) of what is decided.
fn taken(stream: &Stream, held: &[(usize, AccessForm)], columns: i64, row: &RowState) -> (i64, i64) {
    let team = Team { columns, side_by_side: row.side_by_side, threads: row.threads, vector: row.vector };
    let decided = held.iter().enumerate().take(row.holds.len());
    let each = decided.map(|(i, (buffer, form))| {
        team.taken(*form, row.holds.get(i), i64::from(stream.buffers[*buffer].dtype.bytes()))
    });
    each.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
}

impl Rule<StreamTerm> for Hold {
    fn name(&self) -> &'static str {
        "cache_read, set_scope"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Step::Row(blocks, row)) = (node, state.step) else { return };
        if row.threads == 0 || row.loops > 0 {
            return;
        }
        let Some(stream) = engine.problem().works.get(usize::from(state.work)) else { return };
        let (start, end) = (0, usize::from(blocks));
        let Some(shape) = stream.row_shape(start, end) else { return };
        let held = stream.held(start, end, row.per_block);
        let Some((buffer, form)) = held.get(row.holds.len()).copied() else { return };
        let made = stream.made_in(buffer, start, end);
        let name = &stream.buffers[buffer].name;
        for place in [Place::Global, Place::Shared, Place::Registers] {
            if holdable(name, form, made, place).is_err()
                || rows_apart(name, place, row.side_by_side, shape.row_iters, made).is_err()
            {
                continue;
            }
            let below = RowState { holds: row.holds.with(place), ..row };
            let (shared, registers) = taken(stream, &held, shape.columns, &below);
            let shared = shared_fits(HELD_ROWS, shared, engine.limits.shared_bytes);
            let registers = registers_fit(registers, engine.menu.held_elements);
            if !engine.holds(StreamCondition::SharedFits, shared)
                || !engine.holds(StreamCondition::RegistersFit, registers)
            {
                continue;
            }
            let body = engine.nest(StreamState { step: Step::Row(blocks, below), ..*state });
            engine.equals(StreamTerm::Hold { buffer: buffer as u8, place, body: [body] });
        }
    }
}
