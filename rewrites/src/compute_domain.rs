//! Over which domain a block has to run under a loop, so that it provides all that is required there.
//!
//! What one instance of the block provides is a region in terms of its iterators; what is required is the union of what
//! the blocks under the loop touch in one iteration of it. The map from iterators to indices is inverted on that box.
use crate::arith::{constant, Domains};
use crate::iter_map;
use crate::linear::{Interval, Linear};
use crate::regions;
use crate::schedule::{Result, Schedule};
use crate::tree::{LoopId, Node};
use crate::ScheduleError;
use satune_ir::affine::ends;
use satune_ir::{visit, BinOp, Block, BlockId, BufferId, Expr, Range, VarId};
use std::collections::HashMap;

/// Which way a block moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A producer moves under a loop of its consumers.
    ToConsumers,
    /// A consumer moves under a loop of its producers.
    ToProducers,
}

/// The values of an iterator under the loop.
#[derive(Clone, Debug)]
pub struct Domain {
    /// First value.
    pub min: Linear,
    /// Number of values.
    pub extent: i64,
    /// The values outside which nothing may run, where the domain may reach beyond: first and last.
    pub guard: Option<(i64, i64)>,
}

/// A domain per iterator of `block`, when it stands directly under `target`.
pub fn of(
    s: &Schedule,
    block: BlockId,
    target: LoopId,
    required: &[BlockId],
    outer: &Domains,
    direction: Direction,
) -> Result<Vec<Domain>> {
    let moved = s.block(block)?;
    let provided = match direction {
        Direction::ToConsumers => &moved.writes,
        Direction::ToProducers => &moved.reads,
    };
    let mut regions: Vec<(BufferId, Vec<Vec<Range>>, Vec<Interval>)> = Vec::new();
    for p in provided {
        if let Some((_, ranges, _)) = regions.iter_mut().find(|(b, _, _)| *b == p.buffer) {
            ranges.push(p.ranges.clone());
            continue;
        }
        if let Some(needed) = needed(s, p.buffer, target, required, outer, direction)? {
            regions.push((p.buffer, vec![p.ranges.clone()], needed));
        }
    }
    let mut found: HashMap<VarId, (Interval, Interval)> = HashMap::new();
    for (buffer, provided, needed) in &regions {
        let dims = regions::whole(s, *buffer)?;
        for ranges in provided {
            for (var, domain, bound) in solve(moved, ranges, needed, &dims, outer)? {
                let entry = match found.remove(&var) {
                    None => (domain, bound),
                    Some((d, b)) => (d.union(&domain, outer), b.union(&bound, outer)),
                };
                found.insert(var, entry);
            }
        }
    }
    moved.iter_vars.iter().map(|iv| finish(moved, iv, found.get(&iv.var.id), outer)).collect()
}

/// The box of a buffer that the blocks under the loop touch in one iteration of it; none where they do not touch it.
fn needed(
    s: &Schedule,
    buffer: BufferId,
    target: LoopId,
    required: &[BlockId],
    outer: &Domains,
    direction: Direction,
) -> Result<Option<Vec<Interval>>> {
    let mut out: Option<Vec<Interval>> = None;
    for &r in required {
        let realize = s.realize(r)?;
        let touched = match direction {
            Direction::ToConsumers => &realize.block.reads,
            Direction::ToProducers => &realize.block.writes,
        };
        for region in touched.iter().filter(|x| x.buffer == buffer) {
            let threads = direction == Direction::ToConsumers;
            let loops = regions::relaxed_loops(s, r, Node::Loop(target), buffer, threads)?;
            let fixed: Domains =
                outer.iter().filter(|(v, _)| !loops.contains_key(v)).map(|(v, r)| (*v, r.clone())).collect();
            let next = regions::relaxed(s, realize, region, &loops, &fixed)?;
            out = Some(match out {
                None => next,
                Some(old) => old.iter().zip(&next).map(|(a, b)| a.union(b, &fixed)).collect(),
            });
        }
    }
    Ok(out)
}

type Solution = Vec<(VarId, Interval, Interval)>;

/// The values that iterators need for `ranges` to provide the box `needed`, and their values for the whole buffer.
fn solve(block: &Block, ranges: &[Range], needed: &[Interval], dims: &[Interval], outer: &Domains) -> Result<Solution> {
    if let Some(solution) = solve_whole(block, ranges, needed, dims, outer) {
        return Ok(solution);
    }
    let mut out: Solution = Vec::new();
    let iters = regions::iter_domains(block);
    for ((range, need), dim) in ranges.iter().zip(needed).zip(dims) {
        if constant(&range.min).is_some() && constant(&range.extent).is_some() {
            continue;
        }
        let Some((var, domain, bound)) = solve_dim(range, need, dim, outer) else {
            return Err(ScheduleError::value(format!(
                "BufferRegion pattern match failed: {}",
                crate::text::expr(&range.min)
            ))
            .at_block(block.id));
        };
        if !iters.contains_key(&var) {
            continue;
        }
        let Some((domain, bound)) = domain.zip(bound) else { continue };
        match out.iter_mut().find(|(v, _, _)| *v == var) {
            None => out.push((var, domain, bound)),
            Some((_, d, b)) => {
                *d = d.union(&domain, outer);
                *b = b.union(&bound, outer);
            }
        }
    }
    Ok(out)
}

/// All dimensions together: the map from iterators to one element is inverted.
fn solve_whole(
    block: &Block,
    ranges: &[Range],
    needed: &[Interval],
    dims: &[Interval],
    outer: &Domains,
) -> Option<Solution> {
    if ranges.iter().any(|r| constant(&r.extent) != Some(1)) {
        return None;
    }
    let indices: Vec<Expr> = ranges.iter().map(|r| r.min.clone()).collect();
    // TVM inverts at the ends of the box; here parts that run full circle in between are taken whole.
    // An iterator of one value is solved for too: what asks for another one is guarded.
    let map = iter_map::detect(&indices, &regions::iter_domains(block), &crate::linear::all([]), true)?;
    let iters = regions::iter_domains(block);
    let domain = map.inverse(needed, &iters, outer)?;
    let mut bound = map.inverse(dims, &iters, outer)?;
    domain.into_iter().map(|(v, d)| Some((v, d, bound.remove(&v)?))).collect()
}

/// One dimension by itself: `v`, `v * e`, `v // c` and `v % c`.
#[allow(clippy::type_complexity)]
fn solve_dim(
    range: &Range,
    need: &Interval,
    dim: &Interval,
    outer: &Domains,
) -> Option<(VarId, Option<Interval>, Option<Interval>)> {
    let both = |f: &dyn Fn(&Interval) -> Option<Interval>| Some((Some(f(need)?), Some(f(dim)?)));
    let single = constant(&range.extent) == Some(1);
    let (var, (domain, bound)) = match &range.min {
        Expr::Var(v) if single => (v.id, (Some(need.clone()), Some(dim.clone()))),
        Expr::Binary(BinOp::Mul, a, b) => {
            let (v, e) = variable_and_constant(a, b).or_else(|| variable_and_constant(b, a))?;
            let e = Some(e).filter(|e| *e > 0)?;
            (v, both(&|i| Some(Interval { lo: i.lo.div(e, outer)?, hi: i.hi.div(e, outer)? }))?)
        }
        Expr::Binary(BinOp::FloorDiv, a, b) if single => {
            let (v, c) = variable_and_constant(a, b)?;
            let c = Some(c).filter(|c| *c > 0)?;
            (v, both(&|i| Some(Interval { lo: i.lo.scale(c)?, hi: i.hi.scale(c)?.shifted(c - 1)? }))?)
        }
        Expr::Binary(BinOp::FloorMod, a, b) if single => (variable_and_constant(a, b)?.0, (None, None)),
        _ => return None,
    };
    Some((var, domain, bound))
}

fn variable_and_constant(a: &Expr, b: &Expr) -> Option<(VarId, i64)> {
    match a {
        Expr::Var(v) => Some((v.id, constant(b)?)),
        _ => None,
    }
}

/// The domain of an iterator: what is needed of it, within what it has.
fn finish(
    block: &Block,
    iv: &satune_ir::IterVar,
    found: Option<&(Interval, Interval)>,
    outer: &Domains,
) -> Result<Domain> {
    let unknown = || ScheduleError::value(format!("The domain of {} is not constant", iv.var.name)).at_block(block.id);
    let (lo, hi) = ends(&Range { min: iv.min.clone(), extent: iv.extent.clone() }).ok_or_else(unknown)?;
    let extent = |i: &Interval| i.extent(outer).and_then(|e| e.as_constant()).filter(|e| *e > 0);
    let full = Domain { min: Linear::constant(lo), extent: hi - lo + 1, guard: None };
    let Some((domain, bound)) = found else { return Ok(full) };
    // The bound holds for the whole buffer; an iterator never leaves its own domain.
    let bound = bound.intersection(&Interval::constant(lo, hi), outer);
    let Some((lo, hi)) = bound.lo.as_constant().zip(bound.hi.as_constant()) else { return Ok(full) };
    let bound = Interval::constant(lo, hi);
    let cut = domain.intersection(&bound, outer);
    let make = |i: &Interval, guard| extent(i).map(|extent| Domain { min: i.lo.clone(), extent, guard });
    let chosen = if cut == *domain {
        make(domain, None)
    } else if cut == bound {
        make(&bound, None)
    } else if cut.lo.as_constant().is_some() && cut.hi.as_constant().is_some() {
        make(&cut, None)
    } else {
        make(domain, Some((lo, hi)))
    };
    // What has no constant extent is run whole, which is always right.
    Ok(chosen.unwrap_or(full))
}

/// Whether an expression depends on any of the loops.
pub fn depends_on(e: &Expr, loops: &[LoopId]) -> bool {
    visit::uses_var(e, &|v| loops.contains(&v))
}
