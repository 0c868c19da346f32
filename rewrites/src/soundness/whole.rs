//! Whether a program makes a parameter as a whole, so that its caller need not give what was there.
use super::readable;
use crate::arith::int;
use crate::space::nest_over;
use crate::tree;
use satune_ir::{visit, Buffer, BufferId, DType, Expr, IterKind, IterVar, Program, Stmt, VarId};
use std::collections::HashSet;

/// Whether a program writes every element of a parameter, and reads none before: what the caller left there matters to nothing. Stores
/// at indices that depend on data write none for certain.
pub fn makes_all(program: &Program, param: BufferId) -> bool {
    let mut asked = program.clone();
    drop_stores_by_data(&mut asked.body.block.body, param, &mut HashSet::new());
    // As a buffer of its own it may be read only where it was written.
    asked.params.retain(|p| *p != param);
    asked.body.block.alloc_buffers.push(param);
    let Buffer { dtype, shape, .. } = asked.buffer(param).clone();
    let copy = asked.add_buffer(Buffer::plain("copy", dtype, shape.clone(), "global"));
    asked.body.block.alloc_buffers.push(copy);
    let iter = |extent: &Expr| {
        let var = asked.fresh_var("v", DType::I64);
        IterVar { var, min: int(0, DType::I64), extent: extent.clone(), kind: IterKind::Spatial }
    };
    let iters: Vec<IterVar> = shape.iter().map(iter).collect();
    let indices: Vec<Expr> = iters.iter().map(|iv| Expr::Var(iv.var.clone())).collect();
    let store = Stmt::Store { buffer: copy, indices: indices.clone(), value: Expr::Load(param, indices) };
    let read = nest_over(&mut asked, "copy".into(), &iters, None, store);
    let before = std::mem::replace(&mut *asked.body.block.body, Stmt::Seq(Vec::new()));
    *asked.body.block.body = Stmt::seq(vec![before, read]);
    readable(&asked).is_ok()
}

/// Drops the stores to a buffer at indices that depend on data; `told` are variables whose values do.
fn drop_stores_by_data(stmt: &mut Stmt, buffer: BufferId, told: &mut HashSet<VarId>) {
    let by_data =
        |e: &Expr, told: &HashSet<VarId>| !visit::loads(e).is_empty() || visit::uses_var(e, &|v| told.contains(&v));
    match stmt {
        Stmt::Store { buffer: of, indices, .. } if *of == buffer && indices.iter().any(|e| by_data(e, told)) => {
            *stmt = Stmt::Seq(Vec::new());
            return;
        }
        Stmt::Realize(r) => {
            let bound = r.block.iter_vars.iter().zip(&r.iter_values).filter(|(_, e)| by_data(e, told));
            let bound: Vec<VarId> = bound.map(|(iv, _)| iv.var.id).collect();
            told.extend(bound);
        }
        Stmt::Let { var, value, .. } if by_data(value, told) => {
            told.insert(var.id);
        }
        _ => {}
    }
    tree::children_and_init_mut(stmt).into_iter().for_each(|s| drop_stores_by_data(s, buffer, told));
}
