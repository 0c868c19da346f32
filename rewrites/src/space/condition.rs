//! The side conditions of the rules, by name, so that a test can remove one and show that it is missed.
use std::fmt;

/// A side condition. `RULES.md` says which rule has it and what catches a rule without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Condition {
    ThreadsDivide,
    AccumulatorsFit,
    WarpsDivide,
    LanesDivide,
    VthreadsDivide,
    StepDivides,
    SplitKDivides,
    InPlaceWhole,
    ReorderRoles,
    ReorderGrouped,
    GroupDivides,
    StripFits,
    SharedFits,
    SwizzleRows,
    SwizzleParts,
    OverlapStaged,
    AsyncBytes,
    AsyncRows,
    CopyBytes,
    CopyRows,
    CopyRuns,
    CopyCoalesced,
    FragmentRun,
    FragmentBytes,
    StoreDivides,
    StoreBytes,
    StoreRows,
    MmaRows,
    MmaWarps,
    MmaRegisters,
    MmaStore,
    WgmmaOperands,
    WgmmaRows,
    WgmmaTile,
    WgmmaSums,
    WgmmaCluster,
    WgmmaStream,
    WgmmaStore,
    RingFits,
    RingParts,
}

impl Condition {
    /// All of them.
    pub const ALL: [Condition; 40] = [
        Condition::ThreadsDivide,
        Condition::AccumulatorsFit,
        Condition::WarpsDivide,
        Condition::LanesDivide,
        Condition::VthreadsDivide,
        Condition::StepDivides,
        Condition::SplitKDivides,
        Condition::InPlaceWhole,
        Condition::ReorderRoles,
        Condition::ReorderGrouped,
        Condition::GroupDivides,
        Condition::StripFits,
        Condition::SharedFits,
        Condition::SwizzleRows,
        Condition::SwizzleParts,
        Condition::OverlapStaged,
        Condition::AsyncBytes,
        Condition::AsyncRows,
        Condition::CopyBytes,
        Condition::CopyRows,
        Condition::CopyRuns,
        Condition::CopyCoalesced,
        Condition::FragmentRun,
        Condition::FragmentBytes,
        Condition::StoreDivides,
        Condition::StoreBytes,
        Condition::StoreRows,
        Condition::MmaRows,
        Condition::MmaWarps,
        Condition::MmaRegisters,
        Condition::MmaStore,
        Condition::WgmmaOperands,
        Condition::WgmmaRows,
        Condition::WgmmaTile,
        Condition::WgmmaSums,
        Condition::WgmmaCluster,
        Condition::WgmmaStream,
        Condition::WgmmaStore,
        Condition::RingFits,
        Condition::RingParts,
    ];

    /// What it asks.
    pub fn text(self) -> &'static str {
        match self {
            Condition::ThreadsDivide => "the results of a block divide among its threads",
            Condition::AccumulatorsFit => "the accumulators fit the registers of a thread",
            Condition::WarpsDivide => "the warps along an axis divide the tile",
            Condition::LanesDivide => "the lanes along an axis divide the tile",
            Condition::VthreadsDivide => "the virtual threads along an axis divide the tile",
            Condition::StepDivides => "the step divides the k tile",
            Condition::SplitKDivides => "the parts divide k",
            Condition::InPlaceWhole => "partial sums of a split reduction are not kept in place",
            Condition::ReorderRoles => "only loops over blocks, warps, lanes and registers change places",
            Condition::ReorderGrouped => "loops around a group stay as they are",
            Condition::GroupDivides => "the group divides the blocks along its axis",
            Condition::StripFits => "the strips fit in shared memory",
            Condition::SharedFits => "what is staged fits in shared memory with all its buffers",
            Condition::SwizzleRows => "a swizzled row has a power of two of 16-byte chunks, two at least",
            Condition::SwizzleParts => "swizzled rows along k begin at whole ones: tiles end with their part of k",
            Condition::OverlapStaged => "an overlapped k loop copies tiles to shared memory",
            Condition::AsyncBytes => "cp.async moves 4 bytes at least",
            Condition::AsyncRows => "what cp.async moves at once is contiguous in shared memory too",
            Condition::CopyBytes => "an access of a copy has 16 bytes at most",
            Condition::CopyRows => "the width of a copy's access divides the rows of the operand",
            Condition::CopyRuns => "the width of a copy's access divides the runs of the tile",
            Condition::CopyCoalesced => "a copy has wide accesses only along the operand's rows",
            Condition::FragmentRun => "the width of a fragment's access divides the run that it reads",
            Condition::FragmentBytes => "a fragment's access has 16 bytes at most",
            Condition::StoreDivides => "the width of a store divides the neighbouring results of a thread",
            Condition::StoreBytes => "a store has 16 bytes at most",
            Condition::StoreRows => "the width of a store divides the rows of the result",
            Condition::MmaRows => "rows of a tile are whole chunks of 16 bytes, of a number that the swizzle takes",
            Condition::MmaWarps => "whole instructions make a warp's tile, and whole warps the block's",
            Condition::MmaRegisters => "sums, fragments and addresses fit the registers that resident blocks leave",
            Condition::MmaStore => {
                "what goes by way of shared memory has 16 bits and whole chunks, is no partial sum, and fits the ring"
            }
            Condition::WgmmaOperands => "wgmma (tcgen05) takes the operands in their order of storage",
            Condition::WgmmaRows => "the TMA takes the operands' rows, as they are or copied first",
            Condition::WgmmaTile => "whole instructions of wgmma (tcgen05) make the tile, and the TMA moves it",
            Condition::WgmmaSums => "a consumer's sums fit its registers, or tensor memory",
            Condition::WgmmaStream => "no block of stream-K is idle, and k is not split otherwise",
            Condition::WgmmaCluster => "clusters divide tiles and grid, and their blocks what they share",
            Condition::WgmmaStore => "what the TMA stores has 16 or 32 bits, whole chunks and boxes, is no partial sum, and in a batch does not reach into the next product's",
            Condition::RingFits => "the ring fits in shared memory",
            Condition::RingParts => "a part of k has whole tiles of the ring",
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
