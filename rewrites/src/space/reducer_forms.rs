//! Reductions in the form that primitives know.
use crate::tree;
use satune_ir::visit::loads;
use satune_ir::{BinOp, BufferId, DType, Expr, IterKind, Program, Stmt};
use std::sync::Arc;

/// The same program with what a reduction has so far before what is added to it, `C + A * B` for `A * B + C`: TensorIR's `rfactor`
/// and `tensorize` compare blocks as they are written, and addition commutes, bit for bit. Of bools `Y or a` is `T.max(Y, a)`, and
/// `Y and a` is `T.min(Y, a)`: TensorIR's reducers have the latter only.
pub fn in_reducer_forms(program: &Program) -> Program {
    let mut out = program.clone();
    visit(&mut out.body.block.body, false, &|buffer| program.buffer(buffer).dtype);
    out
}

fn visit(stmt: &mut Stmt, reduces: bool, dtype: &dyn Fn(BufferId) -> DType) {
    match stmt {
        Stmt::Store { buffer, indices, value: Expr::Binary(op, left, right) } if reduces => {
            let is_own = |e: &Expr| matches!(e, Expr::Load(of, at) if of == buffer && at == indices);
            let commutes = matches!(op, BinOp::Add | BinOp::And | BinOp::Or);
            if commutes && is_own(right) && !is_own(left) {
                std::mem::swap(left, right);
            }
            if is_own(left) && dtype(*buffer) == DType::Bool {
                *op = match *op {
                    BinOp::Or => BinOp::Max,
                    BinOp::And => BinOp::Min,
                    other => other,
                };
            }
        }
        Stmt::Realize(r) => visit(&mut r.block.body, r.block.init.is_some(), dtype),
        other => tree::children_and_init_mut(other).into_iter().for_each(|s| visit(s, reduces, dtype)),
    }
}

/// The same program with `C + x * -1` for `C - x` where this may be a sum: bit for bit, zeros and what wraps included. Blocks that are maps stay
/// as they are.
pub(super) fn differences_as_sums(program: &Program) -> Program {
    let mut out = program.clone();
    as_sums(&mut out.body.block.body, &|buffer| program.buffer(buffer).dtype);
    out
}

fn as_sums(stmt: &mut Stmt, dtype: &dyn Fn(BufferId) -> DType) {
    match stmt {
        Stmt::Store { buffer, indices, value: Expr::Binary(op @ BinOp::Sub, own, taken) } => {
            let is_own = matches!(&**own, Expr::Load(of, at) if of == buffer && at == indices);
            let alone = loads(taken).iter().all(|(of, _)| of != buffer);
            if is_own && alone {
                *op = BinOp::Add;
                let dtype = dtype(*buffer);
                let value = taken.as_ref().clone();
                *taken = Arc::new(match dtype.int_range() {
                    Some(_) => Expr::Binary(BinOp::Sub, Arc::new(Expr::Int(0, dtype)), Arc::new(value)),
                    None => {
                        let minus = Expr::Float((-1.0f64).to_bits(), dtype);
                        Expr::Binary(BinOp::Mul, Arc::new(value), Arc::new(minus))
                    }
                });
            }
        }
        Stmt::Realize(r) => {
            let iters = &r.block.iter_vars;
            if iters.is_empty() || iters.iter().any(|iv| iv.kind != IterKind::Spatial) {
                as_sums(&mut r.block.body, dtype);
            }
        }
        other => tree::children_and_init_mut(other).into_iter().for_each(|s| as_sums(s, dtype)),
    }
}

#[cfg(test)]
mod tests {
    use super::{differences_as_sums, in_reducer_forms};
    use satune_ir::{interp, tvmscript};

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
        assert_eq!(tvmscript::print(&in_reducer_forms(&other)), tvmscript::print(&usual));
        assert_eq!(in_reducer_forms(&usual), usual);
        assert!(super::super::contraction(&usual).is_ok());
        // As it is, it has schedules that primitives refuse.
        let error = super::super::contraction(&other).unwrap_err().to_string();
        assert!(error.contains("before what is added"), "{error}");
    }

    #[test]
    fn differences_are_sums_to_the_last_bit() {
        let text = script("C[vi, vj] - A[vi, vk] * B[vk, vj]");
        for text in [text.replace("float32", "float16"), text.replace("float32", "int8"), text] {
            let source = tvmscript::parse(&text).unwrap();
            let made = differences_as_sums(&source);
            assert!(super::super::contraction(&source).is_err() && super::super::contraction(&made).is_ok(), "{text}");
            (0..4).for_each(|seed| interp::equal_on(&source, &made, seed).unwrap());
            // Once is enough.
            assert_eq!(differences_as_sums(&made), made);
        }
        // What is taken away is made of what is there; and a map.
        let own = tvmscript::parse(&script("C[vi, vj] - A[vi, vk] * C[vi, vj]")).unwrap();
        assert_eq!(differences_as_sums(&own), own);
        let map = "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((8,), \"float32\")):\n    for i in range(8):\n        with \
                   T.sblock(\"A\"):\n            vi = T.axis.spatial(8, i)\n            A[vi] = A[vi] - T.float32(1)\n";
        let map = tvmscript::parse(map).unwrap();
        assert_eq!(differences_as_sums(&map), map);
    }

    #[test]
    fn what_bools_are_combined_by_is_a_reducer() {
        let of = |update: &str| {
            let text = format!(
                "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((8, 4), \"float32\"), Y: T.Buffer((8,), \"bool\")):\n    for i, k in \
                 T.grid(8, 4):\n        with T.sblock(\"Y\"):\n            vi, vk = T.axis.remap(\"SR\", [i, k])\n            \
                 with T.init():\n                Y[vi] = T.bool(False)\n            Y[vi] = {update}\n"
            );
            tvmscript::print(&in_reducer_forms(&tvmscript::parse(&text).unwrap()))
        };
        let positive = "A[vi, vk] > T.float32(0)";
        assert_eq!(of(&format!("Y[vi] or {positive}")), of(&format!("T.max(Y[vi], {positive})")));
        assert_eq!(of(&format!("{positive} and Y[vi]")), of(&format!("T.min(Y[vi], {positive})")));
        // What it has so far is not what is combined here.
        assert!(of(&format!("{positive} or Y[7 - vi]")).contains(" or "));
    }
}
