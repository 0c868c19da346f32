//! A plain kernel: `fuse`, `split` and `bind` of a block's spatial loops, for blocks that no other kernel takes. Of a sum, threads may
//! share a loop (`split`, `bind`).
use super::engine::Engine;
use crate::space::conditions::stream::{plain_fits, threads_fit};
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{BlockKind, Sharing, Step, Stream, StreamBlock, StreamState, StreamTerm};

/// `kernel = plain t`, `kernel = plain t shared by s`.
///
/// Side conditions: no other kernel takes the block; a block of threads has no more than it may.
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
        for sharing in shared(stream, block, &engine.menu.sharing) {
            // Of neighbours a warp has one result at most, else one for each lane at least.
            let sizes = if sharing.lanes { [1, 2, 4, 8] } else { [32, 64, 128, 256] };
            for threads in sizes.into_iter().filter(|threads| *threads == sizes[0] || threads / 2 < results) {
                let fits = threads_fit(sharing.threads, threads, i64::from(engine.limits.threads));
                if engine.holds(StreamCondition::ThreadsFit, fits) {
                    engine.equals(StreamTerm::Plain { threads, sharing: Some(sharing), state: Box::new(*state) });
                }
            }
        }
    }
}

/// Ways to share a sum: neighbours the innermost loop, where something lies along it in memory; else the outermost one that is long
/// enough.
fn shared(stream: &Stream, block: &StreamBlock, menu: &[i64]) -> Vec<Sharing> {
    if !block.shares || !stream.holds_sum(block) {
        return Vec::new();
    }
    let long = |threads: i64| move |iter: &usize| block.iters[*iter].reduce && block.iters[*iter].extent >= threads;
    let lies_along = |iter: &usize| block.reads.iter().any(|read| read.dims.last() == Some(&Some(*iter)));
    let last = block.iters.len() - 1;
    let ways = menu.iter().flat_map(|threads| {
        let lanes = Some(last).filter(|_| *threads >= 32).filter(long(*threads)).filter(lies_along);
        let others = (0..=last).find(long(*threads)).filter(|_| *threads <= 32);
        let way = |lanes| move |iter| Sharing { iter, threads: *threads, lanes };
        lanes.map(way(true)).into_iter().chain(others.map(way(false)))
    });
    ways.collect()
}
