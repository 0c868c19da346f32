//! `transform_block_layout`: a block's iterators, and the loops around it, are replaced by a map of them.
//!
//! before                                after, transform_block_layout(B, lambda i, j: (i * 30 + j,))
//!   for i, j in T.grid(16, 30):           for ax0 in range(480):
//!       with T.sblock("B"):                   with T.sblock("B"):
//!           vi, vj = ...                          v0 = T.axis.spatial(480, ax0)
//!           B[vi, vj] = A[vi, vj]                 B[v0 // 30, v0 % 30] = A[v0 // 30, v0 % 30]
//!
//! Legal when: 1 the loops start with 0 and hold the block only; 2 its iterators are the loops, all of them; 3 the map has as
//! many parameters as the block has iterators; 4 no output mixes data-parallel and reduction iterators; 5 the map is
//! bijective. The order in which a reduction runs may change, as with `reorder`. Kinds and annotations of loops are dropped.
use crate::arith::{constant, int, Domains};
use crate::index_map::{IndexMap, MappedBox};
use crate::loop_checks::{only_child, require_zero_start};
use crate::reindexed::Rewriter;
use crate::schedule::{Result, Schedule};
use crate::tree::Node;
use crate::ScheduleError;
use satune_ir::{visit, BlockId, BlockRealize, DType, Expr, IterKind, IterVar, Stmt, VarId};
use std::collections::HashMap;

/// Conditions 1 to 5. Returns the image of the iterators' domain, and the kind of each new iterator.
pub fn legal(s: &Schedule, block: BlockId, map: &IndexMap) -> Result<(MappedBox, Vec<IterKind>)> {
    let loops = s.loops_of(block)?;
    for l in s.get_loops(&loops)? {
        require_zero_start(l)?;
    }
    if let Some(&top) = loops.first() {
        only_child(s, top)?;
    }
    require_trivial_binding(s, block)?;
    let realize = s.realize(block)?;
    let b = &realize.block;
    if map.params.len() != b.iter_vars.len() {
        return Err(ScheduleError::refused(
            "The index map can't be applied to block iters because the number of parameters mismatch.",
            format!(
                "The index map {map} can't be applied to block iters of {} because the number of parameters mismatch. \
                 Expected: {}, actual: {}",
                b.name,
                map.params.len(),
                b.iter_vars.len()
            ),
        )
        .at_block(block)
        .remedy("give the map as many parameters as the block has iterators"));
    }
    let domain = |iv: &IterVar| constant(&iv.extent).filter(|_| constant(&iv.min) == Some(0));
    let shape: Option<Vec<i64>> = b.iter_vars.iter().map(domain).collect();
    let shape = shape.ok_or_else(|| ScheduleError::internal("An iterator does not start with 0").at_block(block))?;
    let not_bijective = || {
        ScheduleError::refused(
            "The index map is not bijective affine.",
            format!("The index map {map} is not bijective affine."),
        )
        .at_block(block)
        .remedy("use sums of iterators divided by factors of their extents")
    };
    let layout = map.layout(&shape);
    let mut kinds = Vec::new();
    for (k, output) in map.outputs.iter().enumerate() {
        let single = layout.as_ref().is_ok_and(|l| l.shape.get(k) == Some(&1));
        let kind = if single { Some(IterKind::Spatial) } else { kind_of(output, b.iter_vars.as_slice()) };
        let kind = kind.ok_or_else(|| {
            let e = crate::text::expr(output);
            ScheduleError::refused(
                "Cannot detect the new block iter type because it contains more than one type of original iter vars.",
                format!(
                    "Cannot detect the block iter type for new iter value {e} in {} because it contains more than one type \
                     of original iter vars.",
                    b.name
                ),
            )
            .at_block(block).remedy("let each new iterator be made of spatial ones, or of reductions, alone")
        })?;
        kinds.push(kind);
    }
    let layout = layout.map_err(|_| not_bijective())?;
    if layout.padding.is_some() || layout.inverse.is_none() {
        return Err(not_bijective());
    }
    // What is data-parallel alone may not be lost in an iterator of one value that came from a reduction: it has no values.
    if layout.shape.is_empty() && !loops.is_empty() && !shape.iter().all(|e| *e == 1) {
        return Err(not_bijective());
    }
    Ok((layout, kinds))
}

/// Condition 2.
fn require_trivial_binding(s: &Schedule, block: BlockId) -> Result<()> {
    let loops = s.loops_of(block)?;
    let realize = s.realize(block)?;
    let trivial = loops.len() == realize.iter_values.len()
        && loops.iter().zip(&realize.iter_values).all(|(l, e)| matches!(e, Expr::Var(v) if v.id == *l));
    let mut whole = trivial && realize.predicate == int(1, DType::Bool);
    for (l, iv) in s.get_loops(&loops)?.iter().zip(&realize.block.iter_vars) {
        whole &= !trivial || l.extent == iv.extent;
    }
    if trivial && whole {
        return Ok(());
    }
    if trivial {
        return Err(ScheduleError::refused(
            "The loops of the block do not run over its iterators",
            format!("The loops of block {} run over a part of its iterators' domains only", realize.block.name),
        )
        .at_block(block)
        .remedy("transform the block before its loops are split with guards"));
    }
    Err(ScheduleError::refused(
        "The binding values of the block are not variables of outer loops.",
        format!("The binding values of the {} are not variables of outer loops.", realize.block.name),
    )
    .at_block(block)
    .remedy("transform the block before its loops are split or fused"))
}

/// The kind that all iterators in an output share.
fn kind_of(output: &Expr, iters: &[IterVar]) -> Option<IterKind> {
    let mut kinds: Vec<IterKind> = Vec::new();
    visit::walk_expr(output, &mut |e| {
        if let Expr::Var(v) = e {
            if let Some(iv) = iters.get(v.id.0 as usize) {
                if !kinds.contains(&iv.kind) {
                    kinds.push(iv.kind);
                }
            }
        }
    });
    match kinds[..] {
        [kind] if kind.any_order() => Some(kind),
        _ => None,
    }
}

/// The primitive.
pub fn transform_block_layout(s: &mut Schedule, block: BlockId, map: &IndexMap) -> Result<()> {
    let (layout, kinds) = legal(s, block, map).map_err(|e| e.within("transform_block_layout"))?;
    let types: Vec<DType> = map
        .outputs
        .iter()
        .map(|e| match e {
            Expr::Int(_, t) => *t,
            _ => DType::I32,
        })
        .collect();
    apply(s, block, &layout, &kinds, &types).map_err(|e| e.within("transform_block_layout"))
}

fn apply(s: &mut Schedule, block: BlockId, layout: &MappedBox, kinds: &[IterKind], types: &[DType]) -> Result<()> {
    let loops = s.loops_of(block)?;
    let old = s.realize(block)?.clone();
    let mut iter_vars = Vec::new();
    for (k, ((extent, kind), dtype)) in layout.shape.iter().zip(kinds).zip(types).enumerate() {
        let var = s.program_mut().fresh_var(format!("v{k}"), *dtype);
        iter_vars.push(IterVar { var, min: int(0, *dtype), extent: int(*extent, *dtype), kind: *kind });
    }
    let axes: Vec<Expr> = iter_vars.iter().map(|iv| Expr::Var(iv.var.clone())).collect();
    let inverse = layout.inverse_at(&axes).ok_or_else(|| ScheduleError::internal("the map has no inverse"))?;
    let map: HashMap<VarId, Expr> = old.block.iter_vars.iter().map(|iv| iv.var.id).zip(inverse).collect();
    let inner = BlockRealize { iter_values: Vec::new(), predicate: int(1, DType::Bool), block: old.block };
    let mut inner = visit::map_realize_exprs(&inner, &mut |e| visit::substitute(e, &map));
    inner.block.iter_vars = iter_vars.clone();
    let mut rewriter = Rewriter { map: &|_, list| Some(list.to_vec()), ranges: Domains::new(), guards: Vec::new() };
    let mut inner = rewriter.realize(&inner);
    rewriter.ranges = crate::regions::iter_domains(&inner.block);
    for region in inner.block.reads.iter_mut().chain(&mut inner.block.writes) {
        let mins: Vec<Expr> = region.ranges.iter().map(|r| r.min.clone()).collect();
        region.ranges.iter_mut().zip(rewriter.simplified(&mins)).for_each(|(r, min)| r.min = min);
    }
    let dims: Vec<_> =
        iter_vars.iter().enumerate().map(|(k, iv)| (format!("ax{k}"), int(0, DType::I32), iv.extent.clone())).collect();
    let nest = s.nest(&dims, |_, values| {
        inner.iter_values = values.to_vec();
        Stmt::Realize(Box::new(inner))
    });
    let top = loops.first().map_or(Node::Block(block), |l| Node::Loop(*l));
    s.replace(top, |_| nest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::split;
    use crate::testing::{assert_program, block, chain, func, joined, loops, matmul, refusal};

    fn map(text: &str) -> IndexMap {
        IndexMap::parse(text).unwrap()
    }

    #[test]
    fn the_picture() {
        let mut s = chain();
        let b = block(&s, "B");
        transform_block_layout(&mut s, b, &map("lambda i, j: (i * 30 + j,)")).unwrap();
        assert_program(
            &s,
            &func(
                "A: T.Buffer((16, 30), \"float32\"), C: T.Buffer((16, 30), \"float32\")",
                r#"
B = T.sblock_alloc_buffer((16, 30))
for ax0 in range(480):
    with T.sblock("B"):
        v0 = T.axis.spatial(480, ax0)
        B[v0 // 30, v0 % 30] = A[v0 // 30, v0 % 30] * T.float32(2)
for i, j in T.grid(16, 30):
    with T.sblock("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = B[vi, vj] + T.float32(1)
"#,
            ),
        );
    }

    #[test]
    fn refuses() {
        let mut s = matmul();
        let c = block(&s, "C");
        for (text, message) in [
            (
                "lambda i, j: (i, j)",
                "The index map can't be applied to block iters because the number of parameters mismatch.",
            ),
            (
                "lambda i, j, k: (i, j * 16 + k)",
                "Cannot detect the new block iter type because it contains more than one type of original iter vars.",
            ),
            ("lambda i, j, k: (i, j // 3, j % 3, k)", "The index map is not bijective affine."),
        ] {
            let got = refusal(&mut s, |s| transform_block_layout(s, c, &map(text)));
            assert_eq!(got, format!("ScheduleError: {message}"), "{text}");
        }
        let i = loops(&s, "C")[0];
        split(&mut s, i, &[None, Some(4)], true, false).unwrap();
        let got = refusal(&mut s, |s| transform_block_layout(s, c, &map("lambda i, j, k: (j, i, k)")));
        assert_eq!(got, "ScheduleError: The binding values of the block are not variables of outer loops.");
        let mut s = joined();
        let b = block(&s, "B");
        let got = refusal(&mut s, |s| transform_block_layout(s, b, &map("lambda i, j: (j, i)")));
        assert_eq!(got, "ScheduleError: The loop is required to have only one child block");
    }
}
