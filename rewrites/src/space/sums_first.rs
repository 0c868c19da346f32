//! Sums in the form that primitives know.
use crate::tree;
use satune_ir::{BinOp, Expr, Program, Stmt};

/// The same program with what a reduction has so far before what is added to it, `C + A * B` for `A * B + C`. TensorIR's
/// `rfactor` and `tensorize` compare blocks as they are written. To a machine both are one: addition commutes, bit for bit.
pub fn sums_first(program: &Program) -> Program {
    let mut out = program.clone();
    visit(&mut out.body.block.body, false);
    out
}

fn visit(stmt: &mut Stmt, reduces: bool) {
    match stmt {
        Stmt::Store { buffer, indices, value: Expr::Binary(BinOp::Add, left, right) } => {
            let is_own = |e: &Expr| matches!(e, Expr::Load(of, at) if of == buffer && at == indices);
            if reduces && is_own(right) && !is_own(left) {
                std::mem::swap(left, right);
            }
        }
        Stmt::Realize(r) => visit(&mut r.block.body, r.block.init.is_some()),
        other => tree::children_and_init_mut(other).into_iter().for_each(|s| visit(s, reduces)),
    }
}

#[cfg(test)]
mod tests {
    use super::sums_first;
    use satune_ir::tvmscript;

    fn script(update: &str) -> String {
        format!(
            "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((8, 4), \"float32\"), B: T.Buffer((4, 8), \"float32\"), C: T.Buffer((8, 8), \
             \"float32\")):\n    for i, j, k in T.grid(8, 8, 4):\n        with T.sblock(\"C\"):\n            vi, vj, vk = \
             T.axis.remap(\"SSR\", [i, j, k])\n            with T.init():\n                C[vi, vj] = T.float32(0)\n            \
             C[vi, vj] = {update}\n"
        )
    }

    #[test]
    fn sums_come_first() {
        let usual = tvmscript::parse(&script("C[vi, vj] + A[vi, vk] * B[vk, vj]")).unwrap();
        let other = tvmscript::parse(&script("A[vi, vk] * B[vk, vj] + C[vi, vj]")).unwrap();
        assert_eq!(tvmscript::print(&sums_first(&other)), tvmscript::print(&usual));
        assert_eq!(sums_first(&usual), usual);
        assert!(super::super::contraction(&usual).is_ok());
        // As it is, it has schedules that primitives refuse.
        let error = super::super::contraction(&other).unwrap_err().to_string();
        assert!(error.contains("before what is added"), "{error}");
    }
}
