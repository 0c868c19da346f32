//! How the kernel on `mma.sync` writes C: from the fragments, or by way of shared memory.
use super::fragments::is_interleaved;
use super::mma::Mainloop;
use super::tile::{Tile, TileIndex};
use super::*;
use crate::kernel::{Value, WarpOp};
use satune_ir::term::tensor::{mma_conditions, Turn};

impl Mainloop<'_> {
    /// Row and column within the block's tile, from the thread's, of sum `e` of block (i, j).
    fn sum_place(&self, (i, j): (&Index, i64), e: i64) -> (Index, Index) {
        let (op, gemm) = (self.plan.instruction, self.gemm);
        let (g, t) = (div(self.lane.clone(), 4), rem(self.lane.clone(), 4));
        let (half, odd) = (e / 2, e % 2);
        let row = if is_interleaved(op, gemm.a_transposed) { add(mul(g, 2), c(half)) } else { add(g, c(8 * half)) };
        let column = if is_interleaved(op, !gemm.b_transposed) {
            add(mul(t, 4), c(16 * (j / 2) + 2 * odd + j % 2))
        } else {
            add(mul(t, 2), c(8 * j + odd))
        };
        let row = add(add(self.warp_m.clone(), row), mul(i.clone(), 16));
        (row, add(self.warp_n.clone(), column))
    }

    fn sum(&self, i: &Index, j: i64, e: i64) -> Value {
        let columns = self.plan.warp[1] / 8;
        Value::Load(self.sums, add(mul(i.clone(), 4 * columns), c(4 * j + e)))
    }

    fn value(&self, (i, j): (&Index, i64), e: i64, row: &Index, column: &Index) -> Value {
        self.finished(self.sum(i, j, e), row, column)
    }

    /// What is stored for a sum.
    pub(super) fn finished(&self, sum: Value, row: &Index, column: &Index) -> Value {
        let index = &self.place(row, column);
        let at = ResultPlace { batch: &self.batch, row, column, index };
        epilogue::value(self.gemm, &self.params, self.plan.split_k > 1, sum, &at)
    }

    /// Index in memory of a result, or of its partial sum.
    pub(super) fn place(&self, row: &Index, column: &Index) -> Index {
        match self.plan.split_k > 1 {
            true => result(self.gemm, &first_result(self.gemm, &self.part, &self.batch), row, column),
            false => in_memory(self.gemm, &self.batch, row, column),
        }
    }

    pub(super) fn store_direct(&mut self) -> Vec<Stmt> {
        let (gemm, plan) = (self.gemm, self.plan);
        let dtype = self.builder.arrays[self.params.out.0 as usize].dtype;
        let paired = !gemm.c_transposed
            && gemm.c_run(plan.split_k > 1) % 2 == 0
            && !is_interleaved(plan.instruction, !gemm.b_transposed);
        let packed = gemm.stores_halves() && plan.split_k == 1;
        let (blocks, columns) = (plan.warp[0] / 16, plan.warp[1] / 8);
        let (over_m, over_n) = (gemm.m % plan.tile[0] != 0, gemm.n % plan.tile[1] != 0);
        // Where lanes part, all of them pack and some store; values that read what is not there cannot be packed so.
        let partly_read = (over_m || over_n) && !self.params.reads.is_empty();
        let space = if packed { Space::Fragment } else { Space::Register };
        let in_pairs = paired && !(packed && partly_read);
        let pair = in_pairs.then(|| self.builder.array("pair", dtype, 2, space, 16));
        let var = self.builder.fresh();
        let i = if blocks == 1 { c(0) } else { Index::Var(var) };
        let mut body = Vec::new();
        for half in 0..2 {
            let (row, _) = self.sum_place((&i, 0), 2 * half);
            let row = self.builder.bind(&mut body, "row", add(self.m0.clone(), row));
            let mut stores = Vec::new();
            for j in 0..columns {
                let mut one = Vec::new();
                let e = 2 * half;
                if paired {
                    let (_, column) = self.sum_place((&i, j), e);
                    let column = self.builder.bind(&mut one, "column", add(self.n0.clone(), column));
                    let cond = both(less(over_m, &row, gemm.m), less(over_n, &column, gemm.n));
                    let Some(pair) = pair else {
                        let list = low_high(self, (&i, j), e, &row, &column);
                        one.extend(guarded(cond, list));
                        stores.extend(one);
                        continue;
                    };
                    let low = self.value((&i, j), e, &row, &column);
                    let high = self.value((&i, j), e + 1, &row, &add(column.clone(), c(1)));
                    let to = (self.params.out, self.place(&row, &column));
                    if packed {
                        one.push(Stmt::Warp(WarpOp::Pack { dst: (pair, c(0)), low: uncast(low), high: uncast(high) }));
                        one.extend(guarded(cond, vec![copy_pair(pair, to)]));
                    } else {
                        one.extend(guarded(cond, store_pair(pair, [low, high], to)));
                    }
                } else {
                    for odd in 0..2 {
                        let (_, at) = self.sum_place((&i, j), e + odd);
                        let at = add(self.n0.clone(), at);
                        let place = self.place(&row, &at);
                        let value = self.value((&i, j), e + odd, &row, &at);
                        let store = Stmt::Store { array: self.params.out, index: place, value };
                        let cond = both(less(over_m, &row, gemm.m), less(over_n, &at, gemm.n));
                        one.extend(guarded(cond, vec![store]));
                    }
                }
                stores.extend(one);
            }
            body.extend(stores);
        }
        if blocks == 1 {
            return body;
        }
        vec![Stmt::For { var, name: "i".into(), start: c(0), extent: c(blocks), unroll: Unroll::Full, body }]
    }

    /// Into the ring, swizzled or padded, and out again by rows of memory, which are C's rows or its columns.
    pub(super) fn store_shared(&mut self, stmatrix: bool) -> Vec<Stmt> {
        let (gemm, plan) = (self.gemm, self.plan);
        let [m, n, _] = plan.tile;
        let (rows, columns) = if gemm.c_transposed { (n, m) } else { (m, n) };
        let layout = mma_conditions::staged_layout(columns);
        let (array, dtype) = (self.ring, gemm.output);
        let tile = Tile { array, offset: 0, rows, columns, dtype, layout, turn: Turn::Rows };
        // Neighbours in a column are not packed.
        let packed = stmatrix || !gemm.c_transposed;
        let words = packed.then(|| self.builder.array("words", gemm.output, 8, Space::Fragment, 16));
        let (over_m, over_n) = (gemm.m % m != 0, gemm.n % n != 0);
        let mut head = Vec::new();
        // Copies end before the ring is written over, where they are asynchronous.
        let mut body: Vec<Stmt> = plan.instruction.is_async().then_some(Stmt::AsyncWait(0)).into_iter().collect();
        body.push(Stmt::Barrier);
        let mut bases: Vec<(i64, i64, Index)> = Vec::new();
        let lane = self.lane.clone();
        let value_of = |this: &Self, i: i64, block: i64, e: i64| {
            let (row, column) = this.sum_place((&c(i), block), e);
            let (row, column) = (add(this.m0.clone(), row), add(this.n0.clone(), column));
            // Beyond the edge something that exists is read.
            let least = |over: bool, at: Index, most: i64| match over {
                true => Index::Min(Box::new(at), Box::new(c(most))),
                false => at,
            };
            let (row, column) = (least(over_m, row, gemm.m - 1), least(over_n, column, gemm.n - 1));
            this.value((&c(i), block), e, &row, &column)
        };
        for i in 0..plan.warp[0] / 16 {
            for j in (0..plan.warp[1] / 8).step_by(2) {
                // Of the last column of instructions there may be no second.
                let count: i64 = if j + 1 < plan.warp[1] / 8 { 4 } else { 2 };
                for (words, word) in words.into_iter().flat_map(|words| (0..count).map(move |word| (words, word))) {
                    let (block, half) = (j + word / 2, word % 2);
                    let [low, high] = [0, 1].map(|odd| uncast(value_of(self, i, block, 2 * half + odd)));
                    body.push(Stmt::Warp(WarpOp::Pack { dst: (words, c(2 * word)), low, high }));
                }
                let mut at = |builder: &mut Builder, variant: i64, place: &TileIndex| {
                    let (key, base, constant) = tile.address(place);
                    let known = bases.iter().find(|(v, k, _)| (*v, *k) == (variant, key)).map(|(_, _, b)| b.clone());
                    let base = known.unwrap_or_else(|| {
                        let base = builder.bind(&mut head, "c_lane", base);
                        bases.push((variant, key, base.clone()));
                        base
                    });
                    add(base, c(constant))
                };
                let chunk = div(self.warp_n.clone(), 8);
                match words {
                    Some(words) if stmatrix => {
                        let transposed = gemm.c_transposed;
                        let place = if transposed {
                            // Matrices one after the other: rows 0 to 7, 8 to 15 of the first eight columns, then of the others.
                            let row =
                                add(self.warp_n.clone(), add(rem(lane.clone(), 8), mul(div(lane.clone(), 16), 8)));
                            let chunk = add(div(self.warp_m.clone(), 8), rem(div(lane.clone(), 8), 2));
                            TileIndex { row, chunk, within: c(0), rows: 8 * j, chunks: 2 * i }
                        } else {
                            let row = add(self.warp_m.clone(), rem(lane.clone(), 16));
                            let chunk = add(chunk, div(lane.clone(), 16));
                            TileIndex { row, chunk, within: c(0), rows: 16 * i, chunks: j }
                        };
                        let dst_index = at(&mut self.builder, 0, &place);
                        let (dst, src) = (self.ring, words);
                        let (src_index, count) = (c(0), count as u32);
                        let store = WarpOp::StoreMatrix { dst, dst_index, src, src_index, count, transposed };
                        body.push(Stmt::Warp(store));
                    }
                    Some(words) => {
                        for word in 0..count {
                            let row = add(self.warp_m.clone(), div(lane.clone(), 4));
                            let within = mul(rem(lane.clone(), 4), 2);
                            let rows = 16 * i + 8 * (word % 2);
                            let place = TileIndex { row, chunk: chunk.clone(), within, rows, chunks: j + word / 2 };
                            let dst_index = at(&mut self.builder, 0, &place);
                            body.push(Stmt::Copy {
                                dst: self.ring,
                                dst_index,
                                src: words,
                                src_index: c(2 * word),
                                width: 2,
                                zero_unless: Cond::True,
                            });
                        }
                    }
                    None => {
                        for (word, odd) in (0..count).flat_map(|word| [(word, 0), (word, 1)]) {
                            let row = add(self.warp_n.clone(), add(mul(rem(lane.clone(), 4), 2), c(odd)));
                            let (chunk, within) = (div(self.warp_m.clone(), 8), div(lane.clone(), 4));
                            let (rows, chunks) = (8 * (j + word / 2), 2 * i + word % 2);
                            let dst_index = at(&mut self.builder, odd, &TileIndex { row, chunk, within, rows, chunks });
                            let value = value_of(self, i, j + word / 2, 2 * (word % 2) + odd);
                            body.push(Stmt::Store { array: self.ring, index: dst_index, value });
                        }
                    }
                }
            }
        }
        body.push(Stmt::Barrier);
        let row_out = self.builder.array("row_out", gemm.output, 8, Space::Fragment, 16);
        let (per_row, total) = (tile.columns / 8, m * n / 8);
        let batch = self.batch.clone();
        let (threads, params, ring) = (self.threads, self.params.clone(), self.ring);
        let (m0, n0) = (self.m0.clone(), self.n0.clone());
        body.extend(self.builder.repeat("i", (0, (total + threads - 1) / threads), Unroll::Full, |builder, i| {
            let mut list = Vec::new();
            let number = builder.bind(&mut list, "number", add(thread(), mul(i, threads)));
            let (row, chunk) = (div(number.clone(), per_row), rem(number.clone(), per_row));
            let place = TileIndex { row: row.clone(), chunk: chunk.clone(), within: c(0), rows: 0, chunks: 0 };
            let (_, from, _) = tile.address(&place);
            let (row, column) = match gemm.c_transposed {
                false => (row, mul(chunk, 8)),
                true => (mul(chunk, 8), row),
            };
            let (row, column) = (add(m0.clone(), row), add(n0.clone(), column));
            let inside = both(less(over_m, &row, gemm.m), less(over_n, &column, gemm.n));
            let copy = |dst, dst_index, src, src_index| Stmt::Copy {
                dst,
                dst_index,
                src,
                src_index,
                width: 8,
                zero_unless: Cond::True,
            };
            let place = in_memory(gemm, &batch, &row, &column);
            let code = vec![copy(row_out, c(0), ring, from), copy(params.out, place, row_out, c(0))];
            list.extend(guarded(both(less(total % threads != 0, &number, total), inside), code));
            list
        }));
        head.extend(body);
        head
    }
}

/// Two neighbouring results stored one by one.
fn low_high(main: &Mainloop, block: (&Index, i64), e: i64, row: &Index, column: &Index) -> Vec<Stmt> {
    (0..2)
        .map(|odd| {
            let column = add(column.clone(), c(odd));
            let value = main.value(block, e + odd, row, &column);
            Stmt::Store { array: main.params.out, index: main.place(row, &column), value }
        })
        .collect()
}

/// The value before its conversion, which packing does.
pub(super) fn uncast(value: Value) -> Value {
    match value {
        Value::Cast(_, inner) => *inner,
        value => value,
    }
}
