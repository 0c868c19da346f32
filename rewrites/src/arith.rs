//! The simplification of block bindings under loops.
use crate::iter_map;
pub use satune_ir::affine::{add, and, constant, floor_div, floor_mod, int, lt, mul, Domains};
use satune_ir::{DType, Expr, For, Range, Stmt};

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
    iter_map::detect(&starts, domains, predicate, false).is_some_and(|map| map.fills(&extents))
}
