//! One partition of a multiprocessor: a scheduler with its warps, registers and units.
//!
//! In each clock one warp issues: the one that issued last as long as it can, else the youngest that can (Huerta et al.,
//! "Analyzing Modern NVIDIA GPU cores", 2025, which also has the ports of the registers, the reuse cache and the queue before the
//! load/store units). A warp can when its stall count is over, the scoreboards that it waits for are clear, and the unit is
//! free. The partitions of a multiprocessor run the same warps, so what they share gives each its part.
use super::control::SCOREBOARDS;
use super::instruction::{Access, Effect, Step, Unit};
use super::rates::Rates;
use std::collections::VecDeque;

/// Instructions that wait for the load/store units without stopping their warps (Huerta et al.: four, and one being taken).
const QUEUE: usize = 5;
/// Clocks in which an instruction reads its registers (Huerta et al.).
const READ_CLOCKS: u64 = 3;
/// Operands of an access are read so long after the units took it, clocks (estimate; 5 to 15).
const OPERANDS_READ: u64 = 9;

/// The warps of a partition, and how the multiprocessor is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warps {
    /// Warps of this partition.
    pub here: usize,
    /// Of those, warps of one block: a barrier waits for them.
    pub of_block: usize,
    /// Partitions that have warps, 1 to 4.
    pub partitions: u32,
}

impl Warps {
    /// Of so many resident blocks of so many warps: the fullest partition.
    pub fn of(blocks: usize, warps: usize) -> Warps {
        let all = (blocks * warps).max(1);
        Warps { here: all.div_ceil(4), of_block: warps.div_ceil(4).max(1), partitions: all.min(4) as u32 }
    }
}

/// What a partition does in the steady state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Steady {
    /// Clocks for one iteration of each of its warps.
    pub clocks: f64,
    /// Share of the clocks in which each unit is busy: issue slots, then units by name.
    pub busy: Vec<(&'static str, f64)>,
}

struct Warp {
    next: usize,
    ready: u64,
    /// When the holders of each scoreboard are done.
    boards: [Vec<u64>; SCOREBOARDS],
    copies: u64,
    /// When its warpgroup's matrix instructions are done, by group, and the last of those that no group has yet.
    groups: Vec<u64>,
    matrices: u64,
    /// It stands at a barrier.
    waits: bool,
}

/// Units of a partition: when each is free again, and how long it was busy.
#[derive(Default)]
struct Units {
    free: [f64; UNITS],
    busy: [f64; UNITS],
    ports: [u64; 2],
    /// Reuse cache: for each slot and bank a warp's register.
    kept: [[Option<(usize, u8)>; 2]; 3],
    /// When the units take what is in the queue.
    queue: VecDeque<u64>,
}

const UNITS: usize = 8;
const NAMES: [&str; UNITS] = [
    "multiply-add units",
    "multiply-add units",
    "half-precision units",
    "integer units",
    "double-precision units",
    "special-function units",
    "tensor cores",
    "load/store units and shared memory",
];
const LITE: usize = 1;
const MEMORY: usize = 7;

/// Runs a loop until it repeats itself well enough: iterations before the count begins, and those counted, for each warp.
const WARM: usize = 6;
const COUNTED: usize = 24;

/// Clocks per iteration of a loop.
pub(crate) fn steady(body: &[Step], warps: Warps, rates: &Rates) -> Steady {
    let mut partition = Partition::new(body, warps, rates);
    let start = partition.run(WARM * warps.here);
    let (issued, busy) = (partition.issued, partition.units.busy);
    let end = partition.run((WARM + COUNTED) * warps.here);
    let clocks = (end - start) as f64;
    let mut shares = vec![("issue slots", (partition.issued - issued) as f64 / clocks)];
    for unit in 0..UNITS {
        let mut share = (partition.units.busy[unit] - busy[unit]) / clocks;
        match unit {
            LITE => continue,
            0 if rates.lite => share = (share + (partition.units.busy[LITE] - busy[LITE]) / clocks) / 2.0,
            _ => {}
        }
        if share > 0.0 {
            shares.push((NAMES[unit], share.min(1.0)));
        }
    }
    Steady { clocks: clocks / COUNTED as f64, busy: shares }
}

struct Partition<'a> {
    body: &'a [Step],
    rates: &'a Rates,
    of_block: usize,
    share: f64,
    warps: Vec<Warp>,
    units: Units,
    last: usize,
    clock: u64,
    issued: u64,
    iterations: usize,
}

impl<'a> Partition<'a> {
    fn new(body: &'a [Step], warps: Warps, rates: &'a Rates) -> Partition<'a> {
        let warp = |_| Warp {
            next: 0,
            ready: 0,
            boards: Default::default(),
            copies: 0,
            groups: Vec::new(),
            matrices: 0,
            waits: false,
        };
        Partition {
            body,
            rates,
            of_block: warps.of_block,
            share: f64::from(warps.partitions),
            warps: (0..warps.here).map(warp).collect(),
            units: Units::default(),
            last: 0,
            clock: 0,
            issued: 0,
            iterations: 0,
        }
    }

    /// Runs until so many iterations of all warps together are done; the clock then.
    fn run(&mut self, iterations: usize) -> u64 {
        while self.iterations < iterations {
            let Some((warp, clock)) = self.choose() else { break };
            self.issue(warp, clock);
        }
        self.clock
    }

    /// The warp that issues next, and when.
    fn choose(&self) -> Option<(usize, u64)> {
        let times: Vec<Option<u64>> = (0..self.warps.len()).map(|w| self.can_issue(w)).collect();
        let clock = times.iter().flatten().min()?;
        let ready = |w: &usize| times[*w].is_some_and(|t| t <= *clock);
        let warp = Some(self.last).filter(ready).or_else(|| (0..times.len()).rev().find(ready))?;
        Some((warp, *clock))
    }

    /// The first clock in which a warp can issue; none where it stands at a barrier.
    fn can_issue(&self, number: usize) -> Option<u64> {
        let warp = &self.warps[number];
        if warp.waits {
            return None;
        }
        let step = &self.body[warp.next];
        let mut clock = warp.ready.max(self.clock);
        for (board, holders) in warp.boards.iter().enumerate() {
            if step.control.wait >> board & 1 == 1 {
                clock = clock.max(holders.iter().copied().max().unwrap_or(0));
            }
        }
        if let Effect::WaitFor { board, left } = step.effect {
            let mut holders = warp.boards.get(usize::from(board)).cloned().unwrap_or_default();
            holders.sort_unstable();
            let gone = holders.len().saturating_sub(left);
            clock = clock.max(gone.checked_sub(1).map_or(0, |last| holders[last]));
        }
        if let Effect::WaitForGroups(left) = step.effect {
            // Groups are done in order.
            clock = clock.max(warp.groups.iter().rev().nth(left).copied().unwrap_or(0));
        }
        Some(match step.unit {
            // The tensor cores take it when they are free; the warp goes on.
            Unit::Warpgroup(_) => clock,
            Unit::Memory(_) => {
                let queue = &self.units.queue;
                clock.max(queue.len().checked_sub(QUEUE).map_or(0, |at| queue[at]))
            }
            unit => clock.max(self.unit_of(unit).map_or(0, |at| self.units.free[at].ceil() as u64)),
        })
    }

    /// The unit that takes an instruction: of the two halves of the multiply-add lanes that which is free first.
    fn unit_of(&self, unit: Unit) -> Option<usize> {
        Some(match unit {
            Unit::Fma if self.rates.lite => usize::from(self.units.free[LITE] <= self.units.free[0]),
            Unit::Fma | Unit::IntegerFma => 0,
            Unit::Half => 2,
            Unit::Alu => 3,
            Unit::Fp64 => 4,
            Unit::Special => 5,
            Unit::Tensor(_) | Unit::Warpgroup(_) => 6,
            Unit::Memory(_) => MEMORY,
            Unit::Issue => return None,
        })
    }

    fn issue(&mut self, number: usize, clock: u64) {
        let step = self.body[self.warps[number].next];
        let clock = self.read_registers(number, &step, clock);
        let (taken, done) = self.occupy(&step, clock);
        let (control, rates) = (step.control, self.rates);
        let warp = &mut self.warps[number];
        warp.ready = clock + control.clocks();
        warp.boards.iter_mut().for_each(|holders| holders.retain(|t| *t > clock));
        match step.effect {
            Effect::CopiesDone => {
                let board = usize::from(control.write.unwrap_or(0));
                let done = warp.copies.max(clock);
                warp.boards[board].push(done);
            }
            _ => {
                if let Some(board) = control.write {
                    warp.boards[usize::from(board)].push(done);
                }
            }
        }
        if let Some(board) = control.read {
            warp.boards[usize::from(board)].push(taken + OPERANDS_READ);
        }
        if let Unit::Memory(Access::Copy { .. }) = step.unit {
            // Copies are done in order.
            warp.copies = warp.copies.max(done);
        }
        if let Unit::Warpgroup(_) = step.unit {
            warp.matrices = done;
        }
        if step.effect == Effect::EndsGroup {
            warp.groups.retain(|t| *t > clock);
            warp.groups.push(warp.matrices);
        }
        warp.next += 1;
        if warp.next == self.body.len() {
            warp.next = 0;
            self.iterations += 1;
        }
        warp.waits = step.effect == Effect::Barrier;
        if warp.waits {
            let block = number / self.of_block * self.of_block;
            let end = (block + self.of_block).min(self.warps.len());
            let block = &mut self.warps[block..end];
            if block.iter().all(|w| w.waits) {
                for warp in block {
                    warp.waits = false;
                    warp.ready = warp.ready.max(clock + rates.barrier);
                }
            }
        }
        (self.last, self.clock, self.issued) = (number, clock + 1, self.issued + 1);
    }

    /// Registers are in two banks by the last bit of their number, each of which reads one of a warp in a clock; what the reuse cache
    /// keeps is not read. An instruction whose reads do not end in time waits, and all behind it. The clock in which it issues.
    /// (Huerta et al. fit most of what they measured so, and know of no rule that fits all.)
    fn read_registers(&mut self, number: usize, step: &Step, clock: u64) -> u64 {
        let mut reads = [0; 2];
        for (slot, register) in step.reads.iter().enumerate() {
            let Some(register) = *register else { continue };
            let bank = usize::from(register & 1);
            let kept = &mut self.units.kept[slot][bank];
            if *kept != Some((number, register)) {
                reads[bank] += 1;
            }
            *kept = (step.control.reuse >> slot & 1 == 1).then_some((number, register));
        }
        let ends = |clock: u64, bank: usize| self.units.ports[bank].max(clock) + reads[bank];
        let late = (0..2).map(|bank| match reads[bank] {
            0 => 0,
            _ => ends(clock, bank).saturating_sub(clock + READ_CLOCKS),
        });
        let clock = clock + late.max().unwrap_or(0);
        for (port, reads) in self.units.ports.iter_mut().zip(reads).filter(|(_, reads)| *reads > 0) {
            *port = (*port).max(clock) + reads;
        }
        clock
    }

    /// Gives an instruction to its unit: when it takes it, and when the result is there.
    fn occupy(&mut self, step: &Step, clock: u64) -> (u64, u64) {
        let (busy, latency) = self.rates.of(step.unit, self.share);
        let Some(unit) = self.unit_of(step.unit) else { return (clock, clock + latency) };
        // An instruction issues in a whole clock; a unit whose rate is none begins up to a clock before, so that its mean is kept.
        let begins = self.units.free[unit].max(clock as f64 - busy.fract());
        let taken = clock.max(begins.ceil() as u64);
        self.units.free[unit] = begins + busy;
        self.units.busy[unit] += busy;
        if unit == MEMORY {
            let queue = &mut self.units.queue;
            while queue.front().is_some_and(|t| *t <= clock) {
                queue.pop_front();
            }
            queue.push_back(taken);
        }
        (taken, taken + latency)
    }
}
