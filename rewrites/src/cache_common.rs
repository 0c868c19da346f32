//! What cache_read and cache_write share: where the copy stands, its block, and the redirection of accesses.
use crate::arith::{add, constant, int, lt, Domains};
use crate::linear::{all, Interval, Linear};
use crate::pointers;
use crate::regions;
use crate::schedule::{BlockFlags, Result, Schedule};
use crate::tree::{self, children_and_init_mut, Node};
use crate::ScheduleError;
use satune_ir::{
    visit, Block, BlockId, BlockRealize, Buffer, BufferId, DType, Expr, IterKind, IterVar, Range, Region, Stmt,
};
use std::collections::HashMap;

/// Where a copy is inserted: before an entry of the body of a loop or of the scope block.
#[derive(Clone, Copy, Debug)]
pub struct Location {
    /// The loop or the scope block.
    pub node: Node,
    /// The entry (see [`tree::entries`]).
    pub index: usize,
}

/// Where the copy of what `writer` writes stands: in the innermost body that holds the writer and one of `readers`, before
/// the first of them; at the end of the scope where there are none.
pub fn after_writer(s: &Schedule, scope: BlockId, writer: BlockId, readers: &[BlockId]) -> Result<Location> {
    let mut best: Option<(usize, Location)> = None;
    for &reader in readers {
        let node = s.lowest_common_ancestor(Node::Block(writer), Node::Block(reader))?;
        let depth = s.path(node)?.len();
        let entries = tree::entries(s.body_of(node)?);
        let index = entries.iter().position(|e| tree::contains(e, Node::Block(reader))).unwrap_or(entries.len());
        let better = best.is_none_or(|(d, at)| depth > d || (depth == d && index < at.index));
        if better {
            best = Some((depth, Location { node, index }));
        }
    }
    match best {
        Some((_, location)) => Ok(location),
        None => {
            let index = tree::entries(s.body_of(Node::Block(scope))?).len();
            Ok(Location { node: Node::Block(scope), index })
        }
    }
}

/// What is cached: the box that `writer` writes below `at`, cut to the buffer's shape.
pub fn written_box(s: &Schedule, writer: BlockId, region: &Region, at: Node) -> Result<Vec<Interval>> {
    let realize = s.realize(writer)?;
    let loops = regions::relaxed_loops(s, writer, at, region.buffer, false)?;
    let outer = regions::domains_to(s, at)?;
    let cut = |(interval, dim): (Interval, Interval)| {
        let cut = interval.intersection(&dim, &outer);
        let constant = |i: &Interval| i.extent(&outer).and_then(|e| e.as_constant()).is_some();
        if constant(&cut) {
            cut
        } else if constant(&interval) {
            interval
        } else {
            dim
        }
    };
    let boxes = regions::relaxed(s, realize, region, &loops, &outer)?;
    Ok(boxes.into_iter().zip(regions::whole(s, region.buffer)?).map(cut).collect())
}

/// A copy to be made.
#[derive(Clone, Debug)]
pub struct Copy {
    /// Where it is read.
    pub from: BufferId,
    /// Where it is written.
    pub to: BufferId,
    /// The cache: one of the two. The block is named after it.
    pub cache: BufferId,
    /// The box of the cached buffer that is copied.
    pub region: Vec<Interval>,
    /// Whether the cache holds only the box, starting at 0.
    pub compact: bool,
}

/// The cache's buffer: the cached one in another scope; only the box where `compact`.
pub fn cache_buffer(s: &mut Schedule, cached: BufferId, scope: &str, compact: Option<&[Interval]>) -> BufferId {
    let old = s.program().buffer(cached);
    let shape = match compact {
        None => old.shape.clone(),
        Some(region) => {
            let none = Domains::new();
            region.iter().map(|i| i.extent(&none).map_or_else(|| int(0, DType::I32), |e| e.expr())).collect()
        }
    };
    let buffer = Buffer {
        name: format!("{}_{scope}", old.name),
        dtype: old.dtype,
        shape,
        strides: Vec::new(),
        elem_offset: None,
        scope: scope.to_string(),
        align: old.align,
        offset_factor: old.offset_factor,
    };
    s.program_mut().add_buffer(buffer)
}

/// The nest that copies, and its block.
pub fn copy_nest(s: &mut Schedule, copy: &Copy, around: &Domains) -> (BlockId, Stmt) {
    let cached = if copy.cache == copy.from { copy.to } else { copy.from };
    let shape = s.program().buffer(cached).shape.clone();
    let name = s.program().buffer(copy.cache).name.clone();
    let extents: Vec<Linear> =
        copy.region.iter().map(|i| i.extent(around).unwrap_or_else(|| Linear::constant(0))).collect();
    let dims: Vec<_> =
        extents.iter().enumerate().map(|(i, extent)| (format!("ax{i}"), int(0, DType::I32), extent.expr())).collect();
    let id = s.program_mut().fresh_block();
    let nest = s.nest(&dims, |program, loops| {
        let vars: Vec<_> = (0..dims.len()).map(|i| program.fresh_var(format!("v{i}"), DType::I32)).collect();
        let mut iter_vars = Vec::new();
        let mut iter_values = Vec::new();
        let mut guards = Vec::new();
        let (mut whole, mut part) = (Vec::new(), Vec::new());
        for (i, var) in vars.into_iter().enumerate() {
            let (min, max) = (copy.region[i].lo.expr(), &copy.region[i].hi);
            let index = Expr::Var(var.clone());
            let (extent, value) = if copy.compact {
                whole.push(add(min, index.clone()));
                (extents[i].expr(), loops[i].clone())
            } else {
                whole.push(index.clone());
                (shape[i].clone(), add(min, loops[i].clone()))
            };
            part.push(index);
            let last = max.ends(around).1;
            if !copy.compact && constant(&shape[i]).is_none_or(|d| last.is_none_or(|hi| hi >= d)) {
                guards.push(lt(value.clone(), shape[i].clone()));
            }
            iter_vars.push(IterVar { var, min: int(0, DType::I32), extent, kind: IterKind::Spatial });
            iter_values.push(value);
        }
        let (read, write) = if copy.cache == copy.from { (part, whole) } else { (whole, part) };
        let block = Block {
            iter_vars,
            reads: vec![point(copy.from, &read)],
            writes: vec![point(copy.to, &write)],
            ..Block::plain(
                id,
                name,
                Stmt::Store { buffer: copy.to, indices: write, value: Expr::Load(copy.from, read) },
            )
        };
        Stmt::Realize(Box::new(BlockRealize { iter_values, predicate: all(guards), block }))
    });
    (id, nest)
}

/// One element of a buffer.
pub fn point(buffer: BufferId, indices: &[Expr]) -> Region {
    let range = |e: &Expr| Range { min: e.clone(), extent: int(1, DType::I32) };
    Region { buffer, ranges: indices.iter().map(range).collect() }
}

/// Accesses of one buffer that become accesses of another, with shifted indices.
#[derive(Clone, Debug)]
pub struct Redirect<'a> {
    /// The buffer that was accessed.
    pub from: BufferId,
    /// The buffer that is accessed instead.
    pub to: BufferId,
    /// What is subtracted from every index; nothing where the cache has the shape of the buffer.
    pub origin: Option<&'a [Interval]>,
}

impl Redirect<'_> {
    fn index(&self, dim: usize, e: &Expr) -> Expr {
        match self.origin.and_then(|o| o.get(dim)) {
            Some(o) if o.lo.as_constant() != Some(0) => {
                Linear::of(e, &Domains::new()).and_then(|l| l.plus(&o.lo, -1)).map_or_else(|| e.clone(), |l| l.expr())
            }
            _ => e.clone(),
        }
    }

    fn indices(&self, list: &[Expr]) -> Vec<Expr> {
        list.iter().enumerate().map(|(i, e)| self.index(i, e)).collect()
    }

    fn region(&self, r: &mut Region) {
        if r.buffer == self.from {
            r.buffer = self.to;
            for (i, range) in r.ranges.iter_mut().enumerate() {
                range.min = self.index(i, &range.min);
            }
        }
    }

    fn expr(&self, e: &Expr) -> Expr {
        visit::map_expr(e, &mut |e| match e {
            Expr::Load(b, list) if b == self.from => Expr::Load(self.to, self.indices(&list)),
            other => other,
        })
    }

    /// Redirects what a block reads.
    pub fn reads(&self, r: &mut BlockRealize) {
        *r = visit::map_realize_exprs(r, &mut |e| self.expr(e));
        each_block(r, &mut |b| {
            b.reads.iter_mut().for_each(|x| self.region(x));
            b.match_buffers.iter_mut().for_each(|(_, x)| self.region(x));
        });
    }

    /// Redirects what a block reads and writes.
    pub fn reads_and_writes(&self, r: &mut BlockRealize) {
        self.reads(r);
        each_block(r, &mut |b| {
            b.writes.iter_mut().for_each(|x| self.region(x));
            self.stores(&mut b.body);
            if let Some(init) = &mut b.init {
                self.stores(init);
            }
        });
    }

    fn stores(&self, stmt: &mut Stmt) {
        if let Stmt::Store { buffer, indices, .. } = stmt {
            if *buffer == self.from {
                *buffer = self.to;
                *indices = self.indices(indices);
            }
        }
        if !matches!(stmt, Stmt::Realize(_)) {
            children_and_init_mut(stmt).into_iter().for_each(|s| self.stores(s));
        }
    }
}

/// Refuses a cache where a block that is to access it names a part of the buffer as one of another memory scope (as TVM does),
/// or has the buffer's address, and the cache holds only a part: its elements lie elsewhere.
pub fn require_replaceable(
    s: &Schedule,
    blocks: &[BlockId],
    buffer: BufferId,
    memory: &str,
    compact: Option<&[Interval]>,
) -> Result<()> {
    let part = match compact {
        None => false,
        Some(region) => region.iter().zip(regions::whole(s, buffer)?).any(|(r, whole)| *r != whole),
    };
    let root = &s.program().body;
    let all = [root].into_iter().chain(tree::all_realizes(&root.block.body)).map(|r| (r.block.id, &r.block));
    let all: HashMap<BlockId, &Block> = all.collect();
    for &id in blocks {
        let outer = all.get(&id).copied().ok_or_else(|| ScheduleError::block_expired(id))?;
        let inner = tree::all_realizes(&outer.body).into_iter().map(|r| &r.block);
        for b in [outer].into_iter().chain(inner) {
            let views = b.match_buffers.iter().filter(|(_, x)| x.buffer == buffer).map(|(v, _)| s.program().buffer(*v));
            if let Some(view) = views.into_iter().find(|v| v.scope != memory) {
                let (name, scope) = (&view.name, &view.scope);
                let message = format!(
                    "Check failed: buffer.scope() == source_buffer.scope() ({scope} vs. {memory}) : MatchBuffer {name} scope \
                     mismatch:{scope} vs. {memory}"
                );
                return Err(ScheduleError::internal(message).at_block(b.id).remedy(
                    "cache before the block that names a part of the buffer is made, or in that part's scope",
                ));
            }
            if part && pointers::takes(b, buffer) {
                return Err(pointers::refused(s, b, buffer, "the cache would hold only a part of it, somewhere else"));
            }
        }
    }
    Ok(())
}

/// Calls `f` on a block and on all blocks inside it.
pub fn each_block(r: &mut BlockRealize, f: &mut dyn FnMut(&mut Block)) {
    fn below(stmt: &mut Stmt, f: &mut dyn FnMut(&mut Block)) {
        match stmt {
            Stmt::Realize(r) => each_block(r, f),
            other => children_and_init_mut(other).into_iter().for_each(|s| below(s, f)),
        }
    }
    f(&mut r.block);
    below(&mut r.block.body, f);
    if let Some(init) = &mut r.block.init {
        below(init, f);
    }
}

/// Puts the copy into the program and allocates its cache in the scope.
pub fn place(s: &mut Schedule, scope: BlockId, cache: BufferId, at: Location, id: BlockId, nest: Stmt) -> Result<()> {
    s.insert(at.node, at.index, vec![nest])?;
    s.update_block(scope, |b| b.alloc_buffers.push(cache))?;
    s.set_flags(id, BlockFlags { affine_binding: false, region_cover: true, stage_pipeline: true });
    s.update_affine_binding(id);
    Ok(())
}
