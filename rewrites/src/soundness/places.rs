//! Rules about single accesses: iterators within their domains, elements within their buffers.
use super::samples::Samples;
use super::search::{Found, Search, ANY};
use super::span::{span, Env};
use super::view::{unsound, View};
use super::walk::Frame;
use crate::arith::constant;
use crate::schedule::Result;
use satune_ir::{BinOp, BlockRealize, Expr, VarId};

/// Whether some instance that runs has a value of `e` below `min` or at `end` or above.
fn leaves(frames: &[Frame], e: &Expr, min: i64, end: i64) -> Option<i64> {
    for (lo, hi) in [(ANY.0, min.saturating_sub(1)), (end, ANY.1)] {
        if let Found::Instance(loops) = Search::new(frames).within(e, lo, hi).run(&[]) {
            let env = super::samples::Instance::of(frames, loops).env;
            return span(e, &env).map(|(v, _)| v);
        }
    }
    None
}

/// Rule 4.
pub(super) fn domains<'a>(at: &View<'a, '_>, _: &mut Samples<'a>) -> Result<()> {
    for frames in &at.walk.instances {
        let Some(Frame::Block(r)) = frames.last() else { continue };
        for (iv, value) in r.block.iter_vars.iter().zip(&r.iter_values) {
            let Some((min, extent)) = constant(&iv.min).zip(constant(&iv.extent)) else { continue };
            let end = min.saturating_add(extent);
            // Mostly the predicate is about just this value, and there is nothing to search.
            let from = if guarded(r, value, end) { ANY.1 } else { end };
            if let Some(found) = leaves(frames, value, min, from) {
                let why = format!("{} of {} is {found}, outside of its domain", iv.var.name, r.block.name);
                return Err(unsound(why, Some(r.block.id)));
            }
        }
    }
    Ok(())
}

/// Whether the predicate keeps a value below `end`.
fn guarded(r: &BlockRealize, value: &Expr, end: i64) -> bool {
    crate::linear::conjuncts(&r.predicate).iter().any(|clause| match clause {
        Expr::Binary(BinOp::Lt, a, b) => **a == *value && constant(b).is_some_and(|b| b <= end),
        _ => false,
    })
}

/// Rule 7.
pub(super) fn inside<'a>(at: &View<'a, '_>, _: &mut Samples<'a>) -> Result<()> {
    for access in &at.walk.accesses {
        let buffer = at.program.buffer(access.buffer);
        let known = iterators(&access.frames);
        for (index, dim) in access.indices.iter().zip(&buffer.shape) {
            let Some(dim) = constant(dim) else { continue };
            // By rule 4 the iterators are in their domains: mostly that is enough.
            if span(index, &known).is_some_and(|(lo, hi)| 0 <= lo && hi < dim) {
                continue;
            }
            if let Some(found) = leaves(&access.frames, index, 0, dim) {
                let (name, index) = (&buffer.name, crate::text::expr(index));
                let why = format!(
                    "an element of {name} outside of its shape is accessed: {index} is {found}, of {dim} elements"
                );
                return Err(unsound(why, access.block()));
            }
        }
    }
    Ok(())
}

/// What iterators and loops can be, each by itself.
fn iterators(frames: &[Frame]) -> Env {
    let mut env = Env::default();
    let mut domain = |var: VarId, min: &Expr, extent: &Expr| {
        let ends = constant(min).zip(constant(extent)).map(|(m, e)| (m, m.saturating_add(e).saturating_sub(1)));
        env.set(var, ends.filter(|(lo, hi)| lo <= hi));
    };
    for frame in frames {
        match frame {
            Frame::Loop(l) => domain(l.var.id, &l.min, &l.extent),
            Frame::Block(r) => r.block.iter_vars.iter().for_each(|iv| domain(iv.var.id, &iv.min, &iv.extent)),
            Frame::Let(..) | Frame::If(..) | Frame::Init(_) => {}
        }
    }
    env
}
