//! Instructions: one family, one file.
mod atomic;
mod barrier;
mod bulk;
mod cluster;
pub mod compare;
mod control;
mod convert;
pub mod cp_async;
mod fence;
mod float;
mod integer;
pub mod lanewise;
mod ldmatrix;
pub mod load_store;
pub mod mbarrier;
mod mma;
mod tcgen05;
mod warp;
pub mod wgmma;
mod wmma;

use crate::program::{Decoder, Operation, Unsupported};
use crate::syntax::Instruction;

/// Decodes an instruction, if it is one of the family's.
pub type Family = fn(&Instruction, &Decoder<'_>) -> Option<Result<Operation, Unsupported>>;

/// All families. The first that knows an instruction has it.
pub const FAMILIES: &[Family] = &[
    mbarrier::decode,
    bulk::decode,
    cluster::decode,
    mma::decode,
    ldmatrix::decode,
    wmma::decode,
    wgmma::decode,
    tcgen05::decode,
    control::decode,
    load_store::decode,
    integer::decode,
    float::decode,
    compare::decode,
    convert::decode,
    barrier::decode,
    fence::decode,
    warp::decode,
    atomic::decode,
    cp_async::decode,
];

/// What an instruction does.
///
/// # Errors
/// No family knows it, or the one that does refuses.
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let known = FAMILIES.iter().find_map(|family| family(i, d));
    known.unwrap_or_else(|| Err(format!("the instruction `{}` is not known", name(i))))
}

fn name(i: &Instruction) -> String {
    std::iter::once(&i.opcode).chain(&i.modifiers).map(String::as_str).collect::<Vec<_>>().join(".")
}

use crate::machine::{lanes, Context};
use crate::program::Lanes;
use crate::syntax::Space;
use load_store::Strength;
use warp::gather;

/// A strong load: what the location hands on is collected, or, acquiring, seen.
fn order_load(c: &mut Context<'_, '_>, space: Space, at: &Lanes, strength: Strength) {
    for lane in lanes(c.mask) {
        let (space, address) = c.resolve(space, at[lane]);
        let known = match space {
            Space::Shared => c.shared_block(address).and_then(|(b, at)| c.unit.blocks[b].synchronised.get(&at)),
            _ => c.unit.synchronised.get(&address),
        };
        let Some(known) = known else { continue };
        let live = c.warp.live;
        c.warp.clocks.update(1 << lane, live, |k| {
            if strength.acquire {
                k.acquire(known);
            } else {
                k.collected.join(&known.seen);
            }
        });
    }
}

/// A strong store: hands on what was seen, releasing, or else what was seen at the last fence.
fn order_store(c: &mut Context<'_, '_>, space: Space, at: &Lanes, strength: Strength) {
    for lane in lanes(c.mask) {
        let (space, address) = c.resolve(space, at[lane]);
        let live = c.warp.live;
        let known = if strength.release {
            c.warp.clocks.release(1 << lane, live)
        } else {
            let lane = c.warp.clocks.lane(lane);
            crate::clocks::Knowledge { seen: lane.published.clone(), ..Default::default() }
        };
        c.unit.progress += 1;
        let place = match space {
            Space::Shared => match c.shared_block(address) {
                Some((b, at)) => c.unit.blocks[b].synchronised.entry(at).or_default(),
                None => continue,
            },
            _ => c.unit.synchronised.entry(address).or_default(),
        };
        // A chain of operations on one location goes on handing on what it began with.
        place.acquire(&known);
    }
}
