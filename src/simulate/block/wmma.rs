//! `wmma`: a fragment is known as the matrix that it holds, and by nothing else.
use super::{Fault, FaultKind, Ints, Runner};
use crate::kernel::{ArrayId, Index, Space, WmmaOp};
use crate::simulate::memory::round;
use satune_ir::machine::matrix_wavefronts;
use satune_ir::term::tensor::Wmma;
use satune_ir::term::Side;
use satune_ir::DType;
use std::collections::HashMap;

/// What a fragment was made as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FragmentKind {
    /// A or B, and whether its lines run across k.
    Operand(Side, bool),
    Sums,
}

/// A fragment by its array, its first element and its warp.
type Key = (ArrayId, i64, usize);

/// The matrices of the block's warps, row by row (A, sums) or column by column (B).
#[derive(Default)]
pub(super) struct Fragments(HashMap<Key, (Wmma, FragmentKind, Vec<f64>)>);

/// What a matrix in memory is asked for.
struct Matrix {
    array: ArrayId,
    /// Lines, elements of a line, elements from one to the next.
    lines: u32,
    line: u32,
    stride: u64,
    /// Bytes that a lane's part of the fragment has.
    fragment: u32,
}

impl Runner<'_> {
    pub(super) fn wmma_op(&mut self, op: &WmmaOp, warps: &[usize]) -> Result<(), Fault> {
        match op {
            WmmaOp::Zero { op, d } => {
                let at = self.opaque(d, op.sums(), op.accumulator())?;
                let count = (op.extents()[0] * op.extents()[1]) as usize;
                for warp in warps {
                    self.now.fragments.0.insert((d.0, at, *warp), (*op, FragmentKind::Sums, vec![0.0; count]));
                }
                Ok(())
            }
            WmmaOp::Load { op, side, dst, src, stride, across } => {
                self.wmma_load(*op, (*side, *across), dst, src, (*stride).into(), warps)
            }
            WmmaOp::Multiply { op, d, a, b, across } => {
                let [at_d, at_a, at_b] = [
                    self.opaque(d, op.sums(), op.accumulator())?,
                    self.opaque(a, op.elements(Side::A), op.operand)?,
                    self.opaque(b, op.elements(Side::B), op.operand)?,
                ];
                self.here().matrix += warps.len() as u64;
                let accumulator = self.held(op.accumulator());
                for warp in warps {
                    let left = self.fragment((a.0, at_a, *warp), *op, FragmentKind::Operand(Side::A, across[0]))?;
                    let right = self.fragment((b.0, at_b, *warp), *op, FragmentKind::Operand(Side::B, across[1]))?;
                    let mut sums = self.fragment((d.0, at_d, *warp), *op, FragmentKind::Sums)?;
                    let [_, n, k] = op.extents().map(|e| e as usize);
                    for (at, sum) in sums.iter_mut().enumerate() {
                        let (row, column) = (at / n, at % n);
                        for j in 0..k {
                            *sum = round(accumulator, *sum + left[row * k + j] * right[column * k + j]);
                        }
                    }
                    self.now.fragments.0.insert((d.0, at_d, *warp), (*op, FragmentKind::Sums, sums));
                }
                Ok(())
            }
            WmmaOp::Store { op, dst, stride, src } => {
                let at = self.opaque(src, op.sums(), op.accumulator())?;
                let index = self.index(&dst.1)?;
                let [m, n, _] = op.extents();
                let matrix = Matrix {
                    array: dst.0,
                    lines: m,
                    line: n,
                    stride: *stride,
                    fragment: op.sums() * op.accumulator().bytes(),
                };
                if self.kernel.array(dst.0).dtype != op.accumulator() {
                    return Err(self.machine("wmma.store of sums to an array of another type".into()));
                }
                for warp in warps {
                    let sums = self.fragment((src.0, at, *warp), *op, FragmentKind::Sums)?;
                    let first = self.matrix_start(&matrix, &index, *warp)?;
                    self.count_matrix(&matrix, first, 32, true);
                    for (i, value) in sums.into_iter().enumerate() {
                        let who = self.who(warp * 32 + i % 32);
                        let at = first + (i as u64 / u64::from(n) * stride) as i64 + i as i64 % i64::from(n);
                        let memory = self.tracked(dst.0)?;
                        let at = memory.position(&who, at, 1)?;
                        memory.write(&who, at, value)?;
                        self.overwrite(&who, dst.0, at)?;
                    }
                }
                Ok(())
            }
        }
    }

    fn wmma_load(
        &mut self,
        op: Wmma,
        (side, across): (Side, bool),
        dst: &(ArrayId, Index),
        src: &(ArrayId, Index),
        stride: u64,
        warps: &[usize],
    ) -> Result<(), Fault> {
        let to = self.opaque(dst, op.elements(side), op.operand)?;
        let from = self.index(&src.1)?;
        let [m, n, k] = op.extents();
        let own = if side == Side::A { m } else { n };
        let (lines, line) = if across { (k, own) } else { (own, k) };
        let fragment = op.elements(side) * op.operand.bytes();
        let matrix = Matrix { array: src.0, lines, line, stride, fragment };
        let a = self.kernel.array(src.0);
        if a.space != Space::Shared || a.dtype != op.operand {
            return Err(self.machine("wmma.load of an array that is not shared, or of another type".into()));
        }
        for warp in warps {
            let first = self.matrix_start(&matrix, &from, *warp)?;
            self.count_matrix(&matrix, first, 16, false);
            let mut values = vec![0.0; (own * k) as usize];
            for (i, (row, along)) in (0..own).flat_map(|row| (0..k).map(move |along| (row, along))).enumerate() {
                let (l, e) = if across { (along, row) } else { (row, along) };
                // Which lane reads an element is not known: any does.
                let who = self.who(warp * 32 + i % 32);
                let memory = self.tracked(src.0)?;
                let at = memory.position(&who, first + (u64::from(l) * stride) as i64 + i64::from(e), 1)?;
                values[i] = memory.read(&who, at)?;
            }
            self.now.fragments.0.insert((dst.0, to, *warp), (op, FragmentKind::Operand(side, across), values));
        }
        Ok(())
    }

    /// First element of a fragment of so many elements per lane.
    fn opaque(&self, (array, index): &(ArrayId, Index), len: u32, dtype: DType) -> Result<i64, Fault> {
        let a = self.kernel.array(*array);
        let at = self.constant(index)?;
        let inside = u64::try_from(at).is_ok_and(|at| at + u64::from(len) <= a.len);
        if a.space != Space::Opaque || a.dtype != dtype || at % i64::from(len) != 0 || !inside {
            return Err(self.machine(format!("{} holds no such fragment of wmma at {at}", a.name)));
        }
        Ok(at)
    }

    fn fragment(&self, key: Key, op: Wmma, kind: FragmentKind) -> Result<Vec<f64>, Fault> {
        match self.now.fragments.0.get(&key) {
            Some((o, k, values)) if (*o, *k) == (op, kind) => Ok(values.clone()),
            Some(_) => Err(self.machine("a fragment of wmma is used as another than it was made as".into())),
            None => Err(Fault {
                kind: FaultKind::Unwritten,
                array: self.kernel.array(key.0).name.clone(),
                index: key.1,
                block: self.block,
                thread: key.2 as u32 * 32,
            }),
        }
    }

    /// The matrix's first element: the same for all lanes, and each line aligned as it must be ([`Wmma::alignments`]).
    fn matrix_start(&self, matrix: &Matrix, index: &Ints, warp: usize) -> Result<i64, Fault> {
        let first = index.get(warp * 32);
        if (1..32).any(|lane| index.get(warp * 32 + lane) != first) {
            return Err(self.machine("lanes of a wmma.load or wmma.store with different addresses".into()));
        }
        let a = self.kernel.array(matrix.array);
        let bytes = u64::from(a.dtype.bytes());
        let start = u64::from(a.shared_offset) + first.max(0) as u64 * bytes;
        let stride = matrix.stride * bytes;
        let fits = |[first, lines]: [u32; 2]| start % u64::from(first) == 0 && stride % u64::from(lines) == 0;
        if !Wmma::alignments(matrix.fragment).into_iter().any(fits) || matrix.stride < u64::from(matrix.line) {
            return Err(Fault {
                kind: FaultKind::Misaligned { width: matrix.line },
                array: a.name.clone(),
                index: first,
                block: self.block,
                thread: warp as u32 * 32,
            });
        }
        Ok(first)
    }

    /// Counts what one warp moves.
    fn count_matrix(&mut self, matrix: &Matrix, first: i64, piece: u64, store: bool) {
        let a = self.kernel.array(matrix.array);
        let bytes = u64::from(a.dtype.bytes());
        let start = u64::from(a.shared_offset) + first.max(0) as u64 * bytes;
        let (lines, line, pitch) = (u64::from(matrix.lines), u64::from(matrix.line) * bytes, matrix.stride * bytes);
        let shared = a.space == Space::Shared;
        let counts = self.here();
        counts.matrix_moves += 1;
        if shared {
            let (taken, least) = matrix_wavefronts(start, [lines, line], pitch, piece);
            if store {
                counts.shared_store_wavefronts += taken;
                counts.shared_store_wavefronts_ideal += least;
            } else {
                counts.shared_load_wavefronts += taken;
                counts.shared_load_wavefronts_ideal += least;
            }
        } else {
            let touched = |l: u64| (start + l * pitch + line - 1) / 32 - (start + l * pitch) / 32 + 1;
            counts.global_store_sectors += (0..lines).map(touched).sum::<u64>();
            counts.global_store_sectors_ideal += lines * line.div_ceil(32);
        }
    }
}
