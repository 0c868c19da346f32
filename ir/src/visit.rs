//! Walking and rewriting expressions and statements.
use crate::{Block, BlockRealize, BufferId, Expr, For, Range, Region, Stmt, VarId};
use std::collections::HashMap;
use std::sync::Arc;

/// The same node over other children: `f` of each of them.
pub fn map_children(expr: &Expr, f: &mut dyn FnMut(&Expr) -> Expr) -> Expr {
    match expr {
        Expr::Int(..) | Expr::Float(..) | Expr::Str(_) | Expr::Var(_) => expr.clone(),
        Expr::Binary(op, a, b) => Expr::Binary(*op, Arc::new(f(a)), Arc::new(f(b))),
        Expr::Not(a) => Expr::Not(Arc::new(f(a))),
        Expr::Cast(t, a) => Expr::Cast(*t, Arc::new(f(a))),
        Expr::Select { lazy, cond, then, otherwise } => Expr::Select {
            lazy: *lazy,
            cond: Arc::new(f(cond)),
            then: Arc::new(f(then)),
            otherwise: Arc::new(f(otherwise)),
        },
        Expr::Load(b, idx) => Expr::Load(*b, idx.iter().map(f).collect()),
        Expr::Call(n, args, t) => Expr::Call(n.clone(), args.iter().map(f).collect(), *t),
    }
}

/// Rebuilds an expression bottom-up: `f` is called on every node after its children were rebuilt.
pub fn map_expr(expr: &Expr, f: &mut dyn FnMut(Expr) -> Expr) -> Expr {
    let node = map_children(expr, &mut |e| map_expr(e, f));
    f(node)
}

/// The direct parts of an expression.
pub fn children(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::Int(..) | Expr::Float(..) | Expr::Str(_) | Expr::Var(_) => Vec::new(),
        Expr::Binary(_, a, b) => vec![a, b],
        Expr::Not(a) | Expr::Cast(_, a) => vec![a],
        Expr::Select { cond, then, otherwise, .. } => vec![cond, then, otherwise],
        Expr::Load(_, args) | Expr::Call(_, args, _) => args.iter().collect(),
    }
}

/// Calls `f` on every node, parents first.
pub fn walk_expr(expr: &Expr, f: &mut dyn FnMut(&Expr)) {
    f(expr);
    match expr {
        Expr::Int(..) | Expr::Float(..) | Expr::Str(_) | Expr::Var(_) => {}
        Expr::Binary(_, a, b) => {
            walk_expr(a, f);
            walk_expr(b, f);
        }
        Expr::Not(a) | Expr::Cast(_, a) => walk_expr(a, f),
        Expr::Select { cond, then, otherwise, .. } => {
            walk_expr(cond, f);
            walk_expr(then, f);
            walk_expr(otherwise, f);
        }
        Expr::Load(_, args) | Expr::Call(_, args, _) => args.iter().for_each(|e| walk_expr(e, f)),
    }
}

/// Calls `f` on the expressions of statements at and below `stmt` that are evaluated: bounds of loops, bindings,
/// predicates, conditions, indices, values. Regions only say what is touched, and are left out.
pub fn walk_stmt_exprs(stmt: &Stmt, f: &mut dyn FnMut(&Expr)) {
    walk_stmt(stmt, &mut |s| match s {
        Stmt::For(l) => [&l.min, &l.extent].into_iter().for_each(&mut *f),
        Stmt::Realize(r) => r.iter_values.iter().chain([&r.predicate]).for_each(&mut *f),
        Stmt::Store { indices, value, .. } => indices.iter().chain([value]).for_each(&mut *f),
        Stmt::If { cond, .. } => f(cond),
        Stmt::Let { value, .. } => f(value),
        Stmt::Evaluate(e) => f(e),
        Stmt::Seq(_) => {}
    });
}

/// Whether any of `vars` occurs in the expression.
pub fn uses_var(expr: &Expr, pred: &dyn Fn(VarId) -> bool) -> bool {
    let mut found = false;
    walk_expr(expr, &mut |e| {
        if let Expr::Var(v) = e {
            found |= pred(v.id);
        }
    });
    found
}

/// Replaces the loads of one buffer by what `with` makes of their indices. `A.data` and its like stay.
pub fn replace_loads(expr: &Expr, buffer: BufferId, with: &mut dyn FnMut(Vec<Expr>) -> Expr) -> Expr {
    let mut names = 0;
    // `A.data` holds its buffer without indices.
    walk_expr(expr, &mut |e| names += usize::from(crate::fields::is_field(e)));
    map_expr(expr, &mut |e| match e {
        Expr::Load(b, list) if b == buffer && (names == 0 || !list.is_empty()) => with(list),
        other => other,
    })
}

/// Replaces variables by expressions, everywhere at once.
pub fn substitute(expr: &Expr, map: &HashMap<VarId, Expr>) -> Expr {
    map_expr(expr, &mut |e| match &e {
        Expr::Var(v) => map.get(&v.id).cloned().unwrap_or(e),
        _ => e,
    })
}

/// Rebuilds every expression that a statement holds directly or in its children (extents, bindings, predicates,
/// regions, indices, values). `f` receives whole expressions.
pub fn map_stmt_exprs(stmt: &Stmt, f: &mut dyn FnMut(&Expr) -> Expr) -> Stmt {
    match stmt {
        Stmt::For(l) => Stmt::For(For {
            var: l.var.clone(),
            min: f(&l.min),
            extent: f(&l.extent),
            kind: l.kind.clone(),
            annotations: l.annotations.clone(),
            body: Box::new(map_stmt_exprs(&l.body, f)),
        }),
        Stmt::Realize(r) => Stmt::Realize(Box::new(map_realize_exprs(r, f))),
        Stmt::Seq(parts) => Stmt::Seq(parts.iter().map(|s| map_stmt_exprs(s, f)).collect()),
        Stmt::Store { buffer, indices, value } => {
            Stmt::Store { buffer: *buffer, indices: indices.iter().map(&mut *f).collect(), value: f(value) }
        }
        Stmt::If { cond, then, otherwise } => Stmt::If {
            cond: f(cond),
            then: Box::new(map_stmt_exprs(then, f)),
            otherwise: otherwise.as_ref().map(|s| Box::new(map_stmt_exprs(s, f))),
        },
        Stmt::Let { var, value, body } => {
            Stmt::Let { var: var.clone(), value: f(value), body: Box::new(map_stmt_exprs(body, f)) }
        }
        Stmt::Evaluate(e) => Stmt::Evaluate(f(e)),
    }
}

/// [`map_stmt_exprs`] for a block realize.
pub fn map_realize_exprs(r: &BlockRealize, f: &mut dyn FnMut(&Expr) -> Expr) -> BlockRealize {
    let b = &r.block;
    BlockRealize {
        iter_values: r.iter_values.iter().map(&mut *f).collect(),
        predicate: f(&r.predicate),
        block: Block {
            id: b.id,
            name: b.name.clone(),
            iter_vars: b
                .iter_vars
                .iter()
                .map(|iv| crate::IterVar { var: iv.var.clone(), min: f(&iv.min), extent: f(&iv.extent), kind: iv.kind })
                .collect(),
            reads: b.reads.iter().map(|x| map_region(x, f)).collect(),
            writes: b.writes.iter().map(|x| map_region(x, f)).collect(),
            init: b.init.as_ref().map(|s| Box::new(map_stmt_exprs(s, f))),
            alloc_buffers: b.alloc_buffers.clone(),
            match_buffers: b.match_buffers.iter().map(|(id, x)| (*id, map_region(x, f))).collect(),
            annotations: b.annotations.clone(),
            body: Box::new(map_stmt_exprs(&b.body, f)),
        },
    }
}

/// Rebuilds a region's bounds.
pub fn map_region(region: &Region, f: &mut dyn FnMut(&Expr) -> Expr) -> Region {
    Region {
        buffer: region.buffer,
        ranges: region.ranges.iter().map(|r| Range { min: f(&r.min), extent: f(&r.extent) }).collect(),
    }
}

/// Calls `f` on every statement below and including `stmt`, parents first; `init` statements are visited too.
pub fn walk_stmt(stmt: &Stmt, f: &mut dyn FnMut(&Stmt)) {
    f(stmt);
    match stmt {
        Stmt::For(l) => walk_stmt(&l.body, f),
        Stmt::Realize(r) => {
            if let Some(init) = &r.block.init {
                walk_stmt(init, f);
            }
            walk_stmt(&r.block.body, f);
        }
        Stmt::Seq(parts) => parts.iter().for_each(|s| walk_stmt(s, f)),
        Stmt::If { then, otherwise, .. } => {
            walk_stmt(then, f);
            if let Some(s) = otherwise {
                walk_stmt(s, f);
            }
        }
        Stmt::Let { body, .. } => walk_stmt(body, f),
        Stmt::Store { .. } | Stmt::Evaluate(_) => {}
    }
}

/// [`walk_stmt`], to change what is met.
pub fn walk_stmt_mut(stmt: &mut Stmt, f: &mut dyn FnMut(&mut Stmt)) {
    f(stmt);
    match stmt {
        Stmt::For(l) => walk_stmt_mut(&mut l.body, f),
        Stmt::Realize(r) => {
            if let Some(init) = &mut r.block.init {
                walk_stmt_mut(init, f);
            }
            walk_stmt_mut(&mut r.block.body, f);
        }
        Stmt::Seq(parts) => parts.iter_mut().for_each(|s| walk_stmt_mut(s, f)),
        Stmt::If { then, otherwise, .. } => {
            walk_stmt_mut(then, f);
            if let Some(s) = otherwise {
                walk_stmt_mut(s, f);
            }
        }
        Stmt::Let { body, .. } => walk_stmt_mut(body, f),
        Stmt::Store { .. } | Stmt::Evaluate(_) => {}
    }
}

/// The buffers that an expression loads, in order of occurrence, with repetition.
pub fn loads(expr: &Expr) -> Vec<(BufferId, Vec<Expr>)> {
    let mut out = Vec::new();
    let mut names = 0;
    walk_expr(expr, &mut |e| match e {
        // The name of a buffer in `A.data`, which comes next, reads nothing.
        e if crate::fields::is_field(e) => names += 1,
        Expr::Load(_, idx) if names > 0 && idx.is_empty() => names -= 1,
        Expr::Load(b, idx) => out.push((*b, idx.clone())),
        _ => {}
    });
    out
}
