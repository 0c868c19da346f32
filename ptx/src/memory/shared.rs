//! Shared memory of a block.
use super::shadow::{Shadow, Who};
use super::{Refused, Touched};
use std::ops::Range;

/// A variable's place.
#[derive(Clone, Debug)]
struct Extent {
    start: u64,
    end: u64,
    name: String,
}

/// Shared memory of one block. Between variables are gaps, so that running over the end of one is seen.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    bytes: Vec<u8>,
    /// Bounds, writes and reads.
    pub shadow: Shadow,
    /// Rises with whatever may change the bytes.
    pub changes: u64,
    extents: Vec<Extent>,
}

impl Shared {
    /// Of variables: name, start, bytes.
    pub fn new(variables: impl Iterator<Item = (String, u64, u64)>, granule: usize) -> Shared {
        let extents: Vec<Extent> =
            variables.map(|(name, start, bytes)| Extent { start, end: start + bytes, name }).collect();
        let end = extents.iter().map(|e| e.end).max().unwrap_or(0) as usize;
        Shared { bytes: vec![0; end], shadow: Shadow::new(end, granule, false), changes: 0, extents }
    }

    /// In words: variable and offset.
    pub fn place(&self, at: u64) -> String {
        match self.extents.iter().rev().find(|e| at >= e.start) {
            Some(e) if at < e.end => format!("`{}` + {} bytes", e.name, at - e.start),
            Some(e) => format!("`{}` + {} bytes (it has {})", e.name, at - e.start, e.end - e.start),
            None if self.extents.is_empty() => format!("address {at} (the block has no shared memory)"),
            None => format!("address {at}"),
        }
    }

    /// Whether an access is allowed at all.
    ///
    /// # Errors
    /// Out of bounds or misaligned.
    #[inline]
    pub fn check(&self, at: u64, bytes: u64, align: u64) -> Result<(), Refused> {
        if !at.is_multiple_of(align) {
            return Err(Refused::Alignment(align));
        }
        let inside = |e: &Extent| at >= e.start && at.checked_add(bytes).is_some_and(|end| end <= e.end);
        if self.extents.iter().any(inside) {
            Ok(())
        } else {
            Err(Refused::Bounds)
        }
    }

    /// Reads, as somebody.
    ///
    /// # Errors
    /// Out of bounds or misaligned; inside: the first clash, with its address.
    pub fn read(&mut self, at: u64, to: &mut [u8], align: u64, who: &Who<'_>) -> Touched {
        self.check(at, to.len() as u64, align)?;
        let start = at as usize;
        to.copy_from_slice(&self.bytes[start..start + to.len()]);
        Ok(self.shadow.read(start, to.len(), who).map_err(|(c, at)| (c, at as u64)))
    }

    /// Reads for some lanes of a warp that know the same. Whether nothing is wrong with it; if something is, each must read by
    /// itself ([`Shared::read`]), which says what.
    #[inline]
    pub fn read_together(&mut self, at: u64, to: &mut [u8], align: u64, who: &Who<'_>, lanes: u32) -> bool {
        if self.check(at, to.len() as u64, align).is_err() {
            return false;
        }
        let start = at as usize;
        to.copy_from_slice(&self.bytes[start..start + to.len()]);
        self.shadow.read_together(start, to.len(), who, lanes)
    }

    /// Notes a read of many bytes, in stretches that stand in order, as somebody; what they are is asked for later
    /// ([`Shared::raw`]).
    ///
    /// # Errors
    /// As [`Shared::read`].
    pub fn touch(&mut self, stretches: &[Range<u64>], align: u64, who: &Who<'_>) -> Touched {
        let (Some(first), Some(last)) = (stretches.first(), stretches.last()) else { return Ok(Ok(())) };
        if self.check(first.start, last.end - first.start, align).is_err() {
            stretches.iter().try_for_each(|s| self.check(s.start, s.end - s.start, align))?;
        }
        let places = stretches.iter().map(|s| s.start as usize..s.end as usize);
        Ok(self.shadow.read_each(places, who).map_err(|(c, at)| (c, at as u64)))
    }

    /// Writes, as somebody.
    ///
    /// # Errors
    /// As [`Shared::read`].
    pub fn write(&mut self, at: u64, from: &[u8], align: u64, who: &Who<'_>) -> Touched {
        self.check(at, from.len() as u64, align)?;
        let start = at as usize;
        let to = &mut self.bytes[start..start + from.len()];
        let same = to == from;
        to.copy_from_slice(from);
        self.changes += 1;
        Ok(self.shadow.write(start, from.len(), who, same, false).map_err(|(c, at)| (c, at as u64)))
    }

    /// Announces a write that an asynchronous operation will make: until it is delivered, nobody may touch these bytes.
    ///
    /// # Errors
    /// As [`Shared::read`].
    pub fn announce(&mut self, at: u64, bytes: u64, align: u64, who: &Who<'_>) -> Touched {
        self.check(at, bytes, align)?;
        let found = self.shadow.write(at as usize, bytes as usize, who, false, true);
        Ok(found.map_err(|(c, at)| (c, at as u64)))
    }

    /// Makes a write that was announced; from now on it counts as `who`'s.
    pub fn deliver(&mut self, at: u64, from: &[u8], who: &Who<'_>) {
        let start = at as usize;
        if let Some(to) = self.bytes.get_mut(start..start + from.len()) {
            to.copy_from_slice(from);
            self.changes += 1;
            self.shadow.deliver(start, from.len(), who);
        }
    }

    /// The bytes, without any check or note (for what the hardware itself keeps in shared memory).
    pub fn raw(&mut self, at: u64, bytes: usize) -> Option<&mut [u8]> {
        let start = usize::try_from(at).ok()?;
        self.changes += 1;
        self.bytes.get_mut(start..start.checked_add(bytes)?)
    }

    /// Some bytes, without any check or note, to look at.
    pub fn peek<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        self.bytes.get(usize::try_from(at).ok()?..)?.first_chunk().copied()
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}
