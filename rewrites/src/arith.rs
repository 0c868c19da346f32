//! Small arithmetic on expressions: folding constructors, and the simplification of block bindings under loops.
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

fn iter_map_simplify(values: &[Expr], _domains: &Domains, _predicate: &Expr, _keep_unit: bool) -> Vec<Expr> {
    values.to_vec()
}

/// Whether block iterator values are an affine map, onto their domain, of loops: mixed radix with unit stride.
pub fn is_affine_binding(values: &[Expr], loops: &[&For], predicate: &Expr) -> bool {
    mixed_radix(values, &domains(loops), predicate)
}

/// Whether the starts of the ranges take all values of a box while the variables of `domains` run.
pub fn fills_boxes(ranges: &[Range], domains: &Domains, predicate: &Expr) -> bool {
    let starts: Vec<Expr> = ranges.iter().map(|r| r.min.clone()).collect();
    mixed_radix(&starts, domains, predicate)
}

fn mixed_radix(values: &[Expr], domains: &Domains, _predicate: &Expr) -> bool {
    let mut used = std::collections::HashSet::new();
    values.iter().all(|e| {
        let mut terms: Vec<(i64, i64)> = Vec::new();
        let mut ok = collect(e, 1, domains, &mut used, &mut terms);
        terms.sort_unstable();
        let mut next = 1;
        for (scale, extent) in terms {
            ok &= scale == next;
            next = scale.saturating_mul(extent);
        }
        ok
    })
}

fn collect(
    e: &Expr,
    scale: i64,
    domains: &Domains,
    used: &mut std::collections::HashSet<VarId>,
    out: &mut Vec<(i64, i64)>,
) -> bool {
    match e {
        Expr::Int(..) => true,
        Expr::Var(v) => match domains.get(&v.id).map(|r| constant(&r.extent)) {
            Some(Some(1)) | None => true,
            Some(Some(extent)) => {
                out.push((scale, extent));
                used.insert(v.id)
            }
            Some(None) => false,
        },
        Expr::Binary(BinOp::Add, a, b) => {
            collect(a, scale, domains, used, out) && collect(b, scale, domains, used, out)
        }
        Expr::Binary(BinOp::Mul, a, b) => {
            constant(b).is_some_and(|c| collect(a, scale.saturating_mul(c), domains, used, out))
        }
        _ => !satune_ir::visit::uses_var(e, &|v| domains.contains_key(&v)),
    }
}
