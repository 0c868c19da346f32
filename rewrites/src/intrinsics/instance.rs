//! Copies of an intrinsic's program inside another one: with the buffers there, and variables and blocks of its own.
use satune_ir::{visit, BlockRealize, BufferId, Expr, For, Program, Region, Stmt, Var, VarId};
use std::collections::HashMap;

/// A copy that is being made in `target`.
#[derive(Debug)]
pub(crate) struct Instance<'p> {
    target: &'p mut Program,
    buffers: HashMap<BufferId, BufferId>,
    vars: HashMap<VarId, Expr>,
}

impl<'p> Instance<'p> {
    /// Nothing copied yet.
    pub fn new(target: &'p mut Program) -> Self {
        Instance { target, buffers: HashMap::new(), vars: HashMap::new() }
    }

    /// Buffer `from` of the intrinsic is `to` of the target.
    pub fn stands_for(&mut self, from: BufferId, to: BufferId) {
        self.buffers.insert(from, to);
    }

    /// A new buffer of the target like one of the intrinsic; the names of its strides are its own.
    pub fn buffer(&mut self, source: &Program, from: BufferId) -> BufferId {
        let mut buffer = source.buffer(from).clone();
        buffer.strides = buffer.strides.iter().map(|e| self.unknown(e)).collect();
        buffer.elem_offset = buffer.elem_offset.as_ref().map(|e| self.unknown(e));
        let to = self.target.add_buffer(buffer);
        self.buffers.insert(from, to);
        to
    }

    fn unknown(&mut self, e: &Expr) -> Expr {
        match e {
            Expr::Var(v) if !self.vars.contains_key(&v.id) => Expr::Var(self.var(v)),
            other => self.expr(other),
        }
    }

    fn var(&mut self, v: &Var) -> Var {
        let fresh = self.target.fresh_var(v.name.clone(), v.dtype);
        self.vars.insert(v.id, Expr::Var(fresh.clone()));
        fresh
    }

    fn id(&self, buffer: BufferId) -> BufferId {
        self.buffers.get(&buffer).copied().unwrap_or(buffer)
    }

    /// An expression.
    pub fn expr(&self, e: &Expr) -> Expr {
        visit::map_expr(e, &mut |e| match e {
            Expr::Var(v) => self.vars.get(&v.id).cloned().unwrap_or(Expr::Var(v)),
            Expr::Load(b, indices) => Expr::Load(self.id(b), indices),
            other => other,
        })
    }

    fn region(&self, r: &Region) -> Region {
        Region { buffer: self.id(r.buffer), ..visit::map_region(r, &mut |e| self.expr(e)) }
    }

    /// A statement of `source`.
    pub fn stmt(&mut self, source: &Program, s: &Stmt) -> Stmt {
        match s {
            Stmt::For(l) => {
                let (min, extent) = (self.expr(&l.min), self.expr(&l.extent));
                let var = self.var(&l.var);
                Stmt::For(For { var, min, extent, body: Box::new(self.stmt(source, &l.body)), ..l.clone() })
            }
            Stmt::Realize(r) => Stmt::Realize(Box::new(self.realize(source, r))),
            Stmt::Seq(parts) => Stmt::Seq(parts.iter().map(|s| self.stmt(source, s)).collect()),
            Stmt::Store { buffer, indices, value } => Stmt::Store {
                buffer: self.id(*buffer),
                indices: indices.iter().map(|e| self.expr(e)).collect(),
                value: self.expr(value),
            },
            Stmt::If { cond, then, otherwise } => Stmt::If {
                cond: self.expr(cond),
                then: Box::new(self.stmt(source, then)),
                otherwise: otherwise.as_ref().map(|s| Box::new(self.stmt(source, s))),
            },
            Stmt::Let { var, value, body } => {
                let value = self.expr(value);
                Stmt::Let { var: self.var(var), value, body: Box::new(self.stmt(source, body)) }
            }
            Stmt::Evaluate(e) => Stmt::Evaluate(self.expr(e)),
        }
    }

    fn realize(&mut self, source: &Program, r: &BlockRealize) -> BlockRealize {
        let mut out = r.clone();
        out.iter_values = r.iter_values.iter().map(|e| self.expr(e)).collect();
        for iv in &mut out.block.iter_vars {
            iv.var = self.var(&iv.var);
        }
        out.predicate = self.expr(&r.predicate);
        out.block.id = self.target.fresh_block();
        out.block.alloc_buffers = r.block.alloc_buffers.iter().map(|b| self.buffer(source, *b)).collect();
        out.block.match_buffers =
            r.block.match_buffers.iter().map(|(b, x)| (self.buffer(source, *b), self.region(x))).collect();
        out.block.reads = r.block.reads.iter().map(|x| self.region(x)).collect();
        out.block.writes = r.block.writes.iter().map(|x| self.region(x)).collect();
        out.block.init = r.block.init.as_ref().map(|s| Box::new(self.stmt(source, s)));
        out.block.body = Box::new(self.stmt(source, &r.block.body));
        out
    }
}
