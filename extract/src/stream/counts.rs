//! What a kernel does, counted: of its decisions one by one, and of all of them as their sum.
use super::accesses::Touched;
use satune_ir::term::stream::{Access, StreamBlock};

/// Work of one kernel, all blocks: warp instructions, wavefronts, 32-byte sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KernelWork {
    /// Blocks of threads.
    pub blocks: f64,
    /// Loads from global memory.
    pub global_loads: f64,
    /// Stores to global memory.
    pub global_stores: f64,
    /// Sectors read.
    pub load_sectors: f64,
    /// Sectors written.
    pub store_sectors: f64,
    /// Loads from shared memory.
    pub shared_loads: f64,
    /// Stores to shared memory.
    pub shared_stores: f64,
    /// Wavefronts of loads from shared memory.
    pub load_wavefronts: f64,
    /// The least for them.
    pub load_wavefronts_ideal: f64,
    /// Wavefronts of stores to shared memory.
    pub store_wavefronts: f64,
    /// The least for them.
    pub store_wavefronts_ideal: f64,
    /// Arithmetic.
    pub arithmetic: f64,
    /// Divisions and functions.
    pub special: f64,
    /// Shuffles.
    pub shuffles: f64,
    /// Barriers, per warp.
    pub barriers: f64,
    /// Iterations of loops that are not unrolled, and rows, per warp.
    pub iterations: f64,
    /// Bytes that must pass from DRAM: every buffer once.
    pub read_bytes: f64,
    /// Bytes that must pass to DRAM.
    pub written_bytes: f64,
    /// What of these another kernel has just touched, or will.
    pub kept: [Kept; KEPT],
    /// Bytes that are read again where L2 does not hold them.
    pub again_bytes: f64,
    /// Bytes that resident blocks want L2 to hold for that, per row at work.
    pub again_live: f64,
    /// Shared memory of a block, bytes.
    pub shared_bytes: i64,
    /// Registers of a thread for what it holds, 32 bits each.
    pub held_registers: i64,
    /// Clocks of latency of a block's chain of steps, in units of (DRAM, L2, shared memory, arithmetic step).
    pub chain: [f64; 4],
}

/// Most distances at which a kernel's buffers are told apart.
pub(super) const KEPT: usize = 4;

/// Bytes that never pass to or from DRAM where L2 holds so many from one kernel to another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Kept {
    /// Bytes of all buffers that are touched from the one use of a buffer to the next.
    pub live: f64,
    /// Bytes that are found there.
    pub read: f64,
    /// Bytes of buffers of the program that nobody needs after their next use.
    pub written: f64,
}

pub(super) fn up(x: i64, y: i64) -> i64 {
    (x + y - 1) / y.max(1)
}

/// Wavefronts of a warp's access to neighbouring elements in shared memory.
fn run_wavefronts(bytes_per_lane: i64) -> f64 {
    (bytes_per_lane as f64 / 4.0).max(1.0)
}

/// Rows of an access that depend on a part of the row iterators: (different rows, how often each is accessed).
pub(super) fn distinct_rows(b: &StreamBlock, access: &Access, row_iters: usize) -> (i64, f64) {
    let used: i64 = access.dims.iter().flatten().filter(|i| **i < row_iters).map(|i| b.iters[*i].extent).product();
    let all: i64 = b.iters[..row_iters].iter().map(|i| i.extent).product();
    (used, all as f64 / used as f64)
}

impl KernelWork {
    /// Operations of a block, of so many instances of warps, and of as many of what does not change within a row.
    pub(super) fn operations(&mut self, b: &StreamBlock, instances: f64, rows: f64) {
        self.arithmetic += instances * f64::from(b.arithmetic) + rows * f64::from(b.per_row[0]);
        self.special += instances * f64::from(b.special) + rows * f64::from(b.per_row[1]);
    }

    /// Accesses to global memory.
    pub(super) fn global(&mut self, touched: Touched, store: bool) {
        if store {
            self.global_stores += touched.instructions;
            self.store_sectors += touched.sectors;
        } else {
            self.global_loads += touched.instructions;
            self.load_sectors += touched.sectors;
        }
    }

    /// Accesses of neighbouring elements in shared memory, which have no conflicts.
    pub(super) fn shared(&mut self, instructions: f64, bytes_per_lane: i64, store: bool) {
        let wavefronts = instructions * run_wavefronts(bytes_per_lane);
        let [count, taken, least] = if store {
            [&mut self.shared_stores, &mut self.store_wavefronts, &mut self.store_wavefronts_ideal]
        } else {
            [&mut self.shared_loads, &mut self.load_wavefronts, &mut self.load_wavefronts_ideal]
        };
        *count += instructions;
        *taken += wavefronts;
        *least += wavefronts;
    }

    /// The numbers of a kernel that its decisions add to, with what each does to them.
    fn both(&mut self, other: &KernelWork, float: impl Fn(f64, f64) -> f64, int: impl Fn(i64, i64) -> i64) {
        let floats: [(&mut f64, f64); 16] = [
            (&mut self.global_loads, other.global_loads),
            (&mut self.global_stores, other.global_stores),
            (&mut self.load_sectors, other.load_sectors),
            (&mut self.store_sectors, other.store_sectors),
            (&mut self.shared_loads, other.shared_loads),
            (&mut self.shared_stores, other.shared_stores),
            (&mut self.load_wavefronts, other.load_wavefronts),
            (&mut self.load_wavefronts_ideal, other.load_wavefronts_ideal),
            (&mut self.store_wavefronts, other.store_wavefronts),
            (&mut self.store_wavefronts_ideal, other.store_wavefronts_ideal),
            (&mut self.arithmetic, other.arithmetic),
            (&mut self.special, other.special),
            (&mut self.shuffles, other.shuffles),
            (&mut self.barriers, other.barriers),
            (&mut self.iterations, other.iterations),
            (&mut self.again_bytes, other.again_bytes),
        ];
        floats.into_iter().for_each(|(one, other)| *one = float(*one, other));
        self.chain.iter_mut().zip(other.chain).for_each(|(one, other)| *one = float(*one, other));
        self.shared_bytes = int(self.shared_bytes, other.shared_bytes);
        self.held_registers = int(self.held_registers, other.held_registers);
    }

    /// Takes up what another decision of the kernel adds. What is known of the kernel as a whole stays.
    pub(super) fn add(&mut self, other: &KernelWork) {
        self.both(other, |a, b| a + b, |a, b| a + b);
    }

    /// The least of each number, of these and others.
    pub(super) fn least(mut self, other: &KernelWork) -> KernelWork {
        self.both(other, f64::min, i64::min);
        self
    }
}
