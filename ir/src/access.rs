//! What a block's body reads and writes, where its text does not say (TVMScript's `T.reads` and `T.writes` are optional), and
//! after its body was changed.
use crate::affine::linear::{has_bits, Interval};
use crate::affine::{constant, index_type, int, Domains};
use crate::{pointers, visit, Buffer, BufferId, DType, Expr, Range, Region, Stmt, VarId};
use std::collections::HashMap;

/// The indices with which a dimension is accessed.
#[derive(Clone, Debug)]
enum Dim {
    /// As written: no loop of the body moves it.
    Fixed(Range),
    /// Taken together over loops of the body, or over several accesses.
    Joined(Interval),
    /// Unknown.
    Any,
}

impl Dim {
    fn interval(&self) -> Option<Interval> {
        let none = Domains::new();
        match self {
            Dim::Fixed(r) => Interval::of_range(r, &none, &none),
            Dim::Joined(i) => Some(i.clone()),
            Dim::Any => None,
        }
    }

    fn union(&self, other: Dim) -> Dim {
        match (self, &other) {
            (Dim::Fixed(x), Dim::Fixed(y)) if x == y => other,
            _ => match (self.interval(), other.interval()) {
                (Some(a), Some(b)) => Dim::Joined(a.union(&b, &Domains::new())),
                _ => Dim::Any,
            },
        }
    }
}

/// Regions read and regions written, each in the order in which the buffers first occur.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Accesses {
    /// Read; without those of a buffer that a block with `init` also writes.
    pub reads: Vec<Region>,
    /// Written.
    pub writes: Vec<Region>,
}

/// The regions that a block touches: one box per buffer, over all loops of the body. Buffers of `own` (allocated inside)
/// are left out. Boxes that are not known are taken whole.
pub fn of_block(init: Option<&Stmt>, body: &Stmt, own: &[BufferId], buffers: &[Buffer]) -> Accesses {
    let mut walk = Walk { buffers, loops: Domains::new(), lets: HashMap::new(), reads: Vec::new(), writes: Vec::new() };
    if let Some(init) = init {
        walk.stmt(init);
    }
    walk.stmt(body);
    let region = |(buffer, dims): (BufferId, Vec<Dim>)| walked(buffer, dims, buffers);
    let writes: Vec<Region> = walk.writes.into_iter().filter(|(b, _)| !own.contains(b)).map(region).collect();
    let reduced = |b: &BufferId| init.is_some() && writes.iter().any(|w| w.buffer == *b);
    let reads = walk.reads.into_iter().filter(|(b, _)| !own.contains(b) && !reduced(b)).map(region).collect();
    Accesses { reads, writes }
}

fn walked(buffer: BufferId, dims: Vec<Dim>, buffers: &[Buffer]) -> Region {
    let shape = &buffers[buffer.0 as usize].shape;
    let none = Domains::new();
    let range = |(dim, size): (Dim, &Expr)| {
        let whole = Range { min: int(0, index_type(size)), extent: size.clone() };
        let interval = match dim {
            Dim::Fixed(range) => return range,
            Dim::Joined(interval) => interval,
            Dim::Any => return whole,
        };
        let t = index_type(size);
        let (Some(extent), Some(size)) = (interval.extent(&none).map(|l| l.expr()), constant(size)) else {
            return whole;
        };
        let min = interval.lo.expr();
        // A box with constant ends never goes past the buffer.
        match (constant(&min), constant(&extent)) {
            (Some(lo), Some(n)) if lo < 0 || lo.saturating_add(n) > size => {
                let (lo, hi) = (lo.max(0), lo.saturating_add(n).min(size));
                Range { min: int(lo, t), extent: int(hi.saturating_sub(lo).max(0), t) }
            }
            _ => Range { min: typed(min, t), extent: typed(extent, t) },
        }
    };
    Region { buffer, ranges: dims.into_iter().zip(shape).map(range).collect() }
}

/// A number as an index of a type.
fn typed(e: Expr, t: DType) -> Expr {
    match e {
        Expr::Int(v, _) => int(v, t),
        other => other,
    }
}

type Touched = Vec<(BufferId, Vec<Dim>)>;

struct Walk<'a> {
    buffers: &'a [Buffer],
    /// Loops of the body, over whose values boxes are taken together.
    loops: Domains,
    lets: HashMap<VarId, Expr>,
    reads: Touched,
    writes: Touched,
}

impl Walk<'_> {
    fn touch(&mut self, buffer: BufferId, ranges: &[Range], write: bool) {
        let dims: Vec<Dim> = ranges.iter().map(|r| self.dim(r)).collect();
        let list = if write { &mut self.writes } else { &mut self.reads };
        match list.iter_mut().find(|(b, _)| *b == buffer) {
            None => list.push((buffer, dims)),
            Some((_, old)) => old.iter_mut().zip(dims).for_each(|(x, y)| *x = x.union(y)),
        }
    }

    fn dim(&self, r: &Range) -> Dim {
        let map = |e: &Expr| visit::substitute(e, &self.lets);
        let range = Range { min: map(&r.min), extent: map(&r.extent) };
        let moves = |e: &Expr| visit::uses_var(e, &|v| self.loops.contains_key(&v));
        if !moves(&range.min) && !moves(&range.extent) && !has_bits(&range.min) {
            return Dim::Fixed(range);
        }
        Interval::of_range(&range, &self.loops, &Domains::new()).map_or(Dim::Any, Dim::Joined)
    }

    fn point(&mut self, buffer: BufferId, indices: &[Expr], write: bool) {
        let point = |e: &Expr| Range { min: e.clone(), extent: int(1, index_type(e)) };
        let ranges: Vec<Range> = indices.iter().map(point).collect();
        self.touch(buffer, &ranges, write);
    }

    fn expr(&mut self, e: &Expr) {
        for (buffer, indices) in visit::loads(e) {
            self.point(buffer, &indices, false);
        }
        // A pointer says how it is used, and not where.
        for (buffer, mask) in pointers::pointed(e) {
            let shape = &self.buffers[buffer.0 as usize].shape;
            let whole: Vec<Range> =
                shape.iter().map(|d| Range { min: int(0, index_type(d)), extent: d.clone() }).collect();
            for (bit, write) in [(1, false), (2, true)] {
                if mask & bit != 0 {
                    self.touch(buffer, &whole, write);
                }
            }
        }
    }

    fn stmt(&mut self, s: &Stmt) {
        match s {
            Stmt::For(l) => {
                let domain = Range { min: l.min.clone(), extent: l.extent.clone() };
                self.loops.insert(l.var.id, domain);
                self.stmt(&l.body);
                self.loops.remove(&l.var.id);
            }
            Stmt::Realize(r) => {
                r.iter_values.iter().chain([&r.predicate]).for_each(|e| self.expr(e));
                let map: HashMap<VarId, Expr> =
                    r.block.iter_vars.iter().zip(&r.iter_values).map(|(iv, e)| (iv.var.id, e.clone())).collect();
                for (list, write) in [(&r.block.reads, false), (&r.block.writes, true)] {
                    for region in list {
                        let bound = visit::map_region(region, &mut |e| visit::substitute(e, &map));
                        self.touch(bound.buffer, &bound.ranges, write);
                    }
                }
            }
            Stmt::Seq(parts) => parts.iter().for_each(|p| self.stmt(p)),
            Stmt::Store { buffer, indices, value } => {
                self.point(*buffer, indices, true);
                self.expr(value);
                indices.iter().for_each(|e| self.expr(e));
            }
            Stmt::If { cond, then, otherwise } => {
                self.expr(cond);
                self.stmt(then);
                if let Some(o) = otherwise {
                    self.stmt(o);
                }
            }
            Stmt::Let { var, value, body } => {
                self.expr(value);
                let value = visit::substitute(value, &self.lets);
                self.lets.insert(var.id, value);
                self.stmt(body);
                self.lets.remove(&var.id);
            }
            Stmt::Evaluate(e) => self.expr(e),
        }
    }
}
