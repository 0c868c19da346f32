//! bar and barrier: sync, arrive, red; named barriers, with a number of threads or for all of the block.
use crate::fault::FaultKind;
use crate::machine::{lanes, Context};
use crate::program::{Decoder, Flow, Operation, Unsupported, Value, Waiting};
use crate::syntax::{Instruction, Operand, Type};

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    if !matches!(i.opcode.as_str(), "bar" | "barrier") || i.has("cluster") {
        return None;
    }
    if i.has("warp") {
        return Some(warp(i, d));
    }
    Some(block(i, d))
}

fn warp(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let members = d.typed(i.operands.first().ok_or("a mask expected")?, Type::Bits(32))?;
    Ok(Box::new(move |c| {
        let lane = c.mask.trailing_zeros() as usize;
        let members = c.read(members)[lane] as u32;
        if let Some(wait) = super::gather(c, members)? {
            return Ok(wait);
        }
        let (mask, live) = (c.mask, c.warp.live);
        c.warp.clocks.meet(mask, live);
        Ok(Flow::Next)
    }))
}

/// Of a reduction.
#[derive(Clone, Copy, PartialEq)]
enum Red {
    No,
    Popc,
    And,
    Or,
}

fn block(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let arrive = i.has("arrive");
    let red = match () {
        () if !i.has("red") => Red::No,
        () if i.has("popc") => Red::Popc,
        () if i.has("and") => Red::And,
        () => Red::Or,
    };
    // `barrier` without `.aligned` is each thread's own affair; `bar` is the whole warp's.
    let aligned = i.opcode == "bar" || i.has("aligned");
    let mut operands = i.operands.as_slice();
    let mut to = None;
    let mut predicate = (Value::Constant(0), 0);
    if red != Red::No {
        let [result, rest @ .., p] = operands else { return Err("a result and a predicate expected".into()) };
        to = d.register(result)?;
        predicate = super::compare::predicate(p, d)?;
        operands = rest;
    }
    let number = d.typed(operands.first().unwrap_or(&Operand::Integer(0)), Type::Unsigned(32))?;
    let count = operands.get(1).map(|o| d.typed(o, Type::Unsigned(32))).transpose()?;
    Ok(Box::new(move |c| {
        let lane = c.mask.trailing_zeros() as usize;
        let id = c.read(number)[lane] as u32 as u64;
        let waiting = Flow::Wait(Waiting { on: "barrier", number: id });
        if id > 15 {
            return c.refuse(FaultKind::Undefined(format!("there is no barrier {id}: a block has 0 to 15")));
        }
        let id = id as usize;
        if c.token == 0 {
            if aligned && !c.whole_warp() {
                if c.group != c.mask {
                    c.together()?;
                }
                return Ok(Flow::Wait(Waiting { on: "the other threads of its warp", number: 0 }));
            }
            let expected = count.map(|count| c.read(count)[lane] as u32);
            arrival(c, id, expected, predicate)?;
            if arrive {
                return Ok(Flow::Next);
            }
        }
        let phase = c.token - 1;
        let mask = c.mask;
        let barrier = &c.unit.blocks[c.block].barriers[id];
        // Those who have ended are not waited for.
        if barrier.phase == phase && barrier.expected.is_none() {
            complete(c, id);
        }
        let barrier = &c.unit.blocks[c.block].barriers[id];
        if barrier.phase == phase {
            return Ok(waiting);
        }
        let live = c.warp.live;
        let released = barrier.released.clone();
        let (votes, voters) = (barrier.votes.1, barrier.voters);
        c.warp.clocks.update(mask, live, |k| k.acquire(&released));
        let out = match red {
            Red::No => None,
            Red::Popc => Some(u64::from(votes)),
            Red::And => Some(u64::from(votes == voters)),
            Red::Or => Some(u64::from(votes > 0)),
        };
        if let Some(out) = out {
            c.write_to(to, &[out; 32]);
        }
        Ok(Flow::Next)
    }))
}

fn arrival(
    c: &mut Context<'_, '_>,
    id: usize,
    expected: Option<u32>,
    predicate: (Value, u64),
) -> Result<(), crate::Fault> {
    let p = c.read(predicate.0);
    let votes = lanes(c.mask).filter(|l| (p[*l] ^ predicate.1) & 1 == 1).count() as u32;
    let (mask, live, pc) = (c.mask, c.warp.live, c.pc);
    let known = c.warp.clocks.release(mask, live);
    // A warp counts with all its threads.
    let threads = if expected.is_some() { 32 } else { mask.count_ones() };
    let barrier = &mut c.unit.blocks[c.block].barriers[id];
    if barrier.arrived == 0 {
        barrier.first = pc;
    } else if barrier.expected != expected {
        let first = barrier.first;
        let told = |n: Option<u32>| n.map_or("all threads of the block".into(), |n| format!("{n} threads"));
        let what = format!(
            "barrier {id} is for {} here, and for {} where others have arrived ({})",
            told(expected),
            told(barrier.expected),
            c.unit.site(first)
        );
        return c.refuse(FaultKind::Undefined(what));
    }
    barrier.expected = expected;
    barrier.arrived += threads;
    barrier.votes.0 += votes;
    barrier.joined.acquire(&known);
    if let Some(expected) = expected {
        if expected % 32 != 0 || expected == 0 {
            return c.refuse(FaultKind::Undefined(format!(
                "barrier {id} is for {expected} threads, which is no multiple of 32"
            )));
        }
        if barrier.arrived > expected {
            let arrived = barrier.arrived;
            return c.refuse(FaultKind::Undefined(format!(
                "{arrived} threads have arrived at barrier {id}, which is for {expected}"
            )));
        }
    }
    c.token = c.unit.blocks[c.block].barriers[id].phase + 1;
    c.unit.progress += 1;
    complete(c, id);
    Ok(())
}

/// Ends the phase if all have arrived.
fn complete(c: &mut Context<'_, '_>, id: usize) {
    let own = c.warp.live.count_ones();
    let block = &mut c.unit.blocks[c.block];
    let live: u32 = block.warps.iter().map(|w| w.live.count_ones()).sum::<u32>() + own;
    let barrier = &mut block.barriers[id];
    if barrier.arrived < barrier.expected.unwrap_or(live) {
        return;
    }
    barrier.phase += 1;
    barrier.voters = barrier.arrived;
    barrier.votes = (0, barrier.votes.0);
    barrier.arrived = 0;
    barrier.expected = None;
    barrier.released = std::mem::take(&mut barrier.joined);
    c.unit.progress += 1;
}
