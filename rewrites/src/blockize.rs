//! `blockize`: a nest of loops becomes the body of a block of its own.
//!
//! before                                after, blockize(i_1)
//!   for i_0, i_1 in T.grid(4, 8):         for i_0 in range(4):
//!       with T.sblock("B"):                   with T.sblock("B_o"):
//!           vi = T.axis.spatial(                  vi_o = T.axis.spatial(4, i_0)
//!               32, i_0 * 8 + i_1)                T.reads(A[vi_o * 8:vi_o * 8 + 8])
//!           B[vi] = A[vi]                         T.writes(B[vi_o * 8:vi_o * 8 + 8])
//!                                                 for i_1 in range(8):
//!                                                     with T.sblock("B"):
//!                                                         vi_i = T.axis.spatial(8, i_1)
//!                                                         B[vi_o * 8 + vi_i] = A[vi_o * 8 + vi_i]
//!
//! Legal when: 1 one block stands under the loop; 2 each of its iterators is `outer · extent + inner`, with the outer part
//! of loops above and the inner part of the loop and those below, or of one side only; 3 its iterators start with 0 and
//! its init needs no guard over reduction loops (TVM does not ask). Several blocks that follow each other can be put into
//! one: 4 their outer parts are the same, none of them reduces over the loops that they share.
use crate::arith::{add, int, mul, Domains};
use crate::iter_map::{self, subspace};
use crate::linear::Interval;
use crate::loop_checks::only_child;
use crate::schedule::{Result, Schedule};
use crate::simplify::simplified_realize;
use crate::tree::{LoopId, Node};
use crate::ScheduleError;
use satune_ir::{visit, Block, BlockId, BlockRealize, DType, Expr, For, IterKind, IterVar, Range, Region, Stmt, VarId};
use std::collections::HashMap;
use subspace::{Division, Side};

mod group;

pub use group::blockize_blocks;

/// What is divided: a block and the loops that go into the new one.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The only block below.
    pub block: BlockId,
    /// The loops that become part of the new block, outermost first.
    pub loops: Vec<LoopId>,
    /// Its iterators, divided.
    pub division: Division,
}

/// Conditions 1 to 3.
pub fn legal(s: &Schedule, target: LoopId, preserve_unit_iters: bool) -> Result<Plan> {
    let block = only_child(s, target)?;
    let loops = s.loops_of(block)?;
    let from = loops.iter().position(|l| *l == target).unwrap_or(0);
    divide(s, block, &loops[from..], preserve_unit_iters)
}

fn not_divisible(s: &Schedule, block: BlockId, top: Option<LoopId>, remedy: &str) -> ScheduleError {
    let name = |b: BlockId| s.block(b).map_or_else(|_| String::new(), |b| b.name.clone());
    let top_name = top.and_then(|l| s.get_loop(l).ok()).map_or_else(String::new, |l| l.var.name.to_string());
    let error = ScheduleError::refused(
        "The bindings of the inner block can not be blockized.",
        format!(
            "ScheduleError: The bindings of the inner block {} can not be blockized by the loops starting at {top_name}.",
            name(block)
        ),
    )
    .at_block(block)
    .remedy(remedy);
    match top {
        Some(l) => error.at_loop(l),
        None => error,
    }
}

/// Conditions 2 and 3, with the loops `inner` (outermost first, all of `block`) on the inner side.
fn divide(s: &Schedule, block: BlockId, inner: &[LoopId], preserve_unit_iters: bool) -> Result<Plan> {
    let realize = s.realize(block)?;
    let all = s.loops_of(block)?;
    let domains = crate::arith::domains(&s.get_loops(&all)?);
    let is_inner = |v: VarId| inner.contains(&v);
    let is_outer = |v: VarId| all.contains(&v) && !inner.contains(&v);
    let division = iter_map::detect(&realize.iter_values, &domains, &realize.predicate, preserve_unit_iters)
        .and_then(|map| map.divide(&is_inner))
        .or_else(|| trivial(realize, &is_inner, &is_outer));
    let top = inner.first().copied();
    // Of a loop outside of the scope neither side would know anything.
    let elsewhere = |e: &Expr| visit::uses_var(e, &|v| !all.contains(&v));
    if realize.iter_values.iter().chain([&realize.predicate]).any(elsewhere) {
        return Err(not_divisible(s, block, top, "blockize before the loops around it are taken apart"));
    }
    let Some(division) = division else {
        return Err(not_divisible(s, block, top, "split the loops so that the factors divide their extents first"));
    };
    for (iv, (outer, inner)) in realize.block.iter_vars.iter().zip(&division.sides) {
        let whole = outer.extent.checked_mul(inner.extent);
        let starts_elsewhere = crate::arith::constant(&iv.min) != Some(0) || has_offset(inner, &domains);
        if whole.is_none() || starts_elsewhere {
            return Err(not_divisible(s, block, top, "normalise the loops so that iterators start with 0"));
        }
    }
    if realize.block.init.is_some() {
        let reduce = |v: VarId| {
            let feeds = |kind: IterKind| {
                let of_kind =
                    realize.block.iter_vars.iter().zip(&realize.iter_values).filter(move |(iv, _)| iv.kind == kind);
                of_kind.into_iter().any(|(_, e)| visit::uses_var(e, &|u| u == v))
            };
            !feeds(IterKind::Spatial)
        };
        if visit::uses_var(&division.inner_predicate, &|v| is_inner(v) && reduce(v)) {
            return Err(not_divisible(s, block, top, "decompose the reduction first: its init would need a guard"));
        }
    }
    Ok(Plan { block, loops: inner.to_vec(), division })
}

/// Whether an inner side does not start with 0.
fn has_offset(side: &Side, domains: &Domains) -> bool {
    let low = Interval::of(&side.value, domains, &Domains::new()).and_then(|i| i.lo.as_constant());
    low.is_some_and(|lo| lo != 0)
}

/// The division of bindings that use loops of one side only each.
fn trivial(
    realize: &BlockRealize,
    is_inner: &dyn Fn(VarId) -> bool,
    is_outer: &dyn Fn(VarId) -> bool,
) -> Option<Division> {
    let yes = int(1, DType::Bool);
    if realize.predicate != yes {
        return None;
    }
    let unit = || Side { value: int(0, DType::I32), extent: 1 };
    let mut sides = Vec::new();
    for (iv, value) in realize.block.iter_vars.iter().zip(&realize.iter_values) {
        let whole = || crate::arith::constant(&iv.extent).map(|extent| Side { value: value.clone(), extent });
        sides.push(match (visit::uses_var(value, is_outer), visit::uses_var(value, is_inner)) {
            (true, true) => return None,
            (true, false) => (whole()?, unit()),
            (false, true) => (unit(), whole()?),
            (false, false) if crate::arith::constant(value) == Some(0) => (unit(), unit()),
            (false, false) => return None,
        });
    }
    Some(Division { sides, outer_predicate: yes.clone(), inner_predicate: yes })
}

/// The primitive. Returns the new block.
pub fn blockize(s: &mut Schedule, target: LoopId, preserve_unit_iters: bool) -> Result<BlockId> {
    let plan = legal(s, target, preserve_unit_iters).map_err(|e| e.within("blockize"))?;
    apply(s, target, &plan, preserve_unit_iters).map_err(|e| e.within("blockize"))
}

fn apply(s: &mut Schedule, target: LoopId, plan: &Plan, preserve_unit_iters: bool) -> Result<BlockId> {
    let scope = s.scope_of(Node::Block(plan.block))?;
    let outer = blockized(s, plan, preserve_unit_iters)?;
    let id = outer.block.id;
    s.replace(Node::Loop(target), |_| Stmt::Realize(Box::new(outer)))?;
    s.recompute_flags(scope);
    Ok(id)
}

/// The block that a plan makes, not yet in the program.
pub(crate) fn blockized(s: &mut Schedule, plan: &Plan, preserve_unit_iters: bool) -> Result<BlockRealize> {
    let loops: Vec<For> = plan.loops.iter().map(|l| s.get_loop(*l).cloned()).collect::<Result<_>>()?;
    let mut parts = derive(s, plan, None, preserve_unit_iters)?;
    let outer_reduction = parts.outer_vars.iter().any(|iv| iv.kind == IterKind::Reduce);
    let init = parts.inner.block.init.take();
    let reads = relaxed_all(s, &parts.inner.block.reads, &parts.domains)?;
    let writes = relaxed_all(s, &parts.inner.block.writes, &parts.domains)?;
    let name = parts.inner.block.name.clone();
    let init = init.map(|body| Box::new(outer_init(s, *body, &parts.inner, &loops, format!("{name}_init"))));
    if init.is_some() && outer_reduction {
        let mut all = parts.inner.block.writes.clone();
        all.append(&mut parts.inner.block.reads);
        parts.inner.block.reads = all;
    }
    let id = s.program_mut().fresh_block();
    Ok(BlockRealize {
        iter_values: parts.outer_values,
        predicate: plan.division.outer_predicate.clone(),
        block: Block {
            iter_vars: parts.outer_vars,
            reads,
            writes,
            init,
            ..Block::plain(id, format!("{name}_o"), nest(Stmt::Realize(Box::new(parts.inner)), &loops))
        },
    })
}

/// The iterators of the outer block, and the inner block in terms of them.
struct Parts {
    outer_vars: Vec<IterVar>,
    outer_values: Vec<Expr>,
    inner: BlockRealize,
    /// Domains of the inner block's iterators.
    domains: Domains,
}

fn derive(s: &mut Schedule, plan: &Plan, reused: Option<&[IterVar]>, preserve_unit_iters: bool) -> Result<Parts> {
    let old = s.realize(plan.block)?.clone();
    let (mut outer_vars, mut outer_values) = (Vec::new(), Vec::new());
    let (mut inner_vars, mut inner_values) = (Vec::new(), Vec::new());
    let mut map = HashMap::new();
    let mut domains = Domains::new();
    for (i, (iv, (outer, inner))) in old.block.iter_vars.iter().zip(&plan.division.sides).enumerate() {
        let dtype = iv.var.dtype;
        let fresh = |s: &mut Schedule, suffix: &str, extent: i64| IterVar {
            var: s.program_mut().fresh_var(format!("{}{suffix}", iv.var.name), dtype),
            min: int(0, dtype),
            extent: int(extent, dtype),
            kind: iv.kind,
        };
        let outer_var = match reused.and_then(|r| r.get(i)) {
            Some(iv) => iv.clone(),
            None => fresh(s, "_o", outer.extent),
        };
        let base = Expr::Var(outer_var.var.clone());
        outer_vars.push(outer_var);
        outer_values.push(outer.value.clone());
        let value = if inner.extent == 1 {
            if outer.extent == 1 && !preserve_unit_iters {
                int(0, dtype)
            } else {
                base
            }
        } else {
            let inner_var = fresh(s, "_i", inner.extent);
            domains.insert(inner_var.var.id, Range { min: inner_var.min.clone(), extent: inner_var.extent.clone() });
            let within = Expr::Var(inner_var.var.clone());
            inner_vars.push(inner_var);
            inner_values.push(inner.value.clone());
            if outer.extent == 1 {
                within
            } else {
                add(mul(base, int(inner.extent, dtype)), within)
            }
        };
        map.insert(iv.var.id, value);
    }
    let block = BlockRealize { iter_values: Vec::new(), predicate: int(1, DType::Bool), block: old.block };
    let mut inner = visit::map_realize_exprs(&block, &mut |e| visit::substitute(e, &map));
    inner.block.iter_vars = Vec::new();
    inner = simplified_realize(&inner, &domains);
    inner.block.iter_vars = inner_vars;
    inner.iter_values = inner_values;
    inner.predicate = plan.division.inner_predicate.clone();
    Ok(Parts { outer_vars, outer_values, inner, domains })
}

/// Regions while the inner iterators run; dimensions about which nothing can be said are taken whole.
fn relaxed_all(s: &Schedule, all: &[Region], domains: &Domains) -> Result<Vec<Region>> {
    all.iter().map(|r| relaxed(s, r, domains)).collect()
}

fn relaxed(s: &Schedule, region: &Region, domains: &Domains) -> Result<Region> {
    let none = Domains::new();
    let shape = &s.program().buffer(region.buffer).shape;
    let of = |(r, dim): (&Range, &Expr)| {
        let known = Interval::of_range(r, domains, &none).and_then(|i| Some((i.lo.expr(), i.extent(&none)?.expr())));
        let (min, extent) = known.unwrap_or_else(|| (int(0, DType::I32), dim.clone()));
        Range { min, extent }
    };
    Ok(Region { buffer: region.buffer, ranges: region.ranges.iter().zip(shape).map(of).collect() })
}

/// The nest of loops, outermost first, around a statement.
fn nest(body: Stmt, loops: &[For]) -> Stmt {
    loops.iter().rev().fold(body, |body, l| Stmt::For(For { body: Box::new(body), ..l.clone() }))
}

/// The init of the outer block: the old init under copies of the loops that it needs.
fn outer_init(s: &mut Schedule, init: Stmt, inner: &BlockRealize, loops: &[For], name: String) -> Stmt {
    let used = |v: VarId| {
        let mut found = false;
        visit::map_stmt_exprs(&init, &mut |e| {
            found |= visit::uses_var(e, &|u| u == v);
            e.clone()
        });
        found
    };
    let kept: Vec<(IterVar, Expr)> = inner
        .block
        .iter_vars
        .iter()
        .zip(&inner.iter_values)
        .filter(|(iv, _)| iv.kind == IterKind::Spatial && used(iv.var.id))
        .map(|(iv, e)| (iv.clone(), e.clone()))
        .collect();
    let mut map = HashMap::new();
    let mut iter_vars = Vec::new();
    for (iv, _) in &kept {
        let var = s.program_mut().fresh_var(format!("{}_init", iv.var.name), iv.var.dtype);
        map.insert(iv.var.id, Expr::Var(var.clone()));
        iter_vars.push(IterVar { var, ..iv.clone() });
    }
    let needed: Vec<&For> =
        loops.iter().filter(|l| kept.iter().any(|(_, e)| visit::uses_var(e, &|v| v == l.var.id))).collect();
    let mut new_loops = Vec::new();
    for l in needed {
        let var = s.program_mut().fresh_var(l.var.name.clone(), l.var.dtype);
        map.insert(l.var.id, Expr::Var(var.clone()));
        new_loops.push(For { var, ..l.clone() });
    }
    let id = s.program_mut().fresh_block();
    let rename = &mut |e: &Expr| visit::substitute(e, &map);
    let block = Block {
        iter_vars,
        writes: inner.block.writes.iter().map(|w| visit::map_region(w, rename)).collect(),
        ..Block::plain(id, name, visit::map_stmt_exprs(&init, rename))
    };
    let iter_values = kept.iter().map(|(_, e)| rename(e)).collect();
    let predicate = rename(&inner.predicate);
    nest(Stmt::Realize(Box::new(BlockRealize { iter_values, predicate, block })), &new_loops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::split;
    use crate::testing::{assert_program, block, func, joined, loops, matmul, refusal, schedule};

    const PARAMS: &str = "A: T.Buffer((32,), \"float32\"), B: T.Buffer((32,), \"float32\")";

    fn copy() -> Schedule {
        schedule(&func(
            PARAMS,
            "for i in range(32):\n    with T.sblock(\"B\"):\n        vi = T.axis.spatial(32, i)\n        B[vi] = A[vi]\n",
        ))
    }

    #[test]
    fn the_picture() {
        let mut s = copy();
        let target = loops(&s, "B")[0];
        let inner = split(&mut s, target, &[None, Some(8)], true, false).unwrap()[1];
        let outer = blockize(&mut s, inner, true).unwrap();
        assert_eq!(s.block(outer).unwrap().name, "B_o");
        assert_program(
            &s,
            &func(
                PARAMS,
                r#"
for i_0 in range(4):
    with T.sblock("B_o"):
        vi_o = T.axis.spatial(4, i_0)
        T.reads(A[vi_o * 8:vi_o * 8 + 8])
        T.writes(B[vi_o * 8:vi_o * 8 + 8])
        for i_1 in range(8):
            with T.sblock("B"):
                vi_i = T.axis.spatial(8, i_1)
                B[vi_o * 8 + vi_i] = A[vi_o * 8 + vi_i]
"#,
            ),
        );
    }

    #[test]
    fn reductions_keep_their_init_outside() {
        let mut s = matmul();
        let k = loops(&s, "C")[2];
        let outer = blockize(&mut s, k, true).unwrap();
        let inner = block(&s, "C");
        assert!(s.block(outer).unwrap().init.is_some());
        let inner = s.block(inner).unwrap();
        assert!(inner.init.is_none() && inner.reads.len() == 3);
    }

    #[test]
    fn several_blocks() {
        let mut s = joined();
        let both = [block(&s, "B"), block(&s, "C")];
        let outer = blockize_blocks(&mut s, &both, true).unwrap();
        assert_eq!(s.block(outer).unwrap().name, "outer_B_C_");
        assert_eq!(s.child_blocks(Node::Block(outer)).unwrap(), both);
        let mut s = matmul();
        let c = [block(&s, "C")];
        assert_eq!(
            refusal(&mut s, |s| blockize_blocks(s, &c, true)),
            "Target blocks must not be nested with each other!: C"
        );
    }

    #[test]
    fn refuses() {
        let mut s = joined();
        let i = loops(&s, "B")[0];
        let message = "ScheduleError: The loop is required to have only one child block";
        assert_eq!(refusal(&mut s, |s| blockize(s, i, true)), message);
        let mut s = copy();
        let target = loops(&s, "B")[0];
        let inner = split(&mut s, target, &[None, Some(5)], true, false).unwrap()[1];
        let message = "ScheduleError: The bindings of the inner block can not be blockized.";
        assert_eq!(refusal(&mut s, |s| blockize(s, inner, true)), message, "a guard across the boundary");
        let mut s = schedule(&func(
            PARAMS,
            "for i in range(16):\n    with T.sblock(\"B\"):\n        vi = T.axis.spatial(32, i + 3)\n        B[vi] = A[vi]\n",
        ));
        let i = loops(&s, "B")[0];
        assert_eq!(refusal(&mut s, |s| blockize(s, i, true)), message, "an offset, which TVM loses");
    }
}
