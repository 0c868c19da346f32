//! What the lanes of a warp do together: shuffles, votes, matches, reductions.
use super::compare::predicate;
use super::lanewise::{mask, signed};
use crate::fault::FaultKind;
use crate::machine::{lanes, Context};
use crate::program::{Decoder, Flow, Lanes, Operation, Unsupported, Waiting};
use crate::syntax::{Instruction, Operand, Type};

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    Some(match i.opcode.as_str() {
        "shfl" => shuffle(i, d),
        "vote" => vote(i, d),
        "match" => matches(i, d),
        "redux" => reduce(i, d),
        "activemask" => match i.operands.first() {
            Some(to) => d.register(to).map(|to| -> Operation {
                Box::new(move |c| {
                    let mask = u64::from(c.mask);
                    c.write_to(to, &[mask; 32]);
                    Ok(Flow::Next)
                })
            }),
            None => Err("a register expected".into()),
        },
        _ => return None,
    })
}

/// Waits until all live members of a mask are here. `None`: they are.
///
/// # Errors
/// A lane that executes and is no member.
pub fn gather(c: &mut Context<'_, '_>, members: u32) -> Result<Option<Flow>, crate::Fault> {
    if c.mask & !members != 0 {
        let lane = (c.mask & !members).trailing_zeros();
        let what = format!("lane {lane} executes this, but the mask {members:#010x} does not have it");
        return c.refuse(FaultKind::Undefined(what));
    }
    let missing = members & c.warp.live & !c.mask;
    if missing == 0 {
        return Ok(None);
    }
    // Members that no other group can bring: they are masked by the guard.
    if missing & c.group != 0 {
        c.together()?;
    }
    // Another group may have come to a barrier of the same members elsewhere.
    let text = |pc: u32| c.unit.program.instructions()[pc as usize].opcode.as_str();
    let is_barrier =
        |pc: u32| matches!(text(pc), "bar" | "barrier") && c.unit.program.instructions()[pc as usize].has("warp");
    if is_barrier(c.pc) {
        let there: u32 = c
            .warp
            .groups
            .iter()
            .filter(|g| {
                g.waiting.is_some_and(|w| w.on == "lanes" && w.number == u64::from(members)) && is_barrier(g.pc)
            })
            .map(|g| g.mask)
            .fold(0, |a, b| a | b);
        if missing & !there == 0 {
            // They go on as well, when they try again: the token says so.
            for group in &mut c.warp.groups {
                if group.waiting.is_some_and(|w| w.on == "lanes" && w.number == u64::from(members)) {
                    group.pc += 1;
                    group.waiting = None;
                    group.tried = false;
                }
            }
            let live = c.warp.live;
            c.warp.clocks.meet(members & live, live);
            c.unit.progress += 1;
            return Ok(None);
        }
    }
    Ok(Some(Flow::Wait(Waiting { on: "lanes", number: u64::from(members) })))
}

fn shuffle(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [to, a, b, limits, members] = i.operands.as_slice() else {
        return Err("only shfl.sync with its five operands is known".into());
    };
    let (to, valid) = match to {
        Operand::Pair(to, p) => (d.register(to)?, d.register(p)?),
        other => (d.register(other)?, None),
    };
    let word = Type::Bits(32);
    let (a, b) = (d.typed(a, word)?, d.typed(b, word)?);
    let (limits, members) = (d.typed(limits, word)?, d.typed(members, word)?);
    let kind = ["up", "down", "bfly", "idx"].into_iter().find(|k| i.has(k)).ok_or("a kind of shuffle expected")?;
    Ok(Box::new(move |c| {
        let members = c.read(members)[c.mask.trailing_zeros() as usize] as u32;
        if let Some(wait) = gather(c, members)? {
            return Ok(wait);
        }
        let (a, b, limits): (Lanes, Lanes, Lanes) = (c.read(a), c.read(b), c.read(limits));
        let (mut out, mut ok) = (a, [0u64; 32]);
        for lane in lanes(c.mask) {
            let b = b[lane] as i64 & 0x1f;
            let (clamp, segment) = (limits[lane] as i64 & 0x1f, limits[lane] as i64 >> 8 & 0x1f);
            let own = lane as i64;
            let most = (own & segment) | (clamp & !segment);
            let least = own & segment;
            let (from, fits) = match kind {
                "up" => (own - b, own - b >= most),
                "down" => (own + b, own + b <= most),
                "bfly" => (own ^ b, (own ^ b) <= most),
                _ => (least | (b & !segment), (least | (b & !segment)) <= most),
            };
            let from = if fits { from as usize & 31 } else { lane };
            if c.mask >> from & 1 == 0 {
                let what = format!("lane {lane} takes a value from lane {from}, which does not take part");
                return Err(c.fault(FaultKind::Undefined(what), lane));
            }
            out[lane] = a[from];
            ok[lane] = u64::from(fits);
        }
        c.write_to(to, &out);
        c.write_to(valid, &ok);
        let (mask, live) = (c.mask, c.warp.live);
        c.warp.clocks.meet(mask, live);
        Ok(Flow::Next)
    }))
}

fn vote(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [to, p, members] = i.operands.as_slice() else { return Err("only vote.sync is known".into()) };
    let (to, p, members) = (d.register(to)?, predicate(p, d)?, d.typed(members, Type::Bits(32))?);
    let kind = ["all", "any", "uni", "ballot"].into_iter().find(|k| i.has(k)).ok_or("a kind of vote expected")?;
    Ok(Box::new(move |c| {
        let members = c.read(members)[c.mask.trailing_zeros() as usize] as u32;
        if let Some(wait) = gather(c, members)? {
            return Ok(wait);
        }
        let p0 = c.read(p.0);
        let votes = lanes(c.mask).filter(|l| (p0[*l] ^ p.1) & 1 == 1).fold(0u32, |m, l| m | 1 << l);
        let out = match kind {
            "all" => u64::from(votes == c.mask),
            "any" => u64::from(votes != 0),
            "uni" => u64::from(votes == 0 || votes == c.mask),
            _ => u64::from(votes),
        };
        c.write_to(to, &[out; 32]);
        let (mask, live) = (c.mask, c.warp.live);
        c.warp.clocks.meet(mask, live);
        Ok(Flow::Next)
    }))
}

fn matches(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let ty = i.ty().ok_or("a type expected")?;
    let [to, a, members] = i.operands.as_slice() else { return Err("three operands expected".into()) };
    let (to, p) = match to {
        Operand::Pair(to, p) => (d.register(to)?, d.register(p)?),
        other => (d.register(other)?, None),
    };
    let (a, members) = (d.typed(a, ty)?, d.typed(members, Type::Bits(32))?);
    let all = i.has("all");
    Ok(Box::new(move |c| {
        let members = c.read(members)[c.mask.trailing_zeros() as usize] as u32;
        if let Some(wait) = gather(c, members)? {
            return Ok(wait);
        }
        let a = c.read(a);
        let (mut out, mut same) = ([0u64; 32], [0u64; 32]);
        for lane in lanes(c.mask) {
            let equal = lanes(c.mask).filter(|l| a[*l] == a[lane]).fold(0u32, |m, l| m | 1 << l);
            let whole = equal == c.mask;
            out[lane] = if all && !whole { 0 } else { u64::from(equal) };
            same[lane] = u64::from(whole);
        }
        c.write_to(to, &out);
        c.write_to(p, &same);
        let (mask, live) = (c.mask, c.warp.live);
        c.warp.clocks.meet(mask, live);
        Ok(Flow::Next)
    }))
}

fn reduce(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let ty = i.ty().ok_or("a type expected")?;
    let [to, a, members] = i.operands.as_slice() else { return Err("three operands expected".into()) };
    let (to, a, members) = (d.register(to)?, d.typed(a, ty)?, d.typed(members, Type::Bits(32))?);
    let kind = ["add", "min", "max", "and", "or", "xor"].into_iter().find(|k| i.has(k));
    let kind = kind.filter(|_| !ty.float()).ok_or("this reduction is not known")?;
    let s = ty.signed();
    Ok(Box::new(move |c| {
        let members = c.read(members)[c.mask.trailing_zeros() as usize] as u32;
        if let Some(wait) = gather(c, members)? {
            return Ok(wait);
        }
        let a = c.read(a);
        let value = |l: usize| if s { signed(a[l], 32) } else { a[l] as i64 };
        let out = lanes(c.mask).map(value).reduce(|x, y| match kind {
            "add" => x.wrapping_add(y),
            "min" => x.min(y),
            "max" => x.max(y),
            "and" => x & y,
            "or" => x | y,
            _ => x ^ y,
        });
        c.write_to(to, &[out.unwrap_or(0) as u64 & mask(ty); 32]);
        let (mask, live) = (c.mask, c.warp.live);
        c.warp.clocks.meet(mask, live);
        Ok(Flow::Next)
    }))
}
