//! cp.async.bulk and cp.async.bulk.tensor: copies of the tensor memory accelerator, both ways, with their barriers and groups.
//!
//! A copy into shared memory announces its destination at once: until an mbarrier's phase has ended that counts its bytes, nobody
//! may touch it. A copy out of shared memory reads it at any time until its group has been waited for. What is copied, and when, is
//! up to the launch's delivery.
use super::load_store::space;
use super::mbarrier::{self, shared_place, undefined};
use crate::clocks::{Agent, Clocks, Knowledge};
use crate::fault::{Fault, FaultKind, Touch};
use crate::machine::{lanes, Context, Pending, Unit};
use crate::matrix::descriptor::Swizzle;
use crate::matrix::map::{Run, TensorMap};
use crate::memory::Who;
use crate::program::{Address, Decoder, Flow, Operation, Unsupported, Value, Waiting};
use crate::syntax::{Instruction, Operand, Space};
use half::{bf16, f16};
use rustc_hash::FxHashMap;

/// Groups of copies out of shared memory, by warp and lane.
#[derive(Default)]
struct Groups(FxHashMap<(Agent, u8), Group>);

#[derive(Default)]
struct Group {
    /// Groups that were committed; the open one has the next number.
    committed: u64,
    /// Copies under way, by group.
    under_way: FxHashMap<u64, u32>,
}

/// Engines whose accesses must have been waited for before a block ends.
#[derive(Default)]
pub struct Engines(pub rustc_hash::FxHashSet<Agent>);

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    match i.opcode.as_str() {
        "cp" if i.has("bulk") => Some(copy(i, d)),
        "prefetch" if i.has("tensormap") => Some(prefetch(i, d)),
        "fence" | "tensormap" if i.opcode == "tensormap" => Some(Err("tensor maps that the kernel changes".into())),
        _ => None,
    }
}

/// What the kinds of engines begin their keys with.
const LOADS: u64 = 1 << 60;
const READS: u64 = 2 << 60;
const WRITES: u64 = 3 << 60;

/// The kind of key for `wgmma`; see [`Unit::engine`].
pub const MATRIX: u64 = 4 << 60;

/// What a lane knows, its own accesses among it.
pub fn known(c: &Context<'_, '_>, lane: usize) -> Knowledge {
    let mut known = c.warp.clocks.lane(lane).clone();
    known.seen.add(c.warp.clocks.agent, c.warp.clocks.clock, 1 << lane);
    known
}

/// An asynchronous engine that touches memory, started by somebody who knows.
pub fn engine<'k>(agent: Agent, clock: u32, pc: u32, strong: bool, known: &'k Knowledge) -> Who<'k> {
    Who { agent, clock, lane: 0, pc, strong, engine: true, seen: &known.seen, fenced: &known.fenced }
}

/// What is copied: bytes one after the other, or a box.
#[derive(Clone)]
enum Piece {
    Line {
        global: u64,
        bytes: u64,
    },
    /// What of it stands where was found out before.
    Box {
        map: TensorMap,
        runs: Vec<Run>,
    },
}

impl Piece {
    fn bytes(&self) -> u64 {
        match self {
            Piece::Line { bytes, .. } => *bytes,
            Piece::Box { map, .. } => map.box_bytes(),
        }
    }

    fn runs(&self) -> Vec<Run> {
        match self {
            Piece::Line { global, bytes } => vec![Run { offset: 0, address: Some(*global), bytes: *bytes }],
            Piece::Box { runs, .. } => runs.clone(),
        }
    }

    /// Puts the bytes of a box where the swizzle has them, or (the same) takes them from there: `start` is where the box
    /// begins in shared memory.
    fn permuted(&self, start: u64, from: &[u8]) -> Vec<u8> {
        let Piece::Box { map, .. } = self else { return from.to_vec() };
        if map.swizzle == Swizzle::None {
            return from.to_vec();
        }
        // Rows are whole chunks where they are permuted.
        let mut to = vec![0; from.len()];
        let (chunks, places) = (from.as_chunks::<16>().0, to.as_chunks_mut::<16>().0);
        for (n, chunk) in chunks.iter().enumerate() {
            let at = (map.swizzle.at(start + 16 * n as u64, 0) - start) as usize / 16;
            if let Some(place) = places.get_mut(at) {
                *place = *chunk;
            }
        }
        to
    }
}

fn copy(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    if i.has("commit_group") {
        return Ok(Box::new(|c| {
            let agent = c.warp.clocks.agent;
            for lane in lanes(c.mask) {
                c.unit.state.get::<Groups>().0.entry((agent, lane as u8)).or_default().committed += 1;
            }
            Ok(Flow::Next)
        }));
    }
    if i.has("wait_group") {
        return wait(i, d);
    }
    let images = i.has("im2col");
    if !images && i.modifiers.iter().any(|m| m.starts_with("im2col")) {
        return Err("pixels of one row of images (im2col::w) are not known".into());
    }
    if i.has("prefetch") {
        return Ok(Box::new(|_| Ok(Flow::Next)));
    }
    let into_shared = i.modifiers.iter().any(|m| m.starts_with("mbarrier"));
    let tensor = i.has("tensor");
    // The cache hint comes last, the multicast mask before it.
    let mut operands: Vec<&Operand> = i.operands.iter().collect();
    if i.modifiers.iter().any(|m| m.ends_with("cache_hint")) {
        operands.pop();
    }
    let multicast = i.modifiers.iter().any(|m| m.starts_with("multicast"));
    let mask = match multicast {
        true => Some(d.value(operands.pop().ok_or("a mask expected")?)?),
        false => None,
    };
    let offsets = match operands.as_slice() {
        [_, _, _, Operand::Vector(list)] if images => {
            let list = list.iter().map(|o| d.value(o)).collect::<Result<_, _>>()?;
            operands.pop();
            list
        }
        _ if images => return Err("a copy of images brings them to shared memory, and has offsets".into()),
        _ => Vec::new(),
    };
    match (into_shared, tensor, operands.as_slice()) {
        (true, true, [to, from, barrier]) => {
            let source = Place { offsets, ..map(from, i, d)? };
            load(Source::Map(source), d.address(to)?, None, d.address(barrier)?, mask)
        }
        (true, false, [to, from, bytes, barrier]) => {
            // From shared memory of this block into another's.
            let shared = i.modifiers.iter().filter(|m| m.starts_with("shared")).count() == 2;
            let source = if shared { Source::Shared(d.address(from)?) } else { Source::Global(d.address(from)?) };
            load(source, d.address(to)?, Some(d.value(bytes)?), d.address(barrier)?, mask)
        }
        (false, true, [to, from]) => store(Source::Map(map(to, i, d)?), d.address(from)?, None, reduction(i)?),
        (false, false, [to, from, bytes]) => {
            store(Source::Global(d.address(to)?), d.address(from)?, Some(d.value(bytes)?), reduction(i)?)
        }
        _ => Err("this form of cp.async.bulk is not known".into()),
    }
}

/// Where the other side of a copy is.
enum Source {
    Map(Place),
    Global(Address),
    Shared(Address),
}

/// A box of a tensor map.
struct Place {
    /// The map's address.
    base: Value,
    offset: i64,
    coordinates: Vec<Value>,
    /// What is added to those of pixels; as many as the mode has.
    offsets: Vec<Value>,
}

/// A map's address and the coordinates.
fn map(operand: &Operand, i: &Instruction, d: &Decoder<'_>) -> Result<Place, Unsupported> {
    let Operand::Address { more, .. } = operand else { return Err("a tensor map expected".into()) };
    let [Operand::Vector(list)] = more.as_slice() else { return Err("coordinates expected".into()) };
    let rank = i.modifiers.iter().find_map(|m| m.strip_suffix('d').and_then(|n| n.parse::<usize>().ok()));
    if rank != Some(list.len()) {
        return Err("as many coordinates as dimensions expected".into());
    }
    let address = d.address(operand)?;
    let base = match (address.base, address.of) {
        (Value::Constant(at), Some(Space::Param)) => Value::Constant(at | crate::memory::PARAM_WINDOW),
        (base, _) => base,
    };
    let coordinates = list.iter().map(|o| d.value(o)).collect::<Result<_, _>>()?;
    Ok(Place { base, offset: address.offset, coordinates, offsets: Vec::new() })
}

/// The map that a generic address points to.
fn map_at(c: &mut Context<'_, '_>, lane: usize, at: u64) -> Result<TensorMap, Fault> {
    if at % 64 != 0 {
        return undefined(c, lane, format!("a tensor map stands at a multiple of 64, not at {at:#x}"));
    }
    let mut bytes = [0; 128];
    for (n, part) in bytes.chunks_mut(16).enumerate() {
        c.load(Space::Generic, lane, at + 16 * n as u64, part, false)?;
    }
    match TensorMap::decoded(&bytes) {
        Some(map) => Ok(map),
        None => undefined(c, lane, "there is no tensor map at this address".into()),
    }
}

fn prefetch(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [at] = i.operands.as_slice() else { return Err("an address expected".into()) };
    let address = d.address(at)?;
    let param = space(i) == Space::Param || address.of == Some(Space::Param);
    Ok(Box::new(move |c| {
        let at = c.addresses(&address);
        for lane in lanes(c.mask) {
            let window = if param && at[lane] >> 56 == 0 { crate::memory::PARAM_WINDOW } else { 0 };
            map_at(c, lane, at[lane] + window)?;
        }
        Ok(Flow::Next)
    }))
}

/// What a lane copies: the piece, or a place in shared memory of this block.
fn piece(
    c: &mut Context<'_, '_>,
    lane: usize,
    source: &Source,
    bytes: Option<u64>,
) -> Result<Result<Piece, u64>, Fault> {
    if let Some(bytes) = bytes {
        if bytes % 16 != 0 || bytes == 0 {
            return undefined(c, lane, format!("a bulk copy has a multiple of 16 bytes, not {bytes}"));
        }
    }
    match source {
        Source::Map(Place { base, offset, coordinates, offsets }) => {
            let at = c.read(*base)[lane].wrapping_add_signed(*offset);
            let map = map_at(c, lane, at)?;
            let at: Vec<i64> = coordinates.iter().map(|v| i64::from(c.read(*v)[lane] as u32 as i32)).collect();
            let offsets: Vec<i64> = offsets.iter().map(|v| i64::from(c.read(*v)[lane] as u16)).collect();
            if at.len() != map.sizes.len() {
                let text = format!("{} coordinates for a tensor map of {} dimensions", at.len(), map.sizes.len());
                return undefined(c, lane, text);
            }
            if offsets.is_empty() != map.image.is_none() {
                return undefined(
                    c,
                    lane,
                    "the map is of images where the instruction is not, or the other way round".into(),
                );
            }
            match map.runs(&at, &offsets) {
                Ok(runs) => Ok(Ok(Piece::Box { map, runs })),
                Err(text) => undefined(c, lane, text),
            }
        }
        Source::Global(address) => {
            let (space, global) = c.resolve(Space::Generic, c.addresses(address)[lane]);
            if space != Space::Global || global % 16 != 0 {
                return undefined(c, lane, format!("a global address that 16 divides expected, not {global:#x}"));
            }
            Ok(Ok(Piece::Line { global, bytes: bytes.unwrap_or(0) }))
        }
        Source::Shared(address) => {
            let place = shared_place(c, Space::Shared, c.addresses(address)[lane], lane)?;
            Ok(Err(place.1))
        }
    }
}

fn aligned(c: &Context<'_, '_>, lane: usize, at: u64, align: u64, touch: Touch, bytes: u64) -> Result<(), Fault> {
    if at % align == 0 {
        return Ok(());
    }
    let place = c.unit.blocks[c.block].shared.place(at);
    Err(c.fault(FaultKind::Misaligned { space: Space::Shared, place, touch, bytes, align }, lane))
}

fn load(
    source: Source,
    to: Address,
    bytes: Option<Value>,
    barrier: Address,
    mask: Option<Value>,
) -> Result<Operation, Unsupported> {
    Ok(Box::new(move |c| {
        let (to, at) = (c.addresses(&to), c.addresses(&barrier));
        for lane in lanes(c.mask) {
            let bytes = bytes.map(|b| u64::from(c.read(b)[lane] as u32));
            let piece = piece(c, lane, &source, bytes)?;
            let length = piece.as_ref().map_or(bytes.unwrap_or(0), Piece::bytes);
            let (to, at) =
                (shared_place(c, Space::Shared, to[lane], lane)?, shared_place(c, Space::Shared, at[lane], lane)?);
            let align = if matches!(piece, Ok(Piece::Box { .. })) { 128 } else { 16 };
            aligned(c, lane, to.1, align, Touch::Writes, length)?;
            let first = c.block - c.unit.blocks[c.block].rank as usize;
            let size = c.unit.launch.cluster_size() as usize;
            let targets: Vec<usize> = match mask {
                None if to.0 != at.0 => {
                    return undefined(c, lane, "the copy's destination and its mbarrier are in two blocks".into());
                }
                None => vec![to.0],
                Some(mask) => {
                    let mask = c.read(mask)[lane] as u32 & 0xffff;
                    if mask >> size != 0 {
                        return undefined(
                            c,
                            lane,
                            format!("a multicast to {mask:#b}, and the cluster has {size} blocks"),
                        );
                    }
                    lanes(mask).map(|rank| first + rank).collect()
                }
            };
            for block in targets {
                one_load(c, lane, &piece, length, (block, to.1), at.1)?;
            }
        }
        Ok(Flow::Next)
    }))
}

/// A copy into the shared memory of one block.
fn one_load(
    c: &mut Context<'_, '_>,
    lane: usize,
    piece: &Result<Piece, u64>,
    bytes: u64,
    (block, to): (usize, u64),
    at: u64,
) -> Result<(), Fault> {
    mbarrier::counted_on(c, lane, (block, at))?;
    let (agent, pc) = (c.warp.clocks.agent, c.pc);
    let linear = c.unit.blocks[block].linear;
    let own = c.unit.blocks[c.block].linear;
    let known = known(c, lane);
    let carrier = c.unit.engine(LOADS | linear << 24 | at, agent, lane as u8);
    c.unit.state.get::<Engines>().0.insert(carrier);
    let clock = mbarrier::phase(c.unit, linear, at) as u32 + 1;
    let who = engine(carrier, clock, pc, false, &known);
    let found = c.unit.blocks[block].shared.announce(to, bytes, 16, &who);
    c.unit.judge(found, block, (pc, agent, lane as u8), Space::Shared, to, bytes, Touch::Writes)?;
    if let Err(from) = piece {
        // It is read while it is under way; by whom is known by the same barrier.
        let mut there = vec![0; bytes as usize];
        let found = c.unit.blocks[c.block].shared.read(*from, &mut there, 16, &who);
        c.judge(found, Space::Shared, lane, *from, bytes, Touch::Reads)?;
    }
    let piece = piece.clone();
    let deliver = move |unit: &mut Unit<'_>| {
        let clock = mbarrier::phase(unit, linear, at) as u32 + 1;
        let who = engine(carrier, clock, pc, false, &known);
        let data = match &piece {
            Ok(piece) => fetched(unit, piece, &who, (pc, agent, lane as u8), to)?,
            Err(from) => {
                let block = unit.blocks.iter_mut().find(|b| b.linear == own);
                block.and_then(|b| b.shared.raw(*from, bytes as usize).map(|b| b.to_vec())).unwrap_or_default()
            }
        };
        if let Some(block) = unit.blocks.iter_mut().find(|b| b.linear == linear) {
            block.shared.deliver(to, &data, &who);
        }
        let learned = |k: &mut Knowledge| k.seen.add(carrier, clock + 1, 0);
        mbarrier::complete(unit, linear, at, bytes, learned)
            .map_err(|text| unit.fault(FaultKind::Undefined(text), pc, agent, lane as u8))
    };
    c.unit.submit(Pending { what: "cp.async.bulk".into(), deliver: Box::new(deliver) })
}

/// Reads what a copy brings into shared memory.
fn fetched(unit: &mut Unit<'_>, piece: &Piece, who: &Who<'_>, by: (u32, Agent, u8), to: u64) -> Result<Vec<u8>, Fault> {
    let mut data = vec![0; piece.bytes() as usize];
    for run in piece.runs() {
        let part = &mut data[run.offset as usize..(run.offset + run.bytes) as usize];
        match (run.address, piece) {
            (Some(address), _) => {
                let found = unit.global.read(address, part, 1, who);
                unit.judge(found, 0, by, Space::Global, address, run.bytes, Touch::Reads)?;
            }
            (None, Piece::Box { map, .. }) => {
                let fill = map.fill.to_le_bytes();
                part.chunks_mut(map.element as usize).for_each(|e| e.copy_from_slice(&fill[..e.len()]));
            }
            (None, Piece::Line { .. }) => {}
        }
    }
    Ok(piece.permuted(to, &data))
}

fn store(
    target: Source,
    from: Address,
    bytes: Option<Value>,
    reduction: Option<Reduction>,
) -> Result<Operation, Unsupported> {
    Ok(Box::new(move |c| {
        let from = c.addresses(&from);
        for lane in lanes(c.mask) {
            let bytes = bytes.map(|b| u64::from(c.read(b)[lane] as u32));
            let Ok(piece) = piece(c, lane, &target, bytes)? else { continue };
            let (block, from) = shared_place(c, Space::Shared, from[lane], lane)?;
            if block != c.block {
                return undefined(c, lane, "a bulk copy out of another block's shared memory".into());
            }
            let length = piece.bytes();
            let align = if matches!(piece, Piece::Box { .. }) { 128 } else { 16 };
            aligned(c, lane, from, align, Touch::Reads, length)?;
            one_store(c, lane, piece, from, reduction)?;
        }
        Ok(Flow::Next)
    }))
}

fn one_store(
    c: &mut Context<'_, '_>,
    lane: usize,
    piece: Piece,
    from: u64,
    reduction: Option<Reduction>,
) -> Result<(), Fault> {
    let (agent, pc, bytes) = (c.warp.clocks.agent, c.pc, piece.bytes() as usize);
    let thread = u64::from(agent) << 5 | lane as u64;
    let reader = c.unit.engine(READS | thread, agent, lane as u8);
    let writer = c.unit.engine(WRITES | thread, agent, lane as u8);
    c.unit.state.get::<Engines>().0.insert(reader);
    let group = c.unit.state.get::<Groups>().0.entry((agent, lane as u8)).or_default();
    let number = group.committed + 1;
    *group.under_way.entry(number).or_default() += 1;
    let clock = number as u32;
    let known = known(c, lane);
    let mut there = vec![0; bytes];
    let who = engine(reader, clock, pc, false, &known);
    let block = c.block;
    let found = c.unit.blocks[block].shared.read(from, &mut there, 16, &who);
    c.judge(found, Space::Shared, lane, from, bytes as u64, Touch::Reads)?;
    let linear = c.unit.blocks[block].linear;
    let deliver = move |unit: &mut Unit<'_>| {
        // A block that has ended left it unfinished: that was told.
        let source = unit.blocks.iter_mut().find(|b| b.linear == linear);
        let data = match source.and_then(|b| b.shared.raw(from, bytes).map(|b| b.to_vec())) {
            Some(data) => piece.permuted(from, &data),
            None => piece.permuted(from, &there),
        };
        let who = engine(writer, clock, pc, reduction.is_some(), &known);
        for run in piece.runs() {
            let Some(address) = run.address else { continue };
            let part = &data[run.offset as usize..(run.offset + run.bytes) as usize];
            let by = (pc, agent, lane as u8);
            match reduction {
                None => {
                    let found = unit.global.write(address, part, 1, &who);
                    unit.judge(found, 0, by, Space::Global, address, run.bytes, Touch::Writes)?;
                }
                Some(reduction) => {
                    let mut old = vec![0; part.len()];
                    let found = unit.global.read(address, &mut old, 1, &who);
                    unit.judge(found, 0, by, Space::Global, address, run.bytes, Touch::Updates)?;
                    reduction.apply(&mut old, part);
                    let found = unit.global.write(address, &old, 1, &who);
                    unit.judge(found, 0, by, Space::Global, address, run.bytes, Touch::Updates)?;
                }
            }
        }
        if let Some(group) = unit.state.get::<Groups>().0.get_mut(&(agent, lane as u8)) {
            if let Some(count) = group.under_way.get_mut(&number) {
                *count -= 1;
                if *count == 0 {
                    group.under_way.remove(&number);
                }
            }
        }
        Ok(())
    };
    c.unit.submit(Pending { what: "cp.async.bulk".into(), deliver: Box::new(deliver) })
}

fn wait(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [Operand::Integer(latest)] = i.operands.as_slice() else { return Err("a number of groups expected".into()) };
    let (latest, reads) = (*latest as u64, i.has("read"));
    let _ = d;
    Ok(Box::new(move |c| {
        let agent = c.warp.clocks.agent;
        let mut learned: Vec<(usize, u64)> = Vec::new();
        for lane in lanes(c.mask) {
            let group = c.unit.state.get::<Groups>().0.entry((agent, lane as u8)).or_default();
            let upto = group.committed.saturating_sub(latest);
            if group.under_way.keys().any(|g| *g <= upto) {
                return Ok(Flow::Wait(Waiting { on: "bulk copies, groups beyond the latest", number: latest }));
            }
            learned.push((lane, upto));
        }
        let live = c.warp.live;
        for (lane, upto) in learned.into_iter().filter(|l| l.1 > 0) {
            let thread = u64::from(agent) << 5 | lane as u64;
            let reader = c.unit.engine(READS | thread, agent, lane as u8);
            let writer = c.unit.engine(WRITES | thread, agent, lane as u8);
            c.warp.clocks.update(1 << lane, live, |k| {
                k.seen.add(reader, upto as u32 + 1, 0);
                if !reads {
                    k.seen.add(writer, upto as u32 + 1, 0);
                }
            });
        }
        Ok(Flow::Next)
    }))
}

/// What is done with what stands in global memory already.
#[derive(Clone, Copy)]
struct Reduction {
    what: Combining,
    of: Type,
}

#[derive(Clone, Copy)]
enum Combining {
    Add,
    Min,
    Max,
    Inc,
    Dec,
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy)]
enum Type {
    Bits(usize),
    Signed(usize),
    F16,
    Bf16,
    F32,
    F64,
}

fn reduction(i: &Instruction) -> Result<Option<Reduction>, Unsupported> {
    if !i.has("reduce") {
        return Ok(None);
    }
    let what = i.modifiers.iter().find_map(|m| {
        Some(match m.as_str() {
            "add" => Combining::Add,
            "min" => Combining::Min,
            "max" => Combining::Max,
            "inc" => Combining::Inc,
            "dec" => Combining::Dec,
            "and" => Combining::And,
            "or" => Combining::Or,
            "xor" => Combining::Xor,
            _ => return None,
        })
    });
    let of = i.modifiers.iter().find_map(|m| {
        Some(match m.as_str() {
            "b32" | "u32" => Type::Bits(4),
            "b64" | "u64" => Type::Bits(8),
            "s32" => Type::Signed(4),
            "s64" => Type::Signed(8),
            "f16" => Type::F16,
            "bf16" => Type::Bf16,
            "f32" => Type::F32,
            "f64" => Type::F64,
            _ => return None,
        })
    });
    // A tensor reduction takes the type from the map, which does not tell it here.
    match (what, of) {
        (Some(what), Some(of)) => Ok(Some(Reduction { what, of })),
        _ => Err("a reduction whose type the instruction does not name".into()),
    }
}

impl Reduction {
    fn apply(self, old: &mut [u8], new: &[u8]) {
        let bytes = match self.of {
            Type::Bits(n) | Type::Signed(n) => n,
            Type::F16 | Type::Bf16 => 2,
            Type::F32 => 4,
            Type::F64 => 8,
        };
        for (old, new) in old.chunks_mut(bytes).zip(new.chunks(bytes)) {
            let word = |b: &[u8]| b.iter().rev().fold(0_u64, |w, b| w << 8 | u64::from(*b));
            let out = self.one(word(old), word(new), bytes as u32).to_le_bytes();
            old.copy_from_slice(&out[..old.len()]);
        }
    }

    fn one(self, a: u64, b: u64, bytes: u32) -> u64 {
        let shift = 64 - 8 * bytes;
        let signed = |x: u64| ((x << shift) as i64) >> shift;
        let pick = |first: bool| if first { a } else { b };
        match (self.of, self.what) {
            (Type::F16, _) => {
                let (x, y) = (f16::from_bits(a as u16), f16::from_bits(b as u16));
                u64::from(self.float(x.to_f64(), y.to_f64(), |v| f16::from_f64(v).to_bits()))
            }
            (Type::Bf16, _) => {
                let (x, y) = (bf16::from_bits(a as u16), bf16::from_bits(b as u16));
                u64::from(self.float(x.to_f64(), y.to_f64(), |v| bf16::from_f64(v).to_bits()))
            }
            (Type::F32, _) => {
                let (x, y) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
                u64::from(self.float(f64::from(x), f64::from(y), |v| (v as f32).to_bits()))
            }
            (Type::F64, _) => self.float(f64::from_bits(a), f64::from_bits(b), f64::to_bits),
            (_, Combining::Add) => a.wrapping_add(b),
            (_, Combining::And) => a & b,
            (_, Combining::Or) => a | b,
            (_, Combining::Xor) => a ^ b,
            (Type::Signed(_), Combining::Min) => pick(signed(a) <= signed(b)),
            (Type::Signed(_), Combining::Max) => pick(signed(a) >= signed(b)),
            (_, Combining::Min) => a.min(b),
            (_, Combining::Max) => a.max(b),
            (_, Combining::Inc) => {
                if a >= b {
                    0
                } else {
                    a + 1
                }
            }
            (_, Combining::Dec) => {
                if a == 0 || a > b {
                    b
                } else {
                    a - 1
                }
            }
        }
    }

    fn float<B>(self, x: f64, y: f64, bits: impl Fn(f64) -> B) -> B {
        bits(match self.what {
            Combining::Min => x.min(y),
            Combining::Max => x.max(y),
            _ => x + y,
        })
    }
}

/// Whether all accesses of bulk copies, `wgmma` and other blocks to a block's shared memory are known to those that leave it.
/// Returns the first that is not: who, at which instruction, whether it writes, where.
pub fn unfinished(unit: &mut Unit<'_>, block: usize, seen: &Clocks) -> Option<(crate::memory::Stamp, bool, u64)> {
    let warps = unit.launch.warps();
    let own = Agent::try_from(unit.blocks[block].linear).unwrap_or(0).wrapping_mul(warps);
    let engines = std::mem::take(&mut unit.state.get::<Engines>().0);
    let foreign = |agent: Agent| match agent {
        a if a >= crate::clocks::ENGINES => engines.contains(&a),
        a => !(own..own + warps).contains(&a),
    };
    let found = unit.blocks[block].shared.shadow.unseen(foreign, seen);
    unit.state.get::<Engines>().0 = engines;
    found.map(|(stamp, wrote, at)| (stamp, wrote, at as u64))
}
