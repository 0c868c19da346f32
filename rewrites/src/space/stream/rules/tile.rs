//! A transpose through shared memory: `split`, `reorder`, `bind`, `cache_read`, `vectorize`, `storage_align`.
use super::engine::Engine;
use crate::space::conditions::stream::{
    pad_whole, shared_fits, team_divides, threads_fit, vector_bytes, vector_divides, widest_of_tile, TILE,
};
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{Step, StreamState, StreamTerm, TileState};

/// `kernel = tile s x s: wide v: team t: pad p`.
///
/// Only where one read permutes the iterators. Side conditions: an access has 16 bytes at most and divides the
/// rows on both sides; the threads are whole rows of accesses, and the rows divide the tile; the tile fits in shared memory.
pub struct Tile;

impl Rule<StreamTerm> for Tile {
    fn name(&self) -> &'static str {
        "transpose tile (cache_read, storage_align)"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let StreamTerm::Nest(_) = node else { return };
        let Some(stream) = engine.problem().works.get(usize::from(state.work)) else { return };
        let (Step::Kernel(1) | Step::Tile(_)) = state.step else { return };
        let block = &stream.blocks[0];
        let Some((read, write, access)) = stream.transposed(0) else { return };
        let source = i64::from(stream.buffers[block.reads[access].buffer].dtype.bytes());
        let widest = widest_of_tile(stream, 0, access);
        let (along_read, along_write) = (block.iters[read].extent, block.iters[write].extent);
        let menu = engine.menu;
        let nest =
            |engine: &mut Engine<'_>, tile: TileState| engine.nest(StreamState { step: Step::Tile(tile), ..*state });
        let fits = |engine: &Engine<'_>, bytes: i64| {
            let held = shared_fits(TILE, bytes, engine.limits.shared_bytes);
            engine.holds(StreamCondition::SharedFits, held)
        };
        match state.step {
            Step::Kernel(_) => {
                for side in &menu.tiles {
                    if fits(engine, side * side * source) {
                        let body = nest(engine, TileState { side: *side, ..TileState::default() });
                        engine.equals(StreamTerm::Tile { side: *side, body: [body] });
                    }
                }
            }
            Step::Tile(tile) if tile.vector == 0 => {
                for vector in &menu.vectors {
                    let divides = [along_read, along_write, tile.side];
                    let divides = divides.iter().try_for_each(|row| vector_divides(*vector, *row));
                    if engine.holds(StreamCondition::VectorBytes, vector_bytes(*vector, Some(widest)))
                        && engine.holds(StreamCondition::VectorDivides, divides)
                    {
                        let body = nest(engine, TileState { vector: *vector, ..tile });
                        engine.equals(StreamTerm::Wide { vector: *vector, body: [body] });
                    }
                }
            }
            Step::Tile(tile) if tile.threads == 0 => {
                for threads in &menu.tile_threads {
                    let rows = threads / (tile.side / tile.vector);
                    let whole = team_divides(*threads, tile.side, tile.vector);
                    let few = threads_fit(*threads, 1, i64::from(engine.limits.threads));
                    if engine.holds(StreamCondition::TeamDivides, whole)
                        && engine.holds(StreamCondition::ThreadsFit, few)
                        && rows > 0
                        && rows <= tile.side
                    {
                        let body = nest(engine, TileState { threads: *threads, ..tile });
                        engine.equals(StreamTerm::Team { threads: *threads, body: [body] });
                    }
                }
            }
            Step::Tile(tile) => {
                for pad in &menu.pads {
                    if pad_whole(*pad, tile.vector).is_err() {
                        continue;
                    }
                    if fits(engine, tile.side * (tile.side + pad) * source) {
                        engine.equals(StreamTerm::Pad { pad: *pad, state: Box::new(*state) });
                    }
                }
            }
            _ => {}
        }
    }
}
