//! Values that a thread holds in a register between the statements of a block.
//!
//! ```text
//!   v = T.max(V[i], A[i, k])        held[0] = max(V[i], A[i, k])
//!   V[i] = v                   ->   V[i] = held[0]
//!   if A[i, k] > 0:                 held_1[0] = A[i, k] > 0
//!       B[i] = A[I[i] * 3]          if held_1[0] != 0: held_2[0] = I[i] * 3
//!                                   if held_1[0] != 0: B[i] = A[held_2[0]]
//! ```
//! Lowering asks a condition again for each statement below it, and computes a bound value where it is used. So what reads an
//! element that may be stored meanwhile is computed once, before. An index or a condition that has no linear form (it may leave
//! its type and wrap, or chooses between two) is computed as the program says, in its type; a loop whose number of steps differs
//! from thread to thread has a condition inside.
use super::linear::{Linear, Ranges};
use super::pred::Pred;
use satune_ir::{fold, visit, BinOp, Buffer, DType, Expr, For, Program, Stmt};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// A top-level statement without bound values, without conditions on elements but of held ones, and with indices and conditions
/// that have linear forms, in loops of a constant or a held number of steps; and the program with the registers.
pub fn held<'p>(program: &'p Program, part: &'p Stmt) -> (Cow<'p, Program>, Cow<'p, Stmt>) {
    let mut holder = Holder { program: Cow::Borrowed(program), ranges: Ranges::new(), under: 0, begun: Vec::new() };
    let mut plain = true;
    visit::walk_stmt(part, &mut |s| match s {
        Stmt::Let { .. } => plain = false,
        Stmt::For(l) => plain &= matches!(l.extent, Expr::Int(..)),
        Stmt::If { cond, .. } => plain &= visit::loads(cond).is_empty(),
        _ => {}
    });
    let held = holder.stmt(part);
    match holder.program {
        Cow::Borrowed(_) if plain => (Cow::Borrowed(program), Cow::Borrowed(part)),
        program => (program, Cow::Owned(held)),
    }
}

struct Holder<'p> {
    program: Cow<'p, Program>,
    ranges: Ranges,
    /// How many conditions around are decided by data.
    under: usize,
    /// What registers below such conditions hold at first: all conditions of a statement are read before any of them is asked.
    begun: Vec<Stmt>,
}

impl Holder<'_> {
    fn stmt(&mut self, stmt: &Stmt) -> Stmt {
        match stmt {
            Stmt::For(l) => self.for_loop(l),
            Stmt::Realize(r) => {
                for (iv, value) in r.block.iter_vars.iter().zip(&r.iter_values) {
                    self.known(iv.var.id, &iv.min, &iv.extent);
                    // Beyond its domain, too, where a condition keeps it within: addresses are computed of the loops.
                    if let Some(form) = Linear::of_expr(value, &self.ranges) {
                        self.ranges.insert(iv.var.id, form.range(&self.ranges));
                    }
                }
                let mut r = r.clone();
                let mut before = Vec::new();
                r.predicate = self.condition(&r.predicate, &mut before);
                r.block.body = self.stmt(&r.block.body).into();
                r.block.init = r.block.init.map(|init| self.stmt(&init).into());
                before.push(Stmt::Realize(r));
                Stmt::seq(before)
            }
            Stmt::Seq(parts) => Stmt::seq(parts.iter().map(|s| self.stmt(s)).collect()),
            Stmt::Let { var, value, body } => {
                let mut before = Vec::new();
                let read: Vec<_> = visit::loads(value).into_iter().map(|(b, _)| b).collect();
                let mut stored = HashSet::new();
                visit::walk_stmt(body, &mut |s| {
                    if let Stmt::Store { buffer, .. } = s {
                        stored.insert(*buffer);
                    }
                });
                let value = match read.iter().any(|b| stored.contains(b)) {
                    true => self.hold(value, &mut before),
                    false => value.clone(),
                };
                let map = HashMap::from([(var.id, value)]);
                let body = visit::map_stmt_exprs(body, &mut |e| visit::substitute(e, &map));
                before.push(self.stmt(&body));
                Stmt::seq(before)
            }
            Stmt::If { cond, then, otherwise } => {
                let mut before = Vec::new();
                let cond = self.condition(cond, &mut before);
                let by_data = usize::from(!visit::loads(&cond).is_empty());
                self.under += by_data;
                let then = self.stmt(then).into();
                let otherwise = otherwise.as_ref().map(|s| self.stmt(s).into());
                self.under -= by_data;
                if self.under == 0 {
                    before.append(&mut self.begun);
                }
                before.push(Stmt::If { cond, then, otherwise });
                Stmt::seq(before)
            }
            Stmt::Store { buffer, indices, value } => {
                let mut before = Vec::new();
                let indices = indices.iter().map(|e| self.index(e, &mut before)).collect();
                let value = self.value(value, &mut before);
                before.push(Stmt::Store { buffer: *buffer, indices, value });
                Stmt::seq(before)
            }
            Stmt::Evaluate(_) => stmt.clone(),
        }
    }

    /// A loop whose number of steps differs runs as many as there may be, and does nothing in those that there are not; one where
    /// data or choices decide it has that number in a register.
    fn for_loop(&mut self, l: &For) -> Stmt {
        if let Expr::Int(..) = l.extent {
            self.known(l.var.id, &l.min, &l.extent);
            return Stmt::For(For { body: self.stmt(&l.body).into(), ..l.clone() });
        }
        let mut before = Vec::new();
        let mut number_of = |this: &mut Holder<'_>, e: &Expr| match Linear::of_expr(e, &this.ranges) {
            Some(_) => e.clone(),
            None => this.hold(e, &mut before),
        };
        let (min, steps) = (number_of(self, &l.min), number_of(self, &l.extent));
        let number = Expr::Var(l.var.clone());
        let value = Expr::Binary(BinOp::Add, min.clone().into(), number.clone().into());
        let from = match min {
            Expr::Int(0, _) => HashMap::new(),
            _ => HashMap::from([(l.var.id, value)]),
        };
        let mut body = visit::map_stmt_exprs(&l.body, &mut |e| visit::substitute(e, &from));
        let most = Linear::of_expr(&steps, &self.ranges).map(|form| form.range(&self.ranges).1);
        let extent = match most.filter(|most| *most < 1 << 31) {
            Some(most) => {
                let cond = Expr::Binary(BinOp::Lt, number.into(), steps.into());
                body = Stmt::If { cond, then: body.into(), otherwise: None };
                Expr::Int(most.max(0), l.var.dtype)
            }
            None => steps,
        };
        let zero = Expr::Int(0, l.var.dtype);
        self.known(l.var.id, &zero, &extent);
        before.push(Stmt::For(For { min: zero, extent, body: self.stmt(&body).into(), ..l.clone() }));
        Stmt::seq(before)
    }

    fn known(&mut self, var: satune_ir::VarId, min: &Expr, extent: &Expr) {
        if let (Expr::Int(min, _), Expr::Int(extent, _)) = (min, extent) {
            self.ranges.insert(var, (*min, min.saturating_add(extent.saturating_sub(1))));
        }
    }

    /// The expression with indices that have linear forms.
    fn value(&mut self, e: &Expr, before: &mut Vec<Stmt>) -> Expr {
        visit::map_expr(e, &mut |e| match e {
            Expr::Load(b, at) => Expr::Load(b, at.iter().map(|e| self.linear(e, before)).collect()),
            e => e,
        })
    }

    fn index(&mut self, e: &Expr, before: &mut Vec<Stmt>) -> Expr {
        let e = self.value(e, before);
        self.linear(&e, before)
    }

    /// An index, held where it has no linear form.
    fn linear(&mut self, e: &Expr, before: &mut Vec<Stmt>) -> Expr {
        match Linear::of_index(e, &self.ranges, &self.program) {
            Some(_) => e.clone(),
            None => self.hold(e, before),
        }
    }

    /// A condition, held where data decide it or its sides have no linear forms.
    fn condition(&mut self, e: &Expr, before: &mut Vec<Stmt>) -> Expr {
        if visit::loads(e).is_empty() && Pred::clauses(e, &self.ranges).is_some() {
            return e.clone();
        }
        let held = self.hold(&Expr::Cast(DType::I32, e.clone().into()), before);
        Expr::Binary(BinOp::Ne, held.into(), fold::int32(0).into())
    }

    /// A register with the value.
    fn hold(&mut self, e: &Expr, before: &mut Vec<Stmt>) -> Expr {
        let value = self.value(e, before);
        let dtype = fold::dtype(&value, &self.program.buffers);
        let buffer = self.program.to_mut().add_buffer(Buffer::plain("held", dtype, vec![fold::int32(1)], "local"));
        let set = |value| Stmt::Store { buffer, indices: vec![fold::int32(0)], value };
        if self.under > 0 {
            self.begun.push(set(if dtype.is_float() { fold::float(0.0, dtype) } else { Expr::Int(0, dtype) }));
        }
        before.push(set(value));
        Expr::Load(buffer, vec![fold::int32(0)])
    }
}
