//! Factors that are computed, or are one buffer, as buffers of their own.
//!
//! before                                                 after
//!   C[i, j] = C[i, j] + exp(S[i, k] - M[i]) * V[k, j]      C_factor[i, k] = exp(S[i, k] - M[i])
//!                                                          C[i, j] = C[i, j] + C_factor[i, k] * V[k, j]
//!   C[i, j] = C[i, j] + A[i, k] * A[j, k]                  C_factor[j, k] = A[j, k]
//!                                                          C[i, j] = C[i, j] + A[i, k] * C_factor[j, k]
//!   C[i, j] = C[i, j] + X[t[i], k] * W[j, k]               C_factor[i, k] = X[t[i], k]
//!                                                          C[i, j] = C[i, j] + C_factor[i, k] * W[j, k]
//!
//! It is the inverse of `compute_inline`: of what a block combines each side has spatial iterators of its own, so that what it
//! computes is computed once, and not for each iterator of the other. The sum is then one of two buffers, which has tiles; and since
//! the new block can be inlined, the program's space has the schedules of what it was, too. Values are the same, bit for bit.
use super::encode::Update;
use super::nests::{allocated, block_of, by_data, nest_over, remade, replaced, uses};
use satune_ir::affine::constant;
use satune_ir::{fold, visit, BinOp, Block, BufferId, DType, Expr, IterKind, IterVar, Program, Stmt, VarId};

/// The same program with a block of its own for each such factor.
pub(super) fn factored(program: &Program) -> Program {
    remade(program, |out, part| {
        let (mut nests, mut part) = (Vec::new(), part.clone());
        while let Some((factor, rest)) = outlined(out, &part) {
            nests.push(factor);
            part = rest;
        }
        nests.push(part);
        Some(nests)
    })
}

/// The block of a factor of a nest, and the nest that reads what it makes.
fn outlined(out: &mut Program, part: &Stmt) -> Option<(Stmt, Stmt)> {
    let block = block_of(out, part).ok()?.clone();
    let whole = |iv: &IterVar| constant(&iv.extent).is_some() && constant(&iv.min) == Some(0);
    if !block.iter_vars.iter().all(|iv| whole(iv) && iv.kind.any_order()) {
        return None;
    }
    let factor = narrow(out, factor(&block)?).clone();
    let iters = indices(&block, &factor)?;
    let shape = iters.iter().map(|iv| iv.extent.clone()).collect();
    let dtype = fold::dtype(&factor, &out.buffers);
    if dtype == DType::Bool {
        return None;
    }
    let buffer = allocated(out, &format!("{}_factor", block.name), dtype, shape);
    let at: Vec<Expr> = iters.iter().map(|iv| Expr::Var(iv.var.clone())).collect();
    let store = Stmt::Store { buffer, indices: at.clone(), value: factor.clone() };
    let spatial: Vec<IterVar> = iters.iter().map(|iv| IterVar { kind: IterKind::Spatial, ..iv.clone() }).collect();
    let first = nest_over(out, out.buffer(buffer).name.clone(), &spatial, None, store);
    let read = Expr::Load(buffer, at);
    let body = visit::map_stmt_exprs(&block.body, &mut |e| replaced(e, &factor, &read));
    let init = block.init.as_deref().cloned();
    Some((first, nest_over(out, block.name.clone(), &block.iter_vars, init, body)))
}

/// What one side of a sum computes, where it is no element as it is, or of the other's buffer.
fn factor(block: &Block) -> Option<&Expr> {
    let Update { f, c, .. } = Update::of(block).ok()?;
    let Some((a, b)) = sides(block, f) else { return looked_up(block, f, c.0) };
    // What depends on the sums so far is computed with them.
    if buffers(f).contains(&c.0) {
        return None;
    }
    // An iterator decides, as in the triangle of a matrix: tiles combine elements.
    let computed = |side: &&Expr| places(side).len() > 1 || block.iter_vars.iter().any(|iv| by_itself(side, iv.var.id));
    if ![a, b].iter().any(computed) && buffers(a).iter().all(|buffer| !buffers(b).contains(buffer)) {
        return None;
    }
    let same = || {
        // Of one buffer that both read the second is copied, in its type.
        let mut copied = b;
        while let Expr::Cast(_, inner) = copied {
            copied = inner;
        }
        copied
    };
    Some([a, b].into_iter().find(computed).unwrap_or_else(same))
}

/// Of two elements that an expression combines, each with spatial iterators of its own, one that is where data say.
fn looked_up<'e>(block: &Block, f: &'e Expr, sums: BufferId) -> Option<&'e Expr> {
    let mut elements: Vec<&Expr> = Vec::new();
    combined(f, &mut elements)?;
    let [a, b] = elements[..] else { return None };
    let told = |e: &&Expr| matches!(e, Expr::Load(buffer, at) if *buffer != sums && by_data(at));
    (own(block, a, b) && own(block, b, a)).then(|| [a, b].into_iter().find(told)).flatten()
}

/// The different elements that an expression combines, without those that say where others are; none where a condition guards some.
fn combined<'e>(e: &'e Expr, out: &mut Vec<&'e Expr>) -> Option<()> {
    match e {
        Expr::Select { .. } | Expr::Binary(BinOp::And | BinOp::Or, ..) => None,
        Expr::Load(..) => {
            if !out.contains(&e) {
                out.push(e);
            }
            Some(())
        }
        e => visit::children(e).into_iter().try_for_each(|child| combined(child, out)),
    }
}

/// Whether a spatial iterator of several values is in one expression, and not in the other.
fn own(block: &Block, e: &Expr, other: &Expr) -> bool {
    let of = |iv: &&IterVar| iv.kind == IterKind::Spatial && constant(&iv.extent) > Some(1);
    block.iter_vars.iter().filter(of).any(|iv| uses(e, iv.var.id) && !uses(other, iv.var.id))
}

/// What a wider type is made of, which has each of its values: the factor is kept, and multiplied, in that.
fn narrow<'e>(program: &Program, e: &'e Expr) -> &'e Expr {
    let Expr::Cast(to, inner) = e else { return e };
    let from = fold::dtype(inner, &program.buffers);
    let holds = match (from.int_range(), to.int_range()) {
        (Some(from), Some(to)) => to.0 <= from.0 && from.1 <= to.1,
        _ => from.is_float() && to.is_float() && from.bytes() < to.bytes(),
    };
    match holds && from != DType::Bool {
        true => narrow(program, inner),
        false => e,
    }
}

/// The two sides of an expression, each with spatial iterators of several values that the other has not. Both are computed in every
/// instance: what a condition guards may be nothing that can be computed elsewhere.
pub(super) fn sides<'e>(block: &Block, f: &'e Expr) -> Option<(&'e Expr, &'e Expr)> {
    if matches!(f, Expr::Select { .. } | Expr::Binary(BinOp::And | BinOp::Or, ..)) {
        return None;
    }
    let parts: Vec<&Expr> = visit::children(f).into_iter().filter(|e| !places(e).is_empty()).collect();
    match parts[..] {
        [one] => sides(block, one),
        [a, b] => (own(block, a, b) && own(block, b, a)).then_some((a, b)),
        _ => None,
    }
}

/// The iterators of an expression, as its longest access has them, then the others. None where an index is more than an
/// iterator, unless data decide where the expression reads: what is looked up is side by side nowhere before.
fn indices(block: &Block, e: &Expr) -> Option<Vec<IterVar>> {
    let accesses = places(e);
    let bare = |at: &Expr| matches!(at, Expr::Var(_) | Expr::Int(..));
    let looked_up = accesses.iter().any(|(_, at)| by_data(at));
    if !looked_up && !accesses.iter().all(|(_, at)| at.iter().all(bare)) {
        return None;
    }
    let longest = accesses.iter().rev().max_by_key(|(_, at)| at.len())?;
    let mut vars = Vec::new();
    let mut look = |e: &Expr| {
        if let Expr::Var(v) = e {
            vars.push(v.id);
        }
    };
    longest.1.iter().for_each(|at| visit::walk_expr(at, &mut look));
    let of_longest = vars.into_iter().filter_map(|v| block.iter_vars.iter().find(|iv| iv.var.id == v));
    let mut out: Vec<IterVar> = Vec::new();
    for iv in of_longest.chain(block.iter_vars.iter().filter(|iv| uses(e, iv.var.id))) {
        if !out.iter().any(|known| known.var == iv.var) {
            out.push(iv.clone());
        }
    }
    Some(out)
}

/// Whether both sides of what a block adds up have spatial iterators of their own.
pub(super) fn has_sides(block: &Block) -> bool {
    Update::of(block).is_ok_and(|update| sides(block, update.f).is_some())
}

/// Whether an iterator is more than an index of what an expression reads.
fn by_itself(e: &Expr, var: VarId) -> bool {
    match e {
        Expr::Load(..) => false,
        Expr::Var(v) => v.id == var,
        e => visit::children(e).into_iter().any(|child| by_itself(child, var)),
    }
}

/// Different elements that an expression reads.
fn places(e: &Expr) -> Vec<(BufferId, Vec<Expr>)> {
    let mut out = Vec::new();
    for place in visit::loads(e) {
        if !out.contains(&place) {
            out.push(place);
        }
    }
    out
}

fn buffers(e: &Expr) -> Vec<BufferId> {
    places(e).into_iter().map(|place| place.0).collect()
}

#[cfg(test)]
mod tests {
    use super::super::nests::parts;
    use super::super::stream::streams;
    use super::factored;
    use satune_ir::{interp, tvmscript};

    fn script(update: &str) -> String {
        format!(
            "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((8, 4), \"float32\"), B: T.Buffer((4, 6), \"int8\"), s: T.Buffer((6,), \
             \"float32\"), m: T.Buffer((8,), \"float32\"), t: T.Buffer((8,), \"int32\"), C: T.Buffer((8, 6), \"float32\")):\n    for i, j, k in T.grid(8, 6, 4):\n        \
             with T.sblock(\"C\"):\n            vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])\n            with T.init():\n                \
             C[vi, vj] = T.float32(0)\n            C[vi, vj] = C[vi, vj] + {update}\n"
        )
    }

    #[test]
    fn a_computed_factor_is_computed_once() {
        let weight = "T.Cast(\"float32\", B[vk, vj])";
        for (update, nests) in [
            (format!("A[vi, vk] * ({weight} * s[vj])"), 2),
            (format!("T.exp(A[vi, vk] - m[vi]) * {weight}"), 2),
            (format!("T.exp(A[vi, vk] - m[vi]) * ({weight} * s[vj])"), 3),
            (format!("(A[vi, vk] + m[vi]) * ({weight} + s[vj])"), 3),
            (format!("T.max(A[vi, vk] * m[vi] - {weight} * s[vj], T.float32(0))"), 3),
            ("A[vi, vk] * A[vj, vk]".into(), 2),
            // An iterator decides, as a mask does.
            (format!("T.if_then_else(vk <= vi, A[vi, vk] * m[vi], T.float32(0)) * {weight}"), 2),
            (format!("T.Select(vk <= vi, A[vi, vk], T.float32(0)) * {weight}"), 2),
            ("T.Cast(\"float32\", T.Select(vj < vk, B[vk, vj], T.int8(0))) * A[vi, vk]".into(), 2),
            // Data decide where it is.
            (format!("A[t[vi], vk] * {weight}"), 2),
            (format!("A[t[vi] // 2, vk] * {weight}"), 2),
            (format!("T.abs(A[t[vi], vk] - {weight}) * (A[t[vi], vk] - {weight})"), 2),
            ("A[t[vi], vk] * T.Cast(\"float32\", B[vk, t[vj]])".into(), 3),
            (format!("A[vi, vk] * {weight}"), 1),
            // One side has both iterators.
            (format!("A[vi, vk] * {weight} * s[vj]"), 1),
            ("A[vi, vk] * A[vi, vk]".into(), 1),
            // What is computed under a condition stays there.
            (format!("T.if_then_else(vi < 5, (A[vi, vk] * m[vi]) * {weight}, T.float32(0))"), 1),
        ] {
            let source = tvmscript::parse(&script(&update)).unwrap();
            let made = factored(&source);
            let text = tvmscript::print(&made);
            assert_eq!(parts(&made).len(), nests, "{text}");
            if nests > 1 {
                assert_eq!(streams(&made).unwrap().source.len(), nests, "{text}");
            }
            let again = tvmscript::parse(&text).unwrap();
            for seed in 0..3 {
                interp::equal_on(&source, &again, seed).unwrap_or_else(|e| panic!("{e}\n{text}"));
            }
            assert_eq!(factored(&again), again, "{text}");
        }
    }

    #[test]
    fn what_reads_the_sums_so_far_stays_with_them() {
        let update = "(A[vi, vk] * C[vi, vk]) * T.Cast(\"float32\", B[vk, vj])";
        let source = tvmscript::parse(&script(update)).unwrap();
        assert_eq!(factored(&source), source);
    }
}
