//! A program that is scheduled already, as the one that it schedules.
//!
//! before                                                       after
//!   C_local = T.alloc_buffer((n, n), scope="local")              for i, j, k in T.grid(n, n, n):
//!   for b in T.thread_binding(n * n // 64, "blockIdx.x"):            C[i, j] = C[i, j] + A[i, k] * B[k, j]    init 0
//!     for t in T.thread_binding(64, "threadIdx.x"):
//!       C_local[i, j] = 0                      i, j of b and t
//!       for k in range(n):
//!         C_local[i, j] = C_local[i, j] + A[i, k] * B[k, j]
//!       C[i, j] = C_local[i, j]
//!
//! A block says over which values its iterators run, whatever loops are around it: the nest over just these is what it was before
//! `split`, `reorder`, `fuse`, `bind`, `compute_at` and `blockize`. Then, among blocks that a schedule has moved, what other primitives
//! made is taken back: an init that stands apart (`decompose_reduction`), copies through buffers that are not in global memory
//! (`cache_read`, `cache_write`, `reindex`), and partial sums (`rfactor`).
//!
//! What comes of it is a guess: a schedule need not go through all values, nor in an order that gives the same. So it counts only where
//! the check of scheduled programs finds that the given program is a schedule of it ([`soundness`]).
use super::lanes::as_matrices;
use super::nests::{is_fixed, misdeclared, nest_of, nest_over, parts, touches, unused};
use crate::arith::Domains;
use crate::compute_inline::compute_inline;
use crate::intrinsics::described;
use crate::iter_map;
use crate::linear::{all, conjuncts, Linear};
use crate::schedule::Schedule;
use crate::tree::{self, child_realizes, has_blocks};
use crate::{regions, soundness, views};
use satune_ir::affine::simplify::{decided, simplified};
use satune_ir::affine::value_of;
use satune_ir::affine::{constant, int};
use satune_ir::{
    fields, visit, BinOp, Block, BlockId, BufferId, DType, Expr, IterKind, IterVar, Program, Range, Stmt, VarId,
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// The program of which this is a schedule; of one that is none, itself. Blocks that say to access something else than they do are taken
/// for what they do.
///
/// # Errors
/// Why that cannot be told, for people.
pub(super) fn unscheduled(program: &Program) -> Result<Program, String> {
    let parts = parts(program);
    if parts.iter().all(|part| is_plain(program, part) || misdeclared(program, part)) {
        let mut out = program.clone();
        let nests = parts.into_iter().map(|part| redeclared(&mut out, part)).collect();
        *out.body.block.body = Stmt::seq(nests);
        return Ok(named_apart(out));
    }
    let mut plain = described(program);
    views::seen_through(&mut plain.body.block.body);
    let mut scheduled = plain.clone();
    as_matrices(&mut scheduled)?;
    let made = Undone::of(&scheduled)?.program()?;
    soundness::check(&made, &plain).map(|()| made).map_err(|e| e.detail.clone())
}

/// Blocks of one name with names of their own, which are not that of the block around them all.
fn named_apart(mut program: Program) -> Program {
    let mut names = BTreeSet::from([program.body.block.name.clone()]);
    tree::each_realize_mut(&mut program.body.block.body, &mut |r| {
        r.block.name = unused(&r.block.name, |name| names.contains(name));
        names.insert(r.block.name.clone());
    });
    program
}

/// A plain nest whose block declares what it accesses.
fn redeclared(out: &mut Program, part: &Stmt) -> Stmt {
    if !misdeclared(out, part) {
        return part.clone();
    }
    let mut leaves = Vec::new();
    match leaves_of(part, &Around::nothing(), &mut leaves) {
        Ok(()) if leaves.len() == 1 => leaves[0].nest(out, leaves[0].block.name.clone()),
        _ => part.clone(),
    }
}

/// A block without others or the init of one that has others, its own iterators, and those of the blocks around it.
struct Leaf<'p> {
    block: &'p Block,
    own: &'p [IterVar],
    around: Vec<&'p IterVar>,
    init: Option<&'p Stmt>,
    body: &'p Stmt,
}

impl Leaf<'_> {
    /// Refuses what uses more than iterators, its own loops and buffers.
    fn moves(&self) -> Result<(), String> {
        let iters = self.around.iter().copied().chain(self.own);
        let mut known: HashSet<VarId> = iters.map(|iv| iv.var.id).collect();
        let parts: Vec<&Stmt> = self.init.into_iter().chain([self.body]).collect();
        let mut opaque = false;
        for part in &parts {
            visit::walk_stmt(part, &mut |s| match s {
                Stmt::For(l) => _ = known.insert(l.var.id),
                Stmt::Let { var, .. } => _ = known.insert(var.id),
                s => opaque |= matches!(s, Stmt::Evaluate(_)),
            });
        }
        for part in &parts {
            visit::walk_stmt_exprs(part, &mut |e| {
                opaque |= visit::uses_var(e, &|v| !known.contains(&v));
                visit::walk_expr(e, &mut |e| opaque |= fields::of(e).is_some());
            });
        }
        match opaque {
            false => Ok(()),
            true => Err(format!("block `{}` calls, or uses, what nothing is known of", self.block.name)),
        }
    }

    /// Refuses a sum that does not go over all values of its iterators, each once: among the sums of all elements, or at least in each.
    /// The check of scheduled programs does not ask.
    fn sums_once(&self, inside: &Around) -> Result<(), String> {
        let all: Vec<&IterVar> = self.around.iter().copied().filter(|iv| self.uses(iv)).chain(self.own).collect();
        let sums: Vec<&IterVar> = all.iter().copied().filter(|iv| iv.kind == IterKind::Reduce).collect();
        if sums.is_empty() || inside.each_once(&all) || inside.each_once(&sums) {
            return Ok(());
        }
        let over: Vec<&str> = sums.iter().map(|iv| &*iv.var.name).collect();
        let over = over.join(", ");
        Err(format!("the loops around block `{}` do not take {over} through all values, each once", self.block.name))
    }

    fn uses(&self, iv: &IterVar) -> bool {
        let mut found = false;
        self.init.iter().chain([&self.body]).for_each(|s| {
            visit::walk_stmt_exprs(s, &mut |e| found |= visit::uses_var(e, &|v| v == iv.var.id));
        });
        found
    }

    /// The nest over its own iterators, and over those around it that it uses.
    fn nest(&self, out: &mut Program, name: String) -> Stmt {
        let around = self.around.iter().filter(|iv| self.uses(iv)).map(|iv| (*iv).clone());
        let more = |iv: &&IterVar| constant(&iv.extent) != Some(1) || self.uses(iv);
        let iters: Vec<IterVar> = around.chain(self.own.iter().filter(more).cloned()).collect();
        nest_of_parts(out, name, (iters, self.init.cloned(), self.body.clone()))
    }
}

/// Whether a nest is one block without others under a loop for each of its iterators.
fn is_plain(program: &Program, part: &Stmt) -> bool {
    nest_of(program, part).is_ok_and(|nest| !has_blocks(&nest.block.body))
}

/// What is around a statement.
#[derive(Clone)]
struct Around<'p> {
    /// Iterators of blocks, and their values in terms of loops.
    iters: Vec<&'p IterVar>,
    values: HashMap<VarId, Expr>,
    loops: Domains,
    /// Under which it runs.
    predicate: Expr,
}

impl Around<'_> {
    fn nothing() -> Self {
        let predicate = Expr::Int(1, DType::Bool);
        Around { iters: Vec::new(), values: HashMap::new(), loops: Domains::new(), predicate }
    }

    /// Whether the loops go through all values of these iterators together, each once, where they go on at all.
    fn each_once(&self, iters: &[&IterVar]) -> bool {
        let values: Option<Vec<Expr>> = iters.iter().map(|iv| self.values.get(&iv.var.id).cloned()).collect();
        let Some(values) = values else { return false };
        let used = |v: VarId| values.iter().any(|e| visit::uses_var(e, &|x| x == v));
        let loops: Domains = self.loops.iter().filter(|(v, _)| used(**v)).map(|(v, r)| (*v, r.clone())).collect();
        // Guards of other loops say nothing of these values.
        let mut guards = conjuncts(&decided(&self.predicate, &self.loops));
        guards.retain(|guard| visit::uses_var(guard, &|v| loops.contains_key(&v)));
        if guards.iter().any(|guard| visit::uses_var(guard, &|v| !loops.contains_key(&v))) {
            return false;
        }
        let predicate = all(guards);
        iter_map::detect(&values, &loops, &predicate, true).is_some_and(|map| {
            let whole =
                |(at, iv): (usize, &&IterVar)| map.base_of(at) == Some(0) && map.extent_of(at) == constant(&iv.extent);
            map.is_injective(&loops) && iters.iter().enumerate().all(whole)
        })
    }
}

/// The blocks without others below a statement, in their order.
///
/// # Errors
/// Where there is something besides loops and blocks, or what cannot be moved.
fn leaves_of<'p>(stmt: &'p Stmt, around: &Around<'p>, out: &mut Vec<Leaf<'p>>) -> Result<(), String> {
    match stmt {
        Stmt::For(l) => {
            let mut around = around.clone();
            around.loops.insert(l.var.id, Range { min: l.min.clone(), extent: l.extent.clone() });
            leaves_of(&l.body, &around, out)
        }
        Stmt::Seq(parts) => parts.iter().try_for_each(|s| leaves_of(s, around, out)),
        Stmt::Realize(r) => {
            let block = &r.block;
            let known = |iv: &IterVar| constant(&iv.min) == Some(0) && constant(&iv.extent).is_some_and(|e| e > 0);
            let data = |iv: &IterVar| iv.kind.any_order() && known(iv);
            if !block.match_buffers.is_empty() {
                return Err(format!("block `{}` has a part of a buffer under another name", block.name));
            }
            if let Some(iv) = block.iter_vars.iter().find(|iv| !data(iv)) {
                let (iter, block) = (&iv.var.name, &block.name);
                return Err(format!(
                    "iterator `{iter}` of block `{block}` is no spatial one and no reduction's, from 0 to a constant"
                ));
            }
            let mut inside = around.clone();
            for (iv, value) in block.iter_vars.iter().zip(&r.iter_values) {
                inside.values.insert(iv.var.id, visit::substitute(value, &around.values));
            }
            let predicate = visit::substitute(&r.predicate, &around.values);
            inside.predicate = all([around.predicate.clone(), predicate].iter().flat_map(conjuncts));
            if !has_blocks(&block.body) {
                let (init, around) = (block.init.as_deref(), around.iters.clone());
                let leaf = Leaf { block, own: &block.iter_vars, around, init, body: &block.body };
                let moved = leaf.moves().and_then(|()| leaf.sums_once(&inside));
                out.push(leaf);
                return moved;
            }
            inside.iters.extend(&block.iter_vars);
            match &block.init {
                Some(init) if has_blocks(init) => leaves_of(init, &inside, out)?,
                Some(init) => {
                    let leaf = Leaf { block, own: &[], around: inside.iters.clone(), init: None, body: init };
                    let moved = leaf.moves();
                    out.push(leaf);
                    moved?;
                }
                None => {}
            }
            leaves_of(&block.body, &inside, out)
        }
        Stmt::Store { .. } | Stmt::If { .. } | Stmt::Let { .. } | Stmt::Evaluate(_) => {
            Err("a statement stands beside blocks, or between them and their loops".into())
        }
    }
}

/// `v < bound`.
fn below(e: &Expr) -> Option<(VarId, i64)> {
    match e {
        Expr::Binary(BinOp::Lt, a, b) => match &**a {
            Expr::Var(v) => Some((v.id, constant(b)?)),
            _ => None,
        },
        _ => None,
    }
}

/// From which value of an iterator on both factors of what an update adds are zeros.
fn zero_from(update: &Stmt, iterator: VarId) -> Option<i64> {
    fn cast(e: &Expr) -> &Expr {
        match e {
            Expr::Cast(_, e) => cast(e),
            e => e,
        }
    }
    let Stmt::Store { value: Expr::Binary(BinOp::Add, _, added), .. } = update else { return None };
    let Expr::Binary(BinOp::Mul, a, b) = cast(added) else { return None };
    let bound = |factor: &Expr| match cast(factor) {
        padded @ Expr::Select { cond, .. } if is_copied(padded) => {
            conjuncts(cond).iter().filter_map(below).filter(|(v, _)| *v == iterator).map(|(_, bound)| bound).min()
        }
        _ => None,
    };
    Some(bound(a)?.max(bound(b)?))
}

/// Whether a value is an element of a buffer, or one with zeros around it.
fn is_copied(value: &Expr) -> bool {
    match value {
        Expr::Load(..) => true,
        Expr::Select { then, otherwise, .. } => {
            let zero = match **otherwise {
                Expr::Int(n, _) => n == 0,
                Expr::Float(bits, _) => f64::from_bits(bits) == 0.0,
                _ => false,
            };
            zero && matches!(**then, Expr::Load(..))
        }
        _ => false,
    }
}

/// The nest of a block with as few iterators as do, spatial ones first.
fn nest_of_parts(out: &mut Program, name: String, parts: (Vec<IterVar>, Option<Stmt>, Stmt)) -> Stmt {
    let (mut iters, init, body) = joined(out, parts);
    iters.sort_by_key(|iv| iv.kind == IterKind::Reduce);
    nest_over(out, name, &iters, init, body)
}

/// What is the same with fewer iterators: of `outer * extent of inner + inner` one, where both are nothing else anywhere; it is what
/// `blockize` and `rfactor` part. Quotients and remainders of a reduction's iterator are iterators before.
fn joined(out: &mut Program, given: (Vec<IterVar>, Option<Stmt>, Stmt)) -> (Vec<IterVar>, Option<Stmt>, Stmt) {
    let (mut iters, mut init, mut body) = given;
    loop {
        let uses = Uses::of(&iters, init.iter().chain([&body]));
        let mut map: HashMap<VarId, Expr> = HashMap::new();
        if let Some((at, by)) = uses.digits(&iters) {
            let (of, dtype) = (iters[at].clone(), iters[at].var.dtype);
            let whole = constant(&of.extent).unwrap_or(1);
            let [high, low] = ["_0", "_1"].map(|part| out.fresh_var(format!("{}{part}", of.var.name), dtype));
            let of_high = Expr::Binary(BinOp::Mul, Expr::Var(high.clone()).into(), int(by, dtype).into());
            map.insert(of.var.id, Expr::Binary(BinOp::Add, of_high.into(), Expr::Var(low.clone()).into()));
            iters[at] = IterVar { var: high, extent: int(whole / by, dtype), ..of.clone() };
            iters.insert(at + 1, IterVar { var: low, extent: int(by, dtype), ..of });
        } else if let Some((outer, inner)) = uses.pair(&iters) {
            let extent = |at: usize| constant(&iters[at].extent).unwrap_or(1);
            let (all, dtype) = (extent(outer).saturating_mul(extent(inner)), iters[inner].var.dtype);
            let name = iters[outer].var.name.trim_end_matches("_o").trim_end_matches("_0").to_string();
            let var = out.fresh_var(name, dtype);
            map.insert(iters[outer].var.id, int(0, dtype));
            map.insert(iters[inner].var.id, Expr::Var(var.clone()));
            iters[outer] = IterVar { extent: int(all, dtype), var, ..iters[outer].clone() };
            iters.remove(inner);
        } else {
            return (iters, init, body);
        }
        let domains = regions::domains_of(&iters);
        let shorter = |s: &Stmt| visit::map_stmt_exprs(s, &mut |e| decided(&visit::substitute(e, &map), &domains));
        (init, body) = (init.as_ref().map(shorter), shorter(&body));
    }
}

/// How iterators are used.
#[derive(Default)]
struct Uses {
    /// In each sum of multiples, by what each of them is multiplied.
    sums: Vec<HashMap<VarId, i64>>,
    /// What each is divided by.
    divisors: HashMap<VarId, BTreeSet<i64>>,
    /// Those that are something else than divided by a number.
    whole: HashSet<VarId>,
}

impl Uses {
    fn of<'s>(iters: &[IterVar], parts: impl Iterator<Item = &'s Stmt>) -> Uses {
        let mut out = Uses::default();
        let ids: HashSet<VarId> = iters.iter().map(|iv| iv.var.id).collect();
        parts.for_each(|s| visit::walk_stmt_exprs(s, &mut |e| out.expr(e, &ids)));
        out
    }

    fn expr(&mut self, e: &Expr, ids: &HashSet<VarId>) {
        let sums = matches!(e, Expr::Var(_) | Expr::Binary(BinOp::Add | BinOp::Sub | BinOp::Mul, ..));
        let linear = if sums { Linear::of(e, &Domains::new()) } else { None };
        let Some(linear) = linear else {
            if let Expr::Binary(BinOp::FloorDiv | BinOp::FloorMod, a, b) = e {
                if let (Expr::Var(v), Some(by)) = (&**a, constant(b)) {
                    self.divisors.entry(v.id).or_default().insert(by);
                    self.sums.push(HashMap::from([(v.id, 1)]));
                    return;
                }
            }
            visit::children(e).into_iter().for_each(|e| self.expr(e, ids));
            return;
        };
        let mut sum = HashMap::new();
        for (atom, times) in linear.terms() {
            match atom {
                Expr::Var(v) if ids.contains(&v.id) => {
                    self.whole.insert(v.id);
                    sum.insert(v.id, *times);
                }
                atom if sums && atom == e => visit::children(e).into_iter().for_each(|e| self.expr(e, ids)),
                atom => self.expr(atom, ids),
            }
        }
        if !sum.is_empty() {
            self.sums.push(sum);
        }
    }

    /// An iterator of a reduction of which there are but the quotient and the remainder by one number.
    fn digits(&self, iters: &[IterVar]) -> Option<(usize, i64)> {
        let of = |(at, iv): (usize, &IterVar)| {
            let by = self.divisors.get(&iv.var.id).filter(|d| d.len() == 1 && !self.whole.contains(&iv.var.id))?;
            let (by, extent) = (by.first().copied()?, constant(&iv.extent)?);
            (iv.kind == IterKind::Reduce && by > 1 && extent > by && extent % by == 0).then_some((at, by))
        };
        iters.iter().enumerate().find_map(of)
    }

    /// Two iterators that are one.
    fn pair(&self, iters: &[IterVar]) -> Option<(usize, usize)> {
        let all = |o: &IterVar, i: &IterVar| {
            let Some(extent) = constant(&i.extent) else { return false };
            let mut both =
                self.sums.iter().filter(|s| s.contains_key(&o.var.id) || s.contains_key(&i.var.id)).peekable();
            let parted = |s: &HashMap<VarId, i64>| match (s.get(&o.var.id), s.get(&i.var.id)) {
                (Some(outer), Some(inner)) => inner.checked_mul(extent) == Some(*outer),
                _ => false,
            };
            both.peek().is_some() && both.all(parted)
        };
        let of = |outer: usize| {
            let fits = |inner: &usize| *inner != outer && iters[*inner].kind == iters[outer].kind;
            (0..iters.len()).filter(fits).find(|i| all(&iters[outer], &iters[*i])).map(|inner| (outer, inner))
        };
        (0..iters.len()).find_map(of)
    }
}

/// The nests of a program on their way back.
struct Undone {
    program: Program,
    /// Blocks that a schedule has moved.
    moved: HashSet<BlockId>,
}

impl Undone {
    /// A nest per block.
    fn of(program: &Program) -> Result<Undone, String> {
        let mut out = program.clone();
        let (mut nests, mut moved) = (Vec::new(), HashSet::new());
        let mut names: BTreeSet<String> = BTreeSet::new();
        let mut allocated = program.body.block.alloc_buffers.clone();
        for part in parts(program) {
            let plain = is_plain(program, part);
            let mut leaves = Vec::new();
            leaves_of(part, &Around::nothing(), &mut leaves)?;
            // A nest that stays keeps its own.
            let moving = tree::all_realizes(part).into_iter().filter(|_| !plain);
            allocated.extend(moving.flat_map(|r| &r.block.alloc_buffers));
            for leaf in leaves {
                let name = match store(leaf.block) {
                    // What an intrinsic computes is a block without a name.
                    Some((buffer, ..)) if leaf.block.name.is_empty() => &program.buffer(buffer).name,
                    _ => &leaf.block.name,
                };
                let name = unused(name, |name| names.contains(name));
                names.insert(name.clone());
                let nest = if plain { part.clone() } else { leaf.nest(&mut out, name) };
                if let (false, Some(block)) = (plain, block(&nest)) {
                    moved.insert(block.id);
                }
                nests.push(nest);
            }
        }
        out.body.block.alloc_buffers = allocated;
        *out.body.block.body = Stmt::seq(nests);
        Ok(Undone { program: out, moved })
    }

    /// Everything taken back that can be. Where an operand that lanes hold is copied yet, no kernel but the schedule's has that.
    fn program(mut self) -> Result<Program, String> {
        let of_lanes = self.program.buffers.iter().any(|b| b.scope == "warp");
        while self.init_joined()
            || self.result_cut()
            || self.result_named()
            || self.copy_inlined()
            || self.parts_joined()
        {}
        let copies = |b: &Block| store(b).is_some_and(|(to, _, value)| self.is_cache(to) && is_copied(value));
        if let Some(copy) = self.nests().into_iter().filter_map(block).find(|b| of_lanes && copies(b)) {
            return Err(format!("block `{}` copies what later blocks read in another form", copy.name));
        }
        self.decide();
        for id in self.program.body.block.alloc_buffers.clone() {
            let buffer = self.program.buffer_mut(id);
            (buffer.scope, buffer.strides) = ("global".into(), Vec::new());
        }
        Ok(self.program)
    }

    fn nests(&self) -> Vec<&Stmt> {
        parts(&self.program)
    }

    fn set(&mut self, nests: Vec<Stmt>) {
        *self.program.body.block.body = Stmt::seq(nests);
    }

    /// Whether a buffer is between blocks, and not in global memory: what a schedule adds.
    fn is_cache(&self, buffer: BufferId) -> bool {
        self.program.body.block.alloc_buffers.contains(&buffer) && self.program.buffer(buffer).scope != "global"
    }

    /// Puts a constant that a block writes all over a buffer into the block that updates it next.
    fn init_joined(&mut self) -> bool {
        let nests = self.nests();
        let found = nests.iter().enumerate().find_map(|(at, nest)| {
            let first = block(nest).filter(|b| self.moved.contains(&b.id) && b.init.is_none())?;
            let (buffer, indices, value) = store(first)?;
            if !is_fixed(value) {
                return None;
            }
            let next = nests.iter().enumerate().skip(at + 1).find(|(_, n)| touches(n, buffer))?;
            let update = block(next.1).filter(|b| b.init.is_none())?;
            let (own, place, sum) = store(update)?;
            let updates = visit::loads(sum).iter().any(|(b, at)| *b == buffer && at == place);
            let whole = extents(first, indices)? == extents(update, place)?;
            (own == buffer && updates && whole).then(|| (at, next.0, place.to_vec(), buffer, value.clone()))
        });
        let Some((at, next, place, buffer, value)) = found else { return false };
        let taken: BTreeSet<String> = nests.iter().filter_map(|nest| block(nest)).map(|b| b.name.clone()).collect();
        let mut nests: Vec<Stmt> = nests.into_iter().cloned().collect();
        tree::each_realize_mut(&mut nests[next], &mut |r| {
            let b = &mut r.block;
            b.init = Some(Box::new(Stmt::Store { buffer, indices: place.clone(), value: value.clone() }));
            b.reads.retain(|r| r.buffer != buffer);
            // As `decompose_reduction` called it.
            if let Some(name) = b.name.strip_suffix("_update").filter(|name| !taken.contains(*name)) {
                b.name = name.into();
            }
            // What does not say which element it is, is summed over.
            let told = |iv: &IterVar| place.iter().any(|e| visit::uses_var(e, &|v| v == iv.var.id));
            let kinds: Vec<bool> = b.iter_vars.iter().map(told).collect();
            for (iv, told) in b.iter_vars.iter_mut().zip(kinds) {
                iv.kind = if told { iv.kind } else { IterKind::Reduce };
            }
        });
        nests.remove(at);
        self.set(nests);
        true
    }

    /// A buffer that is copied whole to its place: all that is done with it is done there.
    fn result_named(&mut self) -> bool {
        let nests = self.nests();
        let found = nests.iter().enumerate().find_map(|(at, nest)| {
            let copy = block(nest).filter(|b| self.moved.contains(&b.id) && b.init.is_none())?;
            let (to, place, value) = store(copy)?;
            let Expr::Load(from, indices) = value else { return None };
            let shape = self.program.buffer(*from).extents()?;
            let same = self.program.buffer(*from).dtype == self.program.buffer(to).dtype;
            if !self.is_cache(*from) || !same || extents(copy, indices)? != shape {
                return None;
            }
            let others = |b: BufferId| nests.iter().enumerate().any(|(n, nest)| n != at && touches(nest, b));
            let later = nests.iter().skip(at + 1).any(|nest| touches(nest, *from));
            let earlier = nests.iter().take(at).any(|nest| touches(nest, to));
            let fresh = |(d, e): (usize, &Expr)| match e {
                Expr::Var(v) => Some((v.id, d)),
                _ => None,
            };
            let dims: HashMap<VarId, usize> = indices.iter().enumerate().filter_map(fresh).collect();
            // An iterator of one value need not be told.
            let units = copy.iter_vars.iter().filter(|iv| !dims.contains_key(&iv.var.id));
            let rest: HashMap<VarId, Expr> = units
                .map(|iv| (constant(&iv.extent) == Some(1)).then(|| (iv.var.id, int(0, iv.var.dtype))))
                .collect::<Option<_>>()?;
            (others(*from) && !later && !earlier).then(|| (at, *from, to, place.to_vec(), dims, rest))
        });
        let Some((at, from, to, place, dims, rest)) = found else { return false };
        let there = |indices: &[Expr]| -> Vec<Expr> {
            let mut map = rest.clone();
            map.extend(dims.iter().map(|(v, d)| (*v, indices[*d].clone())));
            // Quotients and remainders of one index are that index (`transform_layout` of the buffer).
            place.iter().map(|e| simplified(&visit::substitute(e, &map), &Domains::new())).collect()
        };
        let kept = nests.iter().enumerate().filter(|(n, _)| *n != at);
        let mut nests: Vec<Stmt> = kept.map(|(_, nest)| views::renamed(nest, from, to, &there)).collect();
        // With other indices other iterators are one.
        for nest in nests.iter_mut().filter(|nest| touches(nest, to)) {
            let Some(b) = block(nest).filter(|b| self.moved.contains(&b.id)) else { continue };
            let parts = (b.iter_vars.clone(), b.init.as_deref().cloned(), (*b.body).clone());
            // Named after what it writes, where it had no name.
            let written = |buffer| self.program.buffer(buffer).name.clone();
            let name = if b.name == written(from) { written(to) } else { b.name.clone() };
            *nest = nest_of_parts(&mut self.program, name, parts);
            self.moved.extend(block(nest).map(|b| b.id));
        }
        self.set(nests);
        self.program.body.block.alloc_buffers.retain(|b| *b != from);
        self.declare(to);
        true
    }

    /// Conditions that the iterators of moved blocks decide, as those of padding which was cut; and sums without the zeros that padding
    /// adds.
    fn decide(&mut self) {
        let mut nests: Vec<Stmt> = self.nests().into_iter().cloned().collect();
        for nest in &mut nests {
            let Some(b) = block(nest).filter(|b| self.moved.contains(&b.id)) else { continue };
            let mut iters = b.iter_vars.clone();
            for iv in iters.iter_mut().filter(|iv| iv.kind == IterKind::Reduce) {
                let all = constant(&iv.extent);
                if let Some(bound) = zero_from(&b.body, iv.var.id).filter(|bound| all.is_some_and(|all| *bound < all)) {
                    iv.extent = int(bound, iv.var.dtype);
                }
            }
            let extent = |v: VarId| iters.iter().find(|iv| iv.var.id == v).and_then(|iv| constant(&iv.extent));
            let holds = |e: &Expr| below(e).is_some_and(|(v, bound)| extent(v).is_some_and(|extent| extent <= bound));
            let decided = |e| match e {
                Expr::Select { cond, then, .. } if conjuncts(&cond).iter().all(holds) => then.as_ref().clone(),
                e => e,
            };
            let of = |s: &Stmt| visit::map_stmt_exprs(s, &mut |e| visit::map_expr(e, &mut |e| decided(e)));
            let (init, body) = (b.init.as_deref().map(of), of(&b.body));
            if body != *b.body {
                *nest = nest_of_parts(&mut self.program, b.name.clone(), (iters, init, body));
            }
        }
        self.set(nests);
    }

    /// What a schedule computes beyond what is read of it (`pad_einsum`) is not computed.
    fn result_cut(&mut self) -> bool {
        let nests = self.nests();
        let found = self.program.body.block.alloc_buffers.iter().filter(|id| self.is_cache(**id)).find_map(|id| {
            let touching: Vec<usize> = (0..nests.len()).filter(|n| touches(nests[*n], *id)).collect();
            let &[at, reader] = touching.as_slice() else { return None };
            let (writer, reader) = (block(nests[at])?, block(nests[reader])?);
            let ((to, place, _), (_, _, value)) = (store(writer)?, store(reader)?);
            let loads: Vec<Vec<Expr>> =
                visit::loads(value).into_iter().filter(|(b, _)| b == id).map(|(_, at)| at).collect();
            let [read] = loads.as_slice() else { return None };
            let iterator = |b: &Block, e: &Expr| match e {
                Expr::Var(v) => b.iter_vars.iter().position(|iv| iv.var.id == v.id),
                _ => None,
            };
            let mut cut: Vec<(usize, usize, i64)> = Vec::new();
            for (d, (own, other)) in place.iter().zip(read).enumerate() {
                let (own, other) = (iterator(writer, own)?, iterator(reader, other)?);
                let [all, read] = [(writer, own), (reader, other)].map(|(b, n)| constant(&b.iter_vars[n].extent));
                if read? < all? {
                    cut.push((d, own, read?));
                }
            }
            (to == *id && self.moved.contains(&writer.id) && !cut.is_empty()).then_some((*id, at, cut))
        });
        let Some((id, at, cut)) = found else { return false };
        let mut nests: Vec<Stmt> = nests.into_iter().cloned().collect();
        let Some(b) = block(&nests[at]) else { return false };
        let mut iters = b.iter_vars.clone();
        for (d, n, extent) in cut {
            iters[n].extent = int(extent, iters[n].var.dtype);
            let shape = &mut self.program.buffer_mut(id).shape;
            shape[d] = iters[n].extent.clone();
        }
        let domains = regions::domains_of(&iters);
        let inside = |s: &Stmt| visit::map_stmt_exprs(s, &mut |e| decided(e, &domains));
        let (name, init, body) = (b.name.clone(), b.init.as_deref().map(inside), inside(&b.body));
        nests[at] = nest_of_parts(&mut self.program, name, (iters, init, body));
        self.moved.extend(block(&nests[at]).map(|b| b.id));
        self.set(nests);
        self.declare(id);
        true
    }

    /// What blocks that access a buffer declare is what they do.
    fn declare(&mut self, buffer: BufferId) {
        let buffers = self.program.buffers.clone();
        let mut nests: Vec<Stmt> = self.nests().into_iter().cloned().collect();
        for nest in nests.iter_mut().filter(|nest| touches(nest, buffer)) {
            tree::each_realize_mut(nest, &mut |r| {
                let b = &mut r.block;
                let touched = satune_ir::access::of_block(b.init.as_deref(), &b.body, &b.alloc_buffers, &buffers);
                (b.reads, b.writes) = (touched.reads, touched.writes);
            });
        }
        self.set(nests);
    }

    /// A copy of an element to a buffer of the schedule, read where it was.
    fn copy_inlined(&mut self) -> bool {
        let copies: Vec<BlockId> = self
            .nests()
            .into_iter()
            .filter_map(block)
            .filter(|b| self.moved.contains(&b.id))
            .filter(|b| store(b).is_some_and(|(to, _, value)| self.is_cache(to) && is_copied(value)))
            .map(|b| b.id)
            .collect();
        copies.into_iter().any(|id| {
            let Ok(mut schedule) = Schedule::new(self.program.clone()) else { return false };
            let inlined = compute_inline(&mut schedule, id).is_ok();
            if inlined {
                self.program = schedule.into_program();
            }
            inlined || self.swizzle_inlined(id)
        })
    }

    /// The same, of a copy that is read with the indices with which it was written, whatever these are: each element of the copy is
    /// written once, as is tried; of very many, as the copy has as many as are written.
    fn swizzle_inlined(&mut self, id: BlockId) -> bool {
        let nests = self.nests();
        let is_it = |nest: &&Stmt| block(nest).is_some_and(|b| b.id == id);
        let Some((at, copy)) =
            nests.iter().enumerate().find(|(_, n)| is_it(n)).and_then(|(at, n)| Some((at, block(n)?)))
        else {
            return false;
        };
        let Some((to, place, value)) = store(copy) else { return false };
        let all = |extents: &mut dyn Iterator<Item = &Expr>| extents.map(constant).product::<Option<i64>>();
        let elements = all(&mut self.program.buffer(to).shape.iter());
        let instances = all(&mut copy.iter_vars.iter().map(|iv| &iv.extent));
        if elements.is_none() || !apart(copy, place).unwrap_or(elements == instances) {
            return false;
        }
        let iters: HashSet<VarId> = copy.iter_vars.iter().map(|iv| iv.var.id).collect();
        let mut known = true;
        let mut read_there = |indices: Vec<Expr>| {
            let mut map = HashMap::new();
            let same = place.iter().zip(&indices).all(|(own, index)| matched(own, index, &iters, &mut map));
            known &= same && map.len() == iters.len();
            visit::substitute(value, &map)
        };
        let mut made = Vec::new();
        for (n, nest) in nests.iter().enumerate().filter(|(n, _)| *n != at) {
            let writes = |s: &Stmt| matches!(s, Stmt::Store { buffer, .. } if *buffer == to);
            let mut written = false;
            visit::walk_stmt(nest, &mut |s| written |= writes(s));
            if written || (n < at && touches(nest, to)) {
                return false;
            }
            made.push(match touches(nest, to) {
                true => visit::map_stmt_exprs(nest, &mut |e| visit::replace_loads(e, to, &mut read_there)),
                false => (*nest).clone(),
            });
        }
        if !known {
            return false;
        }
        let from = visit::loads(value).first().map(|(b, _)| *b);
        self.set(made);
        self.program.body.block.alloc_buffers.retain(|b| *b != to);
        from.into_iter().for_each(|b| self.declare(b));
        true
    }

    /// A sum of partial sums as one.
    fn parts_joined(&mut self) -> bool {
        let nests = self.nests();
        let found = nests.iter().enumerate().find_map(|(at, nest)| {
            let last = block(nest)?;
            let ((to, place, sum), Some(init)) = (store(last)?, last.init.as_deref()) else { return None };
            let (op, added) = reduced(to, place, sum)?;
            let Expr::Load(from, indices) = added else { return None };
            if !self.program.body.block.alloc_buffers.contains(from) {
                return None;
            }
            let mut others = nests.iter().enumerate().filter(|(n, nest)| *n != at && touches(nest, *from));
            let (first, only) = (others.next()?, others.next().is_none());
            let moved = |b: &&Block| [b.id, last.id].iter().any(|id| self.moved.contains(id));
            let part = block(first.1).filter(|_| only && first.0 < at).filter(moved)?;
            let ((own, own_place, own_sum), Some(own_init)) = (store(part)?, part.init.as_deref()) else { return None };
            let (own_op, own_added) = reduced(own, own_place, own_sum)?;
            let same = match (init, own_init) {
                (Stmt::Store { value: a, .. }, Stmt::Store { value: b, .. }) => a == b,
                _ => false,
            };
            let whole = extents(part, own_place)? == extents(last, indices)?;
            let between = nests[first.0 + 1..at].iter().any(|nest| touches(nest, to));
            if own != *from || own_op != op || !same || !whole || between {
                return None;
            }
            // The iterators of the part that say which element it is, as those of the whole.
            let told = own_place.iter().zip(indices).filter_map(|(own, index)| match own {
                Expr::Var(v) => Some((v.id, index.clone())),
                _ => None,
            });
            let map: HashMap<VarId, Expr> = told.collect();
            let value = visit::substitute(own_added, &map);
            let more: Vec<IterVar> =
                part.iter_vars.iter().filter(|iv| !map.contains_key(&iv.var.id)).cloned().collect();
            let own = Expr::Load(to, place.to_vec());
            let body =
                Stmt::Store { buffer: to, indices: place.to_vec(), value: Expr::Binary(op, own.into(), value.into()) };
            let iters: Vec<IterVar> = last.iter_vars.iter().cloned().chain(more).collect();
            Some((at, first.0, *from, last.name.clone(), iters, init.clone(), body))
        });
        let Some((at, first, from, name, iters, init, body)) = found else { return false };
        let mut nests: Vec<Stmt> = nests.into_iter().cloned().collect();
        nests[at] = nest_of_parts(&mut self.program, name, (iters, Some(init), body));
        self.moved.extend(block(&nests[at]).map(|b| b.id));
        nests.remove(first);
        self.set(nests);
        self.program.body.block.alloc_buffers.retain(|b| *b != from);
        true
    }
}

/// Most instances that are tried.
const MOST_TRIED: i64 = 1 << 20;

/// Whether no two instances of a block have the same indices; none where there are very many.
fn apart(block: &Block, indices: &[Expr]) -> Option<bool> {
    let extents: Vec<i64> = block.iter_vars.iter().map(|iv| constant(&iv.extent)).collect::<Option<_>>()?;
    let count = extents.iter().try_fold(1_i64, |all, e| all.checked_mul(*e));
    let count = count.filter(|count| *count <= MOST_TRIED)?;
    let mut seen = HashSet::new();
    Some((0..count).all(|mut rest| {
        let mut at = HashMap::new();
        for (iv, extent) in block.iter_vars.iter().zip(&extents).rev() {
            at.insert(iv.var.id, rest % extent);
            rest /= extent;
        }
        let place: Option<Vec<i64>> = indices.iter().map(|e| value_of(e, &|v| at.get(&v).copied())).collect();
        place.is_some_and(|place| seen.insert(place))
    }))
}

/// Whether an expression is a pattern with something in the place of each of these variables.
fn matched(pattern: &Expr, e: &Expr, vars: &HashSet<VarId>, map: &mut HashMap<VarId, Expr>) -> bool {
    match (pattern, e) {
        (Expr::Var(v), e) if vars.contains(&v.id) => map.entry(v.id).or_insert_with(|| e.clone()) == e,
        (Expr::Binary(op, a, b), Expr::Binary(other, x, y)) if op == other => {
            matched(a, x, vars, map) && matched(b, y, vars, map)
        }
        (a, b) => a == b,
    }
}

/// The block of a plain nest.
fn block(nest: &Stmt) -> Option<&Block> {
    child_realizes(nest).first().map(|r| &r.block)
}

/// What a block stores, where that is all it does.
fn store(block: &Block) -> Option<(BufferId, &[Expr], &Expr)> {
    match &*block.body {
        Stmt::Store { buffer, indices, value } => Some((*buffer, indices, value)),
        _ => None,
    }
}

/// The operation by which an element is combined with something, and that.
fn reduced<'e>(buffer: BufferId, place: &[Expr], value: &'e Expr) -> Option<(BinOp, &'e Expr)> {
    let Expr::Binary(op @ (BinOp::Add | BinOp::Min | BinOp::Max | BinOp::Mul), own, added) = value else { return None };
    matches!(&**own, Expr::Load(of, at) if *of == buffer && at == place).then_some((*op, &**added))
}

/// The values that each index takes: those of an iterator that stands there alone, or one.
fn extents(block: &Block, indices: &[Expr]) -> Option<Vec<i64>> {
    let mut seen = HashSet::new();
    let of = |e: &Expr| match e {
        Expr::Var(v) => {
            let iv = block.iter_vars.iter().find(|iv| iv.var.id == v.id)?;
            let extent = constant(&iv.extent)?;
            (seen.insert(v.id) || extent == 1).then_some(extent)
        }
        e => (constant(e) == Some(0)).then_some(1),
    };
    indices.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use crate::replay::replay;
    use crate::Trace;
    use satune_ir::{structural, tvmscript, Program};

    fn unscheduled(program: &Program) -> Program {
        super::unscheduled(program).unwrap_or_else(|why| panic!("{why}"))
    }

    const PRODUCT: &str = "@T.prim_func(s_tir=True)
def main(A: T.Buffer((64, 32), \"float16\"), B: T.Buffer((32, 48), \"float16\"), D: T.Buffer((64, 48), \"float32\")):
    C = T.sblock_alloc_buffer((64, 48), \"float32\")
    for i, j, k in T.grid(64, 48, 32):
        with T.sblock(\"C\"):
            vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + T.Cast(\"float32\", A[vi, vk]) * T.Cast(\"float32\", B[vk, vj])
    for i, j in T.grid(64, 48):
        with T.sblock(\"D\"):
            vi, vj = T.axis.remap(\"SS\", [i, j])
            D[vi, vj] = T.max(C[vi, vj], T.float32(0))
";

    fn scheduled(source: &Program, calls: &str) -> Program {
        let (results, schedule) = replay(source, &Trace::read(calls).unwrap().calls).unwrap();
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        schedule.into_program()
    }

    fn same(a: &Program, b: &Program) {
        let difference = structural::equal(a, b).err();
        assert!(difference.is_none(), "{difference:?}\n{}\n{}", tvmscript::print(a), tvmscript::print(b));
    }

    /// From whatever schedule one begins, what is explored is one program.
    #[test]
    fn a_schedule_is_taken_back() {
        let source = tvmscript::parse(PRODUCT).unwrap();
        same(&unscheduled(&source), &source);
        let tiled = "
c = sch.get_sblock(\"C\")
i, j, k = sch.get_loops(c)
i0, i1 = sch.split(i, [None, 16])
j0, j1 = sch.split(j, [None, 16])
k0, k1 = sch.split(k, [None, 8])
sch.reorder(i0, j0, k0, i1, j1, k1)
";
        let bound = "
local = sch.cache_write(c, 0, \"local\")
a = sch.cache_read(c, 0, \"shared\")
b = sch.cache_read(c, 1, \"shared\")
sch.bind(i0, \"blockIdx.y\")
sch.bind(j0, \"blockIdx.x\")
sch.compute_at(a, k0)
sch.compute_at(b, k0)
sch.reverse_compute_at(local, j0)
d = sch.get_sblock(\"D\")
sch.reverse_compute_at(d, j0)
x = sch.get_loops(a)
fused = sch.fuse(x[-2], x[-1])
sch.decompose_reduction(c, k0)
";
        let parts = "
c = sch.get_sblock(\"C\")
i, j, k = sch.get_loops(c)
k0, k1 = sch.split(k, [4, None])
p = sch.rfactor(k0, 0)
q = sch.get_sblock(\"C\")
x, y, z = sch.get_loops(q)
sch.bind(z, \"threadIdx.x\")
";
        for calls in [tiled.to_string(), format!("{tiled}{bound}"), parts.into(), format!("{tiled}sch.blockize(i1)\n")]
        {
            let given = scheduled(&source, &calls);
            assert!(structural::equal(&given, &source).is_err());
            same(&unscheduled(&given), &source);
        }
    }

    /// What does not go through all values is no schedule of the program that does.
    #[test]
    fn what_leaves_something_out_stays_as_it_is() {
        let remap = "vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])";
        let whole =
            "vi = T.axis.spatial(64, i)\n            vj = T.axis.spatial(48, j)\n            vk = T.axis.reduce(32, k)";
        let text = PRODUCT
            .replace(remap, whole)
            .replace("i, j, k in T.grid(64, 48, 32)", "j, i, z, k in T.grid(48, 64, 1, 32)");
        same(&unscheduled(&tvmscript::parse(&text).unwrap()), &tvmscript::parse(PRODUCT).unwrap());
        // A copy of which two elements share a place is no copy.
        let copied = |at: &str| {
            let copy = format!(
                "    F = T.sblock_alloc_buffer((64, 32), \"float16\", scope=\"shared\")
    for k, z, i in T.grid(32, 1, 64):
        with T.sblock(\"F\"):
            vi = T.axis.spatial(64, i)
            vk = T.axis.spatial(32, k)
            F[vi, {at}] = A[vi, vk]
"
            );
            let text = text.replace("A[vi, vk]", &format!("F[vi, {at}]"));
            tvmscript::parse(&text.replacen("    for", &format!("{copy}    for"), 1)).unwrap()
        };
        same(&unscheduled(&copied("(vk ^ vi) % 32")), &tvmscript::parse(PRODUCT).unwrap());
        let kept = super::unscheduled(&copied("(vk // 2 ^ vi) % 32"));
        let kept = kept.map(|made| tvmscript::print(&made));
        assert!(kept.as_ref().is_ok_and(|made| made.contains("F[vi, (vk // 2 ^ vi) % 32]")), "{kept:?}");
        for (loops, fewer) in [
            ("(48, 64, 1, 32)", "(48, 64, 1, 16)"),
            ("(48, 64, 1, 32)", "(48, 63, 1, 32)"),
            ("i, z, k in T.grid(48, 64, 1, 32)", "i, k, z in T.grid(48, 64, 32, 2)"),
        ] {
            assert!(super::unscheduled(&tvmscript::parse(&text.replace(loops, fewer)).unwrap()).is_err(), "{fewer}");
        }
    }
}
