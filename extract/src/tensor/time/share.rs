//! What the ways of operands add to a tile along k on `mma.sync`.
use crate::tensor::work::Operand;
use crate::work::Work;
use satune_ir::term::tensor::{mma_conditions, Gemm, OperandPlan};

/// Instructions per copy of a loop beyond the copy: its address in either memory, its condition (estimate).
const ROLLED_COPY: f64 = 8.0;

/// Machine instructions of a load of a fragment of `wmma`: two LDSM (machine code of sm_75).
pub(in crate::tensor) const WMMA_LOADS: f64 = 2.0;

/// What an operand's way adds to a tile along k, and takes of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::tensor) struct Share {
    /// Instructions of warps.
    pub issued: f64,
    /// Those of them that pass the load/store units.
    pub moved: f64,
    /// Wavefronts of shared memory.
    pub shared: f64,
    /// Bytes from L2.
    pub l2_bytes: f64,
    /// Tiles by which copies are started later than at the first step.
    pub late: f64,
    /// Times that a thread stands still until loads have come, whose elements are too narrow for `cp.async`.
    pub stands: f64,
    /// Registers of its copies.
    pub registers: i64,
    /// Those that each further tile under way takes.
    pub waiting: i64,
    /// Bytes of shared memory by which padded rows make its tile larger.
    pub padding: i64,
}

impl Share {
    /// Of an operand's plan.
    pub fn of(place: &Operand, gemm: &Gemm, plan: &OperandPlan) -> Share {
        Share::counted(place, gemm, plan, &place.copies(gemm, plan), &place.loads(gemm, plan))
    }

    /// The same from its counts.
    pub fn counted(place: &Operand, gemm: &Gemm, plan: &OperandPlan, copies: &Work, loads: &Work) -> Share {
        // Bytes and words that `ldmatrix` does not bring in order cost a permutation each.
        let bytes_across = place.op.word() == 4 && mma_conditions::rows_along_k(gemm, place.side);
        let permuted = if bytes_across { 4.0 * loads.matrix_moves } else { 0.0 };
        let started = copies.async_copies + copies.global_loads + copies.shared_stores;
        let moves = loads.matrix_moves * if place.op.wmma().is_some() { WMMA_LOADS } else { 1.0 };
        // A loop computes each address, and itself.
        let loops = if plan.rolled { ROLLED_COPY * (copies.async_copies + copies.global_loads) } else { 0.0 };
        let steps = (place.k / i64::from(place.op.k())).max(1) as f64;
        let tile = [place.extent, place.k];
        // Shared memory has nothing to do meanwhile where one set of fragments is waited for.
        let moved = moves + loads.shared_loads + started;
        Share {
            issued: moved + permuted + loops + copies.addresses,
            moved,
            shared: loads.shared_load_wavefronts + copies.shared_store_wavefronts,
            l2_bytes: copies.l2_sectors * 32.0,
            late: f64::from(plan.step) / steps / 2.0,
            stands: place.stands(gemm, plan.bytes),
            registers: mma_conditions::copy_registers(gemm, place.side, place.op, tile, place.threads, plan),
            waiting: place.waiting(gemm, plan.bytes),
            padding: mma_conditions::padding_of(gemm, place.side, place.op, tile, plan.layout),
        }
    }

    /// Both operands'.
    pub fn plus(&self, other: &Share) -> Share {
        Share {
            issued: self.issued + other.issued,
            moved: self.moved + other.moved,
            shared: self.shared + other.shared,
            l2_bytes: self.l2_bytes + other.l2_bytes,
            late: self.late + other.late,
            stands: self.stands + other.stands,
            registers: self.registers + other.registers,
            waiting: self.waiting + other.waiting,
            padding: self.padding + other.padding,
        }
    }

    /// Whether this adds no more than another of anything; of registers and shared memory it says nothing.
    pub fn adds_no_more(&self, other: &Share) -> bool {
        self.issued <= other.issued
            && self.moved <= other.moved
            && self.shared <= other.shared
            && self.l2_bytes <= other.l2_bytes
            && self.late <= other.late
            && self.stands <= other.stands
    }

    /// The least of each quantity, of two ways.
    pub fn least(&self, other: &Share) -> Share {
        Share {
            issued: self.issued.min(other.issued),
            moved: self.moved.min(other.moved),
            shared: self.shared.min(other.shared),
            l2_bytes: self.l2_bytes.min(other.l2_bytes),
            late: self.late.min(other.late),
            stands: self.stands.min(other.stands),
            registers: self.registers.min(other.registers),
            waiting: self.waiting.min(other.waiting),
            padding: self.padding.min(other.padding),
        }
    }
}

impl Operand {
    /// See [`Share::stands`].
    fn stands(&self, gemm: &Gemm, bytes: u32) -> f64 {
        let is_async = mma_conditions::is_async(gemm, self.side, self.op, bytes);
        if !self.op.is_async() || is_async || gemm.computed(self.side).is_some() {
            return 0.0;
        }
        let copies = mma_conditions::copies(gemm, self.side, [self.extent, self.k], self.threads, bytes);
        (copies as f64 / mma_conditions::LOADED_TOGETHER as f64).ceil()
    }

    /// See [`Share::waiting`].
    fn waiting(&self, gemm: &Gemm, bytes: u32) -> i64 {
        let of_tile = || mma_conditions::waiting_registers(gemm, self.side, [self.extent, self.k], self.threads, bytes);
        self.op.is_async().then(of_tile).unwrap_or(0)
    }

    /// No way adds less than this of anything; it says nothing of registers.
    pub fn least(&self, gemm: &Gemm) -> Share {
        let bytes = i64::from(gemm.operand.bytes());
        let moved = (self.extent * self.k * bytes) as f64;
        let widest = mma_conditions::copy_elements(gemm, self.side, 16) * bytes;
        // Of a gathered factor all may be zeros of a padding.
        let from_l2 = if gemm.gathered(self.side).is_some() { 0.0 } else { moved };
        if let Some(op) = self.op.wmma() {
            let loads = self.wmma_loads(gemm, op);
            let moves = loads.matrix_moves * WMMA_LOADS + 2.0 * moved / (32.0 * widest as f64);
            return Share {
                issued: moves,
                moved: moves,
                shared: loads.shared_load_wavefronts + moved / 128.0,
                l2_bytes: from_l2,
                padding: mma_conditions::padding_of(
                    gemm,
                    self.side,
                    self.op,
                    [self.extent, self.k],
                    mma_conditions::least_layout(self.op),
                ),
                ..Share::default()
            };
        }
        let moves = self.load_count(4) + moved / (32.0 * widest as f64);
        Share {
            stands: self.stands(gemm, 16),
            issued: moves,
            moved: moves,
            shared: self.matrices() + moved / 128.0,
            l2_bytes: from_l2,
            ..Share::default()
        }
    }
}
