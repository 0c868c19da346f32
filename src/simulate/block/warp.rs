//! Instructions of whole warps, lane by lane.
use super::{Counts, Fault, FaultKind, Ints, Mask, Runner};
use crate::kernel::{ArrayId, Index, Mma, Space, WarpOp};
use crate::simulate::memory::round;
use satune_ir::layout::Layout;
use satune_ir::machine::wavefronts;
use satune_ir::term::tensor::Fragment;
use satune_ir::DType;

/// f32 as `mma` reads it for tf32.
pub(super) fn tf32(value: f64) -> f64 {
    f64::from(f32::from_bits((value as f32).to_bits() & 0xffff_e000))
}

impl Runner<'_> {
    pub(super) fn warp_op(&mut self, op: &WarpOp, mask: &Mask) -> Result<(), Fault> {
        let warps = self.whole_warps(mask)?;
        match op {
            WarpOp::LoadMatrix { dst, dst_index, src, src_index, count, transposed } => {
                let (to, from) = (self.index(dst_index)?, self.index(src_index)?);
                self.move_matrix((*dst, &to), (*src, &from), *count, *transposed, &warps, true)
            }
            WarpOp::StoreMatrix { dst, dst_index, src, src_index, count, transposed } => {
                let (to, from) = (self.index(dst_index)?, self.index(src_index)?);
                self.move_matrix((*src, &from), (*dst, &to), *count, *transposed, &warps, false)
            }
            WarpOp::Mma { op, d, a, b } => {
                let d = (d.0, self.constant(&d.1)?);
                let a = (a.0, self.constant(&a.1)?);
                let b = (b.0, self.constant(&b.1)?);
                self.here().matrix += warps.len() as u64;
                warps.iter().try_for_each(|w| self.mma(*op, d, a, b, w * 32))
            }
            WarpOp::Wmma(op) => self.wmma_op(op, &warps),
            WarpOp::Permute { dst, low, high, selector } => {
                if [dst, low, high].iter().any(|x| self.kernel.array(x.0).dtype.bytes() != 1) {
                    return Err(self.machine("bytes of a type that is wider are permuted".into()));
                }
                let [to, low_at, high_at] = [&dst.1, &low.1, &high.1].map(|i| self.constant(i));
                let (to, low_at, high_at) = (to?, low_at?, high_at?);
                for t in (0..self.threads).filter(|t| mask[*t]) {
                    let mut bytes = [0.0; 8];
                    for i in 0..4 {
                        bytes[i] = self.private(low.0, low_at, 4, i as u32, t)?;
                        bytes[4 + i] = self.private(high.0, high_at, 4, i as u32, t)?;
                    }
                    for i in 0..4 {
                        let byte = bytes[usize::from(*selector >> (4 * i) & 7)];
                        self.set_private(dst.0, to, 4, i as u32, t, byte)?;
                    }
                }
                Ok(())
            }
            WarpOp::Pack { dst, low, high } => {
                let (low, high) = (self.value(low, DType::F32, mask)?, self.value(high, DType::F32, mask)?);
                let to = self.constant(&dst.1)?;
                let dtype = self.kernel.array(dst.0).dtype;
                if !matches!(dtype, DType::F16 | DType::BF16) {
                    return Err(self.machine("a pair is packed of a type that has not 16 bits".into()));
                }
                self.here().arithmetic += warps.len() as u64;
                for t in (0..self.threads).filter(|t| mask[*t]) {
                    // By way of f32, as the machine does.
                    let packed = |value: f64| round(self.held(dtype), round(self.held(DType::F32), value));
                    let (low, high) = (packed(low[t]), packed(high[t]));
                    self.set_private(dst.0, to, 2, 0, t, low)?;
                    self.set_private(dst.0, to, 2, 1, t, high)?;
                }
                Ok(())
            }
        }
    }

    /// The warps that run; a fault where one of them lacks lanes.
    pub(super) fn whole_warps(&self, mask: &Mask) -> Result<Vec<usize>, Fault> {
        let mut warps = Vec::new();
        for (w, lanes) in mask.chunks(32).enumerate() {
            match lanes.iter().filter(|b| **b).count() {
                0 => {}
                32 => warps.push(w),
                _ => return Err(self.machine("a warp's instruction that not all its lanes reach".into())),
            }
        }
        Ok(warps)
    }

    /// An index into registers: the same for all threads.
    pub(super) fn constant(&self, index: &Index) -> Result<i64, Fault> {
        match self.index(index)? {
            Ints::Same(v) => Ok(v),
            Ints::Each(_) => Err(self.machine("registers with an index that differs between threads".into())),
        }
    }

    /// Element `offset` of the `width` from `index` of a private array.
    pub(super) fn private(&self, array: ArrayId, index: i64, width: u32, offset: u32, t: usize) -> Result<f64, Fault> {
        if !self.space(array).is_private() {
            return Err(self.machine(format!("array {} is not in registers", array.0)));
        }
        let at = self.register(array, index, width, t)? + offset as usize * self.threads;
        if !self.known[array.0 as usize][at] {
            let a = self.kernel.array(array);
            let (index, thread) = (index + i64::from(offset), t as u32);
            return Err(Fault { kind: FaultKind::Unwritten, array: a.name.clone(), index, block: self.block, thread });
        }
        Ok(self.registers[array.0 as usize][at])
    }

    pub(super) fn set_private(
        &mut self,
        array: ArrayId,
        index: i64,
        width: u32,
        offset: u32,
        t: usize,
        value: f64,
    ) -> Result<(), Fault> {
        if !self.space(array).is_private() {
            return Err(self.machine(format!("array {} is not in registers", array.0)));
        }
        let at = self.register(array, index, width, t)? + offset as usize * self.threads;
        self.now.matrix.touch(array);
        self.registers[array.0 as usize][at] = value;
        self.known[array.0 as usize][at] = true;
        Ok(())
    }

    /// Between fragments and matrices of 8 rows of 16 bytes in shared memory.
    fn move_matrix(
        &mut self,
        (fragment, word): (ArrayId, &Ints),
        (shared, row): (ArrayId, &Ints),
        count: u32,
        transposed: bool,
        warps: &[usize],
        load: bool,
    ) -> Result<(), Fault> {
        let a = self.kernel.array(shared);
        let (bytes, base) = (a.dtype.bytes(), u64::from(a.shared_offset));
        if a.space != Space::Shared || self.kernel.array(fragment).dtype != a.dtype || !matches!(count, 1 | 2 | 4) {
            return Err(self.machine("ldmatrix or stmatrix with operands that the machine does not have".into()));
        }
        if bytes > 4 || transposed && bytes > 2 {
            return Err(self.machine("a transposed matrix whose elements have more than 16 bits".into()));
        }
        let (row_len, per_word) = (16 / bytes, 4 / bytes);
        // Words along a row for four lanes; transposed, units of 16 bits of two rows.
        let held = match transposed {
            false => Layout::along("element", "column", per_word).then("lane", "column", 4).then("lane", "row", 8),
            true => Layout::along("element", "column", 2 / bytes)
                .then("element", "row", 2)
                .then("lane", "row", 4)
                .then("lane", "column", 8),
        };
        let places = held.table(["lane", "element"], ["row", "column"]);
        let mut sum = Counts::default();
        for warp in warps {
            let first = warp * 32;
            sum.matrix_moves += 1;
            for m in 0..count as usize {
                let start = |r: usize| row.get(first + 8 * m + r);
                let rows: Vec<(u32, u64)> =
                    (0..8).map(|r| (r as u32, base + start(r).max(0) as u64 * u64::from(bytes))).collect();
                let (taken, ideal) = wavefronts(&rows, 16);
                if load {
                    sum.shared_load_wavefronts += u64::from(taken);
                    sum.shared_load_wavefronts_ideal += u64::from(ideal);
                } else {
                    sum.shared_store_wavefronts += u64::from(taken);
                    sum.shared_store_wavefronts_ideal += u64::from(ideal);
                }
                for (r, at) in &rows {
                    if at % 16 != 0 {
                        let thread = (first + 8 * m) as u32 + r;
                        let kind = FaultKind::Misaligned { width: row_len };
                        let (index, array) = (start(*r as usize), self.kernel.array(shared).name.clone());
                        return Err(Fault { kind, array, index, block: self.block, thread });
                    }
                }
                for lane in 0..32 {
                    let t = first + lane;
                    for e in 0..per_word {
                        let [r, column] = places[lane * per_word as usize + e as usize];
                        // The lane that named the row is not the one that gets the data: the access counts as the latter's.
                        let who = self.who(t);
                        let at = self.tracked(shared)?.position(&who, start(r as usize), row_len)? + column as usize;
                        let index = word.get(t) + (m as u32 * per_word) as i64;
                        if load {
                            let value = self.tracked(shared)?.read(&who, at)?;
                            self.set_private(fragment, index, per_word, e, t, value)?;
                        } else {
                            let value = self.private(fragment, index, per_word, e, t)?;
                            self.tracked(shared)?.write(&who, at, value)?;
                            self.overwrite(&who, shared, at)?;
                        }
                    }
                }
            }
        }
        *self.here() += sum;
        Ok(())
    }

    fn mma(
        &mut self,
        op: Mma,
        d: (ArrayId, i64),
        a: (ArrayId, i64),
        b: (ArrayId, i64),
        first: usize,
    ) -> Result<(), Fault> {
        let types = [(d.0, op.accumulator()), (a.0, op.operand()), (b.0, op.operand())];
        if op.wmma().is_some() || types.iter().any(|(array, dtype)| self.kernel.array(*array).dtype != *dtype) {
            return Err(self.machine("mma with operands of other types".into()));
        }
        let k = op.k() as usize;
        let rounds = op.operand() == DType::F32 && !self.double;
        let read = |v: f64| if rounds { tf32(v) } else { v };
        let [of_a, of_b, of_d] = [Fragment::A, Fragment::B, Fragment::D].map(|matrix| op.places(matrix));
        let (mut left, mut right) = (vec![0.0; 16 * k], vec![0.0; k * 8]);
        let [in_a, in_b] = [of_a, of_b].map(|places| places.len() as u32 / 32);
        for lane in 0..32 {
            let t = first + lane as usize;
            for i in 0..in_a {
                let [row, column] = of_a[(lane * in_a + i) as usize];
                left[row as usize * k + column as usize] = read(self.private(a.0, a.1, in_a, i, t)?);
            }
            for i in 0..in_b {
                let [row, column] = of_b[(lane * in_b + i) as usize];
                right[row as usize * 8 + column as usize] = read(self.private(b.0, b.1, in_b, i, t)?);
            }
        }
        let accumulator = self.held(op.accumulator());
        for lane in 0..32 {
            let t = first + lane as usize;
            for i in 0..4 {
                let [row, column] = of_d[(lane * 4 + i) as usize];
                let mut sum = self.private(d.0, d.1, 4, i, t)?;
                for j in 0..k {
                    let product = left[row as usize * k + j] * right[j * 8 + column as usize];
                    sum = round(accumulator, sum + product);
                }
                self.set_private(d.0, d.1, 4, i, t, sum)?;
            }
        }
        Ok(())
    }
}
