//! Rules about single accesses: iterators within their domains, elements within their buffers.
use super::samples::Samples;
use super::search::{Found, Search, ANY};
use super::walk::Frame;
use super::{unsound, View};
use crate::arith::constant;
use crate::schedule::Result;
use satune_ir::Expr;

/// Whether some instance that runs has a value of `e` below `min` or at `end` or above.
fn leaves(frames: &[Frame], e: &Expr, min: i64, end: i64) -> Option<i64> {
    for (lo, hi) in [(ANY.0, min.saturating_sub(1)), (end, ANY.1)] {
        if let Found::Instance(loops) = Search::new(frames).within(e, lo, hi).run(&[]) {
            let env = super::samples::Instance::of(frames, loops).env;
            return super::span::span(e, &env).map(|(v, _)| v);
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
            if let Some(found) = leaves(frames, value, min, min.saturating_add(extent)) {
                let why = format!("{} of {} is {found}, outside of its domain", iv.var.name, r.block.name);
                return Err(unsound(why, Some(r.block.id)));
            }
        }
    }
    Ok(())
}

/// Rule 7.
pub(super) fn inside<'a>(at: &View<'a, '_>, _: &mut Samples<'a>) -> Result<()> {
    for access in &at.walk.accesses {
        let buffer = at.program.buffer(access.buffer);
        for (index, dim) in access.indices.iter().zip(&buffer.shape) {
            let Some(dim) = constant(dim) else { continue };
            if leaves(&access.frames, index, 0, dim).is_some() {
                let why = format!("an element of {} outside of its shape is accessed", buffer.name);
                return Err(unsound(why, access.block()));
            }
        }
    }
    Ok(())
}
