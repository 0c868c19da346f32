//! The regions that a block's body touches: what `T.reads` and `T.writes` say after the body has changed.
use crate::arith::{self, constant, int, Domains};
use crate::linear::Interval;
use satune_ir::{visit, Block, BlockRealize, Buffer, BufferId, DType, Expr, Range, Region, Stmt, VarId};
use std::collections::HashMap;

/// The regions that the block reads and writes, in the order of their first occurrence: the init first, then the body, and
/// in a store its target before its value. What blocks inside touch is taken from what they declare. A reduction does not
/// list as read what it writes.
pub fn detect(buffers: &[Buffer], block: &Block) -> (Vec<Region>, Vec<Region>) {
    let mut found = Detector::new(block);
    if let Some(init) = &block.init {
        found.stmt(init);
    }
    found.stmt(&block.body);
    let updated = |id: BufferId| block.init.is_some() && block.writes.iter().any(|w| w.buffer == id);
    let reads = found.reads.into_iter().filter(|(id, _)| !updated(*id)).map(|a| region(buffers, a)).collect();
    let writes = found.writes.into_iter().map(|a| region(buffers, a)).collect();
    (reads, writes)
}

/// The indices that a dimension is accessed with.
#[derive(Clone, Debug)]
enum Dim {
    /// As written: no loop inside the block moves it.
    Fixed(Range),
    /// Taken together over loops inside the block, or over several accesses.
    Joined(Interval),
    /// Anything.
    All,
}

type Access = (BufferId, Vec<Dim>);

struct Detector<'a> {
    block: &'a Block,
    loops: Domains,
    lets: HashMap<VarId, Expr>,
    reads: Vec<Access>,
    writes: Vec<Access>,
}

impl<'a> Detector<'a> {
    fn new(block: &'a Block) -> Self {
        Detector { block, loops: Domains::new(), lets: HashMap::new(), reads: Vec::new(), writes: Vec::new() }
    }

    fn dim(&self, range: &Range) -> Dim {
        let inlined = |e: &Expr| visit::substitute(e, &self.lets);
        let range = Range { min: inlined(&range.min), extent: inlined(&range.extent) };
        let moves = |e: &Expr| visit::uses_var(e, &|v| self.loops.contains_key(&v));
        if !moves(&range.min) && !moves(&range.extent) {
            return Dim::Fixed(range);
        }
        Interval::of_range(&range, &self.loops, &Domains::new()).map_or(Dim::All, Dim::Joined)
    }

    fn touch(&mut self, written: bool, buffer: BufferId, ranges: &[Range]) {
        if self.block.alloc_buffers.contains(&buffer) {
            return;
        }
        if let Some((_, source)) = self.block.match_buffers.iter().find(|(id, _)| *id == buffer) {
            let (source, ranges) = (source.buffer, source.ranges.clone());
            return self.touch(written, source, &ranges);
        }
        let dims: Vec<Dim> = ranges.iter().map(|r| self.dim(r)).collect();
        let list = if written { &mut self.writes } else { &mut self.reads };
        match list.iter_mut().find(|(id, _)| *id == buffer) {
            Some((_, old)) => old.iter_mut().zip(dims).for_each(|(a, b)| *a = union(a, b)),
            None => list.push((buffer, dims)),
        }
    }

    fn point(&mut self, written: bool, buffer: BufferId, indices: &[Expr]) {
        let ranges: Vec<Range> = indices.iter().map(|e| Range { min: e.clone(), extent: int(1, DType::I32) }).collect();
        self.touch(written, buffer, &ranges);
    }

    fn expr(&mut self, e: &Expr) {
        for (buffer, indices) in visit::loads(e) {
            self.point(false, buffer, &indices);
        }
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::For(l) => {
                self.expr(&l.min);
                self.expr(&l.extent);
                self.loops.extend(arith::domains(&[l]));
                self.stmt(&l.body);
                self.loops.remove(&l.var.id);
            }
            Stmt::Realize(r) => self.realize(r),
            Stmt::Seq(parts) => parts.iter().for_each(|s| self.stmt(s)),
            Stmt::Store { buffer, indices, value } => {
                self.point(true, *buffer, indices);
                self.expr(value);
                indices.iter().for_each(|e| self.expr(e));
            }
            Stmt::If { cond, then, otherwise } => {
                self.expr(cond);
                self.stmt(then);
                if let Some(s) = otherwise {
                    self.stmt(s);
                }
            }
            Stmt::Let { var, value, body } => {
                self.expr(value);
                let value = visit::substitute(value, &self.lets);
                self.lets.insert(var.id, value);
                self.stmt(body);
            }
            Stmt::Evaluate(e) => self.expr(e),
        }
    }

    fn realize(&mut self, r: &BlockRealize) {
        for value in r.iter_values.iter().chain([&r.predicate]) {
            self.expr(value);
        }
        for (written, regions) in [(false, &r.block.reads), (true, &r.block.writes)] {
            for region in regions {
                let bound = crate::regions::bound(r, region);
                self.touch(written, bound.buffer, &bound.ranges);
            }
        }
    }
}

fn union(a: &Dim, b: Dim) -> Dim {
    let none = Domains::new();
    let interval = |d: &Dim| match d {
        Dim::Fixed(r) => Interval::of_range(r, &none, &none),
        Dim::Joined(i) => Some(i.clone()),
        Dim::All => None,
    };
    match (a, &b) {
        (Dim::Fixed(x), Dim::Fixed(y)) if x == y => b,
        _ => match (interval(a), interval(&b)) {
            (Some(x), Some(y)) => Dim::Joined(x.union(&y, &none)),
            _ => Dim::All,
        },
    }
}

fn region(buffers: &[Buffer], (buffer, dims): Access) -> Region {
    let shape = buffers.get(buffer.0 as usize).map_or(&[][..], |b| &b.shape);
    let whole = |i: usize| Range {
        min: int(0, DType::I32),
        extent: shape.get(i).cloned().unwrap_or_else(|| int(1, DType::I32)),
    };
    let none = Domains::new();
    let ranges = dims.into_iter().enumerate().map(|(i, dim)| match dim {
        Dim::Fixed(range) => range,
        Dim::Joined(interval) => match interval.extent(&none) {
            Some(extent) => Range { min: interval.lo.expr(), extent: extent.expr() },
            None => whole(i),
        },
        Dim::All => whole(i),
    });
    Region { buffer, ranges: ranges.collect() }
}

/// Recomputes the regions of all blocks below `stmt` that declare an access of `buffer`, inner blocks first.
pub fn refresh(stmt: &mut Stmt, buffers: &[Buffer], buffer: BufferId) {
    match stmt {
        Stmt::For(l) => refresh(&mut l.body, buffers, buffer),
        Stmt::Realize(r) => {
            refresh(&mut r.block.body, buffers, buffer);
            if let Some(init) = &mut r.block.init {
                refresh(init, buffers, buffer);
            }
            let block = &mut r.block;
            if block.reads.iter().chain(&block.writes).any(|x| x.buffer == buffer) {
                let (reads, writes) = detect(buffers, block);
                block.reads = reads;
                block.writes = writes;
            }
        }
        Stmt::Seq(parts) => parts.iter_mut().for_each(|s| refresh(s, buffers, buffer)),
        Stmt::If { then, otherwise, .. } => {
            refresh(then, buffers, buffer);
            if let Some(s) = otherwise {
                refresh(s, buffers, buffer);
            }
        }
        Stmt::Let { body, .. } => refresh(body, buffers, buffer),
        Stmt::Store { .. } | Stmt::Evaluate(_) => {}
    }
}

/// Whether an index stays inside `[0, dim)` while the variables of `domains` run.
pub fn in_bounds(index: &Expr, dim: &Expr, domains: &Domains) -> bool {
    let ends = crate::linear::Linear::of(index, domains).map(|l| l.ends(domains));
    match (ends, constant(dim)) {
        (Some((Some(lo), Some(hi))), Some(dim)) => lo >= 0 && hi < dim,
        _ => false,
    }
}
