//! The part of a program that some of its results take: loops over fewer values, on buffers cut to what is accessed.
use crate::affine::{constant, index_type, int};
use crate::{visit, BinOp, BlockRealize, BufferId, Expr, For, Program, Stmt, VarId};
use std::collections::HashMap;
use std::sync::Arc;

/// A box of a buffer's elements: first index and end along each dimension.
pub type Bounds = Vec<(i64, i64)>;

/// A part of a program.
#[derive(Clone, Debug)]
pub struct Slice {
    /// It, on smaller buffers.
    pub program: Program,
    /// Of each parameter, in order, what is left of it.
    pub bounds: Vec<Bounds>,
    /// Instances of blocks that it runs.
    pub instances: u64,
}

/// What a program does to make some elements of its buffers. None where that cannot be told: blocks within blocks, views,
/// calls that act, several results that reach each other.
pub fn slice(program: &Program, wanted: &[(BufferId, Bounds)]) -> Option<Slice> {
    let root = &program.body.block;
    if !root.match_buffers.is_empty() || root.init.is_some() {
        return None;
    }
    let parts: Vec<&Stmt> = match &*root.body {
        Stmt::Seq(parts) => parts.iter().collect(),
        one => vec![one],
    };
    let mut slicer = Slicer {
        program,
        needed: vec![None; program.buffers.len()],
        touched: vec![None; program.buffers.len()],
        instances: 0,
    };
    for (buffer, bounds) in wanted {
        slicer.needed[buffer.0 as usize] = Some(bounds.clone());
        slicer.touched[buffer.0 as usize] = Some(bounds.clone());
    }
    let mut kept = Vec::new();
    for part in parts.iter().rev() {
        if let Some(ranges) = slicer.nest(part)? {
            kept.push((*part, ranges));
        }
    }
    let whole = |at: usize| vec![(0, 1); program.buffers[at].shape.len()];
    let touched = std::mem::take(&mut slicer.touched).into_iter().enumerate();
    let bounds: Vec<Bounds> = touched.map(|(at, t)| t.unwrap_or_else(|| whole(at))).collect();
    let mut out = program.clone();
    for (buffer, bounds) in out.buffers.iter_mut().zip(&bounds) {
        for (extent, (low, high)) in buffer.shape.iter_mut().zip(bounds) {
            *extent = int((high - low).max(1), index_type(extent));
        }
    }
    let body = kept.iter().rev().map(|(part, ranges)| cut(part, ranges, &bounds)).collect();
    out.body.block.body = Box::new(Stmt::seq(body));
    let bounds = program.params.iter().map(|p| bounds[p.0 as usize].clone()).collect();
    Some(Slice { program: out, bounds, instances: slicer.instances })
}

struct Slicer<'p> {
    program: &'p Program,
    /// By buffer: what later parts read, or is wanted.
    needed: Vec<Option<Bounds>>,
    /// By buffer: what is accessed at all.
    touched: Vec<Option<Bounds>>,
    instances: u64,
}

/// Values of variables: from, to (the last one among them).
type Ranges = HashMap<VarId, (i64, i64)>;

impl Slicer<'_> {
    /// The values that a nest's loops have to take; none where nothing of it is needed. The outer none: not to be told.
    #[allow(clippy::option_option)]
    fn nest(&mut self, part: &Stmt) -> Option<Option<Ranges>> {
        let mut loops: Vec<&For> = Vec::new();
        let mut at = part;
        let realize = loop {
            match at {
                Stmt::For(l) => {
                    loops.push(l);
                    at = &l.body;
                }
                Stmt::Realize(r) => break r,
                _ => return None,
            }
        };
        let block = &realize.block;
        if !block.match_buffers.is_empty() || !block.alloc_buffers.is_empty() {
            return None;
        }
        let bodies: Vec<&Stmt> = block.init.iter().map(|s| &**s).chain([&*block.body]).collect();
        let mut stores: Vec<(BufferId, &[Expr])> = Vec::new();
        let mut plain = true;
        for body in &bodies {
            visit::walk_stmt(body, &mut |s| match s {
                Stmt::Realize(_) | Stmt::Evaluate(_) => plain = false,
                _ => {}
            });
            collect_stores(body, &mut stores);
        }
        if !plain {
            return None;
        }
        let needed = |s: &Slicer<'_>, b: BufferId| s.needed[b.0 as usize].is_some();
        if !stores.iter().any(|(b, _)| needed(self, *b)) {
            return Some(None);
        }
        let mut ranges = Ranges::new();
        for l in &loops {
            let (low, count) = (constant(&l.min)?, constant(&l.extent)?);
            ranges.insert(l.var.id, (low, low + count - 1));
        }
        self.restrict(realize, &stores, &bodies, &mut ranges);
        if ranges.values().any(|(low, high)| high < low) {
            return Some(None);
        }
        let instances = loops.iter().map(|l| ranges[&l.var.id]).map(|(low, high)| (high - low + 1) as u64);
        self.instances = self.instances.saturating_add(instances.fold(1, u64::saturating_mul));
        let mut known = with_iterators(realize, &ranges);
        self.expr(&realize.predicate, &known);
        for body in bodies {
            self.stmt(body, &mut known);
        }
        Some(Some(ranges))
    }

    /// Loops run over the values that indices of what is needed leave them: of several results over those of any.
    fn restrict(&self, realize: &BlockRealize, stores: &[(BufferId, &[Expr])], bodies: &[&Stmt], ranges: &mut Ranges) {
        let place = |buffer: BufferId| stores.iter().find(|(b, _)| *b == buffer).map(|(_, indices)| *indices);
        if stores.iter().any(|(b, indices)| place(*b) != Some(indices)) {
            return;
        }
        // Where an instance reads what another has written, all of them run.
        let mut own = true;
        for body in bodies {
            visit::walk_stmt_exprs(body, &mut |e| {
                visit::walk_expr(e, &mut |e| {
                    if let Expr::Load(b, i) = e {
                        own &= place(*b).is_none_or(|indices| i.as_slice() == indices);
                    }
                });
            });
        }
        if !own {
            return;
        }
        let known = with_iterators(realize, ranges);
        let mut hull: Option<Ranges> = None;
        for (buffer, indices) in stores {
            let Some(needed) = &self.needed[buffer.0 as usize] else { continue };
            let mut here = ranges.clone();
            for (index, (low, high)) in indices.iter().zip(needed) {
                narrow(index, (*low, high - 1), (realize, &known), &mut here);
            }
            hull = Some(match hull {
                None => here,
                Some(all) => all.into_iter().map(|(v, (a, b))| (v, (a.min(here[&v].0), b.max(here[&v].1)))).collect(),
            });
        }
        if let Some(hull) = hull {
            *ranges = hull;
        }
    }

    fn touch(&mut self, buffer: BufferId, indices: &[Expr], known: &Ranges, reads: bool) {
        let shape = &self.program.buffer(buffer).shape;
        let bounds: Bounds = indices
            .iter()
            .zip(shape)
            .map(|(index, extent)| {
                let extent = constant(extent).unwrap_or(i64::MAX);
                match interval(index, known) {
                    Some((low, high)) if low < extent && high >= 0 => (low.max(0), (high + 1).min(extent)),
                    _ => (0, extent),
                }
            })
            .collect();
        let join = |old: &mut Option<Bounds>| match old {
            None => *old = Some(bounds.clone()),
            Some(old) => {
                for (old, new) in old.iter_mut().zip(&bounds) {
                    *old = (old.0.min(new.0), old.1.max(new.1));
                }
            }
        };
        join(&mut self.touched[buffer.0 as usize]);
        if reads {
            join(&mut self.needed[buffer.0 as usize]);
        }
    }

    fn expr(&mut self, e: &Expr, known: &Ranges) {
        let mut loads = Vec::new();
        visit::walk_expr(e, &mut |e| {
            if let Expr::Load(buffer, indices) = e {
                loads.push((*buffer, indices.clone()));
            }
        });
        for (buffer, indices) in loads {
            self.touch(buffer, &indices, known, true);
        }
    }

    fn stmt(&mut self, s: &Stmt, known: &mut Ranges) {
        match s {
            Stmt::For(l) => {
                self.expr(&l.min, known);
                self.expr(&l.extent, known);
                if let (Some((low, _)), Some((_, count))) = (interval(&l.min, known), interval(&l.extent, known)) {
                    let high = interval(&l.min, known).map_or(low, |m| m.1) + count - 1;
                    known.insert(l.var.id, (low, high.max(low)));
                }
                self.stmt(&l.body, known);
            }
            Stmt::Seq(parts) => parts.iter().for_each(|s| self.stmt(s, known)),
            Stmt::Store { buffer, indices, value } => {
                self.expr(value, known);
                indices.iter().for_each(|i| self.expr(i, known));
                self.touch(*buffer, indices, known, false);
            }
            Stmt::If { cond, then, otherwise } => {
                self.expr(cond, known);
                self.stmt(then, known);
                if let Some(otherwise) = otherwise {
                    self.stmt(otherwise, known);
                }
            }
            Stmt::Let { var, value, body } => {
                self.expr(value, known);
                if let Some(range) = interval(value, known) {
                    known.insert(var.id, range);
                }
                self.stmt(body, known);
            }
            Stmt::Realize(_) | Stmt::Evaluate(_) => {}
        }
    }
}

fn collect_stores<'s>(s: &'s Stmt, out: &mut Vec<(BufferId, &'s [Expr])>) {
    match s {
        Stmt::Store { buffer, indices, .. } => out.push((*buffer, indices)),
        Stmt::For(l) => collect_stores(&l.body, out),
        Stmt::Seq(parts) => parts.iter().for_each(|s| collect_stores(s, out)),
        Stmt::If { then, otherwise, .. } => {
            collect_stores(then, out);
            otherwise.iter().for_each(|s| collect_stores(s, out));
        }
        Stmt::Let { body, .. } => collect_stores(body, out),
        Stmt::Realize(_) | Stmt::Evaluate(_) => {}
    }
}

/// The values of loops, and of the iterators that they give.
fn with_iterators(realize: &BlockRealize, ranges: &Ranges) -> Ranges {
    let mut known = ranges.clone();
    for (iterator, value) in realize.block.iter_vars.iter().zip(&realize.iter_values) {
        if let Some(range) = interval(value, ranges) {
            known.insert(iterator.var.id, range);
        }
    }
    known
}

/// Leaves out values of loops with which an index is not between two numbers, each loop by itself; `known` are the values of all
/// variables.
fn narrow(e: &Expr, (low, high): (i64, i64), (realize, known): (&BlockRealize, &Ranges), ranges: &mut Ranges) {
    let mut inner = |e: &Expr, low: i64, high: i64| narrow(e, (low, high), (realize, known), ranges);
    match e {
        Expr::Var(v) => {
            let given = realize.block.iter_vars.iter().position(|iv| iv.var == *v);
            match (given.and_then(|at| realize.iter_values.get(at)), ranges.get_mut(&v.id)) {
                (Some(value), _) => narrow(value, (low, high), (realize, known), ranges),
                (None, Some(range)) => *range = (range.0.max(low), range.1.min(high)),
                (None, None) => {}
            }
        }
        Expr::Cast(_, value) if interval(e, known).is_some() => inner(value, low, high),
        Expr::Binary(BinOp::Add, a, b) => {
            for (one, other) in [(a, b), (b, a)] {
                if let Some((least, most)) = interval(other, known) {
                    inner(one, low.saturating_sub(most), high.saturating_sub(least));
                }
            }
        }
        Expr::Binary(op @ (BinOp::Mul | BinOp::FloorDiv), a, by) => match (op, constant(by)) {
            (BinOp::Mul, Some(by)) if by > 0 => {
                inner(a, low.div_euclid(by) + i64::from(low % by != 0), high.div_euclid(by))
            }
            (BinOp::FloorDiv, Some(by)) if by > 0 => {
                inner(a, low.saturating_mul(by), high.saturating_mul(by).saturating_add(by - 1));
            }
            _ => {}
        },
        _ => {}
    }
}

/// The values that an index takes; none where it is not known.
fn interval(e: &Expr, known: &Ranges) -> Option<(i64, i64)> {
    match e {
        Expr::Int(n, _) => Some((*n, *n)),
        Expr::Var(v) => known.get(&v.id).copied(),
        // What leaves the type comes back elsewhere.
        Expr::Cast(t, inner) => {
            let (low, high) = interval(inner, known)?;
            let (least, most) = t.int_range()?;
            (least <= low && high <= most).then_some((low, high))
        }
        Expr::Binary(op, a, b) => {
            let ((a, b), (c, d)) = (interval(a, known)?, interval(b, known)?);
            let of = |list: [Option<i64>; 4]| {
                let list: Vec<i64> = list.into_iter().collect::<Option<_>>()?;
                Some((*list.iter().min()?, *list.iter().max()?))
            };
            match op {
                BinOp::Add => Some((a.checked_add(c)?, b.checked_add(d)?)),
                BinOp::Sub => Some((a.checked_sub(d)?, b.checked_sub(c)?)),
                BinOp::Mul => of([a.checked_mul(c), a.checked_mul(d), b.checked_mul(c), b.checked_mul(d)]),
                BinOp::FloorDiv if c == d && c > 0 => Some((a.div_euclid(c), b.div_euclid(c))),
                BinOp::FloorMod if c == d && c > 0 => {
                    if a.div_euclid(c) == b.div_euclid(c) {
                        Some((a.rem_euclid(c), b.rem_euclid(c)))
                    } else {
                        Some((0, c - 1))
                    }
                }
                BinOp::TruncDiv if c == d && c > 0 && a >= 0 => Some((a / c, b / c)),
                BinOp::TruncMod if c == d && c > 0 && a >= 0 => Some((0, (c - 1).min(b))),
                BinOp::Min => Some((a.min(c), b.min(d))),
                BinOp::Max => Some((a.max(c), b.max(d))),
                _ => None,
            }
        }
        _ => None,
    }
}

/// A nest over fewer values, on buffers that begin elsewhere.
fn cut(part: &Stmt, ranges: &Ranges, bounds: &[Bounds]) -> Stmt {
    let moved = |e: &Expr| {
        visit::map_expr(e, &mut |e| match e {
            Expr::Load(buffer, indices) => {
                let indices = indices.iter().zip(&bounds[buffer.0 as usize]).map(|(i, b)| shifted(i, b.0)).collect();
                Expr::Load(buffer, indices)
            }
            other => other,
        })
    };
    stores(&visit::map_stmt_exprs(part, &mut |e| moved(e)), ranges, bounds)
}

fn shifted(index: &Expr, by: i64) -> Expr {
    match by {
        0 => index.clone(),
        by => Expr::Binary(BinOp::Sub, Arc::new(index.clone()), Arc::new(int(by, index_type(index)))),
    }
}

fn stores(s: &Stmt, ranges: &Ranges, bounds: &[Bounds]) -> Stmt {
    let again = |s: &Stmt| Box::new(stores(s, ranges, bounds));
    match s {
        Stmt::For(l) => {
            let mut l = l.clone();
            if let Some((low, high)) = ranges.get(&l.var.id) {
                let dtype = l.var.dtype;
                (l.min, l.extent) = (int(*low, dtype), int(high - low + 1, dtype));
            }
            l.body = again(&l.body);
            Stmt::For(l)
        }
        Stmt::Realize(r) => {
            let mut r = r.clone();
            r.block.init = r.block.init.as_deref().map(again);
            r.block.body = again(&r.block.body);
            Stmt::Realize(r)
        }
        Stmt::Seq(parts) => Stmt::Seq(parts.iter().map(|s| stores(s, ranges, bounds)).collect()),
        Stmt::Store { buffer, indices, value } => Stmt::Store {
            buffer: *buffer,
            indices: indices.iter().zip(&bounds[buffer.0 as usize]).map(|(i, b)| shifted(i, b.0)).collect(),
            value: value.clone(),
        },
        Stmt::If { cond, then, otherwise } => {
            Stmt::If { cond: cond.clone(), then: again(then), otherwise: otherwise.as_deref().map(again) }
        }
        Stmt::Let { var, value, body } => Stmt::Let { var: var.clone(), value: value.clone(), body: again(body) },
        Stmt::Evaluate(_) => s.clone(),
    }
}
