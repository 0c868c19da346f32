//! Equality of programs up to the names of functions, variables, blocks' variables and buffers.
use crate::{
    Attr, Block, BlockRealize, BufferId, Expr, For, ForKind, IterVar, Program, Range, Region, Stmt, Var, VarId,
};
use std::collections::HashMap;

/// The first place where two programs differ.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {left} against {right}")]
pub struct Difference {
    /// Where: names of the blocks and loops above.
    pub path: String,
    /// What the first program has.
    pub left: String,
    /// What the second has.
    pub right: String,
}

/// Whether two programs are the same up to names of variables and buffers. Block names count: handles are made of them.
///
/// # Errors
/// The first difference.
pub fn equal(a: &Program, b: &Program) -> Result<(), Difference> {
    let mut pair = Pair { a, b, vars: HashMap::new(), back: HashMap::new(), buffers: HashMap::new(), path: Vec::new() };
    pair.same("number of parameters", &a.params.len(), &b.params.len())?;
    for (x, y) in a.params.iter().zip(&b.params) {
        pair.define_buffer(*x, *y)?;
    }
    pair.annotations(&a.attrs, &b.attrs)?;
    pair.realize(&a.body, &b.body)
}

struct Pair<'p> {
    a: &'p Program,
    b: &'p Program,
    vars: HashMap<VarId, VarId>,
    back: HashMap<VarId, VarId>,
    buffers: HashMap<BufferId, BufferId>,
    path: Vec<String>,
}

type Same = Result<(), Difference>;

impl Pair<'_> {
    fn differ(&self, what: &str, left: String, right: String) -> Same {
        let mut path = self.path.join(" / ");
        if !path.is_empty() {
            path.push_str(": ");
        }
        Err(Difference { path: path + what, left, right })
    }

    fn same<T: PartialEq + std::fmt::Debug>(&self, what: &str, x: &T, y: &T) -> Same {
        if x == y {
            Ok(())
        } else {
            self.differ(what, format!("{x:?}"), format!("{y:?}"))
        }
    }

    fn define(&mut self, x: &Var, y: &Var) -> Same {
        self.same("variable's type", &x.dtype, &y.dtype)?;
        self.vars.insert(x.id, y.id);
        self.back.insert(y.id, x.id);
        Ok(())
    }

    fn define_buffer(&mut self, x: BufferId, y: BufferId) -> Same {
        let (p, q) = (self.a.buffer(x), self.b.buffer(y));
        let what = format!("buffer {}", p.name);
        self.same(&what, &p.dtype, &q.dtype)?;
        self.same(&what, &p.scope, &q.scope)?;
        // A stride may be a name (`strides=("s0", "s1")`), which the two programs have each of its own.
        self.exprs(&what, &p.shape, &q.shape)?;
        self.same(&what, &p.strides.len(), &q.strides.len())?;
        self.same(&what, &(p.offset_factor, p.align), &(q.offset_factor, q.align))?;
        self.buffers.insert(x, y);
        Ok(())
    }

    fn buffer(&self, what: &str, x: BufferId, y: BufferId) -> Same {
        if self.buffers.get(&x) == Some(&y) {
            return Ok(());
        }
        self.differ(what, self.a.buffer(x).name.clone(), self.b.buffer(y).name.clone())
    }

    fn annotations(&self, x: &crate::Annotations, y: &crate::Annotations) -> Same {
        // Order does not count.
        let sorted = |m: &crate::Annotations| {
            let mut list: Vec<(String, Attr)> = m.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            list.sort_by(|p, q| p.0.cmp(&q.0));
            list
        };
        self.same("annotations", &sorted(x), &sorted(y))
    }

    fn exprs(&self, what: &str, x: &[Expr], y: &[Expr]) -> Same {
        self.same(what, &x.len(), &y.len())?;
        x.iter().zip(y).try_for_each(|(p, q)| self.expr(what, p, q))
    }

    fn expr(&self, what: &str, x: &Expr, y: &Expr) -> Same {
        if self.equal_exprs(x, y) {
            return Ok(());
        }
        let show = |p: &Program, e: &Expr| crate::tvmscript::expression(p, e);
        self.differ(what, show(self.a, x), show(self.b, y))
    }

    fn equal_exprs(&self, x: &Expr, y: &Expr) -> bool {
        let all = |p: &[Expr], q: &[Expr]| p.len() == q.len() && p.iter().zip(q).all(|(a, b)| self.equal_exprs(a, b));
        match (x, y) {
            (Expr::Var(p), Expr::Var(q)) => self.vars.get(&p.id) == Some(&q.id) && self.back.get(&q.id) == Some(&p.id),
            (Expr::Binary(o, a, b), Expr::Binary(p, c, d)) => {
                o == p && self.equal_exprs(a, c) && self.equal_exprs(b, d)
            }
            (Expr::Not(a), Expr::Not(b)) => self.equal_exprs(a, b),
            (Expr::Cast(t, a), Expr::Cast(u, b)) => t == u && self.equal_exprs(a, b),
            (
                Expr::Select { lazy, cond, then, otherwise },
                Expr::Select { lazy: l, cond: c, then: t, otherwise: o },
            ) => lazy == l && self.equal_exprs(cond, c) && self.equal_exprs(then, t) && self.equal_exprs(otherwise, o),
            (Expr::Load(b, i), Expr::Load(c, j)) => self.buffers.get(b) == Some(c) && all(i, j),
            (Expr::Call(n, a, t), Expr::Call(m, b, u)) => n == m && t == u && all(a, b),
            (Expr::Int(..) | Expr::Float(..) | Expr::Str(_), _) => x == y,
            _ => false,
        }
    }

    fn range(&self, what: &str, x: &Range, y: &Range) -> Same {
        self.expr(what, &x.min, &y.min)?;
        self.expr(what, &x.extent, &y.extent)
    }

    fn regions(&mut self, what: &str, x: &[Region], y: &[Region]) -> Same {
        self.same(&format!("number of {what}"), &x.len(), &y.len())?;
        for (p, q) in x.iter().zip(y) {
            let met = self.buffers.contains_key(&p.buffer) || self.buffers.values().any(|b| *b == q.buffer);
            if !met {
                // A buffer that nothing declares is what the other program has in its place.
                self.define_buffer(p.buffer, q.buffer)?;
            }
            self.buffer(what, p.buffer, q.buffer)?;
            self.same(what, &p.ranges.len(), &q.ranges.len())?;
            p.ranges.iter().zip(&q.ranges).try_for_each(|(a, b)| self.range(what, a, b))?;
        }
        Ok(())
    }

    fn realize(&mut self, x: &BlockRealize, y: &BlockRealize) -> Same {
        self.path.push(x.block.name.clone());
        self.same("block's name", &x.block.name, &y.block.name)?;
        self.exprs("iterator values", &x.iter_values, &y.iter_values)?;
        self.expr("predicate", &x.predicate, &y.predicate)?;
        self.block(&x.block, &y.block)?;
        self.path.pop();
        Ok(())
    }

    fn block(&mut self, x: &Block, y: &Block) -> Same {
        self.same("number of iterators", &x.iter_vars.len(), &y.iter_vars.len())?;
        for (p, q) in x.iter_vars.iter().zip(&y.iter_vars) {
            self.iter_var(p, q)?;
        }
        self.same("number of allocations", &x.alloc_buffers.len(), &y.alloc_buffers.len())?;
        for (p, q) in x.alloc_buffers.iter().zip(&y.alloc_buffers) {
            self.define_buffer(*p, *q)?;
        }
        self.regions("reads", &x.reads, &y.reads)?;
        self.regions("writes", &x.writes, &y.writes)?;
        self.same("number of match_buffers", &x.match_buffers.len(), &y.match_buffers.len())?;
        for ((p, r), (q, s)) in x.match_buffers.iter().zip(&y.match_buffers) {
            self.regions("match_buffer", std::slice::from_ref(r), std::slice::from_ref(s))?;
            self.define_buffer(*p, *q)?;
        }
        self.annotations(&x.annotations, &y.annotations)?;
        match (&x.init, &y.init) {
            (Some(p), Some(q)) => self.stmt(p, q)?,
            (p, q) => self.same("init", &p.is_some(), &q.is_some())?,
        }
        self.stmt(&x.body, &y.body)
    }

    fn iter_var(&mut self, x: &IterVar, y: &IterVar) -> Same {
        let what = format!("iterator {}", x.var.name);
        self.same(&what, &x.kind, &y.kind)?;
        self.expr(&what, &x.min, &y.min)?;
        self.expr(&what, &x.extent, &y.extent)?;
        self.define(&x.var, &y.var)
    }

    fn stmt(&mut self, x: &Stmt, y: &Stmt) -> Same {
        match (x, y) {
            (Stmt::For(p), Stmt::For(q)) => self.loop_(p, q),
            (Stmt::Realize(p), Stmt::Realize(q)) => self.realize(p, q),
            (Stmt::Seq(p), Stmt::Seq(q)) => {
                self.same("number of statements", &p.len(), &q.len())?;
                p.iter().zip(q).try_for_each(|(a, b)| self.stmt(a, b))
            }
            (Stmt::Store { buffer, indices, value }, Stmt::Store { buffer: b, indices: i, value: v }) => {
                self.buffer("store", *buffer, *b)?;
                self.exprs("indices of a store", indices, i)?;
                self.expr("stored value", value, v)
            }
            (Stmt::If { cond, then, otherwise }, Stmt::If { cond: c, then: t, otherwise: o }) => {
                self.expr("condition", cond, c)?;
                self.stmt(then, t)?;
                match (otherwise, o) {
                    (Some(p), Some(q)) => self.stmt(p, q),
                    (p, q) => self.same("else", &p.is_some(), &q.is_some()),
                }
            }
            (Stmt::Let { var, value, body }, Stmt::Let { var: w, value: v, body: b }) => {
                self.expr("let", value, v)?;
                self.define(var, w)?;
                self.stmt(body, b)
            }
            (Stmt::Evaluate(p), Stmt::Evaluate(q)) => self.expr("evaluate", p, q),
            _ => self.same("statement", &kind(x), &kind(y)),
        }
    }

    fn loop_(&mut self, x: &For, y: &For) -> Same {
        self.path.push(x.var.name.to_string());
        self.expr("first value", &x.min, &y.min)?;
        self.expr("extent", &x.extent, &y.extent)?;
        self.same::<ForKind>("loop's kind", &x.kind, &y.kind)?;
        self.annotations(&x.annotations, &y.annotations)?;
        self.define(&x.var, &y.var)?;
        self.stmt(&x.body, &y.body)?;
        self.path.pop();
        Ok(())
    }
}

fn kind(s: &Stmt) -> String {
    match s {
        Stmt::For(l) => format!("loop {}", l.var.name),
        Stmt::Realize(r) => format!("block {}", r.block.name),
        Stmt::Seq(parts) => {
            let parts: Vec<String> = parts.iter().map(kind).collect();
            format!("[{}]", parts.join(", "))
        }
        Stmt::Store { .. } => "store".into(),
        Stmt::If { .. } => "if".into(),
        Stmt::Let { var, .. } => format!("let {}", var.name),
        Stmt::Evaluate(_) => "evaluate".into(),
    }
}
