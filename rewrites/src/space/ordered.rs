//! Maps with their iterators in the order of what they write.
//!
//! before                                        after
//!   for i, j: B[vj, vi] = A[vi, vj]               for j, i: B[vj, vi] = A[vi, vj]
//!
//! It is `reorder`, of loops and of iterators: a map's instances are in no order. Kernels with tiles follow what is written. Where they
//! do not take the map for all that, it stays as it is.
use super::nests::{nest_of, nest_over, parts, Nest};
use super::stream;
use satune_ir::{visit, Block, Expr, IterKind, Program, Stmt};

/// The same program with loops and iterators of maps in the order of their results.
pub(super) fn ordered(program: &Program) -> Program {
    let mut out = program.clone();
    let nests: Vec<Stmt> = parts(program)
        .into_iter()
        .map(|part| match nest_of(program, part) {
            Ok(nest) => in_order(&mut out, &nest).filter(|made| stream::knows(&out, made)),
            Err(_) => None,
        })
        .zip(parts(program))
        .map(|(made, part)| made.unwrap_or_else(|| part.clone()))
        .collect();
    out.body.block.body = Box::new(Stmt::seq(nests));
    out
}

/// The nest of a map in the order of its result; none where it is that already, or no such map.
fn in_order(out: &mut Program, Nest { block, order }: &Nest<'_>) -> Option<Stmt> {
    let written = written(block)?;
    if order.is_sorted() && written.is_sorted() {
        return None;
    }
    let others = (0..block.iter_vars.len()).filter(|number| !written.contains(number));
    let iters: Vec<_> = written.iter().copied().chain(others).map(|number| block.iter_vars[number].clone()).collect();
    Some(nest_over(out, block.name.clone(), &iters, None, (*block.body).clone()))
}

/// Numbers of the iterators that a map writes at, in the order of the dimensions.
fn written(block: &Block) -> Option<Vec<usize>> {
    let Stmt::Store { buffer, indices, value } = &*block.body else { return None };
    let spatial = block.iter_vars.iter().all(|iv| iv.kind == IterKind::Spatial);
    let plain = block.init.is_none() && block.alloc_buffers.is_empty() && block.match_buffers.is_empty();
    let reads_itself = visit::loads(value).iter().any(|(read, _)| read == buffer);
    if !spatial || !plain || reads_itself {
        return None;
    }
    let mut out = Vec::new();
    for index in indices {
        match index {
            Expr::Int(..) => {}
            Expr::Var(v) => {
                let number = block.iter_vars.iter().position(|iv| iv.var == *v)?;
                if out.contains(&number) {
                    return None;
                }
                out.push(number);
            }
            _ => return None,
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::ordered;
    use satune_ir::tvmscript;

    fn printed(loops: &str, iters: &str, values: &str, store: &str) -> String {
        let text = format!(
            "@T.prim_func(s_tir=True)
def main(A: T.Buffer((8, 64), \"float32\"), B: T.Buffer((64, 8), \"float32\")):
    for {loops} in T.grid({extents}):
        with T.sblock(\"B\"):
            {iters} = T.axis.remap(\"SS\", [{values}])
            {store}
",
            extents = if loops.starts_with('i') { "8, 64" } else { "64, 8" },
        );
        tvmscript::print(&ordered(&tvmscript::parse(&text).unwrap()))
    }

    #[test]
    fn maps_follow_what_they_write() {
        let store = "B[vj, vi] = A[vi, vj]";
        let wanted = printed("j, i", "vj, vi", "j, i", store);
        assert!(wanted.contains("for j, i in T.grid(64, 8)"), "{wanted}");
        for (loops, iters, values) in
            [("i, j", "vi, vj", "i, j"), ("j, i", "vi, vj", "i, j"), ("i, j", "vj, vi", "j, i")]
        {
            assert_eq!(printed(loops, iters, values, store), wanted, "{loops} {iters}");
        }
    }

    /// What reads what it writes may depend on the order; an index that is none of tiles; what is read in the order of its loops is the
    /// better for it.
    #[test]
    fn what_is_no_map_of_tiles_stays() {
        let made = printed("i, j", "vi, vj", "i, j", "B[vj, vi] = A[vi, vj // 2 * 2]");
        assert!(made.contains("for i, j in T.grid(8, 64)"), "{made}");
        let made = printed("i, j", "vi, vj", "i, j", "B[vj, vi] = B[63 - vj, vi] + A[vi, vj]");
        assert!(made.contains("for i, j in T.grid(8, 64)"), "{made}");
    }
}
