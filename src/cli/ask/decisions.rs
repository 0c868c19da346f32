//! The decisions of a product's schedule, one by one.
use super::fixed::{Fixed, Operand};
use super::tensor::Way;

/// A part of a schedule that questions fix.
pub(super) struct Part<F> {
    /// The words that free it, alone or with others.
    words: &'static [&'static str],
    /// The decision that it is of; none where it follows from others.
    decision: Option<&'static str>,
    /// Leaves it free.
    free: fn(&mut F),
}

pub(super) const fn part<F>(words: &'static [&'static str], decision: &'static str, free: fn(&mut F)) -> Part<F> {
    Part { words, decision: Some(decision), free }
}

/// One that is of no decision.
const fn follows<F>(words: &'static [&'static str], free: fn(&mut F)) -> Part<F> {
    Part { words, decision: None, free }
}

/// What is fixed, without what each word frees.
pub(super) fn freer<F: Clone>(parts: &[Part<F>], fixed: &F) -> Vec<(&'static str, F)> {
    let mut words: Vec<&str> = Vec::new();
    for word in parts.iter().flat_map(|part| part.words) {
        if !words.contains(word) {
            words.push(word);
        }
    }
    words.into_iter().map(|word| (word, freed(parts, fixed, |part| part.words.contains(&word)))).collect()
}

/// What is fixed of each decision alone. Parts of one decision stand together.
pub(super) fn alone<F: Clone>(parts: &[Part<F>], fixed: &F) -> Vec<(&'static str, F)> {
    let mut names: Vec<&str> = parts.iter().filter_map(|part| part.decision).collect();
    names.dedup();
    names.into_iter().map(|name| (name, freed(parts, fixed, |part| part.decision != Some(name)))).collect()
}

fn freed<F: Clone>(parts: &[Part<F>], fixed: &F, which: impl Fn(&Part<F>) -> bool) -> F {
    let mut freed = fixed.clone();
    parts.iter().filter(|part| which(part)).for_each(|part| (part.free)(&mut freed));
    freed
}

/// Every part, by its decision, from the outside in.
const PARTS: &[Part<Fixed>] = &[
    part(&["what multiplies"], "what multiplies", |f| f.kind = None),
    follows(&["what multiplies"], |f| f.wgmma.op = None),
    part(&["instruction"], "instruction", |f| f.mma.instruction = None),
    follows(&["columns of wgmma"], |f| f.wgmma.n = None),
    part(&["swapped"], "operands swapped", |f| f.swapped = None),
    part(&["split"], "parts of k", |f| f.split = None),
    part(&["order"], "order of blocks", |f| f.blocks_m_outer = None),
    part(&["group"], "order of blocks", |f| f.group = None),
    part(&["cluster"], "cluster", |f| f.wgmma.cluster = None),
    part(&["grid"], "grid", |f| f.wgmma.grid = None),
    part(&["stream-k"], "grid", |f| f.wgmma.stream_k = None),
    part(&["block"], "block tile", |f| f.block = None),
    part(&["k"], "k tile", |f| f.k = None),
    part(&["stages"], "stages", |f| f.stages = None),
    part(&["step"], "k step", |f| f.step = None),
    part(&["unroll"], "k step", |f| f.unroll = None),
    part(&["threads"], "threads", |f| f.threads = None),
    follows(&["threads"], |f| f.thread_grid = None),
    part(&["warps"], "warps", |f| (f.warps, f.warps_m_outer) = (None, None)),
    part(&["lanes"], "lanes", |f| (f.lanes, f.lanes_m_outer) = (None, None)),
    part(&["vthreads"], "vthreads", |f| (f.vthreads_outside, f.vthreads_inside) = (None, None)),
    follows(&["vthreads"], |f| f.vthreads = None),
    part(&["registers"], "registers", |f| (f.registers, f.registers_m_outer) = (None, None)),
    part(&["consumers"], "consumers", |f| f.wgmma.consumers = None),
    part(&["in turn"], "consumers", |f| f.wgmma.in_turn = None),
    part(&["by threads"], "consumers", |f| f.wgmma.by_threads = None),
    follows(&["consumers", "rows of consumers"], |f| f.wgmma.row_blocks = None),
    part(&["warp"], "warp tile", |f| f.mma.warp = None),
    part(&["order of warps"], "warp tile", |f| f.mma.warps_m_outer = None),
    part(&["instructions by rows or columns"], "order of instructions", |f| f.mma.columns = None),
    part(&["straight or back and forth"], "order of instructions", |f| f.mma.serpentine = None),
    part(&["two at once"], "order of instructions", |f| f.mma.pairs = None),
    part(&["k upwards or downwards"], "order of instructions", |f| f.mma.descending = None),
    part(&["one after the other"], "order of instructions", |f| f.wgmma.by_rows = None),
    part(&["tiles waited for"], "tiles waited for", |f| f.mma.slack = None),
    part(&["rolled"], "tiles waited for", |f| f.mma.rolled = None),
    part(&["freed"], "tile freed", |f| f.wgmma.eager_release = None),
    part(&["arrivals"], "arrivals", |f| f.wgmma.arrive_per_warp = None),
    part(&["resident"], "resident blocks asked for", |f| f.mma.min_blocks = None),
    part(&["A"], "A in shared memory", |f| free_place(&mut f.a)),
    part(&["A", "layouts"], "A in shared memory", |f| f.mma.ways[0].layout = None),
    part(&["B"], "B in shared memory", |f| free_place(&mut f.b)),
    part(&["B", "layouts"], "B in shared memory", |f| f.mma.ways[1].layout = None),
    part(&["A"], "copies of A", |f| free_copies(&mut f.a, &mut f.mma.ways[0])),
    part(&["A", "bytes to L2"], "copies of A", |f| f.mma.ways[0].prefetch = None),
    part(&["B"], "copies of B", |f| free_copies(&mut f.b, &mut f.mma.ways[1])),
    part(&["B", "bytes to L2"], "copies of B", |f| f.mma.ways[1].prefetch = None),
    part(&["A"], "fragments", |f| (f.a.local, f.mma.ways[0].matrices) = (None, None)),
    part(&["A", "sets of fragments"], "fragments", |f| f.mma.ways[0].sets = None),
    part(&["B"], "fragments", |f| (f.b.local, f.mma.ways[1].matrices) = (None, None)),
    part(&["B", "sets of fragments"], "fragments", |f| f.mma.ways[1].sets = None),
    part(&["init"], "sums", |f| f.init_hoisted = None),
    part(&["accumulators"], "sums", |f| f.accumulators = None),
    part(&["store"], "store of C", |f| f.store = None),
    part(&["C"], "store of C", |f| (f.mma.store, f.wgmma.store) = (None, None)),
];

fn free_place(o: &mut Operand) {
    (o.shared, o.hoisted, o.k_major, o.pad, o.swizzle) = (None, None, None, None, None);
}

fn free_copies(o: &mut Operand, way: &mut Way) {
    (o.fill, o.coalesced, o.fill_unroll) = (None, None, None);
    (way.bytes, way.order, way.rolled, way.step) = (None, None, None, None);
}

impl Fixed {
    /// The same without what each word frees.
    pub fn freer(&self) -> Vec<(String, Fixed)> {
        freer(PARTS, self).into_iter().map(|(word, freer)| (word.to_string(), freer)).collect()
    }

    /// Each decision that is made, and the question that fixes it alone.
    pub fn decisions(&self) -> Vec<(String, Fixed)> {
        let mut all = alone(PARTS, self);
        for (_, alone) in &mut all {
            // What follows from a layout is not said twice, and the name of an instruction says what multiplies.
            for operand in [&mut alone.a, &mut alone.b] {
                operand.shared = operand.shared.filter(|shared| !shared);
            }
            if alone.mma.instruction.is_some() {
                alone.kind = self.kind;
            }
        }
        let made = all.into_iter().filter(|(_, alone)| *alone != Fixed::default());
        made.map(|(name, alone)| (name.to_string(), alone)).collect()
    }
}
