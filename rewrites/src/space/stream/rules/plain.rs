//! A plain kernel: `fuse`, `split` and `bind` of a block's spatial loops, for blocks that no other kernel takes. Of a sum, threads may
//! share a loop (`split`, `bind`).
use super::engine::Engine;
use crate::space::conditions::stream::{plain_fits, shared_loop, threads_fit};
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{BlockKind, Sharing, Step, StreamState, StreamTerm};

/// `kernel = plain t`, `kernel = plain t shared by s`.
///
/// Side conditions: no other kernel takes the block; a block of threads has no more than it may; a sum has a loop to share.
pub struct Plain;

impl Rule<StreamTerm> for Plain {
    fn name(&self) -> &'static str {
        "fuse, split, bind (plain)"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Step::Kernel(1)) = (node, state.step) else { return };
        let Some(stream) = engine.problem().works.get(usize::from(state.work)) else { return };
        if plain_fits(stream, 0).is_err() {
            return;
        }
        let block = &stream.blocks[0];
        if block.kind == BlockKind::Bound {
            // There is nothing to choose.
            let threads = block.iters.get(1).map_or(1, |i| i.extent);
            engine.equals(StreamTerm::Plain { threads, sharing: None, state: Box::new(*state) });
            return;
        }
        let results = block.results();
        for threads in engine.menu.threads.clone() {
            // A wider block than there are results has idle warps only.
            let wide = threads > 32 && threads / 2 >= results;
            let fits = threads_fit(threads, 1, i64::from(engine.limits.threads));
            if !wide && engine.holds(StreamCondition::ThreadsFit, fits) {
                engine.equals(StreamTerm::Plain { threads, sharing: None, state: Box::new(*state) });
            }
        }
        for lanes in [false, true] {
            let [sharing, shared] =
                [&engine.menu.sharing, &engine.menu.shared].map(|sizes| sizes[usize::from(lanes)].clone());
            for threads in sharing {
                let Ok(iter) = shared_loop(stream, 0, threads, lanes) else { continue };
                let sharing = Some(Sharing { iter, threads, lanes });
                for results in shared.iter().copied().filter(|n| *n == shared[0] || n / 2 < results) {
                    let fits = threads_fit(threads, results, i64::from(engine.limits.threads));
                    if engine.holds(StreamCondition::ThreadsFit, fits) {
                        engine.equals(StreamTerm::Plain { threads: results, sharing, state: Box::new(*state) });
                    }
                }
            }
        }
    }
}
