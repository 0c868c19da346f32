//! What a streaming program is: its blocks in order, and for each access which iterator indexes each dimension.
use super::Places;
use crate::term::Contraction;
use crate::{DType, Expr};

/// An iterator of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamIter {
    /// Its name in the program.
    pub name: String,
    /// Number of values, at least 1.
    pub extent: i64,
    /// Whether it is reduced over.
    pub reduce: bool,
    /// Number of its axis: iterators that index the same dimensions of the same buffers share one.
    pub axis: usize,
}

/// An element that a block loads, by expressions of its iterators: each is the variable of its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indexed {
    /// Number of the buffer.
    pub buffer: usize,
    /// One for each dimension.
    pub index: Vec<Expr>,
    /// Whether a condition decides on it: compilers do not make one load of it and another.
    pub chosen: bool,
}

/// What a block does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// One value per instance.
    Map,
    /// A reduction over its last iterators.
    Reduce,
    /// One value per spatial instance, of which only is known what it reads, not how: plain kernels compute it, or rows that it is a
    /// value of.
    Other,
    /// A nest that is bound to threads in the source: it is a kernel as it is. Its iterators are the threads, and what each does.
    Bound,
}

/// An access to a global buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Number of the buffer in [`Stream::buffers`].
    pub buffer: usize,
    /// The iterator that indexes each dimension; `None` where the index is 0 and the dimension has one element.
    pub dims: Vec<Option<usize>>,
    /// Where two iterators index one dimension of the buffer, the outer one times the inner one's extent, plus the inner
    /// one: the place of the outer one in `dims`, where the two stand as if the dimension were two.
    pub split: Option<usize>,
    /// Whether that is all there is to its indices; else `None` also stands for an index that is something else.
    pub known: bool,
}

impl Access {
    /// The buffer's dimension that a place in `dims` belongs to, and which part of it: 0 the whole, 1 the outer part, 2 the
    /// inner one.
    pub fn dimension(&self, place: usize) -> (usize, u8) {
        match self.split {
            Some(at) if place == at => (at, 1),
            Some(at) if place > at => (place - 1, if place == at + 1 { 2 } else { 0 }),
            _ => (place, 0),
        }
    }

    /// Extents of the buffer's dimensions, as far as the access reaches, from those of the iterators.
    pub fn reach(&self, extent: &dyn Fn(usize) -> i64) -> Vec<i64> {
        let mut out: Vec<i64> = Vec::with_capacity(self.dims.len());
        for (place, dim) in self.dims.iter().enumerate() {
            let here = dim.map_or(1, extent);
            match (self.dimension(place), out.last_mut()) {
                ((_, 2), Some(outer)) => *outer = outer.saturating_mul(here),
                _ => out.push(here),
            }
        }
        out
    }
}

/// Instructions of a warp for the expressions of a block, as compilers make them: what occurs twice is computed once, a product
/// that is added is part of a multiply-add, and types of 16 bits are widened, computed and rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Issued {
    /// Instructions, in halves: one that takes two values of 16 bits at once is a half for each.
    pub halves: u32,
    /// Instructions of divisions and functions.
    pub special: u32,
    /// How many `halves` more it is than of values of 16 bits by themselves, which nothing takes apart or puts together, and of which
    /// no instruction takes two.
    pub pairs: i32,
    /// Values of f32 that are rounded to f16, and to bf16: what that takes depends on the architecture.
    pub narrowed: [u32; 2],
}

impl Issued {
    /// What has been added since `before`.
    pub fn since(self, before: Issued) -> Issued {
        let narrowed = std::array::from_fn(|kind| self.narrowed[kind] - before.narrowed[kind]);
        let [halves, special] = [self.halves - before.halves, self.special - before.special];
        Issued { halves, special, pairs: self.pairs - before.pairs, narrowed }
    }

    /// Both.
    pub fn plus(self, other: Issued) -> Issued {
        let narrowed = std::array::from_fn(|kind| self.narrowed[kind] + other.narrowed[kind]);
        let [halves, special] = [self.halves + other.halves, self.special + other.special];
        Issued { halves, special, pairs: self.pairs + other.pairs, narrowed }
    }
}

/// A value that a block computes on its way to what it stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartValue {
    /// Values of one number are the same; those of another program have numbers of their own.
    pub number: usize,
    /// Whether it is an element as it is, of another type.
    pub converts: bool,
    /// Whether it varies within a row.
    pub varies: bool,
    /// Iterators that it depends on; not the last spatial one where it is the same for neighbours along that.
    pub iters: Vec<usize>,
    /// Buffers that are read for it.
    pub buffers: Vec<usize>,
    /// Instructions of its outermost operation.
    pub issued: Issued,
}

/// A block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamBlock {
    /// Its name.
    pub name: String,
    /// What it does.
    pub kind: BlockKind,
    /// Whether it is a reduction that is known, though its kernels be plain ones.
    pub sums: bool,
    /// Its iterators in the order of their loops, spatial ones first; the loops are a plain nest.
    pub iters: Vec<StreamIter>,
    /// The place of each of them among the block's own iterators: what `compute_at` makes loops for comes in that order.
    pub places: Vec<usize>,
    /// What it reads, in the order of the block's regions (a reduction's own sum is none of them).
    pub reads: Vec<Access>,
    /// Every different element that it loads, its own sum aside; none of a nest that is bound in the source.
    pub loaded: Vec<Indexed>,
    /// What it writes; of several buffers the first, and what it does to the others counts as reads.
    pub write: Access,
    /// How many stores it is.
    pub stores: usize,
    /// Whether it adds up by one operation that begins with a constant, so that threads may share it.
    pub shares: bool,
    /// Whether an instance reads the element that it writes, without saying so.
    pub updates: bool,
    /// Whether nothing is unknown of it but indices of what it reads.
    pub gathers: bool,
    /// Additions, multiplications, comparisons and the like per instance.
    pub arithmetic: u32,
    /// Divisions and functions per instance.
    pub special: u32,
    /// Both of those that do not depend on the innermost iterator: a compiler computes them once a row.
    pub per_row: [u32; 2],
    /// Instructions for an instance, and for what does not depend on the innermost iterator.
    pub issued: [Issued; 2],
    /// Of both, those that are not the same for neighbours along the last spatial iterator.
    pub apart: [Issued; 2],
    /// The same value by value, each value once: what another block has computed need not be computed again.
    pub parts: Vec<PartValue>,
    /// Type of its arithmetic.
    pub dtype: DType,
}

/// A buffer of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamBuffer {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents, row-major.
    pub dims: Vec<i64>,
    /// Whether it is a parameter of the program (else a block writes and others read it).
    pub param: bool,
    /// Whether blocks of the program touch it before these.
    pub before: bool,
    /// Whether blocks of the program touch it after these.
    pub after: bool,
}

impl StreamBuffer {
    /// Size, bytes.
    pub fn bytes(&self) -> i64 {
        self.dims.iter().fold(i64::from(self.dtype.bytes()), |n, d| n.saturating_mul(*d))
    }
}

/// A work: blocks of a program in order, and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// Blocks in order of execution.
    pub blocks: Vec<StreamBlock>,
    /// Buffers.
    pub buffers: Vec<StreamBuffer>,
    /// Whether blocks may move to others and their accesses be copied: not where one writes what an earlier one reads.
    pub pipeline: bool,
    /// Blocks that are a contraction by themselves.
    pub tiled: Vec<Tiled>,
}

/// Neighbouring blocks that are a contraction: a sum of products, and what is done with its sums. As a kernel of their own they
/// have the contraction's schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiled {
    /// Number of the first block.
    pub from: usize,
    /// One past the number of the last.
    pub to: usize,
    /// What they compute; its operands are buffers of the program.
    pub contraction: Contraction,
}

/// How the blocks of one row kernel see their iterators: rows first, then columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows.
    pub rows: i64,
    /// Elements of a row; 1 where every block has rows only.
    pub columns: i64,
    /// Elements along the innermost iterator of the columns.
    pub innermost: i64,
    /// Row iterators of each block.
    pub row_iters: usize,
}

/// How a block of a row kernel, or of a flat one, sees a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AccessForm {
    /// An element per row and column, contiguous along the columns.
    Full,
    /// A value per row.
    PerRow,
    /// A value that several rows share: some of the row iterators index it.
    SomeRows,
    /// An element per column that several rows may share: the columns and some of the row iterators, these in any order,
    /// contiguous along the columns.
    SharedRow,
    /// A value per column, the same in all rows, contiguous.
    PerColumn,
    /// A value that neighbouring columns share, those of the innermost iterator at least: iterators in their order.
    SomeColumns,
    /// One value.
    Scalar,
    /// Anything else (strided, for instance).
    Other,
}

impl StreamBlock {
    /// What it loads: what it says that it reads, and the element that it updates.
    pub fn loads(&self) -> impl Iterator<Item = &Access> {
        self.reads.iter().chain(self.updates.then_some(&self.write))
    }

    /// What it reads, and what it writes.
    pub fn accesses(&self) -> impl Iterator<Item = &Access> {
        self.reads.iter().chain([&self.write])
    }

    /// Instances.
    pub fn instances(&self) -> i64 {
        self.iters.iter().fold(1, |n, i| n.saturating_mul(i.extent))
    }

    /// Spatial iterators.
    pub fn spatial(&self) -> usize {
        self.iters.iter().filter(|i| !i.reduce).count()
    }

    /// Elements that it writes: instances, each with all that it reduces over.
    pub fn results(&self) -> i64 {
        self.iters.iter().filter(|i| !i.reduce).fold(1, |n, i| n.saturating_mul(i.extent))
    }

    /// Whether neighbours in memory belong to neighbouring results: what is summed up lies across the rows of what is read.
    pub fn sums_columns(&self) -> bool {
        let across = |access: &Access| matches!(access.dims.last(), Some(Some(i)) if !self.iters[*i].reduce);
        self.sums && self.reads.iter().any(|r| across(r) && r.dims.iter().flatten().any(|i| self.iters[*i].reduce))
    }

    /// How an access looks when the first `rows` iterators are rows and the others columns.
    pub fn form(&self, access: &Access, rows: usize) -> AccessForm {
        if !access.known {
            return AccessForm::Other;
        }
        let used: Vec<usize> = access.dims.iter().flatten().copied().collect();
        let columns: Vec<usize> = (rows..self.iters.len()).collect();
        let all: Vec<usize> = (0..self.iters.len()).collect();
        let only_rows: Vec<usize> = (0..rows).collect();
        if used == all && !columns.is_empty() {
            AccessForm::Full
        } else if used == only_rows {
            AccessForm::PerRow
        } else if used.is_empty() {
            AccessForm::Scalar
        } else if used == columns {
            AccessForm::PerColumn
        } else if used.iter().all(|i| *i < rows) && used.windows(2).all(|w| w[0] < w[1]) {
            AccessForm::SomeRows
        } else if used.ends_with(&columns) && !columns.is_empty() {
            AccessForm::SharedRow
        } else if used.last() != columns.last() && used.windows(2).all(|w| w[0] < w[1]) {
            AccessForm::SomeColumns
        } else {
            AccessForm::Other
        }
    }
}

/// A buffer of a row kernel about which there is something to decide: where its row is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRow {
    /// Its number.
    pub buffer: usize,
    /// How the blocks access it.
    pub form: AccessForm,
    /// Whether one of the blocks makes it.
    pub made: bool,
    /// The first block that accesses it.
    pub first: usize,
    /// The last one.
    pub last: usize,
}

impl HeldRow {
    /// Whether it is held while a block runs.
    pub fn at(&self, block: usize) -> bool {
        self.first <= block && block <= self.last
    }

    /// The most that rows take of which each takes so much, all that are held while one block runs.
    pub fn most_at_once(rows: &[(HeldRow, i64)]) -> i64 {
        // There are most where one of them begins.
        let at = |block: usize| rows.iter().filter(|(row, _)| row.at(block)).map(|(_, taken)| taken).sum();
        rows.iter().map(|(row, _)| at(row.first)).max().unwrap_or(0)
    }
}

impl Stream {
    /// Number of a buffer.
    pub fn buffer(&self, name: &str) -> Option<usize> {
        self.buffers.iter().position(|b| b.name == name)
    }

    /// Whether a buffer that the kernel of blocks `from..to` writes is used after it (or by the caller).
    pub fn outlives(&self, buffer: usize, to: usize) -> bool {
        let buffer_is = &self.buffers[buffer];
        buffer_is.param
            || buffer_is.after
            || self.blocks[to..].iter().any(|b| b.reads.iter().any(|r| r.buffer == buffer))
    }

    /// Whether what a block of a kernel that ends at `to` makes is for somebody: it is the last of them, or later ones read it, or others.
    fn is_used(&self, block: usize, to: usize) -> bool {
        let made = self.blocks[block].write.buffer;
        let read = || self.blocks[block + 1..to].iter().any(|later| later.reads.iter().any(|r| r.buffer == made));
        block + 1 == to || read() || self.outlives(made, to)
    }

    /// The common shape of blocks that can share a row kernel: the rows of a reduction among them are the first iterators
    /// of all, the columns the others, with the same extents everywhere. What is reduced as a whole is one row, without row
    /// iterators. `None` where there is no reduction, or another shape, and of several blocks that may not move to each other.
    pub fn row_shape(&self, from: usize, to: usize) -> Option<Shape> {
        let blocks = self.blocks.get(from..to)?;
        let first = blocks.iter().find(|b| b.kind == BlockKind::Reduce)?;
        let row_iters = first.spatial();
        let extents = |b: &StreamBlock, range: std::ops::Range<usize>| -> Vec<i64> {
            b.iters[range].iter().map(|i| i.extent).collect()
        };
        let (rows, columns) = (extents(first, 0..row_iters), extents(first, row_iters..first.iters.len()));
        let fits = |b: &StreamBlock| {
            let n = b.iters.len();
            n >= row_iters
                && extents(b, 0..row_iters) == rows
                && (n == row_iters || extents(b, row_iters..n) == columns)
                && !b.updates
                && match b.kind {
                    BlockKind::Map => true,
                    BlockKind::Reduce => b.spatial() == row_iters,
                    BlockKind::Other => b.gathers && n == row_iters,
                    BlockKind::Bound => false,
                }
        };
        ((self.pipeline || blocks.len() == 1) && blocks.iter().all(fits)).then(|| Shape {
            rows: rows.iter().product(),
            columns: columns.iter().product(),
            innermost: columns.last().copied().unwrap_or(1),
            row_iters,
        })
    }

    /// Whether blocks `from..to` can run row by row in one kernel: every access has one of the plain forms. What a block but the
    /// last one makes is copied to memory where it outlives the kernel.
    pub fn fits_row(&self, from: usize, to: usize) -> bool {
        let Some(shape) = self.row_shape(from, to) else { return false };
        let blocks = &self.blocks[from..to];
        let fits = |(i, b): (usize, &StreamBlock)| {
            let own_form = if b.kind == BlockKind::Reduce || b.iters.len() == shape.row_iters {
                AccessForm::PerRow
            } else {
                AccessForm::Full
            };
            // A row of one kernel holds what its earlier blocks wrote of the same row, whole. What is made elsewhere a value of a row may
            // be read from anywhere.
            let plain = b.reads.iter().all(|r| {
                let form = b.form(r, shape.row_iters);
                match blocks[..i].iter().any(|p| p.write.buffer == r.buffer) {
                    true => matches!(form, AccessForm::Full | AccessForm::PerRow),
                    false => form != AccessForm::Other || b.gathers,
                }
            });
            plain && b.form(&b.write, shape.row_iters) == own_form && self.is_used(from + i, to)
        };
        // A buffer that is held is accessed twice.
        let few = blocks.iter().map(|b| b.reads.len() + 1).sum::<usize>() <= Places::MOST;
        blocks.iter().enumerate().all(fits) && (few || self.held(from, to, 2).len() <= Places::MOST)
    }

    /// Whether blocks are maps over the same elements: of several, those that may move to each other.
    pub fn same_elements(&self, from: usize, to: usize) -> bool {
        let Some(([first, others @ ..], true)) =
            self.blocks.get(from..to).map(|b| (b, self.pipeline || to == from + 1))
        else {
            return false;
        };
        let extents = |b: &StreamBlock| -> Vec<i64> { b.iters.iter().map(|i| i.extent).collect() };
        let alike = |b: &StreamBlock| b.kind == BlockKind::Map && extents(b) == extents(first);
        first.kind == BlockKind::Map && others.iter().all(alike)
    }

    /// Whether blocks can run as maps over all their elements: every access follows the order of the loops or ignores some of them.
    /// Of several, each writes a whole buffer by bare iterators, and all access a buffer alike: what others make at their own element.
    pub fn fits_flat(&self, from: usize, to: usize) -> bool {
        let ordered = |a: &Access| {
            let used: Vec<usize> = a.dims.iter().flatten().copied().collect();
            used.windows(2).all(|w| w[0] < w[1])
        };
        let fits = |b: &StreamBlock| {
            let all: Vec<Option<usize>> = (0..b.iters.len()).map(Some).collect();
            let whole: Vec<Option<usize>> = b.write.dims.iter().filter(|d| d.is_some()).copied().collect();
            whole == all && !b.iters.is_empty() && b.reads.iter().all(ordered)
        };
        let Some(blocks) = self.blocks.get(from..to) else { return false };
        let all = || blocks.iter().flat_map(StreamBlock::accesses);
        let shares = |b: &StreamBlock| {
            let whole: Vec<Option<usize>> = (0..b.iters.len()).map(Some).collect();
            let bare = |a: &Access| a.known && a.split.is_none() && all().all(|o| o.buffer != a.buffer || o == a);
            b.write.dims == whole && b.accesses().all(bare) && b.places.is_sorted()
        };
        let together = || blocks.iter().all(shares) && (from..to).all(|at| self.is_used(at, to));
        self.same_elements(from, to) && blocks.iter().all(fits) && (blocks.len() == 1 || together())
    }

    /// What blocks `from..to` compute, where they are a contraction by themselves.
    pub fn contraction(&self, from: usize, to: usize) -> Option<&Contraction> {
        self.tiled.iter().find(|t| (t.from, t.to) == (from, to)).map(|t| &t.contraction)
    }

    /// Whether a block is part of a contraction.
    pub fn in_contraction(&self, block: usize) -> bool {
        self.tiled.iter().any(|t| (t.from..t.to).contains(&block))
    }

    /// For a block that permutes: (iterator that is innermost where it is read, iterator that is innermost where it is
    /// written, number of the read). `None` where there is no one such read.
    pub fn transposed(&self, block: usize) -> Option<(usize, usize, usize)> {
        let b = self.blocks.get(block)?;
        let all: Vec<Option<usize>> = (0..b.iters.len()).map(Some).collect();
        let by_parts = b.accesses().any(|a| a.split.is_some());
        if b.kind != BlockKind::Map || b.write.dims != all || !self.pipeline || by_parts || b.updates {
            return None;
        }
        let inner = b.iters.len().checked_sub(1)?;
        let mut found = None;
        for (number, read) in b.reads.iter().enumerate() {
            let uses: Vec<usize> = read.dims.iter().flatten().copied().collect();
            let permutes = uses.len() == b.iters.len() && read.dims.len() == b.iters.len();
            match uses.last() {
                Some(last) if *last != inner && uses.contains(&inner) => {
                    if !permutes || found.is_some() {
                        return None;
                    }
                    found = Some((*last, inner, number));
                }
                _ => {}
            }
        }
        found
    }

    /// Buffers of a row kernel for which there is something to decide, in order: where the row is held between the blocks
    /// that read it, and whether values per column are kept for several rows. What is held is copied, where accesses may be.
    pub fn held(&self, from: usize, to: usize, rows_per_block: i64) -> Vec<(usize, AccessForm)> {
        let Some(shape) = self.row_shape(from, to).filter(|_| self.pipeline) else { return Vec::new() };
        let blocks = &self.blocks[from..to];
        let mut out = Vec::new();
        for buffer in 0..self.buffers.len() {
            let readers: Vec<AccessForm> = blocks
                .iter()
                .flat_map(|b| b.reads.iter().filter(|r| r.buffer == buffer).map(|r| b.form(r, shape.row_iters)))
                .collect();
            let written = blocks.iter().any(|b| b.write.buffer == buffer && !readers.is_empty());
            let full = readers.iter().filter(|f| **f == AccessForm::Full).count();
            if full > 1 || (full > 0 && written) {
                out.push((buffer, AccessForm::Full));
            } else if readers.contains(&AccessForm::PerColumn) && rows_per_block > 1 {
                out.push((buffer, AccessForm::PerColumn));
            }
        }
        out
    }

    /// The same of the row kernel that all blocks make, with what the decisions about them depend on: in the order in which the
    /// blocks come to them.
    pub fn rows_held(&self, several: bool) -> Vec<HeldRow> {
        let mut rows = self.rows_of(0, self.blocks.len(), 1 + i64::from(several));
        rows.sort_by_key(|row| row.first);
        rows
    }

    /// What [`Stream::held`] says, with the blocks between which each of them is held.
    pub fn rows_of(&self, from: usize, to: usize, rows_per_block: i64) -> Vec<HeldRow> {
        let row = |(buffer, form): (usize, AccessForm)| {
            let mut touch = (from..to).filter(|b| self.blocks[*b].touches(buffer));
            let first = touch.next().unwrap_or(from);
            let made = self.made_in(buffer, from, to);
            HeldRow { buffer, form, made, first, last: touch.next_back().unwrap_or(first) }
        };
        self.held(from, to, rows_per_block).into_iter().map(row).collect()
    }

    /// Whether a buffer is written by a block of `from..to`.
    pub fn made_in(&self, buffer: usize, from: usize, to: usize) -> bool {
        self.blocks[from..to].iter().any(|b| b.write.buffer == buffer)
    }
}
