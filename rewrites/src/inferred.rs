//! The regions of a buffer that a block's statements touch, from the accesses in them.
use crate::arith::{self, constant, int, Domains};
use crate::linear::Interval;
use crate::regions;
use satune_ir::{visit, Block, BufferId, DType, Expr, Program, Range, Region, Stmt};

/// The smallest box that holds every read (or write) of a buffer in a block's body and init, in terms of the block's
/// iterators. Blocks inside count with what they declare. None where there is no access.
pub fn region(program: &Program, block: &Block, buffer: BufferId, write: bool) -> Option<Region> {
    let mut found = Found { program, buffer, write, boxes: None };
    let mut relaxed = Domains::new();
    if let Some(init) = &block.init {
        found.stmt(init, &mut relaxed);
    }
    found.stmt(&block.body, &mut relaxed);
    let none = Domains::new();
    let shape = &program.buffer(buffer).shape;
    let range = |(i, dim): (&Interval, &Expr)| {
        i.extent(&none).map_or_else(
            || Range { min: int(0, DType::I32), extent: dim.clone() },
            |e| Range { min: i.lo.expr(), extent: e.expr() },
        )
    };
    let ranges = found.boxes?.iter().zip(shape).map(range).collect();
    Some(Region { buffer, ranges })
}

struct Found<'a> {
    program: &'a Program,
    buffer: BufferId,
    write: bool,
    boxes: Option<Vec<Interval>>,
}

impl Found<'_> {
    fn add(&mut self, ranges: &[Range], relaxed: &Domains) {
        let none = Domains::new();
        let shape = &self.program.buffer(self.buffer).shape;
        let whole = |dim: &Expr| Interval::constant(0, constant(dim).map_or(i64::MAX, |d| d.saturating_sub(1)));
        let new: Vec<Interval> = ranges
            .iter()
            .zip(shape)
            .map(|(r, dim)| Interval::of_range(r, relaxed, &none).unwrap_or_else(|| whole(dim)))
            .collect();
        self.boxes = Some(match self.boxes.take() {
            None => new,
            Some(old) => old.iter().zip(&new).map(|(a, b)| a.union(b, &none)).collect(),
        });
    }

    fn point(&mut self, indices: &[Expr], relaxed: &Domains) {
        let point = |e: &Expr| Range { min: e.clone(), extent: int(1, DType::I32) };
        let ranges: Vec<Range> = indices.iter().map(point).collect();
        self.add(&ranges, relaxed);
    }

    fn expr(&mut self, e: &Expr, relaxed: &Domains) {
        if self.write {
            return;
        }
        let mut points = Vec::new();
        visit::walk_expr(e, &mut |e| {
            if let Expr::Load(b, list) = e {
                if *b == self.buffer {
                    points.push(list.clone());
                }
            }
        });
        points.iter().for_each(|list| self.point(list, relaxed));
    }

    fn stmt(&mut self, s: &Stmt, relaxed: &mut Domains) {
        match s {
            Stmt::For(l) => {
                self.expr(&l.extent, relaxed);
                let own = arith::domains(&[l]);
                let old: Vec<_> = own.into_iter().map(|(v, r)| (v, relaxed.insert(v, r))).collect();
                self.stmt(&l.body, relaxed);
                for (v, r) in old {
                    match r {
                        Some(r) => relaxed.insert(v, r),
                        None => relaxed.remove(&v),
                    };
                }
            }
            Stmt::Realize(r) => {
                r.iter_values.iter().chain([&r.predicate]).for_each(|e| self.expr(e, relaxed));
                let all = if self.write { &r.block.writes } else { &r.block.reads };
                let buffer = self.buffer;
                for x in all.iter().filter(|x| x.buffer == buffer) {
                    self.add(&regions::bound(r, x).ranges, relaxed);
                }
            }
            Stmt::Seq(parts) => parts.iter().for_each(|s| self.stmt(s, relaxed)),
            Stmt::Store { buffer, indices, value } => {
                if self.write && *buffer == self.buffer {
                    self.point(indices, relaxed);
                }
                indices.iter().chain([value]).for_each(|e| self.expr(e, relaxed));
            }
            Stmt::If { cond, then, otherwise } => {
                self.expr(cond, relaxed);
                self.stmt(then, relaxed);
                if let Some(s) = otherwise {
                    self.stmt(s, relaxed);
                }
            }
            Stmt::Let { value, body, .. } => {
                self.expr(value, relaxed);
                self.stmt(body, relaxed);
            }
            Stmt::Evaluate(e) => self.expr(e, relaxed),
        }
    }
}
