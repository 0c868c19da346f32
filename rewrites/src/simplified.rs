//! Indices in their shortest form: before patterns are matched, and after each call of a primitive.
use crate::arith::Domains;
use crate::tree;
use satune_ir::affine::simplify::decided;
use satune_ir::{visit, Block, Program, Range, Stmt};

/// The same program with quotients and remainders that the bounds of iterators decide: `v_co // 64` is 0 where `v_co < 64`.
/// TensorIR's `te` writes them for a convolution in groups of which there is one.
pub fn simplified(program: &Program) -> Program {
    let mut out = program.clone();
    simplify(&mut out);
    out
}

/// The same, in place.
pub fn simplify(program: &mut Program) {
    inside(&mut program.body.block, &mut Domains::new());
}

/// In the accesses and in the body of a block. The caller tells `domains` of the loops and iterators around it.
fn inside(block: &mut Block, domains: &mut Domains) {
    for iv in &block.iter_vars {
        domains.insert(iv.var.id, Range { min: iv.min.clone(), extent: iv.extent.clone() });
    }
    for region in block.reads.iter_mut().chain(&mut block.writes) {
        *region = visit::map_region(region, &mut |e| decided(e, domains));
    }
    let parts = block.init.iter_mut().chain([&mut block.body]);
    parts.for_each(|s| below(s, domains));
}

fn below(stmt: &mut Stmt, domains: &mut Domains) {
    match stmt {
        Stmt::For(l) => {
            domains.insert(l.var.id, Range { min: l.min.clone(), extent: l.extent.clone() });
        }
        Stmt::Realize(r) => return inside(&mut r.block, domains),
        Stmt::Store { indices, value, .. } => {
            indices.iter_mut().chain([value]).for_each(|e| *e = decided(e, domains));
        }
        Stmt::If { cond, .. } => *cond = decided(cond, domains),
        Stmt::Let { value, .. } => *value = decided(value, domains),
        Stmt::Evaluate(e) => *e = decided(e, domains),
        Stmt::Seq(_) => {}
    }
    tree::children_and_init_mut(stmt).into_iter().for_each(|s| below(s, domains));
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
