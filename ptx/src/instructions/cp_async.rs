//! cp.async: copies of 4, 8 or 16 bytes from global to shared memory, in groups that each thread waits for.
use crate::fault::{Fault, Touch};
use crate::launch::Delivery;
use crate::machine::{lanes, who, Context};
use crate::program::{Decoder, Flow, Operation, Unsupported};
use crate::syntax::{Instruction, Space, Type};
use rand::Rng;
use std::collections::VecDeque;

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    let other = |m: &String| matches!(m.as_str(), "bulk" | "mbarrier" | "reduce");
    if i.opcode != "cp" || i.modifiers.iter().any(other) {
        return None;
    }
    Some(match () {
        () if i.has("commit_group") => Ok(Box::new(|c| {
            for lane in lanes(c.mask) {
                let copies = c.warp.state.get::<Copies>();
                let open = std::mem::take(&mut copies.lanes[lane].open);
                copies.lanes[lane].groups.push_back(open);
            }
            Ok(Flow::Next)
        })),
        () if i.has("wait_group") => match i.operands.first() {
            Some(operand) => d.typed(operand, Type::Unsigned(32)).map(|n| -> Operation {
                Box::new(move |c| {
                    let n = c.read(n);
                    wait(c, |lane| n[lane] as usize, false)
                })
            }),
            None => Err("a number of groups expected".into()),
        },
        () if i.has("wait_all") => Ok(Box::new(|c| wait(c, |_| 0, true))),
        () => copy(i, d),
    })
}

/// A copy on its way.
struct Copy {
    to: u64,
    from: u64,
    bytes: usize,
    filled: usize,
    pc: u32,
    /// What was read, if it was read already.
    data: Option<[u8; 16]>,
}

#[derive(Default)]
struct Lane {
    open: Vec<Copy>,
    groups: VecDeque<Vec<Copy>>,
}

/// The copies of a warp's lanes.
#[derive(Default)]
pub struct Copies {
    lanes: [Lane; 32],
}

impl Copies {
    /// Whether a lane has copies that it has not waited for, committed or not.
    pub fn outstanding(&self, lane: usize) -> bool {
        let lane = &self.lanes[lane];
        !lane.open.is_empty() || lane.groups.iter().any(|g| !g.is_empty())
    }
}

/// Completes all copies of a lane, as if it waited for them, and tells how many there were (for completion on an mbarrier).
///
/// # Errors
/// What the copies find.
pub fn complete_all(c: &mut Context<'_, '_>, lane: usize) -> Result<usize, Fault> {
    let copies = c.warp.state.get::<Copies>();
    let lane_state = &mut copies.lanes[lane];
    let mut list: Vec<Copy> = lane_state.groups.iter_mut().flat_map(std::mem::take).collect();
    list.append(&mut lane_state.open);
    let count = list.len();
    for copy in list {
        finish(c, lane, copy)?;
    }
    Ok(count)
}

fn copy(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [to, from, bytes, rest @ ..] = i.operands.as_slice() else { return Err("three operands expected".into()) };
    let (to, from) = (d.address(to)?, d.address(from)?);
    let crate::syntax::Operand::Integer(bytes) = bytes else { return Err("a constant size expected".into()) };
    let bytes = *bytes as usize;
    if !matches!(bytes, 4 | 8 | 16) {
        return Err(format!("cp.async copies 4, 8 or 16 bytes, not {bytes}"));
    }
    // The source's size, or a predicate that says to ignore the source.
    let cache = i.modifiers.iter().any(|m| m == "L2::cache_hint");
    let source = rest.first().filter(|_| !(cache && rest.len() == 1));
    let predicate = source.is_some_and(|o| d.type_of(o) == Some(Type::Pred));
    let size = source.map(|o| d.typed(o, Type::Unsigned(32))).transpose()?;
    Ok(Box::new(move |c| {
        let (to, from) = (c.addresses(&to), c.addresses(&from));
        let size = size.map(|s| c.read(s));
        let early = match c.unit.launch.options.delivery {
            Delivery::Early => true,
            Delivery::Late => false,
            Delivery::Random => c.unit.random.gen_bool(0.5),
        };
        for lane in lanes(c.mask) {
            let filled = match size {
                None => bytes,
                Some(ignore) if predicate => {
                    if ignore[lane] & 1 == 1 {
                        0
                    } else {
                        bytes
                    }
                }
                Some(size) => (size[lane] as u32 as usize).min(bytes),
            };
            let (_, at) = c.resolve(Space::Shared, to[lane]);
            let agent = who(c.warp, lane, c.pc, false);
            let Some((block, offset)) = c.shared_block(at) else {
                c.judge(Err(crate::memory::Refused::Bounds), Space::Shared, lane, at, bytes as u64, Touch::Writes)?;
                continue;
            };
            let announced = c.unit.blocks[block].shared.announce(offset, bytes as u64, bytes as u64, &agent);
            c.judge(announced, Space::Shared, lane, offset, bytes as u64, Touch::Writes)?;
            let mut copy = Copy { to: offset, from: from[lane], bytes, filled, pc: c.pc, data: None };
            if early {
                copy.data = Some(fetch(c, lane, &copy)?);
            } else if filled > 0 {
                // Bounds are known at once.
                let found = c.unit.global.check(copy.from, filled as u64, bytes as u64);
                if let Err(refused) = found {
                    c.judge(Err(refused), Space::Global, lane, copy.from, filled as u64, Touch::Reads)?;
                }
            }
            c.warp.state.get::<Copies>().lanes[lane].open.push(copy);
        }
        Ok(Flow::Next)
    }))
}

fn fetch(c: &mut Context<'_, '_>, lane: usize, copy: &Copy) -> Result<[u8; 16], Fault> {
    let mut data = [0; 16];
    if copy.filled > 0 {
        let who = who(c.warp, lane, copy.pc, false);
        let align = if copy.filled == copy.bytes { copy.bytes as u64 } else { 1 };
        let touched = c.unit.global.read(copy.from, &mut data[..copy.filled], align, &who);
        let own = std::mem::replace(&mut c.pc, copy.pc);
        let judged = c.judge(touched, Space::Global, lane, copy.from, copy.filled as u64, Touch::Reads);
        c.pc = own;
        judged?;
    }
    Ok(data)
}

fn finish(c: &mut Context<'_, '_>, lane: usize, copy: Copy) -> Result<(), Fault> {
    let data = match copy.data {
        Some(data) => data,
        None => fetch(c, lane, &copy)?,
    };
    let agent = who(c.warp, lane, copy.pc, false);
    c.unit.blocks[c.block].shared.deliver(copy.to, &data[..copy.bytes], &agent);
    Ok(())
}

fn wait(c: &mut Context<'_, '_>, latest: impl Fn(usize) -> usize, all: bool) -> Result<Flow, Fault> {
    for lane in lanes(c.mask) {
        loop {
            let state = &mut c.warp.state.get::<Copies>().lanes[lane];
            if state.groups.len() <= latest(lane) {
                break;
            }
            for copy in state.groups.pop_front().unwrap_or_default() {
                finish(c, lane, copy)?;
            }
        }
        if all {
            for copy in std::mem::take(&mut c.warp.state.get::<Copies>().lanes[lane].open) {
                finish(c, lane, copy)?;
            }
        }
    }
    Ok(Flow::Next)
}
