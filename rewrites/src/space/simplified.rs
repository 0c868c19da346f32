//! Indices in their shortest form.
use crate::arith::{self, Domains};
use crate::tree;
use satune_ir::affine::linear::Linear;
use satune_ir::{visit, BinOp, Expr, Program, Range, Stmt};

/// The same program with quotients and remainders that the bounds of iterators decide: `v_co // 64` is 0 where `v_co < 64`.
/// TensorIR's `te` writes them for a convolution in groups of which there is one. Iterators of one value stay in sums: they
/// say which axis an index belongs to.
pub fn simplified(program: &Program) -> Program {
    let mut out = program.clone();
    below(&mut out.body.block.body, &mut Domains::new());
    out
}

fn below(stmt: &mut Stmt, domains: &mut Domains) {
    match stmt {
        Stmt::For(l) => {
            domains.insert(l.var.id, Range { min: l.min.clone(), extent: l.extent.clone() });
        }
        Stmt::Realize(r) => {
            for iv in &r.block.iter_vars {
                domains.insert(iv.var.id, Range { min: iv.min.clone(), extent: iv.extent.clone() });
            }
            let block = &mut r.block;
            for region in block.reads.iter_mut().chain(&mut block.writes) {
                *region = visit::map_region(region, &mut |e| of(e, domains));
            }
        }
        Stmt::Store { indices, value, .. } => {
            indices.iter_mut().chain([value]).for_each(|e| *e = of(e, domains));
        }
        Stmt::If { cond, .. } => *cond = of(cond, domains),
        Stmt::Let { value, .. } => *value = of(value, domains),
        Stmt::Evaluate(e) => *e = of(e, domains),
        Stmt::Seq(_) => {}
    }
    tree::children_and_init_mut(stmt).into_iter().for_each(|s| below(s, domains));
}

fn of(e: &Expr, domains: &Domains) -> Expr {
    visit::map_expr(e, &mut |e| match &e {
        Expr::Binary(BinOp::FloorDiv | BinOp::FloorMod, ..) if of_integers(&e) => {
            let short = Linear::of(&e, domains).map(|l| l.expr());
            short.filter(|s| !divides(s)).unwrap_or(e)
        }
        Expr::Binary(BinOp::Add, a, b) if of_integers(&e) => arith::add(a.as_ref().clone(), b.as_ref().clone()),
        Expr::Binary(BinOp::Mul, a, b) if of_integers(&e) => arith::mul(a.as_ref().clone(), b.as_ref().clone()),
        _ => e,
    })
}

/// Whether an expression is arithmetic on integer variables and numbers.
fn of_integers(e: &Expr) -> bool {
    let mut all = true;
    visit::walk_expr(e, &mut |e| {
        all &= match e {
            Expr::Int(..) => true,
            Expr::Var(v) => v.dtype.int_range().is_some(),
            Expr::Binary(BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::FloorDiv | BinOp::FloorMod, ..) => true,
            _ => false,
        }
    });
    all
}

fn divides(e: &Expr) -> bool {
    let mut found = false;
    visit::walk_expr(e, &mut |e| found |= matches!(e, Expr::Binary(BinOp::FloorDiv | BinOp::FloorMod, ..)));
    found
}

#[cfg(test)]
mod tests {
    use super::simplified;
    use satune_ir::tvmscript;

    fn script(index: &str) -> String {
        format!(
            "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((8, 64), \"float32\"), B: T.Buffer((8, 64), \"float32\")):\n    for i, j in \
             T.grid(8, 64):\n        with T.sblock(\"B\"):\n            vi, vj = T.axis.remap(\"SS\", [i, j])\n            \
             B[vi, vj] = A[{index}]\n"
        )
    }

    #[test]
    fn what_bounds_decide_is_written_out() {
        for (given, short) in [
            ("vj // 64 * 3 + vi, vj % 64", "vi, vj"),
            ("(vi * 64 + vj) // 64, vj", "vi, vj"),
            ("vi, vj // 32 * 32 + vj % 16", "vi, vj // 32 * 32 + vj % 16"),
        ] {
            let program = simplified(&tvmscript::parse(&script(given)).unwrap());
            assert_eq!(
                tvmscript::print(&program),
                tvmscript::print(&tvmscript::parse(&script(short)).unwrap()),
                "{given}"
            );
        }
    }
}
