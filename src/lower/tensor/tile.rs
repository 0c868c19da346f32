//! A tile in shared memory: where its elements are, and how the block fills it.
use super::{add, c, div, less, mul, rem, thread, Builder, Cond, Index};
use crate::kernel::{ArrayId, Stmt};
use crate::lower::index::xor;
use satune_ir::DType;

/// Which 16-byte chunk of a row holds which elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Swizzle {
    /// In order.
    None,
    /// Any 8 neighbouring rows hold a chunk in 8 different bank groups: `ldmatrix`.
    Rows,
    /// Four neighbouring rows, two chunks each: words of 4 x 8 elements, one per lane.
    Quads,
    /// Rows whose numbers agree in bit 1, eight of sixteen: `ldmatrix` of bytes, two rows in four.
    Bytes,
}

/// One stage of one operand's ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    /// Shared array of all tiles.
    pub array: ArrayId,
    /// First element within a stage.
    pub offset: i64,
    /// Rows.
    pub rows: i64,
    /// Elements of a row.
    pub columns: i64,
    /// Element type.
    pub dtype: DType,
    /// Order of chunks.
    pub swizzle: Swizzle,
}

/// A place in a tile: what differs between threads, and what does not.
pub(super) struct Place {
    /// Row and 16-byte chunk of the thread, and element within the chunk.
    pub row: Index,
    pub chunk: Index,
    pub within: Index,
    /// Added to row and chunk; the row's part is a multiple of the swizzle's period.
    pub rows: i64,
    pub chunks: i64,
}

impl Tile {
    /// Elements of a chunk.
    pub fn chunk(&self) -> i64 {
        16 / i64::from(self.dtype.bytes())
    }

    pub fn chunks(&self) -> i64 {
        self.columns / self.chunk()
    }

    /// Chunks that a swizzle exchanges with each other.
    fn span(&self) -> i64 {
        self.chunks().min(8)
    }

    /// Rows after which the swizzle repeats.
    pub fn period(&self) -> i64 {
        match self.swizzle {
            Swizzle::None => 1,
            Swizzle::Rows => 8,
            Swizzle::Quads => 4,
            Swizzle::Bytes => 16,
        }
    }

    /// What the chunk's number in a row is xor-ed with.
    fn mask(&self, row: &Index) -> Index {
        let span = self.span();
        let low = |a: Index| rem(a, span);
        match self.swizzle {
            Swizzle::None => c(0),
            // Rows of 128 bytes or more fill the banks alone, shorter ones 2, 4 or 8 together.
            Swizzle::Rows => low(div(row.clone(), 8 / span)),
            Swizzle::Quads => low(mul(rem(row.clone(), 4), 2)),
            Swizzle::Bytes => low(add(rem(row.clone(), 2), mul(rem(div(row.clone(), 4), 4), 2))),
        }
    }

    /// (number of the base, base, constant): the place's element is `base + constant`; places of equal number, row,
    /// chunk and element have equal bases.
    pub fn address(&self, place: &Place) -> (i64, Index, i64) {
        let span = if self.swizzle == Swizzle::None { 1 } else { self.span() };
        let key = place.chunks % span;
        let chunk = xor(add(place.chunk.clone(), c(key)), self.mask(&place.row));
        let row = mul(place.row.clone(), self.columns);
        let base = add(add(row, mul(chunk, self.chunk())), place.within.clone());
        (key, base, self.offset + place.rows * self.columns + (place.chunks - key) * self.chunk())
    }
}

/// Copies one operand's tiles from global memory.
pub(super) struct Filler {
    tile: Tile,
    from: ArrayId,
    /// Elements per copy.
    vector: i64,
    /// Per copy of a thread: index in global memory at the first tile, index in the tile, position along k, whether the
    /// copy exists for the thread.
    copies: Vec<(Index, Index, Index, Cond)>,
    /// Elements of global memory from one tile along k to the next.
    step: i64,
    tile_k: i64,
    k: i64,
}

/// What a tile of an operand covers.
pub(super) struct Source {
    pub array: ArrayId,
    pub name: &'static str,
    /// Rows of the tile run along k.
    pub k_rows: bool,
    /// First row or column of the block's tile that is not along k, and the problem's extent there.
    pub first: Index,
    pub extent: i64,
    /// First k, and the problem's extent.
    pub k_first: Index,
    pub k: i64,
    pub tile_k: i64,
    /// Elements per copy.
    pub width: i64,
}

impl Filler {
    pub fn new(builder: &mut Builder, body: &mut Vec<Stmt>, tile: Tile, source: &Source, threads: i64) -> Filler {
        // Elements of a row in global memory.
        let pitch = if source.k_rows { source.extent } else { source.k };
        let vector = source.width;
        let per_row = tile.columns / vector;
        let total = tile.rows * per_row;
        let count = (total + threads - 1) / threads;
        let mut copies = Vec::new();
        let mut bases: Vec<(i64, Index)> = Vec::new();
        let along = threads % per_row == 0;
        let (row0, column0) = (div(thread(), per_row), mul(rem(thread(), per_row), vector));
        let row0 = if along { builder.bind(body, &format!("{}_row", source.name), row0) } else { row0 };
        let column0 = if along { builder.bind(body, &format!("{}_column", source.name), column0) } else { column0 };
        for i in 0..count {
            let exists = less((i + 1) * threads > total, &add(thread(), c(i * threads)), total);
            let number = add(thread(), c(i * threads));
            let (row, column, rows) = if along {
                (row0.clone(), column0.clone(), i * (threads / per_row))
            } else {
                (div(number.clone(), per_row), mul(rem(number, per_row), vector), 0)
            };
            // Position in the tile: one base for all copies whose rows the swizzle treats alike.
            let turn = rows % tile.period();
            let chunk = div(column.clone(), tile.chunk());
            let within = if vector == tile.chunk() { c(0) } else { rem(column.clone(), tile.chunk()) };
            let place = Place { row: add(row.clone(), c(turn)), chunk, within, rows: rows - turn, chunks: 0 };
            let (_, base, constant) = tile.address(&place);
            let known = bases.iter().find(|(t, _)| along && *t == turn).map(|(_, b)| b.clone());
            let base = known.unwrap_or_else(|| {
                let base = builder.bind(body, &format!("{}_to", source.name), base);
                bases.push((turn, base.clone()));
                base
            });
            // Position in global memory. Beyond the edge something that exists is read; its results are not stored.
            let row = add(row, c(rows));
            let clamp = |at: Index, most: i64, needed: bool| match needed {
                true => Index::Min(Box::new(at), Box::new(c(most))),
                false => at,
            };
            let (from, at_k) = if source.k_rows {
                let over = source.extent % tile.columns != 0;
                let column = clamp(add(source.first.clone(), column), source.extent - vector, over);
                let k = add(source.k_first.clone(), row);
                (add(mul(k.clone(), pitch), column), k)
            } else {
                let over = source.extent % tile.rows != 0;
                let row = clamp(add(source.first.clone(), row), source.extent - 1, over);
                let k = add(source.k_first.clone(), column);
                (add(mul(row, pitch), k.clone()), k)
            };
            let from = builder.bind(body, &format!("{}_from", source.name), from);
            copies.push((from, add(base, c(constant)), at_k, exists));
        }
        let step = source.tile_k * if source.k_rows { pitch } else { 1 };
        Filler { tile, from: source.array, vector, copies, step, tile_k: source.tile_k, k: source.k }
    }

    /// Whether `cp.async` can move its chunks.
    fn is_async(&self) -> bool {
        self.vector * i64::from(self.tile.dtype.bytes()) >= 4
    }

    /// Fills a stage (`at`: its first element) with tile `number` along k; `guard`: it may lie beyond the end of k.
    pub fn fill(&self, at: &Index, number: &Index, guard: bool) -> Vec<Stmt> {
        let mut list = Vec::new();
        for (from, to, k, exists) in &self.copies {
            let zero_unless = less(guard, &sum(k.clone(), scaled(number, self.tile_k)), self.k);
            let (dst, dst_index) = (self.tile.array, add(to.clone(), at.clone()));
            let (src, src_index) = (self.from, sum(from.clone(), scaled(number, self.step)));
            let width = self.vector as u32;
            let copy = match self.is_async() {
                true => Stmt::AsyncCopy { dst, dst_index, src, src_index, width, zero_unless },
                false => Stmt::Copy { dst, dst_index, src, src_index, width, zero_unless },
            };
            list.extend(super::guarded(exists.clone(), vec![copy]));
        }
        list
    }
}

/// `index * k`, summand by summand: what is constant remains one.
fn scaled(index: &Index, k: i64) -> Index {
    match index {
        Index::Add(a, b) => Index::Add(Box::new(scaled(a, k)), Box::new(scaled(b, k))),
        index => mul(index.clone(), k),
    }
}

/// `a + b`, summand by summand.
fn sum(a: Index, b: Index) -> Index {
    match b {
        Index::Add(x, y) => add(sum(a, *x), *y),
        b => add(a, b),
    }
}
