//! What a thread knows has happened: vector clocks over warps, with the lanes of a warp told apart.
//!
//! An access is stamped with its agent (a warp, or an asynchronous engine), the agent's clock, and its lane. A warp's clock
//! rises when all its live lanes meet. An entry `(clock, lanes)` of an agent covers every access of that agent at smaller clocks,
//! and at that clock the accesses of those lanes.
use std::sync::Arc;

/// A warp of the grid, or an asynchronous engine (from [`ENGINES`] on).
pub type Agent = u32;

/// The first agent that is no warp.
pub const ENGINES: Agent = 1 << 31;

/// A set of accesses, closed towards the past: entries by agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clocks(Vec<(Agent, u32, u32)>);

impl Clocks {
    /// No access at all.
    pub const fn nothing() -> Clocks {
        Clocks(Vec::new())
    }

    /// Whether an access is among them.
    #[inline]
    pub fn covers(&self, agent: Agent, clock: u32, lane: u8) -> bool {
        match self.0.binary_search_by_key(&agent, |e| e.0) {
            Ok(i) => {
                let (_, known, lanes) = self.0[i];
                clock < known || (clock == known && lanes >> lane & 1 == 1)
            }
            Err(_) => false,
        }
    }

    /// Adds an agent's accesses below a clock, and at that clock those of some lanes.
    pub fn add(&mut self, agent: Agent, clock: u32, lanes: u32) {
        match self.0.binary_search_by_key(&agent, |e| e.0) {
            Ok(i) => {
                let entry = &mut self.0[i];
                if clock > entry.1 {
                    (entry.1, entry.2) = (clock, lanes);
                } else if clock == entry.1 {
                    entry.2 |= lanes;
                }
            }
            Err(i) => self.0.insert(i, (agent, clock, lanes)),
        }
    }

    /// Adds all of another.
    pub fn join(&mut self, other: &Clocks) {
        if other.0.is_empty() || self == other {
            return;
        }
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
            return;
        }
        for (agent, clock, lanes) in &other.0 {
            self.add(*agent, *clock, *lanes);
        }
    }
}

/// What a thread knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Knowledge {
    /// Accesses that happened before.
    pub seen: Clocks,
    /// Accesses of the generic proxy that a proxy fence made visible to the asynchronous one.
    pub fenced: Clocks,
    /// What a relaxed atomic operation hands on: what was seen at the last fence.
    pub published: Clocks,
    /// What relaxed atomic operations have read, to be seen from the next fence on.
    pub collected: Clocks,
}

impl Knowledge {
    /// Takes over what another thread hands on.
    pub fn acquire(&mut self, other: &Knowledge) {
        self.seen.join(&other.seen);
        self.fenced.join(&other.fenced);
    }
}

/// The clocks of a warp: one knowledge for all lanes, until some of them learn what the others do not.
#[derive(Clone, Debug)]
pub struct WarpClocks {
    /// The warp, as an agent.
    pub agent: Agent,
    /// Its clock, from 1.
    pub clock: u32,
    base: Arc<Knowledge>,
    lanes: Option<Box<[Arc<Knowledge>; 32]>>,
}

impl WarpClocks {
    /// A warp that knows nothing yet.
    pub fn new(agent: Agent) -> WarpClocks {
        WarpClocks { agent, clock: 1, base: Arc::default(), lanes: None }
    }

    /// What a lane knows.
    #[inline]
    pub fn lane(&self, lane: usize) -> &Knowledge {
        match &self.lanes {
            None => &self.base,
            Some(lanes) => &lanes[lane],
        }
    }

    /// Whether all lanes know the same.
    #[inline]
    pub fn uniform(&self) -> bool {
        self.lanes.is_none()
    }

    /// Changes what some lanes know.
    pub fn update(&mut self, mask: u32, live: u32, change: impl Fn(&mut Knowledge)) {
        if self.lanes.is_none() && mask == live {
            change(Arc::make_mut(&mut self.base));
            return;
        }
        let base = &self.base;
        let lanes = self.lanes.get_or_insert_with(|| Box::new(std::array::from_fn(|_| base.clone())));
        // Lanes that know the same go on sharing it.
        let mut changed: Vec<(*const Knowledge, Arc<Knowledge>)> = Vec::new();
        for lane in (0..32).filter(|l| mask >> l & 1 == 1) {
            let before = Arc::as_ptr(&lanes[lane]);
            if let Some((_, after)) = changed.iter().find(|(b, _)| *b == before) {
                lanes[lane] = after.clone();
            } else {
                let mut after = (*lanes[lane]).clone();
                change(&mut after);
                // The former one is kept alive, so that its address stays its own.
                let after = Arc::new(after);
                lanes[lane] = after.clone();
                changed.push((before, after));
            }
        }
    }

    /// What some lanes hand on: all that they know, and their own accesses so far. With `all`, the warp's clock rises.
    pub fn release(&mut self, mask: u32, live: u32) -> Knowledge {
        let mut out = self.joined(mask);
        let all = mask == live;
        let (clock, lanes) = if all { (self.clock + 1, 0) } else { (self.clock, mask) };
        out.seen.add(self.agent, clock, lanes);
        if all {
            self.clock += 1;
        }
        out
    }

    /// The lanes of a mask meet: each knows what the others knew and did.
    pub fn meet(&mut self, mask: u32, live: u32) {
        if mask == live {
            if self.lanes.is_some() {
                self.base = Arc::new(self.joined(mask));
                self.lanes = None;
            }
            self.clock += 1;
        } else {
            let mut out = self.joined(mask);
            out.seen.add(self.agent, self.clock, mask);
            self.update(mask, live, |k| {
                k.acquire(&out);
                k.published.join(&out.published);
                k.collected.join(&out.collected);
            });
        }
    }

    /// All that some lanes know.
    pub fn joined(&self, mask: u32) -> Knowledge {
        let Some(lanes) = &self.lanes else { return (*self.base).clone() };
        let mut out: Option<Knowledge> = None;
        let mut last: *const Knowledge = std::ptr::null();
        for lane in (0..32).filter(|l| mask >> l & 1 == 1) {
            if std::ptr::eq(Arc::as_ptr(&lanes[lane]), last) {
                continue;
            }
            last = Arc::as_ptr(&lanes[lane]);
            match &mut out {
                None => out = Some((*lanes[lane]).clone()),
                Some(out) => {
                    out.acquire(&lanes[lane]);
                    out.published.join(&lanes[lane].published);
                    out.collected.join(&lanes[lane].collected);
                }
            }
        }
        out.unwrap_or_default()
    }

    /// A fence: what was collected is seen; what is seen is handed on by the next atomic operations.
    pub fn fence(&mut self, mask: u32, live: u32) {
        let (agent, clock) = (self.agent, self.clock);
        // Own accesses of the lanes: `lanes` at this clock, which only they have made since they met.
        self.update(mask, live, |k| {
            let collected = std::mem::take(&mut k.collected);
            k.seen.join(&collected);
            let mut published = k.seen.clone();
            published.add(agent, clock, mask);
            k.published = published;
        });
    }

    /// A proxy fence: what is seen, and own accesses, are visible to the asynchronous proxy.
    pub fn fence_proxy(&mut self, mask: u32, live: u32) {
        let (agent, clock) = (self.agent, self.clock);
        self.update(mask, live, |k| {
            let seen = k.seen.clone();
            k.fenced.join(&seen);
            k.fenced.add(agent, clock, mask);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_hands_on_its_own_accesses_only() {
        let mut warp = WarpClocks::new(0);
        let known = warp.release(1, u32::MAX);
        assert!(known.seen.covers(0, 1, 0));
        assert!(!known.seen.covers(0, 1, 1));
        warp.meet(u32::MAX, u32::MAX);
        let known = warp.release(1, u32::MAX);
        assert!(known.seen.covers(0, 1, 1));
        assert!(!known.seen.covers(0, 2, 1));
    }

    #[test]
    fn a_lane_learns_alone_until_the_warp_meets() {
        let mut warp = WarpClocks::new(0);
        let mut other = WarpClocks::new(1);
        let known = other.release(u32::MAX, u32::MAX);
        warp.update(1, u32::MAX, |k| k.acquire(&known));
        assert!(warp.lane(0).seen.covers(1, 1, 7));
        assert!(!warp.lane(1).seen.covers(1, 1, 7));
        warp.meet(u32::MAX, u32::MAX);
        assert!(warp.lane(1).seen.covers(1, 1, 7));
    }
}
