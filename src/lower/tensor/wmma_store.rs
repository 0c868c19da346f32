//! How sums in fragments of `wmma` reach C: stored as they are, or by way of shared memory, where they are elements again.
use super::mma::Mainloop;
use super::mma_store::uncast;
use super::*;
use crate::kernel::{Value, WarpOp, WmmaOp};
use satune_ir::term::tensor::{mma_conditions, Mma, Wmma};

impl Mainloop<'_> {
    pub(super) fn store_wmma(&mut self, op: Wmma, by_shared: bool) -> Vec<Stmt> {
        match by_shared {
            true => self.store_staged(op),
            false => self.store_whole(op),
        }
    }

    /// The fragment of block (i, j) of the warp's tile.
    fn fragment(&self, op: Wmma, i: i64, j: i64) -> (ArrayId, Index) {
        let columns = self.plan.warp[1] / i64::from(op.extents()[1]);
        (self.sums, c((i * columns + j) * i64::from(op.sums())))
    }

    /// Each fragment to its place in C, or among the partial sums.
    fn store_whole(&mut self, op: Wmma) -> Vec<Stmt> {
        let gemm = self.gemm;
        let [m, n] = Mma::Wmma(op).block();
        let row = add(self.m0.clone(), self.warp_m.clone());
        let column = add(self.n0.clone(), self.warp_n.clone());
        let mut body = Vec::new();
        let first = self.builder.bind(&mut body, "c_warp", self.place(&row, &column));
        for i in 0..self.plan.warp[0] / m {
            for j in 0..self.plan.warp[1] / n {
                let place = add(first.clone(), c(i * m * gemm.n + j * n));
                let (dst, src) = ((self.params.out, place), self.fragment(op, i, j));
                body.push(Stmt::Warp(WarpOp::Wmma(WmmaOp::Store { op, dst, stride: gemm.n as u64, src })));
            }
        }
        body
    }

    /// Some columns of a row of fragments at a time, which each warp stages in a part of the ring's bytes of its own: lanes
    /// take them from there by rows.
    fn store_staged(&mut self, op: Wmma) -> Vec<Stmt> {
        let (gemm, warp) = (self.gemm, self.plan.warp);
        let [m, n] = Mma::Wmma(op).block();
        let (columns, pitch) = (op.staged_columns(warp[1]), op.staged_pitch(warp[1]));
        let (width, rows) = (mma_conditions::staged_width(gemm), m);
        let staged =
            self.builder.array("staged", gemm.accumulator(), self.threads / 32 * rows * pitch, Space::Shared, 128);
        let bytes = mma_conditions::staged_bytes(op, self.threads, warp[1]);
        let ring = self.stage * i64::from(self.plan.stages) * i64::from(gemm.operand.bytes());
        let ring = ring.max(bytes);
        // In the ring's bytes.
        self.builder.arrays[staged.0 as usize].shared_offset = 0;
        self.builder.shared_bytes = ring as u32;
        let halves = gemm.stores_halves() && width > 1;
        let space = if halves { Space::Fragment } else { Space::Register };
        let out = self.builder.array("row_out", gemm.output, width, space, 16);
        let read = self.builder.array("row_sums", gemm.accumulator(), width, Space::Register, 16);
        let mut body = Vec::new();
        let base = mul(div(thread(), 32), rows * pitch);
        let base = self.builder.bind(&mut body, "staged_warp", base);
        for i in 0..warp[0] / m {
            for first in (0..warp[1]).step_by(columns as usize) {
                // What was read from there before, or the ring.
                body.push(Stmt::Barrier);
                for j in 0..columns / n {
                    let dst = (staged, add(base.clone(), c(j * n)));
                    let src = self.fragment(op, i, first / n + j);
                    body.push(Stmt::Warp(WarpOp::Wmma(WmmaOp::Store { op, dst, stride: pitch as u64, src })));
                }
                body.push(Stmt::Barrier);
                let rounds = rows * columns / width / 32;
                let var = self.builder.fresh();
                let number = add(self.lane.clone(), mul(Index::Var(var), 32));
                let (row, column) = (div(number.clone(), columns / width), mul(rem(number, columns / width), width));
                let mut list = Vec::new();
                let row = self.builder.bind(&mut list, "row", row);
                let column = self.builder.bind(&mut list, "column", column);
                let at = add(base.clone(), add(mul(row.clone(), pitch), column.clone()));
                list.push(copy((read, c(0)), (staged, at), width));
                let row = add(add(self.m0.clone(), self.warp_m.clone()), add(row, c(i * m)));
                let column = add(add(self.n0.clone(), self.warp_n.clone()), add(column, c(first)));
                let (over_m, over_n) = (gemm.m % self.plan.tile[0] != 0, gemm.n % self.plan.tile[1] != 0);
                let inside = both(less(over_m, &row, gemm.m), less(over_n, &column, gemm.n));
                // All lanes compute, beyond the edge with what exists; those inside store.
                let least = |over: bool, at: &Index, most: i64| match over {
                    true => Index::Min(Box::new(at.clone()), Box::new(c(most))),
                    false => at.clone(),
                };
                let exists = (least(over_m, &row, gemm.m - 1), least(over_n, &column, gemm.n - width));
                list.extend(self.finish(width, halves, (read, out), exists));
                let place = self.place(&row, &column);
                list.extend(guarded(inside, vec![copy((self.params.out, place), (out, c(0)), width)]));
                let (name, start, unroll) = ("i".into(), c(0), Unroll::Full);
                body.push(Stmt::For { var, name, start, extent: c(rounds), unroll, body: list });
            }
        }
        body
    }

    /// The results of some neighbouring sums.
    fn finish(
        &self,
        width: i64,
        halves: bool,
        (read, out): (ArrayId, ArrayId),
        (row, column): (Index, Index),
    ) -> Vec<Stmt> {
        let value = |e: i64| {
            let (sum, column) = (Value::Load(read, c(e)), add(column.clone(), c(e)));
            self.finished(sum, &row, &column)
        };
        match halves {
            true => (0..width / 2)
                .map(|pair| {
                    let (low, high) = (uncast(value(2 * pair)), uncast(value(2 * pair + 1)));
                    Stmt::Warp(WarpOp::Pack { dst: (out, c(2 * pair)), low, high })
                })
                .collect(),
            false => (0..width).map(|e| Stmt::Store { array: out, index: c(e), value: value(e) }).collect(),
        }
    }
}

fn copy((dst, dst_index): (ArrayId, Index), (src, src_index): (ArrayId, Index), width: i64) -> Stmt {
    Stmt::Copy { dst, dst_index, src, src_index, width: width as u32, zero_unless: Cond::True }
}
