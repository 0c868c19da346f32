//! The blocks of a cluster, which run at once. Each has shared memory and registers of its own; threads, barriers and what
//! happened before are numbered through the cluster.
use super::phases::{join, Phases};
use super::roles::Agent;
use super::{Context, Fault, Runner};
use crate::kernel::{GroupOp, Kernel, Space, Stmt};
use crate::simulate::memory::Tracked;
use std::rc::Rc;

/// What a block of a cluster has of its own.
#[derive(Default)]
pub(super) struct Own {
    /// Shared arrays.
    shared: Vec<(usize, Tracked)>,
    registers: Vec<Vec<f64>>,
    known: Vec<Vec<bool>>,
    now: Context,
    block: u32,
    block_index: [u32; 3],
}

impl Own {
    /// One for each block of a cluster, the first of which begins as the current one.
    pub fn of(kernel: &Kernel, sizes: &[usize], double: bool) -> Vec<Own> {
        let shared = || {
            let arrays = kernel.arrays.iter().enumerate();
            arrays
                .filter(|(_, a)| matches!(a.space, Space::Shared | Space::Tensor))
                .map(|(i, a)| (i, Tracked::new(a, None, double)))
                .collect()
        };
        (0..kernel.cluster.max(1))
            .map(|rank| match rank {
                0 => Own { shared: shared(), ..Own::default() },
                _ => Own {
                    shared: shared(),
                    registers: sizes.iter().map(|n| vec![f64::NAN; *n]).collect(),
                    known: sizes.iter().map(|n| vec![false; *n]).collect(),
                    ..Own::default()
                },
            })
            .collect()
    }
}

impl<'k> Runner<'k> {
    /// Makes a block of the cluster the current one.
    pub(super) fn enter(&mut self, rank: usize) {
        if rank != self.rank {
            self.exchange(self.rank);
            self.exchange(rank);
            self.rank = rank;
        }
    }

    fn exchange(&mut self, rank: usize) {
        let Some(own) = self.blocks.get_mut(rank) else { return };
        for (array, tracked) in &mut own.shared {
            if let Some(Some(current)) = self.memory.get_mut(*array) {
                std::mem::swap(current, tracked);
            }
        }
        std::mem::swap(&mut self.registers, &mut own.registers);
        std::mem::swap(&mut self.known, &mut own.known);
        std::mem::swap(&mut self.now, &mut own.now);
        std::mem::swap(&mut self.block, &mut own.block);
        std::mem::swap(&mut self.block_index, &mut own.block_index);
    }

    /// Runs the blocks of a cluster, neighbours along x; `first`: linear number and position of the first.
    pub fn run_cluster(&mut self, first: (u32, [u32; 3])) -> Result<(), Fault> {
        let count = self.blocks.len();
        self.phases = Phases::new(self.threads * count);
        self.tensor_memory = Default::default();
        for rank in 0..count {
            self.enter(rank);
            let [x, y, z] = first.1;
            (self.block, self.block_index) = (first.0 + rank as u32, [x + rank as u32, y, z]);
            self.now = Context::default();
            self.known.iter_mut().for_each(|k| k.fill(false));
            for (array, memory) in self.kernel.arrays.iter().zip(&mut self.memory) {
                match (array.space, memory) {
                    (Space::Shared | Space::Tensor, Some(m)) => m.clear(),
                    (Space::Global, Some(m)) => m.next_block(),
                    _ => {}
                }
            }
        }
        let result = self.cluster_body();
        result.map_err(|fault| Fault { thread: fault.thread % self.threads.max(1) as u32, ..fault })
    }

    fn cluster_body(&mut self) -> Result<(), Fault> {
        let (kernel, count) = (self.kernel, self.blocks.len());
        let everyone = Rc::new(vec![true; self.threads]);
        for stmt in &kernel.body {
            match stmt {
                Stmt::Roles(roles) => {
                    let agents = self.part(roles)?;
                    self.run_agents(agents)?;
                }
                Stmt::Group(GroupOp::ClusterBarrier) => {
                    for rank in 0..count {
                        self.enter(rank);
                        self.now.epoch += 1;
                        self.here().barriers += self.warps(&everyone);
                        let (epoch, first) = (self.now.epoch, self.id(0));
                        self.phases.met[first..first + self.threads].fill(epoch);
                    }
                }
                stmt => {
                    for rank in 0..count {
                        self.enter(rank);
                        self.statement(stmt, &everyone)?;
                    }
                }
            }
        }
        self.end_of_cluster()?;
        self.end_of_tensor_memory()
    }

    /// All that live are at the cluster's barrier: each comes to know what happened before in all of them.
    pub(super) fn meet(&mut self, agents: &mut [Agent<'k>]) {
        let mut known = Vec::new();
        for agent in agents.iter().filter(|a| a.meets) {
            let Some(order) = &agent.context.order else { continue };
            let mut horizon = order.horizon.clone();
            let (first, end) = order.roles.get(order.role).copied().unwrap_or_default();
            (first..end).for_each(|t| horizon[t as usize] = agent.context.epoch + 1);
            join(&mut known, &horizon);
        }
        for agent in agents.iter_mut().filter(|a| a.meets) {
            std::mem::swap(&mut self.now, &mut agent.context);
            self.learn(&known);
            self.pass_barrier();
            std::mem::swap(&mut self.now, &mut agent.context);
            agent.meets = false;
        }
    }

    /// A block's shared memory is gone with the last of its threads: whoever arrives at its barriers must have done so
    /// before.
    pub(super) fn check_visits(&self, agents: &[Agent<'k>]) -> Result<(), Fault> {
        for ((target, visitor), epoch) in &self.phases.visits {
            let known = agents.iter().filter(|a| a.rank == *target).any(|agent| {
                let order = agent.context.order.as_ref();
                order.and_then(|o| o.horizon.get(*visitor)).is_some_and(|end| epoch < end)
            });
            if !known {
                let message = format!("block {target} of a cluster may end before another arrives at its barrier");
                return Err(self.machine(message));
            }
        }
        Ok(())
    }
}
