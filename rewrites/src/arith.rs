//! Small arithmetic on expressions: folding constructors, and the simplification of block bindings under loops.
use crate::iter_map;
use satune_ir::{BinOp, DType, Expr, For, Range, Stmt, VarId};
use std::collections::HashMap;
use std::sync::Arc;

/// Values that variables take.
pub type Domains = HashMap<VarId, Range>;

/// The integer that an expression is, if it is a constant.
pub fn constant(e: &Expr) -> Option<i64> {
    match e {
        Expr::Int(v, _) => Some(*v),
        _ => None,
    }
}

/// An integer constant.
pub fn int(value: i64, dtype: DType) -> Expr {
    Expr::Int(value, dtype)
}

fn binary(op: BinOp, a: Expr, b: Expr) -> Expr {
    Expr::Binary(op, Arc::new(a), Arc::new(b))
}

/// `a + b`.
pub fn add(a: Expr, b: Expr) -> Expr {
    match (&a, &b) {
        (Expr::Int(0, _), _) => b,
        (_, Expr::Int(0, _)) => a,
        (Expr::Int(x, t), Expr::Int(y, _)) if x.checked_add(*y).is_some() => Expr::Int(x + y, *t),
        _ => binary(BinOp::Add, a, b),
    }
}

/// `a * b`.
pub fn mul(a: Expr, b: Expr) -> Expr {
    match (&a, &b) {
        (Expr::Int(0, _), _) | (_, Expr::Int(1, _)) => a,
        (_, Expr::Int(0, _)) | (Expr::Int(1, _), _) => b,
        (Expr::Int(x, t), Expr::Int(y, _)) if x.checked_mul(*y).is_some() => Expr::Int(x * y, *t),
        _ => binary(BinOp::Mul, a, b),
    }
}

/// `a // b`, for a positive `b`.
pub fn floor_div(a: Expr, b: i64, dtype: DType) -> Expr {
    match &a {
        _ if b == 1 => a,
        Expr::Int(x, t) => Expr::Int(x.div_euclid(b), *t),
        _ => binary(BinOp::FloorDiv, a, int(b, dtype)),
    }
}

/// `a % b`, for a positive `b`.
pub fn floor_mod(a: Expr, b: i64, dtype: DType) -> Expr {
    match &a {
        Expr::Int(x, t) => Expr::Int(x.rem_euclid(b), *t),
        _ if b == 1 => int(0, dtype),
        _ => binary(BinOp::FloorMod, a, int(b, dtype)),
    }
}

/// `a < b`.
pub fn lt(a: Expr, b: Expr) -> Expr {
    binary(BinOp::Lt, a, b)
}

/// `a and b`; a constant true is dropped.
pub fn and(a: Expr, b: Expr) -> Expr {
    match (&a, &b) {
        (Expr::Int(1, DType::Bool), _) => b,
        (_, Expr::Int(1, DType::Bool)) => a,
        _ => binary(BinOp::And, a, b),
    }
}

/// The domains of loops.
pub fn domains(loops: &[&For]) -> Domains {
    loops.iter().map(|l| (l.var.id, Range { min: l.min.clone(), extent: l.extent.clone() })).collect()
}

/// Simplifies the bindings of the blocks at or below `stmt`, as affine maps onto their domains of the loops in `around`
/// and below. Blocks without iterators are looked into; bodies of others are not.
pub fn simplify_bindings(stmt: &mut Stmt, around: &mut Domains, keep_unit_iterators: bool) {
    match stmt {
        Stmt::For(l) => {
            around.insert(l.var.id, Range { min: l.min.clone(), extent: l.extent.clone() });
            simplify_bindings(&mut l.body, around, keep_unit_iterators);
            around.remove(&l.var.id);
        }
        Stmt::Realize(r) if r.iter_values.is_empty() => {
            simplify_bindings(&mut r.block.body, around, keep_unit_iterators);
        }
        Stmt::Realize(r) => {
            r.iter_values = iter_map_simplify(&r.iter_values, around, &r.predicate, keep_unit_iterators);
        }
        Stmt::Seq(parts) => parts.iter_mut().for_each(|s| simplify_bindings(s, around, keep_unit_iterators)),
        Stmt::If { then, otherwise, .. } => {
            simplify_bindings(then, around, keep_unit_iterators);
            if let Some(s) = otherwise {
                simplify_bindings(s, around, keep_unit_iterators);
            }
        }
        Stmt::Let { body, .. } => simplify_bindings(body, around, keep_unit_iterators),
        Stmt::Store { .. } | Stmt::Evaluate(_) => {}
    }
}

/// The indices in normal form, where they are an affine map of the variables; as they are otherwise.
pub fn iter_map_simplify(values: &[Expr], domains: &Domains, predicate: &Expr, keep_unit_iterators: bool) -> Vec<Expr> {
    // What fails under the predicate may still have a normal form that holds without it.
    let always = int(1, DType::Bool);
    iter_map::detect(values, domains, predicate, keep_unit_iterators)
        .or_else(|| iter_map::detect(values, domains, &always, keep_unit_iterators))
        .map_or_else(|| values.to_vec(), |map| map.indices())
}

/// Whether block iterator values are an affine map, onto their domain, of loops: mixed radix with unit stride.
pub fn is_affine_binding(values: &[Expr], loops: &[&For], predicate: &Expr) -> bool {
    iter_map::detect(values, &domains(loops), predicate, true).is_some_and(|map| map.has_unit_strides())
}

/// Whether the ranges take all values of a box while the variables of `domains` run.
pub fn fills_boxes(ranges: &[Range], domains: &Domains, predicate: &Expr) -> bool {
    let starts: Vec<Expr> = ranges.iter().map(|r| r.min.clone()).collect();
    let Some(extents) = ranges.iter().map(|r| constant(&r.extent)).collect::<Option<Vec<i64>>>() else { return false };
    iter_map::detect(&starts, domains, predicate, true).is_some_and(|map| map.fills(&extents))
}
