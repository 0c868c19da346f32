//! How long the memory of a buffer lasts, and who sees it, once the program is lowered.
//!
//! A block allocates a buffer; the memory that it gets is what lies below the lowest node above all of its accesses (TVM's
//! PlanAndUpdateBufferAllocationLocation and CompactBufferAllocation), in every round of it anew. Threads have registers of
//! their own, and blocks of threads shared memory of their own.
use crate::arith::constant;
use crate::tree::{self, Node};
use satune_ir::{pointers, visit, BlockRealize, BufferId, Expr, For, ForKind, IterKind, Program, Range, Stmt};
use satune_ir::{Block, DType, Region};
use std::collections::{HashMap, HashSet};

/// The program with every buffer allocated where its memory begins, and with an index more for the threads that have memory
/// of their own.
pub fn lived(program: &Program) -> Program {
    let mut out = program.clone();
    let mut all = Walk::of(&out);
    for (block, buffer) in allocations(program) {
        let Some(uses) = all.remove(&buffer) else { continue };
        let Some(allocated) = uses.allocated(block) else { continue };
        let scope = out.buffer(buffer).scope.clone();
        let kept = uses.lasting(&scope, allocated);
        if kept > allocated {
            allocate_at(&mut out, block, buffer, uses.paths[0][kept - 1].0);
            // There may be a block more on the way to others.
            all = Walk::of(&out);
        }
        let tags = uses.threads(&scope, kept);
        if !uses.hidden && !tags.is_empty() {
            out.body = PerThread { buffer, tags: &tags }.realize(&out.body, &mut Vec::new());
            let extents = tags.iter().map(|(_, extent)| Expr::Int(*extent, DType::I32));
            let shape: Vec<Expr> = extents.chain(out.buffer(buffer).shape.iter().cloned()).collect();
            out.buffer_mut(buffer).shape = shape;
        }
    }
    out
}

fn allocations(program: &Program) -> Vec<(Node, BufferId)> {
    let root = [&program.body].into_iter().chain(tree::all_realizes(&program.body.block.body));
    root.flat_map(|r| r.block.alloc_buffers.iter().map(|b| (Node::Block(r.block.id), *b))).collect()
}

/// A node above an access; of a loop that threads run, its tag, first value and number of values.
type Step = (Node, Option<(String, i64, i64)>);

/// Where a buffer is accessed.
#[derive(Default)]
struct Uses {
    /// The nodes above each access, from the root down.
    paths: Vec<Vec<Step>>,
    /// The threads over which a block that writes it reduces: they all get the result.
    shared_by: HashSet<String>,
    /// Whether it is accessed through pointers or views.
    hidden: bool,
}

/// Where all buffers are accessed.
#[derive(Default)]
struct Walk {
    uses: HashMap<BufferId, Uses>,
    path: Vec<Step>,
    /// Of a buffer the number of nodes above the outermost loop that reduces into it.
    floors: HashMap<BufferId, usize>,
}

impl Walk {
    fn of(program: &Program) -> HashMap<BufferId, Uses> {
        let mut walk = Walk::default();
        walk.realize(&program.body);
        walk.uses
    }

    fn note(&mut self, buffer: BufferId, hidden: bool) {
        let floor = self.floors.get(&buffer).copied().unwrap_or(usize::MAX);
        let uses = self.uses.entry(buffer).or_default();
        uses.hidden |= hidden;
        uses.paths.push(self.path[..self.path.len().min(floor)].to_vec());
    }

    fn expr(&mut self, e: &Expr) {
        pointers::pointed(e).into_iter().for_each(|(b, _)| self.note(b, true));
        visit::loads(e).into_iter().for_each(|(b, _)| self.note(b, false));
    }

    fn realize(&mut self, r: &BlockRealize) {
        r.iter_values.iter().chain([&r.predicate]).for_each(|e| self.expr(e));
        let values = r.block.iter_vars.iter().zip(&r.iter_values);
        let reduces: Vec<&Expr> = values.filter(|(iv, _)| iv.kind != IterKind::Spatial).map(|(_, e)| e).collect();
        let uses = |node: &Node| match node {
            Node::Loop(id) => reduces.iter().any(|e| visit::uses_var(e, &|v| v == *id)),
            Node::Block(_) => false,
        };
        let before = self.floors.clone();
        if let Some(first) = self.path.iter().position(|(node, _)| uses(node)) {
            let threads = self.path.iter().filter(|(node, _)| uses(node)).filter_map(|(_, tag)| tag.clone());
            let threads: Vec<String> = threads.map(|(tag, ..)| tag).collect();
            for write in &r.block.writes {
                let floor = self.floors.entry(write.buffer).or_insert(first);
                *floor = first.min(*floor);
                self.uses.entry(write.buffer).or_default().shared_by.extend(threads.iter().cloned());
            }
        }
        self.path.push((Node::Block(r.block.id), None));
        r.block.match_buffers.iter().for_each(|(_, x)| self.note(x.buffer, true));
        if let Some(init) = &r.block.init {
            self.stmt(init);
        }
        self.stmt(&r.block.body);
        self.path.pop();
        self.floors = before;
    }

    fn stmt(&mut self, s: &Stmt) {
        match s {
            Stmt::For(l) => {
                [&l.min, &l.extent].into_iter().for_each(|e| self.expr(e));
                self.path.push((Node::Loop(l.var.id), thread(l)));
                self.stmt(&l.body);
                self.path.pop();
            }
            Stmt::Realize(r) => self.realize(r),
            Stmt::Seq(parts) => parts.iter().for_each(|s| self.stmt(s)),
            Stmt::Store { buffer, indices, value } => {
                indices.iter().chain([value]).for_each(|e| self.expr(e));
                self.note(*buffer, false);
            }
            Stmt::If { cond, then, otherwise } => {
                self.expr(cond);
                self.stmt(then);
                if let Some(s) = otherwise {
                    self.stmt(s);
                }
            }
            Stmt::Let { value, body, .. } => {
                self.expr(value);
                self.stmt(body);
            }
            Stmt::Evaluate(e) => self.expr(e),
        }
    }
}

impl Uses {
    /// The number of nodes down to the one that allocates it; none where it is not accessed, or not only below that one.
    fn allocated(&self, block: Node) -> Option<usize> {
        let at = |path: &Vec<Step>| path.iter().position(|(node, _)| *node == block);
        let first = at(self.paths.first()?)?;
        self.paths.iter().all(|p| at(p).is_some()).then_some(first + 1)
    }

    /// The number of nodes that all accesses share, less the threads that see one memory.
    fn lasting(&self, scope: &str, allocated: usize) -> usize {
        let first = &self.paths[0];
        let shared = |i: usize| self.paths.iter().all(|p| p.get(i).is_some_and(|(node, _)| *node == first[i].0));
        let common = (0..first.len()).find(|i| !shared(*i)).unwrap_or(first.len());
        let together = |(_, t): &Step| t.as_ref().is_some_and(|(tag, ..)| one_memory(scope, tag));
        first[..common].iter().position(together).unwrap_or(common).max(allocated)
    }

    /// The threads that have the buffer each for itself, of loops below `from` that all accesses have: tag and number.
    fn threads(&self, scope: &str, from: usize) -> Vec<(String, i64)> {
        if scope == "global" {
            return Vec::new();
        }
        let of = |path: &Vec<Step>| -> HashMap<String, i64> {
            let loops = path.iter().skip(from).filter_map(|(_, t)| t.clone());
            loops.filter(|(tag, ..)| !one_memory(scope, tag)).map(|(tag, _, extent)| (tag, extent)).collect()
        };
        let mut out = of(&self.paths[0]);
        for path in &self.paths[1..] {
            let other = of(path);
            out.retain(|tag, _| other.contains_key(tag));
            out.iter_mut().for_each(|(tag, extent)| *extent = (*extent).max(other[tag]));
        }
        let mut out: Vec<_> = out.into_iter().filter(|(tag, _)| !self.shared_by.contains(tag)).collect();
        out.sort();
        out
    }
}

/// The threads that run a loop.
fn thread(l: &For) -> Option<(String, i64, i64)> {
    match &l.kind {
        ForKind::ThreadBinding(tag) => Some((tag.to_string(), constant(&l.min)?, constant(&l.extent)?)),
        _ => None,
    }
}

/// Whether the threads of a tag see one memory of a scope.
fn one_memory(scope: &str, tag: &str) -> bool {
    match scope {
        "global" => true,
        "warp" => tag == "threadIdx.x",
        s if s.starts_with("shared") => !tag.starts_with("blockIdx"),
        _ => false,
    }
}

/// Moves an allocation to a node further down.
fn allocate_at(program: &mut Program, from: Node, buffer: BufferId, at: Node) {
    let id = program.fresh_block();
    let body = &mut program.body;
    let found = match at {
        Node::Loop(_) => match tree::find_mut(&mut body.block.body, at) {
            Some(Stmt::For(l)) => {
                let inner = std::mem::replace(&mut *l.body, Stmt::Seq(Vec::new()));
                let block = Block { alloc_buffers: vec![buffer], ..Block::plain(id, "memory", inner) };
                *l.body = Stmt::Realize(Box::new(BlockRealize::single(block)));
                true
            }
            _ => false,
        },
        Node::Block(_) => block_mut(body, at, |b| b.alloc_buffers.push(buffer)),
    };
    if found {
        block_mut(body, from, |b| b.alloc_buffers.retain(|b| *b != buffer));
    }
}

fn block_mut(root: &mut BlockRealize, at: Node, f: impl FnOnce(&mut Block)) -> bool {
    if Node::Block(root.block.id) == at {
        f(&mut root.block);
        return true;
    }
    match tree::find_mut(&mut root.block.body, at) {
        Some(Stmt::Realize(r)) => {
            f(&mut r.block);
            true
        }
        _ => false,
    }
}

/// Gives the accesses of a buffer the indices of the threads that run them.
struct PerThread<'a> {
    buffer: BufferId,
    tags: &'a [(String, i64)],
}

/// The loops around, with their tags: variables less their first values.
type Running = Vec<(String, Expr)>;

impl PerThread<'_> {
    fn own(&self, running: &Running) -> Vec<Expr> {
        let of = |tag: &String| running.iter().rev().find(|(t, _)| t == tag).map(|(_, e)| e.clone());
        self.tags.iter().map(|(tag, _)| of(tag).unwrap_or(Expr::Int(0, DType::I32))).collect()
    }

    fn expr(&self, e: &Expr, running: &Running) -> Expr {
        visit::map_expr(e, &mut |e| match e {
            Expr::Load(b, list) if b == self.buffer => Expr::Load(b, [self.own(running), list].concat()),
            other => other,
        })
    }

    fn region(&self, r: &mut Region, running: &Running) {
        if r.buffer == self.buffer {
            let point = |min: Expr| Range { min, extent: Expr::Int(1, DType::I32) };
            r.ranges.splice(0..0, self.own(running).into_iter().map(point));
        }
    }

    fn realize(&self, r: &BlockRealize, running: &mut Running) -> BlockRealize {
        let mut out = r.clone();
        out.iter_values.iter_mut().chain([&mut out.predicate]).for_each(|e| *e = self.expr(e, running));
        let block = &mut out.block;
        block.reads.iter_mut().chain(&mut block.writes).for_each(|x| self.region(x, running));
        if let Some(init) = &mut block.init {
            **init = self.stmt(init, running);
        }
        *block.body = self.stmt(&block.body, running);
        out
    }

    fn stmt(&self, s: &Stmt, running: &mut Running) -> Stmt {
        match s {
            Stmt::For(l) => {
                let entered = thread(l).map(|(tag, first, _)| {
                    let var = Expr::Var(l.var.clone());
                    running.push((tag, crate::arith::add(var, Expr::Int(first.saturating_neg(), l.var.dtype))));
                });
                let (min, extent) = (self.expr(&l.min, running), self.expr(&l.extent, running));
                let body = Box::new(self.stmt(&l.body, running));
                if entered.is_some() {
                    running.pop();
                }
                Stmt::For(For { min, extent, body, ..l.clone() })
            }
            Stmt::Realize(r) => Stmt::Realize(Box::new(self.realize(r, running))),
            Stmt::Seq(parts) => Stmt::Seq(parts.iter().map(|s| self.stmt(s, running)).collect()),
            Stmt::Store { buffer, indices, value } => {
                let mut indices: Vec<Expr> = indices.iter().map(|e| self.expr(e, running)).collect();
                if *buffer == self.buffer {
                    indices = [self.own(running), indices].concat();
                }
                Stmt::Store { buffer: *buffer, indices, value: self.expr(value, running) }
            }
            Stmt::If { cond, then, otherwise } => Stmt::If {
                cond: self.expr(cond, running),
                then: Box::new(self.stmt(then, running)),
                otherwise: otherwise.as_ref().map(|s| Box::new(self.stmt(s, running))),
            },
            Stmt::Let { var, value, body } => Stmt::Let {
                var: var.clone(),
                value: self.expr(value, running),
                body: Box::new(self.stmt(body, running)),
            },
            Stmt::Evaluate(e) => Stmt::Evaluate(self.expr(e, running)),
        }
    }
}
