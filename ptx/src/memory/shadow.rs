//! Who touched which bytes last: a cell per granule (the smallest width that the program uses).
use crate::clocks::{Agent, Clocks};

/// Who touches, now.
#[derive(Clone, Copy)]
pub struct Who<'k> {
    /// The warp or engine.
    pub agent: Agent,
    /// Its clock.
    pub clock: u32,
    /// The lane.
    pub lane: u8,
    /// The instruction.
    pub pc: u32,
    /// Atomic operations, and volatile, relaxed, acquiring, releasing ones.
    pub strong: bool,
    /// The asynchronous proxy.
    pub engine: bool,
    /// What it knows has happened.
    pub seen: &'k Clocks,
    /// What of it is visible to the asynchronous proxy; asked where `engine` is set.
    pub fenced: &'k Clocks,
}

/// An access in the past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Who.
    pub agent: Agent,
    /// When; 0: never.
    pub clock: u32,
    /// Which instruction.
    pub pc: u32,
    /// Which lane.
    pub lane: u8,
    flags: u8,
}

const STRONG: u8 = 1;
const PENDING: u8 = 2;
const ENGINE: u8 = 4;
const INITIAL: u8 = 8;

impl Stamp {
    fn of(who: &Who<'_>, pending: bool) -> Stamp {
        let flags = u8::from(who.strong) * STRONG + u8::from(pending) * PENDING + u8::from(who.engine) * ENGINE;
        Stamp { agent: who.agent, clock: who.clock, pc: who.pc, lane: who.lane, flags }
    }

    #[inline]
    fn ordered(&self, who: &Who<'_>) -> bool {
        if self.agent == who.agent && (self.lane == who.lane || self.clock < who.clock) {
            return true;
        }
        who.seen.covers(self.agent, self.clock, self.lane)
    }

    /// Whether the asynchronous proxy sees it.
    #[inline]
    fn fenced(&self, who: &Who<'_>) -> bool {
        self.flags & (ENGINE | INITIAL) != 0 || who.fenced.covers(self.agent, self.clock, self.lane)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Readers {
    agent: Agent,
    clock: u32,
    lanes: u32,
    pc: u32,
    strong: bool,
    engine: bool,
}

impl Readers {
    fn ordered(&self, who: &Who<'_>) -> bool {
        if self.agent == who.agent && (self.clock < who.clock || self.lanes & !(1 << who.lane) == 0) {
            return true;
        }
        // All of its lanes.
        let mut rest = self.lanes;
        while rest != 0 {
            let lane = rest.trailing_zeros() as u8;
            let own = self.agent == who.agent && lane == who.lane;
            if !own && !who.seen.covers(self.agent, self.clock, lane) {
                return false;
            }
            rest &= rest - 1;
        }
        true
    }

    fn stamp(&self, who: &Who<'_>) -> Stamp {
        let own = if self.agent == who.agent { 1 << who.lane } else { 0 };
        let lane = (self.lanes & !own).trailing_zeros().min(31) as u8;
        Stamp { agent: self.agent, clock: self.clock, pc: self.pc, lane, flags: 0 }
    }
}

#[derive(Clone, Debug, Default)]
struct Cell {
    write: Stamp,
    readers: [Readers; 2],
    more: Option<Vec<Readers>>,
}

/// What is wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clash {
    /// The other access is not ordered with this one: it was a write, or else a read.
    Race {
        /// The other access.
        other: Stamp,
        /// It wrote.
        wrote: bool,
    },
    /// An asynchronous write is on its way.
    Pending(Stamp),
    /// The other access is ordered, but not visible to the asynchronous proxy.
    NotFenced {
        /// The other access.
        other: Stamp,
        /// It wrote.
        wrote: bool,
    },
    /// Nothing was written there.
    Unwritten,
}

/// The cells of a stretch of memory.
#[derive(Clone, Debug, Default)]
pub struct Shadow {
    cells: Vec<Cell>,
    shift: u32,
}

impl Shadow {
    /// For so many bytes, in granules of a power of two.
    pub fn new(bytes: usize, granule: usize, initialised: bool) -> Shadow {
        let write = Stamp { flags: INITIAL, clock: u32::from(initialised), agent: u32::MAX, ..Stamp::default() };
        let write = if initialised { write } else { Stamp::default() };
        let shift = granule.max(1).trailing_zeros();
        Shadow { cells: vec![Cell { write, ..Cell::default() }; bytes.div_ceil(granule.max(1))], shift }
    }

    fn range(&self, at: usize, bytes: usize) -> std::ops::Range<usize> {
        let end = (at + bytes).div_ceil(1 << self.shift).min(self.cells.len());
        (at >> self.shift)..end
    }

    /// A read. Returns the first clash and the byte where it is; notes the read all the same.
    pub fn read(&mut self, at: usize, bytes: usize, who: &Who<'_>) -> Result<(), (Clash, usize)> {
        let shift = self.shift;
        let mut clash = Ok(());
        let mut last: Option<Stamp> = None;
        let range = self.range(at, bytes);
        for (i, cell) in self.cells[range.clone()].iter_mut().enumerate() {
            let write = cell.write;
            if last != Some(write) {
                let found = if write.clock == 0 {
                    Some(Clash::Unwritten)
                } else if write.flags & (INITIAL | PENDING) == INITIAL {
                    None
                } else if write.flags & PENDING != 0 {
                    Some(Clash::Pending(write))
                } else if !write.ordered(who) {
                    (!(write.flags & STRONG != 0 && who.strong)).then_some(Clash::Race { other: write, wrote: true })
                } else if who.engine && !write.fenced(who) {
                    Some(Clash::NotFenced { other: write, wrote: true })
                } else {
                    None
                };
                if let (Some(found), Ok(())) = (found, &clash) {
                    clash = Err((found, (range.start + i) << shift));
                }
                last = Some(write);
            }
            note(cell, who);
        }
        clash
    }

    /// A write. `same` says that the bytes there are already what is written. `pending`: it is only announced, see
    /// [`Shadow::deliver`].
    pub fn write(
        &mut self,
        at: usize,
        bytes: usize,
        who: &Who<'_>,
        same: bool,
        pending: bool,
    ) -> Result<(), (Clash, usize)> {
        let shift = self.shift;
        let mut clash = Ok(());
        let range = self.range(at, bytes);
        let stamp = Stamp::of(who, pending);
        let mut last: Option<Stamp> = None;
        for (i, cell) in self.cells[range.clone()].iter_mut().enumerate() {
            let write = cell.write;
            let mut found = None;
            if write.clock != 0 && last != Some(write) {
                if write.flags & PENDING != 0 {
                    found = Some(Clash::Pending(write));
                } else if write.flags & INITIAL == 0 {
                    if !write.ordered(who) {
                        let both = write.flags & STRONG != 0 && who.strong;
                        found = (!both && !same).then_some(Clash::Race { other: write, wrote: true });
                    } else if who.engine && !write.fenced(who) {
                        found = Some(Clash::NotFenced { other: write, wrote: true });
                    }
                }
                last = Some(write);
            }
            if found.is_none() {
                let more = cell.more.as_deref().unwrap_or_default();
                for readers in cell.readers.iter().chain(more).filter(|r| r.clock != 0) {
                    if !readers.ordered(who) {
                        if !(readers.strong && who.strong) {
                            found = Some(Clash::Race { other: readers.stamp(who), wrote: false });
                            break;
                        }
                    } else if who.engine
                        && !readers.engine
                        && !who.fenced.covers(readers.agent, readers.clock, readers.lanes.trailing_zeros() as u8)
                        && !who.seen.covers(readers.agent, readers.clock, readers.lanes.trailing_zeros() as u8)
                        && readers.agent != who.agent
                    {
                        found = Some(Clash::NotFenced { other: readers.stamp(who), wrote: false });
                        break;
                    }
                }
            }
            if let (Some(found), Ok(())) = (found, &clash) {
                clash = Err((found, (range.start + i) << shift));
            }
            cell.write = stamp;
            cell.readers = [Readers::default(); 2];
            cell.more = None;
        }
        clash
    }

    /// What was announced has arrived: from now on it counts as written by `who`. Returns whether all of it was still announced
    /// (nobody has written over it).
    pub fn deliver(&mut self, at: usize, bytes: usize, who: &Who<'_>) -> bool {
        let range = self.range(at, bytes);
        let stamp = Stamp::of(who, false);
        let mut whole = true;
        for cell in &mut self.cells[range] {
            whole &= cell.write.flags & PENDING != 0;
            cell.write = stamp;
        }
        whole
    }

    /// Whether a byte was written by the program, and by which access.
    pub fn written(&self, at: usize) -> Option<Stamp> {
        let stamp = self.cells.get(at >> self.shift)?.write;
        (stamp.clock != 0 && stamp.flags & INITIAL == 0).then_some(stamp)
    }

    /// A read of this byte since it was written, if there was one.
    pub fn read_of(&self, at: usize) -> Option<Stamp> {
        let cell = self.cells.get(at >> self.shift)?;
        let r = cell.readers.iter().find(|r| r.clock != 0)?;
        let lane = r.lanes.trailing_zeros().min(31) as u8;
        Some(Stamp { agent: r.agent, clock: r.clock, pc: r.pc, lane, flags: 0 })
    }

    /// An access of some agents that is not among those that are known, and whether it is a write, and where.
    pub fn unseen(&self, of: impl Fn(Agent) -> bool, seen: &Clocks) -> Option<(Stamp, bool, usize)> {
        let mut known = Stamp::default();
        for (i, cell) in self.cells.iter().enumerate() {
            let write = cell.write;
            if write.clock != 0 && write.flags & INITIAL == 0 && write != known {
                let covered = write.flags & PENDING == 0 && seen.covers(write.agent, write.clock, write.lane);
                if !covered && of(write.agent) {
                    return Some((write, true, i << self.shift));
                }
                known = write;
            }
            let more = cell.more.as_deref().map_or(&[][..], |m| m);
            for r in cell.readers.iter().chain(more).filter(|r| r.clock != 0) {
                let lane = r.lanes.trailing_zeros().min(31) as u8;
                if of(r.agent) && !seen.covers(r.agent, r.clock, lane) {
                    let stamp = Stamp { agent: r.agent, clock: r.clock, pc: r.pc, lane, flags: 0 };
                    return Some((stamp, false, i << self.shift));
                }
            }
        }
        None
    }

    /// Bytes of a granule.
    pub fn granule(&self) -> usize {
        1 << self.shift
    }
}

#[inline]
fn note(cell: &mut Cell, who: &Who<'_>) {
    let now = Readers {
        agent: who.agent,
        clock: who.clock,
        lanes: 1 << who.lane,
        pc: who.pc,
        strong: who.strong,
        engine: who.engine,
    };
    for reader in &mut cell.readers {
        if reader.clock == 0 {
            *reader = now;
            return;
        }
        if reader.agent == who.agent && reader.engine == who.engine {
            if reader.clock == who.clock {
                reader.lanes |= now.lanes;
                reader.strong &= now.strong;
                return;
            }
            if reader.clock < who.clock {
                *reader = now;
                return;
            }
        }
    }
    for reader in &mut cell.readers {
        if reader.ordered(who) {
            *reader = now;
            return;
        }
    }
    let more = cell.more.get_or_insert_default();
    match more.iter_mut().find(|r| r.agent == who.agent && r.engine == who.engine) {
        Some(r) if r.clock == who.clock => r.lanes |= now.lanes,
        Some(r) => *r = now,
        None => more.push(now),
    }
}
