//! Buffers that the lanes of a warp hold (scope `warp`): the last two dimensions are lanes, and registers of each.
//!
//! A loop over elements is a loop of each lane over those elements that it holds:
//!
//! ```text
//!   for i, j in T.grid(16, 16):                            for a, b, e in T.grid(2, 2, 2):        # by lane l
//!       C[i, j] = W[4 * (i % 8) + j % 8 // 2,        ->        C[a * 8 + l // 4, b * 8 + l % 4 * 2 + e] = W[l, 4 * b + 2 * a + e]
//!                   4 * (j // 8) + i // 8 * 2 + j % 2]
//! ```
//! The bits of a lane's number have to be bits of the loops' variables, as they are wherever matrix instructions hold elements. All other
//! bits count what a lane holds. A lane's own registers are all that it reads and writes, so that the dimension of lanes goes; only an
//! instruction of the whole warp (see [`super::mma`]) crosses lanes.
use super::build::{Around, Builder};
use super::error::{At, LowerError};
use super::group::THREADS;
use super::linear::Linear;
use super::matrix::{Instruction, What, LANE_TAG};
use super::nest::{flag, Loop, LoopKind, Nest, Node};
use super::pred::{join, range_of_parts, Pred};
use super::shared::is_shared;
use super::tensor_memory::is_tensor;
use satune_ir::affine::{constant, int};
use satune_ir::layout;
use satune_ir::{
    visit, Annotations, Attr, BinOp, BlockRealize, Buffer, BufferId, DType, Expr, For, ForKind, Program, Stmt, Var,
    VarId,
};
use satune_rewrites::intrinsics::{mma, INTRINSIC};
use satune_rewrites::keys;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What a buffer that lanes hold is to the instructions that multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Operand,
    Sums,
}

/// Whether lanes hold buffers of a scope.
pub fn is_held(scope: &str) -> bool {
    scope == "warp"
}

/// The buffers of instructions that multiply.
///
/// # Errors
/// Where something else than TVM's loads fills an operand of TVM's multiplications, whose descriptions agree with each other on where
/// registers are, and not with where lanes have them.
pub fn roles(program: &Program, stmt: &Stmt) -> Result<HashMap<BufferId, Role>, LowerError> {
    let (mut roles, mut paired) = (HashMap::new(), HashSet::new());
    // Accesses in intrinsics, and all.
    let mut counts: HashMap<BufferId, [usize; 2]> = HashMap::new();
    let count = |s: &Stmt, at: usize, counts: &mut HashMap<BufferId, [usize; 2]>| {
        let Stmt::Store { buffer, value, .. } = s else { return };
        for b in visit::loads(value).into_iter().map(|(b, _)| b).chain([*buffer]) {
            counts.entry(b).or_default()[at] += 1;
        }
    };
    visit::walk_stmt(stmt, &mut |s| {
        count(s, 1, &mut counts);
        let Stmt::Realize(r) = s else { return };
        let Some(Attr::Str(name)) = r.block.annotations.get(INTRINSIC) else { return };
        let multiplies = super::matrix::named(name).is_some_and(|i| i.is_of_lanes());
        visit::walk_stmt(&r.block.body, &mut |s| {
            count(s, 0, &mut counts);
            let Stmt::Store { buffer, value, .. } = s else { return };
            if multiplies {
                let operands = visit::loads(value).into_iter().map(|(b, _)| b).filter(|b| b != buffer);
                operands.for_each(|b| {
                    roles.insert(b, Role::Operand);
                    paired.extend(mma::pair(name).map(|_| b));
                });
                roles.insert(*buffer, Role::Sums);
            }
        });
    });
    roles.retain(|b, _| is_held(&program.buffer(*b).scope));
    // What warps take of tensor memory are sums, too.
    visit::walk_stmt(stmt, &mut |s| {
        let Stmt::Store { buffer, value: Expr::Load(from, _), .. } = s else { return };
        if is_held(&program.buffer(*buffer).scope) && is_tensor(&program.buffer(*from).scope) {
            roles.insert(*buffer, Role::Sums);
        }
    });
    let strange = |b: &&BufferId| counts.get(*b).is_some_and(|[known, all]| known != all);
    match paired.iter().filter(strange).min() {
        None => Ok(roles),
        Some(b) => Err(LowerError::Unsupported {
            what: format!("an access to {}, which mma.sync multiplies, by no intrinsic", program.buffer(*b).name),
            place: At::default(),
            remedy: "tensorize its loads with mma_ldmatrix".into(),
        }),
    }
}

impl Nest {
    /// Whether a lane has a buffer's elements in whole words, as instructions take them.
    pub fn is_packed(&self, program: &Program, b: BufferId) -> bool {
        match self.roles.get(&b) {
            Some(Role::Operand) => true,
            Some(Role::Sums) => program.buffer(b).dtype.bytes() < 4,
            None => false,
        }
    }
}

/// A loop over elements: the bits of its variable that tell lanes apart, or count what a lane holds, are its low ones.
struct Elements<'l> {
    of: &'l For,
    extent: i64,
    /// Values of the low bits.
    low: i64,
}

/// A low bit of a loop's variable, and the bit of the lane's number that it is.
struct Bit {
    of: usize,
    at: u32,
    lane: Option<u32>,
    /// How much further in the lane's registers it leads, where that is known.
    registers: Option<i64>,
}

impl Builder<'_> {
    fn is_held(&self, b: BufferId) -> bool {
        self.program.buffers.get(b.0 as usize).is_some_and(|b| is_held(&b.scope))
    }

    /// The lane of a thread.
    fn lane(&mut self) -> Result<VarId, LowerError> {
        self.thread(LANE_TAG, self.nest.lanes, "threads that multiply matrices together")
    }

    /// Loops with one block in them over elements that lanes hold. None where they are not.
    pub(super) fn over_lanes(&mut self, stmt: &Stmt, around: &Around) -> Result<Option<Vec<Node>>, LowerError> {
        let known = around.multiplies || around.of_own_lane;
        let Some((mut fors, inner, r)) = chain(stmt).filter(|_| !known) else { return Ok(None) };
        let Stmt::Store { buffer, indices, value } = r.block.body.as_ref() else { return Ok(None) };
        let stored = [(*buffer, indices.clone())];
        let Some((_, at)) = stored.into_iter().chain(visit::loads(value)).find(|(b, _)| self.is_held(*b)) else {
            return Ok(None);
        };
        let [.., lane, register] = at.as_slice() else { return Ok(None) };
        // The lane of an element, by the loops' variables.
        let (mut values, mut vars) = (around.values.clone(), Vec::new());
        for (of, extent) in &fors {
            let id = self.nest.fresh(*extent);
            vars.push(id);
            values.insert(of.var.id, Expr::Var(Var { id, name: of.var.name.clone(), dtype: of.var.dtype }));
        }
        for (iv, value) in r.block.iter_vars.iter().zip(&r.iter_values) {
            let value = visit::substitute(value, &values);
            values.insert(iv.var.id, value);
        }
        let places = [lane, register].map(|at| visit::substitute(at, &values));
        let register = Linear::of_expr(&places[1], &self.nest.ranges);
        let lane = self.forms(&places[..1], &r.block.name)?.remove(0);
        if !lane.uses(&|v| vars.contains(&v)) && lane.as_constant().is_none() {
            return Ok(None);
        }
        // The lane's number may be one of those elements alone that exist.
        let within = Around { values: values.clone(), ..around.clone() };
        let clauses = self.clauses(&r.predicate, &within)?;
        for ((_, extent), v) in fors.iter_mut().zip(&vars) {
            *extent =
                range_of_parts(&Linear::var(*v), &clauses, &self.nest.ranges).1.saturating_add(1).clamp(1, *extent);
        }
        let lane = self.where_all_hold(&lane, &clauses);
        let Some((loops, bits, first)) = self.told_apart(&fors, &vars, &lane, register.as_ref()) else {
            return Err(LowerError::Unsupported {
                what: "a buffer of scope warp whose lanes are no bits of the loops' variables".into(),
                place: At::block(&r.block.name),
                remedy: "index its last but one dimension as fragments of mma.sync have it".into(),
            });
        };
        let packed = self.nest.is_packed(self.program, *buffer);
        let word = packed.then(|| i64::from(4 / self.program.buffer(*buffer).dtype.bytes().clamp(1, 4)));
        // Those that multiply together store matrices wherever it can be.
        let by_matrices = flag(&r.block.annotations, keys::STMATRIX) || self.nest.lanes == THREADS;
        let held = match (word, by_matrices && self.takes_matrices(*buffer)) {
            (Some(word), _) => Some((word, What::Hold)),
            (_, true) => Some((2, What::Matrices)),
            _ => None,
        };
        self.of_each_lane(&loops, (&bits, first), inner, held, around).map(Some)
    }

    /// A form with what clauses leave but one value of.
    fn where_all_hold(&self, form: &Linear, clauses: &[Pred]) -> Linear {
        let (kept, mut rest) = (form.shifted(-form.constant), Linear::of(form.constant));
        for (atom, count) in kept.terms {
            let one = Linear { terms: vec![(atom, 1)], constant: 0 };
            let (least, most) = range_of_parts(&one, clauses, &self.nest.ranges);
            rest = if least == most { rest.shifted(count.saturating_mul(least)) } else { rest.plus(&one, count) };
        }
        rest
    }

    /// Whether a form is the lane's number, of every lane for which conditions hold.
    fn is_own(&self, form: &Linear, lane: VarId, guards: &[Pred]) -> bool {
        let ranges = &self.nest.ranges;
        *form == Linear::var(lane)
            || (0..self.nest.lanes).all(|number| {
                let map = HashMap::from([(lane, Linear::of(number))]);
                let guards: Vec<Pred> =
                    guards.iter().map(|p| p.map(&mut |form| form.substitute(&map, ranges))).collect();
                let never = |p: &Pred| match p {
                    Pred::Lt(form, bound) => form.range(ranges).0 >= *bound,
                    Pred::Eq(form, value) => form.as_constant().is_some_and(|form| form != *value),
                    _ => false,
                };
                guards.iter().any(never)
                    || self.where_all_hold(&form.substitute(&map, ranges), &guards).as_constant() == Some(number)
            })
    }

    /// Which bits of the loops' variables are the lane's, and the lane of the first element.
    fn told_apart<'l>(
        &self,
        fors: &[(&'l For, i64)],
        vars: &[VarId],
        lane: &Linear,
        register: Option<&Linear>,
    ) -> Option<(Vec<Elements<'l>>, Vec<Bit>, i64)> {
        let lane_at = |point: &[i64]| {
            let map = vars.iter().zip(point).map(|(v, n)| (*v, Linear::of(*n))).collect();
            Some([lane.substitute(&map, &self.nest.ranges).as_constant()?])
        };
        let extents: Vec<i64> = fors.iter().map(|(_, extent)| *extent).collect();
        let digits = layout::digits(&extents, &lane_at)?;
        let elements = |((of, extent), digits): (&(&'l For, i64), &Vec<_>)| Elements {
            of,
            extent: *extent,
            low: 1 << digits.len(),
        };
        let loops = fors.iter().zip(&digits).map(elements).collect();
        let registers = |of: usize, at: u32| {
            let number = |n| {
                let at = vars.iter().enumerate().map(|(d, v)| (*v, Linear::of(if d == of { n } else { 0 }))).collect();
                register.map(|form| form.substitute(&at, &self.nest.ranges))
            };
            number(1 << at)?.plus(&number(0)?, -1).as_constant()
        };
        let mut bits = Vec::new();
        for (of, digits) in digits.iter().enumerate() {
            bits.extend((0..).zip(digits).map(|(at, bit)| {
                let lane = bit.map(|(_, lane)| lane);
                Bit { of, at, lane, registers: registers(of, at) }
            }));
        }
        let [first] = lane_at(&vec![0; vars.len()])?;
        Some((loops, bits, first))
    }

    /// The loops of each lane: over what is beyond the low bits, then over those of the low bits that are not the lane's.
    fn of_each_lane(
        &mut self,
        loops: &[Elements<'_>],
        (bits, first): (&[Bit], i64),
        inner: &Stmt,
        // Elements of a word that go together, and to where.
        word: Option<(i64, What)>,
        around: &Around,
    ) -> Result<Vec<Node>, LowerError> {
        let lane = self.lane()?;
        let mut inside = Around { of_own_lane: true, ..around.clone() };
        // Where there are few elements, lanes whose other bits differ hold none.
        for bit in (0..self.nest.lanes.ilog2()).filter(|bit| bits.iter().all(|own| own.lane != Some(*bit))) {
            let own = Linear::var(lane).divided(1 << bit, &self.nest.ranges).remainder(2, &self.nest.ranges);
            join(&mut inside.guards, Pred::eq(&own.shifted(-(first >> bit & 1)), &self.nest.ranges));
        }
        let mut made: Vec<(VarId, String, i64, LoopKind)> = Vec::new();
        // Neighbours first: of a word, or of the innermost loop.
        let mut counting: Vec<&Bit> = bits.iter().filter(|bit| bit.lane.is_none()).collect();
        counting.sort_by_key(|bit| (std::cmp::Reverse(bit.of), bit.at));
        let innermost = counting.first().map(|bit| bit.of);
        let is_near = |bit: &&Bit| match word {
            Some((word, _)) => bit.registers.is_some_and(|by| (1..word).contains(&by)),
            None => Some(bit.of) == innermost,
        };
        let (mut near, far): (Vec<&Bit>, Vec<&Bit>) = counting.into_iter().partition(is_near);
        if word.is_some() {
            near.sort_by_key(|bit| bit.registers);
        }
        let counted = [far, near].map(|bits| (self.nest.fresh(1 << bits.len()), bits));
        for (d, Elements { of, extent, low }) in loops.iter().enumerate() {
            let var = |id: VarId| Expr::Var(Var { id, name: of.var.name.clone(), dtype: of.var.dtype });
            let number = |n: i64| int(n, of.var.dtype);
            let binary = |op, a: Expr, b: Expr| Expr::Binary(op, Arc::new(a), Arc::new(b));
            let digit = |of: VarId, from: u32, count: u32, to: u32| {
                let above = binary(BinOp::FloorDiv, var(of), number(1 << from));
                binary(BinOp::Mul, binary(BinOp::FloorMod, above, number(1 << count)), number(1 << to))
            };
            let mut value = number(0);
            if extent > low {
                let beyond = (extent + low - 1) / low;
                let id = self.nest.fresh(beyond);
                let kind = if of.kind == ForKind::Unrolled { LoopKind::Unrolled } else { LoopKind::Serial };
                made.push((id, of.var.name.to_string(), beyond, kind));
                value = binary(BinOp::Mul, var(id), number(*low));
            }
            // Neighbouring bits of one number that are neighbouring bits of the other: of which, from, how many, to.
            let mut digits: Vec<(VarId, u32, u32, u32)> = Vec::new();
            for own in bits.iter().filter(|own| own.of == d) {
                let count = |(id, bits): &(VarId, Vec<&Bit>)| {
                    let place = bits.iter().position(|bit| (bit.of, bit.at) == (d, own.at));
                    place.map(|place| (*id, place as u32))
                };
                let by_lane = own.lane.map(|from| (lane, from));
                let Some((of, from)) = by_lane.or_else(|| counted.iter().find_map(count)) else { continue };
                match digits.last_mut() {
                    Some((same, first, count, to))
                        if *same == of && *first + *count == from && *to + *count == own.at =>
                    {
                        *count += 1;
                    }
                    _ => digits.push((of, from, 1, own.at)),
                }
            }
            for (of, from, count, to) in digits {
                value = binary(BinOp::Add, value, digit(of, from, count, to));
            }
            if extent % low != 0 {
                let exists = self.clauses(&binary(BinOp::Lt, value.clone(), number(*extent)), &inside)?;
                join(&mut inside.guards, exists);
            }
            inside.values.insert(of.var.id, value);
        }
        for ((id, bits), kind) in counted.iter().zip([LoopKind::Unrolled, LoopKind::Vectorized]) {
            if !bits.is_empty() {
                made.push((*id, "held".into(), 1 << bits.len(), kind));
            }
        }
        let mut nodes = self.stmt(inner, &inside)?;
        if let ([Node::Leaf(leaf)], false) = (nodes.as_mut_slice(), made.is_empty()) {
            let in_memory = |(b, _): &(BufferId, _)| is_tensor(&self.program.buffer(*b).scope);
            let what = match word {
                _ if self.is_held(leaf.target) && leaf.reads.iter().any(in_memory) => Some(What::Fetch),
                _ => word.map(|(_, what)| what),
            };
            let loops = made.iter().map(|(id, ..)| *id).collect();
            leaf.instruction = what.map(|what| Arc::new(Instruction { name: "a fragment".into(), what, loops }));
        }
        Ok(made.into_iter().rev().fold(nodes, |body, (var, name, extent, kind)| {
            let child_sizes = vec![body.len()];
            vec![Node::Loop(Loop {
                var,
                name,
                extent,
                steps: None,
                kind,
                annotations: Annotations::new(),
                body,
                child_sizes,
            })]
        }))
    }

    /// Whether `stmatrix` stores a buffer's elements.
    fn takes_matrices(&self, b: BufferId) -> bool {
        let takes = |b: &Buffer| is_shared(&b.scope) && matches!(b.dtype, DType::F16 | DType::BF16);
        self.program.buffers.get(b.0 as usize).is_some_and(takes)
    }

    /// Whether a statement accesses what lanes hold.
    pub(super) fn of_lanes(&self, stmt: &Stmt) -> bool {
        let mut found = false;
        visit::walk_stmt(stmt, &mut |s| {
            if let Stmt::Store { buffer, value, .. } = s {
                found |= self.is_held(*buffer) || visit::loads(value).iter().any(|(b, _)| self.is_held(*b));
            }
        });
        found
    }

    /// A value, registers in it as [`Builder::of_own_lane`] has them.
    pub(super) fn of_own_lanes(&mut self, value: Expr, around: &Around) -> Result<Expr, LowerError> {
        let held: HashSet<BufferId> =
            visit::loads(&value).into_iter().map(|(b, _)| b).filter(|b| self.is_held(*b)).collect();
        held.into_iter().try_fold(value, |value, b| {
            let mut failed = None;
            let value = visit::replace_loads(&value, b, &mut |at| match self.of_own_lane(b, at, around) {
                Ok(at) => Expr::Load(b, at),
                Err(error) => {
                    failed = Some(error);
                    Expr::Load(b, Vec::new())
                }
            });
            failed.map_or(Ok(value), Err)
        })
    }

    /// The indices of an access: of a buffer that lanes hold, those of a lane's own registers.
    pub(super) fn of_own_lane(&mut self, b: BufferId, at: Vec<Expr>, around: &Around) -> Result<Vec<Expr>, LowerError> {
        let Some(d) = at.len().checked_sub(2).filter(|_| self.is_held(b)) else { return Ok(at) };
        let lane = self.lane()?;
        if !around.multiplies {
            // Conditions are on digits of a warp's number, which are one number once they are joined.
            let digits = self.forms(&at[d..=d], &around.block)?.remove(0);
            let own = self.where_all_hold(&digits, &around.guards).joined(&self.nest.ranges);
            if !self.is_own(&own, lane, &around.guards) {
                return Err(LowerError::Unsupported {
                    what: format!("a register of {} that another lane of the warp holds", self.program.buffer(b).name),
                    place: At::block(&around.block),
                    remedy: "a lane reads and writes its own; instructions of mma.sync alone cross lanes".into(),
                });
            }
        }
        let mut at = at;
        at[d] = int(0, satune_ir::affine::index_type(&at[d]));
        for (tile, index) in at.iter_mut().enumerate().filter(|(tile, _)| *tile != d) {
            *index = self.of_own_tile((b, tile), index.clone(), around)?;
        }
        Ok(at)
    }

    /// An index of tiles and registers that warps hold, which names the warp as the first access does. Where conditions leave one
    /// value of what names it, a program may have that value instead.
    fn of_own_tile(&mut self, tile: (BufferId, usize), index: Expr, around: &Around) -> Result<Expr, LowerError> {
        let names_warp = |this: &Self, e: &Expr| {
            let mut zeros = HashMap::new();
            visit::walk_expr(e, &mut |e| {
                if let Expr::Var(v) = e {
                    if this.nest.thread(v.id).is_none() {
                        zeros.insert(v.id, int(0, v.dtype));
                    }
                }
            });
            visit::substitute(e, &zeros)
        };
        let own = names_warp(self, &index);
        let Some(first) = self.own_tiles.get(&tile).cloned() else {
            self.own_tiles.insert(tile, own);
            return Ok(index);
        };
        let between = Expr::Binary(BinOp::Sub, Arc::new(first), Arc::new(own));
        let difference = self.forms(std::slice::from_ref(&between), &around.block)?.remove(0);
        match self.where_all_hold(&difference, &around.guards).as_constant() {
            Some(constant) if difference.as_constant().is_none() => {
                let constant = int(constant, satune_ir::affine::index_type(&index));
                let moved = Expr::Binary(BinOp::Sub, Arc::new(between), Arc::new(constant));
                Ok(Expr::Binary(BinOp::Add, Arc::new(index), Arc::new(moved)))
            }
            _ => Ok(index),
        }
    }
}

/// Loops in each other around one block: with their extents, the block as a statement, and the block.
#[allow(clippy::type_complexity)]
pub fn chain(mut stmt: &Stmt) -> Option<(Vec<(&For, i64)>, &Stmt, &BlockRealize)> {
    let mut loops = Vec::new();
    loop {
        match stmt {
            Stmt::For(l) => {
                let plain = matches!(l.kind, ForKind::Serial | ForKind::Unrolled | ForKind::Vectorized);
                let extent = constant(&l.extent);
                let extent = extent.filter(|n| plain && (1..=1 << 12).contains(n) && constant(&l.min) == Some(0))?;
                loops.push((l, extent));
                stmt = &l.body;
            }
            Stmt::Realize(r) => return r.block.init.is_none().then_some((loops, stmt, r)),
            _ => return None,
        }
    }
}
