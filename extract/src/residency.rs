//! How many blocks of a kernel one multiprocessor holds at once, and what limits them.
use crate::prediction::Infeasible;
use crate::Descriptor;

/// Most registers of a thread (CUDA C++ Programming Guide, technical specifications per compute capability).
pub(crate) const MOST_REGISTERS: i64 = 255;

/// What a block takes of a multiprocessor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takes {
    pub threads: i64,
    /// Of a thread.
    pub registers: i64,
    pub shared_bytes: i64,
}

/// Registers are given to threads in eights.
pub(crate) fn rounded(registers: i64) -> i64 {
    (registers + 7) / 8 * 8
}

/// Registers per thread that can be had.
pub(crate) fn most_registers(gpu: &Descriptor, threads: i64) -> i64 {
    registers_left(gpu, threads, 1)
}

/// Partitions of a multiprocessor: each has a part of its registers, and warps are dealt to them. (NVIDIA's occupancy
/// calculator: registers bound the warps of a multiprocessor in fours.)
const PARTITIONS: i64 = 4;

/// A thread's share of the registers where so many blocks are resident; registers are given to whole warps.
fn share(gpu: &Descriptor, threads: i64, blocks: i64) -> i64 {
    let warps = (threads + 31) / 32 * blocks;
    let of_partition = ((warps + PARTITIONS - 1) / PARTITIONS).max(1);
    i64::from(gpu.registers_per_sm) / PARTITIONS / (of_partition * 32) / 8 * 8
}

/// Registers that a thread may have where so many blocks of so many threads are to be resident.
pub fn registers_left(gpu: &Descriptor, threads: i64, blocks: i64) -> i64 {
    share(gpu, threads, blocks).min(MOST_REGISTERS)
}

/// Blocks that a multiprocessor holds at once, of so many threads with so many registers each and so many bytes of shared memory.
///
/// # Errors
/// When not even one fits.
pub fn resident_blocks(gpu: &Descriptor, threads: i64, registers: i64, shared_bytes: i64) -> Result<i64, Infeasible> {
    Ok(Takes { threads, registers, shared_bytes }.residency(gpu)?.0)
}

impl Takes {
    /// Resident blocks per multiprocessor, one at least, and what limits them.
    ///
    /// # Errors
    /// When not even one fits.
    pub fn residency(&self, gpu: &Descriptor) -> Result<(i64, &'static str), Infeasible> {
        let threads = u32::try_from(self.threads).unwrap_or(u32::MAX);
        if !(1..=1024).contains(&self.threads) {
            return Err(Infeasible::Threads { threads });
        }
        let most = i64::from(gpu.shared_per_block);
        if self.shared_bytes > most {
            return Err(Infeasible::Shared { bytes: self.shared_bytes, most });
        }
        if self.registers > MOST_REGISTERS || rounded(self.registers) > share(gpu, self.threads, 1) {
            let most = most_registers(gpu, self.threads);
            return Err(Infeasible::Registers { registers: self.registers, most, threads });
        }
        Ok(self.resident(gpu))
    }

    /// The same where it is known that one fits.
    pub fn resident(&self, gpu: &Descriptor) -> (i64, &'static str) {
        let by_shared = if self.shared_bytes == 0 {
            i64::MAX
        } else {
            i64::from(gpu.shared_per_sm) / (self.shared_bytes + i64::from(gpu.shared_reserved))
        };
        let threads = self.threads.max(1);
        let of_warp = (rounded(self.registers) * 32).max(1);
        let warps = i64::from(gpu.registers_per_sm) / PARTITIONS / of_warp * PARTITIONS;
        let limits = [
            (warps / ((threads + 31) / 32), "registers"),
            (by_shared, "shared memory"),
            (i64::from(gpu.threads_per_sm) / threads, "threads"),
            (i64::from(gpu.blocks_per_sm), "blocks"),
        ];
        limits.iter().min_by_key(|l| l.0).map_or((1, "blocks"), |l| (l.0.max(1), l.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_blocks_leave_registers() {
        let gpu = Descriptor::load("h200").unwrap();
        let left = |threads, blocks| registers_left(&gpu, threads, blocks);
        assert_eq!((left(256, 2), left(128, 2), left(128, 1)), (128, 255, 255));
        // 13 warps: one partition has four of them.
        assert_eq!((left(32, 12), left(32, 13), left(32, 16)), (168, 128, 128));
    }

    #[test]
    fn the_scarcest_limits_the_blocks() {
        let gpu = Descriptor::load("h200").unwrap();
        let of = |threads, registers, shared_bytes| Takes { threads, registers, shared_bytes }.residency(&gpu);
        assert_eq!(of(256, 128, 0), Ok((2, "registers")));
        assert_eq!(of(256, 121, 0), Ok((2, "registers")), "registers are given in eights");
        assert_eq!(of(128, 32, 100_000), Ok((2, "shared memory")));
        assert_eq!(of(1024, 32, 0), Ok((2, "registers")));
        assert_eq!(of(32, 16, 0), Ok((32, "blocks")));
        // A partition has room for three warps of these, though the registers of all would do for 15.
        assert_eq!(of(32, 136, 0), Ok((12, "registers")));
        assert!(matches!(of(416, 152, 0), Err(Infeasible::Registers { most: 128, .. })));
        // A compiler may give a thread 255, which take 256.
        assert_eq!(of(256, 255, 0), Ok((1, "registers")));
        assert!(matches!(of(256, 256, 0), Err(Infeasible::Registers { most: 255, .. })));
        assert!(matches!(of(512, 136, 0), Err(Infeasible::Registers { most: 128, .. })));
        assert!(matches!(of(64, 32, 240_000), Err(Infeasible::Shared { .. })));
        assert!(matches!(of(2048, 16, 0), Err(Infeasible::Threads { threads: 2048 })));
    }
}
