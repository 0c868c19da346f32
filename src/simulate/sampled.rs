//! What a few blocks of a kernel do, at the kernel's own size. Global memory has no contents there, so that it may be of any size: only
//! the places of accesses are looked at.
use super::memory::Tracked;
use super::{memory, runner, Counts, Fault};
use crate::kernel::{ArrayId, Kernel};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::AddAssign;

/// Bytes of a sector of global memory.
const SECTOR: u64 = 32;

/// What the blocks did, together.
#[derive(Clone, Debug, Default)]
pub struct Sampled {
    /// Blocks that were run.
    pub blocks: u64,
    /// Their counts.
    pub total: Counts,
    /// Iterations of loops that stay loops, of a block's threads together.
    pub laps: u64,
    /// Sectors that were read and that L1 did not have any more.
    pub fetched: u64,
    /// Each array in global memory.
    pub touched: BTreeMap<ArrayId, Touched>,
}

impl AddAssign for Sampled {
    fn add_assign(&mut self, other: Sampled) {
        self.blocks += other.blocks;
        self.total += other.total;
        self.laps += other.laps;
        self.fetched += other.fetched;
        for (array, Touched { read, written }) in other.touched {
            let own = self.touched.entry(array).or_default();
            (own.read, own.written) = (own.read + read, own.written + written);
        }
    }
}

/// Sectors of an array that blocks touched, each block's counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}

/// A multiprocessor's L1 as one block sees it: what came first goes first.
pub(super) struct Cache {
    sectors: u64,
    entered: HashMap<(ArrayId, u64), u64>,
    written: HashSet<(ArrayId, u64)>,
    /// Sectors that the TMA has read.
    brought: HashSet<(ArrayId, u64)>,
    fetched: u64,
    touched: BTreeMap<ArrayId, Touched>,
}

impl Cache {
    fn of(bytes: u64) -> Cache {
        Cache {
            sectors: bytes / SECTOR,
            entered: HashMap::new(),
            written: HashSet::new(),
            brought: HashSet::new(),
            fetched: 0,
            touched: BTreeMap::new(),
        }
    }

    /// An access of a warp: byte addresses of its lanes, and the bytes of each.
    pub(super) fn access(&mut self, array: ArrayId, addresses: &[u64], bytes: u64, store: bool) {
        let sectors = |at: &u64| at / SECTOR..=(at + bytes - 1) / SECTOR;
        for sector in addresses.iter().flat_map(sectors) {
            if store {
                let new = self.written.insert((array, sector));
                self.touched.entry(array).or_default().written += u64::from(new);
                continue;
            }
            let known = self.entered.get(&(array, sector));
            self.touched.entry(array).or_default().read += u64::from(known.is_none());
            if known.is_none_or(|number| self.fetched - number >= self.sectors) {
                self.entered.insert((array, sector), self.fetched);
                self.fetched += 1;
            }
        }
    }

    /// A box that the TMA moves, which L1 has no part in: the byte addresses of its elements.
    pub(super) fn moved(&mut self, array: ArrayId, addresses: impl Iterator<Item = u64>, store: bool) {
        let sectors: HashSet<u64> = addresses.map(|at| at / SECTOR).collect();
        let touched = self.touched.entry(array).or_default();
        for sector in sectors {
            let known = if store { &mut self.written } else { &mut self.brought };
            let new = u64::from(known.insert((array, sector)));
            if store {
                touched.written += new;
            } else {
                touched.read += new;
                self.fetched += 1;
            }
        }
    }

    fn next_block(&mut self) {
        self.brought.clear();
        self.entered.clear();
        self.written.clear();
    }
}

/// Runs the blocks of these linear numbers, or their clusters. `cache`: bytes of L1 that a block has; `go_on` is asked before each statement.
///
/// # Errors
/// The first fault.
pub fn sampled(kernel: &Kernel, blocks: &[u64], cache: u64, go_on: &dyn Fn() -> bool) -> Result<Sampled, Fault> {
    let memory = memory(kernel, false, |array| Ok(Tracked::blank(array)))?;
    let mut runner = runner(kernel, memory, false, go_on)?;
    runner.cache = Some(Cache::of(cache));
    let [x, y, _] = kernel.grid.map(u64::from);
    // Of a cluster all.
    let size = u64::from(kernel.cluster.max(1));
    for number in blocks {
        let number = &(number / size * size);
        let at = [number % x, number / x % y, number / x / y].map(|n| n as u32);
        runner.run_cluster((*number as u32, at))?;
        runner.cache.iter_mut().for_each(Cache::next_block);
    }
    let (total, ..) = runner.counts();
    let (laps, cache) = (runner.laps(), runner.cache.take().unwrap_or_else(|| Cache::of(0)));
    Ok(Sampled { blocks: blocks.len() as u64 * size, total, laps, fetched: cache.fetched, touched: cache.touched })
}
