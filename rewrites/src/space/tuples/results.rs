//! The results of a reduction, each with what it is made of, and blocks that make them.
use super::super::nests::{allocated, nest_over, unused};
use crate::reducer::stores;
use satune_ir::{visit, Block, Buffer, BufferId, DType, Expr, IterKind, IterVar, Program, Stmt, VarId};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// One of the results of a reduction.
#[derive(Clone)]
pub(super) struct Reduced {
    pub buffer: BufferId,
    pub at: Vec<Expr>,
    pub start: Expr,
    /// What is stored, of what all results were before.
    pub value: Expr,
}

impl Reduced {
    pub fn reads(&self, other: &Reduced) -> bool {
        visit::loads(&self.value).iter().any(|(b, _)| *b == other.buffer)
    }

    /// What it was.
    pub fn own(&self) -> Expr {
        Expr::Load(self.buffer, self.at.clone())
    }

    fn store(&self, value: &Expr) -> Stmt {
        Stmt::Store { buffer: self.buffer, indices: self.at.clone(), value: value.clone() }
    }
}

/// What becomes of a block.
pub(super) struct Nests<'b> {
    pub out: Program,
    pub block: &'b Block,
    /// Names of blocks.
    pub taken: BTreeSet<String>,
    pub made: Vec<Stmt>,
}

impl Nests<'_> {
    /// A buffer for another value of each row.
    pub fn beside(&mut self, r: &Reduced, name: &str, dtype: DType) -> Reduced {
        let Buffer { name: of, shape, .. } = self.out.buffer(r.buffer).clone();
        Reduced { buffer: allocated(&mut self.out, &format!("{of}_{name}"), dtype, shape), ..r.clone() }
    }

    pub fn reduction(&mut self, r: &Reduced, start: &Expr, value: &Expr) {
        self.nest(r.buffer, &self.block.iter_vars, Some(r.store(start)), r.store(value));
    }

    /// A value for each row.
    pub fn map(&mut self, r: &Reduced, value: &Expr) {
        let spatial = self.block.iter_vars.iter().filter(|iv| iv.kind != IterKind::Reduce).cloned();
        self.nest(r.buffer, &spatial.collect::<Vec<_>>(), None, r.store(value));
    }

    fn nest(&mut self, buffer: BufferId, iters: &[IterVar], init: Option<Stmt>, body: Stmt) {
        let name = unused(&self.out.buffer(buffer).name, |name| self.taken.contains(name));
        self.taken.insert(name.clone());
        self.made.push(nest_over(&mut self.out, name, iters, init, body));
    }
}

/// The results of a block that has several: as if all values were computed before any is stored.
pub(super) fn results(block: &Block) -> Option<Vec<Reduced>> {
    let starts = stores(block.init.as_deref()?)?;
    let mut bound: HashMap<VarId, Expr> = HashMap::new();
    let mut body = &*block.body;
    while let Stmt::Let { var, value, body: inside } = body {
        bound.insert(var.id, visit::substitute(value, &bound));
        body = inside;
    }
    let (cond, body) = match body {
        Stmt::If { cond, then, otherwise: None } => (Some(Arc::new(visit::substitute(cond, &bound))), &**then),
        other => (None, other),
    };
    let updates = stores(body)?;
    if updates.len() != starts.len() || updates.len() < 2 {
        return None;
    }
    let result = |(number, (buffer, at, value)): (usize, &(BufferId, Vec<Expr>, Expr))| {
        // What is stored before is not what it was.
        let stored = |b: &BufferId| updates[..number].iter().any(|u| u.0 == *b);
        if stored(buffer) || visit::loads(value).iter().any(|(b, _)| stored(b)) {
            return None;
        }
        let (_, _, start) = starts.iter().find(|s| s.0 == *buffer && s.1 == *at)?;
        let value = visit::substitute(value, &bound);
        let own = || Arc::new(Expr::Load(*buffer, at.clone()));
        let under = |cond| Expr::Select { lazy: true, cond, then: Arc::new(value.clone()), otherwise: own() };
        let value = cond.clone().map_or(value.clone(), under);
        Some(Reduced { buffer: *buffer, at: at.clone(), start: start.clone(), value })
    };
    updates.iter().enumerate().map(result).collect()
}
