//! Views of buffers (`match_buffer`): what is accessed through one is accessed in the buffer that it shows.
//!
//! ```text
//!   B = T.match_buffer(A[v * 16:v * 16 + 16, 0:8], (16, 8))
//!   ... B[i, j]                                               A[v * 16 + i, j]
//! ```
use crate::tree;
use satune_ir::affine::{index_type, int};
use satune_ir::{visit, BinOp, BufferId, Expr, Range, Region, Stmt};

/// Accesses to views as accesses to what they show. Pointers to views stay as they are.
pub fn seen_through(stmt: &mut Stmt) {
    if let Stmt::Realize(r) = stmt {
        let views = std::mem::take(&mut r.block.match_buffers);
        for (view, region) in views {
            let there = |at: &[Expr]| -> Vec<Expr> {
                let skipped = region.ranges.len().saturating_sub(at.len());
                let sum = |(d, range): (usize, &Range)| match d.checked_sub(skipped).and_then(|d| at.get(d)) {
                    Some(at) => Expr::Binary(BinOp::Add, range.min.clone().into(), at.clone().into()),
                    None => range.min.clone(),
                };
                region.ranges.iter().enumerate().map(sum).collect()
            };
            for part in r.block.init.iter_mut().chain([&mut r.block.body]) {
                **part = renamed(part, view, region.buffer, &there);
            }
        }
    }
    tree::children_and_init_mut(stmt).into_iter().for_each(seen_through);
}

/// A statement that accesses a buffer in place of another; `there`: the element that an element of that one is.
pub(crate) fn renamed(nest: &Stmt, from: BufferId, to: BufferId, there: &dyn Fn(&[Expr]) -> Vec<Expr>) -> Stmt {
    let loads = |e: &Expr| visit::replace_loads(e, from, &mut |at| Expr::Load(to, there(&at)));
    fn stores(stmt: &mut Stmt, from: BufferId, to: BufferId, there: &dyn Fn(&[Expr]) -> Vec<Expr>) {
        match stmt {
            Stmt::Store { buffer, indices, .. } if *buffer == from => (*buffer, *indices) = (to, there(indices)),
            Stmt::Realize(r) => {
                let shown = r.block.match_buffers.iter_mut().map(|(_, region)| region);
                let declared = r.block.reads.iter_mut().chain(&mut r.block.writes).chain(shown);
                for region in declared.filter(|region| region.buffer == from) {
                    let first: Vec<Expr> = region.ranges.iter().map(|range| range.min.clone()).collect();
                    let mins = there(&first);
                    let one = |min: &Expr| int(1, index_type(min));
                    let before = mins.len().saturating_sub(first.len());
                    let extents =
                        mins[..before].iter().map(one).chain(region.ranges.iter().map(|range| range.extent.clone()));
                    let ranges = mins.iter().cloned().zip(extents).map(|(min, extent)| Range { min, extent });
                    *region = Region { buffer: to, ranges: ranges.collect() };
                }
            }
            _ => {}
        }
        tree::children_and_init_mut(stmt).into_iter().for_each(|s| stores(s, from, to, there));
    }
    let mut out = visit::map_stmt_exprs(nest, &mut |e| loads(e));
    stores(&mut out, from, to, there);
    out
}
