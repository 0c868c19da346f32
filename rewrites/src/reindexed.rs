//! Rewriting the indices of all accesses in a statement.
use crate::arith::{self, constant, int, Domains};
use crate::linear::conjuncts;
use crate::regions;
use satune_ir::affine::ends;
use satune_ir::{BinOp, BlockRealize, BufferId, DType, Expr, Range, Stmt};
use std::sync::Arc;

/// The new indices of an access to a buffer; none where it stays as it is.
pub type NewIndices<'a> = dyn Fn(BufferId, &[Expr]) -> Option<Vec<Expr>> + 'a;

/// New indices for the accesses of buffers, brought to normal form with what is known of the variables around each.
pub struct Rewriter<'a> {
    /// The new indices of an access, before they are simplified.
    pub map: &'a NewIndices<'a>,
    /// The domains of the variables around.
    pub ranges: Domains,
    /// The conditions around.
    pub guards: Vec<Expr>,
}

impl Rewriter<'_> {
    /// Indices in normal form, where they are in mixed radix.
    pub fn simplified(&self, mapped: &[Expr]) -> Vec<Expr> {
        let guard = crate::linear::all(self.guards.iter().cloned());
        let simple = arith::iter_map_simplify(mapped, &self.ranges, &guard, false);
        let keep = |(new, old): (Expr, &Expr)| match (&new, old) {
            (Expr::Int(..), Expr::Var(_)) => old.clone(),
            _ => new,
        };
        simple.into_iter().zip(mapped).map(keep).collect()
    }

    fn indices(&self, buffer: BufferId, list: &[Expr]) -> Vec<Expr> {
        (self.map)(buffer, list).map_or_else(|| list.to_vec(), |new| self.simplified(&new))
    }

    /// An expression.
    pub fn expr(&mut self, e: &Expr) -> Expr {
        match e {
            Expr::Int(..) | Expr::Float(..) | Expr::Str(_) | Expr::Var(_) => e.clone(),
            Expr::Binary(op, a, b) => Expr::Binary(*op, Arc::new(self.expr(a)), Arc::new(self.expr(b))),
            Expr::Not(a) => Expr::Not(Arc::new(self.expr(a))),
            Expr::Cast(t, a) => Expr::Cast(*t, Arc::new(self.expr(a))),
            Expr::Select { lazy, cond, then, otherwise } => {
                let new_cond = self.expr(cond);
                let old = self.ranges.clone();
                if *lazy {
                    conjuncts(cond).iter().for_each(|c| narrow(&mut self.ranges, c));
                }
                let then = self.expr(then);
                self.ranges = old;
                let otherwise = Arc::new(self.expr(otherwise));
                Expr::Select { lazy: *lazy, cond: Arc::new(new_cond), then: Arc::new(then), otherwise }
            }
            Expr::Load(b, list) => {
                let list: Vec<Expr> = list.iter().map(|e| self.expr(e)).collect();
                Expr::Load(*b, self.indices(*b, &list))
            }
            Expr::Call(name, list, t) => Expr::Call(name.clone(), list.iter().map(|e| self.expr(e)).collect(), *t),
        }
    }

    fn boxed(&mut self, s: &Stmt) -> Box<Stmt> {
        Box::new(self.stmt(s))
    }

    /// A statement.
    pub fn stmt(&mut self, s: &Stmt) -> Stmt {
        match s {
            Stmt::For(l) => {
                let mut out = l.clone();
                self.ranges.insert(l.var.id, Range { min: l.min.clone(), extent: l.extent.clone() });
                out.body = self.boxed(&l.body);
                self.ranges.remove(&l.var.id);
                Stmt::For(out)
            }
            Stmt::Realize(r) => Stmt::Realize(Box::new(self.realize(r))),
            Stmt::Seq(parts) => Stmt::Seq(parts.iter().map(|s| self.stmt(s)).collect()),
            Stmt::Store { buffer, indices, value } => {
                let value = self.expr(value);
                let indices: Vec<Expr> = indices.iter().map(|e| self.expr(e)).collect();
                let indices = self.indices(*buffer, &indices);
                Stmt::Store { buffer: *buffer, indices, value }
            }
            Stmt::If { cond, then, otherwise } => Stmt::If {
                cond: self.expr(cond),
                then: self.boxed(then),
                otherwise: otherwise.as_ref().map(|s| self.boxed(s)),
            },
            Stmt::Let { var, value, body } => {
                Stmt::Let { var: var.clone(), value: self.expr(value), body: self.boxed(body) }
            }
            Stmt::Evaluate(e) => Stmt::Evaluate(self.expr(e)),
        }
    }

    /// A block.
    pub fn realize(&mut self, r: &BlockRealize) -> BlockRealize {
        let mut out = r.clone();
        out.iter_values = r.iter_values.iter().map(|e| self.expr(e)).collect();
        out.predicate = self.expr(&r.predicate);
        let guarded = r.predicate != int(1, DType::Bool);
        if guarded {
            self.guards.push(r.predicate.clone());
        }
        self.ranges.extend(regions::iter_domains(&r.block));
        if let Some(init) = &r.block.init {
            out.block.init = Some(self.boxed(init));
        }
        out.block.body = self.boxed(&r.block.body);
        r.block.iter_vars.iter().for_each(|iv| {
            self.ranges.remove(&iv.var.id);
        });
        if guarded {
            self.guards.pop();
        }
        out
    }
}

/// Narrows the range of a variable that a condition bounds by a constant.
fn narrow(ranges: &mut Domains, clause: &Expr) {
    let Expr::Binary(op, a, b) = clause else { return };
    let (v, least, most) = match (&**a, constant(a), &**b, constant(b)) {
        (Expr::Var(v), _, _, Some(c)) => match op {
            BinOp::Lt => (v, None, c.checked_sub(1)),
            BinOp::Le => (v, None, Some(c)),
            BinOp::Gt => (v, c.checked_add(1), None),
            BinOp::Ge => (v, Some(c), None),
            _ => return,
        },
        (_, Some(c), Expr::Var(v), _) => match op {
            BinOp::Lt => (v, c.checked_add(1), None),
            BinOp::Le => (v, Some(c), None),
            BinOp::Gt => (v, None, c.checked_sub(1)),
            BinOp::Ge => (v, None, Some(c)),
            _ => return,
        },
        _ => return,
    };
    let Some((lo, hi)) = ranges.get(&v.id).and_then(ends) else { return };
    let (lo, hi) = (least.map_or(lo, |l| lo.max(l)), most.map_or(hi, |m| hi.min(m)));
    if lo <= hi {
        if let Some(extent) = hi.checked_sub(lo).and_then(|e| e.checked_add(1)) {
            ranges.insert(v.id, Range { min: int(lo, v.dtype), extent: int(extent, v.dtype) });
        }
    }
}
