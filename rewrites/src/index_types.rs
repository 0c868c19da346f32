//! The integer type of indices. A program whose loops are all of 64 bits stays one: the loops, iterators, shapes and literals
//! that a primitive makes get the type of those that were there.
use satune_ir::{fold, Block, BlockRealize, Buffer, BufferId, DType, Expr, For, Program, Range, Region, Stmt, VarId};
use satune_ir::{visit, BinOp, Var};
use std::collections::HashSet;
use std::sync::Arc;

/// What is known of a program's indices before it is scheduled.
#[derive(Clone, Debug, Default)]
pub struct Indices {
    /// Whether all of its loops and iterators have 64 bits.
    wide: bool,
    /// Variables and buffers made so far keep their types.
    variables: u32,
    narrow: HashSet<BufferId>,
}

impl Indices {
    /// Those of a program.
    pub fn of(program: &Program) -> Indices {
        let mut types = HashSet::new();
        each_variable(program, &mut |v| {
            types.insert(v.dtype);
        });
        let narrow = |b: &Buffer| b.shape.iter().any(|d| matches!(d, Expr::Int(_, t) if *t != DType::I64));
        let ids = (0u32..).zip(&program.buffers).filter(|(_, b)| narrow(b)).map(|(id, _)| BufferId(id));
        Indices { wide: types == HashSet::from([DType::I64]), variables: program.next_var, narrow: ids.collect() }
    }

    /// Gives what was made since the indices' type.
    pub fn settle(&self, program: &mut Program) {
        if !self.wide {
            return;
        }
        let mut fresh = HashSet::new();
        each_variable(program, &mut |v| {
            if v.dtype == DType::I32 && v.id.0 >= self.variables {
                fresh.insert(v.id);
            }
        });
        for (id, b) in (0u32..).zip(&mut program.buffers) {
            if !self.narrow.contains(&BufferId(id)) {
                b.shape.iter_mut().for_each(|d| *d = literal(d, DType::I64));
            }
        }
        let buffers = std::mem::take(&mut program.buffers);
        program.body = Widener { fresh: &fresh, buffers: &buffers }.realize(&program.body);
        program.buffers = buffers;
    }
}

/// The same program with all of its indices of 64 bits.
pub fn widened(program: &Program) -> Program {
    let mut out = program.clone();
    Indices { wide: true, ..Indices::default() }.settle(&mut out);
    out
}

/// Calls `f` on every loop variable and iterator.
fn each_variable(program: &Program, f: &mut dyn FnMut(&Var)) {
    let of_block = |b: &Block, f: &mut dyn FnMut(&Var)| b.iter_vars.iter().for_each(|iv| f(&iv.var));
    of_block(&program.body.block, f);
    visit::walk_stmt(&program.body.block.body, &mut |s| match s {
        Stmt::For(l) => f(&l.var),
        Stmt::Realize(r) => of_block(&r.block, f),
        _ => {}
    });
}

/// A number in another type, where it is an integer.
fn literal(e: &Expr, to: DType) -> Expr {
    match e {
        Expr::Int(v, DType::I32) => Expr::Int(*v, to),
        other => other.clone(),
    }
}

struct Widener<'a> {
    /// Variables to be widened.
    fresh: &'a HashSet<VarId>,
    buffers: &'a [Buffer],
}

impl Widener<'_> {
    fn var(&self, v: &Var) -> Var {
        Var { dtype: if self.fresh.contains(&v.id) { DType::I64 } else { v.dtype }, ..v.clone() }
    }

    /// An expression whose literals get the type of what they are computed with.
    fn value(&self, e: &Expr) -> Expr {
        match e {
            Expr::Var(v) => Expr::Var(self.var(v)),
            Expr::Load(b, list) => Expr::Load(*b, list.iter().map(|i| self.index(i)).collect()),
            Expr::Binary(op, a, b) => {
                let (a, b) = (self.value(a), self.value(b));
                let (s, t) = (fold::dtype(&a, self.buffers), fold::dtype(&b, self.buffers));
                let (a, b) = match (s, t) {
                    (DType::I32, DType::I64) => (self.widened(&a), b),
                    (DType::I64, DType::I32) => (a, self.widened(&b)),
                    _ => (a, b),
                };
                Expr::Binary(*op, Arc::new(a), Arc::new(b))
            }
            other => visit::map_children(other, &mut |e| self.value(e)),
        }
    }

    /// An expression that is one of 64 bits where it stands.
    fn index(&self, e: &Expr) -> Expr {
        self.widened(&self.value(e))
    }

    /// Sums and quotients of literals, which nothing else gives a type.
    fn widened(&self, e: &Expr) -> Expr {
        use BinOp::{Add, FloorDiv, FloorMod, Max, Min, Mul, Sub};
        match e {
            Expr::Binary(op @ (Add | Sub | Mul | FloorDiv | FloorMod | Min | Max), a, b)
                if fold::dtype(e, self.buffers) == DType::I32 =>
            {
                let (a, b) = (self.widened(a), self.widened(b));
                Expr::Binary(*op, Arc::new(a), Arc::new(b))
            }
            other => literal(other, DType::I64),
        }
    }

    fn range(&self, r: &Range) -> Range {
        Range { min: self.index(&r.min), extent: self.index(&r.extent) }
    }

    fn region(&self, r: &Region) -> Region {
        Region { buffer: r.buffer, ranges: r.ranges.iter().map(|r| self.range(r)).collect() }
    }

    fn boxed(&self, s: &Stmt) -> Box<Stmt> {
        Box::new(self.stmt(s))
    }

    fn realize(&self, r: &BlockRealize) -> BlockRealize {
        let b = &r.block;
        BlockRealize {
            iter_values: r.iter_values.iter().map(|e| self.index(e)).collect(),
            predicate: self.value(&r.predicate),
            block: Block {
                iter_vars: b
                    .iter_vars
                    .iter()
                    .map(|iv| satune_ir::IterVar {
                        var: self.var(&iv.var),
                        min: self.index(&iv.min),
                        extent: self.index(&iv.extent),
                        kind: iv.kind,
                    })
                    .collect(),
                reads: b.reads.iter().map(|x| self.region(x)).collect(),
                writes: b.writes.iter().map(|x| self.region(x)).collect(),
                init: b.init.as_ref().map(|s| self.boxed(s)),
                match_buffers: b.match_buffers.iter().map(|(view, x)| (*view, self.region(x))).collect(),
                body: self.boxed(&b.body),
                id: b.id,
                name: b.name.clone(),
                alloc_buffers: b.alloc_buffers.clone(),
                annotations: b.annotations.clone(),
            },
        }
    }

    fn stmt(&self, s: &Stmt) -> Stmt {
        match s {
            Stmt::For(l) => Stmt::For(For {
                var: self.var(&l.var),
                min: self.index(&l.min),
                extent: self.index(&l.extent),
                kind: l.kind.clone(),
                annotations: l.annotations.clone(),
                body: self.boxed(&l.body),
            }),
            Stmt::Realize(r) => Stmt::Realize(Box::new(self.realize(r))),
            Stmt::Seq(parts) => Stmt::Seq(parts.iter().map(|s| self.stmt(s)).collect()),
            Stmt::Store { buffer, indices, value } => Stmt::Store {
                buffer: *buffer,
                indices: indices.iter().map(|e| self.index(e)).collect(),
                value: self.value(value),
            },
            Stmt::If { cond, then, otherwise } => Stmt::If {
                cond: self.value(cond),
                then: self.boxed(then),
                otherwise: otherwise.as_ref().map(|s| self.boxed(s)),
            },
            Stmt::Let { var, value, body } => {
                Stmt::Let { var: self.var(var), value: self.value(value), body: self.boxed(body) }
            }
            Stmt::Evaluate(e) => Stmt::Evaluate(self.value(e)),
        }
    }
}
