//! `wgmma`: reads its operands and writes its accumulators as late as the model allows, at the wait that covers it.
use super::phases::swizzled;
use super::traffic::{chunks, operand_chunks};
use super::warp::tf32;
use super::{Fault, FaultKind, Mask, Runner};
use crate::kernel::{ArrayId, Descriptor, GroupOp, Left, Space, Wgmma};
use crate::simulate::memory::round;
use satune_ir::term::tensor::{wgmma_conditions, Fragment, GroupMma, Mma};
use satune_ir::DType;
use std::collections::VecDeque;

/// One instruction of one group of four warps.
struct Flight {
    op: Wgmma,
    /// First thread.
    first: usize,
    d: (ArrayId, i64),
    /// Elements in shared memory: rows of A, columns of B.
    a: Rows,
    b: (ArrayId, Vec<usize>),
    /// Accumulators as they were; `None`: those of the instruction before.
    sums: Option<Vec<f64>>,
}

/// Rows of A.
enum Rows {
    /// Elements in shared memory.
    Shared(ArrayId, Vec<usize>),
    /// What registers hold.
    Held(Vec<f64>),
}

/// A role's instructions under way.
#[derive(Default)]
pub(super) struct Flights {
    open: Vec<Flight>,
    groups: VecDeque<Vec<Flight>>,
    /// Registers of instructions so far, and whether they stand behind a fence.
    accumulators: Vec<ArrayId>,
    fenced: bool,
}

impl Flights {
    /// Something else writes registers.
    pub fn touch(&mut self, array: ArrayId) {
        if self.accumulators.contains(&array) {
            self.fenced = false;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.groups.iter().all(Vec::is_empty)
    }

    /// Whether an instruction under way has these accumulators, of the threads from `first` on.
    fn writes(&self, d: (ArrayId, i64), first: usize) -> bool {
        self.open.iter().chain(self.groups.iter().flatten()).any(|f| (f.d, f.first) == (d, first))
    }
}

impl Runner<'_> {
    pub(super) fn matrix_op(&mut self, op: &GroupOp, mask: &Mask) -> Result<(), Fault> {
        let warps = self.whole_warps(mask)?;
        let groups: Vec<usize> = warps.iter().copied().filter(|w| w % 4 == 0).collect();
        if groups.len() * 4 != warps.len() || groups.iter().any(|g| !warps.contains(&(g + 3))) {
            return Err(self.machine("wgmma by other than groups of four warps".into()));
        }
        match op {
            GroupOp::MatrixFence => self.now.matrix.fenced = true,
            GroupOp::MatrixCommit => {
                let group = std::mem::take(&mut self.now.matrix.open);
                self.now.matrix.groups.push_back(group);
            }
            GroupOp::MatrixWait(latest) => {
                while self.now.matrix.groups.len() > *latest as usize {
                    let mut flights: VecDeque<Flight> = self.now.matrix.groups.pop_front().unwrap_or_default().into();
                    while let Some(flight) = flights.pop_front() {
                        // Readable once nothing behind it is under way.
                        let (d, first) = (flight.d, flight.first);
                        let behind = flights.iter().any(|f| (f.d, f.first) == (d, first));
                        let done = !behind && !self.now.matrix.writes(d, first);
                        self.finish(flight, done)?;
                    }
                }
            }
            GroupOp::Matrix { op, d, a, b } => {
                let d = (d.0, self.constant(&d.1)?);
                self.here().matrix += warps.len() as u64;
                for group in groups {
                    self.issue(*op, d, a, b, group * 128 / 4)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Elements of an operand of a type and so many values of k, row by row (A) or column by column (B); counts its wavefronts.
    pub(super) fn operand(
        &mut self,
        (dtype, k_extent): (DType, u32),
        d: &Descriptor,
        rows: u32,
        transposed: bool,
        t: usize,
    ) -> Result<Vec<usize>, Fault> {
        let a = self.kernel.array(d.array);
        if a.space != Space::Shared || a.dtype != dtype || transposed && a.dtype.bytes() != 2 {
            return Err(self.machine(
                "a matrix instruction with an operand that is not in shared memory, of its type, or in its order"
                    .into(),
            ));
        }
        let bytes = u64::from(a.dtype.bytes());
        let base = u64::from(a.shared_offset);
        let index = self.index(&d.index)?.get(t);
        let first = base + u64::try_from(index).unwrap_or(0) * bytes;
        let (leading, stride) = (u64::from(d.leading), u64::from(d.stride));
        let span = u64::from(d.span);
        if !matches!(span, 32 | 64 | 128) || !transposed && u64::from(k_extent) * bytes > span {
            return Err(self.machine("a descriptor with a swizzle that the operand cannot have".into()));
        }
        if first % 16 != 0 || leading % 16 != 0 || stride % 16 != 0 || base % 1024 != 0 {
            return Err(self.machine("a descriptor that is not aligned".into()));
        }
        let place = |r: u64, k: u64| {
            let at = if transposed {
                let columns = span / bytes;
                r / columns * leading + k / 8 * stride + k % 8 * span + r % columns * bytes
            } else {
                r / 8 * stride + r % 8 * span + k * bytes
            };
            swizzled(first + at, span)
        };
        let (taken, least) = chunks(&operand_chunks(rows.into(), k_extent.into(), bytes, transposed, place));
        let counts = self.here();
        counts.shared_load_wavefronts += taken;
        counts.shared_load_wavefronts_ideal += least;
        let mut list = Vec::new();
        for r in 0..u64::from(rows) {
            for k in 0..u64::from(k_extent) {
                let element = (place(r, k) - base) / bytes;
                if element >= a.len {
                    let (array, kind) = (a.name.clone(), FaultKind::OutOfBounds { len: a.len });
                    return Err(Fault { kind, array, index: element as i64, block: self.block, thread: t as u32 });
                }
                list.push(element as usize);
            }
        }
        Ok(list)
    }

    fn issue(&mut self, op: Wgmma, d: (ArrayId, i64), a: &Left, b: &Descriptor, first: usize) -> Result<(), Fault> {
        let known = wgmma_conditions::multiplies(op.operand);
        if op.n % 8 != 0 || op.n == 0 || op.n > 256 || !known || self.kernel.array(d.0).dtype != op.accumulator() {
            return Err(self.machine("a wgmma that the machine does not have".into()));
        }
        if !self.now.matrix.accumulators.contains(&d.0) {
            self.now.matrix.accumulators.push(d.0);
        }
        if !self.now.matrix.fenced {
            return Err(self.machine("wgmma without a fence after its registers were touched".into()));
        }
        let of = (op.operand, op.k());
        let rows = match a {
            Left::Shared(a) => Rows::Shared(a.array, self.operand(of, a, 64, op.a_transposed, first)?),
            Left::Registers(array, at) => Rows::Held(self.held_rows(op, (*array, self.constant(at)?), first)?),
        };
        let columns = self.operand(of, b, op.n, op.b_transposed, first)?;
        let (who, fences) = (self.who(first), self.phases.fences.clone());
        let mut begin = |array: ArrayId, list: &[usize]| {
            list.iter().try_for_each(|i| self.tracked(array)?.begin_reading(&who, *i, &fences))
        };
        if let Rows::Shared(array, list) = &rows {
            begin(*array, list)?;
        }
        begin(b.array, &columns)?;
        // Instructions on the same accumulators follow each other without a wait.
        let behind = self.now.matrix.writes(d, first);
        let count = op.n / 2;
        let mut sums = Vec::new();
        for t in first..first + 128 {
            for i in 0..count {
                if !behind {
                    sums.push(self.private(d.0, d.1 + i64::from(i), 1, 0, t)?);
                }
                let at = self.register(d.0, d.1 + i64::from(i), 1, t)?;
                self.known[d.0 .0 as usize][at] = false;
            }
        }
        let sums = (!behind).then_some(sums);
        self.now.matrix.open.push(Flight { op, first, d, a: rows, b: (b.array, columns), sums });
        Ok(())
    }

    /// The rows of A that four warps hold.
    fn held_rows(&mut self, op: Wgmma, (array, at): (ArrayId, i64), first: usize) -> Result<Vec<f64>, Fault> {
        let Some(of_warp) =
            GroupMma::of_warp(op.operand).filter(|_| self.kernel.array(array).dtype == op.operand && op.a_held)
        else {
            return Err(self.machine("a wgmma with A in registers of another type".into()));
        };
        if !self.now.matrix.accumulators.contains(&array) {
            self.now.matrix.accumulators.push(array);
        }
        let (places, k) = (of_warp.places(Fragment::A), op.k() as usize);
        let count = places.len() as u32 / 32;
        let mut rows = vec![0.0; 64 * k];
        for t in 0..128_u32 {
            for i in 0..count {
                let [row, column] = places[(t % 32 * count + i) as usize];
                let row = (16 * (t / 32) + row) as usize;
                rows[row * k + column as usize] = self.private(array, at, count, i, first + t as usize)?;
            }
        }
        Ok(rows)
    }

    fn finish(&mut self, flight: Flight, done: bool) -> Result<(), Fault> {
        let Flight { op, first, d, a, b, sums } = flight;
        let who = self.who(first);
        // What follows on any path from here happens after the reads: they count as what the whole role knows.
        let known = self.now.order.as_ref().and_then(|o| o.horizon.get(who.thread as usize).copied());
        let epoch = known.unwrap_or(self.now.epoch).saturating_sub(1);
        let rounds = op.operand == DType::F32 && !self.double;
        let mut values = |(array, list): &(ArrayId, Vec<usize>)| -> Result<Vec<f64>, Fault> {
            let mut out = Vec::new();
            for i in list {
                let value = self.tracked(*array)?.end_reading(&who, *i, epoch);
                out.push(if rounds { tf32(value) } else { value });
            }
            Ok(out)
        };
        let left = match a {
            Rows::Shared(array, list) => values(&(array, list))?,
            Rows::Held(held) => held.into_iter().map(|value| if rounds { tf32(value) } else { value }).collect(),
        };
        let right = values(&b)?;
        let (k, count) = (op.k() as usize, op.n / 2);
        let (array, accumulator) = (d.0 .0 as usize, self.held(op.accumulator()));
        // Each warp has 16 rows; every eight columns are held as those of `mma.sync`.
        let places = Mma::F16.places(Fragment::D);
        for t in 0..128_u32 {
            let thread = first + t as usize;
            for i in 0..count {
                let [row, column] = places[(t % 32 * 4 + i % 4) as usize];
                let (row, column) = ((16 * (t / 32) + row) as usize, (8 * (i / 4) + column) as usize);
                let at = self.register(d.0, d.1 + i64::from(i), 1, thread)?;
                if self.known[array][at] {
                    let name = self.kernel.array(d.0).name.clone();
                    let (index, thread) = (d.1 + i64::from(i), thread as u32);
                    return Err(Fault { kind: FaultKind::InFlight, array: name, index, block: self.block, thread });
                }
                let mut sum = sums.as_ref().map_or(self.registers[array][at], |s| s[(t * count + i) as usize]);
                for j in 0..k {
                    sum = round(accumulator, sum + left[row * k + j] * right[column * k + j]);
                }
                self.registers[array][at] = sum;
            }
        }
        for t in first..first + 128 {
            for i in 0..count {
                let at = self.register(d.0, d.1 + i64::from(i), 1, t)?;
                self.known[array][at] = done;
            }
        }
        Ok(())
    }
}
