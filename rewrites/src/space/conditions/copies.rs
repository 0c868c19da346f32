//! Conditions of accesses: copies to shared memory, and stores.
use super::refusal::{unless, Held, Refusal};
use satune_ir::term::{Axis, Contraction, Side};

/// Elements of an access that are offered.
pub const WIDTHS: [i64; 4] = [1, 2, 4, 8];

/// Bytes of an access, at most.
pub(super) const MOST_BYTES: i64 = 16;

/// An access of a copy has 16 bytes at most.
pub fn copy_bytes(side: Side, vector: i64, element: i64) -> Held {
    let bytes = vector * element;
    unless(vector == 1 || bytes <= MOST_BYTES, Refusal::CopyBytes { side, vector, bytes })
}

/// The width of a copy's access divides the rows of the operand.
pub fn copy_rows(side: Side, vector: i64, row: i64) -> Held {
    unless(row % vector.max(1) == 0, Refusal::CopyRows { side, vector, row })
}

/// The width of a copy's access divides the runs of the tile.
pub fn copy_runs(side: Side, vector: i64, run: i64) -> Held {
    unless(run % vector.max(1) == 0, Refusal::CopyRuns { side, vector, run })
}

/// A copy has wide accesses only along the operand's rows.
pub fn copy_coalesced(side: Side, vector: i64, coalesced: bool) -> Held {
    unless(vector == 1 || coalesced, Refusal::CopyCoalesced { side })
}

/// Whether the last tile along k reaches into the next part of k.
pub fn cut([part, all]: [i64; 2], tile: i64) -> bool {
    part != all && part % tile.max(1) != 0
}

/// Wide accesses leave no thread without an element.
pub fn copy_threads(side: Side, vector: i64, threads: i64, tile: i64) -> Held {
    let all = vector * threads;
    unless(vector == 1 || all <= tile, Refusal::CopyThreads { side, threads, vector, all, tile })
}

/// cp.async moves 4 bytes at least.
pub fn async_bytes(side: Side, vector: i64, element: i64) -> Held {
    let bytes = vector * element;
    unless(bytes >= 4, Refusal::AsyncBytes { side, vector, bytes })
}

/// What cp.async moves at once is contiguous in shared memory too.
pub fn async_rows(side: Side, vector: i64, same_rows: bool) -> Held {
    unless(vector == 1 || same_rows, Refusal::AsyncRows { side, vector })
}

/// A store has 16 bytes at most.
pub fn store_bytes(vector: i64, element: i64) -> Held {
    let bytes = vector * element;
    unless(vector == 1 || bytes <= MOST_BYTES, Refusal::StoreBytes { vector, bytes })
}

/// The width of a store divides the neighbouring results of a thread.
pub fn store_divides(vector: i64, n: i64) -> Held {
    unless(n % vector.max(1) == 0, Refusal::StoreDivides { vector, n })
}

/// The width of a store divides the rows of the result.
pub fn store_rows(vector: i64, row: i64) -> Held {
    unless(vector == 1 || row % vector.max(1) == 0, Refusal::StoreRows { vector, row })
}

/// Wide stores are of sums in registers, along rows of the result.
pub fn store_along(vector: i64, in_registers: bool, contraction: &Contraction) -> Held {
    let refuse = |why| Err(Refusal::StoreAlong { vector, why });
    if vector > 1 && !contraction.c.contiguous_along(Axis::N) {
        return refuse("rows of the result do not run along n");
    }
    if vector > 1 && !in_registers {
        return refuse("sums are kept in global memory");
    }
    Ok(())
}
