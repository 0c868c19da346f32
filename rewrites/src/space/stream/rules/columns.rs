//! `split`, `bind` to threadIdx.x and `vectorize` of the columns of every block of a row kernel. Where a block reduces
//! over them, binding makes it a reduction across threads.
use super::engine::Engine;
use super::hold::settled;
use crate::space::conditions::stream::{
    no_idle_warp, part_team, pipeline, threads_fit, vector_bytes, vector_divides, whole_warps, widest, Team,
};
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{ChainState, Laps, Room, Step, Stream, StreamState, StreamTerm};

/// `nest = columns t x v: nest`. Short rows also have a part of a warp each, and as many rows side by side fill one.
///
/// Side conditions: the block's threads are no more than it may have; an access has 16 bytes at most; its width divides
/// the rows of everything that is accessed along them; wide ones are copies, where accesses may be copied.
pub struct Columns;

impl Rule<StreamTerm> for Columns {
    fn name(&self) -> &'static str {
        "split columns, bind, vectorize"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Step::Team(blocks, side_by_side, several)) = (node, state.step) else { return };
        let Some(stream) = engine.problem().works.get(usize::from(state.work)) else { return };
        let (start, end) = (0, usize::from(blocks));
        let Some(shape) = stream.row_shape(start, end) else { return };
        let widest = widest(stream, start, end, shape.row_iters);
        for vector in engine.menu.vectors.clone() {
            let divides = vector_divides(vector, shape.innermost);
            if !engine.holds(StreamCondition::VectorBytes, vector_bytes(vector, widest))
                || !engine.holds(StreamCondition::VectorDivides, divides)
                || !engine.holds(StreamCondition::Pipeline, pipeline(stream, start, end, vector))
            {
                continue;
            }
            let menu = engine.menu;
            for threads in menu.threads.iter().chain(&menu.part_threads).copied() {
                let most = i64::from(engine.limits.threads);
                let fits = engine.holds(StreamCondition::ThreadsFit, threads_fit(threads, side_by_side, most));
                let filled = whole_warps(threads, side_by_side)
                    .and(part_team(threads, vector, shape.columns))
                    .and(no_idle_warp(threads, vector, shape.columns));
                if !fits || filled.is_err() {
                    continue;
                }
                let team = Team { columns: shape.columns, side_by_side, threads, vector };
                let below = begun(engine, stream, &team, several);
                let body = engine.nest(StreamState { step: Step::Chain(blocks, below), ..*state });
                engine.equals(StreamTerm::Columns { threads, vector, of: Box::new(*state), body: [body] });
            }
        }
    }
}

/// What is left to choose once rows and columns have threads.
fn begun(engine: &Engine<'_>, stream: &Stream, team: &Team, several: bool) -> ChainState {
    let laps = match team.laps() {
        1 => Laps::Once,
        laps if laps * team.vector <= engine.menu.unrolled => Laps::Few,
        _ => Laps::Many,
    };
    let registers = Room::Left(engine.menu.held_elements / (team.laps() * team.vector));
    let shared = Room::Left(engine.limits.shared_bytes / team.columns);
    let (apart, rows) = (team.side_by_side > 1, team.side_by_side);
    settled(stream, ChainState { laps, several, apart, registers, shared, rows, ..ChainState::default() })
}
