//! Warps with roles: each role runs until it must wait, then the next; where none can go on, that is a deadlock.
use super::phases::join;
use super::{Context, Fault, FaultKind, Ints, Mask, Order, Runner};
use crate::kernel::{GroupOp, LocalVar, Role, Stmt, Unroll};
use std::rc::Rc;

/// A list of statements under way.
struct Frame<'k> {
    list: &'k [Stmt],
    at: usize,
    mask: Mask,
    repeat: Option<Repeat>,
}

/// The loop whose body it is.
struct Repeat {
    var: LocalVar,
    next: i64,
    end: i64,
    /// Its key among the counts, where it remains a loop.
    key: Option<usize>,
}

/// One instance of a role of one block.
pub(super) struct Agent<'k> {
    name: &'k str,
    frames: Vec<Frame<'k>>,
    pub context: Context,
    /// Its block's number in the cluster.
    pub rank: usize,
    /// It stands at the cluster's barrier.
    pub meets: bool,
}

enum Step {
    Moved,
    Blocked,
    Meets,
    Done,
}

impl<'k> Runner<'k> {
    /// Runs the roles of all blocks to their end.
    pub(super) fn run_agents(&mut self, mut agents: Vec<Agent<'k>>) -> Result<(), Fault> {
        loop {
            let (mut moved, mut done) = (false, 0);
            for agent in &mut agents {
                self.enter(agent.rank);
                std::mem::swap(&mut self.now, &mut agent.context);
                let result = loop {
                    if agent.meets {
                        break Ok(Step::Blocked);
                    }
                    match self.step(&mut agent.frames) {
                        Ok(Step::Moved) => moved = true,
                        Ok(Step::Meets) => (agent.meets, moved) = (true, true),
                        other => break other,
                    }
                };
                let is_over = matches!(result, Ok(Step::Done));
                if is_over && !self.now.matrix.is_empty() {
                    return Err(self.machine("a role ends while its wgmma is under way".into()));
                }
                std::mem::swap(&mut self.now, &mut agent.context);
                result?;
                done += usize::from(is_over);
            }
            if done == agents.len() {
                return self.check_visits(&agents);
            }
            let meeting = agents.iter().filter(|a| a.meets).count();
            if meeting > 0 && meeting + done == agents.len() {
                self.meet(&mut agents);
            } else if !moved {
                let waiting: Vec<&str> = agents.iter().filter(|a| !a.frames.is_empty()).map(|a| a.name).collect();
                let kind = FaultKind::Deadlock(format!("{} wait for each other", waiting.join(", ")));
                return Err(Fault { kind, array: self.kernel.name.clone(), index: 0, block: self.block, thread: 0 });
            }
        }
    }

    /// The warps of all blocks part.
    pub(super) fn part(&mut self, roles: &'k [Role]) -> Result<Vec<Agent<'k>>, Fault> {
        let mut own = Vec::new();
        let mut registers = 0;
        for role in roles {
            for i in 0..role.instances.max(1) {
                let first = (role.first_warp + i * role.warps) * 32;
                own.push((first, first + role.warps * 32));
            }
            registers += u64::from(role.registers.unwrap_or(0)) * u64::from(role.warps * role.instances.max(1) * 32);
            if role.registers.is_some_and(|r| r % 8 != 0 || !(24..=256).contains(&r) || role.warps % 4 != 0) {
                return Err(self.machine("setmaxnreg of other than 24 to 256 by 8, or of part of four warps".into()));
            }
        }
        let covered = own.iter().map(|(a, b)| b - a).sum::<u32>() as usize == self.threads;
        let in_order = own.first().is_some_and(|r| r.0 == 0) && own.windows(2).all(|w| w[0].1 == w[1].0);
        if !covered || !in_order {
            return Err(self.machine("roles that are not the block's warps in order".into()));
        }
        if registers > 65536 {
            return Err(self.machine(format!("roles with {registers} registers; an SM has 65536")));
        }
        let (count, threads) = (self.blocks.len(), self.threads as u32);
        let ranges: Vec<(u32, u32)> = (0..count as u32)
            .flat_map(|rank| own.iter().map(move |(a, b)| (rank * threads + a, rank * threads + b)))
            .collect();
        let ranges = Rc::new(ranges);
        let mut agents = Vec::new();
        for rank in 0..count {
            self.enter(rank);
            self.memory.iter_mut().flatten().for_each(|m| m.part(ranges.len()));
            let epoch = self.now.epoch;
            // Of what happened before, all that a barrier of the block stands behind; of other blocks, of the cluster.
            let mut horizon = self.phases.met.clone();
            let first = self.id(0);
            horizon[first..first + self.threads].fill(epoch);
            horizon.resize(self.phases.writers(), 0);
            let mut place = 0;
            for role in roles {
                for i in 0..role.instances.max(1) {
                    let number = agents.len();
                    let (first, end) = own[place];
                    place += 1;
                    let mask = (0..threads).map(|t| (first..end).contains(&t)).collect::<Vec<_>>();
                    let order = Order { role: number, roles: ranges.clone(), horizon: horizon.clone() };
                    let mut context = Context {
                        vars: self.now.vars.clone(),
                        epoch,
                        order: Some(Rc::new(order)),
                        ..Context::default()
                    };
                    if let Some(var) = role.number {
                        context.vars.insert(var, Ints::Same(i64::from(i)));
                    }
                    let frame = Frame { list: &role.body, at: 0, mask: Rc::new(mask), repeat: None };
                    agents.push(Agent { name: &role.name, frames: vec![frame], context, rank, meets: false });
                }
            }
        }
        Ok(agents)
    }

    /// A barrier of the whole role.
    pub(super) fn pass_barrier(&mut self) {
        self.now.epoch += 1;
        let epoch = self.now.epoch;
        self.change_order(|order| {
            let (first, end) = order.roles.get(order.role).copied().unwrap_or_default();
            (first..end).for_each(|t| order.horizon[t as usize] = epoch);
        });
    }

    /// The role comes to know what happened before.
    pub(super) fn learn(&mut self, known: &[u32]) {
        self.change_order(|order| join(&mut order.horizon, known));
    }

    fn change_order(&mut self, change: impl FnOnce(&mut Order)) {
        if let Some(order) = &self.now.order {
            let mut new = Order { role: order.role, roles: order.roles.clone(), horizon: order.horizon.clone() };
            change(&mut new);
            self.now.order = Some(Rc::new(new));
        }
    }

    fn step(&mut self, frames: &mut Vec<Frame<'k>>) -> Result<Step, Fault> {
        let Some(frame) = frames.last_mut() else { return Ok(Step::Done) };
        let Some(stmt) = frame.list.get(frame.at) else {
            match &mut frame.repeat {
                Some(r) if r.next < r.end => {
                    self.now.vars.insert(r.var, Ints::Same(r.next));
                    r.next += 1;
                    frame.at = 0;
                    if let Some(key) = r.key {
                        self.totals.entry(key).or_default().1 += 1;
                    }
                }
                repeat => {
                    if repeat.as_ref().is_some_and(|r| r.key.is_some()) {
                        self.now.loops.pop();
                    }
                    frames.pop();
                }
            }
            return Ok(Step::Moved);
        };
        let mask = frame.mask.clone();
        match stmt {
            Stmt::For { var, start, extent, unroll, body, .. } => {
                frame.at += 1;
                let (Ints::Same(start), Ints::Same(extent)) = (self.index(start)?, self.index(extent)?) else {
                    return Err(self.machine("a loop whose bounds differ between threads".into()));
                };
                let key = (*unroll != Unroll::Full).then_some(std::ptr::from_ref(stmt) as usize);
                self.now.loops.extend(key);
                let repeat = Repeat { var: *var, next: start, end: start.saturating_add(extent), key };
                // At its end at once: the first iteration begins like the others.
                frames.push(Frame { list: body, at: body.len(), mask, repeat: Some(repeat) });
            }
            Stmt::If { cond, then, otherwise } => {
                frame.at += 1;
                let holds = self.condition(cond)?;
                for (want, list) in [(false, otherwise), (true, then)] {
                    let side: Vec<bool> = mask.iter().zip(&holds).map(|(m, h)| *m && *h == want).collect();
                    if side.iter().any(|b| *b) {
                        frames.push(Frame { list, at: 0, mask: Rc::new(side), repeat: None });
                    }
                }
            }
            Stmt::Group(GroupOp::WaitPhase { barrier, parity }) => {
                if !self.try_wait(barrier.0, &barrier.1, parity, &mask)? {
                    return Ok(Step::Blocked);
                }
                frame.at += 1;
            }
            Stmt::Group(GroupOp::ClusterBarrier) => {
                frame.at += 1;
                let role = self.now.order.as_ref().and_then(|o| o.roles.get(o.role).copied());
                let threads = mask.iter().filter(|m| **m).count();
                if role.map(|(first, end)| (end - first) as usize) != Some(threads) {
                    return Err(self.machine("a cluster's barrier that part of a role reaches".into()));
                }
                self.here().barriers += self.warps(&mask);
                return Ok(Step::Meets);
            }
            other => {
                frame.at += 1;
                self.statement(other, &mask)?;
            }
        }
        Ok(Step::Moved)
    }
}
