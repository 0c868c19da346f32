//! Clusters: addresses in other blocks' shared memory, the cluster's barrier; and small instructions of Hopper.
use super::mbarrier::undefined;
use crate::clocks::Knowledge;
use crate::machine::{lanes, Context, Warp};
use crate::memory::SHARED_WINDOW;
use crate::program::{Decoder, Flow, Operation, Unsupported, Waiting};
use crate::syntax::{Instruction, Operand, Space};
use rustc_hash::FxHashMap;

/// The barrier of a cluster.
#[derive(Default)]
struct Meeting {
    /// Threads that have arrived in this phase.
    arrived: u64,
    /// Phases that have ended.
    phase: u64,
    joined: Knowledge,
    released: Knowledge,
}

/// The barriers of the clusters of a unit, by the linear number of the first block.
#[derive(Default)]
struct Meetings(FxHashMap<u64, Meeting>);

/// The lanes of a warp that have arrived and not waited yet, and in which phase.
#[derive(Default)]
struct Arrived {
    lanes: u32,
    phase: [u64; 32],
}

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    match i.opcode.as_str() {
        "mapa" => Some(mapa(i, d)),
        "getctarank" => Some(rank(i, d)),
        "barrier" if i.has("cluster") => Some(meet(i)),
        "elect" => Some(elect(i, d)),
        "griddepcontrol" => Some(Ok(Box::new(|_| Ok(Flow::Next)))),
        _ => None,
    }
}

fn mapa(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [to, from, rank] = i.operands.as_slice() else { return Err("a result, an address and a rank expected".into()) };
    let (to, from, rank) = (d.register(to)?, d.value(from)?, d.value(rank)?);
    let shared = i.modifiers.iter().any(|m| m.starts_with("shared"));
    let space = if shared { Space::Shared } else { Space::Generic };
    Ok(Box::new(move |c| {
        let (from, rank) = (c.read(from), c.read(rank));
        let mut out = [0; 32];
        for lane in lanes(c.mask) {
            let (space, at) = c.resolve(space, from[lane]);
            let (rank, size) = (u64::from(rank[lane] as u32), u64::from(c.unit.launch.cluster_size()));
            if space != Space::Shared || rank >= size {
                return undefined(
                    c,
                    lane,
                    format!("an address of shared memory and a rank below {size} expected, not {rank}"),
                );
            }
            out[lane] = (at & 0xff_ffff) | (rank + 1) << 24 | if shared { 0 } else { SHARED_WINDOW };
        }
        c.write_to(to, &out);
        Ok(Flow::Next)
    }))
}

fn rank(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [to, from] = i.operands.as_slice() else { return Err("a result and an address expected".into()) };
    let (to, from) = (d.register(to)?, d.value(from)?);
    let shared = i.modifiers.iter().any(|m| m.starts_with("shared"));
    let space = if shared { Space::Shared } else { Space::Generic };
    Ok(Box::new(move |c| {
        let from = c.read(from);
        let own = u64::from(c.block().rank);
        let mut out = [0; 32];
        for lane in lanes(c.mask) {
            let (_, at) = c.resolve(space, from[lane]);
            out[lane] = match at >> 24 {
                0 => own,
                rank => rank - 1,
            };
        }
        c.write_to(to, &out);
        Ok(Flow::Next)
    }))
}

/// The block that the barrier of the cluster is kept under, and the threads of the cluster that have not ended.
fn cluster(c: &Context<'_, '_>) -> (u64, u64) {
    let first = c.block - c.unit.blocks[c.block].rank as usize;
    let size = c.unit.launch.cluster_size() as usize;
    let blocks = &c.unit.blocks[first..first + size];
    let live: u64 = blocks.iter().flat_map(|b| &b.warps).map(|w| u64::from(w.live.count_ones())).sum();
    // The warp itself is not among them while it runs.
    (blocks[0].linear, live + u64::from(c.warp.live.count_ones()))
}

fn meet(i: &Instruction) -> Result<Operation, Unsupported> {
    let aligned = i.has("aligned");
    if i.has("arrive") {
        let relaxed = i.has("relaxed");
        return Ok(Box::new(move |c| {
            if aligned {
                c.together()?;
            }
            let (mask, live) = (c.mask, c.warp.live);
            let twice = c.warp.state.get::<Arrived>().lanes & mask;
            if twice != 0 {
                let lane = twice.trailing_zeros() as usize;
                return undefined(c, lane, "arrives at the cluster's barrier again before it has waited".into());
            }
            let known = if relaxed { Knowledge::default() } else { c.warp.clocks.release(mask, live) };
            let (key, _) = cluster(c);
            let meeting = c.unit.state.get::<Meetings>().0.entry(key).or_default();
            meeting.arrived += u64::from(mask.count_ones());
            meeting.joined.acquire(&known);
            let phase = meeting.phase;
            let arrived = c.warp.state.get::<Arrived>();
            arrived.lanes |= mask;
            lanes(mask).for_each(|l| arrived.phase[l] = phase);
            c.unit.progress += 1;
            Ok(Flow::Next)
        }));
    }
    if !i.has("wait") {
        return Err("this form of barrier.cluster is not known".into());
    }
    Ok(Box::new(move |c| {
        if aligned {
            c.together()?;
        }
        let (mask, live) = (c.mask, c.warp.live);
        let arrived = c.warp.state.get::<Arrived>();
        let missing = mask & !arrived.lanes;
        let waits_for = arrived.phase[mask.trailing_zeros() as usize];
        if missing != 0 {
            let lane = missing.trailing_zeros() as usize;
            return undefined(c, lane, "waits at the cluster's barrier and has not arrived".into());
        }
        let (key, all) = cluster(c);
        let meeting = c.unit.state.get::<Meetings>().0.entry(key).or_default();
        if meeting.phase == waits_for && meeting.arrived >= all {
            meeting.phase += 1;
            meeting.arrived = 0;
            meeting.released = std::mem::take(&mut meeting.joined);
            c.unit.progress += 1;
        }
        let meeting = c.unit.state.get::<Meetings>().0.entry(key).or_default();
        if meeting.phase <= waits_for {
            return Ok(Flow::Wait(Waiting { on: "the cluster's barrier, phase", number: waits_for }));
        }
        c.warp.clocks.update(mask, live, |k| k.acquire(&meeting.released));
        c.warp.state.get::<Arrived>().lanes &= !mask;
        Ok(Flow::Next)
    }))
}

fn elect(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [results, members] = i.operands.as_slice() else { return Err("two results and a mask expected".into()) };
    let Operand::Pair(leader, elected) = results else { return Err("a leader and a predicate expected".into()) };
    let (leader, elected, members) = (d.register(leader)?, d.register(elected)?, d.value(members)?);
    Ok(Box::new(move |c| {
        let members = c.read(members)[c.mask.trailing_zeros() as usize] as u32 & c.warp.live;
        // All that are named must come: their group grows until they have.
        if members & !c.mask != 0 {
            return Ok(Flow::Wait(Waiting { on: "the other threads of its warp", number: u64::from(members) }));
        }
        let first = members.trailing_zeros() as u64;
        c.write_to(leader, &[first; 32]);
        c.write_to(elected, &std::array::from_fn(|lane| u64::from(lane as u64 == first)));
        Ok(Flow::Next)
    }))
}

/// Whether all warps of a block but this one have ended.
pub fn last(c: &Context<'_, '_>, ends: impl Fn(&Warp) -> bool) -> bool {
    c.unit.blocks[c.block].warps.iter().all(ends)
}
