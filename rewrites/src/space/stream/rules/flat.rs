//! Maps over all elements: `split`, `bind`, `unroll`, `vectorize` of their loops, which are those of one nest (`merge`, `compute_at`)
//! where they are several.
use super::engine::Engine;
use crate::space::conditions::stream::{
    flat_fits, no_idle_warp, part_of_warp, pipeline, rows_divide, short_row, threads_fit, vector_bytes, vector_divides,
    whole_warps, widest,
};
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{Step, Stream, StreamState, StreamTerm};

/// `kernel(rows x columns) = threads(y x t): steps(u x v)`: blocks over what y rows and u t v columns leave, in each of them u steps of v
/// neighbours for each of t threads along a row. A row that a part of a warp takes at once is taken so, too: t v columns, with as many
/// rows as fill warps.
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
        let (block, count) = (&stream.blocks[0], stream.blocks.len());
        let Some(columns) = block.iters.last().map(|i| i.extent) else { return };
        match state.step {
            Step::Kernel(blocks) => {
                let maps = stream.same_elements(0, count);
                if !maps || !engine.holds(StreamCondition::FlatFits, flat_fits(stream, 0, count)) {
                    return;
                }
                let (rows, most) = (block.instances() / columns, i64::from(engine.limits.threads));
                let short = parts_of_warps(engine, stream, columns);
                let mut sides = [engine.menu.side_by_side.clone(), engine.menu.short_rows.clone()].concat();
                sides.sort_unstable();
                sides.dedup();
                for side_by_side in sides {
                    let divides = rows_divide(side_by_side, rows);
                    if side_by_side > rows || !engine.holds(StreamCondition::RowsDivide, divides) {
                        continue;
                    }
                    let menu = engine.menu;
                    let long = menu.threads.iter().filter(|_| menu.side_by_side.contains(&side_by_side));
                    for threads in long.chain(short.iter().filter(|_| menu.short_rows.contains(&side_by_side))).copied()
                    {
                        let fits = engine.holds(StreamCondition::ThreadsFit, threads_fit(threads, side_by_side, most));
                        let filled = whole_warps(threads, side_by_side).and(no_idle_warp(threads, 1, columns));
                        if !fits || filled.is_err() {
                            continue;
                        }
                        let all = shapes(engine).all(|(u, v)| taken(threads, u, v, columns));
                        let below = Step::Flat(blocks, if all { 0 } else { threads });
                        let body = engine.nest(StreamState { step: below, ..*state });
                        engine.equals(StreamTerm::Threads { side_by_side, threads, body: [body] });
                    }
                }
            }
            Step::Flat(_, threads) => {
                let allowed: Vec<(i64, i64)> = shapes(engine)
                    .filter(|(u, v)| threads == 0 || taken(threads, *u, *v, columns))
                    .filter(|(_, v)| wide(engine, stream, *v, columns))
                    .collect();
                for (steps, vector) in allowed {
                    engine.equals(StreamTerm::Steps { steps, vector, state: Box::new(*state) });
                }
            }
            _ => {}
        }
    }
}

/// (unrolled steps, width) on the menu.
fn shapes<'a>(engine: &Engine<'a>) -> impl Iterator<Item = (i64, i64)> + 'a {
    let menu = engine.menu;
    menu.steps.iter().flat_map(move |u| menu.vectors.iter().map(move |v| (*u, *v)))
}

/// Whether so many threads have all of a row's elements with such steps, and no warp is idle.
fn taken(threads: i64, steps: i64, vector: i64, columns: i64) -> bool {
    no_idle_warp(threads * steps, vector, columns).and(short_row(threads, steps, vector, columns)).is_ok()
}

/// Numbers of threads that are part of a warp and take a row with one access each.
fn parts_of_warps(engine: &mut Engine<'_>, stream: &Stream, columns: i64) -> Vec<i64> {
    let menu = engine.menu;
    let widths =
        menu.vectors.iter().filter(|v| menu.steps.contains(&1) && columns % **v == 0 && part_of_warp(columns / **v));
    widths.filter(|v| wide(engine, stream, **v, columns)).map(|v| columns / v).collect()
}

/// Whether accesses may be so wide.
fn wide(engine: &Engine<'_>, stream: &Stream, vector: i64, columns: i64) -> bool {
    let (count, inner) = (stream.blocks.len(), stream.blocks[0].iters.len() - 1);
    engine.holds(StreamCondition::VectorBytes, vector_bytes(vector, widest(stream, 0, count, inner)))
        && engine.holds(StreamCondition::VectorDivides, vector_divides(vector, columns))
        && engine.holds(StreamCondition::Pipeline, pipeline(stream, 0, count, vector))
}
