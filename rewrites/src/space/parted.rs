//! A few sums of very many terms, by parts of their terms.
//!
//! before                                                    after
//!   L[0] = L[0] + abs(X[i + 1, j] - X[i, j])                  L_parts[0, i] = L_parts[0, i] + abs(X[i + 1, j] - X[i, j])
//!                                                             L[0] = L[0] + L_parts[0, i]
//!
//! It is what `rfactor` makes. Kernels of rows part their sums by a rule; of what is no row (a sum over windows, over differences of
//! neighbours, over two parts of a matrix) a block has one thread, or some, for each result, and few blocks leave a GPU idle. The outermost
//! iterators over which it is summed become those of the parts; one that is too long is taken apart itself. A part that reaches over its
//! end has nothing there.
use super::encode::Update;
use super::factored::sides;
use super::nests::{allocated, block_of, nest_over, remade};
use crate::reducer::number;
use satune_ir::affine::{add, constant, int, mul};
use satune_ir::{fold, visit, BinOp, Block, Expr, IterKind, IterVar, Program, Stmt};
use std::collections::HashMap;

/// Results of which each may have some blocks: more fill a GPU as they are.
const FEW: i64 = 128;
/// Blocks that fill a GPU, about.
const BLOCKS: i64 = 512;
/// Terms of a part, at least: fewer are added up while the second kernel is launched.
const TERMS: i64 = 256;

/// The same program with the sums of such nests that `apart` says in parts.
pub(super) fn in_parts(program: &Program, apart: impl Fn(&Program, &Stmt) -> bool) -> Program {
    remade(program, |out, part| if apart(program, part) { parted(out, part) } else { None })
}

/// The sums of parts, and their sum.
fn parted(out: &mut Program, part: &Stmt) -> Option<Vec<Stmt>> {
    let block = block_of(out, part).ok()?.clone();
    let sum = Sum::of(&block)?;
    let update = Update::of(&block).ok()?;
    let Stmt::Store { value, .. } = &*block.body else { return None };
    let dtype = fold::dtype(value, &out.buffers);
    // Beginning with it again changes no extremum.
    let start = if update.op == BinOp::Add { number(0, dtype) } else { update.init.clone() };
    let mut term = update.f.clone();
    let (mut outer, mut inner) = (Vec::new(), Vec::new());
    for (iv, extent, count) in sum.reduced {
        let named = |name: &str, extent: i64, out: &mut Program| {
            let var = out.fresh_var(format!("{}_{name}", iv.var.name), iv.var.dtype);
            IterVar { var, min: iv.min.clone(), extent: int(extent, iv.var.dtype), kind: IterKind::Reduce }
        };
        match count {
            1 => inner.push(iv.clone()),
            count if count == extent => outer.push(iv.clone()),
            count => {
                let length = (extent + count - 1) / count;
                let (high, low) = (named("part", count, out), named("term", length, out));
                let var = |iv: &IterVar| Expr::Var(iv.var.clone());
                let at = add(mul(var(&high), int(length, iv.var.dtype)), var(&low));
                term = visit::substitute(&term, &HashMap::from([(iv.var.id, at.clone())]));
                if length * count > extent {
                    let inside = Expr::binary(BinOp::Lt, at, int(extent, iv.var.dtype));
                    term = Expr::if_then_else(inside, term, start.clone());
                }
                outer.push(high);
                inner.push(low);
            }
        }
    }
    let spatial = |iv: &IterVar| IterVar { kind: IterKind::Spatial, ..iv.clone() };
    let iters: Vec<IterVar> = sum.spatial.iter().cloned().chain(outer.iter().map(spatial)).collect();
    let shape = iters.iter().map(|iv| iv.extent.clone()).collect();
    let at: Vec<Expr> = iters.iter().map(|iv| Expr::Var(iv.var.clone())).collect();
    let buffer = allocated(out, &format!("{}_parts", block.name), dtype, shape);
    let load = Expr::Load(buffer, at.clone());
    let store = |value| Stmt::Store { buffer, indices: at.clone(), value };
    let all: Vec<IterVar> = iters.iter().chain(&inner).cloned().collect();
    let body = store(Expr::binary(update.op, load.clone(), term));
    let name = out.buffer(buffer).name.clone();
    let first = nest_over(out, name, &all, Some(store(start)), body);
    let (target, indices) = update.c;
    let (indices, so_far) = (indices.to_vec(), Expr::Load(target, indices.to_vec()));
    let second = Stmt::Store { buffer: target, indices, value: Expr::binary(update.op, so_far, load) };
    let all: Vec<IterVar> = sum.spatial.into_iter().chain(outer).collect();
    let second = nest_over(out, block.name.clone(), &all, block.init.as_deref().cloned(), second);
    Some(vec![first, second])
}

/// What is summed, and how.
struct Sum {
    spatial: Vec<IterVar>,
    /// Each with its extent, and how many values it has of the parts' number: 1, all, or between.
    reduced: Vec<(IterVar, i64, i64)>,
}

impl Sum {
    fn of(block: &Block) -> Option<Sum> {
        let update = Update::of(block).ok()?;
        // Products have tiles, whose k is parted by a rule.
        if visit::loads(update.f).iter().any(|(buffer, _)| *buffer == update.c.0) || sides(block, update.f).is_some() {
            return None;
        }
        let extent = |iv: &IterVar| constant(&iv.extent).filter(|n| *n > 0 && constant(&iv.min) == Some(0));
        if !block.iter_vars.iter().all(|iv| iv.kind.any_order() && extent(iv).is_some()) {
            return None;
        }
        let (spatial, reduced): (Vec<IterVar>, Vec<IterVar>) =
            block.iter_vars.iter().cloned().partition(|iv| iv.kind == IterKind::Spatial);
        let product = |list: &[IterVar]| list.iter().filter_map(extent).try_fold(1_i64, i64::checked_mul);
        let (results, terms) = (product(&spatial)?, product(&reduced)?);
        let wanted = (BLOCKS / results).min(terms / TERMS);
        if results >= FEW || wanted < 2 {
            return None;
        }
        let mut left = wanted;
        let mut taken = |iv: &IterVar| {
            let extent = extent(iv).unwrap_or(1);
            // A few more or less do as well, if all are alike then.
            let count = if left < 2 {
                1
            } else if extent <= 4 * left {
                extent
            } else {
                (left..=2 * left).find(|count| extent % count == 0).unwrap_or(left)
            };
            left /= count;
            (iv.clone(), extent, count)
        };
        let reduced = reduced.iter().map(&mut taken).collect();
        Some(Sum { spatial, reduced })
    }
}

#[cfg(test)]
mod tests {
    use super::super::nests::parts;
    use super::super::stream::streams;
    use super::in_parts;
    use satune_ir::{interp, tvmscript};

    fn script(grid: &str, kinds: &str, [init, update]: [&str; 2], shape: [i64; 2]) -> String {
        let [m, n] = shape;
        let vars = ["vi", "vj", "vk"][..kinds.len()].join(", ");
        let loops = ["i", "j", "k"][..kinds.len()].join(", ");
        format!(
            "@T.prim_func(s_tir=True)\ndef main(X: T.Buffer(({m}, {n}), \"int32\"), L: T.Buffer((15,), \"int32\")):\n    \
             for {loops} in T.grid({grid}):\n        with T.sblock(\"L\"):\n            {vars} = T.axis.remap(\"{kinds}\", [{loops}])\n            \
             with T.init():\n                {init}\n            {update}\n"
        )
    }

    #[test]
    fn a_few_sums_of_many_terms_are_summed_in_parts() {
        let differences = ["L[vi] = 5", "L[vi] = L[vi] + T.abs(X[vj + 1, vk] - X[vj, vk]) * (vi + 1)"];
        let largest = ["L[vi] = -9", "L[vi] = T.max(L[vi], X[vj + 1, vk] - X[vj, vk])"];
        let product = ["L[vi * 5 + vj] = 0", "L[vi * 5 + vj] = L[vi * 5 + vj] + X[vi, vk + 1] * X[vj + 3, vk]"];
        let line = ["L[0] = 0", "L[0] = L[0] + T.abs(X[0, vi + 1] - X[0, vi])"];
        for (grid, kinds, update, shape, parted) in [
            ("3, 127, 128", "SRR", differences, [128, 128], Some("L_parts[vi, vj]")),
            ("3, 127, 128", "SRR", largest, [128, 128], Some("L_parts[vi, vj]")),
            // 8191 is a prime number.
            ("8191", "R", line, [1, 8192], Some("if_then_else(vi_part * 265 + vi_term < 8191")),
            ("9000", "R", line, [1, 9001], Some("L_parts[vi_part]")),
            ("3, 5, 8192", "SSR", product, [8, 8193], None),
            ("3, 16, 16", "SRR", differences, [17, 16], None),
        ] {
            let source = tvmscript::parse(&script(grid, kinds, update, shape)).unwrap();
            let made = in_parts(&source, |_, _| true);
            let text = tvmscript::print(&made);
            assert_eq!(parts(&made).len(), 1 + usize::from(parted.is_some()), "{text}");
            if let Some(what) = parted {
                assert!(text.contains(what), "{text}");
                assert_eq!(streams(&made).unwrap().source.len(), 2, "{text}");
            }
            assert_eq!(in_parts(&made, |_, _| true), made, "{text}");
            let again = tvmscript::parse(&text).unwrap();
            interp::equal_on(&source, &again, 3).unwrap_or_else(|e| panic!("{e}\n{text}"));
        }
    }
}
