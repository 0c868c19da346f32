//! `wgmma` in scheduled programs: four warps multiply what shared memory holds, their sums are in registers.
//!
//! In programs the sums are in scope `warp`, tiles of 16 rows and 8 columns of 32 lanes, of which an instruction has four by so many as it
//! has columns. A warp has every fourth tile of rows. So here 128 lanes hold what four of them have side by side, and all else
//! of [`super::lanes`] holds for them:
//!
//! ```text
//!   C[tile, column, lane, register]   ->   C[tile // 4, column, tile % 4 * 32 + lane, register]
//! ```
//! Operands are in boxes ([`super::boxes`]), whoever copies them there. Instructions that follow each other are one group, which is waited
//! for behind the last of them:
//!
//! ```text
//!   for step:                         wgmma.fence
//!       multiply               ->     for step: wgmma.mma_async
//!                                     wgmma.commit_group, wgmma.wait_group 0
//! ```
//! `wgmma` reads memory by another way than threads do: before a barrier each makes visible to it what it wrote.
use super::boxes::Boxes;
use super::emit::{guarded, Emitter};
use super::error::{At, LowerError};
use super::lanes::is_held;
use super::layout::BufferLayout;
use super::linear::{gcd, Linear, Ranges};
use super::matrix::{named, strange, Instruction, What};
use super::nest::{leaves, Leaf, Nest, Node};
use super::pred::Pred;
use super::shared::is_shared;
use super::tma;
use crate::kernel::{each_group_op, ArrayId, Descriptor, GroupOp, Left, Space, Stmt, Wgmma};
use crate::lower::index::{add as add_index, c};
use satune_ir::affine::{add, constant, floor_div, floor_mod, index_type, int, mul};
use satune_ir::term::tensor::GroupMma;
use satune_ir::{visit, Attr, BufferId, DType, Expr, Program, Stmt as Statement, VarId};
use satune_rewrites::intrinsics::group::Group;
use satune_rewrites::intrinsics::INTRINSIC;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};

/// Threads that multiply together.
pub const THREADS: i64 = 128;
/// Warps of them, each of which has a tile of rows.
const WARPS: i64 = 4;
/// Instructions of a group that are written out, at most.
pub const MOST: i64 = 64;
/// Rows after which a permutation of chunks is the same again.
const ROWS: i64 = 8;

/// An instruction; whether the description has B's factors first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Together {
    pub group: Group,
    pub swapped: bool,
}

/// The multiplication that an intrinsic of the name is.
pub fn together(name: &str) -> Option<Together> {
    let (group, swapped) = Group::of_call(name)?;
    Some(Together { group, swapped })
}

impl Together {
    fn instruction(&self) -> Wgmma {
        let Group { n, types: [operand, sums], .. } = self.group;
        let [a_transposed, b_transposed] = self.across();
        let (n, f16_sums, a_held) = (n as u32, sums == DType::F16, self.group.held);
        Wgmma { n, operand, f16_sums, a_held, a_transposed, b_transposed }
    }

    /// Whether A, and B, are stored across k.
    fn across(&self) -> [bool; 2] {
        [self.group.transposed[0], !self.group.transposed[1]]
    }
}

/// How many threads hold a buffer of scope `warp` together: 32, or the 128 that multiply by `wgmma`.
///
/// # Errors
/// Where there are instructions of both.
pub fn lanes(part: &Statement) -> Result<i64, LowerError> {
    let mut found: [Option<(String, String)>; 2] = [None, None];
    visit::walk_stmt(part, &mut |s| {
        let Statement::Realize(r) = s else { return };
        let Some(Attr::Str(name)) = r.block.annotations.get(INTRINSIC) else { return };
        if let Some(what) = named(name).filter(Instruction::multiplies) {
            let of = usize::from(matches!(what.what, What::Together(_)));
            found[of].get_or_insert((name.to_string(), r.block.name.clone()));
        }
    });
    match found {
        [Some((of_warp, _)), Some((of_group, block))] => {
            Err(strange(&of_group, &block, &format!("{of_warp} multiplies in the same kernel")))
        }
        [_, Some(_)] => Ok(THREADS),
        [_, None] => Ok(super::matrix::LANES),
    }
}

/// A kernel's statement, and the program, in which four warps hold the sums of `wgmma` side by side.
///
/// # Errors
/// Where there are not four tiles of rows for each instruction.
pub fn side_by_side<'p>(
    program: Cow<'p, Program>,
    part: Cow<'p, Statement>,
) -> Result<(Cow<'p, Program>, Cow<'p, Statement>), LowerError> {
    // The sums, and A where registers have it.
    let mut sums: HashSet<BufferId> = HashSet::new();
    visit::walk_stmt(&part, &mut |s| {
        let Statement::Realize(r) = s else { return };
        let Some(Attr::Str(name)) = r.block.annotations.get(INTRINSIC) else { return };
        if together(name).is_some() {
            visit::walk_stmt(&r.block.body, &mut |s| {
                if let Statement::Store { buffer, value, .. } = s {
                    sums.extend(visit::loads(value).into_iter().map(|(b, _)| b).chain([*buffer]));
                }
            });
        }
    });
    sums.retain(|b| is_held(&program.buffer(*b).scope));
    if sums.is_empty() {
        return Ok((program, part));
    }
    let mut program = program.into_owned();
    for id in &sums {
        let Some(buffer) = program.buffers.get_mut(id.0 as usize) else { continue };
        let tiles = buffer.shape.len().checked_sub(4).map(|d| (d, constant(&buffer.shape[d])));
        let Some((d, Some(tiles))) = tiles.filter(|(_, tiles)| tiles.is_some_and(|n| n % WARPS == 0)) else {
            return Err(LowerError::Unsupported {
                what: format!("buffer {} of wgmma's registers, whose fourth last dimension is no multiple of 4", buffer.name),
                place: At::default(),
                remedy: "its last dimensions are tiles of 16 rows, four to an instruction, tiles of columns, 32 lanes, registers".into(),
            });
        };
        let of = |number| int(number, index_type(&buffer.shape[d]));
        let (tiles, lanes) = (of(tiles / WARPS), of(THREADS));
        buffer.shape[d] = tiles;
        buffer.shape[d + 2] = lanes;
        buffer.strides.clear();
    }
    let beside = |at: &[Expr]| -> Vec<Expr> {
        let mut at = at.to_vec();
        if let [.., tile, _, lane, _] = at.as_mut_slice() {
            let dtype = index_type(tile);
            let warp = mul(floor_mod(tile.clone(), WARPS, dtype), int(super::matrix::LANES, dtype));
            *lane = add(warp, lane.clone());
            *tile = floor_div(tile.clone(), WARPS, dtype);
        }
        at
    };
    let mut part = part.into_owned();
    visit::walk_stmt_mut(&mut part, &mut |s| {
        if let Statement::Store { buffer, indices, value } = s {
            for b in &sums {
                *value = visit::replace_loads(value, *b, &mut |at| Expr::Load(*b, beside(&at)));
            }
            if sums.contains(buffer) {
                *indices = beside(indices);
            }
        }
    });
    Ok((Cow::Owned(program), Cow::Owned(part)))
}

/// A buffer, and the indices of an element.
type Access = (BufferId, Vec<Linear>);

/// A matrix of an operand that an instruction takes.
pub struct Matrix<'n> {
    leaf: &'n Leaf,
    what: &'n Instruction,
    pub buffer: BufferId,
    /// Its first element.
    first: Vec<Linear>,
    /// Whether it is stored across k.
    across: bool,
}

/// A and B of a multiplication.
fn factors<'n>(leaf: &'n Leaf, what: &Instruction, of: Together) -> Result<[&'n Access; 2], LowerError> {
    let mut factors: Vec<&Access> = leaf.reads.iter().filter(|(b, _)| *b != leaf.target).collect();
    if of.swapped {
        factors.reverse();
    }
    factors.try_into().map_err(|_| strange(&what.name, &leaf.block, "it has other operands"))
}

/// The operands of a multiplication that are in shared memory: A, where registers do not have it, and B.
pub fn matrices<'n>(
    leaf: &'n Leaf,
    what: &'n Instruction,
    of: Together,
    ranges: &Ranges,
) -> Result<Vec<Matrix<'n>>, LowerError> {
    let refused = |why: &str| strange(&what.name, &leaf.block, why);
    let ([a, b], [i, j, k]) = (factors(leaf, what, of)?, what.loops.as_slice()) else {
        return Err(refused("it has other operands"));
    };
    let matrix = |(buffer, at): &Access, line: VarId, across: bool| {
        let first: Vec<Linear> = at.iter().map(|form| at_zero(form, &what.loops, ranges)).collect();
        let order = if across { [*k, line] } else { [line, *k] };
        let moved = |d: usize| match (d + 2).checked_sub(at.len()) {
            Some(d) => Linear::var(order[d]),
            None => Linear::of(0),
        };
        let whole = at.len() > 1 && (0..at.len()).all(|d| at[d].plus(&first[d], -1) == moved(d));
        match whole {
            true => Ok(Matrix { leaf, what, buffer: *buffer, first, across }),
            false => Err(refused("rows and columns of an operand are not the last two dimensions of its buffer")),
        }
    };
    let [across_a, across_b] = of.across();
    let mut out = Vec::new();
    if !of.group.held {
        out.push(matrix(a, *i, across_a)?);
    }
    out.push(matrix(b, *j, across_b)?);
    Ok(out)
}

/// A form where some variables are 0.
pub fn at_zero(form: &Linear, loops: &[VarId], ranges: &Ranges) -> Linear {
    form.substitute(&loops.iter().map(|v| (*v, Linear::of(0))).collect(), ranges)
}

/// The shared buffers that `wgmma` multiplies get their boxes.
///
/// # Errors
/// Where tiles have no rows as wide as boxes, or matrices begin within one.
pub fn boxed(
    nest: &Nest,
    program: &Program,
    layout: impl Fn(BufferId) -> Option<BufferLayout>,
) -> Result<Vec<(BufferId, BufferLayout)>, LowerError> {
    let (mut out, mut failed): (Vec<(BufferId, BufferLayout)>, _) = (Vec::new(), None);
    let mut one = |leaf: &Leaf, what: &Instruction, of: Together| -> Result<(), LowerError> {
        for matrix in matrices(leaf, what, of, &nest.ranges)? {
            let buffer = program.buffer(matrix.buffer);
            let refused = |why: &str| strange(&what.name, &leaf.block, &format!("{why} of buffer {}", buffer.name));
            if !is_shared(&buffer.scope) {
                return Err(refused("it multiplies what is not in shared memory: a tile"));
            }
            let known = out.iter().position(|(b, _)| *b == matrix.buffer);
            let known = known.map(|at| out.remove(at).1).or_else(|| layout(matrix.buffer));
            let Some((mut layout, [rows, columns])) = known.and_then(|l| l.matrix().map(|extents| (l, extents))) else {
                return Err(refused("nothing is known of the rows"));
            };
            let [row, column] = layout.in_matrix(&matrix.first);
            // Of lines along k an instruction takes 32 bytes, which are in one box.
            let mut step = if matrix.across { column.factor() } else { 0 };
            if let Some(boxes) = layout.boxes() {
                step = gcd(step, boxes.columns);
            }
            let boxes = Boxes::of(columns, i64::from(buffer.dtype.bytes()), step);
            let boxes = boxes.filter(|_| rows % ROWS == 0).ok_or_else(|| {
                refused(
                    "whole boxes of 8 rows of 32, 64 or 128 bytes, which matrices begin with, are not what a tile has",
                )
            })?;
            if !row.multiple_of(ROWS) {
                return Err(refused("a matrix does not begin at a multiple of 8 rows of a tile"));
            }
            layout.in_boxes(boxes);
            out.push((matrix.buffer, layout));
        }
        Ok(())
    };
    nest.leaves(&mut |leaf, _| {
        if let (Some(what), None) = (leaf.instruction.as_deref(), &failed) {
            if let What::Together(of) = what.what {
                failed = one(leaf, what, of).err();
            }
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    // What the TMA moves besides, where tiles have whole boxes.
    nest.leaves(&mut |leaf, path| {
        let ([(read, from)], Some(loops)) = (leaf.reads.as_slice(), path.last_chunk::<2>()) else { return };
        let is_shared = |b: BufferId| is_shared(&program.buffer(b).scope);
        let (buffer, at) = if is_shared(*read) { (*read, from) } else { (leaf.target, &leaf.at) };
        let is_new = tma::asks(leaf) && is_shared(buffer) && out.iter().all(|(b, _)| *b != buffer);
        let Some(mut layout) = layout(buffer).filter(|_| is_new && nest.lanes == THREADS) else { return };
        let (Some([rows, columns]), bytes) = (layout.matrix(), program.buffer(buffer).dtype.bytes()) else { return };
        let loops = loops.map(|l| l.var);
        let first: Vec<Linear> = at.iter().map(|form| at_zero(form, &loops, &nest.ranges)).collect();
        let [_, column] = layout.in_matrix(&first);
        if let Some(boxes) = Boxes::of(columns, bytes.into(), column.factor()).filter(|_| rows % ROWS == 0) {
            layout.in_boxes(boxes);
            out.push((buffer, layout));
        }
    });
    Ok(out)
}

/// How many instructions statements are.
pub fn count(nodes: &[Node]) -> i64 {
    let of = |node: &Node| match node {
        Node::Leaf(_) => 1,
        Node::Barrier => 0,
        Node::Loop(l) => {
            let mut own = false;
            leaves(&l.body, &mut |leaf| {
                own |= leaf.instruction.as_ref().is_some_and(|what| what.loops.contains(&l.var))
            });
            if own {
                1
            } else {
                l.extent.saturating_mul(count(&l.body))
            }
        }
    };
    nodes.iter().map(of).fold(0, i64::saturating_add)
}

/// Whether all that a node does are multiplications by `wgmma`.
pub fn is_group(node: &Node) -> bool {
    let (mut any, mut all) = (false, true);
    leaves(std::slice::from_ref(node), &mut |leaf| {
        let own = leaf.instruction.as_ref().is_some_and(|what| matches!(what.what, What::Together(_)));
        any |= own;
        all &= own;
    });
    any && all
}

impl Emitter<'_> {
    /// Statements of a node, multiplications by `wgmma` as a group.
    pub(super) fn grouped(
        &mut self,
        node: &Node,
        code: impl FnOnce(&mut Self) -> Result<Vec<Stmt>, LowerError>,
    ) -> Result<Vec<Stmt>, LowerError> {
        if self.in_group || !is_group(node) {
            return code(self);
        }
        self.in_group = true;
        let list = code(self);
        self.in_group = false;
        let list = list?;
        let kept = self.kept(&list);
        let mut out = kept.clone();
        out.push(Stmt::Group(GroupOp::MatrixFence));
        out.extend(list);
        out.extend([GroupOp::MatrixCommit, GroupOp::MatrixWait(0)].map(Stmt::Group));
        // What follows reads the sums behind the wait.
        out.extend(kept);
        Ok(out)
    }

    /// What statements multiply in registers is there: before the first multiplication, and before it is read.
    pub(super) fn kept(&self, list: &[Stmt]) -> Vec<Stmt> {
        let mut held: BTreeSet<ArrayId> = BTreeSet::new();
        each_group_op(list, &mut |op| {
            let GroupOp::Matrix { d: (sums, _), a, .. } = op else { return };
            held.insert(*sums);
            if let Left::Registers(array, _) = a {
                held.insert(*array);
            }
        });
        let keep = |id: ArrayId| {
            let array = self.array(id);
            let count = (array.len * u64::from(array.dtype.bytes()) / 4) as u32;
            Stmt::Group(GroupOp::MatrixKeep { array: id, count })
        };
        held.into_iter().map(keep).collect()
    }

    /// All threads meet, those of the nest; what each wrote is there for `wgmma` and the TMA, too.
    pub(super) fn barrier(&self) -> impl Iterator<Item = Stmt> {
        let fence = (self.nest.lanes == THREADS).then_some(Stmt::Group(GroupOp::FenceAsync));
        fence.into_iter().chain([self.meet()])
    }

    /// All threads meet.
    pub(super) fn meet(&self) -> Stmt {
        match &self.role {
            None => Stmt::Barrier,
            Some(role) => {
                Stmt::Group(GroupOp::NamedBarrier { id: add_index(role.number.clone(), c(1)), threads: role.threads })
            }
        }
    }

    /// A multiplication by four warps.
    pub(super) fn multiply_together(
        &mut self,
        leaf: &Leaf,
        what: &Instruction,
        of: Together,
        when: &[Pred],
    ) -> Result<Vec<Stmt>, LowerError> {
        let refused = |why: &str| strange(&what.name, &leaf.block, why);
        let nest = self.nest;
        let ranges = &nest.ranges;
        let of_thread = |form: &Linear| form.uses(&|v| nest.thread(v).is_some());
        let own = self.nest.threads.iter().find(|t| t.tag == super::matrix::LANE_TAG).map(|t| t.var);
        let mut operands = Vec::new();
        for matrix in matrices(leaf, what, of, ranges)? {
            let (array, first) = self.element(matrix.buffer, &matrix.first)?;
            let layout = self.places.get(&matrix.buffer).map(|(_, layout)| layout);
            let Some((boxes, [rows, _])) = layout.and_then(|l| l.boxes().copied().zip(l.matrix())) else {
                return Err(strange(&matrix.what.name, &matrix.leaf.block, "an operand has no boxes"));
            };
            if first.uses(&|v| Some(v) == own) || self.array(array).space != Space::Shared {
                return Err(refused("threads that multiply together have different operands"));
            }
            let index = self.plain_index(&self.at_this_lap(&first));
            let span = boxes.span() as u32;
            let leading = if matrix.across { rows as u32 * span } else { 16 };
            operands.push(Descriptor { of: of.group.op, array, index, leading, stride: 8 * span, span });
        }
        if of.group.op == GroupMma::Tcgen05 {
            return self.multiply_in_memory((leaf, what), &of.group, operands);
        }
        let (array, form) = self.element(leaf.target, &leaf.at)?;
        let first = at_zero(&form, &what.loops, ranges);
        let moved = |form: &Linear| form.plus(&at_zero(form, &what.loops, ranges), -1);
        let [.., column, _, register] = leaf.at.as_slice() else { return Err(refused("it has other operands")) };
        if !self.array(array).space.is_private() || of_thread(&first) {
            return Err(refused("the sums are not in registers of scope warp, the same of all threads"));
        }
        if moved(&form) != moved(column).scaled(4).plus(&moved(register), 1) {
            return Err(refused("the sums of a tile are no neighbours"));
        }
        let b = operands.pop().ok_or_else(|| refused("it has other operands"))?;
        let a = match operands.pop() {
            Some(a) => Left::Shared(a),
            None => {
                let [(buffer, at), _] = factors(leaf, what, of)?;
                let (array, form) = self.element(*buffer, at)?;
                let first = at_zero(&form, &what.loops, ranges);
                let follow = at.last().is_some_and(|register| moved(register) == moved(&form));
                if self.array(array).space != Space::Fragment || of_thread(&first) || !follow {
                    return Err(refused("A is not in registers of scope warp, the same of all threads"));
                }
                Left::Registers(array, self.plain_index(&first))
            }
        };
        let (d, cond) = ((array, self.plain_index(&first)), self.condition(when));
        Ok(guarded(cond, vec![Stmt::Group(GroupOp::Matrix { op: of.instruction(), d, a, b })]))
    }
}
