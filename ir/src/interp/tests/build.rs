//! Programs made by hand.
use crate::{
    Annotations, Attr, BinOp, Block, BlockRealize, Buffer, BufferId, DType, Expr, For, ForKind, IterKind, IterVar,
    Program, Range, Region, Stmt, Var,
};
use std::sync::Arc;

/// A program under construction.
pub struct Build(pub Program);

pub fn int(v: i64) -> Expr {
    Expr::Int(v, DType::I32)
}

pub fn f32(v: f64) -> Expr {
    Expr::Float(v.to_bits(), DType::F32)
}

pub fn var(v: &Var) -> Expr {
    Expr::Var(v.clone())
}

pub fn bin(op: BinOp, a: Expr, b: Expr) -> Expr {
    Expr::Binary(op, Arc::new(a), Arc::new(b))
}

pub fn add(a: Expr, b: Expr) -> Expr {
    bin(BinOp::Add, a, b)
}

pub fn mul(a: Expr, b: Expr) -> Expr {
    bin(BinOp::Mul, a, b)
}

pub fn load(b: BufferId, index: &[Expr]) -> Expr {
    Expr::Load(b, index.to_vec())
}

pub fn store(buffer: BufferId, index: &[Expr], value: Expr) -> Stmt {
    Stmt::Store { buffer, indices: index.to_vec(), value }
}

pub fn select(lazy: bool, cond: Expr, then: Expr, otherwise: Expr) -> Expr {
    Expr::Select { lazy, cond: Arc::new(cond), then: Arc::new(then), otherwise: Arc::new(otherwise) }
}

pub fn call(name: &str, args: &[Expr], dtype: DType) -> Expr {
    Expr::Call(name.into(), args.to_vec(), dtype)
}

pub fn region(buffer: BufferId, ranges: &[(Expr, i64)]) -> Region {
    let ranges = ranges.iter().map(|(min, extent)| Range { min: min.clone(), extent: int(*extent) }).collect();
    Region { buffer, ranges }
}

pub fn realize(block: Block, values: Vec<Expr>) -> BlockRealize {
    BlockRealize { iter_values: values, predicate: Expr::Int(1, DType::Bool), block }
}

/// Iterator, its extent, its kind, its value.
pub type Iter<'a> = (&'a Var, i64, IterKind, Expr);

pub const S: IterKind = IterKind::Spatial;
pub const R: IterKind = IterKind::Reduce;

impl Build {
    pub fn new() -> Build {
        let mut p = Program {
            name: "main".into(),
            params: Vec::new(),
            buffers: Vec::new(),
            attrs: Annotations::new(),
            body: realize(Self::empty(crate::BlockId(0), "root"), Vec::new()),
            next_var: 0,
            next_block: 1,
        };
        p.body.block.body = Box::new(Stmt::Seq(Vec::new()));
        Build(p)
    }

    pub fn empty(id: crate::BlockId, name: &str) -> Block {
        Block::plain(id, name, Stmt::Seq(Vec::new()))
    }

    pub fn buffer(&mut self, name: &str, dtype: DType, shape: &[i64]) -> BufferId {
        self.0.add_buffer(Buffer::plain(name, dtype, shape.iter().map(|&s| int(s)).collect(), "global"))
    }

    pub fn param(&mut self, name: &str, dtype: DType, shape: &[i64]) -> BufferId {
        let b = self.buffer(name, dtype, shape);
        self.0.params.push(b);
        b
    }

    pub fn var(&mut self, name: &str) -> Var {
        self.0.fresh_var(name, DType::I32)
    }

    pub fn block(&mut self, name: &str, iters: &[Iter], body: Stmt) -> BlockRealize {
        let mut block = Self::empty(self.0.fresh_block(), name);
        for (v, extent, kind, _) in iters {
            block.iter_vars.push(IterVar { var: (*v).clone(), min: int(0), extent: int(*extent), kind: *kind });
        }
        block.body = Box::new(body);
        realize(block, iters.iter().map(|i| i.3.clone()).collect())
    }

    pub fn done(mut self, body: Stmt) -> Program {
        self.0.body.block.body = Box::new(body);
        self.0
    }
}

pub fn looped(v: &Var, extent: i64, body: Stmt) -> Stmt {
    bound(v, extent, ForKind::Serial, body)
}

pub fn bound(v: &Var, extent: i64, kind: ForKind, body: Stmt) -> Stmt {
    let annotations = Annotations::from_iter([("pragma".to_string(), Attr::Int(1))]);
    Stmt::For(For { var: v.clone(), min: int(0), extent: int(extent), kind, annotations, body: Box::new(body) })
}

pub fn block(r: BlockRealize) -> Stmt {
    Stmt::Realize(Box::new(r))
}
