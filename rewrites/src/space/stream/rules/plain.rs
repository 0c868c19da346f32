//! A plain kernel: `fuse`, `split` and `bind` of a block's spatial loops, for blocks that no other kernel takes. A thread may have several
//! results side by side (`split`, `vectorize`), and along another loop, too, where these read much of the same (`split`, `reorder`,
//! `unroll`). Of a sum, threads may share a loop (`split`, `bind`); a map of its results may be in the same kernel (`compute_at` of the sum),
//! and a map that it alone reads, for all that a thread adds up in a step (`compute_at` of the map).
use super::engine::Engine;
use crate::space::conditions::plain::{held_by_thread, neighbours, shared_loop, step_fits, window_fits};
use crate::space::conditions::stream::{plain_fits, registers_fit, threads_fit, vector_bytes, widest_of_any};
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{BlockKind, Sharing, Step, StreamState, StreamTerm, Window};

/// `kernel = plain t`, `kernel = plain t of v each`, `kernel = plain t of v by w each`, `kernel = plain t shared by s`.
///
/// Side conditions: no other kernel takes the block; a map is over the elements of the sum, which it alone reads; a block of threads has no
/// more than it may; a sum has a loop to share; neighbouring results of a thread lie along the last dimension of what is written, which they
/// divide, as others do another loop along which windows overlap; an access has 16 bytes at most; what a thread holds of a map fits its
/// registers.
pub struct Plain;

impl Rule<StreamTerm> for Plain {
    fn name(&self) -> &'static str {
        "fuse, split, bind (plain)"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Step::Kernel(count)) = (node, state.step) else { return };
        let Some(stream) = engine.problem().works.get(usize::from(state.work)) else { return };
        let (from, to) = (0, usize::from(count));
        let (Ok(()), Some(blocks)) = (plain_fits(stream, from, to), stream.plain_blocks(from, to)) else { return };
        let block = &stream.blocks[blocks.block];
        let equals = |engine: &mut Engine<'_>, teams, vector, window, sharing| {
            engine.equals(StreamTerm::Plain { teams, vector, window, sharing, state: Box::new(*state) });
        };
        if block.kind == BlockKind::Bound {
            // There is nothing to choose.
            let teams = block.iters.get(1).map_or(1, |i| i.extent);
            return equals(engine, teams, 1, None, None);
        }
        let offered = stream.windows(from, to);
        let of_loop = |iter: &usize| {
            let window = |results: &i64| Window { iter: *iter, results: *results };
            engine.menu.windows.iter().map(window).collect::<Vec<_>>()
        };
        let windows: Vec<Option<Window>> =
            [None].into_iter().chain(offered.iter().flat_map(of_loop).map(Some)).collect();
        let mut ways = vec![(None, windows, engine.menu.threads.clone())];
        for lanes in [false, true] {
            let menu = &engine.menu;
            let [sharing, sizes] = [&menu.sharing, &menu.shared_results].map(|sizes| &sizes[usize::from(lanes)]);
            let shared = sharing.iter().filter_map(|threads| {
                let iter = shared_loop(stream, blocks, *threads, lanes).ok()?;
                Some((Some(Sharing { iter, threads: *threads, lanes }), vec![None], sizes.clone()))
            });
            ways.extend(shared);
        }
        for (sharing, windows, sizes) in ways {
            let each = sharing.map_or(1, |s| s.threads);
            let warp = if sharing.is_some_and(|s| s.lanes) { 1 } else { 32 };
            for vector in engine.menu.vectors.clone() {
                let side_by_side = neighbours(stream, from, to, vector, each);
                let bytes = vector_bytes(vector, widest_of_any(stream, from, to));
                if vector > 1
                    && !(engine.holds(StreamCondition::VectorDivides, side_by_side)
                        && engine.holds(StreamCondition::VectorBytes, bytes))
                {
                    continue;
                }
                for window in &windows {
                    let fits = window.map_or(Ok(()), |window| window_fits(stream, blocks, &offered, window, each));
                    let results = vector * window.map_or(1, |w| w.results);
                    let step = stream.plain_step(blocks, vector, *window);
                    if fits.and_then(|()| step_fits(stream, blocks, results, &step)).is_err() {
                        continue;
                    }
                    let held = held_by_thread(stream, results, &step);
                    let held = registers_fit(held, engine.menu.held_elements);
                    if !engine.holds(StreamCondition::RegistersFit, held) {
                        continue;
                    }
                    // A wider block than there are results has idle warps only.
                    for teams in sizes.iter().copied().filter(|n| *n <= warp || n / 2 < block.results() / results) {
                        let fits = threads_fit(each, teams, i64::from(engine.limits.threads));
                        if engine.holds(StreamCondition::ThreadsFit, fits) {
                            equals(engine, teams, vector, *window, sharing);
                        }
                    }
                }
            }
        }
    }
}
