//! Maps over all elements: `split`, `bind`, `unroll`, `vectorize` of their loops, which are those of one nest (`merge`, `compute_at`)
//! where they are several.
use super::engine::{up, Engine};
use crate::space::conditions::stream::{
    flat_fits, no_idle_warp, pipeline, rows_divide, threads_fit, vector_bytes, vector_divides, widest,
};
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{FlatState, Step, StreamState, StreamTerm};
use satune_ir::term::Role;

/// `kernel(rows x columns) = for blocks(rows / y): for blocks(columns / (u t v)): for unroll(u): for threads(t): for
/// vector(v): done`.
///
/// Side conditions: the accesses follow the loops; the rows of a block divide all rows; threads, width as for row kernels.
pub struct Flat;

impl Rule<StreamTerm> for Flat {
    fn name(&self) -> &'static str {
        "split, bind, vectorize (flat)"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let StreamTerm::Nest(_) = node else { return };
        let Some(stream) = engine.problem().works.get(usize::from(state.work)) else { return };
        let flat = match state.step {
            Step::Kernel(_) => None,
            Step::Flat(flat) => Some(flat),
            _ => return,
        };
        let (block, count) = (&stream.blocks[0], stream.blocks.len());
        let Some(columns) = block.iters.last().map(|i| i.extent) else { return };
        let rows = block.instances() / columns;
        let down = |engine: &mut Engine<'_>, role, extent, total, below: FlatState| {
            let body = engine.nest(StreamState { step: Step::Flat(below), ..*state });
            engine.equals(StreamTerm::Loop { role, extent, total, body: [body] });
        };
        let Some(flat) = flat else {
            let maps = stream.same_elements(0, count);
            if !maps || !engine.holds(StreamCondition::FlatFits, flat_fits(stream, 0, count)) {
                return;
            }
            for side_by_side in engine.menu.side_by_side.clone() {
                let divides = rows_divide(side_by_side, rows);
                if side_by_side > rows || !engine.holds(StreamCondition::RowsDivide, divides) {
                    continue;
                }
                let below = FlatState { blocks: count as u8, side_by_side, tile: 0, done: 0 };
                down(engine, Role::Block, up(rows, side_by_side), rows, below);
            }
            return;
        };
        let inner = block.iters.len() - 1;
        let widest = widest(stream, 0, count, inner);
        let most = i64::from(engine.limits.threads);
        let menu = engine.menu;
        let wide = |engine: &Engine<'_>, v: i64| {
            engine.holds(StreamCondition::VectorBytes, vector_bytes(v, widest))
                && engine.holds(StreamCondition::VectorDivides, vector_divides(v, columns))
                && engine.holds(StreamCondition::Pipeline, pipeline(stream, 0, count, v))
        };
        match flat.done {
            0 => {
                let mut tiles: Vec<i64> = Vec::new();
                for (u, t, v) in shapes(menu) {
                    let busy = no_idle_warp(t * u, v, columns).is_ok();
                    let fits = engine.holds(StreamCondition::ThreadsFit, threads_fit(t, flat.side_by_side, most));
                    if fits && busy && t * flat.side_by_side >= 32 && wide(engine, v) {
                        tiles.push(u * t * v);
                    }
                }
                tiles.sort_unstable();
                tiles.dedup();
                for tile in tiles {
                    let below = FlatState { tile, done: 1, ..flat };
                    down(engine, Role::Block, up(columns, tile), columns, below);
                }
            }
            1 => {
                for u in &menu.steps {
                    let below = FlatState { tile: flat.tile / u, done: 2, ..flat };
                    if flat.tile % u == 0 && shapes(menu).any(|(_, t, v)| t * v == below.tile && wide(engine, v)) {
                        down(engine, Role::Unroll, *u, flat.tile, below);
                    }
                }
            }
            2 => {
                for t in &menu.threads {
                    let v = flat.tile / t;
                    let fits = engine.holds(StreamCondition::ThreadsFit, threads_fit(*t, flat.side_by_side, most));
                    if fits && flat.tile % t == 0 && menu.vectors.contains(&v) && wide(engine, v) {
                        down(engine, Role::Thread, *t, flat.tile, FlatState { tile: v, done: 3, ..flat });
                    }
                }
            }
            3 => {
                let done = StreamState { step: Step::Flat(FlatState { tile: 1, done: 4, ..flat }), ..*state };
                let body = engine.term(StreamTerm::Done(Box::new(done)));
                engine.equals(StreamTerm::Loop {
                    role: Role::Vector,
                    extent: flat.tile,
                    total: flat.tile,
                    body: [body],
                });
            }
            _ => {}
        }
    }
}

/// (unrolled steps, threads, width) on the menu.
fn shapes(menu: &crate::space::stream::StreamMenu) -> impl Iterator<Item = (i64, i64, i64)> + '_ {
    menu.steps
        .iter()
        .flat_map(move |u| menu.threads.iter().flat_map(move |t| menu.vectors.iter().map(move |v| (*u, *t, *v))))
}
