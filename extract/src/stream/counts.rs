//! What a kernel does, counted: of its decisions one by one, and of all of them as their sum.
use super::accesses::Touched;
use satune_ir::term::stream::{Access, Issued, StreamBlock};

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
    /// Of the sectors read, those that L1 had.
    pub cached_sectors: f64,
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
    /// Instructions of arithmetic, divisions and functions included.
    pub arithmetic: f64,
    /// Clocks of a multiprocessor's tensor cores for all of it; those of no kernel that is explored here.
    pub tensor_clocks: f64,
    /// Values of f32 rounded to f16, and to bf16, two by two.
    pub narrowed: [f64; 2],
    /// Those rounded by themselves.
    pub narrowed_alone: [f64; 2],
    /// Shuffles.
    pub shuffles: f64,
    /// Barriers, per warp.
    pub barriers: f64,
    /// Instructions of loops, addresses, and what a warp begins and ends with.
    pub overhead: f64,
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
    /// Registers of a thread for what it holds at once, 32 bits each.
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

/// Instructions with which a warp begins and ends: a stack pointer that nobody uses, two or three places in block and grid, the
/// first index (two), the size of an element, the descriptor of global memory, and the exit. Read off the
/// machine code of the kernels that are explored, maps and sums of whole rows, as the numbers below are; not off kernels made for it.
const START: f64 = 8.0;
/// Instructions for a warp's first address in a buffer: an index, and a wide multiply-add.
const ADDRESS: f64 = 2.0;
/// Instructions of an iteration of a loop that is not expanded: the counter, a comparison, the branch, and addresses of 64 bits.
pub(super) const LAP: f64 = 6.0;
/// Instructions of a row of a loop with barriers, whose addresses are computed anew: those of [`LAP`], and a shift, an extension and
/// wide additions.
pub(super) const ROW: f64 = 10.0;
/// Instructions for where threads exchange partial results through shared memory: the number of the warp, its lane, their addresses.
pub(super) const EXCHANGE: f64 = 5.0;
/// Instructions around what not every thread does: a comparison, and a branch with the two that join its ways.
pub(super) const GUARD: f64 = 4.0;

/// The same where the kernel ends there: a comparison, and the exit.
pub(super) const LEAVE: f64 = 2.0;

/// Instructions that clear the words of a vector for threads that have nothing to read: two words by an instruction.
pub(super) fn zeros(vector: i64, bytes: i64) -> f64 {
    ((vector * bytes) as f64 / 8.0).ceil()
}

/// Instructions for an access of a vector at the end of a row, where some threads have nothing to read: a comparison, and zeros.
pub(super) fn guarded_load(vector: i64, bytes: i64) -> f64 {
    1.0 + zeros(vector, bytes)
}

/// How what goes over the edge of an axis is guarded: steps that need a guard, and the conditions that these come to.
pub(super) struct Edge {
    pub steps: f64,
    pub conditions: f64,
}

impl Edge {
    /// Of an axis of `extent` in tiles of so many steps, each of `wide` neighbours. Steps that the last tile has whole need none;
    /// where an edge is between two steps, blocks alone decide about all others, which then stand under one condition.
    pub fn of(extent: i64, steps: i64, wide: i64) -> Edge {
        let tile = steps * wide;
        let whole = (extent - (extent - 1) / tile * tile) / wide;
        let steps = (steps - whole) as f64;
        Edge { steps, conditions: if extent % wide == 0 { steps.min(1.0) } else { steps } }
    }
}

/// Instructions around what warps compute and access: those that they begin and end with, of so many buffers each, and those of so many
/// iterations of loops that are not expanded.
pub fn around(warps: f64, buffers: usize, laps: f64) -> f64 {
    starts(warps, buffers) + laps * LAP
}

/// What so many warps begin and end with that access so many buffers.
pub(super) fn starts(warps: f64, buffers: usize) -> f64 {
    warps * (START + ADDRESS * buffers as f64)
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
    /// Operations of a block, of so many instances of warps, and of as many of what does not change within a row; `alone`: threads
    /// have no neighbouring elements.
    pub(super) fn operations(&mut self, b: &StreamBlock, instances: f64, rows: f64, alone: bool) {
        for (issued, times) in b.issued.iter().zip([instances, rows]) {
            self.issues(issued, times, alone);
        }
    }

    /// Operations, so many times.
    pub(super) fn issues(&mut self, issued: &Issued, times: f64, alone: bool) {
        let halves = f64::from(issued.halves) - if alone { f64::from(issued.pairs) } else { 0.0 };
        self.arithmetic += times * (halves / 2.0 + f64::from(issued.special));
        let narrowed = if alone { &mut self.narrowed_alone } else { &mut self.narrowed };
        narrowed.iter_mut().zip(issued.narrowed).for_each(|(all, one)| *all += times * f64::from(one));
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
        self.shared_in(instructions, [wavefronts; 2], store);
    }

    /// Accesses to shared memory with their wavefronts, and the least for them.
    pub(super) fn shared_in(&mut self, instructions: f64, wavefronts: [f64; 2], store: bool) {
        let [count, taken, least] = if store {
            [&mut self.shared_stores, &mut self.store_wavefronts, &mut self.store_wavefronts_ideal]
        } else {
            [&mut self.shared_loads, &mut self.load_wavefronts, &mut self.load_wavefronts_ideal]
        };
        *count += instructions;
        *taken += wavefronts[0];
        *least += wavefronts[1];
    }

    /// The numbers of a kernel that its decisions add to, with what each does to them.
    fn both(&mut self, other: &KernelWork, float: impl Fn(f64, f64) -> f64) {
        let ([f16, bf16], [f16_alone, bf16_alone]) = (&mut self.narrowed, &mut self.narrowed_alone);
        let floats: [(&mut f64, f64); 20] = [
            (&mut self.global_loads, other.global_loads),
            (&mut self.global_stores, other.global_stores),
            (&mut self.load_sectors, other.load_sectors),
            (&mut self.store_sectors, other.store_sectors),
            (&mut self.cached_sectors, other.cached_sectors),
            (&mut self.shared_loads, other.shared_loads),
            (&mut self.shared_stores, other.shared_stores),
            (&mut self.load_wavefronts, other.load_wavefronts),
            (&mut self.load_wavefronts_ideal, other.load_wavefronts_ideal),
            (&mut self.store_wavefronts, other.store_wavefronts),
            (&mut self.store_wavefronts_ideal, other.store_wavefronts_ideal),
            (&mut self.arithmetic, other.arithmetic),
            (f16, other.narrowed[0]),
            (bf16, other.narrowed[1]),
            (f16_alone, other.narrowed_alone[0]),
            (bf16_alone, other.narrowed_alone[1]),
            (&mut self.shuffles, other.shuffles),
            (&mut self.barriers, other.barriers),
            (&mut self.overhead, other.overhead),
            (&mut self.again_bytes, other.again_bytes),
        ];
        floats.into_iter().for_each(|(one, other)| *one = float(*one, other));
        self.chain.iter_mut().zip(other.chain).for_each(|(one, other)| *one = float(*one, other));
    }

    /// Takes up what another decision of the kernel adds. What is known of the kernel as a whole stays. A block's registers are those
    /// of all that it finds held.
    pub(super) fn add(&mut self, other: &KernelWork) {
        self.both(other, |a, b| a + b);
        self.shared_bytes += other.shared_bytes;
        self.held_registers = self.held_registers.max(other.held_registers);
    }

    /// The least of each number, of these and others.
    pub(super) fn least(mut self, other: &KernelWork) -> KernelWork {
        self.both(other, f64::min);
        self.shared_bytes = self.shared_bytes.min(other.shared_bytes);
        self.held_registers = self.held_registers.min(other.held_registers);
        self
    }
}
