//! Who touched which bytes last: a cell per granule (the smallest width that the program uses). While all cells of a line are
//! alike, its first stands for them: what is copied or read as a whole costs one look a line.
use crate::clocks::{Agent, Clocks};
use std::ops::Range;

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
        self.before(who, 1 << who.lane)
    }

    /// Whether it is ordered before what some lanes do that know the same.
    #[inline]
    fn before(&self, who: &Who<'_>, lanes: u32) -> bool {
        if self.agent == who.agent && (lanes & !(1 << self.lane) == 0 || self.clock < who.clock) {
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// As large as a line of the processor's cache.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Cell {
    write: Stamp,
    readers: [Readers; 2],
    /// Rarely any.
    #[allow(clippy::box_collection)]
    more: Option<Box<Vec<Readers>>>,
}

impl Cell {
    fn readers(&self) -> impl Iterator<Item = &Readers> {
        let more = self.more.as_deref().map_or(&[][..], Vec::as_slice);
        self.readers.iter().chain(more).filter(|r| r.clock != 0)
    }

    /// Whether those that read it are these, wherever in the program they did.
    #[inline]
    fn read_as(&self, others: &[Readers; 2]) -> bool {
        let key = |r: &Readers| (r.agent, r.clock, r.lanes, r.strong, r.engine);
        self.more.is_none() && self.readers.iter().zip(others).all(|(own, other)| key(own) == key(other))
    }
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
    /// One by line, for those whose granules are alike.
    lines: Vec<Cell>,
    places: Vec<LineCells>,
    /// The granules' own, of lines where they were not always alike.
    cells: Vec<Cell>,
    granules: usize,
    shift: u32,
}

/// Where a line's cells are.
#[derive(Clone, Copy, Debug, Default)]
struct LineCells {
    /// One for all of them; what its granules have does not count.
    alike: bool,
    /// The first of its granules, from 1 on; 0 while it has none.
    own: u32,
}

/// Bytes of a line, as a power of two: what one row of a matrix instruction's operand has.
const LINE: u32 = 5;

impl Shadow {
    /// For so many bytes, in granules of a power of two.
    pub fn new(bytes: usize, granule: usize, initialised: bool) -> Shadow {
        let write = Stamp { flags: INITIAL, clock: u32::from(initialised), agent: u32::MAX, ..Stamp::default() };
        let write = if initialised { write } else { Stamp::default() };
        let (shift, lines) = (granule.max(1).trailing_zeros(), bytes.div_ceil(1 << LINE));
        Shadow {
            lines: vec![Cell { write, ..Cell::default() }; lines],
            places: vec![LineCells { alike: true, own: 0 }; lines],
            cells: Vec::new(),
            granules: bytes.div_ceil(1 << shift),
            shift,
        }
    }

    /// The granules of a line.
    #[inline]
    fn of_line(&self, line: usize) -> Range<usize> {
        let per = LINE - self.shift;
        line << per..((line + 1) << per).min(self.granules)
    }

    /// The cells of a line, each with the number of its granule; one for all that are alike.
    fn cells(&self, line: usize) -> impl Iterator<Item = (&Cell, usize)> {
        let (granules, place) = (self.of_line(line), self.places[line]);
        let cells = match place {
            LineCells { alike: true, .. } => &self.lines[line..=line],
            LineCells { own, .. } => &self.cells[own as usize - 1..own as usize - 1 + granules.len()],
        };
        cells.iter().zip(granules)
    }

    /// The cell of a granule.
    #[inline]
    fn cell(&self, number: usize) -> Option<&Cell> {
        let line = number >> (LINE - self.shift);
        match *self.places.get(line)? {
            LineCells { alike: true, .. } => self.lines.get(line),
            LineCells { own, .. } => self.cells.get(own as usize - 1 + number - self.of_line(line).start),
        }
    }

    /// Gives each granule of a line its own cell.
    fn split(&mut self, line: usize) {
        let (granules, one) = (self.of_line(line).len(), &self.lines[line]);
        let place = &mut self.places[line];
        place.alike = false;
        match place.own {
            0 => {
                place.own = self.cells.len() as u32 + 1;
                self.cells.extend(std::iter::repeat_n(one, granules).cloned());
            }
            own => self.cells[own as usize - 1..][..granules].fill(one.clone()),
        }
    }

    /// Shows the cells of a stretch, as [`Shadow::visit_each`].
    #[inline]
    fn visit(&mut self, at: usize, bytes: usize, level: bool, visit: impl FnMut(&mut Cell, usize)) {
        self.visit_each(std::iter::once(at..at + bytes), level, visit);
    }

    /// Shows the cells of stretches, each with the number of its granule, one for all of a line that are alike. With `level`
    /// they are so after the visit, where a stretch has the whole line.
    #[inline]
    fn visit_each(
        &mut self,
        stretches: impl Iterator<Item = Range<usize>>,
        level: bool,
        mut visit: impl FnMut(&mut Cell, usize),
    ) {
        for stretch in stretches {
            let end = stretch.end.div_ceil(1 << self.shift).min(self.granules);
            let mut from = stretch.start >> self.shift;
            while from < end {
                let line = from >> (LINE - self.shift);
                let granules = self.of_line(line);
                let to = granules.end.min(end);
                let whole = from == granules.start && to == granules.end;
                let (mut cells, mut first) = (&mut self.lines[line..=line], from);
                if !(self.places[line].alike && whole) {
                    if self.places[line].alike {
                        self.split(line);
                    }
                    first = self.places[line].own as usize - 1 + from - granules.start;
                    cells = &mut self.cells[first..first + to - from];
                }
                cells.iter_mut().zip(from..).for_each(|(cell, number)| visit(cell, number));
                if whole && level && !self.places[line].alike {
                    self.lines[line] = self.cells[first].clone();
                    self.places[line].alike = true;
                }
                from = to;
            }
        }
    }

    /// Granules of which it is said, by their first byte, hold nothing.
    pub fn forget(&mut self, which: impl Fn(usize) -> bool) {
        let shift = self.shift;
        for number in 0..self.granules {
            if which(number << shift) {
                self.visit(number << shift, 1, false, |cell, _| cell.write = Stamp::default());
            }
        }
    }

    /// A read by some lanes of a warp that know the same, `who.lane` being one. Whether nothing is wrong with it for any of them;
    /// if something is, each must read by itself.
    #[inline]
    pub fn read_together(&mut self, at: usize, bytes: usize, who: &Who<'_>, lanes: u32) -> bool {
        let mut fine = true;
        let mut last = Stamp::default();
        self.visit(at, bytes, false, |cell, _| {
            let write = cell.write;
            if last != write || write.clock == 0 {
                fine &= match write.flags & (INITIAL | PENDING) {
                    _ if write.clock == 0 => false,
                    INITIAL => true,
                    0 => write.before(who, lanes) && (!who.engine || write.fenced(who)),
                    _ => false,
                };
                last = write;
            }
            note(cell, who, lanes);
        });
        fine
    }

    /// A read. Returns the first clash and the byte where it is; notes the read all the same.
    pub fn read(&mut self, at: usize, bytes: usize, who: &Who<'_>) -> Result<(), (Clash, usize)> {
        self.read_each(std::iter::once(at..at + bytes), who)
    }

    /// A read of several stretches, as [`Shadow::read`].
    pub fn read_each(
        &mut self,
        stretches: impl Iterator<Item = Range<usize>>,
        who: &Who<'_>,
    ) -> Result<(), (Clash, usize)> {
        let shift = self.shift;
        let mut clash = Ok(());
        let mut last: Option<Stamp> = None;
        self.visit_each(stretches, false, |cell, number| {
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
                    clash = Err((found, number << shift));
                }
                last = Some(write);
            }
            note(cell, who, 1 << who.lane);
        });
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
        let stamp = Stamp::of(who, pending);
        let mut last: Option<Stamp> = None;
        // Readers of which nothing is wrong.
        let mut fine = [Readers::default(); 2];
        self.visit(at, bytes, true, |cell, number| {
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
            if found.is_none() && !cell.read_as(&fine) {
                for readers in cell.readers() {
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
            if found.is_none() {
                fine = cell.readers;
            }
            if let (Some(found), Ok(())) = (found, &clash) {
                clash = Err((found, number << shift));
            }
            *cell = Cell { write: stamp, ..Cell::default() };
        });
        clash
    }

    /// What was announced has arrived: from now on it counts as written by `who`. Returns whether all of it was still announced
    /// (nobody has written over it).
    pub fn deliver(&mut self, at: usize, bytes: usize, who: &Who<'_>) -> bool {
        let stamp = Stamp::of(who, false);
        let mut whole = true;
        self.visit(at, bytes, false, |cell, _| {
            whole &= cell.write.flags & PENDING != 0;
            cell.write = stamp;
        });
        whole
    }

    /// Whether a byte was written by the program, and by which access.
    pub fn written(&self, at: usize) -> Option<Stamp> {
        let stamp = self.cell(at >> self.shift)?.write;
        (stamp.clock != 0 && stamp.flags & INITIAL == 0).then_some(stamp)
    }

    /// A read of this byte since it was written, if there was one.
    pub fn read_of(&self, at: usize) -> Option<Stamp> {
        let r = self.cell(at >> self.shift)?.readers().next()?;
        let lane = r.lanes.trailing_zeros().min(31) as u8;
        Some(Stamp { agent: r.agent, clock: r.clock, pc: r.pc, lane, flags: 0 })
    }

    /// An access of some agents that is not among those that are known, and whether it is a write, and where.
    pub fn unseen(&self, of: impl Fn(Agent) -> bool, seen: &Clocks) -> Option<(Stamp, bool, usize)> {
        let (mut known, mut reader) = (Stamp::default(), Readers::default());
        for (cell, i) in (0..self.places.len()).flat_map(|line| self.cells(line)) {
            let write = cell.write;
            if write.clock != 0 && write.flags & INITIAL == 0 && write != known {
                let covered = write.flags & PENDING == 0 && seen.covers(write.agent, write.clock, write.lane);
                if !covered && of(write.agent) {
                    return Some((write, true, i << self.shift));
                }
                known = write;
            }
            for r in cell.readers() {
                if *r == reader {
                    continue;
                }
                let lane = r.lanes.trailing_zeros().min(31) as u8;
                if of(r.agent) && !seen.covers(r.agent, r.clock, lane) {
                    let stamp = Stamp { agent: r.agent, clock: r.clock, pc: r.pc, lane, flags: 0 };
                    return Some((stamp, false, i << self.shift));
                }
                reader = *r;
            }
        }
        None
    }

    /// Bytes of a granule.
    pub fn granule(&self) -> usize {
        1 << self.shift
    }
}

/// Notes that some lanes read, `who.lane` among them.
#[inline]
fn note(cell: &mut Cell, who: &Who<'_>, lanes: u32) {
    let now = Readers { agent: who.agent, clock: who.clock, lanes, pc: who.pc, strong: who.strong, engine: who.engine };
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Read,
        Together(u32),
        Write { same: bool, pending: bool },
        Deliver,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Read),
            2 => any::<u32>().prop_map(Step::Together),
            3 => any::<[bool; 2]>().prop_map(|[same, pending]| Step::Write { same, pending }),
            1 => Just(Step::Deliver),
        ]
    }

    proptest! {
        /// Whether lines are looked at as one or granule by granule, the same is found.
        #[test]
        fn lines_are_their_granules(
            shift in 0_u32..4,
            steps in prop::collection::vec((step(), 0_usize..4, 0_usize..12, 0_u32..3, 1_u32..4, 0_u8..4, any::<[bool; 2]>()), 1..40),
        ) {
            let granule = 1_usize << shift;
            let (mut lines, mut single) = (Shadow::new(144, granule, false), Shadow::new(144, granule, false));
            let mut seen = Clocks::nothing();
            for (n, (step, from, length, agent, clock, lane, [strong, engine])) in steps.into_iter().enumerate() {
                if n % 5 == 4 {
                    seen.add(agent, clock, 3);
                }
                let who = Who { agent, clock, lane, pc: n as u32, strong, engine, seen: &seen, fenced: &seen };
                let (at, bytes) = (8 * (4 * from + length % 4), 8 * (1 + length));
                let each = (at..(at + bytes).min(144)).step_by(granule);
                let first = |found: Option<(Clash, usize)>| found.map_or(Ok(()), Err);
                match step {
                    Step::Read => {
                        let found: Vec<_> = each.filter_map(|at| single.read(at, granule, &who).err()).collect();
                        prop_assert_eq!(lines.read(at, bytes, &who), first(found.first().copied()));
                    }
                    Step::Together(lanes) => {
                        let lanes = lanes | 1 << lane;
                        let fine = each.fold(true, |fine, at| single.read_together(at, granule, &who, lanes) & fine);
                        prop_assert_eq!(lines.read_together(at, bytes, &who, lanes), fine);
                    }
                    Step::Write { same, pending } => {
                        let write = |at| single.write(at, granule, &who, same, pending).err();
                        let found: Vec<_> = each.filter_map(write).collect();
                        prop_assert_eq!(lines.write(at, bytes, &who, same, pending), first(found.first().copied()));
                    }
                    Step::Deliver => {
                        let whole = each.fold(true, |whole, at| single.deliver(at, granule, &who) & whole);
                        prop_assert_eq!(lines.deliver(at, bytes, &who), whole);
                    }
                }
                for at in 0..144 {
                    prop_assert_eq!(lines.written(at), single.written(at));
                    prop_assert_eq!(lines.read_of(at), single.read_of(at));
                }
                prop_assert_eq!(lines.unseen(|_| true, &seen), single.unseen(|_| true, &seen));
            }
        }

        /// What lanes read together without a clash none of them reads with one, and the other way round.
        #[test]
        fn lanes_read_together_what_each_may_read(
            writes in prop::collection::vec((0_u32..3, 1_u32..4, 0_u8..4), 4),
            known in prop::collection::vec((0_u32..3, 1_u32..4, 0_u32..16), 0..4),
            lanes in 1_u32..16,
        ) {
            let mut seen = Clocks::nothing();
            known.iter().for_each(|(agent, clock, lanes)| seen.add(*agent, *clock, *lanes));
            let who = |agent, clock, lane| Who {
                agent, clock, lane, pc: 0, strong: false, engine: false, seen: &seen, fenced: &seen,
            };
            let mut shadow = Shadow::new(32, 8, false);
            for (n, (agent, clock, lane)) in writes.iter().enumerate() {
                let _ = shadow.write(8 * n, 8, &who(*agent, *clock, *lane), false, false);
            }
            let mut each = shadow.clone();
            let reader = |lane| who(0, 2, lane);
            let fine = (0..4).filter(|l| lanes >> l & 1 == 1).all(|lane| each.read(0, 32, &reader(lane)).is_ok());
            prop_assert_eq!(shadow.read_together(0, 32, &reader(lanes.trailing_zeros() as u8), lanes), fine);
        }
    }
}
