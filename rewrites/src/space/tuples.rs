//! Reductions with several results, as reductions with one result each.
//!
//! before                                                  after
//!   s, q = S[i] + A[i, k], Q[i] + A[i, k] * A[i, k]         S[i] = S[i] + A[i, k]
//!   S[i], Q[i] = s, q                                       Q[i] = Q[i] + A[i, k] * A[i, k]
//!
//! Threads share reductions of one result: of several there is a thread per row. A result of whose values no other one is made, and
//! which is made of no other one's, is a reduction by itself: the same values, in the same order.
//!
//! It is done where each of the new blocks sums up rows as they lie in memory. Such blocks have a kernel with several threads per
//! row, which reads the row once for all of them. Other blocks would read once each what the one reads once, and stay as they are; so do
//! those of very many rows of a few elements.
mod extremum;

use super::nests::{allocated, block_of, nest_over, parts, unused};
use crate::reducer::stores;
use crate::tree::all_realizes;
use extremum::Extremum;
use satune_ir::{visit, Block, Buffer, BufferId, DType, Expr, IterKind, IterVar, Program, Stmt, VarId};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The same program with blocks of one result each for its reductions of several, where `sums_rows` takes all of these.
pub(super) fn taken_apart(program: &Program, sums_rows: impl Fn(&Program, &Stmt) -> bool) -> Program {
    let mut out = program.clone();
    let mut made = Vec::new();
    let mut taken = all_realizes(&program.body.block.body).into_iter().map(|r| r.block.name.clone()).collect();
    for part in parts(program) {
        let several = block_of(program, part).ok().and_then(|block| Some((block, results(block)?)));
        let nests = several.and_then(|(block, results)| {
            let mut nests = Nests { out: out.clone(), block, taken: BTreeSet::clone(&taken), made: Vec::new() };
            nests.of(part, results)?;
            let reduces = |nest: &&Stmt| all_realizes(nest).iter().any(|r| r.block.init.is_some());
            nests.made.iter().filter(reduces).all(|nest| sums_rows(&nests.out, nest)).then_some(nests)
        });
        match nests {
            Some(nests) => {
                made.extend(nests.made);
                (out, taken) = (nests.out, nests.taken);
            }
            None => made.push(part.clone()),
        }
    }
    out.body.block.body = Box::new(Stmt::seq(made));
    out
}

/// One of the results of a reduction.
#[derive(Clone)]
struct Reduced {
    buffer: BufferId,
    at: Vec<Expr>,
    start: Expr,
    /// What is stored, of what all results were before.
    value: Expr,
}

impl Reduced {
    fn reads(&self, other: &Reduced) -> bool {
        visit::loads(&self.value).iter().any(|(b, _)| *b == other.buffer)
    }

    /// What it was.
    fn own(&self) -> Expr {
        Expr::Load(self.buffer, self.at.clone())
    }

    fn store(&self, value: &Expr) -> Stmt {
        Stmt::Store { buffer: self.buffer, indices: self.at.clone(), value: value.clone() }
    }
}

/// What becomes of a block.
struct Nests<'b> {
    out: Program,
    block: &'b Block,
    /// Names of blocks.
    taken: BTreeSet<String>,
    made: Vec<Stmt>,
}

impl Nests<'_> {
    /// A block for each result that is made of no other, and of which no other is made; the rest is an extremum and its place.
    fn of(&mut self, part: &Stmt, results: Vec<Reduced>) -> Option<()> {
        let alone = |r: &Reduced| {
            let mut others = results.iter().filter(|other| other.buffer != r.buffer);
            !others.any(|other| r.reads(other) || other.reads(r))
        };
        let (alone, together): (Vec<Reduced>, Vec<Reduced>) = results.iter().cloned().partition(alone);
        alone.iter().for_each(|r| self.reduction(r, &r.start, &r.value));
        match together[..] {
            [] => Some(()),
            _ => Extremum::of(&self.out, self.block, &together)?.nests(self, part),
        }
    }

    /// A buffer for another value of each row.
    fn beside(&mut self, r: &Reduced, name: &str, dtype: DType) -> Reduced {
        let Buffer { name: of, shape, .. } = self.out.buffer(r.buffer).clone();
        Reduced { buffer: allocated(&mut self.out, &format!("{of}_{name}"), dtype, shape), ..r.clone() }
    }

    fn reduction(&mut self, r: &Reduced, start: &Expr, value: &Expr) {
        self.nest(r.buffer, &self.block.iter_vars, Some(r.store(start)), r.store(value));
    }

    /// A value for each row.
    fn map(&mut self, r: &Reduced, value: &Expr) {
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
fn results(block: &Block) -> Option<Vec<Reduced>> {
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

#[cfg(test)]
mod tests;
