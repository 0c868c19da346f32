//! How large the values are that an element is made of: what rounding may change of it, where a compiler may round a product and a
//! sum once or twice.
use crate::agreement::{smallest, unit};
use satune_ir::{fold, visit, BinOp, Buffer, DType, Expr, Program, Stmt};
use satune_rewrites::tree;
use std::sync::Arc;

/// The program of the magnitudes: on the magnitudes of its inputs it makes, for each element, the sum of all that is added or
/// taken away. And the number of operations that round. `None` where more is done with values than that: functions, quotients,
/// conditions on data, sums over iterators.
pub(super) fn magnitudes(program: &Program) -> Option<(Program, u32)> {
    let mut out = program.clone();
    let mut rounds = 0;
    of_stmt(&mut out.body.block.body, &program.buffers, &mut rounds)?;
    Some((out, rounds))
}

fn of_stmt(stmt: &mut Stmt, buffers: &[Buffer], rounds: &mut u32) -> Option<()> {
    let of_data = |e: &Expr| !visit::loads(e).is_empty();
    match stmt {
        Stmt::Store { buffer, indices, value } => {
            (!indices.iter().any(of_data)).then_some(())?;
            if buffers.get(buffer.0 as usize)?.dtype.is_float() {
                *value = of_expr(value, buffers, rounds)?;
            } else {
                // What becomes of a float there is compared bit for bit.
                let floats = visit::loads(value).iter().any(|(b, _)| buffers[b.0 as usize].dtype.is_float());
                (!floats).then_some(())?;
            }
        }
        Stmt::Realize(r) if r.block.init.is_some() || of_data(&r.predicate) => return None,
        Stmt::If { cond, .. } if of_data(cond) => return None,
        Stmt::Let { .. } | Stmt::Evaluate(_) => return None,
        _ => {}
    }
    tree::children_and_init_mut(stmt).into_iter().try_for_each(|s| of_stmt(s, buffers, rounds))
}

fn of_expr(e: &Expr, buffers: &[Buffer], rounds: &mut u32) -> Option<Expr> {
    let dtype = fold::dtype(e, buffers);
    let mut of = |e: &Expr| of_expr(e, buffers, rounds).map(Arc::new);
    let made = match e {
        Expr::Float(bits, t) => Expr::Float(f64::from_bits(*bits).abs().to_bits(), *t),
        Expr::Int(value, t) if t.is_float() => Expr::Int(value.checked_abs()?, *t),
        Expr::Load(_, indices) if dtype.is_float() && indices.iter().all(|i| visit::loads(i).is_empty()) => e.clone(),
        Expr::Binary(BinOp::Add | BinOp::Sub, a, b) => Expr::Binary(BinOp::Add, of(a)?, of(b)?),
        Expr::Binary(BinOp::Mul, a, b) => Expr::Binary(BinOp::Mul, of(a)?, of(b)?),
        Expr::Binary(BinOp::Min | BinOp::Max, a, b) => Expr::Binary(BinOp::Max, of(a)?, of(b)?),
        Expr::Cast(t, of_float) if t.is_float() && fold::dtype(of_float, buffers).is_float() => {
            Expr::Cast(*t, of(of_float)?)
        }
        Expr::Cast(t, whole) if t.is_float() && fold::dtype(whole, buffers).int_range().is_some() => {
            let negative = Expr::Binary(BinOp::Sub, Arc::new(Expr::Float(0, *t)), Arc::new(e.clone()));
            let floats = visit::loads(whole).iter().any(|(b, _)| buffers[b.0 as usize].dtype.is_float());
            (!floats).then(|| Expr::Binary(BinOp::Max, Arc::new(e.clone()), Arc::new(negative)))?
        }
        Expr::Select { lazy, cond, then, otherwise } if visit::loads(cond).is_empty() => {
            Expr::Select { lazy: *lazy, cond: cond.clone(), then: of(then)?, otherwise: of(otherwise)? }
        }
        _ => return None,
    };
    *rounds += u32::from(dtype.is_float() && matches!(e, Expr::Binary(..) | Expr::Cast(..)));
    Some(made)
}

/// What one operation may change by rounding, in the narrowest type that the program computes in: relative to the magnitudes, and
/// at least.
pub(super) fn of_one(program: &Program) -> (f64, f64) {
    let mut types: Vec<DType> = program.buffers.iter().map(|b| b.dtype).collect();
    visit::walk_stmt_exprs(&program.body.block.body, &mut |e| {
        visit::walk_expr(e, &mut |e| {
            if let Expr::Cast(t, _) = e {
                types.push(*t);
            }
        });
    });
    let most = |of: &dyn Fn(DType) -> f64| types.iter().map(|t| of(*t)).fold(0.0, f64::max);
    (most(&unit), most(&smallest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use satune_ir::tvmscript;

    fn program(value: &str) -> Program {
        let text = format!(
            "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((4,), \"float32\"), B: T.Buffer((4,), \"float32\"), C: T.Buffer((4,), \
             \"float32\")):\n    for i in range(4):\n        with T.sblock(\"C\"):\n            vi = T.axis.spatial(4, i)\n            \
             C[vi] = {value}\n"
        );
        tvmscript::parse(&text).unwrap()
    }

    #[test]
    fn what_is_taken_away_counts() {
        let (made, rounds) = magnitudes(&program("A[vi] * T.float32(-3) - T.min(B[vi], A[vi])")).unwrap();
        let wanted = program("A[vi] * T.float32(3) + T.max(B[vi], A[vi])");
        assert_eq!((tvmscript::print(&made), rounds), (tvmscript::print(&wanted), 3));
        let index = magnitudes(&program("A[vi] + T.Cast(\"float32\", vi - 2)")).unwrap().0;
        assert!(tvmscript::print(&index).contains("T.max("), "{}", tvmscript::print(&index));
        for other in ["T.exp(A[vi])", "A[vi] / B[vi]", "T.Select(A[vi] < B[vi], A[vi], B[vi])"] {
            assert!(magnitudes(&program(other)).is_none(), "{other}");
        }
    }
}
