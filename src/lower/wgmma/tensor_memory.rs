//! What `tcgen05` has of its own: one thread of a consumer multiplies, the sums are in tensor memory, and the instructions say themselves
//! when a tile has been read and when the sums are there.
use super::pipeline::{Pipeline, Work, GROUP};
use super::*;
use crate::kernel::{GroupOp, Tcgen05, TensorMemoryOp, Wgmma};
use satune_ir::term::tensor::wgmma_conditions::{columns, COLUMNS};
use std::ops::Range;

/// Eights of columns of a row that a thread loads at once, at most: so many registers more or less hide the way from tensor memory.
pub(super) const EIGHTS: i64 = 4;

/// Lanes of tensor memory.
const LANES: i64 = 128;

/// From one lane to the next, in addresses.
const LANE: i64 = 1 << 16;

/// Rows of what one load brings.
const SLICE: i64 = 16;

/// Where the sums are.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    memory: ArrayId,
    columns: u32,
    /// Where their address is told, and what holds it.
    slot: ArrayId,
    told: LocalVar,
    at: LocalVar,
    /// Of a consumer's warp: the address of its first sum.
    own: Index,
    /// A barrier for each consumer: its sums are there.
    done: ArrayId,
    consumers: i64,
}

impl Sums {
    pub fn of(b: &mut Builder, gemm: &Gemm, plan: &WgmmaPlan) -> Sums {
        let consumers = i64::from(plan.consumers);
        Sums {
            memory: b.array("tensor_memory", gemm.accumulator(), LANES * COLUMNS, Space::Tensor, 4),
            columns: columns(plan.tile, plan.team()) as u32,
            done: b.array("done", DType::U64, consumers, Space::Shared, 8),
            slot: b.array("told", DType::I32, 1, Space::Shared, 8),
            told: b.fresh(),
            at: b.fresh(),
            own: c(0),
            consumers,
        }
    }

    pub fn barriers(&self) -> Vec<Stmt> {
        let one = |i| GroupOp::BarrierInit { barrier: (self.done, c(i)), arrivals: 1 };
        (0..self.consumers).map(|i| Stmt::Group(one(i))).collect()
    }

    /// The first warp asks for columns, before all meet.
    pub fn allocate(&self) -> Vec<Stmt> {
        by_first_warp(TensorMemoryOp::Allocate { slot: (self.slot, c(0)), columns: self.columns })
    }

    /// All find them, then.
    pub fn find(&self) -> Vec<Stmt> {
        let value = Value::Load(self.slot, c(0));
        // Lane 0: a column is all there is to it, which keeps addresses small numbers.
        let column = Index::And(Box::new(Index::Var(self.told)), Box::new(c(COLUMNS - 1)));
        vec![
            Stmt::Fetch { var: self.told, name: "sums_told".into(), value },
            Stmt::Let { var: self.at, name: "sums_at".into(), value: column },
        ]
    }

    /// The first warp frees them, after all have met.
    pub fn free(&self) -> Vec<Stmt> {
        by_first_warp(TensorMemoryOp::Free { at: Index::Var(self.at), columns: self.columns })
    }
}

fn by_first_warp(op: TensorMemoryOp) -> Vec<Stmt> {
    guarded(less(true, &thread(), 32), vec![stmt(op)])
}

fn stmt(op: TensorMemoryOp) -> Stmt {
    Stmt::Group(GroupOp::TensorMemory(op))
}

impl Pipeline<'_> {
    /// What a consumer does with a tile.
    pub(super) fn consume(&mut self, sums: &Sums, number: &Index, member: &Index, work: &Work) -> Vec<Stmt> {
        let [_, n, k] = self.plan.tile;
        let Wgmma { operand, a_transposed, b_transposed, .. } = self.op;
        let op = Tcgen05 { n: n as u32, operand, a_transposed, b_transposed };
        let (full, empty, blocks) = (self.full, self.empty, self.blocks());
        let size = i64::from(self.plan.cluster_size());
        let everywhere = (size > 1).then(|| c((1 << size) - 1));
        let mut list = Vec::new();
        let first = add(Index::Var(sums.at), mul(number.clone(), blocks * n));
        let first = self.builder.bind(&mut list, "sums_first", first);
        let lanes = mul(div(member.clone(), 32), self.plan.op.rows_of_warp() * LANE);
        let own = self.builder.bind(&mut list, "sums_own", add(lanes, first.clone()));
        self.memory = Some(Sums { own, ..sums.clone() });
        if let Some(order) = self.order {
            // The first consumer begins; then each when the other has issued its last instruction.
            let parity = rem(add(add(work.own_turn.clone(), number.clone()), c(1)), 2);
            list.push(Stmt::Group(GroupOp::WaitPhase { barrier: (order, number.clone()), parity }));
        }
        let mut issue = self.for_each_step(work, |this, at| {
            let barrier = (full, at.stage.clone());
            let mut list = vec![Stmt::Group(GroupOp::WaitPhase { barrier, parity: at.parity.clone() })];
            list.push(stmt(TensorMemoryOp::FenceAfter));
            for (step, block) in (0..k / i64::from(op.k())).flat_map(|step| (0..blocks).map(move |b| (step, b))) {
                let [a, b] = this.operands(number, &at.stage, (step, block));
                // The first product of a tile is not added to what was there.
                let adds = match (&at.before, step) {
                    (None, 0) => Cond::Not(Box::new(Cond::True)),
                    (Some((_, exists)), 0) => exists.clone(),
                    _ => Cond::True,
                };
                let d = (sums.memory, add(first.clone(), c(block * n)));
                list.push(stmt(TensorMemoryOp::Multiply { op, d, a, b, adds }));
            }
            let (barrier, multicast) = ((empty, at.stage.clone()), everywhere.clone());
            list.push(stmt(TensorMemoryOp::Commit { barrier, multicast }));
            list
        });
        if let Some(order) = self.order {
            let other = crate::lower::index::xor(number.clone(), c(1));
            issue.push(Stmt::Group(GroupOp::Arrive { barrier: (order, other) }));
        }
        issue.push(stmt(TensorMemoryOp::Commit { barrier: (sums.done, number.clone()), multicast: None }));
        list.extend(guarded(Cond::Eq(member.clone(), c(0)), issue));
        let parity = rem(work.own_turn.clone(), 2);
        list.push(Stmt::Group(GroupOp::WaitPhase { barrier: (sums.done, number.clone()), parity }));
        list.push(stmt(TensorMemoryOp::FenceAfter));
        list.extend(self.store(number, member, work));
        if self.total > self.grid || work.piece.is_some() {
            // The next tile's sums come where these are, when all have theirs.
            list.push(stmt(TensorMemoryOp::FenceBefore));
            let (id, threads) = (add(number.clone(), c(1)), GROUP as u32);
            list.push(Stmt::Group(GroupOp::NamedBarrier { id, threads }));
        }
        list
    }

    /// In which order sums go to C: block of rows, 16 rows of it, and eights of columns. All of a row where registers hold them; else those
    /// that a load brings.
    pub(super) fn loads(&self, eights: Range<i64>, blocks: i64) -> Vec<(i64, i64, Range<i64>)> {
        if self.memory.is_none() {
            return (0..blocks).map(|block| (block, 0, eights.clone())).collect();
        }
        let mut parts = Vec::new();
        let mut at = eights.start;
        while at < eights.end {
            // A load brings a power of two.
            let count = (1 << (eights.end - at).ilog2()).min(EIGHTS);
            parts.push(at..at + count);
            at += count;
        }
        let slices = self.plan.op.rows_of_warp() / SLICE;
        (0..blocks)
            .flat_map(|block| (0..slices).map(move |slice| (block, slice)))
            .flat_map(|(block, slice)| parts.iter().map(move |eights| (block, slice, eights.clone())))
            .collect()
    }

    /// Loads the sums of some columns of a warp's 16 rows; nothing where registers hold them.
    pub(super) fn fetch(&self, block: i64, slice: i64, eights: &Range<i64>) -> Option<Stmt> {
        let sums = self.memory.as_ref()?;
        let at = SLICE * slice * LANE + block * self.plan.tile[1] + 8 * eights.start;
        let (from, eights) = ((sums.memory, add(sums.own.clone(), c(at))), (eights.end - eights.start) as u32);
        Some(stmt(TensorMemoryOp::Load { dst: (self.sums, c(0)), from, eights }))
    }
}
