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

/// One instance of a role.
struct Agent<'k> {
    name: &'k str,
    frames: Vec<Frame<'k>>,
    context: Context,
}

enum Step {
    Moved,
    Blocked,
    Done,
}

impl<'k> Runner<'k> {
    pub(super) fn roles(&mut self, roles: &'k [Role], mask: &Mask) -> Result<(), Fault> {
        if mask.iter().any(|m| !*m) || self.now.order.is_some() {
            return Err(self.machine("warps part where not all of them are".into()));
        }
        let mut agents = self.part(roles)?;
        let shared = self.memory.iter_mut().flatten();
        let count = agents.len();
        shared.for_each(|m| m.part(count));
        loop {
            let (mut moved, mut done) = (false, 0);
            for agent in &mut agents {
                std::mem::swap(&mut self.now, &mut agent.context);
                let result = loop {
                    match self.step(&mut agent.frames) {
                        Ok(Step::Moved) => moved = true,
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
                return Ok(());
            }
            if !moved {
                let waiting: Vec<&str> = agents.iter().filter(|a| !a.frames.is_empty()).map(|a| a.name).collect();
                let kind = FaultKind::Deadlock(format!("{} wait for each other", waiting.join(", ")));
                return Err(Fault { kind, array: self.kernel.name.clone(), index: 0, block: self.block, thread: 0 });
            }
        }
    }

    fn part(&mut self, roles: &'k [Role]) -> Result<Vec<Agent<'k>>, Fault> {
        let mut ranges = Vec::new();
        let mut registers = 0;
        for role in roles {
            for i in 0..role.instances.max(1) {
                let first = (role.first_warp + i * role.warps) * 32;
                ranges.push((first, first + role.warps * 32));
            }
            registers += u64::from(role.registers.unwrap_or(0)) * u64::from(role.warps * role.instances.max(1) * 32);
            if role.registers.is_some_and(|r| r % 8 != 0 || !(24..=256).contains(&r) || role.warps % 4 != 0) {
                return Err(self.machine("setmaxnreg of other than 24 to 256 by 8, or of part of four warps".into()));
            }
        }
        let covered = ranges.iter().map(|(a, b)| b - a).sum::<u32>() as usize == self.threads;
        let in_order = ranges.first().is_some_and(|r| r.0 == 0) && ranges.windows(2).all(|w| w[0].1 == w[1].0);
        if !covered || !in_order {
            return Err(self.machine("roles that are not the block's warps in order".into()));
        }
        if registers > 65536 {
            return Err(self.machine(format!("roles with {registers} registers; an SM has 65536")));
        }
        let ranges = Rc::new(ranges);
        let epoch = self.now.epoch;
        // Of what happened before, all that a barrier of the block stands behind.
        let mut horizon = vec![epoch; self.threads];
        horizon.resize(self.phases.writers(), 0);
        let mut agents = Vec::new();
        for role in roles {
            for i in 0..role.instances.max(1) {
                let number = agents.len();
                let (first, end) = ranges[number];
                let mask = (0..self.threads as u32).map(|t| (first..end).contains(&t)).collect::<Vec<_>>();
                let order = Order { role: number, roles: ranges.clone(), horizon: horizon.clone() };
                let mut context =
                    Context { vars: self.now.vars.clone(), epoch, order: Some(Rc::new(order)), ..Context::default() };
                if let Some(var) = role.number {
                    context.vars.insert(var, Ints::Same(i64::from(i)));
                }
                let frame = Frame { list: &role.body, at: 0, mask: Rc::new(mask), repeat: None };
                agents.push(Agent { name: &role.name, frames: vec![frame], context });
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
        self.change_order(|order| {
            let (first, end) = order.roles.get(order.role).copied().unwrap_or_default();
            // Of its own threads it knows more than others can tell it.
            let own = order.horizon[first as usize..end as usize].to_vec();
            join(&mut order.horizon, known);
            order.horizon[first as usize..end as usize].copy_from_slice(&own);
        });
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
            other => {
                frame.at += 1;
                self.statement(other, &mask)?;
            }
        }
        Ok(Step::Moved)
    }
}
