//! Shared arrays that lie in the same bytes at different times.
use super::{Fault, Runner};
use crate::kernel::{ArrayId, Kernel, Space, Stmt};
use crate::simulate::memory::Access;

/// For each array: the arrays that share bytes with it.
pub(super) struct Overlaps(Vec<Vec<ArrayId>>);

impl Overlaps {
    /// Of a kernel; an error names an array that overlaps another in a kernel whose asynchronous writers are not followed.
    pub fn of(kernel: &Kernel) -> Result<Overlaps, String> {
        let span = |i: usize| {
            let a = kernel.arrays.get(i).filter(|a| a.space == Space::Shared && a.len > 0)?;
            let start = u64::from(a.shared_offset);
            Some((start, start + a.len * u64::from(a.dtype.bytes())))
        };
        let shares = |i: usize, j: usize| match (span(i), span(j)) {
            (Some(a), Some(b)) => i != j && a.0 < b.1 && b.0 < a.1,
            _ => false,
        };
        let count = kernel.arrays.len();
        let others = |i: usize| (0..count).filter(|j| shares(i, *j)).map(|j| ArrayId(j as u32)).collect();
        let out: Vec<Vec<ArrayId>> = (0..count).map(others).collect();
        let followed = kernel.tensor_maps.is_empty() && !kernel.body.iter().any(|s| matches!(s, Stmt::Roles(_)));
        match out.iter().position(|list| !list.is_empty()).filter(|_| !followed) {
            Some(i) => Err(kernel.arrays[i].name.clone()),
            None => Ok(Overlaps(out)),
        }
    }
}

impl Runner<'_> {
    /// An element of an array has been written: what other arrays have in its bytes is gone.
    pub(super) fn overwrite(&mut self, who: &Access, array: ArrayId, element: usize) -> Result<(), Fault> {
        if self.overlaps.0.get(array.0 as usize).is_none_or(Vec::is_empty) {
            return Ok(());
        }
        let kernel = self.kernel;
        let bytes = |id: ArrayId| u64::from(kernel.array(id).dtype.bytes());
        let start = |id: ArrayId| u64::from(kernel.array(id).shared_offset);
        let first = start(array) + element as u64 * bytes(array);
        let end = first + bytes(array);
        for other in self.overlaps.0[array.0 as usize].clone() {
            let from = first.saturating_sub(start(other)) / bytes(other);
            let to = end.saturating_sub(start(other)).div_ceil(bytes(other)).min(kernel.array(other).len);
            for i in from..to {
                self.tracked(other)?.overwrite(who, i as usize)?;
            }
        }
        Ok(())
    }
}
