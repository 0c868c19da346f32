//! What a program means on a GPU: memory lasts only as long, and is seen by those threads only, as its scope says, and threads
//! run in any order.
use satune_ir::{
    affine, interp, visit, BinOp, BufferId, DType, Expr, For, ForKind, IterKind, Program, Stmt, Var, VarId,
};
use satune_rewrites::{soundness, tree};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Why a scheduled program does not mean what its source means, if so.
pub fn wrong(source: &Program, scheduled: &Program, inputs: u64) -> Option<String> {
    let run = |p: &Program| interp::equal_on(source, p, inputs).err().map(|e| e.to_string());
    if let Some(why) = run(scheduled) {
        return Some(why);
    }
    let lived = poisoned(soundness::lived(scheduled));
    run(&lived).map(|why| format!("with memory that lasts as long as it is needed: {why}")).or_else(|| {
        let reversed = reversed(&lived)?;
        run(&reversed).map(|why| format!("with the last threads first: {why}"))
    })
}

/// The program with memory that holds something when it is allocated: what is read of it and seen in the end is wrong, what
/// is read and thrown away is not.
fn poisoned(mut program: Program) -> Program {
    let mut blocks = vec![(program.body.block.id, program.body.block.alloc_buffers.clone())];
    let inner = tree::all_realizes(&program.body.block.body).into_iter();
    blocks.extend(inner.map(|r| (r.block.id, r.block.alloc_buffers.clone())));
    for (id, buffers) in blocks.into_iter().filter(|(_, buffers)| !buffers.is_empty()) {
        let mut parts: Vec<Stmt> = buffers.into_iter().filter_map(|b| filled(&mut program, b)).collect();
        let root = &mut program.body;
        let block = if root.block.id == id {
            &mut root.block
        } else {
            match tree::find_mut(&mut root.block.body, tree::Node::Block(id)) {
                Some(Stmt::Realize(r)) => &mut r.block,
                _ => continue,
            }
        };
        parts.push(std::mem::replace(&mut *block.body, Stmt::Seq(Vec::new())));
        *block.body = Stmt::seq(parts);
    }
    program
}

fn filled(program: &mut Program, buffer: BufferId) -> Option<Stmt> {
    let (shape, dtype) = (program.buffer(buffer).shape.clone(), program.buffer(buffer).dtype);
    let value = match dtype.int_range() {
        Some((_, most)) => Expr::Int(most.min(85), dtype),
        None => Expr::Float(12345.0f64.to_bits(), dtype),
    };
    let vars: Vec<_> = shape.iter().map(|_| program.fresh_var("p", DType::I32)).collect();
    let indices = vars.iter().cloned().map(Expr::Var).collect();
    let store = Stmt::Store { buffer, indices, value };
    let zero = || Expr::Int(0, DType::I32);
    let around = |body, (var, extent): (Var, Expr)| {
        let (min, kind) = (zero(), ForKind::Serial);
        Stmt::For(For { var, min, extent, kind, annotations: Default::default(), body: Box::new(body) })
    };
    shape.iter().all(|d| affine::constant(d).is_some()).then(|| vars.into_iter().zip(shape).rev().fold(store, around))
}

/// The program with the loops over threads run backwards, but for those over which a block reduces: these are no order. None
/// where there are none.
fn reversed(program: &Program) -> Option<Program> {
    let mut reduced: HashSet<VarId> = HashSet::new();
    for r in tree::all_realizes(&program.body.block.body) {
        for (_, e) in r.block.iter_vars.iter().zip(&r.iter_values).filter(|(iv, _)| iv.kind != IterKind::Spatial) {
            visit::walk_expr(e, &mut |e| {
                if let Expr::Var(v) = e {
                    reduced.insert(v.id);
                }
            });
        }
    }
    let mut map = HashMap::new();
    visit::walk_stmt(&program.body.block.body, &mut |s| {
        if let Stmt::For(For { var, min, extent, kind: ForKind::ThreadBinding(_), .. }) = s {
            let ends = affine::constant(min).zip(affine::constant(extent));
            if let Some((min, extent)) = ends.filter(|_| !reduced.contains(&var.id)) {
                let sum = Expr::Int(2 * min + extent - 1, var.dtype);
                map.insert(var.id, Expr::Binary(BinOp::Sub, Arc::new(sum), Arc::new(Expr::Var(var.clone()))));
            }
        }
    });
    if map.is_empty() {
        return None;
    }
    let mut out = program.clone();
    out.body = visit::map_realize_exprs(&out.body, &mut |e| visit::substitute(e, &map));
    Some(out)
}
