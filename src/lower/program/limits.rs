//! What one kernel may have: checked once its loops and arrays are known.
//!
//! With the errors of shared memory, of thread extents that differ between stages and of reductions that threads cannot
//! combine (which are found where those are made), this is the check that TVM calls verify_gpu_code. Vector accesses are
//! never wider than 16 bytes: lowering takes wider loops apart.
use super::error::LowerError;
use super::nest::Nest;
use crate::kernel::Array;

/// Threads of a block in z; blocks of a grid in x, y and z. The same on every GPU (CUDA C++ Programming Guide, table of
/// technical specifications per compute capability), as is what follows.
const THREADS_Z: i64 = 64;
const BLOCKS: [i64; 3] = [i32::MAX as i64, 65_535, 65_535];
/// Bytes of registers and local memory of a thread.
const LOCAL_BYTES: u64 = 512 * 1024;
/// Virtual threads, all dimensions together, as TVM limits them: each is a copy of the code.
const VIRTUAL_THREADS: i64 = 512;

/// Threads, blocks and virtual threads of a launch; `max_threads` per block.
pub fn launch(nest: &Nest, max_threads: i64) -> Result<(), LowerError> {
    let (grid, block) = (nest.extents(false), nest.extents(true));
    let product = |list: &mut dyn Iterator<Item = i64>| list.fold(1_i64, i64::saturating_mul);
    let limits = [
        ("threads per block", product(&mut block.into_iter()), max_threads),
        ("threadIdx.z", block[2], THREADS_Z),
        ("blockIdx.x", grid[0], BLOCKS[0]),
        ("blockIdx.y", grid[1], BLOCKS[1]),
        ("blockIdx.z", grid[2], BLOCKS[2]),
        ("virtual threads", product(&mut nest.vthreads.iter().map(|v| v.extent)), VIRTUAL_THREADS),
    ];
    for (what, count, most) in limits {
        if !(1..=most).contains(&count) {
            return Err(LowerError::Launch { what: what.into(), count, most });
        }
    }
    Ok(())
}

/// Whether a block has room for so many teams of its threads and for four more warps, which bring tiles.
pub fn producer(nest: &Nest, teams: i64, max_threads: i64) -> bool {
    nest.extents(true).into_iter().product::<i64>() * teams + super::group::THREADS <= max_threads
}

/// What a thread has of its own.
pub fn local_memory(arrays: &[Array]) -> Result<(), LowerError> {
    let own = || arrays.iter().filter(|a| a.space.is_private());
    let bytes = |a: &Array| a.len.saturating_mul(u64::from(a.dtype.bytes()));
    let total = own().map(bytes).fold(0, u64::saturating_add);
    if total > LOCAL_BYTES {
        let list: Vec<String> = own().map(|a| format!("{} {}", a.name, bytes(a))).collect();
        return Err(LowerError::LocalMemory { bytes: total, most: LOCAL_BYTES, list: list.join(", ") });
    }
    Ok(())
}
