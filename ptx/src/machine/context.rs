//! What an instruction sees while it runs.
use super::{Block, Unit, Warp};
use crate::clocks::Clocks;
use crate::fault::{Fault, FaultKind, Touch};
use crate::memory::{Clash, Refused, Touched, Who, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
use crate::program::{Address, Hardware, Lanes, Value};
use crate::syntax::Space;

/// An instruction's view: the lanes that execute it, their warp, their block, the rest.
pub struct Context<'a, 'p> {
    /// Everything else. The warp itself is not among its block's warps while it runs.
    pub unit: &'a mut Unit<'p>,
    /// The block, as an index into the unit's.
    pub block: usize,
    /// The warp.
    pub warp: &'a mut Warp,
    /// Lanes that execute: guard and group.
    pub mask: u32,
    /// Lanes that are at this instruction, whatever its guard says.
    pub group: u32,
    /// The instruction.
    pub pc: u32,
    /// 0 when an instruction is executed first; what it puts here is there when it is tried again after it waited. While it is
    /// not 0, no other lanes join the group.
    pub token: u64,
}

/// The lanes of a mask, lowest first.
pub fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let lane = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            lane
        })
    })
}

/// Registers that one access fills.
pub struct Registers {
    /// Bytes that each gets.
    pub bytes: usize,
    /// In order: whether some instruction reads it.
    pub read: Vec<bool>,
}

/// What a byte holds that nobody has written: in every other word of eight bytes a NaN of each type, so that not even a product
/// with zero hides it, and any bits in the others.
fn noise(at: u64) -> u8 {
    match at / 8 % 2 {
        0 => 0xff,
        _ => (at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8,
    }
}

/// The lanes that have the address of one.
#[inline]
fn alike(at: &Lanes, lane: usize) -> u32 {
    let own = at[lane];
    at.iter().enumerate().fold(0, |mask, (lane, other)| mask | u32::from(*other == own) << lane)
}

impl Context<'_, '_> {
    /// The block.
    pub fn block(&mut self) -> &mut Block {
        &mut self.unit.blocks[self.block]
    }

    /// Whether all live lanes of the warp execute.
    pub fn whole_warp(&self) -> bool {
        self.mask == self.warp.live
    }

    /// The value of an operand in all lanes.
    #[inline]
    pub fn read(&self, value: Value) -> Lanes {
        match value {
            Value::Register(slot) => self.warp.registers[slot as usize],
            Value::Constant(n) => [n; 32],
            Value::Special(hardware) => std::array::from_fn(|lane| self.hardware(hardware, lane)),
        }
    }

    /// The value of an operand in all lanes: a register as it is, another value in the room given.
    #[inline]
    pub fn view<'a>(&'a self, value: Value, room: &'a mut Option<Lanes>) -> &'a Lanes {
        match value {
            Value::Register(slot) => &self.warp.registers[slot as usize],
            other => room.insert(self.read(other)),
        }
    }

    /// Writes the executing lanes of a register.
    #[inline]
    pub fn write(&mut self, slot: u32, values: &Lanes) {
        let register = &mut self.warp.registers[slot as usize];
        if self.mask == u32::MAX {
            *register = *values;
        } else {
            for lane in 0..32 {
                if self.mask >> lane & 1 == 1 {
                    register[lane] = values[lane];
                }
            }
        }
    }

    /// Writes where there is a register to write.
    #[inline]
    pub fn write_to(&mut self, slot: Option<u32>, values: &Lanes) {
        if let Some(slot) = slot {
            self.write(slot, values);
        }
    }

    /// An address in all lanes.
    #[inline]
    pub fn addresses(&self, address: &Address) -> Lanes {
        let mut base = self.read(address.base);
        if address.offset != 0 {
            for a in &mut base {
                *a = a.wrapping_add_signed(address.offset);
            }
            if address.narrow {
                base.iter_mut().for_each(|a| *a &= 0xffff_ffff);
            }
        }
        base
    }

    fn hardware(&self, hardware: Hardware, lane: usize) -> u64 {
        let block = &self.unit.blocks[self.block];
        let launch = self.unit.launch;
        let thread = self.warp.index * 32 + lane as u32;
        let [x, y, _] = launch.block;
        let value = match hardware {
            Hardware::Tid(0) => thread % x,
            Hardware::Tid(1) => thread / x % y,
            Hardware::Tid(_) => thread / (x * y),
            Hardware::Ntid(axis) => launch.block[axis as usize],
            Hardware::Ctaid(axis) => block.index[axis as usize],
            Hardware::Nctaid(axis) => launch.grid[axis as usize],
            Hardware::Clusterid(axis) => block.index[axis as usize] / launch.cluster[axis as usize],
            Hardware::Nclusterid(axis) => launch.grid[axis as usize] / launch.cluster[axis as usize],
            Hardware::ClusterCtaid(axis) => block.index[axis as usize] % launch.cluster[axis as usize],
            Hardware::ClusterNctaid(axis) => launch.cluster[axis as usize],
            Hardware::ClusterRank => block.rank,
            Hardware::ClusterSize => launch.cluster_size(),
            Hardware::Lane => lane as u32,
            Hardware::Warp => self.warp.index,
            Hardware::Warps => launch.warps(),
            Hardware::MaskEq => 1 << lane,
            Hardware::MaskLt => (1 << lane) - 1,
            Hardware::MaskLe => ((2u64 << lane) - 1) as u32,
            Hardware::MaskGe => !((1 << lane) - 1),
            Hardware::MaskGt => !(((2u64 << lane) - 1) as u32),
            Hardware::Clock => return self.unit.executed,
            Hardware::DynamicShared => launch.dynamic_shared as u32,
            Hardware::TotalShared => block.shared.len() as u32,
            Hardware::ExplicitCluster => u32::from(launch.cluster_size() > 1),
        };
        u64::from(value)
    }

    /// A fault of this instruction in a lane.
    pub fn fault(&self, kind: FaultKind, lane: usize) -> Fault {
        self.unit.fault(kind, self.pc, self.warp.clocks.agent, lane as u8)
    }

    /// A fault of this instruction in its first lane.
    pub fn refuse<T>(&self, kind: FaultKind) -> Result<T, Fault> {
        Err(self.fault(kind, self.mask.trailing_zeros().min(31) as usize))
    }

    /// Fails unless all live lanes of the warp execute this together. To be asked by instructions that say `.aligned`, or that
    /// the architecture has execute by all of a warp.
    ///
    /// # Errors
    /// Divergent lanes.
    pub fn together(&self) -> Result<(), Fault> {
        if self.whole_warp() {
            return Ok(());
        }
        let mut elsewhere: Vec<String> = Vec::new();
        for group in &self.warp.groups {
            elsewhere.push(format!("{} at {}", group.mask.count_ones(), self.unit.site(group.pc)));
        }
        let masked = self.group & !self.mask;
        if masked != 0 {
            elsewhere.push(format!("{} are masked by the guard", masked.count_ones()));
        }
        self.refuse(FaultKind::Divergent { here: self.mask.count_ones(), elsewhere: elsewhere.join(", ") })
    }

    /// A generic address: its space, and the address there.
    pub fn resolve(&self, space: Space, address: u64) -> (Space, u64) {
        if space != Space::Generic {
            return (space, address);
        }
        match address >> 56 {
            1 => (Space::Shared, address - SHARED_WINDOW),
            2 => (Space::Local, address - LOCAL_WINDOW),
            3 => (Space::Param, address),
            _ => (Space::Global, address),
        }
    }

    /// The block and the offset that an address of shared memory means: bits 24 and up are a rank plus one, or 0 for the own
    /// block. `None` where the cluster has no such block.
    pub fn shared_block(&self, address: u64) -> Option<(usize, u64)> {
        let (rank, offset) = (address >> 24, address & 0xff_ffff);
        if rank == 0 {
            return Some((self.block, offset));
        }
        let own = u64::from(self.unit.blocks[self.block].rank);
        let size = u64::from(self.unit.launch.cluster_size());
        (rank <= size).then(|| ((self.block as u64 - own + rank - 1) as usize, offset))
    }

    /// Reads memory into registers for all executing lanes, with all checks: lanes that read one place do so once. `take` gets
    /// each lane's bytes (32 at most).
    ///
    /// # Errors
    /// As [`Context::load`].
    pub fn load_all(
        &mut self,
        space: Space,
        at: &Lanes,
        registers: &Registers,
        strong: bool,
        mut take: impl FnMut(&mut Warp, usize, &[u8]),
    ) -> Result<(), Fault> {
        let mut buffer = [0; 32];
        let to = &mut buffer[..registers.bytes * registers.read.len()];
        let all = registers.read.iter().all(|read| *read);
        let first = self.mask.trailing_zeros().min(31) as usize;
        // Where the first lane's place is its own, the others' are, too, more often than not.
        let shared = self.warp.clocks.uniform() && alike(at, first) & self.mask & !(1 << first) != 0;
        let mut rest = self.mask;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            let lanes = if shared { alike(at, lane) & rest } else { 1 << lane };
            if !all || !self.load_together(space, at[lane], to, strong, lane, lanes) {
                self.load_registers(space, lane, at[lane], to, strong, registers)?;
                take(self.warp, lane, to);
                rest &= rest - 1;
                continue;
            }
            rest &= !lanes;
            for lane in self::lanes(lanes) {
                take(self.warp, lane, to);
            }
        }
        Ok(())
    }

    /// Reads shared memory for lanes that know the same, `lane` among them; whether it could be done, with nothing wrong.
    #[inline]
    fn load_together(
        &mut self,
        space: Space,
        address: u64,
        to: &mut [u8],
        strong: bool,
        lane: usize,
        lanes: u32,
    ) -> bool {
        let (Space::Shared, at) = self.resolve(space, address) else { return false };
        let Some((block, offset)) = self.shared_block(at) else { return false };
        let align = to.len().next_power_of_two() as u64;
        let who = who(self.warp, lane, self.pc, strong);
        self.unit.blocks[block].shared.read_together(offset, to, align, &who, lanes)
    }

    /// [`Context::load`], weak; quicker where it is shared memory and nothing is wrong.
    ///
    /// # Errors
    /// As [`Context::load`].
    #[inline]
    pub fn load_one(&mut self, space: Space, lane: usize, address: u64, to: &mut [u8]) -> Result<(), Fault> {
        if self.load_together(space, address, to, false, lane, 1 << lane) {
            return Ok(());
        }
        self.load(space, lane, address, to, false)
    }

    /// Reads memory as a lane, with all checks.
    ///
    /// # Errors
    /// Out of bounds, misaligned; races and unwritten memory once there are enough.
    pub fn load(&mut self, space: Space, lane: usize, address: u64, to: &mut [u8], strong: bool) -> Result<(), Fault> {
        let (space, at) = self.resolve(space, address);
        let touched = self.touched(space, lane, at, to, to.len().next_power_of_two() as u64, strong);
        self.judge(touched, space, lane, at, to.len() as u64, Touch::Reads)
    }

    /// Reads memory as a lane; what came of it.
    fn touched(&mut self, space: Space, lane: usize, at: u64, to: &mut [u8], align: u64, strong: bool) -> Touched {
        match space {
            Space::Param => {
                let at = at.wrapping_sub(if at >> 56 == 3 { PARAM_WINDOW } else { 0 }) as usize;
                let from = self.unit.launch.parameters.get(at..at.saturating_add(to.len())).ok_or(Refused::Bounds)?;
                to.copy_from_slice(from);
                Ok(Ok(()))
            }
            Space::Local => Ok(match self.warp.local.read(lane, at, to)? {
                true => Ok(()),
                false => Err((Clash::Unwritten, at)),
            }),
            Space::Shared => {
                let (block, offset) = self.shared_block(at).ok_or(Refused::Bounds)?;
                let who = who(self.warp, lane, self.pc, strong);
                self.unit.blocks[block].shared.read(offset, to, align, &who)
            }
            _ => self.unit.global.read(at, to, align, &who(self.warp, lane, self.pc, strong)),
        }
    }

    /// Whether a read is allowed at all.
    fn allowed(&mut self, space: Space, lane: usize, at: u64, to: &mut [u8], align: u64) -> Result<(), Refused> {
        let bytes = to.len() as u64;
        match space {
            Space::Param => Ok(()),
            Space::Local => self.warp.local.read(lane, at, to).map(drop),
            Space::Shared => {
                let (block, offset) = self.shared_block(at).ok_or(Refused::Bounds)?;
                self.unit.blocks[block].shared.check(offset, bytes, align)
            }
            _ => self.unit.global.check(at, bytes, align).map(drop),
        }
    }

    /// [`Context::load`] into registers. Compilers read more than the program does: they join accesses to neighbours and fill the
    /// gaps between them. So registers that no instruction reads are not read here; and where nobody has written some of a
    /// register's bytes (or, where that is asked for, none), it gets noise for them: results show whether they matter.
    fn load_registers(
        &mut self,
        space: Space,
        lane: usize,
        address: u64,
        to: &mut [u8],
        strong: bool,
        registers: &Registers,
    ) -> Result<(), Fault> {
        let (space, at) = self.resolve(space, address);
        let (align, bytes) = (to.len().next_power_of_two() as u64, registers.bytes);
        if registers.read.iter().all(|read| *read) {
            let whole = self.touched(space, lane, at, to, align, strong);
            if !matches!(whole, Ok(Err((Clash::Unwritten, _)))) {
                return self.judge(whole, space, lane, at, to.len() as u64, Touch::Reads);
            }
        }
        if let Err(refused) = self.allowed(space, lane, at, to, align) {
            return self.judge(Err(refused), space, lane, at, to.len() as u64, Touch::Reads);
        }
        for ((piece, start), read) in to.chunks_exact_mut(bytes).zip((at..).step_by(bytes)).zip(&registers.read) {
            if !read {
                continue;
            }
            let mut found = self.touched(space, lane, start, piece, 1, strong);
            if matches!(found, Ok(Err((Clash::Unwritten, _)))) {
                let mut known = self.unit.launch.options.reads_ahead;
                for (byte, at) in piece.iter_mut().zip(start..) {
                    match self.touched(space, lane, at, std::slice::from_mut(byte), 1, strong) {
                        Ok(Err((Clash::Unwritten, _))) => *byte = noise(at),
                        Ok(Ok(())) => known = true,
                        wrong => found = wrong,
                    }
                }
                if known && matches!(found, Ok(Err((Clash::Unwritten, _)))) {
                    continue;
                }
            }
            self.judge(found, space, lane, start, bytes as u64, Touch::Reads)?;
        }
        Ok(())
    }

    /// Writes memory as a lane, with all checks.
    ///
    /// # Errors
    /// As [`Context::load`].
    pub fn store(&mut self, space: Space, lane: usize, address: u64, from: &[u8], strong: bool) -> Result<(), Fault> {
        let (space, at) = self.resolve(space, address);
        let align = from.len().next_power_of_two() as u64;
        let touched = match space {
            Space::Param => Err(Refused::ReadOnly),
            Space::Local => match self.warp.local.write(lane, at, from) {
                Ok(()) => return Ok(()),
                Err(refused) => Err(refused),
            },
            Space::Shared => match self.shared_block(at) {
                Some((block, offset)) => {
                    let who = who(self.warp, lane, self.pc, strong);
                    self.unit.blocks[block].shared.write(offset, from, align, &who)
                }
                None => Err(Refused::Bounds),
            },
            _ => self.unit.global.write(at, from, align, &who(self.warp, lane, self.pc, strong)),
        };
        self.judge(touched, space, lane, at, from.len() as u64, Touch::Writes)
    }

    /// Turns what came of an access into a fault.
    ///
    /// # Errors
    /// What cannot be gone on after, and the rest once there is enough of it.
    pub fn judge(
        &mut self,
        touched: Touched,
        space: Space,
        lane: usize,
        at: u64,
        bytes: u64,
        touch: Touch,
    ) -> Result<(), Fault> {
        let agent = self.warp.clocks.agent;
        self.unit.judge(touched, self.block, (self.pc, agent, lane as u8), space, at, bytes, touch)
    }
}

impl Unit<'_> {
    /// Turns what came of an access (by an instruction, an agent, a lane; to shared memory of a block) into a fault.
    ///
    /// # Errors
    /// What cannot be gone on after, and the rest once there is enough of it.
    #[allow(clippy::too_many_arguments)]
    pub fn judge(
        &mut self,
        touched: Touched,
        block: usize,
        (pc, agent, lane): (u32, u32, u8),
        space: Space,
        at: u64,
        bytes: u64,
        touch: Touch,
    ) -> Result<(), Fault> {
        if let Ok(Ok(())) = touched {
            return Ok(());
        }
        let place = |unit: &Unit<'_>, at: u64| match space {
            Space::Shared => match at >> 24 {
                0 => unit.blocks[block].shared.place(at),
                rank => format!("{} of rank {}", unit.blocks[block].shared.place(at & 0xff_ffff), rank - 1),
            },
            Space::Global | Space::Const | Space::Generic => unit.global.place(at),
            _ => format!("offset {at}"),
        };
        match touched {
            Ok(Ok(())) => Ok(()),
            Err(refused) => {
                let place = place(self, at);
                let kind = match refused {
                    Refused::Bounds => FaultKind::OutOfBounds { space, place, touch, bytes },
                    Refused::Alignment(align) => FaultKind::Misaligned { space, place, touch, bytes, align },
                    Refused::ReadOnly => FaultKind::ReadOnly { place },
                };
                Err(self.fault(kind, pc, agent, lane))
            }
            Ok(Err((clash, at))) => {
                let place = place(self, at);
                let touched = |wrote: bool| if wrote { Touch::Writes } else { Touch::Reads };
                let kind = match clash {
                    Clash::Unwritten => FaultKind::Unwritten { space, place },
                    Clash::Race { other, wrote } => FaultKind::Race {
                        space,
                        place,
                        touch,
                        other: self.thread(other.agent, other.lane),
                        other_touch: touched(wrote),
                        other_site: self.site(other.pc),
                    },
                    Clash::Pending(other) => FaultKind::NotWaited {
                        space,
                        place,
                        touch,
                        other: self.thread(other.agent, other.lane),
                        other_site: self.site(other.pc),
                    },
                    Clash::NotFenced { other, wrote } => FaultKind::NotFenced {
                        space,
                        place,
                        other: self.thread(other.agent, other.lane),
                        other_touch: touched(wrote),
                        other_site: self.site(other.pc),
                    },
                };
                let fault = self.fault(kind, pc, agent, lane);
                self.report(fault)
            }
        }
    }
}

static NOTHING: Clocks = Clocks::nothing();

/// A lane of a warp, as somebody who touches memory by a usual instruction.
#[inline]
pub fn who(warp: &Warp, lane: usize, pc: u32, strong: bool) -> Who<'_> {
    let clocks = &warp.clocks;
    Who {
        agent: clocks.agent,
        clock: clocks.clock,
        lane: lane as u8,
        pc,
        strong,
        engine: false,
        seen: &clocks.lane(lane).seen,
        fenced: &NOTHING,
    }
}
