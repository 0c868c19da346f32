//! How the kernel on `wgmma` or `tcgen05` writes C: from the accumulators, or by way of shared memory and the TMA.
use super::boxes::{Tile, TileIndex};
use super::pipeline::{Pipeline, Work, GROUP};
use super::*;
use crate::kernel::{GroupOp, Value, WarpOp};
use satune_ir::term::tensor::wgmma_conditions::{box_line, by_rows, BOXES};
use satune_ir::term::Axis;

impl Pipeline<'_> {
    /// The value of sum `e` of columns `8 j` and on, of a block of rows, for a result; `first`: of the columns that were loaded.
    fn value(&self, (block, j, e): (i64, i64, i64), first: i64, at: &ResultPlace) -> Value {
        let block = if self.memory.is_some() { 0 } else { block };
        let sum = Value::Load(self.sums, c(block * self.plan.tile[1] / 2 + 4 * (j - first) + e));
        epilogue::value(self.gemm, &self.params, self.plan.partial(), sum, at)
    }

    pub(super) fn store(&mut self, number: &Index, member: &Index, work: &Work) -> Vec<Stmt> {
        let (m0, n0) = (&work.m0, &work.n0);
        let first = first_result(self.gemm, &work.part, &work.batch);
        let (gemm, blocks) = (self.gemm, self.blocks());
        let [m, n, _] = self.plan.tile;
        let (over_m, over_n) = (gemm.m % m != 0, gemm.n % n != 0);
        let mut body = Vec::new();
        let rows = self.plan.op.rows();
        let first_row = add(m0.clone(), mul(self.first_block(number), rows));
        let lane = rem(member.clone(), 32);
        let warp_row = mul(div(member.clone(), 32), self.plan.op.rows_of_warp());
        let in_block = add(warp_row.clone(), div(lane.clone(), 4));
        // Where the TMA finds the places, only an epilogue that reads them needs them.
        let needed = self.staging.is_none() || !gemm.reads.is_empty();
        let row0 = if needed { add(first_row.clone(), in_block) } else { c(0) };
        let column0 = if needed { add(n0.clone(), mul(rem(lane.clone(), 4), 2)) } else { c(0) };
        let row0 = self.builder.bind(&mut body, "row", row0);
        let column0 = self.builder.bind(&mut body, "column", column0);
        match self.staging {
            Some(staging) => {
                let place = self.lane_in_box(lane, warp_row);
                let own = (number, mul(number.clone(), self.plan.staged(gemm.output)));
                self.store_boxes(&mut body, staging, own, member, place, [&row0, &column0, &first_row], work);
            }
            None => {
                let is_partial = self.plan.partial();
                let paired = !gemm.c_transposed && gemm.c_run(is_partial) % 2 == 0;
                let dtype = self.builder.arrays[self.params.out.0 as usize].dtype;
                let pair = paired.then(|| self.builder.array("pair", dtype, 2, Space::Register, 16));
                for (block, slice, eights) in self.loads(0..n / 8, blocks) {
                    let first_eight = if self.memory.is_some() { eights.start } else { 0 };
                    body.extend(self.fetch(block, slice, &eights));
                    for half in 0..2 {
                        let row = add(row0.clone(), c(rows * block + 16 * slice + 8 * half));
                        let mut stores = Vec::new();
                        for j in eights.clone() {
                            let column = add(column0.clone(), c(8 * j));
                            let next = add(column.clone(), c(1));
                            let [place, place_of_next] = [&column, &next].map(|at| match is_partial {
                                true => result(gemm, &first, &row, at),
                                false => in_memory(gemm, &work.batch, &row, at),
                            });
                            let at = |column, index| ResultPlace { batch: &work.batch, row: &row, column, index };
                            let low = self.value((block, j, 2 * half), first_eight, &at(&column, &place));
                            let high = self.value((block, j, 2 * half + 1), first_eight, &at(&next, &place_of_next));
                            let dst = self.params.out;
                            if let Some(pair) = pair {
                                let list = store_pair(pair, [low, high], (dst, place));
                                stores.extend(guarded(less(over_n, &column, gemm.n), list));
                            } else {
                                for (at, index, value) in [(&column, place, low), (&next, place_of_next, high)] {
                                    let store = Stmt::Store { array: dst, index, value };
                                    stores.extend(guarded(less(over_n, at, gemm.n), vec![store]));
                                }
                            }
                        }
                        body.extend(guarded(less(over_m, &row, gemm.m), stores));
                    }
                }
            }
        }
        body
    }

    /// Where in a box a lane writes: its row of a matrix, for `stmatrix`, and with results of 8 and 32 bits two neighbours that it has.
    fn lane_in_box(&self, lane: Index, warp_row: Index) -> Lane {
        let (row, chunk, within) = match (self.gemm.stores_halves(), self.gemm.c_transposed) {
            (false, _) => {
                // Pairs in a chunk.
                let (quad, pairs) = (rem(lane.clone(), 4), Tile(self.gemm.output).chunk() / 2);
                (add(warp_row, div(lane, 4)), div(quad.clone(), pairs), mul(rem(quad, pairs), 2))
            }
            (true, false) => (add(warp_row, rem(lane.clone(), 16)), div(lane, 16), c(0)),
            // Matrices one after the other: rows 0 to 7, 8 to 15 of the first eight columns, then of the others.
            (true, true) => {
                let line = add(rem(lane.clone(), 8), mul(div(lane.clone(), 16), 8));
                // A line has 64 rows of C; where there are more, as many lines follow for them.
                let (line, warp_row) = match self.memory {
                    None => (line, warp_row),
                    Some(_) => {
                        let per_line = box_line(self.gemm.output);
                        let more = mul(div(warp_row.clone(), per_line), self.plan.tile[1]);
                        (add(line, more), rem(warp_row, per_line))
                    }
                };
                (line, add(div(warp_row, 8), rem(div(lane, 8), 2)), c(0))
            }
        };
        Lane { row, chunk, within }
    }

    /// The boxes of a consumer's part of C: block of rows, and columns: a line's, or all where memory has its columns as rows.
    fn boxes(&self) -> Vec<Part> {
        let n = self.plan.tile[1];
        let width = if self.gemm.c_transposed { n } else { box_line(self.gemm.output) };
        let of_block = |block| (0..n / width).map(move |i| Part { block, from: i * width, width });
        (0..self.blocks()).flat_map(of_block).collect()
    }

    /// The consumer's part of C into shared memory, in swizzled boxes, and from there by the TMA: all boxes together, or one after the
    /// other, of which two are there.
    #[allow(clippy::too_many_arguments)]
    fn store_boxes(
        &mut self,
        body: &mut Vec<Stmt>,
        staging: ArrayId,
        (number, own): (&Index, Index),
        member: &Index,
        lane: Lane,
        [row0, column0, first_row]: [&Index; 3],
        work: &Work,
    ) {
        let held = match self.gemm.stores_halves() {
            false => self.builder.array("pair", self.gemm.output, 2, Space::Register, 16),
            true => self.builder.array("words", self.gemm.output, 8, Space::Fragment, 16),
        };
        let is_first = Cond::Eq(member.clone(), c(0));
        let id = add(number.clone(), c(1));
        let meet = Stmt::Group(GroupOp::NamedBarrier { id, threads: GROUP as u32 });
        let (by_rows, rows) = (by_rows(self.gemm), self.plan.op.rows());
        let boxes = self.boxes();
        let together = if self.plan.store == TileStore::Boxes { 1 } else { boxes.len() };
        let mut bases: Vec<(i64, Index)> = Vec::new();
        for (turn, boxes) in boxes.chunks(together).enumerate() {
            // What was there must have been read: all of the tile before, or the last box but one.
            let latest = match turn {
                0 if self.total > self.grid => Some(0),
                0 | 1 => None,
                // Threads read the last box but one before they met for the last.
                _ if by_rows => None,
                _ => Some(BOXES as u32 - 1),
            };
            if by_rows && latest.is_some() {
                body.push(meet.clone());
            } else if let Some(latest) = latest {
                let read = Stmt::Group(GroupOp::StoreWait { latest, read: true });
                body.extend(guarded(is_first.clone(), vec![read]));
                body.push(meet.clone());
            }
            let mut send = Vec::new();
            let at = |(i, one): (i64, &Part)| (i + turn as i64 % BOXES) * rows * one.width;
            for (i, one) in (0..).zip(boxes) {
                let at = at((i, one));
                self.stage_box(
                    body,
                    (staging, held),
                    (&own, &lane),
                    (one, at),
                    &mut bases,
                    [row0, column0, &work.batch],
                );
                if !by_rows {
                    send.extend(self.send_box(staging, add(own.clone(), c(at)), one, first_row, work));
                }
            }
            if by_rows {
                body.push(meet.clone());
                for (i, one) in (0..).zip(boxes) {
                    let from = (staging, add(own.clone(), c(at((i, one)))));
                    self.store_rows(body, from, one, (member, first_row), work);
                }
                continue;
            }
            send.push(GroupOp::StoreCommit);
            body.push(Stmt::Group(GroupOp::FenceAsync));
            body.push(meet.clone());
            body.extend(guarded(is_first.clone(), send.into_iter().map(Stmt::Group).collect()));
        }
    }

    /// A box from shared memory to C by the threads of a consumer: each warp its rows, of which lanes store neighbours.
    fn store_rows(
        &mut self,
        body: &mut Vec<Stmt>,
        (staging, own): (ArrayId, Index),
        one: &Part,
        (member, first_row): (&Index, &Index),
        work: &Work,
    ) {
        let rows = self.plan.op.rows_of_warp();
        let (gemm, tile) = (self.gemm, Tile(self.gemm.output));
        let [m, n, _] = self.plan.tile;
        let (lane, warp_row) = (rem(member.clone(), 32), mul(div(member.clone(), 32), rows));
        let above = add(own, mul(warp_row.clone(), one.width));
        let row = add(add(first_row.clone(), c(self.plan.op.rows() * one.block)), warp_row);
        let row = self.builder.bind(body, "c_row", row);
        for side in 0..one.width / 32 {
            let of_box = add(lane.clone(), c(32 * side));
            let column = add(add(work.n0.clone(), c(one.from)), of_box.clone());
            let column = self.builder.bind(body, "c_column", column);
            let mut stores = Vec::new();
            for i in 0..rows {
                let row = add(row.clone(), c(i));
                let index = in_memory(gemm, &work.batch, &row, &column);
                let value = Value::Load(staging, add(above.clone(), tile.element(&c(i), &of_box)));
                let store = Stmt::Store { array: self.params.out, index, value };
                stores.extend(guarded(less(gemm.m % m != 0, &row, gemm.m), vec![store]));
            }
            body.extend(guarded(less(gemm.n % n != 0, &column, gemm.n), stores));
        }
    }

    /// A box into shared memory, `at` elements from where the consumer's begin.
    fn stage_box(
        &mut self,
        body: &mut Vec<Stmt>,
        (staging, held): (ArrayId, ArrayId),
        (own, lane): (&Index, &Lane),
        (one, at): (&Part, i64),
        bases: &mut Vec<(i64, Index)>,
        [row0, column0, batch]: [&Index; 3],
    ) {
        let gemm = self.gemm;
        let [m, n, _] = self.plan.tile;
        let (over_m, over_n) = (gemm.m % m != 0, gemm.n % n != 0);
        let line = box_line(gemm.output);
        let tile = Tile(gemm.output);
        let mut place = |this: &mut Self, body: &mut Vec<Stmt>, rows: i64, chunks: i64| {
            let Lane { row, chunk, within } = lane.clone();
            let (key, base, constant) = tile.address(&TileIndex { row, chunk, within, rows, chunks });
            let known = bases.iter().find(|(k, _)| *k == key).map(|(_, b)| b.clone());
            let base = known.unwrap_or_else(|| {
                let base = this.builder.bind(body, "c_lane", add(own.clone(), base));
                bases.push((key, base.clone()));
                base
            });
            add(base, c(constant + at))
        };
        // Two neighbours of eight columns that a lane has, in one of two rows.
        let rows_of_block = self.plan.op.rows();
        let pair = |this: &Self, slice: i64, first: i64, eight: i64, half: i64| {
            [0, 1].map(|odd| {
                let row = add(row0.clone(), c(rows_of_block * one.block + 16 * slice + 8 * half));
                let column = add(column0.clone(), c(8 * eight + odd));
                // Beyond the edge something that exists is read.
                let least = |over: bool, at: Index, most: i64| match over {
                    true => Index::Min(Box::new(at), Box::new(c(most))),
                    false => at,
                };
                let (row, column) = (least(over_m, row, gemm.m - 1), least(over_n, column, gemm.n - 1));
                let index = &in_memory(gemm, batch, &row, &column);
                let at = ResultPlace { batch, row: &row, column: &column, index };
                this.value((one.block, eight, 2 * half + odd), first, &at)
            })
        };
        let eights = one.from / 8..(one.from + one.width) / 8;
        for (_, slice, eights) in self.loads(eights, 1) {
            let first = if self.memory.is_some() { eights.start } else { 0 };
            body.extend(self.fetch(one.block, slice, &eights));
            if !gemm.stores_halves() {
                for (eight, half) in eights.flat_map(|eight| [(eight, 0), (eight, 1)]) {
                    let column = 8 * (eight % (line / 8));
                    let at = place(self, body, 16 * slice + 8 * half, column / tile.chunk());
                    let at = add(at, c(column % tile.chunk()));
                    body.extend(store_pair(held, pair(self, slice, first, eight, half), (staging, at)));
                }
                continue;
            }
            for j in eights.step_by(2) {
                // The last eight columns of an odd number of them have no others beside them.
                let count = if j + 1 < n / 8 { 4 } else { 2 };
                for word in 0..i64::from(count) {
                    let [low, high] = pair(self, slice, first, j + word / 2, word % 2).map(uncast);
                    body.push(Stmt::Warp(WarpOp::Pack { dst: (held, c(2 * word)), low, high }));
                }
                // Rows of C are chunks of a line, two of sixteen.
                let (rows, chunks) = if gemm.c_transposed { (8 * j, 2 * slice) } else { (16 * slice, j % (line / 8)) };
                let dst_index = place(self, body, rows, chunks);
                let (src, src_index, transposed) = (held, c(0), gemm.c_transposed);
                body.push(Stmt::Warp(WarpOp::StoreMatrix {
                    dst: staging,
                    dst_index,
                    src,
                    src_index,
                    count,
                    transposed,
                }));
            }
        }
    }

    /// The TMA's copies of a box to memory, where lines of all products follow each other: where rows of C are elements of a line, as many
    /// as lines make up the rows.
    fn send_box(&self, src: ArrayId, src_index: Index, one: &Part, first_row: &Index, work: &Work) -> Vec<GroupOp> {
        let gemm = self.gemm;
        let line = |at: Index, of_product: i64| add(mul(work.batch.clone(), of_product), at);
        let row = add(first_row.clone(), c(self.plan.op.rows() * one.block));
        let send = |at, src_index| GroupOp::StoreTile { map: 2, at, src, src_index };
        match (&self.places, &gemm.placed, gemm.c_transposed) {
            (Some(boxes), Some(placed), _) => {
                let column = add(work.n0.clone(), c(one.from));
                let at = gathered::box_at((placed, boxes), (Axis::M, row), &work.batch, (Axis::N, column)).0;
                vec![send(at, src_index)]
            }
            (.., false) => vec![send(vec![add(work.n0.clone(), c(one.from)), line(row, gemm.m)], src_index)],
            (.., true) => (0..self.plan.op.rows() / box_line(gemm.output))
                .map(|i| {
                    let rows = i * box_line(gemm.output);
                    let at = vec![add(row.clone(), c(rows)), line(work.n0.clone(), gemm.n)];
                    send(at, add(src_index.clone(), c(rows * one.width)))
                })
                .collect(),
        }
    }
}

/// Where a lane writes in a box: row, 16-byte chunk, and element of that.
#[derive(Clone)]
struct Lane {
    row: Index,
    chunk: Index,
    within: Index,
}

/// What is stored at once of C: a block's rows, and columns.
struct Part {
    block: i64,
    from: i64,
    width: i64,
}

/// The value before its conversion, which packing does.
fn uncast(value: Value) -> Value {
    match value {
        Value::Cast(_, inner) => *inner,
        value => value,
    }
}
