//! A warp: registers, groups of lanes, what each knows.
use super::Extensions;
use crate::clocks::WarpClocks;
use crate::memory::Local;
use crate::program::{Lanes, Waiting};

/// Lanes that are at the same instruction.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The instruction.
    pub pc: u32,
    /// The lanes.
    pub mask: u32,
    /// See [`super::Context::token`].
    pub token: u64,
    /// What it waits for.
    pub waiting: Option<Waiting>,
    /// It had its turn in this round.
    pub tried: bool,
}

/// 32 threads.
pub struct Warp {
    /// Which of the block.
    pub index: u32,
    /// Lanes that have not ended.
    pub live: u32,
    /// The live lanes, by where they are.
    pub groups: Vec<Group>,
    /// Registers by slot.
    pub registers: Vec<Lanes>,
    /// What lanes know.
    pub clocks: WarpClocks,
    /// Local memory.
    pub local: Local,
    /// State of families.
    pub state: Extensions,
}

impl Default for Warp {
    fn default() -> Warp {
        Warp::new(0, 0, 0, 0, 0)
    }
}

impl Warp {
    /// A warp at the start.
    pub fn new(index: u32, live: u32, agent: u32, slots: u32, local: u64) -> Warp {
        let groups = if live == 0 {
            Vec::new()
        } else {
            vec![Group { pc: 0, mask: live, token: 0, waiting: None, tried: false }]
        };
        Warp {
            index,
            live,
            groups,
            registers: vec![[0; 32]; slots as usize],
            clocks: WarpClocks::new(agent),
            local: Local::new(local as usize),
            state: Extensions::default(),
        }
    }

    /// Whether all lanes have ended.
    pub fn ended(&self) -> bool {
        self.live == 0
    }

    /// Lanes whose predicate is true.
    #[inline]
    pub fn predicate(&self, slot: u32) -> u32 {
        let mut mask = 0;
        for (lane, value) in self.registers[slot as usize].iter().enumerate() {
            mask |= ((*value & 1) as u32) << lane;
        }
        mask
    }

    /// The group that runs next: the first in order of those that have not had their turn, or wait for nothing.
    pub(super) fn next_group(&self, order: &[u32]) -> Option<usize> {
        let position = |g: &Group| order.get(g.pc as usize).copied().unwrap_or(u32::MAX);
        let ready = self.groups.iter().enumerate().filter(|(_, g)| g.mask != 0 && !g.tried);
        ready.min_by_key(|(_, g)| position(g)).map(|(i, _)| i)
    }

    /// Groups at the same instruction become one.
    pub(super) fn merge(&mut self) {
        let mut at = 0;
        while at < self.groups.len() {
            if self.groups[at].mask == 0 {
                self.groups.swap_remove(at);
                continue;
            }
            let mut other = at + 1;
            while other < self.groups.len() {
                if self.groups[other].pc == self.groups[at].pc
                    && self.groups[other].token == 0
                    && self.groups[at].token == 0
                {
                    let group = self.groups.swap_remove(other);
                    self.groups[at].mask |= group.mask;
                    self.groups[at].tried = false;
                } else {
                    other += 1;
                }
            }
            at += 1;
        }
    }
}
