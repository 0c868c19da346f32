//! A block: its warps, its shared memory, its barriers.
use super::{Extensions, Warp};
use crate::clocks::Knowledge;
use crate::launch::Launch;
use crate::memory::Shared;
use crate::program::Program;
use rustc_hash::FxHashMap;

/// One of a block's sixteen barriers.
#[derive(Clone, Debug, Default)]
pub struct Barrier {
    /// Threads that have arrived in this phase.
    pub arrived: u32,
    /// How many it takes, where the first instruction of the phase said so.
    pub expected: Option<u32>,
    /// Phases that have ended.
    pub phase: u64,
    /// What those that arrived hand on.
    pub joined: Knowledge,
    /// What those of the last phase handed on.
    pub released: Knowledge,
    /// Reductions over the predicates: threads that said true, now and in the last phase.
    pub votes: (u32, u32),
    /// Threads in the last phase.
    pub voters: u32,
    /// The instruction that arrived first in this phase.
    pub first: u32,
}

/// A block.
pub struct Block {
    /// Its number in the grid, linear.
    pub linear: u64,
    /// Its number in the grid.
    pub index: [u32; 3],
    /// Its rank in its cluster.
    pub rank: u32,
    /// Its warps.
    pub warps: Vec<Warp>,
    /// Its shared memory.
    pub shared: Shared,
    /// Its barriers.
    pub barriers: [Barrier; 16],
    /// What each location of shared memory that is used atomically hands on.
    pub synchronised: FxHashMap<u64, Knowledge>,
    /// State of families.
    pub state: Extensions,
}

impl Block {
    /// A block of a cluster, at the start.
    pub fn new(program: &Program, launch: &Launch, cluster: u64, rank: u32) -> Block {
        let index = launch.block_of(cluster, rank);
        let linear = launch.linear(index);
        let threads = launch.threads();
        let warps = (0..launch.warps())
            .map(|w| {
                let lanes = (threads - w * 32).min(32);
                let live = if lanes == 32 { u32::MAX } else { (1 << lanes) - 1 };
                let agent = Program::agent(linear, launch.warps(), w);
                Warp::new(w, live, agent, program.slots, program.local_bytes)
            })
            .collect();
        let dynamic = program.dynamic.as_ref();
        let dynamic = dynamic.map(|(name, start)| (name.clone(), *start, launch.dynamic_shared));
        let shared = Shared::new(program.shared.iter().cloned().chain(dynamic), program.shared_granule);
        Block {
            linear,
            index,
            rank,
            warps,
            shared,
            barriers: Default::default(),
            synchronised: FxHashMap::default(),
            state: Extensions::default(),
        }
    }
}
