//! A sum of several products, as a sum of each.
//!
//! before                                                       after
//!   C[i, j] = C[i, j] + (A[i, k] * B[k, j] - D[i, k] * E[k, j])  C_sum[i, j] = C_sum[i, j] + A[i, k] * B[k, j]
//!                                                                C_sum_1[i, j] = C_sum_1[i, j] + D[i, k] * E[k, j]
//!                                                                C[i, j] = C_sum[i, j] - C_sum_1[i, j]
//!
//! Products of complex numbers are such sums, and layers that add a product of the state to one of the input. Tiles take one product
//! at a time, and the last block is the epilogue of a product. What is added up is not added up in its order.
//!
//! It is done where each product has sides of its own, of whose elements tiles are used again, and where there is enough of them: a
//! small sum is done sooner by one kernel.
use super::encode::Update;
use super::factored::sides;
use super::nests::{allocated, block_of, nest_over, remade};
use satune_ir::affine::constant;
use satune_ir::{fold, visit, BinOp, Block, Expr, IterKind, IterVar, Program, Stmt};

/// Products, all together, of which a kernel for each is worth its launch: of so many one kernel without tiles is predicted to take about
/// as long, and of fewer less.
pub(super) const MANY: i64 = 1 << 25;

/// The same program with a block of its own for each product of such a sum of so many.
pub(super) fn one_by_one(program: &Program, many: i64) -> Program {
    remade(program, |out, part| summed(out, part, many))
}

/// The nests of a nest that adds up several products: a sum of each, and what puts them together.
fn summed(out: &mut Program, part: &Stmt, many: i64) -> Option<Vec<Stmt>> {
    let block = block_of(out, part).ok()?.clone();
    let (init, products) = products(&block, many)?;
    let spatial: Vec<IterVar> = block.iter_vars.iter().filter(|iv| iv.kind == IterKind::Spatial).cloned().collect();
    let at: Vec<Expr> = spatial.iter().map(|iv| Expr::Var(iv.var.clone())).collect();
    let shape: Vec<Expr> = spatial.iter().map(|iv| iv.extent.clone()).collect();
    let Stmt::Store { buffer, indices, value } = &*block.body else { return None };
    let dtype = fold::dtype(value, &out.buffers);
    let (mut nests, mut total) = (Vec::new(), init.clone());
    for (op, product) in products {
        let sum = allocated(out, &format!("{}_sum", block.name), dtype, shape.clone());
        let store = |value| Stmt::Store { buffer: sum, indices: at.clone(), value };
        let so_far = Expr::Load(sum, at.clone());
        let body = store(Expr::binary(BinOp::Add, so_far.clone(), product.clone()));
        let name = out.buffer(sum).name.clone();
        nests.push(nest_over(out, name, &block.iter_vars, Some(store(crate::reducer::number(0, dtype))), body));
        total = match op {
            BinOp::Add if fold::is_zero(&total) => so_far,
            op => Expr::binary(op, total, so_far),
        };
    }
    let store = Stmt::Store { buffer: *buffer, indices: indices.clone(), value: total };
    nests.push(nest_over(out, block.name.clone(), &spatial, None, store));
    Some(nests)
}

/// What a block begins with, and the products that it adds up or subtracts, where they are several.
fn products(block: &Block, many: i64) -> Option<(&Expr, Vec<(BinOp, &Expr)>)> {
    let extents = block.iter_vars.iter().map(|iv| constant(&iv.extent).filter(|_| constant(&iv.min) == Some(0)));
    let instances = extents.map(|extent| extent.filter(|n| *n > 0)).try_fold(1_i64, |all, n| all.checked_mul(n?))?;
    let update = Update::of(block).ok().filter(|update| update.op == BinOp::Add)?;
    let mut found = Vec::new();
    terms(BinOp::Add, update.f, &mut found);
    let reads = |e: &Expr| visit::loads(e).iter().any(|(buffer, _)| *buffer == update.c.0);
    let whole = block.iter_vars.iter().all(|iv| iv.kind.any_order()) && !reads(update.f);
    let several = found.len() > 1 && instances.checked_mul(found.len() as i64)? >= many;
    let tiled = |(_, e): &(BinOp, &Expr)| matches!(e, Expr::Binary(BinOp::Mul, ..)) && sides(block, e).is_some();
    (whole && several && found.iter().all(tiled)).then_some((update.init, found))
}

/// The terms of a sum, each with how it is put to the others.
fn terms<'e>(op: BinOp, e: &'e Expr, out: &mut Vec<(BinOp, &'e Expr)>) {
    match e {
        Expr::Binary(inner @ (BinOp::Add | BinOp::Sub), a, b) => {
            terms(op, a, out);
            terms(if *inner == op { BinOp::Add } else { BinOp::Sub }, b, out);
        }
        e => out.push((op, e)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::nests::parts;
    use super::super::stream::streams;
    use super::one_by_one;
    use satune_ir::{interp, tvmscript};

    fn script(init: &str, update: &str, n: i64) -> String {
        format!(
            "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((4, 5), \"int32\"), B: T.Buffer((5, {n}), \"int32\"), D: T.Buffer((4, 5), \
             \"int32\"), E: T.Buffer((5, {n}), \"int32\"), s: T.Buffer((5,), \"int32\"), C: T.Buffer((4, {n}), \"int32\")):\n    \
             for i, j, k in T.grid(4, {n}, 5):\n        with T.sblock(\"C\"):\n            vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])\n            \
             with T.init():\n                C[vi, vj] = {init}\n            C[vi, vj] = C[vi, vj] + ({update})\n"
        )
    }

    #[test]
    fn each_product_has_a_sum() {
        let (ab, de) = ("A[vi, vk] * B[vk, vj]", "D[vi, vk] * E[vk, vj]");
        for (init, update, n, nests) in [
            ("0", format!("{ab} - {de}"), 6, 3),
            ("7", format!("{ab} + {de}"), 6, 3),
            ("0", format!("{ab} - ({de} - A[vi, vk] * E[vk, vj])"), 6, 4),
            ("0", format!("{ab} + A[vi, vk] * (B[vk, vj] + s[vk])"), 6, 3),
            // One product, a term that is none, few.
            ("0", ab.into(), 6, 1),
            ("0", format!("{ab} + s[vk]"), 6, 1),
            ("0", format!("{ab} - {de}"), 5, 1),
        ] {
            let source = tvmscript::parse(&script(init, &update, n)).unwrap();
            let made = one_by_one(&source, 240);
            let text = tvmscript::print(&made);
            assert_eq!(parts(&made).len(), nests, "{text}");
            assert_eq!(one_by_one(&made, 240), made, "{text}");
            if nests > 1 {
                assert_eq!(streams(&made).unwrap().source.len(), nests, "{text}");
            }
            let again = tvmscript::parse(&text).unwrap();
            interp::equal_on(&source, &again, 3).unwrap_or_else(|e| panic!("{e}\n{text}"));
        }
    }
}
