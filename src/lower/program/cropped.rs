//! Copies of padded operands whose padding makes only results that are left out: beyond the edge they read something that exists, and
//! ask nothing.
//!
//! ```text
//!   S[v0, v1] = A[v0, v1] if v0 < 1000 and v1 < 333 else 0      ->      S[v0, v1] = A[min(v0, 999), v1] if v1 < 333 else 0
//! ```
//! That the results are left out is what the schedule says ([`keys::CROPPED`]); whoever hands kernels out executes them.
use satune_ir::affine::linear::{all, conjuncts};
use satune_ir::affine::{add, floor_div, floor_mod, int, mul};
use satune_ir::{visit, Annotations, Attr, BinOp, Block, Expr, Stmt, VarId};
use satune_rewrites::keys;
use std::borrow::Cow;

/// What such a block stores; any other block is as it was.
pub fn without_edge(block: &Block) -> Cow<'_, Stmt> {
    let body = block.body.as_ref();
    let Some((axis, at_once)) = asked(&block.annotations) else { return Cow::Borrowed(body) };
    let (Some(axis), Stmt::Store { buffer, indices, value }) = (block.iter_vars.get(axis), body) else {
        return Cow::Borrowed(body);
    };
    match cropped(value, axis.var.id, at_once) {
        Some(value) => Cow::Owned(Stmt::Store { buffer: *buffer, indices: indices.clone(), value }),
        None => Cow::Borrowed(body),
    }
}

fn asked(annotations: &Annotations) -> Option<(usize, i64)> {
    match annotations.get(keys::CROPPED) {
        Some(Attr::List(list)) => match list.as_slice() {
            [Attr::Int(axis), Attr::Int(at_once @ 1..)] => Some((usize::try_from(*axis).ok()?, *at_once)),
            _ => None,
        },
        _ => None,
    }
}

/// The value without the condition that `v` is below a bound, and with what exists in place of `v` beyond it.
fn cropped(value: &Expr, v: VarId, at_once: i64) -> Option<Expr> {
    let Expr::Select { cond, then, otherwise, lazy } = value else { return None };
    if !matches!(otherwise.as_ref(), Expr::Int(0, _) | Expr::Float(0, _)) {
        return None;
    }
    let bound = |e: &Expr| match e {
        Expr::Binary(BinOp::Lt, a, b) => match (a.as_ref(), b.as_ref()) {
            (Expr::Var(x), Expr::Int(bound, _)) if x.id == v => Some((x.clone(), *bound)),
            _ => None,
        },
        _ => None,
    };
    let (edges, others): (Vec<_>, Vec<_>) = conjuncts(cond).into_iter().partition(|e| bound(e).is_some());
    let (var, most) = edges.iter().find_map(bound)?;
    if most < at_once || most % at_once != 0 || edges.len() > 1 {
        return None;
    }
    let (dtype, var) = (var.dtype, Expr::Var(var));
    let first = mul(floor_div(var.clone(), at_once, dtype), int(at_once, dtype));
    let last = Expr::Int(most - at_once, dtype);
    let exists = add(Expr::Binary(BinOp::Min, first.into(), last.into()), floor_mod(var, at_once, dtype));
    let then = visit::substitute(then, &[(v, exists)].into());
    match others.is_empty() {
        true => Some(then),
        false => Some(Expr::Select {
            lazy: *lazy,
            cond: all(others).into(),
            then: then.into(),
            otherwise: otherwise.clone(),
        }),
    }
}
