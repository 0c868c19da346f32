//! `tcgen05`: products read their operands and write tensor memory as late as the model allows, at the commit behind them.
use super::{Fault, Mask, Runner};
use crate::kernel::{ArrayId, Cond, Descriptor, Space, Tcgen05, TensorMemoryOp};
use crate::simulate::memory::round;
use satune_ir::term::tensor::{wgmma_conditions, Fragment, GroupMma, Mma};
use satune_ir::DType;
use std::collections::{BTreeMap, HashMap};

/// Columns of tensor memory.
const COLUMNS: usize = wgmma_conditions::COLUMNS as usize;

/// A product under way.
struct Product {
    op: Tcgen05,
    /// First column.
    column: usize,
    /// Elements in shared memory: rows of A, columns of B.
    operands: Vec<(ArrayId, Vec<usize>)>,
    adds: bool,
}

/// What a thread has multiplied since its last commit.
#[derive(Default)]
struct UnderWay {
    products: Vec<Product>,
    /// Cells of D, with what they held.
    cells: BTreeMap<(ArrayId, usize), f64>,
}

/// Tensor memory of a cluster's blocks.
#[derive(Default)]
pub(super) struct TensorMemory {
    /// Columns that a block has.
    allocated: HashMap<usize, u32>,
    /// By thread, numbered through the cluster.
    under_way: HashMap<usize, UnderWay>,
}

impl Runner<'_> {
    pub(super) fn tensor_memory_op(&mut self, op: &TensorMemoryOp, mask: &Mask) -> Result<(), Fault> {
        let threads: Vec<usize> = (0..self.threads).filter(|t| mask[*t]).collect();
        match op {
            TensorMemoryOp::FenceBefore | TensorMemoryOp::FenceAfter => Ok(()),
            TensorMemoryOp::Allocate { slot, columns } => {
                let warps = self.whole_warps(mask)?;
                let fits = columns.is_power_of_two() && (32..=COLUMNS as u32).contains(columns);
                if warps.len() != 1 || !fits || self.tensor_memory.allocated.insert(self.rank, *columns).is_some() {
                    return Err(
                        self.machine("tensor memory is asked for twice, by several warps, or so many columns".into())
                    );
                }
                let (who, at) = (self.who(threads[0]), self.index(&slot.1)?.get(threads[0]));
                let memory = self.tracked(slot.0)?;
                let at = memory.position(&who, at, 1)?;
                memory.write(&who, at, 0.0)
            }
            TensorMemoryOp::Free { columns, .. } => {
                let warps = self.whole_warps(mask)?;
                if warps.len() != 1 || self.tensor_memory.allocated.remove(&self.rank) != Some(*columns) {
                    return Err(self.machine("tensor memory is freed that the block does not have".into()));
                }
                Ok(())
            }
            TensorMemoryOp::Multiply { op, d, a, b, adds } => {
                let [t] = threads[..] else {
                    return Err(self.machine("tcgen05.mma by several threads".into()));
                };
                self.here().matrix += 1;
                let at = (d.0, self.index(&d.1)?.get(t));
                self.multiply(*op, at, [a, b], adds, t)
            }
            TensorMemoryOp::Commit { barrier, multicast } => {
                let index = self.index(&barrier.1)?;
                let blocks = multicast.as_ref().map(|mask| self.index(mask)).transpose()?;
                for t in threads {
                    self.finish_products(t)?;
                    let mask = blocks.as_ref().map_or(1 << self.rank, |blocks| blocks.get(t));
                    for rank in (0..self.blocks.len()).filter(|rank| mask >> rank & 1 == 1) {
                        self.arrive_remote(barrier.0, index.get(t), rank as i64, t)?;
                    }
                }
                self.now.epoch += u32::from(self.now.order.is_some());
                Ok(())
            }
            TensorMemoryOp::Load { dst, from, eights } => {
                let warps = self.whole_warps(mask)?;
                let (at, first) = (self.index(&from.1)?, self.constant(&dst.1)?);
                // Each eight columns are held as those of `mma.sync`.
                let places = Mma::F16.places(Fragment::D);
                for t in warps.iter().flat_map(|w| w * 32..w * 32 + 32) {
                    for i in 0..4 * eights {
                        let [row, column] = places[t % 32 * 4 + i as usize % 4];
                        let (lane, of) = (at.get(t) >> 16, at.get(t) & 0xffff);
                        let (lane, column) = (lane + i64::from(row), of + i64::from(8 * (i / 4) + column));
                        if lane / 32 != (t / 32 % 4) as i64 {
                            return Err(self.machine("a warp loads lanes of tensor memory that are another's".into()));
                        }
                        let cell = self.cell(lane, column)?;
                        let who = self.who(t);
                        let value = self.tracked(from.0)?.read(&who, cell)?;
                        self.set_private(dst.0, first + i64::from(i), 1, 0, t, value)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// The cell of a lane and a column, which the block has.
    fn cell(&self, lane: i64, column: i64) -> Result<usize, Fault> {
        let columns = self.tensor_memory.allocated.get(&self.rank).copied().unwrap_or(0);
        if !(0..128).contains(&lane) || !(0..i64::from(columns)).contains(&column) {
            return Err(self.machine(format!("lane {lane}, column {column} of {columns} columns of tensor memory")));
        }
        Ok(lane as usize * COLUMNS + column as usize)
    }

    fn multiply(
        &mut self,
        op: Tcgen05,
        (memory, at): (ArrayId, i64),
        operands: [&Descriptor; 2],
        adds: &Cond,
        t: usize,
    ) -> Result<(), Fault> {
        let known = wgmma_conditions::multiplies(op.operand);
        let is_tensor = self.kernel.array(memory).space == Space::Tensor;
        let of = operands.iter().all(|d| d.of == GroupMma::Tcgen05);
        if op.n % 16 != 0 || op.n == 0 || op.n > 256 || !known || !is_tensor || !of || at >> 16 != 0 {
            return Err(self.machine("a tcgen05.mma that the machine does not have".into()));
        }
        let adds = self.condition(adds)?[t];
        let sides = [(operands[0], Tcgen05::ROWS, op.a_transposed), (operands[1], op.n, op.b_transposed)];
        let mut operands = Vec::new();
        for (descriptor, rows, transposed) in sides {
            let list = self.operand((op.operand, op.k()), descriptor, rows, transposed, t)?;
            operands.push((descriptor.array, list));
        }
        let (who, fences, id) = (self.who(t), self.phases.fences.clone(), self.id(t));
        for (array, list) in &operands {
            for i in list {
                self.tracked(*array)?.begin_reading(&who, *i, &fences)?;
            }
        }
        let mut under_way = self.tensor_memory.under_way.remove(&id).unwrap_or_default();
        for (lane, column) in (0..128).flat_map(|lane| (0..i64::from(op.n)).map(move |column| (lane, column))) {
            let cell = (memory, self.cell(lane, at + column)?);
            if under_way.cells.contains_key(&cell) {
                continue;
            }
            let tracked = self.tracked(memory)?;
            let held = if adds { tracked.read(&who, cell.1)? } else { 0.0 };
            tracked.begin(&who, cell.1)?;
            under_way.cells.insert(cell, held);
        }
        under_way.products.push(Product { op, column: at as usize, operands, adds });
        self.tensor_memory.under_way.insert(id, under_way);
        Ok(())
    }

    /// All that the thread has multiplied is done.
    fn finish_products(&mut self, t: usize) -> Result<(), Fault> {
        let Some(UnderWay { products, mut cells }) = self.tensor_memory.under_way.remove(&self.id(t)) else {
            return Ok(());
        };
        let (who, epoch) = (self.who(t), self.now.epoch);
        for Product { op, column, operands, adds } in products {
            let rounds = op.operand == DType::F32 && !self.double;
            let mut values = Vec::new();
            for (array, list) in &operands {
                let mut side = Vec::new();
                for i in list {
                    let value = self.tracked(*array)?.end_reading(&who, *i, epoch);
                    side.push(if rounds { super::warp::tf32(value) } else { value });
                }
                values.push(side);
            }
            let (k, n, accumulator) = (op.k() as usize, op.n as usize, self.held(op.accumulator()));
            let (left, right) = (&values[0], &values[1]);
            for ((_, cell), sum) in &mut cells {
                let (lane, at) = (*cell / COLUMNS, *cell % COLUMNS);
                let Some(j) = at.checked_sub(column).filter(|j| *j < n) else { continue };
                let first = if adds { *sum } else { 0.0 };
                *sum = (0..k).fold(first, |s, i| round(accumulator, s + left[lane * k + i] * right[j * k + i]));
            }
        }
        for ((memory, cell), sum) in cells {
            self.tracked(memory)?.end(&who, cell, sum);
        }
        Ok(())
    }

    /// What must not be left of tensor memory at a cluster's end.
    pub(super) fn end_of_tensor_memory(&self) -> Result<(), Fault> {
        let TensorMemory { allocated, under_way } = &self.tensor_memory;
        match (allocated.is_empty(), under_way.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err(self.machine("the block ends with tensor memory that it has not freed".into())),
            _ => Err(self.machine("the block ends while its tcgen05.mma is under way".into())),
        }
    }
}
