//! A work's first blocks as a work by themselves, and works put together.
use super::{Stream, StreamBlock, Tiled};

impl StreamBlock {
    /// Whether it reads or writes a buffer.
    pub fn touches(&self, buffer: usize) -> bool {
        self.write.buffer == buffer || self.reads.iter().any(|r| r.buffer == buffer)
    }

    fn renumbered(&self, new: &dyn Fn(usize) -> usize) -> StreamBlock {
        let mut out = self.clone();
        out.reads.iter_mut().chain([&mut out.write]).for_each(|access| access.buffer = new(access.buffer));
        out.loaded.iter_mut().for_each(|load| load.buffer = new(load.buffer));
        out.parts.iter_mut().flat_map(|part| &mut part.buffers).for_each(|buffer| *buffer = new(*buffer));
        out
    }
}

impl Stream {
    /// Whether a block reads what another one writes.
    pub fn reads_from(&self, block: usize, maker: usize) -> bool {
        let made = self.blocks[maker].write.buffer;
        self.blocks[block].reads.iter().any(|r| r.buffer == made)
    }

    /// The first `count` blocks, which know of the others what they touch.
    pub fn first(&self, count: usize) -> Stream {
        let (here, others) = self.blocks.split_at(count);
        let used: Vec<usize> = (0..self.buffers.len()).filter(|at| here.iter().any(|b| b.touches(*at))).collect();
        let new = |old: usize| used.iter().position(|at| *at == old).unwrap_or_default();
        let mut out = Stream {
            blocks: here.iter().map(|b| b.renumbered(&new)).collect(),
            buffers: used.iter().map(|at| self.buffers[*at].clone()).collect(),
            pipeline: self.pipeline,
            tiled: self.tiled.iter().filter(|t| (t.from, t.to) == (0, count)).cloned().collect(),
        };
        for (buffer, at) in out.buffers.iter_mut().zip(&used) {
            buffer.after |= others.iter().any(|b| b.touches(*at));
        }
        out.number_axes();
        out
    }

    /// Puts a work after it, which is one of the same program.
    pub(super) fn append(&mut self, next: &Stream) {
        let start = self.blocks.len();
        let mut numbers = Vec::with_capacity(next.buffers.len());
        for buffer in &next.buffers {
            let known = self.buffer(&buffer.name).unwrap_or_else(|| {
                self.buffers.push(super::StreamBuffer { before: false, after: false, ..buffer.clone() });
                self.buffers.len() - 1
            });
            numbers.push(known);
        }
        self.blocks.extend(next.blocks.iter().map(|b| b.renumbered(&|old| numbers[old])));
        let moved = |t: &Tiled| Tiled { from: t.from + start, to: t.to + start, contraction: t.contraction.clone() };
        self.tiled.extend(next.tiled.iter().map(moved));
    }

    /// Numbers the axes: iterators that index one dimension of a buffer share one.
    pub fn number_axes(&mut self) {
        let mut starts = Vec::new();
        let mut total = 0;
        for b in &self.blocks {
            starts.push(total);
            total += b.iters.len();
        }
        let mut of: Vec<usize> = (0..total).collect();
        // Of each place of a buffer the iterators that index it.
        let mut members: std::collections::BTreeMap<(usize, (usize, u8)), Vec<usize>> = Default::default();
        for (b, start) in self.blocks.iter().zip(&starts) {
            for access in b.accesses() {
                let mut seen = Vec::new();
                for (at, dim) in access.dims.iter().enumerate() {
                    let place = access.dimension(at);
                    if let (Some(i), false) = (dim, seen.contains(&place)) {
                        members.entry((access.buffer, place)).or_default().push(start + i);
                    }
                    seen.push(place);
                }
            }
        }
        loop {
            let mut changed = false;
            for all in members.values() {
                let Some(least) = all.iter().map(|m| of[*m]).min() else { continue };
                for m in all {
                    changed |= of[*m] != least;
                    of[*m] = least;
                }
            }
            if !changed {
                break;
            }
        }
        for (b, start) in self.blocks.iter_mut().zip(&starts) {
            for (i, iter) in b.iters.iter_mut().enumerate() {
                iter.axis = of[start + i];
            }
        }
    }
}
