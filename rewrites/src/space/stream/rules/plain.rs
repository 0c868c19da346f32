//! A plain kernel: `fuse`, `split` and `bind` of a block's spatial loops, for blocks that no other kernel takes. A thread may have several
//! results side by side (`split`, `vectorize`). Of a sum, threads may share a loop (`split`, `bind`), and a map of its results may be in the
//! same kernel (`compute_at` of the sum).
use super::engine::Engine;
use crate::space::conditions::stream::{neighbours, plain_fits, shared_loop, threads_fit, vector_bytes, widest_of_any};
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{BlockKind, Sharing, Step, StreamState, StreamTerm};

/// `kernel = plain t`, `kernel = plain t of v each`, `kernel = plain t shared by s`.
///
/// Side conditions: no other kernel takes the block; a map is over the elements of the sum, which it alone reads; a block of threads has no
/// more than it may; a sum has a loop to share; neighbouring results of a thread lie along the last dimension of what is written, which they
/// divide; an access has 16 bytes at most.
pub struct Plain;

impl Rule<StreamTerm> for Plain {
    fn name(&self) -> &'static str {
        "fuse, split, bind (plain)"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Step::Kernel(blocks)) = (node, state.step) else { return };
        let Some(stream) = engine.problem().works.get(usize::from(state.work)) else { return };
        if plain_fits(stream, 0, usize::from(blocks)).is_err() {
            return;
        }
        let block = &stream.blocks[0];
        if block.kind == BlockKind::Bound {
            // There is nothing to choose.
            let teams = block.iters.get(1).map_or(1, |i| i.extent);
            engine.equals(StreamTerm::Plain { teams, vector: 1, sharing: None, state: Box::new(*state) });
            return;
        }
        let mut ways = vec![(None, engine.menu.threads.clone())];
        for lanes in [false, true] {
            let menu = &engine.menu;
            let [sharing, sizes] = [&menu.sharing, &menu.shared_results].map(|sizes| &sizes[usize::from(lanes)]);
            let shared = sharing.iter().filter_map(|threads| {
                let iter = shared_loop(stream, 0, *threads, lanes).ok()?;
                Some((Some(Sharing { iter, threads: *threads, lanes }), sizes.clone()))
            });
            ways.extend(shared);
        }
        for (sharing, sizes) in ways {
            let each = sharing.map_or(1, |s| s.threads);
            let warp = if sharing.is_some_and(|s| s.lanes) { 1 } else { 32 };
            for vector in engine.menu.vectors.clone() {
                let side_by_side = neighbours(stream, 0, usize::from(blocks), vector, each);
                let bytes = vector_bytes(vector, widest_of_any(stream, 0, usize::from(blocks)));
                if vector > 1
                    && !(engine.holds(StreamCondition::VectorDivides, side_by_side)
                        && engine.holds(StreamCondition::VectorBytes, bytes))
                {
                    continue;
                }
                // A wider block than there are results has idle warps only.
                for teams in sizes.iter().copied().filter(|n| *n <= warp || n / 2 < block.results() / vector) {
                    let fits = threads_fit(each, teams, i64::from(engine.limits.threads));
                    if engine.holds(StreamCondition::ThreadsFit, fits) {
                        engine.equals(StreamTerm::Plain { teams, vector, sharing, state: Box::new(*state) });
                    }
                }
            }
        }
    }
}
