//! Instructions of a warp on matrices (`wmma`) in scheduled programs.
//!
//! A block that is an intrinsic is lowered as what it computes: loops over the elements of its matrices, by which layouts, guards and
//! barriers are found as for any other. Only where statements are written are these loops one instruction:
//!
//! ```text
//!   wmma_load_16x16x16_f16_a_shared:              for i, j in T.grid(16, 16):
//!       A_1 = T.match_buffer(A_shared[..])            A_frag[v * 16 + i, u * 16 + j] = A_shared[v * 16 + i, u * 16 + j]
//!       C_1 = T.match_buffer(A_frag[..])          ->
//!       T.tvm_load_matrix_sync(..)                wmma::load(A_frag + v * 2 + u, &A_shared[v * 16][u * 16], pitch)
//! ```
//! How a fragment is spread over lanes is not known: a buffer of scope `wmma.*` is an array of whole fragments, in the order of the
//! matrices, and no other statement touches it. All lanes of a warp reach an instruction with the same addresses: lanes are 32
//! neighbours along threadIdx.x, and no index of it tells them apart.
use super::build::Around;
use super::emit::{guarded, Emitter};
use super::error::{At, LowerError};
use super::group::{together, Together};
use super::guards::Guarding;
use super::lanes::is_held;
use super::layout::BufferLayout;
use super::linear::{Atom, Linear};
use super::mma::{self, Multiplication};
use super::nest::{Leaf, Loop, Nest, Node};
use super::pred::Pred;
use crate::kernel::{self, Array, ArrayId, Index, WarpOp, WmmaOp};
use satune_ir::term::tensor::Wmma;
use satune_ir::term::Side;
use satune_ir::{visit, Attr, BufferId, Program, Stmt, VarId};
use satune_rewrites::intrinsics::wmma::{step, Step};
use satune_rewrites::intrinsics::INTRINSIC;
use satune_rewrites::{intrinsics, views};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// Lanes of a warp.
pub const LANES: i64 = 32;
/// At multiples of so many bytes a matrix of any type may begin ([`Wmma::alignments`]).
const MATRIX_ALIGN: u32 = 32;

/// Whether buffers of a scope are private to a thread, or to a warp.
pub fn is_private(scope: &str) -> bool {
    scope == "local" || is_fragment(scope) || is_held(scope)
}

/// Whether buffers of a scope hold fragments.
pub fn is_fragment(scope: &str) -> bool {
    scope.starts_with("wmma.")
}

/// The program without views, intrinsics as what they compute, with their names.
pub fn with_instructions(program: &Program) -> Cow<'_, Program> {
    let mut any = false;
    visit::walk_stmt(&program.body.block.body, &mut |s| {
        any |= matches!(s, Stmt::Realize(r) if !r.block.match_buffers.is_empty());
    });
    if !any {
        return Cow::Borrowed(program);
    }
    let mut out = intrinsics::named(program);
    views::seen_through(&mut out.body.block.body);
    Cow::Owned(out)
}

/// What a leaf in loops over the elements of matrices is.
#[derive(Clone, Debug)]
pub struct Instruction {
    pub name: Arc<str>,
    pub what: What,
    /// The loops, outermost first.
    pub loops: Vec<VarId>,
}

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// `wmma`.
    Fragments(Step),
    /// `mma.sync`.
    Multiply(Multiplication),
    /// `wgmma`.
    Together(Together),
    /// Gives lanes what they hold for `mma.sync`.
    Hold,
    /// Takes 16-bit values of what lanes hold to shared memory, by `stmatrix`.
    Matrices,
    /// Takes sums of `tcgen05` to registers.
    Fetch,
}

impl Instruction {
    /// Whether it multiplies what lanes hold.
    pub fn is_of_lanes(&self) -> bool {
        matches!(self.what, What::Multiply(_) | What::Together(_))
    }

    /// Whether it multiplies.
    pub fn multiplies(&self) -> bool {
        matches!(self.what, What::Multiply(_) | What::Together(_) | What::Fragments(Step::Multiply(..)))
    }

    /// What it does with fragments of `wmma`.
    fn step(&self) -> Option<Step> {
        match self.what {
            What::Fragments(step) => Some(step),
            What::Multiply(_) | What::Together(_) | What::Hold | What::Matrices | What::Fetch => None,
        }
    }
}

/// The instruction of an intrinsic's name, where lowering has one; its loops are not known yet.
pub fn named(name: &str) -> Option<Instruction> {
    let of_warp = || mma::named(name).map(What::Multiply);
    let what = step(name).map(What::Fragments).or_else(of_warp).or_else(|| together(name).map(What::Together))?;
    Some(Instruction { name: name.into(), what, loops: Vec::new() })
}

/// Whether an instruction multiplies in a statement.
pub fn multiplies(stmt: &Stmt) -> bool {
    let mut found = false;
    visit::walk_stmt(stmt, &mut |s| {
        let Stmt::Realize(r) = s else { return };
        if let Some(Attr::Str(name)) = r.block.annotations.get(INTRINSIC) {
            found |= named(name).is_some_and(|what| what.multiplies());
        }
    });
    found
}

/// Marks the leaf that is alone in loops over the elements of an instruction's matrices. `around`: the block that the intrinsic is.
pub fn mark(nodes: &mut [Node], instruction: Instruction, around: &Around) -> Result<(), LowerError> {
    let mut loops = Vec::new();
    match nodes {
        [node] => {
            if let Some(leaf) = alone(node, &mut loops) {
                leaf.instruction = Some(Arc::new(Instruction { loops, ..instruction }));
                leaf.block.clone_from(&around.block);
                leaf.annotations = around.annotations.clone();
                return Ok(());
            }
        }
        // No instance of it runs.
        [] => return Ok(()),
        _ => {}
    }
    Err(strange(&instruction.name, &around.block, "its block has several statements"))
}

/// The leaf that is alone in loops, which are noted.
fn alone<'n>(node: &'n mut Node, loops: &mut Vec<VarId>) -> Option<&'n mut Leaf> {
    match node {
        Node::Leaf(leaf) => Some(leaf),
        Node::Loop(Loop { var, body, .. }) => {
            loops.push(*var);
            match body.as_mut_slice() {
                [one] => alone(one, loops),
                _ => None,
            }
        }
        Node::Barrier => None,
    }
}

pub fn strange(name: &str, block: &str, why: &str) -> LowerError {
    LowerError::Unsupported {
        what: format!("{name} where {why}"),
        place: At::block(block),
        remedy: "an instruction takes whole matrices, each of them in rows or columns of one buffer".into(),
    }
}

/// The matrices of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragments {
    /// The instruction that multiplies them.
    op: Wmma,
    rows: i64,
    columns: i64,
    /// Elements that a lane has of one.
    pub per_lane: i64,
}

impl Fragments {
    fn operand(op: Wmma, side: Side, transposed: bool) -> Fragments {
        let [m, n, k] = op.extents().map(i64::from);
        let (rows, columns) = match side {
            Side::A => (m, k),
            Side::B => (k, n),
        };
        let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
        Fragments { op, rows, columns, per_lane: op.elements(side).into() }
    }

    fn sums(op: Wmma) -> Fragments {
        let [m, n, _] = op.extents().map(i64::from);
        Fragments { op, rows: m, columns: n, per_lane: op.sums().into() }
    }

    /// Fragments of a buffer of so many elements.
    pub fn count(&self, elements: i64) -> i64 {
        (elements / (self.rows * self.columns)).max(1)
    }
}

/// What buffers of fragments hold.
///
/// # Errors
/// Where something else touches them, or instructions take them for different matrices.
pub fn fragments(nest: &Nest, program: &Program) -> Result<HashMap<BufferId, Fragments>, LowerError> {
    let mut leaves: Vec<&Leaf> = Vec::new();
    nest.leaves(&mut |leaf, _| leaves.push(leaf));
    // Multiplications first: a load says nothing of the sums, and a fill nothing of the operands.
    leaves.sort_by_key(|leaf| {
        !matches!(leaf.instruction.as_deref().and_then(Instruction::step), Some(Step::Multiply(..)))
    });
    let mut known: HashMap<BufferId, Fragments> = HashMap::new();
    for leaf in leaves {
        let buffers = leaf.reads.iter().map(|(b, _)| *b).chain([leaf.target]);
        for b in buffers.filter(|b| is_fragment(&program.buffer(*b).scope)) {
            let buffer = program.buffer(b);
            let Some((instruction, step)) = leaf.instruction.as_deref().and_then(|i| Some((i, i.step()?))) else {
                return Err(LowerError::Unsupported {
                    what: format!("buffer {} of scope {} accessed element by element", buffer.name, buffer.scope),
                    place: At::block(&leaf.block),
                    remedy: "only intrinsics of wmma know fragments: tensorize the block (after decompose_reduction, of its init too)"
                        .into(),
                });
            };
            let own = match step {
                Step::Fill(op) | Step::Store(op) => Fragments::sums(op),
                Step::Load(op, side, transposed) => Fragments::operand(op, side, transposed),
                Step::Multiply(op, transposed) => match buffer.scope.as_str() {
                    "wmma.matrix_a" => Fragments::operand(op, Side::A, transposed[0]),
                    "wmma.matrix_b" => Fragments::operand(op, Side::B, transposed[1]),
                    _ => Fragments::sums(op),
                },
            };
            let first = known.entry(b).or_insert(own);
            if (first.rows, first.columns, first.per_lane) != (own.rows, own.columns, own.per_lane) {
                let why = format!("buffer {} holds matrices of another instruction", buffer.name);
                return Err(strange(&instruction.name, &leaf.block, &why));
            }
        }
    }
    Ok(known)
}

/// Buffers in memory that hold matrices begin where matrices may.
pub fn align(nest: &Nest, places: &HashMap<BufferId, (ArrayId, BufferLayout)>, arrays: &mut [Array]) {
    nest.leaves(&mut |leaf, _| {
        let accessed = leaf.reads.iter().map(|(b, _)| b).chain([&leaf.target]);
        for (id, _) in accessed.filter(|_| leaf.instruction.is_some()).filter_map(|b| places.get(b)) {
            if let Some(array) = arrays.get_mut(id.0 as usize) {
                array.align = array.align.max(MATRIX_ALIGN);
            }
        }
    });
}

/// Whether a nest has instructions of warps.
fn has_any(nest: &Nest) -> bool {
    let mut found = false;
    nest.leaves(&mut |leaf, _| found |= leaf.instruction.is_some());
    found
}

/// Where threads have no lanes, 32 of them; else threadIdx.x must be whole warps.
pub fn lanes(nest: &mut Nest) -> Result<(), LowerError> {
    if !has_any(nest) {
        return Ok(());
    }
    let lanes = nest.threads.iter().find(|t| t.tag == LANE_TAG).map(|t| t.extent);
    match lanes {
        None => {
            let extent = nest.lanes;
            let (var, index) = (nest.fresh(extent), Index::ThreadIdx(kernel::Dim::X));
            let (tag, first_loop) = (LANE_TAG.to_string(), "the lanes of a warp".to_string());
            nest.threads.push(super::nest::Thread { tag, var, extent, index, block: true, first_loop });
            Ok(())
        }
        Some(extent) if extent == nest.lanes || extent % nest.lanes == 0 && nest.lanes == LANES => Ok(()),
        Some(extent) => Err(LowerError::Unsupported {
            what: format!("instructions on matrices in blocks of {extent} threads along threadIdx.x"),
            place: At::default(),
            remedy: format!(
                "{0} neighbours there multiply together: bind loops of {0} to threadIdx.x, or none",
                nest.lanes
            ),
        }),
    }
}

pub const LANE_TAG: &str = "threadIdx.x";

impl Nest {
    /// Whether an index is the same for all lanes of a warp.
    pub(super) fn is_uniform(&self, form: &Linear) -> bool {
        let Some(lane) = self.threads.iter().find(|t| t.tag == LANE_TAG) else { return true };
        let of_lanes = |atom: &Atom| atom.uses(&|v| v == lane.var);
        let of_warps = |atom: &Atom| match atom {
            Atom::Div(number, by) => by % LANES == 0 && **number == Linear::var(lane.var),
            _ => false,
        };
        form.terms.iter().all(|(atom, _)| !of_lanes(atom) || of_warps(atom))
    }
}

/// Of a leaf that is an instruction: the condition under which one of several warps that would write the same does. None of any other leaf.
pub fn one_warp(nest: &Nest, leaf: &Leaf, var: VarId) -> Option<Vec<Pred>> {
    leaf.instruction.as_ref()?;
    let thread = nest.thread(var).filter(|t| t.tag == LANE_TAG)?;
    let warp = Linear::var(thread.var).divided(LANES, &nest.ranges);
    Some(Pred::eq(&warp, &nest.ranges))
}

impl Emitter<'_> {
    /// The instruction that loops are, where they are one.
    pub(super) fn instruction(&mut self, leaf: &Leaf, what: &Instruction) -> Result<Vec<kernel::Stmt>, LowerError> {
        let refused = |why: &str| strange(&what.name, &leaf.block, why);
        let Guarding { when, zero } = self.guarding.get(&leaf.id).cloned().unwrap_or_default();
        let per_element =
            |p: &Pred| !p.forms(&mut |form| self.nest.is_uniform(form)) || p.uses(&|v| what.loops.contains(&v));
        if !zero.is_empty() || when.iter().any(per_element) {
            return Err(refused("a condition leaves out some of a matrix (pad_einsum makes whole ones)"));
        }
        let step = match what.what {
            What::Fragments(step) => step,
            What::Multiply(multiplication) => return self.multiply(leaf, what, multiplication, &when),
            What::Together(of) => return self.multiply_together(leaf, what, of, &when),
            What::Hold => return self.hold(leaf, what, &when),
            What::Matrices => return Err(refused("its matrices are not whole")),
            What::Fetch => return self.fetch(leaf, what),
        };
        let accesses = leaf.reads.iter().map(|(b, at)| (*b, at)).chain([(leaf.target, &leaf.at)]);
        let (mut held, mut memory) = (Vec::new(), None);
        for (b, at) in accesses {
            if !at.iter().all(|form| self.nest.is_uniform(form)) {
                return Err(refused("lanes have different indices"));
            }
            let scope = self.program.buffer(b).scope.as_str();
            match is_fragment(scope) {
                true => held.push((scope, self.fragment(b, at, leaf, what)?)),
                false => memory = Some(self.matrix(b, at, leaf, (what, step))?),
            }
        }
        let missing = || refused("it has other operands");
        let op = held.last().map(|(_, (_, op))| *op).ok_or_else(missing)?;
        let place = |scope: &str| {
            held.iter().find(|(s, _)| *s == scope).map(|(_, (place, _))| place.clone()).ok_or_else(missing)
        };
        let op = match step {
            Step::Fill(_) => WmmaOp::Zero { op, d: place("wmma.accumulator")? },
            Step::Load(_, side, transposed) => {
                let (src, stride) = memory.ok_or_else(missing)?;
                let stride = u32::try_from(stride).map_err(|_| refused("lines are too far apart"))?;
                let dst = place(if side == Side::A { "wmma.matrix_a" } else { "wmma.matrix_b" })?;
                WmmaOp::Load { op, side, dst, src, stride, across: across(side, transposed) }
            }
            Step::Multiply(_, [a, b]) => WmmaOp::Multiply {
                op,
                d: place("wmma.accumulator")?,
                a: place("wmma.matrix_a")?,
                b: place("wmma.matrix_b")?,
                across: [across(Side::A, a), across(Side::B, b)],
            },
            Step::Store(_) => {
                let (dst, stride) = memory.ok_or_else(missing)?;
                WmmaOp::Store { op, dst, stride: stride as u64, src: place("wmma.accumulator")? }
            }
        };
        let cond = self.condition(&when);
        Ok(guarded(cond, vec![kernel::Stmt::Warp(WarpOp::Wmma(op))]))
    }

    /// The place of a matrix's first element, and how far apart its lines are.
    fn first(
        &self,
        form: &Linear,
        leaf: &Leaf,
        what: &Instruction,
        lines: &[VarId],
    ) -> Result<(Linear, i64), LowerError> {
        let refused = |why: &str| strange(&what.name, &leaf.block, why);
        let (mut rest, mut units) = (form.clone(), Vec::new());
        for v in lines {
            let (unit, without) =
                rest.split_var(*v).ok_or_else(|| refused("a matrix is no rows or columns of a buffer"))?;
            units.push(unit);
            rest = without;
        }
        match units.as_slice() {
            [stride, 1] if *stride > 0 => Ok((rest, *stride)),
            _ => Err(refused("the elements of a matrix's line are no neighbours")),
        }
    }

    /// A matrix in memory, and how far apart its lines are.
    fn matrix(
        &mut self,
        b: BufferId,
        at: &[Linear],
        leaf: &Leaf,
        (what, step): (&Instruction, Step),
    ) -> Result<(Place, i64), LowerError> {
        let (array, form) = self.element(b, at)?;
        let (first, stride) = self.first(&form, leaf, what, &what.loops)?;
        let bytes = self.array(array).dtype.bytes();
        let elements = match step {
            Step::Load(op, side, _) => op.elements(side),
            Step::Fill(op) | Step::Multiply(op, _) | Step::Store(op) => op.sums(),
        };
        let start = first.scaled(bytes.into());
        let stride_bytes = stride * i64::from(bytes);
        let alignments = Wmma::alignments(elements * bytes);
        let fits = |[first, lines]: [u32; 2]| start.multiple_of(first.into()) && stride_bytes % i64::from(lines) == 0;
        if !alignments.into_iter().any(fits) {
            let name = &self.program.buffer(b).name;
            let [[all, _], [first, lines]] = alignments;
            let why = format!(
                "matrices of {name}, whose lines are {stride_bytes} bytes apart, do not begin at multiples of {first} bytes with lines at \
                 multiples of {lines}, nor both of {all} (storage_align sets that)"
            );
            return Err(strange(&what.name, &leaf.block, &why));
        }
        Ok(((array, self.index(array, &first, "matrix")), stride))
    }

    /// A fragment, and the instruction that multiplies it.
    fn fragment(
        &mut self,
        b: BufferId,
        at: &[Linear],
        leaf: &Leaf,
        what: &Instruction,
    ) -> Result<(Place, Wmma), LowerError> {
        let refused = |why: &str| strange(&what.name, &leaf.block, why);
        let held = self.fragments.get(&b).copied().ok_or_else(|| refused("it has other operands"))?;
        let (array, form) = self.of_one(b, at)?;
        // Rows before columns, as the buffer has them.
        let unit = |v: &VarId| form.split_var(*v).map_or(0, |(unit, _)| unit);
        let mut lines: Vec<VarId> = what.loops.iter().copied().filter(|v| form.uses(&|x| x == *v)).collect();
        lines.sort_by_key(|v| std::cmp::Reverse(unit(v)));
        let (first, pitch) = self.first(&form, leaf, what, &lines)?;
        let block = held.rows * pitch;
        let ranges = &self.nest.ranges;
        let (above, beside) = (first.divided(block, ranges), first.remainder(block, ranges));
        if pitch % held.columns != 0 || !beside.multiple_of(held.columns) || beside.range(ranges).1 >= pitch {
            return Err(refused("a fragment begins within another"));
        }
        let number = above.scaled(pitch / held.columns).plus(&beside.divided(held.columns, ranges), 1);
        let index = self.plain_index(&number.scaled(held.per_lane).plus(&self.turn(b), 1));
        Ok(((array, index), held.op))
    }
}

/// An element of an array.
type Place = (ArrayId, Index);

/// Whether the lines of an operand's matrix run across k.
fn across(side: Side, transposed: bool) -> bool {
    match side {
        Side::A => transposed,
        Side::B => !transposed,
    }
}
