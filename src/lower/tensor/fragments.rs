//! Loads of `mma` fragments of bytes from tiles in shared memory, for either order of storage.
use super::tile::{Tile, TileIndex};
use super::{add, c, div, mul, rem, Builder, Index, OperandPlan};
use crate::kernel::{ArrayId, Mma, Space, Stmt, WarpOp};
use satune_ir::term::Side;

/// The fragments of one operand for one step along k: `blocks` of 16 rows of A or pairs of 8 columns of B, the last of which may be
/// a single one.
pub(super) struct Loader {
    side: Side,
    op: Mma,
    tile: Tile,
    /// Rows of the tile run along k.
    k_rows: bool,
    /// Fragment array: one or two sets of `blocks` fragments.
    pub fragments: ArrayId,
    /// Words of `ldmatrix` before their bytes are permuted.
    words: Option<ArrayId>,
    /// First row of A, or column of B, of the warp within the tile.
    first: Index,
    lane: Index,
    pub blocks: i64,
    /// Fragments of the last block of B are one, not two.
    is_odd: bool,
    bases: Vec<(i64, i64, Index)>,
    name: &'static str,
    /// Matrices that one `ldmatrix` loads.
    matrices: i64,
    /// Sets of fragments: one is loaded where it is multiplied, two in turn a step ahead.
    pub sets: i64,
}

/// Whether two neighbouring rows of A (columns of B) of 16 stand where rows g and g + 8 (columns g of two blocks) are
/// expected: bytes stored across k come in pairs.
pub(super) fn is_interleaved(op: Mma, k_rows: bool) -> bool {
    k_rows && op.word() == 4
}

/// Elements of a block that a lane has: a fragment, or two of B.
fn block_len(op: Mma) -> i64 {
    (op.matrices() * op.word()).into()
}

impl Loader {
    pub fn new(
        builder: &mut Builder,
        (side, name): (Side, &'static str),
        op: Mma,
        (tile, k_rows): (Tile, bool),
        (first, extent, lane): (Index, i64, Index),
        plan: &OperandPlan,
    ) -> Loader {
        let loaded = op.loaded(side);
        let (blocks, is_odd) = ((extent + loaded - 1) / loaded, extent % loaded != 0);
        let (sets, matrices) = (i64::from(plan.sets), i64::from(plan.matrices));
        let len = sets * blocks * block_len(op);
        let fragments = builder.array(&format!("{name}_fragments"), op.operand(), len, Space::Fragment, 16);
        let words = is_interleaved(op, k_rows)
            .then(|| builder.array(&format!("{name}_words"), op.operand(), 16, Space::Fragment, 16));
        Loader {
            side,
            op,
            tile,
            k_rows,
            fragments,
            words,
            first,
            lane,
            blocks,
            is_odd,
            bases: Vec::new(),
            name,
            matrices,
            sets,
        }
    }

    /// Elements of a block.
    pub fn block_len(&self) -> i64 {
        block_len(self.op)
    }

    /// Loads the fragments of step `step` of the stage at `at` into set `set`. New bases are bound in `head`.
    pub fn load(
        &mut self,
        builder: &mut Builder,
        head: &mut Vec<Stmt>,
        at: &Index,
        step: i64,
        set: &Index,
    ) -> Vec<Stmt> {
        let set = mul(self.set(set), self.blocks * self.block_len());
        (0..self.blocks)
            .flat_map(|block| {
                let to = add(set.clone(), c(block * self.block_len()));
                match self.k_rows {
                    true => self.bytes(builder, head, at, step, block, &to),
                    false => self.matrices(builder, head, at, step, block, &to),
                }
            })
            .collect()
    }

    /// The set that is in use where two would be at `set`.
    pub fn set(&self, set: &Index) -> Index {
        if self.sets == 1 {
            c(0)
        } else {
            set.clone()
        }
    }

    /// Matrices, or words, of a block.
    fn words_of(&self, block: i64) -> i64 {
        let all = i64::from(self.op.matrices());
        if self.is_odd && block + 1 == self.blocks {
            all / 2
        } else {
            all
        }
    }

    /// Index of a place: a base known by `variant` and the swizzle's number, and a constant.
    fn index(
        &mut self,
        builder: &mut Builder,
        head: &mut Vec<Stmt>,
        variant: i64,
        place: &TileIndex,
        at: &Index,
    ) -> Index {
        let (key, base, constant) = self.tile.address(place);
        let known = self.bases.iter().find(|(v, k, _)| (*v, *k) == (variant, key)).map(|(_, _, b)| b.clone());
        let base = known.unwrap_or_else(|| {
            let base = builder.bind(head, &format!("{}_lane", self.name), base);
            self.bases.push((variant, key, base.clone()));
            base
        });
        add(add(base, c(constant)), at.clone())
    }

    /// Four matrices (half of them of a single fragment of B, or of half the words of k), by one instruction or several, of
    /// what is stored along k.
    fn matrices(
        &mut self,
        builder: &mut Builder,
        head: &mut Vec<Stmt>,
        at: &Index,
        step: i64,
        block: i64,
        to: &Index,
    ) -> Vec<Stmt> {
        let all = self.words_of(block);
        let count = self.matrices.min(all);
        let mut list = Vec::new();
        for part in 0..all / count {
            let lane = self.lane.clone();
            // The number of the lane's matrix.
            let matrix = match count {
                4 => div(lane.clone(), 8),
                _ => add(rem(div(lane.clone(), 8), count), c(part * count)),
            };
            let (low, middle, high) = match count {
                1 => (rem(lane, 8), c(part % 2), c(part / 2)),
                _ => (rem(lane, 8), rem(matrix.clone(), 2), div(matrix, 2)),
            };
            // Matrix q of A: rows 8 (q % 2), k 8 (q / 2). Of B: columns 8 (q / 2), k 8 (q % 2), where k has so many.
            let by_rows = self.side == Side::A || self.op.matrices() == 2;
            let (across, along) = if by_rows { (middle, high) } else { (high, middle) };
            let row = add(self.first.clone(), add(low, mul(across, 8)));
            let chunks = i64::from(self.op.matrices()) / 2 * step;
            let place = TileIndex { row, chunk: along, within: c(0), rows: 16 * block, chunks };
            let src_index = self.index(builder, head, part, &place, at);
            let dst_index = add(to.clone(), c(part * count * i64::from(self.op.word())));
            let (src, transposed) = (self.tile.array, false);
            let count = count as u32;
            list.push(Stmt::Warp(WarpOp::LoadMatrix {
                dst: self.fragments,
                dst_index,
                src,
                src_index,
                count,
                transposed,
            }));
        }
        list
    }

    /// Bytes stored across k: matrices of 8 k, two by two (or two), give words of two columns and two k; permuted to one column
    /// and four k.
    fn bytes(
        &mut self,
        builder: &mut Builder,
        head: &mut Vec<Stmt>,
        at: &Index,
        step: i64,
        block: i64,
        to: &Index,
    ) -> Vec<Stmt> {
        let Some(words) = self.words else { return Vec::new() };
        let lane = self.lane.clone();
        let count = i64::from(self.op.matrices());
        let (low, matrix) = (rem(lane.clone(), 8), rem(div(lane, 8), count));
        // Row r of matrix q is k 4 (r / 2) + r % 2 + 2 (q % 2) + 16 (q / 2).
        let inner = add(mul(div(low.clone(), 2), 4), rem(low, 2));
        let outer = add(mul(rem(matrix.clone(), 2), 2), mul(div(matrix, 2), 16));
        let place = TileIndex {
            row: add(inner, outer),
            chunk: div(self.first.clone(), 16),
            within: c(0),
            rows: i64::from(self.op.k()) * step,
            chunks: block,
        };
        let from = self.index(builder, head, 0, &place, at);
        let (src, count) = (self.tile.array, count as u32);
        let load = WarpOp::LoadMatrix { dst: words, dst_index: c(0), src, src_index: from, count, transposed: true };
        let mut list = vec![Stmt::Warp(load)];
        // Words of a column: one for each two matrices.
        let each = i64::from(count / 2);
        for (word, odd, pair) in (0..i64::from(count)).map(|w| match self.side {
            // Words of A: even rows, odd rows, and again for the other half of k; of B: even columns, odd columns.
            Side::A => (w, w % 2, w / 2),
            Side::B => (w, w / each, w % each),
        }) {
            list.push(Stmt::Warp(WarpOp::Permute {
                dst: (self.fragments, add(to.clone(), c(4 * word))),
                low: (words, c(8 * pair)),
                high: (words, c(8 * pair + 4)),
                selector: if odd == 1 { 0x7531 } else { 0x6420 },
            }));
        }
        list
    }
}
