//! Nests that no primitive schedules, as kernels that run them in order.
//!
//! ```text
//! before                                    after
//!   for i, j in grid(n, m):                   for b in blockIdx.x(n / 64), t in threadIdx.x(64):
//!     S[i, j] = S[i, j - 1] + A[i, j]           for j in range(m):
//!                                                 S[i, j] = S[i, j - 1] + A[i, j]     i = 64 b + t
//! ```
//! TensorIR binds the loops of blocks whose instances may run in any order: a scan, a scatter or a histogram has no such block,
//! and a loop over several blocks, or over none, is bound by nobody. Such a nest is parted among threads along the loops of
//! which each value has elements of its own in whatever the nest writes, as an index says; a thread runs the other loops in their
//! order. Where there are no such loops one thread runs it all.
use super::nests::{parts, unused};
use crate::arith::Domains;
use crate::iter_map;
use crate::split::serial_nest;
use crate::tree::{all_realizes, children_and_init_mut};
use satune_ir::affine::constant;
use satune_ir::{
    access, fold, visit, Attr, BinOp, Block, BlockRealize, BufferId, DType, Expr, For, ForKind, IterVar, Program,
    Range, Stmt, Var, VarId,
};
use std::collections::{BTreeSet, HashMap};

/// Threads of a block, where there are as many.
const THREADS: i64 = 64;

/// Annotation of a nest's outermost loop: why primitives do not schedule it.
pub const IN_ORDER: &str = "satune.in_order";

/// Why primitives do not schedule a nest that the source itself binds to threads.
pub const BY_ITSELF: &str = "its loops are bound to threads";

/// The program with each nest bound to threads that `schedulable` does not take, for the reason that it gives, and no primitive
/// can.
pub(super) fn in_order(program: &Program, schedulable: impl Fn(&Program, &Stmt) -> Result<(), String>) -> Program {
    let mut out = program.clone();
    let mut left: Vec<Stmt> = parts(program).into_iter().rev().map(serial).collect();
    let mut taken = all_realizes(&program.body.block.body).into_iter().map(|r| r.block.name.clone()).collect();
    let mut made = Vec::new();
    while let Some(part) = left.pop() {
        let Err(why) = schedulable(&out, &part) else {
            made.push(part);
            continue;
        };
        if is_bound(&part) {
            made.push(part);
            continue;
        }
        let nest = renested(&mut out, &part);
        let why = match nest.as_ref().map(|nest| schedulable(&out, nest)) {
            Some(Ok(())) => {
                made.extend(nest);
                continue;
            }
            Some(Err(why)) => why,
            None => why,
        };
        match distributed(&mut out, &part) {
            Some(nests) => left.extend(nests.into_iter().rev()),
            None => made.push(bound(&mut out, &part, &mut taken, why)),
        }
    }
    out.body.block.body = Box::new(Stmt::seq(made));
    out
}

/// `for i: first; second` as `for i: first` and `for i: second`, where each value of the loops has elements of its own in all that
/// is written: then what `first` does for one value is nothing to `second` for another.
fn distributed(program: &mut Program, part: &Stmt) -> Option<Vec<Stmt>> {
    let (loops, rest) = around(part);
    let Stmt::Seq(nests) = rest else { return None };
    let touched = Touched::of(program, rest);
    if loops.is_empty() || !loops.iter().all(|l| touched.apart(l.var.id)) {
        return None;
    }
    let under = |nest: &Stmt| {
        let fresh: Vec<(&For, Var)> =
            loops.iter().map(|l| (*l, program.fresh_var(l.var.name.clone(), l.var.dtype))).collect();
        let values: HashMap<VarId, Expr> = fresh.iter().map(|(l, v)| (l.var.id, Expr::Var(v.clone()))).collect();
        let nest = visit::map_stmt_exprs(nest, &mut |e| visit::substitute(e, &values));
        fresh.into_iter().rev().fold(nest, |body, (l, var)| Stmt::For(For { var, body: body.into(), ..l.clone() }))
    };
    Some(nests.iter().map(under).collect())
}

/// A nest whose loops were given to threads of a CPU, or to lanes, with serial ones: where none is bound to a GPU's.
fn serial(part: &Stmt) -> Stmt {
    fn all(stmt: &mut Stmt) {
        if let Stmt::For(l) = stmt {
            l.kind = ForKind::Serial;
        }
        children_and_init_mut(stmt).into_iter().for_each(all);
    }
    let mut part = part.clone();
    if !is_bound(&part) {
        all(&mut part);
    }
    part
}

/// Whether a loop of a nest is bound to a thread in the source.
pub(super) fn is_bound(part: &Stmt) -> bool {
    let mut found = false;
    visit::walk_stmt(part, &mut |s| {
        found |= matches!(s, Stmt::For(For { kind: ForKind::ThreadBinding(_), .. }));
    });
    found
}

/// The plain nest of a block whose loops go through all values of its iterators, each once: one loop per iterator. To a block
/// that primitives schedule the order is nothing.
fn renested(program: &mut Program, part: &Stmt) -> Option<Stmt> {
    let (loops, rest) = around(part);
    let Stmt::Realize(realize) = rest else { return None };
    let zero = || fold::int32(0);
    let range = |l: &&For| (l.var.id, Range { min: zero(), extent: l.extent.clone() });
    let domains: Domains = loops.iter().map(range).collect();
    let map = iter_map::detect(&realize.iter_values, &domains, &realize.predicate, true)?;
    let whole = |(i, iv): (usize, &IterVar)| {
        constant(&iv.min) == Some(0) && map.base_of(i) == Some(0) && map.extent_of(i) == constant(&iv.extent)
    };
    if !map.is_injective(&domains) || !realize.block.iter_vars.iter().enumerate().all(whole) {
        return None;
    }
    let mut realize = realize.clone();
    let mut fresh = Vec::new();
    for (value, iv) in realize.iter_values.iter_mut().zip(&realize.block.iter_vars) {
        let var = program.fresh_var(iv.var.name.trim_start_matches('v'), iv.var.dtype);
        *value = Expr::Var(var.clone());
        fresh.push((var, constant(&iv.extent)?));
    }
    realize.predicate = Expr::Int(1, DType::Bool);
    Some(serial_nest(fresh.into_iter(), Stmt::Realize(realize)))
}

/// The blocks and the threads of each that a nest is bound to, and the steps that its other loops take; none where its outermost
/// loop is not bound.
pub(super) fn launched(part: &Stmt) -> Option<[i64; 3]> {
    let outermost = matches!(part, Stmt::For(For { kind: ForKind::ThreadBinding(_), .. }));
    outermost.then(|| {
        let mut counts = [1_i64; 3];
        visit::walk_stmt(part, &mut |s| {
            if let Stmt::For(l) = s {
                let at = match &l.kind {
                    ForKind::ThreadBinding(tag) if tag.starts_with("blockIdx") => 0,
                    ForKind::ThreadBinding(tag) if tag.starts_with("threadIdx") => 1,
                    _ => 2,
                };
                counts[at] = counts[at].saturating_mul(constant(&l.extent).unwrap_or(1));
            }
        });
        counts
    })
}

/// Why a nest that is bound to threads is not scheduled by primitives.
pub(super) fn why(part: &Stmt) -> String {
    match part {
        Stmt::For(For { annotations, .. }) => match annotations.get(IN_ORDER) {
            Some(Attr::Str(why)) => why.clone(),
            _ => BY_ITSELF.into(),
        },
        _ => String::new(),
    }
}

/// The loops around everything in a nest, and what they are around.
fn around(part: &Stmt) -> (Vec<&For>, &Stmt) {
    let (mut loops, mut rest) = (Vec::new(), part);
    while let Stmt::For(l) = rest {
        if l.kind != ForKind::Serial || constant(&l.min) != Some(0) || constant(&l.extent).is_none_or(|e| e < 1) {
            break;
        }
        loops.push(l);
        rest = &l.body;
    }
    (loops, rest)
}

fn bound(program: &mut Program, part: &Stmt, taken: &mut BTreeSet<String>, why: String) -> Stmt {
    let (loops, rest) = around(part);
    let touched = Touched::of(program, rest);
    let (parallel, serial): (Vec<&For>, Vec<&For>) = loops.into_iter().partition(|l| touched.apart(l.var.id));
    let extent = |l: &For| constant(&l.extent).unwrap_or(1);
    let rest = as_block(program, rest, taken);
    let all = parallel.iter().map(|l| extent(l)).product::<i64>();
    let threads = all.min(THREADS);
    // The number of a thread must fit.
    let dtype = if all < 1 << 30 { DType::I32 } else { DType::I64 };
    let [block, thread] = ["b", "t"].map(|name| program.fresh_var(name, dtype));
    let [block_value, thread_value] = [&block, &thread].map(|v| Expr::Var(v.clone()));
    let number = plus(times(block_value, threads), thread_value);
    let mut values: HashMap<VarId, Expr> = HashMap::new();
    let mut below = all;
    for l in &parallel {
        below /= extent(l);
        let quotient = operation(BinOp::FloorDiv, number.clone(), below);
        let digit = if below * extent(l) == all { quotient } else { operation(BinOp::FloorMod, quotient, extent(l)) };
        let own = if l.var.dtype == dtype { digit } else { Expr::Cast(l.var.dtype, digit.into()) };
        values.insert(l.var.id, own);
    }
    let rest = visit::map_stmt_exprs(&rest, &mut |e| visit::substitute(e, &values));
    let mut body = serial.into_iter().rev().fold(rest, |body, l| Stmt::For(For { body: body.into(), ..l.clone() }));
    if all % threads != 0 {
        let cond = Expr::Binary(BinOp::Lt, number.into(), fold::int32(all).into());
        body = Stmt::If { cond, then: body.into(), otherwise: None };
    }
    let loops = [(block, (all + threads - 1) / threads, "blockIdx.x"), (thread, threads, "threadIdx.x")];
    let mut nest = loops.into_iter().rev().fold(body, |body, (var, extent, tag)| {
        Stmt::For(For {
            var,
            min: fold::int32(0),
            extent: fold::int32(extent),
            kind: ForKind::ThreadBinding(tag.into()),
            annotations: Default::default(),
            body: body.into(),
        })
    });
    if let Stmt::For(outermost) = &mut nest {
        outermost.annotations.insert(IN_ORDER.into(), Attr::Str(why));
    }
    nest
}

/// What is under the loops, as one block: primitives see what it accesses.
fn as_block(program: &mut Program, rest: &Stmt, taken: &mut BTreeSet<String>) -> Stmt {
    if let Stmt::Realize(_) = rest {
        return rest.clone();
    }
    let name = unused("nest", |name| taken.contains(name));
    taken.insert(name.clone());
    let touched = access::of_block(None, rest, &[], &program.buffers);
    let mut block = Block::plain(program.fresh_block(), name, rest.clone());
    (block.reads, block.writes) = (touched.reads, touched.writes);
    let realize = BlockRealize { iter_values: Vec::new(), predicate: Expr::Int(1, DType::Bool), block };
    Stmt::Realize(Box::new(realize))
}

fn plus(a: Expr, b: Expr) -> Expr {
    Expr::Binary(BinOp::Add, a.into(), b.into())
}

fn times(a: Expr, by: i64) -> Expr {
    Expr::Binary(BinOp::Mul, a.into(), fold::int32(by).into())
}

/// `a op by`, where that is not `a`.
fn operation(op: BinOp, a: Expr, by: i64) -> Expr {
    match (op, by) {
        (BinOp::FloorDiv, 1) => a,
        _ => Expr::Binary(op, a.into(), fold::int32(by).into()),
    }
}

/// What a part of a program reads and writes, in the variables of the loops around it.
#[derive(Default)]
pub(super) struct Touched {
    accesses: Vec<(BufferId, Vec<Expr>)>,
    written: BTreeSet<BufferId>,
    /// Whether something may access more than can be seen.
    opaque: bool,
}

impl Touched {
    pub(super) fn of(program: &Program, stmt: &Stmt) -> Touched {
        let mut out = Touched::default();
        out.stmt(stmt, &HashMap::new());
        let views = |b: &BufferId| program.buffer(*b).dtype == DType::Handle;
        out.opaque |= out.accesses.iter().any(|(b, _)| views(b));
        out
    }

    /// The indices with which a buffer is accessed.
    pub(super) fn of_buffer(&self, buffer: BufferId) -> impl Iterator<Item = &Vec<Expr>> {
        self.accesses.iter().filter(move |(b, _)| *b == buffer).map(|(_, at)| at)
    }

    fn expr(&mut self, e: &Expr, values: &HashMap<VarId, Expr>) {
        let e = visit::substitute(e, values);
        self.accesses.extend(visit::loads(&e));
        visit::walk_expr(&e, &mut |e| self.opaque |= satune_ir::fields::of(e).is_some());
    }

    fn stmt(&mut self, stmt: &Stmt, values: &HashMap<VarId, Expr>) {
        match stmt {
            Stmt::For(l) => {
                [&l.min, &l.extent].into_iter().for_each(|e| self.expr(e, values));
                self.stmt(&l.body, values);
            }
            Stmt::Realize(r) => {
                let mut inside = values.clone();
                for (iv, value) in r.block.iter_vars.iter().zip(&r.iter_values) {
                    inside.insert(iv.var.id, visit::substitute(value, values));
                }
                self.opaque |= !r.block.match_buffers.is_empty();
                self.expr(&r.predicate, values);
                r.block.init.iter().for_each(|init| self.stmt(init, &inside));
                self.stmt(&r.block.body, &inside);
            }
            Stmt::Seq(parts) => parts.iter().for_each(|s| self.stmt(s, values)),
            Stmt::Store { buffer, indices, value } => {
                indices.iter().chain([value]).for_each(|e| self.expr(e, values));
                let at = indices.iter().map(|e| visit::substitute(e, values)).collect();
                self.accesses.push((*buffer, at));
                self.written.insert(*buffer);
            }
            Stmt::If { cond, then, otherwise } => {
                self.expr(cond, values);
                self.stmt(then, values);
                otherwise.iter().for_each(|s| self.stmt(s, values));
            }
            Stmt::Let { var, value, body } => {
                self.expr(value, values);
                let mut inside = values.clone();
                inside.insert(var.id, visit::substitute(value, values));
                self.stmt(body, &inside);
            }
            Stmt::Evaluate(Expr::Int(..)) => {}
            Stmt::Evaluate(_) => self.opaque = true,
        }
    }

    /// Whether each value of a loop has elements of its own in all that is written: along one dimension of each such buffer, every
    /// access has one index, of which the loop's value can be told.
    fn apart(&self, v: VarId) -> bool {
        self.apart_in(v, &|_| true)
    }

    /// The same of some buffers.
    pub(super) fn apart_in(&self, v: VarId, of: &dyn Fn(BufferId) -> bool) -> bool {
        !self.opaque
            && self.written.iter().filter(|b| of(**b)).all(|b| {
                let mut own = self.accesses.iter().filter(|(buffer, _)| buffer == b).map(|(_, at)| at);
                let Some(first) = own.next() else { return false };
                let rest: Vec<_> = own.collect();
                let tells = |d: usize| {
                    told(&first[d]).is_some_and(|of| of.id == v) && rest.iter().all(|at| at.get(d) == first.get(d))
                };
                (0..first.len()).any(tells)
            })
    }
}

/// The variable whose value an index tells: it is that, plus or less what is the same always.
pub(super) fn told(index: &Expr) -> Option<&Var> {
    match index {
        Expr::Var(v) => Some(v),
        Expr::Binary(BinOp::Add | BinOp::Sub, a, b) => match (&**a, &**b) {
            (index, Expr::Int(..)) | (Expr::Int(..), index) => told(index),
            _ => None,
        },
        _ => None,
    }
}
