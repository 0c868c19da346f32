//! mbarrier: barriers in shared memory that count arrivals and bytes, phase after phase; and the fences that make them known.
//!
//! A phase ends when no arrival and no byte is outstanding. Whoever waits for it learns what those that arrived knew, and that
//! the copies whose bytes it counted have been made. A barrier is known to other blocks and to the asynchronous proxy only
//! after a fence of the thread that initialised it (`fence.mbarrier_init` or `fence.proxy.async`).
use super::load_store::space;
use crate::clocks::{Agent, Knowledge};
use crate::fault::{Fault, FaultKind, Touch};
use crate::launch::Delivery;
use crate::machine::{lanes, who, Context, Unit};
use crate::memory::Who;
use crate::program::{Decoder, Flow, Operation, Unsupported, Value, Waiting};
use crate::syntax::{Instruction, Operand, Space};
use rustc_hash::{FxHashMap, FxHashSet};

/// The largest count of arrivals, and of bytes.
const MOST: i64 = (1 << 20) - 1;

/// A barrier.
#[derive(Clone, Debug)]
pub struct Mbarrier {
    /// Arrivals of a phase.
    expected: u32,
    /// Arrivals that the phase still waits for.
    outstanding: u32,
    /// Bytes that were announced and have not come; negative: that have come before they were announced.
    bytes: i64,
    /// Phases that have ended.
    phase: u64,
    /// What those that arrived in this phase hand on.
    joined: Knowledge,
    /// What those of the last phase handed on.
    released: Knowledge,
    /// Who initialised it.
    by: (Agent, u8),
    /// Whether a fence of that thread has followed.
    fenced: bool,
}

impl Mbarrier {
    /// Ends the phase if nothing is outstanding.
    fn turn(&mut self) -> bool {
        let ends = self.outstanding == 0 && self.bytes == 0;
        if ends {
            self.phase += 1;
            self.outstanding = self.expected;
            self.released = std::mem::take(&mut self.joined);
        }
        ends
    }

    /// What it waits for, in words.
    fn wants(&self) -> String {
        let arrivals = match self.outstanding {
            0 => "all have arrived".to_string(),
            n => format!("{n} of {} arrivals are missing", self.expected),
        };
        let bytes = match self.bytes {
            0 => String::new(),
            n if n < 0 => format!(", {} bytes came that nobody announced", -n),
            n => format!(", {n} bytes are missing"),
        };
        format!("phase {}: {arrivals}{bytes}", self.phase)
    }

    /// Phases that have ended; what completes in this one is numbered by it.
    pub fn phase(&self) -> u64 {
        self.phase
    }
}

/// The barriers of a block, by offset in its shared memory.
#[derive(Default)]
pub struct Mbarriers(FxHashMap<u64, Mbarrier>);

impl Mbarriers {
    /// In words, for a hang.
    pub fn wants(&self, at: u64) -> Option<String> {
        self.0.get(&at).map(Mbarrier::wants)
    }
}

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    match (i.opcode.as_str(), i.modifiers.first().map(String::as_str)) {
        ("mbarrier", Some(what)) => Some(match what {
            "init" => init(i, d),
            "inval" => inval(i, d),
            "expect_tx" | "complete_tx" => bytes(i, d),
            "arrive" | "arrive_drop" => arrive(i, d),
            "test_wait" | "try_wait" => wait(i, d),
            "pending_count" => pending_count(i, d),
            _ => Err("this form of mbarrier is not known".into()),
        }),
        ("cp", Some("async")) if i.has("mbarrier") => Some(copies_arrive(i, d)),
        ("fence", Some("mbarrier_init")) => Some(Ok(Box::new(|c| {
            published(c);
            Ok(Flow::Next)
        }))),
        ("fence", Some("proxy")) => Some(Ok(Box::new(|c| {
            published(c);
            let live = c.warp.live;
            c.warp.clocks.fence_proxy(c.mask, live);
            Ok(Flow::Next)
        }))),
        _ => None,
    }
}

/// The barriers that these lanes initialised are known to everybody.
fn published(c: &mut Context<'_, '_>) {
    let (agent, mask) = (c.warp.clocks.agent, c.mask);
    for barrier in c.block().state.get::<Mbarriers>().0.values_mut() {
        if barrier.by.0 == agent && mask >> barrier.by.1 & 1 == 1 {
            barrier.fenced = true;
        }
    }
}

/// Fails with what the architecture leaves undefined.
pub fn undefined<T>(c: &Context<'_, '_>, lane: usize, text: String) -> Result<T, Fault> {
    Err(c.fault(FaultKind::Undefined(text), lane))
}

/// The block (an index) and the offset of an address in shared memory, of this block or another of the cluster.
///
/// # Errors
/// It is none, or its block has ended.
pub fn shared_place(c: &Context<'_, '_>, space: Space, address: u64, lane: usize) -> Result<(usize, u64), Fault> {
    let (found, at) = c.resolve(space, address);
    if found != Space::Shared {
        return undefined(c, lane, format!("an address of shared memory is needed, not {address:#x} ({found} memory)"));
    }
    let Some((block, offset)) = c.shared_block(at) else {
        let size = c.unit.launch.cluster_size();
        return undefined(c, lane, format!("the cluster has {size} blocks, and none of rank {}", (at >> 24) - 1));
    };
    if block != c.block && c.unit.blocks[block].warps.iter().all(|w| w.ended()) {
        let rank = c.unit.blocks[block].rank;
        return undefined(c, lane, format!("the block of rank {rank} has ended, and with it its shared memory"));
    }
    Ok((block, offset))
}

/// An access to a barrier as a lane; checks that it is one, ordered after its initialisation and known where it is used.
fn touched(c: &mut Context<'_, '_>, lane: usize, place: (usize, u64), remote: bool) -> Result<(), Fault> {
    touched_by(c, lane, place, remote, None)
}

/// The same as an agent that the lane has at work, with its clock and what it knows.
fn touched_by(
    c: &mut Context<'_, '_>,
    lane: usize,
    (block, at): (usize, u64),
    remote: bool,
    by: Option<(Agent, u32, &Knowledge)>,
) -> Result<(), Fault> {
    if at % 8 != 0 {
        let kind = FaultKind::Misaligned {
            space: Space::Shared,
            place: c.unit.blocks[block].shared.place(at),
            touch: Touch::Updates,
            bytes: 8,
            align: 8,
        };
        return Err(c.fault(kind, lane));
    }
    let barriers = c.unit.blocks[block].state.get::<Mbarriers>();
    let fenced = match barriers.0.get(&at) {
        Some(barrier) => barrier.fenced,
        None => {
            let place = c.unit.blocks[block].shared.place(at);
            return undefined(c, lane, format!("there is no initialised mbarrier at {place}"));
        }
    };
    let mut word = [0; 8];
    let mut seen = who(c.warp, lane, c.pc, true);
    if let Some((agent, clock, known)) = by {
        seen = Who { agent, clock, lane: 0, seen: &known.seen, ..seen };
    }
    let found = c.unit.blocks[block].shared.read(at, &mut word, 8, &seen);
    if u64::from_le_bytes(word) != MARK {
        let place = c.unit.blocks[block].shared.place(at);
        return undefined(c, lane, format!("the mbarrier at {place} was overwritten"));
    }
    c.judge(found, Space::Shared, lane, at, 8, Touch::Updates)?;
    if remote && !fenced {
        return unfenced(c, lane, (block, at));
    }
    Ok(())
}

/// Says that the asynchronous proxy, or another block, may not know of a barrier yet.
fn unfenced(c: &mut Context<'_, '_>, lane: usize, (block, at): (usize, u64)) -> Result<(), Fault> {
    let place = c.unit.blocks[block].shared.place(at);
    let text = format!(
        "missing fence.mbarrier_init (or fence.proxy.async): the mbarrier at {place} is used from outside of its block's \
         threads, and the thread that initialised it has made no such fence since"
    );
    let fault = c.fault(FaultKind::Undefined(text), lane);
    c.unit.report(fault)
}

/// What shared memory holds where a barrier is.
const MARK: u64 = 0x6d62_6172_7269_6572;

/// Checks a barrier that an asynchronous copy will count its bytes on, as the lane that starts it.
///
/// # Errors
/// There is none, or it is not known to the asynchronous proxy.
pub fn counted_on(c: &mut Context<'_, '_>, lane: usize, place: (usize, u64)) -> Result<(), Fault> {
    touched(c, lane, place, true)
}

/// Checks a barrier that an agent of a lane, with its clock and what it knows, will arrive at, as it is when the lane says so.
///
/// # Errors
/// There is none, or it is not known to the asynchronous proxy.
pub fn arrived_at(
    c: &mut Context<'_, '_>,
    lane: usize,
    place: (usize, u64),
    (agent, clock): (Agent, u32),
    known: &Knowledge,
) -> Result<(), Fault> {
    touched_by(c, lane, place, true, Some((agent, clock, known)))
}

/// Bytes of a copy have come; `known`: what waiters learn by it.
///
/// # Errors
/// The barrier was taken away meanwhile.
pub fn complete(
    unit: &mut Unit<'_>,
    block: u64,
    at: u64,
    bytes: u64,
    known: impl Fn(&mut Knowledge),
) -> Result<(), String> {
    counted(unit, block, at, "the bytes of a copy", |barrier, place| {
        known(&mut barrier.joined);
        barrier.bytes -= bytes as i64;
        if barrier.bytes < -MOST {
            return Err(format!("the mbarrier at {place} counts at most {MOST} bytes: {}", barrier.wants()));
        }
        Ok(())
    })
}

/// An asynchronous operation arrives once; `known`: what waiters learn by it.
///
/// # Errors
/// The barrier was taken away meanwhile, or waits for no arrival.
pub fn arrive_once(unit: &mut Unit<'_>, block: u64, at: u64, known: impl Fn(&mut Knowledge)) -> Result<(), String> {
    counted(unit, block, at, "an arrival", |barrier, place| {
        if barrier.outstanding == 0 {
            return Err(format!("an arrival at the mbarrier at {place}, which waits for none ({})", barrier.wants()));
        }
        known(&mut barrier.joined);
        barrier.outstanding -= 1;
        Ok(())
    })
}

/// What was on its way to a barrier has come.
fn counted(
    unit: &mut Unit<'_>,
    block: u64,
    at: u64,
    what: &str,
    count: impl FnOnce(&mut Mbarrier, &str) -> Result<(), String>,
) -> Result<(), String> {
    unit.progress += 1;
    let Some(block) = unit.blocks.iter_mut().find(|b| b.linear == block) else {
        return Err(format!("the block whose mbarrier counts {what} has ended"));
    };
    let place = block.shared.place(at);
    let Some(barrier) = block.state.get::<Mbarriers>().0.get_mut(&at) else {
        return Err(format!("the mbarrier at {place} that counts {what} was invalidated before"));
    };
    count(barrier, &place)?;
    barrier.turn();
    Ok(())
}

/// Phases of a barrier that have ended.
pub fn phase(unit: &mut Unit<'_>, block: u64, at: u64) -> u64 {
    let block = unit.blocks.iter_mut().find(|b| b.linear == block);
    block.and_then(|b| b.state.get::<Mbarriers>().0.get(&at).map(Mbarrier::phase)).unwrap_or(0)
}

fn init(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [to, count, ..] = i.operands.as_slice() else { return Err("an address and a count expected".into()) };
    let (address, count, space) = (d.address(to)?, d.value(count)?, space(i));
    Ok(Box::new(move |c| {
        let (at, count) = (c.addresses(&address), c.read(count));
        for lane in lanes(c.mask) {
            let place = shared_place(c, space, at[lane], lane)?;
            if place.0 != c.block {
                return undefined(c, lane, "an mbarrier of another block cannot be initialised".into());
            }
            let expected = count[lane] as u32;
            if expected == 0 || i64::from(expected) > MOST {
                return undefined(c, lane, format!("an mbarrier counts 1 to {MOST} arrivals, not {expected}"));
            }
            c.store(Space::Shared, lane, place.1, &MARK.to_le_bytes(), false)?;
            let by = (c.warp.clocks.agent, lane as u8);
            let barrier = Mbarrier {
                expected,
                outstanding: expected,
                bytes: 0,
                phase: 0,
                joined: Knowledge::default(),
                released: Knowledge::default(),
                by,
                fenced: false,
            };
            c.block().state.get::<Mbarriers>().0.insert(place.1, barrier);
        }
        Ok(Flow::Next)
    }))
}

fn inval(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [from] = i.operands.as_slice() else { return Err("an address expected".into()) };
    let (address, space) = (d.address(from)?, space(i));
    Ok(Box::new(move |c| {
        let at = c.addresses(&address);
        for lane in lanes(c.mask) {
            let place = shared_place(c, space, at[lane], lane)?;
            touched(c, lane, place, false)?;
            c.store(Space::Shared, lane, place.1, &[0; 8], false)?;
            c.block().state.get::<Mbarriers>().0.remove(&place.1);
        }
        Ok(Flow::Next)
    }))
}

fn bytes(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [at, count] = i.operands.as_slice() else { return Err("an address and a number of bytes expected".into()) };
    let (address, count, space, come) = (d.address(at)?, d.value(count)?, space(i), i.has("complete_tx"));
    Ok(Box::new(move |c| {
        let (at, count) = (c.addresses(&address), c.read(count));
        for lane in lanes(c.mask) {
            let place = shared_place(c, space, at[lane], lane)?;
            touched(c, lane, place, place.0 != c.block)?;
            let change = i64::from(count[lane] as u32) * if come { -1 } else { 1 };
            announced(c, lane, place, change)?;
            turned(c, place);
        }
        Ok(Flow::Next)
    }))
}

fn barrier<'c>(c: &'c mut Context<'_, '_>, (block, at): (usize, u64)) -> Option<&'c mut Mbarrier> {
    c.unit.blocks[block].state.get::<Mbarriers>().0.get_mut(&at)
}

/// More (or fewer) bytes are to come in this phase.
fn announced(c: &mut Context<'_, '_>, lane: usize, place: (usize, u64), change: i64) -> Result<(), Fault> {
    let Some(b) = barrier(c, place) else { return Ok(()) };
    b.bytes += change;
    if b.bytes.abs() > MOST {
        let text = format!("an mbarrier counts at most {MOST} bytes: {}", b.wants());
        return undefined(c, lane, text);
    }
    Ok(())
}

fn turned(c: &mut Context<'_, '_>, place: (usize, u64)) {
    if barrier(c, place).is_some_and(Mbarrier::turn) {
        c.unit.progress += 1;
    }
}

fn arrive(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    // The state may be missing where the barrier is another block's.
    let (state, rest) = match i.operands.as_slice() {
        [Operand::Address { .. }, ..] => (None, i.operands.as_slice()),
        [state, rest @ ..] => (d.register(state)?, rest),
        [] => return Err("an address expected".into()),
    };
    let (address, space) = (d.address(rest.first().ok_or("an address expected")?)?, space(i));
    let number = rest.get(1).map(|n| d.value(n)).transpose()?.unwrap_or(Value::Constant(1));
    let (expects, drops) = (i.has("expect_tx"), i.has("arrive_drop"));
    let (relaxed, never_ends) = (i.has("relaxed"), i.has("noComplete"));
    Ok(Box::new(move |c| {
        let (at, number) = (c.addresses(&address), c.read(number));
        let (mask, live) = (c.mask, c.warp.live);
        let mut states = [0; 32];
        let mut places = [(0, 0); 32];
        // All accesses come before the clock rises.
        for lane in lanes(mask) {
            places[lane] = shared_place(c, space, at[lane], lane)?;
            touched(c, lane, places[lane], places[lane].0 != c.block)?;
        }
        let known = if relaxed { Knowledge::default() } else { c.warp.clocks.release(mask, live) };
        for lane in lanes(mask) {
            let place = places[lane];
            let arrivals = if expects { 1 } else { number[lane] as u32 };
            if expects {
                announced(c, lane, place, i64::from(number[lane] as u32))?;
            }
            let Some(b) = barrier(c, place) else { continue };
            states[lane] = b.phase << 24 | u64::from(b.outstanding);
            if arrivals == 0 || arrivals > b.outstanding {
                let text =
                    format!("{arrivals} arrivals at an mbarrier that waits for {} ({})", b.outstanding, b.wants());
                return undefined(c, lane, text);
            }
            b.outstanding -= arrivals;
            if drops {
                b.expected -= arrivals;
            }
            b.joined.acquire(&known);
            if never_ends && b.outstanding == 0 && b.bytes == 0 {
                return undefined(c, lane, "an arrival that says .noComplete ends the phase".into());
            }
            turned(c, place);
        }
        c.write_to(state, &states);
        Ok(Flow::Next)
    }))
}

/// `cp.async.mbarrier.arrive`: the lane's copies so far arrive when they are complete, which here is at once. Without `.noinc` the
/// phase expects one arrival more for it.
fn copies_arrive(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [at] = i.operands.as_slice() else { return Err("an address expected".into()) };
    let (address, space, counted) = (d.address(at)?, space(i), i.has("noinc"));
    Ok(Box::new(move |c| {
        let at = c.addresses(&address);
        let (mask, live) = (c.mask, c.warp.live);
        let mut places = [(0, 0); 32];
        for lane in lanes(mask) {
            places[lane] = shared_place(c, space, at[lane], lane)?;
            touched(c, lane, places[lane], places[lane].0 != c.block)?;
            super::cp_async::complete_all(c, lane)?;
        }
        let known = c.warp.clocks.release(mask, live);
        for lane in lanes(mask) {
            let Some(b) = barrier(c, places[lane]) else { continue };
            if counted && b.outstanding == 0 {
                let text = format!("an arrival of copies at an mbarrier that waits for none ({})", b.wants());
                return undefined(c, lane, text);
            }
            b.outstanding -= u32::from(counted);
            b.joined.acquire(&known);
            turned(c, places[lane]);
        }
        Ok(Flow::Next)
    }))
}

/// Where a warp's mbarrier.try_wait has given up, and has not been tried with success since.
#[derive(Default)]
struct GaveUp(FxHashSet<u32>);

fn wait(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [done, at, state, ..] = i.operands.as_slice() else {
        return Err("a predicate, an address and a state expected".into());
    };
    let (done, address, state, space) = (d.register(done)?, d.address(at)?, d.value(state)?, space(i));
    let (parity, tries, relaxed) = (i.has("parity"), i.has("try_wait"), i.has("relaxed"));
    Ok(Box::new(move |c| {
        let (at, state) = (c.addresses(&address), c.read(state));
        let mut ended = 0_u32;
        let mut places = [(0, 0); 32];
        // The barrier of the lane before, its phase, and whether the lanes that have it too touch it at once.
        let mut last: Option<((usize, u64), u64, bool)> = None;
        for lane in lanes(c.mask) {
            let place = shared_place(c, space, at[lane], lane)?;
            if place.0 != c.block {
                return undefined(c, lane, "the mbarrier of another block cannot be waited for".into());
            }
            let known = last.filter(|(other, ..)| *other == place);
            // Once is enough: while a lane waits nothing of it changes.
            if c.token == 0 && !known.is_some_and(|(.., together)| together) {
                touched(c, lane, place, false)?;
            }
            places[lane] = place;
            let phase = match known {
                Some((_, phase, _)) => phase,
                None => {
                    let Some(b) = barrier(c, place) else { continue };
                    let (phase, same) = (b.phase, lanes(c.mask).filter(|l| at[*l] == at[lane]));
                    let (same, seen) = (same.fold(0, |mask, l| mask | 1 << l), who(c.warp, lane, c.pc, true));
                    let shared = &mut c.unit.blocks[place.0].shared;
                    let together = c.token == 0
                        && c.warp.clocks.uniform()
                        && shared.read_together(place.1, &mut [0; 8], 8, &seen, same);
                    last = Some((place, phase, together));
                    phase
                }
            };
            let over = if parity { phase & 1 != state[lane] & 1 } else { phase > state[lane] >> 24 };
            ended |= u32::from(over) << lane;
        }
        let pc = c.pc;
        if ended != 0 {
            c.warp.state.get::<GaveUp>().0.remove(&pc);
        } else if tries && c.token == 0 && c.unit.launch.options.delivery == Delivery::Late {
            // It may give up at any time: once it does so at once, and the program must try again.
            if c.warp.state.get::<GaveUp>().0.insert(pc) {
                c.write_to(done, &[0; 32]);
                return Ok(Flow::Next);
            }
        }
        if ended == 0 && tries {
            c.token = 1;
            let number = places[c.mask.trailing_zeros() as usize].1;
            return Ok(Flow::Wait(Waiting { on: "mbarrier", number }));
        }
        if !relaxed {
            let live = c.warp.live;
            let mut rest = ended;
            while rest != 0 {
                let place = places[rest.trailing_zeros() as usize];
                let same = lanes(rest).filter(|l| places[*l] == place).fold(0, |mask, l| mask | 1_u32 << l);
                rest &= !same;
                let Some(b) = c.unit.blocks[place.0].state.get::<Mbarriers>().0.get(&place.1) else { continue };
                c.warp.clocks.update(same, live, |k| k.acquire(&b.released));
            }
        }
        c.write_to(done, &std::array::from_fn(|lane| u64::from(ended >> lane & 1)));
        Ok(Flow::Next)
    }))
}

fn pending_count(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [to, state] = i.operands.as_slice() else { return Err("a result and a state expected".into()) };
    let (to, state) = (d.register(to)?, d.value(state)?);
    Ok(Box::new(move |c| {
        let state = c.read(state);
        c.write_to(to, &state.map(|s| s & 0xff_ffff));
        Ok(Flow::Next)
    }))
}
