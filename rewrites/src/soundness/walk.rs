//! The accesses of a program in its order, with what stands around each.
use satune_ir::{fields, BinOp, BlockId, BlockRealize, BufferId, Expr, For, Program, Region, Stmt, Var, VarId};
use std::collections::{HashMap, HashSet};

/// What stands around an access, outermost first.
#[derive(Clone, Copy, Debug)]
pub(super) enum Frame<'a> {
    Loop(&'a For),
    Block(&'a BlockRealize),
    Let(&'a Var, &'a Expr),
    If(&'a Expr, bool),
    /// The init of the block around it: runs where all reductions start.
    Init(&'a BlockRealize),
}

impl Frame<'_> {
    pub(super) fn same(&self, other: &Frame) -> bool {
        match (self, other) {
            (Frame::Loop(a), Frame::Loop(b)) => std::ptr::eq(*a, *b),
            (Frame::Block(a), Frame::Block(b)) | (Frame::Init(a), Frame::Init(b)) => std::ptr::eq(*a, *b),
            (Frame::Let(a, _), Frame::Let(b, _)) => a == b,
            (Frame::If(a, x), Frame::If(b, y)) => std::ptr::eq(*a, *b) && x == y,
            _ => false,
        }
    }
}

/// A load or store.
#[derive(Clone, Debug)]
pub(super) struct Access<'a> {
    pub(super) buffer: BufferId,
    pub(super) write: bool,
    pub(super) indices: &'a [Expr],
    pub(super) frames: Vec<Frame<'a>>,
    /// Of a store: its value.
    pub(super) value: Option<&'a Expr>,
}

impl<'a> Access<'a> {
    pub(super) fn block(&self) -> Option<BlockId> {
        innermost(&self.frames)
    }

    /// Number of loops around it.
    pub(super) fn loops(&self) -> usize {
        self.frames.iter().filter(|f| matches!(f, Frame::Loop(_))).count()
    }

    /// Number of loops that are around both.
    pub(super) fn shared(&self, other: &Access) -> usize {
        let both = self.frames.iter().zip(&other.frames).take_while(|(a, b)| a.same(b));
        both.filter(|(f, _)| matches!(f, Frame::Loop(_))).count()
    }

    /// What the value that it stores is made of, through the variables that it names.
    pub(super) fn operands(&self) -> Vec<(BufferId, &'a [Expr])> {
        let mut out = Vec::new();
        if let Some(value) = self.value {
            self.loads(value, &mut out);
        }
        out
    }

    fn loads(&self, e: &'a Expr, out: &mut Vec<(BufferId, &'a [Expr])>) {
        match e {
            Expr::Int(..) | Expr::Float(..) | Expr::Str(_) => {}
            Expr::Var(v) => {
                let bound = self.frames.iter().find_map(|f| match f {
                    Frame::Let(var, value) if var.id == v.id => Some(*value),
                    _ => None,
                });
                if let Some(value) = bound {
                    self.loads(value, out);
                }
            }
            Expr::Binary(_, a, b) => {
                self.loads(a, out);
                self.loads(b, out);
            }
            Expr::Not(a) | Expr::Cast(_, a) => self.loads(a, out),
            Expr::Select { cond, then, otherwise, .. } => {
                [cond, then, otherwise].iter().for_each(|e| self.loads(e, out))
            }
            Expr::Load(buffer, indices) => {
                indices.iter().for_each(|e| self.loads(e, out));
                out.push((*buffer, indices));
            }
            Expr::Call(_, args, _) => args.iter().for_each(|e| self.loads(e, out)),
        }
    }

    /// Whether the value that it stores is made of what the element held: `B[i] = B[i] + ...`.
    pub(super) fn updates(&self) -> bool {
        self.operands().iter().any(|(b, i)| *b == self.buffer && *i == self.indices)
    }
}

fn innermost(frames: &[Frame]) -> Option<BlockId> {
    frames.iter().rev().find_map(|f| match f {
        Frame::Block(r) => Some(r.block.id),
        _ => None,
    })
}

/// All accesses of a program in its order, and what the walk met on its way.
#[derive(Debug, Default)]
pub(super) struct Walk<'a> {
    pub(super) accesses: Vec<Access<'a>>,
    /// The numbers of the accesses of each buffer.
    pub(super) of: HashMap<BufferId, Vec<usize>>,
    /// Where the blocks stand.
    pub(super) instances: Vec<Vec<Frame<'a>>>,
    pub(super) frames: Vec<Frame<'a>>,
    pub(super) visible: HashSet<BufferId>,
    /// Number of loops around the allocation.
    pub(super) depth: HashMap<BufferId, usize>,
    /// Buffers about whose elements nothing is told: views, what they name, and what intrinsics get.
    pub(super) opaque: HashSet<BufferId>,
    pub(super) unknown: Option<(BufferId, Option<BlockId>)>,
    pub(super) bound: HashSet<VarId>,
    pub(super) unbound: Option<(&'a Var, Option<BlockId>)>,
}

impl<'a> Walk<'a> {
    pub(super) fn of(program: &'a Program) -> Walk<'a> {
        let mut walk = Walk { visible: program.params.iter().copied().collect(), ..Walk::default() };
        walk.realize(&program.body);
        walk
    }

    pub(super) fn block(&self) -> Option<BlockId> {
        innermost(&self.frames)
    }

    fn see(&mut self, buffer: BufferId) {
        if self.unknown.is_none() && !self.visible.contains(&buffer) {
            self.unknown = Some((buffer, self.block()));
        }
    }

    fn expr(&mut self, e: &'a Expr) {
        match e {
            Expr::Int(..) | Expr::Float(..) | Expr::Str(_) => {}
            Expr::Var(v) => {
                if self.unbound.is_none() && !self.bound.contains(&v.id) {
                    self.unbound = Some((v, self.block()));
                }
            }
            Expr::Binary(op, a, b) => {
                self.expr(a);
                match op {
                    BinOp::And => self.side(a, true, b),
                    BinOp::Or => self.side(a, false, b),
                    _ => self.expr(b),
                }
            }
            Expr::Not(a) | Expr::Cast(_, a) => self.expr(a),
            Expr::Select { cond, then, otherwise, .. } => {
                self.expr(cond);
                self.side(cond, true, then);
                self.side(cond, false, otherwise);
            }
            Expr::Load(buffer, indices) => {
                indices.iter().for_each(|i| self.expr(i));
                self.access(*buffer, indices, false);
            }
            Expr::Call(name, args, _) => {
                match (fields::of(e), name.as_ref(), args.as_slice()) {
                    (Some((buffer, _)), ..) => return self.pointer(buffer),
                    (None, "address_of", [Expr::Load(buffer, indices)]) => {
                        indices.iter().for_each(|i| self.expr(i));
                        return self.pointer(*buffer);
                    }
                    _ => {}
                }
                args.iter().for_each(|a| self.expr(a));
            }
        }
    }

    /// Whoever has a buffer's address may do anything with it.
    fn pointer(&mut self, buffer: BufferId) {
        self.see(buffer);
        self.opaque.insert(buffer);
    }

    /// A part of an expression that is evaluated only where a condition is as given.
    fn side(&mut self, cond: &'a Expr, holds: bool, part: &'a Expr) {
        self.frames.push(Frame::If(cond, holds));
        self.expr(part);
        self.frames.pop();
    }

    fn access(&mut self, buffer: BufferId, indices: &'a [Expr], write: bool) {
        self.see(buffer);
        self.of.entry(buffer).or_default().push(self.accesses.len());
        self.accesses.push(Access { buffer, write, indices, frames: self.frames.clone(), value: None });
    }

    fn region(&mut self, region: &'a Region) {
        self.see(region.buffer);
    }

    fn realize(&mut self, r: &'a BlockRealize) {
        r.iter_values.iter().chain([&r.predicate]).for_each(|e| self.expr(e));
        let loops = self.frames.iter().filter(|f| matches!(f, Frame::Loop(_))).count();
        self.frames.push(Frame::Block(r));
        self.instances.push(self.frames.clone());
        let mut made = Vec::new();
        for buffer in &r.block.alloc_buffers {
            self.depth.insert(*buffer, loops);
            made.push(*buffer);
        }
        for (view, region) in &r.block.match_buffers {
            self.region(region);
            self.opaque.extend([*view, region.buffer]);
            made.push(*view);
        }
        made.retain(|b| self.visible.insert(*b));
        self.bound.extend(r.block.iter_vars.iter().map(|iv| iv.var.id));
        r.block.reads.iter().chain(&r.block.writes).for_each(|x| self.region(x));
        if let Some(init) = &r.block.init {
            self.within(Frame::Init(r), init);
        }
        self.stmt(&r.block.body);
        for b in made {
            self.visible.remove(&b);
        }
        for iv in &r.block.iter_vars {
            self.bound.remove(&iv.var.id);
        }
        self.frames.pop();
    }

    fn within(&mut self, frame: Frame<'a>, body: &'a Stmt) {
        let var = match frame {
            Frame::Loop(l) => Some(l.var.id),
            Frame::Let(var, _) => Some(var.id),
            Frame::Block(_) | Frame::If(..) | Frame::Init(_) => None,
        };
        self.bound.extend(var);
        self.frames.push(frame);
        self.stmt(body);
        self.frames.pop();
        if let Some(var) = var {
            self.bound.remove(&var);
        }
    }

    fn stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            Stmt::For(l) => {
                self.expr(&l.min);
                self.expr(&l.extent);
                self.within(Frame::Loop(l), &l.body);
            }
            Stmt::Realize(r) => self.realize(r),
            Stmt::Seq(parts) => parts.iter().for_each(|s| self.stmt(s)),
            Stmt::Store { buffer, indices, value } => {
                indices.iter().chain([value]).for_each(|e| self.expr(e));
                self.access(*buffer, indices, true);
                if let Some(store) = self.accesses.last_mut() {
                    store.value = Some(value);
                }
            }
            Stmt::If { cond, then, otherwise } => {
                self.expr(cond);
                self.within(Frame::If(cond, true), then);
                if let Some(s) = otherwise {
                    self.within(Frame::If(cond, false), s);
                }
            }
            Stmt::Let { var, value, body } => {
                self.expr(value);
                self.within(Frame::Let(var, value), body);
            }
            Stmt::Evaluate(e) => {
                // An intrinsic may write what it is given to read.
                satune_ir::visit::loads(e).into_iter().for_each(|(buffer, _)| self.pointer(buffer));
                self.expr(e);
            }
        }
    }

    /// Whether the first access of a buffer is a write; none where there is none.
    pub(super) fn written_first(&self, buffer: BufferId) -> Option<bool> {
        self.of.get(&buffer).and_then(|all| all.first()).map(|first| self.accesses[*first].write)
    }

    /// The stores to a buffer, with their numbers.
    pub(super) fn stores(&self, buffer: BufferId) -> impl Iterator<Item = (usize, &Access<'a>)> {
        let all = self.of.get(&buffer).into_iter().flatten();
        all.map(|number| (*number, &self.accesses[*number])).filter(|(_, access)| access.write)
    }
}
