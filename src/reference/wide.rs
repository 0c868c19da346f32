//! The source program in double precision: what a GPU's results are compared with.
//!
//! Parameters that the program only reads keep their type, so that the reference reads the very bits that a candidate
//! reads; everything that it writes in a floating type is written in f64, and all arithmetic on floats is done there.
//! Roundings of the source (a cast to f16 between two blocks) are left out: they are a part of what a candidate may be
//! off by. Whole numbers stay as they are: their arithmetic is exact in any order, wrapping round included, and in a
//! wider type the reference would not wrap where the program does.
use super::PlainError;
use satune_ir::interp::{first_uses, FirstUse};
use satune_ir::{visit, BufferId, DType, Expr, Program, Stmt, Var};
use std::collections::HashSet;
use std::sync::Arc;

/// The wide program, and of each parameter whether the program writes it.
pub(super) fn widen(source: &Program) -> Result<(Program, Vec<bool>), PlainError> {
    let mut stored: HashSet<BufferId> = HashSet::new();
    visit::walk_stmt(&source.body.block.body, &mut |s| {
        if let Stmt::Store { buffer, .. } = s {
            stored.insert(*buffer);
        }
    });
    let written: Vec<bool> = source.params.iter().map(|id| stored.contains(id)).collect();
    for ((id, first), written) in source.params.iter().zip(first_uses(source)).zip(&written) {
        if *written && first == Some(FirstUse::Read) {
            return Err(PlainError::InPlace { buffer: source.buffer(*id).name.clone() });
        }
    }
    let mut wide = source.clone();
    let kept = |id: BufferId| source.params.contains(&id) && !stored.contains(&id);
    for (at, buffer) in wide.buffers.iter_mut().enumerate() {
        if buffer.dtype.is_float() && !kept(BufferId(at as u32)) {
            buffer.dtype = DType::F64;
        }
    }
    let rule = |e: Expr| match e {
        // The constant that the source means: one that its type holds.
        Expr::Float(bits, dtype) => Expr::Float(held(f64::from_bits(bits), dtype).to_bits(), DType::F64),
        Expr::Int(v, dtype) if dtype.is_float() => Expr::Int(v, DType::F64),
        Expr::Var(v) if v.dtype.is_float() => Expr::Var(Var { dtype: DType::F64, ..v }),
        Expr::Load(id, _) if kept(id) && source.buffer(id).dtype.is_float() => Expr::Cast(DType::F64, Arc::new(e)),
        Expr::Cast(to, a) if to.is_float() => match is_double(&wide, &a) {
            true => (*a).clone(),
            false => Expr::Cast(DType::F64, a),
        },
        Expr::Call(name, arguments, dtype) if dtype.is_float() => Expr::Call(name, arguments, DType::F64),
        other => other,
    };
    let body = visit::map_realize_exprs(&wide.body, &mut |e| visit::map_expr(e, &mut |e| rule(e)));
    wide.body = body;
    widen_lets(&mut wide.body.block.body);
    Ok((wide, written))
}

/// A number as a type holds it.
fn held(value: f64, dtype: DType) -> f64 {
    satune_ir::interp::Scalar::float(value, dtype).as_f64()
}

/// Whether an expression, whose parts are wide, has the type f64.
fn is_double(wide: &Program, e: &Expr) -> bool {
    match e {
        Expr::Int(_, t) | Expr::Float(_, t) | Expr::Cast(t, _) | Expr::Call(_, _, t) => *t == DType::F64,
        Expr::Var(v) => v.dtype == DType::F64,
        Expr::Load(id, _) => wide.buffer(*id).dtype == DType::F64,
        Expr::Select { then, .. } => is_double(wide, then),
        Expr::Binary(op, a, _) => {
            use satune_ir::BinOp::{And, Eq, Ge, Gt, Le, Lt, Ne, Or};
            !matches!(op, Eq | Ne | Lt | Le | Gt | Ge | And | Or) && is_double(wide, a)
        }
        Expr::Not(_) | Expr::Str(_) => false,
    }
}

/// The variables of bound values, where they are bound.
fn widen_lets(stmt: &mut Stmt) {
    match stmt {
        Stmt::Let { var, body, .. } => {
            if var.dtype.is_float() {
                var.dtype = DType::F64;
            }
            widen_lets(body);
        }
        Stmt::For(l) => widen_lets(&mut l.body),
        Stmt::Realize(r) => {
            r.block.init.iter_mut().for_each(|s| widen_lets(s));
            widen_lets(&mut r.block.body);
        }
        Stmt::Seq(parts) => parts.iter_mut().for_each(widen_lets),
        Stmt::If { then, otherwise, .. } => {
            widen_lets(then);
            otherwise.iter_mut().for_each(|s| widen_lets(s));
        }
        Stmt::Store { .. } | Stmt::Evaluate(_) => {}
    }
}
