//! tcgen05: one thread has matrices in shared memory multiplied into tensor memory, asynchronously; warps read the sums there.
//!
//! A block's `tcgen05.mma` and `tcgen05.commit` are executed in their order, as late as a commit is delivered, at once, or at one
//! of the two by chance, as the launch's delivery says. From the instruction to the phase that its commit ends nothing may write
//! what it reads in shared memory, nor touch what it writes in tensor memory.
//!
//! Who touched tensor memory is kept by cells, sixteen lanes of a column: all instructions touch whole ones. The mma of a thread are
//! numbered, and the loads of a warp. Two agents stand for them: one is known to those who know that they are complete (by a
//! commit's phase; by `tcgen05.wait::ld`), the other to those before whose own instructions they come (by a commit's phase; by
//! `tcgen05.fence::before_thread_sync`). What a thread has learnt of them counts from its next `tcgen05.fence::after_thread_sync` on.
use super::bulk::{engine, known, Engines};
use super::compare::predicate;
use super::load_store::space;
use super::mbarrier::{self, shared_place, undefined};
use super::mma::registers;
use super::wgmma::{bytes, panels, reads};
use crate::clocks::{Agent, Clocks, Knowledge};
use crate::fault::{Fault, FaultKind};
use crate::format::Element;
use crate::launch::Delivery;
use crate::machine::{lanes, Block, Context, Pending, Unit};
use crate::matrix::operand::Piece;
use crate::matrix::product::{Accumulators, Form, Shape};
use crate::program::{Decoder, Flow, Lanes, Operation, Unsupported, Value, Waiting};
use crate::syntax::{Instruction, Operand, Space};
use rand::Rng;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Lanes of tensor memory.
const LANES: usize = 128;
/// Its columns, of 32 bits each.
const COLUMNS: usize = 512;
/// Lanes of a cell.
const CELL: usize = 16;

/// What the kinds of engines begin their keys with, behind those of bulk copies and `wgmma`: the mma of a thread, complete and in
/// order; the loads of a warp, complete and in order.
const PRODUCTS: u64 = 5 << 60;
const PRODUCTS_ORDERED: u64 = 6 << 60;
const LOADS: u64 = 7 << 60;
const LOADS_ORDERED: u64 = 8 << 60;

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    if i.opcode != "tcgen05" {
        return None;
    }
    Some(match i.modifiers.first().map(String::as_str) {
        Some("alloc") => alloc(i, d),
        Some("dealloc") => dealloc(i, d),
        Some("relinquish_alloc_permit") => relinquish(i),
        Some("mma") => mma(i, d),
        Some("commit") => commit(i, d),
        Some("ld") => load(i, d),
        Some("wait::ld") => wait(i),
        // No store is known that there would be to wait for.
        Some("wait::st") => only(i, &["wait::st", "sync", "aligned"]).map(|()| -> Operation {
            Box::new(|c| {
                c.together()?;
                Ok(Flow::Next)
            })
        }),
        Some("fence::before_thread_sync") => Ok(Box::new(|c| {
            before(c);
            Ok(Flow::Next)
        })),
        Some("fence::after_thread_sync") => Ok(Box::new(|c| {
            after(c);
            Ok(Flow::Next)
        })),
        _ => Err("this form of tcgen05 is not known".into()),
    })
}

/// Fails for modifiers that are not among those that are known.
fn only(i: &Instruction, known: &[&str]) -> Result<(), Unsupported> {
    match i.modifiers.iter().find(|m| !known.contains(&m.as_str())) {
        Some(other) => Err(format!("`.{other}` of tcgen05 is not known")),
        None => Ok(()),
    }
}

/// An access to a cell.
#[derive(Clone, Copy)]
struct Access {
    /// The agent of those that are complete.
    complete: Agent,
    /// The agent of those that come before what the others do.
    ordered: Agent,
    /// The thread's or the warp's how manieth.
    number: u32,
    pc: u32,
}

/// Who touched a cell.
#[derive(Clone, Default)]
struct Cell {
    write: Option<Access>,
    /// Since then, one for each warp.
    reads: Vec<Access>,
}

/// A block's tensor memory, and what is under way there.
struct Memory {
    /// By lane and column.
    words: Vec<u32>,
    /// By sixteen lanes and column.
    cells: Vec<Cell>,
    allocations: Vec<Range<usize>>,
    relinquished: bool,
    queue: VecDeque<Step>,
    /// Steps that were queued, and that were made.
    issued: u64,
    made: u64,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            words: vec![0; LANES * COLUMNS],
            cells: vec![Cell::default(); LANES / CELL * COLUMNS],
            allocations: Vec::new(),
            relinquished: false,
            queue: VecDeque::new(),
            issued: 0,
            made: 0,
        }
    }
}

impl Memory {
    /// Where so many columns are free: the last that are, so that who takes the first for granted is found.
    fn free(&self, count: usize) -> Option<usize> {
        let all = |first: usize| self.allocations.iter().all(|a| a.end <= first || first + count <= a.start);
        (0..=COLUMNS.checked_sub(count)?).rev().step_by(32).find(|first| all(*first))
    }

    /// Whether all columns are allocated.
    fn allocated(&self, columns: &Range<usize>) -> bool {
        columns.clone().all(|column| self.allocations.iter().any(|a| a.contains(&column)))
    }

    /// The cells of some groups of sixteen lanes and some columns, each with its place.
    fn cells<'m>(
        &'m self,
        groups: &'m [usize],
        columns: &'m Range<usize>,
    ) -> impl Iterator<Item = (Spot, &'m Cell)> + 'm {
        let row = |group: usize| {
            columns.clone().zip(&self.cells[group * COLUMNS..][columns.clone()]).map(move |c| (group, c))
        };
        groups.iter().flat_map(move |group| row(*group)).map(|(group, (column, cell))| (Spot { group, column }, cell))
    }

    fn cells_mut(&mut self, groups: &[usize], columns: &Range<usize>, change: impl Fn(&mut Cell)) {
        for group in groups {
            self.cells[group * COLUMNS..][columns.clone()].iter_mut().for_each(&change);
        }
    }
}

/// Where a cell is.
#[derive(Clone, Copy)]
struct Spot {
    group: usize,
    column: usize,
}

impl std::fmt::Display for Spot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "lane {}, column {}", self.group * CELL, self.column)
    }
}

/// All groups of sixteen lanes.
const ALL: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// What a warp keeps.
#[derive(Default)]
struct Own {
    /// Loads that it has made, and those that it has waited for.
    loads: u32,
    waited: u32,
    /// Registers that loads fill, and which.
    filled: FxHashMap<u32, u32>,
    /// The mma of each lane.
    issued: [u32; 32],
    /// What each lane knew at its last `tcgen05.fence::after_thread_sync`.
    after: [Option<Arc<Clocks>>; 32],
}

/// The same value in all lanes that execute.
fn uniform(c: &Context<'_, '_>, values: &Lanes, what: &str) -> Result<u64, Fault> {
    let first = values[c.mask.trailing_zeros().min(31) as usize];
    match lanes(c.mask).find(|lane| values[*lane] != first) {
        Some(lane) => undefined(c, lane, format!("the lanes of a warp give different {what}")),
        None => Ok(first),
    }
}

/// The number of columns of an allocation.
fn columns(c: &Context<'_, '_>, count: Value) -> Result<usize, Fault> {
    let count = uniform(c, &c.read(count), "numbers of columns")? as u32;
    if count.is_power_of_two() && (32..=COLUMNS as u32).contains(&count) {
        return Ok(count as usize);
    }
    undefined(c, 0, format!("an allocation of tensor memory has 32 to 512 columns, a power of two, not {count}"))
}

/// Lane and column of an address.
fn place(address: u64) -> (usize, usize) {
    ((address >> 16 & 0xffff) as usize, (address & 0xffff) as usize)
}

fn alloc(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    only(i, &["alloc", "cta_group::1", "sync", "aligned", "shared::cta", "b32"])?;
    let [to, count] = i.operands.as_slice() else { return Err("an address and a number of columns expected".into()) };
    let (to, count, space) = (d.address(to)?, d.value(count)?, space(i));
    Ok(Box::new(move |c| {
        c.together()?;
        let lane = c.mask.trailing_zeros() as usize;
        let count = columns(c, count)?;
        let to = uniform(c, &c.addresses(&to), "addresses")?;
        let (block, to) = shared_place(c, space, to, lane)?;
        if block != c.block {
            return undefined(c, lane, "the address is for shared memory of another block".into());
        }
        let memory = c.block().state.get::<Memory>();
        if memory.relinquished {
            return undefined(c, lane, "tcgen05.alloc after tcgen05.relinquish_alloc_permit".into());
        }
        let Some(first) = memory.free(count) else {
            return Ok(Flow::Wait(Waiting { on: "free columns of tensor memory, as many as", number: count as u64 }));
        };
        memory.allocations.push(first..first + count);
        c.store(Space::Shared, lane, to, &(first as u32).to_le_bytes(), false)?;
        Ok(Flow::Next)
    }))
}

fn dealloc(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    only(i, &["dealloc", "cta_group::1", "sync", "aligned", "b32"])?;
    let [at, count] = i.operands.as_slice() else { return Err("an address and a number of columns expected".into()) };
    let (at, count) = (d.value(at)?, d.value(count)?);
    Ok(Box::new(move |c| {
        c.together()?;
        let count = columns(c, count)?;
        let (lane, column) = place(uniform(c, &c.read(at), "addresses")?);
        let freed = column..column + count;
        let seen = c.warp.clocks.joined(c.mask).seen;
        let memory = c.block().state.get::<Memory>();
        let Some(which) = memory.allocations.iter().position(|a| lane == 0 && *a == freed) else {
            let text = format!("there is no allocation of {count} columns at lane {lane}, column {column}");
            return undefined(c, 0, text);
        };
        let unknown = |access: &&Access| !seen.covers(access.complete, access.number, 0);
        let found = memory.cells(&ALL, &freed).find_map(|(spot, cell)| {
            let write = cell.write.as_ref().filter(unknown).map(|w| (spot, *w, "written"));
            write.or_else(|| cell.reads.iter().find(unknown).map(|r| (spot, *r, "read")))
        });
        if let Some((spot, other, touch)) = found {
            let (who, site) = (c.unit.thread(other.complete, 0), c.unit.site(other.pc));
            let text = format!(
                "tensor memory is freed while it may still be {touch}: at {spot} by {who} ({site}); nothing says that this \
                 is complete"
            );
            return undefined(c, 0, text);
        }
        memory.allocations.swap_remove(which);
        memory.cells_mut(&ALL, &freed, |cell| *cell = Cell::default());
        c.unit.progress += 1;
        Ok(Flow::Next)
    }))
}

fn relinquish(i: &Instruction) -> Result<Operation, Unsupported> {
    only(i, &["relinquish_alloc_permit", "cta_group::1", "sync", "aligned"])?;
    Ok(Box::new(|c| {
        c.together()?;
        c.block().state.get::<Memory>().relinquished = true;
        Ok(Flow::Next)
    }))
}

/// Which types are multiplied.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    F16,
    Tf32,
    Small,
    I8,
}

/// What an instruction computes.
#[derive(Clone, Copy, PartialEq)]
struct Product {
    shape: Shape,
    form: Form,
    /// A and B.
    pieces: [Piece; 2],
    sum: Element,
}

fn wrong<T>(text: impl Into<String>) -> Result<T, FaultKind> {
    Err(FaultKind::Undefined(text.into()))
}

fn unknown<T>(text: impl Into<String>) -> Result<T, FaultKind> {
    Err(FaultKind::Unsupported(text.into()))
}

impl Product {
    /// As an instruction descriptor has it.
    fn described(kind: Kind, bits: u32) -> Result<Product, FaultKind> {
        let field = |at: u32, width: u32| bits >> at & ((1 << width) - 1);
        if field(0, 3) != 0 {
            return unknown("sparse matrices");
        }
        if field(3, 1) != 0 {
            return unknown("sums of tcgen05.mma that are clipped");
        }
        if [field(6, 1), field(23, 1), field(29, 3)] != [0; 3] {
            return wrong(format!("the instruction descriptor {bits:#010x} has bits that must be 0"));
        }
        let sum = match (kind, field(4, 2)) {
            (Kind::F16 | Kind::Small, 0) => Element::F16,
            (Kind::F16 | Kind::Small | Kind::Tf32, 1) => Element::F32,
            (Kind::I8, 2) => Element::S32,
            (_, n) => return wrong(format!("the kind of this tcgen05.mma has no sums of type {n}")),
        };
        let element = |at: u32| match (kind, field(at, 3)) {
            (Kind::F16, 0) => Ok(Element::F16),
            (Kind::F16, 1) => Ok(Element::Bf16),
            (Kind::Tf32, 2) => Ok(Element::Tf32),
            (Kind::Small, 0) => Ok(Element::E4m3),
            (Kind::Small, 1) => Ok(Element::E5m2),
            (Kind::Small, 3..=5) => unknown("floats of 6 and of 4 bits"),
            (Kind::I8, 0) => Ok(Element::U8),
            (Kind::I8, 1) => Ok(Element::S8),
            (_, n) => wrong(format!("the kind of this tcgen05.mma multiplies no numbers of type {n}")),
        };
        let elements = [element(7)?, element(10)?];
        if kind == Kind::F16 && (elements[0] != elements[1] || elements[0] == Element::Bf16 && sum == Element::F16) {
            return wrong("f16 is multiplied with f16, and bf16 with bf16 into sums of f32");
        }
        let negated = [field(13, 1) == 1, field(14, 1) == 1];
        if kind == Kind::I8 && negated != [false; 2] {
            return wrong("whole numbers do not change their signs");
        }
        let along_k = [field(15, 1) == 0, field(16, 1) == 0];
        let (n, m) = (8 * field(17, 6) as usize, 16 * field(24, 5) as usize);
        let fits = match m {
            64 if kind == Kind::I8 => n % 16 == 0 || matches!(n, 8 | 24),
            64 => n % 8 == 0,
            128 => n % 16 == 0,
            _ => false,
        };
        if !fits || !(8..=256).contains(&n) {
            return wrong(format!("tcgen05.mma has no shape of {m} x {n}"));
        }
        let wide = elements[0].bits() / 8;
        if along_k != [true; 2] && wide == 4 || !along_k[1] && wide == 1 && n % 16 != 0 {
            return unknown(format!("numbers of {wide} bytes that run across k, {n} columns"));
        }
        let k = 32 / wide as usize;
        let piece = |side: usize, lines: usize| Piece {
            element: elements[side],
            along_k: along_k[side],
            first: 0,
            lines,
            k,
            negated: negated[side],
        };
        Ok(Product { shape: Shape { m, n, k }, form: Form::default(), pieces: [piece(0, m), piece(1, n)], sum })
    }

    /// The lane that holds a row of the result.
    fn lane(&self, row: usize) -> usize {
        match self.shape.m {
            64 => row / 16 * 32 + row % 16,
            _ => row,
        }
    }

    /// The groups of sixteen lanes that hold the result.
    fn groups(&self) -> Vec<usize> {
        (0..self.shape.m).step_by(CELL).map(|row| self.lane(row) / CELL).collect()
    }

    /// Where the words of the result are, row-major.
    fn words(&self, column: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.shape.m).flat_map(move |row| {
            let start = self.lane(row) * COLUMNS + column;
            start..start + self.shape.n
        })
    }
}

/// Fails for what no descriptor of shared memory says.
fn checked(bits: u64) -> Result<(), FaultKind> {
    let version = bits >> 46 & 7;
    if version != 1 {
        return wrong(format!("bits 46 to 48 of the descriptor {bits:#018x} are {version}; tcgen05.mma has 1 there"));
    }
    if bits >> 52 & 0x3ff != 0 {
        return unknown(format!("the descriptor {bits:#018x}: absolute offsets, or swizzles of 32 bytes at once"));
    }
    Ok(())
}

/// What is under way in a block.
enum Step {
    Add(Added),
    Arrive(Arrival),
}

/// A product that is added to what stands at a column, or put there.
struct Added {
    product: Product,
    column: usize,
    descriptors: [u64; 2],
    adds: bool,
}

/// Commits that have not arrived yet: block, step.
#[derive(Default)]
struct Commits(FxHashSet<(u64, u64)>);

/// A commit.
struct Arrival {
    /// The barriers: block, offset.
    barriers: Vec<(u64, u64)>,
    /// Of the thread's mma before it, the last; agents that stand for them.
    last: Access,
    /// Who commits.
    by: (Agent, u8),
}

fn mma(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let kinds =
        [("kind::f16", Kind::F16), ("kind::tf32", Kind::Tf32), ("kind::f8f6f4", Kind::Small), ("kind::i8", Kind::I8)];
    only(i, &["mma", "cta_group::1", "kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"])?;
    if !i.has("cta_group::1") {
        return Err("`.cta_group::1` expected".into());
    }
    let kind = kinds.iter().find(|(name, _)| i.has(name)).ok_or("a kind of tcgen05.mma expected")?.1;
    let [to, a, b, described, adds] = i.operands.as_slice() else {
        return Err("D, two matrices, an instruction descriptor and a predicate expected".into());
    };
    if matches!(a, Operand::Address { .. }) {
        return Err("A in tensor memory is not known".into());
    }
    if !matches!(adds, Operand::Register(_) | Operand::Not(_)) {
        return Err("a predicate expected behind the instruction descriptor".into());
    }
    let (to, descriptors, described) = (d.address(to)?, [d.value(a)?, d.value(b)?], d.value(described)?);
    let (adds, flip) = predicate(adds, d)?;
    Ok(Box::new(move |c| {
        let lane = one(c, "tcgen05.mma")?;
        let product = Product::described(kind, c.read(described)[lane] as u32);
        let product = product.map_err(|kind| c.fault(kind, lane))?;
        let descriptors = descriptors.map(|v| c.read(v)[lane]);
        for bits in descriptors {
            checked(bits).map_err(|kind| c.fault(kind, lane))?;
        }
        let adds = (c.read(adds)[lane] ^ flip) & 1 == 1;
        let (first, column) = place(c.addresses(&to)[lane]);
        if first != 0 {
            return undefined(c, lane, format!("D of tcgen05.mma begins at lane 0, not {first}"));
        }
        let columns = column..column + product.shape.n;
        taken(c, lane, &columns)?;
        let access = next(c, lane);
        overwritten(c, lane, &product, &columns, adds)?;
        let memory = c.block().state.get::<Memory>();
        memory.cells_mut(&product.groups(), &columns, |cell| {
            cell.write = Some(access);
            cell.reads.clear();
        });
        let known = known(c, lane);
        let who = engine(access.complete, access.number, c.pc, false, &known);
        for (piece, bits) in product.pieces.into_iter().zip(descriptors) {
            reads(c, lane, piece, bits, &who)?;
        }
        let upto = queued(c, Step::Add(Added { product, column, descriptors, adds }));
        let now = match c.unit.launch.options.delivery {
            Delivery::Late => false,
            Delivery::Early => true,
            Delivery::Random => c.unit.random.gen_bool(0.5),
        };
        if now {
            let block = c.block().linear;
            make(c.unit, block, upto)?;
        }
        Ok(Flow::Next)
    }))
}

/// The lane that executes an instruction of one thread.
fn one(c: &Context<'_, '_>, what: &str) -> Result<usize, Fault> {
    let lane = c.mask.trailing_zeros() as usize;
    match c.mask.count_ones() {
        1 => Ok(lane),
        n => undefined(c, lane, format!("{what} is for one thread, and {n} execute it together")),
    }
}

/// Fails for columns that are not allocated.
fn taken(c: &mut Context<'_, '_>, lane: usize, columns: &Range<usize>) -> Result<(), Fault> {
    if columns.end <= COLUMNS && c.block().state.get::<Memory>().allocated(columns) {
        return Ok(());
    }
    let text = format!("columns {} to {} of tensor memory are not all allocated", columns.start, columns.end - 1);
    undefined(c, lane, text)
}

/// The agents of a lane's mma, with the number of the last.
fn thread(c: &mut Context<'_, '_>, lane: usize) -> Access {
    let (agent, pc, number) = (c.warp.clocks.agent, c.pc, c.warp.state.get::<Own>().issued[lane]);
    let key = u64::from(agent) << 5 | lane as u64;
    let complete = c.unit.engine(PRODUCTS | key, agent, lane as u8);
    let ordered = c.unit.engine(PRODUCTS_ORDERED | key, agent, lane as u8);
    Access { complete, ordered, number, pc }
}

/// The lane's next mma.
fn next(c: &mut Context<'_, '_>, lane: usize) -> Access {
    c.warp.state.get::<Own>().issued[lane] += 1;
    let access = thread(c, lane);
    c.unit.state.get::<Engines>().0.insert(access.complete);
    access
}

/// The agents of a warp's loads, with the number of the last.
fn warp(c: &mut Context<'_, '_>) -> Access {
    let (agent, pc, number) = (c.warp.clocks.agent, c.pc, c.warp.state.get::<Own>().loads);
    let complete = c.unit.engine(LOADS | u64::from(agent), agent, 0);
    let ordered = c.unit.engine(LOADS_ORDERED | u64::from(agent), agent, 0);
    Access { complete, ordered, number, pc }
}

/// Fails where an mma writes what another may still touch, or adds to nothing.
fn overwritten(
    c: &mut Context<'_, '_>,
    lane: usize,
    product: &Product,
    columns: &Range<usize>,
    adds: bool,
) -> Result<(), Fault> {
    let (own, loads) = (thread(c, lane).complete, warp(c).complete);
    let Own { waited, after, .. } = c.warp.state.get::<Own>();
    let (waited, after) = (*waited, after[lane].clone());
    let open = |access: &&Access| {
        let same = access.complete == own || access.complete == loads && access.number <= waited;
        let covered = after.as_ref().is_some_and(|k| k.covers(access.ordered, access.number, 0));
        !(same || covered)
    };
    let groups = product.groups();
    let memory = c.block().state.get::<Memory>();
    let found = memory.cells(&groups, columns).find_map(|(spot, cell)| match &cell.write {
        None if adds => Some((spot, None)),
        write => {
            let write = write.as_ref().filter(open).map(|w| (*w, true));
            let other = write.or_else(|| cell.reads.iter().find(open).map(|r| (*r, false)));
            other.map(|other| (spot, Some(other)))
        }
    });
    let Some((spot, found)) = found else { return Ok(()) };
    let Some((other, wrote)) = found else {
        let text = format!("adds to tensor memory that nothing has written: at {spot}");
        return undefined(c, lane, text);
    };
    let seen = &c.warp.clocks.lane(lane).seen;
    let missing = if seen.covers(other.ordered, other.number, 0) {
        "missing tcgen05.fence::after_thread_sync"
    } else if seen.covers(other.complete, other.number, 0) || wrote {
        "missing tcgen05.fence::before_thread_sync, or what synchronises with it"
    } else {
        "missing tcgen05.wait::ld, or what tells this thread of it"
    };
    let (who, site) = (c.unit.thread(other.complete, 0), c.unit.site(other.pc));
    let touch = if wrote { "written" } else { "read" };
    let text =
        format!("tensor memory is overwritten while it may still be {touch}: at {spot} by {who} ({site}); {missing}");
    undefined(c, lane, text)
}

/// Puts a step behind those that are under way; returns how many have been put there.
fn queued(c: &mut Context<'_, '_>, step: Step) -> u64 {
    let memory = c.block().state.get::<Memory>();
    memory.queue.push_back(step);
    memory.issued += 1;
    memory.issued
}

/// Sums that stay numbers until something else is done in tensor memory.
struct Open {
    product: Product,
    column: usize,
    sums: Accumulators,
}

impl Open {
    /// Brings them into tensor memory.
    fn close(self, memory: &mut Memory) {
        for (at, word) in self.product.words(self.column).zip(self.sums.words()) {
            memory.words[at] = word;
        }
    }
}

/// Adds a product.
fn add(block: &mut Block, open: &mut Option<Open>, added: &Added) {
    let Added { product, column, descriptors, adds } = added;
    let a = product.pieces[0].rows(bytes(block, product.pieces[0], descriptors[0]).as_flattened());
    let b = panels(block, product.pieces[1], descriptors[1]);
    let memory = block.state.get::<Memory>();
    let same = |o: &Open| (o.column, o.product.shape, o.product.sum) == (*column, product.shape, product.sum);
    let mut now = match open.take() {
        Some(now) if same(&now) => now,
        other => {
            if let Some(other) = other {
                other.close(memory);
            }
            let there = product.words(*column).map(|at| memory.words[at]);
            Open { product: *product, column: *column, sums: Accumulators::of_words(product.sum, there) }
        }
    };
    if !adds {
        now.sums.clear();
    }
    now.sums.add(product.shape, product.form, &a, &b);
    *open = Some(now);
}

/// Makes a block's steps, up to a number of them.
fn make(unit: &mut Unit<'_>, linear: u64, upto: u64) -> Result<(), Fault> {
    let mut open = None;
    loop {
        let Some(block) = unit.blocks.iter_mut().find(|b| b.linear == linear) else { return Ok(()) };
        let memory = block.state.get::<Memory>();
        let step = if memory.made < upto { memory.queue.pop_front() } else { None };
        memory.made += u64::from(step.is_some());
        let made = memory.made;
        if let Some(Step::Add(added)) = &step {
            add(block, &mut open, added);
            continue;
        }
        if let Some(open) = open.take() {
            open.close(block.state.get::<Memory>());
        }
        let Some(Step::Arrive(Arrival { barriers, last, by })) = step else { return Ok(()) };
        unit.state.get::<Commits>().0.remove(&(linear, made));
        for (block, at) in barriers {
            let learned = |k: &mut Knowledge| {
                k.seen.add(last.complete, last.number + 1, 0);
                k.seen.add(last.ordered, last.number + 1, 0);
            };
            mbarrier::arrive_once(unit, block, at, learned)
                .map_err(|text| unit.fault(FaultKind::Undefined(text), last.pc, by.0, by.1))?;
        }
    }
}

fn commit(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let many = i.has("multicast::cluster");
    only(i, &["commit", "cta_group::1", "mbarrier::arrive::one", "shared::cluster", "multicast::cluster", "b64"])?;
    if !i.has("cta_group::1") || !i.has("mbarrier::arrive::one") {
        return Err("`.cta_group::1.mbarrier::arrive::one` expected".into());
    }
    let (at, mask) = match i.operands.as_slice() {
        [at] if !many => (d.address(at)?, None),
        [at, mask] if many => (d.address(at)?, Some(d.value(mask)?)),
        _ => return Err("an mbarrier, and for `.multicast` a mask expected".into()),
    };
    let space = space(i);
    Ok(Box::new(move |c| {
        let lane = one(c, "tcgen05.commit")?;
        let at = c.addresses(&at)[lane];
        let (block, at) = shared_place(c, space, at, lane)?;
        let size = c.unit.launch.cluster_size() as usize;
        let places: Vec<(usize, u64)> = match mask.map(|mask| c.read(mask)[lane] as u32 & 0xffff) {
            None => vec![(block, at)],
            Some(mask) if mask >> size != 0 => {
                let text = format!("a multicast to {mask:#b}, and the cluster has {size} blocks");
                return undefined(c, lane, text);
            }
            Some(mask) => {
                let of = |rank: usize| shared_place(c, Space::Shared, (rank as u64 + 1) << 24 | at, lane);
                lanes(mask).map(of).collect::<Result<_, _>>()?
            }
        };
        let (last, by) = (thread(c, lane), (c.warp.clocks.agent, lane as u8));
        let known = known(c, lane);
        let mut barriers = Vec::with_capacity(places.len());
        for (block, at) in places {
            // Who waits for the phase knows of it.
            mbarrier::arrived_at(c, lane, (block, at), (last.complete, last.number), &known)?;
            barriers.push((c.unit.blocks[block].linear, at));
        }
        let upto = queued(c, Step::Arrive(Arrival { barriers, last, by }));
        let block = c.block().linear;
        c.unit.state.get::<Commits>().0.insert((block, upto));
        let deliver = move |unit: &mut Unit<'_>| {
            make(unit, block, upto)?;
            if unit.state.get::<Commits>().0.remove(&(block, upto)) {
                let text = "the block has ended, and nobody has waited for what this commits";
                return Err(unit.fault(FaultKind::Undefined(text.into()), last.pc, by.0, by.1));
            }
            Ok(())
        };
        c.unit.submit(Pending { what: "tcgen05.commit".into(), deliver: Box::new(deliver) })?;
        Ok(Flow::Next)
    }))
}

fn load(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [_, shape, times] = match i.modifiers.as_slice() {
        [ld, sync, aligned, shape, times, b32] if [sync, aligned, b32] == ["sync", "aligned", "b32"] => {
            [ld, shape, times]
        }
        _ => return Err("this form of tcgen05.ld is not known".into()),
    };
    let times = times.strip_prefix('x').and_then(|n| n.parse::<usize>().ok()).filter(|n| n.is_power_of_two());
    let times = times.ok_or("`.x1`, `.x2`, `.x4`... expected")?;
    // Lanes, columns, registers: those of mma.sync's sums, or a column in each.
    let fragments = shape == "16x256b";
    let (height, width, count) = match shape.as_str() {
        "32x32b" if times <= 128 => (32, times, times),
        "16x256b" if times <= 32 => (CELL, 8 * times, 4 * times),
        _ => return Err(format!("`.{shape}.x{times}` of tcgen05.ld is not known")),
    };
    let [to, from] = i.operands.as_slice() else { return Err("registers and an address expected".into()) };
    let (to, from) = (registers(to, d)?, d.address(from)?);
    if to.len() != count {
        return Err(format!("{} registers for {count}", to.len()));
    }
    Ok(Box::new(move |c| {
        c.together()?;
        let (first, column) = place(uniform(c, &c.addresses(&from), "addresses")?);
        let own = c.warp.index as usize % 4 * 32;
        if !(own..own + 32).contains(&first) || first % height != 0 {
            let text = format!(
                "{height} lanes of tensor memory from {first} on: the warp has lanes {own} to {}, and they begin at a \
                 multiple of {height}",
                own + 31
            );
            return undefined(c, 0, text);
        }
        let columns = column..column + width;
        taken(c, 0, &columns)?;
        let groups: Vec<usize> = (first / CELL..(first + height) / CELL).collect();
        written(c, &groups, &columns)?;
        c.warp.state.get::<Own>().loads += 1;
        let access = warp(c);
        let memory = c.block().state.get::<Memory>();
        memory.cells_mut(&groups, &columns, |cell| {
            cell.reads.retain(|other| other.complete != access.complete);
            cell.reads.push(access);
        });
        // Until they have been waited for nothing may touch the registers, so that it does not show when they are filled.
        for (number, slot) in to.iter().enumerate() {
            let memory = c.block().state.get::<Memory>();
            let values = std::array::from_fn(|t| {
                let (lane, column) = match fragments {
                    true => (t / 4 + 8 * (number % 4 / 2), 8 * (number / 4) + 2 * (t % 4) + number % 2),
                    false => (t, number),
                };
                u64::from(memory.words[(first + lane) * COLUMNS + columns.start + column])
            });
            c.write_to(*slot, &values);
        }
        let pc = c.pc;
        c.warp.state.get::<Own>().filled.extend(to.iter().flatten().map(|slot| (*slot, pc)));
        Ok(Flow::Next)
    }))
}

/// Fails where a load reads what no mma has written that is known to be complete, for all lanes.
fn written(c: &mut Context<'_, '_>, groups: &[usize], columns: &Range<usize>) -> Result<(), Fault> {
    let mask = c.mask;
    let after = &c.warp.state.get::<Own>().after;
    let mut after: Vec<(usize, Option<Arc<Clocks>>)> = lanes(mask).map(|lane| (lane, after[lane].clone())).collect();
    after.dedup_by(|(_, a), (_, b)| match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    });
    let memory = c.block().state.get::<Memory>();
    let found = memory.cells(groups, columns).find_map(|(spot, cell)| {
        let Some(write) = cell.write else { return Some((spot, None, 0)) };
        let covered = |k: &Option<Arc<Clocks>>| k.as_ref().is_some_and(|k| k.covers(write.complete, write.number, 0));
        after.iter().find(|(_, k)| !covered(k)).map(|(lane, _)| (spot, Some(write), *lane))
    });
    let Some((spot, write, lane)) = found else { return Ok(()) };
    let Some(write) = write else {
        return undefined(c, lane, format!("reads tensor memory that no tcgen05.mma has written: at {spot}"));
    };
    let missing = match c.warp.clocks.lane(lane).seen.covers(write.complete, write.number, 0) {
        true => "missing tcgen05.fence::after_thread_sync",
        false => "nothing has waited for the mbarrier of its tcgen05.commit",
    };
    let (who, site) = (c.unit.thread(write.complete, 0), c.unit.site(write.pc));
    let text = format!("reads tensor memory that may still be written: at {spot} by {who} ({site}); {missing}");
    undefined(c, lane, text)
}

fn wait(i: &Instruction) -> Result<Operation, Unsupported> {
    only(i, &["wait::ld", "sync", "aligned"])?;
    Ok(Box::new(|c| {
        c.together()?;
        let loads = warp(c);
        let own = c.warp.state.get::<Own>();
        own.waited = own.loads;
        own.filled.clear();
        if loads.number > 0 {
            let live = c.warp.live;
            c.warp.clocks.update(live, live, |k| k.seen.add(loads.complete, loads.number + 1, 0));
        }
        Ok(Flow::Next)
    }))
}

/// What these lanes have done comes before what those do that they synchronise with from now on.
fn before(c: &mut Context<'_, '_>) {
    let (mask, live) = (c.mask, c.warp.live);
    let (loads, waited) = (warp(c), c.warp.state.get::<Own>().waited);
    if waited > 0 {
        c.warp.clocks.update(mask, live, |k| k.seen.add(loads.ordered, waited + 1, 0));
    }
    for lane in lanes(mask) {
        if c.warp.state.get::<Own>().issued[lane] > 0 {
            let own = thread(c, lane);
            c.warp.clocks.update(1 << lane, live, |k| k.seen.add(own.ordered, own.number + 1, 0));
        }
    }
}

/// What these lanes know counts for what they do in tensor memory from now on.
fn after(c: &mut Context<'_, '_>) {
    let mut last: Option<(usize, Arc<Clocks>)> = None;
    let own = c.warp.state.get::<Own>();
    for lane in lanes(c.mask) {
        let seen = &c.warp.clocks.lane(lane).seen;
        let same = last.take().filter(|(other, _)| std::ptr::eq(seen, &c.warp.clocks.lane(*other).seen));
        let (of, known) = same.unwrap_or_else(|| (lane, Arc::new(seen.clone())));
        own.after[lane] = Some(known.clone());
        last = Some((of, known));
    }
}

/// Fails where registers are touched that a load fills which has not been waited for.
///
/// # Errors
/// As said.
pub fn untouched(c: &Context<'_, '_>, registers: &[(u32, bool)]) -> Result<(), Fault> {
    let Some(own) = c.warp.state.known::<Own>() else { return Ok(()) };
    match registers.iter().find_map(|(slot, _)| own.filled.get(slot)) {
        None => Ok(()),
        Some(pc) => {
            let site = c.unit.site(*pc);
            let text = format!("missing tcgen05.wait::ld: a register is touched that a load under way fills ({site})");
            c.refuse(FaultKind::Undefined(text))
        }
    }
}

/// A warp ends: its loads must have been waited for.
///
/// # Errors
/// They have not.
pub fn leaves(c: &Context<'_, '_>, lane: usize) -> Result<(), Fault> {
    match c.warp.state.known::<Own>() {
        Some(own) if own.loads > own.waited => {
            undefined(c, lane, "missing tcgen05.wait::ld: the warp ends while a load is under way".into())
        }
        _ => Ok(()),
    }
}

/// A block ends: its tensor memory must be free.
///
/// # Errors
/// It is not.
pub fn ends(c: &Context<'_, '_>, lane: usize) -> Result<(), Fault> {
    match c.unit.blocks[c.block].state.known::<Memory>().and_then(|memory| memory.allocations.first()) {
        Some(left) => {
            let text = format!(
                "missing tcgen05.dealloc: the block ends, and {} columns of tensor memory from {} on are still its own",
                left.len(),
                left.start
            );
            undefined(c, lane, text)
        }
        None => Ok(()),
    }
}
