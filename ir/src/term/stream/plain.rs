//! Plain kernels: what a thread computes for one element of a result, or for some. Which blocks make such a kernel, along which loops a thread
//! may have several results, and what it then holds of a map that it computes itself.
use super::{Access, BlockKind, Indexed, PlainPlan, Stream, StreamBlock, Window};
use crate::affine::linear::Linear;
use crate::affine::{int, Domains};
use crate::{visit, DType, Expr, Range, VarId};

/// The blocks of a plain kernel, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainBlocks {
    /// A map whose values a thread computes itself, for all that it adds up in a step.
    pub before: Option<usize>,
    /// What makes the results.
    pub block: usize,
    /// A map that they go through.
    pub map: Option<usize>,
}

/// What a thread with several results does in a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlainStep {
    /// Iterators that are reduced over within the step, from the outside in: along them windows overlap, or what lies side by side.
    pub inside: Vec<usize>,
    /// The other ones, around it.
    pub outside: Vec<usize>,
    /// What is held in registers.
    pub held: Vec<PlainHeld>,
}

/// What a thread holds of a buffer in registers: of the map before, or copied, so that it is loaded once for all results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainHeld {
    /// Number of the buffer.
    pub buffer: usize,
    /// Number of a load of it among those of the block.
    pub load: usize,
    /// Along each dimension, where what is held begins, from where that load has the first result's.
    pub first: Vec<i64>,
    /// Elements along each dimension.
    pub lengths: Vec<i64>,
    /// Whether it is another one for each result along the window, or of the map before; else the same for all of them.
    pub slides: bool,
    /// How many of the loops inside the step it is loaded in.
    pub inside: usize,
}

impl PlainHeld {
    /// How many elements these are.
    pub fn elements(&self) -> i64 {
        self.lengths.iter().fold(1, |all, length| all.saturating_mul(*length))
    }
}

impl PlainStep {
    /// Multiply-adds, or whatever is added up, for so many results.
    pub fn statements(&self, block: &StreamBlock, results: i64) -> i64 {
        self.inside.iter().fold(results, |all, iter| all.saturating_mul(block.iters[*iter].extent))
    }
}

impl Stream {
    /// The blocks of a plain kernel: one that no other kernel takes; or a sum of these, with the map of its results after it, the map that
    /// it alone reads before it, or both.
    pub fn plain_blocks(&self, from: usize, to: usize) -> Option<PlainBlocks> {
        let blocks = |before, block, map| Some(PlainBlocks { before, block, map });
        match self.blocks.get(from..to)? {
            [one] if matches!(one.kind, BlockKind::Other | BlockKind::Bound) => blocks(None, from, None),
            [sum, map] if self.maps_sum(sum, map, to) => blocks(None, from, Some(from + 1)),
            [first, sum] if self.feeds(first, sum, from + 2) => blocks(Some(from), from + 1, None),
            [first, sum, map] if self.feeds(first, sum, from + 2) && self.maps_sum(sum, map, to) => {
                blocks(Some(from), from + 1, Some(from + 2))
            }
            _ => None,
        }
    }

    /// The same of a plan.
    pub fn plain_of(&self, plan: &PlainPlan) -> Option<PlainBlocks> {
        let number = |name: &String| self.blocks.iter().position(|b| b.name == *name);
        let [before, map] = [&plan.before, &plan.map].map(|name| name.as_ref().and_then(number));
        Some(PlainBlocks { before, block: number(&plan.block)?, map })
    }

    /// Whether blocks are a plain kernel in which each has the part that a plan gives it, with results along a window where there is one.
    pub fn plain_as(&self, plan: &PlainPlan, from: usize, to: usize) -> bool {
        let (Some(blocks), Some(told)) = (self.plain_blocks(from, to), self.plain_of(plan)) else { return false };
        let slides = |window: Window| {
            let extent = self.blocks[blocks.block].iters.get(window.iter).map_or(0, |i| i.extent);
            window.divides(extent) && self.windows(from, to).contains(&window.iter)
        };
        blocks == told && plan.window.is_none_or(slides)
    }

    /// Whether blocks are a plain kernel.
    pub fn fits_plain(&self, from: usize, to: usize) -> bool {
        self.plain_blocks(from, to).is_some()
    }

    /// Whether a plain kernel has a block's sum in a register, and stores it once: `compute_at` takes what is written at bare iterators.
    pub fn holds_sum(&self, block: &StreamBlock) -> bool {
        let spatial = block.spatial();
        let first = |(i, place): (usize, &usize)| (*place < spatial) != block.iters[i].reduce;
        let reduces = spatial > 0 && spatial < block.iters.len();
        let bare = block.write.known && block.write.split.is_none();
        self.pipeline && block.stores == 1 && bare && reduces && block.places.iter().enumerate().all(first)
    }

    /// The iterator of what a plain kernel makes along which a thread may have several results, which lie side by side there: the last one
    /// of those that it has results for.
    pub fn neighbours(&self, from: usize, to: usize) -> Option<usize> {
        let block = &self.blocks[self.plain_blocks(from, to)?.block];
        let last = block.spatial().checked_sub(1)?;
        let one = self.pipeline && block.stores == 1 && block.kind == BlockKind::Other && !block.updates;
        let whole = block.write.known && block.write.split.is_none() && block.write.dims.last() == Some(&Some(last));
        (one && whole && (last + 1 == block.iters.len() || self.holds_sum(block))).then_some(last)
    }

    /// The other iterators along which a thread may have several results, since these read much of the same: windows that a sum slides
    /// along them, or elements of which some have another one's place.
    pub fn windows(&self, from: usize, to: usize) -> Vec<usize> {
        let (Some(last), Some(blocks)) = (self.neighbours(from, to), self.plain_blocks(from, to)) else {
            return Vec::new();
        };
        let block = &self.blocks[blocks.block];
        let slides = |iter: usize, index: &Expr| uses(index, iter) && reduced(block).any(|r| uses(index, r));
        let moved = |iter: usize, load: &Indexed, other: &Indexed| {
            let of = |(a, b): (&Expr, &Expr)| a != b && uses(a, iter) && uses(b, iter);
            load.buffer == other.buffer && load.index.iter().zip(&other.index).any(of)
        };
        let along = |iter: &usize| {
            let slides = block.loaded.iter().flat_map(|load| &load.index).any(|index| slides(*iter, index));
            slides || block.loaded.iter().any(|load| block.loaded.iter().any(|other| moved(*iter, load, other)))
        };
        (0..last).filter(along).collect()
    }

    /// What a thread with so many results side by side, and along a window, does in a step.
    pub fn plain_step(&self, blocks: PlainBlocks, vector: i64, window: Option<Window>) -> PlainStep {
        let block = &self.blocks[blocks.block];
        let made = blocks.before.map(|before| self.blocks[before].write.buffer);
        let mut around: Vec<usize> = reduced(block).collect();
        around.sort_by_key(|iter| block.places[*iter]);
        if made.is_none() && window.is_none() {
            return PlainStep { outside: around, ..PlainStep::default() };
        }
        let last = block.spatial().saturating_sub(1);
        let several: Vec<usize> = (vector > 1).then_some(last).into_iter().chain(window.map(|w| w.iter)).collect();
        let of = |load: &&Indexed| made.is_none_or(|made| load.buffer == made);
        let together = |iter: &usize| {
            let both = |index: &Expr| uses(index, *iter) && several.iter().any(|own| uses(index, *own));
            block.loaded.iter().filter(of).flat_map(|load| &load.index).any(both)
        };
        let (inside, outside): (Vec<usize>, Vec<usize>) = around.into_iter().partition(together);
        let held = (0..block.loaded.len()).filter_map(|load| {
            let values = |slides: bool, iter: usize| match window {
                Some(window) if window.iter == iter => window.results,
                _ if iter == last => vector,
                _ if slides && inside.contains(&iter) => block.iters[iter].extent,
                _ => 1,
            };
            let buffer = block.loaded[load].buffer;
            let of_map = made == Some(buffer);
            let moved = |iter: usize| block.loaded[load].index.iter().any(|index| uses(index, iter));
            let slides = of_map || window.is_some_and(|window| moved(window.iter));
            if !of_map && (window.is_none() || block.reads.iter().filter(|read| read.buffer == buffer).count() != 1) {
                return None;
            }
            let (first, lengths) = self.extent_of(block, load, &|iter| values(slides, iter))?;
            let inside = if slides { 0 } else { inside.iter().rposition(|iter| moved(*iter)).map_or(0, |at| at + 1) };
            Some(PlainHeld { buffer, load, first, lengths, slides, inside })
        });
        let held = held.collect();
        PlainStep { inside, outside, held }
    }

    /// All that a block loads of a buffer for so many values of its iterators, of which a load is the first one: where it begins, from where
    /// that load has the first, and how long it is along each dimension. None where another load comes before, or where some load is decided
    /// on by a condition, has indices that are no sums of iterators, or moves otherwise.
    fn extent_of(
        &self,
        block: &StreamBlock,
        load: usize,
        values: &dyn Fn(usize) -> i64,
    ) -> Option<(Vec<i64>, Vec<i64>)> {
        let own = &block.loaded[load];
        let all = || block.loaded.iter().enumerate().filter(|(_, other)| other.buffer == own.buffer);
        if all().any(|(at, other)| at < load || other.chosen) {
            return None;
        }
        let of_dimension = |d: usize| {
            let (steps, start) = linear(&own.index[d], block)?;
            let mut ends = (0, 0);
            for (_, other) in all() {
                let (others, at) = linear(&other.index[d], block)?;
                if others != steps {
                    return None;
                }
                ends = (ends.0.min(at - start), ends.1.max(at - start));
            }
            let moved = steps.into_iter().map(|(iter, step)| step.saturating_mul(values(iter) - 1));
            Some((ends.0, 1 + ends.1 - ends.0 + moved.sum::<i64>()))
        };
        (0..own.index.len()).map(of_dimension).collect::<Option<Vec<_>>>().map(|all| all.into_iter().unzip())
    }

    /// Whether a sum alone reads a map that comes before it, at places that its iterators tell, so that a thread may compute what it needs of
    /// it itself. The two end at `to`.
    fn feeds(&self, first: &StreamBlock, sum: &StreamBlock, to: usize) -> bool {
        let made = first.write.buffer;
        let in_order = first.write.dims.iter().flatten().copied().eq(0..first.iters.len());
        let known = |load: usize| self.extent_of(sum, load, &|_| 1).is_some();
        matches!(first.kind, BlockKind::Map | BlockKind::Other)
            && sum.kind == BlockKind::Other
            && self.holds_sum(sum)
            && first.stores == 1
            && !first.updates
            && first.spatial() == first.iters.len()
            && first.write.known
            && first.write.split.is_none()
            && in_order
            && first.places.is_sorted()
            && !self.outlives(made, to)
            && sum.loaded.iter().position(|load| load.buffer == made).is_some_and(known)
            && sum.write.buffer != made
    }

    /// Whether a sum is held in a register, and nobody but a map over its elements, which comes next, reads it.
    fn maps_sum(&self, sum: &StreamBlock, map: &StreamBlock, to: usize) -> bool {
        let made = sum.write.buffer;
        let spatial =
            |b: &StreamBlock| -> Vec<i64> { b.iters.iter().filter(|i| !i.reduce).map(|i| i.extent).collect() };
        let own = |a: &Access| a.known && a.split.is_none() && a.dims == sum.write.dims;
        let in_order = sum.write.dims.iter().flatten().copied().eq(0..spatial(sum).len());
        let of_sum = || map.reads.iter().filter(|read| read.buffer == made);
        sum.kind == BlockKind::Other
            && self.holds_sum(sum)
            && in_order
            && own(&sum.write)
            && !self.outlives(made, to)
            && map.kind == BlockKind::Map
            && !map.updates
            && map.stores == 1
            && spatial(map) == spatial(sum)
            && of_sum().count() > 0
            && of_sum().all(own)
    }
}

/// Iterators that a block reduces over.
fn reduced(block: &StreamBlock) -> impl Iterator<Item = usize> + '_ {
    (0..block.iters.len()).filter(|i| block.iters[*i].reduce)
}

fn uses(index: &Expr, iter: usize) -> bool {
    visit::uses_var(index, &|v| v.0 as usize == iter)
}

/// Iterators, and by how much each of them moves an index, in their order; and where it begins.
type Steps = (Vec<(usize, i64)>, i64);

/// An index as a sum of iterators, each times a positive number, and of a constant; `None` where it is none.
fn linear(index: &Expr, block: &StreamBlock) -> Option<Steps> {
    let range = |extent: i64| Range { min: int(0, DType::I32), extent: int(extent, DType::I32) };
    let domains: Domains = block.iters.iter().enumerate().map(|(i, it)| (VarId(i as u32), range(it.extent))).collect();
    let form = Linear::of(index, &domains)?;
    let of = |(atom, step): &(Expr, i64)| match atom {
        Expr::Var(v) if *step > 0 => Some((v.id.0 as usize, *step)),
        _ => None,
    };
    let mut steps = form.terms().iter().map(of).collect::<Option<Vec<_>>>()?;
    steps.sort_unstable();
    Some((steps, form.offset()))
}
