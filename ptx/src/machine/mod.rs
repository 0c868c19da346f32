//! What runs: a unit of blocks that share what they write, its warps, and the instructions' view of them.
mod block;
mod context;
mod warp;

pub use block::{Barrier, Block};
pub use context::{lanes, who, Context, Registers};
pub use warp::{Group, Warp};

use crate::clocks::{Agent, Knowledge, ENGINES};
use crate::fault::{Fault, FaultKind, Site, Thread};
use crate::instructions::mbarrier::Mbarriers;
use crate::launch::{Delivery, Launch};
use crate::memory::{Global, Written};
use crate::program::{Flow, Program};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustc_hash::FxHashMap;
use std::any::{Any, TypeId};
use std::collections::VecDeque;

/// State of an instruction family: one value of each type.
#[derive(Default)]
pub struct Extensions(FxHashMap<TypeId, Box<dyn Any + Send>>);

impl Extensions {
    /// The value of a type, made by `Default` when it is first asked for.
    pub fn get<T: Default + Send + 'static>(&mut self) -> &mut T {
        let any = self.0.entry(TypeId::of::<T>()).or_insert_with(|| Box::<T>::default());
        any.downcast_mut().expect("kept under its own type")
    }
}

/// What completes an asynchronous operation.
pub type Delivered = Box<dyn FnOnce(&mut Unit<'_>) -> Result<(), Fault> + Send>;

impl Extensions {
    /// The value of a type, where there is one.
    pub fn known<T: Send + 'static>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }
}

/// An asynchronous operation on its way.
pub struct Pending {
    /// In words, for a hang: "cp.async.bulk at line 12".
    pub what: String,
    /// Completes it.
    pub deliver: Delivered,
}

/// Blocks that run together, and the memory as they see it.
pub struct Unit<'p> {
    /// What runs.
    pub program: &'p Program,
    /// How it was launched.
    pub launch: &'p Launch,
    /// Blocks that are resident; those of a cluster stand side by side.
    pub blocks: Vec<Block>,
    /// Global memory.
    pub global: Global,
    /// Operations on their way, oldest first.
    pub pending: VecDeque<Pending>,
    /// What each location of global memory hands on, by address.
    pub synchronised: FxHashMap<u64, Knowledge>,
    /// State of families.
    pub state: Extensions,
    /// Random choices.
    pub random: StdRng,
    /// Thread instructions so far.
    pub executed: u64,
    /// Rises with whatever may let somebody else go on.
    pub progress: u64,
    /// What was found.
    pub faults: Vec<Fault>,
    engines: FxHashMap<u64, Agent>,
    /// Who started an engine's operations: a warp and a lane.
    starters: Vec<(Agent, u8)>,
}

/// What is left of a unit.
pub struct Finished {
    /// Pages of global memory.
    pub written: Written,
    /// What was found.
    pub faults: Vec<Fault>,
    /// Thread instructions.
    pub executed: u64,
    /// The warp and the lane that started each engine's operations, from [`ENGINES`] on.
    pub starters: Vec<(Agent, u8)>,
}

/// Most different faults that one unit reports.
const FAULTS: usize = 16;
/// Instructions that a warp runs before others have their turn.
const SLICE: u64 = 4096;

impl<'p> Unit<'p> {
    /// A unit without blocks.
    pub fn new(program: &'p Program, launch: &'p Launch, global: Global, seed: u64) -> Unit<'p> {
        Unit {
            program,
            launch,
            blocks: Vec::new(),
            global,
            pending: VecDeque::new(),
            synchronised: FxHashMap::default(),
            state: Extensions::default(),
            random: StdRng::seed_from_u64(launch.options.seed ^ seed),
            executed: 0,
            progress: 0,
            faults: Vec::new(),
            engines: FxHashMap::default(),
            starters: Vec::new(),
        }
    }

    /// The agent of asynchronous operations of a kind that end in order, by a key of the family's choice (a barrier's address, a
    /// thread's bulk groups). The starter is named in faults.
    pub fn engine(&mut self, key: u64, warp: Agent, lane: u8) -> Agent {
        let starters = &mut self.starters;
        let agent = *self.engines.entry(key).or_insert_with(|| {
            starters.push((warp, lane));
            ENGINES + starters.len() as u32 - 1
        });
        self.starters[(agent - ENGINES) as usize] = (warp, lane);
        agent
    }

    /// Starts an asynchronous operation: it is delivered as the launch asks.
    ///
    /// # Errors
    /// What its delivery finds, where it is delivered at once.
    pub fn submit(&mut self, pending: Pending) -> Result<(), Fault> {
        match self.launch.options.delivery {
            Delivery::Early => self.complete(pending),
            Delivery::Random if self.random.gen_bool(0.5) => self.complete(pending),
            Delivery::Late | Delivery::Random => {
                self.pending.push_back(pending);
                Ok(())
            }
        }
    }

    fn complete(&mut self, pending: Pending) -> Result<(), Fault> {
        self.progress += 1;
        (pending.deliver)(self)
    }

    /// Delivers one operation: the oldest, or any if deliveries are random.
    ///
    /// # Errors
    /// What the delivery finds.
    pub fn deliver_one(&mut self) -> Result<bool, Fault> {
        let at = match self.launch.options.delivery {
            Delivery::Random if !self.pending.is_empty() => self.random.gen_range(0..self.pending.len()),
            _ => 0,
        };
        match self.pending.remove(at) {
            Some(pending) => self.complete(pending).map(|()| true),
            None => Ok(false),
        }
    }

    /// Notes a fault after which the program can go on.
    ///
    /// # Errors
    /// The same, once there are enough.
    pub fn report(&mut self, fault: Fault) -> Result<(), Fault> {
        // One of a pair of instructions is enough.
        let key = |f: &Fault| {
            let other = match &*f.kind {
                FaultKind::Race { other_site, .. }
                | FaultKind::NotWaited { other_site, .. }
                | FaultKind::NotFenced { other_site, .. } => Some(other_site.line),
                _ => None,
            };
            let own = f.site.as_ref().map(|s| s.line);
            (std::mem::discriminant(&*f.kind), own.min(other), own.max(other))
        };
        if self.faults.iter().any(|f| key(f) == key(&fault)) {
            return Ok(());
        }
        if self.launch.options.first_fault || self.faults.len() + 1 >= FAULTS {
            return Err(fault);
        }
        self.faults.push(fault);
        Ok(())
    }

    /// Names an agent's lane.
    pub fn thread(&self, agent: Agent, lane: u8) -> Thread {
        if agent >= ENGINES {
            return match self.starters.get((agent - ENGINES) as usize) {
                Some((warp, lane)) if *warp < ENGINES => self.thread(*warp, *lane),
                _ => Thread { block: [0; 3], thread: 0 },
            };
        }
        let warps = self.launch.warps();
        let block = self.launch.block_index(u64::from(agent / warps));
        Thread { block, thread: agent % warps * 32 + u32::from(lane) }
    }

    /// Runs clusters of blocks, by number, until all have ended; no more than `resident` blocks at once. `go_on` is asked before
    /// each turn of a warp.
    ///
    /// # Errors
    /// A fault after which nothing can go on.
    pub fn run(&mut self, mut clusters: VecDeque<u64>, resident: usize, go_on: &dyn Fn() -> bool) -> Result<(), Fault> {
        let size = self.launch.cluster_size() as usize;
        let mut idle = 0u32;
        loop {
            while self.blocks.len() + size <= resident.max(size) {
                let Some(cluster) = clusters.pop_front() else { break };
                for rank in 0..size as u32 {
                    let block = Block::new(self.program, self.launch, cluster, rank);
                    self.blocks.push(block);
                }
            }
            if self.blocks.is_empty() {
                return self.end();
            }
            let (before, executed) = (self.progress, self.executed);
            let mut ran = false;
            for block in 0..self.blocks.len() {
                for warp in 0..self.blocks[block].warps.len() {
                    if !go_on() {
                        return Err(Fault::of_program(FaultKind::Stopped));
                    }
                    ran |= self.turn(block, warp)?;
                }
            }
            if self.executed > self.launch.options.budget {
                return Err(self.no_end(executed));
            }
            if self.launch.options.delivery == Delivery::Random && self.random.gen_bool(0.5) {
                self.deliver_one()?;
            }
            let size = size.max(1);
            let done: Vec<bool> =
                self.blocks.chunks(size).map(|c| c.iter().all(|b| b.warps.iter().all(Warp::ended))).collect();
            if done.iter().any(|d| *d) {
                let mut at = 0;
                self.blocks.retain(|_| {
                    at += 1;
                    !done[(at - 1) / size]
                });
                self.progress += 1;
            }
            if self.progress != before {
                idle = 0;
                continue;
            }
            // Nobody made room for anybody: loops that poll have 64 rounds, those that wait none.
            idle += 1;
            if (!ran || idle > 64) && self.deliver_one()? {
                idle = 0;
                continue;
            }
            if !ran {
                return Err(self.hang());
            }
        }
    }

    /// After the last block: what is still on its way arrives.
    fn end(&mut self) -> Result<(), Fault> {
        while self.deliver_one()? {}
        Ok(())
    }

    fn no_end(&self, _: u64) -> Fault {
        Fault::of_program(FaultKind::Budget { instructions: self.executed })
    }

    /// A warp's turn. Whether it executed anything that did not wait.
    fn turn(&mut self, block: usize, index: usize) -> Result<bool, Fault> {
        let mut warp = std::mem::take(&mut self.blocks[block].warps[index]);
        let result = self.slice(block, &mut warp);
        self.blocks[block].warps[index] = warp;
        result
    }

    fn slice(&mut self, block: usize, warp: &mut Warp) -> Result<bool, Fault> {
        let program = self.program;
        let instructions = program.operations.len() as u32;
        let mut steps = 0u64;
        let mut ran = false;
        // Those that waited try again, each once.
        for group in &mut warp.groups {
            group.tried = false;
        }
        while let Some(at) = warp.next_group(&program.order) {
            let mut group = warp.groups.swap_remove(at);
            let alone = warp.groups.is_empty();
            group.tried = true;
            loop {
                let pc = group.pc;
                if pc >= instructions {
                    warp.live &= !group.mask;
                    self.progress += 1;
                    break;
                }
                let mut mask = group.mask;
                if let Some((slot, negated)) = program.guards[pc as usize] {
                    mask &= warp.predicate(slot) ^ if negated { u32::MAX } else { 0 };
                }
                let flow = if mask == 0 {
                    Flow::Next
                } else {
                    let mut context =
                        Context { unit: self, block, warp, mask, group: group.mask, pc, token: group.token };
                    let flow = (program.operations[pc as usize])(&mut context)?;
                    group.token = context.token;
                    flow
                };
                if let Flow::Wait(waiting) = flow {
                    group.waiting = Some(waiting);
                    warp.groups.push(group);
                    break;
                }
                if group.waiting.take().is_some() {
                    self.progress += 1;
                }
                ran = true;
                group.token = 0;
                self.executed += u64::from(group.mask.count_ones());
                steps += 1;
                match flow {
                    Flow::Next | Flow::Wait(_) => group.pc += 1,
                    Flow::Branch { taken, target } => {
                        let taken = taken & mask;
                        let rest = group.mask & !taken;
                        if rest == 0 {
                            group.pc = target;
                        } else if taken == 0 {
                            group.pc += 1;
                        } else {
                            let mut other = group;
                            other.mask = taken;
                            other.pc = target;
                            group.mask = rest;
                            group.pc += 1;
                            other.tried = false;
                            group.tried = false;
                            warp.groups.push(other);
                            warp.groups.push(group);
                            break;
                        }
                    }
                    Flow::Exit => {
                        warp.live &= !mask;
                        group.mask &= !mask;
                        self.progress += 1;
                        if group.mask == 0 {
                            break;
                        }
                        group.pc += 1;
                    }
                }
                if steps >= SLICE || !alone {
                    group.tried = false;
                    warp.groups.push(group);
                    break;
                }
            }
            warp.merge();
            if steps >= SLICE {
                break;
            }
        }
        Ok(ran)
    }

    fn hang(&self) -> Fault {
        let mut said: Vec<(String, u32)> = Vec::new();
        let mut first = None;
        for block in &self.blocks {
            for warp in &block.warps {
                for group in &warp.groups {
                    let site = self.program.site(group.pc);
                    let what = match group.waiting {
                        Some(w) if w.on == "mbarrier" => {
                            let wants = block.state.known::<Mbarriers>().and_then(|m| m.wants(w.number));
                            let place = block.shared.place(w.number);
                            format!("at the mbarrier at {place} ({})", wants.unwrap_or_default())
                        }
                        Some(w) => format!("at {} {}", w.on, w.number),
                        None => "running".into(),
                    };
                    let lane = group.mask.trailing_zeros() as u8;
                    first.get_or_insert_with(|| (site.clone(), self.thread(warp.clocks.agent, lane)));
                    let words = format!("{what}, {site}");
                    match said.iter_mut().find(|(w, _)| *w == words) {
                        Some((_, n)) => *n += group.mask.count_ones(),
                        None => said.push((words, group.mask.count_ones())),
                    }
                }
            }
        }
        // Lanes of one warp at different barriers: that is what is wrong.
        for block in &self.blocks {
            for warp in &block.warps {
                let stuck = |g: &&Group| g.waiting.is_some_and(|w| w.on == "the other threads of its warp");
                if let Some(group) = warp.groups.iter().find(stuck) {
                    let here = group.mask.count_ones();
                    let others: Vec<String> = warp
                        .groups
                        .iter()
                        .filter(|g| g.pc != group.pc)
                        .map(|g| format!("{} at {}", g.mask.count_ones(), self.program.site(g.pc)))
                        .collect();
                    let lane = group.mask.trailing_zeros() as u8;
                    return Fault {
                        kind: Box::new(FaultKind::Divergent { here, elsewhere: others.join(", ") }),
                        site: Some(self.program.site(group.pc)),
                        thread: Some(self.thread(warp.clocks.agent, lane)),
                    };
                }
            }
        }
        let mut waiting: Vec<String> = said.iter().take(6).map(|(w, n)| format!("{n} threads wait {w}")).collect();
        if said.len() > 6 {
            waiting.push(format!("and {} other groups", said.len() - 6));
        }
        if self.pending.front().is_some() {
            waiting.push(format!("{} operations are on their way", self.pending.len()));
        }
        let (site, thread) = first.map_or((None, None), |(s, t)| (Some(s), Some(t)));
        Fault { kind: Box::new(FaultKind::Hang { waiting: waiting.join("; ") }), site, thread }
    }

    /// A fault at an instruction of a warp.
    pub fn fault(&self, kind: FaultKind, pc: u32, agent: Agent, lane: u8) -> Fault {
        Fault { kind: Box::new(kind), site: Some(self.site(pc)), thread: Some(self.thread(agent, lane)) }
    }

    /// Where an instruction stands.
    pub fn site(&self, pc: u32) -> Site {
        self.program.site(pc)
    }

    /// What the unit wrote, what it found, how much it executed, and who started its engines.
    pub fn finish(self) -> Finished {
        let Unit { global, faults, executed, starters, .. } = self;
        Finished { written: global.finish(), faults, executed, starters }
    }
}
