//! Buffers with strides of their own, as row-major ones over the same memory.
//!
//! ```text
//!   A (128, 64), strides (64, 1)      A (128, 64)
//!   A (128, 64), strides (80, 1)      A (128, 80), of whose rows 64 elements are accessed
//!   A (128, 64), strides (1, 128)     A (64, 128), A[i, j] -> A[j, i]
//!   A (128, 64), strides (128, 2)     A (128, 64, 2), A[i, j] -> A[i, j, 0]
//! ```
//! Everything below knows row-major buffers alone. What has no such form keeps its strides, and is refused with them: elements
//! that overlap, strides that do not divide each other, offsets, views, and buffers of which something holds a pointer.
use crate::tree;
use satune_ir::affine::{constant, index_type, int};
use satune_ir::{fields, visit, Buffer, BufferId, Expr, Program, Range, Region, Stmt};

/// The row-major buffer: its shape, and of each dimension the one that it was; an added one is indexed by 0.
struct Form {
    shape: Vec<Expr>,
    of: Vec<Option<usize>>,
}

/// The same program with row-major buffers, where they have such a form.
pub(super) fn row_major(program: &Program) -> Program {
    let mut out = program.clone();
    let mut held = false;
    visit::walk_stmt(&program.body.block.body, &mut |s| match s {
        Stmt::Realize(r) => held |= !r.block.match_buffers.is_empty(),
        Stmt::For(_) | Stmt::Seq(_) => {}
        other => visit::walk_stmt_exprs(other, &mut |e| visit::walk_expr(e, &mut |e| held |= fields::of(e).is_some())),
    });
    let ids: Vec<BufferId> = (0..).map(BufferId).take(program.buffers.len()).collect();
    for id in ids.into_iter().filter(|_| !held) {
        let Some(form) = form(program.buffer(id)) else { continue };
        let rank = program.buffer(id).shape.len();
        if !form.of.iter().copied().eq((0..rank).map(Some)) {
            relaid(&mut out.body.block.body, id, &form.of);
        }
        let buffer = out.buffer_mut(id);
        (buffer.shape, buffer.strides, buffer.elem_offset) = (form.shape, Vec::new(), None);
    }
    out
}

fn form(buffer: &Buffer) -> Option<Form> {
    let starts = buffer.elem_offset.as_ref().is_none_or(|e| constant(e) == Some(0));
    if buffer.scope != "global" || !starts || (buffer.strides.is_empty() && buffer.elem_offset.is_none()) {
        return None;
    }
    let shape = buffer.extents()?;
    let whole = Form { shape: buffer.shape.clone(), of: (0..shape.len()).map(Some).collect() };
    if buffer.strides.is_empty() {
        return Some(whole);
    }
    let strides = buffer.strides.iter().map(constant).collect::<Option<Vec<i64>>>()?;
    // The stride of a dimension of one element says nothing.
    let mut below = 1_i64;
    let compact = shape.iter().zip(&strides).rev().all(|(extent, stride)| {
        let fits = *extent == 1 || *stride == below;
        below = below.saturating_mul(*extent);
        fits
    });
    if compact {
        return Some(whole);
    }
    let (single, mut order): (Vec<usize>, Vec<usize>) = (0..shape.len()).partition(|d| shape[*d] == 1);
    order.sort_by_key(|d| std::cmp::Reverse(strides[*d]));
    let typed = |extent, d: usize| int(extent, index_type(&buffer.shape[d]));
    let mut form =
        Form { shape: single.iter().map(|d| typed(1, *d)).collect(), of: single.into_iter().map(Some).collect() };
    let mut above = None;
    for d in order {
        let extent = match above {
            None => shape[d],
            Some(above) if strides[d] > 0 && above % strides[d] == 0 => above / strides[d],
            Some(_) => return None,
        };
        if extent < shape[d] || strides[d] < 1 {
            return None;
        }
        form.shape.push(typed(extent, d));
        form.of.push(Some(d));
        above = Some(strides[d]);
    }
    if let (Some(between), Some(Some(last))) = (above.filter(|s| *s > 1), form.of.last().copied()) {
        form.shape.push(typed(between, last));
        form.of.push(None);
    }
    Some(form)
}

/// Takes the indices of a buffer in another order everywhere.
fn relaid(stmt: &mut Stmt, buffer: BufferId, of: &[Option<usize>]) {
    let zero = |at: &[Expr]| int(0, at.first().map_or(satune_ir::DType::I32, index_type));
    let indices =
        |at: &[Expr]| -> Vec<Expr> { of.iter().map(|d| d.map_or_else(|| zero(at), |d| at[d].clone())).collect() };
    let loads = |e: &Expr| visit::replace_loads(e, buffer, &mut |at| Expr::Load(buffer, indices(&at)));
    let mut out = visit::map_stmt_exprs(stmt, &mut |e| loads(e));
    places(&mut out, &mut |b, at| {
        if b == buffer {
            *at = indices(at);
        }
    });
    *stmt = out;
    regions(stmt, &mut |region| {
        if region.buffer == buffer {
            let starts: Vec<Expr> = region.ranges.iter().map(|r| r.min.clone()).collect();
            let one = |d: &Option<usize>| match d {
                Some(d) => region.ranges[*d].clone(),
                None => Range { min: zero(&starts), extent: int(1, index_type(&zero(&starts))) },
            };
            region.ranges = of.iter().map(one).collect();
        }
    });
}

fn places(stmt: &mut Stmt, f: &mut dyn FnMut(BufferId, &mut Vec<Expr>)) {
    if let Stmt::Store { buffer, indices, .. } = stmt {
        f(*buffer, indices);
    }
    tree::children_and_init_mut(stmt).into_iter().for_each(|s| places(s, f));
}

fn regions(stmt: &mut Stmt, f: &mut dyn FnMut(&mut Region)) {
    if let Stmt::Realize(r) = stmt {
        r.block.reads.iter_mut().chain(&mut r.block.writes).for_each(&mut *f);
    }
    tree::children_and_init_mut(stmt).into_iter().for_each(|s| regions(s, f));
}

#[cfg(test)]
mod tests {
    use super::row_major;
    use satune_ir::tvmscript;

    fn script(buffer: &str, at: &str) -> String {
        format!(
            "@T.prim_func(s_tir=True)\ndef main(a: T.handle, B: T.Buffer((8, 4), \"float32\")):\n    A = \
             T.match_buffer(a, {buffer})\n    for i, j in T.grid(8, 4):\n        with T.sblock(\"B\"):\n            vi, \
             vj = T.axis.remap(\"SS\", [i, j])\n            B[vi, vj] = A[{at}]\n"
        )
    }

    #[test]
    fn strides_are_dimensions() {
        for (given, at, plain, then) in [
            ("(8, 4), strides=[4, 1]", "vi, vj", "(8, 4)", "vi, vj"),
            ("(8, 4), strides=[4, 1], elem_offset=0", "vi, vj", "(8, 4)", "vi, vj"),
            ("(8, 1, 4), strides=[4, 9, 1]", "vi, 0, vj", "(8, 1, 4)", "vi, 0, vj"),
            ("(8, 4), strides=[6, 1]", "vi, vj", "(8, 6)", "vi, vj"),
            ("(8, 4), strides=[1, 8]", "vi, vj", "(4, 8)", "vj, vi"),
            ("(8, 4), strides=[2, 16]", "vi, vj", "(4, 8, 2)", "vj, vi, 0"),
            ("(8, 4), strides=[12, 3]", "vi, vj", "(8, 4, 3)", "vi, vj, 0"),
        ] {
            let program = row_major(&tvmscript::parse(&script(given, at)).unwrap());
            let wanted = tvmscript::print(&tvmscript::parse(&script(plain, then)).unwrap());
            assert_eq!(tvmscript::print(&program), wanted, "{given}");
        }
    }

    /// Elements that overlap, or lie between each other's rows; an offset.
    #[test]
    fn what_is_no_array_keeps_its_strides() {
        for given in ["strides=[3, 1]", "strides=[0, 1]", "strides=[6, 4]", "strides=[-4, 1]", "elem_offset=4"] {
            let program = tvmscript::parse(&script(&format!("(8, 4), {given}"), "vi, vj")).unwrap();
            assert_eq!(row_major(&program), program, "{given}");
        }
    }
}
