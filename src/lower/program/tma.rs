//! Copies of whole tiles by the tensor memory accelerator (TMA), where a block asks for it (`satune.tma`).
//!
//! ```text
//!   for r, c in T.grid(128, 64):
//!       S[r, c] = A[row + r, column + c]      ->      one box of 128 rows and 64 columns, from (column, row) on
//! ```
//! The elements of others lie apart ([`super::places`]).
//!
//! The tile in shared memory is in boxes ([`super::boxes`]), the TMA permutes their chunks as the machine does. What of a box is beyond its
//! matrix is 0, or not stored: so conditions that say no more than that go.
use super::emit::{guarded, Emitter};
use super::error::LowerError;
use super::guards::Guarding;
use super::layout::{self, BufferLayout};
use super::leaf::unpadded;
use super::linear::Linear;
use super::nest::{Leaf, Nest, Node};
use super::places::{self, Places, Wanted};
use super::pred::Pred;
use crate::kernel::{ArrayId, GroupOp, Index, Stmt, TensorMap};
use crate::lower::index::{add, mul};
use satune_ir::{BufferId, Expr, Program, VarId};
use satune_rewrites::keys;
use std::collections::{HashMap, HashSet};

/// Where a box begins.
struct Begin {
    /// In shared memory.
    index: Index,
    /// Its coordinates, and of pixels what is added to them.
    at: Vec<Index>,
    offsets: Vec<Index>,
}

/// Rows of a box at most.
const MOST_ROWS: i64 = 256;
/// Blocks that share a tile, at most.
const MOST_SHARING: i64 = 8;
/// Bytes that rows in memory are multiples of.
const UNIT: i64 = 16;

/// A copy of a tile.
#[derive(Clone, Debug)]
pub struct Tile {
    /// Whether it goes to shared memory.
    is_load: bool,
    shared: BufferId,
    global: BufferId,
    /// The loops over its rows and columns.
    pub loops: [VarId; 2],
    extents: [i64; 2],
    /// Its first element in shared and in global memory; where it is gathered there, what tells it from others.
    first: [Vec<Linear>; 2],
    source: Source,
    /// Columns and rows of a box.
    tile: [i64; 2],
    /// The dimension of its rows in shared memory.
    row: usize,
    /// Of a cluster: which operand it is, and how many blocks have the same tile, of each box of which each brings a part.
    shared_by: Option<(usize, i64)>,
    /// Where its elements lie apart: which part of a box the block brings.
    part: Option<VarId>,
    /// Under which conditions it is stored.
    pub when: Vec<Pred>,
}

/// How global memory has it.
#[derive(Clone, Debug)]
enum Source {
    /// As a part of a matrix. The dimensions: that of columns, of rows, the others.
    Matrix(Vec<usize>),
    /// Its elements lie apart.
    Places(Box<Places>),
}

/// The copies of a nest, by statement.
#[derive(Debug, Default)]
pub struct Tiles {
    pub by_leaf: HashMap<usize, Tile>,
    /// The buffers that are seen as matrices, in the order of their maps.
    pub mapped: Vec<BufferId>,
}

impl Tiles {
    /// Where the tile begins that is brought to a shared buffer; none where it is not one.
    pub fn loaded(&self, shared: BufferId) -> Option<Vec<Linear>> {
        let mut all = self.by_leaf.values().filter(|tile| tile.is_load && tile.shared == shared);
        all.next().filter(|_| all.next().is_none()).map(|tile| tile.first[1].clone())
    }

    /// Several blocks share the tile of an operand; whether its boxes have whole parts for them.
    pub fn share(&mut self, shared: BufferId, (operand, blocks): (usize, i64)) -> bool {
        let mut all = self.by_leaf.values_mut().filter(|tile| tile.is_load && tile.shared == shared);
        all.all(|tile| {
            tile.shared_by = (blocks > 1).then_some((operand, blocks));
            tile.tile[1] % (8 * blocks) == 0
        })
    }

    /// No block shares any.
    pub fn alone(&mut self) {
        self.by_leaf.values_mut().for_each(|tile| tile.shared_by = None);
    }

    /// The buffers of the maps, with a tile of each.
    pub fn maps(&self) -> impl Iterator<Item = (&BufferId, &Tile)> {
        self.mapped.iter().filter_map(|b| Some((b, self.by_leaf.values().find(|tile| tile.global == *b)?)))
    }

    /// The shared buffer that a statement sends a tile of.
    pub fn sent(&self, leaf: usize) -> Option<BufferId> {
        self.by_leaf.get(&leaf).filter(|tile| !tile.is_load).map(|tile| tile.shared)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_leaf.is_empty()
    }

    /// Where no role brings tiles, the threads copy what was to be brought.
    pub fn without_loads(&mut self, nest: &mut Nest, program: &Program) {
        let loads: Vec<BufferId> = self.by_leaf.values().filter(|t| t.is_load).map(|t| t.global).collect();
        self.by_leaf.retain(|_, tile| !tile.is_load);
        self.mapped.retain(|b| !loads.contains(b));
        nest.notes.extend(loads.iter().map(|b| {
            let name = &program.buffer(*b).name;
            format!("{name} is not copied by the TMA: no pipelined loop has asynchronous copies of tiles, and of nothing else")
        }));
    }
}

impl Tile {
    /// Bytes that it moves.
    pub fn bytes(&self, program: &Program) -> i64 {
        self.extents[0] * self.extents[1] * i64::from(program.buffer(self.shared).dtype.bytes())
    }

    /// The parameter as the TMA sees it.
    pub fn map(&self, program: &Program, array: ArrayId) -> Result<TensorMap, LowerError> {
        let [wide, high] = self.tile;
        let tile = [wide, high / self.shared_by.map_or(1, |(_, blocks)| blocks)].map(|n| n as u32);
        let order = match &self.source {
            Source::Matrix(order) => order,
            Source::Places(places) => return Ok(places.map(array, tile)),
        };
        let (shape, strides) = layout::strided(program, self.global)?;
        let dims = order.iter().map(|d| shape[*d] as u64).collect();
        let strides = order[1..].iter().map(|d| strides[*d] as u64).collect();
        Ok(TensorMap { array, dims, strides, tile, image: None, swizzle: true })
    }
}

/// Whether a statement asks for the TMA.
pub fn asks(leaf: &Leaf) -> bool {
    leaf.annotations.contains_key(keys::TMA)
}

/// The copies that the TMA takes; the nest notes which of those that ask for it it does not.
pub fn find(
    nest: &mut Nest,
    program: &Program,
    layouts: &HashMap<BufferId, BufferLayout>,
    guarding: &HashMap<usize, Guarding>,
) -> Result<Tiles, LowerError> {
    let mut found: Vec<(usize, Tile)> = Vec::new();
    let mut notes: Vec<String> = Vec::new();
    // What accesses each buffer in global memory.
    let mut users: HashMap<BufferId, HashSet<usize>> = HashMap::new();
    let mut failed = None;
    nest.leaves(&mut |leaf, path| {
        for b in leaf.reads.iter().map(|(b, _)| *b).chain([leaf.target]) {
            users.entry(b).or_default().insert(leaf.id);
        }
        if !asks(leaf) {
            return;
        }
        let loops: Vec<(VarId, i64)> = path.iter().map(|l| (l.var, l.extent)).collect();
        match tile((leaf, &loops), nest, program, (layouts, guarding)) {
            Ok(Ok(tile)) => found.push((leaf.id, tile)),
            Ok(Err(why)) => notes.push(format!("block {} is not copied by the TMA: {why}", leaf.block)),
            Err(error) => failed = Some(error),
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let mut out = Tiles::default();
    for (leaf, tile) in found {
        let others = &users[&tile.global];
        if others.len() > 1 || out.mapped.contains(&tile.global) {
            notes.push(format!(
                "{} is not copied by the TMA: other statements access it, too",
                program.buffer(tile.global).name
            ));
            continue;
        }
        let part = matches!(tile.source, Source::Places(_)).then(|| nest.fresh(MOST_SHARING));
        out.mapped.push(tile.global);
        out.by_leaf.insert(leaf, Tile { part, ..tile });
    }
    nest.notes.extend(notes);
    Ok(out)
}

/// The tile that a statement copies; else why it is none.
fn tile(
    (leaf, path): (&Leaf, &[(VarId, i64)]),
    nest: &Nest,
    program: &Program,
    (layouts, guarding): (&HashMap<BufferId, BufferLayout>, &HashMap<usize, Guarding>),
) -> Result<Result<Tile, &'static str>, LowerError> {
    let ranges = &nest.ranges;
    let (Some((Expr::Load(..), mut zero)), Some((read, from))) = (unpadded(&leaf.value, ranges), leaf.copied()) else {
        return Ok(Err("it does more than copy"));
    };
    let is_global = |b: &BufferId| program.buffer(*b).scope == "global";
    let (shared, global, at) = match (is_global(read), is_global(&leaf.target)) {
        (true, false) => (leaf.target, *read, [&leaf.at, from]),
        (false, true) => (*read, leaf.target, [from, &leaf.at]),
        _ => return Ok(Err("it is no copy between global and shared memory")),
    };
    if program.buffer(shared).dtype != program.buffer(global).dtype {
        return Ok(Err("it changes the type"));
    }
    let Some((layout, boxes)) = layouts.get(&shared).and_then(|l| Some((l, *l.boxes()?))) else {
        return Ok(Err("its tile in shared memory is not in boxes"));
    };
    let Some([(r, rows), (c, columns)]) = path.last_chunk::<2>().copied() else {
        return Ok(Err("it is not in two loops, over rows and columns"));
    };
    let zeros = HashMap::from([(r, Linear::of(0)), (c, Linear::of(0))]);
    let mut first = at.map(|at| at.iter().map(|form| form.substitute(&zeros, ranges)).collect::<Vec<_>>());
    let moves = |side: usize, d: usize, v: VarId| at[side][d].plus(&first[side][d], -1) == Linear::var(v);
    let moved = |side: usize, v: VarId| (0..at[side].len()).filter(|d| moves(side, *d, v)).collect::<Vec<_>>();
    let still = |side: usize| (0..at[side].len()).filter(|d| at[side][*d] == first[side][*d]).count();
    let last = at[0].len();
    let Some(row_of_tile) = layout.row().filter(|d| d + 1 < last) else {
        return Ok(Err("rows and columns of its loops are not those of the tile"));
    };
    if !moves(0, row_of_tile, r) || !moves(0, last - 1, c) || still(0) + 2 != last {
        return Ok(Err("rows and columns of its loops are not those of the tile"));
    }
    let [first_row, first_column] = layout.in_matrix(&first[0]);
    let heights: Vec<i64> = (1..=rows.min(MOST_ROWS)).rev().filter(|n| rows % n == 0 && n % 8 == 0).collect();
    if heights.is_empty() || columns % boxes.columns != 0 || !first_row.multiple_of(8) {
        return Ok(Err("the tile does not consist of whole boxes"));
    }
    if !first_column.multiple_of(boxes.columns) {
        return Ok(Err("the tile does not begin with a box"));
    }
    let is_load = is_global(read);
    let (shape, strides) = layout::strided(program, global)?;
    let bytes = i64::from(program.buffer(global).dtype.bytes());
    if shape.iter().any(|n| *n >= 1 << 31) {
        return Ok(Err("a dimension has 2^31 values or more"));
    }
    let inside = |(index, n): (&Linear, &i64)| places::bounds(index, *n, ranges);
    let mut bounds: Vec<Pred> = at[1].iter().zip(&shape).flat_map(inside).collect();
    let of_matrix = match (moved(1, r).as_slice(), moved(1, c).as_slice()) {
        ([row], [column]) if *column + 1 == at[1].len() && still(1) + 2 == at[1].len() => Some([*row, *column]),
        _ => None,
    };
    let (source, high) = match of_matrix {
        Some([row, column]) => {
            let others = (0..at[1].len()).filter(|d| *d != row && *d != column);
            let order: Vec<usize> = [column, row].into_iter().chain(others).collect();
            let whole = strides.iter().take(strides.len() - 1).all(|stride| stride * bytes % UNIT == 0);
            if !whole || strides.last() != Some(&1) || order.len() > 5 {
                return Ok(Err("its rows in global memory are not multiples of 16 bytes"));
            }
            (Source::Matrix(order), heights[0])
        }
        None => {
            let Some(written) = leaf.written.as_deref().filter(|_| leaf.vthreads.is_empty()) else {
                return Ok(Err("rows and columns of its loops are not those of one matrix in global memory"));
            };
            if strides != layout::row_major(&shape) {
                return Ok(Err("its tensor in global memory has gaps"));
            }
            let wanted = Wanted {
                is_load,
                shape: &shape,
                row: row_of_tile,
                rows: &heights,
                columns: boxes.columns,
                bytes,
                ranges,
            };
            let places = match Places::of(written, &wanted) {
                Ok(places) => places,
                Err(why) => return Ok(Err(why)),
            };
            // Rows and columns behind the last are as those outside.
            let ends = [row_of_tile, last - 1].into_iter().zip(places.ends);
            bounds.extend(ends.filter_map(|(d, end)| Some(places::bounds(&at[0][d], end?, ranges))).flatten());
            let own = [row_of_tile, last - 1].map(|d| &first[0][d]);
            first[1] = own.into_iter().chain(places.same()).cloned().collect();
            let high = places.rows;
            (Source::Places(Box::new(places)), high)
        }
    };
    // The conditions of the program, but for those that a box has by itself, and which thread of several copies.
    let own = guarding.get(&leaf.id).cloned().unwrap_or_default();
    let by_block = zero.len();
    zero.extend(own.zero);
    let of_thread = |p: &Pred| nest.threads.iter().any(|t| Pred::eq(&Linear::var(t.var), ranges) == [p.clone()]);
    let when: Vec<Pred> = own.when.into_iter().filter(|p| is_load || !bounds.contains(p)).collect();
    // Where it is gathered, those of its block have been looked at.
    let seen = if matches!(source, Source::Places(..)) { by_block } else { 0 };
    if !zero[seen..].iter().all(|p| bounds.contains(p)) || !when.iter().all(of_thread) {
        return Ok(Err("a condition leaves out elements of the matrix"));
    }
    let of_block = |v: VarId| nest.thread(v).is_some_and(|t| t.block);
    let together = nest.threads.iter().filter(|t| t.tag == super::matrix::LANE_TAG);
    let uses = |pred: &dyn Fn(VarId) -> bool| first.iter().flatten().any(|form| form.uses(pred));
    if is_load && uses(&of_block) || together.into_iter().any(|t| uses(&|v| v == t.var)) {
        return Ok(Err("each thread copies another part of the tile"));
    }
    let (loops, extents, tile) = ([r, c], [rows, columns], [boxes.columns, high]);
    let (row, shared_by, part) = (row_of_tile, None, None);
    Ok(Ok(Tile { is_load, shared, global, loops, extents, first, source, tile, row, shared_by, part, when }))
}

/// Whether all that a node does is a copy that the TMA makes.
pub fn is_tile(node: &Node, tiles: &Tiles) -> Option<usize> {
    match node {
        Node::Leaf(leaf) => tiles.by_leaf.contains_key(&leaf.id).then_some(leaf.id),
        Node::Loop(l) => match l.body.as_slice() {
            [one] => is_tile(one, tiles),
            _ => None,
        },
        Node::Barrier => None,
    }
}

impl Emitter<'_> {
    /// The boxes of a tile; `part`: rows of each before those that the block brings.
    fn boxes_of(&mut self, tile: &Tile, part: &Linear) -> Result<(ArrayId, Vec<Begin>), LowerError> {
        let [rows, columns] = tile.extents;
        let [wide, high] = tile.tile;
        let (mut out, mut array) = (Vec::new(), ArrayId(0));
        for column in (0..columns).step_by(wide as usize) {
            for row in (0..rows).step_by(high as usize) {
                let mut at = tile.first[0].clone();
                let last = at.len() - 1;
                at[tile.row] = at[tile.row].shifted(row);
                at[last] = at[last].shifted(column);
                let (shared, form) = self.element(tile.shared, &at)?;
                array = shared;
                let index = self.index(shared, &form, "box");
                let [forms, offsets] = match &tile.source {
                    Source::Matrix(order) => {
                        let moved = [column, row].into_iter().chain(std::iter::repeat(0));
                        [order.iter().zip(moved).map(|(d, by)| tile.first[1][*d].shifted(by)).collect(), Vec::new()]
                    }
                    Source::Places(places) => places.at([&at[tile.row].plus(part, 1), &at[last]], &self.ranges),
                };
                let [at, offsets] = [forms, offsets]
                    .map(|list: Vec<Linear>| list.iter().map(|form| self.plain_index(form)).collect::<Vec<_>>());
                out.push(Begin { index, at, offsets });
            }
        }
        Ok((array, out))
    }

    /// The number of a tile's map.
    fn map_of(&self, tile: &Tile) -> u32 {
        self.tiles.mapped.iter().position(|b| *b == tile.global).unwrap_or_default() as u32
    }

    /// Brings a tile to shared memory; its bytes count at a barrier. By one thread.
    pub(super) fn load_tile(&mut self, tile: &Tile, barrier: &(ArrayId, Index)) -> Result<Vec<Stmt>, LowerError> {
        let (map, [wide, high]) = (self.map_of(tile), tile.tile);
        let mut data = Vec::new();
        tile.first[1].iter().for_each(|form| form.loads(&mut data));
        let mut code = self.fetched(&data, &[])?;
        // Of a shared box the block brings a part.
        let shared = self.cluster.as_ref().and_then(|cluster| {
            let (operand, blocks) = tile.shared_by?;
            Some((cluster.place(1 - operand), cluster.sharers(operand), high / blocks))
        });
        let (dst, boxes) = match (&shared, tile.part) {
            (Some((part, _, rows)), Some(var)) => {
                let first = Linear::var(var).scaled(*rows);
                self.ranges.insert(var, (0, high / rows - 1));
                self.with(var, part.clone(), |this| this.boxes_of(tile, &first))?
            }
            _ => self.boxes_of(tile, &Linear::of(0))?,
        };
        let load = |Begin { index, mut at, offsets }: Begin| {
            let (barrier, mut dst_index) = (barrier.clone(), index);
            let multicast = shared.clone().map(|(part, sharers, rows)| {
                dst_index = add(mul(part.clone(), rows * wide), dst_index.clone());
                if tile.part.is_none() {
                    at[1] = add(mul(part, rows), at[1].clone());
                }
                sharers
            });
            Stmt::Group(GroupOp::LoadTile { dst, dst_index, map, at, offsets, barrier, multicast })
        };
        code.extend(boxes.into_iter().map(load));
        self.fetched.clear();
        Ok(code)
    }

    /// Stores a tile, and waits until it has been read where nobody else does.
    pub(super) fn store_tile(&mut self, tile: &Tile) -> Result<Vec<Stmt>, LowerError> {
        let ((src, boxes), map) = (self.boxes_of(tile, &Linear::of(0))?, self.map_of(tile));
        let mut list: Vec<Stmt> = boxes
            .into_iter()
            .map(|Begin { index, at, .. }| Stmt::Group(GroupOp::StoreTile { map, at, src, src_index: index }))
            .collect();
        list.push(Stmt::Group(GroupOp::StoreCommit));
        if !self.sent.contains_key(&tile.shared) {
            list.push(Stmt::Group(GroupOp::StoreWait { latest: 0, read: true }));
        }
        let cond = self.condition(&tile.when);
        Ok(guarded(cond, list))
    }
}
