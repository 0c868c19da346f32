//! The simulator: runs a kernel by the CUDA execution model, finds races, accesses out of bounds, misaligned ones, reads
//! of unwritten memory and divergent barriers, and counts instructions, wavefronts and sectors.
//!
//! All threads of a block advance statement by statement; races are found by who accessed an element since the last
//! barrier, not by values, so lockstep hides none. Data of cp.async arrives at the wait that covers it, no sooner. A write to
//! shared bytes that several arrays have makes the others' elements unwritten, and races with their readers and writers.
mod block;
mod counts;
mod memory;
mod sampled;
#[cfg(test)]
mod tests;

pub use counts::Counts;
pub use memory::round;
pub use sampled::{sampled, Sampled, Touched};

use crate::kernel::{Array, Kernel, Space};
use memory::{held, moved, Tracked};
use serde::{Deserialize, Serialize};

/// What a kernel did wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("block {block}, thread {thread}: {kind} ({array}[{index}])")]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// Array.
    pub array: String,
    /// Element.
    pub index: i64,
    /// Linear block number.
    pub block: u32,
    /// Linear thread number.
    pub thread: u32,
}

/// Kinds of faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// Beyond the array.
    #[error("access out of bounds of {len} elements")]
    OutOfBounds {
        /// Elements.
        len: u64,
    },
    /// A vector access that does not start at a multiple of its width.
    #[error("vector access of {width} elements is not aligned")]
    Misaligned {
        /// Elements.
        width: u32,
    },
    /// Nothing was written there.
    #[error("read of memory that nothing has written")]
    Unwritten,
    /// Two threads, no barrier between.
    #[error("data race: {} what thread {other} accessed since the last barrier", if *.write { "writes" } else { "reads" })]
    Race {
        /// The other thread (`u32::MAX - 1`: several).
        other: u32,
        /// Whether this access writes.
        write: bool,
    },
    /// Two blocks.
    #[error("data race with block {other}")]
    BlockRace {
        /// The other block.
        other: u32,
    },
    /// An asynchronous copy to the element has not been waited for.
    #[error("access to the target of an asynchronous copy before its wait")]
    InFlight,
    /// TMA or `wgmma` may still read the element.
    #[error("write to memory that is read asynchronously, before the wait")]
    BeingRead,
    /// Written by a thread, read by TMA or `wgmma`.
    #[error("asynchronous read of what a thread wrote without a fence after it")]
    NoFence,
    /// Nobody can go on.
    #[error("deadlock: {0}")]
    Deadlock(String),
    /// Some threads do not reach a barrier.
    #[error("barrier that not all threads of the block reach")]
    DivergentBarrier,
    /// Some lanes that a shuffle names do not reach it.
    #[error("shuffle that not all of its {lanes} neighbouring lanes reach")]
    DivergentShuffle {
        /// Lanes that must take part.
        lanes: u32,
    },
    /// The kernel breaks a rule of the machine.
    #[error("{0}")]
    Machine(String),
    /// It was told to end: nothing is wrong.
    #[error("interrupted")]
    Stopped,
}

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether threads hold every float in `f64` and round nothing, as [`satune_ir::interp::in_double`] does. Bytes,
    /// and matrix instructions, stay those of the types.
    pub double: bool,
}

/// What a kernel did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The whole kernel, all blocks.
    pub total: Counts,
    /// The loop with the most multiply-adds (of scalars or matrices), of those that remain loops in the machine code: all its iterations.
    pub hot_loop: Counts,
    /// How often that loop's body ran (per block, all blocks).
    pub hot_iterations: u64,
    /// Blocks.
    pub blocks: u64,
    /// Elements of written parameters that hold no value.
    pub unwritten: u64,
}

/// What the machine does not do, in a block of a kernel.
fn beyond_machine(kernel: &Kernel, block: u32, message: String) -> Fault {
    Fault { kind: FaultKind::Machine(message), array: kernel.name.clone(), index: 0, block, thread: 0 }
}

/// Runs a kernel on `args`, one list of values per parameter, in order. What it writes holds no values at the start.
///
/// # Errors
/// The first fault.
pub fn run(kernel: &Kernel, args: &mut [Vec<f64>], options: &Options) -> Result<Report, Fault> {
    let known = |((_, array), arg): ((_, &crate::kernel::Array), &Vec<f64>)| vec![!array.written; arg.len()];
    let mut known: Vec<Vec<bool>> = kernel.params().zip(args.iter()).map(known).collect();
    run_while(kernel, args, &mut known, options, &|| true)
}

/// Runs a kernel on `args`, one list of values per parameter, in order; `known` says which elements hold values, before and
/// after. For as long as `go_on` says so, which is asked before each statement of a block or role.
///
/// # Errors
/// The first fault; [`FaultKind::Stopped`] is one of nobody's.
pub fn run_while(
    kernel: &Kernel,
    args: &mut [Vec<f64>],
    known: &mut [Vec<bool>],
    options: &Options,
    go_on: &dyn Fn() -> bool,
) -> Result<Report, Fault> {
    let machine = |message: String| beyond_machine(kernel, 0, message);
    let params: Vec<_> = kernel.params().map(|(id, a)| (id, a.clone())).collect();
    if params.len() != args.len() || params.len() != known.len() {
        return Err(machine(format!("{} arguments for {} parameters", args.len(), params.len())));
    }
    let mut next = 0;
    let memory = memory(kernel, options.double, |array| {
        let values = args[next].iter().map(|v| moved(held(options.double, array.dtype), *v)).collect::<Vec<_>>();
        if values.len() as u64 != array.len {
            return Err(machine(format!("{} values for {}[{}]", values.len(), array.name, array.len)));
        }
        let known = known[next].clone();
        next += 1;
        Ok(Tracked::new(array, Some((values, known)), options.double))
    })?;
    let mut runner = runner(kernel, memory, options.double, go_on)?;
    let [gx, gy, gz] = kernel.grid;
    let cluster = kernel.cluster.max(1);
    let mut number = 0;
    for z in 0..gz {
        for y in 0..gy {
            for x in (0..gx).step_by(cluster as usize) {
                runner.run_cluster((number, [x, y, z]))?;
                number += cluster;
            }
        }
    }
    let (total, hot_loop, hot_iterations) = runner.counts();
    let mut unwritten = 0;
    let memory = runner.into_memory();
    for (((id, array), arg), known) in params.iter().zip(args).zip(known) {
        if let (true, Some(tracked)) = (array.written, &memory[id.0 as usize]) {
            known.copy_from_slice(tracked.known());
            unwritten += known.iter().filter(|k| !**k).count() as u64;
            arg.clone_from(&tracked.data);
        }
    }
    Ok(Report { total, hot_loop, hot_iterations, blocks: u64::from(number), unwritten })
}

/// The arrays of a kernel that lie in memory, those in global memory as `global` makes them.
fn memory(
    kernel: &Kernel,
    double: bool,
    mut global: impl FnMut(&Array) -> Result<Tracked, Fault>,
) -> Result<Vec<Option<Tracked>>, Fault> {
    let machine = |message: String| beyond_machine(kernel, 0, message);
    if kernel.threads() == 0 || kernel.threads() > 1024 {
        return Err(machine(format!("{} threads per block; a GPU runs 1 to 1024", kernel.threads())));
    }
    if kernel.cluster > 8 || kernel.grid[0] % kernel.cluster.max(1) != 0 {
        return Err(machine(format!("clusters of {} of {} blocks along x", kernel.cluster, kernel.grid[0])));
    }
    let mut shared_end = 0;
    let mut memory: Vec<Option<Tracked>> = Vec::new();
    for array in &kernel.arrays {
        memory.push(match array.space {
            Space::Global => Some(global(array)?),
            Space::Shared => {
                if array.shared_offset % array.align.max(1) != 0 {
                    return Err(machine(format!("shared array {} is misaligned", array.name)));
                }
                let end = u64::from(array.shared_offset) + array.len * u64::from(array.dtype.bytes());
                shared_end = shared_end.max(end);
                Some(Tracked::new(array, None, double))
            }
            Space::Tensor => Some(Tracked::new(array, None, double)),
            Space::Register | Space::Fragment | Space::Opaque => None,
        });
    }
    if shared_end > u64::from(kernel.shared_bytes) {
        return Err(machine(format!("shared arrays end at {shared_end}, beyond {} bytes", kernel.shared_bytes)));
    }
    Ok(memory)
}

fn runner<'k>(
    kernel: &'k Kernel,
    memory: Vec<Option<Tracked>>,
    double: bool,
    go_on: &'k dyn Fn() -> bool,
) -> Result<block::Runner<'k>, Fault> {
    block::Runner::new(kernel, memory, double, go_on).map_err(|array| {
        let message = format!("shared array {array} overlaps another in a kernel with roles or tensor maps");
        beyond_machine(kernel, 0, message)
    })
}
