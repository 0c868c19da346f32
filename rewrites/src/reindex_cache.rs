//! What `reindex_cache_read` and `reindex_cache_write` share: a copy of what one block accesses, at indices of the caller's
//! choice, made by loops like the block's own.
use crate::arith::{constant, int, Domains};
use crate::cache_common::{self, point, Location};
use crate::dependencies::DepKind;
use crate::index_map::IndexMap;
use crate::linear::{all, conjuncts, Interval, Linear};
use crate::reindex_common::{self as common, refused};
use crate::schedule::{Result, Schedule};
use crate::tree::Node;
use crate::{iter_map, regions, scope, ScheduleError};
use satune_ir::{
    visit, BinOp, Block, BlockId, BlockRealize, Buffer, BufferId, DType, Expr, For, IterKind, IterVar, Range, Region,
    Stmt, VarId,
};
use std::collections::{HashMap, HashSet};

/// What is copied, how, and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The block in which the copy stands.
    pub scope: BlockId,
    /// The buffer that is copied.
    pub buffer: BufferId,
    /// Where the block accesses it.
    pub old: Vec<Expr>,
    /// Where the block accesses the copy.
    pub new: Vec<Expr>,
    /// Extents of the copy.
    pub shape: Vec<i64>,
    /// The iterators that `old` and `new` use, with their values.
    pub iterators: Vec<(IterVar, Expr)>,
    /// The loops that these values use, outermost first.
    pub loops: Vec<For>,
    /// What the block's predicate says of these loops and of those around the copy.
    pub guards: Vec<Expr>,
    /// Where the copy stands.
    pub at: Location,
}

/// The conditions of both primitives, in TVM's order.
pub fn legal(s: &Schedule, block: BlockId, index: i64, memory: &str, map: &IndexMap, write: bool) -> Result<Plan> {
    regions::require_storage_scope(memory)?;
    let region = regions::access(s, block, index, write)?;
    let scope_id = scope::pipeline_of(s, block)?;
    let at = location(s, block, scope_id, &region, write)?;
    let realize = s.realize(block)?;
    let b = &realize.block;
    if !write {
        require_point(s, b, &region)?;
    }
    let old: Vec<Expr> = region.ranges.iter().map(|r| r.min.clone()).collect();
    let (new, shape) = mapped(b, map)?;
    let iterators = used_iterators(realize, &old, &new)?;
    if write {
        require_point(s, b, &region)?;
    }
    require_same_place(s, b, region.buffer, &old)?;
    common::require_one_way(s, b, region.buffer, write)?;
    common::require_in_bounds(s, b, region.buffer, &old)?;
    require_told_apart(s, b, region.buffer, &old, &new, map)?;
    if write {
        require_own_results(s, b, region.buffer, &old)?;
    }
    let (loops, guards) = loops_and_guards(s, realize, at.node, region.buffer, &iterators)?;
    Ok(Plan { scope: scope_id, buffer: region.buffer, old, new, shape, iterators, loops, guards, at })
}

/// Before the block (or before who reads what it writes), below the loops that it shares with the other side; else at the
/// front (or the end) of the scope.
fn location(s: &Schedule, block: BlockId, scope: BlockId, region: &Region, write: bool) -> Result<Location> {
    let graph = s.scope(scope)?;
    let writer = regions::only_writer(&graph, region.buffer, &s.program().buffer(region.buffer).name)?;
    if write {
        let readers: Vec<BlockId> = graph
            .deps
            .iter()
            .filter(|d| d.from == block && d.kind == DepKind::Raw)
            .filter(|d| graph.readers_of(region.buffer).contains(&d.to))
            .map(|d| d.to)
            .collect();
        return cache_common::after_writer(s, scope, block, &readers);
    }
    match writer {
        Some(writer) => cache_common::after_writer(s, scope, writer, &[block]),
        None => Ok(Location { node: Node::Block(scope), index: 0 }),
    }
}

/// Refuses a region of several elements.
fn require_point(s: &Schedule, block: &Block, region: &Region) -> Result<()> {
    if region.ranges.iter().all(|r| constant(&r.extent) == Some(1)) {
        return Ok(());
    }
    Err(ScheduleError::refused(
        "The buffer region accessed inside the block is not a single point.",
        format!(
            "The block {} accesses more than one element of {} per instance",
            block.name,
            s.program().buffer(region.buffer).name
        ),
    )
    .at_block(block.id)
    .remedy("cache_read and cache_write copy regions"))
}

/// The indices that the map makes of the block's iterators, and their extents.
fn mapped(block: &Block, map: &IndexMap) -> Result<(Vec<Expr>, Vec<i64>)> {
    let iterators: Vec<Expr> = block.iter_vars.iter().map(|iv| Expr::Var(iv.var.clone())).collect();
    let new = map.apply(&iterators).ok_or_else(|| {
        ScheduleError::internal(format!(
            "The map {map} has {} parameters, and block {} has {} iterators",
            map.params.len(),
            block.name,
            iterators.len()
        ))
        .at_block(block.id)
    })?;
    // Terms in TVM's order.
    let ordered = |e: Expr| Linear::of(&e, &Domains::new()).map_or(e, |l| l.sorted().expr());
    let new = new.into_iter().map(ordered).collect();
    let extents: Option<Vec<i64>> = block.iter_vars.iter().map(|iv| constant(&iv.extent)).collect();
    let shape = extents.and_then(|extents| extents_of(map, &extents)).ok_or_else(|| {
        ScheduleError::internal(format!(
            "The indices that the map {map} makes of the iterators of block {} do not start with 0",
            block.name
        ))
        .at_block(block.id)
        .remedy("shift the indices so that the first one is 0")
    })?;
    Ok((new, shape))
}

/// Extents of the map's outputs over the box `[0, extents)`; none where one does not start with 0, or cannot be told.
fn extents_of(map: &IndexMap, extents: &[i64]) -> Option<Vec<i64>> {
    let none = Domains::new();
    let domains = box_domains(extents);
    let taken = iter_map::taken_apart(&map.outputs, &domains, &int(1, DType::Bool), true);
    let extent = |(k, e): (usize, &Expr)| {
        if let Some(map) = &taken {
            // As in TVM, `15 - i` starts with 15.
            let extent = map.extent_of(k).filter(|_| map.base_of(k) == Some(0))?;
            // A remainder has all its values, even where the divisor is larger than what is divided.
            return Some(match e {
                Expr::Binary(BinOp::FloorMod, _, c) => extent.max(constant(c)?),
                _ => extent,
            });
        }
        let interval = Interval::of(e, &domains, &none)?;
        interval.lo.as_constant().filter(|lo| *lo == 0)?;
        interval.hi.as_constant()?.checked_add(1)
    };
    map.outputs.iter().enumerate().map(extent).collect()
}

fn box_domains(extents: &[i64]) -> Domains {
    let range = |e: &i64| Range { min: int(0, DType::I32), extent: int(*e, DType::I32) };
    extents.iter().enumerate().map(|(k, e)| (VarId(k as u32), range(e))).collect()
}

/// The iterators that the indices use. Refused where the old ones use others than the new ones.
fn used_iterators(realize: &BlockRealize, old: &[Expr], new: &[Expr]) -> Result<Vec<(IterVar, Expr)>> {
    let uses = |list: &[Expr], v: VarId| list.iter().any(|e| visit::uses_var(e, &|x| x == v));
    let block = &realize.block;
    let mut out = Vec::new();
    for (iv, value) in block.iter_vars.iter().zip(&realize.iter_values) {
        match (uses(old, iv.var.id), uses(new, iv.var.id)) {
            (true, true) => out.push((iv.clone(), value.clone())),
            (false, false) => {}
            (before, _) => {
                let (here, there) = if before { (old, new) } else { (new, old) };
                let text = |list: &[Expr]| list.iter().map(crate::text::expr).collect::<Vec<_>>().join(", ");
                return Err(ScheduleError::refused(
                    "the block itervars appeared in lhs and rhs of reindex cache stage do not match.",
                    format!(
                        "The iterator {} of block {} appears in [{}], but not in [{}]",
                        iv.var.name,
                        block.name,
                        text(here),
                        text(there)
                    ),
                )
                .at_block(block.id)
                .remedy("the map should use the iterators that the buffer is indexed by, and no others"));
            }
        }
    }
    Ok(out)
}

/// Refuses a block that holds others, or accesses the buffer elsewhere than it declares. TVM does not ask.
fn require_same_place(s: &Schedule, block: &Block, buffer: BufferId, declared: &[Expr]) -> Result<()> {
    let place = common::one_place(s, block, buffer)?;
    let domains = regions::iter_domains(block);
    let simple = |e: &Expr| Linear::of(e, &domains).map_or_else(|| e.clone(), |l| l.sorted().expr());
    if place.iter().zip(declared).all(|(a, b)| simple(a) == simple(b)) {
        return Ok(());
    }
    Err(refused(s, block.id, buffer, "it accesses another element than it declares")?)
}

/// Refuses a map that takes elements with values of their own to one place. TVM does not ask.
fn require_told_apart(
    s: &Schedule,
    block: &Block,
    buffer: BufferId,
    old: &[Expr],
    new: &[Expr],
    map: &IndexMap,
) -> Result<()> {
    if block.iter_vars.iter().any(|iv| constant(&iv.min) != Some(0)) {
        return Err(refused(s, block.id, buffer, "its iterators do not start with 0")?);
    }
    let extents: Option<Vec<i64>> = block.iter_vars.iter().map(|iv| constant(&iv.extent)).collect();
    let fixed = |e: &Expr| !visit::uses_var(e, &|v| block.iter_vars.iter().any(|iv| iv.var.id == v));
    if old.iter().all(|e| fixed(e) || new.contains(e)) || extents.is_some_and(|e| map.is_injective(&e)) {
        return Ok(());
    }
    let why = format!("the map {map} may take several of its elements to one place");
    Err(refused(s, block.id, buffer, why)?.remedy("use a map from whose outputs its parameters can be told"))
}

/// Refuses a reduction whose instances share an element with others than those of the same sum. TVM does not ask.
fn require_own_results(s: &Schedule, block: &Block, buffer: BufferId, old: &[Expr]) -> Result<()> {
    if block.init.is_none() {
        return Ok(());
    }
    let used = |iv: &&IterVar| old.iter().any(|e| visit::uses_var(e, &|v| v == iv.var.id));
    let domains: Domains = regions::iter_domains(block)
        .into_iter()
        .filter(|(v, _)| block.iter_vars.iter().any(|iv| iv.var.id == *v && iv.kind == IterKind::Spatial))
        .collect();
    let sums = block.iter_vars.iter().filter(used).all(|iv| iv.kind == IterKind::Spatial);
    let apart = iter_map::detect(old, &domains, &int(1, DType::Bool), true).is_some_and(|m| m.is_injective(&domains));
    if sums && apart {
        return Ok(());
    }
    Err(refused(s, block.id, buffer, "several of its sums share an element")?)
}

/// The loops below `at` that the values of the iterators use, and what the predicate says of them. Refused where these
/// cannot be told from the other loops.
fn loops_and_guards(
    s: &Schedule,
    realize: &BlockRealize,
    at: Node,
    buffer: BufferId,
    iterators: &[(IterVar, Expr)],
) -> Result<(Vec<For>, Vec<Expr>)> {
    let block = realize.block.id;
    let all_loops = s.loops_of(block)?;
    let below = all_loops.iter().position(|id| Node::Loop(*id) == at).map_or(0, |i| i + 1);
    let inner: HashSet<VarId> = all_loops[below..].iter().copied().collect();
    let used = |v: VarId| iterators.iter().any(|(_, e)| visit::uses_var(e, &|x| x == v));
    let kept: HashSet<VarId> = inner.iter().copied().filter(|v| used(*v)).collect();
    let dropped = |e: &Expr| visit::uses_var(e, &|v| inner.contains(&v) && !kept.contains(&v));
    let loops: Vec<For> = s
        .get_loops(&all_loops[below..])?
        .into_iter()
        .filter(|l| kept.contains(&l.var.id))
        .map(|l| For { kind: satune_ir::ForKind::Serial, annotations: Default::default(), ..l.clone() })
        .collect();
    if let Some(l) = loops.iter().find(|l| dropped(&l.min) || dropped(&l.extent)) {
        let why = format!("the domain of loop {} depends on loops that the copy does not have", l.var.name);
        return Err(refused(s, block, buffer, why)?.at_loop(l.var.id));
    }
    let mut guards = Vec::new();
    for clause in conjuncts(&realize.predicate) {
        match (dropped(&clause), visit::uses_var(&clause, &|v| kept.contains(&v))) {
            (false, _) => guards.push(clause),
            (true, false) => {}
            (true, true) => {
                let why = format!(
                    "the condition {} ties its loops to others, which the copy does not have",
                    crate::text::expr(&clause)
                );
                return Err(refused(s, block, buffer, why)?);
            }
        }
    }
    Ok((loops, guards))
}

/// Makes the copy and lets the block access it. Returns the block that copies.
pub fn apply(s: &mut Schedule, block: BlockId, plan: &Plan, memory: &str, write: bool) -> Result<BlockId> {
    let old = s.program().buffer(plan.buffer);
    let name = format!("{}_{memory}", old.name);
    let copy = Buffer {
        name: name.clone(),
        shape: plan.shape.iter().map(|e| int(*e, DType::I32)).collect(),
        strides: Vec::new(),
        elem_offset: None,
        scope: memory.to_string(),
        ..old.clone()
    };
    let copy = s.program_mut().add_buffer(copy);
    let program = s.program_mut();
    let mut renamed: HashMap<VarId, Expr> = HashMap::new();
    let mut loops = Vec::new();
    for l in &plan.loops {
        let var = program.fresh_var(l.var.name.clone(), l.var.dtype);
        let (min, extent) = (visit::substitute(&l.min, &renamed), visit::substitute(&l.extent, &renamed));
        renamed.insert(l.var.id, Expr::Var(var.clone()));
        loops.push(For { var, min, extent, ..l.clone() });
    }
    let iter_values = plan.iterators.iter().map(|(_, e)| visit::substitute(e, &renamed)).collect();
    let predicate = all(plan.guards.iter().map(|e| visit::substitute(e, &renamed)));
    let mut iter_vars = Vec::new();
    for (iv, _) in &plan.iterators {
        let var = program.fresh_var(iv.var.name.clone(), iv.var.dtype);
        renamed.insert(iv.var.id, Expr::Var(var.clone()));
        iter_vars.push(IterVar { var, kind: IterKind::Spatial, ..iv.clone() });
    }
    let rename = |list: &[Expr]| list.iter().map(|e| visit::substitute(e, &renamed)).collect::<Vec<_>>();
    let (here, there) = ((plan.buffer, rename(&plan.old)), (copy, rename(&plan.new)));
    let ((from, source), (to, target)) = if write { (there, here) } else { (here, there) };
    let id = program.fresh_block();
    let made = Block {
        iter_vars,
        reads: vec![point(from, &source)],
        writes: vec![point(to, &target)],
        ..Block::plain(id, name, Stmt::Store { buffer: to, indices: target, value: Expr::Load(from, source) })
    };
    let realize = Stmt::Realize(Box::new(BlockRealize { iter_values, predicate, block: made }));
    let nest = loops.into_iter().rev().fold(realize, |body, l| Stmt::For(For { body: Box::new(body), ..l }));
    s.update_block(block, |b| common::redirect(b, plan.buffer, copy, &plan.new))?;
    cache_common::place(s, plan.scope, copy, plan.at, id, nest)?;
    Ok(id)
}
