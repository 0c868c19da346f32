//! Local memory of a warp's threads.
use super::Refused;

/// Local memory of 32 threads, and what of it was written.
#[derive(Clone, Debug, Default)]
pub struct Local {
    bytes: Vec<u8>,
    written: Vec<bool>,
    size: usize,
}

impl Local {
    /// So many bytes for each of 32 threads.
    pub fn new(size: usize) -> Local {
        Local { bytes: vec![0; size * 32], written: vec![false; size * 32], size }
    }

    fn range(&self, lane: usize, at: u64, bytes: usize) -> Result<std::ops::Range<usize>, Refused> {
        match usize::try_from(at).ok().and_then(|at| Some((at, at.checked_add(bytes)?))) {
            Some((start, end)) if end <= self.size => Ok(lane * self.size + start..lane * self.size + end),
            _ => Err(Refused::Bounds),
        }
    }

    /// Reads; tells whether all of it was written.
    ///
    /// # Errors
    /// Out of bounds.
    pub fn read(&self, lane: usize, at: u64, to: &mut [u8]) -> Result<bool, Refused> {
        let range = self.range(lane, at, to.len())?;
        to.copy_from_slice(&self.bytes[range.clone()]);
        Ok(self.written[range].iter().all(|w| *w))
    }

    /// Writes.
    ///
    /// # Errors
    /// Out of bounds.
    pub fn write(&mut self, lane: usize, at: u64, from: &[u8]) -> Result<(), Refused> {
        let range = self.range(lane, at, from.len())?;
        self.bytes[range.clone()].copy_from_slice(from);
        self.written[range].fill(true);
        Ok(())
    }
}
