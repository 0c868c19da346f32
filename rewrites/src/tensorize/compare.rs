//! The comparison of a block with the description of an intrinsic: equal up to names of variables, blocks and buffers, and up to the place of the accessed boxes
//! inside their buffers.
use crate::linear::Linear;
use crate::simplify::simplified;
use satune_ir::affine::{int, Domains};
use satune_ir::{
    tvmscript, visit, Annotations, BinOp, Block, BlockRealize, BufferId, DType, Expr, For, IterVar, Program, Range,
    Region, Stmt, Var, VarId,
};
use std::collections::HashMap;
use std::sync::Arc;

/// What a block (first) and a description (second) have in common so far.
#[derive(Debug)]
pub(super) struct Comparison<'p> {
    program: &'p Program,
    description: &'p Program,
    /// Variables of the description, in terms of those of the program.
    vars: HashMap<VarId, Expr>,
    /// Buffers of the description.
    buffers: HashMap<BufferId, BufferId>,
    /// First indices of the boxes that the block accesses, by buffer of the program.
    bases: HashMap<BufferId, Vec<Expr>>,
    domains: Domains,
}

/// Equal, or what is not.
type Same = Result<(), String>;

impl<'p> Comparison<'p> {
    pub fn new(program: &'p Program, description: &'p Program) -> Self {
        Comparison {
            program,
            description,
            vars: HashMap::new(),
            buffers: HashMap::new(),
            bases: HashMap::new(),
            domains: Domains::new(),
        }
    }

    /// The buffer of the program that one of the description stands for.
    pub fn buffer_of(&self, of_description: BufferId) -> Option<BufferId> {
        self.buffers.get(&of_description).copied()
    }

    /// First indices of the box of a buffer.
    pub fn base(&self, buffer: BufferId) -> &[Expr] {
        self.bases.get(&buffer).map_or(&[], Vec::as_slice)
    }

    /// The blocks around all: iterators and annotations of the program's are its own.
    pub fn outermost(&mut self, x: &Block, y: &Block) -> Same {
        self.regions("writes", &x.writes, &y.writes, true)?;
        self.regions("reads", &x.reads, &y.reads, true)?;
        self.annotations(&x.annotations, &y.annotations)?;
        if x.init.is_some() {
            return Err(format!("block {} has an init, the intrinsic none", x.name));
        }
        self.stmt(&x.body, &y.body)
    }

    fn show(&self, e: &Expr) -> String {
        tvmscript::expression(self.program, e)
    }

    fn show_theirs(&self, e: &Expr) -> String {
        tvmscript::expression(self.description, e)
    }

    /// In the program's variables.
    fn here(&self, e: &Expr) -> Expr {
        simplified(&visit::substitute(e, &self.vars), &self.domains)
    }

    fn define(&mut self, x: &Var, y: &Var, min: &Expr, extent: &Expr) {
        self.vars.insert(y.id, Expr::Var(x.clone()));
        self.domains.insert(x.id, Range { min: min.clone(), extent: extent.clone() });
    }

    fn proved_equal(&self, x: &Expr, y: &Expr) -> bool {
        let (x, y) = (simplified(x, &self.domains), simplified(y, &self.domains));
        if x == y {
            return true;
        }
        let linear = |e: &Expr| Linear::of(e, &self.domains);
        let difference = linear(&x).zip(linear(&y)).and_then(|(x, y)| x.plus(&y, -1));
        difference.and_then(|d| d.as_constant()) == Some(0)
    }

    fn index(&self, what: &str, x: &Expr, y: &Expr) -> Same {
        if self.proved_equal(x, &self.here(y)) {
            return Ok(());
        }
        Err(format!("{what}: {} against {}", self.show(x), self.show_theirs(y)))
    }

    fn buffer(&mut self, x: BufferId, y: BufferId) -> Same {
        let (a, b) = (self.program.buffer(x), self.description.buffer(y));
        if let Some(known) = self.buffers.get(&y) {
            let known = &self.program.buffer(*known).name;
            let same = self.buffers.get(&y) == Some(&x);
            return if same { Ok(()) } else { Err(format!("{} is {known}, but here {}", b.name, a.name)) };
        }
        if self.buffers.values().any(|known| *known == x) {
            return Err(format!("buffer {} stands for two parameters, {} among them", a.name, b.name));
        }
        if a.dtype != b.dtype {
            let (t, u) = (a.dtype.name(), b.dtype.name());
            return Err(format!("buffer {} is {t}, parameter {} of the intrinsic {u}", a.name, b.name));
        }
        if a.scope != b.scope {
            return Err(format!(
                "buffer {} is in scope {}, parameter {} of the intrinsic in {}",
                a.name, a.scope, b.name, b.scope
            ));
        }
        self.buffers.insert(y, x);
        Ok(())
    }

    fn regions(&mut self, what: &str, x: &[Region], y: &[Region], outermost: bool) -> Same {
        if x.len() != y.len() {
            return Err(format!("{} {what}, the intrinsic has {}", x.len(), y.len()));
        }
        x.iter().zip(y).try_for_each(|(x, y)| self.region(x, y, outermost))
    }

    fn region(&mut self, x: &Region, y: &Region, outermost: bool) -> Same {
        self.buffer(x.buffer, y.buffer)?;
        let name = self.program.buffer(x.buffer).name.clone();
        let Some(lead) = x.ranges.len().checked_sub(y.ranges.len()) else {
            return Err(format!("{name} has {} dimensions, the intrinsic {}", x.ranges.len(), y.ranges.len()));
        };
        if outermost && !self.bases.contains_key(&x.buffer) {
            self.bases.insert(x.buffer, x.ranges.iter().map(|r| r.min.clone()).collect());
        }
        let one = int(1, DType::I32);
        for r in &x.ranges[..lead] {
            self.index(&format!("extent of an outer dimension of {name}"), &r.extent, &one)?;
        }
        for (r, s) in x.ranges[lead..].iter().zip(&y.ranges) {
            self.index(&format!("extent of a region of {name}"), &r.extent, &s.extent)?;
        }
        let mins = |r: &Region| -> Vec<Expr> { r.ranges.iter().map(|r| r.min.clone()).collect() };
        self.indices(x.buffer, &mins(x), &mins(y))
    }

    /// Indices beyond the base of the buffer.
    fn indices(&self, buffer: BufferId, x: &[Expr], y: &[Expr]) -> Same {
        let name = &self.program.buffer(buffer).name;
        let Some(base) = self.bases.get(&buffer) else {
            return Err(format!("the block declares no region of {name}"));
        };
        let Some(lead) = x.len().checked_sub(y.len()) else {
            return Err(format!("{name} has {} indices, the intrinsic {}", x.len(), y.len()));
        };
        for (d, (x, base)) in x.iter().zip(base).enumerate() {
            let wanted = match d.checked_sub(lead).and_then(|d| y.get(d)) {
                Some(y) => satune_ir::affine::add(base.clone(), self.here(y)),
                None => base.clone(),
            };
            if !self.proved_equal(x, &wanted) {
                let theirs = d.checked_sub(lead).and_then(|d| y.get(d)).map_or("0".into(), |y| self.show_theirs(y));
                let (x, base) = (self.show(x), self.show(base));
                return Err(format!(
                    "dimension {d} of {name}: index {x} is not {base}, where its box begins, plus {theirs}"
                ));
            }
        }
        Ok(())
    }

    /// What the intrinsic asks for must be there; what else there is says nothing against it.
    fn annotations(&self, x: &Annotations, y: &Annotations) -> Same {
        match y.iter().find(|(key, value)| x.get(*key) != Some(*value)) {
            Some((key, _)) => Err(format!("annotation {key} of the intrinsic is not there")),
            None => Ok(()),
        }
    }

    fn iterator(&mut self, x: &IterVar, y: &IterVar) -> Same {
        let name = x.var.name.clone();
        if x.kind != y.kind {
            return Err(format!("iterator {name} is {:?}, that of the intrinsic {:?}", x.kind, y.kind));
        }
        self.index(&format!("first value of iterator {name}"), &x.min, &y.min)?;
        self.index(&format!("extent of iterator {name}"), &x.extent, &y.extent)?;
        self.define(&x.var, &y.var, &x.min, &x.extent);
        Ok(())
    }

    fn realize(&mut self, x: &BlockRealize, y: &BlockRealize) -> Same {
        let (a, b) = (&x.block, &y.block);
        if a.iter_vars.len() != b.iter_vars.len() {
            let (n, m) = (a.iter_vars.len(), b.iter_vars.len());
            return Err(format!("block {} has {n} iterators, that of the intrinsic {m}", a.name));
        }
        for (x, y) in x.iter_values.iter().zip(&y.iter_values) {
            self.index(&format!("binding of block {}", a.name), x, y)?;
        }
        self.value(&x.predicate, &y.predicate)?;
        for (x, y) in a.iter_vars.iter().zip(&b.iter_vars) {
            self.iterator(x, y)?;
        }
        self.annotations(&a.annotations, &b.annotations)?;
        let views = [&a.match_buffers, &b.match_buffers].iter().any(|l| !l.is_empty());
        if views || !a.alloc_buffers.is_empty() || !b.alloc_buffers.is_empty() {
            return Err(format!("block {} has buffers of its own", a.name));
        }
        self.regions("writes", &a.writes, &b.writes, false)?;
        self.regions("reads", &a.reads, &b.reads, false)?;
        match (&a.init, &b.init) {
            (None, None) => {}
            (Some(x), Some(y)) => self.stmt(x, y)?,
            _ => return Err(format!("block {} and that of the intrinsic: only one has an init", a.name)),
        }
        self.stmt(&a.body, &b.body)
    }

    fn stmt(&mut self, x: &Stmt, y: &Stmt) -> Same {
        match (x, y) {
            (Stmt::For(x), Stmt::For(y)) => self.loop_(x, y),
            (Stmt::Realize(x), Stmt::Realize(y)) => self.realize(x, y),
            (Stmt::Seq(x), Stmt::Seq(y)) if x.len() == y.len() => {
                x.iter().zip(y).try_for_each(|(x, y)| self.stmt(x, y))
            }
            (Stmt::Store { buffer, indices, value }, Stmt::Store { buffer: b, indices: i, value: v }) => {
                self.buffer(*buffer, *b)?;
                self.indices(*buffer, indices, i)?;
                self.value(value, v)
            }
            (Stmt::Evaluate(x), Stmt::Evaluate(y)) => self.value(x, y),
            _ => Err(format!("{} against {}", kind(x), kind(y))),
        }
    }

    fn loop_(&mut self, x: &For, y: &For) -> Same {
        let name = x.var.name.clone();
        if x.kind != y.kind {
            return Err(format!("loop {name} is {:?}, that of the intrinsic {:?}", x.kind, y.kind));
        }
        self.index(&format!("first value of loop {name}"), &x.min, &y.min)?;
        self.index(&format!("extent of loop {name}"), &x.extent, &y.extent)?;
        self.annotations(&x.annotations, &y.annotations)?;
        self.define(&x.var, &y.var, &x.min, &x.extent);
        self.stmt(&x.body, &y.body)
    }

    fn value(&mut self, x: &Expr, y: &Expr) -> Same {
        let all = |c: &mut Self, x: &[Expr], y: &[Expr]| x.iter().zip(y).try_for_each(|(x, y)| c.value(x, y));
        let pair = |c: &mut Self, x: &Arc<Expr>, y: &Arc<Expr>| c.value(x, y);
        match (x, y) {
            (Expr::Load(a, i), Expr::Load(b, j)) => {
                self.buffer(*a, *b)?;
                self.indices(*a, i, j)
            }
            (Expr::Binary(o, a, b), Expr::Binary(p, c, d)) if o == p => {
                pair(self, a, c)?;
                pair(self, b, d)
            }
            (Expr::Not(a), Expr::Not(b)) => pair(self, a, b),
            (Expr::Cast(t, a), Expr::Cast(u, b)) if t == u => pair(self, a, b),
            (
                Expr::Select { lazy, cond, then, otherwise },
                Expr::Select { lazy: l, cond: c, then: t, otherwise: o },
            ) if lazy == l => {
                pair(self, cond, c)?;
                pair(self, then, t)?;
                pair(self, otherwise, o)
            }
            (Expr::Call(n, a, t), Expr::Call(m, b, u)) if n == m && t == u && a.len() == b.len() => all(self, a, b),
            (Expr::Var(_), Expr::Var(_)) => self.index("value", x, y),
            _ if x == y => Ok(()),
            _ => Err(format!("{}: {} against {}", operation(x, y), self.show(x), self.show_theirs(y))),
        }
    }
}

fn operation(x: &Expr, y: &Expr) -> &'static str {
    match (x, y) {
        (Expr::Binary(BinOp::Add | BinOp::Sub | BinOp::Mul, ..), Expr::Binary(..)) => "the operations differ",
        (Expr::Cast(..), _) | (_, Expr::Cast(..)) => "the conversions differ",
        _ => "the values differ",
    }
}

fn kind(s: &Stmt) -> String {
    match s {
        Stmt::For(l) => format!("loop {}", l.var.name),
        Stmt::Realize(r) => format!("block {}", r.block.name),
        Stmt::Seq(parts) => format!("{} statements", parts.len()),
        Stmt::Store { .. } => "a store".into(),
        Stmt::If { .. } => "a condition".into(),
        Stmt::Let { .. } => "a let".into(),
        Stmt::Evaluate(_) => "a call".into(),
    }
}
