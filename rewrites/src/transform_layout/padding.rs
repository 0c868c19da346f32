//! Who writes the padding of a buffer that was laid out anew.
use super::plan::Plan;
use crate::arith::{constant, int};
use crate::cache_common::point;
use crate::regions;
use crate::tree::{self, LoopId, Node};
use satune_ir::{
    visit, Block, BlockId, BlockRealize, DType, Expr, For, ForKind, IterKind, IterVar, Program, Stmt, Var, VarId,
};
use std::collections::HashMap;
use std::sync::Arc;

/// What is added to the program.
#[derive(Debug)]
pub enum Fill {
    /// Nothing; the writers were changed.
    None,
    /// A statement at the front of the scope.
    Front(Stmt),
    /// A statement after a loop or block.
    After(Node, Stmt),
}

/// A store to the buffer, with the loops and the block around it.
struct Write {
    loops: Vec<For>,
    realize: Option<BlockRealize>,
    indices: Vec<Expr>,
    /// The indices in terms of loops.
    bound: Vec<Expr>,
}

/// Decides who writes the padding, and changes the writers where they can. The program's accesses are still the old ones.
pub fn plan(program: &mut Program, scope: BlockId, plan: &Plan, value: &Expr) -> Fill {
    let Some(block) = tree::find_realize(program, scope).map(|r| r.block.clone()) else { return Fill::None };
    let mut writes = Vec::new();
    collect(&block.body, plan, &mut Vec::new(), None, &HashMap::new(), &mut writes);
    let Some(last) = writes.last() else { return Fill::Front(assumption(program, plan, value)) };
    let after = match (last.dependent().first(), &last.realize) {
        (Some(l), _) => Node::Loop(l.var.id),
        (None, Some(r)) => Node::Block(r.block.id),
        (None, None) => return Fill::None,
    };
    let mut replaced: Vec<LoopId> = Vec::new();
    for w in &writes {
        let Some(top) = w.dependent().first().map(|l| l.var.id) else { continue };
        if replaced.contains(&top) {
            continue;
        }
        if let Some(new) = guarded_writer(program, plan, w, value) {
            tree::replace(&mut program.body.block.body, Node::Loop(top), &mut |_| new.clone());
            replaced.push(top);
        }
    }
    if replaced.is_empty() {
        Fill::After(after, filler(program, plan, value))
    } else {
        Fill::None
    }
}

/// Adds a fill to the program.
pub fn insert(program: &mut Program, scope: BlockId, fill: Fill) {
    match fill {
        Fill::None => {}
        Fill::Front(stmt) => {
            let mut stmt = Some(stmt);
            crate::cache_common::each_block(&mut program.body, &mut |b| {
                if b.id == scope {
                    if let Some(stmt) = stmt.take() {
                        let body = std::mem::replace(&mut *b.body, Stmt::Seq(Vec::new()));
                        *b.body = Stmt::seq(vec![stmt, body]);
                    }
                }
            });
        }
        Fill::After(node, stmt) => {
            tree::replace(&mut program.body.block.body, node, &mut |old| Stmt::seq(vec![old, stmt.clone()]));
        }
    }
}

impl Write {
    /// The loops from the first to the last that the indices use.
    fn dependent(&self) -> &[For] {
        let used = |l: &For| self.bound.iter().any(|e| visit::uses_var(e, &|v| v == l.var.id));
        let first = self.loops.iter().position(used);
        let last = self.loops.iter().rposition(used);
        match (first, last) {
            (Some(a), Some(b)) => &self.loops[a..=b],
            _ => &[],
        }
    }

    /// Whether the loops run over the buffer row by row.
    fn is_row_major(&self, shape: &[Expr]) -> bool {
        let loops = self.dependent();
        loops.len() == shape.len()
            && loops.iter().zip(&self.bound).zip(shape).all(|((l, e), dim)| {
                *e == Expr::Var(l.var.clone())
                    && constant(&l.min) == Some(0)
                    && constant(&l.extent) == constant(dim)
                    && l.kind == ForKind::Serial
            })
    }
}

fn collect(
    s: &Stmt,
    plan: &Plan,
    loops: &mut Vec<For>,
    realize: Option<&BlockRealize>,
    known: &HashMap<VarId, Expr>,
    out: &mut Vec<Write>,
) {
    match s {
        Stmt::For(l) => {
            loops.push(l.clone());
            collect(&l.body, plan, loops, realize, known, out);
            loops.pop();
        }
        Stmt::Realize(r) => {
            let mut known = known.clone();
            for (v, e) in regions::bindings(r) {
                let e = visit::substitute(&e, &known);
                known.insert(v, e);
            }
            if let Some(init) = &r.block.init {
                collect(init, plan, loops, Some(r), &known, out);
            }
            collect(&r.block.body, plan, loops, Some(r), &known, out);
        }
        Stmt::Store { buffer, indices, .. } if *buffer == plan.buffer => {
            let bound = indices.iter().map(|e| visit::substitute(e, known)).collect();
            out.push(Write { loops: loops.clone(), realize: realize.cloned(), indices: indices.clone(), bound });
        }
        other => tree::children(other).into_iter().for_each(|s| collect(s, plan, loops, realize, known, out)),
    }
}

/// Fresh variables for the axes.
fn axes(program: &mut Program, plan: &Plan, prefix: &str) -> Vec<Var> {
    plan.layout.axes.iter().map(|v| program.fresh_var(format!("{prefix}{}", v.name), v.dtype)).collect()
}

fn nest(plan: &Plan, loops: Vec<Var>, body: Stmt) -> Stmt {
    loops.into_iter().zip(&plan.layout.shape).rev().fold(body, |body, (var, extent)| {
        Stmt::For(For {
            min: int(0, var.dtype),
            extent: int(*extent, var.dtype),
            var,
            kind: ForKind::Serial,
            annotations: Default::default(),
            body: Box::new(body),
        })
    })
}

fn iterators(plan: &Plan, vars: Vec<Var>) -> Vec<IterVar> {
    let of = |(var, extent): (Var, &i64)| IterVar {
        min: int(0, var.dtype),
        extent: int(*extent, var.dtype),
        var,
        kind: IterKind::Spatial,
    };
    vars.into_iter().zip(&plan.layout.shape).map(of).collect()
}

fn all_vars(vars: &[Var]) -> Vec<Expr> {
    vars.iter().cloned().map(Expr::Var).collect()
}

/// A nest over the new shape around a block of its own.
fn own_block(program: &mut Program, plan: &Plan, name: &str, make: impl FnOnce(&[Expr]) -> (Block, bool)) -> Stmt {
    let loops = axes(program, plan, "");
    let vars = axes(program, plan, "v_");
    let (mut block, guarded) = make(&all_vars(&vars));
    block.id = program.fresh_block();
    block.name = format!("buffer_{}_{name}", program.buffer(plan.buffer).name);
    block.iter_vars = iterators(plan, vars);
    let values = all_vars(&loops);
    let yes = int(1, DType::Bool);
    let predicate = if guarded { plan.layout.padding_at(&values).unwrap_or(yes) } else { yes };
    nest(plan, loops, Stmt::Realize(Box::new(BlockRealize { iter_values: values, predicate, block })))
}

/// A block that writes the padding.
fn filler(program: &mut Program, plan: &Plan, value: &Expr) -> Stmt {
    own_block(program, plan, "padding", |indices| {
        let store = Stmt::Store { buffer: plan.buffer, indices: indices.to_vec(), value: value.clone() };
        (Block { writes: vec![point(plan.buffer, indices)], ..Block::plain(BlockId(0), "", store) }, true)
    })
}

/// A block that says what the padding of an input holds.
fn assumption(program: &mut Program, plan: &Plan, value: &Expr) -> Stmt {
    own_block(program, plan, "assumptions", |indices| {
        let inside = plan.layout.padding_at(indices).unwrap_or(int(0, DType::Bool));
        let load = Expr::Load(plan.buffer, indices.to_vec());
        let equal = Expr::Binary(satune_ir::BinOp::Eq, Arc::new(load), Arc::new(value.clone()));
        let claim = Expr::Binary(satune_ir::BinOp::Or, Arc::new(Expr::Not(Arc::new(inside))), Arc::new(equal));
        let assume = Stmt::Evaluate(Expr::Call("assume".into(), vec![claim], DType::Bool));
        (Block { reads: vec![point(plan.buffer, indices)], ..Block::plain(BlockId(0), "", assume) }, false)
    })
}

/// The nest of a writer over the new shape, writing padding where there is some. None where it does not run row by row
/// or does more than write the buffer.
fn guarded_writer(program: &mut Program, plan: &Plan, w: &Write, value: &Expr) -> Option<Stmt> {
    if !w.is_row_major(&program.buffer(plan.buffer).shape) {
        return None;
    }
    let old = w.realize.as_ref()?;
    let inside = w.dependent();
    let (top, body) = (&inside.first()?.body, &inside.last()?.body);
    // All of the nest is made anew: it may hold nothing else. TVM asks it of the innermost loop only, and drops the rest.
    let alone = |s: &Stmt| matches!(tree::all_realizes(s)[..], [one] if one.block.id == old.block.id);
    if !alone(top) {
        return None;
    }
    // All indices are data-parallel iterators of the block, next to each other.
    let position = |e: &Expr| old.block.iter_vars.iter().position(|iv| *e == Expr::Var(iv.var.clone()));
    let first = position(w.indices.first()?)?;
    let plain = w
        .indices
        .iter()
        .enumerate()
        .all(|(k, e)| position(e) == Some(first + k) && old.block.iter_vars[first + k].kind == IterKind::Spatial);
    let uses = |e: &Expr| visit::uses_var(e, &|v| inside.iter().any(|l| l.var.id == v));
    let elsewhere =
        old.iter_values.iter().enumerate().any(|(k, e)| !(first..first + w.indices.len()).contains(&k) && uses(e));
    if !plain || elsewhere || uses(&old.predicate) {
        return None;
    }
    let loops = axes(program, plan, "");
    let vars = axes(program, plan, "v_");
    let new = all_vars(&vars);
    let inverse = plan.layout.inverse_at(&new)?;
    let padding = plan.layout.padding_at(&new)?;
    let map: HashMap<VarId, Expr> = w
        .indices
        .iter()
        .zip(&inverse)
        .filter_map(|(e, to)| match e {
            Expr::Var(v) => Some((v.id, to.clone())),
            _ => None,
        })
        .collect();
    let mut block = old.clone();
    block.block.iter_vars.splice(first..first + w.indices.len(), iterators(plan, vars));
    block.iter_values.splice(first..first + w.indices.len(), all_vars(&loops));
    let replacer = Replacer { plan, old: &w.indices, padding: &padding, inverse: &inverse, value };
    *block.block.body = replacer.stmt(&block.block.body)?;
    if let Some(init) = &block.block.init {
        block.block.init = Some(Box::new(replacer.stmt(init)?));
    }
    // The stores now have the old indices in terms of the new iterators, which the map takes to those iterators.
    let values = std::mem::take(&mut block.iter_values);
    let predicate = block.predicate.clone();
    let mut block = visit::map_realize_exprs(&block, &mut |e| visit::substitute(e, &map));
    block.iter_values = values;
    block.predicate = predicate;
    let mut inner = (**body).clone();
    let mut put = Some(block);
    let found = tree::find_mut(&mut inner, Node::Block(old.block.id))?;
    if let Some(block) = put.take() {
        *found = Stmt::Realize(Box::new(block));
    }
    Some(nest(plan, loops, inner))
}

/// Replaces the stores of a writer.
struct Replacer<'a> {
    plan: &'a Plan,
    old: &'a [Expr],
    padding: &'a Expr,
    inverse: &'a [Expr],
    value: &'a Expr,
}

impl Replacer<'_> {
    fn stmt(&self, s: &Stmt) -> Option<Stmt> {
        match s {
            Stmt::Store { buffer, indices, value } if *buffer == self.plan.buffer && indices == self.old => {
                let value = Expr::Select {
                    lazy: true,
                    cond: Arc::new(self.padding.clone()),
                    then: Arc::new(self.value.clone()),
                    otherwise: Arc::new(value.clone()),
                };
                Some(Stmt::Store { buffer: *buffer, indices: self.inverse.to_vec(), value })
            }
            Stmt::For(l) => {
                let body = Box::new(self.stmt(&l.body)?);
                Some(Stmt::For(For { body, ..l.clone() }))
            }
            Stmt::Seq(parts) => parts.iter().map(|s| self.stmt(s)).collect::<Option<_>>().map(Stmt::Seq),
            _ => None,
        }
    }
}
