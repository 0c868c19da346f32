//! How the kernel on `wgmma` writes C: from the accumulators, or by way of shared memory and the TMA.
use super::mma_store::uncast;
use super::tile::{Place, Tile};
use super::wgmma::{Pipeline, Work, GROUP};
use super::*;
use crate::kernel::{GroupOp, Value, WarpOp};
use satune_ir::term::tensor::Turn;

impl Pipeline<'_> {
    /// The value of sum `e` of columns `8 j` and on, of a block of 64 rows, for a result (its row, column, place).
    fn value(&self, (block, j, e): (i64, i64, i64), result: [&Index; 3]) -> Value {
        let sum = Value::Load(self.sums, c(block * self.plan.tile[1] / 2 + 4 * j + e));
        epilogue::value(self.gemm, &self.params, self.plan.partial(), sum, result)
    }

    pub(super) fn store(&mut self, number: &Index, member: &Index, work: &Work) -> Vec<Stmt> {
        let (m0, n0) = (&work.m0, &work.n0);
        let first = first_result(self.gemm, &work.part, &work.batch);
        let (gemm, blocks) = (self.gemm, self.blocks());
        let [m, n, _] = self.plan.tile;
        let (over_m, over_n) = (gemm.m % m != 0, gemm.n % n != 0);
        let mut body = Vec::new();
        let first_row = add(m0.clone(), mul(self.first_block(number), 64));
        let lane = rem(member.clone(), 32);
        let warp_row = mul(div(member.clone(), 32), 16);
        let in_block = add(warp_row.clone(), div(lane.clone(), 4));
        // Where the TMA finds the places, only an epilogue that reads them needs them.
        let needed = self.staging.is_none() || gemm.epilogue.reads_bias() || gemm.epilogue.reads_residual();
        let row0 = if needed { add(first_row.clone(), in_block) } else { c(0) };
        let column0 = if needed { add(n0.clone(), mul(rem(lane.clone(), 4), 2)) } else { c(0) };
        let row0 = self.builder.bind(&mut body, "row", row0);
        let column0 = self.builder.bind(&mut body, "column", column0);
        match self.staging {
            Some(staging) => {
                let own = mul(number.clone(), blocks * 64 * n);
                // Where a lane's row of a matrix goes: row and chunk of the box.
                let (row, chunk) = match gemm.c_transposed {
                    false => (add(warp_row, rem(lane.clone(), 16)), div(lane, 16)),
                    // Matrices one after the other: rows 0 to 7, 8 to 15 of the first eight columns, then of the others.
                    true => (
                        add(rem(lane.clone(), 8), mul(div(lane.clone(), 16), 8)),
                        add(div(warp_row, 8), rem(div(lane, 8), 2)),
                    ),
                };
                self.stage_tile(&mut body, staging, (&own, &row, &chunk), (&row0, &column0, &work.batch));
                self.send_tile(&mut body, staging, member, (&own, &first_row, work));
            }
            None => {
                let paired = !gemm.c_transposed && gemm.n % 2 == 0;
                let dtype = self.builder.arrays[self.params.out.0 as usize].dtype;
                let pair = paired.then(|| self.builder.array("pair", dtype, 2, Space::Register, 16));
                for block in 0..blocks {
                    for half in 0..2 {
                        let row = add(row0.clone(), c(64 * block + 8 * half));
                        let mut stores = Vec::new();
                        for j in 0..n / 8 {
                            let column = add(column0.clone(), c(8 * j));
                            let next = add(column.clone(), c(1));
                            let [place, place_of_next] = [&column, &next].map(|at| result(gemm, &first, &row, at));
                            let low = self.value((block, j, 2 * half), [&row, &column, &place]);
                            let high = self.value((block, j, 2 * half + 1), [&row, &next, &place_of_next]);
                            let dst = self.params.out;
                            if let Some(pair) = pair {
                                let copy = Stmt::Copy {
                                    dst,
                                    dst_index: place,
                                    src: pair,
                                    src_index: c(0),
                                    width: 2,
                                    zero_unless: Cond::True,
                                };
                                let list = vec![
                                    Stmt::Store { array: pair, index: c(0), value: low },
                                    Stmt::Store { array: pair, index: c(1), value: high },
                                    copy,
                                ];
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

    /// The consumer's part of C into shared memory, in swizzled boxes: of 64 x 64, or of all its columns by 64 rows where
    /// memory has its columns as rows.
    fn stage_tile(
        &mut self,
        body: &mut Vec<Stmt>,
        staging: ArrayId,
        (own, lane_row, lane_chunk): (&Index, &Index, &Index),
        (row0, column0, batch): (&Index, &Index, &Index),
    ) {
        let (gemm, blocks) = (self.gemm, self.blocks());
        let [m, n, _] = self.plan.tile;
        let (over_m, over_n) = (gemm.m % m != 0, gemm.n % n != 0);
        let words = self.builder.array("words", gemm.output, 8, Space::Fragment, 16);
        let name = |list: &mut Vec<Stmt>, builder: &mut Builder, value| builder.bind(list, "c_lane", value);
        let member = Cond::Eq(rem(thread(), GROUP), c(0));
        // What the tile before left must have been read.
        let read = Stmt::Group(GroupOp::StoreWait { latest: 0, read: true });
        if self.total > self.grid {
            body.extend(guarded(member, vec![read]));
            body.push(self.meet(own));
        }
        let tile = Tile {
            array: staging,
            offset: 0,
            rows: if gemm.c_transposed { n } else { 64 },
            columns: 64,
            dtype: gemm.output,
            layout: TileLayout::Xor(8),
            turn: Turn::Rows,
        };
        let first = first_result(gemm, &c(0), batch);
        let mut bases: Vec<(i64, Index)> = Vec::new();
        for block in 0..blocks {
            for j in (0..n / 8).step_by(2) {
                // The last eight columns of an odd number of them have no others beside them.
                let count = if j + 1 < n / 8 { 4 } else { 2 };
                for word in 0..i64::from(count) {
                    let (at, half) = (j + word / 2, word % 2);
                    let value = |odd: i64| {
                        let row = add(row0.clone(), c(64 * block + 8 * half));
                        let column = add(column0.clone(), c(8 * at + odd));
                        // Beyond the edge something that exists is read.
                        let least = |over: bool, at: Index, most: i64| match over {
                            true => Index::Min(Box::new(at), Box::new(c(most))),
                            false => at,
                        };
                        let (row, column) = (least(over_m, row, gemm.m - 1), least(over_n, column, gemm.n - 1));
                        let place = result(gemm, &first, &row, &column);
                        uncast(self.value((block, at, 2 * half + odd), [&row, &column, &place]))
                    };
                    let (low, high) = (value(0), value(1));
                    body.push(Stmt::Warp(WarpOp::Pack { dst: (words, c(2 * word)), low, high }));
                }
                let (row, chunk) = (lane_row.clone(), lane_chunk.clone());
                let (rows, chunks, of_box) = match gemm.c_transposed {
                    false => (0, j % 8, (block * n / 64 + j / 8) * 4096),
                    true => (8 * j, 0, block * 64 * n),
                };
                let place = Place { row, chunk, within: c(0), rows, chunks };
                let (key, base, constant) = tile.address(&place);
                let known = bases.iter().find(|(k, _)| *k == key).map(|(_, b)| b.clone());
                let base = known.unwrap_or_else(|| {
                    let base = name(body, &mut self.builder, add(own.clone(), base));
                    bases.push((key, base.clone()));
                    base
                });
                let dst_index = add(base, c(constant + of_box));
                body.push(Stmt::Warp(WarpOp::StoreMatrix {
                    dst: staging,
                    dst_index,
                    src: words,
                    src_index: c(0),
                    count,
                    transposed: gemm.c_transposed,
                }));
            }
        }
    }

    /// A barrier of the consumer whose part of C begins at `own`.
    fn meet(&self, own: &Index) -> Stmt {
        let part = self.blocks() * 64 * self.plan.tile[1];
        let number = match own {
            Index::Mul(number, _) => number.as_ref().clone(),
            own => div(own.clone(), part),
        };
        Stmt::Group(GroupOp::NamedBarrier { id: add(number, c(1)), threads: GROUP as u32 })
    }

    fn send_tile(
        &mut self,
        body: &mut Vec<Stmt>,
        staging: ArrayId,
        member: &Index,
        (own, first_row, work): (&Index, &Index, &Work),
    ) {
        let (gemm, n) = (self.gemm, self.plan.tile[1]);
        body.push(Stmt::Group(GroupOp::FenceAsync));
        body.push(self.meet(own));
        let mut list = Vec::new();
        // Lines of all products follow each other.
        let line = |at: Index, of_product: i64| add(mul(work.batch.clone(), of_product), at);
        for block in 0..self.blocks() {
            let row = add(first_row.clone(), c(64 * block));
            let boxes: Vec<_> = match gemm.c_transposed {
                false => (0..n / 64)
                    .map(|j| (add(work.n0.clone(), c(64 * j)), line(row.clone(), gemm.m), (block * n / 64 + j) * 4096))
                    .collect(),
                true => vec![(row, line(work.n0.clone(), gemm.n), block * 64 * n)],
            };
            for (x, y, from) in boxes {
                let (map, src, src_index) = (2, staging, add(own.clone(), c(from)));
                list.push(Stmt::Group(GroupOp::StoreTile { map, x, y, src, src_index }));
            }
        }
        list.push(Stmt::Group(GroupOp::StoreCommit));
        body.extend(guarded(Cond::Eq(member.clone(), c(0)), list));
    }
}
