//! A tile in shared memory: where its elements are, and how the block fills it.
use super::gathered::{Chosen, Gathering};
use super::{add, both, c, div, less, mul, rem, thread, Builder, Cond, Index, LocalVar, Unroll};
use crate::kernel::{ArrayId, Space, Stmt};
use crate::lower::index::{scaled, sum, xor};
use satune_ir::term::tensor::{mma_conditions, CopyOrder, TileLayout, Turn};
use satune_ir::DType;
use std::rc::Rc;

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
    /// Where chunks stand in a row, and what the row gives for that.
    pub layout: TileLayout,
    pub turn: Turn,
}

/// A place in a tile: what differs between threads, and what does not.
pub(super) struct TileIndex {
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

    /// Elements from one row to the next.
    pub fn pitch(&self) -> i64 {
        self.layout.pitch(self.columns, self.dtype, self.turn)
    }

    pub fn chunks(&self) -> i64 {
        self.columns / self.chunk()
    }

    /// Chunks that the layout exchanges with each other.
    fn span(&self) -> i64 {
        self.layout.span(self.chunks())
    }

    /// Rows after which the layout repeats.
    pub fn period(&self) -> i64 {
        match (self.layout, self.turn) {
            (TileLayout::Plain | TileLayout::Padded, _) => 1,
            (_, Turn::Rows) => 8,
            (_, Turn::Quads) => 4,
            (_, Turn::Bytes) => 16,
        }
    }

    /// What the row gives, below the span: [`Turn::of_row`] of an expression.
    fn turned(&self, row: &Index) -> Index {
        let span = self.span();
        let low = |a: Index| rem(a, span);
        match self.turn {
            Turn::Rows => low(div(row.clone(), 8 / span)),
            Turn::Quads => low(mul(rem(row.clone(), 4), 2)),
            Turn::Bytes => low(add(rem(row.clone(), 2), mul(rem(div(row.clone(), 4), 4), 2))),
        }
    }

    /// Where a chunk of a row stands: [`TileLayout::place`] of expressions.
    fn stands(&self, row: &Index, chunk: Index) -> Index {
        let span = self.span();
        match self.layout {
            TileLayout::Plain | TileLayout::Padded => chunk,
            TileLayout::Xor(_) => xor(chunk, self.turned(row)),
            TileLayout::Rotate(_) if span == 1 => chunk,
            TileLayout::Rotate(_) if span == self.chunks() => rem(add(chunk, self.turned(row)), span),
            TileLayout::Rotate(_) => {
                let first = mul(div(chunk.clone(), span), span);
                add(first, rem(add(chunk, self.turned(row)), span))
            }
        }
    }

    /// (number of the base, base, constant): the place's element is `base + constant`; places of equal number, row,
    /// chunk and element have equal bases.
    pub fn address(&self, place: &TileIndex) -> (i64, Index, i64) {
        let span = self.span();
        let key = place.chunks % span;
        let chunk = self.stands(&place.row, add(place.chunk.clone(), c(key)));
        let row = mul(place.row.clone(), self.pitch());
        let base = add(add(row, mul(chunk, self.chunk())), place.within.clone());
        (key, base, self.offset + place.rows * self.pitch() + (place.chunks - key) * self.chunk())
    }

    /// The element at a row and column.
    pub fn element(&self, row: &Index, column: &Index) -> Index {
        let within = rem(column.clone(), self.chunk());
        let chunk = self.stands(row, div(column.clone(), self.chunk()));
        add(add(add(mul(row.clone(), self.pitch()), mul(chunk, self.chunk())), within), c(self.offset))
    }
}

/// Copies one operand's tiles from global memory.
pub(super) struct Filler {
    tile: Tile,
    source: Source,
    threads: i64,
    /// What is not copied in a loop, per copy of a thread.
    copies: Vec<Copy>,
    /// Else the loop: its counter, the number of its copies.
    rolled: Option<(LocalVar, i64)>,
    /// Elements of global memory from one tile along k to the next.
    step: i64,
    /// Registers in which a tile waits on its way.
    waiting: Option<ArrayId>,
}

/// A copy of a thread: where it reads, index in the tile, whether it exists for the thread.
struct Copy {
    from: From,
    to: Index,
    exists: Cond,
}

/// Where a copy reads.
enum From {
    /// Index in global memory at the first tile, and position along k.
    Matrix { first: Index, k: Index },
    /// A factor that is gathered.
    Gathered(Chosen),
}

/// What a tile of an operand covers, and how it is copied.
#[derive(Clone)]
pub(super) struct Source {
    pub array: ArrayId,
    /// The product's first element.
    pub origin: Index,
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
    pub order: CopyOrder,
    pub rolled: bool,
    pub prefetch: u32,
    /// By way of registers, in which a tile waits.
    pub through_registers: bool,
    /// How its elements are gathered, where memory does not hold the matrix.
    pub gathered: Option<Rc<Gathering>>,
}

impl Source {
    /// Elements of a row in global memory.
    fn pitch(&self) -> i64 {
        if self.k_rows {
            self.extent
        } else {
            self.k
        }
    }
}

impl Filler {
    pub fn new(builder: &mut Builder, body: &mut Vec<Stmt>, tile: Tile, source: Source, threads: i64) -> Filler {
        let total = tile.rows * (tile.columns / source.width);
        let count = (total + threads - 1) / threads;
        let step = source.tile_k * if source.k_rows { source.pitch() } else { 1 };
        let rolled = (source.rolled && count > 1).then(|| (builder.fresh(), count));
        let waiting = source.through_registers.then(|| {
            let whole = source.width * i64::from(tile.dtype.bytes()) >= 4;
            let space = if whole { Space::Fragment } else { Space::Register };
            builder.array(&format!("{}_waiting", source.name), tile.dtype, count * source.width, space, 16)
        });
        let mut filler = Filler { tile, source, threads, copies: Vec::new(), rolled, step, waiting };
        if rolled.is_none() {
            filler.copies = filler.unrolled(builder, body, (total, count));
        }
        filler
    }

    /// Whether the tile hangs over the edge of the problem.
    fn hangs_over(&self) -> bool {
        self.source.extent % if self.source.k_rows { self.tile.columns } else { self.tile.rows } != 0
    }

    /// (row, column) within the tile of a thread's copy.
    fn place(&self, i: &Index, count: i64) -> (Index, Index, Index) {
        let (width, rows, threads) = (self.source.width, self.tile.rows, self.threads);
        let per_row = self.tile.columns / width;
        let number = match self.source.order {
            CopyOrder::Own => add(mul(thread(), count), i.clone()),
            CopyOrder::Rows | CopyOrder::Columns => add(thread(), scaled(i, threads)),
        };
        // Where a round of all threads is whole rows, or columns, the place in them is the thread's, and is not computed anew.
        let (line, along) = match self.source.order {
            CopyOrder::Columns => split(&number, i, (threads, rows)),
            CopyOrder::Rows => split(&number, i, (threads, per_row)),
            CopyOrder::Own => (div(number.clone(), per_row), rem(number.clone(), per_row)),
        };
        let (row, column) = if self.source.order == CopyOrder::Columns { (along, line) } else { (line, along) };
        (row, mul(column, width), number)
    }

    /// Index in global memory of an element of the product's matrix.
    fn of_product(&self, index: Index) -> Index {
        add(self.source.origin.clone(), index)
    }

    /// Where a copy of a place in the tile reads; `name`: keeps what does not depend on the tile under a name. Beyond the edge
    /// something that exists is read; its results are not stored.
    fn global(&self, row: Index, column: Index, name: &mut dyn FnMut(&str, Index) -> Index) -> From {
        let (source, over) = (&self.source, self.hangs_over());
        let clamp = |at: Index, most: i64| match over {
            true => Index::Min(Box::new(at), Box::new(c(most))),
            false => at,
        };
        let (own, along_k) = match source.k_rows {
            true => (clamp(add(source.first.clone(), column), source.extent - source.width), row),
            false => (clamp(add(source.first.clone(), row), source.extent - 1), column),
        };
        if let Some(gathering) = &source.gathered {
            return From::Gathered(gathering.chosen(own, along_k, name));
        }
        let k = add(source.k_first.clone(), along_k);
        let place = match source.k_rows {
            true => add(mul(k.clone(), source.pitch()), own),
            false => add(mul(own, source.pitch()), k.clone()),
        };
        From::Matrix { first: name("from", self.of_product(place)), k }
    }

    /// Each copy's addresses, computed before the loop over k. What two copies share is computed once; within the problem
    /// all addresses in global memory differ from the first one's by constants.
    fn unrolled(&self, builder: &mut Builder, body: &mut Vec<Stmt>, (total, count): (i64, i64)) -> Vec<Copy> {
        let (tile, source, threads) = (&self.tile, &self.source, self.threads);
        let (width, per_row) = (source.width, tile.columns / source.width);
        let label = |part: &str| format!("{}_{part}", source.name);
        // Rows and columns that a thread's copies are apart, where that is the same for all.
        let apart = match source.order {
            CopyOrder::Rows if threads % per_row == 0 => Some((threads / per_row, 0)),
            CopyOrder::Columns if threads % tile.rows == 0 => Some((0, threads / tile.rows * width)),
            CopyOrder::Own if per_row % count == 0 && total % threads == 0 => Some((0, width)),
            _ => None,
        };
        let looked_up = self.hangs_over() || source.gathered.is_some();
        let mut copies: Vec<Copy> = Vec::new();
        let mut bases: Vec<((i64, i64), Index)> = Vec::new();
        let mut first: Option<(Index, Index)> = None;
        for i in 0..count {
            let (row, column, number) = self.place(&c(i), count);
            let may_miss = match source.order {
                CopyOrder::Own => threads * count > total,
                CopyOrder::Rows | CopyOrder::Columns => (i + 1) * threads > total,
            };
            let exists = less(may_miss, &number, total);
            let Some((rows, columns)) = apart.map(|(r, c)| (r * i, c * i)) else {
                let to = builder.bind(body, &label("to"), tile.element(&row, &column));
                let from = self.global(row, column, &mut |part, index| builder.bind(body, &label(part), index));
                copies.push(Copy { from, to, exists });
                continue;
            };
            let (row0, column0) = first.clone().unwrap_or_else(|| {
                let row = builder.bind(body, &label("row"), row);
                let column = builder.bind(body, &label("column"), column);
                (row, column)
            });
            first = Some((row0.clone(), column0.clone()));
            let from = match copies.first() {
                Some(Copy { from: From::Matrix { first, k }, .. }) if !looked_up => From::Matrix {
                    first: add(first.clone(), c(rows * source.pitch() + columns)),
                    k: add(k.clone(), c(if source.k_rows { rows } else { columns })),
                },
                _ => {
                    let (row, column) = (add(row0.clone(), c(rows)), add(column0.clone(), c(columns)));
                    self.global(row, column, &mut |part, index| builder.bind(body, &label(part), index))
                }
            };
            // Position in the tile: one base for all copies that the layout treats alike.
            let turn = rows % tile.period();
            let (chunks, within) = (columns / tile.chunk(), columns % tile.chunk());
            let whole = columns == 0 || width == tile.chunk();
            let to = if whole {
                let inside = if width == tile.chunk() { c(0) } else { rem(column0.clone(), tile.chunk()) };
                let chunk = div(column0.clone(), tile.chunk());
                let place =
                    TileIndex { row: add(row0.clone(), c(turn)), chunk, within: inside, rows: rows - turn, chunks };
                let (key, base, constant) = tile.address(&place);
                let known = bases.iter().find(|(k, _)| *k == (turn, key)).map(|(_, b)| b.clone());
                let base = known.unwrap_or_else(|| {
                    let base = builder.bind(body, &label("to"), base);
                    bases.push(((turn, key), base.clone()));
                    base
                });
                add(base, c(constant))
            } else {
                debug_assert!(within % width == 0);
                builder.bind(body, &label("to"), tile.element(&row0, &add(column0.clone(), c(columns))))
            };
            copies.push(Copy { from, to, exists });
        }
        copies
    }

    /// Whether `cp.async` can move its chunks.
    fn is_async(&self) -> bool {
        self.source.width * i64::from(self.tile.dtype.bytes()) >= 4
    }

    /// Fills a stage (`at`: its first element) with tile `number` along k; `guard`: it may lie beyond the end of k.
    pub fn fill(&self, at: &Index, number: &Index, guard: bool) -> Vec<Stmt> {
        let Some((var, count)) = self.rolled else {
            return self.copies.iter().flat_map(|copy| self.copy(copy, at, number, guard)).collect();
        };
        let total = self.tile.rows * (self.tile.columns / self.source.width);
        let (row, column, own) = self.place(&Index::Var(var), count);
        let from = self.global(row.clone(), column.clone(), &mut |_, index| index);
        let exists = less(count * self.threads > total, &own, total);
        let body = self.copy(&Copy { from, to: self.tile.element(&row, &column), exists }, at, number, guard);
        let name = format!("{}_copy", self.source.name);
        // What waits in registers waits together; `cp.async` waits for nothing.
        let unroll = if self.is_async() { Unroll::No } else { Unroll::By(mma_conditions::LOADED_TOGETHER as u32) };
        vec![Stmt::For { var, name, start: c(0), extent: c(count), unroll, body }]
    }

    /// Brings tile `number` along k to the registers in which it waits.
    pub fn fetch(&self, number: &Index, guard: bool) -> Vec<Stmt> {
        let Some(waiting) = self.waiting else { return Vec::new() };
        let width = self.source.width;
        let one = |(copy, i): (&Copy, i64)| {
            let (src_index, zero_unless) = self.from(copy, number, guard);
            let (src, dst_index) = (self.source.array, c(i * width));
            let width = width as u32;
            let fetch = Stmt::Copy { dst: waiting, dst_index, src, src_index, width, zero_unless };
            super::guarded(copy.exists.clone(), vec![fetch])
        };
        self.copies.iter().zip(0..).flat_map(one).collect()
    }

    /// Stores the tile that waits in registers to the stage at `at`.
    pub fn deposit(&self, at: &Index) -> Vec<Stmt> {
        let Some(waiting) = self.waiting else { return Vec::new() };
        let width = self.source.width;
        let one = |(copy, i): (&Copy, i64)| {
            let (dst, dst_index) = (self.tile.array, add(copy.to.clone(), at.clone()));
            let (src_index, zero_unless) = (c(i * width), Cond::True);
            let width = width as u32;
            let deposit = Stmt::Copy { dst, dst_index, src: waiting, src_index, width, zero_unless };
            super::guarded(copy.exists.clone(), vec![deposit])
        };
        self.copies.iter().zip(0..).flat_map(one).collect()
    }

    /// Where a copy of tile `number` reads, and what must hold for that.
    fn from(&self, copy: &Copy, number: &Index, guard: bool) -> (Index, Cond) {
        let source = &self.source;
        let within = |k: &Index| less(guard, &sum(k.clone(), scaled(number, source.tile_k)), source.k);
        match &copy.from {
            From::Matrix { first, k } => (sum(first.clone(), scaled(number, self.step)), within(k)),
            From::Gathered(chosen) => {
                let (index, inside) = chosen.element(number);
                (index, both(within(&add(source.k_first.clone(), chosen.k.clone())), inside))
            }
        }
    }

    fn copy(&self, copy: &Copy, at: &Index, number: &Index, guard: bool) -> Vec<Stmt> {
        let source = &self.source;
        let (src_index, zero_unless) = self.from(copy, number, guard);
        let (dst, dst_index) = (self.tile.array, add(copy.to.clone(), at.clone()));
        let src = source.array;
        let (width, prefetch) = (source.width as u32, source.prefetch);
        let statement = match self.is_async() {
            true => Stmt::AsyncCopy { dst, dst_index, src, src_index, width, prefetch, zero_unless },
            false => Stmt::Copy { dst, dst_index, src, src_index, width, zero_unless },
        };
        super::guarded(copy.exists.clone(), vec![statement])
    }
}

/// Line, and place along it, of access `number` of round `i` of so many threads, where a line has so many.
fn split(number: &Index, i: &Index, (threads, line): (i64, i64)) -> (Index, Index) {
    match threads % line {
        0 => (add(div(thread(), line), scaled(i, threads / line)), rem(thread(), line)),
        _ => (div(number.clone(), line), rem(number.clone(), line)),
    }
}
