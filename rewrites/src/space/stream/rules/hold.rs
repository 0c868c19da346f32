//! `cache_read` and `set_scope`: where a row is between the blocks that read it, and values per column between rows.
use super::engine::Engine;
use crate::space::conditions::stream::{holdable, registers_fit, rows_apart, shared_fits, Team, HELD_ROWS};
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{ChainState, HeldRow, Places, Room, RowPlace, Step, Stream, StreamState, StreamTerm};

/// `nest = hold b in p: nest`, for each buffer that the next block is the first to access: an input that several blocks read is
/// read anew each time, held in shared memory, or in registers; what a block of the kernel makes for another is in shared memory
/// or in registers; values per column are read anew in each row or held in shared memory.
///
/// Side conditions: shared memory suffices for all, registers for those that one block finds held.
pub struct Hold;

/// What a buffer takes in a place: (bytes of shared memory per column, registers per element of an access), of so many rows.
fn takes(stream: &Stream, held: &HeldRow, place: RowPlace, rows: i64) -> (i64, i64) {
    let unit = Team { columns: 1, side_by_side: rows, threads: 1, vector: 1 };
    unit.taken(held.form, place, i64::from(stream.buffers[held.buffer].dtype.bytes()))
}

/// Whether a buffer of a row kernel may be in a place.
fn may(stream: &Stream, held: &HeldRow, place: RowPlace, side_by_side: i64) -> bool {
    let name = &stream.buffers[held.buffer].name;
    let row_iters = stream.row_shape(0, stream.blocks.len()).map_or(0, |shape| shape.row_iters);
    holdable(name, held.form, held.made, place).is_ok()
        && rows_apart(name, place, side_by_side, row_iters, held.made).is_ok()
}

/// The same choices in the form that all have who have them.
pub(super) fn settled(stream: &Stream, chain: ChainState) -> ChainState {
    if usize::from(chain.loops) == stream.blocks.len() {
        return ChainState { loops: chain.loops, ..ChainState::default() };
    }
    let rows = stream.rows_held(chain.several);
    let left = &rows[usize::from(chain.decided)..];
    let shared =
        |rows: i64| -> Vec<i64> { left.iter().map(|held| takes(stream, held, RowPlace::Shared, rows).0).collect() };
    let apart = chain.apart && left.iter().any(|held| !may(stream, held, RowPlace::Shared, 2));
    let (mut room, mut of) = (chain.shared.settled(&shared(chain.rows)), chain.rows);
    // Where all rows take as many times what one does, room is for so many of one.
    match room {
        Room::Enough => of = 1,
        Room::Left(left) if shared(of).iter().zip(shared(1)).all(|(all, one)| *all == one * of) => {
            (room, of) = (Room::Left(left.div_euclid(of)), 1);
        }
        Room::Left(_) => {}
    }
    let mut live = Places::default();
    for (number, held) in rows.iter().enumerate().take(usize::from(chain.decided)) {
        if held.last >= usize::from(chain.loops) {
            live = live.with(number, chain.live.get(number));
        }
    }
    let registers = registers_settled(stream, &rows, &ChainState { live, ..chain });
    ChainState { live, apart, registers, shared: room, rows: of, ..chain }
}

/// Registers of rows that are held while a block runs, of those whose place is decided.
fn registers_at(stream: &Stream, rows: &[HeldRow], chain: &ChainState, block: usize) -> i64 {
    let decided = rows.iter().enumerate().take(usize::from(chain.decided)).filter(|(_, held)| held.at(block));
    decided.map(|(number, held)| takes(stream, held, chain.live.get(number), 1).1).sum()
}

/// The registers that rows may take at once, the same for whoever may take any of these: the most that some of them take for which it is
/// enough, while whichever block runs.
fn registers_settled(stream: &Stream, rows: &[HeldRow], chain: &ChainState) -> Room {
    let Room::Left(most) = chain.registers else { return chain.registers };
    let (mut enough, mut all) = (true, i64::MIN);
    for block in usize::from(chain.loops)..stream.blocks.len() {
        let taken = registers_at(stream, rows, chain, block);
        let left = rows[usize::from(chain.decided)..].iter().filter(|held| held.at(block));
        let left: Vec<i64> = left.map(|held| takes(stream, held, RowPlace::Registers, 1).1).collect();
        let more = match Room::Left(most.saturating_sub(taken)).settled(&left) {
            Room::Enough => left.iter().sum(),
            Room::Left(more) => {
                enough = false;
                more
            }
        };
        all = all.max(taken.saturating_add(more));
    }
    if enough {
        Room::Enough
    } else {
        Room::Left(all)
    }
}

impl Rule<StreamTerm> for Hold {
    fn name(&self) -> &'static str {
        "cache_read, set_scope"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Step::Chain(blocks, chain)) = (node, state.step) else { return };
        let Some(stream) = engine.problem().works.get(usize::from(state.work)) else { return };
        let number = usize::from(chain.decided);
        let rows = stream.rows_held(chain.several);
        let Some(held) = rows.get(number).copied() else { return };
        // Where no block is left to decide about, nothing is.
        if held.first > usize::from(chain.loops) || chain.loops == blocks {
            return;
        }
        let side_by_side = if chain.apart { 2 } else { 1 };
        let taken = registers_at(stream, &rows, &chain, held.first);
        for place in [RowPlace::Global, RowPlace::Shared, RowPlace::Registers] {
            if !may(stream, &held, place, side_by_side) {
                continue;
            }
            let (shared, registers) = takes(stream, &held, place, chain.rows);
            let in_shared = shared_fits(HELD_ROWS, shared, chain.shared.most());
            let in_registers = registers_fit(taken + registers, chain.registers.most());
            if !engine.holds(StreamCondition::SharedFits, in_shared)
                || !engine.holds(StreamCondition::RegistersFit, in_registers)
            {
                continue;
            }
            let below = ChainState {
                decided: chain.decided + 1,
                live: chain.live.with(number, place),
                shared: chain.shared.less(shared),
                ..chain
            };
            let body = engine.nest(StreamState { step: Step::Chain(blocks, settled(stream, below)), ..*state });
            let of = Box::new(*state);
            engine.equals(StreamTerm::Hold { buffer: held.buffer as u8, place, of, body: [body] });
        }
    }
}
