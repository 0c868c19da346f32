//! `tcgen05` in scheduled programs: one thread of each four warps multiplies, and the sums are in tensor memory (scope `shared.tmem`).
//!
//! Tensor memory has 128 lanes of 512 columns. A tile of 128 rows has a row in each lane; further rows have further columns. It is read by
//! way of registers (`reads.rs`).
//!
//! Nothing clears the sums: the first product of a tile is not added to what was there. So what clears them stands before the loop that
//! multiplies, of whose tiles a producer brings the operands ([`super::roles`]). The instructions say themselves when a place in the ring has been
//! read, and when all sums are there.
mod reads;

use super::cluster::Cluster;
use super::emit::{guarded, Emitter};
use super::error::{At, LowerError};
use super::group::{at_zero, is_group, THREADS};
use super::layout::BufferLayout;
use super::linear::Linear;
use super::matrix::{strange, Instruction, What, LANES, LANE_TAG};
use super::nest::{flag, leaves, leaves_in, Leaf, Loop, Nest, Node};
use super::pipeline::Pipeline;
use super::roles::Ring;
use crate::kernel::{Array, ArrayId, Cond, Descriptor, Dim, GroupOp, Index, LocalVar, Space, Stmt, Tcgen05};
use crate::kernel::{TensorMemoryOp, Value};
use crate::lower::index::{add as add_index, c, rem};
use satune_ir::term::tensor::wgmma_conditions::COLUMNS;
use satune_ir::term::tensor::GroupMma;
use satune_ir::{visit, BufferId, DType, Expr, Program, VarId};
use satune_rewrites::intrinsics::group::Group;
use satune_rewrites::intrinsics::tcgen05::SCOPE;
use satune_rewrites::keys;
use std::collections::HashMap;

pub use reads::by_registers;

/// Rows of an instruction.
const ROWS: i64 = 128;
/// From one lane to the next, in addresses.
const LANE: i64 = 1 << 16;
/// Of all lanes.
pub const CELLS: i64 = ROWS * COLUMNS;
/// The first variables of a kernel that has such sums: what is told of their address, and it.
const TOLD: LocalVar = LocalVar(0);
const AT: LocalVar = LocalVar(1);

/// Whether buffers of a scope are in tensor memory.
pub fn is_tensor(scope: &str) -> bool {
    scope == SCOPE
}

/// Rows of a result that are there for warps to take at once: an instruction's.
pub fn rows_of(program: &Program, value: &Expr) -> i64 {
    let of_tensor = |(b, _): &(BufferId, Vec<Expr>)| is_tensor(&program.buffer(*b).scope);
    let op = if visit::loads(value).iter().any(of_tensor) { GroupMma::Tcgen05 } else { GroupMma::Wgmma };
    op.rows()
}

/// The sums of a kernel.
#[derive(Clone, Debug)]
pub struct Sums {
    buffer: BufferId,
    /// Columns that a team has.
    of_team: i64,
    /// Of each multiplication, by statement: the loops below that over tiles in which the same sums come again.
    again: HashMap<usize, Vec<VarId>>,
    /// Where their address is told.
    slot: ArrayId,
    /// A barrier for each group of four warps: its sums are there.
    done: ArrayId,
    /// Columns of the block.
    columns: u32,
}

/// What a statement does with tensor memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Clears,
    Multiplies,
    Reads,
    /// Something else.
    Strange,
}

/// The sums that a nest has in tensor memory, their barriers for so many groups of four warps behind the other shared arrays.
///
/// # Errors
/// Where they are not cleared, multiplied in one loop of those whose tiles are brought, and read, in this order; or do not fit.
pub fn find(
    (nest, program): (&Nest, &Program),
    layouts: &HashMap<BufferId, BufferLayout>,
    rings: &HashMap<VarId, Ring>,
    (arrays, shared_bytes): (&mut Vec<Array>, &mut u32),
) -> Result<Option<Sums>, LowerError> {
    let mut buffers: Vec<BufferId> = layouts.keys().copied().filter(|b| is_tensor(&program.buffer(*b).scope)).collect();
    buffers.sort();
    let Some(buffer) = buffers.first().copied() else { return Ok(None) };
    let name = &program.buffer(buffer).name;
    let refused = |why: &str| LowerError::Unsupported {
        what: format!("{name}, in tensor memory, where {why}"),
        place: At::default(),
        remedy: "clear it, multiply in one pipelined loop whose copies are the TMA's (satune.tma), then read it".into(),
    };
    let matrix = layouts.get(&buffer).and_then(|layout| Some((layout, layout.matrix()?)));
    let Some((layout, [rows, columns])) = matrix.filter(|(l, [rows, columns])| l.len == rows * columns) else {
        return Err(refused("several matrices of it live at a time"));
    };
    if buffers.len() > 1 || rows % ROWS != 0 {
        return Err(refused("it is no rows of instructions, or not alone"));
    }
    let groups = nest.extents(true).into_iter().product::<i64>() / THREADS;
    let of_team = rows / ROWS * columns;
    let all = (of_team * nest.teams()).unsigned_abs().next_power_of_two().max(32) as i64;
    if all > COLUMNS {
        return Err(refused(&format!("it takes {all} columns, more than the {COLUMNS} that there are")));
    }
    let again = in_order(nest, buffer, (layout, layout.len / groups), rings).map_err(refused)?;
    let mut array = |name: &str, dtype: DType, len: i64, space: Space| {
        let (bytes, align) = (len as u32 * dtype.bytes(), 8);
        let shared_offset = shared_bytes.next_multiple_of(align);
        *shared_bytes = shared_offset + bytes;
        arrays.push(Array { name: name.into(), dtype, len: len as u64, space, align, shared_offset, written: true });
        ArrayId(arrays.len() as u32 - 1)
    };
    let done = array("done", DType::U64, groups * nest.teams(), Space::Shared);
    let slot = array("told", DType::I32, 1, Space::Shared);
    Ok(Some(Sums { buffer, of_team, again, slot, done, columns: all as u32 }))
}

/// Whether a nest clears a buffer, so many elements of each group of four warps, multiplies and reads it in this order; then of each multiplication
/// the loops in which its sums come again.
fn in_order(
    nest: &Nest,
    buffer: BufferId,
    (layout, elements): (&BufferLayout, i64),
    rings: &HashMap<VarId, Ring>,
) -> Result<HashMap<usize, Vec<VarId>>, &'static str> {
    let use_of = |leaf: &Leaf| {
        let reads = leaf.reads.iter().any(|(b, _)| *b == buffer);
        match (leaf.target == buffer, leaf.instruction.as_deref().map(|what| what.what)) {
            (true, Some(What::Together(_))) => Some(Use::Multiplies),
            (true, None) if matches!(leaf.value, Expr::Int(0, _) | Expr::Float(0, _)) => Some(Use::Clears),
            (false, Some(What::Fetch)) => Some(Use::Reads),
            (false, _) if !reads => None,
            _ => Some(Use::Strange),
        }
    };
    let mut nodes = nest.body.as_slice();
    let uses = |node: &Node| {
        let mut all = Vec::new();
        leaves(std::slice::from_ref(node), &mut |leaf| all.extend(use_of(leaf)));
        all
    };
    let list: Vec<(&Node, Vec<Use>)> = loop {
        let list: Vec<(&Node, Vec<Use>)> =
            nodes.iter().map(|node| (node, uses(node))).filter(|(_, uses)| !uses.is_empty()).collect();
        match list.as_slice() {
            [(Node::Loop(l), _)] if !rings.contains_key(&l.var) => nodes = &l.body,
            _ => break list,
        }
    };
    let mut alike = Some(Vec::new());
    for (node, uses) in list {
        let of = uses.first().copied().filter(|of| uses.iter().all(|other| other == of));
        alike = alike.zip(of).map(|(list, of)| [list, vec![(node, of)]].concat());
    }
    let list: Option<Vec<(&Node, Use)>> = alike;
    let Some([(clears, Use::Clears), (multiplies @ Node::Loop(l), Use::Multiplies), rest @ ..]) = list.as_deref()
    else {
        return Err("it is not cleared once, then multiplied in one loop");
    };
    if !rings.contains_key(&l.var) {
        return Err("no producer brings what is multiplied");
    }
    if rest.iter().any(|(_, of)| *of != Use::Reads) {
        return Err("it is written again behind that, or read otherwise than in two loops");
    }
    let mut again = HashMap::new();
    for (node, what) in [(*clears, Use::Clears), (*multiplies, Use::Multiplies)] {
        let mut paths: Vec<(&Leaf, Vec<&Loop>)> = Vec::new();
        leaves_in(std::slice::from_ref(node), &mut |leaf, path| paths.push((leaf, path.to_vec())));
        let mut covered = 0;
        for (leaf, path) in paths.into_iter().filter(|(leaf, _)| use_of(leaf) == Some(what)) {
            let form = layout.flatten(&leaf.at, &nest.ranges);
            if !leaf.guards.is_empty() {
                return Err("a condition leaves out some of it");
            }
            covered += elements_of(&form, &path).ok_or("its elements come twice")?;
            let ordered = [keys::DESCENDING, keys::SERPENTINE, keys::PAIRS];
            if path.iter().any(|l| ordered.iter().any(|key| flag(&l.annotations, key))) {
                return Err("its instructions are to be in another order");
            }
            let inside = path.iter().skip(1).filter(|l| !form.uses(&|v| v == l.var));
            again.insert(leaf.id, inside.map(|l| l.var).collect());
        }
        if covered != elements {
            return Err("not all of it is cleared, or multiplied");
        }
    }
    Ok(again)
}

/// How many elements loops name, each once; none where they name some twice, as far as is known.
fn elements_of(form: &Linear, loops: &[&Loop]) -> Option<i64> {
    let mut digits: Vec<(i64, i64)> = Vec::new();
    for l in loops.iter().filter(|l| form.uses(&|v| v == l.var)) {
        digits.push((form.split_var(l.var)?.0, l.extent));
    }
    digits.sort_unstable();
    let (mut below, mut count) = (0, 1);
    for (by, extent) in digits {
        if by <= below {
            return None;
        }
        (below, count) = (below + by * (extent - 1), count * extent);
    }
    Some(count)
}

fn first_warp(op: TensorMemoryOp) -> Vec<Stmt> {
    guarded(Cond::Lt(Index::ThreadIdx(Dim::X), c(LANES)), vec![stmt(op)])
}

fn stmt(op: TensorMemoryOp) -> Stmt {
    Stmt::Group(GroupOp::TensorMemory(op))
}

impl Sums {
    /// Their barriers, to be made by one thread.
    pub fn barriers(&self, groups: i64) -> impl Iterator<Item = Stmt> + '_ {
        let one = |i| Stmt::Group(GroupOp::BarrierInit { barrier: (self.done, c(i)), arrivals: 1 });
        (0..groups).map(one)
    }

    /// The first warp asks for columns, before all meet.
    pub fn allocate(&self) -> Vec<Stmt> {
        first_warp(TensorMemoryOp::Allocate { slot: (self.slot, c(0)), columns: self.columns })
    }

    /// All find them, then.
    pub fn found(&self) -> Vec<Stmt> {
        let value = Value::Load(self.slot, c(0));
        // Lane 0: a column is all there is to it, which keeps addresses small numbers.
        let column = Index::And(Box::new(Index::Var(TOLD)), Box::new(c(COLUMNS - 1)));
        vec![
            Stmt::Fetch { var: TOLD, name: "sums_told".into(), value },
            Stmt::Let { var: AT, name: "sums_at".into(), value: column },
        ]
    }

    /// The first warp frees them, after all have met.
    pub fn free(&self) -> Vec<Stmt> {
        first_warp(TensorMemoryOp::Free { at: Index::Var(AT), columns: self.columns })
    }
}

impl Emitter<'_> {
    /// The sums that the kernel has in tensor memory, before anything is emitted.
    pub fn with_sums(&mut self, sums: Option<Sums>) {
        if sums.is_some() {
            let own = [self.fresh(), self.fresh()];
            debug_assert_eq!(own, [TOLD, AT]);
        }
        self.sums = sums;
    }

    /// Whether all that a loop's statements do is multiply in tensor memory.
    pub(super) fn multiplies_in_memory(&self, nodes: &[Node]) -> bool {
        let mut all = self.sums.is_some() && nodes.iter().all(is_group);
        let of = self.sums.as_ref().map(|sums| sums.buffer);
        leaves(nodes, &mut |leaf| all &= Some(leaf.target) == of);
        all
    }

    /// A loop whose tiles are brought by the producer, multiplied by one thread of each group.
    pub(super) fn issued(&mut self, l: &Loop, p: &Pipeline, ring: &Ring) -> Result<Vec<Stmt>, LowerError> {
        let (Some(sums), Some(role)) = (self.sums.clone(), self.role.clone()) else { return Ok(Vec::new()) };
        let size = self.cluster.as_ref().map_or(1, Cluster::size);
        let everywhere = (size > 1).then(|| c((1 << size) - 1));
        let laps = self.laps_of_ring(l, p, ring, &|this, lap| {
            let full = GroupOp::WaitPhase { barrier: (ring.full, lap.place.clone()), parity: lap.parity.clone() };
            let mut list = vec![Stmt::Group(full), stmt(TensorMemoryOp::FenceAfter)];
            let bound = [(l.var, lap.number.clone()), (p.slot, lap.place.clone())];
            let never = Cond::Not(Box::new(Cond::True));
            this.sums_exist = lap.before.as_ref().map_or(never, |(_, exists)| exists.clone());
            this.in_group = true;
            let code = this.with_all(&bound, |this| this.nodes(&l.body[p.copies..]));
            this.in_group = false;
            list.extend(code?);
            let (barrier, multicast) = ((ring.empty, lap.place.clone()), everywhere.clone());
            list.push(stmt(TensorMemoryOp::Commit { barrier, multicast }));
            Ok(list)
        })?;
        let done = (sums.done, role.group);
        let mut issue = self.when_it_is_its_turn(ring.order, &Cond::True, laps);
        issue.push(stmt(TensorMemoryOp::Commit { barrier: done.clone(), multicast: None }));
        let mut out = Vec::new();
        let before = self.own_turn(ring);
        if before != c(0) {
            // These sums come where those before are, when all have theirs.
            out.push(stmt(TensorMemoryOp::FenceBefore));
            out.push(self.meet());
        }
        let is_first = Cond::Eq(rem(Index::ThreadIdx(Dim::X), THREADS), c(0));
        out.extend(guarded(is_first, issue));
        out.push(Stmt::Group(GroupOp::WaitPhase { barrier: done, parity: rem(before, 2) }));
        out.push(stmt(TensorMemoryOp::FenceAfter));
        Ok(out)
    }

    /// The address of an element: its lane, and its column.
    fn address(&self, sums: &Sums, at: &[Linear]) -> Option<[Linear; 2]> {
        let ranges = &self.nest.ranges;
        let (_, layout) = self.places.get(&sums.buffer)?;
        let ([row, column], [_, columns]) = (layout.in_matrix(at), layout.matrix()?);
        let column = column.plus(&row.divided(ROWS, ranges), columns);
        let team = self.nest.in_turn.map_or(Linear::of(0), |turn| Linear::var(turn.team).scaled(sums.of_team));
        Some([row.remainder(ROWS, ranges), column.plus(&team, 1)])
    }

    /// A multiplication by one thread.
    pub(super) fn multiply_in_memory(
        &mut self,
        (leaf, what): (&Leaf, &Instruction),
        of: &Group,
        operands: Vec<Descriptor>,
    ) -> Result<Vec<Stmt>, LowerError> {
        let refused = |why: &str| strange(&what.name, &leaf.block, why);
        let (Some(sums), Ok([a, b])) = (self.sums.clone(), <[Descriptor; 2]>::try_from(operands)) else {
            return Err(refused("it has other operands"));
        };
        if !self.in_group {
            return Err(refused("no producer brings what it multiplies"));
        }
        let first: Vec<Linear> = leaf.at.iter().map(|form| at_zero(form, &what.loops, &self.nest.ranges)).collect();
        let [.., row, column] = leaf.at.as_slice() else { return Err(refused("it has other operands")) };
        let [i, j, _] = what.loops.as_slice() else { return Err(refused("it has other operands")) };
        let moved = |form: &Linear, d: usize| form.plus(&first[first.len() - d], -1);
        let whole = moved(row, 2) == Linear::var(*i) && moved(column, 1) == Linear::var(*j);
        let Some([lane, column]) = self.address(&sums, &first).filter(|[lane, _]| whole && *lane == Linear::of(0))
        else {
            return Err(refused("its sums are no rows and columns of tensor memory, from lane 0 on"));
        };
        debug_assert_eq!(lane, Linear::of(0));
        let column = self.at_this_lap(&column);
        let d = (self.array_of(&sums)?, add_index(Index::Var(AT), self.plain_index(&column)));
        let mut adds = vec![self.sums_exist.clone()];
        for v in sums.again.get(&leaf.id).into_iter().flatten() {
            match self.env.get(v) {
                Some(Index::Const(0)) | None => {}
                Some(Index::Const(_)) => adds = vec![Cond::True],
                Some(index) => adds.push(Cond::Lt(c(0), index.clone())),
            }
        }
        let adds = match adds.iter().position(|cond| *cond == Cond::True) {
            Some(_) => Cond::True,
            None if adds.len() == 1 => adds.remove(0),
            None => Cond::Or(adds),
        };
        let op = Tcgen05 {
            n: of.n as u32,
            operand: of.types[0],
            a_transposed: of.transposed[0],
            b_transposed: !of.transposed[1],
        };
        Ok(vec![stmt(TensorMemoryOp::Multiply { op, d, a, b, adds })])
    }

    fn array_of(&self, sums: &Sums) -> Result<ArrayId, LowerError> {
        let place = self.places.get(&sums.buffer).map(|(array, _)| *array);
        place.ok_or_else(|| LowerError::Overflow { what: "tensor memory has no place: its use".into() })
    }

    /// Columns of tensor memory to the registers that hold them.
    pub(super) fn fetch(&mut self, leaf: &Leaf, what: &Instruction) -> Result<Vec<Stmt>, LowerError> {
        let refused = || strange(&what.name, &leaf.block, "registers do not have tensor memory as a warp loads it");
        let (nest, ranges) = (self.nest, &self.nest.ranges);
        let lane = nest.threads.iter().find(|t| t.tag == LANE_TAG).map(|t| t.var).ok_or_else(refused)?;
        let (Some(sums), [(buffer, at)]) = (self.sums.clone(), leaf.reads.as_slice()) else { return Err(refused()) };
        let (array, form) = self.element(leaf.target, &leaf.at)?;
        let extent = |v: &VarId| ranges.get(v).map_or(1, |range| range.1 + 1);
        let by = |times: i64| what.loops.iter().find(|v| form.split_var(**v).is_some_and(|(own, _)| own == times));
        let ([Some(near), Some(far)], eight) = ([by(1), by(2)], by(4)) else { return Err(refused()) };
        let eights = eight.map_or(1, extent);
        let count: i64 = what.loops.iter().map(extent).product();
        let own = Linear::var(lane);
        let warp = own.divided(LANES, ranges).scaled(LANES);
        let at_first = |form: &Linear| {
            at_zero(form, &what.loops, ranges).substitute(&HashMap::from([(lane, warp.clone())]), ranges)
        };
        let first: Vec<Linear> = at.iter().map(at_first).collect();
        let moved = |d: usize| at[at.len() - d].plus(&first[at.len() - d], -1);
        let [row, column] = [moved(2), moved(1)];
        // As `mma.sync` holds them: four elements of each eight columns.
        let mut alike = *buffer == sums.buffer && (extent(near), extent(far), count) == (2, 2, 4 * eights);
        alike &= eights.count_ones() == 1;
        for (number, [odd, half, j]) in
            (0..THREADS).flat_map(|n| (0..4 * eights).map(move |i| (n, [i % 2, i / 2 % 2, i / 4])))
        {
            let mut values =
                HashMap::from([(lane, Linear::of(number)), (*near, Linear::of(odd)), (*far, Linear::of(half))]);
            values.extend(eight.map(|v| (*v, Linear::of(j))));
            let value = |form: &Linear| form.substitute(&values, ranges).as_constant();
            let number = number % LANES;
            alike &= value(&row) == Some(number / 4 + 8 * half) && value(&column) == Some(8 * j + number % 4 * 2 + odd);
        }
        let [lane, column] = self.address(&sums, &first).ok_or_else(refused)?;
        // A warp reaches 32 lanes, 16 of them at a time.
        let beyond = lane.plus(&warp, -1);
        if !alike || !beyond.multiple_of(16) || beyond.range(ranges).0 < 0 || beyond.range(ranges).1 > 16 {
            return Err(refused());
        }
        let from = self.at_this_lap(&lane.scaled(LANE).plus(&column, 1));
        let memory = self.array_of(&sums)?;
        let from = (memory, add_index(Index::Var(AT), self.index(memory, &from, "from")));
        let dst = (array, self.plain_index(&at_zero(&form, &what.loops, ranges)));
        Ok(vec![stmt(TensorMemoryOp::Load { dst, from, eights: eights as u32 })])
    }
}
