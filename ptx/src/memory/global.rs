//! Global memory: allocations with exact bounds. A unit of blocks that run together keeps the pages that it touched for itself.
use super::shadow::{Clash, Shadow, Who};
use super::{Refused, Touched};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Allocations start at multiples of this, from one on.
pub const GLOBAL_STRIDE: u64 = 1 << 40;
/// Bytes of a page.
pub const PAGE: usize = 1024;

/// Bytes by their offset.
pub type Formula = Arc<dyn Fn(u64, &mut [u8]) + Send + Sync>;

/// What an allocation holds before the program runs.
#[derive(Clone)]
pub enum Initial {
    /// These bytes (and zeros behind them).
    Bytes(Arc<[u8]>),
    /// Bytes by their offset: fills the slice with what stands from an offset on.
    Formula(Formula),
    /// Bytes of which some were written: what another kernel left.
    Partly {
        /// All bytes.
        bytes: Arc<[u8]>,
        /// Which of them hold something; reading the others is a fault.
        known: Arc<[bool]>,
    },
    /// Nothing: reading it is a fault.
    Undefined,
}

impl std::fmt::Debug for Initial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Initial::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Initial::Formula(_) => f.write_str("Formula"),
            Initial::Partly { bytes, .. } => write!(f, "Partly({})", bytes.len()),
            Initial::Undefined => f.write_str("Undefined"),
        }
    }
}

impl Initial {
    /// Fills a slice with what stands from an offset on.
    pub fn copy(&self, at: u64, to: &mut [u8]) {
        match self {
            Initial::Bytes(bytes) | Initial::Partly { bytes, .. } => {
                let start = (at as usize).min(bytes.len());
                let end = (start + to.len()).min(bytes.len());
                to[..end - start].copy_from_slice(&bytes[start..end]);
            }
            Initial::Formula(f) => f(at, to),
            Initial::Undefined => {}
        }
    }

    /// The first of some bytes that holds nothing.
    fn unknown(&self, at: u64, bytes: usize) -> Option<u64> {
        match self {
            Initial::Bytes(_) | Initial::Formula(_) => None,
            Initial::Undefined => Some(at),
            Initial::Partly { known, .. } => {
                (at..at + bytes as u64).find(|i| !known.get(*i as usize).copied().unwrap_or(false))
            }
        }
    }
}

/// A stretch of global memory.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Its name in messages.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// What it holds first.
    pub initial: Initial,
    /// The program may write it.
    pub writable: bool,
}

/// A part of an allocation that was touched.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its bytes.
    pub bytes: Box<[u8; PAGE]>,
    /// Who touched them.
    pub shadow: Shadow,
}

/// Pages by allocation and page number.
pub type Written = FxHashMap<(u32, u64), Page>;

/// Global memory as one unit of blocks sees it.
pub struct Global {
    allocations: Arc<[Allocation]>,
    granule: usize,
    /// The pages of writable allocations that were touched.
    pub pages: Written,
    recent: Option<((u32, u64), Page)>,
}

impl Global {
    /// Untouched.
    pub fn new(allocations: Arc<[Allocation]>, granule: usize) -> Global {
        Global { allocations, granule, pages: FxHashMap::default(), recent: None }
    }

    /// The address of an allocation.
    pub fn address(index: usize) -> u64 {
        (index as u64 + 1) * GLOBAL_STRIDE
    }

    fn split(&self, at: u64) -> Option<(usize, u64)> {
        let index = (at / GLOBAL_STRIDE).checked_sub(1)? as usize;
        (index < self.allocations.len()).then_some((index, at % GLOBAL_STRIDE))
    }

    /// In words: allocation and offset.
    pub fn place(&self, at: u64) -> String {
        match self.split(at) {
            Some((i, offset)) if offset < self.allocations[i].bytes => {
                format!("`{}` + {offset} bytes", self.allocations[i].name)
            }
            Some((i, offset)) if offset < GLOBAL_STRIDE / 2 => {
                format!("`{}` + {offset} bytes (it has {})", self.allocations[i].name, self.allocations[i].bytes)
            }
            _ => match self.split(at.wrapping_add(GLOBAL_STRIDE / 2)) {
                Some((i, _)) if at < GLOBAL_STRIDE * (i as u64 + 1) => {
                    let before = GLOBAL_STRIDE * (i as u64 + 1) - at;
                    format!("`{}` - {before} bytes", self.allocations[i].name)
                }
                _ => format!("address {at:#x}, which belongs to no allocation"),
            },
        }
    }

    /// Whether an access is allowed at all: the allocation and the offset.
    ///
    /// # Errors
    /// Out of bounds or misaligned.
    #[inline]
    pub fn check(&self, at: u64, bytes: u64, align: u64) -> Result<(usize, u64), Refused> {
        let (index, offset) = self.split(at).ok_or(Refused::Bounds)?;
        if offset.checked_add(bytes).is_none_or(|end| end > self.allocations[index].bytes) {
            return Err(Refused::Bounds);
        }
        if !at.is_multiple_of(align) {
            return Err(Refused::Alignment(align));
        }
        Ok((index, offset))
    }

    fn page(&mut self, index: usize, number: u64) -> &mut Page {
        let key = (index as u32, number);
        if self.recent.as_ref().is_none_or(|(k, _)| *k != key) {
            if let Some((old, page)) = self.recent.take() {
                self.pages.insert(old, page);
            }
            let page = self.pages.remove(&key);
            let allocation = &self.allocations[index];
            let granule = self.granule;
            let page = page.unwrap_or_else(|| {
                let mut bytes = Box::new([0; PAGE]);
                let start = number * PAGE as u64;
                let length = (allocation.bytes - start).min(PAGE as u64) as usize;
                allocation.initial.copy(start, &mut bytes[..length]);
                let initialised = !matches!(allocation.initial, Initial::Undefined);
                let mut shadow = Shadow::new(PAGE, granule, initialised);
                if let Initial::Partly { known, .. } = &allocation.initial {
                    let known = |i: usize| known.get(start as usize + i).copied().unwrap_or(false);
                    shadow.forget(|at| !(at..at + granule).all(known));
                }
                Page { bytes, shadow }
            });
            self.recent = Some((key, page));
        }
        &mut self.recent.as_mut().expect("just put there").1
    }

    /// Reads, as somebody.
    ///
    /// # Errors
    /// Out of bounds or misaligned; inside: the first clash, with its address.
    pub fn read(&mut self, at: u64, to: &mut [u8], align: u64, who: &Who<'_>) -> Touched {
        let (index, offset) = self.check(at, to.len() as u64, align)?;
        if !self.allocations[index].writable {
            let initial = &self.allocations[index].initial;
            initial.copy(offset, to);
            let unknown = initial.unknown(offset, to.len());
            return Ok(unknown.map_or(Ok(()), |i| Err((Clash::Unwritten, at - offset + i))));
        }
        let mut clash = Ok(());
        self.pieces(index, offset, to.len(), |page, inside, piece| {
            to[piece.clone()].copy_from_slice(&page.bytes[inside..inside + piece.len()]);
            let found = page.shadow.read(inside, piece.len(), who);
            clash = std::mem::replace(&mut clash, Ok(()))
                .and(found.map_err(|(c, b)| (c, at + (piece.start + b.saturating_sub(inside)) as u64)));
        });
        Ok(clash)
    }

    /// Writes, as somebody.
    ///
    /// # Errors
    /// As [`Global::read`], and where the allocation is only read.
    pub fn write(&mut self, at: u64, from: &[u8], align: u64, who: &Who<'_>) -> Touched {
        let (index, offset) = self.check(at, from.len() as u64, align)?;
        if !self.allocations[index].writable {
            return Err(Refused::ReadOnly);
        }
        let mut clash = Ok(());
        self.pieces(index, offset, from.len(), |page, inside, piece| {
            let to = &mut page.bytes[inside..inside + piece.len()];
            let same = *to == from[piece.clone()];
            to.copy_from_slice(&from[piece.clone()]);
            let found = page.shadow.write(inside, piece.len(), who, same, false);
            clash = std::mem::replace(&mut clash, Ok(()))
                .and(found.map_err(|(c, b)| (c, at + (piece.start + b.saturating_sub(inside)) as u64)));
        });
        Ok(clash)
    }

    fn pieces(
        &mut self,
        index: usize,
        offset: u64,
        bytes: usize,
        mut visit: impl FnMut(&mut Page, usize, std::ops::Range<usize>),
    ) {
        let mut done = 0;
        while done < bytes {
            let at = offset + done as u64;
            let inside = (at % PAGE as u64) as usize;
            let piece = (PAGE - inside).min(bytes - done);
            visit(self.page(index, at / PAGE as u64), inside, done..done + piece);
            done += piece;
        }
    }

    /// All pages that were touched.
    pub fn finish(mut self) -> Written {
        if let Some((key, page)) = self.recent.take() {
            self.pages.insert(key, page);
        }
        self.pages
    }
}
