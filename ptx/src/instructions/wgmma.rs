//! wgmma: four warps multiply matrices in shared memory, asynchronously; and what warpgroups must do alike.
//!
//! Each warp has sixteen rows of the product. Its instructions are executed in their order, as late as the wait for their group, at
//! once, or at one of the two by chance, as the launch's delivery says. From the instruction to the wait its registers must not be
//! touched, nor what it reads in shared memory be written. Registers that were written since the last `wgmma.fence` must not be its
//! accumulators or its A.
use super::bulk::{engine, Engines, MATRIX};
use super::cluster;
use super::mbarrier::undefined;
use super::mma::{form, per, registers, shape, types, values};
use super::tcgen05;
use crate::clocks::Knowledge;
use crate::fault::{Fault, FaultKind, Touch};
use crate::format::Element;
use crate::launch::Delivery;
use crate::machine::{Block, Context, Warp};
use crate::matrix::descriptor::Descriptor;
use crate::matrix::fragment::{Dealt, Fragment, FragmentLayout, Side};
use crate::matrix::operand::{stretches, Piece};
use crate::matrix::product::{Accumulators, Form, Numbers, Panels, Shape};
use crate::memory::Who;
use crate::program::{Decoder, Flow, Lanes, Operation, Unsupported, Value, Waiting};
use crate::syntax::{Instruction, Operand, Space};
use rand::Rng;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    if i.opcode == "setmaxnreg" {
        return Some(set_registers(i));
    }
    if i.opcode != "wgmma" {
        return None;
    }
    Some(match i.modifiers.first().map(String::as_str) {
        Some("fence") => Ok(Box::new(|c| {
            c.together()?;
            let state = c.warp.state.get::<State>();
            state.fenced = true;
            state.dirty.clear();
            Ok(Flow::Next)
        })),
        Some("commit_group") => Ok(Box::new(|c| {
            c.together()?;
            alike(c, "wgmma.commit_group", [0; 2])?;
            c.warp.state.get::<State>().committed += 1;
            c.unit.progress += 1;
            Ok(Flow::Next)
        })),
        Some("wait_group") => wait(i),
        Some("mma_async") => start(i, d),
        _ => Err("this form of wgmma is not known".into()),
    })
}

/// An instruction that is under way.
struct UnderWay {
    group: u64,
    product: Arc<Product>,
    a: Option<Vec<Lanes>>,
    descriptors: [u64; 2],
    adds: bool,
}

/// What a warp keeps.
#[derive(Default)]
struct State {
    committed: u64,
    queue: VecDeque<UnderWay>,
    /// Registers that are not free, by slot.
    busy: Vec<Busy>,
    /// Registers written since the last fence, and where.
    dirty: FxHashMap<u32, u32>,
    fenced: bool,
    /// Sums that stay numbers until something else touches the registers that they belong in.
    open: Vec<(Arc<Product>, Accumulators)>,
}

/// What a register belongs to.
#[derive(Clone, Copy, Default)]
struct Busy {
    /// The instruction.
    by: u32,
    /// Its group; 0: the register is free.
    group: u32,
    /// Columns of the product and terms of its sums, where it is an accumulator.
    shape: Option<(u16, u16)>,
}

impl State {
    /// What a register belongs to, where it is not free.
    fn owner(&self, slot: u32) -> Option<Busy> {
        self.busy.get(slot as usize).copied().filter(|busy| busy.group > 0)
    }
}

/// What an instruction computes.
struct Product {
    shape: Shape,
    form: Form,
    operand: [Element; 2],
    sum: Element,
    d: Vec<u32>,
    a: Option<Vec<Value>>,
    /// All registers that it has while it is under way, and of which shape accumulators are.
    claims: Vec<(u32, Option<(u16, u16)>)>,
    /// One more than the highest of them.
    most: usize,
    /// Whether A and B are contiguous along k.
    along_k: [bool; 2],
    /// How the sums, and an A in registers, lie in a warp's registers.
    result: Dealt,
    left: Option<Dealt>,
}

impl Product {
    /// What a warp reads of an operand.
    fn piece(&self, side: usize, warp: u64) -> Piece {
        let (first, lines) = if side == 0 { (16 * warp as usize, 16) } else { (0, self.shape.n) };
        let negated = if side == 0 { self.form.negate_a } else { self.form.negate_b };
        Piece { element: self.operand[side], along_k: self.along_k[side], first, lines, k: self.shape.k, negated }
    }
}

/// A piece of an operand, and its descriptor.
type Key = (Piece, u64);

/// Where the chunks of a piece stand, in order; and the stretches that they make up.
pub type Places = Arc<(Vec<u64>, Vec<Range<u64>>)>;

/// What is kept of operands: the same tiles are read again and again, each B by four warps.
#[derive(Default)]
pub struct Operands {
    places: FxHashMap<Key, Places>,
    /// The last Bs, and the change of shared memory up to which they are right.
    last: VecDeque<(Key, u64, Arc<Panels>)>,
}

/// Bs that are kept: the k steps of a group of instructions.
const KEPT: usize = 16;

impl Operands {
    /// Where a piece stands.
    pub fn places(&mut self, piece: Piece, descriptor: u64) -> Places {
        // Descriptors are few; a program that makes new ones all the time does not fill the memory.
        if self.places.len() > 4096 {
            self.places.clear();
        }
        let make = || {
            let chunks = piece.chunks(&Descriptor::from(descriptor));
            let stretches = stretches(&chunks);
            Arc::new((chunks, stretches))
        };
        self.places.entry((piece, descriptor)).or_insert_with(make).clone()
    }
}

/// The bytes of a piece in shared memory, as it is now.
pub fn bytes(block: &mut Block, piece: Piece, descriptor: u64) -> Vec<[u8; 16]> {
    let places = block.state.get::<Operands>().places(piece, descriptor);
    places.0.iter().map(|at| block.shared.peek(*at).unwrap_or_default()).collect()
}

/// B in shared memory, as it is now.
pub fn panels(block: &mut Block, piece: Piece, descriptor: u64) -> Arc<Panels> {
    let (key, now) = ((piece, descriptor), block.shared.changes);
    let operands = block.state.get::<Operands>();
    if let Some((.., panels)) = operands.last.iter().find(|(of, at, _)| *of == key && *at == now) {
        return panels.clone();
    }
    let made = Arc::new(piece.panels(bytes(block, piece, descriptor).as_flattened()));
    let operands = block.state.get::<Operands>();
    operands.last.push_back((key, now, made.clone()));
    if operands.last.len() > KEPT {
        operands.last.pop_front();
    }
    made
}

fn start(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    if i.has("sp") {
        return Err("sparse matrices are not known".into());
    }
    let shape = shape(i).ok_or("a shape expected")?;
    let [sum, a_type, b_type] = types(i)[..] else { return Err("three types expected".into()) };
    if shape.m != 64 || shape.n % 8 != 0 || !(8..=256).contains(&shape.n) || shape.k as u32 * a_type.bits() != 256 {
        return Err("this shape is not known".into());
    }
    let [to, a, b, scales @ ..] = i.operands.as_slice() else { return Err("D, A and B expected".into()) };
    let to: Vec<u32> = registers(to, d)?.into_iter().collect::<Option<_>>().ok_or("registers expected")?;
    if to.len() * 32 * per(sum) != 16 * shape.n {
        return Err(format!("{} registers for 64 x {}", to.len(), shape.n));
    }
    let in_registers = matches!(a, Operand::Vector(_));
    let number = |at: usize| match scales.get(at) {
        Some(Operand::Integer(n)) => Some(*n),
        _ => None,
    };
    let floats = !a_type.is_integer();
    let adds = scales.first().map(|s| d.value(s)).transpose()?.unwrap_or(Value::Constant(1));
    // Which sides run across k is said last, for 16-bit types; of A in registers it is not.
    let mut across = [false; 2];
    if floats && a_type.bits() == 16 {
        let at = 3 + usize::from(!in_registers);
        across = [!in_registers && number(3) == Some(1), number(at) == Some(1)];
    }
    let form = Form { negate_a: floats && number(1) == Some(-1), negate_b: floats && number(2) == Some(-1), ..form(i) };
    let held = if in_registers { Some(values(a, d)?) } else { None };
    let inputs = held.iter().flatten().filter_map(|v| match v {
        Value::Register(slot) => Some((*slot, None)),
        _ => None,
    });
    let sums = Some((shape.n as u16, shape.k as u16));
    let claims: Vec<_> = to.iter().map(|slot| (*slot, sums)).chain(inputs).collect();
    let most = claims.iter().map(|claim| claim.0 as usize + 1).max().unwrap_or(0);
    let fragment = |side, columns, registers: usize, element| Fragment {
        side,
        layout: FragmentLayout::Groups,
        rows: 16,
        columns,
        registers,
        per: per(element),
    };
    let product = Arc::new(Product {
        result: fragment(Side::C, shape.n, to.len(), sum).dealt(),
        left: held.as_ref().map(|list| fragment(Side::A, shape.k, list.len(), a_type).dealt()),
        shape,
        form,
        operand: [a_type, b_type],
        sum,
        d: to,
        a: held,
        claims,
        most,
        along_k: across.map(|a| !a),
    });
    let a = if in_registers { Value::Constant(0) } else { d.value(a)? };
    let b = d.value(b)?;
    Ok(Box::new(move |c| {
        c.together()?;
        let same = |c: &Context<'_, '_>, v: Value| {
            let all = c.read(v);
            if all.iter().any(|d| *d != all[0]) {
                return undefined(c, 0, "the lanes of a warp give different descriptors".into());
            }
            Ok(all[0])
        };
        let descriptors = [same(c, a)?, same(c, b)?];
        let adds = same(c, adds)? & 1 == 1;
        alike(c, "wgmma.mma_async", descriptors)?;
        claim(c, &product)?;
        touch(c, &product, descriptors)?;
        let Warp { state, registers, .. } = &mut *c.warp;
        let in_a = |slot| product.a.iter().flatten().any(|v| matches!(v, Value::Register(of) if *of == slot));
        close(&mut state.get::<State>().open, registers, in_a);
        let held = product.a.as_ref().map(|list| list.iter().map(|v| c.read(*v)).collect());
        let group = c.warp.state.get::<State>().committed + 1;
        let under_way = UnderWay { group, product: product.clone(), a: held, descriptors, adds };
        c.warp.state.get::<State>().queue.push_back(under_way);
        let now = match c.unit.launch.options.delivery {
            Delivery::Late => false,
            Delivery::Early => true,
            Delivery::Random => c.unit.random.gen_bool(0.5),
        };
        if now {
            execute(&mut c.unit.blocks[c.block], c.warp, u64::MAX);
        }
        Ok(Flow::Next)
    }))
}

/// The registers of an instruction are its own until it has been waited for.
fn claim(c: &mut Context<'_, '_>, product: &Product) -> Result<(), Fault> {
    let pc = c.pc;
    let state = c.warp.state.get::<State>();
    let group = state.committed as u32 + 1;
    if !state.fenced {
        let text = "missing wgmma.fence: none has been made before the first wgmma.mma_async";
        return undefined(c, 0, text.into());
    }
    for (slot, of) in &product.claims {
        // A constant that the compiler puts into a register at the instruction itself is no write of the program's.
        let own = |by: u32| {
            let (here, there) =
                (&c.unit.program.instructions()[pc as usize], &c.unit.program.instructions()[by as usize]);
            let place = |i: &Instruction| (i.line.file, i.line.line, i.line.called_at);
            there.opcode == "mov" && here.line.line > 0 && place(here) == place(there)
        };
        if let Some(&by) = state.dirty.get(slot).filter(|by| !own(**by)) {
            let site = c.unit.site(by);
            return undefined(
                c,
                0,
                format!("missing wgmma.fence: a register of this instruction was written ({site}) with no fence since"),
            );
        }
        match state.owner(*slot) {
            // Accumulators of one shape follow each other in order.
            Some(busy) if busy.shape == *of => {}
            Some(busy) => {
                let site = c.unit.site(busy.by);
                return undefined(
                    c,
                    0,
                    format!("a register of this instruction belongs to another that is under way ({site})"),
                );
            }
            None => {}
        }
    }
    if state.busy.len() < product.most {
        state.busy.resize(product.most, Busy::default());
    }
    for (slot, of) in &product.claims {
        state.busy[*slot as usize] = Busy { by: pc, group, shape: *of };
    }
    if !state.dirty.is_empty() {
        state.dirty.retain(|slot, _| !product.claims.iter().any(|(claimed, _)| claimed == slot));
    }
    Ok(())
}

/// Notes what a warp reads of shared memory, from now to the wait.
fn touch(c: &mut Context<'_, '_>, product: &Arc<Product>, descriptors: [u64; 2]) -> Result<(), Fault> {
    let (agent, pc, live) = (c.warp.clocks.agent, c.pc, c.warp.live);
    let reader = c.unit.engine(MATRIX | u64::from(agent - c.warp.index % 4), agent, 0);
    c.unit.state.get::<Engines>().0.insert(reader);
    let mut known: Knowledge = c.warp.clocks.joined(live);
    known.seen.add(agent, c.warp.clocks.clock, live);
    let clock = c.warp.state.get::<State>().committed as u32 + 1;
    let who = engine(reader, clock, pc, false, &known);
    let warp = u64::from(c.warp.index % 4);
    for side in [0, 1] {
        if side == 0 && product.a.is_some() {
            continue;
        }
        reads(c, 0, product.piece(side, warp), descriptors[side], &who)?;
    }
    Ok(())
}

/// Notes that somebody reads a piece of an operand, which a lane has started.
///
/// # Errors
/// As [`Context::judge`].
pub fn reads(c: &mut Context<'_, '_>, lane: usize, piece: Piece, descriptor: u64, who: &Who<'_>) -> Result<(), Fault> {
    let places = c.block().state.get::<Operands>().places(piece, descriptor);
    let shared = &mut c.unit.blocks[c.block].shared;
    if shared.touch(&places.1, 16, who) == Ok(Ok(())) {
        return Ok(());
    }
    // What is wrong with each.
    for stretch in &places.1 {
        let found = c.unit.blocks[c.block].shared.touch(std::slice::from_ref(stretch), 16, who);
        c.judge(found, Space::Shared, lane, stretch.start, stretch.end - stretch.start, Touch::Reads)?;
    }
    Ok(())
}

/// Executes what a warp has under way, up to a group.
fn execute(block: &mut Block, warp: &mut Warp, upto: u64) {
    let number = u64::from(warp.index % 4);
    let Warp { state, registers, .. } = warp;
    let State { queue, open, .. } = state.get::<State>();
    while let Some(next) = queue.front().is_some_and(|next| next.group <= upto).then(|| queue.pop_front()).flatten() {
        let product = next.product;
        let a = match (&next.a, &product.left) {
            (Some(words), Some(dealt)) => {
                let bits = dealt.gather(product.operand[0].bits(), words);
                Numbers::of(product.operand[0], &bits, product.form.negate_a)
            }
            _ => {
                let piece = product.piece(0, number);
                piece.rows(bytes(block, piece, next.descriptors[0]).as_flattened())
            }
        };
        let b = panels(block, product.piece(1, number), next.descriptors[1]);
        let same = |p: &Product| p.d == product.d && p.shape == product.shape && p.sum == product.sum;
        let at = open.iter().position(|(other, _)| same(other)).unwrap_or_else(|| {
            close(open, registers, |slot| product.d.contains(&slot));
            let there = product.d.iter().map(|slot| &registers[*slot as usize]);
            open.push((product.clone(), Accumulators::of(product.sum, &product.result, there)));
            open.len() - 1
        });
        let sums = &mut open[at].1;
        if !next.adds {
            sums.clear();
        }
        sums.add(Shape { m: 16, ..product.shape }, product.form, &a, &b);
    }
}

/// Brings sums into their registers, of those accumulators that have one of which this is said.
fn close(open: &mut Vec<(Arc<Product>, Accumulators)>, registers: &mut [Lanes], touched: impl Fn(u32) -> bool) {
    open.retain(|(product, sums)| {
        let stays = !product.d.iter().any(|slot| touched(*slot));
        if !stays {
            for (register, slot) in product.d.iter().enumerate() {
                registers[*slot as usize] = sums.register(&product.result, register);
            }
        }
        stays
    });
}

fn wait(i: &Instruction) -> Result<Operation, Unsupported> {
    let [Operand::Integer(latest)] = i.operands.as_slice() else { return Err("a number of groups expected".into()) };
    let latest = *latest as u64;
    Ok(Box::new(move |c| {
        c.together()?;
        let upto = c.warp.state.get::<State>().committed.saturating_sub(latest);
        // The instruction is the warpgroup's: it has ended when all four warps have made it, and then for all of them.
        let (own, block) = (c.warp.index as usize, &mut c.unit.blocks[c.block]);
        let first = own / 4 * 4;
        let siblings: Vec<usize> = (first..(first + 4).min(block.warps.len())).filter(|w| *w != own).collect();
        if siblings.iter().any(|w| block.warps[*w].state.get::<State>().committed < upto) {
            return Ok(Flow::Wait(Waiting { on: "the other warps of its warpgroup, wgmma group", number: upto }));
        }
        execute(block, c.warp, upto);
        for sibling in siblings {
            let mut warp = std::mem::take(&mut block.warps[sibling]);
            execute(block, &mut warp, upto);
            block.warps[sibling] = warp;
        }
        let state = c.warp.state.get::<State>();
        state.busy.iter_mut().filter(|busy| u64::from(busy.group) <= upto).for_each(|busy| busy.group = 0);
        let (agent, live) = (c.warp.clocks.agent, c.warp.live);
        if upto > 0 {
            let reader = c.unit.engine(MATRIX | u64::from(agent - c.warp.index % 4), agent, 0);
            c.warp.clocks.update(live, live, |k| k.seen.add(reader, upto as u32 + 1, 0));
        }
        Ok(Flow::Next)
    }))
}

/// What the four warps of a warpgroup must do alike: what each did, in order.
#[derive(Default)]
struct Scripts(FxHashMap<u32, Script>);

#[derive(Default)]
struct Script {
    /// Steps that not all four have made, and the number of the first.
    steps: VecDeque<(u32, [u64; 2])>,
    first: usize,
    made: [usize; 4],
}

/// The next step of a warp, which must be its group's.
fn alike(c: &mut Context<'_, '_>, what: &str, values: [u64; 2]) -> Result<(), Fault> {
    let (group, warp, pc) = (c.warp.index / 4, c.warp.index as usize % 4, c.pc);
    if c.unit.launch.warps() < 4 * group + 4 {
        return undefined(c, 0, format!("{what} takes four warps, and the block's last group has fewer"));
    }
    let script = c.block().state.get::<Scripts>().0.entry(group).or_default();
    let at = script.made[warp] - script.first;
    let step = (pc, values);
    let differs = match script.steps.get(at) {
        Some(other) if *other != step => Some(*other),
        Some(_) => None,
        None => {
            script.steps.push_back(step);
            None
        }
    };
    script.made[warp] += 1;
    while script.made.iter().all(|m| *m > script.first) {
        script.steps.pop_front();
        script.first += 1;
    }
    match differs {
        Some((other, _)) if other == pc => {
            undefined(c, 0, format!("the warps of a warpgroup execute {what} with different operands"))
        }
        Some((other, _)) => {
            let site = c.unit.site(other);
            undefined(
                c,
                0,
                format!("the warps of a warpgroup part: another executes {site} where this executes {what}"),
            )
        }
        None => Ok(()),
    }
}

/// Registers that a block's warps may still take, and what each thread of a warp has.
#[derive(Default)]
struct Pool(Option<i64>);

#[derive(Default)]
struct Own(Option<i64>);

fn set_registers(i: &Instruction) -> Result<Operation, Unsupported> {
    let [Operand::Integer(count)] = i.operands.as_slice() else { return Err("a number of registers expected".into()) };
    let (count, up) = (*count, i.has("inc"));
    if !(24..=256).contains(&count) || count % 8 != 0 {
        return Err(format!("a thread has 24 to 256 registers, a multiple of 8, not {count}"));
    }
    Ok(Box::new(move |c| {
        if c.token == 0 {
            c.together()?;
            alike(c, "setmaxnreg", [count as u64, 0])?;
            c.token = 1;
        }
        // As many as fit a multiprocessor with one block, if the compiler was not told otherwise.
        let threads = i64::from(c.unit.launch.threads());
        let given = (65536 / threads / 8 * 8).min(248);
        let has = c.warp.state.get::<Own>().0.unwrap_or(given);
        if !up && count > has {
            return undefined(c, 0, format!("setmaxnreg.dec to {count} registers, and the thread has {has}"));
        }
        let free = c.block().state.get::<Pool>().0.unwrap_or(65536 / 32 - given * i64::from(threads as u32 / 32));
        let left = free - (count - has);
        if left < 0 {
            return Ok(Flow::Wait(Waiting {
                on: "registers of the block's pool, so many for each thread:",
                number: count as u64,
            }));
        }
        c.block().state.get::<Pool>().0 = Some(left);
        c.warp.state.get::<Own>().0 = Some(count);
        c.unit.progress += 1;
        Ok(Flow::Next)
    }))
}

/// What is watched while a kernel runs: the registers of its `wgmma` and `tcgen05.ld`, and the ends of its blocks.
pub struct Watch {
    registers: FxHashSet<u32>,
    ends: bool,
}

impl Watch {
    /// Of a kernel's instructions; `slots` gives the slots that an operand names.
    pub fn of<'i>(body: impl Iterator<Item = &'i Instruction> + Clone, slots: impl Fn(&Operand) -> Vec<u32>) -> Watch {
        let matrix = body.clone().filter(|i| i.opcode == "wgmma" && i.has("mma_async"));
        let registers =
            matrix.flat_map(|i| i.operands.iter().take(2)).filter(|o| matches!(o, Operand::Vector(_))).flat_map(&slots);
        let loads = body.clone().filter(|i| i.opcode == "tcgen05" && i.has("ld"));
        let registers = registers.chain(loads.flat_map(|i| i.operands.iter().take(1)).flat_map(&slots));
        let ends = body.clone().any(|i| {
            matches!(i.opcode.as_str(), "wgmma" | "mapa" | "tcgen05")
                || i.opcode == "cp" && i.has("bulk")
                || i.has("shared::cluster")
        });
        Watch { registers: registers.collect(), ends }
    }

    /// The operation with what must be watched around it.
    pub fn around(&self, i: &Instruction, slots: impl Fn(&Operand) -> Vec<u32>, inner: Operation) -> Operation {
        if matches!(i.opcode.as_str(), "ret" | "exit") && self.ends {
            return Box::new(move |c| {
                leaves(c)?;
                inner(c)
            });
        }
        if i.opcode == "wgmma" || self.registers.is_empty() {
            return inner;
        }
        let named = i.operands.iter().enumerate().flat_map(|(n, o)| slots(o).into_iter().map(move |s| (s, n == 0)));
        let stores = matches!(i.opcode.as_str(), "st" | "red" | "stmatrix" | "bra" | "bar" | "barrier");
        let watched: Vec<(u32, bool)> =
            named.filter(|(s, _)| self.registers.contains(s)).map(|(s, first)| (s, first && !stores)).collect();
        if watched.is_empty() {
            return inner;
        }
        Box::new(move |c| {
            let pc = c.pc;
            let Warp { state, registers, .. } = &mut *c.warp;
            let state = state.get::<State>();
            close(&mut state.open, registers, |slot| watched.iter().any(|(watched, _)| *watched == slot));
            let busy = watched.iter().find_map(|(slot, _)| state.owner(*slot));
            state.dirty.extend(watched.iter().filter(|(_, written)| *written).map(|(slot, _)| (*slot, pc)));
            if let Some(Busy { by, .. }) = busy {
                let site = c.unit.site(by);
                let text = format!(
                    "missing wgmma.wait_group: a register is touched that an instruction under way has ({site})"
                );
                return c.refuse(FaultKind::Undefined(text));
            }
            tcgen05::untouched(c, &watched)?;
            inner(c)
        })
    }
}

/// What those that left a block knew.
#[derive(Default)]
struct Left(Knowledge);

/// Lanes end: nothing of theirs may be under way; with the last of a block nothing may touch its shared memory any more.
fn leaves(c: &mut Context<'_, '_>) -> Result<(), Fault> {
    let (mask, live) = (c.mask, c.warp.live);
    let mut known = c.warp.clocks.joined(mask);
    known.seen.add(c.warp.clocks.agent, c.warp.clocks.clock, mask);
    c.block().state.get::<Left>().0.acquire(&known);
    if live & !mask != 0 {
        return Ok(());
    }
    let lane = mask.trailing_zeros() as usize;
    if let Some(busy) = c.warp.state.get::<State>().busy.iter().find(|busy| busy.group > 0).copied() {
        let site = c.unit.site(busy.by);
        return undefined(
            c,
            lane,
            format!("missing wgmma.wait_group: the warp ends while an instruction is under way ({site})"),
        );
    }
    tcgen05::leaves(c, lane)?;
    if !cluster::last(c, |w| w.ended()) {
        return Ok(());
    }
    tcgen05::ends(c, lane)?;
    let scripts = c.block().state.get::<Scripts>();
    if scripts.0.values().any(|s| !s.steps.is_empty()) {
        return undefined(c, lane, "the warps of a warpgroup executed different numbers of wgmma or setmaxnreg".into());
    }
    let seen = std::mem::take(&mut c.block().state.get::<Left>().0).seen;
    let block = c.block;
    if let Some((stamp, wrote, at)) = super::bulk::unfinished(c.unit, block, &seen) {
        let (site, who) = (c.unit.site(stamp.pc), c.unit.thread(stamp.agent, stamp.lane));
        let place = c.unit.blocks[block].shared.place(at);
        let touch = if wrote { "written" } else { "read" };
        let text = format!(
            "the block ends, and nothing says that its shared memory at {place} is not being {touch} any more ({who}, {site})"
        );
        let fault = c.fault(FaultKind::Undefined(text), lane);
        return c.unit.report(fault);
    }
    Ok(())
}
